//! What runs keeps its place when facts change under it, and gives way to what the config asks.

use super::inputs::{CARD, dense, desired, inventory, llama_8b, mistral_7b, weights};
use crate::base::{EngineKind, GIB, MIB};
use crate::inventory::{
    AcceleratorProcess, Calibration, Disk, EngineFound, InstanceFacts, Inventory, MeasuredMemory, NodeFacts,
    PlannedParts, SizedFor,
};
use crate::placement::*;

const NODE: &str = "node \"a\" address=\"10.0.0.1\"\n";
const MODEL: &str = "model \"m\" { source \"path:/m\"; engine \"vllm\"; context 8192 }\n";
const SMALL: &str = "model \"s\" { source \"path:/s\"; engine \"vllm\"; context 1024; replicas min=0 max=1 }\n";

/// Looked at card by card, and as a large cluster.
fn modes() -> [Options; 2] {
    let large = Limits { exact_accelerators: 0, ..Limits::default() };
    [Options::default(), Options { limits: large, ..Options::default() }]
}

fn runs(node: &mut NodeFacts, model: &str, card: usize, used: u64) {
    let device = &mut node.accelerators[card];
    device.memory.free_bytes = device.memory.free_bytes.map(|free| free - used);
    let pid = 7 + device.processes.len() as u32;
    device.processes.push(AcceleratorProcess { pid, used_bytes: Some(used), ours: true, ..Default::default() });
    let facts = serde_json::json!({ "instance": format!("of-{model}"), "specification": "sha256:1", "model": model,
        "replica": 0, "engine": "vllm", "variant": "bf16", "accelerators": [format!("{}#{card}", node.name)],
        "port": 20000, "state": "ready", "pid": pid, "host_bytes": GIB });
    node.instances.push(serde_json::from_value::<InstanceFacts>(facts).unwrap());
}

fn found(version: &str) -> Vec<EngineFound> {
    let version = Some(version.to_owned());
    vec![EngineFound {
        kind: EngineKind::Vllm,
        version,
        path: "/opt/vllm/bin/vllm".into(),
        problem: None,
        rpc_server: None,
    }]
}

/// A node on which the model runs with what the config asks for.
fn world() -> Inventory {
    let mut nodes = inventory(&[("a", &[CARD])]);
    nodes.nodes[0].engines = Some(found("0.11.0"));
    runs(&mut nodes.nodes[0], "m", 0, 17 * GIB);
    nodes
}

fn all() -> Candidates {
    let mut all = weights("m", vec![mistral_7b()]);
    all.extend(weights("s", vec![dense(16, 2048, 8, 5632, 32_000, 2 * GIB)]));
    all
}

fn solved(config: &str, nodes: &Inventory, options: &Options) -> Placement {
    let mut wanted = desired(config);
    if let Some(engine) = wanted.engines.get_mut(&EngineKind::Vllm) {
        let at = engine.kind.place.clone();
        engine.version = Some(crate::base::Spanned::new("0.11.0".to_owned(), at));
    }
    let (placement, problem) = place(&wanted, nodes, &all(), options);
    assert_eq!(check(&problem, &placement), Vec::<String>::new());
    placement
}

fn stays(placement: &Placement) -> bool {
    placement.instances.iter().any(|p| p.model == "m" && p.node == "a" && p.because == "already runs here")
}

type Change = fn(&mut NodeFacts);

const TAKEN: Change = |a| {
    a.accelerators[0].memory.free_bytes = Some(0);
    a.accelerators[0].processes[0].used_bytes = Some(10 * GIB);
};

/// Facts that change under what runs, and what is said of it.
fn changes() -> Vec<(&'static str, Change, &'static str)> {
    vec![
        (
            "the engine is upgraded",
            |a| a.engines = Some(found("0.12.0")),
            "vllm is 0.12.0 here, the config wants 0.11.0",
        ),
        ("the engine is not found", |a| a.engines = Some(Vec::new()), "vllm was not found on this node"),
        (
            "the engine fails",
            |a| {
                let mut engines = found("0.11.0");
                engines[0].problem = Some("no such library".into());
                a.engines = Some(engines);
            },
            "no such library",
        ),
        ("others take host memory", |a| a.ram.available_bytes = Some(GIB), "of host memory"),
        ("others take the card's memory", TAKEN, "the largest usable is"),
        ("the driver keeps more", |a| a.accelerators[0].memory.reserved_bytes = Some(7 * GIB), "the largest usable is"),
        (
            "its weights are gone and the disk is full",
            |a| a.disks = vec![Disk { path: "/".into(), free_bytes: GIB, total_bytes: 100 * GIB }],
            "to fetch",
        ),
    ]
}

