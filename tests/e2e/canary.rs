//! Secrets are where they belong and nowhere else: distinctive values in every place where flock can meet one, then a
//! search through all that it writes, prints and starts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::support::lab::{Lab, small_model, three_hosts};
use crate::support::{DEADLINE, Outcome, Repository, Running, kdl};

/// Variables of the shell that runs flock, with values that occur nowhere else.
const VARIABLES: &[(&str, &str)] = &[
    ("FLOCK_CANARY_PROVIDER", "canary-provider-6f1e0c7a"),
    ("FLOCK_CANARY_GATEWAY", "canary-gateway-93bd52e4"),
    ("ANTHROPIC_API_KEY", "canary-anthropic-a8c41d09"),
    ("HF_TOKEN", "canary-hub-5d7720fe"),
    ("HUGGING_FACE_HUB_TOKEN", "canary-hub-old-1b64ee93"),
];
/// What the file of the other provider's key holds.
const IN_A_FILE: &str = "canary-file-e07b3a58";

/// What was seen of all processes of this machine over time.
#[derive(Default)]
struct Seen {
    words: BTreeSet<Vec<u8>>,
    /// Environment by process and command line.
    environments: BTreeMap<(u32, Vec<u8>), Vec<u8>>,
}

/// Looks at the process table until it is told to stop.
fn watch(stop: Arc<AtomicBool>, seen: Arc<Mutex<Seen>>) {
    while !stop.load(Ordering::Relaxed) {
        for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let Ok(words) = std::fs::read(entry.path().join("cmdline")) else { continue };
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            if words.is_empty() || seen.environments.contains_key(&(pid, words.clone())) {
                continue;
            }
            let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
            seen.words.insert(words.clone());
            seen.environments.insert((pid, words), environment);
        }
        std::thread::sleep(Duration::from_millis(15));
    }
}

/// All files below a folder, links not followed.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => files(&entry.path(), found),
            Ok(kind) if kind.is_file() => found.push(entry.path()),
            _ => {}
        }
    }
}

fn holds(bytes: &[u8], canary: &str) -> bool {
    // Not windows of bytes: the agents' own files are large, and this is searched for well even in a debug build.
    String::from_utf8_lossy(bytes).contains(canary)
}

/// Runs `flock` with the secrets in its environment.
fn flock(repository: &Repository, arguments: &[&str]) -> Outcome {
    let mut command = repository.command();
    command.args(arguments).envs(VARIABLES.iter().copied());
    Running::start(command).finish(DEADLINE)
}

