//! The problem from the desired state, the inventory and the candidate weights: every way to run every model on
//! every node that sizing allows, and the reason for every way it does not.

// Size: one builder walks candidates, nodes, engines and splits in turn; further kinds of shapes have files of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::base::{EngineKind, MIB, format_bytes};
use crate::config::{Desired, Model, Objective};
use crate::engine::utilisation;
use crate::inventory::{Accelerator, Inventory, NodeFacts};
use crate::placement::DeniedPlace;
use crate::placement::build::{classes, deny, flows, held, holding, nodes, offload, price, supply, unequal, vision};
use crate::placement::layout::whole;
use crate::placement::{
    Candidate, CandidateFacts, Candidates, Limits, ModelDemand, NodeSupply, Origin, PlacedMemory, Problem, Reason,
    Removed, Running, Shape, TailTier, Term,
};
use crate::sizing::{
    AcceleratorSpec, Calibrations, Demand, Figures, Footprint, Ran, SizingError, Splits, admits, effective_context,
    engine_supports, kv_bytes_per_token, legal_splits, specification, speed, version_supports,
};

/// How to solve.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Options {
    /// Limits of the solver.
    pub limits: Limits,
    /// Nodes that what runs there shall leave; they are held besides, so nothing new comes either.
    pub drain: BTreeSet<String>,
    /// Ports that engines were told for themselves, by node and instance; the inventory has only those they serve on.
    pub internal_ports: BTreeMap<(String, String), Vec<u16>>,
}

/// The least gain that is worth a move, unless `threshold move=` says otherwise.
const MOVE_THRESHOLD: f64 = 0.05;
/// Numbers of llama.cpp devices that are tried for a layer split.
const LAYER_SPLITS: &[u32] = &[2, 3, 4, 8];
/// Memory bandwidth that is assumed of a CPU, for speed.
pub(in crate::placement) const CPU_BANDWIDTH: u64 = 40_000_000_000;

/// The weighted tier that follows the replicas.
pub fn tail(objective: &Objective) -> Vec<TailTier> {
    let terms = vec![
        (Term::Quality, f64::from(objective.quality)),
        (Term::Stability, f64::from(objective.stability)),
        (Term::Latency, f64::from(objective.latency)),
        (Term::Traffic, f64::from(objective.latency)),
        (Term::Locality, f64::from(objective.locality)),
        (Term::Cost, f64::from(objective.cost)),
        (Term::Balance, f64::from(objective.balance)),
        (Term::Preference, 1.0),
        (Term::Pack, 1.0),
    ];
    vec![TailTier { name: "objective".to_owned(), terms }]
}

