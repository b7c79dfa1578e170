//! `flock-agent keep`: the one process per cluster and node that outlives the connection and keeps what the
//! desired state names. Level-triggered: a tick compares, requests only change what is desired and wake it.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::clock::now_ms;
use super::error::AgentError;
use super::files::{Lock, private_folder, remove, remove_folder, sweep, sweep_agents, take_ballast, write_json};
use super::layout::{Layout, check_name};
use super::procfs::{self, Process};
use super::socket::{Answers, Ask, Badge, Say, Socket};
use super::state::{Desired, recorded};
use super::supervise::{Instance, Outcome, View};
use super::version::version;
use super::{lease, logs, relay};
use crate::inventory::{InstanceFacts, InstanceSpec, PROTOCOL, Refusal, Request, Response};

/// Between ticks while something changes, and otherwise.
const BUSY: Duration = Duration::from_millis(200);
const CALM: Duration = Duration::from_secs(1);
/// Between readings of the whole process table, while engines start, and while nothing changes.
const START_SCAN: Duration = Duration::from_secs(2);
const FULL_SCAN: Duration = Duration::from_secs(10);
/// A keeper with nothing to keep ends after this.
const IDLE: Duration = Duration::from_secs(60);
/// What a stop may take beyond its grace: SIGKILL, the memory's release, and some.
const STOP_SLACK_MS: u64 = 75_000;

/// How long the order to forget waits for what is being stopped.
const FORGET_WAIT_MS: u64 = 45_000;

/// Everything that ticks and requests share.
#[derive(Debug)]
pub struct Keeper {
    layout: Layout,
    boot_id: String,
    desired: Desired,
    instances: BTreeMap<String, Instance>,
    scanned: Option<Instant>,
    used: Instant,
    quit: bool,
}

/// The keeper between threads.
#[derive(Debug, Clone)]
pub struct Shared(Arc<(Mutex<Keeper>, Condvar)>);

/// Runs until there is nothing to keep, the state folder is gone or a newer keeper takes over. Returns at once
/// where another keeper runs.
pub fn keep(layout: &Layout) -> Result<(), AgentError> {
    // A session of its own: the end of the connection that started it is none of its business.
    let _ = rustix::process::setsid();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let _ = rustix::process::chdir("/");
    // It was started as /proc/self/exe; people should find it by its name.
    let _ = std::fs::write("/proc/self/comm", "flock-agent");
    if procfs::process(std::process::id()).is_none() {
        // Every engine would look dead, and would be started again and again.
        return Err(AgentError::Other("/proc is not readable here: engines cannot be watched".into()));
    }
    let Some(lock) = lock(layout)? else { return Ok(()) };
    let note = |text: &str| logs::note(&layout.keeper_log(), text);
    let shared = Shared(Arc::new((Mutex::new(Keeper::load(layout)?), Condvar::new())));
    // Requests that come as soon as it listens wait for this: one may be to forget the folder that is written to here.
    let beginning = shared.lock();
    sweep_agents(&layout.home.join(".local/share/flock/agents"));
    let mut socket = Socket::bind(layout, &shared)?;
    write_badge(layout, socket.path())?;
    note(&format!("keeper {} began as process {}", version(), std::process::id()));
    drop(beginning);
    loop {
        let mut keeper = shared.lock();
        if !lock.is_current() {
            break;
        }
        let pause = keeper.tick();
        shared.0.1.notify_all();
        if keeper.quit {
            break;
        }
        if !socket.is_there() {
            // Session managers and cleaners empty the folders that sockets lie in.
            socket = Socket::bind(layout, &shared)?;
            write_badge(layout, socket.path())?;
        }
        drop(shared.0.1.wait_timeout(keeper, pause));
    }
    // A request that asked for the end is answered by its own thread; give it the time.
    thread::sleep(Duration::from_millis(300));
    if lock.is_current() {
        note("keeper ended");
        remove(&layout.keeper())?;
    }
    drop(socket);
    Ok(())
}

/// The lock, with some patience for a keeper that is just ending.
fn lock(layout: &Layout) -> Result<Option<Lock>, AgentError> {
    private_folder(&layout.state)?;
    let until = Instant::now() + Duration::from_secs(2);
    loop {
        match Lock::attempt(&layout.keeper_lock())? {
            Some(lock) if lock.is_current() => return Ok(Some(lock)),
            _ if Instant::now() > until => return Ok(None),
            _ => thread::sleep(Duration::from_millis(50)),
        }
    }
}

fn write_badge(layout: &Layout, socket: &Path) -> Result<(), AgentError> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let (version, socket, program) = (version().to_owned(), socket.to_owned(), relay::own_file());
    write_json(&layout.keeper(), &Badge { pid: std::process::id(), version, socket, host, program })
}

impl Keeper {
    fn load(layout: &Layout) -> Result<Self, AgentError> {
        let (boot_id, desired) = (procfs::boot_id(), Desired::load(layout)?);
        let (layout, instances, used) = (layout.clone(), BTreeMap::new(), Instant::now());
        let mut keeper = Self { layout, boot_id, desired, instances, scanned: None, used, quit: false };
        keeper.adopt(recorded(&keeper.layout), &procfs::snapshot());
        Ok(keeper)
    }

