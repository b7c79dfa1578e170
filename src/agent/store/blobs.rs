//! One file per digest: sets that hold the same file share it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::records::{
    Checked, RECEIVED, Received, checked, digest, hold, is_folder, is_ours, is_whole, length, modified, note, part,
    received, unmoved,
};
use crate::agent::download::record;
use crate::agent::files::{random_hex, remove};
use crate::agent::layout::check_file_name;
use crate::base::Digest;
use crate::inventory::FetchFile;

/// Where they lie below the root.
pub const BLOBS: &str = ".flock-blobs";

/// How two names come to be one file.
pub type Link = fn(&Path, &Path) -> io::Result<()>;

/// The root that a set's folder is in.
pub fn root(folder: &Path) -> Option<&Path> {
    folder.parent().filter(|root| root.parent().is_some())
}

/// The folder of a digest's blob below a root; its name there is the 64 digits.
pub fn shelf(root: &Path, digest: &Digest) -> PathBuf {
    root.join(BLOBS).join(digest.short(2))
}

/// Whether a shelf is a folder of the store: where others write too, a link there could lead to files that are not
/// flock's, such as a cache that names its files by their digests as well.
fn is_shelf(shelf: &Path) -> bool {
    is_folder(shelf) && shelf.parent().is_some_and(is_folder)
}

/// Where a set may find files that the store has already.
pub struct Supply<'a> {
    root: &'a Path,
    folder: &'a Path,
    /// Files of other sets by digest, read when they are first asked for.
    siblings: Option<Siblings>,
}

/// Folder and file name by digest, as noted in the sets.
type Siblings = BTreeMap<String, Vec<(PathBuf, String)>>;

impl<'a> Supply<'a> {
    /// For a set's folder; `None` where it is in no store.
    pub fn of(folder: &'a Path) -> Option<Self> {
        Some(Self { root: root(folder)?, folder, siblings: None })
    }

    /// A file of this digest, brought into the set. `None` where the store has none.
    pub fn bring(&mut self, file: &FetchFile) -> Option<Checked> {
        let wanted = digest_of(file)?;
        let _held = hold(&self.root.join(BLOBS));
        let whole = self.folder.join(&file.name);
        let link: Link = |from, to| fs::hard_link(from, to);
        if let Some(blob) = checked_blob(self.root, file, &wanted) {
            return place(&blob, &whole, &wanted, link);
        }
        // A store that was filled before there were blobs.
        let siblings = self.siblings.get_or_insert_with(|| siblings(self.root, self.folder));
        let same = |(folder, name): &&(PathBuf, String)| {
            let other = FetchFile { name: name.clone(), ..file.clone() };
            let path = folder.join(name);
            fs::symlink_metadata(&path).is_ok_and(|found| found.is_file())
                && is_whole(folder, &other, &checked(folder))
                // What another account noted of its file is its word.
                && (is_ours(&path) || digest(&path).is_ok_and(|found| found == wanted))
        };
        let (sibling, name) = siblings.get(file.sha256.as_ref()?)?.iter().find(same)?;
        adopt(sibling, &FetchFile { name: name.clone(), ..file.clone() }, &checked(sibling));
        let blob = checked_blob(self.root, file, &wanted).unwrap_or_else(|| sibling.join(name));
        place(&blob, &whole, &wanted, link)
    }
}

/// What the other sets of a root hold.
fn siblings(root: &Path, folder: &Path) -> Siblings {
    let mut siblings = Siblings::new();
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        let other = entry.path();
        if other == folder {
            continue;
        }
        for (name, known) in checked(&other).into_iter().filter(|(name, _)| check_file_name(name).is_ok()) {
            siblings.entry(known.sha256).or_default().push((other.clone(), name));
        }
    }
    siblings
}

/// Keeps a set's checked file under its digest as well. Where that cannot be done, the set has its file all the same.
/// `known` is what is noted of the set.
pub fn adopt(folder: &Path, file: &FetchFile, known: &Received) {
    let Some(wanted) = digest_of(file).filter(|_| is_whole(folder, file, known)) else { return };
    adopt_by(|from, to| fs::hard_link(from, to), folder, file, &wanted);
}

/// The same with another way to link; whether the file lies under its digest.
fn adopt_by(link: Link, folder: &Path, file: &FetchFile, wanted: &Digest) -> bool {
    let Some(root) = root(folder) else { return false };
    let whole = folder.join(&file.name);
    let found = fs::symlink_metadata(&whole);
    // A link leads to a blob already, or to a cache that is not ours.
    let Some(found) = found.ok().filter(fs::Metadata::is_file) else { return false };
    let shelf = shelf(root, wanted);
    let blob = shelf.join(wanted.hex());
    if let Some(known) = checked_blob(root, file, wanted) {
        let same = fs::metadata(&known).is_ok_and(|blob| (blob.dev(), blob.ino()) == (found.dev(), found.ino()));
        if same {
            return true;
        }
        // Two came at once: one goes.
        return place(&known, &whole, wanted, link)
            .and_then(|known| note(folder, Received::from([(file.name.clone(), known)])).ok())
            .is_some();
    }
    if fs::create_dir_all(root.join(BLOBS)).is_err() || !is_folder(&root.join(BLOBS)) {
        return false;
    }
    if fs::create_dir_all(&shelf).is_err() || !is_shelf(&shelf) {
        return false;
    }
    let noted = |blob: &Path| {
        let known = Checked::now(blob, wanted);
        note(&shelf, Received::from([(wanted.hex().to_owned(), known)])).is_ok()
    };
    match renamed(&blob, |new| link(&whole, new)) {
        Ok(()) => noted(&blob),
        // No hard links here: the blob is the file, and the set has a link to it.
        Err(_) => fs::rename(&whole, &blob).is_ok() && noted(&blob) && place(&blob, &whole, wanted, link).is_some(),
    }
}

