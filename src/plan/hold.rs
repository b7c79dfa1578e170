//! Gates that hold steps back for a while or until somebody agrees: approvals, windows, moves per hour, and facts that
//! cannot be trusted because most nodes are away.

use std::collections::{BTreeMap, BTreeSet};

use super::diff::Draft;
use super::input::labels_of;
use super::{ApprovalWanted, Because, Moment, PlanInput, Step, StepWanted, Verb, window};
use crate::base::{Digest, Spanned};
use crate::config::{Approval, Desired, Policies};
use crate::inventory::MemberRecord;

/// How long a move counts.
const HOUR_MS: u64 = 3_600_000;
/// How long an approval holds that nothing has used.
pub const APPROVAL_MS: u64 = 24 * HOUR_MS;

/// Replicas that steps stop, and those that they start.
struct Turns<'s> {
    stops: BTreeSet<(&'s str, u32)>,
    starts: BTreeSet<(&'s str, u32)>,
}

impl<'s> Turns<'s> {
    /// Of all steps: a stop whose replica starts again is a move.
    fn of(steps: impl Iterator<Item = &'s Step> + Clone) -> Self {
        let with = |verb: Verb| {
            let of = steps.clone().filter(move |step| step.verb == verb);
            of.map(|step| (step.model.as_str(), step.replica)).collect()
        };
        Self { stops: with(Verb::Stop), starts: with(Verb::Start) }
    }

    /// The words by which policies name what a step does.
    fn words(&self, step: &Step) -> Vec<&'static str> {
        let replica = (step.model.as_str(), step.replica);
        let mut words = match step.verb {
            Verb::Fetch | Verb::Adopt => Vec::new(),
            Verb::Start if self.stops.contains(&replica) => vec!["move"],
            Verb::Start => vec!["start"],
            Verb::Stop if self.starts.contains(&replica) => vec!["move"],
            Verb::Stop => vec!["stop"],
            Verb::Move => vec!["move"],
            Verb::Change | Verb::Restart => vec!["restart"],
        };
        if step.because == Because::Preempted && matches!(step.verb, Verb::Stop | Verb::Move) {
            words.push("preempt");
        }
        words
    }

    /// Whether a step counts for `limit moves-per-hour`. The start that follows a stop is counted with it.
    fn counts(&self, step: &Step) -> bool {
        let words = self.words(step);
        step.verb != Verb::Start && (words.contains(&"move") || words.contains(&"preempt"))
    }
}

fn named(denied: &[String], words: &[&str]) -> bool {
    words.iter().any(|word| denied.iter().any(|verb| verb == word))
}

/// Drafts that a window in force denies, and a sentence for every such window.
pub(super) fn windows(drafts: &[(usize, &Draft)], input: &PlanInput<'_>) -> (BTreeSet<usize>, Vec<String>) {
    let (mut held, mut notes) = (BTreeSet::new(), Vec::new());
    let turns = Turns::of(drafts.iter().map(|(_, draft)| &draft.step));
    for window in input.desired.policies.windows.values() {
        if !window::in_force(window, input.moment.unix_ms) {
            continue;
        }
        let denied = |(_, draft): &&(usize, &Draft)| named(&window.deny, &turns.words(&draft.step));
        let wait: Vec<usize> = drafts.iter().filter(denied).map(|(index, _)| *index).collect();
        if !wait.is_empty() {
            notes.push(window_note(window, wait.len()));
            held.extend(wait);
        }
    }
    (held, notes)
}

fn window_note(window: &crate::config::Window, count: usize) -> String {
    let waits = if count == 1 { "1 step waits".to_owned() } else { format!("{count} steps wait") };
    format!("{} denies {} {}: {waits}", window::named(window), window.deny.join(", "), window::until(window))
}

/// Moves and preempting stops that an hour ago or less began.
fn past(member: &MemberRecord, moment: Moment) -> usize {
    let since = moment.unix_ms.saturating_sub(HOUR_MS);
    member.moves.iter().filter(|moved| moved.at_unix_ms > since).count()
}

/// Steps that count for `limit moves-per-hour`, as the member record keeps them.
pub fn moves(steps: &[Step]) -> Vec<&Step> {
    let turns = Turns::of(steps.iter());
    steps.iter().filter(|step| turns.counts(step)).collect()
}

