//! What weights an engine loads, on what hardware, and since which version. Data; `sizing` asks it.
//!
//! Sources: "Supported Hardware" and the pages of each method in vLLM's documentation (0.6.3 to 0.32), the
//! `get_min_capability` of its quantisation classes and `supported_quantization` of `vllm/platforms/rocm.py`, its
//! release notes; SGLang names the same kernels. llama.cpp runs every GGUF type on every backend that it is built for.

use super::versions::numbers;
use crate::base::EngineKind;

/// Two numbers of NVIDIA's compute capability.
pub type Capability = (u32, u32);

/// What vLLM and SGLang need of an NVIDIA device for a method: from a version of vLLM on, from a capability on.
///
/// The last row of a method whose version is reached counts. `*` rows are about mixtures of experts alone, whose
/// kernels came later.
struct Need {
    method: &'static str,
    /// Mixtures of experts only.
    experts: bool,
    since: [u32; 3],
    capability: Capability,
}

const fn need(method: &'static str, experts: bool, since: [u32; 3], capability: Capability) -> Need {
    Need { method, experts, since, capability }
}

const NVIDIA: &[Need] = &[
    // Unquantised: vLLM itself needs 7.0, and refuses to compute in bf16 below 8.0.
    need("f32", false, [0, 0, 0], (7, 0)),
    need("f16", false, [0, 0, 0], (7, 0)),
    need("bf16", false, [0, 0, 0], (8, 0)),
    // awq.py 75 (awq_marlin.py 80), gptq.py 60 (gptq_marlin.py 80).
    need("awq", false, [0, 0, 0], (7, 5)),
    need("gptq", false, [0, 0, 0], (7, 0)),
    // W8A8 needs the tensor cores of 8.9; Marlin widens the weights on 8.0 since 0.5.1 (pull request 5975), those of
    // experts since 0.9.0. Newer versions name 7.5, without a version for it: not relied on.
    need("fp8", false, [0, 0, 0], (8, 9)),
    need("fp8", false, [0, 5, 1], (8, 0)),
    need("fp8", true, [0, 0, 0], (8, 9)),
    need("fp8", true, [0, 9, 0], (8, 0)),
    need("int8", false, [0, 0, 0], (7, 5)),
    // compressed_tensors_wNa16.py 80.
    need("int4", false, [0, 0, 0], (8, 0)),
    // Native FP4 is 10.0; Marlin widens it on 8.0 (NVFP4 since 0.9.0, MXFP4 since it came with 0.10.1).
    need("nvfp4", false, [0, 0, 0], (10, 0)),
    need("nvfp4", false, [0, 9, 0], (8, 0)),
    need("mxfp4", false, [0, 0, 0], (8, 0)),
    need("bitsandbytes", false, [0, 0, 0], (7, 0)),
];

/// Methods that vLLM's ROCm platform takes, and the targets that have what they need.
const AMD: &[(&str, &[&str])] = &[
    ("f32", &["gfx90a", "gfx94", "gfx95", "gfx11", "gfx12"]),
    ("f16", &["gfx90a", "gfx94", "gfx95", "gfx11", "gfx12"]),
    ("bf16", &["gfx90a", "gfx94", "gfx95", "gfx11", "gfx12"]),
    ("awq", &["gfx90a", "gfx94", "gfx95", "gfx11", "gfx12"]),
    ("gptq", &["gfx90a", "gfx94", "gfx95", "gfx11", "gfx12"]),
    ("int4", &["gfx90a", "gfx94", "gfx95", "gfx11", "gfx12"]),
    ("int8", &["gfx90a", "gfx94", "gfx95", "gfx11", "gfx12"]),
    ("fp8", &["gfx94", "gfx95", "gfx12"]),
    ("mxfp4", &["gfx94", "gfx95"]),
];

/// First versions of vLLM that have an architecture (its release notes) or a method.
const VLLM: &[(&str, [u32; 3])] = &[
    ("DeepseekV3ForCausalLM", [0, 6, 6]),
    ("Qwen2_5_VLForConditionalGeneration", [0, 7, 2]),
    ("Gemma3ForCausalLM", [0, 8, 0]),
    ("Gemma3ForConditionalGeneration", [0, 8, 0]),
    ("Mistral3ForConditionalGeneration", [0, 8, 0]),
    ("Llama4ForConditionalGeneration", [0, 8, 3]),
    ("Qwen3ForCausalLM", [0, 8, 4]),
    ("Qwen3MoeForCausalLM", [0, 8, 4]),
    ("Glm4MoeForCausalLM", [0, 10, 0]),
    ("GptOssForCausalLM", [0, 10, 1]),
    ("Qwen3NextForCausalLM", [0, 10, 2]),
    ("Qwen3VLForConditionalGeneration", [0, 11, 0]),
    ("Qwen3VLMoeForConditionalGeneration", [0, 11, 0]),
    ("mxfp4", [0, 10, 1]),
];

/// First builds of llama.cpp that have an architecture.
const LLAMA_CPP: &[(&str, [u32; 3])] =
    &[("gemma3", [4875, 0, 0]), ("qwen3", [5092, 0, 0]), ("qwen3moe", [5092, 0, 0]), ("gpt-oss", [6096, 0, 0])];

