//! Better ways for single copies where there is room: no tier of replicas changes, the weighted ones gain.

use super::floor::Floor;
use super::groups::Groups;
use super::master::Master;
use crate::placement::Term;

/// Rounds over all copies.
const ROUNDS: usize = 3;

/// Moves copies to ways that cost less where they fit. An instance that runs moves only to a better variant, and only
/// where that gains more than its move costs and the threshold asks.
pub fn polish(groups: &Groups<'_>, master: &Master<'_, '_>, floor: &mut Floor<'_, '_>) {
    let problem = groups.problem;
    let costs: Vec<Vec<f64>> = (0..groups.ways.len()).map(|way| master.costs(way)).collect();
    let less = |a: &[f64], b: &[f64]| {
        let differs = a.iter().zip(b).find(|(a, b)| (*a - *b).abs() > 1e-9);
        differs.is_some_and(|(a, b)| a < b)
    };
    let mut cheaper: Vec<Vec<usize>> = Vec::new();
    for kind in &groups.kinds {
        let mut ways: Vec<usize> = kind.ways.iter().copied().filter(|w| groups.ways[*w].fresh).collect();
        ways.sort_by(|a, b| {
            if less(&costs[*a], &costs[*b]) {
                std::cmp::Ordering::Less
            } else if less(&costs[*b], &costs[*a]) {
                std::cmp::Ordering::Greater
            } else {
                a.cmp(b)
            }
        });
        cheaper.push(ways);
    }
    let stability: Vec<f64> = problem
        .tail
        .iter()
        .map(|tier| tier.terms.iter().filter(|(term, _)| *term == Term::Stability).map(|(_, weight)| weight).sum())
        .collect();
    for _ in 0..ROUNDS {
        let mut moved = false;
        // What moves is worth a share of what counts of its whole model.
        let mut whole = vec![0.0; problem.models.len()];
        for copy in floor.copies.iter().flatten() {
            whole[copy.model] += costs[groups.way_of[copy.model][copy.shape]].iter().sum::<f64>().abs();
        }
        let mut slots: Vec<usize> = (0..floor.copies.len()).filter(|s| floor.copies[*s].is_some()).collect();
        slots.sort_by_cached_key(|s| {
            floor.copies[*s].as_ref().map(|c| (std::cmp::Reverse(problem.models[c.model].rank), c.clone()))
        });
        for slot in slots {
            let Some(copy) = floor.copies[slot].clone() else { continue };
            let now = groups.way_of[copy.model][copy.shape];
            if problem.models[copy.model].protected && copy.kept.is_some() {
                continue;
            }
            let mut open: Vec<usize> = Vec::new();
            for way in &cheaper[groups.kind_of[copy.model]] {
                let mut cost = costs[*way].clone();
                if let Some(index) = copy.kept {
                    if groups.deficit(*way) >= groups.deficit(now) {
                        continue;
                    }
                    let weight = problem.running[index].weight();
                    for (cost, factor) in cost.iter_mut().zip(&stability) {
                        *cost += factor * weight + problem.threshold * whole[copy.model];
                    }
                }
                if less(&cost, &costs[now]) {
                    open.push(*way);
                } else if copy.kept.is_none() {
                    break;
                }
            }
            if open.is_empty() {
                continue;
            }
            let outlast = floor.survivors(copy.model);
            floor.take(slot);
            let found = open.into_iter().find_map(|way| floor.place(copy.model, way));
            let slot = floor.put(found.as_ref().map_or(&copy, |(better, _)| better).clone());
            if floor.survivors(copy.model) < outlast {
                floor.take(slot);
                floor.put(copy);
                continue;
            }
            moved |= found.is_some();
        }
        if !moved {
            break;
        }
    }
}
