//! Programs, how to ask their version, and which version brought which flag.

use crate::base::EngineKind;

/// File names of an engine's program, most likely first.
pub fn program_names(kind: EngineKind) -> &'static [&'static str] {
    match kind {
        EngineKind::LlamaCpp => &["llama-server"],
        EngineKind::Vllm => &["vllm"],
        EngineKind::Sglang => &["sglang"],
    }
}

/// File names of the program that holds layers for an instance on another node, most likely first.
pub fn worker_names(kind: EngineKind) -> &'static [&'static str] {
    match kind {
        EngineKind::LlamaCpp => &["ggml-rpc-server", "rpc-server"],
        EngineKind::Vllm | EngineKind::Sglang => &[],
    }
}

/// Arguments that make the program print its version and exit.
pub fn version_arguments(kind: EngineKind) -> &'static [&'static str] {
    match kind {
        EngineKind::LlamaCpp | EngineKind::Vllm => &["--version"],
        EngineKind::Sglang => &["version"],
    }
}

/// The version in what the program printed (standard output and error together).
///
/// llama.cpp: the build number of `version: 6123 (abc)` or `version: 1.2.3 (build 6123, commit abc)`; a build
/// from a source archive has no number there (0), then the text before the bracket. vLLM and SGLang: the
/// first word that is a dotted version. `None` where nothing looks like one.
pub fn parse_version(kind: EngineKind, printed: &str) -> Option<String> {
    match kind {
        EngineKind::LlamaCpp => printed.lines().find_map(|line| {
            let rest = line.trim().strip_prefix("version:")?.trim();
            let (text, bracket) = rest.split_once('(').unwrap_or((rest, ""));
            let build = bracket.trim_start().strip_prefix("build ").and_then(|rest| rest.split([',', ')']).next());
            let chosen = build.map(str::trim).filter(|build| *build != "0").unwrap_or(text.trim());
            is_version(chosen).then(|| chosen.to_owned())
        }),
        EngineKind::Vllm | EngineKind::Sglang => printed.lines().rev().find_map(|line| {
            // Log lines of imported libraries come before it and carry times and versions of their own.
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                [only] if is_dotted(only) => Some((*only).trim_start_matches('v').to_owned()),
                // `vllm 0.9.1`, `sglang version: 0.5.3`.
                [first, .., version] if first.eq_ignore_ascii_case(kind.word()) && is_dotted(version) => {
                    Some((*version).trim_start_matches('v').to_owned())
                }
                _ => None,
            }
        }),
    }
}

/// The version in the tag of an image: a dotted one, or llama.cpp's build number.
pub(super) fn parse_tag(kind: EngineKind, tag: &str) -> Option<String> {
    tag.split('-').find_map(|word| match kind {
        EngineKind::LlamaCpp => {
            let build = word.strip_prefix('b').unwrap_or_default();
            (build.len() >= 3 && build.bytes().all(|b| b.is_ascii_digit())).then(|| build.to_owned())
        }
        EngineKind::Vllm | EngineKind::Sglang => is_dotted(word).then(|| word.trim_start_matches('v').to_owned()),
    })
}

fn is_version(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 64
        && text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || ".+-_".contains(c))
}

fn is_dotted(text: &str) -> bool {
    let text = text.trim_start_matches('v');
    is_version(text) && text.contains('.')
}

/// Something that only some versions of an engine have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Feature {
    /// llama.cpp `--fit`, which otherwise changes unset sizes on its own.
    Fit,
    /// llama.cpp `--cache-ram`, a prompt cache in host memory (8 GiB unless set).
    CacheRam,
    /// llama.cpp `--ctx-checkpoints`, copies of window and state in host memory.
    ContextCheckpoints,
    /// llama.cpp `--flash-attn on|off|auto`; before, a flag without a value.
    FlashAttentionValue,
    /// llama.cpp `--kv-unified`; before, the cache was unified anyway.
    KvUnified,
    /// llama.cpp `--no-webui`.
    NoWebUi,
    /// llama.cpp `--device none`.
    DeviceNone,
    /// llama.cpp's levels of logging with `trace` (4), below which buffers are not told of. Before, they always are.
    TraceLevel,
    /// llama.cpp caches the latent vector of MLA instead of expanded heads.
    LatentCache,
    /// llama.cpp caches the latent of MLA once, as keys; before, its values were kept as well.
    KeysOnlyLatent,
    /// llama.cpp pads the cells of every cache to 256; before, to 32 without flash attention.
    PaddedCells,
    /// llama.cpp's server reserves logits for one token of every slot; before, for a whole batch.
    FewOutputs,
    /// llama.cpp `--mmproj-device`; before, only a variable says it.
    ProjectorDevice,
    /// vLLM `VLLM_PP_LAYER_PARTITION`.
    StageLayers,
    /// vLLM `--kv-cache-memory-bytes`.
    KvCacheBytes,
    /// vLLM keeps MLA rows unpadded.
    UnpaddedLatent,
    /// vLLM keeps only the window of sliding layers.
    WindowedCache,
    /// vLLM caches prefixes of hybrids, and so keeps an aligned copy beside every running state.
    HybridPrefixes,
    /// vLLM counts CUDA graphs inside the utilisation; before, on top of it. flock's share always covers them.
    GraphsInside,
}

