//! Policies that hold steps back: windows, moves per hour, approvals, distrust; and what a saved plan and a destroy make of
//! them.

use super::testing::{Wish, World};
use super::*;
use crate::base::{Tree, TreeEntry};
use crate::inventory::{Approved, MemberInstance, PastMove};

/// 2026-11-30T09:00Z, a Monday: 10:00 in Zurich.
const MONDAY_TEN: u64 = 1_796_029_200_000;
const HOUR: u64 = 3_600_000;

/// Three replicas of `coder` on ada-1 want to be on ada-2, with these policies.
fn moving(policies: &str) -> World {
    let mut world = World::new(&[("ada-1", 3), ("ada-2", 3)]);
    let wishes = [Wish { replicas: 3, ..Wish::new("coder", 12) }];
    let on = |node| [0, 1, 2].map(|replica| ("coder", replica, node, vec![replica], 18));
    world.want(&wishes, &on("ada-1"));
    world.converge();
    world.want(&wishes, &on("ada-2"));
    world.moment = Moment { unix_ms: MONDAY_TEN, live: true };
    let text = format!(
        "cluster \"lab\" {{ group \"admins\" {{ member \"ada@example.edu\" \"grace@example.edu\" }} }}\n\
         node \"ada-1\" address=\"10.0.0.1\"\n{policies}\n"
    );
    let mut tree = Tree::new();
    tree.insert("cluster.kdl", TreeEntry::File(text.into_bytes()));
    let loaded = crate::config::load(&tree);
    let desired = loaded.desired.unwrap_or_else(|| panic!("{:?}", loaded.diagnostics));
    world.desired.policies = desired.policies;
    world.desired.cluster.extras.groups = desired.cluster.extras.groups;
    world
}

fn count(plan: &Plan, verb: Verb) -> usize {
    plan.steps.iter().filter(|step| step.verb == verb).count()
}

fn deferred(plan: &Plan) -> Vec<&str> {
    plan.deferred.iter().map(|deferred| deferred.reason.as_str()).collect()
}

fn held_back(plan: &Plan) -> Vec<&str> {
    plan.warnings.iter().filter(|w| w.id == "FLK407").map(|w| w.message.as_str()).collect()
}

#[test]
fn a_window_puts_off_what_it_denies_and_says_until_when() {
    let policy = |verbs: &str| {
        format!("window \"work\" deny=\"{verbs}\" days=\"mon-fri\" from=\"09:00\" to=\"18:00\" zone=\"Europe/Zurich\"")
    };
    let mut world = moving(&policy("move"));
    let plan = world.plan();
    assert!(plan.steps.is_empty(), "not even the fetch that only they need: {:?}", plan.steps);
    assert_eq!(deferred(&plan), ["window"]);
    assert_eq!(
        held_back(&plan),
        ["window \"work\" (cluster.kdl:3) denies move until 18:00 Europe/Zurich: 3 steps wait"]
    );
    for (later, moves) in [(7 * HOUR, 0), (8 * HOUR, 3), (5 * 24 * HOUR, 3)] {
        world.moment.unix_ms = MONDAY_TEN + later;
        let plan = world.plan();
        assert_eq!(count(&plan, Verb::Move), moves, "after {later} ms");
        assert_eq!(plan.deferred.is_empty(), moves > 0);
    }
    assert_eq!(count(&moving(&policy("start,stop,restart")).plan(), Verb::Move), 3, "other verbs");
    // A stop for a higher rank is a preempting one, and an ordinary stop is not.
    let mut world = moving(&policy("preempt"));
    let wishes = [Wish { rank: 9, ..Wish::new("big", 30) }, Wish { replicas: 3, ..Wish::new("coder", 12) }];
    world.want(
        &wishes,
        &[("big", 0, "ada-1", vec![0], 18), ("coder", 1, "ada-1", vec![1], 18), ("coder", 2, "ada-1", vec![2], 18)],
    );
    let plan = world.plan();
    assert_eq!((count(&plan, Verb::Stop), count(&plan, Verb::Start)), (0, 0), "the newcomer waits with it");
    assert_eq!(deferred(&plan), ["window", "window"]);
    world.moment.unix_ms += 8 * HOUR;
    assert_eq!((count(&world.plan(), Verb::Stop), count(&world.plan(), Verb::Start)), (1, 1));
}