/// Builds the problem.
pub fn build(desired: &Desired, inventory: &Inventory, candidates: &Candidates, options: &Options) -> Problem {
    let (nodes, notes) = supply::nodes(desired, inventory, options);
    let protected = supply::protected(desired, inventory);
    let mut problem = Problem {
        nodes,
        running: supply::running(desired, inventory, candidates, options),
        tail: tail(&desired.cluster.objective),
        limits: options.limits,
        quotas: supply::quotas(desired),
        spot_hedge: desired.policies.spot_hedge.as_ref().map_or(0, |losses| losses.value),
        threshold: desired.policies.move_threshold.as_ref().map_or(MOVE_THRESHOLD, |s| f64::from(s.value.0) / 10_000.0),
        notes,
        calibrations: Calibrations::of(inventory),
        ..Problem::default()
    };
    let large = classes::is_large(&problem.nodes, &options.limits);
    if large {
        classes::round_down(&mut problem.nodes);
        problem.notes = classes::gather(std::mem::take(&mut problem.notes));
    }
    holding::make_room(&mut problem, desired, candidates);
    if large {
        problem.alike = classes::classes(&problem, desired, inventory, candidates);
    }
    let currency = desired.cluster.extras.currency.as_ref().map(|code| code.value.as_str());
    problem.notes.extend(price::note(&problem, currency));
    let (mut models, mut found) = (Vec::new(), Vec::new());
    let mut here = running_at(&problem);
    for (name, model) in &desired.models {
        let mut demand = ModelDemand {
            name: name.clone(),
            rank: model.priority.rank,
            preempts: model.priority.preempts,
            min: model.replicas.min,
            desired: model.replicas.max,
            protected: protected.contains(name),
            require: model.place.require.iter().map(|r| (r.value.label.clone(), r.value.is.clone())).collect(),
            prefer: model
                .place
                .prefer
                .iter()
                .map(|p| (p.value.0.label.clone(), p.value.0.is.clone(), p.value.1))
                .collect(),
            spread_by: model.place.spread_by.as_ref().map(|s| s.value.clone()),
            offload: model.place.allow_offload,
            pack: model.place.pack,
            ..ModelDemand::default()
        };
        match candidates.get(name) {
            Some(Ok(list)) => {
                let here = here.remove(name.as_str()).unwrap_or_default();
                let split = here.values().flatten().copied().filter(|running| !running.layers.is_empty()).collect();
                let (problem, nodes) = (&problem, &problem.nodes);
                let (sizes, notes, lifted) = (Sizes::default(), Vec::new(), false);
                let mut builder =
                    Builder { desired, inventory, problem, nodes, split, model, demand, here, lifted, sizes, notes };
                for (index, candidate) in list.iter().enumerate() {
                    builder.candidate(index, candidate);
                }
                found.append(&mut builder.notes);
                demand = builder.demand;
                if list.is_empty() {
                    demand.removed.push(everywhere("disk", "no weights were found in its source".to_owned()));
                }
            }
            Some(Err(problem)) => {
                let hint = problem.hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
                demand.removed.push(everywhere("disk", format!("{}{hint}", problem.text)));
            }
            None => demand.removed.push(everywhere("disk", "its weights are not known".to_owned())),
        }
        models.push(demand);
    }
    problem.models = models;
    problem.notes.append(&mut found);
    flows::add(&mut problem, desired, inventory);
    problem.sort();
    problem
}

/// What runs, by model and by the node whose shapes are its own.
fn running_at(problem: &Problem) -> BTreeMap<&str, BTreeMap<usize, Vec<&Running>>> {
    let stand = problem.representatives();
    let mut found: BTreeMap<&str, BTreeMap<usize, Vec<&Running>>> = BTreeMap::new();
    for running in &problem.running {
        let Some(node) = problem.node(&running.node) else { continue };
        found.entry(&running.model).or_default().entry(stand[node]).or_default().push(running);
    }
    found
}

fn everywhere(constraint: &str, text: String) -> Removed {
    let reason = reason("*", constraint, text);
    Removed { variant: None, engine: None, ranks: None, needed_bytes: 0, planned: None, reason }
}

pub(in crate::placement) fn reason(node: &str, constraint: &str, text: String) -> Reason {
    let (node, constraint) = (node.to_owned(), constraint.to_owned());
    Reason { node, alike: 0, constraint, needed: None, available: None, unit: None, text }
}

pub(in crate::placement) fn counted(
    node: &str,
    constraint: &str,
    needed: u64,
    available: u64,
    unit: &str,
    text: String,
) -> Reason {
    Reason {
        needed: Some(needed),
        available: Some(available),
        unit: Some(unit.to_owned()),
        ..reason(node, constraint, text)
    }
}

/// Figures of sizing as planned bytes; capacities are set when an accelerator is chosen.
pub fn planned(figures: &Figures) -> PlacedMemory {
    PlacedMemory {
        weights_bytes: figures.weights_bytes,
        kv_bytes: figures.kv_bytes,
        overhead_bytes: figures.overhead_bytes,
        ..PlacedMemory::default()
    }
}

/// What an engine claims of an accelerator for a need: vLLM and SGLang take a share with two decimals.
pub fn claim(engine: EngineKind, needed: u64, total: u64) -> u64 {
    match engine {
        EngineKind::LlamaCpp => needed,
        EngineKind::Vllm | EngineKind::Sglang => utilisation(needed, total).map_or(needed, |share| {
            let hundredths = (share * 100.0).round() as u128;
            needed.max(u64::try_from(hundredths * u128::from(total) / 100).unwrap_or(needed))
        }),
    }
}

