//! `config.json` as the row's class writes it.

use serde_json::{Map, Value, json};

use super::Row;
use super::network::{attends, slides};

/// The configuration of a row in a quantisation.
pub(super) fn config_json(row: &Row, quantisation: &str) -> Value {
    let class = row.class();
    let text = text_config(row);
    let mut root = if class.ends_with("ForConditionalGeneration") {
        let mut root = Map::new();
        root.insert("text_config".to_owned(), Value::Object(text));
        root.insert("vision_config".to_owned(), json!({ "num_attention_heads": 16, "hidden_size": 1152 }));
        root.insert("tie_word_embeddings".to_owned(), json!(row.tied()));
        root
    } else {
        text
    };
    root.insert("architectures".to_owned(), json!([class]));
    root.insert("model_type".to_owned(), json!(model_type(class)));
    let dtype = if row.text("dtype").is_empty() { "bfloat16" } else { row.text("dtype") };
    root.insert("torch_dtype".to_owned(), json!(dtype));
    if let Some(config) = quantisation_config(quantisation, class) {
        root.insert("quantization_config".to_owned(), config);
    }
    Value::Object(root)
}

fn model_type(class: &str) -> &str {
    match class {
        "LlamaForCausalLM" => "llama",
        "MistralForCausalLM" => "mistral",
        "Mistral3ForConditionalGeneration" => "mistral3",
        "MixtralForCausalLM" => "mixtral",
        "Qwen2ForCausalLM" => "qwen2",
        "Qwen3ForCausalLM" => "qwen3",
        "Qwen3MoeForCausalLM" => "qwen3_moe",
        "Qwen3NextForCausalLM" => "qwen3_next",
        "Qwen3_5ForConditionalGeneration" => "qwen3_5",
        "Qwen3_5MoeForConditionalGeneration" => "qwen3_5_moe",
        "Qwen3VLForConditionalGeneration" => "qwen3_vl",
        "Qwen3VLMoeForConditionalGeneration" => "qwen3_vl_moe",
        "GemmaForCausalLM" => "gemma",
        "Gemma2ForCausalLM" => "gemma2",
        "Gemma3ForCausalLM" => "gemma3_text",
        "Gemma3ForConditionalGeneration" => "gemma3",
        "Gemma4ForConditionalGeneration" => "gemma4",
        "GptOssForCausalLM" => "gpt_oss",
        "DeepseekV2ForCausalLM" => "deepseek_v2",
        "DeepseekV3ForCausalLM" => "deepseek_v3",
        "DeepseekV32ForCausalLM" => "deepseek_v32",
        "KimiLinearForCausalLM" => "kimi_linear",
        "LlavaNextForConditionalGeneration" => "llava_next",
        "Phi3ForCausalLM" => "phi3",
        "PhiForCausalLM" => "phi",
        "Olmo2ForCausalLM" => "olmo2",
        "CohereForCausalLM" => "cohere",
        "FalconForCausalLM" => "falcon",
        "GPTNeoXForCausalLM" => "gpt_neox",
        "OPTForCausalLM" => "opt",
        "MiMoForCausalLM" => "mimo",
        "MiniMaxM2ForCausalLM" => "minimax_m2",
        other => other,
    }
}

