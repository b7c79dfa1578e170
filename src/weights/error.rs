//! Why weights could not be read.

use crate::base::escape_obeyed;

/// Why a folder's weights could not be read. The texts name the file; whoever calls knows the folder.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WeightsError {
    /// A file name that could leave the folder or confuse a terminal.
    #[error("file name {0:?} is refused: it must be relative, without `..` and control characters")]
    Name(String),
    /// Nothing in the listing is a set of weights.
    #[error("no weights here: {0}")]
    NoWeights(String),
    /// Only formats that can run code on load.
    #[error("only pickled weights here ({0}); flock loads safetensors and GGUF")]
    Pickled(String),
    /// Some shards of a set are not there.
    #[error("{present} of {expected} shards of {name}")]
    Shards {
        /// The set.
        name: String,
        /// Shards in the listing.
        present: u32,
        /// Shards the names promise.
        expected: u32,
    },
    /// Several sets and no way to tell which is meant.
    #[error("several safetensors files and neither shards nor an index: {0}")]
    Ambiguous(String),
    /// A file that is shorter than it says.
    #[error("{file} is truncated: {text}")]
    Truncated {
        /// The file.
        file: String,
        /// What was missing.
        text: String,
    },
    /// A header that is not one, or is larger or deeper than any real one.
    #[error("{file}: {text}")]
    Malformed {
        /// The file.
        file: String,
        /// What is wrong with it.
        text: String,
    },
    /// A config.json without a field that sizing cannot do without.
    #[error("{file} does not say {field}")]
    MissingField {
        /// The file.
        file: String,
        /// The field.
        field: String,
    },
}

impl WeightsError {
    /// The same about a file that lies in a folder (with its `/`).
    pub(super) fn below(self, folder: &str) -> Self {
        let inside = |name: String| format!("{folder}{name}");
        match self {
            Self::Truncated { file, text } => Self::Truncated { file: inside(file), text },
            Self::Malformed { file, text } => Self::Malformed { file: inside(file), text },
            Self::MissingField { file, field } => Self::MissingField { file: inside(file), field },
            Self::Shards { name, present, expected } => Self::Shards { name: inside(name), present, expected },
            Self::NoWeights(text) => Self::NoWeights(format!("{folder}: {text}")),
            Self::Ambiguous(text) => Self::Ambiguous(format!("{folder}: {text}")),
            other @ (Self::Name(_) | Self::Pickled(_)) => other,
        }
    }

    /// A header that is no header. The text may quote it.
    pub(super) fn malformed(file: &str, text: impl Into<String>) -> Self {
        Self::Malformed { file: file.to_owned(), text: escape_obeyed(&text.into()).into_owned() }
    }
}
