//! Shapes over several nodes: llama.cpp with workers.

use serde_json::json;

use super::inputs::{CARD, inventory, run, weights};
use super::variants::{gguf, llama_70b, qwen_32b};
use crate::base::GIB;
use crate::inventory::{InstanceFacts, Inventory};
use crate::placement::*;

/// Nodes of the config at 10.0.0.N, and the model, which may be over several.
fn config(nodes: &[&str], more: &str) -> String {
    let mut text = String::new();
    for (number, name) in nodes.iter().enumerate() {
        text.push_str(&format!("node \"{name}\" address=\"10.0.0.{}\"\n", number + 1));
    }
    format!("{text}model \"m\" {{ source \"path:/m\"; engine \"llama.cpp\"; context 4096; place {{ {more} }} }}\n")
}

/// Every node has an engine and its worker, and the ways between them are measured.
fn joined(mut inventory: Inventory, rtt_us: u64) -> Inventory {
    let names: Vec<String> = inventory.nodes.iter().map(|node| node.name.clone()).collect();
    for node in &mut inventory.nodes {
        let engine = json!([{ "kind": "llama.cpp", "version": "b9999", "path": "/opt/llama/llama-server",
            "rpc_server": "/opt/llama/ggml-rpc-server" }]);
        node.engines = serde_json::from_value(engine).unwrap();
    }
    for (at, from) in names.iter().enumerate() {
        for to in &names[at + 1..] {
            let link = json!({ "from": from, "to": to, "rtt_us": rtt_us, "bandwidth_bytes_per_s": 117_000_000u64,
                "measured": true });
            inventory.links.push(serde_json::from_value(link).unwrap());
        }
    }
    inventory
}

fn only(placement: &Placement) -> &Placed {
    assert_eq!(placement.instances.len(), 1, "{:#?}\n{:#?}", placement.unplaced, placement.considered);
    &placement.instances[0]
}

fn within(placed: &Placed) {
    let parts = placed.elsewhere.iter().map(|part| (&part.per_accelerator, &part.host));
    for (devices, host) in std::iter::once((&placed.per_accelerator, &placed.host)).chain(parts) {
        assert!(devices.iter().chain([host]).all(|m| m.total_bytes() <= m.capacity_bytes), "{devices:?} {host:?}");
    }
}

/// What a placement means as running instances of the inventory.
fn running(inventory: &Inventory, placed: &Placed, label: &str) -> Inventory {
    let mut next = inventory.clone();
    let nodes: Vec<&String> =
        std::iter::once(&placed.node).chain(placed.elsewhere.iter().map(|part| &part.node)).collect();
    let mut add = |node: &str, id: &str, accelerators: &[String], layers: &[u32]| {
        let facts = json!({ "instance": id, "specification": "sha256:0", "model": "m", "replica": 0, "variant": label,
            "engine": "llama.cpp", "accelerators": accelerators, "layers": layers, "port": 20000, "state": "ready",
            "running": true, "part": { "instance": "serving", "nodes": nodes } });
        let facts: InstanceFacts = serde_json::from_value(facts).unwrap();
        next.nodes.iter_mut().find(|found| found.name == node).unwrap().instances.push(facts);
    };
    add(&placed.node, "serving", &placed.accelerators, &placed.layers);
    for part in &placed.elsewhere {
        add(&part.node, &format!("worker-{}", part.node), &part.accelerators, &[]);
    }
    next
}

