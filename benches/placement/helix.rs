//! LLaMA-2 70B over the two clusters that Helix (ASPLOS '25) published: pipelines whose stages are single accelerators of
//! unequal kinds.
//!
//! Facts that are taken from its repository (Thesys-lab/Helix-ASPLOS25): the nodes, and what its solver's logs say
//! (`artifact_evaluation/{model_placement,distributed_clusters,high_heterogeneity}/…/ilp/trace.txt`). There, every node
//! holds any range of layers and requests take any way through them, so that the throughput is a maximal flow. Here a
//! pipeline is a way to run a replica: a number of accelerators of each kind with the layers of each, the non-dominated
//! ones of them. All accelerators of a kind lie in one pool: the published networks are even (10 Gbit/s and 1 ms).

use std::time::Instant;

use flock::base::{EngineKind, GIB, MIB};
use flock::placement::{
    AcceleratorSupply, CandidateFacts, EngineSupply, ModelDemand, NodeSupply, Part, PlacedMemory, Placement, Problem,
    Shape, TailTier, Term, check, solve,
};
use flock::sizing::specification;
use serde::{Deserialize, Serialize};

/// A published cluster: accelerators by kind, and what the logs of its authors' solver say.
pub struct Cluster {
    name: &'static str,
    kinds: &'static [(&'static str, usize)],
    log: &'static str,
}

/// The published clusters.
pub const CLUSTERS: &[Cluster] = &[
    Cluster {
        name: "24 nodes: 4 A100 40GB, 8 L4, 12 T4",
        kinds: &[("NVIDIA A100-SXM4-40GB", 4), ("NVIDIA L4", 8), ("Tesla T4", 12)],
        log: "1,290 tokens/s after 600 s, gap 5,953 %; 1,212 after 8,240 s, gap 3,670 %",
    },
    Cluster {
        name: "42 nodes: 4 A100 40GB, 6 V100, 8 L4 and 4 x 2, 10 T4, 6 x 2 and 4 x 4",
        kinds: &[("NVIDIA A100-SXM4-40GB", 4), ("Tesla V100-SXM2-16GB", 6), ("NVIDIA L4", 16), ("Tesla T4", 38)],
        log: "4,138 tokens/s after 3,003 s, gap 2,122 %; 4,892 (its start) after 4,382 s, gap 5,523 %",
    },
];

/// Layers of the network.
const LAYERS: u32 = 80;
/// Bytes of one layer in 16 bits: 8192 x 8192 twice, 1024 x 8192 twice, 28672 x 8192 three times.
const LAYER: f64 = 2.0 * 8192.0 * (2.0 * 8192.0 + 2.0 * 1024.0 + 3.0 * 28672.0);
/// Bytes of keys and values per token and layer: 8 heads of 128, twice, 16 bits.
const KV: f64 = 4096.0;
/// Tokens that a request has in all: their trace has 763 in and 232 out on average.
const TOKENS: f64 = 1_000.0;
/// Requests in flight per pipeline that are compared.
const IN_FLIGHT: &[u32] = &[32, 64, 128, 256];
/// Runtime and buffers of a stage, with the embeddings of the first and the last.
const OVERHEAD: u64 = 2 * GIB;
/// Stages beyond which a pipeline is not considered.
const STAGES: usize = 16;

/// A kind as the enumeration sees it.
struct Kind {
    name: &'static str,
    count: usize,
    usable: u64,
    total: u64,
    bandwidth: f64,
    flops: f64,
}

/// A pipeline: stages by kind with their layers, requests in flight, tokens per second.
#[derive(Clone)]
struct Pipeline {
    stages: Vec<usize>,
    layers: Vec<u32>,
    in_flight: u32,
    tokens_per_s: f64,
}

/// What came out for a number of pipelines.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Outcome {
    pub cluster: String,
    pub ways: usize,
    /// Pipelines asked for and placed.
    pub asked: u32,
    pub placed: usize,
    pub tokens_per_s: f64,
    /// What no choice of these ways has more of.
    pub bound: f64,
    /// The most that any two of these ways have that fit together, by trying all of them; for two pipelines.
    pub pairs: Option<f64>,
    pub ms: f64,
    pub faults: Vec<String>,
    pub log: String,
}

