//! Symbols, verbs, names of devices and figures as people read them. All texts that repeat are here.

use super::style::{Ink, Style, pad};
use crate::base::{GIB, format_bytes};
use crate::inventory::{Inventory, NodeFacts};
use crate::plan::{Because, Verb};

/// The symbol and the word of a verb. Both are always shown.
pub fn verb(verb: Verb) -> (&'static str, &'static str) {
    match verb {
        Verb::Fetch => ("v", "fetch"),
        Verb::Start => ("+", "start"),
        Verb::Change => ("~", "change"),
        Verb::Restart => ("-/+", "restart"),
        Verb::Move => (">", "move"),
        Verb::Adopt => ("=", "adopt"),
        Verb::Stop => ("-", "stop"),
    }
}

/// What a verb's colour says.
pub fn ink(verb: Verb) -> Ink {
    match verb {
        Verb::Start | Verb::Adopt => Ink::Good,
        Verb::Fetch => Ink::Dim,
        Verb::Change | Verb::Restart | Verb::Move => Ink::Change,
        Verb::Stop => Ink::Bad,
    }
}

/// Symbol and word in columns, such as `-/+ restart`.
pub fn verb_column(style: &Style, of: Verb) -> String {
    let (symbol, word) = verb(of);
    style.paint(ink(of), &format!("{} {}", pad(symbol, 3), pad(word, 7)))
}

/// The word of a reason, as in JSON.
pub fn because(because: Because) -> &'static str {
    match because {
        Because::Added => "added",
        Because::Removed => "removed",
        Because::Config => "config",
        Because::Variant => "variant",
        Because::Lock => "lock",
        Because::Drift => "drift",
        Because::Decay => "decay",
        Because::Preempted => "preempted",
        Because::Better => "better",
        Because::Drain => "drain",
        Because::Policy => "policy",
        Because::AgentUpgrade => "agent_upgrade",
    }
}

/// A device's name without what every name of its maker begins with.
pub fn device_name(name: &str) -> &str {
    let name = name.strip_prefix("NVIDIA ").unwrap_or(name);
    let name = name.strip_prefix("GeForce ").unwrap_or(name);
    name.strip_prefix("AMD Instinct ").unwrap_or(name)
}

/// `ada-1[0,1]`: a node and the indices of devices on it. What the facts do not know is named by its UUID.
pub fn place(node: &str, accelerators: &[String], inventory: Option<&Inventory>) -> String {
    if accelerators.is_empty() {
        return format!("{node} (cpu)");
    }
    let facts = inventory.and_then(|inventory| inventory.node(node));
    let names: Vec<String> = accelerators.iter().map(|uuid| index_of(facts, uuid)).collect();
    format!("{node}[{}]", names.join(","))
}

fn index_of(facts: Option<&NodeFacts>, uuid: &str) -> String {
    if let Some(device) = facts.and_then(|facts| facts.accelerator(uuid)) {
        return device.index.to_string();
    }
    uuid.rsplit_once('#').map_or_else(|| uuid.to_owned(), |(_, index)| index.to_owned())
}

/// `2x RTX 4090`, or nothing where the facts do not know the devices.
pub fn devices(node: &str, accelerators: &[String], inventory: Option<&Inventory>) -> Option<String> {
    let facts = inventory.and_then(|inventory| inventory.node(node))?;
    let names: Vec<&str> =
        accelerators.iter().filter_map(|uuid| facts.accelerator(uuid)).map(|d| device_name(&d.name)).collect();
    let mut counted: Vec<(&str, usize)> = Vec::new();
    for name in names {
        match counted.iter_mut().find(|(known, _)| *known == name) {
            Some((_, count)) => *count += 1,
            None => counted.push((name, 1)),
        }
    }
    let words: Vec<String> = counted
        .into_iter()
        .map(|(name, count)| if count == 1 { name.to_owned() } else { format!("{count}x {name}") })
        .collect();
    (!words.is_empty()).then(|| words.join(" + "))
}

/// `18.4 of 22.0 GiB`; units differ only where one would round to nothing.
pub fn bytes_of(used: u64, capacity: u64) -> String {
    if capacity == 0 {
        return format_bytes(used);
    }
    if used >= GIB && capacity >= GIB {
        return format!("{:.1} of {:.1} GiB", used as f64 / GIB as f64, capacity as f64 / GIB as f64);
    }
    format!("{} of {}", format_bytes(used), format_bytes(capacity))
}

/// `1.1 GiB measured (-8 %)`: what was taken, against what was planned for it.
pub fn measured(planned: u64, measured: u64) -> String {
    let percent = (measured as f64 / planned.max(1) as f64 - 1.0) * 100.0;
    // No sign before a zero.
    let percent = if percent.abs() < 0.5 { "0".to_owned() } else { format!("{percent:+.0}") };
    format!("{} measured ({percent} %)", format_bytes(measured))
}

/// `~20 s`, `~4 min`, `~1.5 h`.
pub fn about(ms: u64) -> String {
    match ms {
        0..1_000 => "<1 s".to_owned(),
        1_000..120_000 => format!("~{} s", ms.div_ceil(1_000)),
        120_000..7_200_000 => format!("~{} min", ms.div_ceil(60_000)),
        _ => format!("~{:.1} h", ms as f64 / 3_600_000.0),
    }
}

/// `about 20 s`, `under 1 s`: the same inside a sentence.
pub fn about_long(ms: u64) -> String {
    about(ms).replace('~', "about ").replace('<', "under ")
}

/// `1 step`, `3 steps`.
pub fn count(number: usize, word: &str) -> String {
    format!("{number} {word}{}", if number == 1 { "" } else { "s" })
}

/// The first 12 digits of a digest.
pub fn short_digest(digest: &str) -> &str {
    let hex = digest.strip_prefix("sha256:").unwrap_or(digest);
    hex.get(..12).unwrap_or(hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_read_well_at_every_size() {
        assert_eq!(bytes_of(18 * GIB + GIB / 2, 22 * GIB), "18.5 of 22.0 GiB");
        assert_eq!(bytes_of(100 << 20, 22 * GIB), "100.0 MiB of 22.0 GiB");
        assert_eq!(bytes_of(GIB, 0), "1.0 GiB");
        assert_eq!(
            [about(500), about(19_200), about(200_000), about(9_000_000)],
            ["<1 s", "~20 s", "~4 min", "~2.5 h"]
        );
        assert_eq!(device_name("NVIDIA GeForce RTX 4090"), "RTX 4090");
        assert_eq!(place("ada-1", &["ada-1#0".into(), "ada-1#1".into()], None), "ada-1[0,1]");
    }
}
