//! The whole way from desired and observed to a plan.

use std::collections::{BTreeMap, BTreeSet};

use super::diff;
use super::digest::inventory_digest;
use super::gate;
use super::ids;
use super::keep::Serving;
use super::rules::Rules;
use super::{
    Plan, PlanInput, PlanWarning, PlannedInstance, Summary, Verb, drift, fetch, keep, measured, observe, ports, route,
    schedule, specify, stays, workers,
};
use crate::base::{Diagnostic, Severity};
use crate::engine::{internal_ports, pass_internal_ports};
use crate::placement::{Candidate, Placed, Reason, Unplaced};
use crate::sizing::Calibrations;

/// Compares what should be with what is. The same input gives the same plan, byte for byte.
pub fn plan(input: &PlanInput<'_>) -> Plan {
    let rules = Rules::of(&input.desired.policies);
    let observed = observe(input.inventory, input.observed);
    let mut unplaced = input.placement.unplaced.clone();
    let calibrations = Calibrations::of(input.inventory);
    let serving = Serving::of(&observed);
    let Specified { mut planned, mut placed, mut used, mut kept } = specified(input, &calibrations, &serving);
    let mut ports = ports::assign(&mut planned, &observed, input.desired, input.inventory);
    for index in workers::with_their_parts(&planned, &ports.without).into_iter().rev() {
        let part = planned.remove(index);
        used.remove(index);
        placed.remove(index);
        ports.after.retain(|(new, _)| *new != index);
        ports.after.iter_mut().for_each(|(new, _)| *new -= usize::from(*new > index));
        if ports.without.contains(&index) {
            no_port(&mut unplaced, &part, input);
        }
    }
    for (instance, placed) in planned.iter_mut().zip(&placed) {
        tell_ports(instance);
        kept.extend(keep::left_alone(instance, placed, &serving));
    }
    workers::tell(&mut planned);
    kept.extend(keep::other_versions(input, &placed, &serving));
    let mut difference = diff::diff(input, &planned, &observed, rules.prune);
    let mut scheduled = schedule::schedule(std::mem::take(&mut difference.drafts), &planned, &observed, &ports.after);
    fetch::add(&mut scheduled.drafts, &difference, &planned, &used, input);
    fetch::estimate(&mut scheduled.drafts, &planned, &used, &observed);
    let mut gated = gate::gate(scheduled, input, &rules, &observed);
    for index in &difference.unknown {
        gated.defer(&planned[*index].model, &planned[*index].node, "unreachable");
    }
    route::choose(&mut gated.drafts, input, rules.download);
    gate::wait_for_nodes(&mut gated, &unplaced, input);
    stays::keep(&mut unplaced, &gated, &planned, &observed, input);
    let mut warnings: Vec<PlanWarning> = input.warnings.iter().map(warning).collect();
    for note in &input.placement.notes {
        warnings.push(general(ids::PLACEMENT_NOTE, note, None));
    }
    for note in &gated.notes {
        warnings.push(general(ids::HELD_BACK, note, None));
    }
    for text in difference.kept.iter().map(|(_, text)| text).chain(&kept) {
        warnings.push(general(ids::KEPT, text, None));
    }
    for (instance, candidate) in planned.iter().zip(&used).filter(|(_, candidate)| fetch::incomplete(candidate)) {
        let text = format!(
            "model \"{}\": weight files of {} are not on this machine; sizes are from its index",
            instance.model, candidate.source
        );
        warnings.push(general(ids::MISSING_FILES, &text, Some("apply refuses until they are there".to_owned())));
    }
    for text in measured::too_low(&planned, &calibrations) {
        let hint = "what runs stays; the same is planned with what was measured from now on".to_owned();
        warnings.push(general(ids::UNDER_ESTIMATE, &text, Some(hint)));
    }
    let nodes: BTreeSet<String> = planned.iter().map(|instance| instance.node.clone()).collect();
    for (node, text) in ports::overlaps(input.desired, input.inventory, &nodes) {
        let hint = format!("give `{node}` another range with `ports`, or change net.ipv4.ip_local_port_range there");
        warnings.push(general(ids::PORTS_OVERLAP, &text, Some(hint)));
    }
    warnings.sort_by(|a, b| {
        (&a.file, a.line, a.column, &a.id, &a.message).cmp(&(&b.file, b.line, b.column, &b.id, &b.message))
    });
    warnings.dedup();
    unplaced.sort_by(|a, b| a.model.cmp(&b.model));
    let steps = schedule::number(gated.drafts);
    let mut plan = Plan {
        format: 1,
        cluster: input.desired.cluster.name.value.clone(),
        commit: input.commit.clone(),
        dirty: input.dirty,
        config_digest: input.config_digest.clone(),
        inventory_digest: inventory_digest(input.inventory).to_string(),
        solver: input.placement.solver.clone(),
        instances: planned,
        egress: input.egress.clone(),
        steps,
        deferred: gated.deferred,
        blocked: gated.blocked,
        approvals: gated.approvals,
        unplaced,
        drift: drift::drift(input.inventory, input.observed, &observed),
        decay: drift::decay(input.desired, input.inventory, &observed),
        warnings,
        summary: Summary::default(),
        guards: BTreeMap::new(),
        seal: None,
    };
    plan.summary = summary(&plan, difference.unchanged.len() as u32);
    plan
}

