//! What must hold between the plans of related clusters, on whole inputs: a config as text, an inventory, weights.
//!
//! `FLOCK_PROOF_PLANS` plans of one input are made, half of them on two threads; `scripts/prove-placement` asks for 100.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "how much is proven is asked for by the environment"
)]

#[path = "../../benches/placement/generate.rs"]
mod generate;
#[path = "../support/headers.rs"]
mod headers;

use std::collections::BTreeMap;

use flock::base::Digest;
use flock::config::Desired;
use flock::inventory::{Inventory, NodeLink};
use flock::placement::{Candidates, Options, Placement, Problem, check, place};
use generate::{Inputs, Size, generate, loaded};

/// Accelerators of which every one is looked at by itself, and so many that equal ones are counted.
const SIZES: [usize; 2] = [16, 40];

fn inputs(accelerators: usize, seed: u64) -> Inputs {
    generate(&Size { kinds: 6, ..Size::of(accelerators, seed) })
}

/// Places, and has the independent checker look.
fn placed(desired: &Desired, inventory: &Inventory, candidates: &Candidates, threads: usize) -> (Placement, Problem) {
    let mut options = Options::default();
    options.limits.threads = threads;
    let (placement, problem) = place(desired, inventory, candidates, &options);
    assert_eq!(check(&problem, &placement), Vec::<String>::new());
    (placement, problem)
}

fn of(inputs: &Inputs) -> (Placement, Problem) {
    placed(&inputs.desired, &inputs.inventory, &inputs.candidates, 1)
}

fn digest(placement: &Placement) -> Digest {
    Digest::of(format!("{placement:?}").as_bytes())
}

/// Tiers by name and value, rounded as far as they are proved.
fn tiers(placement: &Placement) -> Vec<(String, i64)> {
    let replicas = |name: &str| name.contains(" replicas, ") || name.starts_with("displaced");
    let tiers = placement.solver.tiers.iter().filter(|tier| replicas(&tier.name));
    tiers.map(|tier| (tier.name.clone(), tier.value.round() as i64)).collect()
}

fn objective(placement: &Placement) -> f64 {
    placement.solver.tiers.last().map_or(0.0, |tier| tier.value)
}

/// What every replica is, and not where: model, candidate, kinds of accelerators.
fn kinds(placement: &Placement, problem: &Problem, name: impl Fn(&str) -> String) -> Vec<(String, usize, Vec<String>)> {
    let mut all: Vec<_> = placement
        .instances
        .iter()
        .map(|placed| {
            let node = &problem.nodes[problem.node(&placed.node).expect("a node")];
            let of = |uuid: &String| node.accelerators[node.position(uuid).expect("its accelerator")].kind.clone();
            (name(&placed.model), placed.candidate, placed.accelerators.iter().map(of).collect())
        })
        .collect();
    all.sort();
    all
}

#[test]
#[allow(clippy::disallowed_methods, reason = "the environment names how many plans are made")]
fn the_same_input_gives_the_same_plan_on_any_number_of_threads() {
    let plans = std::env::var("FLOCK_PROOF_PLANS").ok().and_then(|text| text.parse().ok()).unwrap_or(4);
    for accelerators in SIZES {
        let inputs = inputs(accelerators, 3);
        let plan =
            |number: usize| digest(&placed(&inputs.desired, &inputs.inventory, &inputs.candidates, 1 + number % 2).0);
        let mut digests: BTreeMap<Digest, usize> = BTreeMap::new();
        (0..plans).for_each(|number| *digests.entry(plan(number)).or_default() += 1);
        println!("{accelerators} accelerators: {plans} plans on 1 and 2 threads, {} digest(s)", digests.len());
        assert_eq!(digests.len(), 1, "{digests:?}");
    }
}

