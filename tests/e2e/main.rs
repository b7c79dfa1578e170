//! Proves the main job on real hosts: sshd in network namespaces, a real llama-server with a real small
//! model, and a stand-in driver library that gives each host other GPUs. Every test has hosts of its own,
//! two tests at a time; `support::lab` says how.
#![cfg(feature = "agent")]
#![allow(clippy::disallowed_methods, reason = "tests read files, start processes and wait")]
#![allow(clippy::print_stderr, reason = "tests say what they wait for")]

#[path = "../support/headers.rs"]
mod headers;
#[path = "../support/published.rs"]
mod published;
#[path = "../support/mod.rs"]
mod support;

mod calibration;
mod canary;
mod changes;
mod choice;
mod contention;
mod drivers;
mod first_apply;
mod gc;
mod healing;
mod hub;
mod links;
mod nodes;
mod odd_nodes;
mod operate;
mod policies;
mod trust;
