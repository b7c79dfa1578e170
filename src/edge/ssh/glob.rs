//! Lists of patterns as ssh reads them: `!` in front stands for "not".

use crate::base::glob_bytes;

/// Whether a name fits one of the patterns and none of those with `!`.
pub(super) fn fits_list<'a>(patterns: impl IntoIterator<Item = &'a str>, name: &str) -> bool {
    let mut found = false;
    for pattern in patterns {
        match pattern.strip_prefix('!') {
            Some(not) if glob_bytes(not, name) => return false,
            Some(_) => {}
            None => found |= glob_bytes(pattern, name),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_as_in_ssh() {
        assert!(fits_list(["*.lab", "!bad.lab"], "a.lab") && !fits_list(["*.lab", "!bad.lab"], "bad.lab"));
        assert!(!fits_list(["!bad.lab"], "a.lab"), "a negation alone fits nothing");
    }
}
