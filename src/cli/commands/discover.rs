//! `flock discover`

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;

use crate::cli::args::{Format, FormatArg, Selectors};
use crate::cli::context::Context;
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::reconcile::Extent;
use crate::report;

/// Ask every node what it has.
///
/// Brings the agent to nodes that lack it; starts nothing.
///
/// Agents measure the way to each other (a short, encrypted exchange on a port that is open for a moment) and to the
/// providers of the config. The nodes remember the results for a day.
#[derive(Debug, Args)]
pub struct DiscoverArgs {
    /// Only these nodes: names, globs, @label=value, comma-separated
    #[arg(long, value_name = "SEL")]
    on: Option<String>,
    /// Measure the way between nodes and to providers anew, also where it is known
    #[arg(long, conflicts_with = "no_measure")]
    measure: bool,
    /// Measure nothing; show what the nodes remember
    #[arg(long)]
    no_measure: bool,
    /// Save the inventory, for `plan --inventory`
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    format: FormatArg,
}

/// Runs the command.
pub async fn run(context: &Context, args: &DiscoverArgs) -> Result<ExitCode, Failure> {
    let config = context.config_as_far_as_it_goes()?;
    let selectors = Selectors { on: args.on.clone(), exclude: None };
    let limits = context.limits(&selectors)?;
    context.check_limits(&limits, &config.desired, None)?;
    let only: Option<BTreeSet<String>> = limits.on.as_ref().map(|on| {
        let selected = config.desired.nodes.iter().filter(|(name, node)| on.matches(name, &node.labels));
        selected.map(|(name, _)| name.clone()).collect()
    });
    let extent = if args.measure { Extent::Everything } else { Extent::Missing };
    let facts = if args.no_measure {
        context.ask_nodes(&config.desired, only.as_ref()).await
    } else {
        context.ask_and_measure(&config.desired, only.as_ref(), extent).await
    };
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
