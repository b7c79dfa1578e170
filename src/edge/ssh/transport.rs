//! The way to one node: a shared connection that is made when it is needed and made again when it was lost.
//!
//! A node that is ready costs one connection and one channel: the look at it and the start of its agent are one
//! command.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use russh::client::Msg;
use russh::{Channel, ChannelMsg};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::sync::{Mutex, OnceCell};

use super::connection::{Connection, abandon, lost, no_commands, no_session};
use super::login::SshTarget;
use super::network::SshNetwork;
use super::push::{push, remote_folder};
use super::sending::{Said, something_else};
use super::shell::{SERVE, SURVEY, SURVEY_LINES, Survey, read_survey, script};
use crate::edge::agents::{AgentFile, Platform, last_words, start_failure};
use crate::edge::stream::{Hello, Prefixed, within};
use crate::inventory::HELLO;
use crate::ports::{ByteStream, NodeError, Transport};

/// Deadline of the first look at a node, and of the first line of an agent that is there.
const LOOK_LIMIT: Duration = Duration::from_secs(60);
/// Deadline of the agent's first line.
const START_LIMIT: Duration = Duration::from_secs(30);

/// How long a server that allows no further session is given to count again, each time.
const SESSION_PAUSES: [Duration; 3] = [Duration::from_millis(30), Duration::from_millis(100), Duration::ZERO];

/// A connection and what was learnt of the node over it.
struct Link {
    connection: Arc<Connection>,
    /// How often the agent was brought over this connection; held while it is being brought.
    pushes: Mutex<u32>,
    found: OnceCell<Found>,
}

/// What a node is and which agent it needs.
struct Found {
    folder: String,
    file: AgentFile,
}

impl Found {
    fn path(&self) -> String {
        format!("{}/{}", self.folder, self.file.remote_name())
    }
}

/// A node over SSH.
pub struct SshTransport {
    target: SshTarget,
    network: Arc<SshNetwork>,
    link: Mutex<Option<Arc<Link>>>,
}

/// A channel with the agent's first words read, or why it has none.
enum Started {
    Running(Box<dyn ByteStream>),
    Missing,
}

impl SshTransport {
    /// Connects to nothing yet.
    pub fn new(target: SshTarget, network: Arc<SshNetwork>) -> Self {
        Self { target, network, link: Mutex::new(None) }
    }

    /// The living connection, or a new one.
    async fn link(&self) -> Result<Arc<Link>, NodeError> {
        let mut slot = self.link.lock().await;
        if let Some(link) = slot.as_ref().filter(|link| !link.connection.is_closed()) {
            return Ok(Arc::clone(link));
        }
        if slot.take().is_some() {
            tracing::debug!(node = %self.target.node, "the connection was lost, connecting again");
        }
        let connection = Arc::new(self.network.open(&self.target).await?);
        let link = Arc::new(Link { connection, pushes: Mutex::new(0), found: OnceCell::new() });
        *slot = Some(Arc::clone(&link));
        Ok(link)
    }

    /// Forgets a connection that no longer answers, so that the next caller makes a new one. Streams that are
    /// still open over it live on.
    async fn forget(&self, link: &Arc<Link>) {
        let mut slot = self.link.lock().await;
        if slot.as_ref().is_some_and(|held| Arc::ptr_eq(held, link)) {
            *slot = None;
        }
    }

    /// A channel for a command. Where the server allows no more on this connection (`MaxSessions`), one on a
    /// connection of its own.
    async fn session(&self, link: &Link) -> Result<(Channel<Msg>, Arc<Connection>), NodeError> {
        // A session that just ended may still be counted.
        for pause in SESSION_PAUSES {
            if let Some(channel) = link.connection.session().await? {
                return Ok((channel, Arc::clone(&link.connection)));
            }
            tokio::time::sleep(pause).await;
        }
        tracing::debug!(node = %self.target.node, "no more sessions on this connection, making another");
        let connection = Arc::new(self.network.open(&self.target).await?);
        let channel = connection.session().await?.ok_or_else(no_session)?;
        Ok((channel, connection))
    }

