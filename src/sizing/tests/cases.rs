//! Concrete inputs with the right answer, and two famous wrong examples.

use super::*;

/// Llama 3.1 8B on cards of 24 GB: its full context needs two, a quarter of it one.
#[test]
fn context_decides_the_fit() {
    let model = llama_31_8b();
    assert_eq!(kv_bytes_per_token(&model, None), 131_072);
    close(rtx_4090(), 22.07, 0.001);
    let full = one(&model, &vllm(131_072));
    close(full.kv_bytes, 16.0, 0.01);
    close(full.weights_bytes, 14.96, 0.02);
    assert!(full.total() > rtx_4090());
    let fp8 = one(&model, &Demand { kv_dtype: Some(Dtype::Fp8), ..vllm(131_072) });
    close(fp8.weights_bytes + fp8.kv_bytes, 22.96, 0.01);
    assert!(fp8.total() > rtx_4090());
    let pair = one(&model, &with_tp(131_072, 2));
    close(pair.weights_bytes + pair.kv_bytes, 15.48, 0.01);
    assert!(pair.total() <= rtx_4090());
    let short = one(&model, &vllm(32_768));
    close(short.kv_bytes, 4.0, 0.01);
    assert!(short.total() <= rtx_4090(), "{} GiB", gib(short.total()));
}

/// DeepSeek V3: the latent cache is not divided by tensor parallelism.
#[test]
fn latent_attention_is_held_whole_by_every_rank() {
    let model = deepseek_v3();
    assert_eq!(kv_bytes_per_token(&model, None), 70_272);
    assert_eq!(attention_word(&model.architecture), "mla");
    for tp in [1, 2, 4, 8] {
        close(one(&model, &with_tp(163_840, tp)).kv_bytes, 10.72, 0.01);
    }
    // SGLang's log: 524,288 tokens in 17.16 GiB of FP8.
    assert_eq!(kv_bytes_per_token(&model, Some(Dtype::Fp8)), 35_136);
    let mut packed = deepseek_v3();
    packed.architecture.name = "DeepseekV32ForCausalLM".into();
    assert_eq!(kv_bytes_per_token(&packed, Some(Dtype::Fp8)), 40_016);
    close(one(&packed, &Demand { kv_dtype: Some(Dtype::Fp8), ..vllm(163_840) }).kv_bytes, 6.11, 0.01);
    // llama.cpp before the latent cache expanded every head.
    let old = Demand { version: Some("4500"), pipeline_parallel: 1, ..llama_cpp(2048) };
    assert_eq!(one(&gguf(deepseek_v3()), &old).kv_bytes, 9760 * MIB);
    // One that nobody knows may be one that keeps the latent as values too.
    let unknown = Demand { version: None, ..old };
    assert_eq!(one(&gguf(deepseek_v3()), &unknown).kv_bytes, 61 * (576 + 512) * 2 * 2048);
    let new = Demand { version: Some("8000"), ..old };
    assert_eq!(one(&gguf(deepseek_v3()), &new).kv_bytes, 61 * 576 * 2 * 2048);
    // Builds between kept the latent a second time as values: 2,074 MiB at 16,384 tokens, says a log of 2025-05.
    let between = Demand { version: Some("5300"), context: 16_384, ..old };
    assert_eq!(one(&gguf(deepseek_v3()), &between).kv_bytes, 2074 * MIB);
}

/// A Gemma of 34 layers at its full context: the engine's log says 2,560 + 174 MiB.
#[test]
fn windows_in_llama_cpp() {
    let model = gguf(gemma(34, 4, 256, 2560, 8, 8_600_000_000));
    assert_eq!(one(&model, &llama_cpp(131_072)).kv_bytes, 2734 * MIB);
    assert_eq!(attention_word(&model.architecture), "sliding");
}

/// A Gemma of 62 layers: full context fits one card of 80 GB because most layers slide.
#[test]
fn windows_change_the_number_of_accelerators() {
    let model = gemma(62, 16, 128, 5376, 32, 54_900_000_000);
    let a100 = capacity_of(&card("NVIDIA A100-SXM4-80GB", 81_920, "8.0"));
    close(one(&gguf(model.clone()), &llama_cpp(131_072)).kv_bytes, 10.61, 0.01);
    let served = one(&model, &vllm(131_072));
    // vLLM keeps window + tokens of one step, in groups of equal size: 60 layers where 52 slide.
    assert!(gib(served.kv_bytes) > 10.41 && gib(served.kv_bytes) < 11.8, "{}", gib(served.kv_bytes));
    assert!(served.total() <= a100, "{} of {}", gib(served.total()), gib(a100));
    // The log of a version that charged every layer in full: 992 MiB at 2,048 tokens.
    assert_eq!(kv_bytes_per_token(&model, None) * 2048, 992 * MIB);
}

