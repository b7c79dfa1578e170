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
        let model = self.models.get(placed.model.as_str());
        let label = model.and_then(|m| m.candidates.get(placed.candidate)).map(|c| c.label.as_str());
        self.here.get(&(placed.model.as_str(), placed.node.as_str())).into_iter().flatten().any(|r| {
            r.accelerators == placed.accelerators
                && r.layers == placed.layers
                && Some(r.variant.as_str()) == label
                && r.engine == Some(placed.engine)
        })
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
    if candidate.only_on.as_ref().is_some_and(|nodes| !nodes.contains(&node.name)) {
        faults.push(format!("{name}: the weights are not on this node"));
    }
    let engine = node
        .engines
        .iter()
        .any(|e| e.kind == placed.engine && e.version == placed.engine_version && e.program == placed.program);
    if !engine {
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
    split(model, candidate, node, placed, name, faults);
    if !model.shapes.iter().any(|shape| planned(known, shape, placed)) {
        faults.push(format!("{name}: its bytes are not those of a way to run here"));
    }
    elsewhere(known, placed, name, faults);
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
fn elsewhere(known: &Known<'_>, placed: &Placed, name: &str, faults: &mut Vec<String>) {
    for part in &placed.elsewhere {
        let Some(node) = known.node(&part.node) else {
            faults.push(format!("{name}: there is no node {}", part.node));
            continue;
        };
        if !node.member || !node.reachable || node.closed.is_some() {
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
    let beyond: usize = placed.elsewhere.iter().map(|part| part.accelerators.len()).sum();
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
    let offloads = placed.engine == EngineKind::LlamaCpp && model.offload && sum < candidate.layers;
    if candidate.layers > 0 && sum != candidate.layers && !offloads {
        fault(format!("{sum} layers are placed, the model has {}", candidate.layers));
    }
}

/// Bytes on every accelerator and of every host. What protected instances hold counts as available to them.
fn capacity(known: &Known<'_>, placement: &Placement, faults: &mut Vec<String>) {
    let (running, running_hosts) = running_loads(known);
    let mut accelerators: BTreeMap<(&str, &str), (u64, u64)> = BTreeMap::new();
    let mut hosts: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for placed in &placement.instances {
        let Some(node) = known.node(&placed.node) else { continue };
        if !node.reachable {
            continue;
        }
        let fixed = known.models.get(placed.model.as_str()).is_some_and(|m| m.protected) && known.runs(placed);
        let mut pool = placed.host.total_bytes();
        for (uuid, memory) in placed.accelerators.iter().zip(&placed.per_accelerator) {
            let entry = accelerators.entry((&placed.node, uuid)).or_default();
            entry.0 += memory.total_bytes();
            entry.1 += if fixed { memory.total_bytes() } else { 0 };
            if node.accelerators.iter().any(|a| a.uuid == *uuid && a.unified) {
                pool += memory.total_bytes();
            }
        }
        let entry = hosts.entry(&placed.node).or_default();
        entry.0 += pool;
        entry.1 += if fixed { pool } else { 0 };
        for part in &placed.elsewhere {
            let mut pool = part.host.total_bytes();
            for (uuid, memory) in part.accelerators.iter().zip(&part.per_accelerator) {
                accelerators.entry((&part.node, uuid)).or_default().0 += memory.total_bytes();
                let there = known.node(&part.node).map_or(&[][..], |n| &n.accelerators);
                if there.iter().any(|a| a.uuid == *uuid && a.unified) {
                    pool += memory.total_bytes();
                }
            }
            hosts.entry(&part.node).or_default().0 += pool;
        }
    }
    for ((node, uuid), (used, fixed)) in accelerators {
        let supply = known.node(node).and_then(|n| n.accelerators.iter().find(|a| a.uuid == uuid));
        let usable = supply.map_or(0, |a| a.capacity_bytes);
        let runs = running.get(&(node, uuid)).copied().unwrap_or(0);
        let most = usable.max(fixed).max(if runs <= usable + WOBBLE { runs } else { 0 });
        if used > most {
            faults.push(format!("{node} {uuid}: {used} bytes are planned, {most} may be used"));
        }
    }
    for (node, (used, fixed)) in hosts {
        let usable = known.node(node).map_or(0, |n| n.host_capacity_bytes);
        let runs = running_hosts.get(node).copied().unwrap_or(0);
        let wobble = (usable / 8).max(4 * WOBBLE);
        let most = usable.max(fixed).max(if runs <= usable + wobble { runs } else { 0 });
        if used > most {
            faults.push(format!("{node}: {used} bytes of host memory are planned, {most} may be used"));
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

/// Bytes on each accelerator of a running instance, where it runs in this shape.
fn bytes_of(known: &Known<'_>, model: &ModelDemand, shape: &Shape, running: &Running) -> Option<Vec<u64>> {
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

type ByDevice<'p> = BTreeMap<(&'p str, &'p str), u64>;

/// Bytes that running instances take as their models are sized now, by accelerator and by node; whole MiB.
fn running_loads<'p>(known: &Known<'p>) -> (ByDevice<'p>, BTreeMap<&'p str, u64>) {
    let mut used = ByDevice::new();
    let mut hosts: BTreeMap<&str, u64> = BTreeMap::new();
    let up = |bytes: u64| bytes.div_ceil(MARGIN) * MARGIN;
    for running in &known.problem.running {
        let Some(model) = known.models.get(running.model.as_str()) else { continue };
        let Some((_, supply)) = known.nodes.get(running.node.as_str()) else { continue };
        let found = model.shapes.iter().find_map(|s| Some((s, bytes_of(known, model, s, running)?)));
        let Some((shape, bytes)) = found else { continue };
        for (uuid, bytes) in running.accelerators.iter().zip(bytes) {
            *used.entry((&running.node, uuid)).or_default() += up(bytes);
            let accelerator = supply.accelerators.iter().find(|a| a.uuid == *uuid);
            if accelerator.is_some_and(|a| a.unified) {
                *hosts.entry(&running.node).or_default() += up(bytes);
            }
        }
        *hosts.entry(&running.node).or_default() += up(shape.host.total_bytes());
    }
    (used, hosts)
}

/// Whether everything that runs fits together; where it does not, somebody has to lose.
fn room(known: &Known<'_>) -> bool {
    let (used, hosts) = running_loads(known);
    let accelerators = used.iter().all(|((node, uuid), bytes)| {
        known
            .node(node)
            .and_then(|n| n.accelerators.iter().find(|a| a.uuid == *uuid))
            .is_some_and(|a| *bytes <= a.capacity_bytes)
    });
    let hosts = hosts.iter().all(|(node, bytes)| known.node(node).is_some_and(|n| *bytes <= n.host_capacity_bytes));
    accelerators && hosts
}
