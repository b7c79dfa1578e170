//! What may not be done, and what cannot be done now: unreachable nodes, `--on`, pauses, protections, an empty
//! config, the share that one plan may stop; `hold.rs` has those that wait for a time or a person. A step that waits for
//! a dropped one is dropped with it.

use std::collections::{BTreeMap, BTreeSet};

use super::diff::Draft;
use super::input::labels_of;
use super::protect::Protections;
use super::rules::Rules;
use super::schedule::Scheduled;
use super::{ApprovalWanted, Because, Blocked, Deferred, Observed, PlanInput, Selection, Step, Verb, hold, workers};
use crate::placement::Unplaced;

/// What is left after the gates, and what is not.
#[derive(Debug, Clone, Default)]
pub(super) struct Gated {
    pub drafts: Vec<Draft>,
    pub deferred: Vec<Deferred>,
    pub blocked: Vec<Blocked>,
    pub approvals: Vec<ApprovalWanted>,
    /// What to say of gates that hold steps back.
    pub notes: Vec<String>,
}

#[derive(Debug, Clone)]
enum Fate {
    Deferred(&'static str),
    Blocked { policy: String, since: Option<String>, remedy: String },
}

/// Passes the drafts through all gates.
pub(super) fn gate(scheduled: Scheduled, input: &PlanInput<'_>, rules: &Rules, observed: &[Observed]) -> Gated {
    let Scheduled { drafts, overflow } = scheduled;
    let protections = Protections::of(&rules.protect, &input.inventory.member);
    let mut fates: BTreeMap<usize, Fate> = BTreeMap::new();
    for (index, draft) in drafts.iter().enumerate() {
        if let Some(reason) = put_off(draft, input) {
            fates.insert(index, Fate::Deferred(reason));
        } else if let Some(fate) = forbidden(draft, &protections) {
            fates.insert(index, fate);
        } else if overflow.contains(&index) {
            fates.insert(index, no_room(draft));
        }
    }
    beyond_drain(&drafts, &mut fates, input);
    spread(&drafts, &mut fates);
    stop_share(&drafts, &mut fates, input, rules, observed);
    spread(&drafts, &mut fates);
    let (approvals, notes) = hold_back(&drafts, &mut fates, input);
    let mut gated = settle(drafts, &fates);
    (gated.approvals, gated.notes) = (approvals, notes);
    stays_protected(&mut gated, input, &protections, observed);
    gated.sort();
    gated
}

impl Gated {
    /// Brings what is put off and what is refused into their order.
    pub fn sort(&mut self) {
        // Of several steps of one model on one node the one that says most: no fetch.
        let place = |d: &Deferred| (d.model.clone(), d.node.clone(), d.reason.clone());
        self.deferred.sort_by_cached_key(|d| (place(d), d.verb.is_none_or(|verb| verb == Verb::Fetch), d.verb));
        self.deferred.dedup_by_key(|d| place(d));
        self.blocked.sort_by(|a, b| (&a.model, &a.policy, &a.remedy).cmp(&(&b.model, &b.policy, &b.remedy)));
        self.blocked.dedup();
    }

