//! Why a replica has no place, as a set of constraints that cannot hold together and of which none can be left out: a
//! deletion filter over changed problems, each of them solved.
//!
//! All constraints are dropped first: where that does not help, none of them is the reason. Then each is dropped for
//! good if the replica has no place without it either; what remains is irreducible. Whether dropping one of the rest
//! *alone* is enough is solved as well, because there may be several such sets.

use std::collections::{BTreeMap, BTreeSet};

use crate::base::format_bytes;
use crate::config::Desired;
use crate::placement::explain::change::Change;
use crate::placement::explain::trial::{Inputs, Trials, budget};
use crate::placement::{ModelDemand, Obstacle, Problem};

/// Nodes beyond which equal ones are one constraint.
const MANY_NODES: usize = 6;

/// A constraint: what would drop it, and how it is told.
struct Constraint {
    drop: Change,
    told: Obstacle,
}

/// An irreducible set of constraints that keep one more replica of a model from its place; empty where there is none
/// (no change of these kinds would help), or where it would take too long to find.
pub fn together(inputs: Inputs<'_>, problem: &Problem, model: usize) -> Vec<Obstacle> {
    let mut trials = Trials::new(inputs, budget(problem));
    let demand = &problem.models[model];
    let kinds = constraints(inputs, problem, demand);
    // How many it has when all others of its rank come first: of equal models any may be the one without a place, so
    // that another answer as good as this one is not taken for a change that helps.
    let Some(already) = placed_last(&mut trials, &[], demand) else { return Vec::new() };
    let mut places = |dropped: &[&Constraint]| -> Option<bool> {
        let changes: Vec<&Change> = dropped.iter().map(|constraint| &constraint.drop).collect();
        Some(placed_last(&mut trials, &changes, demand)? > already)
    };
    let all: Vec<&Constraint> = kinds.iter().flatten().collect();
    if places(&all) != Some(true) {
        return Vec::new();
    }
    // Whole kinds first: most of them have nothing to do with it.
    let mut dropped: Vec<&Constraint> = Vec::new();
    let mut open: Vec<&[Constraint]> = Vec::new();
    for kind in kinds.iter().filter(|kind| !kind.is_empty()) {
        let tried: Vec<&Constraint> = dropped.iter().copied().chain(kind).collect();
        match places(&tried) {
            Some(false) => dropped = tried,
            Some(true) => open.push(kind),
            None => return Vec::new(),
        }
    }
    let mut kept: Vec<&Constraint> = Vec::new();
    for kind in open {
        for constraint in kind {
            let tried: Vec<&Constraint> = dropped.iter().copied().chain([constraint]).collect();
            match places(&tried) {
                Some(false) => dropped = tried,
                Some(true) => kept.push(constraint),
                None => return Vec::new(),
            }
        }
    }
    // What was kept early may not be needed any more now that all else is dropped.
    if kept.len() > 1 {
        for constraint in std::mem::take(&mut kept) {
            let tried: Vec<&Constraint> = dropped.iter().copied().chain([constraint]).collect();
            match places(&tried) {
                Some(false) => dropped = tried,
                Some(true) | None => kept.push(constraint),
            }
        }
    }
    let told = |constraint: &&Constraint| {
        let alone = places(&[constraint]).unwrap_or(false);
        let mut told = Obstacle { alone, ..constraint.told.clone() };
        if !alone && let Some(beside) = beside(inputs, problem, demand, constraint, &dropped, already) {
            told.text = format!("{}; it would not do without dropping {beside} too", told.text);
        }
        told
    };
    kept.iter().map(told).collect()
}

