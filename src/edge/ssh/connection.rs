//! One SSH connection: reached, verified, logged in, kept alive; commands and streams over it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use russh::client::{self, Handle, Msg};
use russh::keys::{PublicKey, PublicKeyOrCertificate};
use russh::{Channel, ChannelMsg, Disconnect};
use tokio::net::TcpStream;

use super::SshTarget;
use super::auth::log_in;
use super::known_hosts::{KnownHosts, Verdict, fingerprint};
use crate::edge::stream::within;
use crate::ports::NodeError;

/// Without a word from the node for this long, a keepalive is sent.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// So many unanswered keepalives end the connection.
const KEEPALIVES_MISSED: usize = 3;
/// Deadline of opening a channel.
const CHANNEL: Duration = Duration::from_secs(20);
/// Most bytes kept of what a command says.
const OUTPUT_LIMIT: usize = 64 << 10;
/// Largest known_hosts file that is read.
const MAX_KNOWN_HOSTS: u64 = 16 << 20;

/// How a command ended.
#[derive(Debug, Default)]
pub(super) struct Output {
    pub(super) status: Option<u32>,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

/// A logged-in connection.
pub(super) struct Connection {
    handle: Handle<Verifier>,
    /// The verified host key, `algorithm base64`.
    pub(super) host_key: String,
}

/// Why a handshake failed: ours or the library's.
#[derive(Debug)]
enum HandshakeError {
    HostKey(NodeError),
    Ssh(russh::Error),
}

impl From<russh::Error> for HandshakeError {
    fn from(error: russh::Error) -> Self {
        Self::Ssh(error)
    }
}

/// Checks the offered host key against known_hosts.
struct Verifier {
    known: KnownHosts,
    host: String,
    port: u16,
    address: String,
    known_hosts: String,
    accepted: Arc<std::sync::Mutex<Option<PublicKey>>>,
}

impl client::Handler for Verifier {
    type Error = HandshakeError;

    async fn check_server_key(&mut self, offered: &PublicKeyOrCertificate) -> Result<bool, HandshakeError> {
        let key = offered.public_key();
        let fingerprint = fingerprint(&key);
        let (address, known_hosts) = (self.address.clone(), self.known_hosts.clone());
        let verdict = match offered.certificate() {
            Some(_) => Verdict::Unknown,
            None => self.known.check(&self.host, self.port, &key),
        };
        tracing::debug!(%address, %fingerprint, ?verdict, "host key offered");
        let error = match verdict {
            Verdict::Known => {
                if let Ok(mut accepted) = self.accepted.lock() {
                    *accepted = Some(key);
                }
                return Ok(true);
            }
            Verdict::Unknown => NodeError::HostKeyUnknown { address, fingerprint, known_hosts },
            Verdict::Changed { line } => NodeError::HostKeyChanged { address, fingerprint, known_hosts, line },
            Verdict::Revoked { line } => NodeError::HostKeyRevoked { address, fingerprint, known_hosts, line },
        };
        Err(HandshakeError::HostKey(error))
    }
}

impl Connection {
    /// Connects, verifies the host key and logs in, each under the target's deadline.
    pub(super) async fn open(target: &SshTarget) -> Result<Self, NodeError> {
        let address = target.shown_address();
        let limit = target.connect_timeout;
        let known = read_known_hosts(&target.known_hosts).await?;
        let connect =
            |error: &dyn std::fmt::Display| NodeError::Connect { address: address.clone(), reason: error.to_string() };
        let socket = within(&format!("connecting to {address}"), limit, async {
            let host = target.address.trim_start_matches('[').trim_end_matches(']');
            TcpStream::connect((host, target.port)).await.map_err(|error| connect(&error))
        })
        .await?;
        socket.set_nodelay(true).map_err(|error| connect(&error))?;

        let mut preferred = russh::Preferred::default();
        preferred.key = known.preferred(&target.address, target.port).into();
        let config = client::Config {
            keepalive_interval: Some(KEEPALIVE),
            keepalive_max: KEEPALIVES_MISSED,
            channel_buffer_size: 256,
            nodelay: true,
            preferred,
            ..client::Config::default()
        };
        let accepted = Arc::new(std::sync::Mutex::new(None));
        let verifier = Verifier {
            known,
            host: target.address.clone(),
            port: target.port,
            address: address.clone(),
            known_hosts: target.known_hosts.display().to_string(),
            accepted: Arc::clone(&accepted),
        };
        let mut handle = within(&format!("the SSH handshake with {address}"), limit, async {
            client::connect_stream(Arc::new(config), socket, verifier).await.map_err(|error| match error {
                HandshakeError::HostKey(error) => error,
                HandshakeError::Ssh(error) => connect(&error),
            })
        })
        .await?;
        within(&format!("logging in to {address}"), limit, async {
            let (user, address) = (target.user.clone(), address.clone());
            log_in(&mut handle, &target.user, &target.identities).await.map_err(|tried| NodeError::Authentication {
                user,
                address,
                tried,
            })
        })
        .await?;
        let key = accepted.lock().ok().and_then(|mut accepted| accepted.take());
        let host_key = key.and_then(|key| PublicKey::new(key.into(), "").to_openssh().ok()).unwrap_or_default();
        tracing::debug!(%address, "connected");
        Ok(Self { handle, host_key })
    }

