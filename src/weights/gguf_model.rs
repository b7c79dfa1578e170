//! A GGUF file set as a variant: architecture from the metadata, totals from the tensor infos.
//!
//! Keys: `src/llama-arch.cpp` of llama.cpp. Cache layout: `src/llama-kv-cache*.cpp` and
//! `src/llama-hparams.cpp` (recurrent state) of the same.

use std::collections::BTreeMap;

use super::families::{encoder_gguf, gguf_sliding_period, known_gguf};
use super::ggml::file_type_name;
use super::gguf::{Header, TensorInfo, Value};
use super::layers::share_last;
use super::{
    Architecture, ConstantState, Mla, PerLayer, Quantisation, Sliding, Tensors, Variant, VariantFile, WeightsError,
};
use crate::base::{Quality, WeightFormat};

/// Most layers that are believed.
pub(super) const MAX_LAYERS: u32 = 4096;

/// Whether the header is of something other than a language model's weights.
pub(super) fn not_weights(header: &Header) -> bool {
    let kind = header.text("general.type").unwrap_or("model");
    let architecture = header.text("general.architecture").unwrap_or("");
    kind != "model" || architecture == "clip"
}

/// Builds the variant of a complete file set; `header` has the metadata of shard 1 and the tensors of all.
pub(super) fn variant(files: Vec<(String, u64)>, header: &Header) -> Result<Variant, WeightsError> {
    let first = files.first().map(|(name, _)| name.clone()).unwrap_or_default();
    let mut notes = Vec::new();
    let tensors = totals(header);
    let architecture = architecture(&first, header, &tensors, &mut notes)?;
    let name = quantisation_name(header);
    let (id_part, quality) = quality(&name, &mut notes)?;
    let bits = (tensors.parameters > 0).then(|| tensors.total_bytes.saturating_mul(8) / tensors.parameters);
    Ok(Variant {
        id: format!("gguf:{id_part}"),
        quality,
        format: WeightFormat::Gguf,
        start_file: Some(first),
        download_bytes: files.iter().fold(0u64, |sum, (_, size)| sum.saturating_add(*size)),
        files: files.into_iter().map(|(name, size)| VariantFile { name, size_bytes: Some(size) }).collect(),
        tensors,
        architecture,
        quantisation: Some(Quantisation {
            method: "gguf".to_owned(),
            bits: bits.and_then(|bits| u32::try_from(bits).ok()),
            block: None,
        }),
        projector: None,
        notes,
    })
}

/// The layer a tensor belongs to (`blk.7.attn_q.weight`).
fn layer_of(name: &str) -> Option<u32> {
    let number = name.strip_prefix("blk.")?.split('.').next()?;
    number.parse().ok().filter(|layer| *layer < MAX_LAYERS)
}

fn totals(header: &Header) -> Tensors {
    let mut tensors = Tensors { exact: true, ..Tensors::default() };
    for TensorInfo { name, dimensions, elements, bytes, .. } in &header.tensors {
        tensors.total_bytes = tensors.total_bytes.saturating_add(*bytes);
        tensors.parameters = tensors.parameters.saturating_add(*elements);
        if let Some(layer) = layer_of(name) {
            let layer = layer as usize;
            if tensors.layer_bytes.len() <= layer {
                tensors.layer_bytes.resize(layer + 1, 0);
            }
            tensors.layer_bytes[layer] = tensors.layer_bytes[layer].saturating_add(*bytes);
            let wide = dimensions.iter().filter(|size| **size > 1).count() > 1;
            if !wide || name.contains(".ffn_gate_inp") {
                tensors.replicated_bytes = tensors.replicated_bytes.saturating_add(*bytes);
            }
        } else if name.starts_with("per_layer_token_embd.") {
            tensors.host_bytes = tensors.host_bytes.saturating_add(*bytes);
        } else if name.starts_with("token_embd.") {
            tensors.embedding_bytes = tensors.embedding_bytes.saturating_add(*bytes);
        } else if name == "output.weight" {
            tensors.output_bytes = tensors.output_bytes.saturating_add(*bytes);
        } else if name.starts_with("v.") || name.starts_with("mm.") {
            tensors.vision_bytes = tensors.vision_bytes.saturating_add(*bytes);
        }
    }
    tensors
}

/// Reads numbers of one architecture: keys are `llama.block_count` and so on.
struct Keys<'a> {
    header: &'a Header,
    name: &'a str,
}