    /// Takes in what is desired, what is recorded, and what nothing but the marks of living processes tells of.
    fn adopt(&mut self, recorded: Vec<String>, snapshot: &[Process]) {
        let marked = procfs::marked(snapshot, &self.layout);
        let ids = recorded.into_iter().chain(self.desired.instances.keys().cloned()).chain(marked);
        for id in ids.collect::<BTreeSet<String>>() {
            if let Entry::Vacant(place) = self.instances.entry(id) {
                let desired = self.desired.instances.get(place.key());
                let instance = Instance::adopt(&self.layout, place.key(), desired, &self.boot_id, snapshot);
                place.insert(instance);
            }
        }
    }

    /// Compares everything once; how long nothing needs to be done.
    fn tick(&mut self) -> Duration {
        let moving = self.instances.values().any(Instance::is_moving);
        let often = self.instances.values().any(Instance::is_starting);
        let interval = if often { START_SCAN } else { FULL_SCAN };
        let due = self.scanned.is_none_or(|scanned| scanned.elapsed() >= interval);
        let snapshot = (moving || due).then(procfs::snapshot);
        if due {
            self.scanned = Some(Instant::now());
            self.bound_logs();
            sweep(&self.layout.state, Duration::ZERO);
            for id in self.instances.keys() {
                sweep(&self.layout.instance(id), Duration::ZERO);
            }
            take_ballast(&self.layout.state);
            self.adopt(Vec::new(), snapshot.as_deref().unwrap_or_default());
        }
        let mut ports: BTreeMap<String, u16> =
            self.instances.iter().map(|(id, instance)| (id.clone(), instance.record.port)).collect();
        let mut gone = Vec::new();
        for (id, instance) in &mut self.instances {
            let taken = ports.iter().filter(|(other, port)| *other != id && **port != 0);
            let others = taken.map(|(_, port)| *port).collect();
            let view = View {
                layout: &self.layout,
                desired: self.desired.instances.get(id),
                snapshot: snapshot.as_deref(),
                boot_id: &self.boot_id,
                ports: &others,
                now: now_ms(),
            };
            match instance.step(&view) {
                Ok(Outcome::Kept) => {}
                Ok(Outcome::Gone) => gone.push(id.clone()),
                // One bad record, one full disk must not stop the others.
                Err(error) => logs::note(&self.layout.keeper_log(), &format!("{id}: {}", error.chain())),
            }
            ports.insert(id.clone(), instance.record.port);
        }
        for id in gone {
            self.instances.remove(&id);
        }
        if !self.desired.instances.is_empty() || !self.instances.is_empty() {
            self.used = Instant::now();
        }
        if self.used.elapsed() >= IDLE {
            self.quit = true;
        }
        if self.instances.values().all(Instance::is_settled) { CALM } else { BUSY }
    }

    fn bound_logs(&mut self) {
        for (id, instance) in &mut self.instances {
            let path = self.layout.log(id);
            if logs::bound(&path, logs::LIMIT, logs::KEPT).unwrap_or(false) {
                instance.record.log_from = 0;
                let _ = instance.record.save(&self.layout);
            }
        }
    }

    fn facts(&self) -> Vec<InstanceFacts> {
        let snapshot = if self.instances.is_empty() { Vec::new() } else { procfs::snapshot() };
        let facts = |instance: &Instance| {
            let living = instance.record.living(&self.layout, &snapshot, &self.boot_id);
            instance.record.facts(&living, true)
        };
        self.instances.values().map(facts).collect()
    }

    /// Refuses what is older than the node's, else changes what is desired: on disk first, so that what could not be
    /// written down is not done either.
    fn desire(&mut self, generation: u64, change: impl FnOnce(&mut Desired)) -> Result<(), AgentError> {
        if self.quit {
            return Err(AgentError::Other("the keeper is ending; ask again".into()));
        }
        lease::check_generation(&self.layout, generation)?;
        let mut desired = self.desired.clone();
        desired.generation = desired.generation.max(generation);
        change(&mut desired);
        if desired != self.desired || !self.layout.desired().exists() {
            desired.save(&self.layout)?;
        }
        self.desired = desired;
        self.used = Instant::now();
        Ok(())
    }

    fn start(&mut self, generation: u64, spec: InstanceSpec) -> Result<Response, AgentError> {
        check_name("instance", &spec.instance)?;
        if spec.argv.is_empty() {
            return Err(AgentError::Other("the argument vector is empty".into()));
        }
        let id = spec.instance.clone();
        self.desire(generation, |desired| {
            desired.instances.insert(id.clone(), spec.clone());
            desired.started.insert(id.clone(), generation);
        })?;
        let instance = self.instances.entry(id).or_insert_with(|| Instance::new(spec, now_ms()));
        instance.try_again();
        self.tick();
        Ok(Response::Instances { instances: self.facts(), supervised: true })
    }

