//! Which variant is the best that fits an accelerator, what keeps the next better one from it, and what would fit.

use std::collections::BTreeMap;

use serde::Serialize;

use super::accelerators::AcceleratorSpec;
use super::capacity::default_reserve_vram;
use super::demand::{Demand, Figures, footprint};
use super::gate::admits;
use super::report::{Fit, SizeRequest};
use super::request::AcceleratorRequest;
use super::splits::legal_splits;
use super::{effective_context, offloaded_footprint};
use crate::base::{EngineKind, GIB, WeightFormat, format_bytes};
use crate::engine::usable_bytes;
use crate::inventory::Accelerator;
use crate::weights::Variant;

/// Contexts that are proposed in place of a longer one, as powers of two: 2048 tokens to 16 Mi.
const LADDER: std::ops::RangeInclusive<u32> = 11..=24;

/// Fewer bits per weight than this are no use.
pub const LEAST_BITS: f64 = 2.0;

/// The best variant for an accelerator request.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Best {
    /// The request as written.
    pub accelerator: String,
    /// The best variant that fits; `null` where none does.
    pub variant: Option<String>,
    /// The next better one, which does not; `null` where there is none.
    pub better: Option<String>,
    /// What keeps that from it: `needs 131.4 GiB for its weights, 1 x 73.6 usable`.
    pub reason: Option<String>,
}

/// What is missing, in a clause: `needs 131.4 GiB for its weights, 1 x 73.6 usable`. `needed` and `available` are of
/// each of so many accelerators, the fullest.
pub fn shortage(ranks: u32, fullest: &Figures, needed: u64, available: u64) -> String {
    let ranks = ranks.max(1);
    let usable = format!("{} usable", times_gib(ranks, available));
    if fullest.weights_bytes > available {
        let weights = fullest.weights_bytes.saturating_mul(u64::from(ranks));
        return format!("needs {} for its weights, {usable}", format_bytes(weights));
    }
    let parts = [("weights", fullest.weights_bytes), ("KV", fullest.kv_bytes), ("other", fullest.overhead_bytes)];
    let parts: Vec<String> = parts.iter().map(|(word, bytes)| format!("{word} {}", format_bytes(*bytes))).collect();
    format!("needs {} ({}), {usable}", times(ranks, needed), parts.join(", "))
}

/// `bf16 needs …`, `fp8: …`, or the reason alone where it names the variant itself.
pub fn said(variant: &str, reason: &str) -> String {
    if reason.starts_with("needs ") || reason.starts_with("fits") {
        format!("{variant} {reason}")
    } else if reason.starts_with(variant) {
        reason.to_owned()
    } else {
        format!("{variant}: {reason}")
    }
}

/// `27.3 GiB`, or `2 x 27.3 GiB`.
pub fn times(ranks: u32, bytes: u64) -> String {
    if ranks <= 1 { format_bytes(bytes) } else { format!("{ranks} x {}", format_bytes(bytes)) }
}

/// `1 x 73.6` in GiB, with the unit where that is another one.
pub fn times_gib(ranks: u32, bytes: u64) -> String {
    let ranks = ranks.max(1);
    if bytes < GIB {
        return format!("{ranks} x {}", format_bytes(bytes));
    }
    format!("{ranks} x {:.1}", bytes as f64 / GIB as f64)
}

/// How many bytes of weights there is room for beside the rest, over so many accelerators of which each can give
/// `usable`, and how many bits per weight those are.
pub fn room_for_weights(variant: &Variant, fullest: &Figures, ranks: u32, usable: u64) -> (u64, f64) {
    let rest = fullest.kv_bytes.saturating_add(fullest.overhead_bytes);
    let room = usable.saturating_sub(rest).saturating_mul(u64::from(ranks.max(1)));
    (room, room as f64 * 8.0 / variant.tensors.parameters.max(1) as f64)
}

/// The engine that loads a variant.
pub(super) fn engine_for(variant: &Variant, asked: Option<EngineKind>) -> EngineKind {
    asked.unwrap_or(match variant.format {
        WeightFormat::Gguf => EngineKind::LlamaCpp,
        WeightFormat::Safetensors => EngineKind::Vllm,
    })
}

