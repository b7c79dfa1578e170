//! Denials, quotas, spot hedges, prices, `pack` and the threshold of moves: cases with known answers.

use std::collections::BTreeMap;

use super::inputs::{CARD, desired, inventory, mistral_7b, run, weights};
use super::random::{accelerator, node, shape};
use crate::base::{EngineKind, GIB};
use crate::placement::*;

/// Nodes with so many equal accelerators of 24 GiB.
fn cluster(nodes: &[(&str, usize)]) -> Problem {
    let one = |(name, count): &(&str, usize)| {
        node(name, (0..*count).map(|p| accelerator(format!("{name}-{p}"), "small", 24 * GIB)).collect())
    };
    let terms = vec![(Term::Quality, 100.0), (Term::Stability, 60.0), (Term::Cost, 10.0), (Term::Pack, 1.0)];
    let tail = vec![TailTier { name: "objective".to_owned(), terms }];
    Problem { nodes: nodes.iter().map(one).collect(), tail, ..Problem::default() }
}

/// A model with one candidate of so many GiB on one accelerator of any node.
fn model(problem: &Problem, name: &str, rank: u32, min: u32, desired: u32, gib: u64) -> ModelDemand {
    let shapes = problem.nodes.iter().enumerate().filter(|(_, node)| !node.accelerators.is_empty());
    ModelDemand {
        name: name.to_owned(),
        rank,
        min,
        desired,
        candidates: vec![CandidateFacts {
            label: "v0".to_owned(),
            legal_ranks: BTreeMap::from([(EngineKind::Vllm, vec![1])]),
            ..CandidateFacts::default()
        }],
        shapes: shapes
            .map(|(index, node)| shape(0, index, (0..node.accelerators.len()).collect(), 1, gib * GIB))
            .collect(),
        ..ModelDemand::default()
    }
}

fn runs(model: &str, replica: u32, node: &str, position: usize) -> Running {
    Running {
        model: model.to_owned(),
        replica,
        instance: format!("{model}-{replica}"),
        node: node.to_owned(),
        accelerators: vec![format!("{node}-{position}")],
        variant: "v0".to_owned(),
        engine: Some(EngineKind::Vllm),
        ..Running::default()
    }
}

fn quota(models: &[&str], accelerators: Option<u32>, gib: Option<u64>) -> QuotaRule {
    QuotaRule {
        name: "\"q\"".to_owned(),
        models: models.iter().map(|name| (*name).to_owned()).collect(),
        accelerators,
        vram_bytes: gib.map(|gib| gib * GIB),
    }
}

/// Solved and checked: replicas by model and node.
fn solved(mut problem: Problem) -> (BTreeMap<(String, String), u32>, Placement) {
    problem.sort();
    let placement = solve(&problem);
    assert_eq!(check(&problem, &placement), Vec::<String>::new());
    // A large cluster would be told nothing that is not true of this one.
    if let Err(error) = super::truth::follow(&problem) {
        panic!("{error}");
    }
    let mut found: BTreeMap<(String, String), u32> = BTreeMap::new();
    for placed in &placement.instances {
        *found.entry((placed.model.clone(), placed.node.clone())).or_default() += 1;
    }
    (found, placement)
}

fn of(found: &BTreeMap<(String, String), u32>, model: &str) -> u32 {
    found.iter().filter(|((name, _), _)| name == model).map(|(_, count)| count).sum()
}

fn tier(placement: &Placement, name: &str) -> f64 {
    placement.solver.tiers.iter().find(|tier| tier.name == name).unwrap_or_else(|| panic!("{name}")).value
}

#[test]
fn a_quota_is_kept_and_the_highest_rank_has_it() {
    // Accelerators, GiB, and how many replicas of `low` (10 GiB each, rank 1) are left beside 2 of `high` (rank 9).
    for (accelerators, gib, low) in [
        (None, None, 4),
        (Some(6), None, 4),
        (Some(3), None, 1),
        (Some(2), None, 0),
        (None, Some(60), 4),
        (None, Some(59), 3),
        (None, Some(20), 0),
        (Some(5), Some(40), 2),
    ] {
        let mut problem = cluster(&[("a", 2), ("b", 2)]);
        problem.models = vec![model(&problem, "low", 1, 0, 4, 10), model(&problem, "high", 9, 0, 2, 10)];
        problem.models.push(model(&problem, "free", 0, 0, 1, 10));
        problem.quotas = vec![quota(&["low", "high", "gone"], accelerators, gib)];
        let (found, placement) = solved(problem);
        assert_eq!(
            (of(&found, "high"), of(&found, "low"), of(&found, "free")),
            (2, low, 1),
            "{accelerators:?} {gib:?}"
        );
        let short = placement.unplaced.iter().find(|u| u.model == "low");
        assert_eq!(short.map_or(0, |u| u.replicas), 4 - low);
        if let Some(short) = short {
            let reason = &short.reasons[0];
            let unit = reason.unit.as_deref();
            assert_eq!((reason.node.as_str(), reason.constraint.as_str()), ("*", "quota"));
            assert!(reason.needed > reason.available && unit.is_some(), "{reason:?}");
            assert!(short.nearest.starts_with("quota \"q\" with "), "{}", short.nearest);
        }
    }
}

