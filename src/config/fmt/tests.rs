//! No comment lost, formatted once is formatted for good, and every value as written.

use proptest::prelude::*;

use super::{Unformatted, format_kdl};

fn formatted(text: &str) -> String {
    match format_kdl("x.kdl", text.as_bytes()) {
        Ok(text) => text,
        Err(error) => panic!("{error:#?} for {text}"),
    }
}

/// Whether two documents hold the same names, values and number forms as `kdl` itself reads them.
fn same(before: &kdl::KdlDocument, after: &kdl::KdlDocument) -> bool {
    let entry = |entry: &kdl::KdlEntry| {
        let written = entry.format().map(|format| format.value_repr.clone());
        (entry.name().map(|name| name.repr().map(str::to_owned)), entry.value().clone(), written, entry.ty().cloned())
    };
    before.nodes().len() == after.nodes().len()
        && before.nodes().iter().zip(after.nodes()).all(|(before, after)| {
            before.name().value() == after.name().value()
                && before.entries().iter().map(entry).eq(after.entries().iter().map(entry))
                && match (before.children(), after.children()) {
                    (Some(before), Some(after)) => same(before, after),
                    (before, after) => before.is_none() && after.is_none(),
                }
        })
}

/// Every comment in order, as an eye finds them: outside strings, without the blanks behind.
fn comments(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let length = if let Some(raw) = rest.strip_prefix("#\"") {
            raw.find("\"#").map_or(rest.len(), |end| end + 4)
        } else if let Some(long) = rest.strip_prefix("\"\"\"") {
            long.find("\"\"\"").map_or(rest.len(), |end| end + 6)
        } else if let Some(string) = rest.strip_prefix('"') {
            string.replace("\\\"", "..").find('"').map_or(rest.len(), |end| end + 2)
        } else if rest.starts_with("//") {
            let end = rest.find(['\n', '\r']).unwrap_or(rest.len());
            found.push(rest[..end].trim_end().to_owned());
            end
        } else if rest.starts_with("/*") {
            let end = rest.find("*/").map_or(rest.len(), |end| end + 2);
            found.push(rest[..end].to_owned());
            end
        } else {
            c.len_utf8()
        };
        rest = &rest[length..];
    }
    found
}

fn check(text: &str) -> Result<(), TestCaseError> {
    let once = match format_kdl("x.kdl", text.as_bytes()) {
        Ok(once) => once,
        Err(Unformatted::Invalid(_)) => return Ok(()),
        Err(fault) => return Err(TestCaseError::fail(format!("{fault:?} for {text:?}"))),
    };
    let twice = formatted(&once);
    prop_assert_eq!(&once, &twice, "formatted again, it differs: {:?}", text);
    for line in once.lines() {
        let inside_text = once.contains("\"\"\"") || once.contains("/*") || once.contains("\\\n");
        prop_assert!(inside_text || line == line.trim_end_matches([' ', '\t']), "{:?}", line);
    }
    Ok(())
}

#[test]
fn every_comment_position_is_kept() {
    let before = include_str!("testdata/before.kdl");
    let after = formatted(before);
    assert_eq!(after, include_str!("testdata/after.kdl"), "\n{after}");
    assert_eq!(comments(&after), comments(before));
    assert_eq!(comments(before).len(), 29);
    assert_eq!(formatted(&after), after);
    let parsed = |text: &str| text.parse::<kdl::KdlDocument>().expect("valid");
    assert!(same(&parsed(before), &parsed(&after)));
    // The same with other line ends, a mark at the beginning, and without a last line end.
    let windows = format!("\u{feff}{}", before.replace('\n', "\r\n"));
    assert_eq!(formatted(&windows), format!("\u{feff}{}", after.replace('\n', "\r\n")));
    assert_eq!(formatted(before.trim_end()), after);
}

