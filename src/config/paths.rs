//! Paths inside the repository, and globs over them. Only text: nothing is looked up.

/// Normalises a path relative to the root; `None` if it leaves it.
pub(super) fn normal(path: &str) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// A path written in `file`, relative to the root; `None` if it leaves the repository.
pub(super) fn relative_to_file(file: &str, path: &str) -> Option<String> {
    match file.rsplit_once('/') {
        Some((folder, _)) => normal(&format!("{folder}/{path}")),
        None => normal(path),
    }
}

/// How `file` writes a path that is given relative to the root.
pub(super) fn climb(file: &str, path: &str) -> String {
    format!("{}{path}", "../".repeat(file.matches('/').count()))
}

/// Whether a path matches a glob: `*` and `?` stay within a part, `**` is any number of parts,
/// `[a-c]` is one of a set.
pub(super) fn matches(glob: &str, path: &str) -> bool {
    let pattern: Vec<&str> = glob.split('/').collect();
    let parts: Vec<&str> = path.split('/').collect();
    // Row by row over the pattern: which prefixes of `parts` the pattern so far can cover.
    let mut reach = vec![false; parts.len() + 1];
    reach[0] = true;
    for piece in pattern {
        let mut next = vec![false; parts.len() + 1];
        if piece == "**" {
            let mut open = false;
            for (at, covered) in reach.iter().enumerate() {
                open |= covered;
                next[at] = open;
            }
        } else {
            for at in 0..parts.len() {
                next[at + 1] = reach[at] && part_matches(piece, parts[at]);
            }
        }
        reach = next;
    }
    reach[parts.len()]
}

pub(super) fn is_glob(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

enum Piece {
    Any,
    One,
    Set(Vec<(char, char)>),
    Char(char),
}

fn pieces(pattern: &str) -> Vec<Piece> {
    let chars: Vec<char> = pattern.chars().collect();
    let mut out = Vec::new();
    let mut at = 0;
    while at < chars.len() {
        match chars[at] {
            '*' => out.push(Piece::Any),
            '?' => out.push(Piece::One),
            '[' => match chars[at + 1..].iter().position(|c| *c == ']') {
                Some(length) if length > 0 => {
                    let inner = &chars[at + 1..at + 1 + length];
                    let mut set = Vec::new();
                    let mut i = 0;
                    while i < inner.len() {
                        if i + 2 < inner.len() && inner[i + 1] == '-' {
                            set.push((inner[i], inner[i + 2]));
                            i += 3;
                        } else {
                            set.push((inner[i], inner[i]));
                            i += 1;
                        }
                    }
                    out.push(Piece::Set(set));
                    at += length + 1;
                }
                _ => out.push(Piece::Char('[')),
            },
            c => out.push(Piece::Char(c)),
        }
        at += 1;
    }
    out
}

fn part_matches(pattern: &str, part: &str) -> bool {
    let chars: Vec<char> = part.chars().collect();
    let mut reach = vec![false; chars.len() + 1];
    reach[0] = true;
    for piece in pieces(pattern) {
        let mut next = vec![false; chars.len() + 1];
        match piece {
            Piece::Any => {
                let mut open = false;
                for (at, covered) in reach.iter().enumerate() {
                    open |= covered;
                    next[at] = open;
                }
            }
            one => {
                for at in 0..chars.len() {
                    let c = chars[at];
                    next[at + 1] = reach[at]
                        && match &one {
                            Piece::Char(wanted) => c == *wanted,
                            Piece::Set(set) => set.iter().any(|(from, to)| (*from..=*to).contains(&c)),
                            Piece::One | Piece::Any => true,
                        };
                }
            }
        }
        reach = next;
    }
    reach[chars.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_inside() {
        assert_eq!(relative_to_file("workflows/a.kdl", "../schemas/x.json").as_deref(), Some("schemas/x.json"));
        assert_eq!(relative_to_file("cluster.kdl", "../x"), None);
        assert_eq!(relative_to_file("a/b.kdl", "../../x"), None);
        assert_eq!(relative_to_file("cluster.kdl", "./a//b/../c").as_deref(), Some("a/c"));
        assert_eq!(climb("workflows/a.kdl", "schemas/x"), "../schemas/x");
    }

    #[test]
    fn globs() {
        assert!(matches("nodes/*.kdl", "nodes/a.kdl"));
        assert!(!matches("nodes/*.kdl", "nodes/b/a.kdl"));
        assert!(matches("nodes/**/*.kdl", "nodes/a.kdl"));
        assert!(matches("nodes/**/*.kdl", "nodes/b/c/a.kdl"));
        assert!(matches("n[a-c]?.kdl", "nb1.kdl"));
        assert!(!matches("n[a-c]?.kdl", "nd1.kdl"));
        assert!(matches("[", "["));
    }
}
