//! Why a model runs where it does, or does not: what it lost by elsewhere, what would change that, and every shape.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::held_back::{HeldBack, held_back};
use super::style::{Ink, Style, clean, pad, table};
use super::words::{count, place};
use crate::base::format_bytes;
use crate::inventory::Inventory;
use crate::placement::{
    Considered, Fate, Lost, LostGroup, Obstacle, Placement, TermShare, Turn, Unplaced, VariantAt, Victim, Why,
};
use crate::plan::{Observed, Plan, PlannedInstance};

/// `flock explain NAME --format json`.
#[derive(Debug, Clone, Serialize)]
pub struct Explanation<'a> {
    /// 1.
    pub format: u32,
    /// The model.
    pub model: &'a str,
    /// Where it should run.
    pub instances: Vec<&'a PlannedInstance>,
    /// What of that is refused or put off, and where it runs meanwhile.
    pub held_back: Vec<HeldBack<'a>>,
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
    /// What was not taken, by what it lost by.
    pub lost: &'a [LostGroup],
    /// The objective by term.
    pub objective: &'a [TermShare],
    /// What would change the answer, the smallest change first.
    pub changes: &'a [Turn],
    /// What keeps one more replica from its place, together.
    pub together: &'a [Obstacle],
    /// Its running instances that lose their place to higher ranks.
    pub preempted: Vec<&'a Victim>,
    /// Running instances of lower ranks that lose their place to it.
    pub preempts: Vec<&'a Victim>,
    /// Whether every replica is placed in the best variant.
    pub content: bool,
    /// What could not be computed, and why.
    pub notes: &'a [String],
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
fn distance(shape: &Considered) -> (Fate, u64) {
    (shape.fate, shape.needed_bytes)
}

/// The shape of a model that came closest on a node, or on one that is like it; what rules it out everywhere counts
/// where nothing else does.
pub(super) fn closest<'a>(
    considered: &'a [Considered],
    model: &str,
    node: &str,
    alike: &[String],
) -> Option<&'a Considered> {
    let here =
        |shape: &Considered| shape.node == node || shape.node == "*" || (!shape.chosen && alike.contains(&shape.node));
    let of = considered.iter().filter(|shape| shape.model == model && here(shape));
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
    pub fn of(
        model: &'a str,
        plan: &'a Plan,
        placement: &'a Placement,
        observed: &'a [Observed],
        why: Option<&'a Why>,
    ) -> Self {
        let mut shapes: Vec<&Considered> = placement.considered.iter().filter(|shape| shape.model == model).collect();
        shapes.sort_by_key(|shape| !shape.chosen);
        let unplaced: Vec<&Unplaced> = plan.unplaced.iter().filter(|unplaced| unplaced.model == model).collect();
        Self {
            elsewhere: elsewhere(&shapes),
            binding: binding(&unplaced),
            format: 1,
            model,
            instances: plan.instances.iter().filter(|instance| instance.model == model).collect(),
            held_back: held_back(plan, observed).into_iter().filter(|held| held.model == model).collect(),
            considered: shapes,
            variants: placement.variants.iter().filter(|at| at.model == model).collect(),
            unplaced,
            lost: why.map_or(&[], |why| &why.lost),
            objective: why.map_or(&[], |why| &why.objective),
            changes: why.map_or(&[], |why| &why.turns),
            together: why.map_or(&[], |why| &why.together),
            preempted: placement.victims.iter().filter(|victim| victim.model == model).collect(),
            preempts: placement.victims.iter().filter(|v| v.by.iter().any(|name| name == model)).collect(),
            content: why.is_some_and(|why| why.content),
            notes: why.map_or(&[], |why| &why.notes),
        }
    }
}

/// Members of a group that are told; the JSON has all.
const NEAREST: usize = 4;

