//! This machine as a node: the same protocol over the pipes of a child process.
//!
//! The agent's binary is copied under the home folder first, by digest, as on any node: what keeps engines
//! running must not be the file that the next build of flock writes over. Only the `serve` process belongs to us;
//! what it starts is detached and lives on when flock ends.

use std::fs::{File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Stdio;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::sync::OnceCell;

use super::agents::{AGENT_FOLDER, AgentBinaries, AgentFile, Platform, start_failure};
use super::clock::SystemRandom;
use super::stream::{Hello, Prefixed, within};
use crate::inventory::HELLO;
use crate::ports::{ByteStream, NodeError, Random as _, Transport};

/// Deadline of the agent's first line.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Deadline of connecting to a port.
const PORT_LIMIT: Duration = Duration::from_secs(10);
/// Most bytes kept of the agent's error stream.
const STDERR_LIMIT: u64 = 64 << 10;

/// Which node this machine is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalTarget {
    /// The node's configured name.
    pub node: String,
    /// The cluster's name, which the agent keeps its state under.
    pub cluster: String,
}

/// This machine as a node.
pub struct LocalTransport {
    target: LocalTarget,
    agents: AgentBinaries,
    home: Option<PathBuf>,
    placed: OnceCell<PathBuf>,
}

impl LocalTransport {
    /// Starts nothing yet.
    pub fn new(target: LocalTarget, agents: AgentBinaries) -> Self {
        Self { target, agents, home: std::env::home_dir(), placed: OnceCell::new() }
    }

    /// The agent's binary under the home folder.
    async fn binary(&self) -> Result<&PathBuf, NodeError> {
        self.placed
            .get_or_try_init(|| async {
                let (agents, home) = (self.agents.clone(), self.home.clone());
                let placing = tokio::task::spawn_blocking(move || {
                    let file = agents.find(&Platform::here())?;
                    let home = home.ok_or_else(|| failed("there is no home folder"))?;
                    place(&file, &home)
                });
                placing.await.map_err(|error| failed(&error.to_string()))?
            })
            .await
    }

    async fn spawn(&self, binary: &Path) -> Result<Pipes, NodeError> {
        let mut attempts = 0;
        loop {
            let mut command = Command::new(binary);
            command
                .arg("serve")
                .args(["--cluster", &self.target.cluster, "--node", &self.target.node])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                // Ctrl-C at the terminal is for flock; the agent ends when its input does.
                .process_group(0)
                .kill_on_drop(false);
            match command.spawn() {
                Ok(mut child) => match (child.stdin.take(), child.stdout.take(), child.stderr.take()) {
                    (Some(stdin), Some(stdout), Some(stderr)) => return Ok(Pipes { child, stdin, stdout, stderr }),
                    _ => return Err(failed("its standard streams are missing")),
                },
                // Another thread forked while the file was still open for writing; its child closes it soon.
                Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy && attempts < 20 => {
                    attempts += 1;
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(error) => return Err(start_failure(None, &error.to_string(), &binary.display().to_string())),
            }
        }
    }
}

#[async_trait]
impl Transport for LocalTransport {
    fn node(&self) -> &str {
        &self.target.node
    }

    async fn open_agent(&self) -> Result<Box<dyn ByteStream>, NodeError> {
        let binary = self.binary().await?;
        let mut pipes = self.spawn(binary).await?;
        within("starting the node agent", START_LIMIT, async {
            let mut hello = Hello::default();
            let mut buffer = vec![0_u8; 8192];
            loop {
                let read = pipes.stdout.read(&mut buffer).await.map_err(|error| failed(&error.to_string()))?;
                if read == 0 {
                    return Err(pipes.failure(binary).await);
                }
                if let Some(rest) = hello.push(&buffer[..read])? {
                    let mut stream = Prefixed::new(rest, pipes.into_stream());
                    let written = stream.write_all(format!("{HELLO}\n").as_bytes()).await;
                    written.map_err(|error| NodeError::Lost { reason: error.to_string() })?;
                    return Ok(Box::new(stream) as Box<dyn ByteStream>);
                }
            }
        })
        .await
    }

    async fn open_port(&self, port: u16) -> Result<Box<dyn ByteStream>, NodeError> {
        let address = format!("127.0.0.1:{port}");
        within(&format!("connecting to {address}"), PORT_LIMIT, async {
            match TcpStream::connect(("127.0.0.1", port)).await {
                Ok(stream) => {
                    let _ = stream.set_nodelay(true);
                    Ok(Box::new(stream) as Box<dyn ByteStream>)
                }
                Err(error) => Err(NodeError::Connect { address: address.clone(), reason: error.to_string() }),
            }
        })
        .await
    }

    async fn host_key(&self) -> Option<String> {
        None
    }

    async fn close(&self) {}
}

/// A started agent.
struct Pipes {
    child: Child,
    stdin: ChildStdin,
    stdout: ChildStdout,
    stderr: ChildStderr,
}

impl Pipes {
    /// Why it ended before its first line.
    async fn failure(&mut self, binary: &Path) -> NodeError {
        let mut said = Vec::new();
        let _ = (&mut self.stderr).take(STDERR_LIMIT).read_to_end(&mut said).await;
        let status = self.child.wait().await.ok().and_then(|status| status.code());
        let status = status.and_then(|code| u32::try_from(code).ok());
        start_failure(status, &String::from_utf8_lossy(&said), &binary.display().to_string())
    }

