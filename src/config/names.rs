//! Names: what they may hold, which known one is nearest, and what looks like a secret.

use crate::base::is_obeyed;

/// The longest name.
pub const MAX_NAME: usize = 64;

/// Why a text is no name; `None` if it is one.
pub(super) fn problem(text: &str) -> Option<String> {
    if text.is_empty() {
        return Some("the name is empty".to_owned());
    }
    if text.chars().count() > MAX_NAME {
        return Some(format!("the name has more than {MAX_NAME} characters"));
    }
    if let Some(bad) = text.chars().find(|c| !(c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '+'))) {
        return Some(match bad {
            c if c.is_whitespace() => "a blank in a name".to_owned(),
            c if c.is_control() => "a control character in a name".to_owned(),
            c if is_obeyed(c) => format!("U+{:04X}, which turns the direction of a line, in a name", u32::from(c)),
            c => format!("`{}` in a name", c.escape_debug()),
        });
    }
    match text.chars().next() {
        Some(first) if !first.is_alphanumeric() => Some(format!("a name that begins with `{first}`")),
        _ => None,
    }
}

/// Why a text is no name of the config, for one that comes from elsewhere.
pub fn name_problem(text: &str) -> Option<String> {
    problem(text)
}

/// What names hold, for hints.
pub(super) const NAME_RULE: &str =
    "names hold letters, digits, `.`, `_`, `+` and `-`, and begin with a letter or digit";

/// The known word that was probably meant.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Beyond these bounds a guess costs more than it helps.
    const MAX_WORD: usize = 128;
    const MAX_KNOWN: usize = 2000;
    if word.len() > MAX_WORD {
        return None;
    }
    let lower = word.to_lowercase();
    known
        .into_iter()
        .take(MAX_KNOWN)
        .filter(|candidate| candidate.len() <= MAX_WORD)
        .filter_map(|candidate| {
            let distance = strsim::damerau_levenshtein(&lower, &candidate.to_lowercase());
            let limit = (candidate.chars().count().max(lower.chars().count()) / 3).clamp(1, 4);
            let close = distance <= limit
                || (lower.len() >= 4
                    && (candidate.starts_with(&lower) || lower.starts_with(candidate) && candidate.len() >= 4));
            close.then_some((distance, candidate))
        })
        .min_by(|a, b| a.cmp(b))
        .map(|(_, candidate)| candidate)
}

/// The hint for a name that a command line gives and the config does not have.
pub fn near_miss<S: AsRef<str>>(word: &str, known: &[S]) -> String {
    did_you_mean(word, known)
}

/// A character that no screen shows and that makes two words differ.
pub(super) fn invisible(word: &str) -> Option<char> {
    word.chars()
        .find(|c| matches!(c, '\u{ad}' | '\u{200b}'..='\u{200d}' | '\u{2060}'..='\u{2064}' | '\u{fe00}'..='\u{fe0f}'))
}

/// `a`, `b` or `c`.
pub(super) fn list<S: AsRef<str>>(words: &[S]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("`{}`", word.as_ref())).collect();
    match quoted.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => quoted.join(""),
    }
}

/// A hint lists this many names at most.
const MAX_LISTED: usize = 40;

/// The known words that have a part of a compound word: `key` for `api-key`. None where it is more than a few.
fn akin<'a>(word: &str, known: &[&'a str]) -> Vec<&'a str> {
    const FEW: usize = 3;
    let parts = |text: &str| -> Vec<String> {
        let parts = text.split(['-', '_']).filter(|part| part.len() >= 2);
        parts.map(|part| part.trim_end_matches('s').to_lowercase()).collect()
    };
    let wanted = parts(word);
    let mut found: Vec<(usize, &str)> = known
        .iter()
        .take(MAX_LISTED * 4)
        .map(|known| (parts(known).iter().filter(|part| !wanted.contains(part)).count(), *known))
        .filter(|(_, known)| parts(known).iter().any(|part| wanted.contains(part)))
        .collect();
    found.sort_by_key(|(foreign, _)| *foreign);
    if found.len() > FEW { Vec::new() } else { found.into_iter().map(|(_, known)| known).collect() }
}

/// The hint for an unknown word: the nearest one, or all of them.
pub(super) fn did_you_mean<S: AsRef<str>>(word: &str, known: &[S]) -> String {
    let words: Vec<&str> = known.iter().map(AsRef::as_ref).collect();
    match nearest(word, words.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None if !akin(word, &words).is_empty() => format!("did you mean {}?", list(&akin(word, &words))),
        None if known.is_empty() => "none is known here".to_owned(),
        None if known.len() > MAX_LISTED => {
            format!("known here: {} and {} more", list(&known[..MAX_LISTED]), known.len() - MAX_LISTED)
        }
        None => format!("known here: {}", list(known)),
    }
}

/// Whether a text has the form of a well-known provider's key.
pub(super) fn is_known_key(text: &str) -> bool {
    const PREFIXES: &[(&str, usize)] = &[
        ("sk-", 16),
        ("sk_live_", 12),
        ("hf_", 20),
        ("ghp_", 20),
        ("gho_", 20),
        ("ghs_", 20),
        ("github_pat_", 20),
        ("glpat-", 16),
        ("xoxb-", 16),
        ("xoxp-", 16),
        ("AKIA", 16),
        ("AIza", 30),
        ("gsk_", 20),
        ("nvapi-", 20),
        ("r8_", 20),
    ];
    let text = text.strip_prefix("Bearer ").unwrap_or(text);
    text.contains("-----BEGIN ") && text.contains("PRIVATE KEY")
        || PREFIXES.iter().any(|(prefix, least)| {
            text.strip_prefix(prefix).is_some_and(|rest| {
                rest.len() >= *least
                    && rest.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
                    && rest.bytes().any(|b| b.is_ascii_digit() || b.is_ascii_uppercase())
            })
        })
}

/// Whether a text looks drawn by chance: long, without blanks and path separators, letters and digits mixed.
pub(super) fn is_random(text: &str, least: usize) -> bool {
    text.len() >= least
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'+' | b'=' | b'.'))
        && text.bytes().any(|b| b.is_ascii_digit())
        && text.bytes().any(|b| b.is_ascii_alphabetic())
        && text.split(['-', '_', '.', '+', '=']).any(|part| part.len() >= least / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_reach_paths_and_shells_are_refused() {
        for bad in ["", "a b", "$(x)", "-a", ".a", "a/b", "a\n", "a;b", "~", "..", &"x".repeat(65)] {
            assert!(problem(bad).is_some(), "{bad:?}");
        }
        for good in ["a", "ada-01", "llama3.1_8b", "c++", "büro"] {
            assert_eq!(problem(good), None, "{good:?}");
        }
    }

    #[test]
    fn the_nearest_word_is_near() {
        assert_eq!(nearest("contxt", ["context", "concurrency"]), Some("context"));
        assert_eq!(nearest("zzz", ["context"]), None);
        assert_eq!(nearest("adress", ["address", "label"]), Some("address"));
    }

    #[test]
    fn keys_look_like_keys_and_names_do_not() {
        assert!(is_known_key(&format!("sk-{}", "Ab3".repeat(8))));
        assert!(is_known_key(&format!("hf_{}", "Ab3".repeat(10))));
        assert!(!is_known_key("sk-skeleton"));
        assert!(!is_known_key("hf:meta-llama/Llama-3.1-8B"));
        assert!(is_random(&"4f9c2b7d".repeat(4), 24));
        assert!(!is_random("ANTHROPIC_API_KEY", 24));
        assert!(!is_random("/data/models/llama", 16));
    }
}
