//! What a prompt must have confirmed before a plan is applied, and what no answer confirms.

use serde::Serialize;

use super::{Because, Plan, Verb};

/// How strong a yes must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Strength {
    /// The plan changes something; any apply asks for it, `--yes` confirms.
    Ordinary,
    /// Something stops; `--yes` confirms. A controller without a human waits.
    Destructive,
    /// These steps are not in the plan; the rest can be applied, and the exit code is 7.
    Refused,
    /// Nothing of the plan may be applied: exit 7.
    RefusedWhole,
}

/// Something to agree to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Consent {
    /// How strong a yes must be.
    pub strength: Strength,
    /// One sentence.
    pub text: String,
    /// The steps it is about.
    pub steps: Vec<u32>,
    /// The models it is about.
    pub models: Vec<String>,
}

/// Everything to agree to before applying, weakest first. Empty for an empty plan with nothing blocked.
pub fn consent(plan: &Plan) -> Vec<Consent> {
    let mut wanted = Vec::new();
    if !plan.steps.is_empty() {
        let count = plan.steps.len();
        let text = format!("apply {count} step{}", if count == 1 { "" } else { "s" });
        wanted.push(Consent {
            strength: Strength::Ordinary,
            text,
            steps: plan.steps.iter().map(|step| step.id).collect(),
            models: Vec::new(),
        });
    }
    let stops = |pruned: bool| {
        let chosen: Vec<_> = plan
            .steps
            .iter()
            .filter(|step| step.verb == Verb::Stop && step.confirm.is_some() == pruned)
            .filter(|step| pruned || !comes_back(plan, &step.model, step.replica))
            .collect();
        let mut models: Vec<String> = chosen.iter().map(|step| step.model.clone()).collect();
        models.sort();
        models.dedup();
        (chosen.iter().map(|step| step.id).collect::<Vec<_>>(), models)
    };
    let (steps, models) = stops(false);
    if !steps.is_empty() {
        let preempted = plan.steps.iter().any(|s| steps.contains(&s.id) && s.because == Because::Preempted);
        let why = if preempted { ", some to make room for a higher priority" } else { "" };
        let text = format!("stop {}{why}", models.join(", "));
        wanted.push(Consent { strength: Strength::Destructive, text, steps, models });
    }
    let (steps, models) = stops(true);
    if !steps.is_empty() {
        let text = format!("stop {}, gone from the config (prune \"confirm\")", models.join(", "));
        wanted.push(Consent { strength: Strength::Destructive, text, steps, models });
    }
    for blocked in &plan.blocked {
        let whole = blocked.model == "*" || blocked.policy == "empty";
        wanted.push(Consent {
            strength: if whole { Strength::RefusedWhole } else { Strength::Refused },
            text: format!("{}: {}", blocked.policy, blocked.remedy),
            steps: Vec::new(),
            models: vec![blocked.model.clone()],
        });
    }
    wanted.sort_by_key(|consent| consent.strength);
    wanted
}

/// Whether a stop is the first half of a stop and start.
fn comes_back(plan: &Plan, model: &str, replica: u32) -> bool {
    plan.steps.iter().any(|step| step.verb == Verb::Start && step.model == model && step.replica == replica)
}
