//! Digests of large files, remembered between runs.
//!
//! The cache is a JSON file keyed by canonical path; an entry counts only while size, modification time and inode
//! are the same. Losing it costs time, nothing else, so whatever is wrong with it is passed over.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use super::clock::{SystemClock, SystemRandom};
use crate::base::{Digest, Hasher};
use crate::ports::{Clock as _, Random as _};

/// Most files that are remembered; those that were not asked for longest go first.
const MAX_ENTRIES: usize = 10_000;
/// Largest cache file that is read.
const MAX_BYTES: u64 = 16 << 20;
/// A file that changed this recently may change again without its time showing it.
const SETTLED_NS: i128 = 2_000_000_000;

/// What a file looked like when it was hashed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    size_bytes: u64,
    modified_ns: i128,
    inode: u64,
    sha256: Digest,
    used_ms: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Document {
    format: u32,
    files: BTreeMap<String, Entry>,
}

/// The cache. Without a path it remembers nothing.
#[derive(Debug)]
pub(super) struct DigestCache {
    path: Option<PathBuf>,
    files: Mutex<BTreeMap<String, Entry>>,
}

impl DigestCache {
    /// At `$XDG_CACHE_HOME/flock/digests.json`, else under `~/.cache`.
    pub(super) fn of_user() -> Self {
        let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let base = base.or_else(|| std::env::home_dir().map(|home| home.join(".cache")));
        Self::at(base.map(|base| base.join("flock/digests.json")))
    }

    /// In a file of its own.
    pub(super) fn at(path: Option<PathBuf>) -> Self {
        let files = path.as_deref().and_then(load).unwrap_or_default();
        Self { path, files: Mutex::new(files) }
    }

    /// The digest of a regular file, from the cache or by reading it. `stop` ends the reading early; `done` counts the
    /// bytes that need not be read any more.
    pub(super) fn digest(&self, path: &Path, stop: &AtomicBool, done: &AtomicU64) -> std::io::Result<Digest> {
        let path = path.canonicalize()?;
        let mut file = File::open(&path)?;
        let before = file.metadata()?;
        if !before.is_file() {
            return Err(std::io::Error::other("it is no regular file"));
        }
        let key = path.to_str().map(str::to_owned);
        if let Some(digest) = key.as_deref().and_then(|key| self.known(key, &before)) {
            done.fetch_add(before.len(), Ordering::Relaxed);
            return Ok(digest);
        }
        let sha256 = hash(&mut file, stop, done)?;
        let after = std::fs::metadata(&path)?;
        if looks(&before) != looks(&after) {
            return Err(std::io::Error::other("it changed while it was read"));
        }
        let now_ms = SystemClock.unix_ms();
        let (size_bytes, modified_ns, inode) = looks(&before);
        let settled = i128::from(now_ms) * 1_000_000 - modified_ns > SETTLED_NS;
        if let (Some(key), true) = (key, settled) {
            let entry = Entry { size_bytes, modified_ns, inode, sha256: sha256.clone(), used_ms: now_ms };
            self.files.lock().expect("no holder of this lock panics").insert(key, entry);
        }
        Ok(sha256)
    }

    fn known(&self, key: &str, metadata: &Metadata) -> Option<Digest> {
        let mut files = self.files.lock().expect("no holder of this lock panics");
        let entry = files.get_mut(key)?;
        if (entry.size_bytes, entry.modified_ns, entry.inode) != looks(metadata) {
            return None;
        }
        entry.used_ms = SystemClock.unix_ms();
        Some(entry.sha256.clone())
    }

    /// Writes what was learnt, together with what other processes wrote meanwhile.
    pub(super) fn save(&self) {
        let Some(path) = &self.path else { return };
        let mut files = load(path).unwrap_or_default();
        files.extend(self.files.lock().expect("no holder of this lock panics").clone());
        while files.len() > MAX_ENTRIES {
            let Some(oldest) = files.iter().min_by_key(|(_, entry)| entry.used_ms).map(|(key, _)| key.clone()) else {
                break;
            };
            files.remove(&oldest);
        }
        if let Err(error) = write(path, &Document { format: 1, files }) {
            tracing::debug!(path = %path.display(), %error, "the digest cache cannot be written");
        }
    }
}

fn looks(metadata: &Metadata) -> (u64, i128, u64) {
    let modified = i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
    (metadata.len(), modified, metadata.ino())
}

