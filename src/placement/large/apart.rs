//! Parts of a problem that nothing connects: solved by themselves, on several threads where wanted, and put together in
//! their order, so that the answer is the same with any number of threads.
//!
//! Models are connected where they may run on equal nodes, where they run on one node, by a quota, or by what they send to
//! each other or through the same way out. The strict tiers are sums over the models, so the best of every part is the
//! best of all. Only the balance is shared: every part counts a share of its weight, which is never more than what all
//! count together, so bounds stay true.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use super::run::{self, Decided, Solved};
use crate::placement::build::price;
use crate::placement::exact::tiers::{Answer, Event, Watch};
use crate::placement::{Distances, End, Limits, Problem, Shape, TailTier, Term, Tier};

/// Solves all tiers of a large problem.
pub fn solve(problem: &Problem, limits: &Limits, events: Watch<'_>) -> Answer {
    let parts = parts(problem);
    let costs = price::costs(problem);
    // A part without spot nodes has replicas that outlast their loss, too.
    let spot = problem.nodes.iter().any(|node| node.spot && node.member);
    let hedge = if spot { problem.spot_hedge } else { 0 };
    if parts.len() < 2 {
        let solved = run::solve(problem, costs, hedge, limits, events);
        events.tell(Event::Columns { columns: solved.size.0, rows: solved.size.1 });
        let tiers = stated(solved.tiers);
        return Answer { layout: solved.layout, tiers, aborted: solved.aborted };
    }
    let solved = shared_out(problem, &costs, &parts, hedge, limits, events);
    together(problem, &parts, solved, events)
}

/// Models and nodes that are connected, both ascending.
#[derive(Debug, Default)]
struct Part {
    models: Vec<usize>,
    nodes: Vec<usize>,
    /// Indices of what runs of its models.
    running: Vec<usize>,
}

/// Joins sets; a set is named by its least member.
struct Sets(Vec<usize>);

impl Sets {
    fn of(&mut self, mut one: usize) -> usize {
        while self.0[one] != one {
            self.0[one] = self.0[self.0[one]];
            one = self.0[one];
        }
        one
    }

    fn join(&mut self, one: usize, other: usize) {
        let (one, other) = (self.of(one), self.of(other));
        self.0[one.max(other)] = one.min(other);
    }
}

fn parts(problem: &Problem) -> Vec<Part> {
    let nodes = problem.nodes.len();
    let mut sets = Sets((0..nodes + problem.models.len()).collect());
    for alike in &problem.alike {
        alike.iter().skip(1).for_each(|other| sets.join(alike[0], *other));
    }
    let mut homeless: Option<usize> = None;
    for (index, model) in problem.models.iter().enumerate() {
        for shape in &model.shapes {
            sets.join(shape.node, nodes + index);
            shape.further.iter().for_each(|part| sets.join(part.node, nodes + index));
        }
        // What can run nowhere is one part.
        if model.shapes.is_empty() {
            sets.join(*homeless.get_or_insert(nodes + index), nodes + index);
        }
    }
    for quota in &problem.quotas {
        let mut models = quota.models.iter().filter_map(|name| problem.model(name));
        if let Some(first) = models.next() {
            models.for_each(|other| sets.join(nodes + first, nodes + other));
        }
    }
    let mut through: BTreeMap<&str, usize> = BTreeMap::new();
    for traffic in &problem.traffic {
        let Some(from) = problem.model(&traffic.from).map(|model| nodes + model) else { continue };
        match &traffic.to {
            End::Model(to) => problem.model(to).into_iter().for_each(|to| sets.join(from, nodes + to)),
            End::Node(name) => problem.node(name).into_iter().for_each(|node| sets.join(from, node)),
            End::Out(key) => sets.join(*through.entry(key).or_insert(from), from),
        }
    }
    let mut running = Vec::new();
    for (index, instance) in problem.running.iter().enumerate() {
        let Some(model) = problem.model(&instance.model) else { continue };
        running.push((index, model));
        if let Some(node) = problem.node(&instance.node) {
            sets.join(node, nodes + model);
        }
    }
    let mut parts: BTreeMap<usize, Part> = BTreeMap::new();
    for model in 0..problem.models.len() {
        parts.entry(sets.of(nodes + model)).or_default().models.push(model);
    }
    for node in 0..nodes {
        if let Some(part) = parts.get_mut(&sets.of(node)) {
            part.nodes.push(node);
        }
    }
    for (index, model) in running {
        parts.entry(sets.of(nodes + model)).or_default().running.push(index);
    }
    parts.into_values().collect()
}

