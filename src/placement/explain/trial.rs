//! What the placement would be if something were otherwise: changed inputs, solved. Counted, so that an explanation
//! ends, and ends with the same answer on any machine.

use std::borrow::Cow;

use crate::config::Desired;
use crate::inventory::Inventory;
use crate::placement::build::{classes, shapes};
use crate::placement::exact::columns::Formulation;
use crate::placement::exact::tiers;
use crate::placement::exact::tiers::Answer;
use crate::placement::explain::change::Change;
use crate::placement::layout::Layout;
use crate::placement::solve::counts;
use crate::placement::{Candidates, Limits, ModelDemand, Options, Origin, Problem, large};

/// What a placement is made from.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// The desired state.
    pub desired: &'a Desired,
    /// The facts.
    pub inventory: &'a Inventory,
    /// Candidate weights.
    pub candidates: &'a Candidates,
    /// How to solve.
    pub options: &'a Options,
}

/// Accelerators up to which changed problems are solved as freely as [`SMALL`] allows.
const MODEST_ACCELERATORS: usize = 100;
/// Changed problems that are solved for one explanation of a small cluster, of each kind of question.
const SMALL: u32 = 48;
/// The same of a modest one.
const MODEST: u32 = 16;

/// How many changed problems may be solved for one kind of question; 0 where the cluster is too large.
pub fn budget(problem: &Problem) -> u32 {
    match problem.accelerators() {
        few if few <= problem.limits.exact_accelerators => SMALL,
        some if some <= MODEST_ACCELERATORS => MODEST,
        _ => 0,
    }
}

/// How one model fares.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fare {
    /// Replicas that are not placed.
    pub missing: u32,
    /// What every placed replica is below the best variant, the worst first.
    pub losses: Vec<u32>,
}

/// A changed problem and its answer.
pub struct Outcome {
    /// The problem.
    pub problem: Problem,
    /// The copies.
    pub layout: Layout,
}

impl Outcome {
    /// How a model fares; all is missing of one that is not there.
    pub fn fare(&self, name: &str, wanted: u32) -> Fare {
        fare(&self.problem, &self.layout, name, wanted)
    }

    /// Replicas of a model.
    pub fn placed(&self, name: &str) -> u32 {
        placed(&self.problem, &self.layout, name)
    }
}

/// Replicas of a model in a layout.
pub fn placed(problem: &Problem, layout: &Layout, name: &str) -> u32 {
    problem.model(name).and_then(|model| counts(problem, layout).get(&model).copied()).unwrap_or(0)
}

/// How a model fares in a layout when so many replicas of it are wanted.
pub fn fare(problem: &Problem, layout: &Layout, name: &str, wanted: u32) -> Fare {
    let Some(model) = problem.model(name) else { return Fare { missing: wanted, losses: Vec::new() } };
    let demand: &ModelDemand = &problem.models[model];
    let mut losses: Vec<u32> =
        layout.iter().filter(|copy| copy.model == model).map(|copy| demand.loss(&demand.shapes[copy.shape])).collect();
    losses.sort_unstable_by(|a, b| b.cmp(a));
    Fare { missing: wanted.saturating_sub(placed(problem, layout, name)), losses }
}

/// Solves changed problems until the budget is spent.
pub struct Trials<'a> {
    inputs: Inputs<'a>,
    left: u32,
}

impl<'a> Trials<'a> {
    /// With so many solves.
    pub fn new(inputs: Inputs<'a>, budget: u32) -> Self {
        Self { inputs, left: budget }
    }

    /// Whether none is left.
    pub fn spent(&self) -> bool {
        self.left == 0
    }

    /// What comes out with these changes. `tail` says whether more than the numbers of replicas is of interest.
    /// `None` where the budget is spent.
    pub fn solve(&mut self, changes: &[&Change], tail: bool) -> Option<Outcome> {
        self.solve_as(changes, tail, |_| {})
    }

    /// The same, of a problem that is seen otherwise before it is solved.
    pub fn solve_as(
        &mut self,
        changes: &[&Change],
        tail: bool,
        otherwise: impl FnOnce(&mut Problem),
    ) -> Option<Outcome> {
        self.left = self.left.checked_sub(1)?;
        let Inputs { desired, inventory, candidates, options } = self.inputs;
        let (mut desired, mut inventory, mut candidates) =
            (desired.clone(), inventory.clone(), Cow::Borrowed(candidates));
        for change in changes {
            let before = inventory.nodes.len();
            change.apply(&mut desired, &mut inventory);
            if let (Change::Node(like), Some(node)) = (change, inventory.nodes.get(before)) {
                files_too(candidates.to_mut(), like, &node.name);
            }
        }
        let mut problem = shapes::build(&desired, &inventory, &candidates, options);
        if !tail {
            problem.tail.clear();
        }
        otherwise(&mut problem);
        let layout = answer(&problem).layout;
        Some(Outcome { problem, layout })
    }
}

/// A node that is like another one has the files that only some nodes have.
fn files_too(candidates: &mut Candidates, like: &str, name: &str) {
    for candidate in candidates.values_mut().flatten().flatten() {
        if let Origin::OnNode { nodes, .. } = &mut candidate.origin
            && nodes.iter().any(|node| node == like)
        {
            nodes.push(name.to_owned());
        }
    }
}

/// All tiers of a problem, without the order of equal places, by the solver that a plan of it is made with: a change may
/// make a small cluster a large one.
pub fn answer(problem: &Problem) -> Answer {
    let limits = quick(problem);
    if problem.accelerators() > limits.exact_accelerators {
        return large::solve(problem, &limits, tiers::Watch::NONE);
    }
    if !problem.alike.is_empty() {
        let (apart, origins) = classes::apart(problem);
        let mut found = answer(&apart);
        found.layout.iter_mut().for_each(|copy| copy.shape = origins[copy.model][copy.shape]);
        return found;
    }
    let formulation = Formulation::new(problem, false);
    tiers::solve(&formulation, &limits, tiers::Watch::NONE)
}

/// Limits without a tie-break.
pub fn quick(problem: &Problem) -> Limits {
    Limits { large: 0, ..problem.limits }
}
