//! The placement problem as plain values: what nodes supply, what models demand, what runs, and the objective.
//!
//! Indices are positions in the vectors of one `Problem`; `Problem::sort` brings nodes, accelerators and models
//! into the order of their names, so that equal inputs give equal problems however they were listed.

// Size: the vocabulary of the room, nearly all of it documented fields.

use std::collections::{BTreeMap, BTreeSet};

use crate::base::{EngineKind, MIB, WeightFormat, format_bytes};
use crate::placement::{PlacedMemory, Reason};
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
    /// By node: the nodes that a shape of this one stands for, itself first, the others ascending; they are equal in all
    /// that the models can see. A node that another one stands for has none, and no shapes. Empty in a small cluster,
    /// where every node is looked at by itself.
    pub alike: Vec<Vec<usize>>,
    /// What models may take together.
    pub quotas: Vec<QuotaRule>,
    /// Losses of spot nodes at once that should not take a model below its minimum: between the minimum tiers and the
    /// desired ones, by rank, the sum over models with a minimum of `min(minimum, copies - worst losses)` is at its
    /// most, where the worst losses are the copies on the so many spot nodes that have most of the model's, pinned ones
    /// counted; a copy over several spot nodes counts as lost. Nothing that runs moves for it. 0 is no hedge.
    pub spot_hedge: u32,
    /// What models and providers send to each other.
    pub traffic: Vec<Traffic>,
    /// Ways out to providers that need an egress node.
    pub ways_out: Vec<WayOut>,
    /// Latency between nodes.
    pub distances: Distances,
    /// The least gain that is worth a move, as a share of what the objective counts of the models that move.
    pub threshold: f64,
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
    /// Revisions of the weights that are here, complete.
    pub weights: BTreeSet<String>,
    /// Engines that can be started here.
    pub engines: Vec<EngineSupply>,
    /// Why nothing new may be placed here, as constraint word and sentence; `None` where it may.
    pub closed: Option<(String, String)>,
    /// Ports for instances; `None` where they are not looked at.
    pub ports: Option<PortSupply>,
    /// Whether its facts are known. What runs on an unreachable node stays as it is.
    pub reachable: bool,
    /// Whether the config has this node. What runs on others is not kept.
    pub member: bool,
    /// Whether what runs here shall leave. What is protected stays all the same.
    pub drained: bool,
    /// What an hour costs, in the cluster's currency; `None` where that is unknown.
    pub price_per_hour: Option<f64>,
    /// Whether it may be taken away at any time.
    pub spot: bool,
    /// Where it stands.
    pub site: Option<String>,
    /// The IPv4 address at which other nodes reach it, where the config says one.
    pub address: Option<String>,
}

/// What a node can give of its range of ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortSupply {
    /// The first of the range.
    pub low: u16,
    /// The last of it.
    pub high: u16,
    /// Ports of it that nobody listens on and no instance has.
    pub free: u32,
    /// Of those, rows of as many side by side as an engine wants for itself.
    pub rows: u32,
}

/// Ports of an instance within its node's range.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PortsHeld {
    /// How many.
    pub all: u32,
    /// Whether there is a row among them.
    pub row: bool,
}

/// What the models of a quota may take together, over all copies that are not pinned: at most what the limit leaves beside
/// the pinned ones, or what protected instances hold, whichever is more (`quota.rs` has the whole rule).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QuotaRule {
    /// Its name, for words: `"nlp" (policies/lab.kdl:4)`.
    pub name: String,
    /// Names of the models.
    pub models: Vec<String>,
    /// Accelerators in all; one that two instances share counts for each of them.
    pub accelerators: Option<u32>,
    /// Accelerator memory in all, in bytes as planned; a copy's are rounded up to whole MiB and the limit down.
    pub vram_bytes: Option<u64>,
}

/// What two ends send to each other.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Traffic {
    /// A model.
    pub from: String,
    /// A model, or a node (the way out to a provider).
    pub to: End,
    /// Bytes per turn.
    pub bytes_per_turn: u64,
    /// How much it counts beside other traffic.
    pub weight: f64,
    /// Longest way between them, in microseconds; a hard limit.
    pub max_latency_us: Option<u64>,
    /// Who wants it, for words: `workflow vision: viewer to planner`.
    pub because: String,
}

/// Where traffic goes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// To a model, wherever it runs.
    Model(String),
    /// To the egress node of this way out ([`WayOut::key`]), wherever that will be.
    Out(String),
    /// To this node.
    Node(String),
}

impl Default for End {
    fn default() -> Self {
        Self::Model(String::new())
    }
}

