//! The formatter's front: limits and syntax first, the proof last.

use super::{lines, print, proof, tokens};
use crate::base::Diagnostic;
use crate::config::syntax;

/// Why a text was not formatted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unformatted {
    /// It cannot be read: syntax errors, too large, too deep, not UTF-8.
    Invalid(Vec<Diagnostic>),
    /// The formatted text would not say the same. A fault of the formatter; nothing may be written.
    Unproven(&'static str),
}

/// Formats a KDL file: four blanks per level, one blank line at most, one blank between words, one node per line.
/// A block on one line stays on one line. Words, numbers, strings and comments stay as written, and so do a
/// byte-order mark and the kind of line end (that of the first line).
///
/// `file` is the name that findings carry.
///
/// # Errors
///
/// [`Unformatted::Invalid`] with every syntax error; what the words mean is not looked at.
pub fn format_kdl(file: &str, bytes: &[u8]) -> Result<String, Unformatted> {
    let (before, found) = syntax::parse(file, bytes);
    if !found.is_empty() {
        return Err(Unformatted::Invalid(found));
    }
    // The parser refuses everything else.
    let whole = std::str::from_utf8(bytes).map_err(|_| Unformatted::Unproven("the text is not UTF-8"))?;
    let text = whole.strip_prefix('\u{feff}').unwrap_or(whole);
    let tokens = tokens::cut(text);
    let newline = tokens.iter().find_map(|token| token.newline()).filter(|end| *end == "\r\n").unwrap_or("\n");
    let mut out = String::with_capacity(whole.len() + whole.len() / 8);
    if text.len() < whole.len() {
        out.push('\u{feff}');
    }
    print::file(&lines::file(&tokens), newline, &mut out);
    proof::holds(file, &before, &tokens, &out).map_err(Unformatted::Unproven)?;
    Ok(out)
}
