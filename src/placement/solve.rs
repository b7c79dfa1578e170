//! From a problem to a placement: tiers, numbers of replicas, refusals and what was considered.

use std::collections::{BTreeMap, BTreeSet};

use crate::placement::build::classes;
use crate::placement::exact::columns::Formulation;
use crate::placement::exact::damping;
use crate::placement::exact::tiers::{self, Answer, Watch};
use crate::placement::layout::{Copy, Layout, is_pinned};
use crate::placement::words::choice::Choice;
use crate::placement::words::{considered, kept, policies, refuse, victims};
use crate::placement::{
    Elsewhere, Placed, PlacedMemory, Placement, Problem, Role, Running, SolverReport, egress, large,
};

/// Solves a problem. The problem must be sorted (`Problem::sort`); equal problems give equal placements.
pub fn solve(problem: &Problem) -> Placement {
    solve_with_layout(problem, Watch::NONE).0
}

/// The same, with the copies that it means.
pub fn solve_with_layout(problem: &Problem, events: Watch<'_>) -> (Placement, Layout) {
    let mut notes = problem.notes.clone();
    let answer = answer(problem, &mut notes, events);
    let placement = told(problem, &answer, notes);
    // Every plan that any test of this crate makes is looked at.
    #[cfg(test)]
    assert_eq!(super::check(problem, &placement), Vec::<String>::new());
    (placement, answer.layout)
}

fn answer(problem: &Problem, notes: &mut Vec<String>, events: Watch<'_>) -> Answer {
    let accelerators = problem.accelerators();
    if accelerators > problem.limits.exact_accelerators {
        if !problem.traffic.is_empty() {
            notes.push(
                "a large cluster: replicas were brought nearer to what they talk to one by one, and the objective's bound \
                 takes traffic for free"
                    .to_owned(),
            );
        }
        let answer = large::solve(problem, &problem.limits, events);
        // With what runs besides, looking at every accelerator takes minutes.
        return match accelerators <= problem.limits.exact_accelerators * 4 / 3 && problem.running.is_empty() {
            true => closer(problem, answer, notes, events),
            false => answer,
        };
    }
    exact(problem, notes, events)
}

/// Branch-and-bound nodes of each tier where counts of equal accelerators left a minimum open.
const CLOSER_NODES: i32 = 100;

/// The answer, or where it misses a minimum that its bound allows, a better one by looking at every accelerator.
fn closer(problem: &Problem, answer: Answer, notes: &mut Vec<String>, events: Watch<'_>) -> Answer {
    let open = |tier: &crate::placement::Tier| tier.name.starts_with("minimum") && tier.bound > tier.value + 0.5;
    if !answer.tiers.iter().any(open) {
        return answer;
    }
    let mut closer = problem.clone();
    (closer.limits.nodes, closer.threshold) = (closer.limits.nodes.min(CLOSER_NODES), 0.0);
    let other = exact(&closer, notes, events);
    if short_of_minimum(problem, &other) < short_of_minimum(problem, &answer) { other } else { answer }
}

/// Replicas missing of the minimum, by rank from the top.
fn short_of_minimum(problem: &Problem, answer: &Answer) -> Vec<u32> {
    let counts = counts(problem, &answer.layout);
    let mut missing: BTreeMap<std::cmp::Reverse<u32>, u32> = BTreeMap::new();
    for (index, model) in problem.models.iter().enumerate() {
        let placed = counts.get(&index).copied().unwrap_or(0);
        *missing.entry(std::cmp::Reverse(model.rank)).or_default() += model.min.saturating_sub(placed);
    }
    missing.into_values().collect()
}

/// With every accelerator looked at by itself.
fn exact(problem: &Problem, notes: &mut Vec<String>, events: Watch<'_>) -> Answer {
    if !problem.alike.is_empty() {
        let (apart, origins) = classes::apart(problem);
        let mut answer = exact(&apart, notes, events);
        answer.layout.iter_mut().for_each(|copy| copy.shape = origins[copy.model][copy.shape]);
        return answer;
    }
    let mut formulation = Formulation::new(problem, false);
    let mut limits = problem.limits;
    if formulation.program.columns.len() > limits.large {
        limits.gap = limits.gap.max(limits.large_gap);
        formulation = Formulation::new(problem, true);
        notes.push("a large cluster: of the splits of a model only the smallest two were compared".to_owned());
    }
    let mut answer = tiers::solve(&formulation, &limits, events);
    if limits != problem.limits && missing(problem, &answer) {
        notes.pop();
        formulation = Formulation::new(problem, false);
        answer = tiers::solve(&formulation, &limits, events);
    }
    let (answer, stays) = damping::damp(&formulation, &limits, answer);
    notes.extend(stays);
    answer
}

