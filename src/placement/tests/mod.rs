//! Tests of the whole room: brute force over small instances, and cases with proven optima.

mod brute;
mod cases;
mod classes;
mod held;
mod inputs;
mod large;
mod measured;
mod mutations;
mod nodes;
mod policies;
mod ports;
mod preemption;
pub mod random;
mod relations;
mod scale;
mod traffic;
mod truth;
mod unequal;
mod variants;
mod why;
