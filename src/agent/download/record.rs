//! What is there of a partial whose pieces arrive in any order: `.NAME.chunks` beside `NAME.part`.
//!
//! A line of JSON, then one little-endian `u32` per chunk of the file: how many bytes of it are there from its begin
//! on. A count is written after its bytes, so what was killed has lost at most the bytes of one write per connection.
//! Nothing is forced to the disk: where the power failed, the record may promise what is not there, and the digest of
//! the whole file tells. A partial without a record is there from its begin to its length. A name that begins with a
//! dot is in no set.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::agent::error::AgentError;
use crate::agent::files::remove;

/// Bytes of a file that one request asks for.
pub const CHUNK: u32 = 8 << 20;
/// Longest first line.
const MAX_HEAD: usize = 1024;

/// The first line: a record of another file, or in chunks of another size, says nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Head {
    format: u32,
    size_bytes: u64,
    chunk_bytes: u32,
    sha256: String,
}

/// An open record.
#[derive(Debug)]
pub struct Record {
    file: File,
    path: PathBuf,
    /// Where the counts begin.
    begin: u64,
}

/// Path of a partial's record.
pub fn path(part: &Path) -> PathBuf {
    let name = part.file_name().unwrap_or_default().to_string_lossy();
    part.with_file_name(format!(".{}.chunks", name.strip_suffix(".part").unwrap_or(&name)))
}

/// How many of a partial's `length` bytes are there without a gap: all of them where it has no record.
pub fn prefix(part: &Path, length: u64) -> u64 {
    let Ok((_, head, counts)) = read(part) else { return length };
    let mut have = 0;
    for (number, count) in (0..).zip(counts) {
        let whole = chunk_length(head.size_bytes, number);
        have += u64::from(count.min(whole));
        if count < whole {
            break;
        }
    }
    have.min(length)
}

/// What shows that whoever has a partial gets on with it: it, or its record, was written to. Its length alone does not:
/// pieces arrive in any order.
pub fn pulse(part: &Path) -> (u64, i64, i64) {
    let meta = |path: &Path| fs::symlink_metadata(path).ok();
    let when = |found: &fs::Metadata| found.mtime().saturating_mul(1_000_000_000).saturating_add(found.mtime_nsec());
    let (part, record) = (meta(part), meta(&path(part)));
    (part.as_ref().map_or(0, fs::Metadata::len), part.as_ref().map_or(0, when), record.as_ref().map_or(0, when))
}

/// Removes a partial's record: what follows the partial's length is appended in order.
pub fn forget(part: &Path) -> Result<(), AgentError> {
    remove(&path(part))
}

/// Number of chunks.
pub fn chunks(size_bytes: u64) -> u64 {
    size_bytes.div_ceil(u64::from(CHUNK))
}

/// Length of a chunk: the last is shorter.
pub fn chunk_length(size_bytes: u64, chunk: u64) -> u32 {
    let rest = size_bytes.saturating_sub(chunk.saturating_mul(u64::from(CHUNK)));
    u32::try_from(rest).unwrap_or(CHUNK).min(CHUNK)
}

impl Record {
    /// The record of a partial of `length` bytes, and what is there of each chunk. One that is missing or speaks of
    /// another file is made anew, and then the partial is taken as one that grew in order.
    pub fn open(part: &Path, length: u64, size_bytes: u64, sha256: &str) -> Result<(Self, Vec<u32>), AgentError> {
        let wanted = Head { format: 1, size_bytes, chunk_bytes: CHUNK, sha256: sha256.to_owned() };
        let known = read(part).ok();
        let (other, known) = match known {
            Some((file, head, counts)) if head == wanted => (false, Some((file, counts))),
            found => (found.is_some(), None),
        };
        let there = |chunk: u64| {
            let from = chunk * u64::from(CHUNK);
            u32::try_from(length.saturating_sub(from)).unwrap_or(CHUNK).min(chunk_length(size_bytes, chunk))
        };
        let numbers = 0..chunks(size_bytes);
        let path = path(part);
        if let Some((file, counts)) = known {
            // What lies behind the partial's end is not there, whatever the record says.
            let counts: Vec<u32> = numbers.zip(counts).map(|(chunk, count)| count.min(there(chunk))).collect();
            let begin = head_line(&wanted).len() as u64;
            return Ok((Self { file, path, begin }, counts));
        }
        let counts: Vec<u32> = numbers.map(|chunk| if other { 0 } else { there(chunk) }).collect();
        let mut content = head_line(&wanted);
        let begin = content.len() as u64;
        content.extend(counts.iter().flat_map(|count| count.to_le_bytes()));
        let writing = |error| AgentError::file("writing", &path)(error);
        remove(&path)?;
        let file = options().write(true).create_new(true).mode(0o600).open(&path).map_err(writing)?;
        file.write_all_at(&content, 0).map_err(writing)?;
        Ok((Self { file, path, begin }, counts))
    }

