//! What the nodes supply and what runs on them, from the desired state and the inventory.

use std::collections::{BTreeMap, BTreeSet};

use crate::base::{Bytes, EngineKind, InstanceState, expand_home};
use crate::config::{Connection, Desired, Node};
use crate::inventory::{Accelerator, InstanceFacts, Inventory, NodeFacts};
use crate::placement::build::shapes::Options;
use crate::placement::ports;
use crate::placement::{
    AcceleratorSupply, Candidates, EngineSupply, NodeSupply, PortSupply, PortsHeld, QuotaRule, Running,
};
use crate::sizing::{accelerator_capacity, accelerator_kind, default_reserve_vram, host_capacity};

/// All nodes of the config and of the inventory, in the order of their names, and what there is to know.
pub fn nodes(desired: &Desired, inventory: &Inventory, options: &Options) -> (Vec<NodeSupply>, Vec<String>) {
    let names: BTreeSet<&str> =
        desired.nodes.keys().map(String::as_str).chain(inventory.nodes.iter().map(|n| n.name.as_str())).collect();
    let mut notes = Vec::new();
    let supplies = names
        .into_iter()
        .map(|name| {
            let supply = node(desired, inventory, name, desired.nodes.get(name), inventory.node(name), &mut notes);
            let ports = inventory.node(name).and_then(|facts| ports_of(desired, facts, options));
            NodeSupply { drained: options.drain.contains(name), ports, ..supply }
        })
        .collect();
    (supplies, notes)
}

fn node(
    desired: &Desired,
    inventory: &Inventory,
    name: &str,
    configured: Option<&Node>,
    facts: Option<&NodeFacts>,
    notes: &mut Vec<String>,
) -> NodeSupply {
    let mut labels = facts.map(|f| f.labels.clone()).unwrap_or_default();
    labels.extend(configured.map(|n| n.labels.clone()).unwrap_or_default());
    labels.insert("node".to_owned(), name.to_owned());
    let mut supply = NodeSupply {
        name: name.to_owned(),
        labels,
        closed: closed(inventory, name, configured, facts),
        reachable: facts.is_some_and(|f| f.reachable),
        member: configured.is_some(),
        price_per_hour: configured
            .and_then(|node| node.extras.price_per_hour.as_ref())
            .map(|price| price.value.0 as f64 / 1e6),
        spot: configured.is_some_and(|node| node.extras.spot),
        address: configured.and_then(|node| match &node.connection {
            Connection::Ssh { address } => address.value.parse::<std::net::Ipv4Addr>().ok().map(|a| a.to_string()),
            Connection::Local => None,
        }),
        site: configured.and_then(|node| node.extras.site.as_ref()).map(|site| site.value.clone()),
        ..NodeSupply::default()
    };
    let (Some(facts), true) = (facts, supply.reachable) else { return supply };
    let reserve = configured.map(|n| n.reserve).unwrap_or(desired.cluster.reserve);
    let held_host: u64 = facts.instances.iter().filter_map(|i| i.host_bytes).sum();
    let mut held_unified = 0;
    for accelerator in sorted(facts) {
        let held = held(accelerator, facts);
        if accelerator.memory.unified {
            held_unified += held.unwrap_or(0);
        }
        let supplied = accelerator_supply(accelerator, facts, held, held_host, reserve.vram, reserve.ram, notes);
        supply.accelerators.push(supplied);
    }
    let host = host_capacity(facts, reserve.ram, held_host + held_unified);
    if !host.notes.is_empty() && configured.is_some() {
        notes.extend(host.notes.iter().map(|note| format!("{name}: {note}")));
    }
    // An unknown amount of host memory cannot refuse anything; the checks at start still can.
    supply.host_capacity_bytes = host.bytes.unwrap_or(1 << 50);
    if let Some(unified) = supply.accelerators.iter().filter(|a| a.unified).map(|a| a.capacity_bytes).min() {
        supply.host_capacity_bytes = supply.host_capacity_bytes.min(unified);
    }
    supply.disk_free_bytes = disk_free(facts);
    supply.engines = engines(desired, name, facts);
    supply.weights = facts.weights.iter().filter(|w| w.complete).map(|w| w.revision.clone()).collect();
    supply
}

