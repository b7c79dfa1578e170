//! Bytes of files.
//!
//! hf-hub reads ranges too, but asks for the file's metadata before each of them, and reads on when a server ignores
//! the range and sends 140 GB.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use hyper::body::Bytes;
use reqwest::header::{CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderMap};
use reqwest::{Response, StatusCode, Url};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Instant;

use super::errors::{About, Failure};
use super::requests::{Patience, Requests};
use crate::ports::HubError;

/// Most bytes that are read and dropped to reach an offset when a server sends the file from its start.
const MAX_SKIP: u64 = 4 << 20;

/// Fewest bytes that an open file must bring while one try of a request for JSON may last (a minute): less is no
/// download. Time in which nobody wants bytes does not count.
const MIN_IN_TIME: u64 = 64 << 10;

/// A file at a commit.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) repository: String,
    pub(super) commit: String,
    pub(super) file: String,
}

impl Target {
    fn about(&self) -> About<'_> {
        About { repository: &self.repository, revision: Some(&self.commit), file: Some(&self.file) }
    }
}

/// An answer with bytes from where they were wanted.
struct Answer {
    response: Response,
    /// Bytes still to be dropped first.
    skip: u64,
    /// Bytes that it has from there on, where it says so.
    has: Option<u64>,
    /// The file's size, where it says so.
    size: Option<u64>,
}

impl Requests {
    fn file_url(&self, target: &Target) -> Url {
        let parts = target.repository.split('/').chain(["resolve", &target.commit]).chain(target.file.split('/'));
        self.url(parts)
    }

    /// Bytes `[offset, offset + length)` of a file, fewer only at its end. No more than those, and what is in flight
    /// when the connection is closed, come over the network.
    pub(super) async fn read(&self, target: &Target, offset: u64, length: u64) -> Result<Vec<u8>, HubError> {
        let url = self.file_url(target);
        let length = length.min(u64::MAX - offset);
        let longer = Duration::from_secs(length / (128 << 10));
        let limit = self.limits.request.saturating_add(longer);
        let mut bytes = Vec::new();
        let mut patience = self.patience_for(longer);
        while (bytes.len() as u64) < length {
            let before = bytes.len();
            let part = async {
                let _turn = self.turn().await?;
                self.part(&url, target, offset, length, &mut bytes).await
            };
            let outcome = self.within(limit, part).await;
            if bytes.len() > before {
                patience.gained();
            }
            match outcome {
                Ok(true) => break,
                Ok(false) if bytes.len() > before => {}
                Ok(false) => return Err(self.interpreter.nonsense("it answers a range with no byte of it")),
                Err(failure) => patience.again(failure).await?,
            }
        }
        Ok(bytes)
    }

    /// Appends what one answer has of the missing bytes, and says whether the file ends there.
    async fn part(
        &self,
        url: &Url,
        target: &Target,
        offset: u64,
        length: u64,
        bytes: &mut Vec<u8>,
    ) -> Result<bool, Failure> {
        let from = offset + bytes.len() as u64;
        let wanted = offset.saturating_add(length) - from;
        let Some(mut answer) = self.answer(url, target, from, Some(wanted)).await? else { return Ok(true) };
        let wanted = answer.has.map_or(wanted, |has| has.min(wanted));
        let mut got = 0;
        while got < wanted {
            let Some(chunk) = self.chunk(&mut answer).await? else {
                if answer.has.is_some() {
                    return Err(self.cut_off());
                }
                return Ok(true);
            };
            let most = usize::try_from(wanted - got).unwrap_or(usize::MAX);
            let chunk = &chunk[..chunk.len().min(most)];
            bytes.extend_from_slice(chunk);
            got += chunk.len() as u64;
        }
        Ok(answer.size.is_some_and(|size| from + got >= size))
    }

