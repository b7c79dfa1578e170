//! Every row of `benches/data/memory_measured.csv`: what flock predicts, what was measured, and why not where not.

use std::collections::BTreeMap;

use flock::base::{Dtype, EngineKind, GIB, MIB};
use flock::sizing::{Demand, LlamaSetup, footprint, llama_buffers, llama_overhead, vllm_overhead};
use flock::weights::{Inspect, Listing, Ranges, Variant, inspect};

use super::recipes::{RECIPES, Recipe};
use crate::headers::{self, HeaderFile};

const TABLE: &str = include_str!("../data/memory_measured.csv");

/// A figure of a row, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Pair {
    pub predicted: u64,
    pub measured: u64,
}

impl Pair {
    /// Relative error, in percent; above 0 where more is predicted.
    pub fn error(self) -> f64 {
        (self.predicted as f64 / self.measured.max(1) as f64 - 1.0) * 100.0
    }
}

/// One row.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    pub id: String,
    pub engine: String,
    pub model: String,
    pub weights: Option<Pair>,
    pub kv: Option<Pair>,
    pub compute: Option<Pair>,
    /// All that was measured, against all that would be planned for it.
    pub total: Option<Pair>,
    /// The same against 1.2 x weights + 2 GiB.
    pub rule: Option<Pair>,
    /// Whether something beside weights and KV was measured, too.
    pub whole: bool,
    /// Measured figures that are not predicted, and why.
    pub reasons: Vec<(&'static str, &'static str)>,
}

/// Reads headers as flock reads a hub.
pub fn read(files: &[HeaderFile]) -> Variant {
    let listing = Listing::new(files.iter().map(|file| (file.name.as_str(), file.size))).expect("plain names");
    let mut ranges = Ranges::new();
    for _ in 0..2000 {
        match inspect(&listing, &ranges).expect("usable weights") {
            Inspect::Done(mut variants) => return variants.remove(0),
            Inspect::Need { file, offset, length } => {
                let own = files.iter().find(|own| own.name == file).expect("listed");
                let start = (offset as usize).min(own.head.len());
                let end = (start + length as usize).min(own.head.len());
                ranges.insert(&file, offset, &own.head[start..end]);
            }
        }
    }
    panic!("asks without end");
}

fn engine_of(name: &str) -> EngineKind {
    match name {
        "llama.cpp" | "ollama" => EngineKind::LlamaCpp,
        "sglang" => EngineKind::Sglang,
        // Forks and others with vLLM's layout.
        _ => EngineKind::Vllm,
    }
}

fn variant_of(recipe: &Recipe, engine: EngineKind) -> Variant {
    let row = headers::row(recipe.model).expect("every recipe names a row");
    let mut files = match engine {
        EngineKind::LlamaCpp => headers::gguf(&row, recipe.quantisation, "m", 1),
        _ => headers::safetensors(&row, recipe.quantisation, 1),
    }
    .expect("every recipe has a known class");
    if recipe.projector {
        files.extend(headers::projector(&row, "mmproj-f16.gguf"));
    }
    read(&files)
}

/// All rows, in the table's order.
pub fn outcomes() -> Vec<Outcome> {
    headers::table(TABLE).iter().map(outcome).collect()
}

fn mib(row: &BTreeMap<String, String>, column: &str) -> Option<u64> {
    let value: f64 = row.get(column)?.parse().ok()?;
    Some((value * MIB as f64) as u64)
}

