//! Looking before leaping: every node a plan touches answers, and has room for the files that come.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::inventory::{FetchSpec, Refusal, Request, Response};
use crate::plan::{FetchFrom, Plan, Verb, disk_of, touched};
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
            origin(&planned.from)
        ))
    });
    missing.next()
}

/// Where files come from in the end, whoever has them meanwhile.
fn origin(from: &FetchFrom) -> &str {
    match from {
        FetchFrom::Folder(folder) => folder,
        FetchFrom::Hub(files) | FetchFrom::Relay(files) => &files.repository,
        FetchFrom::Node { otherwise, .. } => origin(otherwise),
    }
}

/// Checks all touched nodes at once. Disk space is checked by the node for all files of a set together, and here for all
/// sets together.
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
    let mut missing: Vec<(&str, u64)> = Vec::new();
    for fetch in &fetches {
        let answer = node.call(Request::FetchState { fetch: fetch.clone() }).await?;
        let Response::Fetched { complete: false, have_bytes } = answer else { continue };
        let have = have_bytes.iter().copied().chain(std::iter::repeat(0));
        let lacks = fetch.files.iter().zip(have).map(|(file, have)| file.size_bytes.saturating_sub(have));
        missing.push((&fetch.folder, lacks.fold(0, u64::saturating_add)));
    }
    // Each set alone fits, or the node would have said so.
    if missing.len() < 2 {
        return Ok(());
    }
    let parent = missing[0].0.rsplit_once('/').map(|(parent, _)| parent.to_owned());
    let probe = Request::Probe { engines: Vec::new(), weights_path: parent, on_node: Vec::new() };
    let Response::Facts { node: facts, .. } = node.call(probe).await? else { return Ok(()) };
    let mut needed: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for (folder, bytes) in missing {
        let Some(disk) = disk_of(&facts, folder) else { continue };
        let entry = needed.entry(&disk.path).or_insert((0, disk.free_bytes));
        entry.0 = entry.0.saturating_add(bytes);
    }
    match needed.into_iter().find(|(_, (needed, free))| needed > free) {
        Some((path, (needed_bytes, free_bytes))) => {
            Err(NodeError::Refused(Refusal::Disk { path: path.to_owned(), needed_bytes, free_bytes }))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::{Disk, FetchFile, Measured, MemberRecord, NodeFacts};
    use crate::ports::testing::SaidNode;

    fn set(name: &str) -> FetchSpec {
        let file = FetchFile { name: "a".to_owned(), size_bytes: 100, sha256: Some("sha256:0".to_owned()) };
        FetchSpec {
            source: "hf:lab/one".to_owned(),
            revision: name.to_owned(),
            folder: format!("/data/weights/{name}"),
            files: vec![file],
        }
    }

    #[tokio::test]
    async fn sets_that_fit_one_by_one_must_fit_together() {
        let node = |free_bytes: u64| {
            SaidNode::new("ada-1", move |request| {
                let answer = match request {
                    Request::FetchState { fetch } => {
                        let complete = fetch.revision == "there";
                        Response::Fetched { complete, have_bytes: vec![30] }
                    }
                    Request::Probe { weights_path, .. } => {
                        assert_eq!(weights_path.as_deref(), Some("/data/weights"));
                        let disk =
                            |path: &str, free_bytes| Disk { path: path.to_owned(), free_bytes, total_bytes: 1000 };
                        let disks = vec![disk("/", 1), disk("/data", free_bytes)];
                        let node = Box::new(NodeFacts { disks, ..NodeFacts::default() });
                        let (member, measured) = (MemberRecord::default(), Measured::default());
                        Response::Facts { node, member, desired: Vec::new(), measured }
                    }
                    _ => Response::Done,
                };
                Box::pin(async move { Ok(answer) })
            })
        };
        let sets = || vec![set("one"), set("two"), set("there")];
        check(&node(140), sets()).await.expect("70 bytes are missing of each of two");
        let error = check(&node(139), sets()).await.expect_err("a byte too few");
        assert_eq!(error.to_string(), "the disk of /data has 139 B free, and 140 B are needed");
        let alone = node(0);
        check(&alone, vec![set("one"), set("there")]).await.expect("the node itself looks at one set");
    }
}
