//! The tiers over counts: columns are copies in a way, rows are demand, cards, hosts, spread and quotas.
//!
//! Every layout of the problem is a point of it, whatever its accelerators are called, so its relaxation is a true
//! bound: cards are looked at one by one (patterns), hosts and quotas in sum.

// Size: rows, objective and prices read the same columns; parts of it elsewhere would only pass them around.

use std::collections::BTreeMap;

use super::floor::counted;
use super::goal::Goal;
use super::groups::Groups;
use super::hedge;
use super::pack;
use super::price::{Part, price};
use crate::base::GIB;
use crate::placement::exact::columns::merged;
use crate::placement::layout::is_pinned;
use crate::placement::milp::{self, Late, Linear, Next, Program, Relaxed, Row};
use crate::placement::ports::{needed, row};
use crate::placement::{Limits, Term};

/// A multiset of items on one card of a type.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pattern {
    /// The type of the card.
    pub card: usize,
    /// Items with their counts, ascending.
    pub items: Vec<(usize, u32)>,
}

/// Running instances of a way that lose as much where they leave.
#[derive(Debug, Clone, Copy)]
pub struct Stay {
    /// What losing the place costs.
    pub weight: f64,
    /// How many there are.
    pub count: u32,
    /// How many stay.
    pub column: usize,
}

/// Columns and rows of a problem's groups.
pub struct Master<'g, 'p> {
    /// The groups.
    pub groups: &'g Groups<'p>,
    /// Columns and rows without the patterns.
    pub program: Program,
    /// Per way: new copies.
    pub fresh: Vec<Option<usize>>,
    /// Per way: new copies where the weights are already, if that is told apart.
    pub near: Vec<Option<usize>>,
    /// Per way: running instances that stay.
    pub stays: Vec<Vec<Stay>>,
    /// Per kind: replicas up to the minimum.
    pub least: Vec<usize>,
    /// Per kind: replicas up to the minimum that outlast losses of spot nodes.
    outlasting: Vec<Option<usize>>,
    /// Per kind: nodes beyond the first that its models are on, where they should share few.
    beyond: Vec<Option<usize>>,
    /// Per kind: instances that lose their place to others.
    displaced: Vec<Option<usize>>,
    busiest: Option<usize>,
    /// Per item: the row that its parts are covered by patterns.
    pub cover: Vec<usize>,
    /// Per card type: the row of its cards.
    pub cards: Vec<usize>,
    /// Per item: how many copies may lie on one card, or on one node.
    pub most: Vec<u32>,
}

/// What a relaxation proved and chose.
#[derive(Debug, Clone, Default)]
pub struct Proof {
    /// No layout has less than this; `None` where nothing was proved.
    pub bound: Option<f64>,
    /// Copies by column at the optimum.
    pub point: Vec<f64>,
    /// Values of the patterns, in the order of the pool.
    pub patterns: Vec<f64>,
    /// Prices of the rows that prove the bound, the further rows last; none is above 0.
    pub prices: Vec<f64>,
    /// Whether the clock ended it.
    pub aborted: bool,
}

/// Rounds of pricing per tier.
const ROUNDS: usize = 400;
/// Share of the prices that gave the best bound in those at which patterns are looked for, and by how much less it is
/// at the next try where that found none.
const CENTRE: f64 = 0.8;
const CENTRE_STEP: f64 = 0.2;
/// Simplex iterations per run.
const ITERATIONS: i32 = 400_000;
/// Relative distance of value and bound at which pricing ends.
const CLOSE: f64 = 1e-5;

impl<'g, 'p> Master<'g, 'p> {
    /// Columns and rows.
    pub fn new(groups: &'g Groups<'p>) -> Self {
        let mut this = Self {
            groups,
            program: Program::default(),
            fresh: Vec::new(),
            near: Vec::new(),
            stays: Vec::new(),
            least: Vec::new(),
            outlasting: Vec::new(),
            beyond: Vec::new(),
            displaced: Vec::new(),
            busiest: None,
            cover: Vec::new(),
            cards: Vec::new(),
            most: vec![0; groups.items.len()],
        };
        this.copies();
        this.demand();
        this.supply();
        this.hosts();
        this.ports();
        this.wide();
        this.spread();
        this.quotas();
        this.balance();
        this.outlasting = hedge::rows(&mut this);
        this.beyond = pack::rows(&mut this);
        this
    }

