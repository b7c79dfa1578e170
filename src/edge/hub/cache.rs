//! What was learnt about commits, which never change: their files, and the header ranges that were read.
//!
//! One file per thing, named by a digest and opening with a digest of what follows, so that a damaged one is seen, passed
//! over and replaced. Whatever is wrong with the folder costs requests, nothing else. No token and no address of a
//! content network is in it; what it holds of private repositories only its owner can read.

use std::fs::{DirBuilder, File};
use std::io::Read as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::names::{is_path, is_repository};
use super::ranges::Target;
use crate::base::Digest;
use crate::edge::clock::SystemRandom;
use crate::ports::{HubFile, HubRepository, Random as _};

/// Most bytes that the folder holds; what was not used longest goes first.
const MAX_TOTAL: u64 = 512 << 20;
/// The folder is looked through at the first write, and after each of these many bytes.
const SWEEP_EVERY: u64 = 32 << 20;
/// Longest range that is kept, and where it must end: headers of safetensors have at most 100 MB, and come first.
const MAX_RANGE: u64 = 16 << 20;
const MAX_END: u64 = 128 << 20;
/// Largest file of the cache: 100,000 files with long names.
const MAX_FILE: u64 = 64 << 20;
/// A half-written file that is older was left by a process that died.
const ABANDONED: Duration = Duration::from_secs(3600);

/// The cache. Without a folder it remembers nothing.
#[derive(Debug, Clone)]
pub(super) struct Cache {
    folder: Option<PathBuf>,
    endpoint: String,
    /// Bytes written since the folder was looked through.
    written: Arc<AtomicU64>,
    max_total: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Listing {
    repository: String,
    gated: bool,
    license: Option<String>,
    base_models: Vec<String>,
    files: Vec<(String, u64, Option<String>)>,
}

impl Cache {
    pub(super) fn new(folder: Option<PathBuf>, endpoint: &str) -> Self {
        let written = Arc::new(AtomicU64::new(SWEEP_EVERY));
        Self {
            folder: folder.map(|folder| folder.join("v1")),
            endpoint: endpoint.to_owned(),
            written,
            max_total: MAX_TOTAL,
        }
    }

    /// What a commit holds.
    pub(super) async fn repository(&self, repository: &str, commit: &str) -> Option<HubRepository> {
        let path = self.commit_folder(repository, commit)?.join("listing");
        let bytes = blocking(move || load(&path)).await?;
        let listing: Listing = serde_json::from_slice(&bytes).ok()?;
        let sound = is_repository(&listing.repository) && listing.files.iter().all(|(name, ..)| is_path(name));
        sound.then(|| HubRepository {
            repository: listing.repository,
            commit: commit.to_owned(),
            gated: listing.gated,
            license: listing.license,
            base_models: listing.base_models,
            files: listing
                .files
                .into_iter()
                .map(|(name, size_bytes, sha256)| HubFile { name, size_bytes, sha256 })
                .collect(),
        })
    }

    /// Keeps what a commit holds, under the name that was asked for, which may be an old one.
    pub(super) async fn keep_repository(&self, asked: &str, known: &HubRepository) {
        let Some(folder) = self.commit_folder(asked, &known.commit) else { return };
        let files = known.files.iter().map(|file| (file.name.clone(), file.size_bytes, file.sha256.clone()));
        let listing = Listing {
            repository: known.repository.clone(),
            gated: known.gated,
            license: known.license.clone(),
            base_models: known.base_models.clone(),
            files: files.collect(),
        };
        let bytes = serde_json::to_vec(&listing).expect("text and numbers");
        self.keep(folder.join("listing"), bytes).await;
    }

    /// Bytes of a file that were read before with the same offset and length.
    pub(super) async fn range(&self, target: &Target, offset: u64, length: u64) -> Option<Vec<u8>> {
        let path = self.range_path(target, offset, length)?;
        let bytes = blocking(move || load(&path)).await?;
        (bytes.len() as u64 <= length).then_some(bytes)
    }

    /// Keeps bytes of a file's beginning.
    pub(super) async fn keep_range(&self, target: &Target, offset: u64, length: u64, bytes: &[u8]) {
        if let Some(path) = self.range_path(target, offset, length) {
            self.keep(path, bytes.to_vec()).await;
        }
    }

