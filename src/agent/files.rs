//! Files as the agent writes them: private folders, atomic replacement, locks, random keys.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::AgentError;

/// Makes a folder and its missing parents, each only for this user.
pub fn private_folder(path: &Path) -> Result<(), AgentError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(AgentError::file("creating", path))
}

/// Makes a private folder where other users can write, and refuses one that is not ours or a link.
pub fn owned_folder(path: &Path) -> Result<(), AgentError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(AgentError::file("creating", path)(error));
        }
        _ => {}
    }
    let found = fs::symlink_metadata(path).map_err(AgentError::file("reading", path))?;
    let uid = rustix::process::geteuid().as_raw();
    if !found.is_dir() || found.uid() != uid || found.permissions().mode() & 0o077 != 0 {
        let path = path.display().to_string();
        return Err(AgentError::Path { path, problem: "is not a private folder of this user" });
    }
    Ok(())
}

/// Replaces a file's content so that a reader sees the old or the new one, also after a crash.
pub fn write_atomic(path: &Path, content: &[u8], mode: u32) -> Result<(), AgentError> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    private_folder(folder)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let temporary = folder.join(name);
    let write = || {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&temporary)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        sync_folder(folder)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&temporary);
        AgentError::file("writing", path)(error)
    })
}

/// Makes a rename inside a folder durable. File systems that cannot are no reason to fail.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    match File::open(folder)?.sync_all() {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        other => other,
    }
}

/// Writes a value as JSON, atomically, readable by this user.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<(), AgentError> {
    let mut content =
        serde_json::to_vec_pretty(value).map_err(|source| AgentError::Malformed { path: path.to_owned(), source })?;
    content.push(b'\n');
    write_atomic(path, &content, 0o600)
}

/// Reads a JSON file; `None` where there is none.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, AgentError> {
    let content = match fs::read(path) {
        Ok(content) => content,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(AgentError::file("reading", path)(error)),
    };
    serde_json::from_slice(&content).map(Some).map_err(|source| AgentError::Malformed { path: path.to_owned(), source })
}

/// Removes a file; one that is not there is fine.
pub fn remove(path: &Path) -> Result<(), AgentError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(AgentError::file("removing", path)(error)),
        _ => Ok(()),
    }
}

/// Removes a folder with its content; one that is not there is fine.
pub fn remove_folder(path: &Path) -> Result<(), AgentError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(AgentError::file("removing", path)(error)),
        _ => Ok(()),
    }
}

/// A lock held through flock(2) until it is dropped.
#[derive(Debug)]
pub struct Lock {
    _file: File,
    path: PathBuf,
}

impl Lock {
    /// Takes the lock, waiting for it.
    pub fn wait(path: &Path) -> Result<Self, AgentError> {
        let file = Self::open(path)?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)
            .map_err(AgentError::errno("locking", path))?;
        Ok(Self { _file: file, path: path.to_owned() })
    }

    /// Takes the lock; `None` where somebody else has it.
    pub fn attempt(path: &Path) -> Result<Option<Self>, AgentError> {
        let file = Self::open(path)?;
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { _file: file, path: path.to_owned() })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(AgentError::errno("locking", path)(error)),
        }
    }

    /// Whether the locked file is still the one at its path.
    pub fn is_current(&self) -> bool {
        match (self._file.metadata(), fs::metadata(&self.path)) {
            (Ok(held), Ok(found)) => held.ino() == found.ino() && held.dev() == found.dev(),
            _ => false,
        }
    }

    fn open(path: &Path) -> Result<File, AgentError> {
        private_folder(path.parent().unwrap_or(Path::new("/")))?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        options.open(path).map_err(AgentError::file("opening", path))
    }
}

/// `bytes` random bytes from the kernel, in hex.
pub fn random_hex(bytes: usize) -> Result<String, AgentError> {
    let path = Path::new("/dev/urandom");
    let mut buffer = vec![0u8; bytes];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut buffer));
    read.map_err(AgentError::file("reading", path))?;
    Ok(buffer.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Bytes that this user may still write on the file system of `path`, and its size. A path that does not
/// exist yet is asked through its nearest parent.
pub fn disk_space(path: &Path) -> Option<(u64, u64)> {
    let existing = path.ancestors().find(|folder| folder.exists())?;
    let found = rustix::fs::statvfs(existing).ok()?;
    Some((found.f_bavail.saturating_mul(found.f_frsize), found.f_blocks.saturating_mul(found.f_frsize)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_private() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("deep/state.json");
        write_json(&path, &vec![1, 2]).expect("written");
        write_json(&path, &vec![3]).expect("replaced");
        assert_eq!(read_json::<Vec<u32>>(&path).expect("read"), Some(vec![3]));
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(path.parent().expect("a parent")).expect("listed").count(), 1);
        assert_eq!(read_json::<Vec<u32>>(&folder.path().join("none")).expect("read"), None);
    }

    #[test]
    fn a_lock_is_exclusive_and_knows_when_its_file_went() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("lock");
        let held = Lock::attempt(&path).expect("opened").expect("free");
        assert!(Lock::attempt(&path).expect("opened").is_none());
        assert!(held.is_current());
        remove(&path).expect("removed");
        assert!(!held.is_current());
        drop(held);
        assert!(Lock::attempt(&path).expect("opened").is_some());
    }

    #[test]
    fn a_shared_folder_is_not_trusted() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run");
        owned_folder(&path).expect("made");
        owned_folder(&path).expect("still ours");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("opened up");
        assert!(owned_folder(&path).is_err());
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).expect("linked");
        assert!(owned_folder(&link).is_err());
    }

    #[test]
    fn keys_are_long_and_differ() {
        let (one, two) = (random_hex(32).expect("random"), random_hex(32).expect("random"));
        assert_eq!(one.len(), 64);
        assert_ne!(one, two);
    }
}
