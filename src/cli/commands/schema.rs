//! `flock schema`

use clap::Args;

use crate::cli::args::{Format, FormatArg};
use crate::cli::context::Context;
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::{config, report};

/// Print every word of the config language.
///
/// Nodes, children, properties, types, defaults, the quality table. It comes from the tables that `validate` checks
/// with, so it says what this version accepts, no more and no less.
#[derive(Debug, Args)]
pub struct SchemaArgs {
    #[command(flatten)]
    format: FormatArg,
}

/// Runs the command.
pub fn run(context: &Context, args: &SchemaArgs) -> Result<ExitCode, Failure> {
    let schema = config::schema();
    match args.format.format {
        Format::Json => context.printer.data(&report::json(&schema))?,
        Format::Text => context.printer.data(&report::schema_text(&schema, &context.style()))?,
    }
    Ok(ExitCode::Success)
}
