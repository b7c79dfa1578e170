//! One model with several variants on a small and a large node: each takes the best that fits it, and says why not a
//! better one.

use std::time::Duration;

use serde_json::{Value, json};

use crate::headers;
use crate::published::publish;
use crate::support::hub::StandInHub;
use crate::support::lab::{Lab, three_hosts};
use crate::support::{Outcome, Repository, Running, list, number, text};

/// vLLM cannot run here: a program that tells its version is all that a plan asks of it.
const VLLM: &str = "printf '#!/bin/sh\\necho 0.11.0\\n' > /opt/lab/vllm && chmod 755 /opt/lab/vllm";

struct World {
    lab: Lab,
    hub: StandInHub,
    repository: Repository,
}

impl World {
    /// One node with a card of 24 GB and one with a card of 80 GB, and a model of 32.8 billion parameters on the hub:
    /// in 16 bits, and in others' 8 and 4 bits.
    fn up(model: &str) -> Self {
        let mut hosts = three_hosts();
        hosts.truncate(2);
        hosts.iter_mut().for_each(|host| host.gpus.truncate(1));
        let lab = Lab::up(&hosts);
        for host in lab.hosts() {
            lab.run(host, &["sh", "-c", VLLM]).expect(0);
        }
        let hub = StandInHub::start();
        let row = headers::row("Qwen/Qwen2.5-32B-Instruct").expect("in the table");
        let of = |kind: &str| vec![("", headers::safetensors(&row, kind, 4).expect("a known class"))];
        publish(&hub, "lab/Qwen-32B", &json!({ "license": "apache-2.0" }), &of("bf16"));
        let made = json!({ "license": "apache-2.0", "base_model": "lab/Qwen-32B", "relation": "quantized" });
        publish(&hub, "quants/Qwen-32B-FP8", &made, &of("fp8-tensor"));
        publish(&hub, "quants/Qwen-32B-AWQ", &made, &of("awq-int4"));
        let gguf = |kind: &str| headers::gguf(&row, kind, &format!("Qwen-32B-{kind}"), 1).expect("a known type");
        let files = ["BF16", "Q8_0", "Q6_K", "Q4_K_M"].iter().flat_map(|kind| gguf(kind)).collect();
        publish(&hub, "quants/Qwen-32B-GGUF", &made, &[("", files)]);
        let repository = lab.repository(&config(model));
        let world = Self { lab, hub, repository };
        world.flock(&["lock"]).expect(0);
        world.repository.commit("locked");
        world
    }

    fn flock(&self, arguments: &[&str]) -> Outcome {
        let mut command = self.repository.command();
        command.env("HF_ENDPOINT", self.hub.endpoint()).env("HF_HOME", self.repository.beside("hub"));
        command.args(arguments);
        Running::start(command).finish(Duration::from_secs(300))
    }

    /// What the hosts say, but for their disk and memory: those of this machine are too small for real weights.
    fn facts(&self) -> String {
        let file = self.repository.beside("inventory.json").display().to_string();
        self.repository.flock(&["discover", "--no-measure", "--out", &file]).expect(0);
        let read = std::fs::read_to_string(&file).expect("it was written");
        let mut facts: Value = serde_json::from_str(&read).expect("JSON");
        for node in facts["nodes"].as_array_mut().expect("nodes") {
            node["ram"] = json!({ "total_bytes": 256_u64 << 30, "available_bytes": 250_u64 << 30 });
            for disk in node["disks"].as_array_mut().expect("disks") {
                disk["total_bytes"] = json!(4_u64 << 40);
                disk["free_bytes"] = json!(2_u64 << 40);
            }
        }
        std::fs::write(&file, facts.to_string()).expect("it is written");
        file
    }

    /// The plan from facts, as a program reads it; shown as people see it with `FLOCK_SHOW`.
    fn plan(&self, facts: &str, more: &[&str], code: i32) -> Value {
        let arguments = [&["plan", "--inventory", facts], more].concat();
        if std::env::var_os("FLOCK_SHOW").is_some() {
            eprintln!("$ flock plan {}\n{}", more.join(" "), self.repository.flock(&arguments).stdout);
        }
        self.repository.flock(&[&arguments[..], &["--format", "json"]].concat()).expect(code).json()
    }
}

fn config(model: &str) -> String {
    format!("engine \"vllm\" {{ path \"/opt/lab/vllm\" }}\n{model}")
}

const SAFETENSORS: &str = "model \"chat\" {\n    source \"hf:lab/Qwen-32B\"\n    weights-from \"quants\"\n    \
    engine \"vllm\"\n    context 4096\n    replicas min=1 max=2\n    place { spread by=\"node\" }\n}\n";

fn on<'p>(plan: &'p Value, node: &str) -> &'p Value {
    let instance = list(plan, "/instances").iter().find(|instance| text(instance, "/node") == node);
    instance.unwrap_or_else(|| panic!("nothing on {node}: {:#}", plan["unplaced"]))
}

