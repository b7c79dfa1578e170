//! Per-layer facts of `config.json`: sliding windows, layers with a constant state, per-layer KV heads.

use serde_json::Value;

use super::class_defaults::ClassDefaults;
use super::json::Object;
use super::{ConstantState, PerLayer, Sliding};

/// What a name in `layer_types` means.
fn is_sliding_word(word: &str) -> bool {
    word.contains("sliding")
}

fn is_constant_word(word: &str) -> bool {
    ["linear", "mamba", "conv", "recurrent", "ssm"].iter().any(|part| word.contains(part))
}

fn words<'a>(text: Object<'a>) -> Option<Vec<&'a str>> {
    text.list(&["layer_types", "layers_block_type"])?.iter().map(Value::as_str).collect()
}

/// Sliding-window attention, by `layer_types`, a pattern, or the family's rule.
pub(super) fn sliding(
    text: Object<'_>,
    root: Object<'_>,
    layers: u32,
    class: Option<ClassDefaults>,
    kv_heads: &mut PerLayer,
) -> Option<Sliding> {
    // An explicit null is no window; an absent field is the class's.
    let absent = !text.0.contains_key("sliding_window");
    let window = text
        .count(&["sliding_window", "sliding_window_size"])
        .or(class.and_then(|class| class.window).filter(|_| absent))
        .filter(|window| *window > 0)?;
    if text.flag("use_sliding_window") == Some(false) {
        return None;
    }
    let model_type = text.text(&["model_type"]).or(root.text(&["model_type"])).unwrap_or("");
    let every = |period: u32| (0..layers).map(|layer| !(layer + 1).is_multiple_of(period.max(1))).collect::<Vec<_>>();
    if let Some(pattern) = text.numbers(&["hybrid_layer_pattern"]) {
        // MiMo: 1 slides, and sliding layers have KV heads of their own.
        let flags: Vec<bool> = (0..layers as usize).map(|layer| pattern.get(layer) == Some(&1)).collect();
        if let Some(own) = text.count(&["swa_num_key_value_heads"]) {
            let each = flags.iter().enumerate().map(|(layer, slides)| if *slides { own } else { kv_heads.at(layer) });
            *kv_heads = PerLayer::Each(each.collect());
        }
        return Some(Sliding { window, layers: flags, head_dims: None });
    }
    let flags = if let Some(words) = words(text) {
        (0..layers as usize).map(|layer| words.get(layer).is_some_and(|word| is_sliding_word(word))).collect()
    } else if let Some(period) = text.count(&["sliding_window_pattern", "_sliding_window_pattern"]) {
        every(period)
    } else {
        match model_type {
            "gemma2" | "gpt_oss" => every(2),
            "gemma3" | "gemma3_text" => every(6),
            "gemma3n" | "gemma3n_text" => every(5),
            "cohere2" | "exaone4" => every(4),
            // Qwen 2 and 3 slide only where told to, and then above `max_window_layers`.
            "qwen2" | "qwen2_moe" | "qwen3" | "qwen3_moe" | "qwen2_vl" | "qwen2_5_vl"
                if text.flag("use_sliding_window") == Some(true) =>
            {
                let full = text.count(&["max_window_layers"]).unwrap_or(layers);
                (0..layers).map(|layer| layer >= full).collect()
            }
            "mistral" | "mixtral" => vec![true; layers as usize],
            // Unknown meaning: every layer stays full, which needs more.
            _ => return None,
        }
    };
    flags.iter().any(|slides| *slides).then_some(Sliding { window, layers: flags, head_dims: None })
}

/// Nemotron's `block_configs`: KV heads per layer, 0 where attention was removed.
pub(super) fn deci_kv_heads(text: Object<'_>, heads: &PerLayer) -> Option<PerLayer> {
    let blocks = text.list(&["block_configs"])?;
    let each = blocks.iter().enumerate().map(|(layer, block)| {
        let attention = block.get("attention").and_then(Value::as_object).map(Object);
        let group = attention.and_then(|attention| attention.count(&["n_heads_in_group"])).filter(|group| *group > 0);
        group.map_or(0, |group| heads.at(layer) / group)
    });
    Some(PerLayer::Each(each.collect()))
}

