//! A placement in one pass: what runs stays, what is missing finds the tightest place, highest rank first.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::evict::make_way;
use super::floor::Floor;
use super::groups::Groups;
use super::hedge::outlast;
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
    stand_in(groups, &mut floor);
    fill(groups, &mut floor, order);
    floor
}

/// Where what runs could not stay: better variants of the same models, so that nobody loses a place to others.
fn stand_in(groups: &Groups<'_>, floor: &mut Floor<'_, '_>) {
    let problem = groups.problem;
    let stays: BTreeSet<usize> = floor.copies.iter().flatten().filter_map(|copy| copy.kept).collect();
    let leaves = |copy: &&Copy| copy.kept.is_some_and(|index| !stays.contains(&index));
    let mut leaving: Vec<&Copy> = groups.keepable.iter().filter(leaves).collect();
    leaving.sort_by_key(|copy| (Reverse(problem.models[copy.model].rank), copy.model, copy.kept));
    for copy in leaving {
        if floor.counts[copy.model] >= groups.claim[copy.model] {
            continue;
        }
        let before = groups.deficit(groups.way_of[copy.model][copy.shape]);
        let kind = &groups.kinds[groups.kind_of[copy.model]];
        let better = |way: &usize| groups.ways[*way].fresh && groups.deficit(*way) < before;
        let mut ways: Vec<usize> = kind.ways.iter().copied().filter(better).collect();
        ways.sort_by_key(|way| (groups.claimed(*way), *way));
        if let Some((copy, _)) = ways.into_iter().find_map(|way| floor.place(copy.model, way)) {
            floor.put(copy);
        }
    }
}

/// Adds what is missing: minimum replicas from the top rank down, then desired ones. Nobody loses a place for it.
pub fn fill(groups: &Groups<'_>, floor: &mut Floor<'_, '_>, ways: Order) {
    let mut filler = Filler::new(groups, ways);
    let order = order(groups);
    for minimum in [true, false] {
        if !minimum && groups.hedge > 0 {
            outlast(groups, floor);
            filler.dead.fill(false);
        }
        for model in &order {
            let wanted = wanted(groups, *model, minimum);
            while floor.counts[*model] < wanted {
                let Some(copy) = filler.find(floor, *model) else { break };
                floor.put(copy);
            }
        }
    }
}

/// Adds what is missing of a rank that may displace lower ones, and makes way for it.
pub fn displace(groups: &Groups<'_>, floor: &mut Floor<'_, '_>, rank: u32, minimum: bool) {
    let mut filler = Filler::new(groups, Order::Quality);
    let mut hopeless = vec![false; groups.kinds.len()];
    let of = |model: &usize| groups.problem.models[*model].rank == rank && groups.problem.models[*model].preempts;
    for model in order(groups).into_iter().filter(of) {
        let wanted = wanted(groups, model, minimum);
        while floor.counts[model] < wanted {
            if let Some(copy) = filler.find(floor, model) {
                floor.put(copy);
                continue;
            }
            let kind = groups.kind_of[model];
            if hopeless[kind] || !make_way(groups, floor, model, minimum) {
                hopeless[kind] = true;
                break;
            }
            filler.dead.fill(false);
        }
    }
    fill(groups, floor, Order::Quality);
}

/// Copies of a model that are wanted, without the pinned ones.
fn wanted(groups: &Groups<'_>, model: usize, minimum: bool) -> u32 {
    let demand = &groups.problem.models[model];
    let wanted = if minimum { demand.min.min(demand.desired) } else { demand.desired };
    wanted.saturating_sub(groups.pinned[model]).min(groups.room[model])
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
