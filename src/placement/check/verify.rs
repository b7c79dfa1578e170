//! An independent check of a placement against its problem. Shares no code with the solver.

use std::collections::{BTreeMap, BTreeSet};

use crate::base::EngineKind;
use crate::placement::{
    AcceleratorSupply, CandidateFacts, ModelDemand, NodeSupply, Placed, PlacedMemory, Placement, Problem, Running,
    Shape,
};

/// Everything that is wrong with a placement; empty where nothing is.
pub fn check(problem: &Problem, placement: &Placement) -> Vec<String> {
    let mut faults = Vec::new();
    let known = Known::of(problem, placement);
    let mut seen = BTreeSet::new();
    for placed in &placement.instances {
        let name = format!("{} replica {} on {}", placed.model, placed.replica, placed.node);
        if !seen.insert((placed.model.as_str(), placed.replica)) {
            faults.push(format!("{name}: this replica is placed twice"));
        }
        let (Some(model), Some((_, node))) =
            (known.models.get(placed.model.as_str()), known.nodes.get(placed.node.as_str()))
        else {
            faults.push(format!("{name}: there is no such model or node"));
            continue;
        };
        if node.reachable {
            instance(&known, model, node, placed, &name, &mut faults);
        } else if !known.runs(placed) {
            faults.push(format!("{name}: the node cannot be reached and it does not run there"));
        }
    }
    capacity(&known, placement, &mut faults);
    ports(&known, placement, &mut faults);
    for model in &problem.models {
        copies(&known, model, &mut faults);
    }
    priorities(&known, &mut faults);
    faults.extend(crate::placement::check::policies::check(&known, placement));
    crate::placement::check::traffic::traffic(&known, placement, &mut faults);
    faults.sort();
    faults
}

/// Everything by name, so that a check of thousands is quick.
pub(in crate::placement) struct Known<'p> {
    pub(in crate::placement) problem: &'p Problem,
    pub(in crate::placement) models: BTreeMap<&'p str, &'p ModelDemand>,
    /// With their positions.
    pub(in crate::placement) nodes: BTreeMap<&'p str, (usize, &'p NodeSupply)>,
    /// By node, the one that its models' shapes name: itself, or the first of those that are alike.
    pub(in crate::placement) shapes_of: Vec<usize>,
    /// What runs, by model.
    pub(in crate::placement) running: BTreeMap<&'p str, Vec<&'p Running>>,
    /// The same by model and node.
    pub(in crate::placement) here: BTreeMap<(&'p str, &'p str), Vec<&'p Running>>,
    /// What is placed, by model.
    pub(in crate::placement) placed: BTreeMap<&'p str, Vec<&'p Placed>>,
}

impl<'p> Known<'p> {
    fn of(problem: &'p Problem, placement: &'p Placement) -> Self {
        let mut shapes_of: Vec<usize> = (0..problem.nodes.len()).collect();
        for (first, alike) in problem.alike.iter().enumerate() {
            for node in alike {
                shapes_of[*node] = first;
            }
        }
        let mut this = Self {
            problem,
            models: problem.models.iter().map(|m| (m.name.as_str(), m)).collect(),
            nodes: problem.nodes.iter().enumerate().map(|(at, n)| (n.name.as_str(), (at, n))).collect(),
            shapes_of,
            running: BTreeMap::new(),
            here: BTreeMap::new(),
            placed: BTreeMap::new(),
        };
        for running in &problem.running {
            this.running.entry(&running.model).or_default().push(running);
            this.here.entry((&running.model, &running.node)).or_default().push(running);
        }
        for placed in &placement.instances {
            this.placed.entry(&placed.model).or_default().push(placed);
        }
        this
    }

