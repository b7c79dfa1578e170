//! Ports of instances: the lowest free one of the node's range, in the order of model and replica.

use std::collections::{BTreeMap, BTreeSet};

use super::{Observed, PlannedInstance};
use crate::config::Desired;
use crate::inventory::Inventory;

/// How many further ports the agent may walk.
const ALTERNATES: usize = 4;
/// The range where a node says none.
pub const DEFAULT_RANGE: (u16, u16) = (20000, 20999);

/// Gives every instance its port and alternates. What is returned found no free port and must not be started.
///
/// A running instance keeps its port, also where its specification changes on the same accelerators.
pub(super) fn assign(
    instances: &mut [PlannedInstance],
    observed: &[Observed],
    desired: &Desired,
    inventory: &Inventory,
) -> Vec<usize> {
    let mut by_node: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, instance) in instances.iter().enumerate() {
        by_node.entry(instance.node.clone()).or_default().push(index);
    }
    let mut without = Vec::new();
    for (node, members) in by_node {
        let range = desired.nodes.get(&node).map_or(DEFAULT_RANGE, |configured| configured.ports);
        let here: Vec<&Observed> = observed.iter().filter(|o| o.node == node).collect();
        let ours: BTreeSet<u16> = here.iter().filter(|o| o.alive).map(|o| o.port).collect();
        let foreign: BTreeSet<u16> = inventory
            .node(&node)
            .map(|facts| facts.ports_in_use.iter().copied().filter(|port| !ours.contains(port)).collect())
            .unwrap_or_default();
        let kept: Vec<Option<u16>> = members.iter().map(|i| keeps(&instances[*i], &here, &foreign)).collect();
        let mut taken: BTreeSet<u16> = foreign;
        taken.extend(here.iter().map(|o| o.port));
        taken.extend(kept.iter().flatten());
        let mut holders = BTreeSet::new();
        let mut placed = Vec::new();
        for (index, kept) in members.iter().zip(&kept) {
            // Two instances cannot keep one port: the first in order does.
            let port = kept.filter(|port| holders.insert(*port)).or_else(|| free(range, &taken));
            match port {
                Some(port) => {
                    taken.insert(port);
                    holders.insert(port);
                    instances[*index].port = port;
                    placed.push(*index);
                }
                None => without.push(*index),
            }
        }
        for index in placed {
            let mut alternates = Vec::new();
            while alternates.len() < ALTERNATES {
                let Some(port) = free(range, &taken) else { break };
                taken.insert(port);
                alternates.push(port);
            }
            instances[index].port_alternates = alternates;
        }
    }
    without.sort_unstable();
    without
}

/// The port that an instance has on its node already.
fn keeps(instance: &PlannedInstance, here: &[&Observed], foreign: &BTreeSet<u16>) -> Option<u16> {
    here.iter()
        .filter(|o| o.model == instance.model && o.replica == instance.replica)
        .find(|o| o.instance == instance.instance || o.accelerators == instance.accelerators)
        .filter(|o| o.port != 0 && !foreign.contains(&o.port))
        .map(|o| o.port)
}

fn free((low, high): (u16, u16), taken: &BTreeSet<u16>) -> Option<u16> {
    (low..=high).find(|port| !taken.contains(port))
}

/// Nodes whose range overlaps the kernel's ephemeral range, where any connection may take a port first.
pub(super) fn overlaps(desired: &Desired, inventory: &Inventory, nodes: &BTreeSet<String>) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for name in nodes {
        let (low, high) = desired.nodes.get(name).map_or(DEFAULT_RANGE, |configured| configured.ports);
        let Some([from, to]) = inventory.node(name).and_then(|facts| facts.ip_local_port_range) else { continue };
        if low <= to && from <= high {
            found.push((
                name.clone(),
                format!("ports {low}-{high} of `{name}` overlap its ephemeral range {from}-{to}"),
            ));
        }
    }
    found
}
