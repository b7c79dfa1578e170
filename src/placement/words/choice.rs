//! Which variant was taken where, and why the better ones were not.

use std::collections::{BTreeMap, BTreeSet};

use crate::base::{WeightFormat, format_bytes};
use crate::placement::build::room::Room;
use crate::placement::layout::{Copy, spread_value, tightest, whole};
use crate::placement::words::phrases;
use crate::placement::words::refuse::{closest, neighbours};
use crate::placement::{Passed, Problem, Removed, Shape, VariantAt};
use crate::sizing::{Figures, said, shortage, times, times_gib};

/// What choices are explained from.
pub struct Choice<'p> {
    problem: &'p Problem,
    layout: &'p [Copy],
    room: Room<'p>,
    models: Vec<Index<'p>>,
}

/// What is to be found of a model by node, in the order of the problem.
#[derive(Default)]
struct Index<'p> {
    /// Shapes by candidate and node.
    shapes: BTreeMap<(usize, usize), Vec<&'p Shape>>,
    /// Removals by the node's name.
    removed: BTreeMap<&'p str, Vec<&'p Removed>>,
    /// Copies.
    copies: Vec<&'p Copy>,
    /// The same by node.
    here: BTreeMap<usize, Vec<&'p Copy>>,
}

impl<'p> Choice<'p> {
    /// Of a solved problem.
    pub fn of(problem: &'p Problem, layout: &'p [Copy]) -> Self {
        let mut models: Vec<Index<'p>> = Vec::with_capacity(problem.models.len());
        for demand in &problem.models {
            let mut index = Index::default();
            for shape in &demand.shapes {
                index.shapes.entry((shape.candidate, shape.node)).or_default().push(shape);
            }
            for removed in &demand.removed {
                index.removed.entry(&removed.reason.node).or_default().push(removed);
            }
            models.push(index);
        }
        for copy in layout {
            models[copy.model].copies.push(copy);
            models[copy.model].here.entry(copy.node).or_default().push(copy);
        }
        Self { problem, layout, room: Room::of(problem, layout), models }
    }

    /// The candidates that are better than a copy's own, best first, with what kept each from its node.
    pub fn better(&self, copy: &Copy) -> Vec<Passed> {
        let demand = &self.problem.models[copy.model];
        let shape = &demand.shapes[copy.shape];
        let own = demand.candidates.get(shape.candidate).map_or(0, |candidate| candidate.quality);
        let mut better: Vec<usize> =
            (0..demand.candidates.len()).filter(|index| demand.candidates[*index].quality < own).collect();
        better.sort_by_key(|index| (demand.candidates[*index].quality, *index));
        let passed = |index: usize| Passed {
            variant: demand.candidates[index].label.clone(),
            reason: self.why_not(copy.model, index, copy.node, Some(copy)),
        };
        better.into_iter().map(passed).collect()
    }

    /// One clause for people: which variant, on how many accelerators, and why not the next better one.
    pub fn because(&self, copy: &Copy, better: &[Passed]) -> String {
        let demand = &self.problem.models[copy.model];
        let shape = &demand.shapes[copy.shape];
        if copy.kept.is_some() {
            return "already runs here".to_owned();
        }
        let on = phrases::on(self.problem, demand, shape);
        let label = match demand.candidates.get(shape.candidate) {
            Some(candidate) if demand.candidates.len() > 1 => &candidate.label,
            _ => return format!("fits here, {on}"),
        };
        // What no engine of the model reads anywhere is no news about this hardware.
        let index = &self.models[copy.model];
        let here = better.iter().rev().find(|passed| index.everywhere(&passed.variant).is_none());
        match here.or(better.last()) {
            None => format!("{label} is the best variant, {on}"),
            Some(next) if next.reason.starts_with(FITS) => {
                format!("{label} weighs best here, {on}; {}", said(&next.variant, &next.reason))
            }
            Some(next) => format!("{label} is the best variant that fits, {on}; {}", said(&next.variant, &next.reason)),
        }
    }

    /// Every candidate of every model on every node of the config. Of nodes that are alike, those that run it, and for
    /// the others the one with most room.
    pub fn variants(&self) -> Vec<VariantAt> {
        let mut all = Vec::new();
        for (model, demand) in self.problem.models.iter().enumerate() {
            let mut order: Vec<usize> = (0..demand.candidates.len()).collect();
            order.sort_by_key(|index| (demand.candidates[*index].quality, *index));
            for index in order {
                let label = &demand.candidates[index].label;
                let row = |node: &str, alike: u32, replicas: u32, reason: String| VariantAt {
                    model: demand.name.clone(),
                    variant: label.clone(),
                    node: node.to_owned(),
                    alike,
                    replicas,
                    reason,
                };
                if let Some(removed) = self.models[model].everywhere(label) {
                    all.push(row("*", 0, 0, removed.reason.text.clone()));
                    continue;
                }
                for (node, alike) in self.nodes(model, index) {
                    let supply = &self.problem.nodes[node];
                    let here = self.models[model].here.get(&node).into_iter().flatten();
                    let copies: Vec<&&Copy> =
                        here.filter(|copy| demand.shapes[copy.shape].candidate == index).collect();
                    all.push(match copies.first() {
                        Some(copy) => {
                            let because = self.because(copy, &self.better(copy));
                            row(&supply.name, alike, copies.len() as u32, because)
                        }
                        None => row(&supply.name, alike, 0, self.beside_its_own(model, index, node)),
                    });
                }
            }
        }
        all
    }

