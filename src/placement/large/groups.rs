//! Equal nodes as classes, equal models as kinds, and what a kind may take of a class.
//!
//! Nodes are one class where every model sees the same in them; models are one kind where every node looks the same to
//! them. What tells the members apart (a name, bytes that lie on a disk) is looked at when counts become machines.

use std::collections::{BTreeMap, BTreeSet};

use super::near::Flows;
use crate::placement::layout::{Capacities, Copy, Layout, is_pinned, rounded, spread_value};
use crate::placement::ports::Ports;
use crate::placement::{Problem, Shape};

/// Equal nodes.
#[derive(Debug, Clone)]
pub struct Class {
    /// The nodes, ascending.
    pub nodes: Vec<usize>,
    /// The node whose supply is looked at.
    pub sample: usize,
    /// Indices of its card types.
    pub types: Vec<usize>,
}

/// Equal accelerators of a class, position by position.
#[derive(Debug, Clone)]
pub struct CardType {
    /// The class.
    pub class: usize,
    /// Positions on each of its nodes.
    pub positions: Vec<usize>,
    /// Bytes that a card may hold, in whole MiB; the most of any node.
    pub capacity: u64,
    /// Cards of this type in the class.
    pub cards: usize,
}

/// Equal models.
#[derive(Debug, Clone, Default)]
pub struct Kind {
    /// The models.
    pub models: Vec<usize>,
    /// Their rank.
    pub rank: u32,
    /// Whether they may displace lower ranks.
    pub preempts: bool,
    /// Replicas that may be placed, without the pinned ones.
    pub room: u32,
    /// Replicas up to the minimum, without the pinned ones.
    pub least: u32,
    /// Running instances that have a claim to stay.
    pub claim: u32,
    /// Ways to run them.
    pub ways: Vec<usize>,
}

/// One way to run the models of a kind on the nodes of a class.
#[derive(Debug, Clone)]
pub struct Way {
    /// The kind.
    pub kind: usize,
    /// The class of the shape's own node.
    pub class: usize,
    /// The shape by node; a single entry holds for the whole class.
    pub shapes: Vec<(usize, usize)>,
    /// Whether new copies may take it.
    pub fresh: bool,
    /// What a copy takes: items with the number of cards.
    pub takes: Vec<(usize, u32)>,
    /// Bytes of host memory by class, accelerators that share it included.
    pub hosts: Vec<(usize, u64)>,
    /// Running instances in this way by what losing their place costs, in thousandths.
    pub running: BTreeMap<u64, u32>,
}

impl Way {
    /// The index of the shape for a node of the class.
    pub fn shape_at(&self, node: usize) -> Option<usize> {
        match &self.shapes[..] {
            [(_, shape)] => Some(*shape),
            many => many.binary_search_by_key(&node, |(n, _)| *n).ok().map(|at| many[at].1),
        }
    }
}

/// A part of a size on one card out of some.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Item {
    /// Card types that may hold it.
    pub types: Vec<usize>,
    /// Positions on a node of the class, those of all types.
    pub group: Vec<usize>,
    /// Cards of one node that it takes at once.
    pub width: u32,
    /// Bytes on each.
    pub bytes: u64,
}

