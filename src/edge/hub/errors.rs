//! What a hub's refusals mean.
//!
//! The hub says it twice: by status, and by the header `X-Error-Code`, which is the finer one. The codes and their
//! order are those of `hf_raise_for_status` in huggingface_hub's `utils/_http.py`; there, too, a 401 without a token is
//! what private, gated and missing repositories have in common.

use std::error::Error as _;
use std::time::Duration;

use hf_hub::HFError;
use reqwest::StatusCode;
use reqwest::header::HeaderMap;

use super::requests::NO_TLS;
use crate::base::{Secret, one_line};
use crate::ports::HubError;

/// What a request was about.
#[derive(Debug, Clone, Copy)]
pub(super) struct About<'a> {
    pub(super) repository: &'a str,
    pub(super) revision: Option<&'a str>,
    pub(super) file: Option<&'a str>,
}

impl About<'_> {
    fn what(&self) -> String {
        match self.file {
            Some(file) => format!("{}/{file}", self.repository),
            None => self.repository.to_owned(),
        }
    }
}

/// Why one try of a request failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// Another try gives the same.
    Final(HubError),
    /// Another try may help, after what the hub asks for or our own wait.
    Again { error: HubError, after: Option<Duration> },
}

/// What an answer that is no success says about itself.
#[derive(Debug, Default)]
pub(super) struct Refusal {
    pub(super) status: u16,
    /// `X-Error-Code`.
    pub(super) code: Option<String>,
    /// `X-Error-Message`, or the body's `error`.
    pub(super) message: Option<String>,
    pub(super) retry_after: Option<Duration>,
    /// Whether the endpoint itself said so, and not a host that it redirected to.
    pub(super) at_home: bool,
}

/// Turns answers into errors, for one hub and one caller.
#[derive(Debug, Clone)]
pub(super) struct Interpreter {
    /// The endpoint as it is shown.
    pub(super) endpoint: String,
    /// What requests carry. A message that repeats it is not passed on so.
    pub(super) token: Option<Secret<String>>,
}

impl Interpreter {
    pub(super) fn nonsense(&self, reason: impl Into<String>) -> HubError {
        HubError::Nonsense { endpoint: self.endpoint.clone(), reason: reason.into() }
    }

    pub(super) fn unreachable(&self, reason: impl Into<String>) -> HubError {
        HubError::Unreachable { endpoint: self.endpoint.clone(), reason: reason.into() }
    }

    fn without_token(&self, text: &str) -> String {
        match &self.token {
            Some(token) => text.replace(token.reveal().as_str(), &token.to_string()),
            None => text.to_owned(),
        }
    }

    /// What a status that is no success means.
    pub(super) fn refusal(&self, refusal: &Refusal, about: About<'_>) -> Failure {
        let message = refusal.message.as_deref().map(|message| shortened(&self.without_token(message)));
        let repository = about.repository.to_owned();
        let code = refusal.code.as_deref();
        let final_error = match (refusal.status, code) {
            (429, _) => {
                let retry_after_s = refusal.retry_after.map(|wait| wait.as_secs());
                let error = HubError::Busy { endpoint: self.endpoint.clone(), retry_after_s };
                return Failure::Again { error, after: refusal.retry_after };
            }
            (408 | 500..=599, _) => {
                let error = self.unreachable(with_message(format!("it answers {}", named(refusal.status)), message));
                return Failure::Again { error, after: refusal.retry_after };
            }
            (407, _) => self.unreachable("the proxy wants a user name and password (407)"),
            // A signed address of a content network that ran out, or a proxy on the way: no matter of accounts.
            (401 | 403 | 404, None) if !refusal.at_home => {
                self.unreachable(format!("the server that it redirects to refuses the download ({})", refusal.status))
            }
            // Without a token it is the first thing that is missing, not the last.
            (401, Some("GatedRepo")) if self.token.is_none() => {
                let page = format!("{}/{repository}", self.endpoint);
                HubError::Forbidden { what: about.what(), sent: false, page }
            }
            (401, _) => HubError::Unauthorized { what: about.what(), sent: self.token.is_some() },
            (_, Some("RevisionNotFound")) => {
                HubError::NoRevision { repository, revision: about.revision.unwrap_or_default().to_owned() }
            }
            (_, Some("EntryNotFound")) => {
                HubError::NoFile { repository, file: about.file.unwrap_or_default().to_owned() }
            }
            (_, Some("DisabledRepo")) => HubError::Disabled { repository },
            (403 | 451, _) if message.as_deref().is_some_and(|text| text.contains("resource is disabled")) => {
                HubError::Disabled { repository }
            }
            (403, _) | (_, Some("GatedRepo")) => {
                let page = format!("{}/{repository}", self.endpoint);
                HubError::Forbidden { what: about.what(), sent: self.token.is_some(), page }
            }
            (404, Some("RepoNotFound")) => HubError::NoRepository { repository },
            // Mirrors leave the code out; then it is the narrowest thing that was asked for.
            (404 | 410, _) => match about {
                About { file: Some(file), .. } => HubError::NoFile { repository, file: file.to_owned() },
                About { revision: Some(revision), .. } => {
                    HubError::NoRevision { repository, revision: revision.to_owned() }
                }
                _ => HubError::NoRepository { repository },
            },
            (status, _) => {
                self.nonsense(with_message(format!("it refuses the request with {}", named(status)), message))
            }
        };
        Failure::Final(final_error)
    }

