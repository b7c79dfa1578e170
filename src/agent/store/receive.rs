//! A file as it arrives: into its partial, checked, and only then under its name.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::blobs;
use super::records::{Checked, Received, check, checked, hash, is_whole, length, note, part};
use super::sets::{check_disk, fetched};
use crate::agent::download::record;
use crate::agent::error::AgentError;
use crate::agent::files::{sync_folder, write_failed};
use crate::agent::frames::{Frame, read_frame};
use crate::base::{Digest, Hasher};
use crate::inventory::{FetchFile, FetchSpec, FrameError, KIND_JSON, Refusal, Response};

/// Bytes after which they are forced to the disk: a machine with much memory would hold back so many that the last
/// wait for them looks like a dead node.
const SYNC_EVERY: u64 = 512 << 20;

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
    expected(file)?;
    if is_whole(&folder, file, &checked(&folder)) {
        return Ok(fetched(fetch, &folder));
    }
    check_disk(fetch, &folder)?;
    let mut arriving = Arriving::resume(&folder, file, Some(offset), &mut |_| ())?;
    while let Some(bytes) = incoming.next()? {
        arriving.write(&bytes)?;
    }
    if arriving.position() < file.size_bytes {
        arriving.sync()?;
    } else {
        arriving.accept()?;
    }
    Ok(fetched(fetch, &folder))
}

/// The digest that a file must have.
pub fn expected(file: &FetchFile) -> Result<Digest, AgentError> {
    let expected = file.sha256.as_deref().and_then(Digest::parse);
    expected.ok_or_else(|| AgentError::Other(format!("{} comes without a digest", file.name)))
}

/// A file on its way into a set, held against everybody else.
pub struct Arriving<'a> {
    folder: &'a Path,
    file: &'a FetchFile,
    path: PathBuf,
    output: File,
    hasher: Hasher,
    position: u64,
    /// Bytes that the kernel may hold back.
    unsynced: u64,
}

impl<'a> Arriving<'a> {
    /// Opens the partial and keeps its first `offset` bytes, or as many as there are; they are read for the digest,
    /// with `tick` told how many all along. Refused as busy where another process is at it.
    pub fn resume(
        folder: &'a Path,
        file: &'a FetchFile,
        offset: Option<u64>,
        tick: &mut dyn FnMut(u64),
    ) -> Result<Self, AgentError> {
        let path = part(folder, &file.name);
        fs::create_dir_all(path.parent().unwrap_or(folder)).map_err(AgentError::file("creating", folder))?;
        let (output, hasher, position) = match offset {
            Some(offset) => resume(&path, offset).map(|(output, hasher)| (output, hasher, offset))?,
            None => {
                let mut output = open_part(&path)?;
                let length = output.metadata().map_err(AgentError::file("reading", &path))?.len();
                let length = record::prefix(&path, length);
                // More than the whole file is another file's.
                let offset = if length > file.size_bytes { 0 } else { length };
                let hasher = kept(&mut output, &path, offset, tick)?;
                (output, hasher, offset)
            }
        };
        Ok(Self { folder, file, path, output, hasher, position, unsynced: 0 })
    }

    /// Bytes that are there.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Takes the next bytes.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), AgentError> {
        self.position = self.position.saturating_add(bytes.len() as u64);
        if self.position > self.file.size_bytes {
            let (name, size) = (&self.file.name, self.file.size_bytes);
            return Err(AgentError::Other(format!("{name} is longer than its {size} bytes")));
        }
        self.hasher.update(bytes);
        self.output.write_all(bytes).map_err(|error| self.failed(error))?;
        self.unsynced += bytes.len() as u64;
        if self.unsynced >= SYNC_EVERY {
            self.unsynced = 0;
            self.output.sync_data().map_err(|error| self.failed(error))?;
        }
        Ok(())
    }

    /// Makes durable what is there of a file that is not whole.
    pub fn sync(&self) -> Result<(), AgentError> {
        self.output.sync_all().map_err(|error| self.failed(error))
    }

    fn failed(&self, error: std::io::Error) -> AgentError {
        write_failed(&self.path, self.file.size_bytes, error)
    }

    /// Checks the digest of the whole file and gives it its name. Where it is another, nothing of it stays.
    pub fn accept(self) -> Result<(), AgentError> {
        self.sync()?;
        let expected = expected(self.file)?;
        let found = self.hasher.finish();
        if found != expected {
            fs::remove_file(&self.path).map_err(AgentError::file("removing", &self.path))?;
            let (expected, found) = (expected.to_string(), found.to_string());
            return Err(Refusal::Digest { file: self.file.name.clone(), expected, found }.into());
        }
        accept(self.folder, &self.file.name, &self.path, &expected)
    }
}

/// A partial that has its size, had its digest and is on the disk becomes the file.
pub fn accept(folder: &Path, name: &str, part: &Path, sha256: &Digest) -> Result<(), AgentError> {
    let whole = folder.join(name);
    fs::rename(part, &whole).map_err(AgentError::file("writing", &whole))?;
    record::forget(part)?;
    sync_folder(whole.parent().unwrap_or(folder)).map_err(AgentError::file("writing", &whole))?;
    let found = Received::from([(name.to_owned(), Checked::now(&whole, sha256))]);
    note(folder, found.clone())?;
    if let Some(size_bytes) = length(&whole) {
        let file = FetchFile { name: name.to_owned(), size_bytes, sha256: Some(sha256.to_string()) };
        blobs::adopt(folder, &file, &found);
    }
    Ok(())
}

/// Opens the partial for this transfer alone, cuts it to `offset` and hashes what is kept.
pub fn resume(path: &Path, offset: u64) -> Result<(File, Hasher), AgentError> {
    let mut file = open_part(path)?;
    let length = file.metadata().map_err(AgentError::file("reading", path))?.len();
    if offset > length {
        return Err(AgentError::Other(format!("{} holds {length} bytes, not {offset}", path.display())));
    }
    let hasher = kept(&mut file, path, offset, &mut |_| ())?;
    Ok((file, hasher))
}

/// Opens or makes a partial and locks it; refused as busy while another process has it.
pub fn open_part(path: &Path) -> Result<File, AgentError> {
    // Where others write too, a link there could lead anywhere.
    let no_link = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).custom_flags(no_link);
    let file = options.open(path).map_err(AgentError::file("opening", path))?;
    if !file.metadata().is_ok_and(|found| found.is_file()) {
        return Err(AgentError::Path { path: path.display().to_string(), problem: "is not a file" });
    }
    let lock = rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive);
    if lock == Err(rustix::io::Errno::WOULDBLOCK) {
        return Err(Refusal::Busy { what: path.display().to_string() }.into());
    }
    // Between opening and locking, whoever had it may have given it its name: it is a whole file now.
    if !is_current(&file, path) {
        return Err(Refusal::Busy { what: path.display().to_string() }.into());
    }
    Ok(file)
}

/// Whether an open file is still the one at its path.
pub fn is_current(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(held), Ok(found)) => (held.dev(), held.ino()) == (found.dev(), found.ino()),
        _ => false,
    }
}

/// Cuts an open partial to `offset` and hashes what is kept.
fn kept(file: &mut File, path: &Path, offset: u64, tick: &mut dyn FnMut(u64)) -> Result<Hasher, AgentError> {
    file.set_len(offset).map_err(AgentError::file("writing", path))?;
    record::forget(path)?;
    let hasher = hash(file, tick).map_err(AgentError::file("reading", path))?;
    file.seek(SeekFrom::Start(offset)).map_err(AgentError::file("reading", path))?;
    Ok(hasher)
}
