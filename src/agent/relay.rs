//! From `serve` to the keeper, which is started where a request needs it and none runs.

use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::error::AgentError;
use super::files::Lock;
use super::frames::{read_message, write_message};
use super::layout::Layout;
use super::procfs;
use super::socket::{self, Ask, Say};
use crate::inventory::{Request, Response};

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

/// Hands a request to the keeper. An older keeper is replaced first; a newer one stays.
pub fn ask_keeper(layout: &Layout, request: &Request) -> Result<Response, AgentError> {
    let nothing_here = || !layout.state.exists() && procfs::marked(&procfs::snapshot(), layout).is_empty();
    if matches!(request, Request::Forget { .. }) && nothing_here() {
        return Ok(Response::Done);
    }
    // A keeper that was just ending says so, and one that was killed says nothing. All four requests may be
    // repeated: asking again for what is already so changes nothing.
    let mut last = AgentError::Other("the keeper does not answer".into());
    for _ in 0..ATTEMPTS {
        let mut stream = connect_current(layout)?;
        match ask(&mut stream, &Ask::Do { request: Box::new(request.clone()) }) {
            Ok(Say::Answer { response }) => {
                if matches!(request, Request::Forget { .. }) && *response == Response::Done {
                    wait_for_end(&mut stream);
                }
                return Ok(*response);
            }
            Ok(Say::Bye) => wait_for_end(&mut stream),
            Ok(Say::Keeper { .. }) => break,
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A keeper that ends closes the connection when its socket is gone.
fn wait_for_end(stream: &mut UnixStream) {
    let _ = stream.set_read_timeout(Some(DEADLINE));
    let _ = read_message::<Say>(stream);
}

fn connect_current(layout: &Layout) -> Result<UnixStream, AgentError> {
    let mut stream = match socket::connect(layout) {
        Some(stream) => stream,
        None => start(layout)?,
    };
    let Say::Keeper { version } = ask(&mut stream, &Ask::Hello)? else {
        return Err(AgentError::Other("the keeper does not say who it is".into()));
    };
    if numbers(&version) >= numbers(env!("CARGO_PKG_VERSION")) {
        return Ok(stream);
    }
    ask(&mut stream, &Ask::Quit)?;
    start(layout)
}

/// An error here is not one of the stream that `serve` answers on.
fn ask(stream: &mut UnixStream, question: &Ask) -> Result<Say, AgentError> {
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
            return Err(AgentError::Other("a keeper holds the lock and does not answer".into()));
        }
        // Perhaps one that started at the same time as this.
        if let Some(stream) = socket::connect(layout) {
            return Ok(stream);
        }
        thread::sleep(Duration::from_millis(50));
    }
    let mut command = Command::new(SELF);
    command.arg0("flock-agent").args(["keep", "--cluster", &layout.cluster, "--node", &layout.node]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
    let mut child = command.spawn().map_err(AgentError::file("starting", Path::new(SELF)))?;
    // Collected where this process lives longer, so that it leaves no zombie; init takes it otherwise.
    thread::spawn(move || child.wait());
    let until = Instant::now() + DEADLINE;
    loop {
        if let Some(stream) = socket::connect(layout) {
            return Ok(stream);
        }
        if Instant::now() > until {
            let log = layout.keeper_log();
            return Err(AgentError::Other(format!("no keeper listens after 5 s, see {}", log.display())));
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// The numbers of a version, for comparing.
fn numbers(version: &str) -> Vec<u64> {
    version.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_their_numbers() {
        assert!(numbers("0.10.0") > numbers("0.9.3"));
        assert!(numbers("0.1.0") >= numbers("0.1.0"));
    }
}
