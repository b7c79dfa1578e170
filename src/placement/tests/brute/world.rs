//! Every layout of a small problem, without the solver's code: a choice takes of slots, slots have capacities.
//!
//! Accelerators, hosts, disks, values of a spread label and quotas are all slots. What is taken only grows while copies
//! are added, so a partial layout that overfills a slot is left at once. Of the layouts that place and displace the same
//! numbers only the best tail is kept.
//!
//! Size: the rules of a whole placement once more, none of them shared with the solver.

use std::collections::{BTreeMap, BTreeSet};

use crate::placement::*;

/// What is taken of slots.
type Uses = Vec<(usize, u64)>;

/// One way to place one replica.
struct Choice {
    kept: Option<usize>,
    /// Quality of its candidate, for who may leave for whom.
    quality: u32,
    uses: Uses,
    /// The same before what is of one slot was added up.
    parts: Uses,
    /// What is taken only once, by a number of the download: a slot and bytes.
    once: Option<(usize, usize, u64)>,
    /// The terms of a tier that are sums over copies, by tier.
    cost: Vec<f64>,
    /// Share of a node's memory.
    load: Vec<(usize, f64)>,
    /// Accelerators, and bytes on them as planned.
    takes: (u64, u64),
}

/// What a layout comes to, as far as the tiers look at it.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Replicas placed, by model; without the pinned ones.
    pub placed: Vec<u32>,
    /// Running instances that lose their place to others, by model.
    pub displaced: Vec<u32>,
    /// Replicas up to the minimum that the worst losses of spot nodes leave, by model.
    pub survivors: Vec<u32>,
    /// The tiers after the replicas.
    pub tail: Vec<f64>,
}

/// A problem made ready to be enumerated.
pub struct World<'p> {
    problem: &'p Problem,
    choices: Vec<Vec<Choice>>,
    room: Vec<usize>,
    /// Instances on unreachable nodes, by model.
    pub pinned: Vec<u32>,
    caps: Vec<u64>,
    downloads: usize,
    balance: Vec<f64>,
    pack: Vec<f64>,
    /// Nodes of the instances that are away, by model.
    away: Vec<Vec<usize>>,
}

/// Bytes as they are counted: up to whole MiB, but what fits alone fits.
fn part(bytes: u64, capacity: u64) -> u64 {
    let mib = 1 << 20;
    let up = if bytes.is_multiple_of(mib) { bytes } else { bytes - bytes % mib + mib };
    let down = capacity - capacity % mib;
    if bytes <= capacity { up.min(down) } else { up }
}

fn subsets(group: &[usize], width: usize) -> Vec<Vec<usize>> {
    if width == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (index, first) in group.iter().enumerate() {
        for mut rest in subsets(&group[index + 1..], width - 1) {
            rest.insert(0, *first);
            all.push(rest);
        }
    }
    all
}

/// What a shape takes on one node: group, ranks, bytes on each, bytes of the host.
struct Span<'s> {
    node: usize,
    group: &'s [usize],
    ranks: usize,
    bytes: u64,
    host: u64,
}

fn spans(shape: &Shape) -> Vec<Span<'_>> {
    let bytes = |memory: &PlacedMemory, claim: u64| memory.total_bytes().max(claim);
    let mut all = vec![Span {
        node: shape.node,
        group: &shape.group,
        ranks: shape.ranks as usize,
        bytes: bytes(&shape.per_accelerator, shape.claim_bytes),
        host: shape.host.total_bytes(),
    }];
    all.extend(shape.further.iter().map(|part| Span {
        node: part.node,
        group: &part.group,
        ranks: part.ranks as usize,
        bytes: bytes(&part.per_accelerator, part.claim_bytes),
        host: part.host.total_bytes(),
    }));
    all
}

/// One entry per slot.
fn sum(parts: &Uses) -> Uses {
    let mut uses: BTreeMap<usize, u64> = BTreeMap::new();
    parts.iter().for_each(|(slot, amount)| *uses.entry(*slot).or_default() += amount);
    uses.into_iter().collect()
}

