//! Shapes over several nodes, where the config allows it: llama.cpp with a worker on every node beyond the first.
//!
//! The node that serves has the weights and sends each worker its layers. Layers pass in llama.cpp's own order: those in
//! the serving process's host memory, those of the workers, those on its accelerators; so the output head is where the
//! answer is wanted, unless the serving node has no accelerator. A cable is slower than a bus and breaks more easily, so
//! only as few nodes as can hold the model are taken, and only where no node alone is as fast. Per set of nodes two
//! splits are worth a look: as much as fits on the fastest, and in proportion to the memory. Every token passes every
//! worker once: two messages each way, of one row of the model's width.

use std::cmp::Reverse;

use crate::base::{EngineKind, format_bytes};
use crate::placement::build::shapes::{
    Builder, CPU_BANDWIDTH, as_read, bandwidth, counted, demand_of, fetch_bytes, planned, reason,
};
use crate::placement::build::vision::beside_layers;
use crate::placement::build::{deny, supply};
use crate::placement::{Candidate, Distances, NodeSupply, Origin, Part, PlacedMemory, Reason, Running, Shape};
use crate::sizing::{Demand, Figures, Footprint, admits, spanned_footprint, staged_decode, version_supports};

/// Nodes that one instance takes at most.
const MOST_NODES: usize = 4;
/// Nodes that are combined; of more, those with most room.
const LOOKED_AT: usize = 8;
/// Accelerators that it takes of one node at most.
const MOST: usize = 8;
/// Shapes of one candidate that are kept.
const KEPT: usize = 24;

/// A node as it may take part.
#[derive(Clone)]
struct Host {
    node: usize,
    /// All its accelerators of one kind, ascending; none where its processor is used.
    group: Vec<usize>,
    /// Those that are taken, those with most room first.
    devices: Vec<usize>,
    /// Bytes per second that one of them reads.
    bandwidth: Option<u64>,
    /// What one of them, or its host, may be given.
    room: Vec<u64>,
    /// What its worker is started with, where it can have one.
    worker: Result<(), String>,
    /// Bytes to bring before it can serve; `None` where it cannot.
    fetch: Option<u64>,
    /// Whether nothing new may be put there.
    closed: bool,
}

impl Host {
    fn on_processor(&self) -> bool {
        self.devices.is_empty()
    }

    /// Devices of it that hold layers.
    fn stages(&self) -> usize {
        self.devices.len().max(1)
    }

    /// The same with so many of its accelerators.
    fn with(&self, count: usize) -> Self {
        let mut fewer = self.clone();
        fewer.devices.truncate(count);
        fewer.room.truncate(count.max(1));
        fewer
    }

    fn whole(&self) -> u64 {
        self.room.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }
}

/// The host that serves, and those of the workers, in the order of their layers.
struct Set<'h> {
    serving: &'h Host,
    workers: Vec<&'h Host>,
}

