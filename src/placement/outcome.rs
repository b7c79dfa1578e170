//! What the solver answers: the placement, the refusals, and how good the answer is.

use serde::{Deserialize, Serialize};

use crate::base::EngineKind;

/// Where everything runs, and why the rest does not.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    /// Sorted by model, then replica.
    pub instances: Vec<Placed>,
    /// Sorted by model.
    pub unplaced: Vec<Unplaced>,
    /// How the solver ended.
    pub solver: SolverReport,
    /// Every shape that was considered and its fate, for `explain`; sorted.
    pub considered: Vec<Considered>,
    /// Every variant on every node, taken or not and why, for `explain`; by model, then best first, then by node.
    pub variants: Vec<VariantAt>,
    /// Things to know, such as an unknown driver reserve counted as 0.
    pub notes: Vec<String>,
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
    /// Bytes per accelerator, in the order of `accelerators`.
    pub per_accelerator: Vec<PlacedMemory>,
    /// Host bytes.
    pub host: PlacedMemory,
    /// Why this shape here: one clause for people ("awq is the best variant that fits, …", "already runs here").
    pub because: String,
    /// Better variants that were not taken here, best first.
    pub better: Vec<Passed>,
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
}

/// Why a model does not run on a node (or anywhere: `node` is `*`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reason {
    /// The node.
    pub node: String,
    /// `memory|accelerators|ram|disk|split|hardware|engine|selector|spread|quota|deny|window|reserve|port|unreachable|hold`.
    pub constraint: String,
    /// What was needed, in `unit`.
    pub needed: Option<u64>,
    /// What there was, in `unit`.
    pub available: Option<u64>,
    /// `bytes|accelerators|tokens|count`.
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
    /// Ranks; 0 on CPU.
    pub tensor_parallel: u32,
    /// Bytes needed per accelerator (on CPU: of the host).
    pub needed_bytes: u64,
    /// Whether it was chosen.
    pub chosen: bool,
    /// Why not, or why.
    pub verdict: String,
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
