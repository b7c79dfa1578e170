//! Carrying out a plan with a person watching: checker, progress, Ctrl-C, the summary at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::mpsc;

use crate::base::InstanceState;
use crate::cli::context::{Config, Context, Facts};
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::cli::progress::Progress;
use crate::cli::user::whoami;
use crate::converge::{self, Converge, ConvergeError, Converged, LeaseError};
use crate::edge::{SystemProcesses, SystemRandom};
use crate::inventory::{MemberInstance, MemberNode};
use crate::plan::{self, FetchFrom, Limits, Plan};
use crate::ports::{Hub, Node, Processes as _};
use crate::report;

/// A plan and how to carry it out.
pub struct CarryOut<'a> {
    /// The config it belongs to.
    pub config: &'a Config,
    /// The facts it was made from.
    pub facts: &'a Facts,
    /// The plan.
    pub plan: &'a Plan,
    /// Most steps at the same time.
    pub parallel: usize,
    /// Failures after which nothing more is begun.
    pub max_fail: Option<usize>,
    /// Whether the agents are to leave at the end.
    pub destroy: bool,
    /// Which nodes may be touched.
    pub limits: &'a Limits,
    /// The command that continues.
    pub again: String,
    /// What was asked for, as the record on the nodes names it.
    pub action: &'static str,
}

/// Runs the plan's steps, and writes the member record even where there are none to run.
pub async fn carry_out(context: &Context, what: CarryOut<'_>) -> Result<ExitCode, Failure> {
    let wrong = plan::check(what.plan, &what.facts.inventory, &what.facts.specs);
    if !wrong.is_empty() {
        return Err(Failure::new(
            ExitCode::Failure,
            format!("the plan contradicts itself and was not begun:\n  {}", wrong.join("\n  ")),
        )
        .hint("this is a fault of flock; please report it with `flock plan --format json`"));
    }
    let nodes = what.facts.reachable();
    if nodes.is_empty() && what.plan.steps.is_empty() {
        // Nobody to be told anything: what keeps the nodes away has been said.
        return Ok(ExitCode::Success);
    }
    let member_nodes = member_nodes(context, &what, &nodes).await;
    let protect: BTreeSet<String> =
        what.config.desired.policies.protect.iter().map(|model| model.value.clone()).collect();
    let leaving = leaving(context, &what);
    let starting = starting(what.facts, what.plan);
    let running = running(what.facts);
    if what.plan.steps.is_empty()
        && !what.destroy
        && starting.is_empty()
        && recorded(&what, &member_nodes, &protect, &running)
    {
        return Ok(ExitCode::Success);
    }
    let hub = if from_hub(what.plan) { Some(context.hub()?) } else { None };
    let (events, received) = mpsc::unbounded_channel();
    let careful = context.signals.carefully();
    let progress = tokio::spawn(Progress::new(context.printer, what.plan).show(received));
    let converge = Converge {
        plan: what.plan,
        nodes: &nodes,
        addresses: addresses(&member_nodes),
        hub: hub.as_ref().map(|hub| hub as &dyn Hub),
        member: &what.facts.inventory.member,
        member_nodes,
        leaving,
        generations: what.facts.generations(),
        spare: spare(&what, &nodes),
        starting,
        held: held(what.facts),
        running,
        protect: &protect,
        parallel: what.parallel,
        max_fail: what.max_fail,
        by: whoami(),
        action: what.action,
        destroy: what.destroy,
        clock: &context.clock,
        random: &SystemRandom,
        processes: &SystemProcesses,
        events,
        interrupt: careful.interrupted(),
    };
    let result = converge.run().await;
    // The channel is closed now, so this ends as soon as the last line is printed.
    let _ = progress.await;
    futures::future::join_all(nodes.values().map(|node| node.close())).await;
    let Converged { outcome, problems, lease_lost } = result.map_err(failure)?;
    let printed = match what.plan.steps.is_empty() || (context.printer.is_quiet() && outcome.complete()) {
        true => Ok(()),
        false => context.printer.data(&report::outcome_text(&outcome, what.plan, &what.again, &context.style())),
    };
    for problem in &problems {
        context.printer.error(problem, None);
    }
    let code = if outcome.interrupted {
        ExitCode::Interrupted
    } else if lease_lost {
        ExitCode::Leased
    } else if outcome.complete() {
        if problems.is_empty() { ExitCode::Success } else { ExitCode::Partial }
    } else if outcome.done.is_empty() && outcome.failed.is_empty() {
        ExitCode::Failure
    } else {
        ExitCode::Partial
    };
    if code == ExitCode::Success {
        printed?;
    }
    // A reader or a terminal that went away does not turn a failure into another one.
    Ok(code)
}

