//! One generated cluster from parsed inputs to a plan: times, sizes, gaps, what the baselines reach, and what a change
//! costs once it runs.

use std::cell::Cell;
use std::time::{Duration, Instant};

use flock::base::Digest;
use flock::config::Desired;
use flock::inventory::Inventory;
use flock::placement::{self, Candidates, Event, Options, Placement, Problem, Tier, place_watched};
use flock::plan::{self, Limits, ObservedSpecs, Plan, PlanInput};
use serde::{Deserialize, Serialize};

use crate::applied::applied;
use crate::baselines::{self, Worth};
use crate::generate::{Inputs, Size, generate};

/// All that is measured of one cluster.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Figures {
    /// Accelerators, nodes, models and replicas.
    pub accelerators: usize,
    pub nodes: usize,
    pub kinds: usize,
    pub replicas: usize,
    pub seed: u64,
    pub threads: usize,
    /// Bytes of the best variants over usable bytes.
    pub load: f64,
    /// Shapes of all models.
    pub shapes: usize,
    /// Columns and rows of the program in the end.
    pub columns: usize,
    pub rows: usize,
    /// Milliseconds.
    pub build_ms: f64,
    /// Until there is a first complete answer, from the inputs.
    pub incumbent_ms: f64,
    pub place_ms: f64,
    pub plan_ms: f64,
    pub total_ms: f64,
    pub check_ms: f64,
    pub tiers: Vec<Tier>,
    pub status: String,
    pub deterministic: bool,
    pub placed: usize,
    pub unplaced: u32,
    pub steps: usize,
    /// What ours and the baselines are worth.
    pub ours: Worth,
    pub peer: Worth,
    pub decreasing: Worth,
    /// The same inputs again, once all of it runs: steps (there must be none) and milliseconds.
    pub again: Again,
    /// A node less, and a model more.
    pub node_lost: Again,
    pub model_added: Again,
    /// The most memory that the process ever had.
    pub peak_bytes: u64,
    /// Of the placement and the plan.
    pub digest: String,
    /// What the checkers found; nothing, unless flock has a fault.
    pub faults: Vec<String>,
}

/// Planning again.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Again {
    pub ms: f64,
    pub steps: usize,
    pub gap: f64,
}

/// What a plan is made from.
#[derive(Clone, Copy)]
struct From<'a> {
    desired: &'a Desired,
    inventory: &'a Inventory,
    observed: &'a ObservedSpecs,
    candidates: &'a Candidates,
}

struct Made {
    problem: Problem,
    placement: Placement,
    plan: Plan,
    seen: Seen,
    place: Duration,
    planning: Duration,
}

/// What the solver told on its way.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    columns: usize,
    rows: usize,
    incumbent: Duration,
}

impl Made {
    fn total(&self) -> Duration {
        self.place + self.planning
    }
}

fn make(from: From<'_>, digest: &Digest, threads: usize) -> Made {
    let options = options(threads);
    let begin = Instant::now();
    let seen = Cell::new(Seen::default());
    let watch = |event: Event| {
        let mut now = seen.get();
        match event {
            Event::Columns { columns, rows } => (now.columns, now.rows) = (columns, rows),
            Event::Incumbent if now.incumbent.is_zero() => now.incumbent = begin.elapsed(),
            Event::Incumbent => {}
        }
        seen.set(now);
    };
    let (placement, solution) = place_watched(from.desired, from.inventory, from.candidates, &options, &watch);
    let (place, problem, seen) = (begin.elapsed(), solution.problem, seen.get());
    let begin = Instant::now();
    let plan = plan::plan(&PlanInput {
        desired: from.desired,
        config_digest: digest.to_string(),
        commit: None,
        dirty: false,
        inventory: from.inventory,
        observed: from.observed,
        candidates: from.candidates,
        placement: &placement,
        hub: "https://hub.example",
        egress: placement.egress.clone(),
        limits: Limits::default(),
        drain: Default::default(),
        pauses: Vec::new(),
        moment: plan::Moment::default(),
        warnings: Vec::new(),
    });
    Made { problem, placement, plan, seen, place, planning: begin.elapsed() }
}

fn options(threads: usize) -> Options {
    let mut options = Options::default();
    options.limits.threads = threads;
    options
}

/// What two independent checkers have against it.
fn faults(made: &Made, from: From<'_>) -> Vec<String> {
    let mut found = placement::check(&made.problem, &made.placement);
    found.extend(plan::check(&made.plan, from.inventory, from.observed));
    found
}

