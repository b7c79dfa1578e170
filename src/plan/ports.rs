//! Ports of instances, those that engines open for themselves included: the lowest free ones of the node's range, in
//! the order of model and replica; outside the kernel's ephemeral range as long as there are any.

use std::collections::{BTreeMap, BTreeSet};

use super::{Observed, PlannedInstance};
use crate::config::Desired;
use crate::engine::internal_ports;
use crate::inventory::{Inventory, NodeFacts};

/// How many further ports the agent may walk.
const ALTERNATES: usize = 4;
/// The range where a node says none.
pub const DEFAULT_RANGE: (u16, u16) = (20000, 20999);

/// Gives every instance its port, its internal ports and alternates. What is returned found none and must not be
/// started.
///
/// A running instance keeps its ports, also where its specification changes on the same accelerators.
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
    let mut found: BTreeMap<&str, Vec<&Observed>> = BTreeMap::new();
    observed.iter().for_each(|o| found.entry(&o.node).or_default().push(o));
    let mut without = Vec::new();
    for (node, members) in by_node {
        let range = desired.nodes.get(&node).map_or(DEFAULT_RANGE, |configured| configured.ports);
        let facts = inventory.node(&node);
        let here = found.remove(node.as_str()).unwrap_or_default();
        let ours: BTreeSet<u16> = here.iter().filter(|o| o.alive).flat_map(|o| ports_of(o)).collect();
        let foreign: BTreeSet<u16> = facts
            .map(|facts| facts.ports_in_use.iter().copied().filter(|port| !ours.contains(port)).collect())
            .unwrap_or_default();
        let before: Vec<Option<&Observed>> = members.iter().map(|i| predecessor(&instances[*i], &here)).collect();
        let main = |before: &Option<&Observed>| before.map(|o| o.port).filter(|p| *p != 0 && !foreign.contains(p));
        let kept: Vec<Option<u16>> = before.iter().map(main).collect();
        let mut pool = Pool { range, ephemeral: facts.and_then(ephemeral), taken: foreign.clone() };
        pool.taken.extend(here.iter().flat_map(|o| ports_of(o)));
        pool.taken.extend(kept.iter().flatten());
        let mut holders = BTreeSet::new();
        let mut placed = Vec::new();
        for ((index, kept), before) in members.iter().zip(&kept).zip(&before) {
            // Two instances cannot keep one port: the first in order does.
            let port = kept.filter(|port| holders.insert(*port)).or_else(|| pool.take(1).map(|(port, _)| port));
            let needed = internal_ports(instances[*index].engine);
            let had = before.and_then(|o| o.spec.as_ref()).map(|spec| &spec.internal_ports);
            let had = had.filter(|had| had.len() == usize::from(needed) && had.iter().all(|p| !foreign.contains(p)));
            let internal = match had {
                Some(had) if had.iter().all(|port| holders.insert(*port)) => Some(had.clone()),
                _ if needed == 0 => Some(Vec::new()),
                _ => pool.take(needed).map(|(low, high)| (low..=high).collect()),
            };
            match (port, internal) {
                (Some(port), Some(internal)) => {
                    holders.insert(port);
                    holders.extend(&internal);
                    instances[*index].port = port;
                    instances[*index].spec.internal_ports = internal;
                    placed.push(*index);
                }
                _ => without.push(*index),
            }
        }
        for index in placed {
            let alternates = std::iter::repeat_with(|| pool.take(1)).map_while(|port| Some(port?.0));
            instances[index].port_alternates = alternates.take(ALTERNATES).collect();
        }
    }
    without.sort_unstable();
    without
}

/// All ports that belong to what runs, or should.
fn ports_of(observed: &Observed) -> impl Iterator<Item = u16> + use<> {
    let internal = observed.spec.as_ref().map(|spec| spec.internal_ports.clone()).unwrap_or_default();
    std::iter::once(observed.port).chain(internal)
}

/// Ports of a node that may still be given away.
struct Pool {
    range: (u16, u16),
    ephemeral: Option<(u16, u16)>,
    taken: BTreeSet<u16>,
}

impl Pool {
    /// The lowest so many free ports in a row, first and last: outside the ephemeral range, else anywhere.
    fn take(&mut self, count: u16) -> Option<(u16, u16)> {
        let (low, high) = self.range;
        let last = |first: u16| first.checked_add(count.saturating_sub(1)).filter(|last| *last <= high);
        let free = |first: u16, last: u16| (first..=last).all(|port| !self.taken.contains(&port));
        let calm = |first: u16, last: u16| self.ephemeral.is_none_or(|(from, to)| last < from || first > to);
        let rows = || (low..=high).filter_map(|first| Some((first, last(first)?)));
        let found = rows()
            .find(|(first, last)| calm(*first, *last) && free(*first, *last))
            .or_else(|| rows().find(|(first, last)| free(*first, *last)))?;
        self.taken.extend(found.0..=found.1);
        Some(found)
    }
}

/// Where the kernel takes a port for any outgoing connection.
fn ephemeral(node: &NodeFacts) -> Option<(u16, u16)> {
    node.ip_local_port_range.map(|[from, to]| (from, to))
}

/// The instance of this replica whose ports it may keep: itself, or what runs on its accelerators.
fn predecessor<'a>(instance: &PlannedInstance, here: &[&'a Observed]) -> Option<&'a Observed> {
    let own = here.iter().filter(|o| o.model == instance.model && o.replica == instance.replica);
    own.copied().find(|o| o.instance == instance.instance || o.accelerators == instance.accelerators)
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