/// Accelerators of a shape, and bytes on them as planned.
fn takes(shape: &Shape) -> (u64, u64) {
    let further = shape.further.iter().map(|part| (u64::from(part.ranks), part.per_accelerator.total_bytes()));
    let all = further.chain([(u64::from(shape.ranks), shape.per_accelerator.total_bytes())]);
    all.fold((0, 0), |sum, (ranks, bytes)| (sum.0 + ranks, sum.1 + ranks * bytes))
}

/// Accelerators of a copy, as node and position, span by span.
type Taken = Vec<Vec<(usize, usize)>>;

/// Where everything of a kind begins in the slots.
struct Slots {
    devices: Vec<usize>,
    hosts: usize,
    disks: usize,
    next: usize,
}

impl<'p> World<'p> {
    /// Sets up choices and slots.
    pub fn new(problem: &'p Problem) -> Self {
        let mut devices = Vec::new();
        let mut next = 0;
        for node in &problem.nodes {
            devices.push(next);
            next += node.accelerators.len();
        }
        let count = problem.nodes.len();
        let mut slots = Slots { devices, hosts: next, disks: next + count, next: next + 2 * count };
        let weight = |term: Term| -> Vec<f64> {
            let of = |tier: &TailTier| tier.terms.iter().filter(|(t, _)| *t == term).map(|(_, w)| w).sum();
            problem.tail.iter().map(of).collect()
        };
        let mut this = Self {
            problem,
            choices: Vec::new(),
            room: Vec::new(),
            pinned: Vec::new(),
            caps: vec![0; slots.next],
            downloads: 0,
            balance: weight(Term::Balance),
            pack: weight(Term::Pack),
            away: Vec::new(),
        };
        for model in 0..problem.models.len() {
            this.model(model, &slots);
        }
        this.capacities(&slots);
        this.spread(&mut slots);
        this.ports(&mut slots);
        this.quotas(&mut slots);
        this
    }

    fn node(&self, name: &str) -> usize {
        self.problem.nodes.iter().position(|n| n.name == name).unwrap()
    }

    fn is_away(&self, running: &Running) -> bool {
        let node = &self.problem.nodes[self.node(&running.node)];
        node.member && !node.reachable
    }

    fn model(&mut self, index: usize, slots: &Slots) {
        let problem = self.problem;
        let model = &problem.models[index];
        let mut mine = Vec::new();
        let (mut fixed, mut pinned) = (0, 0);
        let mut away = Vec::new();
        let mut downloads = BTreeMap::new();
        for (number, running) in problem.running.iter().enumerate().filter(|(_, r)| r.model == model.name) {
            if self.is_away(running) {
                pinned += 1;
                away.push(self.node(&running.node));
                continue;
            }
            let Some((shape, taken)) = self.stays(model, running) else { continue };
            fixed += usize::from(model.protected);
            mine.push(self.choice(model, &model.shapes[shape], &taken, Some(number), slots));
        }
        for shape in &model.shapes {
            if shape.keep_only {
                continue;
            }
            for taken in self.places(shape) {
                let mut choice = self.choice(model, shape, &taken, None, slots);
                if shape.fetch_bytes > 0 {
                    let free = problem.nodes[shape.node].disk_free_bytes.unwrap_or(1 << 50);
                    let count = self.downloads + downloads.len();
                    let number = *downloads.entry((shape.candidate, shape.node)).or_insert(count);
                    choice.once = Some((number, slots.disks + shape.node, part(shape.fetch_bytes, free)));
                }
                mine.push(choice);
            }
        }
        self.downloads += downloads.len();
        self.choices.push(mine);
        self.room.push((model.desired.saturating_sub(pinned) as usize).max(fixed));
        self.pinned.push(pinned);
        self.away.push(away);
    }

    /// Whether losses of spot nodes are to be outlasted.
    pub fn hedges(&self) -> bool {
        self.problem.spot_hedge > 0 && self.problem.nodes.iter().any(|node| node.spot && node.member)
    }

