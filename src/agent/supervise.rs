//! One instance, one step at a time: what is desired and what `/proc` shows decide, and nothing else.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::process::Child;

use super::calibrate::Measuring;
use super::clock::now_ms;
use super::dialect::{self, Ended};
use super::ending::MAX_BACK_OFF_MS;
use super::error::AgentError;
use super::files::private_folder;
use super::layout::Layout;
use super::procfs::{self, Process, ProcessId};
use super::ready::{self, Watch};
use super::state::{Phase, Record, Why};
use super::{calibrate, container, logs, spawn, store};
use crate::engine::Cause;
use crate::inventory::InstanceSpec;

/// An instance that was ready for this long starts with a clean slate.
const GOOD_MS: u64 = 600_000;
/// Between SIGTERM and SIGKILL where no request says it.
pub const GRACE_MS: u64 = 10_000;
/// How long a process whose start was interrupted may stay unseen: between fork and exec it has no mark.
const UNMARKED_MS: u64 = 2_000;

/// How long a ready engine may be silent: one that loads kernels or swaps may well be for a minute.
const SILENCE_MS: u64 = 120_000;

/// How long a client may wait for a worker that serves another one.
const STUCK_MS: u64 = 20_000;

fn silence_ms(spec: &InstanceSpec) -> u64 {
    match spec.unresponsive_after_ms {
        0 if is_worker(spec) => STUCK_MS,
        0 => SILENCE_MS,
        told => told,
    }
}

fn is_worker(spec: &InstanceSpec) -> bool {
    spec.part.as_ref().is_some_and(|part| part.is_worker(&spec.instance))
}

/// What an engine that has been ready says of itself no more.
fn silence_text(spec: &InstanceSpec) -> String {
    let seconds = silence_ms(spec) / 1000;
    match &spec.part {
        None => format!("left every health request unanswered for {seconds} s"),
        Some(_) if is_worker(spec) => {
            format!("kept the instance that it works for waiting for {seconds} s, for a connection that is gone")
        }
        Some(part) => {
            let others: Vec<&str> = part.nodes.iter().skip(1).map(String::as_str).collect();
            format!("its work stood still for {seconds} s: is the way to {} cut?", others.join(", "))
        }
    }
}

/// What a step may look at.
pub struct View<'a> {
    /// Where everything is.
    pub layout: &'a Layout,
    /// What should run under this id; `None` to end it.
    pub desired: Option<&'a InstanceSpec>,
    /// All processes, where this tick reads them all.
    pub snapshot: Option<&'a [Process]>,
    /// This boot.
    pub boot_id: &'a str,
    /// Ports of the other instances.
    pub ports: &'a BTreeSet<u16>,
    /// Now, Unix milliseconds.
    pub now: u64,
}

/// An instance as the keeper holds it: the record on disk, and what only this keeper has.
#[derive(Debug)]
pub struct Instance {
    /// The record; saved at every change.
    pub record: Record,
    pub(super) child: Option<Child>,
    pub(super) readiness: Option<Watch>,
    pub(super) silence: Option<Watch>,
    pub(super) removal: Option<Watch>,
    pub(super) release: Option<Watch>,
    measuring: Option<Measuring>,
    /// When it is to be measured, as an age of its being ready.
    measure_at_ms: Option<u64>,
    pub(super) asked_to_end: bool,
}

/// What a step came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It stays.
    Kept,
    /// It is gone from here, with its files.
    Gone,
}

impl Instance {
    /// Takes over what a keeper before this one left, or begins anew. Without a usable record, the marks of
    /// living processes decide: as after an interrupted start where it is desired, and else they are ended.
    pub fn adopt(
        layout: &Layout,
        id: &str,
        desired: Option<&InstanceSpec>,
        boot_id: &str,
        snapshot: &[Process],
    ) -> Self {
        let mut record = match (Record::load(layout, id), desired) {
            (Some(record), _) => record,
            (None, Some(spec)) => Record { phase: Phase::Spawning, ..Record::new(spec.clone(), 0) },
            (None, None) => Record::orphan(layout, id, snapshot, boot_id, (now_ms(), GRACE_MS)),
        };
        if record.is_of_another_boot(boot_id) {
            // The machine was started anew since: nothing of it lives, and that was no failure of the engine.
            record.process = None;
            record.members.clear();
            record.enter(Phase::Idle { not_before_ms: 0 }, now_ms());
        }
        Self::with(record)
    }

    /// A new instance.
    pub fn new(spec: InstanceSpec, now: u64) -> Self {
        Self::with(Record::new(spec, now))
    }