/// The placement that an answer means, with all its words.
pub fn told(problem: &Problem, answer: &Answer, mut notes: Vec<String>) -> Placement {
    notes.extend(policies::unhedged(problem, &answer.layout));
    notes.extend(kept::kept(problem, &answer.layout));
    let instances = instances(problem, answer);
    let ways = egress::choose(problem, &instances);
    let mut unplaced = refuse::unplaced(problem, &answer.layout);
    unplaced.extend(ways.unplaced);
    unplaced.sort_by(|a, b| a.model.cmp(&b.model));
    notes.extend(ways.notes);
    let considered = considered::considered(problem, &answer.layout);
    let choice = Choice::of(problem, &answer.layout);
    let variants = choice.variants();
    notes.extend(choice.unchecked());
    if answer.aborted {
        notes.push("the solver was stopped by the clock; another machine may find another placement".to_owned());
    }
    let short = unplaced.iter().any(|u| u.required);
    if short && let Some(tier) = answer.tiers.iter().find(|t| t.name.starts_with("minimum") && t.bound > t.value + 0.5)
    {
        notes.push(format!(
            "{}: {} were found, and it is not proved that no more than {} are possible",
            tier.name, tier.value, tier.bound
        ));
    }
    let solver = report(answer, short);
    let victims = victims::victims(problem, &answer.layout);
    let several = problem.alike.iter().filter(|nodes| nodes.len() > 1);
    let alike = several.map(|nodes| nodes.iter().map(|node| problem.nodes[*node].name.clone()).collect()).collect();
    Placement { instances, egress: ways.egress, unplaced, solver, considered, variants, alike, victims, notes }
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
pub fn instances(problem: &Problem, answer: &Answer) -> Vec<Placed> {
    let choice = Choice::of(problem, &answer.layout);
    let mut placed = Vec::new();
    let mut by_model: Vec<Vec<&Copy>> = vec![Vec::new(); problem.models.len()];
    answer.layout.iter().for_each(|copy| by_model[copy.model].push(copy));
    let mut away: Vec<Vec<&Running>> = vec![Vec::new(); problem.models.len()];
    for running in problem.running.iter().filter(|r| is_pinned(problem, r)) {
        if let Some(model) = problem.model(&running.model) {
            away[model].push(running);
        }
    }
    for model in 0..problem.models.len() {
        let mut used = BTreeSet::new();
        let mut free: Vec<&Copy> = Vec::new();
        for running in away[model].iter().copied() {
            used.insert(running.replica);
            placed.extend(pinned(problem, model, running));
        }
        for copy in by_model[model].iter().copied() {
            match copy.kept.map(|index| problem.running[index].replica) {
                Some(replica) if used.insert(replica) => placed.push(instance(problem, &choice, copy, replica)),
                _ => free.push(copy),
            }
        }
        free.sort_by(|a, b| (a.node, &a.accelerators, a.shape).cmp(&(b.node, &b.accelerators, b.shape)));
        let mut next = 0;
        for copy in free {
            let replica = (next..).find(|n| !used.contains(n)).unwrap_or(u32::MAX);
            next = replica;
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
    let node = &problem.nodes[copy.node];
    let mut accelerators = Vec::new();
    let mut per_accelerator = Vec::new();
    let mut elsewhere: Vec<Elsewhere> = Vec::new();
    let mut rank = 0;
    let parts = std::iter::once((shape.per_accelerator, shape.host));
    let parts = parts.chain(shape.further.iter().map(|part| (part.per_accelerator, part.host)));
    for ((largest, host), (_, at, on)) in parts.zip(copy.on(shape)) {
        let supply = &problem.nodes[at];
        let mut uuids = Vec::new();
        let mut bytes = Vec::new();
        for position in on {
            let accelerator = &supply.accelerators[*position];
            uuids.push(accelerator.uuid.clone());
            bytes.push(PlacedMemory {
                capacity_bytes: accelerator.capacity_bytes,
                device_total_bytes: accelerator.total_bytes,
                ..shape.stages.get(rank).copied().unwrap_or(largest)
            });
            rank += 1;
        }
        if at == copy.node {
            accelerators.append(&mut uuids);
            per_accelerator.append(&mut bytes);
        } else {
            let host = PlacedMemory { capacity_bytes: supply.host_capacity_bytes, device_total_bytes: 0, ..host };
            let node = supply.name.clone();
            let engine = supply.engines.iter().find(|engine| engine.kind == shape.engine);
            let worker = engine.and_then(|engine| engine.worker.clone()).zip(supply.address.clone());
            elsewhere.push(Elsewhere { node, accelerators: uuids, per_accelerator: bytes, host, worker });
        }
    }
    let (tensor_parallel, pipeline_parallel) = shape.split();
    let apart = shape.further.iter().any(|part| part.role == Some(Role::Vision));
    let vision = if apart { Some(accelerators.len().saturating_sub(1)) } else { shape.vision.then_some(0) };
    Placed {
        model: demand.name.clone(),
        replica,
        node: node.name.clone(),
        engine: shape.engine,
        engine_version: shape.engine_version.clone(),
        program: shape.program.clone(),
        candidate: shape.candidate,
        accelerators,
        tensor_parallel,
        pipeline_parallel,
        context: demand.candidates.get(shape.candidate).map_or(0, |c| c.context),
        layers: shape.layers.clone(),
        held: shape.held.clone(),
        vision,
        elsewhere,
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
        layers: running.layers.clone(),
        held: None,
        vision: None,
        elsewhere: Vec::new(),
        per_accelerator: vec![PlacedMemory::default(); running.accelerators.len()],
        host: PlacedMemory::default(),
        because: "runs on a node that cannot be reached; it stays as it is".to_owned(),
        better: Vec::new(),
    })
}

/// Replicas placed per model name, the pinned ones counted.
pub fn counts(problem: &Problem, layout: &[Copy]) -> BTreeMap<usize, u32> {
    let pinned = crate::placement::layout::pinned(problem);
    let mut counts: BTreeMap<usize, u32> = pinned.into_iter().enumerate().collect();
    for copy in layout {
        *counts.entry(copy.model).or_default() += 1;
    }
    counts
}
