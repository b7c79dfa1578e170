//! Facts of the host: operating system, processor, memory, home.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::cgroup;
use super::procfs::kilobytes;
use crate::base::{passwd_home, passwd_name};
use crate::inventory::{Cpu, Os, Ram, Unknown};

/// The user's home: `HOME`, else the password file's.
pub fn home() -> Option<PathBuf> {
    let usable = |path: PathBuf| path.is_absolute().then_some(path);
    if let Some(home) = std::env::var_os("HOME").filter(|home| !home.is_empty()) {
        return usable(PathBuf::from(home));
    }
    let passwd = fs::read_to_string("/etc/passwd").ok()?;
    usable(PathBuf::from(passwd_home(&passwd, rustix::process::getuid().as_raw())?))
}

/// The user's login name: the password file's, else what the session says, for names that a directory service knows.
pub fn user_name() -> Option<String> {
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let known = passwd_name(&passwd, rustix::process::geteuid().as_raw()).map(str::to_owned);
    known.or_else(|| std::env::var("LOGNAME").ok()).or_else(|| std::env::var("USER").ok())
}

/// The operating system.
pub fn os(unknown: &mut Unknown) -> Os {
    let uname = rustix::system::uname();
    let release = fs::read_to_string("/etc/os-release").or_else(|_| fs::read_to_string("/usr/lib/os-release"));
    let distribution = release.ok().and_then(|text| pretty_name(&text));
    let libc = libc();
    if distribution.is_none() {
        unknown.insert("distribution".into(), "no os-release file names it".into());
    }
    if libc.is_none() {
        unknown.insert("libc".into(), "no C library is loaded".into());
    }
    Os { kernel: Some(uname.release().to_string_lossy().into_owned()), distribution, libc, ..Os::default() }
}

/// `PRETTY_NAME` of os-release.
pub fn pretty_name(text: &str) -> Option<String> {
    let value = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    let value = value.trim().trim_matches(['"', '\'']);
    (!value.is_empty()).then(|| value.to_owned())
}

/// The C library that this agent runs on, read from the library's own file, without starting a program.
fn libc() -> Option<String> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let path = mapped_libc(&maps)?;
    if path.contains("musl") {
        return Some("musl".to_owned());
    }
    let content = fs::read(path).ok()?;
    Some(glibc_version(&content).map_or_else(|| "glibc".to_owned(), |version| format!("glibc {version}")))
}

/// The path of the C library in the text of `/proc/self/maps`.
fn mapped_libc(maps: &str) -> Option<&str> {
    maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..])).find(|path| {
        let name = path.rsplit('/').next().unwrap_or(path);
        name.starts_with("libc.so") || name.starts_with("libc-2") || name.starts_with("ld-musl")
    })
}

/// The version in glibc's banner, `GNU C Library (…) stable release version 2.36.`.
fn glibc_version(content: &[u8]) -> Option<String> {
    const BANNER: &[u8] = b"GNU C Library";
    // From the end, behind megabytes of code.
    let start = content.windows(BANNER.len()).rposition(|window| window == BANNER)?;
    let banner = String::from_utf8_lossy(content.get(start..(start + 200).min(content.len()))?).into_owned();
    let version = banner.split("release version ").nth(1)?;
    let version: String = version.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    let version = version.trim_end_matches('.');
    (!version.is_empty()).then(|| version.to_owned())
}

/// The processor.
pub fn cpu(unknown: &mut Unknown) -> Cpu {
    let found = fs::read_to_string("/proc/cpuinfo").map(|text| parse_cpuinfo(&text)).unwrap_or_default();
    let cores = found.cores.or_else(sysfs_cores);
    let model = found.model.or_else(|| device_tree_model(Path::new("/proc/device-tree/model")));
    if model.is_none() {
        unknown.insert("cpu.model".into(), "the kernel does not name it".into());
    }
    if cores.is_none() {
        unknown.insert("cpu.cores".into(), "the kernel does not tell the topology".into());
    }
    Cpu { model, cores, threads: found.threads, ..Cpu::default() }
}

