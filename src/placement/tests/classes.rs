//! Equal nodes are one class, and whatever a model, a policy or the traffic can see makes them two.

use std::collections::BTreeSet;

use super::inputs::{CARD, desired, inventory, llama_8b, mistral_7b, weights};
use super::random::Dice;
use crate::base::{GIB, InstanceState, MIB};
use crate::inventory::{AcceleratorLink, Disk, EngineFound, InstanceFacts, Inventory, NodeFacts, WeightsFound};
use crate::placement::*;

/// Every cluster is a large one.
fn large() -> Options {
    Options { limits: Limits { exact_accelerators: 0, ..Limits::default() }, ..Options::default() }
}

const NODES: &str = "node \"a\" address=\"a\" { label \"rack\" \"r1\"; label \"note\" \"x\" }\n\
                     node \"b\" address=\"b\" { label \"rack\" \"r1\"; label \"note\" \"y\" }\n";

fn model(rules: &str) -> String {
    format!("model \"m\" {{ source \"on-node:/models/m\"; replicas max=2; {rules} }}\n")
}

fn found(kind: crate::base::EngineKind, version: &str) -> Option<Vec<EngineFound>> {
    let version = Some(version.to_owned());
    Some(vec![EngineFound { kind, version, path: "/opt/vllm/bin/vllm".into(), problem: None, rpc_server: None }])
}

fn complete(revision: &str) -> WeightsFound {
    WeightsFound {
        source: "path:m".into(),
        revision: revision.into(),
        path: None,
        files: vec![],
        size_bytes: 0,
        complete: true,
        sha256: None,
        architecture: None,
        variants: vec![],
        problem: None,
    }
}

fn disk(gib: u64) -> Vec<Disk> {
    vec![Disk { path: "/".into(), free_bytes: gib * GIB, total_bytes: 4096 * GIB }]
}

fn runs(model: &str, node: &str, id: &str, card: usize) -> InstanceFacts {
    serde_json::from_value(serde_json::json!({ "instance": id, "specification": "s", "model": model, "replica": 0,
        "engine": "vllm", "variant": "bf16", "accelerators": [format!("{node}#{card}")], "port": 20000,
        "state": InstanceState::Ready, "running": true }))
    .unwrap()
}

type Change = fn(&mut NodeFacts);

