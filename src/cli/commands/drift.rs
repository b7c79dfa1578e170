//! `flock drift`

use clap::Args;

use crate::cli::args::{Format, FormatArg};
use crate::cli::context::Context;
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::plan::{self, Limits};
use crate::report::{self, DriftDocument};

/// Show only what the world changed by itself.
///
/// Engines that died, files that vanished, GPUs that were lost. What the config changed is `flock plan`'s business.
#[derive(Debug, Args)]
pub struct DriftArgs {
    /// Exit 2 when there is drift
    #[arg(long)]
    detailed_exitcode: bool,
    #[command(flatten)]
    format: FormatArg,
}

/// Runs the command.
pub async fn run(context: &Context, args: &DriftArgs) -> Result<ExitCode, Failure> {
    let config = context.config_as_far_as_it_goes()?;
    let facts = context.ask_nodes(&config.desired, None).await;
    let observed = plan::observe(&facts.inventory, &facts.specs);
    let drift = plan::drift(&facts.inventory, &facts.specs, &observed);
    let decay = plan::decay(&config.desired, &facts.inventory, &observed);
    let found = DriftDocument::of(&drift, &decay);
    match args.format.format {
        Format::Json => context.printer.data(&report::json(&found))?,
        Format::Text => context.printer.data(&report::drift_text(&found, &context.style()))?,
    }
    let unreachable = context.report_unreachable(&config.desired, &facts, &Limits::default());
    // A node that is away is exit 9, not a difference.
    let differs = !drift.is_empty() || decay.iter().any(|entry| entry.kind != "node_unreachable");
    let differs = if args.detailed_exitcode && differs { ExitCode::Differences } else { ExitCode::Success };
    Ok(unreachable.or(differs))
}
