//! Weights on this machine's disk: listed, inspected by their headers, hashed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::digests::DigestCache;
use crate::base::{Digest, expand_home, format_bytes};
use crate::inventory::FetchFile;
use crate::ports::{FilesError, LocalWeights, Weights};
use crate::weights::{Inspect, Listing, Ranges, Variant, inspect};

/// Files hashed at once.
const HASHED_AT_ONCE: usize = 2;
/// Time between two sentences about hashing, and before the first.
const TOLD_EVERY: Duration = Duration::from_secs(5);
/// Most bytes read for one request of the inspection; it asks again for the rest.
const MAX_READ: u64 = 16 << 20;
/// Most bytes of headers read from one set: tokenizers inside GGUF are the largest.
const MAX_TOTAL: u64 = 1 << 30;
/// Deepest folder that is listed.
const MAX_DEPTH: usize = 4;
/// Most entries that are listed.
const MAX_ENTRIES: usize = 100_000;

/// Reads weights from this machine's disk.
pub struct DiskWeights {
    cache: Arc<DigestCache>,
    hashing: Arc<Semaphore>,
    /// How often it is told how far hashing is, and to whom.
    told: Option<(Duration, Notice)>,
}

/// Takes a sentence for people.
type Notice = Arc<dyn Fn(&str) + Send + Sync>;

impl DiskWeights {
    /// With the user's cache of digests.
    pub fn new() -> Self {
        Self::with(DigestCache::of_user())
    }

    /// Tells how far hashing is, every few seconds from the first on: large files take minutes.
    #[must_use]
    pub fn telling(self, notice: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self { told: Some((TOLD_EVERY, Arc::new(notice))), ..self }
    }

    /// With a cache of digests in a file of its own, or none.
    #[cfg(test)]
    pub(super) fn with_cache(path: Option<PathBuf>) -> Self {
        Self::with(DigestCache::at(path))
    }

    fn with(cache: DigestCache) -> Self {
        Self { cache: Arc::new(cache), hashing: Arc::new(Semaphore::new(HASHED_AT_ONCE)), told: None }
    }
}

impl Default for DiskWeights {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Weights for DiskWeights {
    /// A file that only an index names has size 0 and no digest.
    async fn read(&self, path: &str, digests: bool) -> Result<Vec<LocalWeights>, FilesError> {
        let source = path.to_owned();
        let looked = tokio::task::spawn_blocking(move || look(&source)).await;
        let mut found = looked.map_err(|error| unreadable(path, &error))??;
        if digests {
            self.hash(path, &mut found).await?;
        }
        Ok(found)
    }
}

impl DiskWeights {
    /// Hashes every file that is there, each once. What is begun ends early when the caller no longer waits.
    async fn hash(&self, path: &str, found: &mut [LocalWeights]) -> Result<(), FilesError> {
        let stop = StopOnDrop(Arc::new(AtomicBool::new(false)));
        let wanted: BTreeMap<PathBuf, u64> = found.iter().flat_map(present).collect();
        let all = wanted.values().copied().fold(0, u64::saturating_add);
        let read = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        for file in wanted.into_keys() {
            let (cache, hashing, stop) = (Arc::clone(&self.cache), Arc::clone(&self.hashing), Arc::clone(&stop.0));
            let read = Arc::clone(&read);
            tasks.spawn(async move {
                let _room = hashing.acquire().await;
                let target = file.clone();
                let digest = tokio::task::spawn_blocking(move || cache.digest(&target, &stop, &read)).await;
                (file, digest.unwrap_or_else(|error| Err(std::io::Error::other(error))))
            });
        }
        let mut digests: BTreeMap<PathBuf, Digest> = BTreeMap::new();
        let mut failure = None;
        let started = tokio::time::Instant::now();
        let mut told = 0;
        loop {
            let next = match &self.told {
                None => tasks.join_next().await,
                Some((every, notice)) => {
                    match tokio::time::timeout_at(started + *every * (told + 1), tasks.join_next()).await {
                        Ok(next) => next,
                        Err(_) => {
                            told += 1;
                            let (read, all) = (format_bytes(read.load(Ordering::Relaxed)), format_bytes(all));
                            notice(&format!("hashing the weights of {path}: {read} of {all}"));
                            continue;
                        }
                    }
                }
            };
            let Some(done) = next else { break };
            let (file, digest) = done.map_err(|error| unreadable(path, &error))?;
            match digest {
                Ok(digest) => {
                    digests.insert(file, digest);
                }
                Err(error) => {
                    failure = failure.or_else(|| Some(unreadable(&file.display().to_string(), &error)));
                    stop.0.store(true, Ordering::Relaxed);
                }
            }
        }
        let cache = Arc::clone(&self.cache);
        let _ = tokio::task::spawn_blocking(move || cache.save()).await;
        if let Some(failure) = failure {
            return Err(failure);
        }
        for weights in found {
            let folder = PathBuf::from(&weights.folder);
            for file in weights.files.iter_mut().chain(&mut weights.projector) {
                file.sha256 = digests.get(&folder.join(&file.name)).map(Digest::to_string);
            }
        }
        Ok(())
    }
}

/// The files of a variant that are on the disk: the inspection knows their sizes.
fn present(weights: &LocalWeights) -> impl Iterator<Item = (PathBuf, u64)> {
    let folder = PathBuf::from(&weights.folder);
    let files = weights.variant.files.iter().chain(&weights.variant.projector);
    files.filter_map(move |file| Some((folder.join(&file.name), file.size_bytes?)))
}

/// Tells the hashing threads that nobody waits any more.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Lists and inspects, without digests.
fn look(path: &str) -> Result<Vec<LocalWeights>, FilesError> {
    let home = std::env::home_dir();
    let source = std::path::absolute(expand_home(path, home.as_deref().and_then(Path::to_str)))
        .map_err(|error| unreadable(path, &error))?;
    let metadata = std::fs::metadata(&source).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => FilesError::Missing { path: path.to_owned() },
        _ => unreadable(path, &error),
    })?;
    let (folder, names) = if metadata.is_dir() {
        let names = list(&source).map_err(|error| unreadable(path, &error))?;
        (source, names)
    } else if metadata.is_file() {
        one_file(path, &source)?
    } else {
        return Err(not_weights(path, &"it is neither a file nor a folder"));
    };
    let shown = folder.to_str().ok_or_else(|| not_weights(path, &"its path is not UTF-8"))?.to_owned();
    let listing = Listing::new(names).map_err(|error| not_weights(path, &error))?;
    let variants = read_variants(path, &folder, &listing, MAX_TOTAL)?;
    Ok(variants
        .into_iter()
        .map(|variant| LocalWeights {
            files: variant.files.iter().map(fetched).collect(),
            projector: variant.projector.as_ref().map(fetched),
            variant,
            folder: shown.clone(),
        })
        .collect())
}

