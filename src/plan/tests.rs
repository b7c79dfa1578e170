//! Scenarios: what a plan holds, step by step.
//!
//! Size: each is read against the others: the same small world, one fact changed.

use std::collections::BTreeSet;

use super::testing::{Spot, Wish, World, at};
use super::*;
use crate::base::{GIB, InstanceState, Spanned};
use crate::config::{Prune, Share};
use crate::inventory::{
    AcceleratorMemory, AcceleratorProcess, Hold, InstanceFacts, InstanceSpec, Protection, WeightsFound,
};
use crate::placement::Origin;

fn verbs(plan: &Plan) -> Vec<(Verb, &str, Because)> {
    plan.steps.iter().map(|step| (step.verb, step.model.as_str(), step.because)).collect()
}

fn coder_runs() -> World {
    let mut world = World::new(&[("ada-1", 2), ("ada-2", 2)]);
    world.want(&[Wish::new("coder", 12)], &[("coder", 0, "ada-1", vec![0], 18)]);
    world.converge();
    world
}

#[test]
fn a_new_model_is_fetched_then_started_and_then_nothing_differs() {
    let mut world = World::new(&[("ada-1", 2)]);
    world.want(&[Wish::new("coder", 12)], &[("coder", 0, "ada-1", vec![0, 1], 18)]);
    let plan = world.converge();
    assert_eq!(verbs(&plan), [(Verb::Fetch, "coder", Because::Added), (Verb::Start, "coder", Because::Added)]);
    assert_eq!(plan.steps[1].after, [1]);
    assert_eq!(plan.steps[1].detail, "cluster.kdl:12 model \"coder\"");
    let instance = &plan.instances[0];
    assert_eq!((instance.port, instance.port_alternates.as_slice()), (20000, &[20005, 20006, 20007, 20008][..]));
    assert_eq!(instance.instance.len(), 12);
    let again = world.plan();
    assert!(again.steps.is_empty());
    assert_eq!(again.summary, Summary { unchanged: 1, ..Default::default() });
}

#[test]
fn an_engine_is_shown_its_devices_in_the_words_of_their_maker() {
    let mut world = World::new(&[("ada-1", 2)]);
    world.want(&[Wish::new("coder", 12)], &[("coder", 0, "ada-1", vec![0, 1], 18)]);
    let nvidia = world.plan().instances[0].env.clone();
    assert_eq!(nvidia["CUDA_VISIBLE_DEVICES"], "GPU-ada-1-0,GPU-ada-1-1");
    assert!(!nvidia.contains_key("ROCR_VISIBLE_DEVICES"));
    for device in &mut world.node("ada-1").accelerators {
        device.vendor = "amd".into();
    }
    // One of them has no number of its own: ROCm knows it by its index.
    let second = &mut world.node("ada-1").accelerators[1];
    second.unknown.insert("uuid".into(), "identified by its PCI address".into());
    let index = second.index;
    let amd = world.plan().instances[0].env.clone();
    assert_eq!(amd["ROCR_VISIBLE_DEVICES"], format!("GPU-ada-1-0,{index}"));
    assert!(!amd.contains_key("CUDA_VISIBLE_DEVICES"), "HIP would read it as indices: {amd:?}");
}

#[test]
fn a_longer_context_is_a_change_in_place_on_the_same_port() {
    let mut world = coder_runs();
    world.want(&[Wish { context: 32768, ..Wish::new("coder", 12) }], &[("coder", 0, "ada-1", vec![0], 20)]);
    let plan = world.converge();
    assert_eq!(verbs(&plan), [(Verb::Change, "coder", Because::Config)]);
    let step = &plan.steps[0];
    assert!(step.interrupts && step.downtime_ms == 19_200 && step.from_instance.is_some());
    assert_ne!(step.from_instance, step.instance);
    assert_eq!(step.detail, "cluster.kdl:14 context 16384 -> 32768");
    assert_eq!(plan.instances[0].port, 20000);
}

