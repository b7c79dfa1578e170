//! Who brought which set: clusters that share a store know nothing else of each other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::blobs;
use super::records::{hold, is_folder};
use crate::agent::clock::now_ms;
use crate::agent::error::AgentError;
use crate::agent::files::{random_hex, read_json, write_atomic};
use crate::agent::layout::Layout;
use crate::base::Digest;

/// Where they are noted below the root.
const USERS: &str = ".flock-users";
/// The store's own name.
const ID: &str = "id";

/// One cluster's node, and the sets that it brought or reads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct User {
    /// The cluster.
    pub cluster: String,
    /// The node.
    pub node: String,
    /// The machine that sees its state folder.
    pub host: String,
    /// Its state folder there.
    pub state: String,
    /// Folder names below the root, with the moment of the last claim, Unix milliseconds.
    pub sets: BTreeMap<String, u64>,
}

impl User {
    /// Whether this is a node of that agent's cluster.
    pub fn is_of(&self, layout: &Layout) -> bool {
        self.cluster == layout.cluster
    }

    /// Whether it is of this account. Another account may have a cluster of the same name.
    pub fn is_ours(&self, layout: &Layout) -> bool {
        Path::new(&self.state).starts_with(&layout.home)
    }

    /// Whether its state folder is among those that are looked at here.
    pub fn is_seen(&self, layout: &Layout) -> bool {
        self.is_ours(layout) && Path::new(&self.state).is_dir()
    }

    /// Whether it has left: its cluster was forgotten on this very machine. A home that cannot be looked into, or that
    /// is not mounted, tells nothing.
    pub fn has_left(&self) -> bool {
        let state = Path::new(&self.state);
        let gone = fs::symlink_metadata(state).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        self.host == this_host() && gone && state.ancestors().nth(2).is_some_and(Path::is_dir)
    }
}

fn this_host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Notes that this agent's cluster uses the set in a folder. A store that cannot be written to has no use for the note.
pub fn claim(layout: &Layout, folder: &Path) {
    let (Some(root), Some(name)) = (blobs::root(folder), folder.file_name().and_then(|name| name.to_str())) else {
        return;
    };
    let users = root.join(USERS);
    let Some(_held) = hold_all(root) else { return };
    if !users.join(ID).exists() {
        let _ = random_hex(8).and_then(|id| write_atomic(&users.join(ID), id.as_bytes(), 0o644));
    }
    let path = users.join(file_name(layout));
    let mut user = read_json::<User>(&path).ok().flatten().unwrap_or_else(|| User {
        cluster: layout.cluster.clone(),
        node: layout.node.clone(),
        host: String::new(),
        state: String::new(),
        sets: BTreeMap::new(),
    });
    (user.host, user.state) = (this_host(), layout.state.display().to_string());
    user.sets.insert(name.to_owned(), now_ms());
    let _ = write(&path, &user);
}

/// Keeps everybody else from claiming a set: who decides what goes must not be overtaken. `None` where the store cannot
/// be written to, or what is there is no folder.
pub fn hold_all(root: &Path) -> Option<File> {
    let users = root.join(USERS);
    fs::create_dir_all(&users).ok()?;
    if is_folder(&users) { hold(&users) } else { None }
}

/// Other accounts must be able to read what they may not remove.
fn write(path: &Path, user: &User) -> Result<(), AgentError> {
    let malformed = |source| AgentError::Malformed { path: path.to_owned(), source };
    write_atomic(path, &serde_json::to_vec_pretty(user).map_err(malformed)?, 0o644)
}

/// A file of its own for each state folder of each machine.
fn file_name(layout: &Layout) -> String {
    let identity = format!("{}\n{}", this_host(), layout.state.display());
    format!("{}.json", Digest::of(identity.as_bytes()).short(24))
}

/// Everybody who uses a store, or whose note cannot be read: then nobody knows what is used.
pub fn users(root: &Path) -> Result<Vec<(PathBuf, User)>, String> {
    let folder = root.join(USERS);
    let reading = |error: io::Error| format!("reading {}: {error}", folder.display());
    match fs::symlink_metadata(&folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Ok(found) if !found.is_dir() => return Err(format!("{} is no folder", folder.display())),
        found => found.map_err(reading)?,
    };
    let mut paths = BTreeSet::new();
    for entry in fs::read_dir(&folder).map_err(reading)? {
        paths.insert(entry.map_err(reading)?.path());
    }
    paths.retain(|path| path.extension().is_some_and(|end| end == "json"));
    let read = |path: PathBuf| match read_json(&path) {
        Ok(user) => user.map(|user| Ok((path, user))),
        Err(error) => Some(Err(error.chain())),
    };
    paths.into_iter().filter_map(read).collect()
}

/// The store's own name.
pub fn id(root: &Path) -> Option<String> {
    fs::read_to_string(root.join(USERS).join(ID)).ok().map(|id| id.trim().chars().take(64).collect())
}

/// Forgets sets that are gone, and users that have left.
pub fn tidy(root: &Path) {
    let _held = hold_all(root);
    for (path, mut user) in users(root).unwrap_or_default() {
        let before = user.sets.len();
        user.sets.retain(|name, _| root.join(name).is_dir());
        if user.has_left() {
            let _ = fs::remove_file(path);
        } else if user.sets.len() != before {
            let _ = write(&path, &user);
        }
    }
}
