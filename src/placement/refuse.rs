//! Why replicas found no place: for every node the binding constraint with needed and available, and the nearest
//! change that would make one more fit.

use super::layout::{Copy, Loads, spread_value, whole};
use super::solve::counts;
use super::{ModelDemand, Problem, Reason, Removed, Shape, Unplaced};
use crate::base::format_bytes;

/// One entry per model that is under its desired number of replicas.
pub fn unplaced(problem: &Problem, layout: &[Copy]) -> Vec<Unplaced> {
    let counts = counts(problem, layout);
    let state = State { problem, layout, loads: Loads::of(problem, layout) };
    let mut all = Vec::new();
    for (model, demand) in problem.models.iter().enumerate() {
        let placed = counts.get(&model).copied().unwrap_or(0);
        if placed >= demand.desired {
            continue;
        }
        all.push(Unplaced {
            model: demand.name.clone(),
            replicas: demand.desired - placed,
            required: placed < demand.min,
            reasons: state.reasons(model, demand),
            nearest: state.nearest(model, demand),
        });
    }
    all
}

struct State<'p> {
    problem: &'p Problem,
    layout: &'p [Copy],
    loads: Loads,
}

impl State<'_> {
    fn reasons(&self, model: usize, demand: &ModelDemand) -> Vec<Reason> {
        let mut reasons: Vec<Reason> = Vec::new();
        for (index, node) in self.problem.nodes.iter().enumerate() {
            if !node.member {
                continue;
            }
            if let Some((constraint, text)) = &node.closed {
                reasons.push(plain(&node.name, constraint, text));
                continue;
            }
            let shapes: Vec<&Shape> = demand.shapes.iter().filter(|s| s.node == index && !s.keep_only).collect();
            let tight = shapes.iter().map(|s| self.blocked(model, demand, s)).min_by(|a, b| a.0.total_cmp(&b.0));
            let removed = closest(demand.removed.iter().filter(|r| r.reason.node == node.name));
            match (tight, removed) {
                (Some((_, reason)), _) => reasons.push(reason),
                (None, Some(removed)) => reasons.push(removed.reason.clone()),
                (None, None) => {}
            }
        }
        let general = demand.removed.iter().filter(|r| r.reason.node == "*");
        reasons.extend(general.map(|r| r.reason.clone()));
        reasons.dedup();
        if reasons.is_empty() {
            reasons.push(plain("*", "accelerators", "there is no node that could run it"));
        }
        reasons
    }

    /// Why one more copy of a shape does not fit beside what is placed, with how much is missing (0 to 1).
    fn blocked(&self, model: usize, demand: &ModelDemand, shape: &Shape) -> (f64, Reason) {
        let node = &self.problem.nodes[shape.node];
        if let Some(label) = &demand.spread_by {
            let value = spread_value(self.problem, label, shape.node);
            let mut here = self.layout.iter().filter(|c| c.model == model);
            if here.any(|c| spread_value(self.problem, label, demand.shapes[c.shape].node) == value) {
                let text = format!("a replica already runs where `{label}` is `{value}`, and they must be spread");
                let mut reason = plain(&node.name, "spread", &text);
                (reason.needed, reason.available, reason.unit) = (Some(1), Some(0), Some("count".to_owned()));
                return (1.0, reason);
            }
        }
        let neighbours = neighbours(self.problem, self.layout, shape.node);
        let needed = shape.claimed();
        let mut left: Vec<u64> = shape
            .group
            .iter()
            .map(|p| node.accelerators[*p].capacity_bytes.saturating_sub(self.loads.accelerators[shape.node][*p]))
            .collect();
        left.sort_unstable_by(|a, b| b.cmp(a));
        let width = shape.width();
        if width > 0 && left.get(width - 1).copied().unwrap_or(0) < needed {
            let available = left.get(width - 1).copied().unwrap_or(0);
            let on = if width == 1 { "one accelerator".to_owned() } else { format!("each of {width} accelerators") };
            let text = format!(
                "needs {} on {on}; at most {} is left{neighbours}",
                format_bytes(needed),
                format_bytes(available)
            );
            return (missing(needed, available), bytes(&node.name, "memory", needed, available, text));
        }
        let free = node.host_capacity_bytes.saturating_sub(self.loads.host[shape.node]);
        if node.unified(&shape.group) && shape.pool_bytes() > whole(free) {
            let (needed, free) = (shape.pool_bytes(), whole(free));
            let text = format!(
                "needs {} of the memory that accelerator and host share; {} is left{neighbours}",
                format_bytes(needed),
                format_bytes(free)
            );
            return (missing(needed, free), bytes(&node.name, "memory", needed, free, text));
        }
        let host = shape.host.total_bytes();
        let free = node.host_capacity_bytes.saturating_sub(self.loads.host[shape.node]);
        if host > free {
            let text =
                format!("needs {} of host memory; {} is left{neighbours}", format_bytes(host), format_bytes(free));
            return (missing(host, free), bytes(&node.name, "ram", host, free, text));
        }
        let free = node.disk_free_bytes.unwrap_or(u64::MAX);
        let text = format!(
            "there is room for it, but not together with the rest: {} to fetch, {} of disk free",
            format_bytes(shape.fetch_bytes),
            node.disk_free_bytes.map_or("unknown".to_owned(), format_bytes)
        );
        if shape.fetch_bytes > 0 && node.disk_free_bytes.is_some() {
            return (0.9, bytes(&node.name, "disk", shape.fetch_bytes, free, text));
        }
        let used = self.layout.iter().any(|c| self.problem.models[c.model].shapes[c.shape].node == shape.node);
        let text = if used || self.problem.running.iter().any(|r| r.node == node.name) {
            "what runs here keeps its place, and this model may not preempt it"
        } else {
            "there is room for it, but not together with the rest"
        };
        (0.95, plain(&node.name, "memory", text))
    }

    /// The nearest change, from what the problem knows: who would have to go, else how much is missing.
    fn nearest(&self, model: usize, demand: &ModelDemand) -> String {
        if let Some(text) = self.who_would_go(model, demand) {
            return text;
        }
        let mut open = demand.shapes.iter().filter(|s| !s.keep_only);
        let spread = |s: &Shape| self.blocked(model, demand, s).1.constraint == "spread";
        if let Some(label) = &demand.spread_by
            && open.clone().all(spread)
            && open.next().is_some()
        {
            return format!("one more `{label}` to spread to, or fewer replicas");
        }
        let smallest = demand
            .shapes
            .iter()
            .filter(|s| !s.keep_only)
            .map(|s| (s.claimed() * u64::from(s.ranks.max(1)), s))
            .min_by_key(|(total, _)| *total);
        if let Some((_, shape)) = smallest {
            let kind = shape.group.first().map(|p| self.problem.nodes[shape.node].accelerators[*p].kind.clone());
            return match kind {
                Some(kind) if shape.ranks == 1 => format!("one more accelerator like {kind}"),
                Some(kind) => format!("{} more accelerators like {kind} in one node", shape.ranks),
                None => format!("{} more host memory", format_bytes(shape.host.total_bytes())),
            };
        }
        let memory = demand.removed.iter().filter(|r| r.reason.constraint == "memory");
        match closest(memory) {
            Some(removed) => {
                let needed = removed.reason.needed.unwrap_or(removed.needed_bytes);
                format!("an accelerator with {} usable", format_bytes(needed))
            }
            None => "none found".to_owned(),
        }
    }

    /// Lower-ranked copies whose memory would be enough, fewest first.
    fn who_would_go(&self, model: usize, demand: &ModelDemand) -> Option<String> {
        let mut best: Option<(usize, String)> = None;
        for shape in demand.shapes.iter().filter(|s| !s.keep_only && s.ranks > 0) {
            if demand.spread_by.is_some() && self.blocked(model, demand, shape).1.constraint == "spread" {
                continue;
            }
            let mut lower: Vec<&Copy> = self
                .layout
                .iter()
                .filter(|c| {
                    let other = &self.problem.models[c.model];
                    other.rank < demand.rank && !other.protected && other.shapes[c.shape].node == shape.node
                })
                .collect();
            lower.sort_by_key(|c| (self.problem.models[c.model].rank, c.model, c.accelerators.clone()));
            let mut loads = self.loads.clone();
            let mut names: Vec<&str> = Vec::new();
            for copy in lower {
                let other = &self.problem.models[copy.model];
                let bytes = other.shapes[copy.shape].claimed();
                for p in &copy.accelerators {
                    loads.accelerators[shape.node][*p] = loads.accelerators[shape.node][*p].saturating_sub(bytes);
                }
                names.push(&other.name);
                let node = &self.problem.nodes[shape.node];
                let open = shape.group.iter().filter(|p| {
                    let left = node.accelerators[**p].capacity_bytes;
                    left.saturating_sub(loads.accelerators[shape.node][**p]) >= shape.claimed()
                });
                if open.count() >= shape.width() && best.as_ref().is_none_or(|(n, _)| names.len() < *n) {
                    names.sort_unstable();
                    names.dedup();
                    let text = format!(
                        "stop {} on {} (rank below {}), or give the priority class of {} `preempts=#true`",
                        names.join(", "),
                        node.name,
                        demand.rank,
                        demand.name
                    );
                    best = Some((names.len(), text));
                    break;
                }
            }
        }
        best.map(|(_, text)| text)
    }
}

