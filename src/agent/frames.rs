//! Frames over blocking streams.

use std::io::{self, BufRead, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::AgentError;
use crate::inventory::{FrameError, HELLO, KIND_RAW, PROTOCOL, frame_header, json_frame, json_message};

/// A frame as it was read.
#[derive(Debug)]
pub enum Frame {
    /// A JSON message, not yet parsed.
    Json(Vec<u8>),
    /// A piece of a file.
    Raw(Vec<u8>),
}

/// Skips input until the hello line has passed; `false` at the end of the stream. A line that is too long
/// to be one is dropped piece by piece.
pub fn skip_to_hello(input: &mut impl BufRead) -> Result<bool, AgentError> {
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = input.take(4096).read_until(b'\n', &mut line).map_err(stream("reading the hello line"))?;
        if read == 0 {
            return Ok(false);
        }
        while line.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
            line.pop();
        }
        if line == HELLO.as_bytes() {
            return Ok(true);
        }
        if let Some(version) = line.strip_prefix(b"flock-agent protocol ").and_then(|rest| str::from_utf8(rest).ok())
            && let Ok(version) = version.parse::<u32>()
        {
            let older = if version < PROTOCOL { "flock is the older one" } else { "this agent is the older one" };
            return Err(AgentError::Other(format!(
                "flock speaks protocol {version}, flock-agent {} speaks {PROTOCOL}: {older}; use the agent that came \
                 with that flock",
                super::version::version()
            )));
        }
    }
}

/// Reads one frame; `None` at a clean end of the stream.
pub fn read_frame(input: &mut impl Read) -> Result<Option<Frame>, AgentError> {
    let mut header = [0u8; 5];
    let mut filled = 0;
    while filled < header.len() {
        match input.read(&mut header[filled..]) {
            Ok(0) if filled == 0 => return Ok(None),
            Ok(0) => return Err(stream("reading a frame")(io::ErrorKind::UnexpectedEof.into())),
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(stream("reading a frame")(error)),
        }
    }
    let (kind, length) = frame_header(header)?;
    let mut payload = Vec::new();
    // Grows with what arrives: a header alone must not reserve its length.
    let read = input.take(length as u64).read_to_end(&mut payload).map_err(stream("reading a frame"))?;
    if read < length {
        return Err(stream("reading a frame")(io::ErrorKind::UnexpectedEof.into()));
    }
    Ok(Some(if kind == KIND_RAW { Frame::Raw(payload) } else { Frame::Json(payload) }))
}

/// Reads one JSON message; `None` at a clean end of the stream.
pub fn read_message<T: DeserializeOwned>(input: &mut impl Read) -> Result<Option<T>, AgentError> {
    match read_frame(input)? {
        None => Ok(None),
        Some(Frame::Json(payload)) => Ok(Some(json_message(&payload)?)),
        Some(Frame::Raw(_)) => Err(FrameError::Kind(KIND_RAW).into()),
    }
}

/// Writes one JSON message and flushes.
pub fn write_message(output: &mut impl Write, message: &impl Serialize) -> Result<(), AgentError> {
    let bytes = json_frame(message)?;
    output.write_all(&bytes).and_then(|()| output.flush()).map_err(stream("writing a frame"))
}

fn stream(action: &'static str) -> impl FnOnce(io::Error) -> AgentError {
    move |source| AgentError::Stream { action, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::{Request, raw_frame};

    #[test]
    fn a_banner_before_the_hello_line_is_skipped() {
        let mut bytes = format!("Welcome!\r\n{}\n{HELLO}\r\n", "x".repeat(10_000)).into_bytes();
        bytes.extend(json_frame(&Request::Instances).expect("a frame"));
        bytes.extend(raw_frame(b"abc"));
        let mut input = io::BufReader::new(bytes.as_slice());
        assert!(skip_to_hello(&mut input).expect("read"));
        assert_eq!(read_message::<Request>(&mut input).expect("read"), Some(Request::Instances));
        assert!(matches!(read_frame(&mut input).expect("read"), Some(Frame::Raw(bytes)) if bytes == b"abc"));
        assert!(read_frame(&mut input).expect("read").is_none());
        assert!(!skip_to_hello(&mut io::BufReader::new(&b"nothing\n"[..])).expect("read"));
    }

    #[test]
    fn a_cut_frame_is_an_error_and_a_false_kind_too() {
        let whole = json_frame(&Request::Instances).expect("a frame");
        assert!(read_frame(&mut &whole[..3]).is_err());
        assert!(read_frame(&mut &whole[..whole.len() - 1]).is_err());
        assert!(read_frame(&mut &b"X\0\0\0\0"[..]).is_err());
        assert!(read_frame(&mut &b"B\xff\xff\xff\xff"[..]).is_err());
    }
}
