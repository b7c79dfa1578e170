//! Traffic as columns and rows: what models send to each other and to the egress nodes of agents, at the level of nodes.
//!
//! A replica's turns go to the nearest replica of the other end, so several replicas make this a lower bound: the gateway
//! may send a turn further. From one node, the ways to the other end have few different costs (they count in steps), so
//! there is one column per node and step instead of one per pair: it is the replicas there that find nothing of the other
//! end within the step before. A way out to a provider has one column per node that may be its egress node.
//!
//! `max-latency` forbids a replica where the other end runs and none of it is within the limit. A way that nobody measured
//! is not known to be too long; it costs at least as much as the worst known one. What runs on both nodes already is given
//! a fifth more, at least 2 ms, so that no wobble of the measurements moves a model.

use std::collections::{BTreeMap, BTreeSet};

use crate::placement::build::distances::cost;
use crate::placement::egress::ms;
use crate::placement::exact::columns::{Formulation, merged};
use crate::placement::layout::{Copy, is_pinned};
use crate::placement::milp::{Linear, Row, value};
use crate::placement::{End, Problem, Reason, Traffic, Ways};

/// Nodes beyond which only the limits of traffic become rows and its cost is not weighed.
const WEIGHED_NODES: usize = 64;
/// Microseconds by which what runs may exceed a limit, at least.
const GRACE_US: u64 = 2_000;

/// Columns of traffic.
#[derive(Debug, Clone, Default)]
pub struct TrafficColumns {
    /// Columns that are 1 where a model with several replicas has any, with their number.
    any: Vec<(usize, Linear)>,
    ways: Vec<WayColumns>,
    steps: Vec<Step>,
    /// Factors of the objective.
    costs: Linear,
}

/// A way out with traffic.
#[derive(Debug, Clone, Default)]
struct WayColumns {
    /// Columns of the nodes that it may take, with the factor of each in the objective.
    nodes: Vec<(usize, f64)>,
    /// Whether a limit of its traffic may leave it without a node.
    limited: bool,
    /// Rows that its node must keep.
    rows: Vec<Row>,
    /// Models that send through it.
    from: BTreeSet<usize>,
}

/// A column that is at least `terms - limit`.
#[derive(Debug, Clone)]
struct Step {
    /// The model that sends.
    from: usize,
    column: usize,
    terms: Linear,
    limit: f64,
}

impl TrafficColumns {
    /// What traffic costs.
    pub fn cost(&self) -> Linear {
        merged(self.costs.clone())
    }

    /// Columns with a cost, each with the model that sends; `None` where several share a way out.
    pub fn owners(&self) -> impl Iterator<Item = (usize, Option<usize>)> {
        let steps = self.steps.iter().map(|step| (step.column, Some(step.from)));
        let ways = self.ways.iter().flat_map(|way| {
            let only = way.from.first().copied().filter(|_| way.from.len() == 1);
            way.nodes.iter().map(move |(column, _)| (*column, only))
        });
        steps.chain(ways)
    }

    /// Columns of the ways out that may be left without a node.
    pub fn limited_ways(&self) -> Linear {
        self.ways.iter().filter(|way| way.limited).flat_map(|way| way.nodes.iter().map(|(c, _)| (*c, 1.0))).collect()
    }

    /// How many ways out may be left without a node.
    pub fn limited(&self) -> Vec<usize> {
        (0..self.ways.len()).filter(|way| self.ways[*way].limited).collect()
    }

    /// Sets the columns that follow from the copies to their best values.
    pub fn complete(&self, point: &mut [f64]) {
        for (column, placed) in &self.any {
            point[*column] = f64::from(u8::from(value(placed, point) > 0.5));
        }
        for way in &self.ways {
            let mut best: Option<(f64, usize)> = None;
            for (column, price) in &way.nodes {
                point[*column] = 1.0;
                let kept = way.rows.iter().all(|row| value(&row.terms, point) <= row.limit + 1e-6);
                let cost = price + self.paid(point);
                point[*column] = 0.0;
                if kept && best.is_none_or(|(least, _)| cost < least - 1e-12) {
                    best = Some((cost, *column));
                }
            }
            if let Some((_, column)) = best {
                point[column] = 1.0;
            }
        }
        for step in &self.steps {
            point[step.column] = (value(&step.terms, point) - step.limit).max(0.0);
        }
    }

