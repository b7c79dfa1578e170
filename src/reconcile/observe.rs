//! Asking all nodes at once what there is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::stream::{self, StreamExt};

use crate::config::{Desired, Node as DesiredNode};
use crate::inventory::{
    EngineQuery, InstanceSpec, Inventory, Lease, Measured, MemberInstance, MemberRecord, NodeFacts, Request, Response,
};
use crate::ports::{Clock, Fleet, Node, NodeError};

use super::{links, members, on_node_paths};

/// Most nodes that are asked at the same time.
const PARALLEL: usize = 32;

/// What the nodes said.
pub struct Observed {
    /// Facts of all nodes; unreachable ones with their reason.
    pub inventory: Inventory,
    /// Desired instances as each node holds them.
    pub specs: BTreeMap<String, Vec<InstanceSpec>>,
    /// What each node has measured of the way to others; `inventory.links` and `inventory.egress` come from it.
    pub measured: BTreeMap<String, Measured>,
    /// The lease that each node holds now.
    pub leases: BTreeMap<String, Lease>,
    /// Why nodes could not be asked.
    pub failures: BTreeMap<String, NodeError>,
    /// What was odd about the answers.
    pub warnings: Vec<String>,
    /// The nodes, for what follows; unreachable ones too.
    pub nodes: BTreeMap<String, Arc<dyn Node>>,
}

struct Answer {
    facts: NodeFacts,
    member: MemberRecord,
    specs: Vec<InstanceSpec>,
    measured: Measured,
}

