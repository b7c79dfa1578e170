//! `flock completions`

use clap::{Args, CommandFactory};

use crate::cli::args::Cli;
use crate::cli::context::Context;
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;

/// Print a shell's completion script.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    shell: clap_complete::Shell,
}

/// Runs the command.
pub fn run(context: &Context, args: &CompletionsArgs) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "flock", &mut script);
    context.printer.data(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::Success)
}
