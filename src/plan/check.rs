//! A checker that shares no code with what makes plans. It runs on every plan in tests and before every apply.

use std::collections::{BTreeMap, BTreeSet};

use super::{FetchFrom, Plan, PlannedInstance, Step, Summary, Verb};
use crate::inventory::{InstanceSpec, Inventory};

/// Everything that is wrong with a plan, one sentence each. `told` are the specifications that the nodes hold.
pub fn check(plan: &Plan, inventory: &Inventory, told: &BTreeMap<String, Vec<InstanceSpec>>) -> Vec<String> {
    let mut wrong = Vec::new();
    identities(plan, &mut wrong);
    let waves = order(plan, &mut wrong);
    devices(plan, inventory, &mut wrong);
    reach(plan, inventory, &mut wrong);
    senders(plan, inventory, &mut wrong);
    protections(plan, inventory, &mut wrong);
    if let Some(waves) = waves {
        capacity(plan, inventory, told, &waves, &mut wrong);
    }
    summary(plan, &mut wrong);
    wrong
}

fn identities(plan: &Plan, wrong: &mut Vec<String>) {
    let mut ids = BTreeSet::new();
    let mut replicas = BTreeSet::new();
    let mut ports = BTreeSet::new();
    for instance in &plan.instances {
        if !ids.insert(&instance.instance) {
            wrong.push(format!("instance {} is planned twice", instance.instance));
        }
        if !replicas.insert((&instance.model, instance.replica, &instance.part)) {
            wrong.push(format!("replica {} of {} is planned twice", instance.replica, instance.model));
        }
        let internal = &instance.spec.internal_ports;
        for port in std::iter::once(&instance.port).chain(&instance.port_alternates).chain(internal) {
            if *port == 0 || !ports.insert((&instance.node, *port)) {
                wrong.push(format!("port {port} on {} is planned twice or is 0", instance.node));
            }
        }
        let spec = &instance.spec;
        if (&spec.instance, spec.port, &spec.accelerators)
            != (&instance.instance, instance.port, &instance.accelerators)
            || spec.argv != instance.argv
            || spec.specification != instance.specification
        {
            wrong.push(format!("instance {} differs from what its node would be told", instance.instance));
        }
    }
    for step in plan.steps.iter().filter(|s| !matches!(s.verb, Verb::Fetch | Verb::Stop)) {
        let known = step.instance.as_ref().is_some_and(|id| ids.contains(id));
        if !known {
            wrong.push(format!("step {} results in no planned instance", step.id));
        }
    }
}

/// Step ids are 1, 2, 3, …, and each waits only for earlier ones. Returns the wave of each step.
fn order(plan: &Plan, wrong: &mut Vec<String>) -> Option<Vec<usize>> {
    let mut waves: Vec<usize> = Vec::new();
    let mut sound = true;
    for (index, step) in plan.steps.iter().enumerate() {
        if step.id as usize != index + 1 {
            wrong.push(format!("step {} has the id {}", index + 1, step.id));
            sound = false;
        }
        let mut wave = 0;
        for before in &step.after {
            match waves.get((*before as usize).wrapping_sub(1)) {
                Some(earlier) => wave = wave.max(earlier + 1),
                None => {
                    wrong.push(format!("step {} waits for {before}, which is not before it", step.id));
                    sound = false;
                }
            }
        }
        waves.push(wave);
    }
    sound.then_some(waves)
}

fn devices(plan: &Plan, inventory: &Inventory, wrong: &mut Vec<String>) {
    let touched: BTreeSet<&str> = plan.steps.iter().filter_map(|step| step.instance.as_deref()).collect();
    for instance in &plan.instances {
        let Some(node) = inventory.node(&instance.node) else {
            wrong.push(format!("instance {} is on the unknown node {}", instance.instance, instance.node));
            continue;
        };
        // Of a node that is away only the last apply is known, and nothing on it is touched.
        if !node.reachable {
            continue;
        }
        let distinct: BTreeSet<&String> = instance.accelerators.iter().collect();
        if distinct.len() != instance.accelerators.len()
            || instance.accelerators.len() != instance.memory.per_accelerator.len()
        {
            wrong.push(format!("instance {} names an accelerator twice or without memory", instance.instance));
        }
        for uuid in &instance.accelerators {
            match node.accelerator(uuid) {
                None => {
                    wrong.push(format!("instance {} uses {uuid}, which {} does not have", instance.instance, node.name))
                }
                Some(device) if !device.healthy && touched.contains(instance.instance.as_str()) => {
                    wrong.push(format!("instance {} uses {uuid}, which is unhealthy", instance.instance));
                }
                Some(_) => {}
            }
        }
    }
}

