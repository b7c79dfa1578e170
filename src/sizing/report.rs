//! The `flock size` report, in the shape of the contract's size JSON.

use serde::Serialize;

use super::capacity::default_reserve_vram;
use super::demand::{Demand, Figures, SizingError, footprint};
use super::kv::{attention_word, kv_bytes_per_token};
use super::request::AcceleratorRequest;
use super::splits::{RefusedSplit, SplitRule, legal_splits, splits_asked};
use super::{effective_context, llama_cpp, vllm};
use crate::base::{Dtype, EngineKind, WeightFormat, format_bytes};
use crate::engine::{VLLM_BATCHED_TOKENS, usable_bytes};
use crate::weights::Variant;

/// What `flock size` is asked.
#[derive(Debug, Clone, Default)]
pub struct SizeRequest<'a> {
    /// The source as written.
    pub source: &'a str,
    /// The engine; by format where `None`.
    pub engine: Option<EngineKind>,
    /// Tokens per sequence; the default where `None`.
    pub context: Option<u64>,
    /// Sequences at once; 0 counts as 1.
    pub concurrency: u32,
    /// KV cache type.
    pub kv_dtype: Option<Dtype>,
    /// `--tp`; 0 counts as 1. For llama.cpp the number of accelerators.
    pub tensor_parallel: u32,
    /// Which variant the general figures are about; the first where `None` or absent.
    pub variant: Option<&'a str>,
    /// Accelerators to judge against.
    pub accelerators: &'a [AcceleratorRequest],
}

/// The report, and lines for people.
#[derive(Debug, Clone)]
pub struct SizeAnswer {
    /// What `--format json` prints.
    pub report: SizeReport,
    /// Where each figure is from (`--explain`).
    pub explain: Vec<String>,
    /// What would fit, where something does not.
    pub advice: Vec<String>,
}

/// The size JSON. Field names and order are a public contract.
#[derive(Debug, Clone, Serialize)]
pub struct SizeReport {
    /// Format version, 1.
    pub format: u32,
    /// The source as written.
    pub source: String,
    /// Architecture name.
    pub architecture: String,
    /// Number of parameters.
    pub parameters: u64,
    /// `gqa`, `mha`, `mqa`, `mla`, `hybrid`, `sliding`.
    pub attention: &'static str,
    /// All variants, best first.
    pub variants: Vec<VariantReport>,
    /// KV cache.
    pub kv: KvReport,
    /// Tensor-parallel sizes.
    pub splits: SplitsReport,
    /// Per accelerator at the asked split; empty where llama.cpp cannot make it.
    pub per_accelerator: Vec<PerAccelerator>,
    /// One row per accelerator request and variant.
    pub fits: Vec<Fit>,
}

/// One variant.
#[derive(Debug, Clone, Serialize)]
pub struct VariantReport {
    /// Its id.
    pub id: String,
    /// File names.
    pub files: Vec<String>,
    /// Bytes of all files.
    pub download_bytes: u64,
    /// Bytes of all tensors.
    pub weights_bytes: u64,
    /// Bits per parameter, two decimals.
    pub bits_per_weight: f64,
}

/// The KV cache of the unsplit model.
#[derive(Debug, Clone, Serialize)]
pub struct KvReport {
    /// Per token, every layer in full.
    pub bytes_per_token: u64,
    /// At the asked context and concurrency, windows and states counted as the engine keeps them.
    pub total_bytes: u64,
    /// Whether every rank holds all of it.
    pub replicated_over_tp: bool,
}

/// Legal sizes and the reasons against the others.
#[derive(Debug, Clone, Serialize)]
pub struct SplitsReport {
    /// Legal ones.
    pub tensor_parallel: Vec<u32>,
    /// One entry per broken rule.
    pub refused: Vec<RefusedSplit>,
}

/// Bytes of one accelerator.
#[derive(Debug, Clone, Serialize)]
pub struct PerAccelerator {
    /// Weights.
    pub weights_bytes: u64,
    /// KV cache.
    pub kv_bytes: u64,
    /// Everything else.
    pub overhead_bytes: u64,
    /// All of it.
    pub total_bytes: u64,
}

impl From<&Figures> for PerAccelerator {
    fn from(figures: &Figures) -> Self {
        Self {
            weights_bytes: figures.weights_bytes,
            kv_bytes: figures.kv_bytes,
            overhead_bytes: figures.overhead_bytes,
            total_bytes: figures.total(),
        }
    }
}

/// Whether a variant fits an accelerator request.
#[derive(Debug, Clone, Serialize)]
pub struct Fit {
    /// As written.
    pub accelerator: String,
    /// The variant.
    pub variant: String,
    /// The split it was judged at.
    pub tensor_parallel: u32,
    /// Whether every accelerator has room.
    pub fits: bool,
    /// What the fullest accelerator needs, times the number that the split uses.
    pub needed_bytes: u64,
    /// What those offer together with the default reserve.
    pub available_bytes: u64,
}

