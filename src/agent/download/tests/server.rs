//! A small HTTP server that answers as a test says, and remembers what it was asked.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A request.
#[derive(Debug, Clone)]
pub struct Asked {
    pub path: String,
    pub range: Option<Range<u64>>,
    pub login: Option<String>,
    /// How many were asked before on this server.
    pub number: usize,
}

/// What it answers.
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    /// What `Content-Length` says; none where it says nothing.
    pub length: Option<usize>,
    pub body: Vec<u8>,
    pub rest: Vec<u8>,
    pub then: Then,
}

/// What follows the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// The next request.
    Next,
    /// The end of the connection.
    Close,
    /// Silence.
    Silence,
    /// A byte of the rest now and then.
    Trickle,
}

pub type Handler = dyn Fn(&Asked) -> Reply + Send + Sync;

pub struct Server {
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    pub sent: Arc<AtomicUsize>,
}

impl Reply {
    pub fn new(status: u16, headers: &[(&str, &str)], body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Self { status, headers, length: Some(body.len()), body, rest: Vec::new(), then: Then::Next }
    }

    /// A file, or the piece of it that was asked for.
    pub fn file(asked: &Asked, content: &[u8]) -> Self {
        let Some(range) = &asked.range else { return Self::new(200, &[], content) };
        let (from, to) = (range.start as usize, (range.end as usize).min(content.len()));
        if from >= content.len() {
            return Self::new(416, &[("Content-Range", &format!("bytes */{}", content.len()))], "");
        }
        let place = format!("bytes {from}-{}/{}", to - 1, content.len());
        Self::new(206, &[("Content-Range", &place)], &content[from..to])
    }

    /// So many bytes of it, and then something else.
    pub fn cut(mut self, bytes: usize, then: Then) -> Self {
        self.rest = self.body.split_off(bytes.min(self.body.len()));
        self.then = then;
        self
    }
}

impl Server {
    pub fn start(handler: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let (asked, sent) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
        let (log, count, handler): (_, _, Arc<Handler>) = (Arc::clone(&asked), Arc::clone(&sent), Arc::new(handler));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (log, count, handler) = (Arc::clone(&log), Arc::clone(&count), Arc::clone(&handler));
                std::thread::spawn(move || serve(stream, &log, &count, &*handler));
            }
        });
        Self { address, asked, sent }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("sound").clone()
    }

    /// Bytes of bodies that it sent.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::SeqCst) as u64
    }
}

fn serve(mut stream: TcpStream, log: &Mutex<Vec<Asked>>, count: &AtomicUsize, handler: &Handler) {
    while let Some(mut asked) = request(&mut stream) {
        {
            let mut log = log.lock().expect("sound");
            asked.number = log.len();
            log.push(asked.clone());
        }
        let reply = handler(&asked);
        let mut head = format!("HTTP/1.1 {} Whatever\r\n", reply.status);
        for (name, value) in &reply.headers {
            head += &format!("{name}: {value}\r\n");
        }
        if let Some(length) = reply.length {
            head += &format!("Content-Length: {length}\r\n");
        }
        if stream.write_all(format!("{head}\r\n").as_bytes()).is_err() {
            return;
        }
        for piece in reply.body.chunks(64 << 10) {
            if stream.write_all(piece).is_err() {
                return;
            }
            count.fetch_add(piece.len(), Ordering::SeqCst);
        }
        match reply.then {
            Then::Next if reply.length.is_some() => {}
            Then::Next | Then::Close => return,
            Then::Silence => {
                let _ = stream.read(&mut [0]);
                return;
            }
            Then::Trickle => {
                for byte in reply.rest {
                    if stream.write_all(&[byte]).is_err() {
                        return;
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
                return;
            }
        }
    }
}

fn request(stream: &mut TcpStream) -> Option<Asked> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let header = |name: &str| {
        let found = head.lines().find(|line| line.to_ascii_lowercase().starts_with(&format!("{name}: ")));
        found.and_then(|line| line.split_once(": ")).map(|(_, value)| value.trim().to_owned())
    };
    let range = header("range").and_then(|range| {
        let (from, last) = range.strip_prefix("bytes=")?.split_once('-')?;
        Some(from.parse().ok()?..last.parse::<u64>().ok()? + 1)
    });
    let path = head.split(' ').nth(1)?.to_owned();
    Some(Asked { path, range, login: header("authorization"), number: 0 })
}
