//! Folders with a known right answer, and files that lie.
//!
//! Size: one table-like test per format and family; the writers of sample files are in `samples`.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::base::WeightFormat;

type File = (&'static str, Vec<u8>, u64);

fn whole(name: &'static str, bytes: impl Into<Vec<u8>>) -> File {
    let bytes = bytes.into();
    let size = bytes.len() as u64;
    (name, bytes, size)
}

fn started(name: &'static str, (bytes, size): (Vec<u8>, u64)) -> File {
    (name, bytes, size)
}

fn empty(name: &'static str, size: u64) -> File {
    (name, Vec::new(), size)
}

fn llama_config() -> serde_json::Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000,
        "max_position_embeddings": 8192, "tie_word_embeddings": false, "torch_dtype": "float32"
    })
}

fn config(value: &serde_json::Value) -> File {
    whole("config.json", value.to_string())
}

fn llama_gguf() -> GgufWriter {
    GgufWriter::new("llama")
        .number("llama.block_count", 2)
        .number("llama.context_length", 8192)
        .number("llama.embedding_length", 256)
        .number("llama.feed_forward_length", 512)
        .number("llama.attention.head_count", 4)
        .number("llama.attention.head_count_kv", 2)
        .texts("tokenizer.ggml.tokens", 50_000)
        .tensor("token_embd.weight", &[256, 1000], 14)
        .tensor("output_norm.weight", &[256], 0)
        .tensor("blk.0.attn_q.weight", &[256, 256], 12)
        .tensor("blk.0.attn_norm.weight", &[256], 0)
        .tensor("blk.1.attn_q.weight", &[256, 256], 12)
}

fn only(files: &[File]) -> Variant {
    let mut variants = inspect_memory(files).expect("readable");
    assert_eq!(variants.len(), 1, "{variants:#?}");
    variants.remove(0)
}

fn shard_of(number: u64) -> (Vec<u8>, u64) {
    let mut writer = SafetensorsWriter::new();
    if number == 0 {
        writer = writer.tensor("model.embed_tokens.weight", &[1000, 256], "BF16");
    } else {
        writer = writer.tensor("lm_head.weight", &[1000, 256], "BF16").tensor("model.norm.weight", &[256], "BF16");
    }
    writer
        .tensor(&format!("model.layers.{number}.mlp.up_proj.weight"), &[512, 256], "BF16")
        .tensor(&format!("model.layers.{number}.input_layernorm.weight"), &[256], "BF16")
        .finish()
}

#[test]
fn gguf_totals_come_from_the_tensor_infos() {
    let variant = only(&[started("m.gguf", llama_gguf().number("general.file_type", 15).finish())]);
    assert_eq!(variant.id, "gguf:Q4_K_M");
    assert_eq!((variant.format, variant.start_file.as_deref()), (WeightFormat::Gguf, Some("m.gguf")));
    let tensors = &variant.tensors;
    assert_eq!(tensors.embedding_bytes, 1000 * 210);
    assert_eq!(tensors.layer_bytes, [256 * 144 + 1024, 256 * 144]);
    assert_eq!(tensors.replicated_bytes, 1024);
    assert_eq!(tensors.total_bytes, 1000 * 210 + 1024 + 2 * 256 * 144 + 1024);
    assert_eq!(tensors.parameters, 256_000 + 256 + 2 * 65_536 + 256);
    assert!(tensors.exact);
    let architecture = &variant.architecture;
    assert_eq!((architecture.vocab, architecture.layers, architecture.hidden), (1000, 2, 256));
    assert_eq!((architecture.head_dim_k, architecture.trained_context), (64, Some(8192)));
    assert!(architecture.tied && architecture.known);
}

#[test]
fn the_file_type_must_agree_with_the_tensors() {
    let name = |writer: GgufWriter| only(&[started("m.gguf", writer.finish())]).id;
    assert_eq!(name(llama_gguf()), "gguf:Q4_K_S");
    assert_eq!(name(llama_gguf().tensor("blk.1.ffn_down.weight", &[256, 10], 14)), "gguf:Q4_K_M");
    // Says Q8_0, holds Q4_K.
    assert_eq!(name(llama_gguf().number("general.file_type", 7)), "gguf:Q4_K_S");
    assert_eq!(name(llama_gguf().number("general.file_type", 14)), "gguf:Q4_K_S");
}

