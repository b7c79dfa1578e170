//! What llama.cpp needs.
//!
//! Sources: `src/llama-context.cpp` (n_ctx padded to 256, how many outputs a graph is reserved for),
//! `src/llama-kv-cache-iswa.cpp` (window cells), `src/llama-kv-cache.cpp` (rows, streams; MLA keeps keys only),
//! `src/llama-memory-recurrent.cpp` (states), `src/llama-model.cpp` (input layer on the CPU, layers by `-ts`, a tied
//! output duplicated), `ggml/src/ggml-alloc.c` (what of a graph lives at once). `docs/sizing.md` has the formulas.

use std::ops::Range;

use super::demand::{Demand, Figures, Footprint, SizingError};
use super::kv::{attends, kv_dtype, layer_widths, row_bytes, slides, state_bytes};
use crate::base::{Dtype, MIB};
use crate::engine::{CONTEXT_CHECKPOINTS, LLAMA_UBATCH, Layout, llama_layout};
use crate::weights::{Architecture, PerLayer, Variant};

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
/// Beyond the modelled compute buffer: what a graph of this version keeps that the model does not know of.
const COMPUTE_SLACK: u64 = 16 * MIB;

/// How a `llama-server` is started, as far as its buffers depend on it. The default is how flock starts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LlamaSetup {
    /// `-ub`.
    pub ubatch: u64,
    /// `-fa on`.
    pub flash_attention: bool,
    /// `--kv-unified`: slots share the cells; otherwise each has a stream of its own.
    pub unified: bool,
    /// Type of the values where it is not that of the keys (`-ctv`).
    pub value_dtype: Option<Dtype>,
}

impl Default for LlamaSetup {
    fn default() -> Self {
        Self { ubatch: LLAMA_UBATCH, flash_attention: true, unified: true, value_dtype: None }
    }
}

/// Buffers of a model that one device holds whole, as the server's own log lists them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LlamaBuffers {
    /// Keys and values (`KV buffer size`, both caches where layers slide).
    pub kv_bytes: u64,
    /// Recurrent states (`RS buffer size`).
    pub state_bytes: u64,
    /// `compute buffer size`, without slack.
    pub compute_bytes: u64,
}

/// The buffers of a model on one device under any setup.
///
/// # Errors
/// [`SizingError::KvDtype`] for a type that llama.cpp does not have.
pub fn llama_buffers(variant: &Variant, demand: &Demand<'_>, setup: &LlamaSetup) -> Result<LlamaBuffers, SizingError> {
    let architecture = &variant.architecture;
    let all = 0..architecture.layers as usize;
    Ok(LlamaBuffers {
        kv_bytes: cache_bytes(architecture, demand, setup, all.clone())?,
        state_bytes: slot_state(architecture, all).saturating_mul(u64::from(demand.concurrency)),
        compute_bytes: compute_bytes(architecture, demand, setup, true, 1),
    })
}

/// What is planned beside weights and KV on the one device that holds a model, under any setup.
pub fn llama_overhead(variant: &Variant, demand: &Demand<'_>, setup: &LlamaSetup) -> u64 {
    let compute = with_slack(compute_bytes(&variant.architecture, demand, setup, true, 1));
    let process = if demand.cpu { PROCESS } else { DEVICE_CONTEXT + DEVICE_POOL };
    compute.saturating_add(process)
}

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

/// Cells of full and of sliding layers, over all streams.
fn cells(architecture: &Architecture, demand: &Demand<'_>, setup: &LlamaSetup) -> (u64, u64) {
    let sequences = u64::from(demand.concurrency);
    let total = demand.context.saturating_mul(sequences).max(1);
    let window = architecture.sliding.as_ref().map_or(0, |sliding| u64::from(sliding.window));
    let pad = |cells: u64, to: u64| cells.checked_next_multiple_of(to).unwrap_or(u64::MAX);
    let window_pad = llama_layout(demand.version, setup.flash_attention).window_pad;
    let of_stream = |full: u64, sharing: u64| {
        pad(window.saturating_mul(sharing).saturating_add(setup.ubatch).min(full), window_pad)
    };
    if setup.unified || sequences == 1 {
        let full = pad(total, PAD);
        return (full, of_stream(full, sequences));
    }
    let full = pad(total.div_ceil(sequences), PAD);
    (full.saturating_mul(sequences), of_stream(full, 1).saturating_mul(sequences))
}

