//! Weights on disk: `FOLDER/NAME` once checked, `FOLDER/NAME.part` on the way, and
//! `FOLDER/.flock-complete.json` when every file of the set is there and had its digest. Until then,
//! `FOLDER/.flock-received.json` says which digests were found: a file that merely has the right name and
//! size is not taken for the right one, and one that was written to since is read again.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::AgentError;
use super::files::{disk_space, read_json, remove, sweep, sync_folder, write_json};
use super::frames::{Frame, read_frame};
use super::layout::{check_file_name, check_folder};
use crate::base::{Digest, Hasher};
use crate::inventory::{FetchFile, FetchSpec, FrameError, KIND_JSON, Refusal, Response, WeightsFound, WeightsRef};

/// Name of the marker.
pub const COMPLETE: &str = ".flock-complete.json";

/// Name of the list of checked digests.
const RECEIVED: &str = ".flock-received.json";
/// Its content, by file name.
type Received = BTreeMap<String, Checked>;

/// What a file was when its digest was taken.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Checked {
    /// The digest that was found.
    sha256: String,
    /// When it had last been written, nanoseconds since the Unix epoch; unknown in the records of older agents.
    #[serde(default)]
    modified_ns: Option<i64>,
}

/// The marker's content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Complete {
    format: u32,
    fetch: FetchSpec,
    /// When each file had last been written, as in [`Checked`].
    #[serde(default)]
    modified_ns: BTreeMap<String, i64>,
}

/// How much of a set is there. Refused where the rest does not fit on the disk, before a byte travels.
pub fn state(fetch: &FetchSpec) -> Result<Response, AgentError> {
    let folder = check(fetch)?;
    read_again(fetch, &folder)?;
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
        let digest = File::open(&path).and_then(|mut file| hash(&mut file));
        let sha256 = digest.map_err(AgentError::file("reading", &path))?.finish().to_string();
        found.insert(file.name.clone(), Checked { sha256, modified_ns });
    }
    if found.is_empty() { Ok(()) } else { note(folder, found) }
}

/// Holds the folder itself against others who note something in it. Some network file systems lock no folders: there
/// two may overwrite each other, and what is lost is read again.
fn hold(folder: &Path) -> Option<File> {
    let opened = File::open(folder).ok()?;
    rustix::fs::flock(&opened, rustix::fs::FlockOperation::LockExclusive).ok()?;
    Some(opened)
}

/// Notes digests beside those that others have noted meanwhile. One of a file that was written to since is worth
/// nothing.
fn note(folder: &Path, found: Received) -> Result<(), AgentError> {
    let _held = hold(folder);
    let mut received = checked(folder);
    received.extend(found.into_iter().filter(|(name, known)| modified(&folder.join(name)) == known.modified_ns));
    write_json(&folder.join(RECEIVED), &received)
}

fn modified(path: &Path) -> Option<i64> {
    let meta = fs::metadata(path).ok()?;
    meta.mtime().checked_mul(1_000_000_000)?.checked_add(meta.mtime_nsec())
}

/// Whether a file was not written to since; where nobody remembers when that was, its size must do.
fn unmoved(path: &Path, modified_ns: Option<i64>) -> bool {
    modified_ns.is_none() || modified(path) == modified_ns
}

fn fetched(fetch: &FetchSpec, folder: &Path) -> Response {
    let checked = checked(folder);
    let have_bytes = fetch.files.iter().map(|file| have(folder, file, &checked)).collect();
    Response::Fetched { complete: is_complete(folder, &fetch.revision), have_bytes }
}

/// Digests of files that have been checked here, by name.
fn checked(folder: &Path) -> Received {
    let mut checked = Received::new();
    if let Some(Complete { fetch, modified_ns, .. }) = marker(folder) {
        checked.extend(fetch.files.into_iter().filter_map(|file| {
            let modified_ns = modified_ns.get(&file.name).copied();
            Some((file.name, Checked { sha256: file.sha256?, modified_ns }))
        }));
    }
    // Newer than the marker where both speak of a file.
    checked.extend(read_json::<Received>(&folder.join(RECEIVED)).ok().flatten().unwrap_or_default());
    checked
}

/// Whether the whole file is there and is the right one.
fn is_whole(folder: &Path, file: &FetchFile, checked: &Received) -> bool {
    let path = folder.join(&file.name);
    let same = checked
        .get(&file.name)
        .is_some_and(|known| Some(&known.sha256) == file.sha256.as_ref() && unmoved(&path, known.modified_ns));
    same && length(&path) == Some(file.size_bytes)
}

