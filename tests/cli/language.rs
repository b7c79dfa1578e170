//! The language's tools from outside: fmt, schema, and validate for editors, code hosts and recorded hardware.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use crate::SMALL;
use crate::support::{Repository, list, number, text};

/// Runs flock with a text on standard input: exit code, standard output, standard error.
fn piped(repository: &Repository, arguments: &[&str], input: &str) -> (Option<i32>, String, String) {
    let mut command = repository.command();
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

const MESSY: &str = "cluster   \"lab\" {// here\n  reserve ram=\"1GiB\" }\n";
const TIDY: &str = "cluster \"lab\" { // here\n    reserve ram=\"1GiB\"\n}\n";

#[test]
fn fmt_changes_what_validate_reads_and_says_what_it_changed() {
    let repository = Repository::with(&[
        ("cluster.kdl", MESSY),
        ("policies/a.kdl", "prune   \"keep\"\n"),
        ("workflows/tidy.kdl", "// nothing\n"),
        ("other.kdl", "a;b"),
    ]);
    let check = repository.flock(&["fmt", "--check"]);
    assert_eq!(check.expect(2).stdout, "cluster.kdl\npolicies/a.kdl\n");
    assert_eq!(std::fs::read_to_string(repository.path("cluster.kdl")).unwrap(), MESSY);
    let tidy = std::fs::metadata(repository.path("workflows/tidy.kdl")).unwrap().modified().unwrap();
    std::fs::set_permissions(repository.path("cluster.kdl"), std::fs::Permissions::from_mode(0o640)).unwrap();

    let changed = repository.flock(&["fmt"]);
    assert_eq!(changed.expect(0).stdout, "cluster.kdl\npolicies/a.kdl\n");
    assert_eq!(std::fs::read_to_string(repository.path("cluster.kdl")).unwrap(), TIDY);
    assert_eq!(std::fs::read_to_string(repository.path("other.kdl")).unwrap(), "a;b", "nothing reads it");
    let mode = std::fs::metadata(repository.path("cluster.kdl")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    assert_eq!(std::fs::metadata(repository.path("workflows/tidy.kdl")).unwrap().modified().unwrap(), tidy);
    let left: Vec<_> = std::fs::read_dir(repository.path("")).unwrap().map(|one| one.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().ends_with(".new")), "{left:?}");

    assert_eq!(repository.flock(&["fmt"]).expect(0).stdout, "");
    repository.flock(&["fmt", "--check"]).expect(0);
    assert_eq!(repository.flock(&["fmt", "other.kdl", "policies"]).expect(0).stdout, "other.kdl\n");
}

#[test]
fn fmt_leaves_what_it_cannot_read() {
    let repository = Repository::with(&[("cluster.kdl", MESSY), ("policies/a.kdl", "a true\nb {\n")]);
    let outcome = repository.flock(&["fmt"]);
    outcome.expect(3).expect_says("FLK105");
    assert!(outcome.stderr.contains("policies/a.kdl:1:3") && outcome.stderr.contains("FLK104"), "{outcome}");
    assert_eq!(outcome.stdout, "cluster.kdl\n");
    assert_eq!(std::fs::read_to_string(repository.path("policies/a.kdl")).unwrap(), "a true\nb {\n");
    repository.flock(&["fmt", "--check"]).expect(3);
    repository.flock(&["fmt", "no-such.kdl"]).expect(64);
    repository.flock(&["fmt", "-", "cluster.kdl"]).expect(64);
    Repository::empty().flock(&["fmt"]).expect(3);
}

#[test]
fn fmt_formats_standard_input() {
    let nothing = Repository::empty();
    assert_eq!(piped(&nothing, &["fmt", "-"], MESSY), (Some(0), TIDY.to_owned(), String::new()));
    assert_eq!(piped(&nothing, &["fmt", "-"], "").1, "");
    assert_eq!(piped(&nothing, &["fmt", "--check", "-"], MESSY), (Some(2), "<stdin>\n".to_owned(), String::new()));
    assert_eq!(piped(&nothing, &["fmt", "--check", "-"], TIDY).0, Some(0));
    let (code, out, errors) = piped(&nothing, &["fmt", "-"], "a {");
    assert_eq!((code, out.as_str()), (Some(3), ""));
    assert!(errors.contains("<stdin>:1:3") && errors.contains("FLK104"), "{errors}");
}

#[test]
fn the_schema_is_data_and_text() {
    let nothing = Repository::empty();
    let schema = nothing.flock(&["schema", "--format", "json"]).expect(0).json();
    assert_eq!(number(&schema, "/format"), 1);
    let nodes = list(&schema, "/nodes");
    let model = nodes.iter().find(|node| text(node, "/word") == "model").expect("model");
    let children = list(model, "/children");
    let child = |word: &str| children.iter().find(|child| text(child, "/word") == word).expect("it is there");
    assert_eq!(text(child("concurrency"), "/default"), "1");
    assert_eq!(child("env").pointer("/repeatable"), Some(&true.into()));
    assert_eq!(text(child("kv-dtype"), "/arguments/0/type"), "kv-dtype");
    assert!(!list(child("kv-dtype"), "/arguments/0/words").is_empty());
    assert_eq!(text(&schema, "/qualities/0/0"), "f32");
    nothing.flock(&["schema"]).expect(0).expect_says("concurrency <count>");
}

const WRONG: &str =
    "cluster \"lab\"\nnode \"a\" adress=\"10.0.0.1\"\nmodel \"m\" { source \"on-node:/m\"; idle-stop \"2h\" }\n";

#[test]
fn findings_for_code_hosts() {
    let repository = Repository::with(&[("cluster.kdl", WRONG)]);
    let github = repository.flock(&["validate", "--format", "github"]);
    let lines: Vec<&str> = github.expect(3).stdout.lines().collect();
    // The repository is not below the folder that the command runs in by name alone: it is its subfolder.
    let folder = repository.path("").file_name().unwrap().to_string_lossy().into_owned();
    let error = format!("::error file={folder}/cluster.kdl,line=2,endLine=2,col=10,endColumn=16,title=flock FLK111::");
    assert!(lines[0].starts_with(&error), "{github}");
    assert!(lines[0].ends_with("%0Ahint: did you mean `address`?"), "{github}");
    assert!(lines.iter().any(|line| line.starts_with("::warning ") && line.contains("FLK190")), "{github}");

    let sarif = repository.flock(&["validate", "--format", "sarif"]).expect(3).json();
    assert_eq!(text(&sarif, "/version"), "2.1.0");
    assert_eq!(text(&sarif, "/runs/0/results/0/ruleId"), "FLK111");
    let markdown = repository.flock(&["validate", "--format", "markdown"]);
    markdown.expect(3).expect_says("| error&nbsp;FLK111 | cluster.kdl:2:10 |");

    let spelt = WRONG.replace("adress", "address");
    let warned = Repository::with(&[("cluster.kdl", &spelt)]);
    for format in ["text", "json", "github", "sarif", "markdown"] {
        warned.flock(&["validate", "--format", format]).expect(0);
        warned.flock(&["validate", "--format", format, "--deny", "warnings"]).expect(3);
    }
    warned
        .flock(&["validate", "--deny", "warnings"])
        .expect(3)
        .expect_says("invalid: 1 warning, and warnings are denied");
    assert_eq!(warned.flock(&["validate", "--format", "github"]).stdout.lines().count(), 1);
    let many: String = (0..40).map(|index| format!("nod \"{index}\"\n")).collect();
    let many = Repository::with(&[("cluster.kdl", &format!("cluster \"lab\"\n{many}"))]);
    let github = many.flock(&["validate", "--format", "github"]);
    assert_eq!(github.expect(3).stdout.matches("::error ").count(), 10, "{github}");
    github.expect_says("31 more errors");
}

#[test]
fn an_editor_checks_its_text_in_the_place_of_a_file() {
    let repository = Repository::with(&[("cluster.kdl", SMALL), ("policies/p.kdl", "prune \"no\"\n")]);
    // The text of the editor counts, not the file; errors of other files are not this one's.
    let (code, out, _) = piped(&repository, &["validate", "--stdin", "policies/p.kdl"], "protect model=\"m\"\n");
    assert_eq!(code, Some(0), "{out}");
    let (code, out, _) =
        piped(&repository, &["validate", "--stdin", "--format", "json", "policies/p.kdl"], "protect model=\"n\"\n");
    assert_eq!(code, Some(3));
    let answer: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(number(&answer, "/error_count"), 1);
    assert_eq!(
        (text(&answer, "/diagnostics/0/id"), text(&answer, "/diagnostics/0/file")),
        ("FLK131", "policies/p.kdl")
    );
    // A file that nothing includes yet is checked all the same, and one that is new.
    let (code, out, _) = piped(&repository, &["validate", "--stdin", "nodes/new.kdl"], "nod \"x\"");
    assert_eq!(code, Some(3), "{out}");
    assert!(out.contains("nodes/new.kdl:1:1"), "{out}");
    let absolute = repository.path("policies/p.kdl").display().to_string();
    assert_eq!(piped(&repository, &["validate", "--stdin", &absolute], "prune \"keep\"").0, Some(0));
    assert_eq!(piped(&repository, &["validate", "--stdin", "../x.kdl"], "").0, Some(64));
    // Without a name it is cluster.kdl.
    let (code, out, _) = piped(&repository, &["validate", "--stdin"], "cluster \"lab\"\nagent \"a\" model=\"m\"\n");
    assert_eq!(code, Some(3), "{out}");
    assert!(out.contains("FLK131") && !out.contains("FLK120"), "{out}");

    // Outside a repository: what the text says by itself.
    let nothing = Repository::empty();
    let flow = "workflow \"w\" { step \"s\" agent=\"a\" { prompt \"x\" } }\n";
    assert_eq!(piped(&nothing, &["validate", "--stdin", "w.kdl"], flow).0, Some(0));
    let (code, out, _) = piped(&nothing, &["validate", "--stdin", "w.kdl"], &flow.replace("prompt", "promt"));
    assert_eq!(code, Some(3), "{out}");
    assert_eq!(piped(&nothing, &["validate", "--stdin"], "cluster \"lab\"").0, Some(0));
    assert_eq!(piped(&nothing, &["validate", "--stdin"], "").0, Some(3));
}

#[test]
fn a_full_disk_is_a_failure_and_help_knows_its_name() {
    let nothing = Repository::empty();
    for arguments in [&["--version"][..], &["--help"], &["plan", "--help"], &["help"], &["schema"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
        let mut command = nothing.command();
        let output = command.args(arguments).stdin(Stdio::null()).stdout(full).stderr(Stdio::piped());
        let output = output.spawn().expect("it starts").wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(1), "{arguments:?} {output:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
    nothing.flock(&["help", "init"]).expect(0).expect_says("Usage: flock init");
}
