//! Two other ways to place the same replicas, and what each of them is worth by our sizes.
//!
//! (a) [`peer`]: replicas in the order in which they were submitted, nine tenths of every accelerator for one
//! instance, weights x 1.2 + 2 GiB as the need, the best variant that fits so, on the fewest accelerators, where the most
//! memory is free. (b) [`decreasing`]: our own sizes, first fit, the highest priority and the largest first.
#![allow(dead_code, reason = "each program uses its own part")]

use std::collections::{BTreeMap, BTreeSet};

use flock::base::{EngineKind, GIB};
use flock::placement::{ModelDemand, Placement, Problem, Shape};
use serde::{Deserialize, Serialize};

/// A replica on accelerators of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Put {
    /// Index of the model.
    pub model: usize,
    /// Index of its candidate.
    pub candidate: usize,
    /// Index of the node.
    pub node: usize,
    /// Positions of the accelerators.
    pub accelerators: Vec<usize>,
}

/// What the peer believes that a replica needs of each of so many accelerators of a kind; `None` where it may not run.
pub type Need<'a> = &'a dyn Fn(usize, usize, u32, &str) -> Option<u64>;

/// Weights x 1.2 + 2 GiB, in equal parts.
pub fn rule_of_thumb(weights_bytes: u64, ranks: u32) -> u64 {
    (weights_bytes / 5 * 6 + 2 * GIB) / u64::from(ranks.max(1))
}

/// What one instance takes of an accelerator, whatever it needs.
fn share(total: u64) -> u64 {
    total / 10 * 9
}

/// Baseline (a). `order` lists models as they were submitted. Instances that run keep their accelerators.
pub fn peer(problem: &Problem, order: &[usize], need: Need<'_>) -> Vec<Put> {
    let mut free: Vec<Vec<u64>> =
        problem.nodes.iter().map(|n| n.accelerators.iter().map(|a| a.total_bytes).collect()).collect();
    let mut running: BTreeMap<usize, u32> = BTreeMap::new();
    let mut put = Vec::new();
    for instance in &problem.running {
        let (Some(model), Some(node)) = (problem.model(&instance.model), problem.node(&instance.node)) else {
            continue;
        };
        let label = |c: &flock::placement::CandidateFacts| c.label == instance.variant;
        let Some(candidate) = problem.models[model].candidates.iter().position(label) else { continue };
        let accelerators: Vec<usize> =
            instance.accelerators.iter().filter_map(|uuid| problem.nodes[node].position(uuid)).collect();
        for position in &accelerators {
            free[node][*position] -= share(problem.nodes[node].accelerators[*position].total_bytes);
        }
        *running.entry(model).or_default() += 1;
        put.push(Put { model, candidate, node, accelerators });
    }
    for model in order {
        let here = running.get(model).copied().unwrap_or(0);
        for _ in here..problem.models[*model].desired {
            // What fits nowhere now never will: nothing is given back.
            let Some(found) = peer_spot(problem, *model, &free, need) else { break };
            for position in &found.accelerators {
                free[found.node][*position] -= share(problem.nodes[found.node].accelerators[*position].total_bytes);
            }
            put.push(found);
        }
    }
    put
}

fn peer_spot(problem: &Problem, model: usize, free: &[Vec<u64>], need: Need<'_>) -> Option<Put> {
    let demand = &problem.models[model];
    for candidate in by_quality(demand) {
        let legal = demand.candidates[candidate].legal_ranks.get(&EngineKind::Vllm)?;
        for ranks in legal {
            let mut best: Option<((u64, u64), Put)> = None;
            for (node, supply) in problem.nodes.iter().enumerate() {
                if !demand.require.iter().all(|(label, is)| supply.labels.get(label) == Some(is)) {
                    continue;
                }
                let whole = |p: &usize| {
                    let accelerator = &supply.accelerators[*p];
                    let share = share(accelerator.total_bytes);
                    let needed = need(model, candidate, *ranks, &accelerator.kind);
                    free[node][*p] >= share && needed.is_some_and(|needed| needed <= share)
                };
                // The freest accelerator, then the freest node.
                let roomy = (free[node].iter().copied().max().unwrap_or(0), free[node].iter().sum());
                if best.as_ref().is_some_and(|(most, _)| *most >= roomy) {
                    continue;
                }
                let fit: Vec<usize> = (0..supply.accelerators.len()).filter(whole).take(*ranks as usize).collect();
                if fit.len() == *ranks as usize {
                    best = Some((roomy, Put { model, candidate, node, accelerators: fit }));
                }
            }
            if let Some((_, put)) = best {
                return Some(put);
            }
        }
    }
    None
}

