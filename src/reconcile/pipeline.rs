//! The pipeline, written once: desired and observed in, placement and plan out.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use crate::base::{Diagnostic, Digest, Severity, sort_diagnostics};
use crate::config::Desired;
use crate::inventory::{InstanceSpec, Inventory, NodeFacts};
use crate::placement::{self, Candidates, Options, Placement, SourceProblem, Why, place_and_keep};
use crate::plan::{Limits, Moment, ObservedSpecs, Plan, PlanInput, plan};
use crate::ports::{Clock, Standing};

use super::sources::{NOT_ON_ANY_NODE, too_long};

/// Everything a plan is computed from.
pub struct Pipeline<'a> {
    /// The desired state.
    pub desired: &'a Desired,
    /// Digest of its meaning.
    pub config_digest: &'a Digest,
    /// Where the config repository stands.
    pub standing: &'a Standing,
    /// The facts.
    pub inventory: &'a Inventory,
    /// Desired instances as the nodes hold them.
    pub specs: &'a ObservedSpecs,
    /// Candidate weights.
    pub candidates: &'a Candidates,
    /// The hub that weights come from, `https://host` without a path at its end.
    pub hub: &'a str,
    /// Nodes that steps are limited to.
    pub limits: &'a Limits,
    /// Nodes that what runs there shall leave.
    pub drain: &'a BTreeSet<String>,
    /// For pauses, which end by themselves.
    pub clock: &'a dyn Clock,
    /// What to warn of.
    pub warnings: Vec<Diagnostic>,
    /// A model that is to be explained.
    pub question: Option<&'a str>,
}

/// A plan with what it came from.
pub struct Planned {
    /// Where everything shall run.
    pub placement: Placement,
    /// What to do.
    pub plan: Plan,
    /// What the independent checker has against the placement; nothing, unless flock has a fault.
    pub findings: Vec<String>,
    /// Of the model that was asked about: why it runs where it does, or does not.
    pub why: Option<Why>,
}

impl Pipeline<'_> {
    /// Models whose weights cannot be used: they make a plan impossible (exit 3), not merely infeasible.
    ///
    /// `on-node:` weights that are on no node that answered may be on one that did not: then their model is unknown.
    pub fn source_problems(&self, away: bool) -> Vec<(&str, &SourceProblem)> {
        self.candidates
            .iter()
            .filter_map(|(model, found)| found.as_ref().err().map(|problem| (model.as_str(), problem)))
            .filter(|(_, problem)| !(away && problem.id == NOT_ON_ANY_NODE))
            .collect()
    }

    /// What makes a plan impossible (exit 3), each at its line: [`Self::source_problems`], and contexts that are
    /// longer than the model was trained for.
    pub fn impossible(&self, away: bool) -> Vec<Diagnostic> {
        let mut found = too_long(self.desired, self.candidates);
        for (model, problem) in self.source_problems(away) {
            let text = format!("model `{model}`: {problem}");
            let mut one = match self.desired.model_place(model) {
                Some(place) => Diagnostic::error(problem.id, place, text),
                None => Diagnostic::general(problem.id, Severity::Error, text),
            };
            if let Some(hint) = &problem.hint {
                one = one.hint(hint);
            }
            found.push(one);
        }
        sort_diagnostics(&mut found);
        found
    }

    /// Times of member records are RFC 3339 in UTC, so they compare as text.
    fn pauses(&self) -> Vec<crate::inventory::Pause> {
        let now = self.clock.rfc3339();
        self.inventory.member.pauses.iter().filter(|pause| pause.until > now).cloned().collect()
    }

    /// Solves and plans.
    pub fn run(self) -> Planned {
        let mut options = Options { drain: self.drain.clone(), ..Options::default() };
        options.internal_ports = internal_ports(self.specs);
        // The answer is the same with any number: parts that nothing connects are shared out.
        options.limits.threads = std::thread::available_parallelism().map_or(1, usize::from);
        let inventory = &*believed(self.inventory);
        let (placement, solution) = place_and_keep(self.desired, inventory, self.candidates, &options);
        let findings = placement::check(&solution.problem, &placement);
        let why = self
            .question
            .and_then(|name| placement::explain(self.desired, inventory, self.candidates, &options, &solution, name));
        let plan = plan(&PlanInput {
            desired: self.desired,
            config_digest: self.config_digest.to_string(),
            commit: self.standing.commit.clone(),
            dirty: self.standing.dirty,
            inventory,
            observed: self.specs,
            candidates: self.candidates,
            placement: &placement,
            hub: self.hub,
            egress: placement.egress.clone(),
            limits: self.limits.clone(),
            drain: self.drain.clone(),
            pauses: self.pauses(),
            moment: Moment { unix_ms: self.clock.unix_ms(), live: !self.specs.is_empty() },
            warnings: self.warnings.clone(),
        });
        Planned { placement, plan, findings, why }
    }
}

