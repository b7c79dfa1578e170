//! One connection: takes a piece, asks for it, and writes what comes, until there is nothing left to bring.

use std::io::Read;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::client::Answer;
use super::job::{Jobs, MAX_NONSENSE, Next, Stream, Task};
use super::pace::Meter;
use super::record::CHUNK;
use super::run::Shared;
use super::verdict::{Trouble, refusal, way_hint};
use crate::agent::error::AgentError;

/// Bytes that are written at once, and lost at most with each connection when the agent is killed.
const PIECE: usize = 128 << 10;
/// The same, where they come slowly.
const SOON: Duration = Duration::from_secs(1);
/// How often a connection looks around where nothing is to do.
const IDLE: Duration = Duration::from_secs(1);

/// Why a piece did not come to its end.
enum Ended {
    /// The server's doing.
    There(Trouble),
    /// Ours.
    Here(AgentError),
}

impl From<AgentError> for Ended {
    fn from(error: AgentError) -> Self {
        Self::Here(error)
    }
}

impl From<Trouble> for Ended {
    fn from(trouble: Trouble) -> Self {
        Self::There(trouble)
    }
}

/// Works until the download is over.
pub fn work(shared: &Shared) {
    let mut buffer = vec![0; shared.bucket.gulp(PIECE)];
    let mut failures = 0;
    while let Some(task) = next(shared) {
        let mut came = 0;
        let ended = bring(shared, &task, &mut buffer, &mut came);
        if shared.is_stopped() {
            return;
        }
        let pause = {
            let mut jobs = shared.lock();
            let pause = settle(shared, &mut jobs, &task, ended, came > 0, &mut failures);
            shared.tell();
            pause
        };
        shared.sleep(pause);
    }
}

/// The next piece; waits for one.
fn next(shared: &Shared) -> Option<Task> {
    let mut jobs = shared.lock();
    loop {
        if shared.is_stopped() {
            return None;
        }
        let now = Instant::now();
        match jobs.next(now) {
            Next::Task(task) => return Some(task),
            Next::Open(number) => {
                shared.open(&mut jobs, number, now);
                shared.tell();
            }
            Next::Wait(until) => {
                let most = until.map_or(IDLE, |until| until.saturating_duration_since(now).min(IDLE));
                jobs = shared.wait(jobs, most.max(Duration::from_millis(1)));
            }
            Next::Nothing => return None,
        }
    }
}

/// What the end of a piece means for its file and for everybody, and how long this connection pauses.
fn settle(
    shared: &Shared,
    jobs: &mut Jobs,
    task: &Task,
    ended: Result<(), Ended>,
    came: bool,
    failures: &mut u32,
) -> Duration {
    if let Some(open) = jobs.open(task.job, &task.part) {
        match task.chunk {
            Some(chunk) => open.chunks.give_back(chunk),
            None => open.stream = Stream::Free,
        }
    }
    let now = Instant::now();
    let trouble = match ended {
        Ok(()) => {
            *failures = 0;
            (jobs.jobs[task.job].nonsense, jobs.jobs[task.job].nonsense_until) = (0, None);
            return Duration::ZERO;
        }
        Err(Ended::Here(error)) => {
            jobs.fail(error);
            return Duration::ZERO;
        }
        Err(Ended::There(trouble)) => trouble,
    };
    *failures = if came { 1 } else { *failures + 1 };
    match trouble {
        Trouble::Final(refusal) => {
            jobs.fail(refusal.into());
            Duration::ZERO
        }
        Trouble::Passing { text, status, after } => {
            let answered = status.is_some();
            jobs.answered |= answered;
            if let Some(after) = after {
                if after > shared.patience.nothing {
                    let hint = format!("run the same command again in {} s", after.as_secs());
                    jobs.fail(refusal(status, &text, hint).into());
                    return Duration::ZERO;
                }
                // It is meant for all connections.
                jobs.pause(now, after);
            }
            jobs.trouble = Some((status, text));
            shared.patience.pause_after(*failures)
        }
        Trouble::Nonsense { text, status } => {
            jobs.answered = true;
            let job = &mut jobs.jobs[task.job];
            // What several connections are told at once is told once.
            if job.nonsense_until.is_none_or(|until| until <= now) {
                job.nonsense += 1;
                job.nonsense_until = Some(now + shared.patience.pause_after(job.nonsense) / 2);
            }
            if job.nonsense >= MAX_NONSENSE {
                let hint = way_hint(&shared.client.place());
                jobs.fail(refusal(status, &text, hint).into());
                return Duration::ZERO;
            }
            jobs.trouble = Some((status, text));
            shared.patience.pause_after(*failures)
        }
    }
}

