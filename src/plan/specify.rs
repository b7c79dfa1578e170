//! From a place to a specification: who the instance is, and exactly what its node is told to run.

use std::collections::BTreeMap;

use serde::Serialize;

use super::launch::{self, Launch};
use super::measured::Measurement;
use super::workers;
use super::{AcceleratorMemoryPlan, HostMemoryPlan, Memory, PlannedInstance};
use crate::base::{Digest, Dtype, EngineKind, expand_home};
use crate::config::Desired;
use crate::inventory::{InstanceSpec, NodeFacts, WeightsRef};
use crate::placement::{Candidate, Origin, Placed, PlacedMemory};
use crate::sizing::Calibrations;

/// Where weights lie on a node unless something says otherwise.
const DEFAULT_WEIGHTS: &str = "~/.local/share/flock/weights";

/// What makes one specification differ from another. Ports, memory figures and the argument vector that follows
/// from all this stay outside, and so does an engine version that the config does not ask for: a version that
/// could not be read for once must not restart anything.
#[derive(Serialize)]
struct Specification<'a> {
    model: &'a str,
    engine: EngineKind,
    program: &'a str,
    engine_version: Option<&'a str>,
    variant: &'a str,
    revision: &'a str,
    context: u64,
    concurrency: u64,
    kv_dtype: Option<Dtype>,
    tensor_parallel: u32,
    pipeline_parallel: u32,
    arguments: Vec<(&'a str, Option<&'a str>)>,
    env: &'a BTreeMap<String, String>,
    // Left out where there are none, so that what runs already keeps its digest.
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    modules: Vec<&'a str>,
    #[serde(skip_serializing_if = "<[u32]>::is_empty")]
    layers: &'a [u32],
    #[serde(skip_serializing_if = "Option::is_none")]
    vision: Option<Option<usize>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    workers: Vec<Worker<'a>>,
}

/// What an instance over several nodes has on another one: where, what, and its worker.
#[derive(Serialize)]
struct Worker<'a> {
    node: &'a str,
    accelerators: &'a [String],
    worker: Option<&'a (String, String)>,
}

#[derive(Serialize)]
struct Identity<'a> {
    cluster: &'a str,
    model: &'a str,
    replica: u32,
    specification: &'a str,
    accelerators: &'a [String],
}

/// First 12 hex digits over cluster, model, replica, specification and accelerators. An instance without
/// accelerators is bound to its node's processor, written `NODE#cpu`.
pub fn instance_id(
    cluster: &str,
    model: &str,
    replica: u32,
    specification: &str,
    accelerators: &[String],
    node: &str,
) -> String {
    let processor = [format!("{node}#cpu")];
    let accelerators = if accelerators.is_empty() { &processor } else { accelerators };
    Digest::of_json(&Identity { cluster, model, replica, specification, accelerators }).short(12).to_owned()
}

/// Where a candidate's files are on a node: the folder, and the path an engine is pointed at.
pub fn weights_on_node(candidate: &Candidate, desired: &Desired, node: &str, facts: Option<&NodeFacts>) -> Located {
    match &candidate.origin {
        Origin::OnNode { path, .. } => {
            // The agent says in which folder it found the files, and names them from there.
            if let Some(folder) = folder_named(path, facts) {
                let entry = match &candidate.variant.start_file {
                    Some(start) => format!("{}/{start}", folder.trim_end_matches('/')),
                    None => folder.clone(),
                };
                return Located { folder, entry };
            }
            let path = expand_home(path, facts.and_then(|facts| facts.home.as_deref()));
            let is_file = candidate.variant.start_file.as_deref().is_some_and(|start| {
                let last = start.rsplit('/').next().unwrap_or(start);
                path.rsplit('/').next() == Some(last)
            });
            let folder = match path.rsplit_once('/') {
                Some((folder, _)) if is_file => if folder.is_empty() { "/" } else { folder }.to_owned(),
                _ => path.clone(),
            };
            let entry = match &candidate.variant.start_file {
                Some(start) if !is_file => format!("{}/{start}", path.trim_end_matches('/')),
                _ => path.clone(),
            };
            Located { folder, entry }
        }
        Origin::Controller { .. } | Origin::Hub { .. } => {
            let folder = folder_there(candidate, facts).unwrap_or_else(|| {
                let root = weights_root(desired, node, facts);
                let hex = candidate.revision.strip_prefix("sha256:").unwrap_or(&candidate.revision);
                format!("{}/{}", root.trim_end_matches('/'), hex.chars().take(16).collect::<String>())
            });
            let entry = match &candidate.variant.start_file {
                Some(start) => format!("{folder}/{start}"),
                None => folder.clone(),
            };
            Located { folder, entry }
        }
    }
}

