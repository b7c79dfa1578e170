//! The lease that keeps two applies apart: held on every node of the plan, renewed while steps run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::inventory::{Lease, MemberRecord, Refusal, Request, Response};
use crate::ports::{Clock, Node, NodeError, Processes, Random};

/// How long a lease lasts on a node without renewal: longer than a controller's hiccup, shorter than a coffee.
const TTL: Duration = Duration::from_secs(30);

/// Why the lease was not got.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// Somebody else applies.
    #[error("{holder} has been applying since {since} (lease on {node}, expires in {expires_in_s} s unless renewed)")]
    Held {
        /// The node that said so.
        node: String,
        /// Who.
        holder: String,
        /// Since when.
        since: String,
        /// When it ends by itself.
        expires_in_s: u64,
    },
    /// Another apply came between the facts and the lease.
    #[error("{node} was changed by another apply since the plan was made")]
    Moved {
        /// The node that said so.
        node: String,
    },
    /// A node could not be asked.
    #[error("{node}: {error}")]
    Node {
        /// The node.
        node: String,
        /// Why.
        error: NodeError,
    },
}

/// What a lease needs of the machine that flock runs on.
pub type World<'a> = (&'a dyn Clock, &'a dyn Random, &'a dyn Processes);

/// A lease that no node has yet; nodes set its end by their own clocks.
pub(super) fn new_lease(holder: String, generation: u64, (clock, random, processes): World<'_>) -> Lease {
    Lease {
        id: random.hex(16),
        holder,
        since: clock.rfc3339(),
        expires_unix_ms: 0,
        generation,
        process: processes.this(),
        ttl_ms: 0,
    }
}

/// Leases held on nodes.
pub struct Leases {
    nodes: BTreeMap<String, Arc<dyn Node>>,
    lease: Lease,
    lost: Arc<AtomicBool>,
    renewal: Renewal,
    /// Nodes whose lease a dead apply had left, and whose it was.
    taken_over: Vec<(String, String)>,
    passed_over: Vec<(String, NodeError)>,
}

/// The nodes whose lease is renewed: they join one by one.
type Held = Arc<Mutex<BTreeMap<String, Arc<dyn Node>>>>;

/// The task that renews; it ends with whoever holds the leases.
struct Renewal(tokio::task::JoinHandle<()>);

impl Drop for Renewal {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn held(nodes: &Held) -> BTreeMap<String, Arc<dyn Node>> {
    nodes.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

impl Leases {
    /// Takes the lease on all nodes, in the order of their names so that two applies cannot each hold half.
    /// `generations` are those that the plan was made from: a node that stands elsewhere refuses. A holder that
    /// `processes` knows to be dead does not hold.
    ///
    /// A node of `spare`, which is left out of every step, may be unable to hold a lease (its disk is full, say): it is
    /// then passed over. Two applies still meet on every other node, because each takes all
    /// that it reaches; and a node that says that another apply holds it, or has moved on, refuses in any case.
    pub async fn take(
        nodes: &BTreeMap<String, Arc<dyn Node>>,
        lease: Lease,
        generations: &BTreeMap<String, u64>,
        spare: &BTreeSet<String>,
        processes: &dyn Processes,
    ) -> Result<Self, LeaseError> {
        Self::take_for(nodes, lease, (generations, spare), processes, TTL).await
    }