/// A published row as a device of which only the kind matters.
fn device(specification: &AcceleratorSpec) -> Accelerator {
    let amd = specification.compute_capability.starts_with("gfx");
    Accelerator {
        name: specification.name.clone(),
        vendor: if amd { "amd" } else { "nvidia" }.to_owned(),
        compute_capability: Some(specification.compute_capability.clone()).filter(|text| !text.is_empty()),
        ..Accelerator::default()
    }
}

/// One row: a variant on what is asked for, at the best split, which is the largest legal one that fits; `None` where
/// the engine or the context excludes the variant.
pub(super) fn fit(
    variant: &Variant,
    request: &SizeRequest<'_>,
    base: &Demand<'_>,
    asked: &AcceleratorRequest,
) -> Option<Fit> {
    let engine = engine_for(variant, request.engine);
    let context = effective_context(variant, request.context).ok()?;
    let demand = Demand { engine, context, ..*base };
    let lacking = asked.specification.and_then(|row| admits(engine, None, variant, &device(row)).err());
    let available = asked.memory_bytes.saturating_sub(default_reserve_vram(asked.memory_bytes).0);
    let usable = usable_bytes(engine, available, asked.memory_bytes);
    let stages = stages(request, engine, asked.count);
    let mut judged: Vec<(u32, Figures)> = Vec::new();
    for (ranks, split) in splits(variant, &demand, asked.count, stages) {
        let Ok(sized) = footprint(variant, &split) else { continue };
        let fullest = sized.per_accelerator.iter().copied().max_by_key(Figures::total)?;
        judged.push((ranks, fullest));
    }
    let fits = |(_, fullest): &&(u32, Figures)| fullest.total() <= usable;
    let short = |(_, fullest): &&(u32, Figures)| fullest.total().saturating_sub(usable);
    let (ranks, fullest) = judged.iter().find(fits).or_else(|| judged.iter().min_by_key(short)).copied()?;
    let needed = fullest.total();
    let reason = match lacking {
        Some(lacking) => Some(lacking.text),
        None => (needed > usable).then(|| {
            let short = shortage(ranks, &fullest, needed, usable);
            // Why not over all of them.
            let refused =
                legal_splits(variant, engine).refused.into_iter().find(|refused| refused.tp * stages == asked.count);
            refused.map_or(short.clone(), |refused| format!("{short}; not over {}: {}", asked.count, refused.text))
        }),
    };
    Some(Fit {
        accelerator: asked.text.clone(),
        variant: variant.id.clone(),
        tensor_parallel: if engine == EngineKind::LlamaCpp { 1 } else { ranks / stages },
        pipeline_parallel: stages,
        fits: reason.is_none(),
        needed_bytes: needed.saturating_mul(u64::from(ranks)),
        available_bytes: available.saturating_mul(u64::from(ranks)),
        reason,
    })
}

/// Ways to use so many accelerators, the most first: the layers split for llama.cpp, else tensor parallel at legal
/// sizes in each of the asked stages, where the accelerators beyond stay unused.
fn splits<'a>(variant: &Variant, demand: &Demand<'a>, count: u32, stages: u32) -> Vec<(u32, Demand<'a>)> {
    let count = count.max(1);
    if demand.engine == EngineKind::LlamaCpp {
        return vec![(count, Demand { tensor_parallel: 1, pipeline_parallel: count, ..*demand })];
    }
    let legal = legal_splits(variant, demand.engine).tensor_parallel;
    let mut sizes: Vec<u32> = legal.into_iter().filter(|tp| *tp <= count / stages).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let split = |tp| (tp * stages, Demand { tensor_parallel: tp, pipeline_parallel: stages, ..*demand });
    sizes.into_iter().map(split).collect()
}

/// The pipeline stages that `--pp` asks for, as far as there are accelerators for them. llama.cpp has no ranks in them.
fn stages(request: &SizeRequest<'_>, engine: EngineKind, count: u32) -> u32 {
    if engine == EngineKind::LlamaCpp { 1 } else { request.pipeline_parallel.clamp(1, count.max(1)) }
}

