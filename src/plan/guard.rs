//! What a saved plan relied on, and whether it still holds.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::digest::{TOLERANCE_BYTES, plan_digest};
use super::{Guard, Plan, Step, Verb};
use crate::base::format_bytes;
use crate::inventory::{Accelerator, Inventory, NodeFacts};

/// The guards of a plan: one per node that its steps touch.
pub fn guards(plan: &Plan, inventory: &Inventory) -> BTreeMap<String, Guard> {
    touched(&plan.steps)
        .into_iter()
        .filter_map(|name| inventory.node(&name).map(|facts| (name, guard(plan, facts))))
        .collect()
}

/// Nodes that steps touch.
pub fn touched(steps: &[Step]) -> BTreeSet<String> {
    steps.iter().flat_map(|step| std::iter::once(&step.node).chain(&step.from_node)).cloned().collect()
}

/// The accelerators that a step loads something onto. Engines measure free memory while they start, so steps that
/// share one must not load at the same time; a failure of one is no reason against the other.
pub fn loads_onto<'a>(plan: &'a Plan, step: &Step) -> &'a [String] {
    if !matches!(step.verb, Verb::Start | Verb::Change | Verb::Restart | Verb::Move) {
        return &[];
    }
    let result = plan.instances.iter().find(|i| Some(&i.instance) == step.instance.as_ref() && i.node == step.node);
    result.map_or(&[], |instance| instance.accelerators.as_slice())
}

fn guard(plan: &Plan, node: &NodeFacts) -> Guard {
    let here: Vec<_> = plan.instances.iter().filter(|instance| instance.node == node.name).collect();
    let mut facts = BTreeMap::new();
    for uuid in here.iter().flat_map(|instance| &instance.accelerators) {
        facts.insert(format!("accelerator {uuid}"), device(node.accelerator(uuid)));
        if let Some(free) = node.accelerator(uuid).and_then(available) {
            facts.insert(format!("free {uuid}"), json!(free));
        }
    }
    for instance in &here {
        let Some(program) = instance.argv.first() else { continue };
        facts.insert(format!("engine {program}"), engine(node, program));
    }
    for weights in here.iter().flat_map(|instance| &instance.spec.weights) {
        let Some(revision) = &weights.revision else { continue };
        if holds(node, revision) {
            facts.insert(format!("weights {revision}"), json!(true));
        }
    }
    facts.insert("instances".to_owned(), instances(node));
    Guard { generation: node.generation, facts }
}

fn device(device: Option<&Accelerator>) -> Value {
    device.map_or(Value::Null, |d| json!({ "healthy": d.healthy, "total_bytes": d.memory.total_bytes }))
}

/// Free memory and what our own engines hold: an engine that is still loading takes nothing from the plan.
fn available(device: &Accelerator) -> Option<u64> {
    let ours = device.processes.iter().filter(|process| process.ours);
    let held = ours.map(|process| process.used_bytes).try_fold(0u64, |sum, bytes| Some(sum.saturating_add(bytes?)))?;
    Some(device.memory.free_bytes?.saturating_add(held))
}

fn engine(node: &NodeFacts, program: &str) -> Value {
    let found = node.engines.iter().flatten().find(|engine| engine.path == program);
    found.map_or(Value::Null, |engine| json!({ "version": engine.version, "problem": engine.problem }))
}

fn holds(node: &NodeFacts, revision: &str) -> bool {
    node.weights.iter().any(|weights| weights.revision == *revision && weights.complete)
}

/// Which instances there are and what they are; not whether they are starting or ready.
fn instances(node: &NodeFacts) -> Value {
    let sorted: BTreeMap<&str, Value> = node
        .instances
        .iter()
        .map(|i| {
            let lives = i.running || i.pid.is_some();
            (i.instance.as_str(), json!({ "specification": i.specification, "model": i.model, "running": lives }))
        })
        .collect();
    json!(sorted)
}

