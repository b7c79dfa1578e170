//! A node for tests of what is asked of nodes, and in which order: it answers what the test says. And a hub that only
//! has a name.

use std::collections::VecDeque;
use std::sync::Mutex;

use async_trait::async_trait;
use futures::future::BoxFuture;

use tokio::io::AsyncRead;

use super::{ByteStream, FileSource, Hub, HubError, HubRepository, Node, NodeError, Progress};
use crate::base::Secret;
use crate::inventory::{FetchSpec, Request, Response};

type Answers = dyn Fn(Request) -> BoxFuture<'static, Result<Response, NodeError>> + Send + Sync;

/// A node that keeps what it was asked.
pub(crate) struct SaidNode {
    name: String,
    answers: Box<Answers>,
    /// Every request so far.
    pub(crate) asked: Mutex<Vec<Request>>,
    /// Every file that was sent so far: where it came from, and its name.
    pub(crate) sent: Mutex<Vec<String>>,
    /// How much is there after each further request that reports its progress.
    pub(crate) progress: Mutex<VecDeque<u64>>,
}

impl SaidNode {
    /// A node that answers so.
    pub(crate) fn new(
        name: &str,
        answers: impl Fn(Request) -> BoxFuture<'static, Result<Response, NodeError>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.to_owned(),
            answers: Box::new(answers),
            asked: Mutex::default(),
            sent: Mutex::default(),
            progress: Mutex::default(),
        }
    }
}

#[async_trait]
impl Node for SaidNode {
    fn name(&self) -> &str {
        &self.name
    }
    async fn call(&self, request: Request) -> Result<Response, NodeError> {
        self.asked.lock().expect("free").push(request.clone());
        (self.answers)(request).await
    }
    async fn follow(&self, request: Request, progress: Progress<'_>) -> Result<Response, NodeError> {
        if let Some(there) = self.progress.lock().expect("free").pop_front() {
            progress(there);
        }
        self.call(request).await
    }
    async fn put(
        &self,
        from: FileSource<'_>,
        _: &FetchSpec,
        name: &str,
        limit: Option<u64>,
        _: Progress<'_>,
    ) -> Result<(), NodeError> {
        let from = match from {
            FileSource::Folder(folder) => folder,
            FileSource::Hub { files, .. } => &files.repository,
        };
        let limit = limit.map(|limit| format!(" at {limit}")).unwrap_or_default();
        self.sent.lock().expect("free").push(format!("{from} {name}{limit}"));
        Ok(())
    }
    async fn open_port(&self, _: u16) -> Result<Box<dyn ByteStream>, NodeError> {
        Err(NodeError::Lost { reason: "no port is open".to_owned() })
    }
    async fn host_key(&self) -> Option<String> {
        None
    }
    async fn close(&self) {}
}

/// A hub at an address, with a token; it has nothing.
pub(crate) struct NamedHub(pub(crate) &'static str);

#[async_trait]
impl Hub for NamedHub {
    fn endpoint(&self) -> &str {
        self.0
    }
    fn token(&self) -> Option<Secret<String>> {
        Some(Secret::new("hf_secret".to_owned()))
    }
    async fn repository(&self, repository: &str, _: Option<&str>) -> Result<HubRepository, HubError> {
        Err(HubError::NoRepository { repository: repository.to_owned() })
    }
    async fn read(&self, repository: &str, _: &str, _: &str, _: u64, _: u64) -> Result<Vec<u8>, HubError> {
        Err(HubError::NoRepository { repository: repository.to_owned() })
    }
    async fn open(
        &self,
        repository: &str,
        _: &str,
        _: &str,
        _: u64,
    ) -> Result<Box<dyn AsyncRead + Send + Unpin>, HubError> {
        Err(HubError::NoRepository { repository: repository.to_owned() })
    }
    async fn quantised_by(&self, _: &str, _: &str) -> Result<Vec<String>, HubError> {
        Ok(Vec::new())
    }
}
