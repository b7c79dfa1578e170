//! How text is laid out: colour or none, width, wrapping. Colour repeats what a word already says.

use crate::base::many_lines;

/// How to lay out text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Whether to use ANSI colours.
    pub colour: bool,
    /// Columns; longer lines are wrapped at spaces.
    pub width: usize,
}

impl Default for Style {
    fn default() -> Self {
        Self::PLAIN
    }
}

/// What a colour stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ink {
    /// Headings.
    Heading,
    /// Something begins.
    Good,
    /// Something changes.
    Change,
    /// Something stops or is wrong.
    Bad,
    /// Secondary.
    Dim,
}

impl Style {
    /// No colour, 100 columns: files, pipes and tests.
    pub const PLAIN: Self = Self { colour: false, width: 100 };

    /// Colours a text, or returns it as it is.
    pub fn paint(&self, ink: Ink, text: &str) -> String {
        if !self.colour || text.is_empty() {
            return text.to_owned();
        }
        let code = match ink {
            Ink::Heading => "1",
            Ink::Good => "32",
            Ink::Change => "33",
            Ink::Bad => "31",
            Ink::Dim => "2",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    /// A heading line.
    pub fn heading(&self, text: &str) -> String {
        format!("{}\n", self.paint(Ink::Heading, text))
    }

    /// Lines of `lead` and a text that is wrapped beside it. Words are never broken.
    pub fn beside(&self, lead: &str, text: &str) -> String {
        let indent = columns(lead);
        let room = self.width.saturating_sub(indent).max(20);
        let mut out = String::new();
        for (number, line) in wrap(text, room).into_iter().enumerate() {
            let line = if number == 0 { format!("{lead}{line}") } else { format!("{}{line}", " ".repeat(indent)) };
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }
}

/// Splits a text at spaces into lines of at most `room` columns; a longer word has a line of its own.
pub fn wrap(text: &str, room: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for paragraph in text.split('\n') {
        let mut line = String::new();
        let mut used = 0;
        // Several spaces in a row are columns of a table: they stay unless the line breaks there.
        for (position, word) in paragraph.split(' ').enumerate() {
            let length = columns(word);
            let glue = usize::from(position > 0);
            if used > 0 && length > 0 && used + glue + length > room {
                lines.push(line.trim_end().to_owned());
                line = word.to_owned();
                used = length;
                continue;
            }
            if glue == 1 {
                line.push(' ');
            }
            line.push_str(word);
            used += glue + length;
        }
        lines.push(line.trim_end().to_owned());
    }
    lines
}

/// Columns that a text takes, escapes not counted.
pub fn columns(text: &str) -> usize {
    let mut count = 0;
    let mut escape = false;
    for c in text.chars() {
        match c {
            '\x1b' => escape = true,
            'm' if escape => escape = false,
            _ if !escape => count += 1,
            _ => {}
        }
    }
    count
}

/// A text that others wrote, without characters that a terminal would obey.
pub fn clean(text: &str) -> String {
    many_lines(text)
}

/// A text filled up with spaces to a number of columns.
pub fn pad(text: &str, to: usize) -> String {
    format!("{text}{}", " ".repeat(to.saturating_sub(columns(text))))
}

/// Rows under a head, columns as wide as they need to be; an empty table is empty.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let widths: Vec<usize> = (0..head.len())
        .map(|column| {
            let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| columns(cell));
            cells.max().unwrap_or(0).max(columns(head[column]))
        })
        .collect();
    let line = |cells: Vec<&str>| {
        let text: Vec<String> = cells.iter().zip(&widths).map(|(cell, width)| pad(cell, *width)).collect();
        format!("{}\n", text.join("  ").trim_end())
    };
    let mut out = line(head.to_vec());
    for row in rows {
        out.push_str(&line(row.iter().map(String::as_str).collect()));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_not_broken_and_escapes_take_no_room() {
        assert_eq!(wrap("one two three", 8), ["one two", "three"]);
        assert_eq!(wrap("sha256:0123456789 x", 5), ["sha256:0123456789", "x"]);
        assert_eq!(columns("\x1b[31mred\x1b[0m"), 3);
        let style = Style { colour: false, width: 24 };
        assert_eq!(style.beside("  a  ", "one two three four five"), "  a  one two three four\n     five\n");
    }

    #[test]
    fn colour_only_wraps_the_text() {
        let style = Style { colour: true, width: 80 };
        assert_eq!(style.paint(Ink::Bad, "stop"), "\x1b[31mstop\x1b[0m");
        assert_eq!(Style::PLAIN.paint(Ink::Bad, "stop"), "stop");
    }

    #[test]
    fn what_others_wrote_neither_colours_nor_turns_the_line_around() {
        assert_eq!(clean("a\x1b[31m\u{9b}\u{7f}\u{202e}b\u{2067}\n\tc\r"), "a?[31m???b?\n\tc?");
    }

    #[test]
    fn a_table_is_as_wide_as_its_cells() {
        let rows = vec![vec!["a".into(), "long cell".into()], vec!["bbb".into(), "c".into()]];
        assert_eq!(table(&["x", "y"], &rows), "x    y\na    long cell\nbbb  c\n");
    }
}
