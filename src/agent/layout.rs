//! Names and places: where the agent of one cluster and node keeps what.
//!
//! ```text
//! ~/.local/share/flock/CLUSTER/NODE/        0700
//!   desired.json        generation and InstanceSpecs; written by the keeper alone
//!   member.json         the member record, without its lease
//!   lease.json          the lease, with its expiry on this node's clock
//!   released.json       the lease that was given back last
//!   keeper.json         the running keeper: pid, version, socket
//!   keeper.lock         held by the keeper with flock(2); state.lock: held while member or lease change
//!   keeper.log          what the keeper did, bounded
//!   keys/INSTANCE       0600, the instance's key
//!   history.json        the last applies
//!   ballast             room that is given up where a full disk would keep engines from being stopped
//!   links.json          what was measured of the way to other nodes and to providers
//!   instances/ID/state.json, log, log.1
//! /tmp/flock-UID/DIGEST.sock, else $XDG_RUNTIME_DIR/flock/DIGEST.sock, else ~/.local/share/flock/sockets/DIGEST.sock
//! ```

use std::path::{Component, Path, PathBuf};

use super::error::AgentError;
use crate::base::{Digest, kept_path_problem};

/// The agent's own environment variable in every process of an instance: `CLUSTER/NODE/INSTANCE`.
pub const MARK: &str = "FLOCK_INSTANCE";
/// Beside it, the state folder: two homes may hold the same cluster, node and instance names.
pub const MARK_STATE: &str = "FLOCK_INSTANCE_STATE";

/// Where the agent of one cluster and node keeps what.
#[derive(Debug, Clone)]
pub struct Layout {
    /// The cluster.
    pub cluster: String,
    /// The node.
    pub node: String,
    /// Home of the user.
    pub home: PathBuf,
    /// The state folder.
    pub state: PathBuf,
}

impl Layout {
    /// The layout below `home`, with both names checked.
    pub fn new(home: &Path, cluster: &str, node: &str) -> Result<Self, AgentError> {
        check_name("cluster", cluster)?;
        check_name("node", node)?;
        if cluster == "weights" {
            return Err(AgentError::Name { what: "cluster", name: cluster.to_owned(), problem: "is reserved" });
        }
        let state = home.join(".local/share/flock").join(cluster).join(node);
        Ok(Self { cluster: cluster.to_owned(), node: node.to_owned(), home: home.to_owned(), state })
    }

    /// Generation and instances.
    pub fn desired(&self) -> PathBuf {
        self.state.join("desired.json")
    }

    /// The member record.
    pub fn member(&self) -> PathBuf {
        self.state.join("member.json")
    }

    /// The last applies.
    pub fn history(&self) -> PathBuf {
        self.state.join("history.json")
    }

    /// The lease.
    pub fn lease(&self) -> PathBuf {
        self.state.join("lease.json")
    }

    /// The lease that was given back last: a renewal of it that comes late is none.
    pub fn released(&self) -> PathBuf {
        self.state.join("released.json")
    }

    /// Who keeps.
    pub fn keeper(&self) -> PathBuf {
        self.state.join("keeper.json")
    }

    /// The keeper's lock.
    pub fn keeper_lock(&self) -> PathBuf {
        self.state.join("keeper.lock")
    }

    /// The lock of the member record and the lease.
    pub fn state_lock(&self) -> PathBuf {
        self.state.join("state.lock")
    }

    /// The keeper's own log.
    pub fn keeper_log(&self) -> PathBuf {
        self.state.join("keeper.log")
    }

    /// What was measured.
    pub fn links(&self) -> PathBuf {
        self.state.join("links.json")
    }

    /// What engines took.
    pub fn calibrations(&self) -> PathBuf {
        self.state.join("calibrations.json")
    }

    /// An instance's key.
    pub fn key(&self, instance: &str) -> PathBuf {
        self.state.join("keys").join(instance)
    }

    /// All instances.
    pub fn instances(&self) -> PathBuf {
        self.state.join("instances")
    }

    /// One instance.
    pub fn instance(&self, instance: &str) -> PathBuf {
        self.instances().join(instance)
    }

