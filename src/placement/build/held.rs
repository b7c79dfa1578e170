//! Shapes for what runs and could not be started anew: it keeps its place at what it holds.
//!
//! An engine that was upgraded on disk, a probe that did not find it, memory that others took, a driver that keeps more,
//! a size that counts more than it did: none of it stops what runs well. Where no way to run a model is left that a
//! running instance has, its own is added as one that only it may have, with the finding. What the config itself asks
//! to be otherwise is no finding: labels, denials, another context, a processor that is no longer allowed.

use crate::base::EngineKind;
use crate::inventory::{InstanceFacts, NodeFacts};
use crate::placement::build::shapes::{Builder, demand_of, engines_of};
use crate::placement::build::{deny, supply};
use crate::placement::{Candidate, EngineSupply, ModelDemand, NodeSupply, Part, PlacedMemory, Removed, Running, Shape};

/// More than any accelerator or host has.
const PLENTY: u64 = 1 << 50;

/// Adds what instances of a candidate hold on a node, or on those that are alike, where no shape is theirs.
/// `known` is how many removals there were before this node was looked at.
pub fn add(builder: &mut Builder<'_>, index: usize, candidate: &Candidate, context: u64, node: usize, known: usize) {
    let Some(here) = builder.here.get(&node) else { return };
    for running in here.clone() {
        // What is over several nodes has its shape from `nodes`.
        if running.failed || running.variant != candidate.label || !running.further.is_empty() {
            continue;
        }
        let may_serve = |engine: &EngineKind| engines_of(builder.model).contains(engine);
        let Some(engine) = running.engine.filter(may_serve) else { continue };
        let Some(facts) = builder.inventory.node(&running.node).filter(|facts| facts.reachable) else { continue };
        let Some(supply) = builder.problem.node(&running.node).map(|at| &builder.nodes[at]) else { continue };
        let on: Option<Vec<usize>> = running.accelerators.iter().map(|uuid| supply.position(uuid)).collect();
        let Some(on) = on else { continue };
        let is_it = |shape: &Shape| is(shape, index, running, &on);
        if builder.demand.shapes.iter().any(|shape| shape.node == node && is_it(shape)) {
            continue;
        }
        let found = finding(&builder.demand.removed[known..], engine, on.len() as u32);
        if asked_otherwise(builder, candidate, running, supply, facts, found) {
            continue;
        }
        let told = found.map(|removed| removed.reason.text.clone());
        let shape = lifted(builder, index, candidate, context, running, engine, supply, facts)
            .into_iter()
            .find(|shape| is(shape, index, running, &on))
            .unwrap_or_else(|| as_recorded(builder, index, running, engine, supply, facts, &on));
        let mut shape = Shape { keep_only: true, held: told, fetch_bytes: 0, node, ..shape };
        shape.further.iter_mut().for_each(|part| part.node = node);
        builder.demand.shapes.push(shape);
    }
}

/// Whether a running instance has this shape.
fn is(shape: &Shape, candidate: usize, running: &Running, on: &[usize]) -> bool {
    shape.candidate == candidate
        && Some(shape.engine) == running.engine
        && shape.layers == running.layers
        && shape.takes(on)
}

/// Why it could not be started anew: of what was removed at its node what is nearest to it.
fn finding(removed: &[Removed], engine: EngineKind, ranks: u32) -> Option<&Removed> {
    let about = |removed: &&Removed| removed.engine.is_none_or(|of| of == engine);
    let mut found = removed.iter().filter(about);
    let exact = found.clone().find(|removed| removed.ranks.is_none_or(|of| of == ranks));
    exact.or_else(|| found.next())
}

/// Whether the config no longer lets the model run so.
fn asked_otherwise(
    builder: &Builder<'_>,
    candidate: &Candidate,
    running: &Running,
    supply: &NodeSupply,
    facts: &NodeFacts,
    found: Option<&Removed>,
) -> bool {
    let place = &builder.model.place;
    let layers = candidate.variant.architecture.layers;
    let beside: u32 = running.layers.iter().sum();
    let on_host = !running.accelerators.is_empty() && beside > 0 && beside < layers;
    if (running.accelerators.is_empty() && !place.allow_cpu) || (on_host && !place.allow_offload) {
        return true;
    }
    let denied = |engine| deny::denied(builder.desired, builder.model, engine, supply, candidate.gated).is_some();
    if !builder.demand.protected && running.engine.is_some_and(denied) {
        return true;
    }
    match found.map(|removed| removed.reason.constraint.as_str()) {
        Some("selector") => true,
        // What it was sized for is known of what was measured.
        Some("memory" | "ram" | "split" | "accelerators") => {
            let sized = record(running, facts).and_then(|own| own.measured.as_deref()).map(|own| &own.sized_for);
            sized.is_some_and(|sized| {
                let model = builder.model;
                let context = model.context.as_ref().map(|context| context.value);
                context.is_some_and(|context| context != sized.context)
                    || model.concurrency.value != sized.concurrency
                    || model.kv_dtype.as_ref().map(|dtype| dtype.value) != sized.kv_dtype
            })
        }
        _ => false,
    }
}

