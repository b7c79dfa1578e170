//! `flock gc`

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use clap::Args;

use crate::base::format_bytes;
use crate::cli::args::{Format, FormatArg, Selectors};
use crate::cli::context::{Config, Context, Facts};
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::cli::prompt;
use crate::cli::user::whoami;
use crate::config::{Model, Source};
use crate::converge::{LeaseError, Leases};
use crate::edge::{SystemProcesses, SystemRandom};
use crate::inventory::{Collected, Request, Response};
use crate::ports::{Node, NodeError};
use crate::report::{self, GcDocument, GcNode};

/// How long an unfinished transfer must have been silent to count as dead, in seconds.
const MIN_AGE_S: u64 = 600;

/// Remove weights from the nodes that nothing runs and the config does not name.
///
/// What the config, its lock and its variants name stays, and what any instance of any cluster on the node reads.
/// What killed transfers left goes as well. Never touched: files that flock did not bring, such as `on-node:` folders
/// and Hugging Face caches, and whatever is being received. Shown and asked first.
#[derive(Debug, Args)]
pub struct GcArgs {
    #[command(flatten)]
    selectors: Selectors,
    /// Show what would go, and remove nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    format: FormatArg,
}

/// The nodes that act, and what they are asked.
struct Asked {
    nodes: BTreeMap<String, Arc<dyn Node>>,
    keep: Vec<String>,
    accounted: bool,
    paths: BTreeMap<String, Option<String>>,
}

/// Runs the command.
pub async fn run(context: &Context, args: &GcArgs) -> Result<ExitCode, Failure> {
    let config = context.config()?;
    let facts = context.ask_nodes(&config.desired, None).await;
    let limits = context.limits(&args.selectors)?;
    context.check_limits(&limits, &config.desired, Some(&facts))?;
    let unreachable = context.report_unreachable(&config.desired, &facts, &limits);
    let mut asked = ask_about(context, &config, &facts).await?;
    asked.nodes.retain(|name, _| config.desired.nodes.get(name).is_some_and(|node| limits.allow(name, &node.labels)));
    let (mut document, stores) = look(&config, &facts, &asked).await;
    let failed = document.nodes.iter().any(|node| node.problem.is_some());
    let failed = if failed { ExitCode::Failure } else { ExitCode::Success };
    document.dry_run = args.dry_run;
    let to_do = document.nodes.iter().any(|node| !node.removed.is_empty());
    if args.dry_run || !to_do {
        show(context, args, &document)?;
        return Ok(failed.or(unreachable));
    }
    if !args.yes {
        let text = report::gc_text(&document);
        match args.format.format {
            Format::Text => context.show_before_acting(&text)?,
            Format::Json => context.printer.findings(&text),
        }
        prompt::confirm(&format!("\nFree {}?", format_bytes(document.freed_bytes)), prompt::YES)?;
    }
    asked.nodes.retain(|name, _| stores.contains(name));
    carry_out(context, &facts, &asked, &mut document).await?;
    if args.yes || args.format.format == Format::Json {
        show(context, args, &document)?;
    }
    context.printer.note(&format!("freed {}", format_bytes(document.freed_bytes)));
    let mut code = unreachable;
    for node in document.nodes.iter().filter(|node| node.problem.is_some()) {
        context.printer.error(&format!("{}: {}", node.node, node.problem.as_deref().unwrap_or_default()), None);
        code = code.or(ExitCode::Partial);
    }
    Ok(code)
}

fn show(context: &Context, args: &GcArgs, document: &GcDocument) -> Result<(), Failure> {
    match args.format.format {
        Format::Json => context.printer.data(&report::json(document))?,
        Format::Text => context.printer.data(&report::gc_text(document))?,
    }
    Ok(())
}

/// What must stay: every revision that the config's models may want, and what any node of the cluster runs.
async fn ask_about(context: &Context, config: &Config, facts: &Facts) -> Result<Asked, Failure> {
    let desired = &config.desired;
    let candidates = context.candidates(config, &facts.inventory).await;
    let mut keep: BTreeSet<String> = BTreeSet::new();
    for (name, found) in candidates {
        match found {
            Ok(found) => keep.extend(found.into_iter().map(|candidate| candidate.revision)),
            // Files that are the node's own are not in the store.
            Err(_) if desired.models.get(&name).is_some_and(is_on_nodes) => {}
            Err(problem) => {
                let text = format!("which weights model `{name}` wants cannot be told, so none are removed: {problem}");
                let failure = Failure::new(ExitCode::Invalid, text);
                return Err(match problem.hint {
                    Some(hint) => failure.hint(hint),
                    None => failure,
                });
            }
        }
    }
    let instances = facts.specs.values().flatten();
    keep.extend(instances.flat_map(|spec| &spec.weights).filter_map(|set| set.revision.clone()));
    let path = |name: &String| desired.nodes.get(name)?.weights_path.as_ref().map(|path| path.value.clone());
    let nodes = facts.reachable();
    Ok(Asked {
        paths: nodes.keys().map(|name| (name.clone(), path(name))).collect(),
        nodes,
        keep: keep.into_iter().collect(),
        accounted: facts.unreachable.is_empty(),
    })
}

