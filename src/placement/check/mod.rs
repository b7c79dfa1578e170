//! Verifies a placement without sharing the solver's code: `verify` bytes, splits and counts, `policies` the rules,
//! `traffic` the limits of agents and ways out.

pub mod policies;
pub mod traffic;
pub mod verify;
