//! What makes plans trustworthy: every guard, every port, every kind of drift and decay, nothing done in silence.

use std::collections::BTreeSet;

use super::testing::{Wish, World};
use super::*;
use crate::base::{EngineKind, GIB, Spanned};
use crate::config::LabelIs;
use crate::inventory::{AcceleratorProcess, Disk, EngineFound, MemberNode, WeightsFound, WeightsRef};
use crate::placement::{Reason, Unplaced};

/// A change of `coder` on ada-1 and a new model there whose weights come; facts of every kind are known.
fn guarded() -> (World, Plan) {
    let mut world = World::new(&[("ada-1", 2), ("ada-2", 1)]);
    world.want(&[Wish::new("coder", 12)], &[("coder", 0, "ada-1", vec![0], 18)]);
    world.converge();
    let node = world.node("ada-1");
    node.disks = vec![
        Disk { path: "/".into(), free_bytes: 9 * GIB, total_bytes: 90 * GIB },
        Disk { path: "/home".into(), free_bytes: 90 * GIB, total_bytes: 100 * GIB },
    ];
    node.ram.available_bytes = Some(64 * GIB);
    node.engines = Some(vec![EngineFound {
        kind: EngineKind::Vllm,
        version: Some("0.11.0".into()),
        path: "/opt/vllm/bin/vllm".into(),
        problem: None,
        rpc_server: None,
    }]);
    let wishes = [Wish { context: 1024, ..Wish::new("coder", 12) }, Wish::new("new", 20)];
    world.want(&wishes, &[("coder", 0, "ada-1", vec![0], 18), ("new", 0, "ada-1", vec![1], 18)]);
    let mut plan = world.plan();
    plan.guards = guards(&plan, &world.inventory);
    assert_eq!(stale(&plan, &world.inventory), Vec::<String>::new());
    (world, plan)
}

#[test]
fn every_fact_that_a_plan_relied_on_is_named_when_it_moves() {
    let (world, plan) = guarded();
    let said = |change: &dyn Fn(&mut crate::inventory::NodeFacts)| {
        let mut moved = world.clone();
        change(moved.node("ada-1"));
        stale(&plan, &moved.inventory).join("\n")
    };
    let taken = said(&|n| {
        n.accelerators[0].memory.free_bytes = Some(9 * GIB);
        n.accelerators[0].processes = vec![AcceleratorProcess {
            pid: 4711,
            used_bytes: Some(14 * GIB),
            ours: false,
            ..AcceleratorProcess::default()
        }];
    });
    assert_eq!(
        taken,
        "ada-1: free memory of GPU-ada-1-0 23.0 GiB -> 9.0 GiB since the plan; process 4711 holds 14.0 GiB"
    );
    assert_eq!(
        said(&|n| n.accelerators[0].memory.free_bytes = None),
        "ada-1: free memory of GPU-ada-1-0 23.0 GiB -> unknown"
    );
    assert_eq!(
        said(&|n| n.accelerators[1].memory.total_bytes = Some(12 * GIB)),
        "ada-1: total memory of GPU-ada-1-1 24.0 GiB -> 12.0 GiB since the plan"
    );
    assert_eq!(said(&|n| n.accelerators[1].healthy = false), "ada-1: accelerator GPU-ada-1-1 healthy -> unhealthy");
    let lost = said(&|n| drop(n.accelerators.remove(1)));
    assert_eq!(lost, "ada-1: accelerator GPU-ada-1-1 is gone");
    let engine = |change: &dyn Fn(&mut EngineFound)| said(&|n| change(&mut n.engines.as_mut().unwrap()[0]));
    assert_eq!(engine(&|e| e.version = Some("0.12.0".into())), "ada-1: engine /opt/vllm/bin/vllm 0.11.0 -> 0.12.0");
    assert_eq!(engine(&|e| e.path = "/usr/bin/vllm".into()), "ada-1: engine /opt/vllm/bin/vllm 0.11.0 -> absent");
    assert_eq!(
        engine(&|e| e.problem = Some("no libcudart".into())),
        "ada-1: engine /opt/vllm/bin/vllm 0.11.0 -> unusable (no libcudart)"
    );
    assert_eq!(
        said(&|n| n.disks[1].free_bytes = 3 * GIB),
        "ada-1: free space of /home 90.0 GiB -> 3.0 GiB since the plan, which needs 4.0 GiB"
    );
    assert_eq!(
        said(&|n| n.ram.available_bytes = Some(GIB)),
        "ada-1: available host memory 64.0 GiB -> 1.0 GiB since the plan, which needs 2.0 GiB"
    );
    let new = plan.instances.iter().find(|i| i.model == "new").unwrap();
    let all: Vec<u16> = std::iter::once(new.port).chain(new.port_alternates.iter().copied()).collect();
    let ports = said(&|n| n.ports_in_use.clone_from(&all));
    assert!(ports.starts_with(&format!("ada-1: ports {}, ", new.port)), "{ports}");
    assert!(ports.ends_with("of new/0 free -> taken since the plan"), "{ports}");
    let internal = said(&|n| n.ports_in_use.clone_from(&new.spec.internal_ports));
    assert!(internal.contains("internal ports") && internal.contains("new/0"), "{internal}");
    assert!(said(&|n| n.weights.clear()).starts_with("ada-1: weights sha256:"));
    assert!(said(&|n| n.instances.clear()).contains("`coder` is gone"));
    assert!(said(&|n| n.generation = 9).contains("another apply has been here (generation 3 -> 9"));
    assert_eq!(said(&|n| n.reachable = false), "ada-1: unreachable since the plan");
}

