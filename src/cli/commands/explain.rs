//! `flock explain`

use std::path::PathBuf;

use clap::Args;

use crate::cli::args::{Format, FormatArg};
use crate::cli::context::Context;
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::config::near_miss;
use crate::plan::Limits;
use crate::report::{self, Explanation, NodeExplanation, WayExplanation};

use super::instances::no_such_model;

/// Say why a model runs where it runs, or why it does not.
///
/// Every shape that was considered and what it lost by, what would change the answer (each change is solved), and for
/// what has no place the constraints that are in the way together. `node/NAME` says the same of a node: what is planned
/// there, and why the other models are not. Of a provider's model, and of `agent/NAME`: through which node it is
/// reached, why not through another, and how far it is from the models it talks to.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// A model, `agent/NAME` or `node/NAME`
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
    Provided(&'a str),
    Agent(&'a str),
    Node(&'a str),
}

/// Runs the command.
pub async fn run(context: &Context, args: &ExplainArgs) -> Result<ExitCode, Failure> {
    let config = context.config()?;
    let name = match args.name.split_once('/') {
        None if config.desired.provider_models.contains_key(&args.name) => Name::Provided(&args.name),
        None => Name::Model(&args.name),
        Some(("agent", agent)) => Name::Agent(agent),
        Some(("node", node)) => Name::Node(node),
        Some(_) => {
            let text =
                format!("`{}` is neither a model nor agent/NAME nor node/NAME: only those are placed", args.name);
            return Err(Failure::new(ExitCode::Usage, text)
                .hint("`flock graph workflow` shows the agents and models of workflows"));
        }
    };
    if let Name::Model(name) = name
        && !config.desired.models.contains_key(name)
    {
        return Err(no_such_model(&config.desired, name));
    }
    if let Name::Agent(agent) = name
        && !config.desired.agents.contains_key(agent)
    {
        let known: Vec<&String> = config.desired.agents.keys().collect();
        let text = format!("there is no agent `{agent}`");
        return Err(Failure::new(ExitCode::Failure, text).hint(near_miss(agent, &known)));
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
    let planned = match name {
        Name::Model(name) => context.plan_explaining(&config, &facts, name).await?,
        Name::Node(_) | Name::Provided(_) | Name::Agent(_) => context.plan(&config, &facts, &Limits::default()).await?,
    };
    let (plan, placement) = (&planned.plan, &planned.placement);
    let observed = crate::plan::observe(&facts.inventory, &facts.specs);
    let style = context.style();
    let text = match name {
        Name::Model(name) => {
            let explanation = Explanation::of(name, plan, placement, &observed, planned.why.as_ref());
            match args.format.format {
                Format::Json => report::json(&explanation),
                Format::Text => report::explain_text(&explanation, Some(&facts.inventory), &style),
            }
        }
        Name::Provided(_) | Name::Agent(_) => {
            let explanation = match name {
                Name::Agent(agent) => WayExplanation::of_agent(agent, &config.desired, &facts.inventory, plan),
                Name::Provided(model) => WayExplanation::of_model(model, &config.desired, &facts.inventory, plan),
                Name::Model(_) | Name::Node(_) => None,
            };
            let Some(explanation) = explanation else {
                return Err(no_such_model(&config.desired, &args.name));
            };
            match args.format.format {
                Format::Json => report::json(&explanation),
                Format::Text => report::explain_way_text(&explanation, &style),
            }
        }
        Name::Node(node) => {
            let (considered, alike) = (&placement.considered, placement.like(node));
            let explanation =
                NodeExplanation::of(node, &config.desired, &facts.inventory, plan, &observed, considered, alike);
            match args.format.format {
                Format::Json => report::json(&explanation),
                Format::Text => report::explain_node_text(&explanation, &facts.inventory, &style),
            }
        }
    };
    context.printer.data(&text)?;
    Ok(context.report_unreachable(&config.desired, &facts, &Limits::default()))
}
