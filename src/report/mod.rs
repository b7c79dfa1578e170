//! Data to words: text for people and JSON for programs. Everything here returns values and prints nothing.
//!
//! In: results and events of the other rooms. Out: strings. Text takes a [`Style`]: colour or none, and a width;
//! colour only repeats what a word or a symbol says. JSON documents begin with `"format": 1` and keep their order.
//! May import: base and the result and event types of every room but edge and cli. Pure.

mod diagnostics;
mod doctor;
mod egress;
mod explain;
mod explain_egress;
mod explain_node;
mod findings;
mod gc;
mod graph;
mod held_back;
mod inventory;
mod json;
mod lock;
mod plan_markdown;
mod plan_tail;
mod plan_text;
mod progress;
mod records;
mod schema;
mod size;
mod size_fits;
mod status;
mod style;
#[cfg(test)]
mod tests;
mod unmanaged;
mod what_if;
mod words;

pub use diagnostics::{Fit, Validation, diagnostics_text, findings_text, validation_text};
pub use doctor::{DoctorDocument, DoctorNode, doctor_text};
pub use explain::{Explanation, explain_text};
pub use explain_egress::{Between, Exchange, WayExplanation, explain_way_text};
pub use explain_node::{Absent, Load, NodeExplanation, explain_node_text};
pub use findings::{MAX_COMMENT, MAX_RESULTS, findings_markdown, github_annotations, known_diagnostics, sarif, unfit};
pub use gc::{GcDocument, GcNode, gc_text};
pub use graph::{
    Edge, Graph, Group, Vertex, graph_dot, graph_mermaid, graph_text, hardware_graph, placement_graph, workflow_graph,
};
pub use held_back::{HeldBack, Stays};
pub use inventory::inventory_text;
pub use json::{DriftDocument, json};
pub use lock::{LockDocument, ModelPins, SourcePins, VariantPin, lock_text};
pub use plan_markdown::{MARKDOWN_LIMIT, plan_markdown};
pub use plan_text::{Amount, PlanView, plan_text, unplaced_text};
pub use progress::{consent_text, drift_text, event_line, outcome_text};
pub use records::{History, Leases, applied_text, history, history_text, leases, leases_text};
pub use schema::schema_text;
pub use size::size_text;
pub use status::{HeldNode, InstanceStatus, ModelStatus, Status, status, status_text};
pub use style::{Ink, Style, clean, columns, pad, table, wrap};
pub use unmanaged::{Unmanaged, unmanaged, unmanaged_text};
pub use what_if::{Difference, State, SupposedPlan, what_if_markdown, what_if_text};
pub use words::{about, bytes_of, count, device_name, devices, place, short_digest, verb};
