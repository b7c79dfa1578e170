//! The coverage-guided fuzzer: LLVM's, around one of the targets. `scripts/fuzz` builds it with the counters that
//! guide it, which stable Rust has without a sanitizer, and runs it.
//!
//! `FLOCK_FUZZ_TARGET` names the target. With `FLOCK_FUZZ_DICTIONARY`, the words of the language are written there.
#![no_main]
#![allow(clippy::disallowed_methods, reason = "what to do is in the environment")]

mod targets;

use std::sync::OnceLock;

use flock::config::schema::{NodeSpec, Type, top_level};

static TARGET: OnceLock<fn(&[u8])> = OnceLock::new();

libfuzzer_sys::fuzz_target!(init: begin(), |data: &[u8]| {
    if let Some(target) = TARGET.get() {
        target(data);
    }
});

fn begin() {
    let wanted = std::env::var("FLOCK_FUZZ_TARGET").unwrap_or_default();
    let found = targets::TARGETS.iter().find(|(name, _)| *name == wanted);
    let (_, target) = found.unwrap_or_else(|| panic!("FLOCK_FUZZ_TARGET is no target: {wanted:?}"));
    TARGET.get_or_init(|| *target);
    if let Some(path) = std::env::var_os("FLOCK_FUZZ_DICTIONARY") {
        std::fs::write(&path, dictionary(&wanted)).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

/// What terminals obey, as it is and as JSON and KDL write it.
const OBEYED: &[&str] =
    &["\u{1b}[2J", "\u{9b}", "\u{7f}", "\u{202e}", "\u{2066}", "\\u001b", "\\u009b", "\\u202e", "\\u{1b}", "\\u{202e}"];

/// Words that a target knows, in the fuzzer's format: of the language, every word of the tables and the signs of KDL.
fn dictionary(target: &str) -> String {
    let mut words: Vec<String> = match target {
        "kdl" | "format" => kdl_words(),
        "ssh_config" => {
            let words = "Host Match Include HostName Port User ProxyJump ProxyCommand IdentityFile IdentityAgent \
                         UserKnownHostsFile HostKeyAlias ConnectTimeout originalhost exec all none yes !*. %h %n %% ${HOME} =";
            words.split_whitespace().map(str::to_owned).collect()
        }
        "findings" => ["::error::", "%0A", "&#96;", "<!--", "-->", "\\|", "|", "`", "@", "://", "\u{1c}", "\n"]
            .map(str::to_owned)
            .to_vec(),
        _ => Vec::new(),
    };
    words.extend(OBEYED.iter().map(|word| (*word).to_owned()));
    let escape = |word: &str| word.bytes().map(|byte| format!("\\x{byte:02x}")).collect::<String>();
    words.iter().map(|word| format!("\"{}\"\n", escape(word))).collect()
}

fn kdl_words() -> Vec<String> {
    let mut words: Vec<String> =
        ["{", "}", "\"\"\"", "#\"", "\"#", "/*", "*/", "//", "/-", "\\", ";", "=", "#true", "#false"]
            .into_iter()
            .chain([
                "#null",
                "0x1F",
                "1e9",
                "{{ ",
                " }}",
                "[1-9]",
                "GiB",
                "\r\n",
                "hf:a/b",
                "path:m.gguf",
                "on-node:/m",
                "\u{1c}",
            ])
            .map(str::to_owned)
            .collect();
    top_level().iter().for_each(|node| collect(node, &mut words));
    words.sort();
    words.dedup();
    words
}

fn collect(node: &NodeSpec, words: &mut Vec<String>) {
    words.push(format!("{} ", node.word));
    for property in node.properties {
        words.push(format!(" {}=", property.name));
        words_of(property.ty, words);
    }
    node.arguments.iter().for_each(|argument| words_of(argument.ty, words));
    node.children.iter().for_each(|child| collect(child, words));
}

fn words_of(of: Type, words: &mut Vec<String>) {
    if let Type::Word(list) | Type::Words(list) = of {
        words.extend(list.iter().map(|word| format!("\"{word}\"")));
    }
}