/// Engines that may serve a model, in its order.
pub fn engines_of(model: &Model) -> Vec<EngineKind> {
    if model.engines.is_empty() { EngineKind::ALL.to_vec() } else { model.engines.iter().map(|e| e.value).collect() }
}

/// The demand that a model makes of one candidate.
pub fn demand_of<'a>(model: &Model, engine: EngineKind, version: Option<&'a str>, context: u64) -> Demand<'a> {
    Demand {
        engine,
        version,
        context,
        concurrency: u32::try_from(model.concurrency.value).unwrap_or(u32::MAX),
        kv_dtype: model.kv_dtype.as_ref().map(|d| d.value),
        tensor_parallel: 1,
        pipeline_parallel: 1,
        cpu: false,
    }
}

/// The same demand over several accelerators: tensor-parallel, with llama.cpp a layer split.
pub fn over(demand: Demand<'_>, ranks: u32) -> Demand<'_> {
    match demand.engine {
        EngineKind::LlamaCpp => Demand { pipeline_parallel: ranks.max(1), cpu: ranks == 0, ..demand },
        EngineKind::Vllm | EngineKind::Sglang => Demand { tensor_parallel: ranks.max(1), cpu: ranks == 0, ..demand },
    }
}

/// What a candidate takes, by computation and by what was measured of it on accelerators of this kind (`None`: the CPU).
pub fn sized(
    calibrations: &Calibrations,
    candidate: &Candidate,
    demand: &Demand<'_>,
    accelerator: Option<&str>,
) -> Result<Footprint, SizingError> {
    calibrations.footprint(&candidate.variant, demand, Ran { revision: &candidate.revision, accelerator, layers: &[] })
}

/// What finds the shapes of one model.
pub(in crate::placement) struct Builder<'a> {
    pub(in crate::placement) desired: &'a Desired,
    pub(in crate::placement) inventory: &'a Inventory,
    pub(in crate::placement) problem: &'a Problem,
    pub(in crate::placement) nodes: &'a [NodeSupply],
    /// What runs of the model with layers of its own on each accelerator.
    pub(in crate::placement) split: Vec<&'a Running>,
    pub(in crate::placement) model: &'a Model,
    pub(in crate::placement) demand: ModelDemand,
    /// What runs of the model, by the node whose shapes are its own.
    pub(in crate::placement) here: BTreeMap<usize, Vec<&'a Running>>,
    /// Whether only the ways that something runs in already are looked for: no check of the device refuses any.
    pub(in crate::placement) lifted: bool,
    pub(in crate::placement) sizes: Sizes,
    pub(in crate::placement) notes: Vec<String>,
}

/// Engine, version, ranks (0: the CPU) and, where measurements are known, accelerators.
type SizeKey = (EngineKind, Option<String>, u32, Option<String>);

/// What was computed of the candidate in hand already.
#[derive(Default)]
pub(in crate::placement) struct Sizes {
    splits: BTreeMap<EngineKind, Rc<Splits>>,
    footprints: BTreeMap<SizeKey, Result<Rc<Footprint>, SizingError>>,
}