/// What else must go where dropping one constraint is not enough: the least of what else is dropped, in words. `None`
/// where it would take too long to find.
fn beside(
    inputs: Inputs<'_>,
    problem: &Problem,
    demand: &ModelDemand,
    constraint: &Constraint,
    dropped: &[&Constraint],
    already: u32,
) -> Option<String> {
    let mut trials = Trials::new(inputs, budget(problem));
    let mut needed: Vec<&Constraint> = dropped.to_vec();
    let mut word: Vec<&str> = needed.iter().map(|other| other.told.constraint.as_str()).collect();
    word.dedup();
    let mut enough = |others: &[&Constraint]| -> Option<bool> {
        let changes: Vec<&Change> = others.iter().copied().chain([constraint]).map(|other| &other.drop).collect();
        Some(placed_last(&mut trials, &changes, demand)? > already)
    };
    // All of a kind first, then each.
    for word in word {
        let without: Vec<&Constraint> = needed.iter().copied().filter(|o| o.told.constraint != word).collect();
        if without.len() < needed.len() && enough(&without)? {
            needed = without;
        }
    }
    for at in (0..needed.len()).rev() {
        let mut without = needed.clone();
        without.remove(at);
        if enough(&without)? {
            needed = without;
        }
    }
    let told: Vec<&str> = needed.iter().map(|other| other.told.text.as_str()).collect();
    (!told.is_empty()).then(|| told.join(" and "))
}

/// Replicas of a model with these changes where all others of its rank come before it; `None` where no solve is left.
fn placed_last(trials: &mut Trials<'_>, changes: &[&Change], demand: &ModelDemand) -> Option<u32> {
    let after_equals = |problem: &mut Problem| {
        for other in &mut problem.models {
            let below = u32::from(other.name == demand.name);
            other.rank = other.rank.saturating_mul(2).saturating_add(1).saturating_sub(below);
        }
    };
    Some(trials.solve_as(changes, false, after_equals)?.placed(&demand.name))
}

/// Limits on traffic between agents of a model and others, with what to say of each.
pub(in crate::placement) fn limits(desired: &Desired, model: &str) -> Vec<(Change, String)> {
    let plays = |agent: &str| desired.agents.get(agent).is_some_and(|agent| agent.model.value == model);
    let mut found = Vec::new();
    for (name, workflow) in &desired.workflows {
        for traffic in &workflow.traffic {
            let (from, to) = (&traffic.from.value, &traffic.to.value);
            let Some(limit) = traffic.max_latency.as_ref().filter(|_| plays(from) != plays(to)) else { continue };
            let limit = crate::placement::egress::ms(u64::try_from(limit.value.as_micros()).unwrap_or(u64::MAX));
            let text = format!("the `max-latency` of {limit} between agents {from} and {to} (workflow {name})");
            let change = Change::NoLatencyLimit { workflow: name.clone(), from: from.clone(), to: to.clone() };
            found.push((change, text));
        }
    }
    found
}

/// All constraints that might have to do with it, by kind; those that people would rather change come last, so that
/// they are what remains of several that would do.
fn constraints(inputs: Inputs<'_>, problem: &Problem, demand: &ModelDemand) -> Vec<Vec<Constraint>> {
    let nodes = groups(problem);
    let of_nodes = |make: &dyn Fn(&Vec<String>) -> Option<Constraint>| nodes.iter().filter_map(make).collect();
    let mut kinds: Vec<Vec<Constraint>> = vec![
        of_nodes(&|group| {
            let has = inputs.inventory.nodes.iter().any(|node| group.contains(&node.name) && !node.disks.is_empty());
            let drop = Change::EndlessDisk(group.clone());
            has.then(|| constraint(drop, "disk", group, format!("the disk of {}", listed(group))))
        }),
        of_nodes(&|group| {
            let words = format!("the host memory of {}", listed(group));
            Some(constraint(Change::EndlessHost(group.clone()), "ram", group, words))
        }),
        of_nodes(&|group| ports(problem, group)),
    ];
    kinds.push(policies(inputs));
    kinds.push(of_nodes(&|group| reserve(problem, group)));
    kinds.push(others(problem, demand));
    let limits = limits(inputs.desired, &demand.name).into_iter();
    kinds.push(limits.map(|(drop, text)| about(drop, "latency", &demand.name, text)).collect());
    kinds.push(own(inputs, problem, demand));
    kinds.push(of_nodes(&|group| hold(problem, group)));
    kinds.push(of_nodes(&|group| memory(problem, demand, group)));
    kinds
}

fn constraint(drop: Change, word: &str, nodes: &[String], text: String) -> Constraint {
    let told = Obstacle { constraint: word.to_owned(), nodes: nodes.to_vec(), model: None, text, alone: false };
    Constraint { drop, told }
}