#[test]
fn whatever_can_be_seen_makes_two_classes_and_nothing_else_does() {
    let plain = NODES.to_owned() + &model("");
    let with = |rules: &str| NODES.to_owned() + &model(rules);
    let on_b = |words: &str| NODES.replace("\"y\" }", &format!("\"y\"; {words} }}")) + &model("");
    let vllm = crate::base::EngineKind::Vllm;
    let keep: Change = |_| {};
    let cases: Vec<(&str, bool, String, Change)> = vec![
        ("nothing", true, plain.clone(), keep),
        ("identity", true, plain.clone(), |b| b.accelerators[0].uuid = "GPU-7".into()),
        ("kind", false, plain.clone(), |b| b.accelerators[1].name = "NVIDIA A100".into()),
        ("maker", false, plain.clone(), |b| b.accelerators[1].vendor = "amd".into()),
        ("capability", false, plain.clone(), |b| b.accelerators[1].compute_capability = Some("7.0".into())),
        ("bandwidth", false, plain.clone(), |b| b.accelerators[1].bandwidth_bytes_per_s = Some(1)),
        ("health", false, plain.clone(), |b| b.accelerators[1].healthy = false),
        ("number", false, plain.clone(), |b| drop(b.accelerators.pop())),
        ("driver's reserve", false, plain.clone(), |b| b.accelerators[1].memory.reserved_bytes = Some(300 * MIB)),
        ("a little less free", true, plain.clone(), |b| b.accelerators[1].memory.free_bytes = Some(24_000 * MIB)),
        ("much less free", false, plain.clone(), |b| b.accelerators[1].memory.free_bytes = Some(12_000 * MIB)),
        ("unified", false, plain.clone(), |b| b.accelerators[1].memory.unified = true),
        ("MIG", false, plain.clone(), |b| b.accelerators[1].mig_parent = Some("whole".into())),
        ("links", false, plain.clone(), |b| {
            let (a, other) = (b.accelerators[0].uuid.clone(), b.accelerators[1].uuid.clone());
            let link = AcceleratorLink { a, b: other, kind: "nvlink".into(), bandwidth_bytes_per_s: None };
            b.accelerator_links = vec![link];
        }),
        ("a little host memory", true, plain.clone(), |b| b.ram.available_bytes = Some(120 * GIB + 7 * MIB)),
        ("host memory", false, plain.clone(), |b| b.ram.available_bytes = Some(60 * GIB)),
        ("a little disk", true, plain.clone(), |b| b.disks = disk(2010)),
        ("disk", false, plain.clone(), |b| b.disks = disk(900)),
        ("an engine's version", false, plain.clone(), |b| b.engines = found(crate::base::EngineKind::Vllm, "0.10.0")),
        ("which engine", false, plain.clone(), |b| b.engines = found(crate::base::EngineKind::Sglang, "0.11.0")),
        ("its program", false, plain.clone(), |b| {
            b.engines.as_mut().unwrap()[0].path = "/usr/bin/vllm".into();
        }),
        ("no engine that works", false, plain.clone(), |b| {
            b.engines.as_mut().unwrap()[0].problem = Some("broken".into());
        }),
        ("weights", true, plain.clone(), |b| b.weights = vec![complete("sha256:0")]),
        ("what runs", true, plain.clone(), |b| b.instances = vec![runs("m", "b", "i1", 0)]),
        ("away", false, plain.clone(), |b| b.reachable = false),
        ("labels nobody looks at", true, plain.clone(), keep),
        ("a label that is required", false, with("place { require label=\"note\" is=\"y\" }"), keep),
        ("a label that is preferred", false, with("place { prefer label=\"note\" is=\"y\" weight=3 }"), keep),
        ("a label to spread over", false, with("place { spread by=\"note\" }"), keep),
        ("an equal label to spread over", true, with("place { spread by=\"rack\" }"), keep),
        ("spread over nodes", true, with("place { spread by=\"node\" }"), keep),
        ("a node that is named", false, with("place { prefer label=\"node\" is=\"b\" weight=3 }"), keep),
        ("a hold", false, on_b("hold \"disk is full\""), keep),
        ("a reserve", false, on_b("reserve vram=\"4GiB\""), keep),
        ("a site", false, on_b("site \"attic\""), keep),
        ("a price", false, on_b("price \"1.20/h\""), keep),
        ("spot", false, on_b("spot"), keep),
        ("an owner", false, on_b("owner \"vision\""), keep),
        ("ports", true, on_b("ports \"30000-30999\""), keep),
        ("a denial by name", false, plain.clone() + "deny \"d\" { when \"node.name == 'b'\" }\n", keep),
        ("a denial by label", false, plain.clone() + "deny \"d\" { when \"!(node.labels.note == 'y')\" }\n", keep),
        ("a denial of others", true, plain.clone() + "deny \"d\" { when \"node.labels.rack == 'r1'\" }\n", keep),
    ];
    for (what, equal, config, change) in cases {
        let mut facts = inventory(&[("a", &[CARD, CARD]), ("b", &[CARD, CARD])]);
        for node in &mut facts.nodes {
            node.engines = found(vllm, "0.11.0");
            node.disks = disk(2000);
        }
        change(&mut facts.nodes[1]);
        let desired = desired(&config);
        let problem = build(&desired, &facts, &weights("m", vec![llama_8b()]), &large());
        let expected = if equal { vec![vec![0, 1], vec![]] } else { vec![vec![0], vec![1]] };
        assert_eq!(problem.alike, expected, "{what}");
    }
}