    /// What the steps cost at a point.
    fn paid(&self, point: &[f64]) -> f64 {
        let factors: BTreeMap<usize, f64> = self.costs.iter().copied().collect();
        let paid = |step: &Step| {
            let factor = factors.get(&step.column).copied().unwrap_or(0.0);
            factor * (value(&step.terms, point) - step.limit).max(0.0)
        };
        self.steps.iter().map(paid).sum()
    }
}

/// Everything that one model sends to one other end.
struct Flow<'p> {
    from: usize,
    to: &'p End,
    parts: Vec<&'p Traffic>,
}

impl Flow<'_> {
    /// The tightest limit, and whose it is.
    fn limit(&self) -> Option<(u64, &str)> {
        let limits = self.parts.iter().filter_map(|part| Some((part.max_latency_us?, part.because.as_str())));
        limits.min()
    }
}

fn flows(problem: &Problem) -> Vec<Flow<'_>> {
    let mut flows: BTreeMap<(usize, &End), Vec<&Traffic>> = BTreeMap::new();
    for traffic in &problem.traffic {
        if let Some(from) = problem.model(&traffic.from) {
            flows.entry((from, &traffic.to)).or_default().push(traffic);
        }
    }
    flows.into_iter().map(|((from, to), parts)| Flow { from, to, parts }).collect()
}

/// Nodes that a model's instances run on; with `fixed` those that nothing takes away.
fn runs_on(problem: &Problem, model: usize, fixed: bool) -> BTreeSet<usize> {
    let demand = &problem.models[model];
    let running = problem.running.iter().filter(|running| running.model == demand.name);
    let running = running.filter(|running| !fixed || demand.protected || is_pinned(problem, running));
    running.filter_map(|running| problem.node(&running.node)).collect()
}

/// What runs already of the two ends of a flow.
struct Held<'p> {
    problem: &'p Problem,
    /// Nodes of the first model and of the other; with `true` those that nothing takes away.
    on: BTreeMap<bool, (BTreeSet<usize>, BTreeSet<usize>)>,
}

impl<'p> Held<'p> {
    fn of(problem: &'p Problem, from: usize, to: Option<usize>) -> Self {
        let nodes = |fixed| {
            let others = to.map(|to| runs_on(problem, to, fixed)).unwrap_or_default();
            (fixed, (runs_on(problem, from, fixed), others))
        };
        Self { problem, on: [false, true].map(nodes).into() }
    }

    /// Whether the first model is where nothing takes it away.
    fn fixed(&self, node: usize) -> bool {
        self.on[&true].0.contains(&node)
    }

    /// Whether two nodes are within a limit, for the first model on `a` and the other end on `b`.
    fn within(&self, limit: u64, a: usize, b: usize) -> bool {
        let name = |node: usize| self.problem.nodes[node].name.as_str();
        let Some(rtt) = self.problem.distances.rtt_us(name(a), name(b)) else { return true };
        let both = |fixed: bool| self.on[&fixed].0.contains(&a) && self.on[&fixed].1.contains(&b);
        rtt <= limit || (rtt <= grace(limit) && both(false)) || both(true)
    }
}

/// A limit as it holds for what runs.
fn grace(limit: u64) -> u64 {
    limit.saturating_add((limit / 5).max(GRACE_US))
}

/// The other end, as columns and constants by node.
struct Other {
    model: Option<usize>,
    /// Copies, or the egress node, by node.
    at: BTreeMap<usize, Linear>,
    /// Nodes where it is whatever is decided.
    fixed: BTreeSet<usize>,
    /// How many copies there may be.
    most: f64,
}

