//! `flock discover`

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;

use crate::cli::args::{Format, FormatArg, Selectors};
use crate::cli::context::Context;
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::report;

/// Ask every node what it has. Brings the agent to nodes that lack it; starts nothing.
#[derive(Debug, Args)]
pub struct DiscoverArgs {
    /// Only these nodes: names, globs, @label=value, comma-separated
    #[arg(long, value_name = "SEL")]
    on: Option<String>,
    /// Save the inventory, for `plan --inventory`
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    format: FormatArg,
}

/// Runs the command.
pub async fn run(context: &Context, args: &DiscoverArgs) -> Result<ExitCode, Failure> {
    let config = context.config()?;
    let selectors = Selectors { on: args.on.clone(), exclude: None };
    let limits = context.limits(&selectors)?;
    context.check_limits(&limits, &config.desired, None)?;
    let only: Option<BTreeSet<String>> = limits.on.as_ref().map(|on| {
        let selected = config.desired.nodes.iter().filter(|(name, node)| on.matches(name, &node.labels));
        selected.map(|(name, _)| name.clone()).collect()
    });
    let facts = context.ask_nodes(&config.desired, only.as_ref()).await;
    let json = report::json(&facts.inventory);
    if let Some(out) = &args.out {
        std::fs::write(out, &json)
            .map_err(|error| Failure::new(ExitCode::Failure, format!("cannot write {}: {error}", out.display())))?;
    }
    match args.format.format {
        Format::Json => context.printer.data(&json)?,
        Format::Text => context.printer.data(&report::inventory_text(&facts.inventory, &context.style()))?,
    }
    Ok(context.report_unreachable(&config.desired, &facts, &limits))
}
