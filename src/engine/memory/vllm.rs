//! vLLM: a line for each rank and phase, some of rank 0 alone.
//!
//! Sources: `vllm/v1/worker/gpu_model_runner.py` (`Model loading took`, `Graph capturing finished`),
//! `vllm/v1/worker/gpu_worker.py` (`Available KV cache memory`, `reserved … for KV Cache`, `Actual usage is`),
//! `vllm/v1/core/kv_cache_utils.py` (`Maximum concurrency`), `vllm/worker/worker.py` up to 0.9 (`model weights take`).
//!
//! Tokens are the maximum concurrency times its tokens per request: for hybrid models, `GPU KV cache size` counts
//! blocks of all groups as if each held tokens of its own.

use std::collections::BTreeMap;

use super::found::{DeviceMemory, Devices, EngineMemory, Part, after, before, bytes, number, prefix, rank, ranks};

/// Beside weights and KV: activation peak, what is not torch's, graphs.
#[derive(Debug, Clone, Copy, Default)]
struct Beside {
    activation: Option<u64>,
    runtime: Option<u64>,
    graphs: Option<u64>,
    /// Weights and runtime together, as newer versions tell.
    consumed: Option<u64>,
}

/// Reads a log.
pub(super) fn read(log: &str) -> EngineMemory {
    let each = ranks(log);
    let mut devices = Devices::default();
    let mut beside: BTreeMap<u32, Beside> = BTreeMap::new();
    let mut found = EngineMemory::default();
    for line in log.lines() {
        let device = rank(prefix(line), each).unwrap_or(0);
        let rest = beside.entry(device).or_default();
        if let Some(loaded) = after(line, "odel loading took ").or_else(|| after(line, "ding model weights took ")) {
            // Draft models are loaded by the same line; a time instead of bytes is another line.
            if let Some(size) = bytes(loaded) {
                devices.add(device, Part::Weights, size);
            }
        } else if let Some(size) = after(line, "Available KV cache memory: ").and_then(bytes) {
            devices.at_least(device, Part::Kv, size);
        } else if line.contains("memory for KV Cache as specified by kv_cache_memory_bytes") {
            if let Some(size) = after(line, "reserved ").and_then(bytes) {
                devices.at_least(device, Part::Kv, size);
            }
        } else if let Some(took) = after(line, "Graph capturing finished in ") {
            rest.graphs = after(took, "took ").and_then(bytes).or(rest.graphs);
        } else if line.contains("model weights take ") {
            // V0: one sentence for all, of which the weights were told before.
            rest.runtime = after(line, "non_torch_memory takes ").and_then(bytes).or(rest.runtime);
            rest.activation = after(line, "activation peak memory takes ").and_then(bytes).or(rest.activation);
            if let Some(size) = after(line, "reserved for KV Cache is ").and_then(bytes) {
                devices.at_least(device, Part::Kv, size);
            }
        } else if line.contains("Actual usage is ") {
            rest.activation = before(line, " for peak activation").or(rest.activation);
            rest.runtime = before(line, " for non-torch memory").or(rest.runtime);
            rest.graphs = before(line, " for CUDAGraph memory").or(rest.graphs);
            rest.consumed = before(line, " for consumed memory (weights").or(rest.consumed);
            if let Some(size) = before(line, " for weight") {
                devices.at_least(device, Part::Weights, size);
            }
            if let Some(size) = after(line, "Current kv cache memory in use is ").and_then(bytes) {
                devices.at_least(device, Part::Kv, size);
            }
        }
        if let Some(concurrency) = after(line, "Maximum concurrency for ") {
            found.kv_tokens = tokens(concurrency).or(found.kv_tokens);
        }
    }
    let several_stages = log.lines().any(|line| prefix(line).contains("PP"));
    // Every rank captures the same graphs; some versions let rank 0 alone tell of them.
    let graphs = beside.values().filter_map(|beside| beside.graphs).max();
    for (device, Beside { activation, runtime, graphs: own, consumed }) in beside {
        let runtime = runtime.or_else(|| Some(consumed?.saturating_sub(devices.weights(device)?)));
        let parts = [activation, runtime, own.or(graphs).filter(|_| devices.knows(device))];
        if let Some(size) = parts.into_iter().flatten().reduce(u64::saturating_add) {
            devices.at_least(device, Part::Other, size);
        }
    }
    found.devices = devices.finish();
    if !several_stages {
        complete(&mut found.devices);
    }
    found
}

/// Ranks of one stage are equal: what rank 0 alone tells holds for all.
fn complete(devices: &mut [DeviceMemory]) {
    let most = |of: fn(&DeviceMemory) -> Option<u64>| devices.iter().filter_map(of).max();
    let (weights, kv, other) = (most(|d| d.weights_bytes), most(|d| d.kv_bytes), most(|d| d.other_bytes));
    for device in devices {
        device.weights_bytes = device.weights_bytes.or(weights);
        device.kv_bytes = device.kv_bytes.or(kv);
        device.other_bytes = device.other_bytes.or(other);
    }
}

/// `262,144 tokens per request: 14.77x` as tokens.
fn tokens(text: &str) -> Option<u64> {
    let (each, rest) = number(text)?;
    let (times, rest) = number(after(rest, "tokens per request: ")?)?;
    let tokens = each * times;
    (rest.starts_with('x') && tokens < 1e15).then_some(tokens.floor() as u64)
}
