//! The whole way: desired state, inventory and candidates to a placement.

use super::{Candidates, Options, Placement, Problem, nearest, shapes, solve};
use crate::config::Desired;
use crate::inventory::Inventory;

/// Places every model. Pure: the same values give the same placement, however nodes and models are listed. With it
/// comes the problem that it solves, for the checker.
pub fn place(
    desired: &Desired,
    inventory: &Inventory,
    candidates: &Candidates,
    options: &Options,
) -> (Placement, Problem) {
    let problem = shapes::build(desired, inventory, candidates, options);
    let (mut placement, layout) = solve::solve_with_layout(&problem);
    for unplaced in &mut placement.unplaced {
        let Some(model) = desired.models.get(&unplaced.model) else { continue };
        let Some(Ok(list)) = candidates.get(&unplaced.model) else {
            "weights that can be read".clone_into(&mut unplaced.nearest);
            continue;
        };
        let mut changes = nearest::changes(&problem, inventory, &layout, &unplaced.model, model, list);
        if unplaced.nearest.starts_with("stop ") {
            changes.push(unplaced.nearest.clone());
        }
        if !changes.is_empty() {
            unplaced.nearest = changes.join("; or ");
        }
    }
    placement.notes.extend(remarks(&placement, candidates));
    placement.notes.sort();
    placement.notes.dedup();
    (placement, problem)
}

/// What there is to know of the weights that are taken, and of all that a model without a place might take.
fn remarks(placement: &Placement, candidates: &Candidates) -> Vec<String> {
    let mut found = Vec::new();
    for (model, list) in candidates {
        let Ok(list) = list else { continue };
        let unplaced = placement.unplaced.iter().any(|unplaced| unplaced.model == *model);
        for (index, candidate) in list.iter().enumerate() {
            let used = |placed: &super::Placed| placed.model == *model && placed.candidate == index;
            if unplaced || placement.instances.iter().any(used) {
                let notes = &candidate.variant.notes;
                found.extend(notes.iter().map(|note| format!("model `{model}`, {}: {note}", candidate.label)));
            }
        }
    }
    found
}
