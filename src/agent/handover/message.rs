//! What the two ends say to each other beside the bytes.

use serde::{Deserialize, Serialize};

/// First content of both ends.
pub const GREETING: &[u8] = b"flock handover 1";
/// Longest request or answer.
pub const MAX_MESSAGE: usize = 8 << 10;

/// What the taking end asks for; an empty content ends the connection.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Wanted {
    /// A file of the set.
    pub name: String,
    /// First byte to send.
    pub offset: u64,
}

/// What it is told before the bytes.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Given {
    /// The file's size; `None` where it is not given.
    pub size_bytes: Option<u64>,
    /// Why not.
    #[serde(default)]
    pub problem: Option<String>,
}
