//! What runs stays when facts change under it, and who finds no port on a node goes to another one.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::{Outcome, Repository, list, number, text};

const MODEL: &str = "deepseek-coder-33B-instruct-AWQ";
const RANKS: &str = "priority \"high\" rank=100 preempts=#true\n";

/// A repository with the model in a folder, with these nodes and rules.
fn repository(nodes: &str, more: &str) -> Repository {
    let repository = Repository::empty();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/lab/models").join(MODEL);
    for file in ["config.json", "model.safetensors.index.json"] {
        repository.write(&format!("models/{file}"), std::fs::read(folder.join(file)).expect("it is there"));
    }
    let model = |name: &str, rules: &str| {
        format!("model \"{name}\" {{ source \"path:models\"; engine \"vllm\"; context 1024; {rules} }}\n")
    };
    let more =
        more.replace("MODEL coder", &model("coder", "")).replace("MODEL first", &model("first", "priority \"high\""));
    let engine = "engine \"vllm\" version=\"0.11.0\" { path \"/opt/vllm/bin/vllm\" }\n";
    repository.write(
        "cluster.kdl",
        format!("cluster \"lab\" {{ reserve vram=\"1GiB\" ram=\"8GiB\" }}\n{nodes}{engine}{more}"),
    );
    repository.commit("facts");
    repository
}

fn node(name: &str) -> Value {
    let total = 24_564_u64 << 20;
    json!({ "name": name, "ram": { "total_bytes": 256_u64 << 30, "available_bytes": 250_u64 << 30 },
        "engines": [{ "kind": "vllm", "version": "0.11.0", "path": "/opt/vllm/bin/vllm" }],
        "accelerators": [{ "uuid": format!("GPU-{name}"), "name": "NVIDIA GeForce RTX 4090", "compute_capability": "8.9",
            "memory": { "total_bytes": total, "free_bytes": total - (500 << 20), "reserved_bytes": 427_u64 << 20 } }] })
}

fn plan(repository: &Repository, nodes: &[Value]) -> Outcome {
    let inventory = json!({ "format": 1, "nodes": nodes });
    std::fs::write(repository.beside("inventory.json"), inventory.to_string()).expect("a writable folder");
    let file = repository.beside("inventory.json").display().to_string();
    repository.flock(&["plan", "--inventory", &file, "--format", "json"])
}

/// The node with everything running that a plan starts there, and what it holds counted.
fn runs(mut node: Value, plan: &Value) -> Value {
    for one in list(plan, "/instances") {
        let held = number(one, "/memory/per_accelerator/0/total_bytes");
        let memory = &mut node["accelerators"][0]["memory"];
        memory["free_bytes"] = json!(memory["free_bytes"].as_u64().expect("a number") - held);
        node["accelerators"][0]["processes"] = json!([{ "pid": 7, "used_bytes": held, "ours": true }]);
        node["instances"] = json!([{ "instance": one["instance"], "specification": one["specification"],
            "model": one["model"], "replica": one["replica"], "engine": one["engine"], "variant": one["variant"],
            "accelerators": one["accelerators"], "port": one["port"], "state": "ready", "running": true, "pid": 7 }]);
        node["ports_in_use"] = json!([22, one["port"]]);
    }
    node
}

fn messages(plan: &Value) -> Vec<&str> {
    list(plan, "/warnings").iter().map(|warning| text(warning, "/message")).collect()
}

/// What becomes of a node's facts.
type Change = fn(&mut Value);

#[test]
fn no_fact_alone_stops_what_runs() {
    let repository = repository("node \"a\" address=\"10.0.0.1\"\n", "MODEL coder");
    let first = plan(&repository, &[node("a")]).expect(0).json();
    assert_eq!(list(&first, "/instances").len(), 1);
    let at_rest = runs(node("a"), &first);
    let changes: [(&str, Change, &str); 5] = [
        ("nothing", |_| {}, ""),
        ("upgrade", |a| a["engines"][0]["version"] = json!("0.12.0"), "vllm is 0.12.0 here, the config wants 0.11.0"),
        ("not found", |a| a["engines"] = json!([]), "vllm was not found on this node"),
        ("host memory", |a| a["ram"]["available_bytes"] = json!(9_u64 << 30), "of host memory"),
        ("driver", |a| a["accelerators"][0]["memory"]["reserved_bytes"] = json!(6_u64 << 30), "the largest usable is"),
    ];
    for (name, change, said) in changes {
        let mut now = at_rest.clone();
        change(&mut now);
        let outcome = plan(&repository, &[now]);
        let found = outcome.expect(0).json();
        assert!(list(&found, "/steps").is_empty(), "{name}: {outcome}");
        assert_eq!(number(&found, "/summary/unchanged"), 1, "{name}");
        assert_eq!(text(&found, "/instances/0/instance"), text(&first, "/instances/0/instance"), "{name}");
        let keeps = |message: &&str| message.contains("`coder` keeps running on `a`") && message.contains(said);
        assert_eq!(messages(&found).iter().any(keeps), !said.is_empty(), "{name}: {outcome}");
    }
    // What does not run is not kept by that: its engine is not there.
    let mut dead = at_rest;
    dead["engines"] = json!([]);
    dead["instances"][0]["state"] = json!("failed");
    dead["instances"][0]["running"] = json!(false);
    plan(&repository, &[dead]).expect(4);
}

#[test]
fn a_node_whose_ports_are_taken_is_no_place_and_the_refusal_says_so() {
    let range = |name: &str| format!("node \"{name}\" address=\"{name}\" {{ ports \"20000-20004\" }}\n");
    let repository = repository(&(range("a") + &range("b")), "MODEL coder");
    let taken = |name: &str| {
        let mut node = node(name);
        node["ports_in_use"] = json!([20_000, 20_001, 20_002]);
        node
    };
    let found = plan(&repository, &[taken("a"), node("b")]).expect(0).json();
    assert_eq!(text(&found, "/instances/0/node"), "b");
    let found = plan(&repository, &[taken("a"), taken("b")]).expect(4).json();
    let reason = &found["unplaced"][0]["reasons"][0];
    assert_eq!((text(reason, "/constraint"), number(reason, "/needed"), number(reason, "/available")), ("port", 5, 2));
    assert_eq!(text(&found, "/unplaced/0/nearest"), "a wider range of `ports` for `a` than \"20000-20004\"");
}

#[test]
fn who_makes_way_gives_its_ports_to_who_comes() {
    let nodes = "node \"a\" address=\"a\" { ports \"20000-20004\" }\n";
    let before = repository(nodes, &format!("{RANKS}MODEL coder"));
    let first = plan(&before, &[node("a")]).expect(0).json();
    let after = repository(nodes, &format!("{RANKS}MODEL coder MODEL first"));
    let found = plan(&after, &[runs(node("a"), &first)]).expect(4).json();
    let of = |verb: &str| list(&found, "/steps").iter().find(|step| text(step, "/verb") == verb).expect("a step");
    let (stop, start) = (of("stop"), of("start"));
    assert_eq!((text(stop, "/model"), text(start, "/model")), ("coder", "first"));
    assert!(list(start, "/after").contains(&stop["id"]), "{found:#}");
    assert_eq!(number(&found, "/instances/0/port"), 20_000);
}
