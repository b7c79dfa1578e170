//! The config repository.

use crate::base::Tree;

/// Why the config repository cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RepositoryError {
    /// The folder is not there or not readable.
    #[error("cannot read {path}: {reason}")]
    Unreadable {
        /// The path.
        path: String,
        /// Why.
        reason: String,
    },
    /// A file of it cannot be replaced.
    #[error("cannot write {path}: {reason}")]
    Unwritable {
        /// The file.
        path: String,
        /// Why.
        reason: String,
    },
    /// A revision that names no commit here.
    #[error("git knows no commit `{revision}`: {reason}")]
    NoSuchCommit {
        /// As it was asked for.
        revision: String,
        /// Why.
        reason: String,
    },
    /// git cannot tell.
    #[error("git: {0}")]
    Git(String),
}

/// Where a tree stands in git.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standing {
    /// HEAD, hex; `None` outside a repository or before the first commit.
    pub commit: Option<String>,
    /// Whether the working tree differs from HEAD.
    pub dirty: bool,
}

/// Reads a config repository.
pub trait Repository: Send + Sync {
    /// The working tree's config files, flock.lock among them.
    fn tree(&self) -> Result<Tree, RepositoryError>;
    /// Where it stands in git.
    fn standing(&self) -> Result<Standing, RepositoryError>;
    /// The files of a commit, by the rules of [`Self::tree`], and that commit as the standing. What git does not track
    /// is taken from the working tree.
    fn committed(&self, revision: &str) -> Result<(Tree, Standing), RepositoryError>;
    /// Whether it holds this commit (hex). A shallow clone may not hold an old one.
    fn holds(&self, commit: &str) -> bool;
}
