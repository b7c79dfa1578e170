//! Hardware and format gates: what cannot run at all, whatever the memory.

use super::SizingError;
use super::accelerators::specification;
use crate::base::{EngineKind, WeightFormat};
use crate::engine::{Capability, has_model, least_capability, on_amd};
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

/// Whether this version of an engine has a variant's architecture and quantisation. An unknown version counts as a
/// present one.
///
/// # Errors
/// The first version that has it, for people.
pub fn version_supports(engine: EngineKind, version: Option<&str>, variant: &Variant) -> Result<(), String> {
    has_model(engine, version, &variant.architecture.name, Some(method(variant)))
}

/// What an accelerator lacks for a variant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Lacking {
    /// The sentence, with what is needed and what there is.
    pub text: String,
    /// The compute capability that is needed, where it is that.
    pub capability: Option<Capability>,
}

/// Whether an accelerator has the instructions that a variant needs in a version of an engine; with a note where that
/// could not be checked.
///
/// GGUF runs anywhere llama.cpp does (bf16 slowly where a device has none). For vLLM and SGLang see `engine/support.rs`.
///
/// # Errors
/// What is missing. An unknown capability or maker is no reason, only a note.
pub fn admits(
    engine: EngineKind,
    version: Option<&str>,
    variant: &Variant,
    accelerator: &Accelerator,
) -> Result<Option<String>, Lacking> {
    engine_supports(engine, variant).map_err(|text| Lacking { text, capability: None })?;
    if engine == EngineKind::LlamaCpp {
        return Ok(None);
    }
    let method = method(variant);
    let name = &accelerator.name;
    let published = specification(name).map(|found| found.compute_capability.as_str());
    let stated = accelerator.compute_capability.as_deref().or(published);
    match accelerator.vendor.as_str() {
        "amd" => match stated.filter(|target| target.starts_with("gfx")) {
            Some(target) => match on_amd(engine, method, target) {
                Ok(()) => Ok(None),
                Err(text) => Err(Lacking { text: format!("{text} ({name})"), capability: None }),
            },
            None => Ok(Some(format!("the target of {name} is unknown: whether it runs {method} is not checked"))),
        },
        "nvidia" | "" => {
            let have = accelerator.compute_capability.as_deref().and_then(capability);
            let Some(have) = have.or(published.and_then(capability)) else {
                let note =
                    format!("the compute capability of {name} is unknown: whether it runs {method} is not checked");
                return Ok(Some(note));
            };
            let experts = variant.architecture.experts.is_some_and(|experts| experts > 0);
            let need = least_capability(engine, version, method, experts);
            if have >= need {
                return Ok(None);
            }
            let with = version.map(|version| format!(" with {engine} {version}")).unwrap_or_default();
            let text = format!(
                "{method} needs compute capability {}.{}{with}, this is {}.{} ({name})",
                need.0, need.1, have.0, have.1
            );
            Err(Lacking { text, capability: Some(need) })
        }
        other => Ok(Some(format!("{name} is of {other}: whether {engine} runs there is not checked"))),
    }
}

/// [`admits`] of a present version, without its note.
///
/// # Errors
/// The reason, for people.
pub fn gate(variant: &Variant, engine: EngineKind, accelerator: &Accelerator) -> Result<(), String> {
    admits(engine, None, variant, accelerator).map(drop).map_err(|lacking| lacking.text)
}

/// Whether an engine must be told to compute in f16, because a device has no bf16: quantised weights are then
/// widened to that. vLLM takes the type of the weights' configuration otherwise and refuses to start.
pub fn computes_in_half(engine: EngineKind, variant: &Variant, accelerator: &Accelerator) -> bool {
    let published = specification(&accelerator.name).map(|found| found.compute_capability.as_str());
    let have = accelerator.compute_capability.as_deref().or(published).and_then(capability);
    let old = accelerator.vendor != "amd" && have.is_some_and(|have| have < (8, 0));
    engine != EngineKind::LlamaCpp && variant.quantisation.is_some() && old
}

/// `8.9` as numbers.
fn capability(text: &str) -> Option<Capability> {
    let (major, minor) = text.trim().split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The word of `engine/support.rs` for how a variant's weights are held.
fn method(variant: &Variant) -> &str {
    let quality = variant.quality.name();
    match variant.quantisation.as_ref().map(|quantisation| quantisation.method.as_str()) {
        // The one method that is several.
        Some("compressed-tensors") => match quality {
            "gptq-int4" | "awq-int4" => "int4",
            other => other,
        },
        Some(method) => method,
        None => quality,
    }
}
