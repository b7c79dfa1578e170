//! The independent checker sees every kind of fault, and nothing else: a sound placement is broken in one way at a time.

use super::random::{accelerator, memory, node, shape, weighted_tail};
use crate::base::{EngineKind, GIB};
use crate::placement::*;

fn model(name: &str, rank: u32, bytes: u64, ranks: u32, at: &[usize]) -> ModelDemand {
    let mut model = ModelDemand { name: name.to_owned(), rank, min: 1, desired: 1, ..ModelDemand::default() };
    model.candidates.push(CandidateFacts {
        label: "bf16".to_owned(),
        legal_ranks: [(EngineKind::Vllm, vec![1, 2])].into(),
        context: 4096,
        ..CandidateFacts::default()
    });
    model.shapes = at.iter().map(|node| shape(0, *node, vec![0, 1], ranks, bytes)).collect();
    model
}

fn running(model: &str, node: &str, accelerators: &[&str]) -> Running {
    Running {
        model: model.to_owned(),
        instance: model.to_owned(),
        node: node.to_owned(),
        accelerators: accelerators.iter().map(|uuid| (*uuid).to_owned()).collect(),
        variant: "bf16".to_owned(),
        engine: Some(EngineKind::Vllm),
        ..Running::default()
    }
}

/// Nodes a and b with two cards each and a third, other one; c is on hold, d cannot be reached. `tp` takes the pair of a, `twice` is spread
/// over a and b, `kept` is protected on c, `far` runs on d, `plain` runs on b.
fn sound() -> (Problem, Placement) {
    let cards = |name: &str| {
        let mut cards: Vec<_> = (0..2).map(|p| accelerator(format!("{name}{p}"), "4090", 24 * GIB)).collect();
        cards.push(accelerator(format!("{name}2"), "l40", 48 * GIB));
        cards
    };
    let mut problem = Problem { tail: weighted_tail(), ..Problem::default() };
    problem.nodes = ["a", "b", "c", "d"].map(|name| node(name, cards(name))).into();
    problem.nodes[0].host_capacity_bytes = 10 * GIB;
    problem.nodes[2].closed = Some(("hold".to_owned(), "on hold".to_owned()));
    problem.nodes[3].closed = Some(("unreachable".to_owned(), "cannot be reached".to_owned()));
    problem.nodes[3].reachable = false;
    let mut tp = model("tp", 50, 12 * GIB, 2, &[0]);
    tp.require.push(("node".to_owned(), "a".to_owned()));
    let mut twice = model("twice", 50, 6 * GIB, 1, &[0, 1]);
    (twice.desired, twice.min, twice.spread_by) = (2, 2, Some("node".to_owned()));
    let mut kept = model("kept", 10, 10 * GIB, 1, &[2]);
    kept.protected = true;
    kept.shapes[0].keep_only = true;
    let far = model("far", 10, 10 * GIB, 1, &[]);
    let plain = model("plain", 10, 4 * GIB, 1, &[1]);
    problem.models = vec![far, kept, plain, tp, twice];
    problem.running = vec![running("far", "d", &["d0"]), running("kept", "c", &["c1"]), running("plain", "b", &["b1"])];
    problem.sort();
    let placement = solve(&problem);
    assert_eq!(check(&problem, &placement), Vec::<String>::new());
    assert_eq!(placement.instances.len(), 6, "{:?}", placement.unplaced);
    (problem, placement)
}

/// Breaks the sound placement, or its problem, and says what is found.
fn broken(change: impl FnOnce(&mut Problem, &mut Vec<Placed>)) -> Vec<String> {
    let (mut problem, mut placement) = sound();
    change(&mut problem, &mut placement.instances);
    check(&problem, &placement)
}

fn of<'p>(placed: &'p mut [Placed], model: &str) -> &'p mut Placed {
    placed.iter_mut().find(|p| p.model == model).unwrap()
}

fn quota(accelerators: Option<u32>, vram_bytes: Option<u64>) -> QuotaRule {
    QuotaRule { name: "q".to_owned(), models: vec!["tp".to_owned(), "twice".to_owned()], accelerators, vram_bytes }
}