impl Part {
    /// The part as a problem; `share` of the weight of the balance is its own.
    fn problem(&self, whole: &Problem, share: f64) -> Problem {
        let mut at = vec![usize::MAX; whole.nodes.len()];
        self.nodes.iter().enumerate().for_each(|(new, old)| at[*old] = new);
        let shape = |shape: &Shape| {
            let mut shape = shape.clone();
            shape.node = at[shape.node];
            shape.further.iter_mut().for_each(|part| part.node = at[part.node]);
            shape
        };
        let model = |model: &usize| {
            let model = &whole.models[*model];
            let shapes = model.shapes.iter().map(shape).collect();
            crate::placement::ModelDemand { shapes, ..model.clone() }
        };
        let tier = |tier: &TailTier| {
            let weight =
                |(term, weight): &(Term, f64)| (*term, if *term == Term::Balance { weight * share } else { *weight });
            TailTier { name: tier.name.clone(), terms: tier.terms.iter().map(weight).collect() }
        };
        let models: Vec<_> = self.models.iter().map(model).collect();
        let own = |name: &String| models.binary_search_by(|m: &crate::placement::ModelDemand| m.name.cmp(name)).is_ok();
        let traffic: Vec<_> = whole.traffic.iter().filter(|traffic| own(&traffic.from)).cloned().collect();
        let through = |key: String| traffic.iter().any(|traffic| traffic.to == End::Out(key.clone()));
        let ways_out = if traffic.is_empty() { &[] } else { &whole.ways_out[..] };
        Problem {
            ways_out: ways_out.iter().filter(|way| through(way.key())).cloned().collect(),
            distances: if traffic.is_empty() { Distances::default() } else { whole.distances.clone() },
            traffic,
            nodes: self.nodes.iter().map(|node| whole.nodes[*node].clone()).collect(),
            running: self.running.iter().map(|index| whole.running[*index].clone()).collect(),
            tail: whole.tail.iter().map(tier).collect(),
            alike: if whole.alike.is_empty() {
                Vec::new()
            } else {
                self.nodes.iter().map(|node| whole.alike[*node].iter().map(|other| at[*other]).collect()).collect()
            },
            quotas: whole.quotas.iter().filter(|quota| quota.models.iter().any(own)).cloned().collect(),
            threshold: whole.threshold,
            limits: whole.limits,
            models,
            ..Problem::default()
        }
    }
}

/// What share of the weight of the balance a part counts: its share of the replicas.
fn shares(problem: &Problem, parts: &[Part]) -> Vec<f64> {
    let replicas = |part: &Part| part.models.iter().map(|m| f64::from(problem.models[*m].desired)).sum::<f64>();
    let all = parts.iter().map(replicas).sum::<f64>().max(1.0);
    parts.iter().map(|part| replicas(part) / all).collect()
}

/// What a thread tells.
enum Told {
    Event(Event),
    Solved(usize, Solved),
}

fn shared_out(
    problem: &Problem,
    costs: &[Vec<f64>],
    parts: &[Part],
    hedge: u32,
    limits: &Limits,
    events: Watch<'_>,
) -> Vec<Solved> {
    let shares = shares(problem, parts);
    let next = AtomicUsize::new(0);
    let (sender, receiver) = mpsc::channel();
    let mut solved: Vec<Solved> = vec![Solved::default(); parts.len()];
    std::thread::scope(|scope| {
        for _ in 0..limits.threads.clamp(1, parts.len()) {
            let (sender, next, shares) = (sender.clone(), &next, &shares);
            scope.spawn(move || {
                let tell = |event: Event| {
                    // Nobody listens only where the other side ended in a panic.
                    let _ = sender.send(Told::Event(event));
                };
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(part) = parts.get(index) else { break };
                    let own = part.problem(problem, shares[index]);
                    let costs = part.nodes.iter().map(|node| costs[*node].clone()).collect();
                    let solved = run::solve(&own, costs, hedge, limits, Watch(&tell));
                    let _ = sender.send(Told::Solved(index, solved));
                }
            });
        }
        drop(sender);
        let mut first = 0;
        for told in receiver {
            match told {
                Told::Event(Event::Incumbent) => {
                    first += 1;
                    if first == parts.len() {
                        events.tell(Event::Incumbent);
                    }
                }
                Told::Event(_) => {}
                Told::Solved(index, of) => solved[index] = of,
            }
        }
    });
    solved
}