#[test]
fn what_runs_keeps_its_place_whatever_is_found_by_now() {
    for options in modes() {
        assert!(stays(&solved(&format!("{NODE}{MODEL}"), &world(), &options)));
        for (name, change, said) in changes() {
            let mut nodes = world();
            change(&mut nodes.nodes[0]);
            let placement = solved(&format!("{NODE}{MODEL}"), &nodes, &options);
            assert!(stays(&placement), "{name}: {:#?}", placement.unplaced);
            let held = placement.instances[0].held.as_deref();
            assert!(held.is_some_and(|held| held.contains(said)), "{name}: {held:?}");
            let note = format!("model `m` keeps running on `a`, where it could not be started anew: {}", held.unwrap());
            assert!(placement.notes.contains(&note), "{name}: {:?}", placement.notes);
        }
    }
}

#[test]
fn what_does_not_run_is_not_kept_by_that() {
    for options in modes() {
        for (name, change, _) in changes() {
            let mut nodes = world();
            change(&mut nodes.nodes[0]);
            nodes.nodes[0].instances[0].state = crate::base::InstanceState::Failed;
            nodes.nodes[0].instances[0].pid = None;
            let placement = solved(&format!("{NODE}{MODEL}"), &nodes, &options);
            assert!(placement.instances.is_empty(), "{name}");
        }
    }
}

#[test]
fn what_the_config_asks_for_is_no_fact() {
    let asked = [
        MODEL.replace("context 8192", "context 8192; place { require label=\"rack\" is=\"r9\" }"),
        MODEL.replace("engine \"vllm\"", "engine \"llama.cpp\""),
        format!("{MODEL}deny \"never\" {{ when \"node.name == 'a'\" }}\n"),
    ];
    for options in modes() {
        for (name, change, _) in changes() {
            let mut nodes = world();
            change(&mut nodes.nodes[0]);
            for config in &asked {
                assert!(!stays(&solved(&format!("{NODE}{config}"), &nodes, &options)), "{name}: {config}");
            }
            let drain = Options { drain: ["a".to_owned()].into(), ..options.clone() };
            assert!(!stays(&solved(&format!("{NODE}{MODEL}"), &nodes, &drain)), "{name}: drained");
        }
    }
}

/// What the node recorded of the instance: sized for so many tokens.
fn sized_for(nodes: &mut Inventory, context: u64) {
    nodes.nodes[0].instances[0].measured = Some(Box::new(Calibration {
        model: "m".into(),
        variant: "bf16".into(),
        engine: EngineKind::Vllm,
        sized_for: SizedFor {
            revision: "sha256:0".into(),
            engine_version: Some("0.11.0".into()),
            context,
            concurrency: 1,
            per_accelerator: vec![PlannedParts { weights_bytes: 16 * GIB, ..PlannedParts::default() }],
            ..SizedFor::default()
        },
        measured: MeasuredMemory::default(),
        at: String::new(),
    }));
}

#[test]
fn what_counts_larger_than_when_it_started_stays_and_a_larger_context_does_not() {
    // So many tokens do not fit on the card by today's figures.
    let config = format!("{NODE}{}", MODEL.replace("8192", "65536"));
    for options in modes() {
        let mut nodes = world();
        sized_for(&mut nodes, 65_536);
        let placement = solved(&config, &nodes, &options);
        assert!(stays(&placement), "{:#?}", placement.unplaced);
        let mut nodes = world();
        sized_for(&mut nodes, 8192);
        assert!(!stays(&solved(&config, &nodes, &options)), "the config asks for more than it was started with");
    }
}

