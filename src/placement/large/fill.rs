//! A placement in one pass: what runs stays, what is missing finds the tightest place, highest rank first.

use std::cmp::Reverse;

use super::evict::make_way;
use super::floor::Floor;
use super::groups::Groups;
use crate::placement::layout::Copy;

/// Which of the ways that fit is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The best quality.
    Quality,
    /// The least memory, so that most find a place.
    Memory,
}

/// The machines with everything that runs as far as it fits, and what is missing added.
pub fn start<'g, 'p>(groups: &'g Groups<'p>, order: Order) -> Floor<'g, 'p> {
    let problem = groups.problem;
    let mut floor = Floor::new(groups);
    let mut kept: Vec<&Copy> = groups.keepable.iter().collect();
    kept.sort_by_key(|copy| {
        let demand = &problem.models[copy.model];
        (!demand.protected, Reverse(demand.rank), copy.model, copy.kept)
    });
    for copy in kept {
        let room = floor.counts[copy.model] < groups.room[copy.model];
        if problem.models[copy.model].protected || (room && floor.fits(copy)) {
            floor.put(copy.clone());
        }
    }
    fill(groups, &mut floor, order);
    floor
}

/// Adds what is missing: minimum replicas from the top rank down, then desired ones.
pub fn fill(groups: &Groups<'_>, floor: &mut Floor<'_, '_>, ways: Order) {
    let problem = groups.problem;
    let mut filler = Filler::new(groups, ways);
    let order = order(groups);
    for minimum in [true, false] {
        let mut hopeless = vec![false; groups.kinds.len()];
        for model in &order {
            let demand = &problem.models[*model];
            let wanted = if minimum { demand.min.min(demand.desired) } else { demand.desired };
            let wanted = wanted.saturating_sub(groups.pinned[*model]).min(groups.room[*model]);
            while floor.counts[*model] < wanted {
                if let Some(copy) = filler.find(floor, *model) {
                    floor.put(copy);
                    continue;
                }
                let kind = groups.kind_of[*model];
                let stuck = !demand.preempts || hopeless[kind];
                if stuck || !make_way(groups, floor, *model, minimum) {
                    hopeless[kind] = true;
                    break;
                }
                filler.dead.fill(false);
            }
        }
    }
}

/// Models in the order in which they may choose.
pub fn order(groups: &Groups<'_>) -> Vec<usize> {
    let problem = groups.problem;
    let mut order: Vec<usize> = (0..problem.models.len()).collect();
    order.sort_by_key(|m| (Reverse(problem.models[*m].rank), !problem.models[*m].preempts, groups.kind_of[*m], *m));
    order
}

/// Finds places; remembers ways that have none left.
struct Filler<'g, 'p> {
    groups: &'g Groups<'p>,
    /// By kind: ways in order, those with equal keys as good as each other.
    order: Vec<Vec<((u64, u64), usize)>>,
    /// Ways without a place for any model.
    dead: Vec<bool>,
}

impl<'g, 'p> Filler<'g, 'p> {
    fn new(groups: &'g Groups<'p>, by: Order) -> Self {
        let mut order = Vec::new();
        for kind in &groups.kinds {
            let mut ways: Vec<_> = kind
                .ways
                .iter()
                .filter(|way| groups.ways[**way].fresh)
                .map(|way| {
                    let quality = (u64::from(groups.deficit(*way)), groups.total(*way));
                    (if by == Order::Quality { quality } else { (groups.claimed(*way), groups.total(*way)) }, *way)
                })
                .collect();
            ways.sort_unstable();
            order.push(ways);
        }
        Self { groups, order, dead: vec![false; groups.ways.len()] }
    }

    /// The best place for one more copy.
    fn find(&mut self, floor: &Floor<'_, '_>, model: usize) -> Option<Copy> {
        let kind = self.groups.kind_of[model];
        let mut best: Option<((u64, u64), u64, Copy)> = None;
        let plain = self.groups.problem.models[model].spread_by.is_none();
        for (key, way) in &self.order[kind] {
            if best.as_ref().is_some_and(|(least, ..)| least < key) {
                break;
            }
            if self.dead[*way] {
                continue;
            }
            match floor.place(model, *way) {
                Some((copy, left)) if best.as_ref().is_none_or(|(_, least, _)| left < *least) => {
                    best = Some((*key, left, copy));
                }
                Some(_) => {}
                // Nothing is freed while this filler lives, but where a quota or the spread of one model forbids it.
                None => self.dead[*way] = plain,
            }
        }
        best.map(|(_, _, copy)| copy)
    }
}
