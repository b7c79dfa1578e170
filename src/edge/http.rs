//! A small HTTP/1.1 client over any byte stream: one request, one answer, bounded in time and size.
//!
//! Redirects, cookies, compression and connection reuse are left out: the other end is an engine of ours behind
//! the node's own loopback.

use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;

use crate::base::Secret;
use crate::ports::ByteStream;

/// A request.
#[derive(Debug, Clone)]
pub struct HttpRequest<'a> {
    /// Value of the `host` header.
    pub host: &'a str,
    /// Absolute path.
    pub path: &'a str,
    /// Bearer key.
    pub key: Option<&'a Secret<String>>,
    /// JSON to post; `None` for a GET.
    pub json: Option<Vec<u8>>,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HttpError {
    /// The request cannot be written down.
    #[error("the request is malformed: {0}")]
    Request(String),
    /// The connection failed or what came is no HTTP.
    #[error("the connection failed: {0}")]
    Connection(String),
    /// A step took longer than its deadline.
    #[error("{step} took longer than {seconds} s")]
    Deadline {
        /// Which step.
        step: &'static str,
        /// The deadline.
        seconds: u64,
    },
    /// The body is longer than was allowed.
    #[error("the answer is longer than {0} bytes")]
    TooLong(usize),
}

/// A request under way: its status is known, its body comes piece by piece.
pub(super) struct Exchange {
    response: Response<Incoming>,
    driver: tokio::task::JoinHandle<()>,
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Exchange {
    /// Sends the request and waits for the answer's head.
    pub(super) async fn begin(stream: Box<dyn ByteStream>, request: HttpRequest<'_>) -> Result<Self, HttpError> {
        let method = if request.json.is_some() { Method::POST } else { Method::GET };
        let mut builder = Request::builder()
            .method(method)
            .uri(request.path)
            .header("host", request.host)
            .header("user-agent", concat!("flock/", env!("CARGO_PKG_VERSION")))
            .header("accept", "application/json, text/event-stream")
            .header("connection", "close");
        if let Some(key) = request.key {
            builder = builder.header("authorization", format!("Bearer {}", key.reveal()));
        }
        if request.json.is_some() {
            builder = builder.header("content-type", "application/json");
        }
        let body = Full::new(Bytes::from(request.json.unwrap_or_default()));
        // The builder's own errors do not quote values, so the key cannot leak through them.
        let request = builder.body(body).map_err(|error| HttpError::Request(error.to_string()))?;

        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
        let driver = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "an HTTP connection ended");
            }
        });
        // Aborts the driver on every way out, an abandoned wait included.
        let guard = AbortOnDrop(Some(driver));
        let response = sender.send_request(request).await.map_err(failed)?;
        Ok(Self { response, driver: guard.keep() })
    }

    pub(super) fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    /// Whether the body is a stream of events.
    pub(super) fn is_events(&self) -> bool {
        let kind = self.response.headers().get("content-type").and_then(|value| value.to_str().ok());
        kind.is_some_and(|kind| kind.trim_start().to_ascii_lowercase().starts_with("text/event-stream"))
    }

    /// The next piece of the body; `None` at its end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, HttpError> {
        while let Some(frame) = self.response.body_mut().frame().await {
            if let Ok(data) = frame.map_err(failed)?.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }
}

struct AbortOnDrop(Option<tokio::task::JoinHandle<()>>);

impl AbortOnDrop {
    fn keep(mut self) -> tokio::task::JoinHandle<()> {
        self.0.take().expect("it is taken once, by value")
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        if let Some(driver) = &self.0 {
            driver.abort();
        }
    }
}

/// Runs a step under a deadline.
pub(super) async fn deadline<T>(
    step: &'static str,
    limit: Duration,
    work: impl Future<Output = Result<T, HttpError>>,
) -> Result<T, HttpError> {
    match tokio::time::timeout(limit, work).await {
        Ok(result) => result,
        Err(_) => Err(HttpError::Deadline { step, seconds: limit.as_secs().max(1) }),
    }
}

