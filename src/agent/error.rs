//! What can go wrong in the agent.

use std::io;
use std::path::{Path, PathBuf};

use crate::inventory::{FrameError, Refusal};

/// A failed operation of the agent.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The file system said no.
    #[error("{action} {path}")]
    File {
        /// What was tried, such as `writing`.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A state file that is not what this agent writes.
    #[error("{path} is not readable")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: serde_json::Error,
    },
    /// Bytes that are no frame.
    #[error("the stream is not the agent protocol")]
    Frame(#[from] FrameError),
    /// The stream broke.
    #[error("{action}")]
    Stream {
        /// What was tried.
        action: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// A name from the command line or the wire that cannot be a file name here.
    #[error("{what} name {name:?} {problem}")]
    Name {
        /// `cluster`, `node`, `instance`, `file`.
        what: &'static str,
        /// The name.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A path from the wire that is not acceptable.
    #[error("path {path:?} {problem}")]
    Path {
        /// The path.
        path: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A refusal that the protocol has a word for.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Something else, in words.
    #[error("{0}")]
    Other(String),
}

impl AgentError {
    /// A failed file operation, for `map_err`.
    pub fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { action, path, source }
    }

    /// The same, from rustix.
    pub fn errno(action: &'static str, path: &Path) -> impl FnOnce(rustix::io::Errno) -> Self {
        let path = path.to_owned();
        move |source| Self::File { action, path, source: source.into() }
    }

    /// The message with its sources, on one line.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(error) = source {
            text.push_str(": ");
            text.push_str(&error.to_string());
            source = error.source();
        }
        text
    }
}

impl From<AgentError> for Refusal {
    fn from(error: AgentError) -> Self {
        match error {
            AgentError::Refused(refusal) => refusal,
            other => Refusal::Failed { text: other.chain() },
        }
    }
}
