//! No input makes the reader panic, overflow the stack, or be read otherwise than in one piece.

use proptest::prelude::*;

use super::*;
use crate::config::syntax::{Node, Value, parse};

const WORDS: &str = include_str!("../testdata/words.kdl");

/// Pieces of which broken files are made.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("{"),
        Just("}"),
        Just("\""),
        Just("\"\"\""),
        Just("#\""),
        Just("\"#"),
        Just("/*"),
        Just("*/"),
        Just("//"),
        Just("/-"),
        Just("\\"),
        Just("\n"),
        Just("\r\n"),
        Just(";"),
        Just("="),
        Just("("),
        Just(")"),
        Just("#true"),
        Just("true"),
        Just("0x1F"),
        Just("1e999"),
        Just("-"),
        Just("."),
        Just(" "),
        Just("node \"a\" "),
        Just("model "),
        Just("cluster \"x\" {"),
        Just("step \"s\" after=\"s\" {"),
        Just("{{ "),
        Just(" }}"),
        Just("\u{feff}"),
        Just("é"),
        Just("\u{0}"),
        Just("include \"*\""),
        Just("workflow w {"),
        Just("source \"path:\""),
        Just("name=\"[1-9]\" "),
    ];
    proptest::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

fn mutated(text: &'static str) -> impl Strategy<Value = Vec<u8>> {
    let change = (any::<prop::sample::Index>(), 0..4_u8, any::<u8>(), 1..40_usize);
    proptest::collection::vec(change, 1..6).prop_map(move |changes| {
        let mut bytes = text.as_bytes().to_vec();
        for (index, kind, byte, length) in changes {
            if bytes.is_empty() {
                break;
            }
            let at = index.index(bytes.len());
            let end = (at + length).min(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => drop(bytes.drain(at..end)),
                2 => bytes.insert(at, byte & 0x7f),
                _ => {
                    let copy = bytes[at..end].to_vec();
                    bytes.splice(at..at, copy);
                }
            }
        }
        bytes
    })
}

