//! HTTP/1.1 to an engine on this node's loopback: one question per connection, plain text.
//!
//! Everything that a general client brings (proxies, redirects, pools, TLS, names) is out of place here, and would be a
//! twentieth of the agent.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Most bytes of an answer, head included.
const MOST: usize = 1 << 20;
/// Most header lines of an answer.
const HEADERS: usize = 64;
/// Bytes read at once.
const PIECE: usize = 4096;

/// The status that a GET is answered with; the body is not waited for.
pub fn status(port: u16, path: &str, deadline: Duration) -> io::Result<u16> {
    let mut talk = Talk::open(port, deadline)?;
    talk.say(&format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n\r\n"))?;
    talk.head().map(|head| head.status)
}

/// Status and body that a GET is answered with. `key` goes as a bearer token.
pub fn get(port: u16, path: &str, key: Option<&str>, deadline: Duration) -> io::Result<(u16, String)> {
    ask(port, &format!("GET {path}"), key, "", deadline)
}

/// Status and body that a POST of JSON is answered with. `key` goes as a bearer token.
pub fn post(port: u16, path: &str, key: Option<&str>, body: &str, deadline: Duration) -> io::Result<(u16, String)> {
    let head = "content-type: application/json\r\ncontent-length: ";
    ask(port, &format!("POST {path}"), key, &format!("{head}{}\r\n\r\n{body}", body.len()), deadline)
}

/// `rest` is what comes after the common header lines: further ones, an empty one, the body.
fn ask(port: u16, what: &str, key: Option<&str>, rest: &str, deadline: Duration) -> io::Result<(u16, String)> {
    if key.is_some_and(|key| key.contains(|c: char| c.is_control())) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the key holds a control character"));
    }
    let mut talk = Talk::open(port, deadline)?;
    let authorization = key.map_or_else(String::new, |key| format!("authorization: Bearer {key}\r\n"));
    let rest = if rest.is_empty() { "\r\n" } else { rest };
    talk.say(&format!("{what} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n{authorization}{rest}"))?;
    let head = talk.head()?;
    let body = talk.body(&head)?;
    Ok((head.status, String::from_utf8(body).map_err(|_| malformed("a body that is not UTF-8"))?))
}

/// How the end of a body is known.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Length {
    /// It has this many bytes.
    Bytes(usize),
    /// It comes in chunks.
    Chunks,
    /// The connection ends with it.
    End,
}

/// What comes before the body.
#[derive(Debug)]
struct Head {
    status: u16,
    length: Length,
}

struct Talk {
    stream: TcpStream,
    until: Instant,
    /// What was received and not yet used.
    received: Vec<u8>,
    /// All that was received.
    total: usize,
}

