//! The node's clock.

use std::time::{SystemTime, UNIX_EPOCH};

pub use crate::base::rfc3339;

/// Milliseconds since 1970 on the node's clock; 0 before that.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
