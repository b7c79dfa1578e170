//! The aims of accuracy, so that they cannot get lost: every row that can be predicted, against real engines.

use crate::accuracy::{self, Outcome, Pair};

/// Printed to hundredths of a GiB, keys and values apart.
const PRINTED: u64 = 2 * (1 << 30) / 100;

fn within(pair: Pair, percent: f64) -> bool {
    pair.error().abs() <= percent || pair.predicted.abs_diff(pair.measured) <= PRINTED / 2
}

#[test]
fn predictions_hold_against_every_measured_row() {
    let rows = accuracy::outcomes();
    assert_eq!(rows.len(), 35);
    let named = |row: &Outcome| format!("{} {}", row.id, row.model);
    for row in &rows {
        if let Some(pair) = row.weights {
            assert!(within(pair, 2.0), "{}: weights {:+.2} %", named(row), pair.error());
        }
        if let Some(pair) = row.kv {
            assert!(within(pair, 1.0), "{}: KV {:+.2} %", named(row), pair.error());
        }
        if let Some(pair) = row.compute {
            assert!(pair.error().abs() <= 5.0, "{}: compute {:+.2} %", named(row), pair.error());
        }
        if let Some(pair) = row.total {
            assert!(pair.predicted >= pair.measured, "{}: total {:+.2} %", named(row), pair.error());
        }
        // Nothing is left out silently.
        let nothing = row.weights.is_none() && row.kv.is_none() && row.compute.is_none();
        assert!(!nothing || row.reasons.iter().any(|(what, _)| *what == "all"), "{}", named(row));
    }
    let count = |of: fn(&Outcome) -> Option<Pair>| rows.iter().filter(|row| of(row).is_some()).count();
    let counts = (count(|row| row.weights), count(|row| row.kv), count(|row| row.compute), count(|row| row.total));
    assert_eq!(counts, (15, 24, 5, 32));
    // The common rule of thumb on the same rows.
    let below = rows.iter().filter_map(|row| row.rule).filter(|rule| rule.predicted < rule.measured).count();
    assert_eq!(below, 3);
}