#[test]
fn other_weights_are_a_change_because_of_the_lock_and_another_variant_says_so() {
    let mut world = coder_runs();
    world.want(&[Wish { weights: "v2", ..Wish::new("coder", 12) }], &[("coder", 0, "ada-1", vec![0], 18)]);
    let plan = world.plan();
    assert_eq!(verbs(&plan), [(Verb::Fetch, "coder", Because::Lock), (Verb::Change, "coder", Because::Lock)]);
    assert_eq!(plan.steps[1].after, [1]);
    assert!(plan.steps[1].detail.starts_with("weights "), "{}", plan.steps[1].detail);
    // Of the hub, the commits are known.
    let source = |commit: &str| format!("hf:acme/coder@{}", commit.repeat(40));
    let candidate = &mut world.candidates.get_mut("coder").unwrap().as_mut().unwrap()[0];
    candidate.source = source("b");
    world.node("ada-1").weights.iter_mut().for_each(|weights| weights.source = source("a"));
    assert_eq!(world.plan().steps[1].detail, "flock.lock: acme/coder aaaaaaaaaa -> bbbbbbbbbb");
    world.want(&[Wish { variant: "fp8", ..Wish::new("coder", 12) }], &[("coder", 0, "ada-1", vec![0], 18)]);
    let plan = world.plan();
    assert_eq!(plan.steps[1].because, Because::Variant);
    assert_eq!(plan.steps[1].detail, "variant awq-int4 -> fp8: best quality that fits");
}

#[test]
fn an_inventory_file_that_knows_no_specifications_is_enough() {
    let mut world = coder_runs();
    world.observed.clear();
    assert!(world.plan().steps.is_empty());
    world.node("ada-1").agent = None;
    let facts = world.instance("coder");
    (facts.running, facts.pid) = (false, None);
    world.node("ada-1").weights.clear();
    let plan = world.plan();
    assert!(plan.steps.is_empty() && plan.drift.is_empty(), "{:?}", plan.steps);
    world.want(&[Wish { context: 1024, ..Wish::new("coder", 12) }], &[("coder", 0, "ada-1", vec![0], 18)]);
    let plan = world.plan();
    assert_eq!(verbs(&plan), [(Verb::Fetch, "coder", Because::Config), (Verb::Change, "coder", Because::Config)]);
    assert_eq!(plan.steps[1].detail, "cluster.kdl:12 another specification");
}

#[test]
fn what_is_kept_leaves_no_room_and_the_newcomer_is_blocked() {
    let mut world = coder_runs();
    world.desired.policies.prune = Some(Spanned::new(Prune::Keep, at("policies/lab.kdl", 9)));
    world.want(&[Wish::new("llava", 20)], &[("llava", 0, "ada-1", vec![0], 18)]);
    let plan = world.plan();
    assert!(plan.steps.is_empty());
    assert_eq!((plan.blocked[0].model.as_str(), plan.blocked[0].policy.as_str()), ("llava", "memory"));
    assert!(check(&plan, &world.inventory, &world.observed).is_empty());
}

#[test]
fn ports_that_others_use_are_walked_around_and_a_bad_range_is_a_warning() {
    let mut world = World::new(&[("ada-1", 2)]);
    world.node("ada-1").ports_in_use = vec![22, 20000, 20002];
    world.node("ada-1").ip_local_port_range = Some([20500, 60999]);
    let wishes = [Wish::new("a", 1), Wish::new("b", 5)];
    world.want(&wishes, &[("a", 0, "ada-1", vec![0], 4), ("b", 0, "ada-1", vec![1], 4)]);
    let plan = world.converge();
    let ports: Vec<_> = plan.instances.iter().map(|i| (i.port, i.port_alternates[0])).collect();
    assert_eq!(ports, [(20001, 20012), (20007, 20016)]);
    assert_eq!(plan.warnings[0].id, "FLK400");
    world.node("ada-1").ports_in_use = vec![20001, 20007];
    assert_eq!(world.plan().instances[0].port, 20001);
    world.desired.nodes.get_mut("ada-1").unwrap().ports = (20000, 20007);
    world.node("ada-1").instances.clear();
    world.observed.clear();
    let plan = world.plan();
    assert_eq!((plan.instances.len(), plan.unplaced[0].reasons[0].constraint.as_str()), (1, "port"));
}

#[test]
fn a_move_starts_the_new_one_first_where_both_fit() {
    let mut world = coder_runs();
    world.want(&[Wish::new("coder", 12)], &[("coder", 0, "ada-2", vec![1], 18)]);
    let plan = world.converge();
    assert_eq!(verbs(&plan), [(Verb::Fetch, "coder", Because::Better), (Verb::Move, "coder", Because::Better)]);
    let step = &plan.steps[1];
    assert_eq!((step.from_node.as_deref(), step.node.as_str(), step.interrupts), (Some("ada-1"), "ada-2", false));
    assert_eq!(step.downtime_ms, 0);
}

#[test]
fn a_move_that_needs_its_own_memory_interrupts() {
    let mut world = coder_runs();
    world.want(&[Wish::new("coder", 12)], &[("coder", 0, "ada-1", vec![0, 1], 12)]);
    let plan = world.converge();
    assert_eq!(verbs(&plan), [(Verb::Move, "coder", Because::Config)]);
    assert!(plan.steps[0].interrupts && plan.steps[0].downtime_ms > 0);
}