/// What shall run, in the order of model and replica.
struct Specified<'a> {
    planned: Vec<PlannedInstance>,
    /// Where placement put each of them.
    placed: Vec<&'a Placed>,
    /// The candidate of each.
    used: Vec<&'a Candidate>,
    /// Remarks about what keeps running as it is.
    kept: Vec<String>,
}

fn specified<'a>(input: &PlanInput<'a>, calibrations: &Calibrations, serving: &Serving<'_>) -> Specified<'a> {
    let mut order: Vec<_> = input.placement.instances.iter().collect();
    order.sort_by(|a, b| (&a.model, a.replica, &a.node).cmp(&(&b.model, b.replica, &b.node)));
    let mut all = Specified { planned: Vec::new(), placed: Vec::new(), used: Vec::new(), kept: Vec::new() };
    for placed in order {
        let list = input.candidates.get(&placed.model).and_then(|list| list.as_ref().ok());
        let Some(candidate) = list.and_then(|list| list.get(placed.candidate)) else { continue };
        let facts = input.inventory.node(&placed.node);
        let Some(mut instance) = specify::specify(placed, candidate, input.desired, facts, calibrations) else {
            continue;
        };
        if let Some((same, text)) = keep::as_started(placed, &instance, candidate, input, serving, calibrations) {
            instance = same;
            all.kept.push(text);
        }
        let workers = workers::specify(placed, &instance, input);
        for part in std::iter::once(instance).chain(workers) {
            all.planned.push(part);
            all.placed.push(placed);
            all.used.push(candidate);
        }
    }
    all
}

/// Puts the ports into what the node is told.
fn tell_ports(instance: &mut PlannedInstance) {
    let PlannedInstance { engine, argv, env, spec, .. } = instance;
    pass_internal_ports(*engine, &spec.internal_ports, argv, env);
    spec.argv.clone_from(argv);
    spec.env.clone_from(env);
    spec.port = instance.port;
    spec.port_alternates.clone_from(&instance.port_alternates);
}

fn no_port(unplaced: &mut Vec<Unplaced>, instance: &PlannedInstance, input: &PlanInput<'_>) {
    let (low, high) = input.desired.nodes.get(&instance.node).map_or(ports::DEFAULT_RANGE, |node| node.ports);
    let needed = 1 + u64::from(internal_ports(instance.engine));
    let what = if needed == 1 {
        "no port is".to_owned()
    } else {
        format!("no {needed} ports that {} needs are", instance.engine)
    };
    let reason = Reason {
        node: instance.node.clone(),
        alike: 0,
        constraint: "port".to_owned(),
        needed: Some(needed),
        available: Some(0),
        unit: Some("count".to_owned()),
        text: format!("{what} free in {low}-{high}"),
    };
    let least = input.desired.models.get(&instance.model).map_or(0, |model| model.replicas.min);
    let required = instance.replica < least;
    match unplaced.iter_mut().find(|u| u.model == instance.model) {
        Some(known) => {
            known.replicas += 1;
            known.required |= required;
            known.reasons.push(reason);
        }
        None => unplaced.push(Unplaced {
            model: instance.model.clone(),
            replicas: 1,
            required,
            reasons: vec![reason],
            nearest: format!("give `{}` a larger range with `ports`", instance.node),
            together: Vec::new(),
        }),
    }
}

/// Counts, taken from what the plan holds.
pub(super) fn summary(plan: &Plan, unchanged: u32) -> Summary {
    let mut summary = Summary {
        deferred: plan.deferred.len() as u32,
        blocked: plan.blocked.len() as u32,
        unchanged,
        unplaced: plan.unplaced.iter().map(|unplaced| unplaced.replicas).sum(),
        ..Summary::default()
    };
    for step in &plan.steps {
        *match step.verb {
            Verb::Fetch => &mut summary.fetch,
            Verb::Start => &mut summary.start,
            Verb::Change => &mut summary.change,
            Verb::Restart => &mut summary.restart,
            Verb::Move => &mut summary.moves,
            Verb::Adopt => &mut summary.adopt,
            Verb::Stop => &mut summary.stop,
        } += 1;
    }
    summary
}

fn general(id: &str, text: &str, hint: Option<String>) -> PlanWarning {
    let bare = Diagnostic::general("", Severity::Warning, text);
    PlanWarning { id: id.to_owned(), hint, ..warning(&bare) }
}

fn warning(diagnostic: &Diagnostic) -> PlanWarning {
    PlanWarning {
        id: diagnostic.id.to_owned(),
        severity: "warning".to_owned(),
        message: diagnostic.message.clone(),
        file: diagnostic.file.clone(),
        line: diagnostic.line,
        column: diagnostic.column,
        end_line: diagnostic.end_line,
        end_column: diagnostic.end_column,
        hint: diagnostic.hint.clone(),
        related: Vec::new(),
    }
}
