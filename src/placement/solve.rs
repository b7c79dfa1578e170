//! From a problem to a placement: tiers, numbers of replicas, refusals and what was considered.

use std::collections::{BTreeMap, BTreeSet};

use super::choice::Choice;
use super::columns::Formulation;
use super::layout::{Copy, Layout, is_pinned};
use super::tiers::{self, Answer};
use super::{Placed, PlacedMemory, Placement, Problem, Running, SolverReport, considered, refuse};

/// Solves a problem. The problem must be sorted (`Problem::sort`); equal problems give equal placements.
pub fn solve(problem: &Problem) -> Placement {
    solve_with_layout(problem).0
}

/// The same, with the copies that it means.
pub fn solve_with_layout(problem: &Problem) -> (Placement, Layout) {
    let mut notes = problem.notes.clone();
    let mut formulation = Formulation::new(problem, false);
    let mut limits = problem.limits;
    if formulation.program.columns.len() > limits.large {
        limits.gap = limits.gap.max(limits.large_gap);
        formulation = Formulation::new(problem, true);
        notes.push("a large cluster: of the splits of a model only the smallest two were compared".to_owned());
    }
    let mut answer = tiers::solve(&formulation, &limits);
    if limits != problem.limits && missing(problem, &answer) {
        notes.pop();
        formulation = Formulation::new(problem, false);
        answer = tiers::solve(&formulation, &limits);
    }
    let instances = instances(problem, &answer);
    let unplaced = refuse::unplaced(problem, &answer.layout);
    let considered = considered::considered(problem, &answer.layout);
    let choice = Choice::of(problem, &answer.layout);
    let variants = choice.variants();
    notes.extend(choice.unchecked());
    if answer.aborted {
        notes.push("the solver was stopped by the clock; another machine may find another placement".to_owned());
    }
    let short = unplaced.iter().any(|u| u.required);
    let solver = report(&answer, short);
    (Placement { instances, unplaced, solver, considered, variants, notes }, answer.layout)
}

/// Whether a model is under its desired replicas.
fn missing(problem: &Problem, answer: &Answer) -> bool {
    let counts = counts(problem, &answer.layout);
    problem.models.iter().enumerate().any(|(index, m)| counts.get(&index).copied().unwrap_or(0) < m.desired)
}

fn report(answer: &Answer, short: bool) -> SolverReport {
    let gap = answer.tiers.iter().map(|t| t.gap).fold(0.0, f64::max);
    let status = if short {
        "infeasible"
    } else if gap > 1e-6 {
        "feasible"
    } else {
        "optimal"
    };
    SolverReport {
        status: status.to_owned(),
        gap,
        tiers: answer.tiers.clone(),
        seed: 0,
        deterministic: !answer.aborted,
    }
}

/// Gives every copy its replica number: what stays keeps its own, new ones take the lowest free.
fn instances(problem: &Problem, answer: &Answer) -> Vec<Placed> {
    let choice = Choice::of(problem, &answer.layout);
    let mut placed = Vec::new();
    for (model, demand) in problem.models.iter().enumerate() {
        let mut used = BTreeSet::new();
        let mut free: Vec<&Copy> = Vec::new();
        for running in problem.running.iter().filter(|r| r.model == demand.name && is_pinned(problem, r)) {
            used.insert(running.replica);
            placed.extend(pinned(problem, model, running));
        }
        for copy in answer.layout.iter().filter(|c| c.model == model) {
            match copy.kept.map(|index| problem.running[index].replica) {
                Some(replica) if used.insert(replica) => placed.push(instance(problem, &choice, copy, replica)),
                _ => free.push(copy),
            }
        }
        free.sort_by_key(|copy| {
            let shape = &demand.shapes[copy.shape];
            (shape.node, copy.accelerators.clone(), copy.shape)
        });
        for copy in free {
            let replica = (0..).find(|n| !used.contains(n)).unwrap_or(u32::MAX);
            used.insert(replica);
            placed.push(instance(problem, &choice, copy, replica));
        }
    }
    placed.sort_by(|a, b| (&a.model, a.replica).cmp(&(&b.model, b.replica)));
    placed
}

fn instance(problem: &Problem, choice: &Choice<'_>, copy: &Copy, replica: u32) -> Placed {
    let better = choice.better(copy);
    let demand = &problem.models[copy.model];
    let shape = &demand.shapes[copy.shape];
    let node = &problem.nodes[shape.node];
    let ranks = shape.ranks.max(1);
    let per_accelerator = copy
        .accelerators
        .iter()
        .enumerate()
        .map(|(rank, position)| {
            let accelerator = &node.accelerators[*position];
            PlacedMemory {
                capacity_bytes: accelerator.capacity_bytes,
                device_total_bytes: accelerator.total_bytes,
                ..shape.stages.get(rank).copied().unwrap_or(shape.per_accelerator)
            }
        })
        .collect();
    Placed {
        model: demand.name.clone(),
        replica,
        node: node.name.clone(),
        engine: shape.engine,
        engine_version: shape.engine_version.clone(),
        program: shape.program.clone(),
        candidate: shape.candidate,
        accelerators: copy.accelerators.iter().map(|p| node.accelerators[*p].uuid.clone()).collect(),
        tensor_parallel: if shape.pipeline { 1 } else { ranks },
        pipeline_parallel: if shape.pipeline { ranks } else { 1 },
        context: demand.candidates.get(shape.candidate).map_or(0, |c| c.context),
        per_accelerator,
        host: PlacedMemory { capacity_bytes: node.host_capacity_bytes, device_total_bytes: 0, ..shape.host },
        because: choice.because(copy, &better),
        better,
    }
}

/// An instance on a node whose facts are unknown: it stays as it is, its figures are not known.
fn pinned(problem: &Problem, model: usize, running: &Running) -> Option<Placed> {
    let demand = &problem.models[model];
    let candidate = demand.candidates.iter().position(|c| c.label == running.variant)?;
    let ranks = running.accelerators.len().max(1) as u32;
    Some(Placed {
        model: demand.name.clone(),
        replica: running.replica,
        node: running.node.clone(),
        engine: running.engine?,
        engine_version: None,
        program: String::new(),
        candidate,
        accelerators: running.accelerators.clone(),
        tensor_parallel: ranks,
        pipeline_parallel: 1,
        context: demand.candidates[candidate].context,
        per_accelerator: vec![PlacedMemory::default(); running.accelerators.len()],
        host: PlacedMemory::default(),
        because: "runs on a node that cannot be reached; it stays as it is".to_owned(),
        better: Vec::new(),
    })
}

/// Replicas placed per model name, the pinned ones counted.
pub fn counts(problem: &Problem, layout: &[Copy]) -> BTreeMap<usize, u32> {
    let pinned = super::layout::pinned(problem);
    let mut counts: BTreeMap<usize, u32> = pinned.into_iter().enumerate().collect();
    for copy in layout {
        *counts.entry(copy.model).or_default() += 1;
    }
    counts
}