/// A finding is inside its file, and a desired state is there exactly without errors.
fn check(bytes: Vec<u8>) -> Result<(), TestCaseError> {
    let mut tree = example();
    tree.insert("cluster.kdl", TreeEntry::File(bytes.clone()));
    let loaded = load(&tree);
    let invalid = loaded.diagnostics.iter().any(|found| found.severity == Severity::Error);
    prop_assert_eq!(loaded.desired.is_none(), invalid);
    let text = String::from_utf8_lossy(&bytes);
    let lines = text.lines().count().max(1) + text.matches('\r').count() + 1;
    for found in loaded.diagnostics.iter().filter(|found| found.file.as_deref() == Some("cluster.kdl")) {
        prop_assert!(found.line.is_some_and(|line| (1..=lines).contains(&line)), "{:?}", found);
        prop_assert!(found.column.is_some_and(|column| column >= 1), "{:?}", found);
        prop_assert!((found.line, found.column) <= (found.end_line, found.end_column), "{:?}", found);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_text(text in "\\PC{0,200}") {
        check(text.into_bytes())?;
    }

    #[test]
    fn pieces_of_the_language(text in pieces()) {
        check(text.into_bytes())?;
    }

    #[test]
    fn mutations_of_a_valid_config(bytes in mutated(WORDS)) {
        check(bytes)?;
    }

    #[test]
    fn mutations_read_alike_in_one_piece(bytes in mutated(CLUSTER)) {
        if let Ok(text) = String::from_utf8(bytes) {
            agree(&text)?;
        }
    }

    #[test]
    fn pieces_read_alike_in_one_piece(text in pieces()) {
        agree(&text)?;
    }
}

/// Node by node `kdl` reads a file as it does in one piece, or refuses it both ways.
fn agree(text: &str) -> Result<(), TestCaseError> {
    // `kdl` reads a number beyond all bounds as infinite; here it is an error.
    let text = text.replace('\u{feff}', "").replace("1e999", "1e9");
    // In one piece it recurs per level and per stray word: keep it to what it survives.
    if text.matches('{').count() > 12 || text.matches("/*").count() > 1 {
        return Ok(());
    }
    let (nodes, found) = parse("x.kdl", text.as_bytes());
    let reference = text.parse::<kdl::KdlDocument>();
    match reference {
        // `kdl` lets text follow the block of a node that `/-` drops.
        Ok(_) if text.contains("/-") && found.iter().any(|one| one.message.starts_with("text after the block")) => {}
        Ok(document) => {
            prop_assert!(found.is_empty(), "{:?} is valid: {:?}", text, found);
            same(&nodes, document.nodes(), &text)?;
        }
        Err(error) => prop_assert!(!found.is_empty(), "{:?} is not valid: {:?}", text, error.diagnostics),
    }
    Ok(())
}

fn same(ours: &[Node], theirs: &[kdl::KdlNode], text: &str) -> Result<(), TestCaseError> {
    prop_assert_eq!(ours.len(), theirs.len(), "{:?}", text);
    for (our, their) in ours.iter().zip(theirs) {
        prop_assert_eq!(our.word(), their.name().value());
        prop_assert_eq!(our.entries.len(), their.entries().len(), "{:?}", text);
        for (entry, other) in our.entries.iter().zip(their.entries()) {
            prop_assert_eq!(
                entry.key.as_ref().map(|key| key.value.as_str()),
                other.name().map(kdl::KdlIdentifier::value)
            );
            let equal = match (&entry.value.value, other.value()) {
                (Value::Text { text, .. }, kdl::KdlValue::String(other)) => text == other,
                (Value::Integer(number), kdl::KdlValue::Integer(other)) => number == other,
                (Value::Float(number), kdl::KdlValue::Float(other)) => number == other,
                (Value::Bool(value), kdl::KdlValue::Bool(other)) => value == other,
                (Value::Null, kdl::KdlValue::Null) => true,
                (Value::NotFinite(_), kdl::KdlValue::Float(other)) => !other.is_finite(),
                _ => false,
            };
            prop_assert!(equal, "{:?} and {:?} in {:?}", entry.value.value, other.value(), text);
        }
        let none = Vec::new();
        let children = our.children.as_ref().unwrap_or(&none);
        same(children, their.children().map_or(&[], |children| children.nodes()), text)?;
    }
    Ok(())
}

/// So many bytes of one pattern after some beginning.
fn filled(begin: &str, pattern: &str, bytes: usize) -> String {
    format!("{begin}{}", pattern.repeat((bytes - begin.len()) / pattern.len()))
}

/// Whatever makes `kdl` recur once per few bytes, in the open, in strings and in comments. The stack of
/// a test has 2 MiB, which so many levels would exceed many times.
#[test]
fn hostile_files_are_refused_and_end_nothing() {
    let bytes = 128 << 10;
    let begins = ["", "a ", "a \"\\q ", "a #\"", "a \"\"\"\n\\q ", "/* "];
    let patterns = [
        "{ a ",
        "{",
        "}",
        "{}",
        "a=",
        "=",
        "* / ",
        "/*",
        "*/",
        "/",
        "//",
        "/-",
        "/-a ",
        "/-{",
        "a /-{ ",
        "\"",
        "\"\"\"",
        "#",
        "#\"",
        "(",
        "()",
        "[",
        "\\",
        ".5 ",
        "-.5 ",
        "\0",
        "\"\\u{",
        "\"\\q{",
        "\"\\q/*",
        "\"\\q /-",
        "é",
        "a;",
        ";",
        "a{}b",
        "\"a\"\"b\"",
        "#x ",
        "0x ",
        "999999999999999999999999999999999999999999 ",
    ];
    for begin in begins {
        for pattern in patterns {
            let (_, found) = parse("x.kdl", filled(begin, pattern, bytes).as_bytes());
            assert!(found.len() <= 100, "{begin:?} {pattern:?} {}", found.len());
        }
    }
}

#[test]
fn sixty_four_levels_are_read_and_one_more_is_not() {
    let nested = |levels: usize| format!("{}{}", "a { ".repeat(levels), "} ".repeat(levels));
    assert_eq!(parse("x", nested(64).as_bytes()).1, []);
    let (_, found) = parse("x", nested(65).as_bytes());
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].id, crate::config::ids::TOO_DEEP);
    // Braces in strings and comments are none.
    let inside = format!("a \"{0}\" #\"{0}\"# /* {0} */ // {0}\n", "{".repeat(100));
    assert_eq!(parse("x", inside.as_bytes()).1, []);
}

#[test]
fn large_files_take_linear_time() {
    let line = "model \"m\" { source \"hf:a/b\"; label \"a\" \"b\" /* c */ } // d\n";
    let nodes = line.repeat(10_000);
    let properties = format!("node \"a\" {}", (0..30_000).map(|n| format!("p{n}=1 ")).collect::<String>());
    let holes = "node\n".repeat(30_000);
    let unknown = "nod \"a\"\n".repeat(20_000);
    let ranges = (0..500).map(|n| format!("node \"n{n}-[1-1000]\" address=\"x{{}}\"\n")).collect::<String>();
    for text in [nodes, properties, holes, unknown, ranges] {
        assert!(load_cluster(&text).desired.is_none());
    }
}
