//! Traffic, ways out and how long a prompt is read: known answers, brute force, and what the checker catches.
//!
//! Size: one small world of links serves all of them.

use std::collections::BTreeMap;

use super::inputs::{CARD, desired, inventory, mistral_7b, weights};
use super::random::{Dice, accelerator, node, shape};
use crate::base::{EngineKind, GIB, MIB};
use crate::inventory::{EgressLink, Hold, Inventory, MemberEgress, NodeLink};
use crate::placement::*;

/// Three nodes with one card each; `a` and `b` are near, `c` is 25 ms away.
fn lab() -> Inventory {
    let mut found = inventory(&[("a", &[CARD]), ("b", &[CARD]), ("c", &[CARD])]);
    for (from, to, rtt) in [("a", "b", 200), ("a", "c", 25_000), ("b", "c", 25_000)] {
        found.links.push(NodeLink {
            from: from.to_owned(),
            to: to.to_owned(),
            rtt_us: Some(rtt),
            bandwidth_bytes_per_s: Some(100_000_000),
            measured: true,
            ..NodeLink::default()
        });
    }
    found
}

fn ways(inventory: &mut Inventory, connects: &[(&str, Option<u64>)]) {
    for (node, rtt_us) in connects {
        inventory.egress.push(EgressLink {
            node: (*node).to_owned(),
            endpoint: "api.example:443".to_owned(),
            rtt_us: *rtt_us,
            age_ms: None,
            unknown: rtt_us.is_none().then(|| ("rtt_us".to_owned(), "refused".to_owned())).into_iter().collect(),
        });
    }
}

const NODES: &str =
    "node \"a\" address=\"10.0.0.1\"\nnode \"b\" address=\"10.0.0.2\"\nnode \"c\" address=\"10.0.0.3\"\n";
const PROVIDER: &str = "provider \"far\" kind=\"anthropic\" base-url=\"https://api.example\" { key env=\"K\" }\n";

fn local(name: &str, more: &str) -> String {
    format!("model \"{name}\" {{ source \"path:/{name}\"; engine \"vllm\"; context 8192; {more} }}\n")
}

/// A model that only one node takes.
fn on(name: &str, node: &str) -> String {
    local(name, &format!("place {{ require label=\"node\" is=\"{node}\" }}"))
}

fn agent(name: &str, model: &str) -> String {
    format!("agent \"{name}\" model=\"{model}\" {{ system \"You help.\" }}\n")
}

/// Two steps of two agents, and what else the workflow says.
fn workflow(from: &str, to: &str, more: &str) -> String {
    format!(
        "workflow \"talk\" {{\nstep \"one\" agent=\"{from}\" {{ prompt \"Go.\" }}\n\
         step \"two\" agent=\"{to}\" after=\"one\" {{ prompt \"{{{{ steps.one.text }}}}\" }}\n{more}\n}}\n"
    )
}

fn models(names: &[&str]) -> Candidates {
    let mut all = Candidates::new();
    for name in names {
        all.extend(weights(name, vec![mistral_7b()]));
    }
    all
}

fn solved(config: &str, inventory: &Inventory, names: &[&str]) -> (Placement, Problem) {
    let config = format!("{NODES}{PROVIDER}{config}");
    let (placement, problem) = place(&desired(&config), inventory, &models(names), &Options::default());
    assert_eq!(check(&problem, &placement), Vec::<String>::new());
    (placement, problem)
}

fn at<'p>(placement: &'p Placement, model: &str) -> Vec<&'p str> {
    placement.instances.iter().filter(|p| p.model == model).map(|p| p.node.as_str()).collect()
}

/// How a running copy of a placement looks to the next plan.
fn kept(placement: &Placement, inventory: &Inventory) -> Inventory {
    let mut next = inventory.clone();
    for placed in &placement.instances {
        let facts = next.nodes.iter_mut().find(|n| n.name == placed.node).unwrap();
        let instance = serde_json::json!({ "instance": placed.model, "specification": "s", "model": placed.model,
            "replica": placed.replica, "engine": "vllm", "variant": "bf16", "accelerators": placed.accelerators,
            "port": 20000, "state": "ready", "running": true });
        facts.instances.push(serde_json::from_value(instance).unwrap());
    }
    let way = |egress: &Egress| MemberEgress {
        provider_model: egress.provider_model.clone(),
        agent: egress.agent.clone(),
        node: egress.node.clone(),
    };
    next.member.egress = placement.egress.iter().map(way).collect();
    next
}

