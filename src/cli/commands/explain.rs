//! `flock explain`

use std::path::PathBuf;

use clap::Args;

use crate::cli::args::{Format, FormatArg};
use crate::cli::context::Context;
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::config::{Desired, near_miss, nearest};
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

/// A name that nothing of its kind has: the nearest one of any kind, as the command line writes it.
fn unknown(kind: &str, name: &str, desired: &Desired) -> Failure {
    let models = || desired.models.keys().chain(desired.provider_models.keys());
    let written = |kind: &str, name: &str| if kind == "model" { name.to_owned() } else { format!("{kind}/{name}") };
    let kinds: [(&str, Vec<&str>); 3] = [
        ("model", models().map(String::as_str).collect()),
        ("agent", desired.agents.keys().map(String::as_str).collect()),
        ("node", desired.nodes.keys().map(String::as_str).collect()),
    ];
    let own = || kinds.iter().filter(|(of, _)| *of == kind);
    let others = || kinds.iter().filter(|(of, _)| *of != kind);
    // The same name of another kind, then a near one of the own kind, then a near one of another.
    let same = others()
        .find(|(_, known)| known.contains(&name))
        .map(|(of, _)| format!("did you mean `{}`?", written(of, name)));
    let near = || {
        let near = |(of, known): &(&str, Vec<&str>)| Some(written(of, nearest(name, known.iter().copied())?));
        own().chain(others()).find_map(near).map(|near| format!("did you mean `{near}`?"))
    };
    let listed = || {
        let known: Vec<String> = own().flat_map(|(of, known)| known.iter().map(|one| written(of, one))).collect();
        near_miss(&written(kind, name), &known)
    };
    let failure = Failure::new(ExitCode::Failure, format!("there is no {kind} `{name}`"));
    failure.hint(same.or_else(near).unwrap_or_else(listed))
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
        return Err(unknown("model", name, &config.desired));
    }
    if let Name::Agent(agent) = name
        && !config.desired.agents.contains_key(agent)
    {
        return Err(unknown("agent", agent, &config.desired));
    }
    let facts = match &args.inventory {
        Some(path) => context.read_inventory(path)?,
        None => context.ask_nodes(&config.desired, None).await,
    };
    if let Name::Node(node) = name
        && !config.desired.nodes.contains_key(node)
        && facts.inventory.node(node).is_none()
    {
        return Err(unknown("node", node, &config.desired));
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
