//! One step on one node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::base::InstanceState;
use crate::inventory::{InstanceFacts, InstanceSpec, Refusal, Request, Response};
use crate::plan::{self, Plan, Step, Verb};
use crate::ports::{Hub, HubError, Node, NodeError, Random};

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
    /// The hub does not give what the controller wants to send on.
    #[error(transparent)]
    Hub(Box<HubError>),
    /// The plan was made for another hub.
    #[error("the plan takes weights from {planned}, and the hub here is {here}")]
    Endpoint { planned: String, here: String },
    /// The plan contradicts itself; the checker should have seen it.
    #[error("the plan is not applicable: {0}")]
    Plan(String),
}

impl StepError {
    /// What to do, as a sentence.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Node { error, .. } => error.hint(),
            Self::Hub(error) => Some(error.hint()),
            Self::Endpoint { planned, .. } => Some(format!("set HF_ENDPOINT to {planned}, or plan again")),
            Self::NotReady(_) | Self::Plan(_) => None,
        }
    }

    /// What went wrong, for somebody who is told that it was on this node.
    pub fn text_on(&self, here: &str) -> String {
        match self {
            Self::Node { node, error } if node == here => error.to_string(),
            other => other.to_string(),
        }
    }

    /// Whether another connection is at the same files.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Node { error, .. } if matches!(**error, NodeError::Refused(Refusal::Busy { .. })))
    }
}

/// Everything a step needs.
pub(super) struct StepContext<'a> {
    pub plan: &'a Plan,
    pub generation: u64,
    pub node: Arc<dyn Node>,
    pub from_node: Option<Arc<dyn Node>>,
    /// All nodes, for the one that sends.
    pub nodes: &'a BTreeMap<String, Arc<dyn Node>>,
    /// Addresses of nodes, for the one that takes.
    pub addresses: &'a BTreeMap<String, String>,
    /// The hub, where this machine knows one.
    pub hub: Option<&'a dyn Hub>,
    /// For keys.
    pub random: &'a dyn Random,
    /// Told how many bytes of a fetch are there, those of an earlier attempt included.
    pub progress: &'a (dyn Fn(u64) + Send + Sync),
    /// The most bytes that were there; 0 at first.
    pub most: AtomicU64,
    /// Told what a reader of the plan would not expect.
    pub note: &'a (dyn Fn(String) + Send + Sync),
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
            other => Err(self.unexpected(&other)),
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
            let worker = spec.part.as_ref().is_some_and(|part| part.is_worker(&spec.instance));
            let what = if worker { "it did not listen" } else { "no answer to a completion" };
            let text = format!("{what} within {} s", deadline.as_secs());
            Err(StepError::NotReady(last_failure.map_or(text.clone(), |why| format!("{text}; {why}"))))
        })
    }

    /// The facts about an instance, and whether anybody keeps it.
    async fn look(&self, spec: &InstanceSpec) -> Result<(Option<InstanceFacts>, bool), StepError> {
        match self.call(&self.node, Request::Instances).await? {
            Response::Instances { instances, supervised } => {
                Ok((instances.into_iter().find(|facts| facts.instance == spec.instance), supervised))
            }
            other => Err(self.unexpected(&other)),
        }
    }

    pub(super) async fn call(&self, node: &Arc<dyn Node>, request: Request) -> Result<Response, StepError> {
        if !request.may_repeat() {
            return node.call(request).await.map_err(|error| self.node_error(node, error));
        }
        self.patiently(node, || node.call(request.clone())).await
    }

    /// Tries again for a while where the node was lost: for what may be repeated, and for files, which go on where they
    /// ended. Bytes that came since make the while begin anew.
    pub(super) async fn patiently<'f, T, F>(&self, node: &Arc<dyn Node>, work: impl Fn() -> F) -> Result<T, StepError>
    where
        F: Future<Output = Result<T, NodeError>> + 'f,
    {
        let mut lost_since = None;
        loop {
            let before = self.moved();
            match work().await {
                Ok(done) => return Ok(done),
                Err(error) if is_away(&error) => {
                    let moved = self.moved() > before;
                    self.wait_for(node, &mut lost_since, moved, error).await?;
                }
                Err(error) => return Err(self.node_error(node, error)),
            }
        }
    }

    /// The step's node was lost, since when: another try is due, or it was long enough.
    pub(super) async fn once_more(
        &self,
        lost_since: &mut Option<Instant>,
        moved: bool,
        error: NodeError,
    ) -> Result<(), StepError> {
        self.wait_for(&self.node, lost_since, moved, error).await
    }

    async fn wait_for(
        &self,
        node: &Arc<dyn Node>,
        lost_since: &mut Option<Instant>,
        moved: bool,
        error: NodeError,
    ) -> Result<(), StepError> {
        if moved {
            *lost_since = None;
        }
        if lost_since.is_none() {
            (self.away)(node.name(), format!("{error}; trying again for {} s", AWAY.as_secs()));
        }
        let since = *lost_since.get_or_insert_with(Instant::now);
        if Instant::now() + AGAIN > since + AWAY {
            return Err(self.node_error(node, error));
        }
        tokio::time::sleep(AGAIN).await;
        Ok(())
    }

    /// Tells how many bytes of a set are there.
    pub(super) fn tell(&self, done: u64) {
        self.most.fetch_max(done, Ordering::Relaxed);
        (self.progress)(done);
    }

    /// The most bytes that were ever there.
    pub(super) fn moved(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }

    pub(super) fn unexpected(&self, answer: &Response) -> StepError {
        self.node_error(&self.node, NodeError::Lost { reason: format!("unexpected answer: {answer:?}") })
    }

    pub(super) fn node_error(&self, node: &Arc<dyn Node>, error: NodeError) -> StepError {
        if let NodeError::Hub(error) = error {
            return StepError::Hub(error);
        }
        StepError::Node { node: node.name().to_owned(), error: Box::new(error) }
    }
}

/// Whether the way to the node failed, or to the hub, and not what was asked of it.
pub(super) fn is_away(error: &NodeError) -> bool {
    match error {
        NodeError::Connect { .. } | NodeError::Deadline { .. } | NodeError::Lost { .. } => true,
        NodeError::Hub(error) => matches!(**error, HubError::Unreachable { .. }),
        _ => false,
    }
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
