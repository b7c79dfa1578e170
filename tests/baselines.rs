//! The baselines of the placement benchmark: the peer fails where the file of small cases says so, and a layout is
//! judged by our sizes.
#![cfg(feature = "controller")]

#[path = "../benches/placement/baselines.rs"]
mod baselines;
#[path = "../benches/placement/generate.rs"]
mod generate;
#[path = "support/headers.rs"]
mod headers;

use std::collections::BTreeMap;

use baselines::Put;
use flock::base::{EngineKind, MIB};
use flock::placement::{
    AcceleratorSupply, CandidateFacts, EngineSupply, ModelDemand, NodeSupply, Options, PlacedMemory, Problem, Running,
    Shape, check, place,
};
use serde::Deserialize;

#[derive(Deserialize)]
struct Cases {
    usable_mib: BTreeMap<String, u64>,
    instances: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    nodes: Vec<(String, usize)>,
    models: Vec<CaseModel>,
    current: BTreeMap<String, (usize, Vec<usize>, String)>,
    baseline_failed: Vec<(String, u32, u32)>,
    baseline: Vec<(String, u32, String, String, String, Vec<usize>)>,
}

#[derive(Deserialize)]
struct CaseModel {
    name: String,
    prio: u32,
    replicas: u32,
    /// Variant, quality (higher is better), ranks, MiB per accelerator, kind.
    options: Vec<(String, u32, u32, u64, String)>,
}

/// What the cases keep free of every accelerator.
const RESERVE: u64 = 600 * MIB;

fn shape(candidate: usize, node: usize, count: usize, ranks: u32, bytes: u64) -> Shape {
    let per_accelerator = PlacedMemory { weights_bytes: bytes, ..PlacedMemory::default() };
    let plain = Shape::on(node, candidate, EngineKind::Vllm, "/bin/vllm");
    Shape { group: (0..count).collect(), ranks, per_accelerator, speed: Some(30.0), ..plain }
}

fn problem(case: &Case, usable: &BTreeMap<String, u64>) -> Problem {
    let mut problem = Problem::default();
    for (index, (kind, count)) in case.nodes.iter().enumerate() {
        let supply = |position| AcceleratorSupply {
            uuid: format!("{index}:{position}"),
            kind: kind.clone(),
            capacity_bytes: usable[kind] * MIB,
            total_bytes: usable[kind] * MIB + RESERVE,
            healthy: true,
            ..AcceleratorSupply::default()
        };
        problem.nodes.push(NodeSupply {
            name: format!("node{index}"),
            accelerators: (0..*count).map(supply).collect(),
            host_capacity_bytes: 256 << 30,
            engines: vec![EngineSupply {
                kind: EngineKind::Vllm,
                version: None,
                program: "/bin/vllm".to_owned(),
                worker: None,
            }],
            reachable: true,
            member: true,
            ..NodeSupply::default()
        });
    }
    for model in &case.models {
        let mut demand = ModelDemand {
            name: model.name.clone(),
            rank: model.prio,
            min: model.replicas,
            desired: model.replicas,
            ..ModelDemand::default()
        };
        for (variant, quality, ranks, mib, kind) in &model.options {
            let known = demand.candidates.iter().position(|c| c.label == *variant);
            let candidate = known.unwrap_or_else(|| {
                demand.candidates.push(CandidateFacts {
                    label: variant.clone(),
                    quality: 10 - quality,
                    legal_ranks: BTreeMap::from([(EngineKind::Vllm, vec![1, 2, 4, 8])]),
                    context: 4096,
                    ..CandidateFacts::default()
                });
                demand.candidates.len() - 1
            });
            let nodes =
                case.nodes.iter().enumerate().filter(|(_, (own, count))| own == kind && *count >= *ranks as usize);
            let of =
                |(index, (_, count)): (usize, &(String, usize))| shape(candidate, index, *count, *ranks, mib * MIB);
            demand.shapes.extend(nodes.map(of));
        }
        problem.models.push(demand);
    }
    for (key, (index, positions, variant)) in &case.current {
        let (model, replica) = key.split_once('#').expect("model#replica");
        problem.running.push(Running {
            model: model.to_owned(),
            replica: replica.parse().expect("a number"),
            instance: key.clone(),
            node: format!("node{index}"),
            accelerators: positions.iter().map(|p| format!("{index}:{p}")).collect(),
            variant: variant.clone(),
            engine: Some(EngineKind::Vllm),
            ..Running::default()
        });
    }
    problem.sort();
    problem
}