/// Reads `/proc/cpuinfo`: x86 tells the topology, Arm does not.
pub fn parse_cpuinfo(text: &str) -> Cpu {
    let (mut model, mut threads, mut cores) = (None, 0u32, BTreeSet::new());
    let (mut socket, mut core) = (None, None);
    for line in text.lines().chain([""]) {
        let Some((name, value)) = line.split_once(':') else {
            if let (Some(socket), Some(core)) = (socket.take(), core.take()) {
                cores.insert((socket, core));
            }
            continue;
        };
        match name.trim() {
            "processor" => threads += 1,
            "model name" if model.is_none() => model = Some(value.trim().to_owned()),
            "physical id" => socket = value.trim().parse::<u32>().ok(),
            "core id" => core = value.trim().parse::<u32>().ok(),
            _ => {}
        }
    }
    let count = u32::try_from(cores.len()).ok().filter(|count| *count > 0);
    Cpu { model, cores: count, threads: (threads > 0).then_some(threads), ..Cpu::default() }
}

/// Physical cores by sysfs, for kernels whose cpuinfo is silent.
fn sysfs_cores() -> Option<u32> {
    let entries = fs::read_dir("/sys/devices/system/cpu").ok()?;
    let siblings: BTreeSet<String> = entries
        .flatten()
        .filter_map(|entry| fs::read_to_string(entry.path().join("topology/thread_siblings_list")).ok())
        .collect();
    u32::try_from(siblings.len()).ok().filter(|count| *count > 0)
}

fn device_tree_model(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim_end_matches('\0').trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// Host memory: what this login may use of it.
pub fn ram(unknown: &mut Unknown) -> Ram {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let mut ram = Ram {
        total_bytes: kilobytes(&text, "MemTotal"),
        available_bytes: kilobytes(&text, "MemAvailable"),
        ..Ram::default()
    };
    if let Some(limit) = cgroup::memory() {
        ram.total_bytes = ram.total_bytes.map(|total| total.min(limit.max_bytes));
        ram.available_bytes = ram.available_bytes.map(|available| available.min(limit.available_bytes));
    }
    if ram.total_bytes.is_none() || ram.available_bytes.is_none() {
        unknown.insert("ram".into(), "/proc/meminfo does not tell".into());
    }
    ram
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_counted_once_per_socket() {
        let block = |processor, socket, core| {
            format!(
                "processor : {processor}\nmodel name : Some CPU @ 2.0GHz\nphysical id : {socket}\ncore id : {core}\n\n"
            )
        };
        let text = [block(0, 0, 0), block(1, 0, 1), block(2, 0, 0), block(3, 1, 0)].concat();
        let cpu = parse_cpuinfo(&text);
        assert_eq!((cpu.cores, cpu.threads), (Some(3), Some(4)));
        assert_eq!(cpu.model.as_deref(), Some("Some CPU @ 2.0GHz"));
        let arm = parse_cpuinfo("processor\t: 0\nBogoMIPS\t: 50\n\nprocessor\t: 1\n\n");
        assert_eq!((arm.cores, arm.threads, arm.model), (None, Some(2), None));
    }

    #[test]
    fn names_are_unquoted_and_banners_read() {
        assert_eq!(pretty_name("ID=debian\nPRETTY_NAME=\"Debian 12\"\n").as_deref(), Some("Debian 12"));
        let banner = b"\0\0GNU C Library (Debian GLIBC 2.36-9) stable release version 2.36.\n";
        assert_eq!(glibc_version(banner).as_deref(), Some("2.36"));
        let maps = "7f00-7f01 r-xp 0 00:00 1    /usr/lib/x86_64-linux-gnu/libc.so.6\n";
        assert_eq!(mapped_libc(maps), Some("/usr/lib/x86_64-linux-gnu/libc.so.6"));
        assert!(libc().is_some());
    }
}