#[test]
fn models_that_talk_are_placed_near_each_other() {
    let config = format!(
        "{}{}{}{}{}",
        local("planner", ""),
        on("viewer", "c"),
        agent("plan", "planner"),
        agent("view", "viewer"),
        workflow("view", "plan", "")
    );
    // `c` is full with the viewer: nothing is nearer to it than `a` or `b`, and the first by name is taken.
    let (placement, problem) = solved(&config, &lab(), &["planner", "viewer"]);
    assert_eq!((at(&placement, "viewer"), at(&placement, "planner")), (vec!["c"], vec!["a"]));
    assert_eq!(problem.traffic.len(), 1);
    let implied = &problem.traffic[0];
    assert_eq!(
        (implied.weight, implied.bytes_per_turn, implied.max_latency_us),
        (IMPLIED_WEIGHT, DEFAULT_PER_TURN, None)
    );
    assert_eq!(implied.because, "workflow talk: plan after view");

    // With two cards on each node they share one.
    let mut wide = lab();
    for facts in &mut wide.nodes {
        let mut second = facts.accelerators[0].clone();
        second.uuid.push('2');
        second.index = 1;
        facts.accelerators.push(second);
    }
    let (placement, _) = solved(&config, &wide, &["planner", "viewer"]);
    assert_eq!(at(&placement, "planner"), ["c"]);
    // Without the workflow it goes where the order of names puts it.
    let alone = format!("{}{}", local("planner", ""), on("viewer", "c"));
    assert_eq!(at(&solved(&alone, &wide, &["planner", "viewer"]).0, "planner"), ["a"]);

    // The viewer on `a`: `b` is nearer than `c`.
    let near = config.replace("is=\"c\"", "is=\"a\"");
    assert_eq!(at(&solved(&near, &lab(), &["planner", "viewer"]).0, "planner"), ["b"]);
}

#[test]
fn near_is_soft_and_names_agents_and_models() {
    for near in ["near model=\"viewer\"", "near agent=\"view\""] {
        let config = format!(
            "{}{}{}",
            local("planner", &format!("place {{ {near} }}")),
            on("viewer", "b"),
            agent("view", "viewer")
        );
        let mut found = lab();
        // `a` is the far one now.
        found.links[0].rtt_us = Some(25_000);
        found.links[2].rtt_us = Some(200);
        let (placement, problem) = solved(&config, &found, &["planner", "viewer"]);
        assert_eq!(at(&placement, "planner"), ["c"], "{near}");
        assert_eq!((problem.traffic[0].weight, problem.traffic[0].bytes_per_turn), (1.0, NEAR_PER_TURN));
    }
}

#[test]
fn a_limit_between_models_is_hard_and_refuses_with_figures() {
    let talk = workflow("view", "plan", "traffic from=\"view\" to=\"plan\" per-turn=\"200KiB\" max-latency=\"20ms\"");
    let config = |planner: &str| {
        format!(
            "{}{}{}{}{talk}",
            on("planner", planner),
            on("viewer", "a"),
            agent("plan", "planner"),
            agent("view", "viewer")
        )
    };
    let (placement, _) = solved(&config("b"), &lab(), &["planner", "viewer"]);
    assert!(placement.unplaced.is_empty(), "{:#?}", placement.unplaced);

    let (placement, _) = solved(&config("c"), &lab(), &["planner", "viewer"]);
    assert_eq!(placement.instances.len(), 1, "one of the two finds no place");
    let missing = &placement.unplaced[0];
    let reason = missing.reasons.iter().find(|reason| reason.constraint == "latency").expect("a reason");
    assert_eq!((reason.needed, reason.available, reason.unit.as_deref()), (Some(20_000), Some(25_000), Some("us")));
    assert!(reason.text.contains("25.0 ms to") && reason.text.contains("20.0 ms needed"), "{}", reason.text);
    assert!(missing.required && placement.solver.status == "infeasible");

    // What runs is given a fifth more: no wobble moves a model.
    let mut wobble = lab();
    wobble.links[1].rtt_us = Some(19_900);
    let (placement, _) = solved(&config("c"), &wobble, &["planner", "viewer"]);
    let mut running = kept(&placement, &wobble);
    running.links[1].rtt_us = Some(22_000);
    let (again, _) = solved(&config("c"), &running, &["planner", "viewer"]);
    assert!(again.unplaced.is_empty() && again.instances.iter().all(|p| p.because == "already runs here"));
    running.links[1].rtt_us = Some(24_500);
    assert_eq!(solved(&config("c"), &running, &["planner", "viewer"]).0.unplaced.len(), 1);

    // Nobody measured: it is not known to be too long, and the plan says so.
    let mut unknown = lab();
    unknown.links.clear();
    let (placement, _) = solved(&config("c"), &unknown, &["planner", "viewer"]);
    assert!(placement.unplaced.is_empty());
    assert!(
        placement.notes.iter().any(|note| note.contains("max-latency` cannot be checked")),
        "{:?}",
        placement.notes
    );
}