/// Every cluster, for one pipeline, two, and so on until one more has no place.
pub fn outcomes() -> Vec<Outcome> {
    let mut all = Vec::new();
    for cluster in CLUSTERS {
        let kinds: Vec<Kind> = cluster.kinds.iter().map(|(name, count)| kind(name, *count)).collect();
        let ways = ways(&kinds);
        for asked in 1.. {
            let problem = problem(&kinds, &ways, asked);
            let begin = Instant::now();
            let placement = solve(&problem);
            let ms = begin.elapsed().as_secs_f64() * 1_000.0;
            let best = ways.iter().map(|w| w.tokens_per_s).fold(0.0, f64::max);
            let placed = placement.instances.len();
            let loss = placement.solver.tiers.last().map_or(0.0, |tier| tier.bound);
            all.push(Outcome {
                cluster: cluster.name.to_owned(),
                ways: ways.len(),
                asked,
                placed,
                tokens_per_s: throughput(&placement, &ways),
                bound: best.round() * placed as f64 - loss,
                pairs: (asked == 2).then(|| pairs(&kinds, &ways)),
                ms,
                faults: check(&problem, &placement),
                log: cluster.log.to_owned(),
            });
            if placed < asked as usize {
                break;
            }
        }
    }
    all
}

fn pairs(kinds: &[Kind], ways: &[Pipeline]) -> f64 {
    let fit = |a: &Pipeline, b: &Pipeline| {
        a.stages.iter().zip(&b.stages).zip(kinds).all(|((a, b), kind)| a + b <= kind.count)
    };
    let sums = ways.iter().flat_map(|a| ways.iter().filter(|b| fit(a, b)).map(|b| a.tokens_per_s + b.tokens_per_s));
    sums.fold(0.0, f64::max)
}

fn throughput(placement: &Placement, ways: &[Pipeline]) -> f64 {
    placement.instances.iter().map(|placed| ways[placed.candidate].tokens_per_s).sum()
}

fn kind(name: &'static str, count: usize) -> Kind {
    let published = specification(name).expect("in the table");
    let total = published.memory_bytes.expect("known");
    Kind {
        name,
        count,
        usable: total / 100 * 92,
        total,
        bandwidth: published.bandwidth_bytes_per_s.expect("known") as f64,
        flops: published.fp16_flops.expect("known") as f64,
    }
}

/// Non-dominated pipelines: no other one takes no more of any kind and gives at least as much.
fn ways(kinds: &[Kind]) -> Vec<Pipeline> {
    let mut all: Vec<Pipeline> = Vec::new();
    let mut stages = vec![0; kinds.len()];
    loop {
        let sum: usize = stages.iter().sum();
        if (1..=STAGES).contains(&sum) {
            let best = IN_FLIGHT.iter().filter_map(|c| pipeline(kinds, &stages, *c));
            all.extend(best.max_by(|a, b| a.tokens_per_s.total_cmp(&b.tokens_per_s)));
        }
        let Some(next) = (0..kinds.len()).find(|k| stages[*k] < kinds[*k].count.min(STAGES)) else { break };
        stages[next] += 1;
        stages[..next].fill(0);
    }
    all.sort_by(|a, b| b.tokens_per_s.total_cmp(&a.tokens_per_s).then_with(|| a.stages.cmp(&b.stages)));
    let mut kept: Vec<Pipeline> = Vec::new();
    for way in all {
        let within = |other: &Pipeline| other.stages.iter().zip(&way.stages).all(|(a, b)| a <= b);
        if !kept.iter().any(within) {
            kept.push(way);
        }
    }
    kept
}

/// Seconds that a stage needs per layer for a step of so many requests: weights, keys and values through the memory at
/// 0.8 of its bandwidth, or arithmetic at half of its rate.
fn per_layer(kind: &Kind, requests: f64) -> f64 {
    let memory = (LAYER + requests * TOKENS * KV) / (kind.bandwidth * 0.8);
    memory.max(LAYER * requests / (kind.flops * 0.5))
}

