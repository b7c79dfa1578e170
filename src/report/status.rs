//! What runs, by model: `flock status`.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::style::{Ink, Style, clean, table};
use super::words::{self, place};
use crate::base::{InstanceState, format_bytes};
use crate::config::Desired;
use crate::inventory::{Applied, Failure, Inventory};
use crate::plan::Observed;

/// `flock status --format json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Status {
    /// 1.
    pub format: u32,
    /// Cluster name.
    pub cluster: String,
    /// Models by name: those of the config, and those that run without being in it.
    pub models: Vec<ModelStatus>,
    /// Nodes that did not answer: what runs there is not known.
    pub unreachable: Vec<String>,
    /// Nodes out of new placements.
    pub held: Vec<HeldNode>,
    /// The last apply.
    pub applied: Option<Applied>,
    /// Whether one model was asked for, so that text says all of it.
    #[serde(skip)]
    pub of_one: bool,
}

/// A node out of new placements.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HeldNode {
    /// The node.
    pub node: String,
    /// Why.
    pub reason: String,
    /// `config`, or who cordoned it.
    pub by: String,
    /// Since when; `null` for a `hold` of the config.
    pub since: Option<String>,
}

/// Nodes that the config holds and nodes that are cordoned, by name.
pub fn held_nodes(desired: &Desired, inventory: &Inventory) -> Vec<HeldNode> {
    let configured = desired.nodes.values().filter_map(|node| {
        let hold = node.hold.as_ref()?;
        let (node, reason) = (node.name.value.clone(), hold.value.clone());
        Some(HeldNode { node, reason, by: "config".to_owned(), since: None })
    });
    let mut held: Vec<HeldNode> = configured.chain(cordoned(inventory)).collect();
    held.sort_by(|a, b| (&a.node, &a.since).cmp(&(&b.node, &b.since)));
    held
}

/// Nodes that are cordoned.
pub(super) fn cordoned(inventory: &Inventory) -> impl Iterator<Item = HeldNode> {
    inventory.member.holds.iter().map(|hold| HeldNode {
        node: hold.node.clone(),
        reason: hold.reason.clone(),
        by: hold.by.clone(),
        since: (!hold.since.is_empty()).then(|| hold.since.clone()),
    })
}

/// `small is held since … by ada@desk: new fan`.
pub(super) fn held_text(held: &HeldNode) -> String {
    let since = held.since.as_ref().map(|since| format!(" since {since}")).unwrap_or_default();
    let by = if held.by.is_empty() { String::new() } else { format!(" by {}", held.by) };
    clean(&format!("`{}` is held{since}{by}: {}. Nothing new is placed there", held.node, held.reason))
}

/// A model and its instances.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelStatus {
    /// Its name.
    pub model: String,
    /// Whether the config has it.
    pub declared: bool,
    /// Desired replicas.
    pub replicas: u32,
    /// Instances that answer.
    pub ready: u32,
    /// All of them, in the order of replica and node.
    pub instances: Vec<InstanceStatus>,
}

/// One instance.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InstanceStatus {
    /// Its id.
    pub instance: String,
    /// Replica number.
    pub replica: u32,
    /// Its node.
    pub node: String,
    /// UUIDs in rank order.
    pub accelerators: Vec<String>,
    /// Engine.
    pub engine: String,
    /// Variant.
    pub variant: String,
    /// Its port on the node's loopback; a worker's on the node's address.
    pub port: u16,
    /// `rpc` for a worker that holds layers for an instance on another node; left out for what serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
    /// `starting|ready|failed|stopping|missing`.
    pub state: String,
    /// Since when.
    pub since: Option<String>,
    /// Whether a dead engine would be started again.
    pub supervised: bool,
    /// Live sessions on it.
    pub live_sessions: u32,
    /// Its last failure.
    pub last_failure: Option<Failure>,
    /// Bytes that were planned for it on all its accelerators (on the CPU: of the host), where it was measured.
    pub planned_bytes: Option<u64>,
    /// Bytes that it took there.
    pub measured_bytes: Option<u64>,
    /// Layers on its accelerators and all layers, where the engine left some on the CPU.
    pub spilled_layers: Option<[u32; 2]>,
}

/// What runs; of one model where `only` is given.
pub fn status(desired: &Desired, inventory: &Inventory, observed: &[Observed], only: Option<&str>) -> Status {
    let mut by_model: BTreeMap<&str, Vec<&Observed>> = BTreeMap::new();
    for o in observed {
        by_model.entry(&o.model).or_default().push(o);
    }
    let names: BTreeSet<&str> = desired.models.keys().map(String::as_str).chain(by_model.keys().copied()).collect();
    let models = names
        .into_iter()
        .filter(|name| only.is_none_or(|only| only == *name))
        .map(|name| {
            let instances: Vec<InstanceStatus> =
                by_model.get(name).into_iter().flatten().map(|o| instance(o, inventory)).collect();
            ModelStatus {
                model: name.to_owned(),
                declared: desired.models.contains_key(name),
                replicas: desired.models.get(name).map_or(0, |model| model.replicas.max),
                ready: instances.iter().filter(|i| i.part.is_none() && i.state == InstanceState::Ready.word()).count()
                    as u32,
                instances,
            }
        })
        .collect();
    let unreachable =
        desired.nodes.keys().filter(|name| !inventory.node(name).is_some_and(|node| node.reachable)).cloned().collect();
    Status {
        format: 1,
        cluster: desired.cluster.name.value.clone(),
        models,
        unreachable,
        held: held_nodes(desired, inventory),
        applied: inventory.member.applied.clone(),
        of_one: only.is_some(),
    }
}