    async fn take_for(
        nodes: &BTreeMap<String, Arc<dyn Node>>,
        lease: Lease,
        (generations, spare): (&BTreeMap<String, u64>, &BTreeSet<String>),
        processes: &dyn Processes,
        ttl: Duration,
    ) -> Result<Self, LeaseError> {
        let taken = Held::default();
        let lost = Arc::new(AtomicBool::new(false));
        // From the first node on: the others together may take longer than a lease lasts.
        let renewal = Renewal(tokio::spawn(renew(Arc::clone(&taken), lease.clone(), Arc::clone(&lost), ttl)));
        let (mut taken_over, mut passed_over) = (Vec::new(), Vec::new());
        for (name, node) in nodes {
            let expected = generations.get(name).copied();
            let mut result = request(node.as_ref(), &lease, expected, ttl).await;
            if let Err(NodeError::Refused(Refusal::LeaseHeld { holder, id, process: Some(process), .. })) = &result
                && processes.has_ended(process)
            {
                taken_over.push((name.clone(), holder.clone()));
                // That very lease and no later one: somebody else may have taken it meanwhile.
                release(node.as_ref(), id).await;
                result = request(node.as_ref(), &lease, expected, ttl).await;
            }
            match result {
                Ok(()) => {
                    let mut taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
                    taken.insert(name.clone(), Arc::clone(node));
                }
                Err(error) if spare.contains(name) && !is_taken(&error) => passed_over.push((name.clone(), error)),
                Err(error) => {
                    drop(renewal);
                    for node in held(&taken).values() {
                        release(node.as_ref(), &lease.id).await;
                    }
                    return Err(match error {
                        NodeError::Refused(Refusal::LeaseHeld { holder, since, expires_in_ms, .. }) => {
                            LeaseError::Held {
                                node: name.clone(),
                                holder,
                                since,
                                expires_in_s: expires_in_ms.div_ceil(1000),
                            }
                        }
                        NodeError::Refused(Refusal::Stale { .. }) => LeaseError::Moved { node: name.clone() },
                        error => LeaseError::Node { node: name.clone(), error },
                    });
                }
            }
        }
        Ok(Self { nodes: held(&taken), lease, lost, renewal, taken_over, passed_over })
    }

    /// Takes the lease on all nodes at the generation that they have: for what changes no instance and no record, and
    /// must not meet an apply. `spare` as in [`Self::take`].
    pub async fn hold(
        nodes: &BTreeMap<String, Arc<dyn Node>>,
        generations: &BTreeMap<String, u64>,
        spare: &BTreeSet<String>,
        by: String,
        (clock, random, processes): World<'_>,
    ) -> Result<Self, LeaseError> {
        let generation = generations.values().copied().max().unwrap_or(0);
        let lease = new_lease(by, generation, (clock, random, processes));
        Self::take(nodes, lease, generations, spare, processes).await
    }

    /// Nodes whose lease was taken from an apply that died, with its name.
    pub fn taken_over(&self) -> &[(String, String)] {
        &self.taken_over
    }

    /// Nodes that are left out and could not hold the lease, with the reason.
    pub fn passed_over(&self) -> &[(String, NodeError)] {
        &self.passed_over
    }

    /// Whether another apply took it over: nothing new may be started then.
    pub fn lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// The fencing generation.
    pub fn generation(&self) -> u64 {
        self.lease.generation
    }

    /// Writes the member record to every node but those of `without`; returns those that did not take it.
    pub async fn write_member(&self, member: &MemberRecord, without: &BTreeSet<String>) -> Vec<(String, NodeError)> {
        let writes = self.nodes.iter().filter(|(name, _)| !without.contains(*name)).map(|(name, node)| async move {
            let written = node.call(Request::WriteMember { member: member.clone() }).await;
            written.err().map(|error| (name.clone(), error))
        });
        futures::future::join_all(writes).await.into_iter().flatten().collect()
    }

