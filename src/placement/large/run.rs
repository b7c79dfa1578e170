//! The tiers in order: the incumbent is kept, the bound decides whether to look for better.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::fill::{self, Order};
use super::floor::Floor;
use super::goal::{Facts, Goal};
use super::groups::Groups;
use super::master::{Master, Pattern, Proof};
use super::near::{draw_near, within_limits};
use super::pack::gather;
use super::polish::polish;
use super::prove::prove;
use super::realise::{lying, realise};
use super::whole;
use crate::placement::exact::tiers::{Event, Watch};
use crate::placement::layout::Layout;
use crate::placement::milp::{Linear, Row};
use crate::placement::{Limits, Problem, Term};

/// Where a decided tier stands among all: of minimum replicas, those that outlast losses, desired ones or the problem's
/// own; the rank and whether its models may displace none, or its index; last the rank whose displaced instances follow.
pub type Place = (u8, Reverse<u32>, bool, Option<Reverse<u32>>);

/// A tier of a part of a problem.
#[derive(Debug, Clone)]
pub struct Decided {
    /// Its name.
    pub name: String,
    /// What was reached.
    pub value: f64,
    /// What cannot be surpassed.
    pub bound: f64,
}

/// What the tiers of a part of a problem led to.
#[derive(Debug, Clone, Default)]
pub struct Solved {
    /// The copies.
    pub layout: Layout,
    /// The tiers.
    pub tiers: BTreeMap<Place, Decided>,
    /// Share of the busiest node's memory.
    pub busiest: f64,
    /// Columns and rows in the end.
    pub size: (usize, usize),
    /// Whether the clock ended a search.
    pub aborted: bool,
}

/// Solves all tiers of a large problem, or of a part of one, whose accelerators cost so much.
pub fn solve(problem: &Problem, costs: Vec<Vec<f64>>, hedge: u32, limits: &Limits, events: Watch<'_>) -> Solved {
    let groups = Groups::new(problem, costs, hedge);
    let mut run = Run::new(&groups, limits, events);
    run.least_displaced(u32::MAX);
    let mut ranks: Vec<u32> = problem.models.iter().map(|m| m.rank).collect();
    ranks.sort_unstable_by(|a, b| b.cmp(a));
    ranks.dedup();
    for minimum in [true, false] {
        for rank in &ranks {
            for preempts in [true, false] {
                if groups.kinds.iter().any(|k| k.rank == *rank && k.preempts == preempts) {
                    run.replicas(minimum, *rank, preempts);
                }
            }
        }
        if minimum && hedge > 0 {
            ranks.iter().for_each(|rank| run.hedge(*rank));
        }
    }
    (0..problem.tail.len()).for_each(|tier| run.tail(tier));
    let size = (run.master.program.columns.len() + run.pool.len(), run.master.program.rows.len());
    let layout = run.floor.layout();
    let facts = Facts::of(&groups, &layout);
    let busiest = facts.term(Term::Balance);
    run.what_was_reached(&facts);
    Solved { layout, tiers: run.tiers, busiest, size, aborted: run.aborted }
}

/// The change is small where for one new replica more than so many stay. Then no search over all counts is made in
/// the tiers below the replicas: it would move what runs, and the stated gap says what it could gain at most.
const QUIET: usize = 9;
/// The same for tiers of replicas where they miss no larger share of what the bound allows.
const RESTLESS: f64 = 0.02;

struct Run<'g, 'p> {
    groups: &'g Groups<'p>,
    master: Master<'g, 'p>,
    limits: &'g Limits,
    pool: Vec<Pattern>,
    /// Earlier tiers and what they reached.
    reached: Vec<(Goal, f64)>,
    /// Per victims' rank: displaced instances may not be more.
    displaced: BTreeMap<u32, f64>,
    /// Tiers of replicas, with those that count besides, and what might be displaced then.
    counted: Vec<(Place, Goal, f64, BTreeMap<u32, f64>)>,
    floor: Floor<'g, 'p>,
    tiers: BTreeMap<Place, Decided>,
    /// The tier that is looked at.
    at: Place,
    tried: BTreeSet<(Goal, bool)>,
    /// Whether nearly everything that is placed runs already.
    quiet: bool,
    aborted: bool,
}

/// A value of the minimised objective and what it cannot be below.
struct Bounded {
    value: f64,
    bound: f64,
}

