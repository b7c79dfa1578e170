//! Addresses of files: how they are written, where a redirect leads, and what counts as the same server.

use ureq::http::Uri;

/// An address of a server's file, `http` or `https`. What follows its host is nobody's to read: a content network's
/// address is a key to the file.
#[derive(Clone, PartialEq, Eq)]
pub struct Address(Uri);

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.place())
    }
}

impl Address {
    /// Reads an absolute address; the error says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let uri: Uri = tidy(text).parse().map_err(|_| "is no address".to_owned())?;
        let host = uri.host().unwrap_or_default();
        let word = |word: &str| uri.scheme_str().is_some_and(|scheme| scheme.eq_ignore_ascii_case(word));
        if host.is_empty() || !(word("http") || word("https")) {
            return Err("is no address that begins with https:// or http://".to_owned());
        }
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err("holds a login".to_owned());
        }
        Ok(Self(uri))
    }

    /// `endpoint/repository/resolve/commit/name`.
    pub fn of_file(endpoint: &str, repository: &str, commit: &str, name: &str) -> Result<Self, String> {
        let endpoint = endpoint.trim_end_matches('/');
        let text = format!("{endpoint}/{}/resolve/{}/{}", encode(repository), encode(commit), encode(name));
        Self::parse(&text)
    }

    /// For a request.
    pub fn uri(&self) -> &Uri {
        &self.0
    }

    /// Whether what is sent can be read on the way.
    pub fn is_plain(&self) -> bool {
        !self.0.scheme_str().unwrap_or_default().eq_ignore_ascii_case("https")
    }

    /// The host, in small letters.
    pub fn host(&self) -> String {
        self.0.host().unwrap_or_default().to_ascii_lowercase()
    }

    fn port(&self) -> u16 {
        self.0.port_u16().unwrap_or(if self.is_plain() { 80 } else { 443 })
    }

    /// The server, for people.
    pub fn place(&self) -> String {
        let scheme = if self.is_plain() { "http" } else { "https" };
        let port = self.0.port_u16().map_or(String::new(), |port| format!(":{port}"));
        format!("{scheme}://{}{port}", self.host())
    }

    /// Whether both are on one server: a login for the one is for the other.
    pub fn is_beside(&self, other: &Self) -> bool {
        self.is_plain() == other.is_plain() && self.host() == other.host() && self.port() == other.port()
    }

    /// Where a `Location` leads from here.
    pub fn join(&self, location: &str) -> Result<Self, String> {
        let location = location.trim();
        let lower = location.to_ascii_lowercase();
        if lower.starts_with("http://") || lower.starts_with("https://") {
            return Self::parse(location);
        }
        if location.split(['/', '?', '#']).next().is_some_and(|first| first.contains(':')) {
            return Err("is no address that begins with https:// or http://".to_owned());
        }
        let scheme = if self.is_plain() { "http" } else { "https" };
        if location.starts_with("//") {
            return Self::parse(&format!("{scheme}:{location}"));
        }
        let authority = self.0.authority().map_or("", |authority| authority.as_str());
        let folder = match location.starts_with('/') {
            true => "",
            false => self.0.path().rsplit_once('/').map_or("/", |(folder, _)| folder),
        };
        let slash = if location.starts_with('/') { "" } else { "/" };
        Self::parse(&format!("{scheme}://{authority}{}{slash}{location}", folder.trim_end_matches('/')))
    }
}

/// A path with everything encoded that is not plain; slashes stay.
fn encode(path: &str) -> String {
    encoded(path, |byte| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte))
}

/// What servers write into addresses and should have encoded.
fn tidy(text: &str) -> String {
    encoded(text, |byte| byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte))
}

fn encoded(text: &str, plain: impl Fn(u8) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match plain(byte) {
            true => out.push(char::from(byte)),
            false => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        Address::parse(text).unwrap_or_else(|problem| panic!("{text} {problem}"))
    }

    #[test]
    fn a_name_is_encoded_and_cannot_leave_its_place() {
        let of =
            |name: &str| Address::of_file("https://hub.example/", "o/m", "abc", name).map(|found| found.0.to_string());
        assert_eq!(of("sub/a b#c?.gguf").as_deref(), Ok("https://hub.example/o/m/resolve/abc/sub/a%20b%23c%3F.gguf"));
        assert_eq!(
            of("größe%2e\r\nX: y").as_deref(),
            Ok("https://hub.example/o/m/resolve/abc/gr%C3%B6%C3%9Fe%252e%0D%0AX%3A%20y")
        );
        for bad in ["", "hub.example", "ftp://hub.example", "https://", "https://me:secret@hub.example", "file:///etc"]
        {
            assert!(Address::of_file(bad, "o/m", "abc", "x").is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_redirect_leads_where_its_location_says() {
        let from = address("https://hub.example:8443/o/m/resolve/c/a.gguf?x=1");
        for (location, to) in [
            ("https://cdn.example/a?Key=1&Sig=a~b_", "https://cdn.example/a?Key=1&Sig=a~b_"),
            ("HTTPS://CDN.example/a", "https://CDN.example/a"),
            ("/api/x y", "https://hub.example:8443/api/x%20y"),
            ("//other.example/z", "https://other.example/z"),
            ("b.gguf", "https://hub.example:8443/o/m/resolve/c/b.gguf"),
            ("b:c/d", ""),
            ("javascript:alert(1)", ""),
            ("https://me:pw@cdn.example/", ""),
        ] {
            assert_eq!(from.join(location).map(|found| found.0.to_string()).unwrap_or_default(), to, "{location}");
        }
    }

    #[test]
    fn a_login_is_for_one_server() {
        let hub = address("https://hub.example/o/m");
        for (other, same) in [
            ("https://HUB.example:443/x", true),
            ("http://hub.example/x", false),
            ("https://hub.example:8443/x", false),
            ("https://cdn.hub.example/x", false),
            ("https://hub.example.evil/x", false),
        ] {
            assert_eq!(hub.is_beside(&address(other)), same, "{other}");
        }
        assert_eq!(format!("{:?}", address("https://cdn.example/file?Signature=secret")), "https://cdn.example");
    }
}