    /// The shape and place with which a running instance may stay.
    fn stays(&self, model: &ModelDemand, running: &Running) -> Option<(usize, Taken)> {
        let node = self.node(&running.node);
        let supply = &self.problem.nodes[node];
        if !supply.member || !supply.reachable || (supply.drained && !model.protected) {
            return None;
        }
        let positions: Vec<usize> = running
            .accelerators
            .iter()
            .map(|u| supply.accelerators.iter().position(|a| a.uuid == *u).unwrap())
            .collect();
        if !model.protected && positions.iter().any(|p| !supply.accelerators[*p].healthy) {
            return None;
        }
        if !running.further.is_empty() {
            return self.stays_over_nodes(model, running, node, positions);
        }
        model.shapes.iter().enumerate().find_map(|(index, shape)| {
            let spans = spans(shape);
            let ranks: usize = spans.iter().map(|s| s.ranks).sum();
            if ranks != positions.len()
                || shape.layers != running.layers
                || model.candidates[shape.candidate].label != running.variant
            {
                return None;
            }
            let mut rest = &positions[..];
            let mut taken = Taken::new();
            for span in spans {
                let (mine, after) = rest.split_at(span.ranks);
                if span.node != node || mine.iter().any(|p| !span.group.contains(p)) {
                    return None;
                }
                taken.push(mine.iter().map(|p| (node, *p)).collect());
                rest = after;
            }
            Some((index, taken))
        })
    }

    /// The same over several nodes: on each what it has there, in the order of the parts.
    fn stays_over_nodes(
        &self,
        model: &ModelDemand,
        running: &Running,
        node: usize,
        positions: Vec<usize>,
    ) -> Option<(usize, Taken)> {
        let mut has = vec![(node, positions)];
        for (name, uuids) in &running.further {
            let node = self.node(name);
            let supply = &self.problem.nodes[node];
            if !supply.member || !supply.reachable || (supply.drained && !model.protected) {
                return None;
            }
            let at = |uuid: &String| supply.accelerators.iter().position(|a| a.uuid == *uuid).unwrap();
            let positions: Vec<usize> = uuids.iter().map(at).collect();
            if !model.protected && positions.iter().any(|p| !supply.accelerators[*p].healthy) {
                return None;
            }
            has.push((node, positions));
        }
        let found = model.shapes.iter().position(|shape| {
            let spans = spans(shape);
            shape.layers == running.layers
                && model.candidates[shape.candidate].label == running.variant
                && spans.len() == has.len()
                && spans.iter().zip(&has).all(|(span, (node, on))| {
                    span.node == *node && span.ranks == on.len() && on.iter().all(|p| span.group.contains(p))
                })
        })?;
        Some((found, has.into_iter().map(|(node, on)| on.into_iter().map(|p| (node, p)).collect()).collect()))
    }

    /// Every set of accelerators that a new copy may take.
    fn places(&self, shape: &Shape) -> Vec<Taken> {
        let mut all = vec![Taken::new()];
        for span in spans(shape) {
            let supply = &self.problem.nodes[span.node];
            // What does not fit by itself is never new, whatever runs there now.
            if supply.closed.is_some() || span.host > supply.host_capacity_bytes {
                return Vec::new();
            }
            let fits =
                |p: &usize| supply.accelerators[*p].healthy && span.bytes <= supply.accelerators[*p].capacity_bytes;
            let group: Vec<usize> = span.group.iter().copied().filter(fits).collect();
            let mut more = Vec::new();
            for before in &all {
                for set in subsets(&group, span.ranks) {
                    let mine: Vec<(usize, usize)> = set.into_iter().map(|p| (span.node, p)).collect();
                    if before.iter().flatten().all(|taken| !mine.contains(taken)) {
                        let mut taken = before.clone();
                        taken.push(mine);
                        more.push(taken);
                    }
                }
            }
            all = more;
        }
        all
    }

