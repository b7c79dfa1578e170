//! One step on one node.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::base::InstanceState;
use crate::inventory::{FetchSpec, InstanceFacts, InstanceSpec, Request, Response};
use crate::plan::{self, Plan, PlannedFetch, Step, Verb};
use crate::ports::{Node, NodeError};

/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(10);
/// Time between looks at an instance that starts.
const POLL: Duration = Duration::from_millis(150);
/// How long a node that was lost in the middle of a step is tried again: a cable that is plugged in anew, a switch
/// that restarts. The deadline of what was under way comes before it.
const AWAY: Duration = Duration::from_secs(30);
/// Between two such tries.
const AGAIN: Duration = Duration::from_secs(1);
/// Failed attempts of an engine that make a failed step; the agent goes on by itself.
const ATTEMPTS: u32 = 3;

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum StepError {
    /// The node could not be asked, or refused.
    #[error("{node}: {error}")]
    Node { node: String, error: Box<NodeError> },
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
    /// Told that a node was lost and is tried again.
    pub away: &'a (dyn Fn(&str, String) + Send + Sync),
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
        let before = self.supervise(spec).await?;
        self.check_memory(spec).await?;
        self.call(&self.node, Request::Start { generation: self.generation, spec: Box::new(spec.clone()) }).await?;
        self.until_ready(spec, Some(before)).await
    }

    /// Whether somebody else took the accelerators' memory since the plan was made: an engine that does not fit fails
    /// late and in words of its own, or takes what another was promised.
    async fn check_memory(&self, spec: &InstanceSpec) -> Result<(), StepError> {
        if spec.accelerators.is_empty() {
            return Ok(());
        }
        let probe = Request::Probe { engines: Vec::new(), weights_path: None, on_node: Vec::new() };
        match self.call(&self.node, probe).await? {
            Response::Facts { node, .. } => {
                plan::memory_taken(self.plan, spec, &node).map_or(Ok(()), |text| Err(StepError::NotReady(text)))
            }
            other => {
                Err(self.node_error(&self.node, NodeError::Lost { reason: format!("unexpected answer: {other:?}") }))
            }
        }
    }

    async fn adopt(&self, step: &Step) -> Result<(), StepError> {
        let spec = self.spec(step)?;
        let before = self.supervise(spec).await?;
        self.until_ready(spec, Some(before)).await
    }

    /// Makes sure that somebody keeps the node's instances; how often this one had been started before.
    async fn supervise(&self, spec: &InstanceSpec) -> Result<u32, StepError> {
        let answer = self.call(&self.node, Request::Supervise { generation: self.generation }).await?;
        let Response::Instances { instances, .. } = answer else { return Ok(0) };
        Ok(instances.iter().find(|facts| facts.instance == spec.instance).map_or(0, |facts| facts.starts))
    }

    async fn stop(&self, node: &Arc<dyn Node>, instance: Option<&str>) -> Result<(), StepError> {
        let Some(instance) = instance else { return Ok(()) };
        let request = Request::Stop {
            generation: self.generation,
            instance: instance.to_owned(),
            grace_ms: GRACE.as_millis() as u64,
            before_start: true,
        };
        self.call(node, request).await.map(|_| ())
    }

    /// Ready means: the agent has had a real completion from it. The agent's own deadline ends the wait;
    /// ours is longer, for an agent that is away. Of an instance that had been started `before` that often (where
    /// unknown: by the first look), only the attempts since then count.
    pub(super) async fn until_ready(&self, spec: &InstanceSpec, before: Option<u32>) -> Result<(), StepError> {
        let deadline = Duration::from_millis(spec.ready_timeout_ms) + Duration::from_secs(30);
        let mut before = before;
        let mut last_failure = None;
        let wait = async {
            loop {
                let (facts, supervised) = self.look(spec).await?;
                let failed = facts.as_ref().filter(|facts| facts.last_failure.is_some());
                last_failure = failed.map(failure).or(last_failure.take());
                let starts = facts.as_ref().map_or(0, |facts| facts.starts);
                let attempts = starts.saturating_sub(*before.get_or_insert(starts));
                match facts {
                    Some(facts) if facts.state == InstanceState::Ready => return Ok(()),
                    Some(facts) if has_failed(&facts, attempts) => return Err(StepError::NotReady(failure(&facts))),
                    // A supervisor that died since: without one nobody would notice that the engine answers.
                    _ if !supervised => {
                        self.call(&self.node, Request::Supervise { generation: self.generation }).await?;
                    }
                    _ => {}
                }
                tokio::time::sleep(POLL).await;
            }
        };
        let ended = tokio::time::timeout(deadline, wait).await;
        ended.unwrap_or_else(|_| {
            let text = format!("no answer to a completion within {} s", deadline.as_secs());
            Err(StepError::NotReady(last_failure.map_or(text.clone(), |why| format!("{text}; {why}"))))
        })
    }

    /// The facts about an instance, and whether anybody keeps it.
    async fn look(&self, spec: &InstanceSpec) -> Result<(Option<InstanceFacts>, bool), StepError> {
        match self.call(&self.node, Request::Instances).await? {
            Response::Instances { instances, supervised } => {
                Ok((instances.into_iter().find(|facts| facts.instance == spec.instance), supervised))
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
        // What the node has of the file is kept, so that each try goes on where the last one ended.
        let progress = |done: u64| (self.progress)(before + done);
        self.patiently(&self.node, || self.node.put(from_folder, fetch, name, &progress)).await
    }

    async fn call(&self, node: &Arc<dyn Node>, request: Request) -> Result<Response, StepError> {
        if !request.may_repeat() {
            return node.call(request).await.map_err(|error| self.node_error(node, error));
        }
        self.patiently(node, || node.call(request.clone())).await
    }

    /// Tries again for a while where the node was lost: for what may be repeated, and for files, which go on where they
    /// ended.
    async fn patiently<'f, T, F>(&self, node: &Arc<dyn Node>, work: impl Fn() -> F) -> Result<T, StepError>
    where
        F: Future<Output = Result<T, NodeError>> + 'f,
    {
        let mut until = None;
        loop {
            match work().await {
                Ok(done) => return Ok(done),
                Err(error) if is_away(&error) => {
                    if until.is_none() {
                        (self.away)(node.name(), format!("{error}; trying again for {} s", AWAY.as_secs()));
                    }
                    let until = *until.get_or_insert_with(|| Instant::now() + AWAY);
                    if Instant::now() + AGAIN > until {
                        return Err(self.node_error(node, error));
                    }
                    tokio::time::sleep(AGAIN).await;
                }
                Err(error) => return Err(self.node_error(node, error)),
            }
        }
    }

    fn node_error(&self, node: &Arc<dyn Node>, error: NodeError) -> StepError {
        StepError::Node { node: node.name().to_owned(), error: Box::new(error) }
    }
}

/// Whether the way to the node failed, and not what was asked of it.
fn is_away(error: &NodeError) -> bool {
    matches!(error, NodeError::Connect { .. } | NodeError::Deadline { .. } | NodeError::Lost { .. })
}

/// A failed attempt that the agent repeats is not yet a failed step, unless the repetition cannot help.
fn has_failed(facts: &InstanceFacts, attempts: u32) -> bool {
    facts.state == InstanceState::Failed
        && facts.last_failure.as_ref().is_some_and(|failure| failure.gave_up || attempts >= ATTEMPTS)
}

fn failure(facts: &InstanceFacts) -> String {
    facts.last_failure.as_ref().map_or_else(
        || "the engine stopped without a recorded cause".to_owned(),
        |failure| format!("{}: {} (see `flock logs {}`)", failure.cause, failure.text, facts.model),
    )
}
