//! The one place that runs config, inventory, sizing, placement and plan in a row.
//!
//! In: the desired state and the ports to nodes and weights. Out: the observed state, candidates, a plan.
//! May import: every room above it except workflow and gateway.

mod links;
mod members;
mod observe;
mod pipeline;
mod sources;

pub use links::{Extent, measure};
pub use observe::{Observed, engine_queries, observe};
pub use pipeline::{Pipeline, Planned};
pub use sources::{SOURCE_DIAGNOSTICS, find_candidates, on_node_paths, unlocked};
