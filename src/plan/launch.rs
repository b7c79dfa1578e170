//! The one place where the plan asks the engine room how a program is started.

use std::collections::BTreeMap;

use crate::base::EngineKind;
use crate::config::Model;
use crate::engine::{self, Planned, Settings};
use crate::placement::{Candidate, Placed};
use crate::sizing::layer_split;

/// How an instance's program is started.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Launch {
    /// Program and arguments, with `{port}` for the port.
    pub argv: Vec<String>,
    /// Environment that flock sets.
    pub env: BTreeMap<String, String>,
    /// The variable that carries the instance's key.
    pub key_env: Option<String>,
    /// How long a start may take.
    pub ready_timeout_ms: u64,
}

/// How this replica's program is started. `entry` is the path of its weights on the node.
pub(super) fn launch(placed: &Placed, candidate: &Candidate, model: &Model, entry: &str) -> Launch {
    let devices = placed.accelerators.len();
    let layers = match placed.engine {
        // As it was sized: equal shares, and every layer named, however many there are.
        EngineKind::LlamaCpp if devices > 0 => layer_split(candidate.variant.architecture.layers, devices as u32),
        EngineKind::LlamaCpp | EngineKind::Vllm | EngineKind::Sglang => Vec::new(),
    };
    let settings = Settings {
        version: placed.engine_version.clone(),
        context: placed.context,
        concurrency: u32::try_from(model.concurrency.value).unwrap_or(u32::MAX),
        kv_dtype: model.kv_dtype.as_ref().map(|dtype| dtype.value),
        tensor_parallel: placed.tensor_parallel,
        pipeline_parallel: placed.pipeline_parallel,
        model_path: entry.to_owned(),
        served_name: placed.model.clone(),
        device_total_bytes: placed.per_accelerator.iter().map(|bytes| bytes.device_total_bytes).collect(),
        capacity_bytes: placed.per_accelerator.iter().map(|bytes| bytes.capacity_bytes).collect(),
        planned: placed
            .per_accelerator
            .iter()
            .map(|bytes| Planned {
                weights_bytes: bytes.weights_bytes,
                kv_bytes: bytes.kv_bytes,
                overhead_bytes: bytes.overhead_bytes,
            })
            .collect(),
        accelerators: devices,
        layer_counts: layers,
        arguments: model.arguments.iter().map(|argument| argument.value.clone()).collect(),
    };
    let timeout = engine::ready_timeout(placed.engine, candidate.variant.download_bytes);
    Launch {
        argv: engine::argv(placed.engine, &placed.program, &settings),
        env: engine::device_environment(placed.engine, &placed.accelerators),
        key_env: engine::key_environment(placed.engine).map(str::to_owned),
        ready_timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
    }
}