/// The best variant for every request, in the order of the requests.
pub(super) fn best(variants: &[Variant], requests: &[AcceleratorRequest], fits: &[Fit]) -> Vec<Best> {
    let mut found = Vec::new();
    for asked in requests {
        let row = |variant: &&Variant| fits.iter().find(|f| f.accelerator == asked.text && f.variant == variant.id);
        // What the engine does not load, or was not trained for so much context, has no row.
        let mut order: Vec<&Variant> = variants.iter().filter(|variant| row(variant).is_some()).collect();
        order.sort_by_key(|variant| variant.quality.rank());
        let fitting = order.iter().position(|variant| row(variant).is_some_and(|fit| fit.fits));
        // Without one that fits, the one that is nearest to it speaks for all.
        let passed = match fitting {
            Some(position) => order[..position].last(),
            None => order.last(),
        };
        found.push(Best {
            accelerator: asked.text.clone(),
            variant: fitting.map(|position| order[position].id.clone()),
            better: passed.map(|variant| variant.id.clone()),
            reason: passed.and_then(row).and_then(|fit| fit.reason.clone()),
        });
    }
    found
}

/// The nearest changes that would fit, in one sentence: a shorter context, more accelerators of the same size, fewer
/// bits.
pub(super) fn what_would_fit(
    variants: &[Variant],
    request: &SizeRequest<'_>,
    base: &Demand<'_>,
    asked: &AcceleratorRequest,
) -> Vec<String> {
    let mut order: Vec<&Variant> = variants.iter().collect();
    order.sort_by_key(|variant| variant.quality.rank());
    // Of what needs the same hardware and context, the best variant is named.
    let mut ways: BTreeMap<(u32, u64), String> = BTreeMap::new();
    let each = format_bytes(asked.memory_bytes);
    for variant in order {
        let fits = |context: Option<u64>, count: u32| {
            let request = SizeRequest { context, ..request.clone() };
            let asked = AcceleratorRequest { count, ..asked.clone() };
            fit(variant, &request, base, &asked).is_some_and(|fit| fit.fits)
        };
        let shorter = || LADDER.rev().map(|power| 1_u64 << power).filter(|context| *context < base.context);
        if let Some(context) = shorter().find(|context| fits(Some(*context), asked.count)) {
            ways.entry((asked.count, context))
                .or_insert_with(|| format!("{} fits {} with a context of {context}", variant.id, asked.text));
            continue;
        }
        let sizes = [2u32, 4, 8].into_iter().filter(|count| *count > asked.count);
        for count in sizes {
            if fits(request.context, count) {
                ways.entry((count, u64::MAX)).or_insert_with(|| format!("{} fits {count} x {each}", variant.id));
                break;
            }
            if let Some(context) = shorter().find(|context| fits(Some(*context), count)) {
                ways.entry((count, context))
                    .or_insert_with(|| format!("{} fits {count} x {each} with a context of {context}", variant.id));
                break;
            }
        }
    }
    let mut advice: Vec<String> = ways.into_values().collect();
    let halves = variants.iter().filter_map(|variant| offload(variant, request, base, asked));
    advice.extend(halves.max_by_key(|(held, _)| *held).map(|(_, text)| text));
    advice.extend(fewer_bits(variants, request, base, asked));
    if advice.is_empty() {
        advice.push(what_is_too_much(variants, request, base, asked));
    }
    vec![format!("{} is too little: {}", asked.text, advice.join("; or "))]
}

/// What takes the memory, where no change that is tried would fit.
fn what_is_too_much(
    variants: &[Variant],
    request: &SizeRequest<'_>,
    base: &Demand<'_>,
    asked: &AcceleratorRequest,
) -> String {
    let smallest = variants.iter().min_by_key(|variant| variant.tensors.total_bytes);
    let weights = smallest.map_or(0, |variant| variant.tensors.total_bytes);
    let whole = asked.memory_bytes.saturating_mul(u64::from(asked.count.max(1)));
    let rest = smallest.filter(|_| weights < whole).and_then(|variant| {
        let engine = engine_for(variant, request.engine);
        let context = effective_context(variant, request.context).ok()?;
        let sized = footprint(variant, &Demand { engine, context, ..*base }).ok()?;
        let fullest = sized.per_accelerator.iter().max_by_key(|figures| figures.total())?;
        Some(format!(
            "KV at a context of {context} is {} and the engine's own buffers up to {}",
            format_bytes(fullest.kv_bytes),
            format_bytes(fullest.overhead_bytes)
        ))
    });
    match rest {
        Some(rest) => {
            format!("the weights are {}, {rest}; accelerators with more memory are needed", format_bytes(weights))
        }
        None => format!(
            "the weights alone are {}; a variant with fewer bits or accelerators with more memory are needed",
            format_bytes(weights)
        ),
    }
}

