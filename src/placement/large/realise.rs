//! From counts to machines: groups of cards on nodes, largest first, and copies on their cards.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::fill;
use super::floor::Floor;
use super::groups::{CardType, Groups};
use super::master::Pattern;
use super::whole::Counts;
use crate::placement::layout::{Copy, spread_value};

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
    // What is spread takes its places before others of its size do.
    let spread = |kind: &usize| groups.problem.models[groups.kinds[*kind].models[0]].spread_by.is_some();
    let (spread, others): (Vec<usize>, Vec<usize>) = (0..groups.kinds.len()).partition(spread);
    for kind in spread.into_iter().chain(others) {
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

/// Kinds whose replicas may not share a value of a label, and where they are.
struct Apart<'g, 'p> {
    groups: &'g Groups<'p>,
    /// By item: the kinds of which something new is to lie on it.
    kinds: Vec<Vec<usize>>,
    /// By kind and value: replicas.
    here: BTreeMap<(usize, &'p str), usize>,
}

impl<'g, 'p> Apart<'g, 'p> {
    fn new(groups: &'g Groups<'p>, floor: &Floor<'_, '_>, counts: &Counts) -> Self {
        let mut this = Self { groups, kinds: vec![Vec::new(); groups.items.len()], here: BTreeMap::new() };
        for (way, _) in counts.fresh.iter().enumerate().filter(|(_, count)| **count > 0) {
            let kind = groups.ways[way].kind;
            if this.label(kind).is_some() {
                groups.ways[way].takes.iter().take(1).for_each(|(item, _)| this.kinds[*item].push(kind));
            }
        }
        for copy in floor.copies.iter().flatten() {
            this.put(groups.kind_of[copy.model], copy.node);
        }
        this
    }

    fn label(&self, kind: usize) -> Option<&'p str> {
        self.groups.problem.models[self.groups.kinds[kind].models[0]].spread_by.as_deref()
    }

    fn value(&self, kind: usize, node: usize) -> Option<&'p str> {
        self.label(kind).map(|label| spread_value(self.groups.problem, label, node))
    }

    fn put(&mut self, kind: usize, node: usize) {
        if let Some(value) = self.value(kind, node) {
            *self.here.entry((kind, value)).or_default() += 1;
        }
    }

    /// Kinds of a pattern, once for every group of its cards.
    fn of(&self, pattern: &Pattern) -> Vec<usize> {
        pattern.items.iter().flat_map(|(item, _)| &self.kinds[*item]).copied().collect()
    }

    /// How many of these kinds have as many replicas as they may where a node is.
    fn full(&self, kinds: &[usize], node: usize) -> usize {
        let full = |kind: &&usize| {
            let here = self.value(**kind, node).and_then(|value| self.here.get(&(**kind, value)));
            here.is_some_and(|here| *here >= self.groups.kinds[**kind].models.len())
        };
        kinds.iter().filter(full).count()
    }
}

/// Free cards of a type.
struct Open {
    /// By node, highest position first.
    cards: BTreeMap<usize, Vec<usize>>,
    /// Nodes by the number of them, most first.
    order: BTreeSet<(Reverse<usize>, usize)>,
}

impl Open {
    fn new(groups: &Groups<'_>, floor: &Floor<'_, '_>, card: &CardType) -> Self {
        let free = |node: usize, position: &usize| {
            floor.at[node].iter().all(|slot| {
                floor.copies[*slot].as_ref().is_none_or(|c| c.node != node || !c.accelerators.contains(position))
            })
        };
        let nodes = groups.classes[card.class].nodes.iter();
        let cards = nodes.map(|n| (*n, card.positions.iter().copied().filter(|p| free(*n, p)).rev().collect()));
        let cards: BTreeMap<usize, Vec<usize>> = cards.collect();
        let order = cards.iter().map(|(node, free)| (Reverse(free.len()), *node)).collect();
        Self { cards, order }
    }

    /// So many cards of the node that has most: of all that have enough where not any will do, of the one with the
    /// least of `worse`.
    fn take(&mut self, size: usize, any: bool, worse: impl Fn(&usize) -> usize) -> Option<(usize, Vec<usize>)> {
        let mut enough = self.order.iter().take_while(|(Reverse(free), _)| *free >= size);
        let at = if any { enough.next() } else { enough.min_by_key(|(_, node)| worse(node)) };
        let (Reverse(free), node) = *at?;
        self.order.remove(&(Reverse(free), node));
        self.order.insert((Reverse(free - size), node));
        let cards = self.cards.get_mut(&node)?;
        Some((node, (0..size).filter_map(|_| cards.pop()).collect()))
    }
}

