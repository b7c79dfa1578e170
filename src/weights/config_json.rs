//! `config.json` of the Hugging Face format: architecture and quantisation.
//!
//! Field names are those of the `transformers` configuration classes; families name the same thing
//! differently, so every field has its fall-backs. `torch_dtype` never decides a size.

use serde_json::Value;

use super::class_defaults::{ClassDefaults, class_defaults};
use super::families::{encoder_hf, known_hf};
use super::gguf_model::MAX_LAYERS;
use super::json::{Object, as_number};
use super::layers::{constant_state, deci_kv_heads, global_heads, shared_kv, sliding};
use super::quantisation::quantisation;
use super::ranges::{Listing, Ranges, Reader, Stop};
use super::{Architecture, Mla, PerLayer, Quantisation, WeightsError};
use crate::base::is_obeyed;

/// The file's name.
pub(super) const CONFIG: &str = "config.json";
/// Real ones have a few KiB; per-layer quantisation lists reach a few MiB.
const MAX_CONFIG: u64 = 16 << 20;

/// What a `config.json` says.
#[derive(Debug, Clone)]
pub(super) struct Config {
    pub(super) architecture: Architecture,
    /// Whether `vocab` is the file's own word. Otherwise it is the class default, or 0 where there is none, and the
    /// embedding's shape decides.
    pub(super) vocab_stated: bool,
    pub(super) extras: FormulaExtras,
    pub(super) quantisation: Option<Quantisation>,
    /// The variant's id where the quantisation decides it.
    pub(super) quality: Option<String>,
    /// Whether 16-bit weights are meant as f16 (a label only).
    pub(super) half_is_f16: bool,
    pub(super) notes: Vec<String>,
}

/// Reads the folder's `config.json`.
pub(super) fn read_config(listing: &Listing, ranges: &Ranges) -> Result<Config, Stop> {
    let bytes = Reader::open(listing, ranges, CONFIG)?.whole(MAX_CONFIG)?;
    let value: Value =
        serde_json::from_slice(bytes).map_err(|error| WeightsError::malformed(CONFIG, error.to_string()))?;
    let Some(root) = value.as_object() else {
        return Err(WeightsError::malformed(CONFIG, "not an object").into());
    };
    Ok(parse(Object(root))?)
}

