//! By which tier, and by how much, another way to run a model loses: that way is forced, everything else is free, and
//! the tiers of both answers are held against each other.

use std::collections::{BTreeMap, BTreeSet};

use crate::placement::exact::columns::{Formulation, Fresh};
use crate::placement::exact::tiers;
use crate::placement::exact::tiers::Answer;
use crate::placement::explain::account::{TermCost, costs};
use crate::placement::explain::trial::quick;
use crate::placement::layout::{Copy, Layout, Loads, is_pinned, keepable, spread_value};
use crate::placement::solve::counts;
use crate::placement::{Problem, Tier};

/// How a forced way compares.
#[derive(Debug, Clone, PartialEq)]
pub enum Compared {
    /// It cannot be taken at all beside what must stay.
    Impossible(Block),
    /// It is as good in every tier: only the order of equal places decides.
    Equal,
    /// The first tier in which it is worse.
    Worse {
        /// The tier's name.
        tier: String,
        /// What is reached without it.
        without: f64,
        /// What is reached with it.
        with: f64,
        /// Terms of a weighted tier that differ: word, and how much more they cost with it (weight times value).
        terms: Vec<(&'static str, f64)>,
        /// Models that lose replicas by it, with how many.
        losers: Vec<(String, u32)>,
    },
}

/// What rules out a forced way.
#[derive(Debug, Clone, PartialEq)]
pub enum Block {
    /// Something protected, or that must stay, leaves no room.
    Room,
    /// It would be too far from something that must stay: how far, and the limit.
    Latency(String),
    /// A replica that must stay is there already, and they are spread.
    Spread,
}

/// Compares forced shapes with an answer to the same problem.
pub struct Rivals<'p> {
    problem: &'p Problem,
    base: &'p Answer,
    costs: Vec<TermCost>,
}

impl<'p> Rivals<'p> {
    /// Of a solved problem.
    pub fn new(problem: &'p Problem, base: &'p Answer) -> Self {
        Self { problem, base, costs: costs(problem, &base.layout) }
    }

    /// At least one replica of this model in this shape.
    pub fn force(&self, model: usize, shape: usize) -> Compared {
        let mut formulation = Formulation::new(self.problem, false);
        let Some(fresh) = formulation.fresh.iter().find(|fresh| fresh.model == model && fresh.shape == shape) else {
            return Compared::Impossible(Block::Room);
        };
        let fresh = fresh.clone();
        formulation.program.at_least(fresh.count.clone(), 1.0);
        let start = match self.start(&formulation, &fresh) {
            Ok(start) => start,
            Err(block) => return Compared::Impossible(block),
        };
        let answer = tiers::solve_from(&formulation, &quick(self.problem), start);
        self.compare(&answer)
    }

    /// The forced copy beside what is protected: the least that any answer has. An error where even that breaks a rule:
    /// the solver begins with it, and what it begins with must hold.
    fn start(&self, formulation: &Formulation<'_>, fresh: &Fresh) -> Result<Layout, Block> {
        let (problem, model) = (self.problem, fresh.model);
        let mut layout: Layout =
            keepable(problem).into_iter().filter(|copy| problem.models[copy.model].protected).collect();
        let own = layout.iter().filter(|copy| copy.model == model).count() as u32;
        if own >= formulation.room[model] {
            return Err(Block::Room);
        }
        let way = &problem.models[model].shapes[fresh.shape];
        let loads = Loads::rounded(problem, &formulation.capacities, &layout);
        let left = |node: usize, at: usize| {
            formulation.capacities.accelerators[node][at].saturating_sub(loads.accelerators[node][at])
        };
        let mut taken: BTreeSet<(usize, usize)> = BTreeSet::new();
        let mut parts: Vec<Vec<usize>> = Vec::new();
        for (span, on) in way.spans().zip(std::iter::once(&fresh.on).chain(&fresh.further)) {
            let open = on.iter().map(|(at, _)| *at).filter(|at| !taken.contains(&(span.node, *at)));
            let mut free: Vec<(u64, usize)> = open.map(|at| (left(span.node, at), at)).collect();
            free.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
            let mut positions: Vec<usize> = free.iter().take(span.ranks).map(|(_, at)| *at).collect();
            if positions.len() < span.ranks {
                return Err(Block::Room);
            }
            positions.sort_unstable();
            taken.extend(positions.iter().map(|at| (span.node, *at)));
            parts.push(positions);
        }
        let mut parts = parts.into_iter();
        let accelerators = parts.next().unwrap_or_default();
        let further = way.further.iter().map(|part| part.node).zip(parts).collect();
        let copy = Copy { model, shape: fresh.shape, node: way.node, accelerators, further, kept: None };
        if let Some(far) = crate::placement::exact::traffic::conflict(problem, &layout, model, way.node) {
            return Err(Block::Latency(far.reason(&problem.nodes[way.node].name).text));
        }
        if self.shares(&layout, &copy) {
            return Err(Block::Spread);
        }
        layout.push(copy);
        layout.sort();
        let after = Loads::rounded(problem, &formulation.capacities, &layout);
        let within = |used: &[u64], most: &[u64]| used.iter().zip(most).all(|(used, most)| used <= most);
        let fits = after.accelerators.iter().zip(&formulation.capacities.accelerators).all(|(u, m)| within(u, m))
            && within(&after.host, &formulation.capacities.host)
            && formulation.ports.hold(problem, &layout)
            && formulation.within_quotas(&layout);
        if fits { Ok(layout) } else { Err(Block::Room) }
    }

