//! Expected speed, for choosing between shapes and not for promising.

use super::accelerators::AcceleratorSpec;
use super::demand::Demand;
use super::kv::kv_bytes_per_token;
use crate::weights::Variant;

/// Share of the bandwidth that decoding reaches.
pub(super) const BANDWIDTH_EFFICIENCY: f64 = 0.8;
/// Share of the dense 16-bit rate that prefill reaches.
const COMPUTE_EFFICIENCY: f64 = 0.5;

/// Tokens per second; `None` where the accelerator's figures are unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Speed {
    /// One sequence, at the full context.
    pub decode_tokens_per_s: Option<f64>,
    /// Prompt tokens.
    pub prefill_tokens_per_s: Option<f64>,
}

/// Share of the layers' bytes that one token touches: everything but the experts that are not chosen.
pub(super) fn active_share(variant: &Variant) -> f64 {
    let architecture = &variant.architecture;
    let (Some(experts), Some(used), Some(width)) =
        (architecture.experts, architecture.experts_per_token, architecture.moe_intermediate)
    else {
        return 1.0;
    };
    let per_expert = 3.0 * f64::from(architecture.hidden) * f64::from(width);
    let all = f64::from(architecture.layers) * f64::from(experts) * per_expert;
    let parameters = variant.tensors.parameters.max(1) as f64;
    let idle = (all / parameters).min(1.0) * (1.0 - (f64::from(used) / f64::from(experts.max(1))).min(1.0));
    (1.0 - idle).clamp(0.01, 1.0)
}

/// Speed of a variant on equal accelerators of one kind.
///
/// Decode: bandwidth x 0.8 / (active weights / tp + KV read). Prefill: FLOPs x tp x 0.5 / (2 x active
/// parameters). Pipeline stages work one after another on a single sequence and so do not divide the time.
pub fn speed(variant: &Variant, demand: &Demand<'_>, accelerator: &AcceleratorSpec) -> Speed {
    let tp = f64::from(demand.tensor_parallel.max(1));
    let share = active_share(variant);
    let bytes = read_bytes(variant, demand);
    let tensors = &variant.tensors;
    let parameters = (tensors.parameters as f64 * share).max(1.0);
    Speed {
        decode_tokens_per_s: accelerator
            .bandwidth_bytes_per_s
            .map(|bandwidth| bandwidth as f64 * BANDWIDTH_EFFICIENCY / bytes),
        prefill_tokens_per_s: accelerator
            .fp16_flops
            .map(|flops| flops as f64 * tp * COMPUTE_EFFICIENCY / (2.0 * parameters)),
    }
}

/// Bytes that one rank reads for a token.
pub(super) fn read_bytes(variant: &Variant, demand: &Demand<'_>) -> f64 {
    let tensors = &variant.tensors;
    let tp = f64::from(demand.tensor_parallel.max(1));
    // One row of the embedding is read per token, not the matrix; the head is read whole.
    let head = if variant.architecture.tied { 0 } else { tensors.embedding_bytes };
    let read = tensors.total_bytes.saturating_sub(head).saturating_sub(tensors.vision_bytes) as f64;
    let kv = kv_bytes_per_token(variant, demand.kv_dtype) as f64 * demand.context as f64;
    let kv = if variant.architecture.mla.is_some() { kv } else { kv / tp };
    (read * active_share(variant) / tp + kv).max(1.0)
}
