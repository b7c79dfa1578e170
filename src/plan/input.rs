//! Everything a plan is computed from.

use std::collections::{BTreeMap, BTreeSet};

use super::{Egress, Selection};
use crate::base::Diagnostic;
use crate::config::Desired;
use crate::inventory::{InstanceSpec, Inventory, Pause};
use crate::placement::{Candidates, Placement};

/// Specifications that the nodes' agents hold, by node. A node that was asked and holds nothing has an empty list;
/// a node that was not asked (an inventory file says nothing about specifications) is absent.
pub type ObservedSpecs = BTreeMap<String, Vec<InstanceSpec>>;

/// Everything a plan is computed from. The same value gives the same plan, byte for byte.
#[derive(Debug, Clone)]
pub struct PlanInput<'a> {
    /// What should be.
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
    /// Weights that models may use.
    pub candidates: &'a Candidates,
    /// Where everything should run.
    pub placement: &'a Placement,
    /// The hub that weights come from, `https://host` without a path at its end.
    pub hub: &'a str,
    /// Egress nodes of agents on providers.
    pub egress: Vec<Egress>,
    /// Which nodes may be touched.
    pub limits: Limits,
    /// Nodes that are drained: of all differences only those are steps that empty them. They are held in the
    /// inventory's member record, and the placement was made with the same set.
    pub drain: BTreeSet<String>,
    /// Pauses that have not ended; the caller knows the time.
    pub pauses: Vec<Pause>,
    /// When it is made.
    pub moment: Moment,
    /// Findings of earlier stages that a reader of the plan should see.
    pub warnings: Vec<Diagnostic>,
}

/// When a plan is made. It decides on windows, on moves of the past hour and on how long approvals hold, and is itself no
/// part of the plan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moment {
    /// Unix milliseconds.
    pub unix_ms: u64,
    /// Whether the facts are of now: an inventory file does not tell what moved in the past hour.
    pub live: bool,
}

/// `--on` and `--exclude`: they limit steps, never facts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// Only these nodes.
    pub on: Option<Selection>,
    /// Not these nodes.
    pub exclude: Option<Selection>,
}

impl Limits {
    /// Whether steps on this node are allowed.
    pub fn allow(&self, node: &str, labels: &BTreeMap<String, String>) -> bool {
        self.on.as_ref().is_none_or(|on| on.matches(node, labels))
            && !self.exclude.as_ref().is_some_and(|exclude| exclude.matches(node, labels))
    }
}

/// A node's labels: those of the config, else those of the inventory.
pub(super) fn labels_of<'a>(
    desired: &'a Desired,
    inventory: &'a Inventory,
    node: &str,
) -> &'a BTreeMap<String, String> {
    static NONE: BTreeMap<String, String> = BTreeMap::new();
    match desired.nodes.get(node) {
        Some(configured) => &configured.labels,
        None => inventory.node(node).map_or(&NONE, |facts| &facts.labels),
    }
}

/// Nodes whose facts are missing although the config names them and no limit takes them out: exit 9.
pub fn unreachable_nodes(desired: &Desired, inventory: &Inventory, limits: &Limits) -> BTreeSet<String> {
    desired
        .nodes
        .iter()
        .filter(|(name, node)| limits.allow(name, &node.labels))
        .filter(|(name, _)| !inventory.node(name).is_some_and(|facts| facts.reachable))
        .map(|(name, _)| name.clone())
        .collect()
}