/// An explanation as text. The first screen answers why: where it runs and what would change that; what was considered
/// follows, by what it lost by, the closest of each.
pub fn explain_text(explanation: &Explanation<'_>, inventory: Option<&Inventory>, style: &Style) -> String {
    let mut out = style.heading(&format!("Model {}", explanation.model));
    for instance in &explanation.instances {
        let place = place(&instance.node, &instance.accelerators, inventory);
        let held = explanation.held_back.iter().find(|held| held.is(instance));
        let verb = held.map_or_else(|| style.paint(Ink::Good, "runs"), |_| style.paint(Ink::Change, "should run"));
        let lead = format!("  {verb} replica {} on {place}: ", instance.replica);
        let shape = super::plan_text::shape(instance);
        out.push_str(&style.beside(&lead, &format!("{shape}. {}", clean(&instance.because))));
        if let Some(held) = held {
            out.push_str(&style.beside("       ", &clean(&held.text(inventory))));
        }
        out.push_str(&style.beside("       memory ", &super::plan_text::memory(instance)));
    }
    for unplaced in &explanation.unplaced {
        let missing = count(unplaced.replicas as usize, "replica");
        let lead = format!("  {} ", style.paint(Ink::Bad, &format!("not placed: {missing}.")));
        out.push_str(&style.beside(&lead, &format!("Nearest change: {}", unplaced.nearest)));
        for reason in &unplaced.reasons {
            out.push_str(&style.beside(&format!("       {}: {}: ", reason.at(), reason.constraint), &reason.text));
        }
    }
    if explanation.instances.is_empty() && explanation.unplaced.is_empty() {
        out.push_str("  nothing is wanted of it\n");
    }
    if explanation.binding.len() == 1 && explanation.binding[0].nodes.len() > 1 {
        let constraint = &explanation.binding[0].constraint;
        out.push_str(&format!("       everywhere the same stands in the way: {constraint}\n"));
    }
    for victim in &explanation.preempted {
        let lead = format!("  {} replica {} on {}: ", style.paint(Ink::Bad, "loses"), victim.replica, victim.node);
        out.push_str(&style.beside(&lead, &clean(&victim_text(victim))));
    }
    for victim in &explanation.preempts {
        let lead = format!(
            "  {} {}/{} on {}: ",
            style.paint(Ink::Bad, "displaces"),
            victim.model,
            victim.replica,
            victim.node
        );
        out.push_str(&style.beside(&lead, &clean(&victim.why)));
    }
    out.push_str(&together_text(explanation.together, explanation.model, "  ", style));
    changes(&mut out, explanation, style);
    objective(&mut out, explanation.objective, style);
    if explanation.unplaced.is_empty() && !explanation.elsewhere.is_empty() {
        out.push('\n');
        out.push_str(&style.heading("Why not elsewhere"));
        for other in &explanation.elsewhere {
            let node = if other.node == "*" { "anywhere" } else { &other.node };
            out.push_str(&style.beside(&format!("  {node}  "), &other.verdict));
        }
    }
    variants(&mut out, &explanation.variants, style);
    considered(&mut out, explanation, style);
    for note in explanation.notes {
        out.push_str(&style.beside("  note: ", note));
    }
    out
}

/// Who takes the place of an instance, and why of this one.
fn victim_text(victim: &Victim) -> String {
    let by: Vec<String> = victim.by.iter().map(|name| format!("`{name}`")).collect();
    format!("{} ranks higher than {} and takes its place; {}", by.join(", "), victim.rank, victim.why)
}

/// What is in the way together, and whether one of it would do.
pub(super) fn together_text(together: &[Obstacle], model: &str, indent: &str, style: &Style) -> String {
    if together.is_empty() {
        return String::new();
    }
    let all = together.iter().all(|obstacle| obstacle.alone);
    let some = together.iter().any(|obstacle| obstacle.alone);
    let lead = match together.len() {
        1 => format!("`{model}` cannot be placed because of one thing:"),
        _ => format!("`{model}` cannot be placed because of all of these together:"),
    };
    let mut out = style.beside(indent, &lead);
    for obstacle in together {
        let alone = if some && !all && obstacle.alone { " (dropping this one would do)" } else { "" };
        out.push_str(&style.beside(&format!("{indent}  - "), &format!("{}{alone}", clean(&obstacle.text))));
    }
    let end = match (together.len(), all, some) {
        (1, true, _) => "without it there would be a place",
        (_, true, _) => "dropping any one of them would place it",
        (_, false, true) => {
            "none can be left out of the set; other things stand in the way beside those that would not do"
        }
        (_, false, false) => "none can be left out of the set, and other things stand in the way beside them",
    };
    out.push_str(&style.beside(&format!("{indent}  "), end));
    out
}

fn changes(out: &mut String, explanation: &Explanation<'_>, style: &Style) {
    if explanation.changes.is_empty() {
        if explanation.content && !explanation.instances.is_empty() {
            out.push('\n');
            out.push_str(&style.heading("What would change the answer"));
            out.push_str(&style.beside("  ", "nothing is missing: every replica runs, in the best variant there is"));
        }
        return;
    }
    out.push('\n');
    out.push_str(&style.heading("What would change the answer (each was solved)"));
    for turn in explanation.changes {
        out.push_str(&style.beside("  - ", &format!("{}: {}", clean(&turn.change), clean(&turn.effect))));
    }
}