/// Whether a version of an engine has a network's architecture and a quantisation method; where it has not, the first
/// version that has. An unknown version counts as a present one, and so does what is in no table.
///
/// # Errors
/// What is missing, for people.
pub fn has_model(
    engine: EngineKind,
    version: Option<&str>,
    architecture: &str,
    method: Option<&str>,
) -> Result<(), String> {
    let Some(written) = version else { return Ok(()) };
    let have = numbers(written);
    let table = match engine {
        EngineKind::Vllm => VLLM,
        // Release numbers of llama.cpp (`1.2.3` without a build number) are later than every entry.
        EngineKind::LlamaCpp if have[0] < 1000 || written.contains('.') => &[],
        EngineKind::LlamaCpp => LLAMA_CPP,
        EngineKind::Sglang => &[],
    };
    for what in std::iter::once(architecture).chain(method) {
        if let Some((_, first)) = table.iter().find(|(known, _)| *known == what)
            && have < *first
        {
            let first = shown(engine, *first);
            return Err(format!("{what} needs {engine} {first}, this is {written}"));
        }
    }
    Ok(())
}

fn shown(engine: EngineKind, version: [u32; 3]) -> String {
    match engine {
        EngineKind::LlamaCpp => version[0].to_string(),
        EngineKind::Vllm | EngineKind::Sglang => format!("{}.{}.{}", version[0], version[1], version[2]),
    }
}

/// The least compute capability of an NVIDIA device for a method in vLLM or SGLang. An unknown version counts as a
/// present one; of an unknown method, 8.0 is asked.
pub fn least_capability(engine: EngineKind, version: Option<&str>, method: &str, experts: bool) -> Capability {
    let version = version.filter(|_| engine == EngineKind::Vllm).map(numbers);
    let rows = |experts: bool| {
        let reached = |need: &&Need| version.is_none_or(|version| need.since <= version);
        NVIDIA.iter().filter(move |need| need.method == method && need.experts == experts).rfind(reached)
    };
    let found = rows(experts).or_else(|| rows(false)).map_or((8, 0), |need| need.capability);
    // SGLang's own kernels begin at 7.5.
    if engine == EngineKind::Sglang { found.max((7, 5)) } else { found }
}

/// Whether vLLM and SGLang run a method on an AMD device of this target (`gfx942`).
///
/// # Errors
/// The reason, for people.
pub fn on_amd(engine: EngineKind, method: &str, target: &str) -> Result<(), String> {
    let known = AMD.iter().find(|(known, _)| *known == method);
    let Some((_, targets)) = known else { return Err(format!("{engine} has no {method} on AMD")) };
    if targets.iter().any(|begin| target.starts_with(begin)) {
        return Ok(());
    }
    let targets: Vec<String> = targets.iter().map(|begin| family(begin)).collect();
    Err(format!("{method} needs {} with {engine}, this is {target}", targets.join(", ")))
}

/// `gfx94x` of `gfx94`.
fn family(begin: &str) -> String {
    match begin {
        "gfx90a" => begin.to_owned(),
        "gfx11" | "gfx12" => format!("{begin}xx"),
        other => format!("{other}x"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_follow_method_version_and_experts() {
        let least = |version, method, experts| least_capability(EngineKind::Vllm, version, method, experts);
        assert_eq!(least(Some("0.11.0"), "bf16", false), (8, 0));
        assert_eq!(least(None, "awq", false), (7, 5));
        assert_eq!(least(None, "gptq", true), (7, 0));
        assert_eq!(least(Some("0.5.0"), "fp8", false), (8, 9));
        assert_eq!(least(Some("0.5.1"), "fp8", false), (8, 0));
        assert_eq!(least(Some("0.8.5"), "fp8", true), (8, 9));
        assert_eq!(least(Some("0.11.0"), "fp8", true), (8, 0));
        assert_eq!(least(Some("0.8.5"), "nvfp4", false), (10, 0));
        assert_eq!(least(Some("0.11.0"), "nvfp4", false), (8, 0));
        assert_eq!(least(None, "something", false), (8, 0));
        assert_eq!(least_capability(EngineKind::Sglang, Some("0.5.3"), "gptq", false), (7, 5));
    }

    #[test]
    fn versions_that_lack_an_architecture_or_a_method_say_which_has_it() {
        let vllm = |version, what| has_model(EngineKind::Vllm, Some(version), what, None);
        let old = vllm("0.8.3", "Qwen3MoeForCausalLM").expect_err("too old");
        assert_eq!(old, "Qwen3MoeForCausalLM needs vllm 0.8.4, this is 0.8.3");
        assert!(vllm("0.8.5.post1", "Qwen3MoeForCausalLM").is_ok() && vllm("0.1.0", "LlamaForCausalLM").is_ok());
        assert!(has_model(EngineKind::Vllm, None, "GptOssForCausalLM", Some("mxfp4")).is_ok());
        assert!(has_model(EngineKind::Vllm, Some("0.10.0"), "LlamaForCausalLM", Some("mxfp4")).is_err());
        let llama = |version| has_model(EngineKind::LlamaCpp, Some(version), "gemma3", None);
        assert_eq!(llama("4000").expect_err("too old"), "gemma3 needs llama.cpp 4875, this is 4000");
        assert!(llama("11434").is_ok() && llama("0.1.2").is_ok());
    }

    #[test]
    fn amd_runs_what_its_platform_lists() {
        let vllm = |method, target| on_amd(EngineKind::Vllm, method, target);
        assert!(vllm("bf16", "gfx90a").is_ok() && vllm("fp8", "gfx942").is_ok() && vllm("awq", "gfx1100").is_ok());
        let text = vllm("fp8", "gfx90a").expect_err("MI200 has no fp8");
        assert_eq!(text, "fp8 needs gfx94x, gfx95x, gfx12xx with vllm, this is gfx90a");
        assert!(vllm("bf16", "gfx906").is_err());
        assert_eq!(vllm("bitsandbytes", "gfx942"), Err("vllm has no bitsandbytes on AMD".to_owned()));
    }
}