/// Everything that is grouped.
pub struct Groups<'p> {
    /// The problem.
    pub problem: &'p Problem,
    /// What nodes may give.
    pub capacities: Capacities,
    /// Ports that they may give.
    pub ports: Ports,
    /// Running instances that may stay.
    pub keepable: Layout,
    /// Per model: pinned replicas.
    pub pinned: Vec<u32>,
    /// What models send, where the tiers look at it.
    pub flows: Option<Flows<'p>>,
    /// Whether a limit on traffic says where models may be.
    pub limited: bool,
    /// Nodes of the pinned replicas, by model.
    pub away: BTreeMap<usize, Vec<usize>>,
    /// Losses of spot nodes that minimum replicas should outlast; 0 where there is nothing to lose.
    pub hedge: u32,
    /// Per model: replicas that may be placed, without the pinned ones.
    pub room: Vec<u32>,
    /// Per model: running instances that have a claim to stay.
    pub claim: Vec<u32>,
    /// Classes.
    pub classes: Vec<Class>,
    /// Per node: its class.
    pub class_of: Vec<usize>,
    /// Card types.
    pub types: Vec<CardType>,
    /// Kinds.
    pub kinds: Vec<Kind>,
    /// Per model: its kind.
    pub kind_of: Vec<usize>,
    /// Ways.
    pub ways: Vec<Way>,
    /// Items.
    pub items: Vec<Item>,
    /// Nodes that have the weights of a revision.
    pub having: BTreeMap<&'p str, Vec<usize>>,
    /// Per model: the way of each of its shapes, where it has one.
    pub way_of: Vec<Vec<usize>>,
    /// What accelerators cost, by node.
    pub costs: Vec<Vec<f64>>,
}

/// What tells two shapes apart, but for their node and what lies on its disk.
type Look = (Vec<usize>, u32, bool, u64, u64, u64, bool, u32, u64, Vec<(Option<usize>, Vec<usize>, u32, u64, u64)>);

fn look(problem: &Problem, model: usize, shape: &Shape) -> Look {
    let demand = &problem.models[model];
    // Another node than its own is that very one.
    let away = |node: usize| (node != shape.node).then_some(node);
    let further = shape.further.iter();
    (
        shape.group.clone(),
        shape.ranks,
        shape.pipeline,
        shape.claimed(),
        shape.per_accelerator.total_bytes(),
        shape.host.total_bytes(),
        shape.keep_only,
        demand.loss(shape),
        shape.slowness().to_bits(),
        further.map(|p| (away(p.node), p.group.clone(), p.ranks, p.claimed(), p.host.total_bytes())).collect(),
    )
}

impl<'p> Groups<'p> {
    /// Groups a problem whose accelerators cost so much, where so many losses of spot nodes should be outlasted.
    pub fn new(problem: &'p Problem, costs: Vec<Vec<f64>>, hedge: u32) -> Self {
        let at = shapes_at(problem);
        let keepable = keepable(problem, &at);
        let away = away(problem);
        let pinned: Vec<u32> =
            (0..problem.models.len()).map(|m| away.get(&m).map_or(0, |nodes| nodes.len() as u32)).collect();
        let capacities = Capacities::of(problem, &keepable);
        let mut kept = vec![0; problem.models.len()];
        keepable.iter().for_each(|copy| kept[copy.model] += 1);
        let mut room = Vec::new();
        for (index, model) in problem.models.iter().enumerate() {
            let held = if model.protected { kept[index] } else { 0 };
            room.push(model.desired.saturating_sub(pinned[index]).max(held));
        }
        let claim = kept.iter().zip(&room).map(|(kept, room)| *kept.min(room)).collect();
        let mut this = Self {
            problem,
            capacities,
            ports: Ports::of(problem),
            keepable,
            pinned,
            flows: Flows::of(problem, &away),
            limited: crate::placement::exact::traffic::limited(problem).contains(&true),
            away,
            hedge,
            room,
            claim,
            classes: Vec::new(),
            class_of: Vec::new(),
            types: Vec::new(),
            kinds: Vec::new(),
            kind_of: Vec::new(),
            ways: Vec::new(),
            items: Vec::new(),
            having: BTreeMap::new(),
            way_of: problem.models.iter().map(|m| vec![usize::MAX; m.shapes.len()]).collect(),
            costs,
        };
        for (index, node) in problem.nodes.iter().enumerate() {
            node.weights.iter().for_each(|revision| this.having.entry(revision).or_default().push(index));
        }
        this.classify(&at);
        this.card_types();
        this.kinds();
        this.ways(&at);
        this.running();
        this
    }

