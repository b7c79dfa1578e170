//! Mistakes in a config repository: all of them in one run, each at its place.

use std::collections::BTreeSet;

use crate::SMALL;
use crate::support::{Repository, list, number, text};

/// The files and lines of the errors in `validate --format json`.
fn places(repository: &Repository) -> BTreeSet<(String, u64)> {
    let outcome = repository.flock(&["validate", "--format", "json"]);
    let report = outcome.expect(3).json();
    assert_eq!(report.pointer("/valid"), Some(&false.into()));
    let errors: Vec<_> = list(&report, "/diagnostics").iter().filter(|one| text(one, "/severity") == "error").collect();
    assert_eq!(number(&report, "/error_count"), errors.len() as u64, "{outcome}");
    errors.iter().map(|one| (text(one, "/file").to_owned(), number(one, "/line"))).collect()
}

/// Marks the lines that end in a comment `WRONG`, and nothing else.
fn wrong_lines(files: &[(&str, &str)]) -> BTreeSet<(String, u64)> {
    let marked = |(file, source): &(&str, &str)| {
        let lines = source.lines().zip(1..).filter(|(line, _)| line.ends_with("// WRONG"));
        lines.map(|(_, number)| ((*file).to_owned(), number)).collect::<Vec<_>>()
    };
    files.iter().flat_map(marked).collect()
}

#[test]
fn ten_mistakes_in_four_files_are_all_reported_at_their_lines() {
    let files = [
        (
            "cluster.kdl",
            r#"cluster "lab" {
    reserve vram=1024                               // WRONG
}
include "nodes/more.kdl"
node "zero" address="10.0.0.9"
node "one" address="10.0.0.1" adress="10.0.0.2"     // WRONG
node "two" address="10.0.0.2" address="10.0.0.3"    // WRONG
engine "lama.cpp" { path "/opt/llama-server" }      // WRONG
model "llava" {
    source "on-node:/data/llava.gguf"
}
agent "viewer" model="llava"
agent "coder" model="koder"                         // WRONG
"#,
        ),
        (
            "workflows/vision.kdl",
            r#"workflow "vision" {
    input "question" type="string"
    step "look" agent="viewer" { prompt "{{ input.question }}" }
    step "plan" agent="planner" after="look" { prompt "{{ steps.look.text }}" }    // WRONG
    step "tell" agent="viewer" after="look" { prompt "{{ input.answer }}" }        // WRONG
}
"#,
        ),
        (
            "policies/lab.kdl",
            r#"priority "production" rank="high"    // WRONG
protect model="nobody"               // WRONG
"#,
        ),
        (
            "nodes/more.kdl",
            r#"node "three" address="10.0.0.4"
node "zero" address="10.0.0.5"       // WRONG
"#,
        ),
    ];
    let expected = wrong_lines(&files);
    assert_eq!(expected.len(), 10);
    let repository = Repository::with(&files);
    assert_eq!(places(&repository), expected);

    // As text too, with the words that help.
    let shown = repository.flock(&["validate"]);
    shown.expect(3).expect_says("cluster.kdl:6").expect_says("address").expect_says("llama.cpp");
    let commands = [&["plan", "--inventory", "none.json"][..], &["apply", "--yes"], &["drain", "one", "--yes"]];
    for command in commands {
        repository.flock(command).expect(3);
    }
}

#[test]
fn diagnostics_have_the_shape_and_order_of_the_contract() {
    let repository = Repository::with(&[
        ("cluster.kdl", &SMALL.replace("\"m\" {", "\"m\" {\n    colour \"red\"")),
        ("policies/a.kdl", "protect model=\"nobody\"\nnonsense 1\n"),
    ]);
    let report = repository.json(&["validate"]);
    assert_eq!(number(&report, "/format"), 1);
    let diagnostics = list(&report, "/diagnostics");
    assert_eq!(diagnostics.len(), 3, "{report:#}");
    for one in diagnostics {
        let keys: Vec<&str> = one.as_object().expect("an object").keys().map(String::as_str).collect();
        for key in ["id", "severity", "message", "file", "line", "column", "end_line", "end_column", "hint", "related"]
        {
            assert!(keys.contains(&key), "no {key} in {one:#}");
        }
        assert!(text(one, "/id").len() == 6 && text(one, "/id").starts_with("FLK"), "{one:#}");
    }
    let order: Vec<_> = diagnostics.iter().map(|one| (text(one, "/file"), number(one, "/line"))).collect();
    assert!(order.is_sorted(), "{order:?}");
}

#[test]
fn a_duplicate_shows_both_places() {
    let repository = Repository::with(&[
        ("cluster.kdl", SMALL),
        ("policies/a.kdl", "\npriority \"production\" rank=1\n"),
        ("policies/b.kdl", "\n\npriority \"production\" rank=2\n"),
    ]);
    let report = repository.json(&["validate"]);
    let diagnostics = list(&report, "/diagnostics");
    assert_eq!(diagnostics.len(), 1, "{report:#}");
    let mut files = vec![text(&diagnostics[0], "/file"), text(&diagnostics[0], "/related/0/file")];
    files.sort();
    assert_eq!(files, ["policies/a.kdl", "policies/b.kdl"], "{report:#}");
    repository.flock(&["validate"]).expect(3).expect_says("policies/a.kdl:2").expect_says("policies/b.kdl:3");
}

#[test]
fn warnings_become_errors_only_when_asked() {
    let repository = Repository::with(&[("cluster.kdl", &format!("{SMALL}\nmodel \"hub\" {{ source \"hf:a/b\" }}\n"))]);
    let report = repository.flock(&["validate", "--format", "json"]);
    let warned = report.expect(0).json();
    assert_eq!(warned.pointer("/valid"), Some(&true.into()));
    assert!(number(&warned, "/warning_count") > 0, "{report}");
    repository.flock(&["validate", "--deny", "warnings"]).expect(3);
}
