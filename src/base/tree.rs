//! The files of a config repository as plain values, so that reading them stays outside the core.

use std::collections::BTreeMap;

/// What lies at one path of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TreeEntry {
    /// A file's bytes.
    File(Vec<u8>),
    /// A file that exists and whose content was not loaded: only its presence matters
    /// (schemas, prompts), or it is larger than any config file may be.
    Present {
        /// Its size in bytes.
        size: u64,
    },
    /// A file that exists and cannot be read, or a link that leaves the repository; with the reason.
    Refused(String),
}

/// Paths (relative, with `/`) to entries, in sorted order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    entries: BTreeMap<String, TreeEntry>,
}

impl Tree {
    /// An empty tree.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds or replaces an entry.
    pub fn insert(&mut self, path: impl Into<String>, entry: TreeEntry) {
        self.entries.insert(path.into(), entry);
    }

    /// The entry at a path.
    pub fn get(&self, path: &str) -> Option<&TreeEntry> {
        self.entries.get(path)
    }

    /// All entries in path order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &TreeEntry)> {
        self.entries.iter().map(|(path, entry)| (path.as_str(), entry))
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl<P: Into<String>> FromIterator<(P, &'static str)> for Tree {
    /// A tree of small text files, as tests and `init` write them.
    fn from_iter<I: IntoIterator<Item = (P, &'static str)>>(files: I) -> Self {
        let mut tree = Self::new();
        for (path, text) in files {
            tree.insert(path, TreeEntry::File(text.as_bytes().to_vec()));
        }
        tree
    }
}