    pub(in crate::placement) fn node(&self, name: &str) -> Option<&'p NodeSupply> {
        self.nodes.get(name).map(|(_, node)| *node)
    }

    /// Whether the shapes of a node are those of the node with this name.
    fn stands(&self, node: usize, name: &str) -> bool {
        self.nodes.get(name).is_some_and(|(position, _)| *position == node || self.shapes_of[*position] == node)
    }

    /// Whether an instance of this model and variant runs on exactly these accelerators.
    fn runs(&self, placed: &Placed) -> bool {
        self.running_as(placed).is_some()
    }

    /// The same, and which; one whose engine runs before one whose engine does not.
    fn running_as(&self, placed: &Placed) -> Option<&'p Running> {
        let model = self.models.get(placed.model.as_str());
        let label = model.and_then(|m| m.candidates.get(placed.candidate)).map(|c| c.label.as_str());
        let here = self.here.get(&(placed.model.as_str(), placed.node.as_str())).into_iter().flatten().copied();
        let same = here.filter(|r| {
            r.accelerators == placed.accelerators
                && r.layers == placed.layers
                && Some(r.variant.as_str()) == label
                && r.engine == Some(placed.engine)
        });
        same.min_by_key(|r| (r.replica != placed.replica, r.failed))
    }
}

/// What can be said of one instance alone.
fn instance(
    known: &Known<'_>,
    model: &ModelDemand,
    node: &NodeSupply,
    placed: &Placed,
    name: &str,
    faults: &mut Vec<String>,
) {
    let stays = known.runs(placed);
    if !node.member {
        faults.push(format!("{name}: the node is not in the config"));
    }
    if node.closed.is_some() && !stays {
        faults.push(format!("{name}: nothing new may be placed on this node"));
    }
    for (label, is) in &model.require {
        let value = if label == "node" { Some(&node.name) } else { node.labels.get(label) };
        if value != Some(is) {
            faults.push(format!("{name}: `{label}` must be `{is}`"));
        }
    }
    let Some(candidate) = model.candidates.get(placed.candidate) else {
        faults.push(format!("{name}: there is no candidate {}", placed.candidate));
        return;
    };
    if candidate.only_on.as_ref().is_some_and(|nodes| !nodes.contains(&node.name)) && !stays {
        faults.push(format!("{name}: the weights are not on this node"));
    }
    let engine = node
        .engines
        .iter()
        .any(|e| e.kind == placed.engine && e.version == placed.engine_version && e.program == placed.program);
    let held = stays && placed.held.is_some();
    if !engine && !held {
        faults.push(format!("{name}: this engine is not on the node"));
    }
    let distinct: BTreeSet<&String> = placed.accelerators.iter().collect();
    if distinct.len() != placed.accelerators.len() {
        faults.push(format!("{name}: an accelerator is used twice"));
    }
    let accelerators: Vec<_> =
        distinct.iter().filter_map(|uuid| node.accelerators.iter().find(|a| a.uuid == **uuid)).collect();
    if accelerators.len() != distinct.len() {
        faults.push(format!("{name}: an accelerator is not on this node"));
    }
    if placed.held.is_some() && !stays {
        faults.push(format!("{name}: what may only stay as it is does not run here"));
    }
    if placed.held.is_none() {
        split(model, candidate, node, placed, name, faults);
    }
    if !model.shapes.iter().any(|shape| planned(known, shape, placed)) {
        faults.push(format!("{name}: its bytes are not those of a way to run here"));
    }
    elsewhere(known, placed, stays, name, faults);
    if accelerators.iter().any(|a| !a.healthy) && !(stays && model.protected) {
        faults.push(format!("{name}: an accelerator is not healthy"));
    }
}

/// Whether a placement is this shape on its node: candidate, engine, ranks, and the bytes on every accelerator and host.
fn planned(known: &Known<'_>, shape: &Shape, placed: &Placed) -> bool {
    let same = shape.candidate == placed.candidate
        && shape.engine == placed.engine
        && shape.layers == placed.layers
        && shape.host.total_bytes() == placed.host.total_bytes()
        && known.stands(shape.node, &placed.node);
    if !same {
        return false;
    }
    // By rank; where stages are told apart, each has its own.
    let mut ranks = vec![shape.per_accelerator.total_bytes(); shape.ranks as usize];
    for part in &shape.further {
        ranks.extend(std::iter::repeat_n(part.per_accelerator.total_bytes(), part.ranks as usize));
    }
    ranks.iter_mut().zip(&shape.stages).for_each(|(rank, stage)| *rank = stage.total_bytes());
    let mut ranks = ranks.into_iter();
    let mut here: Vec<u64> = ranks.by_ref().take(shape.ranks as usize).collect();
    let mut there = Vec::new();
    for part in &shape.further {
        let bytes: Vec<u64> = ranks.by_ref().take(part.ranks as usize).collect();
        let host = part.host.total_bytes();
        if part.node == shape.node { here.extend(bytes) } else { there.push((part.node, bytes, host)) }
    }
    let bytes = |list: &[PlacedMemory]| list.iter().map(PlacedMemory::total_bytes).collect::<Vec<u64>>();
    here == bytes(&placed.per_accelerator)
        && there.len() == placed.elsewhere.len()
        && there.iter().zip(&placed.elsewhere).all(|((node, wanted, host), part)| {
            *wanted == bytes(&part.per_accelerator)
                && *host == part.host.total_bytes()
                && known.stands(*node, &part.node)
        })
}

