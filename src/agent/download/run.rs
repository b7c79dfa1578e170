//! One download from its first request to its last file.
//!
//! The caller's thread tells how far it is and decides when it is over; a few threads bring pieces, one takes digests
//! and hands whole files to the store, and one has what came written to the disk meanwhile. Each waits for the next
//! thing to do on one lock, which nobody holds while it reads or writes.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::client::{Client, Remote};
use super::job::{Job, Jobs, Open, Stage};
use super::pace::{Bucket, Patience};
use super::part::Part;
use super::verdict::{refusal, way_hint};
use super::{fetch, hash, record};
use crate::agent::error::AgentError;
use crate::agent::store;
use crate::base::{Digest, Secret};
use crate::inventory::{FetchSpec, HubFiles, Refusal, Response};

/// Connections at a time.
const CONNECTIONS: usize = 4;
/// How often a file that is there and was not noted as checked is looked at again before it is fetched anew.
const MAX_UNNOTED: u32 = 10;
/// How often it is told how far the download is.
const TELL: Duration = Duration::from_secs(1);

/// What all threads of a download share.
pub struct Shared {
    /// The hub.
    pub client: Client,
    /// How long what may take.
    pub patience: Patience,
    /// How fast bytes may come.
    pub bucket: Bucket,
    /// The set.
    pub set: FetchSpec,
    /// Where it lies.
    pub folder: PathBuf,
    /// Bytes that came since the download began, those that came in vain included.
    pub received: AtomicU64,
    jobs: Mutex<Jobs>,
    changed: Condvar,
    stop: AtomicBool,
}

/// Brings what is missing of a set. `tell` is called about once a second with the bytes of the set that are there;
/// where it fails, nobody waits for the download any more: it ends, and what came stays for the next.
pub fn download(
    set: &FetchSpec,
    from: &HubFiles,
    token: Option<&Secret<String>>,
    limit_bytes_per_s: Option<u64>,
    tell: &mut dyn FnMut(u64) -> Result<(), AgentError>,
) -> Result<Response, AgentError> {
    download_with(set, from, token, limit_bytes_per_s, Patience::default(), tell)
}

/// The same with another patience.
pub fn download_with(
    set: &FetchSpec,
    from: &HubFiles,
    token: Option<&Secret<String>>,
    limit_bytes_per_s: Option<u64>,
    patience: Patience,
    tell: &mut dyn FnMut(u64) -> Result<(), AgentError>,
) -> Result<Response, AgentError> {
    let folder = store::check(set)?;
    let bucket = Bucket::new(limit_bytes_per_s);
    let connections = bucket.connections(CONNECTIONS);
    let client = Client::new(from, token, patience.stall, connections)?;
    let absent = store::absent(set, &folder);
    let jobs = absent.iter().map(|at| job(&client, set, *at, &folder)).collect::<Result<Vec<Job>, AgentError>>()?;
    if jobs.is_empty() {
        return Ok(store::fetched(set, &folder));
    }
    store::check_disk(set, &folder)?;
    let all: u64 = set.files.iter().map(|file| file.size_bytes).fold(0, u64::saturating_add);
    let ours: u64 = jobs.iter().map(|job| job.remote.size_bytes).fold(0, u64::saturating_add);
    let shared = Arc::new(Shared {
        client,
        patience,
        bucket,
        set: set.clone(),
        folder: folder.clone(),
        received: AtomicU64::new(0),
        jobs: Mutex::new(Jobs {
            jobs,
            failure: None,
            answered: false,
            trouble: None,
            pause_until: None,
            moved: Instant::now(),
            is_syncing: false,
        }),
        changed: Condvar::new(),
        stop: AtomicBool::new(false),
    });
    let threads = start(&shared, connections)?;
    let ended = watch(&shared, all.saturating_sub(ours), tell);
    shared.stop();
    if let Err(error @ AgentError::Stream { .. }) = ended {
        // The process is about to end, and nobody waits for a name or a handshake that its threads may wait for.
        return Err(error);
    }
    for thread in threads {
        if thread.join().is_err() {
            return Err(AgentError::Other("a thread of the download panicked".into()));
        }
    }
    ended?;
    Ok(store::fetched(set, &folder))
}

fn job(client: &Client, set: &FetchSpec, at: usize, folder: &Path) -> Result<Job, AgentError> {
    let file = &set.files[at];
    let digest = file.sha256.as_deref().and_then(Digest::parse);
    let digest = digest.ok_or_else(|| AgentError::Other(format!("{} comes without a digest", file.name)))?;
    let path = store::part(folder, &file.name);
    let length = std::fs::symlink_metadata(&path).map_or(0, |found| found.len());
    let have_bytes = record::prefix(&path, length).min(file.size_bytes);
    Ok(Job {
        remote: Arc::new(client.remote(&file.name, file.size_bytes, digest)?),
        path,
        stage: Stage::Waiting { have_bytes, busy: None },
        nonsense: 0,
        nonsense_until: None,
        unnoted: 0,
        wrong: 0,
    })
}

fn start(shared: &Arc<Shared>, connections: usize) -> Result<Vec<JoinHandle<()>>, AgentError> {
    let mut threads = Vec::new();
    let mut spawn = |work: fn(&Shared)| {
        let shared = Arc::clone(shared);
        // What a TLS handshake needs, and no more than that.
        let builder = std::thread::Builder::new().stack_size(1 << 20);
        let thread = builder.spawn(move || work(&shared));
        thread.map(|thread| threads.push(thread))
    };
    let all = [hash::work as fn(&Shared), hash::flush];
    let begun =
        all.into_iter().chain(std::iter::repeat_n(fetch::work as fn(&Shared), connections)).try_for_each(&mut spawn);
    if let Err(source) = begun {
        shared.stop();
        return Err(AgentError::Other(format!("no thread can be started for the download: {source}")));
    }
    Ok(threads)
}

