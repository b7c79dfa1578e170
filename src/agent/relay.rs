//! From `serve` to the keeper, which is started where a request needs it and none runs.

use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;

use super::error::AgentError;
use super::files::{Lock, read_json};
use super::frames::{read_message, write_message};
use super::layout::Layout;
use super::socket::{self, Ask, Badge, Say};
use super::state::Desired;
use super::version::{is_older, version};
use super::{logs, procfs, tool, unit};
use crate::inventory::{PROTOCOL, Request, Response};

/// How long a keeper may take to listen, or to end.
const DEADLINE: Duration = Duration::from_secs(5);
/// How often a request is handed to a keeper that ends under it.
const ATTEMPTS: u32 = 3;
/// This very program, also after its file was replaced.
const SELF: &str = "/proc/self/exe";

/// Whether a keeper runs. Starts none.
pub fn is_supervising(layout: &Layout) -> bool {
    let Some(mut stream) = socket::connect(layout) else { return false };
    let _ = stream.set_read_timeout(Some(DEADLINE));
    matches!(ask(&mut stream, &Ask::Hello), Ok(Say::Keeper { .. }))
}

/// What `serve` answers.
#[derive(Debug, Serialize)]
#[serde(untagged)]
#[expect(clippy::large_enum_variant, reason = "one lives at a time, and each crosses a wire")]
pub enum Answer {
    /// Its own words.
    Own(Response),
    /// The keeper's, as they came.
    Kept(Value),
}

/// Hands a request to the keeper. An older keeper is replaced first; a newer one stays.
pub fn ask_keeper(layout: &Layout, request: &Request) -> Result<Answer, AgentError> {
    let nothing_here = || !layout.state.exists() && procfs::marked(&procfs::snapshot(), layout).is_empty();
    if matches!(request, Request::Forget { .. }) && nothing_here() {
        unit::remove(layout);
        return Ok(Answer::Own(Response::Done));
    }
    // A keeper that was just ending says so, and has done nothing; one that was killed says nothing.
    let mut last = AgentError::Other("the keeper does not answer".into());
    let began = Instant::now();
    for _ in 0..ATTEMPTS {
        let mut stream = match connect_current(layout) {
            Ok(stream) => stream,
            // Killed between its hello and this, or on its way out: the next attempt starts another.
            Err(error) if began.elapsed() < DEADLINE => {
                last = error;
                continue;
            }
            Err(error) => return Err(error),
        };
        match ask(&mut stream, &Ask::Do { request: Box::new(request.clone()) }) {
            Ok(Say::Answer { response }) => {
                if matches!(request, Request::Forget { .. }) && response["response"] == "done" {
                    wait_for_end(&mut stream);
                    unit::remove(layout);
                }
                return Ok(Answer::Kept(response));
            }
            Ok(Say::Bye) => wait_for_end(&mut stream),
            Ok(Say::Keeper { .. }) => break,
            Err(error) if request.may_repeat() => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

/// A keeper that ends closes the connection when its socket is gone.
fn wait_for_end(stream: &mut UnixStream) {
    let _ = stream.set_read_timeout(Some(DEADLINE));
    let _ = read_message::<Say<Value>>(stream);
}

fn connect_current(layout: &Layout) -> Result<UnixStream, AgentError> {
    let mut stream = match socket::connect(layout) {
        Some(stream) => stream,
        None => start(layout)?,
    };
    let Say::Keeper { version: found, protocol } = ask(&mut stream, &Ask::Hello)? else {
        return Err(AgentError::Other("the keeper does not say who it is".into()));
    };
    if is_older(&found, version()) {
        // Its state is read before it is ended: what this agent cannot read it must not take over.
        Desired::load(layout)?;
        ask(&mut stream, &Ask::Quit)?;
        wait_for_end(&mut stream);
        return start(layout);
    }
    if protocol != PROTOCOL {
        return Err(AgentError::Other(format!(
            "this node is kept by flock-agent {found} (protocol {protocol}), which is newer than this one ({}, protocol \
             {PROTOCOL}): use a flock of version {found} or a later one; nothing was changed",
            version(),
        )));
    }
    if !is_older(version(), &found)
        && let Some(program) = own_file()
    {
        unit::ensure(layout, &program);
    }
    Ok(stream)
}

/// The file of this program, unless it was replaced or removed meanwhile.
pub fn own_file() -> Option<PathBuf> {
    std::env::current_exe().ok().filter(|path| tool::is_program(path))
}

/// The program that keeps: this one, or the newer one that did so last and is still there. An older flock must not
/// take a node back.
fn keeping_program(layout: &Layout) -> Result<Option<PathBuf>, AgentError> {
    let last: Option<Badge> = read_json(&layout.keeper()).ok().flatten();
    match last.filter(|last| is_older(version(), &last.version)) {
        Some(Badge { program: Some(program), .. }) if tool::is_program(&program) => Ok(Some(program)),
        _ => Desired::load(layout).map(|_| own_file()),
    }
}

/// An error here is not one of the stream that `serve` answers on.
fn ask(stream: &mut UnixStream, question: &Ask) -> Result<Say<Value>, AgentError> {
    let failed =
        |error: AgentError| AgentError::Other(format!("the keeper ended without an answer: {}", error.chain()));
    write_message(stream, question).map_err(failed)?;
    let answer = read_message(stream).map_err(failed)?;
    answer.ok_or_else(|| AgentError::Other("the keeper ended without an answer".into()))
}

/// Starts a keeper, detached, and waits until it listens. Where an older one is just ending, waits for that.
fn start(layout: &Layout) -> Result<UnixStream, AgentError> {
    let until = Instant::now() + DEADLINE;
    while Lock::attempt(&layout.keeper_lock())?.is_none() {
        if Instant::now() > until {
            let badge: Option<Badge> = read_json(&layout.keeper()).ok().flatten();
            let whose = badge.map_or(String::new(), |badge| format!(" (process {} on {})", badge.pid, badge.host));
            return Err(AgentError::Other(format!(
                "a keeper{whose} holds {} and does not answer here: end it, or use another node name where hosts share \
                 a home",
                layout.keeper_lock().display()
            )));
        }
        // Perhaps one that started at the same time as this.
        if let Some(stream) = socket::connect(layout) {
            return Ok(stream);
        }
        thread::sleep(Duration::from_millis(50));
    }
    let program = keeping_program(layout)?;
    if program.as_ref().is_some_and(|program| unit::start(layout, program))
        && let Some(stream) = wait_for_socket(layout)
    {
        return Ok(stream);
    }
    let program = program.unwrap_or_else(|| PathBuf::from(SELF));
    let mut command = Command::new(&program);
    command.arg0("flock-agent").args(["keep", "--cluster", &layout.cluster, "--node", &layout.node]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
    let mut child = command.spawn().map_err(AgentError::file("starting", &program))?;
    // Collected where this process lives longer, so that it leaves no zombie; init takes it otherwise.
    thread::spawn(move || child.wait());
    wait_for_socket(layout).ok_or_else(|| {
        let log = layout.keeper_log();
        AgentError::Other(format!("no keeper listens after 5 s, see {}: {}", log.display(), logs::last_line(&log)))
    })
}

fn wait_for_socket(layout: &Layout) -> Option<UnixStream> {
    let until = Instant::now() + DEADLINE;
    loop {
        match socket::connect(layout) {
            None if Instant::now() < until => thread::sleep(Duration::from_millis(20)),
            found => return found,
        }
    }
}
