//! GGUF files of a row: names, metadata and types as llama.cpp's converter and `llama-quantize` make them.
//!
//! Types by tensor: `llama_tensor_get_type_impl` in `src/llama-quant.cpp`, without an importance matrix.

use super::network::{Matrix, Role, attends, network, slides};
use super::{HeaderFile, Row};

/// A tensor type: its number, elements and bytes of a block.
type Kind = (u32, u64, u64);
const F32: Kind = (0, 1, 4);
const F16: Kind = (1, 1, 2);
const Q4_0: Kind = (2, 32, 18);
const Q5_0: Kind = (6, 32, 22);
const Q5_1: Kind = (7, 32, 24);
const Q8_0: Kind = (8, 32, 34);
const Q2_K: Kind = (10, 256, 84);
const Q3_K: Kind = (11, 256, 110);
const Q4_K: Kind = (12, 256, 144);
const Q5_K: Kind = (13, 256, 176);
const Q6_K: Kind = (14, 256, 210);
const IQ4_NL: Kind = (20, 32, 18);
const IQ4_XS: Kind = (23, 256, 136);
const BF16: Kind = (30, 1, 2);
const MXFP4: Kind = (39, 32, 17);

/// Number of the file type and the type of most tensors.
fn file_type(name: &str) -> Option<(u32, Kind)> {
    Some(match name {
        "F32" => (0, F32),
        "F16" => (1, F16),
        "BF16" => (32, BF16),
        "Q4_0" => (2, Q4_0),
        "Q5_0" => (8, Q5_0),
        "Q8_0" => (7, Q8_0),
        "Q2_K" => (10, Q2_K),
        "Q3_K_S" => (11, Q3_K),
        "Q3_K_M" => (12, Q3_K),
        "Q3_K_L" => (13, Q3_K),
        "Q4_K_S" => (14, Q4_K),
        "Q4_K_M" => (15, Q4_K),
        "Q5_K_S" => (16, Q5_K),
        "Q5_K_M" | "Q5_K_M-2023" => (17, Q5_K),
        "Q6_K" => (18, Q6_K),
        "IQ4_XS" => (30, IQ4_XS),
        "MXFP4" => (38, MXFP4),
        _ => return None,
    })
}

fn architecture(class: &str) -> Option<&'static str> {
    Some(match class {
        "LlamaForCausalLM"
        | "MistralForCausalLM"
        | "MixtralForCausalLM"
        | "Mistral3ForConditionalGeneration"
        | "LlavaNextForConditionalGeneration" => "llama",
        "Qwen2ForCausalLM" => "qwen2",
        "Qwen3ForCausalLM" => "qwen3",
        "Qwen3MoeForCausalLM" => "qwen3moe",
        "Qwen3NextForCausalLM" => "qwen3next",
        "Qwen3_5ForConditionalGeneration" => "qwen35",
        "Qwen3_5MoeForConditionalGeneration" => "qwen35moe",
        "GemmaForCausalLM" => "gemma",
        "Gemma2ForCausalLM" => "gemma2",
        "Gemma3ForCausalLM" | "Gemma3ForConditionalGeneration" => "gemma3",
        "Gemma4ForConditionalGeneration" => "gemma4",
        "DeciLMForCausalLM" => "deci",
        "GptOssForCausalLM" => "gpt-oss",
        "DeepseekV2ForCausalLM" | "DeepseekV3ForCausalLM" => "deepseek2",
        "CohereForCausalLM" => "command-r",
        "Phi3ForCausalLM" => "phi3",
        "PhiForCausalLM" => "phi2",
        "Olmo2ForCausalLM" => "olmo2",
        "FalconForCausalLM" => "falcon",
        "GPTNeoXForCausalLM" => "gptneox",
        _ => return None,
    })
}

/// A tensor, columns first.
struct Entry {
    name: String,
    dimensions: Vec<u64>,
    role: Role,
}

/// The converter's names. Experts of one layer become one tensor.
fn entries(row: &Row) -> Option<Vec<Entry>> {
    let mut all: Vec<Entry> = Vec::new();
    for matrix in network(row)?.into_iter().filter(|matrix| matrix.role != Role::Vision) {
        for (name, dimensions) in renamed(row, &matrix)? {
            if let Some(same) = all.iter_mut().rev().take(4).find(|entry| entry.name == name) {
                // One more expert.
                *same.dimensions.last_mut().expect("never empty") += 1;
                continue;
            }
            all.push(Entry { name, dimensions, role: matrix.role });
        }
    }
    Some(all)
}

