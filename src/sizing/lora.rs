//! LoRA adapters: their own bytes, and what vLLM reserves for them.
//!
//! Source: `vllm/lora/layers` (stacked buffers of `max_loras` x rank for every adapted layer, allocated at start
//! whatever is loaded), llama.cpp `src/llama-adapter.cpp` (the adapter's tensors as they are, beside the layers).

use crate::weights::Architecture;

/// Widths in and out of a layer's linear matrices: queries, keys, values, output, and the MLP's three.
fn matrices(architecture: &Architecture, layer: usize) -> [(u64, u64); 7] {
    let hidden = u64::from(architecture.hidden);
    let heads = u64::from(architecture.heads.at(layer));
    let kv = u64::from(architecture.kv_heads.at(layer));
    let (key, value) = (u64::from(architecture.head_dim_k), u64::from(architecture.head_dim_v));
    let wide = u64::from(architecture.intermediate.or(architecture.moe_intermediate).unwrap_or(0));
    [
        (hidden, heads.saturating_mul(key)),
        (hidden, kv.saturating_mul(key)),
        (hidden, kv.saturating_mul(value)),
        (heads.saturating_mul(value), hidden),
        (hidden, wide),
        (hidden, wide),
        (wide, hidden),
    ]
}

/// Bytes of one adapter of a rank over every linear matrix of the attention and the dense MLP, 16-bit: what a file
/// of that rank has at most. Adapters of experts are not among them.
pub fn adapter_bytes(architecture: &Architecture, rank: u32) -> u64 {
    (0..architecture.layers as usize)
        .flat_map(|layer| matrices(architecture, layer))
        .map(|(input, output)| input.saturating_add(output).saturating_mul(u64::from(rank)).saturating_mul(2))
        .fold(0, u64::saturating_add)
}

/// Bytes that vLLM reserves on every rank for `count` adapters of up to `rank` (`--max-loras`, `--max-lora-rank`),
/// bounded from above: with tensor parallelism one factor of every pair is shared out, which is not taken off.
pub fn adapter_reserve(architecture: &Architecture, count: u32, rank: u32) -> u64 {
    adapter_bytes(architecture, rank).saturating_mul(u64::from(count))
}
