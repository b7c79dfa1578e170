//! The matrices of a network as its class in `transformers` names them.

use super::Row;

/// What a matrix is for, which decides its type when it is quantised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Input embedding.
    Embedding,
    /// Output head.
    Head,
    /// A linear layer of a block.
    Linear,
    /// A linear layer of an expert.
    Expert,
    /// Kept at 16 bits in every quantisation: norms, routers, biases, small vectors, convolutions.
    Plain,
    /// Vision tower and projector.
    Vision,
}

/// One tensor, rows first.
#[derive(Debug, Clone)]
pub struct Matrix {
    pub name: String,
    pub shape: Vec<u64>,
    pub role: Role,
}

/// Whether a layer attends to all tokens, for classes that mix.
pub(super) fn attends(row: &Row, layer: u64) -> bool {
    match row.class() {
        "KimiLinearForCausalLM" => (layer + 1).is_multiple_of(4) || layer + 1 == row.layers(),
        _ if row.text("layer_types").contains("linear_attention") => (layer + 1).is_multiple_of(4),
        _ => true,
    }
}

/// Whether a layer slides.
pub(super) fn slides(row: &Row, layer: u64) -> bool {
    if row.number("sliding_window").is_none() {
        return false;
    }
    match row.class() {
        "GptOssForCausalLM" | "Gemma2ForCausalLM" => layer.is_multiple_of(2),
        "Gemma3ForCausalLM" | "Gemma3ForConditionalGeneration" | "Gemma4ForConditionalGeneration" => {
            !(layer + 1).is_multiple_of(6)
        }
        "Step3p7FlashForCausalLM" => !layer.is_multiple_of(4),
        _ => true,
    }
}

struct Net {
    all: Vec<Matrix>,
}

impl Net {
    fn add(&mut self, role: Role, name: String, shape: &[u64]) {
        self.all.push(Matrix { name, shape: shape.to_vec(), role });
    }
}

/// Classes whose blocks are those of Llama with small differences.
fn llama_like(class: &str) -> bool {
    matches!(
        class,
        "LlamaForCausalLM"
            | "MistralForCausalLM"
            | "Mistral3ForConditionalGeneration"
            | "LlavaNextForConditionalGeneration"
            | "Qwen2ForCausalLM"
            | "Qwen3ForCausalLM"
            | "Qwen3MoeForCausalLM"
            | "Qwen3VLForConditionalGeneration"
            | "Qwen3VLMoeForConditionalGeneration"
            | "Qwen3NextForCausalLM"
            | "Qwen3_5ForConditionalGeneration"
            | "Qwen3_5MoeForConditionalGeneration"
            | "MixtralForCausalLM"
            | "GemmaForCausalLM"
            | "Gemma2ForCausalLM"
            | "Gemma3ForCausalLM"
            | "Gemma3ForConditionalGeneration"
            | "Gemma4ForConditionalGeneration"
            | "Phi3ForCausalLM"
            | "Olmo2ForCausalLM"
            | "CohereForCausalLM"
            | "GptOssForCausalLM"
            | "DeepseekV2ForCausalLM"
            | "DeepseekV3ForCausalLM"
            | "DeepseekV32ForCausalLM"
            | "KimiLinearForCausalLM"
            | "DeciLMForCausalLM"
            | "MiMoForCausalLM"
            | "MiniMaxM2ForCausalLM"
    )
}

/// The tensors of a row; `None` where its class is not written down here.
pub fn network(row: &Row) -> Option<Vec<Matrix>> {
    let class = row.class();
    let mut net = Net { all: Vec::new() };
    let (h, vocab) = (row.hidden(), row.n("vocab"));
    if !llama_like(class) {
        return two_matrix_network(row);
    }
    let prefix = match class {
        "Mistral3ForConditionalGeneration" | "LlavaNextForConditionalGeneration" | "Gemma3ForConditionalGeneration" => {
            "language_model.model."
        }
        _ if class.ends_with("ForConditionalGeneration") => "model.language_model.",
        _ => "model.",
    };
    net.add(Role::Embedding, format!("{prefix}embed_tokens.weight"), &[vocab, h]);
    for layer in 0..row.layers() {
        let block = format!("{prefix}layers.{layer}.");
        let norms: &[&str] = match class {
            "CohereForCausalLM" => &["input_layernorm"],
            "Olmo2ForCausalLM" => &["post_attention_layernorm", "post_feedforward_layernorm"],
            _ if class.starts_with("Gemma") && class != "GemmaForCausalLM" => &[
                "input_layernorm",
                "post_attention_layernorm",
                "pre_feedforward_layernorm",
                "post_feedforward_layernorm",
            ],
            _ => &["input_layernorm", "post_attention_layernorm"],
        };
        for norm in norms {
            net.add(Role::Plain, format!("{block}{norm}.weight"), &[h]);
        }
        match (attends(row, layer), row.mla()) {
            (true, true) => latent_attention(row, &block, &mut net),
            (true, false) => attention(row, &block, layer, &mut net),
            (false, _) => linear_attention(row, &block, &mut net),
        }
        feed_forward(row, &block, layer, &mut net);
    }
    net.add(Role::Plain, format!("{prefix}norm.weight"), &[h]);
    if !row.tied() {
        let name = if prefix == "language_model.model." { "language_model.lm_head.weight" } else { "lm_head.weight" };
        net.add(Role::Head, name.to_owned(), &[vocab, h]);
    }
    vision(row, &mut net);
    Some(net.all)
}