#[test]
fn the_nearest_replica_serves() {
    // Two planners, one of which must be within 20 ms of the viewer on `a`; the other may be on `c`.
    let config = format!(
        "{}{}{}{}{}",
        local("planner", "replicas min=2; place { spread by=\"node\" }"),
        on("viewer", "a"),
        agent("plan", "planner"),
        agent("view", "viewer"),
        workflow("view", "plan", "traffic from=\"view\" to=\"plan\" max-latency=\"20ms\"")
    );
    let (placement, _) = solved(&config, &lab(), &["planner", "viewer"]);
    assert_eq!(at(&placement, "planner"), ["b", "c"]);
    assert!(placement.unplaced.is_empty());
}

fn provided(limit: &str) -> String {
    format!(
        "model \"opus\" {{ provider \"far\" name=\"opus\"{} }}\n",
        if limit.is_empty() { String::new() } else { format!("; max-latency \"{limit}\"") }
    )
}

#[test]
fn a_provider_is_reached_through_the_node_that_connects_fastest() {
    let config = format!("{}{}", provided(""), agent("plan", "opus"));
    let mut found = lab();
    ways(&mut found, &[("a", Some(18_000)), ("b", Some(11_200)), ("c", None)]);
    let (placement, _) = solved(&config, &found, &[]);
    let way = &placement.egress[0];
    assert_eq!((way.agent.as_deref(), way.node.as_str(), way.rtt_us), (Some("plan"), "b", Some(11_200)));
    assert_eq!((way.endpoint.as_str(), way.expected_us), ("api.example:443", Some(11_200)));
    let others: Vec<(&str, Option<u64>)> = way.others.iter().map(|o| (o.node.as_str(), o.rtt_us)).collect();
    assert_eq!(others, [("a", Some(18_000)), ("c", None)], "known ones first");
    assert_eq!(way.others[1].reason, "cannot connect: refused");

    // A model that no agent uses has a way out too.
    let (placement, _) = solved(&provided(""), &found, &[]);
    assert_eq!((placement.egress[0].agent.as_deref(), placement.egress[0].node.as_str()), (None, "b"));

    // A node on hold, or away, is none.
    found.member.holds.push(Hold { node: "b".to_owned(), reason: "fans".to_owned(), ..Hold::default() });
    assert_eq!(solved(&config, &found, &[]).0.egress[0].node, "a");
    found.nodes[0].reachable = false;
    let (placement, _) = solved(&config, &found, &[]);
    assert_eq!(placement.egress[0].node, "c", "nobody else is left; it is not known to be no way");
}