#[test]
fn at_most_so_many_move_in_an_hour() {
    let past = |minutes: u64| PastMove {
        at_unix_ms: MONDAY_TEN - minutes * 60_000,
        model: "x".to_owned(),
        node: "ada-1".to_owned(),
    };
    for (limit, done, moves) in [
        (4, &[][..], 3),
        (2, &[][..], 2),
        (0, &[][..], 0),
        (4, &[5, 59][..], 2),
        (4, &[5, 60, 61, 300][..], 3),
        (2, &[1, 2, 3][..], 0),
    ] {
        let mut world = moving(&format!("limit moves-per-hour={limit}"));
        world.inventory.member.moves = done.iter().map(|minutes| past(*minutes)).collect();
        let plan = world.plan();
        assert_eq!(count(&plan, Verb::Move), moves, "limit {limit}, done {done:?}");
        assert_eq!(plan.deferred.is_empty(), moves == 3);
        assert!(plan.deferred.iter().all(|d| d.reason == "moves_per_hour"));
        if (limit, done.len()) == (4, 2) {
            let said =
                ["limit moves-per-hour=4 (cluster.kdl:3): 2 in the past hour, 2 of 3 now, the rest waits (coder)"];
            assert_eq!(held_back(&plan), said);
        }
        // Nothing ever may: the past has no say in it.
        if limit == 0 {
            let said = "limit moves-per-hour=0 (cluster.kdl:3) lets nothing move and nothing be preempted: \
                        3 steps wait, of coder, until it is raised or taken out";
            assert_eq!(held_back(&plan), [said]);
        }
        // Without live facts the past is unknown, and that is said.
        world.moment.live = false;
        let plan = world.plan();
        assert_eq!(count(&plan, Verb::Move), 3.min(limit), "an inventory file, limit {limit}");
        let said = held_back(&plan);
        assert!(limit == 0 || said.iter().any(|note| note.contains("not known from an inventory file")), "{said:?}");
    }
    // Restarts in place are no moves.
    let mut world = moving("limit moves-per-hour=0");
    let wishes = [Wish { replicas: 3, context: 1024, ..Wish::new("coder", 12) }];
    world.want(&wishes, &[0, 1, 2].map(|replica| ("coder", replica, "ada-1", vec![replica], 18)));
    assert_eq!(count(&world.plan(), Verb::Change), 3);
}

#[test]
fn two_halves_of_one_move_are_one_move() {
    // Two models change places: one of them has to go before the other can come.
    let mut world = World::new(&[("ada-1", 2)]);
    let wishes = [Wish::new("a", 1), Wish::new("b", 5)];
    world.want(&wishes, &[("a", 0, "ada-1", vec![0], 18), ("b", 0, "ada-1", vec![1], 18)]);
    world.converge();
    world.want(&wishes, &[("a", 0, "ada-1", vec![1], 18), ("b", 0, "ada-1", vec![0], 18)]);
    let plan = world.plan();
    assert!(count(&plan, Verb::Stop) > 0, "{:?}", plan.steps);
    assert_eq!(moves(&plan.steps).len(), 2);
    let limits = moving("limit moves-per-hour=1").desired.policies;
    world.desired.policies = limits;
    let plan = world.plan();
    assert!(plan.steps.is_empty(), "neither can go without the other: {:?}", plan.steps);
}

#[test]
fn what_needs_a_yes_waits_for_one_of_those_who_may_give_it() {
    let mut world = moving("approval verbs=\"stop,move\" by=\"@admins\"");
    let plan = world.plan();
    assert!(plan.steps.is_empty());
    let wanted = &plan.approvals[0];
    assert_eq!((wanted.steps.len(), wanted.people.len(), wanted.id.len()), (3, 2, 12));
    let remedy = format!("@admins has to agree (cluster.kdl:3): `flock approve {} --reason …`", wanted.id);
    assert_eq!((plan.blocked[0].policy.as_str(), plan.blocked[0].remedy.as_str()), ("approval", remedy.as_str()));
    assert_eq!(consent(&plan).last().map(|c| c.strength), Some(Strength::Refused), "exit 7");
    assert!(wanted.steps.iter().all(|step| step.from_node.as_deref() == Some("ada-1")));
    let yes = |by: &str, at: u64, steps: usize| Approved {
        by: by.to_owned(),
        at_unix_ms: at,
        steps: wanted.steps.iter().take(steps).map(|step| step.key.clone()).collect(),
        ..Approved::default()
    };
    for (given, moves) in [
        (yes("grace@example.edu", MONDAY_TEN, 3), 3),
        (yes("eve@example.edu", MONDAY_TEN, 3), 0),
        (yes("ada@example.edu", MONDAY_TEN, 2), 2),
        (yes("ada@example.edu", MONDAY_TEN - 24 * HOUR + 1, 3), 3),
        (yes("ada@example.edu", MONDAY_TEN - 24 * HOUR, 3), 0),
    ] {
        world.inventory.member.approvals = vec![given];
        let plan = world.plan();
        assert_eq!(count(&plan, Verb::Move), moves);
        assert_eq!(plan.approvals.is_empty(), moves == 3);
        assert!(
            plan.approvals.iter().all(|open| open.steps.len() == 3 - moves && (moves == 0 || open.id != wanted.id))
        );
    }
    // A yes is for these very steps.
    world.inventory.member.approvals = vec![yes("ada@example.edu", MONDAY_TEN, 3)];
    let wishes = [Wish { replicas: 3, context: 1024, ..Wish::new("coder", 12) }];
    world.want(&wishes, &[0, 1, 2].map(|replica| ("coder", replica, "ada-2", vec![replica], 18)));
    assert!(world.plan().steps.is_empty());
}

