//! The placement problem as plain values: what nodes supply, what models demand, what runs, and the objective.
//!
//! Indices are positions in the vectors of one `Problem`; `Problem::sort` brings nodes, accelerators and models
//! into the order of their names, so that equal inputs give equal problems however they were listed.

use std::collections::BTreeMap;

use super::{PlacedMemory, Reason};
use crate::base::{EngineKind, MIB, WeightFormat, format_bytes};
use crate::sizing::Calibrations;

/// Everything the solver looks at.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Problem {
    /// Nodes, sorted by name.
    pub nodes: Vec<NodeSupply>,
    /// Models, sorted by name.
    pub models: Vec<ModelDemand>,
    /// Instances that run, sorted by model, replica and id.
    pub running: Vec<Running>,
    /// The tiers after the replicas, in order; each is minimised.
    pub tail: Vec<TailTier>,
    /// How much work the solver may do.
    pub limits: Limits,
    /// What engines took where they ran.
    pub calibrations: Calibrations,
    /// Things to know that came up while the problem was built.
    pub notes: Vec<String>,
}

/// What a node can give.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeSupply {
    /// The node's name.
    pub name: String,
    /// Its labels; `node` is its name.
    pub labels: BTreeMap<String, String>,
    /// Its accelerators, in the driver's order.
    pub accelerators: Vec<AcceleratorSupply>,
    /// Host bytes that instances may use.
    pub host_capacity_bytes: u64,
    /// Bytes that may still be written where weights lie; `None` where that is unknown.
    pub disk_free_bytes: Option<u64>,
    /// Engines that can be started here.
    pub engines: Vec<EngineSupply>,
    /// Why nothing new may be placed here, as constraint word and sentence; `None` where it may.
    pub closed: Option<(String, String)>,
    /// Whether its facts are known. What runs on an unreachable node stays as it is.
    pub reachable: bool,
    /// Whether the config has this node. What runs on others is not kept.
    pub member: bool,
    /// Whether what runs here shall leave. What is protected stays all the same.
    pub drained: bool,
}

/// What an accelerator can give.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AcceleratorSupply {
    /// Its identity.
    pub uuid: String,
    /// Its maker: `nvidia`, `amd`.
    pub vendor: String,
    /// Name and total: equal kinds may run one tensor-parallel instance together.
    pub kind: String,
    /// Bytes that instances may use; 0 where it is not healthy.
    pub capacity_bytes: u64,
    /// All its bytes.
    pub total_bytes: u64,
    /// What is set aside here by the config or by default, for the words of a refusal.
    pub reserve_bytes: u64,
    /// What the driver keeps, for the same.
    pub driver_bytes: u64,
    /// What is free now, where that and not the total decides on the capacity.
    pub free_bytes: Option<u64>,
    /// What flock's own instances hold here; it counts as usable.
    pub held_bytes: u64,
    /// Whether its memory is the host's.
    pub unified: bool,
    /// Whether it is a MIG slice.
    pub mig: bool,
    /// Whether it can be used.
    pub healthy: bool,
}

/// An engine on a node.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineSupply {
    /// Which one.
    pub kind: EngineKind,
    /// Its version, where known.
    pub version: Option<String>,
    /// Absolute path of the program.
    pub program: String,
}

/// What a model asks for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ModelDemand {
    /// The model's name.
    pub name: String,
    /// Rank of its priority class.
    pub rank: u32,
    /// Whether it may displace what runs for lower ranks.
    pub preempts: bool,
    /// Fewer replicas than this are infeasible.
    pub min: u32,
    /// Wanted replicas.
    pub desired: u32,
    /// Whether what runs of it must stay where it is.
    pub protected: bool,
    /// Labels that a node must have.
    pub require: Vec<(String, String)>,
    /// Labels that a node should have, with weights.
    pub prefer: Vec<(String, String, u32)>,
    /// Label of which no two replicas may share a value.
    pub spread_by: Option<String>,
    /// Its candidates, as the checker sees them; shapes point here.
    pub candidates: Vec<CandidateFacts>,
    /// Ways to run it, one entry per node and group of equal accelerators; sorted.
    pub shapes: Vec<Shape>,
    /// Why it cannot run in other ways; sorted by node.
    pub removed: Vec<Removed>,
}

