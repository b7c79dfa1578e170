//! `/proc` as data: parsers over text, and a snapshot of this user's processes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::layout::{Layout, MARK, MARK_STATE, check_name};

/// A process that cannot be confused with a later one of the same number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessId {
    /// Its number.
    pub pid: u32,
    /// Clock ticks between boot and its start.
    pub start_ticks: u64,
    /// The kernel's id of this boot.
    pub boot_id: String,
}

/// One line of the process table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// `R`, `S`, `D`, `Z`, …
    pub state: char,
    /// Its parent.
    pub parent: u32,
    /// Its process group.
    pub group: u32,
    /// Clock ticks between boot and its start.
    pub start_ticks: u64,
    /// Whose it says it is; only read in a snapshot.
    pub owner: Owner,
}

impl Process {
    /// Whether it still runs: a zombie holds nothing, and PID 1 of a container may leave it for long.
    pub fn is_alive(&self) -> bool {
        !matches!(self.state, 'Z' | 'X' | 'x')
    }
}

/// What a process's environment says about whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// An instance's: the values of both marks.
    Marked {
        /// `CLUSTER/NODE/INSTANCE`.
        mark: String,
        /// The agent's state folder.
        state: String,
    },
    /// Nobody's that we know.
    Foreign,
    /// Nothing: the process has written a title over its environment, or it may not be read.
    Lost,
}

/// Reads `/proc/PID/stat`. The name in parentheses may hold anything, parentheses too.
pub fn parse_stat(text: &str) -> Option<Process> {
    let pid = text.split(' ').next()?.parse().ok()?;
    let rest = text.get(text.rfind(')')? + 1..)?.trim_start();
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(Process {
        pid,
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        start_ticks: fields.get(19)?.parse().ok()?,
        owner: Owner::Lost,
    })
}

/// A `NAME:  value kB` line of `/proc/meminfo` or `/proc/PID/status`, in bytes.
pub fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_ascii_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Whose process an environment belongs to.
pub fn owner_of(environ: &[u8]) -> Owner {
    let entries: Vec<&[u8]> = environ.split(|byte| *byte == 0).collect();
    let value = |name: &str| {
        let found = entries.iter().find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
        Some(String::from_utf8_lossy(found).into_owned())
    };
    match (value(MARK), value(MARK_STATE)) {
        (Some(mark), Some(state)) => Owner::Marked { mark, state },
        _ if entries.iter().any(|entry| entry.contains(&b'=')) => Owner::Foreign,
        _ => Owner::Lost,
    }
}

/// One process now.
pub fn process(pid: u32) -> Option<Process> {
    parse_stat(&String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/stat")).ok()?))
}

/// Anonymous memory of a process in bytes.
pub fn anonymous_bytes(pid: u32) -> Option<u64> {
    kilobytes(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?, "RssAnon")
}

/// This boot's id; empty where the kernel does not tell, which then matches nothing but itself.
pub fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|text| text.trim().to_owned()).unwrap_or_default()
}

/// Reads `stat` or `environ` of a process into a buffer that is used again: the kernel does not tell their sizes, and
/// asking for them, or reading in small pieces, is most of the cost of a table of many processes. Both fill the
/// buffer or end.
fn read_into<'a>(path: &str, buffer: &'a mut Vec<u8>) -> Option<&'a [u8]> {
    let mut file = File::open(path).ok()?;
    let mut filled = 0;
    loop {
        if filled == buffer.len() {
            buffer.resize((2 * filled).max(16 << 10), 0);
        }
        match file.read(&mut buffer[filled..]) {
            Ok(read) if filled + read < buffer.len() => return Some(&buffer[..filled + read]),
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

/// How long a process is looked at anew: between the fork and the exec of an engine, it has the agent's environment.
const SETTLES: Duration = Duration::from_secs(5);

/// Processes that are nobody's, by number and start, with the time that this was first seen. Marks come with an exec
/// by the agent, soon after the start, so that who is foreign for long stays it; most processes of a node are.
#[derive(Default)]
struct Strangers(BTreeMap<(u32, u64), Instant>);

static STRANGERS: Mutex<Strangers> = Mutex::new(Strangers(BTreeMap::new()));

impl Strangers {
    /// Whose a process is: `read` is asked unless it has been foreign for long.
    fn owner(&mut self, id: (u32, u64), now: Instant, read: impl FnOnce() -> Owner) -> Owner {
        if self.0.get(&id).is_some_and(|since| now.duration_since(*since) >= 2 * SETTLES) {
            return Owner::Foreign;
        }
        let owner = read();
        if owner == Owner::Foreign {
            let since = self.0.entry(id).or_insert(now);
            // Looked at once more after it has settled: from then on it is known.
            if now.duration_since(*since) >= SETTLES {
                *since = now.checked_sub(2 * SETTLES).unwrap_or(*since);
            }
        } else {
            self.0.remove(&id);
        }
        owner
    }

    fn has_settled(&self, id: (u32, u64), now: Instant) -> bool {
        self.0.get(&id).is_some_and(|since| now.duration_since(*since) >= 2 * SETTLES)
    }
}

/// When this boot was, Unix milliseconds; 0 where the kernel does not tell.
pub fn booted_ms() -> u64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let seconds = stat.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<u64>().ok());
    seconds.unwrap_or(0).saturating_mul(1000)
}