    fn classify(&mut self, at: &[BTreeMap<usize, Vec<usize>>]) {
        let problem = self.problem;
        self.class_of = vec![usize::MAX; problem.nodes.len()];
        for (node, stands) in problem.alike.iter().enumerate() {
            if stands.first() == Some(&node) && stands.len() > 1 {
                let mut nodes = stands.clone();
                nodes.sort_unstable();
                nodes.iter().for_each(|n| self.class_of[*n] = self.classes.len());
                self.classes.push(Class { nodes, sample: node, types: Vec::new() });
            }
        }
        // Those that no one stands for: equal where their supply and every model's shapes are.
        let mut looks: BTreeMap<Look, usize> = BTreeMap::new();
        let mut seen: Vec<Vec<(usize, usize)>> = vec![Vec::new(); problem.nodes.len()];
        for (model, shapes) in at.iter().enumerate() {
            for (node, shapes) in shapes {
                for shape in shapes {
                    let shape = &problem.models[model].shapes[*shape];
                    let next = looks.len();
                    seen[*node].push((model, *looks.entry(look(problem, model, shape)).or_insert(next)));
                }
            }
        }
        // A node that a model prefers by its name is like no other.
        let prefers = problem.models.iter().flat_map(|model| &model.prefer);
        let named: BTreeSet<&str> =
            prefers.filter(|(label, ..)| label == "node").map(|(_, is, _)| is.as_str()).collect();
        let mut classes: BTreeMap<_, usize> = BTreeMap::new();
        for (node, supply) in problem.nodes.iter().enumerate() {
            if self.class_of[node] != usize::MAX {
                continue;
            }
            let cards: Vec<_> = supply
                .accelerators
                .iter()
                .map(|a| (a.kind.as_str(), a.capacity_bytes, a.total_bytes, a.unified, a.healthy))
                .collect();
            let labels: Vec<_> = supply.labels.iter().filter(|(label, _)| *label != "node").collect();
            let state = (supply.closed.is_some(), supply.reachable, supply.member, supply.drained, supply.spot);
            let price = supply.price_per_hour.map(f64::to_bits);
            let name = supply.labels.get("node").filter(|name| named.contains(name.as_str()));
            let key = (cards, supply.host_capacity_bytes, labels, state, (price, name), &seen[node]);
            let class = *classes.entry(key).or_insert_with(|| {
                self.classes.push(Class { nodes: Vec::new(), sample: node, types: Vec::new() });
                self.classes.len() - 1
            });
            self.classes[class].nodes.push(node);
            self.class_of[node] = class;
        }
    }

    /// Cards of a class are one type where kind and capacity agree and the same shapes may take them.
    fn card_types(&mut self) {
        let problem = self.problem;
        let mut groups: BTreeMap<usize, Vec<&[usize]>> = BTreeMap::new();
        for model in &problem.models {
            for shape in &model.shapes {
                let own = (shape.node, &shape.group[..]);
                for (node, group) in std::iter::once(own).chain(shape.further.iter().map(|p| (p.node, &p.group[..]))) {
                    let class = self.class_of[node];
                    if node == self.classes[class].sample {
                        groups.entry(class).or_default().push(group);
                    }
                }
            }
        }
        for (index, class) in self.classes.iter_mut().enumerate() {
            let mut groups = groups.remove(&index).unwrap_or_default();
            groups.sort_unstable();
            groups.dedup();
            let mut types: BTreeMap<_, Vec<usize>> = BTreeMap::new();
            for (position, card) in problem.nodes[class.sample].accelerators.iter().enumerate() {
                let of: Vec<usize> = (0..groups.len()).filter(|g| groups[*g].contains(&position)).collect();
                let capacity = self.capacities.exact.accelerators[class.sample][position];
                types.entry((&card.kind, capacity, card.unified, of)).or_default().push(position);
            }
            for positions in types.into_values() {
                let of = |node: &usize| positions.iter().map(|p| self.capacities.bound.accelerators[*node][*p]).max();
                let capacity = class.nodes.iter().filter_map(of).max().unwrap_or(0);
                class.types.push(self.types.len());
                let cards = positions.len() * class.nodes.len();
                self.types.push(CardType { class: index, positions, capacity, cards });
            }
        }
    }

