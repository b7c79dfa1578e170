//! What would go wrong on this node, before it does. Looks only: nothing is written, nothing is started but engines'
//! own `--version` and systemd's question tools.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Access, StatVfsMountFlags};
use rustix::process::{Resource, getrlimit};

use super::clock::now_ms;
use super::error::AgentError;
use super::files::read_json;
use super::layout::{Layout, expand_home};
use super::socket::{Badge, places};
use super::version::{is_older, version};
use super::{lease, probe, relay, tool, unit};
use crate::base::EngineKind;
use crate::engine::Runtime;
use crate::inventory::{Check, EngineQuery, NodeFacts, Response};

const MIB: u64 = 1 << 20;
/// Less than this cannot even hold state and logs.
const DISK_FAIL: u64 = 16 * MIB;
const DISK_WARN: u64 = 512 * MIB;
const INODES_FAIL: u64 = 64;
const INODES_WARN: u64 = 2000;
/// Sockets, weights' shards and libraries of one engine, with room.
const OPEN_FILES: u64 = 4096;
/// What PyTorch's workers share between processes.
const SHARED_MEMORY: u64 = 1 << 30;

/// Answers `Doctor`.
pub fn look(
    layout: &Layout,
    queries: &[EngineQuery],
    weights_path: Option<&str>,
    ports: (u16, u16),
) -> Result<Response, AgentError> {
    let answer = probe::probe(layout, queries, weights_path, &[], relay::is_supervising(layout))?;
    let Response::Facts { node, .. } = answer else {
        return Err(AgentError::Other("the probe answered something else than facts".into()));
    };
    let weights = weights_path.map_or_else(|| layout.default_weights(), |path| expand_home(path, &layout.home));
    let mut checks = vec![processor(&node), agent(layout), held(layout)?];
    checks.extend([writable("home", &layout.home), disk("home_disk", &layout.home), kind(&layout.home)]);
    if weights != layout.default_weights() {
        checks.push(writable("weights", &weights));
    }
    checks.push(disk("weights_disk", &weights));
    checks.extend([sockets(layout), driver(&node), logout(layout), reboot(layout), ephemeral(&node, ports)]);
    checks.extend([taken(&node, ports), open_files(), locked_memory()]);
    checks.extend([shared_memory(queries), memory_limit(&node)]);
    checks.extend(engines(&node, queries));
    checks.push(containers(queries));
    Ok(Response::Checks { checks, now_unix_ms: now_ms() })
}

fn processor(node: &NodeFacts) -> Check {
    let word = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".to_owned());
    let text = format!("{}, {}, {}", word(&node.arch), word(&node.os.libc), word(&node.os.distribution));
    Check::ok("platform", text)
}

fn agent(layout: &Layout) -> Check {
    let own = version();
    let badge: Option<Badge> = read_json(&layout.keeper()).ok().flatten();
    let Some(badge) = badge.filter(|_| relay::is_supervising(layout)) else {
        return match fs::symlink_metadata(layout.desired()) {
            Ok(_) => Check::warn(
                "agent",
                format!("flock-agent {own}; nothing supervises the instances here"),
                "run `flock apply`: it starts the supervisor again",
            ),
            Err(_) => Check::ok("agent", format!("flock-agent {own}; nothing to supervise yet")),
        };
    };
    let text = format!("flock-agent {own}; supervised by process {} of version {}", badge.pid, badge.version);
    if is_older(own, &badge.version) {
        let remedy = format!("use a flock of version {} or later for this cluster", badge.version);
        return Check::warn("agent", text, remedy);
    }
    Check::ok("agent", text)
}

fn held(layout: &Layout) -> Result<Check, AgentError> {
    Ok(match lease::current(layout, now_ms())? {
        None => Check::ok("lease", "nobody applies"),
        Some(lease) => Check::ok("lease", format!("{} has been applying since {}", lease.holder, lease.since)),
    })
}