fn better(instance: &Value) -> Vec<(&str, &str)> {
    let all = instance.get("better").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    all.iter().map(|one| (text(one, "/variant"), text(one, "/reason"))).collect()
}

#[test]
fn a_small_and_a_large_node_take_different_variants_of_one_model() {
    let world = World::up(SAFETENSORS);
    let facts = world.facts();
    let plan = world.plan(&facts, &[], 0);
    let (large, small) = (on(&plan, "big"), on(&plan, "small"));
    let sizes = |instance: &Value| number(instance, "/memory/per_accelerator/0/weights_bytes") >> 30;
    // 61 GiB in 16 bits, 32 in 8, 18 in 4.
    assert_eq!((sizes(large), sizes(small)), (61, 18), "{plan:#}");
    assert!(text(large, "/variant").starts_with("bf16") && better(large).is_empty(), "{large:#}");
    // The repository of GGUF files is no choice for vLLM.
    let reasons: Vec<&str> = better(small).iter().filter(|(id, _)| !id.starts_with("gguf:")).map(|(_, r)| *r).collect();
    let expected =
        ["needs 61.0 GiB for its weights, 1 x 23.0 usable", "needs 32.0 GiB for its weights, 1 x 23.0 usable"];
    assert_eq!(reasons, expected, "{small:#}");
    assert!(text(small, "/because").ends_with("needs 32.0 GiB for its weights, 1 x 23.0 usable"), "{small:#}");
    // Each fetches its own.
    let fetched: Vec<u64> = list(&plan, "/steps")
        .iter()
        .filter(|s| text(s, "/verb") == "fetch")
        .map(|s| number(s, "/download_bytes") >> 30)
        .collect();
    assert_eq!(fetched.len(), 2, "{plan:#}");
    let shown = world.repository.flock(&["plan", "--inventory", &facts]);
    let words: Vec<&str> = shown.expect(0).stdout.split_whitespace().collect();
    let line = "awq-int4 is the best variant that fits, on one accelerator; fp8 needs 32.0 GiB for its weights, 1 x 23.0 usable";
    assert!(words.join(" ").contains(line), "{shown}");
    let markdown = world.repository.flock(&["plan", "--inventory", &facts, "--format", "markdown"]);
    markdown.expect(0).expect_says("needs 32.0 GiB for its weights, 1 x 23.0 usable");
    let explained = world.repository.flock(&["explain", "chat", "--inventory", &facts]);
    if std::env::var_os("FLOCK_SHOW").is_some() {
        eprintln!("$ flock explain chat\n{}", explained.stdout);
    }
    explained.expect(0).expect_says("best first").expect_says("taken for 1 replica");
    // The same facts give the same plan.
    assert_eq!(world.plan(&facts, &[], 0), plan);

    // Without the large node: one replica has no place, and the small node keeps its choice.
    world.repository.write("cluster.kdl", world.lab.cluster_without("big", &config(SAFETENSORS)));
    let alone = world.plan(&facts, &[], 0);
    assert_eq!(list(&alone, "/instances").len(), 1);
    assert_eq!(text(on(&alone, "small"), "/variant"), text(small, "/variant"));
    assert_eq!(number(&alone, "/unplaced/0/replicas"), 1);
    assert_eq!(alone["unplaced"][0]["required"], false);
    assert_eq!(text(&alone, "/unplaced/0/nearest"), "one more `node` to spread to, or fewer replicas");

    // Nothing below 8 bits is allowed, and there is the small node alone: what would help is said.
    let least = SAFETENSORS.replace("context 4096", "quality min=\"fp8\"\n    context 4096");
    world.repository.write("cluster.kdl", world.lab.cluster_without("big", &config(&least)));
    let none = world.plan(&facts, &[], 4);
    let nearest = text(&none, "/unplaced/0/nearest");
    assert!(
        nearest.contains("(the config says `quality min=\"fp8\"`)") && nearest.contains("a variant of at most"),
        "{nearest}"
    );
}

#[test]
fn gguf_quantisations_are_chosen_by_node_too() {
    let model = SAFETENSORS
        .replace("hf:lab/Qwen-32B", "hf:quants/Qwen-32B-GGUF")
        .replace("    weights-from \"quants\"\n", "")
        .replace("engine \"vllm\"", "engine \"llama.cpp\"");
    let world = World::up(&model);
    let facts = world.facts();
    let plan = world.plan(&facts, &[], 0);
    let variants = (text(on(&plan, "big"), "/variant"), text(on(&plan, "small"), "/variant"));
    assert_eq!(variants, ("gguf:bf16", "gguf:Q4_K_M"), "{plan:#}");
    let reasons = better(on(&plan, "small"));
    assert_eq!(
        reasons.iter().map(|(variant, _)| *variant).collect::<Vec<_>>(),
        ["gguf:bf16", "gguf:Q8_0", "gguf:Q6_K"]
    );
    assert!(reasons[2].1.starts_with("needs ") && reasons[2].1.ends_with("1 x 23.0 usable"), "{reasons:?}");
}
