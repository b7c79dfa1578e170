//! Files that are empty, huge, deep, unreadable, elsewhere or strangely named: an answer with a place and
//! an exit code, never a crash, never a command.

use std::os::unix::fs::symlink;

use crate::SMALL;
use crate::support::{Outcome, Repository, list, number, text};

#[track_caller]
fn errors(outcome: &Outcome) -> Vec<serde_json::Value> {
    let report = outcome.json();
    list(&report, "/diagnostics").iter().filter(|one| text(one, "/severity") == "error").cloned().collect()
}

/// `validate --format json`, refused, with at least one error in the named file.
#[track_caller]
fn refused(repository: &Repository, file: &str) -> serde_json::Value {
    let outcome = repository.flock(&["validate", "--format", "json"]);
    let errors = errors(outcome.expect(3));
    let found = errors.iter().find(|one| one.pointer("/file").and_then(serde_json::Value::as_str) == Some(file));
    found.unwrap_or_else(|| panic!("no error in {file}\n{outcome}")).clone()
}

#[test]
fn an_empty_repository_is_refused() {
    let repository = Repository::empty();
    let outcome = repository.flock(&["validate"]);
    outcome.expect(3).expect_says("cluster");
    let outcome = repository.flock(&["validate", "--format", "json"]);
    assert!(!errors(outcome.expect(3)).is_empty(), "{outcome}");
    repository.flock(&["plan"]).expect(3);
}

#[test]
fn empty_files_are_refused_or_harmless() {
    let repository = Repository::with(&[("cluster.kdl", ""), ("policies/a.kdl", "")]);
    repository.flock(&["validate"]).expect(3).expect_says("cluster");
    let repository = Repository::with(&[("cluster.kdl", SMALL), ("policies/a.kdl", ""), ("workflows/a.kdl", "\n\n")]);
    repository.flock(&["validate"]).expect(0);
}

#[test]
fn byte_order_marks_and_carriage_returns_change_no_place() {
    let windows = format!("\u{feff}{}", SMALL.trim_start().replace('\n', "\r\n"));
    Repository::with(&[("cluster.kdl", &windows)]).flock(&["validate"]).expect(0);

    let broken = format!("\u{feff}nonsense 1\r\n{}nonsense 2\r\n", SMALL.trim_start().replace('\n', "\r\n"));
    let repository = Repository::with(&[("cluster.kdl", &broken)]);
    let outcome = repository.flock(&["validate", "--format", "json"]);
    let found = errors(outcome.expect(3));
    let places: Vec<_> = found.iter().map(|one| (number(one, "/line"), number(one, "/column"))).collect();
    let last = SMALL.trim_start().lines().count() as u64 + 2;
    assert_eq!(places, [(1, 1), (last, 1)], "{outcome}");
}

#[test]
fn deep_nesting_is_refused_before_it_costs_anything() {
    for depth in [65, 1_000, 200_000] {
        let deep = format!("{}{}", "a {\n".repeat(depth), "}\n".repeat(depth));
        let repository = Repository::with(&[("cluster.kdl", SMALL), ("policies/deep.kdl", &deep)]);
        refused(&repository, "policies/deep.kdl");
    }
    // Braces in strings and comments are no nesting.
    let flat = format!("// {}\npriority \"a\" rank=1 /* {} */\n", "{".repeat(100), "{".repeat(100));
    let repository = Repository::with(&[("cluster.kdl", SMALL), ("policies/flat.kdl", &flat)]);
    repository.flock(&["validate"]).expect(0);
}

#[test]
fn a_huge_file_is_refused_by_its_size() {
    let line = "priority \"a\" rank=1\n";
    let huge = line.repeat((5 << 20) / line.len());
    let repository = Repository::with(&[("cluster.kdl", SMALL), ("policies/huge.kdl", &huge)]);
    // By its size, before it is read as KDL: what it says would be ten thousand findings.
    let error = refused(&repository, "policies/huge.kdl");
    assert_eq!(text(&error, "/id"), "FLK100", "{error:#}");
}

#[test]
fn what_cannot_be_read_is_named() {
    // Text in another encoding.
    let repository = Repository::with(&[("cluster.kdl", SMALL)]);
    repository.write("policies/latin1.kdl", b"priority \"caf\xe9\" rank=1\n");
    refused(&repository, "policies/latin1.kdl");

    // A link in a circle cannot be read by anybody.
    let repository = Repository::with(&[("cluster.kdl", SMALL)]);
    std::fs::create_dir(repository.path("policies")).expect("a folder");
    symlink("loop.kdl", repository.path("policies/loop.kdl")).expect("a link");
    refused(&repository, "policies/loop.kdl");

    // A pipe would be waited on for ever.
    let repository = Repository::with(&[("cluster.kdl", SMALL)]);
    std::fs::create_dir(repository.path("policies")).expect("a folder");
    let made = std::process::Command::new("mkfifo").arg(repository.path("policies/pipe.kdl")).status();
    assert!(made.is_ok_and(|status| status.success()));
    let outcome = repository.flock(&["validate"]);
    assert!(matches!(outcome.code, Some(0 | 3)), "{outcome}");

    // No repository at all.
    let repository = Repository::with(&[]);
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_flock"));
    let output = command.args(["-C", "/no/such/folder", "validate"]).output().expect("it runs");
    assert!(matches!(output.status.code(), Some(1 | 3)), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("/no/such/folder"), "{output:?}");
    drop(repository);
}