/// The path itself or the nearest folder above it that exists.
fn existing(path: &Path) -> &Path {
    path.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"))
}

fn writable(id: &str, path: &Path) -> Check {
    let (there, shown) = (existing(path), path.display());
    let read_only = rustix::fs::statvfs(there).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::RDONLY));
    if read_only {
        let remedy = "state, keys and logs lie below the home, weights where `weights path=\"…\"` says: have it mounted \
                      writable";
        return Check::fail(id, format!("{shown} is on a file system that is mounted read-only"), remedy);
    }
    if rustix::fs::access(there, Access::WRITE_OK | Access::EXEC_OK).is_err() {
        let remedy = format!("give the login the right to write in {}", there.display());
        return Check::fail(id, format!("{shown} is not writable for this login"), remedy);
    }
    Check::ok(id, format!("{shown} is writable"))
}

fn disk(id: &str, path: &Path) -> Check {
    let shown = path.display();
    let Ok(found) = rustix::fs::statvfs(existing(path)) else {
        return Check::warn(id, format!("{shown} does not tell its space"), "look at `df` there");
    };
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    // File systems without a table of inodes say that they have none at all.
    let inodes = (found.f_files > 0).then_some(found.f_favail);
    let counted = inodes.map_or(String::new(), |inodes| format!(", {inodes} inodes"));
    let text = format!("{shown} has {} MiB free{counted}", free / MIB);
    let remedy = format!("make room on the file system of {shown}");
    if free < DISK_FAIL || inodes.is_some_and(|inodes| inodes < INODES_FAIL) {
        Check::fail(id, text, remedy)
    } else if free < DISK_WARN || inodes.is_some_and(|inodes| inodes < INODES_WARN) {
        Check::warn(id, text, remedy)
    } else {
        Check::ok(id, text)
    }
}

/// File systems that several hosts may have mounted, and those that forget, by the magic of statfs(2).
const KINDS: &[(u64, &str, bool)] = &[
    (0x6969, "NFS", true),
    (0xff53_4d42, "CIFS", true),
    (0xfe53_4d42, "SMB", true),
    (0x0bd0_0bd0, "Lustre", true),
    (0x4750_4653, "GPFS", true),
    (0x1983_0326, "BeeGFS", true),
    (0x00c3_6400, "Ceph", true),
    (0x5346_414f, "AFS", true),
    (0x0102_1997, "9P", true),
    (0x0102_1994, "tmpfs", false),
];

fn kind(home: &Path) -> Check {
    // Magic numbers have 32 bits, whatever the width of the field.
    let magic = rustix::fs::statfs(existing(home)).map(|found| (found.f_type as u64) & 0xffff_ffff).unwrap_or(0);
    // The program itself: a file that is surely there, locked for a moment and only shared.
    let locks = relay::own_file()
        .and_then(|file| File::open(file).ok())
        .map(|file| rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockShared));
    if let Some(Err(error)) = locks {
        let text = format!("locks do not work on the home's file system: {error}");
        return Check::fail("home_kind", text, "mount it with locking (NFS: without `nolock`, with its lock service)");
    }
    match KINDS.iter().find(|(number, ..)| *number == magic) {
        Some((_, name, true)) => Check::ok(
            "home_kind",
            format!("the home is on {name}, perhaps shared: locks work, and state is kept apart by cluster and node"),
        ),
        Some((_, name, false)) => Check::warn(
            "home_kind",
            format!("the home is on {name}: a restart of the node loses weights and state"),
            "give the login a home on a disk, or weights a `weights path=\"…\"`",
        ),
        None => Check::ok("home_kind", "the home is on a local file system, locks work"),
    }
}

