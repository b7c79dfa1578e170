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

/// What was given away.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Assigned {
    /// Instances that found no port and must not be started.
    pub without: Vec<usize>,
    /// Instances that take ports of one that leaves: planned, observed.
    pub after: Vec<(usize, usize)>,
}

/// Gives every instance its port, its internal ports and alternates.
///
/// A running instance keeps its ports, also where its specification changes on the same accelerators. Those of one that
/// leaves are taken where nothing else is left, and whoever takes them waits for that.
pub(super) fn assign(
    instances: &mut [PlannedInstance],
    observed: &[Observed],
    desired: &Desired,
    inventory: &Inventory,
) -> Assigned {
    let mut by_node: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, instance) in instances.iter().enumerate() {
        by_node.entry(instance.node.clone()).or_default().push(index);
    }
    let mut found: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    observed.iter().enumerate().for_each(|(index, o)| found.entry(&o.node).or_default().push(index));
    let mut assigned = Assigned::default();
    for (node, members) in by_node {
        let here = found.remove(node.as_str()).unwrap_or_default();
        let there = Here { desired, facts: inventory.node(&node), observed, here: &here, node: &node };
        // The lowest first; where that cuts up the rows that engines want, rows before single ones.
        let plain = there.deal(instances, &members, false);
        let dealt = if plain.without == 0 { plain } else { plain.or(there.deal(instances, &members, true)) };
        let mut pool = dealt.pool;
        let mut placed = Vec::new();
        for (index, ports) in members.iter().zip(dealt.ports) {
            let Some((port, internal)) = ports else {
                assigned.without.push(*index);
                continue;
            };
            instances[*index].port = port;
            instances[*index].spec.internal_ports = internal;
            placed.push(*index);
        }
        assigned.after.extend(dealt.after);
        // The instance that a worker works for is told its port.
        for index in placed.into_iter().filter(|index| !instances[*index].is_worker()).collect::<Vec<_>>() {
            let alternates = std::iter::repeat_with(|| pool.take(1)).map_while(|port| Some(port?.0));
            instances[index].port_alternates = alternates.take(ALTERNATES).collect();
        }
    }
    assigned.without.sort_unstable();
    assigned
}

/// A node, and what runs there.
struct Here<'a> {
    desired: &'a Desired,
    facts: Option<&'a NodeFacts>,
    observed: &'a [Observed],
    here: &'a [usize],
    node: &'a str,
}

/// One way to give the ports of a node away.
struct Dealt {
    /// By member: its port and internal ones.
    ports: Vec<Option<(u16, Vec<u16>)>>,
    after: Vec<(usize, usize)>,
    without: usize,
    pool: Pool,
}

impl Dealt {
    /// The one that leaves fewer without; this one where both leave as many.
    fn or(self, other: Self) -> Self {
        if other.without < self.without { other } else { self }
    }
}

