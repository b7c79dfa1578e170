//! Brute force: every layout of a small problem, judged tier by tier without the solver's code.
//!
//! `FLOCK_PROOF_INSTANCES` problems are compared, 2,000 where it is not set; `scripts/prove-placement` runs more.

mod judge;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use judge::judge;
use world::World;

use super::random::{self, Dice};
use crate::placement::*;

/// Layouts beyond which a problem is too large to compare.
const LAYOUTS: usize = 40_000;

/// The values of all tiers, in the order in which the solver states them; `None` where there are too many layouts.
fn truth(problem: &Problem) -> Option<Vec<(String, f64)>> {
    let world = World::new(problem);
    Some(judge(problem, &world, &world.enumerate(LAYOUTS)?))
}

/// Compares the solver with brute force; `false` where there are too many layouts for that.
fn compare(problem: &Problem) -> Result<bool, String> {
    let Some(expected) = truth(problem) else { return Ok(false) };
    let placement = solve(problem);
    let found: Vec<(String, f64)> = placement.solver.tiers.iter().map(|t| (t.name.clone(), t.value)).collect();
    let same = expected.len() == found.len()
        && expected.iter().zip(&found).all(|(e, f)| e.0 == f.0 && (e.1 - f.1).abs() <= 1e-4 * e.1.abs().max(1.0));
    if !same {
        return Err(format!("expected {expected:?}, found {found:?}"));
    }
    if let Some(tier) = placement.solver.tiers.iter().find(|tier| tier.gap > 1e-4) {
        return Err(format!("{tier:?} is not proved"));
    }
    sound(problem, &placement)?;
    // Where somebody was displaced, others may gain afterwards from what that left free.
    if placement.solver.tiers.iter().any(|t| t.name.starts_with("displaced")) {
        return Ok(true);
    }
    let next = random::applied(problem, &placement);
    let again = solve(&next);
    sound(&next, &again)?;
    if random::places(&again) != random::places(&placement) {
        let (before, after) = (random::places(&placement), random::places(&again));
        return Err(format!("not at rest: {before:?} then {after:?}"));
    }
    Ok(true)
}

/// What holds of every placement: the checker finds nothing, and who is missing is told why.
fn sound(problem: &Problem, placement: &Placement) -> Result<(), String> {
    let faults = check(problem, placement);
    if !faults.is_empty() {
        return Err(format!("{faults:?}"));
    }
    let placed = placement.instances.len() as u32;
    let missing: u32 = placement.unplaced.iter().map(|u| u.replicas).sum();
    let wanted: u32 = problem.models.iter().map(|m| m.desired).sum();
    if placed + missing < wanted {
        return Err(format!("{placed} placed and {missing} missing of {wanted}"));
    }
    if placement.unplaced.iter().any(|u| u.reasons.is_empty() || u.nearest.is_empty()) {
        return Err("a refusal without a reason".to_owned());
    }
    Ok(())
}

/// Where a tier stands: after how many that are always stated, and of displaced instances the rank, from the top.
type Step = (usize, std::cmp::Reverse<u32>);

/// Tiers by where they stand. Displaced instances are stated only where there are any, and then after several tiers.
fn steps<T>(tiers: impl Iterator<Item = (String, T)>) -> BTreeMap<Step, (String, T)> {
    let mut steps = BTreeMap::new();
    let mut main = 0;
    for (name, tier) in tiers {
        let victims = name.strip_prefix("displaced instances, rank ").map(|rank| rank.parse().unwrap());
        main += usize::from(victims.is_none());
        steps.insert((main, std::cmp::Reverse(victims.unwrap_or(u32::MAX))), (name, tier));
    }
    steps
}

/// Compares the solver of large clusters with brute force: up to the first tier where it has not the best value, no
/// value is better than the truth and no bound is on the wrong side of it. `Some(true)` where all tiers are equal.
fn compare_large(problem: &Problem) -> Result<Option<bool>, String> {
    let Some(expected) = truth(problem) else { return Ok(None) };
    let mut problem = problem.clone();
    problem.limits.exact_accelerators = 0;
    let placement = solve(&problem);
    sound(&problem, &placement)?;
    let truth = steps(expected.iter().cloned());
    let found = steps(placement.solver.tiers.iter().map(|tier| (tier.name.clone(), tier)));
    let all: BTreeSet<&Step> = truth.keys().chain(found.keys()).collect();
    for step in all {
        // A tier that is not stated is 0: nobody is displaced.
        let nobody = Tier { name: String::new(), value: 0.0, bound: 0.0, gap: 0.0 };
        let tier = found.get(step).map_or(&nobody, |(_, tier)| tier);
        let (name, best) = truth.get(step).map_or((&tier.name, 0.0), |(name, best)| (name, *best));
        if *name != tier.name && !name.starts_with("displaced") {
            return Err(format!("{name} expected, {tier:?} found"));
        }
        let slack = 1e-4 * best.abs().max(1.0);
        // Replicas are as many as possible, all else is as little.
        let sign = if name.contains("replicas") { 1.0 } else { -1.0 };
        if sign * (tier.value - best) > slack {
            return Err(format!("{tier:?} is better than what is possible, {best}: {expected:?}"));
        }
        if sign * (best - tier.bound) > slack {
            return Err(format!("{tier:?} has a bound that {best} is beyond"));
        }
        let gap = (tier.value - tier.bound).abs() / tier.value.abs().max(1.0);
        if (gap - tier.gap).abs() > 1e-4 {
            return Err(format!("{tier:?}: the gap is {gap}"));
        }
        if (tier.value - best).abs() > slack {
            return Ok(Some(false));
        }
    }
    Ok(Some(true))
}

