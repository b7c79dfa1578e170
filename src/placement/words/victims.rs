//! Running instances that lose their place to higher ranks: who takes it, and why these.

use std::collections::{BTreeMap, BTreeSet};

use crate::placement::layout::{Copy, keepable};
use crate::placement::{Problem, Running, Victim};

/// What loses its place to somebody of a higher rank, in the order of model and replica.
pub fn victims(problem: &Problem, layout: &[Copy]) -> Vec<Victim> {
    let stay: BTreeSet<usize> = layout.iter().filter_map(|copy| copy.kept).collect();
    let stays = |index: usize| stay.contains(&index);
    let before = keepable(problem);
    let (kept, gone): (Vec<&Copy>, Vec<&Copy>) = before.iter().partition(|copy| copy.kept.is_some_and(stays));
    // New copies by the nodes that they are on.
    let mut new: BTreeMap<usize, Vec<&Copy>> = BTreeMap::new();
    for copy in layout.iter().filter(|copy| copy.kept.is_none() && !gone.is_empty()) {
        for node in copy.nodes().collect::<BTreeSet<usize>>() {
            new.entry(node).or_default().push(copy);
        }
    }
    let on = |copy: &Copy| new.get(&copy.node).map_or(&[][..], Vec::as_slice);
    let found: Vec<(&Copy, Vec<&Copy>)> = gone.iter().map(|copy| (*copy, takers(problem, on(copy), copy))).collect();
    let mut same_rank: BTreeMap<u32, usize> = BTreeMap::new();
    for (copy, _) in found.iter().filter(|(_, by)| !by.is_empty()) {
        *same_rank.entry(problem.models[copy.model].rank).or_default() += 1;
    }
    // By rank, the least that one of those that stay and might have gone costs to lose.
    let mut least: BTreeMap<u32, f64> = BTreeMap::new();
    for copy in kept {
        let demand = &problem.models[copy.model];
        let Some(other) = copy.kept.and_then(|index| problem.running.get(index)).filter(|_| !demand.protected) else {
            continue;
        };
        let least = least.entry(demand.rank).or_insert(f64::INFINITY);
        *least = least.min(other.weight());
    }
    let mut victims: Vec<Victim> = found
        .iter()
        .filter(|(_, by)| !by.is_empty())
        .filter_map(|(copy, by)| {
            let running = problem.running.get(copy.kept?)?;
            let demand = &problem.models[copy.model];
            let mut names: Vec<String> = by.iter().map(|taker| problem.models[taker.model].name.clone()).collect();
            names.sort();
            names.dedup();
            Some(Victim {
                model: running.model.clone(),
                replica: running.replica,
                instance: running.instance.clone(),
                node: running.node.clone(),
                rank: demand.rank,
                by: names,
                load_ms: running.load_ms,
                live_sessions: running.live_sessions,
                why: why(running, demand.rank, same_rank[&demand.rank], least.get(&demand.rank).copied()),
            })
        })
        .collect();
    victims.sort_by(|a, b| (&a.model, a.replica, &a.instance).cmp(&(&b.model, b.replica, &b.instance)));
    victims
}

/// New copies of higher ranks on what an instance has, of those on its node.
fn takers<'l>(problem: &Problem, new: &[&'l Copy], gone: &Copy) -> Vec<&'l Copy> {
    let rank = problem.models[gone.model].rank;
    let on = |copy: &Copy, node: usize, at: usize| {
        (copy.node == node && copy.accelerators.contains(&at))
            || copy.further.iter().any(|(other, on)| *other == node && on.contains(&at))
    };
    let shares = |copy: &&Copy| {
        if gone.accelerators.is_empty() {
            return copy.node == gone.node && copy.accelerators.is_empty();
        }
        gone.accelerators.iter().any(|at| on(copy, gone.node, *at))
    };
    new.iter().copied().filter(|copy| problem.models[copy.model].rank > rank).filter(shares).collect()
}

/// Why this one and no other: what the tiers promise (nothing of a higher rank goes where less would do, and of each
/// rank the fewest), then what it costs to lose beside what stays.
fn why(running: &Running, rank: u32, number: usize, least: Option<f64>) -> String {
    let fewest = match number {
        1 => format!("one instance of rank {rank} is the fewest that makes room"),
        many => format!("{many} instances of rank {rank} are the fewest that make room"),
    };
    let mut reasons = vec![fewest];
    if least.is_some_and(|least| running.weight() <= least + 1e-9) {
        reasons.push("no other of that rank costs less to lose".to_owned());
    }
    let sessions = match running.live_sessions {
        0 => "no live session".to_owned(),
        1 => "1 live session".to_owned(),
        many => format!("{many} live sessions"),
    };
    let load = running.load_ms.map_or(String::new(), |ms| format!(", loaded in {} s", ms.div_ceil(1000)));
    format!("{} ({sessions}{load})", reasons.join("; "))
}