fn instance(o: &Observed, inventory: &Inventory) -> InstanceStatus {
    let facts = inventory.node(&o.node).and_then(|node| node.instances.iter().find(|i| i.instance == o.instance));
    let totals = facts.and_then(|facts| facts.measured.as_deref()?.totals());
    let state = match o.state {
        Some(InstanceState::Ready) if !o.alive => "missing",
        Some(state) => state.word(),
        None => "missing",
    };
    InstanceStatus {
        instance: o.instance.clone(),
        replica: o.replica,
        node: o.node.clone(),
        accelerators: o.accelerators.clone(),
        engine: o.engine.to_string(),
        variant: o.variant.clone(),
        port: o.port,
        part: o.is_worker().then(|| "rpc".to_owned()),
        state: state.to_owned(),
        since: o.since.clone(),
        supervised: o.supervised,
        live_sessions: o.sessions,
        last_failure: o.last_failure.clone(),
        planned_bytes: totals.map(|(planned, _)| planned),
        measured_bytes: totals.map(|(_, measured)| measured),
        spilled_layers: o.spilled.map(|(there, all)| [there, all]),
    }
}

/// The status as a table and notes.
pub fn status_text(status: &Status, inventory: &Inventory, style: &Style) -> String {
    let mut rows = Vec::new();
    let mut notes = String::new();
    for model in &status.models {
        if model.instances.is_empty() {
            let state = if status.unreachable.is_empty() { "not running" } else { "unknown" };
            rows.push(vec![model.model.clone(), "-".into(), state.into(), String::new(), String::new()]);
        }
        for i in &model.instances {
            let state = if i.supervised { i.state.clone() } else { format!("{} (not supervised)", i.state) };
            rows.push(vec![
                format!("{}/{}", model.model, i.replica),
                place(&i.node, &i.accelerators, Some(inventory)),
                state,
                i.since.clone().unwrap_or_default(),
                format!("{} {}{}, port {}", i.engine, i.variant, i.part.as_ref().map_or("", |_| ", worker"), i.port),
            ]);
            if let Some(failure) = &i.last_failure {
                let end = if failure.gave_up { "; not started again" } else { "" };
                let lead =
                    format!("{} on {}: ", style.paint(Ink::Bad, &format!("{}/{}", model.model, i.replica)), i.node);
                let text = format!("failed at {}: {}: {}{end}", failure.at, failure.cause, clean(&failure.text));
                notes.push_str(&style.beside(&lead, &text));
            }
        }
        for i in &model.instances {
            let who = format!("{}/{} on {}", model.model, i.replica, i.node);
            if let (true, Some(planned), Some(measured)) = (status.of_one, i.planned_bytes, i.measured_bytes) {
                let (planned, measured) = (format_bytes(planned), words::measured(planned, measured));
                notes.push_str(&style.beside("", &format!("{who}: memory {planned} planned, {measured}")));
            }
            if let Some([there, all]) = i.spilled_layers {
                let lead = format!("{}: ", style.paint(Ink::Bad, &who));
                let text = match there {
                    0 => {
                        "nothing of it is on its accelerators, it runs on the CPU: is this llama-server built for them?"
                            .to_owned()
                    }
                    _ => format!("{there} of {all} layers are on its accelerators, the rest on the CPU"),
                };
                notes.push_str(&style.beside(&lead, &text));
            }
        }
        if !model.declared {
            notes.push_str(&style.beside("", &format!("`{}` is not in the config", model.model)));
        } else if model.ready < model.replicas {
            let text = format!("`{}` has {} of {} replicas ready", model.model, model.ready, model.replicas);
            notes.push_str(&style.beside("", &text));
        }
    }
    for node in &status.unreachable {
        notes.push_str(&style.beside("", &format!("`{node}` is unreachable: what runs there is not known")));
    }
    for held in &status.held {
        notes.push_str(&style.beside("", &held_text(held)));
    }
    if let Some(applied) = &status.applied {
        notes.push_str(&style.beside("", &format!("last apply: {}", super::records::applied_text(applied))));
    }
    let mut out = table(&["MODEL", "WHERE", "STATE", "SINCE", "RUNS"], &rows);
    if rows.is_empty() {
        out.push_str("nothing is declared and nothing runs\n");
    }
    if !notes.is_empty() {
        out.push('\n');
        out.push_str(&notes);
    }
    out
}
