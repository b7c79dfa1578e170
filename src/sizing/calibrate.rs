//! What engines really took, put in the place of what can only be bounded.
//!
//! Weights and KV cache follow from tensors and formulas: they stay as computed, or as measured where that is more.
//! What lies beside them is a headroom that bounds what cannot be predicted; where the driver told what an instance of
//! the same weights, engine, version and accelerators holds, that takes its place, with a margin. What grows with
//! context or requests is added as computed. Nothing that was measured is undercut, and a longer context or more
//! requests never need less.

use std::collections::BTreeMap;

use super::demand::{Demand, Figures, Footprint, SizingError, footprint};
use crate::base::{EngineKind, MIB};
use crate::inventory::{Accelerator, Calibration, Inventory, MeasuredParts, NodeFacts};
use crate::weights::Variant;

/// Margin on what was measured beside weights and KV cache: a tenth of it, at least this much. Scratch pools of the
/// CUDA backends and torch's allocator grow with what is asked later.
pub const CALIBRATION_MARGIN: u64 = 128 * MIB;
/// An estimate that was exceeded by no more than this, or by a hundredth, was no under-estimate: figures in logs are
/// rounded.
const NOISE: u64 = 16 * MIB;

/// More than any machine has: a node that tells of it is mistaken, and its figures are passed over.
const BELIEVED: u64 = 1 << 50;

/// Name and memory of an accelerator: what must be equal for a measurement on one to hold on another.
pub fn accelerator_kind(accelerator: &Accelerator, node: &NodeFacts) -> String {
    let shared = node.ram.total_bytes.filter(|_| accelerator.memory.unified);
    let total = accelerator.memory.total_bytes.or(shared).unwrap_or(0);
    format!("{} {} MiB", accelerator.name, total / MIB)
}

/// What engines took on all nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Calibrations {
    /// By engine and revision of the weights, each list in the order of the nodes.
    by_weights: BTreeMap<(EngineKind, String), Vec<Calibration>>,
}

/// Of what a measurement must be to say something.
#[derive(Debug, Clone, Copy)]
pub struct Ran<'a> {
    /// Revision of the weights.
    pub revision: &'a str,
    /// Name and memory of the accelerators, as in `SizedFor`; `None` on the CPU.
    pub accelerator: Option<&'a str>,
    /// Layers of each stage, as in `SizedFor`; empty where the engine shares them out evenly itself.
    pub layers: &'a [u32],
}

impl Calibrations {
    /// Those of all nodes: what ran on one holds on every other of the same kind.
    pub fn of(inventory: &Inventory) -> Self {
        let mut this = Self::default();
        for known in inventory.nodes.iter().flat_map(|node| &node.calibrations) {
            this.list(known).push(known.clone());
        }
        let instances = inventory.nodes.iter().flat_map(|node| &node.instances);
        for measured in instances.filter_map(|instance| instance.measured.as_deref()) {
            let list = this.list(measured);
            if !list.contains(measured) {
                list.push(measured.clone());
            }
        }
        this
    }

    fn list(&mut self, known: &Calibration) -> &mut Vec<Calibration> {
        self.by_weights.entry((known.engine, known.sized_for.revision.clone())).or_default()
    }

    /// Whether anything is known of these weights in this engine.
    pub fn knows(&self, engine: EngineKind, revision: &str) -> bool {
        !self.by_weights.is_empty() && self.by_weights.contains_key(&(engine, revision.to_owned()))
    }

    /// Those of the same weights, engine, version, accelerators and split, whatever their context and requests.
    pub fn like<'a>(&'a self, ran: Ran<'_>, demand: &Demand<'_>) -> impl Iterator<Item = &'a Calibration> + 'a {
        let ranks = if demand.cpu { 0 } else { demand.tensor_parallel.saturating_mul(demand.pipeline_parallel) };
        let (engine, kv_dtype) = (demand.engine, demand.kv_dtype);
        let version = demand.version.map(str::to_owned);
        let layers = ran.layers.to_vec();
        let accelerator = ran.accelerator.map(str::to_owned);
        let known = match self.by_weights.is_empty() {
            true => None,
            false => self.by_weights.get(&(engine, ran.revision.to_owned())),
        };
        known.into_iter().flatten().filter(move |known| {
            let sized = &known.sized_for;
            sized.engine_version == version
                && sized.accelerator == accelerator
                && sized.kv_dtype == kv_dtype
                && sized.layers == layers
                && sized.per_accelerator.len() == ranks as usize
                // A run that left layers on the CPU says nothing about one that does not.
                && known.spilled().is_none()
        })
    }

    /// The one of exactly this demand.
    pub fn exact(&self, ran: Ran<'_>, demand: &Demand<'_>) -> Option<&Calibration> {
        let same = |known: &&Calibration| {
            known.sized_for.context == demand.context && known.sized_for.concurrency == u64::from(demand.concurrency)
        };
        let most = |known: &&Calibration| known.totals().map(|(_, measured)| measured);
        self.like(ran, demand).filter(same).max_by_key(most)
    }

    /// Bytes that a demand takes, corrected by what is known of it.
    ///
    /// # Errors
    /// As [`footprint`].
    pub fn footprint(&self, variant: &Variant, demand: &Demand<'_>, ran: Ran<'_>) -> Result<Footprint, SizingError> {
        let estimate = footprint(variant, demand)?;
        let mut then: Vec<(&Calibration, Footprint)> = Vec::new();
        for known in self.like(ran, demand) {
            // As it would be sized today, by the same formulas as what is asked now.
            let concurrency = u32::try_from(known.sized_for.concurrency).unwrap_or(u32::MAX);
            let demand = Demand { context: known.sized_for.context, concurrency, ..*demand };
            then.extend(footprint(variant, &demand).ok().map(|then| (known, then)));
        }
        if then.is_empty() {
            return Ok(estimate);
        }
        let per_accelerator = estimate.per_accelerator.iter().enumerate().map(|(rank, now)| {
            let known = then.iter().filter_map(|(known, then)| {
                let (before, measured) = (*then.per_accelerator.get(rank)?, known.measured.per_accelerator.get(rank)?);
                Some(Known { before, measured: *measured, short: short_of_tokens(known) })
            });
            corrected(*now, known, Headroom::Replaced)
        });
        let host =
            then.iter().map(|(known, then)| Known { before: then.host, measured: known.measured.host, short: None });
        let needed = Footprint {
            per_accelerator: per_accelerator.collect(),
            host: corrected(estimate.host, host, Headroom::Raised),
        };
        let largest = needed.largest().max(needed.host.total());
        Ok(if largest > BELIEVED { estimate } else { needed })
    }
}

