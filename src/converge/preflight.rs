//! Looking before leaping: every node a plan touches answers, and has room for the files that come.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::inventory::{FetchSpec, Request};
use crate::plan::{Plan, Verb, touched};
use crate::ports::{Node, NodeError};

/// A node that is not ready for its steps.
#[derive(Debug, thiserror::Error)]
#[error("{node}: {error}")]
pub struct PreflightError {
    /// The node.
    pub node: String,
    /// Why.
    pub error: NodeError,
}

/// The first file of a fetch that was not there when the plan was made: without its digest nothing can be checked.
pub(super) fn missing_files(plan: &Plan) -> Option<String> {
    let fetches = plan.steps.iter().filter_map(|step| step.fetch.as_ref().map(|fetch| (step, fetch)));
    let mut missing = fetches.filter_map(|(step, planned)| {
        let files = &planned.fetch.files;
        let absent: Vec<&str> =
            files.iter().filter(|file| file.sha256.is_none()).map(|file| file.name.as_str()).collect();
        let first = absent.first()?;
        Some(format!(
            "{} of {} files of model `{}` are not in {} ({first}, …)",
            absent.len(),
            files.len(),
            step.model,
            planned.from_folder
        ))
    });
    missing.next()
}

/// Checks all touched nodes at once. Disk space is checked by the node for all files of a set together.
pub async fn preflight(plan: &Plan, nodes: &BTreeMap<String, Arc<dyn Node>>) -> Vec<PreflightError> {
    let checks = touched(&plan.steps).into_iter().map(|name| {
        let fetches: Vec<FetchSpec> = plan
            .steps
            .iter()
            .filter(|step| step.verb == Verb::Fetch && step.node == name)
            .filter_map(|step| step.fetch.as_ref().map(|planned| planned.fetch.clone()))
            .collect();
        let node = nodes.get(&name).cloned();
        async move {
            let Some(node) = node else {
                let error = NodeError::Lost {
                    reason: "the plan names a node that flock does not know how to reach".to_owned(),
                };
                return Some(PreflightError { node: name, error });
            };
            check(node.as_ref(), fetches).await.err().map(|error| PreflightError { node: name, error })
        }
    });
    futures::future::join_all(checks).await.into_iter().flatten().collect()
}

async fn check(node: &dyn Node, fetches: Vec<FetchSpec>) -> Result<(), NodeError> {
    node.call(Request::Instances).await?;
    for fetch in fetches {
        node.call(Request::FetchState { fetch }).await?;
    }
    Ok(())
}
