//! The way to one node: a shared connection that is made when it is needed and made again when it was lost.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use russh::ChannelMsg;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{Mutex, OnceCell};

use super::connection::{Connection, abandon, keep, lost, no_commands};
use super::push::{push, remote_path};
use super::shell::{SURVEY, Survey, quote, read_survey, script};
use crate::edge::agents::{AgentBinaries, AgentFile, Platform, one_line, start_failure};
use crate::edge::stream::{Hello, Prefixed, within};
use crate::inventory::HELLO;
use crate::ports::{ByteStream, NodeError, Transport};

/// Deadline of the first look at a node.
const SURVEY_LIMIT: Duration = Duration::from_secs(30);
/// Deadline of the agent's first line.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Where a node is and who to be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshTarget {
    /// The node's configured name.
    pub node: String,
    /// Host name or address.
    pub address: String,
    /// TCP port of its sshd.
    pub port: u16,
    /// Login name.
    pub user: String,
    /// Private keys to offer, in order; where empty, `~/.ssh/id_ed25519`, `id_ecdsa` and `id_rsa`. The keys of
    /// ssh-agent follow in either case.
    pub identities: Vec<PathBuf>,
    /// The file of known host keys.
    pub known_hosts: PathBuf,
    /// Deadline of each step of connecting: TCP, handshake, login.
    pub connect_timeout: Duration,
    /// The cluster's name, which the agent keeps its state under.
    pub cluster: String,
}

impl SshTarget {
    /// `host:port`, with IPv6 addresses in brackets.
    pub(super) fn shown_address(&self) -> String {
        let bare = self.address.contains(':') && !self.address.starts_with('[');
        if bare { format!("[{}]:{}", self.address, self.port) } else { format!("{}:{}", self.address, self.port) }
    }
}

/// A connection and what was learnt of the node over it.
struct Link {
    connection: Connection,
    /// How often the agent was brought over this connection; held while it is being brought.
    pushes: Mutex<u32>,
    found: OnceCell<(Survey, AgentFile)>,
}

/// A node over SSH.
pub struct SshTransport {
    target: SshTarget,
    agents: AgentBinaries,
    link: Mutex<Option<Arc<Link>>>,
}

impl SshTransport {
    /// Connects to nothing yet.
    pub fn new(target: SshTarget, agents: AgentBinaries) -> Self {
        Self { target, agents, link: Mutex::new(None) }
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
        let connection = Connection::open(&self.target).await?;
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

    /// What the node is and which agent it needs.
    async fn survey<'a>(&self, link: &'a Link) -> Result<&'a (Survey, AgentFile), NodeError> {
        link.found
            .get_or_try_init(|| async {
                let line = script(SURVEY, &[]);
                let output = link.connection.exec("looking at the node", SURVEY_LIMIT, line).await?;
                let survey = read_survey(&output.stdout).map_err(|reason| {
                    let said = one_line(&output.stderr);
                    let reason = if said.is_empty() { reason } else { format!("{reason} ({said})") };
                    NodeError::Agent { reason, hint: Some("the login needs a POSIX sh".to_owned()) }
                })?;
                if survey.system != "Linux" {
                    let reason = format!("the node runs {}, and agents exist for Linux", one_line(&survey.system));
                    return Err(NodeError::Agent { reason, hint: None });
                }
                let platform = Platform::of_uname(&survey.machine, &survey.libc);
                let agents = self.agents.clone();
                let file = tokio::task::spawn_blocking(move || agents.find(&platform)).await;
                Ok((survey, file.map_err(|error| lost(&error))??))
            })
            .await
    }

    /// Starts the agent, and brings it first where it is missing. One that does not start although it was there with
    /// the right size is brought once more. Callers that come while it is being brought wait for that.
    async fn start(&self, link: &Link) -> Result<Box<dyn ByteStream>, NodeError> {
        let (survey, file) = self.survey(link).await?;
        let name = file.remote_name();
        let path = remote_path(&survey.home, &name);
        let before = *link.pushes.lock().await;
        if before > 0 || survey.agents.iter().any(|(have, size)| *have == name && *size == file.size_bytes) {
            match self.serve(link, &path).await {
                Err(NodeError::Agent { reason, .. }) => {
                    tracing::debug!(%reason, "the agent that was there does not start, bringing it again");
                }
                result => return result,
            }
        }
        let mut pushes = link.pushes.lock().await;
        if *pushes == before {
            push(&link.connection, file, &survey.home, &path).await?;
            *pushes += 1;
        }
        drop(pushes);
        self.serve(link, &path).await
    }

    /// Starts `flock-agent serve` and exchanges hello lines.
    async fn serve(&self, link: &Link, path: &str) -> Result<Box<dyn ByteStream>, NodeError> {
        let (cluster, node) = (quote(&self.target.cluster), quote(&self.target.node));
        let command = format!("exec {} serve --cluster {cluster} --node {node}", quote(path));
        let mut channel = link.connection.session().await?;
        let greeted = within("starting the node agent", START_LIMIT, async {
            channel.exec(true, command).await.map_err(|error| lost(&error))?;
            let mut hello = Hello::default();
            let mut stderr = Vec::new();
            let mut status = None;
            loop {
                match channel.wait().await {
                    Some(ChannelMsg::Data { data }) => {
                        if let Some(rest) = hello.push(&data)? {
                            return Ok(rest);
                        }
                    }
                    Some(ChannelMsg::ExtendedData { data, .. }) => keep(&mut stderr, &data),
                    Some(ChannelMsg::ExitStatus { exit_status }) => status = Some(exit_status),
                    Some(ChannelMsg::Failure) => return Err(no_commands()),
                    Some(_) => {}
                    None if link.connection.is_closed() => return Err(lost(&"the connection ended")),
                    None => return Err(start_failure(status, &String::from_utf8_lossy(&stderr), path)),
                }
            }
        })
        .await;
        let rest = match greeted {
            Ok(rest) => rest,
            Err(error) => {
                abandon(&channel).await;
                return Err(error);
            }
        };
        let mut stream = Prefixed::new(rest, channel.into_stream());
        within("greeting the node agent", START_LIMIT, async {
            stream.write_all(format!("{HELLO}\n").as_bytes()).await.map_err(|error| lost(&error))?;
            stream.flush().await.map_err(|error| lost(&error))
        })
        .await?;
        Ok(Box::new(stream))
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
