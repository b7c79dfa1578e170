//! The end that lacks the files.

use std::io;
use std::net::TcpStream;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use super::message::{GREETING, Given, Wanted};
use crate::agent::download::Bucket;
use crate::agent::download::record;
use crate::agent::error::AgentError;
use crate::agent::listener;
use crate::agent::sealed::{End, Sealed, key};
use crate::agent::store::{self, Arriving};
use crate::base::Secret;
use crate::inventory::{FetchFile, FetchSpec, Refusal, Response};

/// How long the greeting may take.
const GREETING_LIMIT: Duration = Duration::from_secs(5);
/// How long nothing may come.
const SILENCE: Duration = Duration::from_secs(30);
/// Time between two words about how far it is.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// Contents that are received ahead of the disk.
const AHEAD: usize = 16;
/// How long another transfer of the same file may stand still.
const BUSY_LIMIT: Duration = Duration::from_secs(90);
/// Between two looks at such a file.
const BUSY_PAUSE: Duration = Duration::from_millis(500);

/// Where the files are.
pub struct Taking<'a> {
    /// Where the other agent may be, tried in order.
    pub addresses: &'a [String],
    /// Its port.
    pub port: u16,
    /// The key that it was given.
    pub key: &'a Secret<String>,
    /// Most bytes per second.
    pub limit_bytes_per_s: Option<u64>,
}

/// Told how many bytes of the set are there; an error of its own ends the transfer.
pub type Tell<'a> = &'a mut dyn FnMut(u64) -> Result<(), AgentError>;

/// Takes the files that are missing. What arrived before a cut is kept.
pub fn take(fetch: &FetchSpec, from: &Taking<'_>, tell: Tell<'_>) -> Result<Response, AgentError> {
    let folder = store::check(fetch)?;
    let key = key(from.key)?;
    let absent = store::absent(fetch, &folder);
    if absent.is_empty() {
        return Ok(store::fetched(fetch, &folder));
    }
    store::check_disk(fetch, &folder)?;
    let mut news = News { there: there(fetch, &folder, &absent), told: None, tell };
    news.tell(0)?;
    let mut met: Option<Sealed> = None;
    for at in absent {
        let file = &fetch.files[at];
        if let Some(arriving) = claim(&folder, file, &mut news)? {
            let sealed = match &mut met {
                Some(sealed) => sealed,
                // Not before something is needed: another process may be bringing all of it.
                none => {
                    let found = listener::meet(from.addresses, from.port, |stream| greet(stream, &key));
                    none.insert(found.map_err(|text| Refusal::Unreached { text })?)
                }
            };
            take_file(sealed, arriving, file, from, &mut news)?;
        }
        news.there = news.there.saturating_add(file.size_bytes);
    }
    // It need not wait for us to go.
    if let Some(mut sealed) = met {
        let _ = sealed.send(&[]);
    }
    Ok(store::fetched(fetch, &folder))
}

/// Bytes of the files that are not taken now.
fn there(fetch: &FetchSpec, folder: &Path, absent: &[usize]) -> u64 {
    let Response::Fetched { have_bytes, .. } = store::fetched(fetch, folder) else { return 0 };
    let whole = have_bytes.iter().enumerate().filter(|(at, _)| !absent.contains(at));
    whole.map(|(_, bytes)| *bytes).fold(0, u64::saturating_add)
}

/// Tells how far it is, not too often.
struct News<'a> {
    /// Bytes of files that are whole.
    there: u64,
    told: Option<Instant>,
    tell: Tell<'a>,
}

impl News<'_> {
    fn tell(&mut self, of_this_file: u64) -> Result<(), AgentError> {
        if self.told.is_some_and(|told| told.elapsed() < TELL_EVERY) {
            return Ok(());
        }
        self.told = Some(Instant::now());
        (self.tell)(self.there.saturating_add(of_this_file))
    }
}

fn greet(stream: TcpStream, key: &Secret<[u8; 32]>) -> io::Result<Sealed> {
    let mut sealed = Sealed::new(stream, key, End::Client, Instant::now() + GREETING_LIMIT)?;
    sealed.send(GREETING)?;
    if sealed.receive()?.as_deref() != Some(GREETING) {
        return Err(io::Error::other("somebody else answered"));
    }
    Ok(sealed)
}

