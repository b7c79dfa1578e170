//! A node for tests of what is asked of nodes, and in which order: it answers what the test says.

use std::sync::Mutex;

use async_trait::async_trait;
use futures::future::BoxFuture;

use super::{ByteStream, Node, NodeError, Progress};
use crate::inventory::{FetchSpec, Request, Response};

type Answers = dyn Fn(Request) -> BoxFuture<'static, Result<Response, NodeError>> + Send + Sync;

/// A node that keeps what it was asked.
pub(crate) struct SaidNode {
    name: String,
    answers: Box<Answers>,
    /// Every request so far.
    pub(crate) asked: Mutex<Vec<Request>>,
}

impl SaidNode {
    /// A node that answers so.
    pub(crate) fn new(
        name: &str,
        answers: impl Fn(Request) -> BoxFuture<'static, Result<Response, NodeError>> + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.to_owned(), answers: Box::new(answers), asked: Mutex::default() }
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
    async fn put(&self, _: &str, _: &FetchSpec, _: &str, _: Progress<'_>) -> Result<(), NodeError> {
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