fn qwen_72b_gptq() -> Variant {
    let variant = model(80, 8192, 64, 8, 128, 29_696, 152_064, 41_984_000_000);
    quantised(variant, "gptq-int4", "gptq", 4, 128)
}

/// Qwen 72B in 4 bits at 32,768 tokens: too large for one card of 48 GB, not for two.
#[test]
fn quantised_72b_over_two() {
    let model = qwen_72b_gptq();
    assert_eq!(kv_bytes_per_token(&model, None), 327_680);
    let l20 = capacity_of(&card("NVIDIA L20", 46_068, "8.9"));
    let alone = one(&model, &vllm(32_768));
    close(alone.weights_bytes, 39.1, 0.02);
    close(alone.kv_bytes, 10.0, 0.01);
    assert!(alone.total() > l20);
    let pair = one(&model, &with_tp(32_768, 2));
    close(pair.weights_bytes + pair.kv_bytes, 24.6, 0.02);
    assert!(pair.total() <= l20);
    assert_eq!(legal_splits(&model, EngineKind::Vllm).tensor_parallel, [1, 2, 4, 8]);
}

fn rules(splits: &Splits, tp: u32) -> Vec<SplitRule> {
    splits.reasons(tp).map(|refused| refused.rule).collect()
}

/// Heads, key-value heads, intermediate size and vocabulary each forbid sizes.
#[test]
fn legal_tensor_parallel_sizes() {
    use SplitRule::{Heads, KvHeads, Mlp, Vocab};
    let splits = |heads, kv, mlp, vocab| {
        legal_splits(&model(28, heads * 128, heads, kv, 128, mlp, vocab, 1 << 33), EngineKind::Vllm)
    };
    let llama_3b = splits(24, 8, 8192, 128_256);
    assert_eq!(llama_3b.tensor_parallel, [1, 2, 4, 8]);
    assert_eq!(rules(&llama_3b, 3), [KvHeads, Mlp]);
    assert_eq!(rules(&llama_3b, 6), [KvHeads, Mlp]);
    let qwen_7b = splits(28, 4, 18_944, 152_064);
    assert_eq!(qwen_7b.tensor_parallel, [1, 2, 4]);
    assert_eq!(rules(&qwen_7b, 7), [KvHeads, Mlp, Vocab]);
    assert_eq!(rules(&qwen_7b, 8), [Heads]);
    let llama_13b = splits(40, 40, 13_824, 32_000);
    assert_eq!(llama_13b.tensor_parallel, [1, 2, 4, 8]);
    assert_eq!(rules(&llama_13b, 5), [Mlp]);
    assert_eq!(rules(&llama_13b, 3), [Heads, KvHeads, Vocab]);
    let glm_air = splits(96, 8, 0, 151_552);
    assert_eq!(glm_air.tensor_parallel, [1, 2, 4, 8]);
    assert_eq!(rules(&glm_air, 3), [KvHeads, Vocab]);
    let advice = glm_air.suggest(6).expect("6 is not legal");
    assert_eq!(advice, "use tensor parallel 4, or 2 with 3 replicas");
    assert_eq!(glm_air.suggest(4), None);
    assert_eq!(legal_splits(&gguf(llama_31_8b()), EngineKind::LlamaCpp).tensor_parallel, [1]);
}

