//! From any room's error to an exit code, a message and a hint: the one place.

use crate::inventory::{InventoryError, Refusal};
use crate::ports::{FilesError, HubError, NodeError, RepositoryError};
use crate::reconcile::ResolveError;

use super::exit::ExitCode;

/// Why a command ended without doing its job.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub code: ExitCode,
    /// A lowercase fragment; empty where everything was printed already.
    pub message: String,
    /// What to do.
    pub hint: Option<String>,
}

impl Failure {
    /// A failure with a message.
    pub fn new(code: ExitCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None }
    }

    /// A failure whose explanation is on the screen already.
    pub fn silent(code: ExitCode) -> Self {
        Self::new(code, "")
    }

    /// Adds the remedy.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl From<NodeError> for Failure {
    fn from(error: NodeError) -> Self {
        let code = match &error {
            NodeError::Refused(Refusal::LeaseHeld { .. }) => ExitCode::Leased,
            NodeError::Refused(Refusal::Stale { .. }) => ExitCode::Stale,
            NodeError::Refused(_) => ExitCode::Failure,
            _ => ExitCode::Incomplete,
        };
        Self { code, message: error.to_string(), hint: error.hint() }
    }
}

impl From<RepositoryError> for Failure {
    fn from(error: RepositoryError) -> Self {
        Self::new(ExitCode::Failure, error.to_string())
    }
}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        Self::new(ExitCode::Failure, error.to_string()).hint(error.hint())
    }
}

impl From<ResolveError> for Failure {
    fn from(error: ResolveError) -> Self {
        Self::new(ExitCode::Failure, error.to_string()).hint(error.hint())
    }
}

impl From<FilesError> for Failure {
    fn from(error: FilesError) -> Self {
        Self::new(ExitCode::Failure, error.to_string())
    }
}

impl From<InventoryError> for Failure {
    fn from(error: InventoryError) -> Self {
        Self::new(ExitCode::Invalid, format!("the inventory is invalid:\n  {}", error.0.join("\n  ")))
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        // A reader that went away (`flock plan | head`) is no failure.
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            Self::silent(ExitCode::Success)
        } else {
            Self::new(ExitCode::Failure, error.to_string())
        }
    }
}