    /// Starts the agent, and brings it first where it is missing. One that does not start although it was there with
    /// the right size is brought once more. Callers that come while it is being brought wait for that.
    async fn start(&self, link: &Link) -> Result<Box<dyn ByteStream>, NodeError> {
        let before = *link.pushes.lock().await;
        let started = match link.found.get() {
            Some(found) => self.serve(link, &found.path()).await.map(Started::Running),
            None => self.look(link).await,
        };
        let Some(found) = link.found.get() else {
            return started.and_then(|_| Err(lost(&"the look at the node ended early")));
        };
        match started {
            Ok(Started::Running(stream)) => return Ok(stream),
            Ok(Started::Missing) => {}
            Err(NodeError::Agent { reason, .. }) => {
                tracing::debug!(%reason, "the agent that was there does not start, bringing it again");
            }
            Err(error) => return Err(error),
        }
        let mut pushes = link.pushes.lock().await;
        if *pushes == before {
            let (channel, _connection) = self.session(link).await?;
            push(channel, &found.file, &found.folder).await?;
            *pushes += 1;
        }
        drop(pushes);
        self.serve(link, &found.path()).await
    }

    /// Looks at the node and, in the same command, starts the agent that is there.
    async fn look(&self, link: &Link) -> Result<Started, NodeError> {
        let binaries = self.network.binaries().await?;
        let mut words = vec![self.target.cluster.clone(), self.target.node.clone()];
        for (platform, file) in binaries {
            words.extend([platform.key(), file.remote_name(), file.size_bytes.to_string()]);
        }
        let command = script(SURVEY, &words.iter().map(String::as_str).collect::<Vec<_>>())?;
        let (mut channel, connection) = self.session(link).await?;
        let looked = within("looking at the node", LOOK_LIMIT, async {
            channel.exec(true, command).await.map_err(|error| lost(&error))?;
            let (mut stdout, mut stderr) = (Said::default(), Said::default());
            let mut status = None;
            let mut lines = Vec::new();
            let mut hello: Option<Hello> = None;
            loop {
                match channel.wait().await {
                    Some(ChannelMsg::Data { data }) => match &mut hello {
                        Some(hello) => {
                            if let Some(rest) = hello.push(&data)? {
                                return Ok(Some(rest));
                            }
                        }
                        None => {
                            stdout.push(&data);
                            while lines.len() < SURVEY_LINES
                                && let Some(line) = stdout.take_line()
                            {
                                lines.push(line);
                            }
                            if lines.len() == SURVEY_LINES {
                                let survey = read_survey(&lines).map_err(odd)?;
                                let there = survey.agent.is_some();
                                self.learn(link, survey).await?;
                                if !there {
                                    return Ok(None);
                                }
                                if let Some(rest) = hello.insert(Hello::default()).push(&stdout.take_rest())? {
                                    return Ok(Some(rest));
                                }
                            }
                        }
                    },
                    Some(ChannelMsg::ExtendedData { data, .. }) => stderr.push(&data),
                    Some(ChannelMsg::ExitStatus { exit_status }) => status = Some(exit_status),
                    Some(ChannelMsg::Failure) => return Err(no_commands()),
                    Some(_) => {}
                    None if connection.is_closed() => return Err(lost(&"the connection ended")),
                    None if hello.is_some() => {
                        let path = link.found.get().map(Found::path).unwrap_or_default();
                        return Err(start_failure(status, &stderr.text(), &path));
                    }
                    None if stdout.begun => {
                        let said = last_words(&stderr.text());
                        return Err(odd(format!("the node answered in part only ({said})")));
                    }
                    None => return Err(something_else(status, &stdout, &stderr)),
                }
            }
        })
        .await;
        match looked {
            Ok(Some(rest)) => greet(channel, connection, rest).await.map(Started::Running),
            Ok(None) => {
                // Its end frees the session, which a server may count.
                let _ = tokio::time::timeout(START_LIMIT, async { while channel.wait().await.is_some() {} }).await;
                Ok(Started::Missing)
            }
            Err(error) => {
                abandon(&channel).await;
                Err(error)
            }
        }
    }

    /// Keeps what a look at the node told, and finds the agent for it.
    async fn learn(&self, link: &Link, survey: Survey) -> Result<(), NodeError> {
        if survey.system != "Linux" {
            let reason = format!("the node runs {}, and agents exist for Linux", last_words(&survey.system));
            let hint = "take the node out of the config, or give an address where Linux runs.".to_owned();
            return Err(NodeError::Agent { reason, hint: Some(hint) });
        }
        let platform = Platform::of_uname(&survey.machine, &survey.libc);
        let binaries = self.network.binaries().await?;
        let file = match binaries.iter().find(|(known, _)| *known == platform) {
            Some((_, file)) => file.clone(),
            // The search says where it looked.
            None => self.network.agents.find(&platform)?,
        };
        let folder = remote_folder(&survey.home);
        link.found.get_or_init(|| async { Found { folder, file } }).await;
        Ok(())
    }