fn objective(out: &mut String, terms: &[TermShare], style: &Style) {
    let told: Vec<&TermShare> = terms.iter().filter(|term| term.total_value.abs() > 1e-9).collect();
    if told.is_empty() {
        return;
    }
    out.push('\n');
    out.push_str(&style.heading("Objective (the least is best: weight x value, of this model and of all)"));
    let figure = |value: f64| format!("{value:.2}");
    let rows: Vec<Vec<String>> = told
        .iter()
        .map(|term| {
            vec![
                term.term.clone(),
                figure(term.weight).trim_end_matches('0').trim_end_matches('.').to_owned(),
                figure(term.value),
                figure(term.cost),
                figure(term.total_cost),
                term.unit.clone(),
            ]
        })
        .collect();
    for line in table(&["TERM", "WEIGHT", "VALUE", "COSTS", "OF ALL", "UNIT"], &rows).lines() {
        out.push_str(&format!("  {line}\n"));
    }
    let sum = |of: fn(&TermShare) -> f64| told.iter().map(|term| of(term)).sum::<f64>();
    let (own, all) = (sum(|term| term.cost), sum(|term| term.total_cost));
    out.push_str(&style.beside("  ", &format!("{} of {} in all", figure(own), figure(all))));
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
        let nodes = variants.iter().map(|at| at.at().chars().count()).max().unwrap_or(0).max(8);
        let taken = if at.replicas > 0 {
            format!("taken for {}: ", count(at.replicas as usize, "replica"))
        } else {
            String::new()
        };
        let lead = format!("  {}  {}  ", pad(name, width), pad(&at.at(), nodes));
        out.push_str(&style.beside(&lead, &format!("{taken}{}", clean(&at.reason))));
    }
}

/// What was considered: the chosen ways, then the others under what they lost by, the closest of each group.
fn considered(out: &mut String, explanation: &Explanation<'_>, style: &Style) {
    let shapes = &explanation.considered;
    if shapes.is_empty() {
        return;
    }
    out.push('\n');
    out.push_str(&style.heading(&format!("Considered ({})", count(shapes.len(), "shape"))));
    let chosen: Vec<&Considered> = shapes.iter().copied().filter(|shape| shape.chosen).collect();
    if !chosen.is_empty() {
        out.push_str(&format!("  {}\n", style.paint(Ink::Heading, "chosen")));
        for shape in chosen {
            let way = way(&shape.variant, &shape.engine.to_string(), Some(shape.tensor_parallel));
            let rest = shape.verdict.strip_prefix("chosen: ").unwrap_or(&shape.verdict);
            let needs = bytes_each(shape.needed_bytes);
            out.push_str(&style.beside("    ", &format!("{way}, {}: {needs}; {rest}", shape.node)));
        }
    }
    for group in explanation.lost {
        let title = format!("lost: {} ({})", group.by.title(), group.shapes);
        out.push_str(&format!("  {}\n", style.paint(Ink::Heading, &title)));
        for lost in group.members.iter().take(NEAREST) {
            out.push_str(&style.beside("    ", &format!("{}: {}", lost_way(lost), clean(&lost.text))));
        }
        if group.members.len() > NEAREST {
            let more = format!("and {} more (--format json has all)", group.members.len() - NEAREST);
            out.push_str(&format!("    {}\n", style.paint(Ink::Dim, &more)));
        }
    }
}

fn bytes_each(bytes: u64) -> String {
    if bytes == 0 { "needs an unknown amount".to_owned() } else { format!("needs {} each", format_bytes(bytes)) }
}

/// `bf16 with vllm over 2 accelerators`.
fn way(variant: &str, engine: &str, ranks: Option<u32>) -> String {
    let with = if engine.is_empty() { String::new() } else { format!(" with {engine}") };
    match ranks {
        Some(0) => format!("{variant}{with} on the CPU"),
        Some(1) => format!("{variant}{with} on one accelerator"),
        Some(ranks) => format!("{variant}{with} over {ranks} accelerators"),
        None => format!("{variant}{with}"),
    }
}

fn lost_way(lost: &Lost) -> String {
    let engine = lost.engine.map(|engine| engine.to_string()).unwrap_or_default();
    let way = way(&lost.variant, &engine, lost.ranks);
    match lost.nodes.as_slice() {
        [one] if one == "*" => format!("{way}, anywhere"),
        few if few.len() <= 3 => format!("{way}, {}", few.join(", ")),
        [first, second, rest @ ..] => format!("{way}, {first}, {second} and {} more", rest.len()),
        _ => way,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_node_is_said_of_the_best_variant_that_fits_there() {
        let shape = |variant: &str, needed_bytes: u64, fate: Fate, verdict: &str| Considered {
            fate,
            model: "m".to_owned(),
            variant: variant.to_owned(),
            engine: crate::base::EngineKind::LlamaCpp,
            node: "a".to_owned(),
            alike: 0,
            tensor_parallel: 1,
            needed_bytes,
            chosen: false,
            verdict: verdict.to_owned(),
        };
        let best = "fits, but the chosen place weighs less in the objective";
        let shapes = [shape("q4", 5, Fate::Lesser, "a better variant is placed"), shape("q8", 9, Fate::Beaten, best)];
        assert_eq!(closest(&shapes, "m", "a", &[]).map(|shape| shape.verdict.as_str()), Some(best));
        let told = elsewhere(&shapes.iter().collect::<Vec<_>>());
        assert_eq!(told.iter().map(|one| one.verdict.as_str()).collect::<Vec<_>>(), [best]);
    }
}
