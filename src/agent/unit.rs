//! The keeper as a systemd user unit: it then comes back by itself after a crash and after a reboot.
//!
//! Only where the user lingers: the user manager of anybody else ends with the last session and takes its units along,
//! while a detached process usually outlives it. The unit's parts that matter: `KillMode=process`, because engines
//! outlive the keeper; `OOMPolicy=continue`, because one engine's end by the kernel is not everybody's; and
//! `ConditionHost`, because homes (and with them the unit's file) may be shared by several nodes.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::error::AgentError;
use super::files::write_atomic;
use super::layout::Layout;
use super::spawn::PASSED;
use super::{host, logs, tool};
use crate::base::Digest;

/// How long systemd's tools may take.
const DEADLINE: Duration = Duration::from_secs(10);
/// Longest name that systemd takes.
const MAX_NAME: usize = 255;
/// Where systemd notes who lingers.
const LINGER: &str = "/var/lib/systemd/linger";

/// A user manager that runs.
#[derive(Debug)]
pub struct Manager {
    runtime: PathBuf,
    systemctl: PathBuf,
}

/// The user manager, where one runs for this user.
pub fn manager() -> Option<Manager> {
    let uid = rustix::process::geteuid().as_raw();
    let named = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let runtime = named.into_iter().chain([PathBuf::from(format!("/run/user/{uid}"))]).find(|folder| {
        let ours = fs::symlink_metadata(folder).is_ok_and(|found| found.uid() == uid);
        ours && fs::metadata(folder.join("systemd/private")).is_ok_and(|found| found.file_type().is_socket())
    })?;
    let manager = Manager { runtime, systemctl: tool::on_path("systemctl")? };
    // One that is degraded has failed units, which are not ours.
    let states = ["running", "degraded", "starting", "initializing", "maintenance"];
    let state = manager.control(&["is-system-running"]).ok()?;
    states.contains(&state.last_line().as_str()).then_some(manager)
}

/// Whether this user's manager lives without a session; `None` where systemd keeps no list.
pub fn lingers() -> Option<bool> {
    let folder = Path::new(LINGER);
    let user = host::user_name()?;
    if !Path::new("/run/systemd/system").is_dir() {
        return None;
    }
    Some(folder.join(user).exists())
}

/// Asks for lingering, which users may often do for themselves.
fn enable_linger() -> bool {
    let Some(loginctl) = tool::on_path("loginctl") else { return false };
    let uid = rustix::process::geteuid().as_raw().to_string();
    let mut command = Command::new(loginctl);
    command.args(["--no-ask-password", "enable-linger", &uid]);
    tool::run(&mut command, DEADLINE).is_ok_and(|printed| printed.code == Some(0)) && lingers() == Some(true)
}

impl Manager {
    fn control(&self, arguments: &[&str]) -> Result<tool::Printed, String> {
        let mut command = Command::new(&self.systemctl);
        command.args(["--user", "--no-pager", "--no-ask-password"]).args(arguments);
        tool::run(command.env("XDG_RUNTIME_DIR", &self.runtime), DEADLINE)
    }

    /// Whether it reads the units of this layout's home: a session may have been given another one.
    fn serves(&self, layout: &Layout) -> bool {
        let Ok(printed) = self.control(&["show-environment"]) else { return false };
        let home = printed.text.lines().find_map(|line| line.strip_prefix("HOME="));
        home.is_some_and(|home| fs::canonicalize(home).is_ok_and(|home| home == layout.home))
    }

    fn expect(&self, arguments: &[&str]) -> Result<(), String> {
        let printed = self.control(arguments)?;
        let said = || format!("systemctl --user {}: {}", arguments.join(" "), printed.last_line());
        if printed.code == Some(0) { Ok(()) } else { Err(said()) }
    }
}

/// Starts the keeper as a unit, where that makes it outlive the session and this very program lies in a file that
/// will be there after a reboot. `false` where it does not: then it is to be started as a detached process.
pub fn start(layout: &Layout, program: &Path) -> bool {
    let Some(manager) = manager().filter(|manager| manager.serves(layout)) else { return false };
    if lingers() != Some(true) && !enable_linger() {
        return false;
    }
    let unit = name(layout);
    let started = write(layout, program).map_err(|error| error.chain()).and_then(|_| {
        manager.expect(&["daemon-reload"])?;
        // One that systemd has given up on starts again.
        let _ = manager.control(&["reset-failed", &unit]);
        manager.expect(&["start", &unit])
    });
    if let Err(error) = &started {
        logs::note(&layout.keeper_log(), &format!("no unit, a detached process instead: {error}"));
    }
    started.is_ok()
}

/// Sees to it that a keeper that runs comes back after a reboot too. Cheap where there is nothing to do.
pub fn ensure(layout: &Layout, program: &Path) {
    if lingers() == Some(true)
        && fs::read_to_string(path(layout)).ok() != Some(text(layout, program))
        && let Some(manager) = manager().filter(|manager| manager.serves(layout))
        && write(layout, program).is_ok()
    {
        let _ = manager.control(&["daemon-reload"]);
    }
}

/// Takes the unit away.
pub fn remove(layout: &Layout) {
    // Earlier agents went by XDG_CONFIG_HOME.
    let named = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let folders = named.map(|folder| folder.join("systemd/user")).into_iter().chain([folder(layout)]);
    let mut there = false;
    for folder in folders {
        for file in [folder.join("default.target.wants").join(name(layout)), folder.join(name(layout))] {
            there |= fs::remove_file(file).is_ok();
        }
    }
    if there && let Some(manager) = manager() {
        let _ = manager.control(&["daemon-reload"]);
        let _ = manager.control(&["reset-failed", &name(layout)]);
    }
}

