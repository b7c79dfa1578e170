//! One SSH connection: reached, verified, logged in, kept alive; channels over it.

use std::sync::Arc;
use std::time::Duration;

use russh::client::{self, Handle, Msg};
use russh::keys::PublicKey;
use russh::{Channel, Disconnect};
use tokio::net::TcpStream;

use super::auth::log_in;
use super::login::Login;
use super::network::Notice;
use super::verifier::{HandshakeError, Verifier, read_known_hosts};
use crate::edge::stream::within;
use crate::ports::{ByteStream, NodeError};

/// Without a word from the node for this long, a keepalive is sent.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// So many unanswered keepalives end the connection.
const KEEPALIVES_MISSED: usize = 3;
/// So many times what TCP's connect took may a handshake and a login take beyond the target's deadline.
const ROUND_TRIPS: u32 = 20;
/// Deadline of opening a channel.
const CHANNEL: Duration = Duration::from_secs(20);
/// How often a server that hangs up before the handshake (`MaxStartups`) is tried, and the first pause.
const HANDSHAKES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(200);

/// A logged-in connection.
pub(super) struct Connection {
    handle: Handle<Verifier>,
    /// The verified host key, `algorithm base64`.
    pub(super) host_key: String,
    /// The connection that this one goes through, kept while this one lives.
    _through: Option<Arc<Connection>>,
}

impl Connection {
    /// Connects, verifies the host key and logs in, each under the login's deadline; a line that is slow to connect gets
    /// more for what follows.
    pub(super) async fn open(
        login: &Login,
        through: Option<(Arc<Self>, &Login)>,
        notice: &Notice,
    ) -> Result<Self, NodeError> {
        let address = login.address();
        let limit = login.connect_timeout;
        let known = Arc::new(read_known_hosts(&login.known_hosts).await?);
        let mut preferred = russh::Preferred::default();
        preferred.key = known.preferred(&login.names).into();
        preferred.host_key_certificates = known.preferred_certificates(&login.names).into();
        let config = Arc::new(client::Config {
            keepalive_interval: Some(KEEPALIVE),
            keepalive_max: KEEPALIVES_MISSED,
            channel_buffer_size: 256,
            nodelay: true,
            preferred,
            ..client::Config::default()
        });
        let accepted = Arc::new(std::sync::Mutex::new(None));
        let login_shared = Arc::new(login.clone());
        let mut attempt = 0;
        let (mut handle, limit) = loop {
            let begun = tokio::time::Instant::now();
            let socket = within(&format!("connecting to {address}"), limit, reach(login, through.as_ref())).await?;
            // A far or lossy line showed itself just now: what follows takes several round trips over it.
            let limit = limit + begun.elapsed() * ROUND_TRIPS;
            let verifier = Verifier {
                known: Arc::clone(&known),
                login: Arc::clone(&login_shared),
                notice: Arc::clone(notice),
                through: through.as_ref().map(|(_, hop)| as_ssh_takes_it(hop)),
                accepted: Arc::clone(&accepted),
            };
            let shaken = within(&format!("the SSH handshake with {address}"), limit, async {
                Ok(client::connect_stream(Arc::clone(&config), socket, verifier).await)
            })
            .await?;
            attempt += 1;
            match shaken {
                Ok(handle) => break (handle, limit),
                Err(HandshakeError::HostKey(error)) => return Err(*error),
                Err(error) if error.is_hang_up() && attempt < HANDSHAKES => {
                    tracing::debug!(%address, attempt, "the server hung up before the handshake, trying again");
                    tokio::time::sleep(PAUSE * 2_u32.pow(attempt)).await;
                }
                Err(error) => {
                    let hang_up = error.is_hang_up();
                    let HandshakeError::Ssh(error) = error else { return Err(lost(&"a key that was not judged")) };
                    let reason = if hang_up {
                        format!("it hangs up before the SSH handshake, {attempt} times ({error})")
                    } else {
                        error.to_string()
                    };
                    return Err(NodeError::Connect { address, reason });
                }
            }
        };
        log_in(&mut handle, &Login { connect_timeout: limit, ..login.clone() }).await?;
        let key = accepted.lock().ok().and_then(|mut accepted| accepted.take());
        let host_key = key.and_then(|key| PublicKey::new(key.into(), "").to_openssh().ok()).unwrap_or_default();
        tracing::debug!(%address, "connected");
        Ok(Self { handle, host_key, _through: through.map(|(connection, _)| connection) })
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

    /// Opens a channel for a command; `None` where the server allows no more of them on one connection.
    pub(super) async fn session(&self) -> Result<Option<Channel<Msg>>, NodeError> {
        within("opening an SSH channel", CHANNEL, async {
            match self.handle.channel_open_session().await {
                Ok(channel) => Ok(Some(channel)),
                Err(russh::Error::ChannelOpenFailure(_)) => Ok(None),
                Err(error) => Err(lost(&error)),
            }
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
}

/// A socket to a host, straight or through another.
async fn reach(login: &Login, through: Option<&(Arc<Connection>, &Login)>) -> Result<Box<dyn ByteStream>, NodeError> {
    let address = login.address();
    let failed = |reason: String| NodeError::Connect { address: address.clone(), reason };
    let Some((connection, hop)) = through else {
        let socket = TcpStream::connect((login.host.as_str(), login.port)).await;
        let socket = socket.map_err(|error| failed(error.to_string()))?;
        socket.set_nodelay(true).map_err(|error| failed(error.to_string()))?;
        return Ok(Box::new(socket));
    };
    let hop = hop.address();
    let opened =
        connection.handle.channel_open_direct_tcpip(login.host.clone(), u32::from(login.port), "127.0.0.1", 0).await;
    match opened {
        Ok(channel) => Ok(Box::new(channel.into_stream())),
        Err(russh::Error::ChannelOpenFailure(russh::ChannelOpenFailure::AdministrativelyProhibited)) => {
            Err(failed(format!("the jump host {hop} forbids forwarding (AllowTcpForwarding, PermitOpen)")))
        }
        Err(russh::Error::ChannelOpenFailure(_)) => Err(failed(format!("the jump host {hop} does not reach it"))),
        Err(error) => Err(failed(format!("the connection to the jump host {hop} failed ({error})"))),
    }
}

/// The words that make ssh log in to a host.
fn as_ssh_takes_it(login: &Login) -> String {
    let port = if login.port == 22 { String::new() } else { format!("-p {} ", login.port) };
    format!("{port}{}@{}", login.user, login.host)
}

/// Closes a channel that is not wanted any more: a server counts open ones, and dropping one does not close it.
pub(super) async fn abandon(channel: &Channel<Msg>) {
    let _ = tokio::time::timeout(Duration::from_secs(1), channel.close()).await;
}

/// The server runs no commands.
pub(super) fn no_commands() -> NodeError {
    NodeError::Agent {
        reason: "the node's SSH server refused to run a command".to_owned(),
        hint: Some("the login needs a shell: no ForceCommand, no nologin".to_owned()),
    }
}

/// The server opens no channel for a command.
pub(super) fn no_session() -> NodeError {
    NodeError::Agent {
        reason: "the node's SSH server opens no session, on a new connection neither".to_owned(),
        hint: Some("its sshd_config may say MaxSessions 0 for this login".to_owned()),
    }
}

/// The connection failed under us.
pub(super) fn lost(error: &dyn std::fmt::Display) -> NodeError {
    NodeError::Lost { reason: error.to_string() }
}
