//! Real SSH hosts in network namespaces, each with its own stand-in GPUs, ended when the value is dropped.
//! `hosts.sh` beside this file does the part that needs root.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::{DEADLINE, Outcome, Repository, Running, kdl, signal, wait_for};

/// A stand-in GPU.
#[derive(Debug, Clone)]
pub struct Gpu {
    /// The name the driver reports.
    pub name: &'static str,
    /// Its UUID.
    pub uuid: String,
    /// Its memory.
    pub total_mib: u64,
    /// What others hold of it.
    pub used_mib: u64,
    /// CUDA compute capability.
    pub capability: &'static str,
    /// Indices of GPUs it reaches over NVLink.
    pub peers: &'static str,
}

/// A host to start.
#[derive(Debug, Clone)]
pub struct HostSpec {
    /// The node's name in the config repository.
    pub name: &'static str,
    /// Its label `tier`.
    pub tier: &'static str,
    /// Its GPUs; none means a host without the driver's library.
    pub gpus: Vec<Gpu>,
}

/// The three hosts of most tests: `big` with 2 x 80 GB, `small` with 2 x 24 GB, `plain` without a GPU.
pub fn three_hosts() -> Vec<HostSpec> {
    let gpus = |name, total_mib, capability, peers: [&'static str; 2], letter| {
        let one = |index: usize| Gpu {
            name,
            uuid: format!("GPU-{letter}000000{index}-0000-0000-0000-00000000000{index}"),
            total_mib,
            used_mib: 0,
            capability,
            peers: peers[index],
        };
        vec![one(0), one(1)]
    };
    vec![
        HostSpec {
            name: "big",
            tier: "datacenter",
            gpus: gpus("NVIDIA A100-SXM4-80GB", 81_920, "8.0", ["1", "0"], "a"),
        },
        HostSpec {
            name: "small",
            tier: "consumer",
            gpus: gpus("NVIDIA GeForce RTX 4090", 24_564, "8.9", ["", ""], "b"),
        },
        HostSpec { name: "plain", tier: "laptop", gpus: Vec::new() },
    ]
}

/// Hosts that run.
pub struct Lab {
    folder: tempfile::TempDir,
    hosts: Vec<HostSpec>,
    _turn: Turn,
}

/// Labs at a time, of all tests of a binary: a lab mostly waits, so two keep two processors busy.
const AT_A_TIME: usize = 2;

static RUNNING: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();
/// Names and addresses are chosen by looking what is there.
static STARTING: Mutex<()> = Mutex::new(());

/// Leave to run a lab.
struct Turn;

impl Turn {
    fn wait() -> Self {
        let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        let running = ENDED.wait_while(running, |running| *running >= AT_A_TIME);
        *running.unwrap_or_else(PoisonError::into_inner) += 1;
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        ENDED.notify_one();
    }
}

impl Lab {
    /// Starts hosts.
    pub fn up(hosts: &[HostSpec]) -> Self {
        let turn = Turn::wait();
        let folder = tempfile::Builder::new().prefix("flock-lab-").tempdir().expect("a temporary folder");
        let lab = Self { folder, hosts: hosts.to_vec(), _turn: turn };

        let engine = engine().parent().expect("a program lies in a folder").to_owned();
        let mut arguments: Vec<String> = vec!["up".into(), hosts.len().to_string()];
        let mut bind = |source: &Path, name: &str| {
            arguments.extend(["--bind".into(), source.display().to_string(), name.into()]);
        };
        bind(&engine, "llama.cpp");
        bind(driver(), "driver");
        for (index, host) in hosts.iter().enumerate().filter(|(_, host)| !host.gpus.is_empty()) {
            let mut environment = |entry: &str| {
                arguments.extend(["--env".into(), (index + 1).to_string(), entry.into()]);
            };
            environment("LD_LIBRARY_PATH=/opt/driver");
            environment("FLOCK_FAKE_NVML=/opt/lab/gpus");
            lab.set_gpus(host.name, &host.gpus);
        }
        let _alone = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        lab.script(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).expect(0);
        lab
    }

