//! `flock status`

use clap::Args;

use crate::cli::args::{Format, FormatArg};
use crate::cli::context::Context;
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::plan::{self, Limits};
use crate::report;

/// Show what runs, where, and how it is doing.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Only this model
    name: Option<String>,
    #[command(flatten)]
    format: FormatArg,
}

/// Runs the command.
pub async fn run(context: &Context, args: &StatusArgs) -> Result<ExitCode, Failure> {
    let config = context.config()?;
    let facts = context.ask_nodes(&config.desired, None).await;
    let known = |name: &str| {
        config.desired.models.contains_key(name)
            || facts.inventory.nodes.iter().any(|node| node.instances.iter().any(|instance| instance.model == name))
    };
    if let Some(name) = args.name.as_deref().filter(|name| !known(name)) {
        return Err(Failure::new(ExitCode::Failure, format!("there is no model `{name}`")));
    }
    let observed = plan::observe(&facts.inventory, &facts.specs);
    let status = report::status(&config.desired, &facts.inventory, &observed, args.name.as_deref());
    match args.format.format {
        Format::Json => context.printer.data(&report::json(&status))?,
        Format::Text => context.printer.data(&report::status_text(&status, &facts.inventory, &context.style()))?,
    }
    Ok(context.report_unreachable(&config.desired, &facts, &Limits::default()))
}
