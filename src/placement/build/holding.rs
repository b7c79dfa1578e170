//! Room for what runs already and turned out larger than planned.
//!
//! A measurement may say that a running instance takes more than was planned for it. It holds that memory already, so
//! the figure alone must not move or stop it; but nothing new may be put where it really is. Where everything that runs
//! on an accelerator (or on a host) fitted as planned and no longer does as measured, the capacity counts as that much:
//! what runs fits exactly, and nothing beside it.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::base::{EngineKind, MIB};
use crate::config::Desired;
use crate::placement::build::shapes::{claim, demand_of, over, sized};
use crate::placement::{Candidates, NodeSupply, Problem, Running, pool_bytes};
use crate::sizing::{Calibrations, Footprint, effective_context, footprint};

/// Bytes as planned, and as measured.
#[derive(Debug, Clone, Copy, Default)]
struct Both {
    planned: u64,
    measured: u64,
}

impl Both {
    fn add(&mut self, planned: u64, measured: u64) {
        let whole = |bytes: u64| bytes.div_ceil(MIB).saturating_mul(MIB);
        self.planned = self.planned.saturating_add(whole(planned));
        self.measured = self.measured.saturating_add(whole(measured));
    }

    /// The capacity with which what runs stays where it is.
    fn capacity(self, capacity: u64) -> u64 {
        if self.planned <= capacity { capacity.max(self.measured) } else { capacity }
    }
}

/// Raises the capacities of nodes to what runs there already, where only measurements say that it does not fit.
pub fn make_room(problem: &mut Problem, desired: &Desired, candidates: &Candidates) {
    let mut by_node: BTreeMap<&str, Vec<&Running>> = BTreeMap::new();
    for running in &problem.running {
        by_node.entry(&running.node).or_default().push(running);
    }
    let mut sizes = Sizes::new();
    for node in &mut problem.nodes {
        let Some(here) = by_node.get(node.name.as_str()) else { continue };
        let mut devices = vec![Both::default(); node.accelerators.len()];
        let mut host = Both::default();
        for running in here {
            let found = bytes(&problem.calibrations, node, running, desired, candidates, &mut sizes);
            let Some(found) = found else { continue };
            let [planned, measured] = &*found.sized;
            let ranks = found.positions.len() as u32;
            let mut largest = Both::default();
            for position in &found.positions {
                let total = node.accelerators[*position].total_bytes;
                let of = |footprint: &Footprint| claim(found.engine, footprint.largest(), total);
                devices[*position].add(of(planned), of(measured));
                largest =
                    Both { planned: largest.planned.max(of(planned)), measured: largest.measured.max(of(measured)) };
            }
            if node.unified(&found.positions) {
                let pool = |each: u64, footprint: &Footprint| pool_bytes(each, ranks, footprint.host.total());
                host.add(pool(largest.planned, planned), pool(largest.measured, measured));
            } else {
                host.add(planned.host.total(), measured.host.total());
            }
        }
        for (accelerator, held) in node.accelerators.iter_mut().zip(devices) {
            accelerator.capacity_bytes = held.capacity(accelerator.capacity_bytes);
        }
        node.host_capacity_bytes = host.capacity(node.host_capacity_bytes);
    }
}

/// What a running instance takes.
struct Found {
    engine: EngineKind,
    positions: Vec<usize>,
    /// As planned, and as measured.
    sized: Rc<[Footprint; 2]>,
}

/// Footprints that were computed already: by model, candidate, engine, version, ranks and kind of accelerator.
type Sizes<'a> = BTreeMap<(&'a str, &'a str, EngineKind, Option<String>, usize, Option<String>), Rc<[Footprint; 2]>>;

fn bytes<'a>(
    calibrations: &Calibrations,
    node: &NodeSupply,
    running: &'a Running,
    desired: &Desired,
    candidates: &Candidates,
    sizes: &mut Sizes<'a>,
) -> Option<Found> {
    // A split of its own is sized as it was planned, whatever was measured.
    if !running.layers.is_empty() {
        return None;
    }
    let model = desired.models.get(&running.model)?;
    let list = candidates.get(&running.model)?.as_ref().ok()?;
    let candidate = list.iter().find(|candidate| candidate.label == running.variant)?;
    let engine = running.engine?;
    let version = node.engines.iter().find(|found| found.kind == engine)?.version.as_deref();
    let context = effective_context(&candidate.variant, model.context.as_ref().map(|c| c.value)).ok()?;
    let positions: Option<Vec<usize>> = running.accelerators.iter().map(|uuid| node.position(uuid)).collect();
    let positions = positions?;
    let kind = positions.first().map(|position| node.accelerators[*position].kind.as_str());
    let (version_of, kind_of) = (version.map(str::to_owned), kind.map(str::to_owned));
    let key = (running.model.as_str(), running.variant.as_str(), engine, version_of, positions.len(), kind_of);
    if let Some(sized) = sizes.get(&key) {
        return Some(Found { engine, positions, sized: Rc::clone(sized) });
    }
    let demand = over(demand_of(model, engine, version, context), positions.len() as u32);
    let planned = footprint(&candidate.variant, &demand).ok()?;
    let measured = sized(calibrations, candidate, &demand, kind).ok()?;
    let sized = Rc::new([planned, measured]);
    sizes.insert(key, Rc::clone(&sized));
    Some(Found { engine, positions, sized })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_measurement_makes_room() {
        let mut held = Both::default();
        held.add(10 * MIB, 14 * MIB - 5);
        held.add(4 * MIB, 4 * MIB);
        assert_eq!(held.capacity(20 * MIB), 20 * MIB);
        assert_eq!(held.capacity(15 * MIB), 18 * MIB);
        // What did not fit as planned either, does not: others have taken the memory.
        assert_eq!(held.capacity(13 * MIB), 13 * MIB);
    }
}
