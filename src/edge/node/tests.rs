//! The typed client against a scripted agent on the other end of an in-memory stream.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::DuplexStream;

use super::*;
use crate::inventory::{KIND_RAW, frame_header, json_message};

/// Answers every request of one stream; `die_after` requests the stream ends.
struct FakeAgent {
    opened: AtomicUsize,
    die_after: usize,
    refuse_put_after: Option<usize>,
    received: Arc<Mutex<Vec<u8>>>,
    have: u64,
    slow: bool,
    /// How often a file is refused because another connection brings it.
    busy: Arc<AtomicUsize>,
}

impl FakeAgent {
    fn new(die_after: usize) -> Self {
        Self {
            opened: AtomicUsize::new(0),
            die_after,
            refuse_put_after: None,
            received: Arc::default(),
            have: 0,
            slow: false,
            busy: Arc::default(),
        }
    }
}

#[async_trait]
impl Transport for FakeAgent {
    fn node(&self) -> &str {
        "ada-1"
    }

    async fn open_agent(&self) -> Result<Box<dyn ByteStream>, NodeError> {
        self.opened.fetch_add(1, Ordering::SeqCst);
        let (near, far) = tokio::io::duplex(64 << 10);
        let agent = Session {
            left: self.die_after,
            refuse_put_after: self.refuse_put_after,
            received: Arc::clone(&self.received),
            have: self.have,
            slow: self.slow,
            busy: Arc::clone(&self.busy),
        };
        tokio::spawn(agent.serve(far));
        Ok(Box::new(near))
    }

    async fn open_port(&self, _port: u16) -> Result<Box<dyn ByteStream>, NodeError> {
        Err(lost(&"not here"))
    }

    async fn host_key(&self) -> Option<String> {
        None
    }

    async fn close(&self) {}
}

struct Session {
    left: usize,
    refuse_put_after: Option<usize>,
    received: Arc<Mutex<Vec<u8>>>,
    have: u64,
    slow: bool,
    busy: Arc<AtomicUsize>,
}

impl Session {
    async fn serve(mut self, mut stream: DuplexStream) {
        while self.left > 0 {
            self.left -= 1;
            let Some((_, payload)) = frame(&mut stream).await else { return };
            let request: Request = json_message(&payload).expect("a request");
            if self.slow {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            let response = match request {
                Request::Instances => Response::Instances { instances: Vec::new(), supervised: true },
                Request::FetchState { .. } => Response::Fetched { complete: false, have_bytes: vec![self.have] },
                Request::Put { offset, .. } => match self.receive(&mut stream, offset).await {
                    Some(response) => response,
                    None => return,
                },
                Request::BreakLease => {
                    let stale = Refusal::Stale { offered: 1, held: 2 };
                    Response::Refused { refusal: stale }
                }
                _ => Response::Done,
            };
            let frame = json_frame(&response).expect("a frame");
            if stream.write_all(&frame).await.is_err() {
                return;
            }
        }
    }

    async fn receive(&mut self, stream: &mut DuplexStream, offset: u64) -> Option<Response> {
        assert_eq!(offset, self.have);
        if self.busy.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
            return Some(Response::Refused { refusal: Refusal::Busy { what: "m.gguf".to_owned() } });
        }
        let mut count = 0;
        loop {
            let (kind, payload) = frame(stream).await?;
            assert_eq!(kind, KIND_RAW);
            if payload.is_empty() {
                return Some(Response::Fetched { complete: true, have_bytes: vec![1_000_000] });
            }
            self.received.lock().expect("free").extend_from_slice(&payload);
            count += 1;
            if self.refuse_put_after == Some(count) {
                let refusal = Refusal::Disk { path: "/w".to_owned(), needed_bytes: 2, free_bytes: 1 };
                return Some(Response::Refused { refusal });
            }
        }
    }
}

async fn frame(stream: &mut DuplexStream) -> Option<(u8, Vec<u8>)> {
    let mut header = [0_u8; 5];
    stream.read_exact(&mut header).await.ok()?;
    let (kind, length) = frame_header(header).expect("a header");
    let mut payload = vec![0_u8; length];
    stream.read_exact(&mut payload).await.ok()?;
    Some((kind, payload))
}

fn node(agent: FakeAgent) -> (Arc<FakeAgent>, AgentNode) {
    let agent = Arc::new(agent);
    (Arc::clone(&agent), AgentNode::new(agent))
}

fn fetch(size_bytes: u64) -> FetchSpec {
    let file = FetchFile { name: "m.gguf".to_owned(), size_bytes, sha256: None };
    FetchSpec { source: "path:/m".to_owned(), revision: "r".to_owned(), folder: "/w".to_owned(), files: vec![file] }
}