/// Experts in FP8 blocks of 128: a rank's share of an expert must not be narrower than a block.
#[test]
fn quantisation_blocks_limit_the_split() {
    let experts = |width, heads, kv| {
        let mut variant = model(40, 2048, heads, kv, 256, 0, 248_320, 35 << 30);
        variant.architecture.experts = Some(256);
        variant.architecture.experts_per_token = Some(8);
        variant.architecture.moe_intermediate = Some(width);
        legal_splits(&quantised(variant, "fp8", "fp8", 8, 128), EngineKind::Vllm)
    };
    let qwen = experts(512, 16, 2);
    assert_eq!(qwen.tensor_parallel, [1, 2, 4]);
    assert_eq!(rules(&qwen, 8), [SplitRule::QuantBlock]);
    assert!(qwen.reasons(8).any(|refused| refused.text.contains("64 < 128")));
    assert_eq!(qwen.suggest(8).as_deref(), Some("use tensor parallel 4, or 4 with 2 replicas"));
    let narrow = experts(320, 32, 8);
    assert_eq!(narrow.tensor_parallel, [1]);
    for tp in [2, 4, 8] {
        assert_eq!(rules(&narrow, tp), [SplitRule::QuantBlock], "{tp}");
    }
    let json = serde_json::to_value(&narrow.refused[0]).expect("plain data");
    assert_eq!((json["tp"].as_u64(), json["rule"].as_str()), (Some(2), Some("quant_block")));
}

/// A card that others use too: the share comes from the need, and the need must fit what others leave.
#[test]
fn utilisation_is_a_share_of_the_total() {
    let mut busy = card("NVIDIA GeForce RTX 4090", 24_564, "8.9");
    busy.memory.free_bytes = Some(22_464 * MIB);
    busy.memory.used_bytes = Some(2_100 * MIB);
    let capacity = capacity_of(&busy);
    assert_eq!(capacity, (22_464 - 256) * MIB);
    let need = one(&llama_31_8b(), &vllm(32_768)).total();
    assert!(need <= capacity);
    let share = engine::utilisation(need, 24_564 * MIB).expect("a known total");
    assert!(share <= 0.90 && share * 24_564.0 * MIB as f64 >= need as f64, "{share}");
    assert_eq!(engine::utilisation(22_108 * MIB, 24_564 * MIB), Some(0.91));
    assert_eq!(engine::utilisation(1, 0), None);
}

/// A GB10, whose accelerator has the host's memory.
#[test]
fn unified_memory_is_one_pool() {
    let node = NodeFacts {
        ram: Ram { total_bytes: Some(127_604_000 << 10), available_bytes: Some(60 * GIB), ..Default::default() },
        ..NodeFacts::default()
    };
    let mut gb10 = card("NVIDIA GB10", 0, "12.1");
    gb10.memory = AcceleratorMemory { total_bytes: Some(127_604_000 << 10), unified: true, ..Default::default() };
    let capacity = accelerator_capacity(&gb10, Some(Bytes(9 * GIB)), 0, &node, None);
    assert_eq!(capacity.bytes, Some(58 * GIB), "only the host's reserve counts");
    close(capacity.total_bytes.expect("known"), 121.69, 0.001);
    assert_eq!(host_capacity(&node, None, 0).bytes, Some(58 * GIB));
    assert_eq!(host_capacity(&node, None, 50 * GIB).bytes, Some(108 * GIB));
    // An APU with 108.5 GiB of its own and shared memory, nothing known to be used.
    let mut apu = gb10;
    apu.memory.total_bytes = Some(536_870_912 + 115_964_116_992);
    let capacity = accelerator_capacity(&apu, None, 0, &NodeFacts::default(), None);
    close(capacity.bytes.expect("known"), 106.5, 0.001);
}

