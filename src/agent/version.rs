//! Which agent this is, and whether another one is older.

/// Stands in the binary as one piece of text, so that a file can be asked for its version without being run.
static MARKED: &str = concat!("flock-agent version ", env!("CARGO_PKG_VERSION"));
const MARK: usize = "flock-agent version ".len();

/// This agent's version.
pub fn version() -> &'static str {
    // Read from the text above and not from a copy of its end.
    std::hint::black_box(MARKED).get(MARK..).unwrap_or_default()
}

/// Whether `one` comes before `other`.
pub fn is_older(one: &str, other: &str) -> bool {
    numbers(one) < numbers(other)
}

/// The numbers of a version, for comparing.
fn numbers(version: &str) -> Vec<u64> {
    version.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_their_numbers() {
        assert!(is_older("0.9.0", "0.10.0") && is_older("0.1.0", "0.1.0-1") && !is_older("1.0.0", "1.0.0"));
        assert_eq!(version(), env!("CARGO_PKG_VERSION"));
    }
}
