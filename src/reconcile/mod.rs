//! The one place that runs config, inventory, sizing, placement and plan in a row.
//!
//! In: the desired state and the ports to nodes, weights and the hub. Out: the observed state, candidates, a plan, and
//! what `flock lock` pins.
//! May import: every room above it except workflow and gateway.

mod links;
mod lock;
mod locked;
mod members;
mod observe;
mod pipeline;
mod resolve;
mod sources;
mod what_if;

pub use links::{Extent, measure, measure_hub};
pub use lock::{Relock, Relocked, Update, relock};
pub use locked::{check_lock, digest_with_lock, read_lock};
pub use observe::{Observed, engine_queries, observe};
pub use pipeline::{Pipeline, Planned};
pub use resolve::{Found, ResolveError, look_on_hub};
pub use sources::{Places, SOURCE_DIAGNOSTICS, contexts_too_long, find_candidates, on_node_paths, unfetched};
pub use what_if::{Supposed, suppose};
