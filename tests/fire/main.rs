//! The main job under fire: flock, its node agents and engines killed at every step, cables cut and healed in every
//! phase, disks full, weights altered, ports and memory taken, engines that are broken, hosts that are dead. On real
//! SSH hosts with the real llama-server; what fails is real too, but for engines that must be broken.
//!
//! Each test prints a table of its cases with what was broken and how long the recovery took, and appends it to the file
//! that `FLOCK_FIRE_REPORT` names. `scripts/fire` runs every case; `cargo test` leaves out those that take minutes.
#![cfg(feature = "agent")]
#![allow(clippy::disallowed_methods, reason = "tests read files, start processes and wait")]
#![allow(clippy::print_stderr, reason = "tests print their tables")]

#[path = "../support/mod.rs"]
mod support;

mod cables;
mod engines;
mod files;
mod kills;
mod many;
mod processes;
mod table;
mod tiny;
mod world;
