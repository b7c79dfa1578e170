//! The lab of 4 A100 and 8 RTX 4090: its plan, why two models are where they are, what a purchase or the loss of a node
//! would change, and what a production model displaces on a full cluster.
//!
//! `scripts/show-placement` prints what is checked here.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::headers::{self, HeaderFile};
use crate::published::publish;
use crate::support::hub::StandInHub;
use crate::support::{Outcome, Repository, Running, list, number, text};

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

/// The lab's repository with its lock, and its inventory.
struct World {
    repository: Repository,
    hub: StandInHub,
    inventory: Value,
}

impl World {
    fn new() -> Self {
        let repository = Repository::empty();
        copy(&data().join("lab/models"), &repository, "models");
        copy(&data().join("placement/policies"), &repository, "policies");
        copy(&data().join("placement/suppose"), &repository, "suppose");
        repository.write("cluster.kdl", read("placement/cluster.kdl"));
        let world = Self { repository, hub: StandInHub::start(), inventory: inventory() };
        world.publish("lab/Mixtral-8x7B", "mistralai/Mixtral-8x7B-v0.1");
        world.publish("lab/Mistral-7B-Instruct", "mistralai/Mistral-7B-Instruct-v0.3");
        world.lock("the lab");
        world
    }

    /// A repository of the hub with 16, 8 and 4 bits.
    fn publish(&self, repository: &str, network: &str) {
        let row = headers::row(network).expect("a row of the table");
        let of = |quantisation: &str| -> Vec<HeaderFile> {
            headers::safetensors(&row, quantisation, 4).expect("a known class")
        };
        let parts = [("", of("bf16")), ("fp8", of("fp8")), ("awq", of("awq-int4"))];
        publish(&self.hub, repository, &json!({}), &parts);
    }

    /// Pins what the hub has and commits.
    fn lock(&self, message: &str) {
        let mut command = self.repository.command();
        command.env("HF_ENDPOINT", self.hub.endpoint()).env("HF_HOME", self.repository.beside("hub")).arg("lock");
        Running::start(command).finish(Duration::from_secs(300)).expect(0);
        self.repository.commit(message);
    }

    /// One more file of models.
    fn add(&self, file: &str) {
        let own = self.repository.path("cluster.kdl");
        let before = std::fs::read_to_string(own).expect("it is there");
        self.repository.write("cluster.kdl", format!("{before}\n{}", read(&format!("placement/{file}"))));
        self.lock(file);
    }

    /// Runs a command on the inventory, shows it where that is asked for, and returns both.
    fn shown(&self, arguments: &[&str]) -> Outcome {
        let file = self.repository.beside("inventory.json");
        std::fs::write(&file, self.inventory.to_string()).expect("a writable folder");
        let file = file.display().to_string();
        let outcome = self.repository.flock(&[arguments, &["--inventory", &file]].concat());
        if std::env::var_os("FLOCK_SHOW").is_some() {
            eprintln!("$ flock {} --inventory lab-inventory.json\n{}\n", arguments.join(" "), outcome.stdout);
        }
        outcome
    }

    fn json(&self, arguments: &[&str]) -> (Outcome, Value) {
        if std::env::var_os("FLOCK_SHOW").is_some() {
            self.shown(arguments);
        }
        let file = self.repository.beside("inventory.json");
        std::fs::write(&file, self.inventory.to_string()).expect("a writable folder");
        let file = file.display().to_string();
        let outcome = self.repository.flock(&[arguments, &["--inventory", &file, "--format", "json"]].concat());
        let document = outcome.json();
        (outcome, document)
    }

    /// What a plan starts runs, and its weights are there.
    fn apply(&mut self, plan: &Value) {
        for instance in list(plan, "/instances") {
            let name = text(instance, "/node");
            let nodes = self.inventory["nodes"].as_array_mut().expect("nodes");
            let node = nodes.iter_mut().find(|node| node["name"] == name).expect("a node of the inventory");
            let spec = &instance["spec"];
            let mut own = json!({
                "state": "ready", "running": true, "pid": 1000, "starts": 1, "live_sessions": 1, "load_ms": 60_000,
            });
            for field in ["instance", "specification", "model", "replica", "engine", "variant", "accelerators", "port"]
            {
                own[field] = spec[field].clone();
            }
            node["instances"].as_array_mut().expect("instances").push(own);
        }
        for step in list(plan, "/steps").iter().filter(|step| step["verb"] == "fetch") {
            let nodes = self.inventory["nodes"].as_array_mut().expect("nodes");
            let node = nodes.iter_mut().find(|node| node["name"] == step["node"]).expect("a node of the inventory");
            let fetch = &step["fetch"]["fetch"];
            let found = json!({
                "source": fetch["source"], "revision": fetch["revision"], "path": fetch["folder"], "files": [],
                "size_bytes": step["download_bytes"], "complete": true,
            });
            node["weights"].as_array_mut().expect("weights").push(found);
        }
    }
}

