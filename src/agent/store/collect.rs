//! What nothing reads or plans goes: sets, then contents that no set has, then what killed transfers left.
//!
//! Only what this agent's kind writes is ever removed: the files that a marker or a list of digests names, partials and
//! their records. Another file in a set's folder keeps the folder; a link is removed and never followed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::blobs::{BLOBS, is_locked};
use super::records::{COMPLETE, PART, RECEIVED, checked, hold, is_folder, marker, received, way_out};
use super::references::{Reader, readers};
use super::users::{self, User};
use crate::agent::download::record;
use crate::agent::error::AgentError;
use crate::agent::files::{remove, sweep};
use crate::agent::layout::{Layout, check_file_name};
use crate::inventory::{Collected, CollectedItem, CollectedKind, KeptSet, Response};

/// Depth of a set's folders.
const MAX_DEPTH: u32 = 8;

/// What to keep, and whether to look only.
pub struct Collect<'a> {
    /// The store.
    pub root: &'a Path,
    /// Revisions that stay.
    pub keep: &'a [String],
    /// Whether `keep` has what the other nodes of this cluster run.
    pub accounted: bool,
    /// Whether nothing is removed.
    pub dry_run: bool,
    /// How long an unfinished transfer must have been silent to count as dead.
    pub min_age: Duration,
}

/// A folder of the store that holds a set, whole or not.
struct Set {
    folder: PathBuf,
    name: String,
    source: Option<String>,
    revision: Option<String>,
    complete: bool,
    /// Files that the marker or the list of digests names, and that are there.
    files: Vec<PathBuf>,
    partials: Vec<PathBuf>,
    size_bytes: u64,
}

/// What is going to be removed, in order.
#[derive(Default)]
struct Going {
    items: Vec<CollectedItem>,
    paths: Vec<PathBuf>,
    folders: Vec<PathBuf>,
    partials: u64,
}

/// Answers `Collect`.
pub fn collect(layout: &Layout, wanted: &Collect<'_>) -> Result<Response, AgentError> {
    let told = |path: &Path| path.display().to_string();
    let empty = Collected { root: told(wanted.root), ..Collected::default() };
    let Ok(root) = wanted.root.canonicalize() else { return Ok(Response::Collected { collected: empty }) };
    // Nobody claims a set that is about to go, nor links a content that is into a new one.
    let claims = if wanted.dry_run { None } else { users::hold_all(&root) };
    let held = hold(&root.join(BLOBS));
    let (readers, users) = match readers(&layout.home).and_then(|readers| Ok((readers, users::users(&root)?))) {
        Ok(found) => found,
        Err(problem) => {
            let problem = format!("nothing was removed, because it is not known what is used: {problem}");
            let collected = Collected { problem: Some(problem), root_id: users::id(&root), ..empty };
            return Ok(Response::Collected { collected });
        }
    };
    let users: Vec<User> = users.into_iter().map(|(_, user)| user).collect();
    let read: Vec<PathBuf> = readers.iter().flat_map(paths).collect();
    let (mut going, mut kept, mut digests) = (Going::default(), Vec::new(), BTreeSet::new());
    for set in sets(&root)? {
        match reason(layout, wanted, &set, &readers, &users) {
            Some(why) => {
                digests.extend(checked(&set.folder).into_values().map(|known| known.sha256));
                if set.complete {
                    going.leave_partials(&set, wanted.min_age);
                }
                let Set { source, revision, size_bytes, .. } = set;
                kept.push(KeptSet { path: told(&set.folder), source, revision, size_bytes, why });
            }
            None => going.take(set),
        }
    }
    going.take_blobs(&root.join(BLOBS), &digests, &read, wanted.min_age);
    let freed_bytes = freed(&going.paths);
    let problem = if wanted.dry_run { None } else { going.remove(&root, wanted.min_age) };
    drop((held, claims));
    if !wanted.dry_run {
        users::tidy(&root);
    }
    going.items.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(Response::Collected {
        collected: Collected {
            root: told(&root),
            root_id: users::id(&root),
            removed: going.items,
            kept,
            freed_bytes,
            partials: going.partials,
            problem,
        },
    })
}

