//! A node: bytes to and from its agent, and the typed requests on top.

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{Hub, HubError};
use crate::inventory::{FetchSpec, HubFiles, MemberNode, Refusal, Request, Response};

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
        /// The known_hosts file that a new key belongs into.
        known_hosts: String,
        /// Whether its folder is missing too.
        folder_missing: bool,
        /// The host that was gone through, as ssh takes it, where there was one.
        through: Option<Box<str>>,
        /// The name that its key is looked for under, where that is not its address.
        alias: Option<Box<str>>,
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
    /// The host key is in no known_hosts file, and differs from the one that the last apply verified.
    #[error("the host key of {address} has changed: the last apply saw {recorded}, it offers {fingerprint}")]
    HostKeyDiffers {
        /// `host:port`.
        address: String,
        /// `SHA256:…` of the key that was offered.
        fingerprint: String,
        /// `SHA256:…` of the key in the member record.
        recorded: String,
    },
    /// The host's certificate is by a trusted authority, and not good for this host.
    #[error("the host certificate of {address} is refused: {reason}")]
    HostCertificate {
        /// `host:port`.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
    /// An SSH config file says what flock cannot read or follow.
    #[error("{place}: {reason}")]
    SshConfig {
        /// `file:line`, or the file.
        place: String,
        /// What.
        reason: String,
        /// What to write instead, as a sentence.
        hint: String,
    },
    /// A host on the way could not be gone through.
    #[error("jump host {hop}: {error}")]
    Jump {
        /// `host:port`.
        hop: String,
        /// Why.
        error: Box<NodeError>,
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
    /// What was to be sent to the node could not be had from the hub.
    #[error("{0}")]
    Hub(Box<HubError>),
}

impl NodeError {
    /// The nearest remedy, as a sentence.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::HostKeyUnknown { address, known_hosts, folder_missing, through, alias, .. } => {
                let (host, port) = address.rsplit_once(':').unwrap_or((address, "22"));
                let host = host.trim_start_matches('[').trim_end_matches(']');
                let port = if port == "22" { String::new() } else { format!("-p {port} ") };
                let folder = known_hosts.rsplit_once('/').map(|(folder, _)| folder).filter(|_| *folder_missing);
                let folder = folder.map(|folder| format!("mkdir -m 700 {} && ", shell_word(folder))).unwrap_or_default();
                // Options and a host: each is a word of its own.
                let words = through.iter().flat_map(|hop| hop.split_ascii_whitespace()).map(shell_word);
                let words: Vec<String> = words.collect();
                let through = if words.is_empty() { String::new() } else { format!("ssh {} ", words.join(" ")) };
                // What is scanned stands under the name that was scanned.
                let alias = alias.as_ref().map(|alias| {
                    let alias = alias.replace(['\\', '/', '&', '\n'], "?");
                    format!("| sed -n {} ", shell_word(&format!("s/^[^# ][^ ]*/{alias}/p")))
                });
                Some(format!(
                    "compare the fingerprint with the one the machine's console shows, then: {folder}{through}ssh-keyscan {port}{} {}>> {}",
                    shell_word(host),
                    alias.unwrap_or_default(),
                    shell_word(known_hosts)
                ))
            }
            Self::HostKeyChanged { known_hosts, line, .. } => Some(format!(
                "if the machine was reinstalled, remove line {line} of {known_hosts} and add the new key; otherwise somebody may be in between: do not connect"
            )),
            Self::HostKeyRevoked { known_hosts, line, .. } => Some(format!(
                "somebody declared this key unsafe (line {line} of {known_hosts}): give the machine a new host key; do not connect before"
            )),
            Self::HostKeyDiffers { .. } => Some(
                "if the machine was reinstalled, put its new key into known_hosts; otherwise somebody may be in between: do not connect"
                    .to_owned(),
            ),
            Self::HostCertificate { .. } => {
                Some("have the host's key signed again: ssh-keygen -s CA -h -I ID -n HOST -V +52w HOST_KEY.pub".to_owned())
            }
            Self::SshConfig { hint, .. } => Some(hint.clone()),
            Self::Jump { error, .. } => error.hint(),
            Self::Authentication { user, .. } => Some(format!(
                "put a public key of yours into ~{user}/.ssh/authorized_keys on the node, name its private key with `ssh identity=\"…\"`, or load it into ssh-agent"
            )),
            Self::Connect { .. } | Self::Deadline { .. } => Some(
                "check that the machine is up and the address is right; --exclude NODE plans without it".to_owned(),
            ),
            Self::Agent { hint, .. } => hint.clone(),
            Self::Lost { .. } => Some("run the same command again; nothing that was done is lost".to_owned()),
            Self::Refused(refusal) => remedy(refusal),
            Self::Hub(error) => Some(error.hint()),
        }
    }
}

