//! Bringing weights to a node, the way that the plan says.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::step::{StepContext, StepError, is_away};
use crate::base::Secret;
use crate::inventory::{FetchSpec, HubFiles, Refusal, Request, Response};
use crate::plan::{FetchFrom, PlannedFetch, Step};
use crate::ports::{FileSource, Hub, Node, NodeError};

/// How long a sender waits for the taker, and at any silence of it.
const OFFER: Duration = Duration::from_secs(30);
/// How long another connection that brings the same files may stand still: longer than a node waits for a silent peer.
const BUSY: Duration = Duration::from_secs(90);
/// Between two looks or tries.
const AGAIN: Duration = Duration::from_secs(1);
/// How long a node that cannot be asked to send is tried again.
const SENDER_AWAY: Duration = Duration::from_secs(10);

impl StepContext<'_> {
    /// Brings a set and has it marked complete. What is there of it already is kept.
    pub(super) async fn fetch(&self, step: &Step) -> Result<(), StepError> {
        let planned =
            step.fetch.as_ref().ok_or_else(|| StepError::Plan(format!("fetch step {} names no files", step.id)))?;
        let fetch = &planned.fetch;
        let Some(have) = self.have(fetch).await? else { return Ok(()) };
        self.tell(have.iter().copied().fold(0, u64::saturating_add));
        match &planned.from {
            FetchFrom::Node { node, folder, otherwise } => {
                if let Some(why) = self.take_from(node, folder, planned).await? {
                    (self.note)(format!("{why}; {} instead", way(otherwise)));
                    self.bring(otherwise, planned).await?;
                }
            }
            from => self.bring(from, planned).await?,
        }
        self.call(&self.node, Request::FetchDone { fetch: fetch.clone() }).await.map(|_| ())
    }

    /// Bytes of each file that are there; `None` where the set is complete.
    async fn have(&self, fetch: &FetchSpec) -> Result<Option<Vec<u64>>, StepError> {
        match self.call(&self.node, Request::FetchState { fetch: fetch.clone() }).await? {
            Response::Fetched { complete: true, .. } => Ok(None),
            Response::Fetched { have_bytes, .. } => Ok(Some(have_bytes)),
            other => Err(self.unexpected(&other)),
        }
    }

    async fn bring(&self, from: &FetchFrom, planned: &PlannedFetch) -> Result<(), StepError> {
        match from {
            FetchFrom::Folder(folder) => self.send(FileSource::Folder(folder), planned).await,
            FetchFrom::Hub(files) => self.download(files, planned).await,
            FetchFrom::Relay(files) => {
                let hub = self.hub.ok_or_else(|| StepError::Plan("no hub is known here".to_owned()))?;
                if !same(hub, files) {
                    return Err(StepError::Endpoint {
                        planned: files.endpoint.clone(),
                        here: hub.endpoint().to_owned(),
                    });
                }
                self.send(FileSource::Hub { hub, files }, planned).await
            }
            FetchFrom::Node { .. } => Err(StepError::Plan("a way between nodes names another as its own".to_owned())),
        }
    }

    /// The controller sends every file that is not whole.
    async fn send(&self, from: FileSource<'_>, planned: &PlannedFetch) -> Result<(), StepError> {
        let fetch = &planned.fetch;
        let Some(have) = self.have(fetch).await? else { return Ok(()) };
        let mut there = 0_u64;
        for (file, have) in fetch.files.iter().zip(have) {
            if have < file.size_bytes || file.size_bytes == 0 {
                // What the node has of the file is kept, so that each try goes on where the last one ended.
                let progress = |done: u64| self.tell(there.saturating_add(done));
                let limit = planned.limit_bytes_per_s;
                self.patiently(&self.node, || self.node.put(from, fetch, &file.name, limit, &progress)).await?;
            }
            there = there.saturating_add(file.size_bytes);
            self.tell(there);
        }
        Ok(())
    }

    /// The node downloads. The login goes to the hub that it belongs to, and to no other.
    async fn download(&self, files: &HubFiles, planned: &PlannedFetch) -> Result<(), StepError> {
        let request = Request::Download {
            fetch: planned.fetch.clone(),
            from: files.clone(),
            token: self.hub.filter(|hub| same(*hub, files)).and_then(Hub::token),
            limit_bytes_per_s: planned.limit_bytes_per_s,
        };
        let progress = |done: u64| self.tell(done);
        let mut others = Others::new();
        loop {
            let result = self.patiently(&self.node, || self.node.follow(request.clone(), &progress)).await;
            match result {
                Err(error) if error.is_busy() => self.wait_for_others(&mut others, planned, error).await?,
                result => return result.map(|_| ()),
            }
        }
    }

    /// Another connection brings the same files: another cluster's, or one of ours that was cut and that the node has not
    /// given up yet. It is waited for, as long as it gets on.
    async fn wait_for_others(
        &self,
        others: &mut Others,
        planned: &PlannedFetch,
        error: StepError,
    ) -> Result<(), StepError> {
        let have = self.have(&planned.fetch).await?;
        let have = have.map_or(u64::MAX, |have| have.into_iter().fold(0, u64::saturating_add));
        if others.most.is_none_or(|most| have > most) {
            (others.moved, others.most) = (Instant::now(), Some(have));
        }
        if others.moved.elapsed() > BUSY {
            return Err(error);
        }
        tokio::time::sleep(AGAIN).await;
        Ok(())
    }

    /// Another node sends. Why it cannot, where another way may help.
    async fn take_from(&self, name: &str, folder: &str, planned: &PlannedFetch) -> Result<Option<String>, StepError> {
        let Some(sender) = self.nodes.get(name) else { return Ok(Some(format!("{name} is not reachable"))) };
        let mut others = Others::new();
        let mut lost_since = None;
        loop {
            let before = self.moved();
            let key = Secret::new(self.random.hex(32));
            let (port, addresses) = match self.offer(sender, folder, planned, &key).await {
                Ok(found) => found,
                Err(why) => return Ok(Some(why)),
            };
            let take = Request::Take {
                fetch: planned.fetch.clone(),
                addresses,
                port,
                key,
                limit_bytes_per_s: planned.limit_bytes_per_s,
            };
            let progress = |done: u64| self.tell(done);
            let error = match self.node.follow(take, &progress).await {
                Ok(_) => return Ok(None),
                Err(error) => error,
            };
            let moved = self.moved() > before;
            match error {
                NodeError::Refused(Refusal::Busy { .. }) => {
                    let error = self.node_error(&self.node, error);
                    self.wait_for_others(&mut others, planned, error).await?;
                }
                NodeError::Refused(Refusal::Disk { .. }) => return Err(self.node_error(&self.node, error)),
                // What it has is another file by now, however often it is sent.
                NodeError::Refused(refusal @ Refusal::Digest { .. }) => {
                    return Ok(Some(format!("{name} has something else: {refusal}")));
                }
                // The connection between the two ended: what came is kept.
                NodeError::Refused(_) if moved => tokio::time::sleep(AGAIN).await,
                NodeError::Refused(refusal) => {
                    return Ok(Some(format!("{} cannot take them from {name}: {refusal}", self.node.name())));
                }
                error if is_away(&error) => self.once_more(&mut lost_since, moved, error).await?,
                error => return Err(self.node_error(&self.node, error)),
            }
        }
    }

    /// Asks a node to send; where it listens. Or why it does not.
    async fn offer(
        &self,
        sender: &Arc<dyn Node>,
        folder: &str,
        planned: &PlannedFetch,
        key: &Secret<String>,
    ) -> Result<(u16, Vec<String>), String> {
        let until = Instant::now() + SENDER_AWAY;
        loop {
            let fetch = FetchSpec { folder: folder.to_owned(), ..planned.fetch.clone() };
            let ttl_ms = OFFER.as_millis() as u64;
            match sender.call(Request::Offer { fetch, key: key.clone(), ttl_ms }).await {
                Ok(Response::Listening { port, addresses }) => {
                    // What the config calls it may be an alias of this machine's SSH configuration.
                    let known = self.addresses.get(sender.name()).cloned();
                    let more = addresses.into_iter().filter(|address| known.as_ref() != Some(address));
                    return Ok((port, known.clone().into_iter().chain(more).collect()));
                }
                Ok(_) => return Err(format!("{} answers something else to an offer", sender.name())),
                Err(error) if is_away(&error) && Instant::now() + AGAIN < until => tokio::time::sleep(AGAIN).await,
                Err(error) => return Err(format!("{} does not send them: {error}", sender.name())),
            }
        }
    }
}

/// How far another connection got with the same files.
struct Others {
    moved: Instant,
    most: Option<u64>,
}

impl Others {
    fn new() -> Self {
        Self { moved: Instant::now(), most: None }
    }
}

/// Whether the plan's hub is the one that this machine's token is for.
fn same(hub: &dyn Hub, files: &HubFiles) -> bool {
    hub.endpoint().trim_end_matches('/') == files.endpoint.trim_end_matches('/')
}

/// What an event calls the way.
pub(super) fn way(from: &FetchFrom) -> String {
    match from {
        FetchFrom::Folder(_) => "from the controller".to_owned(),
        FetchFrom::Hub(_) => "from the hub".to_owned(),
        FetchFrom::Relay(_) => "through the controller".to_owned(),
        FetchFrom::Node { node, .. } => format!("from node {node}"),
    }
}
