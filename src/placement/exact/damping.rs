//! Nothing moves for a gain that is not worth it.
//!
//! Where the tiers led to a placement that moves running instances of a model only for the weighted tier, it is compared
//! with the best placement that keeps as many of them where they are. The move is made only if that is worse by at least
//! the threshold, as a share of what the objective counts there of the models whose instances differ: the same share
//! whatever the weights are multiplied by. What a rank, a limit or a policy wants is never held back.

use std::collections::BTreeSet;

use crate::placement::exact::columns::Formulation;
use crate::placement::exact::tiers::Answer;
use crate::placement::exact::{greedy, tiers};
use crate::placement::layout::Copy;
use crate::placement::milp::{Linear, value};
use crate::placement::{Limits, Problem, Term};

/// Most models of one plan that are looked at; each costs another solve.
const MOST: usize = 16;

/// The answer that moves only what is worth it, and a sentence for everything that stays for that.
pub fn damp(formulation: &Formulation<'_>, limits: &Limits, mut answer: Answer) -> (Answer, Vec<String>) {
    let problem = formulation.problem;
    let mut notes = Vec::new();
    if problem.threshold <= 0.0 || problem.tail.len() != 1 || formulation.program.columns.len() > limits.large {
        return (answer, notes);
    }
    let mut fixed = formulation.clone();
    let mut tried = BTreeSet::new();
    while tried.len() < MOST {
        let Some(model) = moved(&fixed, &answer).find(|model| tried.insert(*model)) else { break };
        let mut attempt = fixed.clone();
        keep(&mut attempt, &answer, model);
        let mut decided = tiers::decide(&attempt, limits, greedy::layout(&attempt));
        let other = decided.answer();
        answer.aborted |= other.aborted;
        if kept_of(&other, model).len() < wanted(&attempt, &answer, model) || !same_above(problem, &answer, &other) {
            continue;
        }
        let gain = objective(&other) - objective(&answer);
        let count = counted(&attempt, &other, &differing(&answer, &other));
        if gain >= problem.threshold * count && gain > 1e-9 {
            continue;
        }
        // Where nothing counts there is nothing to have a share of.
        let share = if count > 0.0 { (gain / count).max(0.0) } else { 0.0 };
        notes.push(sentence(problem, &answer, model, share));
        let aborted = answer.aborted;
        let other = decided.ordered();
        (answer, fixed) = (Answer { aborted, ..other }, attempt);
    }
    (answer, notes)
}

/// Indices of the running instances of a model that an answer keeps.
fn kept_of(answer: &Answer, model: usize) -> BTreeSet<usize> {
    answer.layout.iter().filter(|copy| copy.model == model).filter_map(|copy| copy.kept).collect()
}

/// Models of which an answer leaves a running instance and places a new one.
fn moved<'a>(formulation: &'a Formulation<'_>, answer: &'a Answer) -> impl Iterator<Item = usize> + 'a {
    (0..formulation.problem.models.len()).filter(|model| {
        let kept = kept_of(answer, *model).len();
        kept < wanted(formulation, answer, *model)
    })
}

/// How many running instances of a model could stay with as many copies as an answer has.
fn wanted(formulation: &Formulation<'_>, answer: &Answer, model: usize) -> usize {
    let running = formulation.kept.iter().filter(|kept| kept.copy.model == model).count();
    running.min(answer.layout.iter().filter(|copy| copy.model == model).count())
}

fn keep(formulation: &mut Formulation<'_>, answer: &Answer, model: usize) {
    let columns = formulation.kept.iter().filter(|kept| kept.copy.model == model).map(|kept| (kept.column, 1.0));
    let columns: Linear = columns.collect();
    let wanted = wanted(formulation, answer, model);
    formulation.program.at_least(columns, wanted as f64);
}

/// Whether all tiers before the weighted one have the same values.
fn same_above(problem: &Problem, one: &Answer, other: &Answer) -> bool {
    let above = |answer: &Answer| {
        let own = |name: &String| problem.tail.iter().all(|tier| tier.name != *name);
        let tiers = answer.tiers.iter().filter(|tier| own(&tier.name));
        tiers.map(|tier| (tier.name.clone(), tier.value.round() as i64)).collect::<Vec<_>>()
    };
    above(one) == above(other)
}

fn objective(answer: &Answer) -> f64 {
    answer.tiers.last().map_or(0.0, |tier| tier.value)
}

/// Models that keep other instances in one answer than in the other.
fn differing(one: &Answer, other: &Answer) -> BTreeSet<usize> {
    let kept = |answer: &Answer| -> BTreeSet<(usize, usize)> {
        answer.layout.iter().filter_map(|copy| Some((copy.model, copy.kept?))).collect()
    };
    kept(one).symmetric_difference(&kept(other)).map(|(model, _)| *model).collect()
}

/// What the weighted tier counts of some models' copies, without what moving costs and without the balance of nodes.
fn counted(formulation: &Formulation<'_>, answer: &Answer, models: &BTreeSet<usize>) -> f64 {
    let mut columns: BTreeSet<usize> = BTreeSet::new();
    columns.extend(formulation.kept.iter().filter(|k| models.contains(&k.copy.model)).map(|k| k.column));
    for fresh in formulation.fresh.iter().filter(|f| models.contains(&f.model)) {
        columns.extend(
            fresh.count.iter().chain(&fresh.on.iter().map(|(_, c)| (*c, 1.0)).collect::<Linear>()).map(|c| c.0),
        );
    }
    columns.extend(formulation.pack_columns(models));
    let point = formulation.point_of(&answer.layout);
    let mut sum = 0.0;
    for (term, weight) in formulation.problem.tail.iter().flat_map(|tier| &tier.terms) {
        if matches!(term, Term::Stability | Term::Balance) {
            continue;
        }
        let (mut row, _) = formulation.term(*term);
        row.retain(|(column, _)| columns.contains(column));
        sum += weight * value(&row, &point);
    }
    sum
}

/// "moving `chat` from ada-1 to a100 would gain 1.2 %, under the threshold of 5 %: it stays".
fn sentence(problem: &Problem, moving: &Answer, model: usize, share: f64) -> String {
    let names = |mut nodes: Vec<usize>| {
        nodes.sort_unstable();
        nodes.dedup();
        nodes.into_iter().map(|node| problem.nodes[node].name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let kept = kept_of(moving, model);
    let name = &problem.models[model].name;
    let running = problem.running.iter().enumerate();
    let left = running.filter(|(index, r)| r.model == *name && !kept.contains(index));
    let from = names(left.filter_map(|(_, r)| problem.node(&r.node)).collect());
    let fresh: Vec<&Copy> = moving.layout.iter().filter(|c| c.model == model && c.kept.is_none()).collect();
    let to = names(fresh.iter().map(|copy| copy.node).collect());
    let what = if from == to {
        format!("changing `{name}` on {from}")
    } else {
        format!("moving `{name}` from {from} to {to}")
    };
    let percent = |share: f64| {
        let rounded = (share * 1000.0).floor() / 10.0;
        if rounded.fract() == 0.0 { format!("{rounded:.0} %") } else { format!("{rounded:.1} %") }
    };
    format!("{what} would gain {}, under the threshold of {}: it stays", percent(share), percent(problem.threshold))
}
