//! What an instance was sized for, and what its engine really took.
//!
//! Unknown fields are passed over: these lie on nodes, where an agent of another version may read them.

use serde::{Deserialize, Serialize};

use crate::base::{Dtype, EngineKind};

/// Planned bytes of one accelerator, or of the host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PlannedParts {
    /// Weights.
    pub weights_bytes: u64,
    /// KV cache and constant states.
    pub kv_bytes: u64,
    /// Everything else.
    pub overhead_bytes: u64,
}

impl PlannedParts {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights_bytes.saturating_add(self.kv_bytes).saturating_add(self.overhead_bytes)
    }
}

/// What an instance was sized for. The node keeps it with what it measures, and decides nothing by it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SizedFor {
    /// Revision digest of the weights.
    pub revision: String,
    /// The engine's version, where known.
    pub engine_version: Option<String>,
    /// Name and memory of the accelerators, `NVIDIA GeForce RTX 4090 24564 MiB`; `None` on the CPU.
    pub accelerator: Option<String>,
    /// KV cache type; `None` is 16-bit.
    pub kv_dtype: Option<Dtype>,
    /// Tokens of context per request.
    pub context: u64,
    /// Requests at once.
    pub concurrency: u64,
    /// Planned bytes, in rank order; empty on the CPU.
    pub per_accelerator: Vec<PlannedParts>,
    /// Layers of each accelerator, where its engine was told.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<u32>,
    /// Planned bytes of the host.
    pub host: PlannedParts,
}

/// What was measured on one accelerator, or on the host. What nobody told is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MeasuredParts {
    /// Weights, by the engine's log.
    pub weights_bytes: Option<u64>,
    /// KV cache and constant states, by the engine's log.
    pub kv_bytes: Option<u64>,
    /// Buffers, graphs and activations, by the engine's log.
    pub other_bytes: Option<u64>,
    /// All that its processes hold: by the driver, on the host by the kernel (with the mapped weights).
    pub used_bytes: Option<u64>,
}

impl MeasuredParts {
    /// All of it: what its processes hold, and at least what the log tells of. `None` where neither is known.
    pub fn total(&self) -> Option<u64> {
        let told = [self.weights_bytes, self.kv_bytes, self.other_bytes];
        let told = told.into_iter().flatten().reduce(u64::saturating_add);
        self.used_bytes.max(told)
    }

    /// The larger of each figure.
    pub fn most(self, other: Self) -> Self {
        Self {
            weights_bytes: self.weights_bytes.max(other.weights_bytes),
            kv_bytes: self.kv_bytes.max(other.kv_bytes),
            other_bytes: self.other_bytes.max(other.other_bytes),
            used_bytes: self.used_bytes.max(other.used_bytes),
        }
    }
}

/// What an engine took.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MeasuredMemory {
    /// In rank order; empty on the CPU.
    pub per_accelerator: Vec<MeasuredParts>,
    /// The host's.
    pub host: MeasuredParts,
    /// Layers on accelerators, and all layers, the output head counted as one (llama.cpp). Zero where the engine names
    /// no buffer on any device, whatever it claims.
    pub offloaded_layers: Option<[u32; 2]>,
    /// Tokens that the KV cache of each rank holds.
    pub kv_tokens: Option<u64>,
}

/// What was planned for an instance and what it took, kept on its node beyond its life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calibration {
    /// The model it served.
    pub model: String,
    /// Variant label.
    pub variant: String,
    /// The engine.
    pub engine: EngineKind,
    /// What it was sized for, with the planned bytes.
    pub sized_for: SizedFor,
    /// What it took.
    pub measured: MeasuredMemory,
    /// When the figures last changed, RFC 3339.
    #[serde(default)]
    pub at: String,
}

impl Calibration {
    /// Whether another is about the same weights, engine, hardware and demand.
    pub fn is_of_same(&self, other: &Self) -> bool {
        let bare =
            |sized: &SizedFor| SizedFor { per_accelerator: Vec::new(), host: PlannedParts::default(), ..sized.clone() };
        self.engine == other.engine
            && self.sized_for.per_accelerator.len() == other.sized_for.per_accelerator.len()
            && bare(&self.sized_for) == bare(&other.sized_for)
    }

