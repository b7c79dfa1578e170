//! Weights outlive their models, and go when somebody says so.

use crate::support::lab::{Lab, model, three_hosts};
use crate::support::{Repository, kdl, list, number, text};

const CONSUMER: &str = "place { require label=\"tier\" is=\"consumer\" }";
const STORE: &str = ".local/share/flock/weights";

fn served(name: &str, file: &str) -> String {
    let source = kdl(&format!("path:{file}"));
    format!(
        "model {} {{\n    source {source}\n    engine \"llama.cpp\"\n    argument \"--threads\" 1\n    context 512\n    \
         {CONSUMER}\n}}\n",
        kdl(name)
    )
}

fn say(repository: &Repository, lab: &Lab, models: &[&str]) {
    repository.write("cluster.kdl", lab.cluster(&models.concat()));
    repository.commit("a change");
}

/// Folder names of the sets on a host.
fn sets(lab: &Lab, host: &str) -> Vec<String> {
    let entries = std::fs::read_dir(lab.home(host, STORE)).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
    names.sort();
    names
}

/// Kilobytes that the store takes on a host's disk.
fn on_disk(lab: &Lab, host: &str) -> u64 {
    let told = lab.run(host, &["du", "-sk", &format!("/root/{STORE}")]);
    told.expect(0).stdout.split_whitespace().next().and_then(|number| number.parse().ok()).expect("a number")
}

#[test]
fn weights_outlive_their_model_until_they_are_collected() {
    let lab = Lab::up(&three_hosts());
    let size_kb = std::fs::metadata(model()).expect("the model").len() / 1024;
    let repository = lab.repository("");
    // The same file under another name: another set, and one content.
    std::fs::copy(model(), repository.path("copy.gguf")).expect("copied");
    repository.write(".gitignore", "*.gguf\n");
    let (near, copy) = (served("near", &model().display().to_string()), served("copy", "copy.gguf"));
    say(&repository, &lab, &[&near, &copy]);
    repository.flock(&["apply", "--yes"]).expect(0);
    assert_eq!((sets(&lab, "small").len(), lab.engines("small").len()), (2, 2));
    let taken = on_disk(&lab, "small");
    assert!(taken >= size_kb && taken < size_kb + size_kb / 4, "{taken} kB for two sets of {size_kb} kB");
    repository.flock(&["gc", "--dry-run"]).expect(0).expect_says("nothing to remove").expect_says("near (lab/small/");

    // The model goes, its weights stay, and looking changes nothing.
    say(&repository, &lab, &[&near]);
    repository.flock(&["apply", "--yes"]).expect(0);
    let engines = lab.engines("small");
    assert_eq!((sets(&lab, "small").len(), engines.len()), (2, 1));
    let told = repository.json(&["gc", "--dry-run"]);
    let small = list(&told, "/nodes").iter().find(|node| text(node, "/node") == "small").expect("told");
    assert_eq!((list(small, "/removed").len(), list(small, "/kept").len()), (1, 1), "{told:#}");
    assert_eq!(text(small, "/removed/0/source"), "path:copy.gguf");
    assert!(number(small, "/freed_bytes") < 1 << 20, "the other set has the same file: {told:#}");
    assert_eq!(sets(&lab, "small").len(), 2);

    // What a transfer that was killed two hours ago has left, on another host.
    let part = format!("/root/{STORE}/0123456789abcdef/m.gguf.part");
    lab.run(
        "big",
        &["sh", "-c", &format!("mkdir -p $(dirname {part}) && echo half >{part} && touch -d '-2 hours' {part}")],
    )
    .expect(0);
    repository.flock(&["gc"]).expect(64).expect_says("--yes");
    assert_eq!((sets(&lab, "small").len(), sets(&lab, "big").len()), (2, 1));

    // While somebody applies, nothing is removed.
    let now: u64 =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    let lease = serde_json::json!({ "id": "x", "holder": "eve@elsewhere (pid 1)", "since": "2026-01-01T00:00:00Z",
        "expires_unix_ms": now + 600_000, "generation": 99 });
    let file = lab.home("small", ".local/share/flock/lab/small/lease.json");
    std::fs::write(&file, lease.to_string()).expect("written");
    repository.flock(&["gc", "--yes"]).expect(6).expect_says("eve@elsewhere");
    std::fs::remove_file(&file).expect("removed");
    assert_eq!((sets(&lab, "small").len(), sets(&lab, "big").len()), (2, 1));

    // Only where it is said, then everywhere.
    repository.flock(&["gc", "--yes", "--on", "big"]).expect(0).expect_says("partial");
    assert_eq!((sets(&lab, "small").len(), sets(&lab, "big").len()), (2, 0));
    let done = repository.json(&["gc", "--yes"]);
    assert_eq!(done["dry_run"], false);
    assert_eq!(sets(&lab, "small").len(), 1);
    assert_eq!(lab.engines("small"), engines);
    repository.flock(&["ask", "near", "Say hello.", "--max-tokens", "8"]).expect(0);
    repository.flock(&["plan", "--detailed-exitcode"]).expect(0);

    // A node that is away is told, and the others are collected all the same; the config names
    // another model.
    say(&repository, &lab, &[&copy]);
    repository.flock(&["destroy", "--yes"]).expect(0);
    lab.halt("plain");
    repository.flock(&["gc", "--yes"]).expect(9).expect_says("plain");
    assert!(sets(&lab, "small").is_empty());
    assert!(on_disk(&lab, "small") < 100, "{} kB", on_disk(&lab, "small"));
    repository.flock(&["gc", "--yes", "--exclude", "plain"]).expect(0).expect_says("nothing to remove");
}

