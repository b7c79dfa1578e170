//! Which model runs where: demand to shapes to a mixed-integer program to a placement, with reasons.
//!
//! In: the desired state, the inventory, candidate weights. Out: `Placement`: named accelerators for every
//! replica that fits, and for every one that does not, what was needed and what there was, per node.
//! Inside: `supply` and `shapes` build a `Problem` with sizing; `problem` is everything the solver looks at, as plain
//! values; `flows` and `distances` say what is sent how far. In a large cluster `classes` finds the nodes that are
//! equal, so that shapes and reasons are built once for each kind of machine, and `room` tells what is left on any of
//! them. `columns` and `traffic` write a problem as rows, `milp`
//! hands rows to HiGHS, `tiers` solves the strict tiers from `greedy`'s incumbent, `solve` turns the answer into
//! a placement, `egress` chooses the ways out to providers, `choice`, `refuse` and `considered` say why and why not,
//! `check` verifies without sharing the solver's code. Shapes of several parts come from `unequal`, `offload` and
//! `vision`, rules from `deny`, `quota` and `policy_rows`; `damping` keeps back moves, `large` solves large clusters.
//! `why` explains one model: `account` counts the objective by term, `rival` forces what was not taken, `trial` solves
//! what `change` changes: `sensitivity` for what would turn the answer, `conflict` for what is in the way together.
//! May import: base, config, weights, engine, inventory, sizing. Pure; the only room that uses the solver.

mod account;
mod candidate;
mod change;
mod check;
mod check_policy;
mod check_traffic;
mod choice;
mod classes;
mod columns;
mod conflict;
mod considered;
mod damping;
mod deny;
mod distances;
mod egress;
mod explained;
mod flows;
mod greedy;
mod holding;
mod large;
mod layout;
mod milp;
mod nearest;
mod offload;
mod outcome;
mod parts;
mod place;
mod policy_rows;
mod policy_words;
mod price;
mod problem;
mod quota;
mod refuse;
mod rival;
mod room;
mod sensitivity;
mod shapes;
mod solve;
mod supply;
mod tiers;
mod traffic;
mod trial;
mod unequal;
mod victims;
mod vision;
mod why;
mod words;

#[cfg(test)]
mod tests;

pub use candidate::*;
pub use change::Change;
pub use check::check;
pub use deny::{Denied, denied};
pub use distances::{TURN_HALF, Ways};
pub use egress::{Egress, EgressOption};
pub use explained::*;
pub use flows::{DEFAULT_PER_TURN, IMPLIED_WEIGHT, NEAR_PER_TURN, traffic};
pub use outcome::*;
pub use place::{Solution, explain, place, place_and_keep};
pub use problem::*;
pub use shapes::{Options, build};
pub use solve::{solve, solve_watched};
pub use tiers::Event;