fn hash(file: &mut File, stop: &AtomicBool, done: &AtomicU64) -> std::io::Result<Digest> {
    let mut hasher = Hasher::new();
    let mut buffer = vec![0_u8; 1 << 20];
    loop {
        if stop.load(Ordering::Relaxed) {
            return Err(std::io::ErrorKind::Interrupted.into());
        }
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.finish()),
            read => {
                hasher.update(&buffer[..read]);
                done.fetch_add(read as u64, Ordering::Relaxed);
            }
        }
    }
}

fn load(path: &Path) -> Option<BTreeMap<String, Entry>> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    let document: Document = serde_json::from_slice(&bytes).ok()?;
    let sound = |entry: &Entry| Digest::parse(&entry.sha256.to_string()).is_some();
    (document.format == 1).then(|| document.files.into_iter().filter(|(_, entry)| sound(entry)).collect())
}

fn write(path: &Path, document: &Document) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let part = folder.join(format!("digests.json.part-{}", SystemRandom.hex(8)));
    let written = serde_json::to_vec(document)
        .map_err(std::io::Error::other)
        .and_then(|bytes| std::fs::write(&part, bytes))
        .and_then(|()| std::fs::rename(&part, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&part);
    }
    written
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    static GO: AtomicBool = AtomicBool::new(false);

    /// Writes a file that looks old enough to be remembered.
    fn write_old(path: &Path, text: &str, age_s: u64) {
        std::fs::write(path, text).expect("written");
        let time = SystemTime::now() - Duration::from_secs(age_s);
        File::options().write(true).open(path).and_then(|file| file.set_modified(time)).expect("set");
    }

    #[test]
    fn a_digest_is_remembered_until_the_file_changes() {
        let folder = tempfile::tempdir().expect("a folder");
        let (cache_path, model) = (folder.path().join("c/digests.json"), folder.path().join("model"));
        write_old(&model, "one", 100);
        let cache = DigestCache::at(Some(cache_path.clone()));
        assert_eq!(cache.digest(&model, &GO, &AtomicU64::new(0)).expect("read"), Digest::of(b"one"));
        cache.save();

        // A poisoned entry shows whether the cache was used.
        let text = std::fs::read_to_string(&cache_path).expect("there");
        let fake = Digest::of(b"fake");
        std::fs::write(&cache_path, text.replace(Digest::of(b"one").hex(), fake.hex())).expect("written");
        assert_eq!(
            DigestCache::at(Some(cache_path.clone())).digest(&model, &GO, &AtomicU64::new(0)).expect("known"),
            fake
        );

        write_old(&model, "two", 90);
        assert_eq!(
            DigestCache::at(Some(cache_path)).digest(&model, &GO, &AtomicU64::new(0)).expect("read"),
            Digest::of(b"two")
        );
    }

    #[test]
    fn a_fresh_file_is_hashed_and_not_remembered() {
        let folder = tempfile::tempdir().expect("a folder");
        let model = folder.path().join("model");
        std::fs::write(&model, "one").expect("written");
        let cache = DigestCache::at(None);
        cache.digest(&model, &GO, &AtomicU64::new(0)).expect("read");
        assert!(cache.files.lock().expect("free").is_empty());
    }

    #[test]
    fn a_corrupt_cache_is_passed_over_and_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let (cache_path, model) = (folder.path().join("digests.json"), folder.path().join("model"));
        write_old(&model, "one", 100);
        for bad in
            ["", "{", "[]", "{\"format\":2,\"files\":{}}", "{\"format\":1,\"files\":{\"/x\":{\"size_bytes\":1}}}"]
        {
            std::fs::write(&cache_path, bad).expect("written");
            let cache = DigestCache::at(Some(cache_path.clone()));
            assert_eq!(cache.digest(&model, &GO, &AtomicU64::new(0)).expect("read"), Digest::of(b"one"));
            cache.save();
            assert_eq!(load(&cache_path).expect("sound").len(), 1, "{bad}");
        }
        let names = std::fs::read_dir(folder.path()).expect("there").count();
        assert_eq!(names, 2, "nothing half-written stays");
    }

    #[test]
    fn what_is_no_file_has_no_digest_and_stopping_stops() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = DigestCache::at(None);
        assert!(cache.digest(folder.path(), &GO, &AtomicU64::new(0)).is_err());
        assert!(cache.digest(&folder.path().join("missing"), &GO, &AtomicU64::new(0)).is_err());
        let model = folder.path().join("model");
        std::fs::write(&model, "one").expect("written");
        let stopped = cache.digest(&model, &AtomicBool::new(true), &AtomicU64::new(0)).expect_err("stopped");
        assert_eq!(stopped.kind(), std::io::ErrorKind::Interrupted);
    }
}