    /// Changes what the driver of a host says.
    pub fn set_gpus(&self, host: &str, gpus: &[Gpu]) {
        let mut text = String::new();
        for (index, gpu) in gpus.iter().enumerate() {
            let Gpu { name, uuid, total_mib, used_mib, capability, peers } = gpu;
            let _ = writeln!(
                text,
                "{name}|{uuid}|{total_mib}|{used_mib}|00000000:{:02X}:00.0|{capability}|{peers}|",
                index + 1
            );
        }
        self.write(host, "gpus", &text);
    }

    /// Writes a file that a host sees as `/opt/lab/NAME`.
    pub fn write(&self, host: &str, name: &str, text: &str) {
        let file = self.state().join(self.number(host)).join("lab").join(name);
        std::fs::create_dir_all(file.parent().expect("in a folder")).expect("the host's folder");
        std::fs::write(file, text).expect("the host's folder can be written");
    }

    /// A config repository for these hosts, with models in KDL, committed.
    pub fn repository(&self, models: &str) -> Repository {
        let mut repository = Repository::with(&[("cluster.kdl", &self.cluster(models))]);
        repository.set_agents(agents());
        repository
    }

    /// `cluster.kdl` for these hosts with models in KDL.
    pub fn cluster(&self, models: &str) -> String {
        self.cluster_without("", models)
    }

    /// The same without the block of one host.
    pub fn cluster_without(&self, left_out: &str, models: &str) -> String {
        let identity = kdl(&self.state().join("id_ed25519").display().to_string());
        let known_hosts = kdl(&self.known_hosts().display().to_string());
        let mut text = format!(
            "cluster \"lab\" {{\n    ssh user=\"root\" identity={identity} known-hosts={known_hosts}\n    \
             reserve vram=\"1GiB\" ram=\"256MiB\"\n}}\n\nengine \"llama.cpp\" {{ path \"/opt/llama.cpp/llama-server\" }}\n\n"
        );
        for host in self.hosts.iter().filter(|host| host.name != left_out) {
            let (name, tier, address) = (host.name, host.tier, self.address(host.name));
            let _ = writeln!(text, "node \"{name}\" address=\"{address}\" {{ label \"tier\" \"{tier}\" }}");
        }
        format!("{text}\n{models}")
    }

    /// Where the hosts' keys are known.
    pub fn known_hosts(&self) -> PathBuf {
        self.state().join("known_hosts")
    }

    /// A host's address.
    pub fn address(&self, host: &str) -> String {
        self.script(&["address", &self.number(host)]).expect(0).stdout.trim().to_owned()
    }

    /// An address of this machine that hosts reach, and that a server can listen on.
    pub fn server(&self) -> String {
        self.script(&["server"]).expect(0).stdout.trim().to_owned()
    }

    /// Makes a host find no way to that address; all other ways stay.
    pub fn hide_server(&self, host: &str) {
        self.script(&["hide", &self.number(host)]).expect(0);
    }

    /// Runs a command inside a host, without SSH.
    pub fn run(&self, host: &str, command: &[&str]) -> Outcome {
        self.script(&[&["run", &self.number(host)], command].concat())
    }

    /// Process ids (this machine's) and command lines of a host, the harness's own left out.
    pub fn processes(&self, host: &str) -> Vec<(u32, String)> {
        let outcome = self.script(&["processes", &self.number(host)]);
        let lines = outcome.expect(0).stdout.lines().filter_map(|line| line.split_once(' '));
        lines.filter_map(|(pid, words)| Some((pid.parse().ok()?, words.trim().to_owned()))).collect()
    }

    /// The engines' process ids on a host.
    pub fn engines(&self, host: &str) -> Vec<u32> {
        self.named(host, "/opt/llama.cpp/llama-server")
    }