fn by_quality(demand: &ModelDemand) -> Vec<usize> {
    let mut order: Vec<usize> = (0..demand.candidates.len()).collect();
    order.sort_by_key(|c| demand.candidates[*c].quality);
    order
}

/// Baseline (b): minimum replicas of all models first, then the rest; by rank, then by bytes.
pub fn decreasing(problem: &Problem) -> Vec<Put> {
    let mut fit = FirstFit::new(problem);
    let mut order: Vec<usize> = (0..problem.models.len()).collect();
    let bytes = |m: &usize| {
        let best = fit.ways[*m].first().map(|way| &problem.models[*m].shapes[way.shape]);
        best.map_or(0, |s| s.claimed() * u64::from(s.ranks))
    };
    order.sort_by_key(|m| (std::cmp::Reverse(problem.models[*m].rank), std::cmp::Reverse(bytes(m)), *m));
    for minimum in [true, false] {
        for model in &order {
            let demand = &problem.models[*model];
            let already = if minimum { 0 } else { fit.count[*model] };
            for _ in already..if minimum { demand.min } else { demand.desired } {
                if !fit.place(*model) {
                    break;
                }
            }
        }
    }
    fit.put
}

/// A shape of a model with the nodes that it stands for, and how many of them are known to have no room.
struct Way {
    shape: usize,
    nodes: Vec<usize>,
    passed: usize,
}

struct FirstFit<'p> {
    problem: &'p Problem,
    free: Vec<Vec<u64>>,
    host: Vec<u64>,
    ways: Vec<Vec<Way>>,
    /// Values of the label that a model spreads over.
    spread: Vec<BTreeSet<String>>,
    count: Vec<u32>,
    put: Vec<Put>,
}

impl<'p> FirstFit<'p> {
    fn new(problem: &'p Problem) -> Self {
        let ways = |demand: &ModelDemand| {
            let usable = |s: &&usize| {
                let shape = &demand.shapes[**s];
                shape.ranks > 0 && shape.further.is_empty() && !shape.keep_only
            };
            let all: Vec<usize> = (0..demand.shapes.len()).collect();
            let mut order: Vec<usize> = all.iter().filter(usable).copied().collect();
            order.sort_by_key(|s| {
                let shape = &demand.shapes[*s];
                (demand.deficit(shape), shape.ranks, shape.node)
            });
            let way = |s| Way { shape: s, nodes: problem.stands_for(demand.shapes[s].node), passed: 0 };
            order.into_iter().map(way).collect()
        };
        Self {
            problem,
            free: problem.nodes.iter().map(|n| n.accelerators.iter().map(|a| a.capacity_bytes).collect()).collect(),
            host: problem.nodes.iter().map(|n| n.host_capacity_bytes).collect(),
            ways: problem.models.iter().map(ways).collect(),
            spread: vec![BTreeSet::new(); problem.models.len()],
            count: vec![0; problem.models.len()],
            put: Vec::new(),
        }
    }

    fn place(&mut self, model: usize) -> bool {
        let demand = &self.problem.models[model];
        for way in &mut self.ways[model] {
            let shape = &demand.shapes[way.shape];
            while let Some(node) = way.nodes.get(way.passed).copied() {
                let supply = &self.problem.nodes[node];
                let value = demand.spread_by.as_ref().map(|l| supply.labels.get(l).cloned().unwrap_or_default());
                let taken = value.as_ref().is_some_and(|value| self.spread[model].contains(value));
                let roomy = |p: &&usize| self.free[node][**p] >= shape.claimed();
                let found: Vec<usize> = shape.group.iter().filter(roomy).take(shape.width()).copied().collect();
                if taken || found.len() < shape.width() || self.host[node] < shape.host.total_bytes() {
                    // Room only ever shrinks: this node is never asked again.
                    way.passed += 1;
                    continue;
                }
                found.iter().for_each(|p| self.free[node][*p] -= shape.claimed());
                self.host[node] -= shape.host.total_bytes();
                self.spread[model].extend(value);
                self.count[model] += 1;
                self.put.push(Put { model, candidate: shape.candidate, node, accelerators: found });
                return true;
            }
        }
        false
    }
}