#[test]
fn what_wobbles_or_was_not_relied_on_makes_no_plan_stale() {
    let (world, plan) = guarded();
    let new = plan.instances.iter().find(|i| i.model == "new").unwrap().clone();
    let mut moved = world.clone();
    let node = moved.node("ada-1");
    node.accelerators[0].memory.free_bytes = Some(23 * GIB - TOLERANCE_BYTES);
    node.accelerators[1].memory.free_bytes = Some(24 * GIB);
    node.ram.available_bytes = Some(8 * GIB);
    node.disks[0].free_bytes = 0;
    node.disks[1].free_bytes = 50 * GIB;
    // One port is taken, and an alternate is left; the port of what runs is its own.
    node.ports_in_use = vec![new.port, plan.instances[0].port];
    node.taken_at = Some("2026-05-05T05:05:05Z".into());
    node.instances[0].load_ms = Some(1);
    let other = moved.node("ada-2");
    other.generation = 77;
    other.accelerators.clear();
    assert_eq!(stale(&plan, &moved.inventory), Vec::<String>::new());
    let mut away = world.clone();
    away.node("ada-2").reachable = false;
    assert_eq!(stale(&plan, &away.inventory), Vec::<String>::new());
}

#[test]
fn files_that_flock_does_not_bring_are_guarded_by_what_they_were() {
    let mut world = World::new(&[("ada-1", 1)]);
    world.want(&[Wish::new("coder", 12)], &[("coder", 0, "ada-1", vec![0], 18)]);
    let mut plan = world.plan();
    let weights = WeightsRef { revision: None, folder: "/data/coder".into(), files: vec!["a.gguf".into()] };
    plan.instances[0].spec.weights = vec![weights];
    let found = |revision: &str| WeightsFound {
        source: "on-node:/data/coder".into(),
        revision: revision.into(),
        path: Some("/data/coder".into()),
        files: vec!["a.gguf".into()],
        size_bytes: 1,
        complete: false,
        sha256: None,
        architecture: None,
        variants: Vec::new(),
        problem: None,
    };
    world.node("ada-1").weights = vec![found("sha256:aa")];
    plan.guards = guards(&plan, &world.inventory);
    assert!(stale(&plan, &world.inventory).is_empty());
    world.node("ada-1").weights = vec![found("sha256:bb")];
    assert_eq!(stale(&plan, &world.inventory), ["ada-1: the files in /data/coder sha256:aa -> sha256:bb"]);
    world.node("ada-1").weights.clear();
    assert_eq!(stale(&plan, &world.inventory), ["ada-1: the files in /data/coder sha256:aa -> absent"]);
}

#[test]
fn a_prefetch_is_the_fetches_of_the_plan_and_nothing_else() {
    let (mut world, plan) = guarded();
    let only = only_fetches(&plan);
    assert!(!only.steps.is_empty() && only.steps.iter().all(|step| step.verb == Verb::Fetch));
    assert_eq!((only.summary.fetch, only.summary.start, only.summary.change), (plan.summary.fetch, 0, 0));
    assert_eq!(check(&only, &world.inventory, &world.observed), Vec::<String>::new());
    let before = world.inventory.nodes[0].instances.clone();
    world.apply(&only);
    assert_eq!(world.inventory.nodes[0].instances, before);
    assert!(only_fetches(&world.plan()).steps.is_empty());
    assert_eq!(world.plan().summary.start, 1);
}

