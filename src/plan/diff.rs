//! Desired against observed: which instances start, stop, change, restart, move or are adopted. Order and waiting
//! come later, in `schedule.rs`.

use std::collections::{BTreeMap, BTreeSet};

use super::reason::Situation;
use super::{Because, Observed, PlanInput, PlannedInstance, Step, Verb, workers};
use crate::config::Prune;
use crate::inventory::PartOf;

/// A step in the making: what it does, without its number and what it waits for.
#[derive(Debug, Clone)]
pub(super) struct Draft {
    /// The step; id and `after` are still empty.
    pub step: Step,
    /// The observed instance it replaces or stops.
    pub old: Option<usize>,
    /// The planned instance that results.
    pub new: Option<usize>,
    /// Drafts that must be done before.
    pub needs: BTreeSet<usize>,
    /// What its instance is a part of, where that is over several nodes.
    pub part: Option<PartOf>,
}

impl Draft {
    /// Whether it is about a worker for an instance on another node.
    pub fn is_worker(&self) -> bool {
        self.part.as_ref().is_some_and(|part| self.step.instance.as_ref().is_some_and(|id| part.is_worker(id)))
    }
}

/// What differs.
#[derive(Debug, Clone, Default)]
pub(super) struct Difference {
    /// In the order of model, replica and node.
    pub drafts: Vec<Draft>,
    /// Planned instances that run as they should.
    pub unchanged: BTreeSet<usize>,
    /// Observed instances that stay although nothing wants them, with the reason.
    pub kept: Vec<(usize, String)>,
    /// Planned instances whose node cannot be asked: nothing is known of them, nothing is done.
    pub unknown: BTreeSet<usize>,
    /// Planned instances that wait until a node is in sight again, by id: what runs in their stead stays.
    pub out_of_sight: BTreeSet<String>,
}

/// Compares what should run with what runs.
pub(super) fn diff(
    input: &PlanInput<'_>,
    planned: &[PlannedInstance],
    observed: &[Observed],
    prune: Prune,
) -> Difference {
    let situation = Situation::of(input, planned, observed);
    let mut result = Difference::default();
    let mut used = BTreeSet::new();
    let mut by_replica: BTreeMap<(&str, u32), Vec<usize>> = BTreeMap::new();
    // An agent that lost its records knows an engine by the mark it carries alone: its id, and not its model.
    let mut by_id: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for (index, o) in observed.iter().enumerate() {
        // A worker takes nothing over and hands nothing on.
        if !o.is_worker() {
            by_replica.entry((o.model.as_str(), o.replica)).or_default().push(index);
        }
        by_id.insert((o.node.as_str(), o.instance.as_str()), index);
    }
    for (new, instance) in planned.iter().enumerate() {
        let own = by_replica.get(&(instance.model.as_str(), instance.replica)).map_or(&[][..], Vec::as_slice);
        let same = by_id.get(&(instance.node.as_str(), instance.instance.as_str())).copied();
        // What runs on a node that the config lacks is stopped, never moved.
        let configured = own.iter().copied().filter(|i| input.desired.nodes.contains_key(&observed[*i].node));
        let replaced = || predecessor(configured, observed, instance);
        let before = same.or_else(|| replaced().filter(|_| !instance.is_worker()));
        match (same, before) {
            (Some(old), _) => {
                used.insert(old);
                match settle(&observed[old], instance) {
                    None if !observed[old].reachable => {
                        result.unknown.insert(new);
                    }
                    None => {
                        result.unchanged.insert(new);
                    }
                    Some((verb, because, detail)) => {
                        result.drafts.push(draft(
                            verb,
                            because,
                            detail,
                            Some(instance),
                            Some(&observed[old]),
                            new,
                            Some(old),
                        ));
                    }
                }
            }
            (None, Some(old)) => {
                used.insert(old);
                let before = &observed[old];
                let in_place = before.node == instance.node && before.accelerators == instance.accelerators;
                let spans = before.part.is_some() || instance.spec.part.is_some();
                let stays = workers::out_of_sight(before, observed);
                if let Some(text) = stays.or_else(|| workers::cannot_begin(before, instance)) {
                    result.kept.push((old, text));
                    result.out_of_sight.insert(instance.instance.clone());
                } else if spans && before.reachable {
                    // Its workers come and go with it: never two copies at a time.
                    let (because, detail) =
                        if in_place { situation.change(before, instance) } else { situation.moving(before, instance) };
                    let stop = draft(Verb::Stop, because, detail.clone(), None, Some(before), 0, Some(old));
                    let start = draft(Verb::Start, because, detail, Some(instance), None, new, None);
                    result.drafts.extend([stop, start]);
                } else if in_place {
                    let (because, detail) = situation.change(before, instance);
                    result.drafts.push(draft(
                        Verb::Change,
                        because,
                        detail,
                        Some(instance),
                        Some(before),
                        new,
                        Some(old),
                    ));
                } else if !before.reachable {
                    // The old copy cannot be stopped now: start the new one, and stop the old one when it is back.
                    let detail = format!("`{}` is unreachable", before.node);
                    result.drafts.push(draft(Verb::Start, Because::Decay, detail, Some(instance), None, new, None));
                    used.remove(&old);
                } else {
                    let (because, detail) = situation.moving(before, instance);
                    result.drafts.push(draft(
                        Verb::Move,
                        because,
                        detail,
                        Some(instance),
                        Some(before),
                        new,
                        Some(old),
                    ));
                }
            }
            (None, None) => {
                let (because, detail) = situation.start(instance);
                result.drafts.push(draft(Verb::Start, because, detail, Some(instance), None, new, None));
            }
        }
    }
    // Of what is not to begin, no worker is either.
    result.drafts.retain(|draft| {
        !draft.is_worker() || !draft.part.as_ref().is_some_and(|part| result.out_of_sight.contains(&part.instance))
    });
    let mut leftovers: Vec<(usize, &Observed)> = observed.iter().enumerate().collect();
    leftovers.retain(|(index, _)| !used.contains(index));
    // What a worker works for decides on it.
    leftovers.sort_by_key(|(index, leftover)| (leftover.is_worker(), *index));
    for (old, leftover) in leftovers {
        let kept = workers::waits(leftover, planned, observed).or_else(|| workers::out_of_sight(leftover, observed));
        if let Some(text) = kept.or_else(|| workers::of_kept(leftover, &result.kept, observed)) {
            result.kept.push((old, text));
            continue;
        }
        if let Some(Err(problem)) = input.candidates.get(&leftover.model)
            && input.desired.models.contains_key(&leftover.model)
        {
            let text = format!("`{}` keeps running on `{}`: {}", leftover.model, leftover.node, problem.text);
            result.kept.push((old, text));
            continue;
        }
        let (because, detail) =
            workers::ends(leftover, &result.drafts, planned, observed).unwrap_or_else(|| situation.stop(leftover));
        let gone = !input.desired.models.contains_key(&leftover.model);
        if gone && prune == Prune::Keep {
            let text = format!(
                "`{}` is gone from the config and keeps running on `{}` (prune \"keep\")",
                leftover.model, leftover.node
            );
            result.kept.push((old, text));
            continue;
        }
        let mut stop = draft(Verb::Stop, because, detail, None, Some(leftover), 0, Some(old));
        stop.step.confirm = (gone && prune == Prune::Confirm).then(|| "prune".to_owned());
        result.drafts.push(stop);
    }
    workers::serve_anew(&mut result, planned, observed, |detail, new, old| {
        let (instance, before) = (&planned[new], &observed[old]);
        draft(Verb::Restart, Because::Drift, detail, Some(instance), Some(before), new, Some(old))
    });
    result.drafts.sort_by(|a, b| key(&a.step).cmp(&key(&b.step)));
    result
}

