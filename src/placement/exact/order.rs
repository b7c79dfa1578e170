//! Which of equal places are taken: the lowest numbers of nodes and accelerators, the smallest accelerators, the first
//! shapes. It decides nothing that a tier decides, so it is a search by steps that each keep all rows, and not a proof.

use std::collections::{BTreeMap, BTreeSet};

use crate::placement::exact::columns::{Formulation, Fresh};
use crate::placement::layout::{Copy, Layout, Loads, rounded};
use crate::placement::milp::{Row, value};

/// Passes over all steps.
const PASSES: usize = 12;
/// Layouts that are looked at whole.
const LOOKS: usize = 1_500;

/// A layout that holds the same rows, with an order that no single step betters, and its point; `None` where the given
/// one is that. `holds` looks at what the program's own rows do not say: the tiers, and capacities to the byte.
pub fn settle(
    formulation: &Formulation<'_>,
    holds: &dyn Fn(&Layout, &[f64]) -> bool,
    layout: &Layout,
) -> Option<(Layout, Vec<f64>)> {
    let mut weights = vec![0.0; formulation.program.columns.len()];
    formulation.tie_break().into_iter().for_each(|(column, weight)| weights[column] += weight);
    let mut search = Search { formulation, weights, holds, layout: layout.clone(), point: None, looks: LOOKS };
    for _ in 0..PASSES {
        if !(search.nodes() | search.accelerators() | search.copies()) {
            break;
        }
    }
    search.point.map(|point| (search.layout, point))
}

/// Whether a point holds rows, within the solver's tolerance.
pub fn within<'r>(mut rows: impl Iterator<Item = &'r Row>, point: &[f64]) -> bool {
    rows.all(|row| value(&row.terms, point) <= row.limit + 1e-5 * row.limit.abs().max(1.0))
}

struct Search<'s, 'p> {
    formulation: &'s Formulation<'p>,
    weights: Vec<f64>,
    holds: &'s dyn Fn(&Layout, &[f64]) -> bool,
    layout: Layout,
    /// Of a layout that is better than the given one.
    point: Option<Vec<f64>>,
    looks: usize,
}

impl Search<'_, '_> {
    /// What a copy counts; `None` where it has no columns.
    fn weight(&self, copy: &Copy) -> Option<f64> {
        Some(self.formulation.columns_of(copy)?.iter().map(|column| self.weights[*column]).sum())
    }

    /// Takes what a step leads to where that is better and holds all rows.
    fn accept(&mut self, mut layout: Layout) -> bool {
        let sum = |layout: &Layout| layout.iter().map(|copy| self.weight(copy)).sum::<Option<f64>>();
        let better = sum(&layout).zip(sum(&self.layout)).is_some_and(|(new, old)| new < old - 1e-9);
        if !better || self.looks == 0 {
            return false;
        }
        self.looks -= 1;
        layout.sort();
        let point = self.formulation.point_of(&layout);
        let program = &self.formulation.program;
        let bounds = program.columns.iter().zip(&point);
        let inside = bounds.into_iter().all(|(column, v)| *v >= column.min - 1e-6 && *v <= column.max + 1e-6);
        let right = inside && within(program.rows.iter(), &point) && (self.holds)(&layout, &point);
        if right {
            self.layout = layout;
            self.point = Some(point);
        }
        right
    }

    /// Nodes and accelerators of what runs: nothing there changes its place.
    fn held(&self) -> BTreeSet<(usize, usize)> {
        let kept = self.layout.iter().filter(|copy| copy.kept.is_some());
        let on = |copy: &Copy| -> Vec<(usize, usize)> {
            let further = copy.further.iter().flat_map(|(node, on)| on.iter().map(move |p| (*node, *p)));
            copy.accelerators.iter().map(|p| (copy.node, *p)).chain(further).collect()
        };
        kept.flat_map(on).collect()
    }

    /// All that lies on one accelerator changes places with all that lies on another one of its node.
    fn accelerators(&mut self) -> bool {
        let problem = self.formulation.problem;
        let held = self.held();
        let mut moved = false;
        for (node, supply) in problem.nodes.iter().enumerate() {
            for low in 0..supply.accelerators.len() {
                for high in low + 1..supply.accelerators.len() {
                    let (one, other) = (&supply.accelerators[low], &supply.accelerators[high]);
                    if one.kind != other.kind || held.contains(&(node, low)) || held.contains(&(node, high)) {
                        continue;
                    }
                    let swap = |on: &mut Vec<usize>| {
                        let other = |p: usize| if p == low { high } else { low };
                        on.iter_mut().filter(|p| **p == low || **p == high).for_each(|p| *p = other(*p));
                        on.sort_unstable();
                    };
                    let mut layout = self.layout.clone();
                    for copy in layout.iter_mut().filter(|copy| copy.kept.is_none()) {
                        if copy.node == node {
                            swap(&mut copy.accelerators);
                        }
                        copy.further.iter_mut().filter(|(at, _)| *at == node).for_each(|(_, on)| swap(on));
                    }
                    moved |= layout != self.layout && self.accept(layout);
                }
            }
        }
        moved
    }