/// What the checker must know of a candidate.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CandidateFacts {
    /// What plans call it.
    pub label: String,
    /// Quality rank, 0 for the best, or the position in the config's own list.
    pub quality: u32,
    /// Legal numbers of ranks per engine.
    pub legal_ranks: BTreeMap<EngineKind, Vec<u32>>,
    /// Tokens per request.
    pub context: u64,
    /// Nodes that have the files, where only those can run it.
    pub only_on: Option<Vec<String>>,
    /// How the weights lie on disk, for the words of a refusal.
    pub format: Option<WeightFormat>,
}

/// One way to run a model on one group of equal accelerators of one node.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    /// Index of the candidate.
    pub candidate: usize,
    /// Engine.
    pub engine: EngineKind,
    /// Its position among the engines that the model names.
    pub preference: u32,
    /// Its version, where known.
    pub engine_version: Option<String>,
    /// Its program on the node.
    pub program: String,
    /// Index of the node.
    pub node: usize,
    /// Accelerators of the node that it may take, all of one kind; empty on CPU.
    pub group: Vec<usize>,
    /// How many of them one replica takes; 0 on CPU.
    pub ranks: u32,
    /// Whether the ranks are pipeline stages (layer split) and not tensor-parallel.
    pub pipeline: bool,
    /// Bytes on each accelerator it takes; of pipeline stages the largest.
    pub per_accelerator: PlacedMemory,
    /// Bytes of each stage, where they differ.
    pub stages: Vec<PlacedMemory>,
    /// Bytes that the engine claims of each accelerator, where that is more than what is planned: vLLM's share
    /// of the total is rounded up.
    pub claim_bytes: u64,
    /// Bytes of host memory.
    pub host: PlacedMemory,
    /// Predicted tokens per second of one request; `None` where bandwidth is unknown.
    pub speed: Option<f64>,
    /// Bytes to bring to the node first.
    pub fetch_bytes: u64,
    /// Whether only an instance that already runs so may use it (a node on hold).
    pub keep_only: bool,
    /// What could not be checked of the device, for a warning where the shape is taken.
    pub unchecked: Option<String>,
}

/// A way to run a model that was ruled out before solving.
#[derive(Debug, Clone, PartialEq)]
pub struct Removed {
    /// Candidate label; `None` where the reason holds for all.
    pub variant: Option<String>,
    /// Engine, where the reason is about one.
    pub engine: Option<EngineKind>,
    /// Ranks it would have had, where that matters.
    pub ranks: Option<u32>,
    /// Bytes it would have needed on each accelerator (or of the host).
    pub needed_bytes: u64,
    /// The same by what they are for, of accelerators; `None` where the reason is another one.
    pub planned: Option<PlacedMemory>,
    /// The reason.
    pub reason: Reason,
}

/// An instance that runs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Running {
    /// Model name.
    pub model: String,
    /// Replica number.
    pub replica: u32,
    /// Instance id.
    pub instance: String,
    /// Node name.
    pub node: String,
    /// Accelerators in rank order.
    pub accelerators: Vec<String>,
    /// Candidate label.
    pub variant: String,
    /// Engine.
    pub engine: Option<EngineKind>,
    /// How long its last load took.
    pub load_ms: Option<u64>,
    /// Live sessions on it.
    pub live_sessions: u32,
    /// Whether it is told to run and its engine does not.
    pub failed: bool,
}

/// What the objective may weigh. Every term is a cost of at least 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Term {
    /// Quality ranks below the model's best candidate, per replica ([`ModelDemand::loss`]).
    Quality,
    /// Instances that lose their place, weighted by load time and live sessions: 1 to 3 each.
    Stability,
    /// 0 to 1 per replica: how far the predicted speed stays below a comfortable one.
    Latency,
    /// 0 to 1 per replica: bytes to bring; half of it at 64 GiB. Bounded, so that no size makes a download weigh more
    /// than a better variant.
    Locality,
    /// Accelerators taken, each as the share of the largest one's memory.
    Cost,
    /// The busiest node's share of memory in use.
    Balance,
    /// Weights of preferences that are not met, per replica.
    Preference,
}