#[test]
fn two_that_change_places_do_not_wait_for_each_other_forever() {
    let mut world = World::new(&[("ada-1", 2)]);
    let wishes = [Wish::new("a", 1), Wish::new("b", 5)];
    world.want(&wishes, &[("a", 0, "ada-1", vec![0], 18), ("b", 0, "ada-1", vec![1], 18)]);
    world.converge();
    world.want(&wishes, &[("a", 0, "ada-1", vec![1], 18), ("b", 0, "ada-1", vec![0], 18)]);
    let plan = world.converge();
    let seen: Vec<_> = plan.steps.iter().map(|s| (s.verb, s.model.as_str(), s.after.clone())).collect();
    assert_eq!(seen, [(Verb::Stop, "a", vec![]), (Verb::Move, "b", vec![1]), (Verb::Start, "a", vec![1, 2])]);
    assert!(plan.steps[2].downtime_ms > 0);
    assert!(world.plan().steps.is_empty());
}

#[test]
fn a_higher_rank_takes_the_place_after_its_weights_have_come() {
    let mut world = coder_runs();
    let wishes = [Wish::new("coder", 12), Wish { rank: 100, ..Wish::new("llava", 20) }];
    world.want(&wishes, &[("llava", 0, "ada-1", vec![0], 18)]);
    // What placement knows of the choice is told as well.
    let mut known = world.clone();
    let (node, running) =
        known.inventory.nodes.iter().find_map(|n| Some((n.name.clone(), n.instances.first()?))).unwrap();
    known.placement.victims = vec![crate::placement::Victim {
        model: "coder".into(),
        replica: 0,
        instance: running.instance.clone(),
        node,
        rank: 0,
        by: vec!["llava".into()],
        load_ms: None,
        live_sessions: 0,
        why: "one instance of rank 0 is the fewest that makes room".into(),
    }];
    let detail = known.plan().steps.into_iter().find(|step| step.because == Because::Preempted).unwrap().detail;
    assert!(detail.ends_with("has rank 0; one instance of rank 0 is the fewest that makes room"), "{detail}");
    let plan = world.converge();
    let expected = [
        (Verb::Fetch, "llava", Because::Added),
        (Verb::Stop, "coder", Because::Preempted),
        (Verb::Start, "llava", Because::Added),
    ];
    assert_eq!(verbs(&plan), expected);
    assert_eq!(plan.steps[1].after, [1]);
    assert_eq!(plan.steps[2].after, [1, 2]);
    assert_eq!(plan.steps[1].detail, "`llava` (rank 100) needs the place, `coder` has rank 0");
}

#[test]
fn what_left_the_config_stops_keeps_or_asks_as_prune_says() {
    let mut world = coder_runs();
    world.want(&[Wish::new("other", 1)], &[("other", 0, "ada-2", vec![0], 4)]);
    let ask = world.plan();
    let stop = ask.steps.iter().find(|step| step.verb == Verb::Stop).unwrap();
    assert_eq!((stop.because, stop.confirm.as_deref()), (Because::Removed, Some("prune")));
    assert!(consent(&ask).iter().any(|c| c.strength == Strength::Destructive && c.models == ["coder"]));
    world.desired.policies.prune = Some(Spanned::new(Prune::Auto, at("policies/lab.kdl", 9)));
    assert!(world.plan().steps.iter().any(|step| step.verb == Verb::Stop && step.confirm.is_none()));
    world.desired.policies.prune = Some(Spanned::new(Prune::Keep, at("policies/lab.kdl", 9)));
    let keep = world.plan();
    assert!(keep.steps.iter().all(|step| step.verb != Verb::Stop));
    assert_eq!(keep.warnings.len(), 1);
}

#[test]
fn a_recorded_protection_forbids_stop_and_move_and_not_change() {
    let mut world = coder_runs();
    world.inventory.member.protections =
        vec![Protection { model: "coder".into(), since: "2026-01-01T00:00:00Z".into(), reason: "config".into() }];
    let mut moved = world.clone();
    moved.want(&[Wish::new("coder", 12)], &[("coder", 0, "ada-2", vec![0], 18)]);
    let plan = moved.plan();
    assert!(plan.steps.is_empty(), "{:?}", plan.steps);
    assert_eq!(plan.blocked[0].policy, "protect");
    assert_eq!(plan.blocked[0].since.as_deref(), Some("2026-01-01T00:00:00Z"));
    assert!(plan.blocked[0].remedy.contains("flock unprotect coder --reason"));
    let mut taken = world.clone();
    let wishes = [Wish::new("coder", 12), Wish { rank: 9, ..Wish::new("llava", 20) }];
    taken.want(&wishes, &[("llava", 0, "ada-1", vec![0], 18)]);
    let plan = taken.plan();
    assert!(plan.steps.is_empty(), "{:?}", plan.steps);
    assert_eq!(plan.blocked.iter().map(|b| b.model.as_str()).collect::<Vec<_>>(), ["coder", "llava"]);
    world.want(&[Wish { context: 1024, ..Wish::new("coder", 12) }], &[("coder", 0, "ada-1", vec![0], 18)]);
    assert_eq!(world.plan().summary.change, 1);
}

