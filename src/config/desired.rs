//! The desired state: a config repository at one moment, resolved. Other rooms read only this.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::base::{Bytes, Dtype, EngineKind, Place, Quality, Spanned};

/// Everything the config repository says, resolved: ranges expanded, defaults applied, references checked.
#[derive(Debug, Clone, Serialize)]
pub struct Desired {
    /// The cluster block.
    pub cluster: Cluster,
    /// Nodes by name.
    pub nodes: BTreeMap<String, Node>,
    /// Declared engines, in the order of their names.
    pub engines: BTreeMap<EngineKind, Engine>,
    /// Models that run on nodes, by name. Models of providers are in `provider_models`.
    pub models: BTreeMap<String, Model>,
    /// External APIs by name.
    pub providers: BTreeMap<String, super::Provider>,
    /// Models that are names of a provider's models.
    pub provider_models: BTreeMap<String, super::ProviderModel>,
    /// Agents by name.
    pub agents: BTreeMap<String, super::Agent>,
    /// Tools by name.
    pub tools: BTreeMap<String, super::Tool>,
    /// Workflows by name.
    pub workflows: BTreeMap<String, super::Workflow>,
    /// Policies of all files.
    pub policies: super::Policies,
}

/// The cluster block.
#[derive(Debug, Clone, Serialize)]
pub struct Cluster {
    /// Its name; part of every instance's identity.
    pub name: Spanned<String>,
    /// SSH settings that nodes inherit.
    pub ssh: SshSettings,
    /// Memory left free everywhere, unless a node says otherwise.
    pub reserve: Reserve,
    /// Weights of the last placement tier.
    pub objective: Objective,
    /// Groups and the currency; and what acts with later versions: gateway, http, source, notify, telemetry.
    pub extras: super::ClusterExtras,
}

/// How a node is reached over SSH. `None` falls back to the next level, then to the default in parentheses.
#[derive(Debug, Clone, Default, Serialize)]
pub struct SshSettings {
    /// Login name (the user who runs flock).
    pub user: Option<String>,
    /// Private key files, tried in order, as written (`~` allowed); then ssh-agent.
    pub identity: Vec<Spanned<String>>,
    /// known_hosts file, relative to the file that names it, or `/`, `~` (`~/.ssh/known_hosts`).
    pub known_hosts: Option<Spanned<String>>,
    /// Deadline of connect and authentication (5 s).
    pub connect_timeout: Option<Duration>,
    /// Port (22).
    pub port: Option<u16>,
    /// Hosts to go through, as `base::Hop::parse_row` reads them; `none` takes an inherited one away.
    pub jump: Option<Spanned<String>>,
    /// Whether an unknown host key is recorded and trusted from then on (no). A changed key never is.
    pub trust_on_first_use: Option<bool>,
}

/// Memory left free.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Reserve {
    /// Per accelerator; `None` is 8 % of its total.
    pub vram: Option<Bytes>,
    /// Per node; `None` is 2 GiB.
    pub ram: Option<Bytes>,
}

/// Weights of the objective's terms in the last placement tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Objective {
    /// Quality of the chosen variants.
    pub quality: u32,
    /// Predicted speed.
    pub latency: u32,
    /// Bytes to fetch.
    pub locality: u32,
    /// Money.
    pub cost: u32,
    /// Restarts and moves.
    pub stability: u32,
    /// Even use.
    pub balance: u32,
}

impl Default for Objective {
    fn default() -> Self {
        Self { quality: 100, latency: 40, locality: 20, cost: 10, stability: 60, balance: 5 }
    }
}

/// A node of the config.
#[derive(Debug, Clone, Serialize)]
pub struct Node {
    /// Its name, after range expansion.
    pub name: Spanned<String>,
    /// How it is reached.
    pub connection: Connection,
    /// SSH settings, cluster defaults applied.
    pub ssh: SshSettings,
    /// Labels by name.
    pub labels: BTreeMap<String, String>,
    /// Memory left free, cluster defaults applied.
    pub reserve: Reserve,
    /// Where weights lie (`~/.local/share/flock/weights`).
    pub weights_path: Option<Spanned<String>>,
    /// Out of new placements, with the reason.
    pub hold: Option<Spanned<String>>,
    /// Ports for instances, inclusive (20000-20999).
    pub ports: (u16, u16),
    /// Environment, price, spot, site, owner.
    pub extras: super::NodeExtras,
}

/// How a node is reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Connection {
    /// SSH to this host name or address.
    Ssh {
        /// Host name or address.
        address: Spanned<String>,
    },
    /// This machine, without SSH.
    Local,
}