/// One tier after the replicas: a weighted sum that is minimised.
#[derive(Debug, Clone, PartialEq)]
pub struct TailTier {
    /// Its name in reports.
    pub name: String,
    /// Terms with their weights.
    pub terms: Vec<(Term, f64)>,
}

/// How much work the solver may do. Counted, so that the answer is the same on any machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Branch-and-bound nodes per tier.
    pub nodes: i32,
    /// Relative gap that is accepted in the weighted tiers.
    pub gap: f64,
    /// Columns beyond which a problem counts as large.
    pub large: usize,
    /// Relative gap that is accepted in the weighted tiers of a large problem.
    pub large_gap: f64,
    /// Seconds per tier after which the solver is aborted; only then the answer depends on the machine.
    pub abort_s: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { nodes: 2_000, gap: 1e-6, large: 2_500, large_gap: 5e-3, abort_s: 120.0 }
    }
}

/// Decode speed, in tokens per second, below which people do not wait for an answer.
const CRAWL: f64 = 5.0;
/// Ranks of quality that a processor which crawls is worse than the best: more than there are.
const CRAWL_RANKS: u32 = 20;

/// Decode speed, in tokens per second, beyond which more speed hardly matters: faster than people read. From there
/// on the fewest accelerators win.
pub const COMFORTABLE_SPEED: f64 = 20.0;

impl Shape {
    /// Accelerators one replica takes.
    pub fn width(&self) -> usize {
        self.ranks as usize
    }

    /// Bytes that are counted on each accelerator.
    pub fn claimed(&self) -> u64 {
        self.per_accelerator.total_bytes().max(self.claim_bytes)
    }

    /// Bytes that one replica takes of a pool that accelerators and host share, in whole MiB as they are counted.
    pub fn pool_bytes(&self) -> u64 {
        pool_bytes(self.claimed(), self.ranks, self.host.total_bytes())
    }

    /// 0 to 1: what the bytes to bring weigh; half of it at 64 GiB.
    pub fn distance(&self) -> f64 {
        self.fetch_bytes as f64 / (self.fetch_bytes as f64 + 64.0 * 1024.0 * MIB as f64)
    }

    /// 0 to 1: how far the speed stays below a comfortable one. Nearly all of it is gone at `COMFORTABLE_SPEED`,
    /// so that a small model does not take a large accelerator, or many, only to be faster than anyone reads.
    pub fn slowness(&self) -> f64 {
        let Some(speed) = self.speed.filter(|s| s.is_finite() && *s >= 0.0) else { return 0.5 };
        0.9 * (1.0 - speed / COMFORTABLE_SPEED).max(0.0) + 0.1 * COMFORTABLE_SPEED / (COMFORTABLE_SPEED + speed)
    }
}

/// Bytes of so many ranks and of the host in one pool; every part counts in whole MiB.
pub fn pool_bytes(each: u64, ranks: u32, host: u64) -> u64 {
    each.div_ceil(MIB) * MIB * u64::from(ranks) + host.div_ceil(MIB) * MIB
}

impl ModelDemand {
    /// Quality of a shape: ranks below the best candidate.
    pub fn deficit(&self, shape: &Shape) -> u32 {
        let best = self.candidates.iter().map(|c| c.quality).min().unwrap_or(0);
        self.candidates.get(shape.candidate).map_or(0, |c| c.quality - best)
    }

    /// What the objective counts as quality: the deficit, and that a large model which crawls on a processor is no
    /// better than a lesser variant on an accelerator.
    pub fn loss(&self, shape: &Shape) -> u32 {
        let crawls = shape.ranks == 0 && shape.speed.is_some_and(|speed| speed < CRAWL);
        self.deficit(shape) + if crawls { CRAWL_RANKS } else { 0 }
    }

    /// Weights of the preferences that a node does not meet.
    pub fn unmet(&self, node: &NodeSupply) -> u32 {
        self.prefer.iter().filter(|(label, is, _)| node.labels.get(label) != Some(is)).map(|(_, _, w)| *w).sum()
    }
}