#[test]
fn an_empty_config_stops_nothing() {
    let mut world = coder_runs();
    world.want(&[], &[]);
    let plan = world.plan();
    assert!(plan.steps.is_empty());
    assert_eq!((plan.blocked[0].policy.as_str(), plan.blocked[0].model.as_str()), ("empty", "coder"));
    assert_eq!(consent(&plan)[0].strength, Strength::RefusedWhole);
}

#[test]
fn one_plan_stops_no_more_than_its_share() {
    let mut world = World::new(&[("ada-1", 2)]);
    let wishes = [Wish::new("a", 1), Wish::new("b", 5), Wish::new("c", 9)];
    let spots: [Spot; 3] =
        [("a", 0, "ada-1", vec![0], 4), ("b", 0, "ada-1", vec![0], 4), ("c", 0, "ada-1", vec![1], 4)];
    world.want(&wishes, &spots);
    world.converge();
    world.desired.policies.stop_share = Some(Spanned::new(Share(5000), at("policies/lab.kdl", 7)));
    let mut one = world.clone();
    one.want(&wishes[..2], &spots[..2]);
    assert_eq!(one.plan().summary.stop, 1);
    world.want(&wishes[..1], &spots[..1]);
    let plan = world.plan();
    assert_eq!((plan.summary.stop, plan.blocked.len(), plan.blocked[0].policy.as_str()), (0, 2, "stop-share"));
}

#[test]
fn a_dead_engine_starts_again_and_a_dead_supervisor_is_adopted() {
    let mut world = coder_runs();
    world.fail("coder");
    let plan = world.plan();
    assert_eq!(verbs(&plan), [(Verb::Start, "coder", Because::Drift)]);
    assert_eq!(
        (plan.drift[0].kind.as_str(), plan.drift[0].since.as_deref()),
        ("instance_failed", Some("2026-01-02T04:00:00Z"))
    );
    world.converge();
    world.node("ada-1").agent.as_mut().unwrap().supervising = false;
    let plan = world.converge();
    assert_eq!(verbs(&plan), [(Verb::Adopt, "coder", Because::Drift)]);
    assert!(!plan.steps[0].interrupts && plan.drift.len() == 1);
    world.node("ada-1").instances.clear();
    let plan = world.converge();
    assert_eq!(verbs(&plan), [(Verb::Start, "coder", Because::Drift)]);
    assert_eq!(plan.drift[0].kind, "instance_missing");
    world.instance("coder").state = InstanceState::Failed;
    assert_eq!(verbs(&world.plan()), [(Verb::Restart, "coder", Because::Drift)]);
}

#[test]
fn an_engine_that_its_agent_knows_by_its_mark_alone_is_the_planned_one() {
    let mut world = coder_runs();
    let instance = world.instance("coder");
    (instance.model, instance.specification, instance.port) = ("(unknown)".into(), String::new(), 0);
    (instance.state, instance.accelerators) = (InstanceState::Stopping, Vec::new());
    world.observed.values_mut().for_each(Vec::clear);
    assert_eq!(verbs(&world.converge()), [(Verb::Restart, "coder", Because::Drift)]);
    assert!(world.plan().steps.is_empty());
}

#[test]
fn lost_files_come_again_without_touching_the_engine() {
    let mut world = coder_runs();
    world.node("ada-1").weights.clear();
    let plan = world.converge();
    assert_eq!(verbs(&plan), [(Verb::Fetch, "coder", Because::Drift)]);
    assert_eq!(plan.drift[0].kind, "file_missing");
    assert!(world.plan().steps.is_empty() && world.plan().drift.is_empty());
}

