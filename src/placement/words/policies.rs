//! What to say of quotas and spot hedges.

use std::collections::BTreeMap;

use crate::base::format_bytes;
use crate::placement::build::quota;
use crate::placement::build::quota::{QuotaLimit, Taken};
use crate::placement::layout::{Copy, Layout, is_pinned};
use crate::placement::solve::counts;
use crate::placement::{ModelDemand, Problem, Reason, Running, Shape};

/// Every quota with what a layout takes of it.
pub fn quotas(problem: &Problem, layout: &[Copy]) -> Vec<(QuotaLimit, Taken)> {
    let with = |limit: QuotaLimit| {
        let taken = limit.taken(problem, layout);
        (limit, taken)
    };
    QuotaLimit::all(problem).into_iter().map(with).collect()
}

/// Why a quota keeps every further copy of a model away, and what would help; `None` where no quota does.
pub fn over_quota(
    problem: &Problem,
    layout: &[Copy],
    quotas: &[(QuotaLimit, Taken)],
    model: usize,
) -> Option<(Reason, String)> {
    let shapes = || problem.models[model].shapes.iter().filter(|shape| !shape.keep_only);
    let own: Vec<&(QuotaLimit, Taken)> = quotas.iter().filter(|(limit, _)| limit.models.contains(&model)).collect();
    let full = |shape: &Shape| {
        let over = |(limit, taken): &&(QuotaLimit, Taken)| {
            let more = limit.of(shape);
            let both = Taken { accelerators: taken.accelerators + more.accelerators, bytes: taken.bytes + more.bytes };
            !limit.allows(both)
        };
        own.iter().copied().find(over)
    };
    // Something that every quota allows is kept away by something else.
    if shapes().any(|shape| full(shape).is_none()) {
        return None;
    }
    let smallest = shapes().min_by_key(|shape| (quota::accelerators(shape), quota::planned_bytes(shape)))?;
    let (limit, taken) = full(smallest)?;
    let rule = &problem.quotas[limit.rule];
    let more = limit.of(smallest);
    let short = |most: Option<u64>, taken: u64, more: u64| most.filter(|most| taken + more > *most);
    let (needed, available, unit, words) =
        if let Some(most) = short(limit.accelerators, taken.accelerators, more.accelerators) {
            let left = most.saturating_sub(taken.accelerators);
            let words = [more.accelerators, left].map(|count| format!("{count} accelerator{}", plural(count)));
            (more.accelerators, left, "accelerators", words)
        } else {
            let left = limit.bytes.unwrap_or(u64::MAX).saturating_sub(taken.bytes);
            (more.bytes, left, "bytes", [more.bytes, left].map(format_bytes))
        };
    let [wanted, left] = words;
    let reason = Reason {
        node: "*".to_owned(),
        alike: 0,
        constraint: "quota".to_owned(),
        needed: Some(needed),
        available: Some(available),
        unit: Some(unit.to_owned()),
        text: format!("needs {wanted}, quota {} leaves {left}{}", rule.name, users(problem, layout, limit)),
    };
    Some((reason, format!("quota {} with {} more", rule.name, more_than(needed, available, unit))))
}

/// What keeps one more copy of this shape away where a quota does.
pub fn quota_of(problem: &Problem, layout: &[Copy], model: usize, shape: &Shape) -> Option<String> {
    let limits = QuotaLimit::all(problem);
    let over = |limit: &&QuotaLimit| {
        let (taken, more) = (limit.taken(problem, layout), limit.of(shape));
        let both = Taken { accelerators: taken.accelerators + more.accelerators, bytes: taken.bytes + more.bytes };
        limit.models.contains(&model) && !limit.allows(both)
    };
    let limit = limits.iter().find(over)?;
    let name = &problem.quotas[limit.rule].name;
    Some(format!("there is room for it, and quota {name} has none left for it{}", users(problem, layout, limit)))
}

fn more_than(needed: u64, available: u64, unit: &str) -> String {
    let missing = needed.saturating_sub(available);
    if unit == "bytes" { format_bytes(missing) } else { format!("{missing} accelerator{}", plural(missing)) }
}

fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// ` beside chat, coder`: what takes the rest of a quota.
fn users(problem: &Problem, layout: &[Copy], limit: &QuotaLimit) -> String {
    let of = |model: &usize| limit.models.contains(model);
    let mut names: Vec<&str> =
        layout.iter().map(|c| c.model).filter(of).map(|model| problem.models[model].name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    match names.len() {
        0 => String::new(),
        1..=3 => format!(" beside {}", names.join(", ")),
        n => format!(" beside {} and {} more", names[..2].join(", "), n - 2),
    }
}

/// What would help a model that policies alone keep from every node; `None` where anything else is in the way too.
pub fn only_denied(demand: &ModelDemand) -> Option<String> {
    let denied = |removed: &&crate::placement::Removed| removed.reason.constraint == "deny";
    let policy = demand.removed.iter().find(denied).map(|removed| &removed.reason.text)?;
    let sized = demand.removed.iter().any(|removed| matches!(removed.reason.constraint.as_str(), "memory" | "ram"));
    let any = demand.shapes.iter().any(|shape| !shape.keep_only);
    (!any && !sized).then(|| format!("a node where it is not {policy}, or another condition there"))
}

/// Of the copies of a model those that the worst losses of spot nodes leave, and the nodes of those losses.
fn survivors(problem: &Problem, copies: &[&Copy], pinned: &[&Running]) -> (u32, Vec<usize>) {
    let mut at: BTreeMap<usize, u32> = BTreeMap::new();
    let mut placed = 0_u32;
    for copy in copies {
        let mut on: Vec<usize> = copy.further.iter().map(|(node, _)| *node).chain([copy.node]).collect();
        on.sort_unstable();
        on.dedup();
        on.retain(|node| problem.nodes[*node].spot);
        if on.len() > 1 {
            continue;
        }
        placed += 1;
        on.into_iter().for_each(|node| *at.entry(node).or_default() += 1);
    }
    for running in pinned {
        placed += 1;
        if let Some(node) = problem.node(&running.node).filter(|node| problem.nodes[*node].spot) {
            *at.entry(node).or_default() += 1;
        }
    }
    let mut worst: Vec<(u32, usize)> = at.into_iter().map(|(node, count)| (count, node)).collect();
    worst.sort_by_key(|(count, node)| (std::cmp::Reverse(*count), *node));
    worst.truncate(problem.spot_hedge as usize);
    let lost: u32 = worst.iter().map(|(count, _)| count).sum();
    (placed.saturating_sub(lost), worst.into_iter().map(|(_, node)| node).collect())
}

/// One sentence for every model with its minimum placed that the worst losses of spot nodes would take below it.
pub fn unhedged(problem: &Problem, layout: &Layout) -> Vec<String> {
    if problem.spot_hedge == 0 {
        return Vec::new();
    }
    let placed = counts(problem, layout);
    let mut copies: Vec<Vec<&Copy>> = vec![Vec::new(); problem.models.len()];
    layout.iter().for_each(|copy| copies[copy.model].push(copy));
    let mut pinned: Vec<Vec<&Running>> = vec![Vec::new(); problem.models.len()];
    for running in problem.running.iter().filter(|running| is_pinned(problem, running)) {
        if let Some(model) = problem.model(&running.model) {
            pinned[model].push(running);
        }
    }
    let short = |(model, demand): (usize, &ModelDemand)| {
        let (left, nodes) = survivors(problem, &copies[model], &pinned[model]);
        let enough = placed.get(&model).copied().unwrap_or(0) >= demand.min;
        if !enough || left >= demand.min {
            return None;
        }
        let names: Vec<&str> = nodes.iter().map(|node| problem.nodes[*node].name.as_str()).collect();
        let spans = if names.is_empty() { "its spot nodes".to_owned() } else { names.join(", ") };
        Some(format!(
            "model `{}`: losing {spans} would leave {left} of at least {} replicas; `spot hedge={}` cannot be met: it needs places off spot nodes, or on more of them",
            demand.name, demand.min, problem.spot_hedge
        ))
    };
    problem.models.iter().enumerate().filter_map(short).collect()
}
