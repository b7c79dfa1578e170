//! What a server's answer means: that asking again may help, or that it cannot, and what does.

use std::time::Duration;

use super::address::Address;
use crate::base::one_line;
use crate::inventory::Refusal;

/// Why a piece of a file did not come.
#[derive(Debug)]
pub enum Trouble {
    /// It may pass: a cut connection, too many requests, a server that is being restarted.
    Passing {
        /// What was seen.
        text: String,
        /// What the server answered.
        status: Option<u16>,
        /// How long the server asks to be left alone.
        after: Option<Duration>,
    },
    /// An answer that no hub gives. A few in a row are enough.
    Nonsense {
        /// What was seen.
        text: String,
        /// What the server answered.
        status: Option<u16>,
    },
    /// Asking again changes nothing.
    Final(Refusal),
}

impl Trouble {
    /// Something that may pass by itself.
    pub fn passing(text: impl Into<String>) -> Self {
        Self::Passing { text: text.into(), status: None, after: None }
    }

    /// An answer that no hub gives.
    pub fn nonsense(status: u16, text: impl Into<String>) -> Self {
        Self::Nonsense { text: text.into(), status: Some(status) }
    }

    /// Something that does not pass.
    pub fn refused(status: Option<u16>, text: impl AsRef<str>, hint: impl Into<String>) -> Self {
        Self::Final(refusal(status, text, hint))
    }
}

/// What a server said in its words is shown in one line.
pub fn refusal(status: Option<u16>, text: impl AsRef<str>, hint: impl Into<String>) -> Refusal {
    let text: String = one_line(text.as_ref()).chars().take(500).collect();
    Refusal::Hub { status, text, hint: hint.into() }
}

/// What an answer is about.
#[derive(Debug, Clone, Copy)]
pub struct About<'a> {
    /// The hub.
    pub endpoint: &'a Address,
    /// `owner/name`.
    pub repository: &'a str,
    /// The commit.
    pub commit: &'a str,
    /// The file.
    pub name: &'a str,
    /// Whether a token was sent.
    pub login: bool,
}

/// What the hub says besides the status: `X-Error-Code` and `X-Error-Message`, and `Retry-After` in seconds.
#[derive(Debug, Clone, Default)]
pub struct Said {
    /// Its word for the error.
    pub code: String,
    /// Its sentence.
    pub message: String,
    /// How long it asks to wait.
    pub retry_after: Option<Duration>,
}

/// What an answer of the hub itself means that brings no bytes and leads nowhere else.
pub fn of_hub(status: u16, said: &Said, about: About<'_>) -> Trouble {
    let About { endpoint, repository, commit, name, login } = about;
    let place = endpoint.place();
    let refused = |text: String, hint: String| Trouble::refused(Some(status), text, hint);
    let gated = said.code == "GatedRepo";
    match status {
        401 if !login && gated => refused(
            format!("{repository} is gated ({status}): {place} gives {name} only to accounts that accepted its terms, and no token was sent"),
            format!("accept its terms at {place}/{repository} and set HF_TOKEN to a token of that account"),
        ),
        401 if login && !gated => refused(
            format!("{place} refuses the token that was sent for {repository} ({status})"),
            "the token in HF_TOKEN is wrong or has expired: make a new one with read access".to_owned(),
        ),
        401 if !login => refused(
            format!("{place} wants a login for {repository} ({status}), and no token was sent"),
            "set HF_TOKEN to a token with read access; a repository that is private, or was deleted, looks the same without one".to_owned(),
        ),
        403 if !login => refused(
            format!("{place} gives no access to {repository} ({status}){}, and no token was sent", quoted(&said.message)),
            format!("set HF_TOKEN to a token of an account that may read {place}/{repository}, and has accepted its terms where it is gated"),
        ),
        401 | 403 if gated => refused(
            format!("{repository} is gated, and the account of the token has not accepted its terms ({status})"),
            format!("accept its terms at {place}/{repository} with the account of the token; a fine-grained token also needs access to gated repositories"),
        ),
        403 => refused(
            format!("{place} gives no access to {repository} ({status}){}", quoted(&said.message)),
            format!("use a token of an account that may read {place}/{repository}"),
        ),
        404 | 410 => {
            let (what, hint) = match said.code.as_str() {
                "RepoNotFound" => (format!("{place} has no repository {repository}"), "check the spelling of owner/name; it may have been deleted, or be private"),
                "RevisionNotFound" => (format!("{repository} has no commit {commit} any more"), "run `flock lock --update` to take the newest"),
                "EntryNotFound" => (format!("{repository} has no file {name} at commit {commit}"), "run `flock lock --update`; the lock names a file that is not there"),
                _ => (format!("{place} has no {repository}/{name} at commit {commit}"), "check HF_ENDPOINT, and run `flock lock --update`"),
            };
            refused(format!("{what} ({status})"), hint.to_owned())
        }
        _ if is_passing(status) => Trouble::Passing {
            text: format!("{place} answers {}{}", named(status), quoted(&said.message)),
            status: Some(status),
            after: said.retry_after,
        },
        416 => Trouble::nonsense(status, format!("{place} has no such bytes of {name}: it is shorter there ({status})")),
        400..=499 => refused(
            format!("{place} answers {status} for {repository}/{name}{}", quoted(&said.message)),
            "check HF_ENDPOINT and HTTPS_PROXY of the node: another server may answer in the hub's place".to_owned(),
        ),
        _ => Trouble::nonsense(status, format!("{place} answers {status} for {repository}/{name}")),
    }
}

