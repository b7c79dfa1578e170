//! What a JSON schema says about a field, where its content is in the tree.

use serde_json::Value;

use crate::base::{Tree, TreeEntry};

/// What is known about a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// The schema's content is not there, or says nothing.
    Unknown,
    /// Its type.
    Type(String),
    /// There is no such field.
    NoField { field: String, known: Vec<String> },
}

/// Whether a file is a schema as far as can be seen; the reason if not.
pub(super) fn problem(tree: &Tree, path: &str) -> Option<String> {
    let Some(TreeEntry::File(bytes)) = tree.get(path) else { return None };
    match serde_json::from_slice::<Value>(bytes) {
        Ok(Value::Object(_) | Value::Bool(_)) => None,
        Ok(_) => Some("a JSON schema is an object".to_owned()),
        Err(error) => Some(format!("not JSON: {error}")),
    }
}

/// Follows fields through a schema.
pub(super) fn follow(tree: &Tree, path: &str, fields: &[&str]) -> Found {
    let Some(TreeEntry::File(bytes)) = tree.get(path) else { return Found::Unknown };
    let Ok(root) = serde_json::from_slice::<Value>(bytes) else { return Found::Unknown };
    let mut at = &root;
    for field in fields {
        if is_open(at) {
            return Found::Unknown;
        }
        if let (Some(items), true) = (at.get("items"), field.bytes().all(|b| b.is_ascii_digit())) {
            at = items;
            continue;
        }
        let Some(properties) = at.get("properties").and_then(Value::as_object) else { return Found::Unknown };
        match properties.get(*field) {
            Some(next) => at = next,
            None if at.get("additionalProperties").is_none_or(|more| more == &Value::Bool(false))
                && at.get("patternProperties").is_none() =>
            {
                return Found::NoField { field: (*field).to_owned(), known: properties.keys().cloned().collect() };
            }
            None => return Found::Unknown,
        }
    }
    match at.get("type").and_then(Value::as_str) {
        Some(kind) if !is_open(at) => Found::Type(kind.to_owned()),
        _ => Found::Unknown,
    }
}

/// Schemas that say more than can be followed here.
fn is_open(schema: &Value) -> bool {
    ["$ref", "anyOf", "oneOf", "allOf", "if"].iter().any(|word| schema.get(word).is_some())
}
