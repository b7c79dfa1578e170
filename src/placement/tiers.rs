//! The strict tiers, solved one after another with the earlier ones carried as rows.
//!
//! Order: minimum replicas by rank from the top, desired replicas by rank, then the problem's own tiers, then a
//! tie-break. Before a tier whose models may not preempt, the number of displaced instances is at its least and
//! stays there; a tier whose models may preempt lifts that for lower ranks only, and afterwards the number is
//! brought to its least again. So nothing is displaced but where that places a replica of a higher rank.

use std::collections::BTreeMap;

use super::columns::{Formulation, merged};
use super::layout::{Layout, Loads};
use super::milp::{self, Linear, Row};
use super::{Limits, Tier, greedy};

/// What the tiers led to.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The copies.
    pub layout: Layout,
    /// Every tier that was decided, in order.
    pub tiers: Vec<Tier>,
    /// Whether the wall clock aborted the solver somewhere.
    pub aborted: bool,
}

/// Solves all tiers.
pub fn solve(formulation: &Formulation<'_>, limits: &Limits) -> Answer {
    let mut run = Run::new(formulation, limits);
    run.least_displaced(u32::MAX);
    let problem = formulation.problem;
    let mut ranks: Vec<u32> = problem.models.iter().map(|m| m.rank).collect();
    ranks.sort_unstable_by(|a, b| b.cmp(a));
    ranks.dedup();
    for minimum in [true, false] {
        for rank in &ranks {
            for preempts in [true, false] {
                let models: Vec<usize> = (0..problem.models.len())
                    .filter(|m| problem.models[*m].rank == *rank && problem.models[*m].preempts == preempts)
                    .collect();
                if !models.is_empty() {
                    run.replicas(minimum, *rank, preempts, &models);
                }
            }
        }
    }
    for tier in &problem.tail {
        let mut objective = Linear::new();
        let mut constant = 0.0;
        for (term, weight) in &tier.terms {
            let (row, fixed) = formulation.term(*term);
            objective.extend(row.into_iter().map(|(c, f)| (c, f * weight)));
            constant += fixed * weight;
        }
        run.tail(&tier.name, merged(objective), constant);
    }
    // In a large problem the order of equal places is not worth another proof.
    if formulation.program.columns.len() <= limits.large {
        run.tie_break();
    }
    Answer { layout: run.layout, tiers: run.tiers, aborted: run.aborted }
}

struct Run<'f, 'p> {
    formulation: &'f Formulation<'p>,
    limits: &'f Limits,
    /// Rows of earlier tiers.
    rows: Vec<Row>,
    /// Per victims' rank: displaced instances may not be more.
    displaced: BTreeMap<u32, f64>,
    layout: Layout,
    point: Vec<f64>,
    tiers: Vec<Tier>,
    aborted: bool,
}

impl<'f, 'p> Run<'f, 'p> {
    fn new(formulation: &'f Formulation<'p>, limits: &'f Limits) -> Self {
        let layout = greedy::layout(formulation);
        let point = formulation.point_of(&layout);
        Self {
            formulation,
            limits,
            rows: Vec::new(),
            displaced: BTreeMap::new(),
            layout,
            point,
            tiers: Vec::new(),
            aborted: false,
        }
    }

    /// Displaced instances of models of one rank.
    fn victims(&self, rank: u32) -> Linear {
        let models = self.formulation.problem.models.iter().zip(&self.formulation.displaced);
        models.filter(|(m, _)| m.rank == rank).filter_map(|(_, column)| column.map(|c| (c, 1.0))).collect()
    }

    /// Brings the displaced instances of ranks below `below` to their least, highest rank first.
    fn least_displaced(&mut self, below: u32) {
        let mut ranks: Vec<u32> = self.formulation.problem.models.iter().map(|m| m.rank).collect();
        ranks.retain(|rank| below == u32::MAX || *rank < below);
        ranks.sort_unstable_by(|a, b| b.cmp(a));
        ranks.dedup();
        for rank in &ranks {
            self.displaced.remove(rank);
        }
        for rank in ranks {
            let objective = self.victims(rank);
            if objective.is_empty() {
                continue;
            }
            let solved = self.minimise(&objective, 0.0, Some(0.0), 0.0);
            self.displaced.insert(rank, solved.value);
            if solved.value > 0.5 {
                self.record(format!("displaced instances, rank {rank}"), solved.value, solved.bound.ceil_near());
            }
        }
    }

