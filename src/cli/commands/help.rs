//! `flock help`

use clap::{Args, CommandFactory};

use crate::cli::args::Cli;
use crate::cli::context::Context;
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::config::DiagnosticId;

/// Print help for a command, or about `exit-codes` or `diagnostics`.
#[derive(Debug, Args)]
pub struct HelpArgs {
    /// A command, `exit-codes` or `diagnostics`
    topic: Option<String>,
}

/// Runs the command.
pub fn run(context: &Context, args: &HelpArgs) -> Result<ExitCode, Failure> {
    // Built, a command knows its full name: `flock init`.
    let mut command = Cli::command();
    command.build();
    let text = match args.topic.as_deref() {
        None => command.render_long_help().to_string(),
        Some("exit-codes") => ExitCode::help(),
        Some("diagnostics") => diagnostics(),
        Some(topic) => {
            let Some(found) = command.find_subcommand_mut(topic) else {
                return Err(Failure::new(ExitCode::Usage, format!("there is no help about `{topic}`"))
                    .hint("`flock help` lists the commands; further topics are exit-codes and diagnostics"));
            };
            found.render_long_help().to_string()
        }
    };
    context.printer.data(&text)?;
    Ok(ExitCode::Success)
}

/// Every identifier of every room, in order.
fn diagnostics() -> String {
    let mut text = String::from("What flock's findings mean. An identifier is never reused for another meaning.\n");
    for DiagnosticId { id, title, explanation } in crate::report::known_diagnostics() {
        text.push_str(&format!("\n{id}  {title}\n"));
        for line in crate::report::wrap(explanation, 92) {
            text.push_str(&format!("        {line}\n"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::diagnostics;

    #[test]
    fn no_identifier_has_two_meanings() {
        let text = diagnostics();
        let mut ids: Vec<&str> = text.lines().filter(|line| line.starts_with("FLK")).map(|line| &line[..6]).collect();
        let all = ids.len();
        ids.dedup();
        assert!(all > 30 && ids.len() == all, "{ids:?}");
    }
}