impl Formulation<'_> {
    /// Columns and rows of traffic; none where nothing is sent.
    pub(in crate::placement) fn traffic(&mut self) {
        if self.problem.traffic.is_empty() {
            return;
        }
        let mut ways: BTreeMap<&str, (WayColumns, Other)> = BTreeMap::new();
        let mut any: BTreeMap<usize, usize> = BTreeMap::new();
        for flow in flows(self.problem) {
            match flow.to {
                End::Model(name) => {
                    let Some(to) = self.problem.model(name) else { continue };
                    let other = self.copies_of(to);
                    let several = other.most + other.fixed.len() as f64 > 1.5;
                    let column =
                        (several && other.fixed.is_empty()).then(|| *any.entry(to).or_insert_with(|| self.any(to)));
                    self.pairs(&flow, &other, column);
                }
                End::Node(name) => {
                    let Some(node) = self.problem.node(name) else { continue };
                    let other = Other { model: None, at: BTreeMap::new(), fixed: BTreeSet::from([node]), most: 0.0 };
                    self.pairs(&flow, &other, None);
                }
                End::Out(key) => {
                    if !ways.contains_key(key.as_str()) {
                        let Some(way) = self.way(key) else { continue };
                        ways.insert(key, way);
                    }
                    let Some((columns, other)) = ways.get_mut(key.as_str()) else { continue };
                    columns.from.insert(flow.from);
                    let first = self.program.rows.len();
                    self.pairs(&flow, other, None);
                    if flow.limit().is_some() {
                        columns.limited = true;
                        columns.rows.extend(self.program.rows[first..].iter().cloned());
                    }
                }
            }
        }
        for (columns, _) in ways.into_values() {
            let one: Linear = columns.nodes.iter().map(|(column, _)| (*column, 1.0)).collect();
            self.program.at_most(one.clone(), 1.0);
            if !columns.limited {
                self.program.at_least(one, 1.0);
            }
            self.traffic.costs.extend(columns.nodes.iter().copied());
            self.traffic.ways.push(columns);
        }
        // Rows of limits only: what a step is at least is no condition on an egress node.
        let steps: BTreeSet<usize> = self.traffic.steps.iter().map(|step| step.column).collect();
        for way in &mut self.traffic.ways {
            way.rows.retain(|row| row.terms.iter().all(|(column, _)| !steps.contains(column)));
        }
    }

    /// Copies of a model by node.
    fn copies_of(&self, model: usize) -> Other {
        let mut at: BTreeMap<usize, Linear> = BTreeMap::new();
        for kept in self.kept.iter().filter(|kept| kept.copy.model == model) {
            at.entry(kept.copy.node).or_default().push((kept.column, 1.0));
        }
        for fresh in self.fresh.iter().filter(|fresh| fresh.model == model) {
            let node = self.problem.models[model].shapes[fresh.shape].node;
            at.entry(node).or_default().extend(fresh.count.iter().copied());
        }
        let name = &self.problem.models[model].name;
        let pinned = self.problem.running.iter().filter(|r| r.model == *name && is_pinned(self.problem, r));
        let fixed = pinned.filter_map(|running| self.problem.node(&running.node)).collect();
        Other { model: Some(model), at, fixed, most: f64::from(self.room[model]) }
    }

    /// A column that is 1 where a model has any copy.
    fn any(&mut self, model: usize) -> usize {
        let column = self.program.column(0.0, 1.0, true);
        let placed = self.placed[model].clone();
        let mut row = placed.clone();
        row.push((column, -f64::from(self.room[model])));
        self.program.at_most(row, 0.0);
        self.traffic.any.push((column, placed));
        column
    }

    /// Columns of a way out; `None` where no node may be its egress node.
    fn way(&mut self, key: &str) -> Option<(WayColumns, Other)> {
        let way = self.problem.ways_out.iter().find(|way| way.key() == key)?;
        let open = || way.via.iter().filter(|via| via.closed.is_none());
        let near = |us: &u64| way.max_latency_us.is_none_or(|limit| *us <= limit);
        let measured = open().any(|via| via.connect_us.is_some());
        let mut columns = WayColumns::default();
        let mut at = BTreeMap::new();
        for via in open() {
            let price = match via.connect_us {
                Some(us) if near(&us) => cost(us as f64 / 1e6),
                None if !measured => 1.0,
                Some(_) | None => continue,
            };
            let Some(node) = self.problem.node(&via.node) else { continue };
            let column = self.program.column(0.0, 1.0, true);
            columns.nodes.push((column, price));
            at.insert(node, vec![(column, 1.0)]);
        }
        let other = Other { model: None, at, fixed: BTreeSet::new(), most: 1.0 };
        (!columns.nodes.is_empty()).then_some((columns, other))
    }

    /// Rows of one flow: its limit, and the steps of its cost.
    fn pairs(&mut self, flow: &Flow<'_>, other: &Other, any: Option<usize>) {
        let problem = self.problem;
        let here = self.copies_of(flow.from);
        let ends: BTreeSet<usize> = other.at.keys().chain(&other.fixed).copied().collect();
        let weighed = problem.nodes.len() <= WEIGHED_NODES;
        let held = Held::of(problem, flow.from, other.model);
        let ways: Vec<(Ways<'_>, f64)> =
            flow.parts.iter().map(|part| (problem.distances.ways(part.bytes_per_turn), part.weight)).collect();
        let name = |node: usize| problem.nodes[node].name.as_str();
        for (node, count) in &here.at {
            if let Some((limit, _)) = flow.limit() {
                let within = |end: &usize| held.within(limit, *node, *end);
                let near: BTreeSet<usize> = ends.iter().copied().filter(within).collect();
                // What nothing takes away stays where it is.
                let stays = held.fixed(*node) && !other.fixed.is_empty();
                if near.len() < ends.len() && near.is_disjoint(&other.fixed) && !stays {
                    let (terms, limit) = beyond(count, here.most, other, any, &near);
                    self.program.at_most(terms, limit);
                }
            }
            if !weighed {
                continue;
            }
            let mut levels: BTreeMap<u64, BTreeSet<usize>> = BTreeMap::new();
            for end in &ends {
                let cost: f64 = ways.iter().map(|(ways, weight)| weight * ways.cost(name(*node), name(*end))).sum();
                levels.entry((cost * 1e6).round() as u64).or_default().insert(*end);
            }
            let mut near: BTreeSet<usize> = BTreeSet::new();
            let mut before = 0;
            for (level, ends) in levels {
                // From what costs nothing on, and then from level to level: nobody nearer.
                if level > before && near.is_disjoint(&other.fixed) {
                    let (terms, limit) = beyond(count, here.most, other, any, &near);
                    let column = self.program.column(0.0, here.most.max(1.0), false);
                    let mut row = terms.clone();
                    row.push((column, -1.0));
                    self.program.at_most(row, limit);
                    self.traffic.costs.push((column, (level - before) as f64 / 1e6));
                    self.traffic.steps.push(Step { from: flow.from, column, terms, limit });
                }
                before = level;
                near.extend(ends);
            }
        }
    }
}

