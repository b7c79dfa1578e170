//! Large clusters: counts of equal things are as good as looking at every accelerator, and bounds are true.

use std::collections::BTreeMap;

use super::random::{Dice, accelerator, node, shape, weighted_tail};
use super::{random, scale};
use crate::base::{EngineKind, GIB};
use crate::placement::*;

/// Accelerator types: name, per node, bytes, bandwidth.
const TYPES: [(&str, usize, u64, f64); 6] = [
    ("4090", 4, 24, 1_008.0),
    ("l4", 8, 24, 300.0),
    ("l40s", 4, 48, 864.0),
    ("a100-40", 8, 40, 1_555.0),
    ("a100-80", 8, 80, 2_039.0),
    ("h200", 8, 141, 4_800.0),
];

/// Billions of parameters.
const SIZES: [f64; 10] = [1.5, 3.0, 7.0, 8.0, 13.0, 14.0, 32.0, 34.0, 70.0, 123.0];

/// Nodes of six types, equal ones standing for each other, and models of ten sizes whose smallest variants together
/// want a little more than there is.
pub fn cluster(accelerators: usize, load: f64, seed: u64) -> Problem {
    let mut dice = Dice(seed);
    let mut problem = Problem { tail: weighted_tail(), ..Problem::default() };
    let (mut count, mut memory) = (0, 0.0);
    let mut first: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    while count < accelerators {
        let index = problem.nodes.len();
        let of = index % TYPES.len();
        let (kind, size, total, _) = TYPES[of];
        let size = size.min(accelerators - count);
        let list = (0..size).map(|p| {
            let mut supply = accelerator(format!("{index}-{p}"), kind, total * GIB);
            supply.capacity_bytes = total * GIB / 100 * 92;
            memory += supply.capacity_bytes as f64 / GIB as f64;
            supply
        });
        problem.nodes.push(node(&format!("n{index:05}"), list.collect()));
        first.entry((of, size)).or_insert(index);
        count += size;
    }
    problem.alike = vec![Vec::new(); problem.nodes.len()];
    for (index, supply) in problem.nodes.iter().enumerate() {
        let sample = first[&(index % TYPES.len(), supply.accelerators.len())];
        problem.alike[sample].push(index);
    }
    let samples: Vec<(usize, usize)> = first.iter().map(|((of, _), node)| (*of, *node)).collect();
    let mut wanted = 0.0;
    while wanted < load * memory {
        let size = SIZES[dice.below(10) as usize];
        let desired = 1 + dice.below(6) as u32;
        let mut model = ModelDemand {
            name: format!("m{:05}", problem.models.len()),
            rank: [10, 50, 100][dice.below(3) as usize],
            preempts: true,
            min: 1,
            desired,
            ..ModelDemand::default()
        };
        wanted += f64::from(desired) * (size * 0.6 + 2.0);
        let variants = [("bf16", 2.0, 0), ("fp8", 1.05, 1), ("awq-int4", 0.6, 5)];
        for (candidate, (label, bytes, quality)) in variants.into_iter().enumerate() {
            model.candidates.push(CandidateFacts {
                label: label.to_owned(),
                quality,
                legal_ranks: [(EngineKind::Vllm, vec![1, 2, 4, 8])].into(),
                context: 8192,
                ..CandidateFacts::default()
            });
            for (of, position) in &samples {
                let supply = &problem.nodes[*position];
                for ranks in [1_u32, 2, 4, 8] {
                    let weights = size * bytes / f64::from(ranks);
                    let bytes = ((weights + 1.5 + 0.1 * size.sqrt()) * GIB as f64) as u64;
                    if supply.accelerators.len() >= ranks as usize && bytes <= supply.accelerators[0].capacity_bytes {
                        let group = (0..supply.accelerators.len()).collect();
                        let mut shape = shape(candidate, *position, group, ranks, bytes);
                        shape.speed = Some(TYPES[*of].3 * 0.8 / weights);
                        model.shapes.push(shape);
                    }
                }
            }
        }
        problem.models.push(model);
    }
    problem.sort();
    problem
}

