//! The processes of this machine, from `/proc`.

use std::os::unix::fs::MetadataExt as _;

use crate::base::ProcessStat;
use crate::inventory::HolderProcess;
use crate::ports::Processes;

/// What `/proc` tells.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemProcesses;

impl Processes for SystemProcesses {
    fn this(&self) -> Option<HolderProcess> {
        let pid = std::process::id();
        let start_ticks = stat(pid)?.start_ticks;
        Some(HolderProcess { boot_id: boot_id()?, pid_namespace: pid_namespace()?, uid: own_uid()?, pid, start_ticks })
    }

    fn has_ended(&self, process: &HolderProcess) -> bool {
        // Only where its number would mean it, and only of our own user: `hidepid` hides those of others.
        let here = boot_id().as_ref() == Some(&process.boot_id)
            && pid_namespace().as_ref() == Some(&process.pid_namespace)
            && own_uid() == Some(process.uid)
            && stat(std::process::id()).is_some();
        let lives = |stat: ProcessStat| stat.start_ticks == process.start_ticks && !stat.has_ended();
        here && !stat(process.pid).is_some_and(lives)
    }
}

fn stat(pid: u32) -> Option<ProcessStat> {
    ProcessStat::parse(&String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/stat")).ok()?))
}

fn boot_id() -> Option<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim().to_owned()).filter(|id| !id.is_empty())
}

fn pid_namespace() -> Option<String> {
    Some(std::fs::read_link("/proc/self/ns/pid").ok()?.to_string_lossy().into_owned())
}

/// The number of the user this process runs as, whom its folder belongs to.
pub fn own_uid() -> Option<u32> {
    std::fs::metadata("/proc/self").ok().map(|process| process.uid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_surely_was_here_has_ended() {
        let this = SystemProcesses.this().expect("Linux");
        assert!(!SystemProcesses.has_ended(&this));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("a process");
        let start_ticks = stat(child.id()).expect("it runs").start_ticks;
        let other = HolderProcess { pid: child.id(), start_ticks, ..this.clone() };
        assert!(!SystemProcesses.has_ended(&other));
        child.kill().expect("killed");
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !SystemProcesses.has_ended(&other) {
            assert!(std::time::Instant::now() < deadline, "a zombie has ended");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        child.wait().expect("collected");
        assert!(SystemProcesses.has_ended(&other));
        assert!(SystemProcesses.has_ended(&HolderProcess { start_ticks: 1, ..this.clone() }), "its number went on");
        for elsewhere in [
            HolderProcess { boot_id: "another".to_owned(), ..other.clone() },
            HolderProcess { pid_namespace: "pid:[1]".to_owned(), ..other.clone() },
            HolderProcess { uid: other.uid + 1, ..other.clone() },
        ] {
            assert!(!SystemProcesses.has_ended(&elsewhere), "{elsewhere:?}");
        }
    }
}
