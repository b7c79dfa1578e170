//! What a saved plan relied on, and whether it still holds.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::digest::{TOLERANCE_BYTES, plan_digest};
use super::{Guard, Plan, PlannedInstance, Step, Verb};
use crate::base::{InstanceState, format_bytes};
use crate::inventory::{Accelerator, Disk, InstanceSpec, Inventory, NodeFacts};

/// The guards of a plan: one per node that its steps touch.
pub fn guards(plan: &Plan, inventory: &Inventory) -> BTreeMap<String, Guard> {
    let mut instances: BTreeMap<&str, Vec<&PlannedInstance>> = BTreeMap::new();
    plan.instances.iter().for_each(|instance| instances.entry(&instance.node).or_default().push(instance));
    let mut steps: BTreeMap<&str, Vec<&Step>> = BTreeMap::new();
    for step in &plan.steps {
        steps.entry(&step.node).or_default().push(step);
        if let Some(sender) = step.fetch.as_ref().and_then(|planned| planned.from.sender()).filter(|s| *s != step.node)
        {
            steps.entry(sender).or_default().push(step);
        }
    }
    let ways: BTreeSet<&str> = plan.egress.iter().map(|way| way.node.as_str()).collect();
    let guarded = |name: String| {
        let facts = inventory.node(&name)?;
        let here = instances.get(name.as_str()).map_or(&[][..], Vec::as_slice);
        let steps = steps.get(name.as_str()).map_or(&[][..], Vec::as_slice);
        let mut guard = guard(here, steps, facts);
        for way in plan.egress.iter().filter(|way| way.node == name) {
            guard.facts.insert(format!("egress {}", way.endpoint), json!(way.rtt_us));
        }
        Some((name, guard))
    };
    let all: BTreeSet<String> = touched(&plan.steps).into_iter().chain(ways.into_iter().map(str::to_owned)).collect();
    all.into_iter().filter_map(guarded).collect()
}

/// A way out that is gone, or longer than a wobble of the measurement: by as much as would choose another node.
fn way_out(inventory: &Inventory, node: &str, endpoint: &str, was: &Value) -> Option<String> {
    let found = inventory.egress.iter().find(|way| way.node == node && way.endpoint == endpoint)?;
    let Some(is) = found.rtt_us else {
        let why = found.unknown.get("rtt_us").map(|why| format!(" ({why})")).unwrap_or_default();
        return was.is_u64().then(|| format!("{endpoint} was reached from here, and is not any more{why}"));
    };
    let was = was.as_u64()?;
    let (share, least) = (was / 5, 2_000);
    (is > was.saturating_add(share.max(least))).then(|| {
        let ms = |us: u64| format!("{:.1} ms", us as f64 / 1000.0);
        format!("the way to {endpoint} {} -> {} since the plan", ms(was), ms(is))
    })
}

/// Nodes that steps touch, and those that send weights for them.
pub fn touched(steps: &[Step]) -> BTreeSet<String> {
    let sender = |step: &Step| step.fetch.as_ref().and_then(|planned| planned.from.sender().map(str::to_owned));
    steps.iter().flat_map(|step| [Some(step.node.clone()), step.from_node.clone(), sender(step)]).flatten().collect()
}

/// By the id of each step the accelerators that it loads something onto; those that load nothing are left out. Engines
/// measure free memory while they start, so steps that share one must not load at the same time; a failure of one is no
/// reason against the other.
pub fn loads_onto(plan: &Plan) -> BTreeMap<u32, &[String]> {
    let instances: BTreeMap<(&str, &str), &PlannedInstance> =
        plan.instances.iter().map(|i| ((i.instance.as_str(), i.node.as_str()), i)).collect();
    let loads = plan.steps.iter().filter(|step| is_load(step.verb)).filter_map(|step| {
        let instance = instances.get(&(step.instance.as_deref()?, step.node.as_str()))?;
        Some((step.id, instance.accelerators.as_slice()))
    });
    loads.collect()
}

