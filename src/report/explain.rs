//! Why a model runs where it does, or does not: every shape that was considered, and its fate.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::style::{Ink, Style, clean, pad, table};
use super::words::{count, place};
use crate::base::format_bytes;
use crate::inventory::Inventory;
use crate::placement::{Considered, Unplaced, VariantAt};
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
    /// Every variant on every node, taken or not and why; best first.
    pub variants: Vec<&'a VariantAt>,
    /// Replicas without a place.
    pub unplaced: Vec<&'a Unplaced>,
    /// Nodes without an instance of it, each with the shape that came closest there.
    pub elsewhere: Vec<Elsewhere>,
    /// The constraints that stand in the way of what is not placed, with the nodes; the one of most nodes first.
    pub binding: Vec<Binding>,
}

/// Why a model does not run on a node.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Elsewhere {
    /// The node.
    pub node: String,
    /// What kept the closest shape from being chosen there.
    pub verdict: String,
}

/// A constraint and where it holds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Binding {
    /// The word of `unplaced.reasons.constraint`.
    pub constraint: String,
    /// The nodes; `*` is anywhere.
    pub nodes: Vec<String>,
}

/// How close a shape came: it fits but for the objective, it fits beside less, or a constraint rules it out.
fn distance(shape: &Considered) -> (u8, u64) {
    let class = match shape.verdict.as_str() {
        verdict if verdict.starts_with("fits,") => 0,
        verdict if verdict.starts_with("fits by itself") => 1,
        verdict if verdict.starts_with("does not fit beside") => 2,
        _ => 3,
    };
    (class, shape.needed_bytes)
}

/// The reason of a verdict in a few words, and the rest of it.
fn reason(verdict: &str) -> (&str, &str) {
    verdict.split_once(": ").unwrap_or((verdict, ""))
}

/// The shape of a model that came closest on a node; what rules it out everywhere counts where nothing else does.
pub(super) fn closest<'a>(considered: &'a [Considered], model: &str, node: &str) -> Option<&'a Considered> {
    let of = considered.iter().filter(|shape| shape.model == model && (shape.node == node || shape.node == "*"));
    of.min_by_key(|shape| (shape.node == "*", distance(shape)))
}

fn elsewhere(shapes: &[&Considered]) -> Vec<Elsewhere> {
    let chosen: BTreeSet<&str> = shapes.iter().filter(|s| s.chosen).map(|s| s.node.as_str()).collect();
    let mut closest: BTreeMap<&str, &Considered> = BTreeMap::new();
    for shape in shapes.iter().filter(|s| !chosen.contains(s.node.as_str())) {
        let known = closest.entry(&shape.node).or_insert(shape);
        if distance(shape) < distance(known) {
            *known = shape;
        }
    }
    let told = |(node, shape): (&str, &Considered)| Elsewhere { node: node.to_owned(), verdict: shape.verdict.clone() };
    closest.into_iter().map(told).collect()
}

fn binding(unplaced: &[&Unplaced]) -> Vec<Binding> {
    let mut nodes: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for reason in unplaced.iter().flat_map(|unplaced| &unplaced.reasons) {
        nodes.entry(&reason.constraint).or_default().insert(&reason.node);
    }
    let mut found: Vec<Binding> = nodes
        .into_iter()
        .map(|(constraint, nodes)| Binding {
            constraint: constraint.to_owned(),
            nodes: nodes.into_iter().map(str::to_owned).collect(),
        })
        .collect();
    found.sort_by_key(|binding| std::cmp::Reverse(binding.nodes.len()));
    found
}

