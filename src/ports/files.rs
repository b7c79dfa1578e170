//! Files on the controller: weights that `path:` sources name.

use async_trait::async_trait;

use crate::inventory::FetchFile;
use crate::weights::Variant;

/// Why a folder of weights cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// Not there.
    #[error("{path} does not exist")]
    Missing {
        /// The path.
        path: String,
    },
    /// There, not readable.
    #[error("{path} cannot be read: {reason}")]
    Unreadable {
        /// The path.
        path: String,
        /// Why.
        reason: String,
    },
    /// Readable, no weights.
    #[error("{path}: {reason}")]
    NotWeights {
        /// The path.
        path: String,
        /// Why.
        reason: String,
    },
}

/// Weights found at a path of the controller.
#[derive(Debug, Clone, PartialEq)]
pub struct LocalWeights {
    /// The variant.
    pub variant: Variant,
    /// Absolute folder that file names are relative to.
    pub folder: String,
    /// Its files, with digests where they are there.
    pub files: Vec<FetchFile>,
    /// The vision projector beside them.
    pub projector: Option<FetchFile>,
}

/// Reads weights on the controller.
#[async_trait]
pub trait Weights: Send + Sync {
    /// The variants at a path (a GGUF file or a folder). With `digests`, every file is hashed
    /// (cached by path, size and modification time).
    async fn read(&self, path: &str, digests: bool) -> Result<Vec<LocalWeights>, FilesError>;
}
