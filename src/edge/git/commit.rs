//! The config files of a commit, read from git's objects: nothing is checked out.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

use gix::bstr::{BStr, ByteSlice as _};
use gix::object::tree::EntryKind;

use super::{failed, inside};
use crate::base::{Tree, TreeEntry};
use crate::edge::repository::{
    DATA_FOLDER, MAX_DEPTH, MAX_ENTRIES, MAX_READ, folder_link, is_kdl, is_read, is_skipped, largest, passes_skipped,
};
use crate::ports::RepositoryError;

/// Most links that are followed one after another.
const MAX_LINKS: usize = 16;

/// The files under `folder` as a revision has them, by the rules of the working tree's, and the commit's hex.
///
/// `here` is the working tree: what git does not track (weights, as a rule) is the same for every commit.
pub(in crate::edge) fn committed(
    folder: &Path,
    revision: &str,
    here: &Tree,
) -> Result<(Tree, String), RepositoryError> {
    let repository = gix::discover(folder).map_err(|error| failed(&error))?;
    let unknown =
        |reason: String| RepositoryError::NoSuchCommit { revision: revision.to_owned(), reason: first_line(&reason) };
    let commit = repository
        .rev_parse_single(revision)
        .and_then(|id| id.object())
        .and_then(gix::Object::peel_to_commit)
        .map_err(|error| unknown(error.to_string()))?;
    let prefix = match repository.workdir() {
        Some(work_tree) => inside(work_tree, folder)?,
        None => Path::new("").to_owned(),
    };
    let mut root = commit.tree().map_err(|error| failed(&error))?;
    for part in &prefix {
        let entry = root.find_entry(part.as_encoded_bytes()).filter(|entry| entry.mode().is_tree());
        let Some(entry) = entry else {
            return Err(unknown(format!("it has no folder `{}`", prefix.display())));
        };
        root = entry.object().map_err(|error| failed(&error))?.into_tree();
    }
    let mut walk = Walk::default();
    walk.enter(&repository, root.id, "", 0)?;
    while let Some((id, path, depth)) = walk.queue.pop_front() {
        walk.enter(&repository, id, &path, depth)?;
        if let Some(text) = walk.too_much() {
            return Err(unknown(text));
        }
    }
    walk.resolve_links();
    let index = repository.index_or_empty().map_err(|error| failed(&error))?;
    for (path, entry) in here.iter().filter(|(path, _)| !is_read(path)) {
        let tracked = prefix.join(path);
        if walk.tree.get(path).is_none()
            && index.entry_by_path(BStr::new(tracked.as_os_str().as_encoded_bytes())).is_none()
        {
            walk.tree.insert(path, entry.clone());
        }
    }
    Ok((walk.tree, commit.id.to_string()))
}

/// git's reasons are reports of several lines.
fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().trim().to_owned()
}

#[derive(Default)]
struct Walk {
    tree: Tree,
    links: BTreeMap<String, String>,
    queue: VecDeque<(gix::ObjectId, String, usize)>,
    count: usize,
    read: u64,
}

impl Walk {
    fn enter(
        &mut self,
        repository: &gix::Repository,
        folder: gix::ObjectId,
        path: &str,
        depth: usize,
    ) -> Result<(), RepositoryError> {
        let tree = repository.find_tree(folder).map_err(|error| failed(&error))?;
        let entries: Vec<_> = tree.iter().collect::<Result<_, _>>().map_err(|error| failed(&error))?;
        let is_data = entries.len() > DATA_FOLDER;
        for entry in entries {
            let shown = entry.filename().to_str_lossy();
            let path = if path.is_empty() { shown.to_string() } else { format!("{path}/{shown}") };
            if entry.filename().to_str().is_err() {
                self.add(path, TreeEntry::Refused("its name is not UTF-8".to_owned()));
                continue;
            }
            match entry.kind() {
                EntryKind::Tree if !is_skipped(&shown) && !is_data && depth < MAX_DEPTH => {
                    self.queue.push_back((entry.object_id(), path, depth + 1));
                }
                EntryKind::Blob | EntryKind::BlobExecutable if !is_data || is_kdl(&path) => {
                    let found = file(&entry.id(), &path).unwrap_or_else(TreeEntry::Refused);
                    self.add(path, found);
                }
                EntryKind::Link if !is_data || is_kdl(&path) => {
                    let target = entry.object().map_err(|error| failed(&error))?;
                    self.count += 1;
                    self.links.insert(path, target.data.to_str_lossy().into_owned());
                }
                // A submodule is another repository; the rest is left out as in the working tree.
                _ => {}
            }
            if self.too_much().is_some() {
                break;
            }
        }
        Ok(())
    }

