//! Bringing the agent's binary to a node over SFTP: a file of its own under a random name, checked, made
//! executable and renamed. Two controllers that push at once write two files and rename the same bytes.

use std::time::Duration;

use russh_sftp::client::SftpSession;
use russh_sftp::protocol::{FileAttributes, OpenFlags};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::connection::{Connection, lost};
use super::shell::script;
use crate::base::{Digest, Hasher};
use crate::edge::agents::{AGENT_FOLDER, AgentFile, one_line};
use crate::edge::clock::SystemRandom;
use crate::edge::stream::within;
use crate::ports::{NodeError, Random as _};

/// Slowest line that a push is meant for.
const BYTES_PER_SECOND: u64 = 64 << 10;
/// Deadline of short steps.
const SHORT: Duration = Duration::from_secs(30);

/// Where an agent lies under a home folder.
pub(super) fn remote_path(home: &str, name: &str) -> String {
    format!("{}/{AGENT_FOLDER}/{name}", home.trim_end_matches('/'))
}

/// Brings `file` to `path`, which is an absolute path inside `home`.
pub(super) async fn push(connection: &Connection, file: &AgentFile, home: &str, path: &str) -> Result<(), NodeError> {
    let limit = SHORT + Duration::from_secs(file.size_bytes / BYTES_PER_SECOND);
    let part = format!("{path}.part-{}", SystemRandom.hex(8));
    tracing::debug!(%path, bytes = file.size_bytes, "pushing the node agent");
    let sftp = open(connection).await?;
    let sent = within("sending the node agent", limit, async {
        make_folders(&sftp, home).await?;
        send(&sftp, file, &part).await
    })
    .await;
    let done = match sent {
        Ok(()) => finish(connection, &sftp, file, &part, path).await,
        Err(error) => Err(error),
    };
    if done.is_err() {
        let _ = tokio::time::timeout(Duration::from_secs(5), sftp.remove_file(&part)).await;
    }
    let _ = sftp.close().await;
    done
}

async fn open(connection: &Connection) -> Result<SftpSession, NodeError> {
    let channel = connection.session().await?;
    within("opening SFTP", SHORT, async {
        channel.request_subsystem(true, "sftp").await.map_err(|error| lost(&error))?;
        SftpSession::new(channel.into_stream()).await.map_err(|error| NodeError::Agent {
            reason: format!("the node offers no SFTP to send it over ({error})"),
            hint: Some("enable the sftp subsystem in the node's sshd_config".to_owned()),
        })
    })
    .await
}

async fn make_folders(sftp: &SftpSession, home: &str) -> Result<(), NodeError> {
    let mut folder = home.trim_end_matches('/').to_owned();
    for part in AGENT_FOLDER.split('/') {
        folder = format!("{folder}/{part}");
        // It may be there already, and another controller may make it right now: only the end result counts.
        let made = sftp.create_dir(&folder).await;
        match (sftp.metadata(&folder).await, made) {
            (Ok(metadata), _) if metadata.is_dir() => {}
            (Ok(_), _) => return Err(refused(&folder, "it is no folder", None)),
            (Err(error), Ok(())) | (Err(_), Err(error)) => {
                let hint = "the login's home folder must be writable";
                return Err(refused(&folder, &format!("it cannot be made ({error})"), Some(hint.to_owned())));
            }
        }
    }
    Ok(())
}

async fn send(sftp: &SftpSession, file: &AgentFile, part: &str) -> Result<(), NodeError> {
    let local = |error: std::io::Error| NodeError::Agent {
        reason: format!("cannot read {}: {error}", file.path.display()),
        hint: None,
    };
    let mut source = tokio::fs::File::open(&file.path).await.map_err(local)?;
    let flags = OpenFlags::CREATE | OpenFlags::EXCLUDE | OpenFlags::WRITE;
    let attributes = FileAttributes { permissions: Some(0o600), ..FileAttributes::empty() };
    let mut target = match sftp.open_with_flags_and_attributes(part, flags, attributes).await {
        Ok(target) => target,
        Err(error) => return Err(write_failed(sftp, part, &error.to_string()).await),
    };
    let mut buffer = vec![0_u8; 256 << 10];
    loop {
        let read = source.read(&mut buffer).await.map_err(local)?;
        if read == 0 {
            break;
        }
        if let Err(error) = target.write_all(&buffer[..read]).await {
            return Err(write_failed(sftp, part, &error.to_string()).await);
        }
    }
    // Acknowledges every write that is still under way.
    if let Err(error) = target.close().await {
        return Err(write_failed(sftp, part, &error.to_string()).await);
    }
    Ok(())
}

