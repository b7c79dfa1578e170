//! What follows `#` in a source: a file, a sub-folder, or a quantisation of a repository.

use super::names::{is_projector, shard};
use super::{Listing, Variant};

/// The part of a repository that a selector can mean, so that no other header is read; the whole where only the
/// headers can tell.
pub fn narrow(listing: &Listing, selector: &str) -> Listing {
    if listing.size(selector).is_some() {
        if let Some(set) = shard(selector, ".gguf") {
            let same = |name: &str| shard(name, ".gguf").is_some_and(|s| (s.stem, s.count) == (set.stem, set.count));
            return listing.only(|name| same(name) || is_projector(name));
        }
        if selector.ends_with(".gguf") {
            return listing.only(|name| name == selector || is_projector(name));
        }
        // Safetensors are read with what lies beside them.
        let folder = &selector[..selector.rfind('/').map_or(0, |at| at + 1)];
        return listing.only(|name| name.strip_prefix(folder).is_some_and(|rest| !rest.contains('/')));
    }
    let folder = format!("{}/", selector.trim_end_matches('/'));
    let below = listing.only(|name| name.starts_with(&folder));
    if !below.is_empty() {
        return below;
    }
    let named = |name: &str| name.ends_with(".gguf") && !is_projector(name) && has_word(name, selector);
    // A projector belongs to whatever is chosen.
    if listing.only(named).is_empty() {
        listing.clone()
    } else {
        listing.only(|name| named(name) || is_projector(name))
    }
}

/// The variants of a (narrowed) repository that a selector means; none where nothing is meant.
pub fn select(variants: Vec<Variant>, selector: &str) -> Vec<Variant> {
    let folder = format!("{}/", selector.trim_end_matches('/'));
    let by_file =
        |variant: &Variant| variant.files.iter().any(|file| file.name == selector || file.name.starts_with(&folder));
    let by_name = |variant: &Variant| {
        let id = variant.id.strip_prefix("gguf:").unwrap_or(&variant.id);
        let id = id.split(':').next().unwrap_or(id);
        [variant.id.as_str(), id, variant.quality.name()].iter().any(|name| name.eq_ignore_ascii_case(selector))
    };
    // A file's name may say more than its header (`UD-Q4_K_XL`).
    let by_word = |variant: &Variant| variant.files.iter().any(|file| has_word(&file.name, selector));
    let tests: [&dyn Fn(&Variant) -> bool; 3] = [&by_file, &by_name, &by_word];
    for test in tests {
        if variants.iter().any(test) {
            return variants.into_iter().filter(test).collect();
        }
    }
    Vec::new()
}

/// Whether a word stands in a name, upper or lower case, with neither a letter, a digit nor `_` beside it.
fn has_word(name: &str, word: &str) -> bool {
    let (name, word) = (name.to_ascii_lowercase(), word.to_ascii_lowercase());
    let part = |c: char| c.is_alphanumeric() || c == '_';
    name.match_indices(&word).any(|(at, _)| {
        !name[..at].chars().next_back().is_some_and(|c| c.is_alphanumeric())
            && !name[at + word.len()..].chars().next().is_some_and(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(listing: &Listing) -> Vec<&str> {
        listing.iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn only_what_can_be_meant_is_read() {
        let files = [
            "m-Q4_K_M.gguf",
            "m-Q4_K_S.gguf",
            "m.Q4_K.gguf",
            "m-UD-Q4_K_XL.gguf",
            "q8_0/m-q8_0-00001-of-00002.gguf",
            "q8_0/m-q8_0-00002-of-00002.gguf",
            "mmproj-Q4_K_M.gguf",
            "config.json",
            "model.safetensors",
            "fp8/config.json",
            "fp8/model.safetensors",
        ];
        let listing = Listing::new(files.map(|name| (name, 1))).expect("plain names");
        let narrowed = |selector: &str| narrow(&listing, selector);
        assert_eq!(names(&narrowed("q4_k_m")), ["m-Q4_K_M.gguf", "mmproj-Q4_K_M.gguf"]);
        assert_eq!(names(&narrowed("Q4_K")), ["m.Q4_K.gguf", "mmproj-Q4_K_M.gguf"]);
        assert_eq!(names(&narrowed("Q4_K_XL")), ["m-UD-Q4_K_XL.gguf", "mmproj-Q4_K_M.gguf"]);
        assert_eq!(names(&narrowed("m-Q4_K_S.gguf")), ["m-Q4_K_S.gguf", "mmproj-Q4_K_M.gguf"]);
        assert_eq!(narrowed("Q8_0").iter().count(), 3, "and the projector");
        assert_eq!(narrowed("q8_0/m-q8_0-00002-of-00002.gguf").iter().count(), 3, "all shards");
        assert_eq!(names(&narrowed("fp8")), ["fp8/config.json", "fp8/model.safetensors"]);
        assert_eq!(narrowed("model.safetensors").iter().count(), 7, "with what lies beside it");
        assert_eq!(narrowed("bf16").iter().count(), files.len(), "only headers can tell");
    }
}