/// Layers whose state does not grow with tokens. Takes their KV heads away.
pub(super) fn constant_state(
    text: Object<'_>,
    layers: u32,
    hidden: u32,
    heads: &PerLayer,
    kv_heads: &mut PerLayer,
) -> Option<ConstantState> {
    let kinds = layer_kinds(text, layers)?;
    if kinds.iter().any(|kind| !kind.attention) {
        let each = kinds.iter().enumerate().map(|(layer, kind)| if kind.attention { kv_heads.at(layer) } else { 0 });
        *kv_heads = PerLayer::Each(each.collect());
    }
    let count = kinds.iter().filter(|kind| kind.state).count() as u32;
    let elements = state_elements(text, hidden, heads);
    // vLLM: `mamba_ssm_cache_dtype` is the model's type unless config.json states one; the convolution's is the
    // model's, and Kimi's delta state is always f32 (`MambaStateDtypeCalculator`).
    let wide = text.text(&["mamba_ssm_dtype", "mamba_ssm_cache_dtype"]) == Some("float32")
        || text.object(&["linear_attn_config"]).is_some();
    let served =
        elements.convolution.saturating_mul(2).saturating_add(elements.state.saturating_mul(if wide { 4 } else { 2 }));
    (count > 0).then(|| ConstantState {
        layers: count,
        bytes_per_sequence: elements.convolution.saturating_add(elements.state).saturating_mul(4),
        served_bytes_per_sequence: Some(served),
    })
}

/// Elements of one layer's state for one sequence.
#[derive(Debug, Clone, Copy)]
struct StateElements {
    convolution: u64,
    state: u64,
}

/// Layers at the end that reuse the keys and values of earlier ones (`num_kv_shared_layers` of Gemma 3n and 4).
pub(super) fn shared_kv(text: Object<'_>, layers: u32, kv_heads: &mut PerLayer) {
    let shared = text.count(&["num_kv_shared_layers"]).unwrap_or(0);
    share_last(layers, shared, kv_heads);
}

/// Takes the KV heads of the last `shared` layers away.
pub(super) fn share_last(layers: u32, shared: u32, kv_heads: &mut PerLayer) {
    if shared == 0 || shared >= layers {
        return;
    }
    let own = (layers - shared) as usize;
    let each = (0..layers as usize).map(|layer| if layer < own { kv_heads.at(layer) } else { 0 });
    *kv_heads = PerLayer::Each(each.collect());
}

/// Gemma 4: full layers have heads of another width (`global_head_dim`), and other numbers of KV heads. Answers the
/// widths of a full layer's heads.
pub(super) fn global_heads(
    text: Object<'_>,
    layers: u32,
    sliding: Option<&mut Sliding>,
    kv_heads: &mut PerLayer,
    own: (u32, u32),
) -> (u32, u32) {
    let Some(sliding) = sliding else { return own };
    if let Some(global) = text.count(&["num_global_key_value_heads"]).filter(|count| *count > 0) {
        let slides = |layer: usize| sliding.layers.get(layer) == Some(&true);
        let each = (0..layers as usize).map(|layer| if slides(layer) { kv_heads.at(layer) } else { global });
        *kv_heads = PerLayer::Each(each.collect());
    }
    match text.count(&["global_head_dim"]).filter(|width| *width > 0 && *width != own.0) {
        Some(width) => {
            sliding.head_dims = Some(own);
            (width, width)
        }
        None => own,
    }
}

/// What a layer keeps per sequence.
#[derive(Debug, Clone, Copy)]
struct Kind {
    /// Keys and values, growing with tokens.
    attention: bool,
    /// A state of constant size.
    state: bool,
}

/// Attention or a constant state, the usual choice.
fn either(constant: bool) -> Kind {
    Kind { attention: !constant, state: constant }
}