/// What one matrix becomes; `None` where the converter's name is not written down here.
fn renamed(row: &Row, matrix: &Matrix) -> Option<Vec<(String, Vec<u64>)>> {
    let dimensions: Vec<u64> = matrix.shape.iter().rev().copied().filter(|size| *size != 1).collect();
    let dimensions = if dimensions.is_empty() { vec![1] } else { dimensions };
    let one = |name: String| Some(vec![(name, dimensions.clone())]);
    match matrix.role {
        Role::Embedding => return one("token_embd.weight".to_owned()),
        Role::Head => return one("output.weight".to_owned()),
        _ => {}
    }
    let Some((layer, rest)) = block(&matrix.name) else {
        let name = if matrix.name.contains("embed_positions") { "position_embd.weight" } else { "output_norm.weight" };
        return one(name.to_owned());
    };
    let own = |name: &str| format!("blk.{layer}.{name}");
    if let Some(at) = rest.find("experts.")
        && matrix.role == Role::Expert
    {
        let last = rest[at..].trim_end_matches(".weight").rsplit('.').next()?;
        let experts = row.n("experts");
        let name = match last {
            "w1" | "gate_proj" => "ffn_gate_exps.weight",
            "w3" | "up_proj" => "ffn_up_exps.weight",
            "w2" | "down_proj" => "ffn_down_exps.weight",
            "gate_up_proj" => {
                let (h, wide) = (matrix.shape[2], matrix.shape[1] / 2);
                if row.class() == "Gemma4ForConditionalGeneration" {
                    return Some(vec![(own("ffn_gate_up_exps.weight"), vec![h, 2 * wide, experts])]);
                }
                return Some(vec![
                    (own("ffn_gate_exps.weight"), vec![h, wide, experts]),
                    (own("ffn_up_exps.weight"), vec![h, wide, experts]),
                ]);
            }
            _ => return None,
        };
        let mut shape = dimensions.clone();
        if shape.len() == 2 {
            shape.push(1);
        }
        return Some(vec![(own(name), shape)]);
    }
    let (heads, nope, value) = (row.heads(), row.n("qk_nope_head_dim"), row.n("v_head_dim"));
    let (stem, suffix) = rest.rsplit_once('.').unwrap_or((rest, "weight"));
    let gemma = row.class().starts_with("Gemma") && row.class() != "GemmaForCausalLM";
    let name = match stem {
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.o_proj" | "self_attn.dense" | "attention.dense" | "self_attention.dense" | "self_attn.out_proj" => {
            "attn_output"
        }
        "self_attn.qkv_proj" | "attention.query_key_value" | "self_attention.query_key_value" => "attn_qkv",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        "self_attn" => "attn_sinks",
        "input_layernorm" => "attn_norm",
        "post_attention_layernorm" if gemma || row.class() == "Olmo2ForCausalLM" => "post_attention_norm",
        "post_attention_layernorm" if row.class() == "GptOssForCausalLM" || row.linear_hybrid() => {
            "post_attention_norm"
        }
        "post_attention_layernorm" | "pre_feedforward_layernorm" => "ffn_norm",
        "post_feedforward_layernorm" => "post_ffw_norm",
        "self_attn.q_a_proj" => "attn_q_a",
        "self_attn.q_a_layernorm" => "attn_q_a_norm",
        "self_attn.q_b_proj" => "attn_q_b",
        "self_attn.kv_a_proj_with_mqa" => "attn_kv_a_mqa",
        "self_attn.kv_a_layernorm" => "attn_kv_a_norm",
        "self_attn.kv_b_proj" => {
            let latent = row.n("kv_lora_rank");
            return Some(vec![
                (own("attn_k_b.weight"), vec![nope, latent, heads]),
                (own("attn_v_b.weight"), vec![latent, value, heads]),
            ]);
        }
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" | "mlp.dense_h_to_4h" | "mlp.fc1" | "mlp.gate_up_proj" => "ffn_up",
        "mlp.down_proj" | "mlp.dense_4h_to_h" | "mlp.fc2" => "ffn_down",
        "mlp.gate" if suffix == "e_score_correction_bias" => return one(own("exp_probs_b.bias")),
        "mlp.gate" | "block_sparse_moe.gate" | "mlp.router" | "router.proj" => "ffn_gate_inp",
        "mlp.shared_experts.gate_proj" | "mlp.shared_expert.gate_proj" => "ffn_gate_shexp",
        "mlp.shared_experts.up_proj" | "mlp.shared_expert.up_proj" => "ffn_up_shexp",
        "mlp.shared_experts.down_proj" | "mlp.shared_expert.down_proj" => "ffn_down_shexp",
        "mlp.shared_expert_gate" => "ffn_gate_inp_shexp",
        "mlp.experts" if suffix == "gate_up_proj_bias" => {
            let (wide, experts) = (matrix.shape[1] / 2, matrix.shape[0]);
            return Some(vec![
                (own("ffn_gate_exps.bias"), vec![wide, experts]),
                (own("ffn_up_exps.bias"), vec![wide, experts]),
            ]);
        }
        "mlp.experts" if suffix == "down_proj_bias" => return one(own("ffn_down_exps.bias")),
        "linear_attn.in_proj_qkvz" => {
            let (h, value) = (
                matrix.shape[1],
                row.linear("linear_num_value_heads").unwrap_or(32) * row.linear("linear_value_head_dim").unwrap_or(128),
            );
            return Some(vec![
                (own("attn_qkv.weight"), vec![h, matrix.shape[0] - value]),
                (own("attn_gate.weight"), vec![h, value]),
            ]);
        }
        "linear_attn.in_proj_qkv" => "attn_qkv",
        "linear_attn.in_proj_z" => "attn_gate",
        "linear_attn.in_proj_ba" => "ssm_ba",
        "linear_attn.in_proj_b" => "ssm_beta",
        "linear_attn.in_proj_a" => "ssm_alpha",
        "linear_attn.conv1d" => "ssm_conv1d",
        "linear_attn" if suffix == "A_log" => return one(own("ssm_a")),
        "linear_attn" => return one(own("ssm_dt.bias")),
        "linear_attn.norm" => "ssm_norm",
        "linear_attn.out_proj" => "ssm_out",
        _ => return None,
    };
    let suffix = if suffix == "bias" { "bias" } else { "weight" };
    one(own(&format!("{name}.{suffix}")))
}

