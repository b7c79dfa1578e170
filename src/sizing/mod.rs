//! Bytes, legal splits, hardware gates, capacity and speed: does a variant fit, where, and how.
//!
//! In: a variant, a demand (engine, context, concurrency), facts about accelerators. Out: a footprint per
//! accelerator and on the host, the tensor-parallel sizes that work with a reason for those that do not, what
//! an accelerator can still take, an expected speed, and the `flock size` report.
//! May import: base, config, weights, engine, inventory. Pure.
//!
//! Tolerances: KV cache within 1 %, weights within 2 %; totals bounded from above, because an engine's
//! activation peak cannot be predicted better than by a factor of two. Every constant says where it is from.

mod accelerators;
mod advice;
mod calibrate;
mod capacity;
mod demand;
mod explain;
mod gate;
mod kv;
mod llama_cpp;
mod lora;
mod report;
mod request;
mod speed;
mod splits;
mod stages;
mod vllm;

#[cfg(test)]
mod tests;

pub use accelerators::{AcceleratorSpec, specification, specifications};
pub use advice::{Best, LEAST_BITS, room_for_weights, said, shortage, times, times_gib};
pub use calibrate::{CALIBRATION_MARGIN, Calibrations, Ran, accelerator_kind, under_estimate};
pub use capacity::{Capacity, DEFAULT_RESERVE_RAM, accelerator_capacity, default_reserve_vram, host_capacity};
pub use demand::{DEFAULT_CONTEXT, Demand, Figures, Footprint, SizingError, effective_context, footprint};
pub use gate::{Lacking, admits, computes_in_half, engine_supports, gate, version_supports};
pub use kv::{attention_word, kv_bytes_per_token};
pub use llama_cpp::{
    LlamaBuffers, LlamaSetup, layer_split, llama_buffers, llama_overhead, offloaded_footprint, projector_figures,
    spanned_footprint,
};
pub use lora::{adapter_bytes, adapter_reserve};
pub use report::{
    Fit, KvReport, PerAccelerator, SizeAnswer, SizeReport, SizeRequest, SplitsReport, VariantReport, size_report,
};
pub use request::{AcceleratorRequest, RequestError, parse_accelerator_request};
pub use speed::{Speed, speed};
pub use splits::{RefusedSplit, SplitRule, Splits, legal_splits};
pub use stages::{even_layers, staged_decode, staged_footprint};
pub use vllm::vllm_overhead;