fn attention(row: &Row, block: &str, layer: u64, net: &mut Net) {
    let (class, h, heads) = (row.class(), row.hidden(), row.heads());
    let (mut kv, mut dim) = (row.kv_heads(), row.head_dim());
    if class == "Gemma4ForConditionalGeneration" && !slides(row, layer) {
        // Full layers: heads of twice the width, and few of them for keys.
        (kv, dim) = (if row.model().contains("12B") { 1 } else { 2 }, 512);
    }
    if let Some(each) = row.kv_of_layers() {
        kv = each[layer as usize % each.len()];
    }
    let own = format!("{block}self_attn.");
    if class == "Phi3ForCausalLM" {
        net.add(Role::Linear, format!("{own}qkv_proj.weight"), &[(heads + 2 * kv) * dim, h]);
        net.add(Role::Linear, format!("{own}o_proj.weight"), &[h, heads * dim]);
        return;
    }
    // Qwen3-Next and Qwen3.5 gate the attention's output: a second half of the queries.
    let gated = matches!(
        class,
        "Qwen3NextForCausalLM" | "Qwen3_5ForConditionalGeneration" | "Qwen3_5MoeForConditionalGeneration"
    );
    let queries = heads * dim * if gated { 2 } else { 1 };
    for (name, rows) in [("q_proj", queries), ("k_proj", kv * dim), ("v_proj", kv * dim)] {
        net.add(Role::Linear, format!("{own}{name}.weight"), &[rows, h]);
        if matches!(class, "Qwen2ForCausalLM" | "GptOssForCausalLM") {
            net.add(Role::Plain, format!("{own}{name}.bias"), &[rows]);
        }
    }
    net.add(Role::Linear, format!("{own}o_proj.weight"), &[h, heads * dim]);
    match class {
        "GptOssForCausalLM" => {
            net.add(Role::Plain, format!("{own}o_proj.bias"), &[h]);
            net.add(Role::Plain, format!("{own}sinks"), &[heads]);
        }
        "Olmo2ForCausalLM" | "MiniMaxM2ForCausalLM" => {
            net.add(Role::Plain, format!("{own}q_norm.weight"), &[heads * dim]);
            net.add(Role::Plain, format!("{own}k_norm.weight"), &[kv * dim]);
        }
        _ if class.starts_with("Qwen3") || class.starts_with("Gemma3") || class.starts_with("Gemma4") => {
            net.add(Role::Plain, format!("{own}q_norm.weight"), &[dim]);
            net.add(Role::Plain, format!("{own}k_norm.weight"), &[dim]);
        }
        _ => {}
    }
}

fn latent_attention(row: &Row, block: &str, net: &mut Net) {
    let (h, heads) = (row.hidden(), row.heads());
    let (latent, rope) = (row.n("kv_lora_rank"), row.n("qk_rope_head_dim"));
    let (nope, value) = (row.n("qk_nope_head_dim"), row.n("v_head_dim"));
    let own = format!("{block}self_attn.");
    match row.number("q_lora_rank") {
        Some(rank) => {
            net.add(Role::Linear, format!("{own}q_a_proj.weight"), &[rank, h]);
            net.add(Role::Plain, format!("{own}q_a_layernorm.weight"), &[rank]);
            net.add(Role::Linear, format!("{own}q_b_proj.weight"), &[heads * (nope + rope), rank]);
        }
        None => net.add(Role::Linear, format!("{own}q_proj.weight"), &[heads * (nope + rope), h]),
    }
    net.add(Role::Linear, format!("{own}kv_a_proj_with_mqa.weight"), &[latent + rope, h]);
    net.add(Role::Plain, format!("{own}kv_a_layernorm.weight"), &[latent]);
    net.add(Role::Linear, format!("{own}kv_b_proj.weight"), &[heads * (nope + value), latent]);
    net.add(Role::Linear, format!("{own}o_proj.weight"), &[h, heads * value]);
}

