//! Which tensor-parallel sizes a model can be split into, and which rule refuses the others.
//!
//! Sources: `vllm/config/model.py` (heads), `vllm/model_executor/layers/linear.py` and
//! `vocab_parallel_embedding.py` (even shards, vocabulary padded to 64), the quantisation layers' shape checks
//! (`validate_fp8_block_shape`, group sizes of Marlin).

use std::ops::RangeInclusive;

use serde::Serialize;

use crate::base::EngineKind;
use crate::weights::{Architecture, PerLayer, Variant};

/// Largest size that is judged.
const LARGEST: u32 = 8;

/// A rule that a size can break.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SplitRule {
    /// Query heads are shared out evenly.
    Heads,
    /// KV heads are shared out evenly, or copied evenly where there are fewer.
    KvHeads,
    /// The MLP's width is shared out evenly.
    Mlp,
    /// An expert's width is shared out evenly.
    MoeWidth,
    /// The padded vocabulary is shared out evenly.
    Vocab,
    /// A shard's width is a multiple of the quantisation's group or block.
    QuantBlock,
    /// The vision tower's heads are shared out evenly.
    VisionHeads,
    /// llama.cpp: every accelerator holds a layer.
    Layers,
}

/// A size that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RefusedSplit {
    /// The tensor-parallel size.
    pub tp: u32,
    /// The rule.
    pub rule: SplitRule,
    /// The numbers, for people.
    pub text: String,
}

/// Sizes from 1 to 8, and a larger one that was asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Splits {
    /// Sizes that break no rule, ascending.
    pub tensor_parallel: Vec<u32>,
    /// Every rule that a size breaks, one entry each, by size and rule.
    pub refused: Vec<RefusedSplit>,
}

impl Splits {
    /// Whether a size is legal.
    pub fn allows(&self, tp: u32) -> bool {
        self.tensor_parallel.contains(&tp)
    }

    /// The reasons against a size.
    pub fn reasons(&self, tp: u32) -> impl Iterator<Item = &RefusedSplit> {
        self.refused.iter().filter(move |refused| refused.tp == tp)
    }

    /// What to do instead with `wanted` equal accelerators; `None` where that size is legal.
    pub fn suggest(&self, wanted: u32) -> Option<String> {
        if wanted == 0 || self.allows(wanted) {
            return None;
        }
        let nearest = self.tensor_parallel.iter().copied().filter(|tp| *tp < wanted).max()?;
        let divisor =
            self.tensor_parallel.iter().copied().filter(|tp| *tp < wanted && wanted.is_multiple_of(*tp)).max();
        let mut text = format!("use tensor parallel {nearest}");
        if let Some(divisor) = divisor {
            let times = wanted / divisor;
            text.push_str(&format!(", or {divisor} with {times} replicas"));
        }
        Some(text)
    }
}

/// The legal tensor-parallel sizes of a variant. llama.cpp splits by layers and has none but 1.
pub fn legal_splits(variant: &Variant, engine: EngineKind) -> Splits {
    if engine == EngineKind::LlamaCpp {
        return Splits { tensor_parallel: vec![1], refused: Vec::new() };
    }
    judged(variant, engine, 1..=LARGEST)
}

/// [`legal_splits`], and the asked size where it is larger. For llama.cpp the asked size is a number of
/// accelerators, refused where there are more of them than layers.
pub(super) fn splits_asked(variant: &Variant, engine: EngineKind, asked: u32) -> Splits {
    let mut splits = legal_splits(variant, engine);
    let layers = variant.architecture.layers;
    if engine != EngineKind::LlamaCpp && asked > LARGEST {
        let mut further = judged(variant, engine, asked..=asked);
        splits.tensor_parallel.append(&mut further.tensor_parallel);
        splits.refused.append(&mut further.refused);
    } else if engine == EngineKind::LlamaCpp && asked > layers.max(1) {
        let text = format!("{layers} layers cannot be split over {asked} accelerators");
        splits.refused.push(RefusedSplit { tp: asked, rule: SplitRule::Layers, text });
    }
    splits
}

fn judged(variant: &Variant, engine: EngineKind, sizes: RangeInclusive<u32>) -> Splits {
    let mut splits = Splits::default();
    for tp in sizes {
        let before = splits.refused.len();
        for (rule, text) in broken(variant, engine, tp) {
            splits.refused.push(RefusedSplit { tp, rule, text });
        }
        if splits.refused.len() == before {
            splits.tensor_parallel.push(tp);
        }
    }
    splits
}

