//! `flock protect` and `flock unprotect`

use clap::Args;

use crate::cli::context::Context;
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::config::near_miss;
use crate::inventory::Protection;
use crate::plan::Limits;
use crate::ports::Clock;

use super::member::write;

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
    let config = context.config_as_far_as_it_goes()?;
    let facts = context.ask_nodes(&config.desired, None).await;
    let runs = facts.inventory.nodes.iter().any(|node| node.instances.iter().any(|found| found.model == args.name));
    if !config.desired.models.contains_key(&args.name) && !runs {
        let known: Vec<&String> = config.desired.models.keys().collect();
        return Err(Failure::new(ExitCode::Failure, format!("there is no model `{}`", args.name))
            .hint(near_miss(&args.name, &known)));
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
    let config = context.config_as_far_as_it_goes()?;
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
