//! Engine flags that no config may set, each with what to write instead. Which flags those are is the engines'
//! own knowledge; only the hints are kept here.

use crate::base::EngineKind;
use crate::engine::owned_arguments;

const ADDRESS: &str = "the plan chooses the port; `ports` of a node and `listen` of a model widen it";
const CONCURRENCY: &str = "write `concurrency` in the model's block";
const CONTEXT: &str = "write `context` in the model's block";
const DEVICES: &str = "the plan chooses accelerators; `place` says where";
const KEY: &str = "remove it: every user of a node can read arguments, and every instance gets a key of its own";
const KV: &str = "write `kv-dtype` in the model's block";
const LAYERS: &str =
    "the plan decides how layers and tensors are split; `place { allow offload=#true }` allows host memory";
const MEMORY: &str = "memory follows from the plan; `reserve` leaves some free";
const MODEL: &str = "write `source` in the model's block";
const NAME: &str = "the instance is served under the name of its model";
const NODES: &str = "an instance runs on one node; `replicas` asks for more of them";
const OTHER: &str = "remove it: flock could no longer run or observe the instance as planned";
const PARTS: &str = "write `part \"vision\"` in the model's block; the file is that beside the weights";
const QUALITY: &str = "write `quality min=…` or `variant` lines in the model's block";

/// Hints for flags of any engine; all others get [`OTHER`].
#[rustfmt::skip]
const HINTS: &[(&str, &[&str])] = &[
    (ADDRESS, &[
        "--host", "--port", "--uds", "--reuse-port", "--api-prefix", "--root-path", "--ssl-keyfile", "--ssl-certfile",
        "--ssl-key-file", "--ssl-cert-file",
    ]),
    (CONCURRENCY, &["-np", "--parallel", "--max-num-seqs", "--max-running-requests"]),
    (CONTEXT, &[
        "-c", "--ctx-size", "-kvu", "--kv-unified", "-no-kvu", "--no-kv-unified", "--kv-unified-per-slot",
        "--max-model-len", "--context-length",
    ]),
    (DEVICES, &["-dev", "--device", "-mg", "--main-gpu", "--rpc"]),
    (KEY, &["--api-key", "--api-key-file", "-hft", "--hf-token"]),
    (KV, &["-ctk", "--cache-type-k", "-ctv", "--cache-type-v", "--kv-cache-dtype"]),
    (LAYERS, &[
        "-ngl", "--gpu-layers", "--n-gpu-layers", "-ts", "--tensor-split", "-sm", "--split-mode", "-tp", "--tp",
        "--tp-size", "--tensor-parallel-size", "-pp", "--pp-size", "--pipeline-parallel-size", "--cpu-offload-gb",
    ]),
    (MEMORY, &[
        "-b", "--batch-size", "-ub", "--ubatch-size", "-fa", "--flash-attn", "-fit", "--fit", "-fitt",
        "--fit-target", "-fitc", "--fit-ctx", "-cram", "--cache-ram", "-ctxcp", "--ctx-checkpoints",
        "--swa-checkpoints", "--swa-full", "-nkvo", "--no-kv-offload", "--kv-offload", "--max-num-batched-tokens",
        "--gpu-memory-utilization", "--kv-cache-memory-bytes", "--kv-cache-memory", "--swap-space",
        "--num-gpu-blocks-override", "--kv-offloading-size", "--max-total-tokens", "--chunked-prefill-size",
        "--mem-fraction-static",
    ]),
    (MODEL, &[
        "-m", "--model", "-mu", "--model-url", "-hf", "-hfr", "--hf-repo", "-hff", "--hf-file", "--models-dir",
        "--models-preset", "--models-max", "--model-path", "--revision", "--download-dir", "--load-format",
    ]),
    (NAME, &["-a", "--alias", "--served-model-name"]),
    (NODES, &[
        "-dp", "--dp-size", "--data-parallel-size", "--nnodes", "--node-rank", "--master-addr", "--master-port",
        "--dist-init-addr", "--distributed-executor-backend", "--headless", "--api-server-count",
    ]),
    (PARTS, &[
        "-mm", "--mmproj", "-mmu", "--mmproj-url", "--mmproj-auto", "--no-mmproj", "--no-mmproj-auto",
        "--mmproj-offload", "--no-mmproj-offload", "-mmdev", "--mmproj-device",
    ]),
    (QUALITY, &["--dtype", "--quantization", "-q"]),
];

/// Flags of their own that begin an owned one.
const COMPLETE: &[&str] = &["--tokenizer"];

/// The name of a flag as the engines read it: `--flag=value` is split, and `_` is `-`.
pub(super) fn name(flag: &str) -> String {
    let name = flag.split_once('=').map_or(flag, |(name, _)| name);
    if name.starts_with("--") { name.replace('_', "-") } else { name.to_owned() }
}

/// What to write instead of a flag that no config may set; `None` for all others.
pub(super) fn instead(engine: EngineKind, flag: &str) -> Option<&'static str> {
    let name = name(flag);
    // The Python engines also take the beginning of a flag (argparse's abbreviations).
    let abbreviates = |owned: &&&str| {
        engine != EngineKind::LlamaCpp
            && name.len() > 2
            && name.starts_with("--")
            && owned.starts_with(&name)
            && !COMPLETE.contains(&name.as_str())
    };
    let table = owned_arguments(engine);
    let owned = table.iter().find(|owned| **owned == name).or_else(|| table.iter().find(abbreviates))?;
    let hint = HINTS.iter().find(|(_, flags)| flags.contains(owned));
    Some(hint.map_or(OTHER, |(hint, _)| hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_that_an_engine_owns_is_refused_in_every_spelling() {
        for kind in EngineKind::ALL {
            for flag in owned_arguments(*kind) {
                assert!(instead(*kind, flag).is_some(), "{kind} {flag}");
                assert!(instead(*kind, &format!("{flag}=x=y")).is_some(), "{kind} {flag}=x=y");
                if let Some(rest) = flag.strip_prefix("--") {
                    assert!(instead(*kind, &format!("--{}", rest.replace('-', "_"))).is_some(), "{kind} {flag}");
                }
            }
        }
        assert_eq!(instead(EngineKind::Vllm, "--max-model-le"), Some(CONTEXT));
        assert_eq!(instead(EngineKind::LlamaCpp, "--hf-token=secret"), Some(KEY));
        assert_eq!(instead(EngineKind::Vllm, "--config"), Some(OTHER));
    }

    #[test]
    fn no_hint_is_for_a_flag_that_no_engine_owns() {
        for flag in HINTS.iter().flat_map(|(_, flags)| *flags) {
            assert!(EngineKind::ALL.iter().any(|kind| owned_arguments(*kind).contains(flag)), "{flag}");
        }
    }

    #[test]
    fn flags_that_tune_are_accepted() {
        for flag in [
            "--threads",
            "-t",
            "--threads-batch",
            "--no-mmap",
            "--mlock",
            "--numa",
            "--chat-template",
            "--jinja",
            "--reasoning-format",
            "--temp",
            "--seed",
            "--verbose",
            "--trust-remote-code",
            "--tool-call-parser",
            "--enable-auto-tool-choice",
            "--enable-prefix-caching",
            "--reasoning-parser",
            "--tokenizer",
            "--enforce-eager",
            "--max-logprobs",
            "--disable-log-requests",
            "--attention-backend",
        ] {
            for kind in EngineKind::ALL {
                assert_eq!(instead(*kind, flag), None, "{kind} {flag}");
            }
        }
    }
}
