//! The inventory document: facts about all nodes at a moment. Field names are a public contract.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Calibration, MemberRecord, PartOf};
use crate::base::{EngineKind, InstanceState};

/// Reasons for fields that are `null`, by field name.
pub type Unknown = BTreeMap<String, String>;

/// Facts about all nodes at a moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inventory {
    /// Format version, 1.
    pub format: u32,
    /// RFC 3339; `None` in hand-written files.
    #[serde(default)]
    pub taken_at: Option<String>,
    /// The newest member record found on the nodes.
    #[serde(default)]
    pub member: MemberRecord,
    /// All nodes, sorted by name.
    pub nodes: Vec<NodeFacts>,
    /// Measured links between nodes.
    #[serde(default)]
    pub links: Vec<NodeLink>,
    /// Measured connect times from nodes to provider endpoints.
    #[serde(default)]
    pub egress: Vec<EgressLink>,
}

/// One node's facts. Everything that could not be learnt is `None` with its reason in `unknown`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeFacts {
    /// The configured name.
    pub name: String,
    /// Whether its agent answered.
    #[serde(default = "yes")]
    pub reachable: bool,
    /// Why not, where it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreachable_reason: Option<String>,
    /// When the probe ran, RFC 3339.
    #[serde(default)]
    pub taken_at: Option<String>,
    /// Generation of the desired state that the node holds.
    #[serde(default)]
    pub generation: u64,
    /// Labels (from the config; a hand-written inventory may carry its own).
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Home directory of the login user.
    #[serde(default)]
    pub home: Option<String>,
    /// Absolute folder that weights are copied into.
    #[serde(default)]
    pub weights_path: Option<String>,
    /// Operating system.
    #[serde(default)]
    pub os: Os,
    /// `x86_64`, `aarch64`.
    #[serde(default)]
    pub arch: Option<String>,
    /// Processor.
    #[serde(default)]
    pub cpu: Cpu,
    /// Host memory.
    #[serde(default)]
    pub ram: Ram,
    /// Accelerators; MIG slices instead of their parent.
    #[serde(default)]
    pub accelerators: Vec<Accelerator>,
    /// Links between this node's accelerators.
    #[serde(default)]
    pub accelerator_links: Vec<AcceleratorLink>,
    /// File systems that flock uses here: the home's and the weights'.
    #[serde(default)]
    pub disks: Vec<Disk>,
    /// TCP ports with a listener.
    #[serde(default)]
    pub ports_in_use: Vec<u16>,
    /// The kernel's ephemeral port range.
    #[serde(default)]
    pub ip_local_port_range: Option<[u16; 2]>,
    /// Engines found; `None` in hand-written files means those of the config.
    #[serde(default)]
    pub engines: Option<Vec<EngineFound>>,
    /// Weights found on the node.
    #[serde(default)]
    pub weights: Vec<WeightsFound>,
    /// Instances of this cluster that the node's agent keeps or kept.
    #[serde(default)]
    pub instances: Vec<InstanceFacts>,
    /// What engines took here, by what they served and how; kept beyond the life of the instances.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calibrations: Vec<Calibration>,
    /// The node agent.
    #[serde(default)]
    pub agent: Option<AgentFacts>,
    /// Reasons for `null` fields.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unknown: Unknown,
}

fn yes() -> bool {
    true
}

/// The node agent on a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentFacts {
    /// Its version.
    pub version: String,
    /// Whether its supervisor runs; without it a dead engine is not started again.
    pub supervising: bool,
}

/// Operating system facts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Os {
    /// Kernel release.
    #[serde(default)]
    pub kernel: Option<String>,
    /// `PRETTY_NAME` of os-release.
    #[serde(default)]
    pub distribution: Option<String>,
    /// `glibc 2.36`, `musl 1.2.4`.
    #[serde(default)]
    pub libc: Option<String>,
    /// Reasons for `null` fields.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unknown: Unknown,
}

/// Processor facts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cpu {
    /// Model name.
    #[serde(default)]
    pub model: Option<String>,
    /// Physical cores.
    #[serde(default)]
    pub cores: Option<u32>,
    /// Hardware threads.
    #[serde(default)]
    pub threads: Option<u32>,
    /// Reasons for `null` fields.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unknown: Unknown,
}

/// Host memory in bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ram {
    /// MemTotal.
    #[serde(default)]
    pub total_bytes: Option<u64>,
    /// MemAvailable (page cache counts as available).
    #[serde(default)]
    pub available_bytes: Option<u64>,
    /// Reasons for `null` fields.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unknown: Unknown,
}

