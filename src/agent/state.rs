//! What is on disk about instances, and what `/proc` says about it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde::{Deserialize, Serialize};

use super::clock::{now_ms, rfc3339};
use super::error::AgentError;
use super::files::{read_json, write_json};
use super::layout::{Layout, check_name};
use super::procfs::{self, Process, ProcessId};
use super::version::version;
use crate::base::{EngineKind, InstanceState, one_line};
use crate::inventory::{Calibration, Failure, InstanceFacts, InstanceSpec};

/// The form of everything in the state folder. It rises when an older agent could do harm by passing over what a newer
/// one has written there; such an agent then touches nothing.
pub const FORMAT: u32 = 1;

/// What should run here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Desired {
    /// [`FORMAT`] of the agent that wrote it.
    #[serde(default)]
    pub format: u32,
    /// Version of the agent that wrote it.
    #[serde(default)]
    pub written_by: String,
    /// Of the newest apply that changed or confirmed it.
    pub generation: u64,
    /// By instance id.
    pub instances: BTreeMap<String, InstanceSpec>,
    /// The generation that last started each of them; not of those that an older agent started.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub started: BTreeMap<String, u64>,
}

impl Default for Desired {
    fn default() -> Self {
        Self {
            format: FORMAT,
            written_by: version().to_owned(),
            generation: 0,
            instances: BTreeMap::new(),
            started: BTreeMap::new(),
        }
    }
}

/// All that is read of a state of another form.
#[derive(Deserialize)]
struct Form {
    #[serde(default)]
    format: u32,
    #[serde(default)]
    written_by: String,
}

impl Desired {
    /// From disk; empty where there is nothing. Refused where a newer agent has written it in a form of its own.
    pub fn load(layout: &Layout) -> Result<Self, AgentError> {
        let path = layout.desired();
        if let Some(found) = read_json::<Form>(&path)?.filter(|found| found.format > FORMAT) {
            return Err(AgentError::Other(format!(
                "{} was written by flock-agent {} (format {}), which is newer than this one ({}, format {FORMAT}): use \
                 a flock of that version or a later one; nothing was changed",
                path.display(),
                clean(&found.written_by),
                found.format,
                version(),
            )));
        }
        let found = read_json::<Self>(&path)?.unwrap_or_default();
        Ok(Self { format: FORMAT, written_by: version().to_owned(), ..found })
    }

    /// To disk.
    pub fn save(&self, layout: &Layout) -> Result<(), AgentError> {
        write_json(&layout.desired(), self)
    }
}

fn clean(text: &str) -> String {
    one_line(text).chars().take(40).collect()
}

/// What is known about an instance's process, in `instances/ID/state.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The specification that the process was started with.
    pub spec: InstanceSpec,
    /// What it is doing.
    pub phase: Phase,
    /// Since when, Unix milliseconds.
    pub since_ms: u64,
    /// The chosen port; 0 before the first start.
    pub port: u16,
    /// The engine process, leader of its own process group.
    pub process: Option<ProcessId>,
    /// Every process that was seen to belong to it and may still live.
    pub members: BTreeSet<ProcessId>,
    /// Starts since it was declared.
    pub starts: u32,
    /// Failures since it last was ready for long.
    pub failures: u32,
    /// Failures in a row for want of accelerator memory.
    pub out_of_memory: u32,
    /// No more attempts until the next apply.
    pub gave_up: bool,
    /// The last failure.
    pub last_failure: Option<Failure>,
    /// How long the last load took.
    pub load_ms: Option<u64>,
    /// Ports that an engine found taken although they could be bound.
    pub avoid_ports: Vec<u16>,
    /// Where in the log the present run begins.
    pub log_from: u64,
    /// The name of the container of the last start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// What it took, once that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Box<Calibration>>,
}

/// What an instance is doing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Phase {
    /// Nothing runs; a start is due.
    Idle {
        /// Not before this moment, Unix milliseconds.
        not_before_ms: u64,
    },
    /// A start has been decided. Written before the process exists, so that a keeper that is killed in
    /// between looks for the process before it starts another.
    Spawning,
    /// The process lives and has not answered yet.
    Starting,
    /// It answered a completion.
    Ready,
    /// Everything that belongs to it is being ended.
    Ending {
        /// Why.
        why: Why,
        /// Since when, Unix milliseconds.
        began_ms: u64,
        /// Time between SIGTERM and SIGKILL.
        grace_ms: u64,
        /// When the last of its processes was gone.
        gone_ms: Option<u64>,
    },
}

