//! flock: git says what should be, nodes say what is, a pure core decides the difference, and a thin
//! shell carries it out.
//!
//! Pure rooms (no async, no I/O, no clock, no randomness), in the order data flows:
//! [`base`] the shared vocabulary; [`config`] KDL to the desired state; [`weights`] what a model is;
//! [`engine`] what a serving program is; [`inventory`] what there is; [`sizing`] bytes and legal splits;
//! [`placement`] the solver; [`plan`] desired against observed; [`chat`] completions.
//! Effects: [`ports`] the traits to the world; [`converge`] runs a plan; [`reconcile`] the pipeline;
//! [`edge`] the ports' implementations; [`agent`] the node side; [`report`] data to words; [`cli`] commands.
//!
//! The import table is enforced by `tests/imports.rs`. The node agent is built from `base`, `weights`,
//! `engine`, `inventory` and `agent` alone.

pub mod base;
pub mod engine;
pub mod inventory;
pub mod weights;

#[cfg(feature = "agent")]
pub mod agent;

#[cfg(feature = "controller")]
pub mod chat;
#[cfg(feature = "controller")]
pub mod cli;
#[cfg(feature = "controller")]
pub mod config;
#[cfg(feature = "controller")]
pub mod converge;
#[cfg(feature = "controller")]
pub mod edge;
#[cfg(feature = "controller")]
pub mod placement;
#[cfg(feature = "controller")]
pub mod plan;
#[cfg(feature = "controller")]
pub mod ports;
#[cfg(feature = "controller")]
pub mod reconcile;
#[cfg(feature = "controller")]
pub mod report;
#[cfg(feature = "controller")]
pub mod sizing;