impl<'g, 'p> Run<'g, 'p> {
    fn new(groups: &'g Groups<'p>, limits: &'g Limits, events: Watch<'_>) -> Self {
        let master = Master::new(groups);
        events.tell(Event::Columns { columns: master.program.columns.len(), rows: master.program.rows.len() });
        let mut pool = master.simple();
        let floor = fill::start(groups, Order::Quality);
        pool.extend(patterns(groups, &floor));
        pool.sort_unstable();
        pool.dedup();
        let mut this = Self {
            groups,
            master,
            limits,
            pool,
            reached: Vec::new(),
            displaced: BTreeMap::new(),
            counted: Vec::new(),
            floor,
            tiers: BTreeMap::new(),
            at: (0, Reverse(0), false, None),
            tried: BTreeSet::new(),
            quiet: false,
            aborted: false,
        };
        this.second_start();
        let placed = this.floor.copies.iter().flatten();
        let (kept, fresh) = placed.fold((0, 0), |(k, f), c| if c.kept.is_some() { (k + 1, f) } else { (k, f + 1) });
        this.quiet = fresh * QUIET < kept;
        events.tell(Event::Incumbent);
        this
    }

    /// Where not all found a place: the start that takes the least memory, if more do then.
    fn second_start(&mut self) {
        let missing = |floor: &Floor<'_, '_>| {
            let mut by_rank: BTreeMap<(bool, std::cmp::Reverse<u32>), u32> = BTreeMap::new();
            for (model, demand) in self.groups.problem.models.iter().enumerate() {
                let room = self.groups.room[model];
                let least = super::goal::least(self.groups, model).min(room);
                let here = floor.counts[model];
                let rank = std::cmp::Reverse(demand.rank);
                *by_rank.entry((false, rank)).or_default() += least.saturating_sub(here);
                *by_rank.entry((true, rank)).or_default() += room.saturating_sub(here);
            }
            by_rank.into_values().collect::<Vec<u32>>()
        };
        let now = missing(&self.floor);
        if now.iter().all(|n| *n == 0) {
            return;
        }
        let other = fill::start(self.groups, Order::Memory);
        if missing(&other) < now {
            self.floor = other;
        }
    }

    fn victims(&self, rank: u32) -> Linear {
        self.master.linear(&Goal::Displaced(rank)).0
    }

    /// Brings the displaced instances of ranks below `below` to their least, highest rank first.
    fn least_displaced(&mut self, below: u32) {
        let mut ranks: Vec<u32> = self.groups.kinds.iter().map(|k| k.rank).collect();
        ranks.retain(|rank| below == u32::MAX || *rank < below);
        ranks.sort_unstable_by(|a, b| b.cmp(a));
        ranks.dedup();
        ranks.iter().for_each(|rank| {
            self.displaced.remove(rank);
        });
        for rank in ranks {
            if self.victims(rank).is_empty() {
                continue;
            }
            let solved = self.minimise(&Goal::Displaced(rank), 0.0, 0.0);
            self.displaced.insert(rank, solved.value);
            self.at.3 = Some(Reverse(rank));
            self.record(format!("displaced instances, rank {rank}"), solved.value, solved.bound);
        }
    }

    fn replicas(&mut self, minimum: bool, rank: u32, preempts: bool) {
        let problem = self.groups.problem;
        let of = |m: &usize| problem.models[*m].rank == rank && problem.models[*m].preempts == preempts;
        let models: Vec<usize> = (0..problem.models.len()).filter(of).collect();
        let most = |m: &usize| if minimum { super::goal::least(self.groups, *m) } else { self.groups.room[*m] };
        let most: u32 = models.iter().map(most).sum();
        let pinned = |m: &usize| {
            let pinned = self.groups.pinned[*m];
            if minimum { pinned.min(problem.models[*m].min) } else { pinned }
        };
        let pinned: u32 = models.iter().map(pinned).sum();
        let before = self.displaced.len();
        if preempts {
            self.displaced.retain(|victims, _| *victims >= rank);
        }
        let lifted = before != self.displaced.len();
        self.at = (if minimum { 1 } else { 3 }, Reverse(rank), !preempts, None);
        let goal = Goal::Replicas { minimum, rank, preempts };
        if preempts && Facts::of(self.groups, &self.floor.layout()).value(&goal) > 1e-6 - f64::from(most) {
            let mut better = self.floor.clone();
            fill::displace(self.groups, &mut better, rank, minimum);
            self.accept(&goal, better);
        }
        let solved = self.minimise(&goal, -f64::from(most), 0.0);
        self.reached.push((goal, solved.value));
        let kind = if minimum { "minimum" } else { "desired" };
        let preempting = if preempts { ", preempting" } else { "" };
        let name = format!("{kind} replicas, rank {rank}{preempting}");
        let goal = Goal::Replicas { minimum, rank, preempts };
        self.counted.push((self.at, goal, f64::from(pinned), self.displaced.clone()));
        self.record(name, f64::from(pinned) - solved.value, f64::from(pinned) - solved.bound);
        if lifted {
            self.least_displaced(rank);
        }
    }

