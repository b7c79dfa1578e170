//! What is known of the files of a folder: digests that were found, and the marker of a complete set.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::agent::download::record;
use crate::agent::error::AgentError;
use crate::agent::files::{read_json, write_json};
use crate::agent::layout::{check_file_name, check_folder};
use crate::base::{Digest, Hasher};
use crate::inventory::{FetchFile, FetchSpec};

/// Name of the marker.
pub const COMPLETE: &str = ".flock-complete.json";
/// Name of the list of checked digests.
pub const RECEIVED: &str = ".flock-received.json";
/// End of the name of a file on its way.
pub const PART: &str = ".part";

/// The list's content, by file name.
pub type Received = BTreeMap<String, Checked>;

/// What a file was when its digest was taken.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Checked {
    /// The digest that was found.
    pub sha256: String,
    /// When it had last been written, nanoseconds since the Unix epoch; unknown in the records of older agents.
    #[serde(default)]
    pub modified_ns: Option<i64>,
}

impl Checked {
    /// A file as it is now.
    pub fn now(path: &Path, sha256: &Digest) -> Self {
        Self { sha256: sha256.to_string(), modified_ns: modified(path) }
    }
}

/// The marker's content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Complete {
    pub format: u32,
    pub fetch: FetchSpec,
    /// When each file had last been written, as in [`Checked`].
    #[serde(default)]
    pub modified_ns: BTreeMap<String, i64>,
}

impl Complete {
    /// The first file that is not as it was: gone, of another size, or written to since.
    pub fn moved(&self, folder: &Path) -> Option<&str> {
        let there = |file: &&FetchFile| {
            let path = folder.join(&file.name);
            check_file_name(&file.name).is_ok()
                && length(&path) == Some(file.size_bytes)
                && unmoved(&path, self.modified_ns.get(&file.name).copied())
        };
        self.fetch.files.iter().find(|file| !there(file)).map(|file| file.name.as_str())
    }
}

/// The marker of a folder.
pub fn marker(folder: &Path) -> Option<Complete> {
    read_json(&folder.join(COMPLETE)).ok().flatten()
}

/// Holds the folder itself against others who note something in it. Some network file systems lock no folders: there
/// two may overwrite each other, and what is lost is read again.
pub fn hold(folder: &Path) -> Option<File> {
    let opened = File::open(folder).ok()?;
    rustix::fs::flock(&opened, rustix::fs::FlockOperation::LockExclusive).ok()?;
    Some(opened)
}

/// Notes digests beside those that others have noted meanwhile. One of a file that was written to since is worth
/// nothing.
pub fn note(folder: &Path, found: Received) -> Result<(), AgentError> {
    let _held = hold(folder);
    let mut received = received(folder);
    received.extend(found.into_iter().filter(|(name, known)| modified(&folder.join(name)) == known.modified_ns));
    write_json(&folder.join(RECEIVED), &received)
}

/// What is noted in a folder, its marker left out.
pub fn received(folder: &Path) -> Received {
    read_json(&folder.join(RECEIVED)).ok().flatten().unwrap_or_default()
}

/// Digests of files that have been checked here, by name.
pub fn checked(folder: &Path) -> Received {
    let mut checked = Received::new();
    if let Some(Complete { fetch, modified_ns, .. }) = marker(folder) {
        checked.extend(fetch.files.into_iter().filter_map(|file| {
            let modified_ns = modified_ns.get(&file.name).copied();
            Some((file.name, Checked { sha256: file.sha256?, modified_ns }))
        }));
    }
    // Newer than the marker where both speak of a file.
    checked.extend(received(folder));
    checked
}

/// When a file had last been written.
pub fn modified(path: &Path) -> Option<i64> {
    let meta = fs::metadata(path).ok()?;
    meta.mtime().checked_mul(1_000_000_000)?.checked_add(meta.mtime_nsec())
}

/// Whether a file was not written to since; where nobody remembers when that was, its size must do.
pub fn unmoved(path: &Path, modified_ns: Option<i64>) -> bool {
    modified_ns.is_none() || modified(path) == modified_ns
}

/// Whether the whole file is there and is the right one.
pub fn is_whole(folder: &Path, file: &FetchFile, checked: &Received) -> bool {
    let path = folder.join(&file.name);
    let same = checked
        .get(&file.name)
        .is_some_and(|known| Some(&known.sha256) == file.sha256.as_ref() && unmoved(&path, known.modified_ns));
    same && length(&path) == Some(file.size_bytes)
}

/// Whether the whole file is there, by what is noted now.
pub fn has(folder: &Path, file: &FetchFile) -> bool {
    is_whole(folder, file, &checked(folder))
}

/// Places in the set of the files that are not there whole.
pub fn absent(fetch: &FetchSpec, folder: &Path) -> Vec<usize> {
    let checked = checked(folder);
    (0..fetch.files.len()).filter(|at| !is_whole(folder, &fetch.files[*at], &checked)).collect()
}

/// Bytes of a file that need not be sent again: all of it once checked, else what the partial has without a gap.
pub fn have(folder: &Path, file: &FetchFile, checked: &Received) -> u64 {
    if is_whole(folder, file, checked) {
        return file.size_bytes;
    }
    let part = part(folder, &file.name);
    length(&part).filter(|length| *length <= file.size_bytes).map_or(0, |length| record::prefix(&part, length))
}

/// Files of a complete set, as its marker names them.
pub fn marked(folder: &Path) -> Vec<FetchFile> {
    marker(folder).map(|found| found.fetch.files).unwrap_or_default()
}

/// A file's size; `None` where there is no file.
pub fn length(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|meta| meta.len())
}

/// Where a file lies on its way.
pub fn part(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}{PART}"))
}

/// The set's folder, with every name checked.
pub fn check(fetch: &FetchSpec) -> Result<PathBuf, AgentError> {
    let folder = check_folder(&fetch.folder)?;
    for file in &fetch.files {
        check_file_name(&file.name)?;
        if let Some(path) = way_out(&folder, &file.name) {
            return Err(AgentError::Path { path: path.display().to_string(), problem: "is not a folder of the set" });
        }
    }
    Ok(folder)
}

/// What on the way from a set's folder to one of its files is there and is no folder: where others write too, a link
/// there could lead anywhere.
pub fn way_out(folder: &Path, name: &str) -> Option<PathBuf> {
    let between = Path::new(name).ancestors().skip(1).filter(|part| !part.as_os_str().is_empty());
    let mut paths = between.map(|part| folder.join(part));
    paths.find(|path| fs::symlink_metadata(path).is_ok_and(|found| !found.is_dir()))
}

/// Whether a folder is there that is no link to one.
pub fn is_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}

/// Whether a file is this user's own: nobody else can have written it.
pub fn is_ours(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.uid() == rustix::process::geteuid().as_raw())
}

/// The digest of what is left of a file. `tick` is told every few megabytes how many bytes were read.
pub fn hash(file: &mut File, tick: &mut dyn FnMut(u64)) -> std::io::Result<Hasher> {
    let mut hasher = Hasher::new();
    let mut buffer = vec![0u8; 1 << 20];
    let mut position = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hasher),
            read => {
                hasher.update(&buffer[..read]);
                position += read as u64;
            }
        }
        tick(position);
    }
}

/// The digest of a file.
pub fn digest(path: &Path) -> std::io::Result<Digest> {
    Ok(hash(&mut File::open(path)?, &mut |_| ())?.finish())
}