/// A GGUF in two shards beside a whole one and a projector.
#[test]
fn split_gguf_is_all_shards_or_none() {
    let q3 = started("q3_k_m.gguf", llama_gguf().number("general.file_type", 12).finish());
    let q4 = llama_gguf().number("general.file_type", 15).finish();
    let rest = GgufWriter::new("llama").tensor("blk.1.ffn_up.weight", &[256, 512], 12).finish();
    let first = ("q4_k_m-00001-of-00002.gguf", q4.0.clone(), q4.1);
    let second = ("q4_k_m-00002-of-00002.gguf", rest.0, rest.1);
    let projector = empty("mmproj-f16.gguf", 1_300_000_000);
    let all = [q3.clone(), first.clone(), second.clone(), projector.clone()];
    let variants = inspect_memory(&all).expect("readable");
    let split = variants.iter().find(|variant| variant.id == "gguf:Q4_K_M").expect("the split one");
    assert_eq!(split.start_file.as_deref(), Some("q4_k_m-00001-of-00002.gguf"));
    assert_eq!(split.files.len(), 2);
    assert_eq!(split.download_bytes, first.2 + second.2);
    assert!(split.tensors.layer_bytes[1] > 256 * 512 / 256 * 144);
    assert!(variants.iter().all(|variant| variant.files.iter().all(|file| !file.name.contains("mmproj"))));
    let beside = split.projector.as_ref().map(|file| (file.name.as_str(), file.size_bytes));
    assert_eq!(beside, Some(("mmproj-f16.gguf", Some(1_300_000_000))));
    // Of several, one that every accelerator computes in.
    let more = [empty("mmproj-f32.gguf", 2_600_000_000), empty("mmproj-BF16.gguf", 1_300_000_000)];
    let variants = inspect_memory(&all.iter().cloned().chain(more).collect::<Vec<_>>()).expect("readable");
    assert!(variants.iter().all(|v| v.projector.as_ref().is_some_and(|file| file.name == "mmproj-f16.gguf")));

    let variants = inspect_memory(&[q3, first.clone(), projector]).expect("the other is usable");
    assert_eq!(variants.len(), 1);
    assert!(variants[0].notes.iter().any(|note| note.contains("1 of 2 shards")), "{:?}", variants[0].notes);
    let error = inspect_memory(&[first]).expect_err("a shard is missing");
    assert_eq!(error, WeightsError::Shards { name: "q4_k_m".into(), present: 1, expected: 2 });
    assert_eq!(only(&[started("best-of-breed.gguf", llama_gguf().finish())]).files.len(), 1);
}

#[test]
fn equal_quantisations_are_told_apart() {
    let variants =
        inspect_memory(&[started("a.gguf", llama_gguf().finish()), started("b.gguf", llama_gguf().finish())])
            .expect("readable");
    let ids: Vec<&str> = variants.iter().map(|variant| variant.id.as_str()).collect();
    assert_eq!(ids, ["gguf:Q4_K_S:a", "gguf:Q4_K_S:b"]);
}

