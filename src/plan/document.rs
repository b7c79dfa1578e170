//! The plan document, as `flock plan --format json` prints it and `--out` saves it. A public contract.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::base::EngineKind;
use crate::inventory::{FetchSpec, HubFiles, InstanceSpec};
pub use crate::placement::{Egress, EgressOption};
use crate::placement::{Passed, SolverReport, Unplaced};

/// The ordered steps that take the cluster from what is to what should be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// 1.
    pub format: u32,
    /// Cluster name.
    pub cluster: String,
    /// HEAD of the config repository, hex.
    pub commit: Option<String>,
    /// Whether the working tree differs from it.
    pub dirty: bool,
    /// Digest of the resolved config.
    pub config_digest: String,
    /// Digest of the facts, times left out and volatile numbers rounded.
    pub inventory_digest: String,
    /// How the solver ended.
    pub solver: SolverReport,
    /// What should run, sorted by model and replica.
    pub instances: Vec<PlannedInstance>,
    /// Egress nodes of agents on providers, and of providers' models that no agent uses; by model, then agent.
    pub egress: Vec<Egress>,
    /// What to do, in order.
    pub steps: Vec<Step>,
    /// What cannot be done now and is not refused.
    pub deferred: Vec<Deferred>,
    /// What a policy or a protection forbids.
    pub blocked: Vec<Blocked>,
    /// What waits for somebody's yes; its steps are among those that are blocked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approvals: Vec<ApprovalWanted>,
    /// Replicas without a place.
    pub unplaced: Vec<Unplaced>,
    /// What the world changed by itself.
    pub drift: Vec<Drift>,
    /// What changed about the facts.
    pub decay: Vec<Decay>,
    /// Things to know.
    pub warnings: Vec<PlanWarning>,
    /// Counts by verb.
    pub summary: Summary,
    /// Saved plans only: the facts that the plan relied on, per node it touches.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub guards: BTreeMap<String, Guard>,
    /// Saved plans only: digest of everything above. A plan that was changed after it was saved is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seal: Option<String>,
}

/// An instance that should run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedInstance {
    /// Id.
    pub instance: String,
    /// Model.
    pub model: String,
    /// Replica number.
    pub replica: u32,
    /// Part of a model that is placed in parts.
    pub part: Option<String>,
    /// First node.
    pub node: String,
    /// All nodes.
    pub nodes: Vec<String>,
    /// Engine.
    pub engine: EngineKind,
    /// Its version.
    pub engine_version: Option<String>,
    /// The image that it runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Environment modules that are loaded for it, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<String>,
    /// Variant label.
    pub variant: String,
    /// UUIDs in rank order.
    pub accelerators: Vec<String>,
    /// Ranks.
    pub tensor_parallel: u32,
    /// Stages.
    pub pipeline_parallel: u32,
    /// Layers of each stage, in the order of the accelerators; left out where the engine shares them out evenly itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<u32>,
    /// Layers that are in host memory; left out where none is, or all are.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub host_layers: u32,
    /// UUID of the accelerator that holds the vision projector, where that is loaded from a file of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vision: Option<String>,
    /// Tokens per request.
    pub context: u64,
    /// Requests at once.
    pub concurrency: u64,
    /// Planned memory.
    pub memory: Memory,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Environment, without secrets.
    pub env: BTreeMap<String, String>,
    /// Port on loopback.
    pub port: u16,
    /// Further ports, in order.
    pub port_alternates: Vec<u16>,
    /// Helper processes on other nodes.
    pub processes: Vec<HelperProcess>,
    /// Digest of the specification.
    pub specification: String,
    /// Why this shape here.
    pub because: String,
    /// Better variants that were not taken, best first, each with what kept it from here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub better: Vec<Passed>,
    /// Exactly what the node agent is told.
    pub spec: Box<InstanceSpec>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// Planned memory of an instance.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// In the order of the accelerators.
    pub per_accelerator: Vec<AcceleratorMemoryPlan>,
    /// Host memory.
    pub host: HostMemoryPlan,
}