#[test]
fn what_runs_over_its_quota_loses_from_the_lowest_rank_and_what_is_protected_stays() {
    for (protected, limit, high, low) in [(false, 3, 2, 1), (false, 1, 1, 0), (true, 3, 1, 2), (true, 1, 0, 2)] {
        let mut problem = cluster(&[("a", 4)]);
        problem.models = vec![model(&problem, "low", 1, 0, 2, 20), model(&problem, "high", 9, 0, 2, 20)];
        problem.models[0].protected = protected;
        problem.running =
            vec![runs("low", 0, "a", 0), runs("low", 1, "a", 1), runs("high", 0, "a", 2), runs("high", 1, "a", 3)];
        problem.quotas = vec![quota(&["low", "high"], Some(limit), None)];
        let (found, _) = solved(problem);
        assert_eq!((of(&found, "high"), of(&found, "low")), (high, low), "protected {protected}, limit {limit}");
    }
}

#[test]
fn what_runs_on_an_unreachable_node_counts() {
    for (limit, gib, here) in [(Some(3), None, 2), (Some(1), None, 0), (None, Some(30), 2), (None, Some(29), 1)] {
        let mut problem = cluster(&[("a", 4), ("away", 1)]);
        problem.models = vec![model(&problem, "m", 1, 0, 4, 10)];
        problem.models[0].shapes.retain(|shape| shape.node == 0);
        problem.nodes[1].reachable = false;
        problem.nodes[1].closed = Some(("unreachable".to_owned(), "away".to_owned()));
        problem.nodes[1].accelerators.clear();
        problem.running = vec![runs("m", 0, "away", 0)];
        problem.quotas = vec![quota(&["m"], limit, gib)];
        let (found, _) = solved(problem);
        assert_eq!(found.get(&("m".to_owned(), "a".to_owned())).copied().unwrap_or(0), here, "{limit:?} {gib:?}");
    }
}

#[test]
fn a_hedge_spreads_over_spot_nodes_or_leaves_them() {
    // Accelerators of two spot nodes and of one that is none, minimum and desired replicas, losses: survivors.
    for (spots, solid, min, desired, losses, survivors, warned) in [
        ([2, 2], 0, 1, 2, 1, 1.0, false),
        ([2, 2], 0, 2, 2, 1, 1.0, true),
        ([2, 2], 0, 1, 1, 1, 0.0, true),
        ([2, 2], 1, 1, 1, 1, 1.0, false),
        ([2, 2], 1, 2, 3, 2, 1.0, true),
        ([2, 2], 2, 2, 3, 2, 2.0, false),
        ([4, 1], 0, 2, 4, 1, 1.0, true),
        ([4, 4], 0, 2, 4, 1, 2.0, false),
        ([4, 4], 0, 2, 4, 3, 0.0, true),
    ] {
        let mut problem = cluster(&[("s1", spots[0]), ("s2", spots[1]), ("t", solid)]);
        problem.nodes[0].spot = true;
        problem.nodes[1].spot = true;
        problem.nodes[2].price_per_hour = Some(9.0);
        problem.spot_hedge = losses;
        problem.models = vec![model(&problem, "m", 5, min, desired, 20)];
        let (found, placement) = solved(problem);
        let case = format!("{spots:?} {solid} min={min} max={desired} hedge={losses}: {found:?}");
        let words = if losses == 1 { "loss" } else { "losses" };
        let name = format!("replicas that outlast {losses} spot {words}, rank 5");
        assert_eq!(tier(&placement, &name), survivors, "{case}");
        let noted = placement.notes.iter().any(|note| note.contains("`spot hedge="));
        assert_eq!(noted, warned, "{case} {:?}", placement.notes);
        assert!(placement.unplaced.iter().all(|u| !u.required), "never infeasible for it: {case}");
    }
}

