//! What goes, what stays, and why.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::collect::{Collect, collect};
use super::tests::{CONTENT, bring, spec_of};
use super::{claim, part, state};
use crate::agent::files::write_json;
use crate::agent::layout::Layout;
use crate::inventory::{Collected, CollectedKind, FetchSpec, Response};

struct Store {
    home: tempfile::TempDir,
}

impl Store {
    fn new() -> Self {
        Self { home: tempfile::tempdir().expect("a home") }
    }

    fn layout(&self, cluster: &str) -> Layout {
        Layout::new(self.home.path(), cluster, "ada-1").expect("good names")
    }

    fn root(&self) -> PathBuf {
        self.layout("lab").default_weights()
    }

    fn set(&self, name: &str) -> FetchSpec {
        let set = spec_of(&self.root(), name, "a.gguf");
        bring(&set);
        set
    }

    /// An instance of a cluster reads a set.
    fn runs(&self, cluster: &str, set: &FetchSpec) {
        let weights = serde_json::json!([{ "revision": set.revision, "folder": set.folder, "files": ["a.gguf"] }]);
        let desired =
            serde_json::json!({ "format": 1, "generation": 1, "instances": { "aaaa": { "weights": weights } } });
        write_json(&self.layout(cluster).desired(), &desired).expect("written");
    }

    fn gc(&self, wanted: &Collect<'_>) -> Collected {
        let Response::Collected { collected } = collect(&self.layout("lab"), wanted).expect("collected") else {
            panic!("another answer")
        };
        collected
    }

    fn wanted<'a>(root: &'a Path, keep: &'a [String], dry_run: bool) -> Collect<'a> {
        Collect { root, keep, accounted: true, dry_run, min_age: Duration::from_secs(600) }
    }
}

fn old(path: &Path) {
    let time = std::time::SystemTime::now() - Duration::from_secs(3600);
    fs::File::options().write(true).open(path).and_then(|file| file.set_modified(time)).expect("set");
}

fn names(root: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(root)
        .expect("listed")
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| !name.starts_with('.'))
        .collect();
    names.sort();
    names
}

#[test]
fn what_runs_and_what_is_planned_stays_and_the_disk_is_counted_once() {
    let store = Store::new();
    let root = store.root();
    let sets = ["0000000000000001", "0000000000000002", "0000000000000003", "0000000000000004"];
    let [ours, theirs, planned, nobody] = sets.map(|name| store.set(name));
    store.runs("lab", &ours);
    store.runs("other", &theirs);
    let keep = [planned.revision.clone()];
    let disk = fs::metadata(root.join("0000000000000001/a.gguf")).expect("there").blocks() * 512;
    assert_eq!(fs::metadata(root.join("0000000000000001/a.gguf")).expect("there").nlink(), 5);

    let told = store.gc(&Store::wanted(&root, &keep, true));
    assert_eq!(names(&root), sets, "a look removes nothing");
    let removed = |told: &Collected| told.removed.iter().map(|item| item.path.clone()).collect::<Vec<_>>();
    let own = fs::metadata(Path::new(&nobody.folder).join(super::COMPLETE)).expect("there").blocks() * 512;
    assert_eq!((removed(&told), told.freed_bytes), (vec![nobody.folder.clone()], own), "others have the same file");
    let why: Vec<&str> = told.kept.iter().map(|set| set.why.as_str()).collect();
    assert_eq!(why, ["lab/ada-1/aaaa reads it", "other/ada-1/aaaa reads it", "the config names it"]);

    let done = store.gc(&Store::wanted(&root, &keep, false));
    assert_eq!((removed(&done), done.problem), (removed(&told), None));
    assert_eq!(names(&root), sets[..3]);
    assert_eq!(fs::read(root.join("0000000000000003/a.gguf")).expect("there"), CONTENT);

    // The last sets go, and with them the one file.
    fs::remove_dir_all(store.home.path().join(".local/share/flock/lab")).expect("removed");
    fs::remove_dir_all(store.home.path().join(".local/share/flock/other")).expect("removed");
    let told = store.gc(&Store::wanted(&root, &[], true));
    assert_eq!((told.removed.len(), told.freed_bytes >= disk && disk > 0), (3, true), "{told:?}");
    let done = store.gc(&Store::wanted(&root, &[], false));
    assert_eq!(done.freed_bytes, told.freed_bytes);
    assert!(done.removed.iter().all(|item| item.kind == CollectedKind::Set && item.size_bytes == 16), "{done:?}");
    assert_eq!(fs::read_dir(root.join(".flock-blobs")).expect("listed").count(), 0);
    assert!(names(&root).is_empty());
}

