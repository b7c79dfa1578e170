//! What the world changed by itself (drift: instances and files) and what changed about the facts (decay).

use super::{Decay, Drift, Observed, ObservedSpecs};
use crate::base::{InstanceState, MIB, expand_home, format_bytes};
use crate::config::Desired;
use crate::inventory::{Accelerator, Inventory, NodeFacts, WeightsFound, WeightsRef};

/// Deviations of what runs from what the nodes were told to run, sorted.
pub fn drift(inventory: &Inventory, specs: &ObservedSpecs, observed: &[Observed]) -> Vec<Drift> {
    let mut found = Vec::new();
    for o in observed.iter().filter(|o| o.reachable) {
        let mut add = |kind: &str, since: Option<&String>, text: String| {
            found.push(Drift {
                kind: kind.to_owned(),
                node: o.node.clone(),
                model: Some(o.model.clone()),
                since: since.cloned(),
                text,
            });
        };
        let who = format!("`{}` (replica {})", o.model, o.replica);
        match (o.state, &o.last_failure) {
            (Some(InstanceState::Stopping), _) => {}
            _ if o.spec.is_none() && specs.contains_key(&o.node) => {
                if o.alive {
                    let text = format!("an engine of {who} runs that the node agent was not told to run");
                    add("unmanaged", o.since.as_ref(), text);
                }
            }
            (Some(InstanceState::Failed), Some(failure)) => {
                let end = if failure.gave_up { "; not started again" } else { "" };
                let text = format!("{who} failed: {}: {}{end}", failure.cause, failure.text);
                add("instance_failed", Some(&failure.at), text);
            }
            (Some(InstanceState::Failed), None) => add("instance_failed", o.since.as_ref(), format!("{who} failed")),
            _ if !o.serving() => add("instance_missing", None, format!("{who} should run and has no engine process")),
            _ => {
                if let Some(spec) = o.spec.as_ref().filter(|spec| spec.specification != o.specification) {
                    let text = format!(
                        "{who} runs another specification than its node was told ({})",
                        short(&spec.specification)
                    );
                    add("instance_changed", None, text);
                }
                // None at all is another program than was planned for, which status says.
                if let Some((there, all)) = o.spilled.filter(|(there, _)| *there > 0) {
                    let text = format!(
                        "{who} has {there} of its {all} layers on its accelerators and the rest on the CPU: it is slow, \
                         and takes host memory that was not planned"
                    );
                    add("instance_changed", None, text);
                }
                if !o.supervised {
                    let text = format!("{who} runs without the node agent's supervisor: a dead engine would stay dead");
                    add("instance_changed", None, text);
                }
            }
        }
    }
    for node in inventory.nodes.iter().filter(|node| node.reachable && node.agent.is_some()) {
        files(node, specs, &mut found);
    }
    found.sort_by(|a, b| (&a.node, &a.model, &a.kind, &a.text).cmp(&(&b.node, &b.model, &b.kind, &b.text)));
    found.dedup();
    found
}

fn files(node: &NodeFacts, specs: &ObservedSpecs, found: &mut Vec<Drift>) {
    for spec in specs.get(&node.name).into_iter().flatten() {
        for weights in &spec.weights {
            let mut add = |text: String| {
                found.push(Drift {
                    kind: "file_missing".to_owned(),
                    node: node.name.clone(),
                    model: Some(spec.model.clone()),
                    since: None,
                    text,
                });
            };
            let Some(revision) = &weights.revision else {
                // Only what the config still names was looked for.
                let problem =
                    node.weights.iter().filter(|found| names(found, weights, node)).find_map(|w| w.problem.as_ref());
                if let Some(problem) = problem {
                    add(format!("weights of `{}` in {} cannot be read: {problem}", spec.model, weights.folder));
                }
                continue;
            };
            let here = node.weights.iter().find(|w| w.revision == *revision);
            if here.is_some_and(|w| w.complete) {
                continue;
            }
            let text = match here {
                Some(_) => format!("weights of `{}` in {} are incomplete", spec.model, weights.folder),
                None => format!("weights of `{}` in {} are gone", spec.model, weights.folder),
            };
            add(text);
        }
    }
}

