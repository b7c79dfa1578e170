//! What runs is left as it was started, whatever is found by now; and what comes beside it has room by what it holds.

use super::testing::{CAPACITY, Wish, World, at};
use super::*;
use crate::base::{EngineKind, GIB, Spanned};
use crate::config::{Engine, EnginePath};
use crate::inventory::AcceleratorProcess;

/// `coder` runs on ada-1.
fn coder_runs() -> World {
    let mut world = World::new(&[("ada-1", 2)]);
    world.want(&[Wish::new("coder", 3)], &[("coder", 0, "ada-1", vec![0], 18)]);
    world.converge();
    world
}

fn kept(plan: &Plan) -> Vec<&str> {
    plan.warnings.iter().filter(|w| w.id == "FLK401").map(|w| w.message.as_str()).collect()
}

/// The config names this program.
fn path(world: &mut World, program: &str) {
    let spanned = |text: &str| Spanned::new(text.to_owned(), at("cluster.kdl", 9));
    let kind = Spanned::new(EngineKind::Vllm, at("cluster.kdl", 8));
    let paths = vec![EnginePath { path: spanned(program), node: None }];
    let engine = Engine { kind, version: None, paths, env: Default::default(), extras: Default::default() };
    world.desired.engines = [(EngineKind::Vllm, engine)].into();
}

#[test]
fn what_could_not_be_started_anew_is_not_touched_and_what_is_asked_of_it_waits() {
    let mut world = coder_runs();
    let before = world.plan().instances.remove(0);
    world.placement.instances[0].held = Some("vllm was not found on this node".into());
    world.placement.instances[0].program = "vllm".into();
    let plan = world.converge();
    assert!(plan.steps.is_empty(), "{:?}", plan.steps);
    assert_eq!((&plan.instances[0].instance, &plan.instances[0].argv), (&before.instance, &before.argv));
    world.want(&[Wish { context: 1024, ..Wish::new("coder", 3) }], &[("coder", 0, "ada-1", vec![0], 18)]);
    world.placement.instances[0].held = Some("vllm was not found on this node".into());
    let plan = world.converge();
    assert!(plan.steps.is_empty() && plan.summary.unchanged == 1, "{:?}", plan.steps);
    let said = "`coder` keeps running on `ada-1` as it was started, and what the config asks of it by now waits: vllm was \
                not found on this node";
    assert_eq!(kept(&plan), [said]);
    // One that does not run any more is not left alone.
    world.fail("coder");
    assert!(!world.plan().steps.is_empty());
}

#[test]
fn a_program_that_is_found_elsewhere_by_now_starts_nothing_anew() {
    let mut world = coder_runs();
    world.placement.instances[0].program = "/opt/vllm-0.12/bin/vllm".into();
    let plan = world.converge();
    assert!(plan.steps.is_empty(), "{:?}", plan.steps);
    assert_eq!(plan.instances[0].argv[0], "/opt/vllm/bin/vllm");
    let said = "`coder` keeps running /opt/vllm/bin/vllm on `ada-1`, where /opt/vllm-0.12/bin/vllm is found by now: it \
                takes its place with the next start";
    assert_eq!(kept(&plan), [said]);
    // The config's own path, of which only another is found: the same.
    path(&mut world, "/opt/vllm/bin/vllm");
    assert!(world.plan().steps.is_empty());
    // What the config asks for is done.
    path(&mut world, "/opt/vllm-0.12/bin/vllm");
    let plan = world.plan();
    assert_eq!(plan.steps.iter().map(|step| step.verb).collect::<Vec<_>>(), [Verb::Change]);
    assert!(kept(&plan).is_empty());
    // So is everything else that it asks for, with the program that is there.
    let mut world = coder_runs();
    world.want(&[Wish { context: 1024, ..Wish::new("coder", 3) }], &[("coder", 0, "ada-1", vec![0], 18)]);
    world.placement.instances[0].program = "/opt/vllm-0.12/bin/vllm".into();
    let plan = world.plan();
    assert_eq!((plan.steps[0].verb, plan.instances[0].argv[0].as_str()), (Verb::Change, "/opt/vllm-0.12/bin/vllm"));
}

