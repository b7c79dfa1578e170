//! SGLang: `[time TP0] what. avail mem=… GB`; its GB are GiB.
//!
//! Sources: `sglang/srt/model_executor/model_runner.py` (`Load weight begin/end`, `Memory pool end`),
//! `sglang/srt/mem_cache/memory_pool.py` (`KV Cache is allocated`, `Mamba Cache is allocated`),
//! `cuda_graph_runner.py` (`Capture cuda graph end`; later `Capture target decode CUDA graph end`).

use std::collections::BTreeMap;

use super::found::{Devices, EngineMemory, Part, after, bytes, number, prefix, rank, ranks};

/// Reads a log.
pub(super) fn read(log: &str) -> EngineMemory {
    let each = ranks(log);
    let mut devices = Devices::default();
    let mut begun: BTreeMap<u32, u64> = BTreeMap::new();
    let mut found = EngineMemory::default();
    for line in log.lines() {
        let device = rank(prefix(line), each).unwrap_or(0);
        let available = || after(line, "avail mem=").and_then(bytes);
        if line.contains("Load weight begin.") {
            if let (true, Some(free)) = (begun.len() < 64, available()) {
                begun.insert(device, free);
            }
        } else if line.contains("Load weight end.") {
            // Older versions do not say what was used. A draft model is loaded after the model.
            let took = after(line, "mem usage=").and_then(bytes);
            let fell = || Some(begun.get(&device)?.saturating_sub(available()?));
            if let Some(size) = took.or_else(fell) {
                devices.add(device, Part::Weights, size);
            }
        } else if let Some(cache) = after(line, "KV Cache is allocated.") {
            let sizes = [after(cache, "K size: "), after(cache, " V size: "), after(cache, "KV size: ")];
            let size = sizes.into_iter().flatten().filter_map(bytes).reduce(u64::saturating_add);
            if let Some(size) = size {
                devices.add(device, Part::Kv, size);
            }
        } else if let Some(cache) = after(line, "Mamba Cache is allocated.") {
            let sizes = [after(cache, "conv_state size: "), after(cache, "ssm_state size: ")];
            if let Some(size) = sizes.into_iter().flatten().filter_map(bytes).reduce(u64::saturating_add) {
                devices.add(device, Part::Kv, size);
            }
        } else if line.contains("apture ") && line.contains("graph end.") {
            if let Some(size) = after(line, "mem usage=").and_then(bytes) {
                devices.add(device, Part::Other, size);
            }
        } else if let Some(tokens) = after(line, "max_total_num_tokens=").and_then(number) {
            found.kv_tokens = Some(tokens.0 as u64).or(found.kv_tokens);
        }
    }
    found.devices = devices.finish();
    found
}