fn outcome(row: &BTreeMap<String, String>) -> Outcome {
    let text = |column: &str| row.get(column).map_or("", String::as_str);
    let number = |column: &str| text(column).parse::<u64>().ok();
    let mut found = Outcome {
        id: text("id").to_owned(),
        engine: text("engine").to_owned(),
        model: text("model").to_owned(),
        ..Outcome::default()
    };
    let Some(recipe) = RECIPES.iter().find(|recipe| recipe.id == found.id) else {
        found.reasons.push(("all", "no recipe"));
        return found;
    };
    found.reasons = recipe.not.to_vec();
    let skip = |what: &str| recipe.not.iter().any(|(own, _)| *own == what || *own == "all");
    if skip("all") {
        return found;
    }
    let engine = engine_of(&found.engine);
    let variant = variant_of(recipe, engine);
    let tp = number("tp").unwrap_or(1) as u32;
    let kv_dtype = match text("kv_dtype") {
        "q8_0" => Some(Dtype::Q8_0),
        fp8 if fp8.starts_with("fp8") => Some(Dtype::Fp8),
        _ => None,
    };
    let sequences = number("n_seq").unwrap_or(1);
    let context = number("ctx").unwrap_or(4096);
    let base = Demand {
        engine,
        version: Some(recipe.version),
        kv_dtype,
        tensor_parallel: tp,
        cpu: text("gpu").starts_with("CPU") && engine == EngineKind::LlamaCpp,
        ..Demand::default()
    };
    let measured_weights = mib(row, "weights_mib_per_gpu");
    let measured_kv = mib(row, "kv_mib_per_gpu");
    let pair = |predicted: u64, measured: Option<u64>| measured.map(|measured| Pair { predicted, measured });
    let (weights, kv, overhead);
    let mut measured_overhead: u64 =
        ["activation_mib", "non_torch_mib", "cuda_graph_mib"].into_iter().filter_map(|column| mib(row, column)).sum();
    if engine == EngineKind::LlamaCpp {
        let demand = Demand { context: context / sequences, concurrency: sequences as u32, ..base };
        let setup = LlamaSetup {
            ubatch: number("n_ubatch").filter(|_| recipe.unified).unwrap_or(256),
            flash_attention: text("flash_attn") != "0",
            unified: recipe.unified,
            ..LlamaSetup::default()
        };
        let planned = footprint(&variant, &demand).expect("a legal demand");
        let on_devices: u64 = planned.per_accelerator.iter().map(|figures| figures.weights_bytes).sum();
        weights = if demand.cpu { variant.tensors.total_bytes } else { on_devices + planned.host.weights_bytes }
            + variant.tensors.projector_bytes;
        let buffers = llama_buffers(&variant, &demand, &setup).expect("a known type");
        kv = buffers.kv_bytes;
        let compute = mib(row, "compute_buffer_mib");
        let several = skip("compute of four devices");
        found.compute = pair(buffers.compute_bytes, compute).filter(|_| !skip("compute") && !several);
        measured_overhead = compute.filter(|_| !several).unwrap_or(0);
        overhead = llama_overhead(&variant, &demand, &setup);
    } else {
        let hybrid = variant.architecture.constant_state.is_some();
        let tokens = number("kv_tokens").unwrap_or(context);
        // A hybrid's capacity is so many sequences of a context.
        let demand = Demand { context: if hybrid { context } else { tokens }, ..base };
        let planned = footprint(&variant, &demand).expect("a legal demand").per_accelerator[0];
        weights = planned.weights_bytes;
        kv = if hybrid {
            u64::try_from(u128::from(planned.kv_bytes) * u128::from(tokens) / u128::from(context)).unwrap_or(u64::MAX)
        } else {
            planned.kv_bytes
        };
        overhead = vllm_overhead(&variant, &Demand { concurrency: recipe.sequences, ..base }, recipe.batched);
    }
    found.weights = pair(weights, measured_weights).filter(|_| !skip("weights"));
    found.kv = pair(kv, measured_kv).filter(|_| !skip("kv"));
    // Of a row that lacks a figure, or whose figure is not predicted, the others still add up.
    let of = |pair: Option<Pair>| pair.map_or((0, 0), |pair| (pair.predicted, pair.measured));
    let (own_weights, own_kv) = (of(found.weights), of(found.kv));
    if found.weights.is_some() || found.kv.is_some() || found.compute.is_some() {
        let measured = own_weights.1 + own_kv.1 + measured_overhead;
        found.whole = measured_overhead > 0;
        found.total = Some(Pair { predicted: own_weights.0 + own_kv.0 + overhead, measured });
        if let Some(pair) = found.weights {
            let predicted = pair.measured / 10 * 12 + 2 * GIB;
            found.rule = Some(Pair { predicted, measured });
        }
    }
    found
}