    fn copies(&mut self) {
        for (index, way) in self.groups.ways.iter().enumerate() {
            let kind = &self.groups.kinds[way.kind];
            let near = self.groups.near(index).len();
            let usable = way.fresh && kind.room > 0;
            let column = usable.then(|| self.program.column(0.0, f64::from(kind.room), true));
            self.fresh.push(column);
            // On a processor no card limits the copies of a node.
            let most = if near == 0 { 0.0 } else { (near as f64 * self.per_node(index)).min(f64::from(kind.room)) };
            self.near.push((usable && most > 0.0).then(|| self.program.column(0.0, most, true)));
            let protected = self.groups.problem.models[kind.models[0]].protected;
            let mut stays = Vec::new();
            for (weight, count) in &way.running {
                let least = if protected { f64::from(*count) } else { 0.0 };
                let column = self.program.column(least, f64::from(*count), true);
                stays.push(Stay { weight: *weight as f64 / 1_000.0, count: *count, column });
            }
            self.stays.push(stays);
        }
        self.most();
    }

    /// On one node no more copies lie on an item than its kinds may have; of a kind that is spread, one per model.
    fn most(&mut self) {
        let groups = self.groups;
        let mut kinds: Vec<Vec<usize>> = vec![Vec::new(); groups.items.len()];
        for way in &groups.ways {
            way.takes.iter().for_each(|(item, _)| kinds[*item].push(way.kind));
        }
        for (item, mut kinds) in kinds.into_iter().enumerate() {
            kinds.sort_unstable();
            kinds.dedup();
            let most = |kind: &usize| {
                let kind = &groups.kinds[*kind];
                let demand = &groups.problem.models[kind.models[0]];
                let spread = demand.spread_by.is_some() && !demand.protected;
                if spread { kind.room.min(kind.models.len() as u32) } else { kind.room }
            };
            self.most[item] = kinds.iter().map(most).fold(0, u32::saturating_add);
        }
    }

    /// No node takes more copies in a way.
    fn per_node(&self, way: usize) -> f64 {
        let Some((item, ranks)) = self.groups.ways[way].takes.first() else { return f64::INFINITY };
        let slots = self.groups.items[*item].types.iter().map(|card| {
            let of = &self.groups.types[*card];
            let fit = of.capacity.checked_div(self.groups.size(*item, *card)).unwrap_or(u64::from(u32::MAX));
            fit as f64 * of.positions.len() as f64
        });
        (slots.sum::<f64>() / f64::from(*ranks)).floor()
    }