/// Bytes of a file that need not be sent again: all of it once checked, else the partial's length.
fn have(folder: &Path, file: &FetchFile, checked: &Received) -> u64 {
    if is_whole(folder, file, checked) {
        return file.size_bytes;
    }
    length(&part(folder, &file.name)).filter(|length| *length <= file.size_bytes).unwrap_or(0)
}

fn length(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|meta| meta.len())
}

fn part(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.part"))
}

/// The folder, with every name checked.
fn check(fetch: &FetchSpec) -> Result<PathBuf, AgentError> {
    for file in &fetch.files {
        check_file_name(&file.name)?;
    }
    check_folder(&fetch.folder)
}

/// Refuses unless what is missing of all files fits together.
fn check_disk(fetch: &FetchSpec, folder: &Path) -> Result<(), AgentError> {
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

/// Receives one file. The frames are read to their end even where the file is refused, so that the stream
/// stays in step; where the stream itself ends, the partial stays and the error is the stream's.
pub fn put(fetch: &FetchSpec, name: &str, offset: u64, input: &mut impl Read) -> Result<Response, AgentError> {
    let mut incoming = Incoming { input, ended: false };
    let answer = receive(fetch, name, offset, &mut incoming);
    if let Err(error @ (AgentError::Stream { .. } | AgentError::Frame(_))) = answer {
        return Err(error);
    }
    while incoming.next()?.is_some() {}
    answer
}

/// Raw frames up to the empty one.
struct Incoming<'a, R> {
    input: &'a mut R,
    ended: bool,
}

impl<R: Read> Incoming<'_, R> {
    fn next(&mut self) -> Result<Option<Vec<u8>>, AgentError> {
        if self.ended {
            return Ok(None);
        }
        match read_frame(self.input)? {
            Some(Frame::Raw(bytes)) if bytes.is_empty() => {
                self.ended = true;
                Ok(None)
            }
            Some(Frame::Raw(bytes)) => Ok(Some(bytes)),
            Some(Frame::Json(_)) => Err(FrameError::Kind(KIND_JSON).into()),
            None => {
                Err(AgentError::Stream { action: "reading a file", source: std::io::ErrorKind::UnexpectedEof.into() })
            }
        }
    }
}

fn receive<R: Read>(
    fetch: &FetchSpec,
    name: &str,
    offset: u64,
    incoming: &mut Incoming<'_, R>,
) -> Result<Response, AgentError> {
    let folder = check(fetch)?;
    let file = fetch.files.iter().find(|file| file.name == name);
    let file = file.ok_or_else(|| Refusal::Unknown { what: format!("file {name} of the set") })?;
    let expected = file.sha256.as_deref().and_then(Digest::parse);
    let expected = expected.ok_or_else(|| AgentError::Other(format!("{name} comes without a digest")))?;
    let whole = folder.join(name);
    if is_whole(&folder, file, &checked(&folder)) {
        return Ok(fetched(fetch, &folder));
    }
    check_disk(fetch, &folder)?;
    let path = part(folder.as_path(), name);
    fs::create_dir_all(path.parent().unwrap_or(&folder)).map_err(AgentError::file("creating", &folder))?;
    let (mut output, mut hasher) = resume(&path, offset)?;
    let mut position = offset;
    let writing = || AgentError::file("writing", &path);
    while let Some(bytes) = incoming.next()? {
        position = position.saturating_add(bytes.len() as u64);
        if position > file.size_bytes {
            return Err(AgentError::Other(format!("{name} is longer than its {} bytes", file.size_bytes)));
        }
        hasher.update(&bytes);
        output.write_all(&bytes).map_err(writing())?;
    }
    output.sync_all().map_err(writing())?;
    if position < file.size_bytes {
        return Ok(fetched(fetch, &folder));
    }
    let found = hasher.finish();
    if found != expected {
        fs::remove_file(&path).map_err(AgentError::file("removing", &path))?;
        let (expected, found) = (expected.to_string(), found.to_string());
        return Err(Refusal::Digest { file: name.to_owned(), expected, found }.into());
    }
    fs::rename(&path, &whole).map_err(AgentError::file("writing", &whole))?;
    sync_folder(whole.parent().unwrap_or(&folder)).map_err(writing())?;
    let checked = Checked { sha256: expected.to_string(), modified_ns: modified(&whole) };
    note(&folder, Received::from([(name.to_owned(), checked)]))?;
    Ok(fetched(fetch, &folder))
}

