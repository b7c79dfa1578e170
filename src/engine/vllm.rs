//! vLLM's OpenAI-compatible server.
//!
//! Flags: "Engine Arguments" of the vLLM documentation; semantics of memory: `vllm/config/cache.py`
//! (`gpu_memory_utilization` is a share of the device's total, checked against what is free at start;
//! `kv_cache_memory_bytes` fixes the KV cache and takes precedence over it).

use super::argv::{HOST, PORT, Planned, Settings, push};
use super::versions::{Feature, has};
use crate::base::{Dtype, EngineKind};

/// Tokens per step. It bounds the activation peak, so it is set; chunked prefill makes it independent of the
/// context.
pub const VLLM_BATCHED_TOKENS: u64 = 2048;

pub(super) const OWNED: &[&str] = &[
    "--model",
    "--dtype",
    "--quantization",
    "-q",
    "--tokenizer-mode",
    "--revision",
    "--host",
    "--port",
    "--uds",
    "--api-key",
    "--max-model-len",
    "--max-num-seqs",
    "--max-num-batched-tokens",
    "--gpu-memory-utilization",
    "--kv-cache-memory-bytes",
    "--kv-cache-memory",
    "--kv-cache-dtype",
    "--tensor-parallel-size",
    "-tp",
    "--pipeline-parallel-size",
    "-pp",
    "--data-parallel-size",
    "-dp",
    "--served-model-name",
    "--distributed-executor-backend",
    "--cpu-offload-gb",
    "--swap-space",
    "--num-gpu-blocks-override",
    "--device",
    "--download-dir",
    "--load-format",
    "--headless",
    "--nnodes",
    "--node-rank",
    "--master-addr",
    "--master-port",
    "--api-server-count",
    "--config",
    "--version",
    "--help",
    "-h",
    "--root-path",
    "--ssl-keyfile",
    "--ssl-certfile",
    "--kv-offloading-size",
];

/// Share of the total to claim: planned need rounded up to two decimals, so that planned bytes always fit in,
/// capped at 1. `None` where the total is unknown.
pub fn utilisation(planned_bytes: u64, total_bytes: u64) -> Option<f64> {
    if total_bytes == 0 {
        return None;
    }
    let hundredths = (u128::from(planned_bytes) * 100).div_ceil(u128::from(total_bytes)).clamp(1, 100);
    Some(hundredths as f64 / 100.0)
}

/// What of a capacity an engine can really be given. vLLM claims whole hundredths of the total and refuses to
/// start where more than what is free is claimed, so the rest of the last hundredth is lost.
pub fn usable_bytes(kind: EngineKind, capacity_bytes: u64, total_bytes: u64) -> u64 {
    if kind == EngineKind::LlamaCpp || total_bytes == 0 {
        return capacity_bytes;
    }
    let hundredths = (u128::from(capacity_bytes) * 100 / u128::from(total_bytes)).min(100);
    u64::try_from(hundredths * u128::from(total_bytes) / 100).unwrap_or(capacity_bytes)
}

/// One share of the total for all accelerators, never above the capacity of any.
///
/// It is what must be free at the start, and what is left of it beside weights and activations becomes cache. So it is
/// the largest that any of them needs; but where the cache has its own size, nothing else follows from it, and of
/// stages on unequal accelerators it is the smallest: more need not be free on the others than they take.
pub(super) fn share(settings: &Settings, need: fn(&Planned) -> u64) -> Option<f64> {
    let smallest = one_share_is_enough(settings.pipeline_parallel, settings.version.as_deref());
    let mut share: Option<f64> = None;
    for (number, (planned, total)) in settings.planned.iter().zip(&settings.device_total_bytes).enumerate() {
        let Some(mut own) = utilisation(need(planned), *total) else { continue };
        if let Some(capacity) = settings.capacity_bytes.get(number) {
            let hundredths = (u128::from(*capacity) * 100 / u128::from(*total)).clamp(1, 100);
            own = own.min(hundredths as f64 / 100.0);
        }
        share = Some(share.map_or(own, |share| if smallest { share.min(own) } else { share.max(own) }));
    }
    share
}

/// Whether every stage claims what it needs by itself, although all are told one share of their totals: versions whose
/// cache has its own size. Otherwise every accelerator gives the largest share that one of them needs.
///
/// Source: `vllm/v1/worker/gpu_worker.py` (`kv_cache_memory_bytes` skips the utilisation, but not the check at the start).
pub fn one_share_is_enough(stages: u32, version: Option<&str>) -> bool {
    stages > 1 && has(Feature::KvCacheBytes, version)
}

/// Whether a version can be told the layers of its stages.
pub fn takes_stage_layers(version: Option<&str>) -> bool {
    has(Feature::StageLayers, version)
}

/// Adds everything after the program.
pub(super) fn arguments(settings: &Settings, out: &mut Vec<String>) {
    let version = settings.version.as_deref();
    out.push("serve".to_owned());
    out.push(settings.model_path.clone());
    push(out, "--served-model-name", &settings.served_name);
    push(out, "--host", HOST);
    push(out, "--port", PORT);
    push(out, "--max-model-len", settings.context);
    push(out, "--max-num-seqs", settings.concurrency.max(1));
    // vLLM refuses fewer batched tokens than sequences.
    push(out, "--max-num-batched-tokens", VLLM_BATCHED_TOKENS.max(u64::from(settings.concurrency)));
    push(out, "--tensor-parallel-size", settings.tensor_parallel.max(1));
    push(out, "--pipeline-parallel-size", settings.pipeline_parallel.max(1));
    if settings.half {
        push(out, "--dtype", "half");
    }
    if let Some(dtype) = settings.kv_dtype {
        push(out, "--kv-cache-dtype", kv_word(dtype));
    }
    if settings.accelerators == 0 {
        return;
    }
    if let Some(share) = share(settings, Planned::total) {
        push(out, "--gpu-memory-utilization", format!("{share:.2}"));
    }
    if has(Feature::KvCacheBytes, version)
        && let Some(bytes) = settings.planned.iter().map(|planned| planned.kv_bytes).max()
        && bytes > 0
    {
        push(out, "--kv-cache-memory-bytes", bytes);
    }
    if settings.tensor_parallel.max(1) * settings.pipeline_parallel.max(1) > 1 {
        push(out, "--distributed-executor-backend", "mp");
    }
}

/// vLLM's word for a KV cache type.
fn kv_word(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Fp8 => "fp8",
        Dtype::Bf16 => "bfloat16",
        // Types that only llama.cpp has are refused before this point.
        _ => "auto",
    }
}
