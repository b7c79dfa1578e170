//! An explanation of one model: every way to run it under what it lost by, the objective by term, what would change the
//! answer, and what is in the way together. The heavy part of it (changed problems) is for `explain` alone.

use std::collections::BTreeMap;

use crate::base::format_bytes;
use crate::placement::explain::account::{costs, counted};
use crate::placement::explain::conflict::together;
use crate::placement::explain::rival::{Block, Compared, Rivals};
use crate::placement::explain::sensitivity::turns;
use crate::placement::explain::trial::{Inputs, answer, budget};
use crate::placement::layout::{Copy, Layout, Loads};
use crate::placement::place::Solution;
use crate::placement::solve::counts;
use crate::placement::words::considered::keeps;
use crate::placement::{Lost, LostBy, LostGroup, LostTier, ModelDemand, Problem, Removed, Shape, TermShare, Why};

/// Ways that are forced, one after another, to see by what they lose.
const FORCED: usize = 12;

/// Explains a model of a solved problem; `None` where there is no such model.
pub fn why(inputs: Inputs<'_>, solution: &Solution, name: &str) -> Option<Why> {
    let (problem, layout) = (&solution.problem, &solution.layout);
    let model = problem.model(name)?;
    let demand = &problem.models[model];
    let placed = counts(problem, layout).get(&model).copied().unwrap_or(0);
    let large = budget(problem) == 0;
    let mut notes = Vec::new();
    if large {
        notes.push("a cluster of this size is not solved again for every question: what would change the answer, and what stands in the way together, is not computed".to_owned());
    }
    // Ways are forced in the rows of an exact problem, which know every node by itself.
    let classed = large || !problem.alike.is_empty();
    let together = if placed < demand.desired { together(inputs, problem, model) } else { Vec::new() };
    if placed < demand.desired && together.is_empty() && !large {
        notes.push("no set of constraints was found of which dropping some would give it one more place".to_owned());
    }
    Some(Why {
        lost: lost(problem, layout, model, classed),
        objective: objective(problem, layout, model, classed),
        turns: turns(inputs, problem, layout, model),
        together,
        content: placed >= demand.desired
            && layout.iter().filter(|c| c.model == model).all(|c| demand.loss(&demand.shapes[c.shape]) == 0),
        notes,
    })
}

/// The terms with a weight, those of this model and all.
fn objective(problem: &Problem, layout: &Layout, model: usize, large: bool) -> Vec<TermShare> {
    let costs = if large { counted(problem, layout) } else { costs(problem, layout) };
    let share = |cost: crate::placement::explain::account::TermCost| TermShare {
        term: cost.term.word().to_owned(),
        unit: cost.term.unit().to_owned(),
        weight: cost.weight,
        value: clean(cost.by_model.get(model).copied().unwrap_or(0.0)),
        cost: clean(cost.weight * cost.by_model.get(model).copied().unwrap_or(0.0)),
        total_value: clean(cost.total()),
        total_cost: clean(cost.weight * cost.total()),
    };
    costs.into_iter().filter(|cost| cost.weight > 0.0).map(share).collect()
}

fn clean(value: f64) -> f64 {
    (value * 1e6).round() / 1e6 + 0.0
}

/// Everything that was not taken, by what it lost by, the closest first.
fn lost(problem: &Problem, layout: &Layout, model: usize, large: bool) -> Vec<LostGroup> {
    let demand = &problem.models[model];
    let mut found: Vec<(LostBy, Lost)> = removed(demand);
    let loads = Loads::of(problem, layout);
    let chosen: Vec<usize> = layout.iter().filter(|copy| copy.model == model).map(|copy| copy.shape).collect();
    let base = (!large).then(|| answer(problem));
    let rivals = base.as_ref().map(|base| Rivals::new(problem, base));
    let quotas = crate::placement::words::policies::quotas(problem, layout);
    let quota =
        crate::placement::words::policies::over_quota(problem, layout, &quotas, model).map(|(reason, _)| reason.text);
    let mut forced = 0;
    for shapes in alike(problem, demand, &chosen) {
        let shape = &demand.shapes[shapes[0]];
        if shape.keep_only {
            let (word, text) = keeps(problem, demand, shape);
            let lost = Lost { constraint: Some(word), ..one(problem, demand, &shapes, text) };
            found.push((LostBy::of(lost.constraint.as_deref().unwrap_or_default()), lost));
            continue;
        }
        let compared = match &rivals {
            Some(rivals) if forced < FORCED => {
                forced += 1;
                Some(rivals.force(model, shapes[0]))
            }
            _ => None,
        };
        let own = layout.iter().find(|copy| copy.model == model);
        found.push(match compared {
            Some(Compared::Equal) if chosen.is_empty() => {
                unequalled(one(problem, demand, &shapes, String::new()), &quota)
            }
            Some(compared) => match told(compared, one(problem, demand, &shapes, String::new())) {
                (LostBy::Worse, lost) if chosen.is_empty() => (LostBy::Cost, lost),
                told => told,
            },
            None => unforced(problem, demand, shape, own, &loads, one(problem, demand, &shapes, String::new())),
        });
    }
    let mut groups: BTreeMap<LostBy, Vec<Lost>> = BTreeMap::new();
    for (by, lost) in found {
        groups.entry(by).or_default().push(lost);
    }
    let group = |(by, mut members): (LostBy, Vec<Lost>)| {
        members.sort_by(|a, b| a.distance().total_cmp(&b.distance()).then_with(|| a.key().cmp(&b.key())));
        let shapes = members.iter().map(|member| member.nodes.len()).sum();
        LostGroup { by, shapes, members }
    };
    groups.into_iter().map(group).collect()
}

