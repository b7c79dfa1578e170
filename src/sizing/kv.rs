//! KV cache arithmetic that engines share.

use crate::base::{Dtype, EngineKind};
use crate::weights::{Architecture, Variant};

use super::SizingError;

/// Bytes per token and layer of the packed FP8 latent cache (`fp8_ds_mla` of vLLM: 512 bytes of FP8, 16 bytes
/// of scales, 128 bytes of 16-bit rotary part).
pub(super) const PACKED_LATENT_BYTES: u64 = 656;

/// Bytes of `elements` in a type. Block types are stored in whole blocks of 32.
pub(super) fn row_bytes(elements: u64, dtype: Dtype) -> u64 {
    match dtype {
        Dtype::F32 | Dtype::F16 | Dtype::Bf16 | Dtype::Fp8 => elements.saturating_mul(dtype.bytes_per_32() / 32),
        _ => elements.div_ceil(32).saturating_mul(dtype.bytes_per_32()),
    }
}

/// KV heads that one of `tp` ranks holds: shared out, and copied where there are fewer than ranks.
pub(super) fn heads_per_rank(kv_heads: u32, tp: u32) -> u64 {
    if kv_heads == 0 { 0 } else { u64::from(kv_heads.div_ceil(tp.max(1)).max(1)) }
}

/// Bytes per token that one layer keeps on one rank, keys and values together.
pub(super) fn layer_row(architecture: &Architecture, layer: usize, dtype: Dtype, tp: u32) -> u64 {
    let (key, value) = layer_widths(architecture, layer, tp);
    row_bytes(key, dtype).saturating_add(row_bytes(value, dtype))
}

/// Elements per token that one layer keeps on one rank: keys, then values.
pub(super) fn layer_widths(architecture: &Architecture, layer: usize, tp: u32) -> (u64, u64) {
    let heads = heads_per_rank(architecture.kv_heads.at(layer), tp);
    let own = architecture.sliding.as_ref().and_then(|sliding| sliding.head_dims);
    let (key, value) = match own.filter(|_| slides(architecture, layer)) {
        Some(widths) => widths,
        None => (architecture.head_dim_k, architecture.head_dim_v),
    };
    (heads.saturating_mul(u64::from(key)), heads.saturating_mul(u64::from(value)))
}

/// Whether a layer attends to a window only.
pub(super) fn slides(architecture: &Architecture, layer: usize) -> bool {
    architecture.sliding.as_ref().is_some_and(|sliding| sliding.layers.get(layer) == Some(&true))
}

/// Whether a layer keeps keys and values at all.
pub(super) fn attends(architecture: &Architecture, layer: usize) -> bool {
    architecture.kv_heads.at(layer) > 0
}

/// Families whose FP8 latent cache vLLM stores packed (sparse attention with an indexer).
pub(super) fn packed_latent(architecture: &Architecture, dtype: Dtype) -> bool {
    dtype == Dtype::Fp8 && (architecture.name.contains("V32") || architecture.name.contains("Dsa"))
}

/// Constant state on one of `tp` ranks for one sequence, in a stage with these layers, `each` bytes a layer. Layers
/// without KV heads are the ones with a state, unless every layer has both.
pub(super) fn state_bytes(architecture: &Architecture, stage: std::ops::Range<usize>, tp: u32, each: u64) -> u64 {
    let Some(state) = &architecture.constant_state else { return 0 };
    let all = architecture.layers as usize;
    let without = |range: std::ops::Range<usize>| range.filter(|layer| !attends(architecture, *layer)).count() as u64;
    let in_all = without(0..all);
    let layers = if in_all == u64::from(state.layers) {
        without(stage)
    } else {
        (u64::from(state.layers) * stage.len() as u64).div_ceil(all.max(1) as u64)
    };
    layers.saturating_mul(each.div_ceil(u64::from(tp.max(1))))
}

/// The KV type of a demand for an engine.
pub(super) fn kv_dtype(engine: EngineKind, wanted: Option<Dtype>) -> Result<Dtype, SizingError> {
    let dtype = wanted.unwrap_or(Dtype::F16);
    let fits = match engine {
        EngineKind::LlamaCpp => dtype != Dtype::Fp8,
        EngineKind::Vllm => matches!(dtype, Dtype::F16 | Dtype::Bf16 | Dtype::Fp8),
        EngineKind::Sglang => matches!(dtype, Dtype::F16 | Dtype::Bf16 | Dtype::Fp8),
    };
    if fits { Ok(dtype) } else { Err(SizingError::KvDtype { engine, dtype }) }
}

/// Bytes per token of the unsplit model, every attention layer counted in full (windows shorten the total, not
/// this figure).
pub fn kv_bytes_per_token(variant: &Variant, dtype: Option<Dtype>) -> u64 {
    let architecture = &variant.architecture;
    let dtype = dtype.unwrap_or(Dtype::F16);
    (0..architecture.layers as usize)
        .filter(|layer| attends(architecture, *layer))
        .map(|layer| match &architecture.mla {
            Some(_) if packed_latent(architecture, dtype) => PACKED_LATENT_BYTES,
            Some(mla) => row_bytes(u64::from(mla.kv_lora_rank) + u64::from(mla.qk_rope_head_dim), dtype),
            None => layer_row(architecture, layer, dtype, 1),
        })
        .fold(0, u64::saturating_add)
}

/// The word of the size report: `mla`, `hybrid`, `sliding`, `mqa`, `mha`, `gqa`.
pub fn attention_word(architecture: &Architecture) -> &'static str {
    let kv_heads = architecture.kv_heads.max();
    if architecture.mla.is_some() {
        "mla"
    } else if architecture.constant_state.is_some() {
        "hybrid"
    } else if architecture.sliding.is_some() {
        "sliding"
    } else if kv_heads == 1 {
        "mqa"
    } else if kv_heads == architecture.heads.max() || kv_heads == 0 {
        // Without a cache (encoders) every query head has its own keys.
        "mha"
    } else {
        "gqa"
    }
}