/// An instance's own record on its node.
fn record<'f>(running: &Running, facts: &'f NodeFacts) -> Option<&'f InstanceFacts> {
    facts.instances.iter().find(|facts| facts.instance == running.instance)
}

/// The engine that runs: of the version that it was sized with, else the one the config asks for.
fn engine_of(
    builder: &Builder<'_>,
    running: &Running,
    kind: EngineKind,
    supply: &NodeSupply,
    facts: &NodeFacts,
) -> EngineSupply {
    let declared = builder.desired.engines.get(&kind);
    let asked = declared.and_then(|engine| engine.version.as_ref()).map(|version| version.value.clone());
    let sized = record(running, facts).and_then(|own| own.measured.as_deref());
    let there = supply.engines.iter().find(|engine| engine.kind == kind);
    let found = || facts.engines.iter().flatten().find(|engine| engine.kind == kind).map(|engine| engine.path.clone());
    let program = supply::wanted_program(builder.desired, kind, &supply.name, facts)
        .or_else(|| there.map(|engine| engine.program.clone()))
        .or_else(found)
        .unwrap_or_else(|| crate::engine::program_in_image(kind).to_owned());
    let version = sized.and_then(|sized| sized.sized_for.engine_version.clone());
    let version = version.or(asked).or_else(|| there.and_then(|engine| engine.version.clone()));
    EngineSupply { kind, version, program, worker: None }
}

/// All ways to run a candidate on this node were memory plenty there and everything on its disk.
#[expect(clippy::too_many_arguments, reason = "one question about one instance, each part with its own origin")]
fn lifted(
    builder: &mut Builder<'_>,
    index: usize,
    candidate: &Candidate,
    context: u64,
    running: &Running,
    kind: EngineKind,
    supply: &NodeSupply,
    facts: &NodeFacts,
) -> Vec<Shape> {
    let engine = engine_of(builder, running, kind, supply, facts);
    let mut node = NodeSupply { host_capacity_bytes: PLENTY, disk_free_bytes: None, ..supply.clone() };
    for accelerator in &mut node.accelerators {
        (accelerator.capacity_bytes, accelerator.healthy) = (PLENTY, true);
    }
    let nodes = [node];
    let draft = draft(index, &engine, 0);
    let demand = demand_of(builder.model, kind, engine.version.as_deref(), context);
    let mut other = Builder {
        nodes: &nodes,
        demand: ModelDemand {
            name: builder.demand.name.clone(),
            offload: builder.demand.offload,
            ..ModelDemand::default()
        },
        sizes: std::mem::take(&mut builder.sizes),
        notes: Vec::new(),
        lifted: true,
        here: Default::default(),
        desired: builder.desired,
        inventory: builder.inventory,
        problem: builder.problem,
        split: builder.split.clone(),
        model: builder.model,
    };
    other.ways(candidate, &draft, demand, facts);
    builder.sizes = std::mem::take(&mut other.sizes);
    other.demand.shapes
}

/// Where sizing knows no such way any more: what the node recorded for it, else all that it can have.
fn as_recorded(
    builder: &Builder<'_>,
    index: usize,
    running: &Running,
    kind: EngineKind,
    supply: &NodeSupply,
    facts: &NodeFacts,
    on: &[usize],
) -> Shape {
    let engine = engine_of(builder, running, kind, supply, facts);
    let own = record(running, facts).and_then(|own| own.measured.as_deref());
    let bytes = |rank: usize| {
        let planned = own.and_then(|own| own.sized_for.per_accelerator.get(rank)).copied().map(|parts| PlacedMemory {
            weights_bytes: parts.weights_bytes,
            kv_bytes: parts.kv_bytes,
            overhead_bytes: parts.overhead_bytes,
            ..PlacedMemory::default()
        });
        let all = supply.accelerators[on[rank]].capacity_bytes;
        planned.unwrap_or(PlacedMemory { weights_bytes: all, ..PlacedMemory::default() })
    };
    let host =
        own.map(|own| own.sized_for.host.total()).or_else(|| record(running, facts).and_then(|own| own.host_bytes));
    let part = |rank: usize| Part {
        node: 0,
        group: vec![on[rank]],
        ranks: 1,
        per_accelerator: bytes(rank),
        ..Part::default()
    };
    let mut parts: Vec<Part> = (0..on.len()).map(part).collect();
    let first = if parts.is_empty() { Part::default() } else { parts.remove(0) };
    Shape {
        group: first.group,
        ranks: first.ranks,
        pipeline: on.len() > 1,
        per_accelerator: first.per_accelerator,
        host: PlacedMemory { weights_bytes: host.unwrap_or(0), ..PlacedMemory::default() },
        further: parts,
        layers: running.layers.clone(),
        ..draft(index, &engine, 0)
    }
}

/// A shape without accelerators or bytes.
fn draft(candidate: usize, engine: &EngineSupply, node: usize) -> Shape {
    let plain = Shape::on(node, candidate, engine.kind, &engine.program);
    Shape { engine_version: engine.version.clone(), keep_only: true, ..plain }
}
