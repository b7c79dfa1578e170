//! How far nodes are from each other, for traffic: measured round trips and throughput, and what one turn costs.
//!
//! A turn that sends `n` bytes takes `rtt + n / bandwidth` seconds; nothing where both ends are on one node. A way that
//! nobody measured is taken for no better than the worst measured one, and at least 2 ms and 50 MB/s, so that a known way
//! is always preferred. The cost of a turn is bounded: `s / (s + 0.1)`, half of it at 100 ms, below which people hardly
//! notice. Measured figures wobble, so that costs count in steps of 1, 2, 3, 5, 7, 10, …, rounded up.

use crate::inventory::Inventory;
use crate::placement::Distances;

/// Seconds of one turn at which traffic costs half of the most it can.
pub const TURN_HALF: f64 = 0.1;
/// Microseconds that a way nobody measured is taken for, at least.
const UNKNOWN_RTT_US: u64 = 2_000;
/// Bytes per second that are expected where only the round trip is known, as of weights that come from outside.
const EXPECTED_BYTES_PER_S: u64 = 50_000_000;
/// The steps of a decade.
const STEPS: [f64; 6] = [1.0, 2.0, 3.0, 5.0, 7.0, 10.0];
/// The least cost between two nodes.
const LEAST: f64 = 1e-3;

impl Distances {
    /// What the inventory knows. A pair that is listed twice counts with the shorter round trip.
    pub fn of(inventory: &Inventory) -> Self {
        let mut this = Self::default();
        for link in inventory.links.iter().filter(|link| link.from != link.to) {
            let Some(rtt_us) = link.rtt_us else { continue };
            let found = (rtt_us, link.bandwidth_bytes_per_s.filter(|bandwidth| *bandwidth > 0));
            let known = this.between.entry(pair(&link.from, &link.to)).or_insert(found);
            if found.0 < known.0 {
                *known = found;
            }
        }
        this
    }

    /// The round trip in microseconds: 0 on one node, `None` where nobody measured it.
    pub fn rtt_us(&self, a: &str, b: &str) -> Option<u64> {
        if a == b { Some(0) } else { self.between.get(&pair(a, b)).map(|(rtt_us, _)| *rtt_us) }
    }

    /// The ways as they count for turns of so many bytes.
    pub fn ways(&self, bytes: u64) -> Ways<'_> {
        let assumed = seconds(UNKNOWN_RTT_US, None, bytes);
        let unknown = self.between.values().map(|(rtt, bandwidth)| seconds(*rtt, *bandwidth, bytes));
        Ways { distances: self, bytes, unknown: unknown.fold(assumed, f64::max) }
    }
}

fn pair(a: &str, b: &str) -> (String, String) {
    if a <= b { (a.to_owned(), b.to_owned()) } else { (b.to_owned(), a.to_owned()) }
}

fn seconds(rtt_us: u64, bandwidth: Option<u64>, bytes: u64) -> f64 {
    rtt_us as f64 / 1e6 + bytes as f64 / bandwidth.unwrap_or(EXPECTED_BYTES_PER_S) as f64
}

/// Ways between nodes for turns of one size.
#[derive(Debug, Clone, Copy)]
pub struct Ways<'d> {
    distances: &'d Distances,
    bytes: u64,
    unknown: f64,
}

impl Ways<'_> {
    /// Seconds of one turn.
    pub fn seconds(&self, a: &str, b: &str) -> f64 {
        if a == b {
            return 0.0;
        }
        match self.distances.between.get(&pair(a, b)) {
            Some((rtt_us, bandwidth)) => seconds(*rtt_us, *bandwidth, self.bytes),
            None => self.unknown,
        }
    }

    /// 0 to 1: what one turn costs, in steps.
    pub fn cost(&self, a: &str, b: &str) -> f64 {
        if a == b { 0.0 } else { cost(self.seconds(a, b)) }
    }
}

/// 0 to 1: what so many seconds cost, rounded up to a step.
pub fn cost(seconds: f64) -> f64 {
    let exact = (seconds / (seconds + TURN_HALF)).clamp(LEAST, 1.0);
    let decade = 10f64.powf(exact.log10().floor());
    let step = STEPS.iter().map(|step| step * decade).find(|step| *step >= exact * (1.0 - 1e-9));
    // Written with few digits, so that equal ways are equal whatever the decade was computed from.
    let step = step.unwrap_or(1.0).min(1.0);
    (step * 1e6).round() / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn distances() -> Distances {
        let between = [(("a", "b"), (200, Some(1_000_000_000))), (("a", "c"), (25_000, None))];
        let between = between.map(|((a, b), way)| ((a.to_owned(), b.to_owned()), way));
        Distances { between: between.into() }
    }

    #[test]
    fn a_turn_takes_the_round_trip_and_its_bytes() {
        let known = distances();
        let ways = known.ways(200_000);
        assert_eq!(ways.seconds("a", "a"), 0.0);
        assert!((ways.seconds("b", "a") - 0.0004).abs() < 1e-12);
        assert!((ways.seconds("a", "c") - 0.029).abs() < 1e-12, "50 MB/s where only the round trip is known");
        assert_eq!(ways.seconds("b", "c"), ways.seconds("a", "c"), "no better than the worst that is known");
        assert_eq!(Distances::default().ways(0).seconds("x", "y"), 0.002);
        assert_eq!(
            (known.rtt_us("b", "a"), known.rtt_us("b", "c"), known.rtt_us("c", "c")),
            (Some(200), None, Some(0))
        );
    }

    #[test]
    fn a_cost_is_bounded_and_comes_in_steps() {
        let steps: Vec<f64> = [0.0, 0.0004, 0.0005, 0.029, 0.03, 0.1, 1.0, 1e9].map(cost).to_vec();
        assert_eq!(steps, [0.001, 0.005, 0.005, 0.3, 0.3, 0.5, 1.0, 1.0]);
        let known = distances();
        assert_eq!(known.ways(0).cost("a", "a"), 0.0);
        assert!(known.ways(0).cost("a", "b") > 0.0);
    }
}
