//! The difference that something would make: the plan without it and the plan with it.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::plan_text::unplaced_text;
use super::style::{Ink, Style, clean, pad, table};
use super::words::{count, device_name};
use crate::config::{Alteration, Desired, WhatIf};
use crate::inventory::Inventory;
use crate::plan::{Plan, PlannedInstance};

/// What stands for the variant of a way out to a provider.
const WAY_OUT: &str = "way out";

/// A state with its plan.
#[derive(Debug, Clone, Copy)]
pub struct State<'a> {
    /// The desired state.
    pub desired: &'a Desired,
    /// The facts.
    pub inventory: &'a Inventory,
    /// The plan.
    pub plan: &'a Plan,
}

/// `what_if` of `flock plan --what-if FILE --format json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    /// What would be otherwise, in the order written.
    pub changes: Vec<Made>,
    /// Models that fare otherwise, by name.
    pub models: Vec<ModelDifference>,
    /// How many models fare the same.
    pub unchanged: usize,
    /// The solver's tiers in both plans.
    pub tiers: Vec<TierDifference>,
    /// What all nodes of the config cost.
    pub cost: CostDifference,
    /// How full accelerators are, by their name.
    pub utilisation: Vec<KindDifference>,
    /// The difference in sentences.
    pub verdict: Vec<String>,
    /// Things to know.
    pub notes: Vec<String>,
}

/// A change that was made in thought.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Made {
    /// `add` or `drop`.
    pub change: &'static str,
    /// `node` or `model`.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// The node that an added one is like.
    pub like: Option<String>,
}

/// How a model fares in both plans.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelDifference {
    /// The model.
    pub model: String,
    /// `placed`, `lost`, `gains`, `loses`, `variant`, `moves` or `added` (of a model that only one plan has). Of a
    /// provider's model, whose ways out are its places: `placed`, `lost`, `gains`, `loses` or `moves`.
    pub change: &'static str,
    /// Replicas without a place, without the change.
    pub missing_before: u32,
    /// The same with the change.
    pub missing_after: u32,
    /// Where it runs without the change.
    pub before: Vec<Place>,
    /// Where it runs with it.
    pub after: Vec<Place>,
}

/// Where a replica runs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Place {
    /// The node.
    pub node: String,
    /// The variant.
    pub variant: String,
    /// How many accelerators; 0 on the CPU.
    pub accelerators: usize,
    /// Replica number.
    pub replica: u32,
}

/// A tier in both plans; `null` where one does not have it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TierDifference {
    /// Its name.
    pub name: String,
    /// Its value without the change.
    pub before: Option<f64>,
    /// Its value with the change.
    pub after: Option<f64>,
}

/// Money per hour for all nodes whose price is known.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CostDifference {
    /// The cluster's currency, where it says one.
    pub currency: Option<String>,
    /// Without the change; `null` where no price is known.
    pub before_per_hour: Option<f64>,
    /// With the change.
    pub after_per_hour: Option<f64>,
    /// Nodes without a price, with the change.
    pub unpriced: Vec<String>,
}

/// Accelerators of one name.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KindDifference {
    /// The name that the driver reports.
    pub name: String,
    /// Without the change.
    pub before: Use,
    /// With the change.
    pub after: Use,
}

/// How much of them is used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Use {
    /// How many there are.
    pub accelerators: usize,
    /// On how many something is planned.
    pub used: usize,
    /// Their memory.
    pub total_bytes: u64,
    /// What is planned of it.
    pub planned_bytes: u64,
}

/// A plan of a supposed state: everything of a plan, and the difference.
#[derive(Debug, Clone, Serialize)]
pub struct SupposedPlan<'a> {
    /// The plan with the change.
    #[serde(flatten)]
    pub plan: &'a Plan,
    /// What the change makes of it. A plan with this is no plan file: it cannot be applied.
    pub what_if: &'a Difference,
}

