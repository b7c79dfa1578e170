//! A set of files: how much of it is there, and whether it is complete.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use super::records::{
    COMPLETE, Checked, Complete, RECEIVED, Received, check, checked, digest, have, hold, is_whole, length, marker,
    modified, note, received, unmoved,
};
use super::{blobs, cache};
use crate::agent::error::AgentError;
use crate::agent::files::{disk_space, remove, sweep, write_json};
use crate::inventory::{FetchFile, FetchSpec, Refusal, Response, WeightsFound, WeightsRef};

/// How much of a set is there: what lies under its digest already, in another set or in a Hugging Face cache, is
/// linked to it. Refused where the rest does not fit on the disk, before a byte travels.
pub fn state(fetch: &FetchSpec) -> Result<Response, AgentError> {
    state_with(fetch, &cache::folders())
}

/// The same with these caches of the hub.
pub fn state_with(fetch: &FetchSpec, caches: &[std::path::PathBuf]) -> Result<Response, AgentError> {
    let folder = check(fetch)?;
    read_again(fetch, &folder)?;
    let (known, mut linked) = (checked(&folder), Received::new());
    let mut store = blobs::Supply::of(&folder);
    for file in fetch.files.iter().filter(|file| !is_whole(&folder, file, &known)) {
        // What cannot be linked is sent.
        let own = store.as_mut().and_then(|store| store.bring(file));
        let found = own.or_else(|| cache::supply(&fetch.source, &folder, file, caches));
        linked.extend(found.map(|found| (file.name.clone(), found)));
    }
    if !linked.is_empty() {
        note(&folder, linked)?;
    }
    let fetched = fetched(fetch, &folder);
    check_disk(fetch, &folder)?;
    Ok(fetched)
}

/// Takes the digests of files that have their size and were written to since they were checked, or never were.
fn read_again(fetch: &FetchSpec, folder: &Path) -> Result<(), AgentError> {
    let checked = checked(folder);
    let mut found = Received::new();
    for file in fetch.files.iter().filter(|file| file.sha256.is_some()) {
        let path = folder.join(&file.name);
        let known = checked.get(&file.name).is_some_and(|known| unmoved(&path, known.modified_ns));
        if length(&path) != Some(file.size_bytes) || known {
            continue;
        }
        let modified_ns = modified(&path);
        let sha256 = digest(&path).map_err(AgentError::file("reading", &path))?.to_string();
        found.insert(file.name.clone(), Checked { sha256, modified_ns });
    }
    if found.is_empty() { Ok(()) } else { note(folder, found) }
}

/// The answer: bytes per file.
pub fn fetched(fetch: &FetchSpec, folder: &Path) -> Response {
    let checked = checked(folder);
    let have_bytes = fetch.files.iter().map(|file| have(folder, file, &checked)).collect();
    Response::Fetched { complete: is_complete(folder, &fetch.revision), have_bytes }
}

/// Refuses unless what is missing of all files fits together.
pub fn check_disk(fetch: &FetchSpec, folder: &Path) -> Result<(), AgentError> {
    let checked = checked(folder);
    let missing = |file: &FetchFile| file.size_bytes.saturating_sub(have(folder, file, &checked));
    let needed_bytes = fetch.files.iter().map(missing).fold(0, u64::saturating_add);
    match disk_space(folder) {
        Some((free_bytes, _)) if needed_bytes > free_bytes => {
            Err(Refusal::Disk { path: fetch.folder.clone(), needed_bytes, free_bytes }.into())
        }
        _ => Ok(()),
    }
}

/// Marks a set complete once every file is there and was checked.
pub fn done(fetch: &FetchSpec) -> Result<Response, AgentError> {
    let folder = check(fetch)?;
    let found = checked(&folder);
    if let Some(file) = fetch.files.iter().find(|file| !is_whole(&folder, file, &found)) {
        let have = have(&folder, file, &found);
        return Err(AgentError::Other(format!("{} has {have} of {} checked bytes", file.name, file.size_bytes)));
    }
    fs::create_dir_all(&folder).map_err(AgentError::file("creating", &folder))?;
    for file in &fetch.files {
        blobs::adopt(&folder, file, &found);
    }
    let times = fetch.files.iter().filter_map(|file| Some((file.name.clone(), modified(&folder.join(&file.name))?)));
    let modified_ns = times.collect();
    write_json(&folder.join(COMPLETE), &Complete { format: 1, fetch: fetch.clone(), modified_ns })?;
    let held = hold(&folder);
    // What is noted of files of other sets stays.
    let mut others = received(&folder);
    others.retain(|name, _| !fetch.files.iter().any(|file| file.name == *name));
    if others.is_empty() { remove(&folder.join(RECEIVED)) } else { write_json(&folder.join(RECEIVED), &others) }?;
    drop(held);
    sweep(&folder, Duration::from_secs(60));
    Ok(fetched(fetch, &folder))
}

/// Whether the marker of this revision is there and its files are as they were when it was written.
pub fn is_complete(folder: &Path, revision: &str) -> bool {
    marker(folder).is_some_and(|found| found.fetch.revision == revision && found.moved(folder).is_none())
}

/// Why an instance's weights cannot be read, if they cannot.
pub fn missing(weights: &[WeightsRef]) -> Option<String> {
    weights.iter().find_map(|set| {
        let folder = Path::new(&set.folder);
        if let Some(revision) = &set.revision {
            match marker(folder).filter(|found| found.fetch.revision == *revision) {
                None => return Some(format!("{} does not hold the complete revision {revision}", set.folder)),
                Some(found) => {
                    if let Some(name) = found.moved(folder) {
                        let text = "is gone or was changed since it was checked; `flock apply` brings it again";
                        return Some(format!("{}/{name} {text}", set.folder));
                    }
                }
            }
        }
        let absent = set.files.iter().find(|name| !folder.join(name).is_file())?;
        Some(format!("{}/{absent} is not there", set.folder))
    })
}

/// Folders that links in a set lead to: what shows an engine its weights must show these too.
pub fn linked(set: &WeightsRef) -> Vec<String> {
    let mut folders = BTreeSet::new();
    for path in set.files.iter().map(|name| Path::new(&set.folder).join(name)) {
        let link = fs::symlink_metadata(&path).is_ok_and(|found| found.is_symlink());
        let target = link.then(|| path.canonicalize().ok()).flatten();
        folders.extend(target.as_deref().and_then(Path::parent).and_then(Path::to_str).map(str::to_owned));
    }
    folders.into_iter().collect()
}

/// Every complete set below the weights folder.
pub fn found(weights: &Path) -> Vec<WeightsFound> {
    let Ok(entries) = fs::read_dir(weights) else { return Vec::new() };
    let mut found: Vec<WeightsFound> = entries
        .flatten()
        .filter_map(|entry| {
            let folder = entry.path();
            let found = marker(&folder)?;
            let complete = found.moved(&folder).is_none();
            let fetch = found.fetch;
            Some(WeightsFound {
                complete,
                source: fetch.source,
                revision: fetch.revision,
                path: Some(folder.display().to_string()),
                size_bytes: fetch.files.iter().map(|file| file.size_bytes).fold(0, u64::saturating_add),
                files: fetch.files.into_iter().map(|file| file.name).collect(),
                sha256: None,
                architecture: None,
                variants: Vec::new(),
                problem: None,
            })
        })
        .collect();
    found.sort_by(|a, b| (&a.source, &a.revision, &a.path).cmp(&(&b.source, &b.revision, &b.path)));
    found
}
