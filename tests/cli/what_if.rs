//! `flock plan --what-if` and `flock explain`, from a recorded inventory: purchases, losses, and what people read.
//! `FLOCK_UPDATE_GOLDEN=1` writes the texts again.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::lab::{inventory, lab};
use crate::support::{Outcome, Repository, list, number, text};

/// Holds a text against the recorded one.
fn golden(name: &str, shown: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/explained").join(format!("{name}.txt"));
    if std::env::var_os("FLOCK_UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("it can be made");
        std::fs::write(&path, shown).expect("it can be written");
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(shown, expected, "{} differs; FLOCK_UPDATE_GOLDEN=1 writes it again", path.display());
}

/// Plans with these what-if files, from an inventory.
fn suppose_from(repository: &Repository, facts: &Path, files: &[&str], more: &[&str]) -> Outcome {
    let facts = facts.display().to_string();
    let mut arguments = vec!["plan".to_owned(), "--inventory".to_owned(), facts];
    for (index, file) in files.iter().enumerate() {
        let path: PathBuf = repository.beside(&format!("what-if-{index}.kdl"));
        std::fs::write(&path, file).expect("it can be written");
        arguments.extend(["--what-if".to_owned(), path.display().to_string()]);
    }
    arguments.extend(more.iter().map(|one| (*one).to_owned()));
    repository.flock(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

fn suppose(repository: &Repository, files: &[&str], more: &[&str]) -> Outcome {
    suppose_from(repository, &inventory(), files, more)
}

/// A second coder that has no place beside the first on the workstations.
fn crowded() -> Repository {
    let repository = lab();
    let config = std::fs::read_to_string(repository.path("cluster.kdl")).expect("it is there");
    let config = config.replace("replicas min=1 max=2", "replicas min=2");
    let judge = "\nmodel \"judge\" {\n    source \"path:models/deepseek-coder-33b-instruct\"\n    engine \"vllm\"\n    \
        context 16384\n    place { require label=\"tier\" is=\"consumer\" }\n}\n";
    repository.write("cluster.kdl", format!("{config}{judge}"));
    repository.commit("a judge");
    repository
}

const BUY: &str = "add node \"new-1\" like=\"ada-1\" price=\"2.00/h\"\n";

#[test]
fn a_purchase_places_what_had_no_place() {
    let repository = crowded();
    let file = inventory().display().to_string();
    repository.flock(&["plan", "--inventory", &file]).expect(4);
    let bought = suppose(&repository, &[BUY], &[]);
    golden("what_if_bought", &bought.expect(0).stdout);
    let document = suppose(&repository, &[BUY], &["--format", "json"]).expect(0).json();
    let judge =
        list(&document, "/what_if/models").iter().find(|one| text(one, "/model") == "judge").expect("it is told");
    assert_eq!(text(judge, "/change"), "placed");
    assert_eq!((number(judge, "/missing_before"), number(judge, "/missing_after")), (1, 0));
    assert_eq!(document.pointer("/what_if/cost/after_per_hour"), Some(&2.0.into()));
    let cards = |when: &str| {
        let kinds = list(&document, "/what_if/utilisation").iter();
        kinds.filter(|one| text(one, "/name").contains("4090")).map(|one| number(one, when)).sum::<u64>()
    };
    assert_eq!((cards("/before/accelerators"), cards("/after/accelerators")), (8, 12));
    // The plan of the supposed state, with the identities of what is not there.
    let all: Vec<&str> = list(&document, "/instances").iter().map(|one| text(one, "/node")).collect();
    assert!(all.contains(&"new-1"), "{all:?}");
    assert!(document.to_string().contains("what-if:new-1/0"));
    assert!(text(&document, "/what_if/verdict/0").starts_with("adding new-1 (like ada-1): "), "{document:#}");
    // Another kind would do as well, but for the selector: then nothing changes, and the plan stays infeasible.
    let wrong = suppose(&repository, &["add node \"new-1\" like=\"a100\""], &[]);
    wrong.expect(4).expect_says("nothing changes for any model");
    let labelled = "add node \"new-1\" like=\"a100\" { label \"tier\" \"consumer\" }";
    suppose(&repository, &[labelled], &["--detailed-exitcode"]).expect(2).expect_says("is placed (was not)");
}

#[test]
fn a_loss_takes_what_ran_there_along() {
    let repository = lab();
    let lost = suppose(&repository, &["drop node \"a100\""], &[]);
    golden("what_if_lost", &lost.expect(4).stdout);
    lost.expect_says("is not placed any more").expect_says("do without `require label=\"tier\" is=\"datacenter\"`");
    let summary = suppose(&repository, &["drop a100"], &["--summary"]);
    summary.expect(4).expect_says("llava");
    let document = suppose(&repository, &["drop node \"a100\""], &["--format", "json"]).expect(4).json();
    let together = list(&document, "/unplaced/0/together");
    assert_eq!(together.iter().map(|one| text(one, "/constraint")).collect::<Vec<_>>(), ["selector"]);
    let markdown = suppose(&repository, &["drop a100"], &["--format", "markdown"]).expect(4).stdout.clone();
    assert!(markdown.starts_with("<!-- flock what-if -->"), "{markdown}");
    let none = suppose(&repository, &["drop node \"a100\"\ndrop node \"ada-[1-2]\"\ndrop node \"laptop\""], &[]);
    none.expect(4).expect_says("llava").expect_says("coder");

    // What runs on a node that goes finds another place.
    let mut facts: Value =
        serde_json::from_str(&std::fs::read_to_string(inventory()).expect("it is there")).expect("JSON");
    let node = facts["nodes"].as_array_mut().expect("nodes").iter_mut().find(|n| n["name"] == "ada-1").expect("ada-1");
    let cards: Vec<Value> = node["accelerators"].as_array().expect("cards").iter().map(|a| a["uuid"].clone()).collect();
    node["instances"] = serde_json::json!([{ "instance": "abcabcabcabc", "specification": "sha256:0", "model": "coder",
        "replica": 0, "engine": "vllm", "variant": "bf16", "accelerators": cards, "port": 20000, "state": "ready",
        "running": true }]);
    let path = repository.beside("running.json");
    std::fs::write(&path, facts.to_string()).expect("it can be written");
    let document = suppose_from(&repository, &path, &["drop node \"ada-1\""], &["--format", "json"]).expect(0).json();
    let coder =
        list(&document, "/what_if/models").iter().find(|one| text(one, "/model") == "coder").expect("it is told");
    assert_eq!((text(coder, "/change"), number(coder, "/missing_after")), ("loses", 1), "{coder:#}");
    assert!(!document.to_string().contains("ada-1\"") || list(coder, "/after").len() == 1);
}

#[test]
fn models_and_further_files_are_supposed_too() {
    let repository = lab();
    let model =
        "add model \"judge\" { source \"path:models/deepseek-coder-33b-instruct\"; engine \"vllm\"; context 16384 }";
    let shown = suppose(&repository, &[model], &[]);
    shown.expect(0).expect_says("adding the model judge").expect_says("is placed: bf16");
    let both = suppose(&repository, &["drop node \"a100\"", model], &["--format", "json"]).expect(4).json();
    assert_eq!(list(&both, "/what_if/changes").len(), 2);
    let bytes = || suppose(&repository, &[BUY, model], &["--format", "json"]).expect(0).stdout.clone();
    assert_eq!(bytes(), bytes(), "the same question has the same answer");
    suppose(&repository, &[BUY], &["--full"]).expect(0).expect_says("Plan for cluster").expect_says("What if");
}

#[test]
fn nothing_supposed_can_be_applied() {
    let repository = lab();
    let out = repository.beside("plan.json").display().to_string();
    suppose(&repository, &[BUY], &["--out", &out]).expect(64).expect_says("--out");
    let document = suppose(&repository, &[BUY], &["--format", "json"]).expect(0).stdout.clone();
    std::fs::write(&out, document).expect("it can be written");
    repository.flock(&["show", &out]).expect(5).expect_says("what_if");
    repository.flock(&["apply", &out]).expect(5).expect_says("what_if");
}

#[test]
fn a_wrong_file_says_where_and_what_instead() {
    let repository = lab();
    let wrong = |file: &str| suppose(&repository, &[file], &[]);
    wrong("drop node \"a10\"").expect(3).expect_says("what-if-0.kdl:1:11").expect_says("did you mean `a100`");
    wrong("\nadd node \"x\" like=\"ada-3\"").expect(3).expect_says("what-if-0.kdl:2:19").expect_says("ada-3");
    wrong("add node \"ada-1\" like=\"a100\"").expect(3).expect_says("there is a node `ada-1` already");
    wrong("").expect(3).expect_says("FLK152").expect_says("drop node");
    wrong("add node \"x\" like=\"a100\"; drop x1").expect(3);
    let file = inventory().display().to_string();
    let missing = repository.flock(&["plan", "--inventory", &file, "--what-if", "nowhere.kdl"]);
    missing.expect(1).expect_says("nowhere.kdl");
    // A node that nobody knows anything of cannot be had twice.
    let mut facts: Value =
        serde_json::from_str(&std::fs::read_to_string(inventory()).expect("it is there")).expect("JSON");
    facts["nodes"].as_array_mut().expect("nodes").retain(|node| node["name"] != "ada-2");
    let path = repository.beside("fewer.json");
    std::fs::write(&path, facts.to_string()).expect("it can be written");
    let unknown = suppose_from(&repository, &path, &["add node \"x\" like=\"ada-2\""], &[]);
    unknown.expect(3).expect_says("FLK221").expect_says("nothing is known of node `ada-2`");
    unknown.expect_says("what-if-0.kdl:1:19").expect_says("add node \"x\" like=\"ada-2\"");
    // All of them in one run.
    let two = "add node \"x\" like=\"ada-2\"\nadd node \"y\" like=\"ada-2\"";
    suppose_from(&repository, &path, &[two], &[]).expect(3).expect_says("what-if-0.kdl:2:19").expect_says("2 errors");
}

#[test]
fn a_name_that_nothing_has_is_told_the_nearest_of_any_kind() {
    let file = inventory().display().to_string();
    let repository = lab();
    let explain = |name: &str| repository.flock(&["explain", name, "--inventory", &file]);
    for (name, near) in [
        ("llva", "did you mean `llava`?"),
        ("ada-1", "did you mean `node/ada-1`?"),
        ("plannr", "did you mean `agent/planner`?"),
        ("agent/a100", "did you mean `node/a100`?"),
        ("node/ada-3", "did you mean `node/ada-1`?"),
        ("zzzzzz", "known here: "),
    ] {
        explain(name).expect(1).expect_says("there is no ").expect_says(near);
    }
}

#[test]
fn a_context_that_no_weights_were_trained_for_is_said_by_validate_too() {
    let repository = lab();
    repository.flock(&["validate"]).expect(0);
    let config = std::fs::read_to_string(repository.path("cluster.kdl")).expect("it is there");
    repository.write("cluster.kdl", config.replacen("context 16384", "context 1638400", 1));
    let said = repository.flock(&["validate"]);
    said.expect(3).expect_says("FLK213").expect_says("context 1638400").expect_says("hint: write `context ");
    let file = inventory().display().to_string();
    repository.flock(&["plan", "--inventory", &file]).expect(3).expect_says("FLK213").expect_says("write `context ");
}

#[test]
fn explanations_as_people_read_them() {
    let file = inventory().display().to_string();
    let explain = |repository: &Repository, model: &str| {
        repository.flock(&["explain", model, "--inventory", &file]).expect(0).stdout.clone()
    };
    let repository = crowded();
    golden("explain_llava", &explain(&repository, "llava"));
    golden("explain_coder", &explain(&repository, "coder"));
    golden("explain_judge", &explain(&repository, "judge"));
    let document = repository.flock(&["explain", "judge", "--inventory", &file, "--format", "json"]).expect(0).json();
    assert!(!list(&document, "/together").is_empty(), "{document:#}");
    let changes = list(&document, "/changes");
    assert!(changes.iter().any(|one| text(one, "/kind") == "node"), "{changes:#?}");
    assert!(list(&document, "/lost").iter().any(|one| text(one, "/by") == "cost"), "{document:#}");
    assert_eq!(document.pointer("/content"), Some(&false.into()));
    let terms: Vec<&str> = list(&document, "/objective").iter().map(|one| text(one, "/term")).collect();
    assert!(terms.contains(&"quality") && terms.contains(&"cost"), "{terms:?}");
}