/// The language model's part of a multimodal configuration.
fn text_part(root: Object<'_>) -> Object<'_> {
    let nested = |object: Object<'_>| object.0.len() > 1;
    if let Some(thinker) = root.object(&["thinker_config"]) {
        return text_part(thinker);
    }
    match root.object(&["text_config", "llm_config", "language_config", "language_model_config"]) {
        Some(text) if nested(text) => text,
        _ => root,
    }
}

fn parse(root: Object<'_>) -> Result<Config, WeightsError> {
    let missing = |field: &str| WeightsError::MissingField { file: CONFIG.to_owned(), field: field.to_owned() };
    let text = text_part(root);
    let mut notes = Vec::new();
    let model_type = text.text(&["model_type"]).or(root.text(&["model_type"])).unwrap_or("");
    let name = root
        .list(&["architectures"])
        .or(text.list(&["architectures"]))
        .and_then(|list| list.first()?.as_str())
        .unwrap_or(model_type);
    if name.is_empty() || name.len() > 200 || name.chars().any(|c| c.is_control() || is_obeyed(c)) {
        return Err(missing("architectures"));
    }
    let known = known_hf(name);
    if !known {
        notes.push(format!("architecture {name:?} is not one flock has a rule for; its KV cache is sized in full"));
    }
    let class = class_defaults(model_type);
    // A lone language model that does not state its size is a broken file; a nested one relies on its class.
    let nested = class.filter(|_| root.object(&["text_config"]).is_some());

    let pattern_layers = text.text(&["hybrid_override_pattern"]).map(|pattern| pattern.chars().count() as u32);
    let layers = text
        .count(&["num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers"])
        .or(pattern_layers)
        .or(nested.map(|class| class.layers))
        .filter(|layers| (1..=MAX_LAYERS).contains(layers))
        .ok_or_else(|| missing("a usable num_hidden_layers"))?;
    let hidden = text
        .count(&["hidden_size", "n_embd", "d_model", "model_dim", "dim"])
        .or(nested.map(|class| class.hidden))
        .filter(|n| *n > 0)
        .ok_or_else(|| missing("hidden_size"))?;
    let heads = match text.numbers(&["num_query_heads", "num_attention_heads"]) {
        Some(list) if !list.is_empty() => per_layer(&list),
        _ => {
            let own = text.count(&["num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"]);
            if let (None, Some(class)) = (own, class) {
                let note = "does not say num_attention_heads; the default of its class in transformers is taken";
                notes.push(format!("{CONFIG} {note}: {}", class.heads));
            }
            PerLayer::All(own.or(class.map(|class| class.heads)).unwrap_or(0))
        }
    };
    let mla = mla(text);
    let mut kv_heads = kv_heads(text, &heads, class);
    if let Some(each) = deci_kv_heads(text, &heads) {
        kv_heads = each;
    }
    let width = hidden.checked_div(heads.max()).unwrap_or(0);
    let head_dim = text
        .count(&["head_dim", "attention_head_dim", "kv_channels", "d_kv"])
        .or(class.and_then(|class| class.head_dim))
        .unwrap_or(width);
    let (mut head_dim_k, mut head_dim_v) = match &mla {
        Some(found) => {
            let nope = text.count(&["qk_nope_head_dim"]).unwrap_or(head_dim);
            (nope.saturating_add(found.qk_rope_head_dim), text.count(&["v_head_dim"]).unwrap_or(head_dim))
        }
        None => (head_dim, text.count(&["v_head_dim"]).unwrap_or(head_dim)),
    };
    let mut sliding = if known { sliding(text, root, layers, class, &mut kv_heads) } else { None };
    if known && mla.is_none() {
        let own = (head_dim_k, head_dim_v);
        (head_dim_k, head_dim_v) = global_heads(text, layers, sliding.as_mut(), &mut kv_heads, own);
        shared_kv(text, layers, &mut kv_heads);
    }
    let constant_state = if known { constant_state(text, layers, hidden, &heads, &mut kv_heads) } else { None };
    // Without heads there is no cache, which only a network without attention may say.
    let attention_free = constant_state.as_ref().is_some_and(|state| state.layers == layers) && heads.max() == 0;
    if heads.max() == 0 && !attention_free {
        return Err(missing("num_attention_heads"));
    }
    let encoder = encoder_hf(name);
    if encoder {
        kv_heads = PerLayer::All(0);
    }
    if kv_heads.max() == 0 && constant_state.is_none() && !encoder {
        return Err(missing("a usable num_key_value_heads"));
    }
    if (head_dim_k == 0 || head_dim_v == 0) && mla.is_none() && !attention_free {
        return Err(missing("a usable head_dim"));
    }

    let experts = text
        .count(&["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_moe_experts"])
        .filter(|count| *count > 1);
    let dense = text
        .count(&[
            "intermediate_size_mlp",
            "intermediate_size",
            "ffn_dim",
            "n_inner",
            "ffn_hidden_size",
            "d_ff",
            "ffn_hidden",
        ])
        .or(class.map(|class| class.intermediate));
    let expert_width = experts.and_then(|_| {
        widest(text, "moe_intermediate_size").or_else(|| text.count(&["expert_ffn_hidden_size", "ffn_dim_expert"])).or(
            // Mixtral, gpt-oss, Llama 4: the one width is the expert's.
            text.count(&["intermediate_size"]),
        )
    });
    let own_dense = experts.is_none() || text.value(&["moe_intermediate_size", "intermediate_size_mlp"]).is_some();
    let vision = root
        .object(&["vision_config", "vision_encoder", "visual"])
        .or(root.object(&["thinker_config"]).and_then(|thinker| thinker.object(&["vision_config"])));
    let vocab = text
        .count(&["vocab_size", "padded_vocab_size", "n_vocab"])
        .or(root.count(&["vocab_size"]))
        .filter(|vocab| *vocab > 0);
    let tied = text.flag("tie_word_embeddings").or(root.flag("tie_word_embeddings"));
    let (quantisation, quality) = quantisation(root, text, &mut notes);
    Ok(Config {
        architecture: Architecture {
            name: name.to_owned(),
            layers,
            hidden,
            heads,
            kv_heads,
            head_dim_k,
            head_dim_v,
            // Falcon and GPT-2 leave it out and mean four times the hidden size.
            intermediate: if own_dense {
                dense.or_else(|| experts.is_none().then(|| hidden.saturating_mul(4)))
            } else {
                None
            },
            moe_intermediate: expert_width,
            experts,
            experts_per_token: text
                .count(&[
                    "num_experts_per_tok",
                    "num_experts_per_token",
                    "experts_per_token",
                    "moe_topk",
                    "moe_top_k",
                    "top_k_experts",
                ])
                .or_else(|| widest(text, "moe_topk"))
                .filter(|_| experts.is_some()),
            vocab: vocab.or(class.map(|class| class.vocab)).unwrap_or(0),
            trained_context: trained_context(text, root, class.map(|class| class.context)),
            tied: tied.unwrap_or_else(|| tied_by_default(model_type)),
            sliding,
            mla,
            constant_state,
            vision_heads: vision.map(|vision| {
                // CLIP ViT-L, the tower of most repositories that leave it out.
                vision.count(&["num_attention_heads", "num_heads", "heads", "attention_heads"]).unwrap_or(16)
            }),
            known,
        },
        vocab_stated: vocab.is_some(),
        extras: formula_extras(text, layers, expert_width),
        quantisation,
        quality,
        half_is_f16: root.text(&["torch_dtype", "dtype"]).or(text.text(&["torch_dtype", "dtype"])) == Some("float16"),
        notes,
    })
}

/// Families whose configuration class ties the embeddings unless told otherwise.
fn tied_by_default(model_type: &str) -> bool {
    matches!(
        model_type,
        "gemma"
            | "gemma2"
            | "gemma3"
            | "gemma3_text"
            | "gemma4"
            | "gemma4_text"
            | "gpt2"
            | "opt"
            | "cohere"
            | "cohere2"
            | "bloom"
            | "falcon"
    )
}

/// The largest of a number or a list of numbers.
fn widest(text: Object<'_>, key: &str) -> Option<u32> {
    let value = text.value(&[key])?;
    let largest = match value.as_array() {
        Some(list) => list.iter().filter_map(as_number).max()?,
        None => as_number(value)?,
    };
    u32::try_from(largest).ok()
}

/// One value per layer, or one for all where they agree.
pub(super) fn per_layer(values: &[u64]) -> PerLayer {
    let values: Vec<u32> = values.iter().map(|value| u32::try_from(*value).unwrap_or(u32::MAX)).collect();
    match values.first() {
        Some(first) if values.iter().all(|value| value == first) => PerLayer::All(*first),
        _ => PerLayer::Each(values),
    }
}

fn kv_heads(text: Object<'_>, heads: &PerLayer, class: Option<ClassDefaults>) -> PerLayer {
    if let Some(list) = text.numbers(&["num_key_value_heads", "num_kv_heads"]).filter(|list| !list.is_empty()) {
        return per_layer(&list);
    }
    if let Some(count) = text.count(&[
        "num_key_value_heads",
        "n_head_kv",
        "num_kv_heads",
        "multi_query_group_num",
        "num_attention_groups",
    ]) {
        return PerLayer::All(count);
    }
    // Falcon 7B, StarCoder: one KV head unless the newer layout says otherwise.
    if text.flag("multi_query") == Some(true) && text.flag("new_decoder_architecture") != Some(true) {
        return PerLayer::All(1);
    }
    if let Some(attention) = text.object(&["attn_config"])
        && let Some(count) = attention.count(&["kv_n_heads"])
    {
        return PerLayer::All(count);
    }
    // A class fills in an absent field; an explicit null means as many as query heads.
    let stated_null = text.0.contains_key("num_key_value_heads");
    match class.and_then(|class| class.kv_heads).filter(|_| !stated_null) {
        Some(count) => PerLayer::All(count.min(heads.max())),
        None => heads.clone(),
    }
}

/// Multi-head latent attention: DeepSeek V2 and later, Kimi, GLM 5, MiniCPM3.
fn mla(text: Object<'_>) -> Option<Mla> {
    let kv_lora_rank = text.count(&["kv_lora_rank"]).filter(|rank| *rank > 0)?;
    let qk_rope_head_dim = text.count(&["qk_rope_head_dim"])?;
    Some(Mla { kv_lora_rank, qk_rope_head_dim })
}

/// The trained length; YaRN states the short one and a factor.
fn trained_context(text: Object<'_>, root: Object<'_>, class: Option<u64>) -> Option<u64> {
    const KEYS: &[&str] = &[
        "max_position_embeddings",
        "n_positions",
        "seq_length",
        "max_seq_len",
        "max_sequence_length",
        "model_max_length",
    ];
    let stated = text.number(KEYS).or(root.number(KEYS)).filter(|length| *length > 0);
    let scaling = text.object(&["rope_scaling", "rope_parameters"]);
    let yarn = scaling.filter(|scaling| scaling.text(&["rope_type", "type"]) == Some("yarn")).and_then(|scaling| {
        let factor = scaling.value(&["factor"])?.as_f64()?;
        let original = scaling.number(&["original_max_position_embeddings"])?;
        (1.0..=1024.0).contains(&factor).then_some((original as f64 * factor) as u64)
    });
    match (stated, yarn) {
        (Some(stated), Some(yarn)) => Some(stated.max(yarn)),
        (stated, yarn) => stated.or(yarn).or(class),
    }
}

/// What the parameter formula needs beyond the architecture.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct FormulaExtras {
    /// Layers of a mixture that have a plain MLP.
    dense_layers: Vec<bool>,
    /// Rank of the queries' latent, where they have one.
    q_lora_rank: Option<u32>,
    /// Width of the shared experts of a layer together.
    shared_width: u64,
}

