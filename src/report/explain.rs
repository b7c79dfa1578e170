//! Why a model runs where it does, or does not: every shape that was considered, and its fate.

use serde::Serialize;

use super::style::{Ink, Style, table};
use super::words::{count, place};
use crate::base::format_bytes;
use crate::inventory::Inventory;
use crate::placement::{Considered, Unplaced};
use crate::plan::{Plan, PlannedInstance};

/// `flock explain NAME --format json`.
#[derive(Debug, Clone, Serialize)]
pub struct Explanation<'a> {
    /// 1.
    pub format: u32,
    /// The model.
    pub model: &'a str,
    /// Where it should run.
    pub instances: Vec<&'a PlannedInstance>,
    /// Every shape that was considered, chosen ones first.
    pub considered: Vec<&'a Considered>,
    /// Replicas without a place.
    pub unplaced: Vec<&'a Unplaced>,
}

impl<'a> Explanation<'a> {
    /// Everything about one model.
    pub fn of(model: &'a str, plan: &'a Plan, considered: &'a [Considered]) -> Self {
        let mut shapes: Vec<&Considered> = considered.iter().filter(|shape| shape.model == model).collect();
        shapes.sort_by_key(|shape| !shape.chosen);
        Self {
            format: 1,
            model,
            instances: plan.instances.iter().filter(|instance| instance.model == model).collect(),
            considered: shapes,
            unplaced: plan.unplaced.iter().filter(|unplaced| unplaced.model == model).collect(),
        }
    }
}

/// An explanation as text: chosen, then why each other shape lost.
pub fn explain_text(explanation: &Explanation<'_>, inventory: Option<&Inventory>, style: &Style) -> String {
    let mut out = style.heading(&format!("Model {}", explanation.model));
    for instance in &explanation.instances {
        let place = place(&instance.node, &instance.accelerators, inventory);
        let lead = format!("  {} replica {} on {place}: ", style.paint(Ink::Good, "runs"), instance.replica);
        let shape = super::plan_text::shape(instance);
        out.push_str(&style.beside(&lead, &format!("{shape}. {}", instance.because)));
        out.push_str(&style.beside("       memory ", &super::plan_text::memory(instance)));
    }
    for unplaced in &explanation.unplaced {
        let missing = count(unplaced.replicas as usize, "replica");
        let lead = format!("  {} ", style.paint(Ink::Bad, &format!("not placed: {missing}.")));
        out.push_str(&style.beside(&lead, &format!("Nearest change: {}", unplaced.nearest)));
        for reason in &unplaced.reasons {
            let node = if reason.node == "*" { "anywhere" } else { &reason.node };
            out.push_str(&style.beside(&format!("       {node}: {}: ", reason.constraint), &reason.text));
        }
    }
    if explanation.instances.is_empty() && explanation.unplaced.is_empty() {
        out.push_str("  nothing is wanted of it\n");
    }
    let rows: Vec<Vec<String>> = explanation
        .considered
        .iter()
        .map(|shape| {
            let split = match shape.tensor_parallel {
                0 => "cpu".to_owned(),
                ranks => format!("{ranks}x"),
            };
            vec![
                if shape.chosen { "* chosen" } else { "  lost" }.to_owned(),
                shape.node.clone(),
                shape.engine.to_string(),
                shape.variant.clone(),
                split,
                format_bytes(shape.needed_bytes),
                shape.verdict.clone(),
            ]
        })
        .collect();
    if !rows.is_empty() {
        out.push('\n');
        out.push_str(&style.heading(&format!("Considered ({})", count(rows.len(), "shape"))));
        out.push_str(&table(&["", "NODE", "ENGINE", "VARIANT", "SPLIT", "NEEDS EACH", "WHY"], &rows));
    }
    out
}
