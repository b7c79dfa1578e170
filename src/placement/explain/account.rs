//! What a layout costs, term by term and model by model.

use std::collections::BTreeSet;

use crate::placement::exact::columns::Formulation;
use crate::placement::layout::{Copy, keepable};
use crate::placement::{End, Problem, Term, Traffic};

/// A term of the objective with its value in a layout. Its share of the objective is `weight` times `value`.
#[derive(Debug, Clone, PartialEq)]
pub struct TermCost {
    /// The tier that it belongs to.
    pub tier: String,
    /// Which one.
    pub term: Term,
    /// The config's weight.
    pub weight: f64,
    /// Per model, in the order of the problem.
    pub by_model: Vec<f64>,
    /// What belongs to no model alone.
    pub shared: f64,
}

impl TermCost {
    /// The whole value.
    pub fn total(&self) -> f64 {
        self.by_model.iter().sum::<f64>() + self.shared
    }
}

impl Term {
    /// Its word: in the config's `objective`, or of what it counts.
    pub fn word(self) -> &'static str {
        match self {
            Self::Quality => "quality",
            Self::Stability => "stability",
            Self::Latency => "latency",
            Self::Locality => "locality",
            Self::Cost => "cost",
            Self::Balance => "balance",
            Self::Preference => "preference",
            Self::Pack => "pack",
            Self::Traffic => "traffic",
        }
    }

    /// What its value counts.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Quality => "quality ranks below the best variant; 20 more if it crawls",
            Self::Stability => "instances that lose their place, 1 to 3 each",
            Self::Latency => "0 to 1.1 a replica, less above 20 tokens/s",
            Self::Locality => "0 to 1 a replica, half at 64 GiB to fetch",
            Self::Cost => "accelerators, as shares of the largest or by price",
            Self::Balance => "share of the busiest node's memory",
            Self::Preference => "weights of `prefer` that are not met",
            Self::Pack => "nodes beyond the first of models with `pack`",
            Self::Traffic => "0 to 1 a pair, half at 100 ms a turn",
        }
    }
}

/// All terms of all weighted tiers, in their order: read from the solver's own rows, so that what is told is what was
/// minimised.
pub fn costs(problem: &Problem, layout: &[Copy]) -> Vec<TermCost> {
    let formulation = Formulation::new(problem, false);
    let point = formulation.point_of(layout);
    let mut owner: Vec<Option<usize>> = vec![None; point.len()];
    let mut stays: Vec<Option<usize>> = vec![None; point.len()];
    for fresh in &formulation.fresh {
        let counts = fresh.count.iter().map(|(column, _)| *column);
        for column in counts.chain(fresh.on.iter().map(|(_, column)| *column)) {
            owner[column] = Some(fresh.model);
        }
    }
    for kept in &formulation.kept {
        (owner[kept.column], stays[kept.column]) = (Some(kept.copy.model), Some(kept.copy.model));
    }
    for (column, from) in formulation.traffic.owners() {
        owner[column] = from;
    }
    let terms =
        problem.tail.iter().flat_map(|tier| tier.terms.iter().map(move |(term, weight)| (tier, *term, *weight)));
    terms
        .map(|(tier, term, weight)| {
            let (row, constant) = formulation.term(term);
            let (mut by_model, mut shared) = (vec![0.0; problem.models.len()], constant);
            for (column, factor) in row {
                match owner[column] {
                    Some(model) => by_model[model] += factor * point[column],
                    None => shared += factor * point[column],
                }
                // What a model loses where nothing of it stays is a constant: its own.
                if let Some(model) = stays[column].filter(|_| term == Term::Stability) {
                    by_model[model] -= factor;
                    shared += factor;
                }
            }
            TermCost { tier: tier.name.clone(), term, weight, by_model, shared: near(shared) }
        })
        .collect()
}

/// Without what is left of sums and differences that are zero.
fn near(value: f64) -> f64 {
    if value.abs() < 1e-9 { 0.0 } else { value }
}

/// The same of a layout alone, without the solver's rows: for clusters whose rows take too long to write.
pub fn counted(problem: &Problem, layout: &[Copy]) -> Vec<TermCost> {
    let terms =
        problem.tail.iter().flat_map(|tier| tier.terms.iter().map(move |(term, weight)| (tier, *term, *weight)));
    terms
        .map(|(tier, term, weight)| {
            let (by_model, shared) = values(problem, layout, term);
            TermCost { tier: tier.name.clone(), term, weight, by_model, shared }
        })
        .collect()
}