/// A device with memory of its own.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Accelerator {
    /// Stable identity; `NODE#INDEX` where a hand-written inventory gives none.
    #[serde(default)]
    pub uuid: String,
    /// The driver's index; not stable.
    #[serde(default)]
    pub index: u32,
    /// `nvidia`, `amd`, `apple`, `intel`.
    #[serde(default = "nvidia")]
    pub vendor: String,
    /// The name the driver reports.
    pub name: String,
    /// Its memory.
    pub memory: AcceleratorMemory,
    /// Whether ECC is on.
    #[serde(default)]
    pub ecc: Option<bool>,
    /// CUDA compute capability, `8.9`.
    #[serde(default)]
    pub compute_capability: Option<String>,
    /// Memory bandwidth.
    #[serde(default)]
    pub bandwidth_bytes_per_s: Option<u64>,
    /// Driver version.
    #[serde(default)]
    pub driver: Option<String>,
    /// UUID of the GPU that a MIG slice is cut from.
    #[serde(default)]
    pub mig_parent: Option<String>,
    /// Whether a display is attached.
    #[serde(default)]
    pub display: Option<bool>,
    /// Whether it can be used; `unknown.healthy` says why not.
    #[serde(default = "yes")]
    pub healthy: bool,
    /// PCI address.
    #[serde(default)]
    pub pci: Option<String>,
    /// Processes that hold its memory.
    #[serde(default)]
    pub processes: Vec<AcceleratorProcess>,
    /// Reasons for `null` fields.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unknown: Unknown,
}

fn nvidia() -> String {
    "nvidia".to_owned()
}

/// An accelerator's memory in bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcceleratorMemory {
    /// All of it. On unified memory: the host's MemTotal.
    #[serde(default)]
    pub total_bytes: Option<u64>,
    /// In use, the driver's reserve not counted.
    #[serde(default)]
    pub used_bytes: Option<u64>,
    /// Free now.
    #[serde(default)]
    pub free_bytes: Option<u64>,
    /// What the driver keeps.
    #[serde(default)]
    pub reserved_bytes: Option<u64>,
    /// One pool with host memory.
    #[serde(default)]
    pub unified: bool,
    /// Reasons for `null` fields.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unknown: Unknown,
}

/// A process that holds accelerator memory.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcceleratorProcess {
    /// Process id on the node.
    pub pid: u32,
    /// Bytes held; `None` where the driver does not tell.
    #[serde(default)]
    pub used_bytes: Option<u64>,
    /// Whether it belongs to an instance of this cluster.
    #[serde(default)]
    pub ours: bool,
    /// Whose it is; `None` where the kernel does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The program's name, never its arguments: those are its owner's business.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

/// A socket that accepts connections.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Listener {
    /// TCP port.
    pub port: u16,
    /// Process id; `None` where the process is another user's and cannot be looked into.
    pub pid: Option<u32>,
    /// Whose it is.
    pub user: Option<String>,
    /// The program's name, never its arguments.
    pub command: Option<String>,
    /// Whether it belongs to an instance of this cluster.
    pub ours: bool,
}

/// A link between two accelerators of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcceleratorLink {
    /// UUID of one end.
    pub a: String,
    /// UUID of the other.
    pub b: String,
    /// `nvlink`, `pcie` (same switch), `numa` (same CPU socket), `system`.
    pub kind: String,
    /// Bandwidth, one direction.
    #[serde(default)]
    pub bandwidth_bytes_per_s: Option<u64>,
}

/// A file system.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// A path on it that flock uses.
    pub path: String,
    /// Bytes that this user may still write.
    pub free_bytes: u64,
    /// Its size.
    pub total_bytes: u64,
}

/// An engine on a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineFound {
    /// Which one.
    pub kind: EngineKind,
    /// The version it reports; `None` where it could not be asked.
    #[serde(default)]
    pub version: Option<String>,
    /// Absolute path of the program.
    pub path: String,
    /// Why it cannot be used, where it cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// llama.cpp's worker for layers of an instance on another node, of the same build: absolute path of the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rpc_server: Option<String>,
}

