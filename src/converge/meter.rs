//! How fast bytes come, and how long the rest takes.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// What the rate is taken over: long enough to be calm, short enough to show that something happened.
const WINDOW: Duration = Duration::from_secs(10);
/// Between two samples that are kept.
const SAMPLE: Duration = Duration::from_millis(250);
/// Below this nothing is said of the rate.
const LEAST: Duration = Duration::from_secs(1);

/// Of one transfer.
pub(super) struct Meter {
    total: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    samples: VecDeque<(Instant, u64)>,
    told: Option<u64>,
}

/// What is told about a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reading {
    pub bytes_per_s: Option<u64>,
    pub left_ms: Option<u64>,
}

impl Meter {
    pub fn new(total: u64) -> Self {
        Self { total, state: Mutex::default() }
    }

    /// Notes that so many bytes are there; what to tell about it, `None` where something was told a moment ago.
    pub fn at(&self, done: u64) -> Option<Reading> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        // Less than before: a file that came wrong comes again.
        if state.samples.back().is_some_and(|(_, last)| done < *last) {
            state.samples.clear();
        }
        let due = state.samples.back().is_none_or(|(at, _)| now.duration_since(*at) >= SAMPLE);
        let ends = done >= self.total && state.told != Some(done);
        if !due && !ends {
            return None;
        }
        state.told = Some(done);
        while state.samples.front().is_some_and(|(at, _)| now.duration_since(*at) > WINDOW) {
            state.samples.pop_front();
        }
        let first = state.samples.front().copied();
        state.samples.push_back((now, done));
        let rate = first.filter(|(at, _)| now.duration_since(*at) >= LEAST).map(|(at, before)| {
            let rate = (done - before) as f64 / now.duration_since(at).as_secs_f64();
            rate as u64
        });
        let left = self.total.saturating_sub(done);
        let left_ms = rate.filter(|rate| *rate > 0).map(|rate| (u128::from(left) * 1_000 / u128::from(rate)) as u64);
        Some(Reading { bytes_per_s: rate, left_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_rate_is_of_the_last_seconds_and_of_nothing_that_was_there_before() {
        let meter = Meter::new(1_000_000);
        assert_eq!(meter.at(400_000), Some(Reading { bytes_per_s: None, left_ms: None }), "what an earlier try left");
        assert_eq!(meter.at(400_001), None, "a moment later");
        let mut done = 400_000;
        for _ in 0..20 {
            tokio::time::advance(Duration::from_secs(1)).await;
            done += 10_000;
            meter.at(done);
        }
        tokio::time::advance(Duration::from_secs(1)).await;
        let now = meter.at(610_000).expect("a second later");
        assert_eq!(now, Reading { bytes_per_s: Some(10_000), left_ms: Some(39_000) });
        // A cable is out for long: what was before counts no more.
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(meter.at(610_000).and_then(|reading| reading.bytes_per_s), None);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(meter.at(650_000).and_then(|reading| reading.bytes_per_s), Some(20_000));
        // A file came wrong and comes again.
        assert_eq!(meter.at(600_000).and_then(|reading| reading.bytes_per_s), None);
        assert!(meter.at(1_000_000).is_some(), "the end is always told");
        assert!(meter.at(1_000_000).is_none(), "and once");
    }
}
