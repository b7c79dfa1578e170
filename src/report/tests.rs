//! Golden texts. `FLOCK_UPDATE_GOLDEN=1 cargo test report::` writes them again.
#![expect(clippy::disallowed_methods, reason = "golden files are read and, on request, written by tests")]

use super::*;
use crate::base::{EngineKind, GIB};
use crate::inventory::{AcceleratorProcess, Disk, EgressLink, NodeLink, Protection};
use crate::placement::{
    Change, Considered, Lost, LostBy, LostGroup, Obstacle, Placement, Reason, TermShare, Turn, Unplaced, Victim, Why,
};
use crate::plan::testing::{Wish, World};
use crate::plan::{ApprovalWanted, Blocked, Deferred, Event, Outcome, Plan, StepEnd, StepWanted, Verb, observe};

fn golden(name: &str, text: &str) {
    let path = format!("{}/src/report/testdata/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("FLOCK_UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expected, "{path} differs; FLOCK_UPDATE_GOLDEN=1 writes it again");
}

/// Something of everything: a change, a preemption, a move, a removal, a failure, a protection, a missing place.
fn busy() -> (World, Plan) {
    let mut world = World::new(&[("ada-1", 2), ("ada-2", 2), ("ada-3", 1)]);
    let wishes = [
        Wish::new("chat", 10),
        Wish::new("coder", 20),
        Wish::new("embed", 30),
        Wish::new("guard", 40),
        Wish::new("old", 50),
        Wish::new("small", 60),
    ];
    world.want(
        &wishes,
        &[
            ("chat", 0, "ada-1", vec![0], 12),
            ("coder", 0, "ada-2", vec![0, 1], 14),
            ("embed", 0, "ada-3", vec![0], 2),
            ("guard", 0, "ada-1", vec![1], 8),
            ("old", 0, "ada-3", vec![0], 4),
            ("small", 0, "ada-1", vec![1], 12),
        ],
    );
    world.converge();
    world.fail("embed");
    world.inventory.member.protections =
        vec![Protection { model: "guard".into(), since: "2026-01-01T00:00:00Z".into(), reason: "exam week".into() }];
    world.instance("chat").live_sessions = 2;
    let wishes = [
        Wish::new("chat", 10),
        Wish { context: 32768, ..Wish::new("coder", 20) },
        Wish::new("embed", 30),
        Wish { rank: 100, weights: "v2", ..Wish::new("judge", 70) },
        Wish::new("small", 60),
    ];
    world.want(
        &wishes,
        &[
            ("chat", 0, "ada-3", vec![0], 12),
            ("coder", 0, "ada-2", vec![0, 1], 18),
            ("embed", 0, "ada-3", vec![0], 2),
            ("judge", 0, "ada-1", vec![0], 20),
            ("small", 0, "ada-1", vec![1], 12),
        ],
    );
    world.placement.unplaced = vec![Unplaced {
        model: "giant".into(),
        replicas: 1,
        required: true,
        reasons: vec![
            Reason {
                alike: 0,
                node: "ada-1".into(),
                constraint: "memory".into(),
                needed: Some(40 * GIB),
                available: Some(22 * GIB),
                unit: Some("bytes".into()),
                text: "needs 40.0 GiB on each of 2 accelerators; 22.0 GiB can be used".into(),
            },
            Reason {
                alike: 0,
                node: "ada-3".into(),
                constraint: "split".into(),
                needed: Some(2),
                available: Some(1),
                unit: Some("accelerators".into()),
                text: "needs 2 accelerators, there is 1".into(),
            },
        ],
        nearest: "context 8192 instead of 32768 would fit on ada-1".into(),
        together: Vec::new(),
    }];
    let plan = world.plan();
    (world, plan)
}

