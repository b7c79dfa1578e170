//! What models and providers send to each other, from the config: `traffic` of workflows, steps that follow each other,
//! `near`; and the ways out to providers that need an egress node.
//!
//! Agents talk; what has a place is the model that plays them, or the egress node of an agent whose model is a provider's.
//! Between two providers nothing is placed, and an agent that talks to another one of the same model needs no way.

use std::collections::{BTreeMap, BTreeSet};

use crate::base::{KIB, MIB};
use crate::config::{Action, Connection, Desired, Workflow};
use crate::inventory::{Inventory, endpoint_of};
use crate::placement::{Distances, End, Problem, Traffic, Via, WayOut};

/// Bytes per turn of traffic that does not say: a few pages of text.
pub const DEFAULT_PER_TURN: u64 = 16 * KIB;
/// Weight of traffic that only follows from the order of steps, beside 1 of declared traffic and of `near`.
pub const IMPLIED_WEIGHT: f64 = 0.25;
/// Bytes per turn that `near` stands for: an image.
pub const NEAR_PER_TURN: u64 = MIB;
/// Share of what is expected of an egress node by which another must be better, unless the policies say.
const EGRESS_THRESHOLD: f64 = 0.2;

/// Adds traffic, distances and ways out.
pub fn add(problem: &mut Problem, desired: &Desired, inventory: &Inventory) {
    problem.traffic = traffic(desired);
    problem.ways_out = ways_out(problem, desired, inventory);
    problem.distances = Distances::of(inventory);
    let names: BTreeSet<&String> = desired.nodes.keys().collect();
    problem.distances.between.retain(|(a, b), _| names.contains(a) && names.contains(b));
    let limited = problem.traffic.iter().filter(|traffic| traffic.max_latency_us.is_some());
    let several = names.len() > 1 && problem.distances.between.is_empty();
    for because in limited.filter(|_| several).map(|traffic| &traffic.because).collect::<BTreeSet<_>>() {
        problem.notes.push(format!(
            "{because}: no way between nodes is measured, so `max-latency` cannot be checked; `flock discover` measures them"
        ));
    }
}

/// The key of a way out, as the command line names it: `agent/NAME`, or the model.
fn key(model: &str, agent: Option<&str>) -> String {
    agent.map_or_else(|| model.to_owned(), |agent| format!("agent/{agent}"))
}

impl WayOut {
    /// What traffic calls it: `agent/NAME`, or the provider's model where no agent uses it.
    pub fn key(&self) -> String {
        key(&self.model, self.agent.as_deref())
    }
}

/// Where an agent's turns happen.
fn end(desired: &Desired, agent: &str) -> Option<End> {
    let model = &desired.agents.get(agent)?.model.value;
    if desired.models.contains_key(model) {
        return Some(End::Model(model.clone()));
    }
    desired.provider_models.contains_key(model).then(|| End::Out(key(model, Some(agent))))
}

/// Traffic between two ends, from a model; `None` where nothing of it has a place.
fn between(from: End, to: End, rest: Traffic) -> Option<Traffic> {
    match (from, to) {
        (a, b) if a == b => None,
        (End::Model(from), to) | (to, End::Model(from)) => Some(Traffic { from, to, ..rest }),
        _ => None,
    }
}

/// What models send to each other and to the egress nodes of agents. Of workflows in the order of their names.
pub fn traffic(desired: &Desired) -> Vec<Traffic> {
    let mut all = Vec::new();
    for (name, workflow) in &desired.workflows {
        let mut told: BTreeSet<[&str; 2]> = BTreeSet::new();
        for declared in &workflow.traffic {
            let (from, to) = (declared.from.value.as_str(), declared.to.value.as_str());
            told.insert(unordered(from, to));
            let (Some(one), Some(other)) = (end(desired, from), end(desired, to)) else { continue };
            let limit = declared.max_latency.as_ref().map(|limit| limit.value.as_micros());
            let rest = Traffic {
                bytes_per_turn: declared.per_turn.map_or(DEFAULT_PER_TURN, |bytes| bytes.0),
                weight: 1.0,
                max_latency_us: limit.map(|limit| u64::try_from(limit).unwrap_or(u64::MAX)),
                because: format!("workflow {name}: {from} to {to}"),
                ..Traffic::default()
            };
            all.extend(between(one, other, rest));
        }
        for (from, to) in followers(workflow) {
            let (Some(one), Some(other)) = (end(desired, from), end(desired, to)) else { continue };
            if told.insert(unordered(from, to)) {
                let rest = Traffic {
                    bytes_per_turn: DEFAULT_PER_TURN,
                    weight: IMPLIED_WEIGHT,
                    because: format!("workflow {name}: {to} after {from}"),
                    ..Traffic::default()
                };
                all.extend(between(one, other, rest));
            }
        }
    }
    for (name, model) in &desired.models {
        for near in &model.place.near {
            let rest = |what: &str| Traffic {
                bytes_per_turn: NEAR_PER_TURN,
                weight: 1.0,
                because: format!("model {name}: near {what}"),
                ..Traffic::default()
            };
            let ends: Vec<End> = match near.value.strip_prefix("agent/") {
                Some(agent) => end(desired, agent).into_iter().collect(),
                None if desired.models.contains_key(&near.value) => vec![End::Model(near.value.clone())],
                None => users(desired, &near.value).into_iter().map(End::Out).collect(),
            };
            let share = ends.len().max(1) as f64;
            for other in ends {
                let rest = Traffic { weight: 1.0 / share, ..rest(&near.value) };
                all.extend(between(End::Model(name.clone()), other, rest));
            }
        }
    }
    all
}

