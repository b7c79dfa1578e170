//! `flock graph`

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::cli::context::{Config, Context, Facts};
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::plan::{self, Limits};
use crate::report::{self, Graph};

/// Draw the hardware, the placement or the workflows.
///
/// `mermaid` is drawn by code review pages between ```mermaid fences; `dot` is for Graphviz.
#[derive(Debug, Args)]
pub struct GraphArgs {
    /// What to draw
    #[arg(value_enum)]
    what: What,
    /// Draw from this inventory, without any network
    #[arg(long, value_name = "FILE")]
    inventory: Option<PathBuf>,
    /// How to draw it
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format: GraphFormat,
}

/// What to draw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum What {
    /// Nodes, accelerators and links, with what runs where and how full they are
    Hardware,
    /// Models, their instances as planned, and the accelerators they are on
    Placement,
    /// Workflows of the config: steps, agents and models; asks no node
    Workflow,
}

/// How to draw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum GraphFormat {
    /// For people
    #[default]
    Text,
    /// For programs
    Json,
    /// For Graphviz
    Dot,
    /// For Mermaid
    Mermaid,
}

/// Runs the command.
pub async fn run(context: &Context, args: &GraphArgs) -> Result<ExitCode, Failure> {
    let (graph, code) = match args.what {
        What::Workflow => (report::workflow_graph(&context.config_as_far_as_it_goes()?.desired), ExitCode::Success),
        What::Hardware => {
            let config = context.config_as_far_as_it_goes()?;
            let facts = facts(context, args, &config).await?;
            let observed = plan::observe(&facts.inventory, &facts.specs);
            let graph = report::hardware_graph(&config.desired, &facts.inventory, &observed);
            (graph, context.report_unreachable(&config.desired, &facts, &Limits::default()))
        }
        What::Placement => {
            let config = context.config()?;
            let facts = facts(context, args, &config).await?;
            let plan = context.plan(&config, &facts, &Limits::default()).await?.plan;
            let observed = plan::observe(&facts.inventory, &facts.specs);
            let graph = report::placement_graph(&plan, &facts.inventory, &observed);
            (graph, context.report_unreachable(&config.desired, &facts, &Limits::default()))
        }
    };
    context.printer.data(&drawn(context, &graph, args.format))?;
    Ok(code)
}

async fn facts(context: &Context, args: &GraphArgs, config: &Config) -> Result<Facts, Failure> {
    match &args.inventory {
        Some(path) => context.read_inventory(path),
        None => Ok(context.ask_nodes(&config.desired, None).await),
    }
}

fn drawn(context: &Context, graph: &Graph, format: GraphFormat) -> String {
    match format {
        GraphFormat::Text => report::graph_text(graph, &context.style()),
        GraphFormat::Json => report::json(graph),
        GraphFormat::Dot => report::graph_dot(graph),
        GraphFormat::Mermaid => report::graph_mermaid(graph),
    }
}
