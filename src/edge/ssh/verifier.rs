//! The host key of a connection that is being made, against known_hosts.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use russh::client;
use russh::keys::{PublicKey, PublicKeyOrCertificate};

use super::connection::lost;
use super::known_hosts::{KnownHosts, Verdict, fingerprint};
use super::login::Login;
use super::{first_use, network::Notice};
use crate::ports::NodeError;

/// Largest known_hosts file that is read.
const MAX_KNOWN_HOSTS: u64 = 16 << 20;

/// Why a handshake failed: ours or the library's.
#[derive(Debug)]
pub(super) enum HandshakeError {
    HostKey(Box<NodeError>),
    Ssh(russh::Error),
}

impl From<russh::Error> for HandshakeError {
    fn from(error: russh::Error) -> Self {
        Self::Ssh(error)
    }
}

impl HandshakeError {
    /// Whether the server hung up without a word, as one does that has too many visitors.
    pub(super) fn is_hang_up(&self) -> bool {
        use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
        match self {
            Self::Ssh(russh::Error::Disconnect | russh::Error::HUP | russh::Error::Version) => true,
            Self::Ssh(russh::Error::IO(error)) => {
                matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
            }
            _ => false,
        }
    }
}

/// Checks the offered host key against known_hosts.
pub(super) struct Verifier {
    pub(super) known: Arc<KnownHosts>,
    pub(super) login: Arc<Login>,
    pub(super) notice: Notice,
    /// The host that is gone through, as ssh takes it.
    pub(super) through: Option<String>,
    pub(super) accepted: Arc<std::sync::Mutex<Option<PublicKey>>>,
}

impl Verifier {
    async fn judge(&self, verdict: Verdict, key: &PublicKey) -> Result<(), NodeError> {
        let login = &self.login;
        let (address, fingerprint) = (login.address(), fingerprint(key));
        let shown = |path: &Path| path.display().to_string();
        Err(match verdict {
            Verdict::Known => return Ok(()),
            Verdict::Unknown => match &login.recorded_key {
                Some(recorded) => {
                    let recorded = PublicKey::from_openssh(recorded).ok();
                    if recorded.as_ref().is_some_and(|recorded| recorded.key_data() == key.key_data()) {
                        tracing::debug!(%address, "the key is the one that the last apply verified");
                        return Ok(());
                    }
                    let recorded =
                        recorded.map_or_else(|| "another".to_owned(), |key| super::known_hosts::fingerprint(&key));
                    NodeError::HostKeyDiffers { address, fingerprint, recorded }
                }
                None if login.trust_on_first_use => return self.trust(key).await,
                None => {
                    let file = login.known_hosts.first().cloned().unwrap_or_else(|| PathBuf::from("known_hosts"));
                    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists());
                    NodeError::HostKeyUnknown {
                        address,
                        fingerprint,
                        known_hosts: shown(&file),
                        folder_missing: folder.is_some(),
                        through: self.through.clone().map(String::into_boxed_str),
                        alias: (login.names.host != login.host.to_ascii_lowercase())
                            .then(|| login.names.host.clone().into_boxed_str()),
                    }
                }
            },
            Verdict::Changed(at) => {
                NodeError::HostKeyChanged { address, fingerprint, known_hosts: shown(&at.file), line: at.line }
            }
            Verdict::Revoked(at) => {
                NodeError::HostKeyRevoked { address, fingerprint, known_hosts: shown(&at.file), line: at.line }
            }
            Verdict::BadCertificate(reason) => NodeError::HostCertificate { address, reason },
        })
    }

    /// Records an unknown key; whoever was first decides.
    async fn trust(&self, key: &PublicKey) -> Result<(), NodeError> {
        let login = Arc::clone(&self.login);
        let address = login.address();
        let Some(file) = login.known_hosts.first().cloned() else {
            return Err(NodeError::Connect {
                address,
                reason: "there is no known_hosts file to record its key in".to_owned(),
            });
        };
        let (path, new) = (file.clone(), key.clone());
        let recorded = tokio::task::spawn_blocking(move || first_use::record(&path, &login.names, &new)).await;
        let file = file.display().to_string();
        match recorded {
            Ok(Ok((Verdict::Known, new))) => {
                if new {
                    let fingerprint = fingerprint(key);
                    (self.notice)(&format!(
                        "{address}: its host key {fingerprint} is new, recorded in {file} and trusted from now on"
                    ));
                }
                Ok(())
            }
            Ok(Ok((Verdict::Changed(at) | Verdict::Revoked(at), _))) => {
                let fingerprint = fingerprint(key);
                Err(NodeError::HostKeyChanged { address, fingerprint, known_hosts: file, line: at.line })
            }
            Ok(Ok((other, _))) => Err(lost(&format!("{other:?}"))),
            Ok(Err(error)) => {
                let reason = format!("its host key cannot be recorded in {file}: {error}");
                Err(NodeError::Connect { address, reason })
            }
            Err(error) => Err(lost(&error)),
        }
    }
}

impl client::Handler for Verifier {
    type Error = HandshakeError;

    async fn check_server_key(&mut self, offered: &PublicKeyOrCertificate) -> Result<bool, HandshakeError> {
        let key = offered.public_key();
        let names = &self.login.names;
        let verdict = match offered.certificate() {
            Some(certificate) => self.known.check_certificate(names, certificate),
            None => self.known.check(names, &key),
        };
        tracing::debug!(address = %self.login.address(), fingerprint = %fingerprint(&key), ?verdict, "host key offered");
        self.judge(verdict, &key).await.map_err(|error| HandshakeError::HostKey(Box::new(error)))?;
        if let Ok(mut accepted) = self.accepted.lock() {
            *accepted = Some(key);
        }
        Ok(true)
    }
}

pub(super) async fn read_known_hosts(paths: &[PathBuf]) -> Result<KnownHosts, NodeError> {
    let mut known = KnownHosts::default();
    for path in paths {
        let unreadable = |error: std::io::Error| NodeError::Connect {
            address: path.display().to_string(),
            reason: format!("the known_hosts file cannot be read: {error}"),
        };
        match tokio::fs::metadata(path).await {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(unreadable(error)),
            Ok(metadata) if metadata.len() > MAX_KNOWN_HOSTS => {
                return Err(unreadable(std::io::Error::other("more than 16 MiB")));
            }
            Ok(_) => {}
        }
        let bytes = tokio::fs::read(path).await.map_err(unreadable)?;
        known.add(path, &String::from_utf8_lossy(&bytes));
    }
    Ok(known)
}
