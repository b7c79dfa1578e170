//! Where the hub is, who asks, and how patiently.

use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::Url;
use reqwest::header::HeaderValue;

use crate::base::Secret;
use crate::ports::HubError;

/// The hub that is asked where HF_ENDPOINT names none.
const DEFAULT_ENDPOINT: &str = "https://huggingface.co";
/// Largest token file that is read.
const MAX_TOKEN_BYTES: u64 = 16 << 10;

/// How a hub is asked.
#[derive(Debug, Clone)]
pub struct HubSettings {
    /// `https://host[:port][/path]`.
    pub endpoint: String,
    /// Sent to the endpoint's own host alone.
    pub token: Option<Secret<String>>,
    /// PEM file of authorities that are trusted beside the system's.
    pub certificates: Option<PathBuf>,
    /// How the hub is reached.
    pub proxy: HubProxy,
    /// Folder for what is known about commits; without one nothing is remembered.
    pub cache: Option<PathBuf>,
    /// Nothing is asked over the network: what the cache lacks is unreachable.
    pub offline: bool,
    /// Patience.
    pub limits: HubLimits,
}

/// How the hub is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HubProxy {
    /// As HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY say, in capitals or not.
    Environment,
    /// Directly.
    Direct,
    /// Through the proxy at this address.
    Address(String),
}

/// Patience with a hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HubLimits {
    /// Requests at a time; streams that were opened are not counted.
    pub at_once: usize,
    /// Tries of one request, the first among them.
    pub attempts: u32,
    /// Wait before the second try; it doubles with each, up to `longest_delay`.
    pub first_delay: Duration,
    /// Longest of these waits.
    pub longest_delay: Duration,
    /// Longest wait that a hub may ask for (`Retry-After`); where it asks for more, the request has failed.
    pub longest_retry_after: Duration,
    /// To connect, TLS included.
    pub connect: Duration,
    /// Without a byte.
    pub stall: Duration,
    /// One try of one request for JSON. A ranged read has this and one second more per 128 KiB.
    pub request: Duration,
    /// All tries of one request together, waits included: no try begins later.
    pub total: Duration,
}

impl Default for HubLimits {
    fn default() -> Self {
        Self {
            at_once: 8,
            attempts: 5,
            first_delay: Duration::from_millis(500),
            longest_delay: Duration::from_secs(8),
            longest_retry_after: Duration::from_secs(60),
            connect: Duration::from_secs(10),
            stall: Duration::from_secs(20),
            request: Duration::from_secs(60),
            total: Duration::from_secs(120),
        }
    }
}

impl HubSettings {
    /// For an endpoint, with nothing of the environment: no token, no proxy, no cache.
    pub fn new(endpoint: impl Into<String>) -> Self {
        Self {
            endpoint: endpoint.into(),
            token: None,
            certificates: None,
            proxy: HubProxy::Direct,
            cache: None,
            offline: false,
            limits: HubLimits::default(),
        }
    }

    /// What the hub's own tools read: HF_ENDPOINT; HF_TOKEN, else the file that HF_TOKEN_PATH names, else
    /// `$HF_HOME/token`; HF_HUB_OFFLINE; the proxy variables. SSL_CERT_FILE and SSL_CERT_DIR replace the system's
    /// authorities. The cache is `$XDG_CACHE_HOME/flock/hub`, else `~/.cache/flock/hub`.
    ///
    /// Order and names are those of huggingface_hub's `constants.py` and `utils/_auth.py`.
    pub fn from_environment() -> Self {
        Self::from_variables(&|name| std::env::var_os(name).and_then(|value| value.into_string().ok()), home())
    }