/// The blob of a digest, where it is there and was not written to since it was checked. One that was is read again, and
/// removed where it is another file by now.
fn checked_blob(root: &Path, file: &FetchFile, wanted: &Digest) -> Option<PathBuf> {
    let shelf = shelf(root, wanted);
    let blob = shelf.join(wanted.hex());
    if !is_shelf(&shelf) || !fs::symlink_metadata(&blob).ok()?.is_file() {
        return None;
    }
    // Where other accounts write too, theirs is read before it is believed.
    let ours = is_ours(&blob) && is_ours(&shelf.join(RECEIVED));
    let known = received(&shelf).remove(wanted.hex()).filter(|_| ours);
    let unchanged = known.is_some_and(|known| known.modified_ns.is_some() && unmoved(&blob, known.modified_ns));
    if unchanged && length(&blob) == Some(file.size_bytes) {
        return Some(blob);
    }
    let known = Checked { sha256: wanted.to_string(), modified_ns: modified(&blob) };
    if length(&blob) == Some(file.size_bytes) && digest(&blob).is_ok_and(|found| found == *wanted) {
        let _ = note(&shelf, Received::from([(wanted.hex().to_owned(), known)]));
        return Some(blob);
    }
    let _ = remove(&blob);
    None
}

/// Gives a checked file a second name in a set, as a hard link, else as a relative link to the blob. A partial that is
/// no longer needed goes.
fn place(from: &Path, whole: &Path, wanted: &Digest, link: Link) -> Option<Checked> {
    fs::create_dir_all(whole.parent()?).ok()?;
    let linked = renamed(whole, |new| link(from, new));
    if linked.is_err() {
        let target = relative(from, whole)?;
        renamed(whole, |new| std::os::unix::fs::symlink(&target, new)).ok()?;
    }
    drop_partial(whole);
    Some(Checked::now(whole, wanted))
}

/// Makes something under a name of its own and gives it its name, so that a reader sees the old or the new one.
pub fn renamed(path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let random = random_hex(8).map_err(|error| io::Error::other(error.chain()))?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{random}.{}.new", std::process::id()));
    let new = path.with_file_name(name);
    make(&new)?;
    let renamed = fs::rename(&new, path);
    // Two names of one file are no reason for rename(2) to remove one.
    let _ = fs::remove_file(&new);
    renamed
}

/// Removes the partial of a file that came another way, unless somebody is at it.
pub fn drop_partial(whole: &Path) {
    let (Some(folder), Some(name)) = (whole.parent(), whole.file_name().and_then(|name| name.to_str())) else { return };
    let path = part(folder, name);
    if !is_locked(&path) {
        let _ = record::forget(&path);
        let _ = fs::remove_file(path);
    }
}

/// Whether a process has this partial, as far as the file system tells.
pub fn is_locked(path: &Path) -> bool {
    use std::os::unix::fs::OpenOptionsExt;
    let no_link = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    let Ok(file) = fs::OpenOptions::new().read(true).custom_flags(no_link).open(path) else { return false };
    let lock = rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive);
    lock == Err(rustix::io::Errno::WOULDBLOCK)
}

/// The way from a link to what it names, both below one root.
fn relative(target: &Path, link: &Path) -> Option<PathBuf> {
    let from = link.parent()?;
    let common = from.ancestors().find(|above| target.starts_with(above))?;
    let up = from.strip_prefix(common).ok()?.components().count();
    let mut way: PathBuf = std::iter::repeat_n("..", up).collect();
    way.push(target.strip_prefix(common).ok()?);
    Some(way)
}