/// Whether an `on-node:` source is the one that these weights lie in: the folder, or a file in it.
fn names(found: &WeightsFound, weights: &WeightsRef, node: &NodeFacts) -> bool {
    let Some(path) = found.source.strip_prefix("on-node:") else { return false };
    let path = expand_home(path, node.home.as_deref());
    let within = |name: &String| format!("{}/{name}", weights.folder.trim_end_matches('/')) == path;
    path.trim_end_matches('/') == weights.folder.trim_end_matches('/') || weights.files.iter().any(within)
}

/// Facts that turned against what runs or should run, sorted.
pub fn decay(desired: &Desired, inventory: &Inventory, observed: &[Observed]) -> Vec<Decay> {
    let mut found = Vec::new();
    let mut add = |kind: &str, node: &str, text: String| {
        found.push(Decay { kind: kind.to_owned(), node: node.to_owned(), since: None, text });
    };
    for name in desired.nodes.keys() {
        match inventory.node(name) {
            Some(facts) if facts.reachable => {}
            Some(facts) => {
                let why = facts.unreachable_reason.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
                add("node_unreachable", name, format!("`{name}` does not answer{why}"));
            }
            None => add("node_unreachable", name, format!("nothing is known of `{name}`")),
        }
    }
    for member in inventory.member.nodes.iter().filter(|member| !desired.nodes.contains_key(&member.name)) {
        if !inventory.node(&member.name).is_some_and(|facts| facts.reachable) {
            let text = format!("`{}` left the config and does not answer; what runs there is not known", member.name);
            add("node_unreachable", &member.name, text);
        }
    }
    for node in inventory.nodes.iter().filter(|node| node.reachable) {
        let here: Vec<&Observed> = observed.iter().filter(|o| o.node == node.name).collect();
        for o in &here {
            for uuid in o.accelerators.iter().filter(|uuid| node.accelerator(uuid).is_none()) {
                let text = format!("accelerator {uuid} of `{}` (replica {}) is gone", o.model, o.replica);
                add("accelerator_lost", &node.name, text);
            }
        }
        for device in &node.accelerators {
            if !device.healthy {
                let why = device.unknown.get("healthy").map(|why| format!(": {why}")).unwrap_or_default();
                add("accelerator_unhealthy", &node.name, format!("{} {} is unhealthy{why}", device.name, device.index));
            } else if let Some(text) = memory_taken(device, &here) {
                add("memory_taken", &node.name, text);
            }
        }
    }
    found.sort_by(|a, b| (&a.node, &a.kind, &a.text).cmp(&(&b.node, &b.kind, &b.text)));
    found.dedup();
    found
}

/// Whether processes of others hold so much that what flock placed on the device no longer fits beside them.
fn memory_taken(device: &Accelerator, here: &[&Observed]) -> Option<String> {
    let planned: u64 = here
        .iter()
        .filter_map(|o| {
            let rank = o.accelerators.iter().position(|uuid| *uuid == device.uuid)?;
            o.spec.as_ref()?.planned_bytes.get(rank).copied()
        })
        .fold(0, u64::saturating_add);
    let total = device.memory.total_bytes?.saturating_sub(device.memory.reserved_bytes.unwrap_or(0));
    let others = device.processes.iter().filter(|process| !process.ours);
    let foreign = others.filter_map(|process| process.used_bytes).fold(0, u64::saturating_add);
    let short = planned.saturating_add(foreign).saturating_sub(total);
    (planned > 0 && foreign > 256 * MIB && short > 256 * MIB).then(|| {
        let (taken, lacking) = (format_bytes(foreign), format_bytes(short));
        format!(
            "other processes hold {taken} of {} {}; what is placed there lacks {lacking}",
            device.name, device.index
        )
    })
}

fn short(digest: &str) -> String {
    digest.trim_start_matches("sha256:").chars().take(12).collect()
}