#[test]
fn a_hedge_comes_before_desired_replicas_and_after_every_minimum() {
    // One safe card: it is the minimum of `low` that it must serve where nothing else can, and else the hedge of `high`.
    for (elsewhere, safe) in [(false, "low"), (true, "high")] {
        let mut problem = cluster(&[("s", 3), ("t", 1)]);
        problem.nodes[0].spot = true;
        problem.spot_hedge = 1;
        problem.models = vec![model(&problem, "low", 1, 1, 1, 20), model(&problem, "high", 9, 1, 1, 20)];
        if !elsewhere {
            problem.models[0].shapes.retain(|shape| shape.node == 1);
        }
        let (found, _) = solved(problem);
        assert_eq!(found.get(&(safe.to_owned(), "t".to_owned())), Some(&1), "{found:?}");
    }
}

#[test]
fn a_packed_model_is_on_few_nodes() {
    for (pack, nodes) in [(false, 2), (true, 1)] {
        let mut problem = cluster(&[("a", 1), ("b", 2)]);
        problem.tail[0].terms.retain(|(term, _)| *term != Term::Cost);
        problem.models = vec![model(&problem, "m", 1, 0, 2, 20)];
        problem.models[0].pack = pack;
        // Without `pack`, a preference of `a` for one of the two is met as far as there is room.
        problem.nodes[0].labels.insert("rack".to_owned(), "r1".to_owned());
        problem.models[0].prefer = vec![("rack".to_owned(), "r1".to_owned(), 1)];
        problem.tail[0].terms.push((Term::Preference, 0.5));
        let (found, placement) = solved(problem);
        assert_eq!(found.len(), nodes, "{found:?} {:?}", placement.solver.tiers);
    }
}

#[test]
fn the_cheapest_node_is_taken_and_a_cheap_spot_node_with_it() {
    for (prices, spot, taken) in [
        ([Some(2.0), Some(1.0)], false, "b"),
        ([Some(1.0), Some(2.0)], false, "a"),
        ([Some(2.0), Some(0.5)], true, "b"),
        // Without a price it counts as the dearest.
        ([None, Some(2.0)], false, "b"),
        ([Some(1.0), None], false, "a"),
    ] {
        let mut problem = cluster(&[("a", 1), ("b", 2)]);
        // The price is of the whole node: `b` has two accelerators.
        problem.nodes[0].price_per_hour = prices[0];
        problem.nodes[1].price_per_hour = prices[1].map(|price: f64| price * 2.0);
        problem.nodes[1].spot = spot;
        if prices[0].is_none() {
            problem.nodes[0].accelerators[0].total_bytes = 48 * GIB;
        }
        problem.models = vec![model(&problem, "m", 1, 1, 1, 20)];
        let (found, placement) = solved(problem);
        assert_eq!(found.get(&("m".to_owned(), taken.to_owned())), Some(&1), "{prices:?}: {found:?}");
        assert!(tier(&placement, "objective") > 0.0);
    }
}

/// `m` runs its lesser candidate on `a`; the better one has room on `b`. Quality loss of the lesser one, and threshold.
fn better_elsewhere(loss: u32, threshold: f64, scale: f64) -> (Vec<String>, Vec<String>) {
    let mut problem = cluster(&[("a", 1), ("b", 1)]);
    problem.threshold = threshold;
    for (_, weight) in &mut problem.tail[0].terms {
        *weight *= scale;
    }
    let mut demand = model(&problem, "m", 1, 1, 1, 20);
    demand.candidates[0].quality = loss;
    demand.candidates.push(CandidateFacts { label: "best".to_owned(), ..demand.candidates[0].clone() });
    demand.candidates[1].quality = 0;
    demand.shapes.push(shape(1, 1, vec![0], 1, 22 * GIB));
    problem.models = vec![demand];
    problem.running = vec![runs("m", 0, "a", 0)];
    let (found, placement) = solved(problem);
    (found.keys().map(|(_, node)| node.clone()).collect(), placement.notes)
}

#[test]
fn nothing_moves_for_a_gain_under_the_threshold() {
    // Staying counts 100 per rank and 10 for the accelerator; moving 60 and 10: gains 40 of 110, or 140 of 210.
    assert_eq!(better_elsewhere(1, 0.0, 1.0).0, ["b"]);
    assert_eq!(better_elsewhere(1, 0.36, 1.0), (vec!["b".to_owned()], Vec::new()));
    let (nodes, notes) = better_elsewhere(1, 0.37, 1.0);
    assert_eq!(nodes, ["a"]);
    assert_eq!(notes, ["moving `m` from a to b would gain 36.3 %, under the threshold of 37 %: it stays"]);
    assert_eq!(better_elsewhere(2, 0.37, 1.0).0, ["b"]);
    assert_eq!(better_elsewhere(2, 0.67, 1.0).0, ["a"]);
    // The share is the same whatever the weights are multiplied by.
    for scale in [0.01, 1000.0] {
        assert_eq!(better_elsewhere(1, 0.36, scale).0, ["b"], "{scale}");
        assert_eq!(better_elsewhere(1, 0.37, scale), (nodes.clone(), notes.clone()), "{scale}");
    }
}