/// Drafts beyond what may still move in this hour, and what to say about it. What has to leave goes first, then higher
/// ranks.
pub(super) fn moves_per_hour(drafts: &[(usize, &Draft)], input: &PlanInput<'_>) -> (BTreeSet<usize>, Vec<String>) {
    let Some(limit) = &input.desired.policies.moves_per_hour else { return Default::default() };
    let turns = Turns::of(drafts.iter().map(|(_, draft)| &draft.step));
    let mut moving: Vec<&(usize, &Draft)> = drafts.iter().filter(|(_, draft)| turns.counts(&draft.step)).collect();
    if moving.is_empty() {
        return Default::default();
    }
    let rank = |model: &str| input.desired.models.get(model).map_or(0, |model| model.priority.rank);
    moving.sort_by_key(|(index, draft)| {
        (draft.step.because == Because::Better, std::cmp::Reverse(rank(&draft.step.model)), *index)
    });
    let name = format!("limit moves-per-hour={} ({})", limit.value, limit.place.short());
    let mut notes = Vec::new();
    let done = past(&input.inventory.member, input.moment);
    if !input.moment.live && limit.value > 0 {
        notes.push(format!(
            "{name}: what moved in the past hour is not known from an inventory file, so it is not counted"
        ));
    }
    let left = (limit.value as usize).saturating_sub(if input.moment.live { done } else { 0 });
    let held: BTreeSet<usize> = moving.iter().skip(left).map(|(index, _)| *index).collect();
    if !held.is_empty() {
        let models: BTreeSet<&str> = moving
            .iter()
            .filter(|(index, _)| held.contains(index))
            .map(|(_, draft)| draft.step.model.as_str())
            .collect();
        let models = models.into_iter().collect::<Vec<_>>().join(", ");
        notes.push(match limit.value {
            0 => {
                let waits = if held.len() == 1 { "1 step waits".to_owned() } else { format!("{} steps wait", held.len()) };
                format!(
                    "{name} lets nothing move and nothing be preempted: {waits}, of {models}, until it is raised or taken out"
                )
            }
            _ => {
                let before = if input.moment.live { format!("{done} in the past hour, ") } else { String::new() };
                let now = moving.len() - held.len();
                format!("{name}: {before}{now} of {} now, the rest waits ({models})", moving.len())
            }
        });
    }
    (held, notes)
}

/// What an approval is given for: this very step, whenever it is planned again.
pub fn step_key(cluster: &str, step: &Step) -> String {
    let Step { verb, model, replica, instance, node, from_node, from_instance, .. } = step;
    short(&Digest::of_json(&(cluster, verb, model, replica, instance, node, from_node, from_instance)))
}

fn short(digest: &Digest) -> String {
    digest.to_string().trim_start_matches("sha256:").chars().take(12).collect()
}

/// The people of `by`, groups resolved.
fn people<'d>(desired: &'d Desired, by: &'d [String]) -> BTreeSet<&'d str> {
    let mut found = BTreeSet::new();
    for who in by {
        match who.strip_prefix('@').filter(|group| !group.contains('@')) {
            Some(group) => {
                found.extend(desired.cluster.extras.groups.get(group).into_iter().flatten().map(String::as_str));
            }
            None => drop(found.insert(who.as_str())),
        }
    }
    found
}

/// The steps to which somebody of `by` has agreed lately.
fn agreed<'m>(desired: &Desired, by: &[String], member: &'m MemberRecord, moment: Moment) -> BTreeSet<&'m str> {
    let people = people(desired, by);
    let holds = member.approvals.iter().filter(|given| {
        people.contains(given.by.as_str()) && given.at_unix_ms.saturating_add(APPROVAL_MS) > moment.unix_ms
    });
    holds.flat_map(|given| &given.steps).map(String::as_str).collect()
}

