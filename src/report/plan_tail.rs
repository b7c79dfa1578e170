//! The end of a plan: names grouped by verb, dangerous verbs last, and what to run next with its exit code.

use std::collections::{BTreeMap, BTreeSet};

use super::plan_text::PlanView;
use super::style::{Ink, Style, clean, pad};
use super::words;
use crate::base::format_bytes;
use crate::plan::{Plan, Verb};

/// What has one thing in common: a verb, or that it is not done.
pub(super) struct Group<'a> {
    /// The verb, or `deferred`, `blocked`, `NOT PLACED`.
    pub word: &'static str,
    /// Steps, instances or replicas.
    pub count: usize,
    /// Models, and how often each.
    pub names: BTreeMap<&'a str, usize>,
    /// What all of them cost together, where that is said here.
    pub note: String,
    /// Whether somebody may miss something meanwhile or afterwards.
    pub hurts: bool,
    /// Its colour.
    pub ink: Ink,
}

/// What is in a plan, by what happens to it: harmless first, what hurts last, stops last of all.
pub(super) fn groups(plan: &Plan) -> Vec<Group<'_>> {
    let verb = |of: Verb, hurts: bool| {
        let steps: Vec<_> = plan.steps.iter().filter(|step| step.verb == of).collect();
        let bytes = steps.iter().map(|step| step.download_bytes).fold(0, u64::saturating_add);
        let note = if of == Verb::Fetch { format!("{} in all", format_bytes(bytes)) } else { String::new() };
        let names = counted(steps.iter().map(|step| (step.model.as_str(), 1)));
        Group { word: words::verb(of).1, count: steps.len(), names, note, hurts, ink: words::ink(of) }
    };
    let deferred = counted(plan.deferred.iter().map(|d| (d.model.as_str(), 1)));
    let blocked = counted(plan.blocked.iter().map(|b| (b.model.as_str(), 1)));
    let unplaced = counted(plan.unplaced.iter().map(|u| (u.model.as_str(), u.replicas as usize)));
    let plain = |word, names: BTreeMap<_, _>, hurts, ink| Group {
        word,
        count: names.values().sum(),
        names,
        note: String::new(),
        hurts,
        ink,
    };
    let all = vec![
        verb(Verb::Fetch, false),
        verb(Verb::Adopt, false),
        verb(Verb::Start, false),
        plain("deferred", deferred, false, Ink::Dim),
        verb(Verb::Change, true),
        verb(Verb::Restart, true),
        verb(Verb::Move, true),
        plain("blocked", blocked, true, Ink::Bad),
        plain("NOT PLACED", unplaced, true, Ink::Bad),
        verb(Verb::Stop, true),
    ];
    all.into_iter().filter(|group| group.count > 0).collect()
}

fn counted<'a>(models: impl Iterator<Item = (&'a str, usize)>) -> BTreeMap<&'a str, usize> {
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    for (model, number) in models {
        *names.entry(if model == "*" { "everything" } else { model }).or_default() += number;
    }
    names
}

/// Counts and names. Never folded: a stop must be findable.
pub(super) fn summary(plan: &Plan, style: &Style) -> String {
    let groups = groups(plan);
    let mut counts: Vec<String> = groups
        .iter()
        .map(|group| match group.word {
            "deferred" | "blocked" | "NOT PLACED" => format!("{} {}", group.count, group.word),
            verb => format!("{} to {verb}", group.count),
        })
        .collect();
    if plan.summary.unchanged > 0 {
        let before = groups.iter().take_while(|group| !group.hurts).count();
        counts.insert(before, format!("{} unchanged", plan.summary.unchanged));
    }
    let all = if counts.is_empty() { "nothing to do".to_owned() } else { counts.join(", ") };
    let mut out = style.beside(&format!("{} ", style.paint(Ink::Heading, "Summary:")), &all);
    let width = groups.iter().map(|group| group.word.len()).max().unwrap_or(0);
    for group in &groups {
        let lead = format!("  {}  ", style.paint(group.ink, &pad(group.word, width)));
        let note = if group.note.is_empty() { String::new() } else { format!(" ({})", group.note) };
        out.push_str(&style.beside(&lead, &format!("{}{note}", listed(&group.names))));
    }
    out
}