    /// This one after an earlier one of the same: no figure falls, because the most that was ever taken is what has to
    /// fit. Times are kept where nothing has changed.
    pub fn after(mut self, earlier: &Self) -> Self {
        let measured = &mut self.measured;
        if measured.per_accelerator.len() == earlier.measured.per_accelerator.len() {
            for (own, was) in measured.per_accelerator.iter_mut().zip(&earlier.measured.per_accelerator) {
                *own = own.most(*was);
            }
        } else if measured.per_accelerator.is_empty() {
            measured.per_accelerator.clone_from(&earlier.measured.per_accelerator);
        }
        measured.host = measured.host.most(earlier.measured.host);
        measured.kv_tokens = measured.kv_tokens.or(earlier.measured.kv_tokens);
        measured.offloaded_layers = measured.offloaded_layers.or(earlier.measured.offloaded_layers);
        if (&self.measured, &self.sized_for) == (&earlier.measured, &earlier.sized_for) {
            self.at.clone_from(&earlier.at);
        }
        self
    }

    /// Planned and measured bytes of all its accelerators, on the CPU of the host. `None` where one was not measured.
    pub fn totals(&self) -> Option<(u64, u64)> {
        if self.sized_for.per_accelerator.is_empty() {
            return Some((self.sized_for.host.total(), self.measured.host.total()?));
        }
        let planned = self.sized_for.per_accelerator.iter().map(PlannedParts::total).fold(0, u64::saturating_add);
        let each = &self.measured.per_accelerator;
        let measured =
            each.iter().map(MeasuredParts::total).try_fold(0u64, |sum, one| Some(sum.saturating_add(one?)))?;
        (each.len() == self.sized_for.per_accelerator.len()).then_some((planned, measured))
    }

    /// Where the planned accelerators do not hold all layers that were meant for them: how many are there, of how many.
    pub fn spilled(&self) -> Option<(u32, u32)> {
        let [there, all] = self.measured.offloaded_layers?;
        // The log counts the output head as one more.
        let told: u32 = self.sized_for.layers.iter().sum();
        let meant = if told == 0 { all } else { all.min(told.saturating_add(1)) };
        (!self.sized_for.per_accelerator.is_empty() && there < meant).then_some((there, all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(used: u64, at: &str) -> Calibration {
        Calibration {
            model: "m".into(),
            variant: "v".into(),
            engine: EngineKind::Vllm,
            sized_for: SizedFor {
                per_accelerator: vec![PlannedParts { kv_bytes: 9, ..Default::default() }],
                ..Default::default()
            },
            measured: MeasuredMemory {
                per_accelerator: vec![MeasuredParts {
                    kv_bytes: Some(5),
                    used_bytes: Some(used),
                    ..Default::default()
                }],
                ..MeasuredMemory::default()
            },
            at: at.into(),
        }
    }

    #[test]
    fn figures_only_rise_and_the_time_is_that_of_the_last_change() {
        let first = one(10, "1");
        let lower = one(7, "2").after(&first);
        assert_eq!(lower, first);
        let higher = one(12, "3").after(&first);
        assert_eq!((higher.measured.per_accelerator[0].used_bytes, higher.at.as_str()), (Some(12), "3"));
        assert_eq!(higher.totals(), Some((9, 12)));
        // Layers that were meant for host memory have not spilled there.
        let mut offloaded = one(1, "4");
        offloaded.measured.offloaded_layers = Some([21, 33]);
        assert_eq!(offloaded.spilled(), Some((21, 33)));
        offloaded.sized_for.layers = vec![20];
        assert_eq!(offloaded.spilled(), None);
        offloaded.measured.offloaded_layers = Some([20, 33]);
        assert_eq!(offloaded.spilled(), Some((20, 33)));
        let mut unseen = one(1, "4");
        unseen.measured.per_accelerator.clear();
        assert_eq!(unseen.totals(), None);
        assert_eq!(unseen.after(&first).totals(), Some((9, 10)));
    }

    #[test]
    fn the_demand_and_not_the_plan_tells_two_apart() {
        let mut other = one(1, "");
        other.sized_for.per_accelerator[0].kv_bytes = 1;
        assert!(other.is_of_same(&one(2, "x")));
        other.sized_for.context = 8192;
        assert!(!other.is_of_same(&one(2, "x")));
    }

    #[test]
    fn layers_left_on_the_cpu_count_where_accelerators_were_planned() {
        let mut spilled = one(1, "");
        assert_eq!(spilled.spilled(), None);
        spilled.measured.offloaded_layers = Some([30, 49]);
        assert_eq!(spilled.spilled(), Some((30, 49)));
        spilled.sized_for.per_accelerator.clear();
        assert_eq!(spilled.spilled(), None);
    }
}