impl Talk {
    fn open(port: u16, deadline: Duration) -> io::Result<Self> {
        let until = Instant::now() + deadline;
        let stream = TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)), deadline)?;
        Ok(Self { stream, until, received: Vec::new(), total: 0 })
    }

    /// Time that is left; none is an error, because a socket takes zero for ever.
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }

    fn say(&mut self, text: &str) -> io::Result<()> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write_all(text.as_bytes())
    }

    /// Receives some more; `false` at the end of the stream.
    fn more(&mut self) -> io::Result<bool> {
        if self.total > MOST {
            return Err(malformed("an answer that is too long"));
        }
        self.stream.set_read_timeout(self.left()?)?;
        let mut piece = [0; PIECE];
        let read = loop {
            match self.stream.read(&mut piece) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read?,
            }
        };
        self.received.extend_from_slice(&piece[..read]);
        self.total += read;
        Ok(read > 0)
    }

    fn need_more(&mut self) -> io::Result<()> {
        if self.more()? { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// The final answer's head: the ones before it only announce it.
    fn head(&mut self) -> io::Result<Head> {
        loop {
            match head(&self.received)? {
                None => self.need_more()?,
                Some((head, used)) => {
                    self.received.drain(..used);
                    if head.status >= 200 {
                        return Ok(head);
                    }
                }
            }
        }
    }

    fn body(&mut self, head: &Head) -> io::Result<Vec<u8>> {
        match head.length {
            Length::Bytes(length) => self.take(length),
            Length::End => {
                while self.more()? {}
                Ok(std::mem::take(&mut self.received))
            }
            Length::Chunks => {
                let mut body = Vec::new();
                loop {
                    let size = match httparse::parse_chunk_size(&self.received) {
                        Ok(httparse::Status::Complete((used, size))) => {
                            self.received.drain(..used);
                            usize::try_from(size).unwrap_or(usize::MAX)
                        }
                        Ok(httparse::Status::Partial) => {
                            self.need_more()?;
                            continue;
                        }
                        Err(_) => return Err(malformed("a chunk without a size")),
                    };
                    // What follows the last chunk, trailers, tells nothing here.
                    if size == 0 {
                        return Ok(body);
                    }
                    body.append(&mut self.take(size)?);
                    if self.take(2)? != b"\r\n" {
                        return Err(malformed("a chunk of another size"));
                    }
                }
            }
        }
    }

    fn take(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.received.len() < length {
            self.need_more()?;
        }
        let rest = self.received.split_off(length);
        Ok(std::mem::replace(&mut self.received, rest))
    }
}

/// A head and its length; `None` where it goes on.
fn head(received: &[u8]) -> io::Result<Option<(Head, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut answer = httparse::Response::new(&mut headers);
    let used = match answer.parse(received) {
        Ok(httparse::Status::Complete(used)) => used,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(malformed("a head that is none")),
    };
    let status = answer.code.unwrap_or(0);
    let value = |name: &str| {
        let header = answer.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(header.value).ok().map(str::trim)
    };
    let length = if value("transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked")) {
        Length::Chunks
    } else if let Some(length) = value("content-length") {
        Length::Bytes(length.parse().map_err(|_| malformed("a length that is no number"))?)
    } else {
        Length::End
    };
    Ok(Some((Head { status, length }, used)))
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the engine sent {what}"))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    const SHORT: Duration = Duration::from_millis(300);
    const LONG: Duration = Duration::from_secs(20);

    /// Answers one question with these pieces, each sent by itself; whether it then stays on the line.
    fn engine(pieces: &[&str], stays: bool) -> (u16, thread::JoinHandle<String>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let pieces: Vec<String> = pieces.iter().map(|piece| (*piece).to_owned()).collect();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            stream.set_nodelay(true).expect("set");
            let mut buffer = [0; 4096];
            let mut asked = Vec::new();
            while !String::from_utf8_lossy(&asked).contains("\r\n\r\n") {
                let read = stream.read(&mut buffer).expect("a question");
                asked.extend_from_slice(&buffer[..read]);
            }
            for piece in pieces {
                // A client that has heard enough hangs up.
                if stream.write_all(piece.as_bytes()).is_err() {
                    break;
                }
                thread::sleep(Duration::from_millis(5));
            }
            if stays {
                let _ = stream.read(&mut buffer);
            }
            String::from_utf8_lossy(&asked).into_owned()
        });
        (port, server)
    }

    fn posted(pieces: &[&str], stays: bool) -> io::Result<(u16, String)> {
        let (port, server) = engine(pieces, stays);
        let answer = post(port, "/x", Some("abc"), "{}", if stays { SHORT } else { LONG });
        let asked = server.join().expect("asked").to_ascii_lowercase();
        assert!(asked.starts_with("post /x http/1.1\r\n") && asked.contains("\r\nauthorization: bearer abc\r\n"));
        answer
    }

    #[test]
    fn a_body_ends_as_its_head_says() {
        let ok = |text: &str| (200, text.to_owned());
        let counted = ["HTTP/1.1 200 OK\r\nContent-Le", "ngth: 5\r\n\r\nhe", "llo and more"];
        assert_eq!(posted(&counted, false).expect("answered"), ok("hello"));
        let chunked = [
            "HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n5",
            "\r\nhello\r",
            "\n6;x=y\r\n world\r\n0\r\n",
            "\r\n",
        ];
        assert_eq!(posted(&chunked, false).expect("answered"), ok("hello world"));
        assert_eq!(posted(&["HTTP/1.0 200 OK\r\n\r\nhel", "lo"], false).expect("answered"), ok("hello"));
        let announced =
            ["HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\nHTTP/1.1 401 No\r\n", "content-length: 0\r\n\r\n"];
        assert_eq!(posted(&announced, false).expect("answered"), (401, String::new()));
    }

    #[test]
    fn what_is_cut_malformed_too_long_or_late_is_an_error() {
        let kind = |pieces: &[&str], stays| posted(pieces, stays).expect_err("no answer").kind();
        let long = "x".repeat(2 << 20);
        for (pieces, wrong) in [
            (["HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhel", ""], io::ErrorKind::UnexpectedEof),
            (["HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", "5\r\nhel"], io::ErrorKind::UnexpectedEof),
            (["HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", "5\r\nhelloo\r\n"], io::ErrorKind::InvalidData),
            (["HTTP/1.1 200 OK\r\ncontent-length: -3\r\n\r\n", ""], io::ErrorKind::InvalidData),
            (["SSH-2.0-x\r\n", ""], io::ErrorKind::InvalidData),
            (["HTTP/1.1 200 OK\r\n\r\n", long.as_str()], io::ErrorKind::InvalidData),
        ] {
            assert_eq!(kind(&pieces, false), wrong, "{:.60}", pieces.concat());
        }
        for silent in [["", ""], ["HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", "hel"]] {
            assert!(matches!(kind(&silent, true), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock));
        }
        let bad = post(1, "/x", Some("a\r\nb"), "", SHORT).expect_err("a bad key");
        assert_eq!(bad.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_status_is_known_before_the_body() {
        let (port, server) = engine(&["HTTP/1.1 503 Busy\r\ncontent-length: 100\r\n\r\n"], true);
        assert_eq!(status(port, "/health", LONG).expect("a status"), 503);
        assert!(server.join().expect("asked").starts_with("GET /health HTTP/1.1\r\n"));
        let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port").local_addr().expect("bound").port();
        assert_eq!(status(closed, "/health", LONG).expect_err("nobody").kind(), io::ErrorKind::ConnectionRefused);
    }
}
