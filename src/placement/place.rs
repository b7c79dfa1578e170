//! The whole way: desired state, inventory and candidates to a placement.

use std::collections::BTreeSet;

use crate::config::Desired;
use crate::inventory::Inventory;
use crate::placement::build::shapes;
use crate::placement::exact::tiers::{Event, Watch};
use crate::placement::explain::conflict;
use crate::placement::explain::trial::{Inputs, budget};
use crate::placement::layout::{Copy, Layout};
use crate::placement::words::{nearest, probe};
use crate::placement::{Candidates, Options, Placement, Problem, Why, solve};

/// What was solved, and the copies that the answer means: what explanations are computed from.
#[derive(Debug, Clone)]
pub struct Solution {
    /// The problem.
    pub problem: Problem,
    pub(in crate::placement) layout: Layout,
}

/// Models without a place whose obstacles a plan looks for; `explain` does it for any.
const REFUSED: usize = 2;

/// Explains one model of a solution to these very inputs; `None` where there is no such model.
pub fn explain(
    desired: &Desired,
    inventory: &Inventory,
    candidates: &Candidates,
    options: &Options,
    solution: &Solution,
    name: &str,
) -> Option<Why> {
    crate::placement::explain::why::why(Inputs { desired, inventory, candidates, options }, solution, name)
}

/// Places every model. Pure: the same values give the same placement, however nodes and models are listed. With it
/// comes the problem that it solves, for the checker.
pub fn place(
    desired: &Desired,
    inventory: &Inventory,
    candidates: &Candidates,
    options: &Options,
) -> (Placement, Problem) {
    let (placement, solution) = place_and_keep(desired, inventory, candidates, options);
    (placement, solution.problem)
}

/// The same, and what explanations are computed from.
pub fn place_and_keep(
    desired: &Desired,
    inventory: &Inventory,
    candidates: &Candidates,
    options: &Options,
) -> (Placement, Solution) {
    place_watched(desired, inventory, candidates, options, &|_| {})
}

/// The same, with someone who is told what happens: a bench that takes the time, which this room does not have.
pub fn place_watched(
    desired: &Desired,
    inventory: &Inventory,
    candidates: &Candidates,
    options: &Options,
    watch: &dyn Fn(Event),
) -> (Placement, Solution) {
    let problem = shapes::build(desired, inventory, candidates, options);
    let (mut placement, layout) = solve::solve_with_layout(&problem, Watch(watch));
    finish(&mut placement, &problem, &layout, desired, inventory, candidates);
    // Few solves of a small problem: a plan must not wait for an explanation.
    if !problem.is_large() && budget(&problem) > 0 {
        let inputs = Inputs { desired, inventory, candidates, options };
        for unplaced in placement.unplaced.iter_mut().filter(|unplaced| unplaced.required).take(REFUSED) {
            let Some(model) = problem.model(&unplaced.model) else { continue };
            unplaced.together = conflict::together(inputs, &problem, model);
            let asked = ["selector", "spread", "quality", "engine", "quota", "deny"];
            let would_do = |o: &&crate::placement::Obstacle| o.alone && asked.contains(&o.constraint.as_str());
            if unplaced.nearest == "none found"
                && let Some(obstacle) = unplaced.together.iter().find(would_do)
            {
                unplaced.nearest = format!("do without {}", obstacle.text);
            }
        }
    }
    (placement, Solution { problem, layout })
}

/// The words that need more than the problem: the nearest changes, and remarks on the weights.
fn finish(
    placement: &mut Placement,
    problem: &Problem,
    layout: &[Copy],
    desired: &Desired,
    inventory: &Inventory,
    candidates: &Candidates,
) {
    let placed = probe::Placed::of(problem, layout);
    for unplaced in &mut placement.unplaced {
        let Some(model) = desired.models.get(&unplaced.model) else { continue };
        // Other weights or hardware do not help against a quota.
        if unplaced.reasons.iter().any(|reason| reason.constraint == "quota") {
            continue;
        }
        let Some(Ok(list)) = candidates.get(&unplaced.model) else {
            "weights that can be read".clone_into(&mut unplaced.nearest);
            continue;
        };
        let mut changes = nearest::changes(problem, (desired, inventory), &placed, &unplaced.model, model, list);
        if unplaced.nearest.starts_with("stop ") {
            changes.push(unplaced.nearest.clone());
        }
        if !changes.is_empty() {
            unplaced.nearest = changes.join("; or ");
        }
    }
    placement.notes.extend(remarks(placement, desired, candidates));
    placement.notes.sort();
    placement.notes.dedup();
}

/// What there is to know of the weights that are taken, and of all that a model without a place might take.
fn remarks(placement: &Placement, desired: &Desired, candidates: &Candidates) -> Vec<String> {
    let used: BTreeSet<(&str, usize)> =
        placement.instances.iter().map(|placed| (placed.model.as_str(), placed.candidate)).collect();
    let missing: BTreeSet<&str> = placement.unplaced.iter().map(|unplaced| unplaced.model.as_str()).collect();
    let mut found = Vec::new();
    for (model, list) in candidates {
        let Ok(list) = list else { continue };
        for (index, candidate) in list.iter().enumerate() {
            if missing.contains(model.as_str()) || used.contains(&(model.as_str(), index)) {
                // A lock may hold what earlier versions noted of projectors; what is done with them is told here.
                let notes = candidate.variant.notes.iter().filter(|note| !note.starts_with("vision projector "));
                found.extend(notes.map(|note| format!("model `{model}`, {}: {note}", candidate.label)));
                let sees = |model: &crate::config::Model| model.extras.parts.iter().any(|part| part.value == "vision");
                if let Some(projector) = &candidate.variant.projector
                    && !desired.models.get(model).is_some_and(sees)
                {
                    let name = projector.name.rsplit('/').next().unwrap_or_default();
                    found.push(format!(
                        "model `{model}`, {}: the vision projector {name} beside the weights is not loaded; write \
                         `part \"vision\"` in the model's block if it should see (with llama.cpp)",
                        candidate.label
                    ));
                }
            }
        }
    }
    found
}
