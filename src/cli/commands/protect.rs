//! `flock protect` and `flock unprotect`

use std::collections::BTreeMap;
use std::sync::Arc;

use clap::Args;

use crate::cli::context::{Config, Context, Facts};
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::cli::user::whoami;
use crate::converge::{LeaseError, remember};
use crate::edge::SystemRandom;
use crate::inventory::{MemberRecord, Protection};
use crate::plan::Limits;
use crate::ports::{Clock, Node};

/// Protect a model, or take a protection away; recorded on the nodes, with the reason.
///
/// A protected model is not stopped, moved, displaced or destroyed, whatever the config says.
#[derive(Debug, Args)]
pub struct ProtectArgs {
    /// The model
    name: String,
    /// Why, for those who come after
    #[arg(long)]
    reason: String,
}

/// Runs `protect`.
pub async fn protect(context: &Context, args: &ProtectArgs) -> Result<ExitCode, Failure> {
    let config = context.config()?;
    let facts = context.ask_nodes(&config.desired, None).await;
    let runs = facts.inventory.nodes.iter().any(|node| node.instances.iter().any(|found| found.model == args.name));
    if !config.desired.models.contains_key(&args.name) && !runs {
        return Err(Failure::new(ExitCode::Failure, format!("there is no model `{}`", args.name)));
    }
    let mut member = facts.inventory.member.clone();
    member.protections.retain(|known| known.model != args.name);
    let since = context.clock.rfc3339();
    member.protections.push(Protection { model: args.name.clone(), since, reason: args.reason.clone() });
    member.protections.sort_by(|a, b| a.model.cmp(&b.model));
    write(context, &config, &facts, member).await?;
    context.printer.note(&format!("`{}` is protected: {}", args.name, args.reason));
    Ok(context.report_unreachable(&config.desired, &facts, &Limits::default()))
}

/// Runs `unprotect`.
pub async fn unprotect(context: &Context, args: &ProtectArgs) -> Result<ExitCode, Failure> {
    let config = context.config()?;
    if let Some(line) = config.desired.policies.protect.iter().find(|model| model.value == args.name) {
        let text = format!("{} protects `{}`; the next apply would protect it again", line.place.short(), args.name);
        return Err(Failure::new(ExitCode::Refused, text).hint("take the line out of the config first"));
    }
    let facts = context.ask_nodes(&config.desired, None).await;
    let mut member = facts.inventory.member.clone();
    let before = member.protections.len();
    member.protections.retain(|known| known.model != args.name);
    if member.protections.len() == before {
        context.printer.note(&format!("`{}` is not protected", args.name));
    } else {
        write(context, &config, &facts, member).await?;
        context.printer.note(&format!("`{}` is no longer protected: {}", args.name, args.reason));
    }
    Ok(context.report_unreachable(&config.desired, &facts, &Limits::default()))
}

async fn write(context: &Context, config: &Config, facts: &Facts, member: MemberRecord) -> Result<(), Failure> {
    let nodes: BTreeMap<String, Arc<dyn Node>> = facts.reachable();
    if nodes.is_empty() {
        return Err(Failure::new(
            ExitCode::Incomplete,
            format!("no node of cluster `{}` answers", config.desired.cluster.name.value),
        ));
    }
    let unwritten = remember(&nodes, member, &facts.generations(), whoami(), &context.clock, &SystemRandom).await;
    let unwritten = unwritten.map_err(|error| match error {
        LeaseError::Held { .. } => Failure::new(ExitCode::Leased, error.to_string()),
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