fn linear_attention(row: &Row, block: &str, net: &mut Net) {
    let h = row.hidden();
    if let Some(heads) = row.linear("kda_num_heads") {
        let (dim, own) = (row.linear("kda_head_dim").unwrap_or(128), format!("{block}self_attn."));
        let wide = heads * dim;
        for name in ["q_proj", "k_proj", "v_proj"] {
            net.add(Role::Linear, format!("{own}{name}.weight"), &[wide, h]);
        }
        for name in ["q_conv1d", "k_conv1d", "v_conv1d"] {
            net.add(Role::Plain, format!("{own}{name}.weight"), &[wide, 1, 4]);
        }
        for (name, rows, columns) in [
            ("f_a_proj", dim, h),
            ("f_b_proj", wide, dim),
            ("b_proj", heads, h),
            ("g_a_proj", dim, h),
            ("g_b_proj", wide, dim),
        ] {
            net.add(Role::Linear, format!("{own}{name}.weight"), &[rows, columns]);
        }
        net.add(Role::Plain, format!("{own}A_log"), &[1, 1, heads, 1]);
        net.add(Role::Plain, format!("{own}dt_bias"), &[wide]);
        net.add(Role::Plain, format!("{own}o_norm.weight"), &[dim]);
        net.add(Role::Linear, format!("{own}o_proj.weight"), &[h, wide]);
        return;
    }
    let own = format!("{block}linear_attn.");
    let (keys, values) =
        (row.linear("linear_num_key_heads").unwrap_or(16), row.linear("linear_num_value_heads").unwrap_or(32));
    let (key, value) = (
        keys * row.linear("linear_key_head_dim").unwrap_or(128),
        values * row.linear("linear_value_head_dim").unwrap_or(128),
    );
    if row.class() == "Qwen3NextForCausalLM" {
        net.add(Role::Linear, format!("{own}in_proj_qkvz.weight"), &[2 * (key + value), h]);
        net.add(Role::Linear, format!("{own}in_proj_ba.weight"), &[2 * values, h]);
    } else {
        net.add(Role::Linear, format!("{own}in_proj_qkv.weight"), &[2 * key + value, h]);
        net.add(Role::Linear, format!("{own}in_proj_z.weight"), &[value, h]);
        net.add(Role::Linear, format!("{own}in_proj_b.weight"), &[values, h]);
        net.add(Role::Linear, format!("{own}in_proj_a.weight"), &[values, h]);
    }
    net.add(Role::Plain, format!("{own}conv1d.weight"), &[2 * key + value, 1, 4]);
    net.add(Role::Plain, format!("{own}A_log"), &[values]);
    net.add(Role::Plain, format!("{own}dt_bias"), &[values]);
    net.add(Role::Plain, format!("{own}norm.weight"), &[row.linear("linear_value_head_dim").unwrap_or(128)]);
    net.add(Role::Linear, format!("{own}out_proj.weight"), &[h, value]);
}

fn gate_up_down(net: &mut Net, role: Role, own: &str, names: [&str; 3], wide: u64, h: u64) {
    net.add(role, format!("{own}{}.weight", names[0]), &[wide, h]);
    net.add(role, format!("{own}{}.weight", names[1]), &[wide, h]);
    net.add(role, format!("{own}{}.weight", names[2]), &[h, wide]);
}

const MLP: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

