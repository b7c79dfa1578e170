//! What git says about a folder: the commit it stands at and whether anything differs from it.

use std::path::{Path, PathBuf};

use gix::bstr::{BString, ByteSlice as _, ByteVec as _};
use gix::status::{Item, Submodule, UntrackedFiles};

use crate::ports::{RepositoryError, Standing};

mod commit;

pub(super) use commit::committed;

/// Where `folder` stands. Outside a repository, and before the first commit, there is no commit. Only what lies
/// under `folder` makes it dirty: changed, staged and deleted files, and untracked ones that are configuration
/// (`*.kdl`, `flock.lock`). A bare repository has no working tree and is never dirty.
pub(super) fn standing(folder: &Path) -> Result<Standing, RepositoryError> {
    let repository = match gix::discover(folder) {
        Ok(repository) => repository,
        Err(_) if !folder.ancestors().any(|above| above.join(".git").exists()) => return Ok(Standing::default()),
        Err(error) => return Err(failed(&error)),
    };
    let head = repository.head().map_err(|error| failed(&error))?;
    let unborn = head.is_unborn();
    let commit = if unborn { None } else { Some(repository.head_id().map_err(|error| failed(&error))?.to_string()) };
    let Some(work_tree) = repository.workdir() else { return Ok(Standing { commit, dirty: false }) };
    let patterns = pattern(work_tree, folder)?;
    let changes = repository
        .status(gix::progress::Discard)
        .map_err(|error| failed(&error))?
        .untracked_files(UntrackedFiles::Files)
        .index_worktree_rewrites(None)
        .index_worktree_submodules(Submodule::Given { ignore: gix::submodule::config::Ignore::All, check_dirty: false })
        .into_iter(patterns)
        .map_err(|error| failed(&error))?;
    let mut dirty = false;
    for change in changes {
        if counts(&change.map_err(|error| failed(&error))?) {
            dirty = true;
            break;
        }
    }
    Ok(Standing { commit, dirty })
}

/// Whether the repository that `folder` lies in has this commit.
pub(super) fn holds(folder: &Path, commit: &str) -> bool {
    let Ok(repository) = gix::discover(folder) else { return false };
    let Ok(id) = gix::ObjectId::from_hex(commit.as_bytes()) else { return false };
    repository.find_commit(id).is_ok()
}

/// Where `folder` lies inside the work tree; empty where it is the work tree itself.
fn inside(work_tree: &Path, folder: &Path) -> Result<PathBuf, RepositoryError> {
    let absolute = |path: &Path| {
        let unreadable = |error: std::io::Error| RepositoryError::Unreadable {
            path: path.display().to_string(),
            reason: error.to_string(),
        };
        path.canonicalize().map_err(unreadable)
    };
    let (work_tree, folder) = (absolute(work_tree)?, absolute(folder)?);
    Ok(folder.strip_prefix(&work_tree).unwrap_or(Path::new("")).to_owned())
}

/// The pathspec of `folder` inside the work tree; none where it is the work tree itself.
fn pattern(work_tree: &Path, folder: &Path) -> Result<Option<BString>, RepositoryError> {
    let inside = inside(work_tree, folder)?;
    if inside.as_os_str().is_empty() {
        return Ok(None);
    }
    let mut pattern = BString::from(":(top,literal)");
    pattern.push_str(inside.as_os_str().as_encoded_bytes());
    Ok(Some(pattern))
}

fn counts(change: &Item) -> bool {
    match change {
        Item::TreeIndex(_) => true,
        Item::IndexWorktree(item) => {
            let untracked = matches!(item, gix::status::index_worktree::Item::DirectoryContents { .. });
            item.summary().is_some() && (!untracked || is_configuration(item.rela_path()))
        }
    }
}

fn is_configuration(path: &gix::bstr::BStr) -> bool {
    path.ends_with_str(".kdl") || path == "flock.lock" || path.ends_with_str("/flock.lock")
}

fn failed(error: &dyn std::fmt::Display) -> RepositoryError {
    RepositoryError::Git(error.to_string())
}