/// Set in the flags of a thread of the kernel's own.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// How long a look passes over what it has seen to be no instance's.
const PASSED_OVER: Duration = Duration::from_secs(10);

/// A process that a look need not read again: a thread of the kernel, or nobody's that has settled.
struct Seen {
    /// Of its folder in `/proc`, which the kernel makes anew for every process.
    inode: u64,
    process: Process,
    read: Instant,
}

static PASSED: Mutex<BTreeMap<u32, Seen>> = Mutex::new(BTreeMap::new());

/// All processes of this user, this one left out.
pub fn snapshot() -> Vec<Process> {
    take(&mut BTreeMap::new(), Instant::now())
}

/// The same for whoever only tells of it: what was seen within the last ten seconds to be no instance's is told as it
/// was then, its parent and group too. Reading every process of a busy node once a second is most of what a probe costs.
pub fn look() -> Vec<Process> {
    let mut passed = PASSED.lock().unwrap_or_else(PoisonError::into_inner);
    take(&mut passed, Instant::now())
}

fn take(passed: &mut BTreeMap<u32, Seen>, now: Instant) -> Vec<Process> {
    let uid = rustix::process::geteuid().as_raw();
    let own = std::process::id();
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let mut buffer = Vec::new();
    let mut strangers = STRANGERS.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut found, mut still) = (Vec::new(), BTreeMap::new());
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if pid == own || pid == 1 {
            continue;
        }
        let inode = entry.ino();
        if let Some(seen) = passed.remove(&pid)
            && seen.inode == inode
            && now.duration_since(seen.read) < PASSED_OVER
        {
            found.push(seen.process.clone());
            still.insert(pid, seen);
            continue;
        }
        if uid != 0 && fs::metadata(entry.path()).is_ok_and(|entry| entry.uid() != uid) {
            continue;
        }
        let Some((process, lasts)) = read(pid, &mut strangers, now, &mut buffer) else { continue };
        if lasts {
            still.insert(pid, Seen { inode, process: process.clone(), read: now });
        }
        found.push(process);
    }
    *passed = still;
    found.sort_by_key(|process| process.pid);
    let alive: BTreeSet<(u32, u64)> = found.iter().map(|process| (process.pid, process.start_ticks)).collect();
    strangers.0.retain(|id, _| alive.contains(id));
    found
}

/// One process of the table, and whether it is known to stay nobody's.
fn read(pid: u32, strangers: &mut Strangers, now: Instant, buffer: &mut Vec<u8>) -> Option<(Process, bool)> {
    let stat = String::from_utf8_lossy(read_into(&format!("/proc/{pid}/stat"), buffer)?).into_owned();
    let process = parse_stat(&stat)?;
    // Neither a thread of the kernel nor what is dead has an environment.
    let kernel = is_kernel_thread(&stat);
    if kernel || !process.is_alive() {
        return Some((process, kernel));
    }
    let id = (pid, process.start_ticks);
    let environ = || read_into(&format!("/proc/{pid}/environ"), buffer).map_or(Owner::Lost, owner_of);
    let owner = strangers.owner(id, now, environ);
    let lasts = strangers.has_settled(id, now);
    Some((Process { owner, ..process }, lasts))
}

fn is_kernel_thread(stat: &str) -> bool {
    let rest = stat.rfind(')').and_then(|end| stat.get(end + 1..)).unwrap_or_default();
    let flags = rest.split_ascii_whitespace().nth(6).and_then(|flags| flags.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & KERNEL_THREAD != 0)
}

/// Instances of this cluster and node that a living process says it belongs to.
pub fn marked(snapshot: &[Process], layout: &Layout) -> BTreeSet<String> {
    let (prefix, folder) = (layout.mark(""), layout.state.display().to_string());
    let instance = |process: &Process| match &process.owner {
        Owner::Marked { mark, state } if process.is_alive() && *state == folder => {
            mark.strip_prefix(&prefix).filter(|id| check_name("instance", id).is_ok()).map(str::to_owned)
        }
        _ => None,
    };
    snapshot.iter().filter_map(instance).collect()
}