impl Keys<'_> {
    fn number(&self, key: &str) -> Option<u64> {
        self.header.number(&format!("{}.{key}", self.name))
    }

    fn count(&self, key: &str) -> Option<u32> {
        self.number(key).and_then(|value| u32::try_from(value).ok())
    }

    fn per_layer(&self, key: &str) -> Option<PerLayer> {
        match self.header.metadata.get(&format!("{}.{key}", self.name))? {
            Value::Number(value) => Some(PerLayer::All(u32::try_from(*value).ok()?)),
            Value::Numbers(values) if !values.is_empty() => {
                let values: Option<Vec<u32>> = values.iter().map(|value| u32::try_from(*value).ok()).collect();
                Some(PerLayer::Each(values?))
            }
            _ => None,
        }
    }
}

fn architecture(
    file: &str,
    header: &Header,
    tensors: &Tensors,
    notes: &mut Vec<String>,
) -> Result<Architecture, WeightsError> {
    let missing = |field: &str| WeightsError::MissingField { file: file.to_owned(), field: field.to_owned() };
    let name = header.text("general.architecture").ok_or_else(|| missing("general.architecture"))?;
    let keys = Keys { header, name };
    let layers = keys
        .count("block_count")
        .filter(|layers| (1..=MAX_LAYERS).contains(layers))
        .ok_or_else(|| missing("a usable block_count"))?;
    let hidden = keys.count("embedding_length").filter(|n| *n > 0).ok_or_else(|| missing("embedding_length"))?;
    let heads = match keys.per_layer("attention.head_count") {
        Some(heads) => heads,
        None if attention_free(name) => PerLayer::All(0),
        None => return Err(missing("attention.head_count")),
    };
    let mut kv_heads = keys.per_layer("attention.head_count_kv").unwrap_or_else(|| heads.clone());
    let known = known_gguf(name);
    if !known {
        notes.push(format!("architecture {name:?} is not one flock has a rule for; its KV cache is sized in full"));
    }

    let width = hidden.checked_div(heads.max()).unwrap_or(0);
    let mut head_dim_k = keys.count("attention.key_length").unwrap_or(width);
    let mut head_dim_v = keys.count("attention.value_length").unwrap_or(width);
    // Since April 2025 converters write the latent cache's shape and keep the head's in `*_mla`.
    let mla = match (keys.count("attention.kv_lora_rank"), keys.count("attention.key_length_mla")) {
        (Some(rank), Some(expanded)) if rank > 0 => {
            let rope = keys.count("rope.dimension_count").unwrap_or_else(|| head_dim_k.saturating_sub(rank));
            head_dim_k = expanded;
            head_dim_v = keys.count("attention.value_length_mla").unwrap_or(head_dim_v);
            Some(Mla { kv_lora_rank: rank, qk_rope_head_dim: rope })
        }
        _ => None,
    };
    let mut sliding = sliding(&keys, layers, known);
    if let Some(sliding) = &mut sliding {
        sliding.head_dims = sliding_head_dims(&keys, (head_dim_k, head_dim_v));
    }
    let constant_state = constant_state(&keys, layers, &heads, &mut kv_heads);
    if known {
        // `llama_hparams::has_kv`: the last layers of Gemma 3n and 4 reuse earlier keys and values.
        share_last(layers, keys.count("attention.shared_kv_layers").unwrap_or(0), &mut kv_heads);
        // Layers for multi-token prediction have a cache only in a context of their own.
        share_last(layers, keys.count("nextn_predict_layers").unwrap_or(0), &mut kv_heads);
    }
    let encoder = encoder_gguf(name);
    if encoder {
        kv_heads = PerLayer::All(0);
    }
    // Without heads there is no cache, which only a network without attention may say.
    let free = attention_free(name) || constant_state.as_ref().is_some_and(|state| state.layers == layers);
    if !free && heads.max() == 0 {
        return Err(missing("a usable attention.head_count"));
    }
    if !free && constant_state.is_none() && kv_heads.max() == 0 && !encoder {
        return Err(missing("a usable attention.head_count_kv"));
    }
    if !free && (head_dim_k == 0 || head_dim_v == 0) {
        return Err(missing("a usable attention.key_length and attention.value_length"));
    }

    let embedding = header.tensors.iter().find(|tensor| tensor.name == "token_embd.weight");
    let vocab = embedding
        .and_then(|tensor| tensor.dimensions.get(1).copied())
        .or_else(|| keys.number("vocab_size"))
        .or_else(|| match header.metadata.get("tokenizer.ggml.tokens") {
            Some(Value::Counted(count)) => Some(*count),
            _ => None,
        })
        .and_then(|vocab| u32::try_from(vocab).ok())
        .ok_or_else(|| missing("the vocabulary's size"))?;
    let experts = keys.count("expert_count").filter(|count| *count > 0);
    // Where every layer has experts, the width of a plain MLP is a number without a matrix.
    let plain = |tensor: &TensorInfo| layer_of(&tensor.name).is_some() && tensor.name.ends_with(".ffn_down.weight");
    let has_plain = experts.is_none() || header.tensors.iter().any(plain);
    let vision = tensors.vision_bytes > 0;
    Ok(Architecture {
        name: name.to_owned(),
        layers,
        hidden,
        heads,
        kv_heads,
        head_dim_k,
        head_dim_v,
        intermediate: keys
            .per_layer("feed_forward_length")
            .map(|width| width.max())
            .filter(|width| *width > 0 && has_plain),
        moe_intermediate: keys
            .per_layer("expert_feed_forward_length")
            .map(|width| width.max())
            .or_else(|| experts.and(keys.per_layer("feed_forward_length").map(|width| width.max()))),
        experts,
        experts_per_token: keys.per_layer("expert_used_count").map(|count| count.max()),
        vocab,
        trained_context: keys.number("context_length").filter(|length| *length > 0),
        tied: tensors.output_bytes == 0,
        sliding,
        mla,
        constant_state,
        vision_heads: vision.then(|| keys.count("vision.attention.head_count")).flatten(),
        known,
    })
}