/// Planned bytes on one accelerator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcceleratorMemoryPlan {
    /// The accelerator.
    pub uuid: String,
    /// Weights.
    pub weights_bytes: u64,
    /// KV cache.
    pub kv_bytes: u64,
    /// Buffers, runtime, headroom.
    pub overhead_bytes: u64,
    /// Sum.
    pub total_bytes: u64,
    /// What instances may use there.
    pub capacity_bytes: u64,
    /// What the engine took, once one of the same has run so: with these weights, engine, version, accelerators, context
    /// and requests.
    pub measured_bytes: Option<u64>,
    /// What would be planned by computation alone, where a measurement has changed the figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_bytes: Option<u64>,
}

/// Planned host bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostMemoryPlan {
    /// Weights.
    pub weights_bytes: u64,
    /// KV cache.
    pub kv_bytes: u64,
    /// Buffers and runtime.
    pub overhead_bytes: u64,
    /// Sum.
    pub total_bytes: u64,
    /// What instances may use there.
    pub capacity_bytes: u64,
    /// As of an accelerator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_bytes: Option<u64>,
    /// As of an accelerator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_bytes: Option<u64>,
}

/// A helper process of a multi-node instance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HelperProcess {
    /// Its node.
    pub node: String,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Environment.
    pub env: BTreeMap<String, String>,
    /// Its ports.
    pub ports: Vec<u16>,
}

/// What a step does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verb {
    /// Bring weights to a node.
    Fetch,
    /// Start an instance that does not run.
    Start,
    /// Same accelerators, other specification.
    Change,
    /// Same specification, new process.
    Restart,
    /// Other accelerators or node.
    Move,
    /// Take over a running engine without touching it.
    Adopt,
    /// Stop an instance.
    Stop,
}

/// Why a step is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Because {
    /// New in the config.
    Added,
    /// Gone from the config.
    Removed,
    /// The config says otherwise now.
    Config,
    /// Another variant fits better.
    Variant,
    /// The lock changed.
    Lock,
    /// The world changed by itself.
    Drift,
    /// A fact changed.
    Decay,
    /// A higher priority needs the place.
    Preempted,
    /// A better placement by more than the threshold.
    Better,
    /// The node is drained.
    Drain,
    /// A policy says so.
    Policy,
    /// The node agent is replaced.
    AgentUpgrade,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// 1-based, in order of execution.
    pub id: u32,
    /// What.
    pub verb: Verb,
    /// Model.
    pub model: String,
    /// Replica number.
    pub replica: u32,
    /// Instance that results (the stopped one for `stop`).
    pub instance: Option<String>,
    /// Node it happens on.
    pub node: String,
    /// Node it leaves (`move`).
    pub from_node: Option<String>,
    /// Why.
    pub because: Because,
    /// The reason in words, with the place in the config where there is one.
    pub detail: String,
    /// Steps that must be done before.
    pub after: Vec<u32>,
    /// Instance that is replaced (`move`, `change`, `restart`).
    pub from_instance: Option<String>,
    /// `hub`, `node:NAME`, `controller`, `present`.
    pub route: Option<String>,
    /// Bytes to bring.
    pub download_bytes: u64,
    /// Estimated duration; `None` where nothing is known.
    pub estimated_ms: Option<u64>,
    /// Estimated time without this replica.
    pub downtime_ms: u64,
    /// Live sessions on it.
    pub sessions: u32,
    /// Bytes of session state that move.
    pub state_bytes: u64,
    /// Whether a running instance is interrupted.
    pub interrupts: bool,
    /// `fetch`: the files, and the way they take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetch: Option<PlannedFetch>,
    /// The policy that wants a confirmation of its own (`prune`), which `--yes` gives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirm: Option<String>,
}

/// Files to bring.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedFetch {
    /// The way.
    pub from: FetchFrom,
    /// What arrives where.
    pub fetch: FetchSpec,
    /// Most bytes per second: this fetch's part of `limit download`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_bytes_per_s: Option<u64>,
}

/// The way that files take to a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum FetchFrom {
    /// A folder on the controller, which sends them.
    Folder(String),
    /// The node downloads them from the hub.
    Hub(HubFiles),
    /// The controller downloads them from the hub and sends them on; it keeps none.
    Relay(HubFiles),
    /// Another node that has the set sends it.
    Node {
        /// Its name.
        node: String,
        /// The set's folder there.
        folder: String,
        /// The way to take where the two cannot meet; never another node.
        otherwise: Box<FetchFrom>,
    },
}

impl PlannedInstance {
    /// Whether it works for an instance on another node, and serves nobody itself.
    pub fn is_worker(&self) -> bool {
        self.spec.part.as_ref().is_some_and(|part| part.is_worker(&self.instance))
    }
}

