//! Characters that a terminal obeys instead of showing them, in texts that others wrote.

use std::borrow::Cow;

/// Whether a character would move the cursor, colour what follows or turn the direction of the line around: the control
/// characters C0, DEL and C1, and Unicode's embeddings, overrides and isolates. Line ends and tabs only lay text out.
pub fn is_obeyed(c: char) -> bool {
    let layout = matches!(c, '\n' | '\t');
    (c.is_control() && !layout) || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The text with each such character as `\u{9b}`, the way KDL writes it.
pub fn escape_obeyed(text: &str) -> Cow<'_, str> {
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_obeyed(c) { out.extend(c.escape_unicode()) } else { out.push(c) }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_written_out_and_all_else_stays() {
        assert_eq!(escape_obeyed("a\u{1b}[31m\u{9b}2J\u{7f}\0\r"), "a\\u{1b}[31m\\u{9b}2J\\u{7f}\\u{0}\\u{d}");
        assert_eq!(escape_obeyed("x\u{202e}y\u{2066}z\u{2069}"), "x\\u{202e}y\\u{2066}z\\u{2069}");
        for fine in ["", "é \u{1f600}\n\tשלום\u{200f}", "\u{200b}\u{feff}"] {
            assert!(matches!(escape_obeyed(fine), Cow::Borrowed(same) if same == fine), "{fine:?}");
        }
        let all = (0..=0x0011_0000).filter_map(char::from_u32).filter(|c| is_obeyed(*c)).count();
        assert_eq!(all, 32 - 2 + 33 + 5 + 4);
    }
}
