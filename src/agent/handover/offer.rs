//! The end that has the files.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::message::{GREETING, Given, MAX_MESSAGE, Wanted};
use crate::agent::error::AgentError;
use crate::agent::listener;
use crate::agent::patience::AtWork;
use crate::agent::sealed::{End, MAX_CONTENT, Sealed, key};
use crate::agent::store;
use crate::base::Secret;
use crate::inventory::{FetchFile, FetchSpec, Refusal, Response};

/// Longest wait for the other end, whatever was asked for.
const MAX_TTL: Duration = Duration::from_secs(600);
/// How long a stranger may hold the listener before it has shown the key.
const GREETING_LIMIT: Duration = Duration::from_millis(1500);

/// Opens a listener that gives the files of a complete set to one other agent. `reached` is how SSH came in.
pub fn offer(fetch: &FetchSpec, hex: &Secret<String>, ttl_ms: u64, reached: &str) -> Result<Response, AgentError> {
    let folder = store::check(fetch)?;
    if !store::is_complete(&folder, &fetch.revision) {
        return Err(
            Refusal::Unknown { what: format!("the complete revision {} in {}", fetch.revision, fetch.folder) }.into()
        );
    }
    let (key, files) = (key(hex)?, store::marked(&folder));
    let silence = Duration::from_millis(ttl_ms).min(MAX_TTL);
    let until = Instant::now() + silence;
    listener::open(reached, until, move |stream| serve(stream, &key, &folder, &files, silence).unwrap_or(false))
}

/// Serves one peer; whether it had the key.
fn serve(
    stream: TcpStream,
    key: &Secret<[u8; 32]>,
    folder: &Path,
    files: &[FetchFile],
    silence: Duration,
) -> io::Result<bool> {
    let mut sealed = Sealed::new(stream, key, End::Server, Instant::now() + GREETING_LIMIT)?;
    if !sealed.receive().is_ok_and(|content| content.as_deref() == Some(GREETING)) {
        return Ok(false);
    }
    // Until it has ended, this process stays, also where the controller is silent or gone.
    let _at_work = AtWork::begin();
    // The key is used up, however this ends; the other end keeps what it has.
    let _ = give(&mut sealed, folder, files, silence);
    Ok(true)
}

fn give(sealed: &mut Sealed, folder: &Path, files: &[FetchFile], silence: Duration) -> io::Result<()> {
    let later = || Instant::now() + silence;
    sealed.extend_to(later());
    sealed.send(GREETING)?;
    let mut buffer = vec![0_u8; MAX_CONTENT];
    loop {
        sealed.extend_to(later());
        let Some(asked) = sealed.receive()?.filter(|asked| !asked.is_empty() && asked.len() <= MAX_MESSAGE) else {
            return Ok(());
        };
        let wanted: Wanted = serde_json::from_slice(&asked).map_err(io::Error::other)?;
        let (mut file, mut left) = match open(folder, files, &wanted) {
            Ok((file, size_bytes)) => {
                sealed.send(&message(&Given { size_bytes: Some(size_bytes), problem: None })?)?;
                (file, size_bytes - wanted.offset)
            }
            Err(problem) => {
                sealed.send(&message(&Given { size_bytes: None, problem: Some(problem) })?)?;
                continue;
            }
        };
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
            let read = file.read(&mut buffer[..most])?;
            if read == 0 {
                // Shorter than it was: the other end is not kept waiting.
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            sealed.extend_to(later());
            sealed.send(&buffer[..read])?;
            left -= read as u64;
        }
    }
}

fn message(message: &impl serde::Serialize) -> io::Result<Vec<u8>> {
    serde_json::to_vec(message).map_err(io::Error::other)
}

/// The file at its offset, with its size.
pub(super) fn open(folder: &Path, files: &[FetchFile], wanted: &Wanted) -> Result<(File, u64), String> {
    let file = files.iter().find(|file| file.name == wanted.name).ok_or("is no file of the set")?;
    let path: PathBuf = folder.join(&file.name);
    let opened = File::open(&path).and_then(|mut opened| {
        let length = opened.metadata()?.len();
        opened.seek(SeekFrom::Start(wanted.offset))?;
        Ok((opened, length))
    });
    let (opened, length) = opened.map_err(|error| format!("cannot be read there: {error}"))?;
    if length != file.size_bytes || wanted.offset > length {
        return Err(format!("has {length} bytes there and {} in the set", file.size_bytes));
    }
    Ok((opened, length))
}