/// The members of an instance in a snapshot: every living process that carries its mark or is already known
/// to belong to it (`known`, by number and start), their descendants, and the rest of the process group
/// `leader` as long as one of the former is in it. A dead leader that was not collected yet still speaks for
/// its group.
pub fn members(
    snapshot: &[Process],
    boot_id: &str,
    known: &BTreeSet<ProcessId>,
    leader: Option<u32>,
    marks: (&str, &str),
) -> Vec<Process> {
    let is_member = |process: &Process| match &process.owner {
        Owner::Marked { mark, state } => (mark.as_str(), state.as_str()) == marks,
        Owner::Lost => known.contains(&ProcessId {
            pid: process.pid,
            start_ticks: process.start_ticks,
            boot_id: boot_id.to_owned(),
        }),
        Owner::Foreign => false,
    };
    let mut inside: Vec<bool> = snapshot.iter().map(is_member).collect();
    let in_group = |process: &Process| leader == Some(process.group);
    if snapshot.iter().zip(&inside).any(|(process, inside)| *inside && in_group(process)) {
        for (process, inside) in snapshot.iter().zip(inside.iter_mut()) {
            *inside |= in_group(process);
        }
    }
    loop {
        let parents: BTreeSet<u32> =
            snapshot.iter().zip(&inside).filter(|(_, inside)| **inside).map(|(process, _)| process.pid).collect();
        let mut grew = false;
        for (process, inside) in snapshot.iter().zip(inside.iter_mut()) {
            if !*inside && parents.contains(&process.parent) {
                *inside = true;
                grew = true;
            }
        }
        if !grew {
            break;
        }
    }
    let chosen = snapshot.iter().zip(inside).filter(|(process, inside)| *inside && process.is_alive());
    chosen.map(|(process, _)| process.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKS: (&str, &str) = ("lab/ada/ab", "/home/u/s");

    fn process_of(pid: u32, parent: u32, group: u32, owner: Owner) -> Process {
        Process { pid, state: 'S', parent, group, start_ticks: u64::from(pid) * 10, owner }
    }

    fn marked() -> Owner {
        Owner::Marked { mark: MARKS.0.into(), state: MARKS.1.into() }
    }

    #[test]
    fn stat_is_read_whatever_the_name() {
        let text = "42 (a) b (c)) S 1 40 40 0 -1 4194560 1 0 0 0 3 2 0 0 20 0 9 0 123456 1000 50 18446744073709551615";
        let found = parse_stat(text).expect("a stat line");
        assert_eq!(found, Process { start_ticks: 123_456, ..process_of(42, 1, 40, Owner::Lost) });
        assert!(parse_stat("42 (x").is_none());
        assert!(parse_stat("").is_none());
        let own = process(std::process::id()).expect("this process");
        assert!(own.is_alive() && own.start_ticks > 0);
    }

    #[test]
    fn a_process_is_known_as_foreign_only_after_it_has_settled() {
        let (mut strangers, start) = (Strangers::default(), Instant::now());
        let mut look = |seconds, found: Owner| strangers.owner((7, 70), start + Duration::from_secs(seconds), || found);
        // The child of a keeper, before and after its exec.
        assert_eq!(look(0, Owner::Foreign), Owner::Foreign);
        assert_eq!(look(1, marked()), marked());
        assert_eq!(look(20, marked()), marked());
        // A stranger is read again for a while, then not any more.
        assert_eq!(look(21, Owner::Foreign), Owner::Foreign);
        assert_eq!(look(25, marked()), marked());
        assert_eq!(look(26, Owner::Foreign), Owner::Foreign);
        assert_eq!(look(31, Owner::Foreign), Owner::Foreign);
        assert_eq!(look(32, marked()), Owner::Foreign);
        // Another process of the same number is another one.
        assert_eq!(strangers.owner((7, 71), start + Duration::from_secs(33), marked), marked());
    }

    #[test]
    fn a_look_passes_over_what_settled_until_it_is_old() {
        let kernel = "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0";
        assert!(is_kernel_thread(kernel) && !is_kernel_thread(&kernel.replace("2129984", "4194560")));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("started");
        let (pid, start) = (child.id(), Instant::now());
        let state = |passed: &mut BTreeMap<u32, Seen>, seconds| {
            let table = take(passed, start + Duration::from_secs(seconds));
            table.into_iter().find(|process| process.pid == pid).map(|process| (process.owner, process.state == 'Z'))
        };
        let mut passed = BTreeMap::new();
        // Young: read at every look.
        for seconds in [0, 6] {
            assert_eq!(state(&mut passed, seconds), Some((Owner::Foreign, false)));
            assert_eq!(passed.contains_key(&pid), seconds == 6);
        }
        child.kill().expect("killed");
        let until = Instant::now() + Duration::from_secs(20);
        while process(pid).is_some_and(|process| process.is_alive()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(state(&mut passed, 12), Some((Owner::Foreign, false)));
        assert_eq!(state(&mut passed, 17), Some((Owner::Lost, true)));
        assert!(!passed.contains_key(&pid));
        // Another process of the same number has another folder.
        let seen = Seen { inode: 1, process: process_of(pid, 1, 1, Owner::Foreign), read: start };
        passed.insert(pid, seen);
        assert_eq!(state(&mut passed, 1), Some((Owner::Lost, true)));
        child.wait().expect("collected");
        assert_eq!(state(&mut passed, 2), None);
    }

    #[test]
    fn a_file_longer_than_the_buffer_is_read_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("long");
        let content: Vec<u8> = (0..100_000_u32).map(|n| (n % 251) as u8).collect();
        fs::write(&path, &content).expect("written");
        let mut buffer = Vec::new();
        let path = path.to_str().expect("UTF-8");
        assert_eq!(read_into(path, &mut buffer), Some(content.as_slice()));
        // What an earlier, longer file left behind is not taken for content.
        fs::write(path, b"short").expect("written");
        assert_eq!(read_into(path, &mut buffer), Some(&b"short"[..]));
        assert_eq!(read_into("/nowhere", &mut buffer), None);
    }

    #[test]
    fn kilobytes_are_found_by_whole_name() {
        let text = "MemTotal:       127604000 kB\nMemFree: 7 kB\nMemAvailable:   62914560 kB\n";
        assert_eq!(kilobytes(text, "MemAvailable"), Some(60 << 30));
        assert_eq!(kilobytes(text, "MemTotal"), Some(127_604_000 * 1024));
        assert_eq!(kilobytes(text, "Mem"), None);
    }

    #[test]
    fn marks_are_whole_values() {
        let environ = b"PATH=/bin\0FLOCK_INSTANCE=lab/ada/ab\0FLOCK_INSTANCE_STATE=/home/u/s\0";
        assert_eq!(owner_of(environ), marked());
        assert_eq!(owner_of(b"PATH=/bin\0XFLOCK_INSTANCE=lab/ada/ab\0"), Owner::Foreign);
        assert_eq!(owner_of(b"VLLM::EngineCore\0\0\0"), Owner::Lost);
        assert_eq!(owner_of(b""), Owner::Lost);
    }

    #[test]
    fn instances_are_found_by_marks_alone() {
        let layout = Layout::new(std::path::Path::new("/home/u"), "lab", "ada").expect("good names");
        let folder = layout.state.display().to_string();
        let of = |pid, mark: &str, state: &str| {
            process_of(pid, 1, pid, Owner::Marked { mark: mark.into(), state: state.into() })
        };
        let table = vec![
            of(10, "lab/ada/ab", &folder),
            of(11, "lab/ada/ab", &folder),
            Process { state: 'Z', ..of(12, "lab/ada/dead", &folder) },
            of(13, "lab/ada/other", "/home/v/.local/share/flock/lab/ada"),
            of(14, "lab/ada/../x", &folder),
            of(15, "lab/bob/cd", &folder),
            process_of(16, 1, 16, Owner::Lost),
        ];
        assert_eq!(super::marked(&table, &layout), BTreeSet::from(["ab".to_owned()]));
    }

    #[test]
    fn members_are_marks_known_processes_their_group_and_descendants() {
        let table = vec![
            process_of(10, 1, 10, marked()),
            process_of(11, 10, 10, Owner::Lost),
            process_of(12, 11, 12, Owner::Lost),
            process_of(13, 1, 13, marked()),
            process_of(20, 1, 20, Owner::Foreign),
            process_of(21, 1, 21, Owner::Marked { mark: MARKS.0.into(), state: "/home/other".into() }),
        ];
        let pids = |table: &[Process], known: &BTreeSet<ProcessId>| {
            let found = members(table, "b", known, Some(10), MARKS);
            found.iter().map(|process| process.pid).collect::<Vec<_>>()
        };
        let none = BTreeSet::new();
        assert_eq!(pids(&table, &none), [10, 11, 12, 13]);
        // The leader died and lost its environment, but nobody collected it yet.
        let mut dead = table.clone();
        dead[0] = Process { state: 'Z', ..process_of(10, 1, 10, Owner::Lost) };
        dead.remove(3);
        let id = |pid, start_ticks, boot: &str| BTreeSet::from([ProcessId { pid, start_ticks, boot_id: boot.into() }]);
        assert_eq!(pids(&dead, &id(10, 100, "b")), [11, 12]);
        // Without it, the group is found through a member that was seen before, never through its number alone.
        let orphans = &dead[1..];
        assert!(pids(orphans, &none).is_empty());
        assert_eq!(pids(orphans, &id(11, 110, "b")), [11, 12]);
        assert!(pids(orphans, &id(11, 109, "b")).is_empty());
        assert!(pids(orphans, &id(11, 110, "a")).is_empty());
    }
}
