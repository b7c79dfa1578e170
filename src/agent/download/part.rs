//! A file on its way: the partial, its record, and the lock that keeps others away.
//!
//! The lock is flock(2) on the partial itself, as whoever receives the file over the agent's stream takes it: it ends
//! with its process, however that ends, so there is none to be taken over. On NFS the kernel turns it into a lock on
//! the server, which gives up that of a dead client after its lease. Where a file system knows no such locks at all,
//! two may write the same bytes to the same places, and the digest is taken of what is there in the end.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::record::{CHUNK, Record, forget};
use crate::agent::error::AgentError;
use crate::agent::files::{remove, write_failed};
use crate::agent::store;
use crate::base::Digest;
use crate::inventory::Refusal;

/// An open partial that is ours alone.
#[derive(Debug)]
pub struct Part {
    file: File,
    record: Record,
    path: PathBuf,
    size_bytes: u64,
}

impl Part {
    /// Opens or makes a partial and says what is there of each chunk. `None` while somebody else has it.
    pub fn open(path: &Path, size_bytes: u64, sha256: &Digest) -> Result<Option<(Self, Vec<u32>)>, AgentError> {
        let opening = || AgentError::file("opening", path);
        let folder = path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(folder).map_err(AgentError::file("creating", folder))?;
        let file = match store::open_part(path) {
            Err(AgentError::Refused(Refusal::Busy { .. })) => return Ok(None),
            opened => opened?,
        };
        let mut length = file.metadata().map_err(opening())?.len();
        if length > size_bytes {
            file.set_len(0).map_err(AgentError::file("writing", path))?;
            forget(path)?;
            length = 0;
        }
        let (record, counts) = Record::open(path, length, size_bytes, &sha256.to_string())?;
        Ok(Some((Self { file, record, path: path.to_owned(), size_bytes }, counts)))
    }

    /// Writes bytes to their place, which must lie within one chunk, and notes that its chunk is there up to their end.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<(u64, u32), AgentError> {
        let chunk = at / u64::from(CHUNK);
        let count = u32::try_from(at % u64::from(CHUNK) + bytes.len() as u64).unwrap_or(CHUNK);
        self.file.write_all_at(bytes, at).map_err(|error| self.failed(error))?;
        self.record.note(chunk, count)?;
        Ok((chunk, count))
    }

    /// Bytes from a place on, for the digest.
    pub fn read(&self, at: u64, buffer: &mut [u8]) -> Result<usize, AgentError> {
        self.file.read_at(buffer, at).map_err(AgentError::file("reading", &self.path))
    }

    /// What was written goes to the disk, so that little is left for the end.
    pub fn flush(&self) -> Result<(), AgentError> {
        self.file.sync_data().map_err(|error| self.failed(error))
    }

    /// The partial, which is whole and had its digest, becomes the file.
    pub fn accept(&self, folder: &Path, name: &str, sha256: &Digest) -> Result<(), AgentError> {
        self.file.sync_all().map_err(|error| self.failed(error))?;
        store::accept(folder, name, &self.path, sha256)
    }

    /// Leaves nothing behind.
    pub fn remove(&self) -> Result<(), AgentError> {
        remove(&self.path)?;
        forget(&self.path)
    }

    fn failed(&self, error: std::io::Error) -> AgentError {
        write_failed(&self.path, self.size_bytes, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::download::record::{self, pulse};

    #[test]
    fn one_has_it_and_the_next_finds_what_is_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("sub/tiny.gguf.part");
        let digest = Digest::of(b"abcdefgh");
        let (part, counts) = Part::open(&path, 8, &digest).expect("opened").expect("free");
        assert_eq!(counts, [0]);
        assert!(Part::open(&path, 8, &digest).expect("opened").is_none(), "two have it");
        let before = pulse(&path);
        assert_eq!(part.write(0, b"abc").expect("written"), (0, 3));
        assert_ne!(pulse(&path), before);
        drop(part);
        let (part, counts) = Part::open(&path, 8, &digest).expect("opened").expect("free");
        assert_eq!(counts, [3]);
        let mut buffer = [0; 8];
        assert_eq!(part.read(1, &mut buffer).expect("read"), 2);
        assert_eq!(part.write(3, b"defgh").expect("written"), (0, 8));
        part.accept(folder.path(), "sub/tiny.gguf", &digest).expect("renamed");
        assert_eq!(fs::read(folder.path().join("sub/tiny.gguf")).expect("read"), b"abcdefgh");
        assert!(!path.exists() && !record::path(&path).exists());
    }

    #[test]
    fn what_is_too_long_or_a_link_is_not_gone_on_with() {
        let folder = tempfile::tempdir().expect("a folder");
        let (victim, path) = (folder.path().join("victim"), folder.path().join("a.part"));
        fs::write(&path, b"far too long").expect("written");
        let digest = Digest::of(b"abc");
        let (part, counts) = Part::open(&path, 3, &digest).expect("opened").expect("free");
        assert_eq!((counts, fs::metadata(&path).expect("there").len()), (vec![0], 0));
        part.remove().expect("removed");
        assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 0);
        fs::write(&victim, b"precious").expect("written");
        std::os::unix::fs::symlink(&victim, &path).expect("linked");
        assert!(Part::open(&path, 3, &digest).is_err());
        assert_eq!(fs::read(&victim).expect("there"), b"precious");
    }
}