/// The same of a server that the hub has sent us to: its addresses are for a while.
pub fn of_other(status: u16, said: &Said, place: &str, name: &str) -> Trouble {
    if is_passing(status) {
        let text = format!("{place}, where the hub sends us for {name}, answers {}", named(status));
        return Trouble::Passing { text, status: Some(status), after: said.retry_after };
    }
    if status == 416 {
        return Trouble::nonsense(
            status,
            format!("{place} has no such bytes of {name}: it is shorter there ({status})"),
        );
    }
    Trouble::nonsense(status, format!("{place}, where the hub sends us for {name}, answers {status}"))
}

fn is_passing(status: u16) -> bool {
    matches!(status, 408 | 421 | 425 | 429 | 500..=599)
}

/// A status with its words, where people meet it often.
fn named(status: u16) -> String {
    match status {
        429 => "429 (too many requests)".to_owned(),
        _ => status.to_string(),
    }
}

fn quoted(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {message}") }
}

/// What is to be done where a server could not be reached, or sent nonsense.
pub fn way_hint(place: &str) -> String {
    format!(
        "check that the node reaches {place} and where it sends downloads on to, and that no login page or other server \
         answers in their place; its proxy is what HTTPS_PROXY and NO_PROXY say where flock logs in on the node"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(status: u16, code: &str, login: bool) -> Trouble {
        let endpoint = Address::parse("https://hub.example").expect("an address");
        let about = About { endpoint: &endpoint, repository: "o/m", commit: "c0ffee", name: "a.gguf", login };
        let said = Said { code: code.into(), message: "no\u{1b}[2J".into(), retry_after: None };
        of_hub(status, &said, about)
    }

    #[test]
    fn every_refusal_is_its_own_and_names_its_remedy() {
        let mut seen = Vec::new();
        for (status, code, login, words, remedy) in [
            (401, "", false, "no token was sent", "set HF_TOKEN"),
            (401, "GatedRepo", false, "no token was sent", "accept its terms at https://hub.example/o/m"),
            (401, "", true, "refuses the token", "has expired"),
            (401, "GatedRepo", true, "has not accepted its terms", "accept its terms at https://hub.example/o/m"),
            (403, "GatedRepo", true, "has not accepted its terms", "accept its terms at https://hub.example/o/m"),
            (403, "", true, "no access", "account that may read"),
            (403, "", false, "no token was sent", "set HF_TOKEN"),
            (403, "GatedRepo", false, "no token was sent", "accepted its terms"),
            (404, "RepoNotFound", true, "no repository o/m", "spelling"),
            (404, "RevisionNotFound", true, "no commit c0ffee", "flock lock --update"),
            (404, "EntryNotFound", true, "no file a.gguf", "flock lock --update"),
            (404, "", true, "no o/m/a.gguf", "HF_ENDPOINT"),
            (451, "", true, "answers 451", "HF_ENDPOINT"),
        ] {
            let Trouble::Final(Refusal::Hub { status: found, text, hint }) = verdict(status, code, login) else {
                panic!("{status} {code}")
            };
            assert!(found == Some(status) && text.contains(words) && hint.contains(remedy), "{text} / {hint}");
            assert!(text.contains(&status.to_string()) && !text.contains(char::is_control), "{text}");
            seen.push(text);
        }
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 12, "{seen:#?}");
    }

    #[test]
    fn what_may_pass_is_asked_again() {
        for status in [408, 429, 500, 502, 503, 504] {
            assert!(matches!(verdict(status, "", false), Trouble::Passing { .. }), "{status}");
        }
        for status in [416, 201, 300] {
            assert!(matches!(verdict(status, "", false), Trouble::Nonsense { .. }), "{status}");
        }
        let said = Said { retry_after: Some(Duration::from_secs(7)), ..Said::default() };
        let Trouble::Passing { after, .. } = of_other(503, &said, "https://cdn", "a") else { panic!("not passing") };
        assert_eq!(after, said.retry_after);
        assert!(matches!(of_other(403, &said, "https://cdn", "a"), Trouble::Nonsense { .. }));
    }
}
