//! Which model runs where: demand to shapes to a mixed-integer program to a placement, with reasons.
//!
//! In: the desired state, the inventory, candidate weights. Out: `Placement`: named accelerators for every
//! replica that fits, and for every one that does not, what was needed and what there was, per node.
//! Inside: `build` makes a `Problem` of what may run where, with sizing; `problem` is everything the solver looks at,
//! as plain values, `layout` and `ports` what its numbers mean; `exact` solves it with every accelerator looked at by itself, `large` over counts of equal ones;
//! `milp` hands rows to HiGHS, `solve` chooses between the two and turns the answer into a placement, `egress` chooses
//! the ways out to providers. `words` says why and why not, `explain` what would change the answer, `check` verifies
//! without sharing the solver's code.
//! May import: base, config, weights, engine, inventory, sizing. Pure; the only room that uses the solver.

mod build;
mod candidate;
mod check;
mod egress;
mod exact;
mod explain;
mod explained;
mod large;
mod layout;
mod milp;
mod outcome;
mod place;
mod ports;
mod problem;
mod solve;
mod words;

#[cfg(test)]
mod tests;

pub use build::deny::{Denied, denied};
pub use build::distances::{TURN_HALF, Ways};
pub use build::flows::{DEFAULT_PER_TURN, IMPLIED_WEIGHT, NEAR_PER_TURN, traffic};
pub use build::shapes::{Options, build};
pub use candidate::*;
pub use check::verify::check;
pub use egress::{Egress, EgressOption};
pub use exact::tiers::Event;
pub use explain::change::Change;
pub use explained::*;
pub use outcome::*;
pub use place::{Solution, explain, place, place_and_keep, place_watched};
pub use problem::*;
pub use solve::solve;
