//! Each byte of a size report: which tensors, which rule, which source.

use super::demand::{Demand, Figures};
use super::kv::{attends, slides};
use crate::base::{Dtype, EngineKind, format_bytes};
use crate::engine::{CONTEXT_CHECKPOINTS, LLAMA_UBATCH, VLLM_BATCHED_TOKENS};
use crate::weights::{Architecture, PerLayer, Variant};

/// Where the figures are from, line by line.
pub(super) fn explain(variant: &Variant, demand: &Demand<'_>, per_accelerator: &[Figures]) -> Vec<String> {
    let mut lines = weights(variant, demand);
    lines.extend(cache(&variant.architecture, demand));
    lines.push(format!("demand: {} tokens x {} sequences in {}", demand.context, demand.concurrency, demand.engine));
    for (number, figures) in per_accelerator.iter().enumerate() {
        lines.push(format!(
            "accelerator {number}: weights {}, KV {}, overhead {} (headroom, from above), together {}",
            format_bytes(figures.weights_bytes),
            format_bytes(figures.kv_bytes),
            format_bytes(figures.overhead_bytes),
            format_bytes(figures.total())
        ));
    }
    lines.extend(overhead(variant, demand));
    lines.extend(variant.notes.iter().map(|note| format!("note: {note}")));
    lines
}

fn sum(bytes: &[u64]) -> u64 {
    bytes.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
}

/// The weights: by part, and how the engine lays the parts out.
fn weights(variant: &Variant, demand: &Demand<'_>) -> Vec<String> {
    let (tensors, architecture) = (&variant.tensors, &variant.architecture);
    let basis = if tensors.exact { "the tensor headers" } else { "the index' total and the architecture's formula" };
    let own = architecture.layers as usize;
    let layers = sum(tensors.layer_bytes.get(..own).unwrap_or(&tensors.layer_bytes));
    let predicting = sum(tensors.layer_bytes.get(own..).unwrap_or_default());
    let mut lines = vec![
        format!("weights {} from {basis}", format_bytes(tensors.total_bytes)),
        format!(
            "  {own} layers {}, embedding {}, output head {}, vision {}",
            format_bytes(layers),
            format_bytes(tensors.embedding_bytes),
            if architecture.tied { "tied".to_owned() } else { format_bytes(tensors.output_bytes) },
            format_bytes(tensors.vision_bytes)
        ),
    ];
    if predicting > 0 {
        let what = format_bytes(predicting);
        lines.push(match demand.engine {
            EngineKind::LlamaCpp => format!("  {what} of layers for multi-token prediction, loaded with the rest"),
            _ => format!("  {what} of layers for multi-token prediction are not loaded without speculative decoding"),
        });
    }
    match demand.engine {
        EngineKind::LlamaCpp => {
            let twice = if architecture.tied { ", and once more on the device as the output head" } else { "" };
            lines.push(format!("  the embedding stays in host memory{twice} (llama.cpp src/llama-model.cpp)"));
            if tensors.host_bytes > 0 {
                lines.push(format!(
                    "  {} of per-layer embeddings stay in host memory",
                    format_bytes(tensors.host_bytes)
                ));
            }
        }
        EngineKind::Vllm | EngineKind::Sglang => {
            let (tp, pp) = (demand.tensor_parallel, demand.pipeline_parallel);
            lines.push(format!(
                "  each of {tp} ranks in {pp} stages holds its share of the matrices, all of {} of norms, routers and \
                 down-projections, and a share of the vocabulary padded to 64 (vLLM model_executor/layers)",
                format_bytes(tensors.replicated_bytes)
            ));
        }
    }
    if tensors.projector_bytes > 0 {
        lines.push(format!(
            "  a vision projector of {} lies beside; it is loaded only where vision is wanted and is not counted",
            format_bytes(tensors.projector_bytes)
        ));
    }
    lines
}

