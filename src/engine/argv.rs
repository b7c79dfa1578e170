//! Argument vectors and environments from settings.

use std::collections::BTreeMap;

use super::{llama_cpp, sglang, vllm};
use crate::base::{Dtype, EngineKind};

/// Bytes planned on one accelerator.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Planned {
    /// Weights.
    pub weights_bytes: u64,
    /// KV cache and constant states.
    pub kv_bytes: u64,
    /// Everything else: context, graphs, activations.
    pub overhead_bytes: u64,
}

impl Planned {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights_bytes.saturating_add(self.kv_bytes).saturating_add(self.overhead_bytes)
    }
}

/// Everything that decides how an engine is started. All of it comes from the plan.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Settings {
    /// The version found on the node; `None` counts as a present one.
    pub version: Option<String>,
    /// Tokens of context per sequence.
    pub context: u64,
    /// Sequences at once.
    pub concurrency: u32,
    /// KV cache type; `None` is 16-bit.
    pub kv_dtype: Option<Dtype>,
    /// Ranks that share every layer; 0 counts as 1. llama.cpp has none.
    pub tensor_parallel: u32,
    /// Stages that hold some layers each; 0 counts as 1.
    pub pipeline_parallel: u32,
    /// Absolute path on the node: a folder for safetensors, the (first) file for GGUF.
    pub model_path: String,
    /// Name the engine serves the model under.
    pub served_name: String,
    /// Total memory of each accelerator; utilisation is a share of it.
    pub device_total_bytes: Vec<u64>,
    /// What may be planned on each accelerator; caps the share that is claimed. Empty where it is unknown.
    pub capacity_bytes: Vec<u64>,
    /// Planned bytes per accelerator, in the order of the accelerators.
    pub planned: Vec<Planned>,
    /// Number of accelerators; 0 runs on the CPU.
    pub accelerators: usize,
    /// Layers per accelerator (the output head counts as one more on the last); empty for equal shares. llama.cpp only.
    pub layer_counts: Vec<u32>,
    /// How many of the layers and the output head are on accelerators, where the others are in host memory. llama.cpp
    /// only.
    pub offloaded: Option<u32>,
    /// Devices of workers on other nodes, which come before the accelerators in `layer_counts`. llama.cpp only.
    pub workers: usize,
    /// The vision projector, where it is loaded. llama.cpp only.
    pub projector: Option<Projector>,
    /// Whether to compute in f16 whatever the weights' configuration says: a device has no bf16.
    pub half: bool,
    /// Further arguments from the config; none of [`owned_arguments`].
    pub arguments: Vec<(String, Option<String>)>,
}

/// A vision projector in a file of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Projector {
    /// Absolute path on the node.
    pub path: String,
    /// The maker of the accelerators, which decides what llama.cpp calls them.
    pub vendor: String,
    /// The accelerator it lies on, by its place among those that the process sees; `None` on the host.
    pub device: Option<usize>,
    /// Whether it has that accelerator to itself, so that no layers go there.
    pub apart: bool,
}

/// Placeholder for the port, which the node agent fills.
pub(super) const PORT: &str = "{port}";
/// Engines listen on loopback only; the way in is the node's SSH connection.
pub(super) const HOST: &str = "127.0.0.1";

/// The whole argument vector, program first. `{port}` is left for the node agent to fill.
pub fn argv(kind: EngineKind, program: &str, settings: &Settings) -> Vec<String> {
    let mut arguments = vec![program.to_owned()];
    match kind {
        EngineKind::LlamaCpp => llama_cpp::arguments(settings, &mut arguments),
        EngineKind::Vllm => vllm::arguments(settings, &mut arguments),
        EngineKind::Sglang => sglang::arguments(settings, &mut arguments),
    }
    for (flag, value) in &settings.arguments {
        arguments.push(flag.clone());
        arguments.extend(value.clone());
    }
    arguments
}

/// Flags that flock sets itself, in every spelling; a config that sets one of them is in error. Also those that
/// would undo what flock relies on (another listener, a key in the arguments, devices of their own).
pub fn owned_arguments(kind: EngineKind) -> &'static [&'static str] {
    match kind {
        EngineKind::LlamaCpp => llama_cpp::OWNED,
        EngineKind::Vllm => vllm::OWNED,
        EngineKind::Sglang => sglang::OWNED,
    }
}

/// The environment variable that hands the engine its key. `None` where the engine reads none.
///
/// Sources: llama.cpp `common/arg.cpp` (`set_env("LLAMA_API_KEY")`), vLLM `vllm/envs.py` (`VLLM_API_KEY`).
pub fn key_environment(kind: EngineKind) -> Option<&'static str> {
    match kind {
        EngineKind::LlamaCpp => Some("LLAMA_API_KEY"),
        EngineKind::Vllm => Some("VLLM_API_KEY"),
        EngineKind::Sglang => None,
    }
}

