//! What vLLM (and SGLang, which lays its cache out alike) needs.
//!
//! Sources: `vllm/v1/kv_cache_interface.py` (pages of 16 tokens, windows, groups), `vllm/model_executor/layers`
//! (which linear layers are sharded or replicated, vocabulary padded to 64), `vllm/distributed/utils.py`
//! (layers per pipeline stage). Overheads are headroom: measured peaks of vLLM 0.8 to 0.21 lie below them.

use std::ops::Range;

use super::demand::{Demand, Figures, Footprint, SizingError};
use super::kv::{
    PACKED_LATENT_BYTES, attends, heads_per_rank, kv_dtype, layer_row, packed_latent, row_bytes, slides, state_bytes,
};
use crate::base::{Dtype, EngineKind, GIB, MIB};
use crate::engine::{VLLM_BATCHED_TOKENS, cache_layout};
use crate::weights::{Architecture, Variant};

/// Tokens per cache block.
const BLOCK: u64 = 16;
/// Tokens per block of the MLA kernels, at most (FlashMLA 64, CUTLASS 128).
const LATENT_BLOCK: u64 = 128;
/// CUDA context and runtime: 0.05 to 0.35 GiB alone.
const RUNTIME: u64 = 358 * MIB;
/// The same with NCCL: 0.2 to 1.4 GiB.
const RUNTIME_NCCL: u64 = 1434 * MIB;
/// One captured CUDA graph; measured 10 MiB (7B) to 36 MiB (80B MoE).
const GRAPH: u64 = 40 * MIB;
/// Workspaces that do not depend on the model.
const WORKSPACE: u64 = 256 * MIB;
/// Encoder run of a multimodal model beside the language model's own peak.
const ENCODER: u64 = GIB;
/// Host memory of the server and of each rank: Python, torch, CUDA, pinned buffers.
const HOST_SERVER: u64 = 2 * GIB;
const HOST_RANK: u64 = 2 * GIB;

/// Layers of each stage, as `get_pp_indices` shares them out: the rest goes to the stages before the last.
fn stages(layers: u32, count: u32) -> Vec<Range<usize>> {
    let count = count.max(1) as usize;
    let layers = layers as usize;
    let mut sizes = vec![layers / count; count];
    let rest = layers % count;
    for number in 0..rest {
        sizes[count.saturating_sub(2 + number) % count] += 1;
    }
    let mut start = 0;
    sizes
        .into_iter()
        .map(|size| {
            let stage = start..start + size;
            start += size;
            stage
        })
        .collect()
}

/// Tokens in whole blocks.
fn blocks(tokens: u64) -> u64 {
    whole(tokens, BLOCK)
}

fn whole(tokens: u64, block: u64) -> u64 {
    tokens.checked_next_multiple_of(block).unwrap_or(u64::MAX)
}

/// Bytes per token of one attention layer on one rank. The latent of MLA is held whole by every rank.
fn row(architecture: &Architecture, layer: usize, dtype: Dtype, demand: &Demand<'_>) -> u64 {
    match &architecture.mla {
        Some(_) if packed_latent(architecture, dtype) => PACKED_LATENT_BYTES,
        Some(mla) => {
            let bytes = row_bytes(u64::from(mla.kv_lora_rank) + u64::from(mla.qk_rope_head_dim), dtype);
            bytes.checked_next_multiple_of(cache_layout(demand.engine, demand.version).latent_pad).unwrap_or(u64::MAX)
        }
        None => layer_row(architecture, layer, dtype, demand.tensor_parallel),
    }
}