/// Brings a piece as far as it comes.
fn bring(shared: &Shared, task: &Task, buffer: &mut [u8], came: &mut u64) -> Result<(), Ended> {
    let answer = shared.client.ask(&task.remote, &task.bytes)?;
    let mut piece = task.bytes.clone();
    let streamed = {
        let mut jobs = shared.lock();
        jobs.answered = true;
        jobs.trouble = None;
        let Some(open) = jobs.open(task.job, &task.part) else { return Ok(()) };
        let ours = task.chunk.is_none();
        if answer.whole && !ours {
            // The server sends whole files only: one connection takes this one, from what is there without a gap on.
            if open.stream == Stream::Taken {
                return Ok(());
            }
            open.stream = Stream::Taken;
        }
        if answer.whole || ours {
            piece = open.chunks.prefix()..task.remote.size_bytes;
        }
        answer.whole && !ours
    };
    let ended = copy(shared, task, answer, piece, buffer, came);
    if streamed && let Some(open) = shared.lock().open(task.job, &task.part) {
        open.stream = Stream::Free;
    }
    ended
}

/// Writes the bytes of an answer that belong to `piece`, as they come.
fn copy(
    shared: &Shared,
    task: &Task,
    mut answer: Answer,
    piece: std::ops::Range<u64>,
    buffer: &mut [u8],
    came: &mut u64,
) -> Result<(), Ended> {
    let (mut at, mut to_skip) = (piece.start, piece.start.saturating_sub(answer.from));
    let mut meter = Meter::new(shared.patience.stall, Instant::now());
    let name = &task.remote.name;
    while to_skip > 0 || at < piece.end {
        let skipping = to_skip > 0;
        // Up to the end of a chunk, and of the piece.
        let chunk_end = (at / u64::from(CHUNK) + 1) * u64::from(CHUNK);
        let left = if skipping { to_skip } else { chunk_end.min(piece.end) - at };
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let (filled, ended) = fill(shared, &mut answer.body, &mut buffer[..most], &mut meter);
        if skipping {
            to_skip -= filled as u64;
        } else if filled > 0 {
            let (chunk, count) = task.part.write(at, &buffer[..filled])?;
            at += filled as u64;
            *came += filled as u64;
            let mut jobs = shared.lock();
            if let Some(open) = jobs.open(task.job, &task.part) {
                open.chunks.set(chunk, count);
            }
            jobs.moved = Instant::now();
            shared.tell();
        }
        ended.map_err(|text| Trouble::passing(format!("{name} broke off after {at} bytes: {text}")))?;
        if shared.is_stopped() {
            return Ok(());
        }
    }
    // The connection can be used again once the end was seen.
    match answer.body.read(&mut buffer[..1]) {
        Ok(0) | Err(_) => Ok(()),
        Ok(_) => Err(Trouble::nonsense(200, format!("{name} does not end after {} bytes", piece.end)).into()),
    }
}

/// Reads until the buffer is full or a while has passed, within the allowed rate; what came before an error counts.
fn fill(shared: &Shared, body: &mut dyn Read, buffer: &mut [u8], meter: &mut Meter) -> (usize, Result<(), String>) {
    let (mut filled, began) = (0, Instant::now());
    while filled < buffer.len() && (filled == 0 || began.elapsed() < SOON) {
        let read = match body.read(&mut buffer[filled..]) {
            Ok(0) => return (filled, Err("the connection ended".to_owned())),
            Ok(read) => read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return (filled, Err(error.to_string())),
        };
        filled += read;
        shared.received.fetch_add(read as u64, Ordering::Relaxed);
        let now = Instant::now();
        if meter.is_stalled(read, now) {
            return (filled, Err("next to nothing came for too long".to_owned()));
        }
        let wait = shared.bucket.pay(read, now);
        if !wait.is_zero() {
            shared.sleep(wait);
            meter.pardon(now.elapsed());
        }
        if shared.is_stopped() {
            break;
        }
    }
    (filled, Ok(()))
}
