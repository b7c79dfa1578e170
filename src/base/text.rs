//! Texts that others wrote, made fit for a terminal. Whoever wrote them (a file's name, a log, a server), each
//! character that a terminal would obey becomes `?`, so that it is seen that there was one.

use super::is_obeyed;

/// A text as one line: line breaks and tabs become spaces, what a terminal obeys becomes `?`. Blanks at both ends are
/// dropped.
pub fn one_line(text: &str) -> String {
    let text = text.trim().replace("\r\n", "\n");
    text.chars().map(|c| if matches!(c, '\n' | '\r' | '\t') { ' ' } else { shown(c) }).collect()
}

/// A text of several lines: line breaks and tabs stay, a line ends in one character, and what a terminal obeys becomes
/// `?`.
pub fn many_lines(text: &str) -> String {
    text.replace("\r\n", "\n").chars().map(shown).collect()
}

/// Whether a character shows nothing of itself: control characters, what a terminal obeys, and what has no width. Two
/// names that differ in nothing else look the same; in prose, scripts and emoji need some of them.
pub fn is_invisible(c: char) -> bool {
    let no_width = matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}' | '\u{2029}' | '\u{2060}'..='\u{2065}');
    c.is_control() || is_obeyed(c) || no_width || c == '\u{feff}'
}

fn shown(c: char) -> char {
    if is_obeyed(c) { '?' } else { c }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nothing_of_a_text_is_obeyed() {
        let text = " a\u{1b}[31m\u{9b}2J b\r\nc\td\u{7f}\u{202e}e\u{2067}f\rg\n";
        assert_eq!(many_lines(text), " a?[31m?2J b\nc\td??e?f?g\n");
        assert_eq!(one_line(text), "a?[31m?2J b c d??e?f g");
        // A family is one emoji of several, joined by characters of no width.
        let family = "é \u{1f469}\u{200d}\u{1f467} עברית";
        assert_eq!((one_line(family), many_lines(family)), (family.to_owned(), family.to_owned()));
        assert!(family.contains(is_invisible) && "\u{feff}\u{200b}\u{2066}\u{7}\n\u{9b}".chars().all(is_invisible));
    }

    proptest! {
        #[test]
        fn whatever_the_text(text in any::<String>()) {
            let line = one_line(&text);
            prop_assert!(!line.contains(|c: char| c.is_control() || is_obeyed(c)));
            let lines = many_lines(&text);
            prop_assert!(!lines.contains(is_obeyed));
            prop_assert_eq!(many_lines(&lines), lines);
        }
    }
}