/// KV cache of one rank of a stage, for `batched` tokens per step.
///
/// Layers of one kind form groups of equal size that share a block table; the last group is padded, so a
/// kind's layers are rounded up to a multiple of the smaller kind's count.
pub(super) fn kv_bytes(
    architecture: &Architecture,
    demand: &Demand<'_>,
    stage: Range<usize>,
    batched: u64,
) -> Result<u64, SizingError> {
    let dtype = kv_dtype(demand.engine, demand.kv_dtype)?;
    let sequences = u64::from(demand.concurrency);
    let attending: Vec<usize> = stage.clone().filter(|layer| attends(architecture, *layer)).collect();
    let widest = attending.iter().map(|layer| row(architecture, *layer, dtype, demand)).max().unwrap_or(0);
    let each = architecture
        .constant_state
        .as_ref()
        .map_or(0, |state| state.served_bytes_per_sequence.unwrap_or(state.bytes_per_sequence));
    let state = state_bytes(architecture, stage.clone(), demand.tensor_parallel, each);
    let layout = cache_layout(demand.engine, demand.version);
    let sliding: Vec<usize> =
        attending.iter().copied().filter(|layer| layout.windows && slides(architecture, *layer)).collect();
    let full = attending.len() - sliding.len();
    if state > 0 {
        // Hybrid: pages of attention are widened to the size of a state, and states are paged like them; with
        // prefix caching a sequence holds the running state and one aligned copy. One spare page of every layer is
        // the null block.
        let with_state = (stage.len() - attending.len()).max(1) as u64;
        let one = state.div_ceil(with_state);
        let page_tokens = blocks(one.div_ceil(widest.max(1)).max(1));
        let tokens = demand.context.div_ceil(page_tokens).saturating_mul(page_tokens);
        let page = page_tokens.saturating_mul(widest).max(one);
        let group = (attending.len() as u64).clamp(1, with_state);
        let padded = with_state.div_ceil(group) * group;
        let cache = tokens.saturating_mul(widest).saturating_mul(attending.len() as u64);
        let states = padded.saturating_mul(page).saturating_mul(layout.states);
        return Ok(cache.saturating_add(states).saturating_mul(sequences));
    }
    if sliding.is_empty() {
        let block = if architecture.mla.is_some() { LATENT_BLOCK } else { BLOCK };
        let tokens = whole(demand.context, block);
        let sum = attending.iter().map(|layer| row(architecture, *layer, dtype, demand)).fold(0, u64::saturating_add);
        return Ok(sum.saturating_mul(tokens.saturating_mul(sequences).saturating_add(block)));
    }
    let tokens = blocks(demand.context);
    let window = architecture.sliding.as_ref().map_or(0, |sliding| u64::from(sliding.window));
    // SlidingWindowSpec: window - 1 + batched tokens, and a block for the misaligned start.
    let window_tokens = blocks(window.saturating_add(batched).min(demand.context)).saturating_add(BLOCK).min(tokens);
    let group = if full == 0 { sliding.len() } else { full.min(sliding.len()) };
    let padding = (sliding.len().div_ceil(group) * group - sliding.len()) as u64;
    let sum = |layers: &mut dyn Iterator<Item = usize>| {
        layers.map(|layer| row(architecture, layer, dtype, demand)).fold(0u64, u64::saturating_add)
    };
    let sliding_row = sum(&mut sliding.iter().copied()).saturating_add(padding.saturating_mul(widest));
    let full_row = sum(&mut attending.iter().copied().filter(|layer| !slides(architecture, *layer)));
    Ok(full_row
        .saturating_mul(tokens)
        .saturating_add(sliding_row.saturating_mul(window_tokens))
        .saturating_mul(sequences))
}

/// Bytes of a vocabulary matrix on one rank: padded to a multiple of 64 rows, then shared out.
fn vocabulary_share(bytes: u64, vocab: u32, tp: u64) -> u64 {
    let vocab = u64::from(vocab.max(1));
    let padded = u128::from(bytes) * u128::from(vocab.next_multiple_of(64)) / u128::from(vocab);
    u64::try_from(padded).unwrap_or(u64::MAX).div_ceil(tp)
}

