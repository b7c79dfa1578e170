//! The character classes of KDL 2.

/// What ends a line.
pub(in crate::config) fn is_newline(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{85}' | '\u{b}' | '\u{c}' | '\u{2028}' | '\u{2029}')
}

/// What separates words.
pub(in crate::config) fn is_space(c: char) -> bool {
    matches!(c, '\t' | ' ' | '\u{a0}' | '\u{1680}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}')
}

/// Either of both.
pub(in crate::config) fn is_blank(c: char) -> bool {
    is_space(c) || is_newline(c)
}

/// Code points that may not appear literally.
pub(in crate::config) fn is_forbidden(c: char) -> bool {
    matches!(c,
        '\0'..='\u{8}' | '\u{e}'..='\u{1f}' | '\u{7f}' | '\u{200e}'..='\u{200f}'
        | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// What a word without quotes may hold.
pub(in crate::config) fn is_word_char(c: char) -> bool {
    !is_blank(c)
        && !is_forbidden(c)
        && !matches!(c, '\\' | '/' | '(' | ')' | '{' | '}' | '[' | ']' | ';' | '"' | '#' | '=')
}

/// How many bytes at the beginning satisfy the predicate.
pub(in crate::config) fn run(text: &str, keep: impl Fn(char) -> bool) -> usize {
    text.find(|c| !keep(c)).unwrap_or(text.len())
}
