//! Properties of any plan: sound at every moment, the same bytes twice, and nothing left after it.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::testing::{CAPACITY, Spot, Wish, World, at};
use super::*;
use crate::base::{Bytes, GIB, Spanned};
use crate::config::{Prune, Share};
use crate::inventory::{NodeLink, Protection};
use crate::placement::Origin;

const NAMES: [&str; 4] = ["alpha", "beta", "gamma", "delta"];
const NODES: [(&str, u32); 2] = [("n1", 2), ("n2", 2)];

/// Raw material of a wish and its places: present, context, replicas, rank, weights, then node and cards.
type Raw = ((bool, bool, u32, u32, bool), Vec<(usize, u8)>);

fn raw() -> impl Strategy<Value = Vec<Raw>> {
    let spot = (0usize..2, 1u8..4);
    let one = ((any::<bool>(), any::<bool>(), 1u32..3, 0u32..3, any::<bool>()), prop::collection::vec(spot, 2));
    prop::collection::vec(one, NAMES.len())
}

/// Wishes with as many of their places as fit.
fn wanted(raw: &[Raw]) -> (Vec<Wish>, Vec<Spot>) {
    let mut left: BTreeMap<(usize, u32), u64> = BTreeMap::new();
    let (mut wishes, mut spots) = (Vec::new(), Vec::new());
    for (index, ((present, long, replicas, rank, newer), places)) in raw.iter().enumerate() {
        if !present {
            continue;
        }
        let name = NAMES[index];
        wishes.push(Wish {
            context: if *long { 32768 } else { 16384 },
            replicas: *replicas,
            rank: *rank,
            weights: if *newer { "v2" } else { "v1" },
            ..Wish::new(name, index * 10 + 1)
        });
        for replica in 0..*replicas {
            let (node, cards) = places[replica as usize];
            let cards: Vec<u32> = (0..2).filter(|card| cards & (1 << card) != 0).collect();
            // The same specification on the same cards needs the same memory.
            let gib = [17, 11, 7, 3][index] / cards.len() as u64 + u64::from(*long) * 2 + u64::from(*newer);
            let room = |card: &u32| *left.get(&(node, *card)).unwrap_or(&0) + gib * GIB <= CAPACITY;
            if cards.iter().all(room) {
                cards.iter().for_each(|card| *left.entry((node, *card)).or_default() += gib * GIB);
                spots.push((name, replica, NODES[node].0, cards, gib));
            }
        }
    }
    (wishes, spots)
}

/// Where weights come from and how the nodes are joined: the hub or the controller, a way between the nodes, a limit.
fn surround(world: &mut World, (hub, link, limit): (bool, Option<u64>, Option<u64>)) {
    if hub {
        for found in world.candidates.values_mut().flatten().flatten() {
            found.origin = Origin::Hub { repository: "lab/one".to_owned(), commit: "0".repeat(40) };
        }
    }
    world.inventory.links = vec![NodeLink {
        from: "n1".to_owned(),
        to: "n2".to_owned(),
        bandwidth_bytes_per_s: link,
        measured: link.is_some(),
        ..NodeLink::default()
    }];
    world.desired.policies.download = limit.map(|bytes| Spanned::new(Bytes(bytes), at("p.kdl", 3)));
}

fn surroundings() -> impl Strategy<Value = (bool, Option<u64>, Option<u64>)> {
    let rates = || prop::option::of(prop_oneof![Just(1_000_000), Just(60_000_000), Just(1_200_000_000), any::<u64>()]);
    (any::<bool>(), rates(), rates())
}

fn mishap(world: &mut World, kind: u8) {
    match kind {
        0 => {
            if let Some(model) = world.inventory.nodes[0].instances.first().map(|i| i.model.clone()) {
                world.fail(&model);
            }
        }
        1 => world.inventory.nodes[0].instances.clear(),
        2 => world.inventory.nodes[1].agent.as_mut().unwrap().supervising = false,
        3 => world.inventory.nodes[1].weights.clear(),
        _ => {}
    }
}

