//! The mixed-integer solver behind a small interface. The only file that knows good_lp and HiGHS.

use good_lp::{Constraint, Expression, ProblemVariables, SolverModel, variable};

use crate::placement::Limits;

/// A linear expression: (column, factor) pairs.
pub type Linear = Vec<(usize, f64)>;

/// A column of the program.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// Least value.
    pub min: f64,
    /// Greatest value.
    pub max: f64,
    /// Whether it is integer.
    pub integer: bool,
}

/// `expression <= limit`.
#[derive(Debug, Clone)]
pub struct Row {
    /// Left side.
    pub terms: Linear,
    /// Right side.
    pub limit: f64,
}

/// Columns and rows without an objective.
#[derive(Debug, Clone, Default)]
pub struct Program {
    /// Columns.
    pub columns: Vec<Column>,
    /// Rows, all `<=`.
    pub rows: Vec<Row>,
}

impl Program {
    /// Adds a column, returns its index.
    pub fn column(&mut self, min: f64, max: f64, integer: bool) -> usize {
        self.columns.push(Column { min, max, integer });
        self.columns.len() - 1
    }

    /// Adds `terms <= limit`.
    pub fn at_most(&mut self, terms: Linear, limit: f64) {
        self.rows.push(Row { terms, limit });
    }

    /// Adds `terms >= limit`.
    pub fn at_least(&mut self, terms: Linear, limit: f64) {
        self.rows.push(negated(terms, limit));
    }
}

/// `terms >= limit` as a `<=` row.
pub fn negated(terms: Linear, limit: f64) -> Row {
    Row { terms: terms.into_iter().map(|(c, f)| (c, -f)).collect(), limit: -limit }
}

/// The value of an expression at a point.
pub fn value(terms: &[(usize, f64)], point: &[f64]) -> f64 {
    terms.iter().map(|(c, f)| f * point[*c]).sum()
}

/// What the solver found when minimising.
#[derive(Debug, Clone)]
pub struct Solved {
    /// Values of the columns, integers rounded; `None` where nothing was found.
    pub point: Option<Vec<f64>>,
    /// No point is below this.
    pub bound: f64,
    /// Whether the wall clock aborted the run.
    pub aborted: bool,
    /// Whether the solver says that it is done, and not that it met a limit.
    pub finished: bool,
    /// Whether the solver says that there is no point.
    pub infeasible: bool,
}

impl Solved {
    fn nothing() -> Self {
        Self { point: None, bound: f64::NEG_INFINITY, aborted: false, finished: false, infeasible: false }
    }
}

/// Minimises `objective` over the program and the further rows, from `start`.
///
/// One thread, a fixed seed and counted limits, so that equal calls give equal answers. A failure inside the
/// solver counts as "nothing found, nothing proved": the caller keeps its incumbent.
///
/// HiGHS can call its start optimal where presolve alone solves the rest, and state a bound that contradicts it.
/// It can also end in an error. So the bound is what counts: where the two differ without a limit being reached,
/// it runs again without a start, then without presolve.
pub fn minimise(
    program: &Program,
    further: &[Row],
    objective: &[(usize, f64)],
    start: &[f64],
    gap: f64,
    limits: &Limits,
) -> Solved {
    let mut best = Solved::nothing();
    // With the start, without it, and without presolve, until an answer and its bound agree or a limit is met.
    for (start, presolve) in [(start, "choose"), (&[][..], "choose"), (&[][..], "off")] {
        let attempt = Attempt { start, presolve, quick: false };
        let Some(solved) = run(program, further, objective, attempt, gap, limits) else { continue };
        let found = solved.point.as_ref().map(|point| value(objective, point));
        let proved = found.is_some_and(|found| found - solved.bound <= 2.0 * gap * found.abs() + 1e-5);
        let limited = !solved.finished;
        if solved.point.is_some() || best.point.is_none() {
            best = solved;
        }
        if proved || limited {
            break;
        }
    }
    best
}

/// What a program has below a limit that is one of its rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Below {
    /// No point.
    Nothing,
    /// No point below this.
    Bound(f64),
    /// Not known.
    Unknown,
}

/// Looks whether a program has any point, and what its objective cannot be below. Counted limits, as in [`minimise`].
pub fn nothing_below(program: &Program, further: &[Row], objective: &[(usize, f64)], limits: &Limits) -> Below {
    let attempt = Attempt { start: &[], presolve: "choose", quick: false };
    let Some(solved) = run(program, further, objective, attempt, 0.0, limits) else { return Below::Unknown };
    match solved {
        Solved { finished: false, infeasible: true, .. } => Below::Nothing,
        Solved { bound, aborted: false, .. } if bound.is_finite() => Below::Bound(bound),
        _ => Below::Unknown,
    }
}