    fn with(record: Record) -> Self {
        Self {
            record,
            child: None,
            readiness: None,
            silence: None,
            removal: None,
            release: None,
            measuring: None,
            measure_at_ms: Some(0),
            asked_to_end: false,
        }
    }

    /// Whether it needs the whole process table in every tick.
    pub fn is_moving(&self) -> bool {
        matches!(self.record.phase, Phase::Spawning | Phase::Ending { .. })
    }

    /// Whether it may gain processes soon.
    pub fn is_starting(&self) -> bool {
        self.record.phase == Phase::Starting
    }

    /// Whether nothing is expected to change soon.
    pub fn is_settled(&self) -> bool {
        match self.record.phase {
            Phase::Ready => true,
            Phase::Idle { .. } => self.record.gave_up,
            _ => false,
        }
    }

    /// Begins to end it because it is no longer desired. A shorter grace than one already given wins.
    pub fn end(&mut self, layout: &Layout, grace_ms: u64, now: u64) -> Result<(), AgentError> {
        let (began_ms, gone_ms, grace_ms) = match self.record.phase {
            Phase::Ending { began_ms, gone_ms, grace_ms: given, why: Why::Removed } => {
                (began_ms, gone_ms, given.min(grace_ms))
            }
            Phase::Ending { gone_ms, .. } => (now, gone_ms, grace_ms),
            _ => {
                // One that was begun before a start is given up too soon, and its container may have come since.
                self.removal = None;
                (now, None, grace_ms)
            }
        };
        self.record.enter(Phase::Ending { why: Why::Removed, began_ms, grace_ms, gone_ms }, now);
        self.record.save(layout)
    }

    /// A fresh apply: whatever failed before, try again now.
    pub fn try_again(&mut self) {
        self.record.gave_up = false;
        self.record.failures = 0;
        self.record.out_of_memory = 0;
        if let Some(failure) = &mut self.record.last_failure {
            failure.gave_up = false;
        }
        if let Phase::Idle { not_before_ms } = &mut self.record.phase {
            *not_before_ms = 0;
        }
    }

    /// One step.
    pub fn step(&mut self, view: &View) -> Result<Outcome, AgentError> {
        match (self.record.phase.clone(), view.desired) {
            (Phase::Idle { .. }, None) => return self.forget(view.layout),
            (Phase::Idle { not_before_ms }, Some(spec)) => {
                // A clock that was set back must not stretch a pause.
                let due = view.now >= not_before_ms || not_before_ms > view.now + MAX_BACK_OFF_MS;
                if due && !self.record.gave_up {
                    self.record.spec = spec.clone();
                    self.start(view)?;
                }
            }
            (Phase::Spawning, _) => self.find_interrupted(view)?,
            (Phase::Starting | Phase::Ready, None) => self.end(view.layout, GRACE_MS, view.now)?,
            (Phase::Starting | Phase::Ready, Some(spec)) => self.watch(view, spec)?,
            (Phase::Ending { why, began_ms, grace_ms, gone_ms }, desired) => {
                // What is still being cleaned up after a failure need not come back once it is not desired.
                let why = if desired.is_none() { Why::Removed } else { why };
                return self.ending(view, why, began_ms, grace_ms, gone_ms);
            }
        }
        Ok(Outcome::Kept)
    }

    fn start(&mut self, view: &View) -> Result<(), AgentError> {
        let (layout, now) = (view.layout, view.now);
        let spec = self.record.spec.clone();
        if !self.container_is_gone(view.layout, true) {
            return Ok(());
        }
        self.removal = None;
        // An attempt counts whether or not it came to a process.
        self.record.starts = self.record.starts.saturating_add(1);
        if let Some(problem) = store::missing(&spec.weights) {
            return self.could_not_start(view, Cause::Weights, problem);
        }
        let chosen = spawn::choose_port(&spec, self.record.port, &self.record.avoid_ports, view.ports);
        let Some(port) = chosen else {
            self.record.avoid_ports.clear();
            let tried = 1 + spec.port_alternates.len();
            return self.could_not_start(
                view,
                Cause::Port,
                format!("port {} and its {} alternates are taken", spec.port, tried - 1),
            );
        };
        let folder = private_folder(&layout.instance(&spec.instance));
        let key = spec.key_env.as_ref().map(|_| spawn::key(layout, &spec.instance)).transpose();
        let key = match folder.and(key) {
            Ok(key) => key,
            // A full disk, say: no fault of the engine, but a pause before the next attempt all the same.
            Err(error) => return self.could_not_start(view, Cause::Exit, error.chain()),
        };
        self.record.port = port;
        self.record.container = spec.container.as_ref().map(|container| container::name(layout, container));
        self.record.process = None;
        self.record.members.clear();
        self.record.enter(Phase::Spawning, now);
        // The intent is on disk before the process exists: killed in between, the next keeper looks for it.
        self.record.save(layout)?;
        let spawned = spawn::command(layout, &spec, port, key.as_ref())
            .and_then(|command| spawn::spawn(layout, &spec.instance, command, self.record.starts));
        let (child, log_from) = match spawned {
            Ok(spawned) => spawned,
            Err(error) => return self.could_not_start(view, Cause::Configuration, error.chain()),
        };
        let pid = child.id();
        let start_ticks = procfs::process(pid).map_or(0, |process| process.start_ticks);
        let id = ProcessId { pid, start_ticks, boot_id: view.boot_id.to_owned() };
        self.child = Some(child);
        self.record.log_from = log_from;
        self.record.members = BTreeSet::from([id.clone()]);
        self.record.process = Some(id);
        self.record.enter(Phase::Starting, now);
        self.record.save(layout)?;
        logs::note(&layout.keeper_log(), &format!("{} started as process {pid} on port {port}", spec.instance));
        Ok(())
    }