/// Layer and the name inside it.
fn block(name: &str) -> Option<(u64, &str)> {
    let at = name.find(".layers.").map(|at| at + 8).or_else(|| name.find(".h.").map(|at| at + 3))?;
    let (layer, rest) = name[at..].split_once('.')?;
    Some((layer.parse().ok()?, rest))
}

/// The type of one tensor.
fn kind_of(row: &Row, entry: &Entry, quantisation: &str, counts: &mut (u64, u64)) -> Kind {
    let (_, default) = file_type(quantisation).unwrap_or((0, F32));
    let name = entry.name.as_str();
    let flat = entry.dimensions.len() < 2;
    if flat
        || name.contains("ffn_gate_inp")
        || name.ends_with(".bias")
        || name.contains("norm")
        || name.contains("conv1d")
    {
        return F32;
    }
    if matches!(quantisation, "F32" | "F16" | "BF16") {
        return default;
    }
    if quantisation == "MXFP4" {
        // gpt-oss as published: experts in four bits, everything else at 16.
        return if entry.role == Role::Expert { MXFP4 } else { BF16 };
    }
    let layers = row.layers();
    let experts = row.n("experts");
    let more = |layer: u64, all: u64| layer < all / 8 || layer >= 7 * all / 8 || (layer - all / 8) % 3 == 2;
    let gqa = row.heads() / row.kv_heads().max(1);
    let attention = (0..layers).filter(|layer| attends(row, *layer)).count() as u64;
    let mut kind = default;
    if name == "output.weight" || (name == "token_embd.weight" && row.tied()) {
        kind = if kind == Q8_0 || kind == F16 { kind } else { Q6_K };
        if row.class() == "FalconForCausalLM" || !entry.dimensions[0].is_multiple_of(kind.1) {
            kind = Q8_0;
        }
    } else if name.contains("attn_v.") || name.contains("attn_qkv.") {
        let number = counts.0;
        counts.0 += 1;
        kind = match quantisation {
            "Q2_K" if gqa >= 4 => Q4_K,
            "Q2_K" => Q3_K,
            "Q3_K_M" if number < 2 => Q5_K,
            "Q3_K_M" => Q4_K,
            "Q3_K_L" => Q5_K,
            "IQ4_XS" if gqa >= 4 => Q5_K,
            "Q4_K_M" | "Q5_K_M" | "Q5_K_M-2023" if more(number, attention) => Q6_K,
            "Q4_K_S" if number < 4 => Q5_K,
            _ => kind,
        };
        if layers == 80 && row.class() == "LlamaForCausalLM" && matches!(kind, Q3_K | Q4_K) {
            kind = Q5_K;
        }
        if experts == 8 {
            kind = Q8_0;
        }
    } else if name.contains("attn_k.") && experts == 8 {
        kind = Q8_0;
    } else if name.contains("ffn_down") {
        let number = if experts > 1 {
            block_number(name)
        } else {
            counts.1 += 1;
            counts.1 - 1
        };
        kind = match quantisation {
            "Q2_K" => Q3_K,
            "Q3_K_M" if number < layers / 16 => Q5_K,
            "Q3_K_M" => Q4_K,
            "Q3_K_L" => Q5_K,
            "Q4_K_M" | "Q5_K_M" if more(number, layers) => Q6_K,
            "Q4_K_S" | "IQ4_XS" if number < layers / 8 => Q5_K,
            _ => kind,
        };
    } else if name.contains("attn_output") {
        kind = match quantisation {
            "Q2_K" | "Q3_K_S" | "Q3_K_M" | "Q4_K_S" | "Q4_K_M" | "IQ4_XS" if experts == 8 => Q5_K,
            "Q2_K" if experts != 8 => Q3_K,
            "Q3_K_M" => Q4_K,
            "Q3_K_L" => Q5_K,
            _ => kind,
        };
    }
    let columns = entry.dimensions[0];
    if columns.is_multiple_of(kind.1) {
        return kind;
    }
    let narrower = match kind {
        IQ4_XS => IQ4_NL,
        Q2_K | Q3_K => Q4_0,
        Q4_K => Q5_0,
        Q5_K => Q5_1,
        _ => Q8_0,
    };
    if columns.is_multiple_of(32) { narrower } else { F16 }
}

