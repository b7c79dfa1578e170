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
    (placement, problem)
}