    fn kinds(&mut self) {
        let problem = self.problem;
        // Where one of these may be depends on where others are.
        let limited = crate::placement::exact::traffic::limited(problem);
        let mut looks: BTreeMap<(usize, usize, u64, Look), usize> = BTreeMap::new();
        let mut kinds: BTreeMap<_, usize> = BTreeMap::new();
        for (index, model) in problem.models.iter().enumerate() {
            let mut shapes = Vec::with_capacity(model.shapes.len());
            for shape in &model.shapes {
                let next = looks.len();
                let key = (shape.node, shape.candidate, shape.fetch_bytes, look(problem, index, shape));
                shapes.push(*looks.entry(key).or_insert(next));
            }
            let quotas: Vec<usize> =
                (0..problem.quotas.len()).filter(|q| problem.quotas[*q].models.contains(&model.name)).collect();
            // Weights that lie somewhere tell models apart.
            let revisions: Vec<Option<&str>> = model
                .candidates
                .iter()
                .map(|c| Some(c.revision.as_str()).filter(|revision| self.having.contains_key(revision)))
                .collect();
            let own = (model.protected || limited[index]).then_some(index);
            let own = (own, &model.spread_by, &model.prefer, model.pack);
            let key = (model.rank, model.preempts, own, quotas, revisions, shapes);
            let kind = *kinds.entry(key).or_insert_with(|| {
                self.kinds.push(Kind { rank: model.rank, preempts: model.preempts, ..Kind::default() });
                self.kinds.len() - 1
            });
            let entry = &mut self.kinds[kind];
            entry.models.push(index);
            entry.room += self.room[index];
            entry.least += model.min.saturating_sub(self.pinned[index]);
            entry.claim += self.claim[index];
            self.kind_of.push(kind);
        }
    }

    fn ways(&mut self, at: &[BTreeMap<usize, Vec<usize>>]) {
        let mut items: BTreeMap<Item, usize> = BTreeMap::new();
        for kind in 0..self.kinds.len() {
            let model = self.kinds[kind].models[0];
            let of_class: BTreeMap<usize, usize> = at[model].keys().map(|node| (self.class_of[*node], *node)).collect();
            for class in of_class.keys() {
                let nodes: Vec<usize> =
                    self.classes[*class].nodes.iter().copied().filter(|n| at[model].contains_key(n)).collect();
                for nth in 0..at[model][&nodes[0]].len() {
                    let shapes: Vec<(usize, usize)> =
                        nodes.iter().filter_map(|n| at[model][n].get(nth).map(|s| (*n, *s))).collect();
                    let way = self.way(kind, *class, shapes, &mut items);
                    for (_, shape) in &way.shapes {
                        for model in self.kinds[kind].models.clone() {
                            self.way_of[model][*shape] = self.ways.len();
                        }
                    }
                    self.kinds[kind].ways.push(self.ways.len());
                    self.ways.push(way);
                }
            }
        }
        let mut list: Vec<(Item, usize)> = items.into_iter().collect();
        list.sort_by_key(|(_, index)| *index);
        self.items = list.into_iter().map(|(item, _)| item).collect();
    }

