//! Data to words: text for people and JSON for programs. Everything here returns values and prints nothing.
//!
//! In: results and events of the other rooms. Out: strings. Text takes a [`Style`]: colour or none, and a width;
//! colour only repeats what a word or a symbol says. JSON documents begin with `"format": 1` and keep their order.
//! May import: base and the result and event types of every room but edge and cli. Pure.

mod diagnostics;
mod explain;
mod inventory;
mod json;
mod plan_tail;
mod plan_text;
mod progress;
mod size;
mod status;
mod style;
#[cfg(test)]
mod tests;
mod words;

pub use diagnostics::{Validation, diagnostic_text, diagnostics_text};
pub use explain::{Explanation, explain_text};
pub use inventory::inventory_text;
pub use json::{DriftDocument, json};
pub use plan_text::{Amount, PlanView, plan_text, unplaced_text};
pub use progress::{consent_text, drift_text, event_line, outcome_text};
pub use size::size_text;
pub use status::{InstanceStatus, ModelStatus, Status, status, status_text};
pub use style::{Ink, Style, clean, columns, pad, table, wrap};
pub use words::{about, bytes_of, count, device_name, devices, place, short_digest};