/// What an instance takes of other nodes: they are as open as its own.
fn elsewhere(known: &Known<'_>, placed: &Placed, stays: bool, name: &str, faults: &mut Vec<String>) {
    for part in &placed.elsewhere {
        let Some(node) = known.node(&part.node) else {
            faults.push(format!("{name}: there is no node {}", part.node));
            continue;
        };
        if !node.member || !node.reachable || (node.closed.is_some() && !stays) {
            faults.push(format!("{name}: nothing new may be placed on {}", node.name));
        }
        let distinct: BTreeSet<&String> = part.accelerators.iter().collect();
        if distinct.len() != part.accelerators.len() {
            faults.push(format!("{name}: an accelerator is used twice"));
        }
        let found: Vec<_> = node.accelerators.iter().filter(|a| distinct.contains(&a.uuid)).collect();
        if found.len() != distinct.len() {
            faults.push(format!("{name}: an accelerator is not on {}", node.name));
        }
        if found.iter().any(|a| !a.healthy) {
            faults.push(format!("{name}: an accelerator of {} is not healthy", node.name));
        }
        if part.per_accelerator.len() != part.accelerators.len() {
            faults.push(format!("{name}: the bytes on {} are not known", node.name));
        }
    }
}

/// Ranks, layers and parts, as the engines can be started.
fn split(
    model: &ModelDemand,
    candidate: &CandidateFacts,
    node: &NodeSupply,
    placed: &Placed,
    name: &str,
    faults: &mut Vec<String>,
) {
    let mut fault = |text: String| faults.push(format!("{name}: {text}"));
    // A worker on a processor is a stage without an accelerator.
    let beyond: usize = placed.elsewhere.iter().map(|part| part.accelerators.len().max(1)).sum();
    let all = placed.accelerators.len() + beyond;
    let ranks = (placed.tensor_parallel * placed.pipeline_parallel) as usize;
    // A projector on an accelerator of its own comes after the ranks.
    let apart = usize::from(placed.vision.is_some_and(|at| at == ranks));
    if ranks + apart != all.max(1) || placed.per_accelerator.len() != placed.accelerators.len() {
        fault(format!("{ranks} ranks on {all} accelerators"));
    }
    if placed.vision.is_some_and(|at| at >= placed.accelerators.len() || (apart == 0 && at >= ranks)) {
        fault("the vision projector is on no accelerator of it".to_owned());
    }
    let legal = candidate.legal_ranks.get(&placed.engine);
    if placed.tensor_parallel > 1 && !legal.is_some_and(|ranks| ranks.contains(&placed.tensor_parallel)) {
        fault(format!("tensor parallelism of {} is not legal", placed.tensor_parallel));
    }
    let find = |uuid: &String| node.accelerators.iter().find(|a| a.uuid == *uuid);
    let accelerators: Vec<&AcceleratorSupply> = placed.accelerators.iter().filter_map(find).collect();
    let whole = |stage: &[&AcceleratorSupply]| stage.iter().all(|a| a.kind == stage[0].kind);
    if !accelerators.chunks((placed.tensor_parallel as usize).max(1)).all(whole) {
        fault("the accelerators of a stage are not equal".to_owned());
    }
    let kinds: BTreeSet<&str> = accelerators.iter().take(ranks).map(|a| a.kind.as_str()).collect();
    if (kinds.len() > 1 || beyond > 0) && placed.layers.is_empty() {
        fault("the accelerators are not equal, and nothing says which layers lie where".to_owned());
    }
    if accelerators.iter().any(|a| a.vendor != accelerators[0].vendor) {
        fault("accelerators of two makers cannot work together".to_owned());
    }
    if all > 1 && accelerators.iter().any(|a| a.mig) {
        fault("MIG slices cannot work together in one process".to_owned());
    }
    if placed.layers.is_empty() {
        return;
    }
    if placed.layers.len() != placed.pipeline_parallel as usize || placed.layers.contains(&0) {
        fault(format!("layers {:?} of {} stages", placed.layers, placed.pipeline_parallel));
    }
    let sum: u32 = placed.layers.iter().sum();
    let on_host = model.offload || (beyond > 0 && placed.accelerators.is_empty());
    let offloads = placed.engine == EngineKind::LlamaCpp && on_host && sum < candidate.layers;
    if candidate.layers > 0 && sum != candidate.layers && !offloads {
        fault(format!("{sum} layers are placed, the model has {}", candidate.layers));
    }
}