/// One line of the table of versions.
struct First {
    feature: Feature,
    kind: EngineKind,
    /// The first version that has it: a build number of llama.cpp, else a version.
    version: [u32; 3],
}

const fn llama(feature: Feature, build: u32) -> First {
    First { feature, kind: EngineKind::LlamaCpp, version: [build, 0, 0] }
}

const fn vllm(feature: Feature, minor: u32) -> First {
    First { feature, kind: EngineKind::Vllm, version: [0, minor, 0] }
}

/// First version of each feature, with where that is from. Where a merge's build number is not known exactly, the
/// version is a little later, and the versions between are sized for what needs more.
const FIRST: &[First] = &[
    // ggml-org/llama.cpp#10497
    llama(Feature::DeviceNone, 4227),
    // common/arg.cpp of that build
    llama(Feature::NoWebUi, 4460),
    // ggml-org/llama.cpp#12801
    llama(Feature::LatentCache, 5134),
    // ggml-org/llama.cpp#14363
    llama(Feature::KvUnified, 5913),
    // ggml-org/llama.cpp#15434
    llama(Feature::FlashAttentionValue, 6325),
    // ggml-org/llama.cpp#16382
    llama(Feature::ContextCheckpoints, 6665),
    // ggml-org/llama.cpp#16391
    llama(Feature::CacheRam, 6729),
    // ggml-org/llama.cpp#17046, merged in November 2025
    llama(Feature::PaddedCells, 7000),
    // ggml-org/llama.cpp#16653
    llama(Feature::Fit, 7410),
    // ggml-org/llama.cpp#19067, merged in January 2026
    llama(Feature::KeysOnlyLatent, 7860),
    // common/log.h of that build
    llama(Feature::TraceLevel, 9181),
    // ggml-org/llama.cpp#23861, of May 2026
    llama(Feature::FewOutputs, 9800),
    // release notes of b10541, of August 2026
    llama(Feature::ProjectorDevice, 10541),
    // vllm/envs.py of that version
    vllm(Feature::StageLayers, 7),
    // a log of 0.7.2 has rows of 640 elements, later ones of 576
    vllm(Feature::UnpaddedLatent, 8),
    // vllm/v1/core/kv_cache_utils.py: groups of layers of one kind
    vllm(Feature::WindowedCache, 10),
    // vllm/config/cache.py
    vllm(Feature::KvCacheBytes, 11),
    // logs: 0.11.0 holds one state per sequence, builds of 2026 two
    vllm(Feature::HybridPrefixes, 12),
    // vllm/v1/worker/gpu_worker.py: the profile run captures graphs
    vllm(Feature::GraphsInside, 21),
];

/// Whether a version has a feature. An unknown version (`None`, or a build from a source archive) counts as a
/// present one: leaving a size to the engine's default would break the plan silently, a flag that is not
/// there stops the start with a clear message.
pub(crate) fn has(feature: Feature, version: Option<&str>) -> bool {
    let Some(first) = FIRST.iter().find(|first| first.feature == feature) else { return true };
    let Some(numbers) = version.map(numbers) else { return true };
    // Release numbers of llama.cpp (`1.2.3` without a build number) are later than every entry.
    let release = numbers[0] < 1000 || version.is_some_and(|version| version.contains('.'));
    (first.kind == EngineKind::LlamaCpp && release) || numbers >= first.version
}

/// How llama.cpp of a version lays out caches and graphs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// MLA caches the latent vector; before, expanded heads.
    pub latent: bool,
    /// The latent is kept a second time as values.
    pub latent_values: bool,
    /// Cells of a window are padded to this.
    pub window_pad: u64,
    /// Values of every layer take the width of the widest.
    pub widest_values: bool,
    /// Logits are reserved for a whole batch; otherwise for one token of every slot.
    pub all_outputs: bool,
    /// Size of the attention mask's cells in halves of a float: f16, in older builds f32.
    pub mask_half_floats: u64,
}

