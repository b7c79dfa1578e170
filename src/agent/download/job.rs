//! The files of one download: what is there of each, who brings which piece, and what went wrong.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::chunks::Chunks;
use super::client::Remote;
use super::part::Part;
use crate::agent::error::AgentError;
use crate::base::Hasher;

/// Most files that are open at once: the digest of one may be taken while others come.
const MAX_OPEN: usize = 8;
/// Answers that no hub gives, in a row, after which a file is given up.
pub const MAX_NONSENSE: u32 = 4;

/// One file.
pub struct Job {
    /// Where it is.
    pub remote: Arc<Remote>,
    /// Where it lies on its way here.
    pub path: PathBuf,
    /// How far it is.
    pub stage: Stage,
    /// Answers in a row that made no sense.
    pub nonsense: u32,
    /// Until when another one is no other one.
    pub nonsense_until: Option<Instant>,
    /// Times that it was there and nobody had noted that it was checked.
    pub unnoted: u32,
    /// Times that its digest was wrong.
    pub wrong: u32,
}

/// How far a file is.
pub enum Stage {
    /// Nobody here has begun.
    Waiting {
        /// What there is of it.
        have_bytes: u64,
        /// Somebody else had it when it was last looked at, and is left alone until then; with what the partial
        /// looked like.
        busy: Option<(Instant, (u64, i64, i64))>,
    },
    /// Pieces of it come.
    Open(Open),
    /// It is in the store.
    Done,
}

/// A file of which pieces come.
pub struct Open {
    /// The partial.
    pub part: Arc<Part>,
    /// Its pieces.
    pub chunks: Chunks,
    /// Whether its server sends whole files only, and whether one connection is at that.
    pub stream: Stream,
    /// The digest of its first `hashed` bytes; taken out by the thread that goes on with it.
    pub hasher: Option<Hasher>,
    /// Bytes that the digest has.
    pub hashed: u64,
}

/// How a file's server sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Pieces, as far as is known.
    Pieces,
    /// The whole file whatever is asked; nobody is at it.
    Free,
    /// The same; one connection is at it.
    Taken,
}

/// What a connection is to bring.
pub struct Task {
    /// Which file.
    pub job: usize,
    /// The same.
    pub remote: Arc<Remote>,
    /// Where to.
    pub part: Arc<Part>,
    /// The chunk; `None` where the whole file comes through one connection.
    pub chunk: Option<u64>,
    /// Its bytes that are missing.
    pub bytes: Range<u64>,
}

/// What a connection is to do next.
pub enum Next {
    /// To bring this.
    Task(Task),
    /// To open this file's partial first.
    Open(usize),
    /// Nothing now; something may be to do at a certain time.
    Wait(Option<Instant>),
    /// Nothing more.
    Nothing,
}

/// All files, and what all connections must know.
pub struct Jobs {
    /// In the order of the set.
    pub jobs: Vec<Job>,
    /// Why the download ends.
    pub failure: Option<AgentError>,
    /// Whether any server has answered.
    pub answered: bool,
    /// What last went wrong, with what the server answered.
    pub trouble: Option<(Option<u16>, String)>,
    /// Nobody asks before.
    pub pause_until: Option<Instant>,
    /// When something last got on.
    pub moved: Instant,
    /// Whether a whole file is being written to the disk, however long that takes.
    pub is_syncing: bool,
}

impl Jobs {
    /// What is to be done next. Files come in order.
    pub fn next(&mut self, now: Instant) -> Next {
        if self.failure.is_some() {
            return Next::Nothing;
        }
        if let Some(until) = self.pause_until.filter(|until| *until > now) {
            return Next::Wait(Some(until));
        }
        let mut until: Option<Instant> = None;
        let mut left = false;
        let open = self.jobs.iter().filter(|job| matches!(job.stage, Stage::Open(_))).count();
        for (number, job) in self.jobs.iter_mut().enumerate() {
            match &mut job.stage {
                Stage::Done => {}
                Stage::Waiting { busy, .. } => {
                    left = true;
                    match busy {
                        Some((again, _)) if *again > now => {
                            until = Some(until.map_or(*again, |until| until.min(*again)))
                        }
                        _ if open < MAX_OPEN => return Next::Open(number),
                        _ => {}
                    }
                }
                Stage::Open(at) => {
                    left = true;
                    if let Some(task) = at.next(number, &job.remote) {
                        return Next::Task(task);
                    }
                }
            }
        }
        if left { Next::Wait(until) } else { Next::Nothing }
    }

    /// Bytes that are there.
    pub fn have_bytes(&self) -> u64 {
        self.jobs.iter().map(Job::have_bytes).fold(0, u64::saturating_add)
    }

    /// Whether every file is in the store.
    pub fn is_done(&self) -> bool {
        self.jobs.iter().all(|job| matches!(job.stage, Stage::Done))
    }

    /// The open file, unless it was finished or began again meanwhile.
    pub fn open(&mut self, job: usize, part: &Arc<Part>) -> Option<&mut Open> {
        match &mut self.jobs.get_mut(job)?.stage {
            Stage::Open(open) if Arc::ptr_eq(&open.part, part) => Some(open),
            _ => None,
        }
    }

    /// The partials that are open.
    pub fn open_parts(&self) -> Vec<Arc<Part>> {
        let parts = self.jobs.iter().filter_map(|job| match &job.stage {
            Stage::Open(open) => Some(Arc::clone(&open.part)),
            _ => None,
        });
        parts.collect()
    }

    /// Nobody asks for so long.
    pub fn pause(&mut self, now: Instant, pause: Duration) {
        let until = now + pause;
        self.pause_until = Some(self.pause_until.map_or(until, |known| known.max(until)));
    }

    /// Ends the download; the first reason is told.
    pub fn fail(&mut self, error: AgentError) {
        self.failure.get_or_insert(error);
    }
}

impl Job {
    fn have_bytes(&self) -> u64 {
        match &self.stage {
            Stage::Done => self.remote.size_bytes,
            Stage::Open(open) => open.chunks.have_bytes(),
            Stage::Waiting { have_bytes, .. } => *have_bytes,
        }
    }
}

impl Open {
    /// A new file's, or one that was begun.
    pub fn new(part: Part, size_bytes: u64, counts: Vec<u32>) -> Self {
        Self {
            part: Arc::new(part),
            chunks: Chunks::new(size_bytes, counts),
            stream: Stream::Pieces,
            hasher: Some(Hasher::new()),
            hashed: 0,
        }
    }

    fn next(&mut self, job: usize, remote: &Arc<Remote>) -> Option<Task> {
        let (remote, part) = (Arc::clone(remote), Arc::clone(&self.part));
        match self.stream {
            Stream::Taken => None,
            Stream::Free if self.chunks.is_whole() => None,
            Stream::Free => {
                self.stream = Stream::Taken;
                let bytes = 0..remote.size_bytes;
                Some(Task { job, remote, part, chunk: None, bytes })
            }
            Stream::Pieces => {
                let (chunk, bytes) = self.chunks.take()?;
                Some(Task { job, remote, part, chunk: Some(chunk), bytes })
            }
        }
    }
}
