//! Sizes of published models from headers generated for them, held against what real engines reported.

#[path = "../../benches/accuracy/mod.rs"]
mod accuracy;
#[path = "../support/headers.rs"]
mod headers;

mod live;
mod measured;
mod published;