    /// Whether the connection has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.handle.is_closed()
    }

    /// Says goodbye; errors no longer matter.
    pub(super) async fn close(&self) {
        let goodbye = self.handle.disconnect(Disconnect::ByApplication, "", "en");
        let _ = tokio::time::timeout(Duration::from_secs(2), goodbye).await;
    }

    /// Opens a channel for a command or a subsystem.
    pub(super) async fn session(&self) -> Result<Channel<Msg>, NodeError> {
        within("opening an SSH channel", CHANNEL, async {
            self.handle.channel_open_session().await.map_err(|error| lost(&error))
        })
        .await
    }

    /// Opens a stream to a port on the node's loopback.
    pub(super) async fn port(&self, port: u16) -> Result<Channel<Msg>, NodeError> {
        within(&format!("opening port {port} of the node"), CHANNEL, async {
            let opened = self.handle.channel_open_direct_tcpip("127.0.0.1", u32::from(port), "127.0.0.1", 0).await;
            opened.map_err(|error| match error {
                russh::Error::ChannelOpenFailure(why) => NodeError::Connect {
                    address: format!("127.0.0.1:{port} on the node"),
                    reason: match why {
                        russh::ChannelOpenFailure::AdministrativelyProhibited => {
                            "the node's sshd forbids forwarding (AllowTcpForwarding)".to_owned()
                        }
                        other => format!("nothing accepts connections there ({other:?})"),
                    },
                },
                other => lost(&other),
            })
        })
        .await
    }

    /// Runs a command to its end and returns what it said, the first 64 KiB of each stream.
    pub(super) async fn exec(&self, step: &str, limit: Duration, command: String) -> Result<Output, NodeError> {
        let mut channel = self.session().await?;
        let done = within(step, limit, async {
            channel.exec(true, command).await.map_err(|error| lost(&error))?;
            let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
            let mut output = Output::default();
            while let Some(message) = channel.wait().await {
                match message {
                    ChannelMsg::Data { data } => keep(&mut stdout, &data),
                    ChannelMsg::ExtendedData { data, .. } => keep(&mut stderr, &data),
                    ChannelMsg::ExitStatus { exit_status } => output.status = Some(exit_status),
                    ChannelMsg::Failure => return Err(no_commands()),
                    _ => {}
                }
            }
            output.stdout = String::from_utf8_lossy(&stdout).into_owned();
            output.stderr = String::from_utf8_lossy(&stderr).into_owned();
            Ok(output)
        })
        .await;
        if done.is_err() {
            abandon(&channel).await;
        }
        done
    }
}

/// Closes a channel that is not wanted any more: a server counts open ones, and dropping one does not close it.
pub(super) async fn abandon(channel: &Channel<Msg>) {
    let _ = tokio::time::timeout(Duration::from_secs(1), channel.close()).await;
}

/// Appends up to the limit.
pub(super) fn keep(kept: &mut Vec<u8>, data: &[u8]) {
    let room = OUTPUT_LIMIT.saturating_sub(kept.len());
    kept.extend_from_slice(&data[..data.len().min(room)]);
}

/// The server runs no commands.
pub(super) fn no_commands() -> NodeError {
    NodeError::Agent {
        reason: "the node's SSH server refused to run a command".to_owned(),
        hint: Some("the login needs a shell: no ForceCommand, no nologin".to_owned()),
    }
}

/// The connection failed under us.
pub(super) fn lost(error: &dyn std::fmt::Display) -> NodeError {
    NodeError::Lost { reason: error.to_string() }
}

async fn read_known_hosts(path: &Path) -> Result<KnownHosts, NodeError> {
    let unreadable = |error: std::io::Error| NodeError::Connect {
        address: path.display().to_string(),
        reason: format!("the known_hosts file cannot be read: {error}"),
    };
    match tokio::fs::metadata(path).await {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(KnownHosts::default()),
        Err(error) => return Err(unreadable(error)),
        Ok(metadata) if metadata.len() > MAX_KNOWN_HOSTS => {
            return Err(unreadable(std::io::Error::other("more than 16 MiB")));
        }
        Ok(_) => {}
    }
    let bytes = tokio::fs::read(path).await.map_err(unreadable)?;
    Ok(KnownHosts::parse(&String::from_utf8_lossy(&bytes)))
}