/// Weights of one rank of a stage.
fn weights_bytes(variant: &Variant, demand: &Demand<'_>, number: usize, stage: &Range<usize>, last: usize) -> u64 {
    let architecture = &variant.architecture;
    let tensors = &variant.tensors;
    let tp = u64::from(demand.tensor_parallel);
    // Layers beyond the network's own predict several tokens at once; they are loaded only for that.
    let sum = |own: &[u64]| own.iter().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
    let layers = sum(tensors.layer_bytes.get(stage.clone()).unwrap_or(&tensors.layer_bytes));
    let all = sum(tensors.layer_bytes.get(..architecture.layers as usize).unwrap_or(&tensors.layer_bytes));
    let stored = sum(&tensors.layer_bytes);
    let share = |bytes: u64| -> u64 {
        let part = u128::from(bytes) * u128::from(layers) / u128::from(all.max(1));
        u64::try_from(part).unwrap_or(u64::MAX)
    };
    let replicated = share(tensors.replicated_bytes).min(layers);
    let mut bytes = (layers - replicated).div_ceil(tp).saturating_add(replicated);
    bytes = bytes.saturating_add(copied_heads(variant, demand, stage.len() as u64));
    let embedding = vocabulary_share(tensors.embedding_bytes, architecture.vocab, tp);
    if number == 0 {
        // Towers are counted whole on every rank: some are replicated, and they are small.
        bytes = bytes.saturating_add(embedding).saturating_add(tensors.vision_bytes);
    }
    if number == last {
        let head = if architecture.tied && last > 0 {
            embedding
        } else {
            vocabulary_share(tensors.output_bytes, architecture.vocab, tp)
        };
        let rest = tensors
            .total_bytes
            .saturating_sub(stored)
            .saturating_sub(tensors.embedding_bytes)
            .saturating_sub(tensors.output_bytes)
            .saturating_sub(tensors.vision_bytes);
        bytes = bytes.saturating_add(head).saturating_add(rest);
    }
    bytes = bytes.saturating_add(padded_experts(variant, demand, stage.len() as u64, EXPECTED_PAD));
    if demand.engine == EngineKind::Sglang {
        // SGLang's own figure is what the device lost, the allocator's rounding included.
        bytes = bytes.saturating_add(allocator_slack(variant, demand, stage.len() as u64));
    }
    bytes
}

/// Widths that MXFP4 kernels pad experts to, hidden size and expert width: what Triton's do on most cards, and the
/// most that any backend does (Marlin 256 and 128, TensorRT-LLM 256 and 256).
/// Source: `vllm/model_executor/layers/quantization/mxfp4.py`.
const EXPECTED_PAD: (u64, u64) = (64, 256);
const LARGEST_PAD: (u64, u64) = (256, 256);

/// Bytes that padding adds to the experts of a stage on one rank, where they are MXFP4.
fn padded_experts(variant: &Variant, demand: &Demand<'_>, layers: u64, pad: (u64, u64)) -> u64 {
    let architecture = &variant.architecture;
    let packed = variant.quantisation.as_ref().is_some_and(|quantisation| quantisation.method == "mxfp4");
    let (Some(experts), Some(width)) = (architecture.experts, architecture.moe_intermediate) else { return 0 };
    if !packed {
        return 0;
    }
    let (hidden, tp) = (u64::from(architecture.hidden), u64::from(demand.tensor_parallel.max(1)));
    let own = u64::from(width).div_ceil(tp);
    let grown = own.next_multiple_of(pad.1).saturating_mul(hidden.next_multiple_of(pad.0));
    let extra = grown.saturating_sub(own.saturating_mul(hidden));
    // Three matrices at 17 bytes per 32 weights.
    layers.saturating_mul(u64::from(experts)).saturating_mul(extra.saturating_mul(3).saturating_mul(17) / 32)
}

