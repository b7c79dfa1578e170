//! The agent's protocol as a typed client, over any way to a node.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _};
use tokio::time::Instant;

use super::pool::{Lease, Pool, lost, read_response};
use super::stream::within;
use crate::inventory::{FetchFile, FetchSpec, Refusal, Request, Response, json_frame, raw_frame};
use crate::ports::{ByteStream, FileSource, HubError, Node, NodeError, Progress, Transport};

/// Bytes of a file in one frame.
const PIECE: usize = 256 << 10;
/// Deadline of handing one frame to the connection.
const PIECE_LIMIT: Duration = Duration::from_secs(60);
/// How long an agent that reports its progress may be silent: it also gives up a silent server by itself.
const SILENCE_LIMIT: Duration = Duration::from_secs(90);
/// How long another connection that brings the same file may stand still: longer than a node waits for a silent peer.
const BUSY_LIMIT: Duration = Duration::from_secs(90);
/// Slowest disk that a digest is waited for.
const HASHED_PER_SECOND: u64 = 50 << 20;

/// A node whose agent answers over a transport.
pub struct AgentNode {
    name: String,
    pool: Pool,
}

impl AgentNode {
    /// Opens nothing yet.
    pub fn new(transport: Arc<dyn Transport>) -> Self {
        Self { name: transport.node().to_owned(), pool: Pool::new(transport) }
    }

    /// One request and its answer on one stream. The stream goes back to the pool when the answer was whole.
    async fn exchange(&self, mut lease: Lease<'_>, request: &Request) -> Result<Response, NodeError> {
        let (step, limit) = deadline(request);
        let frame = json_frame(request).map_err(|error| lost(&error))?;
        let response = within(&step, limit, async {
            lease.stream.write_all(&frame).await.map_err(|error| lost(&error))?;
            lease.stream.flush().await.map_err(|error| lost(&error))?;
            read_response(&mut lease.stream).await
        })
        .await?;
        self.pool.give_back(lease).await;
        Ok(response)
    }

    async fn ask(&self, request: &Request) -> Result<Response, NodeError> {
        let urgent = matches!(request, Request::Lease { .. } | Request::Release { .. });
        let lease = self.pool.take(urgent).await?;
        let reused = lease.reused;
        let response = match self.exchange(lease, request).await {
            Err(NodeError::Lost { reason }) if reused && request.may_repeat() => {
                tracing::debug!(node = %self.name, %reason, "an idle stream had died, asking again over a new one");
                self.pool.clear().await;
                let lease = self.pool.take(urgent).await?;
                self.exchange(lease, request).await?
            }
            result => result?,
        };
        unless_refused(response)
    }

    /// Bytes that the node has of one file of a set.
    async fn has_of(&self, fetch: &FetchSpec, name: &str) -> Result<u64, NodeError> {
        let index = fetch.files.iter().position(|file| file.name == name).unwrap_or(usize::MAX);
        match self.ask(&Request::FetchState { fetch: fetch.clone() }).await? {
            Response::Fetched { have_bytes, .. } => Ok(have_bytes.get(index).copied().unwrap_or(0)),
            _ => Err(lost(&"it answered something else than the state of a set of files")),
        }
    }