#[test]
fn an_unknown_way_is_taken_only_where_all_are() {
    let config = format!("{}{}", provided("40ms"), agent("plan", "opus"));
    let (placement, _) = solved(&config, &lab(), &[]);
    assert_eq!((placement.egress[0].node.as_str(), placement.egress[0].rtt_us), ("a", None));
    let note = placement.notes.iter().find(|note| note.contains("opus")).expect("a note");
    assert!(note.contains("cannot be checked") && note.contains("flock discover"), "{note}");
    // One that tried and failed comes after one that never tried; the controller's own machine before both.
    let mut found = lab();
    ways(&mut found, &[("a", None)]);
    assert_eq!(solved(&config, &found, &[]).0.egress[0].node, "b");
    let own = format!(
        "{PROVIDER}{config}{}",
        NODES.replace("node \"c\" address=\"10.0.0.3\"", "node \"c\" connection=\"local\"")
    );
    let (placement, _) = place(&desired(&own), &found, &models(&[]), &Options::default());
    assert_eq!(placement.egress[0].node, "c");
    ways(&mut found, &[("b", Some(39_000))]);
    let (placement, _) = solved(&config, &found, &[]);
    assert_eq!(placement.egress[0].node, "b");
    assert_eq!(placement.egress[0].because, "the only one with a known way");
    assert!(placement.notes.iter().all(|note| !note.contains("opus")));
    // Another way is known, and too long.
    ways(&mut found, &[("c", Some(41_000))]);
    let (placement, _) = solved(&config, &found, &[]);
    assert_eq!(placement.egress[0].because, "the only one within its limits");
}

#[test]
fn the_limit_of_a_provider_is_hard() {
    let config = format!("{}{}{}", provided("40ms"), agent("plan", "opus"), agent("judge", "opus"));
    let mut found = lab();
    ways(&mut found, &[("a", Some(41_000)), ("b", Some(55_300)), ("c", None)]);
    let (placement, problem) = solved(&config, &found, &[]);
    assert!(placement.egress.is_empty());
    let missing = &placement.unplaced[0];
    assert_eq!((missing.model.as_str(), missing.replicas, missing.required), ("opus", 2, true));
    let figures: Vec<(&str, Option<u64>, Option<u64>)> =
        missing.reasons.iter().map(|r| (r.node.as_str(), r.needed, r.available)).collect();
    assert_eq!(
        figures,
        [("a", Some(40_000), Some(41_000)), ("b", Some(40_000), Some(55_300)), ("c", None, None)],
        "needed and measured, per node"
    );
    assert_eq!(missing.nearest, "`max-latency` of 41 ms for a, or a node closer to api.example:443");
    assert_eq!(placement.solver.status, "infeasible");
    // Exactly the limit is no fault.
    found.egress[0].rtt_us = Some(40_000);
    assert_eq!(solved(&config, &found, &[]).0.egress.len(), 2);

    // The checker sees through a plan that goes there all the same.
    let forged = |node: &str, rtt_us| Egress {
        agent: Some("plan".to_owned()),
        provider_model: "opus".to_owned(),
        node: node.to_owned(),
        rtt_us,
        endpoint: "api.example:443".to_owned(),
        expected_us: rtt_us,
        because: String::new(),
        others: Vec::new(),
    };
    for (way, word) in [
        (forged("a", Some(41_000)), "too long"),
        (forged("a", Some(1)), "not the one that was measured"),
        (forged("c", None), "too long or not known"),
        (forged("z", None), "not in the config"),
    ] {
        let wrong = Placement { egress: vec![way], ..placement.clone() };
        let faults = check(&problem, &wrong);
        assert!(faults.iter().any(|fault| fault.contains(word)), "{word}: {faults:?}");
    }
    let wrong = Placement { unplaced: Vec::new(), ..placement };
    assert_eq!(check(&problem, &wrong).len(), 2, "two agents without a way");
}

#[test]
fn the_checker_sees_limits_between_models() {
    let config = format!(
        "{}{}{}{}{}",
        local("planner", ""),
        on("viewer", "a"),
        agent("plan", "planner"),
        agent("view", "viewer"),
        workflow("view", "plan", "traffic from=\"view\" to=\"plan\" max-latency=\"20ms\"")
    );
    let (mut placement, problem) = solved(&config, &lab(), &["planner", "viewer"]);
    assert_eq!(at(&placement, "planner"), ["b"]);
    for placed in placement.instances.iter_mut().filter(|p| p.model == "planner") {
        placed.node = "c".to_owned();
        placed.accelerators = vec!["c#0".to_owned()];
    }
    let faults = check(&problem, &placement);
    assert!(faults.iter().any(|fault| fault.contains("within 20000 microseconds")), "{faults:?}");
}

