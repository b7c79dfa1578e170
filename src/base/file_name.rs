//! Names of files that strangers chose: on a hub, in a lock, on the wire.

use super::is_invisible;

/// Longest path inside a repository.
const MAX_PATH: usize = 1024;
/// Longest name of one file that a store keeps: it writes others beside it whose names are longer.
const MAX_NAME: usize = 200;

/// What is wrong with a path inside a repository, if anything is: one that leaves its folder, or that no terminal shows
/// as it is.
pub fn path_problem(path: &str) -> Option<&'static str> {
    if path.is_empty() {
        Some("is empty")
    } else if path.len() > MAX_PATH {
        Some("is longer than 1024 bytes")
    } else if path.starts_with(['/', '~']) || path.as_bytes().get(1) == Some(&b':') {
        Some("is absolute")
    } else if path.contains('\\') {
        Some("holds a backslash")
    } else if path.contains(is_invisible) {
        Some("holds a character that nobody sees")
    } else if path.split('/').any(|part| matches!(part, "" | "." | "..")) {
        Some("leaves its folder, or names none")
    } else {
        None
    }
}

/// The same for a file that is kept in a set of weights: the store's own notes lie beside it, and engines are told it on
/// their command line.
pub fn kept_path_problem(path: &str) -> Option<&'static str> {
    if let Some(problem) = path_problem(path) {
        Some(problem)
    } else if path.split('/').any(|part| part.len() > MAX_NAME) {
        Some("is longer than 200 bytes")
    } else if path.split('/').any(|part| part.starts_with(['.', '-'])) {
        Some("begins with a dot or a dash")
    } else if path.ends_with(".part") {
        Some("ends in `.part`")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_stays_inside_and_is_seen() {
        for good in ["config.json", "UD-Q4_K_XL/m-00001-of-00002.gguf", ".gitattributes", "a b/ü.txt", "a..b", "-x"] {
            assert_eq!(path_problem(good), None, "{good}");
        }
        let long = "a".repeat(1025);
        let bad = [
            "",
            "/etc/passwd",
            "../x",
            "a/../b",
            "a/./b",
            "a//b",
            "a/",
            "..",
            "~/x",
            "a\\b",
            "C:/x",
            "a\nb",
            "a\0b",
            "a\u{202e}b",
            "a\u{1b}[2Jb",
            "a\u{200b}b",
            &long,
        ];
        for bad in bad {
            assert!(path_problem(bad).is_some() && kept_path_problem(bad).is_some(), "{bad:?}");
        }
    }

    #[test]
    fn what_a_store_keeps_is_not_taken_for_its_own() {
        for good in ["config.json", "sub/m-00001-of-00002.safetensors", "a..b.gguf", &"a".repeat(200)] {
            assert_eq!(kept_path_problem(good), None, "{good}");
        }
        let long = format!("sub/{}", "a".repeat(201));
        for bad in [".flock-complete.json", "a/.x", "-rf", "a/-b", "x.part", &long] {
            assert!(kept_path_problem(bad).is_some() && path_problem(bad).is_none(), "{bad:?}");
        }
    }
}