fn digest_of(file: &FetchFile) -> Option<Digest> {
    file.sha256.as_deref().and_then(Digest::parse).filter(|_| file.size_bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::store::tests::{CONTENT, bring, spec_of};
    use crate::agent::store::{done, missing, state};
    use crate::inventory::{Response, WeightsRef};

    fn inode(path: &Path) -> u64 {
        fs::metadata(path).expect("there").ino()
    }

    #[test]
    fn sets_that_hold_the_same_file_share_it_and_it_is_not_sent_again() {
        let top = tempfile::tempdir().expect("a folder");
        let (one, two) = (spec_of(top.path(), "0001", "a.gguf"), spec_of(top.path(), "0002", "sub/b.gguf"));
        bring(&one);
        let there = Response::Fetched { complete: false, have_bytes: vec![CONTENT.len() as u64] };
        assert_eq!(state(&two).expect("asked"), there);
        assert!(matches!(done(&two).expect("whole"), Response::Fetched { complete: true, .. }));
        let paths = [top.path().join("0001/a.gguf"), top.path().join("0002/sub/b.gguf")];
        assert_eq!(inode(&paths[0]), inode(&paths[1]));
        assert_eq!(fs::metadata(&paths[0]).expect("there").nlink(), 3, "two sets and the blob");
        // One of the two is written to: both are, and neither is taken for what it was.
        fs::write(&paths[0], b"SIXTEEN BYTES...").expect("written");
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000);
        fs::File::options().write(true).open(&paths[0]).and_then(|file| file.set_modified(time)).expect("set");
        for set in [&one, &two] {
            assert_eq!(state(set).expect("asked"), Response::Fetched { complete: false, have_bytes: vec![0] });
        }
        // Once the first has it again, the second needs nothing.
        bring(&one);
        assert_eq!(state(&two).expect("asked"), there);
        done(&two).expect("whole");
        let folder = two.folder.clone();
        let set = WeightsRef { revision: Some(two.revision), folder, files: vec!["sub/b.gguf".into()] };
        assert_eq!((missing(&[set]), fs::read(&paths[1]).expect("there")), (None, CONTENT.to_vec()));
    }

    #[test]
    fn a_store_of_before_there_were_blobs_is_adopted_without_a_copy() {
        let top = tempfile::tempdir().expect("a folder");
        let (one, two) = (spec_of(top.path(), "0001", "a.gguf"), spec_of(top.path(), "0002", "b.gguf"));
        bring(&one);
        fs::remove_dir_all(top.path().join(BLOBS)).expect("as it was");
        assert_eq!(fs::metadata(top.path().join("0001/a.gguf")).expect("there").nlink(), 1);
        assert_eq!(state(&two).expect("asked"), Response::Fetched { complete: false, have_bytes: vec![16] });
        assert_eq!(inode(&top.path().join("0001/a.gguf")), inode(&top.path().join("0002/b.gguf")));
        assert_eq!(fs::metadata(top.path().join("0002/b.gguf")).expect("there").nlink(), 3);
        // What nobody has checked is not adopted.
        let three = spec_of(top.path(), "0003", "c.gguf");
        fs::remove_dir_all(top.path().join(BLOBS)).expect("as it was");
        for set in ["0001/a.gguf", "0002/b.gguf"] {
            let path = top.path().join(set);
            fs::remove_file(&path).and_then(|()| fs::write(&path, b"SIXTEEN BYTES...")).expect("another file");
        }
        assert_eq!(state(&three).expect("asked"), Response::Fetched { complete: false, have_bytes: vec![0] });
    }

    #[test]
    fn a_file_system_without_hard_links_gets_links_to_the_blob() {
        let top = tempfile::tempdir().expect("a folder");
        let set = spec_of(top.path(), "0001", "sub/a.gguf");
        bring(&set);
        fs::remove_dir_all(top.path().join(BLOBS)).expect("as it was");
        let refuses: Link = |_, _| Err(io::ErrorKind::PermissionDenied.into());
        let (folder, file) = (top.path().join("0001"), &set.files[0]);
        let wanted = digest_of(file).expect("a digest");
        assert!(adopt_by(refuses, &folder, file, &wanted));
        let link = fs::read_link(folder.join("sub/a.gguf")).expect("a link");
        assert!(link.starts_with("../../.flock-blobs"), "{}", link.display());
        assert_eq!(fs::read(folder.join("sub/a.gguf")).expect("there"), CONTENT);
        assert_eq!(state(&set).expect("asked"), Response::Fetched { complete: true, have_bytes: vec![16] });
        // It is a link, so it is not taken for a file of this set's own.
        assert!(!adopt_by(refuses, &folder, file, &wanted));
        let second = spec_of(top.path(), "0002", "b.gguf");
        assert_eq!(state(&second).expect("asked"), Response::Fetched { complete: false, have_bytes: vec![16] });
    }

    #[test]
    fn a_blob_that_is_another_file_by_now_is_not_handed_out() {
        let top = tempfile::tempdir().expect("a folder");
        let set = spec_of(top.path(), "0001", "a.gguf");
        let wanted = digest_of(&set.files[0]).expect("a digest");
        let blob = shelf(top.path(), &wanted).join(wanted.hex());
        fs::create_dir_all(blob.parent().expect("a parent")).expect("made");
        fs::write(&blob, b"SIXTEEN BYTES...").expect("written");
        assert_eq!(state(&set).expect("asked"), Response::Fetched { complete: false, have_bytes: vec![0] });
        assert!(!blob.exists());
        // A link in its place leads nowhere that is read.
        let victim = top.path().join("victim");
        fs::write(&victim, CONTENT).expect("written");
        std::os::unix::fs::symlink(&victim, &blob).expect("linked");
        assert_eq!(state(&set).expect("asked"), Response::Fetched { complete: false, have_bytes: vec![0] });
        bring(&set);
        assert!(victim.exists() && fs::symlink_metadata(&blob).expect("there").is_file());
    }
}