/// The same for a program of some hundred columns, in which the solver does not begin again from its root once it has
/// fixed some of them, nor solves smaller programs between two points: there both cost more than they save. Where it is
/// not done so within the limit, all of it is done from what was found.
pub fn minimise_small(
    program: &Program,
    further: &[Row],
    objective: &[(usize, f64)],
    start: &[f64],
    gap: f64,
    limits: &Limits,
) -> Solved {
    let attempt = Attempt { start, presolve: "choose", quick: true };
    let Some(solved) = run(program, further, objective, attempt, gap, limits) else {
        return minimise(program, further, objective, start, gap, limits);
    };
    let proved = solved.point.as_ref().is_some_and(|point| {
        let found = value(objective, point);
        found - solved.bound <= 2.0 * gap * found.abs() + 1e-5
    });
    if solved.aborted || (solved.finished && proved) {
        return solved;
    }
    let from = solved.point.clone().unwrap_or_else(|| start.to_vec());
    let other = minimise(program, further, objective, &from, gap, limits);
    let bound = other.bound.max(solved.bound);
    Solved { point: other.point.or(solved.point), bound, ..other }
}

/// A column that is found while a relaxation is solved: its factors by row, and its greatest value.
#[derive(Debug, Clone)]
pub struct Late {
    /// Factors by row of the program.
    pub rows: Linear,
    /// Greatest value.
    pub max: f64,
}

/// The optimum of a relaxation over the columns that it has so far.
#[derive(Debug, Clone)]
pub struct Relaxed {
    /// Its value.
    pub value: f64,
    /// Values of the program's columns.
    pub point: Vec<f64>,
    /// Values of the late columns.
    pub late: Vec<f64>,
    /// What one more on the right side of each row changes in the value; none is above 0.
    pub duals: Vec<f64>,
}

/// What changes after an optimum of a relaxation.
#[derive(Debug, Clone, Default)]
pub struct Next {
    /// More columns; with none and nothing else the relaxation ends.
    pub more: Vec<Late>,
    /// Late columns that are taken out, by their order.
    pub out: std::ops::Range<usize>,
}

/// How a relaxation ended.
#[derive(Debug, Clone, Default)]
pub struct Relaxation {
    /// The last optimum; `None` where the solver failed or met a limit before the first.
    pub last: Option<Relaxed>,
    /// Whether the last run met a limit of time.
    pub aborted: bool,
    /// Simplex iterations in all.
    pub iterations: u64,
}

/// Minimises `objective` without integrality over the program, further rows, and columns that are found on the way.
///
/// After every optimum `price` sees it and answers with more columns, or with those that go, and the solver goes on from
/// where it was; with none it ends. One thread, a fixed seed; every run is limited to `iterations` simplex iterations.
pub fn relax(
    program: &Program,
    further: &[Row],
    objective: &[(usize, f64)],
    late: &[Late],
    limits: (i32, f64),
    price: &mut dyn FnMut(&Relaxed) -> Next,
) -> Relaxation {
    let mut ended = Relaxation::default();
    let mut all = late.to_vec();
    // Where going on from the last basis fails, once more from none.
    while resume(program, further, objective, &mut all, limits, price, &mut ended) {}
    ended
}

