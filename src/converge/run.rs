//! Running all steps: each as soon as the steps before it are done, independent ones side by side.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

use crate::inventory::{MemberInstance, MemberNode, MemberRecord};
use crate::plan::{Event, Outcome, Plan, Step, StepEnd, Verb, loads_onto, plan_digest};
use crate::ports::{Clock, Hub, Node, NodeError, Processes, Random};

use super::fetch::way;
use super::lease::{LeaseError, Leases, new_lease};
use super::meter::Meter;
use super::preflight::{PreflightError, missing_files, preflight};
use super::record;
use super::step::{StepContext, StepError};

/// Why nothing was begun.
#[derive(Debug, thiserror::Error)]
pub enum ConvergeError {
    /// Another apply.
    #[error(transparent)]
    Lease(LeaseError),
    /// Weights that are not whole on this machine.
    #[error("nothing was begun: {0}")]
    Weights(String),
    /// Nodes that are not fit for their steps.
    #[error("nothing was begun: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Preflight(Vec<PreflightError>),
}

/// How an apply ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Converged {
    /// What became of every step.
    pub outcome: Outcome,
    /// What else went wrong: the steps may be done, the nodes do not all know it.
    pub problems: Vec<String>,
    /// Whether another apply took the lease while steps ran.
    pub lease_lost: bool,
}

/// Who is told what of a step: bytes that are there, words, nodes that are away.
type Told<'s> =
    (&'s (dyn Fn(u64) + Send + Sync), &'s (dyn Fn(String) + Send + Sync), &'s (dyn Fn(&str, String) + Send + Sync));

/// An apply: what to do, on what, and how carefully.
pub struct Converge<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// All reachable nodes of the cluster, touched by the plan or not: each keeps the member record.
    pub nodes: &'a BTreeMap<String, Arc<dyn Node>>,
    /// Where other nodes may find each node, beside what it says itself.
    pub addresses: BTreeMap<String, String>,
    /// The hub that weights come from, for its token and for what the controller brings itself; `None` where this machine
    /// knows none.
    pub hub: Option<&'a dyn Hub>,
    /// The newest member record known.
    pub member: &'a MemberRecord,
    /// The config's nodes as the record shall name them.
    pub member_nodes: Vec<MemberNode>,
    /// Nodes that left the config: in the record until their agents are gone, so that nothing on them is orphaned.
    pub leaving: Vec<MemberNode>,
    /// Generation of each node when its facts were taken: a node that moved since makes the plan void.
    pub generations: BTreeMap<String, u64>,
    /// Nodes that every step leaves alone: one that cannot hold the lease is no reason to stop.
    pub spare: BTreeSet<String>,
    /// Instances without a step that are still starting: an apply ends when they have answered, not before.
    pub starting: BTreeSet<String>,
    /// Every instance that a node has, in whatever state: node and id.
    pub held: BTreeSet<(String, String)>,
    /// What runs before the first step.
    pub running: Vec<MemberInstance>,
    /// Models that the config protects.
    pub protect: &'a BTreeSet<String>,
    /// Most steps at the same time.
    pub parallel: usize,
    /// Failures after which nothing more is begun.
    pub max_fail: Option<usize>,
    /// Who applies, `user@host`.
    pub by: String,
    /// What was asked for, for the record: `apply`, `drain`.
    pub action: &'a str,
    /// Whether this ends the cluster: the agents forget it.
    pub destroy: bool,
    /// Wall time.
    pub clock: &'a dyn Clock,
    /// Chance.
    pub random: &'a dyn Random,
    /// The processes of this machine.
    pub processes: &'a dyn Processes,
    /// Where events go.
    pub events: UnboundedSender<Event>,
    /// Turns true when the user asks to stop: what is in flight is finished, nothing more is begun.
    pub interrupt: tokio::sync::watch::Receiver<bool>,
}

