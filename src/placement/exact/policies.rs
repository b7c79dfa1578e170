//! Rows and columns of quotas, spot hedges and `pack`.
//!
//! A hedge of N: `survivors <= copies - N x lambda - sum(mu_n)` with `lambda + mu_n >= copies on spot node n`, which is
//! tight at the N fullest spot nodes: survivors are at most what the worst N losses leave. A copy over several spot nodes
//! counts as lost, whichever nodes are.

use std::collections::{BTreeMap, BTreeSet};

use crate::placement::build::quota::QuotaLimit;
use crate::placement::exact::columns::{Formulation, merged};
use crate::placement::layout::{Copy, is_pinned};
use crate::placement::milp::{Linear, value};
use crate::placement::{Problem, Shape, Term};

/// Weights of a hedge's rows: how a model survives.
#[derive(Debug, Clone)]
struct Hedge {
    model: usize,
    survivors: usize,
    lambda: usize,
    /// By spot node: its `mu`, the copies that are lost with it alone, and the pinned ones.
    nodes: BTreeMap<usize, (usize, Linear, u32)>,
    /// Copies that are lost with one node at most, and the pinned ones.
    copies: Linear,
    pinned: u32,
}

/// What `pack` counts of a model.
#[derive(Debug, Clone)]
struct Pack {
    model: usize,
    extra: usize,
    /// By node: 1 where the model is there, and its copies.
    nodes: BTreeMap<usize, (usize, Linear)>,
    pinned: usize,
}

/// What policies add to a formulation.
#[derive(Debug, Clone, Default)]
pub struct PolicyRows {
    quotas: Vec<QuotaLimit>,
    hedges: Vec<Hedge>,
    packs: Vec<Pack>,
}

/// All nodes that a copy of a shape is on.
fn nodes_of(shape: &Shape, node: usize) -> BTreeSet<usize> {
    shape.further.iter().map(|part| part.node).chain([node]).collect()
}

/// Pinned instances of a model by node.
fn pinned_at(problem: &Problem, model: usize) -> BTreeMap<usize, u32> {
    let mut found = BTreeMap::new();
    let name = &problem.models[model].name;
    for running in problem.running.iter().filter(|r| r.model == *name && is_pinned(problem, r)) {
        if let Some(node) = problem.node(&running.node) {
            *found.entry(node).or_default() += 1;
        }
    }
    found
}