fn nodes_of(step: &Step) -> impl Iterator<Item = &String> {
    std::iter::once(&step.node).chain(&step.from_node)
}

fn reach(plan: &Plan, inventory: &Inventory, wrong: &mut Vec<String>) {
    for step in &plan.steps {
        for name in nodes_of(step) {
            if !inventory.node(name).is_some_and(|node| node.reachable) {
                wrong.push(format!("step {} touches the unreachable node {name}", step.id));
            }
        }
    }
}

/// A node that sends a set has it, or gets it in a step before.
fn senders(plan: &Plan, inventory: &Inventory, wrong: &mut Vec<String>) {
    let by_id: BTreeMap<u32, &Step> = plan.steps.iter().map(|step| (step.id, step)).collect();
    for step in &plan.steps {
        let Some(planned) = &step.fetch else { continue };
        if step.route.as_deref() != Some(planned.from.route().as_str()) {
            wrong.push(format!("step {} says another way than its files take", step.id));
        }
        let FetchFrom::Node { node: sender, otherwise, .. } = &planned.from else { continue };
        let revision = &planned.fetch.revision;
        let facts = inventory.node(sender).filter(|facts| facts.reachable);
        let has = facts.is_some_and(|node| node.weights.iter().any(|set| set.revision == *revision && set.complete));
        let gets = step.after.iter().filter_map(|id| by_id.get(id)).any(|earlier| {
            earlier.node == *sender && earlier.fetch.as_ref().is_some_and(|brought| brought.fetch.revision == *revision)
        });
        if !(has || gets) || facts.is_none() || *sender == step.node {
            wrong.push(format!("step {} takes files from {sender}, which cannot send them", step.id));
        }
        if otherwise.sender().is_some() {
            wrong.push(format!("step {} knows no way but through other nodes", step.id));
        }
    }
}

fn protections(plan: &Plan, inventory: &Inventory, wrong: &mut Vec<String>) {
    for protection in &inventory.member.protections {
        for step in plan.steps.iter().filter(|step| step.model == protection.model) {
            if matches!(step.verb, Verb::Stop | Verb::Move) {
                wrong.push(format!("step {} stops or moves the protected model {}", step.id, step.model));
            }
        }
    }
}

/// Stands for a node's host memory beside the UUIDs of its accelerators.
const HOST: &str = "host memory";

/// What an instance takes, by device.
fn takes(instance: &PlannedInstance) -> Vec<(&str, u64)> {
    let devices = instance.memory.per_accelerator.iter().map(|bytes| (bytes.uuid.as_str(), bytes.total_bytes));
    devices.chain(std::iter::once((HOST, instance.memory.host.total_bytes))).collect()
}

/// What a plan file says may be any number: sums stop at the largest.
fn sum<'a>(bytes: impl Iterator<Item = &'a u64>) -> u64 {
    bytes.copied().fold(0, u64::saturating_add)
}