impl Converge<'_> {
    /// Takes the lease, checks the nodes, runs the steps, writes the record, gives the lease back.
    pub async fn run(self) -> Result<Converged, ConvergeError> {
        if let Some(missing) = missing_files(self.plan) {
            return Err(ConvergeError::Weights(missing));
        }
        let newest = self.generations.values().copied().max().unwrap_or(0).max(self.member.generation);
        let generation = newest.saturating_add(1);
        let lease = new_lease(self.by.clone(), generation, (self.clock, self.random, self.processes));
        let taken = Leases::take(self.nodes, lease, &self.generations, &self.spare, self.processes).await;
        let leases = taken.map_err(ConvergeError::Lease)?;
        for (node, holder) in leases.taken_over() {
            let text = format!("took over the lease of {holder}, which has died");
            self.emit(Event::Node { node: node.clone(), ok: true, text });
        }
        for (node, error) in leases.passed_over() {
            let text = format!("left out, and cannot hold the lease: {error}");
            self.emit(Event::Node { node: node.clone(), ok: false, text });
        }
        let unfit = preflight(self.plan, self.nodes).await;
        if !unfit.is_empty() {
            leases.release().await;
            return Err(ConvergeError::Preflight(unfit));
        }
        let mut problems = Vec::new();
        let now = self.clock.rfc3339();
        let mut member = record::begun(self.member, generation, &self.member_nodes, &self.leaving, self.protect, &now);
        record::keep_count(&mut member, self.member, self.plan, self.clock.unix_ms(), &|_| true);
        self.report_unwritten(&mut problems, leases.write_member(&member, &BTreeSet::new()).await);
        self.emit(Event::ApplyStarted {
            format: 1,
            cluster: self.plan.cluster.clone(),
            plan_digest: plan_digest(self.plan).to_string(),
            steps: self.plan.steps.len() as u32,
            download_bytes: self.plan.steps.iter().map(|step| step.download_bytes).sum(),
        });
        let outcome = self.steps(&leases).await;
        problems.extend(self.still_starting(generation, &outcome).await);
        let left = record::left_running(self.plan, &self.running, &outcome);
        let leaves = leaves(&self);
        let forgotten = match outcome.complete() {
            true => self.forget(&mut problems, generation, &leaves).await,
            false => BTreeSet::new(),
        };
        let all_leave = self.nodes.keys().all(|name| leaves.contains(name));
        if !(self.destroy && outcome.complete() && all_leave) {
            member.nodes.retain(|node| !forgotten.contains(&node.name));
            member.instances = left;
            let begun = |step: &Step| !outcome.not_started.iter().any(|end| end.step == step.id);
            record::keep_count(&mut member, self.member, self.plan, self.clock.unix_ms(), &begun);
            record::use_up(&mut member, self.plan, &outcome);
            member.egress = record::ways_out(self.plan);
            member.applied = Some(record::applied(self.plan, &outcome, self.action, &self.by, &self.clock.rfc3339()));
            self.report_unwritten(&mut problems, leases.write_member(&member, &forgotten).await);
        }
        let lease_lost = leases.lost();
        leases.release().await;
        self.emit(Event::ApplyEnded { outcome: outcome.clone() });
        Ok(Converged { outcome, problems, lease_lost })
    }

    fn emit(&self, event: Event) {
        // Nobody listening is no reason to stop half-way.
        let _ = self.events.send(event);
    }

    fn away(&self, node: &str, text: String) {
        self.emit(Event::Node { node: node.to_owned(), ok: false, text });
    }

    fn report_unwritten(&self, problems: &mut Vec<String>, unwritten: Vec<(String, NodeError)>) {
        for (node, error) in unwritten {
            problems.push(format!("{node} did not take the member record: {error}"));
            self.emit(Event::Node { node, ok: false, text: format!("did not take the member record: {error}") });
        }
    }

    /// The agents leave. One that still has something to keep refuses.
    async fn forget(&self, problems: &mut Vec<String>, generation: u64, leaves: &BTreeSet<String>) -> BTreeSet<String> {
        let mut forgotten = BTreeSet::new();
        let forgets = self.nodes.iter().filter(|(name, _)| leaves.contains(*name)).map(|(name, node)| async move {
            (name, node.call(crate::inventory::Request::Forget { generation }).await)
        });
        for (name, result) in futures::future::join_all(forgets).await {
            match result {
                Ok(_) => drop(forgotten.insert(name.clone())),
                Err(error) => {
                    let text = format!("the agent did not leave: {error}");
                    problems.push(format!("{name}: {text}"));
                    self.emit(Event::Node { node: name.clone(), ok: false, text });
                }
            }
        }
        forgotten
    }

    async fn steps(&self, leases: &Leases) -> Outcome {
        let mut outcome = Outcome::default();
        let mut waiting: Vec<&Step> = self.plan.steps.iter().collect();
        let mut running = FuturesUnordered::new();
        let onto = loads_onto(self.plan);
        let mut loading: BTreeMap<u32, &[String]> = BTreeMap::new();
        let mut dead: BTreeMap<u32, u32> = BTreeMap::new();
        let mut interrupt = self.interrupt.clone();
        let mut listening = true;
        loop {
            let stopping = self.stop_reason(leases, &outcome);
            let mut still = Vec::new();
            // Engines measure free memory while they start: one at a time per accelerator, in the plan's order.
            // Ids are topological, so a step never waits here for one that waits for it.
            let mut claimed: BTreeSet<&String> = loading.values().copied().flatten().collect();
            for step in waiting {
                let devices = onto.get(&step.id).copied().unwrap_or_default();
                let over =
                    |id: &u32| outcome.done.contains(id) || (dead.contains_key(id) && self.can_do_without(step, *id));
                let failed = |id: &&u32| dead.contains_key(id) && !self.can_do_without(step, **id);
                if let Some(cause) = step.after.iter().find(failed).and_then(|id| dead.get(id).copied()) {
                    dead.insert(step.id, cause);
                    self.skip(&mut outcome, step, format!("step {cause} failed"));
                } else if stopping.is_none()
                    && running.len() < self.parallel.max(1)
                    && step.after.iter().all(over)
                    && devices.iter().all(|device| !claimed.contains(device))
                {
                    claimed.extend(devices);
                    loading.insert(step.id, devices);
                    running.push(self.one(step, leases.generation()));
                } else {
                    claimed.extend(devices);
                    still.push(step);
                }
            }
            waiting = still;
            let ended = tokio::select! {
                ended = running.next() => ended,
                changed = interrupt.changed(), if listening => {
                    // A sender that is gone can no longer interrupt.
                    listening = changed.is_ok() && !*interrupt.borrow();
                    outcome.interrupted |= changed.is_ok() && *interrupt.borrow();
                    continue;
                }
            };
            let Some((step, result)) = ended else {
                for step in waiting {
                    let why = stopping.clone().unwrap_or_else(|| "a step before it was not done".to_owned());
                    self.skip(&mut outcome, step, why);
                }
                return outcome;
            };
            loading.remove(&step.id);
            match result {
                Ok(()) => outcome.done.push(step.id),
                Err(error) => {
                    dead.insert(step.id, step.id);
                    let end = StepEnd { step: step.id, text: error.text_on(&step.node), hint: error.hint() };
                    self.emit(Event::StepFailed {
                        step: step.id,
                        node: step.node.clone(),
                        text: end.text.clone(),
                        hint: end.hint.clone(),
                    });
                    outcome.failed.push(end);
                }
            }
        }
    }

    /// Whether a fetch waits for another one only because that one's node was to send the files on: it knows another way.
    fn can_do_without(&self, step: &Step, other: u32) -> bool {
        let sender = step.fetch.as_ref().and_then(|planned| planned.from.sender());
        let brings = self.plan.steps.iter().find(|step| step.id == other && step.verb == Verb::Fetch);
        sender.is_some() && sender == brings.map(|step| step.node.as_str())
    }

    /// Waits for what an earlier apply began and nobody has seen ready yet.
    async fn still_starting(&self, generation: u64, outcome: &Outcome) -> Vec<String> {
        if outcome.interrupted {
            return Vec::new();
        }
        let waits = self.plan.instances.iter().filter(|planned| self.starting.contains(&planned.instance)).map(
            |planned| async move {
                let node = self.nodes.get(&planned.node)?;
                let (progress, note) = (|_: u64| {}, |_: String| {});
                let away = |node: &str, text: String| self.away(node, text);
                let context = self.context(Arc::clone(node), generation, (&progress, &note, &away));
                let ready = context.until_ready(&planned.spec, None).await;
                ready.err().map(|error| format!("{}/{} on {}: {error}", planned.model, planned.replica, planned.node))
            },
        );
        futures::future::join_all(waits).await.into_iter().flatten().collect()
    }

    fn context<'s>(
        &'s self,
        node: Arc<dyn Node>,
        generation: u64,
        (progress, note, away): Told<'s>,
    ) -> StepContext<'s> {
        StepContext {
            plan: self.plan,
            generation,
            node,
            from_node: None,
            nodes: self.nodes,
            addresses: &self.addresses,
            hub: self.hub,
            random: self.random,
            progress,
            most: AtomicU64::new(0),
            note,
            away,
        }
    }

    fn stop_reason(&self, leases: &Leases, outcome: &Outcome) -> Option<String> {
        if outcome.interrupted {
            Some("interrupted".to_owned())
        } else if leases.lost() {
            Some("another apply took the lease".to_owned())
        } else if self.max_fail.is_some_and(|most| outcome.failed.len() >= most.max(1)) {
            Some(format!("{} failed, as many as --max-fail allows", outcome.failed.len()))
        } else {
            None
        }
    }

    fn skip(&self, outcome: &mut Outcome, step: &Step, text: String) {
        self.emit(Event::StepSkipped { step: step.id, node: step.node.clone(), text: text.clone() });
        outcome.not_started.push(StepEnd { step: step.id, text, hint: None });
    }

    async fn one<'s>(&self, step: &'s Step, generation: u64) -> (&'s Step, Result<(), StepError>) {
        let begun = Instant::now();
        self.emit(Event::StepStarted {
            step: step.id,
            verb: step.verb,
            model: step.model.clone(),
            replica: step.replica,
            node: step.node.clone(),
            text: step.detail.clone(),
        });
        let Some(node) = self.nodes.get(&step.node).cloned() else {
            return (step, Err(StepError::Plan(format!("node {} is not reachable", step.node))));
        };
        let from_node = step.from_node.as_ref().and_then(|name| self.nodes.get(name).cloned());
        if let Some(name) = &step.from_node
            && from_node.is_none()
        {
            return (step, Err(StepError::Plan(format!("node {name} is not reachable"))));
        }
        let meter = Meter::new(step.download_bytes);
        let way = step.fetch.as_ref().map(|planned| way(&planned.from)).unwrap_or_default();
        let progress = |done: u64| {
            let Some(reading) = meter.at(done) else { return };
            self.emit(Event::StepProgress {
                step: step.id,
                node: step.node.clone(),
                done_bytes: Some(done),
                total_bytes: Some(step.download_bytes),
                bytes_per_s: reading.bytes_per_s,
                left_ms: reading.left_ms,
                text: way.clone(),
            });
        };
        let note = |text: String| {
            self.emit(Event::StepProgress {
                step: step.id,
                node: step.node.clone(),
                done_bytes: None,
                total_bytes: None,
                bytes_per_s: None,
                left_ms: None,
                text,
            });
        };
        let away = |node: &str, text: String| self.away(node, text);
        let (progress, note) = (&progress, &note);
        let context = StepContext { from_node, ..self.context(node, generation, (progress, note, &away)) };
        let result = context.run(step).await;
        if result.is_ok() {
            let text = match step.verb {
                Verb::Fetch => "copied and checked",
                Verb::Stop => "stopped, its memory is free",
                Verb::Adopt => "supervised again, not restarted",
                _ => "answered a completion",
            };
            self.emit(Event::StepDone {
                step: step.id,
                node: step.node.clone(),
                took_ms: begun.elapsed().as_millis() as u64,
                text: text.to_owned(),
            });
        }
        (step, result)
    }
}

