//! The plan of `flock destroy`: stops for every instance of this cluster, and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use super::build::summary;
use super::digest::inventory_digest;
use super::protect::Protections;
use super::rules::Rules;
use super::{
    ApprovalWanted, Because, Blocked, Deferred, Limits, Moment, Observed, ObservedSpecs, Plan, Step, Summary, Verb,
    hold, observe,
};
use crate::config::Desired;
use crate::inventory::Inventory;
use crate::placement::SolverReport;

/// What a destroy is computed from.
#[derive(Debug, Clone)]
pub struct DestroyInput<'a> {
    /// The config: its cluster's name, its protections, its nodes.
    pub desired: &'a Desired,
    /// Digest of its meaning.
    pub config_digest: String,
    /// HEAD of the config repository.
    pub commit: Option<String>,
    /// Whether the working tree differs from it.
    pub dirty: bool,
    /// What is.
    pub inventory: &'a Inventory,
    /// What the nodes are told to run.
    pub observed: &'a ObservedSpecs,
    /// Which nodes may be touched.
    pub limits: Limits,
    /// When it is made.
    pub moment: Moment,
}

/// The step that ends what a worker works for.
fn ends_after(o: &Observed, steps: &[Step]) -> Vec<u32> {
    let part = o.part.as_ref().filter(|_| o.is_worker());
    let serving = part.and_then(|part| steps.iter().find(|step| step.instance.as_ref() == Some(&part.instance)));
    serving.map(|step| step.id).into_iter().collect()
}

/// Stops for every instance of this cluster on every node that the config or the member record knows.
pub fn destroy_plan(input: &DestroyInput<'_>) -> Plan {
    let rules = Rules::of(&input.desired.policies);
    let protections = Protections::of(&rules.protect, &input.inventory.member);
    let observed = observe(input.inventory, input.observed);
    let mut steps: Vec<Step> = Vec::new();
    let mut deferred: BTreeSet<(String, String, &str)> = BTreeSet::new();
    let mut blocked = Vec::new();
    // A worker ends after what it works for.
    let (workers, serving): (Vec<&Observed>, Vec<&Observed>) = observed.iter().partition(|o| o.is_worker());
    for o in serving.into_iter().chain(workers) {
        let labels = super::input::labels_of(input.desired, input.inventory, &o.node);
        if !input.limits.allow(&o.node, labels) {
            deferred.insert((o.model.clone(), o.node.clone(), "selection"));
        } else if !o.reachable {
            deferred.insert((o.model.clone(), o.node.clone(), "unreachable"));
        } else if let Some(protection) = protections.get(&o.model) {
            blocked.push(Blocked {
                model: o.model.clone(),
                policy: "protect".to_owned(),
                since: protection.since.clone(),
                remedy: protection.remedy(&o.model),
            });
        } else {
            steps.push(Step {
                id: steps.len() as u32 + 1,
                verb: Verb::Stop,
                model: o.model.clone(),
                replica: o.replica,
                instance: Some(o.instance.clone()),
                node: o.node.clone(),
                from_node: None,
                because: Because::Removed,
                detail: format!("flock destroy of cluster \"{}\"", input.desired.cluster.name.value),
                after: ends_after(o, &steps),
                from_instance: None,
                route: None,
                download_bytes: 0,
                estimated_ms: None,
                downtime_ms: 0,
                sessions: o.sessions,
                state_bytes: 0,
                interrupts: o.alive,
                fetch: None,
                confirm: None,
            });
        }
    }
    blocked.dedup();
    let approvals = held(&mut steps, &mut blocked, input);
    let members = input.inventory.member.nodes.iter().map(|member| &member.name);
    for name in input.desired.nodes.keys().chain(members) {
        let labels = super::input::labels_of(input.desired, input.inventory, name);
        if input.limits.allow(name, labels) && !input.inventory.node(name).is_some_and(|facts| facts.reachable) {
            deferred.insert(("*".to_owned(), name.clone(), "unreachable"));
        }
    }
    let mut plan = Plan {
        format: 1,
        cluster: input.desired.cluster.name.value.clone(),
        commit: input.commit.clone(),
        dirty: input.dirty,
        config_digest: input.config_digest.clone(),
        inventory_digest: inventory_digest(input.inventory).to_string(),
        solver: SolverReport {
            status: "optimal".to_owned(),
            gap: 0.0,
            tiers: Vec::new(),
            seed: 0,
            deterministic: true,
        },
        instances: Vec::new(),
        egress: Vec::new(),
        steps,
        deferred: deferred
            .into_iter()
            .map(|(model, node, reason)| Deferred {
                model,
                node,
                reason: reason.to_owned(),
                verb: Some(Verb::Stop),
                from_node: None,
            })
            .collect(),
        blocked,
        approvals,
        unplaced: Vec::new(),
        drift: super::drift(input.inventory, input.observed, &observed),
        decay: super::decay(input.desired, input.inventory, &observed),
        warnings: Vec::new(),
        summary: Summary::default(),
        guards: BTreeMap::new(),
        seal: None,
    };
    plan.summary = summary(&plan, 0);
    plan
}

/// Takes out what a window denies now or somebody has to agree to: a destroy is blocked by them, never put off.
fn held(steps: &mut Vec<Step>, blocked: &mut Vec<Blocked>, input: &DestroyInput<'_>) -> Vec<ApprovalWanted> {
    let policies = &input.desired.policies;
    let mut stays = BTreeSet::new();
    for text in hold::denied_now(steps, &["destroy"], policies, input.moment) {
        blocked.extend(steps.iter().map(|step| refusal(step, "window", text.clone())));
        stays.extend(0..steps.len());
    }
    let open: Vec<(usize, &Step)> = steps.iter().enumerate().filter(|(index, _)| !stays.contains(index)).collect();
    let member = &input.inventory.member;
    let mut approvals = Vec::new();
    for (approval, waits) in hold::approvals(&open, &["destroy"], input.desired, member, input.moment) {
        blocked.extend(waits.iter().map(|index| refusal(&steps[*index], "approval", approval.remedy())));
        stays.extend(waits);
        approvals.push(approval);
    }
    blocked.sort_by(|a, b| (&a.model, &a.policy, &a.remedy).cmp(&(&b.model, &b.policy, &b.remedy)));
    blocked.dedup();
    let mut index = 0;
    steps.retain(|_| {
        index += 1;
        !stays.contains(&(index - 1))
    });
    let renumbered: BTreeMap<u32, u32> = steps.iter().zip(1..).map(|(step, id)| (step.id, id)).collect();
    for step in steps.iter_mut() {
        step.id = renumbered[&step.id];
        step.after = step.after.iter().filter_map(|id| renumbered.get(id).copied()).collect();
    }
    approvals
}

fn refusal(step: &Step, policy: &str, remedy: String) -> Blocked {
    Blocked { model: step.model.clone(), policy: policy.to_owned(), since: None, remedy }
}
