//! Hardware and format gates: what cannot run at all, whatever the memory.

use super::SizingError;
use super::accelerators::specification;
use crate::base::{EngineKind, WeightFormat};
use crate::inventory::Accelerator;
use crate::weights::Variant;

/// Whether an engine loads a variant's format.
///
/// # Errors
/// The reason, for people.
pub fn engine_supports(engine: EngineKind, variant: &Variant) -> Result<(), String> {
    engine_format(engine, variant).map_err(|error| error.to_string())
}

/// The same as a typed error.
pub(super) fn engine_format(engine: EngineKind, variant: &Variant) -> Result<(), SizingError> {
    let fits = match engine {
        EngineKind::LlamaCpp => variant.format == WeightFormat::Gguf,
        // vLLM's GGUF loader is experimental and refuses most architectures.
        EngineKind::Vllm | EngineKind::Sglang => variant.format == WeightFormat::Safetensors,
    };
    if fits { Ok(()) } else { Err(SizingError::Format { engine, format: variant.format.word() }) }
}

/// Whether an accelerator has the instructions that a variant needs in an engine.
///
/// GGUF runs anywhere llama.cpp does. For vLLM and SGLang on NVIDIA (compute capability, "Quantization ->
/// Supported Hardware" of the vLLM documentation): bf16, AWQ and GPTQ (Marlin) from 8.0; fp8, mxfp4 and nvfp4
/// weights also from 8.0, because Marlin kernels widen them to 16 bits there. Native fp8 needs 8.9 and native
/// FP4 10.0, which decides speed, not whether it runs. int8 and bitsandbytes from 7.5, f16 from 7.0.
///
/// # Errors
/// The reason, for people. An unknown capability is no reason.
pub fn gate(variant: &Variant, engine: EngineKind, accelerator: &Accelerator) -> Result<(), String> {
    engine_supports(engine, variant)?;
    if engine == EngineKind::LlamaCpp || accelerator.vendor != "nvidia" {
        return Ok(());
    }
    let stated = accelerator.compute_capability.as_deref().and_then(capability);
    let known = specification(&accelerator.name).and_then(|found| capability(&found.compute_capability));
    let Some(have) = stated.or(known) else { return Ok(()) };
    let (need, what) = needed(variant);
    if have >= need {
        return Ok(());
    }
    Err(format!(
        "{what} needs compute capability {}.{}, {} has {}.{}",
        need.0, need.1, accelerator.name, have.0, have.1
    ))
}

/// `8.9` as numbers.
fn capability(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.trim().split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The least capability of a variant, with the reason's subject.
fn needed(variant: &Variant) -> ((u32, u32), String) {
    match &variant.quantisation {
        Some(quantisation) => match quantisation.method.as_str() {
            "bitsandbytes" => ((7, 5), "bitsandbytes".to_owned()),
            "compressed-tensors" if variant.quality.name() == "int8" => ((7, 5), "int8".to_owned()),
            method => ((8, 0), method.to_owned()),
        },
        None => match variant.quality.name() {
            "f16" | "f32" => ((7, 0), variant.quality.name().to_owned()),
            other => ((8, 0), other.to_owned()),
        },
    }
}
