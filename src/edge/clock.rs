//! Wall time and chance from the operating system.

use std::fs::File;
use std::io::Read as _;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::base::rfc3339;
use crate::ports::{Clock, Random};

/// The machine's wall clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn unix_ms(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn rfc3339(&self) -> String {
        rfc3339(self.unix_ms())
    }
}

/// The operating system's randomness.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemRandom;

impl Random for SystemRandom {
    fn hex(&self, bytes: usize) -> String {
        let mut buffer = vec![0_u8; bytes];
        File::open("/dev/urandom")
            .and_then(|mut file| file.read_exact(&mut buffer))
            .expect("/dev/urandom is there on every system that flock runs on");
        buffer.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_goes() {
        assert!(SystemClock.unix_ms() > 1_700_000_000_000);
        assert!(SystemClock.rfc3339().as_str() > "2023-11-14T22:13:20Z");
    }

    #[test]
    fn random_text_has_the_length_and_differs() {
        let (a, b) = (SystemRandom.hex(16), SystemRandom.hex(16));
        assert_eq!((a.len(), b.len()), (32, 32));
        assert_ne!(a, b);
    }
}
