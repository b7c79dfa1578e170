//! Excerpts of real logs (`src/engine/testdata`): the run of this repository's own llama-server, and runs that others
//! have published; unrelated lines are left out. `llama_cpp_old_cuda` and `vllm_2026_fixed_kv` are put together from
//! lines of several runs.

use super::found::bytes;
use super::{DeviceMemory, EngineMemory, read_memory};
use crate::base::EngineKind::{LlamaCpp, Sglang, Vllm};
use crate::base::{EngineKind, GIB, MIB};

macro_rules! log {
    ($name:literal) => {
        include_str!(concat!("../testdata/", $name, ".log"))
    };
}

fn mib(value: f64) -> u64 {
    (value * MIB as f64).round() as u64
}

fn gib(value: f64) -> u64 {
    (value * GIB as f64).round() as u64
}

fn parts(weights_bytes: u64, kv_bytes: u64, other_bytes: u64) -> DeviceMemory {
    DeviceMemory { weights_bytes: Some(weights_bytes), kv_bytes: Some(kv_bytes), other_bytes: Some(other_bytes) }
}

fn read(kind: EngineKind, log: &str) -> EngineMemory {
    read_memory(kind, log)
}

#[test]
fn llama_cpp_on_the_cpu() {
    let found = read(LlamaCpp, log!("llama_cpp_11434_cpu"));
    assert!(found.devices.is_empty());
    assert_eq!(found.host, Some(parts(mib(92.10), mib(90.0), mib(0.38) + mib(18.64))));
    assert_eq!((found.mapped_bytes, found.offloaded_layers), (Some(mib(92.10)), Some((0, 31))));
}

#[test]
fn llama_cpp_over_devices_with_two_caches() {
    let found = read(LlamaCpp, log!("llama_cpp_2025_cann"));
    let devices =
        [parts(mib(81.90), mib(512.0) + mib(1.5), mib(34.76)), parts(mib(641.43), mib(256.0) + mib(1.5), mib(398.38))];
    assert_eq!(found.devices, devices);
    let host = found.host.expect("the host's buffers");
    assert_eq!((host.weights_bytes, host.other_bytes), (None, Some(mib(0.77) + mib(402.27))));
    assert_eq!(found.offloaded_layers, None);
}

#[test]
fn llama_cpp_states_and_a_spill_and_older_words() {
    let hybrid = read(LlamaCpp, log!("llama_cpp_10809_cuda_hybrid"));
    assert_eq!(hybrid.devices, [parts(mib(16028.79), mib(2048.0) + mib(149.62), mib(38.50))]);
    let spill = read(LlamaCpp, log!("llama_cpp_spill_vulkan"));
    assert_eq!(spill.offloaded_layers, Some((24, 25)));
    assert_eq!(spill.devices, [parts(mib(4699.90), mib(111.0), mib(985.20))]);
    assert_eq!(spill.host.and_then(|host| host.weights_bytes), Some(mib(7218.45)));
    let old = read(LlamaCpp, log!("llama_cpp_old_cuda"));
    assert_eq!(old.devices, [parts(mib(4474.94), mib(512.0), mib(258.50))]);
    assert_eq!((old.offloaded_layers, old.mapped_bytes), (Some((33, 33)), None));
}

#[test]
fn llama_cpp_says_it_again_at_the_end() {
    let found = read(LlamaCpp, log!("llama_cpp_11434_end"));
    assert_eq!(found.host, Some(parts(92 * MIB, 90 * MIB, 18 * MIB)));
    assert_eq!(found.devices, [parts(28609 * MIB, 397 * MIB, 358 * MIB)]);
    // Where both are there, the lines of the beginning are more exact and count once.
    let both = format!("{}{}", log!("llama_cpp_11434_cpu"), log!("llama_cpp_11434_end"));
    assert_eq!(read(LlamaCpp, &both), read(LlamaCpp, log!("llama_cpp_11434_cpu")));
}

