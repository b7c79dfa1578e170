//! An apply while it runs, one line per event, and what became of it in the end.

use super::json::DriftDocument;
use super::style::{Ink, Style, clean};
use super::words::{self, about, about_long, count};
use crate::base::{format_bytes, format_rate};
use crate::plan::{Consent, Event, Outcome, Plan, Step, Strength};

/// One event as a line without its newline; `None` where there is nothing to tell.
pub fn event_line(event: &Event, style: &Style) -> Option<String> {
    let line = match event {
        Event::ApplyStarted { cluster, steps, download_bytes, .. } => {
            let bytes = match download_bytes {
                0 => String::new(),
                bytes => format!(", {} to bring", format_bytes(*bytes)),
            };
            if *steps == 0 {
                return Some(format!("nothing to do in cluster \"{cluster}\"; the nodes are told what was applied"));
            }
            format!("applying {} to cluster \"{cluster}\"{bytes}", count(*steps as usize, "step"))
        }
        Event::Node { node, ok: true, text } => format!("  {node}: {}", clean(text)),
        Event::Node { node, ok: false, text } => {
            format!("  {node}: {} {}", style.paint(Ink::Bad, "not ready:"), clean(text))
        }
        Event::StepStarted { step, verb, model, replica, node, .. } => {
            let (symbol, word) = words::verb(*verb);
            format!(
                "{step:>4} {} {model}/{replica} on {node}",
                style.paint(words::ink(*verb), &format!("{symbol} {word}"))
            )
        }
        Event::StepProgress {
            step,
            done_bytes: Some(done),
            total_bytes: Some(total),
            bytes_per_s,
            left_ms,
            text,
            ..
        } => {
            let percent = if *total == 0 { 100 } else { done.saturating_mul(100) / total };
            let rate = bytes_per_s.map(|rate| format!(", {}", format_rate(rate))).unwrap_or_default();
            let left = left_ms.map(|ms| format!(", {} left", about_long(ms))).unwrap_or_default();
            format!("{step:>4}   {percent:>3} % of {}: {}{rate}{left}", format_bytes(*total), clean(text))
        }
        Event::StepProgress { step, text, .. } => format!("{step:>4}   {}", clean(text)),
        Event::StepDone { step, took_ms, text, .. } => {
            format!(
                "{step:>4} {} in {}: {}",
                style.paint(Ink::Good, "done"),
                about(*took_ms).trim_start_matches('~'),
                clean(text)
            )
        }
        Event::StepFailed { step, node, text, hint, .. } => {
            let hint = hint.as_ref().map(|hint| format!("\n       hint: {}", clean(hint))).unwrap_or_default();
            format!("{step:>4} {} on {node}: {}{hint}", style.paint(Ink::Bad, "FAILED"), clean(text))
        }
        Event::StepSkipped { step, text, .. } => {
            format!("{step:>4} {}: {}", style.paint(Ink::Change, "not started"), clean(text))
        }
        Event::ApplyEnded { .. } => return None,
    };
    Some(line)
}

/// Done, failed and not started, each by name, and `again`, the command that continues.
pub fn outcome_text(outcome: &Outcome, plan: &Plan, again: &str, style: &Style) -> String {
    let named = |id: u32| plan.steps.iter().find(|step| step.id == id).map_or_else(|| format!("step {id}"), name);
    let mut out = String::new();
    let total = plan.steps.len();
    let word = if outcome.interrupted {
        "Interrupted"
    } else if outcome.complete() {
        "Applied"
    } else {
        "Applied in part"
    };
    let ink = if outcome.complete() { Ink::Good } else { Ink::Bad };
    let counts =
        [(outcome.done.len(), "done"), (outcome.failed.len(), "failed"), (outcome.not_started.len(), "not started")];
    let counts: Vec<String> = counts.iter().filter(|(n, _)| *n > 0).map(|(n, word)| format!("{n} {word}")).collect();
    let counts = if counts.is_empty() { "nothing to do".to_owned() } else { counts.join(", ") };
    out.push_str(&format!("{}: {counts} of {}\n", style.paint(ink, word), count(total, "step")));
    if !outcome.done.is_empty() {
        let names: Vec<String> = outcome.done.iter().map(|id| named(*id)).collect();
        out.push_str(&style.beside("  done         ", &names.join(", ")));
    }
    for end in &outcome.failed {
        let lead = format!("  {}       {}: ", style.paint(Ink::Bad, "FAILED"), named(end.step));
        out.push_str(&style.beside(&lead, &clean(&end.text)));
        if let Some(hint) = &end.hint {
            out.push_str(&style.beside("               hint: ", &clean(hint)));
        }
    }
    for end in &outcome.not_started {
        let lead = format!("  {}  {}: ", style.paint(Ink::Change, "not started"), named(end.step));
        out.push_str(&style.beside(&lead, &clean(&end.text)));
    }
    if !outcome.complete() {
        out.push_str(&format!("Running it again is safe and goes on where this ended: {again}\n"));
    }
    out
}

fn name(step: &Step) -> String {
    let (_, word) = words::verb(step.verb);
    format!("{word} {}/{} on {}", step.model, step.replica, step.node)
}

/// What a prompt asks for, and what is refused whatever the answer; one line each.
pub fn consent_text(wanted: &[Consent], style: &Style) -> String {
    wanted
        .iter()
        .map(|consent| {
            let (word, ink) = match consent.strength {
                Strength::Ordinary => ("to confirm", Ink::Heading),
                Strength::Destructive => ("to confirm", Ink::Bad),
                Strength::Refused => ("refused", Ink::Bad),
                Strength::RefusedWhole => ("nothing is applied", Ink::Bad),
            };
            style.beside(&format!("  {}: ", style.paint(ink, word)), &consent.text)
        })
        .collect()
}

/// Drift and decay alone, for `flock drift`.
pub fn drift_text(found: &DriftDocument<'_>, style: &Style) -> String {
    let mut out = String::new();
    super::plan_text::drift(&mut out, found.drift, found.decay, style);
    if out.is_empty() {
        return "No drift: everything runs as it was applied.\n".to_owned();
    }
    out.trim_start_matches('\n').to_owned()
}
