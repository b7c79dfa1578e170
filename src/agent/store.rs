//! Weights on disk: `FOLDER/NAME` once checked, `FOLDER/NAME.part` on the way, and
//! `FOLDER/.flock-complete.json` when every file of the set is there and had its digest. Until then,
//! `FOLDER/.flock-received.json` says which digests were checked: a file that merely has the right name and
//! size is not taken for the right one.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::AgentError;
use super::files::{disk_space, read_json, remove, sync_folder, write_json};
use super::frames::{Frame, read_frame};
use super::layout::{check_file_name, check_folder};
use crate::base::{Digest, Hasher};
use crate::inventory::{FetchFile, FetchSpec, FrameError, KIND_JSON, Refusal, Response, WeightsFound, WeightsRef};

/// Name of the marker.
pub const COMPLETE: &str = ".flock-complete.json";

/// Name of the list of checked digests.
const RECEIVED: &str = ".flock-received.json";
/// Its content: digest by file name.
type Received = BTreeMap<String, String>;

/// The marker's content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Complete {
    format: u32,
    fetch: FetchSpec,
}

/// How much of a set is there. Refused where the rest does not fit on the disk, before a byte travels.
pub fn state(fetch: &FetchSpec) -> Result<Response, AgentError> {
    let folder = check(fetch)?;
    let fetched = fetched(fetch, &folder);
    check_disk(fetch, &folder)?;
    Ok(fetched)
}

fn fetched(fetch: &FetchSpec, folder: &Path) -> Response {
    let checked = checked(folder);
    let have_bytes = fetch.files.iter().map(|file| have(folder, file, &checked)).collect();
    Response::Fetched { complete: is_complete(folder, &fetch.revision), have_bytes }
}

/// Digests of files that have been checked here, by name.
fn checked(folder: &Path) -> Received {
    let mut checked: Received = read_json(&folder.join(RECEIVED)).ok().flatten().unwrap_or_default();
    let complete = marker(folder).map(|found| found.fetch.files).unwrap_or_default();
    checked.extend(complete.into_iter().filter_map(|file| Some((file.name, file.sha256?))));
    checked
}

/// Whether the whole file is there and is the right one.
fn is_whole(folder: &Path, file: &FetchFile, checked: &Received) -> bool {
    let same = file.sha256.is_some() && checked.get(&file.name) == file.sha256.as_ref();
    same && length(&folder.join(&file.name)) == Some(file.size_bytes)
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
    let mut received = checked(&folder);
    received.insert(name.to_owned(), expected.to_string());
    write_json(&folder.join(RECEIVED), &received)?;
    Ok(fetched(fetch, &folder))
}

/// Opens the partial for this transfer alone, cuts it to `offset` and hashes what is kept.
fn resume(path: &Path, offset: u64) -> Result<(File, Hasher), AgentError> {
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    let mut file = opened.map_err(AgentError::file("opening", path))?;
    let lock = rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive);
    if lock == Err(rustix::io::Errno::WOULDBLOCK) {
        return Err(AgentError::Other(format!("{} is being received already", path.display())));
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
    write_json(&folder.join(COMPLETE), &Complete { format: 1, fetch: fetch.clone() })?;
    remove(&folder.join(RECEIVED))?;
    Ok(fetched(fetch, &folder))
}

/// Whether the marker of this revision is there and its files still have their sizes.
pub fn is_complete(folder: &Path, revision: &str) -> bool {
    marker(folder)
        .is_some_and(|found| found.fetch.revision == revision && found.fetch.files.iter().all(present(folder)))
}

fn present(folder: &Path) -> impl Fn(&FetchFile) -> bool {
    move |file| check_file_name(&file.name).is_ok() && length(&folder.join(&file.name)) == Some(file.size_bytes)
}

fn marker(folder: &Path) -> Option<Complete> {
    read_json(&folder.join(COMPLETE)).ok().flatten()
}

/// Why an instance's weights cannot be read, if they cannot.
pub fn missing(weights: &[WeightsRef]) -> Option<String> {
    weights.iter().find_map(|set| {
        let folder = Path::new(&set.folder);
        if let Some(revision) = &set.revision
            && !is_complete(folder, revision)
        {
            return Some(format!("{} does not hold the complete revision {revision}", set.folder));
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
            let fetch = marker(&folder)?.fetch;
            Some(WeightsFound {
                complete: fetch.files.iter().all(present(&folder)),
                source: fetch.source,
                revision: fetch.revision,
                path: Some(folder.display().to_string()),
                size_bytes: fetch.files.iter().map(|file| file.size_bytes).sum(),
                files: fetch.files.into_iter().map(|file| file.name).collect(),
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

    const CONTENT: &[u8] = b"sixteen bytes...";

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