    /// Starts `flock-agent serve` and exchanges hello lines.
    async fn serve(&self, link: &Link, path: &str) -> Result<Box<dyn ByteStream>, NodeError> {
        let words = [path, "serve", "--cluster", &self.target.cluster, "--node", &self.target.node];
        let command = script(SERVE, &words)?;
        let (mut channel, connection) = self.session(link).await?;
        let greeted = within("starting the node agent", START_LIMIT, async {
            channel.exec(true, command).await.map_err(|error| lost(&error))?;
            let mut hello = Hello::default();
            let (mut stdout, mut stderr) = (Said::default(), Said::default());
            let mut status = None;
            loop {
                match channel.wait().await {
                    Some(ChannelMsg::Data { data }) => {
                        if let Some(rest) = hello.push(&data)? {
                            return Ok(rest);
                        }
                        stdout.push(&data);
                    }
                    Some(ChannelMsg::ExtendedData { data, .. }) => stderr.push(&data),
                    Some(ChannelMsg::ExitStatus { exit_status }) => status = Some(exit_status),
                    Some(ChannelMsg::Failure) => return Err(no_commands()),
                    Some(_) => {}
                    None if connection.is_closed() => return Err(lost(&"the connection ended")),
                    None if stdout.begun => return Err(start_failure(status, &stderr.text(), path)),
                    None => return Err(something_else(status, &stdout, &stderr)),
                }
            }
        })
        .await;
        match greeted {
            Ok(rest) => greet(channel, connection, rest).await,
            Err(error) => {
                abandon(&channel).await;
                Err(error)
            }
        }
    }
}

fn odd(reason: String) -> NodeError {
    NodeError::Agent { reason, hint: Some("the login needs a POSIX sh".to_owned()) }
}

/// Answers the agent's hello.
async fn greet(
    channel: Channel<Msg>,
    connection: Arc<Connection>,
    rest: Vec<u8>,
) -> Result<Box<dyn ByteStream>, NodeError> {
    let mut stream = Prefixed::new(rest, Kept { stream: channel.into_stream(), _connection: connection });
    within("greeting the node agent", START_LIMIT, async {
        stream.write_all(format!("{HELLO}\n").as_bytes()).await.map_err(|error| lost(&error))?;
        stream.flush().await.map_err(|error| lost(&error))
    })
    .await?;
    Ok(Box::new(stream))
}

/// A stream that keeps its connection.
struct Kept<S> {
    stream: S,
    _connection: Arc<Connection>,
}

impl<S: ByteStream> AsyncRead for Kept<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: ByteStream> AsyncWrite for Kept<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[async_trait]
impl Transport for SshTransport {
    fn node(&self) -> &str {
        &self.target.node
    }

    async fn open_agent(&self) -> Result<Box<dyn ByteStream>, NodeError> {
        let link = self.link().await?;
        match self.start(&link).await {
            // The connection died since it was last used and nobody had noticed: once more over a new one.
            Err(NodeError::Lost { .. }) if link.connection.is_closed() => {
                let link = self.link().await?;
                self.start(&link).await
            }
            Err(error @ NodeError::Deadline { .. }) => {
                self.forget(&link).await;
                Err(error)
            }
            result => result,
        }
    }

    async fn open_port(&self, port: u16) -> Result<Box<dyn ByteStream>, NodeError> {
        let link = self.link().await?;
        let channel = match link.connection.port(port).await {
            Err(NodeError::Lost { .. }) if link.connection.is_closed() => {
                self.link().await?.connection.port(port).await?
            }
            Err(error @ NodeError::Deadline { .. }) => {
                self.forget(&link).await;
                return Err(error);
            }
            result => result?,
        };
        Ok(Box::new(channel.into_stream()))
    }

    async fn host_key(&self) -> Option<String> {
        self.link.lock().await.as_ref().map(|link| link.connection.host_key.clone())
    }

    async fn close(&self) {
        if let Some(link) = self.link.lock().await.take() {
            link.connection.close().await;
        }
    }
}
