//! JSON documents: pretty, in a stable order, beginning with `"format": 1`.

use serde::Serialize;

use crate::plan::{Decay, Drift};

/// A document as printed: pretty, with a closing newline.
pub fn json(document: &impl Serialize) -> String {
    let mut text = serde_json::to_string_pretty(document).expect("documents are plain data with string keys");
    text.push('\n');
    text
}

/// `flock drift --format json`.
#[derive(Debug, Clone, Serialize)]
pub struct DriftDocument<'a> {
    /// 1.
    pub format: u32,
    /// What the world changed by itself.
    pub drift: &'a [Drift],
    /// What changed about the facts.
    pub decay: &'a [Decay],
}

impl<'a> DriftDocument<'a> {
    /// What was found.
    pub fn of(drift: &'a [Drift], decay: &'a [Decay]) -> Self {
        Self { format: 1, drift, decay }
    }
}