/// Where a candidate's files are on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// The folder that holds them.
    pub folder: String,
    /// The file or folder an engine is pointed at.
    pub entry: String,
}

/// The folder of what an `on-node:` source names.
fn folder_named(path: &str, facts: Option<&NodeFacts>) -> Option<String> {
    let source = format!("on-node:{path}");
    facts?.weights.iter().find(|found| found.source == source && found.problem.is_none())?.path.clone()
}

/// The folder that holds all of a candidate's files already.
fn folder_there(candidate: &Candidate, facts: Option<&NodeFacts>) -> Option<String> {
    facts?.weights.iter().find(|weights| weights.revision == candidate.revision && weights.complete)?.path.clone()
}

fn weights_root(desired: &Desired, node: &str, facts: Option<&NodeFacts>) -> String {
    let home = facts.and_then(|facts| facts.home.as_deref());
    let configured = desired.nodes.get(node).and_then(|n| n.weights_path.as_ref()).map(|path| path.value.as_str());
    let found = facts.and_then(|facts| facts.weights_path.as_deref());
    // An agent was asked with what the config says, and answers with the absolute path.
    let asked = facts.is_some_and(|facts| facts.agent.is_some());
    let path = if asked { found.or(configured) } else { configured.or(found) }.unwrap_or(DEFAULT_WEIGHTS);
    expand_home(path, home)
}

/// The instance of one placed replica; its ports come later. `None` where the model is not in the config.
pub(super) fn specify(
    placed: &Placed,
    candidate: &Candidate,
    desired: &Desired,
    facts: Option<&NodeFacts>,
    calibrations: &Calibrations,
) -> Option<PlannedInstance> {
    let model = desired.models.get(&placed.model)?;
    let engine = desired.engines.get(&placed.engine);
    // The nearer word wins: the model's, the engine's, the node's.
    let mut env = desired.nodes.get(&placed.node).map(|node| node.extras.env.clone()).unwrap_or_default();
    env.extend(engine.map(|engine| engine.env.clone()).unwrap_or_default());
    env.extend(model.env.clone());
    let program = launch::program(placed, engine);
    let image = engine.and_then(|engine| engine.extras.container.as_ref()).map(|image| image.value.as_str());
    let modules = engine.map(|engine| engine.extras.modules.as_slice()).unwrap_or_default();
    let concurrency = model.concurrency.value;
    let kv_dtype = model.kv_dtype.as_ref().map(|dtype| dtype.value);
    let specification = Digest::of_json(&Specification {
        model: &placed.model,
        engine: placed.engine,
        program,
        engine_version: engine.and_then(|engine| engine.version.as_ref()).map(|version| version.value.as_str()),
        variant: &candidate.label,
        revision: &candidate.revision,
        context: placed.context,
        concurrency,
        kv_dtype,
        tensor_parallel: placed.tensor_parallel,
        pipeline_parallel: placed.pipeline_parallel,
        arguments: model.arguments.iter().map(|a| (a.value.0.as_str(), a.value.1.as_deref())).collect(),
        env: &env,
        image,
        modules: modules.iter().map(|module| module.value.as_str()).collect(),
        layers: &placed.layers,
        vision: launch::loads_projector(placed, model).then_some(placed.vision),
        workers: placed
            .elsewhere
            .iter()
            .map(|part| Worker { node: &part.node, accelerators: &part.accelerators, worker: part.worker.as_ref() })
            .collect(),
    })
    .to_string();
    let cluster = &desired.cluster.name.value;
    let id = instance_id(cluster, &placed.model, placed.replica, &specification, &placed.accelerators, &placed.node);
    let located = weights_on_node(candidate, desired, &placed.node, facts);
    let mut launch = launch::launch(placed, candidate, model, program, &located.entry, facts);
    // What flock itself sets (which devices an engine sees) wins over what people set.
    env.extend(launch.env.clone());
    if let Some(engine) = engine {
        launch::surround(&mut launch, placed, engine, &id, &located.folder, &env);
    }
    let measured = Measurement::of(placed, candidate, model, facts, calibrations);
    let memory = measured.beside(memory(placed));
    let mut spec = spec(placed, candidate, &located, &launch, &env, &memory, &id, &specification);
    spec.sized_for = Some(Box::new(measured.sized_for));
    spec.part = workers::part(placed, &id);
    Some(PlannedInstance {
        instance: id,
        model: placed.model.clone(),
        replica: placed.replica,
        part: None,
        node: placed.node.clone(),
        nodes: workers::nodes(placed),
        engine: placed.engine,
        engine_version: placed.engine_version.clone(),
        image: image.map(str::to_owned),
        modules: modules.iter().map(|module| module.value.clone()).collect(),
        variant: candidate.label.clone(),
        accelerators: placed.accelerators.clone(),
        tensor_parallel: placed.tensor_parallel,
        pipeline_parallel: placed.pipeline_parallel,
        layers: placed.layers.clone(),
        host_layers: host_layers(placed, candidate),
        vision: placed.vision.and_then(|at| placed.accelerators.get(at).cloned()),
        context: placed.context,
        concurrency,
        memory,
        argv: launch.argv,
        env,
        port: 0,
        port_alternates: Vec::new(),
        processes: Vec::new(),
        specification,
        because: placed.because.clone(),
        better: placed.better.clone(),
        spec: Box::new(spec),
    })
}