/// What is free of a node's range: nobody listens there, and none of our instances has it.
fn ports_of(desired: &Desired, facts: &NodeFacts, options: &Options) -> Option<PortSupply> {
    let range = desired.nodes.get(&facts.name)?.ports;
    let mut taken: BTreeSet<u16> = facts.ports_in_use.iter().copied().collect();
    taken.extend(facts.instances.iter().flat_map(|instance| instance_ports(&facts.name, instance, options)));
    Some(ports::supply(range, |port| taken.contains(&port)))
}

/// All ports of an instance, the one it serves on first.
fn instance_ports<'f>(node: &str, instance: &'f InstanceFacts, options: &'f Options) -> impl Iterator<Item = u16> + 'f {
    let internal = options.internal_ports.get(&(node.to_owned(), instance.instance.clone()));
    std::iter::once(instance.port).chain(internal.into_iter().flatten().copied()).filter(|port| *port != 0)
}

/// Those within its node's range.
fn held_ports(desired: &Desired, node: &str, instance: &InstanceFacts, options: &Options) -> PortsHeld {
    let Some((low, high)) = desired.nodes.get(node).map(|node| node.ports) else { return PortsHeld::default() };
    let within: Vec<u16> = instance_ports(node, instance, options).filter(|port| (low..=high).contains(port)).collect();
    PortsHeld { all: within.len() as u32, row: within.len() > usize::from(ports::row()) }
}

/// Why a node takes nothing new.
fn closed(
    inventory: &Inventory,
    name: &str,
    configured: Option<&Node>,
    facts: Option<&NodeFacts>,
) -> Option<(String, String)> {
    let reason = |word: &str, text: String| Some((word.to_owned(), text));
    let Some(configured) = configured else {
        return reason("hold", "the config does not have this node".to_owned());
    };
    match facts {
        None => return reason("unreachable", "nothing is known of this node".to_owned()),
        Some(facts) if !facts.reachable => {
            let why = facts.unreachable_reason.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
            return reason("unreachable", format!("the node cannot be reached{why}"));
        }
        Some(_) => {}
    }
    if let Some(hold) = &configured.hold {
        return reason("hold", format!("the node is on hold: {}", hold.value));
    }
    let cordon = inventory.member.holds.iter().find(|hold| hold.node == name)?;
    reason("hold", format!("the node is cordoned: {}", cordon.reason))
}

/// Accelerators in the driver's order, without those that are cut into MIG slices: nothing runs on the whole then.
fn sorted(facts: &NodeFacts) -> Vec<&Accelerator> {
    let cut = |a: &Accelerator| facts.accelerators.iter().any(|slice| slice.mig_parent.as_ref() == Some(&a.uuid));
    let mut accelerators: Vec<&Accelerator> = facts.accelerators.iter().filter(|a| !cut(a)).collect();
    accelerators.sort_by(|a, b| (a.index, &a.uuid).cmp(&(b.index, &b.uuid)));
    accelerators
}

/// Bytes that our own instances hold on an accelerator; `None` where that cannot be told.
fn held(accelerator: &Accelerator, facts: &NodeFacts) -> Option<u64> {
    let ours: Option<Vec<u64>> = accelerator.processes.iter().filter(|p| p.ours).map(|p| p.used_bytes).collect();
    let ours = ours?;
    let bound = facts.instances.iter().any(|i| i.accelerators.contains(&accelerator.uuid) && lives(i));
    if ours.is_empty() && bound && accelerator.processes.is_empty() { None } else { Some(ours.iter().sum()) }
}

fn lives(instance: &InstanceFacts) -> bool {
    instance.running || instance.pid.is_some() || instance.state == InstanceState::Ready
}