#[test]
fn files_on_some_nodes_and_a_disk_too_small_for_others_count() {
    let desired = desired(&(NODES.to_owned() + &model("")));
    let mut facts = inventory(&[("a", &[CARD]), ("b", &[CARD])]);
    let mut candidates = weights("m", vec![llama_8b()]);
    // Both disks are too small to bring the weights; `b` has them.
    facts.nodes.iter_mut().for_each(|node| node.disks = disk(10));
    facts.nodes[1].weights = vec![complete("sha256:0"), complete("sha256:other")];
    let problem = build(&desired, &facts, &candidates, &large());
    assert_eq!(problem.alike, [vec![0], vec![1]]);
    let fetches: BTreeSet<(usize, u64)> = problem.models[0].shapes.iter().map(|s| (s.node, s.fetch_bytes)).collect();
    assert_eq!(fetches, BTreeSet::from([(1, 0)]));
    assert_eq!(problem.nodes[1].weights.len(), 2);
    assert_eq!(problem.models[0].candidates[0].revision, "sha256:0");
    let Some(Ok(list)) = candidates.get_mut("m") else { panic!() };
    list[0].origin = Origin::OnNode { path: "/data/m".into(), nodes: vec!["b".into()] };
    facts.nodes.iter_mut().for_each(|node| node.weights.clear());
    let problem = build(&desired, &facts, &candidates, &large());
    assert_eq!(problem.alike, [vec![0], vec![1]]);
    assert!(problem.models[0].shapes.iter().all(|s| s.node == 1));
}

#[test]
fn a_small_cluster_has_no_classes_and_keeps_every_byte() {
    let desired = desired(&(NODES.to_owned() + &model("")));
    let facts = inventory(&[("a", &[CARD; 12]), ("b", &[CARD; 12])]);
    let problem = build(&desired, &facts, &weights("m", vec![llama_8b()]), &Options::default());
    assert!(problem.alike.is_empty());
    let exact = 24_564 * MIB - 24_564 * MIB * 8 / 100;
    assert_eq!(problem.nodes[0].accelerators[0].capacity_bytes, exact);
    assert_eq!(problem.models[0].shapes.iter().map(|s| s.node).collect::<BTreeSet<_>>(), BTreeSet::from([0, 1]));
    let one_more = inventory(&[("a", &[CARD; 12]), ("b", &[CARD; 13])]);
    let problem = build(&desired, &one_more, &weights("m", vec![llama_8b()]), &Options::default());
    assert_eq!(problem.alike, [vec![0], vec![1]]);
    assert_eq!(problem.nodes[0].accelerators[0].capacity_bytes, exact / (64 * MIB) * (64 * MIB));
}

/// A thousand nodes of three kinds, in any order, with names that say nothing of them.
fn thousand(seed: u64) -> (String, Inventory) {
    let mut dice = Dice(seed);
    let mut config = String::new();
    let mut facts = inventory(&[]);
    let big = ("NVIDIA A100-SXM4-80GB", 81_920, "8.0", None);
    for index in 0..1000 {
        let name: &'static str = Box::leak(format!("n{index:04}").into_boxed_str());
        config += &format!("node \"{name}\" address=\"{name}\"\n");
        let cards: &[super::inputs::Card] = match index % 3 {
            0 => &[CARD; 4],
            1 => &[big; 8],
            _ => &[CARD; 2],
        };
        let mut node = inventory(&[(name, cards)]).nodes.remove(0);
        node.ram.available_bytes = Some(120 * GIB + dice.below(512) * MIB);
        for accelerator in &mut node.accelerators {
            let total = accelerator.memory.total_bytes.unwrap();
            accelerator.memory.free_bytes = Some(total - dice.below(500) * MIB);
        }
        let at = dice.below(facts.nodes.len() as u64 + 1) as usize;
        facts.nodes.insert(at, node);
    }
    (config, facts)
}