/// Bytes per cell of one layer.
///
/// Without flash attention values lie transposed, and then every layer's are as wide as the widest (`v_trans`).
fn row(architecture: &Architecture, layer: usize, dtype: Dtype, value: Dtype, layout: &Layout) -> u64 {
    match &architecture.mla {
        Some(mla) if layout.latent => {
            let latent = u64::from(mla.kv_lora_rank);
            let keys = row_bytes(latent + u64::from(mla.qk_rope_head_dim), dtype);
            if layout.latent_values { keys.saturating_add(row_bytes(latent, value)) } else { keys }
        }
        // Versions without a latent cache expand every head.
        Some(_) => {
            let heads = u64::from(architecture.heads.at(layer));
            row_bytes(heads.saturating_mul(u64::from(architecture.head_dim_k)), dtype)
                .saturating_add(row_bytes(heads.saturating_mul(u64::from(architecture.head_dim_v)), value))
        }
        None => {
            let (key, mut own) = layer_widths(architecture, layer, 1);
            if layout.widest_values {
                let all = 0..architecture.layers as usize;
                own = all.map(|layer| layer_widths(architecture, layer, 1).1).max().unwrap_or(own);
            }
            row_bytes(key, dtype).saturating_add(row_bytes(own, value))
        }
    }
}

/// Keys and values of the layers of one stage.
fn cache_bytes(
    architecture: &Architecture,
    demand: &Demand<'_>,
    setup: &LlamaSetup,
    stage: Range<usize>,
) -> Result<u64, SizingError> {
    let dtype = kv_dtype(demand.engine, demand.kv_dtype)?;
    let value = setup.value_dtype.unwrap_or(dtype);
    let layout = llama_layout(demand.version, setup.flash_attention);
    let (full, sliding) = cells(architecture, demand, setup);
    let layout = Layout { widest_values: layout.widest_values && varies(&architecture.kv_heads), ..layout };
    Ok(stage
        .filter(|layer| attends(architecture, *layer))
        .map(|layer| {
            let cells = if slides(architecture, layer) { sliding } else { full };
            row(architecture, layer, dtype, value, &layout).saturating_mul(cells)
        })
        .fold(0u64, u64::saturating_add))
}

/// Whether layers differ.
fn varies(values: &PerLayer) -> bool {
    matches!(values, PerLayer::Each(_))
}

/// States of one slot.
fn slot_state(architecture: &Architecture, stage: Range<usize>) -> u64 {
    let each = architecture.constant_state.as_ref().map_or(0, |state| state.bytes_per_sequence);
    state_bytes(architecture, stage, 1, each)
}

/// KV cache and states of the layers of one stage.
pub(super) fn kv_bytes(
    architecture: &Architecture,
    demand: &Demand<'_>,
    stage: Range<usize>,
) -> Result<u64, SizingError> {
    let setup = LlamaSetup::default();
    let newest = cache_bytes(architecture, demand, &setup, stage.clone())?;
    // A version that is not known may be one of those that keep the latent twice; still older ones do not know the
    // flags that they are started with.
    let cache = match demand.version {
        None => {
            newest.max(cache_bytes(architecture, &Demand { version: Some("7500"), ..*demand }, &setup, stage.clone())?)
        }
        Some(_) => newest,
    };
    Ok(cache.saturating_add(slot_state(architecture, stage).saturating_mul(u64::from(demand.concurrency))))
}

/// Floats per token that the widest point of a block keeps alive.
///
/// Found by reserving graphs of many shapes and read from the server's log. Feed-forward: gate, up and their product
/// (3 x width), and five rows of the residual stream. Experts: the same for every chosen one, and its output where
/// that does not fit into what gate and up leave (hidden > 2 x width). Attention: queries three times (as projected,
/// rotated and for the kernel; those of MLA are as wide as the latent), one row, and keys and values twice. Linear
/// attention: five rows of its convolution.
fn block_floats(architecture: &Architecture, latent: bool) -> u64 {
    let hidden = u64::from(architecture.hidden);
    let five = hidden.saturating_mul(5);
    let dense = u64::from(architecture.intermediate.unwrap_or(0)).saturating_mul(3).saturating_add(five);
    let experts = match (architecture.experts_per_token, architecture.moe_intermediate) {
        (Some(used), Some(width)) => {
            let own = u64::from(width).saturating_mul(3);
            let output = if hidden > u64::from(width) * 2 { hidden } else { 0 };
            u64::from(used).saturating_mul(own.saturating_add(output)).saturating_add(five)
        }
        _ => 0,
    };
    let heads = u64::from(architecture.heads.max());
    let queries = match &architecture.mla {
        Some(mla) if latent => heads.saturating_mul(u64::from(mla.kv_lora_rank) + u64::from(mla.qk_rope_head_dim)),
        _ => heads.saturating_mul(u64::from(architecture.head_dim_k)),
    };
    let (key, value) = if architecture.mla.is_some() {
        (hidden / 4, 0)
    } else {
        let kv = u64::from(architecture.kv_heads.max());
        (kv.saturating_mul(u64::from(architecture.head_dim_k)), kv.saturating_mul(u64::from(architecture.head_dim_v)))
    };
    let attention =
        queries.saturating_mul(3).saturating_add(hidden).saturating_add(key.saturating_add(value).saturating_mul(2));
    // Of a state's bytes the convolution's rows are not known apart; twice the residual and six times the queries
    // are above them in every published model.
    let linear = if architecture.constant_state.is_some() { hidden.saturating_mul(8).max(queries * 5) } else { 0 };
    dense.max(experts).max(attention).max(linear)
}