#[test]
fn dead_partials_go_and_living_ones_stay() {
    let store = Store::new();
    let root = store.root();
    let parts = ["00000000000000aa", "00000000000000bb", "00000000000000cc", "00000000000000dd"].map(|name| {
        let set = spec_of(&root, name, "a.gguf");
        let folder = root.join(name);
        fs::create_dir_all(&folder).expect("made");
        let path = part(&folder, "a.gguf");
        fs::write(&path, b"half").expect("written");
        fs::write(folder.join(".a.gguf.chunks"), b"{}\n").expect("written");
        (set, path)
    });
    let [(_, dead), (_, young), (_, held), (planned, resumed)] = &parts;
    for path in [dead, held, resumed] {
        old(path);
    }
    let holder = fs::File::open(held).expect("opened");
    rustix::fs::flock(&holder, rustix::fs::FlockOperation::LockExclusive).expect("locked");
    // A partial beside a set that is whole is of no use.
    let whole = store.set("00000000000000ee");
    store.runs("lab", &whole);
    let left = part(Path::new(&whole.folder), "a.gguf");
    fs::write(&left, b"left").expect("written");
    old(&left);
    let keep = [format!("sha256:{}", &planned.folder[planned.folder.len() - 16..])];
    let done = store.gc(&Store::wanted(&root, &keep, false));
    let gone: Vec<bool> = [dead, young, held, resumed, &left].iter().map(|path| !path.exists()).collect();
    assert_eq!(gone, [true, false, false, false, true], "{done:?}");
    assert!(!root.join("00000000000000aa").exists(), "its record and its folder went as well");
    assert_eq!(done.partials, 2);
    assert!(done.removed.iter().all(|item| item.kind == CollectedKind::Partial), "{done:?}");
    drop(holder);
    let done = store.gc(&Store::wanted(&root, &keep, false));
    assert_eq!((held.exists(), young.exists(), done.partials), (false, true, 1));
}

#[test]
fn nothing_of_others_is_touched_and_no_link_is_followed() {
    let store = Store::new();
    let root = store.root();
    let mine = store.set("00000000000000aa");
    // A file of the user's own in the set's folder, a folder of the user's own, and links out of the store.
    let precious = store.home.path().join("precious");
    fs::create_dir_all(&precious).expect("made");
    fs::write(precious.join("a.gguf"), CONTENT).expect("written");
    fs::write(root.join("00000000000000aa/notes.txt"), "mine").expect("written");
    fs::create_dir_all(root.join("my-models")).expect("made");
    fs::write(root.join("my-models/b.gguf.part"), "mine").expect("written");
    std::os::unix::fs::symlink(&precious, root.join("00000000000000bb")).expect("linked");
    std::os::unix::fs::symlink(&precious, root.join("00000000000000aa/more")).expect("linked");
    fs::remove_file(root.join("00000000000000aa/a.gguf")).expect("removed");
    std::os::unix::fs::symlink(precious.join("a.gguf"), root.join("00000000000000aa/a.gguf")).expect("linked");
    let done = store.gc(&Collect { min_age: Duration::ZERO, ..Store::wanted(&root, &[], false) });
    assert_eq!(done.problem, None);
    assert_eq!(fs::read(precious.join("a.gguf")).expect("there"), CONTENT);
    assert_eq!(fs::read(root.join("00000000000000aa/notes.txt")).expect("there"), b"mine");
    assert!(
        !Path::new(&mine.folder).join("a.gguf").exists() && !Path::new(&mine.folder).join(super::COMPLETE).exists()
    );
    assert!(root.join("my-models/b.gguf.part").exists() && root.join("00000000000000bb").exists());
    // A marker that names what lies elsewhere.
    let mut evil = spec_of(&root, "00000000000000cc", "../../../../../precious/a.gguf");
    evil.files[0].size_bytes = 16;
    let marker = serde_json::json!({ "format": 1, "fetch": evil });
    write_json(&root.join("00000000000000cc").join(super::COMPLETE), &marker).expect("written");
    store.gc(&Store::wanted(&root, &[], false));
    assert_eq!(fs::read(precious.join("a.gguf")).expect("there"), CONTENT);
}