fn about(drop: Change, word: &str, model: &str, text: String) -> Constraint {
    let told =
        Obstacle { constraint: word.to_owned(), nodes: Vec::new(), model: Some(model.to_owned()), text, alone: false };
    Constraint { drop, told }
}

/// Nodes of the config that answered; each for itself, or where there are many, those with the same accelerators and
/// labels together.
fn groups(problem: &Problem) -> Vec<Vec<String>> {
    let open = || problem.nodes.iter().filter(|node| node.member && node.reachable);
    if open().count() <= MANY_NODES {
        return open().map(|node| vec![node.name.clone()]).collect();
    }
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for node in open() {
        let labels: Vec<_> = node.labels.iter().filter(|(label, _)| *label != "node").collect();
        let devices: Vec<_> = node.accelerators.iter().map(|a| (&a.kind, a.capacity_bytes)).collect();
        let key = format!("{labels:?}{devices:?}{:?}", node.closed);
        groups.entry(key).or_default().push(node.name.clone());
    }
    let mut groups: Vec<Vec<String>> = groups.into_values().collect();
    groups.sort();
    groups
}

/// `ada-1, ada-2 and 7 more`.
fn listed(names: &[String]) -> String {
    const FEW: usize = 3;
    match names {
        few if few.len() <= FEW => few.join(", "),
        many => format!("{} and {} more", many[..FEW - 1].join(", "), many.len() - FEW + 1),
    }
}

fn policies(inputs: Inputs<'_>) -> Vec<Constraint> {
    let policies = &inputs.desired.policies;
    let quotas = policies
        .quotas
        .keys()
        .map(|name| constraint(Change::NoQuota(name.clone()), "quota", &[], format!("the quota `{name}`")));
    let denials = policies
        .denials
        .keys()
        .map(|name| constraint(Change::NoDenial(name.clone()), "deny", &[], format!("the denial `{name}`")));
    quotas.chain(denials).collect()
}

fn reserve(problem: &Problem, group: &[String]) -> Option<Constraint> {
    let accelerators = problem.nodes.iter().filter(|node| group.contains(&node.name)).flat_map(|n| &n.accelerators);
    let reserved = accelerators.filter(|a| !a.unified).map(|a| a.reserve_bytes).max().filter(|bytes| *bytes > 0)?;
    let text = format!("the {} that are reserved on {}", format_bytes(reserved), listed(group));
    Some(constraint(Change::NoReserve(group.to_vec()), "reserve", group, text))
}

/// Nodes with more free than this many ports and rows of them are no reason for anything.
const FEW_PORTS: u32 = 64;
const FEW_ROWS: u32 = 12;

fn ports(problem: &Problem, group: &[String]) -> Option<Constraint> {
    let here = problem.nodes.iter().filter(|node| group.contains(&node.name));
    let mut few = here.filter_map(|node| node.ports.as_ref()).filter(|p| p.free < FEW_PORTS || p.rows < FEW_ROWS);
    let range = few.next()?;
    let text = format!("the ports of {} ({} of {}-{} are free)", listed(group), range.free, range.low, range.high);
    Some(constraint(Change::EndlessPorts(group.to_vec()), "port", group, text))
}

fn hold(problem: &Problem, group: &[String]) -> Option<Constraint> {
    let held = |node: &&crate::placement::NodeSupply| group.contains(&node.name) && !node.drained;
    let closed = problem.nodes.iter().filter(held).find_map(|node| node.closed.as_ref())?;
    let text = format!("{} ({})", closed.1, listed(group));
    (closed.0 == "hold").then(|| constraint(Change::NoHold(group.to_vec()), "hold", group, text))
}