impl Builder<'_> {
    pub(in crate::placement) fn remove(
        &mut self,
        candidate: &Candidate,
        engine: Option<EngineKind>,
        ranks: Option<u32>,
        why: Reason,
    ) {
        let needed_bytes = why.needed.filter(|_| why.unit.as_deref() == Some("bytes")).unwrap_or(0);
        let variant = Some(candidate.label.clone());
        self.demand.removed.push(Removed { variant, engine, ranks, needed_bytes, planned: None, reason: why });
    }

    /// What was removed at a node holds for all that it stands for.
    fn alike(&mut self, node: usize, from: usize) {
        let others = self.problem.others(node);
        self.demand.removed.iter_mut().skip(from).for_each(|removed| removed.reason.alike = others);
    }

    /// The same of a shape whose accelerators are too small.
    fn too_small(&mut self, candidate: &Candidate, shape: &Shape, why: Reason) {
        self.remove(candidate, Some(shape.engine), Some(shape.ranks), why);
        if let Some(last) = self.demand.removed.last_mut() {
            last.planned = Some(shape.per_accelerator);
        }
    }

    /// Splits that are legal, computed once per candidate and engine.
    fn splits(&mut self, candidate: &Candidate, engine: EngineKind) -> Rc<Splits> {
        let compute = || Rc::new(legal_splits(&candidate.variant, engine));
        Rc::clone(self.sizes.splits.entry(engine).or_insert_with(compute))
    }

    /// What the candidate takes, computed once per engine, version, ranks and kind of accelerator.
    fn sized(
        &mut self,
        candidate: &Candidate,
        demand: &Demand<'_>,
        ranks: u32,
        kind: Option<&str>,
    ) -> Result<Rc<Footprint>, SizingError> {
        let calibrations = &self.problem.calibrations;
        let measured = kind.filter(|_| calibrations.knows(demand.engine, &candidate.revision));
        let key = (demand.engine, demand.version.map(str::to_owned), ranks, measured.map(str::to_owned));
        let compute = || sized(calibrations, candidate, demand, kind).map(Rc::new);
        self.sizes.footprints.entry(key).or_insert_with(compute).clone()
    }

    fn candidate(&mut self, index: usize, candidate: &Candidate) {
        let variant = &candidate.variant;
        let listed = !self.model.variants.is_empty();
        let mut facts = CandidateFacts {
            label: candidate.label.clone(),
            quality: if listed { index as u32 } else { u32::from(variant.quality.rank()) },
            revision: match &candidate.origin {
                Origin::Controller { .. } | Origin::Hub { .. } => candidate.revision.clone(),
                Origin::OnNode { .. } => String::new(),
            },
            only_on: match &candidate.origin {
                Origin::Controller { .. } | Origin::Hub { .. } => None,
                Origin::OnNode { nodes, .. } => Some(nodes.clone()),
            },
            format: Some(variant.format),
            layers: variant.architecture.layers,
            ..CandidateFacts::default()
        };
        let context = effective_context(variant, self.model.context.as_ref().map(|c| c.value));
        facts.context = context.as_ref().copied().unwrap_or(0);
        let engines = engines_of(self.model);
        for engine in &engines {
            facts.legal_ranks.insert(*engine, legal_splits(variant, *engine).tensor_parallel);
        }
        self.demand.candidates.push(facts);
        let context = match context {
            Ok(context) => context,
            Err(error) => return self.remove(candidate, None, None, reason("*", "engine", error.to_string())),
        };
        if let Some(min) = &self.model.min_quality
            && !variant.quality.at_least(&min.value)
        {
            let text = format!("{} is below `quality min=\"{}\"`", candidate.label, min.value);
            return self.remove(candidate, None, None, reason("*", "selector", text));
        }
        if let Some(text) = vision::no_parts(self, candidate) {
            return self.remove(candidate, None, None, reason("*", "engine", text));
        }
        let able: Vec<EngineKind> = engines.iter().copied().filter(|e| engine_supports(*e, variant).is_ok()).collect();
        if able.is_empty() {
            let text = engines
                .first()
                .and_then(|e| engine_supports(*e, variant).err())
                .unwrap_or_else(|| "no engine can load it".to_owned());
            return self.remove(candidate, engines.first().copied(), None, reason("*", "engine", text));
        }
        self.sizes = Sizes::default();
        for node in self.problem.classes() {
            let known = self.demand.removed.len();
            self.on_node(index, candidate, context, &able, node);
            held::add(self, index, candidate, context, node, known);
            self.alike(node, known);
        }
        nodes::add(self, index, candidate, context, &able);
    }

    fn on_node(&mut self, index: usize, candidate: &Candidate, context: u64, engines: &[EngineKind], node: usize) {
        let supply = &self.nodes[node];
        let Some(facts) = self.inventory.node(&supply.name).filter(|_| supply.member && supply.reachable) else {
            return;
        };
        let name = supply.name.clone();
        let wrong: Vec<String> = self
            .demand
            .require
            .iter()
            .filter(|(label, is)| supply.labels.get(label) != Some(is))
            .map(|(label, is)| match supply.labels.get(label) {
                Some(value) => format!("`{label}` is `{value}`, not `{is}`"),
                None => format!("there is no label `{label}` with `{is}`"),
            })
            .collect();
        if !wrong.is_empty() {
            return self.remove(candidate, None, None, reason(&name, "selector", wrong.join(", ")));
        }
        if let Origin::OnNode { nodes, path } = &candidate.origin
            && !nodes.contains(&name)
        {
            let text = format!("{path} is not on this node");
            return self.remove(candidate, None, None, reason(&name, "disk", text));
        }
        let fetch = match self.problem.alike.is_empty() {
            true => fetch_bytes(candidate, facts),
            false => classes::fetch_bytes(candidate, facts, supply.disk_free_bytes),
        };
        if let Some(free) = supply.disk_free_bytes.filter(|free| fetch > *free) {
            let text = format!("{} to fetch, {} of disk free", format_bytes(fetch), format_bytes(free));
            let why = counted(&name, "disk", fetch, free, "bytes", text);
            return self.remove(candidate, None, None, why);
        }
        for (preference, engine) in engines.iter().enumerate() {
            let Some(found) = supply.engines.iter().find(|e| e.kind == *engine) else {
                let text = supply::missing_engine(self.desired, *engine, Some(facts));
                self.remove(candidate, Some(*engine), None, reason(&name, "engine", text));
                continue;
            };
            let denied = self.denied(index, candidate, *engine, facts, node);
            if denied == Some(false) {
                continue;
            }
            if let Err(text) = version_supports(*engine, found.version.as_deref(), &candidate.variant) {
                self.remove(candidate, Some(*engine), None, reason(&name, "engine", text));
                continue;
            }
            let draft = Shape {
                preference: preference as u32,
                engine_version: found.version.clone(),
                fetch_bytes: fetch,
                keep_only: supply.closed.is_some() || denied.is_some(),
                ..Shape::on(node, index, *engine, &found.program)
            };
            let demand = demand_of(self.model, *engine, found.version.as_deref(), context);
            self.ways(candidate, &draft, demand, facts);
        }
    }

    /// All ways to run a candidate with one engine on one node.
    pub(in crate::placement) fn ways(
        &mut self,
        candidate: &Candidate,
        draft: &Shape,
        demand: Demand<'_>,
        facts: &NodeFacts,
    ) {
        let from = self.demand.shapes.len();
        self.accelerators(candidate, draft, demand, facts);
        unequal::add(self, candidate, draft, demand, facts);
        offload::add(self, candidate, draft, demand, facts);
        if self.model.place.allow_cpu && draft.engine == EngineKind::LlamaCpp {
            self.cpu(candidate, draft, demand);
        }
        vision::add(self, candidate, draft, facts, from);
    }

    /// Whether a policy denies this place, and where it does, whether something protected runs here and stays.
    fn denied(
        &mut self,
        index: usize,
        candidate: &Candidate,
        engine: EngineKind,
        facts: &NodeFacts,
        node: usize,
    ) -> Option<bool> {
        let supply = &self.nodes[node];
        let found = deny::denied(self.desired, self.model, engine, supply, candidate.gated)?;
        let (name, model) = (supply.name.clone(), self.demand.name.clone());
        if found.assumed {
            let text = "whether its weights are gated is not known, so policies that ask take them as gated";
            self.notes.push(format!("model `{model}`: {text}"));
        }
        let stays = self.demand.protected && facts.instances.iter().any(|i| i.model == model && i.engine == engine);
        if stays {
            self.notes
                .push(format!("model `{model}` stays on `{name}` because it is protected, though {}", found.text));
        }
        self.remove(candidate, Some(engine), None, reason(&name, "deny", found.text.clone()));
        self.demand.denied.push(DeniedPlace { node: name, candidate: index, engine, text: found.text });
        Some(stays)
    }

    fn accelerators(&mut self, candidate: &Candidate, draft: &Shape, demand: Demand<'_>, facts: &NodeFacts) {
        let supply = &self.nodes[draft.node];
        let groups = supply::groups(supply);
        if groups.is_empty() && !(self.model.place.allow_cpu && draft.engine == EngineKind::LlamaCpp) {
            let none = "no accelerator, and the model may not run on the CPU";
            let text = match facts.unknown.get("accelerators") {
                Some(why) => format!("the node has {none}; its driver fails: {why}"),
                None => format!("the node has {none}"),
            };
            let why = counted(&supply.name, "accelerators", 1, 0, "accelerators", text);
            return self.remove(candidate, Some(draft.engine), None, why);
        }
        let splits = self.splits(candidate, draft.engine);
        for group in groups {
            let first = &supply.accelerators[group[0]];
            let device = facts.accelerator(&first.uuid);
            let version = draft.engine_version.as_deref();
            let unchecked = match device.map(|d| admits(draft.engine, version, &candidate.variant, d)) {
                Some(Err(lacking)) if !self.lifted => {
                    let why = reason(&supply.name, "hardware", lacking.text);
                    self.remove(candidate, Some(draft.engine), None, why);
                    continue;
                }
                Some(Ok(note)) => note,
                Some(Err(_)) | None => None,
            };
            let sizes: Vec<u32> = match draft.engine {
                EngineKind::LlamaCpp => std::iter::once(1).chain(LAYER_SPLITS.iter().copied()).collect(),
                EngineKind::Vllm | EngineKind::Sglang => splits.tensor_parallel.clone(),
            };
            let whole = u32::try_from(group.len()).unwrap_or(u32::MAX);
            if let Some(refused) = splits.refused.iter().find(|refused| refused.tp == whole) {
                let instead = splits.suggest(whole).map(|text| format!("; {text}")).unwrap_or_default();
                let text = format!("all {whole} together are not possible: {}{instead}", refused.text);
                self.remove(candidate, Some(draft.engine), Some(whole), reason(&supply.name, "split", text));
            }
            for ranks in sizes {
                let shape = Shape { group: group.clone(), ranks, unchecked: unchecked.clone(), ..draft.clone() };
                self.over(candidate, shape, demand, device);
            }
        }
    }

    /// One number of ranks on one group of equal accelerators.
    fn over(&mut self, candidate: &Candidate, shape: Shape, demand: Demand<'_>, device: Option<&Accelerator>) {
        let supply = &self.nodes[shape.node];
        let ranks = shape.ranks;
        let kind = supply.accelerators[shape.group[0]].kind.clone();
        let healthy: Vec<usize> = shape.group.iter().copied().filter(|p| supply.accelerators[*p].healthy).collect();
        let engine = Some(shape.engine);
        if ranks > 1 && supply.accelerators[shape.group[0]].mig {
            if ranks == 2 && healthy.len() > 1 {
                let text = "MIG slices cannot work together in one process".to_owned();
                self.remove(candidate, engine, Some(ranks), reason(&supply.name, "split", text));
            }
            return;
        }
        if healthy.len() < shape.width() {
            // Larger splits than there are accelerators are no news, unless there is not even one.
            if healthy.is_empty() && ranks == 1 {
                let text = format!("no {kind} is healthy");
                let why = counted(&supply.name, "accelerators", 1, 0, "accelerators", text);
                self.remove(candidate, engine, Some(ranks), why);
            }
            return;
        }
        let demand = over(demand, ranks);
        let sized = match self.sized(candidate, &demand, ranks, Some(&kind)) {
            Ok(sized) => sized,
            Err(error) => {
                let why = reason(&supply.name, "split", error.to_string());
                return self.remove(candidate, engine, Some(ranks), why);
            }
        };
        let shape = sized_shape(shape, &sized, &supply.accelerators[healthy[0]].total_bytes);
        let needed = shape.claimed();
        let mut usable: Vec<usize> = healthy;
        usable.sort_by_key(|p| std::cmp::Reverse(supply.accelerators[*p].capacity_bytes));
        let tightest = &supply.accelerators[usable[shape.width() - 1]];
        let pool = whole(supply.host_capacity_bytes);
        if supply.unified(&shape.group) && shape.pool_bytes() > pool {
            let text = too_large_pool(&shape, pool, tightest);
            let why = counted(&supply.name, "memory", shape.pool_bytes(), pool, "bytes", text);
            return self.too_small(candidate, &shape, why);
        }
        if needed > tightest.capacity_bytes {
            let text = too_large(needed, ranks, tightest);
            let why = counted(&supply.name, "memory", needed, tightest.capacity_bytes, "bytes", text);
            return self.too_small(candidate, &shape, why);
        }
        if shape.host.total_bytes() > supply.host_capacity_bytes {
            let why = too_much_ram(supply, shape.host.total_bytes());
            return self.remove(candidate, engine, Some(ranks), why);
        }
        let read = as_read(candidate, demand, &sized);
        let speed = device.and_then(|d| decode_speed(candidate, &read, d));
        let first_token_s = device.and_then(|d| first_token_s(candidate, &demand, d));
        self.demand.shapes.push(Shape { speed, first_token_s, ..shape });
    }

    fn cpu(&mut self, candidate: &Candidate, draft: &Shape, demand: Demand<'_>) {
        let supply = &self.nodes[draft.node];
        let demand = over(demand, 0);
        let sized = match self.sized(candidate, &demand, 0, None) {
            Ok(sized) => sized,
            Err(error) => {
                let why = reason(&supply.name, "engine", error.to_string());
                return self.remove(candidate, Some(draft.engine), Some(0), why);
            }
        };
        let host = planned(&sized.host);
        if host.total_bytes() > supply.host_capacity_bytes {
            let why = too_much_ram(supply, host.total_bytes());
            return self.remove(candidate, Some(draft.engine), Some(0), why);
        }
        let cpu = bare("cpu", CPU_BANDWIDTH);
        let speed = speed(&candidate.variant, &as_read(candidate, demand, &sized), &cpu).decode_tokens_per_s;
        self.demand.shapes.push(Shape { host, speed, ..draft.clone() });
    }
}

