//! Quantities with their units written out: bytes, times.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// 2^10 bytes.
pub const KIB: u64 = 1 << 10;
/// 2^20 bytes.
pub const MIB: u64 = 1 << 20;
/// 2^30 bytes.
pub const GIB: u64 = 1 << 30;

/// A number of bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format_bytes(self.0))
    }
}

/// Why a text is no quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// A number without its unit.
    #[error("a number without a unit")]
    MissingUnit,
    /// An unknown unit.
    #[error("unknown unit `{0}`")]
    UnknownUnit(String),
    /// No number in front.
    #[error("not a number")]
    NotANumber,
    /// More than 2^63 of the smallest unit.
    #[error("too large")]
    TooLarge,
}

/// Reads `"24GiB"`, `"1.5GB"`, `"512B"`. `KiB MiB GiB TiB` are powers of 1024, `KB MB GB TB` of 1000.
pub fn parse_bytes(text: &str) -> Result<Bytes, UnitError> {
    let (number, unit) = split_unit(text)?;
    let scale: u64 = match unit {
        "" => return Err(UnitError::MissingUnit),
        "B" => 1,
        "KiB" => KIB,
        "MiB" => MIB,
        "GiB" => GIB,
        "TiB" => GIB << 10,
        "KB" | "kB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        other => return Err(UnitError::UnknownUnit(other.to_owned())),
    };
    scaled(number, scale).map(Bytes)
}

/// Reads `"5ms"`, `"1.5s"`, `"20m"`, `"72h"`, `"14d"`.
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    let (number, unit) = split_unit(text)?;
    let scale: u64 = match unit {
        "" => return Err(UnitError::MissingUnit),
        "us" | "µs" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "m" | "min" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        other => return Err(UnitError::UnknownUnit(other.to_owned())),
    };
    scaled(number, scale).map(Duration::from_micros)
}

fn split_unit(text: &str) -> Result<(&str, &str), UnitError> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    if number.is_empty() || number.starts_with('.') || number.ends_with('.') || number.matches('.').count() > 1 {
        return Err(UnitError::NotANumber);
    }
    Ok((number, unit.trim()))
}

/// Exact decimal scaling: `1.5GiB` must not pass through a float.
fn scaled(number: &str, scale: u64) -> Result<u64, UnitError> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole: u128 = whole.parse().map_err(|_| UnitError::TooLarge)?;
    let digits = fraction.len().min(18);
    let part: u128 = if digits == 0 { 0 } else { fraction[..digits].parse().map_err(|_| UnitError::NotANumber)? };
    let value = whole
        .checked_mul(u128::from(scale))
        .and_then(|v| v.checked_add(part * u128::from(scale) / 10u128.pow(digits as u32)))
        .ok_or(UnitError::TooLarge)?;
    if value > u128::from(i64::MAX as u64) { Err(UnitError::TooLarge) } else { Ok(value as u64) }
}

/// `73.6 GiB`, `512.0 MiB`, `17 B`: one decimal, binary units.
pub fn format_bytes(bytes: u64) -> String {
    let (scale, unit) = match bytes {
        b if b >= GIB => (GIB, "GiB"),
        b if b >= MIB => (MIB, "MiB"),
        b if b >= KIB => (KIB, "KiB"),
        b => return format!("{b} B"),
    };
    format!("{:.1} {unit}", bytes as f64 / scale as f64)
}

/// `117 MB/s`, `1.2 GB/s`, `900 B/s`: decimal units, as networks are sold; two digits at least.
pub fn format_rate(bytes_per_s: u64) -> String {
    let (scale, unit) = match bytes_per_s {
        b if b >= 1_000_000_000 => (1e9, "GB/s"),
        b if b >= 1_000_000 => (1e6, "MB/s"),
        b if b >= 1_000 => (1e3, "KB/s"),
        b => return format!("{b} B/s"),
    };
    let amount = bytes_per_s as f64 / scale;
    if amount < 9.95 { format!("{amount:.1} {unit}") } else { format!("{amount:.0} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_exact_in_both_systems() {
        assert_eq!(parse_bytes("24GiB"), Ok(Bytes(25_769_803_776)));
        assert_eq!(parse_bytes("1.5GB"), Ok(Bytes(1_500_000_000)));
        assert_eq!(parse_bytes("0.1 KiB"), Ok(Bytes(102)));
        assert_eq!(parse_bytes("600MiB"), Ok(Bytes(600 * MIB)));
    }

    #[test]
    fn rates_have_two_digits() {
        let shown = [0, 999, 1_000, 117_400_000, 9_940_000, 9_950_000, 1_250_000_000].map(format_rate);
        assert_eq!(shown, ["0 B/s", "999 B/s", "1.0 KB/s", "117 MB/s", "9.9 MB/s", "10 MB/s", "1.2 GB/s"]);
    }

    #[test]
    fn a_bare_number_and_an_unknown_unit_are_told_apart() {
        assert_eq!(parse_bytes("24"), Err(UnitError::MissingUnit));
        assert_eq!(parse_bytes("24gb"), Err(UnitError::UnknownUnit("gb".into())));
        assert_eq!(parse_bytes("-1GB"), Err(UnitError::NotANumber));
        assert_eq!(parse_bytes("99999999999TiB"), Err(UnitError::TooLarge));
    }

    #[test]
    fn durations() {
        assert_eq!(parse_duration("5ms"), Ok(Duration::from_millis(5)));
        assert_eq!(parse_duration("72h"), Ok(Duration::from_secs(72 * 3600)));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("5"), Err(UnitError::MissingUnit));
    }
}
