//! Wall time and chance.

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
