//! Why a word cannot be read, and what to write instead.

use std::ops::Range;

use kdl::KdlEntry;

use super::chars::{is_blank, is_forbidden, is_word_char, run};
use super::strings;
use crate::config::ids;

/// What is wrong with a word.
pub(super) struct Fault {
    /// Where, counted from the word's beginning.
    pub at: Range<usize>,
    pub id: &'static str,
    pub message: String,
    pub hint: String,
}

fn fault(at: Range<usize>, message: impl Into<String>, hint: impl Into<String>) -> Fault {
    Fault { at, id: ids::SYNTAX, message: message.into(), hint: hint.into() }
}

/// How much of a node's first word is its name.
pub(super) fn name_length(word: &str) -> usize {
    if word.starts_with('(') {
        return word.len();
    }
    if strings::begins(word) { strings::end(word, 0).unwrap_or(word.len()) } else { run(word, is_word_char) }
}

/// What is wrong with a node's first word, if anything is. `name` is empty if there is none.
pub(super) fn name(word: &str, name: &str) -> Option<Fault> {
    let length = name_length(word);
    if name.is_empty() && word.starts_with('[') {
        let hint = "KDL has no `[section]`; a block is `cluster \"lab\" { … }`, and its settings are lines in it";
        return Some(fault(0..1, "unexpected `[`", hint));
    }
    if name.is_empty() {
        return value(word).or_else(|| {
            let message = format!("`{}` is no name of a node", shortened(word));
            (!is_text(word)).then(|| fault(0..word.len(), message, "a line begins with a word such as `model`"))
        });
    }
    if word[length..].starts_with('=') {
        return Some(unexpected_equals(length, Some(name)));
    }
    colon(word, length).or_else(|| after(word, length))
}

/// JSON's and YAML's `"key": value`, and `key:"value"`.
fn colon(word: &str, end: usize) -> Option<Fault> {
    let read = &word[..end];
    let key = read.trim_matches(['"', ':']);
    if word[end..].starts_with(':') && read.ends_with('"') {
        let hint = format!("KDL has no `:`; a setting is `{key} value`, and a property `{key}=value`");
        return Some(fault(end..end + 1, "unexpected `:` behind a name", hint));
    }
    if word[end..].starts_with('"') && read.ends_with(':') && !key.contains(':') {
        let hint = format!("a property is written with `=`: `{key}={}`", shortened(&word[end..]));
        return Some(fault(end - 1..end, "unexpected `:`", hint));
    }
    None
}

/// What is wrong with an argument or property. `node` is the node's name if the word follows it directly.
pub(super) fn entry(word: &str, node: Option<&str>) -> Option<Fault> {
    if word.starts_with('=') {
        return Some(unexpected_equals(0, node));
    }
    let key = name_length(word);
    let rest = word[key..].trim_start();
    if let Some(found) = colon(word, key) {
        return Some(found);
    }
    let Some(written) = rest.strip_prefix('=').filter(|_| key > 0) else { return value(word) };
    let written = written.trim_start();
    let at = word.len() - written.len();
    if written.starts_with('=') {
        return Some(fault(at..at + 1, "unexpected second `=`", format!("one is enough: `{}=…`", &word[..key])));
    }
    if written.is_empty() {
        let hint = "write a word, a \"text\", a number, #true or #false";
        return Some(fault(at - 1..at, "a property without a value", hint));
    }
    let mut found = value(&word[..key]).or_else(|| value(written).map(|found| shifted(found, at)));
    if found.is_none() && !is_text(&word[..key]) {
        found = Some(fault(0..key, "a property's name is a word or a text", "a property is `key=value`"));
    }
    found
}

fn shifted(fault: Fault, by: usize) -> Fault {
    Fault { at: fault.at.start + by..fault.at.end + by, ..fault }
}

fn unexpected_equals(at: usize, node: Option<&str>) -> Fault {
    let hint = match node {
        Some(name) => format!("a node's name is followed by its arguments without `=`: `{name} value`"),
        None => "a property is `key=value`".to_owned(),
    };
    fault(at..at + 1, "unexpected `=`", hint)
}

/// A number that is none.
pub(super) fn no_number(text: &str) -> Fault {
    let shown = shortened(text);
    let hint = match thousands(text) {
        Some(count) => format!("a number has digits only: write {count}"),
        None => format!("a number has digits only; as a text, write \"{shown}\" in quotes"),
    };
    fault(0..text.len(), format!("`{shown}` is no number"), hint)
}

/// The number that somebody means who writes `16k` for tokens.
pub(in crate::config) fn thousands(text: &str) -> Option<u64> {
    let digits = text.strip_suffix(['k', 'K'])?;
    digits.parse::<u64>().ok().and_then(|count| count.checked_mul(1024)).filter(|_| !digits.starts_with('+'))
}