/// Plays the waves: a wave takes all it takes before it frees anything.
fn capacity(
    plan: &Plan,
    inventory: &Inventory,
    told: &BTreeMap<String, Vec<InstanceSpec>>,
    waves: &[usize],
    wrong: &mut Vec<String>,
) {
    type Device = (String, String);
    let mut by_id: BTreeMap<&str, Vec<&PlannedInstance>> = BTreeMap::new();
    plan.instances.iter().for_each(|instance| by_id.entry(&instance.instance).or_default().push(instance));
    let find = |id: &str, node: &str| by_id.get(id).into_iter().flatten().find(|i| i.node == node).copied();
    let mut limits: BTreeMap<Device, u64> = BTreeMap::new();
    let mut used: BTreeMap<Device, BTreeMap<String, u64>> = BTreeMap::new();
    for instance in &plan.instances {
        for bytes in &instance.memory.per_accelerator {
            limits.insert((instance.node.clone(), bytes.uuid.clone()), bytes.capacity_bytes);
        }
        if instance.memory.host.capacity_bytes > 0 {
            limits.insert((instance.node.clone(), HOST.to_owned()), instance.memory.host.capacity_bytes);
        }
    }
    for (node, specs) in told {
        let Some(facts) = inventory.node(node) else { continue };
        for spec in specs {
            let lives = facts.instances.iter().any(|i| i.instance == spec.instance && (i.running || i.pid.is_some()));
            let planned = find(&spec.instance, node);
            for (rank, uuid) in spec.accelerators.iter().enumerate().filter(|_| lives) {
                let now = planned.and_then(|i| i.memory.per_accelerator.get(rank)).map(|m| m.total_bytes);
                let bytes = now.or(spec.planned_bytes.get(rank).copied()).unwrap_or(0);
                used.entry((node.clone(), uuid.clone())).or_default().insert(spec.instance.clone(), bytes);
            }
            if lives {
                let bytes = planned.map_or(spec.planned_host_bytes, |i| i.memory.host.total_bytes);
                used.entry((node.clone(), HOST.to_owned())).or_default().insert(spec.instance.clone(), bytes);
            }
        }
    }
    let crowded_before: BTreeSet<Device> = used
        .iter()
        .filter(|(device, by)| limits.get(*device).is_some_and(|limit| sum(by.values()) > *limit))
        .map(|(device, _)| device.clone())
        .collect();
    let mut by_wave: BTreeMap<usize, Vec<&Step>> = BTreeMap::new();
    plan.steps.iter().zip(waves).for_each(|(step, wave)| by_wave.entry(*wave).or_default().push(step));
    // What an instance holds on the devices of a node.
    let remove = |used: &mut BTreeMap<Device, BTreeMap<String, u64>>, node: &str, id: &str| {
        let from = (node.to_owned(), String::new());
        used.range_mut(from..).take_while(|(device, _)| device.0 == node).for_each(|(_, by)| {
            by.remove(id);
        });
    };
    for (wave, steps) in by_wave {
        let mut gone: Vec<(&String, &String)> = Vec::new();
        for step in &steps {
            let left = step.from_node.as_ref().unwrap_or(&step.node);
            match (step.verb, &step.from_instance, &step.instance) {
                (Verb::Stop, _, Some(id)) => gone.push((&step.node, id)),
                (Verb::Change | Verb::Move, Some(from), _) if step.interrupts || step.verb == Verb::Change => {
                    remove(&mut used, left, from);
                }
                (Verb::Move, Some(from), _) => gone.push((left, from)),
                _ => {}
            }
        }
        for step in steps.iter().filter(|s| matches!(s.verb, Verb::Start | Verb::Change | Verb::Restart | Verb::Move)) {
            let Some(instance) = step.instance.as_ref().and_then(|id| find(id, &step.node)) else { continue };
            for (device, bytes) in takes(instance) {
                let device = (instance.node.clone(), device.to_owned());
                used.entry(device).or_default().insert(instance.instance.clone(), bytes);
            }
            for (device, _) in takes(instance) {
                let device = (instance.node.clone(), device.to_owned());
                let Some(limit) = limits.get(&device).filter(|_| !crowded_before.contains(&device)) else { continue };
                let sum = used.get(&device).map_or(0, |by| sum(by.values()));
                if sum > *limit {
                    wrong.push(format!("wave {wave}: {} on {} holds {sum} of {limit} bytes", device.1, device.0));
                }
            }
        }
        for (node, id) in gone {
            remove(&mut used, node, id);
        }
    }
}

fn summary(plan: &Plan, wrong: &mut Vec<String>) {
    let count = |verb: Verb| plan.steps.iter().filter(|step| step.verb == verb).count() as u32;
    let expected = Summary {
        start: count(Verb::Start),
        stop: count(Verb::Stop),
        change: count(Verb::Change),
        restart: count(Verb::Restart),
        moves: count(Verb::Move),
        adopt: count(Verb::Adopt),
        fetch: count(Verb::Fetch),
        deferred: plan.deferred.len() as u32,
        blocked: plan.blocked.len() as u32,
        unchanged: plan.summary.unchanged,
        unplaced: plan.unplaced.iter().map(|unplaced| unplaced.replicas).fold(0, u32::saturating_add),
    };
    if expected != plan.summary {
        wrong.push("the summary does not count what the plan holds".to_owned());
    }
    if plan.summary.unchanged as usize > plan.instances.len() {
        wrong.push("more instances are unchanged than planned".to_owned());
    }
}