/// The layout of a version, with or without flash attention.
pub fn llama_layout(version: Option<&str>, flash_attention: bool) -> Layout {
    let few = has(Feature::FewOutputs, version);
    Layout {
        latent: has(Feature::LatentCache, version),
        latent_values: !has(Feature::KeysOnlyLatent, version),
        window_pad: if flash_attention || has(Feature::PaddedCells, version) { 256 } else { 32 },
        widest_values: !flash_attention,
        all_outputs: !few,
        mask_half_floats: if few { 1 } else { 2 },
    }
}

/// How vLLM of a version lays out its cache. SGLang's versions are numbers of their own and mean a present layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheLayout {
    /// Bytes that a row of MLA is padded to a multiple of.
    pub latent_pad: u64,
    /// Only the window of sliding layers is kept; before, they could be charged in full.
    pub windows: bool,
    /// Constant states held for every sequence of a hybrid.
    pub states: u64,
}

/// The cache's layout in a version of vLLM or SGLang.
pub fn cache_layout(kind: EngineKind, version: Option<&str>) -> CacheLayout {
    let version = version.filter(|_| kind == EngineKind::Vllm);
    CacheLayout {
        latent_pad: if has(Feature::UnpaddedLatent, version) { 1 } else { 256 },
        windows: has(Feature::WindowedCache, version),
        states: if has(Feature::HybridPrefixes, version) { 2 } else { 1 },
    }
}

/// The first three numbers of a version (`0.11.1rc2+cu128`, `b6123`).
pub(super) fn numbers(version: &str) -> [u32; 3] {
    let mut numbers = [0; 3];
    let text = version.trim_start_matches(['v', 'b']);
    for (slot, part) in numbers.iter_mut().zip(text.split('.')) {
        let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
        *slot = digits.parse().unwrap_or(0);
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_programs_print() {
        let llama = |text| parse_version(EngineKind::LlamaCpp, text);
        assert_eq!(llama("version: 1234 (abc)\nbuilt with cc"), Some("1234".into()));
        assert_eq!(llama("ggml_cuda_init: found 1\nversion: 0.1.2 (build 11434, commit f00)\n"), Some("11434".into()));
        assert_eq!(llama("version: 0.1.2 (build 0, commit unknown)\n"), Some("0.1.2".into()));
        assert_eq!(llama("usage: …"), None);
        let vllm = |text| parse_version(EngineKind::Vllm, text);
        assert_eq!(vllm("INFO 10-01 12:00:00 [__init__.py:216] platform cuda\n0.11.0\n"), Some("0.11.0".into()));
        assert_eq!(vllm("vllm 0.9.1"), Some("0.9.1".into()));
        let sglang = "sglang version: 0.5.3\ngit revision: 16c8ff4\n";
        assert_eq!(parse_version(EngineKind::Sglang, sglang), Some("0.5.3".into()));
        assert_eq!(vllm("Traceback (most recent call last):"), None);
    }

    #[test]
    fn features_follow_versions() {
        assert!(!has(Feature::Fit, Some("6123")) && has(Feature::Fit, Some("11434")));
        assert!(has(Feature::Fit, None) && has(Feature::Fit, Some("0.1.2")));
        assert!(!has(Feature::KvCacheBytes, Some("0.10.2")) && has(Feature::KvCacheBytes, Some("0.21.0+cu129")));
        assert!(!has(Feature::GraphsInside, Some("0.20.1")) && has(Feature::GraphsInside, Some("0.21.0")));
        let vllm = |version| cache_layout(EngineKind::Vllm, version);
        assert_eq!((vllm(Some("0.11.0")).states, vllm(None).states), (1, 2));
        assert_eq!((vllm(Some("0.7.2")).latent_pad, vllm(Some("0.8.0")).latent_pad), (256, 1));
        // SGLang 0.4 is no vLLM 0.4.
        assert_eq!(cache_layout(EngineKind::Sglang, Some("0.4.6")), vllm(None));
    }

    #[test]
    fn the_table_is_in_order() {
        for kind in [EngineKind::LlamaCpp, EngineKind::Vllm] {
            let versions: Vec<_> = FIRST.iter().filter(|first| first.kind == kind).map(|first| first.version).collect();
            assert!(versions.is_sorted());
        }
    }

    #[test]
    fn layouts_of_llama_cpp_follow_builds() {
        let of = |version| llama_layout(Some(version), true);
        assert!(!of("4500").latent && of("5300").latent && of("5300").latent_values && !of("8000").latent_values);
        assert_eq!((llama_layout(Some("6123"), false).window_pad, of("6123").window_pad), (32, 256));
        assert!(of("9000").all_outputs && !of("11434").all_outputs && !llama_layout(None, true).all_outputs);
    }
}