    fn choice(&self, model: &ModelDemand, shape: &Shape, taken: &Taken, kept: Option<usize>, slots: &Slots) -> Choice {
        let mut parts = Uses::new();
        let mut load = Vec::new();
        for (span, on) in spans(shape).iter().zip(taken) {
            let supply = &self.problem.nodes[span.node];
            let host = slots.hosts + span.node;
            parts.push((host, part(span.host, supply.host_capacity_bytes)));
            for (_, position) in on {
                let accelerator = &supply.accelerators[*position];
                let usable = if accelerator.healthy { accelerator.capacity_bytes } else { 0 };
                parts.push((slots.devices[span.node] + position, part(span.bytes, usable)));
                if accelerator.unified {
                    parts.push((host, part(span.bytes, supply.host_capacity_bytes)));
                }
            }
            let planned = if load.is_empty() {
                shape.per_accelerator.total_bytes()
            } else {
                shape.further[load.len() - 1].per_accelerator.total_bytes()
            };
            let all: u64 = supply.accelerators.iter().map(|a| a.total_bytes).sum();
            load.push((span.node, planned as f64 * on.len() as f64 / (all as f64).max(1.0)));
        }
        let cost = self.problem.tail.iter().map(|tier| {
            tier.terms.iter().map(|(term, weight)| weight * self.term(*term, model, shape, taken, kept)).sum()
        });
        let cost = cost.collect();
        let quality = model.candidates[shape.candidate].quality;
        Choice { kept, quality, uses: sum(&parts), parts, once: None, cost, load, takes: takes(shape) }
    }

    fn term(&self, term: Term, model: &ModelDemand, shape: &Shape, taken: &Taken, kept: Option<usize>) -> f64 {
        let problem = self.problem;
        let node = &problem.nodes[shape.node];
        match term {
            Term::Quality => {
                let best = model.candidates.iter().map(|c| c.quality).min().unwrap();
                let on_host = shape.ranks == 0 || shape.further.iter().any(|part| part.ranks == 0);
                let crawls = on_host && shape.speed.unwrap() < 5.0;
                f64::from(model.candidates[shape.candidate].quality - best) + if crawls { 20.0 } else { 0.0 }
            }
            Term::Latency => {
                let speed = shape.speed.unwrap();
                // How long a prompt is read is unknown: half of the most it weighs.
                0.9 * (1.0 - speed / 20.0).max(0.0) + 0.1 * 20.0 / (20.0 + speed) + 0.05
            }
            Term::Locality if kept.is_none() => {
                shape.fetch_bytes as f64 / (shape.fetch_bytes as f64 + 64.0 * 1024.0_f64.powi(3))
            }
            Term::Cost => taken.iter().flatten().map(|(node, position)| self.cost(*node, *position)).sum(),
            Term::Preference => {
                let missed = model.prefer.iter().filter(|(l, is, _)| node.labels.get(l) != Some(is));
                missed.map(|(_, _, weight)| f64::from(*weight)).sum()
            }
            // What loses its place is counted; all that runs is added once for all.
            Term::Stability => -kept.map_or(0.0, |index| losing(&problem.running[index])),
            _ => 0.0,
        }
    }

    /// What an accelerator costs: its share of its node's price, or, where no node has one, of the largest memory.
    fn cost(&self, node: usize, position: usize) -> f64 {
        let bytes = |node: &NodeSupply| node.accelerators.iter().map(|a| a.total_bytes).sum::<u64>() as f64;
        let rate =
            |node: &NodeSupply| node.price_per_hour.filter(|_| bytes(node) > 0.0).map(|price| price / bytes(node));
        let nodes = &self.problem.nodes;
        let mine = nodes[node].accelerators[position].total_bytes as f64;
        let rates: Vec<f64> = nodes.iter().filter(|node| node.member).filter_map(rate).collect();
        if rates.is_empty() {
            let all = nodes.iter().flat_map(|node| &node.accelerators);
            return mine / all.map(|a| a.total_bytes).max().unwrap_or(1) as f64;
        }
        mine * rate(&nodes[node]).unwrap_or(rates.into_iter().fold(0.0, f64::max))
    }