/// A declared engine.
#[derive(Debug, Clone, Serialize)]
pub struct Engine {
    /// Which one.
    pub kind: Spanned<EngineKind>,
    /// The version it must be, if said.
    pub version: Option<Spanned<String>>,
    /// Program paths, the default for all nodes first; a node's own path wins.
    pub paths: Vec<EnginePath>,
    /// Environment of every instance of it.
    pub env: BTreeMap<String, String>,
    /// Archive (acting with later versions), container, modules.
    pub extras: super::EngineExtras,
}

/// Where an engine's program lies.
#[derive(Debug, Clone, Serialize)]
pub struct EnginePath {
    /// Absolute path on the node.
    pub path: Spanned<String>,
    /// The node this path is for; `None` for all.
    pub node: Option<String>,
}

/// Where weights come from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Source {
    /// `hf:owner/name[@rev][#file-or-quantisation]`.
    Hub {
        /// `owner/name`.
        repository: String,
        /// Branch, tag or commit.
        revision: Option<String>,
        /// File or quantisation inside the repository.
        selector: Option<String>,
    },
    /// `path:…`: with the controller. Relative to the config repository after resolution, or absolute (`/`, `~`).
    Path(String),
    /// `on-node:/…`: already on the nodes.
    OnNode(String),
    /// `https://…` with its SHA-256.
    Url {
        /// The address.
        url: String,
        /// 64 hex digits.
        sha256: String,
    },
}

/// One set of weights that the config names itself.
#[derive(Debug, Clone, Serialize)]
pub struct VariantChoice {
    /// The name given to it.
    pub name: Spanned<String>,
    /// Its source.
    pub source: Spanned<Source>,
}

/// A model that runs on nodes.
#[derive(Debug, Clone, Serialize)]
pub struct Model {
    /// Its name.
    pub name: Spanned<String>,
    /// Where its weights come from; `None` only where `variants` is not empty.
    pub source: Option<Spanned<Source>>,
    /// Explicit weights, best first; empty means "discover in `source`".
    pub variants: Vec<VariantChoice>,
    /// Engines that may serve it, in the order written; empty means any that can.
    pub engines: Vec<Spanned<EngineKind>>,
    /// Tokens per request; `None` means min(trained length, 32768).
    pub context: Option<Spanned<u64>>,
    /// Requests at once.
    pub concurrency: Spanned<u64>,
    /// Least acceptable quality.
    pub min_quality: Option<Spanned<Quality>>,
    /// Element type of the KV cache; `None` is the engine's 16-bit default.
    pub kv_dtype: Option<Spanned<Dtype>>,
    /// Wanted copies.
    pub replicas: Replicas,
    /// Priority class by name, and its rank (0 without).
    pub priority: Priority,
    /// Hard and soft wishes about where.
    pub place: PlaceRules,
    /// Further engine arguments: flag and optional value.
    pub arguments: Vec<Spanned<(String, Option<String>)>>,
    /// Environment of its engine.
    pub env: BTreeMap<String, String>,
    /// Parts, labels and the owner; and what acts with later versions: adapters, listen, rollout and the like.
    pub extras: super::ModelExtras,
}

/// Wanted copies of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Replicas {
    /// Fewer than this is infeasible (exit 4); 0 makes the model optional.
    pub min: u32,
    /// Desired.
    pub max: u32,
}

/// A model's priority.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Priority {
    /// The class, where one is named.
    pub name: Option<String>,
    /// Its rank; 0 without a class.
    pub rank: u32,
    /// Whether it may displace running instances of lower ranks.
    pub preempts: bool,
}

/// Where a model may and should run.
#[derive(Debug, Clone, Default, Serialize)]
pub struct PlaceRules {
    /// Hard: `label` must be `is`.
    pub require: Vec<Spanned<LabelIs>>,
    /// Soft, with weights.
    pub prefer: Vec<Spanned<(LabelIs, u32)>>,
    /// Hard: replicas on different values of this (`node`, or a label).
    pub spread_by: Option<Spanned<String>>,
    /// Soft: few nodes.
    pub pack: bool,
    /// Soft: near these agents or models.
    pub near: Vec<Spanned<String>>,
    /// May run on the CPU alone.
    pub allow_cpu: bool,
    /// May keep some layers in host memory.
    pub allow_offload: bool,
    /// May have its layers on several nodes.
    pub allow_nodes: bool,
}

/// A label's wanted value. The label `node` is the node's name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LabelIs {
    /// Label name.
    pub label: String,
    /// Wanted value.
    pub is: String,
}

impl Desired {
    /// The place of a model's declaration.
    pub fn model_place(&self, model: &str) -> Option<&Place> {
        let provided = || self.provider_models.get(model).map(|m| &m.name.place);
        self.models.get(model).map(|m| &m.name.place).or_else(provided)
    }
}