#[test]
fn the_peer_fails_where_the_cases_say_so() {
    let cases: Cases =
        serde_json::from_str(include_str!("../src/placement/testdata/placement_small.json")).expect("valid");
    assert!(!cases.instances.is_empty());
    for case in &cases.instances {
        let problem = problem(case, &cases.usable_mib);
        let order: Vec<usize> = case.models.iter().filter_map(|m| problem.model(&m.name)).collect();
        let need = |model: usize, candidate: usize, ranks: u32, kind: &str| {
            let name = &problem.models[model].name;
            let label = &problem.models[model].candidates[candidate].label;
            let own = &case.models.iter().find(|m| m.name == *name)?.options;
            own.iter().find(|o| (&o.0, o.2, o.4.as_str()) == (label, ranks, kind)).map(|o| o.3 * MIB)
        };
        let put = baselines::peer(&problem, &order, &need);
        for model in &case.models {
            let index = problem.model(&model.name).expect("a model of the case");
            let placed = put.iter().filter(|p| p.model == index).count();
            let failed = case.baseline_failed.iter().filter(|(name, ..)| *name == model.name).count();
            assert_eq!(placed + failed, model.replicas as usize, "{}: {} ({:?})", case.name, model.name, case.baseline);
        }
        assert!(!case.baseline_failed.is_empty(), "{}", case.name);
        // What it puts somewhere is what the file says, too; which of several equal accelerators does not matter.
        let mut ours: Vec<(String, String, usize, usize)> = put.iter().map(|p| described(&problem, p)).collect();
        let mut theirs: Vec<(String, String, usize, usize)> = case
            .baseline
            .iter()
            .map(|(model, _, variant, _, node, accelerators)| {
                let node = node.strip_prefix("node").and_then(|n| n.split(':').next()).and_then(|n| n.parse().ok());
                (model.clone(), variant.clone(), node.expect("nodeN:kind"), accelerators.len())
            })
            .collect();
        ours.sort();
        theirs.sort();
        assert_eq!(ours, theirs, "{}", case.name);
    }
}

fn described(problem: &Problem, put: &Put) -> (String, String, usize, usize) {
    let model = &problem.models[put.model];
    (model.name.clone(), model.candidates[put.candidate].label.clone(), put.node, put.accelerators.len())
}

#[test]
fn a_generated_cluster_is_the_same_every_time_and_ours_is_never_below_the_baselines() {
    for seed in 1..=3 {
        let size = generate::Size { accelerators: 6, kinds: 4, replicas: 12, load: 1.05, seed };
        let inputs = generate::generate(&size);
        let twice = generate::generate(&size);
        assert_eq!((&inputs.text, &inputs.inventory), (&twice.text, &twice.inventory));
        assert!(inputs.candidates == twice.candidates);
        // So few accelerators leave little choice.
        assert!((inputs.load - 1.05).abs() < 0.3, "{}", inputs.load);
        assert!((generate::generate(&generate::Size::of(12, seed)).load - 1.05).abs() < 0.01);
        let accelerators: usize = inputs.inventory.nodes.iter().map(|n| n.accelerators.len()).sum();
        let replicas: u32 = inputs.desired.models.values().map(|m| m.replicas.max).sum();
        assert_eq!((accelerators, inputs.desired.models.len(), replicas), (6, 4, 12));

        let options = Options::default();
        let (placement, problem) = place(&inputs.desired, &inputs.inventory, &inputs.candidates, &options);
        assert_eq!(check(&problem, &placement), Vec::<String>::new());
        let order: Vec<usize> = (0..problem.models.len()).collect();
        let need = |model: usize, candidate: usize, ranks: u32, _: &str| {
            let found = inputs.candidates[&problem.models[model].name].as_ref().ok()?.get(candidate)?;
            Some(baselines::rule_of_thumb(found.variant.tensors.total_bytes, ranks))
        };
        let ours = baselines::worth_of(&problem, &placement);
        let peer = baselines::worth(&problem, &baselines::peer(&problem, &order, &need));
        let decreasing = baselines::worth(&problem, &baselines::decreasing(&problem));
        assert_eq!((decreasing.out_of_memory, decreasing.refused), (0, 0), "it goes by our own shapes");
        for other in [&peer, &decreasing] {
            // Strict tiers: all minimum replicas by rank, then all replicas by rank.
            let key = |worth: &baselines::Worth| -> Vec<u32> {
                worth.ranks.iter().map(|r| r.1).chain(worth.ranks.iter().map(|r| r.2)).collect()
            };
            assert!(key(&ours) >= key(other), "seed {seed}: {ours:?} {other:?}");
        }
    }
}

#[test]
fn what_would_run_out_of_memory_is_no_replica() {
    let cases: Cases =
        serde_json::from_str(include_str!("../src/placement/testdata/placement_small.json")).expect("valid");
    let case = cases.instances.iter().find(|c| c.name == "order-trap").expect("a case");
    let problem = problem(case, &cases.usable_mib);
    let model = problem.model("llama-70b").expect("a model");
    let on = |node: usize, accelerators: Vec<usize>| Put { model, candidate: 0, node, accelerators };
    let worth = baselines::worth(&problem, &[on(0, vec![0, 1]), on(1, vec![0]), on(1, vec![1, 2])]);
    assert_eq!(worth.ranks, [(3, 1, 1), (1, 0, 0)]);
    assert_eq!(worth.refused + worth.out_of_memory, 2);
}
