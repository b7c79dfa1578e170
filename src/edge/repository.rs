//! A config repository as files in a folder.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use crate::base::{Tree, TreeEntry};
use crate::ports::{Repository, RepositoryError, Standing};
use crate::weights::{LOCK_FILE, MAX_LOCK_BYTES};

/// Largest file whose bytes are read; the config room refuses larger ones by their size.
pub(super) const MAX_FILE: u64 = 4 << 20;
/// Most bytes of all files that are read together.
pub(super) const MAX_READ: u64 = 64 << 20;
/// Most entries of a whole tree.
pub(super) const MAX_ENTRIES: usize = 20_000;
/// A folder with more entries than this holds data: of its files only `*.kdl` are listed, and its subfolders are
/// not entered.
pub(super) const DATA_FOLDER: usize = 2_000;
/// Deepest folder that is entered.
pub(super) const MAX_DEPTH: usize = 32;
/// Folders that never hold configuration, beside hidden ones.
const SKIPPED: [&str; 2] = ["target", "node_modules"];

/// The folder that `-C` names.
#[derive(Debug, Clone)]
pub struct FolderRepository {
    folder: PathBuf,
}

impl FolderRepository {
    /// Reads nothing yet.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// Replaces flock.lock: whoever reads it sees the old file or the new one.
    ///
    /// # Errors
    /// [`RepositoryError::Unwritable`]; the old file is then as it was.
    pub fn write_lock(&self, text: &str) -> Result<(), RepositoryError> {
        let path = self.folder.join(LOCK_FILE);
        let partial = self.folder.join(format!(".{LOCK_FILE}.{}", std::process::id()));
        let write = || {
            let mut file = File::create(&partial)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&partial, &path)
        };
        write().map_err(|error| {
            let _ = std::fs::remove_file(&partial);
            RepositoryError::Unwritable { path: path.display().to_string(), reason: error.to_string() }
        })
    }
}

impl Repository for FolderRepository {
    /// Files named `*.kdl` and flock.lock with their bytes; other files as present. Hidden folders, `target` and `node_modules`
    /// are left out. A link counts as the file it leads to, unless that lies outside the folder or where nothing
    /// is read; links to folders are left out.
    fn tree(&self) -> Result<Tree, RepositoryError> {
        let unreadable =
            |reason: String| RepositoryError::Unreadable { path: self.folder.display().to_string(), reason };
        let root = self.folder.canonicalize().map_err(|error| unreadable(error.to_string()))?;
        if !root.is_dir() {
            return Err(unreadable("it is no folder".to_owned()));
        }
        let mut walk = Walk { root, tree: Tree::new(), count: 0, read: 0, queue: VecDeque::new() };
        walk.folder("", 0).map_err(|error| unreadable(error.to_string()))?;
        loop {
            let too_much = if walk.count > MAX_ENTRIES {
                Some(format!("it holds more than {MAX_ENTRIES} files"))
            } else if walk.read > MAX_READ {
                Some(format!("its *.kdl files hold more than {} MiB together", MAX_READ >> 20))
            } else {
                None
            };
            if let Some(text) = too_much {
                return Err(unreadable(format!("{text}: name the folder of the configuration")));
            }
            let Some((folder, depth)) = walk.queue.pop_front() else { break };
            if let Err(error) = walk.folder(&folder, depth) {
                walk.add(folder, TreeEntry::Refused(format!("the folder cannot be read: {error}")));
            }
        }
        Ok(walk.tree)
    }

    fn standing(&self) -> Result<Standing, RepositoryError> {
        let unreadable = |error: std::io::Error| RepositoryError::Unreadable {
            path: self.folder.display().to_string(),
            reason: error.to_string(),
        };
        super::git::standing(&self.folder.canonicalize().map_err(unreadable)?)
    }

    fn committed(&self, revision: &str) -> Result<(Tree, Standing), RepositoryError> {
        let (tree, commit) = super::git::committed(&self.folder, revision, &self.tree()?)?;
        Ok((tree, Standing { commit: Some(commit), dirty: false }))
    }

