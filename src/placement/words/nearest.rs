//! The nearest changes that would let one more replica of a model run, computed with the sizes of its candidates
//! against what is still free.

use std::collections::BTreeSet;

use crate::base::{EngineKind, format_bytes};
use crate::config::{Desired, Model};
use crate::engine::usable_bytes;
use crate::inventory::Inventory;
use crate::placement::build::offload;
use crate::placement::build::room::Room;
use crate::placement::build::shapes::{claim, demand_of, over, sized};
use crate::placement::layout::spread_value;
use crate::placement::words::probe::{Asks, Fit, Placed, Probe};
use crate::placement::words::span;
use crate::placement::{AcceleratorSupply, Candidate, ModelDemand, NodeSupply, Origin, Problem, Shape, pool_bytes};
use crate::sizing::{LEAST_BITS, footprint, room_for_weights};

/// A shorter context is not worth proposing below this.
const LEAST_CONTEXT: u64 = 1024;
/// Engines count context in steps of this.
const STEP: u64 = 256;

/// Changes in words, nearest first; empty where none was found.
pub fn changes(
    problem: &Problem,
    (desired, inventory): (&Desired, &Inventory),
    placed: &Placed<'_>,
    name: &str,
    model: &Model,
    candidates: &[Candidate],
) -> Vec<String> {
    let Some(index) = problem.model(name) else { return Vec::new() };
    let demand = &problem.models[index];
    let mut changes = held(problem, demand, &placed.room);
    // Values of the label to spread over that have their replica.
    let mut taken = BTreeSet::new();
    if let Some(label) = &demand.spread_by {
        let own = placed.layout.iter().filter(|copy| copy.model == index);
        taken.extend(own.map(|copy| spread_value(problem, label, copy.node)));
    }
    let require = &demand.require;
    let asks = Asks { labels: true, disk: true, paths: true };
    let (ways, sizes) = Default::default();
    let mut probe = Probe { problem, desired, inventory, model, placed, require, taken, asks, ways, sizes };
    let allowed = |c: &&Candidate| model.min_quality.as_ref().is_none_or(|min| c.variant.quality.at_least(&min.value));
    let good: Vec<&Candidate> = candidates.iter().filter(allowed).collect();
    let mut lower: Vec<&Candidate> = candidates.iter().filter(|c| !allowed(c)).collect();
    lower.sort_by_key(|c| c.variant.quality.rank());
    // What fits as it is was refused for another reason (spread, preemption): sizes are not the point then.
    if good.iter().any(|c| probe.fits_somewhere(c, None)) {
        return changes;
    }
    let shorter = probe.shorter(&good);
    let too_heavy = shorter.is_none();
    changes.extend(shorter);
    if let (Some(candidate), Some(min)) = (lower.iter().find(|c| probe.fits_somewhere(c, None)), &model.min_quality) {
        changes.push(format!("allow {} (the config says `quality min=\"{}\"`)", candidate.label, min.value));
    }
    if !model.place.allow_cpu
        && let Some(node) = good.iter().find_map(|c| probe.cpu(c))
    {
        changes.push(format!("`allow cpu=#true`: it would run on the CPU of {node}"));
    }
    if !model.place.allow_offload {
        changes.extend(good.iter().find_map(|c| probe.offload(c)));
    }
    changes.extend(span::allowed(problem, (desired, inventory), &placed.room, name, candidates));
    changes.extend(probe.more_host(&good));
    probe.asks.disk = false;
    changes.extend(probe.more_disk(&good));
    probe.asks = Asks { labels: false, disk: true, paths: true };
    changes.extend(probe.other_labels(&good));
    probe.asks = Asks { labels: true, disk: true, paths: false };
    changes.extend(probe.other_paths(&good));
    probe.asks.paths = true;
    if changes.is_empty() {
        changes.extend(probe.split(&good));
    }
    if changes.is_empty() {
        changes.extend(probe.capability(&good));
    }
    if too_heavy {
        changes.extend(probe.smaller(&good));
    }
    if changes.is_empty()
        && let Some(trained) = good.iter().filter_map(|c| probe.contexts(c)).map(|(_, most)| most).max()
        && good.iter().all(|c| probe.context(c).is_none())
    {
        changes.push(format!("context {trained} or less"));
    }
    changes
}