/// Adds them for a candidate.
pub fn add(builder: &mut Builder<'_>, index: usize, candidate: &Candidate, context: u64, engines: &[EngineKind]) {
    if !builder.model.place.allow_nodes {
        return;
    }
    let refuse = |builder: &mut Builder<'_>, engine: Option<EngineKind>, text: &str| {
        builder.remove(candidate, engine, None, reason("*", "split", text.to_owned()));
    };
    for engine in engines.iter().filter(|engine| **engine != EngineKind::LlamaCpp) {
        let needs = if *engine == EngineKind::Vllm { " needs Ray, which is" } else { " is" };
        refuse(builder, Some(*engine), &format!("{engine} across nodes{needs} not offered"));
    }
    let Some(preference) = engines.iter().position(|engine| *engine == EngineKind::LlamaCpp) else { return };
    let large = !builder.problem.alike.is_empty();
    if large {
        refuse(builder, Some(EngineKind::LlamaCpp), "new splits over nodes are not looked for in a large cluster");
    }
    if beside_layers(builder, candidate, EngineKind::LlamaCpp) > 0 {
        return refuse(builder, Some(EngineKind::LlamaCpp), "a model with a vision projector is not split over nodes");
    }
    if candidate.variant.architecture.layers == 0 {
        return;
    }
    let ways = Distances::of(builder.inventory);
    let span = Span { builder, index, candidate, context, preference: preference as u32, ways: &ways };
    let mut found = Vec::new();
    for running in already(builder, candidate) {
        let own = std::iter::once((&running.node, &running.accelerators));
        let on = own.chain(running.further.iter().map(|(node, accelerators)| (node, accelerators)));
        let hosts: Option<Vec<Host>> = on.map(|(node, on)| runs_on(builder, candidate, node, on)).collect();
        let Some((serving, workers)) = hosts.as_deref().and_then(<[Host]>::split_first) else { continue };
        let set = Set { serving, workers: workers.iter().collect() };
        let shape = span.sized(&set, &running.layers, false);
        found.extend(shape.filter(|shape| !found.contains(shape)));
    }
    let nodes = if large { 0..0 } else { 0..builder.nodes.len() };
    let mut hosts: Vec<Host> = nodes.filter_map(|node| host(builder, candidate, node, None)).collect();
    hosts.retain(|host| !host.closed);
    hosts.sort_by_key(|host| (Reverse((host.bandwidth, host.whole())), host.node));
    hosts.truncate(LOOKED_AT);
    let (new, why) = span.fewest(&hosts);
    let alone = builder
        .demand
        .shapes
        .iter()
        .filter(|shape| (shape.candidate, shape.engine, shape.keep_only) == (index, EngineKind::LlamaCpp, false));
    let fastest = alone.map(|shape| shape.speed.unwrap_or(f64::INFINITY)).fold(f64::NEG_INFINITY, f64::max);
    let fits_alone = fastest > f64::NEG_INFINITY;
    for shape in new {
        let better = !fits_alone || shape.speed.is_some_and(|speed| speed > fastest);
        match found.iter_mut().find(|known| same(known, &shape)) {
            Some(known) => known.keep_only = false,
            None if better => found.push(shape),
            None => {}
        }
    }
    let none = found.is_empty() && !fits_alone;
    builder.demand.shapes.extend(found);
    for why in why.into_iter().filter(|_| none) {
        builder.remove(candidate, Some(EngineKind::LlamaCpp), None, why);
    }
}

/// Whether two shapes take the same places in the same way.
fn same(one: &Shape, other: &Shape) -> bool {
    let places =
        |shape: &Shape| shape.spans().map(|span| (span.node, span.ranks, span.group.to_vec())).collect::<Vec<_>>();
    one.layers == other.layers && places(one) == places(other)
}

/// A node as something runs on it: with accelerators of the kind that it has there, as many.
fn runs_on(builder: &Builder<'_>, candidate: &Candidate, node: &str, on: &[String]) -> Option<Host> {
    let node = builder.nodes.iter().position(|supply| supply.name == node)?;
    let first = match on.first() {
        Some(uuid) => Some(builder.nodes[node].position(uuid)?),
        None => None,
    };
    let host = host(builder, candidate, node, first)?;
    (host.on_processor() == on.is_empty()).then(|| host.with(on.len()))
}