/// `terms - limit` is the number of copies at a node, where the other end is somewhere and none of it on the near nodes;
/// at most 0 otherwise.
fn beyond(count: &Linear, most: f64, other: &Other, any: Option<usize>, near: &BTreeSet<usize>) -> (Linear, f64) {
    let most = most.max(1.0);
    let mut terms = count.clone();
    let at = |wanted: bool| {
        let nodes = other.at.iter().filter(move |(node, _)| near.contains(node) == wanted);
        nodes.flat_map(|(_, columns)| columns.iter().copied())
    };
    let limit = if !other.fixed.is_empty() {
        terms.extend(at(true).map(|(c, f)| (c, -f * most)));
        0.0
    } else if let Some(any) = any {
        terms.push((any, most));
        terms.extend(at(true).map(|(c, f)| (c, -f * most)));
        most
    } else {
        terms.extend(at(false).map(|(c, f)| (c, f * most)));
        most
    };
    (merged(terms), limit)
}

/// A limit that a model on a node would break.
#[derive(Debug, Clone)]
pub struct TooFar {
    limit_us: u64,
    measured_us: u64,
    text: String,
}

impl TooFar {
    /// As the reason of a refusal.
    pub fn reason(self, node: &str) -> Reason {
        Reason {
            node: node.to_owned(),
            alike: 0,
            constraint: "latency".to_owned(),
            needed: Some(self.limit_us),
            available: Some(self.measured_us),
            unit: Some("us".to_owned()),
            text: self.text,
        }
    }
}