    /// Adds something that is put off.
    pub fn defer(&mut self, model: &str, node: &str, reason: &str) {
        let (model, node, reason) = (model.to_owned(), node.to_owned(), reason.to_owned());
        self.deferred.push(Deferred { model, node, reason, verb: None, from_node: None });
    }
}

/// Distrust, approvals, windows and moves per hour, in this order: what waits for an earlier one is not counted by a later.
fn hold_back(
    drafts: &[Draft],
    fates: &mut BTreeMap<usize, Fate>,
    input: &PlanInput<'_>,
) -> (Vec<ApprovalWanted>, Vec<String>) {
    let open = |fates: &BTreeMap<usize, Fate>| -> Vec<(usize, &Draft)> {
        drafts.iter().enumerate().filter(|(index, _)| !fates.contains_key(index)).collect()
    };
    let mut notes = Vec::new();
    if let Some(text) = hold::distrust(input) {
        let held = open(fates).into_iter().filter(|(_, draft)| hold::distrusted(&draft.step));
        let held: Vec<usize> = held.map(|(index, _)| index).collect();
        fates.extend(held.into_iter().map(|index| (index, Fate::Deferred("distrust"))));
        spread(drafts, fates);
        notes.push(text);
    }
    let steps: Vec<(usize, &Step)> = open(fates).into_iter().map(|(index, draft)| (index, &draft.step)).collect();
    let member = &input.inventory.member;
    let mut wanted = Vec::new();
    for (approval, held) in hold::approvals(&steps, &[], input.desired, member, input.moment) {
        for index in held {
            let blocked = Fate::Blocked { policy: "approval".to_owned(), since: None, remedy: approval.remedy() };
            fates.insert(index, blocked);
        }
        wanted.push(approval);
    }
    spread(drafts, fates);
    for (reason, gate) in [("window", hold::windows as Gate), ("moves_per_hour", hold::moves_per_hour as Gate)] {
        let (held, said) = gate(&open(fates), input);
        fates.extend(held.into_iter().map(|index| (index, Fate::Deferred(reason))));
        notes.extend(said);
        spread(drafts, fates);
    }
    (wanted, notes)
}

/// What holds drafts back, and what to say about it.
type Gate = fn(&[(usize, &Draft)], &PlanInput<'_>) -> (BTreeSet<usize>, Vec<String>);

/// What has no place and may have one on a node that does not answer: it is started when that node is back
/// (`unreachable`), or when it is there for the first time (`absent`).
pub(super) fn wait_for_nodes(gated: &mut Gated, unplaced: &[Unplaced], input: &PlanInput<'_>) {
    let member = &input.inventory.member;
    let nodes = member.nodes.iter().map(|known| known.name.as_str());
    let seen: BTreeSet<&str> = nodes.chain(member.instances.iter().map(|left| left.node.as_str())).collect();
    let likes = input.placement.likes();
    for unplaced in unplaced {
        let Some(model) = input.desired.models.get(&unplaced.model) else { continue };
        let away = unplaced.reasons.iter().filter(|reason| reason.constraint == "unreachable");
        // A reason holds for all that are like its node.
        let nodes = away.flat_map(|reason| match likes.get(reason.node.as_str()) {
            None => std::slice::from_ref(&reason.node),
            Some(alike) => alike,
        });
        for node in nodes.map(String::as_str) {
            let labels = labels_of(input.desired, input.inventory, node);
            let fits = model.place.require.iter().all(|require| {
                let has = if require.value.label == "node" {
                    Some(node)
                } else {
                    labels.get(&require.value.label).map(String::as_str)
                };
                has == Some(require.value.is.as_str())
            });
            if !fits || !input.desired.nodes.contains_key(node) || !input.limits.allow(node, labels) {
                continue;
            }
            let known = seen.contains(node);
            gated.defer(&unplaced.model, node, if known { "unreachable" } else { "absent" });
        }
    }
    gated.sort();
}

fn put_off(draft: &Draft, input: &PlanInput<'_>) -> Option<&'static str> {
    let step = &draft.step;
    let nodes = || std::iter::once(step.node.as_str()).chain(step.from_node.as_deref());
    let allowed = |node: &str| input.limits.allow(node, labels_of(input.desired, input.inventory, node));
    if !nodes().all(allowed) {
        return Some("selection");
    }
    if nodes().any(|node| !input.inventory.node(node).is_some_and(|facts| facts.reachable)) {
        return Some("unreachable");
    }
    let paused = input.pauses.iter().any(|pause| {
        if let Some(model) = pause.scope.strip_prefix("model=") {
            return model == step.model;
        }
        pause.scope.is_empty()
            || Selection::parse(&pause.scope).is_ok_and(|scope| {
                nodes().any(|node| scope.matches(node, labels_of(input.desired, input.inventory, node)))
            })
    });
    paused.then_some("paused")
}

fn forbidden(draft: &Draft, protections: &Protections) -> Option<Fate> {
    let step = &draft.step;
    if !matches!(step.verb, Verb::Stop | Verb::Move) {
        return None;
    }
    let protection = protections.get(&step.model)?;
    Some(Fate::Blocked {
        policy: "protect".to_owned(),
        since: protection.since.clone(),
        remedy: protection.remedy(&step.model),
    })
}

/// A drain does what empties its nodes and what has to be done before; the rest of the difference waits for the next
/// apply.
fn beyond_drain(drafts: &[Draft], fates: &mut BTreeMap<usize, Fate>, input: &PlanInput<'_>) {
    if input.drain.is_empty() {
        return;
    }
    let leaves = |draft: &Draft| match draft.step.verb {
        Verb::Stop => input.drain.contains(&draft.step.node),
        _ => draft.step.from_node.as_ref().is_some_and(|from| input.drain.contains(from)),
    };
    let replicas: BTreeSet<(&str, u32)> =
        drafts.iter().filter(|draft| leaves(draft)).map(|d| (d.step.model.as_str(), d.step.replica)).collect();
    // A move may have been split into a stop and a start.
    let wanted = |draft: &Draft| {
        leaves(draft)
            || draft.step.verb == Verb::Start && replicas.contains(&(draft.step.model.as_str(), draft.step.replica))
    };
    let mut starts: BTreeMap<(&str, u32), Vec<usize>> = BTreeMap::new();
    for (index, draft) in drafts.iter().enumerate().filter(|(_, draft)| draft.step.verb == Verb::Start) {
        starts.entry((&draft.step.model, draft.step.replica)).or_default().push(index);
    }
    let mut chosen = BTreeSet::new();
    let mut open: Vec<usize> = (0..drafts.len()).filter(|index| wanted(&drafts[*index])).collect();
    while let Some(index) = open.pop() {
        if chosen.insert(index) {
            open.extend(drafts[index].needs.iter().copied());
            // What is displaced for a newcomer starts again where the placement has put it.
            let step = &drafts[index].step;
            if step.verb == Verb::Stop {
                open.extend(starts.get(&(step.model.as_str(), step.replica)).into_iter().flatten());
            }
        }
    }
    for index in (0..drafts.len()).filter(|index| !chosen.contains(index)) {
        fates.entry(index).or_insert(Fate::Deferred("selection"));
    }
}

/// What is protected stays on a node that is drained, and that is told.
fn stays_protected(gated: &mut Gated, input: &PlanInput<'_>, protections: &Protections, observed: &[Observed]) {
    for o in observed.iter().filter(|o| o.reachable && input.drain.contains(&o.node)) {
        if let Some(protection) = protections.get(&o.model) {
            gated.blocked.push(Blocked {
                model: o.model.clone(),
                policy: "protect".to_owned(),
                since: protection.since.clone(),
                remedy: protection.remedy(&o.model),
            });
        }
    }
}

/// What keeps running on its place (kept by `prune`, or unknown to the placement) leaves too little.
fn no_room(draft: &Draft) -> Fate {
    let node = &draft.step.node;
    let remedy = format!(
        "what keeps running on `{node}` leaves too little memory or too few ports: stop it, or let it go with `prune`"
    );
    Fate::Blocked { policy: "memory".to_owned(), since: None, remedy }
}

/// An empty config, or one plan that stops too much: all its stops are refused.
fn stop_share(
    drafts: &[Draft],
    fates: &mut BTreeMap<usize, Fate>,
    input: &PlanInput<'_>,
    rules: &Rules,
    observed: &[Observed],
) {
    let lives = |draft: &Draft| draft.old.is_some_and(|old| observed[old].alive);
    let starts: BTreeSet<(&str, u32)> = drafts
        .iter()
        .filter(|draft| draft.step.verb == Verb::Start)
        .map(|draft| (draft.step.model.as_str(), draft.step.replica))
        .collect();
    let starts_again = |draft: &Draft| starts.contains(&(draft.step.model.as_str(), draft.step.replica));
    let running = observed.iter().filter(|o| o.alive).count();
    let stops: Vec<usize> = (0..drafts.len())
        .filter(|index| !fates.contains_key(index) && drafts[*index].step.verb == Verb::Stop)
        .filter(|index| lives(&drafts[*index]) && !starts_again(&drafts[*index]))
        .collect();
    if stops.is_empty() {
        return;
    }
    let share = stops.len() as f64 * 100.0 / running.max(1) as f64;
    let (policy, remedy) = if input.desired.models.is_empty() {
        let remedy =
            format!("the config declares no model and {running} run; `flock destroy` stops them if that is meant");
        ("empty", remedy)
    } else if let Some(limit) = rules.stop_share.filter(|limit| share > *limit) {
        let text = format!(
            "{} of {running} running instances would stop, `limit stop-share` allows {limit} %: stop fewer at once, or raise it",
            stops.len()
        );
        ("stop-share", text)
    } else {
        return;
    };
    for index in stops {
        let (policy, remedy) = (policy.to_owned(), remedy.clone());
        fates.insert(index, Fate::Blocked { policy, since: None, remedy });
    }
}

/// What waits for a dropped step shares its fate.
fn spread(drafts: &[Draft], fates: &mut BTreeMap<usize, Fate>) {
    // The first start of every replica.
    let mut starts: BTreeMap<(&str, u32), usize> = BTreeMap::new();
    let begins = |draft: &Draft| draft.step.verb == Verb::Start && !draft.is_worker();
    for (index, Draft { step, .. }) in drafts.iter().enumerate().filter(|(_, draft)| begins(draft)) {
        starts.entry((&step.model, step.replica)).or_insert(index);
    }
    loop {
        let mut more = Vec::new();
        for (index, draft) in drafts.iter().enumerate().filter(|(index, _)| !fates.contains_key(index)) {
            let Some(cause) = draft.needs.iter().find(|need| fates.contains_key(need)) else { continue };
            let fate = match &fates[cause] {
                Fate::Deferred(reason) => Fate::Deferred(reason),
                Fate::Blocked { policy, remedy, .. } => {
                    let model = &drafts[*cause].step.model;
                    let remedy = match remedy.starts_with("waits for ") || *model == draft.step.model {
                        true => remedy.clone(),
                        false => format!("waits for `{model}` to make room: {remedy}"),
                    };
                    Fate::Blocked { policy: policy.clone(), since: None, remedy }
                }
            };
            more.push((index, fate));
        }
        for (index, cause) in workers::without_serving(drafts, |index| fates.contains_key(&index)) {
            more.push((index, fates[&cause].clone()));
        }
        // A replica that could not start again is not stopped, but where it has to leave for another or has lost its place.
        for (index, draft) in drafts.iter().enumerate().filter(|(index, _)| !fates.contains_key(index)) {
            let leaves = matches!(draft.step.because, Because::Preempted | Because::Decay | Because::Removed);
            if draft.step.verb == Verb::Stop && !leaves {
                let start = starts.get(&(draft.step.model.as_str(), draft.step.replica));
                let start = start.and_then(|start| fates.get(start));
                more.extend(start.map(|fate| (index, fate.clone())));
            }
        }
        // Nor is a victim stopped while nothing that is to have its place may start.
        let mut takers: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (index, draft) in drafts.iter().enumerate().filter(|(_, draft)| draft.step.verb != Verb::Fetch) {
            draft.needs.iter().for_each(|need| takers.entry(*need).or_default().push(index));
        }
        for (index, draft) in drafts.iter().enumerate().filter(|(index, _)| !fates.contains_key(index)) {
            if draft.step.verb != Verb::Stop || draft.step.because != Because::Preempted {
                continue;
            }
            let takers = takers.get(&index).into_iter().flatten();
            let held: Option<Vec<&Fate>> = takers.map(|taker| fates.get(taker)).collect();
            more.extend(held.iter().flatten().next().map(|fate| (index, (*fate).clone())));
        }
        if more.is_empty() {
            return;
        }
        fates.extend(more);
    }
}

/// Removes dropped drafts, and fetches that only dropped drafts wanted.
fn settle(drafts: Vec<Draft>, fates: &BTreeMap<usize, Fate>) -> Gated {
    let mut gated = Gated::default();
    // Whether anything that is left, or nothing at all, waits for each draft.
    let mut waited: BTreeMap<usize, bool> = BTreeMap::new();
    for (reader, draft) in drafts.iter().enumerate() {
        for need in &draft.needs {
            *waited.entry(*need).or_default() |= !fates.contains_key(&reader);
        }
    }
    let useless =
        |index: usize| drafts[index].step.verb == Verb::Fetch && waited.get(&index).is_some_and(|needed| !needed);
    let kept: Vec<usize> = (0..drafts.len()).filter(|index| !fates.contains_key(index) && !useless(*index)).collect();
    let renumbered: BTreeMap<usize, usize> = kept.iter().enumerate().map(|(new, old)| (*old, new)).collect();
    for (index, fate) in fates {
        let step = &drafts[*index].step;
        match fate {
            Fate::Deferred(reason) => gated.deferred.push(Deferred {
                model: step.model.clone(),
                node: step.node.clone(),
                reason: (*reason).to_owned(),
                verb: Some(step.verb),
                from_node: step.from_node.clone(),
            }),
            Fate::Blocked { policy, since, remedy } => gated.blocked.push(Blocked {
                model: step.model.clone(),
                policy: policy.clone(),
                since: since.clone(),
                remedy: remedy.clone(),
            }),
        }
    }
    for index in kept {
        let mut draft = drafts[index].clone();
        draft.needs = draft.needs.iter().filter_map(|need| renumbered.get(need).copied()).collect();
        gated.drafts.push(draft);
    }
    gated
}
