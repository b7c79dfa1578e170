//! `flock validate`

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::base::Tree;
use crate::cli::args::{Format, FormatArg};
use crate::cli::context::Context;
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::report::{self, Validation};

/// Check the config repository, without network: every error of every file in one run.
#[derive(Debug, Args)]
pub struct ValidateArgs {
    /// Only report what is about these files (the whole repository is read all the same, and must be valid)
    paths: Vec<PathBuf>,
    /// What makes the config invalid besides errors
    #[arg(long, value_enum, value_name = "KIND")]
    deny: Option<Deny>,
    #[command(flatten)]
    format: FormatArg,
}

/// `--deny`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Deny {
    /// Warnings too
    Warnings,
}

/// Runs the command.
pub async fn run(context: &Context, args: &ValidateArgs) -> Result<ExitCode, Failure> {
    let (tree, loaded) = context.load()?;
    let all = loaded.diagnostics;
    let whole = Validation::of(&all);
    let mut diagnostics = all.clone();
    if !args.paths.is_empty() {
        let wanted = args.paths.iter().map(|path| relative(&tree, path)).collect::<Result<Vec<_>, _>>()?;
        diagnostics.retain(|diagnostic| {
            diagnostic
                .file
                .as_ref()
                .is_none_or(|file| wanted.iter().any(|path| file == path || file.starts_with(&format!("{path}/"))))
        });
    }
    let mut answer = Validation::of(&diagnostics);
    answer.valid = whole.valid && (args.deny.is_none() || whole.warning_count == 0);
    match args.format.format {
        Format::Json => context.printer.data(&report::json(&answer))?,
        Format::Text => context.printer.data(&report::diagnostics_text(&diagnostics, &tree, &context.style()))?,
    }
    Ok(if answer.valid { ExitCode::Success } else { ExitCode::Invalid })
}

/// A path of the command line as the tree names it; one that names nothing is a mistake worth telling.
fn relative(tree: &Tree, path: &std::path::Path) -> Result<String, Failure> {
    let text = path.to_string_lossy();
    let text = text.trim_start_matches("./").trim_end_matches('/').to_owned();
    let known = tree.iter().any(|(entry, _)| entry == text || entry.starts_with(&format!("{text}/")));
    if known { Ok(text) } else { Err(Failure::new(ExitCode::Usage, format!("{text} is not in the config repository"))) }
}
