//! Traffic of a large cluster: what it costs where copies are on named machines, and copies that are brought nearer to what
//! they talk to. Bounds know only that nothing costs less than nothing.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use super::floor::Floor;
use super::goal;
use super::groups::Groups;
use crate::placement::build::distances::cost;
use crate::placement::exact::traffic::conflict;
use crate::placement::layout::Copy;
use crate::placement::{End, Problem, Term, Traffic, Ways};

/// Copies of every model by their own node.
pub type Places = Vec<BTreeMap<usize, u32>>;

/// Egress nodes of a way out that are looked at, those that connect fastest.
const VIAS: usize = 64;
/// New copies of a model that are looked at.
const COPIES: usize = 64;
/// Nodes that each of them is tried on.
const TARGETS: usize = 12;
/// Nodes beside one that something is on, the nearest.
const BESIDE: usize = 6;

/// What one model sends to one other end, with the weights of its turns.
struct Sent<'p> {
    from: usize,
    parts: Vec<(Ways<'p>, f64)>,
    limit: Option<u64>,
    known: RefCell<BTreeMap<(usize, usize), f64>>,
}

impl Sent<'_> {
    fn turn(&self, from: &str, to: &str) -> f64 {
        self.parts.iter().map(|(ways, weight)| weight * ways.cost(from, to)).sum()
    }
}

/// Traffic between models, or with a node.
struct Between<'p> {
    sent: Sent<'p>,
    /// The other model.
    to: Option<usize>,
    /// Nodes where the other end is whatever is decided.
    fixed: BTreeSet<usize>,
}

/// A way out: what connecting through a node costs, and what is sent through it. Its nodes need not be near any model.
struct Out<'p> {
    vias: Vec<(f64, &'p str)>,
    sent: Vec<Sent<'p>>,
}

/// All traffic of a problem.
pub struct Flows<'p> {
    problem: &'p Problem,
    between: Vec<Between<'p>>,
    outs: Vec<Out<'p>>,
    /// By node, the nearest others.
    beside: BTreeMap<usize, Vec<usize>>,
}

impl<'p> Flows<'p> {
    /// Of a problem; `None` where nothing is sent, or its tiers do not look at it.
    pub fn of(problem: &'p Problem, away: &BTreeMap<usize, Vec<usize>>) -> Option<Self> {
        let weighed = |(term, weight): &(Term, f64)| *term == Term::Traffic && *weight > 0.0;
        if problem.traffic.is_empty() || !problem.tail.iter().any(|tier| tier.terms.iter().any(weighed)) {
            return None;
        }
        let mut this = Self { problem, between: Vec::new(), outs: Vec::new(), beside: BTreeMap::new() };
        let mut flows: BTreeMap<(usize, &End), Vec<&'p Traffic>> = BTreeMap::new();
        for traffic in &problem.traffic {
            if let Some(from) = problem.model(&traffic.from) {
                flows.entry((from, &traffic.to)).or_default().push(traffic);
            }
        }
        let mut through: BTreeMap<&str, Vec<Sent<'p>>> = BTreeMap::new();
        for ((from, end), parts) in flows {
            let limit = parts.iter().filter_map(|part| part.max_latency_us).min();
            let of = |part: &&'p Traffic| (problem.distances.ways(part.bytes_per_turn), part.weight);
            let sent = Sent { from, parts: parts.iter().map(of).collect(), limit, known: RefCell::default() };
            match end {
                End::Model(name) => {
                    let Some(to) = problem.model(name) else { continue };
                    let fixed = away.get(&to).into_iter().flatten().copied().collect();
                    this.between.push(Between { sent, to: Some(to), fixed });
                }
                End::Node(name) => {
                    let Some(node) = problem.node(name) else { continue };
                    this.between.push(Between { sent, to: None, fixed: BTreeSet::from([node]) });
                }
                End::Out(key) => through.entry(key).or_default().push(sent),
            }
        }
        for (key, sent) in through {
            this.outs.extend(this.out(key, sent));
        }
        this.beside = beside(problem);
        Some(this)
    }