impl Running {
    /// What losing its place costs, 1 to 3.
    pub fn weight(&self) -> f64 {
        let minutes = self.load_ms.unwrap_or(0) as f64 / 60_000.0;
        1.0 + minutes.min(10.0) / 10.0 + f64::from(self.live_sessions.min(10)) / 10.0
    }
}

impl AcceleratorSupply {
    /// Where its capacity comes from: `24.0 GiB less 1.9 GiB reserve`, or `12.0 GiB free now, less 256.0 MiB`.
    pub fn explanation(&self) -> String {
        match self.free_bytes {
            Some(free) => {
                let held = match self.held_bytes {
                    0 => String::new(),
                    held => format!(" and {} that flock holds", format_bytes(held)),
                };
                let less = (free + self.held_bytes).saturating_sub(self.capacity_bytes);
                format!("{} free now{held}, less {}", format_bytes(free), format_bytes(less))
            }
            None => {
                let driver = match self.driver_bytes {
                    0 => String::new(),
                    bytes => format!(" and {} that the driver keeps", format_bytes(bytes)),
                };
                let total = format_bytes(self.total_bytes);
                format!("{total} less {} reserve{driver}", format_bytes(self.reserve_bytes))
            }
        }
    }
}

impl NodeSupply {
    /// Whether a group of accelerators shares the host's memory.
    pub fn unified(&self, group: &[usize]) -> bool {
        group.iter().any(|position| self.accelerators[*position].unified)
    }

    /// An accelerator's position by identity.
    pub fn position(&self, uuid: &str) -> Option<usize> {
        self.accelerators.iter().position(|a| a.uuid == uuid)
    }
}

impl Problem {
    /// A node's position by name.
    pub fn node(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|n| n.name == name)
    }

    /// A model's position by name.
    pub fn model(&self, name: &str) -> Option<usize> {
        self.models.iter().position(|m| m.name == name)
    }

    /// The shape in which an instance runs, where its model can still run so: same candidate, engine and number
    /// of accelerators, on the very accelerators it has.
    pub fn shape_of(&self, running: &Running) -> Option<(usize, usize)> {
        let model = self.model(&running.model)?;
        let node = self.node(&running.node)?;
        let positions: Option<Vec<usize>> =
            running.accelerators.iter().map(|uuid| self.nodes[node].position(uuid)).collect();
        let positions = positions?;
        let demand = &self.models[model];
        let shape = demand.shapes.iter().position(|s| {
            s.node == node
                && Some(s.engine) == running.engine
                && s.width() == positions.len()
                && demand.candidates.get(s.candidate).is_some_and(|c| c.label == running.variant)
                && positions.iter().all(|p| s.group.contains(p))
        })?;
        Some((model, shape))
    }

    /// Sorts nodes, models, shapes and running instances, and renumbers the nodes that shapes name.
    pub fn sort(&mut self) {
        let mut order: Vec<usize> = (0..self.nodes.len()).collect();
        order.sort_by(|a, b| self.nodes[*a].name.cmp(&self.nodes[*b].name));
        let mut position = vec![0; order.len()];
        for (new, old) in order.iter().enumerate() {
            position[*old] = new;
        }
        self.nodes.sort_by(|a, b| a.name.cmp(&b.name));
        for model in &mut self.models {
            for shape in &mut model.shapes {
                shape.node = position[shape.node];
            }
            model.shapes.sort_by(|a, b| key(a).cmp(&key(b)));
            model.removed.sort_by(|a, b| {
                (&a.reason.node, &a.variant, a.engine, a.ranks, &a.reason.text).cmp(&(
                    &b.reason.node,
                    &b.variant,
                    b.engine,
                    b.ranks,
                    &b.reason.text,
                ))
            });
        }
        self.models.sort_by(|a, b| a.name.cmp(&b.name));
        self.running.sort_by(|a, b| (&a.model, a.replica, &a.instance).cmp(&(&b.model, b.replica, &b.instance)));
        self.notes.sort();
        self.notes.dedup();
    }
}

fn key(shape: &Shape) -> (usize, usize, u32, EngineKind, &[usize], u32, bool) {
    (shape.candidate, shape.node, shape.preference, shape.engine, &shape.group, shape.ranks, shape.pipeline)
}