#[test]
fn a_busy_plan() {
    let (world, plan) = busy();
    assert_eq!(crate::plan::check(&plan, &world.inventory, &world.observed), Vec::<String>::new());
    let view = PlanView { inventory: Some(&world.inventory), saved_to: Some("plan.json"), ..Default::default() };
    golden("plan_busy", &plan_text(&plan, &view, &Style::PLAIN));
    let full = PlanView { amount: Amount::Full, saved_to: None, ..view };
    golden("plan_busy_full", &plan_text(&plan, &full, &Style::PLAIN));
    let summary = PlanView { amount: Amount::Summary, saved_to: None, ..view };
    golden("plan_busy_summary", &plan_text(&plan, &summary, &Style::PLAIN));
    golden("drift", &drift_text(&DriftDocument::of(&plan.drift, &plan.decay), &Style::PLAIN));
    golden("consent", &consent_text(&crate::plan::consent(&plan), &Style::PLAIN));
}

#[test]
fn the_nodes_of_the_config_are_counted_whatever_an_inventory_has() {
    let head = |world: &World, desired: bool| {
        let view = PlanView {
            inventory: Some(&world.inventory),
            desired: desired.then_some(&world.desired),
            ..Default::default()
        };
        let plan = world.plan();
        let text = plan_text(&plan, &view, &Style { colour: false, width: 200 });
        let comment = plan_markdown(&plan, &view);
        let of = text.lines().next().unwrap().split_once(" of ").map(|(_, nodes)| nodes.to_owned()).unwrap();
        assert!(comment.contains(&format!(" of {of}\n")), "{comment}");
        of
    };
    let mut world = World::new(&[("a", 1), ("b", 1), ("c", 1), ("d", 1)]);
    assert_eq!((head(&world, true), head(&world, false)), ("4/4 nodes".to_owned(), "4/4 nodes".to_owned()));
    world.node("a").reachable = false;
    assert_eq!(head(&world, true), "3/4 nodes");
    // One that the file lacks is one of the config's all the same.
    world.inventory.nodes.retain(|node| node.name != "b");
    assert_eq!((head(&world, true), head(&world, false)), ("2/4 nodes".to_owned(), "2/4 nodes".to_owned()));
    // One that left the config is no node to plan for.
    world.desired.nodes.remove("c");
    assert_eq!(head(&world, true), "1/3 nodes, and of 1 that the config lacks");
}

#[test]
fn a_busy_plan_as_a_comment() {
    let (world, mut plan) = busy();
    let view = PlanView { inventory: Some(&world.inventory), saved_to: Some("plan.json"), ..Default::default() };
    plan.unplaced[0].reasons[1].text = "@octo | <b>".into();
    golden("plan_markdown", &plan_markdown(&plan, &view));
    let mut world = World::new(&[("ada-1", 1)]);
    world.want(&[Wish::new("coder", 12)], &[("coder", 0, "ada-1", vec![0], 18)]);
    world.converge();
    assert!(plan_markdown(&world.plan(), &PlanView::default()).contains("**Nothing to do**, 1 unchanged."));
}

/// A plan that starts many models, and stops as many others.
fn many(models: usize, stops: usize) -> Plan {
    let (_, mut plan) = busy();
    let step = plan.steps.iter().find(|step| step.verb == Verb::Start).unwrap().clone();
    let new = |verb, number: usize| crate::plan::Step {
        verb,
        model: format!("{}-of-the-students-{number:04}", verb_word(verb)),
        ..step.clone()
    };
    plan.steps = (0..models).map(|n| new(Verb::Start, n)).chain((0..stops).map(|n| new(Verb::Stop, n))).collect();
    plan
}

fn verb_word(verb: Verb) -> &'static str {
    if verb == Verb::Stop { "stopped" } else { "started" }
}

#[test]
fn a_comment_is_cut_below_the_limit_and_says_what_and_where() {
    let view = PlanView { saved_to: Some("plan.json"), ..Default::default() };
    for (starts, stops) in [(400, 3), (400, 200), (3_000, 9), (200, 6_000), (20_000, 20_000)] {
        let plan = many(starts, stops);
        let text = plan_markdown(&plan, &view);
        assert!(text.len() <= MARKDOWN_LIMIT, "{} bytes for {starts} and {stops}", text.len());
        assert!(text.starts_with("<!-- flock plan lab -->\n"));
        assert!(text.contains("**Cut at 60000 characters:** ") && text.contains(" steps"), "{text}");
        assert!(text.contains("`flock show --full` of the saved `plan.json` has everything"));
        assert_eq!(text.matches("<details>").count(), text.matches("</details>").count());
        assert!(text.contains(&format!("| **stop** | {stops} | `stopped-of-the-students-0000`")), "{text}");
        // As long as the names fit at all, no name of a stop is left out.
        let named = text.split("| **move**").next().unwrap().matches("`stopped-of").count();
        assert!(stops > 200 || named == stops, "{named} of {stops}");
        assert!(text.contains("**NOT PLACED** `giant`"));
    }
    let whole = plan_markdown(&many(20, 2), &view);
    assert!(!whole.contains("Cut at"), "{whole}");
}

