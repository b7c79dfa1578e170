//! The one place where the plan asks the engine room how a program is started.

use std::collections::BTreeMap;

use crate::base::EngineKind;
use crate::config::{Engine, Model};
use crate::engine::{self, Contained, Planned, Projector, Runtime, Settings};
use crate::inventory::{ContainerRef, NodeFacts};
use crate::placement::{Candidate, Placed};
use crate::sizing::{computes_in_half, layer_split};

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
    /// The container it runs in, where that outlives its client.
    pub container: Option<ContainerRef>,
    /// The maker of its devices.
    pub vendor: String,
    /// What the maker's runtime knows its devices by.
    pub devices: Vec<String>,
}

/// The maker of a replica's devices, and what its runtime knows them by: a shape never mixes makers. A device whose
/// UUID is flock's own name for it (its `unknown` says why) goes by its index.
pub(super) fn visible(accelerators: &[String], facts: Option<&NodeFacts>) -> (String, Vec<String>) {
    let known = |uuid: &String| facts.and_then(|facts| facts.accelerator(uuid));
    let vendor = accelerators.iter().find_map(known).map_or_else(|| "nvidia".to_owned(), |a| a.vendor.clone());
    let name = |uuid: &String| match known(uuid) {
        Some(device) if device.unknown.contains_key("uuid") => device.index.to_string(),
        _ => uuid.clone(),
    };
    (vendor, accelerators.iter().map(name).collect())
}

/// How this replica's program is started. `entry` is the path of its weights on the node.
pub(super) fn launch(
    placed: &Placed,
    candidate: &Candidate,
    model: &Model,
    program: &str,
    entry: &str,
    facts: Option<&NodeFacts>,
) -> Launch {
    let (vendor, names) = visible(&placed.accelerators, facts);
    let devices = placed.accelerators.len();
    let ranks = (placed.tensor_parallel * placed.pipeline_parallel) as usize;
    let apart = placed.vision.is_some_and(|at| at >= ranks);
    let all = candidate.variant.architecture.layers;
    let layers = match placed.engine {
        // As it was sized: what was planned, else equal shares, and every layer named, however many there are.
        // Those of the workers pass first, and the output head comes last wherever that is.
        EngineKind::LlamaCpp if !placed.elsewhere.is_empty() => {
            let mut layers = placed.layers.clone();
            layers.rotate_left(devices.min(placed.layers.len()));
            if let Some(last) = layers.last_mut() {
                *last += 1;
            }
            layers
        }
        EngineKind::LlamaCpp if devices > 0 => match placed.layers.split_last() {
            Some((last, before)) => before.iter().copied().chain([last + 1]).collect(),
            None => layer_split(all, (devices - usize::from(apart)) as u32),
        },
        EngineKind::LlamaCpp | EngineKind::Vllm | EngineKind::Sglang => Vec::new(),
    };
    let held: u32 = placed.layers.iter().sum();
    let offloads = placed.engine == EngineKind::LlamaCpp && held > 0 && held < all;
    // Names are inside the folder of all files, which the entry begins with.
    let start = candidate.variant.start_file.as_deref().and_then(|start| entry.strip_suffix(start));
    let folder = start.unwrap_or_else(|| entry.rsplit_once('/').map_or("", |(folder, _)| folder)).trim_end_matches('/');
    let projector = candidate.variant.projector.as_ref().filter(|_| loads_projector(placed, model)).map(|file| {
        let path = format!("{folder}/{}", file.name);
        Projector { path, vendor: vendor.clone(), device: placed.vision, apart }
    });
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
        offloaded: offloads.then_some(held + 1),
        workers: placed.elsewhere.iter().map(|part| part.accelerators.len().max(1)).sum(),
        projector,
        half: placed
            .accelerators
            .iter()
            .filter_map(|uuid| facts?.accelerator(uuid))
            .any(|device| computes_in_half(placed.engine, &candidate.variant, device)),
        arguments: model.arguments.iter().map(|argument| argument.value.clone()).collect(),
    };
    let mut env = engine::device_environment(placed.engine, &vendor, &names);
    env.extend(engine::settings_environment(placed.engine, &settings, &placed.layers));
    let timeout = engine::ready_timeout(placed.engine, candidate.variant.download_bytes);
    // Through a cable at 100 Mbit/s, what the workers hold takes longer than from a disk.
    let timeout = if placed.elsewhere.is_empty() { timeout } else { timeout * 8 };
    Launch {
        argv: engine::argv(placed.engine, program, &settings),
        env,
        key_env: engine::key_environment(placed.engine).map(str::to_owned),
        ready_timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
        container: None,
        vendor,
        devices: names,
    }
}