fn feed_forward(row: &Row, block: &str, layer: u64, net: &mut Net) {
    let (class, h) = (row.class(), row.hidden());
    let own = format!("{block}mlp.");
    if class == "Phi3ForCausalLM" {
        let wide = row.n("intermediate");
        net.add(Role::Linear, format!("{own}gate_up_proj.weight"), &[2 * wide, h]);
        net.add(Role::Linear, format!("{own}down_proj.weight"), &[h, wide]);
        return;
    }
    if row.dense(layer) {
        return gate_up_down(net, Role::Linear, &own, MLP, row.n("intermediate"), h);
    }
    let experts = row.n("experts");
    let wide = row.number("moe_intermediate").unwrap_or_else(|| row.n("intermediate"));
    match class {
        "MixtralForCausalLM" | "MiniMaxM2ForCausalLM" => {
            let own = format!("{block}block_sparse_moe.");
            net.add(Role::Plain, format!("{own}gate.weight"), &[experts, h]);
            for expert in 0..experts {
                gate_up_down(net, Role::Expert, &format!("{own}experts.{expert}."), ["w1", "w3", "w2"], wide, h);
            }
            return;
        }
        "GptOssForCausalLM" => {
            // Packed as published: four-bit blocks with their scales.
            net.add(Role::Plain, format!("{own}router.weight"), &[experts, h]);
            net.add(Role::Plain, format!("{own}router.bias"), &[experts]);
            for (name, rows, columns) in [("gate_up_proj", 2 * wide, h), ("down_proj", h, wide)] {
                net.add(Role::Expert, format!("{own}experts.{name}"), &[experts, rows, columns]);
                net.add(Role::Plain, format!("{own}experts.{name}_bias"), &[experts, rows]);
            }
            return;
        }
        "Gemma4ForConditionalGeneration" => {
            // One dense MLP beside the experts.
            gate_up_down(net, Role::Linear, &own, MLP, row.n("intermediate"), h);
            net.add(Role::Plain, format!("{block}router.proj.weight"), &[experts, h]);
            net.add(Role::Expert, format!("{block}experts.gate_up_proj"), &[experts, 2 * wide, h]);
            net.add(Role::Expert, format!("{block}experts.down_proj"), &[experts, h, wide]);
            return;
        }
        "Qwen3_5MoeForConditionalGeneration" | "Qwen3VLMoeForConditionalGeneration" => {
            net.add(Role::Plain, format!("{own}gate.weight"), &[experts, h]);
            net.add(Role::Expert, format!("{own}experts.gate_up_proj"), &[experts, 2 * wide, h]);
            net.add(Role::Expert, format!("{own}experts.down_proj"), &[experts, h, wide]);
        }
        _ => {
            net.add(Role::Plain, format!("{own}gate.weight"), &[experts, h]);
            for expert in 0..experts {
                gate_up_down(net, Role::Expert, &format!("{own}experts.{expert}."), MLP, wide, h);
            }
        }
    }
    if class.starts_with("DeepseekV3") || class == "KimiLinearForCausalLM" {
        net.add(Role::Plain, format!("{own}gate.e_score_correction_bias"), &[experts]);
    }
    if matches!(class, "Qwen3NextForCausalLM" | "Qwen3_5MoeForConditionalGeneration") {
        gate_up_down(net, Role::Linear, &format!("{own}shared_expert."), MLP, wide, h);
        net.add(Role::Plain, format!("{own}shared_expert_gate.weight"), &[1, h]);
    } else if let Some(shared) = row.number("shared_experts").filter(|count| *count > 0) {
        gate_up_down(net, Role::Linear, &format!("{own}shared_experts."), MLP, shared * wide, h);
    }
}

