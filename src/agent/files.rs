//! Files as the agent writes them: private folders, atomic replacement, locks, random keys.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::AgentError;
use crate::inventory::Refusal;

/// How often a folder that others still write into is emptied before that is a failure.
const EMPTIED_AGAIN: u32 = 10;
/// End of the name of a file that is being written.
const NEW: &str = ".new";
/// Name and size of what is given up on a full disk.
const BALLAST: &str = ".flock-agent-ballast";
const BALLAST_BYTES: u64 = 128 << 10;

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

/// Replaces a file's content so that a reader sees the old or the new one, also after a crash. On a full disk the
/// ballast of the state folder that it is in goes first: what has to be written down to stop something must fit.
pub fn write_atomic(path: &Path, content: &[u8], mode: u32) -> Result<(), AgentError> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let write = || {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        replace(folder, path, content, mode)
    };
    let written = match write() {
        Err(error) if is_full(&error) && throw_ballast(folder) => write(),
        result => result,
    };
    written.map_err(AgentError::file("writing", path))
}

fn replace(folder: &Path, path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    // Not by process id alone: hosts that share a home have the same ones.
    let random = random_hex(8).map_err(|error| io::Error::other(error.chain()))?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{random}.{}{NEW}", std::process::id()));
    let temporary = folder.join(name);
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        sync_folder(folder)
    };
    write().inspect_err(|_| drop(fs::remove_file(&temporary)))
}

/// Whether the file system or the user's share of it is used up.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// What failed while a file of so many bytes was written: a full disk is said as one.
pub fn write_failed(path: &Path, size_bytes: u64, error: io::Error) -> AgentError {
    match disk_space(path) {
        Some((free_bytes, _)) if is_full(&error) => {
            let folder = path.parent().unwrap_or(path).display().to_string();
            // What is written already has its room.
            let written = fs::metadata(path).map_or(0, |found| found.blocks().saturating_mul(512));
            let needed_bytes = size_bytes.saturating_sub(written);
            Refusal::Disk { path: folder, needed_bytes, free_bytes }.into()
        }
        _ => AgentError::file("writing", path)(error),
    }
}

/// Keeps some bytes that can be given up when the disk is full. Without them nothing is worse than before.
pub fn take_ballast(folder: &Path) {
    let path = folder.join(BALLAST);
    // The name that earlier agents gave it, in this folder alone, which is the agent's own.
    let _ = fs::rename(folder.join("ballast"), &path);
    if path.exists() || disk_space(folder).is_some_and(|(free, _)| free < 32 * BALLAST_BYTES) {
        return;
    }
    // Random, because a file system may store zeros for nothing.
    let random = File::open("/dev/urandom").and_then(|source| {
        let mut bytes = Vec::new();
        source.take(BALLAST_BYTES).read_to_end(&mut bytes).map(|_| bytes)
    });
    if let Ok(bytes) = random {
        let _ = replace(folder, &path, &bytes, 0o600);
    }
}

fn throw_ballast(folder: &Path) -> bool {
    // An instance's files lie two folders below the state folder.
    let ours =
        |path: &Path| fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && found.len() == BALLAST_BYTES);
    let mut found = folder.ancestors().take(3).map(|folder| folder.join(BALLAST)).filter(|path| ours(path));
    found.any(|path| fs::remove_file(path).is_ok())
}

/// Removes what [`write_atomic`] left in a folder when its process was killed: temporary files whose process is gone.
/// `age` is for folders that other machines write to as well, whose processes cannot be seen.
pub fn sweep(folder: &Path, age: Duration) {
    let writer = |name: &str| name.strip_suffix(NEW)?.rsplit_once('.')?.1.parse::<u32>().ok();
    remove_old(folder, age, |name| writer(name).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()));
}

/// How old an agent's binary is that surely nobody is still bringing: a slow line may pause. Whoever brings one sweeps by
/// the same rule.
const PUSH_AGE: Duration = Duration::from_secs(24 * 3600);

/// Removes agents' binaries that were being brought when their connection ended.
pub fn sweep_agents(folder: &Path) {
    remove_old(folder, PUSH_AGE, |name| name.starts_with("flock-agent-") && name.contains(".part-"));
}

