//! The agent protocol: frames over the standard streams of `flock-agent serve`.
//!
//! A frame is one kind byte (`J` a JSON message, `B` raw bytes of a file), a big-endian `u32` length and
//! the payload. The client sends one request and reads one response; `Put` is followed by `B` frames that
//! end with an empty one, and only then answered. Before the first frame both sides skip anything up to the
//! line [`HELLO`], so that a login banner cannot corrupt the stream.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::read::refuse_control_characters;
use super::{
    Applied, FetchSpec, HolderProcess, InstanceFacts, InstanceSpec, Lease, Listener, Measured, MeasuredEndpoint,
    MeasuredLink, MemberRecord, NodeFacts,
};
use crate::base::{EngineKind, Secret, many_lines};

/// The line after which frames begin, in both directions; it carries the protocol's version.
pub const HELLO: &str = "flock-agent protocol 1";
/// The protocol's version, as [`HELLO`] says it.
pub const PROTOCOL: u32 = 1;
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
    /// Environment modules to load before looking.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<String>,
    /// The image that it runs in; then the runtime is what is looked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
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
        /// Refused where this very generation has started the instance: an apply stops before it starts, so that then
        /// this is a late copy of an order that was carried out.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        before_start: bool,
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
    /// Looks over the node for what would go wrong there. Changes nothing.
    Doctor {
        /// Engines to look for.
        engines: Vec<EngineQuery>,
        /// Where weights lie, if the config says (`~` allowed).
        weights_path: Option<String>,
        /// First and last port for instances.
        ports: (u16, u16),
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
    /// Nothing: what it takes is the round trip.
    Ping,
    /// Listens for one other agent, encrypted, on a port of the kernel's choice. Ends by itself.
    MeasureListen {
        /// One-time key, 64 hex digits.
        #[serde(with = "revealed")]
        key: Secret<String>,
        /// How long at most.
        ttl_ms: u64,
    },
    /// Measures the way to an agent that listens, and keeps the result, a failure too.
    MeasureConnect {
        /// The other node.
        peer: String,
        /// Where it may be, tried in order.
        addresses: Vec<String>,
        /// Its port.
        port: u16,
        /// The key that it was given.
        #[serde(with = "revealed")]
        key: Secret<String>,
        /// What to keep as the round trip where the agents cannot meet.
        fallback_rtt_us: Option<u64>,
    },
    /// Measures the time to connect to providers, and keeps the results.
    MeasureEndpoints {
        /// `host:port` each.
        endpoints: Vec<String>,
    },
    /// The last applies that this node took part in.
    History,
    /// Who listens on TCP ports of a range.
    Listeners {
        /// First port.
        low: u16,
        /// Last port.
        high: u16,
    },
}

impl Request {
    /// Whether doing it twice is doing it once, also where the second arrives late. The one rule for everybody who asks
    /// again after a connection was lost.
    pub fn may_repeat(&self) -> bool {
        match self {
            Self::Probe { .. }
            | Self::Instances
            | Self::Lease { .. }
            | Self::Release { .. }
            | Self::WriteMember { .. }
            | Self::FetchState { .. }
            | Self::FetchDone { .. }
            | Self::Supervise { .. }
            | Self::Doctor { .. }
            | Self::Key { .. }
            | Self::Log { .. }
            | Self::History
            | Self::Listeners { .. }
            | Self::Ping
            | Self::MeasureEndpoints { .. }
            // An apply starts an instance after it stopped it, and never stops one that it started; a later apply has a
            // higher generation, which the node keeps to.
            | Self::Start { .. }
            | Self::Stop { before_start: true, .. }
            // What is there again meanwhile, the agent keeps.
            | Self::Forget { .. } => true,
            // It would end a lease that somebody else has taken since.
            Self::BreakLease
            | Self::Stop { before_start: false, .. }
            // Frames follow.
            | Self::Put { .. }
            | Self::MeasureListen { .. }
            | Self::MeasureConnect { .. } => false,
        }
    }
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
        /// What the node has measured.
        #[serde(default)]
        measured: Measured,
    },
    /// To `Instances`, `Start`, `Supervise`.
    Instances {
        /// All instances of the cluster on this node.
        instances: Vec<InstanceFacts>,
        /// Whether a supervisor keeps them.
        #[serde(default)]
        supervised: bool,
    },
    /// To `Doctor`.
    Checks {
        /// What was looked at, in a fixed order.
        checks: Vec<Check>,
        /// The node's clock while it answered, Unix milliseconds.
        now_unix_ms: u64,
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
    /// To `MeasureListen`.
    Listening {
        /// The port.
        port: u16,
        /// Addresses of this node that it knows of: the one that this connection came in on.
        addresses: Vec<String>,
    },
    /// To `MeasureConnect`.
    Link {
        /// The result.
        link: MeasuredLink,
    },
    /// To `MeasureEndpoints`.
    Endpoints {
        /// The results, in the order asked for.
        endpoints: Vec<MeasuredEndpoint>,
    },
    /// To `History`: oldest first, at most [`HISTORY_LENGTH`](super::HISTORY_LENGTH).
    History {
        /// The applies.
        applies: Vec<Applied>,
    },
    /// To `Listeners`: sorted by port.
    Listeners {
        /// One entry per listening socket.
        listeners: Vec<Listener>,
    },
    /// It could not be done.
    Refused {
        /// Why.
        refusal: Refusal,
    },
}