#[test]
fn a_sick_card_and_a_held_node_are_left_for_their_own_reasons() {
    let mut world = coder_runs();
    world.node("ada-1").accelerators[0].healthy = false;
    world.want(&[Wish::new("coder", 12)], &[("coder", 0, "ada-1", vec![1], 18)]);
    let plan = world.plan();
    assert_eq!(verbs(&plan), [(Verb::Move, "coder", Because::Decay)]);
    assert_eq!(plan.decay[0].kind, "accelerator_unhealthy");
    world.node("ada-1").accelerators[0].healthy = true;
    world.inventory.member.holds = vec![Hold { node: "ada-1".into(), reason: "new fan".into(), ..Hold::default() }];
    let plan = world.plan();
    assert_eq!(plan.steps[0].because, Because::Drain);
    assert_eq!(plan.steps[0].detail, "`ada-1` is cordoned: new fan");
}

/// A drain moves what runs there, whatever else the config wants, and leaves what is protected.
#[test]
fn a_drain_empties_its_nodes_and_does_nothing_else() {
    let mut world = coder_runs();
    world.drain.insert("ada-1".to_owned());
    world.inventory.member.holds =
        vec![Hold { node: "ada-1".into(), reason: "new fan".into(), by: "ada@desk".into(), since: "then".into() }];
    let wishes = [Wish::new("coder", 12), Wish::new("b", 4)];
    world.want(&wishes, &[("coder", 0, "ada-2", vec![0], 18), ("b", 0, "ada-2", vec![1], 18)]);
    let plan = world.plan();
    assert_eq!(verbs(&plan), [(Verb::Fetch, "coder", Because::Drain), (Verb::Move, "coder", Because::Drain)]);
    assert!(!plan.steps[1].interrupts, "there is room: the new one starts first");
    let deferred: Vec<(&str, &str)> = plan.deferred.iter().map(|d| (d.model.as_str(), d.reason.as_str())).collect();
    assert!(deferred.contains(&("b", "selection")), "{deferred:?}");

    // Nowhere else: it stops, and that is because of the drain.
    world.want(&wishes[..1], &[]);
    assert_eq!(verbs(&world.plan()), [(Verb::Stop, "coder", Because::Drain)]);

    // Protected, it stays, and the plan says so.
    let reason = "a demo".to_owned();
    world.inventory.member.protections = vec![Protection { model: "coder".into(), since: "then".into(), reason }];
    world.want(&wishes[..1], &[("coder", 0, "ada-1", vec![0], 18)]);
    let plan = world.plan();
    assert!(plan.steps.is_empty(), "{:?}", plan.steps);
    assert_eq!((plan.blocked[0].model.as_str(), plan.blocked[0].policy.as_str()), ("coder", "protect"));
}

#[test]
fn a_node_that_left_the_config_is_emptied_after_its_replica_runs_elsewhere() {
    let mut world = coder_runs();
    world.desired.nodes.remove("ada-1");
    world.want(&[Wish::new("coder", 12)], &[("coder", 0, "ada-2", vec![0], 18)]);
    let plan = world.converge();
    let expected = [
        (Verb::Fetch, "coder", Because::Config),
        (Verb::Start, "coder", Because::Config),
        (Verb::Stop, "coder", Because::Removed),
    ];
    assert_eq!(verbs(&plan), expected);
    assert_eq!(plan.steps[2].after, [2]);
}

fn put_off(model: &str, node: &str, reason: &str, verb: Verb) -> Deferred {
    Deferred { model: model.into(), node: node.into(), reason: reason.into(), verb: Some(verb), from_node: None }
}

#[test]
fn unreachable_and_unselected_nodes_are_put_off_by_name() {
    let mut world = coder_runs();
    let wishes = [Wish { context: 1024, ..Wish::new("coder", 12) }, Wish::new("b", 20)];
    world.want(&wishes, &[("coder", 0, "ada-1", vec![0], 18), ("b", 0, "ada-2", vec![0], 18)]);
    world.limits.exclude = Some(Selection::parse("ada-2").unwrap());
    let plan = world.plan();
    assert_eq!(verbs(&plan), [(Verb::Change, "coder", Because::Config)]);
    assert_eq!(plan.deferred, [put_off("b", "ada-2", "selection", Verb::Start)]);
    world.limits = Limits::default();
    world.node("ada-1").reachable = false;
    let plan = world.plan();
    assert_eq!(plan.deferred, [put_off("coder", "ada-1", "unreachable", Verb::Change)]);
    assert_eq!(plan.decay[0].kind, "node_unreachable");
    assert_eq!(
        unreachable_nodes(&world.desired, &world.inventory, &Limits::default()),
        BTreeSet::from(["ada-1".into()])
    );
}

