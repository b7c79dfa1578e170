//! From counts to machines: groups of cards on nodes, largest first, and copies on their cards.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::fill;
use super::floor::Floor;
use super::groups::Groups;
use super::whole::Counts;
use crate::placement::layout::Copy;

/// Cards of a node that wait for a copy of an item.
struct Berth {
    node: usize,
    on: Vec<usize>,
}

/// Models of a kind that are looked at for a berth before it stays empty.
const ASKED: usize = 64;

/// The machines with what was counted, as far as every rule allows it.
pub fn realise<'g, 'p>(groups: &'g Groups<'p>, counts: &Counts) -> Floor<'g, 'p> {
    let mut floor = Floor::new(groups);
    keep(groups, &mut floor, counts);
    let mut left = counts.fresh.clone();
    let mut berths = berths(groups, &floor, counts);
    let mut wanting = Wanting::new(groups, &floor);
    // Better ways go to those that are asked first: minimum replicas.
    for kind in 0..groups.kinds.len() {
        let mut ways = groups.kinds[kind].ways.clone();
        ways.retain(|way| left[*way] > 0 && groups.ways[*way].takes.len() == 1);
        ways.sort_by_key(|way| (groups.deficit(*way), *way));
        for way in ways {
            let Some(list) = berths.get_mut(&groups.ways[way].takes[0].0) else { continue };
            let mut refused = Vec::new();
            while left[way] > 0 {
                let Some(berth) = list.pop() else { break };
                let shape = groups.ways[way].shape_at(berth.node);
                let placed = shape.is_some_and(|shape| wanting.give(groups, &mut floor, kind, shape, &berth));
                left[way] -= u32::from(placed);
                if !placed {
                    refused.push(berth);
                }
            }
            list.extend(refused.into_iter().rev());
        }
    }
    guided(groups, &mut floor, &mut left);
    floor
}

/// Keeps as many running instances of every way as were counted, those that cost most to lose first.
fn keep(groups: &Groups<'_>, floor: &mut Floor<'_, '_>, counts: &Counts) {
    let problem = groups.problem;
    let mut left: BTreeMap<(usize, u64), u32> = BTreeMap::new();
    for (way, stays) in counts.stays.iter().enumerate() {
        for (weight, count) in groups.ways[way].running.keys().zip(stays) {
            left.insert((way, *weight), *count);
        }
    }
    let mut kept: Vec<&Copy> = groups.keepable.iter().collect();
    kept.sort_by_key(|copy| {
        let demand = &problem.models[copy.model];
        (!demand.protected, Reverse(demand.rank), copy.model, copy.kept)
    });
    for copy in kept {
        let Some(index) = copy.kept else { continue };
        let weight = (problem.running[index].weight() * 1_000.0).floor() as u64;
        let protected = problem.models[copy.model].protected;
        let room = floor.counts[copy.model] < groups.room[copy.model];
        let count = left.entry((groups.way_of[copy.model][copy.shape], weight)).or_default();
        if protected || (*count > 0 && room && floor.fits(copy)) {
            *count = count.saturating_sub(1);
            floor.put(copy.clone());
        }
    }
}