/// The memory of nodes, with the least that a way to run the model needs there and what it may use.
fn memory(problem: &Problem, demand: &ModelDemand, group: &[String]) -> Option<Constraint> {
    let nodes: Vec<&crate::placement::NodeSupply> =
        problem.nodes.iter().filter(|node| group.contains(&node.name)).collect();
    let most = nodes.iter().flat_map(|node| &node.accelerators).map(|a| a.capacity_bytes).max()?;
    let fitting = demand.shapes.iter().filter(|shape| nodes.iter().any(|n| n.name == problem.nodes[shape.node].name));
    let fitting = fitting.filter(|shape| shape.ranks > 0).map(|shape| (shape.claimed(), shape.ranks));
    let removed = demand.removed.iter().filter(|r| r.reason.constraint == "memory" && group.contains(&r.reason.node));
    let removed = removed.filter_map(|r| Some((r.reason.needed?, r.ranks.unwrap_or(1))));
    let least = fitting.chain(removed).min_by_key(|(bytes, ranks)| (bytes.saturating_mul(u64::from(*ranks)), *ranks));
    let needs = match least {
        Some((bytes, 1)) => format!("; on one it needs {}", format_bytes(bytes)),
        Some((bytes, ranks)) => format!("; on each of {ranks} it needs {}", format_bytes(bytes)),
        None => String::new(),
    };
    let text = format!("the memory of {} ({} usable on an accelerator{needs})", listed(group), format_bytes(most));
    Some(constraint(Change::EndlessMemory(group.to_vec()), "memory", group, text))
}

/// Other models, protections, and that it may not displace what runs.
fn others(problem: &Problem, demand: &ModelDemand) -> Vec<Constraint> {
    let runs: BTreeSet<&str> = problem.running.iter().map(|running| running.model.as_str()).collect();
    let mut found = Vec::new();
    for other in problem.models.iter().filter(|other| other.name != demand.name) {
        if other.protected && runs.contains(other.name.as_str()) {
            let text = format!("the protection of `{}`, which keeps its place", other.name);
            found.push(about(Change::NoProtection(other.name.clone()), "protect", &other.name, text));
        }
    }
    let lower = |name: &&str| problem.model(name).is_some_and(|model| problem.models[model].rank < demand.rank);
    if !demand.preempts && runs.iter().any(lower) {
        let text = format!("`{}` may not displace what runs (no `preempts=#true`)", demand.name);
        found.push(about(Change::Preempt(demand.name.clone()), "preempt", &demand.name, text));
    }
    for other in problem.models.iter().filter(|other| other.name != demand.name && other.desired > 0) {
        let how = match other.rank.cmp(&demand.rank) {
            std::cmp::Ordering::Greater => "which ranks higher",
            std::cmp::Ordering::Equal => "of the same rank",
            std::cmp::Ordering::Less if runs.contains(other.name.as_str()) => "which runs",
            std::cmp::Ordering::Less => "whose minimum comes before what is only desired",
        };
        found.push(about(
            Change::Without(other.name.clone()),
            "model",
            &other.name,
            format!("the place that `{}` takes, {how}", other.name),
        ));
    }
    found
}

/// What the model's own declaration asks.
fn own(inputs: Inputs<'_>, problem: &Problem, demand: &ModelDemand) -> Vec<Constraint> {
    let Some(model) = inputs.desired.models.get(&demand.name) else { return Vec::new() };
    let name = &demand.name;
    let mut found = Vec::new();
    for rule in &model.place.require {
        let text = format!("`require label=\"{}\" is=\"{}\"`", rule.value.label, rule.value.is);
        found.push(about(Change::NoSelector(name.clone(), rule.value.label.clone()), "selector", name, text));
    }
    if let Some(label) = &model.place.spread_by {
        let text = format!("`spread by=\"{}\"`: no two replicas there", label.value);
        found.push(about(Change::NoSpread(name.clone()), "spread", name, text));
    }
    if let Some(min) = &model.min_quality {
        let text = format!("`quality min=\"{}\"`", min.value);
        found.push(about(Change::NoQuality(name.clone()), "quality", name, text));
    }
    if !model.engines.is_empty() {
        let engines: Vec<&str> = model.engines.iter().map(|engine| engine.value.word()).collect();
        let text = format!("the choice of {} as its engine", engines.join(" or "));
        found.push(about(Change::AnyEngine(name.clone()), "engine", name, text));
    }
    let llama = problem.nodes.iter().flat_map(|n| &n.engines).any(|e| e.kind == crate::base::EngineKind::LlamaCpp);
    if !model.place.allow_cpu && llama {
        let text = "the ban on the CPU (no `allow cpu=#true`)".to_owned();
        found.push(about(Change::Cpu(name.clone()), "cpu", name, text));
    }
    found
}
