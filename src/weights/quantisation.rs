//! `quantization_config` of config.json: method, bits and the width that shards must respect.

use serde_json::Value;

use super::Quantisation;
use super::json::{Object, as_number};

/// The quantisation and the variant's id, where the configuration states one.
pub(super) fn quantisation(
    root: Object<'_>,
    text: Object<'_>,
    notes: &mut Vec<String>,
) -> (Option<Quantisation>, Option<String>) {
    let Some(config) = root
        .object(&["quantization_config", "compression_config"])
        .or(text.object(&["quantization_config", "compression_config"]))
    else {
        return (None, None);
    };
    let method = config.text(&["quant_method"]).unwrap_or("").to_ascii_lowercase();
    let bits = config.count(&["bits", "w_bit", "weight_bits"]);
    let group = config.count(&["group_size", "q_group_size"]).filter(|group| *group > 0);
    let found = |method: &str, bits: Option<u32>, block: Option<u32>, id: &str| {
        (Some(Quantisation { method: method.to_owned(), bits, block }), Some(id.to_owned()))
    };
    match method.as_str() {
        "awq" | "auto-awq" => found("awq", bits.or(Some(4)), group.or(Some(128)), "awq-int4"),
        "gptq" | "auto-round" | "auto-gptq" => match bits.unwrap_or(4) {
            8 => found("gptq", Some(8), group, "int8"),
            4 => found("gptq", Some(4), group, "gptq-int4"),
            other => {
                notes.push(format!("{other}-bit GPTQ is ranked like 4-bit"));
                found("gptq", Some(other), group, "gptq-int4")
            }
        },
        "fp8" | "fbgemm_fp8" | "fp_quant" => found("fp8", Some(8), fp8_block(config), "fp8"),
        "compressed-tensors" => compressed(config, notes),
        "bitsandbytes" if config.flag("load_in_8bit") == Some(true) => found("bitsandbytes", Some(8), None, "int8"),
        "bitsandbytes" => found("bitsandbytes", Some(4), None, "nf4"),
        "mxfp4" => found("mxfp4", Some(4), Some(32), "mxfp4"),
        "modelopt" | "modelopt_fp4" | "nvfp4" => {
            let algorithm = config.text(&["quant_algo"]).unwrap_or(if method == "modelopt" { "FP8" } else { "NVFP4" });
            match algorithm {
                "NVFP4" | "NVFP4_AWQ" => found("nvfp4", Some(4), Some(16), "nvfp4"),
                _ => found("fp8", Some(8), fp8_block(config), "fp8"),
            }
        }
        other => {
            notes.push(format!("quantisation method {other:?} is not one flock has a rule for"));
            let id = match bits {
                Some(bits) if bits >= 8 => "int8",
                _ => "nf4",
            };
            found(if other.is_empty() { "unknown" } else { other }, bits, group, id)
        }
    }
}

/// The wider side of `weight_block_size`.
fn fp8_block(config: Object<'_>) -> Option<u32> {
    let sides = config.numbers(&["weight_block_size"])?;
    u32::try_from(*sides.iter().max()?).ok().filter(|side| *side > 0)
}

/// `compressed-tensors`: the first group's weights decide.
fn compressed(config: Object<'_>, notes: &mut Vec<String>) -> (Option<Quantisation>, Option<String>) {
    let weights = config
        .object(&["config_groups"])
        .and_then(|groups| groups.0.values().find_map(|group| group.get("weights")?.as_object()))
        .map(Object);
    let bits = weights.and_then(|weights| weights.count(&["num_bits"]));
    let float = weights.and_then(|weights| weights.text(&["type"])) == Some("float");
    let group = weights.and_then(|weights| weights.count(&["group_size"])).filter(|group| *group > 0);
    let structure = weights.and_then(|weights| weights.value(&["block_structure"])).and_then(block_structure);
    let id = match (bits, float) {
        (Some(8), true) => "fp8",
        (Some(8), false) => "int8",
        (Some(4), true) => {
            if group == Some(32) {
                "mxfp4"
            } else {
                "nvfp4"
            }
        }
        (Some(4), false) => "gptq-int4",
        _ => {
            notes.push("compressed-tensors without a known weight type is ranked like 4-bit".to_owned());
            "gptq-int4"
        }
    };
    let quantisation = Quantisation { method: "compressed-tensors".to_owned(), bits, block: structure.or(group) };
    (Some(quantisation), Some(id.to_owned()))
}

fn block_structure(value: &Value) -> Option<u32> {
    let widest = match value {
        Value::Array(sides) => sides.iter().filter_map(as_number).max()?,
        Value::String(text) => text.split('x').filter_map(|side| side.trim().parse().ok()).max()?,
        _ => return None,
    };
    u32::try_from(widest).ok().filter(|side| *side > 0)
}