#[test]
fn what_was_chosen_stays_unless_another_is_better_by_more_than_the_threshold() {
    let config = format!("{}{}", provided(""), agent("plan", "opus"));
    let then = |connects: [u64; 2], policy: &str| {
        let mut found = lab();
        ways(&mut found, &[("a", Some(20_000)), ("b", Some(30_000))]);
        let (first, _) = solved(&config, &found, &[]);
        assert_eq!(first.egress[0].node, "a");
        let mut next = kept(&first, &found);
        next.egress.clear();
        ways(&mut next, &[("a", Some(connects[0])), ("b", Some(connects[1]))]);
        let (placement, _) = solved(&format!("{config}{policy}"), &next, &[]);
        placement.egress[0].clone()
    };
    // 20 % of 20 ms is 4 ms.
    let way = then([20_000, 16_100], "");
    assert_eq!((way.node.as_str(), way.because.contains("b is better by 3.9 ms")), ("a", true), "{}", way.because);
    assert_eq!(way.others[0].reason, "better by 3.9 ms, which is not worth a change");
    assert_eq!(then([20_000, 16_000], "").node, "a", "not more than the threshold");
    assert_eq!(then([20_000, 15_900], "").node, "b");
    // A large share of very little is no gain.
    assert_eq!(then([3_000, 1_100], "").node, "a");
    assert_eq!(then([3_000, 900], "").node, "b");
    // The policy's own threshold.
    assert_eq!(then([20_000, 16_100], "threshold move=\"10%\"\n").node, "b");
    assert_eq!(then([20_000, 12_000], "threshold move=\"50%\"\n").node, "a");
}

#[test]
fn the_way_to_the_models_counts_in_an_egress_node() {
    // The provider is 4 ms nearer to `c`, and the model that talks to it is 25 ms away from there.
    let config = format!(
        "{}{}{}{}{}",
        provided(""),
        on("viewer", "a"),
        agent("plan", "opus"),
        agent("view", "viewer"),
        workflow("view", "plan", "traffic from=\"view\" to=\"plan\" per-turn=\"200KiB\"")
    );
    let mut found = lab();
    ways(&mut found, &[("a", Some(14_000)), ("b", Some(13_000)), ("c", Some(10_000))]);
    let (placement, _) = solved(&config, &found, &["viewer"]);
    let way = &placement.egress[0];
    // Through `a`: 14 ms. Through `b`: 13 ms, 0.2 ms and 204,800 bytes at 100 MB/s, 2.0 ms. Through `c`: 10 + 25 + 2.0 ms.
    assert_eq!((way.node.as_str(), way.expected_us), ("a", Some(14_000)));
    let expected: Vec<_> = way.others.iter().map(|other| (other.node.as_str(), other.expected_us)).collect();
    assert_eq!(expected, [("b", Some(15_248)), ("c", Some(37_048))]);

    // The model that may go anywhere goes to the egress node that its limit leaves: both are decided together.
    let config = config
        .replace("place { require label=\"node\" is=\"a\" }", "")
        .replace("per-turn=\"200KiB\"", "max-latency=\"20ms\"");
    let limited = config.replace("name=\"opus\"", "name=\"opus\"; max-latency \"12ms\"");
    let (placement, _) = solved(&limited, &found, &["viewer"]);
    assert_eq!((placement.egress[0].node.as_str(), at(&placement, "viewer")), ("c", vec!["c"]));
    assert!(placement.unplaced.is_empty());

    // Bound to `a`, the model has its place, and the agent's way out has none: 10 ms to connect, but 25 ms apart.
    let bound = limited.replace("context 8192;", "context 8192; place { require label=\"node\" is=\"a\" };");
    let (placement, _) = solved(&bound, &found, &["viewer"]);
    assert_eq!((placement.instances.len(), placement.egress.len()), (1, 0));
    let reason = placement.unplaced[0].reasons.iter().find(|reason| reason.node == "c").expect("a reason");
    assert!(reason.text.starts_with("25.0 ms to a, where `viewer` runs; 20.0 ms needed"), "{}", reason.text);
}

#[test]
fn configs_without_traffic_have_no_columns_for_it() {
    let config = format!("{}{}", local("one", ""), local("two", ""));
    let (_, problem) = solved(&config, &lab(), &["one", "two"]);
    assert!(problem.traffic.is_empty() && problem.ways_out.is_empty());
}