#[tokio::test]
async fn one_stream_serves_many_requests_and_a_dead_one_is_replaced() {
    let (agent, node) = node(FakeAgent::new(2));
    for _ in 0..5 {
        node.call(Request::Instances).await.expect("answered");
    }
    assert_eq!(agent.opened.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn a_refusal_is_an_error_and_leaves_the_stream_usable() {
    let (agent, node) = node(FakeAgent::new(9));
    let error = node.call(Request::BreakLease).await.expect_err("refused");
    assert!(matches!(error, NodeError::Refused(Refusal::Stale { offered: 1, held: 2 })));
    node.call(Request::Instances).await.expect("answered");
    assert_eq!(agent.opened.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn busy_streams_are_joined_by_at_most_three_more() {
    let (agent, node) = node(FakeAgent { slow: true, ..FakeAgent::new(9) });
    let node = &node;
    let calls = (0..12).map(|_| async move { node.call(Request::Instances).await });
    for answer in futures::future::join_all(calls).await {
        answer.expect("answered");
    }
    assert_eq!(agent.opened.load(Ordering::SeqCst), 4);
}

#[test]
fn a_long_grace_stretches_the_deadline_of_a_stop() {
    let stop = |grace_ms| {
        deadline(&Request::Stop { generation: 1, instance: "i".to_owned(), grace_ms, before_start: true }).1.as_secs()
    };
    assert_eq!((stop(1000), stop(600_000)), (90, 660));
}

#[test]
fn a_probe_outlasts_every_deadline_of_the_agent_and_no_file_set_is_too_large() {
    // The agent gives up on a driver, or on a program that does not tell its version, after 10 s each.
    let probe = Request::Probe { engines: Vec::new(), weights_path: None, on_node: Vec::new() };
    assert_eq!(deadline(&probe).1.as_secs(), 60);
    let mut set = fetch(u64::MAX);
    set.files.push(set.files[0].clone());
    assert_eq!(deadline(&Request::FetchState { fetch: set }).1.as_secs(), 60 + u64::MAX / HASHED_PER_SECOND);
}

#[tokio::test]
async fn a_file_is_sent_from_where_the_node_stands() {
    let folder = tempfile::tempdir().expect("a folder");
    let bytes: Vec<u8> = (0..1_000_000_u32).map(|n| (n % 251) as u8).collect();
    std::fs::write(folder.path().join("m.gguf"), &bytes).expect("written");
    let (agent, node) = node(FakeAgent { have: 1234, ..FakeAgent::new(9) });
    let seen = Mutex::new(Vec::new());
    let progress = |at: u64| seen.lock().expect("free").push(at);
    let folder = folder.path().to_str().expect("UTF-8");
    node.put(FileSource::Folder(folder), &fetch(1_000_000), "m.gguf", None, &progress).await.expect("sent");
    assert_eq!(*agent.received.lock().expect("free"), bytes[1234..]);
    let seen = seen.into_inner().expect("free");
    assert_eq!((seen.first(), seen.last()), (Some(&1234), Some(&1_000_000)));
    assert!(seen.is_sorted());
    assert_eq!(agent.opened.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_full_disk_ends_a_transfer_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("m.gguf"), vec![7_u8; 20 << 20]).expect("written");
    let (agent, node) = node(FakeAgent { refuse_put_after: Some(2), ..FakeAgent::new(9) });
    let folder = folder.path().to_str().expect("UTF-8");
    let error =
        node.put(FileSource::Folder(folder), &fetch(20 << 20), "m.gguf", None, &|_| {}).await.expect_err("refused");
    assert!(matches!(error, NodeError::Refused(Refusal::Disk { .. })), "{error}");
    node.call(Request::Instances).await.expect("answered");
    assert_eq!(agent.opened.load(Ordering::SeqCst), 2, "the stream with unread bytes is not used again");
}

#[tokio::test]
async fn a_file_that_changed_since_the_plan_is_not_sent() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("m.gguf"), b"12345").expect("written");
    let (_agent, node) = node(FakeAgent::new(9));
    let folder = folder.path().to_str().expect("UTF-8");
    let error = node.put(FileSource::Folder(folder), &fetch(6), "m.gguf", None, &|_| {}).await.expect_err("refused");
    assert!(error.to_string().contains("5 bytes now and had 6"), "{error}");
    let unknown = node.put(FileSource::Folder(folder), &fetch(6), "other", None, &|_| {}).await.expect_err("refused");
    assert!(unknown.to_string().contains("not in the set"), "{unknown}");
}

#[tokio::test]
async fn a_file_that_another_connection_brings_is_waited_for() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("m.gguf"), vec![7_u8; 1_000_000]).expect("written");
    let agent = FakeAgent::new(9);
    agent.busy.store(1, Ordering::SeqCst);
    let (agent, node) = node(agent);
    let folder = folder.path().to_str().expect("UTF-8");
    node.put(FileSource::Folder(folder), &fetch(1_000_000), "m.gguf", None, &|_| {}).await.expect("sent in the end");
    assert_eq!(agent.received.lock().expect("free").len(), 1_000_000);
}

