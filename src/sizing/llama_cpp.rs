//! What llama.cpp needs.
//!
//! Sources: `src/llama-context.cpp` (n_ctx padded to 256), `src/llama-kv-cache-iswa.cpp` (window cells),
//! `src/llama-kv-cache.cpp` (rows; MLA keeps keys only), `src/llama-model.cpp` (input layer on the CPU, layers
//! by `-ts`, a tied output duplicated).

use std::ops::Range;

use super::demand::{Demand, Figures, Footprint, SizingError};
use super::kv::{attends, kv_dtype, layer_row, row_bytes, slides, state_bytes};
use crate::base::{Dtype, MIB};
use crate::engine::{CONTEXT_CHECKPOINTS, LLAMA_UBATCH};
use crate::weights::{Architecture, Variant};

/// CUDA context, cuBLAS and kernels of one process on one device; measured, about.
const DEVICE_CONTEXT: u64 = 457 * MIB;
/// Scratch pools of the CUDA backend (quantised matrix products, flash attention), from above.
const DEVICE_POOL: u64 = 128 * MIB;
/// The process without weights and buffers: code, tokenizer, HTTP threads.
const PROCESS: u64 = 128 * MIB;
/// Host side of a CUDA process.
const CUDA_PROCESS: u64 = 512 * MIB;
/// llama.cpp pads the context and the window's cells to this.
const PAD: u64 = 256;
/// Copies of graph inputs for pipelining over several devices (`GGML_SCHED_MAX_COPIES`).
const SCHEDULER_COPIES: u64 = 4;

/// Layers (the output head counted as one more) per device at equal shares, as `-sm layer` assigns them: a
/// layer goes to the first device whose cumulated share is above its position.
pub fn layer_split(layers: u32, devices: u32) -> Vec<u32> {
    let devices = devices.max(1);
    let items = u64::from(layers) + 1;
    let mut counts = vec![0u32; devices as usize];
    for item in 0..items {
        // upper_bound over (d + 1) / devices of item / items.
        let device = (item * u64::from(devices) / items).min(u64::from(devices) - 1);
        counts[device as usize] += 1;
    }
    counts
}

/// The repeating layers of each device, from [`layer_split`]'s counts.
fn stages(layers: u32, counts: &[u32]) -> Vec<Range<usize>> {
    let mut start = 0usize;
    let all = layers as usize;
    counts
        .iter()
        .map(|count| {
            let end = start.saturating_add(*count as usize).min(all);
            let stage = start.min(all)..end;
            start = end;
            stage
        })
        .collect()
}

/// Cells of full and of sliding layers.
fn cells(architecture: &Architecture, demand: &Demand<'_>) -> (u64, u64) {
    let total = demand.context.saturating_mul(u64::from(demand.concurrency));
    let full = total.max(1).checked_next_multiple_of(PAD).unwrap_or(u64::MAX);
    let window = architecture.sliding.as_ref().map_or(0, |sliding| u64::from(sliding.window));
    let sliding = window
        .saturating_mul(u64::from(demand.concurrency))
        .saturating_add(LLAMA_UBATCH.min(full))
        .min(full)
        .checked_next_multiple_of(PAD)
        .unwrap_or(u64::MAX);
    (full, sliding)
}

/// Bytes per cell of one layer.
fn row(architecture: &Architecture, layer: usize, dtype: Dtype, latent: bool) -> u64 {
    match &architecture.mla {
        Some(mla) if latent => row_bytes(u64::from(mla.kv_lora_rank) + u64::from(mla.qk_rope_head_dim), dtype),
        // Versions without a latent cache expand every head.
        Some(_) => {
            let heads = u64::from(architecture.heads.at(layer));
            row_bytes(heads.saturating_mul(u64::from(architecture.head_dim_k)), dtype)
                .saturating_add(row_bytes(heads.saturating_mul(u64::from(architecture.head_dim_v)), dtype))
        }
        None => layer_row(architecture, layer, dtype, 1),
    }
}

/// KV cache and states of the layers of one stage.
pub(super) fn kv_bytes(
    architecture: &Architecture,
    demand: &Demand<'_>,
    stage: Range<usize>,
) -> Result<u64, SizingError> {
    let dtype = kv_dtype(demand.engine, demand.kv_dtype)?;
    let latent = crate::engine::caches_latent(demand.version);
    let (full, sliding) = cells(architecture, demand);
    let cache = stage
        .clone()
        .filter(|layer| attends(architecture, *layer))
        .map(|layer| {
            let cells = if slides(architecture, layer) { sliding } else { full };
            row(architecture, layer, dtype, latent).saturating_mul(cells)
        })
        .fold(0u64, u64::saturating_add);
    let state = state_bytes(architecture, stage, 1).saturating_mul(u64::from(demand.concurrency));
    Ok(cache.saturating_add(state))
}

