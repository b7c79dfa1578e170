//! Where strings end, and what is wrong with those that the parser refuses.

use std::borrow::Cow;
use std::ops::Range;

use super::chars::{is_blank, is_forbidden, is_newline, is_space, run};

/// Why a string has no end where one is needed.
pub(in crate::config) struct BadString {
    /// Where reading goes on.
    pub end: usize,
    pub message: &'static str,
    pub hint: String,
    /// Whether the text ended inside the string.
    pub unfinished: bool,
}

/// Whether a string begins here: `"`, or `#`s and a `"`.
pub(in crate::config) fn begins(rest: &str) -> bool {
    rest.starts_with('"') || (rest.starts_with('#') && rest[run(rest, |c| c == '#')..].starts_with('"'))
}

/// The end of the string that begins at the offset.
pub(in crate::config) fn end(text: &str, start: usize) -> Result<usize, BadString> {
    let hashes = run(&text[start..], |c| c == '#');
    let quote = start + hashes;
    if text[quote..].starts_with("\"\"\"") {
        multi_line(text, quote + 3, hashes)
    } else {
        line(text, quote + 1, hashes)
    }
}

fn unfinished(text: &str, hint: String) -> Result<usize, BadString> {
    Err(BadString { end: text.len(), message: "the text ends inside a string", hint, unfinished: true })
}

fn line(text: &str, body: usize, hashes: usize) -> Result<usize, BadString> {
    let close = closing("\"", hashes);
    let mut at = body;
    while let Some(c) = text[at..].chars().next() {
        if text[at..].starts_with(&close) {
            return Ok(at + close.len());
        }
        if is_newline(c) {
            let hint = format!(
                "close it with `{close}`; a string of several lines begins and ends with three quotes on lines of their own"
            );
            return Err(BadString { end: at, message: "the line ends inside a string", hint, unfinished: false });
        }
        at += c.len_utf8();
        if c == '\\' && hashes == 0 {
            let blanks = run(&text[at..], is_blank);
            at += if blanks > 0 { blanks } else { text[at..].chars().next().map_or(0, char::len_utf8) };
        }
    }
    unfinished(text, format!("close it with `{close}`"))
}

fn multi_line(text: &str, body: usize, hashes: usize) -> Result<usize, BadString> {
    let close = closing("\"\"\"", hashes);
    if !text[body..].starts_with(is_newline) {
        let line = || body + run(&text[body..], |c| !is_newline(c));
        let end = text[body..].find(&close).map_or_else(line, |at| body + at + close.len());
        return Err(BadString {
            end,
            message: "text after the opening `\"\"\"`",
            hint: "a string in three quotes begins on the next line; for one line use single quotes `\"…\"`".to_owned(),
            unfinished: false,
        });
    }
    let mut at = body;
    while let Some(c) = text[at..].chars().next() {
        if text[at..].starts_with(&close) {
            return Ok(at + close.len());
        }
        at += c.len_utf8();
        if c == '\\' && hashes == 0 {
            at += text[at..].chars().next().map_or(0, char::len_utf8);
        }
    }
    unfinished(text, format!("close it with `{close}` on a line of its own"))
}

fn closing(quotes: &str, hashes: usize) -> String {
    format!("{quotes}{}", "#".repeat(hashes))
}

/// The text with everything dangerous made harmless; offsets stay.
///
/// When the parser meets a fault in a string it reads the rest of that string as nodes: braces, `/*` and
/// `/-` in there make it recurse. The twin holds none of them, and is valid exactly when the text is: in a
/// string they are characters like any other, and outside they are never right here.
pub(super) fn twin<'t>(text: &'t str, strings: &[Range<usize>]) -> Cow<'t, str> {
    if !text.contains(['{', '}']) && !text.contains("/*") && !text.contains("/-") {
        return Cow::Borrowed(text);
    }
    let mut twin = text.replace('/', "[");
    for range in strings {
        twin.replace_range(range.clone(), &harmless(&text[range.clone()]));
    }
    Cow::Owned(twin)
}

