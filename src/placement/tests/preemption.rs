//! Who loses a place to whom, and that nobody does for nothing.

use super::brute::{instances, over_seeds};
use super::random::{self, accelerator, applied, node, shape};
use crate::base::{EngineKind, GIB};
use crate::placement::*;

/// A model of one variant of `bytes` on each of `ranks` accelerators of the node, of 24 GiB each.
fn model(name: &str, rank: u32, ranks: u32, bytes: u64, cards: usize) -> ModelDemand {
    let mut model = ModelDemand { name: name.to_owned(), rank, min: 1, desired: 1, ..ModelDemand::default() };
    model.candidates.push(CandidateFacts {
        label: "bf16".to_owned(),
        legal_ranks: [(EngineKind::Vllm, vec![1, 2, 4, 8])].into(),
        ..CandidateFacts::default()
    });
    model.shapes.push(shape(0, 0, (0..cards).collect(), ranks, bytes));
    model
}

/// The model's one replica, running on one accelerator.
fn running(model: &str, card: usize) -> Running {
    Running {
        model: model.to_owned(),
        instance: format!("{model}-0"),
        node: "n".to_owned(),
        accelerators: vec![card.to_string()],
        variant: "bf16".to_owned(),
        engine: Some(EngineKind::Vllm),
        ..Running::default()
    }
}

/// A node of 24-GiB cards, each held by a model `low-0`, `low-1` … of rank 10, and `high` of rank 100 that wants so many
/// of the cards whole and preempts.
fn full(cards: usize, wanted: u32) -> Problem {
    let supply = (0..cards).map(|card| accelerator(card.to_string(), "4090", 24 * GIB)).collect();
    let mut problem = Problem { nodes: vec![node("n", supply)], tail: random::weighted_tail(), ..Problem::default() };
    for card in 0..cards {
        let name = format!("low-{card}");
        problem.models.push(model(&name, 10, 1, 20 * GIB, cards));
        problem.running.push(running(&name, card));
    }
    let mut high = model("high", 100, wanted, 22 * GIB, cards);
    high.preempts = true;
    problem.models.push(high);
    problem.sort();
    problem
}

fn victims(problem: &Problem) -> Vec<String> {
    let placement = solve(problem);
    assert_eq!(check(problem, &placement), Vec::<String>::new());
    let runs = |model: &ModelDemand| placement.instances.iter().any(|placed| placed.model == model.name);
    problem.models.iter().filter(|m| m.name != "high" && !runs(m)).map(|m| m.name.clone()).collect()
}

#[test]
fn as_many_give_way_as_are_in_the_way() {
    for wanted in [1, 2, 4, 8] {
        assert_eq!(victims(&full(8, wanted)).len(), wanted as usize);
    }
}

#[test]
fn nobody_gives_way_where_that_helps_nobody() {
    // Eight are in the way, and one of them stays in any case.
    for stays in ["protected", "equal rank", "higher rank"] {
        let mut problem = full(8, 8);
        let one = problem.models.iter_mut().find(|m| m.name == "low-5").unwrap();
        match stays {
            "protected" => one.protected = true,
            "equal rank" => one.rank = 100,
            _ => one.rank = 200,
        }
        assert_eq!(victims(&problem), Vec::<String>::new(), "{stays}");
    }
    // All could leave, and it would be too large all the same.
    let mut problem = full(4, 4);
    let high = problem.models.iter_mut().find(|m| m.name == "high").unwrap();
    high.shapes[0].per_accelerator = random::memory(25 * GIB);
    assert_eq!(victims(&problem), Vec::<String>::new());
    // It does not preempt.
    let mut problem = full(4, 2);
    problem.models.iter_mut().for_each(|m| m.preempts = false);
    assert_eq!(victims(&problem), Vec::<String>::new());
}

#[test]
fn of_equals_those_give_way_whose_loss_costs_least() {
    let mut problem = full(4, 2);
    for (card, (minutes, sessions)) in [(0, 3), (10, 0), (1, 0), (0, 0)].into_iter().enumerate() {
        let one = problem.running.iter_mut().find(|r| r.model == format!("low-{card}")).unwrap();
        one.load_ms = Some(minutes * 60_000);
        one.live_sessions = sessions;
    }
    assert_eq!(victims(&problem), ["low-2", "low-3"]);
}