#[test]
fn nothing_new_comes_beside_what_holds_more_than_there_should_be() {
    let config = format!("{NODE}{MODEL}{SMALL}");
    for options in modes() {
        let mut nodes = inventory(&[("a", &[CARD])]);
        runs(&mut nodes.nodes[0], "m", 0, 12 * GIB);
        let names = |nodes: &Inventory| -> Vec<String> {
            solved(&config, nodes, &options).instances.into_iter().map(|placed| placed.model).collect()
        };
        nodes.nodes[0].engines = Some(found("0.11.0"));
        assert_eq!(names(&nodes), ["m", "s"]);
        TAKEN(&mut nodes.nodes[0]);
        assert_eq!(names(&nodes), ["m"]);
    }
}

#[test]
fn what_leaves_an_overfull_card_gives_back_its_share_and_no_more() {
    // Two of 9 GiB each; others took the memory, so that 10 GiB can be used for both: 5 each.
    let mut problem = Problem { threshold: 0.05, ..Problem::default() };
    let card = AcceleratorSupply {
        uuid: "u".into(),
        kind: "big".into(),
        capacity_bytes: 10 * GIB,
        total_bytes: 24 * GIB,
        healthy: true,
        ..AcceleratorSupply::default()
    };
    let engine = EngineSupply { kind: EngineKind::Vllm, version: None, program: "/bin/vllm".into(), worker: None };
    problem.nodes.push(NodeSupply {
        name: "a".into(),
        accelerators: vec![card],
        host_capacity_bytes: 64 * GIB,
        engines: vec![engine],
        reachable: true,
        member: true,
        ..NodeSupply::default()
    });
    let mut model = |name: &str, rank: u32, bytes: u64, runs: bool| {
        let mut shape = super::random::shape(0, 0, vec![0], 1, bytes);
        (shape.keep_only, shape.held) = (runs, runs.then(|| "taken".to_owned()));
        let facts = CandidateFacts {
            label: "bf16".into(),
            legal_ranks: [(EngineKind::Vllm, vec![1])].into(),
            ..CandidateFacts::default()
        };
        problem.models.push(ModelDemand {
            name: name.into(),
            rank,
            preempts: rank > 1,
            min: 1,
            desired: 1,
            candidates: vec![facts],
            shapes: vec![shape],
            ..ModelDemand::default()
        });
        if runs {
            problem.running.push(Running {
                model: name.into(),
                instance: name.into(),
                node: "a".into(),
                accelerators: vec!["u".into()],
                variant: "bf16".into(),
                engine: Some(EngineKind::Vllm),
                ..Running::default()
            });
        }
    };
    model("low", 0, 9 * GIB, true);
    model("mid", 1, 9 * GIB, true);
    model("new", 2, 5 * GIB, false);
    problem.sort();
    for (needed, expected) in
        [(5 * GIB, vec!["mid", "new"]), (5 * GIB + MIB, vec!["new"]), (10 * GIB + MIB, vec!["low", "mid"])]
    {
        problem.models[2].shapes[0].per_accelerator.weights_bytes = needed;
        for exact in [24, 0] {
            problem.limits.exact_accelerators = exact;
            let placement = solve(&problem);
            assert_eq!(check(&problem, &placement), Vec::<String>::new());
            let names: Vec<&str> = placement.instances.iter().map(|p| p.model.as_str()).collect();
            assert_eq!(names, expected, "{needed} {exact}");
        }
    }
}

#[test]
fn a_split_that_no_longer_fits_stays_over_its_cards() {
    let config = format!("{NODE}model \"m\" {{ source \"path:/m\"; engine \"vllm\"; context 8192 }}\n");
    for options in modes() {
        let mut nodes = inventory(&[("a", &[CARD, CARD])]);
        nodes.nodes[0].engines = Some(found("0.11.0"));
        runs(&mut nodes.nodes[0], "m", 0, 9 * GIB);
        nodes.nodes[0].instances[0].accelerators.push("a#1".into());
        for card in &mut nodes.nodes[0].accelerators {
            card.memory.reserved_bytes = Some(20 * GIB);
        }
        let mut all = weights("m", vec![llama_8b()]);
        all.extend(weights("s", vec![]));
        let (placement, problem) = place(&desired(&config), &nodes, &all, &options);
        assert_eq!(check(&problem, &placement), Vec::<String>::new());
        assert!(stays(&placement), "{:#?}", placement.unplaced);
        assert_eq!(placement.instances[0].tensor_parallel, 2);
    }
}