/// Why a set stays; `None` where it goes.
fn reason(layout: &Layout, wanted: &Collect<'_>, set: &Set, readers: &[Reader], users: &[User]) -> Option<String> {
    let planned = |revision: &String| set.revision.as_ref() == Some(revision) || short(revision) == set.name;
    if let Some(reader) = readers.iter().find(|reader| reads(reader, set)) {
        return Some(format!("{} reads it", reader.name));
    }
    if wanted.keep.iter().any(planned) {
        return Some("the config names it".to_owned());
    }
    if set.partials.iter().any(|part| is_locked(part)) {
        return Some("it is being received".to_owned());
    }
    if fs::symlink_metadata(&set.folder).ok().is_none_or(|meta| meta.uid() != rustix::process::geteuid().as_raw()) {
        return Some("it belongs to another user of the machine".to_owned());
    }
    // A partial alone may be of a transfer on a machine whose locks cannot be seen here.
    if !set.complete && set.partials.iter().chain(&set.files).any(|path| is_young(path, wanted.min_age)) {
        return Some("a transfer wrote to it just now".to_owned());
    }
    let claims = |user: &&User| user.sets.contains_key(&set.name) && !user.has_left();
    users.iter().filter(claims).find_map(|user| {
        let User { cluster, node, host, .. } = user;
        if !user.is_of(layout) {
            return Some(format!("it was brought for cluster {cluster}, on {node}: `flock gc` there removes it"));
        }
        // What this home's states say was looked at; another home's can only be asked for.
        let known = user.is_seen(layout) || (wanted.accounted && user.is_ours(layout));
        (!known).then(|| format!("{node} (on {host}) may read it, and its state cannot be seen here"))
    })
}

/// Whether an instance reads a set, by whatever path it names it.
fn reads(reader: &Reader, set: &Set) -> bool {
    let within = |path: &PathBuf| path.starts_with(&set.folder) || set.folder.starts_with(path);
    (reader.weights.revision.is_some() && reader.weights.revision == set.revision) || paths(reader).iter().any(within)
}

/// What an instance reads, with links followed: its folder, and files that are links to elsewhere.
fn paths(reader: &Reader) -> Vec<PathBuf> {
    let named = Path::new(&reader.weights.folder);
    let files = reader.weights.files.iter().filter_map(|name| named.join(name).canonicalize().ok());
    std::iter::once(named.canonicalize().unwrap_or_else(|_| named.to_owned())).chain(files).collect()
}

/// The name that a plan gives the folder of a revision.
fn short(revision: &str) -> String {
    revision.strip_prefix("sha256:").unwrap_or(revision).chars().take(16).collect()
}

/// The sets of a store: folders with a marker or a list of digests, and those that a plan named.
fn sets(root: &Path) -> Result<Vec<Set>, AgentError> {
    let entries = fs::read_dir(root).map_err(AgentError::file("reading", root))?;
    let mut sets = Vec::new();
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let folder = entry.path();
        let found = marker(&folder);
        let hex = name.len() == 16 && name.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        if name.starts_with('.') || !(found.is_some() || hex || folder.join(RECEIVED).is_file()) {
            continue;
        }
        let named: BTreeSet<String> = checked(&folder)
            .into_keys()
            .chain(found.iter().flat_map(|found| found.fetch.files.iter().map(|file| file.name.clone())))
            .filter(|name| check_file_name(name).is_ok() && way_out(&folder, name).is_none())
            .collect();
        let files: Vec<PathBuf> = named.iter().map(|name| folder.join(name)).filter(|path| is_there(path)).collect();
        let mut partials = Vec::new();
        list_partials(&folder, 0, &mut partials);
        let size = |path: &PathBuf| fs::metadata(path).map_or(0, |meta| meta.len());
        let size_bytes = files.iter().chain(&partials).map(size).fold(0, u64::saturating_add);
        let complete = found.as_ref().is_some_and(|found| found.moved(&folder).is_none());
        let (source, revision) = found.map(|found| (found.fetch.source, found.fetch.revision)).unzip();
        sets.push(Set { folder, name, source, revision, complete, files, partials, size_bytes });
    }
    sets.sort_by(|a, b| a.folder.cmp(&b.folder));
    Ok(sets)
}

/// A file or a link in a folder of the set that is no link itself.
fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| !found.is_dir())
}

fn list_partials(folder: &Path, depth: u32, partials: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() && depth < MAX_DEPTH {
            list_partials(&entry.path(), depth + 1, partials);
        } else if kind.is_file() && entry.file_name().to_str().is_some_and(|name| name.ends_with(PART)) {
            partials.push(entry.path());
        }
    }
    partials.sort();
}

fn is_young(path: &Path, min_age: Duration) -> bool {
    let modified = fs::symlink_metadata(path).and_then(|meta| meta.modified());
    // A time in the future is another machine's clock.
    modified.is_ok_and(|time| time.elapsed().map_or(!min_age.is_zero(), |since| since < min_age))
}

impl Going {
    fn take(&mut self, set: Set) {
        let Set { folder, source, revision, files, partials, size_bytes, complete, .. } = set;
        let path = folder.display().to_string();
        // A set of which nothing ever was whole is a partial.
        let kind = if complete || !files.is_empty() { CollectedKind::Set } else { CollectedKind::Partial };
        self.partials += partials.len() as u64;
        self.items.push(CollectedItem { kind, path, source, revision, size_bytes });
        self.paths.extend(files);
        for part in partials {
            self.paths.push(record::path(&part));
            self.paths.push(part);
        }
        // The marker last: what is removed half is still known.
        self.paths.extend([folder.join(RECEIVED), folder.join(COMPLETE)]);
        self.folders.push(folder);
    }