/// Bytes on every accelerator and of every host. What runs holds its memory already: where all of it comes to more than
/// may be used, it counts as what may be used, shared out in proportion. What protected instances hold counts as
/// available to them.
fn capacity<'p>(known: &Known<'_>, placement: &'p Placement, faults: &mut Vec<String>) {
    let held = Held::of(known);
    // Used, and of that by protected instances; `None` is the host.
    let mut used: BTreeMap<Resource<'p>, (u64, u64)> = BTreeMap::new();
    for placed in &placement.instances {
        let Some(node) = known.node(&placed.node) else { continue };
        if !node.reachable {
            continue;
        }
        let stays = known.running_as(placed);
        let protected = known.models.get(placed.model.as_str()).is_some_and(|m| m.protected);
        let mut take = |at: Resource<'p>, bytes: u64| {
            let bytes = if stays.is_some_and(|running| !running.failed) { held.share(at, bytes) } else { bytes };
            let entry = used.entry(at).or_default();
            entry.0 += bytes;
            entry.1 += if protected && stays.is_some() { bytes } else { 0 };
        };
        let own = (&placed.node, &placed.accelerators, &placed.per_accelerator, &placed.host);
        let further = placed.elsewhere.iter().map(|p| (&p.node, &p.accelerators, &p.per_accelerator, &p.host));
        for (name, on, each, host) in std::iter::once(own).chain(further) {
            for (uuid, memory) in on.iter().zip(each) {
                take((name, Some(uuid)), memory.total_bytes());
                if known.unified(name, uuid) {
                    take((name, None), memory.total_bytes());
                }
            }
            take((name, None), host.total_bytes());
        }
    }
    for (at, (used, fixed)) in used {
        let usable = known.usable(at);
        let all = held.counted(at);
        let most = usable.max(fixed).max(if all <= usable + known.wobble(at) { all } else { 0 });
        if used > most {
            match at {
                (node, Some(uuid)) => {
                    faults.push(format!("{node} {uuid}: {used} bytes are planned, {most} may be used"));
                }
                (node, None) => {
                    faults.push(format!("{node}: {used} bytes of host memory are planned, {most} may be used"));
                }
            }
        }
    }
}

/// Ports of every node: what runs has its own, and gives them back where it leaves.
fn ports(known: &Known<'_>, placement: &Placement, faults: &mut Vec<String>) {
    let mut used: BTreeMap<&str, (u32, u32)> = BTreeMap::new();
    for placed in &placement.instances {
        let internal = u32::from(crate::engine::internal_ports(placed.engine));
        let (all, row) = match known.running_as(placed) {
            Some(running) => (running.ports.all, running.ports.row),
            None => (1 + internal, internal > 1),
        };
        let entry = used.entry(&placed.node).or_default();
        *entry = (entry.0 + all, entry.1 + u32::from(row));
    }
    for (name, (used, rows)) in used {
        let Some(node) = known.node(name).filter(|node| node.reachable) else { continue };
        let Some(supply) = &node.ports else { continue };
        let here =
            known.problem.running.iter().filter(|r| r.node == name && known.models.contains_key(r.model.as_str()));
        let (held, held_rows) = here.fold((0, 0), |(all, rows), r| (all + r.ports.all, rows + u32::from(r.ports.row)));
        if used > supply.free + held || rows > supply.rows + held_rows {
            faults.push(format!(
                "{name}: {used} ports and {rows} rows of them are planned, {} and {} may be used",
                supply.free + held,
                supply.rows + held_rows
            ));
        }
    }
}

