//! What a node's weight store gave up, or would.

use serde::{Deserialize, Serialize};

/// The answer to [`Request::Collect`](super::Request::Collect).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collected {
    /// Absolute folder of the store.
    pub root: String,
    /// Tells stores apart that nodes see under the same path; `None` where nothing was ever brought there.
    #[serde(default)]
    pub root_id: Option<String>,
    /// What is gone, or would go; sorted by path.
    pub removed: Vec<CollectedItem>,
    /// Sets that stay; sorted by path.
    pub kept: Vec<KeptSet>,
    /// Bytes of the disk that this gives back: what several sets share counts once, and only with its last set.
    pub freed_bytes: u64,
    /// Unfinished files among `removed`.
    pub partials: u64,
    /// Why nothing was removed, or not all.
    #[serde(default)]
    pub problem: Option<String>,
}

/// What something in the store is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CollectedKind {
    /// The files of one revision.
    Set,
    /// A file that was never received whole.
    Partial,
    /// A file's content that no set has any more.
    Blob,
}

/// Something that went, or would go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectedItem {
    /// What it is.
    pub kind: CollectedKind,
    /// Absolute path.
    pub path: String,
    /// The set's source, where it is known.
    pub source: Option<String>,
    /// The set's revision, where it is known.
    pub revision: Option<String>,
    /// Bytes of its files, those that other sets share included.
    pub size_bytes: u64,
}

/// A set that stays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptSet {
    /// Absolute path.
    pub path: String,
    /// Its source, where it is known.
    pub source: Option<String>,
    /// Its revision, where it is known.
    pub revision: Option<String>,
    /// Bytes of its files, those that other sets share included.
    pub size_bytes: u64,
    /// Why it stays.
    pub why: String,
}
