//! Findings for code hosts: GitHub annotations, SARIF, and a table in markdown.
//!
//! In: diagnostics. Out: strings. Each format has limits of its own (ten annotations, 5000 results, 65,536 characters
//! of a comment); what is beyond them is counted and said, never dropped silently. Pure.

mod github;
mod markdown;
mod rules;
mod sarif;
mod unfit;

pub use github::github_annotations;
pub use markdown::{MAX_COMMENT, findings_markdown};
pub use rules::known_diagnostics;
pub use sarif::{MAX_RESULTS, sarif};
pub use unfit::unfit;