/// Tells how far it is, until it is done or cannot go on.
fn watch(shared: &Shared, base: u64, tell: &mut dyn FnMut(u64) -> Result<(), AgentError>) -> Result<(), AgentError> {
    let mut told: Option<Instant> = None;
    loop {
        let (have_bytes, ended) = {
            let mut jobs = shared.lock();
            let rest = told.map_or(Duration::ZERO, |told| TELL.saturating_sub(told.elapsed()));
            if !jobs.is_done() && jobs.failure.is_none() && !rest.is_zero() {
                jobs = shared.wait(jobs, rest);
            }
            let ended = jobs.is_done() || jobs.failure.is_some();
            if !ended && told.is_some_and(|told| told.elapsed() < TELL) {
                continue;
            }
            let given_up = jobs.failure.take().or_else(|| shared.patience_ended(&jobs));
            if let Some(error) = given_up {
                jobs.failure = Some(AgentError::Other("the download was ended".into()));
                return Err(error);
            }
            (base.saturating_add(jobs.have_bytes()), ended)
        };
        tell(have_bytes)?;
        if ended {
            return Ok(());
        }
        told = Some(Instant::now());
    }
}

impl Shared {
    /// The files, for this thread alone.
    pub fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something changed, at most so long.
    pub fn wait<'a>(&'a self, jobs: MutexGuard<'a, Jobs>, most: Duration) -> MutexGuard<'a, Jobs> {
        self.changed.wait_timeout(jobs, most).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Says that something changed.
    pub fn tell(&self) {
        self.changed.notify_all();
    }

    /// Whether the download is over.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.client.shut_down();
        self.tell();
    }

    /// Waits, unless the download ends meanwhile.
    pub fn sleep(&self, long: Duration) {
        let until = Instant::now() + long;
        let mut jobs = self.lock();
        while !self.is_stopped() {
            let rest = until.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return;
            }
            jobs = self.wait(jobs, rest);
        }
    }

    /// Opens a file's partial, or finds that somebody else has it, or has finished it.
    pub fn open(&self, jobs: &mut Jobs, number: usize, now: Instant) {
        let opened = self.try_open(&mut jobs.jobs[number], now);
        match opened {
            Ok(stage) => {
                if matches!(stage, Stage::Done) || is_other_pulse(&jobs.jobs[number].stage, &stage) {
                    jobs.moved = now;
                }
                jobs.jobs[number].stage = stage;
            }
            Err(error) => jobs.fail(error),
        }
    }

    fn try_open(&self, job: &mut Job, now: Instant) -> Result<Stage, AgentError> {
        let Remote { name, size_bytes, sha256, .. } = &*job.remote;
        let Some((part, counts)) = Part::open(&job.path, *size_bytes, sha256)? else {
            return Ok(self.busy(job, now));
        };
        let open = Open::new(part, *size_bytes, counts);
        // Somebody else may have finished it after it was found missing.
        let there = std::fs::symlink_metadata(self.folder.join(name)).is_ok_and(|found| found.len() == *size_bytes);
        if there && open.chunks.have_bytes() == 0 && job.unnoted < MAX_UNNOTED {
            open.part.remove()?;
            let absent = store::absent(&self.set, &self.folder);
            if !absent.iter().any(|at| self.set.files[*at].name == *name) {
                return Ok(Stage::Done);
            }
            // It renames first, and notes then.
            job.unnoted += 1;
            return Ok(self.busy(job, now));
        }
        Ok(Stage::Open(open))
    }

    fn busy(&self, job: &Job, now: Instant) -> Stage {
        let pulse = record::pulse(&job.path);
        let have_bytes = record::prefix(&job.path, pulse.0).min(job.remote.size_bytes);
        Stage::Waiting { have_bytes, busy: Some((now + self.patience.busy, pulse)) }
    }

    /// The refusal, where nothing got on for too long.
    fn patience_ended(&self, jobs: &Jobs) -> Option<AgentError> {
        let limit = if jobs.answered { self.patience.nothing } else { self.patience.first };
        if jobs.is_syncing || jobs.moved.elapsed() < limit {
            return None;
        }
        let busy = jobs.jobs.iter().find(|job| matches!(job.stage, Stage::Waiting { busy: Some(_), .. }));
        let open = jobs.jobs.iter().any(|job| matches!(job.stage, Stage::Open(_)));
        if let Some(job) = busy.filter(|_| !open) {
            return Some(Refusal::Busy { what: job.path.display().to_string() }.into());
        }
        let place = self.client.place();
        let (status, last) = jobs.trouble.clone().unwrap_or((None, "no server answers".to_owned()));
        let text = format!("nothing came from {place} for {} s: {last}", limit.as_secs());
        Some(refusal(status, text, way_hint(&place)).into())
    }
}

/// Whether whoever has a file got on with it since it was last looked at.
fn is_other_pulse(before: &Stage, after: &Stage) -> bool {
    match (before, after) {
        (Stage::Waiting { busy: Some((_, before)), .. }, Stage::Waiting { busy: Some((_, after)), .. }) => {
            before != after
        }
        _ => true,
    }
}
