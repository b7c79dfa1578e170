//! The weight store of real agents: shared contents, what goes and what stays, caches of the hub, and sets that go from
//! one node to another.

use std::os::unix::fs::MetadataExt;

use flock::base::Secret;
use flock::inventory::{Collected, CollectedKind, WeightsRef};

use super::*;

fn content(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8 ^ seed).collect()
}

/// A set of one file of this content, in the home's store.
fn set(home: &Home, name: &str, file: &str, content: &[u8]) -> FetchSpec {
    FetchSpec {
        source: format!("path:{file}"),
        revision: format!("sha256:{name}"),
        folder: home.path().join(".local/share/flock/weights").join(name).display().to_string(),
        files: vec![FetchFile {
            name: file.into(),
            size_bytes: content.len() as u64,
            sha256: Some(Digest::of(content).to_string()),
        }],
    }
}

/// Brings what is missing of it, and says how many bytes were sent.
fn bring(link: &mut Link, set: &FetchSpec, content: &[u8]) -> u64 {
    let Response::Fetched { have_bytes, .. } = link.ask(&Request::FetchState { fetch: set.clone() }) else {
        panic!("another answer")
    };
    let from = usize::try_from(have_bytes[0]).expect("short");
    if from < content.len() {
        let put = Request::Put { fetch: set.clone(), name: set.files[0].name.clone(), offset: have_bytes[0] };
        let input = link.input.as_mut().expect("open");
        write_message(input, &put).expect("sent");
        for piece in content[from..].chunks(1 << 20) {
            input.write_all(&raw_frame(piece)).expect("sent");
        }
        input.write_all(&raw_frame(&[])).expect("sent");
        let answer: Response = read_message(&mut link.output).expect("a message").expect("an answer");
        assert!(matches!(answer, Response::Fetched { .. }), "{answer:?}");
    }
    let done = link.ask(&Request::FetchDone { fetch: set.clone() });
    assert!(matches!(done, Response::Fetched { complete: true, .. }), "{done:?}");
    (content.len() - from) as u64
}

fn collect(home: &Home, keep: &[&FetchSpec]) -> Collected {
    let keep = keep.iter().map(|set| set.revision.clone()).collect();
    let request = Request::Collect { weights_path: None, keep, accounted: true, dry_run: false, min_age_s: 600 };
    match home.ask(request) {
        Response::Collected { collected } => collected,
        other => panic!("{other:?}"),
    }
}

fn paths(collected: &Collected) -> Vec<&str> {
    collected.removed.iter().map(|item| item.path.as_str()).collect()
}

#[test]
fn a_file_of_two_sets_is_sent_once_and_lies_on_the_disk_once() {
    let home = Home::new();
    let bytes = content(3_000_000, 1);
    let [one, two] = [("00000000000000aa", "a.gguf"), ("00000000000000bb", "sub/b.gguf")]
        .map(|(name, file)| set(&home, name, file, &bytes));
    let mut link = home.connect();
    assert_eq!((bring(&mut link, &one, &bytes), bring(&mut link, &two, &bytes)), (3_000_000, 0));
    // As `du` counts: every file once, however many names it has.
    let mut files = BTreeMap::new();
    let mut folders = vec![home.path().join(".local/share/flock/weights")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("listed").flatten() {
            let meta = std::fs::symlink_metadata(entry.path()).expect("there");
            if meta.is_dir() {
                folders.push(entry.path());
            } else {
                files.insert(meta.ino(), meta.blocks() * 512);
            }
        }
    }
    let on_disk: u64 = files.values().sum();
    assert!((3_000_000..3_200_000).contains(&on_disk), "{on_disk}");
    let facts = home.probe();
    assert_eq!(facts.weights.iter().filter(|found| found.complete && found.size_bytes == 3_000_000).count(), 2);
}