/// Compute buffer of a device.
///
/// With flash attention: the masks (one per kind of layer) and the widest point of a block, or the logits where they
/// are larger. Without: scores of every head in f32 as well. Only the device with the output layer pays for logits,
/// and only for as many as the version reserves.
fn compute_bytes(
    architecture: &Architecture,
    demand: &Demand<'_>,
    setup: &LlamaSetup,
    logits: bool,
    devices: u64,
) -> u64 {
    let layout = llama_layout(demand.version, setup.flash_attention);
    let (full, sliding) = cells(architecture, demand, setup);
    let streams = if setup.unified { 1 } else { u64::from(demand.concurrency).max(1) };
    let (full, sliding) = (full / streams, sliding / streams);
    let batch = setup.ubatch.min(full);
    let hidden = u64::from(architecture.hidden);
    let sequences = u64::from(demand.concurrency);
    let outputs = if layout.all_outputs { batch } else { sequences.min(batch) };
    let output =
        if logits { (u64::from(architecture.vocab).saturating_add(hidden)).saturating_mul(outputs) } else { 0 };
    let slides = architecture.sliding.is_some();
    let both = full.saturating_add(if slides { sliding } else { 0 });
    let latent = layout.latent;
    // In quarters of a float: the mask is f16 for flash attention, f32 with an f16 copy in older builds.
    let mask = both.saturating_mul(layout.mask_half_floats).div_ceil(2);
    let block = block_floats(architecture, latent);
    let heads = u64::from(architecture.heads.max());
    let graph = if setup.flash_attention {
        block.saturating_add(mask)
    } else if layout.all_outputs {
        // The published formula of these builds; networks that run attention and MLP side by side keep the MLP's
        // two halves as well.
        let beside = if parallel_residual(&architecture.name) { architecture.intermediate.unwrap_or(0) } else { 0 };
        heads
            .saturating_mul(full)
            .saturating_add(full)
            .saturating_add(hidden.saturating_mul(4))
            .saturating_add(u64::from(beside).saturating_mul(2))
    } else {
        let queries = heads.saturating_mul(u64::from(architecture.head_dim_k)).max(hidden);
        let scores = heads.saturating_mul(full).saturating_add(queries.saturating_mul(7));
        scores.max(block.saturating_add(hidden.saturating_mul(2))).saturating_add(both)
    };
    // Inputs: token, position, output and cell numbers.
    let graph = graph.saturating_add(if layout.all_outputs { 0 } else { if slides { 16 } else { 11 } });
    let copies = if devices > 1 { mask.saturating_mul(SCHEDULER_COPIES) } else { 0 };
    output.max(graph.saturating_mul(batch)).saturating_add(copies.saturating_mul(batch)).saturating_mul(4)
}

/// Families that run attention and MLP on the same input.
fn parallel_residual(name: &str) -> bool {
    matches!(name, "command-r" | "cohere2" | "falcon" | "gptneox" | "phi2")
        || ["Cohere", "Falcon", "GPTNeoX", "PhiFor"].iter().any(|stem| name.starts_with(stem))
}

/// The compute buffer as flock starts the server, with slack.
fn planned_compute(architecture: &Architecture, demand: &Demand<'_>, logits: bool, devices: u64) -> u64 {
    let setup = LlamaSetup::default();
    let newest = compute_bytes(architecture, demand, &setup, logits, devices);
    // A version that is not known may be one that reserves logits for the whole batch.
    let oldest = match demand.version {
        None => compute_bytes(architecture, &Demand { version: Some("6700"), ..*demand }, &setup, logits, devices),
        Some(_) => 0,
    };
    with_slack(newest.max(oldest))
}

