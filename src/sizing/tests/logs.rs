//! Figures that engines printed.

use super::*;

/// Figures that llama.cpp printed for published models (its own logs, quoted in public issues).
#[test]
fn llama_cpp_logs() {
    // Mistral 7B, f16, 8,192 cells: 1,024 MiB.
    let mistral = gguf(model(32, 4096, 32, 8, 128, 14_336, 32_000, 4_368_000_000));
    assert_eq!(one(&mistral, &llama_cpp(8192)).kv_bytes, 1024 * MIB);
    // Command-R 35B, 4,096 cells: 5,120 MiB. The tied embedding is on the host and again on the device:
    // 256,000 x 8,192 at 6.5625 bits are 1,640.62 MiB.
    let mut command_r = gguf(model(40, 8192, 64, 64, 128, 22_528, 256_000, 21_064 * MIB));
    command_r.architecture.tied = true;
    command_r.tensors.output_bytes = 0;
    command_r.tensors.embedding_bytes = 256_000 * 8192 / 256 * 210;
    command_r.tensors.total_bytes = (5434.38 * MIB as f64 + 13_989.53 * MIB as f64) as u64;
    command_r.tensors.layer_bytes = vec![(command_r.tensors.total_bytes - command_r.tensors.embedding_bytes) / 40; 40];
    let pair = sized(&command_r, &Demand { pipeline_parallel: 2, ..llama_cpp(4096) });
    let kv: u64 = pair.per_accelerator.iter().map(|figures| figures.kv_bytes).sum();
    assert_eq!(kv, 5120 * MIB);
    close(pair.host.weights_bytes, 1640.62 / 1024.0, 0.001);
    let devices: u64 = pair.per_accelerator.iter().map(|figures| figures.weights_bytes).sum();
    close(devices, (5434.38 + 13_989.53) / 1024.0, 0.001);
    // Logits of a large vocabulary: (248,320 + 5,120) x 512 x 4 bytes are 495 MiB, and the log says 495.0.
    let qwen = gguf(model(64, 5120, 24, 4, 256, 17_408, 248_320, 18 << 30));
    let overhead = one(&qwen, &llama_cpp(131_072)).overhead_bytes;
    assert!(overhead >= (495 + 457) * MIB, "{}", overhead / MIB);
    // gpt-oss-20b, window 128 in every other layer, 131,072 cells and one slot: 3,072 + 18 MiB.
    let mut oss = gguf(model(24, 2880, 64, 8, 64, 2880, 201_088, 12 << 30));
    let slides = (0..24).map(|layer| layer % 2 == 0).collect();
    oss.architecture.sliding = Some(Sliding { window: 128, layers: slides, head_dims: None });
    assert_eq!(one(&oss, &llama_cpp(131_072)).kv_bytes, 3090 * MIB);
    // SmolLM2 135M, 4,096 cells: 90.00 MiB.
    let smol = gguf(model(30, 576, 9, 3, 64, 1536, 49_152, 98_000_000));
    let cpu = Demand { cpu: true, concurrency: 2, ..llama_cpp(2048) };
    let found = sized(&smol, &cpu);
    assert!(found.per_accelerator.is_empty());
    assert_eq!(found.host.kv_bytes, 90 * MIB);
}

/// Figures that vLLM printed (public logs): KV bytes per token exactly, overheads below the headroom.
#[test]
fn vllm_logs() {
    // LLaVA 1.6 Mistral 7B: 451,744 tokens in 56,473.6 MiB.
    let mistral = model(32, 4096, 32, 8, 128, 14_336, 32_064, 14_483_000_000);
    close(kv_bytes_per_token(&mistral, None) * 451_744, 56_473.6 / 1024.0, 0.01);
    // Qwen2.5 0.5B: 3,041,600 tokens in 35,645.44 MiB.
    let small = model(24, 896, 14, 2, 64, 4864, 151_936, 988_000_000);
    close(kv_bytes_per_token(&small, None) * 3_041_600, 35_645.44 / 1024.0, 0.01);
    // Llama 3 70B with an FP8 cache over 2: 472,752 tokens in 36,935.68 MiB on each.
    let per_rank = one(&llama_3_70b(), &Demand { kv_dtype: Some(Dtype::Fp8), concurrency: 1, ..with_tp(472_752, 2) });
    close(per_rank.kv_bytes, 36_935.68 / 1024.0, 0.01);
    // Qwen3 14B over 4 in SGLang: 298,447 tokens in 11,653.12 MiB, weights 7,249.92 MiB.
    let qwen = model(40, 5120, 40, 8, 128, 17_408, 151_936, 29_536_614_400);
    let quarter = one(&qwen, &Demand { engine: EngineKind::Sglang, ..with_tp(298_447, 4) });
    close(quarter.kv_bytes, 11_653.12 / 1024.0, 0.01);
    close(quarter.weights_bytes, 7249.92 / 1024.0, 0.05);
    // Activation, runtime and graphs of the 7B above, 256 sequences: 2,017 + 72 + 686 MiB, of which the
    // encoder's run is a part; the headroom covers them.
    let mut llava = mistral;
    llava.architecture.vision_heads = Some(16);
    let many = one(&llava, &Demand { concurrency: 256, ..vllm(4096) });
    assert!(many.overhead_bytes >= (2017 + 72 + 686) * MIB, "{}", many.overhead_bytes / MIB);
    // Qwen2.5 1.5B in f16: 512 MiB of activations, graphs off.
    let small = one(&model(28, 1536, 12, 2, 128, 8960, 151_936, 3_100_000_000), &vllm(4096));
    assert!(small.overhead_bytes >= 512 * MIB && small.overhead_bytes < 2 * GIB);
}

#[test]
fn llama_cpp_splits_layers_as_the_engine_does() {
    assert_eq!(layer_split(30, 1), [31]);
    assert_eq!(layer_split(30, 2), [16, 15]);
    assert_eq!(layer_split(32, 4), [9, 8, 8, 8]);
    let model = gguf(llama_31_8b());
    let whole = one(&model, &llama_cpp(8192));
    let pair = sized(&model, &Demand { pipeline_parallel: 2, ..llama_cpp(8192) });
    let sum = |pick: fn(&Figures) -> u64| pair.per_accelerator.iter().map(pick).sum::<u64>();
    assert_eq!(sum(|figures| figures.weights_bytes), whole.weights_bytes);
    assert_eq!(sum(|figures| figures.kv_bytes), whole.kv_bytes);
    assert!(footprint(&model, &Demand { tensor_parallel: 2, ..llama_cpp(8192) }).is_err());
}

#[test]
fn speed_is_bounded_by_bandwidth() {
    let card = specification("NVIDIA A100-SXM4-80GB").expect("in the table");
    let dense = speed(&llama_31_8b(), &vllm(8192), card);
    let decode = dense.decode_tokens_per_s.expect("a known bandwidth");
    // 0.8 x 2,039 GB/s over 15 GB and a GiB of cache.
    assert!((90.0..110.0).contains(&decode), "{decode}");
    let mut experts = model(48, 2048, 32, 4, 128, 0, 151_936, 61_000_000_000);
    experts.architecture.experts = Some(128);
    experts.architecture.experts_per_token = Some(8);
    experts.architecture.moe_intermediate = Some(768);
    let sparse = speed(&experts, &vllm(8192), card).decode_tokens_per_s.expect("a known bandwidth");
    assert!(sparse > 1.5 * decode, "{sparse}");
}