    /// What is known about its process.
    pub fn instance_state(&self, instance: &str) -> PathBuf {
        self.instance(instance).join("state.json")
    }

    /// What its processes wrote.
    pub fn log(&self, instance: &str) -> PathBuf {
        self.instance(instance).join("log")
    }

    /// The mark of an instance's processes.
    pub fn mark(&self, instance: &str) -> String {
        format!("{}/{}/{instance}", self.cluster, self.node)
    }

    /// Name of the keeper's socket: a digest, because a socket's path must stay below 108 bytes.
    pub fn socket_name(&self) -> String {
        let digest = Digest::of(self.state.as_os_str().as_encoded_bytes());
        format!("{}.sock", digest.short(24))
    }

    /// Where copied weights lie unless the config says otherwise.
    pub fn default_weights(&self) -> PathBuf {
        self.home.join(".local/share/flock/weights")
    }
}

/// Refuses a name that cannot be one path component, or that a command line could take for an option.
pub fn check_name(what: &'static str, name: &str) -> Result<(), AgentError> {
    let problem = if name.is_empty() {
        "is empty"
    } else if name.len() > 200 {
        "is longer than 200 bytes"
    } else if name.contains('/') {
        "holds a slash"
    } else if name == "." || name == ".." || name.contains("..") {
        "holds two dots, or is one"
    } else if name.chars().any(char::is_control) {
        "holds a control character"
    } else if name.starts_with('-') {
        "begins with a dash"
    } else {
        return Ok(());
    };
    Err(AgentError::Name { what, name: name.to_owned(), problem })
}

/// Refuses a file name from the wire unless it is relative and stays inside its folder. Folders are allowed.
pub fn check_file_name(name: &str) -> Result<(), AgentError> {
    let fail = |problem| Err(AgentError::Name { what: "file", name: name.to_owned(), problem });
    kept_path_problem(name).map_or(Ok(()), fail)
}

/// A folder from the wire: absolute and without `..`.
pub fn check_folder(path: &str) -> Result<PathBuf, AgentError> {
    let fail = |problem| Err(AgentError::Path { path: path.to_owned(), problem });
    let folder = Path::new(path);
    if !folder.is_absolute() {
        return fail("is not absolute");
    }
    if folder.components().any(|part| matches!(part, Component::ParentDir)) {
        return fail("holds `..`");
    }
    if path.chars().any(char::is_control) {
        return fail("holds a control character");
    }
    Ok(folder.to_owned())
}

/// A path from the config with a leading `~` replaced.
pub fn expand_home(path: &str, home: &Path) -> PathBuf {
    match path.strip_prefix('~') {
        Some("") => home.to_owned(),
        Some(rest) if rest.starts_with('/') => home.join(rest.trim_start_matches('/')),
        _ => PathBuf::from(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_leave_their_folder_are_refused() {
        for bad in ["", ".", "..", "a/b", "a..b", "-rf", "a\nb", "a\0b"] {
            assert!(check_name("instance", bad).is_err(), "{bad:?}");
        }
        for good in ["0123456789ab", "ada-1", "a.b", "Größe"] {
            assert!(check_name("instance", good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn file_names_stay_inside() {
        for bad in ["/etc/passwd", "../x", "a/../b", "a//b", ".flock-complete.json", "x.part", "a/-b", ""] {
            assert!(check_file_name(bad).is_err(), "{bad:?}");
        }
        for good in ["model.gguf", "sub/model-00001-of-00002.safetensors"] {
            assert!(check_file_name(good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn the_socket_name_is_short_whatever_the_home() {
        let home = PathBuf::from(format!("/{}", "h".repeat(300)));
        let layout = Layout::new(&home, "lab", "ada-1").expect("good names");
        assert!(layout.socket_name().len() < 40);
        assert!(Layout::new(&home, "weights", "ada-1").is_err());
    }

    #[test]
    fn tilde_is_the_home() {
        let home = Path::new("/home/u");
        assert_eq!(expand_home("~/w", home), Path::new("/home/u/w"));
        assert_eq!(expand_home("~", home), home);
        assert_eq!(expand_home("~other/w", home), Path::new("~other/w"));
    }
}