/// What still needs somebody's yes: for every policy the steps, and their drafts. `extra` names what the whole plan is
/// besides: a destroy.
pub(super) fn approvals<'s>(
    steps: &[(usize, &'s Step)],
    extra: &[&'static str],
    desired: &Desired,
    member: &MemberRecord,
    moment: Moment,
) -> Vec<(ApprovalWanted, BTreeSet<usize>)> {
    let cluster = &desired.cluster.name.value;
    let mut wanted = Vec::new();
    let turns = Turns::of(steps.iter().map(|(_, step)| *step));
    for Spanned { value: Approval { verbs, by }, place } in &desired.policies.approvals {
        let mut open: BTreeMap<String, &'s Step> = BTreeMap::new();
        let mut drafts = BTreeSet::new();
        let agreed = agreed(desired, by, member, moment);
        for (index, step) in steps {
            let mut words = turns.words(step);
            words.extend(extra);
            if !named(verbs, &words) {
                continue;
            }
            let key = step_key(cluster, step);
            if !agreed.contains(key.as_str()) {
                open.insert(key, step);
                drafts.insert(*index);
            }
        }
        if open.is_empty() {
            continue;
        }
        let keys: Vec<&String> = open.keys().collect();
        let id = short(&Digest::of_json(&(by, keys)));
        let people = people(desired, by).into_iter().map(str::to_owned).collect();
        let steps = open.into_iter().map(|(key, step)| StepWanted {
            key,
            verb: step.verb,
            model: step.model.clone(),
            replica: step.replica,
            node: step.node.clone(),
            from_node: step.from_node.clone(),
        });
        let policy = place.short();
        wanted.push((ApprovalWanted { id, policy, by: by.clone(), people, steps: steps.collect() }, drafts));
    }
    wanted
}

impl ApprovalWanted {
    /// Who has to do what.
    pub fn remedy(&self) -> String {
        format!("{} has to agree ({}): `flock approve {} --reason …`", self.by.join(" or "), self.policy, self.id)
    }
}

/// A sentence where most of the nodes that ran something are away at once, at least two: then it is rather the network, or
/// this machine, that failed, and nothing may be moved for it. Nodes that are left out do not count.
pub(super) fn distrust(input: &PlanInput<'_>) -> Option<String> {
    let inventory = input.inventory;
    let remembered = inventory.member.instances.iter().map(|instance| instance.node.as_str());
    let found = inventory.nodes.iter().filter(|node| !node.instances.is_empty()).map(|node| node.name.as_str());
    let mut ran: BTreeSet<&str> = remembered.chain(found).collect();
    ran.retain(|node| {
        let allowed = input.limits.allow(node, labels_of(input.desired, inventory, node));
        input.desired.nodes.contains_key(*node) && allowed
    });
    let away: Vec<&str> =
        ran.iter().copied().filter(|node| !inventory.node(node).is_some_and(|facts| facts.reachable)).collect();
    if away.len() < 2 || away.len() * 2 <= ran.len() {
        return None;
    }
    Some(format!(
        "{} of {} nodes that ran something do not answer: that is taken for a fault of the way to them, and nothing is started, stopped or moved; see `flock doctor`, or leave out what is really gone: --exclude {}",
        away.len(),
        ran.len(),
        away.join(",")
    ))
}

/// Whether a step is held while facts are not trusted: all but bringing back what died where it belongs.
pub(super) fn distrusted(step: &Step) -> bool {
    let heals = step.because == Because::Drift && matches!(step.verb, Verb::Start | Verb::Restart | Verb::Adopt);
    !heals
}

/// Windows in force that deny some of these steps, a sentence each. `extra` names what the whole plan is besides.
pub(super) fn denied_now(steps: &[Step], extra: &[&'static str], policies: &Policies, moment: Moment) -> Vec<String> {
    let turns = Turns::of(steps.iter());
    let denies = |window: &&crate::config::Window| {
        let of = |step: &&Step| {
            let mut words = turns.words(step);
            words.extend(extra);
            named(&window.deny, &words)
        };
        let count = steps.iter().filter(of).count();
        (count > 0).then(|| window_note(window, count))
    };
    policies
        .windows
        .values()
        .filter(|window| window::in_force(window, moment.unix_ms))
        .filter_map(|w| denies(&w))
        .collect()
}

/// Why a saved plan may not be carried out now although its facts still hold: windows that are in force meanwhile, and
/// moves of the past hour. Sentences; empty where it may.
pub fn held_now(steps: &[Step], desired: &Desired, member: &MemberRecord, moment: Moment) -> Vec<String> {
    let mut found = denied_now(steps, &[], &desired.policies, moment);
    if let Some(limit) = &desired.policies.moves_per_hour {
        let (planned, done) = (moves(steps).len(), past(member, moment));
        if planned > 0 && planned + done > limit.value as usize {
            let name = format!("limit moves-per-hour={} ({})", limit.value, limit.place.short());
            found.push(match limit.value {
                0 => format!("{name} lets nothing move: {planned} in this plan; raise it, or take it out"),
                _ => format!("{name}: {done} in the past hour, and {planned} in this plan"),
            });
        }
    }
    found
}