    /// Keeps the error stream drained, so that an agent that says much never blocks on it.
    fn into_stream(self) -> ChildStream {
        let Self { mut child, stdin, stdout, mut stderr } = self;
        tokio::spawn(async move {
            let mut buffer = vec![0_u8; 4096];
            while let Ok(read) = stderr.read(&mut buffer).await {
                if read == 0 {
                    break;
                }
                let text = String::from_utf8_lossy(&buffer[..read]);
                tracing::debug!(text = %text.trim_end(), "the local agent says");
            }
            let _ = child.wait().await;
        });
        ChildStream { stdin: Some(stdin), stdout }
    }
}

/// The two pipes of an agent as one stream. Dropping it closes them, which ends `serve`.
struct ChildStream {
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
}

impl AsyncRead for ChildStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stdout).poll_read(cx, buf)
    }
}

impl AsyncWrite for ChildStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        match &mut self.stdin {
            Some(stdin) => Pin::new(stdin).poll_write(cx, buf),
            None => Poll::Ready(Err(std::io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match &mut self.stdin {
            Some(stdin) => Pin::new(stdin).poll_flush(cx),
            None => Poll::Ready(Ok(())),
        }
    }

    /// A pipe has no half-close: its end is dropped.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let flushed = self.as_mut().poll_flush(cx);
        if flushed.is_ready() {
            self.stdin = None;
        }
        flushed
    }
}

/// Copies a binary to its place under `home`, unless the same one is there.
fn place(file: &AgentFile, home: &Path) -> Result<PathBuf, NodeError> {
    let folder = home.join(AGENT_FOLDER);
    let target = folder.join(file.remote_name());
    let there = std::fs::metadata(&target).is_ok_and(|found| found.is_file() && found.len() == file.size_bytes);
    if there && digest_is(&target, file) {
        return Ok(target);
    }
    let part = folder.join(format!("{}.part-{}", file.remote_name(), SystemRandom.hex(8)));
    let copied = copy(file, &folder, &part).and_then(|()| {
        if !digest_is(&part, file) {
            return Err(std::io::Error::other("the copy differs from the original, which may have been rebuilt"));
        }
        std::fs::rename(&part, &target)
    });
    if let Err(error) = copied {
        let _ = std::fs::remove_file(&part);
        return Err(failed(&format!("cannot copy {} to {}: {error}", file.path.display(), target.display())));
    }
    Ok(target)
}

fn copy(file: &AgentFile, folder: &Path, part: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let mut source = File::open(&file.path)?;
    let mut target = File::options().write(true).create_new(true).open(part)?;
    std::io::copy(&mut source, &mut target)?;
    target.flush()?;
    target.set_permissions(Permissions::from_mode(0o700))
}

fn digest_is(path: &Path, file: &AgentFile) -> bool {
    super::agents::read(path).is_ok_and(|found| found.is_some_and(|found| found.sha256 == file.sha256))
}

fn failed(reason: &str) -> NodeError {
    let hint =
        "the agent is copied to ~/.local/share/flock and run there: the folder must be yours, writable and have room."
            .to_owned();
    NodeError::Agent { reason: reason.to_owned(), hint: Some(hint) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// A transport whose agent is a shell script.
    fn with_script(text: &str) -> (tempfile::TempDir, Arc<LocalTransport>) {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("flock-agent"), text).expect("written");
        let agents = AgentBinaries { directory: Some(folder.path().to_path_buf()) };
        let target = LocalTarget { node: "it's".to_owned(), cluster: "c d".to_owned() };
        let home = Some(folder.path().join("home"));
        (folder, Arc::new(LocalTransport { target, agents, home, placed: OnceCell::new() }))
    }

    #[tokio::test]
    async fn an_agent_is_copied_started_and_spoken_to() {
        let script = format!("#!/bin/sh\necho banner\necho '{HELLO}'\nprintf '%s|' \"$@\"\ncat\n");
        let (folder, transport) = with_script(&script);
        let mut stream = transport.open_agent().await.expect("started");
        stream.write_all(b"ping\n").await.expect("written");
        stream.shutdown().await.expect("closed");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("read");
        assert_eq!(answer, format!("serve|--cluster|c d|--node|it's|{HELLO}\nping\n"));

        let agents = folder.path().join("home").join(AGENT_FOLDER);
        let names: Vec<_> = std::fs::read_dir(&agents).expect("there").flatten().map(|e| e.file_name()).collect();
        assert_eq!(names.len(), 1, "{names:?}");
        std::fs::write(agents.join(&names[0]), "broken").expect("written");
        let again = LocalTransport {
            target: transport.target.clone(),
            agents: transport.agents.clone(),
            home: transport.home.clone(),
            placed: OnceCell::new(),
        };
        assert!(again.open_agent().await.is_ok(), "a broken copy is replaced");
    }

    #[tokio::test]
    async fn an_agent_that_ends_early_says_why() {
        let (_folder, transport) = with_script("#!/bin/sh\necho 'no room on this boat' >&2\nexit 3\n");
        let error = transport.open_agent().await.err().expect("it ended").to_string();
        assert!(error.contains("no room on this boat") && error.contains("status 3"), "{error}");
    }

    #[tokio::test]
    async fn ports_are_reached_or_refused() {
        let (_folder, transport) = with_script("");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let port = listener.local_addr().expect("an address").port();
        let mut stream = transport.open_port(port).await.expect("connected");
        let (mut far, _) = listener.accept().await.expect("accepted");
        far.write_all(b"x").await.expect("written");
        assert_eq!(stream.read_u8().await.expect("read"), b'x');
        drop(listener);
        assert!(matches!(transport.open_port(port).await, Err(NodeError::Connect { .. })));
    }
}