    fn each_kept(&self) -> impl Iterator<Item = (usize, &Choice, &Running)> {
        self.choices.iter().enumerate().flat_map(move |(model, choices)| {
            choices.iter().filter_map(move |c| c.kept.map(|r| (model, c, &self.problem.running[r])))
        })
    }

    /// What may be taken of accelerators, hosts and disks. What lives has its memory already: together never more than
    /// there is.
    fn capacities(&mut self, slots: &Slots) {
        let mut limits = vec![(0, 0); slots.hosts + self.problem.nodes.len()];
        for (index, node) in self.problem.nodes.iter().enumerate() {
            for (position, accelerator) in node.accelerators.iter().enumerate() {
                let usable = if accelerator.healthy { accelerator.capacity_bytes >> 20 << 20 } else { 0 };
                let wobble = if accelerator.healthy { 512 << 20 } else { 0 };
                limits[slots.devices[index] + position] = (usable, wobble);
            }
            let usable = node.host_capacity_bytes >> 20 << 20;
            limits[slots.hosts + index] = (usable, (usable / 8).max(2 << 30));
            self.caps[slots.disks + index] = node.disk_free_bytes.map_or(u64::MAX, |free| free >> 20 << 20);
        }
        let mut living = vec![0; slots.next];
        for (_, choice, _) in self.each_kept().filter(|(.., running)| !running.failed) {
            choice.uses.iter().for_each(|(slot, amount)| living[*slot] += amount);
        }
        let problem = self.problem;
        for choice in self.choices.iter_mut().flatten() {
            if choice.kept.is_none_or(|running| problem.running[running].failed) {
                continue;
            }
            for (slot, amount) in &mut choice.parts {
                let (usable, _) = limits[*slot];
                if living[*slot] > usable {
                    *amount = (u128::from(*amount) * u128::from(usable) / u128::from(living[*slot])) as u64 >> 20 << 20;
                }
            }
            choice.uses = sum(&choice.parts);
        }
        let mut held = vec![0; slots.next];
        let mut all = vec![0; slots.next];
        for (model, choice, _) in self.each_kept() {
            for (slot, amount) in &choice.uses {
                all[*slot] += amount;
                held[*slot] += if self.problem.models[model].protected { *amount } else { 0 };
            }
        }
        for (slot, (usable, wobble)) in limits.into_iter().enumerate() {
            let runs = if all[slot] <= usable + wobble { all[slot] } else { 0 };
            self.caps[slot] = usable.max(held[slot]).max(runs);
        }
    }

    /// A slot per model and value of its spread label.
    fn spread(&mut self, slots: &mut Slots) {
        for (model, demand) in self.problem.models.iter().enumerate() {
            let Some(label) = &demand.spread_by else { continue };
            let value = |node: usize| {
                let node = &self.problem.nodes[node];
                if label == "node" { node.name.clone() } else { node.labels.get(label).cloned().unwrap_or_default() }
            };
            let mut values: BTreeMap<String, (usize, u64, u64)> = BTreeMap::new();
            for node in 0..self.problem.nodes.len() {
                values.entry(value(node)).or_insert_with(|| {
                    slots.next += 1;
                    (slots.next - 1, 0, 0)
                });
            }
            for running in self.problem.running.iter().filter(|r| r.model == demand.name && self.is_away(r)) {
                values.get_mut(&value(self.node(&running.node))).unwrap().1 += 1;
            }
            for choice in &mut self.choices[model] {
                let mut mine: Vec<String> = choice.load.iter().map(|(node, _)| value(*node)).collect();
                mine.sort_unstable();
                mine.dedup();
                for name in mine {
                    let entry = values.get_mut(&name).unwrap();
                    choice.uses.push((entry.0, 1));
                    entry.2 += u64::from(demand.protected && choice.kept.is_some());
                }
            }
            self.caps.resize(slots.next, 0);
            for (slot, away, held) in values.into_values() {
                self.caps[slot] = 1_u64.saturating_sub(away).max(held);
            }
        }
    }

