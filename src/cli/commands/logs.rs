//! `flock logs`

use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use crate::cli::context::Context;
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::inventory::{Request, Response};
use crate::ports::Node;

use super::instances::{Found, find_instances};

/// How much of the end of a log is printed without `--follow`.
const TAIL_BYTES: u64 = 64 << 10;
/// How much is read at once while following.
const CHUNK_BYTES: u64 = 1 << 20;

/// Print the end of the engine's log of every instance of a model.
#[derive(Debug, Args)]
pub struct LogsArgs {
    /// The model
    name: String,
    /// Only this replica
    #[arg(long)]
    replica: Option<u32>,
    /// Go on printing as it grows (one instance)
    #[arg(short, long)]
    follow: bool,
}

/// Runs the command.
pub async fn run(context: &Context, args: &LogsArgs) -> Result<ExitCode, Failure> {
    let config = context.config_as_far_as_it_goes()?;
    let found = find_instances(context, &config, &args.name, args.replica).await?;
    let serving: Vec<&Found> = found.iter().filter(|found| !found.facts.is_worker()).collect();
    if args.follow && serving.len() > 1 {
        return Err(Failure::new(ExitCode::Usage, format!("`{}` has {} instances", args.name, serving.len()))
            .hint("choose one with --replica"));
    }
    let several = found.len() > 1;
    for Found { node, facts } in &found {
        let what = if facts.is_worker() { ", worker" } else { "" };
        // Of what is over several nodes the one that serves is followed.
        if args.follow && facts.is_worker() {
            continue;
        }
        if several {
            let replica = facts.replica;
            context.printer.data(&format!("==> {} replica {replica}{what} on {} <==", facts.model, node.name()))?;
        }
        let (next, text) = read(node, &facts.instance, None, TAIL_BYTES).await?;
        context.printer.foreign(&text)?;
        if args.follow {
            follow(context, node, &facts.instance, next).await?;
        }
    }
    Ok(ExitCode::Success)
}

/// Until it is interrupted, or its reader or the node goes away.
async fn follow(context: &Context, node: &Arc<dyn Node>, instance: &str, mut next: u64) -> Result<(), Failure> {
    let follow = async {
        loop {
            let (after, text) = read(node, instance, Some(next), CHUNK_BYTES).await?;
            context.printer.foreign(&text)?;
            next = after;
            if text.is_empty() {
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        }
    };
    tokio::select! {
        ended = follow => ended,
        () = context.printer.reader_gone() => Ok(()),
    }
}

async fn read(
    node: &Arc<dyn Node>,
    instance: &str,
    from: Option<u64>,
    max_bytes: u64,
) -> Result<(u64, String), Failure> {
    match node.call(Request::Log { instance: instance.to_owned(), from, max_bytes }).await? {
        Response::Log { next, text } => Ok((next, text)),
        other => Err(Failure::new(ExitCode::Failure, format!("unexpected answer of {}: {other:?}", node.name()))),
    }
}