/// A way out to a provider: of one agent, or of a provider's model that no agent uses.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WayOut {
    /// The provider's model, by its name in the config.
    pub model: String,
    /// The agent; `None` where no agent uses the model.
    pub agent: Option<String>,
    /// `host:port`.
    pub endpoint: String,
    /// Longest time to connect, in microseconds; a hard limit.
    pub max_latency_us: Option<u64>,
    /// The nodes of the config, by name.
    pub via: Vec<Via>,
    /// The node that the last apply chose.
    pub previous: Option<String>,
    /// How much better another node must be, as a share of what is expected of the previous one.
    pub threshold: f64,
}

/// A node as an egress node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Via {
    /// The node.
    pub node: String,
    /// Measured time to connect, in microseconds.
    pub connect_us: Option<u64>,
    /// Why it could not connect, where it tried.
    pub problem: Option<String>,
    /// Why it may not be taken, as constraint word and sentence.
    pub closed: Option<(String, String)>,
    /// Whether it is the controller's own machine.
    pub local: bool,
}

/// What is known of the ways between nodes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Distances {
    /// Round trip in microseconds and throughput in bytes per second, by the two nodes' names in ascending order.
    pub between: BTreeMap<(String, String), (u64, Option<u64>)>,
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
    /// Absolute path of its worker, which holds layers for an instance on another node (llama.cpp).
    pub worker: Option<String>,
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
    /// Whether its replicas should share few nodes.
    pub pack: bool,
    /// Whether some of its layers may be in host memory.
    pub offload: bool,
    /// Where policies deny it, for the checker; only what is protected and runs there stays.
    pub denied: Vec<DeniedPlace>,
    /// Its candidates, as the checker sees them; shapes point here.
    pub candidates: Vec<CandidateFacts>,
    /// Ways to run it, one entry per node and group of equal accelerators; sorted.
    pub shapes: Vec<Shape>,
    /// Why it cannot run in other ways; sorted by node.
    pub removed: Vec<Removed>,
}

/// A place that a policy denies to a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeniedPlace {
    /// The node's name.
    pub node: String,
    /// Index of the candidate.
    pub candidate: usize,
    /// The engine that would serve it.
    pub engine: EngineKind,
    /// The policy, as a sentence.
    pub text: String,
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
    /// Repeating layers; 0 where that is not known.
    pub layers: u32,
    /// Revision of the weights; empty where the files are on some nodes only.
    pub revision: String,
    /// Nodes that have the files, where only those can run it.
    pub only_on: Option<Vec<String>>,
    /// How the weights lie on disk, for the words of a refusal.
    pub format: Option<WeightFormat>,
}

/// One way to run a model: on one group of equal accelerators of one node, and on what its further parts take.
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
    /// Predicted seconds until the first token of a prompt that fills the context; `None` where the accelerator's
    /// arithmetic rate is unknown.
    pub first_token_s: Option<f64>,
    /// Bytes to bring to the node first. Where it stands for several: to one of them that has no such weights.
    pub fetch_bytes: u64,
    /// Whether only an instance that already runs so may use it (a node on hold).
    pub keep_only: bool,
    /// What keeps it from being started anew, where what runs so keeps its place all the same: its facts have changed and
    /// not what the config asks for. Then only an instance that already runs so may use it.
    pub held: Option<String>,
    /// What could not be checked of the device, for a warning where the shape is taken.
    pub unchecked: Option<String>,
    /// Accelerators that it takes besides: of another kind, or of another node.
    pub further: Vec<Part>,
    /// Layers of each stage, those of the further parts last; empty where the engine shares them out evenly itself.
    /// Where they are fewer in all than the model has, the others are in host memory.
    pub layers: Vec<u32>,
    /// Whether the vision projector is loaded beside the layers of its first accelerator.
    pub vision: bool,
}

/// Accelerators of another kind or node that a shape takes besides its own.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Part {
    /// Index of the node.
    pub node: usize,
    /// Accelerators of the node that it may take, all of one kind.
    pub group: Vec<usize>,
    /// How many of them one replica takes.
    pub ranks: u32,
    /// Bytes on each.
    pub per_accelerator: PlacedMemory,
    /// Bytes that the engine claims of each, where that is more than what is planned.
    pub claim_bytes: u64,
    /// Bytes of host memory on its node; 0 where that is the shape's own node.
    pub host: PlacedMemory,
    /// What of the model lies there, where it is not layers.
    pub role: Option<Role>,
}

/// A part of a model beside its layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The vision projector.
    Vision,
}

