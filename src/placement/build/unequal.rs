//! Shapes whose pipeline stages are told how many layers they hold: over unequal accelerators of one node (llama.cpp's
//! layer split, vLLM's pipeline stages), and with vLLM over equal ones where tensor parallelism is not legal.
//!
//! A stage is one accelerator, with vLLM a tensor-parallel group of equal ones. For every choice of stages there are
//! few splits worth a look: as much as fits on the fastest and the rest on the next, which is the fastest there is, with
//! the fast stages first or last (the last one also holds the output head); and one in proportion to the memory. Only
//! the fewest accelerators that can hold the model are taken, and no split that another shape beats in bytes and speed
//! with as many accelerators or fewer.

use crate::base::{EngineKind, format_bytes};
use crate::engine::{one_share_is_enough, takes_stage_layers, usable_bytes};
use crate::inventory::NodeFacts;
use crate::placement::build::shapes::{Builder, as_read, bandwidth, claim, counted, planned, reason, too_much_ram};
use crate::placement::build::supply;
use crate::placement::build::vision::beside_layers;
use crate::placement::{AcceleratorSupply, Candidate, NodeSupply, Part, PlacedMemory, Shape};
use crate::sizing::{Demand, Footprint, admits, even_layers, legal_splits, staged_decode, staged_footprint};

/// Accelerators that one split takes at most.
const MOST: usize = 8;
/// Splits of one candidate on one node that are kept.
const KEPT: usize = 3;

/// Equal accelerators that can take part.
struct Kind {
    /// Positions, those with most room first.
    positions: Vec<usize>,
    bandwidth: Option<u64>,
}

/// Stages of one split: the kind of each and the positions that are looked at for it.
struct Stages<'k> {
    kinds: Vec<&'k Kind>,
    places: Vec<Vec<usize>>,
}

/// Adds the splits of a candidate with one engine on one node, and those that run there already.
pub fn add(builder: &mut Builder<'_>, candidate: &Candidate, draft: &Shape, demand: Demand<'_>, facts: &NodeFacts) {
    let able = match draft.engine {
        EngineKind::LlamaCpp => true,
        EngineKind::Vllm => takes_stage_layers(draft.engine_version.as_deref()),
        EngineKind::Sglang => false,
    };
    if !able || candidate.variant.architecture.layers == 0 {
        return;
    }
    let kinds = kinds(&builder.nodes[draft.node], candidate, draft, facts);
    let beside = beside_layers(builder, candidate, draft.engine);
    let split = Split { node: &builder.nodes[draft.node], candidate, draft, demand, beside };
    let plain = |shape: &&Shape| {
        shape.further.is_empty()
            && shape.layers.is_empty()
            && shape.ranks > 0
            && (shape.candidate, shape.engine, shape.node) == (draft.candidate, draft.engine, draft.node)
    };
    let holds = |shape: &&Shape| {
        let room = |p: &usize| builder.nodes[draft.node].accelerators[*p].capacity_bytes;
        let largest = shape.group.iter().map(room).max().unwrap_or(0);
        beside == 0 || shape.claimed().saturating_add(beside) <= largest
    };
    let plain: Vec<&Shape> = builder.demand.shapes.iter().filter(plain).filter(holds).collect();
    // One accelerator of the fastest kind beats every split, and equal ones together beat stages over them.
    let fastest = |shape: &&Shape| {
        let on_it = kinds.first().is_some_and(|kind| shape.group.contains(&kind.positions[0]));
        on_it && (shape.ranks == 1 || kinds.len() == 1)
    };
    let needless = kinds.is_empty() || plain.iter().any(fastest);
    let mut found = if needless { Vec::new() } else { split.fewest(&kinds) };
    found.retain(|shape| !plain.iter().any(|other| beats(other, shape)));
    let missing = if found.is_empty() && plain.is_empty() { split.missing(&kinds) } else { None };
    for running in already(builder, candidate, draft) {
        if !found.iter().any(|shape| same(shape, &running)) {
            found.extend(split.shape(running.1, &running.0, facts));
        }
    }
    if let Some((ranks, why)) = missing {
        builder.remove(candidate, Some(draft.engine), Some(ranks), why);
    }
    let mut too_much = None;
    for shape in found {
        let supply = &builder.nodes[draft.node];
        if shape.host.total_bytes() > supply.host_capacity_bytes {
            too_much.get_or_insert_with(|| (shape.all_ranks() as u32, too_much_ram(supply, shape.host.total_bytes())));
        } else {
            builder.demand.shapes.push(shape);
        }
    }
    if let Some((ranks, why)) = too_much {
        builder.remove(candidate, Some(draft.engine), Some(ranks), why);
    }
}