#[test]
fn small_forms() {
    for (before, after) in [
        ("", ""),
        ("\n\n \n", ""),
        ("\u{feff}", "\u{feff}"),
        ("a;", "a\n"),
        ("a; b ;c", "a\nb\nc\n"),
        ("a { b; }", "a { b }\n"),
        ("a{b}", "a { b }\n"),
        ("a {\nb}", "a {\n    b\n}\n"),
        ("a { b\n}", "a {\n    b\n}\n"),
        ("a {}", "a { }\n"),
        ("a{b{c 1;d 2}};e", "a { b { c 1; d 2 } }\ne\n"),
        ("a \\\n\n", "a\n"),
        ("a \\ // c\n", "a // c\n"),
        ("a \\ // c\n // d", "a \\ // c\n    // d\n"),
        ("a \\\n b \\\n c", "a \\\n    b \\\n    c\n"),
        ("a k \\\n = \\\n v", "a k \\\n    = \\\n    v\n"),
        ("a k /*1*/=/*2*/ v", "a k /*1*/ = /*2*/ v\n"),
        ("/-\na", "/- a\n"),
        ("/- // why\n  a", "/- // why\n    a\n"),
        ("/- kdl-version 2\na", "/- kdl-version 2\na\n"),
        ("a /-{ b } /- { c } { d }", "a /-{ b } /- { c } { d }\n"),
        ("a/*1*/b", "a /*1*/ b\n"),
        ("a // x\u{a0}\t", "a // x\n"),
        ("a \"b\\\n   c\" ", "a \"b\\\n   c\"\n"),
        ("a #true #null -0b11 1_0.5E-3 #\"\\\"#", "a #true #null -0b11 1_0.5E-3 #\"\\\"#\n"),
        ("a\u{2028}b\u{85}\u{c}c", "a\n\nb\n"),
    ] {
        let after = if before.contains('\u{2028}') { "a\nb\n\nc\n" } else { after };
        assert_eq!(formatted(before), after, "{before:?}");
        assert_eq!(formatted(after), after, "{before:?}");
    }
}

#[test]
fn what_cannot_be_read_is_refused_with_every_error() {
    let found = |bytes: &[u8]| match format_kdl("x.kdl", bytes) {
        Err(Unformatted::Invalid(found)) => found.iter().map(|one| (one.id, one.line)).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(found(b"a true\nb {\n"), [("FLK105", Some(1)), ("FLK104", Some(2))]);
    assert_eq!(found(b"\xff"), [("FLK102", Some(1))]);
    assert_eq!(found(&vec![b' '; (4 << 20) + 1]), [("FLK100", Some(1))]);
    assert_eq!(found("a{".repeat(65).as_bytes()), [("FLK101", Some(1))]);
    // As deep as a file may be; `kdl` would end the process if it were asked for all of it.
    let deep = format!("{}{}", "a{\n".repeat(64), "}\n".repeat(64));
    assert_eq!(formatted(&formatted(&deep)), formatted(&deep));
    let comment = format!("{}{}\na", "/*".repeat(50_000), "*/".repeat(50_000));
    assert_eq!(formatted(&comment), format!("{comment}\n"));
}

#[test]
fn the_templates_and_the_samples_are_formatted_alike() {
    for (name, text) in [
        ("words.kdl", include_str!("../testdata/words.kdl")),
        ("cluster.kdl", include_str!("../testdata/cluster.kdl")),
        ("vision.kdl", include_str!("../testdata/vision.kdl")),
        ("lab.kdl", include_str!("../testdata/lab.kdl")),
    ] {
        check(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(comments(&formatted(text)), comments(text), "{name}");
    }
}

/// What may stand between two words.
fn between() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        " ",
        " ",
        " ",
        " ",
        "\t  ",
        " /* c */ ",
        "/* c\n  d */",
        " \\\n ",
        " \\ // c \n\t",
        " \\ /* c */ // d\r\n",
    ])
}

/// What may stand between two nodes.
fn apart() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "\n",
        "\n",
        "\n",
        "; ",
        "; ",
        "\n\n\n",
        " // c \n",
        " /* c */ // d\n",
        "\n/* own */\n",
        "\r\n  // own\r\n\r\n",
        "; /* c */ // d\n",
        " /* c */;/* lead */ ",
        "\n \\\n",
    ])
}

