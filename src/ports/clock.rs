//! Wall time, chance, and the processes of this machine.

use crate::inventory::HolderProcess;

/// Wall time. Sleeps and timeouts use `tokio::time`.
pub trait Clock: Send + Sync {
    /// Milliseconds since the Unix epoch.
    fn unix_ms(&self) -> u64;
    /// Now, RFC 3339 in UTC with seconds.
    fn rfc3339(&self) -> String;
}

/// Randomness for ids that must not repeat.
pub trait Random: Send + Sync {
    /// `n` random bytes as hex.
    fn hex(&self, bytes: usize) -> String;
}

/// The processes of the machine that flock runs on.
pub trait Processes: Send + Sync {
    /// This one; `None` where the system does not tell.
    fn this(&self) -> Option<HolderProcess>;
    /// Whether a process of this machine and user has ended. False wherever that cannot be known: another machine,
    /// another boot, another container, another user.
    fn has_ended(&self, process: &HolderProcess) -> bool;
}
