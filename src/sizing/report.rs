//! The `flock size` report, in the shape of the contract's size JSON.

use serde::Serialize;

use super::advice::{Best, best, engine_for, fit, what_would_fit};
use super::demand::{Demand, Figures, SizingError, footprint};
use super::explain::explain;
use super::kv::{attention_word, kv_bytes_per_token};
use super::request::AcceleratorRequest;
use super::splits::{RefusedSplit, SplitRule, legal_splits, splits_asked};
use super::{effective_context, llama_cpp, vllm};
use crate::base::{Dtype, EngineKind};
use crate::engine::VLLM_BATCHED_TOKENS;
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
    /// `--pp`; 0 counts as 1. For llama.cpp it multiplies the accelerators that share the layers.
    pub pipeline_parallel: u32,
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
    /// Whether the asked split leaves an accelerator without layers, so that it has no figures.
    pub impossible: bool,
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
    /// Per accelerator at the asked split, stage by stage; empty where it cannot be made.
    pub per_accelerator: Vec<PerAccelerator>,
    /// One row per accelerator request and variant.
    pub fits: Vec<Fit>,
    /// The best variant for each accelerator request.
    pub best: Vec<Best>,
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
    /// Stages of whole layers, as `--pp` asks for them, each over so many ranks; 1 for llama.cpp.
    pub pipeline_parallel: u32,
    /// Whether every accelerator has room.
    pub fits: bool,
    /// What the fullest accelerator needs, times the number that the split uses.
    pub needed_bytes: u64,
    /// What those offer together with the default reserve.
    pub available_bytes: u64,
    /// Why not; `null` where it fits.
    pub reason: Option<String>,
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
    let stages = request.pipeline_parallel.max(1);
    let by_layers = engine == EngineKind::LlamaCpp;
    // llama.cpp has no ranks inside a stage: every accelerator is one.
    let wanted = request.tensor_parallel.max(1).saturating_mul(if by_layers { stages } else { 1 });
    let splits = splits_asked(chosen, engine, wanted);
    let split = if by_layers {
        demand_over(chosen, &demand, wanted)
    } else {
        Demand { tensor_parallel: wanted, pipeline_parallel: stages, ..demand }
    };
    // A split by layers that leaves accelerators without any has no figures.
    let impossible = splits.reasons(wanted).any(|refused| refused.rule == SplitRule::Layers)
        || (!by_layers && stages > architecture.layers);
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
    let explain = explain(chosen, &split, &per_accelerator);
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
        best: best(variants, request.accelerators, &fits),
        fits,
    };
    Ok(SizeAnswer { report, explain, advice, impossible })
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