#[test]
fn a_thousand_nodes_have_the_shapes_of_their_three_kinds() {
    let (config, mut facts) = thousand(3);
    let text = config + &model("") + "model \"n\" { source \"on-node:/models/n\"; replicas max=9 }\n";
    let mut candidates = weights("m", vec![llama_8b()]);
    candidates.extend(weights("n", vec![mistral_7b()]));
    // What runs on any node of a class has a shape: the first node's.
    facts.nodes.iter_mut().find(|n| n.name == "n0997").unwrap().instances = vec![runs("m", "n0997", "i1", 3)];
    let desired = desired(&text);
    let problem = build(&desired, &facts, &candidates, &Options::default());
    assert_eq!(
        problem.classes().map(|n| problem.nodes[n].name.as_str()).collect::<Vec<_>>(),
        ["n0000", "n0001", "n0002"]
    );
    assert_eq!((problem.others(0), problem.others(1), problem.others(2)), (333, 332, 332));
    // tp 1, 2, 4, 8 as far as there are accelerators.
    for model in &problem.models {
        let shapes: Vec<(usize, u32)> = model.shapes.iter().map(|s| (s.node, s.ranks)).collect();
        assert_eq!(shapes, [(0, 1), (0, 2), (0, 4), (1, 1), (1, 2), (1, 4), (1, 8), (2, 1), (2, 2)]);
    }
    let of = |card: usize, node: &str| Running {
        model: "m".into(),
        node: node.into(),
        accelerators: vec![format!("{node}#{card}")],
        variant: "bf16".into(),
        engine: Some(crate::base::EngineKind::Vllm),
        ..Running::default()
    };
    assert_eq!(problem.shape_of(&problem.running[0]), Some((0, 3)));
    assert_eq!(problem.shape_of(&of(3, "n0999")), Some((0, 0)));
    assert_eq!(problem.shape_of(&of(1, "n0998")), Some((0, 7)));
    assert_eq!(problem.shape_of(&of(2, "n0998")), None);
    let representatives = problem.representatives();
    assert!((0..1000).all(|node| representatives[node] == node % 3 && problem.covers(node % 3, node)));
    assert!(!problem.covers(0, 1) && !problem.covers(3, 6));
    // In whatever order the nodes are listed.
    facts.nodes.reverse();
    assert_eq!(build(&desired, &facts, &candidates, &Options::default()), problem);
}

#[test]
fn words_about_one_node_hold_for_all_that_are_alike() {
    let text = |replicas: u32| {
        let nodes: String = ["a", "b", "c"].map(|n| format!("node \"{n}\" address=\"{n}\"\n")).concat();
        let rules = "engine \"vllm\"; context 4096; concurrency 1; variant \"bf16\" source=\"on-node:/models/m\"";
        nodes + &format!("model \"m\" {{ {rules}; replicas max={replicas} }}\n")
    };
    let facts = inventory(&[("a", &[CARD]), ("b", &[CARD]), ("c", &[CARD])]);
    let candidates = weights("m", vec![llama_8b()]);
    let placed = |replicas: u32| {
        let (placement, problem) = place(&desired(&text(replicas)), &facts, &candidates, &large());
        assert_eq!(problem.alike, [vec![0, 1, 2], vec![], vec![]]);
        assert_eq!(check(&problem, &placement), Vec::<String>::new());
        assert_eq!(placement.alike, [["a", "b", "c"]]);
        assert_eq!((placement.like("c").len(), placement.like("x").len()), (3, 0));
        placement
    };
    // One more than there is room for: one reason for all three, and no word about two of them.
    let full = placed(4);
    assert_eq!(full.instances.iter().map(|p| p.node.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    let reasons: Vec<(String, &str)> =
        full.unplaced[0].reasons.iter().map(|r| (r.at(), r.constraint.as_str())).collect();
    assert_eq!(reasons, [("a and 2 alike".to_owned(), "memory")]);
    let chosen = |p: &Placement| p.considered.iter().filter(|c| c.chosen).map(|c| c.at()).collect::<Vec<_>>();
    let lost = |p: &Placement| p.considered.iter().filter(|c| !c.chosen).map(|c| c.at()).collect::<Vec<_>>();
    assert_eq!((chosen(&full), lost(&full)), (vec!["a".into(), "b".into(), "c".into()], vec![]));
    assert_eq!(full.variants.iter().filter(|v| v.replicas == 1 && v.alike == 0).count(), 3);
    let one = placed(1);
    assert_eq!((chosen(&one).len(), lost(&one).len()), (1, 1));
    assert!(lost(&one)[0].ends_with("and 1 alike"), "{:?}", one.considered);
    let at = |taken: u32| one.variants.iter().filter(|v| v.replicas == taken).map(|v| v.alike).collect::<Vec<_>>();
    assert_eq!((at(1), at(0)), (vec![0], vec![1]));
    // The same copies as where every node is looked at by itself, but for the bytes that rounding takes.
    let (exact, problem) = place(&desired(&text(4)), &facts, &candidates, &Options::default());
    assert!(problem.alike.is_empty() && exact.alike.is_empty());
    let places = |p: &Placement| p.instances.iter().map(|i| (i.replica, i.node.clone())).collect::<Vec<_>>();
    assert_eq!(places(&exact), places(&full));
    assert_eq!(exact.unplaced[0].reasons.len(), 3);
}
