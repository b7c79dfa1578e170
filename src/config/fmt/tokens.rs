//! A text that is known to be valid, cut into tokens that add up to it.

use crate::config::syntax::chars::{is_newline, is_space, run};
use crate::config::syntax::strings;

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Blanks within a line.
    Space,
    /// One line end.
    Newline,
    /// `// …` up to the line end.
    LineComment,
    /// `/* … */`.
    Comment,
    /// `/-`.
    Slashdash,
    /// The backslash of a line that goes on in the next.
    Backslash,
    /// `{`.
    Open,
    /// `}`.
    Close,
    /// `;`.
    Semicolon,
    /// `=`.
    Equals,
    /// `(`.
    TypeOpen,
    /// `)`.
    TypeClose,
    /// A word, number, keyword or string.
    Word,
}

/// A piece of the text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Token<'t> {
    pub kind: Kind,
    pub text: &'t str,
}

impl<'t> Token<'t> {
    /// The characters of a line end.
    pub fn newline(&self) -> Option<&'t str> {
        (self.kind == Kind::Newline).then_some(self.text)
    }

    /// Whether it says something, and is not only how the text is laid out.
    pub fn matters(&self) -> bool {
        !matches!(self.kind, Kind::Space | Kind::Newline | Kind::Backslash | Kind::Semicolon)
    }
}

/// Cuts a text without syntax errors. Of any other text the pieces are meaningless, and add up to it all the same.
pub(super) fn cut(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (kind, length) = next(rest, first);
        let (piece, after) = rest.split_at(length.clamp(first.len_utf8(), rest.len()));
        tokens.push(Token { kind, text: piece });
        rest = after;
    }
    tokens
}

fn next(rest: &str, first: char) -> (Kind, usize) {
    if strings::begins(rest) {
        return (Kind::Word, strings::end(rest, 0).unwrap_or_else(|bad| bad.end));
    }
    if rest.starts_with("//") {
        return (Kind::LineComment, run(rest, |c| !is_newline(c)));
    }
    if rest.starts_with("/*") {
        return (Kind::Comment, comment(rest));
    }
    if rest.starts_with("/-") {
        return (Kind::Slashdash, 2);
    }
    if rest.starts_with("\r\n") {
        return (Kind::Newline, 2);
    }
    let kind = match first {
        '\\' => Kind::Backslash,
        '{' => Kind::Open,
        '}' => Kind::Close,
        ';' => Kind::Semicolon,
        '=' => Kind::Equals,
        '(' => Kind::TypeOpen,
        ')' => Kind::TypeClose,
        c if is_newline(c) => Kind::Newline,
        c if is_space(c) => return (Kind::Space, run(rest, is_space)),
        _ => {
            let inside = |c: char| {
                !is_space(c) && !is_newline(c) && !matches!(c, '\\' | '{' | '}' | ';' | '=' | '(' | ')' | '/' | '"')
            };
            return (Kind::Word, run(rest, inside));
        }
    };
    (kind, first.len_utf8())
}

/// The length of the comment that begins here; comments nest.
fn comment(rest: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(found) = rest[at..].find(['/', '*']) {
        at += found;
        if rest[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
        } else {
            at += 1;
        }
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}