    /// Columns of all copies in a way.
    pub fn columns(&self, way: usize) -> impl Iterator<Item = usize> + '_ {
        self.fresh[way].into_iter().chain(self.near[way]).chain(self.stays[way].iter().map(|s| s.column))
    }

    /// All copies of a kind.
    fn placed(&self, kind: usize) -> Linear {
        self.groups.kinds[kind].ways.iter().flat_map(|way| self.columns(*way)).map(|c| (c, 1.0)).collect()
    }

    fn demand(&mut self) {
        for (index, kind) in self.groups.kinds.iter().enumerate() {
            let placed = self.placed(index);
            self.program.at_most(placed.clone(), f64::from(kind.room));
            let column = self.program.column(0.0, f64::from(kind.least), true);
            let mut row: Linear = placed.iter().map(|(c, f)| (*c, -f)).collect();
            row.push((column, 1.0));
            self.program.at_most(row, 0.0);
            self.least.push(column);
            let displaced = (kind.claim > 0).then(|| self.program.column(0.0, f64::from(kind.claim), true));
            if let Some(displaced) = displaced {
                let mut row: Linear = placed.into_iter().map(|(c, f)| (c, -f)).collect();
                row.push((displaced, -1.0));
                self.program.at_most(row, -f64::from(kind.claim));
                self.claims(index, displaced);
            }
            self.displaced.push(displaced);
        }
    }

    /// An instance leaves its place only where it is displaced, where a better variant of its model takes its part, or
    /// where its model gains a replica. In sum over the models of a kind, so that every layout holds it.
    fn claims(&mut self, index: usize, displaced: usize) {
        let groups = self.groups;
        let kind = &groups.kinds[index];
        let stays: Vec<usize> = kind.ways.iter().flat_map(|way| self.stays[*way].iter().map(|s| s.column)).collect();
        let mut row: Linear = stays.into_iter().map(|c| (c, -1.0)).collect();
        row.push((displaced, -1.0));
        let fresh = |of: &dyn Fn(usize) -> bool| -> Linear {
            let ways = kind.ways.iter().filter(|way| of(**way));
            ways.flat_map(|way| self.fresh[*way].into_iter().chain(self.near[*way])).map(|c| (c, -1.0)).collect()
        };
        let growing = kind.models.iter().filter(|m| groups.room[**m] > groups.claim[**m]);
        let claims: Vec<u32> = growing.map(|m| groups.claim[*m]).collect();
        let all = fresh(&|_| true);
        let runs = kind.ways.iter().filter(|way| !groups.ways[**way].running.is_empty());
        let worst = runs.map(|way| groups.deficit(*way)).max().unwrap_or(0);
        let better = fresh(&|way| groups.deficit(way) < worst);
        let most = claims.iter().copied().max().unwrap_or(0);
        if most > 0 {
            let gains = self.gains(index, displaced);
            let column = self.program.column(0.0, f64::from(claims.iter().sum::<u32>()), false);
            let mut limit: Linear = all.into_iter().map(|(c, f)| (c, f * f64::from(most))).collect();
            limit.push((column, 1.0));
            self.program.at_most(limit, 0.0);
            // A model that gains has more copies than its claim; one that does not has lost what is missing of it.
            let mut limit: Linear = gains.into_iter().map(|(c, f)| (c, -f * f64::from(most))).collect();
            limit.push((column, 1.0));
            self.program.at_most(merged(limit), -f64::from(most) * f64::from(kind.claim));
            row.push((column, -1.0));
        }
        if !better.is_empty() && !groups.problem.models[kind.models[0]].protected {
            let column = self.program.column(0.0, f64::from(kind.claim), false);
            let mut limit = better;
            limit.push((column, 1.0));
            self.program.at_most(limit, 0.0);
            row.push((column, -1.0));
        }
        self.program.at_most(row, -f64::from(kind.claim));
    }

    /// Copies of a kind and what it lost: beyond its claim by at least the number of models that gain.
    fn gains(&self, kind: usize, displaced: usize) -> Linear {
        let mut all = self.placed(kind);
        all.push((displaced, 1.0));
        all
    }

    fn supply(&mut self) {
        let mut rows = vec![Linear::new(); self.groups.items.len()];
        for (index, way) in self.groups.ways.iter().enumerate() {
            for (item, ranks) in &way.takes {
                rows[*item].extend(self.columns(index).map(|c| (c, f64::from(*ranks))));
            }
        }
        for row in rows {
            self.cover.push(self.program.rows.len());
            self.program.at_most(merged(row), 0.0);
        }
        for card in &self.groups.types {
            self.cards.push(self.program.rows.len());
            self.program.at_most(Linear::new(), card.cards as f64);
        }
    }

    fn hosts(&mut self) {
        let mut rows: BTreeMap<usize, Linear> = BTreeMap::new();
        for (index, way) in self.groups.ways.iter().enumerate() {
            for (class, bytes) in &way.hosts {
                let bytes = *bytes as f64 / GIB as f64;
                rows.entry(*class).or_default().extend(self.columns(index).map(|c| (c, bytes)));
            }
        }
        for (class, row) in rows {
            let nodes = &self.groups.classes[class].nodes;
            let most: u64 = nodes.iter().map(|n| self.groups.capacities.bound.host[*n]).sum();
            self.program.at_most(merged(row), most as f64 / GIB as f64 + 1e-6);
        }
    }

    /// Ports of a class in sum, where all new copies could take more than there are.
    fn ports(&mut self) {
        let groups = self.groups;
        let room: u64 = groups.kinds.iter().map(|kind| u64::from(kind.room)).sum();
        for (index, class) in groups.classes.iter().enumerate() {
            let limits: Option<Vec<(u32, u32)>> = class.nodes.iter().map(|node| groups.ports.limit(*node)).collect();
            let Some(limits) = limits else { continue };
            let sum = |of: fn(&(u32, u32)) -> u32| limits.iter().map(|limit| u64::from(of(limit))).sum::<u64>();
            let (all, rows) = (sum(|limit| limit.0), sum(|limit| limit.1));
            if all >= room * (1 + u64::from(row())) && rows >= room {
                continue;
            }
            let (mut taken, mut taken_rows) = (Linear::new(), Linear::new());
            for (way, _) in groups.ways.iter().enumerate().filter(|(_, way)| way.class == index) {
                let held = needed(groups.sample(way).engine);
                for column in self.fresh[way].into_iter().chain(self.near[way]) {
                    taken.push((column, f64::from(held.all)));
                    taken_rows.extend(held.row.then_some((column, 1.0)));
                }
            }
            if !taken.is_empty() {
                self.program.at_most(merged(taken), all as f64);
                self.program.at_most(merged(taken_rows), rows as f64);
            }
        }
    }

    /// Parts over half a card lie alone in their kind: of those that take several cards of a node at once, no node
    /// has more than it has such sets of cards.
    fn wide(&mut self) {
        let groups = self.groups;
        for (card, of) in groups.types.iter().enumerate() {
            let mut widths: Vec<u32> = groups.items.iter().map(|i| i.width).filter(|w| *w > 1).collect();
            widths.sort_unstable();
            widths.dedup();
            for width in widths.into_iter().filter(|w| !of.positions.len().is_multiple_of(*w as usize)) {
                let mut row = Linear::new();
                for (index, way) in groups.ways.iter().enumerate() {
                    for (item, ranks) in &way.takes {
                        let alone = groups.items[*item].types == [card] && 2 * groups.size(*item, card) > of.capacity;
                        if alone && ranks.is_multiple_of(width) {
                            row.extend(self.columns(index).map(|c| (c, f64::from(ranks / width))));
                        }
                    }
                }
                let most = groups.classes[of.class].nodes.len() * (of.positions.len() / width as usize);
                if !row.is_empty() {
                    self.program.at_most(merged(row), most as f64);
                }
            }
        }
    }

    fn spread(&mut self) {
        let groups = self.groups;
        for (index, kind) in groups.kinds.iter().enumerate() {
            let demand = &groups.problem.models[kind.models[0]];
            let Some(label) = demand.spread_by.as_ref().filter(|_| !demand.protected) else { continue };
            let mut rows: BTreeMap<usize, Linear> = BTreeMap::new();
            for way in &kind.ways {
                let row = rows.entry(groups.ways[*way].class).or_default();
                row.extend(self.columns(*way).map(|c| (c, 1.0)));
            }
            let mut classes: Vec<(usize, Linear)> = rows.into_iter().collect();
            let mut all: Vec<&str> = Vec::new();
            for (class, row) in &mut classes {
                let values = groups.values(label, *class);
                let limit = (values * kind.models.len()) as f64;
                self.program.at_most(std::mem::take(row), limit);
                let nodes = &groups.classes[*class].nodes;
                all.extend(nodes.iter().map(|n| crate::placement::layout::spread_value(groups.problem, label, *n)));
            }
            all.sort_unstable();
            all.dedup();
            let placed = self.placed(index);
            self.program.at_most(placed, (all.len() * kind.models.len()) as f64);
        }
    }

    fn quotas(&mut self) {
        let groups = self.groups;
        let problem = groups.problem;
        for rule in &problem.quotas {
            let (mut cards, mut bytes) = (Linear::new(), Linear::new());
            let (mut held, mut held_bytes) = (0, 0);
            for (index, way) in groups.ways.iter().enumerate() {
                let demand = &problem.models[groups.kinds[way.kind].models[0]];
                if !rule.models.contains(&demand.name) {
                    continue;
                }
                let (ranks, each) = counted(groups.sample(index));
                cards.extend(self.columns(index).map(|c| (c, ranks as f64)));
                bytes.extend(self.columns(index).map(|c| (c, each as f64 / GIB as f64)));
                if demand.protected {
                    let running = way.running.values().map(|n| u64::from(*n)).sum::<u64>();
                    held += ranks * running;
                    held_bytes += each * running;
                }
            }
            let away = problem.running.iter().filter(|r| rule.models.contains(&r.model) && is_pinned(problem, r));
            let away: u64 = away.map(|r| r.accelerators.len() as u64).sum();
            if let Some(most) = rule.accelerators {
                self.program.at_most(cards, u64::from(most).saturating_sub(away).max(held) as f64);
            }
            if let Some(most) = rule.vram_bytes {
                self.program.at_most(bytes, most.max(held_bytes) as f64 / GIB as f64 + 1e-6);
            }
        }
    }

    /// No node is less busy than the busiest: so neither is the mean of a class.
    fn balance(&mut self) {
        let weighed = |(term, weight): &(Term, f64)| *term == Term::Balance && *weight > 0.0;
        let groups = self.groups;
        if !groups.problem.tail.iter().any(|tier| tier.terms.iter().any(weighed)) {
            return;
        }
        let busiest = self.program.column(0.0, 16.0, false);
        let mut rows: BTreeMap<usize, Linear> = BTreeMap::new();
        for index in 0..groups.ways.len() {
            let shape = groups.sample(index);
            let own = (shape.node, shape.per_accelerator.total_bytes(), shape.ranks);
            let further = shape.further.iter().map(|part| (part.node, part.per_accelerator.total_bytes(), part.ranks));
            for (node, bytes, ranks) in std::iter::once(own).chain(further) {
                let class = groups.class_of[node];
                let nodes = groups.classes[class].nodes.iter();
                let memory: u64 =
                    nodes.flat_map(|n| &groups.problem.nodes[*n].accelerators).map(|a| a.total_bytes).sum();
                let share = bytes as f64 * f64::from(ranks) / (memory as f64).max(1.0);
                rows.entry(class).or_default().extend(self.columns(index).map(|c| (c, share)));
            }
        }
        for row in rows.into_values() {
            let mut row = merged(row);
            row.push((busiest, -1.0));
            self.program.at_most(row, 0.0);
        }
        self.busiest = Some(busiest);
    }

    /// A goal as an expression and a constant. What several layouts of a point may differ in counts at its least.
    pub fn linear(&self, goal: &Goal) -> (Linear, f64) {
        let groups = self.groups;
        let kinds = |rank: u32| (0..groups.kinds.len()).filter(move |k| groups.kinds[*k].rank == rank);
        match goal {
            Goal::Displaced(rank) => (kinds(*rank).filter_map(|k| self.displaced[k]).map(|c| (c, 1.0)).collect(), 0.0),
            Goal::Replicas { minimum, rank, preempts } => {
                let kinds = kinds(*rank).filter(|k| groups.kinds[*k].preempts == *preempts);
                let row = if *minimum {
                    kinds.map(|k| (self.least[k], -1.0)).collect()
                } else {
                    kinds.flat_map(|k| self.placed(k)).map(|(c, f)| (c, -f)).collect()
                };
                (row, 0.0)
            }
            Goal::Hedge(rank) => {
                let columns = kinds(*rank).filter_map(|k| self.outlasting[k]);
                (columns.map(|c| (c, -1.0)).collect(), 0.0)
            }
            Goal::Tail(tier) => {
                let mut all = Linear::new();
                let mut constant = 0.0;
                for (term, weight) in &groups.problem.tail[*tier].terms {
                    let (row, fixed) = self.term(*term);
                    all.extend(row.into_iter().map(|(c, f)| (c, f * weight)));
                    constant += fixed * weight;
                }
                (merged(all), constant)
            }
        }
    }

    pub fn term(&self, term: Term) -> (Linear, f64) {
        if term == Term::Balance {
            return (self.busiest.map(|c| (c, 1.0)).into_iter().collect(), 0.0);
        }
        if term == Term::Pack {
            return (self.beyond.iter().flatten().map(|c| (*c, 1.0)).collect(), 0.0);
        }
        let mut row = Linear::new();
        let mut constant = 0.0;
        for way in 0..self.groups.ways.len() {
            if term == Term::Stability {
                for stay in &self.stays[way] {
                    constant += stay.weight * f64::from(stay.count);
                    row.push((stay.column, -stay.weight));
                }
                continue;
            }
            let cost = self.cost(term, way);
            if term == Term::Locality {
                row.extend(self.fresh[way].map(|c| (c, cost)));
            } else {
                row.extend(self.columns(way).map(|c| (c, cost)));
            }
        }
        (row, constant)
    }

    /// What a new copy in a way costs in each of the problem's own tiers; balance is not counted.
    pub fn costs(&self, way: usize) -> Vec<f64> {
        let tiers = self.groups.problem.tail.iter();
        tiers.map(|tier| tier.terms.iter().map(|(term, weight)| weight * self.cost(*term, way)).sum()).collect()
    }

    fn cost(&self, term: Term, way: usize) -> f64 {
        let groups = self.groups;
        let of = &groups.ways[way];
        let demand = &groups.problem.models[groups.kinds[of.kind].models[0]];
        let shape = groups.sample(way);
        match term {
            Term::Quality => f64::from(demand.loss(shape)),
            Term::Latency => shape.slowness(),
            Term::Locality => {
                let shapes = of.shapes.iter().map(|(_, shape)| demand.shapes[*shape].distance());
                shapes.fold(f64::INFINITY, f64::min)
            }
            Term::Preference => f64::from(demand.unmet(&groups.problem.nodes[groups.classes[of.class].sample])),
            Term::Cost => groups.cost(way),
            Term::Stability | Term::Balance | Term::Pack | Term::Traffic => 0.0,
        }
    }

    /// Whether a pattern is one more card of copies that exist: its row factors.
    pub fn late(&self, pattern: &Pattern) -> Late {
        let mut rows: Linear = pattern.items.iter().map(|(item, n)| (self.cover[*item], -f64::from(*n))).collect();
        rows.push((self.cards[pattern.card], 1.0));
        // No bound of its own: it would take the worth of a card away from the row of the cards, and pricing would end.
        Late { rows, max: f64::INFINITY }
    }

    /// Cards that hold a part of an item after the other without regard to their ends: with these, prices begin at those
    /// of memory.
    fn by_volume(&self) -> Vec<Late> {
        let groups = self.groups;
        let mut all = Vec::new();
        for (item, of) in groups.items.iter().enumerate() {
            for card in &of.types {
                let fit = groups.types[*card].capacity as f64 / (groups.size(item, *card) as f64).max(1.0);
                if fit >= 1.0 {
                    let rows = vec![(self.cover[item], -fit), (self.cards[*card], 1.0)];
                    all.push(Late { rows, max: f64::INFINITY });
                }
            }
        }
        all
    }

    /// For every item as many as fit on a card, so that no item is without a pattern.
    pub fn simple(&self) -> Vec<Pattern> {
        let groups = self.groups;
        let mut patterns = Vec::new();
        for (item, of) in groups.items.iter().enumerate() {
            for card in &of.types {
                let fit = groups.types[*card].capacity.checked_div(groups.size(item, *card)).unwrap_or(1);
                let count = fit.min(u64::from(self.most[item])) as u32;
                if count > 0 {
                    patterns.push(Pattern { card: *card, items: vec![(item, count)] });
                }
            }
        }
        patterns
    }

    /// The optimum of a goal without integrality under the rows of earlier ones. New patterns go to the pool. Ends
    /// early where the bound is at least `enough`: then the incumbent cannot be beaten by more than is accepted.
    ///
    /// Patterns are looked for at prices between those of the last optimum and those that gave the best bound so far:
    /// the prices of an optimum over few patterns are far from the last ones, and each way off.
    pub fn relax(&self, goal: &Goal, rows: &[Row], pool: &mut Vec<Pattern>, enough: f64, limits: &Limits) -> Proof {
        let (objective, constant) = self.linear(goal);
        let mut proof = Proof::default();
        let start = self.by_volume();
        let volumes = start.len();
        let late: Vec<Late> = start.into_iter().chain(pool.iter().map(|p| self.late(p))).collect();
        let lagrangian = Lagrangian::new(&self.program, rows, &objective);
        let mut bound = f64::NEG_INFINITY;
        let mut centre: Option<Vec<f64>> = None;
        let mut rounds = 0;
        let mut known: std::collections::BTreeSet<Pattern> = pool.iter().cloned().collect();
        let ended = milp::relax(
            &self.program,
            rows,
            &objective,
            &late,
            (ITERATIONS, limits.abort_s),
            &mut |relaxed: &Relaxed| {
                rounds += 1;
                let duals: Vec<f64> = relaxed.duals.iter().map(|dual| dual.min(0.0)).collect();
                let mut share = if centre.is_some() { CENTRE } else { 0.0 };
                let mut new: Vec<Pattern> = Vec::new();
                loop {
                    let mut prices = match &centre {
                        Some(centre) => centre.iter().zip(&duals).map(|(a, b)| share * a + (1.0 - share) * b).collect(),
                        None => duals.clone(),
                    };
                    let found = self.price(&mut prices);
                    let least = lagrangian.value(&prices);
                    if least > bound {
                        (bound, centre) = (least, Some(prices));
                    }
                    new.extend(found.into_iter().filter(|p| self.worth(p, &duals) > 0.0 && known.insert(p.clone())));
                    if !new.is_empty() || share == 0.0 {
                        break;
                    }
                    share = (share - CENTRE_STEP).max(0.0);
                }
                let close = relaxed.value - bound <= CLOSE * relaxed.value.abs().max(1.0);
                if rounds > 1 && (close || rounds >= ROUNDS) || bound + constant >= enough {
                    return Next::default();
                }
                let more = new.iter().map(|p| self.late(p)).collect();
                pool.extend(new);
                Next { more, out: if rounds == 1 { 0..volumes } else { 0..0 } }
            },
        );
        proof.aborted = ended.aborted;
        if bound.is_finite() {
            proof.bound = Some(bound + constant);
            proof.prices = centre.unwrap_or_default();
        }
        if let Some(last) = ended.last {
            proof.point = last.point;
            proof.patterns = last.late.get(volumes..).unwrap_or_default().to_vec();
        }
        proof
    }

    /// By how much a pattern is worth more than its card.
    pub fn worth(&self, pattern: &Pattern, duals: &[f64]) -> f64 {
        let value: f64 = pattern.items.iter().map(|(item, n)| -duals[self.cover[*item]] * f64::from(*n)).sum();
        value + duals[self.cards[pattern.card]] - 1e-7
    }

    /// Patterns that are worth more than their card; the prices of the cards become such that none is.
    fn price(&self, duals: &mut [f64]) -> Vec<Pattern> {
        let groups = self.groups;
        let mut patterns = Vec::new();
        let mut parts: Vec<Vec<Part>> = vec![Vec::new(); groups.types.len()];
        for (item, of) in groups.items.iter().enumerate() {
            let value = -duals[self.cover[item]];
            for card in of.types.iter().filter(|_| value > 0.0) {
                parts[*card].push(Part { item, size: groups.size(item, *card), value, most: self.most[item] });
            }
        }
        for (card, parts) in parts.into_iter().enumerate() {
            let row = self.cards[card];
            let priced = price(parts, groups.types[card].capacity, -duals[row]);
            duals[row] = -priced.bound.max(0.0);
            patterns.extend(priced.patterns.into_iter().map(|items| Pattern { card, items }));
        }
        patterns
    }
}

