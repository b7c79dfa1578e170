//! What every way to a node shares: deadlines and the hello line.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::inventory::HELLO;
use crate::ports::{ByteStream, NodeError};

/// Most bytes of login banner before the agent's hello line.
pub(super) const BANNER_LIMIT: usize = 64 << 10;

/// Runs a step under a deadline.
pub(super) async fn within<T>(
    step: &str,
    limit: Duration,
    work: impl Future<Output = Result<T, NodeError>>,
) -> Result<T, NodeError> {
    match tokio::time::timeout(limit, work).await {
        Ok(result) => result,
        Err(_) => Err(NodeError::Deadline { step: step.to_owned(), seconds: limit.as_secs().max(1) }),
    }
}

/// Collects what an agent says until its hello line.
#[derive(Debug, Default)]
pub(super) struct Hello {
    buffer: Vec<u8>,
}

impl Hello {
    /// Takes more bytes. `Some(rest)` once the hello line is complete: the bytes that followed it.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<Option<Vec<u8>>, NodeError> {
        let scanned = self.buffer.len();
        self.buffer.extend_from_slice(bytes);
        let mut start = self.buffer[..scanned].iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        while let Some(length) = self.buffer[start..].iter().position(|&byte| byte == b'\n') {
            let line = self.buffer[start..start + length].trim_ascii_end();
            if line == HELLO.as_bytes() {
                return Ok(Some(self.buffer.split_off(start + length + 1)));
            }
            if let Some(version) = line.strip_prefix(b"flock-agent protocol ") {
                let version = super::agents::one_line(&String::from_utf8_lossy(version));
                return Err(NodeError::Agent {
                    reason: format!("it speaks protocol {version}, this flock speaks `{HELLO}`"),
                    hint: Some("use the agent that came with this flock".to_owned()),
                });
            }
            start += length + 1;
        }
        if self.buffer.len() > BANNER_LIMIT {
            let reason = format!("more than {BANNER_LIMIT} bytes came before the agent's first line");
            let hint = "make the login shell's start files print nothing when they run without a terminal";
            return Err(NodeError::Agent { reason, hint: Some(hint.to_owned()) });
        }
        Ok(None)
    }
}

/// A stream whose first bytes have already been read.
pub(super) struct Prefixed<S> {
    prefix: Vec<u8>,
    taken: usize,
    inner: S,
}

impl<S: ByteStream> Prefixed<S> {
    /// `prefix` comes before what `inner` still holds.
    pub(super) fn new(prefix: Vec<u8>, inner: S) -> Self {
        Self { prefix, taken: 0, inner }
    }
}

impl<S: ByteStream> AsyncRead for Prefixed<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let rest = &self.prefix[self.taken..];
        if rest.is_empty() {
            return Pin::new(&mut self.inner).poll_read(cx, buf);
        }
        let count = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..count]);
        self.taken += count;
        Poll::Ready(Ok(()))
    }
}

impl<S: ByteStream> AsyncWrite for Prefixed<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hello_line_is_found_behind_a_banner_in_any_pieces() {
        let text = format!("Welcome!\r\n  {HELLO} not this\n{HELLO}\nJ\0\0rest");
        for size in [1, 2, 7, 1000] {
            let mut hello = Hello::default();
            let mut found = None;
            for piece in text.as_bytes().chunks(size) {
                match (&mut found, hello.push(piece)) {
                    (Some(rest), _) => Vec::extend_from_slice(rest, piece),
                    (None, answer) => found = answer.expect("within the limit"),
                }
            }
            assert_eq!(found.as_deref(), Some(&b"J\0\0rest"[..]), "pieces of {size}");
        }
    }

    #[test]
    fn another_protocol_and_an_endless_banner_are_errors() {
        assert!(Hello::default().push(b"flock-agent protocol 9\n").is_err());
        let mut hello = Hello::default();
        assert!((0..20).any(|_| hello.push(&[b'x'; 8192]).is_err()));
    }

    #[tokio::test]
    async fn a_step_that_takes_too_long_is_named() {
        let never = std::future::pending::<Result<(), NodeError>>();
        let error = within("waiting", Duration::from_millis(5), never).await.expect_err("too long");
        assert_eq!(error.to_string(), "waiting took longer than 1 s");
    }

    #[tokio::test]
    async fn a_prefix_is_read_first() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let (mut far, near) = tokio::io::duplex(64);
        far.write_all(b"world").await.expect("written");
        drop(far);
        let mut text = String::new();
        Prefixed::new(b"hello ".to_vec(), near).read_to_string(&mut text).await.expect("read");
        assert_eq!(text, "hello world");
    }
}