/// What a node can do; `None` where it may not take part at all. `of` is an accelerator of the kind that is meant, else
/// the kind with most room is.
fn host(builder: &Builder<'_>, candidate: &Candidate, node: usize, of: Option<usize>) -> Option<Host> {
    let supply = &builder.nodes[node];
    let facts = builder.inventory.node(&supply.name).filter(|_| supply.member && supply.reachable)?;
    let engine = supply.engines.iter().find(|engine| engine.kind == EngineKind::LlamaCpp)?;
    let version = engine.version.as_deref();
    let labelled = builder.demand.require.iter().all(|(label, is)| supply.labels.get(label) == Some(is));
    let variant = &candidate.variant;
    if !labelled
        || version_supports(EngineKind::LlamaCpp, version, variant).is_err()
        || deny::denied(builder.desired, builder.model, EngineKind::LlamaCpp, supply, candidate.gated).is_some()
    {
        return None;
    }
    let meant = |group: &Vec<usize>| of.is_none_or(|position| group.contains(&position));
    let kind = supply::groups(supply).into_iter().filter(meant).filter_map(|group| {
        let first = &supply.accelerators[group[0]];
        let device = facts.accelerator(&first.uuid);
        let refused = device.is_some_and(|d| admits(EngineKind::LlamaCpp, version, variant, d).is_err());
        let mut open: Vec<usize> = group.iter().copied().filter(|p| supply.accelerators[*p].healthy).collect();
        open.sort_by_key(|p| (Reverse(supply.accelerators[*p].capacity_bytes), *p));
        open.truncate(MOST);
        let able = !first.mig && !first.unified && !refused && !open.is_empty();
        able.then(|| (group, open, device.and_then(bandwidth)))
    });
    let room = |devices: &[usize]| devices.iter().map(|p| supply.accelerators[*p].capacity_bytes).collect::<Vec<u64>>();
    let best = kind.max_by_key(|(_, open, _)| (room(open).iter().sum::<u64>(), Reverse(open[0])));
    let (group, devices, read) = match best {
        Some(best) => best,
        // Where there are accelerators that cannot be used, their host is not meant either.
        None if builder.model.place.allow_cpu && supply.accelerators.is_empty() => {
            (Vec::new(), Vec::new(), Some(CPU_BANDWIDTH))
        }
        None => return None,
    };
    let room = if devices.is_empty() { vec![supply.host_capacity_bytes] } else { room(&devices) };
    let fetch = match &candidate.origin {
        Origin::OnNode { nodes, .. } => nodes.contains(&supply.name).then_some(0),
        Origin::Controller { .. } | Origin::Hub { .. } => {
            let bytes = fetch_bytes(candidate, facts);
            supply.disk_free_bytes.is_none_or(|free| bytes <= free).then_some(bytes)
        }
    };
    let lacks = |what: &str| Err(format!("`{}` {what}", supply.name));
    let worker = match (&engine.worker, &engine.version, &supply.address) {
        (None, ..) => lacks("has no ggml-rpc-server beside its llama-server"),
        (_, None, _) => lacks("does not tell the version of its llama-server"),
        (.., None) => lacks("has no IPv4 address in the config, to which its worker could be bound"),
        _ => Ok(()),
    };
    Some(Host { node, group, devices, bandwidth: read, room, worker, fetch, closed: supply.closed.is_some() })
}

/// What runs so already.
fn already<'b>(builder: &Builder<'b>, candidate: &Candidate) -> Vec<&'b Running> {
    let mine = builder.problem.running.iter().filter(|running| {
        running.model == builder.demand.name
            && running.engine == Some(EngineKind::LlamaCpp)
            && running.variant == candidate.label
            && !running.further.is_empty()
    });
    mine.collect()
}

/// What the shapes of one candidate have in common.
struct Span<'b> {
    builder: &'b Builder<'b>,
    index: usize,
    candidate: &'b Candidate,
    context: u64,
    preference: u32,
    ways: &'b Distances,
}