async fn finish(
    connection: &Connection,
    sftp: &SftpSession,
    file: &AgentFile,
    part: &str,
    path: &str,
) -> Result<(), NodeError> {
    let arrived = within("checking the node agent", SHORT, async {
        let metadata = sftp.metadata(part).await.map_err(|error| refused(part, &error.to_string(), None))?;
        Ok(metadata.size)
    })
    .await?;
    if arrived != Some(file.size_bytes) {
        let text = format!("{} of {} bytes arrived", arrived.unwrap_or(0), file.size_bytes);
        return Err(refused(part, &text, free_space(sftp, part).await));
    }
    let digest = remote_digest(connection, sftp, file, part).await?;
    if digest != file.sha256 {
        return Err(refused(part, &format!("it arrived with digest {digest}, expected {}", file.sha256), None));
    }
    let line = script("chmod 700 \"$1\" && mv -f \"$1\" \"$2\"", &[part, path]);
    let moved = connection.exec("putting the node agent in place", SHORT, line).await?;
    if moved.status == Some(0) { Ok(()) } else { Err(refused(path, &one_line(&moved.stderr), None)) }
}

/// The node's own digest of a file; where it has no `sha256sum`, the file is read back.
async fn remote_digest(
    connection: &Connection,
    sftp: &SftpSession,
    file: &AgentFile,
    part: &str,
) -> Result<Digest, NodeError> {
    let line = script("sha256sum < \"$1\"", &[part]);
    let output = connection.exec("checking the node agent", SHORT, line).await?;
    let word = output.stdout.split_ascii_whitespace().find(|word| word.len() == 64);
    if let Some(digest) = word.and_then(|hex| Digest::parse(&format!("sha256:{hex}"))) {
        return Ok(digest);
    }
    let limit = SHORT + Duration::from_secs(file.size_bytes / BYTES_PER_SECOND);
    within("reading the node agent back", limit, async {
        let failed = |error: &dyn std::fmt::Display| refused(part, &error.to_string(), None);
        let mut remote = sftp.open(part).await.map_err(|error| failed(&error))?;
        let mut hasher = Hasher::new();
        let mut buffer = vec![0_u8; 256 << 10];
        loop {
            let read = remote.read(&mut buffer).await.map_err(|error| failed(&error))?;
            if read == 0 {
                return Ok(hasher.finish());
            }
            hasher.update(&buffer[..read]);
        }
    })
    .await
}

/// A write failed: SFTP says only "failure", so the free space is asked for.
async fn write_failed(sftp: &SftpSession, part: &str, error: &str) -> NodeError {
    refused(part, &format!("it cannot be written ({error})"), free_space(sftp, part).await)
}

/// Free bytes where a file lies, as a hint, where there is little.
async fn free_space(sftp: &SftpSession, part: &str) -> Option<String> {
    let folder = part.rsplit_once('/').map_or("/", |(folder, _)| folder);
    let info = tokio::time::timeout(Duration::from_secs(5), sftp.fs_info(folder)).await.ok()?.ok()??;
    let free = info.blocks_avail.saturating_mul(info.fragment_size);
    (free < 256 << 20).then(|| format!("{folder} has {free} bytes free: make room there"))
}

fn refused(path: &str, text: &str, hint: Option<String>) -> NodeError {
    NodeError::Agent { reason: format!("cannot bring it to {path}: {text}"), hint }
}
