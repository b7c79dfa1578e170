//! What the configuration classes of `transformers` fill in where a `config.json` leaves a field out.
//!
//! Source: the `__init__` defaults in `src/transformers/models/<type>/configuration_<type>.py`. Published
//! multimodal configurations are written as a difference to these: Google's Gemma 3 leaves out the vocabulary,
//! the context length and, for 4B, the heads; the first LLaVA ones nearly everything.

/// One class's defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClassDefaults {
    pub(super) layers: u32,
    pub(super) hidden: u32,
    pub(super) heads: u32,
    /// `None` where the class takes the query heads.
    pub(super) kv_heads: Option<u32>,
    /// `None` where the class takes hidden size over heads.
    pub(super) head_dim: Option<u32>,
    pub(super) intermediate: u32,
    pub(super) vocab: u32,
    pub(super) context: u64,
    /// The window of families whose layers alternate. Mistral's 4096 is left out: many of its repositories drop
    /// the field and mean none, and a full cache is the larger.
    pub(super) window: Option<u32>,
}

const LLAMA: ClassDefaults = ClassDefaults {
    layers: 32,
    hidden: 4096,
    heads: 32,
    kv_heads: None,
    head_dim: None,
    intermediate: 11_008,
    vocab: 32_000,
    context: 2048,
    window: None,
};
const MISTRAL: ClassDefaults = ClassDefaults { kv_heads: Some(8), intermediate: 14_336, context: 131_072, ..LLAMA };
const QWEN2: ClassDefaults =
    ClassDefaults { kv_heads: Some(32), intermediate: 22_016, vocab: 151_936, context: 32_768, ..LLAMA };
const QWEN2_VL: ClassDefaults = ClassDefaults {
    layers: 80,
    hidden: 8192,
    heads: 64,
    kv_heads: Some(8),
    intermediate: 29_568,
    vocab: 152_064,
    ..QWEN2
};
const PHI3: ClassDefaults = ClassDefaults { hidden: 3072, intermediate: 8192, vocab: 32_064, context: 4096, ..LLAMA };
const GEMMA2: ClassDefaults = ClassDefaults {
    layers: 26,
    hidden: 2304,
    heads: 8,
    kv_heads: Some(4),
    head_dim: Some(256),
    intermediate: 9216,
    vocab: 256_000,
    context: 8192,
    window: Some(4096),
};
const GEMMA3: ClassDefaults = ClassDefaults { vocab: 262_208, context: 131_072, ..GEMMA2 };

/// The defaults of a `model_type`; `None` where they are not known here.
pub(super) fn class_defaults(model_type: &str) -> Option<ClassDefaults> {
    Some(match model_type {
        "llama" => LLAMA,
        "mistral" => MISTRAL,
        "qwen2" => QWEN2,
        "qwen2_vl" | "qwen2_vl_text" | "qwen2_5_vl" | "qwen2_5_vl_text" => QWEN2_VL,
        "phi3" => PHI3,
        "gemma2" => GEMMA2,
        "gemma3" | "gemma3_text" => GEMMA3,
        _ => return None,
    })
}