/// How a check went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// As it should be.
    Ok,
    /// It works, and will bite under circumstances that the text names.
    Warn,
    /// It does not work.
    Fail,
}

/// One thing that was looked at on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Which one; stable.
    pub id: String,
    /// How it went.
    pub health: Health,
    /// What was found.
    pub text: String,
    /// What to do, as a sentence; `None` where nothing needs to be done.
    pub remedy: Option<String>,
}

impl Check {
    /// Nothing to do.
    pub fn ok(id: &str, text: impl Into<String>) -> Self {
        Self { id: id.to_owned(), health: Health::Ok, text: text.into(), remedy: None }
    }

    /// Works for now.
    pub fn warn(id: &str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { id: id.to_owned(), health: Health::Warn, text: text.into(), remedy: Some(remedy.into()) }
    }

    /// Does not work.
    pub fn fail(id: &str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { id: id.to_owned(), health: Health::Fail, text: text.into(), remedy: Some(remedy.into()) }
    }
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
        /// Id of the lease, for whoever knows that its holder is dead.
        #[serde(default)]
        id: String,
        /// The holder's process, where it is known.
        #[serde(default)]
        process: Option<Box<HolderProcess>>,
    },
    /// Another connection is at it: another apply, or another node that shares the folder.
    #[error("{what} is being received already")]
    Busy {
        /// At what.
        what: String,
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
    serde_json::from_slice(payload).map_err(malformed)
}

/// Reads the payload of a JSON frame whose texts are shown to people. Whoever wrote them (an engine, a file's name, a
/// node that is not what it seems), a terminal obeys none: control characters other than line breaks and tabs become
/// `?`, and a line ends in one character.
pub fn shown_message<T: for<'de> Deserialize<'de>>(payload: &[u8]) -> Result<T, FrameError> {
    if std::str::from_utf8(payload).is_ok_and(|text| refuse_control_characters(text).is_ok()) {
        return json_message(payload);
    }
    let value: Value = json_message(payload)?;
    serde_json::from_value(tidy(value)).map_err(malformed)
}

fn tidy(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(many_lines(&text)),
        Value::Array(items) => Value::Array(items.into_iter().map(tidy).collect()),
        Value::Object(fields) => {
            Value::Object(fields.into_iter().map(|(name, value)| (many_lines(&name), tidy(value))).collect())
        }
        other => other,
    }
}

/// The parser's message quotes what it met.
fn malformed(error: serde_json::Error) -> FrameError {
    FrameError::Json(many_lines(&error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_of_a_node_moves_the_cursor() {
        let text = "a\u{1b}[31m\u{9b}2J b\r\nc\td\u{7f}";
        let payload = serde_json::to_vec(&Response::Log { next: 1, text: text.into() }).expect("plain data");
        assert_eq!(json_message(&payload), Ok(Response::Log { next: 1, text: text.into() }));
        let shown = Response::Log { next: 1, text: "a?[31m?2J b\nc\td?".into() };
        assert_eq!(shown_message(&payload), Ok(shown));
        let fine = serde_json::to_vec(&Response::Log { next: 1, text: "é\n".into() }).expect("plain data");
        assert_eq!(shown_message(&fine), Ok(Response::Log { next: 1, text: "é\n".into() }));
        for broken in ["{\"response\":\"\\u001b[2J\"}", "{\"response\":\"\u{9b}2J\"}", "\u{1b}"] {
            for error in [shown_message::<Response>(broken.as_bytes()), json_message(broken.as_bytes())] {
                let text = error.expect_err("no message").to_string();
                assert!(!text.contains(char::is_control), "{text:?}");
            }
        }
    }

    #[test]
    fn the_hello_line_says_the_protocol() {
        assert_eq!(HELLO, format!("flock-agent protocol {PROTOCOL}"));
    }

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
        let listen = Request::MeasureListen { key: Secret::new("fedcba9876543210".into()), ttl_ms: 1 };
        assert!(!format!("{listen:?}").contains("fedcba"));
        assert_eq!(serde_json::to_value(&listen).expect("plain data")["key"], "fedcba9876543210");
    }
}