#[test]
fn a_pause_puts_off_what_is_in_its_scope() {
    let mut world = World::new(&[("ada-1", 2)]);
    let wishes = [Wish::new("a", 1), Wish::new("b", 5)];
    world.want(&wishes, &[("a", 0, "ada-1", vec![0], 4), ("b", 0, "ada-1", vec![1], 4)]);
    let paused = |scope: &str| {
        let pause = crate::inventory::Pause { scope: scope.into(), ..Default::default() };
        let plan = plan(&PlanInput { pauses: vec![pause], ..world.input() });
        plan.deferred.iter().map(|d| format!("{} {}", d.model, d.reason)).collect::<Vec<_>>()
    };
    assert_eq!(paused("model=a"), ["a paused"]);
    assert_eq!(paused("@tier=consumer"), ["a paused", "b paused"]);
    assert_eq!(paused(""), ["a paused", "b paused"]);
    assert!(paused("other").is_empty());
}

#[test]
fn destroy_stops_what_is_ours_and_nothing_protected() {
    let mut world = coder_runs();
    let wishes = [Wish::new("coder", 12), Wish::new("b", 20)];
    world.want(&wishes, &[("coder", 0, "ada-1", vec![0], 18), ("b", 0, "ada-2", vec![0], 18)]);
    world.converge();
    world.inventory.member.protections = vec![Protection { model: "b".into(), ..Default::default() }];
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
    assert_eq!(verbs(&plan), [(Verb::Stop, "coder", Because::Removed)]);
    assert_eq!(plan.blocked[0].model, "b");
    assert!(check(&plan, &world.inventory, &world.observed).is_empty());
}

#[test]
fn a_saved_plan_is_stale_when_something_moved_and_not_when_it_wobbles() {
    let mut world = coder_runs();
    world.want(&[Wish { context: 1024, ..Wish::new("coder", 12) }], &[("coder", 0, "ada-1", vec![0], 18)]);
    let mut plan = world.plan();
    plan.guards = guards(&plan, &world.inventory);
    assert_eq!(plan.guards.keys().collect::<Vec<_>>(), ["ada-1"]);
    assert!(stale(&plan, &world.inventory).is_empty());
    let text = serde_json::to_string(&plan).unwrap();
    assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
    let said = |change: &dyn Fn(&mut World)| {
        let mut moved = world.clone();
        change(&mut moved);
        stale(&plan, &moved.inventory).join("; ")
    };
    let free = |bytes: u64| move |w: &mut World| w.node("ada-1").accelerators[0].memory.free_bytes = Some(bytes);
    assert_eq!(said(&free(23 * GIB - (200 << 20))), "");
    assert_eq!(said(&free(24 * GIB)), "");
    assert_eq!(said(&free(2 * GIB)), "ada-1: free memory of GPU-ada-1-0 23.0 GiB -> 2.0 GiB since the plan");
    assert!(said(&|w| w.node("ada-1").generation = 4).contains("generation 3 -> 4"));
    assert!(said(&|w| w.node("ada-1").reachable = false).contains("unreachable"));
    assert!(said(&|w| w.fail("coder")).contains("`coder` no longer runs"));
    assert!(said(&|w| w.node("ada-1").weights.clear()).contains("weights"));
    assert!(said(&|w| w.node("ada-1").accelerators[0].healthy = false).contains("GPU-ada-1-0 healthy -> unhealthy"));
    assert_eq!(said(&|w| w.node("ada-2").generation = 9), "");
    let applied = plan_digest(&plan).to_string();
    assert!(
        said(&|w| {
            w.inventory.member.applied = Some(crate::inventory::Applied {
                plan_digest: applied.clone(),
                by: "ada@lab".into(),
                at: "2026-01-02T03:04:05Z".into(),
                ..Default::default()
            })
        })
        .contains("this plan was applied already, by ada@lab at 2026-01-02T03:04:05Z")
    );
}