/// What PyTorch's allocator loses to whole blocks: matrices above 10 MiB are rounded up to 2 MiB, smaller ones share
/// segments of 20 MiB (`c10/cuda/CUDACachingAllocator.cpp`). And the table of rotations, in f32.
fn allocator_slack(variant: &Variant, demand: &Demand<'_>, layers: u64) -> u64 {
    const LARGE: u64 = 10 * MIB;
    const ROUND: u64 = 2 * MIB;
    const SEGMENT: u64 = 20 * MIB;
    let architecture = &variant.architecture;
    let tp = u64::from(demand.tensor_parallel.max(1));
    let hidden = u64::from(architecture.hidden);
    let kv = heads_per_rank(architecture.kv_heads.max(), demand.tensor_parallel);
    let heads = u64::from(architecture.heads.max()).div_ceil(tp);
    let (key, value) = (u64::from(architecture.head_dim_k), u64::from(architecture.head_dim_v));
    // Widths of the matrices of a layer as they are merged for loading.
    let mlp = u64::from(architecture.intermediate.or(architecture.moe_intermediate).unwrap_or(0)).div_ceil(tp);
    let merged =
        [heads.saturating_mul(key).saturating_add(kv.saturating_mul(key + value)), heads * value, mlp * 2, mlp];
    let bits = variant.quantisation.as_ref().and_then(|quantisation| quantisation.bits).unwrap_or(16);
    let bytes = merged.map(|width| width.saturating_mul(hidden).saturating_mul(u64::from(bits)) / 8);
    let of_large: u64 =
        bytes.iter().filter(|bytes| **bytes > LARGE).map(|bytes| bytes.div_ceil(ROUND) * ROUND - bytes).sum();
    // Small ones fill each other's gaps; the last segment of all is not full.
    let small = bytes.iter().filter(|bytes| **bytes <= LARGE && **bytes > MIB).sum::<u64>().saturating_mul(layers);
    let lost = small.checked_next_multiple_of(SEGMENT).unwrap_or(u64::MAX) - small;
    let rotations =
        architecture.trained_context.unwrap_or(0).min(1 << 20).saturating_mul(key.min(256)).saturating_mul(4);
    layers.saturating_mul(of_large).saturating_add(lost).saturating_add(rotations)
}

/// What key and value projections take beyond their share where KV heads are fewer than ranks and so copied.
fn copied_heads(variant: &Variant, demand: &Demand<'_>, layers: u64) -> u64 {
    let architecture = &variant.architecture;
    let (kv, tp) = (u64::from(architecture.kv_heads.max()), u64::from(demand.tensor_parallel));
    if architecture.mla.is_some() || kv == 0 || kv >= tp {
        return 0;
    }
    let widths = u64::from(architecture.head_dim_k) + u64::from(architecture.head_dim_v);
    let head = u64::from(architecture.hidden).saturating_mul(widths).saturating_mul(2);
    layers.saturating_mul(head).saturating_mul(tp - kv) / tp
}