fn listed(names: &BTreeMap<&str, usize>) -> String {
    let words: Vec<String> = names
        .iter()
        .map(|(name, count)| if *count == 1 { (*name).to_owned() } else { format!("{name} ({count})") })
        .collect();
    words.join(", ")
}

/// What to run next, and which exit code to expect where it is not 0.
pub(super) fn next_commands(plan: &Plan, view: &PlanView<'_>, style: &Style) -> String {
    outlook(plan, view).iter().map(|line| style.beside("", line)).collect()
}

/// The same, a line each.
pub(super) fn outlook(plan: &Plan, view: &PlanView<'_>) -> Vec<String> {
    let flock = view.flock.unwrap_or("flock");
    let mut out = Vec::new();
    let named = |way_out: bool| -> Vec<&str> {
        let of = |u: &&crate::placement::Unplaced| u.required && super::egress::is_way_out(u) == way_out;
        plan.unplaced.iter().filter(of).map(|u| u.model.as_str()).collect()
    };
    let required = named(false);
    let lost: BTreeSet<&str> = match view.missing {
        Some(missing) => missing.iter().map(String::as_str).collect(),
        None => plan.decay.iter().filter(|d| d.kind == "node_unreachable").map(|d| d.node.as_str()).collect(),
    };
    let lost: Vec<&str> = lost.into_iter().collect();
    if let Some(first) = required.first() {
        let names = required.join(", ");
        // One code per run: missing facts come before what does not fit.
        let code = if lost.is_empty() { "Exit code 4: " } else { "" };
        let stops = |model: &&str| plan.steps.iter().any(|step| step.verb == Verb::Stop && step.model == **model);
        let stops: Vec<&str> = required.iter().filter(|model| stops(model)).copied().collect();
        let also = if stops.is_empty() { String::new() } else { format!(" {} stops all the same.", stops.join(", ")) };
        out.push(format!("{code}{names} cannot have its minimum of replicas.{also} Why: {flock} explain {first}"));
    }
    let ways = named(true);
    if let Some(first) = ways.first() {
        let code = if lost.is_empty() { "Exit code 4: " } else { "" };
        out.push(format!(
            "{code}{} cannot be reached as {} must be. Why: {flock} explain {first}",
            ways.join(", "),
            if ways.len() == 1 { "it" } else { "they" }
        ));
    }
    if !lost.is_empty() {
        let names = lost.join(",");
        out.push(format!("Exit code 9: facts of {} are missing. Leave out with: --exclude {names}", lost.join(", ")));
    }
    if !plan.blocked.is_empty() {
        let who = if view.applying { "This" } else { "flock apply" };
        out.push(format!("{who} ends with exit code 7: see Blocked."));
    }
    match (plan.steps.is_empty(), view.saved_to) {
        (true, _) => {}
        (false, _) if view.applying => {}
        (false, saved) if view.against.is_some() => {
            let revision = clean(view.against.unwrap_or_default());
            let apply = saved.map_or(format!("{flock} apply"), |file| format!("{flock} apply {file}"));
            let file = saved.map(|file| format!("Saved to {file}. ")).unwrap_or_default();
            out.push(format!("{file}This is the plan of {revision}. To apply it, check that out, then: {apply}"));
        }
        (false, Some(file)) => out.push(format!("Saved to {file}. Apply exactly this with: {flock} apply {file}")),
        (false, None) => {
            out.push(format!("Apply with: {flock} apply    Keep exactly this with: {flock} plan --out plan.json"));
        }
    }
    out
}