/// What runs after a placement was applied.
pub fn running(problem: &Problem, placement: &Placement) -> Vec<Running> {
    let of = |placed: &Placed| Running {
        model: placed.model.clone(),
        replica: placed.replica,
        instance: format!("{}-{}", placed.model, placed.replica),
        node: placed.node.clone(),
        accelerators: placed.accelerators.clone(),
        variant: problem.models[problem.model(&placed.model).unwrap()].candidates[placed.candidate].label.clone(),
        engine: Some(placed.engine),
        load_ms: Some(60_000),
        ..Running::default()
    };
    placement.instances.iter().map(of).collect()
}

fn forced(problem: &Problem) -> Problem {
    let mut problem = problem.clone();
    problem.limits.exact_accelerators = 0;
    problem
}

fn exact(problem: &Problem) -> Problem {
    let mut problem = problem.clone();
    problem.limits.exact_accelerators = usize::MAX;
    problem
}

/// Tiers agree up to the first that is worse; there the bound is not below what is possible, and the value not above.
fn compare(name: &str, exact: &Placement, large: &Placement) -> bool {
    for tier in &exact.solver.tiers {
        let Some(other) = large.solver.tiers.iter().find(|t| t.name == tier.name) else { return true };
        let eps = 1e-4 * tier.value.abs().max(1.0);
        if tier.name.contains("replicas") {
            assert!(other.bound >= tier.value - eps, "{name}: the bound of {tier:?} is below: {other:?}");
            assert!(other.value <= tier.bound + eps, "{name}: {other:?} is better than {tier:?}");
        } else {
            assert!(other.bound <= tier.value + eps, "{name}: the bound of {tier:?} is above: {other:?}");
            assert!(other.value >= tier.bound - eps, "{name}: {other:?} is better than {tier:?}");
        }
        if (other.value - tier.value).abs() > eps {
            return false;
        }
    }
    true
}

#[test]
fn no_bound_is_wrong_and_no_value_too_good_on_small_problems() {
    let mut equal = 0;
    let count = 300;
    for seed in 0..count {
        let problem = random::problem(seed);
        let large = solve(&forced(&problem));
        assert_eq!(check(&problem, &large), Vec::<String>::new(), "seed {seed}");
        equal += usize::from(compare(&format!("seed {seed}"), &solve(&exact(&problem)), &large));
    }
    assert!(equal * 10 >= count as usize * 8, "{equal} of {count}");
}

#[test]
fn prices_count_as_they_do_where_every_accelerator_is_looked_at() {
    for seed in 0..60 {
        let mut problem = random::problem(seed);
        for (index, node) in problem.nodes.iter_mut().enumerate() {
            node.price_per_hour = Some([4.0, 0.5, 2.0][index % 3]);
        }
        let large = solve(&forced(&problem));
        assert_eq!(check(&problem, &large), Vec::<String>::new(), "seed {seed}");
        compare(&format!("seed {seed}"), &solve(&exact(&problem)), &large);
    }
}

#[test]
fn no_bound_is_wrong_and_no_value_too_good_on_two_dozen_accelerators() {
    for seed in 0..4 {
        let problem = scale::cluster(12 + 4 * seed as usize, seed);
        let large = solve(&forced(&problem));
        assert_eq!(check(&problem, &large), Vec::<String>::new(), "seed {seed}");
        let exact = solve(&exact(&problem));
        compare(&format!("seed {seed}"), &exact, &large);
    }
}

/// The problem once a placement runs.
fn applied(problem: &Problem, placement: &Placement) -> Problem {
    let mut next = problem.clone();
    next.running = running(problem, placement);
    next.sort();
    next
}

