//! Small instances where a greedy scheduler fails, with proven optima per tier.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::random::{accelerator, node, shape};
use crate::base::{EngineKind, MIB};
use crate::placement::*;

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
    optimum: BTreeMap<String, f64>,
    baseline_failed: Vec<(String, u32, u32)>,
}

#[derive(Deserialize)]
struct CaseModel {
    name: String,
    prio: u32,
    replicas: u32,
    /// Variant, quality (higher is better), ranks, MiB per accelerator, kind.
    options: Vec<(String, u32, u32, u64, String)>,
}

fn cases() -> Cases {
    serde_json::from_str(include_str!("../testdata/placement_small.json")).unwrap()
}

/// Accelerator totals are set so that cost shares are 3 : 3 : 1 as in the cases.
fn units(kind: &str) -> u64 {
    if kind == "4090" { 1 } else { 3 }
}

fn problem(case: &Case, usable: &BTreeMap<String, u64>) -> Problem {
    let mut problem = Problem { tail: super::random::strict_tail(), ..Problem::default() };
    for (index, (kind, count)) in case.nodes.iter().enumerate() {
        let accelerators = (0..*count).map(|position| {
            let mut supply = accelerator(format!("{index}:{position}"), kind, usable[kind] * MIB);
            supply.total_bytes = units(kind) * 1_000 * MIB;
            supply
        });
        problem.nodes.push(node(&format!("node{index}"), accelerators.collect()));
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
            let candidate = demand.candidates.iter().position(|c| c.label == *variant).unwrap_or_else(|| {
                demand.candidates.push(CandidateFacts {
                    revision: String::new(),
                    label: variant.clone(),
                    quality: 10 - quality,
                    legal_ranks: BTreeMap::from([(EngineKind::Vllm, vec![1, 2, 4, 8])]),
                    context: 4096,
                    only_on: None,
                    format: None,
                    ..CandidateFacts::default()
                });
                demand.candidates.len() - 1
            });
            for (index, (node_kind, count)) in case.nodes.iter().enumerate() {
                if node_kind == kind && *count >= *ranks as usize {
                    demand.shapes.push(shape(candidate, index, (0..*count).collect(), *ranks, mib * MIB));
                }
            }
        }
        problem.models.push(demand);
    }
    for (key, (index, positions, variant)) in &case.current {
        let (model, replica) = key.split_once('#').unwrap();
        problem.running.push(Running {
            model: model.to_owned(),
            replica: replica.parse().unwrap(),
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

fn tier(placement: &Placement, name: &str) -> f64 {
    placement.solver.tiers.iter().find(|t| t.name == name).map_or(0.0, |t| t.value)
}

#[test]
fn the_proven_optima_are_reached_tier_by_tier() {
    let cases = cases();
    for case in &cases.instances {
        let problem = problem(case, &cases.usable_mib);
        let placement = solve(&problem);
        assert_eq!(check(&problem, &placement), Vec::<String>::new(), "{}", case.name);
        assert_eq!(placement.solver.status, "optimal", "{}: {:?}", case.name, placement.solver);
        for rank in 1..=3 {
            let placed = tier(&placement, &format!("desired replicas, rank {rank}"));
            assert_eq!(placed, case.optimum[&format!("placed_prio{rank}")], "{} rank {rank}", case.name);
        }
        let quality = |p: &Placed| {
            let model = &problem.models[problem.model(&p.model).unwrap()];
            10 - model.candidates[p.candidate].quality
        };
        let ranks: u32 = placement.instances.iter().map(quality).sum();
        assert_eq!(f64::from(ranks), case.optimum["rank_sum"], "{}", case.name);
        assert_eq!(tier(&placement, "stability"), case.optimum["moves"].abs(), "{}", case.name);
        let cost: u64 = placement
            .instances
            .iter()
            .flat_map(|p| p.per_accelerator.iter().map(|m| m.device_total_bytes / (1_000 * MIB)))
            .sum();
        assert_eq!(cost as f64, case.optimum["gpu_cost"], "{}: {:#?}", case.name, placement.instances);
        assert!(!case.baseline_failed.is_empty(), "{}: the baseline is said to fail here", case.name);
    }
}

#[test]
fn five_replicas_share_two_accelerators() {
    let cases = cases();
    let case = cases.instances.iter().find(|c| c.name == "share-one-gpu").unwrap();
    let placement = solve(&problem(case, &cases.usable_mib));
    assert_eq!(placement.instances.len(), 5);
    let mut used: Vec<&String> = placement.instances.iter().flat_map(|p| &p.accelerators).collect();
    used.sort();
    used.dedup();
    assert_eq!(used.len(), 2);
}

#[test]
fn the_order_of_nodes_and_models_does_not_matter() {
    let cases = cases();
    for case in &cases.instances {
        let problem = problem(case, &cases.usable_mib);
        let mut turned = problem.clone();
        let last = turned.nodes.len() - 1;
        turned.nodes.reverse();
        turned.models.reverse();
        turned.running.reverse();
        for model in &mut turned.models {
            model.shapes.reverse();
            for shape in &mut model.shapes {
                shape.node = last - shape.node;
            }
        }
        turned.sort();
        assert_eq!(turned, problem);
        assert_eq!(solve(&turned), solve(&problem), "{}", case.name);
    }
}

#[test]
fn what_runs_keeps_its_place_and_its_number() {
    let cases = cases();
    let case = cases.instances.iter().find(|c| c.name == "stability").unwrap();
    let problem = problem(case, &cases.usable_mib);
    let placement = solve(&problem);
    for running in &problem.running {
        let same = placement.instances.iter().any(|p| {
            p.model == running.model && p.replica == running.replica && p.accelerators == running.accelerators
        });
        assert!(same, "{} {}", running.model, running.replica);
    }
}

/// One accelerator that a low rank holds, and a higher rank that wants it.
fn contest(preempts: bool, protected: bool) -> Problem {
    let mut low = ModelDemand { name: "low".to_owned(), rank: 10, min: 1, desired: 1, protected, ..Default::default() };
    let mut high =
        ModelDemand { name: "high".to_owned(), rank: 100, preempts, min: 1, desired: 1, ..Default::default() };
    for model in [&mut low, &mut high] {
        model.candidates.push(CandidateFacts { label: "bf16".to_owned(), ..CandidateFacts::default() });
        model.shapes.push(shape(0, 0, vec![0], 1, 20_000 * MIB));
    }
    let running = Running {
        model: "low".to_owned(),
        replica: 3,
        instance: "i".to_owned(),
        node: "n".to_owned(),
        accelerators: vec!["0".to_owned()],
        variant: "bf16".to_owned(),
        engine: Some(EngineKind::Vllm),
        ..Running::default()
    };
    let mut problem = Problem {
        nodes: vec![node("n", vec![accelerator("0".to_owned(), "4090", 24_000 * MIB)])],
        models: vec![low, high],
        running: vec![running],
        tail: super::random::weighted_tail(),
        ..Problem::default()
    };
    problem.sort();
    problem
}

#[test]
fn only_a_preempting_rank_displaces_and_never_what_is_protected() {
    for (preempts, protected, winner) in
        [(false, false, "low"), (true, false, "high"), (true, true, "low"), (false, true, "low")]
    {
        let problem = contest(preempts, protected);
        let placement = solve(&problem);
        assert_eq!(check(&problem, &placement), Vec::<String>::new());
        let names: Vec<&str> = placement.instances.iter().map(|p| p.model.as_str()).collect();
        assert_eq!(names, [winner], "preempts {preempts}, protected {protected}");
        assert_eq!(placement.solver.status, "infeasible");
        if winner == "low" {
            assert_eq!(placement.instances[0].replica, 3);
            let refused = &placement.unplaced[0];
            assert!(refused.required && refused.reasons[0].constraint == "memory");
            assert_eq!(refused.nearest.contains("stop low"), !protected, "{}", refused.nearest);
        }
    }
}
