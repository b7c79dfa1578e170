//! `llama-server`.
//!
//! Flags: `common/arg.cpp` of llama.cpp. Sizes: with `--kv-unified` the context `-c` is the total that all
//! slots share, so it is the context of one sequence times the sequences.

use super::argv::{HOST, PORT, Settings, push};
use super::versions::{Feature, has};

/// Physical batch. It decides the compute buffer and the sliding cache, so it is set and not left to the
/// default (which is the same).
pub const LLAMA_UBATCH: u64 = 512;
/// Copies of the sliding window or recurrent state that a slot may keep in host memory. The default of 32 can
/// take several GiB.
pub const CONTEXT_CHECKPOINTS: u64 = 2;

/// The level of logging at which the buffers are told of: what was really taken is read there. It is about 2 KiB for
/// each request, prompts and answers not among them; the next level would print those.
const TRACE: u32 = 4;
/// Spellings with which a config sets a level of its own.
const LEVELS: &[&str] = &["-lv", "--verbosity", "--log-verbosity", "-v", "--verbose", "--log-verbose"];

/// More layers than any model has (the usual 99 leaves some of a 126-layer model on the CPU).
const ALL_LAYERS: u32 = 9999;

pub(super) const OWNED: &[&str] = &[
    "-m",
    "--model",
    "-mu",
    "--model-url",
    "-hf",
    "-hfr",
    "--hf-repo",
    "-hff",
    "--hf-file",
    "-hft",
    "--hf-token",
    "--models-dir",
    "--models-preset",
    "--models-max",
    "-c",
    "--ctx-size",
    "-np",
    "--parallel",
    "-ngl",
    "--gpu-layers",
    "--n-gpu-layers",
    "-kvu",
    "--kv-unified",
    "-no-kvu",
    "--no-kv-unified",
    "--kv-unified-per-slot",
    "-ctk",
    "--cache-type-k",
    "-ctv",
    "--cache-type-v",
    "-b",
    "--batch-size",
    "-ub",
    "--ubatch-size",
    "-fa",
    "--flash-attn",
    "-fit",
    "--fit",
    "-fitt",
    "--fit-target",
    "-fitc",
    "--fit-ctx",
    "-sm",
    "--split-mode",
    "-ts",
    "--tensor-split",
    "-mg",
    "--main-gpu",
    "-dev",
    "--device",
    "--rpc",
    "-mm",
    "--mmproj",
    "-mmu",
    "--mmproj-url",
    "--mmproj-auto",
    "--no-mmproj",
    "--no-mmproj-auto",
    "--mmproj-offload",
    "--no-mmproj-offload",
    "-mmdev",
    "--mmproj-device",
    "-a",
    "--alias",
    "--host",
    "--port",
    "--reuse-port",
    "--api-prefix",
    "--ssl-key-file",
    "--ssl-cert-file",
    "--api-key",
    "--api-key-file",
    "--metrics",
    "--slots",
    "--no-slots",
    "--slot-save-path",
    "--webui",
    "--no-webui",
    "--ui",
    "--no-ui",
    "-cram",
    "--cache-ram",
    "-ctxcp",
    "--ctx-checkpoints",
    "--swa-checkpoints",
    "--swa-full",
    "-nkvo",
    "--no-kv-offload",
    "--kv-offload",
    "--offline",
    "--props",
    "--log-disable",
    "--log-file",
    "--version",
    "--help",
    "-h",
    "--embedding",
    "--embeddings",
    "--reranking",
];

