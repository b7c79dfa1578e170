//! Which model runs where: demand to shapes to a mixed-integer program to a placement, with reasons.
//!
//! In: the desired state, the inventory, candidate weights. Out: `Placement`: named accelerators for every
//! replica that fits, and for every one that does not, what was needed and what there was, per node.
//! Inside: `supply` and `shapes` build a `Problem` with sizing; `problem` is everything the solver looks at, as plain
//! values; `columns` writes it as rows, `milp`
//! hands rows to HiGHS, `tiers` solves the strict tiers from `greedy`'s incumbent, `solve` turns the answer into
//! a placement, `choice`, `refuse` and `considered` say why and why not, `check` verifies without sharing the solver's code.
//! May import: base, config, weights, engine, inventory, sizing. Pure; the only room that uses the solver.

mod candidate;
mod check;
mod choice;
mod columns;
mod considered;
mod greedy;
mod holding;
mod layout;
mod milp;
mod nearest;
mod outcome;
mod place;
mod problem;
mod refuse;
mod shapes;
mod solve;
mod supply;
mod tiers;

#[cfg(test)]
mod tests;

pub use candidate::*;
pub use check::check;
pub use outcome::*;
pub use place::place;
pub use problem::*;
pub use shapes::{Options, build};
pub use solve::solve;