#[test]
fn the_order_of_links_and_ways_changes_nothing() {
    let config = format!(
        "{}{}{}{}{}{}{}",
        provided(""),
        local("viewer", ""),
        local("coder", ""),
        agent("plan", "opus"),
        agent("view", "viewer"),
        agent("code", "coder"),
        workflow("view", "plan", "step \"three\" agent=\"code\" after=\"two\" { prompt \"Go.\" }")
    );
    let mut found = lab();
    ways(&mut found, &[("a", Some(9_000)), ("b", Some(9_000)), ("c", Some(8_900))]);
    let (first, problem) = solved(&config, &found, &["viewer", "coder"]);
    assert_eq!(problem.traffic.len(), 2);
    found.links.reverse();
    found.links.iter_mut().for_each(|link| std::mem::swap(&mut link.from, &mut link.to));
    found.egress.reverse();
    found.nodes.reverse();
    let (second, _) = solved(&config, &found, &["viewer", "coder"]);
    assert_eq!(first, second);
    // And what runs stays.
    let (third, _) = solved(&config, &kept(&first, &found), &["viewer", "coder"]);
    assert!(third.instances.iter().all(|placed| placed.because == "already runs here"));
    assert_eq!(
        third.egress.iter().map(|w| &w.node).collect::<Vec<_>>(),
        first.egress.iter().map(|w| &w.node).collect::<Vec<_>>()
    );
}

/// Of two cards with the same memory and bandwidth, the one with four times the arithmetic rate reads a long prompt faster.
#[test]
fn a_prompt_that_is_read_faster_decides_between_equal_cards() {
    let mut one = shape(0, 0, vec![0], 1, 20 * GIB);
    let mut other = shape(0, 1, vec![0], 1, 20 * GIB);
    (one.first_token_s, other.first_token_s) = (Some(24.0), Some(6.0));
    assert!(other.slowness() < one.slowness());
    let gain = one.slowness() - other.slowness();
    assert!(gain < 0.1, "{gain}: it weighs no more than a few cards");
    let mut model = ModelDemand { name: "m".to_owned(), min: 1, desired: 1, ..ModelDemand::default() };
    model.candidates.push(CandidateFacts { label: "v".to_owned(), ..CandidateFacts::default() });
    model.shapes = vec![one, other];
    let cards = |index: &str| vec![accelerator(format!("GPU-{index}"), "card", 24 * GIB)];
    let mut problem = Problem {
        nodes: vec![node("a", cards("a")), node("b", cards("b"))],
        models: vec![model],
        tail: super::random::weighted_tail(),
        ..Problem::default()
    };
    problem.sort();
    assert_eq!(solve(&problem).instances[0].node, "b");
    // And from the published figures: an L40S and an RTX A6000 have nearly the same bandwidth.
    let config = desired(&format!("{NODES}{}", local("m", "").replace("8192", "32768")));
    let found = inventory(&[
        ("a", &[("NVIDIA RTX A6000", 49_140, "8.6", None)]),
        ("b", &[("NVIDIA L40S", 49_140 - 200, "8.9", None)]),
    ]);
    let (_, problem) = place(&config, &found, &models(&["m"]), &Options::default());
    let first_token = |node: &str| {
        let node = problem.node(node).unwrap();
        problem.models[0].shapes.iter().find(|s| s.node == node && s.ranks == 1).and_then(|s| s.first_token_s).unwrap()
    };
    assert!(first_token("b") < 0.6 * first_token("a"), "{} {}", first_token("b"), first_token("a"));
}

