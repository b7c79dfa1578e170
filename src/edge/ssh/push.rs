//! Bringing the agent's binary to a node: one command that takes it from its standard input into a file of its own
//! under a random name, checks it, makes it executable and renames it. Two controllers that push at once write two
//! files and rename the same bytes. It needs no SFTP, and no second session beside its own.

use std::time::Duration;

use russh::Channel;
use russh::client::Msg;

use super::sending::{Output, send};
use super::shell::{PUSH, script};
use crate::edge::agents::{AGENT_FOLDER, AgentFile, last_words};
use crate::edge::clock::SystemRandom;
use crate::ports::{NodeError, Random as _};

/// Slowest line that a push is meant for.
const BYTES_PER_SECOND: u64 = 64 << 10;
/// What the rest of it may take.
const SHORT: Duration = Duration::from_secs(30);

/// Where agents lie under a home folder.
pub(super) fn remote_folder(home: &str) -> String {
    format!("{}/{AGENT_FOLDER}", home.trim_end_matches('/'))
}

/// Brings `file` into `folder` under its own name.
pub(super) async fn push(channel: Channel<Msg>, file: &AgentFile, folder: &str) -> Result<(), NodeError> {
    let limit = SHORT + Duration::from_secs(file.size_bytes / BYTES_PER_SECOND);
    let path = format!("{folder}/{}", file.remote_name());
    let part = format!("{path}.part-{}", SystemRandom.hex(8));
    tracing::debug!(%path, bytes = file.size_bytes, "pushing the node agent");
    let (digest, size) = (file.sha256.hex(), file.size_bytes.to_string());
    let line = script(PUSH, &[folder, &path, &part, digest, &size])?;
    let output = send(channel, "sending the node agent", limit, line, &file.path).await?;
    if output.status == Some(0) { Ok(()) } else { Err(refused(&path, file, &output)) }
}

fn refused(path: &str, file: &AgentFile, output: &Output) -> NodeError {
    let said = last_words(&output.stderr);
    let word = |name: &str| output.stdout.lines().find_map(|line| line.trim().strip_prefix(name)).map(last_words);
    let mut hint = None;
    let text = match (output.status, word("size="), word("digest=")) {
        (Some(3), ..) => {
            hint = Some("the login's home folder must be writable".to_owned());
            format!("its folder cannot be made ({said})")
        }
        (_, Some(size), _) => format!("{size} of {} bytes arrived", file.size_bytes),
        (_, _, Some(digest)) => format!("it arrived with digest {digest}, expected {}", file.sha256.hex()),
        (Some(4), ..) => format!("it cannot be written ({said})"),
        (None, ..) => "the command was ended before it was done".to_owned(),
        (Some(status), ..) => format!("exit status {status} ({said})"),
    };
    let free = free_kib(&output.stdout).filter(|free| *free < 256 << 10);
    let hint = hint.or_else(|| free.map(|free| format!("its disk has {free} KiB free: make room there")));
    NodeError::Agent { reason: format!("cannot bring it to {path}: {text}"), hint }
}

/// The free KiB in what `df -Pk` said.
fn free_kib(output: &str) -> Option<u64> {
    let line = output.lines().skip_while(|line| !line.starts_with("Filesystem")).nth(1)?;
    line.split_ascii_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_push_says_what_the_node_said() {
        let file = AgentFile { path: "a".into(), size_bytes: 9, sha256: crate::base::Digest::of(b"a") };
        let df = "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/sda1 100 93 7 93% /\n";
        let say = |status, stdout: &str, stderr: &str| {
            let output = Output { status, stdout: stdout.to_owned(), stderr: stderr.to_owned() };
            let error = refused("/h/x", &file, &output);
            format!("{error} | {}", error.hint().unwrap_or_default())
        };
        let full = say(Some(4), &format!("flock-ready\n{df}"), "cat: write error: No space left on device\n");
        assert!(full.contains("No space left") && full.ends_with("has 7 KiB free: make room there"), "{full}");
        assert!(say(Some(5), "size=3\n", "").contains("3 of 9 bytes arrived"));
        assert!(say(Some(6), "digest=\u{1b}[1mff\n", "").contains("digest ?[1mff, expected"));
        assert!(say(Some(3), "", "mkdir: Read-only file system").ends_with("home folder must be writable"));
        assert!(say(None, "", "").contains("ended before"));
    }
}
