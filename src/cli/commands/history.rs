//! `flock history`

use clap::Args;

use crate::cli::args::{Format, FormatArg};
use crate::cli::context::Context;
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::inventory::{Request, Response};
use crate::plan::Limits;
use crate::report;

/// Show who applied what, when and from where.
///
/// Newest first. Every node remembers the last 20 applies it took part in; `flock destroy` makes them forget.
#[derive(Debug, Args)]
pub struct HistoryArgs {
    #[command(flatten)]
    format: FormatArg,
}

/// Runs the command.
pub async fn run(context: &Context, args: &HistoryArgs) -> Result<ExitCode, Failure> {
    let config = context.config_as_far_as_it_goes()?;
    let facts = context.ask_nodes(&config.desired, None).await;
    let asked = facts.reachable().into_iter().map(|(name, node)| async move {
        let answer = node.call(Request::History).await;
        (name, answer)
    });
    let mut remembered = Vec::new();
    let mut untold = ExitCode::Success;
    for (name, answer) in futures::future::join_all(asked).await {
        match answer {
            Ok(Response::History { applies }) => remembered.push((name, applies)),
            Ok(other) => {
                return Err(Failure::new(ExitCode::Failure, format!("unexpected answer of {name}: {other:?}")));
            }
            Err(error) => {
                context.printer.error(&format!("{name}: {error}"), error.hint().as_deref());
                untold = ExitCode::Incomplete;
            }
        }
    }
    let history = report::history(&config.desired.cluster.name.value, &remembered);
    match args.format.format {
        Format::Json => context.printer.data(&report::json(&history))?,
        Format::Text => context.printer.data(&report::history_text(&history, &context.style()))?,
    }
    Ok(context.report_unreachable(&config.desired, &facts, &Limits::default()).or(untold))
}
