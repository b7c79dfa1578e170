//! What a measured row leaves open: the model's entry, the file's type, the engine's defaults of the day.

/// How a row is predicted.
pub struct Recipe {
    pub id: &'static str,
    /// Its row in `architectures.csv`.
    pub model: &'static str,
    pub quantisation: &'static str,
    /// An engine version of the time, for the layout.
    pub version: &'static str,
    /// llama.cpp: one cache for all slots.
    pub unified: bool,
    /// A projector lies beside and was loaded.
    pub projector: bool,
    /// vLLM's defaults on that accelerator: sequences and tokens per step, which bound the measured peak.
    pub sequences: u32,
    pub batched: u64,
    /// Figures that cannot be predicted, with the reason; `all` for the whole row.
    pub not: &'static [(&'static str, &'static str)],
}

const fn recipe(
    id: &'static str,
    model: &'static str,
    quantisation: &'static str,
    version: &'static str,
    not: &'static [(&'static str, &'static str)],
) -> Recipe {
    Recipe { id, model, quantisation, version, unified: true, projector: false, sequences: 256, batched: 2048, not }
}

const fn defaults(mut own: Recipe, sequences: u32, batched: u64) -> Recipe {
    own.sequences = sequences;
    own.batched = batched;
    own
}

const fn streams(mut own: Recipe) -> Recipe {
    own.unified = false;
    own
}

const fn projector(mut own: Recipe) -> Recipe {
    own.projector = true;
    own
}

const MIXED: &str =
    "which tensors are 4-bit, and their group, is in the repository's headers, which the row does not have";
const DYNAMIC: &str =
    "a dynamic quantisation: the type of each tensor is in the file's header, which the row does not have";

/// One per row.
pub const RECIPES: &[Recipe] = &[
    recipe("v09", "openai/gpt-oss-120b", "mxfp4", "0.14.1", &[]),
    recipe("v12", "moonshotai/Kimi-Linear-48B-A3B-Instruct", "bf16", "0.11.0", &[]),
    recipe(
        "v13",
        "deepseek-ai/DeepSeek-Coder-V2-Lite-Instruct",
        "bf16",
        "0.7.2",
        &[("weights", "30 GiB of them were offloaded; which is the engine's choice")],
    ),
    recipe("v15", "Qwen/Qwen2.5-1.5B-Instruct", "bf16", "0.18.0", &[]),
    defaults(
        recipe("v16", "Qwen/Qwen2.5-0.5B-Instruct", "nf4", "0.9.2", &[("weights", DYNAMIC)]),
        256,
        // No chunked prefill: a step takes the whole context.
        32_768,
    ),
    recipe("v19", "llava-hf/llava-v1.6-mistral-7b-hf", "f16", "0.10.2", &[]),
    // Cards of 70 GiB and more: 1024 sequences, 8192 tokens.
    defaults(recipe("v20", "Qwen/Qwen3-Next-80B-A3B-Instruct", "bf16", "0.11.0", &[]), 1024, 8192),
    recipe(
        "v21",
        "meta-llama/Meta-Llama-3-70B-Instruct",
        "fp8-tensor",
        "0.8.5",
        &[("weights", "the model is inferred from its bytes, so comparing them proves nothing")],
    ),
    recipe("v22", "Qwen/Qwen3.5-122B-A10B", "nvfp4", "0.19.0", &[("weights", MIXED)]),
    recipe("v25", "Qwen/Qwen2.5-1.5B-Instruct", "f16", "0.22.0", &[]),
    recipe("v28", "Qwen/Qwen3-30B-A3B", "bf16", "0.20.0", &[]),
    recipe("p01", "Qwen/Qwen3-4B", "bf16", "0.20.0", &[]),
    recipe("s03", "Qwen/Qwen3-14B", "bf16", "0.5.8", &[]),
    recipe("s04", "Qwen/Qwen2.5-0.5B-Instruct", "bf16", "0.5.8", &[]),
    recipe("s05", "Qwen/Qwen3.5-35B-A3B", "bf16", "0.5.9", &[("all", MIXED)]),
    recipe("s06", "deepseek-ai/DeepSeek-R1", "nvfp4", "0.4.6", &[]),
    recipe(
        "s07",
        "deepseek-ai/DeepSeek-V3",
        "fp8",
        "0.5.5",
        &[("weights", "experts are spread over a number of ranks that the row does not state")],
    ),
    recipe("l01", "teknium/OpenHermes-2.5-Mistral-7B", "Q4_K_M", "5000", &[]),
    recipe("l06", "Qwen/Qwen3-1.7B", "Q4_K_M", "5500", &[]),
    recipe("l09", "openai/gpt-oss-20b", "MXFP4", "6500", &[]),
    recipe(
        "l10",
        "openai/gpt-oss-20b",
        "MXFP4",
        "6500",
        &[("compute", "without flash attention on Vulkan, which flock never runs; scores are held nearly twice")],
    ),
    recipe(
        "l13",
        "deepseek-ai/DeepSeek-V3",
        "Q2_K",
        "5300",
        &[("weights", DYNAMIC), ("compute of four devices", "the sum over them, with experts on the CPU by a pattern")],
    ),
    recipe(
        "l14",
        "deepseek-ai/DeepSeek-V3",
        "Q2_K",
        "4300",
        &[("all", "the row has widths and no bytes; a test has them")],
    ),
    recipe("l15", "mistralai/Mixtral-8x7B-v0.1", "Q5_K_M-2023", "1700", &[]),
    recipe("l16", "mistralai/Mixtral-8x7B-v0.1", "Q5_K_M-2023", "1700", &[]),
    // The row takes its type for Q4_K_M; of all types only Q4_K_S has its bytes.
    recipe("l18", "CohereForAI/c4ai-command-r-v01", "Q4_K_S", "2500", &[]),
    recipe(
        "l19",
        "Qwen/Qwen3.5-35B-A3B",
        "Q4_K_M",
        "9300",
        &[("weights", "the file's type is not stated, and only the part on the device is")],
    ),
    recipe("l20", "Qwen/Qwen3-30B-A3B", "Q4_K_M", "5466", &[]),
    recipe("l21", "Qwen/Qwen3.5-27B", "Q4_K_M", "9300", &[]),
    recipe(
        "l24",
        "Qwen/Qwen3.5-27B",
        "Q5_K_M",
        "9300",
        &[("weights", DYNAMIC), ("compute", "graphs for speculative decoding, which flock does not start")],
    ),
    recipe("l26", "google/gemma-4-12B", "Q8_0", "9300", &[]),
    recipe(
        "l27",
        "google/gemma-4-12B",
        "Q8_0",
        "9300",
        &[("all", "the dimensions of this model were taken from this row")],
    ),
    projector(recipe("l28", "mistralai/Mistral-Small-3.1-24B-Instruct-2503", "Q8_0", "5300", &[])),
    recipe("l29", "meta-llama/Llama-2-7b-hf", "Q5_K_M", "2400", &[]),
    streams(recipe("l33", "openai/gpt-oss-20b", "MXFP4", "10800", &[])),
];