#[cfg(test)]
pub(super) mod tests {
    use std::process::Command;

    use super::*;

    pub struct Repo(pub tempfile::TempDir);

    impl Repo {
        pub fn new() -> Self {
            let repo = Self(tempfile::tempdir().expect("a folder"));
            repo.git(&["init", "-q", "-b", "main"]);
            repo
        }

        fn git(&self, arguments: &[&str]) -> String {
            let output = Command::new("git")
                .args(["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"])
                .args(arguments)
                .current_dir(self.0.path())
                .output()
                .expect("git is there");
            assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).expect("UTF-8").trim().to_owned()
        }

        pub fn write(&self, name: &str, text: &str) {
            let path = self.0.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(path, text).expect("written");
        }

        pub fn commit(&self) -> String {
            self.git(&["add", "-A"]);
            self.git(&["commit", "-q", "-m", "x"]);
            self.git(&["rev-parse", "HEAD"])
        }

        fn standing(&self, folder: &str) -> Standing {
            standing(&self.0.path().join(folder)).expect("it stands somewhere")
        }
    }

    #[test]
    fn outside_and_before_the_first_commit_there_is_none() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(standing(folder.path()).expect("fine"), Standing::default());
        let repo = Repo::new();
        assert_eq!(repo.standing(""), Standing::default());
        repo.write("cluster.kdl", "x");
        assert_eq!(repo.standing(""), Standing { commit: None, dirty: true });
    }

    #[test]
    fn what_differs_makes_it_dirty() {
        let repo = Repo::new();
        repo.write("cluster.kdl", "one");
        repo.write("notes.txt", "n");
        let commit = repo.commit();
        let clean = Standing { commit: Some(commit.clone()), dirty: false };
        let dirty = Standing { commit: Some(commit), dirty: true };
        assert_eq!(repo.standing(""), clean);

        repo.write("scratch.txt", "untracked, and no configuration");
        assert_eq!(repo.standing(""), clean);
        repo.write("new/deep/a.kdl", "untracked");
        assert_eq!(repo.standing(""), dirty);
        std::fs::remove_dir_all(repo.0.path().join("new")).expect("removed");

        repo.write("cluster.kdl", "two");
        assert_eq!(repo.standing(""), dirty);
        repo.git(&["add", "-A"]);
        assert_eq!(repo.standing(""), dirty, "staged");
        repo.git(&["reset", "-q", "--hard"]);
        assert_eq!(repo.standing(""), clean);

        std::fs::remove_file(repo.0.path().join("cluster.kdl")).expect("removed");
        assert_eq!(repo.standing(""), dirty, "deleted");
        repo.git(&["reset", "-q", "--hard"]);
        std::thread::sleep(std::time::Duration::from_millis(20));
        repo.write("cluster.kdl", "one");
        assert_eq!(repo.standing(""), clean, "written again with the same content");
    }

    #[test]
    fn a_folder_of_a_larger_repository_looks_at_itself_only() {
        let repo = Repo::new();
        repo.write("lab [1]/cluster.kdl", "one");
        repo.write("other/x.kdl", "one");
        let commit = repo.commit();
        repo.write("other/x.kdl", "two");
        repo.write("other/y.kdl", "new");
        assert_eq!(repo.standing("lab [1]"), Standing { commit: Some(commit), dirty: false });
        repo.write("lab [1]/cluster.kdl", "two");
        assert!(repo.standing("lab [1]").dirty);
    }

    #[test]
    fn linked_work_trees_and_detached_heads_stand_at_their_commit() {
        let repo = Repo::new();
        repo.write("cluster.kdl", "one");
        let first = repo.commit();
        repo.write("cluster.kdl", "two");
        repo.commit();
        let other = tempfile::tempdir().expect("a folder");
        let path = other.path().join("linked");
        repo.git(&["worktree", "add", "-q", "--detach", path.to_str().expect("UTF-8"), &first]);
        assert_eq!(standing(&path).expect("fine"), Standing { commit: Some(first), dirty: false });
    }
}
