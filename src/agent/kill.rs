//! Signals for processes that were just identified as an instance's, and for no others.

use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};

use super::procfs::{self, Process};

/// Signals the process group `leader`, where one of the living is in it, and every living process by itself.
///
/// Each is pinned by a pidfd and looked at once more before its signal, so that a number that was given to
/// another process in between is not hit. The group's number cannot be given away while a process is in it.
pub fn signal(living: &[Process], leader: Option<u32>, signal: Signal) {
    if let Some(group) = leader.filter(|leader| living.iter().any(|process| process.group == *leader))
        && let Some(witness) = living.iter().find(|process| process.group == group)
        && is_same(witness)
        && let Some(group) = pid(group)
    {
        let _ = kill_process_group(group, signal);
    }
    for process in living.iter().filter(|process| Some(process.group) != leader) {
        let Some(number) = pid(process.pid) else { continue };
        match pidfd_open(number, PidfdFlags::empty()) {
            Ok(handle) if is_same(process) => {
                let _ = pidfd_send_signal(&handle, signal);
            }
            Ok(_) => {}
            // Kernels before 5.3 have no pidfd.
            Err(rustix::io::Errno::NOSYS) if is_same(process) => {
                let _ = rustix::process::kill_process(number, signal);
            }
            Err(_) => {}
        }
    }
}

fn is_same(process: &Process) -> bool {
    procfs::process(process.pid).is_some_and(|now| now.start_ticks == process.start_ticks)
}

/// A number that means one process and not all of them.
fn pid(number: u32) -> Option<Pid> {
    i32::try_from(number).ok().filter(|number| *number > 1).and_then(Pid::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;

    #[test]
    fn only_the_same_process_is_hit() {
        let mut child = std::process::Command::new("sleep").arg("60").process_group(0).spawn().expect("a process");
        let found = procfs::process(child.id()).expect("its line");
        let older = Process { start_ticks: found.start_ticks - 1, ..found.clone() };
        signal(std::slice::from_ref(&older), Some(found.pid), Signal::KILL);
        signal(&[older], None, Signal::KILL);
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(matches!(child.try_wait(), Ok(None)));
        signal(std::slice::from_ref(&found), Some(found.pid), Signal::KILL);
        let status = child.wait().expect("ended");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
        assert!(pid(0).is_none() && pid(1).is_none());
    }
}
