//! Ports are something that nodes supply: who finds none goes where there are some, and is told so where there are none.

use super::inputs::{CARD, dense, desired, inventory, weights};
use crate::base::GIB;
use crate::inventory::{InstanceFacts, Inventory};
use crate::placement::*;

/// Looked at card by card, and as a large cluster.
fn modes() -> [Options; 2] {
    let large = Limits { exact_accelerators: 0, ..Limits::default() };
    [Options::default(), Options { limits: large, ..Options::default() }]
}

const FIVE: &str =
    "node \"a\" address=\"a\" { ports \"20000-20004\" }\nnode \"b\" address=\"b\" { ports \"20000-20004\" }\n";

fn model(name: &str, rules: &str) -> String {
    format!("model \"{name}\" {{ source \"path:/{name}\"; engine \"vllm\"; context 1024; {rules} }}\n")
}

fn solved(config: &str, nodes: &Inventory, options: &Options) -> Placement {
    let mut all = Candidates::new();
    for name in ["m", "s"] {
        all.extend(weights(name, vec![dense(16, 2048, 8, 5632, 32_000, 2 * GIB)]));
    }
    all.extend(weights("large", vec![dense(32, 4096, 8, 14_336, 32_000, 14 * GIB)]));
    all.extend(weights("other", vec![dense(32, 4096, 8, 14_336, 32_000, 14 * GIB)]));
    let (placement, problem) = place(&desired(config), nodes, &all, options);
    assert_eq!(check(&problem, &placement), Vec::<String>::new());
    placement
}

fn on(placement: &Placement) -> Vec<(&str, &str)> {
    placement.instances.iter().map(|placed| (placed.model.as_str(), placed.node.as_str())).collect()
}

#[test]
fn a_node_without_ports_is_no_place_and_another_one_is() {
    for options in modes() {
        let mut nodes = inventory(&[("a", &[CARD]), ("b", &[CARD])]);
        let config = format!("{FIVE}{}", model("m", ""));
        assert_eq!(on(&solved(&config, &nodes, &options)), [("m", "a")]);
        nodes.nodes[0].ports_in_use = vec![22, 20_000, 20_001, 20_002, 20_003, 20_004];
        assert_eq!(on(&solved(&config, &nodes, &options)), [("m", "b")]);
        // llama.cpp opens none besides: one is enough for it.
        let one = config.replace("engine \"vllm\"", "engine \"vllm\" \"llama.cpp\"");
        nodes.nodes[0].ports_in_use.pop();
        nodes.nodes[1].ports_in_use = nodes.nodes[0].ports_in_use.clone();
        let placement = solved(&one, &nodes, &options);
        assert!(placement.instances.iter().all(|placed| placed.engine == crate::base::EngineKind::LlamaCpp));
        let placement = solved(&config, &nodes, &options);
        let (refused, reason) = (&placement.unplaced[0], &placement.unplaced[0].reasons[0]);
        let figures = (reason.needed, reason.available, reason.unit.as_deref());
        assert_eq!((reason.constraint.as_str(), figures), ("port", (Some(5), Some(1), Some("count"))), "{reason:?}");
        assert_eq!(reason.text, "needs 5 ports for vllm, 1 of 20000-20004 are free");
        assert_eq!(refused.nearest, "a wider range of `ports` for `a` than \"20000-20004\"");
        let words: Vec<&str> = refused.together.iter().map(|one| one.constraint.as_str()).collect();
        assert!(options != Options::default() || words.contains(&"port"), "{:?}", refused.together);
    }
}

#[test]
fn engines_that_want_ports_side_by_side_are_counted_by_rows() {
    for options in modes() {
        let mut nodes = inventory(&[("a", &[CARD]), ("b", &[CARD])]);
        let config = FIVE.replace("20004", "20008") + &model("m", "");
        nodes.nodes[0].ports_in_use = vec![20_003, 20_007];
        nodes.nodes[1].ports_in_use = nodes.nodes[0].ports_in_use.clone();
        let placement = solved(&config, &nodes, &options);
        let reason = &placement.unplaced[0].reasons[0];
        assert_eq!(reason.text, "needs 4 ports side by side for vllm, 20000-20008 has no such row free");
        nodes.nodes[1].ports_in_use = vec![20_004];
        assert_eq!(on(&solved(&config, &nodes, &options)), [("m", "b")]);
    }
}

#[test]
fn no_more_instances_come_to_a_node_than_it_has_ports() {
    for options in modes() {
        let nodes = inventory(&[("a", &[CARD])]);
        let node = "node \"a\" address=\"a\" { ports \"20000-20008\" }\n";
        let config = format!("{node}{}{}", model("m", ""), model("s", "replicas min=0 max=1"));
        assert_eq!(on(&solved(&config, &nodes, &options)), [("m", "a")]);
        let placement = solved(&config.replace("20008", "20009"), &nodes, &options);
        assert_eq!(on(&placement), [("m", "a"), ("s", "a")]);
    }
}

fn runs(nodes: &mut Inventory, name: &str, port: u16) {
    let facts = serde_json::json!({ "instance": format!("of-{name}"), "specification": "sha256:1", "model": name,
        "replica": 0, "engine": "vllm", "variant": "bf16", "accelerators": ["a#0"], "port": port, "state": "ready",
        "running": true });
    nodes.nodes[0].instances.push(serde_json::from_value::<InstanceFacts>(facts).unwrap());
    nodes.nodes[0].ports_in_use.extend(port..port + 5);
}

#[test]
fn what_runs_has_its_ports_and_what_makes_way_gives_them_back() {
    let ranks = "priority \"high\" rank=100 preempts=#true\n";
    let node = "node \"a\" address=\"a\" { ports \"20000-20004\" }\n";
    for options in modes() {
        let mut nodes = inventory(&[("a", &[CARD])]);
        runs(&mut nodes, "large", 20_000);
        let told = vec![20_001, 20_002, 20_003, 20_004];
        let options = Options { internal_ports: [(("a".into(), "of-large".into()), told)].into(), ..options };
        let stays = format!("{node}{}", model("large", ""));
        assert_eq!(solved(&stays, &nodes, &options).instances[0].because, "already runs here");
        let config = format!("{ranks}{stays}{}", model("other", "priority \"high\""));
        assert_eq!(on(&solved(&config, &nodes, &options)), [("other", "a")]);
        // A small one has room on the card, and no port.
        let beside = format!("{stays}{}", model("s", "replicas min=0 max=1"));
        let placement = solved(&beside, &nodes, &options);
        assert_eq!(on(&placement), [("large", "a")]);
        assert_eq!(placement.unplaced[0].reasons[0].constraint, "port");
    }
}
