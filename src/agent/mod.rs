//! The node side: what `flock-agent` does on a node.
//!
//! In: frames of the agent protocol on the standard streams of `flock-agent serve`. Out: facts about the
//! node, weights on its disk, and engines that run detached from the connection. `serve` answers one
//! connection and starts nothing by itself; `keep` (the keeper) is the one long-lived process per cluster
//! and node, which starts, watches and stops engines, level-triggered: every tick compares the processes
//! in `/proc` with the desired state on disk. State lies under `~/.local/share/flock/CLUSTER/NODE/`, see
//! [`layout::Layout`]. Threads and blocking I/O, no async runtime.
//!
//! May import: base, weights, engine, inventory.
#![expect(clippy::disallowed_methods, reason = "the agent is where the node's files, clock and processes are touched")]

pub mod clock;
pub mod entry;
pub mod error;
pub mod files;
pub mod frames;
pub mod layout;
pub mod procfs;
pub mod serve;

mod accelerators;
mod amd;
mod calibrate;
mod cgroup;
mod container;
mod dialect;
mod doctor;
mod download;
mod drm;
mod ending;
mod endpoints;
mod engines;
mod gpu;
mod handover;
mod host;
mod http;
mod keeper;
mod kfd;
mod kill;
mod lease;
mod listener;
mod logs;
mod measure;
mod measured;
mod net;
mod nvlink;
mod patience;
mod probe;
mod ready;
mod relay;
mod sealed;
mod socket;
mod spawn;
mod state;
mod store;
mod supervise;
mod tegra;
mod tool;
mod tree;
mod unit;
mod version;
mod weights;
mod who;

pub use entry::main;
