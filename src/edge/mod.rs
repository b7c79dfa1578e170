//! The edge: where flock touches the world. Implementations of the traits in `ports`.
//!
//! In: plain targets (an address, a folder, a port). Out: `ports` values with typed failures.
//! [`SshTransport`] and [`LocalTransport`] bring bytes to and from a node; [`AgentNode`] speaks the agent's
//! protocol over either; [`EngineCompletions`] asks an instance; [`DiskWeights`], [`FolderRepository`],
//! [`SystemClock`], [`SystemRandom`] and [`SystemProcesses`] are this machine; [`HfHub`] asks the hub.
//!
//! May import: base, weights, engine, inventory, chat, plan (steps, events), ports. Edges never import each
//! other; what several of them need lies in plain helpers: `agents.rs` (agent binaries and their names), `stream.rs`
//! (deadlines, the hello line), `http.rs`, `digests.rs`, `processes.rs` and `clock.rs`. russh appears only in `ssh/`,
//! gix only in `git.rs` and what is below it, hf-hub and reqwest
//! only in `hub/`.
#![expect(clippy::disallowed_methods, reason = "the edge is where flock touches the world")]

mod agents;
mod clock;
mod digests;
mod engines;
mod git;
mod http;
mod hub;
mod local;
mod node;
mod pool;
mod processes;
mod repository;
mod ssh;
mod stream;
mod weights;

pub use agents::{AgentBinaries, Platform};
pub use clock::{SystemClock, SystemRandom};
pub use engines::EngineCompletions;
pub use http::{HttpError, HttpRequest};
pub use hub::{HfHub, HubLimits, HubProxy, HubSettings};
pub use local::{LocalTarget, LocalTransport};
pub use node::AgentNode;
pub use processes::{SystemProcesses, own_uid};
pub use repository::FolderRepository;
pub use ssh::{Notice, Reached, SshEnvironment, SshNetwork, SshTarget, SshTransport, known_host, ssh_way};
pub use stream::Hello;
pub use weights::DiskWeights;