/// The engine that loads a variant.
fn engine_for(variant: &Variant, asked: Option<EngineKind>) -> EngineKind {
    asked.unwrap_or(match variant.format {
        WeightFormat::Gguf => EngineKind::LlamaCpp,
        WeightFormat::Safetensors => EngineKind::Vllm,
    })
}

/// A demand over `count` accelerators as a plan would have it: the layers split for llama.cpp, else tensor
/// parallel at the largest legal size, where the accelerators beyond it stay unused.
fn demand_over<'a>(variant: &Variant, base: &Demand<'a>, count: u32) -> Demand<'a> {
    let count = count.max(1);
    if base.engine == EngineKind::LlamaCpp {
        return Demand { tensor_parallel: 1, pipeline_parallel: count, ..*base };
    }
    let legal = legal_splits(variant, base.engine).tensor_parallel;
    let tp = legal.into_iter().filter(|tp| *tp <= count).max().unwrap_or(1);
    Demand { tensor_parallel: tp, pipeline_parallel: 1, ..*base }
}

/// Builds the report for the variants of a source.
///
/// # Errors
/// [`SizingError`] where the asked context or split is impossible for the chosen variant.
pub fn size_report(variants: &[Variant], request: &SizeRequest<'_>) -> Result<SizeAnswer, SizingError> {
    let chosen = request.variant.and_then(|id| variants.iter().find(|variant| variant.id == id));
    let Some(chosen) = chosen.or(variants.first()) else {
        return Err(SizingError::Split("there is no variant to size".to_owned()));
    };
    let engine = engine_for(chosen, request.engine);
    let demand = Demand {
        engine,
        context: effective_context(chosen, request.context)?,
        concurrency: request.concurrency.max(1),
        kv_dtype: request.kv_dtype,
        ..Demand::default()
    };
    let architecture = &chosen.architecture;
    let wanted = request.tensor_parallel.max(1);
    let splits = splits_asked(chosen, engine, wanted);
    let split = if engine == EngineKind::LlamaCpp {
        demand_over(chosen, &demand, wanted)
    } else {
        Demand { tensor_parallel: wanted, ..demand }
    };
    // A split by layers that leaves accelerators without any has no figures.
    let impossible = splits.reasons(wanted).any(|refused| refused.rule == SplitRule::Layers);
    let judged = footprint(chosen, if impossible { &demand } else { &split })?.per_accelerator;
    let per_accelerator = if impossible { Vec::new() } else { judged };
    let total_kv = whole_kv(chosen, &demand)?;
    let mut fits = Vec::new();
    let mut advice = Vec::new();
    for asked in request.accelerators {
        let before = fits.len();
        for variant in variants {
            fits.extend(fit(variant, request, &demand, asked));
        }
        if !fits[before..].iter().any(|fit: &Fit| fit.fits) {
            advice.extend(what_would_fit(variants, request, &demand, asked));
        }
    }
    if impossible {
        advice.push(format!("use at most {} accelerators, one for every layer", architecture.layers));
    } else if let Some(text) = splits.suggest(wanted).filter(|_| engine != EngineKind::LlamaCpp) {
        for refused in splits.reasons(wanted) {
            advice.push(format!("tensor parallel {wanted} is not possible: {}", refused.text));
        }
        advice.push(text);
    }
    let explain = explain(chosen, &demand, &per_accelerator);
    let report = SizeReport {
        format: 1,
        source: request.source.to_owned(),
        architecture: architecture.name.clone(),
        parameters: chosen.tensors.parameters,
        attention: attention_word(architecture),
        variants: variants.iter().map(variant_report).collect(),
        kv: KvReport {
            bytes_per_token: kv_bytes_per_token(chosen, request.kv_dtype),
            total_bytes: total_kv,
            replicated_over_tp: architecture.mla.is_some(),
        },
        splits: SplitsReport { tensor_parallel: splits.tensor_parallel, refused: splits.refused },
        per_accelerator: per_accelerator.iter().map(PerAccelerator::from).collect(),
        fits,
    };
    Ok(SizeAnswer { report, explain, advice })
}

/// KV of the unsplit model.
fn whole_kv(variant: &Variant, demand: &Demand<'_>) -> Result<u64, SizingError> {
    let architecture = &variant.architecture;
    let all = 0..architecture.layers as usize;
    match demand.engine {
        EngineKind::LlamaCpp => llama_cpp::kv_bytes(architecture, demand, all),
        EngineKind::Vllm | EngineKind::Sglang => vllm::kv_bytes(architecture, demand, all, VLLM_BATCHED_TOKENS),
    }
}

fn variant_report(variant: &Variant) -> VariantReport {
    let tensors = &variant.tensors;
    let bits = tensors.total_bytes as f64 * 8.0 / tensors.parameters.max(1) as f64;
    VariantReport {
        id: variant.id.clone(),
        files: variant.files.iter().map(|file| file.name.clone()).collect(),
        download_bytes: variant.download_bytes,
        weights_bytes: tensors.total_bytes,
        bits_per_weight: (bits * 100.0).round() / 100.0,
    }
}