/// The library's error with what it says lies beneath.
fn failed(error: hyper::Error) -> HttpError {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    HttpError::Connection(text)
}

#[cfg(test)]
pub(super) mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

    use super::*;

    /// A server that reads one request, answers with raw bytes and reports what it read.
    pub(in crate::edge) fn serve(answer: Vec<u8>, hold: bool) -> (DuplexStream, tokio::task::JoinHandle<String>) {
        let (near, mut far) = tokio::io::duplex(64 << 10);
        let task = tokio::spawn(async move {
            let mut read = Vec::new();
            let mut buffer = [0_u8; 4096];
            loop {
                let text = String::from_utf8_lossy(&read).into_owned();
                if let Some((head, body)) = text.split_once("\r\n\r\n") {
                    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                    if body.len() >= length.map_or(0, |length| length.parse().expect("a number")) {
                        break;
                    }
                }
                let count = far.read(&mut buffer).await.expect("read");
                read.extend_from_slice(&buffer[..count]);
            }
            let _ = far.write_all(&answer).await;
            if hold {
                tokio::time::sleep(Duration::from_secs(60)).await;
            }
            String::from_utf8(read).expect("UTF-8")
        });
        (near, task)
    }

    /// Sends a request and reads its whole answer.
    async fn fetch(
        stream: Box<dyn ByteStream>,
        request: HttpRequest<'_>,
        limit: Duration,
        max_body: usize,
    ) -> Result<(u16, Vec<u8>), HttpError> {
        deadline("the request", limit, async {
            let mut exchange = Exchange::begin(stream, request).await?;
            let mut body = Vec::new();
            while let Some(piece) = exchange.next().await? {
                if body.len() + piece.len() > max_body {
                    return Err(HttpError::TooLong(max_body));
                }
                body.extend_from_slice(&piece);
            }
            Ok((exchange.status(), body))
        })
        .await
    }

    fn request(key: Option<&Secret<String>>) -> HttpRequest<'_> {
        HttpRequest { host: "localhost", path: "/v1/models", key, json: None }
    }

    #[tokio::test]
    async fn a_request_carries_its_key_and_the_answer_is_read() {
        let answer =
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\n{\"a\r\n3\r\n\":1\r\n1\r\n}\r\n0\r\n\r\n";
        let (stream, server) = serve(answer.to_vec(), false);
        let key = Secret::new("k3y".to_owned());
        let got = fetch(Box::new(stream), request(Some(&key)), Duration::from_secs(5), 100).await.expect("answered");
        assert_eq!((got.0, got.1.as_slice()), (200, &b"{\"a\":1}"[..]));
        let asked = server.await.expect("served");
        assert!(
            asked.starts_with("GET /v1/models HTTP/1.1\r\n") && asked.contains("authorization: Bearer k3y"),
            "{asked}"
        );
    }

    #[tokio::test]
    async fn time_and_size_are_bounded() {
        let (stream, _server) = serve(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n".to_vec(), true);
        let slow = fetch(Box::new(stream), request(None), Duration::from_millis(50), 100).await;
        assert!(matches!(slow, Err(HttpError::Deadline { .. })), "{slow:?}");
        let (stream, _server) = serve(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n12345".to_vec(), true);
        let long = fetch(Box::new(stream), request(None), Duration::from_secs(5), 4).await;
        assert_eq!(long, Err(HttpError::TooLong(4)));
        let (stream, _server) = serve(b"SSH-2.0-OpenSSH\r\n".to_vec(), false);
        let odd = fetch(Box::new(stream), request(None), Duration::from_secs(5), 4).await;
        assert!(matches!(odd, Err(HttpError::Connection(_))), "{odd:?}");
    }

    #[tokio::test]
    async fn a_key_that_is_no_header_does_not_leak() {
        let key = Secret::new("bad\nkey".to_owned());
        let (stream, _server) = serve(Vec::new(), false);
        let error = fetch(Box::new(stream), request(Some(&key)), Duration::from_secs(5), 4).await.expect_err("bad");
        assert!(matches!(&error, HttpError::Request(text) if !text.contains("key")), "{error}");
    }
}