#[test]
fn what_takes_the_place_of_another_fits_beside_what_holds_more_than_there_should_be() {
    // Two of 18 GiB by today's figures on a card that may give 22: each counts as 11.
    let mut world = World::new(&[("ada-1", 1)]);
    let wishes = [Wish::new("a", 3), Wish::new("b", 4)];
    world.want(&wishes, &[("a", 0, "ada-1", vec![0], 9), ("b", 0, "ada-1", vec![0], 9)]);
    world.converge();
    for node in world.observed.values_mut() {
        node.iter_mut().for_each(|spec| spec.planned_bytes = vec![18 * GIB]);
    }
    let wishes = [Wish::new("a", 3), Wish { rank: 9, ..Wish::new("c", 5) }];
    world.want(&wishes, &[("a", 0, "ada-1", vec![0], 18), ("c", 0, "ada-1", vec![0], 11)]);
    let plan = world.plan();
    let verbs: Vec<(Verb, &str)> = plan.steps.iter().map(|step| (step.verb, step.model.as_str())).collect();
    assert!(verbs.contains(&(Verb::Start, "c")) && verbs.contains(&(Verb::Stop, "b")), "{verbs:?}");
    assert!(plan.deferred.is_empty() && plan.blocked.is_empty(), "{:?} {:?}", plan.deferred, plan.blocked);
    // And its node agrees: what serves needs no more than it holds.
    let spec = &plan.instances.iter().find(|instance| instance.model == "c").unwrap().spec;
    let mut node = world.inventory.node("ada-1").unwrap().clone();
    node.instances.retain(|facts| facts.model == "a");
    let device = &mut node.accelerators[0];
    device.memory.free_bytes = Some(CAPACITY - 10 * GIB);
    device.processes =
        vec![AcceleratorProcess { pid: 1000, used_bytes: Some(10 * GIB), ours: true, ..Default::default() }];
    assert_eq!(memory_taken(&plan, spec, &node), None);
    node.instances[0].state = crate::base::InstanceState::Starting;
    assert!(memory_taken(&plan, spec, &node).is_some(), "what is still loading takes more yet");
}

/// The node has these ports.
fn range(world: &mut World, node: &str, ports: (u16, u16)) {
    world.desired.nodes.get_mut(node).unwrap().ports = ports;
}

#[test]
fn what_makes_way_gives_its_ports_to_who_waits_for_it() {
    let mut world = World::new(&[("ada-1", 1), ("ada-2", 1)]);
    range(&mut world, "ada-1", (20000, 20004));
    world.want(&[Wish::new("a", 3)], &[("a", 0, "ada-1", vec![0], 18)]);
    world.converge();
    // Another one has the whole place: the first moves away, or loses it.
    let both = [Wish::new("a", 3), Wish { rank: 9, ..Wish::new("b", 4) }];
    let moved = [("a", 0, "ada-2", vec![0], 18), ("b", 0, "ada-1", vec![0], 18)];
    for spots in [&moved[..], &moved[1..]] {
        world.want(&both, spots);
        let plan = world.plan();
        assert!(check(&plan, &world.inventory, &world.observed).is_empty());
        assert!(plan.unplaced.is_empty(), "{:?}", plan.unplaced);
        let id = |model: &str, verbs: &[Verb]| {
            let of = |step: &&Step| step.model == model && verbs.contains(&step.verb);
            plan.steps.iter().find(of).unwrap_or_else(|| panic!("{model}: {:?}", plan.steps))
        };
        let (gives, takes) = (id("a", &[Verb::Move, Verb::Stop]), id("b", &[Verb::Start]));
        assert!(takes.after.contains(&gives.id), "{:?}", plan.steps);
        let b = plan.instances.iter().find(|instance| instance.model == "b").unwrap();
        assert_eq!((b.port, b.spec.internal_ports.as_slice()), (20000, &[20001, 20002, 20003, 20004][..]));
    }
}

#[test]
fn a_copy_that_moves_within_a_node_without_ports_gives_its_own_back_first() {
    let mut world = World::new(&[("ada-1", 2)]);
    range(&mut world, "ada-1", (20000, 20004));
    world.want(&[Wish::new("a", 3)], &[("a", 0, "ada-1", vec![0], 18)]);
    world.converge();
    world.want(&[Wish::new("a", 3)], &[("a", 0, "ada-1", vec![1], 18)]);
    let plan = world.plan();
    assert!(check(&plan, &world.inventory, &world.observed).is_empty());
    let step = &plan.steps[0];
    assert_eq!((step.verb, step.interrupts, plan.instances[0].port), (Verb::Move, true, 20000));
    // With ports to spare it does not.
    range(&mut world, "ada-1", (20000, 20009));
    let plan = world.plan();
    assert_eq!((plan.steps[0].interrupts, plan.instances[0].port), (false, 20005));
}

#[test]
fn rows_are_laid_out_before_single_ports_cut_them_up() {
    let mut world = World::new(&[("ada-1", 1)]);
    range(&mut world, "ada-1", (20000, 20010));
    world.node("ada-1").ports_in_use = vec![20004, 20005, 20006, 20007, 20008, 20009];
    world.want(&[Wish::new("a", 3)], &[("a", 0, "ada-1", vec![0], 18)]);
    let plan = world.plan();
    let a = &plan.instances[0];
    assert_eq!((a.port, a.spec.internal_ports.as_slice()), (20010, &[20000, 20001, 20002, 20003][..]));
}

#[test]
fn what_runs_and_whose_own_ports_are_not_told_stays_where_none_is_free() {
    let mut world = World::new(&[("ada-1", 1)]);
    range(&mut world, "ada-1", (20000, 20004));
    world.want(&[Wish::new("a", 3)], &[("a", 0, "ada-1", vec![0], 18)]);
    world.converge();
    // As an inventory in a file has it: the instance with its port, and all ports that are in use.
    world.observed.clear();
    world.node("ada-1").ports_in_use = (20000..=20004).collect();
    let plan = world.plan();
    assert!(plan.steps.is_empty() && plan.unplaced.is_empty(), "{:?} {:?}", plan.steps, plan.unplaced);
}