/// What no point can be below at given prices of the rows.
pub struct Lagrangian<'m> {
    program: &'m Program,
    rows: &'m [Row],
    costs: Vec<f64>,
}

impl<'m> Lagrangian<'m> {
    /// Of a program with further rows and an objective.
    pub fn new(program: &'m Program, rows: &'m [Row], objective: &Linear) -> Self {
        let mut costs = vec![0.0; program.columns.len()];
        objective.iter().for_each(|(column, factor)| costs[*column] += factor);
        Self { program, rows, costs }
    }

    /// What a column costs more than it gives at these prices, by column.
    pub fn reduced(&self, duals: &[f64]) -> Vec<f64> {
        let mut reduced = self.costs.clone();
        for (row, dual) in self.program.rows.iter().chain(self.rows).zip(duals).filter(|(_, dual)| **dual < 0.0) {
            row.terms.iter().for_each(|(column, factor)| reduced[*column] -= dual * factor);
        }
        reduced
    }

    /// The bound, where no pattern is worth more than its card; no price is above 0.
    fn value(&self, duals: &[f64]) -> f64 {
        let rows = self.program.rows.iter().chain(self.rows);
        let fixed: f64 = rows.zip(duals).map(|(row, dual)| row.limit * dual).sum();
        let columns = self.program.columns.iter().zip(self.reduced(duals));
        fixed
            + columns
                .map(|(column, reduced)| reduced * if reduced > 0.0 { column.min } else { column.max })
                .sum::<f64>()
    }
}