#[test]
fn the_seal_breaks_at_any_change() {
    let (_, mut plan) = guarded();
    plan.seal = Some(seal(&plan).to_string());
    let text = serde_json::to_string(&plan).unwrap();
    for (from, to) in [("\"coder\"", "\"c0der\""), ("\"generation\":3", "\"generation\":4"), ("1024", "2048")] {
        let changed: Plan = serde_json::from_str(&text.replace(from, to)).unwrap();
        assert_ne!(changed.seal, Some(seal(&changed).to_string()), "{from}");
    }
    let same: Plan = serde_json::from_str(&text).unwrap();
    assert_eq!(same.seal, Some(seal(&same).to_string()));
}

#[test]
fn all_ports_of_all_instances_of_a_node_are_their_own_and_stay() {
    let mut world = World::new(&[("ada-1", 2)]);
    let wishes = [Wish::new("a", 1), Wish::new("b", 5)];
    let spots = [("a", 0, "ada-1", vec![0], 4), ("b", 0, "ada-1", vec![1], 4)];
    world.want(&wishes, &spots);
    world.placement.instances[1].engine = EngineKind::Sglang;
    let plan = world.converge();
    let all = |plan: &Plan| -> Vec<u16> {
        let of =
            |i: &PlannedInstance| [vec![i.port], i.port_alternates.clone(), i.spec.internal_ports.clone()].concat();
        plan.instances.iter().flat_map(of).collect()
    };
    assert_eq!(all(&plan).len(), all(&plan).iter().collect::<BTreeSet<_>>().len());
    let (a, b) = (&plan.instances[0], &plan.instances[1]);
    assert_eq!((a.spec.internal_ports.len(), b.spec.internal_ports.len()), (4, 1));
    assert_eq!(a.spec.env["VLLM_PORT"], a.spec.internal_ports[0].to_string());
    let flag = b.spec.argv.iter().position(|word| word == "--nccl-port").unwrap();
    assert_eq!(b.spec.argv[flag + 1], b.spec.internal_ports[0].to_string());
    // They are no part of what an instance is: a running one keeps them, and so does a changed one.
    let ports = |plan: &Plan| (plan.instances[0].port, plan.instances[0].spec.internal_ports.clone());
    world.node("ada-1").ports_in_use = all(&plan);
    let again = world.plan();
    assert!(again.steps.is_empty(), "{:?}", again.steps);
    assert_eq!(ports(&again), ports(&plan));
    world.want(&[Wish { context: 1024, ..Wish::new("a", 1) }, Wish::new("b", 5)], &spots);
    world.placement.instances[1].engine = EngineKind::Sglang;
    let changed = world.plan();
    assert_eq!((changed.summary.change, ports(&changed)), (1, ports(&plan)));
    assert!(!changed.steps[0].detail.contains("VLLM_PORT"), "{}", changed.steps[0].detail);
    // Its own listeners are no reason to call a saved change stale.
    world.node("ada-1").ports_in_use = vec![a.port, a.spec.internal_ports[0], b.port, b.spec.internal_ports[0]];
    world.want(&[Wish::new("a", 1), Wish { context: 1024, ..Wish::new("b", 5) }], &spots);
    world.placement.instances[1].engine = EngineKind::Sglang;
    let mut saved = world.plan();
    saved.guards = guards(&saved, &world.inventory);
    assert_eq!((saved.summary.change, stale(&saved, &world.inventory)), (1, Vec::new()));
    // Released with the instance.
    world.want(&wishes[..1], &spots[..1]);
    let stopped = world.plan();
    world.apply(&stopped);
    world.node("ada-1").ports_in_use = vec![a.port];
    let freed = b.port;
    world.want(&wishes, &spots);
    assert_eq!(world.plan().instances[1].port, freed);
}