    /// Gives the lease back everywhere.
    pub async fn release(self) {
        drop(self.renewal);
        futures::future::join_all(self.nodes.values().map(|node| release(node.as_ref(), &self.lease.id))).await;
    }
}

/// Writes a member record outside an apply, under the lease and with a generation of its own. Returns the nodes that
/// did not take it.
pub async fn remember(
    nodes: &BTreeMap<String, Arc<dyn Node>>,
    mut member: MemberRecord,
    generations: &BTreeMap<String, u64>,
    by: String,
    (clock, random, processes): World<'_>,
) -> Result<Vec<(String, NodeError)>, LeaseError> {
    member.generation = generations.values().copied().max().unwrap_or(0).max(member.generation).saturating_add(1);
    let lease = new_lease(by, member.generation, (clock, random, processes));
    let leases = Leases::take(nodes, lease, generations, &BTreeSet::new(), processes).await?;
    let unwritten = leases.write_member(&member, &BTreeSet::new()).await;
    leases.release().await;
    Ok(unwritten)
}

/// Whether another apply is the reason.
fn is_taken(error: &NodeError) -> bool {
    matches!(error, NodeError::Refused(Refusal::LeaseHeld { .. } | Refusal::Stale { .. }))
}

async fn request(
    node: &dyn Node,
    lease: &Lease,
    expected_generation: Option<u64>,
    ttl: Duration,
) -> Result<(), NodeError> {
    let request = Request::Lease { lease: lease.clone(), ttl_ms: ttl.as_millis() as u64, expected_generation };
    node.call(request).await.map(|_: Response| ())
}

/// A release that does not arrive is harmless: the lease ends by itself.
async fn release(node: &dyn Node, id: &str) {
    if let Err(error) = node.call(Request::Release { id: id.to_owned() }).await {
        tracing::debug!(node = node.name(), %error, "the lease was not released and will expire");
    }
}

async fn renew(nodes: Held, lease: Lease, lost: Arc<AtomicBool>, ttl: Duration) {
    loop {
        tokio::time::sleep(ttl / 3).await;
        // All at once and each with a deadline: one node that hangs must not let the others lapse.
        let lease = &lease;
        let nodes = held(&nodes);
        let renewals = nodes.iter().map(|(name, node)| async move {
            (name, tokio::time::timeout(ttl / 3, request(node.as_ref(), lease, None, ttl)).await)
        });
        for (name, renewal) in futures::future::join_all(renewals).await {
            match renewal {
                Ok(Ok(())) => {}
                Ok(Err(NodeError::Refused(refusal))) => {
                    tracing::warn!(node = %name, %refusal, "lost the lease");
                    lost.store(true, Ordering::Relaxed);
                    return;
                }
                // A node that is away keeps the lease until it expires; its steps fail on their own.
                Ok(Err(error)) => tracing::debug!(node = %name, %error, "the lease was not renewed"),
                Err(_) => tracing::debug!(node = %name, "the lease was not renewed in time"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::HolderProcess;
    use crate::ports::testing::SaidNode;

    struct NoProcesses;

    impl Processes for NoProcesses {
        fn this(&self) -> Option<HolderProcess> {
            None
        }
        fn has_ended(&self, _: &HolderProcess) -> bool {
            false
        }
    }

    #[tokio::test]
    async fn a_lease_is_renewed_while_the_other_nodes_are_still_asked() {
        let first = Arc::new(SaidNode::new("a", |_| Box::pin(async { Ok(Response::Done) })));
        let asked = Arc::clone(&first);
        // A node that answers no sooner than the first one was asked again.
        let second = SaidNode::new("b", move |request| {
            let asked = Arc::clone(&asked);
            Box::pin(async move {
                let renewed = async {
                    while matches!(request, Request::Lease { .. }) && asked.asked.lock().expect("free").len() < 2 {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                };
                let renewed = tokio::time::timeout(Duration::from_secs(20), renewed).await;
                renewed.map(|()| Response::Done).map_err(|_| NodeError::Lost { reason: "no renewal".into() })
            })
        });
        let nodes: BTreeMap<String, Arc<dyn Node>> =
            BTreeMap::from([("a".to_owned(), first as Arc<dyn Node>), ("b".to_owned(), Arc::new(second) as _)]);
        let (generations, spare, ttl) = (BTreeMap::new(), BTreeSet::new(), Duration::from_millis(300));
        let lease = Lease { id: "x".into(), ..Lease::default() };
        let taken = Leases::take_for(&nodes, lease, (&generations, &spare), &NoProcesses, ttl).await;
        let leases = taken.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(leases.nodes.len(), 2);
        leases.release().await;
    }
}