fn read(name: &str) -> String {
    std::fs::read_to_string(data().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The recorded lab without its laptop, which has no accelerator.
fn inventory() -> Value {
    let mut inventory: Value = serde_json::from_str(&read("lab-inventory.json")).expect("valid");
    inventory["nodes"].as_array_mut().expect("nodes").retain(|node| node["name"] != "laptop");
    inventory
}

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

fn of<'a>(plan: &'a Value, model: &str) -> Vec<&'a Value> {
    list(plan, "/instances").iter().filter(|one| text(one, "/model") == model).collect()
}

/// Steps that end or move what runs: verb and model.
fn displaced(plan: &Value) -> Vec<(&str, &str)> {
    let steps = list(plan, "/steps").iter();
    let ends = steps.filter(|s| ["stop", "move", "change", "restart"].contains(&text(s, "/verb")));
    ends.map(|s| (text(s, "/verb"), text(s, "/model"))).collect()
}

#[test]
fn the_lab_has_a_place_for_all_and_says_why() {
    let world = World::new();
    let (outcome, plan) = world.json(&["plan"]);
    outcome.expect(0);
    assert_eq!(number(&plan, "/summary/unplaced"), 0, "{outcome}");
    assert_eq!(plan["solver"]["deterministic"], true);
    for tier in list(&plan, "/solver/tiers").iter().filter(|t| text(t, "/name").contains("replicas")) {
        assert_eq!(tier["gap"], 0.0, "{tier:#}");
    }
    let llava = of(&plan, "llava");
    assert!(llava.len() == 1 && text(llava[0], "/node") == "a100", "{outcome}");
    // 87 GiB of weights are for two large cards, or a lesser variant.
    let mixtral = of(&plan, "mixtral");
    assert_eq!(mixtral.len(), 1, "{outcome}");
    assert_eq!((text(mixtral[0], "/node"), text(mixtral[0], "/variant")), ("a100", "bf16"), "{outcome}");
    assert_eq!(number(mixtral[0], "/tensor_parallel"), 2);
    let coder = of(&plan, "coder");
    assert!(coder.len() == 1 && text(coder[0], "/variant") == "bf16", "{outcome}");
    for model in ["mixtral", "coder"] {
        world.shown(&["explain", model]).expect(0).expect_says(model);
    }
}

#[test]
fn what_a_purchase_or_a_loss_would_change_is_said() {
    let mut world = World::new();
    let (_, plan) = world.json(&["plan"]);
    world.apply(&plan);
    for file in ["third-workstation", "second-server"] {
        let file = world.repository.path(&format!("suppose/{file}.kdl")).display().to_string();
        // All of them have their place already.
        world.shown(&["plan", "--what-if", &file]).expect(0).expect_says("nothing changes for any model");
    }
    let lost = world.repository.path("suppose/server-lost.kdl").display().to_string();
    let outcome = world.shown(&["plan", "--what-if", &lost]);
    // Nobody else has the label that the images' model requires.
    outcome.expect(4).expect_says("llava");
}

#[test]
fn a_production_model_displaces_lower_ranks_only_where_that_helps() {
    let mut world = World::new();
    let (_, plan) = world.json(&["plan"]);
    world.apply(&plan);
    let (outcome, again) = world.json(&["plan"]);
    assert_eq!(list(&again, "/steps").len(), 0, "{outcome}");

    // 131 GiB of weights in 16 bits need two large cards, which are all taken.
    world.publish("lab/Llama-3.3-70B-Instruct", "meta-llama/Llama-3.3-70B-Instruct");
    world.add("production-70b.kdl");
    let (outcome, plan) = world.json(&["plan"]);
    let judge = of(&plan, "judge");
    assert_eq!(judge.len(), 1, "{outcome}");
    assert_eq!((text(judge[0], "/node"), number(judge[0], "/tensor_parallel")), ("a100", 2), "{outcome}");
    let ends = displaced(&plan);
    assert!(!ends.is_empty() && ends.iter().all(|(_, model)| *model != "llava"), "{ends:?}");
    let shown = world.shown(&["plan"]);
    shown.expect_says("judge");
}

#[test]
fn where_nothing_that_leaves_would_help_nothing_leaves() {
    let mut world = World::new();
    let (_, plan) = world.json(&["plan"]);
    world.apply(&plan);
    // 438 GiB in 16 bits are more than all large cards together.
    world.publish("lab/Qwen3-235B-A22B", "Qwen/Qwen3-235B-A22B");
    world.add("too-large.kdl");
    let (outcome, plan) = world.json(&["plan"]);
    outcome.expect(4);
    assert_eq!(of(&plan, "giant").len(), 0, "{outcome}");
    assert_eq!(displaced(&plan), [], "{outcome}");
    world.shown(&["explain", "giant"]).expect_says("giant");
}
