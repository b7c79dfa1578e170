//! What is asked of a variant, and the bytes that takes.

use super::{llama_cpp, vllm};
use crate::base::{Dtype, EngineKind};
use crate::weights::Variant;

/// Context where neither the config nor the model says less.
pub const DEFAULT_CONTEXT: u64 = 32_768;

/// How a variant is to be run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Demand<'a> {
    /// The engine.
    pub engine: EngineKind,
    /// Its version; `None` counts as a present one.
    pub version: Option<&'a str>,
    /// Tokens per sequence.
    pub context: u64,
    /// Sequences at once.
    pub concurrency: u32,
    /// KV cache type; `None` is 16-bit.
    pub kv_dtype: Option<Dtype>,
    /// Ranks that share every layer. llama.cpp: must be 1.
    pub tensor_parallel: u32,
    /// Stages that hold some layers each. llama.cpp: the number of accelerators (layer split).
    pub pipeline_parallel: u32,
    /// Whether everything runs on the CPU.
    pub cpu: bool,
}

impl Default for Demand<'_> {
    fn default() -> Self {
        Self {
            engine: EngineKind::Vllm,
            version: None,
            context: DEFAULT_CONTEXT,
            concurrency: 1,
            kv_dtype: None,
            tensor_parallel: 1,
            pipeline_parallel: 1,
            cpu: false,
        }
    }
}

/// Bytes of one accelerator or of the host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Figures {
    /// Weights.
    pub weights_bytes: u64,
    /// KV cache and constant states.
    pub kv_bytes: u64,
    /// Context, graphs, buffers, activations: stated headroom, from above.
    pub overhead_bytes: u64,
}

impl Figures {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights_bytes.saturating_add(self.kv_bytes).saturating_add(self.overhead_bytes)
    }
}

/// Bytes per accelerator, in rank order (stage by stage), and on the host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Footprint {
    /// One entry per accelerator; empty on CPU.
    pub per_accelerator: Vec<Figures>,
    /// Host memory.
    pub host: Figures,
}

impl Footprint {
    /// The most that any one accelerator needs.
    pub fn largest(&self) -> u64 {
        self.per_accelerator.iter().map(Figures::total).max().unwrap_or(0)
    }
}

/// Why a demand has no footprint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizingError {
    /// The engine cannot load this format.
    #[error("{engine} does not load {format} weights")]
    Format {
        /// The engine.
        engine: EngineKind,
        /// The format's word.
        format: &'static str,
    },
    /// More context than the model was trained for.
    #[error("a context of {requested} tokens is more than the trained {trained}")]
    Context {
        /// Asked for.
        requested: u64,
        /// Trained.
        trained: u64,
    },
    /// A context or concurrency of 0.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// The engine has no such KV type.
    #[error("{engine} has no KV cache of type {dtype}")]
    KvDtype {
        /// The engine.
        engine: EngineKind,
        /// The type.
        dtype: Dtype,
    },
    /// A split the engine cannot make.
    #[error("{0}")]
    Split(String),
    /// Numbers beyond any machine.
    #[error("the demand is larger than any memory")]
    TooLarge,
}

/// The context to serve: the request, or the smaller of the trained length and [`DEFAULT_CONTEXT`]. A model
/// that does not state its trained length takes any request.
///
/// # Errors
/// [`SizingError::Context`] for more than the trained length, [`SizingError::Zero`] for 0.
pub fn effective_context(variant: &Variant, requested: Option<u64>) -> Result<u64, SizingError> {
    let trained = variant.architecture.trained_context;
    match (requested, trained) {
        (Some(0), _) => Err(SizingError::Zero("context")),
        (Some(requested), Some(trained)) if requested > trained => Err(SizingError::Context { requested, trained }),
        (Some(requested), _) => Ok(requested),
        (None, trained) => Ok(trained.map_or(DEFAULT_CONTEXT, |trained| trained.min(DEFAULT_CONTEXT))),
    }
}

/// Bytes that a demand takes, bounded from above.
///
/// # Errors
/// [`SizingError`] where the engine cannot run the demand at all. A split that breaks a rule of
/// [`legal_splits`](super::legal_splits) still has a footprint; whoever plans asks for the rules.
pub fn footprint(variant: &Variant, demand: &Demand<'_>) -> Result<Footprint, SizingError> {
    super::gate::engine_format(demand.engine, variant)?;
    if demand.context == 0 {
        return Err(SizingError::Zero("context"));
    }
    if demand.concurrency == 0 {
        return Err(SizingError::Zero("concurrency"));
    }
    if demand.tensor_parallel == 0 || demand.pipeline_parallel == 0 {
        return Err(SizingError::Zero("a split"));
    }
    if demand.tensor_parallel > 1024 || demand.pipeline_parallel > 1024 {
        return Err(SizingError::Split("a split over more than 1024 accelerators".to_owned()));
    }
    let found = match demand.engine {
        EngineKind::LlamaCpp => llama_cpp::footprint(variant, demand, None)?,
        EngineKind::Vllm | EngineKind::Sglang => vllm::footprint(variant, demand)?,
    };
    let largest = found.per_accelerator.iter().chain([&found.host]).map(Figures::total).max().unwrap_or(0);
    if largest > 1 << 60 { Err(SizingError::TooLarge) } else { Ok(found) }
}