    /// Whether a copy would be where another one of its model is, and they must be spread.
    fn shares(&self, layout: &[Copy], copy: &Copy) -> bool {
        let problem = self.problem;
        let demand = &problem.models[copy.model];
        let Some(label) = &demand.spread_by else { return false };
        let values: BTreeSet<&str> = copy.nodes().map(|node| spread_value(problem, label, node)).collect();
        let pinned = problem.running.iter().filter(|r| r.model == demand.name && is_pinned(problem, r));
        let pinned = pinned.filter_map(|running| problem.node(&running.node));
        let others = layout.iter().filter(|other| other.model == copy.model).flat_map(Copy::nodes);
        others.chain(pinned).any(|node| values.contains(spread_value(problem, label, node)))
    }

    fn compare(&self, forced: &Answer) -> Compared {
        let base: BTreeMap<&str, &Tier> = self.base.tiers.iter().map(|tier| (tier.name.as_str(), tier)).collect();
        let with: BTreeMap<&str, &Tier> = forced.tiers.iter().map(|tier| (tier.name.as_str(), tier)).collect();
        // In the order in which they were decided; a tier that only one of the two has is 0 in the other.
        let mut names: Vec<&str> = self.base.tiers.iter().map(|tier| tier.name.as_str()).collect();
        for (at, tier) in forced.tiers.iter().enumerate() {
            if !base.contains_key(tier.name.as_str()) {
                names.insert(at.min(names.len()), &tier.name);
            }
        }
        for name in names {
            let value = |tiers: &BTreeMap<&str, &Tier>| tiers.get(name).map_or(0.0, |tier| tier.value);
            let (without, with) = (value(&base), value(&with));
            // Replicas, those that outlast losses, and ways out are as many as possible.
            let weighted = self.problem.tail.iter().any(|tier| tier.name == name);
            let more_is_better = !weighted && !name.starts_with("displaced");
            let worse = if more_is_better { without - with } else { with - without };
            if worse > 1e-4 * without.abs().max(1.0) {
                let terms = if weighted { self.terms(name, &forced.layout) } else { Vec::new() };
                return Compared::Worse {
                    tier: name.to_owned(),
                    without,
                    with,
                    terms,
                    losers: self.losers(&forced.layout),
                };
            }
            if worse < -1e-4 * without.abs().max(1.0) {
                break;
            }
        }
        Compared::Equal
    }

    /// What the terms of a tier cost more with the forced shape, the most first.
    fn terms(&self, tier: &str, forced: &Layout) -> Vec<(&'static str, f64)> {
        let with = costs(self.problem, forced);
        let mut differ: Vec<(&'static str, f64)> = self
            .costs
            .iter()
            .zip(&with)
            .filter(|(base, _)| base.tier == tier)
            .map(|(base, with)| (base.term.word(), base.weight * (with.total() - base.total())))
            .filter(|(_, more)| more.abs() >= 0.005)
            .collect();
        differ.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(b.0)));
        differ
    }

    fn losers(&self, forced: &Layout) -> Vec<(String, u32)> {
        let (before, after) = (counts(self.problem, &self.base.layout), counts(self.problem, forced));
        let lost = before.iter().filter_map(|(model, number)| {
            let now = after.get(model).copied().unwrap_or(0);
            (now < *number).then(|| (self.problem.models[*model].name.clone(), number - now))
        });
        lost.collect()
    }
}