#[test]
fn what_hurts_is_last_and_whole_however_much_there_is() {
    let plan = many(200, 200);
    for width in [60, 80, 100, 140] {
        for amount in [Amount::Summary, Amount::Changes, Amount::Full] {
            let text = plan_text(&plan, &PlanView { amount, ..Default::default() }, &Style { colour: false, width });
            let tail = &text[text.rfind("\n  stop ").unwrap()..];
            for number in 0..200 {
                assert!(tail.contains(&format!("stopped-of-the-students-{number:04}")), "{width} {number}");
            }
            assert!(tail.lines().all(|line| line.chars().count() <= width || !line.contains(", ")), "{tail}");
            let before = text.find("\n  NOT PLACED").unwrap();
            assert!(text.find("\n  start ").unwrap() < before && before < text.rfind("\n  stop ").unwrap());
        }
    }
}

#[test]
fn a_place_that_no_single_change_would_find_says_where_to_look() {
    let unplaced = |nearest: &str| {
        unplaced_text(
            &[Unplaced {
                model: "giant".into(),
                replicas: 1,
                required: false,
                reasons: Vec::new(),
                nearest: nearest.into(),
                together: Vec::new(),
            }],
            &Style::PLAIN,
        )
    };
    assert!(unplaced("none found").ends_with("      no single change found; see: flock explain giant\n"));
    assert!(unplaced("context 8192").ends_with("      nearest change: context 8192\n"));
}

#[test]
fn colour_adds_nothing_but_colour() {
    let (world, plan) = busy();
    let view = PlanView { inventory: Some(&world.inventory), ..Default::default() };
    let coloured = plan_text(&plan, &view, &Style { colour: true, width: 100 });
    let mut bare = String::new();
    let mut rest = coloured.as_str();
    while let Some(start) = rest.find('\x1b') {
        bare.push_str(&rest[..start]);
        rest = &rest[start + rest[start..].find('m').unwrap() + 1..];
    }
    bare.push_str(rest);
    assert_eq!(bare, plan_text(&plan, &view, &Style::PLAIN));
    assert_ne!(coloured, bare);
}

#[test]
fn narrow_terminals_keep_whole_words() {
    let (world, plan) = busy();
    let view = PlanView { inventory: Some(&world.inventory), ..Default::default() };
    golden("plan_narrow", &plan_text(&plan, &view, &Style { colour: false, width: 60 }));
}

#[test]
fn an_empty_plan_and_an_unreachable_node() {
    let mut world = World::new(&[("ada-1", 1), ("ada-2", 1)]);
    world.want(&[Wish::new("coder", 12)], &[("coder", 0, "ada-1", vec![0], 18)]);
    world.converge();
    let view = PlanView::default();
    golden("plan_empty", &plan_text(&world.plan(), &view, &Style::PLAIN));
    world.node("ada-2").reachable = false;
    world.node("ada-2").unreachable_reason = Some("connection refused".into());
    let mut plan = world.plan();
    plan.deferred.push(Deferred {
        model: "b".into(),
        node: "ada-2".into(),
        reason: "unreachable".into(),
        verb: None,
        from_node: None,
    });
    golden("plan_unreachable", &plan_text(&plan, &view, &Style::PLAIN));
}

#[test]
fn json_of_a_plan_begins_with_its_format_and_comes_back() {
    let (_, plan) = busy();
    let text = json(&plan);
    assert!(text.starts_with("{\n  \"format\": 1,\n  \"cluster\": \"lab\",\n") && text.ends_with("}\n"));
    assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
    assert!(json(&DriftDocument::of(&plan.drift, &plan.decay)).starts_with("{\n  \"format\": 1,\n  \"drift\": ["));
}

