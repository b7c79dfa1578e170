//! SGLang's server. Not yet chosen by any plan on its own; the flags are those of `sglang/srt/server_args.py`.

use super::argv::{HOST, PORT, Planned, Settings, push};
use super::internal::NCCL_PORT;
use super::vllm::{VLLM_BATCHED_TOKENS, share};
use crate::base::Dtype;

pub(super) const OWNED: &[&str] = &[
    "--model-path",
    "--model",
    "--dtype",
    "--quantization",
    "--host",
    "--port",
    "--api-key",
    "--context-length",
    "--max-running-requests",
    "--max-total-tokens",
    "--chunked-prefill-size",
    "--mem-fraction-static",
    "--kv-cache-dtype",
    "--tp-size",
    "--tp",
    "--tensor-parallel-size",
    "--pp-size",
    "--pipeline-parallel-size",
    "--dp-size",
    "--data-parallel-size",
    "--served-model-name",
    "--nnodes",
    "--node-rank",
    "--dist-init-addr",
    NCCL_PORT,
    "--device",
    "--config",
    "--version",
    "--help",
    "-h",
];

/// Adds everything after the program.
pub(super) fn arguments(settings: &Settings, out: &mut Vec<String>) {
    out.push("serve".to_owned());
    push(out, "--model-path", &settings.model_path);
    push(out, "--served-model-name", &settings.served_name);
    push(out, "--host", HOST);
    push(out, "--port", PORT);
    push(out, "--context-length", settings.context);
    push(out, "--max-running-requests", settings.concurrency.max(1));
    push(out, "--max-total-tokens", settings.context.saturating_mul(u64::from(settings.concurrency.max(1))));
    push(out, "--chunked-prefill-size", VLLM_BATCHED_TOKENS);
    push(out, "--tp-size", settings.tensor_parallel.max(1));
    push(out, "--pp-size", settings.pipeline_parallel.max(1));
    if settings.half {
        push(out, "--dtype", "half");
    }
    if settings.kv_dtype == Some(Dtype::Fp8) {
        push(out, "--kv-cache-dtype", "fp8_e4m3");
    }
    // Weights and KV only: SGLang takes activations from the rest.
    let need = |planned: &Planned| planned.weights_bytes.saturating_add(planned.kv_bytes);
    if let Some(share) = share(settings, need).filter(|_| settings.accelerators > 0) {
        push(out, "--mem-fraction-static", format!("{share:.2}"));
    }
    out.push("--enable-metrics".to_owned());
}
