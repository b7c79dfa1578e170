//! What the world changed by itself (drift: instances and files) and what changed about the facts (decay).

use std::collections::BTreeMap;

use super::{Decay, Drift, Observed, ObservedSpecs};
use crate::base::{InstanceState, MIB, expand_home, format_bytes};
use crate::config::Desired;
use crate::inventory::{Accelerator, Inventory, NodeFacts, WeightsFound, WeightsRef, endpoint_of};
use crate::placement::{Distances, End, traffic};

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
        let worker = if o.is_worker() { "the worker of " } else { "" };
        let who = format!("{worker}`{}` (replica {})", o.model, o.replica);
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
    let mut by_node: BTreeMap<&str, Vec<&Observed>> = BTreeMap::new();
    observed.iter().for_each(|o| by_node.entry(&o.node).or_default().push(o));
    for node in inventory.nodes.iter().filter(|node| node.reachable) {
        let here = by_node.remove(node.name.as_str()).unwrap_or_default();
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
    for (node, text) in slower(desired, inventory, observed) {
        add("link_slower", &node, text);
    }
    found.sort_by(|a, b| (&a.node, &a.kind, &a.text).cmp(&(&b.node, &b.kind, &b.text)));
    found.dedup();
    found
}

/// Limits on latency that what runs, and the ways out that the last apply chose, no longer keep.
fn slower(desired: &Desired, inventory: &Inventory, observed: &[Observed]) -> Vec<(String, String)> {
    let ms = |us: u64| format!("{:.1} ms", us as f64 / 1000.0);
    let distances = Distances::of(inventory);
    let mut found = Vec::new();
    for flow in traffic(desired) {
        let (Some(limit), End::Model(to)) = (flow.max_latency_us, &flow.to) else { continue };
        let places = |model: &str| -> Vec<&str> {
            observed.iter().filter(|o| o.model == model && o.serving()).map(|o| o.node.as_str()).collect()
        };
        let others = places(to);
        for from in places(&flow.from) {
            let ways: Option<Vec<u64>> = others.iter().map(|other| distances.rtt_us(from, other)).collect();
            let Some(nearest) = ways.and_then(|ways| ways.into_iter().min()).filter(|rtt| *rtt > limit) else {
                continue;
            };
            let (is, most) = (ms(nearest), ms(limit));
            let text =
                format!("`{}` here is {is} from `{to}`; at most {most} is allowed ({})", flow.from, flow.because);
            found.push((from.to_owned(), text));
        }
    }
    for kept in &inventory.member.egress {
        let Some(model) = desired.provider_models.get(&kept.provider_model) else { continue };
        let provider = desired.providers.get(&model.provider.value);
        let Some(endpoint) = provider.and_then(|provider| endpoint_of(&provider.base_url.value)) else { continue };
        let way = inventory.egress.iter().find(|way| way.node == kept.node && way.endpoint == endpoint);
        let limit = model.max_latency.as_ref().map(|limit| u64::try_from(limit.value.as_micros()).unwrap_or(u64::MAX));
        if let (Some(limit), Some(rtt)) = (limit, way.and_then(|way| way.rtt_us))
            && rtt > limit
        {
            let (is, most) = (ms(rtt), ms(limit));
            let text =
                format!("`{}` takes {is} to connect to {endpoint}; at most {most} is allowed", kept.provider_model);
            found.push((kept.node.clone(), text));
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Tree;
    use crate::inventory::parse_inventory;

    #[test]
    fn a_way_that_became_longer_than_allowed_is_told() {
        let config = r#"cluster "lab"
node "a" address="10.0.0.1"
node "b" address="10.0.0.2"
provider "far" kind="anthropic" base-url="https://api.example" { key env="K" }
model "opus" { provider "far" name="opus"; max-latency "15ms" }
model "one" { source "on-node:/one.gguf" }
model "two" { source "on-node:/two.gguf" }
agent "x" model="one" { system "X." }
agent "y" model="two" { system "Y." }
agent "z" model="opus" { system "Z." }
workflow "w" {
    step "first" agent="x" { prompt "Go." }
    step "second" agent="y" after="first" { prompt "Go." }
    traffic from="x" to="y" max-latency="20ms"
}
"#;
        let loaded = crate::config::load(&Tree::from_iter([("cluster.kdl", config)]));
        let desired = loaded.desired.unwrap_or_else(|| panic!("{:#?}", loaded.diagnostics));
        let told = |rtt: u64, connect: u64| {
            let instance = |model: &str| {
                format!(
                    r#""instances":[{{"instance":"{model}","specification":"s","model":"{model}","replica":0,
                    "accelerators":[],"port":20000,"state":"ready","running":true}}]"#
                )
            };
            let inventory = parse_inventory(&format!(
                r#"{{"format":1,"nodes":[{{"name":"a",{}}},{{"name":"b",{}}}],
                "links":[{{"from":"a","to":"b","rtt_us":{rtt},"measured":true}}],
                "egress":[{{"node":"b","endpoint":"api.example:443","rtt_us":{connect}}}],
                "member":{{"egress":[{{"provider_model":"opus","agent":"z","node":"b"}}]}}}}"#,
                instance("one"),
                instance("two")
            ))
            .expect("valid");
            let observed = crate::plan::observe(&inventory, &ObservedSpecs::new());
            let decayed = decay(&desired, &inventory, &observed);
            decayed.into_iter().map(|d| (d.kind, d.node, d.text)).collect::<Vec<_>>()
        };
        assert_eq!(told(20_000, 15_000), []);
        let slower = told(20_100, 15_100);
        assert!(slower.iter().all(|(kind, ..)| kind == "link_slower") && slower.len() == 2, "{slower:?}");
        assert_eq!(slower[0].1, "a");
        assert!(slower[0].2.contains("20.1 ms from `two`; at most 20.0 ms"), "{slower:?}");
        assert_eq!(slower[1].1, "b");
        assert!(slower[1].2.contains("15.1 ms to connect to api.example:443; at most 15.0 ms"), "{slower:?}");
    }
}
