//! Open agent streams of one node: one request at a time on each, at most four at once, idle ones used again.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{Mutex, Semaphore, SemaphorePermit};

use crate::inventory::{FrameError, KIND_JSON, Response, frame_header, shown_message};
use crate::ports::{ByteStream, NodeError, Transport};

/// Most agent streams of one node at once.
const STREAMS: usize = 4;

/// A stream with the right to use it.
pub(super) struct Lease<'a> {
    pub(super) stream: Box<dyn ByteStream>,
    /// Whether it had been idle: then it may have died unnoticed.
    pub(super) reused: bool,
    _permit: SemaphorePermit<'a>,
}

/// The streams of one node.
pub(super) struct Pool {
    transport: Arc<dyn Transport>,
    idle: Mutex<Vec<Box<dyn ByteStream>>>,
    room: Semaphore,
    /// One more, for what must not wait behind long copies and stops: the lease.
    urgent: Semaphore,
}

impl Pool {
    pub(super) fn new(transport: Arc<dyn Transport>) -> Self {
        Self { transport, idle: Mutex::new(Vec::new()), room: Semaphore::new(STREAMS), urgent: Semaphore::new(1) }
    }

    pub(super) fn transport(&self) -> &dyn Transport {
        &*self.transport
    }

    /// An idle stream that still lives, or a new one. Waits while four are busy, unless it is urgent.
    pub(super) async fn take(&self, urgent: bool) -> Result<Lease<'_>, NodeError> {
        let room = if urgent { &self.urgent } else { &self.room };
        let permit = room.acquire().await.map_err(|_| NodeError::Lost { reason: "closed".to_owned() })?;
        let mut idle = self.idle.lock().await;
        while let Some(mut stream) = idle.pop() {
            if is_quiet(&mut stream).await {
                return Ok(Lease { stream, reused: true, _permit: permit });
            }
        }
        drop(idle);
        let stream = self.transport.open_agent().await?;
        Ok(Lease { stream, reused: false, _permit: permit })
    }

    /// Gives a stream back that is between two requests. A stream in any other state is dropped instead.
    pub(super) async fn give_back(&self, lease: Lease<'_>) {
        self.idle.lock().await.push(lease.stream);
    }

    /// Ends all idle streams.
    pub(super) async fn clear(&self) {
        let streams = std::mem::take(&mut *self.idle.lock().await);
        for mut stream in streams {
            let _ = tokio::time::timeout(Duration::from_secs(1), stream.shutdown()).await;
        }
    }
}

/// Whether nothing has arrived on an idle stream: neither its end nor bytes that nobody asked for.
async fn is_quiet(stream: &mut Box<dyn ByteStream>) -> bool {
    let mut byte = [0_u8; 1];
    tokio::time::timeout(Duration::ZERO, stream.read(&mut byte)).await.is_err()
}

/// Reads one answer.
pub(super) async fn read_response(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> Result<Response, NodeError> {
    let mut header = [0_u8; 5];
    stream.read_exact(&mut header).await.map_err(|error| lost(&error))?;
    let (kind, length) = frame_header(header).map_err(|error| nonsense(&error))?;
    if kind != KIND_JSON {
        return Err(nonsense(&FrameError::Kind(kind)));
    }
    // Read as it comes: a header alone must not reserve memory.
    let mut payload = Vec::new();
    stream.take(length as u64).read_to_end(&mut payload).await.map_err(|error| lost(&error))?;
    if payload.len() < length {
        return Err(NodeError::Lost { reason: format!("{} of {length} bytes of an answer came", payload.len()) });
    }
    shown_message(&payload).map_err(|error| nonsense(&error))
}

/// The stream ended or failed.
pub(super) fn lost(error: &dyn std::fmt::Display) -> NodeError {
    NodeError::Lost { reason: error.to_string() }
}

fn nonsense(error: &FrameError) -> NodeError {
    NodeError::Lost { reason: format!("its answer makes no sense: {error}") }
}