    /// All that is on one node changes places with all that is on another one.
    fn nodes(&mut self) -> bool {
        let problem = self.formulation.problem;
        let busy: BTreeSet<usize> =
            self.layout.iter().filter(|copy| copy.kept.is_some()).flat_map(Copy::nodes).collect();
        let kinds = |node: usize| problem.nodes[node].accelerators.iter().map(|a| &a.kind).collect::<Vec<_>>();
        let mut moved = false;
        for low in 0..problem.nodes.len() {
            for high in low + 1..problem.nodes.len() {
                if busy.contains(&low) || busy.contains(&high) || kinds(low) != kinds(high) {
                    continue;
                }
                let map = |node: usize| match node {
                    node if node == low => high,
                    node if node == high => low,
                    node => node,
                };
                let there = |copy: &Copy| match copy.nodes().any(|node| map(node) != node) {
                    true => self.moved(copy, &map),
                    false => Some(copy.clone()),
                };
                let layout: Option<Layout> = self.layout.iter().map(there).collect();
                moved |= layout.is_some_and(|layout| layout != self.layout && self.accept(layout));
            }
        }
        moved
    }

    /// The same copy on other nodes.
    fn moved(&self, copy: &Copy, map: &dyn Fn(usize) -> usize) -> Option<Copy> {
        let shapes = &self.formulation.problem.models[copy.model].shapes;
        let from = &shapes[copy.shape];
        let shape = shapes.iter().position(|to| {
            let own = (to.candidate, to.engine, to.ranks, to.pipeline)
                == (from.candidate, from.engine, from.ranks, from.pipeline)
                && (to.node, &to.group, &to.layers, to.vision)
                    == (map(from.node), &from.group, &from.layers, from.vision);
            own && to.further.len() == from.further.len()
                && to.further.iter().zip(&from.further).all(|(to, from)| {
                    (to.node, &to.group, to.ranks, to.role) == (map(from.node), &from.group, from.ranks, from.role)
                })
        })?;
        let further = copy.further.iter().map(|(node, on)| (map(*node), on.clone())).collect();
        Some(Copy { shape, node: map(copy.node), further, ..copy.clone() })
    }

    /// Single copies take other places; where instances that run are not all wanted, another one may stay.
    fn copies(&mut self) -> bool {
        let problem = self.formulation.problem;
        let mut by_model: BTreeMap<usize, Vec<&Fresh>> = BTreeMap::new();
        self.formulation.fresh.iter().for_each(|fresh| by_model.entry(fresh.model).or_default().push(fresh));
        let mut moved = false;
        for index in 0..self.layout.len() {
            let copy = self.layout[index].clone();
            let Some(now) = self.weight(&copy).filter(|_| !problem.models[copy.model].protected) else { continue };
            let mut others: Vec<(f64, Copy)> = Vec::new();
            let stays: BTreeSet<usize> = self.layout.iter().filter_map(|copy| copy.kept).collect();
            let kept = self.formulation.kept.iter().map(|kept| &kept.copy);
            let kept = kept.filter(|k| k.model == copy.model && k.kept.is_some_and(|k| !stays.contains(&k)));
            others.extend(kept.filter_map(|kept| Some((self.weight(kept)?, kept.clone()))));
            if copy.kept.is_none() {
                let mut rest = self.layout.clone();
                rest.remove(index);
                let loads = Loads::rounded(problem, &self.formulation.capacities, &rest);
                let ways = by_model.get(&copy.model).map_or(&[][..], Vec::as_slice);
                let ways = ways.iter().filter(|fresh| fresh.further.is_empty());
                others.extend(ways.filter_map(|fresh| self.lightest(fresh, &loads)));
            }
            others.retain(|(weight, _)| *weight < now - 1e-9);
            others.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
            for (_, other) in others {
                let mut layout = self.layout.clone();
                layout[index] = other;
                if self.accept(layout) {
                    moved = true;
                    break;
                }
            }
        }
        moved
    }