/// A folder of this machine that every host sees under the same path, as a network file system would be.
struct Shared(tempfile::TempDir);

impl Shared {
    fn new() -> Self {
        Self(tempfile::Builder::new().prefix("flock-shared-").tempdir_in("/var/tmp").expect("a folder"))
    }

    fn path(&self) -> &std::path::Path {
        self.0.path()
    }
}

/// Files below a folder that are no links, with their inode and size.
fn files(folder: &std::path::Path) -> Vec<(u64, u64)> {
    use std::os::unix::fs::MetadataExt as _;
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let meta = std::fs::symlink_metadata(entry.path()).expect("there");
        if meta.is_dir() {
            found.extend(files(&entry.path()));
        } else if meta.is_file() {
            found.push((meta.ino(), meta.len()));
        }
    }
    found
}

/// Nodes that share a file system: a store that both write to holds a set once and is collected once, and files that
/// were there before are one candidate, read by both, and neither copied nor removed.
#[test]
fn what_nodes_share_is_one_copy() {
    let lab = Lab::up(&three_hosts());
    let shared = Shared::new();
    let (store, models) = (shared.path().join("store"), shared.path().join("models"));
    std::fs::create_dir(&models).expect("made");
    std::fs::copy(model(), models.join("theirs.gguf")).expect("copied");
    let size = std::fs::metadata(model()).expect("there").len();
    let twice = "argument \"--threads\" 1\n    context 512\n    replicas min=2 max=2\n    \
                 place {\n        spread by=\"node\"\n    }";
    let of = |name: &str, source: &str| {
        format!("model \"{name}\" {{\n    source {}\n    engine \"llama.cpp\"\n    {twice}\n}}\n", kdl(source))
    };
    let brought = of("brought", &format!("path:{}", model().display()));
    let theirs = of("theirs", &format!("on-node:{}", models.join("theirs.gguf").display()));
    let repository = lab.repository("");
    let write = |models: &str| {
        let block = format!("weights path={}\n", kdl(&store.display().to_string()));
        let cluster = lab.cluster(models).replace("{ label \"tier\"", &format!("{{ {block} label \"tier\""));
        repository.write("cluster.kdl", cluster);
        repository.commit("a change");
    };
    write(&[brought.as_str(), &theirs].concat());
    let plan = repository.json(&["plan"]);
    let instances = list(&plan, "/instances");
    let variants = |name: &str| {
        let of = instances.iter().filter(|instance| text(instance, "/model") == name);
        let mut of: Vec<(&str, &str)> = of.map(|one| (text(one, "/node"), text(one, "/variant"))).collect();
        of.sort_unstable();
        of
    };
    let both = variants("theirs");
    assert_eq!(both.iter().map(|(node, _)| *node).collect::<Vec<_>>(), ["big", "small"], "{plan:#}");
    assert_eq!(both[0].1, both[1].1);
    let fetches = list(&plan, "/steps").iter().filter(|step| text(step, "/verb") == "fetch");
    assert!(fetches.clone().all(|step| text(step, "/model") == "brought") && fetches.count() == 2, "{plan:#}");

    repository.flock(&["apply", "--yes"]).expect(0);
    assert_eq!((lab.engines("big").len(), lab.engines("small").len()), (2, 2));
    let held = files(&store).into_iter().filter(|(_, length)| *length == size).collect::<Vec<_>>();
    assert_eq!(held.len(), 2, "a set and the content under its digest");
    assert_eq!(held[0].0, held[1].0, "and they are one file");
    repository.flock(&["plan", "--detailed-exitcode"]).expect(0);

    // One node acts for both.
    let mine = std::fs::metadata(models.join("theirs.gguf")).expect("there");
    write(&theirs);
    repository.flock(&["apply", "--yes"]).expect(0);
    let told = repository.json(&["gc", "--dry-run"]);
    let by = |node: &str| list(&told, "/nodes").iter().find(|told| text(told, "/node") == node).expect("told").clone();
    assert_eq!(list(&by("big"), "/removed").len(), 1, "{told:#}");
    assert_eq!((text(&by("small"), "/shared_with"), list(&by("small"), "/removed").len()), ("big", 0), "{told:#}");
    let freed = number(&told, "/freed_bytes");
    assert!(freed >= size && freed < size + (1 << 20), "{told:#}");
    // A node that may run something and cannot be asked: nothing goes that it may read.
    lab.cut("small");
    repository.flock(&["gc", "--yes", "--exclude", "small"]).expect(0).expect_says("small");
    assert_eq!(files(&store).iter().filter(|(_, length)| *length == size).count(), 2);
    lab.heal("small");
    repository.flock(&["gc", "--yes"]).expect(0);
    assert_eq!(files(&store).iter().filter(|(_, length)| *length == size).count(), 0);
    use std::os::unix::fs::MetadataExt as _;
    let after = std::fs::metadata(models.join("theirs.gguf")).expect("still there");
    assert_eq!(
        (after.ino(), after.len(), after.mtime(), after.nlink()),
        (mine.ino(), size, mine.mtime(), mine.nlink())
    );
}
