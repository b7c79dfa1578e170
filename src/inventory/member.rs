//! The member record: what every node of a cluster remembers about the cluster.

use serde::{Deserialize, Serialize};

use super::InstanceFacts;
use crate::base::{EngineKind, InstanceState};

/// Written to every node by every apply; the highest generation wins.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MemberRecord {
    /// Rises with every apply. Nodes refuse writes with an older one.
    pub generation: u64,
    /// The cluster's nodes, so that a node block deleted from git does not orphan its engines.
    pub nodes: Vec<MemberNode>,
    /// Who applies right now.
    pub lease: Option<Lease>,
    /// Models that must not be stopped.
    pub protections: Vec<Protection>,
    /// Nodes out of new placements.
    pub holds: Vec<Hold>,
    /// Paused scopes.
    pub pauses: Vec<Pause>,
    /// The last apply.
    pub applied: Option<Applied>,
    /// What ran when it ended, so that a node that is away is not taken for an empty one.
    pub instances: Vec<MemberInstance>,
}

/// An instance as the last apply left it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberInstance {
    /// Its node.
    pub node: String,
    /// Its id.
    pub instance: String,
    /// Digest of its specification.
    pub specification: String,
    /// Model name.
    pub model: String,
    /// Replica number.
    pub replica: u32,
    /// The engine.
    pub engine: EngineKind,
    /// Variant label.
    pub variant: String,
    /// UUIDs in rank order; empty on CPU.
    pub accelerators: Vec<String>,
    /// Its port.
    pub port: u16,
}

impl MemberInstance {
    /// The last known facts about it: as far as anybody knows, it still serves.
    pub fn last_known(&self) -> InstanceFacts {
        InstanceFacts {
            instance: self.instance.clone(),
            specification: self.specification.clone(),
            model: self.model.clone(),
            replica: self.replica,
            engine: self.engine,
            variant: self.variant.clone(),
            accelerators: self.accelerators.clone(),
            port: self.port,
            state: InstanceState::Ready,
            running: false,
            pid: None,
            host_bytes: None,
            last_failure: None,
            starts: 0,
            since: None,
            live_sessions: 0,
            load_ms: None,
        }
    }
}

/// A node as the cluster reaches it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MemberNode {
    /// Configured name.
    pub name: String,
    /// `local`, or the SSH address.
    pub address: String,
    /// SSH port.
    pub port: u16,
    /// Login name.
    pub user: Option<String>,
    /// The host key seen at the last apply, in known_hosts form without the host.
    pub host_key: Option<String>,
}

/// The right to apply, held by one flock at a time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Lease {
    /// Random id of the holder's run.
    pub id: String,
    /// `user@host (pid N)`.
    pub holder: String,
    /// When it was taken, RFC 3339.
    pub since: String,
    /// Unix milliseconds on the node's own clock at which it ends unless renewed.
    pub expires_unix_ms: u64,
    /// Fencing generation: steps of an apply carry it.
    pub generation: u64,
}

/// A model that must not be stopped, moved, preempted or destroyed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Protection {
    /// The model.
    pub model: String,
    /// When it was first applied, RFC 3339.
    pub since: String,
    /// `config`, or the reason given to `flock protect`.
    pub reason: String,
}

/// A node held out of new placements.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Hold {
    /// The node.
    pub node: String,
    /// Why.
    pub reason: String,
}

/// A paused scope.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Pause {
    /// A node selector, `model=NAME`, or empty for everything.
    pub scope: String,
    /// Why.
    pub reason: String,
    /// RFC 3339.
    pub until: String,
}

/// Who applied what, when and from where.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Applied {
    /// Commit of the config repository.
    pub commit: Option<String>,
    /// Digest of its meaning.
    pub config_digest: String,
    /// Digest of the applied plan: a plan cannot be applied twice.
    pub plan_digest: String,
    /// `user@host`.
    pub by: String,
    /// RFC 3339.
    pub at: String,
}