/// Kinds of accelerators that can take part, the fastest first.
fn kinds(supply: &NodeSupply, candidate: &Candidate, draft: &Shape, facts: &NodeFacts) -> Vec<Kind> {
    let mut kinds = Vec::new();
    for group in supply::groups(supply) {
        let first = &supply.accelerators[group[0]];
        let device = facts.accelerator(&first.uuid);
        let version = draft.engine_version.as_deref();
        let refused = device.is_some_and(|d| admits(draft.engine, version, &candidate.variant, d).is_err());
        if first.mig || first.unified || refused {
            continue;
        }
        let mut positions: Vec<usize> = group.into_iter().filter(|p| supply.accelerators[*p].healthy).collect();
        positions.sort_by_key(|p| (std::cmp::Reverse(supply.accelerators[*p].capacity_bytes), *p));
        if !positions.is_empty() {
            kinds.push(Kind { positions, bandwidth: device.and_then(bandwidth) });
        }
    }
    let room = |kind: &Kind| supply.accelerators[kind.positions[0]].capacity_bytes;
    kinds.sort_by_key(|kind| (std::cmp::Reverse((kind.bandwidth, room(kind))), kind.positions[0]));
    kinds
}

struct Split<'b> {
    node: &'b NodeSupply,
    candidate: &'b Candidate,
    draft: &'b Shape,
    demand: Demand<'b>,
    /// What else lies on the first stage: the vision projector.
    beside: u64,
}