    fn from_variables(variable: &dyn Fn(&str) -> Option<String>, home: Option<PathBuf>) -> Self {
        let set = |name: &str| variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        let yes = |name: &str| {
            set(name).is_some_and(|value| matches!(value.to_ascii_uppercase().as_str(), "1" | "ON" | "YES" | "TRUE"))
        };
        let caches = set("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let caches = caches.or_else(|| home.as_ref().map(|home| home.join(".cache")));
        let expanded = |path: String| match (path.strip_prefix("~/"), &home) {
            (Some(rest), Some(home)) => home.join(rest),
            _ => PathBuf::from(path),
        };
        let hf_home = set("HF_HOME").map(expanded).or_else(|| Some(caches.as_ref()?.join("huggingface")));
        let token_file = set("HF_TOKEN_PATH").map(expanded).or_else(|| Some(hf_home?.join("token")));

        let named = || set("HF_TOKEN").or_else(|| set("HUGGING_FACE_HUB_TOKEN"));
        let implicit = !yes("HF_HUB_DISABLE_IMPLICIT_TOKEN");
        let token = if implicit { named().or_else(|| token_in(&token_file?)) } else { None };
        Self {
            endpoint: set("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned()),
            token: token.map(Secret::new),
            certificates: None,
            proxy: HubProxy::Environment,
            cache: caches.map(|caches| caches.join("flock/hub")),
            offline: yes("HF_HUB_OFFLINE") || yes("TRANSFORMERS_OFFLINE"),
            limits: HubLimits::default(),
        }
    }

    /// The endpoint's address, checked.
    ///
    /// # Errors
    /// [`HubError::Setting`] where it is no address of a web server, or holds a password.
    pub(super) fn address(&self) -> Result<Url, HubError> {
        let wrong = |reason: &str| HubError::Setting { name: "HF_ENDPOINT".to_owned(), reason: reason.to_owned() };
        let text = self.endpoint.trim().trim_end_matches('/');
        let url = Url::parse(text).map_err(|_| wrong("is no address such as https://huggingface.co"))?;
        if !matches!(url.scheme(), "https" | "http") || !url.has_host() {
            return Err(wrong("is no address such as https://huggingface.co"));
        }
        // It is shown in messages and handed to nodes.
        if !url.username().is_empty() || url.password().is_some() {
            return Err(wrong("holds a user name or password: give a token in HF_TOKEN instead"));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(wrong("has a query or fragment"));
        }
        Ok(url)
    }

    /// The header that the token travels in.
    ///
    /// # Errors
    /// [`HubError::Setting`] where no header can hold it.
    pub(super) fn authorization(&self) -> Result<Option<HeaderValue>, HubError> {
        let Some(token) = &self.token else { return Ok(None) };
        let visible = !token.reveal().is_empty() && token.reveal().bytes().all(|byte| byte.is_ascii_graphic());
        let header = HeaderValue::from_str(&format!("Bearer {}", token.reveal())).ok().filter(|_| visible);
        let mut header = header.ok_or_else(|| HubError::Setting {
            name: "HF_TOKEN".to_owned(),
            reason: "holds characters that no token has".to_owned(),
        })?;
        header.set_sensitive(true);
        Ok(Some(header))
    }
}

fn home() -> Option<PathBuf> {
    std::env::home_dir().filter(|home| home.is_absolute())
}

/// The token in the file of `hf auth login`.
fn token_in(path: &Path) -> Option<String> {
    use std::io::Read as _;
    let mut text = String::new();
    std::fs::File::open(path).ok()?.take(MAX_TOKEN_BYTES).read_to_string(&mut text).ok()?;
    let token = text.trim();
    (!token.is_empty()).then(|| token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)], home: &Path) -> HubSettings {
        let variable =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        HubSettings::from_variables(&variable, Some(home.to_owned()))
    }

    fn token(settings: &HubSettings) -> Option<&str> {
        settings.token.as_ref().map(|token| token.reveal().as_str())
    }

    #[test]
    fn the_token_is_found_where_the_hubs_tools_find_it() {
        let home = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            let path = home.path().join(name);
            std::fs::create_dir_all(path.parent().expect("inside")).expect("made");
            std::fs::write(&path, text).expect("written");
            path.to_str().expect("UTF-8").to_owned()
        };
        assert_eq!(token(&settings(&[], home.path())), None);
        write(".cache/huggingface/token", "hf_login\n");
        let (other_home, other_file) = (write("h/token", "hf_home"), write("f", " hf_file \n"));
        let other_home = other_home.trim_end_matches("/token");
        type Case<'a> = (&'a [(&'a str, &'a str)], Option<&'a str>);
        let cases: &[Case<'_>] = &[
            (&[], Some("hf_login")),
            (&[("HF_HOME", other_home)], Some("hf_home")),
            (&[("HF_HOME", "~/h")], Some("hf_home")),
            (&[("HF_HOME", other_home), ("HF_TOKEN_PATH", &other_file)], Some("hf_file")),
            (&[("HF_TOKEN", " hf_env\n"), ("HF_TOKEN_PATH", &other_file)], Some("hf_env")),
            (&[("HF_TOKEN", ""), ("HUGGING_FACE_HUB_TOKEN", "hf_old")], Some("hf_old")),
            (&[("HF_TOKEN", "hf_env"), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")], None),
            (&[("XDG_CACHE_HOME", "/nowhere")], None),
        ];
        for (variables, expected) in cases {
            assert_eq!(token(&settings(variables, home.path())), *expected, "{variables:?}");
        }
        assert!(!format!("{:?}", settings(&[("HF_TOKEN", "hf_env")], home.path())).contains("hf_env"));
    }

    #[test]
    fn endpoint_cache_and_offline_come_from_the_environment() {
        let plain = settings(&[], Path::new("/home/ada"));
        assert_eq!(plain.endpoint, "https://huggingface.co");
        assert_eq!(plain.cache.as_deref(), Some(Path::new("/home/ada/.cache/flock/hub")));
        assert!(!plain.offline);
        let other = settings(
            &[("HF_ENDPOINT", "https://hub.example.edu/hf/"), ("XDG_CACHE_HOME", "/c"), ("HF_HUB_OFFLINE", "true")],
            Path::new("/home/ada"),
        );
        assert_eq!(other.address().expect("fine").as_str(), "https://hub.example.edu/hf");
        assert_eq!((other.cache.as_deref(), other.offline), (Some(Path::new("/c/flock/hub")), true));
    }

    #[test]
    fn settings_that_cannot_be_are_refused_by_name_and_without_the_secret() {
        for endpoint in ["huggingface.co", "ftp://hub", "", "https://", "http://ada:hunter2@hub", "http://hub?a=b"] {
            let error = HubSettings::new(endpoint).address().expect_err(endpoint);
            let shown = format!("{error} {error:?} {}", error.hint());
            assert!(shown.contains("HF_ENDPOINT") && !shown.contains("hunter2"), "{shown}");
        }
        for bad in ["hunter2 x", "hunter2\n", "hünter2", ""] {
            let settings = HubSettings { token: Some(Secret::new(bad.to_owned())), ..HubSettings::new("http://hub") };
            let error = settings.authorization().expect_err(bad);
            assert!(error.to_string().contains("HF_TOKEN") && !format!("{error:?}").contains("nter2"), "{error}");
        }
    }
}