    /// A start that was interrupted, by this record or without one: its process carries the mark.
    fn find_interrupted(&mut self, view: &View) -> Result<(), AgentError> {
        let Some(snapshot) = view.snapshot else { return Ok(()) };
        let living = self.record.living(view.layout, snapshot, view.boot_id);
        if living.is_empty() {
            if view.now.saturating_sub(self.record.since_ms) >= UNMARKED_MS || self.record.since_ms > view.now {
                self.record.enter(Phase::Idle { not_before_ms: 0 }, view.now);
                self.record.save(view.layout)?;
            }
            return Ok(());
        }
        let leader = living.iter().find(|process| process.pid == process.group);
        match leader.filter(|_| self.record.port != 0) {
            Some(leader) => {
                self.record.process = Some(self.identify(leader, view));
                self.remember(&living, view)?;
                self.record.enter(Phase::Starting, view.now);
            }
            // Without its port or its first process it cannot be taken over.
            None => {
                let (began_ms, grace_ms, gone_ms) = (view.now, GRACE_MS, None);
                self.record.enter(Phase::Ending { why: Why::Changed, began_ms, grace_ms, gone_ms }, view.now);
            }
        }
        self.record.save(view.layout)
    }

    /// A process that should live.
    fn watch(&mut self, view: &View, spec: &InstanceSpec) -> Result<(), AgentError> {
        let now = view.now;
        if self.leader_is_dead() {
            // Before it is collected: as long as it is in the table, its group is surely its own.
            let snapshot = view.snapshot.map_or_else(procfs::snapshot, <[Process]>::to_vec);
            let left = self.record.living(view.layout, &snapshot, view.boot_id);
            self.remember(&left, view)?;
            let Some(ended) = self.how_it_ended() else { return Ok(()) };
            let words = logs::last_words(&view.layout.log(&spec.instance), self.record.log_from);
            let (cause, text) = dialect::classify(spec.engine, ended, &words);
            return self.failed(view, cause, text, 0);
        }
        if spec.specification != self.record.spec.specification {
            let (began_ms, grace_ms, gone_ms) = (now, GRACE_MS, None);
            self.record.enter(Phase::Ending { why: Why::Changed, began_ms, grace_ms, gone_ms }, now);
            return self.record.save(view.layout);
        }
        if let Some(snapshot) = view.snapshot {
            let living = self.record.living(view.layout, snapshot, view.boot_id);
            self.remember(&living, view)?;
        }
        if self.record.phase == Phase::Ready && self.silence.as_ref().is_some_and(Watch::is_done) {
            return self.failed(view, Cause::NotResponding, silence_text(spec), GRACE_MS);
        }
        let age = now.saturating_sub(self.record.since_ms);
        self.measure(view, age)?;
        match self.record.phase {
            Phase::Starting if self.readiness.as_ref().is_some_and(Watch::is_done) => {
                self.readiness = None;
                self.record.load_ms = Some(age);
                self.record.enter(Phase::Ready, now);
                self.record.save(view.layout)?;
                self.measure_at_ms = Some(0);
                logs::note(&view.layout.keeper_log(), &format!("{} ready after {age} ms", spec.instance));
            }
            Phase::Starting if age > spec.ready_timeout_ms => {
                let seconds = spec.ready_timeout_ms / 1000;
                let what = if is_worker(spec) { "did not listen" } else { "gave no completion" };
                return self.failed(view, Cause::NotReady, format!("{what} within {seconds} s"), GRACE_MS);
            }
            Phase::Starting if self.readiness.is_none() && is_worker(spec) => {
                self.readiness = Some(ready::listening(self.record.port));
            }
            Phase::Starting if self.readiness.is_none() => {
                let key = spec.key_env.as_ref().map(|_| spawn::key(view.layout, &spec.instance)).transpose()?;
                let name = self.record.spec.served_name.clone();
                self.readiness = Some(ready::completion(spec.engine, self.record.port, key, name));
            }
            Phase::Ready if self.silence.is_none() => {
                let patience = std::time::Duration::from_millis(silence_ms(spec));
                let port = self.record.port;
                self.silence = Some(if is_worker(spec) {
                    ready::stuck(port, patience)
                } else if spec.part.is_some() {
                    let key = spec.key_env.as_ref().map(|_| spawn::key(view.layout, &spec.instance)).transpose()?;
                    ready::standstill(spec.engine, port, key, patience)
                } else {
                    ready::silence(spec.engine, port, patience)
                });
            }
            Phase::Ready if age > GOOD_MS && self.record.failures > 0 => {
                self.record.failures = 0;
                self.record.out_of_memory = 0;
                self.record.avoid_ports.clear();
                self.record.save(view.layout)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Measures what a ready engine took: at once, and again when it has worked for a while. Under a keeper that took it
    /// over, both as far as they have not been done.
    fn measure(&mut self, view: &View, age: u64) -> Result<(), AgentError> {
        if self.record.phase != Phase::Ready || self.record.spec.sized_for.is_none() {
            return Ok(());
        }
        if let Some(found) = self.measuring.as_ref().and_then(Measuring::found) {
            self.measuring = None;
            if let Some(found) = found.map(|found| calibrate::keep(view.layout, found)).transpose()? {
                self.record.measured = Some(Box::new(found));
                self.record.save(view.layout)?;
            }
        }
        if self.measuring.is_none() && self.measure_at_ms.is_some_and(|due| age >= due) {
            self.measure_at_ms = self.measure_at_ms.filter(|due| *due < GOOD_MS && age < GOOD_MS).map(|_| GOOD_MS);
            self.measuring = Some(Measuring::begin(view.layout, &self.record, view.boot_id));
        }
        Ok(())
    }

    fn leader_is_dead(&self) -> bool {
        let Some(leader) = &self.record.process else { return true };
        let same = |process: Process| process.start_ticks == leader.start_ticks && process.is_alive();
        !procfs::process(leader.pid).is_some_and(same)
    }

    /// How the dead engine process ended, where it was this keeper's child. `None` where only its first thread
    /// has ended.
    fn how_it_ended(&mut self) -> Option<Ended> {
        let Some(child) = &mut self.child else { return Some(Ended::Unseen) };
        let status = match child.try_wait() {
            Ok(status) => Some(status?),
            // Somebody else collected it, or nobody had to.
            Err(_) => None,
        };
        self.child = None;
        let Some(status) = status else { return Some(Ended::Unseen) };
        let code = status.code().map(Ended::Code);
        Some(code.or_else(|| status.signal().map(Ended::Signal)).unwrap_or(Ended::Unseen))
    }

    fn identify(&self, process: &Process, view: &View) -> ProcessId {
        ProcessId { pid: process.pid, start_ticks: process.start_ticks, boot_id: view.boot_id.to_owned() }
    }

    /// Keeps who belongs to it, so that a child that loses its mark and its parent is still known. While it
    /// ends, the dead stay on the list: the driver may still hold memory in their name.
    pub(super) fn remember(&mut self, living: &[Process], view: &View) -> Result<(), AgentError> {
        let mut members: BTreeSet<ProcessId> = living.iter().map(|process| self.identify(process, view)).collect();
        if matches!(self.record.phase, Phase::Ending { .. }) {
            members.extend(self.record.members.iter().cloned());
        }
        if members != self.record.members {
            self.record.members = members;
            self.record.save(view.layout)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_child_that_somebody_else_collected_has_ended_unseen() {
        let mut instance = Instance::with(Record::unknown("abc", 0));
        let child = Command::new("true").spawn().expect("a process");
        let pid = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
        rustix::process::waitpid(pid, rustix::process::WaitOptions::empty()).expect("collected");
        instance.child = Some(child);
        assert_eq!(instance.how_it_ended(), Some(Ended::Unseen));
        assert!(instance.child.is_none());
        let mut instance = Instance::with(Record::unknown("abc", 0));
        instance.child = Some(Command::new("sleep").arg("60").spawn().expect("a process"));
        assert_eq!(instance.how_it_ended(), None);
        let mut child = instance.child.expect("it lives");
        child.kill().expect("killed");
        child.wait().expect("collected");
    }
}
