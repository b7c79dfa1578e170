//! What the solver answers: the placement, the refusals, and how good the answer is.

use serde::{Deserialize, Serialize};

use crate::base::EngineKind;
use crate::placement::Egress;

/// Where everything runs, and why the rest does not.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    /// Sorted by model, then replica.
    pub instances: Vec<Placed>,
    /// Egress nodes of the ways out to providers, by provider's model, then agent.
    pub egress: Vec<Egress>,
    /// Sorted by model; provider's models without an egress node are among them.
    pub unplaced: Vec<Unplaced>,
    /// How the solver ended.
    pub solver: SolverReport,
    /// Every shape that was considered and its fate, for `explain`; sorted.
    pub considered: Vec<Considered>,
    /// Every variant on every node, taken or not and why, for `explain`; by model, then best first, then by node.
    pub variants: Vec<VariantAt>,
    /// Running instances that lose their place to higher ranks; sorted by model and replica.
    pub victims: Vec<crate::placement::Victim>,
    /// In a large cluster, names of nodes that are equal in all that the models can see, where there are several: what is
    /// said of one of them in `considered` and `variants` holds for `alike` more. Sorted.
    pub alike: Vec<Vec<String>>,
    /// Things to know, such as an unknown driver reserve counted as 0.
    pub notes: Vec<String>,
}

impl Placement {
    /// The nodes that are like this one, itself included; none where it is looked at by itself.
    pub fn like(&self, node: &str) -> &[String] {
        let found = self.alike.iter().find(|names| names.iter().any(|name| name == node));
        found.map_or(&[], Vec::as_slice)
    }

    /// The same of every node that is like others, for questions about many.
    pub fn likes(&self) -> std::collections::BTreeMap<&str, &[String]> {
        self.alike.iter().flat_map(|names| names.iter().map(|name| (name.as_str(), names.as_slice()))).collect()
    }
}

/// One replica bound to accelerators.
#[derive(Debug, Clone, PartialEq)]
pub struct Placed {
    /// Model name.
    pub model: String,
    /// Replica number; a replica that keeps its place keeps its number.
    pub replica: u32,
    /// The node.
    pub node: String,
    /// Engine, its version if known, and its program on that node.
    pub engine: EngineKind,
    /// Engine version.
    pub engine_version: Option<String>,
    /// Absolute path of the program.
    pub program: String,
    /// Index into the model's candidates.
    pub candidate: usize,
    /// UUIDs in rank order; empty on CPU.
    pub accelerators: Vec<String>,
    /// Ranks.
    pub tensor_parallel: u32,
    /// Pipeline stages.
    pub pipeline_parallel: u32,
    /// Tokens per request.
    pub context: u64,
    /// Layers of each pipeline stage, in the order of `accelerators`; empty where the engine shares them out evenly
    /// itself. Where they are fewer in all than the model has, the others are in host memory.
    pub layers: Vec<u32>,
    /// Why it could not be started anew, where it runs so and keeps its place: then it is left as it is.
    pub held: Option<String>,
    /// The accelerator that holds the vision projector, by its place in `accelerators`; the last one where it holds
    /// nothing else.
    pub vision: Option<usize>,
    /// What further nodes hold, whose layers are named after those here: an accelerator each, or their processor.
    pub elsewhere: Vec<Elsewhere>,
    /// Bytes per accelerator, in the order of `accelerators`.
    pub per_accelerator: Vec<PlacedMemory>,
    /// Host bytes.
    pub host: PlacedMemory,
    /// Why this shape here: one clause for people ("awq is the best variant that fits, …", "already runs here").
    pub because: String,
    /// Better variants that were not taken here, best first.
    pub better: Vec<Passed>,
}

/// What a replica takes of a node that is not its first.
#[derive(Debug, Clone, PartialEq)]
pub struct Elsewhere {
    /// The node.
    pub node: String,
    /// UUIDs in rank order.
    pub accelerators: Vec<String>,
    /// Bytes per accelerator.
    pub per_accelerator: Vec<PlacedMemory>,
    /// Host bytes there.
    pub host: PlacedMemory,
    /// The worker's program there, and the address that it listens on; `None` where there is none.
    pub worker: Option<(String, String)>,
}

/// A better variant that was not taken, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Passed {
    /// Candidate label.
    pub variant: String,
    /// One clause: `needs 131.4 GiB for its weights, 1 x 73.6 usable`.
    pub reason: String,
}

/// A variant of a model on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VariantAt {
    /// Model name.
    pub model: String,
    /// Candidate label.
    pub variant: String,
    /// The node; `*` where the reason holds everywhere.
    pub node: String,
    /// How many more nodes are like this one, in a large cluster: the same holds for each of them.
    #[serde(skip_serializing_if = "none")]
    pub alike: u32,
    /// How many replicas run it here.
    pub replicas: u32,
    /// Why not, or why.
    pub reason: String,
}

