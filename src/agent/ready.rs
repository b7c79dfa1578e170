//! Asks a starting engine for a completion until it gives one, and a driver for freed memory.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::gpu;
use crate::base::EngineKind;
use crate::engine::{Readiness, readiness};

/// Between two questions.
const PAUSE: Duration = Duration::from_millis(250);
/// How long one answer may take: the first completion may compile kernels.
const ANSWER_DEADLINE: Duration = Duration::from_secs(120);
/// Most bytes of an answer that are read.
const ANSWER_BYTES: u64 = 1 << 20;
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
    fn new(attempt: impl FnMut() -> bool + Send + 'static) -> Self {
        let (done, unwanted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (finished, stop) = (Arc::clone(&done), Arc::clone(&unwanted));
        let mut attempt = attempt;
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                if attempt() {
                    finished.store(true, Ordering::Release);
                    return;
                }
                thread::sleep(PAUSE);
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
pub fn completion(kind: EngineKind, port: u16, key: Option<String>, served_name: String) -> Watch {
    let config = ureq::Agent::config_builder().proxy(None).http_status_as_error(false);
    let agent: ureq::Agent = config.max_redirects(0).timeout_global(Some(ANSWER_DEADLINE)).build().into();
    let check = readiness(kind);
    Watch::new(move || answers(&agent, &check, port, key.as_deref(), &served_name))
}

fn answers(agent: &ureq::Agent, check: &Readiness, port: u16, key: Option<&str>, served_name: &str) -> bool {
    let path = check.completion_path;
    let mut request = agent.post(format!("http://127.0.0.1:{port}{path}")).header("content-type", "application/json");
    if let Some(key) = key {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    let Ok(mut answer) = request.send(check.body(served_name)) else { return false };
    let status = answer.status().as_u16();
    let Ok(text) = answer.body_mut().with_config().limit(ANSWER_BYTES).read_to_string() else { return false };
    check.accepts(status, &text)
}

/// Done once the driver lists none of these processes and the memory in use no longer falls, or where the
/// driver does not tell, or at the deadline.
pub fn release(accelerators: Vec<String>, pids: BTreeSet<u32>) -> Watch {
    let started = Instant::now();
    let mut before: Option<u64> = None;
    Watch::new(move || {
        if accelerators.is_empty() || started.elapsed() > RELEASE_DEADLINE {
            return true;
        }
        let Some((used, holders)) = gpu::held(&accelerators) else { return true };
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
        let watch = completion(EngineKind::LlamaCpp, port, Some("secret-key".into()), "m".into());
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
        let watch = release(Vec::new(), BTreeSet::new());
        let until = Instant::now() + Duration::from_secs(5);
        while !watch.is_done() && Instant::now() < until {
            thread::sleep(Duration::from_millis(10));
        }
        assert!(watch.is_done());
    }
}