    async fn put_once(
        &self,
        from: FileSource<'_>,
        fetch: &FetchSpec,
        name: &str,
        limit: Option<u64>,
        progress: Progress<'_>,
    ) -> Result<(), NodeError> {
        let (index, file) = fetch
            .files
            .iter()
            .enumerate()
            .find(|(_, file)| file.name == name)
            .ok_or_else(|| refuse(format!("{name} is not in the set {}", fetch.revision)))?;
        let state = self.ask(&Request::FetchState { fetch: fetch.clone() }).await?;
        let Response::Fetched { complete, have_bytes } = state else {
            return Err(lost(&"it answered something else than the state of a set of files"));
        };
        if complete {
            progress(file.size_bytes);
            return Ok(());
        }
        let offset = have_bytes.get(index).copied().unwrap_or(0).min(file.size_bytes);
        let source = Source::open(from, file, offset).await?;
        progress(offset);

        let mut lease = self.pool.take(false).await?;
        let request = Request::Put { fetch: fetch.clone(), name: name.to_owned(), offset };
        let response = send_file(&mut lease.stream, &request, source, file, (offset, limit), progress).await?;
        let response = match response {
            // Refused half-way: what was sent since lies unread in the stream, so it is not used again.
            Sent::Early(response) => response,
            Sent::Whole(response) => {
                self.pool.give_back(lease).await;
                response
            }
        };
        match unless_refused(response)? {
            Response::Fetched { complete, have_bytes } => {
                let have = if complete { file.size_bytes } else { have_bytes.get(index).copied().unwrap_or(0) };
                let short = || lost(&format!("it has {have} of {} bytes of {name}", file.size_bytes));
                if have < file.size_bytes { Err(short()) } else { Ok(()) }
            }
            Response::Done => Ok(()),
            _ => Err(lost(&"it answered something else to a file")),
        }
    }
}

#[async_trait]
impl Node for AgentNode {
    fn name(&self) -> &str {
        &self.name
    }

    async fn call(&self, request: Request) -> Result<Response, NodeError> {
        self.ask(&request).await
    }

    async fn follow(&self, request: Request, progress: Progress<'_>) -> Result<Response, NodeError> {
        let mut lease = self.pool.take(false).await?;
        let (step, _) = deadline(&request);
        let frame = json_frame(&request).map_err(|error| lost(&error))?;
        within(&step, PIECE_LIMIT, async {
            lease.stream.write_all(&frame).await.map_err(|error| lost(&error))?;
            lease.stream.flush().await.map_err(|error| lost(&error))
        })
        .await?;
        loop {
            match within(&step, SILENCE_LIMIT, read_response(&mut lease.stream)).await? {
                Response::Progress { have_bytes } => progress(have_bytes),
                answer => {
                    self.pool.give_back(lease).await;
                    return unless_refused(answer);
                }
            }
        }
    }