fn formula_extras(text: Object<'_>, layers: u32, expert_width: Option<u32>) -> FormulaExtras {
    let first = text.count(&["first_k_dense_replace"]).unwrap_or(0);
    let listed = text.numbers(&["mlp_only_layers"]).unwrap_or_default();
    // Every n-th layer is a mixture: DeepSeek from layer 0, Qwen and Llama 4 from layer n - 1.
    let from_start = text.count(&["moe_layer_freq"]).filter(|n| *n > 0).unwrap_or(1);
    let from_end = text.count(&["decoder_sparse_step", "interleave_moe_layer_step"]).filter(|n| *n > 0).unwrap_or(1);
    let dense = |layer: u32| {
        layer < first
            || listed.contains(&u64::from(layer))
            || !layer.is_multiple_of(from_start)
            || !(layer + 1).is_multiple_of(from_end)
    };
    let shared = text.number(&["n_shared_experts", "num_shared_experts"]).unwrap_or(0);
    FormulaExtras {
        dense_layers: (0..layers).map(dense).collect(),
        q_lora_rank: text.count(&["q_lora_rank"]).filter(|rank| *rank > 0),
        shared_width: text
            .number(&["shared_expert_intermediate_size"])
            .unwrap_or_else(|| shared.saturating_mul(u64::from(expert_width.unwrap_or(0)))),
    }
}