/// A GGUF file, with its other shards where it is one of several.
fn one_file(path: &str, source: &Path) -> Result<(PathBuf, Vec<(String, u64)>), FilesError> {
    let name = source.file_name().and_then(|name| name.to_str());
    let (Some(name), Some(folder)) = (name, source.parent()) else {
        return Err(not_weights(path, &"its name is not UTF-8"));
    };
    if !name.ends_with(".gguf") {
        return Err(not_weights(path, &"a single file must be GGUF; name the folder of safetensors"));
    }
    let stem = shard_stem(name);
    let mut names = Vec::new();
    let entries = std::fs::read_dir(folder).map_err(|error| unreadable(path, &error))?;
    for entry in entries.take(MAX_ENTRIES) {
        let file = entry.map_err(|error| unreadable(path, &error))?.file_name();
        let Some(file) = file.to_str() else { continue };
        if file == name || (stem.is_some() && shard_stem(file) == stem) || is_gguf_projector(file) {
            names.extend(regular(&folder.join(file)).map(|size| (file.to_owned(), size)));
        }
    }
    Ok((folder.to_path_buf(), names))
}

/// `STEM` and count of `STEM-NNNNN-of-NNNNN.gguf`.
fn shard_stem(name: &str) -> Option<(&str, &str)> {
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    (digits(number) && digits(count)).then_some((stem, count))
}

/// Size of a regular file, links followed.
fn regular(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file).map(|metadata| metadata.len())
}

/// Regular files under a folder, by relative name. Hidden ones and names that no listing accepts are left out;
/// links are followed to files, never to folders.
fn list(root: &Path) -> std::io::Result<Vec<(String, u64)>> {
    let mut found = Vec::new();
    let mut folders = vec![(String::new(), 0)];
    let mut seen = 0;
    while let Some((folder, depth)) = folders.pop() {
        for entry in std::fs::read_dir(root.join(&folder))? {
            let entry = entry?;
            seen += 1;
            if seen > MAX_ENTRIES {
                return Err(std::io::Error::other(format!("it holds more than {MAX_ENTRIES} files")));
            }
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) else { continue };
            let relative = if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") };
            if entry.file_type()?.is_dir() {
                if depth < MAX_DEPTH {
                    folders.push((relative, depth + 1));
                }
            } else if let Some(size) = regular(&entry.path())
                && Listing::new([(relative.as_str(), size)]).is_ok()
            {
                found.push((relative, size));
            }
        }
    }
    Ok(found)
}

/// Answers the inspection's requests for bytes until it is done, with at most so many.
fn read_variants(path: &str, folder: &Path, listing: &Listing, most: u64) -> Result<Vec<Variant>, FilesError> {
    let mut ranges = Ranges::new();
    let mut total = 0;
    loop {
        match inspect(listing, &ranges).map_err(|error| not_weights(path, &error))? {
            Inspect::Done(variants) => return Ok(variants),
            Inspect::Need { file, offset, length } => {
                let target = folder.join(&file);
                let bytes = read_range(&target, offset, length.clamp(1, MAX_READ))
                    .map_err(|error| unreadable(&target.display().to_string(), &error))?;
                total += bytes.len() as u64;
                if total > most {
                    return Err(not_weights(path, &"its headers are longer than any model's"));
                }
                ranges.insert(&file, offset, &bytes);
            }
        }
    }
}

fn read_range(path: &Path, offset: u64, length: u64) -> std::io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.take(length).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn is_gguf_projector(name: &str) -> bool {
    name.ends_with(".gguf") && crate::weights::is_projector(name)
}

fn fetched(file: &crate::weights::VariantFile) -> FetchFile {
    FetchFile { name: file.name.clone(), size_bytes: file.size_bytes.unwrap_or(0), sha256: None }
}

fn unreadable(path: &str, error: &dyn std::fmt::Display) -> FilesError {
    FilesError::Unreadable { path: path.to_owned(), reason: error.to_string() }
}

fn not_weights(path: &str, reason: &dyn std::fmt::Display) -> FilesError {
    FilesError::NotWeights { path: path.to_owned(), reason: reason.to_string() }
}

#[cfg(test)]
mod tests;
