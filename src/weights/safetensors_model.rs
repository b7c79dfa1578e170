//! A safetensors file set as a variant.

use std::collections::BTreeMap;

use super::config_json::{CONFIG, Config, formula_parameters};
use super::gguf_model::MAX_LAYERS;
use super::safetensors::{Index, TensorEntry, element_bits};
use super::{Architecture, Quantisation, Tensors, Variant, VariantFile, WeightsError};
use crate::base::{Quality, WeightFormat};

/// Whether a tensor belongs to a vision or audio tower or its projector.
pub(super) fn is_vision(name: &str) -> bool {
    const PARTS: &[&str] = &[
        "vision_tower",
        "vision_model",
        "visual.",
        "vision_encoder",
        "vision_embed",
        "embed_vision",
        "mm_projector",
        "multi_modal_projector",
        "multimodal_projector",
        "vision_language_adapter",
        "patch_merger",
        "image_newline",
        "audio_tower",
        "audio_encoder",
        "embed_audio",
        "connector.modality_projection",
        "vpm.",
        "resampler.",
    ];
    // InternVL's projector has no better name.
    name.starts_with("mlp1.") || PARTS.iter().any(|part| name.starts_with(part) || name.contains(&format!(".{part}")))
}

/// Whether a tensor is (part of) the output head.
pub(super) fn is_output(name: &str) -> bool {
    layer_of(name).is_none()
        && (name.contains("lm_head.") || name.starts_with("output.") || name.starts_with("embed_out."))
}

/// Whether a tensor is (part of) the input embedding.
fn is_embedding(name: &str) -> bool {
    const NAMES: &[&str] = &[
        "embed_tokens.",
        "wte.",
        "word_embeddings.",
        "tok_embeddings.",
        "embed_in.",
        "embeddings.weight",
        "embedding.word_embeddings",
        "embed_tokens_per_layer.",
        "embeddings.word_embeddings",
    ];
    NAMES.iter().any(|part| name.starts_with(part) || name.contains(&format!(".{part}")))
}

/// The repeating layer a tensor belongs to: `model.layers.7.mlp…`, `transformer.h.7…`, `blocks.7…`.
fn layer_of(name: &str) -> Option<u32> {
    let mut parts = name.split('.').peekable();
    while let Some(part) = parts.next() {
        if matches!(part, "layers" | "h" | "blocks" | "block")
            && let Some(layer) = parts.peek().and_then(|next| next.parse::<u32>().ok())
            && layer < MAX_LAYERS
        {
            return Some(layer);
        }
    }
    None
}

/// Whether a tensor is of the layers for multi-token prediction that Qwen keeps under a name of their own.
fn is_prediction(name: &str) -> bool {
    name.starts_with("mtp.") || name.contains(".mtp.")
}