#[test]
fn a_saved_plan_is_held_by_what_is_in_force_when_it_is_applied() {
    let world = moving("limit moves-per-hour=4\nwindow \"w\" deny=\"move\" from=\"12:00\" to=\"13:00\" zone=\"UTC\"");
    let plan = world.plan();
    assert_eq!(count(&plan, Verb::Move), 3);
    let now = |hours: u64| Moment { unix_ms: MONDAY_TEN + hours * HOUR, live: true };
    let held = |moment, member: &crate::inventory::MemberRecord| held_now(&plan.steps, &world.desired, member, moment);
    assert!(held(now(0), &world.inventory.member).is_empty());
    assert_eq!(
        held(now(3), &world.inventory.member),
        ["window \"w\" (cluster.kdl:4) denies move until 13:00 UTC: 3 steps wait"]
    );
    let mut member = world.inventory.member.clone();
    member.moves = vec![PastMove { at_unix_ms: MONDAY_TEN - 1, ..PastMove::default() }; 2];
    assert_eq!(
        held(now(0), &member),
        ["limit moves-per-hour=4 (cluster.kdl:3): 2 in the past hour, and 3 in this plan"]
    );
}

#[test]
fn a_destroy_is_held_by_windows_and_approvals_of_it() {
    for (policy, blocked) in [
        ("window \"w\" deny=\"destroy\" from=\"00:00\" to=\"24:00\" zone=\"UTC\"", Some("window")),
        ("window \"w\" deny=\"stop\" from=\"00:00\" to=\"24:00\" zone=\"UTC\"", Some("window")),
        ("window \"w\" deny=\"move\" from=\"00:00\" to=\"24:00\" zone=\"UTC\"", None),
        ("approval verbs=\"destroy\" by=\"@admins\"", Some("approval")),
    ] {
        let world = moving(policy);
        let plan = destroy_plan(&DestroyInput {
            desired: &world.desired,
            config_digest: String::new(),
            commit: None,
            dirty: false,
            inventory: &world.inventory,
            observed: &world.observed,
            limits: Limits::default(),
            moment: world.moment,
        });
        let found: Vec<&str> = plan.blocked.iter().map(|blocked| blocked.policy.as_str()).collect();
        assert_eq!(found, blocked.into_iter().collect::<Vec<_>>(), "{policy}");
        assert_eq!(plan.steps.len(), if blocked.is_some() { 0 } else { 3 });
        assert_eq!(plan.approvals.len(), usize::from(blocked == Some("approval")));
    }
}

/// Nodes `n1` to `n5` of which so many ran something and so many of those are away.
fn outage(ran: usize, away: usize) -> World {
    let mut world = World::new(&[("n1", 2), ("n2", 2), ("n3", 2), ("n4", 2), ("n5", 2)]);
    let names = ["n1", "n2", "n3", "n4", "n5"];
    let wishes = [Wish { replicas: ran as u32, ..Wish::new("m", 3) }];
    let spots: Vec<_> = (0..ran).map(|at| ("m", at as u32, names[at], vec![0], 18)).collect();
    world.want(&wishes, &spots);
    world.converge();
    for name in &names[..away] {
        let node = world.node(name);
        node.reachable = false;
    }
    // A new model that would start, and one that is gone and would stop.
    let wishes = [wishes[0].clone(), Wish::new("new", 9)];
    let spots: Vec<_> = spots.into_iter().chain([("new", 0, "n5", vec![1], 18)]).collect();
    world.want(&wishes, &spots);
    world
}

