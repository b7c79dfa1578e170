//! An independent check of a placement against its problem. Shares no code with the solver.

use std::collections::{BTreeMap, BTreeSet};

use super::{ModelDemand, NodeSupply, Placed, Placement, Problem};

/// Everything that is wrong with a placement; empty where nothing is.
pub fn check(problem: &Problem, placement: &Placement) -> Vec<String> {
    let mut faults = Vec::new();
    let models: BTreeMap<&str, &ModelDemand> = problem.models.iter().map(|m| (m.name.as_str(), m)).collect();
    let nodes: BTreeMap<&str, &NodeSupply> = problem.nodes.iter().map(|n| (n.name.as_str(), n)).collect();
    let mut seen = BTreeSet::new();
    for placed in &placement.instances {
        let name = format!("{} replica {} on {}", placed.model, placed.replica, placed.node);
        if !seen.insert((placed.model.as_str(), placed.replica)) {
            faults.push(format!("{name}: this replica is placed twice"));
        }
        let (Some(model), Some(node)) = (models.get(placed.model.as_str()), nodes.get(placed.node.as_str())) else {
            faults.push(format!("{name}: there is no such model or node"));
            continue;
        };
        if node.reachable {
            instance(problem, model, node, placed, &name, &mut faults);
        } else if !runs(problem, placed) {
            faults.push(format!("{name}: the node cannot be reached and it does not run there"));
        }
    }
    capacity(problem, placement, &nodes, &mut faults);
    for model in &problem.models {
        copies(problem, placement, model, &nodes, &mut faults);
    }
    priorities(problem, placement, &models, &mut faults);
    faults.sort();
    faults
}

/// Whether an instance of this model and variant runs on exactly these accelerators.
fn runs(problem: &Problem, placed: &Placed) -> bool {
    let label = problem
        .models
        .iter()
        .find(|m| m.name == placed.model)
        .and_then(|m| m.candidates.get(placed.candidate))
        .map(|c| c.label.as_str());
    problem.running.iter().any(|r| {
        r.model == placed.model
            && r.node == placed.node
            && r.accelerators == placed.accelerators
            && Some(r.variant.as_str()) == label
            && r.engine == Some(placed.engine)
    })
}

/// What can be said of one instance alone.
fn instance(
    problem: &Problem,
    model: &ModelDemand,
    node: &NodeSupply,
    placed: &Placed,
    name: &str,
    faults: &mut Vec<String>,
) {
    let stays = runs(problem, placed);
    if !node.member {
        faults.push(format!("{name}: the node is not in the config"));
    }
    if node.closed.is_some() && !stays {
        faults.push(format!("{name}: nothing new may be placed on this node"));
    }
    for (label, is) in &model.require {
        let value = if label == "node" { Some(&node.name) } else { node.labels.get(label) };
        if value != Some(is) {
            faults.push(format!("{name}: `{label}` must be `{is}`"));
        }
    }
    let Some(candidate) = model.candidates.get(placed.candidate) else {
        faults.push(format!("{name}: there is no candidate {}", placed.candidate));
        return;
    };
    if candidate.only_on.as_ref().is_some_and(|nodes| !nodes.contains(&node.name)) {
        faults.push(format!("{name}: the weights are not on this node"));
    }
    let engine = node
        .engines
        .iter()
        .any(|e| e.kind == placed.engine && e.version == placed.engine_version && e.program == placed.program);
    if !engine {
        faults.push(format!("{name}: this engine is not on the node"));
    }
    let distinct: BTreeSet<&String> = placed.accelerators.iter().collect();
    if distinct.len() != placed.accelerators.len() {
        faults.push(format!("{name}: an accelerator is used twice"));
    }
    let accelerators: Vec<_> =
        distinct.iter().filter_map(|uuid| node.accelerators.iter().find(|a| a.uuid == **uuid)).collect();
    if accelerators.len() != distinct.len() {
        faults.push(format!("{name}: an accelerator is not on this node"));
    }
    let ranks = placed.tensor_parallel * placed.pipeline_parallel;
    if ranks as usize != placed.accelerators.len().max(1) || placed.per_accelerator.len() != placed.accelerators.len() {
        faults.push(format!("{name}: {ranks} ranks on {} accelerators", placed.accelerators.len()));
    }
    let legal = candidate.legal_ranks.get(&placed.engine);
    if placed.tensor_parallel > 1 && !legal.is_some_and(|ranks| ranks.contains(&placed.tensor_parallel)) {
        faults.push(format!("{name}: tensor parallelism of {} is not legal", placed.tensor_parallel));
    }
    if accelerators.len() > 1 {
        let kinds: BTreeSet<&str> = accelerators.iter().map(|a| a.kind.as_str()).collect();
        if kinds.len() > 1 {
            faults.push(format!("{name}: the accelerators are not equal"));
        }
        if accelerators.iter().any(|a| a.mig) {
            faults.push(format!("{name}: MIG slices cannot work together in one process"));
        }
    }
    if accelerators.iter().any(|a| !a.healthy) && !(stays && model.protected) {
        faults.push(format!("{name}: an accelerator is not healthy"));
    }
}

