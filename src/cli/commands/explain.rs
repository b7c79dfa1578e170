//! `flock explain`

use std::path::PathBuf;

use clap::Args;

use crate::cli::args::{Format, FormatArg};
use crate::cli::context::Context;
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::config::near_miss;
use crate::plan::Limits;
use crate::report::{self, Explanation, NodeExplanation};

use super::instances::no_such_model;

/// Say why a model runs where it runs, or why it does not.
///
/// Every shape that was considered, and how it lost. `node/NAME` says the same of a node: what is planned there, and
/// why the other models are not.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// A model, or `node/NAME`
    name: String,
    /// Explain from this inventory, without any network
    #[arg(long, value_name = "FILE")]
    inventory: Option<PathBuf>,
    #[command(flatten)]
    format: FormatArg,
}

/// What is to be explained.
#[derive(Clone, Copy)]
enum Name<'a> {
    Model(&'a str),
    Node(&'a str),
}

/// Runs the command.
pub async fn run(context: &Context, args: &ExplainArgs) -> Result<ExitCode, Failure> {
    let config = context.config()?;
    let name = match args.name.split_once('/') {
        None => Name::Model(&args.name),
        Some(("node", node)) => Name::Node(node),
        Some(_) => {
            let text = format!("`{}` is neither a model nor node/NAME: only those are placed", args.name);
            return Err(Failure::new(ExitCode::Usage, text)
                .hint("`flock graph workflow` shows the agents and models of workflows"));
        }
    };
    if let Name::Model(name) = name
        && !config.desired.models.contains_key(name)
    {
        return Err(no_such_model(&config.desired, name));
    }
    let facts = match &args.inventory {
        Some(path) => context.read_inventory(path)?,
        None => context.ask_nodes(&config.desired, None).await,
    };
    if let Name::Node(node) = name
        && !config.desired.nodes.contains_key(node)
        && facts.inventory.node(node).is_none()
    {
        let known: Vec<&String> = config.desired.nodes.keys().collect();
        return Err(Failure::new(ExitCode::Failure, format!("there is no node `{node}`")).hint(near_miss(node, &known)));
    }
    let planned = context.plan(&config, &facts, &Limits::default()).await?;
    let (plan, placement) = (&planned.plan, &planned.placement);
    let style = context.style();
    let text = match name {
        Name::Model(name) => {
            let explanation = Explanation::of(name, plan, &placement.considered, &placement.variants);
            match args.format.format {
                Format::Json => report::json(&explanation),
                Format::Text => report::explain_text(&explanation, Some(&facts.inventory), &style),
            }
        }
        Name::Node(node) => {
            let explanation = NodeExplanation::of(node, &config.desired, &facts.inventory, plan, &placement.considered);
            match args.format.format {
                Format::Json => report::json(&explanation),
                Format::Text => report::explain_node_text(&explanation, &facts.inventory, &style),
            }
        }
    };
    context.printer.data(&text)?;
    Ok(context.report_unreachable(&config.desired, &facts, &Limits::default()))
}