/// Whether the unit is there and wanted at boot.
pub fn is_installed(layout: &Layout) -> bool {
    path(layout).exists() && fs::symlink_metadata(wanted(layout)).is_ok()
}

fn write(layout: &Layout, program: &Path) -> Result<(), AgentError> {
    let (path, wanted) = (path(layout), wanted(layout));
    write_atomic(&path, text(layout, program).as_bytes(), 0o600)?;
    let folder = wanted.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder).map_err(AgentError::file("creating", folder))?;
    match std::os::unix::fs::symlink(&path, &wanted) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(AgentError::file("enabling", &wanted)(error))
        }
        _ => Ok(()),
    }
}

fn folder(layout: &Layout) -> PathBuf {
    // Not by XDG_CONFIG_HOME: it is the session's, and neither the user manager nor a keeper that it starts has it.
    layout.home.join(".config/systemd/user")
}

/// The unit's file.
pub fn path(layout: &Layout) -> PathBuf {
    folder(layout).join(name(layout))
}

fn wanted(layout: &Layout) -> PathBuf {
    folder(layout).join("default.target.wants").join(name(layout))
}

/// `flock-agent-CLUSTER-NODE.service`, each name escaped as systemd does, the dash too: it separates them.
pub fn name(layout: &Layout) -> String {
    let name = format!("flock-agent-{}-{}.service", escape(&layout.cluster), escape(&layout.node));
    if name.len() <= MAX_NAME {
        return name;
    }
    let digest = Digest::of(layout.state.as_os_str().as_encoded_bytes());
    format!("flock-agent-{}.service", digest.short(24))
}

fn escape(name: &str) -> String {
    let mut out = String::new();
    for byte in name.bytes() {
        match byte {
            b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'_' | b'.' | b':' => out.push(char::from(byte)),
            other => drop(write!(out, "\\x{other:02x}")),
        }
    }
    out
}

/// A word in a unit's file: in quotes, with nothing that systemd would expand.
fn quote(word: &str) -> String {
    let word = word.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%");
    format!("\"{word}\"")
}

/// Words of a unit's file outside quotes: nothing is expanded, and no backslash joins the line with the next.
fn plain(words: &str) -> String {
    words.replace('\\', "\\\\").replace('%', "%%")
}

fn text(layout: &Layout, program: &Path) -> String {
    let program = program.display().to_string();
    // `$` is special on command lines alone.
    let words = [program.as_str(), "keep", "--cluster", &layout.cluster, "--node", &layout.node];
    let command: Vec<String> = words.iter().map(|word| quote(word).replace('$', "$$")).collect();
    let mut text = format!(
        "# Written by flock-agent, removed by `flock destroy`.\n[Unit]\nDescription=flock-agent of cluster {}, node {}\n",
        plain(&layout.cluster),
        plain(&layout.node),
    );
    let machine = fs::read_to_string("/etc/machine-id").unwrap_or_default().trim().to_owned();
    let named = rustix::system::uname().nodename().to_string_lossy().into_owned();
    for host in [machine, named].iter().filter(|host| !host.is_empty()) {
        let _ = writeln!(text, "ConditionHost={host}");
    }
    let _ = writeln!(text, "StartLimitIntervalSec=0\n\n[Service]\nExecStart={}", command.join(" "));
    let _ = writeln!(text, "Environment={}", quote(&format!("HOME={}", layout.home.display())));
    for name in PASSED.iter().filter(|name| **name != "XDG_RUNTIME_DIR") {
        if let Ok(value) = std::env::var(name)
            && !value.chars().any(char::is_control)
        {
            let _ = writeln!(text, "Environment={}", quote(&format!("{name}={value}")));
        }
    }
    text.push_str(
        "Restart=on-failure\nRestartSec=2\nKillMode=process\nOOMPolicy=continue\nStandardOutput=null\n\
         StandardError=null\n\n[Install]\nWantedBy=default.target\n",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_names_cannot_meet_and_stay_short() {
        let layout = |cluster: &str, node: &str| Layout::new(Path::new("/home/u"), cluster, node).expect("good names");
        assert_eq!(name(&layout("lab", "ada-1")), "flock-agent-lab-ada\\x2d1.service");
        assert_ne!(name(&layout("a-b", "c")), name(&layout("a", "b-c")));
        assert!(name(&layout(&"ü".repeat(100), "n")).len() <= MAX_NAME);
        assert!(!escape("a b/%$").contains([' ', '/', '%', '$']));
    }

    #[test]
    fn nothing_in_a_unit_is_expanded() {
        let layout = Layout::new(Path::new("/home/a b"), "100%n", "$HOME\"x").expect("good names");
        let text = text(&layout, Path::new("/home/a b/agents/flock-agent"));
        assert!(text.contains("ExecStart=\"/home/a b/agents/flock-agent\" \"keep\" \"--cluster\" \"100%%n\" \"--node\" \"$$HOME\\\"x\"\n"), "{text}");
        let layout = Layout::new(Path::new("/home/u"), "lab", "x\\").expect("good names");
        let text = super::text(&layout, Path::new("/a"));
        let line = text.lines().find(|line| line.starts_with("Description=")).expect("there");
        assert!(line.ends_with("node x\\\\"), "an even number of them joins no lines: {line}");
        assert!(text.contains("KillMode=process") && text.contains("OOMPolicy=continue"));
    }
}