/// What has moved since a plan was saved, one sentence each; empty where it can be applied.
pub fn stale(plan: &Plan, inventory: &Inventory) -> Vec<String> {
    let mut moved = Vec::new();
    let applied = inventory.member.applied.as_ref();
    if applied.is_some_and(|applied| !plan.steps.is_empty() && applied.plan_digest == plan_digest(plan).to_string()) {
        moved.push("this plan has been applied already".to_owned());
    }
    for name in touched(&plan.steps) {
        if !plan.guards.contains_key(&name) {
            moved.push(format!("{name}: the plan holds no guard for this node"));
        }
    }
    for (name, guard) in &plan.guards {
        let Some(node) = inventory.node(name).filter(|node| node.reachable) else {
            moved.push(format!("{name}: unreachable since the plan"));
            continue;
        };
        if node.generation != guard.generation {
            let text =
                format!("{name}: another apply has been here (generation {} -> {})", guard.generation, node.generation);
            moved.push(text);
        }
        for (fact, was) in &guard.facts {
            moved.extend(compare(node, fact, was).map(|text| format!("{name}: {text}")));
        }
    }
    moved
}

fn compare(node: &NodeFacts, fact: &str, was: &Value) -> Option<String> {
    if fact == "instances" {
        let is = instances(node);
        return (is != *was).then(|| describe_instances(was, &is));
    }
    let (kind, name) = fact.split_once(' ')?;
    match kind {
        "accelerator" => {
            let is = device(node.accelerator(name));
            let text = match (is.is_null(), is["healthy"] == was["healthy"]) {
                (true, _) => format!("accelerator {name} is gone"),
                (_, false) => format!("accelerator {name} healthy {} -> {}", was["healthy"], is["healthy"]),
                _ => format!("accelerator {name} total memory {} -> {} bytes", was["total_bytes"], is["total_bytes"]),
            };
            (is != *was).then_some(text)
        }
        "free" => {
            let (was, is) = (was.as_u64()?, node.accelerator(name).and_then(available)?);
            // More free memory than planned with harms nobody.
            (is.saturating_add(TOLERANCE_BYTES) < was)
                .then(|| format!("accelerator {name} free memory {} -> {}", format_bytes(was), format_bytes(is)))
        }
        "engine" => {
            let is = engine(node, name);
            (is != *was).then(|| format!("engine {name} {} -> {}", version(was), version(&is)))
        }
        "weights" => {
            (!holds(node, name)).then(|| format!("weights {} are gone", name.chars().take(19).collect::<String>()))
        }
        _ => Some(format!("the plan relies on `{fact}`, which this version of flock does not know")),
    }
}

fn version(value: &Value) -> String {
    match &value["version"] {
        Value::String(version) => version.clone(),
        _ if value.is_null() => "absent".to_owned(),
        _ => "unknown".to_owned(),
    }
}

fn describe_instances(was: &Value, is: &Value) -> String {
    let empty = serde_json::Map::new();
    let (was, is) = (was.as_object().unwrap_or(&empty), is.as_object().unwrap_or(&empty));
    let ids: BTreeSet<&String> = was.keys().chain(is.keys()).collect();
    let mut words = Vec::new();
    for id in ids {
        let model = |value: &Value| value["model"].as_str().unwrap_or("?").to_owned();
        match (was.get(id), is.get(id)) {
            (Some(old), None) => words.push(format!("`{}` is gone", model(old))),
            (None, Some(new)) => words.push(format!("`{}` is new", model(new))),
            (Some(old), Some(new)) if old["running"] != new["running"] => {
                let word = if new["running"] == true { "runs again" } else { "no longer runs" };
                words.push(format!("`{}` {word}", model(new)));
            }
            (Some(old), Some(new)) if old != new => words.push(format!("`{}` has another specification", model(new))),
            _ => {}
        }
    }
    format!("instances differ: {}", words.join(", "))
}
