//! Logs that stay bounded although nobody stands between an engine and its file.
//!
//! Engines outlive the keeper, so they write straight to their log, opened for appending. Once it is longer
//! than [`LIMIT`], its last [`KEPT`] bytes are copied to `log.1` and it is cut to nothing; an appending
//! writer goes on at the new end. What is written between the copy and the cut is lost.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::clock::{now_ms, rfc3339};
use crate::base::one_line;

/// Longest log.
pub const LIMIT: u64 = 8 << 20;
/// What is kept of it beside the new one.
pub const KEPT: u64 = 1 << 20;
/// Bytes that are read to learn why an engine died.
const TAIL: u64 = 64 << 10;
/// Bytes of a run's beginning that are read to learn what memory it took: engines tell that while they load.
const BEGINNING: u64 = 1 << 20;
/// Longest log of the keeper itself.
const OWN_LIMIT: u64 = 256 << 10;

/// Opens a log for appending.
pub fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

/// Cuts a log that is too long; whether it did.
pub fn bound(path: &Path, limit: u64, kept: u64) -> std::io::Result<bool> {
    let length = match fs::metadata(path) {
        Ok(meta) => meta.len(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    if length <= limit {
        return Ok(false);
    }
    let end = tail(path, length.saturating_sub(kept), kept)?;
    let old = path.with_file_name(format!("{}.1", path.file_name().unwrap_or_default().to_string_lossy()));
    let copy = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&old);
    // On a full disk the log is cut all the same: that it stays bounded matters more than its past.
    if copy.and_then(|mut copy| copy.write_all(&end)).is_err() {
        let _ = fs::remove_file(&old);
    }
    OpenOptions::new().write(true).open(path)?.set_len(0)?;
    Ok(true)
}

/// The end of the present run in a log, which began at `from`.
pub fn last_words(path: &Path, from: u64) -> String {
    let length = fs::metadata(path).map_or(0, |meta| meta.len());
    let from = if from > length { 0 } else { from };
    let bytes = tail(path, from.max(length.saturating_sub(TAIL)), TAIL).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The beginning of the present run in a log, which began at `from`. Empty where the log was cut since.
pub fn first_words(path: &Path, from: u64) -> String {
    let bytes = tail(path, from, BEGINNING).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The last line of a log.
pub fn last_line(path: &Path) -> String {
    one_line(last_words(path, 0).lines().next_back().unwrap_or("it is empty"))
}

fn tail(path: &Path, from: u64, most: u64) -> std::io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A line in the keeper's own log. A log that cannot be written stops nothing.
pub fn note(path: &Path, text: &str) {
    let _ = bound(path, OWN_LIMIT, OWN_LIMIT / 4);
    if let Ok(mut file) = open(path) {
        let _ = writeln!(file, "{} {text}", rfc3339(now_ms()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_log_is_cut_under_its_writer() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        let mut writer = open(&path).expect("opened");
        writer.write_all(b"0123456789").expect("written");
        assert!(!bound(&path, 10, 4).expect("checked"));
        writer.write_all(b"abc").expect("written");
        assert!(bound(&path, 10, 4).expect("cut"));
        writer.write_all(b"next").expect("written");
        assert_eq!(fs::read(&path).expect("read"), b"next");
        assert_eq!(fs::read(folder.path().join("log.1")).expect("read"), b"9abc");
        assert_eq!(last_words(&path, 2), "xt");
        assert_eq!(last_words(&path, 99), "next");
        assert_eq!((first_words(&path, 1).as_str(), first_words(&path, 99).as_str()), ("ext", ""));
        assert_eq!(last_words(&folder.path().join("none"), 0), "");
    }
}