/// Tensors that carry no weights of their own: scales, zero points, permutations.
fn is_scale(name: &str) -> bool {
    const ENDINGS: &[&str] = &[
        ".scales",
        ".qzeros",
        ".g_idx",
        ".weight_scale",
        ".weight_scale_inv",
        ".weight_scale_2",
        ".input_scale",
        ".weight_zero_point",
        ".weight_shape",
        ".weight_g_idx",
        ".absmax",
        ".nested_absmax",
        ".quant_map",
        ".nested_quant_map",
        ".k_scale",
        ".v_scale",
        "_scales",
        ".SCB",
        ".input_global_scale",
        ".weight_global_scale",
    ];
    name.contains(".quant_state") || ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// Tensors that tensor parallelism copies to every rank: vectors, routers, MLA's down-projections (vLLM
/// `ReplicatedLinear`).
fn is_replicated(name: &str, tensor: &TensorEntry) -> bool {
    let wide = tensor.shape.iter().filter(|size| **size > 1).count() > 1;
    !wide
        || name.ends_with(".gate.weight")
        || name.contains(".router.")
        || name.contains("kv_a_proj_with_mqa")
        || name.contains(".q_a_proj.")
        || name.contains(".fused_qkv_a_proj")
        || name.contains(".shared_expert_gate.")
}

/// Weights per stored element: packed 4-bit formats put several into one.
fn packed(name: &str, dtype: &str, bits: Option<u32>) -> u64 {
    let stored = element_bits(dtype).unwrap_or(8);
    let narrow = u64::from(bits.unwrap_or(4).clamp(1, 64));
    let holds_packed = match dtype {
        "I32" | "U32" | "I64" => name.ends_with(".qweight") || name.ends_with(".weight_packed"),
        "U8" => bits.is_some_and(|bits| bits < 8) || name.ends_with("_blocks"),
        _ => false,
    };
    if holds_packed { (stored / narrow).max(1) } else { 1 }
}

/// Adds up all tensors of a set.
fn totals(tensors: &[(String, TensorEntry)], config: &Config) -> (Tensors, BTreeMap<String, u64>) {
    let mut totals = Tensors { exact: true, ..Tensors::default() };
    let mut by_dtype: BTreeMap<String, u64> = BTreeMap::new();
    let bits = config.quantisation.as_ref().and_then(|quantisation| quantisation.bits);
    let tied = config.architecture.tied;
    for (name, tensor) in tensors {
        let bytes = tensor.bytes();
        if is_output(name) && tied {
            // Some repositories store the tied head a second time; engines drop it.
            continue;
        }
        totals.total_bytes = totals.total_bytes.saturating_add(bytes);
        let scale = is_scale(name);
        if !scale {
            let count = tensor.elements().saturating_mul(packed(name, &tensor.dtype, bits));
            totals.parameters = totals.parameters.saturating_add(count);
        }
        if is_vision(name) {
            totals.vision_bytes = totals.vision_bytes.saturating_add(bytes);
        } else if let Some(layer) = layer_of(name).or(is_prediction(name).then_some(0)) {
            let layer = if is_prediction(name) { config.architecture.layers } else { layer } as usize;
            if totals.layer_bytes.len() <= layer {
                totals.layer_bytes.resize(layer + 1, 0);
            }
            totals.layer_bytes[layer] = totals.layer_bytes[layer].saturating_add(bytes);
            if is_replicated(name, tensor) && !scale && layer < config.architecture.layers as usize {
                totals.replicated_bytes = totals.replicated_bytes.saturating_add(bytes);
            }
            if !scale {
                let sum = by_dtype.entry(tensor.dtype.clone()).or_default();
                *sum = sum.saturating_add(bytes);
            }
        } else if is_output(name) {
            totals.output_bytes = totals.output_bytes.saturating_add(bytes);
        } else if is_embedding(name) {
            totals.embedding_bytes = totals.embedding_bytes.saturating_add(bytes);
        }
    }
    (totals, by_dtype)
}

/// The rows of the language model's input embedding.
fn vocabulary(tensors: &[(String, TensorEntry)], hidden: u32) -> Option<u32> {
    let rows = tensors.iter().filter(|(name, _)| is_embedding(name) && !is_vision(name) && !is_scale(name)).find_map(
        |(_, tensor)| match tensor.shape.as_slice() {
            [rows, width] if *width == u64::from(hidden) => Some(*rows),
            _ => None,
        },
    )?;
    u32::try_from(rows).ok().filter(|rows| *rows > 0)
}

/// Refuses a configuration whose vocabulary nothing states.
fn needs_vocabulary(config: &Config) -> Result<(), WeightsError> {
    if config.architecture.vocab > 0 {
        return Ok(());
    }
    Err(WeightsError::MissingField { file: CONFIG.to_owned(), field: "vocab_size".to_owned() })
}

/// Builds the variant of a set whose headers were read.
pub(super) fn from_headers(
    tensors: &[(String, TensorEntry)],
    files: Vec<VariantFile>,
    mut config: Config,
) -> Result<Variant, WeightsError> {
    let has_output = tensors.iter().any(|(name, _)| is_output(name));
    if !has_output && tensors.iter().any(|(name, _)| is_embedding(name)) {
        // Without a head of its own the model can only use the embedding.
        config.architecture.tied = true;
    }
    if !config.vocab_stated
        && let Some(vocab) = vocabulary(tensors, config.architecture.hidden)
    {
        config.architecture.vocab = vocab;
    }
    needs_vocabulary(&config)?;
    let (totals, by_dtype) = totals(tensors, &config);
    let dominant = by_dtype.iter().max_by_key(|(_, bytes)| **bytes).map_or("BF16", |(dtype, _)| dtype);
    let plain = match dominant {
        "F32" | "F64" => "f32",
        "F16" => "f16",
        "F8_E4M3" | "F8_E5M2" => "fp8",
        "I8" | "U8" => "int8",
        _ => "bf16",
    };
    build(totals, files, config, plain)
}

/// Builds the variant of a set that only an index describes: bytes from its total, the rest by formula.
pub(super) fn from_index(
    index: &Index,
    file: &str,
    files: Vec<VariantFile>,
    mut config: Config,
) -> Result<Variant, WeightsError> {
    let total = index
        .total_size
        .ok_or_else(|| WeightsError::MissingField { file: file.to_owned(), field: "metadata.total_size".to_owned() })?;
    needs_vocabulary(&config)?;
    if !index.has_output {
        config.architecture.tied = true;
    }
    let architecture = &config.architecture;
    let formula = formula_parameters(&config);
    let parameters = index.total_parameters.unwrap_or(formula);
    // Embeddings stay at 16 bits in the common quantisations; never more than the whole.
    let width = if config.quantisation.is_none() && total / parameters.max(1) >= 4 { 4 } else { 2 };
    let embedding = u64::from(architecture.vocab).saturating_mul(u64::from(architecture.hidden)).saturating_mul(width);
    let embedding = embedding.min(total / 2);
    let output = if architecture.tied { 0 } else { embedding.min(total / 2) };
    let rest = total.saturating_sub(embedding).saturating_sub(output);
    // Without headers the tower's share is the difference to the language model's formula.
    let vision = if index.has_vision && config.quantisation.is_none() {
        total.saturating_sub(formula.saturating_mul(width)).min(rest / 2)
    } else {
        0
    };
    let layers = u64::from(architecture.layers.max(1));
    let per_layer = (rest - vision) / layers;
    let mut layer_bytes = vec![per_layer; architecture.layers as usize];
    if let Some(first) = layer_bytes.first_mut() {
        *first += (rest - vision) % layers;
    }
    let tensors = Tensors {
        total_bytes: total,
        embedding_bytes: embedding,
        output_bytes: output,
        layer_bytes,
        replicated_bytes: layers.saturating_mul(4 * u64::from(architecture.hidden)),
        vision_bytes: vision,
        parameters,
        exact: false,
        ..Tensors::default()
    };
    let plain = match total.saturating_mul(8) / parameters.max(1) {
        0..=11 => "fp8",
        12..=23 if config.half_is_f16 => "f16",
        12..=23 => "bf16",
        _ => "f32",
    };
    config.notes.push("sizes are from the index; the weight files are not here".to_owned());
    build(tensors, files, config, plain)
}

fn build(tensors: Tensors, files: Vec<VariantFile>, config: Config, plain: &str) -> Result<Variant, WeightsError> {
    let Config { architecture, quantisation, quality, mut notes, .. } = config;
    let id = quality.unwrap_or_else(|| plain.to_owned());
    let quality = match id.parse::<Quality>() {
        Ok(quality) => quality,
        Err(_) => {
            notes.push(format!("quantisation {id:?} has no rank; it is taken for 4-bit"));
            "nf4".parse::<Quality>().map_err(|_| WeightsError::NoWeights("the quality table".to_owned()))?
        }
    };
    let listed = files.iter().fold(0u64, |sum, file| sum.saturating_add(file.size_bytes.unwrap_or(0)));
    let download_bytes = if tensors.exact { listed } else { listed.saturating_add(tensors.total_bytes) };
    Ok(Variant {
        id,
        quality,
        format: WeightFormat::Safetensors,
        start_file: None,
        files,
        download_bytes,
        tensors,
        architecture: Architecture { ..architecture },
        quantisation: quantisation.map(|found| Quantisation { ..found }),
        projector: None,
        notes,
    })
}
