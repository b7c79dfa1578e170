//! Graphs for `flock graph`: what is drawn (`hardware`, `placement`, `workflow`), and how (`draw`).
//!
//! A [`Graph`] is groups, vertices in them and edges between either. Names in it are as the config and the drivers
//! give them; each way of drawing escapes what its language would obey.

mod draw;
mod hardware;
mod model;
mod placement;
#[cfg(test)]
mod tests;
mod workflow;

pub use draw::{graph_dot, graph_mermaid, graph_text};
pub use hardware::hardware_graph;
pub use model::{Edge, Graph, Group, Vertex};
pub use placement::placement_graph;
pub use workflow::workflow_graph;