fn sockets(layout: &Layout) -> Check {
    let uid = rustix::process::geteuid().as_raw();
    for place in places(layout) {
        let folder = place.parent().unwrap_or(Path::new("/"));
        match fs::symlink_metadata(folder) {
            Ok(found) if !found.is_dir() || found.uid() != uid || found.mode() & 0o077 != 0 => {
                let text =
                    format!("{} is taken by another user or open to others; another place is used", folder.display());
                return Check::warn("sockets", text, "have it removed: somebody may want to listen in");
            }
            _ if place.as_os_str().len() < 108 => {
                return Check::ok("sockets", format!("the supervisor listens in {}", folder.display()));
            }
            _ => {}
        }
    }
    Check::fail("sockets", "there is no place for the supervisor's socket", "let the login write to /tmp")
}

fn driver(node: &NodeFacts) -> Check {
    if let Some(problem) = node.unknown.get("accelerators") {
        let remedy = if problem.contains("mismatch") {
            "restart the node: the driver's library was updated under the loaded kernel module. What runs goes on"
        } else {
            "see what `nvidia-smi` says there; a node without GPUs needs no driver"
        };
        return Check::fail("driver", problem.clone(), remedy);
    }
    let ill: Vec<&str> = node.accelerators.iter().filter(|one| !one.healthy).map(|one| one.uuid.as_str()).collect();
    let versions: Vec<&str> = node.accelerators.iter().filter_map(|one| one.driver.as_deref()).collect();
    let driver = versions.first().map_or(String::new(), |version| format!(", driver {version}"));
    let text = format!("{} accelerators{driver}", node.accelerators.len());
    if ill.is_empty() {
        return Check::ok("driver", if node.accelerators.is_empty() { "no accelerators".to_owned() } else { text });
    }
    Check::fail("driver", format!("{text}; ill: {}", ill.join(", ")), "look at `dmesg | grep -i xid` there")
}

/// `KillUserProcesses` as logind reads it: later files win, and those of `/etc` come last.
fn ends_with_session() -> bool {
    let mut files = Vec::new();
    for folder in ["/usr/lib/systemd/logind.conf.d", "/run/systemd/logind.conf.d", "/etc/systemd/logind.conf.d"] {
        let mut found: Vec<_> =
            fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        found.sort();
        files.extend(found);
    }
    // The main file is read before all of them.
    files.insert(0, "/etc/systemd/logind.conf".into());
    let texts = files.iter().filter_map(|file| fs::read_to_string(file).ok());
    kills_user_processes(texts)
}

fn kills_user_processes(texts: impl Iterator<Item = String>) -> bool {
    let mut kills = false;
    for text in texts {
        for line in text.lines() {
            if let Some(value) = line.trim().strip_prefix("KillUserProcesses=") {
                kills = matches!(value.trim(), "yes" | "true" | "1" | "on");
            }
        }
    }
    kills
}

fn logout(layout: &Layout) -> Check {
    let lingers = unit::lingers() == Some(true);
    if lingers && unit::is_installed(layout) {
        return Check::ok("logout", format!("engines live on: the unit {} keeps them", unit::name(layout)));
    }
    let in_session = fs::read_to_string("/proc/self/cgroup").is_ok_and(|text| text.contains("/session-"));
    // root is excluded unless the file says otherwise.
    let root = rustix::process::geteuid().is_root();
    if ends_with_session() && !root && (in_session || unit::lingers().is_some()) {
        return Check::warn(
            "logout",
            "KillUserProcesses=yes: what is started from a session ends with it, engines too",
            linger_remedy(),
        );
    }
    Check::ok("logout", "engines live on: they are detached, and nothing ends a user's processes at logout")
}

fn linger_remedy() -> String {
    let user = super::host::user_name().unwrap_or_else(|| "LOGIN".to_owned());
    format!("let the login linger (`loginctl enable-linger {user}`), then run `flock apply`")
}