/// Whether anything differs between what is wanted and what is, told from the facts alone: who runs where under whose
/// eyes, and which files are there.
fn differs(world: &World, wanted: &[PlannedInstance]) -> bool {
    let should: BTreeSet<(&str, &str)> = wanted.iter().map(|i| (i.node.as_str(), i.instance.as_str())).collect();
    let told =
        world.observed.iter().flat_map(|(node, specs)| specs.iter().map(|s| (node.as_str(), s.instance.as_str())));
    let runs = world.inventory.nodes.iter().flat_map(|node| {
        node.instances
            .iter()
            .filter(|i| i.running && i.state == crate::base::InstanceState::Ready)
            .map(|i| (node.name.as_str(), i.instance.as_str()))
    });
    let unwatched = |node: &str| !world.inventory.node(node).unwrap().agent.as_ref().unwrap().supervising;
    let lacks = |i: &PlannedInstance| {
        let there = &world.inventory.node(&i.node).unwrap().weights;
        i.spec.weights.iter().any(|w| !there.iter().any(|t| Some(&t.revision) == w.revision.as_ref() && t.complete))
    };
    should != told.collect()
        || should != runs.collect()
        || should.iter().any(|(node, _)| unwatched(node))
        || wanted.iter().any(lacks)
}

/// Plays a plan with everything in parallel that may be, steps ending in a given order; memory must suffice always.
fn play(world: &World, plan: &Plan, order: &[usize]) -> Result<(), TestCaseError> {
    let mut used: BTreeMap<(String, String), BTreeMap<String, u64>> = BTreeMap::new();
    for (node, specs) in &world.observed {
        for spec in specs {
            let lives =
                world.inventory.node(node).unwrap().instances.iter().any(|i| i.instance == spec.instance && i.running);
            for (uuid, bytes) in spec.accelerators.iter().zip(&spec.planned_bytes).filter(|_| lives) {
                used.entry((node.clone(), uuid.clone())).or_default().insert(spec.instance.clone(), *bytes);
            }
        }
    }
    let forget = |used: &mut BTreeMap<(String, String), BTreeMap<String, u64>>, node: &str, id: &str| {
        used.iter_mut().filter(|(device, _)| device.0 == node).for_each(|(_, by)| {
            by.remove(id);
        });
    };
    let (mut begun, mut done) = (BTreeSet::new(), BTreeSet::new());
    let mut turn = order.iter().cycle();
    while done.len() < plan.steps.len() {
        for step in plan.steps.iter().filter(|s| s.after.iter().all(|id| done.contains(id))) {
            if !begun.insert(step.id) {
                continue;
            }
            let left = step.from_node.as_ref().unwrap_or(&step.node);
            if let Some(from) = step.from_instance.as_ref().filter(|_| step.interrupts || step.verb == Verb::Change) {
                forget(&mut used, left, from);
            }
            if matches!(step.verb, Verb::Start | Verb::Change | Verb::Move | Verb::Restart) {
                let instance = plan.instances.iter().find(|i| Some(&i.instance) == step.instance.as_ref()).unwrap();
                for m in &instance.memory.per_accelerator {
                    let device = (instance.node.clone(), m.uuid.clone());
                    used.entry(device).or_default().insert(instance.instance.clone(), m.total_bytes);
                }
            }
        }
        for (device, by) in &used {
            let sum: u64 = by.values().sum();
            prop_assert!(sum <= CAPACITY, "{device:?} holds {sum}: {:#?}", plan.steps);
        }
        let open: Vec<u32> = begun.difference(&done).copied().collect();
        prop_assert!(!open.is_empty(), "nothing can go on");
        let step = &plan.steps[open[turn.next().unwrap() % open.len()] as usize - 1];
        match (step.verb, &step.from_instance) {
            (Verb::Stop, _) => forget(&mut used, &step.node, step.instance.as_ref().unwrap()),
            (Verb::Move, Some(from)) if !step.interrupts => forget(&mut used, step.from_node.as_ref().unwrap(), from),
            _ => {}
        }
        done.insert(step.id);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_change_is_planned_soundly_and_applied_once(
        first in raw(), second in raw(), mishaps in prop::collection::vec(0u8..6, 0..3),
        order in prop::collection::vec(0usize..8, 8), around in surroundings(),
    ) {
        let mut world = World::new(&NODES);
        world.desired.policies.prune = Some(Spanned::new(Prune::Auto, at("policies/lab.kdl", 9)));
        let (wishes, spots) = wanted(&first);
        world.want(&wishes, &spots);
        surround(&mut world, around);
        let plan = world.plan();
        prop_assert_eq!(check(&plan, &world.inventory, &world.observed), Vec::<String>::new());
        world.apply(&plan);
        for kind in mishaps {
            mishap(&mut world, kind);
        }
        let (wishes, spots) = wanted(&second);
        world.want(&wishes, &spots);
        surround(&mut world, around);
        let plan = world.plan();
        let again = serde_json::to_string(&world.plan()).unwrap();
        if plan.blocked.is_empty() && plan.deferred.is_empty() {
            prop_assert_eq!(differs(&world, &plan.instances), !plan.steps.is_empty(), "{:#?}", plan.steps);
        }
        prop_assert_eq!(serde_json::to_string(&plan).unwrap(), again);
        prop_assert_eq!(check(&plan, &world.inventory, &world.observed), Vec::<String>::new());
        play(&world, &plan, &order)?;
        prop_assume!(plan.blocked.is_empty());
        world.apply(&plan);
        let rest = world.plan();
        prop_assert!(rest.steps.is_empty(), "{:#?}", rest.steps);
        prop_assert!(!differs(&world, &rest.instances));
        prop_assert!(rest.drift.is_empty(), "{:?}", rest.drift);
        prop_assert_eq!(rest.summary.unchanged as usize, rest.instances.len());
        let running: BTreeSet<String> =
            world.inventory.nodes.iter().flat_map(|n| &n.instances).map(|i| i.instance.clone()).collect();
        let planned: BTreeSet<String> = rest.instances.iter().map(|i| i.instance.clone()).collect();
        prop_assert_eq!(running, planned);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_forbidden_the_rest_is_sound(
        first in raw(), second in raw(), gates in prop::collection::vec(0u8..8, 0..4),
        order in prop::collection::vec(0usize..8, 8), around in surroundings(),
    ) {
        let mut world = World::new(&NODES);
        let (wishes, spots) = wanted(&first);
        world.want(&wishes, &spots);
        surround(&mut world, around);
        let plan = world.plan();
        world.apply(&plan);
        let (wishes, spots) = wanted(&second);
        world.want(&wishes, &spots);
        surround(&mut world, around);
        for gate in &gates {
            let protect = |model: &str| Protection { model: model.into(), ..Default::default() };
            match gate {
                0 => world.inventory.member.protections.push(protect("alpha")),
                1 => world.inventory.member.protections.push(protect("beta")),
                2 => world.limits.on = Some(Selection::parse("n1").unwrap()),
                3 => world.limits.exclude = Some(Selection::parse("n1").unwrap()),
                4 => world.node("n2").reachable = false,
                5 => world.desired.policies.prune = Some(Spanned::new(Prune::Keep, at("p.kdl", 1))),
                6 => world.desired.policies.stop_share = Some(Spanned::new(Share(2500), at("p.kdl", 2))),
                _ => { world.desired.nodes.remove("n2"); }
            }
        }
        let plan = world.plan();
        prop_assert_eq!(check(&plan, &world.inventory, &world.observed), Vec::<String>::new());
        play(&world, &plan, &order)?;
        prop_assert_eq!(serde_json::to_string(&plan).unwrap(), serde_json::to_string(&world.plan()).unwrap());
        for step in &plan.steps {
            let nodes = || std::iter::once(step.node.as_str()).chain(step.from_node.as_deref())
                .chain(step.fetch.as_ref().and_then(|planned| planned.from.sender()));
            prop_assert!(!gates.contains(&2) || nodes().all(|node| node == "n1"));
            prop_assert!(!gates.contains(&3) || nodes().all(|node| node != "n1"));
        }
        // What is not done is not lost: whoever has no step is unchanged, or is named.
        let named: BTreeSet<&str> = plan.deferred.iter().map(|d| d.model.as_str())
            .chain(plan.blocked.iter().map(|b| b.model.as_str())).collect();
        let stepped: BTreeSet<&str> = plan.steps.iter().filter_map(|s| s.instance.as_deref()).collect();
        let quiet = plan.instances.iter()
            .filter(|i| !stepped.contains(i.instance.as_str()) && !named.contains(i.model.as_str())).count();
        prop_assert!(quiet <= plan.summary.unchanged as usize, "{:#?}", plan.steps);
    }
}