    /// Asks for a file's bytes from `from` on; `None` where it has none there.
    async fn answer(
        &self,
        url: &Url,
        target: &Target,
        from: u64,
        wanted: Option<u64>,
    ) -> Result<Option<Answer>, Failure> {
        let range = match wanted {
            Some(wanted) => Some(format!("bytes={from}-{}", from.saturating_add(wanted) - 1)),
            None if from > 0 => Some(format!("bytes={from}-")),
            None => None,
        };
        let response = self.get(url, range.as_deref(), target.about()).await?;
        let nonsense = |reason: String| Failure::Final(self.interpreter.nonsense(reason));
        let headers = response.headers();
        let stated = ContentRange::of(headers);
        if response.status() == StatusCode::RANGE_NOT_SATISFIABLE {
            return match stated {
                Some(ContentRange { size: Some(size), .. }) if from >= size => Ok(None),
                _ => Err(nonsense(format!("it has no bytes from {from} on of {} (416)", target.file))),
            };
        }
        if response.status() == StatusCode::PARTIAL_CONTENT {
            let Some(ContentRange { bytes: Some((first, last)), size }) = stated else {
                return Err(nonsense("it answers a range without saying which".to_owned()));
            };
            let has = last.checked_sub(first).and_then(|span| span.checked_add(1));
            let fits = has.is_some_and(|has| {
                first == from
                    && length(headers).is_none_or(|length| length == has)
                    && size.is_none_or(|size| last < size)
            });
            if !fits {
                let sent = length(headers).map_or(String::new(), |length| format!(" in {length} bytes"));
                return Err(nonsense(format!("asked for bytes from {from} on, it answers {first}-{last}{sent}")));
            }
            return Ok(Some(Answer { response, skip: 0, has, size }));
        }
        // The whole file, whatever was asked for.
        let html = headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/html"));
        if html && !target.file.ends_with(".html") && !target.file.ends_with(".htm") {
            return Err(nonsense(format!("{} was asked for and a web page came", target.file)));
        }
        let size = length(headers);
        if size.is_some_and(|size| from >= size) {
            return Ok(None);
        }
        if from > MAX_SKIP {
            let reason =
                format!("it ignores ranges, and would send {from} bytes of {} that are not wanted", target.file);
            return Err(nonsense(reason));
        }
        Ok(Some(Answer { response, skip: from, has: size.map(|size| size - from), size }))
    }

    /// The next wanted bytes of an answer.
    async fn chunk(&self, answer: &mut Answer) -> Result<Option<Bytes>, Failure> {
        loop {
            let chunk = answer.response.chunk().await.map_err(|error| self.interpreter.transport(error))?;
            let Some(mut chunk) = chunk else { return Ok(None) };
            let dropped = usize::try_from(answer.skip).unwrap_or(usize::MAX).min(chunk.len());
            answer.skip -= dropped as u64;
            let chunk = chunk.split_off(dropped);
            if !chunk.is_empty() {
                return Ok(Some(chunk));
            }
        }
    }

    fn cut_off(&self) -> Failure {
        Failure::Again {
            error: self.interpreter.unreachable("the connection ended in the middle of a file"),
            after: None,
        }
    }

    /// A file from `offset` to its end. What can be refused is refused here; what breaks later is asked for again from
    /// where it broke.
    pub(super) async fn open(self: Arc<Self>, target: Target, offset: u64) -> Result<OpenFile, HubError> {
        let mut source = Source {
            url: self.file_url(&target),
            patience: self.patience(),
            requests: self,
            target,
            at: offset,
            size: None,
            answer: None,
            waited: (Duration::ZERO, 0),
            over: false,
        };
        source.connect().await?;
        let stream = futures::stream::unfold(source, |mut source| async move {
            match source.next().await {
                Ok(chunk) => chunk.map(|chunk| (Ok(chunk), source)),
                Err(error) => {
                    source.over = true;
                    Some((Err(io::Error::other(error)), source))
                }
            }
        });
        Ok(OpenFile { stream: Box::pin(stream), chunk: Bytes::new() })
    }
}

fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// `bytes FIRST-LAST/SIZE`, `bytes */SIZE`, `bytes FIRST-LAST/*`.
#[derive(Debug, PartialEq, Eq)]
struct ContentRange {
    bytes: Option<(u64, u64)>,
    size: Option<u64>,
}

