//! Writing the member record outside an apply: protections, holds, the fence after a broken lease.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cli::context::{Config, Context, Facts};
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::cli::user::whoami;
use crate::converge::{LeaseError, World, remember};
use crate::edge::{SystemProcesses, SystemRandom};
use crate::inventory::MemberRecord;
use crate::ports::Node;

/// Writes a record to every node that answers.
pub async fn write(context: &Context, config: &Config, facts: &Facts, member: MemberRecord) -> Result<(), Failure> {
    write_to(context, config, facts, member, facts.reachable()).await
}

/// Writes a record to these nodes, under the lease and with a new generation.
pub async fn write_to(
    context: &Context,
    config: &Config,
    facts: &Facts,
    member: MemberRecord,
    nodes: BTreeMap<String, Arc<dyn Node>>,
) -> Result<(), Failure> {
    if nodes.is_empty() {
        return Err(Failure::new(
            ExitCode::Incomplete,
            format!("no node of cluster `{}` answers", config.desired.cluster.name.value),
        ));
    }
    // Begun is finished: half-written, the lease would linger and the nodes disagree.
    let _careful = context.signals.carefully();
    let world: World<'_> = (&context.clock, &SystemRandom, &SystemProcesses);
    let unwritten = remember(&nodes, member, &facts.generations(), whoami(), world).await;
    let unwritten = unwritten.map_err(|error| match error {
        LeaseError::Held { .. } => Failure::new(ExitCode::Leased, error.to_string())
            .hint("wait for it; `flock lease list` shows who holds it, `flock lease break` ends it"),
        LeaseError::Moved { .. } => Failure::new(ExitCode::Stale, error.to_string()).hint("try again"),
        LeaseError::Node { .. } => Failure::new(ExitCode::Incomplete, error.to_string()),
    })?;
    match unwritten.first() {
        None => Ok(()),
        Some((node, error)) => {
            Err(Failure::new(ExitCode::Partial, format!("{node} did not take the member record: {error}"))
                .hint("the other nodes have it; run the same command again when the node answers"))
        }
    }
}
