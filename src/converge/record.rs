//! The member record as an apply leaves it: nodes, protections, what runs, who applied what.

use std::collections::BTreeSet;

use crate::inventory::{Applied, MemberInstance, MemberNode, MemberRecord, Protection};
use crate::plan::{Outcome, Plan, PlannedInstance, Verb, plan_digest};

/// The record that fences an apply off from older ones: written before its first step.
pub(super) fn begun(
    old: &MemberRecord,
    generation: u64,
    nodes: &[MemberNode],
    leaving: &[MemberNode],
    protect: &BTreeSet<String>,
    now: &str,
) -> MemberRecord {
    let mut member = MemberRecord { generation, lease: None, ..old.clone() };
    member.nodes = [nodes, leaving].concat();
    member.nodes.sort_by(|a, b| a.name.cmp(&b.name));
    for model in protect {
        if !member.protections.iter().any(|protection| &protection.model == model) {
            let reason = "config".to_owned();
            member.protections.push(Protection { model: model.clone(), since: now.to_owned(), reason });
        }
    }
    member.protections.sort_by(|a, b| a.model.cmp(&b.model));
    member
}

/// Who applied what.
pub(super) fn applied(plan: &Plan, outcome: &Outcome, action: &str, by: &str, now: &str) -> Applied {
    Applied {
        action: action.to_owned(),
        done: outcome.done.len() as u32,
        failed: outcome.failed.len() as u32,
        not_started: outcome.not_started.len() as u32,
        commit: plan.commit.clone(),
        dirty: plan.dirty,
        config_digest: plan.config_digest.clone(),
        plan_digest: plan_digest(plan).to_string(),
        by: by.to_owned(),
        at: now.to_owned(),
    }
}

/// What runs now: what ran before, changed by the steps that are done. What a plan wanted and did not get (limited,
/// deferred, blocked, failed) is not claimed, so that a node that is away later is not believed to serve it.
pub(super) fn left_running(plan: &Plan, running: &[MemberInstance], outcome: &Outcome) -> Vec<MemberInstance> {
    let mut left = running.to_vec();
    for step in plan.steps.iter().filter(|step| outcome.done.contains(&step.id)) {
        let gone = if step.verb == Verb::Stop { &step.instance } else { &step.from_instance };
        let from = step.from_node.as_ref().unwrap_or(&step.node);
        left.retain(|known| Some(&known.instance) != gone.as_ref() || &known.node != from);
        let planned = plan.instances.iter().find(|planned| Some(&planned.instance) == step.instance.as_ref());
        if let Some(planned) = planned.filter(|_| !matches!(step.verb, Verb::Stop | Verb::Fetch)) {
            left.retain(|known| known.instance != planned.instance || known.node != planned.node);
            left.push(remembered(planned));
        }
    }
    left.sort_by(|a, b| (&a.model, a.replica, &a.node).cmp(&(&b.model, b.replica, &b.node)));
    left
}

fn remembered(planned: &PlannedInstance) -> MemberInstance {
    MemberInstance {
        node: planned.node.clone(),
        instance: planned.instance.clone(),
        specification: planned.specification.clone(),
        model: planned.model.clone(),
        replica: planned.replica,
        engine: planned.engine,
        variant: planned.variant.clone(),
        accelerators: planned.accelerators.clone(),
        port: planned.port,
    }
}