fn is_on_nodes(model: &Model) -> bool {
    let explicit = model.variants.iter().map(|choice| &choice.source);
    let mut sources = model.source.iter().filter(|_| model.variants.is_empty()).chain(explicit);
    sources.all(|source| matches!(source.value, Source::OnNode(_)))
}

async fn collect(asked: &Asked, name: &str, dry_run: bool) -> Result<Collected, NodeError> {
    let request = Request::Collect {
        weights_path: asked.paths.get(name).cloned().flatten(),
        keep: asked.keep.clone(),
        accounted: asked.accounted,
        dry_run,
        min_age_s: MIN_AGE_S,
    };
    match asked.nodes[name].call(request).await? {
        Response::Collected { collected } => Ok(collected),
        _ => Err(NodeError::Lost { reason: "it answered something else than what it collected".to_owned() }),
    }
}

/// What would go where, and the nodes that do it: one for each store.
async fn look(config: &Config, facts: &Facts, asked: &Asked) -> (GcDocument, BTreeSet<String>) {
    let looks = asked.nodes.keys().map(|name| async move { (name.clone(), collect(asked, name, true).await) });
    let (mut nodes, mut stores, mut first) = (Vec::new(), BTreeSet::new(), BTreeMap::<String, String>::new());
    for (name, found) in futures::future::join_all(looks).await {
        nodes.push(match found {
            Err(error) => GcNode::failed(&name, error.to_string()),
            Ok(found) => match found.root_id.clone().and_then(|id| first.get(&id).cloned()) {
                Some(with) => GcNode::shared(&name, found.root, &with),
                None => {
                    first.extend(found.root_id.clone().map(|id| (id, name.clone())));
                    stores.insert(name.clone());
                    GcNode::of(&name, found)
                }
            },
        });
    }
    let document = GcDocument {
        format: 1,
        cluster: config.desired.cluster.name.value.clone(),
        dry_run: true,
        freed_bytes: nodes.iter().map(|node| node.freed_bytes).sum(),
        nodes,
        unreachable: facts.unreachable.keys().cloned().collect(),
    };
    (document, stores)
}

/// Removes under the lease, which keeps applies away meanwhile.
async fn carry_out(context: &Context, facts: &Facts, asked: &Asked, document: &mut GcDocument) -> Result<(), Failure> {
    // Begun is finished: half a set would only look like a damaged one.
    let _careful = context.signals.carefully();
    let all = facts.reachable();
    let spare: BTreeSet<String> = all.keys().filter(|name| !asked.nodes.contains_key(*name)).cloned().collect();
    let world = (&context.clock as _, &SystemRandom as _, &SystemProcesses as _);
    let held = Leases::hold(&all, &facts.generations(), &spare, whoami(), world).await;
    let leases = held.map_err(|error| match error {
        LeaseError::Held { .. } => Failure::new(ExitCode::Leased, error.to_string())
            .hint("wait for it; `flock lease list` shows who holds it, `flock lease break` ends it"),
        LeaseError::Moved { .. } => Failure::new(ExitCode::Stale, error.to_string()).hint("try again"),
        LeaseError::Node { .. } => Failure::new(ExitCode::Incomplete, error.to_string()),
    })?;
    let works = asked.nodes.keys().map(|name| async move { (name.clone(), collect(asked, name, false).await) });
    let done: BTreeMap<String, Result<Collected, NodeError>> =
        futures::future::join_all(works).await.into_iter().collect();
    leases.release().await;
    for node in &mut document.nodes {
        match done.get(&node.node) {
            Some(Ok(collected)) => *node = GcNode::of(&node.node, collected.clone()),
            Some(Err(error)) => *node = GcNode::failed(&node.node, error.to_string()),
            None => {}
        }
    }
    document.freed_bytes = document.nodes.iter().map(|node| node.freed_bytes).sum();
    Ok(())
}
