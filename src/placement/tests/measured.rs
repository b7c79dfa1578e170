//! What engines took, in placement: it moves nothing that runs, and nothing new is put where it really is.

use super::inputs::{CARD, dense, inventory, mistral_7b, run, weights};
use crate::base::{EngineKind, GIB, InstanceState, MIB};
use crate::inventory::{
    AcceleratorProcess, Calibration, InstanceFacts, Inventory, MeasuredMemory, MeasuredParts, PlannedParts, SizedFor,
};
use crate::placement::{Candidates, Placement};

const MODEL: &str =
    "node \"a\" address=\"10.0.0.1\"\nmodel \"m\" { source \"path:/m\"; engine \"vllm\"; context 8192 }\n";
const SMALL: &str = "model \"s\" { source \"path:/s\"; engine \"vllm\"; context 1024 }\n";

fn calibrated(mut nodes: Inventory, used: u64) -> Inventory {
    nodes.nodes[0].calibrations.push(Calibration {
        model: "m".into(),
        variant: "bf16".into(),
        engine: EngineKind::Vllm,
        sized_for: SizedFor {
            revision: "sha256:0".into(),
            accelerator: Some("NVIDIA GeForce RTX 4090 24564 MiB".into()),
            context: 8192,
            concurrency: 1,
            per_accelerator: vec![PlannedParts { weights_bytes: 16 * GIB, ..PlannedParts::default() }],
            ..SizedFor::default()
        },
        measured: MeasuredMemory {
            per_accelerator: vec![MeasuredParts { used_bytes: Some(used), ..MeasuredParts::default() }],
            ..MeasuredMemory::default()
        },
        at: String::new(),
    });
    nodes
}

/// The model runs on the card and holds this much of it.
fn running(mut nodes: Inventory, used: u64) -> Inventory {
    let node = &mut nodes.nodes[0];
    let card = &mut node.accelerators[0];
    card.memory.free_bytes = card.memory.total_bytes.map(|total| total - used);
    card.processes = vec![AcceleratorProcess { pid: 7, used_bytes: Some(used), ours: true, ..Default::default() }];
    let facts = serde_json::json!({ "instance": "abc", "specification": "sha256:1", "model": "m", "replica": 0,
        "engine": "vllm", "variant": "bf16", "accelerators": ["a#0"], "port": 20000, "state": "ready", "pid": 7 });
    let facts: InstanceFacts = serde_json::from_value(facts).unwrap();
    assert_eq!(facts.state, InstanceState::Ready);
    node.instances.push(facts);
    nodes
}

fn both() -> Candidates {
    let mut both = weights("m", vec![mistral_7b()]);
    both.extend(weights("s", vec![dense(16, 2048, 8, 5632, 32_000, 2 * GIB)]));
    both
}

fn bytes(placement: &Placement) -> u64 {
    placement.instances[0].per_accelerator[0].total_bytes()
}

#[test]
fn a_measurement_decides_where_there_is_room_for_a_new_instance() {
    let one = inventory(&[("a", &[CARD])]);
    let plain = run(MODEL, &one, &both());
    // Less than the estimate was taken: less is planned, with a margin.
    let used = bytes(&plain) - GIB;
    let found = run(MODEL, &calibrated(one.clone(), used), &both());
    assert!((used..bytes(&plain)).contains(&bytes(&found)), "{} of {}", bytes(&found), bytes(&plain));
    // More than there is: it is refused, with the figure.
    let refused = run(MODEL, &calibrated(one, 23 * GIB), &both());
    assert!(refused.instances.is_empty());
    let reason = &refused.unplaced[0].reasons[0];
    assert!(reason.constraint == "memory" && reason.needed.is_some_and(|needed| needed > 23 * GIB), "{reason:?}");
}

#[test]
fn what_runs_stays_although_it_took_more_than_there_should_be() {
    let one = inventory(&[("a", &[CARD])]);
    for used in [18 * GIB, 22 * GIB, 23 * GIB] {
        let nodes = calibrated(running(one.clone(), used), used);
        let found = run(MODEL, &nodes, &both());
        let placed = &found.instances[0];
        assert_eq!((placed.node.as_str(), placed.because.as_str()), ("a", "already runs here"), "{used}");
        assert!(bytes(&found) >= used);
    }
    // Where others took the memory too: it stays, and nothing new could have its place.
    let mut taken = calibrated(running(one, 18 * GIB), 18 * GIB);
    taken.nodes[0].accelerators[0].memory.free_bytes = Some(0);
    taken.nodes[0].accelerators[0].processes[0].used_bytes = Some(10 * GIB);
    assert!(run(MODEL, &taken, &both()).instances[0].held.is_some());
    taken.nodes[0].instances[0].state = InstanceState::Failed;
    assert!(run(MODEL, &taken, &both()).instances.is_empty());
}

#[test]
fn nothing_new_is_put_where_a_larger_one_really_is() {
    let one = inventory(&[("a", &[CARD])]);
    let config = format!("{MODEL}{SMALL}");
    let names = |nodes: &Inventory| {
        let placement = run(&config, nodes, &both());
        placement.instances.iter().map(|placed| placed.model.clone()).collect::<Vec<_>>()
    };
    let planned = bytes(&run(MODEL, &one, &both()));
    assert_eq!(names(&running(one.clone(), planned - 512 * MIB)), ["m", "s"], "as planned there is room for both");
    let used = 21 * GIB;
    assert_eq!(names(&calibrated(running(one, used), used)), ["m"]);
}
