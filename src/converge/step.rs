//! One step on one node.

use std::sync::Arc;
use std::time::Duration;

use crate::base::InstanceState;
use crate::inventory::{FetchSpec, InstanceFacts, InstanceSpec, Request, Response};
use crate::plan::{Plan, PlannedFetch, Step, Verb};
use crate::ports::{Node, NodeError};

/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(10);
/// Time between looks at an instance that starts.
const POLL: Duration = Duration::from_millis(150);

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum StepError {
    /// The node could not be asked, or refused.
    #[error("{node}: {error}")]
    Node { node: String, error: NodeError },
    /// The engine did not become ready.
    #[error("{0}")]
    NotReady(String),
    /// The plan contradicts itself; the checker should have seen it.
    #[error("the plan is not applicable: {0}")]
    Plan(String),
}

/// Everything a step needs.
pub(super) struct StepContext<'a> {
    pub plan: &'a Plan,
    pub generation: u64,
    pub node: Arc<dyn Node>,
    pub from_node: Option<Arc<dyn Node>>,
    /// Told how many bytes of a fetch are there, those of an earlier attempt included.
    pub progress: &'a (dyn Fn(u64) + Send + Sync),
}

impl StepContext<'_> {
    /// Carries the step out; returns when its effect is there.
    pub async fn run(&self, step: &Step) -> Result<(), StepError> {
        match step.verb {
            Verb::Fetch => self.fetch(step).await,
            Verb::Start => self.start(step).await,
            Verb::Adopt => self.adopt(step).await,
            Verb::Stop => self.stop(&self.node, step.instance.as_deref()).await,
            Verb::Change | Verb::Restart => {
                self.stop(&self.node, step.from_instance.as_deref()).await?;
                self.start(step).await
            }
            Verb::Move => self.relocate(step).await,
        }
    }

    /// Start before stop where both fit; the plan has decided which.
    async fn relocate(&self, step: &Step) -> Result<(), StepError> {
        let from = self.from_node.as_ref().unwrap_or(&self.node);
        if step.interrupts {
            self.stop(from, step.from_instance.as_deref()).await?;
            self.start(step).await
        } else {
            self.start(step).await?;
            self.stop(from, step.from_instance.as_deref()).await
        }
    }

    fn spec(&self, step: &Step) -> Result<&InstanceSpec, StepError> {
        let wanted = step.instance.as_deref().unwrap_or_default();
        let planned = self.plan.instances.iter().find(|planned| planned.instance == wanted);
        planned
            .map(|planned| planned.spec.as_ref())
            .ok_or_else(|| StepError::Plan(format!("step {} names no planned instance", step.id)))
    }

    async fn start(&self, step: &Step) -> Result<(), StepError> {
        let spec = self.spec(step)?;
        self.call(&self.node, Request::Supervise { generation: self.generation }).await?;
        self.call(&self.node, Request::Start { generation: self.generation, spec: Box::new(spec.clone()) }).await?;
        self.until_ready(spec).await
    }

    async fn adopt(&self, step: &Step) -> Result<(), StepError> {
        let spec = self.spec(step)?;
        self.call(&self.node, Request::Supervise { generation: self.generation }).await?;
        self.until_ready(spec).await
    }

    async fn stop(&self, node: &Arc<dyn Node>, instance: Option<&str>) -> Result<(), StepError> {
        let Some(instance) = instance else { return Ok(()) };
        let request = Request::Stop {
            generation: self.generation,
            instance: instance.to_owned(),
            grace_ms: GRACE.as_millis() as u64,
        };
        self.call(node, request).await.map(|_| ())
    }

    /// Ready means: the agent has had a real completion from it. The agent's own deadline ends the wait;
    /// ours is longer, for an agent that is away.
    pub(super) async fn until_ready(&self, spec: &InstanceSpec) -> Result<(), StepError> {
        let deadline = Duration::from_millis(spec.ready_timeout_ms) + Duration::from_secs(30);
        let wait = async {
            loop {
                match self.look(spec).await? {
                    Some(facts) if facts.state == InstanceState::Ready => return Ok(()),
                    Some(facts) if has_failed(&facts) => return Err(StepError::NotReady(failure(&facts))),
                    _ => tokio::time::sleep(POLL).await,
                }
            }
        };
        tokio::time::timeout(deadline, wait).await.unwrap_or_else(|_| {
            Err(StepError::NotReady(format!("no answer to a completion within {} s", deadline.as_secs())))
        })
    }

    async fn look(&self, spec: &InstanceSpec) -> Result<Option<InstanceFacts>, StepError> {
        match self.call(&self.node, Request::Instances).await? {
            Response::Instances { instances } => {
                Ok(instances.into_iter().find(|facts| facts.instance == spec.instance))
            }
            other => {
                Err(self.node_error(&self.node, NodeError::Lost { reason: format!("unexpected answer: {other:?}") }))
            }
        }
    }

    async fn fetch(&self, step: &Step) -> Result<(), StepError> {
        let PlannedFetch { from_folder, fetch } =
            step.fetch.as_ref().ok_or_else(|| StepError::Plan(format!("fetch step {} names no files", step.id)))?;
        let have = match self.call(&self.node, Request::FetchState { fetch: fetch.clone() }).await? {
            Response::Fetched { complete: true, .. } => return Ok(()),
            Response::Fetched { have_bytes, .. } => have_bytes,
            other => {
                return Err(
                    self.node_error(&self.node, NodeError::Lost { reason: format!("unexpected answer: {other:?}") })
                );
            }
        };
        let mut there = 0;
        for (file, have) in fetch.files.iter().zip(have) {
            if have < file.size_bytes || file.size_bytes == 0 {
                self.put(from_folder, fetch, &file.name, there).await?;
            }
            there += file.size_bytes;
            (self.progress)(there);
        }
        self.call(&self.node, Request::FetchDone { fetch: fetch.clone() }).await.map(|_| ())
    }

    async fn put(&self, from_folder: &str, fetch: &FetchSpec, name: &str, before: u64) -> Result<(), StepError> {
        let sent = self.node.put(from_folder, fetch, name, &|done| (self.progress)(before + done)).await;
        sent.map_err(|error| self.node_error(&self.node, error))
    }

    async fn call(&self, node: &Arc<dyn Node>, request: Request) -> Result<Response, StepError> {
        node.call(request).await.map_err(|error| self.node_error(node, error))
    }

    fn node_error(&self, node: &Arc<dyn Node>, error: NodeError) -> StepError {
        StepError::Node { node: node.name().to_owned(), error }
    }
}

/// A failed attempt that the agent repeats is not yet a failed step, unless the repetition cannot help.
fn has_failed(facts: &InstanceFacts) -> bool {
    facts.state == InstanceState::Failed
        && facts.last_failure.as_ref().is_some_and(|failure| failure.gave_up || facts.starts >= 3)
}

fn failure(facts: &InstanceFacts) -> String {
    facts.last_failure.as_ref().map_or_else(
        || "the engine stopped without a recorded cause".to_owned(),
        |failure| format!("{}: {} (see `flock logs {}`)", failure.cause, failure.text, facts.model),
    )
}
