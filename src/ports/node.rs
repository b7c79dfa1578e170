//! A node: bytes to and from its agent, and the typed requests on top.

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::inventory::{FetchSpec, MemberNode, Refusal, Request, Response};

/// A two-way byte stream.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// Why a node could not be asked. Every variant names what to do about it through `hint`.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NodeError {
    /// No connection.
    #[error("cannot connect to {address}: {reason}")]
    Connect {
        /// `host:port`.
        address: String,
        /// Why.
        reason: String,
    },
    /// The host key is in no known_hosts file.
    #[error("the host key of {address} is not known ({fingerprint})")]
    HostKeyUnknown {
        /// `host:port`.
        address: String,
        /// `SHA256:…` of the key that was offered.
        fingerprint: String,
        /// The known_hosts file that was searched.
        known_hosts: String,
    },
    /// The host key differs from the known one.
    #[error("the host key of {address} has changed: known_hosts line {line} differs from {fingerprint}")]
    HostKeyChanged {
        /// `host:port`.
        address: String,
        /// `SHA256:…` of the key that was offered.
        fingerprint: String,
        /// The known_hosts file.
        known_hosts: String,
        /// 1-based line of the other key.
        line: usize,
    },
    /// The host key is marked as revoked.
    #[error("the host key of {address} is revoked: known_hosts line {line} marks {fingerprint}")]
    HostKeyRevoked {
        /// `host:port`.
        address: String,
        /// `SHA256:…` of the key that was offered.
        fingerprint: String,
        /// The known_hosts file.
        known_hosts: String,
        /// 1-based line of the mark.
        line: usize,
    },
    /// No key was accepted.
    #[error("{user}@{address} refused every key: {tried}")]
    Authentication {
        /// Login name.
        user: String,
        /// `host:port`.
        address: String,
        /// What was tried.
        tried: String,
    },
    /// A step took longer than its deadline.
    #[error("{step} took longer than {seconds} s")]
    Deadline {
        /// Which step.
        step: String,
        /// The deadline.
        seconds: u64,
    },
    /// The agent binary could not be brought or started.
    #[error("cannot run the node agent: {reason}")]
    Agent {
        /// Why.
        reason: String,
        /// What to do.
        hint: Option<String>,
    },
    /// The connection ended or the stream made no sense.
    #[error("lost the node agent: {reason}")]
    Lost {
        /// Why.
        reason: String,
    },
    /// The agent refused.
    #[error("{0}")]
    Refused(Refusal),
}

impl NodeError {
    /// The nearest remedy, as a sentence.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::HostKeyUnknown { address, known_hosts, .. } => {
                let (host, port) = address.rsplit_once(':').unwrap_or((address, "22"));
                let port = if port == "22" { String::new() } else { format!("-p {port} ") };
                Some(format!(
                    "compare the fingerprint with the one the machine's console shows, then: ssh-keyscan {port}{host} >> {known_hosts}"
                ))
            }
            Self::HostKeyChanged { known_hosts, line, .. } => Some(format!(
                "if the machine was reinstalled, remove line {line} of {known_hosts} and add the new key; otherwise somebody may be in between: do not connect"
            )),
            Self::HostKeyRevoked { known_hosts, line, .. } => Some(format!(
                "somebody declared this key unsafe (line {line} of {known_hosts}): give the machine a new host key; do not connect before"
            )),
            Self::Authentication { user, .. } => Some(format!(
                "put a public key of yours into ~{user}/.ssh/authorized_keys on the node, name its private key with `ssh identity=\"…\"`, or load it into ssh-agent"
            )),
            Self::Connect { .. } | Self::Deadline { .. } => Some(
                "check that the machine is up and the address is right; --exclude NODE plans without it".to_owned(),
            ),
            Self::Agent { hint, .. } => hint.clone(),
            Self::Lost { .. } => Some("run the same command again; nothing that was done is lost".to_owned()),
            Self::Refused(_) => None,
        }
    }
}

/// The raw way to a node: implemented once per kind of connection.
#[async_trait]
pub trait Transport: Send + Sync {
    /// The node's configured name.
    fn node(&self) -> &str;
    /// Connects if needed, brings the agent binary if it is missing, starts `flock-agent serve` and returns
    /// its standard streams. Several may be open at once over one connection.
    async fn open_agent(&self) -> Result<Box<dyn ByteStream>, NodeError>;
    /// A stream to a TCP port on the node's loopback.
    async fn open_port(&self, port: u16) -> Result<Box<dyn ByteStream>, NodeError>;
    /// The host key that was verified, `algorithm base64`; `None` for a local node or before connecting.
    async fn host_key(&self) -> Option<String>;
    /// Ends the connection.
    async fn close(&self);
}

/// Reports how many bytes of the file the node has or the connection has taken: first where the transfer resumes,
/// then growing up to the file's size.
pub type Progress<'a> = &'a (dyn Fn(u64) + Send + Sync);

/// A node with the agent's protocol on it.
#[async_trait]
pub trait Node: Send + Sync {
    /// Its configured name.
    fn name(&self) -> &str;
    /// Sends one request and waits for the answer; `Response::Refused` becomes `NodeError::Refused`.
    async fn call(&self, request: Request) -> Result<Response, NodeError>;
    /// Sends one file of a set from the controller's disk, resuming where the node has part of it.
    async fn put(
        &self,
        from_folder: &str,
        fetch: &FetchSpec,
        name: &str,
        progress: Progress<'_>,
    ) -> Result<(), NodeError>;
    /// A stream to a TCP port on the node's loopback.
    async fn open_port(&self, port: u16) -> Result<Box<dyn ByteStream>, NodeError>;
    /// The verified host key, where there is one.
    async fn host_key(&self) -> Option<String>;
    /// Ends the connection.
    async fn close(&self);
}

/// The nodes of a cluster.
pub trait Fleet: Send + Sync {
    /// The nodes of the config, sorted by name. Nothing is connected yet.
    fn configured(&self) -> Vec<std::sync::Arc<dyn Node>>;
    /// A node that the config no longer names and the member record remembers.
    fn remembered(&self, member: &MemberNode) -> std::sync::Arc<dyn Node>;
}