/// Why an instance is being ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Why {
    /// It is no longer desired.
    Removed,
    /// Its specification changed.
    Changed,
    /// It failed, which is in `Record::last_failure`; what is left of it goes before the next start.
    Failed,
    /// Its port was taken after all: it starts again on another, and that is no failure.
    Port,
}

/// All that is used of a record that another version of the agent wrote.
#[derive(Deserialize)]
struct Remains {
    spec: InstanceSpec,
}

impl Record {
    /// A record before the first start.
    pub fn new(spec: InstanceSpec, now_ms: u64) -> Self {
        Self {
            spec,
            phase: Phase::Idle { not_before_ms: 0 },
            since_ms: now_ms,
            port: 0,
            process: None,
            members: BTreeSet::new(),
            starts: 0,
            failures: 0,
            out_of_memory: 0,
            gave_up: false,
            last_failure: None,
            load_ms: None,
            avoid_ports: Vec::new(),
            log_from: 0,
            container: None,
            measured: None,
        }
    }

    /// A record that knows nothing but the id.
    pub fn unknown(instance: &str, now_ms: u64) -> Self {
        let spec = InstanceSpec {
            instance: instance.to_owned(),
            specification: String::new(),
            model: "(unknown)".to_owned(),
            replica: 0,
            engine: EngineKind::LlamaCpp,
            variant: String::new(),
            accelerators: Vec::new(),
            argv: Vec::new(),
            env: BTreeMap::new(),
            key_env: None,
            port: 0,
            port_alternates: Vec::new(),
            internal_ports: Vec::new(),
            served_name: String::new(),
            weights: Vec::new(),
            planned_bytes: Vec::new(),
            planned_host_bytes: 0,
            ready_timeout_ms: 0,
            unresponsive_after_ms: 0,
            container: None,
            sized_for: None,
            part: None,
        };
        Self::new(spec, now_ms)
    }

    /// What is neither desired nor recorded in a way that can be read: it is being ended. Its processes are those
    /// that carry its marks; of its record, the specification may still be readable.
    pub fn orphan(
        layout: &Layout,
        instance: &str,
        snapshot: &[Process],
        boot_id: &str,
        (now_ms, grace_ms): (u64, u64),
    ) -> Self {
        let mut record = Self::unknown(instance, now_ms);
        let remains = read_json::<Remains>(&layout.instance_state(instance)).ok().flatten();
        if let Some(spec) = remains.map(|remains| remains.spec).filter(|spec| spec.instance == instance) {
            record.spec = spec;
        }
        let identify = |process: &Process| ProcessId {
            pid: process.pid,
            start_ticks: process.start_ticks,
            boot_id: boot_id.to_owned(),
        };
        let living = record.living(layout, snapshot, boot_id);
        record.members = living.iter().map(identify).collect();
        record.process = living.iter().find(|process| process.pid == process.group).map(identify);
        record.phase = Phase::Ending { why: Why::Removed, began_ms: now_ms, grace_ms, gone_ms: None };
        record
    }

    /// From disk; `None` where there is none or where it cannot be read: the processes' marks then decide.
    pub fn load(layout: &Layout, instance: &str) -> Option<Self> {
        let record: Option<Self> = read_json(&layout.instance_state(instance)).ok().flatten();
        record.filter(|record| record.spec.instance == instance)
    }

    /// To disk.
    pub fn save(&self, layout: &Layout) -> Result<(), AgentError> {
        write_json(&layout.instance_state(&self.spec.instance), self)
    }

    /// Enters a phase.
    pub fn enter(&mut self, phase: Phase, now_ms: u64) {
        self.phase = phase;
        self.since_ms = now_ms;
    }

    /// Whether its processes lived before this boot of the machine.
    pub fn is_of_another_boot(&self, boot_id: &str) -> bool {
        self.process.as_ref().is_some_and(|process| process.boot_id != boot_id)
    }

    /// Its living processes in a snapshot.
    pub fn living(&self, layout: &Layout, snapshot: &[Process], boot_id: &str) -> Vec<Process> {
        let leader = self.process.as_ref();
        let known: BTreeSet<ProcessId> = self.members.iter().chain(leader).cloned().collect();
        let (mark, state) = (layout.mark(&self.spec.instance), layout.state.display().to_string());
        procfs::members(snapshot, boot_id, &known, leader.map(|leader| leader.pid), (&mark, &state))
    }