#[test]
fn what_runs_in_any_cluster_and_what_is_planned_stays_and_the_rest_goes() {
    let home = Home::new();
    let contents = [1, 2, 3, 4].map(|seed| content(100_000, seed));
    let names = ["00000000000000aa", "00000000000000bb", "00000000000000cc", "00000000000000dd"];
    let mut link = home.connect();
    let sets: Vec<FetchSpec> = names
        .iter()
        .zip(&contents)
        .map(|(name, bytes)| {
            let set = set(&home, name, "m.gguf", bytes);
            bring(&mut link, &set, bytes);
            set
        })
        .collect();
    let reads = |instance: &str, set: &FetchSpec| InstanceSpec {
        weights: vec![WeightsRef {
            revision: Some(set.revision.clone()),
            folder: set.folder.clone(),
            files: vec!["m.gguf".into()],
        }],
        ..script(instance, "sleep 1000; sleep 1")
    };
    home.start(&reads("aaaa", &sets[0]));
    // Another cluster's node, with the same home.
    let other = |request: Request| {
        let mut command = Command::new(AGENT);
        command.args(["serve", "--cluster", "other", "--node", "ada-9"]);
        home.connect_by(command).ask(&request)
    };
    let started = other(Request::Start { generation: 1, spec: Box::new(reads("bbbb", &sets[1])) });
    assert!(matches!(started, Response::Instances { .. }), "{started:?}");
    // A transfer that was killed, long ago.
    let dead = home.path().join(".local/share/flock/weights/00000000000000ee/m.gguf.part");
    std::fs::create_dir_all(dead.parent().expect("a parent")).expect("made");
    std::fs::write(&dead, &contents[0][..5000]).expect("written");
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(7200);
    std::fs::File::options().write(true).open(&dead).and_then(|file| file.set_modified(long_ago)).expect("set");

    let collected = collect(&home, &[&sets[2]]);
    let folder = |at: usize| sets[at].folder.clone();
    let gone = dead.parent().expect("a parent").display().to_string();
    assert_eq!(paths(&collected), [folder(3), gone.clone()], "{collected:?}");
    assert_eq!((collected.removed[1].kind, collected.partials), (CollectedKind::Partial, 1));
    assert!(collected.freed_bytes >= 100_000 && collected.freed_bytes < 130_000, "{collected:?}");
    assert!(!Path::new(&folder(3)).exists() && !Path::new(&gone).exists());
    let why: Vec<&str> = collected.kept.iter().map(|set| set.why.as_str()).collect();
    assert_eq!(why, ["coder (lab/ada-1/aaaa) reads it", "coder (other/ada-9/bbbb) reads it", "the config names it"]);
    assert!(home.until("running", |facts| facts.running).running);

    // A second time there is nothing; once stopped, they go, but what the other cluster uses is its own.
    assert!(collect(&home, &[&sets[2]]).removed.is_empty());
    assert_eq!(home.stop("aaaa", 0), Response::Done);
    let stop = Request::Stop { generation: 1, instance: "bbbb".into(), grace_ms: 0, before_start: false };
    assert_eq!(other(stop), Response::Done);
    let collected = collect(&home, &[]);
    assert_eq!(paths(&collected), [folder(0), folder(2)], "{collected:?}");
    assert!(collected.kept[0].why.contains("cluster other"), "{collected:?}");
    assert_eq!(other(Request::Forget { generation: 1 }), Response::Done);
    assert_eq!(paths(&collect(&home, &[])), [folder(1)]);
    // Nobody's content is left over.
    assert_eq!(
        std::fs::read_dir(home.path().join(".local/share/flock/weights/.flock-blobs")).expect("there").count(),
        0
    );
}

