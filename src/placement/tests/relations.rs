//! What must hold between the answers to two related problems.

use std::collections::BTreeMap;

use super::brute::{instances, over_seeds};
use super::random::{self, Dice, applied, places};
use crate::placement::*;

/// Solves, and looks at the answer with the checker.
fn checked(problem: &Problem, what: &str) -> Result<Placement, String> {
    let placement = solve(problem);
    let faults = check(problem, &placement);
    if faults.is_empty() { Ok(placement) } else { Err(format!("{what}: {faults:?}")) }
}

/// A model's replicas by what they are and not by where: model, variant, kinds of accelerators; sorted.
fn kinds(problem: &Problem, placement: &Placement, name: impl Fn(&str) -> String) -> Vec<(String, usize, Vec<String>)> {
    let kind = |placed: &Placed| {
        let node = &problem.nodes[problem.node(&placed.node).unwrap()];
        let of = |uuid: &String| node.position(uuid).map_or("far".to_owned(), |p| node.accelerators[p].kind.clone());
        let mut kinds: Vec<String> = placed.accelerators.iter().map(of).collect();
        kinds.sort();
        (name(&placed.model), placed.candidate, kinds)
    };
    let mut all: Vec<_> = placement.instances.iter().map(kind).collect();
    all.sort();
    all
}

fn values(placement: &Placement) -> Vec<(&str, f64)> {
    placement.solver.tiers.iter().map(|tier| (tier.name.as_str(), tier.value)).collect()
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 2e-5 * a.abs().max(1.0)
}

fn shuffled(dice: &mut Dice, count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for index in (1..count).rev() {
        order.swap(index, dice.below(index as u64 + 1) as usize);
    }
    order
}

/// The same problem with other names, so that nodes and models sort otherwise.
fn renamed(problem: &Problem, dice: &mut Dice) -> (Problem, BTreeMap<String, String>) {
    let mut next = problem.clone();
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    let nodes = shuffled(dice, problem.nodes.len());
    for (node, new) in next.nodes.iter_mut().zip(nodes) {
        let name = format!("host-{new}");
        names.insert(node.name.clone(), name.clone());
        node.labels.insert("node".to_owned(), name.clone());
        node.name = name;
    }
    for running in &mut next.running {
        running.node = names[&running.node].clone();
    }
    names.clear();
    let models = shuffled(dice, problem.models.len());
    for (model, new) in next.models.iter_mut().zip(models) {
        let name = format!("model-{new}");
        names.insert(model.name.clone(), name.clone());
        model.name = name;
    }
    for running in &mut next.running {
        running.model = names[&running.model].clone();
    }
    for quota in &mut next.quotas {
        quota.models.iter_mut().for_each(|model| *model = names[model].clone());
    }
    next.sort();
    (next, names)
}

