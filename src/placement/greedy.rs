//! A placement in one pass: the incumbent that every tier starts from, so that a limit never means no answer.

use std::collections::BTreeSet;

use super::columns::Formulation;
use super::layout::{Copy, Layout, Loads, rounded, spread_value, whole};
use super::{Problem, Shape};

/// Keeps what runs as far as it fits, then places minimum replicas from the top rank down, then desired ones;
/// each with the best quality that still fits, on the smallest and fullest accelerators that can take it.
pub fn layout(formulation: &Formulation<'_>) -> Layout {
    let problem = formulation.problem;
    let mut builder = Builder::new(formulation);
    let mut kept: Vec<&Copy> = formulation.kept.iter().map(|k| &k.copy).collect();
    kept.sort_by_key(|copy| {
        let demand = &problem.models[copy.model];
        (!demand.protected, std::cmp::Reverse(demand.rank), copy.model, copy.kept)
    });
    for copy in kept {
        builder.keep(copy);
    }
    let mut order: Vec<usize> = (0..problem.models.len()).collect();
    order.sort_by_key(|m| (std::cmp::Reverse(problem.models[*m].rank), !problem.models[*m].preempts, *m));
    for minimum in [true, false] {
        for model in &order {
            let demand = &problem.models[*model];
            let wanted = if minimum { demand.min.min(demand.desired) } else { demand.desired };
            let wanted = wanted.saturating_sub(formulation.pinned[*model]).min(formulation.room[*model]);
            while builder.counts[*model] < wanted && builder.place(*model) {}
        }
    }
    builder.layout.sort();
    builder.layout
}

struct Builder<'f, 'p> {
    formulation: &'f Formulation<'p>,
    loads: Loads,
    counts: Vec<u32>,
    fetched: BTreeSet<(usize, usize, usize)>,
    fetched_bytes: Vec<u64>,
    layout: Layout,
}

impl<'f, 'p> Builder<'f, 'p> {
    fn new(formulation: &'f Formulation<'p>) -> Self {
        let problem = formulation.problem;
        Self {
            formulation,
            loads: Loads::none(problem),
            counts: vec![0; problem.models.len()],
            fetched: BTreeSet::new(),
            fetched_bytes: vec![0; problem.nodes.len()],
            layout: Layout::new(),
        }
    }

    fn problem(&self) -> &'p Problem {
        self.formulation.problem
    }

    fn keep(&mut self, copy: &Copy) {
        let demand = &self.problem().models[copy.model];
        let free = self.counts[copy.model] < self.formulation.room[copy.model];
        if demand.protected || (free && self.spread_allows(copy) && self.fits(copy)) {
            self.take(copy.clone());
        }
    }

    fn take(&mut self, copy: Copy) {
        let shape = &self.problem().models[copy.model].shapes[copy.shape];
        let problem = self.problem();
        self.loads.add_rounded(problem, &self.formulation.capacities, shape, &copy.accelerators);
        self.counts[copy.model] += 1;
        if copy.kept.is_none()
            && shape.fetch_bytes > 0
            && self.fetched.insert((copy.model, shape.candidate, shape.node))
        {
            self.fetched_bytes[shape.node] += self.download(shape);
        }
        self.layout.push(copy);
    }

    fn fits(&self, copy: &Copy) -> bool {
        let problem = self.problem();
        let shape = &problem.models[copy.model].shapes[copy.shape];
        let mut loads = self.loads.clone();
        let capacities = &self.formulation.capacities;
        loads.add_rounded(problem, capacities, shape, &copy.accelerators);
        let accelerators = copy
            .accelerators
            .iter()
            .all(|p| loads.accelerators[shape.node][*p] <= capacities.accelerators[shape.node][*p]);
        let new = copy.kept.is_none() && !self.fetched.contains(&(copy.model, shape.candidate, shape.node));
        let fetch = self.fetched_bytes[shape.node] + if new { self.download(shape) } else { 0 };
        let disk = copy.kept.is_some()
            || shape.fetch_bytes == 0
            || problem.nodes[shape.node].disk_free_bytes.is_none_or(|free| fetch <= whole(free));
        accelerators && disk && loads.host[shape.node] <= capacities.host[shape.node]
    }

    fn download(&self, shape: &Shape) -> u64 {
        let free = self.problem().nodes[shape.node].disk_free_bytes.unwrap_or(u64::MAX);
        rounded(shape.fetch_bytes, free)
    }

    fn spread_allows(&self, copy: &Copy) -> bool {
        let problem = self.problem();
        let demand = &problem.models[copy.model];
        let Some(label) = &demand.spread_by else { return true };
        let value = spread_value(problem, label, demand.shapes[copy.shape].node);
        let here = self.layout.iter().filter(|c| c.model == copy.model);
        let here = here.filter(|c| spread_value(problem, label, demand.shapes[c.shape].node) == value);
        let pinned = problem.running.iter().filter(|r| r.model == demand.name);
        let pinned = pinned.filter(|r| super::layout::is_pinned(problem, r)).filter_map(|r| problem.node(&r.node));
        here.count() + pinned.filter(|node| spread_value(problem, label, *node) == value).count() == 0
    }

    /// Places one more replica; `false` where none fits.
    fn place(&mut self, model: usize) -> bool {
        let problem = self.problem();
        let demand = &problem.models[model];
        let mut best: Option<((u32, u64, u64, usize), Copy)> = None;
        for fresh in self.formulation.fresh.iter().filter(|f| f.model == model) {
            let shape = &demand.shapes[fresh.shape];
            let bytes = shape.claimed();
            let exact = &self.formulation.capacities.exact.accelerators[shape.node];
            let capacities = &self.formulation.capacities.accelerators[shape.node];
            let mut open: Vec<(u64, usize)> = fresh
                .on
                .iter()
                .map(|(p, _)| (capacities[*p].saturating_sub(self.loads.accelerators[shape.node][*p]), *p))
                .filter(|(left, p)| *left >= rounded(bytes, exact[*p]))
                .collect();
            if open.len() < shape.width() {
                continue;
            }
            open.sort_unstable();
            let left = open.first().map_or(0, |(left, _)| *left);
            let mut accelerators: Vec<usize> = open.iter().take(shape.width()).map(|(_, p)| *p).collect();
            accelerators.sort_unstable();
            let size: u64 = accelerators.iter().map(|p| problem.nodes[shape.node].accelerators[*p].total_bytes).sum();
            let copy = Copy { model, shape: fresh.shape, accelerators, kept: None };
            let key = (demand.deficit(shape), size, left, fresh.shape);
            if best.as_ref().is_none_or(|(least, _)| key < *least) && self.spread_allows(&copy) && self.fits(&copy) {
                best = Some((key, copy));
            }
        }
        let Some((_, copy)) = best else { return false };
        self.take(copy);
        true
    }
}
