//! Every shape that was looked at and its fate, for `explain`.

use std::collections::{BTreeMap, BTreeSet};

use crate::base::{EngineKind, format_bytes};
use crate::placement::build::room::Room;
use crate::placement::exact::traffic::{conflict, limited};
use crate::placement::layout::{Copy, Layout};
use crate::placement::words::phrases;
use crate::placement::{Considered, Fate, ModelDemand, Problem, Shape};

/// All shapes of all models and what was removed before; sorted.
pub fn considered(problem: &Problem, layout: &[Copy]) -> Vec<Considered> {
    let room = Room::of(problem, layout);
    let mut all = Vec::new();
    let mut copies: Vec<Vec<&Copy>> = vec![Vec::new(); problem.models.len()];
    layout.iter().for_each(|copy| copies[copy.model].push(copy));
    // In a large cluster a node stands for many, and the layout names each.
    let limited = if problem.alike.is_empty() { limited(problem) } else { vec![false; problem.models.len()] };
    for (model, demand) in problem.models.iter().enumerate() {
        let chosen = &copies[model];
        let mut by_shape: BTreeMap<usize, Vec<&Copy>> = BTreeMap::new();
        chosen.iter().for_each(|copy| by_shape.entry(copy.shape).or_default().push(copy));
        // The worst that is placed.
        let worst = chosen.iter().map(|c| demand.deficit(&demand.shapes[c.shape])).max();
        let mut too_far = TooFar::of_model(problem, layout, model, limited[model]);
        for (index, shape) in demand.shapes.iter().enumerate() {
            let here = by_shape.get(&index).map_or(&[][..], Vec::as_slice);
            if !problem.alike.is_empty() && !here.is_empty() {
                all.extend(each(problem, demand, shape, here, worst, &room));
                continue;
            }
            let told = if here.is_empty() {
                let far = if shape.keep_only { None } else { too_far.of(shape.node) };
                far.unwrap_or_else(|| lost(problem, demand, shape, worst, &room))
            } else {
                (Fate::Chosen, taken(problem, demand, here))
            };
            all.push(entry(problem, demand, shape, shape.node, told));
        }
        let known: BTreeSet<&str> = demand.candidates.iter().map(|c| c.label.as_str()).collect();
        let known = known.into_iter().collect::<Vec<_>>().join(", ");
        for removed in &demand.removed {
            all.push(Considered {
                model: demand.name.clone(),
                variant: removed.variant.clone().unwrap_or_else(|| known.clone()),
                engine: removed.engine.unwrap_or(EngineKind::LlamaCpp),
                node: removed.reason.node.clone(),
                alike: removed.reason.alike,
                tensor_parallel: removed.ranks.unwrap_or(0),
                needed_bytes: removed.needed_bytes,
                chosen: false,
                fate: Fate::RuledOut,
                verdict: format!("{}: {}", removed.reason.constraint, removed.reason.text),
            });
        }
    }
    all.sort_by(|a, b| {
        let same = |c: &Considered| (!c.chosen, c.engine, c.tensor_parallel);
        let ((lost_a, engine_a, ranks_a), (lost_b, engine_b, ranks_b)) = (same(a), same(b));
        (&a.model, lost_a, &a.variant, engine_a, &a.node, ranks_a, &a.verdict)
            .cmp(&(&b.model, lost_b, &b.variant, engine_b, &b.node, ranks_b, &b.verdict))
    });
    all.dedup();
    all
}

/// Why copies that are all there already are chosen; `None` where one of them is new.
fn stays(problem: &Problem, here: &[&Copy]) -> Option<String> {
    let kept: Option<Vec<usize>> = here.iter().map(|copy| copy.kept).collect();
    let failed = kept?.into_iter().filter(|index| problem.running.get(*index).is_some_and(|r| r.failed)).count();
    Some(match failed {
        0 => "already runs here".to_owned(),
        all if all == here.len() => "belongs here; its engine does not run now".to_owned(),
        some => format!("already runs here; {some} of {} engines do not run now", here.len()),
    })
}

fn label(demand: &ModelDemand, shape: &Shape) -> String {
    demand.candidates.get(shape.candidate).map_or_else(|| shape.candidate.to_string(), |c| c.label.clone())
}

/// Why a shape is chosen, or for how many.
fn taken(problem: &Problem, demand: &ModelDemand, here: &[&Copy]) -> String {
    match stays(problem, here) {
        Some(why) => format!("chosen: {why}"),
        None => format!("chosen for {} of {} replicas", here.len(), demand.desired),
    }
}

/// Nodes on which one more copy of a model would be too far from what it talks to, where that is.
struct TooFar<'p> {
    problem: &'p Problem,
    /// What is placed of other models; `None` where nothing limits this one.
    others: Option<Layout>,
    model: usize,
    known: BTreeMap<usize, Option<String>>,
}