/// Which devices of one maker (`nvidia`, `amd`) the process may see, by UUID, MIG ones included, because indices
/// move; by index only where a device has no UUID of its own. An empty list hides every GPU of every maker, so
/// that an engine on the CPU cannot take one.
///
/// HIP reads `CUDA_VISIBLE_DEVICES` too, as indices, so that a UUID there would hide every AMD device: those are
/// named to the runtime below HIP alone, which takes UUIDs.
///
/// Sources: CUDA C++ Programming Guide, "CUDA Environment Variables"; ROCm documentation, "GPU isolation
/// techniques" (on Linux, `ROCR_VISIBLE_DEVICES`, a list of indices or UUIDs).
pub fn device_environment(kind: EngineKind, vendor: &str, devices: &[String]) -> BTreeMap<String, String> {
    let visible = devices.join(",");
    let mut environment = BTreeMap::new();
    if vendor != "amd" || devices.is_empty() {
        environment.insert("CUDA_DEVICE_ORDER".to_owned(), "PCI_BUS_ID".to_owned());
        environment.insert("CUDA_VISIBLE_DEVICES".to_owned(), visible.clone());
    }
    if vendor == "amd" || devices.is_empty() {
        environment.insert("ROCR_VISIBLE_DEVICES".to_owned(), visible);
    }
    if kind != EngineKind::LlamaCpp {
        // Nothing is fetched at start: what runs is what the plan pinned.
        environment.insert("HF_HUB_OFFLINE".to_owned(), "1".to_owned());
    }
    environment
}

/// What an engine is told in its environment and not in its arguments: vLLM's layers of each pipeline stage, and
/// llama.cpp's device of the projector before there was an argument for it.
///
/// Sources: vLLM `vllm/envs.py` and `get_pp_indices` of `vllm/distributed/utils.py` (as many numbers as stages, whose sum
/// is that of the layers); llama.cpp `tools/mtmd/clip.cpp` (`MTMD_BACKEND_DEVICE`).
pub fn settings_environment(kind: EngineKind, settings: &Settings, stage_layers: &[u32]) -> BTreeMap<String, String> {
    let mut environment = BTreeMap::new();
    match kind {
        EngineKind::Vllm if stage_layers.len() > 1 => {
            let layers: Vec<String> = stage_layers.iter().map(u32::to_string).collect();
            environment.insert("VLLM_PP_LAYER_PARTITION".to_owned(), layers.join(","));
        }
        EngineKind::LlamaCpp => {
            if let Some(device) = llama_cpp::projector_environment(settings) {
                environment.insert("MTMD_BACKEND_DEVICE".to_owned(), device);
            }
        }
        EngineKind::Vllm | EngineKind::Sglang => {}
    }
    environment
}

