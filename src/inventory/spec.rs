//! What a node agent is told to run, and the weights it is told to hold.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::base::EngineKind;

/// A running copy of a model: everything the agent needs, nothing to decide.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
}

/// A set of files on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
#[serde(deny_unknown_fields)]
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
#[serde(deny_unknown_fields)]
pub struct FetchFile {
    /// Name inside the folder: relative, no `..`.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// `sha256:…`; `None` only where the file was not readable when planned (then apply refuses).
    pub sha256: Option<String>,
}