    /// Takes it out of the desired state; whether there is something to wait for.
    fn begin_stop(&mut self, generation: u64, id: &str, grace_ms: u64) -> Result<bool, AgentError> {
        check_name("instance", id)?;
        self.desire(generation, |desired| {
            desired.instances.remove(id);
            desired.started.remove(id);
        })?;
        let Some(instance) = self.instances.get_mut(id) else { return Ok(false) };
        // It ends whether or not that can be written down: a keeper after this one sees that it is not desired.
        if let Err(error) = instance.end(&self.layout, grace_ms, now_ms()) {
            logs::note(&self.layout.keeper_log(), &format!("{id}: {}", error.chain()));
        }
        Ok(true)
    }

    fn supervise(&mut self, generation: u64) -> Result<Response, AgentError> {
        self.desire(generation, |_| {})?;
        self.instances.values_mut().for_each(Instance::try_again);
        self.tick();
        Ok(Response::Instances { instances: self.facts(), supervised: true })
    }

    fn forget(&mut self, generation: u64) -> Result<Response, AgentError> {
        self.desire(generation, |_| {})?;
        // Whatever is known or not: no process may lose the folder that its marks name.
        let marked = procfs::marked(&procfs::snapshot(), &self.layout);
        let ids: BTreeSet<&String> =
            self.desired.instances.keys().chain(self.instances.keys()).chain(&marked).collect();
        if !ids.is_empty() {
            let ids: Vec<&str> = ids.into_iter().map(String::as_str).collect();
            return Err(AgentError::Other(format!("instances are still here: {}", ids.join(", "))));
        }
        self.quit = true;
        remove_folder(&self.layout.state)?;
        // The cluster's folder goes with its last node.
        if let Some(cluster) = self.layout.state.parent() {
            let _ = std::fs::remove_dir(cluster);
        }
        Ok(Response::Done)
    }
}

impl Shared {
    /// The keeper. A request that panicked has changed nothing that a tick does not put right.
    fn lock(&self) -> MutexGuard<'_, Keeper> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers one request of `serve`.
    pub fn answer(&self, request: Request) -> Response {
        let answer = match request {
            Request::Start { generation, spec } => self.lock().start(generation, *spec),
            Request::Stop { generation, instance, grace_ms, before_start } => {
                self.stop(generation, &instance, grace_ms, before_start)
            }
            Request::Supervise { generation } => self.lock().supervise(generation),
            Request::Forget { generation } => self.forget(generation),
            _ => Err(AgentError::Other("this request is not for the keeper".into())),
        };
        self.0.1.notify_all();
        answer.unwrap_or_else(|error| Response::Refused { refusal: error.into() })
    }

    /// Ends this keeper and leaves its engines alone.
    pub fn quit(&self) {
        self.lock().quit = true;
        self.0.1.notify_all();
    }

    /// Forgets, once what an earlier order stops is gone: whoever gave it may have died since.
    fn forget(&self, generation: u64) -> Result<Response, AgentError> {
        let mut keeper = self.lock();
        let until = now_ms().saturating_add(FORGET_WAIT_MS);
        while keeper.desired.instances.is_empty() && !keeper.instances.is_empty() && !keeper.quit && now_ms() < until {
            keeper = self.0.1.wait_timeout(keeper, BUSY).unwrap_or_else(PoisonError::into_inner).0;
        }
        keeper.forget(generation)
    }

    fn stop(&self, generation: u64, id: &str, grace_ms: u64, before_start: bool) -> Result<Response, AgentError> {
        let mut keeper = self.lock();
        if before_start && keeper.desired.started.get(id) == Some(&generation) {
            let text = format!("instance {id} was started by this very apply, after it was stopped");
            return Err(Refusal::Failed { text }.into());
        }
        if !keeper.begin_stop(generation, id, grace_ms)? {
            return Ok(Response::Done);
        }
        let until = now_ms().saturating_add(grace_ms).saturating_add(STOP_SLACK_MS);
        // Once: the ticks that follow wake this thread, and it must not wake them in turn.
        self.0.1.notify_all();
        loop {
            if !keeper.instances.contains_key(id) {
                return Ok(Response::Done);
            }
            if keeper.desired.instances.contains_key(id) {
                return Err(Refusal::Failed { text: format!("instance {id} was declared again meanwhile") }.into());
            }
            if now_ms() > until || keeper.quit {
                let members = keeper.instances[id].record.members.iter().map(|process| process.pid.to_string());
                let pids: Vec<String> = members.collect();
                return Err(AgentError::Other(format!("instance {id} does not end: processes {}", pids.join(", "))));
            }
            let waited = self.0.1.wait_timeout(keeper, BUSY);
            keeper = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Answers for Shared {
    fn answer(&self, ask: Ask) -> Say<Response> {
        match ask {
            Ask::Hello => Say::Keeper { version: version().to_owned(), protocol: PROTOCOL },
            Ask::Quit => {
                self.quit();
                Say::Bye
            }
            // Whoever asks then starts another.
            Ask::Do { .. } if self.lock().quit => Say::Bye,
            Ask::Do { request } => Say::Answer { response: self.answer(*request) },
        }
    }
}