/// Whether the vision projector in a file of its own is loaded: vision is wanted of the model, and the engine is the one
/// that takes it so.
pub(super) fn loads_projector(placed: &Placed, model: &Model) -> bool {
    placed.engine == EngineKind::LlamaCpp && model.extras.parts.iter().any(|part| part.value == "vision")
}

/// The program that a placed replica names, and what runs it: on a node whose container runtime was found for it,
/// placement's program is the runtime's.
pub(super) fn program<'a>(placed: &'a Placed, engine: Option<&'a Engine>) -> &'a str {
    let Some(engine) = engine.filter(|engine| runtime(placed, engine).is_some()) else { return &placed.program };
    let own = engine.paths.iter().find(|path| path.node.as_deref() == Some(placed.node.as_str()));
    let general = || engine.paths.iter().find(|path| path.node.is_none());
    own.or_else(general).map_or(engine::program_in_image(placed.engine), |path| &path.path.value)
}

fn runtime<'a>(placed: &Placed, engine: &'a Engine) -> Option<(Runtime, &'a str)> {
    let image = engine.extras.container.as_ref()?;
    Some((Runtime::of(&placed.program)?, &image.value))
}

/// Puts the program into its container and loads its modules. `env` is all of its environment.
pub(super) fn surround(
    launch: &mut Launch,
    placed: &Placed,
    engine: &Engine,
    instance: &str,
    weights: &str,
    env: &BTreeMap<String, String>,
) {
    if let Some((runtime, image)) = runtime(placed, engine) {
        let name = format!("flock-{instance}");
        // The agent's marks go in too: processes that can be seen are then known to be ours.
        let more = launch.key_env.as_deref().into_iter().chain(["FLOCK_INSTANCE", "FLOCK_INSTANCE_STATE"]);
        let contained = Contained {
            runtime: &placed.program,
            image,
            name: &name,
            weights,
            accelerators: &launch.devices,
            vendor: &launch.vendor,
            env: engine::names(env, more),
        };
        launch.argv = engine::in_container(runtime, &contained, &launch.argv);
        let stays = runtime.outlives_client();
        launch.container = stays.then(|| ContainerRef { program: placed.program.clone(), name });
    }
    let modules: Vec<String> = engine.extras.modules.iter().map(|module| module.value.clone()).collect();
    launch.argv = engine::with_modules(&modules, std::mem::take(&mut launch.argv));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Spanned;
    use crate::plan::PlannedInstance;
    use crate::plan::testing::*;

    #[test]
    fn modules_containers_and_environments_are_in_the_plan() {
        use crate::config::{Engine, EngineExtras};
        let spanned = |text: &str| Spanned::new(text.to_owned(), at("cluster.kdl", 9));
        let planned = |program: &str, extras: EngineExtras| {
            let mut world = World::new(&[("ada-1", 1)]);
            world.want(&[Wish::new("coder", 3)], &[("coder", 0, "ada-1", vec![0], 18)]);
            for placed in &mut world.placement.instances {
                placed.program = program.to_owned();
            }
            let kind = world.placement.instances[0].engine;
            let env = BTreeMap::from([("A".to_owned(), "engine".to_owned()), ("B".to_owned(), "engine".to_owned())]);
            let engine =
                Engine { kind: Spanned::new(kind, at("cluster.kdl", 8)), version: None, paths: vec![], env, extras };
            world.desired.engines = BTreeMap::from([(kind, engine)]);
            let own = BTreeMap::from([("B".to_owned(), "node".to_owned()), ("C".to_owned(), "node".to_owned())]);
            world.desired.nodes.get_mut("ada-1").expect("there").extras.env = own;
            world.plan().instances.remove(0)
        };
        let plain = planned("/opt/vllm/bin/vllm", EngineExtras::default());
        assert_eq!(plain.argv[0], "/opt/vllm/bin/vllm");
        let env = |name: &str| plain.env.get(name).map(String::as_str);
        assert_eq!((env("A"), env("B"), env("C")), (Some("engine"), Some("engine"), Some("node")));
        let modules = EngineExtras { modules: vec![spanned("cuda/12")], ..EngineExtras::default() };
        let loaded = planned("/opt/vllm/bin/vllm", modules);
        assert_ne!(loaded.specification, plain.specification);
        assert_eq!((loaded.argv[0].as_str(), &loaded.modules), ("/bin/bash", &vec!["cuda/12".to_owned()]));
        assert!(loaded.argv.ends_with(&plain.argv), "{:?}", loaded.argv);
        let image = || EngineExtras { container: Some(spanned("vllm/vllm-openai:v0.11.0")), ..EngineExtras::default() };
        let docker = planned("/usr/bin/docker", image());
        let container = docker.spec.container.as_ref().expect("outlives its client");
        assert_eq!(container.name, format!("flock-{}", docker.instance));
        assert!(docker.argv.contains(&container.name) && docker.argv[..2] == ["/usr/bin/docker", "run"]);
        assert_eq!(docker.spec.argv, docker.argv);
        let apptainer = planned("/usr/bin/apptainer", image());
        assert!(apptainer.spec.container.is_none() && apptainer.argv[1] == "exec");
        assert_eq!(apptainer.image.as_deref(), Some("vllm/vllm-openai:v0.11.0"));
        // One that a snapshot found outside any container runs as it is.
        assert_eq!(planned("/opt/vllm/bin/vllm", image()).argv, plain.argv);
    }

    #[test]
    fn layers_that_are_told_are_in_arguments_environment_and_specification() {
        use crate::weights::VariantFile;
        let planned = |kind: EngineKind, layers: &[u32], vision: Option<usize>, part: bool| {
            let mut world = World::new(&[("ada-1", 2)]);
            let cards = if layers.len() == 1 && vision.is_none() { vec![0] } else { vec![0, 1] };
            world.want(&[Wish::new("coder", 3)], &[("coder", 0, "ada-1", cards, 18)]);
            for placed in &mut world.placement.instances {
                placed.engine = kind;
                placed.tensor_parallel = 1;
                placed.pipeline_parallel = placed.accelerators.len() as u32 - u32::from(vision == Some(1));
                placed.layers = layers.to_vec();
                placed.vision = vision;
            }
            let variant = |variant: &mut crate::weights::Variant| {
                let file = VariantFile { name: "mmproj-f16.gguf".to_owned(), size_bytes: Some(9) };
                variant.projector = Some(file);
                variant.start_file = Some("coder.gguf".to_owned());
            };
            world.candidates.values_mut().flatten().flatten().for_each(|found| variant(&mut found.variant));
            if part {
                let words = ["vision", "language"].map(|word| Spanned::new(word.to_owned(), at("cluster.kdl", 5)));
                world.desired.models.get_mut("coder").expect("there").extras.parts = words.to_vec();
            }
            world.plan().instances.remove(0)
        };
        let value = |instance: &PlannedInstance, flag: &str| {
            let at = instance.argv.iter().position(|argument| argument == flag)?;
            instance.argv.get(at + 1).cloned()
        };
        let llama = EngineKind::LlamaCpp;
        let even = planned(llama, &[], None, false);
        let split = planned(llama, &[22, 10], None, false);
        assert_eq!((value(&split, "-ts").as_deref(), value(&split, "-ngl").as_deref()), (Some("22,11"), Some("9999")));
        assert_eq!((&split.layers, split.host_layers), (&vec![22, 10], 0));
        assert_eq!(split.spec.sized_for.as_ref().map(|sized| sized.layers.clone()), Some(vec![22, 10]));
        assert_ne!(split.specification, even.specification);
        assert_eq!(value(&split, "--mmproj"), None);
        let other = planned(llama, &[21, 11], None, false);
        assert_ne!(split.specification, other.specification);
        let part = planned(llama, &[20], None, false);
        assert_eq!((value(&part, "-ngl").as_deref(), part.host_layers), (Some("21"), 12));
        let apart = planned(llama, &[], Some(1), true);
        assert_eq!(
            (value(&apart, "--device").as_deref(), value(&apart, "--mmproj-device").as_deref()),
            (Some("CUDA0"), Some("CUDA1"))
        );
        assert_eq!(apart.vision.as_ref(), apart.accelerators.get(1));
        let path = value(&apart, "--mmproj").expect("loaded");
        let model = value(&apart, "--model").expect("loaded");
        assert_eq!(path.strip_suffix("mmproj-f16.gguf"), model.strip_suffix("coder.gguf"));
        let stages = planned(EngineKind::Vllm, &[22, 10], None, false);
        assert_eq!(stages.env.get("VLLM_PP_LAYER_PARTITION").map(String::as_str), Some("22,10"));
        assert_eq!(value(&stages, "--pipeline-parallel-size").as_deref(), Some("2"));
    }
}