/// Copies and tiers of all parts.
fn together(problem: &Problem, parts: &[Part], solved: Vec<Solved>, events: Watch<'_>) -> Answer {
    let shares = shares(problem, parts);
    let weight = |tier: &TailTier| -> f64 {
        tier.terms.iter().filter(|(term, _)| *term == Term::Balance).map(|(_, weight)| weight).sum()
    };
    let busiest = solved.iter().map(|s| s.busiest).fold(0.0, f64::max);
    let counted: f64 = solved.iter().zip(&shares).map(|(s, share)| share * s.busiest).sum();
    let mut answer = Answer { layout: Vec::new(), tiers: Vec::new(), aborted: false };
    let mut tiers: BTreeMap<run::Place, Decided> = BTreeMap::new();
    let (mut columns, mut rows) = (0, 0);
    let lifts = |place: &&run::Place| matches!(**place, (1 | 3, _, false, None));
    let lifts: BTreeSet<run::Place> = solved.iter().flat_map(|s| s.tiers.keys().filter(lifts)).copied().collect();
    for (part, mut solved) in parts.iter().zip(solved) {
        again(&mut solved.tiers, &lifts);
        for mut copy in solved.layout {
            copy.model = part.models[copy.model];
            copy.node = part.nodes[copy.node];
            copy.further.iter_mut().for_each(|(node, _)| *node = part.nodes[*node]);
            copy.kept = copy.kept.map(|index| part.running[index]);
            answer.layout.push(copy);
        }
        for (place, decided) in solved.tiers {
            let tier = tiers.entry(place).or_insert(Decided { name: decided.name, value: 0.0, bound: 0.0 });
            tier.value += decided.value;
            tier.bound += decided.bound;
        }
        (columns, rows) = (columns + solved.size.0, rows + solved.size.1);
        answer.aborted |= solved.aborted;
    }
    answer.layout.sort();
    for own in &problem.tail {
        for tier in tiers.values_mut().filter(|tier| tier.name == own.name) {
            tier.value += weight(own) * (busiest - counted);
        }
    }
    answer.tiers = stated(tiers);
    events.tell(Event::Columns { columns, rows });
    answer
}

/// Where a tier of any part lets lower ranks be displaced, how many are is looked at again in all parts: in those that have
/// no such tier it is what it was.
fn again(tiers: &mut BTreeMap<run::Place, Decided>, lifts: &BTreeSet<run::Place>) {
    for (kind, rank, preempts, _) in lifts {
        let mut last: BTreeMap<Reverse<u32>, Decided> = BTreeMap::new();
        for (place, decided) in tiers.range(..(*kind, *rank, *preempts, None)) {
            if let Some(victims) = place.3.filter(|victims| victims > rank) {
                last.insert(victims, decided.clone());
            }
        }
        for (victims, decided) in last {
            tiers.entry((*kind, *rank, *preempts, Some(victims))).or_insert(decided);
        }
    }
}

/// The tiers as they are told: that nobody is displaced is not.
fn stated(tiers: BTreeMap<run::Place, Decided>) -> Vec<Tier> {
    let told = tiers.into_iter().filter(|(place, decided)| place.3.is_none() || decided.value > 0.5);
    told.map(|(_, decided)| tier(decided)).collect()
}

fn tier(decided: Decided) -> Tier {
    let Decided { name, value, bound } = decided;
    let distance = (value - bound).abs();
    let gap = if distance < 1e-6 { 0.0 } else { distance / value.abs().max(1.0) };
    let clean = |v: f64| (v * 1e6).round() / 1e6 + 0.0;
    Tier { name, value: clean(value), bound: clean(bound), gap: clean(gap) }
}