fn block_number(name: &str) -> u64 {
    name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse().ok()).unwrap_or(0)
}

/// Metadata in the order it is added.
#[derive(Default)]
struct Metadata {
    bytes: Vec<u8>,
    count: u64,
}

impl Metadata {
    fn key(&mut self, key: &str, kind: u32) {
        self.bytes.extend((key.len() as u64).to_le_bytes());
        self.bytes.extend(key.as_bytes());
        self.bytes.extend(kind.to_le_bytes());
        self.count += 1;
    }

    fn number(&mut self, key: &str, value: u64) {
        self.key(key, 4);
        self.bytes.extend((value as u32).to_le_bytes());
    }

    fn numbers(&mut self, key: &str, values: &[u64]) {
        self.key(key, 9);
        self.bytes.extend(4u32.to_le_bytes());
        self.bytes.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|value| self.bytes.extend((*value as u32).to_le_bytes()));
    }

    fn flags(&mut self, key: &str, values: &[bool]) {
        self.key(key, 9);
        self.bytes.extend(7u32.to_le_bytes());
        self.bytes.extend((values.len() as u64).to_le_bytes());
        self.bytes.extend(values.iter().map(|value| u8::from(*value)));
    }

    fn real(&mut self, key: &str, value: f32) {
        self.key(key, 6);
        self.bytes.extend(value.to_le_bytes());
    }

    fn text(&mut self, key: &str, value: &str) {
        self.key(key, 8);
        self.bytes.extend((value.len() as u64).to_le_bytes());
        self.bytes.extend(value.as_bytes());
    }
}

