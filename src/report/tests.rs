//! Golden texts. `FLOCK_UPDATE_GOLDEN=1 cargo test report::` writes them again.
#![expect(clippy::disallowed_methods, reason = "golden files are read and, on request, written by tests")]

use super::*;
use crate::base::{EngineKind, GIB};
use crate::inventory::{AcceleratorProcess, Protection};
use crate::placement::{Considered, Reason, Unplaced};
use crate::plan::testing::{Wish, World};
use crate::plan::{Deferred, Event, Outcome, Plan, StepEnd, Verb, observe};

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
                node: "ada-1".into(),
                constraint: "memory".into(),
                needed: Some(40 * GIB),
                available: Some(22 * GIB),
                unit: Some("bytes".into()),
                text: "needs 40.0 GiB on each of 2 accelerators; 22.0 GiB can be used".into(),
            },
            Reason {
                node: "ada-3".into(),
                constraint: "split".into(),
                needed: Some(2),
                available: Some(1),
                unit: Some("accelerators".into()),
                text: "needs 2 accelerators, there is 1".into(),
            },
        ],
        nearest: "context 8192 instead of 32768 would fit on ada-1".into(),
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
    plan.deferred.push(Deferred { model: "b".into(), node: "ada-2".into(), reason: "unreachable".into() });
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
        vec![AcceleratorProcess { pid: 7, used_bytes: Some(GIB), ours: false }];
    golden("inventory", &inventory_text(&world.inventory, &Style::PLAIN));
    let observed = observe(&world.inventory, &world.observed);
    let found = status(&world.desired, &world.inventory, &observed, None);
    golden("status", &status_text(&found, &world.inventory, &Style::PLAIN));
    golden("status_json", &json(&status(&world.desired, &world.inventory, &observed, Some("embed"))));
}

#[test]
fn an_explanation() {
    let (world, plan) = busy();
    let shape = |node: &str, variant: &str, tp, gib: u64, chosen, verdict: &str| Considered {
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
        shape("ada-1", "bf16", 2, 40, false, "needs 40.0 GiB on each accelerator, 22.0 GiB can be used"),
        shape("ada-2", "awq-int4", 2, 18, true, "best quality that fits"),
        shape("ada-3", "awq-int4", 0, 18, false, "`allow cpu=#true` is not set"),
    ];
    let found = Explanation::of("coder", &plan, &considered);
    golden("explain", &explain_text(&found, Some(&world.inventory), &Style::PLAIN));
    let none = Explanation::of("giant", &plan, &considered);
    golden("explain_unplaced", &explain_text(&none, Some(&world.inventory), &Style::PLAIN));
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
