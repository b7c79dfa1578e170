//! What flock asks a node agent.

use serde::{Deserialize, Serialize};

use super::{FetchSpec, InstanceSpec, Lease, MemberRecord, revealed};
use crate::base::{EngineKind, Secret};

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
    /// The node downloads the files of a set itself, as far as they are missing, and checks each digest. Answered by
    /// `Progress` while it runs.
    Download {
        /// The set.
        fetch: FetchSpec,
        /// Where from.
        from: HubFiles,
        /// Login there; it stays in memory.
        #[serde(default, with = "revealed::option")]
        token: Option<Secret<String>>,
        /// Most bytes per second.
        #[serde(default)]
        limit_bytes_per_s: Option<u64>,
    },
    /// Offers the files of a complete set to one other agent, encrypted, on a port of the kernel's choice. Ends by
    /// itself.
    Offer {
        /// The set.
        fetch: FetchSpec,
        /// One-time key, 64 hex digits.
        #[serde(with = "revealed")]
        key: Secret<String>,
        /// How long it waits for the other agent, and at any silence of it.
        ttl_ms: u64,
    },
    /// Takes what is missing of a set from an agent that offers it, and checks each digest. Answered by `Progress`
    /// while it runs.
    Take {
        /// The set, as it shall lie here.
        fetch: FetchSpec,
        /// Where the other agent may be, tried in order.
        addresses: Vec<String>,
        /// Its port.
        port: u16,
        /// The key that it was given.
        #[serde(with = "revealed")]
        key: Secret<String>,
        /// Most bytes per second.
        #[serde(default)]
        limit_bytes_per_s: Option<u64>,
    },
    /// Removes weights from the node's store that nothing reads or plans, then what killed transfers left. Never what
    /// lies outside the store, and never what is being received.
    Collect {
        /// Where weights lie, if the config says (`~` allowed).
        weights_path: Option<String>,
        /// Revisions that stay whatever else: what the config, its lock and its plan may want there.
        keep: Vec<String>,
        /// Whether `keep` has what every node of this cluster runs, also those whose state cannot be seen from this one.
        #[serde(default)]
        accounted: bool,
        /// Look, and remove nothing.
        #[serde(default)]
        dry_run: bool,
        /// How long an unfinished transfer must have been silent to count as dead.
        min_age_s: u64,
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
            // What is there of the files is kept, and a second at the same time waits or is told.
            | Self::Download { .. }
            // What is gone is gone.
            | Self::Collect { .. }
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
            // The key is for one meeting.
            | Self::Offer { .. }
            | Self::Take { .. }
            | Self::MeasureListen { .. }
            | Self::MeasureConnect { .. } => false,
        }
    }
}

/// Files of a repository of the hub, as addresses: `ENDPOINT/REPOSITORY/resolve/COMMIT/NAME`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HubFiles {
    /// `https://host`, without a path at its end.
    pub endpoint: String,
    /// `owner/name`.
    pub repository: String,
    /// Commit, 40 hex digits.
    pub commit: String,
}
