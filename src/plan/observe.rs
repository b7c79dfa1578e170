//! What runs now: the instances of the inventory joined with what the nodes are told to run.

use std::collections::BTreeMap;

use super::ObservedSpecs;
use crate::base::{EngineKind, InstanceState};
use crate::inventory::{Calibration, Failure, InstanceFacts, InstanceSpec, Inventory, NodeFacts, PartOf};

/// An instance as it is found on a node.
#[derive(Debug, Clone, PartialEq)]
pub struct Observed {
    /// The node.
    pub node: String,
    /// Its id.
    pub instance: String,
    /// Digest of its specification.
    pub specification: String,
    /// Model name.
    pub model: String,
    /// Replica number.
    pub replica: u32,
    /// The engine.
    pub engine: EngineKind,
    /// Variant id.
    pub variant: String,
    /// UUIDs in rank order.
    pub accelerators: Vec<String>,
    /// Its port.
    pub port: u16,
    /// What it is doing; `None` where the agent has only its specification.
    pub state: Option<InstanceState>,
    /// Whether an engine process lives.
    pub alive: bool,
    /// Whether the node's supervisor runs.
    pub supervised: bool,
    /// Whether the node answered.
    pub reachable: bool,
    /// Live sessions on it.
    pub sessions: u32,
    /// How long its last load took.
    pub load_ms: Option<u64>,
    /// When its state began.
    pub since: Option<String>,
    /// Its last failure.
    pub last_failure: Option<Failure>,
    /// Layers on its accelerators and all layers, where the engine left some on the CPU.
    pub spilled: Option<(u32, u32)>,
    /// What its node is told; `None` where only facts are known.
    pub spec: Option<InstanceSpec>,
    /// What it is a part of, where that is over several nodes.
    pub part: Option<PartOf>,
}

impl Observed {
    /// Whether it serves, or is on the way to, and someone looks after it or at least the engine lives.
    pub fn serving(&self) -> bool {
        match self.state {
            Some(InstanceState::Ready) => self.alive,
            Some(InstanceState::Starting) => self.alive || self.supervised,
            Some(InstanceState::Failed | InstanceState::Stopping) | None => false,
        }
    }

    /// Whether it works for an instance on another node, and serves nobody itself.
    pub fn is_worker(&self) -> bool {
        self.part.as_ref().is_some_and(|part| part.is_worker(&self.instance))
    }

    /// Whether it holds memory now, or may take it at any moment without being asked.
    pub fn holds_memory(&self) -> bool {
        let gave_up = self.last_failure.as_ref().is_some_and(|failure| failure.gave_up);
        self.alive || (self.supervised && !gave_up && self.state != Some(InstanceState::Stopping))
    }
}

/// All instances of this cluster, sorted by model, replica, node and id.
pub fn observe(inventory: &Inventory, specs: &ObservedSpecs) -> Vec<Observed> {
    let mut found = Vec::new();
    for node in &inventory.nodes {
        let told = specs.get(&node.name);
        let by_id: BTreeMap<&str, &InstanceSpec> =
            told.into_iter().flatten().map(|spec| (spec.instance.as_str(), spec)).collect();
        for facts in &node.instances {
            let spec = by_id.get(facts.instance.as_str()).copied();
            let observed = from_facts(node, facts, spec);
            // Once the agent was asked and is no longer told to run it, a dead instance is history.
            if spec.is_some() || told.is_none() || observed.alive {
                found.push(observed);
            }
        }
        let known: Vec<&str> = node.instances.iter().map(|facts| facts.instance.as_str()).collect();
        found.extend(by_id.values().filter(|s| !known.contains(&s.instance.as_str())).map(|s| from_spec(node, s)));
    }
    found.sort_by(|a, b| (&a.model, a.replica, &a.node, &a.instance).cmp(&(&b.model, b.replica, &b.node, &b.instance)));
    found
}

/// Whether a node's supervisor runs; a hand-written inventory, which knows no agent, is believed.
fn supervised(node: &NodeFacts) -> bool {
    node.agent.as_ref().is_none_or(|agent| agent.supervising)
}

fn from_facts(node: &NodeFacts, facts: &InstanceFacts, spec: Option<&InstanceSpec>) -> Observed {
    // Hand-written facts give the state and not the process.
    let assumed = node.agent.is_none() && matches!(facts.state, InstanceState::Ready | InstanceState::Starting);
    Observed {
        node: node.name.clone(),
        instance: facts.instance.clone(),
        specification: facts.specification.clone(),
        model: facts.model.clone(),
        replica: facts.replica,
        engine: facts.engine,
        variant: facts.variant.clone(),
        accelerators: facts.accelerators.clone(),
        port: facts.port,
        state: Some(facts.state),
        alive: facts.running || facts.pid.is_some() || assumed,
        supervised: supervised(node),
        reachable: node.reachable,
        sessions: facts.live_sessions,
        load_ms: facts.load_ms,
        since: facts.since.clone(),
        last_failure: facts.last_failure.clone(),
        spilled: facts.measured.as_deref().and_then(Calibration::spilled),
        spec: spec.cloned(),
        part: facts.part.clone().or_else(|| spec.and_then(|spec| spec.part.clone())),
    }
}

fn from_spec(node: &NodeFacts, spec: &InstanceSpec) -> Observed {
    Observed {
        node: node.name.clone(),
        instance: spec.instance.clone(),
        specification: spec.specification.clone(),
        model: spec.model.clone(),
        replica: spec.replica,
        engine: spec.engine,
        variant: spec.variant.clone(),
        accelerators: spec.accelerators.clone(),
        port: spec.port,
        state: None,
        alive: false,
        supervised: supervised(node),
        reachable: node.reachable,
        sessions: 0,
        load_ms: None,
        since: None,
        last_failure: None,
        spilled: None,
        spec: Some(spec.clone()),
        part: spec.part.clone(),
    }
}