/// A shape with the bytes that sizing found.
fn sized_shape(shape: Shape, sized: &Footprint, total: &u64) -> Shape {
    let stages: Vec<PlacedMemory> = sized.per_accelerator.iter().map(planned).collect();
    let per_accelerator = stages.iter().copied().max_by_key(PlacedMemory::total_bytes).unwrap_or_default();
    let equal = stages.iter().all(|stage| *stage == per_accelerator);
    Shape {
        pipeline: shape.engine == EngineKind::LlamaCpp && shape.ranks > 1,
        claim_bytes: claim(shape.engine, per_accelerator.total_bytes(), *total),
        per_accelerator,
        stages: if equal { Vec::new() } else { stages },
        host: planned(&sized.host),
        ..shape
    }
}

/// "needs 30.9 GiB on one accelerator; the largest usable is 22.0 GiB (24.0 GiB less 1.9 GiB reserve)".
fn too_large(needed: u64, ranks: u32, tightest: &crate::placement::AcceleratorSupply) -> String {
    let on = if ranks == 1 { "one accelerator".to_owned() } else { format!("each of {ranks} accelerators") };
    format!(
        "needs {} on {on}; the largest usable is {} ({})",
        format_bytes(needed),
        format_bytes(tightest.capacity_bytes),
        tightest.explanation()
    )
}

