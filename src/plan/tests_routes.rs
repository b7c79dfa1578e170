//! The way that weights take to a node, rule by rule.

use super::testing::{COMMIT, HUB, Wish, World, at};
use super::*;
use crate::base::{Bytes, GIB, Spanned};
use crate::inventory::{EgressLink, FetchFile, HubFiles, NodeLink, WeightsFound};

/// What a gigabit cable gives.
const GIGABIT: u64 = 117_400_000;

/// A model of the hub that all of these nodes shall run.
fn hub_model(nodes: &[(&'static str, u32)]) -> World {
    let mut world = World::new(nodes);
    let replicas = nodes.len() as u32;
    let spots: Vec<_> =
        nodes.iter().enumerate().map(|(index, (node, _))| ("coder", index as u32, *node, vec![0], 18)).collect();
    world.want(&[Wish { replicas, ..Wish::new("coder", 3) }], &spots);
    world.put_on_hub();
    world
}

fn reaches(world: &mut World, node: &str, rtt_us: Option<u64>) {
    world.inventory.egress.retain(|way| way.node != node);
    let why = rtt_us.is_none().then(|| ("rtt_us".to_owned(), "no route to host".to_owned()));
    world.inventory.egress.push(EgressLink {
        node: node.to_owned(),
        endpoint: "hub.example:443".to_owned(),
        rtt_us,
        age_ms: None,
        unknown: why.into_iter().collect(),
    });
}

fn link(world: &mut World, from: &str, to: &str, bytes_per_s: Option<u64>) {
    world.inventory.links.push(NodeLink {
        from: from.to_owned(),
        to: to.to_owned(),
        rtt_us: Some(180),
        bandwidth_bytes_per_s: bytes_per_s,
        measured: bytes_per_s.is_some(),
        ..NodeLink::default()
    });
}

/// The node has all files of the only model.
fn has(world: &mut World, node: &str) {
    let found = world.candidates["coder"].as_ref().unwrap()[0].clone();
    world.node(node).weights.push(WeightsFound {
        source: found.source,
        revision: found.revision,
        path: Some(format!("/home/flock/weights/{node}")),
        files: vec!["model.safetensors".to_owned()],
        size_bytes: 4 * GIB,
        complete: true,
        sha256: None,
        architecture: None,
        variants: Vec::new(),
        problem: None,
    });
}

/// Plans and checks; node and route of every fetch.
fn routes(world: &World) -> (Plan, Vec<String>) {
    let plan = world.plan();
    assert_eq!(check(&plan, &world.inventory, &world.observed), Vec::<String>::new(), "{:#?}", plan.steps);
    assert_eq!(serde_json::to_string(&plan).unwrap(), serde_json::to_string(&world.plan()).unwrap());
    let fetches = plan.steps.iter().filter(|step| step.verb == Verb::Fetch);
    let routes = fetches.map(|step| format!("{} {}", step.node, step.route.as_deref().unwrap_or("-"))).collect();
    (plan, routes)
}

fn from(plan: &Plan, node: &str) -> FetchFrom {
    fetch(plan, node).fetch.as_ref().unwrap().from.clone()
}

fn fetch<'a>(plan: &'a Plan, node: &str) -> &'a Step {
    plan.steps.iter().find(|step| step.verb == Verb::Fetch && step.node == node).unwrap()
}

fn hub_files() -> HubFiles {
    HubFiles { endpoint: HUB.to_owned(), repository: "lab/coder".to_owned(), commit: COMMIT.to_owned() }
}