/// Parameters by the architecture's formula, for folders without tensor headers: attention, MLP or experts,
/// embeddings. Linear-attention layers are counted like attention; layers for multi-token prediction are not
/// counted.
pub(super) fn formula_parameters(config: &Config) -> u64 {
    let (architecture, extras) = (&config.architecture, &config.extras);
    let n = u128::from;
    let hidden = n(architecture.hidden);
    let (key, value) = (n(architecture.head_dim_k), n(architecture.head_dim_v));
    let mut total = n(architecture.vocab) * hidden * if architecture.tied { 1 } else { 2 };
    let experts = n(architecture.experts.unwrap_or(0));
    for layer in 0..architecture.layers as usize {
        let heads = n(architecture.heads.at(layer));
        let kv_heads = n(architecture.kv_heads.at(layer));
        total += match &architecture.mla {
            Some(mla) => {
                let (latent, rope) = (n(mla.kv_lora_rank), n(mla.qk_rope_head_dim));
                let keys_values = hidden * (latent + rope) + latent * heads * (key.saturating_sub(rope) + value);
                let queries = match extras.q_lora_rank {
                    Some(rank) => n(rank) * (hidden + heads * key),
                    None => hidden * heads * key,
                };
                keys_values + queries + heads * value * hidden
            }
            None => hidden * (heads * key + kv_heads * (key + value)) + heads * value * hidden,
        };
        let dense = extras.dense_layers.get(layer) == Some(&true);
        total += match (architecture.moe_intermediate, architecture.intermediate) {
            (Some(width), own) if experts > 0 && (!dense || own.is_none()) => {
                experts * (3 * hidden * n(width) + hidden) + 3 * hidden * u128::from(extras.shared_width)
            }
            (_, Some(width)) => 3 * hidden * n(width),
            _ => 0,
        };
        total += 2 * hidden;
    }
    u64::try_from(total).unwrap_or(u64::MAX)
}