#[test]
fn a_threshold_holds_back_nothing_that_a_rank_wants() {
    // `m` must leave the large card so that `big` has a place, and no threshold keeps it there.
    let mut problem = cluster(&[("a", 1), ("b", 1)]);
    problem.threshold = 1.0;
    problem.nodes[0].accelerators[0] = accelerator("a-0".to_owned(), "big", 80 * GIB);
    problem.models = vec![model(&problem, "m", 1, 1, 2, 20), model(&problem, "big", 9, 1, 1, 70)];
    problem.models[1].preempts = true;
    problem.models[1].shapes.retain(|shape| shape.node == 0);
    problem.running = vec![runs("m", 0, "a", 0)];
    let (found, placement) = solved(problem);
    assert_eq!((of(&found, "big"), of(&found, "m")), (1, 1), "{found:?}");
    assert!(placement.notes.is_empty(), "{:?}", placement.notes);
}

const MODEL: &str = "model \"chat\" { source \"path:/models\"; engine \"vllm\"; context 4096 }\n";

#[test]
fn a_denied_place_is_not_taken_and_the_policy_is_named() {
    let nodes = "node \"a\" address=\"10.0.0.1\" { label \"tier\" \"cloud\" }\nnode \"b\" address=\"10.0.0.2\"\n";
    let facts = inventory(&[("a", &[CARD]), ("b", &[CARD])]);
    let candidates = weights("chat", vec![mistral_7b()]);
    for (when, taken) in [
        ("node.labels.tier == 'cloud'", Some("b")),
        ("node.labels.tier != 'cloud'", Some("a")),
        ("model.gated && node.name == 'a'", Some("b")),
        ("model.engine == 'vllm'", None),
    ] {
        let config = format!("{nodes}{MODEL}deny \"campus\" {{ when \"{when}\" }}\n");
        let placement = run(&config, &facts, &candidates);
        let places: Vec<&str> = placement.instances.iter().map(|placed| placed.node.as_str()).collect();
        assert_eq!(places, taken.into_iter().collect::<Vec<_>>(), "{when}");
        if taken.is_none() {
            let short = &placement.unplaced[0];
            assert!(short.reasons.iter().all(|reason| reason.constraint == "deny"), "{short:?}");
            assert_eq!(short.reasons[0].text, "denied by \"campus\" (cluster.kdl:7)");
            assert!(short.nearest.contains("\"campus\" (cluster.kdl:7)"), "{}", short.nearest);
        }
        let told = placement.notes.iter().any(|note| note.contains("take them as gated"));
        assert_eq!(told, when.contains("gated"), "{:?}", placement.notes);
    }
}

#[test]
fn what_runs_in_a_denied_place_moves_unless_it_is_protected() {
    let nodes = "node \"a\" address=\"10.0.0.1\" { spot }\nnode \"b\" address=\"10.0.0.2\"\n";
    let deny = "deny \"no spot\" { when \"node.spot\" }\n";
    let mut facts = inventory(&[("a", &[CARD]), ("b", &[CARD])]);
    facts.nodes[0].instances = serde_json::from_value(serde_json::json!([{ "instance": "i", "specification": "s",
        "model": "chat", "replica": 0, "engine": "vllm", "variant": "bf16", "accelerators": ["a#0"], "port": 20000,
        "state": "ready" }]))
    .unwrap();
    let candidates = weights("chat", vec![mistral_7b()]);
    for (protect, taken) in [("", "b"), ("protect model=\"chat\"\n", "a")] {
        let placement = run(&format!("{nodes}{MODEL}{deny}{protect}"), &facts, &candidates);
        let places: Vec<&str> = placement.instances.iter().map(|placed| placed.node.as_str()).collect();
        assert_eq!(places, [taken]);
        let told = placement.notes.iter().any(|note| note.contains("stays on `a` because it is protected"));
        assert_eq!(told, !protect.is_empty(), "{:?}", placement.notes);
    }
}