impl Split<'_> {
    fn layers(&self) -> u32 {
        self.candidate.variant.architecture.layers
    }

    fn supply(&self, position: usize) -> &AcceleratorSupply {
        &self.node.accelerators[position]
    }

    /// The splits over the fewest accelerators that can hold the model, best first.
    fn fewest(&self, kinds: &[Kind]) -> Vec<Shape> {
        let whole: usize = kinds.iter().map(|kind| kind.positions.len()).sum();
        for accelerators in 2..=whole.min(MOST) {
            let mut found: Vec<Shape> = Vec::new();
            for tp in self.widths().into_iter().filter(|tp| accelerators.is_multiple_of(*tp as usize)) {
                for counts in choices(kinds, accelerators / tp as usize, tp as usize) {
                    found.extend(self.of(kinds, &counts, tp));
                }
            }
            let all = found.clone();
            found.retain(|shape| !all.iter().any(|other| beats(other, shape) && !beats(shape, other)));
            found.sort_by(|a, b| b.speed.partial_cmp(&a.speed).unwrap_or(std::cmp::Ordering::Equal));
            found.dedup_by(|a, b| (&a.layers, &a.group, &a.further) == (&b.layers, &b.group, &b.further));
            found.truncate(KEPT);
            if !found.is_empty() {
                return found;
            }
        }
        Vec::new()
    }

    /// Tensor-parallel ranks that a stage may have.
    fn widths(&self) -> Vec<u32> {
        match self.draft.engine {
            EngineKind::LlamaCpp => vec![1],
            engine => legal_splits(&self.candidate.variant, engine).tensor_parallel,
        }
    }

    /// The splits over so many stages of each kind.
    fn of(&self, kinds: &[Kind], counts: &[usize], tp: u32) -> Vec<Shape> {
        let mixed = counts.iter().filter(|count| **count > 0).count() > 1;
        // llama.cpp splits evenly over equal ones by itself.
        if counts.iter().sum::<usize>() < 2 || (!mixed && self.draft.engine == EngineKind::LlamaCpp) {
            return Vec::new();
        }
        let stages = stages(kinds, counts, tp as usize);
        let room: u64 = self.room(&stages).iter().map(|bytes| bytes.saturating_mul(u64::from(tp))).sum();
        let tensors = &self.candidate.variant.tensors;
        let mut found = Vec::new();
        if room < tensors.layer_bytes.iter().sum() {
            return found;
        }
        let mut splits = vec![self.filled(&stages, tp, false), self.proportional(&stages)];
        if !mixed {
            splits.insert(0, Some(even_layers(self.layers(), stages.kinds.len() as u32)));
        }
        for layers in splits.into_iter().flatten() {
            found.extend(self.sized(&stages, &layers, tp));
        }
        if mixed {
            let mut reversed = stages;
            reversed.kinds.reverse();
            reversed.places.reverse();
            let layers = self.filled(&reversed, tp, true);
            found.extend(layers.and_then(|layers| self.sized(&reversed, &layers, tp)));
        }
        found
    }

    /// What an accelerator of each stage may be given. vLLM is told one share of their totals for all; where that decides
    /// how much each takes, the scarcest decides.
    fn room(&self, stages: &Stages<'_>) -> Vec<u64> {
        let engine = self.draft.engine;
        let each = |position: &usize| {
            let a = self.supply(*position);
            (usable_bytes(engine, a.capacity_bytes, a.total_bytes), a.total_bytes)
        };
        let tightest = |places: &Vec<usize>| places.iter().map(each).min().unwrap_or((0, 0));
        let mut room: Vec<(u64, u64)> = stages.places.iter().map(tightest).collect();
        if engine != EngineKind::LlamaCpp && !one_share_is_enough(room.len() as u32, self.demand.version) {
            let share = |(usable, total): &(u64, u64)| u128::from(*usable) * 100 / u128::from((*total).max(1));
            let least = room.iter().map(share).min().unwrap_or(0);
            for (usable, total) in &mut room {
                *usable = (*usable).min((least * u128::from(*total) / 100) as u64);
            }
        }
        let beside = |number: usize| if number == 0 { self.beside } else { 0 };
        room.into_iter().enumerate().map(|(number, (usable, _))| usable.saturating_sub(beside(number))).collect()
    }

    /// As many layers as fit on the first stage, then on the next; `backwards` begins with the last one. `None` where not
    /// all fit, or not all stages are needed.
    fn filled(&self, stages: &Stages<'_>, tp: u32, backwards: bool) -> Option<Vec<u32>> {
        let room = self.room(stages);
        let count = room.len();
        let mut layers = vec![0u32; count];
        let mut left = self.layers();
        for step in 0..count {
            let stage = if backwards { count - 1 - step } else { step };
            // Every later stage needs a layer.
            let most = left.checked_sub((count - 1 - step) as u32)?;
            let fits = |own: u32| self.stage_bytes(&layers, stage, own, left, tp, backwards) <= room[stage];
            // The last one has to take all that is left.
            let last = step + 1 == count;
            let (mut low, mut high) = (if last && fits(most) { most } else { 0 }, if last { 0 } else { most });
            while low < high {
                let middle = low + (high - low).div_ceil(2);
                if fits(middle) { low = middle } else { high = middle - 1 }
            }
            if low == 0 {
                return None;
            }
            layers[stage] = low;
            left -= low;
        }
        (left == 0).then_some(layers)
    }

    /// Bytes of a stage with so many layers, those filled before it as they are and the rest on one stage.
    fn stage_bytes(&self, layers: &[u32], stage: usize, own: u32, left: u32, tp: u32, backwards: bool) -> u64 {
        let mut all: Vec<u32> = layers.to_vec();
        all[stage] = own;
        let mut rest = left - own;
        // What is not filled yet only has to have the right length in all.
        for at in (0..all.len()).filter(|at| if backwards { *at < stage } else { *at > stage }) {
            let open = if backwards { stage - at } else { all.len() - at } as u32;
            all[at] = rest / open;
            rest -= all[at];
        }
        let demand = Demand { tensor_parallel: tp, ..self.demand };
        let sized = staged_footprint(&self.candidate.variant, &demand, &all);
        sized
            .ok()
            .and_then(|sized| sized.per_accelerator.get(stage * tp as usize).map(|f| f.total()))
            .unwrap_or(u64::MAX)
    }

    /// Layers in proportion to what the stages may be given.
    fn proportional(&self, stages: &Stages<'_>) -> Option<Vec<u32>> {
        let room = self.room(stages);
        let all: u128 = room.iter().map(|bytes| u128::from(*bytes)).sum();
        let mut layers = Vec::new();
        let (mut sum, mut before) = (0u128, 0u32);
        for bytes in &room {
            sum += u128::from(*bytes);
            let until = (sum * u128::from(self.layers())).checked_div(all)? as u32;
            layers.push(until.checked_sub(before).filter(|own| *own > 0)?);
            before = until;
        }
        Some(layers)
    }

    /// The shape of a split, where every stage fits.
    fn sized(&self, stages: &Stages<'_>, layers: &[u32], tp: u32) -> Option<Shape> {
        let demand = Demand { tensor_parallel: tp, ..self.demand };
        let sized = staged_footprint(&self.candidate.variant, &demand, layers).ok()?;
        let fits = |(room, figures): (u64, &crate::sizing::Figures)| figures.total() <= room;
        let room = self.room(stages);
        if !room.iter().copied().zip(sized.per_accelerator.iter().step_by(tp as usize)).all(fits) {
            return None;
        }
        let groups: Vec<Vec<usize>> = stages.kinds.iter().map(|kind| sorted(&kind.positions)).collect();
        let read: Option<Vec<(u32, u64)>> =
            layers.iter().zip(&stages.kinds).map(|(own, kind)| Some((*own, kind.bandwidth?))).collect();
        let read_demand = as_read(self.candidate, demand, &sized);
        let speed = read.and_then(|stages| staged_decode(&self.candidate.variant, &read_demand, &stages));
        Some(Shape { speed, ..self.assemble(&groups, layers, tp, &sized) })
    }

    /// The split of what runs already, whatever it needs now.
    fn shape(&self, layers: Vec<u32>, groups: &[Vec<usize>], facts: &NodeFacts) -> Option<Shape> {
        let tp = (groups.len() / layers.len().max(1)) as u32;
        let demand = Demand { tensor_parallel: tp.max(1), ..self.demand };
        let sized = staged_footprint(&self.candidate.variant, &demand, &layers).ok()?;
        let stages: Vec<Vec<usize>> = groups.iter().step_by(tp.max(1) as usize).cloned().collect();
        let of = |group: &Vec<usize>| facts.accelerator(&self.supply(*group.first()?).uuid).and_then(bandwidth);
        let read: Option<Vec<(u32, u64)>> =
            layers.iter().zip(&stages).map(|(own, group)| Some((*own, of(group)?))).collect();
        let held: u32 = layers.iter().sum();
        let host = self.layers().saturating_sub(held);
        let read = read.map(|mut read| {
            if host > 0 {
                read.insert(0, (host, crate::placement::build::shapes::CPU_BANDWIDTH));
            }
            read
        });
        let read_demand = as_read(self.candidate, demand, &sized);
        let speed = read.and_then(|stages| staged_decode(&self.candidate.variant, &read_demand, &stages));
        Some(Shape { speed, ..self.assemble(&stages, &layers, tp.max(1), &sized) })
    }

    /// Stages on groups of accelerators; neighbours on the same group are one part.
    fn assemble(&self, groups: &[Vec<usize>], layers: &[u32], tp: u32, sized: &Footprint) -> Shape {
        assemble(self.node, self.draft, groups, layers, tp, sized, self.demand.version)
    }

    /// Why no split fits: all bytes that it needs over all kinds, and what there is.
    fn missing(&self, kinds: &[Kind]) -> Option<(u32, crate::placement::Reason)> {
        let whole: usize = kinds.iter().map(|kind| kind.positions.len()).sum();
        if whole < 2 || (kinds.len() < 2 && self.draft.engine == EngineKind::LlamaCpp) {
            return None;
        }
        let count = whole.min(MOST).min(self.layers() as usize);
        let mut counts = vec![0usize; kinds.len()];
        for number in 0..count {
            let kind = (0..kinds.len()).filter(|k| counts[*k] < kinds[*k].positions.len()).min_by_key(|k| {
                let position = kinds[*k].positions[counts[*k]];
                (std::cmp::Reverse(self.supply(position).capacity_bytes), *k, number)
            })?;
            counts[kind] += 1;
        }
        let stages = stages(kinds, &counts, 1);
        let room: u64 = self.room(&stages).iter().sum();
        let layers = self.proportional(&stages).unwrap_or_else(|| even_layers(self.layers(), count as u32));
        let name = &self.node.name;
        match staged_footprint(&self.candidate.variant, &self.demand, &layers) {
            Ok(sized) => {
                let needed: u64 = sized.per_accelerator.iter().map(|figures| figures.total()).sum();
                let share =
                    if self.draft.engine == EngineKind::LlamaCpp { "" } else { ", in whole hundredths of each" };
                let text = format!(
                    "as {count} stages with layers of their own it needs about {} in all; {} can be used together{share}",
                    format_bytes(needed),
                    format_bytes(room)
                );
                Some((count as u32, counted(name, "split", needed, room, "bytes", text)))
            }
            Err(error) => Some((count as u32, reason(name, "split", error.to_string()))),
        }
    }
}