/// Adds everything after the program.
pub(super) fn arguments(settings: &Settings, out: &mut Vec<String>) {
    let version = settings.version.as_deref();
    let sequences = u64::from(settings.concurrency.max(1));
    push(out, "--model", &settings.model_path);
    push(out, "--alias", &settings.served_name);
    push(out, "--host", HOST);
    push(out, "--port", PORT);
    push(out, "-c", settings.context.saturating_mul(sequences));
    push(out, "-np", sequences);
    if has(Feature::KvUnified, version) {
        out.push("--kv-unified".to_owned());
    }
    // A pass is what an engine over several nodes is seen to come on by: the shorter the sooner.
    push(out, "-b", if settings.workers > 0 { LLAMA_UBATCH } else { LLAMA_UBATCH.max(2048) });
    push(out, "-ub", LLAMA_UBATCH);
    // Without flash attention the compute buffer grows with heads x context.
    if has(Feature::FlashAttentionValue, version) {
        push(out, "-fa", "on");
    } else {
        out.push("-fa".to_owned());
    }
    if let Some(dtype) = settings.kv_dtype {
        push(out, "-ctk", dtype.word());
        push(out, "-ctv", dtype.word());
    }
    if settings.workers > 0 {
        // Devices of workers come first in its own order; where there are no others, the host keeps the first layers.
        push(out, "-ngl", settings.offloaded.unwrap_or(ALL_LAYERS));
        push(out, "-sm", "layer");
        push(out, "-ts", tensor_split(settings, settings.workers + settings.accelerators));
    } else if settings.accelerators == 0 {
        push(out, "-ngl", 0);
        if has(Feature::DeviceNone, version) {
            push(out, "--device", "none");
        }
    } else {
        push(out, "-ngl", settings.offloaded.unwrap_or(ALL_LAYERS));
        let apart = settings.projector.as_ref().is_some_and(|projector| projector.apart);
        let devices = settings.accelerators - usize::from(apart);
        if devices > 1 {
            push(out, "-sm", "layer");
            push(out, "-ts", tensor_split(settings, devices));
        }
        if let Some(projector) = settings.projector.as_ref().filter(|_| apart) {
            let names: Vec<String> = (0..devices).map(|device| device_name(&projector.vendor, device)).collect();
            push(out, "--device", names.join(","));
        }
    }
    if let Some(projector) = &settings.projector {
        push(out, "--mmproj", &projector.path);
        match projector.device {
            None => out.push("--no-mmproj-offload".to_owned()),
            Some(device) if has(Feature::ProjectorDevice, version) => {
                push(out, "--mmproj-device", device_name(&projector.vendor, device));
            }
            // Older versions are told in the environment.
            Some(_) => {}
        }
    }
    if has(Feature::Fit, version) {
        push(out, "-fit", "off");
    }
    if has(Feature::CacheRam, version) {
        push(out, "--cache-ram", 0);
    }
    if has(Feature::ContextCheckpoints, version) {
        push(out, "--ctx-checkpoints", CONTEXT_CHECKPOINTS);
    }
    out.push("--metrics".to_owned());
    out.push("--slots".to_owned());
    if has(Feature::NoWebUi, version) {
        out.push("--no-webui".to_owned());
    }
    let own = settings.arguments.iter().any(|(flag, _)| LEVELS.contains(&flag.as_str()));
    if has(Feature::TraceLevel, version) && !own {
        push(out, "-lv", TRACE);
    }
}

/// What llama.cpp calls a device that its process sees: the backend of the maker's runtime and a number.
///
/// Source: `ggml/src/ggml-cuda/ggml-cuda.cu` (`GGML_CUDA_NAME`, in a HIP build `ROCm`).
fn device_name(vendor: &str, device: usize) -> String {
    format!("{}{device}", if vendor == "amd" { "ROCm" } else { "CUDA" })
}

/// The device of the projector, for versions that read it in their environment only.
pub(super) fn projector_environment(settings: &Settings) -> Option<String> {
    let projector = settings.projector.as_ref()?;
    let told = has(Feature::ProjectorDevice, settings.version.as_deref());
    projector.device.filter(|_| !told).map(|device| device_name(&projector.vendor, device))
}

/// Proportions for `-ts`: the planned layer counts, else equal shares.
fn tensor_split(settings: &Settings, devices: usize) -> String {
    let counts: Vec<String> = if settings.layer_counts.len() == devices {
        settings.layer_counts.iter().map(u32::to_string).collect()
    } else {
        vec!["1".to_owned(); devices]
    };
    counts.join(",")
}

/// The argument vector of a worker: it holds layers for an instance on another node, at this address of its own, and
/// asks nobody who comes for a key.
///
/// Source: `tools/rpc/rpc-server.cpp`.
pub fn worker_argv(program: &str, address: &str) -> Vec<String> {
    [program, "-H", address, "-p", PORT].map(str::to_owned).to_vec()
}

/// Where a worker with this argument vector and port is reached.
pub fn worker_endpoint(argv: &[String], port: u16) -> Option<String> {
    let at = argv.iter().position(|argument| argument == "-H")?;
    Some(format!("{}:{port}", argv.get(at + 1)?))
}

/// Tells an instance's argument vector where its workers are, in the order of their layers.
pub fn tell_workers(argv: &mut Vec<String>, endpoints: &[String]) {
    if !endpoints.is_empty() {
        argv.splice(1..1, ["--rpc".to_owned(), endpoints.join(",")]);
    }
}