#[test]
fn a_running_cluster_is_left_alone_and_equal_calls_agree() {
    let problem = cluster(40, 1.05, 3);
    let first = solve(&problem);
    assert_eq!(check(&problem, &first), Vec::<String>::new());
    assert_eq!(solve(&problem), first);
    let minimum = first.solver.tiers.iter().filter(|t| t.name.contains("minimum"));
    minimum.for_each(|tier| assert_eq!(tier.gap, 0.0, "{tier:?}"));
    let next = applied(&problem, &first);
    let again = solve(&next);
    assert_eq!(check(&next, &again), Vec::<String>::new());
    assert_eq!(random::places(&again), random::places(&first));
}

#[test]
fn where_a_node_is_gone_little_moves() {
    let problem = cluster(40, 1.05, 3);
    let first = solve(&problem);
    let mut next = applied(&problem, &first);
    // The last node stands for no other: it can go without anything else being renumbered.
    let gone = next.nodes.pop().unwrap().name;
    next.running.retain(|r| r.node != gone);
    let last = next.nodes.len();
    next.alike.pop();
    next.alike.iter_mut().for_each(|alike| alike.retain(|node| *node != last));
    next.models.iter_mut().for_each(|m| m.shapes.retain(|s| s.node != last));
    let again = solve(&next);
    assert_eq!(check(&next, &again), Vec::<String>::new());
    let stay = random::places(&again).into_iter().map(|p| (p.0, p.2, p.3)).collect::<std::collections::BTreeSet<_>>();
    let left = random::places(&first)
        .into_iter()
        .filter(|p| p.2 != gone && !stay.contains(&(p.0.clone(), p.2.clone(), p.3.clone())));
    let left = left.count();
    assert!(left * 4 <= first.instances.len(), "{left} of {} moved", first.instances.len());
}

#[test]
fn spread_and_quotas_hold_in_a_large_cluster() {
    let mut problem = cluster(40, 0.9, 5);
    for (index, node) in problem.nodes.iter_mut().enumerate() {
        node.labels.insert("rack".to_owned(), format!("r{}", index % 4));
    }
    problem.alike.clear();
    let samples: Vec<usize> = (0..problem.nodes.len()).collect();
    for model in &mut problem.models {
        let shapes = std::mem::take(&mut model.shapes);
        for node in &samples {
            let like = |s: &&Shape| {
                let (a, b) = (&problem.nodes[s.node].accelerators, &problem.nodes[*node].accelerators);
                a.len() == b.len() && a[0].kind == b[0].kind
            };
            model.shapes.extend(shapes.iter().filter(like).map(|s| Shape { node: *node, ..s.clone() }));
        }
    }
    let spread: Vec<String> = problem.models.iter().take(6).map(|m| m.name.clone()).collect();
    for (index, model) in problem.models.iter_mut().take(6).enumerate() {
        model.spread_by = Some(if index.is_multiple_of(2) { "rack" } else { "node" }.to_owned());
    }
    let limited: Vec<String> = problem.models.iter().skip(8).take(8).map(|m| m.name.clone()).collect();
    let rule = QuotaRule {
        name: "team".to_owned(),
        models: limited.clone(),
        accelerators: Some(9),
        vram_bytes: Some(200 * GIB),
    };
    problem.quotas.push(rule);
    problem.sort();
    let placement = solve(&problem);
    assert_eq!(check(&problem, &placement), Vec::<String>::new());
    assert!(placement.instances.iter().any(|p| spread.contains(&p.model)));
    let counted = placement.instances.iter().filter(|p| limited.contains(&p.model));
    let cards: usize = counted.clone().map(|p| p.accelerators.len()).sum();
    let bytes: u64 = counted.flat_map(|p| &p.per_accelerator).map(PlacedMemory::total_bytes).sum();
    assert!(cards > 0 && cards <= 9 && bytes <= 200 * GIB, "{cards} cards, {bytes} bytes");
}

