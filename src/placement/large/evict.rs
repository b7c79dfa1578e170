//! Making way: the fewest victims of lower ranks on one node, and only where that places a replica.

use super::floor::Floor;
use super::groups::Groups;
use super::near::within_limits;
use crate::placement::layout::{Copy, rounded};

/// Takes lower ranks off the place where the least is lost and puts a replica of the model there. Victims keep their
/// minimum, unless the replica itself is one of the minimum. `false`, with nothing changed, where that helps nowhere.
pub fn make_way(groups: &Groups<'_>, floor: &mut Floor<'_, '_>, model: usize, minimum: bool) -> bool {
    let kind = &groups.kinds[groups.kind_of[model]];
    let mut ways: Vec<usize> = kind.ways.iter().copied().filter(|w| groups.ways[*w].fresh).collect();
    ways.retain(|way| groups.ways[*way].takes.len() == 1 && groups.sample(*way).ranks > 0);
    ways.sort_by_key(|way| (groups.deficit(*way), groups.total(*way), *way));
    let mut best: Option<(Loss, Vec<usize>, Copy)> = None;
    for way in ways {
        for node in &groups.classes[groups.ways[way].class].nodes {
            let Some((loss, victims, copy)) = on_node(groups, floor, model, way, *node, minimum) else { continue };
            if best.as_ref().is_none_or(|(least, ..)| loss < *least) {
                best = Some((loss, victims, copy));
            }
        }
    }
    let Some((_, victims, copy)) = best else { return false };
    let taken: Vec<Copy> = victims.into_iter().filter_map(|slot| floor.take(slot)).collect();
    if floor.fits(&copy) {
        let slot = floor.put(copy);
        // What they talked to may have been near enough for others only because of them.
        if !groups.limited || within_limits(groups.problem, &floor.layout()) {
            return true;
        }
        floor.take(slot);
    }
    for victim in taken {
        floor.put(victim);
    }
    false
}

/// Highest rank that loses, number of victims, what their loss costs in thousandths, cards beyond those needed.
type Loss = (u32, usize, u64);

fn on_node(
    groups: &Groups<'_>,
    floor: &Floor<'_, '_>,
    model: usize,
    way: usize,
    node: usize,
    minimum: bool,
) -> Option<(Loss, Vec<usize>, Copy)> {
    let problem = groups.problem;
    let item = &groups.items[groups.ways[way].takes[0].0];
    let shape = groups.ways[way].shape_at(node)?;
    let exact = &groups.capacities.exact.accelerators[node];
    let rank = problem.models[model].rank;
    let victim = |slot: usize| {
        let copy = floor.copies[slot].as_ref()?;
        let other = &problem.models[copy.model];
        let spare = floor.counts[copy.model] + groups.pinned[copy.model] > other.min;
        // What outlasts losses of spot nodes comes before any desired replica.
        if other.rank >= rank || other.protected || !(minimum || spare && floor.outlasts(copy)) {
            return None;
        }
        let weight = copy.kept.map_or(0, |index| (problem.running[index].weight() * 1_000.0) as u64);
        Some((other.rank, weight, slot))
    };
    let mut cards = Vec::new();
    for position in &item.group {
        if !problem.nodes[node].accelerators[*position].healthy || item.bytes > exact[*position] {
            continue;
        }
        let need = rounded(item.bytes, exact[*position]);
        let mut free = floor.free(node, *position);
        let mut slots = Vec::new();
        if free < need {
            let on = floor.at[node].iter().filter(|slot| {
                floor.copies[**slot].as_ref().is_some_and(|c| c.node == node && c.accelerators.contains(position))
            });
            let mut victims: Vec<_> = on.filter_map(|slot| victim(*slot)).collect();
            victims.sort_unstable();
            for (other, weight, slot) in victims {
                if free >= need {
                    break;
                }
                free += floor.claimed(slot, node, *position);
                slots.push((other, weight, slot));
            }
        }
        if free >= need {
            cards.push((slots.iter().map(|s| s.0).max().unwrap_or(0), slots.len(), slots, *position));
        }
    }
    cards.sort();
    if cards.len() < item.width as usize {
        return None;
    }
    cards.truncate(item.width as usize);
    let mut accelerators: Vec<usize> = cards.iter().map(|c| c.3).collect();
    accelerators.sort_unstable();
    let mut victims: Vec<_> = cards.into_iter().flat_map(|c| c.2).collect();
    victims.sort_unstable();
    victims.dedup();
    let copy = Copy { model, shape, node, accelerators, further: Vec::new(), kept: None };
    // Without victims it would have been placed, but for a rule that no eviction changes.
    let highest = victims.last()?.0;
    let loss = (highest, victims.len(), victims.iter().map(|v| v.1).sum());
    // A model of which several lose may fall under its minimum only together: one by one is what was asked.
    if !minimum && twice(floor, &victims) {
        return None;
    }
    Some((loss, victims.into_iter().map(|v| v.2).collect(), copy))
}

/// Whether two victims are of one model.
fn twice(floor: &Floor<'_, '_>, victims: &[(u32, u64, usize)]) -> bool {
    let mut models: Vec<usize> = victims.iter().filter_map(|v| floor.copies[v.2].as_ref().map(|c| c.model)).collect();
    let before = models.len();
    models.sort_unstable();
    models.dedup();
    models.len() < before
}