/// Families without a single attention layer; their files state no heads, or 0.
fn attention_free(name: &str) -> bool {
    matches!(name, "mamba" | "mamba2" | "rwkv6" | "rwkv6qwen2" | "rwkv7" | "arwkv7")
}

/// Which layers slide: an explicit array, a period, or the family's period.
fn sliding(keys: &Keys<'_>, layers: u32, known: bool) -> Option<Sliding> {
    if !known {
        return None;
    }
    let window = keys.count("attention.sliding_window").filter(|window| *window > 0).or(match keys.name {
        "gemma2" => Some(4096),
        _ => None,
    })?;
    let every = |(period, full_first): (u32, bool)| -> Vec<bool> {
        (0..layers)
            .map(|layer| match (period, full_first) {
                (0, _) => true,
                (period, true) => layer % period != 0,
                (period, false) => layer % period < period - 1,
            })
            .collect()
    };
    let pattern = match keys.per_layer("attention.sliding_window_pattern") {
        Some(PerLayer::Each(flags)) => (0..layers as usize).map(|layer| flags.get(layer) == Some(&1)).collect(),
        // A period is only read for families that have one; phi3's lone window is not used by llama.cpp.
        Some(PerLayer::All(period)) => {
            every((period, gguf_sliding_period(keys.name).is_some_and(|(_, full_first)| full_first)))
        }
        None => every(gguf_sliding_period(keys.name)?),
    };
    Some(Sliding { window, layers: pattern, head_dims: None })
}

/// Widths of the heads of sliding layers where they are others than in full layers (Gemma 4).
fn sliding_head_dims(keys: &Keys<'_>, own: (u32, u32)) -> Option<(u32, u32)> {
    let key = keys.count("attention.key_length_swa").filter(|width| *width > 0)?;
    let value = keys.count("attention.value_length_swa").filter(|width| *width > 0).unwrap_or(key);
    ((key, value) != own).then_some((key, value))
}