impl<'p> TooFar<'p> {
    fn of_model(problem: &'p Problem, layout: &[Copy], model: usize, limited: bool) -> Self {
        let others = limited.then(|| layout.iter().filter(|copy| copy.model != model).cloned().collect());
        Self { problem, others, model, known: BTreeMap::new() }
    }

    fn of(&mut self, node: usize) -> Option<(Fate, String)> {
        let others = self.others.as_ref()?;
        let far = || {
            let broken = conflict(self.problem, others, self.model, node)?;
            Some(broken.reason(&self.problem.nodes[node].name).text)
        };
        let text = self.known.entry(node).or_insert_with(far).as_ref()?;
        Some((Fate::RuledOut, format!("latency: {text}")))
    }
}

/// Why a shape that fits by itself was not taken.
fn lost(problem: &Problem, demand: &ModelDemand, shape: &Shape, best: Option<u32>, room: &Room<'_>) -> (Fate, String) {
    if shape.keep_only {
        let (word, text) = keeps(problem, demand, shape);
        return (Fate::RuledOut, format!("{word}: {text}"));
    }
    let (span, left) = room.most(shape);
    let needed = span.claimed;
    let mine = demand.deficit(shape);
    let (fate, text) = match best {
        Some(best) if mine > best && left >= needed => (Fate::Lesser, "fits, but a better variant is placed"),
        Some(_) | None if left < needed => {
            let (needed, left) = (format_bytes(needed), format_bytes(left));
            return (Fate::NoRoom, format!("does not fit beside what is placed: needs {needed}, {left} is left"));
        }
        // The hedge comes before the objective.
        Some(best) if mine == best && problem.spot_hedge > 0 => {
            (Fate::Beaten, "fits, but the chosen place is better in the order of the tiers")
        }
        Some(best) if mine == best => (Fate::Beaten, "fits, but the chosen place weighs less in the objective"),
        Some(_) => (Fate::Beaten, "fits, but moving what runs or using more of the accelerators weighs more"),
        None => (Fate::Displaced, "fits by itself, but not beside what ranks higher or already runs"),
    };
    (fate, text.to_owned())
}

/// Why what runs on a node may stay there and nothing new may come: the constraint, and a clause.
pub fn keeps(problem: &Problem, demand: &ModelDemand, shape: &Shape) -> (String, String) {
    let node = &problem.nodes[shape.node];
    if let Some(closed) = &node.closed {
        return closed.clone();
    }
    if let Some(why) = &shape.held {
        return ("hold".to_owned(), format!("only what runs so may stay: {why}"));
    }
    let here = |place: &&crate::placement::DeniedPlace| {
        (place.node.as_str(), place.candidate, place.engine) == (node.name.as_str(), shape.candidate, shape.engine)
    };
    match demand.denied.iter().find(here) {
        Some(place) => ("deny".to_owned(), place.text.clone()),
        None => ("hold".to_owned(), "nothing new is placed here".to_owned()),
    }
}

/// A shape that was taken on nodes that it stands for: each of them by its name, and the others.
fn each(
    problem: &Problem,
    demand: &ModelDemand,
    shape: &Shape,
    here: &[&Copy],
    worst: Option<u32>,
    room: &Room<'_>,
) -> Vec<Considered> {
    let mut by_node: BTreeMap<usize, Vec<&Copy>> = BTreeMap::new();
    here.iter().for_each(|copy| by_node.entry(copy.node).or_default().push(copy));
    let told = |(node, here): (usize, Vec<&Copy>)| {
        entry(problem, demand, shape, node, (Fate::Chosen, taken(problem, demand, &here)))
    };
    let others: Vec<usize> =
        problem.stands_for(shape.node).into_iter().filter(|node| !by_node.contains_key(node)).collect();
    let mut all: Vec<Considered> = by_node.into_iter().map(told).collect();
    // The rest of them, under the first.
    all.extend(others.first().map(|first| Considered {
        alike: others.len() as u32 - 1,
        ..entry(problem, demand, shape, *first, lost(problem, demand, shape, worst, room))
    }));
    all
}

fn entry(
    problem: &Problem,
    demand: &ModelDemand,
    shape: &Shape,
    node: usize,
    (fate, verdict): (Fate, String),
) -> Considered {
    let chosen = fate == Fate::Chosen;
    let verdict = match shape.spans_nodes() {
        true => format!("{verdict}; {}", phrases::on(problem, demand, shape)),
        false => verdict,
    };
    Considered {
        model: demand.name.clone(),
        variant: label(demand, shape),
        engine: shape.engine,
        node: problem.nodes[node].name.clone(),
        alike: if chosen { 0 } else { problem.others(node) },
        tensor_parallel: shape.all_ranks() as u32,
        needed_bytes: if shape.ranks == 0 { shape.host.total_bytes() } else { shape.per_accelerator.total_bytes() },
        chosen,
        fate,
        verdict,
    }
}