/// 6 GiB on an accelerator of another node.
fn part(node: &str, uuid: &str) -> Elsewhere {
    Elsewhere {
        node: node.to_owned(),
        accelerators: vec![uuid.to_owned()],
        per_accelerator: vec![memory(6 * GIB)],
        host: PlacedMemory::default(),
        worker: None,
    }
}

/// A kind of fault, what is found of it, and how it is made.
type Case = (&'static str, &'static [&'static str], fn(&mut Problem, &mut Vec<Placed>));

#[test]
fn every_kind_of_fault_is_found_and_nothing_else() {
    let cases: &[Case] = &[
        ("nothing", &[], |_, _| {}),
        ("a full accelerator", &["a a0: ", "a a1: "], |problem, _| {
            problem.nodes[0].accelerators.iter_mut().for_each(|a| a.capacity_bytes = 11 * GIB);
        }),
        ("a full host", &["a: "], |problem, placed| {
            let host = 11 * GIB;
            of(placed, "tp").host.weights_bytes = host;
            problem.models[3].shapes[0].host = memory(host);
        }),
        ("bytes that no shape has", &["its bytes are not those of a way to run here"], |_, placed| {
            of(placed, "tp").per_accelerator[1].weights_bytes -= GIB;
        }),
        ("host bytes that no shape has", &["its bytes are not those of a way to run here"], |problem, _| {
            problem.models[3].shapes[0].host = memory(GIB);
        }),
        ("an accelerator twice", &["used twice"], |problem, placed| {
            of(placed, "tp").accelerators[1] = "a0".to_owned();
            problem.nodes[0].accelerators[0].capacity_bytes = 40 * GIB;
        }),
        ("an accelerator of another node", &["is not on this node", "a b0: "], |_, placed| {
            of(placed, "tp").accelerators[1] = "b0".to_owned();
        }),
        ("an illegal split", &["tensor parallelism of 2 is not legal"], |problem, _| {
            problem.models[3].candidates[0].legal_ranks = [(EngineKind::Vllm, vec![1])].into();
        }),
        ("more ranks than accelerators", &["4 ranks on 2 accelerators", "tensor parallelism of 4"], |_, placed| {
            of(placed, "tp").tensor_parallel = 4;
        }),
        ("unequal accelerators", &["of a stage are not equal", "nothing says which layers"], |problem, placed| {
            of(placed, "tp").accelerators[1] = "a2".to_owned();
            problem.models[3].shapes[0].group.push(2);
        }),
        ("two makers", &["two makers"], |problem, _| {
            problem.nodes[0].accelerators[1].vendor = "amd".to_owned();
        }),
        ("MIG slices together", &["MIG slices"], |problem, _| problem.nodes[0].accelerators[1].mig = true),
        ("a sick accelerator", &["not healthy"], |problem, _| problem.nodes[0].accelerators[1].healthy = false),
        ("a replica twice", &["placed twice"], |_, placed| {
            let second = placed.iter().rposition(|p| p.model == "twice").unwrap();
            placed[second].replica = 0;
        }),
        ("no such model", &["no such model or node"], |problem, _| _ = problem.models.remove(2)),
        ("no such candidate", &["no candidate 7"], |_, placed| of(placed, "tp").candidate = 7),
        ("a label that is required", &["`node` must be `b`"], |problem, _| {
            problem.models[3].require[0].1 = "b".to_owned();
        }),
        ("weights that are elsewhere", &["weights are not on this node"], |problem, _| {
            problem.models[3].candidates[0].only_on = Some(vec!["b".to_owned()]);
        }),
        ("no engine", &["engine is not on the node"], |problem, placed| {
            problem.nodes[0].engines[0].program = "/bin/other".to_owned();
            placed.retain(|p| p.model != "twice");
            problem.models[4].min = 0;
        }),
        ("a closed node", &["nothing new may be placed"], |problem, _| {
            problem.nodes[0].closed = Some(("hold".to_owned(), "on hold".to_owned()));
        }),
        ("a node that left the config", &["not in the config"], |problem, placed| {
            problem.nodes[1].member = false;
            placed.retain(|p| p.model != "twice");
        }),
        ("an unreachable node", &["cannot be reached and it does not run there"], |_, placed| {
            of(placed, "far").accelerators[0] = "d1".to_owned();
        }),
        ("too many replicas", &["are wanted"], |problem, _| {
            (problem.models[4].desired, problem.models[4].min) = (1, 1);
        }),
        ("a spread that is none", &["2 replicas where `node` is `b`"], |_, placed| {
            let first = placed.iter().position(|p| p.model == "twice" && p.node == "a").unwrap();
            (placed[first].node, placed[first].accelerators[0]) = ("b".to_owned(), "b0".to_owned());
        }),
        ("accelerators over a quota", &["quota q: 4 accelerators are planned, 3 may be used"], |problem, _| {
            problem.quotas.push(quota(Some(3), None));
        }),
        ("bytes over a quota", &["quota q: 38654705664 bytes are planned, 37580963840 may be used"], |problem, _| {
            problem.quotas.push(quota(None, Some(35 * GIB)));
        }),
        ("a quota that is kept", &[], |problem, _| problem.quotas.push(quota(Some(4), Some(36 * GIB)))),
        ("a denied place", &["is denied"], |problem, _| {
            let text = "this is denied".to_owned();
            let (node, candidate, engine) = ("a".to_owned(), 0, EngineKind::Vllm);
            problem.models[3].denied.push(DeniedPlace { node, candidate, engine, text });
        }),
        (
            "a part on a closed node",
            &["nothing new may be placed on c", "3 accelerators", "which layers", "its bytes are not"],
            |_, placed| of(placed, "tp").elsewhere.push(part("c", "c0")),
        ),
        (
            "a part on an accelerator that is not there",
            &["an accelerator is not on b", "b a9: ", "3 accelerators", "which layers", "its bytes are not"],
            |_, placed| of(placed, "tp").elsewhere.push(part("b", "a9")),
        ),
        (
            "a part on a full accelerator",
            &["b b2: ", "3 accelerators", "which layers", "its bytes are not"],
            |problem, placed| {
                problem.nodes[1].accelerators[2].capacity_bytes = 5 * GIB;
                of(placed, "tp").elsewhere.push(part("b", "b2"));
            },
        ),
        ("nothing protected", &["it is protected", "kept: it would lose a replica"], |_, placed| {
            placed.retain(|p| p.model != "kept")
        }),
        ("a loss to nobody", &["would lose a replica"], |_, placed| placed.retain(|p| p.model != "plain")),
    ];
    for (what, expected, change) in cases {
        let found = broken(change);
        for one in expected.iter() {
            assert!(found.iter().any(|fault| fault.contains(one)), "{what}: {one} is not in {found:#?}");
        }
        let other = |fault: &&String| !expected.iter().any(|one| fault.contains(one));
        assert_eq!(found.iter().find(other), None, "{what}: {found:#?}");
        assert_eq!(found.is_empty(), expected.is_empty(), "{what}");
    }
}

/// A loss needs somebody of a higher, preempting rank who gained by it.
#[test]
fn an_eviction_that_helps_nobody_is_found() {
    let evicted = |preempts: bool, gains: bool| {
        broken(|problem, placed| {
            let high = problem.models.iter_mut().find(|m| m.name == "tp").unwrap();
            high.preempts = preempts;
            if !gains {
                problem.running.push(running("tp", "a", &["a0", "a1"]));
                problem.sort();
            }
            placed.retain(|p| p.model != "plain");
        })
    };
    assert_eq!(evicted(true, true), Vec::<String>::new());
    for (preempts, gains) in [(false, true), (true, false), (false, false)] {
        let found = evicted(preempts, gains);
        assert!(found.len() == 1 && found[0].starts_with("plain: it would lose a replica"), "{found:?}");
    }
}