/// What a shape takes of one group of equal accelerators.
#[derive(Debug, Clone, Copy)]
pub struct Span<'s> {
    /// Index of the node.
    pub node: usize,
    /// Accelerators that it may take.
    pub group: &'s [usize],
    /// How many of them one replica takes.
    pub ranks: usize,
    /// Bytes that are counted on each.
    pub claimed: u64,
    /// Bytes of host memory on the node.
    pub host_bytes: u64,
}

impl Part {
    /// Bytes that are counted on each accelerator.
    pub fn claimed(&self) -> u64 {
        self.per_accelerator.total_bytes().max(self.claim_bytes)
    }
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
    /// Layers of each accelerator, where they were told to it.
    pub layers: Vec<u32>,
    /// What works for it on other nodes: node, and accelerators in rank order.
    pub further: Vec<(String, Vec<String>)>,
    /// Its ports.
    pub ports: PortsHeld,
}

/// What the objective may weigh. Every term is a cost of at least 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Term {
    /// Quality ranks below the model's best candidate, per replica ([`ModelDemand::loss`]).
    Quality,
    /// Instances that lose their place, weighted by load time and live sessions: 1 to 3 each.
    Stability,
    /// 0 to 1.1 per replica: how far the predicted decode speed stays below a comfortable one, and how long a full prompt
    /// is read ([`Shape::slowness`]).
    Latency,
    /// 0 to 1 per pair, times the traffic's weight: the time of one turn over the measured way from a replica to the
    /// nearest one of the other end; half of it at 100 ms ([`crate::placement::Ways`]).
    Traffic,
    /// 0 to 1 per replica: bytes to bring; half of it at 64 GiB. Bounded, so that no size makes a download weigh more
    /// than a better variant.
    Locality,
    /// What the accelerators taken cost, see `price.rs`: the cluster's currency per hour where any node has a price, else
    /// each as the share of the largest one's memory.
    Cost,
    /// The busiest node's share of memory in use.
    Balance,
    /// Weights of preferences that are not met, per replica.
    Preference,
    /// Nodes beyond the first that a model with `pack` is on.
    Pack,
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
    /// Accelerators up to which every one is looked at by itself; beyond, equal ones are counted.
    pub exact_accelerators: usize,
    /// Threads that independent parts of a problem are shared out to. The answer is the same with any number.
    pub threads: usize,
    /// Seconds per tier after which the solver is aborted; only then the answer depends on the machine.
    pub abort_s: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            nodes: 2_000,
            gap: 1e-6,
            large: 2_500,
            large_gap: 5e-3,
            exact_accelerators: 24,
            threads: 1,
            abort_s: 120.0,
        }
    }
}

/// Decode speed, in tokens per second, below which people do not wait for an answer.
const CRAWL: f64 = 5.0;
/// Ranks of quality that a processor which crawls is worse than the best: more than there are.
const CRAWL_RANKS: u32 = 20;

/// Seconds until the first token at which half of what waiting weighs is reached.
const PATIENCE_S: f64 = 10.0;

/// Decode speed, in tokens per second, beyond which more speed hardly matters: faster than people read. From there
/// on the fewest accelerators win.
pub const COMFORTABLE_SPEED: f64 = 20.0;

impl Shape {
    /// A way on a node that takes nothing of it yet.
    pub fn on(node: usize, candidate: usize, engine: EngineKind, program: &str) -> Self {
        Self {
            candidate,
            engine,
            preference: 0,
            engine_version: None,
            program: program.to_owned(),
            node,
            group: Vec::new(),
            ranks: 0,
            pipeline: false,
            per_accelerator: PlacedMemory::default(),
            stages: Vec::new(),
            claim_bytes: 0,
            host: PlacedMemory::default(),
            speed: None,
            first_token_s: None,
            fetch_bytes: 0,
            keep_only: false,
            held: None,
            unchecked: None,
            further: Vec::new(),
            layers: Vec::new(),
            vision: false,
        }
    }

    /// Accelerators one replica takes of its own group; those of further parts come besides.
    pub fn width(&self) -> usize {
        self.ranks as usize
    }