/// What each layer keeps; `None` where the configuration names no constant state.
fn layer_kinds(text: Object<'_>, layers: u32) -> Option<Vec<Kind>> {
    let count = layers as usize;
    let model_type = text.text(&["model_type"]).unwrap_or("");
    if model_type == "falcon_h1" {
        // Attention and Mamba side by side in every layer.
        return Some(vec![Kind { attention: true, state: true }; count]);
    }
    if let Some(pattern) = text.text(&["hybrid_override_pattern"]) {
        // NemotronH: `M` Mamba, `*` attention, `-` MLP, `E` experts.
        return Some(pattern.chars().take(count).map(|c| Kind { attention: c == '*', state: c == 'M' }).collect());
    }
    if let Some(linear) = text.object(&["linear_attn_config"]) {
        // Kimi Linear counts layers from 1.
        let full = linear.numbers(&["full_attn_layers"]).unwrap_or_default();
        return Some((1..=u64::from(layers)).map(|layer| either(!full.contains(&layer))).collect());
    }
    if let Some(kinds) = text.numbers(&["attn_type_list"]) {
        return Some((0..count).map(|layer| either(kinds.get(layer) == Some(&0))).collect());
    }
    if let Some(words) = words(text)
        && words.iter().any(|word| is_constant_word(word))
    {
        let constant = |layer: usize| words.get(layer).is_some_and(|word| is_constant_word(word));
        return Some((0..count).map(|layer| either(constant(layer))).collect());
    }
    if text.value(&["linear_num_value_heads"]).is_some() {
        let interval = text.count(&["full_attention_interval"]).filter(|n| *n > 0).unwrap_or(4);
        return Some((0..layers).map(|layer| either(!(layer + 1).is_multiple_of(interval))).collect());
    }
    if let Some(period) = text.count(&["attn_layer_period"]).filter(|n| *n > 0) {
        let offset = text.count(&["attn_layer_offset"]).unwrap_or(0);
        return Some((0..layers).map(|layer| either(layer % period != offset)).collect());
    }
    matches!(model_type, "mamba" | "mamba2" | "falcon_mamba").then(|| vec![either(true); count])
}

fn state_elements(text: Object<'_>, hidden: u32, heads: &PerLayer) -> StateElements {
    let n = |keys: &[&str], default: u64| text.number(keys).unwrap_or(default).min(1 << 24);
    let hidden = u64::from(hidden);
    if let Some(values) = text.number(&["linear_num_value_heads"]) {
        // Gated delta net: one key x value matrix per value head, and the convolution over q, k and v.
        let (keys, kd, vd) =
            (n(&["linear_num_key_heads"], 16), n(&["linear_key_head_dim"], 128), n(&["linear_value_head_dim"], 128));
        let kernel = n(&["linear_conv_kernel_dim"], 4);
        let values = values.min(1 << 16);
        let convolution = kernel.saturating_sub(1).saturating_mul((2 * keys * kd).saturating_add(values * vd));
        return StateElements { convolution, state: (values * kd).saturating_mul(vd) };
    }
    if let Some(linear) = text.object(&["linear_attn_config"]) {
        let heads = linear.number(&["num_heads"]).unwrap_or(u64::from(heads.max())).min(1 << 16);
        let width = linear.number(&["head_dim"]).unwrap_or(128).min(1 << 16);
        let kernel = linear.number(&["short_conv_kernel_size"]).unwrap_or(4).clamp(1, 64);
        let all = heads * width;
        return StateElements { convolution: all.saturating_mul(3 * (kernel - 1)), state: all.saturating_mul(width) };
    }
    if let Some(length) = text.number(&["conv_L_cache"]) {
        return StateElements { convolution: hidden.saturating_mul(length.clamp(1, 1 << 16) - 1), state: 0 };
    }
    if let Some(count) = text.number(&["mamba_num_heads", "mamba_n_heads"]) {
        let inner = count.min(1 << 16) * n(&["mamba_head_dim", "mamba_d_head"], 64).min(1 << 16);
        let state = n(&["ssm_state_size", "mamba_d_state", "state_size"], 128).min(1 << 16);
        let groups = n(&["n_groups", "mamba_n_groups"], 8).min(1 << 12);
        let kernel = n(&["conv_kernel", "mamba_d_conv"], 4).clamp(1, 64);
        let convolution = (kernel - 1) * inner.saturating_add(2 * groups * state);
        return StateElements { convolution, state: inner.saturating_mul(state) };
    }
    if text.value(&["attn_type_list"]).is_some() {
        let width = n(&["head_dim"], 128).min(1 << 16);
        return StateElements { convolution: 0, state: u64::from(heads.max()).saturating_mul(width * width) };
    }
    // Mamba 1 (Jamba): inner width x state, and the convolution.
    let inner = hidden * n(&["mamba_expand", "expand"], 2).min(64);
    let state = n(&["mamba_d_state", "state_size"], 16).min(1 << 16);
    let kernel = n(&["mamba_d_conv", "conv_kernel"], 4).clamp(1, 64);
    StateElements { convolution: inner.saturating_mul(kernel - 1), state: inner.saturating_mul(state) }
}
