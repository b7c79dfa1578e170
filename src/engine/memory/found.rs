//! What a log says, whoever wrote it.

use std::collections::BTreeMap;

use super::{llama_cpp, sglang, vllm};
use crate::base::{EngineKind, GIB, MIB};

/// Most devices that are believed of one engine.
const MAX_DEVICES: usize = 64;
/// Largest figure that is believed: a pebibyte.
const MAX_BYTES: f64 = (1u64 << 50) as f64;

/// Bytes of one device, or of the host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Weights.
    pub weights_bytes: Option<u64>,
    /// KV cache and constant states.
    pub kv_bytes: Option<u64>,
    /// Buffers, graphs, activations: everything else that the engine tells of. What it does not tell of (the driver's
    /// context, libraries) is missing here.
    pub other_bytes: Option<u64>,
}

impl DeviceMemory {
    /// All that is known; `None` where nothing is.
    pub fn total(&self) -> Option<u64> {
        let parts = [self.weights_bytes, self.kv_bytes, self.other_bytes];
        parts.into_iter().flatten().reduce(u64::saturating_add)
    }
}

/// What an engine says that it took.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EngineMemory {
    /// By device, in the order of ranks.
    pub devices: Vec<DeviceMemory>,
    /// Host memory, where the engine tells of it (llama.cpp).
    pub host: Option<DeviceMemory>,
    /// The part of the host's weights that is the file itself, mapped: no memory of the process.
    pub mapped_bytes: Option<u64>,
    /// Layers on devices, and all layers (the output head counted as one).
    pub offloaded_layers: Option<(u32, u32)>,
    /// Tokens that the KV cache holds on each device.
    pub kv_tokens: Option<u64>,
}

impl EngineMemory {
    /// Whether the log said nothing about memory.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Reads the beginning of a log.
pub fn read_memory(kind: EngineKind, log: &str) -> EngineMemory {
    match kind {
        EngineKind::LlamaCpp => llama_cpp::read(log),
        EngineKind::Vllm => vllm::read(log),
        EngineKind::Sglang => sglang::read(log),
    }
}

/// The parts of a device.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part {
    /// Weights.
    Weights,
    /// KV cache and states.
    Kv,
    /// Everything else.
    Other,
}

/// Devices by number while a log is read.
#[derive(Debug, Default)]
pub(super) struct Devices(BTreeMap<u32, DeviceMemory>);

impl Devices {
    fn part(&mut self, device: u32, part: Part) -> Option<&mut Option<u64>> {
        if !self.0.contains_key(&device) && self.0.len() >= MAX_DEVICES {
            return None;
        }
        let memory = self.0.entry(device).or_default();
        Some(match part {
            Part::Weights => &mut memory.weights_bytes,
            Part::Kv => &mut memory.kv_bytes,
            Part::Other => &mut memory.other_bytes,
        })
    }

    /// Adds to a part: engines allocate it in several pieces.
    pub fn add(&mut self, device: u32, part: Part, bytes: u64) {
        if let Some(known) = self.part(device, part) {
            *known = Some(known.unwrap_or(0).saturating_add(bytes));
        }
    }

    /// Sets a part to the larger of what is known and this: the same was said twice, once more exactly.
    pub fn at_least(&mut self, device: u32, part: Part, bytes: u64) {
        if let Some(known) = self.part(device, part) {
            *known = Some(known.unwrap_or(0).max(bytes));
        }
    }

    /// Whether anything was said of a device.
    pub fn knows(&self, device: u32) -> bool {
        self.0.contains_key(&device)
    }

    /// What is known of a device's weights.
    pub fn weights(&self, device: u32) -> Option<u64> {
        self.0.get(&device)?.weights_bytes
    }

    /// Whether nothing was said of any device.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// In the order of their numbers.
    pub fn finish(self) -> Vec<DeviceMemory> {
        self.0.into_values().collect()
    }
}

/// A number with thousands separators and decimals at the start of a text, and what follows it.
pub(super) fn number(text: &str) -> Option<(f64, &str)> {
    let text = text.trim_start();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != ',').unwrap_or(text.len());
    // A comma or full stop after a number ends a clause.
    let digits = text[..end].trim_end_matches([',', '.']);
    let value: f64 = digits.replace(',', "").parse().ok()?;
    (value.is_finite() && value >= 0.0).then_some((value, &text[digits.len()..]))
}

/// Bytes at the start of a text: `92.10 MiB`, `14.0786 GiB`, `28.79 GB`, `59212694937 bytes`. Engines print powers of
/// 1024 and call some of them GB.
pub(super) fn bytes(text: &str) -> Option<u64> {
    let (value, rest) = number(text)?;
    let rest = rest.trim_start();
    let unit = [("GiB", GIB), ("GB", GIB), ("MiB", MIB), ("MB", MIB), ("KiB", 1024), ("bytes", 1), ("B", 1)];
    let (_, unit) = unit.into_iter().find(|(word, _)| rest.starts_with(word))?;
    let bytes = value * unit as f64;
    (bytes <= MAX_BYTES).then_some(bytes.round() as u64)
}

/// What follows a phrase in a line.
pub(super) fn after<'a>(line: &'a str, phrase: &str) -> Option<&'a str> {
    line.split_once(phrase).map(|(_, rest)| rest)
}

/// Bytes that stand before a phrase: `1.97 GiB for peak activation`.
pub(super) fn before(line: &str, phrase: &str) -> Option<u64> {
    let (left, _) = line.split_once(phrase)?;
    let left = left.trim_end();
    // Two words: the number and its unit.
    let unit = left.rfind(' ')?;
    let start = left[..unit].trim_end().rfind(|c: char| !c.is_ascii_digit() && c != '.' && c != ',');
    let start = start.map_or(0, |at| at + left[at..].chars().next().map_or(1, char::len_utf8));
    bytes(&left[start..])
}

/// A rank's number in a prefix such as `(Worker_PP1_TP0 pid=7)` or `[… TP3 EP3]`: with `ranks` tensor-parallel ranks
/// to a stage, in the order of stages.
pub(super) fn rank(prefix: &str, ranks: u32) -> Option<u32> {
    let of = |word: &str| {
        prefix.match_indices(word).find_map(|(at, _)| {
            let starts = prefix[..at].chars().next_back().is_none_or(|c| !c.is_ascii_alphanumeric());
            let digits: String = prefix[at + word.len()..].chars().take_while(char::is_ascii_digit).collect();
            digits.parse::<u32>().ok().filter(|number| starts && *number < 4096)
        })
    };
    match (of("PP"), of("TP")) {
        (None, None) => of("rank=").or_else(|| of("rank ")),
        (stage, rank) => Some(stage.unwrap_or(0) * ranks.max(1) + rank.unwrap_or(0)),
    }
}

/// The largest `TP` number in the prefixes of a log, and one: how many ranks a stage has.
pub(super) fn ranks(log: &str) -> u32 {
    let prefixes = log.lines().map(prefix);
    prefixes.filter_map(|prefix| rank(&prefix.replace("PP", "xx"), 1)).max().map_or(1, |most| most + 1)
}

/// The bracket that a line begins with.
pub(super) fn prefix(line: &str) -> &str {
    let close = match line.as_bytes().first() {
        Some(b'(') => ')',
        Some(b'[') => ']',
        _ => return "",
    };
    line.split_once(close).map_or("", |(prefix, _)| prefix)
}
