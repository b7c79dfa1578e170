//! Reading an inventory file: defaults for hand-written ones, and a check that it does not contradict itself.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

use super::locate::locate;
use super::{Inventory, NodeFacts};
use crate::base::is_obeyed;

/// Largest figure in bytes, or bytes per second, that is believed: an exbibyte.
const MAX_BYTES: u64 = 1 << 60;

/// Why an inventory cannot be used. Every finding is listed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct InventoryError(pub Vec<String>);

/// Reads an inventory document, fills in defaults (`uuid` is `NODE#INDEX`) and checks it.
pub fn parse_inventory(text: &str) -> Result<Inventory, InventoryError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    refuse_control_characters(text)?;
    let mut inventory: Inventory = serde_json::from_str(text).map_err(|error| {
        let found = locate(text);
        // One finding keeps its line and column beside its place.
        InventoryError(match &found[..] {
            [] => vec![error.to_string()],
            [one] => vec![format!("{one} (line {}, column {})", error.line(), error.column())],
            _ => found,
        })
    })?;
    let mut problems = Vec::new();
    if inventory.format != 1 {
        problems.push(format!("format {} is not supported; this flock reads format 1", inventory.format));
    }
    for node in &mut inventory.nodes {
        fill(node);
    }
    inventory.nodes.sort_by(|a, b| a.name.cmp(&b.name));
    check(&inventory, &mut problems);
    if problems.is_empty() { Ok(inventory) } else { Err(InventoryError(problems)) }
}

/// What is read from a file is shown on terminals: an escape sequence in it could show something else. Line breaks and
/// tabs are harmless; all other control characters are refused, written as they are (JSON allows U+007F to U+009F, among
/// them the one-character CSI) or as any of JSON's escapes.
pub fn refuse_control_characters(json: &str) -> Result<(), InventoryError> {
    let mut line = 1;
    let mut rest = json.chars();
    while let Some(c) = rest.next() {
        let meant = match c {
            '\n' => {
                line += 1;
                continue;
            }
            // Between JSON's values; inside a text the parser refuses it.
            '\r' => continue,
            '\\' => match rest.next() {
                Some('b') => '\u{8}',
                Some('f') => '\u{c}',
                Some('r') => '\r',
                Some('u') => {
                    let code = rest.as_str().get(..4).and_then(|digits| u32::from_str_radix(digits, 16).ok());
                    code.and_then(char::from_u32).unwrap_or(' ')
                }
                _ => continue,
            },
            other => other,
        };
        if is_obeyed(meant) {
            let code = u32::from(meant);
            return Err(InventoryError(vec![format!("line {line} holds the control character \\u{code:04x}")]));
        }
    }
    Ok(())
}

fn fill(node: &mut NodeFacts) {
    let all_zero = node.accelerators.len() > 1 && node.accelerators.iter().all(|a| a.index == 0);
    for (position, accelerator) in node.accelerators.iter_mut().enumerate() {
        if all_zero {
            accelerator.index = position as u32;
        }
        if accelerator.uuid.is_empty() {
            accelerator.uuid = format!("{}#{}", node.name, accelerator.index);
        }
    }
}

fn check(inventory: &Inventory, problems: &mut Vec<String>) {
    let mut names = BTreeSet::new();
    let mut uuids: BTreeMap<&str, &str> = BTreeMap::new();
    for node in &inventory.nodes {
        let name = node.name.as_str();
        if name.is_empty() || name.chars().any(|c| c.is_control() || c == '/') || name.starts_with('-') {
            problems.push(format!("node name {name:?} is empty or has characters that names may not have"));
        }
        if !names.insert(name) {
            problems.push(format!("node `{name}` is listed twice"));
        }
        for accelerator in &node.accelerators {
            let uuid = accelerator.uuid.as_str();
            if let Some(other) = uuids.insert(uuid, name) {
                problems.push(format!("accelerator `{uuid}` is on node `{name}` and on node `{other}`"));
            }
            let memory = &accelerator.memory;
            if let Some(total) = memory.total_bytes {
                for (what, part) in
                    [("used", memory.used_bytes), ("free", memory.free_bytes), ("reserved", memory.reserved_bytes)]
                {
                    if part.is_some_and(|part| part > total) {
                        problems.push(format!(
                            "accelerator `{uuid}` on `{name}`: {what}_bytes {} is more than total_bytes {total}",
                            part.unwrap_or(0)
                        ));
                    }
                }
                if let (Some(used), Some(free)) = (memory.used_bytes, memory.free_bytes)
                    && used.saturating_add(free) > total
                {
                    problems.push(format!("accelerator `{uuid}` on `{name}`: used_bytes and free_bytes together are more than total_bytes {total}"));
                }
            }
        }
        if let (Some(total), Some(available)) = (node.ram.total_bytes, node.ram.available_bytes)
            && available > total
        {
            problems
                .push(format!("node `{name}`: ram.available_bytes {available} is more than ram.total_bytes {total}"));
        }
        check_references(node, problems);
        check_sizes(&format!("node `{name}`"), node, problems);
    }
    check_sizes("links", &inventory.links, problems);
    for link in &inventory.links {
        for end in [&link.from, &link.to] {
            if !names.contains(end.as_str()) {
                problems.push(format!("a link names node `{end}`, which is not listed"));
            }
        }
    }
}