    /// Partials of a set that is whole: nobody needs them.
    fn leave_partials(&mut self, set: &Set, min_age: Duration) {
        for part in set.partials.iter().filter(|part| !is_locked(part) && !is_young(part, min_age)) {
            self.partials += 1;
            self.items.push(CollectedItem {
                kind: CollectedKind::Partial,
                path: part.display().to_string(),
                source: set.source.clone(),
                revision: set.revision.clone(),
                size_bytes: fs::metadata(part).map_or(0, |meta| meta.len()),
            });
            self.paths.extend([record::path(part), part.clone()]);
        }
    }

    /// Contents that no set has once the others are gone.
    fn take_blobs(&mut self, blobs: &Path, digests: &BTreeSet<String>, read: &[PathBuf], min_age: Duration) {
        // A link there could lead to a cache that names its files by their digests as well.
        if !is_folder(blobs) {
            return;
        }
        let mut names: BTreeMap<(u64, u64), u64> = BTreeMap::new();
        for meta in self.paths.iter().filter_map(|path| fs::symlink_metadata(path).ok()).filter(fs::Metadata::is_file) {
            *names.entry((meta.dev(), meta.ino())).or_default() += 1;
        }
        let folders = |path: &Path| {
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            let found = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            found.map(|entry| entry.path()).collect::<BTreeSet<_>>()
        };
        for shelf in folders(blobs) {
            let files = fs::read_dir(&shelf).into_iter().flatten().flatten().map(|entry| entry.path());
            for blob in files.collect::<BTreeSet<_>>() {
                let Ok(meta) = fs::symlink_metadata(&blob) else { continue };
                let name = blob.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                let named = name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
                let with_sets = names.get(&(meta.dev(), meta.ino())).copied().unwrap_or(0);
                let elsewhere = meta.nlink().saturating_sub(with_sets) > 1;
                let ours = meta.uid() == rustix::process::geteuid().as_raw();
                let wanted = digests.contains(&format!("sha256:{name}")) || read.contains(&blob);
                if !named || !meta.is_file() || !ours || elsewhere || wanted {
                    continue;
                }
                if with_sets == 0 {
                    // Somebody may be about to link it.
                    if is_young(&blob, min_age) {
                        continue;
                    }
                    self.items.push(CollectedItem {
                        kind: CollectedKind::Blob,
                        path: blob.display().to_string(),
                        source: None,
                        revision: None,
                        size_bytes: meta.len(),
                    });
                }
                self.paths.push(blob);
            }
            self.folders.push(shelf);
        }
    }

    /// Removes what is to go; what could not be.
    fn remove(&self, root: &Path, min_age: Duration) -> Option<String> {
        let mut problems = Vec::new();
        for path in &self.paths {
            if let Err(error) = remove(path) {
                problems.push(error.chain());
            }
        }
        for folder in &self.folders {
            if folder.starts_with(root.join(BLOBS)) {
                forget_blobs(folder);
            }
            sweep(folder, min_age);
            remove_empty(folder, 0);
        }
        let more = problems.len().saturating_sub(1);
        let first = problems.into_iter().next()?;
        Some(if more == 0 { first } else { format!("{first} (and {more} more)") })
    }
}

/// What a shelf's list knows of contents that are gone.
fn forget_blobs(shelf: &Path) {
    let _held = hold(shelf);
    let mut known = received(shelf);
    let before = known.len();
    known.retain(|name, _| shelf.join(name).is_file());
    if known.is_empty() {
        let _ = remove(&shelf.join(RECEIVED));
    } else if known.len() != before {
        let _ = crate::agent::files::write_json(&shelf.join(RECEIVED), &known);
    }
}

/// Removes folders in which nothing is left.
fn remove_empty(folder: &Path, depth: u32) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        if depth < MAX_DEPTH {
            remove_empty(&entry.path(), depth + 1);
        }
    }
    // Not where something is.
    let _ = fs::remove_dir(folder);
}

/// Bytes of the disk that come free with these names: a file's, once all its names are among them.
fn freed(paths: &[PathBuf]) -> u64 {
    let mut files: BTreeMap<(u64, u64), (u64, u64, u64)> = BTreeMap::new();
    for path in paths.iter().collect::<BTreeSet<_>>() {
        let Ok(meta) = fs::symlink_metadata(path) else { continue };
        let file = files.entry((meta.dev(), meta.ino())).or_insert((0, meta.nlink(), meta.blocks() * 512));
        file.0 += 1;
    }
    files.values().filter(|(named, names, _)| named >= names).map(|(_, _, bytes)| bytes).sum()
}