    /// Two slots per node that has few ports: all of them, and rows of four.
    fn ports(&mut self, slots: &mut Slots) {
        let problem = self.problem;
        for (index, node) in problem.nodes.iter().enumerate() {
            let Some(supply) = &node.ports else { continue };
            let (all, rows) = (slots.next, slots.next + 1);
            slots.next += 2;
            let here = problem.running.iter().filter(|running| running.node == node.name);
            let (held, held_rows) = here.fold((0, 0), |sum: (u64, u64), running| {
                (sum.0 + u64::from(running.ports.all), sum.1 + u64::from(running.ports.row))
            });
            self.caps.push(u64::from(supply.free) + held);
            self.caps.push(u64::from(supply.rows) + held_rows);
            for choice in self.choices.iter_mut().flatten().filter(|choice| choice.load[0].0 == index) {
                let own = choice.kept.map(|running| problem.running[running].ports);
                let own = own.unwrap_or(PortsHeld { all: 5, row: true });
                choice.uses.push((all, u64::from(own.all)));
                choice.uses.push((rows, u64::from(own.row)));
            }
        }
    }

    /// Two slots per quota.
    fn quotas(&mut self, slots: &mut Slots) {
        let problem = self.problem;
        for quota in &problem.quotas {
            let full = quota.vram_bytes.unwrap_or(u64::MAX);
            let (devices, bytes) = (slots.next, slots.next + 1);
            slots.next += 2;
            let (mut away, mut held) = ((0, 0), (0, 0));
            for model in (0..problem.models.len()).filter(|m| quota.models.contains(&problem.models[*m].name)) {
                let demand = &problem.models[model];
                for running in problem.running.iter().filter(|r| r.model == demand.name && self.is_away(r)) {
                    let same = |s: &&Shape| {
                        takes(s).0 == running.accelerators.len() as u64
                            && demand.candidates[s.candidate].label == running.variant
                    };
                    away.0 += running.accelerators.len() as u64;
                    away.1 += part(demand.shapes.iter().filter(same).map(|s| takes(s).1).max().unwrap_or(0), full);
                }
                for choice in &mut self.choices[model] {
                    let mine = (choice.takes.0, part(choice.takes.1, full));
                    choice.uses.push((devices, mine.0));
                    choice.uses.push((bytes, mine.1));
                    if demand.protected && choice.kept.is_some() {
                        (held.0, held.1) = (held.0 + mine.0, held.1 + mine.1);
                    }
                }
            }
            let left = |limit: u64, away: u64, held: u64| limit.saturating_sub(away).max(held);
            self.caps.push(quota.accelerators.map_or(u64::MAX, |most| left(u64::from(most), away.0, held.0)));
            self.caps.push(quota.vram_bytes.map_or(u64::MAX, |most| left(most >> 20 << 20, away.1, held.1)));
        }
    }

    /// The best tail for all numbers of placed and displaced replicas that are possible; `None` where there are more
    /// than `limit` layouts.
    pub fn enumerate(&self, limit: usize) -> Option<Vec<Outcome>> {
        let models = self.problem.models.len();
        let stability = self.problem.tail.iter().map(|tier| {
            let weight: f64 = tier.terms.iter().filter(|(t, _)| *t == Term::Stability).map(|(_, w)| w).sum();
            weight * self.each_kept().map(|(_, _, running)| losing(running)).sum::<f64>()
        });
        let mut walk = Walk {
            world: self,
            used: vec![0; self.caps.len()],
            once: vec![0; self.downloads],
            chosen: vec![Vec::new(); models],
            tail: stability.collect(),
            load: vec![0.0; self.problem.nodes.len()],
            key: vec![0; 3 * models],
            found: BTreeMap::new(),
            left: limit,
        };
        for (model, demand) in self.problem.models.iter().enumerate() {
            if demand.protected {
                for index in (0..self.choices[model].len()).filter(|c| self.choices[model][*c].kept.is_some()) {
                    walk.take(model, index);
                }
            }
        }
        walk.descend(0, 0)?;
        let outcome = |(key, tail): (Vec<u8>, Vec<f64>)| {
            let wide = |part: usize| key[part * models..(part + 1) * models].iter().map(|n| u32::from(*n)).collect();
            Outcome { placed: wide(0), displaced: wide(1), survivors: wide(2), tail }
        };
        Some(walk.found.into_iter().map(outcome).collect())
    }
}

