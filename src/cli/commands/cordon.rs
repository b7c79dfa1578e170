//! `flock cordon` and `flock uncordon`

use std::collections::BTreeSet;

use clap::Args;

use crate::cli::context::Context;
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::cli::user::whoami;
use crate::inventory::{Hold, MemberRecord};
use crate::plan::Limits;
use crate::ports::Clock;

use super::member::write;

/// Take nodes out of new placements; what runs there stays.
///
/// Like `hold` in the config, but recorded on the nodes: it holds whatever git says, until `flock uncordon`.
#[derive(Debug, Args)]
pub struct CordonArgs {
    /// Nodes: names, globs, @label=value, comma-separated
    #[arg(value_name = "SEL")]
    selector: String,
    /// Why, for those who come after
    #[arg(long, default_value = "cordoned", hide_default_value = true)]
    reason: String,
}

/// Give nodes back to new placements.
#[derive(Debug, Args)]
pub struct UncordonArgs {
    /// Nodes: names, globs, @label=value, comma-separated
    #[arg(value_name = "SEL")]
    selector: String,
}

/// Runs `cordon`.
pub async fn cordon(context: &Context, args: &CordonArgs) -> Result<ExitCode, Failure> {
    let config = context.config_as_far_as_it_goes()?;
    let facts = context.ask_nodes(&config.desired, None).await;
    let nodes = context.select(&args.selector, &config.desired, &facts)?;
    let member = hold(context, &facts.inventory.member, &nodes, &args.reason);
    write(context, &config, &facts, member).await?;
    let names = nodes.iter().cloned().collect::<Vec<_>>().join(", ");
    context.printer.note(&format!("cordoned: {names} ({}). What runs there stays; nothing new comes.", args.reason));
    Ok(context.report_unreachable(&config.desired, &facts, &Limits::default()))
}

/// Runs `uncordon`.
pub async fn uncordon(context: &Context, args: &UncordonArgs) -> Result<ExitCode, Failure> {
    let config = context.config_as_far_as_it_goes()?;
    let facts = context.ask_nodes(&config.desired, None).await;
    let nodes = context.select(&args.selector, &config.desired, &facts)?;
    let mut member = facts.inventory.member.clone();
    let (gone, left): (Vec<Hold>, Vec<Hold>) = member.holds.into_iter().partition(|hold| nodes.contains(&hold.node));
    member.holds = left;
    if gone.is_empty() {
        context.printer.note("none of them is cordoned");
    } else {
        write(context, &config, &facts, member).await?;
        let names: Vec<&str> = gone.iter().map(|hold| hold.node.as_str()).collect();
        context.printer.note(&format!("no longer cordoned: {}", names.join(", ")));
    }
    let configured =
        nodes.iter().filter_map(|name| config.desired.nodes.get(name)?.hold.as_ref().map(|hold| (name, hold)));
    let mut refused = ExitCode::Success;
    for (name, hold) in configured {
        let text = format!("{} holds node `{name}` in the config: \"{}\"", hold.place.short(), hold.value);
        context.printer.error(&text, Some("take the line out of the config and apply"));
        refused = ExitCode::Refused;
    }
    Ok(refused.or(context.report_unreachable(&config.desired, &facts, &Limits::default())))
}

/// The record with holds on these nodes. A hold that is there already keeps its beginning and its holder.
pub(super) fn hold(context: &Context, member: &MemberRecord, nodes: &BTreeSet<String>, reason: &str) -> MemberRecord {
    let mut member = member.clone();
    for node in nodes {
        match member.holds.iter_mut().find(|hold| &hold.node == node) {
            Some(known) => reason.clone_into(&mut known.reason),
            None => member.holds.push(Hold {
                node: node.clone(),
                reason: reason.to_owned(),
                by: whoami(),
                since: context.clock.rfc3339(),
            }),
        }
    }
    member.holds.sort_by(|a, b| a.node.cmp(&b.node));
    member
}