/// ` beside NAME, NAME`: what is placed on a node.
pub fn neighbours(problem: &Problem, layout: &[Copy], node: usize) -> String {
    let mut names: Vec<&str> = layout
        .iter()
        .filter(|c| problem.models[c.model].shapes[c.shape].node == node)
        .map(|c| problem.models[c.model].name.as_str())
        .collect();
    names.sort_unstable();
    names.dedup();
    match names.len() {
        0 => String::new(),
        1..=3 => format!(" beside {}", names.join(", ")),
        n => format!(" beside {} and {} more", names[..2].join(", "), n - 2),
    }
}

/// The removal that came closest to fitting; memory before everything else.
pub fn closest<'r>(removed: impl Iterator<Item = &'r Removed>) -> Option<&'r Removed> {
    removed.min_by(|a, b| {
        let weight = |r: &Removed| match (r.reason.constraint.as_str(), r.reason.needed, r.reason.available) {
            ("memory" | "ram" | "disk", Some(needed), Some(available)) => missing(needed, available),
            ("accelerators", ..) => 2.0,
            ("split", ..) => 3.0,
            _ => 4.0,
        };
        weight(a).total_cmp(&weight(b))
    })
}

fn missing(needed: u64, available: u64) -> f64 {
    if needed == 0 { 0.0 } else { needed.saturating_sub(available) as f64 / needed as f64 }
}

fn plain(node: &str, constraint: &str, text: &str) -> Reason {
    Reason {
        node: node.to_owned(),
        constraint: constraint.to_owned(),
        needed: None,
        available: None,
        unit: None,
        text: text.to_owned(),
    }
}

fn bytes(node: &str, constraint: &str, needed: u64, available: u64, text: String) -> Reason {
    Reason {
        needed: Some(needed),
        available: Some(available),
        unit: Some("bytes".to_owned()),
        ..plain(node, constraint, &text)
    }
}