fn key(step: &Step) -> (&str, u32, &str, Verb, Option<&str>) {
    (&step.model, step.replica, &step.node, step.verb, step.instance.as_deref())
}

/// Which of a replica's copies the new instance takes over from: one on the same accelerators, then one on the
/// same node, then any; living ones first.
fn predecessor(own: impl Iterator<Item = usize>, observed: &[Observed], instance: &PlannedInstance) -> Option<usize> {
    own.min_by_key(|index| {
        let o = &observed[*index];
        let here = o.node == instance.node;
        (!(here && o.accelerators == instance.accelerators), !o.alive, !o.reachable, !here, *index)
    })
}

/// What an instance that is already on its place needs, if anything.
fn settle(old: &Observed, instance: &PlannedInstance) -> Option<(Verb, Because, String)> {
    if !old.reachable {
        return None;
    }
    if old.serving() {
        return (!old.supervised).then(|| {
            let detail = format!("the node agent on `{}` does not supervise: a dead engine would stay dead", old.node);
            (Verb::Adopt, Because::Drift, detail)
        });
    }
    let detail = match &old.last_failure {
        Some(failure) => format!("{}: {}", failure.cause, failure.text),
        None if old.state.is_none() => "the node agent has no engine for it".to_owned(),
        None if old.alive => format!("the engine is {}", old.state.map_or("unknown", |state| state.word())),
        None => "the engine is not running".to_owned(),
    };
    let verb = if old.alive { Verb::Restart } else { Verb::Start };
    debug_assert_eq!(old.instance, instance.instance);
    Some((verb, Because::Drift, detail))
}

fn draft(
    verb: Verb,
    because: Because,
    detail: String,
    new: Option<&PlannedInstance>,
    old: Option<&Observed>,
    new_index: usize,
    old_index: Option<usize>,
) -> Draft {
    let replaces = matches!(verb, Verb::Change | Verb::Move | Verb::Restart);
    let lives = old.is_some_and(|old| old.alive);
    let (model, replica) = match (new, old) {
        (Some(new), _) => (new.model.clone(), new.replica),
        (None, Some(old)) => (old.model.clone(), old.replica),
        (None, None) => Default::default(),
    };
    let step = Step {
        id: 0,
        verb,
        model,
        replica,
        instance: new.map(|new| new.instance.clone()).or_else(|| old.map(|old| old.instance.clone())),
        node: new.map(|new| new.node.clone()).or_else(|| old.map(|old| old.node.clone())).unwrap_or_default(),
        from_node: old.filter(|_| verb == Verb::Move).map(|old| old.node.clone()),
        because,
        detail,
        after: Vec::new(),
        from_instance: old.filter(|_| replaces).map(|old| old.instance.clone()),
        route: None,
        download_bytes: 0,
        estimated_ms: None,
        downtime_ms: 0,
        sessions: if verb == Verb::Adopt { 0 } else { old.map_or(0, |old| old.sessions) },
        state_bytes: 0,
        interrupts: lives && matches!(verb, Verb::Stop | Verb::Change | Verb::Restart),
        fetch: None,
        confirm: None,
    };
    let part = new.map_or_else(|| old.and_then(|old| old.part.clone()), |new| new.spec.part.clone());
    Draft { step, old: old_index, new: new.map(|_| new_index), needs: BTreeSet::new(), part }
}