    fn way(&self, kind: usize, class: usize, shapes: Vec<(usize, usize)>, items: &mut BTreeMap<Item, usize>) -> Way {
        let problem = self.problem;
        let shape = &problem.models[self.kinds[kind].models[0]].shapes[shapes[0].1];
        let own = (shape.node, &shape.group, shape.ranks, shape.claimed(), shape.host.total_bytes());
        let further = shape.further.iter().map(|p| (p.node, &p.group, p.ranks, p.claimed(), p.host.total_bytes()));
        let mut way = Way {
            kind,
            class,
            shapes,
            fresh: !shape.keep_only,
            takes: Vec::new(),
            hosts: Vec::new(),
            running: BTreeMap::new(),
        };
        for (node, group, ranks, bytes, host) in std::iter::once(own).chain(further) {
            let class = self.class_of[node];
            let sample = self.classes[class].sample;
            let supply = &problem.nodes[sample];
            let exact = &self.capacities.exact;
            let fits = |p: &&usize| supply.accelerators[**p].healthy && bytes <= exact.accelerators[sample][**p];
            let open: Vec<usize> = group.iter().filter(fits).copied().collect();
            way.fresh &= supply.closed.is_none() && open.len() >= ranks as usize && host <= exact.host[sample];
            let mut pool = rounded(host, exact.host[sample]);
            if ranks > 0 {
                let any = |t: &&usize| self.types[**t].positions.iter().any(|p| group.contains(p));
                let types: Vec<usize> = self.classes[class].types.iter().filter(any).copied().collect();
                let shared = group.iter().filter(|p| supply.accelerators[**p].unified).count();
                // Cards of a group are of one kind: all share the host's memory, or none does.
                if shared == group.len() {
                    pool += u64::from(ranks) * rounded(bytes, exact.host[sample]);
                }
                let next = items.len();
                let item = Item { types, group: group.clone(), width: ranks, bytes };
                way.takes.push((*items.entry(item).or_insert(next), ranks));
            }
            if pool > 0 {
                way.hosts.push((class, pool));
            }
        }
        way
    }

    fn running(&mut self) {
        for copy in &self.keepable {
            let way = self.way_of[copy.model][copy.shape];
            let Some(index) = copy.kept else { continue };
            if let Some(way) = self.ways.get_mut(way) {
                let weight = (self.problem.running[index].weight() * 1_000.0).floor() as u64;
                *way.running.entry(weight).or_default() += 1;
            }
        }
    }

    /// A shape of a way, as its first model has it on the class's first node.
    pub fn sample(&self, way: usize) -> &'p Shape {
        let way = &self.ways[way];
        &self.problem.models[self.kinds[way.kind].models[0]].shapes[way.shapes[0].1]
    }

    /// Quality ranks below the best.
    pub fn deficit(&self, way: usize) -> u32 {
        self.problem.models[self.kinds[self.ways[way].kind].models[0]].deficit(self.sample(way))
    }

    /// Total memory of the accelerators that a copy takes, in bytes.
    pub fn total(&self, way: usize) -> u64 {
        let takes = self.ways[way].takes.iter();
        takes.map(|(item, ranks)| u64::from(*ranks) * self.card_total(*item)).sum()
    }

    /// Bytes that a copy takes on accelerators and hosts.
    pub fn claimed(&self, way: usize) -> u64 {
        let way = &self.ways[way];
        let cards = way.takes.iter().map(|(item, ranks)| u64::from(*ranks) * self.items[*item].bytes);
        cards.chain(way.hosts.iter().map(|(_, bytes)| *bytes)).sum()
    }

    /// Total memory of the smallest card that may hold an item.
    pub fn card_total(&self, item: usize) -> u64 {
        let total = |t: &usize| {
            let card = &self.types[*t];
            self.problem.nodes[self.classes[card.class].sample].accelerators[card.positions[0]].total_bytes
        };
        self.items[item].types.iter().map(total).min().unwrap_or(0)
    }

    /// What the cheapest accelerators for a copy cost.
    pub fn cost(&self, way: usize) -> f64 {
        let least = |item: &usize| {
            let cards = self.items[*item].types.iter().map(|t| &self.types[*t]);
            let costs = cards.flat_map(|c| c.positions.iter().map(|p| self.costs[self.classes[c.class].sample][*p]));
            costs.reduce(f64::min).unwrap_or(0.0)
        };
        self.ways[way].takes.iter().map(|(item, ranks)| f64::from(*ranks) * least(item)).sum()
    }

    /// Bytes to bring for a copy of a shape on a node.
    pub fn fetch(&self, model: usize, shape: usize, node: usize) -> u64 {
        let demand = &self.problem.models[model];
        let shape = &demand.shapes[shape];
        let here = |revision: &str| !revision.is_empty() && self.problem.nodes[node].weights.contains(revision);
        if demand.candidates.get(shape.candidate).is_some_and(|c| here(&c.revision)) { 0 } else { shape.fetch_bytes }
    }

    /// Nodes of a way's class that have its weights already, where others would have to bring them.
    pub fn near(&self, way: usize) -> Vec<usize> {
        let of = &self.ways[way];
        let shape = self.sample(way);
        let demand = &self.problem.models[self.kinds[of.kind].models[0]];
        let Some(candidate) = demand.candidates.get(shape.candidate).filter(|_| shape.fetch_bytes > 0) else {
            return Vec::new();
        };
        let nodes = self.having.get(candidate.revision.as_str()).map_or(&[][..], Vec::as_slice);
        nodes.iter().copied().filter(|node| self.class_of[*node] == of.class).collect()
    }

    /// Bytes of an item as they count on a card of a type.
    pub fn size(&self, item: usize, card: usize) -> u64 {
        let card = &self.types[card];
        let sample = self.classes[card.class].sample;
        rounded(self.items[item].bytes, self.capacities.exact.accelerators[sample][card.positions[0]])
    }

    /// Distinct values of a spread label in a class.
    pub fn values(&self, label: &str, class: usize) -> usize {
        let mut values: Vec<&str> =
            self.classes[class].nodes.iter().map(|n| spread_value(self.problem, label, *n)).collect();
        values.sort_unstable();
        values.dedup();
        values.len()
    }
}

