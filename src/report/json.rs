//! JSON documents: pretty, in a stable order, beginning with `"format": 1`.

use serde::Serialize;

use crate::base::is_obeyed;
use crate::plan::{Decay, Drift};

/// A document as printed: pretty, with a closing newline. Means what it was given and shows nothing that a terminal
/// obeys: JSON itself only escapes the first 32 control characters.
pub fn json(document: &impl Serialize) -> String {
    let mut text = serde_json::to_string_pretty(document).expect("documents are plain data with string keys");
    if text.contains(is_obeyed) {
        let escaped = |c: char| if is_obeyed(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() };
        text = text.chars().map(escaped).collect();
    }
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

#[cfg(test)]
mod tests {
    #[test]
    fn a_document_reads_back_and_shows_no_control_character() {
        let document = serde_json::json!({ "a\u{7f}": "b\u{9b}2J\u{202e}c\u{1b}\r\n\té" });
        let text = super::json(&document);
        assert_eq!(text, "{\n  \"a\\u007f\": \"b\\u009b2J\\u202ec\\u001b\\r\\n\\té\"\n}\n");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), document);
    }
}