impl Span<'_> {
    fn supply(&self, host: &Host) -> &NodeSupply {
        &self.builder.nodes[host.node]
    }

    fn layers(&self) -> u32 {
        self.candidate.variant.architecture.layers
    }

    /// Shapes over the fewest nodes that can hold the model, the fastest first; else why there are none.
    fn fewest(&self, hosts: &[Host]) -> (Vec<Shape>, Vec<Reason>) {
        let mut why: Vec<Reason> = Vec::new();
        for count in 2..=hosts.len().min(MOST_NODES) {
            let mut found: Vec<Shape> = Vec::new();
            for chosen in subsets(hosts.len(), count) {
                let chosen: Vec<&Host> = chosen.into_iter().map(|at| &hosts[at]).collect();
                let mut best: Vec<Shape> = Vec::new();
                for serving in 0..count {
                    let workers = chosen.iter().enumerate().filter(|(at, _)| *at != serving).map(|(_, host)| *host);
                    let set = Set { serving: chosen[serving], workers: workers.collect() };
                    match self.obstacle(&set) {
                        None => best.extend(self.on_few(&set)),
                        Some(reason) if !why.contains(&reason) => why.push(reason),
                        Some(_) => {}
                    }
                }
                // Of the ways to share out the same nodes the fastest, and of those what has the weights.
                best.sort_by(|a, b| {
                    let speed = |shape: &Shape| shape.speed.unwrap_or(0.0);
                    speed(b).total_cmp(&speed(a)).then(a.fetch_bytes.cmp(&b.fetch_bytes)).then(a.node.cmp(&b.node))
                });
                best.truncate(2);
                found.append(&mut best);
            }
            if !found.is_empty() {
                found.sort_by(|a, b| b.speed.unwrap_or(0.0).total_cmp(&a.speed.unwrap_or(0.0)));
                found.truncate(KEPT);
                return (found, Vec::new());
            }
        }
        why.extend(self.too_little(hosts));
        (Vec::new(), why)
    }

    /// Why these cannot work together; `None` where they can.
    fn obstacle(&self, set: &Set<'_>) -> Option<Reason> {
        let serving = self.supply(set.serving);
        let refuse = |node: &NodeSupply, text: String| Some(reason(&node.name, "split", text));
        if set.serving.fetch.is_none() {
            return refuse(serving, "the weights are not on this node, and have no room there".to_owned());
        }
        let version = |node: &NodeSupply| {
            node.engines
                .iter()
                .find(|engine| engine.kind == EngineKind::LlamaCpp)
                .and_then(|engine| engine.version.clone())
        };
        for worker in &set.workers {
            let node = self.supply(worker);
            if let Err(text) = &worker.worker {
                return refuse(node, format!("over several nodes: {text}"));
            }
            let (own, other) = (version(serving), version(node));
            if own != other {
                let said = |version: Option<String>| version.unwrap_or_else(|| "of unknown version".to_owned());
                let text = format!(
                    "over several nodes: llama.cpp is {} here and {} on `{}`; all parts must be of one build",
                    said(other),
                    said(own),
                    serving.name
                );
                return refuse(node, text);
            }
            if self.way(set.serving, worker).is_none() {
                let text = format!(
                    "over several nodes: the way to `{}` is not measured (`flock discover` measures it)",
                    serving.name
                );
                return refuse(node, text);
            }
        }
        None
    }

    /// Round trip in seconds and bytes per second between two nodes.
    fn way(&self, one: &Host, other: &Host) -> Option<(f64, f64)> {
        let (a, b) = (&self.supply(one).name, &self.supply(other).name);
        let key = if a <= b { (a.clone(), b.clone()) } else { (b.clone(), a.clone()) };
        let (rtt_us, bandwidth) = self.ways.between.get(&key)?;
        Some((*rtt_us as f64 / 1e6, (*bandwidth)? as f64))
    }

    /// The splits over as few accelerators of these nodes as can hold the model; a node with more room gives one more first.
    fn on_few(&self, set: &Set<'_>) -> Vec<Shape> {
        let mut taken: Vec<usize> = vec![1; 1 + set.workers.len()];
        let all: Vec<&Host> = std::iter::once(set.serving).chain(set.workers.iter().copied()).collect();
        loop {
            let fewer: Vec<Host> = all.iter().zip(&taken).map(|(host, count)| host.with(*count)).collect();
            if let Some((serving, workers)) = fewer.split_first() {
                let found = self.splits(&Set { serving, workers: workers.iter().collect() });
                if !found.is_empty() {
                    return found;
                }
            }
            let more = (0..all.len()).filter(|at| taken[*at] < all[*at].devices.len());
            let Some(next) = more.max_by_key(|at| (all[*at].room[taken[*at]], Reverse(*at))) else { return Vec::new() };
            taken[next] += 1;
        }
    }

    /// The splits over these nodes that are worth a look.
    fn splits(&self, set: &Set<'_>) -> Vec<Shape> {
        let rooms = set.rooms();
        let mut order: Vec<usize> = (0..rooms.len()).collect();
        order.sort_by_key(|at| (Reverse(rooms[*at].1), Reverse(rooms[*at].2), *at));
        let mut found: Vec<Shape> = Vec::new();
        for layers in [self.filled(set, &order), self.proportional(&rooms)].into_iter().flatten() {
            let shape = self.sized(set, &set.shaped(&layers), true);
            found.extend(shape.filter(|shape| !found.iter().any(|known| known.layers == shape.layers)));
        }
        found
    }

    /// As many layers as fit on the first in order, then on the next; every one holds one at least. In llama.cpp's order.
    fn filled(&self, set: &Set<'_>, order: &[usize]) -> Option<Vec<u32>> {
        let mut layers = vec![1u32; order.len()];
        let mut left = self.layers().checked_sub(order.len() as u32)?;
        let last = *order.last()?;
        for at in &order[..order.len() - 1] {
            let fits = |more: u32| {
                let mut tried = layers.clone();
                tried[*at] += more;
                tried[last] += left - more;
                self.footprint(set, &tried).is_some_and(|sized| sized.fits(*at))
            };
            let (mut low, mut high) = (0, left);
            while low < high {
                let middle = low + (high - low).div_ceil(2);
                if fits(middle) { low = middle } else { high = middle - 1 }
            }
            layers[*at] += low;
            left -= low;
        }
        layers[last] += left;
        Some(layers)
    }

    /// Layers in proportion to what each may be given.
    fn proportional(&self, rooms: &[(u64, Option<u64>, bool)]) -> Option<Vec<u32>> {
        let all: u128 = rooms.iter().map(|(bytes, ..)| u128::from(*bytes)).sum();
        let mut layers = Vec::new();
        let (mut sum, mut before) = (0u128, 0u32);
        for (bytes, ..) in rooms {
            sum += u128::from(*bytes);
            let until = (sum * u128::from(self.layers())).checked_div(all)? as u32;
            layers.push(until.checked_sub(before).filter(|own| *own > 0)?);
            before = until;
        }
        Some(layers)
    }

    fn demand(&self, version: Option<&'static str>) -> Demand<'static> {
        demand_of(self.builder.model, EngineKind::LlamaCpp, version, self.context)
    }

    /// Bytes of a split, in llama.cpp's order.
    fn footprint(&self, set: &Set<'_>, layers: &[u32]) -> Option<Sized> {
        let serves = set.serving.on_processor();
        let mut on_processor: Vec<bool> =
            set.workers.iter().flat_map(|worker| vec![worker.on_processor(); worker.stages()]).collect();
        if !serves {
            on_processor.extend(vec![false; set.serving.stages()]);
        }
        let devices = &layers[usize::from(serves)..];
        let engine = self.supply(set.serving).engines.iter().find(|engine| engine.kind == EngineKind::LlamaCpp)?;
        let demand = Demand { version: engine.version.as_deref(), ..self.demand(None) };
        let (sized, worker) =
            spanned_footprint(&self.candidate.variant, &demand, devices, &on_processor, serves).ok()?;
        let mut rooms = set.rooms();
        if serves {
            rooms.rotate_left(1);
        }
        Some(Sized { serves, on_processor, sized, worker, rooms: rooms.into_iter().map(|(bytes, ..)| bytes).collect() })
    }

    /// The shape of a split in a shape's own order: accelerators of the node that serves, then the workers. What is not
    /// `new` runs so already, whatever it needs now.
    fn sized(&self, set: &Set<'_>, layers: &[u32], new: bool) -> Option<Shape> {
        let passed = set.passed(layers, self.layers())?;
        let sized = self.footprint(set, &passed)?;
        let devices = passed.len() - usize::from(sized.serves);
        let serving = self.supply(set.serving);
        let engine = serving.engines.iter().find(|engine| engine.kind == EngineKind::LlamaCpp)?;
        if sized.sized.per_accelerator.len() != devices || (new && !(0..passed.len()).all(|at| sized.fits(at))) {
            return None;
        }
        let host = planned(&sized.sized.host);
        if new && host.total_bytes() > serving.host_capacity_bytes {
            return None;
        }
        let bytes: Vec<PlacedMemory> = sized.sized.per_accelerator.iter().map(planned).collect();
        let largest =
            |of: &[PlacedMemory]| of.iter().copied().max_by_key(PlacedMemory::total_bytes).unwrap_or_default();
        let mut stages: Vec<PlacedMemory> = Vec::new();
        let mut further = Vec::new();
        let mut at = 0;
        for worker in &set.workers {
            let own = &bytes[at..at + worker.stages()];
            at += worker.stages();
            let beside = planned(&sized.worker);
            let part = if worker.on_processor() {
                let own = largest(own);
                let host = PlacedMemory {
                    weights_bytes: own.weights_bytes,
                    kv_bytes: own.kv_bytes,
                    overhead_bytes: own.overhead_bytes.saturating_add(beside.overhead_bytes),
                    ..own
                };
                Part { node: worker.node, host, ..Part::default() }
            } else {
                stages.extend(own);
                Part {
                    node: worker.node,
                    group: worker.group.clone(),
                    ranks: worker.devices.len() as u32,
                    per_accelerator: largest(own),
                    host: beside,
                    ..Part::default()
                }
            };
            if new && part.host.total_bytes() > self.supply(worker).host_capacity_bytes {
                return None;
            }
            further.push(part);
        }
        let own = &bytes[at..];
        let stages: Vec<PlacedMemory> = own.iter().copied().chain(stages).collect();
        Some(Shape {
            candidate: self.index,
            engine: EngineKind::LlamaCpp,
            preference: self.preference,
            engine_version: engine.version.clone(),
            program: engine.program.clone(),
            node: set.serving.node,
            group: set.serving.group.clone(),
            ranks: set.serving.devices.len() as u32,
            pipeline: true,
            per_accelerator: largest(own),
            stages,
            claim_bytes: 0,
            host,
            speed: self.speed(set, &passed, &sized),
            first_token_s: None,
            fetch_bytes: set.serving.fetch.unwrap_or(0),
            keep_only: !new,
            held: None,
            unchecked: None,
            further,
            layers: layers.to_vec(),
            vision: false,
        })
    }

    /// Tokens per second: what every part reads, and what passes between them.
    fn speed(&self, set: &Set<'_>, passed: &[u32], sized: &Sized) -> Option<f64> {
        let read: Option<Vec<(u32, u64)>> =
            passed.iter().zip(set.rooms()).map(|(layers, (_, read, _))| Some((*layers, read?))).collect();
        let demand = as_read(self.candidate, self.demand(None), &sized.sized);
        let alone = staged_decode(&self.candidate.variant, &demand, &read?)?;
        let architecture = &self.candidate.variant.architecture;
        let row = f64::from(architecture.hidden) * 4.0;
        let mut seconds = 1.0 / alone;
        for (number, worker) in set.workers.iter().enumerate() {
            let (rtt, bandwidth) = self.way(set.serving, worker)?;
            // The last worker has the output head where the node that serves has no accelerator.
            let head = set.serving.on_processor() && number + 1 == set.workers.len();
            let back = if head { f64::from(architecture.vocab) * 4.0 } else { row };
            seconds += 2.0 * rtt + (row + back) / bandwidth;
        }
        (seconds > 0.0).then(|| 1.0 / seconds)
    }

    /// What all nodes together lack.
    fn too_little(&self, hosts: &[Host]) -> Option<Reason> {
        let able: Vec<&Host> = hosts.iter().filter(|host| host.worker.is_ok() || host.fetch.is_some()).collect();
        if able.len() < 2 {
            let text = format!(
                "over several nodes: {} may take part, and two are needed at least{}",
                able.len(),
                if self.builder.model.place.allow_cpu {
                    ""
                } else {
                    "; nodes without accelerator need `allow cpu=#true`"
                }
            );
            return Some(reason("*", "split", text));
        }
        let most: Vec<&Host> = able.into_iter().take(MOST_NODES).collect();
        let set = Set { serving: most[0], workers: most[1..].to_vec() };
        let has: u64 = most.iter().map(|host| host.whole()).fold(0, u64::saturating_add);
        let layers = self.proportional(&set.rooms())?;
        let sized = self.footprint(&set, &layers)?;
        let parts = sized.sized.per_accelerator.iter().map(Figures::total).fold(0, u64::saturating_add);
        let needs = if sized.serves { parts.saturating_add(sized.sized.host.total()) } else { parts };
        let text = format!(
            "over {} nodes it needs about {} in all; {} can be used together, and what each can hold is in whole layers",
            most.len(),
            format_bytes(needs),
            format_bytes(has)
        );
        Some(counted("*", "split", needs, has, "bytes", text))
    }
}