/// One row; `None` where the engine or the context excludes the variant.
fn fit(variant: &Variant, request: &SizeRequest<'_>, base: &Demand<'_>, asked: &AcceleratorRequest) -> Option<Fit> {
    let engine = engine_for(variant, request.engine);
    let context = effective_context(variant, request.context).ok()?;
    let demand = demand_over(variant, &Demand { engine, context, ..*base }, asked.count);
    let needed = footprint(variant, &demand).ok()?.largest();
    let available = asked.memory_bytes.saturating_sub(default_reserve_vram(asked.memory_bytes).0);
    let count = u64::from(demand.tensor_parallel.saturating_mul(demand.pipeline_parallel));
    Some(Fit {
        accelerator: asked.text.clone(),
        variant: variant.id.clone(),
        tensor_parallel: demand.tensor_parallel,
        fits: needed <= usable_bytes(engine, available, asked.memory_bytes),
        needed_bytes: needed.saturating_mul(count),
        available_bytes: available.saturating_mul(count),
    })
}

/// The nearest changes that would fit: a shorter context, or more accelerators of the same size.
fn what_would_fit(
    variants: &[Variant],
    request: &SizeRequest<'_>,
    base: &Demand<'_>,
    asked: &AcceleratorRequest,
) -> Vec<String> {
    let mut advice = Vec::new();
    for variant in variants {
        let fits = |context: Option<u64>, count: u32| {
            let request = SizeRequest { context, ..request.clone() };
            let asked = AcceleratorRequest { count, ..asked.clone() };
            fit(variant, &request, base, &asked).is_some_and(|fit| fit.fits)
        };
        let shorter = [16_384, 8192, 4096, 2048].into_iter().filter(|context| *context < base.context);
        if let Some(context) = shorter.clone().find(|context| fits(Some(*context), asked.count)) {
            advice.push(format!("{} fits {} with a context of {context}", variant.id, asked.text));
            continue;
        }
        let sizes = [2u32, 4, 8].into_iter().filter(|count| *count > asked.count);
        let each = format_bytes(asked.memory_bytes);
        for count in sizes {
            if fits(request.context, count) {
                advice.push(format!("{} fits {count} x {each}", variant.id));
                break;
            }
            if let Some(context) = shorter.clone().find(|context| fits(Some(*context), count)) {
                advice.push(format!("{} fits {count} x {each} with a context of {context}", variant.id));
                break;
            }
        }
    }
    if advice.is_empty() {
        let smallest = variants.iter().map(|variant| variant.tensors.total_bytes).min().unwrap_or(0);
        advice.push(format!(
            "the weights alone are {}; a variant with fewer bits or accelerators with more memory are needed",
            format_bytes(smallest)
        ));
    }
    advice
}

/// Where the figures are from.
fn explain(variant: &Variant, demand: &Demand<'_>, per_accelerator: &[Figures]) -> Vec<String> {
    let tensors = &variant.tensors;
    let architecture = &variant.architecture;
    let basis = if tensors.exact { "the tensor headers" } else { "the index' total and the architecture's formula" };
    let layers: u64 = tensors.layer_bytes.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes));
    let mut lines = vec![
        format!("weights {} from {basis}", format_bytes(tensors.total_bytes)),
        format!(
            "  {} layers {}, embedding {}, output head {}, vision {}",
            tensors.layer_bytes.len(),
            format_bytes(layers),
            format_bytes(tensors.embedding_bytes),
            if architecture.tied { "tied".to_owned() } else { format_bytes(tensors.output_bytes) },
            format_bytes(tensors.vision_bytes)
        ),
    ];
    let dtype = demand.kv_dtype.map_or("16-bit", Dtype::word);
    lines.push(match &architecture.mla {
        Some(mla) => format!(
            "KV: {} layers x ({} latent + {} rotary) at {dtype}, held whole by every rank",
            architecture.layers, mla.kv_lora_rank, mla.qk_rope_head_dim
        ),
        None => format!(
            "KV: {} layers x {} KV heads x ({} + {}) at {dtype}",
            architecture.layers,
            architecture.kv_heads.max(),
            architecture.head_dim_k,
            architecture.head_dim_v
        ),
    });
    if let Some(sliding) = &architecture.sliding {
        let count = sliding.layers.iter().filter(|slides| **slides).count();
        lines.push(format!("  {count} layers keep a window of {} tokens", sliding.window));
    }
    if let Some(state) = &architecture.constant_state {
        let each = format_bytes(state.bytes_per_sequence);
        lines.push(format!("  {} layers keep {each} per sequence instead", state.layers));
    }
    lines.push(format!("demand: {} tokens x {} sequences in {}", demand.context, demand.concurrency, demand.engine));
    for (number, figures) in per_accelerator.iter().enumerate() {
        lines.push(format!(
            "accelerator {number}: weights {}, KV {}, overhead {} (headroom, from above), together {}",
            format_bytes(figures.weights_bytes),
            format_bytes(figures.kv_bytes),
            format_bytes(figures.overhead_bytes),
            format_bytes(figures.total())
        ));
    }
    lines.extend(variant.notes.iter().map(|note| format!("note: {note}")));
    lines
}