/// Nodes that have the room and are only held out of new placements.
fn held(problem: &Problem, demand: &ModelDemand, room: &Room<'_>) -> Vec<String> {
    let fits = |shape: &Shape| {
        let able = |node: &usize| {
            let (span, left) = room.tightest(shape, *node);
            left >= span.claimed && room.host_left(*node) >= shape.host.total_bytes()
        };
        room.for_shape(shape).iter().copied().find(able).map(|node| &problem.nodes[node])
    };
    let mut nodes: Vec<&NodeSupply> = Vec::new();
    for node in demand.shapes.iter().filter(|shape| shape.keep_only).filter_map(fits) {
        let is_held = node.member && !node.drained && node.closed.as_ref().is_some_and(|(word, _)| word == "hold");
        if is_held && !nodes.iter().any(|known| known.name == node.name) {
            nodes.push(node);
        }
    }
    let change = |node: &NodeSupply| match &node.closed {
        Some((_, text)) if text.contains("cordoned") => {
            format!("give `{0}` back (`flock uncordon {0}`): there is room", node.name)
        }
        _ => format!("take `hold` off node `{}`: there is room", node.name),
    };
    nodes.into_iter().map(change).collect()
}

impl<'p> Probe<'p> {
    /// The least host memory that is missing where the accelerators would do.
    fn more_host(&self, candidates: &[&Candidate]) -> Option<String> {
        let mut least: Option<(u64, usize)> = None;
        for candidate in candidates {
            let Some(context) = self.context(candidate) else { continue };
            for way in self.ways(candidate).iter() {
                if let Fit::Host(missing) = self.fit(candidate, context, way)
                    && least.is_none_or(|(bytes, _)| missing < bytes)
                {
                    least = Some((missing, way.node));
                }
            }
        }
        let (missing, node) = least?;
        let name = &self.problem.nodes[node].name;
        Some(format!("{} more host memory on {name}, or a smaller `reserve ram`", format_bytes(missing)))
    }

    /// The least disk space that is missing where everything else would do.
    fn more_disk(&self, candidates: &[&Candidate]) -> Option<String> {
        let mut least: Option<(u64, &str)> = None;
        for candidate in candidates {
            let Some(context) = self.context(candidate) else { continue };
            for way in self.ways(candidate).iter() {
                let node = &self.problem.nodes[way.node];
                let missing = self.disk_short(candidate, node);
                if missing > 0
                    && least.is_none_or(|(bytes, _)| missing < bytes)
                    && matches!(self.fit(candidate, context, way), Fit::Yes)
                {
                    least = Some((missing, &node.name));
                }
            }
        }
        least.map(|(missing, node)| format!("{} more disk on {node}", format_bytes(missing)))
    }