/// What was ruled out before solving; what is the same on several nodes together.
fn removed(demand: &ModelDemand) -> Vec<(LostBy, Lost)> {
    type Key<'k> = (LostBy, Option<&'k str>, Option<crate::base::EngineKind>, Option<u32>, &'k str);
    let mut merged: BTreeMap<Key<'_>, Vec<&Removed>> = BTreeMap::new();
    for removed in &demand.removed {
        let by = LostBy::of(&removed.reason.constraint);
        let key = (by, removed.variant.as_deref(), removed.engine, removed.ranks, removed.reason.text.as_str());
        merged.entry(key).or_default().push(removed);
    }
    let all: Vec<String> = demand.candidates.iter().map(|candidate| candidate.label.clone()).collect();
    let lost = |((by, variant, engine, ranks, text), same): (Key<'_>, Vec<&Removed>)| {
        let reason = &same[0].reason;
        let lost = Lost {
            variant: variant.map_or_else(|| all.join(", "), str::to_owned),
            engine,
            nodes: same.iter().map(|removed| removed.reason.node.clone()).collect(),
            ranks,
            constraint: Some(reason.constraint.clone()),
            needed: reason.needed,
            available: reason.available,
            unit: reason.unit.clone(),
            tier: None,
            text: text.to_owned(),
        };
        (by, lost)
    };
    merged.into_iter().map(lost).collect()
}

/// Shapes that were not taken, those together that differ in nothing but equal nodes; better variants and fewer
/// accelerators first.
fn alike(problem: &Problem, demand: &ModelDemand, chosen: &[usize]) -> Vec<Vec<usize>> {
    let mut kinds: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, shape) in demand.shapes.iter().enumerate().filter(|(index, _)| !chosen.contains(index)) {
        let node = &problem.nodes[shape.node];
        let device = shape.group.first().map_or("", |at| node.accelerators[*at].kind.as_str());
        let parts: Vec<_> = shape.further.iter().map(|part| (part.node, part.ranks)).collect();
        let key = format!(
            "{:04} {:03} {} {} {} {device} {parts:?} {:?}",
            demand.loss(shape),
            shape.ranks,
            shape.candidate,
            shape.engine,
            shape.pipeline,
            node.closed
        );
        kinds.entry(key).or_default().push(index);
    }
    kinds.into_values().collect()
}

fn one(problem: &Problem, demand: &ModelDemand, shapes: &[usize], text: String) -> Lost {
    let shape = &demand.shapes[shapes[0]];
    let name = |node: usize| problem.nodes[node].name.as_str();
    let nodes = shapes.iter().map(|index| {
        let shape = &demand.shapes[*index];
        // Over several nodes they are one place.
        let mut all: Vec<&str> = shape.spans().map(|span| name(span.node)).collect();
        all.dedup();
        all.join(" + ")
    });
    let needed = if shape.ranks == 0 { shape.host.total_bytes() } else { shape.claimed() };
    Lost {
        variant: demand.candidates.get(shape.candidate).map_or_else(String::new, |c| c.label.clone()),
        engine: Some(shape.engine),
        nodes: nodes.collect(),
        ranks: Some(shape.ranks).filter(|_| !shape.spans_nodes()),
        constraint: None,
        needed: Some(needed),
        available: None,
        unit: Some("bytes".to_owned()),
        tier: None,
        text,
    }
}

/// A shape of a model without a place that could be had only at the cost of others that count as much.
fn unequalled(lost: Lost, quota: &Option<String>) -> (LostBy, Lost) {
    match quota {
        Some(text) => (LostBy::Policy, Lost { constraint: Some("quota".to_owned()), text: text.clone(), ..lost }),
        None => {
            let text = "only in the place of something that counts as much and has it".to_owned();
            (LostBy::Room, Lost { text, ..lost })
        }
    }
}