impl Formulation<'_> {
    /// Adds all of it.
    pub(in crate::placement) fn policies(&mut self) {
        self.quotas();
        self.hedges();
        self.packs();
    }

    /// Every way a model may be placed: the shape, its node, and the number of copies.
    fn ways(&self) -> Vec<(usize, usize, usize, Linear)> {
        let kept = self.kept.iter().map(|k| (k.copy.model, k.copy.shape, k.copy.node, vec![(k.column, 1.0)]));
        let fresh = self.fresh.iter().map(|f| {
            let node = self.problem.models[f.model].shapes[f.shape].node;
            (f.model, f.shape, node, f.count.clone())
        });
        kept.chain(fresh).collect()
    }

    fn quotas(&mut self) {
        let limits = QuotaLimit::all(self.problem);
        let ways = if limits.is_empty() { Vec::new() } else { self.ways() };
        for limit in &limits {
            let (mut accelerators, mut bytes) = (Linear::new(), Linear::new());
            for (model, shape, _, count) in ways.iter().filter(|way| limit.models.contains(&way.0)) {
                let taken = limit.of(&self.problem.models[*model].shapes[*shape]);
                let times = |each: f64| count.iter().map(move |(c, f)| (*c, f * each));
                accelerators.extend(times(taken.accelerators as f64));
                bytes.extend(times(taken.bytes as f64 / crate::placement::exact::columns::UNIT));
            }
            if let Some(most) = limit.accelerators {
                self.program.at_most(merged(accelerators), most as f64);
            }
            if let Some(most) = limit.bytes {
                self.program.at_most(merged(bytes), most as f64 / crate::placement::exact::columns::UNIT);
            }
        }
        self.policy.quotas = limits;
    }

    fn hedges(&mut self) {
        let problem = self.problem;
        let losses = problem.spot_hedge;
        if losses == 0 || !problem.nodes.iter().any(|node| node.spot && node.member) {
            return;
        }
        let ways = self.ways();
        for (model, demand) in problem.models.iter().enumerate().filter(|(_, demand)| demand.min > 0) {
            let survivors = self.program.column(0.0, f64::from(demand.min), true);
            let most = f64::from(self.room[model] + self.pinned[model]);
            let lambda = self.program.column(0.0, most, false);
            let mut hedge = Hedge {
                model,
                survivors,
                lambda,
                nodes: BTreeMap::new(),
                copies: Linear::new(),
                pinned: self.pinned[model],
            };
            let mut at: BTreeMap<usize, (Linear, u32)> = BTreeMap::new();
            for (node, count) in pinned_at(problem, model) {
                if problem.nodes[node].spot {
                    at.entry(node).or_default().1 += count;
                }
            }
            for (_, shape, node, count) in ways.iter().filter(|way| way.0 == model) {
                let on = nodes_of(&demand.shapes[*shape], *node);
                let spot: Vec<usize> = on.into_iter().filter(|node| problem.nodes[*node].spot).collect();
                if spot.len() > 1 {
                    continue;
                }
                hedge.copies.extend(count.iter().copied());
                if let [node] = spot[..] {
                    at.entry(node).or_default().0.extend(count.iter().copied());
                }
            }
            let mut row: Linear = hedge.copies.iter().map(|(c, f)| (*c, -f)).collect();
            row.extend([(survivors, 1.0), (lambda, f64::from(losses))]);
            for (node, (copies, pinned)) in at {
                let mu = self.program.column(0.0, most, false);
                row.push((mu, 1.0));
                let mut lost = copies.clone();
                lost.extend([(lambda, -1.0), (mu, -1.0)]);
                self.program.at_most(merged(lost), -f64::from(pinned));
                hedge.nodes.insert(node, (mu, copies, pinned));
            }
            self.program.at_most(merged(row), f64::from(hedge.pinned));
            self.policy.hedges.push(hedge);
        }
    }

    fn packs(&mut self) {
        let problem = self.problem;
        let weighed = |(term, weight): &(Term, f64)| *term == Term::Pack && *weight > 0.0;
        if !problem.tail.iter().any(|tier| tier.terms.iter().any(weighed)) {
            return;
        }
        let ways = if problem.models.iter().any(|m| m.pack) { self.ways() } else { Vec::new() };
        for (model, demand) in problem.models.iter().enumerate().filter(|(_, demand)| demand.pack) {
            let mut nodes: BTreeMap<usize, (usize, Linear)> = BTreeMap::new();
            for (_, shape, node, count) in ways.iter().filter(|way| way.0 == model) {
                for node in nodes_of(&demand.shapes[*shape], *node) {
                    let entry =
                        nodes.entry(node).or_insert_with(|| (self.program.column(0.0, 1.0, true), Linear::new()));
                    entry.1.extend(count.iter().copied());
                }
            }
            let pinned = pinned_at(problem, model).len();
            let extra = self.program.column(0.0, (nodes.len() + pinned) as f64, false);
            let mut sum = Linear::new();
            for (used, copies) in nodes.values() {
                let mut row = copies.clone();
                row.push((*used, -f64::from(self.room[model].max(1))));
                self.program.at_most(merged(row), 0.0);
                sum.push((*used, 1.0));
            }
            sum.push((extra, -1.0));
            self.program.at_most(sum, 1.0 - pinned as f64);
            self.policy.packs.push(Pack { model, extra, nodes, pinned });
        }
    }

    /// What the hedge of one rank maximises, negated, and the most it can be; `None` where there is nothing to hedge.
    pub(in crate::placement) fn hedge_tier(&self, rank: u32) -> Option<(Linear, f64)> {
        let of = self.policy.hedges.iter().filter(|hedge| self.problem.models[hedge.model].rank == rank);
        let columns: Vec<usize> = of.map(|hedge| hedge.survivors).collect();
        let most = columns.iter().map(|column| self.program.columns[*column].max).sum();
        (!columns.is_empty()).then(|| (columns.into_iter().map(|column| (column, -1.0)).collect(), most))
    }

    /// [`Term::Pack`].
    pub(in crate::placement) fn pack_term(&self) -> Linear {
        self.policy.packs.iter().map(|pack| (pack.extra, 1.0)).collect()
    }

    /// The columns of [`Term::Pack`] that belong to some models.
    pub(in crate::placement) fn pack_columns(&self, models: &BTreeSet<usize>) -> Vec<usize> {
        let of = self.policy.packs.iter().filter(|pack| models.contains(&pack.model));
        of.map(|pack| pack.extra).collect()
    }

    /// Sets the columns that follow from the copies to their best values.
    pub(in crate::placement) fn complete_policies(&self, point: &mut [f64]) {
        for hedge in &self.policy.hedges {
            let lost = |(_, copies, pinned): &(usize, Linear, u32)| value(copies, point).round() + f64::from(*pinned);
            let mut each: Vec<f64> = hedge.nodes.values().map(lost).collect();
            each.sort_by(|a, b| b.total_cmp(a));
            let losses = self.problem.spot_hedge as usize;
            let worst: f64 = each.iter().take(losses).sum();
            let lambda = each.get(losses.saturating_sub(1)).copied().unwrap_or(0.0);
            let alive = value(&hedge.copies, point).round() + f64::from(hedge.pinned) - worst;
            let values: Vec<(usize, f64)> =
                hedge.nodes.values().map(|node| (node.0, (lost(node) - lambda).max(0.0))).collect();
            values.into_iter().for_each(|(mu, value)| point[mu] = value);
            point[hedge.lambda] = lambda;
            point[hedge.survivors] = alive.clamp(0.0, self.program.columns[hedge.survivors].max);
        }
        for pack in &self.policy.packs {
            let mut used = pack.pinned;
            for (column, copies) in pack.nodes.values() {
                let there = value(copies, point) > 0.5;
                point[*column] = f64::from(u8::from(there));
                used += usize::from(there);
            }
            point[pack.extra] = used.saturating_sub(1) as f64;
        }
    }

    /// Whether the quotas allow one more copy.
    pub(in crate::placement) fn quotas_allow(&self, layout: &[Copy], copy: &Copy) -> bool {
        self.policy.quotas.iter().all(|limit| limit.allows_beside(self.problem, layout, copy))
    }

    /// Whether a layout is within all quotas.
    pub(in crate::placement) fn within_quotas(&self, layout: &[Copy]) -> bool {
        self.policy.quotas.iter().all(|limit| limit.allows(limit.taken(self.problem, layout)))
    }
}