#[test]
fn where_it_is_not_known_what_runs_nothing_goes() {
    let store = Store::new();
    let root = store.root();
    store.set("00000000000000aa");
    for text in ["{", "{\"format\": 99}", "{\"instances\": 3}"] {
        let path = store.layout("other").desired();
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        fs::write(&path, text).expect("written");
        let done = store.gc(&Store::wanted(&root, &[], false));
        assert!(done.problem.is_some_and(|why| why.contains("other/ada-1/desired.json")) && done.removed.is_empty());
    }
    assert_eq!(names(&root), ["00000000000000aa"]);
}

#[test]
fn what_another_cluster_brought_is_its_own_until_it_has_left() {
    let store = Store::new();
    let root = store.root();
    let set = store.set("00000000000000aa");
    let (lab, other) = (store.layout("lab"), store.layout("other"));
    state(&set).expect("asked");
    claim(&other, Path::new(&set.folder));
    fs::create_dir_all(&other.state).expect("made");
    let done = store.gc(&Store::wanted(&root, &[], false));
    assert!(done.removed.is_empty() && done.kept[0].why.contains("cluster other"), "{done:?}");
    assert!(done.root_id.is_some_and(|id| id.len() == 16));
    // A node of this cluster on a machine whose state is not seen here: whoever asked must have asked it too.
    claim(&lab, Path::new(&set.folder));
    fs::remove_dir_all(&other.state).expect("forgotten");
    let users = root.join(".flock-users");
    for entry in fs::read_dir(&users).expect("listed").flatten() {
        let text = fs::read_to_string(entry.path()).expect("read");
        if text.contains("\"lab\"") {
            let mut user: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            user["host"] = "elsewhere".into();
            write_json(&entry.path(), &user).expect("written");
        }
    }
    let unsure = Collect { accounted: false, ..Store::wanted(&root, &[], false) };
    let done = store.gc(&unsure);
    assert!(done.removed.is_empty() && done.kept[0].why.contains("elsewhere"), "{done:?}");
    let done = store.gc(&Store::wanted(&root, &[], false));
    assert_eq!(done.removed.len(), 1, "{done:?}");
    assert!(names(&root).is_empty());
}

#[test]
fn links_that_somebody_planted_in_a_shared_store_lead_to_nothing() {
    let store = Store::new();
    let root = store.root();
    store.set("00000000000000aa");
    fs::remove_dir_all(root.join(super::blobs::BLOBS)).expect("removed");
    // A cache names its files by their digests as well.
    let cache = store.home.path().join("hub/models--o--m");
    let blob = cache.join("blobs").join("ab".repeat(32));
    fs::create_dir_all(cache.join("blobs")).expect("made");
    fs::write(&blob, CONTENT).expect("written");
    std::os::unix::fs::symlink(&cache, root.join(super::blobs::BLOBS)).expect("linked");
    // A folder of a set that leads out of it, and a marker that names what is there.
    let precious = store.home.path().join("precious");
    fs::create_dir_all(&precious).expect("made");
    for name in ["a.gguf", "a.gguf.part"] {
        fs::write(precious.join(name), CONTENT).expect("written");
    }
    let evil = spec_of(&root, "00000000000000cc", "sub/a.gguf");
    let marker = serde_json::json!({ "format": 1, "fetch": evil });
    write_json(&root.join("00000000000000cc").join(super::COMPLETE), &marker).expect("written");
    std::os::unix::fs::symlink(&precious, root.join("00000000000000cc/sub")).expect("linked");
    old(&blob);
    let done = store.gc(&Collect { min_age: Duration::ZERO, ..Store::wanted(&root, &[], false) });
    assert!(blob.exists(), "{done:?}");
    assert_eq!(fs::read_dir(&precious).expect("listed").count(), 2, "{done:?}");
    assert!(!root.join("00000000000000aa").exists(), "the rest is collected all the same");
    // Nor is anything written there.
    let refused = state(&evil).expect_err("a link").chain();
    assert!(refused.contains("00000000000000cc/sub") && refused.contains("is not a folder of the set"), "{refused}");
    let set = store.set("00000000000000dd");
    assert_eq!(fs::read_dir(&cache).expect("listed").count(), 1, "{set:?}");
}

