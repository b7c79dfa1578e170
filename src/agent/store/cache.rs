//! Hugging Face caches that are on this node already: read, linked to, and otherwise left alone.
//!
//! `HUB/models--OWNER--NAME/snapshots/COMMIT/FILE` is a link to `HUB/models--OWNER--NAME/blobs/ETAG`; the ETag of a
//! large file is its SHA-256, that of a small one a git object's id. No name is proof: a file is read once before it is
//! used. The link leads to the blob, which several snapshots share, so that it outlives any one of them.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use super::blobs::{drop_partial, renamed};
use super::records::{Checked, digest, length, modified};
use crate::agent::host;
use crate::agent::layout::check_file_name;
use crate::base::Digest;
use crate::inventory::FetchFile;

/// Snapshots and repositories that are looked through.
const MAX_ENTRIES: usize = 10_000;

/// Where caches of the hub may be on this node, in the order in which `huggingface_hub` looks.
pub fn folders() -> Vec<PathBuf> {
    let named = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = host::home();
    let mut folders: Vec<PathBuf> = [
        named("HF_HUB_CACHE"),
        named("HUGGINGFACE_HUB_CACHE"),
        named("HF_HOME").map(|folder| folder.join("hub")),
        named("XDG_CACHE_HOME").map(|folder| folder.join("huggingface/hub")),
        home.map(|home| home.join(".cache/huggingface/hub")),
    ]
    .into_iter()
    .flatten()
    .filter(|folder| folder.is_absolute())
    .collect();
    folders.dedup();
    folders
}

/// A file of a set that lies in a cache, linked into the set. `None` where no cache has it.
pub fn supply(source: &str, folder: &Path, file: &FetchFile, caches: &[PathBuf]) -> Option<Checked> {
    let wanted = file.sha256.as_deref().and_then(Digest::parse).filter(|_| file.size_bytes > 0)?;
    check_file_name(&file.name).ok()?;
    let candidates = caches.iter().flat_map(|hub| {
        let own = repository(source).map(|name| snapshots(&hub.join(name), &file.name)).unwrap_or_default();
        own.into_iter().chain(blobs(hub, &wanted))
    });
    let mut seen = Vec::new();
    for candidate in candidates {
        let Ok(blob) = candidate.canonicalize() else { continue };
        if length(&blob) != Some(file.size_bytes) || seen.contains(&blob) {
            continue;
        }
        seen.push(blob.clone());
        let modified_ns = modified(&blob);
        if !digest(&blob).is_ok_and(|found| found == wanted) {
            continue;
        }
        let whole = folder.join(&file.name);
        fs::create_dir_all(whole.parent()?).ok()?;
        renamed(&whole, |new| std::os::unix::fs::symlink(&blob, new)).ok()?;
        drop_partial(&whole);
        return Some(Checked { sha256: wanted.to_string(), modified_ns });
    }
    None
}

/// The cache's name of `hf:OWNER/NAME`, with whatever follows it.
fn repository(source: &str) -> Option<String> {
    let rest = source.strip_prefix("hf:")?;
    let mut words = rest.split(['/', '@', ':', '#']).take(2);
    let (owner, name) = (words.next()?, words.next()?);
    let safe = |word: &str| check_file_name(word).is_ok();
    (safe(owner) && safe(name)).then(|| format!("models--{owner}--{name}"))
}

/// The file in every snapshot: which commit it is of does not matter where its digest is the wanted one.
fn snapshots(repository: &Path, name: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(repository.join("snapshots")) else { return Vec::new() };
    let mut found: Vec<PathBuf> = entries.flatten().take(MAX_ENTRIES).map(|entry| entry.path().join(name)).collect();
    found.sort();
    found
}

