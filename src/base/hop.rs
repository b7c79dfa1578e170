//! Hosts to go through on the way to a node: `login.example.org`, `me@gate:2222,inner`.

use std::fmt;

/// The most hosts in a row.
pub const MAX_HOPS: usize = 8;

/// One host on the way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Hop {
    /// Login name, where one is written.
    pub user: Option<String>,
    /// Host name, address (without brackets) or alias of the SSH config.
    pub host: String,
    /// Port, where one is written.
    pub port: Option<u16>,
}

impl fmt::Display for Hop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        match (self.host.contains(':'), self.port) {
            (true, Some(port)) => write!(f, "[{}]:{port}", self.host),
            (true, None) => write!(f, "[{}]", self.host),
            (false, Some(port)) => write!(f, "{}:{port}", self.host),
            (false, None) => f.write_str(&self.host),
        }
    }
}

impl Hop {
    /// Several hops as they are written.
    pub fn join(hops: &[Self]) -> String {
        hops.iter().map(Self::to_string).collect::<Vec<_>>().join(",")
    }

    /// Reads `user@host:port` and comma-separated rows of it, first hop first; `none` is no hop. `ssh://` may come
    /// before each, as ssh allows. The error is a fragment.
    pub fn parse_row(text: &str) -> Result<Vec<Self>, String> {
        if text.eq_ignore_ascii_case("none") {
            return Ok(Vec::new());
        }
        let hops = text.split(',').map(|hop| Self::parse(hop.trim())).collect::<Result<Vec<_>, _>>()?;
        if hops.len() > MAX_HOPS {
            return Err(format!("{} hosts in a row, at most {MAX_HOPS} are allowed", hops.len()));
        }
        Ok(hops)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let rest = text.strip_prefix("ssh://").map_or(text, |rest| rest.trim_end_matches('/'));
        let (user, rest) = match rest.rsplit_once('@') {
            Some((user, _)) if user.is_empty() || user.starts_with('-') || user.chars().any(odd) => {
                return Err(format!("no login name before `@` in `{}`", text.escape_debug()));
            }
            Some((user, rest)) => (Some(user.to_owned()), rest),
            None => (None, rest),
        };
        let (host, port) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, port)) => (host, Some(port.strip_prefix(':').unwrap_or(""))),
            // A bare IPv6 address has no port.
            None if rest.matches(':').count() > 1 => (rest, None),
            None => rest.split_once(':').map_or((rest, None), |(host, port)| (host, Some(port))),
        };
        let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '%');
        if host.is_empty() || host.starts_with('-') || host.len() > 253 || !host.chars().all(fine) {
            return Err(format!("no host name in `{}`", text.escape_debug()));
        }
        let port = match port.map(str::parse::<u16>) {
            None => None,
            Some(Ok(port)) if port > 0 => Some(port),
            Some(_) => return Err(format!("no port from 1 to 65535 in `{}`", text.escape_debug())),
        };
        Ok(Self { user, host: host.to_owned(), port })
    }
}

fn odd(c: char) -> bool {
    c.is_whitespace() || c.is_control()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hops_are_read_and_written_back() {
        for (text, back) in [
            ("login", "login"),
            ("me@login.example.org:2222", "me@login.example.org:2222"),
            ("a, b@c:1 ,d", "a,b@c:1,d"),
            ("ssh://me@gate:22/", "me@gate:22"),
            ("[fe80::1%eth0]:22", "[fe80::1%eth0]:22"),
            ("u@::1", "u@[::1]"),
            ("me@corp@gate", "me@corp@gate"),
            ("none", ""),
        ] {
            assert_eq!(Hop::join(&Hop::parse_row(text).expect(text)), back, "{text}");
        }
        for bad in ["", ",", "a,", "@a", "-x@a", "-oProxyCommand=x", "a:0", "a:x", "a:", "a:70000", "a b", "[a", "$(x)"]
        {
            assert!(Hop::parse_row(bad).is_err(), "{bad}");
        }
        assert!(Hop::parse_row(&["a"; 9].join(",")).is_err());
    }
}