    /// All nodes where a candidate fits with its own context.
    fn places(&self, candidate: &Candidate) -> Vec<&'p NodeSupply> {
        let Some(context) = self.context(candidate) else { return Vec::new() };
        let mut found: Vec<&NodeSupply> = Vec::new();
        for way in self.ways(candidate).iter() {
            let node = &self.problem.nodes[way.node];
            if !found.iter().any(|known| known.name == node.name)
                && matches!(self.fit(candidate, context, way), Fit::Yes)
            {
                found.push(node);
            }
        }
        found
    }

    /// The files that a node would need that would do otherwise.
    fn other_paths(&self, candidates: &[&Candidate]) -> Option<String> {
        candidates.iter().find_map(|candidate| match &candidate.origin {
            Origin::OnNode { path, nodes } => {
                let lacks = |node: &&NodeSupply| !nodes.contains(&node.name);
                let node = self.places(candidate).into_iter().find(lacks)?;
                Some(format!("{path} on {}: {} fits there", node.name, candidate.label))
            }
            Origin::Controller { .. } | Origin::Hub { .. } => None,
        })
    }

    /// The labels that would have to change on the node that would do and lacks the fewest.
    fn other_labels(&self, candidates: &[&Candidate]) -> Option<String> {
        let able = candidates.iter().flat_map(|candidate| self.places(candidate));
        let node = able.min_by_key(|node| (self.wrong(node).len(), &node.name))?;
        let wrong = self.wrong(node);
        if let Some((label, is)) = wrong.iter().find(|wrong| wrong.0 == "node") {
            return Some(format!("leave out `require label=\"{label}\" is=\"{is}\"`: it fits on {}", node.name));
        }
        let labels: Vec<String> = wrong.iter().map(|(label, is)| format!("`{label}` set to `{is}`")).collect();
        Some(format!("the label {} on {}", labels.join(" and "), node.name))
    }

    /// How small weights would have to be, on the node that leaves most for them, where those there are do not fit.
    fn smaller(&self, candidates: &[&Candidate]) -> Option<String> {
        let mut best: Option<(u64, String)> = None;
        for candidate in candidates {
            let Some(context) = self.context(candidate) else { continue };
            for way in self.ways(candidate).iter().filter(|way| way.ranks > 0) {
                let supply = &self.problem.nodes[way.node];
                let demand = demand_of(self.model, way.engine, way.version, context);
                let Ok(sized) = footprint(&candidate.variant, &over(demand, way.ranks)) else { continue };
                let Some(fullest) = sized.per_accelerator.iter().max_by_key(|figures| figures.total()) else {
                    continue;
                };
                let mut free: Vec<u64> = way
                    .group
                    .iter()
                    .map(|p| {
                        let accelerator = &supply.accelerators[*p];
                        let left = self.placed.room.left(way.node, *p);
                        usable_bytes(way.engine, left, accelerator.total_bytes)
                    })
                    .collect();
                free.sort_unstable_by(|a, b| b.cmp(a));
                let Some(left) = free.get(way.ranks as usize - 1) else { continue };
                let (room, bits) = room_for_weights(&candidate.variant, fullest, way.ranks, *left);
                if bits >= LEAST_BITS
                    && room < candidate.variant.tensors.total_bytes
                    && best.as_ref().is_none_or(|(most, _)| room > *most)
                {
                    let on = if way.ranks == 1 { String::new() } else { format!("{} accelerators of ", way.ranks) };
                    let text = format!(
                        "a variant of at most {} ({bits:.1} bits per weight) for {on}{}",
                        format_bytes(room),
                        supply.name
                    );
                    best = Some((room, text));
                }
            }
        }
        best.map(|(_, text)| text)
    }

    /// The capability that is asked for where no accelerator has it.
    fn capability(&self, candidates: &[&Candidate]) -> Option<String> {
        for candidate in candidates {
            let Some(context) = self.context(candidate) else { continue };
            for (_, node) in self.open(candidate) {
                for (engine, version) in self.engines(candidate, node) {
                    let why = (0..node.accelerators.len()).find_map(|p| self.gate(candidate, engine, node, p));
                    let Some((major, minor)) = why.and_then(|why| why.capability) else { continue };
                    let demand = demand_of(self.model, engine, version, context);
                    let Ok(sized) = footprint(&candidate.variant, &over(demand, 1)) else { continue };
                    let usable = format_bytes(sized.largest());
                    return Some(format!("an accelerator of compute capability {major}.{minor} with {usable} usable"));
                }
            }
        }
        None
    }

    /// The longest context with which any of the candidates fits.
    fn shorter(&self, candidates: &[&Candidate]) -> Option<String> {
        let mut best: Option<(u64, String)> = None;
        for candidate in candidates {
            let Some((asked, most)) = self.contexts(candidate) else { continue };
            let beats = |context: u64, best: &Option<(u64, String)>| best.as_ref().is_none_or(|(b, _)| context > *b);
            if most < asked && self.fits_somewhere(candidate, Some(most)) {
                if beats(most, &best) {
                    best = Some((most, format!("context {most} or less")));
                }
                continue;
            }
            let (mut low, mut high) = (LEAST_CONTEXT / STEP, most / STEP);
            if most <= LEAST_CONTEXT || !self.fits_somewhere(candidate, Some(low * STEP)) {
                continue;
            }
            while low < high {
                let middle = (low + high).div_ceil(2);
                if self.fits_somewhere(candidate, Some(middle * STEP)) {
                    low = middle;
                } else {
                    high = middle - 1;
                }
            }
            let context = low * STEP;
            if beats(context, &best)
                && let Some((node, ranks)) = self.place(candidate, Some(context))
            {
                let on = match ranks {
                    0 => "the CPU".to_owned(),
                    1 => "one accelerator".to_owned(),
                    ranks => format!("{ranks} accelerators"),
                };
                let label = &candidate.label;
                let text = format!("context {context} instead of {asked}: {label} then fits on {on} of {}", node.name);
                best = Some((context, text));
            }
        }
        best.map(|(_, text)| text)
    }

    /// A node on whose CPU one of the candidates would fit.
    fn cpu(&self, candidate: &Candidate) -> Option<String> {
        let context = self.context(candidate)?;
        self.open(candidate).find_map(|(index, node)| {
            let llama = self.engines(candidate, node).into_iter().find(|(e, _)| *e == EngineKind::LlamaCpp);
            let (engine, version) = llama?;
            let demand = over(demand_of(self.model, engine, version, context), 0);
            let sized = sized(&self.problem.calibrations, candidate, &demand, None).ok()?;
            let left = self.placed.room.host_left(index);
            (sized.host.total() <= left).then(|| node.name.clone())
        })
    }

    /// The accelerator that would hold most layers of a candidate, were the others in its host's memory.
    fn offload(&self, candidate: &Candidate) -> Option<String> {
        let context = self.context(candidate)?;
        let mut best: Option<(u32, String)> = None;
        for (index, node) in self.open(candidate) {
            let llama = self.engines(candidate, node).into_iter().find(|(e, _)| *e == EngineKind::LlamaCpp);
            let Some((engine, version)) = llama else { continue };
            let demand = demand_of(self.model, engine, version, context);
            let host = self.placed.room.host_left(index);
            for (position, accelerator) in node.accelerators.iter().enumerate() {
                if !accelerator.healthy || accelerator.unified {
                    continue;
                }
                let capacity_bytes = self.placed.room.left(index, position);
                let left = AcceleratorSupply { capacity_bytes, ..accelerator.clone() };
                let Some((layers, sized)) = offload::most(candidate, &demand, &[&left], 0) else { continue };
                let held: u32 = layers.iter().sum();
                if sized.host.total() <= host && best.as_ref().is_none_or(|(most, _)| held > *most) {
                    let all = candidate.variant.architecture.layers;
                    let text = format!(
                        "`allow offload=#true`: {held} of {all} layers on one accelerator of {}, the rest in host memory",
                        node.name
                    );
                    best = Some((held, text));
                }
            }
        }
        best.map(|(_, text)| text)
    }

    /// The fewest accelerators of a kind there is over which a candidate would fit, were they empty.
    fn split(&self, candidates: &[&Candidate]) -> Option<String> {
        let mut best: Option<(u32, String)> = None;
        for candidate in candidates {
            let Some(context) = self.context(candidate) else { continue };
            for (_, node) in self.open(candidate) {
                for (engine, version) in self.engines(candidate, node) {
                    let demand = demand_of(self.model, engine, version, context);
                    for ranks in Self::sizes(engine, candidate) {
                        let Ok(sized) = footprint(&candidate.variant, &over(demand, ranks)) else { continue };
                        let able = node.accelerators.iter().enumerate().find(|(position, a)| {
                            let usable = a.total_bytes.saturating_sub(a.reserve_bytes + a.driver_bytes);
                            let each = claim(engine, sized.largest(), a.total_bytes);
                            let needed = if a.unified { pool_bytes(each, ranks, sized.host.total()) } else { each };
                            !(ranks > 1 && a.mig)
                                && needed <= usable
                                && self.gate(candidate, engine, node, *position).is_none()
                        });
                        if let Some((_, accelerator)) = able
                            && best.as_ref().is_none_or(|(least, _)| ranks < *least)
                        {
                            let each = format_bytes(sized.largest());
                            let kind = &accelerator.kind;
                            // Where there is a choice, which variant it would be.
                            let of =
                                if candidates.len() > 1 { format!(" for {}", candidate.label) } else { String::new() };
                            let text = if ranks == 1 {
                                format!("one more accelerator like {kind} ({each} of it){of}")
                            } else {
                                format!("{ranks} accelerators like {kind} in one node, {each} free on each{of}")
                            };
                            best = Some((ranks, text));
                        }
                    }
                }
            }
        }
        best.map(|(_, text)| text)
    }
}