/// The blob of that name in any repository of a cache.
fn blobs(hub: &Path, wanted: &Digest) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(hub) else { return Vec::new() };
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .take(MAX_ENTRIES)
        .filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with("models--")))
        .map(|entry| entry.path().join("blobs").join(wanted.hex()))
        .filter(|path| path.is_file())
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::store::done;
    use crate::agent::store::sets::state_with;
    use crate::agent::store::tests::{CONTENT, bring, spec_of};
    use crate::inventory::Response;

    /// As `huggingface_hub` lays it out.
    fn cache(hub: &Path, repository: &str, file: &str, blob: &str, content: &[u8]) -> PathBuf {
        let folder = hub.join(repository);
        let blob = folder.join("blobs").join(blob);
        let link = folder.join("snapshots/0123456789012345678901234567890123456789").join(file);
        for path in [&blob, &link] {
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        }
        fs::write(&blob, content).expect("written");
        let up = "../".repeat(2 + file.matches('/').count());
        std::os::unix::fs::symlink(format!("{up}blobs/{}", blob.file_name().expect("a name").to_string_lossy()), &link)
            .expect("linked");
        blob
    }

    #[test]
    fn a_cache_is_linked_to_and_left_alone() {
        let top = tempfile::tempdir().expect("a folder");
        let (hub, root) = (top.path().join("hub"), top.path().join("weights"));
        let mut set = spec_of(&root, "0001", "sub/a.gguf");
        set.source = "hf:owner/name@main".into();
        // A small file: its blob has the name of a git object.
        let blob = cache(&hub, "models--owner--name", "sub/a.gguf", &"ab".repeat(20), CONTENT);
        let there = Response::Fetched { complete: false, have_bytes: vec![16] };
        assert_eq!(state_with(&set, std::slice::from_ref(&hub)).expect("asked"), there);
        assert!(matches!(done(&set).expect("whole"), Response::Fetched { complete: true, .. }));
        let link = root.join("0001/sub/a.gguf");
        assert_eq!(fs::read_link(&link).expect("a link"), blob.canonicalize().expect("there"));
        use std::os::unix::fs::MetadataExt;
        assert_eq!(fs::metadata(&blob).expect("there").nlink(), 1, "nothing of ours is in it");
        assert!(!root.join(".flock-blobs").exists());
        // It goes: the set is incomplete, and what is brought is the set's own.
        fs::remove_file(&blob).expect("removed");
        assert_eq!(
            state_with(&set, std::slice::from_ref(&hub)).expect("asked"),
            Response::Fetched { complete: false, have_bytes: vec![0] }
        );
        bring(&set);
        assert!(fs::symlink_metadata(&link).expect("there").is_file() && !blob.exists());
    }

    #[test]
    fn a_name_is_no_proof_and_a_digest_is_found_under_any_repository() {
        let top = tempfile::tempdir().expect("a folder");
        let (hub, root) = (top.path().join("hub"), top.path().join("weights"));
        let mut set = spec_of(&root, "0001", "a.gguf");
        let hex = Digest::of(CONTENT).hex().to_owned();
        let wrong = cache(&hub, "models--owner--name", "a.gguf", &hex, b"SIXTEEN BYTES...");
        set.source = "hf:owner/name".into();
        let none = Response::Fetched { complete: false, have_bytes: vec![0] };
        assert_eq!(state_with(&set, std::slice::from_ref(&hub)).expect("asked"), none);
        cache(&hub, "models--else--where", "b.gguf", &hex, CONTENT);
        let there = Response::Fetched { complete: false, have_bytes: vec![16] };
        assert_eq!(state_with(&set, std::slice::from_ref(&hub)).expect("asked"), there);
        assert_eq!(fs::read(&wrong).expect("there"), b"SIXTEEN BYTES...");
        for bad in ["path:a", "hf:owner", "hf:../x", "hf:a/..", "hf:/a/b", "hf:"] {
            assert_eq!(repository(bad), None, "{bad}");
        }
        assert_eq!(repository("hf:a/b:Q4_K_M@main").as_deref(), Some("models--a--b"));
    }
}
