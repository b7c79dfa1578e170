//! Tests of the whole room: brute force over small instances, and cases with proven optima.

mod brute;
mod cases;
mod inputs;
mod measured;
pub mod random;
mod scale;
mod variants;