#[test]
fn a_node_downloads_itself_unless_it_was_seen_not_to_reach_the_hub() {
    let mut world = hub_model(&[("a", 1), ("b", 1), ("c", 1)]);
    reaches(&mut world, "a", Some(8_200));
    reaches(&mut world, "c", None);
    let (plan, found) = routes(&world);
    assert_eq!(found, ["a hub", "b hub", "c controller"]);
    assert_eq!(from(&plan, "a"), FetchFrom::Hub(hub_files()));
    assert_eq!(from(&plan, "c"), FetchFrom::Relay(hub_files()));
    let details: Vec<&str> = ["a", "b", "c"].map(|node| fetch(&plan, node).detail.as_str()).into();
    assert_eq!(
        details,
        [
            "coder/0 reads awq-int4 of hf:lab/coder; a reaches https://hub.example",
            "coder/1 reads awq-int4 of hf:lab/coder; whether b reaches https://hub.example was not measured",
            "coder/2 reads awq-int4 of hf:lab/coder; c does not reach https://hub.example (no route to host)",
        ]
    );
    // 4 GiB at the rate that is expected where nothing is measured.
    assert_eq!(fetch(&plan, "a").estimated_ms, Some(85_899));
    // A projector is told where it comes along, and only there.
    let projector = FetchFile { name: "sub/mmproj-f16.gguf".to_owned(), size_bytes: 9, sha256: None };
    for comes in [false, true] {
        let mut seeing = world.clone();
        let found = &mut seeing.candidates.get_mut("coder").unwrap().as_mut().unwrap()[0];
        found.projector = Some(projector.clone());
        found.files.extend(comes.then(|| projector.clone()));
        let detail = fetch(&seeing.plan(), "a").detail.clone();
        assert_eq!(
            detail.contains(" of hf:lab/coder, and the vision projector mmproj-f16.gguf; a reaches"),
            comes,
            "{detail}"
        );
    }
    // What a node said of another hub says nothing of this one.
    for way in &mut world.inventory.egress {
        way.endpoint = "hub.example:8443".to_owned();
    }
    assert_eq!(routes(&world).1, ["a hub", "b hub", "c hub"]);
}

#[test]
fn a_node_that_has_the_files_sends_them_where_the_way_is_not_slower() {
    for hub in [true, false] {
        let mut world = hub_model(&[("a", 1), ("b", 1)]);
        if !hub {
            world.want(&[Wish { replicas: 2, ..Wish::new("coder", 3) }], &[("coder", 0, "b", vec![0], 18)]);
        }
        has(&mut world, "a");
        let outside = if hub { "b hub" } else { "b controller" };
        assert_eq!(routes(&world).1, [outside], "no way was measured");
        link(&mut world, "b", "a", None);
        assert_eq!(routes(&world).1, [outside], "they did not meet");
        world.inventory.links.clear();
        link(&mut world, "b", "a", Some(11_700_000));
        assert_eq!(routes(&world).1, [outside], "100 Mbit/s are slower than what the hub is expected to give");
        world.inventory.links.clear();
        link(&mut world, "b", "a", Some(50_000_000));
        let (plan, found) = routes(&world);
        assert_eq!(found, ["b node:a"], "as fast is enough");
        let FetchFrom::Node { node, folder, otherwise } = from(&plan, "b") else { panic!("another node") };
        assert_eq!((node.as_str(), folder.as_str()), ("a", "/home/flock/weights/a"));
        let folder = FetchFrom::Folder("/srv/models/coder".to_owned());
        assert_eq!(*otherwise, if hub { FetchFrom::Hub(hub_files()) } else { folder });
        assert!(fetch(&plan, "b").detail.ends_with("; a has the files and sends 50 MB/s or more"));
        // Whichever end connected when it was measured.
        world.inventory.links[0].from = "a".to_owned();
        world.inventory.links[0].to = "b".to_owned();
        assert_eq!(routes(&world).1, ["b node:a"]);
    }
}

#[test]
fn the_fastest_sends_and_of_equals_the_first_by_name() {
    let mut world = hub_model(&[("a", 1), ("b", 1), ("c", 1), ("d", 1)]);
    for node in ["a", "b", "c"] {
        has(&mut world, node);
    }
    link(&mut world, "d", "a", Some(GIGABIT));
    link(&mut world, "d", "b", Some(1_180_000_000));
    link(&mut world, "d", "c", Some(1_090_000_000));
    let (plan, found) = routes(&world);
    assert_eq!(found, ["d node:b"], "b and c are as fast as each other");
    assert_eq!(fetch(&plan, "d").estimated_ms, Some(4_294));
    // A wobble moves nothing.
    world.inventory.links[1].bandwidth_bytes_per_s = Some(1_010_000_000);
    world.inventory.links[2].bandwidth_bytes_per_s = Some(1_240_000_000);
    let (again, _) = routes(&world);
    assert_eq!(again.steps, plan.steps);
    // Nobody who is left out, away, or without an address sends.
    world.limits.exclude = Some(Selection::parse("b").unwrap());
    assert_eq!(routes(&world).1, ["d node:c"]);
    world.desired.nodes.get_mut("c").unwrap().connection = crate::config::Connection::Local;
    assert_eq!(routes(&world).1, ["d node:a"]);
    world.node("a").reachable = false;
    assert_eq!(routes(&world).1, ["d hub"]);
}