#[test]
fn a_cache_of_the_hub_is_used_and_never_touched() {
    let mut home = Home::new();
    let bytes = content(400_000, 9);
    let hub = home.path().join("hf/hub/models--owner--tiny");
    let blob = hub.join("blobs").join(Digest::of(&bytes).hex());
    let snapshot = hub.join("snapshots").join("0123456789abcdef0123456789abcdef01234567");
    for folder in [blob.parent().expect("a parent"), &snapshot] {
        std::fs::create_dir_all(folder).expect("made");
    }
    std::fs::write(&blob, &bytes).expect("written");
    std::os::unix::fs::symlink(format!("../../blobs/{}", Digest::of(&bytes).hex()), snapshot.join("m.gguf"))
        .expect("linked");
    home.environment.push(("HF_HOME".into(), home.path().join("hf").display().to_string()));
    let before = std::fs::metadata(&blob).expect("there");
    let mut wanted = set(&home, "00000000000000aa", "m.gguf", &bytes);
    wanted.source = "hf:owner/tiny@0123456789abcdef0123456789abcdef01234567".into();
    assert_eq!(bring(&mut home.connect(), &wanted, &bytes), 0, "nothing was sent");
    let folder = Path::new(&wanted.folder);
    assert_eq!(std::fs::read_link(folder.join("m.gguf")).expect("a link"), blob.canonicalize().expect("there"));
    assert_eq!(paths(&collect(&home, &[])), [wanted.folder.as_str()]);
    assert!(!folder.exists());
    let after = std::fs::metadata(&blob).expect("there");
    let told = |meta: &std::fs::Metadata| (meta.ino(), meta.nlink(), meta.mode(), meta.ctime(), meta.ctime_nsec());
    assert_eq!(told(&after), told(&before));
    assert!(snapshot.join("m.gguf").is_file());
}

/// What an agent needs to take a set from another.
fn offered(link: &mut Link, set: &FetchSpec, key: &str) -> (Vec<String>, u16) {
    let request = Request::Offer { fetch: set.clone(), key: Secret::new(key.repeat(32)), ttl_ms: 30_000 };
    match link.ask(&request) {
        Response::Listening { port, addresses } => (addresses, port),
        other => panic!("{other:?}"),
    }
}

fn take(set: &FetchSpec, (addresses, port): (Vec<String>, u16), key: &str, limit: Option<u64>) -> Request {
    let (fetch, key) = (set.clone(), Secret::new(key.repeat(32)));
    Request::Take { fetch, addresses, port, key, limit_bytes_per_s: limit }
}

/// The answer, and what was told before it.
fn follow(link: &mut Link, request: &Request) -> (Response, Vec<u64>) {
    write_message(link.input.as_mut().expect("open"), request).expect("sent");
    let mut told = Vec::new();
    loop {
        match read_message(&mut link.output).expect("a message").expect("an answer") {
            Response::Progress { have_bytes } => told.push(have_bytes),
            answer => return (answer, told),
        }
    }
}

