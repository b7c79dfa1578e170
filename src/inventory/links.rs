//! What nodes have measured about the way to each other and to providers, as their agents keep and tell it.

use serde::{Deserialize, Serialize};

/// Everything one node has measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// To other nodes.
    #[serde(default)]
    pub links: Vec<MeasuredLink>,
    /// To providers.
    #[serde(default)]
    pub endpoints: Vec<MeasuredEndpoint>,
}

/// One measurement between two agents.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MeasuredLink {
    /// The other node.
    pub peer: String,
    /// How long ago, on this node's clock.
    pub age_ms: u64,
    /// Round trip: the median of the exchange, or what the controller sees of both where the agents could not meet.
    pub rtt_us: Option<u64>,
    /// Throughput towards the peer; never more than what the link gives.
    pub bandwidth_bytes_per_s: Option<u64>,
    /// Whether the agents met.
    pub measured: bool,
    /// Why they did not.
    pub problem: Option<String>,
}

/// One measurement towards a provider.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MeasuredEndpoint {
    /// `host:port`.
    pub endpoint: String,
    /// How long ago, on this node's clock.
    pub age_ms: u64,
    /// Time to connect, the median of three.
    pub rtt_us: Option<u64>,
    /// Why it could not be reached.
    pub problem: Option<String>,
}