fn reboot(layout: &Layout) -> Check {
    let lost = "after a restart of the node nothing runs until the next `flock apply`";
    match (unit::lingers(), unit::is_installed(layout)) {
        (Some(true), true) => Check::ok("reboot", "the unit starts what is desired"),
        (Some(true), false) if unit::manager().is_some() => {
            Check::ok("reboot", "the login lingers: the next `flock apply` that changes something here installs a unit")
        }
        (Some(true), false) => {
            Check::warn("reboot", format!("{lost}: the user manager does not answer"), "see `systemctl --user status`")
        }
        (Some(false), _) => Check::warn("reboot", format!("{lost}: the login does not linger"), linger_remedy()),
        (None, _) => {
            Check::warn("reboot", format!("{lost}: the node has no systemd"), "run `flock apply` after restarts")
        }
    }
}

fn ephemeral(node: &NodeFacts, (first, last): (u16, u16)) -> Check {
    match node.ip_local_port_range {
        None => Check::ok("port_range", "the kernel does not tell its ephemeral ports"),
        Some([from, to]) if first <= to && from <= last => Check::warn(
            "port_range",
            format!(
                "ports {first}-{last} overlap the ephemeral ones ({from}-{to}): any program may take one at any time"
            ),
            "choose `ports \"…\"` in the node's block outside of them",
        ),
        Some([from, to]) => Check::ok("port_range", format!("{first}-{last} lies outside the ephemeral {from}-{to}")),
    }
}

fn taken(node: &NodeFacts, (first, last): (u16, u16)) -> Check {
    let ours = |port: &u16| node.instances.iter().any(|instance| instance.port == *port);
    let inside = |port: &&u16| (first..=last).contains(*port) && !ours(port);
    let taken: Vec<String> = node.ports_in_use.iter().filter(inside).map(u16::to_string).collect();
    let room = usize::from(last.saturating_sub(first)) + 1;
    match taken.len() {
        0 => Check::ok("ports", format!("{room} ports, none taken by others")),
        count if count >= room => {
            Check::fail("ports", "every port is taken by others", "choose other `ports \"…\"` in the node's block")
        }
        count => {
            let named: Vec<&str> = taken.iter().take(8).map(String::as_str).collect();
            let more = if count > named.len() { ", …" } else { "" };
            Check::ok(
                "ports",
                format!("{count} of {room} taken by others, and passed over: {}{more}", named.join(", ")),
            )
        }
    }
}

fn open_files() -> Check {
    match getrlimit(Resource::Nofile).current {
        Some(most) if most < OPEN_FILES => Check::warn(
            "open_files",
            format!("a process may open {most} files"),
            format!("raise `nofile` to {OPEN_FILES} or more in /etc/security/limits.conf"),
        ),
        Some(most) => Check::ok("open_files", format!("a process may open {most} files")),
        None => Check::ok("open_files", "a process may open any number of files"),
    }
}

fn locked_memory() -> Check {
    let text =
        getrlimit(Resource::Memlock).current.map_or("any amount".to_owned(), |most| format!("{} MiB", most / MIB));
    Check::ok("locked_memory", format!("a process may lock {text} of memory; `--mlock` needs the size of the weights"))
}

fn shared_memory(queries: &[EngineQuery]) -> Check {
    let python = queries.iter().any(|query| query.kind != EngineKind::LlamaCpp && query.image.is_none());
    match rustix::fs::statvfs("/dev/shm") {
        Err(error) => Check::warn("shared_memory", format!("/dev/shm: {error}"), "mount a tmpfs at /dev/shm"),
        Ok(found) => {
            let bytes = found.f_blocks.saturating_mul(found.f_frsize);
            let text = format!("/dev/shm has {} MiB", bytes / MIB);
            if python && bytes < SHARED_MEMORY {
                let remedy = "vLLM and SGLang share tensors there: remount it with 1 GiB or more";
                return Check::warn("shared_memory", text, remedy);
            }
            Check::ok("shared_memory", text)
        }
    }
}