/// Adds a flag with its value.
pub(super) fn push(arguments: &mut Vec<String>, flag: &str, value: impl ToString) {
    arguments.push(flag.to_owned());
    arguments.push(value.to_string());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::GIB;
    use crate::engine::usable_bytes;

    fn settings() -> Settings {
        Settings {
            context: 8192,
            concurrency: 4,
            tensor_parallel: 1,
            pipeline_parallel: 1,
            model_path: "/data/m".into(),
            served_name: "coder".into(),
            device_total_bytes: vec![24 * GIB],
            capacity_bytes: vec![22 * GIB],
            planned: vec![Planned { weights_bytes: 15 * GIB, kv_bytes: 4 * GIB, overhead_bytes: GIB }],
            accelerators: 1,
            ..Settings::default()
        }
    }

    fn value<'a>(arguments: &'a [String], flag: &str) -> Option<&'a str> {
        let at = arguments.iter().position(|argument| argument == flag)?;
        arguments.get(at + 1).map(String::as_str)
    }

    fn has(arguments: &[String], flag: &str) -> bool {
        arguments.iter().any(|argument| argument == flag)
    }

    #[test]
    fn llama_server_gets_every_size() {
        let found = argv(EngineKind::LlamaCpp, "/usr/bin/llama-server", &settings());
        assert_eq!(found[0], "/usr/bin/llama-server");
        for (flag, expected) in [
            ("--model", "/data/m"),
            ("--alias", "coder"),
            ("--host", "127.0.0.1"),
            ("--port", "{port}"),
            ("-c", "32768"),
            ("-np", "4"),
            ("-ub", "512"),
            ("-ngl", "9999"),
            ("-fit", "off"),
            ("--cache-ram", "0"),
            ("-lv", "4"),
        ] {
            assert_eq!(value(&found, flag), Some(expected), "{flag}");
        }
        assert!(has(&found, "--kv-unified") && has(&found, "--metrics") && has(&found, "--slots"));
        assert!(!has(&found, "-ts") && !has(&found, "--device"));
        // A level of the config's own stands; before there was such a level, the buffers were always told of.
        let louder = Settings { arguments: vec![("--verbosity".into(), Some("5".into()))], ..settings() };
        assert!(!has(&argv(EngineKind::LlamaCpp, "x", &louder), "-lv"));
        let before = argv(EngineKind::LlamaCpp, "x", &Settings { version: Some("9000".into()), ..settings() });
        assert!(!has(&before, "-lv") && has(&before, "-fit"));
        let old = argv(EngineKind::LlamaCpp, "x", &Settings { version: Some("4000".into()), ..settings() });
        assert!(!has(&old, "-fit") && !has(&old, "--cache-ram") && !has(&old, "--no-webui") && has(&old, "-fa"));
    }

    #[test]
    fn llama_server_on_the_cpu_and_over_several() {
        let cpu = argv(EngineKind::LlamaCpp, "x", &Settings { accelerators: 0, ..settings() });
        assert_eq!((value(&cpu, "-ngl"), value(&cpu, "--device")), (Some("0"), Some("none")));
        let two = Settings { accelerators: 2, kv_dtype: Some(Dtype::Q8_0), ..settings() };
        let equal = argv(EngineKind::LlamaCpp, "x", &two);
        assert_eq!((value(&equal, "-sm"), value(&equal, "-ts")), (Some("layer"), Some("1,1")));
        assert_eq!((value(&equal, "-ctk"), value(&equal, "-ctv")), (Some("q8_0"), Some("q8_0")));
        let counted = argv(EngineKind::LlamaCpp, "x", &Settings { layer_counts: vec![24, 9], ..two });
        assert_eq!((value(&counted, "-ts"), value(&counted, "-ngl")), (Some("24,9"), Some("9999")));
        let part = Settings { offloaded: Some(21), ..settings() };
        let part = argv(EngineKind::LlamaCpp, "x", &part);
        assert_eq!((value(&part, "-ngl"), value(&part, "-ts")), (Some("21"), None));
    }

    #[test]
    fn the_projector_lies_where_it_was_planned() {
        let at = |device, apart, vendor: &str, version: Option<&str>| {
            let projector = Projector { path: "/m/mmproj.gguf".into(), vendor: vendor.into(), device, apart };
            let settings = Settings {
                projector: Some(projector),
                accelerators: if apart { 2 } else { 1 },
                version: version.map(str::to_owned),
                ..settings()
            };
            let environment = settings_environment(EngineKind::LlamaCpp, &settings, &[]);
            (argv(EngineKind::LlamaCpp, "x", &settings), environment.get("MTMD_BACKEND_DEVICE").cloned())
        };
        let (apart, variable) = at(Some(1), true, "nvidia", None);
        assert_eq!((value(&apart, "--mmproj"), variable), (Some("/m/mmproj.gguf"), None));
        assert_eq!((value(&apart, "--device"), value(&apart, "--mmproj-device")), (Some("CUDA0"), Some("CUDA1")));
        assert!(!has(&apart, "-ts") && !has(&apart, "--no-mmproj-offload"));
        let (amd, variable) = at(Some(1), true, "amd", Some("7000"));
        assert_eq!((value(&amd, "--device"), variable.as_deref()), (Some("ROCm0"), Some("ROCm1")));
        assert!(!has(&amd, "--mmproj-device"));
        let (beside, variable) = at(Some(0), false, "nvidia", None);
        assert_eq!(
            (value(&beside, "--mmproj-device"), value(&beside, "--device"), variable),
            (Some("CUDA0"), None, None)
        );
        let (host, _) = at(None, false, "nvidia", None);
        assert!(has(&host, "--no-mmproj-offload") && !has(&host, "--mmproj-device"));
    }

    #[test]
    fn stages_of_vllm_are_told_and_claim_what_each_needs() {
        let unequal = Settings {
            pipeline_parallel: 2,
            accelerators: 2,
            device_total_bytes: vec![24 * GIB, 8 * GIB],
            capacity_bytes: vec![12 * GIB, 7 * GIB],
            planned: vec![
                Planned { weights_bytes: 8 * GIB, kv_bytes: 2 * GIB, overhead_bytes: GIB },
                Planned { weights_bytes: 4 * GIB, kv_bytes: GIB, overhead_bytes: GIB },
            ],
            ..settings()
        };
        let found = argv(EngineKind::Vllm, "vllm", &unequal);
        // One share for all: 11 of 24 and 6 of 8 GiB. The cache's own size counts, so the smaller share only has to be
        // free at the start.
        assert_eq!(value(&found, "--gpu-memory-utilization"), Some("0.46"));
        assert_eq!(value(&found, "--kv-cache-memory-bytes"), Some("2147483648"));
        assert_eq!(value(&found, "--pipeline-parallel-size"), Some("2"));
        let old = Settings { version: Some("0.9.2".into()), ..unequal.clone() };
        assert_eq!(value(&argv(EngineKind::Vllm, "vllm", &old), "--gpu-memory-utilization"), Some("0.75"));
        let told = settings_environment(EngineKind::Vllm, &unequal, &[21, 11]);
        assert_eq!(told["VLLM_PP_LAYER_PARTITION"], "21,11");
        assert!(settings_environment(EngineKind::Vllm, &unequal, &[]).is_empty());
    }

    #[test]
    fn vllm_claims_what_was_planned() {
        let found = argv(EngineKind::Vllm, "vllm", &settings());
        assert_eq!(found[1..3], ["serve".to_owned(), "/data/m".to_owned()]);
        for (flag, expected) in [
            ("--max-model-len", "8192"),
            ("--max-num-seqs", "4"),
            ("--max-num-batched-tokens", "2048"),
            // 20 of 24 GiB are 0.8333.
            ("--gpu-memory-utilization", "0.84"),
            ("--kv-cache-memory-bytes", "4294967296"),
            ("--tensor-parallel-size", "1"),
            ("--served-model-name", "coder"),
            ("--host", "127.0.0.1"),
        ] {
            assert_eq!(value(&found, flag), Some(expected), "{flag}");
        }
        // A need above the capacity's whole hundredths claims no more than those.
        let tight = Settings { capacity_bytes: vec![20 * GIB], ..settings() };
        assert_eq!(value(&argv(EngineKind::Vllm, "vllm", &tight), "--gpu-memory-utilization"), Some("0.83"));
        assert_eq!(usable_bytes(EngineKind::Vllm, 20 * GIB, 24 * GIB), 83 * 24 * GIB / 100);
        assert_eq!(usable_bytes(EngineKind::LlamaCpp, 20 * GIB, 24 * GIB), 20 * GIB);
        let old = Settings { version: Some("0.9.2".into()), kv_dtype: Some(Dtype::Fp8), ..settings() };
        let old = argv(EngineKind::Vllm, "vllm", &old);
        assert!(!has(&old, "--kv-cache-memory-bytes"));
        assert_eq!(value(&old, "--kv-cache-dtype"), Some("fp8"));
    }

    #[test]
    fn flags_that_are_set_are_owned_and_keys_never_travel() {
        for kind in EngineKind::ALL {
            let settings = Settings {
                accelerators: 2,
                kv_dtype: Some(Dtype::Fp8),
                tensor_parallel: 2,
                half: true,
                arguments: vec![("--seed".into(), Some("7".into())), ("--verbose".into(), None)],
                ..settings()
            };
            let found = argv(*kind, "x", &settings);
            assert_eq!(found[found.len() - 3..], ["--seed", "7", "--verbose"]);
            for flag in found[..found.len() - 3].iter().filter(|argument| argument.starts_with('-')) {
                let known = owned_arguments(*kind).contains(&flag.as_str());
                assert!(known || ["--enable-metrics", "-lv"].contains(&flag.as_str()), "{kind} {flag}");
            }
            assert!(!found.iter().any(|argument| argument.contains("key")));
            assert!(owned_arguments(*kind).contains(&"--api-key"));
        }
        assert_eq!(key_environment(EngineKind::LlamaCpp), Some("LLAMA_API_KEY"));
        assert_eq!(key_environment(EngineKind::Vllm), Some("VLLM_API_KEY"));
    }

    #[test]
    fn only_the_named_devices_are_visible() {
        let none = device_environment(EngineKind::LlamaCpp, "nvidia", &[]);
        assert_eq!((none["CUDA_VISIBLE_DEVICES"].as_str(), none["ROCR_VISIBLE_DEVICES"].as_str()), ("", ""));
        let two = device_environment(EngineKind::Vllm, "nvidia", &["GPU-a".into(), "GPU-b".into()]);
        assert!(!two.contains_key("ROCR_VISIBLE_DEVICES"));
        assert_eq!(two["CUDA_VISIBLE_DEVICES"], "GPU-a,GPU-b");
        assert_eq!(two["CUDA_DEVICE_ORDER"], "PCI_BUS_ID");
        // HIP would take a UUID in CUDA's variable for an index that does not exist.
        let amd = device_environment(EngineKind::LlamaCpp, "amd", &["GPU-7d9f5a3c1b2e4f60".into(), "1".into()]);
        assert_eq!(amd["ROCR_VISIBLE_DEVICES"], "GPU-7d9f5a3c1b2e4f60,1");
        assert!(!amd.contains_key("CUDA_VISIBLE_DEVICES"));
    }
}
