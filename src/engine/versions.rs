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
    /// llama.cpp caches the latent vector of MLA instead of expanded heads.
    LatentCache,
    /// vLLM `--kv-cache-memory-bytes`.
    KvCacheBytes,
    /// vLLM keeps MLA rows unpadded.
    UnpaddedLatent,
    /// vLLM keeps only the window of sliding layers.
    WindowedCache,
}

/// First version of each feature: llama.cpp build numbers, vLLM versions.
const FIRST: &[(Feature, [u32; 3])] = &[
    (Feature::NoWebUi, [4460, 0, 0]),
    (Feature::DeviceNone, [4227, 0, 0]),
    (Feature::LatentCache, [5134, 0, 0]),
    (Feature::KvUnified, [5913, 0, 0]),
    (Feature::FlashAttentionValue, [6325, 0, 0]),
    (Feature::ContextCheckpoints, [6665, 0, 0]),
    (Feature::CacheRam, [6729, 0, 0]),
    (Feature::Fit, [7410, 0, 0]),
    (Feature::KvCacheBytes, [0, 11, 0]),
    (Feature::UnpaddedLatent, [0, 8, 0]),
    (Feature::WindowedCache, [0, 10, 0]),
];

/// Whether a version has a feature. An unknown version (`None`, or a build from a source archive) counts as a
/// present one: leaving a size to the engine's default would break the plan silently, a flag that is not
/// there stops the start with a clear message.
pub(crate) fn has(feature: Feature, version: Option<&str>) -> bool {
    let Some(numbers) = version.map(numbers) else { return true };
    let llama = !matches!(feature, Feature::KvCacheBytes | Feature::UnpaddedLatent | Feature::WindowedCache);
    // Release numbers of llama.cpp (`1.2.3` without a build number) are later than every entry.
    if llama && (numbers[0] < 1000 || version.is_some_and(|version| version.contains('.'))) {
        return true;
    }
    FIRST.iter().find(|(known, _)| *known == feature).is_none_or(|(_, first)| numbers >= *first)
}

/// Whether llama.cpp of this version caches MLA's latent vector; before, it cached expanded heads.
pub fn caches_latent(version: Option<&str>) -> bool {
    has(Feature::LatentCache, version)
}

/// Whether vLLM of this version keeps MLA rows at their width; before, it padded them to 256 bytes.
pub fn keeps_latent_unpadded(version: Option<&str>) -> bool {
    has(Feature::UnpaddedLatent, version)
}

/// Whether vLLM of this version keeps only the window of sliding layers; before, it could charge them in full.
pub fn keeps_windows(version: Option<&str>) -> bool {
    has(Feature::WindowedCache, version)
}

/// The first three numbers of a version (`0.11.1rc2+cu128`, `b6123`).
fn numbers(version: &str) -> [u32; 3] {
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
    }
}