impl Difference {
    /// Of the plan without and the plan with what the files say.
    pub fn of(files: &[WhatIf], before: State<'_>, after: State<'_>, notes: Vec<String>) -> Self {
        let changes: Vec<Made> = files.iter().flat_map(|file| &file.changes).map(made).collect();
        let names: BTreeSet<&String> = before.desired.models.keys().chain(after.desired.models.keys()).collect();
        let all = names.len();
        let mut models: Vec<ModelDifference> =
            names.into_iter().filter_map(|name| model(name, before, after)).collect();
        let same = all - models.len();
        models.extend(ways_out(before, after));
        models.sort_by(|a, b| a.model.cmp(&b.model));
        let verdict = verdict(&changes, &models);
        Self {
            unchanged: same,
            tiers: tiers(before.plan, after.plan),
            cost: cost(before.desired, after.desired),
            utilisation: utilisation(before, after),
            changes,
            models,
            verdict,
            notes,
        }
    }
}

fn made(change: &Alteration) -> Made {
    match change {
        Alteration::AddNode(node) => {
            let like = Some(node.like.value.clone());
            Made { change: "add", kind: "node", name: node.name.value.clone(), like }
        }
        Alteration::DropNode(name) => Made { change: "drop", kind: "node", name: name.value.clone(), like: None },
        Alteration::AddModel(model) => {
            Made { change: "add", kind: "model", name: model.name.value.clone(), like: None }
        }
    }
}

fn places(plan: &Plan, model: &str) -> Vec<Place> {
    let place = |instance: &PlannedInstance| Place {
        node: instance.node.clone(),
        variant: instance.variant.clone(),
        accelerators: instance.accelerators.len(),
        replica: instance.replica,
    };
    let mut places: Vec<Place> =
        plan.instances.iter().filter(|i| i.model == model && !i.is_worker()).map(place).collect();
    places.sort_by_key(|place| place.replica);
    places
}

fn missing(plan: &Plan, model: &str) -> u32 {
    plan.unplaced.iter().filter(|unplaced| unplaced.model == model).map(|unplaced| unplaced.replicas).sum()
}

/// `None` where it fares the same.
fn model(name: &str, before: State<'_>, after: State<'_>) -> Option<ModelDifference> {
    let (was, is) = (places(before.plan, name), places(after.plan, name));
    let only = before.desired.models.contains_key(name) != after.desired.models.contains_key(name);
    let sorted = |places: &[Place], of: fn(&Place) -> (String, String, usize)| {
        let mut keys: Vec<_> = places.iter().map(of).collect();
        keys.sort();
        keys
    };
    let by_variant = |place: &Place| (place.variant.clone(), String::new(), 0);
    let by_place = |place: &Place| (place.variant.clone(), place.node.clone(), place.accelerators);
    let change = match (was.len(), is.len()) {
        _ if only => "added",
        (0, 1..) => "placed",
        (1.., 0) => "lost",
        (was, is) if is > was => "gains",
        (was, is) if is < was => "loses",
        _ if sorted(&was, by_variant) != sorted(&is, by_variant) => "variant",
        _ if sorted(&was, by_place) != sorted(&is, by_place) => "moves",
        _ => return None,
    };
    Some(ModelDifference {
        model: name.to_owned(),
        change,
        missing_before: missing(before.plan, name),
        missing_after: missing(after.plan, name),
        before: was,
        after: is,
    })
}