fn values(problem: &Problem, layout: &[Copy], term: Term) -> (Vec<f64>, f64) {
    let mut by_model = vec![0.0; problem.models.len()];
    match term {
        Term::Balance => return (by_model, busiest(problem, layout)),
        Term::Stability => {
            let stays = |index: usize| layout.iter().any(|copy| copy.kept == Some(index));
            for copy in keepable(problem) {
                if let Some(index) = copy.kept.filter(|index| !stays(*index)) {
                    by_model[copy.model] += problem.running[index].weight();
                }
            }
        }
        Term::Pack => {
            for (model, by) in by_model.iter_mut().enumerate().filter(|(model, _)| problem.models[*model].pack) {
                let nodes: BTreeSet<usize> = of(layout, model).flat_map(Copy::nodes).collect();
                *by = nodes.len().saturating_sub(1) as f64;
            }
        }
        Term::Traffic => {
            for traffic in &problem.traffic {
                if let Some(model) = problem.model(&traffic.from) {
                    by_model[model] += turns(problem, layout, model, traffic);
                }
            }
        }
        Term::Cost => {
            let costs = crate::placement::build::price::costs(problem);
            for copy in layout {
                by_model[copy.model] += on(copy).map(|(node, at)| costs[node][at]).sum::<f64>();
            }
        }
        _ => {
            for copy in layout {
                by_model[copy.model] += value(problem, copy, term);
            }
        }
    }
    (by_model, 0.0)
}

fn of(layout: &[Copy], model: usize) -> impl Iterator<Item = &Copy> {
    layout.iter().filter(move |copy| copy.model == model)
}

/// What the turns of one traffic cost: from every replica to the nearest one of the other end.
fn turns(problem: &Problem, layout: &[Copy], model: usize, traffic: &Traffic) -> f64 {
    let ways = problem.distances.ways(traffic.bytes_per_turn);
    let name = |node: usize| problem.nodes[node].name.as_str();
    let ends: Vec<&str> = match &traffic.to {
        End::Node(node) => vec![node],
        End::Model(to) => match problem.model(to) {
            Some(to) => of(layout, to).map(|copy| name(copy.node)).collect(),
            None => Vec::new(),
        },
        // In a large cluster ways out are chosen when all models have their place.
        End::Out(_) => Vec::new(),
    };
    let nearest = |copy: &Copy| ends.iter().map(|end| ways.cost(name(copy.node), end)).reduce(f64::min);
    of(layout, model).filter_map(nearest).sum::<f64>() * traffic.weight
}

fn value(problem: &Problem, copy: &Copy, term: Term) -> f64 {
    let demand = &problem.models[copy.model];
    let shape = &demand.shapes[copy.shape];
    match term {
        Term::Quality => f64::from(demand.loss(shape)),
        Term::Latency => shape.slowness(),
        Term::Locality if copy.kept.is_some() => 0.0,
        Term::Locality => shape.distance(),
        Term::Preference => f64::from(demand.unmet(&problem.nodes[copy.node])),
        Term::Cost | Term::Stability | Term::Balance | Term::Pack | Term::Traffic => 0.0,
    }
}

/// The accelerators of a copy, those of further parts too.
fn on(copy: &Copy) -> impl Iterator<Item = (usize, usize)> {
    let own = copy.accelerators.iter().map(|at| (copy.node, *at));
    own.chain(copy.further.iter().flat_map(|(node, on)| on.iter().map(|at| (*node, *at))))
}

fn busiest(problem: &Problem, layout: &[Copy]) -> f64 {
    let mut used = vec![0.0; problem.nodes.len()];
    for copy in layout {
        let shape = &problem.models[copy.model].shapes[copy.shape];
        used[copy.node] += shape.per_accelerator.total_bytes() as f64 * copy.accelerators.len() as f64;
        for (part, (node, on)) in shape.further.iter().zip(&copy.further) {
            used[*node] += part.per_accelerator.total_bytes() as f64 * on.len() as f64;
        }
    }
    let memory =
        |node: &crate::placement::NodeSupply| node.accelerators.iter().map(|a| a.total_bytes).sum::<u64>() as f64;
    used.iter().zip(&problem.nodes).map(|(used, node)| used / memory(node).max(1.0)).fold(0.0, f64::max)
}