/// Weights that lie on a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WeightsFound {
    /// `path:…`, `hf:…` or `on-node:…`.
    pub source: String,
    /// Revision digest of the file set.
    pub revision: String,
    /// Absolute folder on the node.
    #[serde(default)]
    pub path: Option<String>,
    /// File names inside it.
    pub files: Vec<String>,
    /// Their bytes.
    pub size_bytes: u64,
    /// Whether every file was checked against its digest.
    #[serde(default)]
    pub complete: bool,
    /// Digest of the file, where it is one and was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// What sizing needs to know of the network, where the inventory tells it; a plan reads `variants`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<crate::weights::Architecture>,
    /// What the weights are, where flock has read them on the node (`on-node:`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variants: Vec<crate::weights::Variant>,
    /// Why they could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// An instance as its node agent sees it. Unknown fields are passed over: a newer keeper may tell more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InstanceFacts {
    /// Its id.
    pub instance: String,
    /// Digest of its specification.
    pub specification: String,
    /// Model name.
    pub model: String,
    /// Replica number.
    pub replica: u32,
    /// The engine; files that leave it out mean llama.cpp.
    #[serde(default = "llama_cpp")]
    pub engine: EngineKind,
    /// Variant label; empty where a file leaves it out.
    #[serde(default)]
    pub variant: String,
    /// UUIDs it is bound to, in rank order; empty on CPU.
    pub accelerators: Vec<String>,
    /// Layers of each of them, where its engine was told.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<u32>,
    /// Its port.
    pub port: u16,
    /// What it is doing.
    pub state: InstanceState,
    /// Whether an engine process lives.
    #[serde(default)]
    pub running: bool,
    /// Process id of the engine, while it lives.
    #[serde(default)]
    pub pid: Option<u32>,
    /// Anonymous host memory of its processes.
    #[serde(default)]
    pub host_bytes: Option<u64>,
    /// Why it failed last, and when.
    #[serde(default)]
    pub last_failure: Option<Failure>,
    /// Starts since it was declared.
    #[serde(default)]
    pub starts: u32,
    /// When the present state began, RFC 3339.
    #[serde(default)]
    pub since: Option<String>,
    /// Live sessions on it.
    #[serde(default)]
    pub live_sessions: u32,
    /// How long its last load took.
    #[serde(default)]
    pub load_ms: Option<u64>,
    /// What was planned for it and what its engine took, once that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Box<Calibration>>,
    /// What it is a part of, where that is over several nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<PartOf>,
}

impl InstanceFacts {
    /// Whether it works for an instance on another node, and serves nobody itself.
    pub fn is_worker(&self) -> bool {
        self.part.as_ref().is_some_and(|part| part.is_worker(&self.instance))
    }
}

fn llama_cpp() -> EngineKind {
    EngineKind::LlamaCpp
}

/// A recorded engine failure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// `out_of_memory`, `configuration`, `port`, `weights`, `exit`, `signal`, `not_ready`.
    pub cause: String,
    /// One line for people: exit code or signal, and the engine's own last words.
    pub text: String,
    /// RFC 3339.
    pub at: String,
    /// Whether the agent has given up.
    pub gave_up: bool,
}

/// A measured link between two nodes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeLink {
    /// One node.
    pub from: String,
    /// The other.
    pub to: String,
    /// Round trip.
    #[serde(default)]
    pub rtt_us: Option<u64>,
    /// Throughput.
    #[serde(default)]
    pub bandwidth_bytes_per_s: Option<u64>,
    /// Whether agents measured it.
    #[serde(default)]
    pub measured: bool,
    /// How old the figures were when the inventory was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_ms: Option<u64>,
    /// Reasons for `null` fields.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unknown: Unknown,
}

/// A measured connect time from a node to an endpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EgressLink {
    /// The node.
    pub node: String,
    /// `host:port`.
    pub endpoint: String,
    /// Connect time.
    #[serde(default)]
    pub rtt_us: Option<u64>,
    /// How old the figure was when the inventory was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_ms: Option<u64>,
    /// Reasons for `null` fields.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unknown: Unknown,
}

impl Inventory {
    /// A node's facts by name; at once where the nodes are in the order of their names, as they should be.
    pub fn node(&self, name: &str) -> Option<&NodeFacts> {
        let at = self.nodes.partition_point(|node| node.name.as_str() < name);
        let there = self.nodes.get(at).filter(|node| node.name == name);
        there.or_else(|| self.nodes.iter().find(|node| node.name == name))
    }
}

impl NodeFacts {
    /// An accelerator by UUID.
    pub fn accelerator(&self, uuid: &str) -> Option<&Accelerator> {
        self.accelerators.iter().find(|accelerator| accelerator.uuid == uuid)
    }
}
