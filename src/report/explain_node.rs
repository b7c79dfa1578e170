//! What is planned on one node, and why the other models are not there.

use serde::Serialize;

use super::explain::closest;
use super::status::{HeldNode, held_nodes, held_text};
use super::style::{Ink, Style, clean};
use super::words::place;
use crate::base::format_bytes;
use crate::config::Desired;
use crate::inventory::Inventory;
use crate::placement::Considered;
use crate::plan::{Plan, PlannedInstance};

/// `flock explain node/NAME --format json`.
#[derive(Debug, Clone, Serialize)]
pub struct NodeExplanation<'a> {
    /// 1.
    pub format: u32,
    /// The node.
    pub node: &'a str,
    /// Whether its facts are known.
    pub reachable: bool,
    /// Why it takes nothing new.
    pub held: Vec<HeldNode>,
    /// Its accelerators, in the driver's order.
    pub accelerators: Vec<Load<'a>>,
    /// What is planned on it.
    pub instances: Vec<&'a PlannedInstance>,
    /// Models of the config that are not planned on it, by name.
    pub absent: Vec<Absent<'a>>,
}

/// What an accelerator has and what is planned on it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Load<'a> {
    /// Its identity.
    pub uuid: &'a str,
    /// The driver's number.
    pub index: u32,
    /// Its name.
    pub name: &'a str,
    /// Whether the driver calls it usable.
    pub healthy: bool,
    /// All its memory; `null` where the driver does not say.
    pub total_bytes: Option<u64>,
    /// What all planned instances need of it.
    pub planned_bytes: u64,
    /// What processes that are not flock's hold.
    pub others_bytes: u64,
}

/// A model that is not on the node.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Absent<'a> {
    /// The model.
    pub model: &'a str,
    /// What kept the closest shape from being chosen here; `null` where no shape of it was considered here.
    pub verdict: Option<&'a str>,
}

impl<'a> NodeExplanation<'a> {
    /// Everything about one node of the config or of the inventory.
    pub fn of(
        node: &'a str,
        desired: &'a Desired,
        inventory: &'a Inventory,
        plan: &'a Plan,
        considered: &'a [Considered],
    ) -> Self {
        let instances: Vec<&PlannedInstance> =
            plan.instances.iter().filter(|i| i.node == node || i.nodes.iter().any(|other| other == node)).collect();
        let facts = inventory.node(node);
        let planned = |uuid: &str| {
            let memory = instances.iter().flat_map(|instance| &instance.memory.per_accelerator);
            memory.filter(|memory| memory.uuid == uuid).map(|memory| memory.total_bytes).fold(0, u64::saturating_add)
        };
        let accelerators = facts.iter().flat_map(|facts| &facts.accelerators).map(|accelerator| Load {
            uuid: &accelerator.uuid,
            index: accelerator.index,
            name: &accelerator.name,
            healthy: accelerator.healthy,
            total_bytes: accelerator.memory.total_bytes,
            planned_bytes: planned(&accelerator.uuid),
            others_bytes: accelerator
                .processes
                .iter()
                .filter(|process| !process.ours)
                .filter_map(|process| process.used_bytes)
                .fold(0, u64::saturating_add),
        });
        let absent = desired.models.keys().filter(|model| !instances.iter().any(|i| &i.model == *model));
        Self {
            format: 1,
            node,
            reachable: facts.is_some_and(|facts| facts.reachable),
            held: held_nodes(desired, inventory).into_iter().filter(|held| held.node == node).collect(),
            accelerators: accelerators.collect(),
            absent: absent
                .map(|model| Absent {
                    model,
                    verdict: closest(considered, model, node).map(|shape| shape.verdict.as_str()),
                })
                .collect(),
            instances,
        }
    }
}

/// The same as text.
pub fn explain_node_text(explanation: &NodeExplanation<'_>, inventory: &Inventory, style: &Style) -> String {
    let mut out = style.heading(&format!("Node {}", explanation.node));
    if !explanation.reachable {
        out.push_str(&format!("  {}\n", style.paint(Ink::Bad, "did not answer: its facts are not known")));
    }
    for held in &explanation.held {
        out.push_str(&style.beside("  ", &held_text(held)));
    }
    for load in &explanation.accelerators {
        let of = load.total_bytes.map_or("an unknown total".to_owned(), format_bytes);
        let others = match load.others_bytes {
            0 => String::new(),
            bytes => format!(", {} held by others", format_bytes(bytes)),
        };
        let health = if load.healthy { "" } else { ", unhealthy" };
        let text = format!("{}: {} of {of} planned{others}{health}", load.name, format_bytes(load.planned_bytes));
        out.push_str(&style.beside(&format!("  [{}] ", load.index), &clean(&text)));
    }
    if explanation.instances.is_empty() {
        out.push_str("  nothing is planned here\n");
    }
    for instance in &explanation.instances {
        let place = place(&instance.node, &instance.accelerators, Some(inventory));
        let name = format!("{}/{}", instance.model, instance.replica);
        let lead = format!("  {} {name} on {place}: ", style.paint(Ink::Good, "runs"));
        let shape = super::plan_text::shape(instance);
        out.push_str(&style.beside(&lead, &format!("{shape}. {}", instance.because)));
    }
    if !explanation.absent.is_empty() {
        out.push('\n');
        out.push_str(&style.heading("Why not here"));
        for absent in &explanation.absent {
            let why = absent.verdict.unwrap_or("no shape of it was considered here");
            out.push_str(&style.beside(&format!("  {}  ", absent.model), &clean(why)));
        }
    }
    out
}