/// The guard of a node, of the instances planned there and the steps that touch it.
fn guard(here: &[&PlannedInstance], steps: &[&Step], node: &NodeFacts) -> Guard {
    let mut facts = BTreeMap::new();
    for uuid in here.iter().flat_map(|instance| &instance.accelerators) {
        facts.insert(format!("accelerator {uuid}"), device(node.accelerator(uuid)));
    }
    // What steps load must find its memory, its program, its files and a port.
    let loads = |instance: &&&PlannedInstance| {
        let result = |step: &&&Step| step.node == node.name && step.instance.as_ref() == Some(&instance.instance);
        steps.iter().filter(result).any(|step| is_load(step.verb))
    };
    let loaded: Vec<&PlannedInstance> = here.iter().filter(loads).copied().collect();
    for instance in &loaded {
        for uuid in &instance.accelerators {
            if let Some(free) = node.accelerator(uuid).and_then(available) {
                facts.insert(format!("free {uuid}"), json!(free));
            }
        }
        // Behind modules and containers, too: the first word that is an engine's program or what runs it.
        let found = node.engines.iter().flatten().find(|engine| instance.argv.contains(&engine.path));
        if let Some(program) = found.map(|engine| &engine.path).or(instance.argv.first()) {
            facts.insert(format!("engine {program}"), engine(node, program));
        }
        for weights in &instance.spec.weights {
            match &weights.revision {
                Some(revision) if holds(node, revision) => {
                    facts.insert(format!("weights {revision}"), json!(true));
                }
                Some(_) => {}
                None => {
                    facts.insert(format!("files {}", weights.folder), files(node, &weights.folder));
                }
            }
        }
        let name = format!("{}/{}", instance.model, instance.replica);
        // A port that is in use now is the one it has already.
        let free = |ports: &[u16]| !ports.is_empty() && ports.iter().all(|port| !node.ports_in_use.contains(port));
        let ports: Vec<u16> = std::iter::once(instance.port).chain(instance.port_alternates.iter().copied()).collect();
        if free(&ports) {
            facts.insert(format!("ports {name}"), json!(ports));
        }
        if free(&instance.spec.internal_ports) {
            facts.insert(format!("internal-ports {name}"), json!(instance.spec.internal_ports));
        }
    }
    // What it sends to others must still be there.
    for planned in steps.iter().filter_map(|step| step.fetch.as_ref()) {
        let revision = &planned.fetch.revision;
        if planned.from.sender() == Some(node.name.as_str()) && holds(node, revision) {
            facts.insert(format!("weights {revision}"), json!(true));
        }
    }
    let host = loaded.iter().map(|instance| instance.memory.host.total_bytes).fold(0, u64::saturating_add);
    if let Some(available) = node.ram.available_bytes.filter(|_| host > 0) {
        facts.insert("ram".to_owned(), json!({ "available_bytes": available, "needed_bytes": host }));
    }
    for (path, (needed, free)) in disks(steps, node) {
        facts.insert(format!("disk {path}"), json!({ "free_bytes": free, "needed_bytes": needed }));
    }
    facts.insert("instances".to_owned(), instances(node));
    Guard { generation: node.generation, facts }
}

fn is_load(verb: Verb) -> bool {
    matches!(verb, Verb::Start | Verb::Change | Verb::Restart | Verb::Move)
}

/// File systems that files are brought to: how many bytes come, and how many are free.
fn disks(steps: &[&Step], node: &NodeFacts) -> BTreeMap<String, (u64, u64)> {
    let mut found: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for step in steps.iter().filter(|step| step.node == node.name) {
        let Some(fetch) = &step.fetch else { continue };
        let Some(disk) = disk_of(node, &fetch.fetch.folder) else { continue };
        let entry = found.entry(disk.path.clone()).or_insert((0, disk.free_bytes));
        entry.0 = entry.0.saturating_add(step.download_bytes);
    }
    found
}