#[test]
fn an_inventory_and_a_status() {
    let (mut world, _) = busy();
    world.node("ada-2").accelerators[1].healthy = false;
    world.node("ada-2").accelerators[1].unknown.insert("healthy".into(), "Xid 79: fallen off the bus".into());
    world.node("ada-1").accelerators[0].processes =
        vec![AcceleratorProcess { pid: 7, used_bytes: Some(GIB), ..Default::default() }];
    golden("inventory", &inventory_text(&world.inventory, &Style::PLAIN));
    let observed = observe(&world.inventory, &world.observed);
    let found = status(&world.desired, &world.inventory, &observed, None);
    golden("status", &status_text(&found, &world.inventory, &Style::PLAIN));
    golden("status_json", &json(&status(&world.desired, &world.inventory, &observed, Some("embed"))));
}

/// Long reasons stand below the tables, ages are in words, and what the published table knows is not called unknown.
#[test]
fn links_reasons_and_two_file_systems() {
    let (mut world, _) = busy();
    world.node("ada-3").reachable = false;
    world.node("ada-3").unreachable_reason =
        Some("cannot connect to 10.0.0.3:22: the name is known, and nothing answered within five seconds".into());
    let disk = |path: &str, free: u64, total: u64| Disk {
        path: path.into(),
        free_bytes: free * GIB,
        total_bytes: total * GIB,
    };
    let node = world.node("ada-1");
    (node.home, node.weights_path) = (Some("/home/u".into()), Some("/data/weights".into()));
    node.disks = vec![disk("/home/u", 5, 50), disk("/data/weights", 900, 2000)];
    node.accelerators[0].unknown =
        [("bandwidth_bytes_per_s", "not told"), ("ecc", "not told"), ("processes", "no permission")]
            .map(|(field, why)| (field.to_owned(), why.to_owned()))
            .into();
    let link = |from: &str, rtt, bandwidth, measured, age_ms| NodeLink {
        from: from.into(),
        to: "ada-3".into(),
        rtt_us: rtt,
        bandwidth_bytes_per_s: bandwidth,
        measured,
        age_ms,
        unknown: if measured || age_ms.is_none() {
            Default::default()
        } else {
            [("bandwidth_bytes_per_s".to_owned(), "10.0.0.3: no answer (a firewall between the nodes?)".to_owned())]
                .into()
        },
    };
    world.inventory.links = vec![
        link("ada-1", Some(184), Some(2_900_000_000), true, Some(7_300_000)),
        link("ada-2", Some(4_000), None, false, Some(90_000)),
        link("ada-4", Some(300), None, false, None),
    ];
    let endpoint = |node: &str, rtt_us, why: Option<&str>| EgressLink {
        node: node.into(),
        endpoint: "api.example:443".into(),
        rtt_us,
        age_ms: Some(200_000_000),
        unknown: why.map(|why| ("rtt_us".to_owned(), why.to_owned())).into_iter().collect(),
    };
    world.inventory.egress =
        vec![endpoint("ada-1", Some(8_200), None), endpoint("ada-2", None, Some("no answer within 3 s"))];
    golden("inventory_links", &inventory_text(&world.inventory, &Style::PLAIN));
}

