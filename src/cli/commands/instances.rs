//! Finding the running instances of a model, for the commands that talk to them.

use std::sync::Arc;

use crate::base::{InstanceState, Secret};
use crate::cli::context::{Config, Context, Facts};
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::config::{Desired, near_miss};
use crate::inventory::{InstanceFacts, Request, Response};
use crate::plan::Limits;
use crate::ports::Node;

/// An instance on its node.
pub struct Found {
    /// The node.
    pub node: Arc<dyn Node>,
    /// The instance.
    pub facts: InstanceFacts,
}

/// All instances of a model on nodes that answered, by replica.
pub fn instances_of(facts: &Facts, model: &str, replica: Option<u32>) -> Vec<Found> {
    let mut found: Vec<Found> = Vec::new();
    for node in facts.inventory.nodes.iter().filter(|node| node.reachable) {
        let Some(port) = facts.nodes.get(&node.name) else { continue };
        for instance in &node.instances {
            if instance.model == model && replica.is_none_or(|wanted| wanted == instance.replica) {
                found.push(Found { node: Arc::clone(port), facts: instance.clone() });
            }
        }
    }
    // What serves, then its workers.
    found.sort_by_key(|found| (found.facts.replica, found.facts.is_worker()));
    found
}

/// The same, the nodes being asked. None is a failure that says what there is.
pub async fn find_instances(
    context: &Context,
    config: &Config,
    model: &str,
    replica: Option<u32>,
) -> Result<Vec<Found>, Failure> {
    let facts = context.ask_nodes(&config.desired, None).await;
    let unreachable = context.report_unreachable(&config.desired, &facts, &Limits::default());
    let found = instances_of(&facts, model, replica);
    if !found.is_empty() {
        return Ok(found);
    }
    Err(if config.desired.models.contains_key(model) {
        Failure::new(
            if unreachable == ExitCode::Success { ExitCode::Failure } else { unreachable },
            match replica {
                Some(number) => format!("replica {number} of model `{model}` does not run on any reachable node"),
                None => format!("model `{model}` does not run on any reachable node"),
            },
        )
        .hint("`flock plan` shows what is missing, `flock apply` starts it")
    } else {
        no_such_model(&config.desired, model)
    })
}

/// A name that the config does not have, with the nearest one that it has.
pub fn no_such_model(desired: &Desired, model: &str) -> Failure {
    if desired.provider_models.contains_key(model) {
        return Failure::new(ExitCode::Failure, format!("model `{model}` belongs to a provider and has no instance"));
    }
    let known: Vec<&String> = desired.models.keys().collect();
    Failure::new(ExitCode::Failure, format!("there is no model `{model}`")).hint(near_miss(model, &known))
}

/// The one that is asked: the first by replica that serves. None is a failure that says how the others are.
pub fn first_ready<'f>(model: &str, found: &'f [Found]) -> Result<&'f Found, Failure> {
    let serving = |found: &&Found| found.facts.state == InstanceState::Ready && !found.facts.is_worker();
    found.iter().find(serving).ok_or_else(|| not_ready(model, found))
}

/// What an engine wants of its clients.
pub struct Access {
    /// The instance's own key.
    pub key: Secret<String>,
    /// Its port on the node's loopback.
    pub port: u16,
    /// The name that requests give.
    pub served_name: String,
}

/// Asks the node for the key of an instance.
pub async fn access(node: &dyn Node, instance: &str) -> Result<Access, Failure> {
    match node.call(Request::Key { instance: instance.to_owned() }).await? {
        Response::Key { key, port, served_name } => Ok(Access { key, port, served_name }),
        other => Err(Failure::new(ExitCode::Failure, format!("unexpected answer of {}: {other:?}", node.name()))),
    }
}

/// Instances there are, and none of them answers.
fn not_ready(model: &str, found: &[Found]) -> Failure {
    let serving = found.iter().filter(|found| !found.facts.is_worker());
    let states: Vec<String> = serving.map(|found| format!("{} on {}", found.facts.state, found.node.name())).collect();
    let states = if states.is_empty() { "none runs".to_owned() } else { states.join(", ") };
    Failure::new(ExitCode::Failure, format!("no instance of `{model}` is ready ({states})"))
        .hint(format!("`flock status {model}` and `flock logs {model}` say more"))
}