    fn replicas(&mut self, minimum: bool, rank: u32, preempts: bool, models: &[usize]) {
        let mut objective = Linear::new();
        let mut most = 0.0;
        let mut pinned = 0.0;
        for model in models {
            let demand = &self.formulation.problem.models[*model];
            pinned += f64::from(self.formulation.pinned[*model].min(if minimum { demand.min } else { u32::MAX }));
            if minimum {
                let column = self.formulation.minimum[*model];
                objective.push((column, -1.0));
                most += self.formulation.program.columns[column].max;
            } else {
                objective.extend(self.formulation.placed[*model].iter().map(|(c, f)| (*c, -f)));
                most += f64::from(self.formulation.room[*model]);
            }
        }
        let lifted = if preempts { self.lift(rank) } else { false };
        let solved = self.minimise(&objective, 0.0, Some(-most), 0.0);
        self.rows.push(Row { terms: objective, limit: solved.value + 1e-6 });
        let kind = if minimum { "minimum" } else { "desired" };
        let mut name = format!("{kind} replicas, rank {rank}");
        if preempts {
            name.push_str(", preempting");
        }
        self.record(name, pinned - solved.value, pinned + (-solved.bound).floor_near());
        if lifted {
            self.least_displaced(rank);
        }
    }

    /// Lets lower ranks be displaced; whether there are any.
    fn lift(&mut self, rank: u32) -> bool {
        let before = self.displaced.len();
        self.displaced.retain(|victims, _| *victims >= rank);
        before != self.displaced.len()
    }

    fn tail(&mut self, name: &str, objective: Linear, constant: f64) {
        let gap = self.limits.gap;
        // No term is ever negative.
        let solved = self.minimise(&objective, constant, Some(-constant), gap);
        let slack = 1e-6 * solved.value.abs().max(1.0);
        self.rows.push(Row { terms: objective, limit: solved.value - constant + slack });
        self.record(name.to_owned(), solved.value, solved.bound);
    }

    fn tie_break(&mut self) {
        let objective = self.formulation.tie_break();
        let _ = self.minimise(&objective, 0.0, None, self.limits.gap.max(1e-6));
    }

    fn record(&mut self, name: String, value: f64, bound: f64) {
        let bound = if bound.is_finite() { bound } else { 0.0 };
        let distance = (value - bound).abs();
        let gap = if distance < 1e-6 { 0.0 } else { distance / value.abs().max(1.0) };
        let clean = |v: f64| (v * 1e6).round() / 1e6 + 0.0;
        self.tiers.push(Tier { name, value: clean(value), bound: clean(bound), gap: clean(gap) });
    }

    /// Minimises one objective; keeps the incumbent where nothing better comes out.
    fn minimise(&mut self, objective: &[(usize, f64)], constant: f64, least: Option<f64>, gap: f64) -> Bounded {
        let incumbent = milp::value(objective, &self.point);
        if least.is_some_and(|least| incumbent <= least + 1e-6) || objective.is_empty() {
            return Bounded { value: incumbent + constant, bound: incumbent + constant };
        }
        let mut rows = self.rows.clone();
        for (rank, limit) in &self.displaced {
            rows.push(Row { terms: self.victims(*rank), limit: limit + 1e-6 });
        }
        let solved = milp::minimise(&self.formulation.program, &rows, objective, &self.point, gap, self.limits);
        self.aborted |= solved.aborted;
        let layout = solved.point.as_ref().map(|point| self.formulation.layout_of(point));
        let mut value = incumbent;
        if let Some(layout) = layout {
            let point = self.formulation.point_of(&layout);
            let found = milp::value(objective, &point);
            if found < incumbent - 1e-9 && self.holds(&rows, &point) && self.fits(&layout) {
                self.layout = layout;
                self.point = point;
                value = found;
            }
        }
        Bounded { value: value + constant, bound: solved.bound.max(least.unwrap_or(f64::NEG_INFINITY)) + constant }
    }

    fn holds(&self, rows: &[Row], point: &[f64]) -> bool {
        rows.iter().all(|row| milp::value(&row.terms, point) <= row.limit + 1e-5 * row.limit.abs().max(1.0))
    }

    /// Capacities once more, in whole numbers: the solver's tolerance must not overfill anything.
    fn fits(&self, layout: &Layout) -> bool {
        let problem = self.formulation.problem;
        let capacities = &self.formulation.capacities;
        let loads = Loads::rounded(problem, capacities, layout);
        let within = |used: &[u64], most: &[u64]| used.iter().zip(most).all(|(used, most)| used <= most);
        loads.accelerators.iter().zip(&capacities.accelerators).all(|(used, most)| within(used, most))
            && within(&loads.host, &capacities.host)
    }
}

/// A value of the minimised objective and what it cannot be below.
struct Bounded {
    value: f64,
    bound: f64,
}

/// Rounding of bounds on whole numbers, against the solver's small errors.
trait Near {
    fn floor_near(self) -> f64;
    fn ceil_near(self) -> f64;
}

impl Near for f64 {
    fn floor_near(self) -> f64 {
        (self + 1e-6).floor()
    }

    fn ceil_near(self) -> f64 {
        (self - 1e-6).ceil()
    }
}