/// Compute buffer of a device: logits where the output layer is, else the attention mask or the widest
/// activations, whichever is largest. Flash attention is on, so no heads x context term.
fn compute_bytes(architecture: &Architecture, demand: &Demand<'_>, logits: bool, devices: u64) -> u64 {
    let (full, _) = cells(architecture, demand);
    let batch = LLAMA_UBATCH.min(full);
    let hidden = u64::from(architecture.hidden);
    let output = if logits { u64::from(architecture.vocab).saturating_add(hidden) } else { 0 };
    // The mask in f32 and its f16 copy.
    let copies = if devices > 1 { SCHEDULER_COPIES } else { 1 };
    let mask = full.saturating_mul(6) / 4;
    let experts = u64::from(architecture.experts_per_token.unwrap_or(0));
    let wide = experts
        .saturating_mul(u64::from(architecture.moe_intermediate.unwrap_or(0)))
        .max(u64::from(architecture.intermediate.unwrap_or(0)));
    let heads = u64::from(architecture.heads.max()).saturating_mul(u64::from(architecture.head_dim_k));
    let activations = wide.saturating_mul(3).saturating_add(heads.saturating_mul(4)).saturating_add(6 * hidden);
    let widest = output.max(activations).max(mask);
    let rows = if copies > 1 { widest.saturating_add(mask.saturating_mul(copies)) } else { widest };
    rows.saturating_mul(4).saturating_mul(batch).saturating_add(16 * MIB)
}

/// Window and state copies that slots may keep in host memory.
fn checkpoint_bytes(architecture: &Architecture, demand: &Demand<'_>) -> u64 {
    let layers = architecture.layers as usize;
    let window = architecture.sliding.as_ref().map_or(0, |sliding| u64::from(sliding.window));
    let dtype = demand.kv_dtype.unwrap_or(Dtype::F16);
    let sliding = (0..layers)
        .filter(|layer| slides(architecture, *layer))
        .map(|layer| layer_row(architecture, layer, dtype, 1).saturating_mul(window.saturating_add(LLAMA_UBATCH)))
        .fold(0u64, u64::saturating_add);
    sliding
        .saturating_add(state_bytes(architecture, 0..layers, 1))
        .saturating_mul(CONTEXT_CHECKPOINTS)
        .saturating_mul(u64::from(demand.concurrency))
}

/// The footprint of a demand; `counts` are layers per device, the output head one more on the last.
pub(super) fn footprint(
    variant: &Variant,
    demand: &Demand<'_>,
    counts: Option<&[u32]>,
) -> Result<Footprint, SizingError> {
    if demand.tensor_parallel > 1 {
        return Err(SizingError::Split("llama.cpp splits by layers; it has no tensor parallelism".to_owned()));
    }
    let architecture = &variant.architecture;
    let tensors = &variant.tensors;
    let layers = architecture.layers;
    if demand.cpu {
        let weights_bytes = if architecture.tied {
            // Repacking for the CPU's instructions may hold the tied head apart from the embedding.
            tensors.total_bytes.saturating_add(tensors.embedding_bytes)
        } else {
            tensors.total_bytes
        };
        let host = Figures {
            weights_bytes,
            kv_bytes: kv_bytes(architecture, demand, 0..layers as usize)?,
            overhead_bytes: PROCESS
                .saturating_add(compute_bytes(architecture, demand, true, 1))
                .saturating_add(checkpoint_bytes(architecture, demand)),
        };
        return Ok(Footprint { per_accelerator: Vec::new(), host });
    }
    let devices = demand.pipeline_parallel;
    if devices > layers {
        return Err(SizingError::Split(format!("{layers} layers cannot be split over {devices} accelerators")));
    }
    let in_layers = tensors.layer_bytes.iter().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
    let head = if architecture.tied { tensors.embedding_bytes } else { tensors.output_bytes };
    let rest = tensors
        .total_bytes
        .saturating_sub(in_layers)
        .saturating_sub(tensors.embedding_bytes)
        .saturating_sub(tensors.output_bytes);
    let equal = layer_split(layers, devices);
    let counts = counts.unwrap_or(&equal);
    if counts.len() != devices as usize
        || counts.iter().map(|count| u64::from(*count)).sum::<u64>() != u64::from(layers) + 1
    {
        return Err(SizingError::Split(format!(
            "a split of {} parts of {} layers and the output head over {devices} accelerators",
            counts.len(),
            layers
        )));
    }
    let stages = stages(layers, counts);
    let last = stages.len().saturating_sub(1);
    let mut per_accelerator = Vec::new();
    for (number, stage) in stages.into_iter().enumerate() {
        let end = if number == last { tensors.layer_bytes.len() } else { stage.end };
        let own = tensors.layer_bytes.get(stage.start..end.max(stage.start)).unwrap_or_default();
        let mut weights_bytes = own.iter().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
        if number == last {
            weights_bytes = weights_bytes.saturating_add(head).saturating_add(rest);
        }
        per_accelerator.push(Figures {
            weights_bytes,
            kv_bytes: kv_bytes(architecture, demand, stage)?,
            overhead_bytes: (DEVICE_CONTEXT + DEVICE_POOL).saturating_add(compute_bytes(
                architecture,
                demand,
                number == last,
                u64::from(devices),
            )),
        });
    }
    let (full, _) = cells(architecture, demand);
    let inputs = full.saturating_mul(4).saturating_add(u64::from(architecture.hidden) * 4).saturating_mul(LLAMA_UBATCH);
    let host = Figures {
        weights_bytes: tensors.embedding_bytes,
        kv_bytes: 0,
        overhead_bytes: CUDA_PROCESS.saturating_add(inputs).saturating_add(checkpoint_bytes(architecture, demand)),
    };
    Ok(Footprint { per_accelerator, host })
}