#[test]
fn a_model_that_fits_no_node_is_shared_out_over_the_fewest() {
    let three = joined(inventory(&[("a", &[CARD]), ("b", &[CARD]), ("c", &[CARD])]), 100);
    let candidates = weights("m", vec![gguf(&llama_70b()[0], "Q3_K_M", 34_000_000_000)]);
    let nodes = ["a", "b", "c"];
    let refused = run(&config(&nodes, ""), &three, &candidates);
    assert!(refused.instances.is_empty() && refused.considered.iter().all(|c| !c.verdict.contains("over several")));
    let nearest = &refused.unplaced[0].nearest;
    assert!(nearest.contains("`allow nodes=#true`: it would run over 2 nodes: "), "{nearest}");
    let text = config(&nodes, "allow nodes=#true");
    let placement = run(&text, &three, &candidates);
    let placed = only(&placement);
    assert_eq!((placed.accelerators.len(), placed.elsewhere.len()), (1, 1), "{placed:#?}");
    assert_eq!((placed.layers.len(), placed.layers.iter().sum::<u32>(), placed.pipeline_parallel), (2, 80, 2));
    assert!(placed.because.contains("over 2 nodes: "), "{}", placed.because);
    let worker = placed.elsewhere[0].worker.as_ref().expect("a worker");
    assert!(worker.0 == "/opt/llama/ggml-rpc-server" && worker.1.starts_with("10.0.0."), "{worker:?}");
    within(placed);
    // The output head is where the answer is wanted: the last layers are those of the node that serves.
    let (own, there) = (placed.per_accelerator[0], placed.elsewhere[0].per_accelerator[0]);
    let each = |memory: PlacedMemory, layers: u32| memory.weights_bytes / u64::from(layers);
    assert!(each(own, placed.layers[0]) > each(there, placed.layers[1]), "{own:?} {there:?}");

    // What runs so stays, also where nothing new may come.
    let placed = placed.clone();
    let next = running(&three, &placed, "gguf:Q3_K_M");
    let kept = run(&text, &next, &candidates);
    assert_eq!((only(&kept).because.as_str(), &only(&kept).elsewhere), ("already runs here", &placed.elsewhere));
    let mut held = next.clone();
    held.member.holds.push(
        serde_json::from_value(json!({ "node": placed.elsewhere[0].node, "reason": "fan",
        "by": "ada", "since": "" }))
        .unwrap(),
    );
    let kept = run(&text, &held, &candidates);
    assert_eq!((only(&kept).because.as_str(), &only(&kept).elsewhere), ("already runs here", &placed.elsewhere));

    // So it does where the cluster has grown large.
    let mut large = next.clone();
    let names: Vec<String> = (0..30).map(|number| format!("n{number:02}")).collect();
    let more: Vec<(&str, &[super::inputs::Card])> = names.iter().map(|name| (name.as_str(), &[CARD][..])).collect();
    let others = inventory(&more);
    large.nodes.extend(others.nodes);
    let all: Vec<&str> = nodes.iter().copied().chain(names.iter().map(String::as_str)).collect();
    let kept = run(&config(&all, "allow nodes=#true"), &large, &candidates);
    assert_eq!(only(&kept).because, "already runs here");
    assert_eq!(only(&kept).elsewhere[0].accelerators, placed.elsewhere[0].accelerators);

    // With one of its nodes gone it is put on the others.
    let mut lost = next.clone();
    let gone = placed.elsewhere[0].node.clone();
    lost.nodes.iter_mut().find(|node| node.name == gone).unwrap().reachable = false;
    let moved = run(&text, &lost, &candidates);
    assert!(only(&moved).node != gone && only(&moved).elsewhere.iter().all(|part| part.node != gone));
}

#[test]
fn one_node_that_is_as_fast_is_enough() {
    let pair = joined(inventory(&[("a", &[CARD, CARD]), ("b", &[CARD])]), 100);
    let text = config(&["a", "b"], "allow nodes=#true");
    let candidates = weights("m", vec![gguf(&llama_70b()[0], "Q3_K_M", 34_000_000_000)]);
    let placement = run(&text, &pair, &candidates);
    assert_eq!((only(&placement).accelerators.len(), only(&placement).elsewhere.len()), (2, 0));
    assert!(placement.considered.iter().all(|c| !c.verdict.contains("over 2 nodes")), "{:#?}", placement.considered);
}

#[test]
fn no_more_accelerators_are_taken_than_are_needed() {
    let four = [CARD, CARD, CARD, CARD];
    let pair = joined(inventory(&[("a", &four[..2]), ("b", &four)]), 100);
    // 101 GiB of weights: five of six cards of 22 GiB.
    let candidates = weights("m", vec![gguf(&llama_70b()[0], "Q8_0", 100_000_000_000)]);
    let text = config(&["a", "b"], "allow nodes=#true");
    let placement = run(&text, &pair, &candidates);
    let placed = only(&placement);
    let there = &placed.elsewhere[0];
    assert_eq!(placed.accelerators.len() + there.accelerators.len(), 5, "{:?}", placed.layers);
    assert_eq!((placed.layers.len(), placed.layers.iter().sum::<u32>()), (5, 80));
    within(placed);
    let kept = run(&text, &running(&pair, placed, "gguf:Q8_0"), &candidates);
    assert_eq!((only(&kept).because.as_str(), &only(&kept).accelerators), ("already runs here", &placed.accelerators));
    assert_eq!(only(&kept).elsewhere, placed.elsewhere);
}