    /// The nodes of the config that there is something to say about of a candidate, and how many more are like each.
    fn nodes(&self, model: usize, candidate: usize) -> Vec<(usize, u32)> {
        let problem = self.problem;
        if problem.alike.is_empty() {
            return (0..problem.nodes.len()).filter(|node| problem.nodes[*node].member).map(|node| (node, 0)).collect();
        }
        let Index { shapes, here, .. } = &self.models[model];
        let runs = |node: usize| {
            let of = |copy: &&Copy| problem.models[model].shapes[copy.shape].candidate == candidate;
            here.get(&node).is_some_and(|copies| copies.iter().any(of))
        };
        let mut found: Vec<(usize, u32)> = here.keys().copied().filter(|node| runs(*node)).map(|n| (n, 0)).collect();
        for class in problem.classes().filter(|class| problem.nodes[*class].member) {
            let most = shapes.get(&(candidate, class)).and_then(|shapes| shapes.first());
            let order = most.map_or_else(|| problem.stands_for(class).into(), |shape| self.room.for_shape(shape));
            // One where the model does not run, before one where it runs otherwise.
            let free = order.iter().find(|node| !here.contains_key(node));
            let Some(node) = free.or_else(|| order.iter().find(|node| !runs(**node))) else { continue };
            let all = order.len() - found.iter().filter(|(node, _)| self.room.representative(*node) == class).count();
            found.push((*node, (all as u32).saturating_sub(1)));
        }
        found.sort_unstable();
        found
    }

    /// Why a candidate is not on a node where another candidate of its model may be.
    fn beside_its_own(&self, model: usize, candidate: usize, node: usize) -> String {
        let demand = &self.problem.models[model];
        let own = self.models[model].here.get(&node).and_then(|copies| copies.first());
        // What cannot run here at all says why, whatever is here.
        let able = self.models[model].shapes.contains_key(&(candidate, self.room.representative(node)));
        let Some(own) = own.filter(|_| able) else { return self.why_not(model, candidate, node, None) };
        let taken = &demand.candidates[demand.shapes[own.shape].candidate];
        if taken.quality > demand.candidates[candidate].quality {
            return self.why_not(model, candidate, node, Some(own));
        }
        format!("{} is taken here", taken.label)
    }

    /// What could not be checked of devices that were taken, as sentences.
    pub fn unchecked(&self) -> Vec<String> {
        let of = |copy: &Copy| {
            let shape = &self.problem.models[copy.model].shapes[copy.shape];
            let note = shape.unchecked.as_ref()?;
            Some(format!("{}: {note}", self.problem.nodes[copy.node].name))
        };
        let notes: BTreeSet<String> = self.layout.iter().filter_map(of).collect();
        notes.into_iter().collect()
    }

    /// Why a candidate is not on a node. `instead` is the copy that is there in its place, and would make room.
    fn why_not(&self, model: usize, candidate: usize, node: usize, instead: Option<&Copy>) -> String {
        let index = &self.models[model];
        let facts = &self.problem.models[model].candidates[candidate];
        if let Some(removed) = index.everywhere(&facts.label) {
            return removed.reason.text.clone();
        }
        let supply = &self.problem.nodes[node];
        if let Some((_, text)) = supply.closed.as_ref().filter(|_| instead.is_none()) {
            return text.clone();
        }
        let representative = self.room.representative(node);
        if let Some(shapes) = index.shapes.get(&(candidate, representative)) {
            if let Some((_, text)) = &supply.closed {
                return text.clone();
            }
            return self.beside(model, shapes, node, instead);
        }
        let removed = || index.at(&self.problem.nodes[representative].name, &facts.label);
        let engines = removed().next().is_some() && removed().all(|r| r.reason.constraint == "engine");
        match closest(removed()) {
            Some(found) if engines => {
                let format = match facts.format {
                    Some(WeightFormat::Gguf) => "GGUF",
                    Some(WeightFormat::Safetensors) => "safetensors",
                    None => "it",
                };
                format!("no engine here runs {format} ({})", found.reason.text)
            }
            Some(found) => too_small(found).unwrap_or_else(|| found.reason.text.clone()),
            None => "there is no way to run it here".to_owned(),
        }
    }

