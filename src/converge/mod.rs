//! Carrying out a plan: lease, preflight, steps in their order, health, and a stream of events.
//!
//! In: a plan and the ports to its nodes. Out: events while it runs, an outcome at the end. Never asks a
//! question and never decides: the plan holds everything. May import: base, engine, inventory, chat, plan, ports.

mod fetch;
mod lease;
mod meter;
mod preflight;
mod record;
mod run;
mod step;
#[cfg(test)]
mod tests_fetch;

pub use lease::{LeaseError, Leases, World, remember};
pub use preflight::{PreflightError, preflight};
pub use record::ways_out;
pub use run::{Converge, ConvergeError, Converged};
