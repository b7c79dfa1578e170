//! The strict tiers over all layouts of a small problem, without the solver's code.

use std::collections::BTreeMap;

use super::world::{Outcome, World};
use crate::placement::*;

/// The values of all tiers, in the order in which the solver states them.
pub fn judge(problem: &Problem, world: &World<'_>, outcomes: &[Outcome]) -> Vec<(String, f64)> {
    let pinned = &world.pinned;
    let mut ranks: Vec<u32> = problem.models.iter().map(|m| m.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    ranks.reverse();
    let mut open: Vec<&Outcome> = outcomes.iter().collect();
    let mut least: BTreeMap<u32, u32> = BTreeMap::new();
    let mut values = Vec::new();
    let displaced = |o: &Outcome, rank: u32| -> u32 {
        problem.models.iter().zip(&o.displaced).filter(|(m, _)| m.rank == rank).map(|(_, d)| d).sum()
    };
    let within = |o: &Outcome, least: &BTreeMap<u32, u32>| least.iter().all(|(rank, d)| displaced(o, *rank) <= *d);
    let settle = |open: &[&Outcome], least: &mut BTreeMap<u32, u32>, below: u32, values: &mut Vec<(String, f64)>| {
        for rank in ranks.iter().filter(|r| **r < below) {
            let best = open.iter().filter(|o| within(o, least)).map(|o| displaced(o, *rank)).min().unwrap();
            least.insert(*rank, best);
            if best > 0 {
                values.push((format!("displaced instances, rank {rank}"), f64::from(best)));
            }
        }
    };
    settle(&open, &mut least, u32::MAX, &mut values);
    for minimum in [true, false] {
        for rank in &ranks {
            for preempts in [true, false] {
                let group: Vec<usize> = (0..problem.models.len())
                    .filter(|m| problem.models[*m].rank == *rank && problem.models[*m].preempts == preempts)
                    .collect();
                if group.is_empty() {
                    continue;
                }
                if preempts {
                    least.retain(|r, _| r >= rank);
                }
                let counted = |m: usize, count: u32| {
                    if minimum { count.min(problem.models[m].min.saturating_sub(pinned[m])) } else { count }
                };
                let value = |o: &Outcome| -> u32 { group.iter().map(|m| counted(*m, o.placed[*m])).sum() };
                let best = open.iter().filter(|o| within(o, &least)).map(|o| value(o)).max().unwrap();
                open.retain(|o| value(o) >= best);
                let fixed: u32 = group
                    .iter()
                    .map(|m| if minimum { pinned[*m].min(problem.models[*m].min) } else { pinned[*m] })
                    .sum();
                let kind = if minimum { "minimum" } else { "desired" };
                let suffix = if preempts { ", preempting" } else { "" };
                values.push((format!("{kind} replicas, rank {rank}{suffix}"), f64::from(best + fixed)));
                if preempts {
                    settle(&open, &mut least, *rank, &mut values);
                }
            }
        }
        for rank in ranks.iter().filter(|_| minimum && world.hedges()) {
            let hedged = |m: &usize| problem.models[*m].rank == *rank && problem.models[*m].min > 0;
            let group: Vec<usize> = (0..problem.models.len()).filter(hedged).collect();
            if group.is_empty() {
                continue;
            }
            let value = |o: &Outcome| -> u32 { group.iter().map(|m| o.survivors[*m]).sum() };
            let best = open.iter().filter(|o| within(o, &least)).map(|o| value(o)).max().unwrap();
            open.retain(|o| value(o) >= best);
            let losses = problem.spot_hedge;
            let plural = if losses == 1 { "" } else { "es" };
            values.push((format!("replicas that outlast {losses} spot loss{plural}, rank {rank}"), f64::from(best)));
        }
    }
    open.retain(|o| within(o, &least));
    for (index, tier) in problem.tail.iter().enumerate() {
        let best = open.iter().map(|o| o.tail[index]).fold(f64::INFINITY, f64::min);
        open.retain(|o| o.tail[index] <= best + 1e-6 * best.abs().max(1.0));
        values.push((tier.name.clone(), best));
    }
    values
}