#[test]
fn an_explanation() {
    let (world, plan) = busy();
    let shape = |node: &str, variant: &str, tp, gib: u64, chosen, verdict: &str| Considered {
        fate: if chosen { crate::placement::Fate::Chosen } else { crate::placement::Fate::RuledOut },
        alike: 0,
        model: "coder".into(),
        variant: variant.into(),
        engine: EngineKind::Vllm,
        node: node.into(),
        tensor_parallel: tp,
        needed_bytes: gib * GIB,
        chosen,
        verdict: verdict.into(),
    };
    let considered = [
        shape("ada-1", "bf16", 2, 40, false, "memory: needs 40.0 GiB on each accelerator, 22.0 GiB can be used"),
        shape("ada-2", "awq-int4", 2, 18, true, "best quality that fits"),
        shape("ada-3", "awq-int4", 0, 18, false, "accelerators: `allow cpu=#true` is not set"),
    ];
    let victim = |model: &str, by: &str| Victim {
        model: model.into(),
        replica: 0,
        instance: "abc".into(),
        node: "ada-2".into(),
        rank: 0,
        by: vec![by.into()],
        load_ms: Some(40_000),
        live_sessions: 2,
        why: "one instance of rank 0 is the fewest that makes room (2 live sessions, loaded in 40 s)".into(),
    };
    let placement = Placement {
        considered: considered.to_vec(),
        victims: vec![victim("coder", "judge"), victim("chat", "coder")],
        ..world.placement.clone()
    };
    let lost = |variant: &str, nodes: &[&str], ranks, text: &str| Lost {
        variant: variant.into(),
        engine: Some(EngineKind::Vllm),
        nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
        ranks: Some(ranks),
        constraint: None,
        needed: Some(40 * GIB),
        available: Some(22 * GIB),
        unit: Some("bytes".into()),
        tier: None,
        text: text.into(),
    };
    let group = |by, members: Vec<Lost>| LostGroup { by, shapes: members.iter().map(|m| m.nodes.len()).sum(), members };
    let term = |term: &str, weight, value, total: f64| TermShare {
        term: term.into(),
        unit: "ranks".into(),
        weight,
        value,
        cost: weight * value,
        total_value: total,
        total_cost: weight * total,
    };
    let turn = |change: &str, effect: &str| Turn {
        kind: "memory".into(),
        change: change.into(),
        bytes: None,
        effect: effect.into(),
        change_made: Change::Fewer("chat".into()),
    };
    let obstacle = |text: &str, alone| Obstacle {
        constraint: "memory".into(),
        nodes: vec!["ada-1".into()],
        model: None,
        text: text.into(),
        alone,
    };
    let many = (1..=6).map(|ranks| lost("bf16", &["ada-1", "ada-3"], ranks, "needs more")).collect();
    let mut why = Why {
        lost: vec![
            group(LostBy::Worse, vec![lost("awq-int4", &["ada-1"], 2, "worse in \"objective\" by 12: cost +12")]),
            group(LostBy::Size, many),
            group(LostBy::Policy, vec![lost("awq-int4", &["*"], 0, "`allow cpu=#true` is not set")]),
        ],
        objective: vec![term("quality", 100.0, 2.0, 3.0), term("cost", 10.0, 0.5, 1.5), term("balance", 5.0, 0.0, 0.0)],
        turns: vec![
            turn("with 3.2 GiB more on ada-1", "it would take bf16 on ada-1"),
            turn("if `chat` had one replica less", "it would take bf16 on ada-2"),
        ],
        together: Vec::new(),
        content: false,
        notes: Vec::new(),
    };
    let observed = observe(&world.inventory, &world.observed);
    let found = Explanation::of("coder", &plan, &placement, &observed, Some(&why));
    golden("explain", &explain_text(&found, Some(&world.inventory), &Style::PLAIN));
    why.together =
        vec![obstacle("the memory of ada-1 (22.0 GiB usable)", true), obstacle("`quality min=\"fp8\"`", false)];
    why.notes = vec!["not all was computed".into()];
    let none = Explanation::of("giant", &plan, &placement, &observed, Some(&why));
    golden("explain_unplaced", &explain_text(&none, Some(&world.inventory), &Style::PLAIN));
}

#[test]
fn what_waits_for_a_yes_is_told_by_its_steps() {
    let (_, mut plan) = busy();
    let step = |replica, from: Option<&str>| StepWanted {
        key: String::new(),
        verb: if from.is_some() { Verb::Move } else { Verb::Stop },
        model: "small".into(),
        replica,
        node: "ada-2".into(),
        from_node: from.map(str::to_owned),
    };
    let (policy, by) = ("policies/a.kdl:1".to_owned(), vec!["ada".to_owned()]);
    let steps = vec![step(1, None), step(0, Some("ada-1"))];
    let wanted = ApprovalWanted { id: "599c".into(), policy, by, people: Vec::new(), steps };
    let blocked =
        |model: &str| Blocked { model: model.into(), policy: "approval".into(), since: None, remedy: wanted.remedy() };
    plan.blocked = vec![blocked("small"), blocked("other")];
    plan.approvals = vec![wanted.clone()];
    let shown = plan_text(&plan, &PlanView::default(), &Style::PLAIN);
    let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    let steps = "move small/0 from ada-1 to ada-2, stop small/1 on ada-2";
    assert!(shown.contains(&format!("! small approval: {steps}; ada has to agree")), "{shown}");
    assert!(shown.contains("! other approval: ada has to agree"), "{shown}");
}

