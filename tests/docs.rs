//! Proves that every KDL block of the documentation is accepted by the language, and that the commands the README
//! names exist.
#![cfg(feature = "controller")]
#![allow(clippy::disallowed_methods, reason = "the test reads the documentation")]

use std::path::Path;

use flock::base::{Severity, Tree, TreeEntry};
use flock::config::{self, ids};

/// Files a block may refer to are not there: the documentation shows parts of a repository.
const ALLOWED: &[&str] = &[ids::MISSING_FILE];

#[test]
fn every_kdl_block_is_accepted() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut seen = 0;
    for name in ["README.md", "CHANGELOG.md", "docs/json.md"] {
        let text = std::fs::read_to_string(root.join(name)).expect("the file is there");
        for block in text.split("```kdl\n").skip(1) {
            let block = block.split("```").next().unwrap_or_default();
            let whole =
                if block.contains("cluster \"") { block.to_owned() } else { format!("cluster \"docs\"\n{block}") };
            let mut tree = Tree::new();
            tree.insert("cluster.kdl", TreeEntry::File(whole.into_bytes()));
            let findings = config::load(&tree).diagnostics;
            let wrong: Vec<_> = findings
                .iter()
                .filter(|finding| finding.severity == Severity::Error && !ALLOWED.contains(&finding.id))
                .collect();
            assert!(wrong.is_empty(), "{name}: {wrong:#?}\n{block}");
            seen += 1;
        }
    }
    assert!(seen > 0, "no KDL block was found: the test looks in the wrong place");
}

#[test]
fn every_command_of_the_readme_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(root.join("README.md")).expect("the file is there");
    let mut seen = 0;
    for cell in text.lines().filter(|line| line.starts_with("| `flock ")).filter_map(|line| line.split('|').nth(1)) {
        for command in cell.split('`').filter_map(|code| code.strip_prefix("flock ")) {
            let word = command.split_whitespace().next().unwrap_or_default();
            let output = std::process::Command::new(env!("CARGO_BIN_EXE_flock")).args(["help", word]).output();
            let output = output.expect("flock starts");
            assert!(output.status.success(), "`flock {word}` is in the README and not in the program");
            seen += 1;
        }
    }
    assert!(seen > 5, "the table of commands was not found");
}
