//! The mixed-integer solver behind a small interface. The only file that knows good_lp and HiGHS.

use good_lp::{Constraint, Expression, ProblemVariables, SolverModel, variable};

use super::Limits;

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
}

impl Solved {
    fn nothing() -> Self {
        Self { point: None, bound: f64::NEG_INFINITY, aborted: false, finished: false }
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
        let Some(solved) = run(program, further, objective, start, gap, limits, presolve) else { continue };
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

fn run(
    program: &Program,
    further: &[Row],
    objective: &[(usize, f64)],
    start: &[f64],
    gap: f64,
    limits: &Limits,
    presolve: &str,
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
    Some(Solved { point, bound, aborted: status.contains("TimeLimit"), finished: status == "Optimal" })
}
