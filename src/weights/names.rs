//! File names: which are refused, which are shards, which lie beside weights.

use super::WeightsError;
use crate::base::path_problem;

/// Refuses names that could leave the folder or confuse a terminal. Names come from listings and indices of
/// strangers.
pub(super) fn check_name(name: &str) -> Result<(), WeightsError> {
    match path_problem(name) {
        Some(_) => Err(WeightsError::Name(name.chars().take(120).collect())),
        None => Ok(()),
    }
}

/// The name of a shard: everything before `-00001-of-00003`, its number and the count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shard<'a> {
    pub(super) stem: &'a str,
    pub(super) number: u32,
    pub(super) count: u32,
}

/// Reads `STEM-NNNNN-of-NNNNN.EXT`. `best-of-breed.gguf` is no shard: both numbers have five digits.
pub(super) fn shard<'a>(name: &'a str, extension: &str) -> Option<Shard<'a>> {
    let body = name.strip_suffix(extension)?;
    let (rest, count) = body.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| -> Option<u32> {
        (text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten()
    };
    let (number, count) = (digits(number)?, digits(count)?);
    (number >= 1 && number <= count && !stem.is_empty()).then_some(Shard { stem, number, count })
}

/// The last part of a path.
pub(super) fn base_name(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

/// A vision or audio projector of llama.cpp, which is no set of weights of its own.
pub fn is_projector(name: &str) -> bool {
    base_name(name).to_ascii_lowercase().starts_with("mmproj")
}

/// Whether an engine wants this file beside safetensors: configuration, tokenizer, chat template.
pub(super) fn is_companion(name: &str) -> bool {
    const ENDINGS: &[&str] = &[".json", ".model", ".txt", ".jinja", ".tiktoken", ".spm"];
    !name.contains('/') && !name.ends_with(".index.json") && ENDINGS.iter().any(|ending| name.ends_with(ending))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_have_two_five_digit_numbers() {
        let found = shard("q4_k_m-00001-of-00002.gguf", ".gguf").expect("a shard");
        assert_eq!((found.stem, found.number, found.count), ("q4_k_m", 1, 2));
        assert_eq!(shard("best-of-breed.gguf", ".gguf"), None);
        assert_eq!(shard("m-00003-of-00002.gguf", ".gguf"), None);
        assert_eq!(shard("m-1-of-2.gguf", ".gguf"), None);
    }

    #[test]
    fn names_that_leave_the_folder_are_refused() {
        for bad in ["../x", "/etc/passwd", "a/../b", "a\u{7}b", "", "a//b", "C:\\x", "~/x", "x\u{202e}fugg"] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
        assert!(check_name("Q4_K_M/model-00001-of-00002.gguf").is_ok());
    }
}
