//! Logging in with keys: identity files in order, then those of ssh-agent, the ones that files name first.
//!
//! Servers count attempts and hang up after a few, so nothing is offered twice, and what the config names comes
//! before what happens to be in the agent.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use russh::client::{AuthResult, Handle, Handler};
use russh::keys::agent::AgentIdentity;
use russh::keys::agent::client::AgentClient;
use russh::keys::{Algorithm, Certificate, HashAlg, PrivateKey, PrivateKeyWithHashAlg, PublicKey, decode_secret_key};
use russh::{MethodKind, MethodSet};

use super::login::{Identity, Login};
use crate::edge::agents::last_words;
use crate::edge::own_uid;
use crate::edge::stream::within;
use crate::ports::NodeError;

/// Largest identity file that is read.
const MAX_IDENTITY: u64 = 1 << 20;
/// How long a person may take to touch a security key.
const TOUCH: Duration = Duration::from_secs(60);

/// An attempt's end.
enum Step {
    Accepted,
    Refused,
    /// The server will not take another key.
    Over,
}

/// What a file turned out to hold.
enum Held {
    Private(Box<PrivateKey>, Option<Box<Certificate>>),
    /// Only ssh-agent can sign with it: its private half is locked, on a security key, or elsewhere.
    Public(PublicKey, &'static str),
    Nothing(String),
}

/// Tries every key; the error holds what was tried, for the person who has to fix it.
pub(super) async fn log_in<H: Handler>(handle: &mut Handle<H>, login: &Login) -> Result<(), NodeError> {
    let mut attempt = Attempt { handle, login, tried: Vec::new(), wanted: Vec::new(), offered: Vec::new(), rsa: None };
    let step = match attempt.files().await? {
        Step::Refused => attempt.agent().await?,
        other => other,
    };
    match step {
        Step::Accepted => Ok(()),
        Step::Refused | Step::Over => Err(NodeError::Authentication {
            user: login.user.clone(),
            address: login.address(),
            tried: attempt.summary(),
        }),
    }
}

struct Attempt<'a, H: Handler> {
    handle: &'a mut Handle<H>,
    login: &'a Login,
    tried: Vec<String>,
    /// Public halves of files that only ssh-agent can use.
    wanted: Vec<PublicKey>,
    offered: Vec<PublicKey>,
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

    async fn files(&mut self) -> Result<Step, NodeError> {
        let mut usable = Vec::new();
        for identity in &self.login.identities {
            let shown = identity.path.display().to_string();
            match open(identity).await {
                None => {}
                Some(Held::Private(key, certificate)) => usable.push((shown, key, certificate)),
                Some(Held::Public(key, why)) => {
                    self.wanted.push(key);
                    self.tried.push(format!("{shown} ({why})"));
                }
                Some(Held::Nothing(problem)) => self.tried.push(format!("{shown} ({problem})")),
            }
        }
        for (shown, key, certificate) in usable {
            if self.was_offered(key.public_key()) {
                continue;
            }
            let key = Arc::new(*key);
            if let Some(certificate) = certificate {
                let name = format!("{shown}-cert.pub");
                let user = self.login.user.as_str();
                let work = self.handle.authenticate_openssh_cert(user, Arc::clone(&key), *certificate);
                let result = timed(self.login, self.login.connect_timeout, work).await?;
                match self.judge(name, result) {
                    Step::Refused => {}
                    other => return Ok(other),
                }
            }
            let hash = if key.algorithm().is_rsa() { Some(self.rsa_hash().await) } else { None };
            let name = format!("{shown} ({})", key.public_key().algorithm().as_str());
            self.offered.push(key.public_key().clone());
            let key = PrivateKeyWithHashAlg::new(key, hash);
            let work = self.handle.authenticate_publickey(self.login.user.as_str(), key);
            let result = timed(self.login, self.login.connect_timeout, work).await?;
            match self.judge(name, result) {
                Step::Refused => {}
                other => return Ok(other),
            }
        }
        Ok(Step::Refused)
    }

