//! Names that come from a hub, or go into its addresses.

use crate::base::{is_invisible, path_problem};

/// Whether a text can be `owner/name`, or the bare name of a repository of the hub's first days. The hub's own rule:
/// letters, digits, `-`, `_`, `.`, at most 96 characters, no `--` or `..`, and neither `-` nor `.` at an end.
///
/// The last two are asked of each part here only as far as an address needs it: mirrors know other names.
pub(super) fn is_repository(text: &str) -> bool {
    let part = |part: &str| {
        !part.is_empty()
            && part.len() <= 128
            && part != "."
            && !part.contains("..")
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    };
    let mut parts = text.split('/');
    parts.next().is_some_and(part) && parts.next().is_none_or(part) && parts.next().is_none()
}

/// Whether a text is a whole commit id.
pub(super) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// Whether a text can name a branch, tag or commit, as one part of an address: `.` and `..` would lead elsewhere.
pub(super) fn is_revision(text: &str) -> bool {
    !text.is_empty() && text.len() <= 255 && text != "." && text != ".." && !text.contains(is_invisible)
}

/// Whether a path stays inside its repository, whoever wrote it, and can be shown.
pub(super) fn is_path(text: &str) -> bool {
    path_problem(text).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories() {
        for good in ["meta-llama/Llama-3.1-8B", "gpt2", "a/b", "x_y/z-1.0", "TheBloke/a.b"] {
            assert!(is_repository(good), "{good}");
        }
        for bad in
            ["", "/", "a/", "/b", "a/b/c", "../b", "a/..", "a/.", "a b/c", "a/b?x", "a/b#", "a%2fb", "ä/b", "a/b\n"]
        {
            assert!(!is_repository(bad), "{bad:?}");
        }
    }

    #[test]
    fn revisions() {
        for good in ["main", "refs/pr/1", "v1.0", "feature/x y", "a..b"] {
            assert!(is_revision(good), "{good}");
        }
        for bad in ["", ".", "..", "a\nb", "\u{1b}[2J"] {
            assert!(!is_revision(bad), "{bad:?}");
        }
        assert!(is_commit(&"0a".repeat(20)));
        assert!(!is_commit(&"0A".repeat(20)) && !is_commit("0a") && !is_commit(&"0g".repeat(20)));
    }
}
