//! The room as a whole: the documented example, small bad inputs, and what no input may do.

mod bad;
mod digest;
mod fuzz;
mod good;
mod what_if;
mod words;

use super::{Desired, Loaded, load};
use crate::base::{Severity, Tree, TreeEntry};

const CLUSTER: &str = include_str!("testdata/cluster.kdl");
const VISION: &str = include_str!("testdata/vision.kdl");
const LAB: &str = include_str!("testdata/lab.kdl");

/// The documented example, with the files that it references.
fn example() -> Tree {
    let mut tree =
        Tree::from_iter([("cluster.kdl", CLUSTER), ("workflows/vision.kdl", VISION), ("policies/lab.kdl", LAB)]);
    for path in
        ["known_hosts", "workflows/schemas/tasks.json", "workflows/schemas/review.json", "workflows/prompts/viewer.md"]
    {
        tree.insert(path, TreeEntry::Present { size: 10 });
    }
    tree
}

fn text_tree(files: &[(&str, &str)]) -> Tree {
    let mut tree = Tree::new();
    for (path, text) in files {
        tree.insert(*path, TreeEntry::File(text.as_bytes().to_vec()));
    }
    tree
}

/// Loads `cluster.kdl` alone.
fn load_cluster(text: &str) -> Loaded {
    load(&text_tree(&[("cluster.kdl", text)]))
}

fn errors(loaded: &Loaded) -> Vec<String> {
    loaded
        .diagnostics
        .iter()
        .filter(|found| found.severity == Severity::Error)
        .map(|found| {
            format!(
                "{} {}:{}:{} {} [{}]",
                found.id,
                found.file.as_deref().unwrap_or("-"),
                found.line.unwrap_or(0),
                found.column.unwrap_or(0),
                found.message,
                found.hint.as_deref().unwrap_or("")
            )
        })
        .collect()
}

fn desired(loaded: Loaded) -> Desired {
    let errors = errors(&loaded);
    assert!(errors.is_empty(), "{errors:#?}");
    loaded.desired.expect("no errors, so there is a desired state")
}