#[test]
fn a_link_out_of_the_repository_is_not_followed() {
    let repository = Repository::with(&[("cluster.kdl", SMALL)]);
    std::fs::write(repository.beside("outside.kdl"), "the-canary-of-this-test 1\n").expect("a file");
    std::fs::create_dir(repository.path("policies")).expect("a folder");
    symlink("../../outside.kdl", repository.path("policies/out.kdl")).expect("a link");
    let outcome = repository.flock(&["validate"]);
    outcome.expect(3).expect_says("policies/out.kdl");
    assert!(!outcome.says("the-canary-of-this-test"), "{outcome}");

    let repository = Repository::with(&[("cluster.kdl", &format!("{SMALL}\ninclude \"../outside.kdl\"\n"))]);
    std::fs::write(repository.beside("outside.kdl"), "the-canary-of-this-test 1\n").expect("a file");
    let outcome = repository.flock(&["validate"]);
    outcome.expect(3).expect_says("cluster.kdl");
    assert!(!outcome.says("the-canary-of-this-test"), "{outcome}");
}

#[test]
fn an_included_file_that_is_missing_is_an_error_at_the_include() {
    let repository = Repository::with(&[("cluster.kdl", &format!("include \"nodes/none.kdl\"\n{SMALL}"))]);
    assert_eq!(number(&refused(&repository, "cluster.kdl"), "/line"), 1);
}

/// Names and addresses that a shell or an option parser would act on.
#[test]
fn strange_names_are_never_commands_or_options() {
    let canary = "touch pwned";
    for name in [
        format!("$({canary})"),
        format!("`{canary}`"),
        format!("a;{canary}"),
        format!("a\\n{canary}"),
        format!("a' '; {canary} #"),
        format!("a\\\"; {canary} #"),
        "-oProxyCommand=touch pwned".to_owned(),
        "--help".to_owned(),
        "../../escape".to_owned(),
        "a b".to_owned(),
        String::new(),
        ".".to_owned(),
    ] {
        let named = [
            ("node", SMALL.replace("\"one\"", &format!("\"{name}\""))),
            ("model", SMALL.replace("\"m\"", &format!("\"{name}\""))),
            ("cluster", SMALL.replace("\"lab\"", &format!("\"{name}\""))),
        ];
        for (kind, source) in named {
            let repository = Repository::with(&[("cluster.kdl", &source)]);
            let outcome = repository.flock(&["validate"]);
            assert_eq!(outcome.code, Some(3), "{kind} {name:?} was accepted\n{outcome}");
            assert!(!repository.path("pwned").exists() && !repository.beside("pwned").exists());
        }
        // An address goes to the network code; it is refused there or here, and is no option to anything.
        let source = SMALL.replace("\"10.0.0.1\"", &format!("\"{name}\""));
        let repository = Repository::with(&[("cluster.kdl", &source)]);
        let outcome = repository.flock(&["discover"]);
        assert!(matches!(outcome.code, Some(3 | 9)), "address {name:?}\n{outcome}");
        assert!(!repository.path("pwned").exists() && !repository.beside("pwned").exists());
    }
}

/// A file may be named as it likes, in the repository and on the command line.
#[test]
fn strange_file_names_are_only_names() {
    let repository = Repository::with(&[("cluster.kdl", SMALL)]);
    for name in
        ["policies/a b.kdl", "policies/$(touch pwned).kdl", "policies/-rf.kdl", "policies/a\nb.kdl", "policies/é.kdl"]
    {
        repository.write(name, "nonsense 1\n");
    }
    let outcome = repository.flock(&["validate", "--format", "json"]);
    assert_eq!(errors(outcome.expect(3)).len(), 5, "{outcome}");
    repository.flock(&["validate"]).expect(3);
    assert!(!repository.path("pwned").exists() && !repository.beside("pwned").exists());
}

#[test]
fn habits_of_kdl_1_get_a_hint() {
    for (habit, hint) in [("place { allow cpu=true }", "#true"), ("quality min=null", "#null")] {
        let source = SMALL.replace("engine \"llama.cpp\"\n", &format!("engine \"llama.cpp\"\n    {habit}\n"));
        let repository = Repository::with(&[("cluster.kdl", &source)]);
        repository.flock(&["validate"]).expect(3).expect_says(hint);
    }
}

#[test]
fn a_missing_brace_points_at_the_one_that_was_opened() {
    let repository = Repository::with(&[("cluster.kdl", SMALL.trim_end().trim_end_matches('}'))]);
    let line = SMALL.lines().position(|line| line.starts_with("model")).expect("it is there") as u64 + 1;
    let error = refused(&repository, "cluster.kdl");
    let at = |one: &serde_json::Value| number(one, "/line") == line;
    assert!(at(&error) || list(&error, "/related").iter().any(at), "{error:#}");
}

#[test]
fn a_literal_key_is_refused_and_not_repeated() {
    let key = format!("sk-ant-api03-{}", "aB3x".repeat(16));
    let provider =
        format!("provider \"p\" kind=\"anthropic\" base-url=\"https://api.anthropic.com\" {{ key \"{key}\" }}\n");
    let repository = Repository::with(&[("cluster.kdl", &format!("{SMALL}\n{provider}"))]);
    let outcome = repository.flock(&["validate"]);
    outcome.expect(3);
    assert!(!outcome.says(&key), "{outcome}");
}