    /// What a request that got no whole answer means. Addresses are left out: those of a content network are signed.
    pub(super) fn transport(&self, error: reqwest::Error) -> Failure {
        let error = error.without_url();
        if error.is_redirect() {
            let down = causes(&error).contains(NO_TLS);
            return Failure::Final(self.nonsense(if down { NO_TLS } else { "it redirects in a circle" }));
        }
        if error.is_builder() {
            return Failure::Final(self.unreachable(causes(&error)));
        }
        if error.is_timeout() {
            return Failure::Again { error: self.unreachable("no byte came for too long"), after: None };
        }
        let reason = causes(&error);
        if reason.contains("certificate") {
            let advice = "SSL_CERT_FILE names a file of authorities to trust";
            return Failure::Final(self.unreachable(format!("{reason}; {advice}")));
        }
        Failure::Again { error: self.unreachable(reason), after: None }
    }

    /// What hf-hub's errors mean.
    pub(super) fn hf_hub(&self, error: HFError, about: About<'_>) -> Failure {
        let (context, retry_after) = match error {
            HFError::RateLimited { retry_after, context } => (Some(context), retry_after),
            HFError::Http { context }
            | HFError::AuthRequired { context }
            | HFError::Forbidden { context }
            | HFError::Conflict { context } => (Some(context), None),
            HFError::RepoNotFound { context, .. }
            | HFError::RevisionNotFound { context, .. }
            | HFError::EntryNotFound { context, .. } => (context, None),
            HFError::Request { source, .. } if source.is_decode() && is_bad_json(&source) => {
                return Failure::Final(self.nonsense("what came is no JSON of a hub"));
            }
            HFError::Request { source, .. } => return self.transport(source),
            other => return Failure::Final(self.nonsense(shortened(&other.to_string()))),
        };
        let Some(context) = context else {
            return Failure::Final(HubError::NoRepository { repository: about.repository.to_owned() });
        };
        let refusal = Refusal {
            status: context.status.as_u16(),
            code: context.error_code,
            message: context.server_message,
            retry_after,
            at_home: true,
        };
        self.refusal(&refusal, about)
    }
}

/// Whether a body came whole and was no JSON, and not cut off.
fn is_bad_json(error: &reqwest::Error) -> bool {
    error.source().is_some_and(|source| source.is::<serde_json::Error>())
}

/// The wait that an answer asks for: `Retry-After` in seconds, else `t` of `RateLimit`, which the hub sends with every
/// answer (`"api";r=0;t=55`, draft-ietf-httpapi-ratelimit-headers) and which counts where nothing remains.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: &str| headers.get(name)?.to_str().ok();
    let plain = text("retry-after").and_then(|value| value.trim().parse().ok());
    let drafted = || {
        let value = text("ratelimit")?;
        let item = |key: &str| {
            value
                .split(';')
                .find_map(|part| part.trim().strip_prefix(key)?.trim_start().strip_prefix('=')?.trim().parse().ok())
        };
        let remaining: u64 = item("r")?;
        (remaining == 0).then(|| item("t")).flatten()
    };
    plain.or_else(drafted).map(Duration::from_secs)
}

