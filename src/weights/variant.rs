//! The result of reading weights: one concrete set of files with everything that sizing needs.

use serde::{Deserialize, Serialize};

use crate::base::{Quality, WeightFormat};

/// One concrete set of weights for a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// `bf16`, `awq-int4`, `fp8`, `gguf:Q4_K_M`.
    pub id: String,
    /// Its quality, from the method and the tensors' types.
    pub quality: Quality,
    /// How the weights lie on disk.
    pub format: WeightFormat,
    /// The file an engine is pointed at (shard 1 of a split GGUF), or the sub-folder of safetensors; `None` where it
    /// takes the whole folder.
    pub start_file: Option<String>,
    /// The files to have, weights and the small ones beside them, sorted by name.
    pub files: Vec<VariantFile>,
    /// Bytes of all files.
    pub download_bytes: u64,
    /// Tensor totals.
    pub tensors: Tensors,
    /// What sizing needs to know of the network.
    pub architecture: Architecture,
    /// Quantisation method and block, where quantised.
    pub quantisation: Option<Quantisation>,
    /// A vision projector in a file of its own beside GGUF weights; it is not among the files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub projector: Option<VariantFile>,
    /// Findings worth a warning, such as an architecture that is sized conservatively.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// One file of a variant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VariantFile {
    /// Path inside the source folder, with `/`.
    pub name: String,
    /// Its size; `None` where only an index names it.
    pub size_bytes: Option<u64>,
}

/// Bytes of tensors by where an engine puts them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tensors {
    /// All of them.
    pub total_bytes: u64,
    /// The input embedding.
    pub embedding_bytes: u64,
    /// The output head; 0 where it is tied to the embedding.
    pub output_bytes: u64,
    /// Every repeating layer, in order; beyond [`Architecture::layers`] those for multi-token prediction.
    pub layer_bytes: Vec<u64>,
    /// Of all layers together: tensors that tensor parallelism copies to every rank (norms, routers, small vectors).
    pub replicated_bytes: u64,
    /// Vision tower and projector inside the weights.
    pub vision_bytes: u64,
    /// Tables beside the embedding that llama.cpp looks up on the host (per-layer embeddings of Gemma 3n and 4).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub host_bytes: u64,
    /// A vision projector in a file of its own (`mmproj`) beside GGUF weights; loaded only where vision is wanted.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub projector_bytes: u64,
    /// Number of parameters.
    pub parameters: u64,
    /// Whether the figures come from tensor headers; otherwise from file sizes or an index' total.
    pub exact: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

/// Quantisation as the files state it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quantisation {
    /// `awq`, `gptq`, `fp8`, `compressed-tensors`, `bitsandbytes`, `mxfp4`, `nvfp4`, `gguf`.
    pub method: String,
    /// Bits per weight as configured.
    pub bits: Option<u32>,
    /// Group (AWQ, GPTQ) or block (FP8) width that a shard's width must be a multiple of.
    pub block: Option<u32>,
}

/// A number that may differ from layer to layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PerLayer {
    /// The same in every layer.
    All(u32),
    /// One per layer.
    Each(Vec<u32>),
}

impl PerLayer {
    /// The value of one layer; a short array repeats its last value.
    pub fn at(&self, layer: usize) -> u32 {
        match self {
            Self::All(value) => *value,
            Self::Each(values) => values.get(layer).or(values.last()).copied().unwrap_or(0),
        }
    }

    /// The largest value.
    pub fn max(&self) -> u32 {
        match self {
            Self::All(value) => *value,
            Self::Each(values) => values.iter().copied().max().unwrap_or(0),
        }
    }
}

/// What sizing needs to know of a network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Architecture {
    /// GGUF `general.architecture` or the first of config.json's `architectures`.
    pub name: String,
    /// Repeating layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Query heads.
    pub heads: PerLayer,
    /// Key/value heads; 0 in layers without attention.
    pub kv_heads: PerLayer,
    /// Width of one key head.
    pub head_dim_k: u32,
    /// Width of one value head.
    pub head_dim_v: u32,
    /// MLP width.
    pub intermediate: Option<u32>,
    /// Width of one expert.
    pub moe_intermediate: Option<u32>,
    /// Experts, where it is a mixture.
    pub experts: Option<u32>,
    /// Experts active per token.
    pub experts_per_token: Option<u32>,
    /// Vocabulary size.
    pub vocab: u32,
    /// Trained context length; `None` where the files do not say.
    pub trained_context: Option<u64>,
    /// Whether output head and embedding share their weights.
    pub tied: bool,
    /// Sliding-window attention.
    pub sliding: Option<Sliding>,
    /// Multi-head latent attention.
    pub mla: Option<Mla>,
    /// Layers whose state does not grow with tokens (Mamba, linear attention), with bytes per sequence each.
    pub constant_state: Option<ConstantState>,
    /// Heads of the vision tower, where there is one.
    pub vision_heads: Option<u32>,
    /// Whether the name is one flock has a rule for; otherwise sizes are conservative.
    pub known: bool,
}

/// Sliding-window attention.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sliding {
    /// Window in tokens.
    pub window: u32,
    /// Whether each layer slides, one per layer.
    pub layers: Vec<bool>,
    /// Width of a key and of a value head in sliding layers, where it is not that of the full ones (Gemma 4).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_dims: Option<(u32, u32)>,
}

/// Multi-head latent attention (DeepSeek, Kimi).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mla {
    /// `kv_lora_rank`.
    pub kv_lora_rank: u32,
    /// `qk_rope_head_dim`.
    pub qk_rope_head_dim: u32,
}

/// Layers with a state of constant size.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConstantState {
    /// How many layers.
    pub layers: u32,
    /// Bytes per sequence and layer in f32, which is what llama.cpp keeps.
    pub bytes_per_sequence: u64,
    /// The same with the convolution at 16 bits and the state in the type that the configuration asks for, which is
    /// what vLLM keeps; `None` where the files do not say, which counts as f32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served_bytes_per_sequence: Option<u64>,
}
