//! Desired against observed: ordered steps with a reason each, protections, the plan document, a checker.
//!
//! In: desired state, inventory, placement. Out: `Plan`, the same bytes for the same input; what to confirm; what
//! moved since a plan was saved; the events of an apply.
//! The way: `specify` and `ports` say what should run, `observe` what runs, `diff` what differs and `reason` why,
//! `schedule` and `fetch` what waits for what, `gate`, `protect` and `hold` what may not be done or has to wait, `route`
//! how weights come. `check` shares no code with them.
//! May import: base, config, weights, engine, inventory, sizing, placement. Pure.

mod build;
mod check;
mod consent;
mod destroy;
mod diff;
mod digest;
mod document;
mod drift;
mod events;
mod fetch;
mod gate;
mod guard;
mod hold;
mod ids;
mod input;
mod keep;
mod launch;
mod measured;
mod observe;
mod ports;
#[cfg(test)]
mod properties;
mod protect;
mod reason;
mod route;
mod rules;
mod schedule;
mod select;
mod specify;
mod stays;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_keep;
#[cfg(test)]
mod tests_measured;
#[cfg(test)]
mod tests_nodes;
#[cfg(test)]
mod tests_policies;
#[cfg(test)]
mod tests_routes;
#[cfg(test)]
mod tests_trust;
mod window;
mod workers;

pub use build::plan;
pub use check::check;
pub use consent::{Consent, Strength, consent};
pub use destroy::{DestroyInput, destroy_plan};
pub use digest::{TOLERANCE_BYTES, inventory_digest, plan_digest, seal};
pub use document::*;
pub use drift::{decay, drift};
pub use events::{Event, Outcome, StepEnd};
pub use fetch::only_fetches;
pub use guard::{disk_of, guards, loads_onto, memory_taken, stale, touched};
pub use hold::{APPROVAL_MS, held_now, moves, step_key};
pub use ids::{FOREIGN, NOT_PLACED, PLAN_DIAGNOSTICS};
pub use input::{Limits, Moment, ObservedSpecs, PlanInput, unreachable_nodes};
pub use observe::{Observed, observe};
pub use ports::DEFAULT_RANGE as DEFAULT_PORTS;
pub use select::{SelectError, Selection};
pub use specify::{Located, instance_id, weights_on_node};
