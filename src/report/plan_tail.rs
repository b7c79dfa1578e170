//! The end of a plan: names grouped by verb, dangerous verbs last, and what to run next with its exit code.

use std::collections::{BTreeMap, BTreeSet};

use super::plan_text::PlanView;
use super::style::{Ink, Style, pad};
use super::words;
use crate::base::format_bytes;
use crate::plan::{Plan, Verb};

/// In this order, what hurts last.
const ORDER: &[Verb] = &[Verb::Fetch, Verb::Adopt, Verb::Start, Verb::Restart, Verb::Change, Verb::Move, Verb::Stop];

/// Counts and names. Never folded: a stop must be findable.
pub(super) fn summary(plan: &Plan, style: &Style) -> String {
    let mut counts = Vec::new();
    let mut lines: Vec<(String, String, Ink)> = Vec::new();
    for verb in ORDER {
        let mut names: BTreeMap<&str, usize> = BTreeMap::new();
        let steps: Vec<_> = plan.steps.iter().filter(|step| step.verb == *verb).collect();
        if *verb == Verb::Stop {
            rest(plan, &mut counts, &mut lines);
        }
        if steps.is_empty() {
            continue;
        }
        let (_, word) = words::verb(*verb);
        counts.push(format!("{} to {word}", steps.len()));
        for step in &steps {
            *names.entry(step.model.as_str()).or_default() += 1;
        }
        let bytes = steps.iter().map(|step| step.download_bytes).fold(0, u64::saturating_add);
        let note = if *verb == Verb::Fetch { format!(" ({} in all)", format_bytes(bytes)) } else { String::new() };
        lines.push((word.to_owned(), format!("{}{note}", listed(&names)), words::ink(*verb)));
    }
    let all = if counts.is_empty() { "nothing to do".to_owned() } else { counts.join(", ") };
    let mut out = style.beside(&format!("{} ", style.paint(Ink::Heading, "Summary:")), &all);
    let width = lines.iter().map(|(word, ..)| word.len()).max().unwrap_or(0);
    for (word, names, ink) in lines {
        let lead = format!("  {}  ", style.paint(ink, &pad(&word, width)));
        out.push_str(&style.beside(&lead, &names));
    }
    out
}

fn rest(plan: &Plan, counts: &mut Vec<String>, lines: &mut Vec<(String, String, Ink)>) {
    if plan.summary.unchanged > 0 {
        counts.push(format!("{} unchanged", plan.summary.unchanged));
    }
    let mut group = |word: &str, models: Vec<(&str, usize)>, ink: Ink| {
        if models.is_empty() {
            return;
        }
        let mut names: BTreeMap<&str, usize> = BTreeMap::new();
        for (model, number) in models {
            *names.entry(if model == "*" { "everything" } else { model }).or_default() += number;
        }
        counts.push(format!("{} {word}", names.values().sum::<usize>()));
        lines.push((word.to_owned(), listed(&names), ink));
    };
    group("deferred", plan.deferred.iter().map(|d| (d.model.as_str(), 1)).collect(), Ink::Dim);
    group("blocked", plan.blocked.iter().map(|b| (b.model.as_str(), 1)).collect(), Ink::Bad);
    let unplaced = plan.unplaced.iter().map(|u| (u.model.as_str(), u.replicas as usize)).collect();
    group("NOT PLACED", unplaced, Ink::Bad);
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
    let mut out = String::new();
    let mut say = |text: String| out.push_str(&style.beside("", &text));
    let required: Vec<&str> = plan.unplaced.iter().filter(|u| u.required).map(|u| u.model.as_str()).collect();
    if let Some(first) = required.first() {
        let names = required.join(", ");
        say(format!("Exit code 4: {names} cannot have its minimum of replicas. Why: flock explain {first}"));
    }
    let lost: BTreeSet<&str> = match view.missing {
        Some(missing) => missing.iter().map(String::as_str).collect(),
        None => plan.decay.iter().filter(|d| d.kind == "node_unreachable").map(|d| d.node.as_str()).collect(),
    };
    let lost: Vec<&str> = lost.into_iter().collect();
    if !lost.is_empty() {
        let names = lost.join(",");
        say(format!("Exit code 9: facts of {} are missing. Leave out with: --exclude {names}", lost.join(", ")));
    }
    if !plan.blocked.is_empty() {
        let who = if view.applying { "This" } else { "flock apply" };
        say(format!("{who} ends with exit code 7: see Blocked."));
    }
    match (plan.steps.is_empty(), view.saved_to) {
        (true, _) => {}
        (false, _) if view.applying => {}
        (false, Some(file)) => say(format!("Saved to {file}. Apply exactly this with: flock apply {file}")),
        (false, None) => {
            say("Apply with: flock apply    Keep exactly this with: flock plan --out plan.json".to_owned())
        }
    }
    out
}