/// The best layer split of a pipeline: the slowest stage decides.
fn pipeline(kinds: &[Kind], stages: &[usize], in_flight: u32) -> Option<Pipeline> {
    let count: usize = stages.iter().sum();
    let requests = f64::from(in_flight) / count as f64;
    let most = |kind: &Kind| {
        let each = LAYER + f64::from(in_flight) * TOKENS * KV;
        ((kind.usable - OVERHEAD) as f64 / each) as u32
    };
    let split = |time: f64| -> Vec<u32> {
        kinds.iter().map(|kind| most(kind).min((time / per_layer(kind, requests)) as u32)).collect()
    };
    let sum = |layers: &[u32]| -> u32 { layers.iter().zip(stages).map(|(l, s)| l * *s as u32).sum() };
    // A stage's time is a whole number of layers: only those times can be the slowest.
    let mut times: Vec<f64> = kinds
        .iter()
        .zip(stages)
        .filter(|(_, stages)| **stages > 0)
        .flat_map(|(kind, _)| (1..=most(kind)).map(|n| f64::from(n) * per_layer(kind, requests) * (1.0 + 1e-12)))
        .collect();
    times.sort_by(f64::total_cmp);
    let time = times.into_iter().find(|time| sum(&split(*time)) >= LAYERS)?;
    let layers = split(time);
    // A kind that got no layer is not in this pipeline.
    if layers.iter().zip(stages).any(|(layers, stages)| *stages > 0 && *layers == 0) {
        return None;
    }
    Some(Pipeline { stages: stages.to_vec(), layers, in_flight, tokens_per_s: requests / time })
}

/// One model of which as many pipelines are wanted; what they lack in throughput is the tier after their number.
fn problem(kinds: &[Kind], ways: &[Pipeline], asked: u32) -> Problem {
    let quality = TailTier { name: "throughput that is lacking".to_owned(), terms: vec![(Term::Quality, 1.0)] };
    let mut problem = Problem { tail: vec![quality], ..Problem::default() };
    problem.limits.exact_accelerators = 0;
    problem.nodes = kinds.iter().enumerate().map(|(index, kind)| pool(index, kind)).collect();
    let best = ways.iter().map(|w| w.tokens_per_s.round() as u32).max().unwrap_or(0);
    let mut demand = ModelDemand { name: "llama-70b".to_owned(), desired: asked, ..ModelDemand::default() };
    for (index, way) in ways.iter().enumerate() {
        demand.candidates.push(CandidateFacts {
            label: format!("way {index}"),
            quality: best - way.tokens_per_s.round() as u32,
            legal_ranks: [(EngineKind::Vllm, vec![1])].into(),
            context: TOKENS as u64,
            ..CandidateFacts::default()
        });
        demand.shapes.push(shape(index, kinds, way));
    }
    problem.models.push(demand);
    problem.sort();
    problem
}

fn pool(index: usize, kind: &Kind) -> NodeSupply {
    let accelerator = |position: usize| AcceleratorSupply {
        uuid: format!("{index}-{position}"),
        vendor: "nvidia".to_owned(),
        kind: kind.name.to_owned(),
        capacity_bytes: kind.usable,
        total_bytes: kind.total,
        healthy: true,
        ..AcceleratorSupply::default()
    };
    NodeSupply {
        name: format!("pool-{index}"),
        accelerators: (0..kind.count).map(accelerator).collect(),
        host_capacity_bytes: 1 << 50,
        engines: vec![EngineSupply {
            kind: EngineKind::Vllm,
            version: None,
            program: "/opt/vllm/bin/vllm".to_owned(),
            worker: None,
        }],
        reachable: true,
        member: true,
        ..NodeSupply::default()
    }
}

fn shape(candidate: usize, kinds: &[Kind], way: &Pipeline) -> Shape {
    let used: Vec<usize> = (0..kinds.len()).filter(|k| way.stages[*k] > 0).collect();
    let bytes = |k: usize| PlacedMemory {
        weights_bytes: (LAYER * f64::from(way.layers[k])) as u64,
        kv_bytes: (f64::from(way.in_flight * way.layers[k]) * TOKENS * KV) as u64,
        overhead_bytes: OVERHEAD - 2 * MIB,
        ..PlacedMemory::default()
    };
    let group = |k: usize| (0..kinds[k].count).collect::<Vec<_>>();
    // Where the split has layers to spare, the last stages have fewer.
    let mut layers: Vec<u32> = used.iter().flat_map(|k| std::iter::repeat_n(way.layers[*k], way.stages[*k])).collect();
    let mut spare = layers.iter().sum::<u32>() - LAYERS;
    for stage in layers.iter_mut().rev() {
        let less = spare.min(*stage - 1);
        *stage -= less;
        spare -= less;
    }
    let first = used[0];
    let part = |k: &usize| Part {
        node: *k,
        group: group(*k),
        ranks: way.stages[*k] as u32,
        per_accelerator: bytes(*k),
        ..Part::default()
    };
    Shape {
        group: group(first),
        ranks: way.stages[first] as u32,
        pipeline: true,
        per_accelerator: bytes(first),
        further: used[1..].iter().map(part).collect(),
        layers,
        ..Shape::on(first, candidate, EngineKind::Vllm, "/opt/vllm/bin/vllm")
    }
}
