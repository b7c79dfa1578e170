//! The end of an instance's processes: asked for, or come by itself; and what a failure leads to.

use super::clock::rfc3339;
use super::error::AgentError;
use super::files::{remove, remove_folder};
use super::layout::Layout;
use super::ready::{self, Watch};
use super::state::{Phase, Record, Why};
use super::supervise::{Instance, Outcome, View};
use super::{kill, logs};
use crate::engine::Cause;
use crate::inventory::Failure;

/// Longest pause between attempts.
pub const MAX_BACK_OFF_MS: u64 = 60_000;
/// Out-of-memory failures in a row that end the attempts.
const MAX_OUT_OF_MEMORY: u32 = 3;

impl Instance {
    /// One step towards its end: signals, then the memory's release.
    pub(super) fn ending(
        &mut self,
        view: &View,
        why: Why,
        began_ms: u64,
        grace_ms: u64,
        gone_ms: Option<u64>,
    ) -> Result<Outcome, AgentError> {
        self.readiness = None;
        self.silence = None;
        // A clock that was set back must neither stretch the grace nor end it.
        let began_ms = began_ms.min(view.now);
        self.record.phase = Phase::Ending { why: why.clone(), began_ms, grace_ms, gone_ms };
        let Some(snapshot) = view.snapshot else { return Ok(Outcome::Kept) };
        let living = self.record.living(view.layout, snapshot, view.boot_id);
        if !living.is_empty() {
            let remembered = self.remember(&living, view);
            let leader = self.record.process.as_ref().map(|leader| leader.pid);
            let patience = view.now.saturating_sub(began_ms);
            if patience >= grace_ms {
                kill::signal(&living, leader, rustix::process::Signal::KILL);
            } else if !self.asked_to_end {
                self.asked_to_end = true;
                kill::signal(&living, leader, rustix::process::Signal::TERM);
            }
            // After the signals: what cannot be written down can be ended all the same.
            return remembered.map(|()| Outcome::Kept);
        }
        if !self.container_is_gone(view.layout, false) {
            return Ok(Outcome::Kept);
        }
        if self.child.as_mut().is_some_and(|child| !matches!(child.try_wait(), Ok(None))) {
            self.child = None;
        }
        if self.release.is_none() {
            let gone_ms = gone_ms.unwrap_or(view.now);
            self.record.phase = Phase::Ending { why, began_ms, grace_ms, gone_ms: Some(gone_ms) };
            let pids = self.record.members.iter().map(|process| process.pid).collect();
            self.release = Some(ready::release(&view.layout.node, self.record.spec.accelerators.clone(), pids));
            return self.record.save(view.layout).map(|()| Outcome::Kept);
        }
        let waited = gone_ms.map_or(0, |gone| view.now.saturating_sub(gone));
        let deadline = u64::try_from(ready::RELEASE_DEADLINE.as_millis()).unwrap_or(u64::MAX);
        if !self.release.as_ref().is_some_and(Watch::is_done) && waited <= deadline {
            return Ok(Outcome::Kept);
        }
        self.ended_whole(view, &why)
    }

    /// Nothing of it lives and its memory is back.
    fn ended_whole(&mut self, view: &View, why: &Why) -> Result<Outcome, AgentError> {
        let id = self.record.spec.instance.clone();
        logs::note(&view.layout.keeper_log(), &format!("{id} ended ({why:?})"));
        self.release = None;
        self.removal = None;
        self.asked_to_end = false;
        self.record.process = None;
        self.record.members.clear();
        let not_before_ms = match why {
            Why::Removed if view.desired.is_none() => return self.forget(view.layout),
            Why::Failed => view.now + back_off_ms(self.record.failures),
            Why::Removed => {
                self.record = Record::new(self.record.spec.clone(), view.now);
                0
            }
            Why::Changed | Why::Port => 0,
        };
        self.record.enter(Phase::Idle { not_before_ms }, view.now);
        self.record.save(view.layout)?;
        Ok(Outcome::Kept)
    }

    /// Removes its files.
    pub(super) fn forget(&mut self, layout: &Layout) -> Result<Outcome, AgentError> {
        let id = &self.record.spec.instance;
        remove(&layout.key(id))?;
        remove_folder(&layout.instance(id))?;
        Ok(Outcome::Gone)
    }

    /// A failure before there was a process: nothing to clean up.
    pub(super) fn could_not_start(&mut self, view: &View, cause: Cause, text: String) -> Result<(), AgentError> {
        self.count_failure(view, cause, text);
        let not_before_ms = view.now + back_off_ms(self.record.failures);
        self.record.enter(Phase::Idle { not_before_ms }, view.now);
        self.record.save(view.layout)
    }

    /// A failure of a running engine: what is left of it is ended first.
    pub(super) fn failed(&mut self, view: &View, cause: Cause, text: String, grace_ms: u64) -> Result<(), AgentError> {
        self.readiness = None;
        self.silence = None;
        let port = self.record.port;
        let others = |port: &u16| *port != self.record.port && !self.record.avoid_ports.contains(port);
        let spec = &self.record.spec;
        let another = spec.port_alternates.iter().chain([&spec.port]).any(others);
        let why = if cause == Cause::Port && another {
            self.record.avoid_ports.push(port);
            Why::Port
        } else {
            self.count_failure(view, cause, text);
            Why::Failed
        };
        self.record.enter(Phase::Ending { why, began_ms: view.now, grace_ms, gone_ms: None }, view.now);
        self.record.save(view.layout)
    }

    fn count_failure(&mut self, view: &View, cause: Cause, text: String) {
        let record = &mut self.record;
        record.failures = record.failures.saturating_add(1);
        record.out_of_memory = if cause == Cause::OutOfMemory { record.out_of_memory + 1 } else { 0 };
        // Files that are not there may come back, with a file system that is mounted late; broken ones do not.
        let absent = cause == Cause::Weights && matches!(record.phase, Phase::Idle { .. });
        record.gave_up = (cause.is_permanent() && !absent) || record.out_of_memory >= MAX_OUT_OF_MEMORY;
        let gave_up = record.gave_up;
        logs::note(&view.layout.keeper_log(), &format!("{} failed ({cause}): {text}", record.spec.instance));
        record.last_failure = Some(Failure { cause: cause.word().to_owned(), text, at: rfc3339(view.now), gave_up });
    }
}

/// 1 s, 2 s, 4 s … up to a minute.
fn back_off_ms(failures: u32) -> u64 {
    1000u64.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(MAX_BACK_OFF_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_minute() {
        let pauses: Vec<u64> = [0, 1, 2, 3, 6, 7, 100].into_iter().map(back_off_ms).collect();
        assert_eq!(pauses, [1000, 1000, 2000, 4000, 32_000, 60_000, 60_000]);
    }
}
