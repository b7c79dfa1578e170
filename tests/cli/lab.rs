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
pub fn lab() -> Repository {
    let repository = Repository::empty();
    copy(&root().join("tests/data/lab"), &repository, "");
    repository.commit("the lab");
    repository
}

pub fn inventory() -> PathBuf {
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
fn a_saved_plan_is_the_same_file_twice_and_is_shown_as_it_was_made() {
    let repository = lab();
    let (one, two) = (repository.beside("one.json"), repository.beside("two.json"));
    let save = |path: &Path| {
        let file = path.display().to_string();
        let printed = plan(&repository, &["--out", &file, "--format", "json"]).expect(0).stdout.clone();
        (std::fs::read_to_string(path).expect("it was saved"), printed)
    };
    let (first, printed) = save(&one);
    assert_eq!(first, save(&two).0, "byte for byte");
    assert_eq!(first, printed);
    let file = one.display().to_string();
    assert_eq!(repository.flock(&["show", &file, "--format", "json"]).expect(0).stdout, first);

    // The order of keys is part of the shape.
    let keys = |text: &str| -> Vec<String> {
        let top = text.lines().filter(|line| line.starts_with("  \"")).filter_map(|line| line.split('"').nth(1));
        top.map(str::to_owned).collect()
    };
    let expected = [
        "format",
        "cluster",
        "commit",
        "dirty",
        "config_digest",
        "inventory_digest",
        "solver",
        "instances",
        "egress",
        "steps",
        "deferred",
        "blocked",
        "unplaced",
        "drift",
        "decay",
        "warnings",
        "summary",
        "guards",
        "seal",
    ];
    assert_eq!(keys(&first), expected);

    // The reasons are in the file: what `show` says, `plan` has said.
    let shown = repository.flock(&["show", &file]);
    shown.expect(0).expect_says("because added: cluster.kdl:").expect_says("Apply exactly this with: flock -C");
    let comment = repository.flock(&["show", &file, "--format", "markdown"]);
    assert!(comment.expect(0).stdout.starts_with("<!-- flock plan "), "{comment}");
    assert!(comment.stdout.len() <= 60_000 && comment.stdout.contains("| start | 3 | `coder` (2), `llava` |"));
    let comment = plan(&repository, &["--format", "markdown", "--detailed-exitcode"]);
    assert!(comment.expect(2).stdout.contains("<details><summary>Changes ("), "{comment}");

    // A plan for other words of the config, or for another cluster, is refused before any node is asked.
    let source = std::fs::read_to_string(repository.path("cluster.kdl")).expect("it is there");
    repository.write("cluster.kdl", source.replace("replicas min=1 max=2", "replicas min=1 max=1"));
    let refused = repository.flock(&["apply", &file]);
    refused.expect(5).expect_says("another meaning since the plan").expect_says(" -> ");
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

#[test]
fn validate_says_whether_it_fits_in_every_format() {
    let repository = lab();
    let file = inventory().display().to_string();
    let validate = |more: &[&str]| repository.flock(&[&["validate", "--inventory", &file], more].concat());
    let answer = validate(&["--format", "json"]).expect(0).json();
    assert_eq!(answer.pointer("/fit/fits"), Some(&true.into()));
    assert!(number(&answer, "/fit/placed") > 0 && list(&answer, "/fit/unplaced").is_empty(), "{answer:#}");
    validate(&[]).expect(0).expect_says("fits: ");

    let source = std::fs::read_to_string(repository.path("cluster.kdl")).expect("it is there");
    let narrow = source
        .replace("require label=\"tier\" is=\"consumer\"; spread by=\"node\"", "require label=\"tier\" is=\"laptop\"");
    repository.write("cluster.kdl", &narrow);
    let answer = validate(&["--format", "json"]).expect(4).json();
    assert_eq!(answer.pointer("/valid"), Some(&true.into()));
    assert_eq!(text(&answer, "/fit/unplaced/0/model"), "coder");
    validate(&[]).expect(4).expect_says("does not fit");
    let line = narrow.lines().position(|line| line.starts_with("model \"coder\"")).expect("it is there") + 1;
    validate(&["--format", "github"]).expect(4).expect_says(&format!("cluster.kdl,line={line},"));
    validate(&["--format", "markdown"]).expect(4).expect_says("flock validate: does not fit");
    let sarif = validate(&["--format", "sarif"]).expect(4).json();
    assert!(list(&sarif, "/runs/0/results").iter().any(|one| text(one, "/ruleId") == "FLK405"), "{sarif:#}");

    // What makes a plan impossible is invalid, at its line: here a context beyond the trained length.
    let long = source.replacen("context 16384", "context 1638400", 1);
    assert_ne!(long, source);
    repository.write("cluster.kdl", &long);
    let line = long.lines().position(|line| line.contains("context 1638400")).expect("it is there") as u64 + 1;
    let answer = validate(&["--format", "json"]).expect(3).json();
    let found = list(&answer, "/diagnostics").iter().find(|one| text(one, "/id") == "FLK213").expect("it is there");
    assert_eq!(number(found, "/line"), line);
    plan(&repository, &[]).expect(3).expect_says("more than the 16384 it was trained for");
    repository.flock(&["validate", "--inventory", "/no/such/file"]).expect(1);
    repository.flock(&["validate", "--stdin", "--inventory", &file]).expect(64);
}

/// A commit is planned as it was, whatever the working tree says now.
#[test]
fn a_commit_is_planned_instead_of_the_working_tree() {
    let repository = lab();
    let first = repository.git(&["rev-parse", "HEAD"]).trim().to_owned();
    let then = plan(&repository, &["--format", "json"]).expect(0).stdout.clone();
    let source = std::fs::read_to_string(repository.path("cluster.kdl")).expect("it is there");
    repository.write("cluster.kdl", source.replace("replicas min=1 max=2", "replicas min=1 max=1"));
    repository.commit("one coder");
    repository.write("cluster.kdl", "nonsense 1\n");
    plan(&repository, &[]).expect(3);
    for revision in ["HEAD~1", &first, &first[..9]] {
        let planned = plan(&repository, &["--against", revision, "--format", "json"]);
        assert_eq!(planned.expect(0).stdout, then, "{revision}: the same bytes as when it was the working tree");
    }
    let head = plan(&repository, &["--against", "HEAD", "--format", "json"]).expect(0).json();
    assert_eq!((number(&head, "/summary/start"), head.pointer("/dirty")), (2, Some(&false.into())), "{head:#}");

    // It says how to apply it, saved or not, and a saved one is refused where the config means something else.
    let file = repository.beside("then.json").display().to_string();
    let saved = plan(&repository, &["--against", "HEAD~1", "--out", &file]);
    let told = saved.expect(0).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(told.contains("This is the plan of HEAD~1. To apply it, check that out, then: flock"), "{saved}");
    repository.git(&["checkout", "--quiet", "--force", "HEAD"]);
    repository.flock(&["apply", &file]).expect(5).expect_says("another meaning since the plan");
    plan(&repository, &["--against", "nosuch"])
        .expect(1)
        .expect_says("git knows no commit `nosuch`")
        .expect_says("git fetch");
    // Errors are those of the commit, shown with its lines.
    repository.write("cluster.kdl", format!("{source}\nnonsense 1\n"));
    repository.commit("broken");
    repository.write("cluster.kdl", &source);
    plan(&repository, &["--against", "HEAD"]).expect(3).expect_says("nonsense 1").expect_says("the config is invalid");
    plan(&repository, &[]).expect(0);
}

/// A node is explained as a model is: what is planned there, and why the others are not.
#[test]
fn a_node_is_explained() {
    let repository = lab();
    let file = inventory().display().to_string();
    let explain = |more: &[&str]| repository.flock(&[&["explain", "--inventory", &file], more].concat());
    let shown = explain(&["node/ada-1"]);
    shown.expect(0).expect_says("Node ada-1").expect_says("runs coder/0 on ada-1").expect_says("Why not here");
    let document = explain(&["node/ada-1", "--format", "json"]).expect(0).json();
    assert_eq!((text(&document, "/node"), document.pointer("/reachable")), ("ada-1", Some(&true.into())));
    assert_eq!(list(&document, "/accelerators").len(), 4);
    let needed = number(&document, "/instances/0/memory/per_accelerator/0/total_bytes");
    for accelerator in list(&document, "/accelerators") {
        assert_eq!(number(accelerator, "/planned_bytes"), needed, "{document:#}");
    }
    let absent = list(&document, "/absent");
    assert_eq!(absent.iter().map(|one| text(one, "/model")).collect::<Vec<_>>(), ["llava"], "{document:#}");
    let elsewhere = explain(&["llava", "--format", "json"]).expect(0).json();
    let there = list(&elsewhere, "/elsewhere").iter().find(|one| text(one, "/node") == "ada-1").expect("it is there");
    assert_eq!(text(&absent[0], "/verdict"), text(there, "/verdict"), "both commands say the same");
    explain(&["node/laptop"]).expect(0).expect_says("nothing is planned here").expect_says("coder");
    explain(&["node/ada-9"]).expect(1).expect_says("did you mean");
    for other in ["agent/nobody", "workflow/vision", "provider/x", "node/"] {
        assert_ne!(explain(&[other]).code, Some(0), "{other}");
    }
    explain(&["workflow/vision"]).expect(64).expect_says("node/NAME");
    explain(&["agent/plannr"]).expect(1).expect_says("planner");
}

/// The example's lab with measured ways: out to the provider, and between the nodes.
#[test]
fn a_provider_is_reached_through_the_nearest_node_and_why_is_explained() {
    let repository = lab();
    let mut facts: serde_json::Value =
        serde_json::from_slice(&std::fs::read(inventory()).expect("it is there")).expect("JSON");
    let names: Vec<String> = list(&facts, "/nodes").iter().map(|node| text(node, "/name").to_owned()).collect();
    let connects = |name: &str| match name {
        "ada-1" => 11_200,
        "a100" => 18_000,
        _ => 30_000,
    };
    let egress = |name: &String| serde_json::json!({ "node": name, "endpoint": "api.anthropic.com:443", "rtt_us": connects(name) });
    facts["egress"] = names.iter().map(egress).collect();
    let pairs = names.iter().enumerate().flat_map(|(at, from)| names[at + 1..].iter().map(move |to| (from, to)));
    let link = |(from, to): (&String, &String)| serde_json::json!({ "from": from, "to": to, "rtt_us": 200, "bandwidth_bytes_per_s": 1_000_000_000, "measured": true });
    facts["links"] = pairs.map(link).collect();
    let path = repository.beside("measured.json");
    std::fs::write(&path, facts.to_string()).expect("it can be written");
    let file = path.display().to_string();
    let flock = |words: &[&str]| repository.flock(&[words, &["--inventory", &file]].concat());

    flock(&["plan"]).expect(0).expect_says("opus (planner) via ada-1: 11.2 ms to api.anthropic.com:443");
    let document = flock(&["plan", "--format", "json"]).expect(0).json();
    let way = &list(&document, "/egress")[0];
    assert_eq!((text(way, "/agent"), text(way, "/node"), number(way, "/rtt_us")), ("planner", "ada-1", 11_200));
    assert_eq!(text(&list(way, "/others")[0], "/node"), "a100", "{way:#}");
    let shown = flock(&["explain", "opus"]);
    shown.expect(0).expect_says("Model opus of provider anthropic").expect_says("NOT VIA").expect_says("Traffic (");
    let shown = flock(&["explain", "agent/planner"]);
    shown.expect(0).expect_says("Agent planner, model opus").expect_says("agent planner via ada-1");
    flock(&["explain", "agent/viewer"])
        .expect(0)
        .expect_says("its model runs on nodes")
        .expect_says("llava - agent/planner");
    let explained = flock(&["explain", "agent/planner", "--format", "json"]).expect(0).json();
    assert_eq!(text(&explained, "/provider"), "anthropic");
    assert!(list(&explained, "/traffic").iter().all(|flow| text(flow, "/to") == "agent/planner"), "{explained:#}");
    let graph = flock(&["graph", "placement", "--format", "json"]).expect(0).json();
    assert!(list(&graph, "/nodes").iter().any(|vertex| text(vertex, "/id") == "egress/opus@ada-1"), "{graph:#}");

    // A limit that no node meets is as infeasible as a model that fits nowhere.
    let source = std::fs::read_to_string(repository.path("cluster.kdl")).expect("it is there");
    let limited =
        source.replace("name=\"claude-3-opus-20240229\" }", "name=\"claude-3-opus-20240229\"; max-latency \"10ms\" }");
    assert_ne!(source, limited);
    repository.write("cluster.kdl", limited);
    flock(&["plan"])
        .expect(4)
        .expect_says("no egress node")
        .expect_says("11.2 ms to connect to api.anthropic.com:443; 10.0 ms needed");
    let document = flock(&["plan", "--format", "json"]).expect(4).json();
    let reasons = list(&document, "/unplaced/0/reasons");
    assert_eq!(reasons.len(), names.len());
    assert!(reasons.iter().all(|reason| (text(reason, "/constraint"), text(reason, "/unit")) == ("egress", "us")));
    flock(&["explain", "opus"]).expect(0).expect_says("no egress node").expect_says("`max-latency` of 12 ms for ada-1");
    flock(&["validate"]).expect(4).expect_says("no egress node");
}

/// What the exit codes of the whole command say, one under the other: the graver one wins.
#[test]
fn one_exit_code_of_several() {
    let repository = lab();
    let source = std::fs::read_to_string(repository.path("cluster.kdl")).expect("it is there");
    let file = inventory();
    let mut facts: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&file).expect("it is there")).expect("JSON");
    let away = repository.beside("away.json");
    let nodes = facts.pointer_mut("/nodes").and_then(serde_json::Value::as_array_mut).expect("nodes");
    nodes.retain(|node| text(node, "/name") != "laptop");
    std::fs::write(&away, facts.to_string()).expect("it can be written");
    let (all, away) = (file.display().to_string(), away.display().to_string());
    let code = |inventory: &str| repository.flock(&["plan", "--detailed-exitcode", "--inventory", inventory]).code;
    assert_eq!((code(&all), code(&away)), (Some(2), Some(9)), "9 wins over 2");
    let narrow = source
        .replace("require label=\"tier\" is=\"consumer\"; spread by=\"node\"", "require label=\"tier\" is=\"moon\"");
    repository.write("cluster.kdl", narrow);
    assert_eq!((code(&all), code(&away)), (Some(4), Some(9)), "4 wins over 2, 9 over 4");
    repository.write("cluster.kdl", "nonsense 1\n");
    assert_eq!(code(&away), Some(3), "3 wins over 9");
    assert_eq!(repository.flock(&["plan", "--inventory", &away, "--on", ""]).code, Some(3), "what is read first");
    assert_eq!(repository.flock(&["plan", "--inventory"]).code, Some(64));
}