/// Stages on groups of accelerators of a node; neighbours on the same group are one part.
pub fn assemble(
    node: &NodeSupply,
    draft: &Shape,
    groups: &[Vec<usize>],
    layers: &[u32],
    tp: u32,
    sized: &Footprint,
    version: Option<&str>,
) -> Shape {
    let bytes: Vec<PlacedMemory> = sized.per_accelerator.iter().map(planned).collect();
    let mut parts: Vec<Part> = Vec::new();
    // One share for all: the largest that any stage needs, unless each stands for itself.
    let apart = layers.len() < 2 || one_share_is_enough(layers.len() as u32, version);
    let total = |group: &[usize]| node.accelerators[group[0]].total_bytes;
    let largest = groups.iter().zip(bytes.iter().step_by(tp as usize)).map(|(group, memory)| {
        let own = claim(draft.engine, memory.total_bytes(), total(group));
        (u128::from(own) * 100).div_ceil(u128::from(total(group).max(1)))
    });
    let largest = largest.max().unwrap_or(0);
    for (number, group) in groups.iter().enumerate() {
        let memory = bytes.get(number * tp as usize).copied().unwrap_or_default();
        let claim_bytes = match draft.engine {
            EngineKind::LlamaCpp => 0,
            engine if apart => claim(engine, memory.total_bytes(), total(group)),
            _ => (largest * u128::from(total(group)) / 100) as u64,
        };
        match parts.last_mut().filter(|part| part.group == *group) {
            Some(part) => {
                part.ranks += tp;
                if memory.total_bytes() > part.per_accelerator.total_bytes() {
                    part.per_accelerator = memory;
                }
                part.claim_bytes = part.claim_bytes.max(claim_bytes);
            }
            None => parts.push(Part {
                node: draft.node,
                group: group.clone(),
                ranks: tp,
                per_accelerator: memory,
                claim_bytes,
                ..Part::default()
            }),
        }
    }
    let own = if parts.is_empty() { Part::default() } else { parts.remove(0) };
    Shape {
        group: own.group,
        ranks: own.ranks,
        pipeline: true,
        per_accelerator: own.per_accelerator,
        claim_bytes: own.claim_bytes,
        stages: bytes,
        host: planned(&sized.host),
        further: parts,
        layers: layers.to_vec(),
        ..draft.clone()
    }
}