    fn holds(&self, commit: &str) -> bool {
        super::git::holds(&self.folder, commit)
    }
}

struct Walk {
    root: PathBuf,
    tree: Tree,
    count: usize,
    read: u64,
    queue: VecDeque<(String, usize)>,
}

impl Walk {
    fn add(&mut self, path: String, entry: TreeEntry) {
        self.count += 1;
        if let TreeEntry::File(bytes) = &entry
            && is_kdl(&path)
        {
            self.read += bytes.len() as u64;
        }
        self.tree.insert(path, entry);
    }

    fn folder(&mut self, folder: &str, depth: usize) -> std::io::Result<()> {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(self.root.join(folder))? {
            entries.push(entry?.file_name());
            if entries.len() > 10 * MAX_ENTRIES {
                return Err(std::io::Error::other("it has too many entries"));
            }
        }
        entries.sort();
        let is_data = entries.len() > DATA_FOLDER;
        for name in entries {
            let shown = name.to_string_lossy();
            let path = if folder.is_empty() { shown.to_string() } else { format!("{folder}/{shown}") };
            if name.to_str().is_none() {
                self.add(path, TreeEntry::Refused("its name is not UTF-8".to_owned()));
                continue;
            }
            let kind = match std::fs::symlink_metadata(self.root.join(&path)) {
                Ok(metadata) => metadata.file_type(),
                // Gone since the listing.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => {
                    self.add(path, TreeEntry::Refused(error.to_string()));
                    continue;
                }
            };
            if kind.is_dir() {
                if !is_skipped(&shown) && !is_data && depth < MAX_DEPTH {
                    self.queue.push_back((path, depth + 1));
                }
            } else if (!is_data || is_kdl(&path))
                && let Some(entry) = self.file(&path, kind.is_symlink())
            {
                self.add(path, entry);
            }
            if self.count > MAX_ENTRIES || self.read > MAX_READ {
                return Ok(());
            }
        }
        Ok(())
    }

    /// A link to a folder is told as such: what a config names below it is not there.
    fn file(&self, path: &str, is_link: bool) -> Option<TreeEntry> {
        let mut real = self.root.join(path);
        let mut leads_to = None;
        if is_link {
            real = match real.canonicalize() {
                Ok(real) => real,
                Err(error) => return Some(TreeEntry::Refused(format!("a link that leads nowhere: {error}"))),
            };
            let Ok(inside) = real.strip_prefix(&self.root) else {
                return Some(TreeEntry::Refused("a link that leaves the repository".to_owned()));
            };
            if inside.parent().is_some_and(passes_skipped) {
                return Some(TreeEntry::Refused("a link into a folder that is not read".to_owned()));
            }
            leads_to = Some(inside.display().to_string());
        }
        match std::fs::metadata(&real) {
            Ok(metadata) if metadata.is_dir() => leads_to.and_then(|folder| folder_link(path, &folder)),
            Ok(metadata) if !metadata.is_file() => Some(TreeEntry::Refused("it is no regular file".to_owned())),
            Ok(metadata) if !is_read(path) || metadata.len() > largest(path) => {
                Some(TreeEntry::Present { size: metadata.len() })
            }
            Ok(_) => Some(read(&real, largest(path)).unwrap_or_else(|error| TreeEntry::Refused(error.to_string()))),
            Err(error) => Some(TreeEntry::Refused(error.to_string())),
        }
    }
}

/// A file's bytes; it may have grown since it was looked at.
fn read(path: &Path, most: u64) -> std::io::Result<TreeEntry> {
    let mut bytes = Vec::new();
    let mut file = File::open(path)?;
    (&mut file).take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Ok(TreeEntry::Present { size: file.metadata()?.len().max(most + 1) });
    }
    Ok(TreeEntry::File(bytes))
}

/// Whether a file's bytes are read: the configuration and its lock.
pub(super) fn is_read(path: &str) -> bool {
    is_kdl(path) || path == LOCK_FILE
}

