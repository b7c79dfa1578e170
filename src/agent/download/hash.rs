//! Digests along what is there without a gap, while the rest still comes; and whole files go to the store.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::job::{Jobs, Stage};
use super::part::Part;
use super::run::Shared;
use crate::agent::error::AgentError;
use crate::base::{Digest, Hasher};
use crate::inventory::Refusal;

/// Bytes that are hashed at once.
const STEP: usize = 1 << 20;
/// Bytes after which what came is written to the disk.
const FLUSH: u64 = 64 << 20;
/// How often is looked around where nothing is to do.
const IDLE: Duration = Duration::from_secs(1);

/// What is to be hashed next.
struct Next {
    job: usize,
    part: Arc<Part>,
    hasher: Hasher,
    from: u64,
    to: u64,
    /// Whether `to` is the file's end.
    last: bool,
}

/// Works until the download is over.
pub fn work(shared: &Shared) {
    let mut buffer = vec![0; STEP];
    loop {
        let next = {
            let mut jobs = shared.lock();
            loop {
                if shared.is_stopped() || jobs.failure.is_some() || jobs.is_done() {
                    return;
                }
                match take(&mut jobs) {
                    Some(next) => break next,
                    None => jobs = shared.wait(jobs, IDLE),
                }
            }
        };
        if let Err(error) = step(shared, next, &mut buffer) {
            shared.lock().fail(error);
        }
        shared.tell();
    }
}

/// The first file of which something is there that was not hashed yet, or that is whole.
fn take(jobs: &mut Jobs) -> Option<Next> {
    for (job, found) in jobs.jobs.iter_mut().enumerate() {
        let Stage::Open(open) = &mut found.stage else { continue };
        let (from, to) = (open.hashed, open.chunks.prefix());
        let last = open.chunks.is_whole();
        if from == to && !last {
            continue;
        }
        if let Some(hasher) = open.hasher.take() {
            return Some(Next { job, part: Arc::clone(&open.part), hasher, from, to, last });
        }
    }
    None
}

fn step(shared: &Shared, next: Next, buffer: &mut [u8]) -> Result<(), AgentError> {
    let Next { job, part, mut hasher, from, to, last } = next;
    let most = usize::try_from(to - from).unwrap_or(usize::MAX).min(buffer.len());
    let read = part.read(from, &mut buffer[..most])?;
    if read == 0 && most > 0 {
        // The record promises what is not there.
        return wrong(shared, job, &part, "a shorter file".to_owned());
    }
    hasher.update(&buffer[..read]);
    let hashed = from + read as u64;
    if last && hashed == to {
        let found = hasher.finish();
        return end(shared, job, &part, &found);
    }
    let mut jobs = shared.lock();
    jobs.moved = Instant::now();
    if let Some(open) = jobs.open(job, &part) {
        (open.hasher, open.hashed) = (Some(hasher), hashed);
    }
    Ok(())
}

/// A file that is whole: the right one goes to the store.
fn end(shared: &Shared, job: usize, part: &Arc<Part>, found: &Digest) -> Result<(), AgentError> {
    let remote = Arc::clone(&shared.lock().jobs[job].remote);
    if *found != remote.sha256 {
        return wrong(shared, job, part, found.to_string());
    }
    shared.lock().is_syncing = true;
    let accepted = part.accept(&shared.folder, &remote.name, &remote.sha256);
    let mut jobs = shared.lock();
    jobs.is_syncing = false;
    accepted?;
    jobs.moved = Instant::now();
    jobs.jobs[job].stage = Stage::Done;
    Ok(())
}

/// A file that is not the right one is fetched once more, from its begin: what was there of it may be old, or damaged.
fn wrong(shared: &Shared, job: usize, part: &Arc<Part>, found: String) -> Result<(), AgentError> {
    part.remove()?;
    let mut jobs = shared.lock();
    let known = &mut jobs.jobs[job];
    known.stage = Stage::Waiting { have_bytes: 0, busy: None };
    known.wrong += 1;
    if known.wrong > 1 {
        let (file, expected) = (known.remote.name.clone(), known.remote.sha256.to_string());
        // Before the lock is given back: a connection that looks for work would begin the file anew.
        jobs.fail(Refusal::Digest { file, expected, found }.into());
    }
    Ok(())
}

/// Has what came written to the disk while more comes, so that the end of a large file is not a long wait.
pub fn flush(shared: &Shared) {
    let mut flushed = 0;
    loop {
        let parts: Vec<Arc<Part>> = {
            let mut jobs = shared.lock();
            loop {
                if shared.is_stopped() || jobs.failure.is_some() || jobs.is_done() {
                    return;
                }
                let received = shared.received.load(Ordering::Relaxed);
                if received - flushed >= FLUSH {
                    flushed = received;
                    break jobs.open_parts();
                }
                jobs = shared.wait(jobs, IDLE);
            }
        };
        for part in parts {
            if let Err(error) = part.flush() {
                shared.lock().fail(error);
                shared.tell();
                return;
            }
        }
    }
}