/// Layers that are in host memory although there are accelerators.
fn host_layers(placed: &Placed, candidate: &Candidate) -> u32 {
    let held: u32 = placed.layers.iter().sum();
    if held == 0 { 0 } else { candidate.variant.architecture.layers.saturating_sub(held) }
}

fn memory(placed: &Placed) -> Memory {
    planned_memory(&placed.accelerators, &placed.per_accelerator, &placed.host)
}

/// Planned bytes as the plan writes them.
pub(super) fn planned_memory(accelerators: &[String], bytes: &[PlacedMemory], host: &PlacedMemory) -> Memory {
    let per_accelerator = accelerators
        .iter()
        .zip(bytes)
        .map(|(uuid, bytes)| AcceleratorMemoryPlan {
            uuid: uuid.clone(),
            weights_bytes: bytes.weights_bytes,
            kv_bytes: bytes.kv_bytes,
            overhead_bytes: bytes.overhead_bytes,
            total_bytes: bytes.total_bytes(),
            capacity_bytes: bytes.capacity_bytes,
            measured_bytes: None,
            estimated_bytes: None,
        })
        .collect();
    let host = HostMemoryPlan {
        weights_bytes: host.weights_bytes,
        kv_bytes: host.kv_bytes,
        overhead_bytes: host.overhead_bytes,
        total_bytes: host.total_bytes(),
        capacity_bytes: host.capacity_bytes,
        measured_bytes: None,
        estimated_bytes: None,
    };
    Memory { per_accelerator, host }
}

#[expect(clippy::too_many_arguments, reason = "all parts of one value, each with its own origin")]
fn spec(
    placed: &Placed,
    candidate: &Candidate,
    located: &Located,
    launch: &Launch,
    env: &BTreeMap<String, String>,
    memory: &Memory,
    id: &str,
    specification: &str,
) -> InstanceSpec {
    let copied = !matches!(candidate.origin, Origin::OnNode { .. });
    let files = if candidate.files.is_empty() {
        candidate.variant.files.iter().map(|file| file.name.clone()).collect()
    } else {
        candidate.files.iter().map(|file| file.name.clone()).collect()
    };
    InstanceSpec {
        instance: id.to_owned(),
        specification: specification.to_owned(),
        model: placed.model.clone(),
        replica: placed.replica,
        engine: placed.engine,
        variant: candidate.label.clone(),
        accelerators: placed.accelerators.clone(),
        argv: launch.argv.clone(),
        env: env.clone(),
        key_env: launch.key_env.clone(),
        port: 0,
        port_alternates: Vec::new(),
        internal_ports: Vec::new(),
        served_name: placed.model.clone(),
        weights: vec![WeightsRef {
            revision: copied.then(|| candidate.revision.clone()),
            folder: located.folder.clone(),
            files,
        }],
        planned_bytes: memory.per_accelerator.iter().map(|bytes| bytes.total_bytes).collect(),
        planned_host_bytes: memory.host.total_bytes,
        ready_timeout_ms: launch.ready_timeout_ms,
        unresponsive_after_ms: 0,
        container: launch.container.clone(),
        sized_for: None,
        part: None,
    }
}