/// A small world of traffic alone: nodes with one card, models of one size that share cards, distances by dice.
pub(super) fn tiny(seed: u64) -> Problem {
    let mut dice = Dice(seed);
    let count = 3 + dice.below(2) as usize;
    let mut problem = Problem {
        tail: vec![TailTier { name: "traffic".to_owned(), terms: vec![(Term::Traffic, 1.0)] }],
        ..Problem::default()
    };
    for index in 0..count {
        let room = [24, 24, 44][dice.below(3) as usize] * GIB;
        problem.nodes.push(node(&format!("n{index}"), vec![accelerator(format!("GPU-{index}"), "card", room)]));
    }
    for a in 0..count {
        for b in a + 1..count {
            if !dice.once_in(6) {
                let way = ([300, 5_000, 19_000, 40_000][dice.below(4) as usize], dice.once_in(2).then_some(50_000_000));
                problem.distances.between.insert((format!("n{a}"), format!("n{b}")), way);
            }
        }
    }
    for index in 0..2 + dice.below(2) {
        let desired = 1 + dice.below(2) as u32;
        let mut model =
            ModelDemand { name: format!("m{index}"), min: dice.below(2) as u32, desired, ..ModelDemand::default() };
        model.candidates.push(CandidateFacts {
            label: "v".to_owned(),
            legal_ranks: BTreeMap::from([(EngineKind::Vllm, vec![1])]),
            ..CandidateFacts::default()
        });
        for node in 0..count {
            if !dice.once_in(3) {
                model.shapes.push(shape(0, node, vec![0], 1, 20 * GIB));
            }
        }
        problem.models.push(model);
    }
    for way in 0..dice.below(3) {
        let via = (0..count).map(|node| Via {
            node: format!("n{node}"),
            connect_us: (!dice.once_in(5)).then(|| 2_000 + dice.below(5) * 9_000),
            closed: dice.once_in(8).then(|| ("hold".to_owned(), "on hold".to_owned())),
            ..Via::default()
        });
        problem.ways_out.push(WayOut {
            model: format!("p{way}"),
            agent: Some(format!("g{way}")),
            endpoint: "api.example:443".to_owned(),
            via: via.collect(),
            max_latency_us: None,
            previous: None,
            threshold: 0.2,
        });
    }
    for index in 0..1 + dice.below(4) {
        let from = dice.below(problem.models.len() as u64);
        let to = match problem.ways_out.len() as u64 {
            ways if ways > 0 && dice.once_in(2) => End::Out(format!("agent/g{}", dice.below(ways))),
            _ => End::Model(format!(
                "m{}",
                (from + 1 + dice.below(problem.models.len() as u64 - 1)) % problem.models.len() as u64
            )),
        };
        problem.traffic.push(Traffic {
            from: format!("m{from}"),
            to,
            bytes_per_turn: dice.below(3) * MIB,
            weight: [1.0, 0.25][dice.below(2) as usize],
            max_latency_us: dice.once_in(3).then(|| [6_000, 20_000][dice.below(2) as usize]),
            because: format!("dice {index}"),
        });
    }
    problem.sort();
    problem
}

/// All ways to place copies, by model and node.
fn layouts(problem: &Problem) -> Vec<Vec<Vec<u32>>> {
    let nodes = problem.nodes.len();
    let mut all: Vec<Vec<Vec<u32>>> = vec![Vec::new()];
    for model in &problem.models {
        let mut counts: Vec<Vec<u32>> = vec![Vec::new()];
        for node in 0..nodes {
            let most = if model.shapes.iter().any(|s| s.node == node) { model.desired } else { 0 };
            counts = counts.iter().flat_map(|c| (0..=most).map(|n| [c.clone(), vec![n]].concat())).collect();
        }
        counts.retain(|c| c.iter().sum::<u32>() <= model.desired);
        all = all.iter().flat_map(|l| counts.iter().map(|c| [l.clone(), vec![c.clone()]].concat())).collect();
    }
    all.retain(|layout| {
        (0..nodes).all(|node| {
            let here: u32 = layout.iter().map(|counts| counts[node]).sum();
            u64::from(here) * 20 * GIB <= problem.nodes[node].accelerators[0].capacity_bytes
        })
    });
    all
}

