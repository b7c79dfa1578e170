//! Plans of instances over several nodes.

use super::testing::*;
use super::*;
use crate::base::EngineKind;
use crate::placement::Elsewhere;

/// `m` serves on a card of `serving` with workers on a card each of the others.
fn spread_over(world: &mut World, serving: &'static str, others: &[&str]) {
    world.want(&[Wish::new("m", 1)], &[("m", 0, serving, vec![0], 18)]);
    let placed = &mut world.placement.instances[0];
    placed.engine = EngineKind::LlamaCpp;
    placed.engine_version = Some("9999".to_owned());
    placed.program = "/opt/llama/llama-server".to_owned();
    let all = 1 + others.len() as u32;
    placed.pipeline_parallel = all;
    placed.layers = (0..all).map(|stage| 32 / all + u32::from(stage < 32 % all)).collect();
    let (host, memory) = (placed.host, placed.per_accelerator.clone());
    placed.elsewhere = others
        .iter()
        .enumerate()
        .map(|(number, node)| Elsewhere {
            node: (*node).to_owned(),
            accelerators: vec![uuid(node, 0)],
            per_accelerator: memory.clone(),
            host,
            worker: Some(("/opt/llama/ggml-rpc-server".to_owned(), format!("10.0.1.{number}"))),
        })
        .collect();
}

fn world() -> World {
    let mut world = World::new(&[("a", 1), ("b", 1), ("c", 1)]);
    spread_over(&mut world, "a", &["b", "c"]);
    world
}

/// Verb, node, and the nodes of the steps before, in order.
fn steps(plan: &Plan) -> Vec<(Verb, &str, Vec<&str>)> {
    let node = |id: &u32| plan.steps[*id as usize - 1].node.as_str();
    let kept = plan.steps.iter().filter(|step| step.verb != Verb::Fetch);
    let of = |step: &'_ Step| {
        step.after.iter().filter(|id| plan.steps[**id as usize - 1].verb != Verb::Fetch).map(node).collect::<Vec<_>>()
    };
    kept.map(|step| (step.verb, step.node.as_str(), of(step))).collect()
}

fn serving(plan: &Plan) -> &PlannedInstance {
    plan.instances.iter().find(|instance| !instance.is_worker()).unwrap()
}

#[test]
fn workers_start_first_and_stay_where_nothing_changes() {
    let mut world = world();
    let plan = world.converge();
    assert_eq!(
        steps(&plan),
        [(Verb::Start, "b", vec![]), (Verb::Start, "c", vec![]), (Verb::Start, "a", vec!["b", "c"])]
    );
    // Weights are brought to the node that serves alone; it sends each worker its layers.
    assert_eq!(plan.steps.iter().filter(|s| s.verb == Verb::Fetch).map(|s| s.node.as_str()).collect::<Vec<_>>(), ["a"]);
    let serves = serving(&plan);
    assert_eq!((serves.nodes.join(" "), serves.processes.len()), ("a b c".to_owned(), 2));
    let port = |node: &str| plan.instances.iter().find(|i| i.node == node).unwrap().port;
    let at = serves.argv.iter().position(|word| word == "--rpc").unwrap();
    assert_eq!(serves.argv[at + 1], format!("10.0.1.0:{},10.0.1.1:{}", port("b"), port("c")));
    // Layers pass the workers first, and the head comes last.
    let split = serves.argv.iter().position(|word| word == "-ts").unwrap();
    assert_eq!(serves.argv[split + 1], "11,10,12");
    for worker in plan.instances.iter().filter(|instance| instance.is_worker()) {
        let expected = ["/opt/llama/ggml-rpc-server", "-H", &worker.argv[2], "-p", "{port}"].map(str::to_owned);
        assert_eq!(worker.spec.argv, expected);
        assert_eq!(
            (worker.spec.key_env.as_ref(), worker.spec.weights.len(), worker.port_alternates.len()),
            (None, 0, 0)
        );
        assert_eq!(worker.env["CUDA_VISIBLE_DEVICES"], uuid(&worker.node, 0));
        assert_eq!(worker.part.as_deref(), Some(format!("rpc:{}", worker.node).as_str()));
        assert_eq!(worker.spec.planned_bytes.len(), 1);
    }
    let again = world.plan();
    assert_eq!((steps(&again), again.summary.unchanged), (vec![], 3));
    assert_eq!(again.drift, vec![]);
}

#[test]
fn what_serves_starts_anew_with_its_worker() {
    let mut world = world();
    world.converge();
    // The worker's engine died for good, or its node knows nothing of it any more.
    let mut dead = world.clone();
    let worker = dead.node("b").instances.iter_mut().find(|i| i.is_worker()).unwrap();
    (worker.state, worker.running, worker.pid) = (crate::base::InstanceState::Failed, false, None);
    let mut forgotten = world.clone();
    forgotten.node("b").instances.clear();
    forgotten.observed.get_mut("b").unwrap().clear();
    for mut world in [dead, forgotten] {
        let plan = world.converge();
        assert_eq!(steps(&plan), [(Verb::Start, "b", vec![]), (Verb::Restart, "a", vec!["b"])]);
        assert!(plan.steps[1].detail.contains("its worker on `b` starts anew"), "{}", plan.steps[1].detail);
        assert_eq!(steps(&world.plan()), []);
    }
}