    /// A copy of a shape on those accelerators with room that count least.
    fn lightest(&self, fresh: &Fresh, loads: &Loads) -> Option<(f64, Copy)> {
        let shape = &self.formulation.problem.models[fresh.model].shapes[fresh.shape];
        let capacities = &self.formulation.capacities;
        let room = |(position, _): &&(usize, usize)| {
            let here = rounded(shape.claimed(), capacities.exact.accelerators[shape.node][*position]);
            loads.accelerators[shape.node][*position] + here <= capacities.accelerators[shape.node][*position]
        };
        let mut open: Vec<(usize, usize)> = fresh.on.iter().filter(room).copied().collect();
        open.sort_by(|a, b| self.weights[a.1].total_cmp(&self.weights[b.1]).then(a.0.cmp(&b.0)));
        let mut accelerators: Vec<usize> = open.iter().take(shape.width()).map(|(position, _)| *position).collect();
        accelerators.sort_unstable();
        let (model, node) = (fresh.model, shape.node);
        let copy = Copy { model, shape: fresh.shape, node, accelerators, further: Vec::new(), kept: None };
        Some((self.weight(&copy)?, copy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::GIB;
    use crate::placement::tests::random::{accelerator, applied, node, places, shape, weighted_tail};
    use crate::placement::{CandidateFacts, ModelDemand, Problem, solve};

    /// Two equal nodes of four equal accelerators, of which each takes four copies of one card or of two.
    fn problem() -> Problem {
        let mut problem = Problem { tail: weighted_tail(), ..Problem::default() };
        for at in 0..2 {
            let cards = (0..4).map(|p| accelerator(format!("{at}-{p}"), "small", 24 * GIB)).collect();
            problem.nodes.push(node(&format!("n{at}"), cards));
        }
        for index in 0..6 {
            let mut model =
                ModelDemand { name: format!("m{index}"), rank: 50, desired: 2, min: 1, ..ModelDemand::default() };
            for candidate in 0..2 {
                let label = format!("v{candidate}");
                model.candidates.push(CandidateFacts { label, quality: candidate, ..CandidateFacts::default() });
                let legal = std::collections::BTreeMap::from([(crate::base::EngineKind::Vllm, vec![1, 2])]);
                model.candidates.last_mut().unwrap().legal_ranks = legal;
                for at in 0..2 {
                    for ranks in [1, 2] {
                        let bytes = (6 - 2 * u64::from(candidate)) * GIB / u64::from(ranks);
                        model.shapes.push(shape(candidate as usize, at, vec![0, 1, 2, 3], ranks, bytes));
                    }
                }
            }
            problem.models.push(model);
        }
        problem.sort();
        problem
    }

    #[test]
    fn copies_come_to_the_first_accelerators_that_have_room() {
        let problem = problem();
        let formulation = Formulation::new(&problem, false);
        let on = |model: usize| -> Copy {
            let way = |s: &crate::placement::Shape| s.candidate == 0 && s.node == 1 && s.ranks == 1;
            let shape = problem.models[model].shapes.iter().position(way).unwrap();
            Copy { model, shape, node: 1, accelerators: vec![3 - model % 4], further: Vec::new(), kept: None }
        };
        let layout: Layout = (0..6).map(on).collect();
        assert_eq!(settle(&formulation, &|_, _| false, &layout), None);
        let (settled, point) = settle(&formulation, &|_, _| true, &layout).unwrap();
        assert_eq!(point, formulation.point_of(&settled));
        let used: BTreeSet<(usize, usize)> = settled.iter().map(|copy| (copy.node, copy.accelerators[0])).collect();
        assert_eq!(used, BTreeSet::from([(0, 0), (0, 1)]));
        assert_eq!(settled.iter().map(|copy| copy.model).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
        assert_eq!(settle(&formulation, &|_, _| true, &settled), None, "it is at rest");
    }

    /// Whole accelerators change places where no single copy can: each is full.
    #[test]
    fn what_is_on_two_accelerators_changes_places() {
        let mut problem = problem();
        for model in &mut problem.models {
            model.shapes.retain(|shape| shape.candidate == 0 && shape.node == 0 && shape.ranks == 1);
            model.shapes[0].per_accelerator.weights_bytes = 20 * GIB;
        }
        let formulation = Formulation::new(&problem, false);
        let on = |model: usize, position: usize| Copy {
            model,
            shape: 0,
            node: 0,
            accelerators: vec![position],
            further: Vec::new(),
            kept: None,
        };
        let layout = vec![on(0, 2), on(1, 3)];
        let (settled, _) = settle(&formulation, &|_, _| true, &layout).unwrap();
        let mut used: Vec<usize> = settled.iter().map(|copy| copy.accelerators[0]).collect();
        used.sort_unstable();
        assert_eq!(used, [0, 1]);
    }

    #[test]
    fn beyond_the_proved_order_what_runs_is_at_rest_all_the_same() {
        let problem = problem();
        assert!(Formulation::new(&problem, false).program.columns.len() > crate::placement::exact::tiers::PROVED_ORDER);
        let placement = solve(&problem);
        assert_eq!(placement.instances.len(), 12);
        let again = solve(&applied(&problem, &placement));
        assert_eq!(places(&again), places(&placement));
        // Of each node the first accelerators, and none between them is empty.
        for node in &problem.nodes {
            let on = |p: usize| {
                let uuid = &node.accelerators[p].uuid;
                placement.instances.iter().any(|placed| placed.accelerators.contains(uuid))
            };
            let used: Vec<bool> = (0..4).map(on).collect();
            assert!(used.windows(2).all(|pair| pair[0] || !pair[1]), "{used:?}");
        }
    }
}