impl Here<'_> {
    fn deal(&self, instances: &[PlannedInstance], members: &[usize], rows_first: bool) -> Dealt {
        let range = self.desired.nodes.get(self.node).map_or(DEFAULT_RANGE, |configured| configured.ports);
        let all = || self.here.iter().map(|index| (*index, &self.observed[*index]));
        let ours: BTreeSet<u16> = all().filter(|(_, o)| o.alive).flat_map(|(_, o)| ports_of(o)).collect();
        let foreign: BTreeSet<u16> = self
            .facts
            .map(|facts| facts.ports_in_use.iter().copied().filter(|port| !ours.contains(port)).collect())
            .unwrap_or_default();
        let before: Vec<Option<usize>> = members.iter().map(|i| self.predecessor(&instances[*i])).collect();
        let main = |before: &Option<usize>| {
            before.map(|index| self.observed[index].port).filter(|port| *port != 0 && !foreign.contains(port))
        };
        let kept: Vec<Option<u16>> = before.iter().map(main).collect();
        let mut pool =
            Pool { range, ephemeral: self.facts.and_then(ephemeral), taken: foreign.clone(), leaving: BTreeMap::new() };
        pool.taken.extend(all().flat_map(|(_, o)| ports_of(o)));
        pool.taken.extend(kept.iter().flatten());
        for (index, o) in all().filter(|(index, o)| !before.contains(&Some(*index)) && self.leaves(o)) {
            pool.leaving.extend(ports_of(o).filter(|port| *port != 0 && !foreign.contains(port)).map(|p| (p, index)));
        }
        let mut dealt = Dealt { ports: vec![None; members.len()], after: Vec::new(), without: 0, pool };
        let mut holders = BTreeSet::new();
        let mut mains: Vec<Option<u16>> = vec![None; members.len()];
        let mut internals: Vec<Option<Vec<u16>>> = vec![None; members.len()];
        let passes: &[(bool, bool)] = if rows_first { &[(false, true), (true, false)] } else { &[(true, true)] };
        for (singles, rows) in passes {
            for (at, index) in members.iter().enumerate() {
                let mut waits = BTreeSet::new();
                // Two instances cannot keep one port: the first in order does.
                if *singles {
                    let kept = kept[at].filter(|port| holders.insert(*port));
                    mains[at] = kept.or_else(|| dealt.pool.take_any(1, &mut waits).map(|(port, _)| port));
                    holders.extend(mains[at]);
                }
                if *rows {
                    let needed = internal_ports(instances[*index].engine);
                    let had = before[at].and_then(|o| self.observed[o].spec.as_ref()).map(|spec| &spec.internal_ports);
                    let same = |had: &&Vec<u16>| {
                        had.len() == usize::from(needed) && had.iter().all(|port| !foreign.contains(port))
                    };
                    internals[at] = match had.filter(same) {
                        Some(had) if had.iter().all(|port| holders.insert(*port)) => Some(had.clone()),
                        _ if needed == 0 => Some(Vec::new()),
                        _ => {
                            let found =
                                dealt.pool.take_any(needed, &mut waits).map(|(low, high)| (low..=high).collect());
                            found.or_else(|| self.has_its_own(before[at], &instances[*index]).then(Vec::new))
                        }
                    };
                    holders.extend(internals[at].iter().flatten());
                }
                dealt.after.extend(waits.into_iter().map(|old| (*index, old)));
            }
        }
        dealt.ports = mains.into_iter().zip(internals).map(|(port, internal)| Some((port?, internal?))).collect();
        dealt.without = dealt.ports.iter().filter(|ports| ports.is_none()).count();
        dealt
    }

    /// Whether it runs as it should, and only what its engine opened is not told: that is among the ports in use.
    fn has_its_own(&self, before: Option<usize>, instance: &PlannedInstance) -> bool {
        before.map(|index| &self.observed[index]).is_some_and(|o| {
            o.spec.is_none() && o.alive && o.instance == instance.instance && o.specification == instance.specification
        })
    }

    /// The instance of this replica whose ports it may keep: itself, or what runs on its accelerators.
    fn predecessor(&self, instance: &PlannedInstance) -> Option<usize> {
        let same = |index: &&usize| {
            let o = &self.observed[**index];
            (&o.model, o.replica) == (&instance.model, instance.replica)
                && (o.instance == instance.instance || o.accelerators == instance.accelerators)
        };
        self.here.iter().find(same).copied()
    }

    /// Whether the plan stops it or moves it away, as nothing planned here takes over from it.
    fn leaves(&self, o: &Observed) -> bool {
        o.reachable && self.desired.models.contains_key(&o.model)
    }
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
    /// Taken by what leaves, which is this observed instance.
    leaving: BTreeMap<u16, usize>,
}

impl Pool {
    /// The same, and where there are none with those of instances that leave, which are then waited for.
    fn take_any(&mut self, count: u16, waits: &mut BTreeSet<usize>) -> Option<(u16, u16)> {
        if let Some(found) = self.take(count) {
            return Some(found);
        }
        let (taken, leaving) = (self.taken.clone(), std::mem::take(&mut self.leaving));
        self.taken.retain(|port| !leaving.contains_key(port));
        let found = self.take(count);
        let given = |port: &u16| found.is_some_and(|(low, high)| (low..=high).contains(port));
        waits.extend(leaving.iter().filter(|(port, _)| given(port)).map(|(_, old)| *old));
        self.leaving = leaving.into_iter().filter(|(port, _)| !given(port)).collect();
        self.taken.extend(taken);
        found
    }

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