#[test]
fn vllm_of_one_rank() {
    let llava = read(Vllm, log!("vllm_0.10.2_llava"));
    let other = gib(1.97) + gib(0.07) + gib(0.67);
    // The weights are told twice, with four decimals and with two: the larger counts.
    assert_eq!(llava.devices, [parts(gib(14.08), 59_212_694_937.max(gib(55.15)), other)]);
    assert_eq!(llava.kv_tokens, Some(451_747));
    let consumed = read(Vllm, log!("vllm_2026_consumed"));
    let runtime = gib(15.26) - gib(15.0);
    assert_eq!(consumed.devices, [parts(gib(15.0), gib(56.21), gib(1.44) + runtime + gib(0.23))]);
    assert_eq!(consumed.kv_tokens, Some(460_062));
    let first = read(Vllm, log!("vllm_0.7_v0"));
    assert_eq!(first.devices, [parts(gib(7.1694), gib(26.60), gib(0.01) + gib(1.83) + gib(0.31))]);
}

#[test]
fn vllm_of_several_ranks_and_hybrids_by_their_concurrency() {
    let four = read(Vllm, log!("vllm_2026_tp4"));
    let other = gib(6.31) + gib(0.95) + gib(4.13);
    assert_eq!(four.devices, vec![parts(gib(106.69), gib(50.62), other); 4]);
    assert_eq!(four.kv_tokens, Some(1_138_688));
    let fixed = read(Vllm, log!("vllm_2026_fixed_kv"));
    // Graphs are told by rank 0 alone. Of the cache, `174,504 tokens` would be a fourth of what it holds.
    assert_eq!(fixed.devices, vec![parts(gib(81.8), gib(8.0), gib(0.96)); 2]);
    assert_eq!(fixed.kv_tokens, Some(697_958));
}

#[test]
fn sglang_of_three_versions() {
    let old = read(Sglang, log!("sglang_0.4_tp"));
    let weights = gib(22.76) - gib(8.37);
    let device = DeviceMemory { weights_bytes: Some(weights), kv_bytes: Some(2 * gib(2.82)), other_bytes: None };
    assert_eq!((old.devices, old.kv_tokens), (vec![device], Some(105_531)));
    let hybrid = read(Sglang, log!("sglang_2026_hybrid"));
    assert_eq!(hybrid.devices, [parts(gib(5.98), gib(0.03) + gib(2.74) + 2 * gib(1.52), gib(0.09))]);
    assert_eq!(hybrid.kv_tokens, Some(399_740));
    let latent = read(Sglang, log!("sglang_2026_mla_tp2"));
    assert_eq!(latent.devices, vec![parts(gib(73.58), gib(160.63), gib(1.26)); 2]);
}

#[test]
fn what_says_nothing_or_nonsense_is_nothing() {
    for kind in EngineKind::ALL {
        for log in ["", "\u{1b}[31m", "offloaded", "x buffer size =", "Maximum concurrency for 0 tokens per request: x"]
        {
            assert!(read(*kind, log).is_empty(), "{kind} {log:?}");
        }
        let hostile = [
            "load_tensors: CUDA99999999999999999999 model buffer size = 1.00 MiB",
            "load_tensors: CUDA0 model buffer size = 99999999999999999999999999999999.00 MiB",
            "load_tensors: \u{1b}[31m model buffer size = 1.00 MiB",
            "offloaded 99999999999/1 layers to GPU",
            "(Worker_TP4294967295 pid=1) Model loading took 1e300 GiB",
            "(Worker_TP3 pid=1 Model loading took NaN GiB",
            "GiB for peak activation Actual usage is ",
            "Actual usage is é for peak activation",
            "memory_breakdown_print: |   - é | = ",
            "[TP1 Load weight end. mem usage=",
        ];
        for log in hostile {
            let _ = read(*kind, log);
        }
    }
    let many: String = (0..1000).map(|n| format!("load_tensors: CUDA{n} model buffer size = 1.00 MiB\n")).collect();
    assert_eq!(read(LlamaCpp, &many).devices.len(), 64);
    assert_eq!(bytes("1,024.5 GiB)"), Some(1024 * GIB + GIB / 2));
    assert_eq!(bytes("12 parsecs"), None);
}