/// Per model and node: its shapes there.
fn shapes_at(problem: &Problem) -> Vec<BTreeMap<usize, Vec<usize>>> {
    let of = |model: &crate::placement::ModelDemand| {
        let mut at: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (index, shape) in model.shapes.iter().enumerate() {
            at.entry(shape.node).or_default().push(index);
        }
        at
    };
    problem.models.iter().map(of).collect()
}

/// The running instances that may keep their place, in the order of the instances.
fn keepable(problem: &Problem, at: &[BTreeMap<usize, Vec<usize>>]) -> Layout {
    let stand = problem.representatives();
    let mut copies = Layout::new();
    for (index, running) in problem.running.iter().enumerate() {
        let (Some(model), Some(node)) = (problem.model(&running.model), problem.node(&running.node)) else { continue };
        let demand = &problem.models[model];
        let supply = &problem.nodes[node];
        let on: Option<Vec<usize>> = running.accelerators.iter().map(|uuid| supply.position(uuid)).collect();
        let leaves = supply.drained && !demand.protected;
        let Some(on) = on.filter(|_| supply.member && supply.reachable && !leaves) else { continue };
        if !running.further.is_empty() {
            // Over several nodes, each of which is a class of its own.
            copies.extend(crate::placement::layout::keepable_one(problem, index));
            continue;
        }
        let healthy = on.iter().all(|position| supply.accelerators[*position].healthy);
        let shapes = at[model].get(&stand[node]).map_or(&[][..], Vec::as_slice);
        let shape = shapes.iter().copied().find(|s| {
            let s = &demand.shapes[*s];
            Some(s.engine) == running.engine
                && s.layers == running.layers
                && demand.candidates.get(s.candidate).is_some_and(|c| c.label == running.variant)
                && s.takes(&on)
        });
        if let Some(shape) = shape.filter(|_| healthy || demand.protected) {
            copies.push(Copy::running(problem, index, (model, shape), node, on));
        }
    }
    copies
}

/// Nodes of the instances on nodes whose facts are unknown, by model.
fn away(problem: &Problem) -> BTreeMap<usize, Vec<usize>> {
    let mut found: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    if problem.nodes.iter().all(|n| n.reachable) {
        return found;
    }
    for running in problem.running.iter().filter(|r| is_pinned(problem, r)) {
        if let (Some(model), Some(node)) = (problem.model(&running.model), problem.node(&running.node)) {
            found.entry(model).or_default().push(node);
        }
    }
    found
}