/// What a layout is worth.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Worth {
    /// By rank, highest first: minimum replicas, and all, that really run.
    pub ranks: Vec<(u32, u32, u32)>,
    /// Sum over replicas of 10 less the rank of quality (16 bits 9, fp8 8, 4-bit AWQ 3).
    pub quality: u64,
    /// Placed, but more than there is by our sizes.
    pub out_of_memory: u32,
    /// Placed, but the engine cannot run it there: hardware, split, policy.
    pub refused: u32,
}

/// The worth of a baseline's layout.
pub fn worth(problem: &Problem, put: &[Put]) -> Worth {
    let shapes = Shapes::new(problem);
    let mut worth = Worth::default();
    let mut counts = vec![0; problem.models.len()];
    for one in put {
        let node = &problem.nodes[one.node];
        let kind = one.accelerators.first().map_or("", |p| node.accelerators[*p].kind.as_str());
        match shapes.find(one.model, one.candidate, one.node, kind, one.accelerators.len()) {
            Some(_) => {
                counts[one.model] += 1;
                worth.quality += points(&problem.models[one.model], one.candidate);
            }
            None if shapes.too_small(problem, one) => worth.out_of_memory += 1,
            None => worth.refused += 1,
        }
    }
    worth.ranks = by_rank(problem, &counts);
    worth
}

/// The worth of a placement, counted the same way.
pub fn worth_of(problem: &Problem, placement: &Placement) -> Worth {
    let mut worth = Worth::default();
    let mut counts = vec![0; problem.models.len()];
    for placed in &placement.instances {
        let Some(model) = problem.model(&placed.model) else { continue };
        counts[model] += 1;
        worth.quality += points(&problem.models[model], placed.candidate);
    }
    worth.ranks = by_rank(problem, &counts);
    worth
}

fn points(demand: &ModelDemand, candidate: usize) -> u64 {
    u64::from(10_u32.saturating_sub(demand.candidates[candidate].quality))
}

fn by_rank(problem: &Problem, counts: &[u32]) -> Vec<(u32, u32, u32)> {
    let mut ranks: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
    for (model, count) in problem.models.iter().zip(counts) {
        let entry = ranks.entry(model.rank).or_default();
        entry.0 += (*count).min(model.min);
        entry.1 += (*count).min(model.desired);
    }
    ranks.into_iter().rev().map(|(rank, (least, all))| (rank, least, all)).collect()
}

/// Shapes by what they run where.
struct Shapes<'p> {
    by: BTreeMap<(usize, usize, usize, &'p str, usize), &'p Shape>,
    /// The node whose shapes stand for a node.
    first: Vec<usize>,
}

impl<'p> Shapes<'p> {
    fn new(problem: &'p Problem) -> Self {
        let mut first: Vec<usize> = (0..problem.nodes.len()).collect();
        let mut by = BTreeMap::new();
        for (model, demand) in problem.models.iter().enumerate() {
            for shape in demand.shapes.iter().filter(|s| s.ranks > 0 && s.further.is_empty()) {
                for node in problem.stands_for(shape.node) {
                    first[node] = shape.node;
                }
                let kind = problem.nodes[shape.node].accelerators[shape.group[0]].kind.as_str();
                by.insert((model, shape.candidate, shape.node, kind, shape.width()), shape);
            }
        }
        Self { by, first }
    }

    fn find(&self, model: usize, candidate: usize, node: usize, kind: &'p str, width: usize) -> Option<&'p Shape> {
        self.by.get(&(model, candidate, self.first[node], kind, width)).copied()
    }

    /// Whether a way to run it is left out for its bytes.
    fn too_small(&self, problem: &Problem, put: &Put) -> bool {
        let demand = &problem.models[put.model];
        let (node, label) = (&problem.nodes[self.first[put.node]].name, &demand.candidates[put.candidate].label);
        demand.removed.iter().any(|removed| {
            removed.reason.constraint == "memory"
                && removed.reason.node == *node
                && removed.variant.as_ref() == Some(label)
                && removed.ranks == u32::try_from(put.accelerators.len()).ok()
        })
    }
}
