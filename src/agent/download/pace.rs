//! How fast bytes may come, how slowly they must not, and how long to wait before asking again.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The patience of one download.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// A connection is given up that moves less than [`SLOWEST`] for so long.
    pub stall: Duration,
    /// How long nothing may come at all.
    pub nothing: Duration,
    /// The same, where no server has answered yet.
    pub first: Duration,
    /// First pause before asking again; the next are twice as long each.
    pub pause: Duration,
    /// Pause before looking again at a file that somebody else is bringing.
    pub busy: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            stall: Duration::from_secs(30),
            nothing: Duration::from_secs(300),
            first: Duration::from_secs(30),
            pause: Duration::from_millis(500),
            busy: Duration::from_secs(1),
        }
    }
}

/// Longest pause between two attempts, unless the server asks for a longer one.
const LONGEST: Duration = Duration::from_secs(30);
/// Bytes per second below which a connection is as good as dead.
pub const SLOWEST: u64 = 1024;

impl Patience {
    /// How long to wait after so many failures in a row.
    pub fn pause_after(&self, failures: u32) -> Duration {
        let times = 1_u32 << failures.saturating_sub(1).min(16);
        self.pause.saturating_mul(times).min(LONGEST)
    }
}

/// Shares a rate among connections.
#[derive(Debug)]
pub struct Bucket {
    rate: Option<u64>,
    /// When what was let through is paid for.
    paid: Mutex<Instant>,
}

impl Bucket {
    /// Lets `rate` bytes per second through; everything where there is none.
    pub fn new(rate: Option<u64>) -> Self {
        Self { rate: rate.map(|rate| rate.max(1)), paid: Mutex::new(Instant::now()) }
    }

    /// Most bytes that are worth reading at once: a quarter of a second's.
    pub fn gulp(&self, most: usize) -> usize {
        let quarter = self.rate.map(|rate| usize::try_from(rate / 4).unwrap_or(most));
        quarter.map_or(most, |quarter| quarter.clamp(1024.min(most), most))
    }

    /// Connections that the rate is worth, of at most `most`.
    pub fn connections(&self, most: usize) -> usize {
        self.rate.map_or(most, |rate| usize::try_from(rate >> 18).unwrap_or(most).clamp(1, most))
    }

    /// How long to wait now that so many bytes have come.
    pub fn pay(&self, bytes: usize, now: Instant) -> Duration {
        let Some(rate) = self.rate else { return Duration::ZERO };
        let cost = Duration::from_secs_f64(bytes as f64 / rate as f64);
        let mut paid = self.paid.lock().unwrap_or_else(PoisonError::into_inner);
        *paid = (*paid).max(now) + cost;
        paid.saturating_duration_since(now)
    }
}

/// Tells a connection that moves next to nothing.
#[derive(Debug)]
pub struct Meter {
    stall: Duration,
    began: Instant,
    bytes: u64,
}

impl Meter {
    /// From now on.
    pub fn new(stall: Duration, now: Instant) -> Self {
        Self { stall, began: now, bytes: 0 }
    }

    /// Counts bytes; whether they were too few for too long.
    pub fn is_stalled(&mut self, bytes: usize, now: Instant) -> bool {
        self.bytes += bytes as u64;
        let passed = now.saturating_duration_since(self.began);
        if passed < self.stall {
            return false;
        }
        let slow = (self.bytes as f64) < SLOWEST as f64 * passed.as_secs_f64();
        (self.began, self.bytes) = (now, 0);
        slow
    }

    /// Time that the connection is not to blame for.
    pub fn pardon(&mut self, waited: Duration) {
        self.began += waited;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept_over_connections() {
        let begin = Instant::now();
        let bucket = Bucket::new(Some(1000));
        let waits: Vec<u128> = (0..3).map(|_| bucket.pay(500, begin).as_millis()).collect();
        assert!((499..=500).contains(&waits[0]) && (1498..=1500).contains(&waits[2]), "{waits:?}");
        // What was not used is not saved up.
        let later = begin + Duration::from_secs(100);
        assert_eq!(bucket.pay(500, later).as_millis(), 500);
        assert_eq!(Bucket::new(None).pay(1 << 30, begin), Duration::ZERO);
        assert_eq!((Bucket::new(None).gulp(4096), Bucket::new(Some(8192)).gulp(4096)), (4096, 2048));
        assert_eq!(Bucket::new(Some(0)).gulp(4096), 1024);
        let connections = |rate| Bucket::new(rate).connections(4);
        assert_eq!((connections(None), connections(Some(1)), connections(Some(600_000))), (4, 1, 2));
        assert_eq!(connections(Some(u64::MAX)), 4);
    }

    #[test]
    fn a_trickle_is_told_from_a_slow_line() {
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        let mut slow = Meter::new(Duration::from_secs(30), begin);
        assert!(!slow.is_stalled(40_000, after(29)) && !slow.is_stalled(1, after(30)));
        let mut trickle = Meter::new(Duration::from_secs(30), begin);
        assert!(!trickle.is_stalled(1000, after(10)) && trickle.is_stalled(1000, after(31)));
        let mut held = Meter::new(Duration::from_secs(30), begin);
        held.pardon(Duration::from_secs(29));
        assert!(!held.is_stalled(1000, after(31)));
    }

    #[test]
    fn pauses_grow_and_end() {
        let patience = Patience::default();
        let pauses: Vec<u64> = (1..9).map(|failures| patience.pause_after(failures).as_millis() as u64).collect();
        assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
        assert_eq!(patience.pause_after(u32::MAX), LONGEST);
    }
}