/// What it costs that a running instance loses its place.
fn losing(running: &Running) -> f64 {
    let minutes = running.load_ms.unwrap_or(0) as f64 / 60_000.0;
    1.0 + minutes.min(10.0) / 10.0 + f64::from(running.live_sessions.min(10)) / 10.0
}

struct Walk<'w, 'p> {
    world: &'w World<'p>,
    used: Vec<u64>,
    once: Vec<u32>,
    chosen: Vec<Vec<usize>>,
    tail: Vec<f64>,
    load: Vec<f64>,
    /// Placed, then displaced, by model.
    key: Vec<u8>,
    found: BTreeMap<Vec<u8>, Vec<f64>>,
    left: usize,
}

impl Walk<'_, '_> {
    fn take(&mut self, model: usize, index: usize) {
        let choice = &self.world.choices[model][index];
        choice.uses.iter().for_each(|(slot, amount)| self.used[*slot] += amount);
        if let Some((number, slot, amount)) = choice.once {
            self.used[slot] += if self.once[number] == 0 { amount } else { 0 };
            self.once[number] += 1;
        }
        choice.cost.iter().zip(&mut self.tail).for_each(|(cost, tail)| *tail += cost);
        choice.load.iter().for_each(|(node, share)| self.load[*node] += share);
        self.chosen[model].push(index);
    }

    fn give_back(&mut self, model: usize) {
        let Some(index) = self.chosen[model].pop() else { return };
        let choice = &self.world.choices[model][index];
        choice.uses.iter().for_each(|(slot, amount)| self.used[*slot] -= amount);
        if let Some((number, slot, amount)) = choice.once {
            self.once[number] -= 1;
            self.used[slot] -= if self.once[number] == 0 { amount } else { 0 };
        }
        choice.cost.iter().zip(&mut self.tail).for_each(|(cost, tail)| *tail -= cost);
        choice.load.iter().for_each(|(node, share)| self.load[*node] -= share);
    }

    /// Whether one more copy overfills nothing.
    fn fits(&self, choice: &Choice) -> bool {
        let full = |slot: usize, amount: u64| self.used[slot] + amount > self.world.caps[slot];
        let disk = choice.once.is_some_and(|(number, slot, amount)| self.once[number] == 0 && full(slot, amount));
        !disk && !choice.uses.iter().any(|(slot, amount)| full(*slot, *amount))
    }

    fn descend(&mut self, model: usize, from: usize) -> Option<()> {
        let world = self.world;
        if model == world.choices.len() {
            self.left = self.left.checked_sub(1)?;
            self.note();
            return Some(());
        }
        let (placed, displaced) = self.standing(model);
        self.key[model] = placed;
        let models = world.choices.len();
        self.key[models + model] = displaced;
        self.descend(model + 1, 0)?;
        if self.chosen[model].len() < world.room[model] {
            let protected = world.problem.models[model].protected;
            for index in from..world.choices[model].len() {
                let choice = &world.choices[model][index];
                let kept = choice.kept.is_some();
                if (kept && protected) || !self.fits(choice) {
                    continue;
                }
                self.take(model, index);
                self.descend(model, index + usize::from(kept))?;
                self.give_back(model);
            }
        }
        Some(())
    }