fn with_slack(compute: u64) -> u64 {
    compute.saturating_add(compute / 8).saturating_add(COMPUTE_SLACK)
}

/// Window and state copies that slots may keep in host memory.
fn checkpoint_bytes(architecture: &Architecture, demand: &Demand<'_>) -> u64 {
    let layers = architecture.layers as usize;
    let window = architecture.sliding.as_ref().map_or(0, |sliding| u64::from(sliding.window));
    let dtype = demand.kv_dtype.unwrap_or(Dtype::F16);
    let layout = llama_layout(demand.version, true);
    let sliding = (0..layers)
        .filter(|layer| slides(architecture, *layer))
        .map(|layer| {
            row(architecture, layer, dtype, dtype, &layout).saturating_mul(window.saturating_add(LLAMA_UBATCH))
        })
        .fold(0u64, u64::saturating_add);
    sliding
        .saturating_add(slot_state(architecture, 0..layers))
        .saturating_mul(CONTEXT_CHECKPOINTS)
        .saturating_mul(u64::from(demand.concurrency))
}

/// Weights of the layers of a stage. The last one also holds the layers for multi-token prediction.
fn stage_weights(variant: &Variant, stage: &Range<usize>, last: bool) -> u64 {
    let tensors = &variant.tensors;
    let end = if last { tensors.layer_bytes.len() } else { stage.end };
    let own = tensors.layer_bytes.get(stage.start..end.max(stage.start)).unwrap_or_default();
    let mut bytes = own.iter().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
    if last {
        let in_layers = tensors.layer_bytes.iter().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
        let head = if variant.architecture.tied { tensors.embedding_bytes } else { tensors.output_bytes };
        let rest = tensors
            .total_bytes
            .saturating_sub(in_layers)
            .saturating_sub(tensors.embedding_bytes)
            .saturating_sub(tensors.output_bytes)
            .saturating_sub(tensors.host_bytes);
        bytes = bytes.saturating_add(head).saturating_add(rest);
    }
    bytes
}

/// Host side of a process that uses accelerators.
fn host_beside(variant: &Variant, demand: &Demand<'_>) -> Figures {
    let architecture = &variant.architecture;
    let (full, sliding) = cells(architecture, demand, &LlamaSetup::default());
    let sliding = if architecture.sliding.is_some() { sliding } else { 0 };
    let inputs = full
        .saturating_add(sliding)
        .saturating_mul(4)
        .saturating_add(u64::from(architecture.hidden) * 4)
        .saturating_mul(LLAMA_UBATCH);
    // Logits of every slot, copied to the host.
    let output = u64::from(architecture.vocab).saturating_mul(4).saturating_mul(u64::from(demand.concurrency));
    Figures {
        weights_bytes: variant.tensors.embedding_bytes.saturating_add(variant.tensors.host_bytes),
        kv_bytes: 0,
        overhead_bytes: CUDA_PROCESS
            .saturating_add(inputs)
            .saturating_add(output)
            .saturating_add(checkpoint_bytes(architecture, demand)),
    }
}

/// The footprint with only the last `layers` layers and the output head on one accelerator and the rest in host
/// memory (`-ngl layers + 1`): each side keeps the cache of its own layers.
///
/// # Errors
/// As [`super::footprint`]; also for more layers than there are.
pub fn offloaded_footprint(variant: &Variant, demand: &Demand<'_>, layers: u32) -> Result<Footprint, SizingError> {
    super::gate::engine_format(demand.engine, variant)?;
    if demand.context == 0 || demand.concurrency == 0 {
        return Err(SizingError::Split(format!(
            "{layers} of {} layers on the accelerator",
            variant.architecture.layers
        )));
    }
    staged(variant, demand, &[layers])
}