/// Opens the partial for this transfer alone, cuts it to `offset` and hashes what is kept.
fn resume(path: &Path, offset: u64) -> Result<(File, Hasher), AgentError> {
    // Where others write too, a link there could lead anywhere.
    let no_link = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).custom_flags(no_link);
    let mut file = options.open(path).map_err(AgentError::file("opening", path))?;
    if !file.metadata().is_ok_and(|found| found.is_file()) {
        return Err(AgentError::Path { path: path.display().to_string(), problem: "is not a file" });
    }
    let lock = rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive);
    if lock == Err(rustix::io::Errno::WOULDBLOCK) {
        return Err(Refusal::Busy { what: path.display().to_string() }.into());
    }
    let length = file.metadata().map_err(AgentError::file("reading", path))?.len();
    if offset > length {
        return Err(AgentError::Other(format!("{} holds {length} bytes, not {offset}", path.display())));
    }
    file.set_len(offset).map_err(AgentError::file("writing", path))?;
    let hasher = hash(&mut file).map_err(AgentError::file("reading", path))?;
    file.seek(SeekFrom::Start(offset)).map_err(AgentError::file("reading", path))?;
    Ok((file, hasher))
}

fn hash(file: &mut File) -> std::io::Result<Hasher> {
    let mut hasher = Hasher::new();
    let mut buffer = vec![0u8; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hasher),
            read => hasher.update(&buffer[..read]),
        }
    }
}

