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
    let docs = std::fs::read_dir(root.join("docs")).expect("the folder is there");
    let docs =
        docs.map(|entry| entry.expect("listed").path()).filter(|path| path.extension().is_some_and(|e| e == "md"));
    for path in [root.join("README.md"), root.join("CHANGELOG.md")].into_iter().chain(docs) {
        let text = std::fs::read_to_string(&path).expect("the file is there");
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
            assert!(wrong.is_empty(), "{}: {wrong:#?}\n{block}", path.display());
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

#[test]
fn every_identifier_that_the_sources_use_is_explained() {
    fn sources(folder: &Path, out: &mut Vec<std::path::PathBuf>) {
        for entry in std::fs::read_dir(folder).expect("the folder is there") {
            let path = entry.expect("it can be read").path();
            if path.is_dir() {
                sources(&path, out);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                out.push(path);
            }
        }
    }
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    let known: Vec<&str> = flock::report::known_diagnostics().iter().map(|known| known.id).collect();
    let mut used = std::collections::BTreeSet::new();
    for text in files.iter().map(|path| std::fs::read_to_string(path).expect("it can be read")) {
        // A test may make one up.
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        used.extend(code.split("\"FLK").skip(1).filter_map(|rest| Some(format!("FLK{}", rest.get(..3)?))));
    }
    used.retain(|id| id[3..].bytes().all(|b| b.is_ascii_digit()));
    assert!(used.len() > 40, "{used:?}");
    let missing: Vec<_> = used.iter().filter(|id| !known.contains(&id.as_str())).collect();
    assert!(missing.is_empty(), "`flock help diagnostics` lacks {missing:?}");
    let unused: Vec<_> = known.iter().filter(|id| !used.contains(**id)).collect();
    assert!(unused.is_empty(), "explained and used nowhere: {unused:?}");
}

#[test]
fn what_is_shipped_is_formatted() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for name in ["src/cli/templates/cluster.kdl", "src/cli/templates/review.kdl", "src/cli/templates/policy.kdl"] {
        let bytes = std::fs::read(root.join(name)).expect("it is there");
        let text = config::format_kdl(name, &bytes).expect("it is valid");
        assert_eq!(text, String::from_utf8_lossy(&bytes), "{name}");
    }
}
