//! Models in parts: the vision projector beside the layers, or on an accelerator of its own.
//!
//! llama.cpp loads a projector from a file of its own and can be told the device for it, so that the two parts lie apart
//! in one process. The part that is read for every token is the language model: where it fits on either accelerator,
//! it goes where the memory is faster. What passes between the parts is the embedding of an image, tokens x hidden x
//! 2 bytes, some MiB per image: nothing beside what is read for a token, as long as both are in one node. The parts are
//! never put on different nodes.

use crate::base::{EngineKind, format_bytes};
use crate::inventory::NodeFacts;
use crate::placement::build::shapes::{Builder, bandwidth, counted, planned, reason};
use crate::placement::build::supply;
use crate::placement::{Candidate, NodeSupply, Part, PlacedMemory, Role, Shape};
use crate::sizing::projector_figures;

/// Why a candidate has no parts to place; `None` where nothing of it is asked for in parts, or it has them.
pub fn no_parts(builder: &Builder<'_>, candidate: &Candidate) -> Option<String> {
    let variant = &candidate.variant;
    let sees = variant.projector.is_some()
        || variant.tensors.projector_bytes > 0
        || variant.tensors.vision_bytes > 0
        || variant.architecture.vision_heads.is_some();
    let asked = !builder.model.extras.parts.is_empty();
    (asked && !sees).then(|| {
        format!(
            "`part` is for vision-language models: {} has neither a vision tower nor a projector (`mmproj*.gguf`) beside it",
            candidate.label
        )
    })
}

/// Bytes that the projector takes beside the first layers; 0 where it is not loaded.
pub fn beside_layers(builder: &Builder<'_>, candidate: &Candidate, engine: EngineKind) -> u64 {
    let wanted = engine == EngineKind::LlamaCpp && builder.model.extras.parts.iter().any(|part| part.value == "vision");
    let bytes = candidate.variant.projector.as_ref().and_then(|file| file.size_bytes);
    bytes.filter(|_| wanted).map_or(0, |bytes| projector_figures(bytes, false).total())
}

/// Puts the projector into the shapes of one engine on one node, which are those from `from` on.
pub fn add(builder: &mut Builder<'_>, candidate: &Candidate, draft: &Shape, facts: &NodeFacts, from: usize) {
    let wants = |name: &str| builder.model.extras.parts.iter().any(|part| part.value == name);
    if !wants("vision") {
        return;
    }
    let apart = wants("language");
    let supply = &builder.nodes[draft.node];
    if draft.engine != EngineKind::LlamaCpp {
        if apart && builder.demand.shapes.len() > from {
            let text = format!(
                "{} serves the parts of a model only as two servers behind a proxy process, which flock does not run; the \
                 parts stay together",
                draft.engine
            );
            builder.remove(candidate, Some(draft.engine), None, reason(&supply.name, "split", text));
        }
        return;
    }
    let Some(bytes) = candidate.variant.projector.as_ref().and_then(|file| file.size_bytes) else {
        builder.demand.shapes.truncate(from);
        let text = "vision is wanted, and no projector (`mmproj*.gguf`) was found with the weights; name the folder \
                    that holds both";
        let text = text.to_owned();
        return builder.remove(candidate, Some(draft.engine), None, reason(&supply.name, "engine", text));
    };
    let plain = builder.demand.shapes.split_off(from);
    let mut found: Vec<Shape> = Vec::new();
    for shape in &plain {
        found.extend(together(supply, shape, planned(&projector_figures(bytes, false))));
        if apart && shape.ranks > 0 {
            found.extend(beside(supply, facts, shape, &plain, planned(&projector_figures(bytes, true))));
        }
    }
    // The shape that lacks least says what is missing.
    let missing =
        plain.iter().map(|shape| lacks(supply, shape, planned(&projector_figures(bytes, false)).total_bytes()));
    if let Some((needed, available)) = missing.min_by_key(|(needed, available)| needed.saturating_sub(*available))
        && found.is_empty()
    {
        let text = format!(
            "the language part fits, and not the vision projector beside it: {} with both, {} can be used",
            format_bytes(needed),
            format_bytes(available)
        );
        let why = counted(&supply.name, "memory", needed, available, "bytes", text);
        builder.remove(candidate, Some(draft.engine), None, why);
    }
    builder.demand.shapes.extend(found);
}