/// Marks a set complete once every file is there and was checked.
pub fn done(fetch: &FetchSpec) -> Result<Response, AgentError> {
    let folder = check(fetch)?;
    let checked = checked(&folder);
    if let Some(file) = fetch.files.iter().find(|file| !is_whole(&folder, file, &checked)) {
        let have = have(&folder, file, &checked);
        return Err(AgentError::Other(format!("{} has {have} of {} checked bytes", file.name, file.size_bytes)));
    }
    fs::create_dir_all(&folder).map_err(AgentError::file("creating", &folder))?;
    let times = fetch.files.iter().filter_map(|file| Some((file.name.clone(), modified(&folder.join(&file.name))?)));
    let modified_ns = times.collect();
    write_json(&folder.join(COMPLETE), &Complete { format: 1, fetch: fetch.clone(), modified_ns })?;
    let held = hold(&folder);
    // What is noted of files of other sets stays.
    let mut others: Received = read_json(&folder.join(RECEIVED)).ok().flatten().unwrap_or_default();
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

impl Complete {
    /// The first file that is not as it was: gone, of another size, or written to since.
    fn moved(&self, folder: &Path) -> Option<&str> {
        let there = |file: &&FetchFile| {
            let path = folder.join(&file.name);
            check_file_name(&file.name).is_ok()
                && length(&path) == Some(file.size_bytes)
                && unmoved(&path, self.modified_ns.get(&file.name).copied())
        };
        self.fetch.files.iter().find(|file| !there(file)).map(|file| file.name.as_str())
    }
}

fn marker(folder: &Path) -> Option<Complete> {
    read_json(&folder.join(COMPLETE)).ok().flatten()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::raw_frame;
    use std::collections::BTreeSet;

    const CONTENT: &[u8] = b"sixteen bytes...";

    #[test]
    fn what_several_note_at_once_is_all_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let names: Vec<String> = (0..16).map(|number| format!("part-{number}.gguf")).collect();
        std::thread::scope(|scope| {
            for name in &names {
                let folder = &folder;
                scope.spawn(move || {
                    let path = folder.path().join(name);
                    fs::write(&path, CONTENT).expect("written");
                    let checked = Checked { sha256: Digest::of(CONTENT).to_string(), modified_ns: modified(&path) };
                    note(folder.path(), Received::from([(name.clone(), checked)])).expect("noted");
                });
            }
        });
        assert_eq!(checked(folder.path()).into_keys().collect::<BTreeSet<_>>(), names.iter().cloned().collect());
        // A digest of something that was written to since says nothing.
        let stale = Checked { sha256: "sha256:00".into(), modified_ns: Some(1) };
        note(folder.path(), Received::from([(names[0].clone(), stale)])).expect("noted");
        assert_eq!(checked(folder.path())[&names[0]].sha256, Digest::of(CONTENT).to_string());
        // A set that is done takes only its own away.
        let mut set = spec(folder.path(), CONTENT.len() as u64);
        set.folder = folder.path().display().to_string();
        set.files[0].name.clone_from(&names[3]);
        done(&set).expect("whole");
        let left: Received = read_json(&folder.path().join(RECEIVED)).expect("read").expect("there");
        assert!(left.len() == 15 && !left.contains_key(&names[3]), "{left:?}");
    }

    #[test]
    fn a_partial_that_is_a_link_is_not_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (victim, part) = (folder.path().join("victim"), folder.path().join("a.part"));
        fs::write(&victim, "precious").expect("written");
        std::os::unix::fs::symlink(&victim, &part).expect("linked");
        assert!(resume(&part, 0).is_err());
        assert_eq!(fs::read(&victim).expect("there"), b"precious");
    }

    #[test]
    fn a_marker_with_impossible_sizes_is_told_all_the_same() {
        let top = tempfile::tempdir().expect("a folder");
        let mut set = spec(top.path(), u64::MAX);
        set.files.push(FetchFile { name: "b".into(), ..set.files[0].clone() });
        let marker = Complete { format: 1, fetch: set.clone(), modified_ns: BTreeMap::new() };
        write_json(&Path::new(&set.folder).join(COMPLETE), &marker).expect("written");
        assert_eq!(found(top.path())[0].size_bytes, u64::MAX);
    }

    fn spec(folder: &Path, size_bytes: u64) -> FetchSpec {
        FetchSpec {
            source: "path:models/tiny.gguf".into(),
            revision: "sha256:00".into(),
            folder: folder.join("0000").display().to_string(),
            files: vec![FetchFile {
                name: "sub/tiny.gguf".into(),
                size_bytes,
                sha256: Some(Digest::of(CONTENT).to_string()),
            }],
        }
    }

    fn stream(pieces: &[&[u8]]) -> Vec<u8> {
        pieces.iter().copied().chain([&b""[..]]).flat_map(raw_frame).collect()
    }

    #[test]
    fn a_cut_transfer_resumes_where_it_ended() {
        let root = tempfile::tempdir().expect("a folder");
        let fetch = spec(root.path(), 16);
        let cut = raw_frame(&CONTENT[..7]);
        let lost = put(&fetch, "sub/tiny.gguf", 0, &mut cut.as_slice());
        assert!(matches!(lost, Err(AgentError::Stream { .. })));
        let after = state(&fetch).expect("asked");
        assert_eq!(after, Response::Fetched { complete: false, have_bytes: vec![7] });
        assert!(done(&fetch).is_err());
        let rest = stream(&[&CONTENT[7..9], &CONTENT[9..]]);
        let mut input = rest.as_slice();
        let answer = put(&fetch, "sub/tiny.gguf", 7, &mut input).expect("received");
        assert_eq!(answer, Response::Fetched { complete: false, have_bytes: vec![16] });
        assert!(input.is_empty());
        assert_eq!(done(&fetch).expect("marked"), Response::Fetched { complete: true, have_bytes: vec![16] });
        assert_eq!(found(root.path())[0].files, ["sub/tiny.gguf"]);
        let folder = fetch.folder.clone();
        let set = WeightsRef { revision: Some(fetch.revision), folder, files: vec!["sub/tiny.gguf".into()] };
        assert_eq!(missing(std::slice::from_ref(&set)), None);
        fs::write(Path::new(&set.folder).join("sub/tiny.gguf"), b"short").expect("damaged");
        assert!(missing(&[set]).is_some());
        assert!(!found(root.path())[0].complete);
    }

    #[test]
    fn a_wrong_digest_leaves_nothing_and_the_stream_stays_in_step() {
        let root = tempfile::tempdir().expect("a folder");
        let fetch = spec(root.path(), 16);
        let wrong = stream(&[b"SIXTEEN BYTES..."]);
        let mut input = wrong.as_slice();
        let refused = put(&fetch, "sub/tiny.gguf", 0, &mut input);
        assert!(matches!(refused, Err(AgentError::Refused(Refusal::Digest { .. }))), "{refused:?}");
        assert!(input.is_empty());
        assert_eq!(state(&fetch).expect("asked"), Response::Fetched { complete: false, have_bytes: vec![0] });
    }

    #[test]
    fn a_file_of_the_right_size_is_not_taken_for_the_right_one() {
        let root = tempfile::tempdir().expect("a folder");
        let fetch = spec(root.path(), 16);
        let whole = Path::new(&fetch.folder).join("sub/tiny.gguf");
        fs::create_dir_all(whole.parent().expect("a parent")).expect("made");
        fs::write(&whole, b"SIXTEEN BYTES...").expect("written");
        assert_eq!(state(&fetch).expect("asked"), Response::Fetched { complete: false, have_bytes: vec![0] });
        assert!(done(&fetch).is_err());
        put(&fetch, "sub/tiny.gguf", 0, &mut stream(&[CONTENT]).as_slice()).expect("received");
        done(&fetch).expect("marked");
        assert_eq!(fs::read(&whole).expect("read"), CONTENT);
        // Once complete, nothing is sent again, and the marker alone remembers.
        assert_eq!(state(&fetch).expect("asked"), Response::Fetched { complete: true, have_bytes: vec![16] });
        assert!(!Path::new(&fetch.folder).join(RECEIVED).exists());
    }

    #[test]
    fn what_was_written_to_since_is_read_again() {
        let root = tempfile::tempdir().expect("a folder");
        let fetch = spec(root.path(), 16);
        let set = [WeightsRef {
            revision: Some(fetch.revision.clone()),
            folder: fetch.folder.clone(),
            files: vec!["sub/tiny.gguf".into()],
        }];
        let whole = Path::new(&fetch.folder).join("sub/tiny.gguf");
        let write_to = |content: &[u8], seconds| {
            fs::write(&whole, content).expect("written");
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            File::options()
                .write(true)
                .open(&whole)
                .and_then(|file| file.set_modified(time))
                .expect("a time of its own");
        };
        put(&fetch, "sub/tiny.gguf", 0, &mut stream(&[CONTENT]).as_slice()).expect("received");
        done(&fetch).expect("marked");

        write_to(b"SIXTEEN BYTES...", 1_000);
        assert!(missing(&set).is_some_and(|text| text.contains("changed since")), "{:?}", missing(&set));
        assert!(!found(root.path())[0].complete);
        assert_eq!(state(&fetch).expect("asked"), Response::Fetched { complete: false, have_bytes: vec![0] });
        assert!(done(&fetch).is_err());
        put(&fetch, "sub/tiny.gguf", 0, &mut stream(&[CONTENT]).as_slice()).expect("received");
        done(&fetch).expect("marked");
        assert_eq!((missing(&set), fs::read(&whole).expect("read")), (None, CONTENT.to_vec()));

        // Touched, and the same: nothing is sent again.
        write_to(CONTENT, 2_000);
        assert!(missing(&set).is_some());
        assert_eq!(state(&fetch).expect("asked"), Response::Fetched { complete: false, have_bytes: vec![16] });
        done(&fetch).expect("marked");
        assert_eq!(missing(&set), None);
    }

    #[test]
    fn a_second_transfer_of_a_file_is_told_that_there_is_one() {
        let root = tempfile::tempdir().expect("a folder");
        let fetch = spec(root.path(), 16);
        let path = part(Path::new(&fetch.folder), "sub/tiny.gguf");
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        let (_held, _) = resume(&path, 0).expect("free");
        let refused = put(&fetch, "sub/tiny.gguf", 0, &mut stream(&[CONTENT]).as_slice());
        assert!(matches!(refused, Err(AgentError::Refused(Refusal::Busy { .. }))), "{refused:?}");
    }

    #[test]
    fn what_does_not_fit_or_leaves_its_folder_is_refused_before_it_is_written() {
        let root = tempfile::tempdir().expect("a folder");
        let huge = spec(root.path(), 1 << 60);
        assert!(matches!(state(&huge), Err(AgentError::Refused(Refusal::Disk { .. }))));
        let frames = stream(&[CONTENT]);
        let mut input = frames.as_slice();
        assert!(matches!(put(&huge, "sub/tiny.gguf", 0, &mut input), Err(AgentError::Refused(Refusal::Disk { .. }))));
        assert!(input.is_empty());
        let mut outside = spec(root.path(), 16);
        outside.files[0].name = "../escape".into();
        assert!(put(&outside, "../escape", 0, &mut frames.as_slice()).is_err());
        assert_eq!(fs::read_dir(root.path()).expect("listed").count(), 0);
        let long = stream(&[CONTENT, b"more"]);
        assert!(put(&spec(root.path(), 16), "sub/tiny.gguf", 0, &mut long.as_slice()).is_err());
        assert!(put(&spec(root.path(), 16), "sub/tiny.gguf", 99, &mut frames.as_slice()).is_err());
    }
}
