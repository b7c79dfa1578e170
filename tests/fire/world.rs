//! Hosts, small models, and what must hold after everything.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::support::lab::{HostSpec, Lab, three_hosts};
use crate::support::{Outcome, Repository, Running, kdl, list, number, text};
use crate::tiny;

/// How long one command may take here: eight builds may share the machine.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// The state folder of a host's agent, below its home.
pub const STATE: &str = ".local/share/flock/lab";
/// Where weights lie, below a host's home.
pub const WEIGHTS: &str = ".local/share/flock/weights";

/// A lab with a config repository.
pub struct World {
    pub lab: Lab,
    pub repository: Repository,
}

impl World {
    /// Three hosts (`big`, `small`, `plain`).
    pub fn three() -> Self {
        Self::of(&three_hosts())
    }

    /// These hosts.
    pub fn of(hosts: &[HostSpec]) -> Self {
        let lab = Lab::up(hosts);
        let repository = lab.repository("");
        Self { lab, repository }
    }

    /// A tiny model of its own, as a file beside the config.
    pub fn tiny(&self, seed: u64) -> PathBuf {
        let path = self.repository.beside(&format!("tiny-{seed}.gguf"));
        if !path.exists() {
            tiny::write(&path, seed);
        }
        path
    }

    /// KDL of a model that serves a file on the host of a tier.
    pub fn model(&self, name: &str, file: &Path, tier: &str, context: u32) -> String {
        format!(
            "model {} {{\n    source {}\n    engine \"llama.cpp\"\n    context {context}\n    argument \"--threads\" 1\n    \
             place {{ require label=\"tier\" is={}; allow cpu={} }}\n}}\n",
            kdl(name),
            kdl(&format!("path:{}", file.display())),
            kdl(tier),
            if tier == "laptop" { "#true" } else { "#false" },
        )
    }

    /// Makes these models the desired state.
    pub fn desire(&self, models: &[String]) {
        self.repository.write("cluster.kdl", self.lab.cluster(&models.concat()));
        self.repository.commit("another state");
    }

    /// Runs `flock apply --yes`, whatever its end.
    pub fn apply(&self) -> Outcome {
        self.repository.start(&["apply", "--yes"]).finish(PATIENCE)
    }

    /// Runs `flock apply --yes` again until it succeeds or has failed `most` times; how long that took.
    pub fn recover(&self, most: usize) -> (Option<Duration>, Vec<String>) {
        let begun = Instant::now();
        let mut last = None;
        for _ in 0..most {
            let outcome = self.apply();
            if outcome.code == Some(0) {
                return (Some(begun.elapsed()), Vec::new());
            }
            last = Some(outcome);
        }
        let text = last.map(|outcome| one_line(&outcome)).unwrap_or_default();
        (None, vec![format!("apply did not recover: {text}")])
    }

    /// Everything that must hold after an apply that succeeded; what does not, in words.
    pub fn broken(&self) -> Vec<String> {
        let mut broken = Vec::new();
        let plan = self.repository.flock(&["plan", "--detailed-exitcode", "--format", "json"]);
        if plan.code != Some(0) {
            broken.push(format!("the next plan is not empty: {}", one_line(&plan)));
            return broken;
        }
        let plan = plan.json();
        let mut wanted: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for instance in list(&plan, "/instances") {
            wanted.entry(text(instance, "/node")).or_default().insert(text(instance, "/instance"));
        }
        // All at once: each is a request of its own to a model.
        let asks: Vec<(&str, Running)> = list(&plan, "/instances")
            .iter()
            .map(|instance| text(instance, "/model"))
            .map(|model| (model, self.repository.start(&["ask", model, "a", "--max-tokens", "4"])))
            .collect();
        for host in self.lab.hosts() {
            let wanted = wanted.remove(host).unwrap_or_default();
            broken.extend(self.broken_on(host, &wanted));
        }
        for instance in list(&plan, "/instances") {
            let host = text(instance, "/node");
            for weights in list(instance, "/spec/weights") {
                broken.extend(self.broken_weights(host, text(weights, "/folder")));
            }
        }
        for (model, ask) in asks {
            let answer = ask.finish(PATIENCE);
            if answer.code != Some(0) {
                broken.push(format!("{model} does not answer: {}", one_line(&answer)));
            }
        }
        broken
    }

