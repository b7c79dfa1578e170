//! Named machines while copies are put on them: what is free where, with indexes that find the tightest place.

use std::collections::{BTreeMap, BTreeSet};

use super::groups::Groups;
use super::hedge::Exposed;
use crate::placement::build::quota;
use crate::placement::exact::traffic::{conflict, limited};
use crate::placement::layout::{Copy, Layout, is_pinned, rounded, spread_value, whole};
use crate::placement::ports::{self, Count, Ports};
use crate::placement::{Problem, Shape};

/// Places that are looked at before a search gives up: memory is there, but disk, host or spread forbid them.
const TRIES: usize = 512;

/// Machines with copies on them.
#[derive(Clone)]
pub struct Floor<'g, 'p> {
    groups: &'g Groups<'p>,
    /// Copies by slot; slots of removed ones are empty.
    pub copies: Vec<Option<Copy>>,
    empty: Vec<usize>,
    /// Slots by node.
    pub at: Vec<Vec<usize>>,
    /// Copies by model.
    pub counts: Vec<u32>,
    cards: Vec<Vec<u64>>,
    hosts: Vec<u64>,
    /// Ports that copies have, by node.
    ports: Vec<Count>,
    spread: Vec<BTreeMap<&'p str, u32>>,
    /// By model, where losses of spot nodes matter: how its copies are exposed.
    exposed: Vec<Exposed>,
    fetched: BTreeMap<(usize, usize, usize), u32>,
    fetched_bytes: Vec<u64>,
    quotas: Vec<(u64, u64)>,
    quotas_of: Vec<Vec<usize>>,
    /// By model: whether a limit on its traffic says where it may be.
    limited: Vec<bool>,
    needs: Vec<Vec<Need>>,
    need_of: Vec<usize>,
    /// By way: nodes that have its weights.
    near: Vec<Vec<usize>>,
}

/// An index of a class: free bytes on single cards of a group, or on the `width`th emptiest of a node.
#[derive(Clone)]
struct Need {
    group: Vec<usize>,
    width: usize,
    free: BTreeSet<(u64, usize, usize)>,
}

impl<'g, 'p> Floor<'g, 'p> {
    /// Empty machines; pinned instances hold their spread values.
    pub fn new(groups: &'g Groups<'p>) -> Self {
        let problem = groups.problem;
        let mut needs: Vec<Vec<Need>> = vec![Vec::new(); groups.classes.len()];
        let mut need_of = Vec::new();
        for item in &groups.items {
            let class = item.types.first().map_or(0, |t| groups.types[*t].class);
            let width = item.width as usize;
            let found = needs[class].iter().position(|n| n.group == item.group && n.width == width);
            need_of.push(found.unwrap_or_else(|| {
                needs[class].push(Need { group: item.group.clone(), width, free: BTreeSet::new() });
                needs[class].len() - 1
            }));
        }
        let mut spread: Vec<BTreeMap<&str, u32>> = vec![BTreeMap::new(); problem.models.len()];
        let mut quotas = vec![(0, 0); problem.quotas.len()];
        let quotas_of: Vec<Vec<usize>> = problem
            .models
            .iter()
            .map(|m| (0..quotas.len()).filter(|q| problem.quotas[*q].models.contains(&m.name)).collect())
            .collect();
        if groups.pinned.iter().any(|p| *p > 0) {
            for running in problem.running.iter().filter(|r| is_pinned(problem, r)) {
                let (Some(model), Some(node)) = (problem.model(&running.model), problem.node(&running.node)) else {
                    continue;
                };
                if let Some(label) = &problem.models[model].spread_by {
                    *spread[model].entry(spread_value(problem, label, node)).or_default() += 1;
                }
                for rule in &quotas_of[model] {
                    let bytes = quota::last_known(problem, model, running);
                    quotas[*rule].0 += running.accelerators.len() as u64;
                    quotas[*rule].1 += of_quota(problem, *rule, bytes);
                }
            }
        }
        let mut this = Self {
            groups,
            copies: Vec::new(),
            empty: Vec::new(),
            at: vec![Vec::new(); problem.nodes.len()],
            counts: vec![0; problem.models.len()],
            cards: groups.capacities.accelerators.clone(),
            hosts: groups.capacities.host.clone(),
            ports: vec![(0, 0); problem.nodes.len()],
            spread,
            exposed: match groups.hedge {
                0 => Vec::new(),
                _ => (0..problem.models.len()).map(|model| Exposed::pinned(groups, model)).collect(),
            },
            fetched: BTreeMap::new(),
            fetched_bytes: vec![0; problem.nodes.len()],
            quotas,
            quotas_of,
            limited: limited(problem),
            needs,
            need_of,
            near: (0..groups.ways.len()).map(|way| groups.near(way)).collect(),
        };
        (0..problem.nodes.len()).for_each(|node| this.index(node, true));
        this
    }