/// Bytes on every accelerator and of every host. What protected instances hold counts as available to them.
fn capacity(problem: &Problem, placement: &Placement, nodes: &BTreeMap<&str, &NodeSupply>, faults: &mut Vec<String>) {
    let (running, running_hosts) = running_loads(problem);
    let mut accelerators: BTreeMap<(&str, &str), (u64, u64)> = BTreeMap::new();
    let mut hosts: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for placed in &placement.instances {
        let Some(node) = nodes.get(placed.node.as_str()) else { continue };
        if !node.reachable {
            continue;
        }
        let fixed = problem.models.iter().any(|m| m.name == placed.model && m.protected) && runs(problem, placed);
        let mut pool = placed.host.total_bytes();
        for (uuid, memory) in placed.accelerators.iter().zip(&placed.per_accelerator) {
            let entry = accelerators.entry((&placed.node, uuid)).or_default();
            entry.0 += memory.total_bytes();
            entry.1 += if fixed { memory.total_bytes() } else { 0 };
            if node.accelerators.iter().any(|a| a.uuid == *uuid && a.unified) {
                pool += memory.total_bytes();
            }
        }
        let entry = hosts.entry(&placed.node).or_default();
        entry.0 += pool;
        entry.1 += if fixed { pool } else { 0 };
    }
    for ((node, uuid), (used, fixed)) in accelerators {
        let supply = nodes.get(node).and_then(|n| n.accelerators.iter().find(|a| a.uuid == uuid));
        let usable = supply.map_or(0, |a| a.capacity_bytes);
        let runs = running.get(&(node, uuid)).copied().unwrap_or(0);
        let most = usable.max(fixed).max(if runs <= usable + WOBBLE { runs } else { 0 });
        if used > most {
            faults.push(format!("{node} {uuid}: {used} bytes are planned, {most} may be used"));
        }
    }
    for (node, (used, fixed)) in hosts {
        let usable = nodes.get(node).map_or(0, |n| n.host_capacity_bytes);
        let runs = running_hosts.get(node).copied().unwrap_or(0);
        let wobble = (usable / 8).max(4 * WOBBLE);
        let most = usable.max(fixed).max(if runs <= usable + wobble { runs } else { 0 });
        if used > most {
            faults.push(format!("{node}: {used} bytes of host memory are planned, {most} may be used"));
        }
    }
}

/// Number of copies and spread.
fn copies(
    problem: &Problem,
    placement: &Placement,
    model: &ModelDemand,
    nodes: &BTreeMap<&str, &NodeSupply>,
    faults: &mut Vec<String>,
) {
    let mine: Vec<&Placed> = placement.instances.iter().filter(|p| p.model == model.name).collect();
    let running = problem.running.iter().filter(|r| r.model == model.name).count();
    let unreachable = mine.iter().filter(|p| nodes.get(p.node.as_str()).is_some_and(|n| !n.reachable)).count();
    let most = if model.protected { running.max(model.desired as usize) } else { model.desired as usize };
    if mine.len() > most.max(unreachable) {
        faults.push(format!("{}: {} replicas are placed, {most} are wanted", model.name, mine.len()));
    }
    let Some(label) = &model.spread_by else { return };
    let mut values: BTreeMap<String, usize> = BTreeMap::new();
    for placed in mine.iter().filter(|p| !(runs(problem, p) && model.protected)) {
        let Some(node) = nodes.get(placed.node.as_str()) else { continue };
        if !node.reachable {
            continue;
        }
        let value =
            if label == "node" { node.name.clone() } else { node.labels.get(label).cloned().unwrap_or_default() };
        *values.entry(value).or_default() += 1;
    }
    for (value, count) in values.into_iter().filter(|(_, count)| *count > 1) {
        faults.push(format!("{}: {count} replicas where `{label}` is `{value}`", model.name));
    }
}