#[test]
fn it_ends_before_its_workers_and_is_never_there_twice() {
    let mut world = world();
    world.converge();
    let mut gone = world.clone();
    gone.want(&[Wish::new("other", 1)], &[]);
    gone.desired.policies.prune = Some(crate::base::Spanned::new(crate::config::Prune::Auto, at("p.kdl", 1)));
    let plan = gone.converge();
    assert_eq!(steps(&plan), [(Verb::Stop, "a", vec![]), (Verb::Stop, "b", vec!["a"]), (Verb::Stop, "c", vec!["a"])]);
    assert!(gone.inventory.nodes.iter().all(|node| node.instances.is_empty()));

    // Another split: everything of the old one ends before anything of the new one begins where it was.
    let mut other = world.clone();
    spread_over(&mut other, "b", &["a"]);
    let plan = other.converge();
    let verbs: Vec<(Verb, &str)> =
        plan.steps.iter().filter(|s| s.verb != Verb::Fetch).map(|s| (s.verb, s.node.as_str())).collect();
    assert_eq!(
        verbs,
        [(Verb::Stop, "a"), (Verb::Stop, "b"), (Verb::Stop, "c"), (Verb::Start, "a"), (Verb::Start, "b")]
    );
    assert_eq!(steps(&other.plan()), []);
    // And back to one node.
    other.want(&[Wish::new("m", 1)], &[("m", 0, "c", vec![0], 18)]);
    let plan = other.converge();
    let verbs: Vec<(Verb, &str)> =
        plan.steps.iter().filter(|s| s.verb != Verb::Fetch).map(|s| (s.verb, s.node.as_str())).collect();
    assert_eq!(verbs, [(Verb::Stop, "b"), (Verb::Stop, "a"), (Verb::Start, "c")]);
}

#[test]
fn a_node_out_of_sight_ends_nothing_that_serves() {
    let mut world = world();
    world.converge();
    // A worker's node: what serves has an answer all the same, and stays although it would be put elsewhere.
    let mut worker = world.clone();
    worker.node("c").reachable = false;
    spread_over(&mut worker, "a", &["b"]);
    let plan = worker.plan();
    assert_eq!(steps(&plan), []);
    assert!(plan.warnings.iter().any(|w| w.message.contains("it answers all the same")), "{:#?}", plan.warnings);
    // Once it does not, it is put elsewhere.
    let serves = worker.instance("m");
    (serves.state, serves.running, serves.pid) = (crate::base::InstanceState::Failed, false, None);
    let plan = worker.plan();
    assert_eq!(plan.steps.iter().filter(|s| s.verb == Verb::Start).count(), 2, "{:#?}", steps(&plan));
    // The node that serves: its workers wait for it, until the replica is to run elsewhere.
    let mut first = world.clone();
    first.node("a").reachable = false;
    first.placement.instances.clear();
    assert_eq!(steps(&first.plan()), []);
    spread_over(&mut first, "b", &["c"]);
    let plan = first.plan();
    let stops: Vec<&str> = plan.steps.iter().filter(|s| s.verb == Verb::Stop).map(|s| s.node.as_str()).collect();
    assert_eq!(stops, ["b", "c"], "{:#?}", steps(&plan));
    assert_eq!(plan.steps.iter().filter(|s| s.verb == Verb::Start).count(), 2);
}

#[test]
fn no_worker_begins_for_what_may_not() {
    let mut world = world();
    world.inventory.nodes[0].reachable = false;
    let plan = world.plan();
    assert_eq!(steps(&plan), [], "{:#?}", plan.deferred);
    assert!(plan.deferred.iter().all(|deferred| deferred.reason == "unreachable"));
    let mut narrow = self::world();
    narrow.desired.nodes.get_mut("c").unwrap().ports = (20000, 20000);
    narrow.node("c").ports_in_use = vec![20000];
    let plan = narrow.plan();
    assert_eq!((plan.instances.len(), plan.steps.len()), (0, 0));
    assert!(plan.unplaced[0].reasons[0].text.contains("no port is free in 20000-20000"), "{:#?}", plan.unplaced);
}

#[test]
fn memory_of_workers_counts_where_they_are() {
    let mut world = world();
    world.converge();
    // Something else is to have the worker's card: the instance is on one node now, and its worker ends first.
    world.want(&[Wish::new("m", 1), Wish::new("n", 1)], &[("m", 0, "a", vec![0], 18), ("n", 0, "b", vec![0], 18)]);
    let plan = world.converge();
    let start = plan.steps.iter().find(|s| s.verb == Verb::Start && s.model == "n").unwrap();
    let stop = plan.steps.iter().find(|s| s.verb == Verb::Stop && s.node == "b").unwrap();
    assert!(start.after.contains(&stop.id), "{:#?}", steps(&plan));
}

#[test]
fn protection_keeps_all_parts() {
    let mut world = world();
    world.converge();
    world
        .inventory
        .member
        .protections
        .push(crate::inventory::Protection { model: "m".to_owned(), ..Default::default() });
    spread_over(&mut world, "b", &["a"]);
    let plan = world.plan();
    assert_eq!(steps(&plan), [], "{:#?}", plan.blocked);
    assert!(plan.blocked.iter().any(|blocked| blocked.policy == "protect"));
}

#[test]
fn a_worker_whose_program_is_gone_ends_nothing_that_serves() {
    let mut world = world();
    world.converge();
    world.placement.instances[0].elsewhere[1].worker = None;
    let plan = world.plan();
    assert_eq!(steps(&plan), []);
    assert!(plan.warnings.iter().any(|warning| warning.message.contains("as it was started")), "{:?}", plan.warnings);
}