/// What was planned and what was taken, where that was more than rounding explains: the estimate was too low.
pub fn under_estimate(known: &Calibration) -> Option<(u64, u64)> {
    let (planned, measured) = known.totals()?;
    let noise = NOISE.max(planned / 100);
    (known.spilled().is_none() && measured > planned.saturating_add(noise)).then_some((planned, measured))
}

/// One measurement of a rank or of the host, with what would be planned today for what it was asked.
#[derive(Debug, Clone, Copy)]
struct Known {
    before: Figures,
    measured: MeasuredParts,
    /// Tokens that were asked for and tokens that the cache held, where those were fewer.
    short: Option<(u64, u64)>,
}

/// What a measured headroom may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Headroom {
    /// Take the place of the computed one: engines allocate on accelerators when they start.
    Replaced,
    /// Only raise it: a process takes host memory as it works.
    Raised,
}

/// Tokens asked for and held; a shortage below a hundredth is the rounding of the log's figure.
fn short_of_tokens(known: &Calibration) -> Option<(u64, u64)> {
    let tokens = known.measured.kv_tokens.filter(|_| known.engine != EngineKind::LlamaCpp)?;
    let asked = known.sized_for.context.saturating_mul(known.sized_for.concurrency);
    (tokens > 0 && tokens.saturating_add(asked / 100) < asked).then_some((asked, tokens))
}

/// An estimate corrected by measurements. Each correction rises with the estimate, so that what needs more by
/// computation needs more by measurement too.
fn corrected(now: Figures, known: impl Iterator<Item = Known>, headroom: Headroom) -> Figures {
    let mut needed = now;
    let mut overhead: Option<u64> = None;
    for Known { before, measured, short } in known {
        needed.weights_bytes = needed.weights_bytes.max(measured.weights_bytes.unwrap_or(0));
        let kv = measured.kv_bytes.map(|held| short.map_or(held, |(asked, tokens)| scaled(held, asked, tokens)));
        needed.kv_bytes = needed.kv_bytes.max(kv.map_or(0, |kv| risen(now.kv_bytes, before.kv_bytes, kv)));
        let exact = measured.weights_bytes.unwrap_or(before.weights_bytes);
        let exact = exact.saturating_add(measured.kv_bytes.unwrap_or(before.kv_bytes));
        let beside = measured.used_bytes.map(|used| used.saturating_sub(exact));
        let (beside, complete) = match (beside, measured.other_bytes) {
            // Less in all than its own weights and cache: whatever that is, it is no measure of what lies beside them.
            (Some(0), other) => (other.unwrap_or(0), false),
            (Some(beside), other) => (beside.max(other.unwrap_or(0)), headroom == Headroom::Replaced),
            // The log leaves out what it does not know of (the driver's context): that can raise, never lower.
            (None, Some(other)) => (other, false),
            (None, None) => continue,
        };
        if !complete && beside <= before.overhead_bytes {
            continue;
        }
        let own = headroom_of(now.overhead_bytes, before.overhead_bytes, beside);
        overhead = Some(overhead.map_or(own, |known| known.max(own)));
    }
    needed.overhead_bytes = overhead.unwrap_or(now.overhead_bytes);
    needed
}

/// Measured headroom with its margin, and what the estimate says that more context or requests add to it. Of fewer, no
/// more than the estimate.
fn headroom_of(now: u64, before: u64, measured: u64) -> u64 {
    let with_margin = measured.saturating_add(CALIBRATION_MARGIN.max(measured / 10));
    match now.checked_sub(before) {
        Some(more) => with_margin.saturating_add(more),
        None => risen(now, before, measured).min(with_margin),
    }
}

/// An estimate, raised as much as an earlier one turned out too low.
fn risen(now: u64, before: u64, measured: u64) -> u64 {
    if measured <= before {
        return now;
    }
    if before == 0 { now.max(measured) } else { scaled(now, measured, before) }
}

/// `value x numerator / denominator`, rounded up.
fn scaled(value: u64, numerator: u64, denominator: u64) -> u64 {
    let scaled = (u128::from(value) * u128::from(numerator)).div_ceil(u128::from(denominator.max(1)));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}
