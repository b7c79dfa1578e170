//! `flock status`

use clap::Args;

use crate::cli::args::{Format, FormatArg};
use crate::cli::context::{Config, Context, Facts};
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::inventory::{Listener, Request, Response};
use crate::plan::{self, Limits};
use crate::report;

use super::instances::no_such_model;

/// Show what runs, where, and how it is doing.
///
/// Works with a config that has errors, as long as it says which cluster and which nodes.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Only this model
    name: Option<String>,
    /// Show instead what holds accelerators, or listens in flock's port ranges, and is not ours
    #[arg(long, conflicts_with = "name")]
    unmanaged: bool,
    #[command(flatten)]
    format: FormatArg,
}

/// Runs the command.
pub async fn run(context: &Context, args: &StatusArgs) -> Result<ExitCode, Failure> {
    let config = context.config_as_far_as_it_goes()?;
    let facts = context.ask_nodes(&config.desired, None).await;
    if args.unmanaged {
        return unmanaged(context, args, &config, &facts).await;
    }
    let known = |name: &str| {
        config.desired.models.contains_key(name)
            || facts.inventory.nodes.iter().any(|node| node.instances.iter().any(|instance| instance.model == name))
    };
    if let Some(name) = args.name.as_deref().filter(|name| !known(name)) {
        return Err(no_such_model(&config.desired, name));
    }
    let observed = plan::observe(&facts.inventory, &facts.specs);
    let status = report::status(&config.desired, &facts.inventory, &observed, args.name.as_deref());
    match args.format.format {
        Format::Json => context.printer.data(&report::json(&status))?,
        Format::Text => context.printer.data(&report::status_text(&status, &facts.inventory, &context.style()))?,
    }
    Ok(context.report_unreachable(&config.desired, &facts, &Limits::default()))
}

/// What others run. Nothing is ever done about it.
async fn unmanaged(context: &Context, args: &StatusArgs, config: &Config, facts: &Facts) -> Result<ExitCode, Failure> {
    let asked = facts.reachable().into_iter().map(|(name, node)| async move {
        let (low, high) = config.desired.nodes.get(&name).map_or(plan::DEFAULT_PORTS, |node| node.ports);
        let answer = node.call(Request::Listeners { low, high }).await;
        (name, answer)
    });
    let mut listeners: Vec<(String, Listener)> = Vec::new();
    let mut untold = ExitCode::Success;
    for (name, answer) in futures::future::join_all(asked).await {
        match answer {
            Ok(Response::Listeners { listeners: found }) => {
                listeners.extend(found.into_iter().map(|listener| (name.clone(), listener)));
            }
            Ok(other) => {
                return Err(Failure::new(ExitCode::Failure, format!("unexpected answer of {name}: {other:?}")));
            }
            Err(error) => {
                context.printer.error(&format!("{name}: {error}"), error.hint().as_deref());
                untold = ExitCode::Incomplete;
            }
        }
    }
    let found = report::unmanaged(&config.desired.cluster.name.value, &facts.inventory, &listeners);
    match args.format.format {
        Format::Json => context.printer.data(&report::json(&found))?,
        Format::Text => context.printer.data(&report::unmanaged_text(&found, &context.style()))?,
    }
    Ok(context.report_unreachable(&config.desired, facts, &Limits::default()).or(untold))
}