/// A hub whose connections end after so many bytes; it counts them.
struct CutHub {
    bytes: Vec<u8>,
    cut_after: usize,
    opened: Mutex<Vec<u64>>,
}

#[async_trait]
impl crate::ports::Hub for CutHub {
    fn endpoint(&self) -> &str {
        "https://hub.example"
    }
    fn token(&self) -> Option<crate::base::Secret<String>> {
        None
    }
    async fn repository(&self, _: &str, _: Option<&str>) -> Result<crate::ports::HubRepository, HubError> {
        Err(HubError::NoRepository { repository: String::new() })
    }
    async fn read(&self, _: &str, _: &str, _: &str, _: u64, _: u64) -> Result<Vec<u8>, HubError> {
        Ok(Vec::new())
    }
    async fn open(
        &self,
        repository: &str,
        _: &str,
        file: &str,
        offset: u64,
    ) -> Result<Box<dyn AsyncRead + Send + Unpin>, HubError> {
        assert_eq!((repository, file), ("lab/m", "m.gguf"));
        self.opened.lock().expect("free").push(offset);
        let rest = self.bytes[offset as usize..].iter().take(self.cut_after).copied().collect::<Vec<u8>>();
        Ok(Box::new(std::io::Cursor::new(rest)))
    }
    async fn quantised_by(&self, _: &str, _: &str) -> Result<Vec<String>, HubError> {
        Ok(Vec::new())
    }
}

#[tokio::test]
async fn a_file_of_the_hub_goes_on_to_the_node_from_where_the_node_stands() {
    let bytes: Vec<u8> = (0..1_000_000_u32).map(|n| (n % 251) as u8).collect();
    let files = crate::inventory::HubFiles {
        endpoint: "https://hub.example".to_owned(),
        repository: "lab/m".to_owned(),
        commit: "0".repeat(40),
    };
    let hub = CutHub { bytes: bytes.clone(), cut_after: usize::MAX, opened: Mutex::default() };
    let from = FileSource::Hub { hub: &hub, files: &files };
    let (agent, there) = node(FakeAgent { have: 1234, ..FakeAgent::new(9) });
    there.put(from, &fetch(1_000_000), "m.gguf", None, &|_| {}).await.expect("sent");
    assert_eq!(*agent.received.lock().expect("free"), bytes[1234..]);
    assert_eq!(*hub.opened.lock().expect("free"), [1234]);

    // A connection to the hub that ends early says so; what came is at the node.
    let hub = CutHub { cut_after: 600_000, ..hub };
    let from = FileSource::Hub { hub: &hub, files: &files };
    let (agent, there) = node(FakeAgent::new(9));
    let error = there.put(from, &fetch(1_000_000), "m.gguf", None, &|_| {}).await.expect_err("cut");
    let NodeError::Hub(error) = error else { panic!("{error}") };
    assert_eq!(
        error.to_string(),
        "https://hub.example cannot be reached: m.gguf: the connection ended before the file did"
    );
    there.call(Request::Instances).await.expect("answered");
    assert_eq!(agent.opened.load(Ordering::SeqCst), 2, "the stream that ended in the middle is not used again");
}

#[tokio::test(start_paused = true)]
async fn a_limit_is_kept_to() {
    let bytes: Vec<u8> = vec![7; 1_000_000];
    let files =
        crate::inventory::HubFiles { endpoint: String::new(), repository: "lab/m".to_owned(), commit: String::new() };
    for (limit, seconds) in [(100_000, 9..=10), (2_000_000, 0..=1)] {
        let hub = CutHub { bytes: bytes.clone(), cut_after: usize::MAX, opened: Mutex::default() };
        let (agent, there) = node(FakeAgent::new(9));
        let began = Instant::now();
        let from = FileSource::Hub { hub: &hub, files: &files };
        there.put(from, &fetch(1_000_000), "m.gguf", Some(limit), &|_| {}).await.expect("sent");
        assert!(seconds.contains(&began.elapsed().as_secs()), "{limit}: {:?}", began.elapsed());
        assert_eq!(agent.received.lock().expect("free").len(), 1_000_000);
    }
}