/// Number of copies and spread.
fn copies(known: &Known<'_>, model: &ModelDemand, faults: &mut Vec<String>) {
    let mine = known.placed.get(model.name.as_str()).map_or(&[][..], Vec::as_slice);
    let running = known.running.get(model.name.as_str()).map_or(0, Vec::len);
    let unreachable = mine.iter().filter(|p| known.node(&p.node).is_some_and(|n| !n.reachable)).count();
    let most = if model.protected { running.max(model.desired as usize) } else { model.desired as usize };
    if mine.len() > most.max(unreachable) {
        faults.push(format!("{}: {} replicas are placed, {most} are wanted", model.name, mine.len()));
    }
    let Some(label) = &model.spread_by else { return };
    let mut values: BTreeMap<String, usize> = BTreeMap::new();
    for placed in mine.iter().filter(|p| !(known.runs(p) && model.protected)) {
        let further = placed.elsewhere.iter().map(|part| part.node.as_str());
        let on: Vec<_> = further.chain([placed.node.as_str()]).filter_map(|name| known.node(name)).collect();
        if on.iter().any(|node| !node.reachable) {
            continue;
        }
        let value = |node: &&NodeSupply| {
            if label == "node" { node.name.clone() } else { node.labels.get(label).cloned().unwrap_or_default() }
        };
        for value in on.iter().map(value).collect::<BTreeSet<String>>() {
            *values.entry(value).or_default() += 1;
        }
    }
    for (value, count) in values.into_iter().filter(|(_, count)| *count > 1) {
        faults.push(format!("{}: {count} replicas where `{label}` is `{value}`", model.name));
    }
}

/// Nothing protected loses its place, and nothing loses a replica but where a higher, preempting rank gained one: who
/// loses it to nobody was evicted for nothing.
fn priorities(known: &Known<'_>, faults: &mut Vec<String>) {
    let placed = |model: &ModelDemand| known.placed.get(model.name.as_str()).map_or(&[][..], Vec::as_slice);
    let could_stay = |model: &&ModelDemand| -> Vec<&Running> {
        let running = known.running.get(model.name.as_str()).into_iter().flatten().copied();
        running.filter(|r| possible(known, model, r)).collect()
    };
    let models: Vec<(&ModelDemand, Vec<&Running>)> =
        known.models.values().map(|model| (*model, could_stay(model))).collect();
    let gains = |(model, running): &&(&ModelDemand, Vec<&Running>)| {
        model.preempts && placed(model).len() > running.len().min(model.desired as usize)
    };
    let highest = models.iter().filter(gains).map(|(model, _)| model.rank).max();
    let gained = |rank: u32| highest.is_some_and(|highest| highest > rank);
    let enough = std::cell::OnceCell::new();
    let enough = || *enough.get_or_init(|| room(known) && crate::placement::check::traffic::near_enough(known));
    for (model, running) in &models {
        let mine = placed(model);
        let places: BTreeSet<(&str, &[String])> =
            mine.iter().map(|p| (p.node.as_str(), p.accelerators.as_slice())).collect();
        let kept = running.iter().filter(|r| places.contains(&(r.node.as_str(), r.accelerators.as_slice()))).count();
        if model.protected && kept < running.len() {
            faults.push(format!("{}: it is protected, but a running instance would lose its place", model.name));
        }
        let claim = running.len().min(model.desired as usize);
        let short = mine.len() < claim && model.spread_by.is_none() && !gained(model.rank);
        if short && enough() && !in_quota(known.problem, &model.name) {
            faults.push(format!("{}: it would lose a replica, and no rank that may take it gains one", model.name));
        }
    }
}

/// Whether a quota is about a model: then others of its rank may have the place.
fn in_quota(problem: &Problem, model: &str) -> bool {
    problem.quotas.iter().any(|quota| quota.models.iter().any(|name| name == model))
}