/// The footprint with so many layers on each accelerator, in rank order, and the first ones that are left in host
/// memory.
pub(super) fn staged(variant: &Variant, demand: &Demand<'_>, layers: &[u32]) -> Result<Footprint, SizingError> {
    let architecture = &variant.architecture;
    let all = architecture.layers;
    let held = layers.iter().fold(0u32, |sum, own| sum.saturating_add(*own));
    let Some(first) = all.checked_sub(held).filter(|_| !layers.is_empty()) else {
        return Err(SizingError::Split(format!("{held} of {all} layers on {} accelerators", layers.len())));
    };
    let devices = layers.len() as u64;
    let mut start = first as usize;
    let mut per_accelerator = Vec::new();
    for (number, own) in layers.iter().enumerate() {
        let last = number + 1 == layers.len();
        let stage = start..start + *own as usize;
        start = stage.end;
        per_accelerator.push(Figures {
            weights_bytes: stage_weights(variant, &stage, last),
            kv_bytes: kv_bytes(architecture, demand, stage)?,
            overhead_bytes: (DEVICE_CONTEXT + DEVICE_POOL).saturating_add(planned_compute(
                architecture,
                demand,
                last,
                devices,
            )),
        });
    }
    let mut host = host_beside(variant, demand);
    if first > 0 {
        let on_host = 0..first as usize;
        host.weights_bytes = host.weights_bytes.saturating_add(stage_weights(variant, &on_host, false));
        host.kv_bytes = kv_bytes(architecture, demand, on_host)?;
        // Large batches copy host layers' weights to the device one at a time; the host runs its layers itself too.
        host.overhead_bytes = host.overhead_bytes.saturating_add(planned_compute(architecture, demand, false, 1));
    }
    Ok(Footprint { per_accelerator, host })
}

/// The footprint with the first layers in host memory of the process that serves, or on its accelerators, and the others
/// on workers of other nodes: `layers` of each device in llama.cpp's order, of which `on_processor` tells which are the
/// memory of a worker's host; `serves_on_processor` that the process that serves has no accelerator. Second: what a
/// worker takes of its host beside that, accelerators or not.
///
/// Source: `ggml/src/ggml-rpc/ggml-rpc.cpp` (a worker holds a message whole, and a tensor is one).
///
/// # Errors
/// As [`super::footprint`]; also for more layers than there are, and for devices without any.
pub fn spanned_footprint(
    variant: &Variant,
    demand: &Demand<'_>,
    layers: &[u32],
    on_processor: &[bool],
    serves_on_processor: bool,
) -> Result<(Footprint, Figures), SizingError> {
    let mut sized = super::staged_footprint(variant, demand, layers)?;
    for (figures, _) in sized.per_accelerator.iter_mut().zip(on_processor).filter(|(_, on)| **on) {
        figures.overhead_bytes = figures.overhead_bytes.saturating_sub(DEVICE_CONTEXT + DEVICE_POOL);
    }
    if serves_on_processor {
        let host = &mut sized.host;
        host.overhead_bytes = host.overhead_bytes.saturating_sub(CUDA_PROCESS).saturating_add(PROCESS);
    }
    let tensors = &variant.tensors;
    // No tensor of a layer is larger than the layer.
    let in_layers = tensors.layer_bytes.iter().copied().max().unwrap_or(0);
    let largest =
        in_layers.max(tensors.output_bytes).max(if tensors.output_bytes == 0 { tensors.embedding_bytes } else { 0 });
    let process = if on_processor.iter().all(|on| *on) { PROCESS } else { CUDA_PROCESS };
    let worker = Figures { overhead_bytes: process.saturating_add(largest), ..Figures::default() };
    Ok((sized, worker))
}

/// Buffers of the encoder of one image beside the projector's weights, from above: patches, attention and its scratch.
const PROJECTOR_COMPUTE: u64 = 1024 * MIB;

/// What a vision projector of so many bytes takes where it lies. `alone`: on an accelerator without layers, which then
/// also holds a context of the process.
pub fn projector_figures(bytes: u64, alone: bool) -> Figures {
    let context = if alone { DEVICE_CONTEXT + DEVICE_POOL } else { 0 };
    Figures { weights_bytes: bytes, kv_bytes: 0, overhead_bytes: PROJECTOR_COMPUTE + context }
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
                .saturating_add(planned_compute(architecture, demand, true, 1))
                .saturating_add(checkpoint_bytes(architecture, demand)),
        };
        return Ok(Footprint { per_accelerator: Vec::new(), host });
    }
    let devices = demand.pipeline_parallel;
    if devices > layers {
        return Err(SizingError::Split(format!("{layers} layers cannot be split over {devices} accelerators")));
    }
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
        per_accelerator.push(Figures {
            weights_bytes: stage_weights(variant, &stage, number == last),
            kv_bytes: kv_bytes(architecture, demand, stage)?,
            overhead_bytes: (DEVICE_CONTEXT + DEVICE_POOL).saturating_add(planned_compute(
                architecture,
                demand,
                number == last,
                u64::from(devices),
            )),
        });
    }
    Ok(Footprint { per_accelerator, host: host_beside(variant, demand) })
}
