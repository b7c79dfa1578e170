//! The member record as an apply leaves it: nodes, protections, what runs, who applied what.

use std::collections::BTreeSet;

use crate::inventory::{
    Applied, MOVES_LENGTH, MemberEgress, MemberInstance, MemberNode, MemberRecord, PastMove, Protection,
};
use crate::plan::{APPROVAL_MS, Outcome, Plan, PlannedInstance, Step, Verb, moves, plan_digest, step_key};

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

/// Writes down what moved, for `limit moves-per-hour`, and forgets what is older than an hour, and approvals of what is
/// done or that nobody used within their time. `of` are the steps that count: all that are about to be begun, so that an
/// apply that dies is not taken for one that moved nothing, and afterwards those that were.
pub(super) fn keep_count(
    member: &mut MemberRecord,
    before: &MemberRecord,
    plan: &Plan,
    now: u64,
    of: &dyn Fn(&Step) -> bool,
) {
    const HOUR_MS: u64 = 3_600_000;
    member.moves =
        before.moves.iter().filter(|moved| moved.at_unix_ms.saturating_add(HOUR_MS) > now).cloned().collect();
    let new = moves(&plan.steps).into_iter().filter(|step| of(step)).map(|step| PastMove {
        at_unix_ms: now,
        model: step.model.clone(),
        node: step.from_node.as_ref().unwrap_or(&step.node).clone(),
    });
    member.moves.extend(new);
    let more = member.moves.len().saturating_sub(MOVES_LENGTH);
    member.moves.drain(..more);
    member.approvals.retain(|given| given.at_unix_ms.saturating_add(APPROVAL_MS) > now);
}

/// Takes the steps that are done out of what people agreed to: done again, they need another yes.
pub(super) fn use_up(member: &mut MemberRecord, plan: &Plan, outcome: &Outcome) {
    let done = plan.steps.iter().filter(|step| outcome.done.contains(&step.id));
    let keys: BTreeSet<String> = done.map(|step| step_key(&plan.cluster, step)).collect();
    for given in &mut member.approvals {
        given.steps.retain(|key| !keys.contains(key));
    }
    member.approvals.retain(|given| !given.steps.is_empty());
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

/// The egress nodes of a plan, as the record keeps them.
pub fn ways_out(plan: &Plan) -> Vec<MemberEgress> {
    let kept = |way: &crate::plan::Egress| MemberEgress {
        provider_model: way.provider_model.clone(),
        agent: way.agent.clone(),
        node: way.node.clone(),
    };
    plan.egress.iter().map(kept).collect()
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
        part: planned.spec.part.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Approved;
    use crate::plan::testing::{Wish, World};

    const HOUR: u64 = 3_600_000;

    #[test]
    fn moves_are_kept_for_an_hour_and_approvals_until_they_are_used() {
        let mut world = World::new(&[("ada-1", 2), ("ada-2", 2)]);
        let wishes = [Wish::new("coder", 1), Wish::new("gone", 4)];
        world.want(&wishes, &[("coder", 0, "ada-1", vec![0], 18), ("gone", 0, "ada-1", vec![1], 18)]);
        world.converge();
        world.want(&wishes[..1], &[("coder", 0, "ada-2", vec![0], 18)]);
        let plan = world.plan();
        let step = |verb| plan.steps.iter().find(|step| step.verb == verb).expect("planned");
        let now = 10 * HOUR;
        let at = |at_unix_ms| PastMove { at_unix_ms, model: "x".into(), node: "ada-2".into() };
        let mut before = MemberRecord { moves: vec![at(now - HOUR), at(now - HOUR + 1)], ..MemberRecord::default() };
        let keys = [Verb::Move, Verb::Stop].map(|verb| step_key(&plan.cluster, step(verb))).to_vec();
        before.approvals = vec![
            Approved { at_unix_ms: now, steps: keys.clone(), ..Approved::default() },
            Approved { at_unix_ms: now, steps: keys[..1].to_vec(), ..Approved::default() },
        ];
        let mut member = before.clone();
        keep_count(&mut member, &before, &plan, now, &|_| true);
        let new = PastMove { at_unix_ms: now, model: "coder".into(), node: "ada-1".into() };
        assert_eq!(member.moves, [at(now - HOUR + 1), new], "the stop of what is gone is no move");
        // What was not begun after all is no move either, and its approval holds.
        keep_count(&mut member, &before, &plan, now, &|step| step.verb != Verb::Move);
        assert_eq!(member.moves, [at(now - HOUR + 1)]);
        let outcome = Outcome { done: vec![step(Verb::Move).id], ..Outcome::default() };
        use_up(&mut member, &plan, &outcome);
        assert_eq!(member.approvals.iter().map(|given| given.steps.clone()).collect::<Vec<_>>(), [keys[1..].to_vec()]);
        keep_count(&mut member, &before, &plan, now + APPROVAL_MS, &|_| false);
        assert!(member.approvals.is_empty() && member.moves.is_empty());
        // Never more than there is room for.
        before.moves = vec![at(now); MOVES_LENGTH];
        keep_count(&mut member, &before, &plan, now, &|_| true);
        assert_eq!(
            (member.moves.len(), member.moves.last().map(|moved| moved.model.as_str())),
            (MOVES_LENGTH, Some("coder"))
        );
    }
}