/// The file system that a folder is on: the longest path above it that the agent reported.
pub fn disk_of<'a>(node: &'a NodeFacts, folder: &str) -> Option<&'a Disk> {
    let above = |disk: &&Disk| {
        let rest = folder.strip_prefix(disk.path.trim_end_matches('/'));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    node.disks.iter().filter(above).max_by_key(|disk| disk.path.len())
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

/// Why the accelerators of an instance hold too little now for all that the plan puts on them; `None` where they hold
/// enough or do not tell.
pub fn memory_taken(plan: &Plan, spec: &InstanceSpec, node: &NodeFacts) -> Option<String> {
    spec.accelerators.iter().find_map(|uuid| {
        let device = node.accelerator(uuid)?;
        let has = available(device)?;
        let takes = |spec: &InstanceSpec| {
            let here = spec.accelerators.iter().zip(&spec.planned_bytes).filter(|(on, _)| *on == uuid);
            here.map(|(_, bytes)| *bytes).fold(0, u64::saturating_add)
        };
        // What serves has loaded all it ever will: it needs no more than our engines hold, however much was planned.
        let serves = |other: &InstanceSpec| {
            let mut there = node.instances.iter().filter(|facts| facts.instance == other.instance);
            other.instance != spec.instance && there.any(|facts| facts.state == InstanceState::Ready)
        };
        let (mut needs, mut ready) = (0_u64, 0_u64);
        for other in plan.instances.iter().map(|instance| &*instance.spec) {
            let of = if serves(other) { &mut ready } else { &mut needs };
            *of = of.saturating_add(takes(other));
        }
        let held = has.saturating_sub(device.memory.free_bytes.unwrap_or(0));
        let needs = needs.saturating_add(ready.min(held));
        if has.saturating_add(TOLERANCE_BYTES) >= needs {
            return None;
        }
        let foreign = device.processes.iter().filter(|process| !process.ours);
        let pids: Vec<String> = foreign.map(|process| process.pid.to_string()).collect();
        let holders = if pids.is_empty() { String::new() } else { format!(" (processes {})", pids.join(", ")) };
        Some(format!(
            "accelerator {uuid} needs {} for what the plan puts there and has {} beside what others hold{holders}: \
             end them, or plan again",
            format_bytes(needs),
            format_bytes(has),
        ))
    })
}

fn engine(node: &NodeFacts, program: &str) -> Value {
    let found = node.engines.iter().flatten().find(|engine| engine.path == program);
    found.map_or(Value::Null, |engine| json!({ "version": engine.version, "problem": engine.problem }))
}

fn holds(node: &NodeFacts, revision: &str) -> bool {
    node.weights.iter().any(|weights| weights.revision == *revision && weights.complete)
}

/// What lies in a folder that flock does not fill itself.
fn files(node: &NodeFacts, folder: &str) -> Value {
    let found = node.weights.iter().find(|weights| weights.path.as_deref() == Some(folder));
    found.map_or(Value::Null, |weights| json!(weights.revision))
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
    if let Some(applied) = applied.filter(|applied| applied.plan_digest == plan_digest(plan).to_string())
        && !plan.steps.is_empty()
    {
        moved.push(format!("this plan was applied already, by {} at {}", applied.by, applied.at));
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
            let who = applied.map(|applied| format!(", last by {} at {}", applied.by, applied.at)).unwrap_or_default();
            moved.push(format!(
                "{name}: another apply has been here (generation {} -> {}{who})",
                guard.generation, node.generation
            ));
        }
        for (fact, was) in &guard.facts {
            if let Some(endpoint) = fact.strip_prefix("egress ") {
                moved.extend(way_out(inventory, name, endpoint, was).map(|text| format!("{name}: {text}")));
                continue;
            }
            moved.extend(compare(node, fact, was).map(|text| format!("{name}: {text}")));
        }
    }
    moved
}