/// Everything beside weights and KV on one rank.
fn overhead_bytes(variant: &Variant, demand: &Demand<'_>, layers: u64, batched: u64) -> u64 {
    let architecture = &variant.architecture;
    let tp = u64::from(demand.tensor_parallel);
    let ranks = tp * u64::from(demand.pipeline_parallel);
    let runtime = if ranks > 1 { RUNTIME_NCCL } else { RUNTIME };
    // Capture sizes: 1, 2, 4, then every 8 up to twice the sequences, at most 512.
    let sizes = 3 + u64::from(demand.concurrency).saturating_mul(2).min(512).div_ceil(8);
    let tokens = batched.max(u64::from(demand.concurrency));
    let hidden = u64::from(architecture.hidden);
    let experts = u64::from(architecture.experts_per_token.unwrap_or(0));
    let wide = experts
        .saturating_mul(u64::from(architecture.moe_intermediate.unwrap_or(0)))
        .max(u64::from(architecture.intermediate.unwrap_or(0)));
    let heads = u64::from(architecture.heads.max()).saturating_mul(u64::from(architecture.head_dim_k));
    // Residual stream and its copies, the MLP's two halves and product, queries with keys and values; 16-bit.
    let per_token = hidden
        .saturating_mul(10)
        .saturating_add(wide.saturating_mul(4).div_ceil(tp))
        .saturating_add(heads.saturating_mul(3).div_ceil(tp));
    let moe_scatter = experts.saturating_mul(hidden).saturating_mul(2);
    let activations = tokens.saturating_mul(per_token.saturating_add(moe_scatter)).saturating_mul(2);
    // Sampler: logits, sorted logits with their 64-bit places, probabilities and their sums, and one copy.
    let logits = u64::from(demand.concurrency).saturating_mul(u64::from(architecture.vocab)).saturating_mul(28);
    let encoder = if variant.tensors.vision_bytes > 0 || architecture.vision_heads.is_some() { ENCODER } else { 0 };
    runtime
        .saturating_add(sizes * GRAPH)
        .saturating_add(activations)
        .saturating_add(logits)
        .saturating_add(WORKSPACE)
        .saturating_add(encoder)
        .saturating_add(padded_experts(variant, demand, layers, LARGEST_PAD).saturating_sub(padded_experts(
            variant,
            demand,
            layers,
            EXPECTED_PAD,
        )))
        .saturating_add(if demand.engine == EngineKind::Vllm { allocator_slack(variant, demand, layers) } else { 0 })
}

/// What is planned beside weights and KV for every rank of an unstaged model, at any number of tokens per step
/// (flock passes [`VLLM_BATCHED_TOKENS`]).
pub fn vllm_overhead(variant: &Variant, demand: &Demand<'_>, batched_tokens: u64) -> u64 {
    overhead_bytes(variant, demand, u64::from(variant.architecture.layers), batched_tokens)
}

/// The footprint of a demand, its layers shared out as the engine does by itself.
pub(super) fn footprint(variant: &Variant, demand: &Demand<'_>) -> Result<Footprint, SizingError> {
    let layers = variant.architecture.layers;
    if demand.pipeline_parallel > layers {
        let stages = demand.pipeline_parallel;
        return Err(SizingError::Split(format!("{layers} layers cannot be split into {stages} stages")));
    }
    staged(variant, demand, stages(layers, demand.pipeline_parallel))
}

/// Layers of each stage as the engine shares them out by itself.
pub(super) fn even_layers(layers: u32, count: u32) -> Vec<u32> {
    stages(layers, count).into_iter().map(|stage| stage.len() as u32).collect()
}

/// The footprint of a demand with these stages.
pub(super) fn staged(
    variant: &Variant,
    demand: &Demand<'_>,
    stages: Vec<Range<usize>>,
) -> Result<Footprint, SizingError> {
    let architecture = &variant.architecture;
    let last = stages.len().saturating_sub(1);
    let mut per_accelerator = Vec::new();
    for (number, stage) in stages.into_iter().enumerate() {
        let held = stage.len() as u64;
        let figures = Figures {
            weights_bytes: weights_bytes(variant, demand, number, &stage, last),
            kv_bytes: kv_bytes(architecture, demand, stage, VLLM_BATCHED_TOKENS)?,
            overhead_bytes: overhead_bytes(variant, demand, held, VLLM_BATCHED_TOKENS),
        };
        for _ in 0..demand.tensor_parallel {
            per_accelerator.push(figures);
        }
    }
    let ranks = per_accelerator.len() as u64;
    let mut host = Figures { overhead_bytes: HOST_SERVER + HOST_RANK * ranks, ..Figures::default() };
    if demand.cpu {
        for figures in &per_accelerator {
            host.weights_bytes = host.weights_bytes.saturating_add(figures.weights_bytes);
            host.kv_bytes = host.kv_bytes.saturating_add(figures.kv_bytes);
            host.overhead_bytes = host.overhead_bytes.saturating_add(figures.overhead_bytes);
        }
        per_accelerator.clear();
    }
    Ok(Footprint { per_accelerator, host })
}
