//! Commands of ours over a channel: what they say, and a file that one takes.

use std::path::Path;
use std::time::Duration;

use russh::client::Msg;
use russh::{Channel, ChannelMsg, ChannelReadHalf, ChannelWriteHalf};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::connection::{lost, no_commands};
use super::shell::BEGINS;
use crate::edge::agents::last_words;
use crate::edge::stream::{Lines, within};
use crate::ports::NodeError;

/// Most bytes kept of what a command says.
const OUTPUT_LIMIT: usize = 64 << 10;

/// How a command ended.
#[derive(Debug, Default)]
pub(super) struct Output {
    pub(super) status: Option<u32>,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

/// Runs a command that takes a file on its standard input, once it says `flock-ready`.
pub(super) async fn send(
    channel: Channel<Msg>,
    step: &str,
    limit: Duration,
    command: String,
    file: &Path,
) -> Result<Output, NodeError> {
    let (mut from_node, to_node) = channel.split();
    let done = within(step, limit, async {
        to_node.exec(true, command).await.map_err(|error| lost(&error))?;
        let (ready, told) = tokio::sync::oneshot::channel();
        let heard = hear(&mut from_node, ready);
        let fed = feed(&to_node, file, told);
        tokio::pin!(heard, fed);
        // The command may end before it took everything: a full disk.
        tokio::select! {
            output = &mut heard => output,
            fed = &mut fed => match fed {
                Ok(()) => heard.await,
                Err(error) => Err(error),
            },
        }
    })
    .await;
    if done.is_err() {
        let _ = tokio::time::timeout(Duration::from_secs(1), to_node.close()).await;
    }
    done
}

/// Sends a file once the command is ready for it.
async fn feed(
    to_node: &ChannelWriteHalf<Msg>,
    path: &Path,
    told: tokio::sync::oneshot::Receiver<()>,
) -> Result<(), NodeError> {
    if told.await.is_err() {
        return std::future::pending().await;
    }
    let local = |error: std::io::Error| NodeError::Agent {
        reason: format!("cannot read {}: {error}", path.display()),
        hint: Some("make it readable, or name another folder with --agent-dir.".to_owned()),
    };
    let mut source = tokio::fs::File::open(path).await.map_err(local)?;
    let mut writer = to_node.make_writer();
    let mut buffer = vec![0_u8; 256 << 10];
    loop {
        let read = source.read(&mut buffer).await.map_err(local)?;
        if read == 0 {
            break;
        }
        if writer.write_all(&buffer[..read]).await.is_err() {
            // What the command said about it comes by the other half.
            return std::future::pending().await;
        }
    }
    let _ = writer.flush().await;
    to_node.eof().await.map_err(|error| lost(&error))
}

/// What a command says after its first line, to its end.
async fn hear(from_node: &mut ChannelReadHalf, ready: tokio::sync::oneshot::Sender<()>) -> Result<Output, NodeError> {
    let mut ready = Some(ready);
    let (mut stdout, mut stderr) = (Said::default(), Said::default());
    let mut output = Output::default();
    while let Some(message) = from_node.wait().await {
        match message {
            ChannelMsg::Data { data } => {
                stdout.push(&data);
                if ready.is_some() && stdout.kept.windows(12).any(|window| window == b"flock-ready\n") {
                    ready.take().map(|ready| ready.send(()));
                }
            }
            ChannelMsg::ExtendedData { data, .. } => stderr.push(&data),
            ChannelMsg::ExitStatus { exit_status } => output.status = Some(exit_status),
            ChannelMsg::Failure => return Err(no_commands()),
            _ => {}
        }
    }
    if !stdout.begun {
        return Err(something_else(output.status, &stdout, &stderr));
    }
    output.stdout = stdout.text();
    output.stderr = stderr.text();
    Ok(output)
}

/// What a command of ours said on one of its outputs, after the line that it begins with. Start files may print
/// any amount before.
#[derive(Debug, Default)]
pub(super) struct Said {
    lines: Lines,
    pub(super) begun: bool,
    kept: Vec<u8>,
    /// The last line that came before.
    before: Vec<u8>,
}

impl Said {
    pub(super) fn push(&mut self, mut bytes: &[u8]) {
        while !self.begun {
            let Some(line) = self.lines.next(&mut bytes) else { return };
            self.begun = line == BEGINS.as_bytes();
            if !self.begun && !line.is_empty() {
                self.before = line;
            }
        }
        let room = OUTPUT_LIMIT.saturating_sub(self.kept.len());
        self.kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// The text; what came before it where it never began.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(if self.begun { &self.kept } else { &self.before }).into_owned()
    }

    /// A whole line out of what was kept.
    pub(super) fn take_line(&mut self) -> Option<String> {
        let end = self.kept.iter().position(|&byte| byte == b'\n')?;
        let line: Vec<u8> = self.kept.drain(..=end).collect();
        Some(String::from_utf8_lossy(line.trim_ascii_end()).into_owned())
    }

    /// What was kept and not taken.
    pub(super) fn take_rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.kept)
    }
}

/// The login did not run what it was told to.
pub(super) fn something_else(status: Option<u32>, stdout: &Said, stderr: &Said) -> NodeError {
    let said: Vec<String> =
        [stderr, stdout].iter().map(|said| last_words(&said.text())).filter(|text| !text.is_empty()).collect();
    let said = if said.is_empty() { "it said nothing".to_owned() } else { said.join("; ") };
    let status = status.map_or(String::new(), |status| format!(" and ended with exit status {status}"));
    NodeError::Agent {
        reason: format!("the login ran something else than flock asked for{status}: {said}"),
        hint: Some(
            "the login needs a shell that runs `sh -c`: no ForceCommand, no command= in authorized_keys, no nologin, no start file that replaces the shell"
                .to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_start_files_print_is_passed_over_and_what_a_command_says_is_bounded() {
        let mut said = Said::default();
        for _ in 0..1000 {
            said.push(&[b'x'; 10_000]);
        }
        said.push(b"end\nlast words\n\nflock-beg");
        assert!(!said.begun && said.text() == "last words", "{}", said.text());
        said.push(b"ins\none\ntw");
        assert_eq!((said.take_line().as_deref(), said.take_line()), (Some("one"), None));
        said.push(b"o\nrest");
        assert_eq!((said.take_line().as_deref(), said.take_rest().as_slice()), (Some("two"), &b"rest"[..]));
        for _ in 0..1000 {
            said.push(&[b'y'; 10_000]);
        }
        assert_eq!(said.text().len(), OUTPUT_LIMIT);
    }
}