/// Whether an instance could stay as it is: the node is there and the model may still run so.
fn possible(known: &Known<'_>, model: &ModelDemand, running: &Running) -> bool {
    let node = known.nodes.get(running.node.as_str()).filter(|(_, node)| node.reachable && node.member);
    let Some((_, supply)) = node else { return false };
    if supply.drained && !model.protected {
        return false;
    }
    let usable = running
        .accelerators
        .iter()
        .all(|uuid| supply.accelerators.iter().any(|a| a.uuid == *uuid && (a.healthy || model.protected)));
    usable && model.shapes.iter().any(|shape| bytes_of(known, model, shape, running).is_some())
}

/// Whether a running instance over several nodes is in this shape, with all its nodes as usable as its own.
fn spans(known: &Known<'_>, model: &ModelDemand, shape: &Shape, running: &Running) -> bool {
    let same = Some(shape.engine) == running.engine
        && shape.layers == running.layers
        && model.candidates.get(shape.candidate).is_some_and(|c| c.label == running.variant);
    let on = |node: usize, group: &[usize], ranks: u32, name: &str, uuids: &[String]| {
        let usable = |supply: &NodeSupply| {
            supply.reachable && supply.member && (!supply.drained || model.protected) && uuids.len() == ranks as usize
        };
        known.stands(node, name)
            && known.node(name).filter(|supply| usable(supply)).is_some_and(|supply| {
                let there = |p: &usize, uuid: &String| {
                    let found = supply.accelerators.get(*p);
                    found.is_some_and(|a| a.uuid == *uuid && (a.healthy || model.protected))
                };
                uuids.iter().all(|uuid| group.iter().any(|p| there(p, uuid)))
            })
    };
    same && on(shape.node, &shape.group, shape.ranks, &running.node, &running.accelerators)
        && shape.further.len() == running.further.len()
        && shape
            .further
            .iter()
            .zip(&running.further)
            .all(|(part, (name, uuids))| on(part.node, &part.group, part.ranks, name, uuids))
}

/// Bytes on each accelerator of a running instance, where it runs in this shape; over several nodes of its first.
fn bytes_of(known: &Known<'_>, model: &ModelDemand, shape: &Shape, running: &Running) -> Option<Vec<u64>> {
    if !running.further.is_empty() {
        let own = shape.per_accelerator.total_bytes();
        let rank = |number: usize| shape.stages.get(number).map_or(own, PlacedMemory::total_bytes);
        return spans(known, model, shape, running).then(|| (0..running.accelerators.len()).map(rank).collect());
    }
    let same = Some(shape.engine) == running.engine
        && shape.layers == running.layers
        && known.stands(shape.node, &running.node)
        && shape.further.iter().all(|part| part.node == shape.node)
        && model.candidates.get(shape.candidate).is_some_and(|c| c.label == running.variant);
    let supply = known.node(&running.node).filter(|_| same)?;
    let of = |memory: &PlacedMemory, claim: u64| memory.total_bytes().max(claim);
    let mut ranks = vec![(&shape.group, of(&shape.per_accelerator, shape.claim_bytes)); shape.ranks as usize];
    for part in &shape.further {
        let rank = (&part.group, of(&part.per_accelerator, part.claim_bytes));
        ranks.extend(std::iter::repeat_n(rank, part.ranks as usize));
    }
    let there = |group: &[usize], uuid: &String| {
        group.iter().any(|p| supply.accelerators.get(*p).is_some_and(|a| a.uuid == *uuid))
    };
    let fits = ranks.len() == running.accelerators.len()
        && ranks.iter().zip(&running.accelerators).all(|((group, _), uuid)| there(group, uuid));
    fits.then(|| ranks.into_iter().map(|(_, bytes)| bytes).collect())
}

/// Whoever plans may count memory in whole MiB.
const MARGIN: u64 = 1 << 20;

/// By how much what runs may exceed what can be used and stay: figures of free memory move a little.
const WOBBLE: u64 = 512 << 20;

/// An accelerator of a node, or with `None` its host.
type Resource<'n> = (&'n str, Option<&'n str>);