fn accelerator_supply(
    accelerator: &Accelerator,
    facts: &NodeFacts,
    held: Option<u64>,
    held_host: u64,
    vram: Option<Bytes>,
    ram: Option<Bytes>,
    notes: &mut Vec<String>,
) -> AcceleratorSupply {
    let unified = accelerator.memory.unified;
    let capacity = match held {
        Some(held) => accelerator_capacity(accelerator, vram, held + if unified { held_host } else { 0 }, facts, ram),
        None => {
            let mut unknown = accelerator.clone();
            unknown.memory.free_bytes = None;
            if unified {
                let mut facts = facts.clone();
                facts.ram.available_bytes = None;
                accelerator_capacity(&unknown, vram, 0, &facts, ram)
            } else {
                accelerator_capacity(&unknown, vram, 0, facts, ram)
            }
        }
    };
    notes.extend(capacity.notes.iter().map(|note| format!("{}: {note}", facts.name)));
    let total = capacity.total_bytes.unwrap_or(0);
    let reserve = if unified {
        ram.unwrap_or(crate::sizing::DEFAULT_RESERVE_RAM)
    } else {
        vram.unwrap_or_else(|| default_reserve_vram(total))
    };
    let driver_bytes = accelerator.memory.reserved_bytes.filter(|_| !unified).unwrap_or(0);
    let ceiling = total.saturating_sub(driver_bytes).saturating_sub(reserve.0);
    let known_free = if unified {
        accelerator.memory.free_bytes.or(facts.ram.available_bytes)
    } else {
        accelerator.memory.free_bytes
    };
    let held_bytes = held.unwrap_or(0) + if unified { held_host } else { 0 };
    let binds = held.is_some() && capacity.bytes.is_some_and(|bytes| bytes < ceiling);
    AcceleratorSupply {
        uuid: accelerator.uuid.clone(),
        vendor: accelerator.vendor.clone(),
        kind: accelerator_kind(accelerator, facts),
        capacity_bytes: capacity.bytes.unwrap_or(0),
        total_bytes: total,
        reserve_bytes: reserve.0,
        driver_bytes,
        free_bytes: known_free.filter(|_| binds),
        held_bytes,
        unified,
        mig: accelerator.mig_parent.is_some(),
        healthy: accelerator.healthy,
    }
}

/// What is free where weights lie: the file system with the longest path above the weights folder.
fn disk_free(facts: &NodeFacts) -> Option<u64> {
    let folder = facts.weights_path.as_deref().or(facts.home.as_deref());
    let above = |path: &str| {
        let path = path.trim_end_matches('/');
        folder.is_some_and(|f| f == path || f.strip_prefix(path).is_some_and(|rest| rest.starts_with('/')))
    };
    let best = facts.disks.iter().filter(|d| above(&d.path)).max_by_key(|d| d.path.len());
    best.or(facts.disks.iter().min_by_key(|d| d.free_bytes)).map(|d| d.free_bytes)
}

/// Engines that can be started on a node: those found there, else the config's.
fn engines(desired: &Desired, node: &str, facts: &NodeFacts) -> Vec<EngineSupply> {
    let mut supplies = Vec::new();
    for kind in EngineKind::ALL {
        let declared = desired.engines.get(kind);
        let wanted = wanted_program(desired, *kind, node, facts);
        let version = declared.and_then(|e| e.version.as_ref()).map(|v| v.value.clone());
        match &facts.engines {
            Some(found) => {
                let usable = found.iter().filter(|e| e.kind == *kind && e.problem.is_none());
                let fits = |e: &&crate::inventory::EngineFound| {
                    version.is_none() || e.version.is_none() || e.version == version
                };
                let mut usable: Vec<_> = usable.filter(fits).collect();
                usable.sort_by_key(|e| (Some(&e.path) != wanted.as_ref(), e.path.clone()));
                supplies.extend(usable.first().map(|e| EngineSupply {
                    kind: *kind,
                    version: e.version.clone().or_else(|| version.clone()),
                    program: e.path.clone(),
                    worker: e.rpc_server.clone(),
                }));
            }
            None => supplies.extend(wanted.map(|program| EngineSupply { kind: *kind, version, program, worker: None })),
        }
    }
    supplies
}

/// The program that the config names for an engine on a node.
pub fn wanted_program(desired: &Desired, kind: EngineKind, node: &str, facts: &NodeFacts) -> Option<String> {
    let engine = desired.engines.get(&kind)?;
    let own = engine.paths.iter().find(|path| path.node.as_deref() == Some(node));
    let path = own.or(engine.paths.iter().find(|path| path.node.is_none()))?;
    Some(expand_home(&path.path.value, facts.home.as_deref()))
}

/// Why an engine is not among those of a node.
pub fn missing_engine(desired: &Desired, kind: EngineKind, facts: Option<&NodeFacts>) -> String {
    let found = facts.and_then(|f| f.engines.as_ref());
    let Some(found) = found else { return format!("no path of {kind} is known for this node") };
    let wanted = desired.engines.get(&kind).and_then(|e| e.version.as_ref()).map(|v| v.value.as_str());
    match found.iter().find(|e| e.kind == kind) {
        Some(engine) if engine.problem.is_some() => {
            let problem = engine.problem.as_deref().unwrap_or("unknown");
            format!("{kind} cannot be used: {}: {problem}", engine.path)
        }
        Some(engine) => format!(
            "{kind} is {} here, the config wants {}",
            engine.version.as_deref().unwrap_or("of unknown version"),
            wanted.unwrap_or("another")
        ),
        None => format!("{kind} was not found on this node"),
    }
}

