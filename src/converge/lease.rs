//! The lease that keeps two applies apart: held on every node of the plan, renewed while steps run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::inventory::{Lease, MemberRecord, Refusal, Request, Response};
use crate::ports::{Clock, Node, NodeError, Random};

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

/// Leases held on nodes.
pub struct Leases {
    nodes: BTreeMap<String, Arc<dyn Node>>,
    lease: Lease,
    lost: Arc<AtomicBool>,
    renewal: tokio::task::JoinHandle<()>,
}

impl Leases {
    /// Takes the lease on all nodes, in the order of their names so that two applies cannot each hold half.
    /// `generations` are those that the plan was made from: a node that stands elsewhere refuses.
    pub async fn take(
        nodes: &BTreeMap<String, Arc<dyn Node>>,
        lease: Lease,
        generations: &BTreeMap<String, u64>,
    ) -> Result<Self, LeaseError> {
        let mut taken: Vec<&Arc<dyn Node>> = Vec::new();
        for (name, node) in nodes {
            match request(node.as_ref(), &lease, generations.get(name).copied()).await {
                Ok(()) => taken.push(node),
                Err(error) => {
                    for node in taken {
                        release(node.as_ref(), &lease.id).await;
                    }
                    return Err(match error {
                        NodeError::Refused(Refusal::LeaseHeld { holder, since, expires_in_ms }) => LeaseError::Held {
                            node: name.clone(),
                            holder,
                            since,
                            expires_in_s: expires_in_ms.div_ceil(1000),
                        },
                        NodeError::Refused(Refusal::Stale { .. }) => LeaseError::Moved { node: name.clone() },
                        error => LeaseError::Node { node: name.clone(), error },
                    });
                }
            }
        }
        let lost = Arc::new(AtomicBool::new(false));
        let renewal = tokio::spawn(renew(nodes.clone(), lease.clone(), Arc::clone(&lost)));
        Ok(Self { nodes: nodes.clone(), lease, lost, renewal })
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
        self.renewal.abort();
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
    clock: &dyn Clock,
    random: &dyn Random,
) -> Result<Vec<(String, NodeError)>, LeaseError> {
    member.generation = generations.values().copied().max().unwrap_or(0).max(member.generation).saturating_add(1);
    let lease = Lease {
        id: random.hex(16),
        holder: by,
        since: clock.rfc3339(),
        expires_unix_ms: 0,
        generation: member.generation,
    };
    let leases = Leases::take(nodes, lease, generations).await?;
    let unwritten = leases.write_member(&member, &BTreeSet::new()).await;
    leases.release().await;
    Ok(unwritten)
}

async fn request(node: &dyn Node, lease: &Lease, expected_generation: Option<u64>) -> Result<(), NodeError> {
    let request = Request::Lease { lease: lease.clone(), ttl_ms: TTL.as_millis() as u64, expected_generation };
    node.call(request).await.map(|_: Response| ())
}

/// A release that does not arrive is harmless: the lease ends by itself.
async fn release(node: &dyn Node, id: &str) {
    if let Err(error) = node.call(Request::Release { id: id.to_owned() }).await {
        tracing::debug!(node = node.name(), %error, "the lease was not released and will expire");
    }
}

async fn renew(nodes: BTreeMap<String, Arc<dyn Node>>, lease: Lease, lost: Arc<AtomicBool>) {
    loop {
        tokio::time::sleep(TTL / 3).await;
        // All at once and each with a deadline: one node that hangs must not let the others lapse.
        let lease = &lease;
        let renewals = nodes.iter().map(|(name, node)| async move {
            (name, tokio::time::timeout(TTL / 3, request(node.as_ref(), lease, None)).await)
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