    /// Replicas placed of a model, and instances that lose their place to others.
    fn standing(&self, model: usize) -> (u8, u8) {
        let choices = &self.world.choices[model];
        let kept = choices.iter().filter(|c| c.kept.is_some()).count();
        let placed = self.chosen[model].len();
        let claim = kept.min(self.world.room[model]);
        if placed > claim || kept == 0 {
            return (placed as u8, 0);
        }
        let mine = || self.chosen[model].iter().map(|c| &choices[*c]);
        let staying = mine().filter(|c| c.kept.is_some()).count();
        let fresh = mine().filter(|c| c.kept.is_none()).map(|c| c.quality).collect();
        let leaving = choices.iter().enumerate().filter(|(i, c)| c.kept.is_some() && !self.chosen[model].contains(i));
        let leaving = leaving.map(|(_, c)| c.quality).collect();
        let released = if self.world.problem.models[model].protected { 0 } else { matching(fresh, leaving) };
        (placed as u8, claim.saturating_sub(staying + released) as u8)
    }

    /// The nodes of every copy of a model, each once.
    fn nodes(&self, model: usize) -> impl Iterator<Item = BTreeSet<usize>> {
        let choices = &self.world.choices[model];
        let on = self.chosen[model].iter().map(|c| choices[*c].load.iter().map(|(node, _)| *node).collect());
        on.chain(self.world.away[model].iter().map(|node| BTreeSet::from([*node])))
    }

    /// Replicas up to the minimum that the worst losses of spot nodes leave; a copy over several is lost in any case.
    fn survivors(&self, model: usize) -> u8 {
        let problem = self.world.problem;
        let mut lost: BTreeMap<usize, usize> = BTreeMap::new();
        let mut count = 0_usize;
        for nodes in self.nodes(model) {
            let spot: Vec<usize> = nodes.into_iter().filter(|node| problem.nodes[*node].spot).collect();
            count += usize::from(spot.len() < 2);
            if let [node] = spot[..] {
                *lost.entry(node).or_default() += 1;
            }
        }
        let mut worst: Vec<usize> = lost.into_values().collect();
        worst.sort_unstable_by(|a, b| b.cmp(a));
        let lost: usize = worst.iter().take(problem.spot_hedge as usize).sum();
        (count - lost).min(problem.models[model].min as usize) as u8
    }

    /// Nodes beyond the first of models that should share few.
    fn beyond(&self) -> f64 {
        let packed = self.world.problem.models.iter().enumerate().filter(|(_, demand)| demand.pack);
        let nodes = packed.map(|(model, _)| self.nodes(model).flatten().collect::<BTreeSet<usize>>().len());
        nodes.map(|count| count.saturating_sub(1) as f64).sum()
    }

    /// Notes a layout where none with the same numbers is better.
    fn note(&mut self) {
        if self.world.hedges() {
            let models = self.chosen.len();
            (0..models).for_each(|model| self.key[2 * models + model] = self.survivors(model));
        }
        let busiest = self.load.iter().copied().fold(0.0, f64::max);
        let beyond = self.beyond();
        let weights = self.world.balance.iter().zip(&self.world.pack);
        let tail: Vec<f64> = self
            .tail
            .iter()
            .zip(weights)
            .map(|(sum, (balance, pack))| sum + balance * busiest + pack * beyond)
            .collect();
        match self.found.get_mut(&self.key) {
            None => {
                self.found.insert(self.key.clone(), tail);
            }
            Some(best) => {
                let differ = tail.iter().zip(best.iter()).find(|(a, b)| (*a - *b).abs() > 1e-7 * b.abs().max(1.0));
                if differ.is_some_and(|(new, old)| new < old) {
                    *best = tail;
                }
            }
        }
    }
}

/// How many of the leaving can be paired with a strictly better new one.
fn matching(mut fresh: Vec<u32>, mut leaving: Vec<u32>) -> usize {
    fresh.sort_unstable();
    leaving.sort_unstable();
    let mut pairs = 0;
    for old in leaving {
        if let Some(position) = fresh.iter().position(|new| *new < old) {
            fresh.remove(position);
            pairs += 1;
        }
    }
    pairs
}