/// A MIG slice of an A100.
#[test]
fn a_slice_offers_its_own_memory_only() {
    let mut slice = card("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 19_968, "8.0");
    slice.uuid = "MIG-a".into();
    slice.mig_parent = Some("GPU-parent".into());
    let capacity = capacity_of(&slice);
    assert!(capacity < 22 * GIB && capacity > 17 * GIB);
    let environment = engine::device_environment(EngineKind::Vllm, "nvidia", &["MIG-a".to_owned()]);
    assert_eq!(environment["CUDA_VISIBLE_DEVICES"], "MIG-a");
}

#[test]
fn unknown_memory_is_noted_and_never_zero() {
    let mut bare = card("NVIDIA L4", 23_034, "8.9");
    bare.memory.reserved_bytes = None;
    bare.memory.free_bytes = None;
    let capacity = accelerator_capacity(&bare, Some(Bytes(GIB)), 0, &NodeFacts::default(), None);
    assert_eq!(capacity.bytes, Some(23_034 * MIB - GIB));
    assert_eq!(capacity.notes.len(), 2);
    bare.memory.total_bytes = None;
    assert_eq!(accelerator_capacity(&bare, None, 0, &NodeFacts::default(), None).bytes, None);
    assert_eq!(host_capacity(&NodeFacts::default(), None, 0).bytes, None);
    // What flock holds itself is not lost.
    let mut ours = card("NVIDIA L4", 23_034, "8.9");
    ours.memory.free_bytes = Some(3_034 * MIB);
    let capacity = accelerator_capacity(&ours, None, 20_000 * MIB, &NodeFacts::default(), None);
    assert_eq!(capacity.bytes, Some(23_034 * MIB - default_reserve_vram(23_034 * MIB).0));
}

/// A 3090 beside a 3070: equal ranks need what the smaller one does not have.
#[test]
fn unequal_pair() {
    let mistral = model(32, 4096, 32, 8, 128, 14_336, 32_000, 14_483_464_192);
    let large = capacity_of(&card("NVIDIA GeForce RTX 3090", 24_576, "8.6"));
    let small = capacity_of(&card("NVIDIA GeForce RTX 3070", 8192, "8.6"));
    assert!(one(&mistral, &vllm(8192)).total() <= large);
    let pair = one(&mistral, &with_tp(4096, 2));
    close(pair.weights_bytes, 6.74, 0.02);
    assert!(pair.total() > small);
}

/// The same pair under llama.cpp, which puts more layers on the larger one.
#[test]
fn unequal_pair_by_layers() {
    let model = gguf(model(32, 4096, 32, 8, 128, 14_336, 32_000, 14_483_464_192));
    let demand = Demand { pipeline_parallel: 2, ..llama_cpp(4096) };
    let found = llama_cpp::footprint(&model, &demand, Some(&[24, 9])).expect("a legal split");
    let [large, small] = found.per_accelerator.as_slice() else { panic!("two") };
    assert!(large.weights_bytes > 2 * small.weights_bytes);
    assert_eq!(large.kv_bytes, 3 * small.kv_bytes);
    assert!(small.total() <= capacity_of(&card("NVIDIA GeForce RTX 3070", 8192, "8.6")));
    assert!(llama_cpp::footprint(&model, &demand, Some(&[24, 8])).is_err());
    assert!(llama_cpp::footprint(&model, &demand, Some(&[33])).is_err());
}

/// Two examples that are often written and are both impossible.
#[test]
fn famous_wrong_examples() {
    let size = |variant: &Variant, text: &str, context: u64| {
        let accelerators = [parse_accelerator_request(text).expect("readable")];
        let variants = [variant.clone()];
        let request = SizeRequest {
            source: "hf:x/y",
            context: Some(context),
            accelerators: &accelerators,
            ..SizeRequest::default()
        };
        size_report(&variants, &request).expect("sized")
    };
    let mut four_bit = llama_3_70b();
    let embedding = four_bit.tensors.embedding_bytes;
    let total = 39_760_000_000;
    four_bit.tensors.total_bytes = total;
    four_bit.tensors.layer_bytes = vec![(total - 2 * embedding) / 80; 80];
    four_bit.tensors.parameters = 70_553_706_496;
    let four_bit = quantised(four_bit, "gptq-int4", "gptq", 4, 128);
    let answer = size(&four_bit, "24GiB", 8192);
    assert!(!answer.report.fits[0].fits);
    assert!(answer.advice.iter().any(|text| text.contains("2 x 24.0 GiB")), "{:?}", answer.advice);
    assert!(size(&four_bit, "2x24GiB", 4096).report.fits[0].fits);

    let sixteen = llama_3_70b();
    let answer = size(&sixteen, "80GiB", 8192);
    assert!(!answer.report.fits[0].fits);
    assert!(answer.advice.iter().any(|text| text.contains("2 x 80.0 GiB")), "{:?}", answer.advice);
    let pair = size(&sixteen, "2x80GiB", 8192);
    assert!(pair.report.fits[0].fits);
    assert_eq!(pair.report.fits[0].tensor_parallel, 2);

    let mut eight = llama_3_70b();
    eight.tensors.total_bytes = 72_700_000_000;
    eight.tensors.layer_bytes = vec![(72_700_000_000 - 2 * embedding) / 80; 80];
    assert!(size(&quantised(eight, "fp8", "fp8", 8, 1), "NVIDIA A100-SXM4-80GB", 4096).report.fits[0].fits);
}

/// What is proposed in place of a long context is the longest power of two that fits, and `--pp` counts for the
/// accelerators that are judged as it does for the figures above them.
#[test]
fn the_proposed_context_is_the_nearest_and_asked_stages_count() {
    let size = |context: u64, kv_dtype: Option<Dtype>, text: &str, stages: u32, variant: Variant| {
        let accelerators = [parse_accelerator_request(text).expect("readable")];
        let request = SizeRequest {
            source: "hf:x/y",
            context: Some(context),
            kv_dtype,
            pipeline_parallel: stages,
            accelerators: &accelerators,
            ..SizeRequest::default()
        };
        size_report(&[variant], &request).expect("sized")
    };
    let wide = size(131_072, None, "24564MiB", 1, llama_31_8b()).advice.join("\n");
    assert!(wide.contains("fits 24564MiB with a context of 32768"), "{wide}");
    let narrow = size(131_072, Some(Dtype::Fp8), "24564MiB", 1, llama_31_8b()).advice.join("\n");
    assert!(narrow.contains("fits 24564MiB with a context of 65536"), "{narrow}");

    // 16-bit 70B: four ranks of 32 GiB do not hold it, two ranks in each of three stages do.
    let staged = size(4096, None, "6x32GiB", 3, llama_3_70b());
    let fit = &staged.report.fits[0];
    assert_eq!((fit.fits, fit.tensor_parallel, fit.pipeline_parallel), (true, 2, 3), "{fit:?}");
    let alone = size(4096, None, "6x32GiB", 1, llama_3_70b());
    assert_eq!((alone.report.fits[0].fits, alone.report.fits[0].pipeline_parallel), (false, 1));
    // More stages than accelerators: as many as there are.
    let few = size(4096, None, "2x32GiB", 64, llama_3_70b());
    assert_eq!((few.report.fits[0].tensor_parallel, few.report.fits[0].pipeline_parallel), (1, 2));
}

/// vLLM is planned with tensor parallelism alone: pipeline stages would fit six of 32 GiB, four ranks do not.
#[test]
fn fits_judges_only_what_can_be_planned() {
    let fit = |variant: Variant, engine: EngineKind, text: &str| {
        let accelerators = [parse_accelerator_request(text).expect("readable")];
        let request = SizeRequest {
            source: "hf:x/y",
            engine: Some(engine),
            context: Some(4096),
            accelerators: &accelerators,
            ..SizeRequest::default()
        };
        size_report(&[variant], &request).expect("sized").report.fits.remove(0)
    };
    for engine in [EngineKind::Vllm, EngineKind::Sglang] {
        let six = fit(llama_3_70b(), engine, "6x32GiB");
        assert_eq!((six.fits, six.tensor_parallel), (false, 4), "{engine}");
        let four = fit(llama_3_70b(), engine, "4x32GiB");
        assert_eq!((six.needed_bytes, six.available_bytes), (four.needed_bytes, four.available_bytes));
        let three = fit(llama_3_70b(), engine, "3x96GiB");
        assert_eq!((three.fits, three.tensor_parallel), (true, 2), "{engine}");
    }
    let layers = fit(gguf(llama_3_70b()), EngineKind::LlamaCpp, "6x32GiB");
    assert_eq!((layers.fits, layers.tensor_parallel), (true, 1));
}

#[test]
fn the_report_has_the_contracts_fields() {
    let accelerators = [parse_accelerator_request("2x24GiB").expect("readable")];
    let variants = [llama_31_8b()];
    let request = SizeRequest {
        source: "path:m",
        context: Some(8192),
        tensor_parallel: 2,
        accelerators: &accelerators,
        ..SizeRequest::default()
    };
    let answer = size_report(&variants, &request).expect("sized");
    let json = serde_json::to_value(&answer.report).expect("plain data");
    let keys: Vec<&String> = json.as_object().expect("an object").keys().collect();
    let mut expected = [
        "format",
        "source",
        "architecture",
        "parameters",
        "attention",
        "variants",
        "kv",
        "splits",
        "per_accelerator",
        "fits",
        "best",
    ];
    expected.sort_unstable();
    let mut keys: Vec<&str> = keys.into_iter().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(keys, expected);
    assert_eq!(json["attention"], "gqa");
    assert_eq!(json["per_accelerator"].as_array().map(Vec::len), Some(2));
    assert_eq!(json["kv"]["bytes_per_token"], 131_072);
    assert_eq!(json["kv"]["total_bytes"].as_u64(), Some(131_072 * (8192 + 16)));
    assert_eq!(json["kv"]["replicated_over_tp"], false);
    assert_eq!(json["splits"]["tensor_parallel"], serde_json::json!([1, 2, 4, 8]));
    assert_eq!(json["fits"][0]["accelerator"], "2x24GiB");
    assert_eq!(json["fits"][0]["fits"], true);
    assert!(answer.explain.iter().any(|line| line.contains("tensor headers")));
    let odd = size_report(&variants, &SizeRequest { tensor_parallel: 3, ..request }).expect("still sized");
    assert!(odd.advice.iter().any(|text| text.contains("use tensor parallel 2")), "{:?}", odd.advice);
}

#[test]
fn a_split_that_was_asked_for_is_judged_beyond_the_listed_sizes() {
    let variants = [llama_31_8b()];
    let judged = |variants: &[Variant], tensor_parallel| {
        let answer = size_report(variants, &SizeRequest { tensor_parallel, ..SizeRequest::default() }).expect("sized");
        let refused: Vec<(u32, SplitRule)> =
            answer.report.splits.refused.iter().filter(|r| r.tp == tensor_parallel).map(|r| (r.tp, r.rule)).collect();
        (answer.report.splits.tensor_parallel, refused, answer.report.per_accelerator.len(), answer.advice.join("; "))
    };
    let (legal, refused, figures, advice) = judged(&variants, 9);
    assert_eq!((legal, figures), (vec![1, 2, 4, 8], 9));
    use SplitRule::{Heads, KvHeads, Layers, Mlp, Vocab};
    assert_eq!(refused, [Heads, KvHeads, Mlp, Vocab].map(|rule| (9, rule)));
    assert!(advice.contains("use tensor parallel 8"), "{advice}");
    let (legal, refused, ..) = judged(&variants, 16);
    assert_eq!((legal, refused), (vec![1, 2, 4, 8, 16], vec![]));
    assert!(judged(&variants, 1024).1.contains(&(1024, Heads)));
    let listed = judged(&variants, 4).0;
    assert_eq!(listed, [1, 2, 4, 8]);

    // llama.cpp splits by layers, of which this model has 32.
    let by_layers = [gguf(llama_31_8b())];
    let (legal, refused, figures, _) = judged(&by_layers, 32);
    assert_eq!((legal, refused, figures), (vec![1], vec![], 32));
    let (_, refused, figures, advice) = judged(&by_layers, 33);
    assert_eq!((refused, figures), (vec![(33, Layers)], 0));
    assert!(advice.contains("at most 32"), "{advice}");
    let wrong = SizeRequest { engine: Some(EngineKind::LlamaCpp), tensor_parallel: 33, ..SizeRequest::default() };
    assert!(size_report(&variants, &wrong).is_err(), "safetensors are not for llama.cpp however they are split");
}

#[test]
fn context_defaults_and_limits() {
    let mut variant = llama_31_8b();
    assert_eq!(effective_context(&variant, None), Ok(32_768));
    assert_eq!(effective_context(&variant, Some(131_072)), Ok(131_072));
    let error = effective_context(&variant, Some(131_073)).expect_err("beyond the trained length");
    assert_eq!(error, SizingError::Context { requested: 131_073, trained: 131_072 });
    variant.architecture.trained_context = Some(8192);
    assert_eq!(effective_context(&variant, None), Ok(8192));
    variant.architecture.trained_context = None;
    assert_eq!(effective_context(&variant, Some(1 << 20)), Ok(1 << 20));
}

#[test]
fn hardware_and_format_gates() {
    let t4 = card("Tesla T4", 15_360, "7.5");
    let a10 = card("NVIDIA A10", 23_028, "8.6");
    let bf16 = llama_31_8b();
    let reason = gate(&bf16, EngineKind::Vllm, &t4).expect_err("no bf16 on Turing");
    assert!(reason.contains("8.0") && reason.contains("Tesla T4"), "{reason}");
    assert!(gate(&bf16, EngineKind::Vllm, &a10).is_ok());
    // Plain AWQ and GPTQ kernels run on Turing, computing in f16; Marlin is the faster way from 8.0 on.
    assert!(gate(&qwen_72b_gptq(), EngineKind::Vllm, &t4).is_ok());
    assert!(computes_in_half(EngineKind::Vllm, &qwen_72b_gptq(), &t4));
    assert!(!computes_in_half(EngineKind::Vllm, &qwen_72b_gptq(), &a10));
    // Marlin widens fp8 and FP4 weights on Ampere.
    for (id, method, bits) in [("fp8", "fp8", 8), ("mxfp4", "mxfp4", 4), ("nvfp4", "nvfp4", 4)] {
        let variant = quantised(llama_31_8b(), id, method, bits, 16);
        assert!(gate(&variant, EngineKind::Vllm, &a10).is_ok(), "{id}");
        assert!(gate(&variant, EngineKind::Vllm, &t4).is_err(), "{id}");
    }
    let mut f16 = llama_31_8b();
    f16.quality = "f16".parse().expect("known");
    assert!(gate(&f16, EngineKind::Vllm, &t4).is_ok());
    assert!(gate(&gguf(llama_31_8b()), EngineKind::LlamaCpp, &t4).is_ok());
    assert!(gate(&gguf(llama_31_8b()), EngineKind::Vllm, &a10).is_err());
    assert!(gate(&bf16, EngineKind::LlamaCpp, &a10).is_err());
    assert!(matches!(footprint(&bf16, &llama_cpp(4096)), Err(SizingError::Format { .. })));
    let q8 = Demand { kv_dtype: Some(Dtype::Q8_0), ..vllm(4096) };
    assert!(matches!(footprint(&bf16, &q8), Err(SizingError::KvDtype { .. })));
}

/// Stages of whole layers: the first holds the embedding, the last the head, and none holds all of the cache.
#[test]
fn pipeline_stages_carry_embedding_and_head() {
    let variants = [llama_31_8b()];
    let report = |tp, pp| {
        let request =
            SizeRequest { context: Some(8192), tensor_parallel: tp, pipeline_parallel: pp, ..SizeRequest::default() };
        size_report(&variants, &request).expect("sized")
    };
    let whole = report(1, 1).report.per_accelerator;
    let three = report(1, 3).report.per_accelerator;
    assert_eq!(three.len(), 3);
    // 32 layers over 3 are 11, 11 and 10, as vLLM shares them out.
    let kv = |at: usize| three[at].kv_bytes;
    assert!(kv(0) == kv(1) && kv(1) * 10 == kv(2) * 11, "{} {} {}", kv(0), kv(1), kv(2));
    assert_eq!(three.iter().map(|each| each.kv_bytes).sum::<u64>(), whole[0].kv_bytes);
    assert_eq!(three.iter().map(|each| each.weights_bytes).sum::<u64>(), whole[0].weights_bytes);
    assert!(three[0].weights_bytes > three[1].weights_bytes + GIB / 2, "the embedding");
    assert!(three[2].weights_bytes > three[1].weights_bytes, "the head outweighs one layer");
    let grid = report(2, 2).report.per_accelerator;
    assert_eq!(grid.len(), 4);
    assert!(grid[0].weights_bytes == grid[1].weights_bytes && grid[2].weights_bytes == grid[3].weights_bytes);
    assert!(report(1, 33).impossible && report(1, 33).report.per_accelerator.is_empty());
    assert!(!report(1, 32).impossible);
    // llama.cpp has accelerators alone: two times two.
    let by_layers = [gguf(llama_31_8b())];
    let request = SizeRequest { tensor_parallel: 2, pipeline_parallel: 2, ..SizeRequest::default() };
    assert_eq!(size_report(&by_layers, &request).expect("sized").report.per_accelerator.len(), 4);
}

/// Layers that do not fit stay in host memory, with their cache.
#[test]
fn layers_in_host_memory() {
    let mut model = gguf(llama_3_70b());
    let embedding = 1 << 30;
    model.tensors.embedding_bytes = embedding;
    model.tensors.output_bytes = embedding;
    model.tensors.total_bytes = 42 << 30;
    model.tensors.layer_bytes = vec![GIB / 2; 80];
    let demand = llama_cpp(8192);
    let part = offloaded_footprint(&model, &demand, 30).expect("a part");
    let all = sized(&model, &demand);
    assert_eq!(part.per_accelerator[0].weights_bytes, 15 * GIB + embedding);
    assert_eq!(part.host.weights_bytes, 25 * GIB + embedding);
    assert_eq!(part.per_accelerator[0].kv_bytes * 8, all.per_accelerator[0].kv_bytes * 3);
    assert_eq!(part.host.kv_bytes * 8, all.per_accelerator[0].kv_bytes * 5);
    let accelerators = [parse_accelerator_request("24GiB").expect("readable")];
    let request = SizeRequest { context: Some(8192), accelerators: &accelerators, ..SizeRequest::default() };
    let answer = size_report(&[model], &request).expect("sized");
    assert!(!answer.report.fits[0].fits);
    let hint = answer.advice.iter().find(|text| text.contains("in host memory")).expect("a hint");
    assert!(hint.contains(" of 80 layers on it"), "{hint}");
}

/// Heads of sliding layers that are narrower than those of full ones, and fewer heads in the full ones: an engine's
/// log has 323 MiB for one slot and 833 MiB for four, at 8,192 cells of q8_0.
#[test]
fn heads_that_differ_between_kinds_of_layers() {
    let mut model = gguf(gemma(48, 8, 512, 3840, 16, 12_000_000_000));
    let sliding = model.architecture.sliding.as_mut().expect("a window");
    sliding.head_dims = Some((256, 256));
    let full = (0..48).map(|layer| if (layer + 1) % 6 == 0 { 1 } else { 8 }).collect();
    model.architecture.kv_heads = PerLayer::Each(full);
    let at =
        |slots: u32| Demand { kv_dtype: Some(Dtype::Q8_0), concurrency: slots, ..llama_cpp(8192 / u64::from(slots)) };
    assert_eq!(one(&model, &at(1)).kv_bytes, 323 * MIB);
    assert_eq!(one(&model, &at(4)).kv_bytes, 833 * MIB);
}

/// What an adapter takes: rank x (in + out) for every matrix, 16-bit.
#[test]
fn adapters_take_rank_times_both_widths() {
    let architecture = llama_31_8b().architecture;
    // Per layer: q and o 4096 + 4096, k and v 4096 + 1024, gate, up and down 4096 + 14336.
    let widths = 2 * 8192 + 2 * 5120 + 3 * 18_432;
    assert_eq!(adapter_bytes(&architecture, 16), 32 * widths * 16 * 2);
    assert_eq!(adapter_reserve(&architecture, 4, 64), 4 * adapter_bytes(&architecture, 64));
}

/// MXFP4 experts are padded by the engine's kernels; the widest padding of any backend is in the headroom.
#[test]
fn padded_experts_are_counted() {
    let mut model = model(36, 2880, 64, 8, 64, 0, 201_088, 65_218_000_000);
    model.architecture.experts = Some(128);
    model.architecture.experts_per_token = Some(4);
    model.architecture.moe_intermediate = Some(2880);
    let plain = one(&model, &vllm(8192));
    let packed = quantised(model, "mxfp4", "mxfp4", 4, 32);
    let padded = one(&packed, &vllm(8192));
    // 2,880 becomes 3,072: the log says 64.38 GiB.
    close(padded.weights_bytes, 64.38, 0.005);
    assert!(padded.weights_bytes > plain.weights_bytes + 3 * GIB);
    // 3,072 x 3,072 at most.
    assert!(padded.overhead_bytes > plain.overhead_bytes + 3 * GIB);
}

/// The text says of every byte which tensors, which rule and which source.
#[test]
fn explanations_name_their_sources() {
    let said = |variant: Variant| {
        let request = SizeRequest { context: Some(8192), ..SizeRequest::default() };
        size_report(&[variant], &request).expect("sized").explain.join("\n")
    };
    let sliding = said(gguf(gemma(34, 4, 256, 2560, 8, 8_600_000_000)));
    for part in
        ["tensor headers", "llama-kv-cache-iswa.cpp", "ggml-alloc.c", "once more on the device", "--ctx-checkpoints"]
    {
        assert!(sliding.contains(part), "{part}: {sliding}");
    }
    let served = said(llama_31_8b());
    for part in ["padded to 64", "--max-num-batched-tokens", "--kv-cache-memory-bytes"] {
        assert!(served.contains(part), "{part}: {served}");
    }
    let mut unknown = llama_31_8b();
    unknown.architecture.known = false;
    assert!(said(unknown).contains("bound from above"));
}
