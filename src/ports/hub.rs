//! The Hugging Face hub, or a mirror of it: what repositories hold, and bytes of their files.

use async_trait::async_trait;
use tokio::io::AsyncRead;

use crate::base::Secret;

/// A model repository at one commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubRepository {
    /// `owner/name` as the hub calls it now, which differs from what was asked for after a rename.
    pub repository: String,
    /// Commit, 40 hex digits.
    pub commit: String,
    /// Whether its files are only for those who accepted its terms.
    pub gated: bool,
    /// SPDX identifier or the hub's own word, from the model card.
    pub license: Option<String>,
    /// Repositories that this one was made from, from the model card.
    pub base_models: Vec<String>,
    /// The files, sorted by name. Names are checked: relative, no `..`, no control characters.
    pub files: Vec<HubFile>,
}

/// One file of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubFile {
    /// Path inside the repository, with `/`.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// `sha256:…` of files in large-file storage; small ones have none until they are read.
    pub sha256: Option<String>,
}

/// Why the hub did not answer as asked. Every variant names what to do through [`HubError::hint`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HubError {
    /// 401: no token was sent, or the hub does not know the one that was.
    #[error("{what}: the hub wants a login (401), and {}", if *.sent { "refuses the token that was sent" } else { "no token was sent" })]
    Unauthorized {
        /// `owner/name`, with the file where it is about one.
        what: String,
        /// Whether a token was sent.
        sent: bool,
    },
    /// 403: the account has not accepted the terms of a gated repository, or may not see a private one.
    #[error("{what}: {}", if *.sent { "the account of the token has no access (403)" } else { "only accounts that may read it get it, and no token was sent" })]
    Forbidden {
        /// `owner/name`, with the file where it is about one.
        what: String,
        /// Whether a token was sent.
        sent: bool,
        /// Page where the terms are accepted.
        page: String,
    },
    /// The hub has blocked the repository for everyone.
    #[error("{repository}: the hub has disabled access to it")]
    Disabled {
        /// `owner/name`.
        repository: String,
    },
    /// No such repository.
    #[error("{repository}: there is no such repository")]
    NoRepository {
        /// `owner/name`.
        repository: String,
    },
    /// The repository is there, the revision is not: a typing error, or it was deleted.
    #[error("{repository}: there is no revision {revision}")]
    NoRevision {
        /// `owner/name`.
        repository: String,
        /// Branch, tag or commit.
        revision: String,
    },
    /// The revision has no such file.
    #[error("{repository}: there is no file {file}")]
    NoFile {
        /// `owner/name`.
        repository: String,
        /// The file.
        file: String,
    },
    /// A setting that cannot be: HF_ENDPOINT is no address, no header can hold HF_TOKEN.
    #[error("{name} {reason}")]
    Setting {
        /// The environment variable.
        name: String,
        /// What is wrong with it. Never its value where that is secret.
        reason: String,
    },
    /// 429, after the retries.
    #[error("{endpoint}: too many requests (429)")]
    Busy {
        /// The hub's address.
        endpoint: String,
        /// What the hub asked to wait, in seconds.
        retry_after_s: Option<u64>,
    },
    /// 5xx after the retries, no connection, a deadline.
    #[error("{endpoint} cannot be reached: {reason}")]
    Unreachable {
        /// The hub's address.
        endpoint: String,
        /// Why.
        reason: String,
    },
    /// An answer that the hub would not give: HTML for JSON, a wrong length, a name that leaves its folder.
    #[error("{endpoint} answers what no hub would: {reason}")]
    Nonsense {
        /// The hub's address.
        endpoint: String,
        /// What.
        reason: String,
    },
}

impl HubError {
    /// The nearest remedy, as a sentence.
    pub fn hint(&self) -> String {
        match self {
            Self::Unauthorized { sent: true, .. } => {
                "the token in HF_TOKEN (or in the file of `hf auth login`) is wrong or has expired: make a new one with read access".to_owned()
            }
            Self::Unauthorized { sent: false, .. } => {
                "check the spelling of owner/name, then set HF_TOKEN to a token with read access: without one, a repository that is private, was deleted or never was looks the same".to_owned()
            }
            Self::Forbidden { page, sent: false, .. } => {
                format!("set HF_TOKEN to a token of an account that may read {page}, and has accepted its terms where it is gated")
            }
            Self::Forbidden { page, sent: true, .. } => {
                format!("accept its terms at {page} with the account of the token; a fine-grained token also needs access to gated repositories")
            }
            Self::Disabled { .. } => "take another repository with the same weights, or a copy of its files".to_owned(),
            Self::NoRepository { .. } => {
                "check the spelling of owner/name; it may have been deleted, or be private and hidden from this account".to_owned()
            }
            Self::NoRevision { .. } => {
                "name a branch, tag or commit that it has; `flock lock --update` takes the newest where none is named".to_owned()
            }
            Self::NoFile { .. } => "name a file or quantisation that the repository has".to_owned(),
            Self::Setting { name, .. } => format!("correct or unset {name}"),
            Self::Busy { retry_after_s: Some(seconds), .. } => format!("run the same command again in {seconds} s"),
            Self::Busy { retry_after_s: None, .. } => "run the same command again in a few minutes".to_owned(),
            Self::Unreachable { .. } => {
                "check the network, HTTPS_PROXY and HF_ENDPOINT; what flock.lock has can be planned without the hub".to_owned()
            }
            Self::Nonsense { .. } => {
                "check HF_ENDPOINT and HTTPS_PROXY: a login page or another server may answer in the hub's place".to_owned()
            }
        }
    }
}

/// A hub. Deadlines, retries and limits of concurrency are inside.
#[async_trait]
pub trait Hub: Send + Sync {
    /// Its address, `https://host[:port][/path]` without a `/` at its end.
    fn endpoint(&self) -> &str;
    /// The token that it is asked with, for those who ask it in our place.
    fn token(&self) -> Option<Secret<String>>;
    /// What a repository holds at a revision; its default branch where none is named.
    async fn repository(&self, repository: &str, revision: Option<&str>) -> Result<HubRepository, HubError>;
    /// Bytes of a file: fewer than `length` only at its end. Never reads more than was asked for.
    async fn read(
        &self,
        repository: &str,
        commit: &str,
        file: &str,
        offset: u64,
        length: u64,
    ) -> Result<Vec<u8>, HubError>;
    /// The bytes of a file from `offset` to its end, as they come.
    async fn open(
        &self,
        repository: &str,
        commit: &str,
        file: &str,
        offset: u64,
    ) -> Result<Box<dyn AsyncRead + Send + Unpin>, HubError>;
    /// Repositories of one owner that were quantised from a base model, sorted by name.
    async fn quantised_by(&self, base: &str, owner: &str) -> Result<Vec<String>, HubError>;
}
