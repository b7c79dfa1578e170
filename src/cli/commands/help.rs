//! `flock help`

use clap::{Args, CommandFactory};

use crate::cli::args::Cli;
use crate::cli::context::Context;
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::config::DiagnosticId;

/// Print help for a command, or about `exit-codes`, `diagnostics` or one finding.
#[derive(Debug, Args)]
pub struct HelpArgs {
    /// A command, `exit-codes`, `diagnostics`, or the id of a finding such as FLK214
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
        Some(id) if id.starts_with("FLK") => explained(|known| known == id).ok_or_else(|| {
            Failure::new(ExitCode::Usage, format!("there is no finding {id}"))
                .hint("`flock help diagnostics` lists them")
        })?,
        Some(topic) => {
            let Some(found) = command.find_subcommand_mut(topic) else {
                return Err(Failure::new(ExitCode::Usage, format!("there is no help about `{topic}`"))
                    .hint("`flock help` lists the commands; further topics are exit-codes, diagnostics and the id of a finding"));
            };
            found.render_long_help().to_string()
        }
    };
    context.printer.data(&text)?;
    Ok(ExitCode::Success)
}

/// Every identifier of every room, in order.
fn diagnostics() -> String {
    let all = explained(|_| true).unwrap_or_default();
    format!("What flock's findings mean. An identifier is never reused for another meaning.\n{all}")
}

/// The findings whose identifier is asked for; `None` where there is none.
fn explained(asked: impl Fn(&str) -> bool) -> Option<String> {
    let mut text = String::new();
    for DiagnosticId { id, title, explanation } in crate::report::known_diagnostics() {
        if !asked(id) {
            continue;
        }
        text.push_str(&format!("\n{id}  {title}\n"));
        for line in crate::report::wrap(explanation, 92) {
            text.push_str(&format!("        {line}\n"));
        }
    }
    (!text.is_empty()).then_some(text)
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