/// The least and the most of a per-layer number.
fn range(values: &PerLayer) -> String {
    match values {
        PerLayer::All(value) => value.to_string(),
        PerLayer::Each(values) => {
            let own = || values.iter().copied().filter(|value| *value > 0);
            match (own().min(), own().max()) {
                (Some(least), Some(most)) if least < most => format!("{least} to {most}"),
                (_, most) => most.unwrap_or(0).to_string(),
            }
        }
    }
}

/// The cache: rows, cells, states.
fn cache(architecture: &Architecture, demand: &Demand<'_>) -> Vec<String> {
    let all = architecture.layers as usize;
    let attending = (0..all).filter(|layer| attends(architecture, *layer)).count();
    let dtype = demand.kv_dtype.map_or("16-bit", Dtype::word);
    let mut lines = vec![match &architecture.mla {
        Some(mla) => format!(
            "KV: {attending} layers x ({} latent + {} rotary) at {dtype}, held whole by every rank",
            mla.kv_lora_rank, mla.qk_rope_head_dim
        ),
        None => format!(
            "KV: {attending} layers x {} KV heads x ({} + {}) at {dtype}",
            range(&architecture.kv_heads),
            architecture.head_dim_k,
            architecture.head_dim_v
        ),
    }];
    let llama = demand.engine == EngineKind::LlamaCpp;
    if let Some(sliding) = &architecture.sliding {
        let count = (0..all).filter(|layer| attends(architecture, *layer) && slides(architecture, *layer)).count();
        let kept = if llama {
            format!("min(all, sequences x window + {LLAMA_UBATCH}) cells in steps of 256 (llama-kv-cache-iswa.cpp)")
        } else {
            format!("window + {VLLM_BATCHED_TOKENS} tokens, in groups of equal size (vLLM v1/kv_cache_interface.py)")
        };
        lines.push(format!("  {count} layers keep a window of {} tokens: {kept}", sliding.window));
        if let Some((key, value)) = sliding.head_dims {
            lines.push(format!("  their heads are ({key} + {value}) wide"));
        }
    }
    if let Some(state) = &architecture.constant_state {
        let (each, kind) = if llama {
            (state.bytes_per_sequence, "in f32 (llama-memory-recurrent.cpp)")
        } else {
            let served = state.served_bytes_per_sequence.unwrap_or(state.bytes_per_sequence);
            (served, "in pages as large as an attention page (vLLM v1/core/kv_cache_utils.py)")
        };
        lines.push(format!("  {} layers keep {} per sequence instead, {kind}", state.layers, format_bytes(each)));
    }
    if !architecture.known {
        let name = &architecture.name;
        lines.push(format!("  {name:?} is unknown: every layer is counted in full, so this is a bound from above"));
    }
    lines
}

/// What the headroom consists of, and which flag bounds it.
fn overhead(variant: &Variant, demand: &Demand<'_>) -> Vec<String> {
    match demand.engine {
        EngineKind::LlamaCpp => {
            let mut lines = vec![format!(
                "overhead: context of the device (about 457 MiB, measured), pools (128 MiB), and the compute buffer at \
                 -ub {LLAMA_UBATCH} with flash attention plus an eighth (llama.cpp ggml-alloc.c)"
            )];
            if variant.architecture.sliding.is_some() || variant.architecture.constant_state.is_some() {
                lines.push(format!(
                    "  --ctx-checkpoints {CONTEXT_CHECKPOINTS} bounds copies of windows and states on the host"
                ));
            }
            lines
        }
        EngineKind::Vllm | EngineKind::Sglang => vec![format!(
            "overhead: runtime and NCCL, one graph per capture size, activations at --max-num-batched-tokens \
             {VLLM_BATCHED_TOKENS}, logits of --max-num-seqs {}, and the allocator's rounding; the KV cache is fixed by \
             --kv-cache-memory-bytes or --gpu-memory-utilization",
            demand.concurrency
        )],
    }
}
