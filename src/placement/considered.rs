//! Every shape that was looked at and its fate, for `explain`.

use std::collections::BTreeSet;

use super::layout::{Copy, Loads};
use super::{Considered, ModelDemand, Problem, Shape};
use crate::base::{EngineKind, format_bytes};

/// All shapes of all models and what was removed before; sorted.
pub fn considered(problem: &Problem, layout: &[Copy]) -> Vec<Considered> {
    let loads = Loads::of(problem, layout);
    let mut all = Vec::new();
    for (model, demand) in problem.models.iter().enumerate() {
        let chosen: Vec<&Copy> = layout.iter().filter(|c| c.model == model).collect();
        for (index, shape) in demand.shapes.iter().enumerate() {
            let here: Vec<&&Copy> = chosen.iter().filter(|c| c.shape == index).collect();
            let verdict = if here.is_empty() {
                lost(problem, demand, shape, &chosen, &loads)
            } else if let Some(why) = stays(problem, &here) {
                format!("chosen: {why}")
            } else {
                format!("chosen for {} of {} replicas", here.len(), demand.desired)
            };
            all.push(Considered {
                model: demand.name.clone(),
                variant: label(demand, shape),
                engine: shape.engine,
                node: problem.nodes[shape.node].name.clone(),
                tensor_parallel: shape.ranks,
                needed_bytes: if shape.ranks == 0 {
                    shape.host.total_bytes()
                } else {
                    shape.per_accelerator.total_bytes()
                },
                chosen: !here.is_empty(),
                verdict,
            });
        }
        let known: BTreeSet<String> = demand.candidates.iter().map(|c| c.label.clone()).collect();
        for removed in &demand.removed {
            all.push(Considered {
                model: demand.name.clone(),
                variant: removed
                    .variant
                    .clone()
                    .unwrap_or_else(|| known.iter().cloned().collect::<Vec<_>>().join(", ")),
                engine: removed.engine.unwrap_or(EngineKind::LlamaCpp),
                node: removed.reason.node.clone(),
                tensor_parallel: removed.ranks.unwrap_or(0),
                needed_bytes: removed.needed_bytes,
                chosen: false,
                verdict: format!("{}: {}", removed.reason.constraint, removed.reason.text),
            });
        }
    }
    all.sort_by(|a, b| {
        let key = |c: &Considered| {
            (c.model.clone(), !c.chosen, c.variant.clone(), c.engine, c.node.clone(), c.tensor_parallel)
        };
        key(a).cmp(&key(b)).then_with(|| a.verdict.cmp(&b.verdict))
    });
    all.dedup();
    all
}

/// Why copies that are all there already are chosen; `None` where one of them is new.
fn stays(problem: &Problem, here: &[&&Copy]) -> Option<String> {
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

/// Why a shape that fits by itself was not taken.
fn lost(problem: &Problem, demand: &ModelDemand, shape: &Shape, chosen: &[&Copy], loads: &Loads) -> String {
    if shape.keep_only {
        let closed = problem.nodes[shape.node].closed.as_ref();
        return closed.map_or("nothing new is placed here".to_owned(), |(word, text)| format!("{word}: {text}"));
    }
    let node = &problem.nodes[shape.node];
    let needed = shape.claimed();
    let mut left: Vec<u64> = shape
        .group
        .iter()
        .map(|p| node.accelerators[*p].capacity_bytes.saturating_sub(loads.accelerators[shape.node][*p]))
        .collect();
    left.sort_unstable_by(|a, b| b.cmp(a));
    let best = chosen.iter().map(|c| demand.deficit(&demand.shapes[c.shape])).max();
    let mine = demand.deficit(shape);
    let left = if shape.ranks == 0 { u64::MAX } else { left.get(shape.width() - 1).copied().unwrap_or(0) };
    match best {
        Some(best) if mine > best => "fits, but a better variant is placed".to_owned(),
        Some(_) | None if left < needed => format!(
            "does not fit beside what is placed: needs {}, {} is left",
            format_bytes(needed),
            format_bytes(left)
        ),
        Some(best) if mine == best => "fits, but the chosen place weighs less in the objective".to_owned(),
        Some(_) => "fits, but moving what runs or using more of the accelerators weighs more".to_owned(),
        None => "fits by itself, but not beside what ranks higher or already runs".to_owned(),
    }
}