/// Planned bytes against what may be used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlacedMemory {
    /// Weights.
    pub weights_bytes: u64,
    /// KV cache.
    pub kv_bytes: u64,
    /// Buffers, runtime and headroom.
    pub overhead_bytes: u64,
    /// What the accelerator or host may give to all instances together.
    pub capacity_bytes: u64,
    /// All there is on the device; 0 for the host.
    pub device_total_bytes: u64,
}

impl PlacedMemory {
    /// Weights, KV and overhead.
    pub fn total_bytes(&self) -> u64 {
        self.weights_bytes + self.kv_bytes + self.overhead_bytes
    }
}

/// Replicas that found no place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unplaced {
    /// Model name.
    pub model: String,
    /// How many replicas are missing.
    pub replicas: u32,
    /// Whether the minimum is not reached (exit 4).
    pub required: bool,
    /// Why, per node.
    pub reasons: Vec<Reason>,
    /// The nearest change that would make it fit.
    pub nearest: String,
    /// Constraints that keep one more replica from its place together, and of which none can be left out; solved, of
    /// what is required in small clusters. Empty where no such set is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub together: Vec<Obstacle>,
}

/// A constraint of an irreducible set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Obstacle {
    /// `memory|ram|disk|reserve|hold|quota|deny|model|protect|preempt|selector|spread|quality|engine|cpu`.
    pub constraint: String,
    /// The nodes that it is about.
    pub nodes: Vec<String>,
    /// The model that it is about.
    pub model: Option<String>,
    /// A clause without a verb: `the memory of ada-1 (…)`.
    pub text: String,
    /// Whether dropping this one alone would place a replica.
    pub alone: bool,
}

/// Why a model does not run on a node (or anywhere: `node` is `*`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reason {
    /// The node.
    pub node: String,
    /// How many more nodes are like this one, in a large cluster: the same holds for each of them.
    #[serde(default, skip_serializing_if = "none")]
    pub alike: u32,
    /// `memory|accelerators|ram|disk|split|hardware|engine|selector|spread|quota|deny|window|reserve|port|unreachable|hold`,
    /// `latency` (too far from what it talks to), `egress` (no way out to the provider that is short enough).
    pub constraint: String,
    /// What was needed, in `unit`.
    pub needed: Option<u64>,
    /// What there was, in `unit`.
    pub available: Option<u64>,
    /// `bytes|accelerators|tokens|count`, `us` (microseconds).
    pub unit: Option<String>,
    /// One sentence.
    pub text: String,
}

/// A shape and its fate.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Considered {
    /// Model name.
    pub model: String,
    /// Candidate label.
    pub variant: String,
    /// Engine.
    pub engine: EngineKind,
    /// Node.
    pub node: String,
    /// How many more nodes are like this one, in a large cluster: the same holds for each of them.
    #[serde(skip_serializing_if = "none")]
    pub alike: u32,
    /// Ranks; 0 on CPU.
    pub tensor_parallel: u32,
    /// Bytes needed per accelerator (on CPU: of the host).
    pub needed_bytes: u64,
    /// Whether it was chosen.
    pub chosen: bool,
    /// How close it came.
    #[serde(skip)]
    pub fate: Fate,
    /// Why not, or why.
    pub verdict: String,
}

/// What became of a shape, the closest to being chosen first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    /// It was chosen.
    Chosen,
    /// It fits, and another place is better.
    Beaten,
    /// It fits, and a better variant is placed. That says nothing of a better one that fits there too.
    Lesser,
    /// It fits by itself, not beside what ranks higher or already runs.
    Displaced,
    /// What is placed leaves it too little.
    NoRoom,
    /// A constraint rules it out.
    RuledOut,
}

/// How the solver ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SolverReport {
    /// `optimal`, `feasible` or `infeasible`.
    pub status: String,
    /// Largest gap of all tiers.
    pub gap: f64,
    /// Every tier in order.
    pub tiers: Vec<Tier>,
    /// Solver seed.
    pub seed: u64,
    /// Whether the same input gives this answer on any machine.
    pub deterministic: bool,
}

/// One tier of the objective.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tier {
    /// Such as `minimum replicas, rank 100`.
    pub name: String,
    /// What was reached.
    pub value: f64,
    /// What cannot be exceeded.
    pub bound: f64,
    /// Relative distance of the two.
    pub gap: f64,
}

/// What is said of a node, in words: `ada-01`, `ada-01 and 311 alike`, `anywhere`.
fn at(node: &str, alike: u32) -> String {
    match (node, alike) {
        ("*", _) => "anywhere".to_owned(),
        (node, 0) => node.to_owned(),
        (node, alike) => format!("{node} and {alike} alike"),
    }
}

impl VariantAt {
    /// Where, in words.
    pub fn at(&self) -> String {
        at(&self.node, self.alike)
    }
}

impl Reason {
    /// Where, in words.
    pub fn at(&self) -> String {
        at(&self.node, self.alike)
    }
}

impl Considered {
    /// Where, in words.
    pub fn at(&self) -> String {
        at(&self.node, self.alike)
    }
}

fn none(alike: &u32) -> bool {
    *alike == 0
}