/// What is to be done about a refusal, as a sentence; `None` where its own text has to say it.
fn remedy(refusal: &Refusal) -> Option<String> {
    let text = match refusal {
        Refusal::LeaseHeld { .. } => "wait for the other apply; `flock lease break` ends one that hangs",
        Refusal::Busy { .. } => "wait until the other transfer has ended, and run the same command again",
        Refusal::Stale { .. } => "another apply was faster: plan again",
        Refusal::Unknown { .. } => "the node has changed since it was asked: run the same command again",
        Refusal::Disk { .. } => "free space there, or name another folder for the node's weights",
        Refusal::Digest { .. } => {
            "run the same command again; if the digest differs again, the file was changed where it comes from or on the way (a mirror, a proxy), or a disk is failing"
        }
        Refusal::Hub { hint, .. } => hint,
        Refusal::Unreached { .. } => "open the way between the nodes, or let the bytes go through the controller",
        Refusal::Failed { .. } => return None,
    };
    Some(text.to_owned())
}

/// A word of a command that is shown to be pasted into a shell.
fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:@%+,".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
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

/// Where the controller has a file from that it sends to a node.
#[derive(Clone, Copy)]
pub enum FileSource<'a> {
    /// A folder on its disk.
    Folder(&'a str),
    /// The hub: what comes from there goes on to the node and is kept nowhere.
    Hub {
        /// The hub.
        hub: &'a dyn Hub,
        /// The repository.
        files: &'a HubFiles,
    },
}

/// A node with the agent's protocol on it.
#[async_trait]
pub trait Node: Send + Sync {
    /// Its configured name.
    fn name(&self) -> &str;
    /// Sends one request and waits for the answer; `Response::Refused` becomes `NodeError::Refused`.
    async fn call(&self, request: Request) -> Result<Response, NodeError>;
    /// Sends one request that reports its progress and waits for the answer, as long as there is progress.
    async fn follow(&self, request: Request, progress: Progress<'_>) -> Result<Response, NodeError>;
    /// Sends one file of a set, resuming where the node has part of it, with at most that many bytes per second. Holds
    /// no more of the file than one piece.
    async fn put(
        &self,
        from: FileSource<'_>,
        fetch: &FetchSpec,
        name: &str,
        limit_bytes_per_s: Option<u64>,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(address: &str, known_hosts: &str, through: Option<&str>, alias: Option<&str>) -> String {
        let error = NodeError::HostKeyUnknown {
            address: address.to_owned(),
            fingerprint: "SHA256:x".to_owned(),
            known_hosts: known_hosts.to_owned(),
            folder_missing: true,
            through: through.map(Into::into),
            alias: alias.map(Into::into),
        };
        error.hint().and_then(|hint| hint.split_once("then: ").map(|(_, command)| command.to_owned())).expect("a hint")
    }

    #[test]
    fn what_is_to_be_pasted_holds_no_word_that_a_shell_would_obey() {
        assert_eq!(
            hint("[ada-1]:2222", "/home/u/.ssh/known_hosts", Some("me@gate"), None),
            "mkdir -m 700 /home/u/.ssh && ssh me@gate ssh-keyscan -p 2222 ada-1 >> /home/u/.ssh/known_hosts"
        );
        let through = hint("ada-1:22", "/k/known_hosts", Some("-p 2200 me@gate"), None);
        assert!(through.contains("ssh -p 2200 me@gate ssh-keyscan ada-1"), "{through}");
        let shown = hint("a;id:22", "/home/a b/$(x)/known_hosts", Some("a;b@gate"), None);
        assert_eq!(
            shown,
            "mkdir -m 700 '/home/a b/$(x)' && ssh 'a;b@gate' ssh-keyscan 'a;id' >> '/home/a b/$(x)/known_hosts'"
        );
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "what is to be pasted is tried")]
    fn a_key_is_recorded_under_the_name_that_it_is_looked_for() {
        let shown = hint("10.0.0.1:22", "/k/known_hosts", None, Some("ada"));
        assert_eq!(shown, "mkdir -m 700 /k && ssh-keyscan 10.0.0.1 | sed -n 's/^[^# ][^ ]*/ada/p' >> /k/known_hosts");
        let script = shown.split('\'').nth(1).expect("a script");
        let mut sed = std::process::Command::new("sed");
        sed.args(["-n", script]).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut child = sed.spawn().expect("sed is there");
        let scanned = b"# 10.0.0.1:22 SSH-2.0-OpenSSH\n10.0.0.1 ssh-ed25519 AAAA\n";
        std::io::Write::write_all(&mut child.stdin.take().expect("piped"), scanned).expect("written");
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "ada ssh-ed25519 AAAA\n");
    }
}
