//! The shipped examples are valid, and the example's lab can be planned without hosts, hub or weights.

use std::path::{Path, PathBuf};

use crate::support::{Outcome, Repository, list, number, text};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Copies a folder's files into a repository.
fn copy(from: &Path, to: &Repository, below: &str) {
    for entry in std::fs::read_dir(from).unwrap_or_else(|error| panic!("{}: {error}", from.display())) {
        let path = entry.expect("it can be read").path();
        let name = Path::new(below).join(path.file_name().expect("a name")).display().to_string();
        if path.is_dir() {
            copy(&path, to, &name);
        } else {
            to.write(&name, std::fs::read(&path).expect("it can be read"));
        }
    }
}

/// The example's lab as a repository of its own.
fn lab() -> Repository {
    let repository = Repository::empty();
    copy(&root().join("tests/data/lab"), &repository, "");
    repository.commit("the lab");
    repository
}

fn inventory() -> PathBuf {
    root().join("tests/data/lab-inventory.json")
}

fn plan(repository: &Repository, more: &[&str]) -> Outcome {
    let file = inventory().display().to_string();
    repository.flock(&[&["plan", "--inventory", &file], more].concat())
}

#[test]
fn the_shipped_example_is_a_valid_repository() {
    let repository = Repository::empty();
    let example = std::fs::read(root().join("cluster.kdl.example")).expect("the example is there");
    repository.write("cluster.kdl", example);
    copy(&root().join("workflows"), &repository, "workflows");
    copy(&root().join("policies"), &repository, "policies");
    repository.commit("the example");
    repository.flock(&["validate"]).expect(0);
}

#[test]
fn the_lab_is_planned_from_headers_alone() {
    let repository = lab();
    repository.flock(&["validate"]).expect(0);
    let outcome = plan(&repository, &["--format", "json"]);
    let document = outcome.expect(0).json();
    let instances = list(&document, "/instances");
    let of = |model: &str| instances.iter().filter(|one| text(one, "/model") == model).collect::<Vec<_>>();

    let llava = of("llava");
    assert_eq!(llava.len(), 1, "{outcome}");
    assert_eq!(text(llava[0], "/node"), "a100");
    let coder = of("coder");
    assert_eq!(coder.len(), 2, "{outcome}");
    let nodes: Vec<&str> = coder.iter().map(|one| text(one, "/node")).collect();
    assert_eq!(nodes, ["ada-1", "ada-2"], "spread over the workstations");
    for one in &coder {
        // 62 GiB of weights over four cards of 24 GiB; 56 heads and 8 KV heads forbid three.
        assert_eq!(text(one, "/variant"), "bf16", "{one:#}");
        assert_eq!(number(one, "/tensor_parallel"), 4, "{one:#}");
    }

    for instance in instances {
        let planned = list(instance, "/memory/per_accelerator");
        assert_eq!(planned.len(), list(instance, "/accelerators").len());
        for accelerator in planned {
            let part = |name: &str| number(accelerator, &format!("/{name}_bytes"));
            assert_eq!(part("total"), part("weights") + part("kv") + part("overhead"), "{accelerator:#}");
            assert!(part("total") <= part("capacity"), "{accelerator:#}");
        }
    }
    // Layers x 2 x 8 heads x 128 x 2 bytes a token, for all sequences at full length, over the ranks.
    let near = |instance: &serde_json::Value, part: &str, bytes: u64, percent: u64| {
        let ranks = number(instance, "/tensor_parallel");
        let planned = number(instance, &format!("/memory/per_accelerator/0/{part}_bytes")) * ranks;
        assert!(planned.abs_diff(bytes) <= bytes * percent / 100, "{part}: {planned} for {bytes}\n{instance:#}");
    };
    near(llava[0], "kv", 60 * 4096 * 4096 * 4, 1);
    near(coder[0], "kv", 62 * 4096 * 16_384 * 2, 1);
    near(coder[0], "weights", 66_685_982_720, 2);

    let summary = |name: &str| number(&document, &format!("/summary/{name}"));
    assert_eq!((summary("start"), summary("unplaced"), summary("stop")), (3, 0, 0));
    assert_eq!(text(&document, "/solver/status"), "optimal");

    let shown = plan(&repository, &[]);
    shown.expect(0).expect_says("llava").expect_says("coder").expect_says("a100").expect_says("ada-1");
    plan(&repository, &["--detailed-exitcode"]).expect(2);
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let (one, two) = (lab(), lab());
    // Two checkouts have two commits: everything else must agree.
    let bytes = |repository: &Repository| {
        let outcome = plan(repository, &["--format", "json"]);
        let commit = repository.git(&["rev-parse", "HEAD"]);
        let folder = repository.path("").display().to_string();
        outcome.expect(0).stdout.replace(commit.trim(), "COMMIT").replace(&folder, "FOLDER")
    };
    let first = bytes(&one);
    assert_eq!(first, bytes(&one));
    assert_eq!(first, bytes(&two));

    // Layout and comments mean nothing.
    let source = std::fs::read_to_string(one.path("cluster.kdl")).expect("it is there");
    let before = one.json(&["plan", "--inventory", &inventory().display().to_string()]);
    one.write("cluster.kdl", format!("// moved\n\n{}", source.replace("    ", "\t")));
    let after = one.json(&["plan", "--inventory", &inventory().display().to_string()]);
    assert_eq!(text(&before, "/config_digest"), text(&after, "/config_digest"));
    assert_eq!(after.pointer("/dirty"), Some(&true.into()));
}

#[test]
fn a_model_that_fits_nowhere_says_what_it_needs_and_what_there_is() {
    let repository = lab();
    let source = std::fs::read_to_string(repository.path("cluster.kdl")).expect("it is there");
    // The laptop has no accelerator, and nothing here may run on a CPU.
    let narrow = source
        .replace("require label=\"tier\" is=\"consumer\"; spread by=\"node\"", "require label=\"tier\" is=\"laptop\"");
    assert_ne!(narrow, source);
    repository.write("cluster.kdl", narrow);
    let outcome = plan(&repository, &["--format", "json"]);
    let document = outcome.expect(4).json();
    let unplaced = list(&document, "/unplaced").iter().find(|one| text(one, "/model") == "coder").expect("coder");
    assert_eq!(unplaced.pointer("/required"), Some(&true.into()));
    let reasons = list(unplaced, "/reasons");
    let nodes: Vec<&str> = reasons.iter().filter_map(|one| one.pointer("/node")?.as_str()).collect();
    for node in ["a100", "ada-1", "ada-2", "laptop"] {
        assert!(nodes.contains(&node), "no reason for {node}: {unplaced:#}");
    }
    plan(&repository, &["--detailed-exitcode"]).expect(4).expect_says("coder");

    // Fewer than desired and no fewer than the minimum is no failure.
    let one_left = source.replace("replicas min=1 max=2", "replicas min=1 max=3");
    repository.write("cluster.kdl", one_left);
    let outcome = plan(&repository, &["--format", "json"]);
    let unplaced = outcome.expect(0).json();
    assert_eq!(list(&unplaced, "/unplaced")[0].pointer("/required"), Some(&false.into()), "{outcome}");
}