/// Measures one cluster.
pub fn measure(size: &Size, threads: usize) -> Figures {
    let inputs = generate(size);
    let nothing = inputs.inventory.nodes.iter().map(|n| (n.name.clone(), Vec::new())).collect();
    let fresh = From {
        desired: &inputs.desired,
        inventory: &inputs.inventory,
        observed: &nothing,
        candidates: &inputs.candidates,
    };
    let begin = Instant::now();
    let built = placement::build(fresh.desired, fresh.inventory, fresh.candidates, &options(threads));
    let build = begin.elapsed();
    let made = make(fresh, &inputs.digest, threads);
    let begin = Instant::now();
    let mut wrong = faults(&made, fresh);
    let check = begin.elapsed();
    let (inventory, observed) = applied(&inputs.inventory, &made.plan);
    let runs = From { inventory: &inventory, observed: &observed, ..fresh };
    let mut again = |from: From<'_>, word: &str| {
        let made = make(from, &inputs.digest, threads);
        wrong.extend(faults(&made, from).into_iter().map(|fault| format!("{word}: {fault}")));
        Again { ms: ms(made.total()), steps: made.plan.steps.len(), gap: made.placement.solver.gap }
    };
    let same = again(runs, "again");
    let (desired, without) = without_a_node(&inputs, &inventory);
    let node_lost = again(From { desired: &desired, inventory: &without, ..runs }, "a node less");
    let (desired, candidates) = with_a_model(&inputs);
    let model_added = again(From { desired: &desired, candidates: &candidates, ..runs }, "a model more");
    if same.steps > 0 {
        wrong.push(format!("the running placement is planned anew: {} steps", same.steps));
    }
    let problem = &made.problem;
    let order: Vec<usize> = (0..problem.models.len()).collect();
    let need = |model: usize, candidate: usize, ranks: u32, _: &str| {
        let found = inputs.candidates.get(&problem.models[model].name)?.as_ref().ok()?.get(candidate)?;
        Some(baselines::rule_of_thumb(found.variant.tensors.total_bytes, ranks))
    };
    Figures {
        accelerators: size.accelerators,
        nodes: inputs.inventory.nodes.len(),
        kinds: inputs.desired.models.len(),
        replicas: inputs.desired.models.values().map(|m| m.replicas.max as usize).sum(),
        seed: size.seed,
        threads,
        load: inputs.load,
        shapes: built.models.iter().map(|m| m.shapes.len()).sum(),
        columns: made.seen.columns,
        rows: made.seen.rows,
        build_ms: ms(build),
        incumbent_ms: ms(made.seen.incumbent),
        place_ms: ms(made.place),
        plan_ms: ms(made.planning),
        total_ms: ms(made.total()),
        check_ms: ms(check),
        tiers: made.placement.solver.tiers.clone(),
        status: made.placement.solver.status.clone(),
        deterministic: made.placement.solver.deterministic,
        placed: made.placement.instances.len(),
        unplaced: made.placement.unplaced.iter().map(|u| u.replicas).sum(),
        steps: made.plan.steps.len(),
        ours: baselines::worth_of(problem, &made.placement),
        peer: baselines::worth(problem, &baselines::peer(problem, &order, &need)),
        decreasing: baselines::worth(problem, &baselines::decreasing(problem)),
        again: same,
        node_lost,
        model_added,
        peak_bytes: peak_bytes(),
        digest: Digest::of_json(&made.plan).to_string(),
        faults: wrong,
    }
}

/// The cluster after the node with the most instances died: it is neither in the config nor known.
fn without_a_node(inputs: &Inputs, inventory: &Inventory) -> (Desired, Inventory) {
    let fullest = inventory.nodes.iter().max_by_key(|n| (n.instances.len(), std::cmp::Reverse(&n.name)));
    let name = fullest.map(|n| n.name.clone()).unwrap_or_default();
    let (mut desired, mut inventory) = (inputs.desired.clone(), inventory.clone());
    desired.nodes.remove(&name);
    inventory.nodes.retain(|n| n.name != name);
    inventory.links.retain(|l| l.from != name && l.to != name);
    (desired, inventory)
}

/// The cluster with one more model: the largest production one, under another name, once.
fn with_a_model(inputs: &Inputs) -> (Desired, Candidates) {
    let (mut desired, mut candidates) = (inputs.desired.clone(), inputs.candidates.clone());
    let bytes = |name: &str| {
        let first = candidates.get(name).and_then(|c| c.as_ref().ok()).and_then(|c| c.first());
        first.map_or(0, |c| c.variant.tensors.total_bytes)
    };
    let best = desired.models.values().max_by_key(|m| (m.priority.rank, bytes(&m.name.value)));
    let Some(mut model) = best.cloned() else { return (desired, candidates) };
    let own = candidates.get(&model.name.value).cloned();
    "added".clone_into(&mut model.name.value);
    (model.replicas.min, model.replicas.max) = (1, 1);
    candidates.extend(own.map(|own| ("added".to_owned(), own)));
    desired.models.insert("added".to_owned(), model);
    (desired, candidates)
}

fn ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e4).round() / 10.0
}

/// `VmHWM` of this process.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: Option<u64> = line.and_then(|line| line.trim().trim_end_matches(" kB").trim().parse().ok());
    kib.unwrap_or(0) * 1024
}