    /// Replicas up to the minimum that the worst losses of spot nodes leave. Nothing that runs moves for it.
    fn hedge(&mut self, rank: u32) {
        let problem = self.groups.problem;
        let models = problem.models.iter().filter(|model| model.rank == rank);
        let most: u32 = models.map(|model| model.min).sum();
        if most == 0 {
            return;
        }
        let goal = Goal::Hedge(rank);
        self.at = (2, Reverse(rank), false, None);
        let solved = self.minimise(&goal, -f64::from(most), 0.0);
        self.reached.push((goal.clone(), solved.value));
        self.counted.push((self.at, goal, 0.0, self.displaced.clone()));
        let losses = self.groups.hedge;
        let plural = if losses == 1 { "" } else { "es" };
        self.record(
            format!("replicas that outlast {losses} spot loss{plural}, rank {rank}"),
            -solved.value,
            -solved.bound,
        );
    }

    fn tail(&mut self, tier: usize) {
        let goal = Goal::Tail(tier);
        self.at = (4, Reverse(u32::MAX - tier as u32), false, None);
        if tier == 0 {
            let mut better = self.floor.clone();
            polish(self.groups, &self.master, &mut better);
            self.accept(&goal, better);
            self.gather(&goal);
        }
        let solved = self.minimise(&goal, 0.0, self.limits.large_gap);
        self.reached.push((goal, solved.value));
        self.record(self.groups.problem.tail[tier].name.clone(), solved.value, solved.bound);
    }

    /// Brings models together that should share few nodes, and nearer to what they talk to.
    fn gather(&mut self, goal: &Goal) {
        if self.groups.flows.is_some() {
            let mut better = self.floor.clone();
            draw_near(self.groups, &mut better);
            self.accept(goal, better);
        }
        if self.groups.problem.models.iter().any(|model| model.pack) {
            let mut better = self.floor.clone();
            gather(self.groups, &mut better);
            self.accept(goal, better);
        }
    }

    fn record(&mut self, name: String, value: f64, bound: f64) {
        self.tiers.insert(self.at, Decided { name, value, bound });
    }

    /// Later tiers may have brought more replicas than an earlier one found: what is told is what the layout has, as far
    /// as that was possible when the tier was looked at. What displacing others brought since then is not its own.
    fn what_was_reached(&mut self, facts: &Facts<'_, '_>) {
        for (at, goal, pinned, displaced) in std::mem::take(&mut self.counted) {
            if displaced.iter().any(|(rank, limit)| facts.value(&Goal::Displaced(*rank)) > limit + 1e-6) {
                continue;
            }
            if let Some(tier) = self.tiers.get_mut(&at) {
                tier.value = tier.value.max((pinned - facts.value(&goal)).min(tier.bound));
            }
        }
    }

    /// Minimises one goal; keeps the incumbent where nothing better comes out. Goals without an accepted gap are whole
    /// numbers.
    fn minimise(&mut self, goal: &Goal, least: f64, gap: f64) -> Bounded {
        let value = Facts::of(self.groups, &self.floor.layout()).value(goal);
        if value <= least + 1e-6 {
            return Bounded { value, bound: value };
        }
        let whole = !matches!(goal, Goal::Tail(_));
        let rows = self.rows();
        let enough = if whole { value - 1.0 + 1e-3 } else { value - gap * value.abs().max(1.0) };
        let proof = self.master.relax(goal, &rows, &mut self.pool, enough, self.limits);
        self.aborted |= proof.aborted;
        let up = |bound: f64| if whole { (bound - 1e-4).ceil() } else { bound };
        let bound = proof.bound.map_or(least, |bound| up(bound).max(least));
        let accepted = |value: f64| value - bound <= 1e-6 + gap * value.abs().max(1.0);
        if accepted(value) {
            return Bounded { value, bound: bound.min(value) };
        }
        let close = if whole { 5e-4 } else { gap / 3.0 };
        let mut value = value;
        let displaced = matches!(goal, Goal::Displaced(_));
        let lowest = self.groups.kinds.iter().map(|k| k.rank).min();
        let last = matches!(goal, Goal::Replicas { minimum: false, rank, .. } if Some(*rank) == lowest);
        let mut closer = f64::NEG_INFINITY;
        for around in [Some(&proof), None] {
            let share = (value - bound) / value.abs().max(1.0);
            let small = self.quiet && (!matches!(goal, Goal::Replicas { .. }) || share <= RESTLESS);
            let enough = around.is_none() && last && share <= self.limits.large_gap;
            // The number of victims is looked into once: it comes up again after every tier.
            let again = displaced && !self.tried.insert((goal.clone(), around.is_some()));
            if accepted(value) || small || enough || again {
                break;
            }
            // Where what was found is good, no further search has to say so.
            if around.is_none() && !whole {
                closer = self.closer(goal, &rows, &proof, value, gap);
                if value - closer <= 1e-6 + gap * value.abs().max(1.0) {
                    break;
                }
            }
            let counts = whole::minimise(&self.master, goal, &rows, &self.pool, around, close, self.limits);
            let Some(counts) = counts else { continue };
            self.aborted |= counts.aborted;
            let mut floor = realise(self.groups, &counts);
            if let Goal::Replicas { minimum, rank, preempts: true } = goal {
                fill::displace(self.groups, &mut floor, *rank, *minimum);
            }
            if !whole {
                polish(self.groups, &self.master, &mut floor);
            }
            if self.accept(goal, floor) && !whole {
                self.gather(goal);
            }
            value = Facts::of(self.groups, &self.floor.layout()).value(goal);
        }
        let mut bound = bound.max(closer);
        if !whole && value - bound > 1e-6 + gap * value.abs().max(1.0) {
            bound = bound.max(self.closer(goal, &rows, &proof, value, gap));
        }
        Bounded { value, bound: bound.min(value) }
    }

