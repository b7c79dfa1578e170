//! The agent protocol: frames over the standard streams of `flock-agent serve`.
//!
//! A frame is one kind byte (`J` a JSON message, `B` raw bytes of a file), a big-endian `u32` length and
//! the payload. The client sends one request and reads one response; `Put` is followed by `B` frames that
//! end with an empty one, and only then answered. Before the first frame both sides skip anything up to the
//! line [`HELLO`], so that a login banner cannot corrupt the stream.

use serde::{Deserialize, Serialize};

use super::{FetchSpec, InstanceFacts, InstanceSpec, Lease, MemberRecord, NodeFacts};
use crate::base::{EngineKind, Secret};

/// The line after which frames begin, in both directions; it carries the protocol's version.
pub const HELLO: &str = "flock-agent protocol 1";
/// Longest JSON frame that is accepted.
pub const MAX_JSON: usize = 64 << 20;
/// Longest raw frame that is sent or accepted.
pub const MAX_RAW: usize = 1 << 20;
/// Kind byte of a JSON frame.
pub const KIND_JSON: u8 = b'J';
/// Kind byte of a raw frame.
pub const KIND_RAW: u8 = b'B';

/// An engine to look for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EngineQuery {
    /// Which one.
    pub kind: EngineKind,
    /// Absolute paths from the config, tried first; then `PATH`.
    pub paths: Vec<String>,
}

/// What flock asks a node agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "one lives at a time, and each crosses a wire")]
pub enum Request {
    /// All facts. Starts nothing.
    Probe {
        /// Engines to look for.
        engines: Vec<EngineQuery>,
        /// Where weights lie, if the config says (`~` allowed).
        weights_path: Option<String>,
        /// `on-node:` paths to read.
        on_node: Vec<String>,
    },
    /// The instances of this cluster and node, without the rest of the probe.
    Instances,
    /// Takes or renews the lease; refused while another id holds an unexpired one.
    Lease {
        /// The wanted lease; `expires_unix_ms` is ignored, the node computes it from `ttl_ms`.
        lease: Lease,
        /// How long it lasts without renewal.
        ttl_ms: u64,
        /// The generation that the node must hold when it is taken anew, where the caller planned from it.
        #[serde(default)]
        expected_generation: Option<u64>,
    },
    /// Gives the lease back.
    Release {
        /// The holder's id.
        id: String,
    },
    /// Ends whoever holds the lease.
    BreakLease,
    /// Stores the member record unless the node holds a newer one.
    WriteMember {
        /// The record; its generation must not be older than the node's.
        member: MemberRecord,
    },
    /// How much of a file set is there.
    FetchState {
        /// The wanted files.
        fetch: FetchSpec,
    },
    /// Receives one file, from `offset` on, then checks its digest. Followed by raw frames.
    Put {
        /// The set it belongs to.
        fetch: FetchSpec,
        /// The file's name.
        name: String,
        /// First byte that follows.
        offset: u64,
    },
    /// Checks that all files of a set are there and marks it complete.
    FetchDone {
        /// The set.
        fetch: FetchSpec,
    },
    /// Adds an instance to the desired state and starts it. Needs the supervisor, and starts it.
    Start {
        /// The apply's generation.
        generation: u64,
        /// What to run.
        spec: Box<InstanceSpec>,
    },
    /// Takes an instance out of the desired state, stops its process group and waits until it is gone
    /// and its accelerators' memory is free.
    Stop {
        /// The apply's generation.
        generation: u64,
        /// The instance.
        instance: String,
        /// Grace before SIGKILL.
        grace_ms: u64,
    },
    /// Makes sure that a supervisor runs and keeps what the desired state names.
    Supervise {
        /// The apply's generation.
        generation: u64,
    },
    /// Ends the supervisor and forgets this cluster on this node. Refused while instances are desired.
    Forget {
        /// The apply's generation.
        generation: u64,
    },
    /// The instance's key, for the one who may ask it.
    Key {
        /// The instance.
        instance: String,
    },
    /// The end of an instance's log.
    Log {
        /// The instance.
        instance: String,
        /// Byte position to read from; `None` for the last `max_bytes`.
        from: Option<u64>,
        /// Most bytes to return.
        max_bytes: u64,
    },
}

/// What a node agent answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "response", rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "one lives at a time, and each crosses a wire")]
pub enum Response {
    /// To `Probe`.
    Facts {
        /// The node.
        node: Box<NodeFacts>,
        /// The member record this node holds.
        member: MemberRecord,
        /// The specifications of the desired instances.
        desired: Vec<InstanceSpec>,
    },
    /// To `Instances`, `Start`, `Supervise`.
    Instances {
        /// All instances of the cluster on this node.
        instances: Vec<InstanceFacts>,
    },
    /// Done, nothing to tell.
    Done,
    /// To `FetchState` and `Put`: bytes present per file, in the order of the set.
    Fetched {
        /// The set is complete and checked.
        complete: bool,
        /// Bytes of each file that need not be sent again.
        have_bytes: Vec<u64>,
    },
    /// To `Key`.
    Key {
        /// The key.
        #[serde(with = "revealed")]
        key: Secret<String>,
        /// The port the engine really listens on.
        port: u16,
        /// Name the engine serves the model under.
        served_name: String,
    },
    /// To `Log`.
    Log {
        /// Position after the last byte returned.
        next: u64,
        /// The text, lossily decoded.
        text: String,
    },
    /// It could not be done.
    Refused {
        /// Why.
        refusal: Refusal,
    },
}