    /// The node agents' process ids on a host.
    pub fn agents(&self, host: &str) -> Vec<u32> {
        self.named(host, "flock-agent")
    }

    fn named(&self, host: &str, program: &str) -> Vec<u32> {
        let first = |words: &str| words.split(' ').next().unwrap_or_default().to_owned();
        let found = self.processes(host).into_iter().filter(|(_, words)| first(words).contains(program));
        found.map(|(pid, _)| pid).collect()
    }

    /// Addresses that something listens on in a host, its sshd left out.
    pub fn ports(&self, host: &str) -> Vec<String> {
        self.script(&["ports", &self.number(host)]).expect(0).stdout.lines().map(str::to_owned).collect()
    }

    /// Fails the test unless no process and no listening port is left on any host.
    #[track_caller]
    pub fn expect_nothing_left(&self) {
        for host in self.hosts.iter().map(|host| host.name) {
            let left = || (self.processes(host), self.ports(host));
            // An agent that just answered its last request may still be on its way out.
            wait_for(&format!("{host} to be empty, left: {:?}", left()), Duration::from_secs(60), || {
                let (processes, ports) = left();
                (processes.is_empty() && ports.is_empty()).then_some(())
            });
        }
    }

    /// Ends processes at once.
    pub fn kill(&self, pids: &[u32]) {
        signal("KILL", pids);
        for pid in pids {
            wait_for("a killed process to end", Duration::from_secs(60), || gone(*pid).then_some(()));
        }
    }

    /// Takes a host's cable out.
    pub fn cut(&self, host: &str) {
        self.script(&["cut", &self.number(host)]).expect(0);
    }

    /// Puts it back.
    pub fn heal(&self, host: &str) {
        self.script(&["heal", &self.number(host)]).expect(0);
    }

    /// Makes a host's cable late by `ms` each way, lose `loss` percent of its frames, and carry at most `kbit` kilobit a
    /// second (0: as fast as it goes).
    pub fn slow(&self, host: &str, ms: u32, loss: u32, kbit: u32) {
        let words = [ms, loss, kbit].map(|number| number.to_string());
        self.script(&["slow", &self.number(host), &words[0], &words[1], &words[2]]).expect(0);
    }

    /// Makes it good again.
    pub fn fast(&self, host: &str) {
        self.script(&["fast", &self.number(host)]).expect(0);
    }

    /// Stops a host's sshd without closing anything: it takes connections and says nothing.
    pub fn freeze(&self, host: &str) {
        self.script(&["freeze", &self.number(host)]).expect(0);
    }

    /// Lets it go on.
    pub fn thaw(&self, host: &str) {
        self.script(&["thaw", &self.number(host)]).expect(0);
    }

    /// Ends everything on a host.
    pub fn halt(&self, host: &str) {
        self.script(&["halt", &self.number(host)]).expect(0);
    }

    /// Names of the hosts, in their order.
    pub fn hosts(&self) -> Vec<&'static str> {
        self.hosts.iter().map(|host| host.name).collect()
    }

    /// Gives a host another host key.
    pub fn rekey(&self, host: &str) {
        self.script(&["rekey", &self.number(host)]).expect(0);
    }

    /// A file in the home of a host's root.
    pub fn home(&self, host: &str, path: &str) -> PathBuf {
        self.state().join(self.number(host)).join("home").join(path)
    }

    /// Environment of a process, `NAME=VALUE` each.
    pub fn environment(&self, pid: u32) -> Vec<String> {
        let bytes = std::fs::read(format!("/proc/{pid}/environ")).expect("the process runs");
        bytes.split(|byte| *byte == 0).map(|entry| String::from_utf8_lossy(entry).into_owned()).collect()
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join("hosts")
    }

    fn number(&self, host: &str) -> String {
        let index = self.hosts.iter().position(|spec| spec.name == host);
        (index.unwrap_or_else(|| panic!("no host {host}")) + 1).to_string()
    }

    fn script(&self, arguments: &[&str]) -> Outcome {
        let mut command = Command::new(script());
        command.arg(self.state()).args(arguments).env("FLOCK_LAB_OWNER", std::process::id().to_string());
        Running::start(command).finish(DEADLINE)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = Command::new(script()).arg(self.state()).arg("down").stdin(Stdio::null()).status();
    }
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/hosts.sh")
}

