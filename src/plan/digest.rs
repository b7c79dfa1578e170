//! Digests of what a plan was computed from, and of the plan itself.

use serde_json::Value;

use super::Plan;
use crate::base::{Digest, MIB};
use crate::inventory::Inventory;

/// A free-memory figure that moved by less says nothing.
pub const TOLERANCE_BYTES: u64 = 256 * MIB;

/// Times, process ids and counters: different at every look, and nothing a plan is computed from.
const LEFT_OUT: &[&str] = &[
    "taken_at",
    "since",
    "at",
    "pid",
    "processes",
    "lease",
    "load_ms",
    "age_ms",
    "starts",
    "live_sessions",
    "last_failure",
];
/// Numbers that wobble.
const ROUNDED: &[&str] = &["free_bytes", "available_bytes", "used_bytes", "host_bytes"];

/// Digest of the facts: times are left out, volatile numbers are rounded to 256 MiB.
pub fn inventory_digest(inventory: &Inventory) -> Digest {
    let mut value = serde_json::to_value(inventory).expect("an inventory is plain data with string keys");
    steady(&mut value);
    Digest::of_json(&value)
}

fn steady(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| !LEFT_OUT.contains(&name.as_str()));
            for (name, field) in fields.iter_mut() {
                match field.as_u64() {
                    Some(bytes) if ROUNDED.contains(&name.as_str()) => {
                        *field = Value::from(bytes.saturating_add(TOLERANCE_BYTES / 2) / TOLERANCE_BYTES);
                    }
                    _ => steady(field),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(steady),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Digest of a plan; the same whether or not it carries guards.
pub fn plan_digest(plan: &Plan) -> Digest {
    let bare = Plan { guards: Default::default(), seal: None, ..plan.clone() };
    Digest::of_json(&bare)
}

/// Digest of a whole saved plan, guards included.
pub fn seal(plan: &Plan) -> Digest {
    Digest::of_json(&Plan { seal: None, ..plan.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::{Accelerator, AcceleratorMemory, NodeFacts};

    fn inventory(free: u64, at: &str) -> Inventory {
        Inventory {
            format: 1,
            taken_at: Some(at.into()),
            nodes: vec![NodeFacts {
                name: "ada-1".into(),
                reachable: true,
                accelerators: vec![Accelerator {
                    uuid: "GPU-1".into(),
                    name: "x".into(),
                    memory: AcceleratorMemory { free_bytes: Some(free), ..Default::default() },
                    ..Default::default()
                }],
                ..Default::default()
            }],
            ..Default::default()
        }
    }

    #[test]
    fn a_wobble_and_the_time_do_not_count_and_a_gibibyte_does() {
        let one = inventory_digest(&inventory(24 << 30, "2026-01-01T00:00:00Z"));
        assert_eq!(one, inventory_digest(&inventory((24 << 30) + (100 << 20), "2026-01-02T00:00:00Z")));
        assert_ne!(one, inventory_digest(&inventory(23 << 30, "2026-01-01T00:00:00Z")));
        assert_ne!(one, inventory_digest(&inventory(u64::MAX, "2026-01-01T00:00:00Z")));
    }
}