/// Models of providers whose ways out are otherwise.
fn ways_out(before: State<'_>, after: State<'_>) -> Vec<ModelDifference> {
    let ways = |plan: &Plan, model: &str| {
        let way = |(replica, way): (usize, &crate::placement::Egress)| Place {
            node: way.node.clone(),
            variant: WAY_OUT.to_owned(),
            accelerators: 0,
            replica: u32::try_from(replica).unwrap_or(u32::MAX),
        };
        plan.egress.iter().filter(|way| way.provider_model == model).enumerate().map(way).collect::<Vec<Place>>()
    };
    let known = before.desired.provider_models.keys().chain(after.desired.provider_models.keys());
    let names: BTreeSet<&String> = known.collect();
    let nodes = |places: &[Place]| {
        let mut nodes: Vec<String> = places.iter().map(|place| place.node.clone()).collect();
        nodes.sort();
        nodes
    };
    let difference = |name: &String| {
        let (was, is) = (ways(before.plan, name), ways(after.plan, name));
        let change = match (was.len(), is.len()) {
            (0, 1..) => "placed",
            (1.., 0) => "lost",
            (was, is) if is > was => "gains",
            (was, is) if is < was => "loses",
            _ if nodes(&was) != nodes(&is) => "moves",
            _ => return None,
        };
        Some(ModelDifference {
            model: name.clone(),
            change,
            missing_before: missing(before.plan, name),
            missing_after: missing(after.plan, name),
            before: was,
            after: is,
        })
    };
    names.into_iter().filter_map(difference).collect()
}

fn tiers(before: &Plan, after: &Plan) -> Vec<TierDifference> {
    let value =
        |plan: &Plan, name: &str| plan.solver.tiers.iter().find(|tier| tier.name == name).map(|tier| tier.value);
    let mut names: Vec<&str> = before.solver.tiers.iter().map(|tier| tier.name.as_str()).collect();
    for (at, tier) in after.solver.tiers.iter().enumerate() {
        if !names.contains(&tier.name.as_str()) {
            names.insert(at.min(names.len()), &tier.name);
        }
    }
    let tier =
        |name: &str| TierDifference { name: name.to_owned(), before: value(before, name), after: value(after, name) };
    names.into_iter().map(tier).collect()
}

fn cost(before: &Desired, after: &Desired) -> CostDifference {
    let price = |desired: &Desired| {
        let prices: Vec<u64> =
            desired.nodes.values().filter_map(|n| n.extras.price_per_hour.as_ref()).map(|p| p.value.0).collect();
        (!prices.is_empty()).then(|| prices.iter().sum::<u64>() as f64 / 1e6)
    };
    let unpriced = after.nodes.iter().filter(|(_, node)| node.extras.price_per_hour.is_none());
    CostDifference {
        currency: after.cluster.extras.currency.as_ref().map(|currency| currency.value.clone()),
        before_per_hour: price(before),
        after_per_hour: price(after),
        unpriced: unpriced.map(|(name, _)| name.clone()).collect(),
    }
}

fn utilisation(before: State<'_>, after: State<'_>) -> Vec<KindDifference> {
    let (was, is) = (uses(before), uses(after));
    let names: BTreeSet<&String> = was.keys().chain(is.keys()).collect();
    let kind = |name: &String| KindDifference {
        name: name.clone(),
        before: was.get(name).copied().unwrap_or_default(),
        after: is.get(name).copied().unwrap_or_default(),
    };
    names.into_iter().map(kind).collect()
}

fn uses(state: State<'_>) -> BTreeMap<String, Use> {
    let mut planned: BTreeMap<&str, u64> = BTreeMap::new();
    for memory in state.plan.instances.iter().flat_map(|instance| &instance.memory.per_accelerator) {
        let known = planned.entry(&memory.uuid).or_default();
        *known = known.saturating_add(memory.total_bytes);
    }
    let mut uses: BTreeMap<String, Use> = BTreeMap::new();
    let nodes = state.inventory.nodes.iter().filter(|node| state.desired.nodes.contains_key(&node.name));
    for accelerator in nodes.flat_map(|node| &node.accelerators) {
        let entry = uses.entry(accelerator.name.clone()).or_default();
        let bytes = planned.get(accelerator.uuid.as_str()).copied();
        entry.accelerators += 1;
        entry.used += usize::from(bytes.is_some());
        entry.total_bytes = entry.total_bytes.saturating_add(accelerator.memory.total_bytes.unwrap_or(0));
        entry.planned_bytes = entry.planned_bytes.saturating_add(bytes.unwrap_or(0));
    }
    uses
}