#[test]
fn layers_in_host_memory_are_in_the_shape() {
    let (_, mut plan) = busy();
    let instance = &mut plan.instances[0];
    assert!(!plan_text::shape(instance).contains("host memory"));
    (instance.layers, instance.host_layers) = (vec![24, 20], 36);
    let shape = plan_text::shape(instance);
    assert!(shape.contains(", 36 of 80 layers in host memory, context "), "{shape}");
}

#[test]
fn what_is_held_back_runs_where_it_is() {
    let mut world = World::new(&[("ada-1", 2), ("ada-2", 1)]);
    world.want(&[Wish::new("small", 10)], &[("small", 0, "ada-1", vec![1], 6)]);
    world.converge();
    world.inventory.member.protections =
        vec![Protection { model: "small".into(), since: "2026-01-01T00:00:00Z".into(), reason: "exam week".into() }];
    world.want(&[Wish::new("small", 10)], &[("small", 0, "ada-2", vec![0], 6)]);
    let plan = world.plan();
    assert_eq!((plan.steps.len(), plan.blocked.len()), (0, 1));
    let inventory = &world.inventory;
    let (placement, observed) = (world.placement.clone(), &observe(inventory, &world.observed)[..]);
    let found = Explanation::of("small", &plan, &placement, observed, None);
    let text = explain_text(&found, Some(inventory), &Style::PLAIN);
    assert!(text.contains("should run replica 0 on ada-2[0]"), "{text}");
    assert!(text.contains("runs on ada-1[1] and stays there: protected (run `flock unprotect small"), "{text}");
    let on = |node| NodeExplanation::of(node, &world.desired, inventory, &plan, observed, &[], &[]);
    let text = explain_node_text(&on("ada-1"), inventory, &Style::PLAIN);
    assert!(
        text.contains("small/0 stays on it") && text.contains("stays small/0 on ada-1[1]: should run on"),
        "{text}"
    );
    assert!(!text.contains("Why not here") && !text.contains("nothing is planned"), "{text}");
    let text = explain_node_text(&on("ada-2"), inventory, &Style::PLAIN);
    assert!(text.contains("should run small/0 on ada-2[0]") && text.contains("runs on ada-1[1] and stays"), "{text}");
    let graph = placement_graph(&plan, inventory, observed);
    let drawn = |node: &str| graph.nodes.iter().find(|v| v.kind == "instance" && v.id.ends_with(node)).unwrap();
    assert!(drawn("@ada-1").lines[0].starts_with("runs and stays: protected"), "{:?}", drawn("@ada-1"));
    assert!(drawn("@ada-2").lines[1].starts_with("not begun: protected"), "{:?}", drawn("@ada-2"));
    assert_eq!(graph.nodes.iter().filter(|v| v.kind == "accelerator").count(), 2);

    // What a window puts off is held back alike; what is begun, or runs as planned, is not.
    let mut free = world.clone();
    free.inventory.member.protections.clear();
    let mut plan = free.plan();
    assert_eq!(Explanation::of("small", &plan, &placement, observed, None).held_back, []);
    plan.steps.clear();
    plan.deferred = vec![Deferred {
        model: "small".into(),
        node: "ada-2".into(),
        reason: "window".into(),
        verb: None,
        from_node: None,
    }];
    plan.deferred[0].verb = Some(Verb::Move);
    plan.deferred[0].from_node = Some("ada-1".into());
    let shown = plan_text(&plan, &PlanView::default(), &Style::PLAIN);
    assert!(shown.contains("? ada-2  small (move from ada-1): a window denies it now"), "{shown}");
    let found = Explanation::of("small", &plan, &placement, observed, None).held_back;
    assert_eq!(found[0].text(Some(inventory)), "runs on ada-1[1] and stays there: a window denies it now");
}