/// The distinct values of a per-layer number, 0 left out.
fn distinct(values: &PerLayer) -> Vec<u32> {
    let mut distinct = match values {
        PerLayer::All(value) => vec![*value],
        PerLayer::Each(values) => values.clone(),
    };
    distinct.retain(|value| *value > 0);
    distinct.sort_unstable();
    distinct.dedup();
    distinct
}

fn broken(variant: &Variant, engine: EngineKind, tp: u32) -> Vec<(SplitRule, String)> {
    let architecture = &variant.architecture;
    let mut found = Vec::new();
    let mut divides = |rule: SplitRule, what: &str, value: u64| {
        if !value.is_multiple_of(u64::from(tp)) {
            found.push((rule, format!("{what} {value} is no multiple of {tp}")));
        }
    };
    if let Some(heads) = distinct(&architecture.heads).into_iter().find(|heads| !heads.is_multiple_of(tp)) {
        divides(SplitRule::Heads, "the number of heads", heads.into());
    }
    if let Some(width) = architecture.intermediate {
        divides(SplitRule::Mlp, "the MLP width", width.into());
    }
    if let Some(width) = architecture.moe_intermediate {
        divides(SplitRule::MoeWidth, "the expert width", width.into());
    }
    divides(SplitRule::Vocab, "the padded vocabulary", u64::from(architecture.vocab).next_multiple_of(64));
    if engine == EngineKind::Vllm
        && let Some(heads) = architecture.vision_heads
    {
        divides(SplitRule::VisionHeads, "the vision tower's number of heads", heads.into());
    }
    // The latent of MLA is held whole, so only its query heads are shared out.
    if architecture.mla.is_none() {
        let bad = distinct(&architecture.kv_heads)
            .into_iter()
            .find(|heads| !heads.is_multiple_of(tp) && !tp.is_multiple_of(*heads));
        if let Some(heads) = bad {
            let text = format!("{heads} KV heads can neither be shared out to {tp} ranks nor copied evenly");
            found.push((SplitRule::KvHeads, text));
        }
    }
    if let Some(text) = broken_block(variant, tp) {
        found.push((SplitRule::QuantBlock, text));
    }
    found.sort_by_key(|(rule, _)| *rule);
    found
}

/// The first sharded width that is no multiple of the group or block. For sizes above 1 only.
fn broken_block(variant: &Variant, tp: u32) -> Option<String> {
    let quantisation = variant.quantisation.as_ref()?;
    let block = quantisation.block.filter(|block| *block > 1)?;
    // Engines pad MXFP4 experts; bitsandbytes and GGUF have no such rule.
    if tp == 1 || matches!(quantisation.method.as_str(), "mxfp4" | "bitsandbytes" | "gguf") {
        return None;
    }
    widths(&variant.architecture, quantisation.bits == Some(8)).into_iter().find_map(|(what, width)| {
        let share = width / tp;
        (width.is_multiple_of(tp) && !share.is_multiple_of(block)).then(|| {
            let compared = if share < block { format!("{share} < {block}") } else { format!("{share} % {block} is {}", share % block) };
            format!("{what} {width} over {tp} ranks is {share} per rank, no multiple of the quantisation block {block} ({compared})")
        })
    })
}

/// Widths that are cut: inputs of the row-parallel layers, and for 8-bit blocks, which cover outputs too, the
/// keys and values.
fn widths(architecture: &Architecture, blocks_cover_outputs: bool) -> Vec<(&'static str, u32)> {
    let mut widths = Vec::new();
    if let Some(width) = architecture.moe_intermediate {
        widths.push(("the expert width", width));
    }
    if let Some(width) = architecture.intermediate {
        widths.push(("the MLP width", width));
    }
    let value = if architecture.mla.is_some() || architecture.head_dim_v > 0 {
        architecture.head_dim_v
    } else {
        architecture.head_dim_k
    };
    for heads in distinct(&architecture.heads) {
        widths.push(("the attention width", heads.saturating_mul(value)));
    }
    if blocks_cover_outputs && architecture.mla.is_none() {
        for heads in distinct(&architecture.kv_heads) {
            widths.push(("the key width", heads.saturating_mul(architecture.head_dim_k)));
        }
    }
    widths
}