/// Refuses sizes that no machine has: sums of them would overflow.
fn check_sizes(what: &str, document: &impl Serialize, problems: &mut Vec<String>) {
    match serde_json::to_value(document) {
        Ok(value) => check_numbers(what, "", &value, problems),
        Err(error) => problems.push(format!("{what}: {error}")),
    }
}

fn check_numbers(what: &str, path: &str, value: &Value, problems: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                check_numbers(what, &path, field, problems);
            }
        }
        Value::Array(items) => {
            for (position, item) in items.iter().enumerate() {
                check_numbers(what, &format!("{path}[{position}]"), item, problems);
            }
        }
        Value::Number(number) if path.rsplit('.').next().is_some_and(|name| name.contains("bytes")) => {
            if let Some(bytes) = number.as_u64().filter(|bytes| *bytes > MAX_BYTES) {
                problems.push(format!("{what}: {path} {bytes} is more than 2^60 bytes"));
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn check_references(node: &NodeFacts, problems: &mut Vec<String>) {
    let name = &node.name;
    for link in &node.accelerator_links {
        for end in [&link.a, &link.b] {
            if node.accelerator(end).is_none() {
                problems.push(format!("node `{name}`: a link names accelerator `{end}`, which is not on it"));
            }
        }
    }
    let mut ports = BTreeMap::new();
    let mut ids = BTreeSet::new();
    for instance in &node.instances {
        if !ids.insert(&instance.instance) {
            problems.push(format!("node `{name}`: instance `{}` is listed twice", instance.instance));
        }
        if let Some(other) = ports.insert(instance.port, &instance.instance) {
            problems.push(format!(
                "node `{name}`: instances `{}` and `{other}` have the same port {}",
                instance.instance, instance.port
            ));
        }
    }
    if let Some([low, high]) = node.ip_local_port_range
        && low > high
    {
        problems.push(format!("node `{name}`: ip_local_port_range {low} to {high} is upside down"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hand_written_inventory_needs_names_and_memory_only() {
        let text = r#"{"format":1,"nodes":[{"name":"a","accelerators":[
            {"name":"NVIDIA GeForce RTX 4090","memory":{"total_bytes":25757220864}},
            {"name":"NVIDIA GeForce RTX 4090","memory":{"total_bytes":25757220864}}]}]}"#;
        let inventory = parse_inventory(text).expect("valid");
        let node = &inventory.nodes[0];
        assert!(node.reachable && node.engines.is_none());
        assert_eq!(node.accelerators[1].uuid, "a#1");
        assert!(node.accelerators[0].healthy);
    }

    #[test]
    fn reasons_stand_beside_what_is_unknown_and_weights_say_what_they_are() {
        let text = r#"{"format":1,"nodes":[{"name":"a",
            "os":{"kernel":"6.1","unknown":{"libc":"not asked"}},"cpu":{"unknown":{"model":"x"}},
            "ram":{"total_bytes":5,"available_bytes":null,"unknown":{"available_bytes":"no /proc"}},
            "accelerators":[{"name":"X","memory":{"total_bytes":9,"free_bytes":null,"unknown":{"free_bytes":"not supported"}}}],
            "weights":[{"source":"on-node:/m.gguf","revision":"r","files":["m.gguf"],"size_bytes":1,"sha256":"ab","architecture":null}]}]}"#;
        let inventory = parse_inventory(text).expect("valid");
        let node = &inventory.nodes[0];
        assert_eq!(node.accelerators[0].memory.unknown["free_bytes"], "not supported");
        assert_eq!(node.ram.unknown["available_bytes"], "no /proc");
        assert_eq!(node.weights[0].sha256.as_deref(), Some("ab"));
        let again = parse_inventory(&serde_json::to_string(&inventory).expect("plain data")).expect("valid");
        assert_eq!(again, inventory);
    }

    #[test]
    fn escapes_for_terminals_are_refused() {
        let text = "{\"format\":1,\n\"nodes\":[{\"name\":\"a\",\"weights_path\":\"/x\\u001b[31m\"}]}";
        let InventoryError(problems) = parse_inventory(text).expect_err("an escape");
        assert!(problems[0].contains("line 2") && problems[0].contains("001b"), "{problems:?}");
        // Nor as it is, nor by JSON's short escapes.
        for raw in ["\u{9b}", "\u{7f}", "\u{1b}", "\\b", "\\f", "\\r", "\\u009B"] {
            let text = format!("{{\"format\":1,\n\"nodes\":[{{\"name\":\"a\",\"weights_path\":\"/x{raw}31m\"}}]}}");
            let InventoryError(problems) = parse_inventory(&text).expect_err("a control character");
            assert!(problems[0].contains("line 2 holds the control character"), "{problems:?}");
        }
        // An escaped backslash before a `u` is no escape, and a line break is harmless.
        for harmless in ["/x\\\\u001b", "/x\\u000a", "/x\\u00e9"] {
            let text = format!("{{\"format\":1,\"nodes\":[{{\"name\":\"a\",\"weights_path\":\"{harmless}\"}}]}}");
            assert!(parse_inventory(&text).is_ok(), "{text}");
        }
    }

    #[test]
    fn contradictions_are_all_named() {
        let text = r#"{"format":1,"nodes":[
            {"name":"a","accelerators":[{"uuid":"GPU-1","name":"X","memory":{"total_bytes":10,"free_bytes":20}}]},
            {"name":"a","accelerators":[{"uuid":"GPU-1","name":"X","memory":{"total_bytes":10,"used_bytes":6,"free_bytes":6}}]}],
            "links":[{"from":"a","to":"b"}]}"#;
        let InventoryError(problems) = parse_inventory(text).expect_err("contradicts itself");
        assert_eq!(problems.len(), 5, "{problems:#?}");
    }

    #[test]
    fn a_size_that_no_machine_has_is_refused() {
        let free = |bytes: u64| {
            let device = format!(r#"{{"uuid":"GPU-1","name":"X","memory":{{"free_bytes":{bytes}}}}}"#);
            parse_inventory(&format!(r#"{{"format":1,"nodes":[{{"name":"a","accelerators":[{device}]}}]}}"#))
        };
        assert!(free(1 << 60).is_ok());
        let InventoryError(problems) = free(u64::MAX).expect_err("too large");
        assert_eq!(
            problems,
            ["node `a`: accelerators[0].memory.free_bytes 18446744073709551615 is more than 2^60 bytes"]
        );
        let link = r#"{"from":"a","to":"a","bandwidth_bytes_per_s":1152921504606846977}"#;
        let text = format!(
            r#"{{"format":1,"nodes":[{{"name":"a","disks":[{{"path":"/","free_bytes":0,"total_bytes":1152921504606846977}}]}}],"links":[{link}]}}"#
        );
        let InventoryError(problems) = parse_inventory(&text).expect_err("too large");
        assert_eq!(problems.len(), 2, "{problems:#?}");
    }

    #[test]
    fn what_is_no_inventory_is_told_by_node_and_place() {
        let problems = |text: &str| parse_inventory(text).expect_err("wrong").0;
        let card = r#"{"name":"x","memory":{"total_bytes":5}}"#;
        let text =
            format!(r#"{{"format":1,"nodes":[{{"name":"a"}},{{"name":"b","accelerators":[{card},{{"name":"x"}}]}}]}}"#);
        let one = problems(&text);
        assert_eq!(one.len(), 1, "{one:?}");
        assert!(one[0].starts_with("node `b`: accelerators[1]: missing field `memory` (line 1, column 1"), "{one:?}");
        // Every node that is wrong, and one without a name by its position.
        let text = r#"{"format":1,"nodes":[{"name":"a","cores":1},{"nam":"b"},{"name":"c","accelerators":[
            {"name":"x","memory":{},"processes":[{"pid":1},{"pid":-5}]}]},{"name":"d"}],"links":[{"from":"a"}]}"#;
        let all = problems(text);
        let begins = [
            "node `a`: unknown field `cores`",
            "node number 2: unknown field `nam`",
            "node `c`: accelerators[0].processes[",
            "links[0]: missing field `to`",
        ];
        assert_eq!(all.len(), begins.len(), "{all:#?}");
        assert!(all.iter().zip(begins).all(|(one, begin)| one.starts_with(begin)), "{all:#?}");
        // What is no JSON has its line alone.
        assert_eq!(problems("{\n\"format\":1,"), ["EOF while parsing a value at line 2 column 11"]);
        assert!(problems(r#"{"format":1}"#)[0].starts_with("missing field `nodes`"));
    }

    #[test]
    fn an_unknown_field_is_refused_with_its_line() {
        let InventoryError(problems) = parse_inventory("{\"format\":1,\n\"nodez\":[]}").expect_err("unknown field");
        assert!(problems[0].contains("nodez") && problems[0].contains("line 2"), "{problems:?}");
    }
}
