//! What a node agent is told to run, and the weights it is told to hold.
//!
//! Unknown fields are passed over: these lie on nodes, where an agent of another version may read them. What an older
//! agent must not pass over raises the format of its state (`agent::state::FORMAT`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::SizedFor;
use crate::base::EngineKind;

/// A running copy of a model: everything the agent needs, nothing to decide.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InstanceSpec {
    /// First 12 hex digits of its identity digest.
    pub instance: String,
    /// Digest of the specification.
    pub specification: String,
    /// Model name.
    pub model: String,
    /// Replica number.
    pub replica: u32,
    /// The engine.
    pub engine: EngineKind,
    /// Variant id.
    pub variant: String,
    /// UUIDs in rank order; empty on CPU.
    pub accelerators: Vec<String>,
    /// Program and arguments, never through a shell. `{port}` is the agent's only substitution.
    pub argv: Vec<String>,
    /// Environment on top of the agent's own minimal one.
    pub env: BTreeMap<String, String>,
    /// Environment variable that the agent fills with the instance's own random key; never in argv.
    pub key_env: Option<String>,
    /// The port to listen on, on loopback.
    pub port: u16,
    /// Ports to try, in order, where `port` is taken.
    pub port_alternates: Vec<u16>,
    /// Ports that the engine opens for itself beside the one it serves on; already in `argv` or `env`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub internal_ports: Vec<u16>,
    /// Name the engine serves the model under.
    pub served_name: String,
    /// Weights it reads: (revision, folder) pairs that must be complete before a start.
    pub weights: Vec<WeightsRef>,
    /// Planned bytes per accelerator, in the order of `accelerators`.
    pub planned_bytes: Vec<u64>,
    /// Planned host bytes.
    pub planned_host_bytes: u64,
    /// How long a start may take before it counts as `not_ready`.
    pub ready_timeout_ms: u64,
    /// How long a ready engine may leave every health request without an answer before it counts as
    /// `not_responding`; 0 for the agent's own patience.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unresponsive_after_ms: u64,
    /// The container it runs in, where the runtime keeps it beyond the life of its client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<ContainerRef>,
    /// What it was sized for: kept beside what is measured of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sized_for: Option<Box<SizedFor>>,
    /// What it is a part of, where that is over several nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<PartOf>,
}

/// An instance over several nodes, as every part of it knows it. The part that serves has the instance's own id; every
/// other one is a worker of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PartOf {
    /// The instance's id.
    pub instance: String,
    /// Its nodes: that of the part that serves, then those of the workers.
    pub nodes: Vec<String>,
}

impl PartOf {
    /// Whether the part with this id is a worker.
    pub fn is_worker(&self, id: &str) -> bool {
        self.instance != id
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A container that does not end with the process that asked for it: docker's and podman's belong to a daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerRef {
    /// Absolute path of the runtime's client.
    pub program: String,
    /// The container's name, unique on the node.
    pub name: String,
}

/// A set of files on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightsRef {
    /// Revision digest, for files that flock copies; `None` for `on-node:` files.
    pub revision: Option<String>,
    /// Absolute folder on the node.
    pub folder: String,
    /// File names inside it.
    pub files: Vec<String>,
}

/// A set of files to bring to a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchSpec {
    /// `path:…`.
    pub source: String,
    /// Revision digest: SHA-256 over names, sizes and digests of the files.
    pub revision: String,
    /// Absolute folder on the node.
    pub folder: String,
    /// The files.
    pub files: Vec<FetchFile>,
}

/// One file to bring.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchFile {
    /// Name inside the folder: relative, no `..`.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// `sha256:…`; `None` only where the file was not readable when planned (then apply refuses).
    pub sha256: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_version_wrote_can_be_read() {
        let newer = r#"{"revision":null,"folder":"/w","files":["a"],"mirror":"b"}"#;
        let read: WeightsRef = serde_json::from_str(newer).expect("unknown fields are passed over");
        assert_eq!(read.folder, "/w");
        let older = r#"{"instance":"a","specification":"s","model":"m","replica":0,"engine":"vllm","variant":"v",
            "accelerators":[],"argv":["x"],"env":{},"key_env":null,"port":1,"port_alternates":[],"served_name":"m",
            "weights":[],"planned_bytes":[],"planned_host_bytes":0,"ready_timeout_ms":1}"#;
        let read: InstanceSpec = serde_json::from_str(older).expect("later fields have defaults");
        assert_eq!((read.unresponsive_after_ms, read.container.clone()), (0, None));
        let written = serde_json::to_string(&read).expect("plain data");
        assert!(!written.contains("container") && !written.contains("unresponsive"), "{written}");
    }
}