    fn add(&mut self, path: String, entry: TreeEntry) {
        self.count += 1;
        if let TreeEntry::File(bytes) = &entry
            && is_kdl(&path)
        {
            self.read += bytes.len() as u64;
        }
        self.tree.insert(path, entry);
    }

    fn too_much(&self) -> Option<String> {
        if self.count > MAX_ENTRIES {
            Some(format!("it holds more than {MAX_ENTRIES} files: name the folder of the configuration"))
        } else if self.read > MAX_READ {
            let limit = MAX_READ >> 20;
            Some(format!("its *.kdl files hold more than {limit} MiB together: name the folder of the configuration"))
        } else {
            None
        }
    }

    /// A link counts as the file it leads to; one to a folder is told as such.
    fn resolve_links(&mut self) {
        let mut resolved = Vec::new();
        for link in self.links.keys() {
            let mut path = link.clone();
            let mut steps = 0;
            let found = loop {
                let Some(target) = self.links.get(&path) else { break Ok(path) };
                steps += 1;
                if steps > MAX_LINKS {
                    break Err("a link that leads nowhere: too many links");
                }
                match beside(&path, target) {
                    Some(next) => path = next,
                    None => break Err("a link that leaves the repository"),
                }
            };
            let is_folder = |path: &str| {
                let below = format!("{path}/");
                path.is_empty() || self.tree.iter().any(|(known, _)| known.starts_with(&below))
            };
            let entry = match found {
                Ok(path) if Path::new(&path).parent().is_some_and(passes_skipped) => {
                    TreeEntry::Refused("a link into a folder that is not read".to_owned())
                }
                Ok(path) => match self.tree.get(&path) {
                    // Whether bytes are loaded is decided by the link's own name, as in the working tree.
                    Some(TreeEntry::File(bytes)) if !is_read(link) => TreeEntry::Present { size: bytes.len() as u64 },
                    Some(entry) => entry.clone(),
                    None if is_folder(&path) => match folder_link(link, &path) {
                        Some(entry) => entry,
                        None => continue,
                    },
                    None => TreeEntry::Refused("a link that leads nowhere".to_owned()),
                },
                Err(reason) => TreeEntry::Refused(reason.to_owned()),
            };
            resolved.push((link.clone(), entry));
        }
        for (link, entry) in resolved {
            self.tree.insert(link, entry);
        }
    }
}

/// A blob's entry; the error is why it cannot be read, such as an object that a partial clone lacks.
fn file(id: &gix::Id<'_>, path: &str) -> Result<TreeEntry, String> {
    let size = id.header().map_err(|error| first_line(&error.to_string()))?.size();
    if !is_read(path) || size > largest(path) {
        return Ok(TreeEntry::Present { size });
    }
    let object = id.object().map_err(|error| first_line(&error.to_string()))?;
    Ok(TreeEntry::File(object.detach().data))
}

