//! What has no place in the end and runs on for now, because the stop that would take its place is held.
//!
//! A model is below its minimum once this plan is carried out, not once every window has passed: while a held stop keeps
//! its replicas running, nothing is infeasible yet.

use std::collections::BTreeSet;

use super::gate::Gated;
use super::{Observed, PlanInput, PlannedInstance, Verb};
use crate::placement::{Reason, Unplaced};

/// Takes `required` from what still has its minimum of replicas when this plan is done, and says what keeps them.
pub(super) fn keep(
    unplaced: &mut [Unplaced],
    gated: &Gated,
    planned: &[PlannedInstance],
    observed: &[Observed],
    input: &PlanInput<'_>,
) {
    for missing in unplaced.iter_mut().filter(|missing| missing.required) {
        let Some(model) = input.desired.models.get(&missing.model) else { continue };
        let ends = |index: usize| {
            let ends = |verb| matches!(verb, Verb::Stop | Verb::Move | Verb::Change);
            gated.drafts.iter().any(|draft| draft.old == Some(index) && ends(draft.step.verb))
        };
        let places: BTreeSet<(&str, u32)> =
            planned.iter().filter(|p| p.model == missing.model).map(|p| (p.node.as_str(), p.replica)).collect();
        let placed: BTreeSet<u32> = places.iter().map(|(_, replica)| *replica).collect();
        let stays: Vec<&Observed> = observed
            .iter()
            .enumerate()
            .filter(|(index, o)| o.model == missing.model && o.alive && o.reachable && !ends(*index))
            .filter(|(_, o)| !placed.contains(&o.replica))
            .map(|(_, o)| o)
            .collect();
        let replicas: BTreeSet<u32> = placed.iter().copied().chain(stays.iter().map(|o| o.replica)).collect();
        if stays.is_empty() || (replicas.len() as u64) < u64::from(model.replicas.min) {
            continue;
        }
        let Some((constraint, why)) = held(gated, &missing.model) else { continue };
        missing.required = false;
        missing.reasons.extend(stays.iter().map(|o| Reason {
            node: o.node.clone(),
            alike: 0,
            constraint: constraint.to_owned(),
            needed: None,
            available: None,
            unit: None,
            text: format!("{}/{} runs on here: {why}; it has no place once that is over", o.model, o.replica),
        }));
    }
}

/// What holds the stops of a model, as a constraint and as a clause.
fn held(gated: &Gated, model: &str) -> Option<(&'static str, String)> {
    if let Some(blocked) = gated.blocked.iter().find(|blocked| blocked.model == model) {
        return Some(("hold", format!("its stop is refused for now ({}: {})", blocked.policy, blocked.remedy)));
    }
    let stops = gated.deferred.iter().filter(|deferred| deferred.model == model);
    let deferred = stops.clone().find(|deferred| deferred.verb == Some(Verb::Stop)).or_else(|| stops.clone().next())?;
    let constraint = if deferred.reason == "window" { "window" } else { "hold" };
    let why = match deferred.reason.as_str() {
        "window" => "a window holds its stop, or the start that needs its place",
        "moves_per_hour" => "`limit moves-per-hour` holds its stop",
        "paused" => "its stop is paused",
        "distrust" => "the facts are not trusted while most nodes are away",
        "selection" => "its stop is not part of this run (--on, --exclude, or a drain)",
        _ => "its stop waits for a node that does not answer",
    };
    Some((constraint, why.to_owned()))
}
