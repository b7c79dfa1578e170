//! Layers that are told to an engine: stages of different length, and layers in host memory.

use super::demand::{Demand, Footprint, SizingError};
use super::speed::{BANDWIDTH_EFFICIENCY, active_share, read_bytes};
use super::{llama_cpp, vllm};
use crate::base::EngineKind;
use crate::weights::Variant;

/// The footprint with so many layers on each stage. llama.cpp: one accelerator each, and what is left of the layers,
/// the first ones, in host memory (`-ngl`). vLLM: `demand.tensor_parallel` ranks each, and all layers.
///
/// The demand's own number of stages is not looked at.
///
/// # Errors
/// As [`super::footprint`]; also for more layers than there are, for stages without any, and for layers that vLLM would
/// have to leave out.
pub fn staged_footprint(variant: &Variant, demand: &Demand<'_>, layers: &[u32]) -> Result<Footprint, SizingError> {
    super::gate::engine_format(demand.engine, variant)?;
    if demand.context == 0 || demand.concurrency == 0 {
        return Err(SizingError::Zero(if demand.context == 0 { "context" } else { "concurrency" }));
    }
    let all = u64::from(variant.architecture.layers);
    let held: u64 = layers.iter().map(|own| u64::from(*own)).sum();
    let whole = demand.engine == EngineKind::LlamaCpp || held == all;
    if layers.is_empty() || layers.contains(&0) || held > all || !whole || layers.len() > 1024 {
        return Err(SizingError::Split(format!("{held} of {all} layers in {} stages", layers.len())));
    }
    let demand = Demand { pipeline_parallel: layers.len() as u32, cpu: false, ..*demand };
    match demand.engine {
        EngineKind::LlamaCpp => llama_cpp::staged(variant, &demand, layers),
        EngineKind::Vllm | EngineKind::Sglang => {
            let mut start = 0;
            let stage = |own: &u32| {
                let stage = start..start + *own as usize;
                start = stage.end;
                stage
            };
            vllm::staged(variant, &demand, layers.iter().map(stage).collect())
        }
    }
}

/// Layers of each of so many stages as vLLM shares them out by itself.
pub fn even_layers(layers: u32, stages: u32) -> Vec<u32> {
    vllm::even_layers(layers, stages)
}

/// Decode speed where stages work one after another: so many layers each, read at so many bytes per second; the output
/// head is read where the last stage is.
pub fn staged_decode(variant: &Variant, demand: &Demand<'_>, stages: &[(u32, u64)]) -> Option<f64> {
    let all: u32 = stages.iter().map(|(layers, _)| *layers).sum();
    let last = stages.last()?.1;
    if all == 0 || stages.iter().any(|(_, bandwidth)| *bandwidth == 0) {
        return None;
    }
    let read = read_bytes(variant, demand);
    let tensors = &variant.tensors;
    let head = if variant.architecture.tied { tensors.embedding_bytes } else { tensors.output_bytes } as f64;
    let head = (head * active_share(variant) / f64::from(demand.tensor_parallel.max(1))).min(read);
    let own = |(layers, bandwidth): &(u32, u64)| {
        (read - head) * f64::from(*layers) / f64::from(all) / (*bandwidth as f64 * BANDWIDTH_EFFICIENCY)
    };
    let time = stages.iter().map(own).sum::<f64>() + head / (last as f64 * BANDWIDTH_EFFICIENCY);
    (time > 0.0).then(|| 1.0 / time)
}