#[test]
fn lower_ranks_give_way_first_whatever_they_serve() {
    let mut problem = full(4, 2);
    for (card, rank) in [10, 50, 20, 50].into_iter().enumerate() {
        problem.models.iter_mut().find(|m| m.name == format!("low-{card}")).unwrap().rank = rank;
    }
    problem.running.iter_mut().filter(|r| r.model != "low-1").for_each(|r| r.live_sessions = 9);
    assert_eq!(victims(&problem), ["low-0", "low-2"]);
}

#[test]
fn a_free_accelerator_is_taken_before_anybody_gives_way() {
    let mut problem = full(4, 2);
    problem.running.retain(|r| r.model != "low-0" && r.model != "low-3");
    problem.models.retain(|m| m.name != "low-0" && m.name != "low-3");
    assert_eq!(victims(&problem), Vec::<String>::new());
}

/// What fits moves before it gives way.
#[test]
fn who_can_move_does_not_lose_its_place() {
    let mut problem = full(3, 2);
    // Two of them together on one card leave two free.
    for model in problem.models.iter_mut().filter(|m| m.name != "high") {
        model.shapes[0].per_accelerator = random::memory(8 * GIB);
    }
    assert_eq!(victims(&problem), Vec::<String>::new());
}

/// Models of the highest rank arrive where the others have taken what they could.
fn arrival(seed: u64) -> Option<Problem> {
    let mut problem = random::problem(seed);
    problem.running.retain(|r| problem.nodes.iter().any(|n| n.name == r.node && !n.reachable));
    let top = problem.models.iter().map(|m| m.rank).max().unwrap();
    let mut before = problem.clone();
    before.models.retain(|m| m.rank < top);
    before.running.retain(|r| before.models.iter().any(|m| m.name == r.model));
    if before.models.is_empty() {
        return None;
    }
    let placement = solve(&before);
    let mut after = applied(&before, &placement);
    let disks = after.nodes.iter().map(|n| n.disk_free_bytes).collect::<Vec<_>>();
    let new = problem.models.into_iter().filter(|m| m.rank == top).map(|m| ModelDemand { preempts: true, ..m });
    after.models.extend(new);
    after.nodes.iter_mut().zip(disks).for_each(|(node, free)| node.disk_free_bytes = free);
    after.running.extend(problem.running.into_iter().filter(|r| !before.models.iter().any(|m| m.name == r.model)));
    after.sort();
    Some(after)
}

#[test]
fn whoever_loses_a_place_loses_it_to_a_higher_rank_that_gains_one() {
    let evicting = std::sync::atomic::AtomicU64::new(0);
    let (compared, wrong) = over_seeds(21, instances(2_000) / 5, |seed| {
        let Some(problem) = arrival(seed) else { return Ok(false) };
        let placement = solve(&problem);
        let faults = check(&problem, &placement);
        if !faults.is_empty() {
            return Err(format!("{faults:?}"));
        }
        let mut calm = problem.clone();
        calm.models.iter_mut().for_each(|m| m.preempts = false);
        let alone = solve(&calm);
        let count = |p: &Placement, m: &ModelDemand| p.instances.iter().filter(|i| i.model == m.name).count();
        let runs = |m: &ModelDemand| problem.running.iter().filter(|r| r.model == m.name).count();
        let lost: Vec<&ModelDemand> =
            problem.models.iter().filter(|m| count(&placement, m) < runs(m).min(count(&alone, m))).collect();
        let gained: Vec<&ModelDemand> =
            problem.models.iter().filter(|m| m.preempts && count(&placement, m) > count(&alone, m)).collect();
        for victim in &lost {
            if victim.protected || !gained.iter().any(|m| m.rank > victim.rank) {
                return Err(format!("{} loses a replica and no higher rank gains one", victim.name));
            }
        }
        evicting.fetch_add(u64::from(!lost.is_empty()), std::sync::atomic::Ordering::Relaxed);
        Ok(true)
    });
    let evicting = evicting.into_inner();
    println!("{compared} arrivals, {evicting} with evictions, {} mismatches", wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(evicting * 20 > compared, "{evicting} of {compared} with evictions");
}