    /// The facts, with `living` as observed now.
    pub fn facts(&self, living: &[Process], supervised: bool) -> InstanceFacts {
        let leader = self.process.as_ref();
        let is_leader = |process: &&Process| {
            leader.is_some_and(|leader| leader.pid == process.pid && leader.start_ticks == process.start_ticks)
        };
        let running = living.iter().any(|process| is_leader(&process));
        let state = match &self.phase {
            Phase::Idle { .. } if supervised && self.failures == 0 && !self.gave_up => InstanceState::Starting,
            Phase::Idle { .. } => InstanceState::Failed,
            Phase::Spawning if supervised || !living.is_empty() => InstanceState::Starting,
            Phase::Starting if running => InstanceState::Starting,
            Phase::Ready if running => InstanceState::Ready,
            Phase::Spawning | Phase::Starting | Phase::Ready => InstanceState::Failed,
            Phase::Ending { why: Why::Failed, .. } => InstanceState::Failed,
            Phase::Ending { why: Why::Port, .. } => InstanceState::Starting,
            Phase::Ending { .. } => InstanceState::Stopping,
        };
        // Since when it does not serve; nobody knows where it died unseen.
        let failed_at = self.last_failure.as_ref().map(|failure| failure.at.clone());
        let since = match (state, &self.phase) {
            (InstanceState::Failed, Phase::Idle { .. } | Phase::Ending { .. }) => failed_at,
            (InstanceState::Failed, _) => None,
            _ => (self.since_ms > 0).then(|| rfc3339(self.since_ms)),
        };
        let bytes: u64 = living.iter().filter_map(|process| procfs::anonymous_bytes(process.pid)).sum();
        InstanceFacts {
            instance: self.spec.instance.clone(),
            specification: self.spec.specification.clone(),
            model: self.spec.model.clone(),
            replica: self.spec.replica,
            engine: self.spec.engine,
            variant: self.spec.variant.clone(),
            accelerators: self.spec.accelerators.clone(),
            layers: self.spec.sized_for.as_ref().map(|sized| sized.layers.clone()).unwrap_or_default(),
            port: if self.port == 0 { self.spec.port } else { self.port },
            state,
            running,
            pid: leader.filter(|_| running).map(|leader| leader.pid),
            host_bytes: (!living.is_empty()).then_some(bytes),
            last_failure: self.last_failure.clone(),
            starts: self.starts,
            since,
            live_sessions: 0,
            load_ms: self.load_ms,
            measured: self.measured.clone(),
            part: self.spec.part.clone(),
        }
    }
}

/// Ids of all instances with a state folder.
pub fn recorded(layout: &Layout) -> Vec<String> {
    let Ok(entries) = fs::read_dir(layout.instances()) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| check_name("instance", name).is_ok()).collect();
    names.sort();
    names
}

/// What ended every instance at once, and nothing has started them since.
fn rebooted(at: String) -> Failure {
    let text = "the node was restarted, and nothing keeps its instances since: `flock apply` resumes them".to_owned();
    Failure { cause: "reboot".to_owned(), text, at, gave_up: false }
}

/// Facts about every instance that is desired, recorded or alive, and all processes that belong to them.
pub fn instances(layout: &Layout, supervised: bool) -> Result<(Vec<InstanceFacts>, BTreeSet<u32>), AgentError> {
    let desired = Desired::load(layout)?;
    let (snapshot, boot_id) = (procfs::look(), procfs::boot_id());
    let marked = procfs::marked(&snapshot, layout);
    let known = recorded(layout).into_iter().chain(desired.instances.keys().cloned());
    let (mut facts, mut pids) = (Vec::new(), BTreeSet::new());
    for id in known.chain(marked.iter().cloned()).collect::<BTreeSet<String>>() {
        let record =
            Record::load(layout, &id).or_else(|| desired.instances.get(&id).map(|spec| Record::new(spec.clone(), 0)));
        let orphan = || Record::orphan(layout, &id, &snapshot, &boot_id, (now_ms(), 0));
        let Some(record) = record.or_else(|| marked.contains(&id).then(orphan)) else { continue };
        let living = record.living(layout, &snapshot, &boot_id);
        pids.extend(living.iter().map(|process| process.pid));
        let mut told = record.facts(&living, supervised);
        if !supervised && record.is_of_another_boot(&boot_id) {
            let at = rfc3339(procfs::booted_ms());
            told.since = Some(at.clone());
            told.last_failure = Some(rebooted(at));
        }
        facts.push(told);
    }
    Ok((facts, pids))
}
