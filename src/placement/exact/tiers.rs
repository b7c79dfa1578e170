//! The strict tiers, solved one after another with the earlier ones carried as rows.
//!
//! Order: minimum replicas by rank from the top, replicas that outlast losses of spot nodes by rank, desired replicas
//! by rank, ways out that a limit could leave without a node, then the problem's own tiers, then the order of equal
//! places. Before a tier whose models may not preempt, the number of displaced instances is at its least and stays
//! there; a tier whose models may preempt lifts that for lower ranks only, and afterwards the number is brought to its
//! least again. So nothing is displaced but where that places a replica of a higher rank.

use std::collections::BTreeMap;

use crate::placement::exact::columns::{Formulation, merged};
use crate::placement::exact::{greedy, order};
use crate::placement::layout::{Layout, Loads};
use crate::placement::milp;
use crate::placement::milp::{Linear, Row};
use crate::placement::{Limits, Tier};

/// The largest factor of a weighted tier, as the solver sees it.
const LARGEST: f64 = 100.0;

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

/// What happens while a problem is solved, for whoever takes the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The program is written; a large one tells again at the end, with the columns that were found on the way.
    Columns {
        /// Its columns.
        columns: usize,
        /// Its rows.
        rows: usize,
    },
    /// There is a first complete answer.
    Incumbent,
}

/// Who is told. Nothing that it does can change the answer.
#[derive(Clone, Copy)]
pub struct Watch<'w>(pub &'w dyn Fn(Event));

impl Watch<'_> {
    /// Nobody.
    pub const NONE: Watch<'static> = Watch(&|_| {});

    /// Tells of something.
    pub fn tell(&self, event: Event) {
        (self.0)(event);
    }
}

/// Columns up to which the order of equal places is brought to its best, and not only to one that no single step
/// betters.
pub const PROVED_ORDER: usize = 128;

/// Columns up to which a program is small for the solver ([`milp::minimise_small`]).
const SMALL: usize = 1_000;

/// Solves all tiers, and brings equal places into their order where the problem is not large.
pub fn solve(formulation: &Formulation<'_>, limits: &Limits, events: Watch<'_>) -> Answer {
    let (columns, rows) = (formulation.program.columns.len(), formulation.program.rows.len());
    events.tell(Event::Columns { columns, rows });
    let start = greedy::layout(formulation);
    events.tell(Event::Incumbent);
    solve_from(formulation, limits, start)
}

/// The same from a given layout, which must hold all rows of the program.
pub fn solve_from(formulation: &Formulation<'_>, limits: &Limits, start: Layout) -> Answer {
    let mut decided = decide(formulation, limits, start);
    // In a large problem the order of equal places is not worth the work.
    if formulation.program.columns.len() <= limits.large { decided.ordered() } else { decided.answer() }
}

/// All tiers, decided.
pub struct Decided<'f, 'p>(Run<'f, 'p>);

impl Decided<'_, '_> {
    /// As the tiers left it.
    pub fn answer(&mut self) -> Answer {
        self.0.what_was_reached();
        Answer { layout: self.0.layout.clone(), tiers: self.0.tiers.clone(), aborted: self.0.aborted }
    }

    /// With equal places in their order.
    pub fn ordered(mut self) -> Answer {
        self.0.order();
        self.answer()
    }
}

/// Solves all tiers from a layout that holds all rows of the program.
pub fn decide<'f, 'p>(formulation: &'f Formulation<'p>, limits: &'f Limits, start: Layout) -> Decided<'f, 'p> {
    let mut run = Run::new(formulation, limits, start);
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
        if minimum {
            ranks.iter().for_each(|rank| run.hedge(*rank));
        }
    }
    run.ways_out();
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
    Decided(run)
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
    /// Tiers of replicas: their index, that of their row, and the pinned ones.
    counted: Vec<(usize, usize, f64)>,
    aborted: bool,
}

impl<'f, 'p> Run<'f, 'p> {
    fn new(formulation: &'f Formulation<'p>, limits: &'f Limits, layout: Layout) -> Self {
        let point = formulation.point_of(&layout);
        Self {
            formulation,
            limits,
            rows: Vec::new(),
            displaced: BTreeMap::new(),
            layout,
            point,
            tiers: Vec::new(),
            counted: Vec::new(),
            aborted: false,
        }
    }