#[test]
fn ports_lie_outside_the_ephemeral_range_as_long_as_there_are_any() {
    let mut world = World::new(&[("ada-1", 2)]);
    world.node("ada-1").ip_local_port_range = Some([20000, 20499]);
    let wishes = [Wish::new("a", 1), Wish::new("b", 5)];
    world.want(&wishes, &[("a", 0, "ada-1", vec![0], 4), ("b", 0, "ada-1", vec![1], 4)]);
    let plan = world.plan();
    assert_eq!((plan.instances[0].port, plan.instances[0].spec.internal_ports[0]), (20500, 20501));
    assert_eq!(plan.warnings[0].message, "ports 20000-20999 of `ada-1` overlap its ephemeral range 20000-20499");
    // A range of the node's own is acted on, and one that is all ephemeral is used with the warning.
    world.desired.nodes.get_mut("ada-1").unwrap().ports = (20400, 20420);
    let plan = world.plan();
    assert_eq!(plan.instances[0].port, 20400);
    assert_eq!(plan.warnings[0].id, "FLK400");
    // A gap that is too small for a row is no row.
    world.node("ada-1").ports_in_use = vec![20403, 20406];
    let plan = world.plan();
    assert_eq!(
        (plan.instances[0].port, plan.instances[0].spec.internal_ports.clone()),
        (20400, vec![20407, 20408, 20409, 20410])
    );
}

#[test]
fn a_port_that_an_orphan_of_ours_holds_is_free_again_once_it_is_gone() {
    let mut world = World::new(&[("ada-1", 1)]);
    world.want(&[Wish::new("coder", 12)], &[("coder", 0, "ada-1", vec![0], 18)]);
    world.converge();
    let port = world.instance("coder").port;
    world.node("ada-1").ports_in_use = vec![port];
    // The agent lost what it was told, and the marks of the processes still say whose they are.
    world.observed.get_mut("ada-1").unwrap().clear();
    let plan = world.plan();
    assert_eq!(plan.drift[0].kind, "unmanaged");
    assert_eq!(plan.drift[0].text, "an engine of `coder` (replica 0) runs that the node agent was not told to run");
    assert_eq!(plan.instances[0].port, port, "the orphan is the wanted instance: it is taken over on its port");
}

#[test]
fn drift_and_decay_of_every_kind_that_facts_can_show() {
    let mut world = World::new(&[("ada-1", 2), ("ada-2", 1)]);
    world.want(&[Wish::new("coder", 12)], &[("coder", 0, "ada-1", vec![0], 18)]);
    world.converge();
    let kinds = |world: &World| {
        let plan = world.plan();
        let drift = plan.drift.iter().map(|d| d.kind.clone());
        drift.chain(plan.decay.iter().map(|d| d.kind.clone())).collect::<Vec<_>>()
    };
    assert!(kinds(&world).is_empty());
    let after = |change: &dyn Fn(&mut World)| {
        let mut world = world.clone();
        change(&mut world);
        kinds(&world)
    };
    assert_eq!(after(&|w| w.node("ada-1").instances.clear()), ["instance_missing"]);
    assert_eq!(after(&|w| w.fail("coder")), ["instance_failed"]);
    assert_eq!(after(&|w| w.instance("coder").specification = "sha256:other".into()), ["instance_changed"]);
    assert_eq!(after(&|w| w.node("ada-1").weights.clear()), ["file_missing"]);
    assert_eq!(after(&|w| w.observed.get_mut("ada-1").unwrap().clear()), ["unmanaged"]);
    assert_eq!(after(&|w| drop(w.node("ada-1").accelerators.remove(0))), ["accelerator_lost"]);
    assert_eq!(after(&|w| w.node("ada-1").accelerators[0].healthy = false), ["accelerator_unhealthy"]);
    assert_eq!(after(&|w| w.node("ada-2").reachable = false), ["node_unreachable"]);
    let student =
        AcceleratorProcess { pid: 9, used_bytes: Some(12 * GIB), ours: false, ..AcceleratorProcess::default() };
    let taken = |w: &mut World, card: usize| w.node("ada-1").accelerators[card].processes = vec![student.clone()];
    assert_eq!(after(&|w| taken(w, 0)), ["memory_taken"]);
    // Others on a card where nothing of ours is: none of our business.
    assert!(after(&|w| taken(w, 1)).is_empty());
    let lost = WeightsFound {
        source: "on-node:~/m/a.gguf".into(),
        revision: String::new(),
        path: None,
        files: Vec::new(),
        size_bytes: 0,
        complete: false,
        sha256: None,
        architecture: None,
        variants: Vec::new(),
        problem: Some("No such file or directory (os error 2)".into()),
    };
    let on_node = WeightsRef { revision: None, folder: "/home/flock/m".into(), files: vec!["a.gguf".into()] };
    let found = after(&|w| {
        w.observed.get_mut("ada-1").unwrap()[0].weights = vec![on_node.clone()];
        w.node("ada-1").weights.push(lost.clone());
    });
    assert_eq!(found, ["file_missing"]);
}