#[test]
fn an_apply_from_its_events() {
    let (_, plan) = busy();
    let node = || "ada-1".to_owned();
    let events = [
        Event::ApplyStarted {
            format: 1,
            cluster: "lab".into(),
            plan_digest: String::new(),
            steps: 7,
            download_bytes: 8 * GIB,
        },
        Event::Node { node: node(), ok: true, text: "connected".into() },
        Event::Node { node: "ada-2".into(), ok: false, text: "disk full".into() },
        Event::StepStarted {
            step: 1,
            verb: Verb::Fetch,
            model: "chat".into(),
            replica: 0,
            node: node(),
            text: String::new(),
        },
        Event::StepProgress {
            step: 1,
            node: node(),
            done_bytes: Some(GIB),
            total_bytes: Some(4 * GIB),
            bytes_per_s: Some(112_000_000),
            left_ms: Some(28_763),
            text: "model.safetensors".into(),
        },
        Event::StepDone { step: 1, node: node(), took_ms: 42_000, text: "4 files".into() },
        Event::StepStarted {
            step: 2,
            verb: Verb::Restart,
            model: "chat".into(),
            replica: 0,
            node: node(),
            text: String::new(),
        },
        Event::StepProgress {
            step: 2,
            node: node(),
            done_bytes: None,
            total_bytes: None,
            bytes_per_s: None,
            left_ms: None,
            text: "loading weights".into(),
        },
        Event::StepFailed {
            step: 2,
            node: node(),
            text: "out of \x1b[31mmemory".into(),
            hint: Some("lower the context".into()),
        },
        Event::StepSkipped { step: 3, node: node(), text: "step 2 failed".into() },
    ];
    let mut text: String = events.iter().filter_map(|e| event_line(e, &Style::PLAIN)).map(|l| l + "\n").collect();
    let end = |step, text: &str, hint: Option<&str>| StepEnd { step, text: text.into(), hint: hint.map(str::to_owned) };
    let outcome = Outcome {
        done: vec![1],
        failed: vec![end(2, "out of memory", Some("lower the context"))],
        not_started: vec![end(3, "step 2 failed", None)],
        interrupted: false,
    };
    text.push('\n');
    text.push_str(&outcome_text(&outcome, &plan, "flock apply", &Style::PLAIN));
    golden("apply", &text);
}

#[test]
fn a_way_out_that_is_lost_is_told() {
    let text = "cluster \"lab\"\nnode \"a\" address=\"10.0.0.1\"\n\
        provider \"far\" kind=\"anthropic\" base-url=\"https://api.example\" { key env=\"K\" }\n\
        model \"opus\" { provider \"far\" name=\"x\" }\n";
    let mut tree = crate::base::Tree::new();
    tree.insert("cluster.kdl", crate::base::TreeEntry::File(text.as_bytes().to_vec()));
    let desired = crate::config::load(&tree).desired.unwrap();
    let (_, mut before) = busy();
    let mut after = before.clone();
    before.egress = vec![crate::placement::Egress {
        agent: None,
        provider_model: "opus".to_owned(),
        node: "a".to_owned(),
        rtt_us: Some(9_000),
        endpoint: "api.example:443".to_owned(),
        expected_us: Some(9_000),
        because: "the least expected latency".to_owned(),
        others: Vec::new(),
    }];
    after.egress.clear();
    let inventory = crate::inventory::Inventory::default();
    let state = |plan| State { desired: &desired, inventory: &inventory, plan };
    let difference = Difference::of(&[], state(&before), state(&after), Vec::new());
    let told: Vec<(&str, &str)> = difference.models.iter().map(|one| (one.model.as_str(), one.change)).collect();
    assert_eq!(told, [("opus", "lost")]);
    assert!(difference.verdict[0].ends_with("opus cannot be reached any more (was way out through a)"));
    assert!(what_if_markdown(&difference, state(&after)).contains("- : opus cannot be reached any more"));
    let back = Difference::of(&[], state(&after), state(&before), Vec::new());
    assert!(back.verdict[0].ends_with("opus can be reached (could not): way out through a"), "{:?}", back.verdict);
    assert!(Difference::of(&[], state(&before), state(&before), Vec::new()).models.is_empty());
}