/// Every way in which a repository holds its weights twice.
#[test]
fn one_weight_set_per_folder() {
    let shards = || {
        vec![
            config(&llama_config()),
            started("model-00001-of-00002.safetensors", shard_of(0)),
            started("model-00002-of-00002.safetensors", shard_of(1)),
            whole("tokenizer.json", "{}"),
            whole("README.md", "x"),
        ]
    };
    let alone = only(&shards());
    assert_eq!(alone.id, "bf16", "the tensors decide, not torch_dtype");
    assert_eq!(alone.tensors.total_bytes, 2 * 2 * 256_000 + 2 * 2 * 131_072 + 3 * 512);
    assert_eq!(alone.tensors.output_bytes, 512_000);
    let names = |variant: &Variant| variant.files.iter().map(|file| file.name.clone()).collect::<Vec<_>>();
    assert_eq!(
        names(&alone),
        ["config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "tokenizer.json"]
    );
    for duplicate in [
        vec![empty("consolidated.safetensors", 9_999_999)],
        vec![
            empty("consolidated-00001-of-00002.safetensors", 9_999_999),
            empty("consolidated-00002-of-00002.safetensors", 9_999_999),
            empty("consolidated.safetensors.index.json", 100),
        ],
        vec![empty("pytorch_model-00001-of-00001.bin", 9_999_999), empty("pytorch_model.bin.index.json", 100)],
        vec![empty("original/consolidated.00.pth", 9_999_999)],
    ] {
        let mut files = shards();
        files.extend(duplicate);
        let variant = only(&files);
        assert_eq!((variant.tensors, variant.download_bytes), (alone.tensors.clone(), alone.download_bytes));
    }
    let error = inspect_memory(&[config(&llama_config()), empty("pytorch_model.bin", 5)]).expect_err("pickled");
    assert!(matches!(error, WeightsError::Pickled(_)), "{error}");
}

/// Sub-folders that are models of their own, and those that are not.
#[test]
fn a_sub_folder_with_a_configuration_is_a_set_of_its_own() {
    let mut fp8 = llama_config();
    fp8["quantization_config"] = json!({ "quant_method": "fp8" });
    let tensors = |dtype: &str| {
        let name = |layer: u32| format!("model.layers.{layer}.mlp.up_proj.weight");
        let writer = SafetensorsWriter::new().tensor(&name(0), &[512, 256], dtype).tensor(&name(1), &[512, 256], dtype);
        writer.tensor("model.embed_tokens.weight", &[1000, 256], "BF16").finish()
    };
    let files = [
        config(&llama_config()),
        started("model.safetensors", tensors("BF16")),
        whole("quantised/fp8/config.json", fp8.to_string()),
        whole("quantised/fp8/tokenizer.json", "{}"),
        started("quantised/fp8/model.safetensors", tensors("F8_E4M3")),
        whole("1_Pooling/config.json", "{}"),
        whole("2_Dense/config.json", "{}"),
        started("2_Dense/model.safetensors", SafetensorsWriter::new().tensor("linear.weight", &[8, 8], "F32").finish()),
        started("adapter/adapter_model.safetensors", SafetensorsWriter::new().tensor("a", &[8, 8], "F32").finish()),
    ];
    let variants = inspect_memory(&files).expect("readable");
    let found: Vec<_> = variants.iter().map(|v| (v.id.as_str(), v.start_file.as_deref())).collect();
    assert_eq!(found, [("bf16", None), ("fp8", Some("quantised/fp8"))]);
    let names: Vec<&str> = variants[1].files.iter().map(|file| file.name.as_str()).collect();
    let below = |name: &str| format!("quantised/fp8/{name}");
    assert_eq!(names, [below("config.json"), below("model.safetensors"), below("tokenizer.json")]);
    assert!(variants.iter().all(|variant| variant.notes.is_empty()), "{variants:#?}");
    assert!(variants[1].tensors.total_bytes < variants[0].tensors.total_bytes);

    // Alone, and broken: the error names the file from the top.
    assert_eq!(only(&files[2..5]).start_file.as_deref(), Some("quantised/fp8"));
    let error = inspect_memory(&[
        whole("x/config.json", "{"),
        files[4].clone(),
        started("x/model.safetensors", tensors("BF16")),
    ]);
    assert!(error.expect_err("broken").to_string().starts_with("x/config.json: "));
    // Parts of a pipeline of several models are none.
    let parts = [whole("model_index.json", "{}"), files[2].clone(), files[4].clone()];
    assert!(inspect_memory(&parts).is_err());
}

#[test]
fn what_is_read_alongside_is_what_will_be_asked_for() {
    let names = [
        "a-00001-of-00002.safetensors",
        "a-00002-of-00002.safetensors",
        "b-00001-of-00002.safetensors",
        "model.safetensors",
        "x.gguf",
        "sub/y.gguf",
        "mmproj.gguf",
    ];
    let listing = Listing::new(names.map(|name| (name, 1))).expect("plain names");
    assert_eq!(read_alongside(&listing, "a-00001-of-00002.safetensors"), ["a-00002-of-00002.safetensors"]);
    assert_eq!(read_alongside(&listing, "x.gguf"), ["sub/y.gguf"]);
    assert!(
        read_alongside(&listing, "model.safetensors").is_empty() && read_alongside(&listing, "config.json").is_empty()
    );
}

#[test]
fn an_index_decides_and_stands_alone() {
    let index = |size: u64| {
        let map = json!({
            "model.embed_tokens.weight": "model-00001-of-00002.safetensors",
            "lm_head.weight": "model-00002-of-00002.safetensors",
        });
        whole("model.safetensors.index.json", json!({"metadata": {"total_size": size}, "weight_map": map}).to_string())
    };
    let parameters = 2 * 256_000 + 2 * (256 * (256 + 2 * 128) + 256 * 256 + 3 * 256 * 512 + 512);
    let variant = only(&[config(&llama_config()), index(2 * parameters)]);
    assert_eq!(variant.id, "bf16");
    assert!(!variant.tensors.exact);
    assert_eq!(variant.tensors.total_bytes, 2 * parameters);
    assert_eq!(variant.tensors.parameters, parameters);
    assert_eq!(variant.tensors.layer_bytes.iter().sum::<u64>(), 2 * parameters - 4 * 256_000);
    let shard = variant.files.iter().find(|file| file.name.starts_with("model-00001")).expect("named");
    assert_eq!(shard.size_bytes, None);
    assert!(variant.download_bytes > 2 * parameters);

    let half = [config(&llama_config()), index(1), started("model-00001-of-00002.safetensors", shard_of(0))];
    let error = inspect_memory(&half).expect_err("half of the files");
    assert_eq!(error, WeightsError::Shards { name: "the index' files".into(), present: 1, expected: 2 });
    let without = whole("model.safetensors.index.json", r#"{"weight_map":{"a":"b.safetensors"}}"#);
    let error = inspect_memory(&[config(&llama_config()), without]).expect_err("no total");
    assert!(error.to_string().contains("total_size"), "{error}");
    let escape = whole("model.safetensors.index.json", r#"{"weight_map":{"a":"../../etc/passwd"}}"#);
    let error = inspect_memory(&[config(&llama_config()), escape]).expect_err("a name that leaves");
    assert!(matches!(error, WeightsError::Name(_)), "{error}");
}

#[test]
fn quantisation_methods() {
    let sized = |quantisation: serde_json::Value| {
        let mut value = llama_config();
        value["quantization_config"] = quantisation;
        let tensors = SafetensorsWriter::new()
            .tensor("model.embed_tokens.weight", &[1000, 256], "F16")
            .tensor("lm_head.weight", &[1000, 256], "F16")
            .tensor("model.layers.0.mlp.up_proj.qweight", &[32, 512], "I32")
            .tensor("model.layers.0.mlp.up_proj.scales", &[2, 512], "F16")
            .finish();
        only(&[config(&value), started("model.safetensors", tensors)])
    };
    let gptq = sized(json!({"quant_method": "gptq", "bits": 4, "group_size": 128}));
    assert_eq!((gptq.id.as_str(), gptq.tensors.parameters), ("gptq-int4", 2 * 256_000 + 32 * 512 * 8));
    assert_eq!(gptq.quantisation.and_then(|found| found.block), Some(128));
    let id = |value| sized(value).id;
    assert_eq!(id(json!({"quant_method": "awq", "w_bit": 4, "q_group_size": 128})), "awq-int4");
    assert_eq!(id(json!({"quant_method": "gptq", "bits": 8, "group_size": -1})), "int8");
    assert_eq!(id(json!({"quant_method": "bitsandbytes", "load_in_4bit": true})), "nf4");
    assert_eq!(id(json!({"quant_method": "mxfp4"})), "mxfp4");
    assert_eq!(id(json!({"quant_method": "modelopt", "quant_algo": "NVFP4"})), "nvfp4");
    let fp8 = sized(json!({"quant_method": "fp8", "weight_block_size": [128, 128]}));
    assert_eq!((fp8.id.as_str(), fp8.quantisation.and_then(|found| found.block)), ("fp8", Some(128)));
    let groups = json!({"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}});
    let packed = sized(json!({"quant_method": "compressed-tensors", "config_groups": groups}));
    assert_eq!((packed.id.as_str(), packed.quantisation.and_then(|found| found.block)), ("gptq-int4", Some(32)));
    assert!(!sized(json!({"quant_method": "novel"})).notes.is_empty());
}

fn architecture(value: serde_json::Value) -> Architecture {
    let tensors = SafetensorsWriter::new().tensor("model.layers.0.x", &[4], "BF16").finish();
    only(&[config(&value), started("model.safetensors", tensors)]).architecture
}

#[test]
fn vision_models_nest_the_language_model() {
    let llava = architecture(json!({
        "architectures": ["LlavaNextForConditionalGeneration"], "model_type": "llava_next",
        "text_config": {"model_type": "llama", "hidden_size": 7168, "intermediate_size": 20480,
            "max_position_embeddings": 4096, "num_attention_heads": 56, "num_hidden_layers": 60,
            "num_key_value_heads": 8, "vocab_size": 64064},
        "vision_config": {"hidden_size": 1024, "num_attention_heads": 16}, "tie_word_embeddings": false
    }));
    assert_eq!((llava.layers, llava.hidden, llava.kv_heads.max()), (60, 7168, 8));
    assert_eq!((llava.head_dim_k, llava.vision_heads, llava.known), (128, Some(16), true));
    // The first LLaVA repositories leave out everything that LlamaConfig has as its default.
    let sparse = architecture(json!({
        "architectures": ["LlavaForConditionalGeneration"], "model_type": "llava",
        "text_config": {"_name_or_path": "lmsys/vicuna-7b-v1.5", "model_type": "llama", "vocab_size": 32064,
            "max_position_embeddings": 4096}, "vision_config": {}
    }));
    assert_eq!((sparse.layers, sparse.hidden, sparse.kv_heads.max(), sparse.vocab), (32, 4096, 32, 32064));
}

fn refused(value: &serde_json::Value) -> String {
    let tensors = SafetensorsWriter::new().tensor("model.layers.0.x", &[4], "BF16").finish();
    inspect_memory(&[config(value), started("model.safetensors", tensors)]).expect_err("refused").to_string()
}

#[test]
fn missing_heads_are_never_a_cache_of_nothing() {
    let without = |keys: &[&str], model_type: &str| {
        let mut value = llama_config();
        value["model_type"] = json!(model_type);
        for key in keys {
            value.as_object_mut().expect("an object").remove(*key);
        }
        value
    };
    let both = ["num_attention_heads", "num_key_value_heads"];
    let llama = architecture(without(&both, "llama"));
    assert_eq!((llama.heads.max(), llama.kv_heads.max(), llama.head_dim_k), (32, 32, 8));
    let mistral = architecture(without(&both[1..], "mistral"));
    assert_eq!((mistral.heads.max(), mistral.kv_heads.max()), (4, 4), "never more than the query heads");
    let plain = architecture(without(&both[1..], "llama"));
    assert_eq!((plain.heads.max(), plain.kv_heads.max()), (4, 4));
    assert!(refused(&without(&both, "surprise")).contains("num_attention_heads"));
    let mut zero = llama_config();
    zero["num_attention_heads"] = json!(0);
    assert!(refused(&zero).contains("num_attention_heads"));
    let mut zero = llama_config();
    zero["num_key_value_heads"] = json!(0);
    assert!(refused(&zero).contains("num_key_value_heads"));
    // A network without attention has no heads to state.
    let mamba = architecture(json!({
        "architectures": ["FalconMambaForCausalLM"], "model_type": "falcon_mamba", "hidden_size": 4096,
        "num_hidden_layers": 64, "vocab_size": 65024, "state_size": 16, "conv_kernel": 4, "expand": 2
    }));
    assert_eq!((mamba.kv_heads.max(), mamba.constant_state.map(|state| state.layers)), (0, Some(64)));
}

#[test]
fn missing_heads_in_gguf_are_refused() {
    let writer = |heads: Option<u32>| {
        let writer = GgufWriter::new("llama")
            .number("llama.block_count", 1)
            .number("llama.embedding_length", 256)
            .tensor("token_embd.weight", &[256, 1000], 14)
            .tensor("blk.0.attn_q.weight", &[256, 256], 12);
        match heads {
            Some(heads) => writer.number("llama.attention.head_count", heads).finish(),
            None => writer.finish(),
        }
    };
    for heads in [None, Some(0)] {
        let error = inspect_memory(&[started("m.gguf", writer(heads))]).expect_err("no heads");
        assert!(error.to_string().contains("attention.head_count"), "{error}");
    }
    assert_eq!(only(&[started("m.gguf", writer(Some(4)))]).architecture.kv_heads.max(), 4);
    let mamba = GgufWriter::new("mamba")
        .number("mamba.block_count", 1)
        .number("mamba.embedding_length", 256)
        .number("mamba.attention.head_count", 0)
        .number("mamba.ssm.conv_kernel", 4)
        .number("mamba.ssm.inner_size", 512)
        .number("mamba.ssm.state_size", 16)
        .tensor("token_embd.weight", &[256, 1000], 14)
        .tensor("blk.0.ssm_in.weight", &[256, 256], 12);
    assert!(only(&[started("m.gguf", mamba.finish())]).architecture.constant_state.is_some());
}

/// Google's own Gemma 3 configurations state only what differs from `Gemma3TextConfig`.
#[test]
fn classes_fill_in_what_published_configs_leave_out() {
    let gemma = |text: serde_json::Value| {
        architecture(json!({
            "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": text,
            "vision_config": {"hidden_size": 1152, "num_attention_heads": 16}, "torch_dtype": "bfloat16"
        }))
    };
    let four = gemma(json!({"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
        "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}));
    assert_eq!((four.heads.max(), four.kv_heads.max(), four.head_dim_k, four.head_dim_v), (8, 4, 256, 256));
    assert_eq!((four.vocab, four.trained_context, four.layers), (262_208, Some(131_072), 34));
    let sliding = four.sliding.expect("slides");
    assert_eq!((sliding.window, sliding.layers.iter().filter(|slides| !**slides).count()), (1024, 5));
    let large = gemma(json!({"model_type": "gemma3_text", "num_hidden_layers": 62, "hidden_size": 5376,
        "num_attention_heads": 32, "num_key_value_heads": 16, "intermediate_size": 21504, "head_dim": 128}));
    assert_eq!((large.heads.max(), large.kv_heads.max(), large.head_dim_k), (32, 16, 128));
    assert_eq!(large.sliding.map(|sliding| sliding.window), Some(4096));

    // The embedding's shape is better than a class default, and needs none.
    let tensors = || SafetensorsWriter::new().tensor("model.embed_tokens.weight", &[1000, 256], "BF16").finish();
    let mut value = llama_config();
    value.as_object_mut().expect("an object").remove("vocab_size");
    let vocab =
        |value: &serde_json::Value| only(&[config(value), started("model.safetensors", tensors())]).architecture.vocab;
    assert_eq!(vocab(&value), 1000);
    value["model_type"] = json!("surprise");
    assert_eq!(vocab(&value), 1000);
    assert!(refused(&value).contains("vocab_size"));
}

#[test]
fn windows_follow_layer_types_patterns_and_families() {
    let gemma = |extra: serde_json::Value| {
        let mut value = json!({
            "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_size": 2560,
            "num_hidden_layers": 34, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
            "vocab_size": 262144, "sliding_window": 1024, "intermediate_size": 10240
        });
        value.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
        architecture(value)
    };
    let full = |found: &Architecture| {
        let sliding = found.sliding.as_ref().expect("slides");
        sliding.layers.iter().enumerate().filter(|(_, slides)| !**slides).map(|(layer, _)| layer).collect::<Vec<_>>()
    };
    assert_eq!(full(&gemma(json!({}))), [5, 11, 17, 23, 29]);
    assert_eq!(full(&gemma(json!({"sliding_window_pattern": 17}))), [16, 33]);
    let mut types = vec!["sliding_attention"; 34];
    types[3] = "full_attention";
    assert_eq!(full(&gemma(json!({"layer_types": types}))), [3]);
    assert!(gemma(json!({})).tied, "Gemma ties its embeddings by default");
    // Qwen states a window that it does not use.
    let mut qwen = llama_config();
    qwen["model_type"] = json!("qwen2");
    qwen["architectures"] = json!(["Qwen2ForCausalLM"]);
    qwen["sliding_window"] = json!(4096);
    qwen["use_sliding_window"] = json!(false);
    assert_eq!(architecture(qwen.clone()).sliding, None);
    // An unknown family is sized in full.
    qwen["architectures"] = json!(["SurpriseForCausalLM"]);
    qwen["use_sliding_window"] = json!(true);
    let unknown = architecture(qwen);
    assert!(!unknown.known && unknown.sliding.is_none());
}

#[test]
fn latent_experts_and_states() {
    let deepseek = architecture(json!({
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 7168,
        "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256, "num_experts_per_tok": 8,
        "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "kv_lora_rank": 512,
        "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "vocab_size": 129280,
        "max_position_embeddings": 163840,
        "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}
    }));
    assert_eq!(deepseek.mla, Some(Mla { kv_lora_rank: 512, qk_rope_head_dim: 64 }));
    assert_eq!((deepseek.head_dim_k, deepseek.head_dim_v, deepseek.experts), (192, 128, Some(256)));
    assert_eq!((deepseek.intermediate, deepseek.moe_intermediate), (Some(18432), Some(2048)));
    assert_eq!(deepseek.trained_context, Some(163_840));

    let hybrid = architecture(json!({
        "architectures": ["Qwen3_5MoeForConditionalGeneration"], "text_config": {
            "model_type": "qwen3_5_moe_text", "hidden_size": 5120, "num_hidden_layers": 64,
            "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 248320,
            "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_key_head_dim": 128,
            "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "full_attention_interval": 4}
    }));
    let state = hybrid.constant_state.expect("has a state");
    // 576 MiB and 22.5 MiB for 4 sequences in llama.cpp's log of this shape.
    assert_eq!(u64::from(state.layers) * state.bytes_per_sequence * 4, (576 << 20) + (45 << 19));
    assert_eq!((hybrid.kv_heads.at(2), hybrid.kv_heads.at(3)), (0, 4));

    let nemotron = architecture(json!({
        "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "hidden_size": 2688,
        "hybrid_override_pattern": "M*-EM", "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
        "vocab_size": 131072, "ssm_state_size": 128, "mamba_num_heads": 64, "mamba_head_dim": 64, "conv_kernel": 4,
        "n_groups": 8, "intermediate_size": 1856
    }));
    assert_eq!(nemotron.layers, 5);
    assert_eq!(nemotron.kv_heads, PerLayer::Each(vec![0, 2, 0, 0, 0]));
    assert_eq!(nemotron.constant_state.map(|state| state.layers), Some(2));
}

/// Published counts: 671 B without the layer for multi-token prediction, 106.85 B, 235.09 B.
#[test]
fn the_formula_counts_dense_layers_and_shared_experts() {
    let parameters = |value: serde_json::Value| {
        let map = json!({"model.embed_tokens.weight": "a.safetensors", "lm_head.weight": "a.safetensors"});
        let index = json!({"metadata": {"total_size": 700_000_000_000u64}, "weight_map": map});
        let index = whole("model.safetensors.index.json", index.to_string());
        only(&[config(&value), index]).tensors.parameters as f64 / 1e9
    };
    let deepseek = parameters(json!({
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 7168,
        "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256, "num_experts_per_tok": 8,
        "n_shared_experts": 1, "first_k_dense_replace": 3, "moe_layer_freq": 1, "num_hidden_layers": 61,
        "num_attention_heads": 128, "num_key_value_heads": 128, "kv_lora_rank": 512, "q_lora_rank": 1536,
        "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "vocab_size": 129280,
        "tie_word_embeddings": false
    }));
    assert!((deepseek - 671.0).abs() < 0.5, "{deepseek}");
    let glm = parameters(json!({
        "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "hidden_size": 4096,
        "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 128, "num_experts_per_tok": 8,
        "n_shared_experts": 1, "first_k_dense_replace": 1, "num_hidden_layers": 46, "num_attention_heads": 96,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151552, "tie_word_embeddings": false
    }));
    assert!((glm - 106.85).abs() < 0.5, "{glm}");
    let qwen = parameters(json!({
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 4096,
        "intermediate_size": 12288, "moe_intermediate_size": 1536, "num_experts": 128, "num_experts_per_tok": 8,
        "mlp_only_layers": [], "decoder_sparse_step": 1, "num_hidden_layers": 94, "num_attention_heads": 64,
        "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": false
    }));
    assert!((qwen - 235.09).abs() < 0.5, "{qwen}");
}

#[test]
fn gguf_arrays_and_latent() {
    let slides = [true, true, false, true];
    let gemma4 = GgufWriter::new("gemma4")
        .number("gemma4.block_count", 4)
        .number("gemma4.embedding_length", 512)
        .number("gemma4.attention.head_count", 8)
        .numbers("gemma4.attention.head_count_kv", &[4, 4, 1, 4])
        .number("gemma4.attention.key_length", 512)
        .number("gemma4.attention.value_length", 512)
        .number("gemma4.attention.key_length_swa", 256)
        .number("gemma4.attention.value_length_swa", 256)
        .number("gemma4.attention.sliding_window", 1024)
        .flags("gemma4.attention.sliding_window_pattern", &slides)
        .tensor("token_embd.weight", &[512, 1000], 1)
        .tensor("blk.0.attn_q.weight", &[512, 512], 1)
        .finish();
    let found = only(&[started("m.gguf", gemma4)]).architecture;
    let sliding = found.sliding.expect("a window");
    assert_eq!((sliding.layers, sliding.head_dims), (slides.to_vec(), Some((256, 256))));
    assert_eq!((found.head_dim_k, found.kv_heads), (512, PerLayer::Each(vec![4, 4, 1, 4])));

    let deepseek = |mla: bool| {
        let mut writer = GgufWriter::new("deepseek2")
            .number("deepseek2.block_count", 1)
            .number("deepseek2.embedding_length", 7168)
            .number("deepseek2.attention.head_count", 128)
            .number("deepseek2.attention.kv_lora_rank", 512)
            .number("deepseek2.rope.dimension_count", 64)
            .tensor("token_embd.weight", &[256, 1000], 1)
            .tensor("blk.0.attn_q.weight", &[256, 256], 1);
        writer = if mla {
            writer
                .number("deepseek2.attention.head_count_kv", 1)
                .number("deepseek2.attention.key_length", 576)
                .number("deepseek2.attention.value_length", 512)
                .number("deepseek2.attention.key_length_mla", 192)
                .number("deepseek2.attention.value_length_mla", 128)
        } else {
            writer.number("deepseek2.attention.key_length", 192).number("deepseek2.attention.value_length", 128)
        };
        only(&[started("m.gguf", writer.finish())]).architecture
    };
    assert_eq!(deepseek(true).mla, Some(Mla { kv_lora_rank: 512, qk_rope_head_dim: 64 }));
    assert_eq!(deepseek(false).mla, None);
    assert_eq!((deepseek(true).head_dim_k, deepseek(false).head_dim_k), (192, 192));
}

/// Encoders keep nothing of a text: no cache, in either format.
#[test]
fn encoders_have_no_cache() {
    let bert = serde_json::json!({
        "architectures": ["XLMRobertaForSequenceClassification"], "model_type": "xlm-roberta", "num_hidden_layers": 24,
        "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096, "vocab_size": 250_002,
        "max_position_embeddings": 8194,
    });
    let found = architecture(bert);
    assert!(found.known && found.kv_heads == PerLayer::All(0), "{found:?}");
    let gguf = GgufWriter::new("nomic-bert")
        .number("nomic-bert.block_count", 12)
        .number("nomic-bert.embedding_length", 768)
        .number("nomic-bert.attention.head_count", 12)
        .tensor("token_embd.weight", &[768, 1000], 1)
        .tensor("blk.0.attn_qkv.weight", &[768, 2304], 1)
        .finish();
    let found = only(&[started("m.gguf", gguf)]).architecture;
    assert!(found.known && found.kv_heads == PerLayer::All(0), "{found:?}");
}

/// Layers that reuse earlier keys and values, and layers for multi-token prediction, keep no cache of their own.
#[test]
fn layers_without_a_cache_of_their_own() {
    let shared = |key: &str, count: u64| {
        let writer = GgufWriter::new("gemma3n")
            .number("gemma3n.block_count", 10)
            .number("gemma3n.embedding_length", 512)
            .number("gemma3n.attention.head_count", 8)
            .number("gemma3n.attention.head_count_kv", 2)
            .number("gemma3n.attention.sliding_window", 512)
            .number(&format!("gemma3n.{key}"), count as u32)
            .tensor("token_embd.weight", &[512, 1000], 1)
            .tensor("per_layer_token_embd.weight", &[2560, 1000], 1)
            .tensor("blk.0.attn_q.weight", &[512, 512], 1);
        only(&[started("m.gguf", writer.finish())])
    };
    let found = shared("attention.shared_kv_layers", 4);
    let heads = |variant: &Variant| (0..10).map(|layer| variant.architecture.kv_heads.at(layer)).collect::<Vec<_>>();
    assert_eq!(heads(&found), [2, 2, 2, 2, 2, 2, 0, 0, 0, 0]);
    // The tied head is the embedding alone; the table beside it stays on the host.
    assert_eq!((found.tensors.embedding_bytes, found.tensors.host_bytes), (1_024_000, 5_120_000));
    assert_eq!(heads(&shared("nextn_predict_layers", 1))[8..], [2, 0]);

    let qwen = serde_json::json!({
        "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "num_hidden_layers": 4, "hidden_size": 64,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 128, "intermediate_size": 128,
        "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    });
    let tensors = SafetensorsWriter::new()
        .tensor("model.embed_tokens.weight", &[128, 64], "BF16")
        .tensor("lm_head.weight", &[128, 64], "BF16")
        .tensor("model.layers.0.mlp.up_proj.weight", &[128, 64], "BF16")
        .tensor("mtp.layers.0.mlp.up_proj.weight", &[64, 64], "BF16")
        .tensor("mtp.fc.weight", &[64, 128], "BF16");
    let found = only(&[config(&qwen), started("model.safetensors", tensors.finish())]);
    assert_eq!(found.tensors.layer_bytes, [16_384, 0, 0, 0, 8192 + 16_384], "prediction comes after the network's own");
    // 3 layers x (delta state 4 x 16 x 16, convolution 3 x (2 x 32 + 64)), the state at 16 bits too.
    let state = found.architecture.constant_state.expect("a hybrid");
    assert_eq!((state.layers, state.bytes_per_sequence), (3, 4 * (1024 + 384)));
    assert_eq!(state.served_bytes_per_sequence, Some(2 * (1024 + 384)));
}

#[test]
fn lying_headers_are_refused() {
    let gguf = |bytes: Vec<u8>, size: u64| inspect_memory(&[("m.gguf", bytes, size)]).expect_err("refused");
    let head = |tensors: u64, entries: u64| {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(tensors.to_le_bytes());
        bytes.extend(entries.to_le_bytes());
        bytes
    };
    assert!(matches!(gguf(b"GGML".to_vec(), 4), WeightsError::Malformed { .. }));
    assert!(matches!(gguf(head(u64::MAX, 1), 1 << 40), WeightsError::Malformed { .. }));
    let mut long = head(0, 1);
    long.extend(u64::MAX.to_le_bytes());
    assert!(matches!(gguf(long, 1 << 40), WeightsError::Malformed { .. }));
    let mut nested = head(0, 1);
    nested.extend(1u64.to_le_bytes());
    nested.extend(b"k");
    nested.extend(9u32.to_le_bytes());
    for _ in 0..100 {
        nested.extend(9u32.to_le_bytes());
        nested.extend(1u64.to_le_bytes());
    }
    assert!(gguf(nested, 1 << 30).to_string().contains("nested"));
    let (bytes, size) = llama_gguf().tensor("blk.1.x", &[1 << 40, 1 << 40], 0).finish();
    assert!(gguf(bytes, size).to_string().contains("larger than any memory"));
    // A download that was cut short.
    let (bytes, size) = llama_gguf().finish();
    assert!(matches!(gguf(bytes.clone(), size - 1), WeightsError::Truncated { .. }));
    assert!(matches!(gguf(bytes[..100].to_vec(), 100), WeightsError::Truncated { .. }));
    // A supplier that has less than the listing says.
    assert!(matches!(gguf(bytes[..100].to_vec(), size), WeightsError::Truncated { .. }));

    let safetensors = |header: &str, length: u64| {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        inspect_memory(&[config(&llama_config()), ("model.safetensors", bytes, 1 << 20)]).expect_err("refused")
    };
    assert!(matches!(safetensors("{}", u64::MAX), WeightsError::Malformed { .. }));
    assert!(matches!(safetensors("{}", 1 << 19), WeightsError::Truncated { .. }));
    let lie = r#"{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,8]}}"#;
    assert!(safetensors(lie, lie.len() as u64).to_string().contains("bytes of its shape"));
    let far = r#"{"a":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}"#;
    assert!(matches!(safetensors(far, far.len() as u64), WeightsError::Truncated { .. }));
    let back = r#"{"a":{"dtype":"F32","shape":[4],"data_offsets":[16,0]}}"#;
    assert!(matches!(safetensors(back, back.len() as u64), WeightsError::Malformed { .. }));
    let deep = format!("{}{}", r#"{"architectures":"#, "[".repeat(100_000));
    let deep = inspect_memory(&[whole("config.json", deep), started("model.safetensors", shard_of(0))]);
    assert!(matches!(deep.expect_err("refused"), WeightsError::Malformed { .. }));
    assert!(matches!(inspect_memory(&[empty("../m.gguf", 1)]), Err(WeightsError::Name(_))));
}

#[test]
fn headers_alone_are_asked_for() {
    let (bytes, _) = llama_gguf().finish();
    let listing = Listing::new([("m.gguf", 100 << 30)]).expect("a good name");
    let mut ranges = Ranges::new();
    let mut asked = 0;
    loop {
        match inspect(&listing, &ranges).expect("readable") {
            Inspect::Done(_) => break,
            Inspect::Need { file, offset, length } => {
                asked += length;
                let mut answer = bytes.clone();
                answer.resize(16 << 20, 0);
                // A supplier may return less than was asked for.
                let start = offset as usize;
                let end = (start + length as usize).min(start + 300_000);
                ranges.insert(&file, offset, &answer[start..end]);
            }
        }
    }
    assert!(asked < 16 << 20, "{asked} bytes for a header of {}", bytes.len());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn inspect_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..2000), size in 0u64..1 << 40, kind in 0..4) {
        let name = ["m.gguf", "model.safetensors", "config.json", "model.safetensors.index.json"][kind as usize];
        let mut files = vec![("config.json", llama_config().to_string().into_bytes(), 0)];
        files[0].2 = files[0].1.len() as u64;
        if name == "config.json" {
            files.clear();
            files.push(("model.safetensors", shard_of(0).0, shard_of(0).1));
        }
        files.push((name, bytes, size.min(1 << 20)));
        let _ = inspect_memory(&files);
    }

    #[test]
    fn a_flipped_byte_never_panics(at in 0usize..4000, value in any::<u8>(), which in 0..2) {
        let (mut bytes, size) = if which == 0 { llama_gguf().finish() } else { shard_of(0) };
        let at = at % bytes.len();
        bytes[at] = value;
        let name = if which == 0 { "m.gguf" } else { "model.safetensors" };
        let _ = inspect_memory(&[config(&llama_config()), (name, bytes, size)]);
    }

    #[test]
    fn config_values_never_panic(layers in any::<u32>(), heads in any::<i64>(), window in any::<f64>(), huge in any::<u64>()) {
        let mut value = llama_config();
        value["num_hidden_layers"] = json!(layers % 5000);
        value["num_attention_heads"] = json!(heads);
        value["sliding_window"] = json!(window);
        value["linear_num_value_heads"] = json!(huge);
        value["kv_lora_rank"] = json!(huge);
        value["qk_rope_head_dim"] = json!(layers);
        value["moe_intermediate_size"] = json!([huge, 3]);
        value["num_experts"] = json!(layers);
        value["vocab_size"] = json!(layers);
        let index = json!({"metadata": {"total_size": huge}, "weight_map": {"a": "model-00001-of-00001.safetensors"}});
        let index = whole("model.safetensors.index.json", index.to_string());
        let _ = inspect_memory(&[config(&value), index]);
    }
}