#[test]
fn what_two_nodes_need_comes_once_from_the_hub_where_the_way_between_them_is_faster() {
    let mut world = hub_model(&[("a", 1), ("b", 1)]);
    link(&mut world, "a", "b", Some(50_000_000));
    assert_eq!(routes(&world).1, ["a hub", "b hub"], "no faster");
    world.inventory.links.clear();
    link(&mut world, "a", "b", Some(GIGABIT));
    let (plan, found) = routes(&world);
    assert_eq!(found, ["a hub", "b node:a"]);
    let (first, second) = (fetch(&plan, "a"), fetch(&plan, "b"));
    assert_eq!((first.after.as_slice(), second.after.as_slice()), (&[][..], &[first.id][..]));
    assert!(second.detail.ends_with("; a gets the files first and sends 100 MB/s or more"), "{}", second.detail);
    let FetchFrom::Node { folder, otherwise, .. } = from(&plan, "b") else { panic!("another node") };
    assert_eq!(folder, first.fetch.as_ref().unwrap().fetch.folder);
    assert_eq!(*otherwise, FetchFrom::Hub(hub_files()));
    let start = plan.steps.iter().find(|step| step.verb == Verb::Start && step.node == "b").unwrap();
    assert_eq!(start.after, [second.id]);

    // Who reaches the hub gets them first, whatever the names are.
    reaches(&mut world, "a", None);
    let (plan, found) = routes(&world);
    assert_eq!(found, ["b hub", "a node:b"]);
    let FetchFrom::Node { otherwise, .. } = from(&plan, "a") else { panic!("another node") };
    assert_eq!(*otherwise, FetchFrom::Relay(hub_files()));

    // A node that is left out takes nobody's way away.
    world.inventory.egress.clear();
    world.limits.on = Some(Selection::parse("b").unwrap());
    assert_eq!(routes(&world).1, ["b hub"]);
    world.limits = Limits::default();
    world.node("a").reachable = false;
    assert_eq!(routes(&world).1, ["b hub"]);
}

#[test]
fn many_nodes_send_on_side_by_side() {
    let names = [("a", 1), ("b", 1), ("c", 1), ("d", 1)];
    let mut world = hub_model(&names);
    for (index, (from, _)) in names.iter().enumerate() {
        for (to, _) in &names[index + 1..] {
            link(&mut world, from, to, Some(1_180_000_000));
        }
    }
    let (plan, found) = routes(&world);
    assert_eq!(found, ["a hub", "b node:a", "c node:a", "d node:b"], "a is busy with c when d could come");
    assert_eq!(fetch(&plan, "d").after, [fetch(&plan, "b").id]);
}

#[test]
fn a_limit_of_the_policies_is_shared_by_those_who_run_at_the_same_time() {
    let mut world = hub_model(&[("a", 1), ("b", 1), ("c", 1)]);
    let limit = |bytes| Some(Spanned::new(Bytes(bytes), at("policies/lab.kdl", 2)));
    world.desired.policies.download = limit(30_000_000);
    let (plan, _) = routes(&world);
    assert!(plan.blocked.is_empty(), "it is enforced: {:?}", plan.blocked);
    for node in ["a", "b", "c"] {
        let step = fetch(&plan, node);
        assert_eq!(step.fetch.as_ref().unwrap().limit_bytes_per_s, Some(10_000_000));
        assert_eq!(step.estimated_ms, Some(429_496), "4 GiB at a third of the limit");
    }
    // One after the other each has all of it.
    link(&mut world, "a", "b", Some(GIGABIT));
    link(&mut world, "b", "c", Some(GIGABIT));
    assert_eq!(routes(&world).1, ["a hub", "b hub", "c hub"], "under the limit no way is faster");
    world.desired.policies.download = limit(80_000_000);
    let (plan, found) = routes(&world);
    assert_eq!(found, ["a hub", "b node:a", "c node:b"]);
    assert_eq!(fetch(&plan, "c").fetch.as_ref().unwrap().limit_bytes_per_s, Some(80_000_000));
    assert_eq!(fetch(&plan, "c").estimated_ms, Some(53_687));
    assert_eq!(fetch(&plan, "a").estimated_ms, Some(85_899), "no faster than the hub is expected to be");
    // Whatever a config says, nothing stands still.
    world.desired.policies.download = limit(1);
    assert_eq!(fetch(&routes(&world).0, "a").fetch.as_ref().unwrap().limit_bytes_per_s, Some(1));
}