/// Whether any step brings weights that come from the hub in the end.
fn from_hub(plan: &Plan) -> bool {
    fn is_hub(from: &FetchFrom) -> bool {
        match from {
            FetchFrom::Hub(_) | FetchFrom::Relay(_) => true,
            FetchFrom::Folder(_) => false,
            FetchFrom::Node { otherwise, .. } => is_hub(otherwise),
        }
    }
    plan.steps.iter().filter_map(|step| step.fetch.as_ref()).any(|planned| is_hub(&planned.from))
}

/// Where other nodes may find each node. This machine itself says by none of its addresses how others reach it.
fn addresses(members: &[MemberNode]) -> BTreeMap<String, String> {
    let ssh = members.iter().filter(|member| member.address != "local");
    ssh.map(|member| (member.name.clone(), member.address.clone())).collect()
}

fn failure(error: ConvergeError) -> Failure {
    match error {
        ConvergeError::Lease(error @ LeaseError::Held { .. }) => Failure::new(ExitCode::Leased, error.to_string())
            .hint("wait for it; a lease whose holder died ends by itself within half a minute, `flock lease break` ends one that hangs"),
        ConvergeError::Lease(error @ LeaseError::Moved { .. }) => {
            Failure::new(ExitCode::Stale, error.to_string()).hint("nothing was begun; plan again")
        }
        ConvergeError::Lease(LeaseError::Node { node, error }) => {
            let failure = Failure::from(error);
            Failure { message: format!("{node}: {}", failure.message), ..failure }
        }
        error @ ConvergeError::Weights(_) => Failure::new(ExitCode::Failure, error.to_string())
            .hint("put the missing files there; what is there already is enough to plan with, not to run"),
        ConvergeError::Preflight(unfit) => {
            let hint = unfit.iter().find_map(|unfit| unfit.error.hint());
            let failure = Failure::new(ExitCode::Failure, ConvergeError::Preflight(unfit).to_string());
            Failure { hint, ..failure }
        }
    }
}

/// The nodes of the config, with the host keys that were verified just now.
async fn member_nodes(
    context: &Context,
    what: &CarryOut<'_>,
    nodes: &BTreeMap<String, Arc<dyn Node>>,
) -> Vec<MemberNode> {
    let fleet = context.fleet(&what.config.desired);
    let mut members = Vec::new();
    for name in what.config.desired.nodes.keys() {
        let known = what.facts.inventory.member.nodes.iter().find(|member| &member.name == name);
        let verified = match nodes.get(name) {
            Some(node) => node.host_key().await,
            None => None,
        };
        members.extend(fleet.member_node(name, verified).map(|member| with_known_key(member, known)));
    }
    members
}

/// A node as it was reached, with the key that an earlier apply verified there where none was verified now: a node that
/// is away, a connection that ended meanwhile.
fn with_known_key(mut member: MemberNode, known: Option<&MemberNode>) -> MemberNode {
    let same = known.filter(|known| known.address == member.address && known.port == member.port);
    member.host_key = member.host_key.or_else(|| same.and_then(|known| known.host_key.clone()));
    member
}

/// Nodes that the selection leaves out and that no step touches all the same.
fn spare(what: &CarryOut<'_>, nodes: &BTreeMap<String, Arc<dyn Node>>) -> BTreeSet<String> {
    let touched = plan::touched(&what.plan.steps);
    let labels = |name: &str| what.facts.inventory.node(name).map(|node| node.labels.clone()).unwrap_or_default();
    let left_out = nodes.keys().filter(|name| !what.limits.allow(name, &labels(name)) && !touched.contains(*name));
    left_out.cloned().collect()
}