/// Solves and prices until nothing is left to do; `true` where the solver failed after it had come some way.
fn resume(
    program: &Program,
    further: &[Row],
    objective: &[(usize, f64)],
    all: &mut Vec<Late>,
    limits: (i32, f64),
    price: &mut dyn FnMut(&Relaxed) -> Next,
    ended: &mut Relaxation,
) -> bool {
    let Ok(mut model) = ProblemVariables::new().minimise(Expression::default()).using(good_lp::highs).try_into_inner()
    else {
        return false;
    };
    model.make_quiet();
    let options = model.try_set_option("threads", 1).is_ok()
        && model.try_set_option("parallel", "off").is_ok()
        && model.try_set_option("random_seed", 0).is_ok()
        && model.try_set_option("solver", "simplex").is_ok()
        && model.try_set_option("simplex_iteration_limit", limits.0).is_ok()
        && model.try_set_option("time_limit", limits.1).is_ok();
    if !options {
        return false;
    }
    // Rows first, without factors: columns can then be added one by one.
    let mut rows = Vec::new();
    for row in program.rows.iter().chain(further) {
        let Ok(row) = model.try_add_row(..=row.limit, []) else { return false };
        rows.push(row);
    }
    let mut factors: Vec<Linear> = vec![Linear::new(); program.columns.len()];
    for (index, row) in program.rows.iter().chain(further).enumerate() {
        row.terms.iter().for_each(|(column, factor)| factors[*column].push((index, *factor)));
    }
    let mut costs = vec![0.0; program.columns.len()];
    objective.iter().for_each(|(column, factor)| costs[*column] += factor);
    for ((column, factors), cost) in program.columns.iter().zip(factors).zip(costs) {
        let factors = factors.into_iter().map(|(row, factor)| (rows[row], factor));
        if model.try_add_column(cost, column.min..=column.max, factors).is_err() {
            return false;
        }
    }
    let mut more = all.clone();
    let mut columns = Vec::new();
    let mut solved_before = false;
    loop {
        for column in more {
            let factors = column.rows.into_iter().map(|(row, factor)| (rows[row], factor));
            let Ok(column) = model.try_add_column(0.0, 0.0..=column.max, factors) else { return false };
            columns.push(column);
        }
        let Ok(solved) = model.try_solve() else { return solved_before };
        ended.iterations += u64::try_from(solved.simplex_iteration_count()).unwrap_or(0);
        let status = format!("{:?}", solved.status());
        if status != "Optimal" {
            ended.aborted = status.contains("TimeLimit");
            return solved_before && !ended.aborted;
        }
        solved_before = true;
        let solution = solved.get_solution();
        let (point, late) = solution.columns().split_at(program.columns.len());
        let relaxed = Relaxed {
            value: solved.objective_value(),
            point: point.to_vec(),
            late: late.to_vec(),
            duals: solution.dual_rows().to_vec(),
        };
        let next = price(&relaxed);
        ended.last = Some(relaxed);
        if next.more.is_empty() && next.out.is_empty() {
            return false;
        }
        more = next.more;
        all.extend(more.iter().cloned());
        model = solved.into();
        for late in next.out {
            all[late].max = 0.0;
            model.change_column_bounds(columns[late], 0.0..=0.0);
        }
    }
}

/// How the solver is run.
struct Attempt<'a> {
    /// Values to begin with, or none.
    start: &'a [f64],
    presolve: &'a str,
    /// Without beginning again and without smaller programs between two points.
    quick: bool,
}

fn run(
    program: &Program,
    further: &[Row],
    objective: &[(usize, f64)],
    Attempt { start, presolve, quick }: Attempt<'_>,
    gap: f64,
    limits: &Limits,
) -> Option<Solved> {
    let mut variables = ProblemVariables::new();
    let columns: Vec<_> = program
        .columns
        .iter()
        .map(|column| {
            let definition = variable().min(column.min).max(column.max);
            variables.add(if column.integer { definition.integer() } else { definition })
        })
        .collect();
    let linear = |terms: &[(usize, f64)]| -> Expression {
        let mut expression = Expression::with_capacity(terms.len());
        for (column, factor) in terms {
            expression.add_mul(*factor, columns[*column]);
        }
        expression
    };
    let mut problem = variables.minimise(linear(objective)).using(good_lp::highs);
    for row in program.rows.iter().chain(further) {
        let constraint: Constraint = linear(&row.terms).leq(row.limit);
        problem.add_constraint(constraint);
    }
    let mut model = problem.try_into_inner().ok()?;
    model.make_quiet();
    let options = model.try_set_option("threads", 1).is_ok()
        && model.try_set_option("parallel", "off").is_ok()
        && model.try_set_option("random_seed", 0).is_ok()
        && model.try_set_option("presolve", presolve).is_ok()
        && model.try_set_option("mip_allow_restart", !quick).is_ok()
        && model.try_set_option("mip_heuristic_run_rins", !quick).is_ok()
        && model.try_set_option("mip_max_nodes", limits.nodes).is_ok()
        && model.try_set_option("mip_rel_gap", gap).is_ok()
        && model.try_set_option("mip_abs_gap", 1e-7).is_ok()
        && model.try_set_option("time_limit", limits.abort_s).is_ok();
    if !options {
        return None;
    }
    if start.len() == program.columns.len() {
        // A refused start only costs time.
        let _ = model.try_set_solution(Some(start), None, None, None);
    }
    let solved = model.try_solve().ok()?;
    let status = format!("{:?}", solved.status());
    let bound = solved.double_info_value(c"mip_dual_bound").unwrap_or(f64::NEG_INFINITY);
    let found = format!("{:?}", solved.primal_solution_status()) == "Feasible";
    let point = found.then(|| {
        let values = solved.get_solution();
        program
            .columns
            .iter()
            .zip(values.columns())
            .map(|(column, v)| if column.integer { v.round() } else { *v })
            .collect()
    });
    let infeasible = status == "Infeasible";
    Some(Solved { point, bound, aborted: status.contains("TimeLimit"), finished: status == "Optimal", infeasible })
}