#[test]
fn losses_of_spot_nodes_are_outlasted_in_a_large_cluster() {
    let mut problem = cluster(30, 0.7, 5);
    // All may be taken away but those of the first type.
    for (index, node) in problem.nodes.iter_mut().enumerate() {
        node.spot = index % TYPES.len() != 0;
    }
    let tiers = |problem: &Problem| {
        let placement = solve(problem);
        assert_eq!(check(problem, &placement), Vec::<String>::new());
        placement.solver.tiers
    };
    let without = tiers(&problem);
    assert!(without.iter().all(|tier| !tier.name.contains("outlast")));
    problem.spot_hedge = 1;
    let with = tiers(&problem);
    let (mut value, mut bound) = (0.0, 0.0);
    for tier in with.iter().filter(|tier| tier.name.contains("outlast")) {
        assert!(tier.value <= tier.bound, "{tier:?}");
        (value, bound) = (value + tier.value, bound + tier.bound);
    }
    // What none can have is known, and most of what is possible is reached.
    let wanted: f64 = problem.models.iter().map(|model| f64::from(model.min)).sum();
    println!("{value} of {wanted} outlast a loss, {bound} at most");
    assert!(bound <= wanted && value * 10.0 >= bound * 8.0, "{value} of {bound}");
    for (before, after) in without.iter().zip(&with).filter(|(before, _)| before.name.starts_with("minimum")) {
        assert_eq!((&before.name, before.value), (&after.name, after.value));
    }
}

/// Three clusters that nothing connects, as one problem.
fn apart() -> Problem {
    let mut whole = Problem { tail: weighted_tail(), ..Problem::default() };
    for (index, accelerators) in [12, 16, 12].into_iter().enumerate() {
        let one = cluster(accelerators, 1.05, 11 + index as u64);
        let nodes = whole.nodes.len();
        for mut node in one.nodes {
            node.name = format!("{index}-{}", node.name);
            node.accelerators.iter_mut().for_each(|a| a.uuid = format!("{index}-{}", a.uuid));
            whole.nodes.push(node);
        }
        whole.alike.extend(one.alike.iter().map(|alike| alike.iter().map(|node| node + nodes).collect::<Vec<_>>()));
        for mut model in one.models {
            model.name = format!("{index}-{}", model.name);
            model.shapes.iter_mut().for_each(|shape| shape.node += nodes);
            whole.models.push(model);
        }
    }
    whole.sort();
    whole
}

#[test]
fn parts_that_nothing_connects_are_solved_apart_on_any_number_of_threads() {
    let problem = apart();
    let first = solve(&problem);
    assert_eq!(check(&problem, &first), Vec::<String>::new());
    let digest = |placement: &Placement| format!("{placement:?}");
    for threads in [2, 8] {
        let mut more = problem.clone();
        more.limits.threads = threads;
        assert_eq!(digest(&solve(&more)), digest(&first), "{threads} threads");
    }
    // Every tier is the sum of the parts, but for the balance, of which the busiest node of all counts.
    let mut sums: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for (index, accelerators) in [12, 16, 12].into_iter().enumerate() {
        for tier in solve(&forced(&cluster(accelerators, 1.05, 11 + index as u64))).solver.tiers {
            let sum = sums.entry(tier.name).or_default();
            (sum.0, sum.1) = (sum.0 + tier.value, sum.1 + tier.bound);
        }
    }
    for tier in &first.solver.tiers {
        let (value, bound) = sums[&tier.name];
        if tier.name.contains("replicas") {
            assert_eq!((tier.value, tier.bound), (value, bound), "{tier:?}");
        }
        let own = if tier.name.contains("replicas") { tier.bound - tier.value } else { tier.value - tier.bound };
        assert!(own >= -1e-6, "{tier:?}");
    }
    let next = applied(&problem, &first);
    let again = solve(&next);
    assert_eq!(check(&next, &again), Vec::<String>::new());
    assert_eq!(random::places(&again), random::places(&first));
}