    /// On one host: one engine for each instance that is wanted there and none besides, one agent, no lease, no rests.
    fn broken_on(&self, host: &str, wanted: &BTreeSet<&str>) -> Vec<String> {
        let mut broken = Vec::new();
        let mut engines: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for pid in self.lab.engines(host) {
            let mark = instance_of(pid).unwrap_or_else(|| format!("process {pid} without a mark"));
            engines.entry(mark).or_default().push(pid);
        }
        for (id, pids) in &engines {
            if !wanted.contains(id.as_str()) {
                broken.push(format!("{host}: {id} is not wanted and runs"));
            } else if pids.len() > 1 {
                broken.push(format!("{host}: {id} runs {} times", pids.len()));
            }
        }
        broken.extend(wanted.iter().filter(|id| !engines.contains_key(**id)).map(|id| format!("{host}: {id} is lost")));
        let count = || {
            let keepers = self.lab.processes(host).into_iter().filter(|(_, words)| words.contains(" keep --cluster"));
            keepers.count()
        };
        // One that finds another at work leaves again after two seconds.
        let end = Instant::now() + Duration::from_secs(20);
        while count() > 1 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(200));
        }
        let keepers = count();
        if keepers != usize::from(!wanted.is_empty()) && !(keepers == 1 && self.lab.home(host, STATE).exists()) {
            broken.push(format!("{host}: {keepers} agents keep"));
        }
        if self.lab.home(host, &format!("{STATE}/{host}/lease.json")).exists() {
            broken.push(format!("{host}: the lease is held"));
        }
        // What a killed process left half written goes when the agent looks around next.
        let folder = self.lab.home(host, ".local/share/flock");
        let end = Instant::now() + Duration::from_secs(30);
        while !rests(&folder).is_empty() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(200));
        }
        broken.extend(rests(&folder).into_iter().map(|rest| format!("{host}: {rest} is left")));
        broken
    }

    /// Whether the files of a set have the digests that their marker promises, and those of the originals.
    fn broken_weights(&self, host: &str, folder: &str) -> Vec<String> {
        let Some(inside) = folder.strip_prefix("/root/") else { return vec![format!("{folder} is not at home")] };
        let folder = self.lab.home(host, inside);
        let marker = std::fs::read_to_string(folder.join(".flock-complete.json")).unwrap_or_default();
        let Ok(marker) = serde_json::from_str::<serde_json::Value>(&marker) else {
            return vec![format!("{host}: {} is not marked complete", folder.display())];
        };
        let original = text(&marker, "/fetch/source").trim_start_matches("path:").to_owned();
        let mut broken = Vec::new();
        for file in list(&marker, "/fetch/files") {
            let copy = std::fs::read(folder.join(text(file, "/name"))).unwrap_or_default();
            if copy.len() as u64 != number(file, "/size_bytes") || copy != std::fs::read(&original).unwrap_or_default()
            {
                broken.push(format!("{host}: {} differs from {original}", text(file, "/name")));
            }
        }
        broken
    }

    /// The processes of a model on a host.
    pub fn engine_of(&self, host: &str, model: &str) -> Vec<u32> {
        let serves = |words: &str| words.contains(&format!("--alias {model} "));
        self.lab.processes(host).into_iter().filter(|(_, words)| serves(words)).map(|(pid, _)| pid).collect()
    }

    /// Ends the cluster; what is left after, in words.
    pub fn destroy(&self) -> Vec<String> {
        let destroyed = self.repository.start(&["destroy", "--yes"]).finish(PATIENCE);
        if destroyed.code != Some(0) {
            return vec![format!("destroy failed: {}", one_line(&destroyed))];
        }
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let left: Vec<String> = self
                .lab
                .hosts()
                .into_iter()
                .flat_map(|host| {
                    let processes = self.lab.processes(host).into_iter().map(|(_, words)| words);
                    let state = self.lab.home(host, STATE).exists().then(|| STATE.to_owned());
                    processes.chain(state).map(move |left| format!("{host}: {left} is left after destroy"))
                })
                .collect();
            if left.is_empty() || Instant::now() > end {
                return left;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Removes weights that no engine of a host reads, so that the next apply brings them again.
    pub fn forget_unused_weights(&self) {
        for host in self.lab.hosts() {
            let words: String = self.lab.processes(host).into_iter().map(|(_, words)| words + "\n").collect();
            let Ok(folders) = std::fs::read_dir(self.lab.home(host, WEIGHTS)) else { continue };
            for folder in folders.flatten() {
                if !words.contains(&*folder.file_name().to_string_lossy()) {
                    std::fs::remove_dir_all(folder.path()).expect("weights can be removed");
                }
            }
        }
    }

    /// Bytes of weights that are on their way or there, on a host.
    pub fn weight_bytes(&self, host: &str) -> u64 {
        // A file that is whole lies under its digest as well.
        let found = files(&self.lab.home(host, WEIGHTS)).into_iter().filter_map(|path| path.metadata().ok());
        found.map(|meta| (meta.ino(), meta.len())).collect::<BTreeMap<_, _>>().into_values().sum()
    }

    /// Waits until `ready` holds while a command runs; false where the command ended before.
    pub fn meanwhile(&self, running: &mut Running, mut ready: impl FnMut(&Running) -> bool) -> bool {
        let end = Instant::now() + PATIENCE;
        loop {
            if ready(running) {
                return true;
            }
            if !running.runs() {
                return false;
            }
            assert!(Instant::now() < end, "it runs for ever\n{}", running.said());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The instance that a process says it belongs to.
fn instance_of(pid: u32) -> Option<String> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mark = environment.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(b"FLOCK_INSTANCE="))?;
    String::from_utf8_lossy(mark).rsplit('/').next().map(str::to_owned)
}

/// Half-written files below a folder.
fn rests(folder: &Path) -> Vec<String> {
    let half = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // An agent's binary that was on its way is kept for minutes, in case that it still is.
        name.ends_with(".part") || name.ends_with(".new")
    };
    files(folder).into_iter().filter(half).map(|path| path.display().to_string()).collect()
}

/// All files below a folder.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.flatten().map(|entry| entry.path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// An outcome on one line, its end foremost.
pub fn one_line(outcome: &Outcome) -> String {
    let text = format!("{} {}", outcome.stdout.trim(), outcome.stderr.trim()).replace('\n', " / ");
    let from = text.char_indices().rev().nth(900).map_or(0, |(at, _)| at);
    format!("exit {:?}: {}", outcome.code, &text[from..])
}