#[test]
fn what_could_run_on_a_node_that_is_away_waits_for_it() {
    let mut world = World::new(&[("ada-1", 1), ("ada-2", 1), ("cpu-1", 0)]);
    world.want(&[Wish::new("coder", 12)], &[]);
    let label = LabelIs { label: "tier".into(), is: "consumer".into() };
    let place = super::testing::at("cluster.kdl", 14);
    world.desired.models.get_mut("coder").unwrap().place.require = vec![Spanned::new(label, place)];
    world.desired.nodes.get_mut("cpu-1").unwrap().labels.clear();
    let away = |node: &str| Reason {
        alike: 0,
        node: node.into(),
        constraint: "unreachable".into(),
        needed: None,
        available: None,
        unit: None,
        text: "the node cannot be reached".into(),
    };
    for node in ["ada-1", "ada-2", "cpu-1"] {
        world.node(node).reachable = false;
    }
    world.inventory.member.nodes = vec![MemberNode { name: "ada-1".into(), ..Default::default() }];
    world.placement.unplaced = vec![Unplaced {
        model: "coder".into(),
        replicas: 1,
        required: true,
        reasons: vec![away("ada-1"), away("ada-2"), away("cpu-1")],
        nearest: String::new(),
        together: Vec::new(),
    }];
    let plan = world.plan();
    let said: Vec<_> = plan.deferred.iter().map(|d| (d.model.as_str(), d.node.as_str(), d.reason.as_str())).collect();
    assert_eq!(said, [("coder", "ada-1", "unreachable"), ("coder", "ada-2", "absent")]);
    assert_eq!((plan.summary.deferred, plan.summary.unplaced), (2, 1));
    assert!(check(&plan, &world.inventory, &world.observed).is_empty());
    world.limits.exclude = Some(Selection::parse("ada-1").unwrap());
    assert_eq!(world.plan().deferred.len(), 1);
}

#[test]
fn a_way_out_that_a_saved_plan_chose_must_still_be_there() {
    let (mut world, mut plan) = guarded();
    let way = |node: &str, rtt_us: Option<u64>| crate::inventory::EgressLink {
        node: node.to_owned(),
        endpoint: "api.example:443".to_owned(),
        rtt_us,
        age_ms: None,
        unknown: Default::default(),
    };
    world.inventory.egress = vec![way("ada-1", Some(60_000)), way("ada-2", Some(20_000))];
    plan.egress = vec![Egress {
        agent: Some("planner".to_owned()),
        provider_model: "opus".to_owned(),
        node: "ada-2".to_owned(),
        rtt_us: Some(20_000),
        endpoint: "api.example:443".to_owned(),
        expected_us: Some(20_000),
        because: "nearest".to_owned(),
        others: Vec::new(),
    }];
    // No step touches its node.
    assert!(!touched(&plan.steps).contains("ada-2"), "{:?}", plan.steps);
    plan.guards = guards(&plan, &world.inventory);
    assert!(plan.guards["ada-2"].facts.contains_key("egress api.example:443"), "{:?}", plan.guards["ada-2"]);
    let said = |rtt: Option<Option<u64>>| {
        let mut moved = world.inventory.clone();
        moved.egress = rtt.map(|rtt| way("ada-2", rtt)).into_iter().collect();
        stale(&plan, &moved)
    };
    let none = Vec::<String>::new();
    // A wobble, a better way, and a figure that nobody has any more are no reason.
    for fine in [Some(Some(20_000)), Some(Some(24_000)), Some(Some(900)), None] {
        assert_eq!(said(fine), none, "{fine:?}");
    }
    assert_eq!(said(Some(Some(24_001))), ["ada-2: the way to api.example:443 20.0 ms -> 24.0 ms since the plan"]);
    assert_eq!(said(Some(None)), ["ada-2: api.example:443 was reached from here, and is not any more"]);
    world.node("ada-2").reachable = false;
    assert_eq!(stale(&plan, &world.inventory), ["ada-2: unreachable since the plan"]);
}