/// Bytes of the first stage with the projector, and what can be used there.
fn lacks(supply: &NodeSupply, shape: &Shape, projector: u64) -> (u64, u64) {
    if shape.ranks == 0 {
        return (shape.host.total_bytes().saturating_add(projector), supply.host_capacity_bytes);
    }
    let room = shape.group.iter().map(|p| supply.accelerators[*p].capacity_bytes).max().unwrap_or(0);
    let first = shape.stages.first().copied().unwrap_or(shape.per_accelerator);
    (first.total_bytes().saturating_add(projector), room)
}

/// The projector with the first layers, or on the host with all of them; `None` where it does not fit there.
fn together(supply: &NodeSupply, shape: &Shape, projector: PlacedMemory) -> Option<Shape> {
    if shape.ranks == 0 {
        let host = sum(shape.host, projector);
        return (host.total_bytes() <= supply.host_capacity_bytes).then(|| Shape { host, ..shape.clone() });
    }
    let ranks = shape.all_ranks();
    let mut stages = if shape.stages.is_empty() { vec![shape.per_accelerator; ranks] } else { shape.stages.clone() };
    stages[0] = sum(stages[0], projector);
    let own = &stages[..shape.width().min(stages.len())];
    let per_accelerator = own.iter().copied().max_by_key(PlacedMemory::total_bytes)?;
    let fits = |position: &&usize| {
        let accelerator = &supply.accelerators[**position];
        accelerator.healthy && per_accelerator.total_bytes() <= accelerator.capacity_bytes
    };
    let stages = if ranks == 1 { Vec::new() } else { stages };
    let made = Shape { per_accelerator, stages, vision: true, ..shape.clone() };
    let pool = supply.unified(&shape.group) && made.pool_bytes() > supply.host_capacity_bytes;
    (shape.group.iter().filter(fits).count() >= shape.width() && !pool).then_some(made)
}

/// The projector on an accelerator of its own.
fn beside(
    supply: &NodeSupply,
    facts: &NodeFacts,
    shape: &Shape,
    plain: &[Shape],
    projector: PlacedMemory,
) -> Vec<Shape> {
    let speed = |group: &[usize]| {
        group.first().and_then(|p| facts.accelerator(&supply.accelerators[*p].uuid)).and_then(bandwidth)
    };
    let own = &supply.accelerators[shape.group[0]];
    let mut found = Vec::new();
    for group in supply::groups(supply) {
        let first = &supply.accelerators[group[0]];
        let able = |p: &&usize| {
            let accelerator = &supply.accelerators[**p];
            accelerator.healthy && projector.total_bytes() <= accelerator.capacity_bytes
        };
        let taken: usize = shape.spans().filter(|span| span.group == group).map(|span| span.ranks).sum();
        if first.mig || first.unified || own.mig || own.unified || first.vendor != own.vendor {
            continue;
        }
        if group.iter().filter(able).count() == 0 || group.len() <= taken {
            continue;
        }
        // The other way round is better where the layers fit there too.
        let swapped = |other: &Shape| other.group == group && other.ranks == shape.ranks && other.further.is_empty();
        if speed(&group) > speed(&shape.group) && plain.iter().any(swapped) {
            continue;
        }
        let part = Part {
            node: shape.node,
            group,
            ranks: 1,
            per_accelerator: projector,
            role: Some(Role::Vision),
            ..Part::default()
        };
        let mut made = shape.clone();
        if !made.stages.is_empty() {
            made.stages.push(projector);
        }
        made.further.push(part);
        found.push(made);
    }
    found
}

fn sum(one: PlacedMemory, other: PlacedMemory) -> PlacedMemory {
    PlacedMemory {
        weights_bytes: one.weights_bytes.saturating_add(other.weights_bytes),
        kv_bytes: one.kv_bytes.saturating_add(other.kv_bytes),
        overhead_bytes: one.overhead_bytes.saturating_add(other.overhead_bytes),
        ..one
    }
}