    /// The bound that is not further from a value than is accepted, if that can be shown.
    fn closer(&self, goal: &Goal, rows: &[Row], proof: &Proof, value: f64, gap: f64) -> f64 {
        let enough = value - gap * value.abs().max(1.0);
        let found = prove(&self.master, goal, rows, proof, enough, self.limits);
        found.or(proof.bound).unwrap_or(f64::NEG_INFINITY)
    }

    /// Takes machines whose layout holds what earlier tiers reached and is better in this one.
    fn accept(&mut self, goal: &Goal, floor: Floor<'g, 'p>) -> bool {
        let old = Facts::of(self.groups, &self.floor.layout()).value(goal);
        let facts = Facts::of(self.groups, &floor.layout());
        let within = |goal: &Goal, limit: f64| facts.value(goal) <= limit + 1e-6 * limit.abs().max(1.0);
        let holds = self.reached.iter().all(|(goal, limit)| within(goal, *limit))
            && self.displaced.iter().all(|(rank, limit)| within(&Goal::Displaced(*rank), *limit));
        let holds = holds && (!self.groups.limited || within_limits(self.groups.problem, &floor.layout()));
        let gain = old - facts.value(goal);
        let better = holds && gain > 1e-9 * old.abs().max(1.0) && self.worth(goal, &floor, gain);
        if better {
            self.floor = floor;
        }
        better
    }

    /// Whether a gain in the weighted tier is worth the instances that lose their place for it: the least share of what
    /// it counts of their models, the same whatever the weights are multiplied by.
    fn worth(&self, goal: &Goal, floor: &Floor<'g, 'p>, gain: f64) -> bool {
        let problem = self.groups.problem;
        if problem.threshold <= 0.0 || problem.tail.len() != 1 || !matches!(goal, Goal::Tail(_)) {
            return true;
        }
        let kept = |floor: &Floor<'g, 'p>| -> BTreeSet<(usize, usize)> {
            floor.copies.iter().flatten().filter_map(|copy| Some((copy.model, copy.kept?))).collect()
        };
        let (before, after) = (kept(&self.floor), kept(floor));
        let leave: BTreeSet<usize> = before.difference(&after).map(|(model, _)| *model).collect();
        if leave.is_empty() {
            return true;
        }
        let mut of = self.floor.layout();
        of.retain(|copy| leave.contains(&copy.model));
        gain >= problem.threshold * Facts::of(self.groups, &of).counted()
    }

    /// Earlier tiers as rows.
    fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for (goal, value) in &self.reached {
            let (terms, constant) = self.master.linear(goal);
            let slack = 1e-6 * value.abs().max(1.0);
            rows.push(Row { terms, limit: value - constant + slack });
        }
        for (rank, limit) in &self.displaced {
            rows.push(Row { terms: self.victims(*rank), limit: limit + 1e-6 });
        }
        rows
    }
}

/// What lies on the cards of the machines, as patterns.
fn patterns(groups: &Groups<'_>, floor: &Floor<'_, '_>) -> Vec<Pattern> {
    let mut patterns = Vec::new();
    for ((node, position), items) in lying(groups, floor) {
        let types = &groups.classes[groups.class_of[node]].types;
        let of = |t: &&usize| groups.types[**t].positions.contains(&position);
        if let Some(card) = types.iter().find(of) {
            let items: Vec<(usize, u32)> = items.into_iter().collect();
            let size: u64 = items.iter().map(|(item, n)| groups.size(*item, *card) * u64::from(*n)).sum();
            if size <= groups.types[*card].capacity {
                patterns.push(Pattern { card: *card, items });
            }
        }
    }
    patterns
}