#[test]
fn state_that_was_moved_and_files_that_are_links_are_read_too() {
    let store = Store::new();
    let root = store.root();
    let [moved, linked] = ["00000000000000aa", "00000000000000bb"].map(|name| store.set(name));
    store.runs("other", &moved);
    let (there, disk) = (store.home.path().join(".local/share/flock/other"), store.home.path().join("disk"));
    fs::rename(&there, &disk).expect("moved");
    std::os::unix::fs::symlink(&disk, &there).expect("linked");
    // An `on-node:` folder whose file is a link into the store.
    let own = store.home.path().join("models");
    fs::create_dir_all(&own).expect("made");
    std::os::unix::fs::symlink(Path::new(&linked.folder).join("a.gguf"), own.join("a.gguf")).expect("linked");
    store.runs("lab", &FetchSpec { revision: "another".into(), folder: own.display().to_string(), ..linked });
    let done = store.gc(&Store::wanted(&root, &[], false));
    assert!(done.removed.is_empty() && done.kept.len() == 2, "{done:?}");
    // A disk that is not there now.
    fs::rename(&disk, store.home.path().join("away")).expect("moved");
    let done = store.gc(&Store::wanted(&root, &[], false));
    assert!(done.removed.is_empty() && done.problem.is_some_and(|why| why.contains("flock/other")));
}

#[test]
fn another_account_with_a_cluster_of_the_same_name_keeps_its_weights() {
    let (store, bea) = (Store::new(), Store::new());
    let root = store.root();
    let set = store.set("00000000000000aa");
    claim(&bea.layout("lab"), Path::new(&set.folder));
    let notes = root.join(".flock-users");
    let kept = |why: &str| {
        let done = store.gc(&Store::wanted(&root, &[], false));
        assert!(done.removed.is_empty(), "{why}: {done:?}");
        done
    };
    // Its home may not be mounted, and may not be looked into.
    fs::remove_dir_all(bea.home.path()).expect("away");
    kept("no home");
    fs::create_dir_all(&bea.layout("lab").state).expect("made");
    let done = kept("a state of another home is not looked at");
    assert!(done.kept[0].why.contains("its state cannot be seen here"), "{done:?}");
    // Its note is for others to read, and where it cannot be read nothing goes.
    let note = fs::read_dir(&notes).expect("listed").flatten().map(|entry| entry.path());
    let note = note.filter(|path| path.extension().is_some_and(|end| end == "json")).collect::<Vec<_>>();
    assert_eq!(fs::metadata(&note[0]).expect("there").mode() & 0o444, 0o444);
    let text = fs::read(&note[0]).expect("read");
    fs::write(&note[0], b"{").expect("written");
    assert!(kept("unreadable").problem.is_some_and(|why| why.contains(".flock-users")));
    fs::write(&note[0], text).expect("written");
    // It has left.
    fs::remove_dir_all(&bea.layout("lab").state).expect("forgotten");
    let done = store.gc(&Store::wanted(&root, &[], false));
    assert_eq!((done.removed.len(), fs::read_dir(&notes).expect("listed").count()), (1, 1), "{done:?}");
}

/// Whoever decides what goes is not overtaken by somebody who found the set complete.
#[test]
fn a_claim_waits_for_whoever_decides_what_goes() {
    let store = Store::new();
    let root = store.root();
    let set = store.set("00000000000000aa");
    let held = super::users::hold_all(&root).expect("held");
    let (layout, folder) = (store.layout("other"), PathBuf::from(&set.folder));
    let claiming = std::thread::spawn(move || claim(&layout, &folder));
    std::thread::sleep(Duration::from_millis(100));
    assert!(!claiming.is_finished());
    drop(held);
    claiming.join().expect("claimed");
}
