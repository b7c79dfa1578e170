//! What a placement says of itself: why this variant and place, why not others, and what is nearest to fitting.
//!
//! `choice` says why a copy runs as it does, `considered` what else was looked at, `refuse` why a replica has no place
//! and `nearest` the smallest change that gives it one, by what `probe` tries; `victims` tells who made way for whom,
//! `kept` what stays although it could not be started anew, `policies` which rule
//! acted, `phrases` joins names and numbers to sentences.

pub mod choice;
pub mod considered;
pub mod kept;
pub mod nearest;
pub mod phrases;
pub mod policies;
pub mod probe;
pub mod refuse;
pub mod span;
pub mod victims;