/// Whether a process has ended; one that nobody has waited for counts as ended.
pub fn gone(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .map_or(true, |stat| stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z')))
}

/// The llama.cpp server: what `scripts/test` says, else what `scripts/engine` gets.
pub fn engine() -> &'static Path {
    static ENGINE: OnceLock<PathBuf> = OnceLock::new();
    ENGINE.get_or_init(|| got("FLOCK_TEST_LLAMA_SERVER", "server"))
}

/// The small model, likewise.
pub fn model() -> &'static Path {
    static MODEL: OnceLock<PathBuf> = OnceLock::new();
    MODEL.get_or_init(|| got("FLOCK_TEST_MODEL", "model"))
}

fn got(variable: &str, part: &str) -> PathBuf {
    if let Some(path) = std::env::var_os(variable) {
        return PathBuf::from(path);
    }
    eprintln!("scripts/engine {part}: the first time on a machine this downloads, and builds for some minutes");
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/engine"));
    command.arg(part);
    let outcome = Running::start(command).finish(Duration::from_secs(30 * 60));
    PathBuf::from(outcome.expect(0).stdout.trim())
}

/// A folder that holds the node agent under the name flock looks for.
fn agents() -> &'static Path {
    static AGENTS: OnceLock<PathBuf> = OnceLock::new();
    AGENTS.get_or_init(|| {
        if let Some(folder) = std::env::var_os("FLOCK_TEST_AGENT_DIR") {
            return PathBuf::from(folder);
        }
        let folder = scratch("agents");
        let libc = if cfg!(target_env = "musl") { "musl" } else { "gnu" };
        let agent = folder.join(format!("flock-agent-{}-{libc}", std::env::consts::ARCH));
        let new = folder.join(format!("new-{}", std::process::id()));
        std::fs::copy(env!("CARGO_BIN_EXE_flock-agent"), &new).expect("the agent was built");
        // Its debug information is most of it, and would travel to every host. Without the tool it does.
        let _ = Command::new("strip").arg(&new).stderr(Stdio::null()).status();
        std::fs::rename(&new, &agent).expect("the same folder");
        folder
    })
}

/// A folder that holds the stand-in driver library, built once per version of its source.
fn driver() -> &'static Path {
    static DRIVER: OnceLock<PathBuf> = OnceLock::new();
    DRIVER.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/nvml_stand_in.rs");
        let folder = scratch("driver");
        let library = folder.join("libnvidia-ml.so.1");
        let changed = |path: &Path| std::fs::metadata(path).and_then(|data| data.modified()).ok();
        if changed(&library) < changed(&source) {
            let mut command = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
            command.args(["--edition", "2024", "-O", "-C", "panic=abort", "--crate-type", "cdylib", "-o"]);
            command.arg(folder.join("new.so")).arg(&source);
            Running::start(command).finish(DEADLINE).expect(0);
            std::fs::rename(folder.join("new.so"), &library).expect("the same folder");
        }
        folder
    })
}

/// A folder below cargo's target folder that outlives the tests.
fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("cargo's folder can be written");
    folder
}

/// A model that serves the small real model, with more KDL inside.
pub fn small_model(name: &str, more: &str) -> String {
    let source = kdl(&format!("path:{}", model().display()));
    // One thread: several that share a processor spin while they wait for each other.
    let engine = "engine \"llama.cpp\"\n    argument \"--threads\" 1";
    format!("model {} {{\n    source {source}\n    {engine}\n    {more}\n}}\n", kdl(name))
}
