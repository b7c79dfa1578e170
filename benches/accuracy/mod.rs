//! What flock predicts against what engines took: rows of the table of measurements, and starts of a real server.

pub mod live;
mod recipes;
mod rows;

pub use rows::*;
