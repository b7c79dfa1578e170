//! The frames of the agent protocol, over the standard streams of `flock-agent serve`; they carry a
//! [`Request`](super::Request) there and a [`Response`](super::Response) back.
//!
//! A frame is one kind byte (`J` a JSON message, `B` raw bytes of a file), a big-endian `u32` length and
//! the payload. The client sends one request and reads one response; `Put` is followed by `B` frames that
//! end with an empty one, and only then answered. Before the first frame both sides skip anything up to the
//! line [`HELLO`], so that a login banner cannot corrupt the stream.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::read::refuse_control_characters;
use crate::base::many_lines;

/// The line after which frames begin, in both directions; it carries the protocol's version.
pub const HELLO: &str = "flock-agent protocol 1";
/// The protocol's version, as [`HELLO`] says it.
pub const PROTOCOL: u32 = 1;
/// Longest JSON frame that is accepted.
pub const MAX_JSON: usize = 64 << 20;
/// Longest raw frame that is sent or accepted.
pub const MAX_RAW: usize = 1 << 20;
/// Kind byte of a JSON frame.
pub const KIND_JSON: u8 = b'J';
/// Kind byte of a raw frame.
pub const KIND_RAW: u8 = b'B';

/// Why bytes are no frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Neither `J` nor `B`.
    #[error("unknown frame kind {0:#04x}")]
    Kind(u8),
    /// Longer than the limit.
    #[error("a frame of {0} bytes is longer than allowed")]
    TooLong(usize),
    /// JSON that is no message.
    #[error("malformed message: {0}")]
    Json(String),
}

/// Header of a frame: kind and length, checked against the limits.
pub fn frame_header(header: [u8; 5]) -> Result<(u8, usize), FrameError> {
    let length = u32::from_be_bytes([header[1], header[2], header[3], header[4]]) as usize;
    let limit = match header[0] {
        KIND_JSON => MAX_JSON,
        KIND_RAW => MAX_RAW,
        other => return Err(FrameError::Kind(other)),
    };
    if length > limit { Err(FrameError::TooLong(length)) } else { Ok((header[0], length)) }
}

/// A JSON frame, header included.
pub fn json_frame(message: &impl Serialize) -> Result<Vec<u8>, FrameError> {
    let payload = serde_json::to_vec(message).map_err(|error| FrameError::Json(error.to_string()))?;
    if payload.len() > MAX_JSON {
        return Err(FrameError::TooLong(payload.len()));
    }
    Ok(frame(KIND_JSON, &payload))
}

/// A raw frame, header included. `payload` must not be longer than [`MAX_RAW`].
pub fn raw_frame(payload: &[u8]) -> Vec<u8> {
    debug_assert!(payload.len() <= MAX_RAW);
    frame(KIND_RAW, payload)
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(5 + payload.len());
    bytes.push(kind);
    bytes.extend_from_slice(&(payload.len() as u32).to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// Reads the payload of a JSON frame.
pub fn json_message<T: for<'de> Deserialize<'de>>(payload: &[u8]) -> Result<T, FrameError> {
    serde_json::from_slice(payload).map_err(malformed)
}

/// Reads the payload of a JSON frame whose texts are shown to people. Whoever wrote them (an engine, a file's name, a
/// node that is not what it seems), a terminal obeys none: control characters other than line breaks and tabs become
/// `?`, and a line ends in one character.
pub fn shown_message<T: for<'de> Deserialize<'de>>(payload: &[u8]) -> Result<T, FrameError> {
    if std::str::from_utf8(payload).is_ok_and(|text| refuse_control_characters(text).is_ok()) {
        return json_message(payload);
    }
    let value: Value = json_message(payload)?;
    serde_json::from_value(tidy(value)).map_err(malformed)
}

fn tidy(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(many_lines(&text)),
        Value::Array(items) => Value::Array(items.into_iter().map(tidy).collect()),
        Value::Object(fields) => {
            Value::Object(fields.into_iter().map(|(name, value)| (many_lines(&name), tidy(value))).collect())
        }
        other => other,
    }
}

/// The parser's message quotes what it met.
fn malformed(error: serde_json::Error) -> FrameError {
    FrameError::Json(many_lines(&error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Response;

    #[test]
    fn no_text_of_a_node_moves_the_cursor() {
        let text = "a\u{1b}[31m\u{9b}2J b\r\nc\td\u{7f}";
        let payload = serde_json::to_vec(&Response::Log { next: 1, text: text.into() }).expect("plain data");
        assert_eq!(json_message(&payload), Ok(Response::Log { next: 1, text: text.into() }));
        let shown = Response::Log { next: 1, text: "a?[31m?2J b\nc\td?".into() };
        assert_eq!(shown_message(&payload), Ok(shown));
        let fine = serde_json::to_vec(&Response::Log { next: 1, text: "é\n".into() }).expect("plain data");
        assert_eq!(shown_message(&fine), Ok(Response::Log { next: 1, text: "é\n".into() }));
        for broken in ["{\"response\":\"\\u001b[2J\"}", "{\"response\":\"\u{9b}2J\"}", "\u{1b}"] {
            for error in [shown_message::<Response>(broken.as_bytes()), json_message(broken.as_bytes())] {
                let text = error.expect_err("no message").to_string();
                assert!(!text.contains(char::is_control), "{text:?}");
            }
        }
    }

    #[test]
    fn the_hello_line_says_the_protocol() {
        assert_eq!(HELLO, format!("flock-agent protocol {PROTOCOL}"));
    }
}