/// The same for a pool that accelerator and host share.
fn too_large_pool(shape: &Shape, available: u64, tightest: &crate::placement::AcceleratorSupply) -> String {
    let why = if tightest.capacity_bytes / MIB == available / MIB {
        format!(" ({})", tightest.explanation())
    } else {
        String::new()
    };
    format!(
        "needs {} of the memory that accelerator and host share ({} and {}); {} can be used{why}",
        format_bytes(shape.pool_bytes()),
        format_bytes(shape.claimed() * u64::from(shape.ranks)),
        format_bytes(shape.host.total_bytes()),
        format_bytes(available),
    )
}

pub(in crate::placement) fn too_much_ram(supply: &NodeSupply, needed: u64) -> Reason {
    let text = format!(
        "needs {} of host memory; {} can be used",
        format_bytes(needed),
        format_bytes(supply.host_capacity_bytes)
    );
    counted(&supply.name, "ram", needed, supply.host_capacity_bytes, "bytes", text)
}

/// Bytes to bring to a node before a candidate can start there.
pub fn fetch_bytes(candidate: &Candidate, facts: &NodeFacts) -> u64 {
    if holds(candidate, facts) { 0 } else { files_bytes(candidate) }
}

/// Whether a node has all files of a candidate that can be brought to nodes.
pub fn holds(candidate: &Candidate, facts: &NodeFacts) -> bool {
    facts.weights.iter().any(|found| found.revision == candidate.revision && found.complete)
}

