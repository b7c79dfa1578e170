//! Where an inventory that is JSON and no inventory goes wrong: the node by its name, and what of it.
//!
//! serde names a line and a column, which in a file of one line is nowhere. Each element is read by itself once more,
//! so that every node that is wrong is told, and not the first one alone.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{
    Accelerator, AcceleratorLink, AcceleratorProcess, Calibration, Disk, EgressLink, EngineFound, InstanceFacts,
    MemberRecord, NodeFacts, NodeLink, WeightsFound,
};

/// Findings of this many elements are told.
const MOST: usize = 100;

/// What is wrong with the elements of an inventory; empty where they are no cause, or the text is no JSON.
pub(super) fn locate(text: &str) -> Vec<String> {
    let Ok(Value::Object(mut document)) = serde_json::from_str::<Value>(text) else { return Vec::new() };
    let mut found = Vec::new();
    let elements = |document: &mut Map<String, Value>, name: &str| match document.remove(name) {
        Some(Value::Array(elements)) => elements,
        _ => Vec::new(),
    };
    for (position, node) in elements(&mut document, "nodes").into_iter().enumerate() {
        found.extend(of_node(position, node));
    }
    let each = |found: &mut Vec<String>, name: &str, read: fn(Value) -> Option<String>, all: Vec<Value>| {
        let wrong = all.into_iter().enumerate().filter_map(|(position, one)| Some((position, read(one)?)));
        found.extend(wrong.map(|(position, error)| format!("{name}[{position}]: {error}")));
    };
    let links = elements(&mut document, "links");
    each(&mut found, "links", wrong::<NodeLink>, links);
    let egress = elements(&mut document, "egress");
    each(&mut found, "egress", wrong::<EgressLink>, egress);
    found.extend(document.remove("member").and_then(wrong::<MemberRecord>).map(|error| format!("member: {error}")));
    let more = found.len().saturating_sub(MOST);
    found.truncate(MOST);
    found.extend((more > 0).then(|| format!("and {more} more of the kind")));
    found
}

/// Why a value is none of its type, in one line.
fn wrong<T: DeserializeOwned>(value: Value) -> Option<String> {
    serde_json::from_value::<T>(value).err().map(|error| error.to_string())
}

fn of_node(position: usize, node: Value) -> Option<String> {
    let error = wrong::<NodeFacts>(node.clone())?;
    let name = node.get("name").and_then(Value::as_str).filter(|name| !name.is_empty());
    let who = match name {
        Some(name) => format!("node `{name}`"),
        None => format!("node number {}", position + 1),
    };
    let Value::Object(mut fields) = node else { return Some(format!("{who}: {error}")) };
    let inner = inside::<Accelerator>(&mut fields, "accelerators", |fields| {
        inside::<AcceleratorProcess>(fields, "processes", |_| None)
    })
    .or_else(|| inside::<AcceleratorLink>(&mut fields, "accelerator_links", |_| None))
    .or_else(|| inside::<Disk>(&mut fields, "disks", |_| None))
    .or_else(|| inside::<EngineFound>(&mut fields, "engines", |_| None))
    .or_else(|| inside::<WeightsFound>(&mut fields, "weights", |_| None))
    .or_else(|| inside::<InstanceFacts>(&mut fields, "instances", |_| None))
    .or_else(|| inside::<Calibration>(&mut fields, "calibrations", |_| None));
    Some(format!("{who}: {}", inner.unwrap_or(error)))
}

/// The first element of a list that is not what it should be, `deeper` where something in it says more.
fn inside<T: DeserializeOwned>(
    fields: &mut Map<String, Value>,
    name: &str,
    deeper: impl Fn(&mut Map<String, Value>) -> Option<String>,
) -> Option<String> {
    let Some(Value::Array(elements)) = fields.get_mut(name) else { return None };
    elements.iter_mut().enumerate().find_map(|(position, element)| {
        let error = wrong::<T>(element.clone())?;
        let more = element.as_object_mut().and_then(&deeper);
        Some(match more {
            Some(more) => format!("{name}[{position}].{more}"),
            None => format!("{name}[{position}]: {error}"),
        })
    })
}