    async fn agent(&mut self) -> Result<Step, NodeError> {
        let Some(socket) = &self.login.agent_socket else { return Ok(Step::Refused) };
        // An agent of another kind may hang: it gets as long as a step of connecting.
        let asked = tokio::time::timeout(self.login.connect_timeout, async {
            let mut client = AgentClient::connect_uds(socket).await?;
            let keys = client.request_identities().await?;
            Ok::<_, russh::keys::Error>((client, keys))
        });
        let (mut client, mut keys) = match asked.await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                self.tried.push(format!("ssh-agent at {} (no answer: {error})", socket.display()));
                return Ok(Step::Refused);
            }
            Err(_) => {
                self.tried.push(format!("ssh-agent at {} (no answer in time)", socket.display()));
                return Ok(Step::Refused);
            }
        };
        if keys.is_empty() {
            self.tried.push("ssh-agent (holds no keys)".to_owned());
        }
        let half = |identity: &AgentIdentity| match identity {
            AgentIdentity::PublicKey { key, .. } => key.key_data().clone(),
            AgentIdentity::Certificate { certificate, .. } => certificate.public_key().clone(),
        };
        let wanted = |identity: &AgentIdentity| self.wanted.iter().any(|key| *key.key_data() == half(identity));
        if self.login.identities_only {
            keys.retain(wanted);
            if keys.is_empty() {
                self.tried.push("ssh-agent (holds none of these, and IdentitiesOnly forbids others)".to_owned());
            }
        }
        keys.sort_by_key(|identity| !wanted(identity));
        for identity in keys {
            let (name, algorithm, result) = match identity {
                AgentIdentity::PublicKey { key, comment } => {
                    if self.was_offered(&key) {
                        continue;
                    }
                    let algorithm = key.algorithm();
                    let hash = if algorithm.clone().is_rsa() { Some(self.rsa_hash().await) } else { None };
                    let name = format!("ssh-agent's {comment} ({})", algorithm.as_str());
                    let limit = self.patience(&algorithm);
                    let user = self.login.user.as_str();
                    let work = self.handle.authenticate_publickey_with(user, key, hash, &mut client);
                    (name, algorithm, timed(self.login, limit, work).await?)
                }
                AgentIdentity::Certificate { certificate, comment } => {
                    let algorithm = certificate.algorithm();
                    let hash = if algorithm.clone().is_rsa() { Some(self.rsa_hash().await) } else { None };
                    let name = format!("ssh-agent's certificate {comment}");
                    let limit = self.patience(&algorithm);
                    let user = self.login.user.as_str();
                    let work = self.handle.authenticate_certificate_with(user, certificate, hash, &mut client);
                    (name, algorithm, timed(self.login, limit, work).await?)
                }
            };
            let result = result.map_err(|error| sign_problem(&algorithm, &error));
            match self.judge(last_words(&name), result) {
                Step::Refused => {}
                other => return Ok(other),
            }
        }
        Ok(Step::Refused)
    }

    /// How long an attempt may take: a security key waits for a finger.
    fn patience(&self, algorithm: &Algorithm) -> Duration {
        if on_device(algorithm) { TOUCH.max(self.login.connect_timeout) } else { self.login.connect_timeout }
    }

    fn was_offered(&self, key: &PublicKey) -> bool {
        self.offered.iter().any(|offered| offered.key_data() == key.key_data())
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
                    self.tried.push(format!(
                        "{name}: refused, and the server hung up (it takes few attempts: name the right key with identity=)"
                    ));
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

/// One attempt under its deadline; the inner error is the attempt's own.
async fn timed<E: std::fmt::Display>(
    login: &Login,
    limit: Duration,
    work: impl Future<Output = Result<AuthResult, E>>,
) -> Result<Result<AuthResult, String>, NodeError> {
    within(&format!("logging in to {}", login.address()), limit, async {
        Ok(work.await.map_err(|error| error.to_string()))
    })
    .await
}

/// Whether a key's private half never leaves a security key.
fn on_device(algorithm: &Algorithm) -> bool {
    matches!(algorithm, Algorithm::SkEd25519 | Algorithm::SkEcdsaSha2NistP256)
}

/// Why the agent did not sign: a security key wants a touch, some agents ask a person.
fn sign_problem(algorithm: &Algorithm, error: &str) -> String {
    if on_device(algorithm) {
        format!("the server takes it, and the security key did not sign: touch it when it blinks ({error})")
    } else {
        format!("ssh-agent did not sign with it ({error})")
    }
}

fn words(methods: &MethodSet) -> String {
    let names: Vec<&str> = methods.iter().map(<&'static str>::from).collect();
    names.join(", ")
}

/// What an identity file holds; `None` where a usual one is not there.
async fn open(identity: &Identity) -> Option<Held> {
    let path = &identity.path;
    let text = match read_identity(path).await {
        Ok(text) => text,
        Err(error) => {
            if error.kind() == std::io::ErrorKind::NotFound && identity.usual {
                return None;
            }
            // The public half says which of the agent's keys is meant.
            return Some(match public_half(path).await {
                Some(key) if error.kind() == std::io::ErrorKind::NotFound => {
                    Held::Public(key, "only its public half is here: load it into ssh-agent")
                }
                Some(key) => Held::Public(key, "not readable: load it into ssh-agent"),
                None => Held::Nothing(format!("cannot be read: {error}")),
            });
        }
    };
    if let Ok(key) = PublicKey::from_openssh(text.trim()) {
        return Some(Held::Public(key, "a public key: load its private half into ssh-agent"));
    }
    if let Some(mode) = open_to_others(path).await {
        return Some(Held::Nothing(format!("mode {mode:04o}, others can read it, so it is not used: chmod 600")));
    }
    Some(match decode_secret_key(&text, None) {
        Ok(key) if on_device(&key.algorithm()) => {
            Held::Public(key.public_key().clone(), "on a security key: load it into ssh-agent")
        }
        Ok(key) => {
            let certificate =
                beside(path, "-cert.pub").await.and_then(|text| Certificate::from_openssh(text.trim()).ok());
            Held::Private(Box::new(key), certificate.map(Box::new))
        }
        Err(error) => {
            let locked = PrivateKey::from_openssh(&text).ok().filter(PrivateKey::is_encrypted);
            let public = locked.map(|key| key.public_key().clone());
            let is_locked = public.is_some() || matches!(error, russh::keys::Error::KeyIsEncrypted);
            let public = if is_locked && public.is_none() { public_half(path).await } else { public };
            match public {
                Some(key) => Held::Public(key, "encrypted: load it into ssh-agent"),
                None if is_locked => Held::Nothing("encrypted: load it into ssh-agent".to_owned()),
                None => Held::Nothing(format!("no usable private key: {error}")),
            }
        }
    })
}

async fn beside(path: &Path, suffix: &str) -> Option<String> {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    read_identity(&PathBuf::from(name)).await.ok()
}

async fn public_half(path: &Path) -> Option<PublicKey> {
    PublicKey::from_openssh(beside(path, ".pub").await?.trim()).ok()
}

/// The mode of a file of ours that others may read, as ssh checks it.
async fn open_to_others(path: &Path) -> Option<u32> {
    let metadata = tokio::fs::metadata(path).await.ok()?;
    (Some(metadata.uid()) == own_uid() && metadata.mode() & 0o077 != 0).then_some(metadata.mode() & 0o7777)
}

async fn read_identity(path: &Path) -> std::io::Result<String> {
    let metadata = tokio::fs::metadata(path).await?;
    if !metadata.is_file() || metadata.len() > MAX_IDENTITY {
        return Err(std::io::Error::other("not a key file"));
    }
    tokio::fs::read_to_string(path).await
}