fn remove_old(folder: &Path, age: Duration, unwanted: impl Fn(&str) -> bool) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(&unwanted)) {
        let modified = entry.metadata().and_then(|meta| meta.modified());
        // A time in the future is another machine's clock: not old.
        let old = modified.is_ok_and(|time| time.elapsed().is_ok_and(|since| since >= age));
        if old {
            let _ = fs::remove_file(entry.path());
        }
    }
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

/// Removes a folder with its content; one that is not there is fine. Another process of ours may still be writing its
/// last line into it: then it is emptied again.
pub fn remove_folder(path: &Path) -> Result<(), AgentError> {
    for _ in 0..EMPTIED_AGAIN {
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(AgentError::file("removing", path)(error));
            }
            _ => return Ok(()),
        }
    }
    fs::remove_dir_all(path).map_err(AgentError::file("removing", path))
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
    fn a_full_disk_is_said_as_one_and_nothing_else_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("big.gguf.part");
        let failed = |kind: io::ErrorKind| write_failed(&path, 1 << 20, kind.into());
        let refused = |kind| match failed(kind) {
            AgentError::Refused(Refusal::Disk { path, needed_bytes, .. }) => (path, needed_bytes),
            other => panic!("{other}"),
        };
        let shown = folder.path().display().to_string();
        assert_eq!(refused(io::ErrorKind::StorageFull), (shown, 1 << 20));
        // What is there has its room already.
        fs::write(&path, vec![1; 256 << 10]).expect("written");
        File::open(&path).and_then(|file| file.sync_all()).expect("on the disk");
        let left = refused(io::ErrorKind::QuotaExceeded).1;
        assert!((700 << 10..=768 << 10).contains(&left), "{left}");
        assert!(matches!(failed(io::ErrorKind::PermissionDenied), AgentError::File { .. }));
    }

    #[test]
    fn what_a_killed_process_left_half_written_goes_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut child = std::process::Command::new("true").spawn().expect("a process");
        let dead = child.id();
        child.wait().expect("ended");
        let alive = std::process::id();
        let names = [format!("a.json.{dead}.new"), format!("a.json.{alive}.new"), "a.json".into(), "x.new".into()];
        for name in &names {
            fs::write(folder.path().join(name), "x").expect("written");
        }
        let left = || names.iter().filter(|name| folder.path().join(name).exists()).count();
        sweep(folder.path(), Duration::from_secs(60));
        assert_eq!(left(), 4, "too young");
        sweep(folder.path(), Duration::ZERO);
        assert_eq!((left(), folder.path().join(&names[0]).exists()), (3, false));
    }

    #[test]
    fn an_agent_that_is_being_brought_is_left_alone_for_a_day() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        for (name, hours) in [("flock-agent-1.part-a", 23), ("flock-agent-1.part-b", 25), ("flock-agent-1", 25)] {
            let file = File::create(at(name)).expect("made");
            file.set_modified(std::time::SystemTime::now() - Duration::from_secs(hours * 3600)).expect("set");
        }
        sweep_agents(folder.path());
        let there = ["flock-agent-1.part-a", "flock-agent-1.part-b", "flock-agent-1"].map(|name| at(name).exists());
        assert_eq!(there, [true, false, true]);
    }

    #[test]
    fn only_the_agent_s_own_ballast_is_thrown() {
        let top = tempfile::tempdir().expect("a folder");
        let folder = top.path().join("state/instances/abc");
        private_folder(&folder).expect("made");
        let theirs = [top.path().join("state/ballast"), folder.join("ballast"), folder.join(BALLAST)];
        for path in &theirs {
            fs::write(path, "a user's own").expect("written");
        }
        assert!(!throw_ballast(&folder));
        assert!(theirs.iter().all(|path| path.exists()));
        fs::remove_file(&theirs[0]).expect("removed");
        take_ballast(&top.path().join("state"));
        assert!(throw_ballast(&folder), "the state folder's goes, from two folders below");
        assert!(theirs[1..].iter().all(|path| path.exists()));
        take_ballast(&top.path().join("state"));
        assert!(!throw_ballast(&folder.join("deeper")), "and from no further away");
    }

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
