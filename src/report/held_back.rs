//! What is planned and not begun, because a policy refuses it or it is put off; and where it runs meanwhile.

use serde::Serialize;

use super::plan_text::deferred_because;
use super::words::place;
use crate::base::InstanceState;
use crate::inventory::Inventory;
use crate::plan::{Blocked, Observed, Plan, PlannedInstance, Verb};

/// An instance that does not become what is planned.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HeldBack<'a> {
    /// The model.
    pub model: &'a str,
    /// Replica number.
    pub replica: u32,
    /// The planned instance.
    pub instance: &'a str,
    /// Where it should run.
    pub node: &'a str,
    /// On which accelerators; empty on the CPU.
    pub accelerators: &'a [String],
    /// What runs of it meanwhile; `null` where nothing does.
    pub stays: Option<Stays<'a>>,
    /// What refuses it, or puts it off, and what to do.
    pub why: String,
}

/// What runs meanwhile.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Stays<'a> {
    /// Its instance.
    pub instance: &'a str,
    /// Its node.
    pub node: &'a str,
    /// Its accelerators; empty on the CPU.
    pub accelerators: &'a [String],
}

impl HeldBack<'_> {
    /// What is the case instead, in words.
    pub fn text(&self, inventory: Option<&Inventory>) -> String {
        match &self.stays {
            Some(stays) if (stays.node, stays.accelerators) == (self.node, self.accelerators) => {
                format!("runs there as it was and stays so: {}", self.why)
            }
            Some(stays) => {
                format!("runs on {} and stays there: {}", place(stays.node, stays.accelerators, inventory), self.why)
            }
            None => format!("does not run: {}", self.why),
        }
    }

    /// Whether it is this planned instance.
    pub fn is(&self, planned: &PlannedInstance) -> bool {
        (self.instance, self.node) == (planned.instance.as_str(), planned.node.as_str())
    }
}

/// Every planned instance that is held back, in the plan's order.
pub fn held_back<'a>(plan: &'a Plan, observed: &'a [Observed]) -> Vec<HeldBack<'a>> {
    plan.instances.iter().filter_map(|planned| one(plan, planned, observed)).collect()
}

fn one<'a>(plan: &'a Plan, planned: &'a PlannedInstance, observed: &'a [Observed]) -> Option<HeldBack<'a>> {
    let begun = plan.steps.iter().any(|step| {
        !matches!(step.verb, Verb::Stop | Verb::Fetch)
            && step.node == planned.node
            && step.instance.as_ref() == Some(&planned.instance)
    });
    let here = observed.iter().find(|o| o.instance == planned.instance && o.node == planned.node);
    let as_planned =
        here.is_some_and(|o| o.specification == planned.specification && o.state != Some(InstanceState::Failed));
    if begun || as_planned {
        return None;
    }
    let taken = |o: &Observed| plan.instances.iter().any(|p| p.instance == o.instance && p.node == o.node);
    let stopped = |o: &Observed| {
        plan.steps.iter().any(|s| s.verb == Verb::Stop && s.node == o.node && s.instance.as_ref() == Some(&o.instance))
    };
    let elsewhere = observed.iter().find(|o| {
        (o.model.as_str(), o.replica, o.is_worker()) == (planned.model.as_str(), planned.replica, planned.is_worker())
            && !taken(o)
            && !stopped(o)
    });
    let stays = here.or(elsewhere).filter(|o| o.alive || o.serving());
    let why = why(plan, planned, stays.map(|o| o.node.as_str()))?;
    Some(HeldBack {
        model: &planned.model,
        replica: planned.replica,
        instance: &planned.instance,
        node: &planned.node,
        accelerators: &planned.accelerators,
        stays: stays.map(|o| Stays { instance: &o.instance, node: &o.node, accelerators: &o.accelerators }),
        why,
    })
}

/// What the plan says of a model that it refuses or puts off.
fn why(plan: &Plan, planned: &PlannedInstance, runs_on: Option<&str>) -> Option<String> {
    let of = |model: &str| model == planned.model || model == "*";
    if let Some(blocked) = plan.blocked.iter().find(|blocked| of(&blocked.model)) {
        return Some(refused(blocked));
    }
    let here = |node: &str| node == planned.node || Some(node) == runs_on;
    let mut deferred = plan.deferred.iter().filter(|deferred| of(&deferred.model));
    let found = deferred.clone().find(|deferred| here(&deferred.node)).or_else(|| deferred.next())?;
    Some(deferred_because(&found.reason).to_owned())
}

fn refused(blocked: &Blocked) -> String {
    match blocked.policy.as_str() {
        "protect" => format!("protected ({})", blocked.remedy),
        "approval" => blocked.remedy.clone(),
        policy => format!("{policy}: {}", blocked.remedy),
    }
}