fn memory_limit(node: &NodeFacts) -> Check {
    let unified = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let version = if unified { "cgroup v2" } else { "no cgroup v2" };
    match (super::cgroup::memory(), node.ram.total_bytes) {
        (Some(limit), _) => Check::warn(
            "memory_limit",
            format!("{version}; the login may use {} MiB of memory, whatever the node has", limit.max_bytes / MIB),
            "raise MemoryMax of its slice, if models are to use more host memory",
        ),
        (None, Some(total)) => Check::ok("memory_limit", format!("{version}; all {} MiB may be used", total / MIB)),
        (None, None) => Check::ok("memory_limit", version),
    }
}

fn engines(node: &NodeFacts, queries: &[EngineQuery]) -> Vec<Check> {
    let found = node.engines.as_deref().unwrap_or_default();
    let check = |query: &EngineQuery| {
        let kind = query.kind;
        let id = format!("engine.{}", kind.word());
        let works = found.iter().find(|one| one.kind == kind && one.problem.is_none());
        let broken = found.iter().find(|one| one.kind == kind && one.problem.is_some());
        match (works, broken) {
            (Some(one), _) => {
                let version = one.version.as_deref().unwrap_or("of an unknown version");
                Check::ok(&id, format!("{} {version}", one.path))
            }
            (None, Some(one)) => {
                let problem = one.problem.as_deref().unwrap_or_default();
                let remedy = match &query.image {
                    Some(_) => "see the check `containers`".to_owned(),
                    None => format!("run `{} --version` there and see", one.path),
                };
                Check::fail(&id, format!("{}: {problem}", one.path), remedy)
            }
            (None, None) => Check::warn(
                &id,
                "is not there",
                format!("install it, or say where it lies: `engine \"{}\" {{ path \"…\" }}`", kind.word()),
            ),
        }
    };
    queries.iter().map(check).collect()
}

fn containers(queries: &[EngineQuery]) -> Check {
    let names = Runtime::PROGRAMS.iter().map(|(name, _)| *name);
    let listed: Vec<&str> = names.filter(|name| tool::on_path(name).is_some()).collect();
    let Some(query) = queries.iter().find(|query| query.image.is_some()) else {
        let text = if listed.is_empty() { "no container tool".to_owned() } else { listed.join(", ") };
        return Check::ok("containers", format!("{text}; no engine asks for one"));
    };
    match super::engines::runtime(&query.modules) {
        Ok(program) => Check::ok("containers", program.display().to_string()),
        Err(problem) => {
            let remedy = "install apptainer; or start docker's daemon and put the login into the group `docker`";
            Check::fail("containers", problem, remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Health;

    #[test]
    fn the_last_word_on_user_processes_counts() {
        let kills = |texts: &[&str]| kills_user_processes(texts.iter().map(|text| (*text).to_owned()));
        assert!(!kills(&["#KillUserProcesses=yes\n"]) && kills(&["[Login]\nKillUserProcesses=yes\n"]));
        assert!(!kills(&["KillUserProcesses=yes", "KillUserProcesses=no"]) && !kills(&[]));
    }

    #[test]
    fn ports_are_compared_with_the_ephemeral_ones_and_those_in_use() {
        let node = NodeFacts {
            ip_local_port_range: Some([32768, 60999]),
            ports_in_use: vec![20001, 22],
            ..NodeFacts::default()
        };
        assert_eq!(ephemeral(&node, (20000, 20999)).health, Health::Ok);
        assert_eq!(ephemeral(&node, (30000, 40000)).health, Health::Warn);
        assert!(taken(&node, (20000, 20999)).text.contains("20001"));
        assert_eq!(taken(&node, (20001, 20001)).health, Health::Fail);
    }

    #[test]
    fn a_full_and_a_missing_disk_are_told_apart_from_a_good_one() {
        assert_eq!(writable("home", Path::new("/proc/self/nothing")).health, Health::Fail);
        assert_ne!(disk("home", &std::env::temp_dir()).id, "");
    }
}