fn entry() -> impl Strategy<Value = String> {
    let value = prop::sample::select(vec![
        "0x1F",
        "1_000",
        "-1.50e+3",
        "#true",
        "#-inf",
        "word",
        "\"a // b /* { } ; \\\" \\u{41}\"",
        "#\"raw \\ // \"\"#",
        "\"\"\"\n   long\n  // text\n  \"\"\"",
    ]);
    let key = prop::sample::select(vec!["", "", "", "k=", "k = ", "\"k e\" /* c */=", "k=\\\n ", "k=(t)", "( t ) "]);
    let dropped = prop::sample::select(vec!["", "", "", "", "", "", "/-", "/- ", "/- // c\n", "/-\n/* c */\n"]);
    (dropped, key, value).prop_map(|(dropped, key, value)| format!("{dropped}{key}{value}"))
}

fn nodes() -> impl Strategy<Value = String> {
    let leaf = Just(String::new()).boxed();
    leaf.prop_recursive(4, 40, 4, |inner| {
        let open = prop::sample::select(vec!["{", "{ ", "{\n", "{ // c\n", "{/* c */", "{ /* c */\n\n"]);
        let close = prop::sample::select(vec!["}", " }", "\n}", " // last\n}", " /* last */ }", "\n\n// last\n}"]);
        let children = (open, inner, close).prop_map(|(open, inner, close)| format!("{open}{inner}{close}"));
        let dropped = prop::sample::select(vec!["", "", "", "", "", "", "/-", "/- ", "/-\n", "/- // c\n", "/* lead */ ", "(t)"]);
        let name = prop::sample::select(vec!["node", "\"a b\"", "é-x"]);
        let entries = prop::collection::vec((between(), entry()), 0..4);
        let entries = entries.prop_map(|all| all.into_iter().map(|(a, b)| format!("{a}{b}")).collect::<String>());
        let block = prop_oneof![2 => Just(String::new()).boxed(), 1 => (between(), prop::sample::select(vec!["", "", "", "", "/-", "/- "]), children).prop_map(|(a, b, c)| format!("{a}{b}{c}")).boxed()];
        let node = (dropped, name, entries, block).prop_map(|(a, b, c, d)| format!("{a}{b}{c}{d}"));
        prop::collection::vec((node, apart()), 0..4).prop_map(|all| {
            let mut text: String = all.into_iter().map(|(a, b)| format!("{a}{b}")).collect();
            if text.ends_with("; ") {
                text.truncate(text.len() - 2);
            }
            text
        })
    })
}

/// Texts of loose pieces, of which the valid ones are looked at.
fn loose() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "{",
        "}",
        " ",
        "\n",
        "\r\n",
        ";",
        "a",
        "b ",
        "\"s\"",
        "=",
        "/-",
        "// c\n",
        "/* c */",
        "\\\n",
        "\\",
        "(",
        ")",
        "5",
        "\t",
        "#null",
        "{ }",
        "\u{feff}",
        "\"\"\"\n\"\"\"",
    ]);
    prop::collection::vec(piece, 0..14).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_comment_is_lost(text in nodes()) {
        if let Ok(once) = format_kdl("x.kdl", text.as_bytes()) {
            prop_assert_eq!(comments(&once), comments(&text), "{:?}\n{:?}", text, once);
        }
    }

    #[test]
    fn formatted_once_is_formatted(text in nodes()) {
        check(&text)?;
    }

    #[test]
    fn values_stay_as_written(text in nodes()) {
        if let Ok(once) = format_kdl("x.kdl", text.as_bytes())
            && let Ok(before) = text.parse::<kdl::KdlDocument>()
        {
            let after = once.parse::<kdl::KdlDocument>();
            prop_assert!(after.as_ref().is_ok_and(|after| same(&before, after)), "{:?}\n{:?}\n{:?}", text, once, after);
        }
    }

    #[test]
    fn nearly_all_of_what_is_made_here_is_valid(text in prop::collection::vec(nodes(), 20)) {
        let valid = text.iter().filter(|text| format_kdl("x.kdl", text.as_bytes()).is_ok()).count();
        prop_assert!(valid >= 10, "{valid}");
    }

    #[test]
    fn loose_pieces(text in loose()) {
        check(&text)?;
    }
}