    /// Why shapes that fit a node by themselves were not taken.
    fn beside(&self, model: usize, shapes: &[&Shape], node: usize, instead: Option<&Copy>) -> String {
        let supply = &self.problem.nodes[node];
        let demand = &self.problem.models[model];
        if let Some(label) = &demand.spread_by {
            let value = spread_value(self.problem, label, node);
            let same = |copy: &Copy| spread_value(self.problem, label, copy.node) == value;
            if self.models[model].copies.iter().any(|copy| Some(*copy) != instead && same(copy)) {
                return format!("a replica already runs where `{label}` is `{value}`, and they must be spread");
            }
        }
        // Shapes name the node that stands for this one.
        let representative = self.room.representative(node);
        // What the copy that is there holds would be free.
        let own = instead.map(|copy| (copy, &demand.shapes[copy.shape]));
        let left = |at: usize, position: usize| {
            let at = if at == representative { node } else { at };
            let own = own.iter().flat_map(|(copy, shape)| copy.on(shape));
            let held: u64 =
                own.filter(|(_, n, on)| *n == at && on.contains(&position)).map(|(span, ..)| span.claimed).sum();
            let load = self.room.loads.accelerators[at][position].saturating_sub(held);
            self.problem.nodes[at].accelerators[position].capacity_bytes.saturating_sub(load)
        };
        let held = own.map_or(0, |(_, shape)| {
            let pool = supply.unified(&shape.group);
            if pool { shape.pool_bytes() } else { shape.host.total_bytes() }
        });
        let host = supply.host_capacity_bytes.saturating_sub(self.room.loads.host[node].saturating_sub(held));
        let beside =
            || neighbours(self.problem, self.room.on(node).iter().copied().filter(|copy| Some(*copy) != instead));
        // The share that is missing, and of what.
        let short = |shape: &&Shape| -> (f64, String) {
            let (span, tightest) = tightest(shape, left);
            let (needed, ranks) = (span.claimed, span.ranks as u32);
            let missing = |needed: u64, free: u64| needed.saturating_sub(free) as f64 / (needed as f64).max(1.0);
            if tightest < needed {
                let (needs, free) = (times(ranks, needed), times_gib(ranks, tightest));
                let text = format!("needs {needs}, {free} left{}", beside());
                return (missing(needed, tightest), text);
            }
            let unified = supply.unified(&shape.group);
            let (needed, free) =
                if unified { (shape.pool_bytes(), whole(host)) } else { (shape.host.total_bytes(), host) };
            if needed > free {
                let what = if unified { "shared memory" } else { "host memory" };
                let (needs, left) = (format_bytes(needed), format_bytes(free));
                let text = format!("needs {needs} of {what}, {left} left{}", beside());
                return (missing(needed, free), text);
            }
            (0.0, String::new())
        };
        let nearest = shapes.iter().map(short).min_by(|a, b| a.0.total_cmp(&b.0));
        match nearest {
            Some((missing, text)) if missing > 0.0 => text,
            _ if instead.is_some_and(|instead| instead.kept.is_some()) => {
                format!("{FITS} too; what runs is not restarted for it")
            }
            _ if instead.is_some() => format!("{FITS} too; speed, cost and the bytes to bring weigh more"),
            _ => {
                if self.models[model].copies.is_empty() {
                    format!("{FITS} by itself, not beside what ranks higher or already runs")
                } else {
                    format!("{FITS}; not needed here")
                }
            }
        }
    }
}

/// How a reason begins that is none of memory or hardware.
const FITS: &str = "fits";

impl<'p> Index<'p> {
    /// What was removed of a candidate on a node.
    fn at<'i>(&'i self, node: &str, label: &'i str) -> impl Iterator<Item = &'p Removed> + 'i {
        let of = move |removed: &&'p Removed| removed.variant.as_ref().is_none_or(|variant| variant == label);
        self.removed.get(node).into_iter().flatten().copied().filter(of)
    }

    /// What rules a candidate out wherever it is.
    fn everywhere(&self, label: &str) -> Option<&'p Removed> {
        self.at("*", label).next()
    }
}

/// What is missing of a shape whose accelerators are too small.
fn too_small(removed: &Removed) -> Option<String> {
    let planned = removed.planned?;
    let fullest = Figures {
        weights_bytes: planned.weights_bytes,
        kv_bytes: planned.kv_bytes,
        overhead_bytes: planned.overhead_bytes,
    };
    Some(shortage(removed.ranks.unwrap_or(1), &fullest, removed.reason.needed?, removed.reason.available?))
}