    /// All copies, in order.
    pub fn layout(&self) -> Layout {
        let mut layout: Layout = self.copies.iter().flatten().cloned().collect();
        layout.sort();
        layout
    }

    /// Bytes that a copy frees on a card where it goes.
    pub fn claimed(&self, slot: usize, node: usize, position: usize) -> u64 {
        let Some(copy) = &self.copies[slot] else { return 0 };
        let here = |(at, on, bytes): (usize, Option<usize>, u64)| {
            if (at, on) == (node, Some(position)) { bytes } else { 0 }
        };
        self.bytes(copy).into_iter().map(here).sum()
    }

    /// Free bytes of a card.
    pub fn free(&self, node: usize, position: usize) -> u64 {
        self.cards[node][position]
    }

    /// How the copies of a model are exposed to losses of spot nodes; `None` where that does not matter.
    pub fn exposed(&self, model: usize) -> Option<&Exposed> {
        self.exposed.get(model)
    }

    /// Replicas of a model up to its minimum that the worst losses of spot nodes leave.
    pub fn survivors(&self, model: usize) -> u32 {
        self.exposed.get(model).map_or(0, |exposed| exposed.survivors(self.groups, model))
    }

    /// Whether as many replicas of its model outlast losses without a copy.
    pub fn outlasts(&self, copy: &Copy) -> bool {
        self.exposed.get(copy.model).is_none_or(|exposed| {
            let mut without = exposed.clone();
            without.count(self.groups, copy, false);
            without.survivors(self.groups, copy.model) >= exposed.survivors(self.groups, copy.model)
        })
    }

    fn index(&mut self, node: usize, add: bool) {
        let class = self.groups.class_of[node];
        let cards = &self.cards[node];
        for need in &mut self.needs[class] {
            if need.width == 1 {
                for position in &need.group {
                    let entry = (cards[*position], node, *position);
                    let _ = if add { need.free.insert(entry) } else { need.free.remove(&entry) };
                }
            } else {
                let mut free: Vec<u64> = need.group.iter().map(|p| cards[*p]).collect();
                free.sort_unstable_by(|a, b| b.cmp(a));
                if let Some(least) = free.get(need.width - 1) {
                    let entry = (*least, node, 0);
                    let _ = if add { need.free.insert(entry) } else { need.free.remove(&entry) };
                }
            }
        }
    }