fn metadata(row: &Row, quantisation: &str, out: &mut Metadata) -> Option<()> {
    let name = architecture(row.class())?;
    out.text("general.architecture", name);
    out.text("general.name", row.model());
    out.number("general.file_type", file_type(quantisation)?.0.into());
    let mut number = |key: &str, value: Option<u64>| {
        if let Some(value) = value.filter(|value| *value > 0) {
            out.number(&format!("{name}.{key}"), value);
        }
    };
    number("block_count", row.number("layers"));
    number("context_length", row.number("max_ctx"));
    number("embedding_length", row.number("hidden"));
    number("feed_forward_length", row.number("intermediate").or(row.number("moe_intermediate")));
    number("attention.head_count", row.number("heads"));
    number("vocab_size", row.number("vocab"));
    number("expert_count", row.number("experts"));
    number("expert_used_count", row.number("experts_per_tok"));
    let experts = row.number("experts").and(row.number("moe_intermediate").or(row.number("intermediate")));
    number("expert_feed_forward_length", experts);
    number("expert_shared_count", row.number("shared_experts"));
    number("leading_dense_block_count", row.number("dense_layers"));
    number("attention.q_lora_rank", row.number("q_lora_rank"));
    number("attention.kv_lora_rank", row.number("kv_lora_rank"));
    number("attention.sliding_window", row.number("sliding_window").filter(|_| row.class() != "Phi3ForCausalLM"));
    let layers = 0..row.layers();
    let dim = row.head_dim();
    if row.mla() {
        let (latent, rope) = (row.n("kv_lora_rank"), row.n("qk_rope_head_dim"));
        number("attention.head_count_kv", Some(1));
        number("attention.key_length", Some(latent + rope));
        number("attention.value_length", Some(latent));
        number("attention.key_length_mla", Some(row.n("qk_nope_head_dim") + rope));
        number("attention.value_length_mla", row.number("v_head_dim"));
        number("rope.dimension_count", Some(rope));
    } else if name == "gemma4" {
        let few = if row.model().contains("12B") { 1 } else { 2 };
        number("attention.key_length", Some(512));
        number("attention.value_length", Some(512));
        number("attention.key_length_swa", Some(dim));
        number("attention.value_length_swa", Some(dim));
        out.number("gemma4.embedding_length_per_layer_input", 0);
        let each: Vec<u64> =
            layers.clone().map(|layer| if slides(row, layer) { row.kv_heads() } else { few }).collect();
        out.numbers("gemma4.attention.head_count_kv", &each);
        let flags: Vec<bool> = layers.clone().map(|layer| slides(row, layer)).collect();
        out.flags("gemma4.attention.sliding_window_pattern", &flags);
    } else {
        match row.kv_of_layers() {
            Some(each) => {
                let each: Vec<u64> = layers.clone().map(|layer| each[layer as usize % each.len()]).collect();
                out.numbers(&format!("{name}.attention.head_count_kv"), &each);
            }
            None => number("attention.head_count_kv", row.number("kv_heads")),
        }
        let mut number = |key: &str, value: Option<u64>| {
            out.number(&format!("{name}.{key}"), value.unwrap_or(0));
        };
        number("attention.key_length", Some(dim));
        number("attention.value_length", Some(dim));
        number("rope.dimension_count", Some(dim));
    }
    if row.linear_hybrid() {
        let values = row.linear("linear_num_value_heads").unwrap_or(32);
        let mut number = |key: &str, value: u64| out.number(&format!("{name}.{key}"), value);
        number("ssm.conv_kernel", 4);
        number("ssm.state_size", row.linear("linear_key_head_dim").unwrap_or(128));
        number("ssm.group_count", row.linear("linear_num_key_heads").unwrap_or(16));
        number("ssm.time_step_rank", values);
        number("ssm.inner_size", values * row.linear("linear_value_head_dim").unwrap_or(128));
        number("full_attention_interval", 4);
        if name != "qwen3next" {
            out.numbers(&format!("{name}.rope.dimension_sections"), &[11, 11, 10, 0]);
        }
        if name != "qwen35" {
            out.number(&format!("{name}.expert_shared_feed_forward_length"), row.n("moe_intermediate"));
        }
    }
    if name == "deepseek2" {
        out.number("deepseek2.expert_gating_func", 2);
    }
    out.real(&format!("{name}.attention.layer_norm_rms_epsilon"), 1e-6);
    out.real(&format!("{name}.attention.layer_norm_epsilon"), 1e-6);
    out.text("tokenizer.ggml.model", "none");
    Some(())
}