/// Replicas up to the minimum, replicas, ways out that a limit may forbid, and what traffic costs at least; `None` where a
/// limit between models is broken.
fn judged(problem: &Problem, layout: &[Vec<u32>]) -> Option<[f64; 4]> {
    let places = |model: usize| -> Vec<usize> {
        let counts = layout[model].iter().enumerate();
        counts.flat_map(|(node, count)| std::iter::repeat_n(node, *count as usize)).collect()
    };
    let name = |node: usize| problem.nodes[node].name.as_str();
    let rtt = |a: usize, b: usize| problem.distances.rtt_us(name(a), name(b));
    let price = |flow: &Traffic, a: usize, b: usize| {
        flow.weight * problem.distances.ways(flow.bytes_per_turn).cost(name(a), name(b))
    };
    let mut cost = 0.0;
    // What one model sends to another takes one way, the shortest for all of it.
    let mut pairs: BTreeMap<(usize, &End), Vec<&Traffic>> = BTreeMap::new();
    for flow in &problem.traffic {
        pairs.entry((problem.model(&flow.from).unwrap(), &flow.to)).or_default().push(flow);
    }
    for ((from, to), flows) in &pairs {
        let End::Model(to) = to else { continue };
        let others = places(problem.model(to).unwrap());
        let limit = flows.iter().filter_map(|flow| flow.max_latency_us).min();
        for place in places(*from).into_iter().filter(|_| !others.is_empty()) {
            let near = |other: &&usize| limit.is_none_or(|limit| rtt(place, **other).is_none_or(|rtt| rtt <= limit));
            others.iter().find(near)?;
            let all = others.iter().map(|other| flows.iter().map(|flow| price(flow, place, *other)).sum::<f64>());
            cost += all.fold(f64::INFINITY, f64::min);
        }
    }
    let mut limited = 0.0;
    for way in &problem.ways_out {
        let key = End::Out(way.key());
        let mine: Vec<&Traffic> = problem.traffic.iter().filter(|flow| flow.to == key).collect();
        let open: Vec<&Via> = way.via.iter().filter(|via| via.closed.is_none()).collect();
        let measured = open.iter().any(|via| via.connect_us.is_some());
        let mut best = f64::INFINITY;
        for via in open.iter().filter(|via| via.connect_us.is_some() || !measured) {
            let node = problem.node(&via.node).unwrap();
            let mut sum = match via.connect_us {
                Some(us) => crate::placement::build::distances::cost(us as f64 / 1e6),
                None => 1.0,
            };
            for flow in &mine {
                for place in places(problem.model(&flow.from).unwrap()) {
                    let far = flow.max_latency_us.is_some_and(|limit| rtt(place, node).is_some_and(|rtt| rtt > limit));
                    sum += if far { f64::INFINITY } else { price(flow, place, node) };
                }
            }
            best = best.min(sum);
        }
        if !mine.is_empty() && !open.is_empty() {
            cost += if best.is_finite() { best } else { 0.0 };
            let may_fail = mine.iter().any(|flow| flow.max_latency_us.is_some());
            limited += f64::from(u8::from(best.is_finite() && may_fail));
        }
    }
    let placed: Vec<u32> = layout.iter().map(|counts| counts.iter().sum()).collect();
    let least = problem.models.iter().zip(&placed).map(|(m, n)| f64::from((*n).min(m.min))).sum();
    Some([least, placed.iter().map(|n| f64::from(*n)).sum(), limited, -cost])
}

#[test]
fn brute_force_finds_the_same_traffic() {
    let (mut costly, mut refused, mut nearest) = (0, 0, 0);
    for seed in 0..400 {
        let problem = tiny(seed);
        let placement = solve(&problem);
        assert_eq!(check(&problem, &placement), Vec::<String>::new(), "seed {seed}");
        match super::truth::follow(&problem) {
            Ok(short) => nearest += usize::from(short.is_some_and(|of| of.values().all(|(_, short)| *short == 0))),
            Err(error) => panic!("seed {seed}: {error}"),
        }
        let layouts = layouts(&problem);
        let states: Vec<[f64; 4]> = layouts.iter().filter_map(|layout| judged(&problem, layout)).collect();
        refused += usize::from(states.len() < layouts.len());
        let best = states.into_iter().max_by(|a, b| a.partial_cmp(b).unwrap()).unwrap();
        let tier = |name: &str| placement.solver.tiers.iter().find(|t| t.name.starts_with(name)).map(|t| t.value);
        let found = [tier("minimum"), tier("desired"), tier("ways out"), tier("traffic").map(|cost| -cost)];
        for (position, (found, best)) in found.iter().zip(best).enumerate() {
            let found = found.unwrap_or(0.0);
            assert!((found - best).abs() < 1e-5, "seed {seed}, tier {position}: {found} against {best}\n{problem:#?}");
        }
        costly += usize::from(best[3] < -1e-6);
    }
    println!("solved as large ones, {nearest} of 400 have the least traffic");
    assert!(costly > 100 && refused > 50, "{costly} {refused}");
    assert!(nearest > 200, "{nearest}");
}