/// What runs, or is told to run, on all nodes; what is being stopped is left out.
pub fn running(desired: &Desired, inventory: &Inventory, candidates: &Candidates, options: &Options) -> Vec<Running> {
    let mut all = Vec::new();
    for node in &inventory.nodes {
        let serving = |i: &&InstanceFacts| i.state != InstanceState::Stopping && !i.is_worker();
        for instance in node.instances.iter().filter(serving) {
            let known = candidates.get(&instance.model).and_then(|c| c.as_ref().ok());
            let label = known.and_then(|list| {
                let by_label = list.iter().find(|c| c.label == instance.variant);
                by_label.or(list.iter().find(|c| c.variant.id == instance.variant)).map(|c| c.label.clone())
            });
            all.push(Running {
                model: instance.model.clone(),
                replica: instance.replica,
                instance: instance.instance.clone(),
                node: node.name.clone(),
                accelerators: instance.accelerators.clone(),
                variant: label.unwrap_or_else(|| instance.variant.clone()),
                engine: Some(instance.engine),
                load_ms: instance.load_ms,
                live_sessions: instance.live_sessions,
                failed: instance.state == InstanceState::Failed,
                layers: instance.layers.clone(),
                further: workers(inventory, instance),
                ports: held_ports(desired, &node.name, instance, options),
            });
        }
    }
    all
}

/// What works for an instance on other nodes, in the order of its layers; a worker that its node no longer has is missing.
fn workers(inventory: &Inventory, instance: &InstanceFacts) -> Vec<(String, Vec<String>)> {
    let nodes = instance.part.iter().flat_map(|part| part.nodes.iter().skip(1));
    let of = |node: &String| {
        let mut there = inventory.node(node)?.instances.iter().filter(|found| found.is_worker());
        let worker = there.find(|found| found.part.as_ref().is_some_and(|part| part.instance == instance.instance))?;
        Some((node.clone(), worker.accelerators.clone()))
    };
    nodes.filter_map(of).collect()
}

/// The quotas of the config, with the models that they are about.
pub fn quotas(desired: &Desired) -> Vec<QuotaRule> {
    let rule = |quota: &crate::config::Quota| QuotaRule {
        name: format!("{:?} ({})", quota.name.value, quota.name.place.short()),
        models: desired
            .models
            .iter()
            .filter(|(_, model)| model.extras.labels.get(&quota.label) == Some(&quota.is))
            .map(|(name, _)| name.clone())
            .collect(),
        accelerators: quota.accelerators,
        vram_bytes: quota.vram.map(|bytes| bytes.0),
    };
    desired.policies.quotas.values().map(rule).collect()
}

/// Models whose running instances must stay.
pub fn protected(desired: &Desired, inventory: &Inventory) -> BTreeSet<String> {
    let config = desired.policies.protect.iter().map(|p| p.value.clone());
    config.chain(inventory.member.protections.iter().map(|p| p.model.clone())).collect()
}

/// Accelerator positions by kind, in the order of the kinds' first accelerator. No group has two makers: one engine
/// process speaks to one maker's runtime.
pub fn groups(node: &NodeSupply) -> Vec<Vec<usize>> {
    let mut groups: BTreeMap<(&str, &str, bool, bool), Vec<usize>> = BTreeMap::new();
    for (position, accelerator) in node.accelerators.iter().enumerate() {
        let key = (accelerator.kind.as_str(), accelerator.vendor.as_str(), accelerator.mig, accelerator.unified);
        groups.entry(key).or_default().push(position);
    }
    let mut groups: Vec<Vec<usize>> = groups.into_values().collect();
    groups.sort();
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_names_of_two_makers_are_two_kinds() {
        let one = |vendor: &str| AcceleratorSupply {
            vendor: vendor.into(),
            kind: "unknown 24564 MiB".into(),
            ..AcceleratorSupply::default()
        };
        let node = NodeSupply { accelerators: vec![one("nvidia"), one("amd"), one("nvidia")], ..NodeSupply::default() };
        assert_eq!(groups(&node), [vec![0, 2], vec![1]]);
    }
}
