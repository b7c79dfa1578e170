//! Larger clusters: what can be proved, what is reported where it cannot, and that equal calls agree.

use super::random::{Dice, accelerator, node, shape, weighted_tail};
use crate::base::{EngineKind, GIB};
use crate::placement::*;

/// Nodes of 8 large or 4 small accelerators, and about one model per three accelerators.
pub fn cluster(accelerators: usize, seed: u64) -> Problem {
    let mut dice = Dice(seed);
    let mut problem = Problem { tail: weighted_tail(), ..Problem::default() };
    let mut count = 0;
    while count < accelerators {
        let index = problem.nodes.len();
        let (kind, size, total) = if index.is_multiple_of(3) { ("a100", 8, 80 * GIB) } else { ("4090", 4, 24 * GIB) };
        let size = size.min(accelerators - count);
        let list = (0..size).map(|p| {
            let mut supply = accelerator(format!("{index}-{p}"), kind, total);
            supply.capacity_bytes = total / 100 * 92;
            supply
        });
        problem.nodes.push(node(&format!("n{index:03}"), list.collect()));
        count += size;
    }
    for index in 0..accelerators.div_ceil(3) {
        let giga = [3, 8, 15, 15, 28, 40, 65, 141][dice.below(8) as usize] * GIB;
        let mut model = ModelDemand {
            name: format!("m{index:03}"),
            rank: [10, 50, 100][dice.below(3) as usize],
            min: 1,
            desired: 1 + dice.below(3) as u32,
            ..ModelDemand::default()
        };
        for (candidate, (label, share)) in [("bf16", 100), ("fp8", 52), ("awq-int4", 29)].into_iter().enumerate() {
            model.candidates.push(CandidateFacts {
                label: label.to_owned(),
                quality: [1, 2, 7][candidate],
                legal_ranks: [(EngineKind::Vllm, vec![1, 2, 4, 8])].into(),
                context: 8192,
                revision: String::new(),
                only_on: None,
                format: None,
                ..CandidateFacts::default()
            });
            for (position, supply) in problem.nodes.iter().enumerate() {
                let first = &supply.accelerators[0];
                let bandwidth = if first.kind == "a100" { 2_000.0 } else { 1_000.0 };
                for ranks in [1_u32, 2, 4, 8] {
                    let bytes = giga / 100 * share / u64::from(ranks) + (2 + u64::from(ranks)) * GIB / 2;
                    if supply.accelerators.len() >= ranks as usize && bytes <= first.capacity_bytes {
                        let group = (0..supply.accelerators.len()).collect();
                        let mut shape = shape(candidate, position, group, ranks, bytes);
                        shape.speed = Some(bandwidth * 0.8 / (bytes as f64 / GIB as f64));
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

#[test]
fn a_dozen_accelerators_are_solved_to_a_small_gap() {
    let problem = cluster(12, 7);
    let placement = solve(&problem);
    assert_eq!(check(&problem, &placement), Vec::<String>::new());
    assert!(placement.solver.deterministic);
    for tier in placement.solver.tiers.iter().filter(|t| t.name.contains("replicas")) {
        assert_eq!(tier.gap, 0.0, "{tier:?}");
    }
    assert_eq!(solve(&problem), placement);
}