    /// Notes how much of a chunk is there.
    pub fn note(&self, chunk: u64, count: u32) -> Result<(), AgentError> {
        let at = self.begin + 4 * chunk;
        self.file.write_all_at(&count.to_le_bytes(), at).map_err(AgentError::file("writing", &self.path))
    }
}

fn head_line(head: &Head) -> Vec<u8> {
    let mut line = serde_json::to_vec(head).expect("numbers and a text");
    line.push(b'\n');
    line
}

/// Where others write too, a link there could lead anywhere.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32);
    options
}

/// An error where there is no record that can be read. Counts that are longer than their chunk say nothing.
fn read(part: &Path) -> std::io::Result<(File, Head, Vec<u32>)> {
    let invalid = || std::io::Error::from(std::io::ErrorKind::InvalidData);
    let mut file = options().write(true).open(path(part))?;
    let mut line = Vec::new();
    (&mut file).take(MAX_HEAD as u64).read_to_end(&mut line)?;
    let end = line.iter().position(|byte| *byte == b'\n').ok_or_else(invalid)?;
    let head: Head = serde_json::from_slice(&line[..end]).map_err(|_| invalid())?;
    let numbers = chunks(head.size_bytes);
    let length = file.metadata()?.len();
    let begin = end as u64 + 1;
    // Its length first: nobody's word makes this read more than there is.
    if head.format != 1 || head.chunk_bytes != CHUNK || numbers.checked_mul(4) != length.checked_sub(begin) {
        return Err(invalid());
    }
    let mut bytes = vec![0; usize::try_from(length - begin).map_err(|_| invalid())?];
    file.read_exact_at(&mut bytes, begin)?;
    let counts = bytes.chunks_exact(4).map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
    let counts =
        (0..).zip(counts).map(|(chunk, count)| if count > chunk_length(head.size_bytes, chunk) { 0 } else { count });
    let counts = counts.collect();
    Ok((file, head, counts))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 2 * CHUNK as u64 + 100;

    fn part() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let part = folder.path().join("tiny.gguf.part");
        fs::write(&part, b"").expect("written");
        File::options().write(true).open(&part).and_then(|file| file.set_len(SIZE)).expect("long");
        (folder, part)
    }

    #[test]
    fn what_was_noted_is_known_again_and_a_gap_ends_the_prefix() {
        let (_folder, part) = part();
        assert_eq!(prefix(&part, 77), 77, "without a record it grew in order");
        let (record, counts) = Record::open(&part, 0, SIZE, "sha256:aa").expect("made");
        assert_eq!(counts, [0, 0, 0]);
        record.note(2, 100).expect("noted");
        record.note(0, 5).expect("noted");
        assert_eq!(prefix(&part, SIZE), 5);
        record.note(0, CHUNK).expect("noted");
        record.note(1, 3).expect("noted");
        assert_eq!(prefix(&part, SIZE), u64::from(CHUNK) + 3);
        let (_, counts) = Record::open(&part, SIZE, SIZE, "sha256:aa").expect("read");
        assert_eq!(counts, [CHUNK, 3, 100]);
        // The partial was cut since: by whoever wrote to it in order.
        let (_, counts) = Record::open(&part, 10, SIZE, "sha256:aa").expect("read");
        assert_eq!((counts, prefix(&part, 10)), (vec![10, 0, 0], 10));
        let (_, counts) = Record::open(&part, SIZE, SIZE, "sha256:bb").expect("made");
        assert_eq!(counts, [0, 0, 0], "the record of another file");
        forget(&part).expect("removed");
        let (_, counts) = Record::open(&part, u64::from(CHUNK) + 1, SIZE, "sha256:bb").expect("made");
        assert_eq!(counts, [CHUNK, 1, 0]);
    }

    #[test]
    fn nonsense_is_no_record() {
        let (_folder, part) = part();
        let huge = format!("{{\"format\":1,\"size_bytes\":{},\"chunk_bytes\":{CHUNK},\"sha256\":\"\"}}\n", u64::MAX);
        for text in ["", "{}\n", "\0\0\n", &huge, "{\"format\":1}"] {
            fs::write(path(&part), text).expect("written");
            assert_eq!(prefix(&part, 9), 9, "{text:?}");
            let (_, counts) = Record::open(&part, 0, SIZE, "sha256:aa").expect("made anew");
            assert_eq!(counts, [0, 0, 0]);
        }
        // A count beyond its chunk says nothing.
        let (record, _) = Record::open(&part, SIZE, SIZE, "sha256:aa").expect("read");
        record.note(0, u32::MAX).expect("noted");
        assert_eq!(prefix(&part, SIZE), 0);
        fs::remove_file(path(&part)).expect("removed");
        std::os::unix::fs::symlink("/etc/passwd", path(&part)).expect("linked");
        drop(Record::open(&part, 0, SIZE, "sha256:aa").expect("the link is replaced"));
        assert!(fs::symlink_metadata(path(&part)).is_ok_and(|found| found.is_file()));
    }
}
