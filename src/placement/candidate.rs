//! Weights that a model may use, as the controller or a node found them.

use std::collections::BTreeMap;

use crate::inventory::FetchFile;
use crate::weights::Variant;

/// One concrete set of weights for a model, with where it comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// What the plan calls it: the explicit variant's name, else the variant's id.
    pub label: String,
    /// `path:models/coder` or `on-node:/data/coder`, as the inventory names weights.
    pub source: String,
    /// What the weights are.
    pub variant: Variant,
    /// SHA-256 over names, sizes and digests of the files; over the listing where files were not read.
    pub revision: String,
    /// The files, with digests where they were read.
    pub files: Vec<FetchFile>,
    /// The vision projector beside them, as a file like those. It is among the files where vision is wanted.
    pub projector: Option<FetchFile>,
    /// Where the bytes are.
    pub origin: Origin,
    /// Whether they are only for those who accepted terms; `None` where nobody knows.
    pub gated: Option<bool>,
}

/// Where a candidate's bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// In a folder of the controller; copied to nodes.
    Controller {
        /// Absolute folder.
        folder: String,
    },
    /// In a repository of the hub, at a commit that flock.lock pins.
    Hub {
        /// `owner/name`.
        repository: String,
        /// Commit, 40 hex digits.
        commit: String,
    },
    /// At this path on the nodes that are named.
    OnNode {
        /// Absolute path of the file or folder.
        path: String,
        /// Nodes where it was found.
        nodes: Vec<String>,
    },
}

/// Candidates by model, best first where the config lists them; or why there are none.
pub type Candidates = BTreeMap<String, Result<Vec<Candidate>, SourceProblem>>;

/// Why a model's weights cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct SourceProblem {
    /// A diagnostic id.
    pub id: &'static str,
    /// What is wrong, with the file and the cause.
    pub text: String,
    /// What to do.
    pub hint: Option<String>,
}
