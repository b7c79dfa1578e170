//! Patterns over names and paths: one matcher, and the three readings of `*` that flock's inputs have.

/// Whether a name fits a pattern, character by character: `*` stands for any text, `?` for one character, everything
/// else for itself. Takes time in proportion to the product of the lengths, whatever the pattern.
pub fn glob(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    covers(&pattern, &name, |c| *c == '*', |c, found| *c == '?' || c == found)
}

/// The same byte by byte, as ssh matches host names: `?` stands for one byte.
pub fn glob_bytes(pattern: &str, name: &str) -> bool {
    covers(pattern.as_bytes(), name.as_bytes(), |b| *b == b'*', |b, found| *b == b'?' || b == found)
}

/// Whether a path matches a pattern: `*` and `?` stay within a part, `**` is any number of parts, `[a-c]` is one of a
/// set of characters.
pub fn glob_path(pattern: &str, path: &str) -> bool {
    let pattern: Vec<Part> = pattern.split('/').map(Part::read).collect();
    let parts: Vec<Vec<char>> = path.split('/').map(|part| part.chars().collect()).collect();
    covers(&pattern, &parts, |part| matches!(part, Part::Any), |part, found| part.fits(found))
}

/// Whether pieces stand for the whole of a text. Where a piece that stands for any run is followed by one that does
/// not fit, the run grows by one; an earlier run never needs to, so there is nothing to go back to but the last.
fn covers<P, T>(pieces: &[P], text: &[T], is_run: impl Fn(&P) -> bool, fits: impl Fn(&P, &T) -> bool) -> bool {
    let (mut at, mut read) = (0, 0);
    let mut run: Option<(usize, usize)> = None;
    while read < text.len() {
        match pieces.get(at) {
            Some(piece) if is_run(piece) => {
                run = Some((at, read));
                at += 1;
            }
            Some(piece) if fits(piece, &text[read]) => {
                at += 1;
                read += 1;
            }
            _ => match run {
                Some((run_at, covered)) => {
                    run = Some((run_at, covered + 1));
                    at = run_at + 1;
                    read = covered + 1;
                }
                None => return false,
            },
        }
    }
    pieces[at..].iter().all(is_run)
}

/// One part of a path's pattern.
enum Part {
    Any,
    Pieces(Vec<Piece>),
}

enum Piece {
    Any,
    One,
    Set(Vec<(char, char)>),
    Char(char),
}

impl Part {
    fn read(pattern: &str) -> Self {
        if pattern == "**" { Self::Any } else { Self::Pieces(pieces(pattern)) }
    }

    fn fits(&self, part: &[char]) -> bool {
        match self {
            Self::Any => true,
            Self::Pieces(pieces) => covers(pieces, part, |piece| matches!(piece, Piece::Any), Piece::fits),
        }
    }
}

impl Piece {
    fn fits(&self, found: &char) -> bool {
        match self {
            Self::Any | Self::One => true,
            Self::Set(set) => set.iter().any(|(from, to)| (from..=to).contains(&found)),
            Self::Char(wanted) => wanted == found,
        }
    }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a pattern means, by its definition and in exponential time.
    fn by_definition(pattern: &[char], name: &[char]) -> bool {
        match (pattern.split_first(), name.split_first()) {
            (None, found) => found.is_none(),
            (Some(('*', rest)), _) => (0..=name.len()).any(|run| by_definition(rest, &name[run..])),
            (Some((c, rest)), Some((found, name))) => (*c == '?' || c == found) && by_definition(rest, name),
            (Some(_), None) => false,
        }
    }

    /// The same for the parts of a path.
    fn path_by_definition(pattern: &[&str], parts: &[&str]) -> bool {
        match (pattern.split_first(), parts.split_first()) {
            (None, found) => found.is_none(),
            (Some((&"**", rest)), _) => (0..=parts.len()).any(|run| path_by_definition(rest, &parts[run..])),
            (Some((piece, rest)), Some((part, parts))) => {
                let (piece, part): (Vec<char>, Vec<char>) = (piece.chars().collect(), part.chars().collect());
                by_definition(&piece, &part) && path_by_definition(rest, parts)
            }
            (Some(_), None) => false,
        }
    }

    proptest! {
        #[test]
        fn names_fit_as_defined(pattern in "[ab*?]{0,7}", name in "[ab]{0,8}") {
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            let meant = by_definition(&chars(&pattern), &chars(&name));
            prop_assert_eq!(glob(&pattern, &name), meant);
            prop_assert_eq!(glob_bytes(&pattern, &name), meant);
            // Without a slash and a `**`, a path's pattern means the same.
            if pattern != "**" {
                prop_assert_eq!(glob_path(&pattern, &name), meant);
            }
        }

        #[test]
        fn paths_fit_as_defined(pattern in "[ab*?/]{0,9}", path in "[ab/]{0,9}") {
            let (pieces, parts): (Vec<&str>, Vec<&str>) = (pattern.split('/').collect(), path.split('/').collect());
            prop_assert_eq!(glob_path(&pattern, &path), path_by_definition(&pieces, &parts));
        }
    }

    #[test]
    fn long_patterns_take_no_time() {
        assert!(glob_bytes("*a*a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaab"));
        assert!(!glob_bytes("*a*a*a*a*a*b", &"a".repeat(4000)));
        assert!(!glob_path(&"**/a/".repeat(40), &"a/".repeat(400).replace("a/a", "a/b")));
    }

    #[test]
    fn the_readings_differ_where_they_should() {
        assert!(glob("a*c", "a/b/c") && !glob_path("a*c", "a/b/c") && glob_path("a/**/c", "a/c"));
        assert!(glob("?", "é") && !glob_bytes("?", "é") && glob_bytes("??", "é"));
        assert!(glob("[a]", "[a]") && glob_path("[a]", "a") && !glob_path("[a]", "[a]"));
    }

    #[test]
    fn paths_have_sets_and_parts() {
        assert!(glob_path("nodes/*.kdl", "nodes/a.kdl"));
        assert!(!glob_path("nodes/*.kdl", "nodes/b/a.kdl"));
        assert!(glob_path("nodes/**/*.kdl", "nodes/a.kdl"));
        assert!(glob_path("nodes/**/*.kdl", "nodes/b/c/a.kdl"));
        assert!(glob_path("n[a-c]?.kdl", "nb1.kdl"));
        assert!(!glob_path("n[a-c]?.kdl", "nd1.kdl"));
        assert!(glob_path("[", "["));
    }

    #[test]
    fn runs_give_way() {
        assert!(glob("a*b*c", "aXbYbZc") && !glob("a*b*c", "aXbYbZ"));
        assert!(glob("***", "") && glob("", "") && !glob("?", ""));
    }
}