/// How many stages of each kind there may be, in all ways.
fn choices(kinds: &[Kind], stages: usize, tp: usize) -> Vec<Vec<usize>> {
    let Some((kind, rest)) = kinds.split_first() else {
        return if stages == 0 { vec![Vec::new()] } else { Vec::new() };
    };
    let most = (kind.positions.len() / tp.max(1)).min(stages);
    let mut all = Vec::new();
    for own in (0..=most).rev() {
        all.extend(choices(rest, stages - own, tp).into_iter().map(|mut others| {
            others.insert(0, own);
            others
        }));
    }
    all
}

/// So many stages of each kind, on those with most room.
fn stages<'k>(kinds: &'k [Kind], counts: &[usize], tp: usize) -> Stages<'k> {
    let mut stages = Stages { kinds: Vec::new(), places: Vec::new() };
    for (kind, count) in kinds.iter().zip(counts) {
        for places in kind.positions.chunks(tp.max(1)).take(*count) {
            stages.kinds.push(kind);
            stages.places.push(places.to_vec());
        }
    }
    stages
}

fn sorted(positions: &[usize]) -> Vec<usize> {
    let mut sorted = positions.to_vec();
    sorted.sort_unstable();
    sorted
}

/// Whether a shape is as good as another in bytes and speed, with as many accelerators or fewer.
fn beats(one: &Shape, other: &Shape) -> bool {
    let bytes = |shape: &Shape| shape.spans().map(|span| span.claimed * span.ranks as u64).sum::<u64>();
    let speed = |shape: &Shape| shape.speed.unwrap_or(0.0);
    one.all_ranks() <= other.all_ranks() && bytes(one) <= bytes(other) && speed(one) >= speed(other)
}

/// Groups of the accelerators of what runs with layers of its own, in rank order, and the layers.
type Told = (Vec<Vec<usize>>, Vec<u32>);

fn already(builder: &Builder<'_>, candidate: &Candidate, draft: &Shape) -> Vec<Told> {
    let supply = &builder.nodes[draft.node];
    let groups = supply::groups(supply);
    let mut found: Vec<Told> = Vec::new();
    for running in builder.split.iter().filter(|running| {
        running.node == supply.name
            && running.engine == Some(draft.engine)
            && running.variant == candidate.label
            && running.accelerators.len().is_multiple_of(running.layers.len())
    }) {
        let group = |uuid: &String| {
            let position = supply.position(uuid)?;
            groups.iter().find(|group| group.contains(&position)).cloned()
        };
        let told: Option<Vec<Vec<usize>>> = running.accelerators.iter().map(group).collect();
        if let Some(told) = told.map(|told| (told, running.layers.clone())).filter(|told| !found.contains(told)) {
            found.push(told);
        }
    }
    found
}

fn same(shape: &Shape, (groups, layers): &Told) -> bool {
    let spans = shape.spans().flat_map(|span| vec![span.group.to_vec(); span.ranks]);
    shape.layers == *layers && spans.eq(groups.iter().cloned())
}