/// Places for copies by item. Cards on which something runs take no group.
fn berths(groups: &Groups<'_>, floor: &Floor<'_, '_>, counts: &Counts) -> BTreeMap<usize, Vec<Berth>> {
    let mut open: Vec<BTreeMap<usize, Vec<usize>>> = Vec::new();
    for card in &groups.types {
        let free = |node: usize, position: &usize| {
            floor.at[node].iter().all(|slot| {
                floor.copies[*slot].as_ref().is_none_or(|c| c.node != node || !c.accelerators.contains(position))
            })
        };
        let nodes = groups.classes[card.class].nodes.iter();
        let cards = nodes.map(|n| (*n, card.positions.iter().copied().filter(|p| free(*n, p)).rev().collect()));
        open.push(cards.collect());
    }
    let mut list: Vec<_> = counts.groups.iter().collect();
    list.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let mut from: BTreeMap<(usize, u32), usize> = BTreeMap::new();
    let mut berths: BTreeMap<usize, Vec<Berth>> = BTreeMap::new();
    for (pattern, size, count) in list {
        let nodes = &groups.classes[groups.types[pattern.card].class].nodes;
        let next = from.entry((pattern.card, *size)).or_default();
        for _ in 0..*count {
            let cards = &mut open[pattern.card];
            while *next < nodes.len() && cards[&nodes[*next]].len() < *size as usize {
                *next += 1;
            }
            let Some(node) = nodes.get(*next) else { break };
            let Some(free) = cards.get_mut(node) else { break };
            let taken: Vec<usize> = (0..*size).filter_map(|_| free.pop()).collect();
            for (item, copies) in &pattern.items {
                let width = groups.items[*item].width.max(1) as usize;
                for on in taken.chunks(width) {
                    for _ in 0..*copies {
                        let mut on = on.to_vec();
                        on.sort_unstable();
                        berths.entry(*item).or_default().push(Berth { node: *node, on });
                    }
                }
            }
        }
    }
    berths.values_mut().for_each(|list| list.reverse());
    berths
}

/// Models of every kind that want replicas: first those under their minimum.
struct Wanting {
    queues: Vec<std::collections::VecDeque<usize>>,
}

impl Wanting {
    fn new(groups: &Groups<'_>, floor: &Floor<'_, '_>) -> Self {
        let mut queues = Vec::new();
        for kind in &groups.kinds {
            let mut first = Vec::new();
            let mut then = Vec::new();
            for model in &kind.models {
                let here = floor.counts[*model];
                let least = super::goal::least(groups, *model).min(groups.room[*model]);
                first.extend((here..least).map(|_| *model));
                then.extend((here.max(least)..groups.room[*model]).map(|_| *model));
            }
            queues.push(first.into_iter().chain(then).collect());
        }
        Self { queues }
    }

    /// Puts a copy of the first model that may go there.
    fn give(
        &mut self,
        groups: &Groups<'_>,
        floor: &mut Floor<'_, '_>,
        kind: usize,
        shape: usize,
        berth: &Berth,
    ) -> bool {
        let mut asked = BTreeSet::new();
        for at in 0..self.queues[kind].len() {
            let model = self.queues[kind][at];
            if !asked.insert(model) {
                continue;
            }
            let accelerators = berth.on.clone();
            let copy = Copy { model, shape, node: berth.node, accelerators, further: Vec::new(), kept: None };
            if floor.fits(&copy) {
                floor.put(copy);
                self.queues[kind].remove(at);
                return true;
            }
            let plain = groups.problem.models[model].spread_by.is_none();
            if plain || asked.len() >= ASKED {
                return false;
            }
        }
        false
    }
}

/// Puts what is left of the counts where it fits best, widest and largest first.
fn guided(groups: &Groups<'_>, floor: &mut Floor<'_, '_>, left: &mut [u32]) {
    let mut ways: Vec<usize> = (0..left.len()).filter(|way| left[*way] > 0).collect();
    ways.sort_by_key(|way| {
        let takes = groups.ways[*way].takes.first();
        let size = takes.map_or((0, 0), |(item, ranks)| (*ranks, groups.items[*item].bytes));
        (Reverse(groups.kinds[groups.ways[*way].kind].rank), Reverse(size), *way)
    });
    for way in ways {
        let models = &groups.kinds[groups.ways[way].kind].models;
        for minimum in [true, false] {
            for model in models {
                let room = groups.room[*model];
                let most = if minimum { super::goal::least(groups, *model).min(room) } else { room };
                while left[way] > 0 && floor.counts[*model] < most {
                    let Some((copy, _)) = floor.place(*model, way) else { break };
                    floor.put(copy);
                    left[way] -= 1;
                }
            }
        }
    }
    fill::fill(groups, floor, fill::Order::Memory);
}