    fn out(&self, key: &str, sent: Vec<Sent<'p>>) -> Option<Out<'p>> {
        let way = self.problem.ways_out.iter().find(|way| way.key() == key)?;
        let open = || way.via.iter().filter(|via| via.closed.is_none());
        let measured = open().any(|via| via.connect_us.is_some());
        let mut vias: Vec<(u64, f64, &str)> = Vec::new();
        for via in open() {
            let near = |us: &u64| way.max_latency_us.is_none_or(|limit| *us <= limit);
            let (us, price) = match via.connect_us {
                Some(us) if near(&us) => (us, cost(us as f64 / 1e6)),
                None if !measured => (0, 1.0),
                Some(_) | None => continue,
            };
            vias.push((us, price, &via.node));
        }
        vias.sort_by(|a, b| (a.0, a.2).cmp(&(b.0, b.2)));
        vias.truncate(VIAS);
        Some(Out { vias: vias.into_iter().map(|(_, price, node)| (price, node)).collect(), sent })
    }

    fn name(&self, node: usize) -> &'p str {
        &self.problem.nodes[node].name
    }

    /// What one turn of everything costs from one node to another.
    fn turn(&self, sent: &Sent<'p>, from: usize, to: usize) -> f64 {
        if from == to {
            return 0.0;
        }
        let mut known = sent.known.borrow_mut();
        *known.entry((from, to)).or_insert_with(|| sent.turn(self.name(from), self.name(to)))
    }

    fn of_between(&self, flow: &Between<'p>, places: &Places) -> f64 {
        let there = flow.to.map(|to| &places[to]);
        let ends = || there.into_iter().flat_map(BTreeMap::keys).chain(&flow.fixed).copied();
        let each = |(node, count): (&usize, &u32)| {
            if flow.fixed.contains(node) || there.is_some_and(|there| there.contains_key(node)) {
                return 0.0;
            }
            let nearest = ends().map(|end| self.turn(&flow.sent, *node, end)).reduce(f64::min);
            f64::from(*count) * nearest.unwrap_or(0.0)
        };
        places[flow.sent.from].iter().map(each).sum()
    }

    /// The least of the egress nodes that no limit forbids; nothing where all are.
    fn of_out(&self, out: &Out<'p>, places: &Places) -> f64 {
        let mut best: Option<f64> = None;
        for (index, (price, via)) in out.vias.iter().enumerate() {
            let mut sum = *price;
            let mut far = false;
            for sent in &out.sent {
                for (node, count) in &places[sent.from] {
                    let rtt = sent.limit.and_then(|_| self.problem.distances.rtt_us(self.name(*node), via));
                    far |= rtt.zip(sent.limit).is_some_and(|(rtt, limit)| rtt > limit);
                    let mut known = sent.known.borrow_mut();
                    let turn = known.entry((*node, index)).or_insert_with(|| sent.turn(self.name(*node), via));
                    sum += f64::from(*count) * *turn;
                }
            }
            if !far && best.is_none_or(|best| sum < best) {
                best = Some(sum);
            }
        }
        best.unwrap_or(0.0)
    }

    /// What all traffic costs.
    pub fn all(&self, places: &Places) -> f64 {
        let between = self.between.iter().map(|flow| self.of_between(flow, places));
        between.chain(self.outs.iter().map(|out| self.of_out(out, places))).sum()
    }

    /// What traffic with one model costs.
    fn with(&self, model: usize, places: &Places) -> f64 {
        let between = self.between.iter().filter(|flow| flow.sent.from == model || flow.to == Some(model));
        let between = between.map(|flow| self.of_between(flow, places));
        let outs = self.outs.iter().filter(|out| out.sent.iter().any(|sent| sent.from == model));
        between.chain(outs.map(|out| self.of_out(out, places))).sum()
    }

    /// Models that send or are sent to.
    fn models(&self) -> BTreeSet<usize> {
        let between = self.between.iter().flat_map(|flow| flow.to.into_iter().chain([flow.sent.from]));
        between.chain(self.outs.iter().flat_map(|out| out.sent.iter().map(|sent| sent.from))).collect()
    }

    /// Nodes near what a model talks to, nearest first.
    fn targets(&self, model: usize, places: &Places) -> Vec<usize> {
        let mut ends: BTreeSet<usize> = BTreeSet::new();
        for flow in &self.between {
            if flow.sent.from == model {
                ends.extend(flow.to.into_iter().flat_map(|to| places[to].keys()).chain(&flow.fixed));
            } else if flow.to == Some(model) {
                ends.extend(places[flow.sent.from].keys());
            }
        }
        for out in self.outs.iter().filter(|out| out.sent.iter().any(|sent| sent.from == model)) {
            ends.extend(out.vias.iter().filter_map(|(_, node)| self.problem.node(node)).take(BESIDE));
        }
        let mut all: Vec<usize> = ends.iter().copied().collect();
        let more = ends.iter().filter_map(|end| self.beside.get(end)).flatten();
        all.extend(more.copied().filter(|node| !ends.contains(node)).collect::<BTreeSet<usize>>());
        all
    }
}

