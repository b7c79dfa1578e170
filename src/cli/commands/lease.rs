//! `flock lease list` and `flock lease break`

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use clap::{Args, Subcommand};

use crate::cli::args::{Format, FormatArg};
use crate::cli::context::{Config, Context, Facts};
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::cli::prompt;
use crate::inventory::Request;
use crate::plan::Limits;
use crate::ports::{Node, NodeError};
use crate::report;

use super::member::write_to;

/// List or break the leases that keep applies apart.
#[derive(Debug, Args)]
pub struct LeaseArgs {
    #[command(subcommand)]
    command: LeaseCommand,
}

/// What to do about leases.
#[derive(Debug, Subcommand)]
enum LeaseCommand {
    /// Show who holds a lease on which node, since when, and when it ends by itself
    List(ListArgs),
    /// End leases: their holder's apply begins nothing more
    ///
    /// A lease whose holder died ends by itself within half a minute; this is for one that hangs. What it has in
    /// flight on the nodes is fenced off: the nodes refuse its orders from then on.
    Break(BreakArgs),
}

/// `flock lease list`.
#[derive(Debug, Args)]
struct ListArgs {
    #[command(flatten)]
    format: FormatArg,
}

/// `flock lease break`.
#[derive(Debug, Args)]
struct BreakArgs {
    /// Only on these nodes: names, globs, @label=value, comma-separated
    #[arg(long, visible_alias = "node", value_name = "SEL")]
    on: Option<String>,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

/// Runs the command.
pub async fn run(context: &Context, args: &LeaseArgs) -> Result<ExitCode, Failure> {
    let config = context.config_as_far_as_it_goes()?;
    let facts = context.ask_nodes(&config.desired, None).await;
    match &args.command {
        LeaseCommand::List(args) => list(context, args, &config, &facts),
        LeaseCommand::Break(args) => end(context, args, &config, &facts).await,
    }
}

fn list(context: &Context, args: &ListArgs, config: &Config, facts: &Facts) -> Result<ExitCode, Failure> {
    let leases = report::leases(&config.desired.cluster.name.value, &facts.inventory, &facts.leases);
    match args.format.format {
        Format::Json => context.printer.data(&report::json(&leases))?,
        Format::Text => context.printer.data(&report::leases_text(&leases))?,
    }
    Ok(context.report_unreachable(&config.desired, facts, &Limits::default()))
}

async fn end(context: &Context, args: &BreakArgs, config: &Config, facts: &Facts) -> Result<ExitCode, Failure> {
    let selected: Option<BTreeSet<String>> =
        args.on.as_deref().map(|on| context.select(on, &config.desired, facts)).transpose()?;
    let chosen = |node: &str| selected.as_ref().is_none_or(|selected| selected.contains(node));
    let unreachable = context.report_unreachable(&config.desired, facts, &Limits::default());
    let nodes: Vec<&String> = facts.leases.keys().filter(|node| chosen(node)).collect();
    if nodes.is_empty() {
        context.printer.note("no lease is held there");
        return Ok(unreachable);
    }
    let mut leases = report::leases(&config.desired.cluster.name.value, &facts.inventory, &facts.leases);
    leases.leases.retain(|lease| chosen(&lease.node));
    context.printer.findings(&report::leases_text(&leases));
    if !args.yes {
        let holders: BTreeSet<&str> = leases.leases.iter().map(|lease| lease.holder.as_str()).collect();
        let holders = report::clean(&holders.into_iter().collect::<Vec<_>>().join(", "));
        let question = format!("\nBreak the lease of {holders}? Its apply begins nothing more.");
        prompt::confirm(&question, prompt::YES)?;
    }
    // Begun is finished: a lease that is gone without the fence would only invite its holder back.
    let _careful = context.signals.carefully();
    let mut fenced = facts.reachable();
    fenced.retain(|node, _| nodes.contains(&node));
    // One that fails must not keep the others from being fenced.
    let failed = break_all(&fenced).await;
    fenced.retain(|name, _| !failed.contains_key(name));
    for (name, error) in &failed {
        context.printer.error(&format!("{name}: the lease is not broken: {error}"), error.hint().as_deref());
    }
    if fenced.is_empty() {
        return Ok(ExitCode::Incomplete);
    }
    let names = fenced.keys().cloned().collect::<Vec<_>>().join(", ");
    // A record with a new generation: what the old holder still orders is refused as out of date.
    write_to(context, config, facts, facts.inventory.member.clone(), fenced).await?;
    context.printer.note(&format!("broken on {names}; run `flock plan` before the next apply"));
    Ok(if failed.is_empty() { unreachable } else { ExitCode::Partial })
}

/// Breaks the lease on every node; says where that failed.
async fn break_all(nodes: &BTreeMap<String, Arc<dyn Node>>) -> BTreeMap<String, NodeError> {
    let ends = nodes.iter().map(|(name, node)| async move {
        node.call(Request::BreakLease).await.err().map(|error| (name.clone(), error))
    });
    futures::future::join_all(ends).await.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Response;
    use crate::ports::testing::SaidNode;

    #[tokio::test]
    async fn a_node_that_fails_does_not_keep_the_others_from_being_asked() {
        let lost = || NodeError::Lost { reason: "gone".to_owned() };
        let mut nodes: BTreeMap<String, Arc<dyn Node>> = BTreeMap::new();
        let bad = SaidNode::new("a", move |_| Box::pin(async move { Err(lost()) }));
        nodes.insert("a".to_owned(), Arc::new(bad));
        let good = Arc::new(SaidNode::new("b", |_| {
            Box::pin(async {
                tokio::task::yield_now().await;
                Ok(Response::Done)
            })
        }));
        nodes.insert("b".to_owned(), Arc::clone(&good) as _);
        let failed = break_all(&nodes).await;
        assert_eq!(failed.keys().collect::<Vec<_>>(), ["a"]);
        assert_eq!(*good.asked.lock().expect("free"), [Request::BreakLease]);
    }
}