/// Probes every node of the config, and every node that the newest member record remembers besides. `hub` is the hub's
/// address.
pub async fn observe(
    desired: &Desired,
    hub: &str,
    fleet: &dyn Fleet,
    clock: &dyn Clock,
    only: Option<&BTreeSet<String>>,
) -> Observed {
    let wanted = |name: &str| only.is_none_or(|only| only.contains(name));
    let configured: Vec<_> = fleet.configured().into_iter().filter(|node| wanted(node.name())).collect();
    let mut observed = Observed {
        inventory: Inventory { format: 1, taken_at: Some(clock.rfc3339()), ..Inventory::default() },
        specs: BTreeMap::new(),
        measured: BTreeMap::new(),
        leases: BTreeMap::new(),
        failures: BTreeMap::new(),
        warnings: Vec::new(),
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
    links::tell(desired, hub, &mut observed);
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
    let mut answers: Vec<_> = stream::iter(nodes)
        .map(|node| async move {
            let answer = ask(desired, node.as_ref()).await;
            (node, answer)
        })
        .buffer_unordered(PARALLEL)
        .collect()
        .await;
    // Who answered first must not decide anything.
    answers.sort_by(|(a, _), (b, _)| a.name().cmp(b.name()));
    for (node, answer) in answers {
        let name = node.name().to_owned();
        let labels = desired.nodes.get(&name).map(|node| node.labels.clone()).unwrap_or_default();
        match answer {
            Ok(mut answer) => {
                answer.facts.name.clone_from(&name);
                answer.facts.labels = labels;
                answer.facts.reachable = true;
                if let Some(lease) = answer.member.lease.take() {
                    observed.leases.insert(name.clone(), lease);
                }
                let odd = members::vet(&mut answer.member);
                observed.warnings.extend(odd.iter().map(|odd| format!("the record on node {name}: {odd}")));
                if is_newer(&answer.member, &observed.inventory.member) {
                    observed.inventory.member = answer.member;
                }
                observed.inventory.nodes.push(answer.facts);
                observed.specs.insert(name.clone(), answer.specs);
                observed.measured.insert(name.clone(), answer.measured);
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

/// Whether a record is to be believed rather than another. An apply writes twice under one generation: the second time
/// with what it did. Of equals the first stays, by the names of their nodes.
fn is_newer(record: &MemberRecord, than: &MemberRecord) -> bool {
    let rank = |record: &MemberRecord| (record.generation, record.applied.as_ref().map(|applied| applied.at.clone()));
    rank(record) > rank(than) || *than == MemberRecord::default()
}

async fn ask(desired: &Desired, node: &dyn Node) -> Result<Answer, NodeError> {
    let configured = desired.nodes.get(node.name());
    let request = Request::Probe {
        engines: engine_queries(desired, node.name()),
        weights_path: configured.and_then(weights_path),
        on_node: on_node_paths(desired),
    };
    match node.call(request).await? {
        Response::Facts { node, member, desired, measured } => {
            Ok(Answer { facts: *node, member, specs: desired, measured })
        }
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
                modules: engine.extras.modules.iter().map(|module| module.value.clone()).collect(),
                image: engine.extras.container.as_ref().map(|image| image.value.clone()),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use super::*;
    use crate::base::{Tree, TreeEntry};
    use crate::inventory::{Applied, MemberNode};
    use crate::ports::testing::SaidNode;

    struct NoClock;

    impl Clock for NoClock {
        fn unix_ms(&self) -> u64 {
            0
        }
        fn rfc3339(&self) -> String {
            "2026-01-01T00:00:00Z".to_owned()
        }
    }

    /// Nodes that answer with these records, each after some milliseconds.
    struct Said {
        records: Vec<(&'static str, u64, MemberRecord)>,
        remembered: Mutex<Vec<String>>,
    }

    impl Fleet for Said {
        fn configured(&self) -> Vec<Arc<dyn Node>> {
            let node = |(name, wait, member): &(&'static str, u64, MemberRecord)| {
                let (wait, member) = (Duration::from_millis(*wait), member.clone());
                Arc::new(SaidNode::new(name, move |_| {
                    let member = member.clone();
                    Box::pin(async move {
                        tokio::time::sleep(wait).await;
                        let (node, desired, measured) = (Box::default(), Vec::new(), Measured::default());
                        Ok(Response::Facts { node, member, desired, measured })
                    })
                })) as Arc<dyn Node>
            };
            self.records.iter().map(node).collect()
        }

        fn remembered(&self, member: &MemberNode) -> Arc<dyn Node> {
            self.remembered.lock().expect("free").push(member.name.clone());
            let reason = "away".to_owned();
            let lost = NodeError::Lost { reason };
            Arc::new(SaidNode::new(&member.name, move |_| {
                let lost = lost.clone();
                Box::pin(async move { Err(lost) })
            }))
        }
    }

    async fn seen(records: Vec<(&'static str, u64, MemberRecord)>) -> (Observed, Vec<String>) {
        let text = "cluster \"lab\"\nnode \"a\" address=\"10.0.0.1\"\nnode \"b\" address=\"10.0.0.2\"\n";
        let mut tree = Tree::new();
        tree.insert("cluster.kdl", TreeEntry::File(text.into()));
        let loaded = crate::config::load(&tree);
        let desired = loaded.desired.unwrap_or_else(|| panic!("{:?}", loaded.diagnostics));
        let fleet = Said { records, remembered: Mutex::default() };
        let observed = observe(&desired, "https://hub.example", &fleet, &NoClock, None).await;
        let remembered = fleet.remembered.into_inner().expect("free");
        (observed, remembered)
    }

    fn member(name: &str, address: &str) -> MemberNode {
        MemberNode { name: name.into(), address: address.into(), port: 22, ..MemberNode::default() }
    }

    #[tokio::test]
    async fn no_node_sends_flock_where_no_flock_has_been() {
        let hostile = MemberRecord {
            generation: u64::MAX - 1,
            nodes: vec![
                member("x\\'; echo INJECTED; #", "10.9.9.9"),
                member("gone", "10.0.0.3"),
                member("star", "x,*"),
                MemberNode { jump: Some("a;b'@gate".into()), ..member("way", "10.0.0.4") },
            ],
            ..MemberRecord::default()
        };
        let (observed, remembered) = seen(vec![("a", 0, hostile)]).await;
        assert_eq!(remembered, ["gone"]);
        assert_eq!(observed.inventory.member.nodes, [member("gone", "10.0.0.3")], "and none of them is kept");
        assert_eq!(observed.warnings.len(), 3, "{:?}", observed.warnings);
        assert!(observed.warnings.iter().all(|warning| warning.starts_with("the record on node a: ")));
    }

    #[tokio::test]
    async fn who_answers_first_decides_nothing() {
        let record = |generation, at: Option<&str>, model: &str| MemberRecord {
            generation,
            applied: at.map(|at| Applied { at: at.into(), ..Applied::default() }),
            protections: vec![crate::inventory::Protection { model: model.into(), ..Default::default() }],
            ..MemberRecord::default()
        };
        let (one, two) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
        for (a, b, wins) in [
            (record(3, Some(one), "a"), record(3, Some(one), "b"), "a"),
            (record(3, Some(one), "a"), record(3, Some(two), "b"), "b"),
            (record(3, None, "a"), record(3, Some(one), "b"), "b"),
            (record(4, None, "a"), record(3, Some(two), "b"), "a"),
        ] {
            for (first, second) in [(0, 40), (40, 0)] {
                let (observed, _) = seen(vec![("a", first, a.clone()), ("b", second, b.clone())]).await;
                assert_eq!(observed.inventory.member.protections[0].model, wins);
            }
        }
    }
}
