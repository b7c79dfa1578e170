//! A placement in one pass: the incumbent that every tier starts from, so that a limit never means no answer.

use std::collections::BTreeSet;

use crate::placement::exact::columns::Formulation;
use crate::placement::layout::{Copy, Layout, Loads, rounded, spread_value, whole};
use crate::placement::ports::Ports;
use crate::placement::{Problem, Shape};

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
        let allowed = self.spread_allows(copy) && self.near_enough(copy) && self.quotas_allow(copy);
        if demand.protected || (free && allowed && self.fits(copy)) {
            self.take(copy.clone());
        }
    }

    fn take(&mut self, copy: Copy) {
        let shape = &self.problem().models[copy.model].shapes[copy.shape];
        let problem = self.problem();
        self.loads.add_rounded(problem, &self.formulation.capacities, &copy);
        self.counts[copy.model] += 1;
        if copy.kept.is_none() && shape.fetch_bytes > 0 && self.fetched.insert((copy.model, shape.candidate, copy.node))
        {
            self.fetched_bytes[copy.node] += self.download(shape);
        }
        self.layout.push(copy);
    }

    fn fits(&self, copy: &Copy) -> bool {
        let problem = self.problem();
        let shape = &problem.models[copy.model].shapes[copy.shape];
        let mut loads = self.loads.clone();
        let capacities = &self.formulation.capacities;
        loads.add_rounded(problem, capacities, copy);
        let accelerators = copy
            .on(shape)
            .all(|(_, node, on)| on.iter().all(|p| loads.accelerators[node][*p] <= capacities.accelerators[node][*p]));
        let hosts = copy.nodes().all(|node| loads.host[node] <= capacities.host[node]);
        let new = copy.kept.is_none() && !self.fetched.contains(&(copy.model, shape.candidate, copy.node));
        let fetch = self.fetched_bytes[copy.node] + if new { self.download(shape) } else { 0 };
        let disk = copy.kept.is_some()
            || shape.fetch_bytes == 0
            || problem.nodes[copy.node].disk_free_bytes.is_none_or(|free| fetch <= whole(free));
        let here = self.layout.iter().chain([copy]);
        let ports = self
            .formulation
            .ports
            .limit(copy.node)
            .is_none_or(|_| self.formulation.ports.has(copy.node, Ports::used(problem, copy.node, here)));
        accelerators && disk && hosts && ports
    }

    fn download(&self, shape: &Shape) -> u64 {
        let free = self.problem().nodes[shape.node].disk_free_bytes.unwrap_or(u64::MAX);
        rounded(shape.fetch_bytes, free)
    }

    fn quotas_allow(&self, copy: &Copy) -> bool {
        self.formulation.quotas_allow(&self.layout, copy)
    }

    fn spread_allows(&self, copy: &Copy) -> bool {
        let problem = self.problem();
        let demand = &problem.models[copy.model];
        let Some(label) = &demand.spread_by else { return true };
        let values: BTreeSet<&str> = copy.nodes().map(|node| spread_value(problem, label, node)).collect();
        let here = self.layout.iter().filter(|c| c.model == copy.model);
        let mut here = here.flat_map(Copy::nodes);
        let pinned = problem.running.iter().filter(|r| r.model == demand.name);
        let mut pinned =
            pinned.filter(|r| crate::placement::layout::is_pinned(problem, r)).filter_map(|r| problem.node(&r.node));
        let same = |node: usize| values.contains(spread_value(problem, label, node));
        !here.any(same) && !pinned.any(same)
    }

    fn near_enough(&self, copy: &Copy) -> bool {
        crate::placement::exact::traffic::conflict(self.problem(), &self.layout, copy.model, copy.node).is_none()
    }

    /// Places one more replica; `false` where none fits.
    fn place(&mut self, model: usize) -> bool {
        let problem = self.problem();
        let demand = &problem.models[model];
        let mut best: Option<((u32, u64, u64, usize), Copy)> = None;
        for fresh in self.formulation.fresh.iter().filter(|f| f.model == model) {
            let shape = &demand.shapes[fresh.shape];
            let Some((mut parts, left)) = self.fullest(shape) else { continue };
            let size: u64 = shape
                .spans()
                .zip(&parts)
                .flat_map(|(span, on)| on.iter().map(move |p| problem.nodes[span.node].accelerators[*p].total_bytes))
                .sum();
            let accelerators = parts.remove(0);
            let further = shape.further.iter().map(|part| part.node).zip(parts).collect();
            let copy = Copy { model, shape: fresh.shape, node: shape.node, accelerators, further, kept: None };
            let key = (demand.deficit(shape), size, left, fresh.shape);
            let better = best.as_ref().is_none_or(|(least, _)| key < *least);
            if better
                && self.spread_allows(&copy)
                && self.near_enough(&copy)
                && self.fits(&copy)
                && self.quotas_allow(&copy)
            {
                best = Some((key, copy));
            }
        }
        let Some((_, copy)) = best else { return false };
        self.take(copy);
        true
    }

    /// The fullest accelerators that can still take a shape, part by part, and what the fullest of its own has left;
    /// `None` where there are too few.
    fn fullest(&self, shape: &Shape) -> Option<(Vec<Vec<usize>>, u64)> {
        let capacities = &self.formulation.capacities;
        let mut parts: Vec<Vec<usize>> = Vec::new();
        let mut taken: BTreeSet<(usize, usize)> = BTreeSet::new();
        let mut least = 0;
        for (number, span) in shape.spans().enumerate() {
            let healthy = |p: &usize| self.problem().nodes[span.node].accelerators[*p].healthy;
            let mut open: Vec<(u64, usize)> = span
                .group
                .iter()
                .filter(|p| healthy(p) && !taken.contains(&(span.node, **p)))
                .map(|p| {
                    let most = capacities.accelerators[span.node][*p];
                    (most.saturating_sub(self.loads.accelerators[span.node][*p]), *p)
                })
                .filter(|(left, p)| {
                    let exact = capacities.exact.accelerators[span.node][*p];
                    span.claimed <= exact && *left >= rounded(span.claimed, exact)
                })
                .collect();
            if open.len() < span.ranks {
                return None;
            }
            open.sort_unstable();
            if number == 0 {
                least = open.first().map_or(0, |(left, _)| *left);
            }
            let mut positions: Vec<usize> = open.iter().take(span.ranks).map(|(_, p)| *p).collect();
            positions.sort_unstable();
            taken.extend(positions.iter().map(|p| (span.node, *p)));
            parts.push(positions);
        }
        Some((parts, least))
    }
}