/// Planned instances that no step touches and that have not answered yet.
fn starting(facts: &Facts, plan: &Plan) -> BTreeSet<String> {
    let observed = plan::observe(&facts.inventory, &facts.specs);
    let waiting = observed.into_iter().filter(|found| found.reachable && found.state == Some(InstanceState::Starting));
    waiting
        .map(|found| found.instance)
        .filter(|id| plan.instances.iter().any(|planned| &planned.instance == id))
        .filter(|id| !plan.steps.iter().any(|step| step.instance.as_ref() == Some(id)))
        .collect()
}

/// Every instance that any node has.
fn held(facts: &Facts) -> BTreeSet<(String, String)> {
    plan::observe(&facts.inventory, &facts.specs).into_iter().map(|found| (found.node, found.instance)).collect()
}

/// What serves now, and what a node that is away is believed to serve; in the record's order.
fn running(facts: &Facts) -> Vec<MemberInstance> {
    let observed = plan::observe(&facts.inventory, &facts.specs);
    let serving = observed.into_iter().filter(|found| found.serving() || !found.reachable);
    let mut running: Vec<MemberInstance> = serving
        .map(|found| MemberInstance {
            node: found.node,
            instance: found.instance,
            specification: found.specification,
            model: found.model,
            replica: found.replica,
            engine: found.engine,
            variant: found.variant,
            accelerators: found.accelerators,
            port: found.port,
            part: found.part,
        })
        .collect();
    running.sort_by(|a, b| (&a.model, a.replica, &a.node).cmp(&(&b.model, b.replica, &b.node)));
    running
}

/// Nodes that left the config and are still remembered. One that does not answer and is left out by name is given up:
/// it may never come back, and every plan would miss its facts.
fn leaving(context: &Context, what: &CarryOut<'_>) -> Vec<MemberNode> {
    let mut leaving = Vec::new();
    for old in &what.facts.inventory.member.nodes {
        if what.config.desired.nodes.contains_key(&old.name) {
            continue;
        }
        let away = what.facts.unreachable.contains_key(&old.name);
        if away && !what.limits.allow(&old.name, &BTreeMap::new()) {
            let text = "left the config, does not answer and was left out: it is forgotten, whatever runs there";
            context.printer.warning(&format!("node {} {text}", old.name));
        } else {
            leaving.push(old.clone());
        }
    }
    leaving
}

/// Whether the nodes know already what this apply would tell them, and no apply that died after its last step left them
/// with less.
fn recorded(
    what: &CarryOut<'_>,
    members: &[MemberNode],
    protect: &BTreeSet<String>,
    running: &[MemberInstance],
) -> bool {
    let member = &what.facts.inventory.member;
    let mut holders = what.facts.leases.values().filter_map(|lease| lease.process.as_ref());
    member.nodes == members
        && member.instances == running
        && member.egress == converge::ways_out(what.plan)
        && !holders.any(|process| SystemProcesses.has_ended(process))
        && protect.iter().all(|model| member.protections.iter().any(|known| &known.model == model))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verified_key_is_not_forgotten_and_not_given_to_another_machine() {
        let member = |address: &str, key: Option<&str>| MemberNode {
            name: "ada-1".into(),
            address: address.into(),
            port: 22,
            host_key: key.map(str::to_owned),
            ..MemberNode::default()
        };
        let known = member("10.0.0.1", Some("old"));
        let key = |member, known| with_known_key(member, known).host_key;
        assert_eq!(key(member("10.0.0.1", None), Some(&known)).as_deref(), Some("old"));
        assert_eq!(key(member("10.0.0.1", Some("new")), Some(&known)).as_deref(), Some("new"));
        assert_eq!(key(member("10.0.0.2", None), Some(&known)), None);
        assert_eq!(key(MemberNode { port: 2222, ..member("10.0.0.1", None) }, Some(&known)), None);
        assert_eq!(key(member("10.0.0.1", None), None), None);
    }
}