/// The bytes of a split over nodes.
struct Sized {
    /// Whether the first layers are in host memory of the node that serves.
    serves: bool,
    on_processor: Vec<bool>,
    sized: Footprint,
    worker: Figures,
    /// Of every device in llama.cpp's order, the serving host last where it holds layers.
    rooms: Vec<u64>,
}

impl Sized {
    /// Whether what is at a place in llama.cpp's order, the serving host's layers first, fits there.
    fn fits(&self, at: usize) -> bool {
        let device = if self.serves { at.checked_sub(1) } else { Some(at) };
        match device {
            None => self.rooms.last().is_some_and(|room| self.sized.host.total() <= *room),
            Some(device) => {
                let beside = if self.on_processor[device] { self.worker.total() } else { 0 };
                let needs =
                    self.sized.per_accelerator.get(device).map(|figures| figures.total().saturating_add(beside));
                needs.zip(self.rooms.get(device)).is_some_and(|(needs, room)| needs <= *room)
            }
        }
    }
}

impl Set<'_> {
    /// Room, bandwidth, and whether it is the node that serves, of everything that holds layers, in llama.cpp's order.
    fn rooms(&self) -> Vec<(u64, Option<u64>, bool)> {
        let of = |host: &Host, serves: bool| {
            host.room.iter().map(|room| (*room, host.bandwidth, serves)).collect::<Vec<_>>()
        };
        let serving = of(self.serving, true);
        let workers = self.workers.iter().flat_map(|worker| of(worker, false));
        if self.serving.on_processor() {
            serving.into_iter().chain(workers).collect()
        } else {
            workers.chain(serving).collect()
        }
    }

    /// From llama.cpp's order to a shape's: the serving node's accelerators first, layers in host memory left out.
    fn shaped(&self, passed: &[u32]) -> Vec<u32> {
        if self.serving.on_processor() {
            return passed.get(1..).unwrap_or_default().to_vec();
        }
        let mut layers = passed.to_vec();
        layers.rotate_right(self.serving.devices.len().min(passed.len()));
        layers
    }

    /// The other way round; `None` where there are not as many as devices, or nothing is left for the host.
    fn passed(&self, layers: &[u32], all: u32) -> Option<Vec<u32>> {
        let devices = self.serving.devices.len() + self.workers.iter().map(|worker| worker.stages()).sum::<usize>();
        if layers.len() != devices {
            return None;
        }
        let held = layers.iter().fold(0u32, |sum, own| sum.saturating_add(*own));
        let rest = all.checked_sub(held)?;
        if self.serving.on_processor() {
            return (rest > 0).then(|| std::iter::once(rest).chain(layers.iter().copied()).collect());
        }
        let mut passed = layers.to_vec();
        passed.rotate_left(self.serving.devices.len());
        (rest == 0).then_some(passed)
    }
}

/// All ways to choose so many of the first `of` numbers.
fn subsets(of: usize, count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for last in (count - 1)..of {
        all.extend(subsets(last, count - 1).into_iter().map(|mut chosen| {
            chosen.push(last);
            chosen
        }));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subsets_are_all_different_and_whole() {
        let found = subsets(5, 3);
        assert_eq!(found.len(), 10);
        assert!(found.iter().all(|chosen| chosen.windows(2).all(|pair| pair[0] < pair[1]) && chosen[2] < 5));
        let different: std::collections::BTreeSet<_> = found.iter().collect();
        assert_eq!(different.len(), 10);
        assert_eq!(subsets(1, 2), Vec::<Vec<usize>>::new());
    }
}