/// A secret on the wire: a plain string there, and hidden wherever a message is printed.
mod revealed {
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::base::Secret;

    pub fn serialize<S: Serializer>(secret: &Secret<String>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(secret.reveal())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Secret<String>, D::Error> {
        String::deserialize(deserializer).map(Secret::new)
    }
}

/// Why a node agent refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "refusal", rename_all = "snake_case")]
pub enum Refusal {
    /// Another apply holds the lease.
    #[error("the lease is held by {holder} since {since}")]
    LeaseHeld {
        /// Who.
        holder: String,
        /// Since when, RFC 3339.
        since: String,
        /// Milliseconds until it expires unless renewed.
        expires_in_ms: u64,
    },
    /// The request's generation is older than the node's.
    #[error("generation {offered} is older than the node's {held}")]
    Stale {
        /// In the request.
        offered: u64,
        /// On the node.
        held: u64,
    },
    /// Nothing of that name here.
    #[error("{what} is not known here")]
    Unknown {
        /// What was asked for.
        what: String,
    },
    /// Not enough disk.
    #[error("{path} has {free_bytes} bytes free and needs {needed_bytes}")]
    Disk {
        /// Where.
        path: String,
        /// Needed.
        needed_bytes: u64,
        /// Free.
        free_bytes: u64,
    },
    /// A file arrived with another digest.
    #[error("{file} has digest {found}, expected {expected}")]
    Digest {
        /// The file.
        file: String,
        /// What was promised.
        expected: String,
        /// What arrived.
        found: String,
    },
    /// Anything else; the text is for people.
    #[error("{text}")]
    Failed {
        /// What went wrong.
        text: String,
    },
}

/// Why bytes are no frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Neither `J` nor `B`.
    #[error("unknown frame kind {0:#04x}")]
    Kind(u8),
    /// Longer than the limit.
    #[error("a frame of {0} bytes is longer than allowed")]
    TooLong(usize),
    /// JSON that is no message.
    #[error("malformed message: {0}")]
    Json(String),
}

/// Header of a frame: kind and length, checked against the limits.
pub fn frame_header(header: [u8; 5]) -> Result<(u8, usize), FrameError> {
    let length = u32::from_be_bytes([header[1], header[2], header[3], header[4]]) as usize;
    let limit = match header[0] {
        KIND_JSON => MAX_JSON,
        KIND_RAW => MAX_RAW,
        other => return Err(FrameError::Kind(other)),
    };
    if length > limit { Err(FrameError::TooLong(length)) } else { Ok((header[0], length)) }
}

/// A JSON frame, header included.
pub fn json_frame(message: &impl Serialize) -> Result<Vec<u8>, FrameError> {
    let payload = serde_json::to_vec(message).map_err(|error| FrameError::Json(error.to_string()))?;
    if payload.len() > MAX_JSON {
        return Err(FrameError::TooLong(payload.len()));
    }
    Ok(frame(KIND_JSON, &payload))
}

/// A raw frame, header included. `payload` must not be longer than [`MAX_RAW`].
pub fn raw_frame(payload: &[u8]) -> Vec<u8> {
    debug_assert!(payload.len() <= MAX_RAW);
    frame(KIND_RAW, payload)
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(5 + payload.len());
    bytes.push(kind);
    bytes.extend_from_slice(&(payload.len() as u32).to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// Reads the payload of a JSON frame.
pub fn json_message<T: for<'de> Deserialize<'de>>(payload: &[u8]) -> Result<T, FrameError> {
    serde_json::from_slice(payload).map_err(|error| FrameError::Json(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_crosses_the_wire_and_is_never_printed() {
        let key = Secret::new("0123456789abcdef".to_owned());
        let response = Response::Key { key, port: 20000, served_name: "coder".into() };
        let printed = format!("{response:?} {response:#?}");
        assert!(!printed.contains("0123456789abcdef") && printed.contains("coder"), "{printed}");
        let json = serde_json::json!({
            "response": "key", "key": "0123456789abcdef", "port": 20000, "served_name": "coder",
        });
        assert_eq!(serde_json::to_value(&response).expect("plain data"), json);
        let back: Response = serde_json::from_value(json).expect("the same form");
        assert_eq!(back, response);
        let Response::Key { key, .. } = back else { panic!("a key") };
        assert_eq!(key.reveal(), "0123456789abcdef");
    }
}