impl FetchFrom {
    /// The node that sends the files, where one does.
    pub fn sender(&self) -> Option<&str> {
        match self {
            Self::Node { node, .. } => Some(node),
            Self::Folder(_) | Self::Hub(_) | Self::Relay(_) => None,
        }
    }

    /// The plan's word for it: `hub`, `node:NAME`, `controller`.
    pub fn route(&self) -> String {
        match self {
            Self::Folder(_) | Self::Relay(_) => "controller".to_owned(),
            Self::Hub(_) => "hub".to_owned(),
            Self::Node { node, .. } => format!("node:{node}"),
        }
    }
}

/// Put off, not refused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deferred {
    /// Model.
    pub model: String,
    /// Node.
    pub node: String,
    /// `unreachable|absent|window|paused|moves_per_hour|distrust|selection`.
    pub reason: String,
    /// What would be done, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verb: Option<Verb>,
    /// The node that a move leaves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_node: Option<String>,
}

/// Refused by a protection or policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Blocked {
    /// Model.
    pub model: String,
    /// `protect`, `prune`, `stop-share`, ….
    pub policy: String,
    /// Since when, where that is recorded.
    pub since: Option<String>,
    /// What to do.
    pub remedy: String,
}

/// Steps that wait for somebody's yes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApprovalWanted {
    /// What `flock approve` is given: 12 hex digits over the steps.
    pub id: String,
    /// File and line of the policy.
    pub policy: String,
    /// Whose yes, as the policy writes it.
    pub by: Vec<String>,
    /// The same people by name.
    pub people: Vec<String>,
    /// The steps, by key.
    pub steps: Vec<StepWanted>,
}

/// A step that waits for somebody's yes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepWanted {
    /// Names this very step in any plan.
    pub key: String,
    /// What.
    pub verb: Verb,
    /// Model.
    pub model: String,
    /// Replica number.
    pub replica: u32,
    /// Node it happens on.
    pub node: String,
    /// Node that a move leaves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_node: Option<String>,
}

/// What the world changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drift {
    /// `instance_missing|instance_failed|instance_changed|file_missing|unmanaged`.
    pub kind: String,
    /// Node.
    pub node: String,
    /// Model.
    pub model: Option<String>,
    /// Since when, where that is recorded.
    pub since: Option<String>,
    /// One sentence.
    pub text: String,
}

/// A fact that changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decay {
    /// `accelerator_lost|accelerator_unhealthy|memory_taken|link_slower|node_unreachable`.
    pub kind: String,
    /// Node.
    pub node: String,
    /// Since when, where that is recorded.
    pub since: Option<String>,
    /// One sentence.
    pub text: String,
}

/// A warning inside a plan; the shape of a diagnostic, the place optional.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanWarning {
    /// `FLKnnn`.
    pub id: String,
    /// `warning`.
    pub severity: String,
    /// What.
    pub message: String,
    /// File.
    pub file: Option<String>,
    /// Line.
    pub line: Option<usize>,
    /// Column.
    pub column: Option<usize>,
    /// End line.
    pub end_line: Option<usize>,
    /// End column.
    pub end_column: Option<usize>,
    /// Remedy.
    pub hint: Option<String>,
    /// Always empty here; kept so that every diagnostic has one shape.
    #[serde(default)]
    pub related: Vec<String>,
}

/// Counts by verb, and of what is not a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    /// `start` steps.
    pub start: u32,
    /// `stop` steps.
    pub stop: u32,
    /// `change` steps.
    pub change: u32,
    /// `restart` steps.
    pub restart: u32,
    /// `move` steps.
    #[serde(rename = "move")]
    pub moves: u32,
    /// `adopt` steps.
    pub adopt: u32,
    /// `fetch` steps.
    pub fetch: u32,
    /// Deferred items.
    pub deferred: u32,
    /// Blocked items.
    pub blocked: u32,
    /// Instances without a step.
    pub unchanged: u32,
    /// Replicas without a place.
    pub unplaced: u32,
}

/// What a saved plan relied on, of one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guard {
    /// Generation of the node's desired state.
    pub generation: u64,
    /// Facts by name, as far as the plan used them; compared with tolerance.
    pub facts: BTreeMap<String, serde_json::Value>,
}