#[test]
fn no_figure_is_too_large_and_no_name_too_foreign_for_sums_and_sentences() {
    let mut world = coder_runs();
    let process = |ours| AcceleratorProcess { pid: 7, used_bytes: Some(u64::MAX), ours, ..Default::default() };
    let device = &mut world.node("ada-1").accelerators[0];
    device.memory = AcceleratorMemory { free_bytes: Some(u64::MAX), ..device.memory.clone() };
    device.processes = vec![process(true), process(true), process(false), process(false)];
    let specs = world.observed.get_mut("ada-1").unwrap();
    specs.push(InstanceSpec { instance: "other".into(), ..specs[0].clone() });
    specs.iter_mut().for_each(|spec| {
        spec.planned_bytes.fill(u64::MAX);
        spec.planned_host_bytes = u64::MAX;
    });
    let node = world.node("ada-1");
    node.instances.push(InstanceFacts { instance: "other".into(), ..node.instances[0].clone() });
    // What runs moves to another card, and a second model joins it.
    let wishes = [Wish { context: 1024, ..Wish::new("coder", 12) }, Wish::new("b", 20)];
    world.want(&wishes, &[("coder", 0, "ada-1", vec![1], 18), ("b", 0, "ada-1", vec![0], 18)]);
    let mut plan = world.plan();
    plan.guards = guards(&plan, &world.inventory);
    inventory_digest(&world.inventory);
    let seen = observe(&world.inventory, &world.observed);
    let decayed = decay(&world.desired, &world.inventory, &seen);
    assert!(decayed.iter().any(|decay| decay.kind == "memory_taken"), "{decayed:?}");
    assert!(stale(&plan, &world.inventory).is_empty());
    check(&plan, &world.inventory, &world.observed);
    let guard = plan.guards.get_mut("ada-1").unwrap();
    guard.facts.insert(format!("weights {}", "ß→".repeat(20)), true.into());
    guard.facts.insert("free GPU-ada-1-0".into(), u64::MAX.into());
    assert_eq!(stale(&plan, &world.inventory), ["ada-1: weights ß→ß→ß→ß→ß→ß→ß→ß→ß→ß are gone"]);
    // A plan file that puts two on one card.
    let mut world = World::new(&[("ada-1", 2)]);
    world.want(&wishes, &[("coder", 0, "ada-1", vec![0], 18), ("b", 0, "ada-1", vec![1], 18)]);
    let mut plan = world.plan();
    plan.instances[0].memory.per_accelerator[0].total_bytes = u64::MAX;
    plan.instances[1].accelerators = plan.instances[0].accelerators.clone();
    plan.instances[1].memory = plan.instances[0].memory.clone();
    let wrong = check(&plan, &world.inventory, &world.observed);
    assert!(wrong.iter().any(|text| text.contains(&format!("holds {} of", u64::MAX))), "{wrong:?}");
}

#[test]
fn the_checker_catches_broken_plans() {
    let mut world = World::new(&[("ada-1", 2)]);
    let wishes = [Wish::new("a", 1), Wish::new("b", 5)];
    world.want(&wishes, &[("a", 0, "ada-1", vec![0], 18), ("b", 0, "ada-1", vec![1], 18)]);
    let good = world.plan();
    let wrong = |change: &dyn Fn(&mut Plan)| {
        let mut plan = good.clone();
        change(&mut plan);
        !check(&plan, &world.inventory, &world.observed).is_empty()
    };
    assert!(!wrong(&|_| {}));
    assert!(wrong(&|p| p.instances[1].port = p.instances[0].port));
    assert!(wrong(&|p| p.instances[1].instance = p.instances[0].instance.clone()));
    assert!(wrong(&|p| p.steps[0].after = vec![4]));
    assert!(wrong(&|p| p.steps[1].id = 9));
    assert!(wrong(&|p| p.summary.start = 7));
    assert!(wrong(&|p| p.instances[0].accelerators[0] = "GPU-none".into()));
    assert!(wrong(&|p| p.steps[0].node = "nowhere".into()));
    let onto_one = |p: &mut Plan| {
        p.instances[1].accelerators = p.instances[0].accelerators.clone();
        p.instances[1].memory = p.instances[0].memory.clone();
        p.instances[1].spec.accelerators = p.instances[0].accelerators.clone();
    };
    assert!(wrong(&onto_one));
    let mut sick = world.clone();
    sick.node("ada-1").accelerators[0].healthy = false;
    assert!(!check(&good, &sick.inventory, &sick.observed).is_empty());
    let mut guarded = world.clone();
    guarded.apply(&good);
    guarded.want(&wishes[..1], &[("a", 0, "ada-1", vec![0], 18)]);
    let stops = guarded.plan();
    guarded.inventory.member.protections = vec![Protection { model: "b".into(), ..Default::default() }];
    assert!(!check(&stops, &guarded.inventory, &guarded.observed).is_empty());
}