/// What engines were told to open for themselves, by node and instance.
fn internal_ports(specs: &ObservedSpecs) -> BTreeMap<(String, String), Vec<u16>> {
    let of = |(node, specs): (&String, &Vec<InstanceSpec>)| {
        let ports = |spec: &InstanceSpec| ((node.clone(), spec.instance.clone()), spec.internal_ports.clone());
        specs.iter().map(ports).collect::<Vec<_>>()
    };
    specs.iter().flat_map(of).filter(|(_, ports)| !ports.is_empty()).collect()
}

/// A node whose driver stopped answering under running engines (an upgrade under its loaded module, a container that
/// lost its devices) is as good as unreachable to a plan: what runs there serves on and stays, and nothing is told
/// to start there. Its devices must not count as gone.
fn believed(inventory: &Inventory) -> Cow<'_, Inventory> {
    let blind = |node: &NodeFacts| {
        let bound = node.instances.iter().filter(|i| i.running || i.pid.is_some()).flat_map(|i| &i.accelerators);
        let why = node.unknown.get("accelerators").filter(|_| node.reachable)?;
        bound.into_iter().any(|uuid| node.accelerator(uuid).is_none()).then(|| why.clone())
    };
    let reasons: Vec<Option<String>> = inventory.nodes.iter().map(blind).collect();
    if reasons.iter().all(Option::is_none) {
        return Cow::Borrowed(inventory);
    }
    let mut believed = inventory.clone();
    for (node, why) in believed.nodes.iter_mut().zip(reasons) {
        let Some(why) = why else { continue };
        node.reachable = false;
        node.unreachable_reason = Some(format!("its accelerators are not known: {why}"));
    }
    Cow::Owned(believed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::parse_inventory;

    /// A node as its agent tells it after its driver's library was upgraded.
    fn mismatched(running: bool) -> Inventory {
        let text = format!(
            r#"{{"format":1,"nodes":[{{"name":"ada-1","unknown":{{"accelerators":"mismatch; reboot the node"}},
            "instances":[{{"instance":"aa","specification":"sha256:0","model":"m","replica":0,"port":20000,
                "accelerators":["GPU-1"],"state":"ready","running":{running}}}]}},
            {{"name":"ada-2","accelerators":[{{"uuid":"GPU-2","name":"x","memory":{{}}}}]}}]}}"#
        );
        parse_inventory(&text).expect("valid")
    }

    #[test]
    fn engines_outlive_their_driver_s_silence() {
        let believed = believed(&mismatched(true)).into_owned();
        assert!(!believed.nodes[0].reachable && believed.nodes[1].reachable);
        let why = believed.nodes[0].unreachable_reason.as_deref().expect("a reason");
        assert!(why.contains("reboot"), "{why}");
        assert_eq!(believed.nodes[0].instances.len(), 1, "what runs is still known");
    }

    #[test]
    fn a_driver_that_nothing_uses_closes_no_node() {
        assert!(matches!(super::believed(&mismatched(false)), Cow::Borrowed(_)));
    }
}