/// The nodes that the agents leave once every step is done: on a destroy all, else those that are no longer the
/// cluster's and keep nothing, be it protected or not to be stopped by this plan. None that is left out.
fn leaves(converge: &Converge<'_>) -> BTreeSet<String> {
    let Converge { plan, nodes, leaving, spare, held, destroy, .. } = converge;
    let ends = |step: &Step, node: &str, id: &str| {
        let gone = if step.verb == Verb::Stop { &step.instance } else { &step.from_instance };
        gone.as_deref() == Some(id) && step.from_node.as_deref().unwrap_or(&step.node) == node
    };
    let stays = |node: &str, id: &str| !plan.steps.iter().any(|step| ends(step, node, id));
    let keeps = |name: &str| {
        plan.instances.iter().any(|planned| planned.node == name)
            || held.iter().any(|(node, id)| node == name && stays(node, id))
    };
    let leaves = |name: &str| *destroy || (leaving.iter().any(|member| member.name == name) && !keeps(name));
    nodes.keys().filter(|name| leaves(name) && !spare.contains(*name)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::HolderProcess;
    use crate::plan::testing::{Wish, World};
    use crate::ports::testing::SaidNode;

    struct Nothing;

    impl Clock for Nothing {
        fn unix_ms(&self) -> u64 {
            0
        }
        fn rfc3339(&self) -> String {
            String::new()
        }
    }

    impl Random for Nothing {
        fn hex(&self, _: usize) -> String {
            String::new()
        }
    }

    impl Processes for Nothing {
        fn this(&self) -> Option<HolderProcess> {
            None
        }
        fn has_ended(&self, _: &HolderProcess) -> bool {
            false
        }
    }

    fn converging<'a>(
        plan: &'a Plan,
        nodes: &'a BTreeMap<String, Arc<dyn Node>>,
        member: &'a MemberRecord,
        protect: &'a BTreeSet<String>,
    ) -> Converge<'a> {
        Converge {
            plan,
            nodes,
            addresses: BTreeMap::new(),
            hub: None,
            member,
            member_nodes: Vec::new(),
            leaving: Vec::new(),
            generations: BTreeMap::new(),
            spare: BTreeSet::new(),
            starting: BTreeSet::new(),
            held: BTreeSet::new(),
            running: Vec::new(),
            protect,
            parallel: 2,
            max_fail: None,
            by: String::new(),
            action: "apply",
            destroy: false,
            clock: &Nothing,
            random: &Nothing,
            processes: &Nothing,
            events: tokio::sync::mpsc::unbounded_channel().0,
            interrupt: tokio::sync::watch::channel(false).1,
        }
    }

    /// Who is left of `ada-1`, which stays the cluster's, and of `old` and `out`, which left the config.
    fn left(destroy: bool, spare: &[&str], held: &[(&str, &str)], stopped: &[(&str, &str)]) -> Vec<String> {
        let mut world = World::new(&[("ada-1", 1)]);
        world.want(&[Wish::new("coder", 3)], &[("coder", 0, "ada-1", vec![0], 18)]);
        let mut plan = world.plan();
        let step = plan.steps[0].clone();
        plan.steps = stopped
            .iter()
            .map(|(node, id)| Step {
                verb: Verb::Stop,
                node: (*node).to_owned(),
                instance: Some((*id).to_owned()),
                from_node: None,
                ..step.clone()
            })
            .collect();
        let node = |name: &str| {
            let node: Arc<dyn Node> =
                Arc::new(SaidNode::new(name, |_| Box::pin(async { Ok(crate::inventory::Response::Done) })));
            (name.to_owned(), node)
        };
        let nodes = ["ada-1", "old", "out"].map(node).into();
        let leaving = ["old", "out"].map(|name| MemberNode { name: name.to_owned(), ..MemberNode::default() });
        let (member, protect) = (MemberRecord::default(), BTreeSet::new());
        let converge = Converge {
            leaving: leaving.into(),
            spare: spare.iter().map(|name| (*name).to_owned()).collect(),
            held: held.iter().map(|(node, id)| ((*node).to_owned(), (*id).to_owned())).collect(),
            destroy,
            ..converging(&plan, &nodes, &member, &protect)
        };
        leaves(&converge).into_iter().collect()
    }

    #[test]
    fn agents_leave_nodes_that_keep_nothing_and_are_not_left_out() {
        assert_eq!(left(false, &[], &[], &[]), ["old", "out"]);
        assert_eq!(left(false, &["out"], &[], &[]), ["old"]);
        let held = [("old", "i1"), ("out", "i2")];
        assert!(left(false, &[], &held, &[]).is_empty(), "protected, or not to be stopped now");
        assert_eq!(left(false, &[], &held, &[("old", "i1")]), ["old"]);
        assert!(left(false, &[], &held, &[("out", "i1")]).is_empty(), "the same id elsewhere");
        assert_eq!(left(true, &["out"], &[], &[]), ["ada-1", "old"]);
    }

    /// A fetch from another node knows another way: where the node that was to have the files first got none, it goes on.
    #[tokio::test]
    async fn a_fetch_outlives_the_node_that_was_to_send() {
        use crate::inventory::{HubFiles, NodeLink, Refusal, Request, Response};

        let mut world = World::new(&[("ada-1", 1), ("ada-2", 1)]);
        let wish = Wish { replicas: 2, ..Wish::new("coder", 3) };
        world.want(&[wish], &[("coder", 0, "ada-1", vec![0], 18), ("coder", 1, "ada-2", vec![0], 18)]);
        world.put_on_hub();
        world.inventory.links = vec![NodeLink {
            from: "ada-1".to_owned(),
            to: "ada-2".to_owned(),
            bandwidth_bytes_per_s: Some(1_000_000_000),
            measured: true,
            ..NodeLink::default()
        }];
        let plan = crate::plan::only_fetches(&world.plan());
        let routes: Vec<&str> = plan.steps.iter().filter_map(|step| step.route.as_deref()).collect();
        assert_eq!(routes, ["hub", "node:ada-1"]);

        let node = |name: &'static str| {
            let node: Arc<dyn Node> = Arc::new(SaidNode::new(name, move |request| {
                let refused = |text: &str| Err(NodeError::Refused(Refusal::Failed { text: text.to_owned() }));
                let answer = match request {
                    Request::FetchState { .. } => Ok(Response::Fetched { complete: false, have_bytes: vec![0] }),
                    Request::Download { .. } if name == "ada-1" => refused("the disk is failing"),
                    Request::Offer { .. } => refused("the set is not complete"),
                    Request::Take { .. } => refused("nobody offers anything"),
                    Request::Download { from, .. } => {
                        let (repository, commit) = ("lab/coder".to_owned(), crate::plan::testing::COMMIT.to_owned());
                        let endpoint = crate::plan::testing::HUB.to_owned();
                        assert_eq!(from, HubFiles { endpoint, repository, commit });
                        Ok(Response::Done)
                    }
                    _ => Ok(Response::Done),
                };
                Box::pin(async move { answer })
            }));
            (name.to_owned(), node)
        };
        let nodes = ["ada-1", "ada-2"].map(node).into();
        let (events, mut told) = tokio::sync::mpsc::unbounded_channel();
        let member = MemberRecord::default();
        let protect = BTreeSet::new();
        let converge = Converge { events, ..converging(&plan, &nodes, &member, &protect) };
        let outcome = converge.run().await.expect("begun").outcome;
        assert_eq!(outcome.done, [2]);
        assert_eq!(outcome.failed.iter().map(|end| end.step).collect::<Vec<_>>(), [1]);
        let mut words = Vec::new();
        while let Ok(event) = told.try_recv() {
            if let Event::StepProgress { step, done_bytes: None, text, .. } = event {
                words.push(format!("{step} {text}"));
            }
        }
        assert_eq!(words, ["2 ada-1 does not send them: the set is not complete; from the hub instead"]);
    }
}