fn harmless(string: &str) -> String {
    let mut out = String::with_capacity(string.len());
    let raw = string.starts_with('#');
    let mut at = 0;
    while let Some(c) = string[at..].chars().next() {
        let mut length = c.len_utf8();
        if c == '\\' && !raw {
            if let Some(escape) = unicode_escape(&string[at + 1..]) {
                length += escape;
                out.extend(std::iter::repeat_n('x', length));
            } else {
                // The escaped character too, so that `\\u{…}` is no escape.
                let next = string[at + 1..].chars().next();
                length += next.map_or(0, char::len_utf8);
                out.push('\\');
                out.extend(next.map(plain));
            }
        } else {
            out.push(plain(c));
        }
        at += length;
    }
    out
}

fn plain(c: char) -> char {
    if matches!(c, '{' | '}' | '/') { 'x' } else { c }
}

/// The length of a valid `u{…}`.
fn unicode_escape(rest: &str) -> Option<usize> {
    let inner = rest.strip_prefix("u{")?;
    let hex = &inner[..run(inner, |c| c.is_ascii_hexdigit())];
    let valid = (1..=6).contains(&hex.len()) && inner[hex.len()..].starts_with('}');
    u32::from_str_radix(hex, 16).ok().and_then(char::from_u32).filter(|_| valid)?;
    Some(hex.len() + 3)
}

/// What is wrong with a string that ends and is none: message and remedy.
pub(super) fn fault(string: &str) -> (&'static str, String) {
    if string.chars().any(is_forbidden) {
        return ("a control character inside a string", "write it as \\u{…}".to_owned());
    }
    let raw = string.starts_with('#');
    let mut rest = if raw { "" } else { string };
    while let Some((_, after)) = rest.split_once('\\') {
        match after.chars().next() {
            Some('u') if unicode_escape(after).is_none() => {
                let hint = "write `\\u{1F600}`: one to six hexadecimal digits in braces";
                return ("an invalid unicode escape", hint.to_owned());
            }
            Some(c) if !matches!(c, 'u' | 'n' | 'r' | 't' | 'b' | 'f' | 's' | '\\' | '"') && !is_blank(c) => {
                let hint =
                    format!("`\\{}` is none; write `\\\\` for a backslash, or a raw string #\"…\"#", c.escape_debug());
                return ("an unknown escape in a string", hint);
            }
            Some(c) => rest = &after[c.len_utf8()..],
            None => break,
        }
    }
    let last = string.rsplit(is_newline).next().unwrap_or_default();
    if !string.contains(is_newline) {
        return ("a string that cannot be read", "write it as \"…\"".to_owned());
    }
    if last[run(last, is_space)..].starts_with('"') {
        return (
            "a line of this string is indented less than its closing `\"\"\"`",
            "indent every line at least as far as the closing quotes, with the same characters".to_owned(),
        );
    }
    ("the closing `\"\"\"` is not on a line of its own", "put it on its own line".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_twin_is_valid_exactly_when_the_text_is() {
        for (text, harmless, valid) in [
            (r#""a{b}/c""#, r#""axbxxc""#, true),
            (r#""\\u{41}\u{41}""#, r#""\\ux41xxxxxxx""#, true),
            (r#""\\{""#, r#""\\x""#, true),
            (r#""\u{D800}""#, r#""\uxD800x""#, false),
            (r#""\/{""#, r#""\xx""#, false),
            (r#""hf:a/b""#, r#""hf:a/b""#, true),
            (r##"#"\u{41}/*"#"##, r##"#"\ux41xx*"#"##, true),
        ] {
            let twin = twin(text, std::slice::from_ref(&(0..text.len())));
            assert_eq!(twin, harmless);
            assert_eq!(text.parse::<kdl::KdlEntry>().is_ok(), valid, "{text}");
            assert_eq!(twin.parse::<kdl::KdlEntry>().is_ok(), valid, "{twin}");
        }
    }
}