/// `adding 2 nodes like ada-1 (new-1, new-2), dropping a100`.
fn headline(changes: &[Made]) -> String {
    let mut likes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for made in changes {
        if let Some(like) = &made.like {
            likes.entry(like).or_default().push(&made.name);
        }
    }
    let mut words: Vec<String> = Vec::new();
    for (like, names) in likes {
        let all = names.join(", ");
        words.push(match names.len() {
            1 => format!("adding {all} (like {like})"),
            many => format!("adding {many} nodes like {like} ({all})"),
        });
    }
    let of = |change: &str, kind: &str| -> Vec<&str> {
        let these = changes.iter().filter(|made| made.change == change && made.kind == kind);
        these.map(|made| made.name.as_str()).collect()
    };
    let (dropped, models) = (of("drop", "node"), of("add", "model"));
    if !dropped.is_empty() {
        words.push(format!("dropping {}", dropped.join(", ")));
    }
    if !models.is_empty() {
        words.push(format!("adding the model {}", models.join(", ")));
    }
    words.join(", ")
}

fn verdict(changes: &[Made], models: &[ModelDifference]) -> Vec<String> {
    let lead = headline(changes);
    if models.is_empty() {
        return vec![format!("{lead}: nothing changes for any model")];
    }
    // What is lost first: it must not be overlooked.
    let order = |change: &str| match change {
        "lost" => 0,
        "loses" => 1,
        "placed" | "added" => 2,
        "gains" => 3,
        "variant" => 4,
        _ => 5,
    };
    let mut sorted: Vec<&ModelDifference> = models.iter().collect();
    sorted.sort_by_key(|difference| (order(difference.change), &difference.model));
    sorted.into_iter().map(|difference| format!("{lead}: {} {}", difference.model, sentence(difference))).collect()
}

/// `bf16 over 2 accelerators of a100`, those that are the same counted.
fn told(places: &[Place]) -> String {
    let mut counted: Vec<(String, usize)> = Vec::new();
    for place in places {
        let on = match place.accelerators {
            0 if place.variant == WAY_OUT => format!("through {}", place.node),
            0 => format!("on the CPU of {}", place.node),
            1 => format!("on {}", place.node),
            many => format!("over {many} accelerators of {}", place.node),
        };
        let text = format!("{} {on}", place.variant);
        match counted.iter_mut().find(|(known, _)| *known == text) {
            Some((_, number)) => *number += 1,
            None => counted.push((text, 1)),
        }
    }
    let words = counted.into_iter().map(|(text, n)| if n == 1 { text } else { format!("{n} x {text}") });
    words.collect::<Vec<_>>().join(", ")
}

/// What becomes of a model.
fn sentence(difference: &ModelDifference) -> String {
    let (was, is) = (difference.before.len(), difference.after.len());
    let (before, after) = (told(&difference.before), told(&difference.after));
    if difference.before.iter().chain(&difference.after).any(|place| place.variant == WAY_OUT) {
        return match difference.change {
            "placed" => format!("can be reached (could not): {after}"),
            "lost" => format!("cannot be reached any more (was {before})"),
            "gains" => format!("has {is} ways out instead of {was}: {after}"),
            "loses" => format!("has {is} of {was} ways out left: {after}"),
            _ => format!("would be reached otherwise: {after} instead of {before}"),
        };
    }
    match difference.change {
        "placed" => format!("is placed (was not): {after}"),
        "lost" => format!("is not placed any more (was {before})"),
        "added" if is == 0 => "finds no place".to_owned(),
        "added" => format!("is placed: {after}"),
        "gains" => format!("has {is} replicas instead of {was}: {after}"),
        "loses" => format!("has {} instead of {was}: {after}", count(is, "replica")),
        "variant" => format!("takes {after} instead of {before}"),
        _ => format!("would run elsewhere: {after} instead of {before}"),
    }
}