impl Row {
    fn linear_hybrid(&self) -> bool {
        self.text("layer_types").contains("linear_attention")
    }
}

/// One file; `split` is its number and their count.
fn file(
    name: String,
    metadata: &Metadata,
    tensors: &[(String, Vec<u64>, Kind)],
    split: Option<(u64, u64, u64)>,
) -> HeaderFile {
    let mut own = Metadata { bytes: metadata.bytes.clone(), count: metadata.count };
    if let Some((number, count, all)) = split {
        if number > 0 {
            own = Metadata::default();
        }
        for (key, value) in [("split.no", number), ("split.count", count)] {
            own.key(key, 2);
            own.bytes.extend((value as u16).to_le_bytes());
        }
        own.key("split.tensors.count", 5);
        own.bytes.extend((all as i32).to_le_bytes());
    }
    let mut infos = Vec::new();
    let mut data = 0u64;
    for (tensor, dimensions, kind) in tensors {
        infos.extend((tensor.len() as u64).to_le_bytes());
        infos.extend(tensor.as_bytes());
        infos.extend((dimensions.len() as u32).to_le_bytes());
        dimensions.iter().for_each(|size| infos.extend(size.to_le_bytes()));
        infos.extend(kind.0.to_le_bytes());
        infos.extend(data.to_le_bytes());
        data += bytes(dimensions, *kind).next_multiple_of(32);
    }
    let mut head = b"GGUF".to_vec();
    head.extend(3u32.to_le_bytes());
    head.extend((tensors.len() as u64).to_le_bytes());
    head.extend(own.count.to_le_bytes());
    head.extend(own.bytes);
    head.extend(infos);
    let size = (head.len() as u64).next_multiple_of(32) + data;
    HeaderFile { name, head, size }
}

fn bytes(dimensions: &[u64], kind: Kind) -> u64 {
    let (columns, rows) = dimensions.split_first().map_or((1, &[][..]), |(columns, rows)| (*columns, rows));
    columns.div_ceil(kind.1) * kind.2 * rows.iter().product::<u64>()
}

/// The GGUF files of a row: `STEM.gguf`, or its shards.
///
/// `quantisation` is the name of a file type (`Q4_K_M`, `Q8_0`, `BF16`, `MXFP4` for gpt-oss). `None` where the row's
/// class or the type is not written down here.
pub fn gguf(row: &Row, quantisation: &str, stem: &str, shards: usize) -> Option<Vec<HeaderFile>> {
    let mut metadata_bytes = Metadata::default();
    metadata(row, quantisation, &mut metadata_bytes)?;
    let mut counts = (0, 0);
    let tensors: Vec<(String, Vec<u64>, Kind)> = entries(row)?
        .into_iter()
        .map(|entry| {
            let kind = kind_of(row, &entry, quantisation, &mut counts);
            (entry.name, entry.dimensions, kind)
        })
        .collect();
    if shards <= 1 {
        return Some(vec![file(format!("{stem}.gguf"), &metadata_bytes, &tensors, None)]);
    }
    let parts: Vec<_> = tensors.chunks(tensors.len().div_ceil(shards)).collect();
    let (count, all) = (parts.len() as u64, tensors.len() as u64);
    let named = |number: usize| format!("{stem}-{:05}-of-{count:05}.gguf", number + 1);
    Some(
        parts
            .iter()
            .enumerate()
            .map(|(number, part)| file(named(number), &metadata_bytes, part, Some((number as u64, count, all))))
            .collect(),
    )
}

/// The vision projector beside a row's GGUF files, at 16 bits: the tower and its projector.
pub fn projector(row: &Row, name: &str) -> Option<HeaderFile> {
    let mut own = Metadata::default();
    own.text("general.architecture", "clip");
    own.text("general.type", "mmproj");
    let tensors: Vec<(String, Vec<u64>, Kind)> = network(row)?
        .into_iter()
        .filter(|matrix| matrix.role == Role::Vision)
        .map(|matrix| {
            let kind = if matrix.shape.len() < 2 { F32 } else { F16 };
            (matrix.name, matrix.shape.iter().rev().copied().collect(), kind)
        })
        .collect();
    (!tensors.is_empty()).then(|| file(name.to_owned(), &own, &tensors, None))
}
