//! The pipeline, written once: desired and observed in, placement and plan out.

use crate::base::{Diagnostic, Digest};
use crate::config::Desired;
use crate::inventory::Inventory;
use crate::placement::{self, Candidates, Options, Placement, SourceProblem, place};
use crate::plan::{Limits, ObservedSpecs, Plan, PlanInput, plan};
use crate::ports::{Clock, Standing};

use super::sources::NOT_ON_ANY_NODE;

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
    /// Nodes that steps are limited to.
    pub limits: &'a Limits,
    /// For pauses, which end by themselves.
    pub clock: &'a dyn Clock,
    /// What to warn of.
    pub warnings: Vec<Diagnostic>,
}

/// A plan with what it came from.
pub struct Planned {
    /// Where everything shall run.
    pub placement: Placement,
    /// What to do.
    pub plan: Plan,
    /// What the independent checker has against the placement; nothing, unless flock has a fault.
    pub findings: Vec<String>,
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

    /// Times of member records are RFC 3339 in UTC, so they compare as text.
    fn pauses(&self) -> Vec<crate::inventory::Pause> {
        let now = self.clock.rfc3339();
        self.inventory.member.pauses.iter().filter(|pause| pause.until > now).cloned().collect()
    }

    /// Solves and plans.
    pub fn run(self) -> Planned {
        let options = Options::default();
        let placement = place(self.desired, self.inventory, self.candidates, &options);
        let problem = placement::build(self.desired, self.inventory, self.candidates, &options);
        let findings = placement::check(&problem, &placement);
        let plan = plan(&PlanInput {
            desired: self.desired,
            config_digest: self.config_digest.to_string(),
            commit: self.standing.commit.clone(),
            dirty: self.standing.dirty,
            inventory: self.inventory,
            observed: self.specs,
            candidates: self.candidates,
            placement: &placement,
            egress: Vec::new(),
            limits: self.limits.clone(),
            pauses: self.pauses(),
            warnings: self.warnings.clone(),
        });
        Planned { placement, plan, findings }
    }
}
