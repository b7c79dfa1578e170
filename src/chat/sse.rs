//! Server-sent events, parsed as bytes arrive.

/// Longest event that is accepted, in bytes.
const MAX_EVENT: usize = 4 << 20;

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The `event:` field; `message` where there is none.
    pub kind: String,
    /// The `data:` lines, joined by line feeds.
    pub data: String,
}

/// Why bytes are no event stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// An event longer than the limit.
    #[error("an event is longer than 4 MiB")]
    TooLong,
}

/// Turns the bytes of a `text/event-stream` into events. Pieces may end anywhere, inside a character too.
/// Lines end with LF, CRLF or CR.
#[derive(Debug, Default)]
pub struct EventParser {
    line: Vec<u8>,
    kind: Option<String>,
    data: Option<String>,
    after_cr: bool,
    begun: bool,
}

impl EventParser {
    /// At the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes more bytes; returns the events they complete.
    ///
    /// # Errors
    /// [`EventError::TooLong`]; the parser is of no use afterwards.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<Event>, EventError> {
        let mut events = Vec::new();
        for &byte in bytes {
            let after_cr = std::mem::take(&mut self.after_cr);
            match byte {
                b'\n' if after_cr => {}
                b'\n' | b'\r' => {
                    self.after_cr = byte == b'\r';
                    events.extend(self.end_line());
                }
                _ => {
                    if self.line.len() + self.data.as_ref().map_or(0, String::len) >= MAX_EVENT {
                        return Err(EventError::TooLong);
                    }
                    self.line.push(byte);
                }
            }
        }
        Ok(events)
    }

    fn end_line(&mut self) -> Option<Event> {
        let mut line = std::mem::take(&mut self.line);
        if !std::mem::replace(&mut self.begun, true) && line.starts_with(b"\xef\xbb\xbf") {
            line.drain(..3);
        }
        let line = String::from_utf8_lossy(&line);
        if line.is_empty() {
            let kind = self.kind.take();
            let data = self.data.take()?;
            return Some(Event { kind: kind.unwrap_or_else(|| "message".to_owned()), data });
        }
        let (field, value) = line.split_once(':').unwrap_or((&*line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => match &mut self.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => self.data = Some(value.to_owned()),
            },
            "event" => self.kind = Some(value.to_owned()),
            // Comments (an empty field), ids and retry times mean nothing here.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = "\u{feff}: hello\ndata: {\"a\":1}\n\ndata:two\r\ndata: lines\r\n\r\nevent: error\rdata:  ü☃\r\rid: 7\nretry: 3\n\ndata\n\ndata: cut";

    fn event(kind: &str, data: &str) -> Event {
        Event { kind: kind.to_owned(), data: data.to_owned() }
    }

    #[test]
    fn any_pieces_give_the_same_events() {
        let expected = [
            event("message", "{\"a\":1}"),
            event("message", "two\nlines"),
            event("error", " ü☃"),
            event("message", ""),
        ];
        for size in [1, 2, 3, 5, 1000] {
            let mut parser = EventParser::new();
            let events: Vec<Event> =
                STREAM.as_bytes().chunks(size).flat_map(|piece| parser.push(piece).expect("short")).collect();
            assert_eq!(events, expected, "pieces of {size}");
        }
    }

    #[test]
    fn an_endless_event_is_refused() {
        let mut parser = EventParser::new();
        let line = [b'x'; 1 << 16];
        assert!((0..100).any(|_| parser.push(&line) == Err(EventError::TooLong)));
        let mut parser = EventParser::new();
        assert!((0..100).any(|_| parser.push(&[b"data: ".as_slice(), &line, b"\n"].concat()).is_err()));
    }
}
