//! What the nodes' weight stores give up.

use serde::Serialize;

use super::style::{clean, table};
use super::words::{count, short_digest};
use crate::base::format_bytes;
use crate::inventory::{Collected, CollectedItem, CollectedKind, KeptSet};

/// `flock gc --format json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GcDocument {
    /// 1.
    pub format: u32,
    /// Cluster name.
    pub cluster: String,
    /// Whether nothing was removed.
    pub dry_run: bool,
    /// One entry per node that was looked at, by name.
    pub nodes: Vec<GcNode>,
    /// Bytes of disks that come free, over all nodes; a store that several share counts once.
    pub freed_bytes: u64,
    /// Nodes that did not answer.
    pub unreachable: Vec<String>,
}

/// One node's store.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GcNode {
    /// The node.
    pub node: String,
    /// The store's folder; `null` where the node could not say.
    pub root: Option<String>,
    /// The node that this one shares its store with and under which the rest is told.
    pub shared_with: Option<String>,
    /// What went, or would go.
    pub removed: Vec<CollectedItem>,
    /// Sets that stay, with the reason.
    pub kept: Vec<KeptSet>,
    /// Bytes of the disk that come free.
    pub freed_bytes: u64,
    /// Unfinished files among `removed`.
    pub partials: u64,
    /// Why nothing went, or not all.
    pub problem: Option<String>,
}

impl GcNode {
    /// A node's answer.
    pub fn of(node: &str, collected: Collected) -> Self {
        let Collected { root, removed, kept, freed_bytes, partials, problem, root_id: _ } = collected;
        let (node, root, shared_with) = (node.to_owned(), Some(root), None);
        Self { node, root, shared_with, removed, kept, freed_bytes, partials, problem }
    }

    /// A node that could not say.
    pub fn failed(node: &str, problem: String) -> Self {
        Self { root: None, problem: Some(problem), ..Self::of(node, Collected::default()) }
    }

    /// A node whose store is told under another.
    pub fn shared(node: &str, root: String, with: &str) -> Self {
        let collected = Collected { root, ..Collected::default() };
        Self { shared_with: Some(with.to_owned()), ..Self::of(node, collected) }
    }
}

/// What would go, or went, node by node.
pub fn gc_text(document: &GcDocument) -> String {
    let mut text = String::new();
    for node in &document.nodes {
        let root = node.root.as_deref().map(|root| format!("  {}", clean(root))).unwrap_or_default();
        text.push_str(&format!("{}{root}\n", node.node));
        if let Some(with) = &node.shared_with {
            text.push_str(&format!("  the same store as on {with}\n"));
        }
        if let Some(problem) = &node.problem {
            text.push_str(&format!("  {}\n", clean(problem)));
        }
        let row = |sign: &str, kind: &str, (path, source, revision): Told<'_>, bytes: u64, why: &str| {
            let named = source.map_or_else(|| last(path), clean);
            let revision = revision.map(|revision| clean(short_digest(revision))).unwrap_or_default();
            vec![format!("  {sign}"), kind.to_owned(), named, revision, format_bytes(bytes), why.to_owned()]
        };
        let going = node.removed.iter().map(|item| {
            let told = (item.path.as_str(), item.source.as_deref(), item.revision.as_deref());
            row("-", kind(item.kind), told, item.size_bytes, "")
        });
        let staying = node.kept.iter().map(|set| {
            let told = (set.path.as_str(), set.source.as_deref(), set.revision.as_deref());
            row(" ", "set", told, set.size_bytes, &clean(&set.why))
        });
        let rows: Vec<Vec<String>> = going.chain(staying).collect();
        text.push_str(&table(&["  ", "KIND", "SOURCE", "REVISION", "SIZE", "STAYS BECAUSE"], &rows));
        if rows.is_empty() && node.problem.is_none() && node.shared_with.is_none() {
            text.push_str("  nothing was ever brought here\n");
        }
        text.push('\n');
    }
    let items: usize = document.nodes.iter().map(|node| node.removed.len()).sum();
    let verb = if document.dry_run { "would free" } else { "frees" };
    text.push_str(&match items {
        0 => "nothing to remove\n".to_owned(),
        _ => format!("{} to remove, which {verb} {}\n", count(items, "item"), format_bytes(document.freed_bytes)),
    });
    text
}

/// Path, source and revision.
type Told<'a> = (&'a str, Option<&'a str>, Option<&'a str>);

fn kind(kind: CollectedKind) -> &'static str {
    match kind {
        CollectedKind::Set => "set",
        CollectedKind::Partial => "partial",
        CollectedKind::Blob => "blob",
    }
}

fn last(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or(path);
    clean(&name.chars().take(40).collect::<String>())
}
