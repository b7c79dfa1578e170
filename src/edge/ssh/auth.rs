//! Logging in with keys: identity files in order, then the keys of ssh-agent.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use russh::client::{AuthResult, Handle, Handler};
use russh::keys::agent::AgentIdentity;
use russh::keys::agent::client::AgentClient;
use russh::keys::{HashAlg, PrivateKey, PrivateKeyWithHashAlg, PublicKey, decode_secret_key};
use russh::{MethodKind, MethodSet};

/// Largest identity file that is read.
const MAX_IDENTITY: u64 = 1 << 20;

/// An attempt's end.
enum Step {
    Accepted,
    Refused,
    /// The server will not take another key.
    Over,
}

/// Tries every key. `Err` holds what was tried, for the person who has to fix it.
pub(super) async fn log_in<H: Handler>(
    handle: &mut Handle<H>,
    user: &str,
    identities: &[PathBuf],
) -> Result<(), String> {
    let mut attempt = Attempt { handle, user, tried: Vec::new(), locked: Vec::new(), rsa: None };
    let files = if identities.is_empty() { default_identities() } else { identities.to_vec() };
    for file in &files {
        match attempt.file(file, identities.is_empty()).await {
            Step::Accepted => return Ok(()),
            Step::Refused => {}
            Step::Over => return Err(attempt.summary()),
        }
    }
    match attempt.agent().await {
        Step::Accepted => Ok(()),
        Step::Refused | Step::Over => Err(attempt.summary()),
    }
}

/// `~/.ssh/id_ed25519`, `id_ecdsa`, `id_rsa`.
fn default_identities() -> Vec<PathBuf> {
    let Some(home) = std::env::home_dir() else { return Vec::new() };
    ["id_ed25519", "id_ecdsa", "id_rsa"].iter().map(|name| home.join(".ssh").join(name)).collect()
}

struct Attempt<'a, H: Handler> {
    handle: &'a mut Handle<H>,
    user: &'a str,
    tried: Vec<String>,
    /// Public halves of identity files that are encrypted: ssh-agent may hold them.
    locked: Vec<PublicKey>,
    /// The hash for RSA keys, once it was asked for.
    rsa: Option<HashAlg>,
}