/// The difference for people, or only how models fare.
pub fn what_if_text(difference: &Difference, after: State<'_>, verdict_only: bool, style: &Style) -> String {
    let lead = style.paint(Ink::Heading, "What if ");
    let mut out = style.beside(&lead, &clean(&headline(&difference.changes)));
    out.push('\n');
    let width = difference.models.iter().map(|one| one.model.chars().count()).max().unwrap_or(0);
    for one in &difference.models {
        let ink = match one.change {
            "lost" | "loses" => Ink::Bad,
            "placed" | "gains" => Ink::Good,
            "added" if one.after.is_empty() => Ink::Bad,
            "added" => Ink::Good,
            _ => Ink::Change,
        };
        let lead = format!("  {}  ", style.paint(ink, &pad(&one.model, width)));
        out.push_str(&style.beside(&lead, &clean(&sentence(one))));
    }
    if difference.models.is_empty() {
        out.push_str("  nothing changes for any model\n");
    } else if difference.unchanged > 0 {
        let text = format!("{} unchanged", count(difference.unchanged, "model"));
        out.push_str(&format!("  {}\n", style.paint(Ink::Dim, &text)));
    }
    if verdict_only {
        return out;
    }
    out.push('\n');
    costs(&mut out, &difference.cost, style);
    for kind in &difference.utilisation {
        let (was, is) = (kind.before, kind.after);
        let share = |u: Use| if u.total_bytes == 0 { 0.0 } else { u.planned_bytes as f64 / u.total_bytes as f64 };
        let text = format!(
            "{} -> {} there, {} -> {} used, {:.0} % -> {:.0} % of their memory planned",
            was.accelerators,
            is.accelerators,
            was.used,
            is.used,
            share(was) * 100.0,
            share(is) * 100.0
        );
        out.push_str(&style.beside(&format!("  {}: ", device_name(&clean(&kind.name))), &text));
    }
    let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
    let rows: Vec<Vec<String>> =
        difference.tiers.iter().map(|t| vec![t.name.clone(), number(t.before), number(t.after)]).collect();
    if !rows.is_empty() {
        out.push('\n');
        for line in table(&["TIER", "WITHOUT", "WITH"], &rows).lines() {
            out.push_str(&format!("  {line}\n"));
        }
    }
    if !after.plan.unplaced.is_empty() {
        out.push('\n');
        out.push_str(&style.heading("Not placed with it"));
        out.push_str(&unplaced_text(&after.plan.unplaced, style));
    }
    for note in &difference.notes {
        out.push_str(&style.beside("  note: ", &clean(note)));
    }
    out.push('\n');
    out.push_str(
        &style.beside("", "Nothing of this can be applied: it is only supposed. --full shows the whole plan."),
    );
    out
}

fn costs(out: &mut String, cost: &CostDifference, style: &Style) {
    let currency = cost.currency.as_ref().map(|currency| format!(" {currency}")).unwrap_or_default();
    let figure = |value: Option<f64>| value.map_or("unknown".to_owned(), |value| format!("{value:.2}"));
    if cost.before_per_hour.is_none() && cost.after_per_hour.is_none() {
        return;
    }
    let without = match cost.unpriced.len() {
        0 => String::new(),
        some => format!(" ({} without a price)", count(some, "node")),
    };
    let text = format!(
        "{} -> {}{} per hour{without}",
        figure(cost.before_per_hour),
        figure(cost.after_per_hour),
        clean(&currency)
    );
    out.push_str(&style.beside("  all nodes: ", &text));
}

/// The difference as a comment on a pull request.
pub fn what_if_markdown(difference: &Difference, after: State<'_>) -> String {
    let style = Style::PLAIN;
    let text = what_if_text(difference, after, false, &style);
    let quoted: String =
        difference.verdict.iter().map(|line| format!("- {}\n", clean(line).replace(['`', '<', '|'], "'"))).collect();
    // No line of the text can end the block.
    let block = text.replace("```", "'''");
    format!(
        "<!-- flock what-if -->\n### What if\n\n{quoted}\n<details><summary>Details</summary>\n\n```text\n{block}```\n\n</details>\n"
    )
}