fn take_file(
    sealed: &mut Sealed,
    mut arriving: Arriving<'_>,
    file: &FetchFile,
    from: &Taking<'_>,
    news: &mut News<'_>,
) -> Result<(), AgentError> {
    let lost = |error: io::Error| -> AgentError {
        let text = match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => format!("nothing came for {} s", SILENCE.as_secs()),
            io::ErrorKind::UnexpectedEof => "it closed the connection".to_owned(),
            _ => error.to_string(),
        };
        Refusal::Unreached { text: format!("it was lost while it sent {}: {text}", file.name) }.into()
    };
    let offset = arriving.position();
    if offset < file.size_bytes {
        request(sealed, file, offset).map_err(lost)??;
        let result = thread::scope(|scope| {
            let (ahead, arrived) = sync_channel(AHEAD);
            let reader = scope.spawn(move || receive(sealed, file.size_bytes - offset, &ahead));
            let written = write(&mut arriving, &arrived, from.limit_bytes_per_s, news);
            // A reader that nobody listens to ends with its next content.
            drop(arrived);
            let read = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            written.and(read.map_err(lost))
        });
        if let Err(error) = result {
            arriving.sync()?;
            return Err(error);
        }
    }
    news.tell(arriving.position())?;
    arriving.accept()
}

/// Gets hold of the partial. Another process may be bringing the file into a folder that several nodes share: it is
/// waited for as long as it gets on. `None` where the file is whole by then.
fn claim<'a>(folder: &'a Path, file: &'a FetchFile, news: &mut News<'_>) -> Result<Option<Arriving<'a>>, AgentError> {
    let (mut moved, mut last) = (Instant::now(), None);
    loop {
        let mut read = |bytes| drop(news.tell(bytes));
        match Arriving::resume(folder, file, None, &mut read) {
            Err(AgentError::Refused(Refusal::Busy { .. })) if moved.elapsed() < BUSY_LIMIT => {}
            Err(error) => return Err(error),
            Ok(arriving) => return Ok(Some(arriving)),
        }
        thread::sleep(BUSY_PAUSE);
        if store::has(folder, file) {
            return Ok(None);
        }
        let part = store::part(folder, &file.name);
        let pulse = record::pulse(&part);
        if last != Some(pulse) {
            (moved, last) = (Instant::now(), Some(pulse));
        }
        news.tell(record::prefix(&part, pulse.0).min(file.size_bytes))?;
    }
}

/// Asks for a file from an offset on. The inner error is the other end's word.
fn request(sealed: &mut Sealed, file: &FetchFile, offset: u64) -> io::Result<Result<(), AgentError>> {
    sealed.extend_to(Instant::now() + SILENCE);
    let wanted = serde_json::to_vec(&Wanted { name: file.name.clone(), offset }).map_err(io::Error::other)?;
    sealed.send(&wanted)?;
    let answer = sealed.receive()?.unwrap_or_default();
    let given: Given = serde_json::from_slice(&answer).map_err(io::Error::other)?;
    let refused = |text: String| Ok(Err(Refusal::Unreached { text: format!("{} {text}", file.name) }.into()));
    match given {
        Given { size_bytes: Some(size), .. } if size == file.size_bytes => Ok(Ok(())),
        Given { size_bytes: Some(size), .. } => refused(format!("has {size} bytes there, not {}", file.size_bytes)),
        Given { problem, .. } => refused(problem.unwrap_or_else(|| "is not given".to_owned())),
    }
}

/// Receives so many bytes; ends early where nobody takes them.
fn receive(sealed: &mut Sealed, mut left: u64, ahead: &SyncSender<Vec<u8>>) -> io::Result<()> {
    while left > 0 {
        sealed.extend_to(Instant::now() + SILENCE);
        let content = sealed.receive()?.filter(|content| !content.is_empty() && content.len() as u64 <= left);
        let content = content.ok_or_else(|| io::Error::other("it sent something else than the file"))?;
        left -= content.len() as u64;
        if ahead.send(content).is_err() {
            return Ok(());
        }
    }
    Ok(())
}

/// Writes what arrives, no faster than allowed.
fn write(
    arriving: &mut Arriving<'_>,
    arrived: &Receiver<Vec<u8>>,
    limit_bytes_per_s: Option<u64>,
    news: &mut News<'_>,
) -> Result<(), AgentError> {
    let bucket = Bucket::new(limit_bytes_per_s);
    for content in arrived {
        arriving.write(&content)?;
        news.tell(arriving.position())?;
        let now = Instant::now();
        let due = now + bucket.pay(content.len(), now);
        while let Some(ahead) = due.checked_duration_since(Instant::now()).filter(|ahead| !ahead.is_zero()) {
            thread::sleep(ahead.min(TELL_EVERY));
            news.tell(arriving.position())?;
        }
    }
    Ok(())
}