/// By node, the others with the shortest round trips.
fn beside(problem: &Problem) -> BTreeMap<usize, Vec<usize>> {
    let mut near: BTreeMap<usize, BTreeSet<(u64, usize)>> = BTreeMap::new();
    for ((a, b), (rtt, _)) in &problem.distances.between {
        let (Some(a), Some(b)) = (problem.node(a), problem.node(b)) else { continue };
        for (one, other) in [(a, b), (b, a)] {
            let of = near.entry(one).or_default();
            of.insert((*rtt, other));
            if of.len() > BESIDE {
                of.pop_last();
            }
        }
    }
    near.into_iter().map(|(node, of)| (node, of.into_iter().map(|(_, other)| other).collect())).collect()
}

/// Copies by model and their own node.
pub fn places<'c>(models: usize, copies: impl Iterator<Item = &'c Copy>) -> Places {
    let mut places = vec![BTreeMap::new(); models];
    copies.for_each(|copy| *places[copy.model].entry(copy.node).or_default() += 1);
    places
}

/// Whether all limits on traffic between models, and with nodes, hold.
pub fn within_limits(problem: &Problem, layout: &[Copy]) -> bool {
    let limited: BTreeSet<usize> = problem
        .traffic
        .iter()
        .filter(|traffic| traffic.max_latency_us.is_some() && !matches!(traffic.to, End::Out(_)))
        .filter_map(|traffic| problem.model(&traffic.from))
        .collect();
    let there: BTreeSet<(usize, usize)> =
        layout.iter().filter(|copy| limited.contains(&copy.model)).map(|copy| (copy.model, copy.node)).collect();
    there.into_iter().all(|(model, node)| conflict(problem, layout, model, node).is_none())
}

/// Moves new copies nearer to what they talk to, where that costs less in all.
pub fn draw_near(groups: &Groups<'_>, floor: &mut Floor<'_, '_>) {
    let Some(flows) = &groups.flows else { return };
    let mut places = places(groups.problem.models.len(), floor.copies.iter().flatten());
    for model in flows.models() {
        let new = |slot: &usize| floor.copies[*slot].as_ref().is_some_and(|c| c.model == model && c.kept.is_none());
        let slots: Vec<usize> = (0..floor.copies.len()).filter(new).take(COPIES).collect();
        for slot in slots {
            let Some(copy) = floor.take(slot) else { continue };
            let outlast = floor.survivors(model);
            let better = nearer(groups, flows, floor, &copy, &mut places);
            let put = floor.put(better.clone().unwrap_or_else(|| copy.clone()));
            if better.is_some() && floor.survivors(model) < outlast {
                floor.take(put);
                if let Some(better) = better {
                    step(&mut places, &better, false);
                    step(&mut places, &copy, true);
                }
                floor.put(copy);
            }
        }
    }
}

fn step(places: &mut Places, copy: &Copy, add: bool) {
    let here = places[copy.model].entry(copy.node).or_default();
    *here = if add { *here + 1 } else { here.saturating_sub(1) };
    if *here == 0 {
        places[copy.model].remove(&copy.node);
    }
}

/// The best of the places near what a copy talks to, if it costs less there than where it is; `places` follow it.
fn nearer(
    groups: &Groups<'_>,
    flows: &Flows<'_>,
    floor: &Floor<'_, '_>,
    copy: &Copy,
    places: &mut Places,
) -> Option<Copy> {
    let model = copy.model;
    let counted = |copy: &Copy, places: &Places| goal::counted(groups, model, &[copy], flows.with(model, places));
    let mut least = counted(copy, places);
    step(places, copy, false);
    let targets: Vec<usize> = flows.targets(model, places).into_iter().filter(|node| *node != copy.node).collect();
    let kind = &groups.kinds[groups.kind_of[model]];
    let mut found = None;
    for node in targets.into_iter().take(TARGETS) {
        let here = |way: &&usize| groups.ways[**way].fresh && groups.ways[**way].class == groups.class_of[node];
        for way in kind.ways.iter().filter(here) {
            let Some(other) = floor.place_at(model, *way, node) else { continue };
            step(places, &other, true);
            let cost = counted(&other, places);
            step(places, &other, false);
            if goal::less(&cost, &least) {
                (least, found) = (cost, Some(other));
            }
        }
    }
    step(places, found.as_ref().unwrap_or(copy), true);
    found
}
