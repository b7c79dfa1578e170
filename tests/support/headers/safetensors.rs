//! Safetensors files: shards with their index, `config.json`, and LoRA adapters.

use serde_json::{Map, Value, json};

use super::config::config_json;
use super::network::{Matrix, Role, network};
use super::{HeaderFile, Row};

/// One stored tensor.
struct Stored {
    name: String,
    dtype: &'static str,
    shape: Vec<u64>,
}

fn width_bits(dtype: &str) -> u64 {
    match dtype {
        "F64" | "I64" => 64,
        "F32" | "I32" => 32,
        "F16" | "BF16" | "I16" => 16,
        _ => 8,
    }
}

impl Stored {
    fn bytes(&self) -> u64 {
        (self.shape.iter().product::<u64>() * width_bits(self.dtype)).div_ceil(8)
    }
}

/// Group of AWQ and GPTQ.
const GROUP: u64 = 128;

/// What a method stores for one linear matrix.
fn quantised(matrix: &Matrix, method: &str, plain: &'static str) -> Vec<Stored> {
    let stem = matrix.name.strip_suffix(".weight").unwrap_or(&matrix.name).to_owned();
    let (last, first) = matrix.shape.split_last().map_or((1, &[][..]), |(last, first)| (*last, first));
    let rows: u64 = first.iter().product();
    let part = |suffix: &str, dtype: &'static str, shape: &[u64]| Stored {
        name: format!("{stem}.{suffix}"),
        dtype,
        shape: shape.to_vec(),
    };
    let groups = last.div_ceil(GROUP);
    match method {
        "fp8" => vec![
            part("weight", "F8_E4M3", &matrix.shape),
            part("weight_scale_inv", "F32", &[rows.div_ceil(128), last.div_ceil(128)]),
        ],
        "fp8-tensor" => vec![part("weight", "F8_E4M3", &matrix.shape), part("weight_scale", "F32", &[1])],
        "int8" => vec![part("weight", "I8", &matrix.shape), part("weight_scale", "BF16", &[rows, 1])],
        "awq-int4" => vec![
            part("qweight", "I32", &[last, rows.div_ceil(8)]),
            part("qzeros", "I32", &[groups, rows.div_ceil(8)]),
            part("scales", "F16", &[groups, rows]),
        ],
        "gptq-int4" => vec![
            part("qweight", "I32", &[last.div_ceil(8), rows]),
            part("qzeros", "I32", &[groups, rows.div_ceil(8)]),
            part("scales", "F16", &[groups, rows]),
            part("g_idx", "I32", &[last]),
        ],
        "nvfp4" => vec![
            part("weight", "U8", &[rows, last / 2]),
            part("weight_scale", "F8_E4M3", &[rows, last / 16]),
            part("weight_scale_2", "F32", &[1]),
            part("input_scale", "F32", &[1]),
        ],
        "nf4" => vec![
            part("weight", "U8", &[rows * last / 2, 1]),
            part("weight.absmax", "U8", &[(rows * last).div_ceil(64)]),
            part("weight.nested_absmax", "F32", &[(rows * last).div_ceil(64 * 256)]),
            part("weight.quant_map", "F32", &[16]),
            part("weight.nested_quant_map", "F32", &[256]),
            part("weight.quant_state.bitsandbytes__nf4", "U8", &[81]),
        ],
        "bnb-int8" => vec![part("weight", "I8", &matrix.shape), part("SCB", "F32", &[rows])],
        // gpt-oss: blocks of 32 weights in 16 bytes and one scale.
        "mxfp4" => {
            let stem = matrix.name.clone();
            let shape = |tail: &[u64]| [first, &[last / 32][..], tail].concat();
            vec![
                Stored { name: format!("{stem}_blocks"), dtype: "U8", shape: shape(&[16]) },
                Stored { name: format!("{stem}_scales"), dtype: "U8", shape: shape(&[]) },
            ]
        }
        _ => vec![Stored { name: matrix.name.clone(), dtype: plain, shape: matrix.shape.clone() }],
    }
}

fn stored(row: &Row, quantisation: &str) -> Option<Vec<Stored>> {
    let plain = match (quantisation, row.text("dtype")) {
        ("f32", _) => "F32",
        ("f16", _) | ("awq-int4" | "gptq-int4", _) => "F16",
        (_, "float16") => "F16",
        _ => "BF16",
    };
    let mut all = Vec::new();
    for matrix in network(row)? {
        let method = match (matrix.role, quantisation) {
            (Role::Expert, "bf16" | "mxfp4") if row.class() == "GptOssForCausalLM" => "mxfp4",
            // NVIDIA's releases of mixtures leave everything but the experts at 16 bits.
            (Role::Linear, "nvfp4") if row.number("experts").is_some() => "",
            // gpt-oss packs its experts alone.
            (Role::Linear, "mxfp4") => "",
            (Role::Linear | Role::Expert, method) => method,
            _ => "",
        };
        all.extend(quantised(&matrix, method, plain));
    }
    Some(all)
}

