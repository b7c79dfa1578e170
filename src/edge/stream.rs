//! What every way to a node shares: deadlines, and lines out of a stream that starts with a banner.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::inventory::{HELLO, PROTOCOL};
use crate::ports::{ByteStream, NodeError};

/// Most bytes of login banner before the agent's hello line. They are passed over, not kept.
pub(super) const BANNER_LIMIT: usize = 256 << 20;
/// Longest line that is kept whole; of a longer one nothing is.
const LINE_LIMIT: usize = 8 << 10;

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

/// Lines out of pieces, in bounded memory.
#[derive(Debug, Default)]
pub(super) struct Lines {
    partial: Vec<u8>,
    overlong: bool,
}

impl Lines {
    /// The next line, without its end, taken from the front of `bytes`; `None` where they hold no end of line. A
    /// line of more than 8 KiB comes out empty.
    pub(super) fn next(&mut self, bytes: &mut &[u8]) -> Option<Vec<u8>> {
        let end = bytes.iter().position(|&byte| byte == b'\n');
        let (piece, rest) = match end {
            Some(end) => (&bytes[..end], &bytes[end + 1..]),
            None => (*bytes, &[][..]),
        };
        *bytes = rest;
        self.overlong |= self.partial.len() + piece.len() > LINE_LIMIT;
        if self.overlong {
            self.partial.clear();
        } else {
            self.partial.extend_from_slice(piece);
        }
        end?;
        self.overlong = false;
        let mut line = std::mem::take(&mut self.partial);
        line.truncate(line.trim_ascii_end().len());
        Some(line)
    }
}

/// Passes over what comes before an agent's hello line.
#[derive(Debug, Default)]
pub struct Hello {
    lines: Lines,
    seen: usize,
}

impl Hello {
    /// Takes more bytes. `Some(rest)` once the hello line is complete: the bytes that followed it.
    pub fn push(&mut self, mut bytes: &[u8]) -> Result<Option<Vec<u8>>, NodeError> {
        self.seen = self.seen.saturating_add(bytes.len());
        while let Some(line) = self.lines.next(&mut bytes) {
            if line == HELLO.as_bytes() {
                return Ok(Some(bytes.to_vec()));
            }
            if let Some(version) = line.strip_prefix(b"flock-agent protocol ") {
                return Err(other_protocol(&super::agents::last_words(&String::from_utf8_lossy(version))));
            }
        }
        if self.seen > BANNER_LIMIT {
            let reason = format!("more than {BANNER_LIMIT} bytes came before the agent's first line");
            let hint = "make the login shell's start files print nothing when they run without a terminal";
            return Err(NodeError::Agent { reason, hint: Some(hint.to_owned()) });
        }
        Ok(None)
    }
}

/// The agent speaks another protocol: which side is older, and what to do.
fn other_protocol(version: &str) -> NodeError {
    let older = version.trim().parse::<u32>().is_ok_and(|version| version < PROTOCOL);
    let (side, hint) = if older {
        ("the agent is the older one", "use the agent that came with this flock")
    } else {
        ("this flock is the older one", "use a flock of the agent's version, or the agent that came with this flock")
    };
    let reason = format!("it speaks protocol {version}, this flock speaks {PROTOCOL}: {side}");
    NodeError::Agent { reason, hint: Some(hint.to_owned()) }
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
        let said = |line: &[u8]| Hello::default().push(line).expect_err("another protocol").to_string();
        assert!(said(b"flock-agent protocol 9\n").contains("this flock is the older one"));
        assert!(said(b"flock-agent protocol 0\n").contains("the agent is the older one"));
        let mut hello = Hello::default();
        let piece = vec![b'x'; 1 << 20];
        assert!((0..=BANNER_LIMIT >> 20).any(|_| hello.push(&piece).is_err()));
        assert!(hello.lines.partial.len() <= LINE_LIMIT, "it is not kept");
    }

    #[test]
    fn twenty_megabytes_of_banner_are_passed_over() {
        let mut hello = Hello::default();
        for _ in 0..20 << 10 {
            let line = [b"motd ".repeat(204).as_slice(), b"\n"].concat();
            assert!(hello.push(&line).expect("a banner").is_none());
        }
        hello.push(&b"z".repeat(1 << 20)).expect("a long line");
        let rest = hello.push(format!("\n{HELLO}\r\nrest").as_bytes()).expect("found");
        assert_eq!(rest.as_deref(), Some(&b"rest"[..]));
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