#[test]
fn a_set_goes_from_node_to_node_and_resumes_after_a_kill() {
    let (from, to) = (Home::new(), Home::new());
    let bytes = content(8_000_000, 5);
    let there = set(&from, "00000000000000aa", "m.gguf", &bytes);
    let here = set(&to, "00000000000000aa", "m.gguf", &bytes);
    let mut source = from.connect();
    bring(&mut source, &there, &bytes);

    // The wrong key, and then the right one for the same listener.
    let place = offered(&mut source, &there, "a1");
    let (answer, _) = follow(&mut to.connect(), &take(&here, place.clone(), "b2", None));
    assert!(matches!(answer, Response::Refused { refusal: Refusal::Unreached { .. } }), "{answer:?}");

    // Killed on the way: what arrived is there.
    let mut killed = to.connect();
    write_message(killed.input.as_mut().expect("open"), &take(&here, place, "a1", Some(1_000_000))).expect("sent");
    let mut have = 0;
    while have < 1_000_000 {
        let told: Response = read_message(&mut killed.output).expect("a message").expect("news");
        let Response::Progress { have_bytes } = told else { panic!("{told:?}") };
        have = have_bytes;
    }
    killed.child.kill().expect("killed");
    killed.child.wait().expect("ended");
    // It ended as it should here, and not by itself.
    std::mem::forget(killed);
    let state = to.ask(Request::FetchState { fetch: here.clone() });
    let Response::Fetched { have_bytes, .. } = state else { panic!("{state:?}") };
    assert!(have_bytes[0] >= have && have_bytes[0] < 8_000_000, "{have_bytes:?} after {have}");

    // The controller's connection to the source ends in the middle: the source stays until the other one is through.
    let mut source = from.connect();
    let place = offered(&mut source, &there, "a2");
    let mut taking = to.connect();
    write_message(taking.input.as_mut().expect("open"), &take(&here, place, "a2", Some(3_000_000))).expect("sent");
    let told: Response = read_message(&mut taking.output).expect("a message").expect("news");
    assert_eq!(told, Response::Progress { have_bytes: 0 }, "no file is whole yet");
    let told: Response = read_message(&mut taking.output).expect("a message").expect("news");
    assert!(matches!(told, Response::Progress { have_bytes: now } if now >= have_bytes[0]), "{told:?}");
    drop(source.input.take());
    let answer = loop {
        match read_message(&mut taking.output).expect("a message").expect("an answer") {
            Response::Progress { .. } => {}
            answer => break answer,
        }
    };
    assert_eq!(answer, Response::Fetched { complete: false, have_bytes: vec![8_000_000] });
    assert!(source.child.wait().expect("it ends by itself").success());
    let done = taking.ask(&Request::FetchDone { fetch: here.clone() });
    assert!(matches!(done, Response::Fetched { complete: true, .. }), "{done:?}");
    assert!(std::fs::read(Path::new(&here.folder).join("m.gguf")).expect("there") == bytes);
}

#[test]
fn two_nodes_that_share_a_store_bring_a_set_once() {
    let (from, shared) = (Home::new(), Home::new());
    let bytes = content(3_000_000, 6);
    let there = set(&from, "00000000000000aa", "m.gguf", &bytes);
    let here = set(&shared, "00000000000000aa", "m.gguf", &bytes);
    let mut source = from.connect();
    bring(&mut source, &there, &bytes);
    let second = || {
        let mut command = Command::new(AGENT);
        command.args(["serve", "--cluster", "lab", "--node", "ada-2"]);
        shared.connect_by(command)
    };
    let first_place = offered(&mut source, &there, "a1");
    let mut first = shared.connect();
    write_message(first.input.as_mut().expect("open"), &take(&here, first_place, "a1", Some(1_500_000))).expect("sent");
    let part = Path::new(&here.folder).join("m.gguf.part");
    let until = Instant::now() + PATIENCE;
    while std::fs::metadata(&part).map_or(0, |meta| meta.len()) == 0 && Instant::now() < until {
        sleep(Duration::from_millis(10));
    }
    // Nobody offers it anything: it waits for the first one, and tells how far that is.
    let nowhere = (vec!["127.0.0.1".to_owned()], 1);
    let (answer, told) = follow(&mut second(), &take(&here, nowhere, "a2", None));
    assert_eq!(answer, Response::Fetched { complete: false, have_bytes: vec![3_000_000] });
    assert!(told.last().is_some_and(|last| *last > 0), "{told:?}");
    let answer = loop {
        match read_message(&mut first.output).expect("a message").expect("an answer") {
            Response::Progress { .. } => {}
            answer => break answer,
        }
    };
    assert_eq!(answer, Response::Fetched { complete: false, have_bytes: vec![3_000_000] });
    assert!(matches!(first.ask(&Request::FetchDone { fetch: here.clone() }), Response::Fetched { complete: true, .. }));
    // The set is complete for the other node too, and both are told that it is.
    let state = second().ask(&Request::FetchState { fetch: here });
    assert_eq!(state, Response::Fetched { complete: true, have_bytes: vec![3_000_000] });
}
