//! `flock explain`

use std::path::PathBuf;

use clap::Args;

use crate::cli::args::{Format, FormatArg};
use crate::cli::context::Context;
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::plan::Limits;
use crate::report::{self, Explanation};

/// Say why a model runs where it runs, or why it does not: every shape considered, and how it lost.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// The model
    name: String,
    /// Explain from this inventory, without any network
    #[arg(long, value_name = "FILE")]
    inventory: Option<PathBuf>,
    #[command(flatten)]
    format: FormatArg,
}

/// Runs the command.
pub async fn run(context: &Context, args: &ExplainArgs) -> Result<ExitCode, Failure> {
    let config = context.config()?;
    let Some(model) = config.desired.models.get(&args.name) else {
        return Err(Failure::new(ExitCode::Failure, format!("there is no model `{}` that runs on nodes", args.name))
            .hint(format!(
                "the config has: {}",
                config.desired.models.keys().cloned().collect::<Vec<_>>().join(", ")
            )));
    };
    let facts = match &args.inventory {
        Some(path) => context.read_inventory(path)?,
        None => context.ask_nodes(&config.desired, None).await,
    };
    let planned = context.plan(&config, &facts, &Limits::default()).await?;
    let explanation = Explanation::of(&model.name.value, &planned.plan, &planned.placement.considered);
    match args.format.format {
        Format::Json => context.printer.data(&report::json(&explanation))?,
        Format::Text => {
            context.printer.data(&report::explain_text(&explanation, Some(&facts.inventory), &context.style()))?
        }
    }
    Ok(context.report_unreachable(&config.desired, &facts, &Limits::default()))
}