impl<'a> Explanation<'a> {
    /// Everything about one model.
    pub fn of(model: &'a str, plan: &'a Plan, considered: &'a [Considered], variants: &'a [VariantAt]) -> Self {
        let mut shapes: Vec<&Considered> = considered.iter().filter(|shape| shape.model == model).collect();
        shapes.sort_by_key(|shape| !shape.chosen);
        let unplaced: Vec<&Unplaced> = plan.unplaced.iter().filter(|unplaced| unplaced.model == model).collect();
        Self {
            elsewhere: elsewhere(&shapes),
            binding: binding(&unplaced),
            format: 1,
            model,
            instances: plan.instances.iter().filter(|instance| instance.model == model).collect(),
            considered: shapes,
            variants: variants.iter().filter(|at| at.model == model).collect(),
            unplaced,
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
    if explanation.binding.len() == 1 && explanation.binding[0].nodes.len() > 1 {
        let constraint = &explanation.binding[0].constraint;
        out.push_str(&format!("       everywhere the same stands in the way: {constraint}\n"));
    }
    if explanation.unplaced.is_empty() && !explanation.elsewhere.is_empty() {
        out.push('\n');
        out.push_str(&style.heading("Why not elsewhere"));
        for other in &explanation.elsewhere {
            let node = if other.node == "*" { "anywhere" } else { &other.node };
            out.push_str(&style.beside(&format!("  {node}  "), &other.verdict));
        }
    }
    variants(&mut out, &explanation.variants, style);
    considered(&mut out, &explanation.considered, style);
    out
}

/// Every variant on every node, where there is a choice or nothing is placed.
fn variants(out: &mut String, variants: &[&VariantAt], style: &Style) {
    let names: BTreeSet<&str> = variants.iter().map(|at| at.variant.as_str()).collect();
    if names.len() < 2 {
        return;
    }
    out.push('\n');
    out.push_str(&style.heading(&format!("Variants ({}, best first)", names.len())));
    let mut last = "";
    for at in variants {
        let name = if at.variant == last { "" } else { &at.variant };
        last = &at.variant;
        let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        let node = if at.node == "*" { "anywhere" } else { &at.node };
        let nodes = variants.iter().map(|at| at.node.chars().count()).max().unwrap_or(0).max(8);
        let taken = if at.replicas > 0 {
            format!("taken for {}: ", count(at.replicas as usize, "replica"))
        } else {
            String::new()
        };
        let lead = format!("  {}  {}  ", pad(name, width), pad(node, nodes));
        out.push_str(&style.beside(&lead, &format!("{taken}{}", clean(&at.reason))));
    }
}

/// All shapes: the chosen ones, then the others under what they lost by, the closest first.
fn considered(out: &mut String, shapes: &[&Considered], style: &Style) {
    if shapes.is_empty() {
        return;
    }
    out.push('\n');
    out.push_str(&style.heading(&format!("Considered ({})", count(shapes.len(), "shape"))));
    let (chosen, lost): (Vec<&Considered>, Vec<&Considered>) = shapes.iter().copied().partition(|s| s.chosen);
    let mut groups: Vec<(String, Vec<&Considered>)> = Vec::new();
    if !chosen.is_empty() {
        groups.push(("chosen".to_owned(), chosen));
    }
    let mut lost_by: BTreeMap<&str, Vec<&Considered>> = BTreeMap::new();
    for shape in lost {
        lost_by.entry(reason(&shape.verdict).0).or_default().push(shape);
    }
    let mut lost_by: Vec<_> = lost_by.into_iter().collect();
    lost_by.sort_by_key(|(_, shapes)| shapes.iter().map(|shape| distance(shape)).min());
    groups.extend(lost_by.into_iter().map(|(by, shapes)| (format!("lost: {by} ({})", shapes.len()), shapes)));
    for (title, shapes) in groups {
        out.push_str(&format!("  {}\n", style.paint(Ink::Heading, &title)));
        let rows: Vec<Vec<String>> = shapes.iter().map(|shape| row(shape)).collect();
        for line in table(&["NODE", "ENGINE", "VARIANT", "SPLIT", "NEEDS EACH", "WHY"], &rows).lines() {
            out.push_str(&format!("    {line}\n"));
        }
    }
}

fn row(shape: &Considered) -> Vec<String> {
    let split = match shape.tensor_parallel {
        0 => "cpu".to_owned(),
        ranks => format!("{ranks}x"),
    };
    let (by, rest) = reason(&shape.verdict);
    vec![
        if shape.node == "*" { "anywhere".to_owned() } else { shape.node.clone() },
        shape.engine.to_string(),
        shape.variant.clone(),
        split,
        if shape.needed_bytes == 0 { "?".to_owned() } else { format_bytes(shape.needed_bytes) },
        match (shape.chosen, rest.is_empty()) {
            (true, true) => by.to_owned(),
            (false, true) => String::new(),
            (_, false) => rest.to_owned(),
        },
    ]
}