impl<H: Handler> Attempt<'_, H> {
    fn summary(&self) -> String {
        if self.tried.is_empty() {
            return "there is no key to offer: no identity file and no ssh-agent".to_owned();
        }
        self.tried.join("; ")
    }

    async fn file(&mut self, path: &Path, optional: bool) -> Step {
        let shown = path.display().to_string();
        let text = match read_identity(path).await {
            Ok(text) => text,
            Err(error) => {
                if !(optional && error.kind() == std::io::ErrorKind::NotFound) {
                    self.tried.push(format!("{shown} (cannot be read: {error})"));
                }
                return Step::Refused;
            }
        };
        let key = match decode_secret_key(&text, None) {
            Ok(key) => key,
            Err(error) => {
                let locked = PrivateKey::from_openssh(&text).ok().filter(PrivateKey::is_encrypted);
                if let Some(key) = locked {
                    self.locked.push(key.public_key().clone());
                    self.tried.push(format!("{shown} (encrypted: load it into ssh-agent)"));
                } else if matches!(error, russh::keys::Error::KeyIsEncrypted) {
                    self.tried.push(format!("{shown} (encrypted: load it into ssh-agent)"));
                } else {
                    self.tried.push(format!("{shown} (no usable private key: {error})"));
                }
                return Step::Refused;
            }
        };
        let hash = if key.algorithm().is_rsa() { Some(self.rsa_hash().await) } else { None };
        let name = format!("{shown} ({})", key.public_key().algorithm().as_str());
        let key = PrivateKeyWithHashAlg::new(Arc::new(key), hash);
        let result = self.handle.authenticate_publickey(self.user, key).await.map_err(|error| error.to_string());
        self.judge(name, result)
    }

    async fn agent(&mut self) -> Step {
        let Some(socket) = std::env::var_os("SSH_AUTH_SOCK").filter(|socket| !socket.is_empty()) else {
            return Step::Refused;
        };
        let mut client = match AgentClient::connect_uds(&socket).await {
            Ok(client) => client,
            Err(error) => {
                self.tried.push(format!("ssh-agent at {} (no answer: {error})", socket.display()));
                return Step::Refused;
            }
        };
        let mut keys = match client.request_identities().await {
            Ok(keys) => keys,
            Err(error) => {
                self.tried.push(format!("ssh-agent (cannot list its keys: {error})"));
                return Step::Refused;
            }
        };
        if keys.is_empty() {
            self.tried.push("ssh-agent (holds no keys)".to_owned());
        }
        // Servers count attempts: keys that were asked for by file come first.
        let wanted = |identity: &AgentIdentity| match identity {
            AgentIdentity::PublicKey { key, .. } => self.locked.iter().any(|l| l.key_data() == key.key_data()),
            AgentIdentity::Certificate { .. } => false,
        };
        keys.sort_by_key(|identity| !wanted(identity));
        for identity in keys {
            let (name, step) = match identity {
                AgentIdentity::PublicKey { key, comment } => {
                    let hash = if key.algorithm().is_rsa() { Some(self.rsa_hash().await) } else { None };
                    let name = format!("ssh-agent's {comment} ({})", key.algorithm().as_str());
                    (name, self.handle.authenticate_publickey_with(self.user, key, hash, &mut client).await)
                }
                AgentIdentity::Certificate { certificate, comment } => {
                    let hash = if certificate.algorithm().is_rsa() { Some(self.rsa_hash().await) } else { None };
                    let name = format!("ssh-agent's certificate {comment}");
                    (name, self.handle.authenticate_certificate_with(self.user, certificate, hash, &mut client).await)
                }
            };
            match self.judge(crate::edge::agents::one_line(&name), step.map_err(|error| error.to_string())) {
                Step::Refused => {}
                other => return other,
            }
        }
        Step::Refused
    }

    /// Notes how an attempt ended and says whether to go on.
    fn judge(&mut self, name: String, result: Result<AuthResult, String>) -> Step {
        match result {
            Ok(AuthResult::Success) => {
                tracing::debug!(key = %name, "key accepted");
                return Step::Accepted;
            }
            Ok(AuthResult::Failure { partial_success: true, remaining_methods }) => {
                self.tried.push(format!("{name}: accepted, and the server also wants {}", words(&remaining_methods)));
                return Step::Over;
            }
            Ok(AuthResult::Failure { remaining_methods, .. }) => {
                if self.handle.is_closed() || remaining_methods.is_empty() {
                    self.tried.push(format!("{name}: refused, and the server hung up"));
                    return Step::Over;
                }
                if !remaining_methods.contains(&MethodKind::PublicKey) {
                    self.tried.push(format!("{name}: the server takes no keys, only {}", words(&remaining_methods)));
                    return Step::Over;
                }
                self.tried.push(name);
            }
            Err(error) => {
                self.tried.push(format!("{name}: {error}"));
                if self.handle.is_closed() {
                    return Step::Over;
                }
            }
        }
        Step::Refused
    }

    /// SHA-512 unless the server says that it only knows SHA-256; never SHA-1.
    async fn rsa_hash(&mut self) -> HashAlg {
        if let Some(hash) = self.rsa {
            return hash;
        }
        let hash = match self.handle.best_supported_rsa_hash().await {
            Ok(Some(Some(hash))) => hash,
            _ => HashAlg::Sha512,
        };
        self.rsa = Some(hash);
        hash
    }
}

fn words(methods: &MethodSet) -> String {
    let names: Vec<&str> = methods.iter().map(<&'static str>::from).collect();
    names.join(", ")
}

async fn read_identity(path: &Path) -> std::io::Result<String> {
    let metadata = tokio::fs::metadata(path).await?;
    if !metadata.is_file() || metadata.len() > MAX_IDENTITY {
        return Err(std::io::Error::other("not a key file"));
    }
    tokio::fs::read_to_string(path).await
}