/// Problems to compare: what the environment asks for, or so many.
#[expect(clippy::disallowed_methods, reason = "a long run is asked for by the environment")]
pub fn instances(default: u64) -> u64 {
    std::env::var("FLOCK_PROOF_INSTANCES").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Calls `each` with seeds until so many of them counted, on all processors; all that went wrong, by seed.
pub fn over_seeds(first: u64, wanted: u64, each: impl Fn(u64) -> Result<bool, String> + Sync) -> (u64, Vec<String>) {
    let (next, counted) = (AtomicU64::new(0), AtomicU64::new(0));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let work = || {
        let mut wrong = Vec::new();
        while counted.load(Ordering::Relaxed) < wanted && wrong.len() < 20 {
            let seed = Dice(first.wrapping_add(next.fetch_add(1, Ordering::Relaxed))).next();
            match each(seed).map_err(|text| format!("seed {seed}: {text}")) {
                Ok(true) => _ = counted.fetch_add(1, Ordering::Relaxed),
                Ok(false) => {}
                Err(text) => {
                    counted.fetch_add(1, Ordering::Relaxed);
                    wrong.push(text);
                }
            }
        }
        wrong
    };
    let mut wrong: Vec<String> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    wrong.sort();
    (counted.into_inner(), wrong)
}

/// Compares problems of a kind, and says how many.
fn prove(kind: &str, first: u64, wanted: u64, problem: impl Fn(u64) -> Problem + Sync) {
    let tried = AtomicU64::new(0);
    let (count, wrong) = over_seeds(first, wanted, |seed| {
        tried.fetch_add(1, Ordering::Relaxed);
        compare(&problem(seed))
    });
    let tried = tried.into_inner();
    println!("{count} {kind} of {tried} compared with brute force, {} mismatches", wrong.len());
    assert!(wrong.is_empty(), "{} of {count}: {}", wrong.len(), wrong.join("\n"));
    assert!(10 * count > 6 * tried, "only {count} of {tried} could be compared");
}

#[test]
fn every_tier_has_the_value_that_brute_force_finds() {
    prove("problems", 7, instances(2_000), random::problem);
}

#[test]
fn shapes_in_parts_have_the_value_that_brute_force_finds() {
    prove("problems in parts", 8, instances(2_000) / 2, random::problem_in_parts);
}

#[test]
fn shapes_over_nodes_have_the_value_that_brute_force_finds() {
    prove("problems over nodes", 11, instances(2_000) / 2, random::problem_over_nodes);
}

#[test]
fn policies_have_the_value_that_brute_force_finds() {
    prove("problems with policies", 10, instances(2_000) / 2, random::problem_with_policies);
}

#[test]
fn large_clusters_are_never_told_more_than_is_true() {
    let equal = AtomicU64::new(0);
    let (count, wrong) = over_seeds(9, instances(240) / 4, |seed| {
        let found = compare_large(&random::problem(seed))?;
        equal.fetch_add(u64::from(found == Some(true)), Ordering::Relaxed);
        Ok(found.is_some())
    });
    let equal = equal.into_inner();
    println!("{count} problems solved as large ones, {equal} with the best value of every tier, {} wrong", wrong.len());
    assert!(wrong.is_empty(), "{} of {count}: {}", wrong.len(), wrong.join("\n"));
    assert!(10 * equal > 8 * count, "{equal} of {count} with the best value of every tier");
}

/// Problems that were wrong once.
#[test]
fn what_was_wrong_once_is_right() {
    for seed in [10_260_536_580_878_929_050, 17_159_347_861_600_859_697, 10_118_177_549_468_202_782] {
        assert!(compare_large(&random::problem(seed)).is_ok_and(|found| found.is_some()), "{seed}");
    }
    assert_eq!(compare(&random::problem(4_514_835_981_034_586_995)), Ok(true));
    // What ran over two nodes was not known as that, and was moved.
    assert_eq!(compare(&random::problem_in_parts(12_587_370_737_594_032_228)), Ok(true));
}
