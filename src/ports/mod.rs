//! The traits through which flock touches the world, with typed failures.
//!
//! In and out: values of base, inventory, plan. Implemented by edge; used by converge, reconcile and cli.
//! May import: base, weights, inventory, chat, plan (steps, events). Nothing else lives here.

mod clock;
mod completions;
mod files;
mod hub;
mod node;
mod repository;
#[cfg(test)]
pub(crate) mod testing;

pub use clock::*;
pub use completions::*;
pub use files::*;
pub use hub::*;
pub use node::*;
pub use repository::*;