    fn shape(&self, copy: &Copy) -> &'p Shape {
        &self.groups.problem.models[copy.model].shapes[copy.shape]
    }

    /// Node, positions, bytes on each, and of the host, of every part.
    fn parts<'c>(&self, copy: &'c Copy) -> impl Iterator<Item = (usize, &'c [usize], u64, u64)> + use<'c, 'p> {
        let shape = self.shape(copy);
        let own = (copy.node, &copy.accelerators[..], shape.claimed(), shape.host.total_bytes());
        let further = shape.further.iter().zip(&copy.further);
        let further = further.map(|(part, (node, on))| (*node, &on[..], part.claimed(), part.host.total_bytes()));
        std::iter::once(own).chain(further)
    }

    /// Bytes by node and card, and by host (no card), as the solver counts them.
    fn bytes(&self, copy: &Copy) -> Vec<(usize, Option<usize>, u64)> {
        let capacities = &self.groups.capacities;
        let mut all = Vec::new();
        for (node, on, bytes, host) in self.parts(copy) {
            let mut pool = capacities.counted(copy, host, (node, None));
            for position in on {
                all.push((node, Some(*position), capacities.counted(copy, bytes, (node, Some(*position)))));
                if self.groups.problem.nodes[node].accelerators[*position].unified {
                    pool += capacities.counted(copy, bytes, (node, None));
                }
            }
            if pool > 0 {
                all.push((node, None, pool));
            }
        }
        all
    }

    /// Whether a copy fits beside what is there, and every rule of its model allows it.
    pub fn fits(&self, copy: &Copy) -> bool {
        let mut hosts: BTreeMap<usize, u64> = BTreeMap::new();
        for (node, position, bytes) in self.bytes(copy) {
            match position {
                Some(position) if self.cards[node][position] < bytes => return false,
                Some(_) => {}
                None => *hosts.entry(node).or_default() += bytes,
            }
        }
        hosts.iter().all(|(node, bytes)| self.hosts[*node] >= *bytes)
            && self.ports_allow(copy)
            && self.disk_allows(copy)
            && self.spread_allows(copy)
            && self.quotas_allow(copy)
            && self.near_enough(copy)
    }

    fn ports_allow(&self, copy: &Copy) -> bool {
        let held = Ports::of_copy(self.groups.problem, copy);
        self.groups.ports.has(copy.node, ports::sum(self.ports[copy.node], held))
    }

    /// Whether a node has the ports for one more new copy in a way.
    fn has_ports(&self, way: usize, node: usize) -> bool {
        let held = ports::needed(self.groups.sample(way).engine);
        self.groups.ports.has(node, ports::sum(self.ports[node], held))
    }

    /// Whether the limits on traffic allow a copy where it is.
    fn near_enough(&self, copy: &Copy) -> bool {
        !self.limited[copy.model] || conflict(self.groups.problem, &self.layout(), copy.model, copy.node).is_none()
    }

    fn disk_allows(&self, copy: &Copy) -> bool {
        let shape = self.shape(copy);
        let Some(free) = self.groups.problem.nodes[copy.node].disk_free_bytes else { return true };
        let here = self.fetched.contains_key(&(copy.model, shape.candidate, copy.node));
        let fetch = self.groups.fetch(copy.model, copy.shape, copy.node);
        let more = if here { 0 } else { rounded(fetch, free) };
        copy.kept.is_some() || more == 0 || self.fetched_bytes[copy.node] + more <= whole(free)
    }

    fn spread_allows(&self, copy: &Copy) -> bool {
        let problem = self.groups.problem;
        let Some(label) = &problem.models[copy.model].spread_by else { return true };
        let there = &self.spread[copy.model];
        values(problem, label, copy).into_iter().all(|value| there.get(value).is_none_or(|count| *count == 0))
    }

    fn quotas_allow(&self, copy: &Copy) -> bool {
        self.quotas_of[copy.model].iter().all(|index| {
            let problem = self.groups.problem;
            let rule = &problem.quotas[*index];
            let (cards, bytes) = self.quotas[*index];
            let (more, more_bytes) = self.counted(copy);
            let more_bytes = of_quota(problem, *index, more_bytes);
            rule.accelerators.is_none_or(|most| cards + more <= u64::from(most))
                && rule.vram_bytes.is_none_or(|most| bytes + more_bytes <= whole(most))
        })
    }

    /// Accelerators and bytes on them, as quotas count.
    fn counted(&self, copy: &Copy) -> (u64, u64) {
        counted(self.shape(copy))
    }

    /// Puts a copy; whoever calls has asked whether it fits.
    pub fn put(&mut self, copy: Copy) -> usize {
        self.count(&copy, true);
        let slot = self.empty.pop().unwrap_or_else(|| {
            self.copies.push(None);
            self.copies.len() - 1
        });
        for (node, ..) in self.parts(&copy) {
            if !self.at[node].contains(&slot) {
                self.at[node].push(slot);
            }
        }
        self.copies[slot] = Some(copy);
        slot
    }

    /// Takes a copy away.
    pub fn take(&mut self, slot: usize) -> Option<Copy> {
        let copy = self.copies.get_mut(slot)?.take()?;
        self.count(&copy, false);
        for (node, ..) in self.parts(&copy) {
            self.at[node].retain(|s| *s != slot);
        }
        self.empty.push(slot);
        Some(copy)
    }

    fn count(&mut self, copy: &Copy, add: bool) {
        let step = |value: &mut u64, by: u64| *value = if add { *value + by } else { value.saturating_sub(by) };
        let shape = self.shape(copy);
        let bytes = self.bytes(copy);
        let mut nodes: Vec<usize> = bytes.iter().map(|(node, ..)| *node).collect();
        nodes.dedup();
        nodes.iter().for_each(|node| self.index(*node, false));
        for (node, position, bytes) in bytes {
            let free = match position {
                Some(position) => &mut self.cards[node][position],
                None => &mut self.hosts[node],
            };
            *free = if add { free.saturating_sub(bytes) } else { *free + bytes };
        }
        nodes.iter().for_each(|node| self.index(*node, true));
        let held = Ports::of_copy(self.groups.problem, copy);
        let ports = &mut self.ports[copy.node];
        *ports = match add {
            true => ports::sum(*ports, held),
            false => (ports.0.saturating_sub(held.all), ports.1.saturating_sub(u32::from(held.row))),
        };
        let one = |count: &mut u32| *count = if add { *count + 1 } else { count.saturating_sub(1) };
        one(&mut self.counts[copy.model]);
        let problem = self.groups.problem;
        if let Some(exposed) = self.exposed.get_mut(copy.model) {
            exposed.count(self.groups, copy, add);
        }
        if let Some(label) = &problem.models[copy.model].spread_by {
            for value in values(problem, label, copy) {
                one(self.spread[copy.model].entry(value).or_default());
            }
        }
        let fetch = self.groups.fetch(copy.model, copy.shape, copy.node);
        if copy.kept.is_none() && fetch > 0 {
            let entry = self.fetched.entry((copy.model, shape.candidate, copy.node)).or_default();
            let before = *entry;
            one(entry);
            let free = problem.nodes[copy.node].disk_free_bytes.unwrap_or(u64::MAX);
            if (before == 0) == add && (add || before == 1) {
                step(&mut self.fetched_bytes[copy.node], rounded(fetch, free));
            }
            if !add && before <= 1 {
                self.fetched.remove(&(copy.model, shape.candidate, copy.node));
            }
        }
        let (cards, bytes) = self.counted(copy);
        for rule in self.quotas_of[copy.model].clone() {
            step(&mut self.quotas[rule].0, cards);
            step(&mut self.quotas[rule].1, of_quota(problem, rule, bytes));
        }
    }

    /// The tightest place for one more copy of a model in a way; with the bytes that its fullest card then has left.
    pub fn place(&self, model: usize, way: usize) -> Option<(Copy, u64)> {
        self.place_where(model, way, &|_| true)
    }

    /// The same among places that are good for something.
    pub fn place_where(&self, model: usize, way: usize, good: &dyn Fn(&Copy) -> bool) -> Option<(Copy, u64)> {
        let groups = self.groups;
        let entry = &groups.ways[way];
        let Some((item, _)) = entry.takes.first().filter(|_| groups.sample(way).ranks > 0) else {
            return self.place_on_cpu(model, way, good);
        };
        let item = &groups.items[*item];
        let need = &self.needs[entry.class][self.need_of[entry.takes[0].0]];
        for node in self.near[way].iter().take(TRIES) {
            let (Some(on), Some(shape)) = (self.cards_on(*node, item, &[]), entry.shape_at(*node)) else { continue };
            let copy = Copy { model, shape, node: *node, accelerators: on, further: Vec::new(), kept: None };
            if let Some(copy) = self.complete(copy)
                && good(&copy)
                && self.fits(&copy)
            {
                let left = copy.accelerators.iter().map(|p| self.cards[*node][*p]).min().unwrap_or(0);
                return Some((copy, left.saturating_sub(item.bytes)));
            }
        }
        // What fits to the byte counts as the card's whole capacity: start from what it takes at least.
        let from = (whole(item.bytes), 0, 0);
        let open = need.free.range(from..).filter(|(_, node, _)| self.has_ports(way, *node));
        for (free, node, position) in open.take(TRIES) {
            let on = if need.width == 1 { Some(vec![*position]) } else { self.cards_on(*node, item, &[]) };
            let (Some(on), Some(shape)) = (on, entry.shape_at(*node)) else { continue };
            if let Some(copy) =
                self.complete(Copy { model, shape, node: *node, accelerators: on, further: Vec::new(), kept: None })
                && good(&copy)
                && self.fits(&copy)
            {
                return Some((copy, free.saturating_sub(item.bytes)));
            }
        }
        None
    }

    /// A place for one more copy of a model in a way on a node of its class.
    pub fn place_at(&self, model: usize, way: usize, node: usize) -> Option<Copy> {
        let groups = self.groups;
        let entry = &groups.ways[way];
        let shape = entry.shape_at(node)?;
        let accelerators = match entry.takes.first().filter(|_| groups.sample(way).ranks > 0) {
            Some((item, _)) => self.cards_on(node, &groups.items[*item], &[])?,
            None => Vec::new(),
        };
        let copy = self.complete(Copy { model, shape, node, accelerators, further: Vec::new(), kept: None })?;
        self.fits(&copy).then_some(copy)
    }

    fn place_on_cpu(&self, model: usize, way: usize, good: &dyn Fn(&Copy) -> bool) -> Option<(Copy, u64)> {
        let entry = &self.groups.ways[way];
        for node in &self.groups.classes[entry.class].nodes {
            let Some(shape) = entry.shape_at(*node) else { continue };
            let copy = Copy { model, shape, node: *node, accelerators: Vec::new(), further: Vec::new(), kept: None };
            if let Some(copy) = self.complete(copy)
                && good(&copy)
                && self.fits(&copy)
            {
                return Some((copy, 0));
            }
        }
        None
    }

    /// The fullest cards of a node that still take an item, apart from some.
    fn cards_on(&self, node: usize, item: &super::groups::Item, not: &[usize]) -> Option<Vec<usize>> {
        let exact = &self.groups.capacities.exact.accelerators[node];
        let mut open: Vec<(u64, usize)> = item
            .group
            .iter()
            .filter(|p| !not.contains(p) && self.groups.problem.nodes[node].accelerators[**p].healthy)
            .filter(|p| item.bytes <= exact[**p] && self.cards[node][**p] >= rounded(item.bytes, exact[**p]))
            .map(|p| (self.cards[node][*p], *p))
            .collect();
        open.sort_unstable();
        let mut on: Vec<usize> = open.iter().take(item.width as usize).map(|(_, p)| *p).collect();
        on.sort_unstable();
        (on.len() == item.width as usize).then_some(on)
    }

    /// Finds cards for the further parts of a copy.
    fn complete(&self, mut copy: Copy) -> Option<Copy> {
        let shape = self.shape(&copy);
        if shape.further.is_empty() {
            return Some(copy);
        }
        let groups = self.groups;
        for part in &shape.further {
            let item = super::groups::Item {
                types: Vec::new(),
                group: part.group.clone(),
                width: part.ranks,
                bytes: part.claimed(),
            };
            let near = part.node == shape.node;
            let class = &groups.classes[groups.class_of[part.node]];
            let stands = groups.problem.alike.is_empty();
            let nodes = if near {
                vec![copy.node]
            } else if stands {
                vec![part.node]
            } else {
                class.nodes.clone()
            };
            let taken = |node: usize| {
                let own = (copy.node == node).then_some(&copy.accelerators);
                let further = copy.further.iter().filter(|(n, _)| *n == node).map(|(_, on)| on);
                own.into_iter().chain(further).flatten().copied().collect::<Vec<usize>>()
            };
            let free = |node: &&usize| near || taken(**node).is_empty();
            let found = nodes.iter().filter(free).find_map(|n| self.cards_on(*n, &item, &taken(*n)).map(|on| (*n, on)));
            copy.further.push(found?);
        }
        Some(copy)
    }
}

/// The different values of a label on the nodes of a copy.
fn values<'p>(problem: &'p Problem, label: &str, copy: &Copy) -> BTreeSet<&'p str> {
    copy.nodes().map(|node| spread_value(problem, label, node)).collect()
}

/// Accelerators and bytes on them that a copy of a shape counts against a quota, before the bytes are rounded.
pub fn counted(shape: &Shape) -> (u64, u64) {
    (quota::accelerators(shape), quota::planned_bytes(shape))
}

/// Bytes as a quota counts those of one copy: in whole MiB.
fn of_quota(problem: &Problem, rule: usize, bytes: u64) -> u64 {
    rounded(bytes, problem.quotas[rule].vram_bytes.unwrap_or(u64::MAX))
}