/// Names may decide among equals only: the tiers have the same values, and the same variants run on the same kinds of
/// accelerators.
#[test]
fn other_names_change_nothing_but_names() {
    let (count, wrong) = over_seeds(11, instances(2_000) / 5, |seed| {
        let problem = random::problem(seed);
        let (other, names) = renamed(&problem, &mut Dice(seed));
        let (one, two) = (checked(&problem, "as named")?, checked(&other, "renamed")?);
        let same = one.solver.tiers.len() == two.solver.tiers.len()
            && values(&one).iter().zip(values(&two)).all(|(a, b)| a.0 == b.0 && near(a.1, b.1));
        if !same {
            return Err(format!("{:?} became {:?}", values(&one), values(&two)));
        }
        let (before, after) = (kinds(&problem, &one, |name| names[name].clone()), kinds(&other, &two, str::to_owned));
        if before != after {
            return Err(format!("{before:?} became {after:?}"));
        }
        Ok(true)
    });
    println!("{count} problems with other names, {} mismatches", wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn another_order_changes_nothing() {
    let (count, wrong) = over_seeds(12, instances(2_000) / 10, |seed| {
        let problem = random::problem(seed);
        let mut dice = Dice(seed);
        let mut other = problem.clone();
        let order = shuffled(&mut dice, problem.nodes.len());
        for (node, new) in order.iter().enumerate() {
            other.nodes[*new] = problem.nodes[node].clone();
        }
        for model in &mut other.models {
            let all = shuffled(&mut dice, model.shapes.len());
            model.shapes = all.iter().map(|index| model.shapes[*index].clone()).collect();
            for shape in &mut model.shapes {
                shape.node = order[shape.node];
                shape.further.iter_mut().for_each(|part| part.node = order[part.node]);
            }
        }
        let models = shuffled(&mut dice, problem.models.len());
        other.models = models.iter().map(|index| other.models[*index].clone()).collect();
        let running = shuffled(&mut dice, problem.running.len());
        other.running = running.iter().map(|index| problem.running[*index].clone()).collect();
        other.sort();
        if other != problem {
            return Err("sorting does not bring the problem back".to_owned());
        }
        if solve(&other) != solve(&problem) { Err("another placement".to_owned()) } else { Ok(true) }
    });
    println!("{count} problems in another order, {} mismatches", wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Whether the tiers of `new` are no worse than those of `old`: where one is lower, an earlier one is higher. Below
/// the replicas, within the gap.
fn no_worse(old: &Placement, new: &Placement) -> bool {
    let reached = |placement: &Placement, name: &str| {
        placement.solver.tiers.iter().find(|tier| tier.name == name).map_or(0.0, |tier| tier.value)
    };
    // First of all as few as possible lose their place for nobody: what runs may not fit any more.
    let first = |placement: &Placement| -> Vec<(String, f64)> {
        let leading = placement.solver.tiers.iter().take_while(|tier| tier.name.starts_with("displaced"));
        leading.map(|tier| (tier.name.clone(), tier.value)).collect()
    };
    if first(old) != first(new) {
        let all = |placement: &Placement| first(placement).iter().map(|(_, value)| value).sum::<f64>();
        return all(new) < all(old);
    }
    let mut names: Vec<&str> = Vec::new();
    for tier in old.solver.tiers.iter().chain(&new.solver.tiers) {
        if !names.contains(&tier.name.as_str()) && tier.name.contains(" replicas, ") {
            names.push(&tier.name);
        }
    }
    for name in names {
        let (before, after) = (reached(old, name), reached(new, name));
        if (before - after).abs() > 0.5 {
            return after > before;
        }
    }
    let displaced = |p: &Placement| p.solver.tiers.iter().filter(|t| t.name.starts_with("displaced")).count();
    if displaced(old) + displaced(new) > 0 {
        return true;
    }
    for (before, after) in old.solver.tiers.iter().zip(&new.solver.tiers) {
        if !near(before.value, after.value) {
            return before.name.contains(" replicas, ") || after.value < before.value;
        }
    }
    true
}

/// One more node like another one, with all that could run on that.
fn grown(problem: &Problem, like: usize) -> Problem {
    let mut next = problem.clone();
    let mut node = next.nodes[like].clone();
    node.name = "zz-new".to_owned();
    node.labels.insert("node".to_owned(), node.name.clone());
    for accelerator in &mut node.accelerators {
        accelerator.uuid = format!("new-{}", accelerator.uuid);
    }
    let at = next.nodes.len();
    next.nodes.push(node);
    for model in &mut next.models {
        let more: Vec<Shape> = model.shapes.iter().filter(|s| s.node == like).cloned().collect();
        model.shapes.extend(more.into_iter().map(|mut shape| {
            shape.node = at;
            shape.further.iter_mut().filter(|part| part.node == like).for_each(|part| part.node = at);
            shape
        }));
    }
    next.sort();
    next
}

#[test]
fn more_accelerators_never_lower_a_proven_tier() {
    let (count, wrong) = over_seeds(13, instances(2_000) / 5, |seed| {
        let problem = random::problem(seed);
        let like = Dice(seed).below(problem.nodes.len() as u64) as usize;
        if !problem.nodes[like].reachable {
            return Ok(false);
        }
        let more = grown(&problem, like);
        let (old, new) = (checked(&problem, "before")?, checked(&more, "with one node more")?);
        if no_worse(&old, &new) {
            return Ok(true);
        }
        Err(format!("{:?} became {:?}", values(&old), values(&new)))
    });
    println!("{count} problems with a node more, {} mismatches", wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn count(placement: &Placement, model: &str) -> usize {
    placement.instances.iter().filter(|placed| placed.model == model).count()
}

/// What a model leaves free may let a higher, preempting rank in that needs somebody else's place besides; for nothing
/// less does anybody lose a replica.
#[test]
fn removing_a_model_evicts_nobody() {
    let (compared, wrong) = over_seeds(14, instances(2_000) / 5, |seed| {
        let problem = random::problem(seed);
        if problem.models.len() < 2 {
            return Ok(false);
        }
        let old = checked(&problem, "before")?;
        let mut less = applied(&problem, &old);
        let removed = Dice(seed).below(less.models.len() as u64) as usize;
        let name = less.models.remove(removed).name;
        less.running.retain(|running| running.model != name);
        let new = checked(&less, "with a model less")?;
        for model in &less.models {
            let gains =
                |m: &&ModelDemand| m.preempts && m.rank > model.rank && count(&new, &m.name) > count(&old, &m.name);
            if count(&new, &model.name) < count(&old, &model.name) && !less.models.iter().any(|m| gains(&m)) {
                return Err(format!("without {name}, {} loses a replica", model.name));
            }
        }
        Ok(true)
    });
    println!("{compared} problems with a model less, {} mismatches", wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn only_the_ratio_of_weights_matters() {
    let (count, wrong) = over_seeds(15, instances(2_000) / 10, |seed| {
        let problem = random::problem(seed);
        let placement = checked(&problem, "before")?;
        for factor in [0.001, 0.37, 12.0, 1_000.0] {
            let mut other = problem.clone();
            for tier in &mut other.tail {
                tier.terms.iter_mut().for_each(|(_, weight)| *weight *= factor);
            }
            let scaled = checked(&other, "scaled")?;
            if places(&scaled) != places(&placement) {
                return Err(format!("times {factor}: {:?} became {:?}", places(&placement), places(&scaled)));
            }
        }
        Ok(true)
    });
    println!("{count} problems with other units of weight, {} mismatches", wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn threads_change_nothing() {
    let (count, wrong) = over_seeds(16, instances(2_000) / 20, |seed| {
        let problem = random::problem(seed);
        let mut two = problem.clone();
        two.limits.threads = 2;
        if solve(&two) != solve(&problem) { Err("another placement".to_owned()) } else { Ok(true) }
    });
    println!("{count} problems on two threads, {} mismatches", wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
