//! A set that a server has and a folder lacks, and servers that fail in the middle.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::server::{Asked, Reply, Server, Then};
use crate::agent::download::pace::Patience;
use crate::agent::download::record::CHUNK;
use crate::agent::download::run::download_with;
use crate::agent::error::AgentError;
use crate::agent::store;
use crate::base::{Digest, Secret};
use crate::inventory::{FetchFile, FetchSpec, HubFiles, Refusal, Response};

/// What is lost at most per connection where one is cut: what was not written yet, and what the network held.
pub const LOST: u64 = 128 << 10;

pub fn content(bytes: usize) -> Vec<u8> {
    let mut state = bytes as u64 | 1;
    let words = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_le_bytes()
    });
    words.take(bytes.div_ceil(8)).flatten().take(bytes).collect()
}

/// Two chunks and a bit.
pub fn three_chunks() -> Vec<u8> {
    content(2 * CHUNK as usize + 12_345)
}

pub struct Lab {
    pub folder: tempfile::TempDir,
    pub set: FetchSpec,
    pub patience: Patience,
    pub token: Option<Secret<String>>,
    pub limit: Option<u64>,
}

impl Lab {
    pub fn new(files: &[(&str, &[u8])]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let files = files.iter().map(|(name, content)| FetchFile {
            name: (*name).to_owned(),
            size_bytes: content.len() as u64,
            sha256: Some(Digest::of(content).to_string()),
        });
        let set = FetchSpec {
            source: "hf:o/m".into(),
            revision: "c0ffee".into(),
            folder: folder.path().join("set").display().to_string(),
            files: files.collect(),
        };
        let patience = Patience {
            stall: Duration::from_secs(20),
            nothing: Duration::from_secs(20),
            first: Duration::from_secs(20),
            pause: Duration::from_millis(10),
            busy: Duration::from_millis(100),
        };
        Self { folder, set, patience, token: None, limit: None }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        Path::new(&self.set.folder).join(name)
    }

    pub fn part(&self, name: &str) -> PathBuf {
        store::part(Path::new(&self.set.folder), name)
    }

    pub fn run(&self, endpoint: &str) -> Result<Response, AgentError> {
        self.run_with(endpoint, &mut |_| Ok(()))
    }

    pub fn run_with(
        &self,
        endpoint: &str,
        tell: &mut dyn FnMut(u64) -> Result<(), AgentError>,
    ) -> Result<Response, AgentError> {
        let from = HubFiles { endpoint: endpoint.into(), repository: "o/m".into(), commit: "c0ffee".into() };
        download_with(&self.set, &from, self.token.as_ref(), self.limit, self.patience, tell)
    }

    pub fn arrives(&self, endpoint: &str) {
        let have_bytes: Vec<u64> = self.set.files.iter().map(|file| file.size_bytes).collect();
        match self.run(endpoint) {
            Ok(answer) => assert_eq!(answer, Response::Fetched { complete: false, have_bytes }),
            Err(error) => panic!("{}", error.chain()),
        }
    }

    pub fn refusal(&self, endpoint: &str) -> Refusal {
        match self.run(endpoint) {
            Err(error) => error.into(),
            Ok(answer) => panic!("{answer:?}"),
        }
    }

    /// Names in the set's folder, hidden ones too.
    pub fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.set.folder).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

/// A server that has one file and answers as it should, unless `fault` answers.
pub fn with_fault(content: Vec<u8>, fault: impl Fn(&Asked, &[u8]) -> Option<Reply> + Send + Sync + 'static) -> Server {
    Server::start(move |asked| fault(asked, &content).unwrap_or_else(|| Reply::file(asked, &content)))
}

/// A server that cuts both long pieces in their middle, and refuses once both are asked for again.
pub fn cutting(content: &[u8]) -> Server {
    let again = AtomicUsize::new(0);
    with_fault(content.to_vec(), move |asked, content| {
        // By its place, not by its number: a piece may be asked for again before another is asked for at all.
        if asked.range.as_ref().is_none_or(|range| range.start % u64::from(CHUNK) == 0) {
            return Some(Reply::file(asked, content).cut(3_000_000, Then::Close));
        }
        again.fetch_add(1, Ordering::SeqCst);
        while again.load(Ordering::SeqCst) < 2 {
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(Reply::new(403, &[], ""))
    })
}
