//! What would change the answer for a model: changes to the inputs, each of them solved, in the order of their size.
//!
//! The order: what the model itself asks and what holds it out (nobody else pays for that), then memory by bytes, then
//! one replica less of another model by what it holds, then further accelerators by their number, then a node.

use std::collections::{BTreeMap, BTreeSet};

use crate::base::GIB;
use crate::placement::explain::change::Change;
use crate::placement::explain::trial::{Fare, Inputs, Outcome, Trials, budget, fare};
use crate::placement::layout::{Copy, Layout, Loads};
use crate::placement::solve::counts;
use crate::placement::{ModelDemand, Problem, Shape, Turn};

/// Changes of one kind that are tried at most.
const SETTINGS: usize = 16;
const MEMORY: usize = 6;
const OTHERS: usize = 6;
const DEVICES: usize = 6;
const NODES: usize = 3;
/// Changes of one kind that are told.
const TOLD: usize = 4;
/// A context is not worth proposing below this.
const LEAST_CONTEXT: u64 = 2048;

/// A change that is worth a solve; what follows in a group is tried only where what is before it does not help.
type Attempts = Vec<Change>;

/// Changes that would give a model a place for one more replica, or a better variant. Empty where it has all it can
/// have, where nothing of these kinds helps, or where the cluster is too large to solve again and again.
pub fn turns(inputs: Inputs<'_>, problem: &Problem, layout: &Layout, model: usize) -> Vec<Turn> {
    let demand = &problem.models[model];
    let before = fare(problem, layout, &demand.name, demand.desired);
    if before.missing == 0 && before.losses.iter().all(|loss| *loss == 0) {
        return Vec::new();
    }
    let search = Search { inputs, problem, layout, model, demand, before };
    let mut trials = Trials::new(inputs, budget(problem));
    let mut found = Vec::new();
    for (most, kind) in [
        (SETTINGS, search.settings()),
        (MEMORY, search.memory()),
        (OTHERS, search.others()),
        (DEVICES, search.devices()),
        (NODES, search.nodes()),
    ] {
        let (mut told, first) = (0, found.len());
        for attempts in kind.into_iter().take(most) {
            if told == TOLD || trials.spent() {
                break;
            }
            let turn = attempts.iter().find_map(|change| {
                let outcome = trials.solve(&[change], true)?;
                search.turn(change, &outcome)
            });
            told += usize::from(turn.is_some());
            found.extend(turn);
        }
        // What it took in the end, with what engines round up, is what is sorted.
        let size = |turn: &Turn| match &turn.change_made {
            Change::Memory { accelerators, bytes, .. } => bytes.saturating_mul(accelerators.len() as u64),
            _ => 0,
        };
        found[first..].sort_by_key(size);
    }
    found
}

struct Search<'a> {
    inputs: Inputs<'a>,
    problem: &'a Problem,
    layout: &'a Layout,
    model: usize,
    demand: &'a ModelDemand,
    before: Fare,
}