/// A text of others, fit for one line of a message.
pub(super) fn shortened(text: &str) -> String {
    const MOST: usize = 200;
    let line = one_line(text);
    match line.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

fn with_message(reason: String, message: Option<String>) -> String {
    match message.filter(|message| !message.is_empty()) {
        Some(message) => format!("{reason}: {message}"),
        None => reason,
    }
}

fn named(status: u16) -> String {
    let known = StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
    known.map_or_else(|| status.to_string(), |reason| format!("{status} {reason}"))
}

/// The innermost causes of an error, which say more than "error sending request".
fn causes(error: &reqwest::Error) -> String {
    let mut chain = vec![error.to_string()];
    let mut source = error.source();
    while let Some(cause) = source {
        let text = cause.to_string();
        // Some wrap a cause and print it themselves.
        chain.retain(|outer| !outer.contains(&text) || outer == &text);
        if chain.last() != Some(&text) {
            chain.push(text);
        }
        source = cause.source();
    }
    let start = chain.len().saturating_sub(2);
    shortened(&chain[start..].join(": "))
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;

    fn error(token: bool, status: u16, code: Option<&str>, message: Option<&str>, about: About<'_>) -> HubError {
        let interpreter =
            Interpreter { endpoint: "https://hub".to_owned(), token: token.then(|| Secret::new("hf_s".to_owned())) };
        let refusal = Refusal {
            status,
            code: code.map(str::to_owned),
            message: message.map(str::to_owned),
            retry_after: None,
            at_home: true,
        };
        match interpreter.refusal(&refusal, about) {
            Failure::Final(error) => error,
            Failure::Again { error, .. } => panic!("tried again: {error}"),
        }
    }

    #[test]
    fn each_refusal_has_its_own_meaning() {
        let repository = About { repository: "a/b", revision: None, file: None };
        let revision = About { revision: Some("v1"), ..repository };
        let file = About { file: Some("c.json"), ..revision };
        let name = || "a/b".to_owned();
        let forbidden = |what: &str| {
            let (what, page) = (what.to_owned(), "https://hub/a/b".to_owned());
            HubError::Forbidden { what, sent: true, page }
        };
        let unauthorized = |what: &str, sent| HubError::Unauthorized { what: what.to_owned(), sent };
        let unsent = HubError::Forbidden { what: "a/b".to_owned(), sent: false, page: "https://hub/a/b".to_owned() };
        assert!(unsent.to_string().ends_with("and no token was sent") && unsent.hint().starts_with("set HF_TOKEN"));
        assert_eq!(error(false, 403, None, None, repository), unsent);
        let missing_file = HubError::NoFile { repository: name(), file: "c.json".to_owned() };
        let missing_revision = HubError::NoRevision { repository: name(), revision: "v1".to_owned() };
        let missing = HubError::NoRepository { repository: name() };
        let disabled = HubError::Disabled { repository: name() };
        let cases = [
            (error(false, 401, Some("RepoNotFound"), None, repository), unauthorized("a/b", false)),
            (
                error(false, 401, Some("GatedRepo"), None, file),
                HubError::Forbidden { what: "a/b/c.json".to_owned(), sent: false, page: "https://hub/a/b".to_owned() },
            ),
            (
                error(true, 401, None, Some("Invalid credentials in Authorization header"), repository),
                unauthorized("a/b", true),
            ),
            (error(true, 403, Some("GatedRepo"), None, file), forbidden("a/b/c.json")),
            (error(true, 403, None, Some("Forbidden: fine-grained"), repository), forbidden("a/b")),
            (error(true, 403, None, Some("Access to this resource is disabled."), repository), disabled),
            (error(true, 404, Some("RepoNotFound"), None, file), missing.clone()),
            (error(true, 404, None, None, repository), missing),
            (error(true, 404, Some("RevisionNotFound"), None, file), missing_revision.clone()),
            (error(true, 404, None, None, revision), missing_revision),
            (error(true, 404, Some("EntryNotFound"), None, file), missing_file.clone()),
            (error(true, 404, None, None, file), missing_file),
        ];
        for (found, expected) in cases {
            assert_eq!(found, expected);
            assert!(!found.hint().is_empty());
        }
        let echoed = error(true, 418, None, Some("no token hf_s here"), file);
        assert!(echoed.to_string().ends_with("no token [secret] here"), "{echoed}");
        assert!(matches!(error(true, 418, None, Some("\u{1b}[2Jx"), file), HubError::Nonsense { reason, .. }
            if reason.contains("418") && !reason.contains('\u{1b}')));
    }

    #[test]
    fn waits_are_read_from_both_headers() {
        let wait = |name: &'static str, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static(value));
            retry_after(&headers).map(|wait| wait.as_secs())
        };
        assert_eq!(wait("retry-after", "42"), Some(42));
        assert_eq!(wait("retry-after", "Wed, 21 Oct 2015 07:28:00 GMT"), None);
        assert_eq!(wait("ratelimit", "\"api\";r=0;t=55"), Some(55));
        assert_eq!(wait("ratelimit", "\"api\"; r = 0; t = 55"), Some(55));
        assert_eq!(wait("ratelimit", "\"api\";r=7;t=55"), None);
        assert_eq!(wait("ratelimit", "nonsense"), None);
    }

    #[test]
    fn a_long_message_is_cut() {
        assert_eq!(shortened(&"é".repeat(300)).chars().count(), 201);
        assert_eq!(shortened("a\nb"), "a b");
    }
}
