//! Tests of the whole room: brute force over small instances, and cases with proven optima.

mod brute;
mod cases;
mod classes;
mod inputs;
mod large;
mod measured;
mod mutations;
mod policies;
mod preemption;
pub mod random;
mod relations;
mod scale;
mod traffic;
mod unequal;
mod variants;
mod why;