/// The largest that is read of a file.
pub(super) fn largest(path: &str) -> u64 {
    if path == LOCK_FILE { MAX_LOCK_BYTES } else { MAX_FILE }
}

pub(super) fn is_kdl(path: &str) -> bool {
    path.ends_with(".kdl")
}

pub(super) fn is_skipped(folder: &str) -> bool {
    folder.starts_with('.') || SKIPPED.contains(&folder)
}

pub(super) fn passes_skipped(folder: &Path) -> bool {
    folder.components().any(|part| is_skipped(&part.as_os_str().to_string_lossy()))
}

/// A link at `path` to a folder of the repository. One that is called like a config file is no config, and left out.
pub(super) fn folder_link(path: &str, folder: &str) -> Option<TreeEntry> {
    let folder = if folder.is_empty() { "the repository itself".to_owned() } else { format!("`{folder}`") };
    let text = format!("a link to a folder, which is not followed; it leads to {folder}");
    (!is_kdl(path)).then_some(TreeEntry::Refused(text))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::symlink;

    use super::*;

    fn refusal(tree: &Tree, path: &str) -> String {
        match tree.get(path) {
            Some(TreeEntry::Refused(reason)) => reason.clone(),
            other => panic!("{path}: {other:?}"),
        }
    }

    #[test]
    fn names_of_any_kind_are_read_and_skipped_folders_are_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(path, text).expect("written");
        };
        let odd = ["with space.kdl", "it's \"quoted\".kdl", "$(touch x).kdl", "new\nline.kdl", "-rf.kdl", "ü☃.kdl"];
        for name in odd {
            write(&format!("workflows/{name}"), name);
        }
        write("prompts/system.md", "12345");
        for hidden in [".git/config.kdl", "target/a.kdl", "node_modules/a.kdl", "deep/.cache/a.kdl"] {
            write(hidden, "no");
        }
        std::fs::create_dir(folder.path().join("folder.kdl")).expect("made");
        let tree = FolderRepository::new(folder.path()).tree().expect("a tree");
        for name in odd {
            let entry = tree.get(&format!("workflows/{name}"));
            assert_eq!(entry, Some(&TreeEntry::File(name.as_bytes().to_vec())), "{name:?}");
        }
        assert_eq!(tree.get("prompts/system.md"), Some(&TreeEntry::Present { size: 5 }));
        assert_eq!(tree.iter().count(), odd.len() + 1);
    }

    #[test]
    fn a_lock_is_read_and_replaced_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let repository = FolderRepository::new(folder.path());
        for text in ["one", "two"] {
            repository.write_lock(text).expect("written");
            let tree = repository.tree().expect("a tree");
            assert_eq!(tree.get(LOCK_FILE), Some(&TreeEntry::File(text.as_bytes().to_vec())));
            assert_eq!(tree.iter().count(), 1, "nothing is left beside it");
        }
        let large = File::create(folder.path().join(LOCK_FILE)).expect("made");
        large.set_len(MAX_FILE + 1).expect("sparse");
        let tree = repository.tree().expect("a tree");
        assert!(matches!(tree.get(LOCK_FILE), Some(TreeEntry::File(bytes)) if bytes.len() as u64 == MAX_FILE + 1));
        large.set_len(MAX_LOCK_BYTES + 1).expect("sparse");
        let tree = repository.tree().expect("a tree");
        assert_eq!(tree.get(LOCK_FILE), Some(&TreeEntry::Present { size: MAX_LOCK_BYTES + 1 }));
        let missing = FolderRepository::new(folder.path().join("nowhere")).write_lock("x");
        assert!(matches!(missing, Err(RepositoryError::Unwritable { .. })), "{missing:?}");
    }

    #[test]
    fn links_are_followed_inside_and_refused_outside() {
        let outside = tempfile::tempdir().expect("a folder");
        std::fs::write(outside.path().join("secret.kdl"), "secret").expect("written");
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at(".git")).expect("made");
        std::fs::write(at(".git/config"), "token").expect("written");
        std::fs::write(at("real.kdl"), "real").expect("written");
        std::fs::create_dir(at("sub")).expect("made");
        symlink("../real.kdl", at("sub/inside.kdl")).expect("linked");
        symlink(outside.path().join("secret.kdl"), at("outside.kdl")).expect("linked");
        symlink("../../../../etc/passwd", at("passwd.kdl")).expect("linked");
        symlink(outside.path(), at("elsewhere")).expect("linked");
        symlink(".git/config", at("token.kdl")).expect("linked");
        symlink("loop.kdl", at("loop.kdl")).expect("linked");
        symlink("..", at("sub/circle")).expect("linked");
        symlink("sub", at("again")).expect("linked");
        let tree = FolderRepository::new(folder.path()).tree().expect("a tree");
        assert_eq!(tree.get("sub/inside.kdl"), Some(&TreeEntry::File(b"real".to_vec())));
        assert!(refusal(&tree, "outside.kdl").contains("leaves the repository"));
        assert!(refusal(&tree, "elsewhere").contains("leaves the repository"));
        assert!(refusal(&tree, "token.kdl").contains("not read"));
        assert!(refusal(&tree, "passwd.kdl").contains("link"));
        assert!(refusal(&tree, "loop.kdl").contains("nowhere"));
        assert!(refusal(&tree, "sub/circle").ends_with("is not followed; it leads to the repository itself"));
        assert!(refusal(&tree, "again").ends_with("is not followed; it leads to `sub`"));
        assert_eq!(tree.get("elsewhere/secret.kdl"), None);
    }

    #[test]
    fn large_odd_and_special_files_never_hang_or_fill_memory() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let large = File::create(at("large.kdl")).expect("made");
        large.set_len(1 << 40).expect("sparse");
        std::fs::write(at("empty.kdl"), "").expect("written");
        assert!(std::process::Command::new("mkfifo").arg(at("pipe.kdl")).status().expect("mkfifo").success());
        let name = std::ffi::OsStr::from_bytes(b"bad\xff.kdl");
        std::fs::write(folder.path().join(name), "x").expect("written");
        let tree = FolderRepository::new(folder.path()).tree().expect("a tree");
        assert_eq!(tree.get("large.kdl"), Some(&TreeEntry::Present { size: 1 << 40 }));
        assert_eq!(tree.get("empty.kdl"), Some(&TreeEntry::File(Vec::new())));
        assert!(refusal(&tree, "pipe.kdl").contains("regular"));
        assert!(refusal(&tree, "bad\u{fffd}.kdl").contains("UTF-8"));
    }

    #[test]
    fn all_files_together_are_bounded() {
        for within in ["", "deep/er"] {
            let folder = tempfile::tempdir().expect("a folder");
            let inner = folder.path().join(within);
            std::fs::create_dir_all(&inner).expect("made");
            for n in 0..MAX_READ / MAX_FILE {
                let file = File::create(inner.join(format!("{n}.kdl"))).expect("made");
                file.set_len(MAX_FILE).expect("sparse");
            }
            assert!(FolderRepository::new(folder.path()).tree().is_ok());
            std::fs::write(inner.join("z.kdl"), "x").expect("written");
            let error = FolderRepository::new(folder.path()).tree().expect_err("too much").to_string();
            assert!(error.contains("more than 64 MiB"), "{error}");
        }
    }

    #[test]
    fn a_folder_of_data_is_passed_over() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("data")).expect("made");
        for n in 0..=DATA_FOLDER {
            std::fs::write(folder.path().join(format!("data/{n}.bin")), "").expect("written");
        }
        std::fs::write(folder.path().join("data/kept.kdl"), "").expect("written");
        let tree = FolderRepository::new(folder.path()).tree().expect("a tree");
        assert_eq!(tree.iter().map(|(path, _)| path).collect::<Vec<_>>(), ["data/kept.kdl"]);
        let missing = FolderRepository::new(folder.path().join("nowhere")).tree();
        assert!(matches!(missing, Err(RepositoryError::Unreadable { .. })));
    }
}
