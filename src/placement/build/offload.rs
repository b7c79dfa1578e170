//! Shapes of llama.cpp with some layers on accelerators and the rest in host memory, where the config allows it.
//!
//! The more layers an accelerator holds the faster it is, and the bytes in host memory are the fewer; so per kind of
//! accelerator two are worth a look: the most layers on one, and the most over all of them.

use crate::base::{EngineKind, format_bytes};
use crate::inventory::NodeFacts;
use crate::placement::build::shapes::{Builder, CPU_BANDWIDTH, as_read, bandwidth, counted};
use crate::placement::build::vision::beside_layers;
use crate::placement::build::{supply, unequal};
use crate::placement::{AcceleratorSupply, Candidate, Shape};
use crate::sizing::{Demand, Figures, Footprint, SizingError, staged_decode, staged_footprint};

/// Accelerators that one process takes at most.
const MOST: usize = 8;

/// Adds them for a candidate on one node.
pub fn add(builder: &mut Builder<'_>, candidate: &Candidate, draft: &Shape, demand: Demand<'_>, facts: &NodeFacts) {
    if draft.engine != EngineKind::LlamaCpp || !builder.model.place.allow_offload {
        return;
    }
    let supply = &builder.nodes[draft.node];
    let mut found = Vec::new();
    let mut refused = None;
    for group in supply::groups(supply) {
        let first = &supply.accelerators[group[0]];
        // A pool that host and accelerator share gains nothing.
        if first.unified {
            continue;
        }
        let mut open: Vec<usize> = group.iter().copied().filter(|p| supply.accelerators[*p].healthy).collect();
        open.sort_by_key(|p| (std::cmp::Reverse(supply.accelerators[*p].capacity_bytes), *p));
        open.truncate(if first.mig { 1 } else { MOST });
        let mut sizes = vec![1, open.len()];
        sizes.dedup();
        for count in sizes.into_iter().filter(|count| (1..=open.len()).contains(count)) {
            // What holds all layers on as many needs no host.
            let whole = |shape: &Shape| {
                (shape.candidate, shape.engine, shape.node) == (draft.candidate, draft.engine, draft.node)
                    && (1..=count).contains(&shape.all_ranks())
                    && beside_layers(builder, candidate, draft.engine) == 0
            };
            if builder.demand.shapes.iter().any(whole) {
                continue;
            }
            let devices: Vec<&AcceleratorSupply> = open[..count].iter().map(|p| &supply.accelerators[*p]).collect();
            let beside = beside_layers(builder, candidate, draft.engine);
            let Some((layers, sized)) = most(candidate, &demand, &devices, beside) else { continue };
            let host = sized.host.total();
            if host > supply.host_capacity_bytes {
                let held: u32 = layers.iter().sum();
                let all = candidate.variant.architecture.layers;
                let text = format!(
                    "with {held} of {all} layers on {count} accelerators it needs {} of host memory; {} can be used",
                    format_bytes(host),
                    format_bytes(supply.host_capacity_bytes)
                );
                let why = counted(&supply.name, "ram", host, supply.host_capacity_bytes, "bytes", text);
                refused.get_or_insert((count as u32, why));
                continue;
            }
            let groups = vec![group.clone(); count];
            let shape = unequal::assemble(supply, draft, &groups, &layers, 1, &sized, demand.version);
            let device = facts.accelerator(&first.uuid).and_then(bandwidth);
            let speed = device.and_then(|device| speed(candidate, demand, &sized, &layers, device));
            found.push(Shape { speed, pipeline: count > 1, ..shape });
        }
    }
    let offered = !found.is_empty();
    builder.demand.shapes.extend(found);
    if let Some((ranks, why)) = refused.filter(|_| !offered) {
        builder.remove(candidate, Some(draft.engine), Some(ranks), why);
    }
}

/// The most layers that such accelerators hold, in rank order, the last one with the output head, and so many bytes
/// `beside` them on the first.
pub fn most(
    candidate: &Candidate,
    demand: &Demand<'_>,
    devices: &[&AcceleratorSupply],
    beside: u64,
) -> Option<(Vec<u32>, Footprint)> {
    let all = candidate.variant.architecture.layers;
    let sized = |layers: &[u32]| staged_footprint(&candidate.variant, demand, layers);
    let fits = |found: &Result<Footprint, SizingError>| {
        let each = found.as_ref().ok()?.per_accelerator.iter().zip(devices).enumerate();
        let fits = |(number, (figures, device)): (usize, (&Figures, &&AcceleratorSupply))| {
            figures.total().saturating_add(if number == 0 { beside } else { 0 }) <= device.capacity_bytes
        };
        each.map(|one| fits(one).then_some(())).collect::<Option<()>>()
    };
    // Evenly, with what is left over on the first ones: the last one holds the head besides.
    let shared = |held: u32| -> Vec<u32> {
        let count = devices.len() as u32;
        (0..count).map(|device| held / count + u32::from(device < held % count)).collect()
    };
    let (mut low, mut high) = (devices.len() as u32 - 1, all.saturating_sub(1));
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(&sized(&shared(middle))).is_some() { low = middle } else { high = middle - 1 }
    }
    if low < devices.len() as u32 {
        return None;
    }
    let layers = shared(low);
    let found = sized(&layers);
    fits(&found)?;
    Some((layers, found.ok()?))
}

/// Layers on accelerators are read at their bandwidth, the first ones at the host's.
fn speed(candidate: &Candidate, demand: Demand<'_>, sized: &Footprint, layers: &[u32], device: u64) -> Option<f64> {
    let held: u32 = layers.iter().sum();
    let host = candidate.variant.architecture.layers.saturating_sub(held);
    let mut stages = vec![(host, CPU_BANDWIDTH)];
    stages.extend(layers.iter().map(|own| (*own, device)));
    staged_decode(&candidate.variant, &as_read(candidate, demand, sized), &stages)
}