fn unordered<'a>(one: &'a str, other: &'a str) -> [&'a str; 2] {
    if one <= other { [one, other] } else { [other, one] }
}

/// Agents whose steps follow each other. Steps without an agent hand on what came before them.
fn followers(workflow: &Workflow) -> BTreeSet<(&str, &str)> {
    let agent = |step: &str| match &workflow.steps.get(step)?.action {
        Some(Action::Agent { agent, .. }) => Some(agent.value.as_str()),
        Some(Action::Workflow { .. }) | None => None,
    };
    let mut found = BTreeSet::new();
    for name in workflow.steps.keys() {
        let Some(to) = agent(name) else { continue };
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        let mut open: Vec<&str> = vec![name];
        while let Some(step) = open.pop() {
            let before = workflow.steps.get(step).into_iter().flat_map(|step| &step.after);
            for before in before.map(|before| before.value.as_str()) {
                if !seen.insert(before) {
                    continue;
                }
                match agent(before) {
                    Some(from) if from != to => drop(found.insert((from, to))),
                    Some(_) => {}
                    None => open.push(before),
                }
            }
        }
    }
    found
}

/// Keys of the ways out of a provider's model.
fn users(desired: &Desired, model: &str) -> Vec<String> {
    let agents = desired.agents.iter().filter(|(_, agent)| agent.model.value == model);
    let keys: Vec<String> = agents.map(|(name, _)| key(model, Some(name))).collect();
    if keys.is_empty() { vec![key(model, None)] } else { keys }
}

fn ways_out(problem: &Problem, desired: &Desired, inventory: &Inventory) -> Vec<WayOut> {
    let threshold = desired.policies.move_threshold.as_ref().map(|share| f64::from(share.value.0) / 10_000.0);
    let mut ways = Vec::new();
    for (model, provided) in &desired.provider_models {
        let Some(provider) = desired.providers.get(&provided.provider.value) else { continue };
        let url = &provider.base_url.value;
        let endpoint = endpoint_of(url).unwrap_or_else(|| url.clone());
        let measured: BTreeMap<&str, _> = inventory
            .egress
            .iter()
            .filter(|way| way.endpoint == endpoint)
            .map(|way| (way.node.as_str(), (way.rtt_us, way.unknown.get("rtt_us"))))
            .collect();
        let nodes = |previous: Option<&str>| -> Vec<Via> {
            let via = problem.nodes.iter().filter_map(|supply| {
                let configured = desired.nodes.get(&supply.name)?;
                let found = measured.get(supply.name.as_str());
                // A node on hold takes nothing new; what goes through it stays until it is drained.
                let hold = supply.closed.as_ref().is_some_and(|(word, _)| word == "hold");
                let stays = hold && !supply.drained && previous == Some(supply.name.as_str());
                Some(Via {
                    node: supply.name.clone(),
                    connect_us: found.and_then(|(rtt_us, _)| *rtt_us),
                    problem: found.and_then(|(rtt_us, why)| why.filter(|_| rtt_us.is_none()).cloned()),
                    closed: supply.closed.clone().filter(|_| !stays),
                    local: matches!(configured.connection, Connection::Local),
                })
            });
            via.collect()
        };
        let agents: Vec<&String> =
            desired.agents.iter().filter(|(_, agent)| agent.model.value == *model).map(|(name, _)| name).collect();
        let none = agents.is_empty().then_some(None);
        for agent in agents.into_iter().map(Some).chain(none) {
            let same = |known: &&crate::inventory::MemberEgress| {
                known.provider_model == *model && known.agent.as_ref() == agent
            };
            let limit = provided.max_latency.as_ref().map(|limit| limit.value.as_micros());
            let previous = inventory.member.egress.iter().find(same).map(|known| known.node.clone());
            ways.push(WayOut {
                model: model.clone(),
                agent: agent.cloned(),
                endpoint: endpoint.clone(),
                max_latency_us: limit.map(|limit| u64::try_from(limit).unwrap_or(u64::MAX)),
                via: nodes(previous.as_deref()),
                previous,
                threshold: threshold.unwrap_or(EGRESS_THRESHOLD),
            });
        }
    }
    ways
}
