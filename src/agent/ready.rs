//! Asks a starting engine for a completion until it gives one, and a driver for freed memory.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{accelerators, http, net};
use crate::base::{EngineKind, Secret};
use crate::engine::{Progress, Readiness, progress_of, progress_path, readiness};

/// Between two questions.
const PAUSE: Duration = Duration::from_millis(250);
/// How long one answer may take: the first completion may compile kernels.
const ANSWER_DEADLINE: Duration = Duration::from_secs(120);
/// Longest time between two questions to an engine that is ready, and the deadline of one.
const HEALTH_PAUSE: Duration = Duration::from_secs(15);
/// How long freed memory is waited for.
pub const RELEASE_DEADLINE: Duration = Duration::from_secs(30);
/// A driver's own figures wander by less than this.
const RELEASE_NOISE: u64 = 64 << 20;

/// Something that goes on in a thread of its own until it is done or dropped.
#[derive(Debug)]
pub struct Watch {
    done: Arc<AtomicBool>,
    unwanted: Arc<AtomicBool>,
}

impl Watch {
    /// Repeats `attempt` until it says true.
    pub fn new(attempt: impl FnMut() -> bool + Send + 'static) -> Self {
        Self::every(PAUSE, attempt)
    }

    /// The same with longer pauses.
    fn every(pause: Duration, attempt: impl FnMut() -> bool + Send + 'static) -> Self {
        let (done, unwanted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (finished, stop) = (Arc::clone(&done), Arc::clone(&unwanted));
        let mut attempt = attempt;
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                if attempt() {
                    finished.store(true, Ordering::Release);
                    return;
                }
                thread::sleep(pause);
            }
        });
        Self { done, unwanted }
    }

    /// Whether it is done.
    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.unwanted.store(true, Ordering::Relaxed);
    }
}

/// Done once the engine on this port of loopback has answered a real completion.
pub fn completion(kind: EngineKind, port: u16, key: Option<Secret<String>>, served_name: String) -> Watch {
    let check = readiness(kind);
    Watch::new(move || answers(&check, port, key.as_ref(), &served_name))
}

fn answers(check: &Readiness, port: u16, key: Option<&Secret<String>>, served_name: &str) -> bool {
    let key = key.map(|key| key.reveal().as_str());
    let answer = http::post(port, check.completion_path, key, &check.body(served_name), ANSWER_DEADLINE);
    answer.is_ok_and(|(status, text)| check.accepts(status, &text))
}

/// Done once the engine on this port of loopback has left every health request without an answer for `patience`.
///
/// Any answer below 500 is a sign of life: an engine that is busy, or wants a key, lives. Time in which nobody asked
/// (the keeper itself was stopped, the machine slept) does not count.
pub fn silence(kind: EngineKind, port: u16, patience: Duration) -> Watch {
    let pause = (patience / 8).min(HEALTH_PAUSE);
    let path = readiness(kind).health_path;
    let mut silent = Duration::ZERO;
    let mut asked: Option<Instant> = None;
    Watch::every(pause, move || {
        let lives = http::status(port, path, pause).is_ok_and(|status| status < 500);
        let since = asked.replace(Instant::now()).map_or(Duration::ZERO, |asked| asked.elapsed());
        silent = if lives { Duration::ZERO } else { silent + since.min(pause * 3) };
        silent >= patience
    })
}

/// The same for an engine whose workers are on other nodes: while one of them does not answer, the engine says that it is
/// healthy, and only its work stands still. Silent, too, is an engine that gives no figures.
pub fn standstill(kind: EngineKind, port: u16, key: Option<Secret<String>>, patience: Duration) -> Watch {
    let pause = (patience / 8).min(HEALTH_PAUSE);
    let mut silent = Duration::ZERO;
    let mut asked: Option<Instant> = None;
    let mut before: Option<Progress> = None;
    Watch::every(pause, move || {
        let key = key.as_ref().map(|key| key.reveal().as_str());
        let answer = progress_path(kind).and_then(|path| http::get(port, path, key, pause).ok());
        let lives = match answer {
            Some((200, figures)) => {
                let now = progress_of(&figures);
                let stands = now.zip(before).is_some_and(|(now, before)| now.stands_still_since(&before));
                before = now;
                !stands
            }
            Some((status, _)) => status < 500,
            None => false,
        };
        let since = asked.replace(Instant::now()).map_or(Duration::ZERO, |asked| asked.elapsed());
        silent = if lives { Duration::ZERO } else { silent + since.min(pause * 3) };
        silent >= patience
    })
}

/// Done once somebody listens on this port: a worker is not asked, because it serves one client at a time and would
/// take the question for one.
pub fn listening(port: u16) -> Watch {
    Watch::new(move || net::waiting(port).is_some())
}

/// Done once a connection to this port has waited for `patience` to be accepted: the worker still serves a client that
/// is gone without a word, behind a cut cable, and its successor waits.
pub fn stuck(port: u16, patience: Duration) -> Watch {
    let mut since: Option<Instant> = None;
    Watch::every((patience / 8).min(HEALTH_PAUSE), move || {
        since = net::waiting(port).filter(|waiting| *waiting > 0).map(|_| since.unwrap_or_else(Instant::now));
        since.is_some_and(|since| since.elapsed() >= patience)
    })
}

/// Done once the driver lists none of these processes and the memory in use no longer falls, or where the
/// driver does not tell, or at the deadline.
pub fn release(node: &str, devices: Vec<String>, pids: BTreeSet<u32>) -> Watch {
    let node = node.to_owned();
    let started = Instant::now();
    let mut before: Option<u64> = None;
    Watch::new(move || {
        if devices.is_empty() || started.elapsed() > RELEASE_DEADLINE {
            return true;
        }
        let Some((used, holders)) = accelerators::held(&node, &devices) else { return true };
        let settled = before.is_some_and(|before| used.saturating_add(RELEASE_NOISE) >= before);
        before = Some(used);
        settled && holders.is_disjoint(&pids)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    #[test]
    fn only_a_completion_with_the_key_makes_ready() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let server = thread::spawn(move || {
            let answers = ["HTTP/1.1 503 Service Unavailable\r\n", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\n"];
            let bodies =
                ["{\"choices\":[{\"text\":\"x\"}]}", "{\"status\":\"ok\"}", "{\"choices\":[{\"text\":\"x\"}]}"];
            let mut asked = String::new();
            for (status, body) in answers.iter().zip(bodies) {
                let (mut stream, _) = listener.accept().expect("a client");
                let mut buffer = [0u8; 4096];
                let read = stream.read(&mut buffer).expect("a request");
                asked = String::from_utf8_lossy(&buffer[..read]).into_owned();
                let length = body.len();
                write!(stream, "{status}content-length: {length}\r\nconnection: close\r\n\r\n{body}")
                    .expect("answered");
            }
            asked
        });
        let watch = completion(EngineKind::LlamaCpp, port, Some(Secret::new("secret-key".into())), "m".into());
        let asked = server.join().expect("all three were asked");
        assert!(asked.to_ascii_lowercase().contains("authorization: bearer secret-key"), "{asked}");
        let until = Instant::now() + Duration::from_secs(5);
        while !watch.is_done() && Instant::now() < until {
            thread::sleep(Duration::from_millis(10));
        }
        assert!(watch.is_done());
    }

    #[test]
    fn nothing_to_wait_for_without_accelerators() {
        let watch = release("ada-1", Vec::new(), BTreeSet::new());
        let until = Instant::now() + Duration::from_secs(5);
        while !watch.is_done() && Instant::now() < until {
            thread::sleep(Duration::from_millis(10));
        }
        assert!(watch.is_done());
    }
}
