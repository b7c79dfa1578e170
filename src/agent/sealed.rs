//! A TCP stream on which every frame is encrypted and authenticated with a key that is used for this one stream.
//!
//! A frame is a big-endian `u32` length and the sealed bytes: AES-256-GCM (NIST SP 800-38D), which the processors of
//! servers have in hardware. Its nonce is the direction and the frame's number. A frame that is altered, repeated, left
//! out or sent back does not open.
//!
//! What only fills a link is one frame that never changes, under a nonce of its own, sealed once and sent as often as
//! wanted: both ends know its bytes, so that no processor's speed is measured in place of the link's.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

use super::error::AgentError;
use crate::base::Secret;

/// Longest content of a frame.
pub const MAX_CONTENT: usize = 64 << 10;
/// What sealing adds.
const TAG: usize = 16;
/// First byte of the filler's nonce; the directions have 0 and 1.
const FILLER: u8 = 2;

/// Which end this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It connected.
    Client,
    /// It listened.
    Server,
}

/// The stream, until a deadline.
pub struct Sealed {
    stream: TcpStream,
    cipher: LessSafeKey,
    filler: Vec<u8>,
    end: End,
    sent: u64,
    received: u64,
    until: Instant,
}

/// A key from its 64 hex digits.
pub fn key(hex: &Secret<String>) -> Result<Secret<[u8; 32]>, AgentError> {
    let digits = hex.reveal();
    let wrong = || AgentError::Other("a one-time key has 64 hex digits".into());
    if digits.len() != 64 || !digits.is_ascii() {
        return Err(wrong());
    }
    let mut key = [0_u8; 32];
    for (position, byte) in key.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[position * 2..position * 2 + 2], 16).map_err(|_| wrong())?;
    }
    Ok(Secret::new(key))
}