/// Bytes to bring to a node that has nothing of a candidate.
pub fn files_bytes(candidate: &Candidate) -> u64 {
    match &candidate.origin {
        Origin::OnNode { .. } => 0,
        Origin::Controller { .. } | Origin::Hub { .. } => {
            let files: u64 = candidate.files.iter().map(|f| f.size_bytes).sum();
            let known = if files > 0 { files } else { candidate.variant.download_bytes };
            // Where only an index names the weight files, their size is that of the tensors.
            let unknown = candidate.variant.files.iter().any(|f| f.size_bytes.is_none());
            if unknown { known.max(candidate.variant.tensors.total_bytes) } else { known }
        }
    }
}

/// The demand with the context whose keys and values are really read for a token: layers with a window do not go back
/// to the first one.
pub(in crate::placement) fn as_read<'a>(candidate: &Candidate, demand: Demand<'a>, sized: &Footprint) -> Demand<'a> {
    let each = kv_bytes_per_token(&candidate.variant, demand.kv_dtype).max(1);
    let all: u64 = sized.per_accelerator.iter().chain([&sized.host]).map(|part| part.kv_bytes).sum();
    let one = all / u64::from(demand.concurrency.max(1));
    Demand { context: demand.context.min(one / each), ..demand }
}

/// Decode speed on a device: its own bandwidth where the driver told, else the published one.
pub fn decode_speed(candidate: &Candidate, demand: &Demand<'_>, device: &Accelerator) -> Option<f64> {
    speed(&candidate.variant, demand, &bare(&device.name, bandwidth(device)?)).decode_tokens_per_s
}

/// Bytes per second that a device reads: its own figure where the driver told, else the published one.
pub(in crate::placement) fn bandwidth(device: &Accelerator) -> Option<u64> {
    device.bandwidth_bytes_per_s.or(specification(&device.name).and_then(|row| row.bandwidth_bytes_per_s))
}

/// Seconds until a prompt that fills the context is read, from the published arithmetic rate: context / (FLOPs x tp x 0.5
/// / (2 x active parameters)), as [`speed`] has it. Attention's own share, which grows with the square, is left out.
pub fn first_token_s(candidate: &Candidate, demand: &Demand<'_>, device: &Accelerator) -> Option<f64> {
    let rate = speed(&candidate.variant, demand, specification(&device.name)?).prefill_tokens_per_s?;
    (rate > 0.0).then(|| demand.context as f64 / rate)
}

/// A device of which only the bandwidth matters.
fn bare(name: &str, bandwidth: u64) -> AcceleratorSpec {
    AcceleratorSpec {
        name: name.to_owned(),
        memory_bytes: None,
        bandwidth_bytes_per_s: Some(bandwidth),
        fp16_flops: None,
        bf16: false,
        fp8: false,
        fp4: false,
        compute_capability: String::new(),
        source: String::new(),
    }
}