#[test]
fn processors_work_together_and_a_slow_way_costs_speed() {
    let small = |ram: u64| {
        let mut pair = joined(inventory(&[("a", &[]), ("b", &[])]), 100);
        for node in &mut pair.nodes {
            node.ram.total_bytes = Some(ram);
            node.ram.available_bytes = Some(ram);
        }
        pair
    };
    let candidates = weights("m", vec![gguf(&qwen_32b()[0], "Q4_K_M", 19_800_000_000)]);
    let text = |more: &str| config(&["a", "b"], more);
    let none = run(&text("allow nodes=#true"), &small(20 * GIB), &candidates);
    assert!(none.instances.is_empty());
    let placement = run(&text("allow nodes=#true cpu=#true"), &small(20 * GIB), &candidates);
    let placed = only(&placement);
    assert_eq!((placed.accelerators.len(), placed.elsewhere.len(), placed.layers.len()), (0, 1, 1));
    assert!(placed.layers[0] > 0 && placed.layers[0] < 64, "{:?}", placed.layers);
    assert!(placed.elsewhere[0].accelerators.is_empty() && placed.elsewhere[0].host.weights_bytes > 0);
    assert!(placed.because.contains("over 2 nodes: a's CPU ("), "{}", placed.because);
    within(placed);
    let kept =
        run(&text("allow nodes=#true cpu=#true"), &running(&small(20 * GIB), placed, "gguf:Q4_K_M"), &candidates);
    assert_eq!((only(&kept).because.as_str(), &only(&kept).layers), ("already runs here", &placed.layers));

    // Every token goes to the worker and back.
    let speed = |rtt_us: u64| {
        let mut far = small(20 * GIB);
        far.links[0].rtt_us = Some(rtt_us);
        let desired = super::inputs::desired(&text("allow nodes=#true cpu=#true"));
        let problem = build(&desired, &far, &candidates, &Options::default());
        problem.models[0].shapes.iter().find(|shape| shape.spans_nodes()).and_then(|shape| shape.speed).unwrap()
    };
    let (near, far) = (1.0 / speed(100), 1.0 / speed(50_100));
    assert!((far - near - 0.1).abs() < 1e-6, "{near} {far}");
}

/// What is said, and what is changed for it.
type Case = (&'static str, fn(&mut Inventory, &mut String));

#[test]
fn every_part_must_be_of_one_build_and_within_reach() {
    let base = || joined(inventory(&[("a", &[CARD]), ("b", &[CARD])]), 100);
    let candidates = weights("m", vec![gguf(&llama_70b()[0], "Q3_K_M", 34_000_000_000)]);
    let plain = config(&["a", "b"], "allow nodes=#true");
    let cases: [Case; 6] = [
        ("has no ggml-rpc-server beside its llama-server", |inventory, _| {
            for node in &mut inventory.nodes {
                node.engines.as_mut().unwrap()[0].rpc_server = None;
            }
        }),
        ("all parts must be of one build", |inventory, _| {
            inventory.nodes[1].engines.as_mut().unwrap()[0].version = Some("b9998".to_owned());
        }),
        ("is not measured (`flock discover` measures it)", |inventory, _| inventory.links.clear()),
        ("is not measured (`flock discover` measures it)", |inventory, _| {
            inventory.links[0].bandwidth_bytes_per_s = None;
        }),
        ("has no IPv4 address in the config", |_, text| {
            *text = text.replace("10.0.0.1", "a.example.org").replace("10.0.0.2", "b.example.org");
        }),
        ("vllm across nodes needs Ray, which is not offered", |_, text| {
            *text = text.replace("engine \"llama.cpp\"", "engine \"vllm\" \"llama.cpp\"");
            *text = text.replace("context 4096", "context 4096; quality min=\"f32\"");
        }),
    ];
    for (wanted, change) in cases.iter().take(5) {
        let (mut inventory, mut text) = (base(), plain.clone());
        change(&mut inventory, &mut text);
        let placement = run(&text, &inventory, &candidates);
        assert!(placement.instances.is_empty(), "{wanted}");
        let said = placement.considered.iter().any(|c| c.verdict.contains(wanted));
        let refused = placement.unplaced[0].reasons.iter().any(|reason| reason.text.contains(wanted));
        assert!(said || refused, "{wanted}: {:#?} {:#?}", placement.considered, placement.unplaced);
    }
    // One way round is enough: the one without a worker serves.
    let mut one = base();
    one.nodes[0].engines.as_mut().unwrap()[0].rpc_server = None;
    assert_eq!(only(&run(&plain, &one, &candidates)).node, "a");
    let vllm = plain.replace("engine \"llama.cpp\"", "engine \"vllm\"");
    let placement = run(&vllm, &base(), &weights("m", vec![super::variants::llama_70b().remove(0)]));
    let wanted = cases[5].0;
    let said = placement.considered.iter().any(|c| c.verdict.contains(wanted));
    assert!(said || placement.unplaced[0].reasons.iter().any(|r| r.text.contains(wanted)), "{:#?}", placement.unplaced);
}
