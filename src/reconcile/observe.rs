//! Asking all nodes at once what there is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::stream::{self, StreamExt};

use crate::config::{Desired, Node as DesiredNode};
use crate::inventory::{
    EngineQuery, InstanceSpec, Inventory, MemberInstance, MemberRecord, NodeFacts, Request, Response,
};
use crate::ports::{Clock, Fleet, Node, NodeError};

use super::on_node_paths;

/// Most nodes that are asked at the same time.
const PARALLEL: usize = 32;

/// What the nodes said.
pub struct Observed {
    /// Facts of all nodes; unreachable ones with their reason.
    pub inventory: Inventory,
    /// Desired instances as each node holds them.
    pub specs: BTreeMap<String, Vec<InstanceSpec>>,
    /// Why nodes could not be asked.
    pub failures: BTreeMap<String, NodeError>,
    /// The nodes, for what follows; unreachable ones too.
    pub nodes: BTreeMap<String, Arc<dyn Node>>,
}

struct Answer {
    facts: NodeFacts,
    member: MemberRecord,
    specs: Vec<InstanceSpec>,
}

/// Probes every node of the config, and every node that the newest member record remembers besides.
pub async fn observe(
    desired: &Desired,
    fleet: &dyn Fleet,
    clock: &dyn Clock,
    only: Option<&BTreeSet<String>>,
) -> Observed {
    let wanted = |name: &str| only.is_none_or(|only| only.contains(name));
    let configured: Vec<_> = fleet.configured().into_iter().filter(|node| wanted(node.name())).collect();
    let mut observed = Observed {
        inventory: Inventory { format: 1, taken_at: Some(clock.rfc3339()), ..Inventory::default() },
        specs: BTreeMap::new(),
        failures: BTreeMap::new(),
        nodes: BTreeMap::new(),
    };
    ask_all(desired, configured, &mut observed).await;
    // Nodes that left the config may still run engines of ours; only the nodes themselves remember them.
    let forgotten: Vec<_> = observed
        .inventory
        .member
        .nodes
        .iter()
        .filter(|member| !desired.nodes.contains_key(&member.name) && wanted(&member.name))
        .map(|member| fleet.remembered(member))
        .collect();
    ask_all(desired, forgotten, &mut observed).await;
    recall(&mut observed.inventory);
    observed.inventory.nodes.sort_by(|a, b| a.name.cmp(&b.name));
    observed
}

/// A node that is away is believed to run what the last apply left there: its replicas must not be started a second
/// time elsewhere while nobody can see them.
fn recall(inventory: &mut Inventory) {
    for node in inventory.nodes.iter_mut().filter(|node| !node.reachable) {
        let left = inventory.member.instances.iter().filter(|left| left.node == node.name);
        node.instances = left.map(MemberInstance::last_known).collect();
    }
}

async fn ask_all(desired: &Desired, nodes: Vec<Arc<dyn Node>>, observed: &mut Observed) {
    let answers: Vec<_> = stream::iter(nodes)
        .map(|node| async move {
            let answer = ask(desired, node.as_ref()).await;
            (node, answer)
        })
        .buffer_unordered(PARALLEL)
        .collect()
        .await;
    for (node, answer) in answers {
        let name = node.name().to_owned();
        let labels = desired.nodes.get(&name).map(|node| node.labels.clone()).unwrap_or_default();
        match answer {
            Ok(mut answer) => {
                answer.facts.name.clone_from(&name);
                answer.facts.labels = labels;
                answer.facts.reachable = true;
                if answer.member.generation > observed.inventory.member.generation
                    || observed.inventory.member == MemberRecord::default()
                {
                    observed.inventory.member = answer.member;
                }
                observed.inventory.nodes.push(answer.facts);
                observed.specs.insert(name.clone(), answer.specs);
            }
            Err(error) => {
                observed.inventory.nodes.push(NodeFacts {
                    name: name.clone(),
                    reachable: false,
                    unreachable_reason: Some(error.to_string()),
                    labels,
                    ..NodeFacts::default()
                });
                observed.failures.insert(name.clone(), error);
            }
        }
        observed.nodes.insert(name, node);
    }
}

async fn ask(desired: &Desired, node: &dyn Node) -> Result<Answer, NodeError> {
    let configured = desired.nodes.get(node.name());
    let request = Request::Probe {
        engines: engine_queries(desired, node.name()),
        weights_path: configured.and_then(weights_path),
        on_node: on_node_paths(desired),
    };
    match node.call(request).await? {
        Response::Facts { node, member, desired } => Ok(Answer { facts: *node, member, specs: desired }),
        other => Err(NodeError::Lost { reason: format!("unexpected answer to a probe: {other:?}") }),
    }
}

fn weights_path(node: &DesiredNode) -> Option<String> {
    node.weights_path.as_ref().map(|path| path.value.clone())
}

/// The engines to look for on a node: a path for this node first, then the general ones.
pub fn engine_queries(desired: &Desired, node: &str) -> Vec<EngineQuery> {
    desired
        .engines
        .values()
        .map(|engine| {
            let own = engine.paths.iter().filter(|path| path.node.as_deref() == Some(node));
            let general = engine.paths.iter().filter(|path| path.node.is_none());
            EngineQuery {
                kind: engine.kind.value,
                paths: own.chain(general).map(|path| path.path.value.clone()).collect(),
            }
        })
        .collect()
}