    /// Later tiers may have brought more replicas than an unproven one found: what is told is what the layout has.
    fn what_was_reached(&mut self) {
        for (tier, row, pinned) in &self.counted {
            let reached = pinned - milp::value(&self.rows[*row].terms, &self.point);
            let tier = &mut self.tiers[*tier];
            if tier.gap > 0.0 && reached > tier.value + 0.5 {
                (tier.value, tier.gap) = (reached, (tier.bound - reached).max(0.0) / reached.abs().max(1.0));
            }
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
        self.counted.push((self.tiers.len(), self.rows.len() - 1, pinned));
        self.record(name, pinned - solved.value, pinned + (-solved.bound).floor_near());
        if lifted {
            self.least_displaced(rank);
        }
    }

    /// Replicas up to the minimum that the worst losses of spot nodes leave. Nothing that runs moves for it.
    fn hedge(&mut self, rank: u32) {
        let Some((objective, most)) = self.formulation.hedge_tier(rank) else { return };
        let solved = self.minimise(&objective, 0.0, Some(-most), 0.0);
        self.rows.push(Row { terms: objective, limit: solved.value + 1e-6 });
        let losses = self.formulation.problem.spot_hedge;
        let name =
            format!("replicas that outlast {losses} spot loss{}, rank {rank}", if losses == 1 { "" } else { "es" });
        self.record(name, -solved.value, (-solved.bound).floor_near());
    }

    /// Ways out that a limit on their traffic could leave without an egress node: as few as possible.
    fn ways_out(&mut self) {
        let objective: Linear = self.formulation.traffic.limited_ways().into_iter().map(|(c, f)| (c, -f)).collect();
        if objective.is_empty() {
            return;
        }
        let most = self.formulation.traffic.limited().len() as f64;
        let solved = self.minimise(&objective, 0.0, Some(-most), 0.0);
        self.rows.push(Row { terms: objective, limit: solved.value + 1e-6 });
        self.record("ways out".to_owned(), -solved.value, (-solved.bound).floor_near());
    }

    /// Lets lower ranks be displaced; whether there are any.
    fn lift(&mut self, rank: u32) -> bool {
        let before = self.displaced.len();
        self.displaced.retain(|victims, _| *victims >= rank);
        before != self.displaced.len()
    }

    fn tail(&mut self, name: &str, mut objective: Linear, mut constant: f64) {
        let gap = self.limits.gap;
        // The unit of the weights is the user's: what the solver tolerates must not depend on it.
        let unit = objective.iter().map(|(_, factor)| factor.abs()).fold(0.0, f64::max) / LARGEST;
        let unit = if unit > 0.0 { unit } else { 1.0 };
        objective.iter_mut().for_each(|(_, factor)| *factor /= unit);
        constant /= unit;
        // No term is ever negative.
        let solved = self.minimise(&objective, constant, Some(-constant), gap);
        let slack = 1e-6 * solved.value.abs().max(1.0);
        self.rows.push(Row { terms: objective, limit: solved.value - constant + slack });
        self.record(name.to_owned(), solved.value * unit, solved.bound * unit);
    }

    /// Brings equal places into their order.
    fn order(&mut self) {
        let rows = self.all_rows();
        let holds = |layout: &Layout, point: &[f64]| order::within(rows.iter(), point) && self.fits(layout);
        if let Some((layout, point)) = order::settle(self.formulation, &holds, &self.layout) {
            (self.layout, self.point) = (layout, point);
        }
        if self.formulation.program.columns.len() <= PROVED_ORDER {
            let objective = self.formulation.tie_break();
            let _ = self.minimise(&objective, 0.0, None, self.limits.gap.max(1e-6));
        }
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
        let rows = self.all_rows();
        let small = self.formulation.program.columns.len() <= SMALL;
        let minimise = if small { milp::minimise_small } else { milp::minimise };
        let solved = minimise(&self.formulation.program, &rows, objective, &self.point, gap, self.limits);
        self.aborted |= solved.aborted;
        let layout = solved.point.as_ref().map(|point| self.formulation.layout_of(point));
        let mut value = incumbent;
        if let Some(layout) = layout {
            let point = self.formulation.point_of(&layout);
            let found = milp::value(objective, &point);
            if found < incumbent - 1e-9 && order::within(rows.iter(), &point) && self.fits(&layout) {
                self.layout = layout;
                self.point = point;
                value = found;
            }
        }
        Bounded { value: value + constant, bound: solved.bound.max(least.unwrap_or(f64::NEG_INFINITY)) + constant }
    }

    /// Rows of the tiers so far.
    fn all_rows(&self) -> Vec<Row> {
        let displaced = self.displaced.iter();
        let displaced = displaced.map(|(rank, limit)| Row { terms: self.victims(*rank), limit: limit + 1e-6 });
        self.rows.iter().cloned().chain(displaced).collect()
    }

    /// Capacities once more, in whole numbers: the solver's tolerance must not overfill anything.
    fn fits(&self, layout: &Layout) -> bool {
        let problem = self.formulation.problem;
        let capacities = &self.formulation.capacities;
        let loads = Loads::rounded(problem, capacities, layout);
        let within = |used: &[u64], most: &[u64]| used.iter().zip(most).all(|(used, most)| used <= most);
        loads.accelerators.iter().zip(&capacities.accelerators).all(|(used, most)| within(used, most))
            && within(&loads.host, &capacities.host)
            && self.formulation.ports.hold(problem, layout)
            && self.formulation.within_quotas(layout)
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