#[test]
fn policies_of_a_config_reach_the_problem() {
    let config = "node \"a\" address=\"10.0.0.1\" { price \"2.50/h\"; spot; site \"campus\" }\nnode \"b\" address=\"10.0.0.2\"\n\
        model \"chat\" { source \"path:/models\"; label \"group\" \"nlp\"; place { pack } }\nmodel \"other\" { source \"path:/models\" }\n\
        quota \"nlp\" label=\"group\" is=\"nlp\" accelerators=4 vram=\"160GiB\"\nspot hedge=2\n";
    let facts = inventory(&[("a", &[CARD]), ("b", &[CARD])]);
    let build = |text: &str| build(&desired(text), &facts, &weights("chat", vec![mistral_7b()]), &Options::default());
    let problem = build(config);
    let node = &problem.nodes[0];
    assert_eq!((node.price_per_hour, node.spot, node.site.as_deref()), (Some(2.5), true, Some("campus")));
    assert_eq!((problem.nodes[1].price_per_hour, problem.nodes[1].spot), (None, false));
    let rule = &problem.quotas[0];
    assert_eq!(rule.name, "\"nlp\" (cluster.kdl:8)");
    assert_eq!(
        (&rule.models[..], rule.accelerators, rule.vram_bytes),
        (&["chat".to_owned()][..], Some(4), Some(160 * GIB))
    );
    assert_eq!((problem.spot_hedge, problem.threshold), (2, 0.05));
    assert!(problem.models[0].pack && !problem.models[1].pack);
    assert!(problem.notes.iter().any(|note| note.starts_with("no price is known of b")), "{:?}", problem.notes);
    assert_eq!(build(&format!("{config}threshold move=\"12.5%\"\n")).threshold, 0.125);
}

#[test]
fn the_checker_finds_what_breaks_a_policy() {
    let mut problem = cluster(&[("a", 2), ("b", 2)]);
    problem.models = vec![model(&problem, "m", 1, 2, 2, 20)];
    problem.sort();
    let placement = solve(&problem);
    let faults = |problem: &Problem, placement: &Placement| check(problem, placement).join("; ");
    assert_eq!(faults(&problem, &placement), "");
    let over = Problem { quotas: vec![quota(&["m"], Some(1), None)], ..problem.clone() };
    assert_eq!(faults(&over, &placement), "quota \"q\": 2 accelerators are planned, 1 may be used");
    let over = Problem { quotas: vec![quota(&["m"], None, Some(39))], ..problem.clone() };
    assert!(faults(&over, &placement).starts_with("quota \"q\": 42949672960 bytes are planned"));
    let mut denied = problem.clone();
    for node in ["a", "b"] {
        let place =
            DeniedPlace { node: node.to_owned(), candidate: 0, engine: EngineKind::Vllm, text: "denied".into() };
        denied.models[0].denied.push(place);
    }
    assert!(faults(&denied, &placement).contains("denied"));
    let mut hedged = Problem { spot_hedge: 1, ..problem.clone() };
    hedged.nodes.iter_mut().for_each(|node| node.spot = true);
    assert!(faults(&hedged, &placement).contains("is not met, and no note says so"));
    let mut lies = placement;
    lies.notes.push("model `m`: losing a, `spot hedge=1` cannot be met".to_owned());
    assert_eq!(faults(&hedged, &lies), "");
    let calm = Problem { spot_hedge: 1, ..problem };
    assert!(faults(&calm, &lies).contains("is met, and a note says otherwise"));
}

#[test]
fn a_place_that_loses_by_the_hedge_is_said_to_lose_by_it() {
    use crate::placement::explain::rival::{Compared, Rivals};
    let mut problem = cluster(&[("s", 1), ("t", 1)]);
    problem.nodes[0].spot = true;
    problem.nodes[1].price_per_hour = Some(9.0);
    problem.spot_hedge = 1;
    problem.models = vec![model(&problem, "m", 5, 1, 1, 20)];
    problem.sort();
    let spot = problem.models[0].shapes.iter().position(|shape| problem.nodes[shape.node].name == "s").unwrap();
    let base = crate::placement::explain::trial::answer(&problem);
    let compared = Rivals::new(&problem, &base).force(0, spot);
    let Compared::Worse { tier, without, with, .. } = compared else { panic!("{compared:?}") };
    assert_eq!((tier.as_str(), without, with), ("replicas that outlast 1 spot loss, rank 5", 1.0, 0.0));
    let placement = solve(&problem);
    let there = placement.considered.iter().find(|considered| considered.node == "s").unwrap();
    assert_eq!(there.verdict, "fits, but the chosen place is better in the order of the tiers");
}
