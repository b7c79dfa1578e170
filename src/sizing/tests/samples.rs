//! Models, demands and cards that the cases are about.

use super::*;

/// A variant of a dense model; the tests change what differs.
#[expect(clippy::too_many_arguments, reason = "the columns of a published table")]
pub(super) fn model(
    layers: u32,
    hidden: u32,
    heads: u32,
    kv: u32,
    head_dim: u32,
    mlp: u32,
    vocab: u32,
    weights: u64,
) -> Variant {
    let embedding = (u64::from(vocab) * u64::from(hidden)).saturating_mul(2);
    let rest = weights.saturating_sub(embedding.saturating_mul(2));
    Variant {
        id: "bf16".into(),
        quality: "bf16".parse().expect("known"),
        format: WeightFormat::Safetensors,
        start_file: None,
        files: Vec::new(),
        download_bytes: weights,
        tensors: Tensors {
            total_bytes: weights,
            embedding_bytes: embedding,
            output_bytes: embedding,
            layer_bytes: vec![rest / u64::from(layers); layers as usize],
            replicated_bytes: 0,
            vision_bytes: 0,
            host_bytes: 0,
            projector_bytes: 0,
            parameters: weights / 2,
            exact: true,
        },
        architecture: Architecture {
            name: "LlamaForCausalLM".into(),
            layers,
            hidden,
            heads: PerLayer::All(heads),
            kv_heads: PerLayer::All(kv),
            head_dim_k: head_dim,
            head_dim_v: head_dim,
            intermediate: Some(mlp).filter(|width| *width > 0),
            moe_intermediate: None,
            experts: None,
            experts_per_token: None,
            vocab,
            trained_context: Some(131_072),
            tied: false,
            sliding: None,
            mla: None,
            constant_state: None,
            vision_heads: None,
            known: true,
        },
        quantisation: None,
        projector: None,
        notes: Vec::new(),
    }
}

pub(super) fn quantised(mut variant: Variant, id: &str, method: &str, bits: u32, block: u32) -> Variant {
    variant.id = id.into();
    variant.quality = id.parse().expect("known");
    variant.quantisation = Some(Quantisation { method: method.into(), bits: Some(bits), block: Some(block) });
    variant
}

pub(super) fn gguf(mut variant: Variant) -> Variant {
    variant.id = "gguf:Q4_K_M".into();
    variant.format = WeightFormat::Gguf;
    variant
}

pub(super) fn llama_31_8b() -> Variant {
    model(32, 4096, 32, 8, 128, 14336, 128_256, 16_060_522_496)
}

pub(super) fn llama_3_70b() -> Variant {
    let mut variant = model(80, 8192, 64, 8, 128, 28672, 128_256, 141_107_412_992);
    variant.architecture.trained_context = Some(8192);
    variant
}

pub(super) fn deepseek_v3() -> Variant {
    let mut variant = model(61, 7168, 128, 128, 192, 18432, 129_280, 688_000_000_000);
    variant.architecture.mla = Some(Mla { kv_lora_rank: 512, qk_rope_head_dim: 64 });
    variant.architecture.head_dim_v = 128;
    variant.architecture.trained_context = Some(163_840);
    variant
}

pub(super) fn gemma(layers: u32, kv: u32, head_dim: u32, hidden: u32, heads: u32, weights: u64) -> Variant {
    let mut variant = model(layers, hidden, heads, kv, head_dim, 4 * hidden, 262_144, weights);
    variant.architecture.tied = true;
    variant.tensors.output_bytes = 0;
    let slides = (0..layers).map(|layer| (layer + 1) % 6 != 0).collect();
    variant.architecture.sliding = Some(Sliding { window: 1024, layers: slides, head_dims: None });
    variant
}

pub(super) fn vllm(context: u64) -> Demand<'static> {
    Demand { context, ..Demand::default() }
}

pub(super) fn llama_cpp(context: u64) -> Demand<'static> {
    Demand { engine: EngineKind::LlamaCpp, context, ..Demand::default() }
}

pub(super) fn with_tp(context: u64, tensor_parallel: u32) -> Demand<'static> {
    Demand { tensor_parallel, ..vllm(context) }
}

pub(super) fn sized(variant: &Variant, demand: &Demand<'_>) -> Footprint {
    footprint(variant, demand).expect("a legal demand")
}

pub(super) fn one(variant: &Variant, demand: &Demand<'_>) -> Figures {
    let found = sized(variant, demand);
    assert!(found.per_accelerator.windows(2).all(|pair| pair[0] == pair[1]));
    found.per_accelerator[0]
}

pub(super) fn gib(bytes: u64) -> f64 {
    bytes as f64 / GIB as f64
}

pub(super) fn close(found: u64, expected_gib: f64, share: f64) {
    let found = gib(found);
    assert!((found - expected_gib).abs() <= expected_gib * share, "{found} GiB, expected {expected_gib}");
}

/// An idle card; `mib` as the driver reports it.
pub(super) fn card(name: &str, mib: u64, capability: &str) -> Accelerator {
    Accelerator {
        uuid: "GPU-0".into(),
        vendor: "nvidia".into(),
        name: name.into(),
        compute_capability: Some(capability.into()),
        memory: AcceleratorMemory {
            total_bytes: Some(mib * MIB),
            reserved_bytes: Some(0),
            free_bytes: Some(mib * MIB),
            used_bytes: Some(0),
            unified: false,
            ..Default::default()
        },
        ..Accelerator::default()
    }
}

pub(super) fn capacity_of(accelerator: &Accelerator) -> u64 {
    accelerator_capacity(accelerator, None, 0, &NodeFacts::default(), None).bytes.expect("known")
}

pub(super) fn rtx_4090() -> u64 {
    capacity_of(&card("NVIDIA GeForce RTX 4090", 24_564, "8.9"))
}