#[test]
fn weights_on_a_node_are_used_where_the_agent_found_them() {
    let mut world = World::new(&[("ada-1", 1)]);
    world.want(&[Wish::new("coder", 12)], &[("coder", 0, "ada-1", vec![0], 18)]);
    let mut on_node = |path: &str, start: Option<&str>, found: Option<&str>| {
        let candidate = &mut world.candidates.get_mut("coder").unwrap().as_mut().unwrap()[0];
        candidate.source = format!("on-node:{path}");
        candidate.origin = Origin::OnNode { path: path.to_owned(), nodes: vec!["ada-1".to_owned()] };
        candidate.variant.start_file = start.map(str::to_owned);
        let weights = found.map(|folder| WeightsFound {
            source: candidate.source.clone(),
            revision: candidate.revision.clone(),
            path: Some(folder.to_owned()),
            files: Vec::new(),
            size_bytes: 1,
            complete: false,
            sha256: None,
            architecture: None,
            variants: Vec::new(),
            problem: None,
        });
        world.node("ada-1").weights = weights.into_iter().collect();
        let plan = world.plan();
        let spec = &plan.instances[0].spec;
        assert!(!format!("{spec:?}").contains('~'), "{spec:?}");
        (spec.weights[0].folder.clone(), spec.argv.join(" "))
    };
    let (folder, argv) = on_node("~/models/coder", None, Some("/data/home/models/coder"));
    assert_eq!(folder, "/data/home/models/coder");
    assert!(argv.contains(" /data/home/models/coder "), "{argv}");
    let (folder, argv) = on_node("~/m/a.gguf", Some("a.gguf"), Some("/data/home/m"));
    assert_eq!(folder, "/data/home/m");
    assert!(argv.contains(" /data/home/m/a.gguf "), "{argv}");
    // Where no agent answered, the home folder that is known.
    let (folder, argv) = on_node("~/m/a.gguf", Some("a.gguf"), None);
    assert_eq!(folder, "/home/flock/m");
    assert!(argv.contains(" /home/flock/m/a.gguf "), "{argv}");
    let (folder, argv) = on_node("/m", Some("sub/a.gguf"), None);
    assert_eq!(folder, "/m");
    assert!(argv.contains(" /m/sub/a.gguf "), "{argv}");
}

#[test]
fn hundreds_of_replicas_are_planned_in_a_moment() {
    let nodes: Vec<(&'static str, u32)> =
        (0..200).map(|n| (&*Box::leak(format!("n{n:03}").into_boxed_str()), 4)).collect();
    let mut world = World::new(&nodes);
    let spots = |shift: usize| -> Vec<Spot> {
        (0..800).map(|r| ("a", r as u32, nodes[(r / 4 + shift) % 200].0, vec![(r % 4) as u32], 18)).collect()
    };
    let wish = Wish { replicas: 800, ..Wish::new("a", 1) };
    world.want(std::slice::from_ref(&wish), &spots(0));
    assert_eq!(world.converge().summary.start, 800);
    world.want(&[Wish { context: 1024, ..wish }], &spots(0));
    assert_eq!(world.converge().summary.change, 800);
    // Everything moves onto what another has: no order of moves alone can do it.
    world.want(&[Wish { context: 1024, replicas: 800, ..Wish::new("a", 1) }], &spots(100));
    let plan = world.plan();
    assert!(check(&plan, &world.inventory, &world.observed).is_empty());
    assert!(plan.summary.moves >= 400 && plan.summary.stop <= 400, "{:?}", plan.summary);
}

#[test]
fn memory_that_others_took_is_seen_before_a_load_and_our_own_is_not_theirs() {
    let mut world = coder_runs();
    world.want(&[Wish { context: 1024, ..Wish::new("coder", 12) }], &[("coder", 0, "ada-1", vec![0], 18)]);
    let plan = world.plan();
    let spec = &plan.instances[0].spec;
    let said = |free: u64, foreign: u64, ours: u64| {
        let mut node = world.inventory.node("ada-1").unwrap().clone();
        let device = &mut node.accelerators[0];
        device.memory.free_bytes = Some(free);
        let holds = |pid, used_bytes, ours| AcceleratorProcess {
            pid,
            used_bytes: Some(used_bytes),
            ours,
            ..AcceleratorProcess::default()
        };
        device.processes = vec![holds(4711, foreign, false), holds(2, ours, true)];
        memory_taken(&plan, spec, &node)
    };
    assert_eq!(said(20 * GIB, 0, 0), None);
    // What it replaces still holds its share.
    assert_eq!(said(3 * GIB, 0, 16 * GIB), None);
    assert_eq!(said(18 * GIB - (200 << 20), 0, 0), None, "within tolerance");
    let text = said(3 * GIB, 20 * GIB, 0).unwrap();
    assert!(text.contains("needs 18.0 GiB") && text.contains("has 3.0 GiB") && text.contains("4711"), "{text}");
    // A driver that does not tell is no reason to refuse.
    let mut node = world.inventory.node("ada-1").unwrap().clone();
    node.accelerators[0].memory.free_bytes = None;
    assert_eq!(memory_taken(&plan, spec, &node), None);
}