#[test]
fn no_secret_is_written_printed_or_handed_on() {
    let lab = Lab::up(&three_hosts());
    let place = "context 512\n    place { require label=\"tier\" is=\"consumer\" }";
    let repository = lab.repository("");
    let key_file = repository.beside("provider-key");
    std::fs::write(&key_file, format!("{IN_A_FILE}\n")).expect("a file");
    let external = format!(
        "provider \"one\" kind=\"anthropic\" base-url=\"https://api.example\" {{ key env=\"FLOCK_CANARY_PROVIDER\" }}\n\
         provider \"two\" kind=\"openai\" base-url=\"https://llm.example\" {{ key file={} }}\n\
         model \"opus\" {{ provider \"one\" name=\"opus\" }}\n",
        kdl(&key_file.display().to_string())
    );
    let cluster = lab.cluster(&format!("{}{external}", small_model("near", place)));
    let gateway = "gateway { token env=\"FLOCK_CANARY_GATEWAY\" name=\"students\" }\n    reserve vram";
    repository.write("cluster.kdl", cluster.replacen("reserve vram", gateway, 1));
    repository.commit("with secrets by reference");
    let identity = std::fs::read_to_string(lab.known_hosts().with_file_name("id_ed25519")).expect("the key of the lab");
    let private = identity.lines().nth(2).expect("base64 lines").to_owned();

    let (stop, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Seen::default())));
    let watcher = std::thread::spawn({
        let (stop, seen) = (Arc::clone(&stop), Arc::clone(&seen));
        move || watch(stop, seen)
    });

    let file = |name: &str| repository.beside(name).display().to_string();
    let (saved, inventory, fresh) = (file("plan.json"), file("inventory.json"), file("fresh"));
    let before: &[&[&str]] = &[
        &["init", &fresh],
        &["-vv", "validate"],
        &["validate", "--format", "json"],
        &["-vv", "plan", "--out", &saved],
        &["-vv", "plan", "--format", "json", "--full"],
        &["plan", "--format", "markdown"],
        &["show", &saved],
        &["show", "--format", "json", &saved],
        &["-vv", "apply", &saved],
    ];
    let after: &[&[&str]] = &[
        &["-vv", "apply", "--yes"],
        &["-vv", "status"],
        &["status", "--format", "json"],
        &["-vv", "logs", "near"],
        &["-vv", "ask", "near", "Say hello.", "--max-tokens", "16"],
        &["-vv", "explain", "near"],
        &["explain", "near", "--format", "json"],
        &["-vv", "drift", "--format", "json"],
        &["-vv", "discover", "--out", &inventory, "--format", "json"],
        &["-vv", "plan", "--inventory", &inventory, "--format", "json"],
        &["-vv", "protect", "near", "--reason", "a demo"],
        &["-vv", "destroy", "--yes"],
        &["-vv", "unprotect", "near", "--reason", "it is over"],
    ];
    let mut outcomes: Vec<Outcome> = before.iter().map(|arguments| flock(&repository, arguments)).collect();
    assert!(outcomes.iter().all(|outcome| outcome.code == Some(0)), "{}", outcomes.last().expect("some"));
    let variable = "LLAMA_API_KEY=";
    let engine = *lab.engines("small").first().expect("the engine runs");
    let environment = lab.environment(engine);
    let key = environment.iter().find_map(|entry| entry.strip_prefix(variable)).expect("its key").to_owned();
    assert_eq!(key.len(), 64);
    outcomes.extend(after.iter().map(|arguments| flock(&repository, arguments)));
    let codes: Vec<Option<i32>> = outcomes.iter().skip(before.len()).map(|outcome| outcome.code).collect();
    assert_eq!(codes, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0].map(Some), "{}", outcomes.last().expect("some"));

    let mut canaries: Vec<(&str, &str)> = VARIABLES.to_vec();
    canaries.extend([("the provider's key file", IN_A_FILE), ("the instance's key", &key), ("the SSH key", &private)]);

    // Everything on the hosts but the keys' own folder, and everything around the config repository.
    let mut paths = Vec::new();
    ["big", "small", "plain"].into_iter().for_each(|host| files(&lab.home(host, ""), &mut paths));
    assert!(paths.iter().any(|path| path.ends_with("keeper.log")) && paths.len() > 10, "{paths:?}");
    let keys: Vec<PathBuf> =
        paths.iter().filter(|path| path.parent().is_some_and(|p| p.ends_with("keys"))).cloned().collect();
    assert_eq!(keys.len(), 1, "{keys:?}");
    for path in keys.iter().chain(keys[0].parent().map(Path::to_owned).iter()) {
        let mode =
            std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(path).expect("it is there").permissions());
        assert_eq!(mode & 0o077, 0, "{} is open to others", path.display());
    }
    paths.retain(|path| !keys.contains(path));
    files(&repository.beside(""), &mut paths);
    paths.retain(|path| *path != key_file);
    assert!(
        paths.iter().any(|path| path.ends_with("plan.json"))
            && paths.iter().any(|path| path.ends_with("inventory.json"))
    );
    for path in &paths {
        let bytes = std::fs::read(path).unwrap_or_default();
        for (what, canary) in &canaries {
            assert!(!holds(&bytes, canary), "{what} is in {}", path.display());
        }
    }
    for outcome in &outcomes {
        for (what, canary) in &canaries {
            assert!(!outcome.says(canary), "{what} is printed by {}", outcome.what);
        }
    }

    outcomes.push(flock(&repository, &["-vv", "destroy", "--yes"]));
    outcomes.last().expect("just now").expect(0);
    lab.expect_nothing_left();
    stop.store(true, Ordering::Relaxed);
    watcher.join().expect("it only looks");
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    let is_flock =
        |words: &[u8]| words.split(|byte| *byte == 0).next().is_some_and(|program| program.ends_with(b"/flock"));
    let is_engine = |words: &[u8]| words.starts_with(b"/opt/llama.cpp/llama-server");
    assert!(seen.words.iter().any(|words| is_engine(words)) && seen.words.iter().any(|words| is_flock(words)));
    for ((pid, words), environment) in &seen.environments {
        let shown = String::from_utf8_lossy(words).replace('\0', " ");
        for (what, canary) in &canaries {
            assert!(!holds(words, canary), "process {pid} was started with {what}: {shown}");
            // flock itself was given the variables; an engine is given its own key.
            let allowed = is_flock(words) || (is_engine(words) && *canary == key);
            assert!(allowed || !holds(environment, canary), "{what} is in the environment of process {pid}: {shown}");
        }
    }
}
