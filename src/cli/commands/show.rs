//! `flock show`

use std::path::PathBuf;

use clap::Args;

use crate::cli::args::AmountArg;
use crate::cli::context::Context;
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::inventory::refuse_control_characters;
use crate::plan::Plan;
use crate::report::PlanView;

use super::plan::PlanFormat;

/// Print a saved plan.
///
/// As `flock plan` printed it, but for the names of accelerators: a plan file has their UUIDs.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// A file written by `flock plan --out`
    plan: PathBuf,
    #[command(flatten)]
    amount: AmountArg,
    /// Text for people, JSON for programs, markdown for a comment on a pull request
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format: PlanFormat,
}

/// Runs the command.
pub fn run(context: &Context, args: &ShowArgs) -> Result<ExitCode, Failure> {
    let plan = read_plan(&args.plan)?;
    let name = args.plan.to_string_lossy();
    let view = PlanView {
        desired: None,
        inventory: None,
        amount: args.amount.amount(),
        saved_to: Some(&name),
        applying: false,
        flock: Some(&context.called()),
        missing: None,
        against: None,
    };
    // Accelerators are shown by UUID: a saved plan carries no inventory to look their names up in.
    context.printer.data(&args.format.render(&plan, &view, &context.style()))?;
    Ok(ExitCode::Success)
}

/// Reads a plan file; anything but a plan of a format we know is exit 5.
pub(crate) fn read_plan(path: &std::path::Path) -> Result<Plan, Failure> {
    let bytes = std::fs::read(path)
        .map_err(|error| Failure::new(ExitCode::Failure, format!("cannot read {}: {error}", path.display())))?;
    let malformed = |why: String| {
        Failure::new(ExitCode::Stale, format!("{} is no plan: {why}", path.display()))
            .hint("write one with `flock plan --out FILE`")
    };
    refuse_control_characters(&String::from_utf8_lossy(&bytes)).map_err(|error| malformed(error.to_string()))?;
    let plan: Plan = serde_json::from_slice(&bytes).map_err(|error| malformed(error.to_string()))?;
    if plan.format == 1 { Ok(plan) } else { Err(malformed(format!("format {} is not supported", plan.format))) }
}
