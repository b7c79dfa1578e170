//! llama.cpp: one line for each buffer, named by its device.
//!
//! Sources: `src/llama-model.cpp` (`%s model buffer size = %8.2f MiB`), `src/llama-kv-cache.cpp` (`KV buffer size`),
//! `src/llama-memory-recurrent.cpp` (`RS buffer size`), `src/llama-context.cpp` (`compute buffer size`, `output buffer
//! size`), `common/common.cpp` (`memory breakdown`, at the end of the process). Builds before 2025 leave out `model`.
//! From b9181 on these lines are printed at verbosity 4 and above only.

use super::found::{Devices, EngineMemory, Part, after, bytes, number};

/// The host among the devices while a log is read.
const HOST: u32 = u32::MAX;

/// Reads a log.
pub(super) fn read(log: &str) -> EngineMemory {
    let mut devices = Devices::default();
    let mut host = Devices::default();
    let mut found = EngineMemory::default();
    for line in log.lines() {
        if let Some(rest) = after(line, "offloaded ") {
            found.offloaded_layers = layers(rest).or(found.offloaded_layers);
        } else if let Some((part, name, size)) = buffer(line) {
            let into = if is_host(name) { &mut host } else { &mut devices };
            into.add(device(name), part, size);
            if name.ends_with("_Mapped") {
                found.mapped_bytes = Some(found.mapped_bytes.unwrap_or(0).saturating_add(size));
            }
        }
    }
    if devices.is_empty() && host.is_empty() {
        (devices, host) = breakdown(log);
    }
    found.devices = devices.finish();
    found.host = host.finish().first().copied();
    found
}

/// `load_tensors:   CUDA0 model buffer size = 16028.79 MiB`: what it holds, the device's name, bytes.
fn buffer(line: &str) -> Option<(Part, &str, u64)> {
    let (left, right) = line.split_once(" buffer size =")?;
    let (left, what) = left.trim_end().rsplit_once([' ', '\t'])?;
    let last = |text: &'_ str| -> Option<usize> { text.trim_end().rfind([' ', '\t', ':']) };
    let name_of = |text| -> Option<&str> { Some(text_after(text, last(text)?)) };
    let (part, name) = match what {
        "model" => (Part::Weights, name_of(left)?),
        "KV" | "RS" => (Part::Kv, name_of(left)?),
        "compute" | "output" => (Part::Other, name_of(left)?),
        // `llm_load_tensors:        CUDA0 buffer size =  4095.05 MiB`
        name if left.trim_end().ends_with("load_tensors:") => (Part::Weights, name),
        _ => return None,
    };
    is_name(name).then_some((part, name, bytes(right)?))
}

fn text_after(text: &str, at: usize) -> &str {
    text.trim_end()[at + 1..].trim()
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= 32 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-[]".contains(&b))
}

/// `CPU`, `CPU_Mapped`, `CPU_REPACK`, `CUDA_Host`: memory of the host. `CUDA0_Mapped` is none.
fn is_host(name: &str) -> bool {
    name.starts_with("CPU") || name.ends_with("_Host") || name == "Host" || name == "BLAS"
}

/// The number in `CUDA1`, `ROCm0`, `Vulkan0`, `MTL0_Mapped`; a name without one (`Metal`) is the first device.
fn device(name: &str) -> u32 {
    if is_host(name) {
        return HOST;
    }
    let base = name.split('_').next().unwrap_or(name);
    let digits = base.trim_start_matches(|c: char| !c.is_ascii_digit());
    digits.parse().unwrap_or(0)
}

/// `30/49 layers to GPU`.
fn layers(text: &str) -> Option<(u32, u32)> {
    let (offloaded, rest) = text.split_once('/')?;
    let (all, rest) = rest.split_once(' ')?;
    rest.starts_with("layers to GPU").then_some((offloaded.trim().parse().ok()?, all.parse().ok()?))
}

/// The table that the process prints when it ends, in whole MiB:
/// `|   - CUDA0 (RTX 5090)   | 32606 = 1057 + (29365 = 28609 +     397 +     358) +        2183 |`.
fn breakdown(log: &str) -> (Devices, Devices) {
    let (mut devices, mut host) = (Devices::default(), Devices::default());
    for line in log.lines().filter(|line| line.contains("memory_breakdown_print: |")) {
        let Some((name, figures)) = after(line, "|   - ").and_then(|rest| rest.split_once('|')) else { continue };
        let name = name.split_whitespace().next().unwrap_or_default();
        if !is_name(name) {
            continue;
        }
        let Some((_, sum)) = figures.rsplit_once("= ").map(|(left, right)| (left, right.trim_start())) else {
            continue;
        };
        let parts: Vec<u64> = sum
            .split(['+', ')', '|'])
            .take(3)
            .filter_map(|part| number(part).map(|(mib, _)| (mib as u64).saturating_mul(crate::base::MIB)))
            .collect();
        let [weights, kv, other] = parts.as_slice() else { continue };
        let into = if is_host(name) { &mut host } else { &mut devices };
        for (part, size) in [(Part::Weights, *weights), (Part::Kv, *kv), (Part::Other, *other)] {
            into.add(device(name), part, size);
        }
    }
    (devices, host)
}