fn compare(node: &NodeFacts, fact: &str, was: &Value) -> Option<String> {
    match fact {
        "instances" => {
            let is = instances(node);
            return (is != *was).then(|| describe_instances(was, &is));
        }
        "ram" => {
            let is = node.ram.available_bytes;
            return short("available host memory", was, "available_bytes", is);
        }
        _ => {}
    }
    let (kind, name) = fact.split_once(' ')?;
    match kind {
        "accelerator" => {
            let is = device(node.accelerator(name));
            let text = match (is.is_null(), is["healthy"] == was["healthy"]) {
                (true, _) => format!("accelerator {name} is gone"),
                (_, false) => {
                    let word = |value: &Value| if *value == true { "healthy" } else { "unhealthy" };
                    format!("accelerator {name} {} -> {}", word(&was["healthy"]), word(&is["healthy"]))
                }
                _ => {
                    let (was, is) = (amount(&was["total_bytes"]), amount(&is["total_bytes"]));
                    format!("total memory of {name} {was} -> {is} since the plan")
                }
            };
            (is != *was).then_some(text)
        }
        "free" => free(node.accelerator(name)?, name, was),
        "engine" => {
            let is = engine(node, name);
            (is != *was).then(|| format!("engine {name} {} -> {}", version(was), version(&is)))
        }
        "weights" => (!holds(node, name)).then(|| format!("weights {} are gone", brief(name))),
        "files" => {
            let is = files(node, name);
            let word = |value: &Value| value.as_str().map_or("absent".to_owned(), brief);
            (is != *was).then(|| format!("the files in {name} {} -> {}", word(was), word(&is)))
        }
        "ports" | "internal-ports" => {
            let ports: Vec<u64> = was.as_array()?.iter().filter_map(Value::as_u64).collect();
            let taken = |port: &u64| node.ports_in_use.iter().any(|used| u64::from(*used) == *port);
            // As long as one is left, the agent walks to it.
            (!ports.is_empty() && ports.iter().all(taken)).then(|| {
                let list: Vec<String> = ports.iter().map(u64::to_string).collect();
                format!("{} {} of {name} free -> taken since the plan", kind.replace('-', " "), list.join(", "))
            })
        }
        "disk" => short(&format!("free space of {name}"), was, "free_bytes", disk_of(node, name).map(|d| d.free_bytes)),
        _ => Some(format!("the plan relies on `{fact}`, which this version of flock does not know")),
    }
}

fn free(device: &Accelerator, name: &str, was: &Value) -> Option<String> {
    let was = was.as_u64()?;
    let Some(is) = available(device) else {
        let why = device.unknown.get("free_bytes").or_else(|| device.unknown.get("memory"));
        let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
        return Some(format!("free memory of {name} {} -> unknown{why}", format_bytes(was)));
    };
    // More free memory than planned with harms nobody.
    (is.saturating_add(TOLERANCE_BYTES) < was).then(|| {
        let others = device.processes.iter().filter(|process| !process.ours);
        let largest = others.max_by_key(|process| (process.used_bytes, std::cmp::Reverse(process.pid)));
        let who = largest.and_then(|process| Some((process.pid, process.used_bytes?)));
        let who = who.map(|(pid, bytes)| format!("; process {pid} holds {}", format_bytes(bytes))).unwrap_or_default();
        format!("free memory of {name} {} -> {} since the plan{who}", format_bytes(was), format_bytes(is))
    })
}

/// Something of which there was enough and is not any more.
fn short(what: &str, was: &Value, field: &str, is: Option<u64>) -> Option<String> {
    let (was, needed) = (was[field].as_u64()?, was["needed_bytes"].as_u64()?);
    let is = is?;
    let text = || {
        let (was, is, needed) = (format_bytes(was), format_bytes(is), format_bytes(needed));
        format!("{what} {was} -> {is} since the plan, which needs {needed}")
    };
    (is < needed && is.saturating_add(TOLERANCE_BYTES) < was).then(text)
}

fn amount(value: &Value) -> String {
    value.as_u64().map_or("unknown".to_owned(), format_bytes)
}

fn brief(digest: &str) -> String {
    digest.chars().take(19).collect()
}

fn version(value: &Value) -> String {
    if let Some(problem) = value["problem"].as_str() {
        return format!("unusable ({problem})");
    }
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