/// Nothing protected loses its place, and nothing loses replicas that no higher, preempting rank can have taken.
fn priorities(
    problem: &Problem,
    placement: &Placement,
    models: &BTreeMap<&str, &ModelDemand>,
    faults: &mut Vec<String>,
) {
    let preempting = |rank: u32| problem.models.iter().any(|m| m.preempts && m.rank > rank);
    for model in models.values() {
        let fits = |r: &&super::Running| r.model == model.name && possible(problem, model, r);
        let running: Vec<_> = problem.running.iter().filter(fits).collect();
        let stays = |r: &&&super::Running| {
            placement
                .instances
                .iter()
                .any(|p| p.model == r.model && p.node == r.node && p.accelerators == r.accelerators)
        };
        let kept = running.iter().filter(stays).count();
        if model.protected && kept < running.len() {
            faults.push(format!("{}: it is protected, but a running instance would lose its place", model.name));
        }
        let placed = placement.instances.iter().filter(|p| p.model == model.name).count();
        let claim = running.len().min(model.desired as usize);
        if placed < claim && !preempting(model.rank) && room(problem) {
            faults.push(format!("{}: it would lose a replica though nothing may preempt it", model.name));
        }
    }
}

/// Whether an instance could stay as it is: the node is there and the model may still run so.
fn possible(problem: &Problem, model: &ModelDemand, running: &super::Running) -> bool {
    let node = problem.nodes.iter().position(|n| n.name == running.node);
    let Some(node) = node.filter(|n| problem.nodes[*n].reachable && problem.nodes[*n].member) else { return false };
    let supply = &problem.nodes[node];
    if supply.drained && !model.protected {
        return false;
    }
    let usable = running
        .accelerators
        .iter()
        .all(|uuid| supply.accelerators.iter().any(|a| a.uuid == *uuid && (a.healthy || model.protected)));
    usable
        && model.shapes.iter().any(|s| {
            s.node == node
                && Some(s.engine) == running.engine
                && s.ranks as usize == running.accelerators.len()
                && model.candidates.get(s.candidate).is_some_and(|c| c.label == running.variant)
                && running
                    .accelerators
                    .iter()
                    .all(|uuid| s.group.iter().any(|p| supply.accelerators.get(*p).is_some_and(|a| a.uuid == *uuid)))
        })
}

/// Whoever plans may count memory in whole MiB.
const MARGIN: u64 = 1 << 20;

/// By how much what runs may exceed what can be used and stay: figures of free memory move a little.
const WOBBLE: u64 = 512 << 20;

type ByDevice<'p> = BTreeMap<(&'p str, &'p str), u64>;

/// Bytes that running instances take as their models are sized now, by accelerator and by node; whole MiB.
fn running_loads(problem: &Problem) -> (ByDevice<'_>, BTreeMap<&str, u64>) {
    let mut used = ByDevice::new();
    let mut hosts: BTreeMap<&str, u64> = BTreeMap::new();
    let up = |bytes: u64| bytes.div_ceil(MARGIN) * MARGIN;
    for running in &problem.running {
        let Some(model) = problem.models.iter().find(|m| m.name == running.model) else { continue };
        let Some(node) = problem.nodes.iter().position(|n| n.name == running.node) else { continue };
        let shape = model.shapes.iter().find(|s| {
            s.node == node
                && Some(s.engine) == running.engine
                && s.ranks as usize == running.accelerators.len()
                && model.candidates.get(s.candidate).is_some_and(|c| c.label == running.variant)
        });
        let Some(shape) = shape else { continue };
        let bytes = shape.per_accelerator.total_bytes().max(shape.claim_bytes);
        for uuid in &running.accelerators {
            *used.entry((&running.node, uuid)).or_default() += up(bytes);
            let supply = problem.nodes[node].accelerators.iter().find(|a| a.uuid == *uuid);
            if supply.is_some_and(|a| a.unified) {
                *hosts.entry(&running.node).or_default() += up(bytes);
            }
        }
        *hosts.entry(&running.node).or_default() += up(shape.host.total_bytes());
    }
    (used, hosts)
}

/// Whether everything that runs fits together; where it does not, somebody has to lose.
fn room(problem: &Problem) -> bool {
    let (used, hosts) = running_loads(problem);
    let spread = problem.models.iter().any(|m| m.spread_by.is_some());
    let accelerators = used.iter().all(|((node, uuid), bytes)| {
        let node = problem.nodes.iter().find(|n| n.name == *node);
        node.and_then(|n| n.accelerators.iter().find(|a| a.uuid == *uuid)).is_some_and(|a| *bytes <= a.capacity_bytes)
    });
    let hosts = hosts
        .iter()
        .all(|(node, bytes)| problem.nodes.iter().any(|n| n.name == **node && *bytes <= n.host_capacity_bytes));
    accelerators && hosts && !spread
}