fn is_text(word: &str) -> bool {
    let word = if strings::begins(word) { "" } else { word };
    word.is_empty() || (!is_numeric(word) && run(word, is_word_char) == word.len())
}

fn is_numeric(word: &str) -> bool {
    let digits = word.strip_prefix(['+', '-']).unwrap_or(word);
    digits.strip_prefix('.').unwrap_or(digits).starts_with(|c: char| c.is_ascii_digit())
}

/// What is wrong with a value, annotated or not.
fn value(word: &str) -> Option<Fault> {
    let annotated = word.strip_prefix('(').and_then(|inner| inner.split_once(')')).map(|(_, rest)| rest.trim_start());
    match annotated {
        Some(rest) if !rest.is_empty() => unannotated(rest).map(|found| shifted(found, word.len() - rest.len())),
        _ => unannotated(word),
    }
}

fn unannotated(word: &str) -> Option<Fault> {
    let first = word.chars().next()?;
    if strings::begins(word) {
        let end = strings::end(word, 0).unwrap_or(word.len());
        let twin = strings::twin(&word[..end], std::slice::from_ref(&(0..end)));
        if twin.parse::<KdlEntry>().is_err() {
            let (message, hint) = strings::fault(&word[..end]);
            return Some(fault(0..end, message, hint));
        }
        return after(word, end);
    }
    if first == '#' {
        let end = 1 + run(&word[1..], is_word_char);
        if let "#true" | "#false" | "#null" | "#inf" | "#-inf" | "#nan" = &word[..end] {
            return after(word, end);
        }
        let hint = "the keywords are #true, #false and #null; comments begin with `//`";
        return Some(fault(0..end, format!("unknown keyword `{}`", shortened(&word[..end])), hint));
    }
    if is_word_char(first) {
        return plain(word);
    }
    let message = if is_forbidden(first) {
        format!("the control character U+{:04X}", u32::from(first))
    } else {
        format!("unexpected `{}`", printable(first))
    };
    let hint = match first {
        '[' | ']' => LISTS,
        '/' if whole_word(word).len() > 1 => {
            let path = whole_word(word);
            return Some(fault(0..1, message, format!("a path needs quotes: \"{}\"", shortened(path))));
        }
        '/' => "a path needs quotes; a comment begins with `//`",
        _ => "write a word, a \"text\", a number, #true or #false",
    };
    Some(fault(0..first.len_utf8(), message, hint))
}

/// A word without quotes, or a number.
fn plain(word: &str) -> Option<Fault> {
    let mut end = run(word, is_word_char);
    let text = &word[..end];
    if is_numeric(text) {
        // `10MB/s` is one slip, not two.
        let whole = run(word, |c| is_word_char(c) || c == '/');
        let finite = text.parse::<KdlEntry>().is_ok_and(|entry| entry.value().as_float().is_none_or(f64::is_finite));
        if finite && whole == end {
            return after(word, end);
        }
        end = whole;
        return Some(no_number(&word[..end]));
    }
    if let "true" | "false" | "null" | "inf" | "-inf" | "nan" = text {
        let hint = format!("KDL 2 writes `#{text}`; as a text, write \"{text}\"");
        return Some(Fault { id: ids::KDL1, ..fault(0..end, format!("`{text}` without `#`"), hint) });
    }
    after(word, end)
}

/// What follows a value directly.
fn after(word: &str, end: usize) -> Option<Fault> {
    let next = word[end..].chars().next()?;
    let read = &word[..end];
    let hint = match next {
        ',' => "values are separated by blanks, without commas".to_owned(),
        '"' | '#' if read == "r" => "KDL 2 writes raw strings as #\"…\"#, without the `r`".to_owned(),
        ']' => LISTS.to_owned(),
        '/' | '[' | '(' if !read.ends_with('"') => format!("quote it: \"{}\"", shortened(whole_word(word))),
        _ if read.ends_with('"') => "close the text before it with `\"`, or put a blank between two values".to_owned(),
        _ => "put a blank between two values".to_owned(),
    };
    let message = format!("unexpected `{}` right after a value", printable(next));
    Some(fault(end..end + next.len_utf8(), message, hint))
}

fn printable(c: char) -> String {
    if c == '"' { "\"".to_owned() } else { c.escape_debug().to_string() }
}

const LISTS: &str = "lists are written as values after each other: `engine \"vllm\" \"llama.cpp\"`";

/// What somebody meant as one word.
fn whole_word(word: &str) -> &str {
    word[..run(word, |c| !is_blank(c) && !matches!(c, '"' | ';' | '{' | '}' | ','))].trim_end_matches(']')
}

fn shortened(text: &str) -> String {
    if text.chars().count() <= 40 { text.to_owned() } else { text.chars().take(40).chain("…".chars()).collect() }
}