impl Search<'_> {
    fn name(&self) -> String {
        self.demand.name.clone()
    }

    /// What a change that was solved turns; `None` where the model fares no better.
    fn turn(&self, change: &Change, outcome: &Outcome) -> Option<Turn> {
        let after = outcome.fare(&self.demand.name, self.demand.desired);
        if after >= self.before {
            return None;
        }
        let more = self.before.missing - after.missing;
        let placed = self.places(outcome, more as usize, change);
        let mut effect = match more {
            0 => format!("it would take {placed}"),
            1 => format!("one more replica would be placed: {placed}"),
            many => format!("{many} more replicas would be placed: {placed}"),
        };
        let losers = self.losers(outcome, change);
        // Where as many of its rank or above lose a place, nothing is gained: either answer was as good before.
        let equal = |name: &&String| {
            self.problem.model(name).is_some_and(|other| self.problem.models[other].rank >= self.demand.rank)
        };
        if more > 0 && losers.iter().map(|(name, _)| name).any(|name| equal(&name)) {
            return None;
        }
        let losers: Vec<String> = losers.iter().map(|(name, lost)| format!("`{name}` would lose {lost}")).collect();
        if !losers.is_empty() {
            effect.push_str(&format!("; {}", losers.join(", ")));
        }
        let bytes = match change {
            Change::Memory { bytes, .. } | Change::Host { bytes, .. } => Some(*bytes),
            _ => None,
        };
        Some(Turn { kind: kind(change).to_owned(), change: change.words(), bytes, effect, change_made: change.clone() })
    }

    /// The variants with their nodes that the model has afterwards, and had not before: as many as there are replicas
    /// more, where there are any; what else is otherwise moves.
    fn places(&self, outcome: &Outcome, more: usize, change: &Change) -> String {
        let told = |problem: &Problem, copy: &Copy| {
            let demand = &problem.models[copy.model];
            let label = demand.candidates.get(demand.shapes[copy.shape].candidate).map_or("", |c| c.label.as_str());
            format!("{label} on {}", problem.nodes[copy.node].name)
        };
        let mut old: Vec<String> =
            self.layout.iter().filter(|c| c.model == self.model).map(|c| told(self.problem, c)).collect();
        let model = outcome.problem.model(&self.demand.name);
        let mut new: Vec<String> = Vec::new();
        for copy in outcome.layout.iter().filter(|copy| Some(copy.model) == model) {
            let text = told(&outcome.problem, copy);
            match old.iter().position(|known| *known == text) {
                Some(at) => drop(old.remove(at)),
                None => new.push(text),
            }
        }
        new.sort();
        if more > 0 && new.len() > more {
            let grown = match change {
                Change::Memory { node, .. } | Change::Host { node, .. } | Change::Accelerators { node, .. } => node,
                _ => "",
            };
            new.sort_by_key(|place| !place.ends_with(&format!(" on {grown}")));
            new.truncate(more);
            new.dedup();
            return format!("{}, and others of it would move", new.join(", "));
        }
        new.dedup();
        if new.is_empty() { "the same beside it".to_owned() } else { new.join(", ") }
    }

    /// Other models that have fewer replicas afterwards, but for the one that the change takes one from.
    fn losers(&self, outcome: &Outcome, change: &Change) -> Vec<(String, u32)> {
        let before = counts(self.problem, self.layout);
        let mut losers = Vec::new();
        for (model, placed) in before {
            let name = &self.problem.models[model].name;
            let given = u32::from(matches!(change, Change::Fewer(other) if other == name));
            let lost = placed.saturating_sub(given).saturating_sub(outcome.placed(name));
            if lost > 0 && model != self.model {
                losers.push((name.clone(), lost));
            }
        }
        losers
    }

    /// What the model asks, and what holds nodes out.
    fn settings(&self) -> Vec<Attempts> {
        let Some(model) = self.inputs.desired.models.get(&self.demand.name) else { return Vec::new() };
        let missing = self.before.missing > 0;
        let mut found: Vec<Attempts> = Vec::new();
        let context = self.demand.candidates.iter().map(|candidate| candidate.context).max().unwrap_or(0);
        let shorter = [context / 2, context / 4].into_iter().filter(|tokens| *tokens >= LEAST_CONTEXT);
        let shorter: Attempts = shorter.map(|tokens| Change::Context(self.name(), tokens)).collect();
        found.extend(Some(shorter).filter(|shorter| !shorter.is_empty()));
        found.extend(model.place.require.iter().map(|r| vec![Change::NoSelector(self.name(), r.value.label.clone())]));
        if missing {
            found.extend(model.min_quality.iter().map(|_| vec![Change::NoQuality(self.name())]));
            found.extend(model.place.spread_by.iter().map(|_| vec![Change::NoSpread(self.name())]));
            found.extend((!model.place.allow_cpu).then(|| vec![Change::Cpu(self.name())]));
            let lower = |running: &crate::placement::Running| {
                self.problem
                    .model(&running.model)
                    .is_some_and(|other| self.problem.models[other].rank < self.demand.rank)
            };
            let displaces = !self.demand.preempts && self.problem.running.iter().any(lower);
            found.extend(displaces.then(|| vec![Change::Preempt(self.name())]));
        }
        found.extend((!model.engines.is_empty()).then(|| vec![Change::AnyEngine(self.name())]));
        let policies = &self.inputs.desired.policies;
        found.extend(policies.quotas.keys().map(|name| vec![Change::NoQuota(name.clone())]));
        found.extend(policies.denials.keys().map(|name| vec![Change::NoDenial(name.clone())]));
        if missing {
            let limits = crate::placement::explain::conflict::limits(self.inputs.desired, &self.demand.name);
            found.extend(limits.into_iter().map(|(change, _)| vec![change]));
        }
        let members = || self.problem.nodes.iter().filter(|node| node.member && node.reachable);
        let held = members().filter(|node| node.closed.as_ref().is_some_and(|(word, _)| word == "hold"));
        found.extend(held.map(|node| vec![Change::NoHold(vec![node.name.clone()])]));
        let reserving = members().filter(|node| node.accelerators.iter().any(|a| a.reserve_bytes > 0 && !a.unified));
        found.extend(reserving.map(|node| vec![Change::NoReserve(vec![node.name.clone()])]));
        found
    }

    /// Memory that ways to run it lack, the least first.
    fn memory(&self) -> Vec<Attempts> {
        let worst = self.before.losses.first().copied().unwrap_or(0);
        let worth = |loss: u32| self.before.missing > 0 || loss < worst;
        // What the model has now may be exchanged; where a replica is missing it is in the way like all else.
        let kept: Layout =
            self.layout.iter().filter(|c| c.model != self.model || self.before.missing > 0).cloned().collect();
        let loads = Loads::of(self.problem, &kept);
        let mut lacking: Vec<(u64, Change)> = Vec::new();
        for shape in self.demand.shapes.iter().filter(|s| !s.keep_only && s.ranks > 0) {
            if worth(self.demand.loss(shape)) && shape.further.is_empty() {
                lacking.extend(self.lacking(shape, &loads));
            }
        }
        let best = self.demand.candidates.iter().map(|candidate| candidate.quality).min().unwrap_or(0);
        for removed in self.demand.removed.iter().filter(|removed| removed.reason.constraint == "memory") {
            let mut of = self.demand.candidates.iter().filter(|c| Some(&c.label) == removed.variant.as_ref());
            if !of.any(|candidate| worth(candidate.quality - best)) {
                continue;
            }
            let Some(node) = self.problem.node(&removed.reason.node) else { continue };
            let (Some(needed), Some(ranks)) = (removed.reason.needed, removed.ranks.filter(|ranks| *ranks > 0)) else {
                continue;
            };
            let supply = &self.problem.nodes[node];
            let group: Vec<usize> = (0..supply.accelerators.len()).collect();
            lacking.extend(self.short_of(node, &group, ranks, needed, &loads));
        }
        lacking.sort_by_key(|(all, change)| (*all, change.words()));
        lacking.dedup_by(|a, b| a.1 == b.1);
        let mut nodes: BTreeSet<String> = BTreeSet::new();
        // The least amount per node and number of accelerators: what is more of the same says nothing else.
        let mut fresh = |change: &Change| match change {
            Change::Memory { node, accelerators, .. } => nodes.insert(format!("{node} {}", accelerators.len())),
            _ => true,
        };
        let least: Vec<Change> = lacking.into_iter().map(|(_, change)| change).filter(|c| fresh(c)).collect();
        // What is on a node may be elsewhere: of equal nodes the least that one of them lacks is tried on each.
        let mut of_equals: BTreeMap<(String, usize), u64> = BTreeMap::new();
        for change in &least {
            if let Change::Memory { node, accelerators, bytes } = change {
                let known = of_equals.entry((self.hardware(node), accelerators.len())).or_insert(*bytes);
                *known = (*known).min(*bytes);
            }
        }
        let attempts = |change: Change| -> (u64, Attempts) {
            let Change::Memory { node, accelerators, bytes } = &change else { return (0, vec![change]) };
            let known = of_equals.get(&(self.hardware(node), accelerators.len()));
            let all = |bytes: u64| bytes.saturating_mul(accelerators.len() as u64);
            match known.copied().filter(|least| least < bytes) {
                Some(least) => {
                    let accelerators = accelerators.clone();
                    let as_there = Change::Memory { node: node.clone(), accelerators, bytes: least };
                    let tried = self.with_margin(as_there).into_iter().chain(self.with_margin(change.clone()));
                    (all(least), tried.collect())
                }
                None => (all(*bytes), self.with_margin(change)),
            }
        };
        let mut found: Vec<(u64, Attempts)> = least.into_iter().map(attempts).collect();
        found.sort_by_key(|(all, _)| *all);
        found.into_iter().map(|(_, attempts)| attempts).collect()
    }

    /// What the accelerators of a node are, in words that equal nodes share.
    fn hardware(&self, node: &str) -> String {
        let supply = self.problem.node(node).map(|node| &self.problem.nodes[node]);
        let mut kinds: Vec<String> =
            supply.iter().flat_map(|n| &n.accelerators).map(|a| format!("{} {}", a.kind, a.capacity_bytes)).collect();
        kinds.sort();
        kinds.join(", ")
    }

    /// The amount, and the same with a hundredth of the device more: engines claim whole hundredths.
    fn with_margin(&self, change: Change) -> Attempts {
        let Change::Memory { node, accelerators, bytes } = &change else { return vec![change] };
        let supply = self.problem.node(node).map(|node| &self.problem.nodes[node]);
        let total = supply.iter().flat_map(|n| &n.accelerators).map(|a| a.total_bytes).max().unwrap_or(0);
        let more = tenths(bytes.saturating_add(total / 90));
        let roomy = Change::Memory { node: node.clone(), accelerators: accelerators.clone(), bytes: more };
        vec![change, roomy]
    }

    fn lacking(&self, shape: &Shape, loads: &Loads) -> Option<(u64, Change)> {
        self.short_of(shape.node, &shape.group, shape.ranks, shape.claimed(), loads)
    }

    /// What so many accelerators of a group are short of, the emptiest ones.
    fn short_of(&self, node: usize, group: &[usize], ranks: u32, needed: u64, loads: &Loads) -> Option<(u64, Change)> {
        let supply = &self.problem.nodes[node];
        if supply.closed.is_some() {
            return None;
        }
        let left = |at: usize| supply.accelerators[at].capacity_bytes.saturating_sub(loads.accelerators[node][at]);
        let mut free: Vec<(u64, usize)> =
            group.iter().filter(|at| supply.accelerators[**at].healthy).map(|at| (left(*at), *at)).collect();
        free.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        free.truncate(ranks as usize);
        let tightest = free.last().filter(|_| free.len() == ranks as usize)?.0;
        let bytes = tenths(needed.checked_sub(tightest).filter(|missing| *missing > 0)?);
        let mut accelerators: Vec<String> = free.iter().map(|(_, at)| supply.accelerators[*at].uuid.clone()).collect();
        accelerators.sort();
        let all = bytes.saturating_mul(u64::from(ranks));
        Some((all, Change::Memory { node: supply.name.clone(), accelerators, bytes }))
    }

    /// Models with something on nodes where this one could run, what holds least first.
    fn others(&self) -> Vec<Attempts> {
        let nodes: BTreeSet<usize> = self.demand.shapes.iter().map(|shape| shape.node).collect();
        let mut least: Vec<(u64, &str)> = Vec::new();
        for copy in self.layout.iter().filter(|copy| copy.model != self.model && nodes.contains(&copy.node)) {
            let other = &self.problem.models[copy.model];
            let shape = &other.shapes[copy.shape];
            let holds = shape.claimed().saturating_mul(u64::from(shape.ranks)).max(shape.host.total_bytes());
            match least.iter_mut().find(|(_, name)| *name == other.name) {
                Some(known) => known.0 = known.0.min(holds),
                None => least.push((holds, &other.name)),
            }
        }
        least.sort_unstable();
        least.into_iter().map(|(_, name)| vec![Change::Fewer(name.to_owned())]).collect()
    }

    /// One, two and four more accelerators of each kind there is, in a node that has it.
    fn devices(&self) -> Vec<Attempts> {
        let mut kinds: BTreeSet<&str> = BTreeSet::new();
        let mut found = Vec::new();
        for node in self.problem.nodes.iter().filter(|node| node.member && node.closed.is_none()) {
            for accelerator in node.accelerators.iter().filter(|a| !a.unified && !a.mig) {
                if kinds.insert(&accelerator.kind) {
                    let more = |count: u32| Change::Accelerators {
                        node: node.name.clone(),
                        like: accelerator.uuid.clone(),
                        count,
                    };
                    found.push((accelerator.total_bytes, vec![more(1), more(2), more(4)]));
                }
            }
        }
        found.sort_by_key(|(bytes, _)| *bytes);
        found.into_iter().map(|(_, attempts)| attempts).collect()
    }

    /// One more node of each kind there is, the smallest first.
    fn nodes(&self) -> Vec<Attempts> {
        let mut kinds: BTreeSet<Vec<&str>> = BTreeSet::new();
        let mut found = Vec::new();
        for node in self.problem.nodes.iter().filter(|node| node.member && node.reachable) {
            let kind: Vec<&str> = node.accelerators.iter().map(|a| a.kind.as_str()).collect();
            if kinds.insert(kind) {
                let bytes: u64 = node.accelerators.iter().map(|a| a.total_bytes).sum();
                found.push((bytes, vec![Change::Node(node.name.clone())]));
            }
        }
        found.sort_by_key(|(bytes, _)| *bytes);
        found.into_iter().map(|(_, attempts)| attempts).collect()
    }
}

/// Rounded up to tenths of a GiB, as people read it.
fn tenths(bytes: u64) -> u64 {
    bytes.div_ceil(GIB / 10).saturating_mul(GIB / 10)
}

fn kind(change: &Change) -> &'static str {
    match change {
        Change::Memory { .. } | Change::Host { .. } | Change::EndlessMemory(_) | Change::EndlessHost(_) => "memory",
        Change::EndlessDisk(_) => "disk",
        Change::EndlessPorts(_) => "port",
        Change::Fewer(_) | Change::Without(_) => "replicas",
        Change::Accelerators { .. } => "accelerators",
        Change::Node(_) => "node",
        Change::NoReserve(_)
        | Change::NoHold(_)
        | Change::NoProtection(_)
        | Change::NoSelector(..)
        | Change::NoSpread(_)
        | Change::NoQuality(_)
        | Change::AnyEngine(_)
        | Change::Cpu(_)
        | Change::Preempt(_)
        | Change::Context(..)
        | Change::NoQuota(_)
        | Change::NoDenial(_)
        | Change::NoLatencyLimit { .. } => "setting",
    }
}