impl ContentRange {
    fn of(headers: &HeaderMap) -> Option<Self> {
        Self::parse(headers.get(CONTENT_RANGE)?.to_str().ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let (range, size) = text.trim().strip_prefix("bytes")?.trim_start().split_once('/')?;
        let bytes = match range.trim() {
            "*" => None,
            range => {
                let (first, last) = range.split_once('-')?;
                Some((first.parse().ok()?, last.parse().ok()?))
            }
        };
        let size = match size.trim() {
            "*" => None,
            size => Some(size.parse().ok()?),
        };
        Some(Self { bytes, size })
    }
}

/// Where the bytes of an open file come from.
struct Source {
    requests: Arc<Requests>,
    url: Url,
    target: Target,
    /// Bytes before this one have been handed out.
    at: u64,
    size: Option<u64>,
    answer: Option<Answer>,
    patience: Patience,
    /// Time spent waiting for bytes, and the bytes that came in it, since they were last compared.
    waited: (Duration, u64),
    over: bool,
}

impl Source {
    /// Opens a connection where the last one ended.
    async fn connect(&mut self) -> Result<(), HubError> {
        loop {
            let asked = async {
                let _turn = self.requests.turn().await?;
                self.requests.answer(&self.url, &self.target, self.at, None).await
            };
            match self.requests.within(self.requests.limits.request, asked).await {
                Ok(Some(answer)) => {
                    if let (Some(before), Some(now)) = (self.size, answer.size)
                        && before != now
                    {
                        let reason = format!("{} had {before} bytes, and now has {now}", self.target.file);
                        return Err(self.requests.interpreter.nonsense(reason));
                    }
                    self.size = self.size.or(answer.size);
                    self.answer = Some(answer);
                    return Ok(());
                }
                Ok(None) => {
                    self.over = true;
                    return Ok(());
                }
                Err(failure) => self.patience.again(failure).await?,
            }
        }
    }

    /// The next bytes; `None` at the end of the file.
    async fn next(&mut self) -> Result<Option<Bytes>, HubError> {
        loop {
            if self.over {
                return Ok(None);
            }
            let Some(answer) = &mut self.answer else {
                self.connect().await?;
                continue;
            };
            let begin = Instant::now();
            let chunk = self.requests.chunk(answer).await;
            self.waited.0 += begin.elapsed();
            let failure = match chunk {
                Ok(Some(chunk)) => {
                    self.at += chunk.len() as u64;
                    self.waited.1 += chunk.len() as u64;
                    self.in_time()?;
                    self.patience.gained_time();
                    return Ok(Some(chunk));
                }
                // Without a stated size the end of the answer is the end of the file.
                Ok(None) if self.size.is_none_or(|size| self.at >= size) => {
                    self.over = true;
                    return Ok(None);
                }
                Ok(None) => self.requests.cut_off(),
                Err(failure) => failure,
            };
            self.answer = None;
            self.patience.again(failure).await?;
        }
    }
}

impl Source {
    /// Refuses to wait for ever for a server that trickles.
    fn in_time(&mut self) -> Result<(), HubError> {
        let (time, bytes) = self.waited;
        if time < self.requests.limits.request {
            return Ok(());
        }
        self.waited = (Duration::ZERO, 0);
        if bytes >= MIN_IN_TIME {
            return Ok(());
        }
        let reason = format!("only {bytes} bytes of {} came in {} s", self.target.file, time.as_secs());
        Err(self.requests.interpreter.unreachable(reason))
    }
}

/// The bytes of a file as they come. An error holds the [`HubError`].
pub(super) struct OpenFile {
    stream: Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>,
    chunk: Bytes,
}

impl AsyncRead for OpenFile {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.chunk.is_empty() {
            match self.stream.as_mut().poll_next(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(Ok(())),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error)),
                Poll::Ready(Some(Ok(chunk))) => self.chunk = chunk,
            }
        }
        let most = buffer.remaining().min(self.chunk.len());
        buffer.put_slice(&self.chunk.split_to(most));
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges() {
        let range = |bytes, size| Some(ContentRange { bytes, size });
        assert_eq!(ContentRange::parse("bytes 0-9/100"), range(Some((0, 9)), Some(100)));
        assert_eq!(ContentRange::parse("bytes 5-9/*"), range(Some((5, 9)), None));
        assert_eq!(ContentRange::parse("bytes */100"), range(None, Some(100)));
        for bad in ["", "bytes", "bytes 0-9", "items 0-9/100", "bytes 9/100", "bytes a-b/c", "bytes -1-2/3"] {
            assert_eq!(ContentRange::parse(bad), None, "{bad}");
        }
    }
}
