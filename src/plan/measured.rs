//! What is known of an instance by measurement: beside its planned figures, and as a warning where it took more.

use std::collections::BTreeSet;

use super::{Memory, PlannedInstance};
use crate::base::{EngineKind, format_bytes};
use crate::config::Model;
use crate::inventory::{Calibration, NodeFacts, PlannedParts, SizedFor};
use crate::placement::{Candidate, Placed, PlacedMemory};
use crate::sizing::{Calibrations, Demand, Footprint, Ran, accelerator_kind, footprint, under_estimate};

/// What an instance is sized for, by computation alone, and what one like it took.
pub(super) struct Measurement {
    /// For the node, which measures.
    pub sized_for: SizedFor,
    /// By computation alone, where measurements are known that may have changed it.
    estimate: Option<Footprint>,
    /// Of the same demand.
    measured: Option<Calibration>,
}

impl Measurement {
    /// Of a placed replica.
    pub fn of(
        placed: &Placed,
        candidate: &Candidate,
        model: &Model,
        facts: Option<&NodeFacts>,
        calibrations: &Calibrations,
    ) -> Self {
        let known = |uuid: &String| Some(accelerator_kind(facts?.accelerator(uuid)?, facts?));
        // Each kind once, in rank order.
        let mut kinds: Vec<String> = placed.accelerators.iter().filter_map(known).collect();
        kinds.dedup();
        let sized_for = SizedFor {
            revision: candidate.revision.clone(),
            engine_version: placed.engine_version.clone(),
            accelerator: Some(kinds.join(" + ")).filter(|kinds| !kinds.is_empty()),
            kv_dtype: model.kv_dtype.as_ref().map(|dtype| dtype.value),
            context: placed.context,
            concurrency: model.concurrency.value,
            per_accelerator: placed.per_accelerator.iter().map(parts).collect(),
            layers: placed.layers.clone(),
            host: parts(&placed.host),
        };
        let demand = demand(&sized_for, placed.engine, placed.tensor_parallel, placed.pipeline_parallel);
        let measured = calibrations.exact(ran(&sized_for), &demand).cloned();
        // Where nothing is known, the estimate is what is planned.
        let even = placed.layers.is_empty() && placed.vision.is_none();
        let known = even && calibrations.like(ran(&sized_for), &demand).next().is_some();
        let estimate = known.then(|| footprint(&candidate.variant, &demand).ok()).flatten();
        Self { estimate, measured, sized_for }
    }

    /// The planned figures with what was measured, and with the estimate where measurements have changed it.
    pub fn beside(&self, mut memory: Memory) -> Memory {
        let differs = |estimate: Option<u64>, planned: u64| estimate.filter(|estimate| *estimate != planned);
        for (rank, plan) in memory.per_accelerator.iter_mut().enumerate() {
            let known = self.measured.as_ref().and_then(|known| known.measured.per_accelerator.get(rank));
            plan.measured_bytes = known.and_then(|parts| parts.total());
            let estimate = self.estimate.as_ref().and_then(|estimate| estimate.per_accelerator.get(rank));
            plan.estimated_bytes = differs(estimate.map(|figures| figures.total()), plan.total_bytes);
        }
        let host = &mut memory.host;
        host.measured_bytes = self.measured.as_ref().and_then(|known| known.measured.host.total());
        let estimate = self.estimate.as_ref().map(|estimate| estimate.host.total());
        host.estimated_bytes = differs(estimate, host.total_bytes);
        memory
    }
}

fn parts(memory: &PlacedMemory) -> PlannedParts {
    PlannedParts {
        weights_bytes: memory.weights_bytes,
        kv_bytes: memory.kv_bytes,
        overhead_bytes: memory.overhead_bytes,
    }
}

fn ran(sized_for: &SizedFor) -> Ran<'_> {
    Ran { revision: &sized_for.revision, accelerator: sized_for.accelerator.as_deref(), layers: &sized_for.layers }
}

fn demand(sized_for: &SizedFor, engine: EngineKind, tensor_parallel: u32, pipeline_parallel: u32) -> Demand<'_> {
    Demand {
        engine,
        version: sized_for.engine_version.as_deref(),
        context: sized_for.context,
        concurrency: u32::try_from(sized_for.concurrency).unwrap_or(u32::MAX),
        kv_dtype: sized_for.kv_dtype,
        tensor_parallel,
        pipeline_parallel,
        cpu: sized_for.per_accelerator.is_empty(),
    }
}

/// Where engines took more than was planned for them, one sentence each: only of what is planned now.
pub(super) fn too_low(planned: &[PlannedInstance], calibrations: &Calibrations) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for instance in planned {
        let Some(sized_for) = &instance.spec.sized_for else { continue };
        let demand = demand(sized_for, instance.engine, instance.tensor_parallel, instance.pipeline_parallel);
        for known in calibrations.like(ran(sized_for), &demand) {
            let Some((planned, measured)) = under_estimate(known) else { continue };
            let on = match &known.sized_for.accelerator {
                Some(kind) if known.sized_for.per_accelerator.len() > 1 => {
                    format!("{} x {kind}", known.sized_for.per_accelerator.len())
                }
                Some(kind) => kind.clone(),
                None => "the CPU".to_owned(),
            };
            found.insert(format!(
                "model \"{}\": {} took {} on {on} for {} ({} x {} tokens) where {} were planned ({:+.0} %)",
                instance.model,
                known.engine,
                format_bytes(measured),
                known.variant,
                known.sized_for.concurrency,
                known.sized_for.context,
                format_bytes(planned),
                percent(planned, measured),
            ));
        }
    }
    found
}

/// How far a figure is from what was planned.
fn percent(planned: u64, measured: u64) -> f64 {
    (measured as f64 / planned.max(1) as f64 - 1.0) * 100.0
}
