//! The member record: what every node of a cluster remembers about the cluster.
//!
//! Fields of a newer version are kept as they came, so that an apply by an older one does not lose them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{InstanceFacts, PartOf};
use crate::base::{EngineKind, InstanceState};

/// Written to every node by every apply; the highest generation wins.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
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
    /// What moved, or was stopped for a higher rank, in the hour before the last apply ended; oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub moves: Vec<PastMove>,
    /// What people agreed to and nobody has done yet; oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub approvals: Vec<Approved>,
    /// The egress nodes that it chose, so that a wobble of the measurements changes none of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub egress: Vec<MemberEgress>,
    /// What a newer version added.
    #[serde(flatten)]
    pub other: BTreeMap<String, serde_json::Value>,
}

/// A move, or a stop that made room for a higher rank.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PastMove {
    /// When the apply did it, Unix milliseconds.
    pub at_unix_ms: u64,
    /// Model.
    pub model: String,
    /// The node that it left.
    pub node: String,
}

/// Somebody's yes to steps of a plan.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Approved {
    /// What it was asked for by.
    pub id: String,
    /// Who agreed, as the config names people.
    pub by: String,
    /// The login it came from, `user@host`.
    pub login: String,
    /// When, Unix milliseconds.
    pub at_unix_ms: u64,
    /// Why.
    pub reason: String,
    /// Keys of the steps.
    pub steps: Vec<String>,
}

/// Most moves that are remembered; the oldest are forgotten first.
pub const MOVES_LENGTH: usize = 1_000;

/// An egress node as the last apply left it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemberEgress {
    /// The provider's model.
    pub provider_model: String,
    /// The agent; `None` where no agent uses the model.
    pub agent: Option<String>,
    /// Its egress node.
    pub node: String,
}

/// An instance as the last apply left it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    /// What it is a part of, where that is over several nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<PartOf>,
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
            layers: Vec::new(),
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
            measured: None,
            part: self.part.clone(),
        }
    }
}

/// A node as the cluster reaches it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
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
    /// The name that the SSH config of the last applier knew the address by, where it was an alias.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// The hosts that were gone through, `user@host:port` with commas between them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jump: Option<String>,
}

/// The right to apply, held by one flock at a time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
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
    /// The holder's process, where its system tells: on its own machine it can be seen to have died.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<HolderProcess>,
    /// How long it lasts without renewal, as its holder asked; 0 where an older agent did not keep it.
    #[serde(skip_serializing_if = "is_zero")]
    pub ttl_ms: u64,
}

/// A process that cannot be confused with another of any machine, boot, container or user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderProcess {
    /// The kernel's id of the boot.
    pub boot_id: String,
    /// The kernel's name of its process namespace: numbers mean nothing in another.
    pub pid_namespace: String,
    /// Its user.
    pub uid: u32,
    /// Its number.
    pub pid: u32,
    /// Clock ticks between boot and its start.
    pub start_ticks: u64,
}

impl Lease {
    /// When it was last taken or renewed, Unix milliseconds on the node's clock; `None` where that was not kept.
    pub fn renewed_unix_ms(&self) -> Option<u64> {
        (self.ttl_ms > 0).then(|| self.expires_unix_ms.saturating_sub(self.ttl_ms))
    }
}

/// A model that must not be stopped, moved, preempted or destroyed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
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
#[serde(default)]
pub struct Hold {
    /// The node.
    pub node: String,
    /// Why.
    pub reason: String,
    /// Who held it, `user@host (pid N)`; empty in records that do not say.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub by: String,
    /// Since when, RFC 3339; empty in records that do not say.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub since: String,
}

/// A paused scope.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
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
#[serde(default)]
pub struct Applied {
    /// Commit of the config repository.
    pub commit: Option<String>,
    /// Whether what was applied differed from that commit.
    #[serde(skip_serializing_if = "is_false")]
    pub dirty: bool,
    /// Digest of its meaning.
    pub config_digest: String,
    /// Digest of the applied plan: a plan cannot be applied twice.
    pub plan_digest: String,
    /// `user@host`.
    pub by: String,
    /// RFC 3339.
    pub at: String,
    /// What was asked for: `apply` or `drain`; empty in records of earlier versions.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub action: String,
    /// Steps that were done.
    #[serde(skip_serializing_if = "is_zero_u32")]
    pub done: u32,
    /// Steps that failed.
    #[serde(skip_serializing_if = "is_zero_u32")]
    pub failed: u32,
    /// Steps that were not begun.
    #[serde(skip_serializing_if = "is_zero_u32")]
    pub not_started: u32,
}

/// Most applies that a node remembers.
pub const HISTORY_LENGTH: usize = 20;

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn is_false(value: &bool) -> bool {
    !*value
}

fn is_zero_u32(number: &u32) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_that_a_newer_version_describes_better_is_still_read() {
        let newer = r#"{"id":"x","process":{"boot_id":"b","pid_namespace":"pid:[1]","uid":1,"pid":2,"start_ticks":3,"cgroup":"/"}}"#;
        let lease: Lease = serde_json::from_str(newer).expect("read by an older version");
        assert_eq!(lease.process.map(|process| process.pid), Some(2));
    }

    #[test]
    fn what_a_newer_version_added_survives_an_older_one() {
        let newer = r#"{"generation":7,"quorum":{"of":3},"protections":[{"model":"coder","scope":"night"}]}"#;
        let read: MemberRecord = serde_json::from_str(newer).expect("read by an older version");
        assert_eq!((read.generation, read.protections[0].model.as_str()), (7, "coder"));
        let written = serde_json::to_value(MemberRecord { generation: 8, ..read }).expect("plain data");
        assert_eq!((&written["quorum"]["of"], &written["generation"]), (&3.into(), &8.into()));
        assert!(!serde_json::to_string(&MemberRecord::default()).expect("plain data").contains("other"));
    }
}
