//! Finding the running instances of a model, for the commands that talk to them.

use std::sync::Arc;

use crate::cli::context::Context;
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::inventory::InstanceFacts;
use crate::plan::Limits;
use crate::ports::Node;

/// An instance on its node.
pub struct Found {
    /// The node.
    pub node: Arc<dyn Node>,
    /// The instance.
    pub facts: InstanceFacts,
}

/// All instances of a model on reachable nodes, by replica. None is a failure that says what there is.
pub async fn find_instances(context: &Context, model: &str, replica: Option<u32>) -> Result<Vec<Found>, Failure> {
    let config = context.config()?;
    let facts = context.ask_nodes(&config.desired, None).await;
    let unreachable = context.report_unreachable(&config.desired, &facts, &Limits::default());
    let mut found: Vec<Found> = Vec::new();
    for node in facts.inventory.nodes.iter().filter(|node| node.reachable) {
        let Some(port) = facts.nodes.get(&node.name) else { continue };
        for instance in &node.instances {
            if instance.model == model && replica.is_none_or(|wanted| wanted == instance.replica) {
                found.push(Found { node: Arc::clone(port), facts: instance.clone() });
            }
        }
    }
    found.sort_by_key(|found| found.facts.replica);
    if !found.is_empty() {
        return Ok(found);
    }
    let known: Vec<&str> = config.desired.models.keys().map(String::as_str).collect();
    let failure = if config.desired.models.contains_key(model) {
        Failure::new(
            if unreachable == ExitCode::Success { ExitCode::Failure } else { unreachable },
            match replica {
                Some(number) => format!("replica {number} of model `{model}` does not run on any reachable node"),
                None => format!("model `{model}` does not run on any reachable node"),
            },
        )
        .hint("`flock plan` shows what is missing, `flock apply` starts it")
    } else if config.desired.provider_models.contains_key(model) {
        Failure::new(ExitCode::Failure, format!("model `{model}` belongs to a provider and has no instance"))
    } else {
        Failure::new(ExitCode::Failure, format!("there is no model `{model}`"))
            .hint(format!("the config has: {}", known.join(", ")))
    };
    Err(failure)
}
