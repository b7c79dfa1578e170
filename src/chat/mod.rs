//! Messages between flock and a model: the OpenAI chat format and server-sent events.
//!
//! In: bytes of an HTTP body. Out: messages, deltas, token counts. May import: base. Pure: whoever has the
//! connection supplies the bytes.
//!
//! Engines add fields of their own and leave out what they do not know, so every field that is read is optional
//! and unknown ones are passed over.

mod openai;
mod sse;

pub use openai::*;
pub use sse::{Event, EventError, EventParser};