/// By model: whether a limit on its traffic with models or nodes says where it may be. That of ways out does not: they are
/// chosen when all models have their place.
pub fn limited(problem: &Problem) -> Vec<bool> {
    let mut found = vec![false; problem.models.len()];
    for traffic in problem.traffic.iter().filter(|traffic| traffic.max_latency_us.is_some()) {
        let names = match &traffic.to {
            End::Model(to) => vec![&traffic.from, to],
            End::Node(_) => vec![&traffic.from],
            End::Out(_) => Vec::new(),
        };
        names.into_iter().filter_map(|name| problem.model(name)).for_each(|model| found[model] = true);
    }
    found
}

/// The limit that one more copy of a model on a node would break beside a layout.
pub fn conflict(problem: &Problem, layout: &[Copy], model: usize, node: usize) -> Option<TooFar> {
    if problem.traffic.iter().all(|traffic| traffic.max_latency_us.is_none()) {
        return None;
    }
    let places = |of: usize| -> BTreeSet<usize> {
        let name = &problem.models[of].name;
        let pinned = problem.running.iter().filter(|r| r.model == *name && is_pinned(problem, r));
        let pinned = pinned.filter_map(|running| problem.node(&running.node));
        layout.iter().filter(|copy| copy.model == of).map(|copy| copy.node).chain(pinned).collect()
    };
    for flow in flows(problem) {
        let Some((limit, because)) = flow.limit() else { continue };
        let to = match flow.to {
            End::Model(name) => problem.model(name),
            End::Node(_) | End::Out(_) => None,
        };
        let mine = flow.from == model;
        if !(mine || to == Some(model)) {
            continue;
        }
        let mut others = match flow.to {
            End::Node(name) => problem.node(name).into_iter().collect(),
            End::Model(_) | End::Out(_) => to.map(places).unwrap_or_default(),
        };
        if to == Some(model) {
            others.insert(node);
        }
        let froms = if mine { BTreeSet::from([node]) } else { places(flow.from) };
        if others.is_empty() {
            continue;
        }
        let held = Held::of(problem, flow.from, to);
        for from in froms {
            let near = |other: &usize| held.within(limit, from, *other);
            if others.iter().any(near) {
                continue;
            }
            let rtt = |other: &usize| problem.distances.rtt_us(&problem.nodes[from].name, &problem.nodes[*other].name);
            let (nearest, measured_us) =
                others.iter().filter_map(|o| Some((*o, rtt(o)?))).min_by_key(|(o, us)| (*us, *o))?;
            let (place, who) = match (mine, to) {
                (true, Some(to)) => (nearest, problem.models[to].name.as_str()),
                (true, None) => (nearest, "the way out"),
                (false, _) => (from, problem.models[flow.from].name.as_str()),
            };
            let place = &problem.nodes[place].name;
            let text = format!("{} to {place}, where `{who}` is; {} needed ({because})", ms(measured_us), ms(limit));
            return Some(TooFar { limit_us: limit, measured_us, text });
        }
    }
    None
}