/// GPT-NeoX, Falcon, Phi 2 and OPT: two matrices in the MLP and, but for Falcon, biases.
fn two_matrix_network(row: &Row) -> Option<Vec<Matrix>> {
    let (h, wide, heads, dim) = (row.hidden(), row.n("intermediate"), row.heads(), row.head_dim());
    let (layers, vocab) = (row.layers(), row.n("vocab"));
    let (embedding, blocks, qkv, out, up, down, head, bias) = match row.class() {
        "GPTNeoXForCausalLM" => (
            "gpt_neox.embed_in",
            "gpt_neox.layers",
            &["attention.query_key_value"][..],
            "attention.dense",
            "mlp.dense_h_to_4h",
            "mlp.dense_4h_to_h",
            Some("embed_out"),
            true,
        ),
        "FalconForCausalLM" => (
            "transformer.word_embeddings",
            "transformer.h",
            &["self_attention.query_key_value"][..],
            "self_attention.dense",
            "mlp.dense_h_to_4h",
            "mlp.dense_4h_to_h",
            None,
            false,
        ),
        "PhiForCausalLM" => (
            "model.embed_tokens",
            "model.layers",
            &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"][..],
            "self_attn.dense",
            "mlp.fc1",
            "mlp.fc2",
            Some("lm_head"),
            true,
        ),
        "OPTForCausalLM" => (
            "model.decoder.embed_tokens",
            "model.decoder.layers",
            &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"][..],
            "self_attn.out_proj",
            "fc1",
            "fc2",
            None,
            true,
        ),
        _ => return None,
    };
    let mut net = Net { all: Vec::new() };
    net.add(Role::Embedding, format!("{embedding}.weight"), &[vocab, h]);
    if row.class() == "OPTForCausalLM" {
        net.add(Role::Plain, "model.decoder.embed_positions.weight".to_owned(), &[row.n("max_ctx") + 2, h]);
    }
    for layer in 0..layers {
        let mut linear = |name: &str, rows: u64, columns: u64| {
            net.add(Role::Linear, format!("{blocks}.{layer}.{name}.weight"), &[rows, columns]);
            if bias {
                net.add(Role::Plain, format!("{blocks}.{layer}.{name}.bias"), &[rows]);
            }
        };
        if let [fused] = qkv {
            linear(fused, (heads + 2 * row.kv_heads()) * dim, h);
        } else {
            qkv.iter().for_each(|name| linear(name, heads * dim, h));
        }
        linear(out, h, heads * dim);
        linear(up, wide, h);
        linear(down, h, wide);
        for norm in ["input_layernorm.weight", "input_layernorm.bias"] {
            net.add(Role::Plain, format!("{blocks}.{layer}.{norm}"), &[h]);
        }
    }
    net.add(Role::Plain, "final_layer_norm.weight".to_owned(), &[h]);
    if let Some(head) = head.filter(|_| !row.tied()) {
        net.add(Role::Head, format!("{head}.weight"), &[vocab, h]);
    }
    Some(net.all)
}

/// Vision towers: width, MLP width, layers, patch side, and the projector's matrices.
fn vision(row: &Row, net: &mut Net) {
    let h = row.hidden();
    let mut tower = |prefix: &str, layers: u64, wide: u64, mlp: u64, patch: u64, gated: bool| {
        net.add(Role::Vision, format!("{prefix}patch_embedding.weight"), &[wide, 3, patch, patch]);
        for layer in 0..layers {
            for (name, rows, columns) in [
                ("q", wide, wide),
                ("k", wide, wide),
                ("v", wide, wide),
                ("o", wide, wide),
                ("fc1", mlp, wide),
                ("fc2", wide, mlp),
            ] {
                net.add(Role::Vision, format!("{prefix}layers.{layer}.{name}.weight"), &[rows, columns]);
                if !gated {
                    net.add(Role::Vision, format!("{prefix}layers.{layer}.{name}.bias"), &[rows]);
                }
            }
            if gated {
                net.add(Role::Vision, format!("{prefix}layers.{layer}.gate.weight"), &[mlp, wide]);
            }
            net.add(Role::Vision, format!("{prefix}layers.{layer}.norm.weight"), &[2, wide]);
        }
    };
    let mut projector: Vec<(&str, u64, u64)> = Vec::new();
    match row.class() {
        // CLIP ViT-L/14 at 336 pixels, of which all 24 layers are in the files.
        "LlavaNextForConditionalGeneration" => {
            tower("vision_tower.vision_model.encoder.", 24, 1024, 4096, 14, false);
            projector = vec![("linear_1", h, 1024), ("linear_2", h, h)];
        }
        "Mistral3ForConditionalGeneration" => {
            tower("vision_tower.transformer.", 24, 1024, 4096, 14, true);
            projector = vec![("patch_merger.merging_layer", 1024, 4096), ("linear_1", h, 1024), ("linear_2", h, h)];
        }
        // SigLIP so400m at 896 pixels.
        "Gemma3ForConditionalGeneration" => {
            tower("vision_tower.vision_model.encoder.", 27, 1152, 4304, 14, false);
            projector = vec![("mm_input_projection_weight", 1152, h)];
        }
        "Qwen3VLForConditionalGeneration"
        | "Qwen3VLMoeForConditionalGeneration"
        | "Qwen3_5ForConditionalGeneration"
        | "Qwen3_5MoeForConditionalGeneration" => {
            tower("model.visual.", 27, 1152, 4304, 16, false);
            projector = vec![("linear_fc1", 4608, 4608), ("linear_fc2", h, 4608)];
        }
        _ => {}
    }
    for (name, rows, columns) in projector {
        net.add(Role::Vision, format!("multi_modal_projector.{name}.weight"), &[rows, columns]);
    }
}