/// Places for copies by item. Cards on which something runs take no group. Which node a group of cards is on does not
/// matter to the groups that come after it, as these are no larger: so the emptiest is taken, which leaves most nodes
/// with room for what must lie apart, and that chooses first among groups of a size.
fn berths(groups: &Groups<'_>, floor: &Floor<'_, '_>, counts: &Counts) -> BTreeMap<usize, Vec<Berth>> {
    let mut open: Vec<Open> = groups.types.iter().map(|card| Open::new(groups, floor, card)).collect();
    let mut apart = Apart::new(groups, floor, counts);
    let mut list: Vec<Listed<'_>> = counts.groups.iter().map(|of| (apart.of(&of.0), of)).collect();
    list.sort_by(|(kinds, a), (others, b)| {
        b.1.cmp(&a.1).then_with(|| others.len().cmp(&kinds.len())).then_with(|| a.0.cmp(&b.0))
    });
    let mut berths: BTreeMap<usize, Vec<Berth>> = BTreeMap::new();
    let mut counts: Vec<u32> = list.iter().map(|(_, of)| of.2).collect();
    beside(groups, floor, &list, &mut counts, &mut apart, &mut berths);
    for ((kinds, (pattern, size, _)), count) in list.into_iter().zip(counts) {
        for _ in 0..count {
            let fullest = |node: &usize| if kinds.is_empty() { 0 } else { apart.full(&kinds, *node) };
            let Some((node, taken)) = open[pattern.card].take(*size as usize, kinds.is_empty(), fullest) else { break };
            kinds.iter().for_each(|kind| apart.put(*kind, node));
            pattern.items.iter().for_each(|(item, copies)| add(groups, &mut berths, (*item, *copies), node, &taken));
        }
    }
    berths.values_mut().for_each(|list| list.reverse());
    berths
}

/// So many copies of an item on every card, or on every set of its width.
fn add(
    groups: &Groups<'_>,
    berths: &mut BTreeMap<usize, Vec<Berth>>,
    (item, copies): (usize, u32),
    node: usize,
    cards: &[usize],
) {
    for on in cards.chunks(groups.items[item].width.max(1) as usize) {
        for _ in 0..copies {
            let mut on = on.to_vec();
            on.sort_unstable();
            berths.entry(item).or_default().push(Berth { node, on });
        }
    }
}

/// Kinds that are spread in a pattern, with the pattern, cards of a group, and how many groups.
type Listed<'c> = (Vec<usize>, &'c (Pattern, u32, u32));

/// Where something stays, the pattern that has the least besides it: what is new of that goes beside it.
fn beside(
    groups: &Groups<'_>,
    floor: &Floor<'_, '_>,
    list: &[Listed<'_>],
    counts: &mut [u32],
    apart: &mut Apart<'_, '_>,
    berths: &mut BTreeMap<usize, Vec<Berth>>,
) {
    let lying = lying(groups, floor);
    let mut done: BTreeSet<(usize, usize)> = BTreeSet::new();
    for ((node, position), here) in &lying {
        if done.contains(&(*node, *position)) {
            continue;
        }
        // Cards that copies tie to this one.
        let mut cards = vec![*position];
        let mut next = 0;
        while let Some(card) = cards.get(next).copied() {
            for copy in floor.at[*node].iter().filter_map(|slot| floor.copies[*slot].as_ref()) {
                let parts = std::iter::once((copy.node, &copy.accelerators));
                let mut parts = parts.chain(copy.further.iter().map(|(node, on)| (*node, on)));
                if let Some((_, on)) = parts.find(|(at, on)| at == node && on.contains(&card)) {
                    on.iter().for_each(|p| {
                        if !cards.contains(p) {
                            cards.push(*p)
                        }
                    });
                }
            }
            next += 1;
        }
        done.extend(cards.iter().map(|card| (*node, *card)));
        if cards.iter().any(|card| lying.get(&(*node, *card)) != Some(here)) {
            continue;
        }
        let types = &groups.classes[groups.class_of[*node]].types;
        let more = |pattern: &Pattern| -> Option<u32> {
            let count = |item: usize| pattern.items.iter().find(|(of, _)| *of == item).map_or(0, |(_, count)| *count);
            let holds = here.iter().all(|(item, n)| count(*item) >= *n);
            let all: u32 = pattern.items.iter().map(|(_, count)| count).sum();
            holds.then(|| all - here.values().sum::<u32>())
        };
        let own = |pattern: &Pattern| {
            types.contains(&pattern.card) && groups.types[pattern.card].positions.contains(position)
        };
        let fitting = (0..list.len()).filter(|at| counts[*at] > 0 && list[*at].1.1 as usize == cards.len());
        let fitting = fitting.filter(|at| own(&list[*at].1.0)).filter_map(|at| Some((more(&list[at].1.0)?, at)));
        let Some((_, at)) = fitting.min() else { continue };
        counts[at] -= 1;
        list[at].0.iter().for_each(|kind| apart.put(*kind, *node));
        for (item, copies) in &list[at].1.0.items {
            let copies = copies - here.get(item).copied().unwrap_or(0);
            add(groups, berths, (*item, copies), *node, &cards);
        }
    }
}

/// What lies on cards, by node and position: items with their counts.
pub fn lying(groups: &Groups<'_>, floor: &Floor<'_, '_>) -> BTreeMap<(usize, usize), BTreeMap<usize, u32>> {
    let mut cards: BTreeMap<(usize, usize), BTreeMap<usize, u32>> = BTreeMap::new();
    for copy in floor.copies.iter().flatten() {
        let Some(way) = groups.ways.get(groups.way_of[copy.model][copy.shape]) else { continue };
        let own = std::iter::once((copy.node, &copy.accelerators));
        let all = own.chain(copy.further.iter().map(|(node, on)| (*node, on))).filter(|(_, on)| !on.is_empty());
        for ((node, on), (item, _)) in all.zip(&way.takes) {
            for position in on {
                *cards.entry((node, *position)).or_default().entry(*item).or_default() += 1;
            }
        }
    }
    cards
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