/// How many layers one accelerator holds where llama.cpp keeps the others in host memory.
fn offload(
    variant: &Variant,
    request: &SizeRequest<'_>,
    base: &Demand<'_>,
    asked: &AcceleratorRequest,
) -> Option<(u32, String)> {
    let engine = engine_for(variant, request.engine);
    if engine != EngineKind::LlamaCpp || asked.count > 1 {
        return None;
    }
    let demand = Demand { engine, context: effective_context(variant, request.context).ok()?, ..*base };
    let available = asked.memory_bytes.saturating_sub(default_reserve_vram(asked.memory_bytes).0);
    let layers = variant.architecture.layers;
    let (held, found) = (1..layers).rev().find_map(|held| {
        let found = offloaded_footprint(variant, &demand, held).ok()?;
        (found.largest() <= available).then_some((held, found))
    })?;
    let text = format!(
        "{} fits {} with {held} of {layers} layers on it and {} in host memory, at the host's speed",
        variant.id,
        asked.text,
        format_bytes(found.host.total())
    );
    Some((held, text))
}

/// How few bits would do on what is asked for, at the asked context, where none of the variants has so few.
fn fewer_bits(
    variants: &[Variant],
    request: &SizeRequest<'_>,
    base: &Demand<'_>,
    asked: &AcceleratorRequest,
) -> Option<String> {
    let available = asked.memory_bytes.saturating_sub(default_reserve_vram(asked.memory_bytes).0);
    let smallest = variants.iter().min_by_key(|variant| variant.tensors.total_bytes)?;
    let engine = engine_for(smallest, request.engine);
    let context = effective_context(smallest, request.context).ok()?;
    let usable = usable_bytes(engine, available, asked.memory_bytes);
    let demand = Demand { engine, context, ..*base };
    let stages = stages(request, engine, asked.count);
    let (ranks, split) = splits(smallest, &demand, asked.count, stages).into_iter().next()?;
    let sized = footprint(smallest, &split).ok()?;
    let fullest = sized.per_accelerator.iter().max_by_key(|figures| figures.total())?;
    let (room, bits) = room_for_weights(smallest, fullest, ranks, usable);
    (bits >= LEAST_BITS && room < smallest.tensors.total_bytes)
        .then(|| format!("a variant of at most {} ({bits:.1} bits per weight) would fit", format_bytes(room)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_is_of_the_weights_where_they_alone_are_too_large() {
        let figures = |weights, kv| Figures { weights_bytes: weights * GIB, kv_bytes: kv * GIB, overhead_bytes: GIB };
        assert_eq!(
            shortage(1, &figures(131, 2), 134 * GIB, 73 * GIB + GIB / 2),
            "needs 131.0 GiB for its weights, 1 x 73.5 usable"
        );
        assert_eq!(
            shortage(2, &figures(66, 2), 69 * GIB, 22 * GIB),
            "needs 132.0 GiB for its weights, 2 x 22.0 usable"
        );
        assert_eq!(
            shortage(2, &figures(20, 4), 25 * GIB, 22 * GIB),
            "needs 2 x 25.0 GiB (weights 20.0 GiB, KV 4.0 GiB, other 1.0 GiB), 2 x 22.0 usable"
        );
        assert_eq!(times_gib(1, 512 << 20), "1 x 512.0 MiB");
    }

    #[test]
    fn a_reason_is_joined_to_the_variant_it_is_about() {
        assert_eq!(said("bf16", "needs 3.0 GiB"), "bf16 needs 3.0 GiB");
        assert_eq!(said("fp8", "fp8 needs compute capability 8.9"), "fp8 needs compute capability 8.9");
        assert_eq!(said("q", "no engine here runs GGUF"), "q: no engine here runs GGUF");
    }
}