#[test]
fn when_most_nodes_are_away_at_once_their_absence_is_not_believed() {
    for (ran, away, held) in [
        (4, 0, false),
        (4, 1, false),
        (4, 2, false),
        (4, 3, true),
        (2, 2, true),
        (3, 2, true),
        (1, 1, false),
        (4, 4, true),
    ] {
        let mut world = outage(ran, away);
        let plan = world.plan();
        let case = format!("{away} of {ran}");
        assert_eq!(plan.steps.is_empty(), held, "{case}: {:?}", plan.steps);
        assert_eq!(deferred(&plan).contains(&"distrust"), held, "{case}");
        let said = held_back(&plan);
        assert_eq!(said.len(), usize::from(held), "{said:?}");
        if held {
            assert!(
                said[0].starts_with(&format!("{away} of {ran} nodes that ran something do not answer")),
                "{said:?}"
            );
        }
        // Left out by name, the rest goes on.
        world.limits.exclude = Some(Selection::parse("n1,n2,n3,n4").unwrap());
        assert_eq!(count(&world.plan(), Verb::Start), 1, "{case}");
    }
    // What an apply remembers counts where the node itself was never seen; what died where it belongs comes back.
    let mut world = outage(4, 3);
    world.fail("m");
    let survivor = world.inventory.nodes.iter_mut().find(|node| node.name == "n4").unwrap();
    survivor.instances[0].state = crate::base::InstanceState::Failed;
    survivor.instances[0].running = false;
    survivor.instances[0].pid = None;
    let plan = world.plan();
    let steps: Vec<_> = plan.steps.iter().map(|step| (step.verb, step.node.as_str(), step.because)).collect();
    assert_eq!(steps, [(Verb::Start, "n4", Because::Drift)]);
    let mut world = World::new(&[("a", 1), ("b", 1)]);
    world.want(&[Wish::new("m", 1)], &[("m", 0, "a", vec![0], 18)]);
    world.inventory.nodes.retain(|node| node.name == "a");
    world.desired.nodes.insert("c".to_owned(), world.desired.nodes["b"].clone());
    let left = |node: &str| MemberInstance {
        node: node.to_owned(),
        instance: "i".to_owned(),
        specification: "s".to_owned(),
        model: "m".to_owned(),
        replica: 0,
        engine: crate::base::EngineKind::Vllm,
        variant: "v".to_owned(),
        accelerators: Vec::new(),
        port: 1,
        part: None,
    };
    world.inventory.member.instances = vec![left("b"), left("c")];
    assert_eq!(deferred(&world.plan()), ["distrust"]);
}

#[test]
fn a_victim_stays_while_what_takes_its_place_may_not_start() {
    for policy in [
        "window \"work\" deny=\"start\" from=\"09:00\" to=\"18:00\" zone=\"Europe/Zurich\"",
        "approval verbs=\"start\" by=\"ada@example.edu\"",
    ] {
        let mut world = moving(policy);
        let wishes = [Wish { rank: 9, ..Wish::new("big", 30) }, Wish { replicas: 3, ..Wish::new("coder", 12) }];
        world.want(
            &wishes,
            &[("big", 0, "ada-1", vec![0], 18), ("coder", 1, "ada-1", vec![1], 18), ("coder", 2, "ada-1", vec![2], 18)],
        );
        // The placement has no place for the third replica, which is one of the minimum.
        world.desired.models.get_mut("coder").expect("there").replicas.min = 3;
        world.placement.unplaced = vec![crate::placement::Unplaced {
            model: "coder".to_owned(),
            replicas: 1,
            required: true,
            reasons: Vec::new(),
            nearest: "none found".to_owned(),
            together: Vec::new(),
        }];
        let plan = world.plan();
        assert_eq!((count(&plan, Verb::Stop), count(&plan, Verb::Start)), (0, 0), "{policy}: {:?}", plan.steps);
        // All three run on, so nothing is below its minimum yet.
        let [missing] = &plan.unplaced[..] else { panic!("{:?}", plan.unplaced) };
        assert!(!missing.required, "{policy}");
        let reason = missing.reasons.last().expect("told");
        assert_eq!(reason.node, "ada-1", "{reason:?}");
        assert!(reason.text.starts_with("coder/0 runs on here: ") && reason.text.contains("stop"), "{reason:?}");
        assert_eq!(reason.constraint, if policy.starts_with("window") { "window" } else { "hold" });
        // Below the minimum already: the stop that is held does not make up for it.
        world.desired.models.get_mut("coder").expect("there").replicas.min = 4;
        assert!(world.plan().unplaced[0].required, "{policy}");
        // Once nothing holds the stop, it is below.
        world.desired.models.get_mut("coder").expect("there").replicas.min = 3;
        world.desired.policies.windows.clear();
        world.desired.policies.approvals.clear();
        let plan = world.plan();
        assert_eq!((count(&plan, Verb::Stop), plan.unplaced[0].required), (1, true), "{policy}");
    }
}
