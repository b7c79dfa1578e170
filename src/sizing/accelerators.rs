//! Published figures of accelerators, for speed estimates and for `flock size --accelerator NAME`.

use std::sync::OnceLock;

use crate::base::MIB;

/// One row per accelerator; the last column says where the figures are from.
const TABLE: &str = include_str!("data/accelerators.csv");

/// What is published about an accelerator.
#[derive(Debug, Clone, PartialEq)]
pub struct AcceleratorSpec {
    /// The name the driver reports.
    pub name: String,
    /// Total memory as the driver reports it; `None` for unified memory.
    pub memory_bytes: Option<u64>,
    /// Memory bandwidth, bytes per second.
    pub bandwidth_bytes_per_s: Option<u64>,
    /// Dense 16-bit floating point operations per second.
    pub fp16_flops: Option<u64>,
    /// Native bf16.
    pub bf16: bool,
    /// Native fp8.
    pub fp8: bool,
    /// Native FP4.
    pub fp4: bool,
    /// CUDA compute capability (`8.9`) or AMD target (`gfx942`); empty where there is none.
    pub compute_capability: String,
    /// Where the figures are from.
    pub source: String,
}

/// All rows.
pub fn specifications() -> &'static [AcceleratorSpec] {
    static ROWS: OnceLock<Vec<AcceleratorSpec>> = OnceLock::new();
    ROWS.get_or_init(|| TABLE.lines().skip(1).filter_map(row).collect())
}

/// The row of a name: the driver's own, or the same without vendor, case, blanks and dashes (`rtx4090`,
/// `A100-SXM4-80GB`). `None` where nothing or more than one row matches.
pub fn specification(name: &str) -> Option<&'static AcceleratorSpec> {
    let rows = specifications();
    if let Some(exact) = rows.iter().find(|row| row.name == name) {
        return Some(exact);
    }
    let wanted = normalise(name);
    if wanted.is_empty() {
        return None;
    }
    if let Some(same) = rows.iter().find(|row| normalise(&row.name) == wanted) {
        return Some(same);
    }
    // `4090` or `H100-SXM`: a unique row whose name begins so once the series word is gone.
    let short = wanted.strip_prefix("rtx").unwrap_or(&wanted);
    let mut hits = rows.iter().filter(|row| {
        let own = normalise(&row.name);
        own.strip_prefix("rtx").unwrap_or(&own) == short
    });
    match (hits.next(), hits.next()) {
        (Some(only), None) => Some(only),
        _ => None,
    }
}

fn normalise(name: &str) -> String {
    let mut text = name.to_ascii_lowercase();
    for word in [
        "(r)",
        "(tm)",
        "nvidia",
        "geforce",
        "tesla",
        "quadro",
        "amd",
        "instinct",
        "radeon",
        "intel",
        "graphics",
        "generation",
        // AMD's list of names adds the form factor.
        " oam",
    ] {
        text = text.replace(word, "");
    }
    text.retain(|c| c.is_ascii_alphanumeric());
    text
}

/// One line; no field but the last holds a comma or quotes.
fn row(line: &str) -> Option<AcceleratorSpec> {
    let mut fields = line.splitn(9, ',');
    let mut next = || fields.next().map(str::trim);
    let name = next()?.to_owned();
    let memory = next()?.parse::<u64>().ok();
    // Tenths are exact in both: GB/s and TFLOPS with at most one decimal.
    let scaled = |text: &str, unit: f64| {
        text.parse::<f64>().ok().filter(|value| *value > 0.0).map(|value| (value * unit) as u64)
    };
    let bandwidth_bytes_per_s = scaled(next()?, 1e9);
    let fp16_flops = scaled(next()?, 1e12);
    let (bf16, fp8, fp4) = (next()? == "y", next()? == "y", next()? == "y");
    let compute_capability = next()?.to_owned();
    let source = next()?.trim_matches('"').to_owned();
    Some(AcceleratorSpec {
        name,
        memory_bytes: memory.map(|mib| mib * MIB),
        bandwidth_bytes_per_s,
        fp16_flops,
        bf16,
        fp8,
        fp4,
        compute_capability,
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_read() {
        assert_eq!(specifications().len(), TABLE.lines().count() - 1);
        assert!(specifications().iter().all(|row| !row.name.contains('"') && !row.source.is_empty()));
    }

    #[test]
    fn no_two_rows_have_one_name_and_each_has_its_figures() {
        let names: std::collections::BTreeSet<String> =
            specifications().iter().map(|row| normalise(&row.name)).collect();
        assert_eq!(names.len(), specifications().len());
        // Computed from multiprocessors, clock and rate per clock: 46 x 256 x 2 x 1.725 GHz.
        let card = specification("RTX 3070").expect("in the table");
        assert_eq!((card.bandwidth_bytes_per_s, card.fp16_flops), (Some(448_000_000_000), Some(40_600_000_000_000)));
        assert_eq!((card.memory_bytes, card.bf16, card.fp8), (Some(8192 * MIB), true, false));
        for name in [
            "RTX 3060",
            "RTX 3060 Ti",
            "RTX 3070 Ti",
            "RTX 3080",
            "RTX 3080 12GB",
            "RTX 4060",
            "RTX 4060 Ti",
            "RTX 4070",
            "RTX 4070 Ti SUPER",
            "RTX 5070",
            "RTX 5080",
            "RTX 5090",
            "RTX A2000",
            "RTX A4000",
            "RTX A6000",
            "T4",
            "V100-PCIE-16GB",
            "P40",
            "MI210",
            "MI250",
            "MI300X",
            "RX 6800 XT",
        ] {
            assert!(specification(name).is_some_and(|row| row.bandwidth_bytes_per_s.is_some()), "{name}");
        }
    }

    #[test]
    fn names_match_exactly_then_loosely() {
        let found = specification("NVIDIA GeForce RTX 4090").expect("in the table");
        assert_eq!(found.memory_bytes, Some(24_564 * MIB));
        for name in ["RTX 4090", "rtx4090", "4090", "GeForce RTX 4090"] {
            assert_eq!(specification(name).map(|row| row.name.as_str()), Some("NVIDIA GeForce RTX 4090"), "{name}");
        }
        assert_eq!(specification("A100-SXM4-80GB").map(|row| row.name.as_str()), Some("NVIDIA A100-SXM4-80GB"));
        // As libdrm's list names them.
        for (listed, row) in [
            ("AMD Radeon 8060S Graphics", "AMD Radeon 8060S"),
            ("AMD Instinct MI300X OAM", "AMD Instinct MI300X"),
            ("AMD Radeon RX 7900 XTX", "AMD Radeon RX 7900 XTX"),
        ] {
            let found = specification(listed).unwrap_or_else(|| panic!("{listed}"));
            assert!(found.name == row && found.bandwidth_bytes_per_s.is_some(), "{listed}");
        }
        assert!(specification("A100").is_none() && specification("").is_none());
    }
}