    fn commit_folder(&self, repository: &str, commit: &str) -> Option<PathBuf> {
        let key = Digest::of(format!("{}\n{repository}\n{commit}", self.endpoint).as_bytes());
        Some(self.folder.as_ref()?.join(key.short(32)))
    }

    fn range_path(&self, target: &Target, offset: u64, length: u64) -> Option<PathBuf> {
        if length > MAX_RANGE || offset.saturating_add(length) > MAX_END {
            return None;
        }
        let key = Digest::of(format!("{}\n{offset}\n{length}", target.file).as_bytes());
        Some(self.commit_folder(&target.repository, &target.commit)?.join(key.short(32)))
    }

    async fn keep(&self, path: PathBuf, bytes: Vec<u8>) {
        let Some(folder) = self.folder.clone() else { return };
        let length = bytes.len() as u64;
        let sweeps = self.written.fetch_add(length, Ordering::Relaxed) + length >= SWEEP_EVERY;
        if sweeps {
            self.written.store(0, Ordering::Relaxed);
        }
        let max_total = self.max_total;
        blocking(move || {
            let kept = store(&path, &bytes);
            if let Err(error) = kept {
                tracing::debug!(path = %path.display(), %error, "the hub's cache cannot be written");
            } else if sweeps {
                sweep(&folder, max_total);
            }
        })
        .await;
    }
}

/// Runs work on files beside the tasks that wait for the network.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

fn load(path: &Path) -> Option<Vec<u8>> {
    let mut file = File::open(path).ok()?;
    let mut bytes = Vec::new();
    file.by_ref().take(MAX_FILE + 1).read_to_end(&mut bytes).ok()?;
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let content = bytes.split_off(end + 1);
    if bytes.trim_ascii_end() != Digest::of(&content).hex().as_bytes() {
        return None;
    }
    // What is used stays longest.
    let _ = file.set_modified(SystemTime::now());
    Some(content)
}

fn store(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let part = folder.join(format!("part-{}", SystemRandom.hex(8)));
    let mut bytes = Digest::of(content).hex().as_bytes().to_vec();
    bytes.push(b'\n');
    bytes.extend_from_slice(content);
    let written = std::fs::write(&part, bytes).and_then(|()| std::fs::rename(&part, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&part);
    }
    written
}

/// Removes what was not used longest, until the rest fits, and what dead processes left.
fn sweep(folder: &Path, max_total: u64) {
    let entries = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten();
    let mut files = Vec::new();
    for commit in entries(folder) {
        for entry in entries(&commit.path()) {
            let Ok(metadata) = entry.metadata() else { continue };
            let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            let path = entry.path();
            let abandoned = entry.file_name().as_encoded_bytes().starts_with(b"part-")
                && SystemTime::now().duration_since(used).is_ok_and(|age| age > ABANDONED);
            if abandoned {
                let _ = std::fs::remove_file(&path);
            } else {
                files.push((used, metadata.len(), path));
            }
        }
    }
    files.sort_unstable();
    let mut total: u64 = files.iter().map(|(_, length, _)| length).sum();
    for (_, length, path) in files {
        if total <= max_total {
            break;
        }
        if std::fs::remove_file(&path).is_ok() {
            total -= length;
            // A commit of which nothing is known any more.
            if let Some(commit) = path.parent() {
                let _ = std::fs::remove_dir(commit);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    fn target() -> Target {
        Target { repository: "a/b".to_owned(), commit: COMMIT.to_owned(), file: "c.gguf".to_owned() }
    }

    fn known() -> HubRepository {
        let file = HubFile { name: "c.gguf".to_owned(), size_bytes: 7, sha256: Some(Digest::of(b"x").to_string()) };
        HubRepository {
            repository: "a/b".to_owned(),
            commit: COMMIT.to_owned(),
            gated: true,
            license: Some("mit".to_owned()),
            base_models: vec!["x/y".to_owned()],
            files: vec![file],
        }
    }

    fn files(folder: &Path) -> Vec<PathBuf> {
        let entries = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut files: Vec<PathBuf> =
            entries(&folder.join("v1")).flat_map(|commit| entries(&commit).collect::<Vec<_>>()).collect();
        files.sort();
        files
    }

    #[tokio::test]
    async fn what_was_learnt_is_remembered_per_hub_repository_commit_and_range() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = Cache::new(Some(folder.path().to_owned()), "https://hub");
        cache.keep_repository("a/b", &known()).await;
        cache.keep_range(&target(), 0, 8, b"header").await;
        assert_eq!(cache.repository("a/b", COMMIT).await, Some(known()));
        assert_eq!(cache.range(&target(), 0, 8).await.as_deref(), Some(&b"header"[..]));

        assert_eq!(cache.repository("a/c", COMMIT).await, None);
        assert_eq!(cache.repository("a/b", &COMMIT.replace('0', "1")).await, None);
        assert_eq!(cache.range(&target(), 0, 9).await, None);
        assert_eq!(Cache::new(Some(folder.path().to_owned()), "https://other").repository("a/b", COMMIT).await, None);
        let mode = std::fs::metadata(folder.path().join("v1")).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[tokio::test]
    async fn weights_beyond_headers_are_not_kept_and_nothing_is_without_a_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = Cache::new(Some(folder.path().to_owned()), "https://hub");
        for (offset, length) in [(0, MAX_RANGE + 1), (MAX_END, 1), (u64::MAX, 1)] {
            cache.keep_range(&target(), offset, length, b"weights").await;
        }
        assert!(files(folder.path()).is_empty());
        let nowhere = Cache::new(None, "https://hub");
        nowhere.keep_repository("a/b", &known()).await;
        assert_eq!(nowhere.repository("a/b", COMMIT).await, None);
    }

    #[tokio::test]
    async fn a_damaged_entry_is_passed_over_and_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = Cache::new(Some(folder.path().to_owned()), "https://hub");
        cache.keep_range(&target(), 0, 8, b"header").await;
        let path = files(folder.path()).pop().expect("kept");
        let whole = std::fs::read(&path).expect("there");
        let (flipped, cut) = ([&whole[..whole.len() - 1], b"R"].concat(), whole[..20].to_vec());
        for bad in [flipped, cut, Vec::new(), b"\n".to_vec(), [&whole[..], b"x"].concat()] {
            std::fs::write(&path, &bad).expect("written");
            assert_eq!(cache.range(&target(), 0, 8).await, None, "{bad:?}");
            cache.keep_range(&target(), 0, 8, b"header").await;
            assert_eq!(cache.range(&target(), 0, 8).await.as_deref(), Some(&b"header"[..]));
        }
        // A name that leads elsewhere is no more believed from a file than from the hub.
        let mut evil = known();
        evil.files[0].name = "../../x".to_owned();
        cache.keep_repository("a/b", &evil).await;
        assert_eq!(cache.repository("a/b", COMMIT).await, None);
        assert_eq!(files(folder.path()).len(), 2, "nothing half-written stays");
    }

    #[tokio::test]
    async fn the_folder_is_bounded_and_what_is_used_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut cache = Cache::new(Some(folder.path().to_owned()), "https://hub");
        cache.max_total = 2500;
        for offset in 0..3 {
            cache.keep_range(&target(), offset, 1000, &[7; 1000]).await;
        }
        // The first was used last.
        let age = |offset: u64, seconds: u64| {
            let path = cache.range_path(&target(), offset, 1000).expect("kept");
            let time = SystemTime::now() - Duration::from_secs(seconds);
            File::options().write(true).open(path).and_then(|file| file.set_modified(time)).expect("set");
        };
        for (offset, seconds) in [(0, 300), (1, 200), (2, 100)] {
            age(offset, seconds);
        }
        assert!(cache.range(&target(), 0, 1000).await.is_some());
        let part = files(folder.path())[0].with_file_name("part-00");
        std::fs::write(&part, "half").expect("written");
        let old = SystemTime::now() - 2 * ABANDONED;
        File::options().write(true).open(&part).and_then(|file| file.set_modified(old)).expect("set");
        cache.written.store(SWEEP_EVERY, Ordering::Relaxed);
        cache.keep_range(&target(), 9, 100, b"new").await;
        assert!(!part.exists());
        let left = [0, 1, 2].map(|offset| cache.range_path(&target(), offset, 1000).expect("a path").exists());
        assert_eq!(left, [true, false, true]);
    }
}