impl Sealed {
    /// Nothing is sent yet. The key must never have been used for another stream that came this far.
    pub fn new(stream: TcpStream, key: &Secret<[u8; 32]>, end: End, until: Instant) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let cipher = cipher(key)?;
        let filler = sealed(&cipher, numbered(FILLER, 0), &vec![0_u8; MAX_CONTENT])?;
        Ok(Self { stream, cipher, filler, end, sent: 0, received: 0, until })
    }

    /// Sends the frame that fills a link.
    pub fn fill(&mut self) -> io::Result<()> {
        let filler = std::mem::take(&mut self.filler);
        let sent = self.write(&filler);
        self.filler = filler;
        sent
    }

    /// Sends one frame.
    pub fn send(&mut self, content: &[u8]) -> io::Result<()> {
        let nonce = nonce(self.end, self.sent);
        self.sent += 1;
        self.write(&sealed(&self.cipher, nonce, content)?)
    }

    fn write(&mut self, mut rest: &[u8]) -> io::Result<()> {
        while !rest.is_empty() {
            self.stream.set_write_timeout(Some(self.left()?))?;
            match self.stream.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Receives one frame; `None` for the one that fills a link.
    pub fn receive(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut header = [0_u8; 4];
        self.read(&mut header)?;
        let length = u32::from_be_bytes(header) as usize;
        if !(TAG..=MAX_CONTENT + TAG).contains(&length) {
            return Err(io::Error::other("a frame's length makes no sense"));
        }
        let mut sealed = vec![0_u8; length];
        self.read(&mut sealed)?;
        if sealed == self.filler[4..] {
            return Ok(None);
        }
        let from = if self.end == End::Client { End::Server } else { End::Client };
        let nonce = nonce(from, self.received);
        self.received += 1;
        let opened = self.cipher.open_in_place(nonce, Aad::empty(), &mut sealed).map(|content| content.len());
        let length = opened.map_err(|_| io::Error::other("a frame does not open with this key"))?;
        sealed.truncate(length);
        Ok(Some(sealed))
    }

    /// Ends sending and receiving sooner.
    pub fn end_at(&mut self, until: Instant) {
        self.until = self.until.min(until);
    }

    /// Lets what follows last until then.
    pub fn extend_to(&mut self, until: Instant) {
        self.until = until;
    }

    fn read(&mut self, mut rest: &mut [u8]) -> io::Result<()> {
        while !rest.is_empty() {
            self.stream.set_read_timeout(Some(self.left()?))?;
            match self.stream.read(rest) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => rest = &mut rest[read..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

fn cipher(key: &Secret<[u8; 32]>) -> io::Result<LessSafeKey> {
    let key = UnboundKey::new(&AES_256_GCM, key.reveal()).map_err(|_| io::Error::other("a key has 32 bytes"))?;
    Ok(LessSafeKey::new(key))
}

/// A frame: the sealed content with its length before it.
fn sealed(cipher: &LessSafeKey, nonce: Nonce, content: &[u8]) -> io::Result<Vec<u8>> {
    let length = u32::try_from(content.len() + TAG).map_err(io::Error::other)?;
    let mut frame = Vec::with_capacity(4 + content.len() + TAG);
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(content);
    let tag = cipher.seal_in_place_separate_tag(nonce, Aad::empty(), &mut frame[4..]);
    frame.extend_from_slice(tag.map_err(|_| io::Error::other("a frame is too long"))?.as_ref());
    Ok(frame)
}

fn nonce(from: End, number: u64) -> Nonce {
    numbered(u8::from(from == End::Server), number)
}

fn numbered(kind: u8, number: u64) -> Nonce {
    let mut bytes = [0_u8; 12];
    bytes[0] = kind;
    bytes[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn pair(one: &str, other: &str) -> (Sealed, Sealed, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let raw = client.try_clone().expect("a second handle");
        let (server, _) = listener.accept().expect("accepted");
        let until = Instant::now() + Duration::from_secs(20);
        let sealed = |stream, hex: &str, end| {
            Sealed::new(stream, &key(&Secret::new(hex.repeat(32))).expect("a key"), end, until).expect("made")
        };
        (sealed(client, one, End::Client), sealed(server, other, End::Server), raw)
    }

    #[test]
    fn frames_open_with_their_key_alone_and_once() {
        let (mut client, mut server, _) = pair("ab", "ab");
        client.send(b"one").expect("sent");
        client.send(b"two").expect("sent");
        server.send(b"back").expect("sent");
        assert_eq!(server.receive().expect("opened").expect("content"), b"one");
        assert_eq!(server.receive().expect("opened").expect("content"), b"two");
        assert_eq!(client.receive().expect("opened").expect("content"), b"back");
        client.fill().expect("sent");
        client.fill().expect("sent");
        client.send(b"three").expect("sent");
        assert!(server.receive().expect("opened").is_none() && server.receive().expect("opened").is_none());
        assert_eq!(server.receive().expect("opened").expect("content"), b"three");
        let (mut client, mut server, _) = pair("ab", "ac");
        client.send(b"one").expect("sent");
        assert!(server.receive().expect_err("another key").to_string().contains("does not open"));
        let (mut client, mut server, _) = pair("ab", "ac");
        client.fill().expect("sent");
        assert!(server.receive().is_err(), "the filler of another key");
    }

    #[test]
    fn what_is_repeated_or_altered_or_nonsense_does_not_open() {
        let cipher = cipher(&Secret::new([0xab; 32])).expect("a key");
        let frame = |number| sealed(&cipher, nonce(End::Client, number), b"ping").expect("sealed");
        let (_client, mut server, mut raw) = pair("ab", "ab");
        raw.write_all(&frame(0)).expect("sent");
        raw.write_all(&frame(0)).expect("sent");
        assert_eq!(server.receive().expect("opened").expect("content"), b"ping");
        assert!(server.receive().is_err(), "the same frame again");
        let (_client, mut server, mut raw) = pair("ab", "ab");
        let mut altered = frame(0);
        altered[5] ^= 1;
        raw.write_all(&altered).expect("sent");
        assert!(server.receive().is_err());
        let (_client, mut server, mut raw) = pair("ab", "ab");
        raw.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
        assert!(server.receive().expect_err("no frame").to_string().contains("makes no sense"));
    }

    #[test]
    fn a_key_is_64_digits() {
        for bad in ["", "ab", &"xy".repeat(32), &"ü".repeat(32), &"ab".repeat(33)] {
            assert!(key(&Secret::new(bad.to_owned())).is_err());
        }
    }
}
