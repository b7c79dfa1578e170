//! What is planned on one node, and why the other models are not there.

use serde::Serialize;

use super::explain::closest;
use super::held_back::{HeldBack, held_back};
use super::status::{HeldNode, held_nodes, held_text};
use super::style::{Ink, Style, clean};
use super::words::place;
use crate::base::format_bytes;
use crate::config::Desired;
use crate::inventory::Inventory;
use crate::placement::Considered;
use crate::plan::{Observed, Plan, PlannedInstance};

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
    /// What of that is refused or put off; and what runs here and stays, though it should run elsewhere.
    pub held_back: Vec<HeldBack<'a>>,
    /// Models of the config that are neither planned on it nor stay on it, by name.
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
    /// Instances that stay on it though they should run elsewhere, as `MODEL/REPLICA`.
    pub stays: Vec<String>,
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
    /// Everything about one node of the config or of the inventory. `alike` are the nodes that the placement looked at
    /// as one with it.
    pub fn of(
        node: &'a str,
        desired: &'a Desired,
        inventory: &'a Inventory,
        plan: &'a Plan,
        observed: &'a [Observed],
        considered: &'a [Considered],
        alike: &[String],
    ) -> Self {
        let instances: Vec<&PlannedInstance> = plan.instances.iter().filter(|i| i.node == node).collect();
        let facts = inventory.node(node);
        let stays_here = |held: &HeldBack<'_>| held.stays.as_ref().is_some_and(|stays| stays.node == node);
        let mut held: Vec<HeldBack<'_>> = held_back(plan, observed);
        held.retain(|held| held.node == node || stays_here(held));
        let staying = |uuid: &String| {
            let on = |held: &&HeldBack<'_>| {
                let moves = held
                    .stays
                    .as_ref()
                    .filter(|stays| stays.node != held.node || stays.accelerators != held.accelerators);
                moves.is_some_and(|stays| stays.node == node && stays.accelerators.contains(uuid))
            };
            held.iter().filter(on).map(|held| format!("{}/{}", held.model, held.replica)).collect()
        };
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
            stays: staying(&accelerator.uuid),
            others_bytes: accelerator
                .processes
                .iter()
                .filter(|process| !process.ours)
                .filter_map(|process| process.used_bytes)
                .fold(0, u64::saturating_add),
        });
        let accelerators = accelerators.collect();
        let stays = |model: &String| held.iter().any(|held| held.model == model && stays_here(held));
        let absent =
            desired.models.keys().filter(|model| !instances.iter().any(|i| &i.model == *model) && !stays(model));
        Self {
            format: 1,
            node,
            reachable: facts.is_some_and(|facts| facts.reachable),
            held: held_nodes(desired, inventory).into_iter().filter(|held| held.node == node).collect(),
            accelerators,
            absent: absent
                .map(|model| Absent {
                    model,
                    verdict: closest(considered, model, node, alike).map(|shape| shape.verdict.as_str()),
                })
                .collect(),
            instances,
            held_back: held,
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
        let stays = match load.stays.as_slice() {
            [] => String::new(),
            [one] => format!(", {one} stays on it"),
            several => format!(", {} stay on it", several.join(", ")),
        };
        let health = if load.healthy { "" } else { ", unhealthy" };
        let text =
            format!("{}: {} of {of} planned{stays}{others}{health}", load.name, format_bytes(load.planned_bytes));
        out.push_str(&style.beside(&format!("  [{}] ", load.index), &clean(&text)));
    }
    if explanation.instances.is_empty() && explanation.held_back.is_empty() {
        out.push_str("  nothing is planned here\n");
    }
    for instance in &explanation.instances {
        let place = place(&instance.node, &instance.accelerators, Some(inventory));
        let name = format!("{}/{}", instance.model, instance.replica);
        let held = explanation.held_back.iter().find(|held| held.is(instance));
        let verb = held.map_or_else(|| style.paint(Ink::Good, "runs"), |_| style.paint(Ink::Change, "should run"));
        let lead = format!("  {verb} {name} on {place}: ");
        let shape = super::plan_text::shape(instance);
        out.push_str(&style.beside(&lead, &format!("{shape}. {}", clean(&instance.because))));
        if let Some(held) = held {
            out.push_str(&style.beside("       ", &clean(&held.text(Some(inventory)))));
        }
    }
    let leaves = |held: &&HeldBack<'_>| held.node != explanation.node;
    for held in explanation.held_back.iter().filter(leaves) {
        let Some(stays) = &held.stays else { continue };
        let here = place(stays.node, stays.accelerators, Some(inventory));
        let there = place(held.node, held.accelerators, Some(inventory));
        let lead = format!("  {} {}/{} on {here}: ", style.paint(Ink::Change, "stays"), held.model, held.replica);
        out.push_str(&style.beside(&lead, &clean(&format!("should run on {there}; {}", held.why))));
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