    async fn put(
        &self,
        from: FileSource<'_>,
        fetch: &FetchSpec,
        name: &str,
        limit_bytes_per_s: Option<u64>,
        progress: Progress<'_>,
    ) -> Result<(), NodeError> {
        // Another connection may be bringing the same file: another cluster's, or one of ours that was cut and that the
        // node has not given up yet. It is waited for, as long as it gets on.
        let (mut moved, mut most) = (Instant::now(), None);
        loop {
            let result = self.put_once(from, fetch, name, limit_bytes_per_s, progress).await;
            let Err(NodeError::Refused(Refusal::Busy { .. })) = &result else { return result };
            let have = self.has_of(fetch, name).await?;
            if most.is_none_or(|most| have > most) {
                (moved, most) = (Instant::now(), Some(have));
                progress(have);
            }
            if moved.elapsed() > BUSY_LIMIT {
                return result;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    async fn open_port(&self, port: u16) -> Result<Box<dyn ByteStream>, NodeError> {
        self.pool.transport().open_port(port).await
    }

    async fn host_key(&self) -> Option<String> {
        self.pool.transport().host_key().await
    }

    async fn close(&self) {
        self.pool.clear().await;
        self.pool.transport().close().await;
    }
}

/// How a transfer ended.
enum Sent {
    /// Everything was sent, then came the answer.
    Whole(Response),
    /// The answer came before everything was sent.
    Early(Response),
}

/// Sends a file in frames. The answer is listened for all along, so that a full disk ends the transfer at once.
async fn send_file(
    stream: &mut Box<dyn ByteStream>,
    request: &Request,
    mut source: Source,
    file: &FetchFile,
    (offset, bytes_per_s): (u64, Option<u64>),
    progress: Progress<'_>,
) -> Result<Sent, NodeError> {
    let (mut from_node, mut to_node) = tokio::io::split(stream);
    let answer = read_response(&mut from_node);
    tokio::pin!(answer);
    let step = format!("sending {}", file.name);
    let first = json_frame(request).map_err(|error| lost(&error))?;
    within(&step, PIECE_LIMIT, async { to_node.write_all(&first).await.map_err(|error| lost(&error)) }).await?;
    let mut sent = offset;
    // A node that resumes reads what it has before it takes more.
    let limit = PIECE_LIMIT + Duration::from_secs(offset / HASHED_PER_SECOND);
    let mut pace = Pace::new(bytes_per_s);
    let mut buffer = vec![0_u8; pace.piece()];
    while sent < file.size_bytes {
        let want = buffer.len().min(usize::try_from(file.size_bytes - sent).unwrap_or(usize::MAX));
        let next = async {
            pace.wait().await;
            source.read(&mut buffer[..want], file).await
        };
        let read = tokio::select! {
            biased;
            early = &mut answer => return Ok(Sent::Early(early?)),
            read = next => read?,
        };
        let frame = raw_frame(&buffer[..read]);
        let write = within(&step, limit, async { to_node.write_all(&frame).await.map_err(|error| lost(&error)) });
        tokio::select! {
            biased;
            early = &mut answer => return Ok(Sent::Early(early?)),
            written = write => written?,
        }
        sent += read as u64;
        pace.sent(read);
        progress(sent);
    }
    let limit = PIECE_LIMIT + Duration::from_secs(file.size_bytes / HASHED_PER_SECOND);
    let end = raw_frame(&[]);
    within(&format!("checking {} on the node", file.name), limit, async {
        to_node.write_all(&end).await.map_err(|error| lost(&error))?;
        to_node.flush().await.map_err(|error| lost(&error))?;
        Ok(Sent::Whole(answer.await?))
    })
    .await
}

/// The bytes of a file that is being sent.
struct Source {
    bytes: Box<dyn AsyncRead + Send + Unpin>,
    /// The hub's address, where they come from there.
    hub: Option<String>,
}

impl Source {
    async fn open(from: FileSource<'_>, file: &FetchFile, offset: u64) -> Result<Self, NodeError> {
        match from {
            FileSource::Folder(folder) => {
                Ok(Self { bytes: Box::new(open_file(folder, file, offset).await?), hub: None })
            }
            // The hub has nothing to say to the end of a file, and an empty one has no bytes.
            FileSource::Hub { .. } if offset >= file.size_bytes => {
                Ok(Self { bytes: Box::new(tokio::io::empty()), hub: None })
            }
            FileSource::Hub { hub, files } => {
                let opened = hub.open(&files.repository, &files.commit, &file.name, offset).await;
                let bytes = opened.map_err(|error| NodeError::Hub(Box::new(error)))?;
                Ok(Self { bytes, hub: Some(hub.endpoint().to_owned()) })
            }
        }
    }

    /// At least one byte.
    async fn read(&mut self, buffer: &mut [u8], file: &FetchFile) -> Result<usize, NodeError> {
        let Some(endpoint) = &self.hub else {
            return match self.bytes.read(buffer).await.map_err(|error| unreadable(file, &error))? {
                0 => Err(refuse(format!("{} became shorter while it was sent", file.name))),
                read => Ok(read),
            };
        };
        let cut = |reason: String| {
            let (endpoint, reason) = (endpoint.clone(), format!("{}: {reason}", file.name));
            NodeError::Hub(Box::new(HubError::Unreachable { endpoint, reason }))
        };
        match tokio::time::timeout(PIECE_LIMIT, self.bytes.read(buffer)).await {
            Ok(Ok(0)) => Err(cut("the connection ended before the file did".to_owned())),
            Ok(Ok(read)) => Ok(read),
            Ok(Err(error)) => Err(cut(error.to_string())),
            Err(_) => Err(cut(format!("no byte for {} s", PIECE_LIMIT.as_secs()))),
        }
    }
}

/// Keeps to a number of bytes per second.
struct Pace {
    bytes_per_s: Option<u64>,
    began: Instant,
    sent: u64,
}

impl Pace {
    fn new(bytes_per_s: Option<u64>) -> Self {
        Self { bytes_per_s: bytes_per_s.map(|rate| rate.max(1)), began: Instant::now(), sent: 0 }
    }

    /// Bytes of one frame: small enough for four a second, so that nobody takes a slow sender for a silent one.
    fn piece(&self) -> usize {
        let quarter = self.bytes_per_s.map_or(PIECE as u64, |rate| (rate / 4).max(1));
        usize::try_from(quarter).unwrap_or(PIECE).min(PIECE)
    }

    fn sent(&mut self, bytes: usize) {
        self.sent += bytes as u64;
    }

    /// Until what was sent has had its time.
    async fn wait(&self) {
        if let Some(rate) = self.bytes_per_s {
            let due = self.began + Duration::from_secs_f64(self.sent as f64 / rate as f64);
            tokio::time::sleep_until(due).await;
        }
    }
}

async fn open_file(folder: &str, file: &FetchFile, offset: u64) -> Result<tokio::fs::File, NodeError> {
    let path = Path::new(folder).join(&file.name);
    let mut source = tokio::fs::File::open(&path).await.map_err(|error| unreadable(file, &error))?;
    let size = source.metadata().await.map_err(|error| unreadable(file, &error))?.len();
    if size != file.size_bytes {
        let text = format!("{} has {size} bytes now and had {} when it was planned", path.display(), file.size_bytes);
        return Err(refuse(text));
    }
    source.seek(std::io::SeekFrom::Start(offset)).await.map_err(|error| unreadable(file, &error))?;
    Ok(source)
}

fn unreadable(file: &FetchFile, error: &std::io::Error) -> NodeError {
    refuse(format!("{} cannot be read here: {error}", file.name))
}

fn refuse(text: String) -> NodeError {
    NodeError::Refused(Refusal::Failed { text })
}

fn unless_refused(response: Response) -> Result<Response, NodeError> {
    match response {
        Response::Refused { refusal } => Err(NodeError::Refused(refusal)),
        other => Ok(other),
    }
}

/// What a request is called and how long it may take.
fn deadline(request: &Request) -> (String, Duration) {
    let (step, seconds) = match request {
        Request::Probe { .. } => ("probing the node", 60),
        Request::Doctor { .. } => ("looking over the node", 90),
        Request::Stop { grace_ms, .. } => ("stopping an instance", 90.max(60 + grace_ms / 1000)),
        Request::Start { .. } => ("starting an instance", 30),
        Request::FetchState { fetch } => ("looking at files on the node", 60 + set_bytes(fetch) / HASHED_PER_SECOND),
        Request::FetchDone { fetch } => ("checking files on the node", 60 + set_bytes(fetch) / HASHED_PER_SECOND),
        Request::Collect { .. } => ("collecting weights on the node", 600),
        Request::Forget { .. } => ("forgetting the cluster on the node", 60),
        Request::Supervise { .. } => ("starting the node's supervisor", 30),
        Request::Lease { .. } | Request::Release { .. } | Request::BreakLease => ("the node's lease", 20),
        Request::MeasureConnect { .. } => ("measuring the way to another node", 30),
        Request::Download { .. } => ("downloading on the node", 60),
        Request::Take { .. } => ("copying from another node", 60),
        Request::MeasureEndpoints { .. } => ("measuring the way to providers", 60),
        _ => ("asking the node", 30),
    };
    (step.to_owned(), Duration::from_secs(seconds))
}

fn set_bytes(fetch: &FetchSpec) -> u64 {
    fetch.files.iter().map(|file| file.size_bytes).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests;