/// A header with the data's offsets, and the whole file's size.
fn file(name: &str, tensors: &[Stored]) -> HeaderFile {
    let mut entries = Map::new();
    entries.insert("__metadata__".to_owned(), json!({ "format": "pt" }));
    let mut end = 0;
    for tensor in tensors {
        let start = end;
        end += tensor.bytes();
        let entry = json!({ "dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, end] });
        entries.insert(tensor.name.clone(), entry);
    }
    let mut header = serde_json::to_vec(&Value::Object(entries)).expect("plain data");
    while !header.len().is_multiple_of(8) {
        header.push(b' ');
    }
    let mut head = (header.len() as u64).to_le_bytes().to_vec();
    head.extend(header);
    let size = head.len() as u64 + end;
    HeaderFile { name: name.to_owned(), head, size }
}

/// The repository of a row: `config.json`, a small tokenizer, the shards and their index.
///
/// `quantisation` is `bf16`, `f16`, `f32`, `fp8` (blocks of 128), `fp8-tensor`, `int8` (compressed-tensors),
/// `awq-int4`, `gptq-int4`, `nvfp4`, `nf4`, `bnb-int8`, or `mxfp4` for gpt-oss. `None` where the row's class is not
/// written down in `network.rs`.
pub fn safetensors(row: &Row, quantisation: &str, shards: usize) -> Option<Vec<HeaderFile>> {
    let all = stored(row, quantisation)?;
    let total: u64 = all.iter().map(Stored::bytes).sum();
    let config = serde_json::to_vec_pretty(&config_json(row, quantisation)).expect("plain data");
    let mut files = vec![
        HeaderFile::whole("config.json", config),
        HeaderFile::whole(
            "tokenizer.json",
            br#"{"version":"1.0","model":{"type":"BPE","vocab":{},"merges":[]}}"#.to_vec(),
        ),
        HeaderFile::whole("tokenizer_config.json", br#"{"tokenizer_class":"PreTrainedTokenizerFast"}"#.to_vec()),
    ];
    if shards <= 1 {
        files.push(file("model.safetensors", &all));
        return Some(files);
    }
    let mut weight_map = Map::new();
    let (mut parts, mut held) = (vec![Vec::new()], 0u64);
    for tensor in all {
        if held >= total.div_ceil(shards as u64) * parts.len() as u64 && parts.len() < shards {
            parts.push(Vec::new());
        }
        held += tensor.bytes();
        parts.last_mut().expect("never empty").push(tensor);
    }
    let count = parts.len();
    for (number, part) in parts.iter().enumerate() {
        let name = format!("model-{:05}-of-{count:05}.safetensors", number + 1);
        for tensor in part {
            weight_map.insert(tensor.name.clone(), Value::String(name.clone()));
        }
        files.push(file(&name, part));
    }
    let index = json!({ "metadata": { "total_size": total }, "weight_map": weight_map });
    files.push(HeaderFile::whole("model.safetensors.index.json", serde_json::to_vec(&index).expect("plain data")));
    Some(files)
}

/// A LoRA adapter of PEFT over the linear layers whose names end with one of `targets`.
pub fn adapter(row: &Row, rank: u64, targets: &[&str]) -> Option<Vec<HeaderFile>> {
    let mut tensors = Vec::new();
    for matrix in network(row)?.into_iter().filter(|matrix| matrix.role == Role::Linear) {
        let stem = matrix.name.trim_end_matches(".weight");
        if !targets.iter().any(|target| stem.ends_with(target)) {
            continue;
        }
        for (part, shape) in [("lora_A", [rank, matrix.shape[1]]), ("lora_B", [matrix.shape[0], rank])] {
            let name = format!("base_model.model.{stem}.{part}.weight");
            tensors.push(Stored { name, dtype: "F32", shape: shape.to_vec() });
        }
    }
    let config = json!({
        "peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": targets,
        "base_model_name_or_path": row.model(), "task_type": "CAUSAL_LM",
    });
    let config = serde_json::to_vec_pretty(&config).expect("plain data");
    Some(vec![HeaderFile::whole("adapter_config.json", config), file("adapter_model.safetensors", &tensors)])
}