#[test]
fn weights_of_a_replacement_come_before_what_runs_stops() {
    let mut world = hub_model(&[("a", 1), ("b", 1)]);
    world.converge();
    link(&mut world, "a", "b", Some(GIGABIT));
    // Another variant in its place, for both.
    let spots = [("coder", 0, "a", vec![0], 18), ("coder", 1, "b", vec![0], 18)];
    world.want(&[Wish { replicas: 2, weights: "v2", variant: "fp8", ..Wish::new("coder", 3) }], &spots);
    world.put_on_hub();
    let (plan, found) = routes(&world);
    assert_eq!(found, ["a hub", "b node:a"]);
    for node in ["a", "b"] {
        let change = plan.steps.iter().find(|step| step.verb == Verb::Change && step.node == node).unwrap();
        assert_eq!(change.after, [fetch(&plan, node).id]);
    }
    let prefetch = only_fetches(&plan);
    assert_eq!(prefetch.steps.iter().map(|step| step.after.clone()).collect::<Vec<_>>(), [vec![], vec![1]]);
    assert_eq!(check(&prefetch, &world.inventory, &world.observed), Vec::<String>::new());

    // Two that change places: what stops to make room stops once the weights of both are there.
    let mut world = World::new(&[("a", 1), ("b", 1)]);
    let wishes = [Wish::new("one", 3), Wish::new("two", 9)];
    world.want(&wishes, &[("one", 0, "a", vec![0], 18), ("two", 0, "b", vec![0], 18)]);
    world.put_on_hub();
    world.converge();
    world.want(&wishes, &[("one", 0, "b", vec![0], 18), ("two", 0, "a", vec![0], 18)]);
    world.put_on_hub();
    let (plan, _) = routes(&world);
    let ids = |verb: Verb| plan.steps.iter().filter(|step| step.verb == verb).map(|step| step.id).collect::<Vec<_>>();
    let stop = plan.steps.iter().find(|step| step.verb == Verb::Stop).expect("one makes room");
    assert!(ids(Verb::Fetch).iter().any(|id| stop.after.contains(id)), "{:#?}", plan.steps);
    assert_eq!(world.converge().steps.len(), plan.steps.len());
}

#[test]
fn a_saved_plan_relies_on_the_node_that_sends() {
    let mut world = hub_model(&[("a", 1), ("b", 1)]);
    has(&mut world, "a");
    link(&mut world, "b", "a", Some(GIGABIT));
    world.want(&[Wish::new("coder", 3)], &[("coder", 0, "b", vec![0], 18)]);
    world.put_on_hub();
    let (mut plan, found) = routes(&world);
    assert_eq!(found, ["b node:a"]);
    assert_eq!(touched(&plan.steps).into_iter().collect::<Vec<_>>(), ["a", "b"]);
    plan.guards = guards(&plan, &world.inventory);
    assert_eq!(stale(&plan, &world.inventory), Vec::<String>::new());
    let read: Plan = serde_json::from_str(&serde_json::to_string(&plan).unwrap()).unwrap();
    assert_eq!(read, plan);
    world.node("a").weights.clear();
    let moved = stale(&plan, &world.inventory);
    assert!(
        moved.len() == 1 && moved[0].starts_with("a: weights sha256:") && moved[0].ends_with("are gone"),
        "{moved:?}"
    );
}

#[test]
fn the_checker_sees_a_sender_that_cannot_send() {
    let mut world = hub_model(&[("a", 1), ("b", 1)]);
    link(&mut world, "a", "b", Some(GIGABIT));
    let (plan, _) = routes(&world);
    let wrong = |change: &dyn Fn(&mut Plan)| {
        let mut plan = plan.clone();
        change(&mut plan);
        check(&plan, &world.inventory, &world.observed)
    };
    let at = |plan: &mut Plan, node: &str| plan.steps.iter().position(|step| step.node == node).unwrap();
    let unordered = wrong(&|plan| {
        let second = at(plan, "b");
        plan.steps[second].after.clear();
    });
    assert_eq!(unordered, ["step 2 takes files from a, which cannot send them"]);
    let renamed = wrong(&|plan| {
        let second = at(plan, "b");
        plan.steps[second].route = Some("hub".to_owned());
    });
    assert_eq!(renamed, ["step 2 says another way than its files take"]);
}