#[test]
fn another_order_of_the_config_changes_nothing() {
    for accelerators in SIZES {
        let inputs = inputs(accelerators, 4);
        let (models, rest): (Vec<&str>, Vec<&str>) = inputs.text.lines().partition(|line| line.starts_with("model "));
        let lines: Vec<&str> = models.into_iter().rev().chain(rest.into_iter().rev()).collect();
        let (desired, _) = loaded(&lines.join("\n"));
        let (turned, _) = placed(&desired, &inputs.inventory, &inputs.candidates, 1);
        assert_eq!(digest(&turned), digest(&of(&inputs).0));
    }
}

/// Names may decide among equals only.
#[test]
fn other_names_change_nothing_but_names() {
    for accelerators in SIZES {
        let inputs = inputs(accelerators, 5);
        let (before, problem) = of(&inputs);
        // Models and nodes sort the other way round.
        let names: Vec<String> = inputs.desired.models.keys().cloned().collect();
        let model: BTreeMap<&str, String> = names
            .iter()
            .enumerate()
            .map(|(n, name)| (name.as_str(), format!("m{:03}-{name}", names.len() - n)))
            .collect();
        let node = |name: &str| match name.split_once('-') {
            Some((fleet, rest)) if !fleet.is_empty() => {
                let first = fleet.bytes().next().unwrap_or(b'a');
                format!("{}{fleet}-{rest}", char::from(b'a' + (b'z' - first.clamp(b'a', b'z'))))
            }
            _ => name.to_owned(),
        };
        let mut text = String::new();
        for line in inputs.text.lines() {
            let renamed = match line.split_once('"').and_then(|(word, rest)| Some((word, rest.split_once('"')?))) {
                Some(("model ", (name, rest))) => format!("model \"{}\"{rest}", model[name]),
                Some(("node ", (name, rest))) => format!("node \"{}\"{rest}", node(name)),
                _ => line.to_owned(),
            };
            text.push_str(&renamed);
            text.push('\n');
        }
        let mut inventory = inputs.inventory.clone();
        inventory.nodes.iter_mut().for_each(|n| n.name = node(&n.name));
        inventory.nodes.sort_by(|a, b| a.name.cmp(&b.name));
        let links = inventory.links.into_iter();
        inventory.links = links.map(|l| NodeLink { from: node(&l.from), to: node(&l.to), ..l }).collect();
        let candidates: Candidates =
            inputs.candidates.iter().map(|(name, list)| (model[name.as_str()].clone(), list.clone())).collect();
        let (desired, _) = loaded(&text);
        let (after, renamed) = placed(&desired, &inventory, &candidates, 1);
        assert_eq!(tiers(&after), tiers(&before), "{accelerators} accelerators");
        let (one, two) = (objective(&before), objective(&after));
        let gap = before.solver.gap.max(after.solver.gap).max(1e-6);
        assert!((one - two).abs() <= gap * one.max(two).max(1.0) + 1e-6, "{one} became {two}, the gap is {gap}");
        // Where both are proved to the end, the same things run on the same kinds.
        if gap <= 1e-6 {
            assert_eq!(
                kinds(&after, &renamed, str::to_owned),
                kinds(&before, &problem, |name| model[name].clone()),
                "{accelerators} accelerators"
            );
        }
    }
}

#[test]
fn a_model_less_evicts_nobody() {
    for accelerators in [SIZES[0]] {
        let inputs = inputs(accelerators, 6);
        let (before, _) = of(&inputs);
        let count = |p: &Placement, model: &str| p.instances.iter().filter(|placed| placed.model == model).count();
        for removed in inputs.desired.models.keys() {
            let mut desired = inputs.desired.clone();
            desired.models.remove(removed);
            let (after, _) = placed(&desired, &inputs.inventory, &inputs.candidates, 1);
            let rank = |model: &str| inputs.desired.models.get(model).map_or(0, |m| m.priority.rank);
            for (model, _) in desired.models.iter() {
                let loses = count(&after, model) < count(&before, model);
                let gains = desired
                    .models
                    .keys()
                    .any(|m| rank(m) >= rank(model) && m != model && count(&after, m) > count(&before, m));
                assert!(!loses || gains, "without {removed}, {model} has less and nobody of its rank or above more");
            }
        }
    }
}