/// Layers with a state of constant size, as `llama_hparams::n_embd_r` and `n_embd_s` compute it (in f32).
fn constant_state(keys: &Keys<'_>, layers: u32, heads: &PerLayer, kv_heads: &mut PerLayer) -> Option<ConstantState> {
    let conv = u64::from(keys.count("ssm.conv_kernel").unwrap_or(0));
    let inner = u64::from(keys.count("ssm.inner_size").unwrap_or(0));
    let state = u64::from(keys.count("ssm.state_size").unwrap_or(0));
    let groups = u64::from(keys.count("ssm.group_count").unwrap_or(0));
    let short = u64::from(keys.count("shortconv.l_cache").unwrap_or(0));
    let delta = u64::from(keys.count("kda.head_dim").unwrap_or(0));
    let hidden = keys.number("embedding_length").unwrap_or(0);
    let elements = if short > 0 {
        hidden.saturating_mul(short - 1)
    } else if delta > 0 {
        let all = u64::from(heads.max()).saturating_mul(delta);
        all.saturating_mul(3 * conv.max(4).saturating_sub(1)).saturating_add(all.saturating_mul(delta))
    } else if state > 0 {
        let convolution = conv.saturating_sub(1).saturating_mul(inner.saturating_add(groups.saturating_mul(2 * state)));
        convolution.saturating_add(state.saturating_mul(inner))
    } else {
        return None;
    };
    let count = layers as usize;
    let recurrent: Vec<bool> = match keys.per_layer("attention.recurrent_layers") {
        Some(PerLayer::Each(flags)) => {
            (0..count).map(|layer| flags.get(layer).is_some_and(|flag| *flag != 0)).collect()
        }
        _ => match (keys.name, &*kv_heads) {
            // Falcon-H1 runs attention and Mamba side by side in every layer.
            ("falcon-h1", _) => vec![true; count],
            ("mamba" | "mamba2", _) => vec![true; count],
            ("qwen3next" | "qwen35" | "qwen35moe", _) => {
                let interval = keys.count("full_attention_interval").filter(|n| *n > 0).unwrap_or(4);
                let trunk = layers.saturating_sub(keys.count("nextn_predict_layers").unwrap_or(0));
                (0..layers).map(|layer| layer < trunk && !(layer + 1).is_multiple_of(interval)).collect()
            }
            // Elsewhere a layer without KV heads is the recurrent one.
            (_, PerLayer::Each(_)) => (0..count).map(|layer| kv_heads.at(layer) == 0).collect(),
            (_, PerLayer::All(_)) => vec![true; count],
        },
    };
    if keys.name != "falcon-h1" && matches!(keys.name, "mamba" | "mamba2" | "qwen3next" | "qwen35" | "qwen35moe")
        || keys.per_layer("attention.recurrent_layers").is_some()
    {
        let each = (0..count).map(|layer| if recurrent[layer] { 0 } else { kv_heads.at(layer) }).collect();
        *kv_heads = PerLayer::Each(each);
    }
    let recurrent = recurrent.iter().filter(|layer| **layer).count() as u32;
    (recurrent > 0).then(|| ConstantState {
        layers: recurrent,
        bytes_per_sequence: elements.saturating_mul(4),
        served_bytes_per_sequence: None,
    })
}

/// The quantisation's name: `general.file_type`, unless the tensors say otherwise.
fn quantisation_name(header: &Header) -> String {
    let mut by_type: BTreeMap<&'static str, u64> = BTreeMap::new();
    for tensor in header.tensors.iter().filter(|tensor| tensor.dimensions.len() > 1 && layer_of(&tensor.name).is_some())
    {
        *by_type.entry(tensor.kind.name).or_default() += tensor.bytes.min(u64::MAX >> 20);
    }
    let dominant = by_type.iter().max_by_key(|(_, bytes)| **bytes).map(|(name, _)| *name);
    let stated = header.number("general.file_type").and_then(file_type_name);
    let Some(dominant) = dominant else { return stated.unwrap_or("f32").to_owned() };
    if let Some(stated) = stated
        && agrees(stated, dominant)
    {
        return stated.to_owned();
    }
    match dominant {
        "F32" | "F64" => "f32".to_owned(),
        "F16" => "f16".to_owned(),
        "BF16" => "bf16".to_owned(),
        "MXFP4" => "mxfp4".to_owned(),
        "NVFP4" => "nvfp4".to_owned(),
        // `_M` mixes give some matrices a better type.
        "Q3_K" | "Q4_K" | "Q5_K"
            if by_type.keys().any(|name| matches!(*name, "Q4_K" | "Q5_K" | "Q6_K") && *name > dominant) =>
        {
            format!("{dominant}_M")
        }
        "Q3_K" | "Q4_K" | "Q5_K" => format!("{dominant}_S"),
        other => other.to_owned(),
    }
}

/// Whether a stated file type can have this dominant tensor type. Mixes of the IQ types hold several, so the
/// families are compared.
fn agrees(stated: &str, dominant: &str) -> bool {
    let family = |name: &str| -> String {
        let name = name.to_ascii_uppercase();
        name.split('_').next().unwrap_or("").trim_start_matches('I').to_owned()
    };
    stated.eq_ignore_ascii_case(dominant)
        || dominant.starts_with(stated.trim_end_matches("_S").trim_end_matches("_M").trim_end_matches("_L"))
        || (family(stated) == family(dominant)
            && stated.contains('_')
            && !matches!(dominant, "Q4_0" | "Q4_1" | "Q5_0" | "Q5_1" | "Q8_0"))
}

/// The name that goes into the id, and its quality.
fn quality(name: &str, notes: &mut Vec<String>) -> Result<(String, Quality), WeightsError> {
    if let Ok(quality) = name.parse::<Quality>() {
        return Ok((quality.name().to_owned(), quality));
    }
    notes.push(format!("quantisation {name:?} has no rank; it is taken for the lowest"));
    let lowest = "IQ1_S".parse::<Quality>().map_err(|_| WeightsError::NoWeights("the quality table".to_owned()))?;
    Ok((name.to_owned(), lowest))
}