fn text_config(row: &Row) -> Map<String, Value> {
    let class = row.class();
    let mut text = Map::new();
    let mut put = |key: &str, value: Value| {
        text.insert(key.to_owned(), value);
    };
    let mut model_type = model_type(class).to_owned();
    match class {
        "LlavaNextForConditionalGeneration" | "Mistral3ForConditionalGeneration" => {
            "mistral".clone_into(&mut model_type)
        }
        _ if class.ends_with("ForConditionalGeneration") => model_type.push_str("_text"),
        _ => {}
    }
    put("model_type", json!(model_type));
    put("num_hidden_layers", json!(row.layers()));
    put("hidden_size", json!(row.hidden()));
    put("num_attention_heads", json!(row.heads()));
    put("num_key_value_heads", json!(row.kv_heads()));
    put("vocab_size", json!(row.n("vocab")));
    put("max_position_embeddings", json!(row.n("max_ctx")));
    put("tie_word_embeddings", json!(row.tied()));
    if !row.mla() {
        put("head_dim", json!(row.head_dim()));
    }
    if class == "FalconForCausalLM" {
        put("num_kv_heads", json!(row.kv_heads()));
        put("multi_query", json!(row.kv_heads() == 1));
        put("new_decoder_architecture", json!(row.kv_heads() > 1));
    }
    put(if class == "OPTForCausalLM" { "ffn_dim" } else { "intermediate_size" }, json!(row.n("intermediate")));
    for (column, key) in [
        ("kv_lora_rank", "kv_lora_rank"),
        ("q_lora_rank", "q_lora_rank"),
        ("qk_rope_head_dim", "qk_rope_head_dim"),
        ("qk_nope_head_dim", "qk_nope_head_dim"),
        ("v_head_dim", "v_head_dim"),
        ("moe_intermediate", "moe_intermediate_size"),
        ("experts_per_tok", "num_experts_per_tok"),
        ("dense_layers", "first_k_dense_replace"),
    ] {
        if let Some(value) = row.number(column).filter(|value| *value > 0) {
            put(key, json!(value));
        }
    }
    if let Some(experts) = row.number("experts") {
        let key = match class {
            "MixtralForCausalLM" | "GptOssForCausalLM" => "num_local_experts",
            _ if class.starts_with("Deepseek") => "n_routed_experts",
            _ => "num_experts",
        };
        put(key, json!(experts));
        if class.starts_with("Qwen3Next") || class.starts_with("Qwen3_5") {
            put("shared_expert_intermediate_size", json!(row.n("moe_intermediate")));
        } else if let Some(shared) = row.number("shared_experts") {
            put("n_shared_experts", json!(shared));
        }
    }
    let layers = 0..row.layers();
    if let Some(window) = row.number("sliding_window") {
        put("sliding_window", json!(window));
        if class.starts_with("Gemma3") {
            put("sliding_window_pattern", json!(6));
        } else if !matches!(class, "MistralForCausalLM" | "Phi3ForCausalLM" | "Gemma2ForCausalLM") {
            let word = |layer| if slides(row, layer) { "sliding_attention" } else { "full_attention" };
            put("layer_types", layers.clone().map(word).collect());
        }
        if class == "Gemma4ForConditionalGeneration" {
            put("global_head_dim", json!(512));
            put("num_global_key_value_heads", json!(if row.model().contains("12B") { 1 } else { 2 }));
        }
    }
    if let Some(heads) = row.linear("kda_num_heads") {
        let full: Vec<u64> = layers.clone().filter(|layer| attends(row, *layer)).map(|layer| layer + 1).collect();
        let linear: Vec<u64> = layers.filter(|layer| !attends(row, *layer)).map(|layer| layer + 1).collect();
        put(
            "linear_attn_config",
            json!({
                "num_heads": heads, "head_dim": row.linear("kda_head_dim"), "short_conv_kernel_size": 4,
                "full_attn_layers": full, "kda_layers": linear,
            }),
        );
    } else if row.text("layer_types").contains("linear_attention") {
        for (key, usual) in [
            ("linear_num_key_heads", 16),
            ("linear_num_value_heads", 32),
            ("linear_key_head_dim", 128),
            ("linear_value_head_dim", 128),
            ("linear_conv_kernel_dim", 4),
            ("full_attention_interval", 4),
        ] {
            put(key, json!(row.linear(key).unwrap_or(usual)));
        }
        if class.starts_with("Qwen3_5") {
            put("mamba_ssm_dtype", json!("float32"));
        }
    }
    text
}

fn quantisation_config(quantisation: &str, class: &str) -> Option<Value> {
    Some(match quantisation {
        "awq-int4" => {
            json!({ "quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": true })
        }
        "gptq-int4" => {
            json!({ "quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": false, "sym": true })
        }
        "fp8" => json!({ "quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128] }),
        "fp8-tensor" => json!({ "quant_method": "fp8", "activation_scheme": "static" }),
        "int8" => json!({
            "quant_method": "compressed-tensors", "format": "int-quantized",
            "config_groups": { "group_0": { "weights": { "num_bits": 8, "type": "int", "strategy": "channel" } } },
        }),
        "nvfp4" => json!({ "quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16 }),
        "nf4" => json!({ "quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_type": "nf4" }),
        "bnb-int8" => json!({ "quant_method": "bitsandbytes", "load_in_8bit": true }),
        _ if class == "GptOssForCausalLM" => json!({ "quant_method": "mxfp4" }),
        _ => return None,
    })
}