/// The path that a link at `path` leads to; `None` where it leaves the folder.
fn beside(path: &str, target: &str) -> Option<String> {
    if target.starts_with('/') {
        return None;
    }
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edge::FolderRepository;
    use crate::edge::git::tests::Repo;
    use crate::edge::repository::MAX_FILE;
    use crate::ports::Repository as _;

    /// A commit's tree is what the working tree was when it was made, whatever the working tree is now.
    #[test]
    fn a_commit_has_the_files_that_a_checkout_of_it_has() {
        let repo = Repo::new();
        let at = |name: &str| repo.0.path().join(name);
        repo.write("lab/cluster.kdl", "one");
        repo.write("lab/workflows/deep/a.kdl", "a");
        repo.write("lab/prompts/p.md", "12345");
        repo.write("lab/flock.lock", "pins");
        repo.write("lab/workflows/flock.lock", "no lock here");
        repo.write("lab/target/no.kdl", "no");
        repo.write("lab/.hidden/no.kdl", "no");
        repo.write("lab/large.kdl", &"x".repeat(MAX_FILE as usize + 1));
        repo.write("other/x.kdl", "outside");
        repo.write(".gitignore", "weights/\n");
        repo.write("lab/weights/model.gguf", "123");
        let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, at(name)).expect("linked");
        link("workflows/deep/a.kdl", "lab/inside.kdl");
        link("inside.kdl", "lab/twice.kdl");
        link("cluster.kdl", "lab/text.md");
        link("workflows", "lab/folder");
        link("../other/x.kdl", "lab/outside.kdl");
        link("/etc/passwd", "lab/passwd.kdl");
        link("loop.kdl", "lab/loop.kdl");
        link("target/no.kdl", "lab/skipped.kdl");
        let first = repo.commit();
        let folder = FolderRepository::new(at("lab"));
        let then = folder.tree().expect("a tree");
        // The words of a refusal may differ; that it is one may not.
        let plain = |tree: &Tree| -> Vec<(String, Option<TreeEntry>)> {
            let told = |entry: &TreeEntry| (!matches!(entry, TreeEntry::Refused(_))).then(|| entry.clone());
            tree.iter().map(|(path, entry)| (path.to_owned(), told(entry))).collect()
        };
        let (tree, standing) = folder.committed("HEAD").expect("a commit");
        assert_eq!(plain(&tree), plain(&then));
        assert_eq!((standing.commit.as_deref(), standing.dirty), (Some(first.as_str()), false));

        repo.write("lab/cluster.kdl", "two");
        repo.write("lab/untracked.kdl", "new");
        repo.write("lab/later.md", "tracked by a later commit");
        std::fs::remove_file(at("lab/prompts/p.md")).expect("removed");
        repo.commit();
        repo.write("lab/cluster.kdl", "three");
        for revision in ["HEAD~1", "main~", &first[..8], &first] {
            let (tree, standing) = folder.committed(revision).expect("a commit");
            assert_eq!(plain(&tree), plain(&then), "{revision}");
            assert_eq!(standing.commit.as_deref(), Some(first.as_str()));
        }
        let (tree, _) = folder.committed("main").expect("a commit");
        assert_eq!(tree.get("cluster.kdl"), Some(&TreeEntry::File(b"two".to_vec())));
        assert_eq!(tree.get("prompts/p.md"), None, "it was deleted");
        assert_eq!(tree.get("weights/model.gguf"), Some(&TreeEntry::Present { size: 3 }), "never tracked");
        assert_eq!(tree.get("flock.lock"), Some(&TreeEntry::File(b"pins".to_vec())), "that commit's");
        assert!(matches!(tree.get("workflows/flock.lock"), Some(TreeEntry::Present { .. })));
    }

    /// A lock that git does not track pins nothing of any commit.
    #[test]
    fn a_commit_without_a_lock_has_none() {
        let repo = Repo::new();
        repo.write("cluster.kdl", "one");
        repo.commit();
        repo.write("flock.lock", "later");
        let folder = FolderRepository::new(repo.0.path());
        assert!(folder.tree().expect("a tree").get("flock.lock").is_some());
        assert_eq!(folder.committed("HEAD").expect("a commit").0.get("flock.lock"), None);
    }

    #[test]
    fn what_is_no_commit_is_said() {
        let repo = Repo::new();
        repo.write("cluster.kdl", "one");
        repo.commit();
        let refused = |folder: &str, revision: &str| {
            std::fs::create_dir_all(repo.0.path().join(folder)).expect("made");
            let error = FolderRepository::new(repo.0.path().join(folder)).committed(revision).expect_err("no commit");
            error.to_string()
        };
        for revision in ["nosuch", "HEAD~7", "HEAD:cluster.kdl", "", "..", "0000000000000000000000000000000000000000"] {
            let text = refused("", revision);
            assert!(text.starts_with(&format!("git knows no commit `{revision}`")), "{text}");
            assert_eq!(text.lines().count(), 1, "{text}");
        }
        assert!(refused("fresh", "HEAD").ends_with("it has no folder `fresh`"));
        let outside = tempfile::tempdir().expect("a folder");
        assert!(FolderRepository::new(outside.path()).committed("HEAD").is_err());
    }
}