/// The outcome of forcing a shape, in words.
fn told(compared: Compared, lost: Lost) -> (LostBy, Lost) {
    match compared {
        Compared::Impossible(Block::Room) => {
            let text = "no room beside what is protected or must stay".to_owned();
            (LostBy::Room, Lost { text, ..lost })
        }
        Compared::Impossible(Block::Latency(text)) => {
            (LostBy::Latency, Lost { constraint: Some("latency".to_owned()), text, ..lost })
        }
        Compared::Impossible(Block::Spread) => {
            let text = "a replica that must stay is there, and they are spread".to_owned();
            (LostBy::Policy, Lost { constraint: Some("spread".to_owned()), text, ..lost })
        }
        Compared::Equal => {
            let text = "as good in every tier; of equal places the smaller and lower ones are taken".to_owned();
            (LostBy::Equal, Lost { text, ..lost })
        }
        Compared::Worse { tier, without, with, terms, losers } => {
            let mut text = if terms.is_empty() {
                format!("worse in \"{tier}\": {} instead of {}", number(with), number(without))
            } else {
                let terms: Vec<String> = terms.iter().map(|(word, more)| format!("{word} {}", signed(*more))).collect();
                format!("worse in \"{tier}\" by {}: {}", number(with - without), terms.join(", "))
            };
            let losers: Vec<String> = losers.iter().map(|(name, lost)| format!("`{name}` would lose {lost}")).collect();
            if !losers.is_empty() {
                text.push_str(&format!("; {}", losers.join(", ")));
            }
            let terms = terms.into_iter().map(|(word, more)| (word.to_owned(), clean(more))).collect();
            let tier = Some(LostTier { name: tier, without: clean(without), with: clean(with), terms, solved: true });
            (LostBy::Worse, Lost { tier, text, ..lost })
        }
    }
}

/// Why a shape was not taken where it is not forced: no room beside what is placed, or what the swap would cost.
fn unforced(
    problem: &Problem,
    demand: &ModelDemand,
    shape: &Shape,
    own: Option<&Copy>,
    loads: &Loads,
    lost: Lost,
) -> (LostBy, Lost) {
    let supply = &problem.nodes[shape.node];
    let own = own.map(|copy| (copy, &demand.shapes[copy.shape]));
    let left = |at: usize| {
        let mine = own.filter(|(c, _)| c.node == shape.node && c.accelerators.contains(&at));
        let held = mine.map_or(0, |(_, own)| own.claimed());
        let load = loads.accelerators[shape.node][at].saturating_sub(held);
        supply.accelerators[at].capacity_bytes.saturating_sub(load)
    };
    let mut free: Vec<u64> = shape.group.iter().map(|at| left(*at)).collect();
    free.sort_unstable_by(|a, b| b.cmp(a));
    let tightest = if shape.width() == 0 { u64::MAX } else { free.get(shape.width() - 1).copied().unwrap_or(0) };
    if tightest < shape.claimed() {
        let text =
            format!("needs {}, {} left beside what is placed", format_bytes(shape.claimed()), format_bytes(tightest));
        return (LostBy::Room, Lost { available: Some(tightest), constraint: Some("memory".to_owned()), text, ..lost });
    }
    let Some((copy, taken)) = own else {
        return (LostBy::Room, Lost { text: "not beside what ranks higher or already runs".to_owned(), ..lost });
    };
    let weight = |term: crate::placement::Term| -> f64 {
        problem.tail.iter().flat_map(|tier| &tier.terms).filter(|(t, _)| *t == term).map(|(_, weight)| weight).sum()
    };
    let moved = if copy.kept.is_some() { 1.0 } else { 0.0 };
    let fetched = if copy.kept.is_some() { 0.0 } else { taken.distance() };
    let swap: Vec<(String, f64)> = [
        (crate::placement::Term::Quality, f64::from(demand.loss(shape)) - f64::from(demand.loss(taken))),
        (crate::placement::Term::Latency, shape.slowness() - taken.slowness()),
        (crate::placement::Term::Locality, shape.distance() - fetched),
        (crate::placement::Term::Stability, moved),
    ]
    .into_iter()
    .map(|(term, more)| (term.word().to_owned(), clean(weight(term) * more)))
    .filter(|(_, more)| more.abs() >= 0.005)
    .collect();
    let more: f64 = swap.iter().map(|(_, more)| more).sum();
    let words: Vec<String> = swap.iter().map(|(word, more)| format!("{word} {}", signed(*more))).collect();
    let text = match words.is_empty() {
        true => "fits; nothing is gained by it".to_owned(),
        false => format!("fits; in its place the objective would change by {}: {}", signed(more), words.join(", ")),
    };
    let name = problem.tail.first().map_or_else(String::new, |tier| tier.name.clone());
    let tier = Some(LostTier { name, without: 0.0, with: clean(more), terms: swap, solved: false });
    (LostBy::Worse, Lost { tier, text, ..lost })
}

/// A figure without needless digits.
fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn signed(value: f64) -> String {
    if value < 0.0 { number(value) } else { format!("+{}", number(value)) }
}