    /// Its own accelerators and those of its further parts, in rank order.
    pub fn spans(&self) -> impl Iterator<Item = Span<'_>> {
        let own = Span {
            node: self.node,
            group: &self.group,
            ranks: self.ranks as usize,
            claimed: self.claimed(),
            host_bytes: self.host.total_bytes(),
        };
        let further = self.further.iter().map(|part| Span {
            node: part.node,
            group: &part.group,
            ranks: part.ranks as usize,
            claimed: part.claimed(),
            host_bytes: part.host.total_bytes(),
        });
        std::iter::once(own).chain(further)
    }

    /// Whether these positions of its node, in rank order, are all that a replica takes.
    pub fn takes(&self, positions: &[usize]) -> bool {
        let mut left = positions;
        for span in self.spans() {
            let Some((own, rest)) = left.split_at_checked(span.ranks) else { return false };
            if span.node != self.node || !own.iter().all(|position| span.group.contains(position)) {
                return false;
            }
            left = rest;
        }
        left.is_empty()
    }

    /// Whether these positions of its node, and those of further nodes in the order of its parts, are all that a replica
    /// takes.
    pub fn takes_with(&self, own: &[usize], further: &[(usize, Vec<usize>)]) -> bool {
        let taken = std::iter::once((self.node, own)).chain(further.iter().map(|(node, on)| (*node, on.as_slice())));
        let on = |(span, (node, on)): (Span<'_>, (usize, &[usize]))| {
            span.node == node && on.len() == span.ranks && on.iter().all(|position| span.group.contains(position))
        };
        further.len() == self.further.len() && self.spans().zip(taken).all(on)
    }

    /// Whether some of it is on another node than its own.
    pub fn spans_nodes(&self) -> bool {
        self.further.iter().any(|part| part.node != self.node)
    }

    /// Tensor-parallel ranks of a stage, and pipeline stages.
    pub fn split(&self) -> (u32, u32) {
        let apart = self.further.iter().filter(|part| part.role.is_none()).map(|part| part.ranks).sum::<u32>();
        let ranks = (self.ranks + apart).max(1);
        match (self.pipeline, self.layers.len() as u32) {
            (false, _) => (ranks, 1),
            (true, 0) => (1, ranks),
            (true, stages) => ((ranks / stages).max(1), stages),
        }
    }

    /// Accelerators of all parts that one replica takes.
    pub fn all_ranks(&self) -> usize {
        self.spans().map(|span| span.ranks).sum()
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

    /// 0 to 1.1: how far the decode speed stays below a comfortable one (up to 1), and how long a full prompt is read (up
    /// to 0.1). Nearly all of the first is gone at `COMFORTABLE_SPEED`, so that a small model does not take a large
    /// accelerator, or many, only to be faster than anyone reads. Of the second, half is reached at `PATIENCE_S`: it
    /// decides between accelerators of equal bandwidth, and weighs little beside a larger card.
    pub fn slowness(&self) -> f64 {
        let known = |figure: Option<f64>| figure.filter(|figure| figure.is_finite() && *figure >= 0.0);
        let decode = known(self.speed).map_or(0.5, |speed| {
            0.9 * (1.0 - speed / COMFORTABLE_SPEED).max(0.0) + 0.1 * COMFORTABLE_SPEED / (COMFORTABLE_SPEED + speed)
        });
        decode + 0.1 * known(self.first_token_s).map_or(0.5, |seconds| seconds / (seconds + PATIENCE_S))
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

    /// Layers of a shape that are in host memory although it has accelerators.
    pub fn host_layers(&self, shape: &Shape) -> u32 {
        let held: u32 = shape.layers.iter().sum();
        let all = self.candidates.get(shape.candidate).map_or(0, |candidate| candidate.layers);
        if held == 0 { 0 } else { all.saturating_sub(held) }
    }

    /// What the objective counts as quality: the deficit, and that a large model which crawls on a processor, whole or
    /// with some of its layers, is no better than a lesser variant on an accelerator.
    pub fn loss(&self, shape: &Shape) -> u32 {
        let worker = shape.further.iter().any(|part| part.ranks == 0);
        let on_host = shape.ranks == 0 || worker || self.host_layers(shape) > 0;
        let crawls = on_host && shape.speed.is_some_and(|speed| speed < CRAWL);
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

/// Accelerators of all these nodes.
pub fn accelerators(nodes: &[NodeSupply]) -> usize {
    nodes.iter().map(|node| node.accelerators.len()).sum()
}

impl Problem {
    /// Accelerators of all nodes: with more of them than the limits say, equal ones are counted and not looked at one by
    /// one.
    pub fn accelerators(&self) -> usize {
        accelerators(&self.nodes)
    }

    /// Whether it has more accelerators than are looked at one by one.
    pub fn is_large(&self) -> bool {
        self.accelerators() > self.limits.exact_accelerators
    }

    /// The nodes that a shape of a node stands for.
    pub fn stands_for(&self, node: usize) -> Vec<usize> {
        self.alike.get(node).cloned().unwrap_or_else(|| vec![node])
    }

    /// Whether the shapes of a node are those of another one too.
    pub fn covers(&self, node: usize, other: usize) -> bool {
        let alike = || self.alike.get(node).and_then(|alike| alike.get(1..));
        node == other || alike().is_some_and(|alike| alike.binary_search(&other).is_ok())
    }

    /// By node, the one whose shapes are its own.
    pub fn representatives(&self) -> Vec<usize> {
        let mut found: Vec<usize> = (0..self.nodes.len()).collect();
        for (node, alike) in self.alike.iter().enumerate() {
            alike.iter().for_each(|other| found[*other] = node);
        }
        found
    }

    /// Nodes with shapes of their own.
    pub fn classes(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.nodes.len()).filter(|node| self.alike.get(*node).is_none_or(|alike| !alike.is_empty()))
    }

    /// How many other nodes a node stands for.
    pub fn others(&self, node: usize) -> u32 {
        self.alike.get(node).map_or(0, |alike| alike.len().saturating_sub(1) as u32)
    }

    /// A node's position by name.
    pub fn node(&self, name: &str) -> Option<usize> {
        find(&self.nodes, name, |node| &node.name)
    }

    /// A model's position by name.
    pub fn model(&self, name: &str) -> Option<usize> {
        find(&self.models, name, |model| &model.name)
    }

    /// The shape in which an instance runs, where its model can still run so: same candidate, engine, layers and
    /// number of accelerators, on the very accelerators it has.
    pub fn shape_of(&self, running: &Running) -> Option<(usize, usize)> {
        let model = self.model(&running.model)?;
        let node = self.node(&running.node)?;
        let positions: Option<Vec<usize>> =
            running.accelerators.iter().map(|uuid| self.nodes[node].position(uuid)).collect();
        let positions = positions?;
        let there = |(node, uuids): &(String, Vec<String>)| {
            let node = self.node(node)?;
            let on: Option<Vec<usize>> = uuids.iter().map(|uuid| self.nodes[node].position(uuid)).collect();
            Some((node, on?))
        };
        let further: Option<Vec<(usize, Vec<usize>)>> = running.further.iter().map(there).collect();
        let further = further?;
        let demand = &self.models[model];
        let shape = demand.shapes.iter().position(|s| {
            Some(s.engine) == running.engine
                && s.layers == running.layers
                && self.covers(s.node, node)
                && demand.candidates.get(s.candidate).is_some_and(|c| c.label == running.variant)
                && if further.is_empty() { s.takes(&positions) } else { s.takes_with(&positions, &further) }
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
        if !self.alike.is_empty() {
            let renumber = |old: &usize| {
                let mut alike: Vec<usize> = self.alike[*old].iter().map(|node| position[*node]).collect();
                if let Some(others) = alike.get_mut(1..) {
                    others.sort_unstable();
                }
                alike
            };
            self.alike = order.iter().map(renumber).collect();
        }
        self.quotas.sort_by(|a, b| a.name.cmp(&b.name));
        self.traffic.sort_by(|a, b| (&a.from, &a.to, &a.because).cmp(&(&b.from, &b.to, &b.because)));
        self.ways_out.sort_by(|a, b| (&a.model, &a.agent).cmp(&(&b.model, &b.agent)));
        for way in &mut self.ways_out {
            way.via.sort_by(|a, b| a.node.cmp(&b.node));
        }
        for model in &mut self.models {
            for shape in &mut model.shapes {
                shape.node = position[shape.node];
                shape.further.iter_mut().for_each(|part| part.node = position[part.node]);
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

/// What shapes are sorted by.
pub(in crate::placement) type Key<'s> =
    (usize, usize, u32, EngineKind, &'s [usize], u32, bool, Vec<(usize, &'s [usize], u32)>, &'s [u32]);

/// In which order shapes are.
pub(in crate::placement) fn key(shape: &Shape) -> Key<'_> {
    let further = shape.further.iter().map(|part| (part.node, part.group.as_slice(), part.ranks)).collect();
    (
        shape.candidate,
        shape.node,
        shape.preference,
        shape.engine,
        &shape.group,
        shape.ranks,
        shape.pipeline,
        further,
        &shape.layers,
    )
}

/// A position by name, at once where the list is in the order of its names.
fn find<T>(list: &[T], name: &str, of: impl Fn(&T) -> &String) -> Option<usize> {
    let at = list.partition_point(|item| of(item).as_str() < name);
    match list.get(at) {
        Some(item) if of(item) == name => Some(at),
        _ => list.iter().position(|item| of(item) == name),
    }
}