impl<'p> Known<'p> {
    fn device(&self, (node, uuid): Resource<'_>) -> Option<&'p AcceleratorSupply> {
        self.node(node)?.accelerators.iter().find(|a| Some(a.uuid.as_str()) == uuid)
    }

    fn unified(&self, node: &str, uuid: &str) -> bool {
        self.device((node, Some(uuid))).is_some_and(|a| a.unified)
    }

    /// Bytes that may be used.
    fn usable(&self, at: Resource<'_>) -> u64 {
        match at {
            (node, None) => self.node(node).map_or(0, |n| n.host_capacity_bytes),
            _ => self.device(at).map_or(0, |a| a.capacity_bytes),
        }
    }

    /// By how much what is to run again may exceed that.
    fn wobble(&self, at: Resource<'_>) -> u64 {
        match at.1 {
            None => (self.usable(at) / 8).max(4 * WOBBLE),
            Some(_) => WOBBLE,
        }
    }
}

/// What running instances take as their models are sized now; whole MiB.
struct Held<'p> {
    /// Of those whose engines run: what they come to where that is more than may be used, and what may.
    over: BTreeMap<Resource<'p>, (u64, u64)>,
    /// Of all, as it counts.
    all: BTreeMap<Resource<'p>, u64>,
}

impl<'p> Held<'p> {
    fn of(known: &Known<'p>) -> Self {
        let mut takes: Vec<(Resource<'p>, u64, bool)> = Vec::new();
        for running in &known.problem.running {
            let Some(model) = known.models.get(running.model.as_str()) else { continue };
            let Some((_, supply)) = known.nodes.get(running.node.as_str()) else { continue };
            let found = model.shapes.iter().find_map(|s| Some((s, bytes_of(known, model, s, running)?)));
            let Some((shape, bytes)) = found.filter(|_| possible(known, model, running)) else { continue };
            for (uuid, bytes) in running.accelerators.iter().zip(bytes) {
                let Some(device) = supply.accelerators.iter().find(|a| a.uuid == *uuid) else { continue };
                takes.push(((&supply.name, Some(device.uuid.as_str())), bytes, running.failed));
                if device.unified {
                    takes.push(((&supply.name, None), bytes, running.failed));
                }
            }
            takes.push(((&supply.name, None), shape.host.total_bytes(), running.failed));
            // Over several nodes what it has of the others, rank by rank.
            let mut rank = shape.ranks as usize;
            for (part, (node, uuids)) in shape.further.iter().zip(&running.further) {
                for uuid in uuids {
                    let bytes = shape.stages.get(rank).map_or(part.claimed(), PlacedMemory::total_bytes);
                    takes.push(((node, Some(uuid)), bytes, running.failed));
                    rank += 1;
                }
                takes.push(((node, None), part.host.total_bytes(), running.failed));
            }
        }
        let mut living: BTreeMap<Resource<'p>, u64> = BTreeMap::new();
        for (at, bytes, failed) in &takes {
            *living.entry(*at).or_default() += if *failed { 0 } else { up(*bytes) };
        }
        let mut this = Self { over: BTreeMap::new(), all: BTreeMap::new() };
        for (at, held) in living {
            let usable = known.usable(at) / MARGIN * MARGIN;
            if held > usable {
                this.over.insert(at, (held, usable));
            }
        }
        for (at, bytes, failed) in takes {
            let counted = if failed { up(bytes) } else { this.share(at, bytes) };
            *this.all.entry(at).or_default() += counted;
        }
        this
    }

    /// What so many bytes of an instance whose engine runs count as.
    fn share(&self, at: Resource<'_>, bytes: u64) -> u64 {
        let Some((held, usable)) = self.over.get(&at) else { return bytes };
        let part = u128::from(up(bytes)) * u128::from(*usable) / u128::from((*held).max(1));
        u64::try_from(part).map_or(bytes, |part| (part / MARGIN * MARGIN).min(bytes))
    }

    fn counted(&self, at: Resource<'_>) -> u64 {
        self.all.get(&at).copied().unwrap_or(0)
    }
}

fn up(bytes: u64) -> u64 {
    bytes.div_ceil(MARGIN) * MARGIN
}

/// Whether everything that runs fits together; where what is to run again does not, somebody has to lose.
fn room(known: &Known<'_>) -> bool {
    let held = Held::of(known);
    held.all.iter().all(|(at, bytes)| *bytes <= known.usable(*at))
}
