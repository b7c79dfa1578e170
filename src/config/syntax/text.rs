//! A text that tells the line and column of every offset, and the findings made in it.

use std::ops::Range;
use std::sync::Arc;

use crate::base::{Diagnostic, Place};

/// Files larger than this are refused.
pub const MAX_FILE_BYTES: u64 = 4 << 20;
/// Blocks nested deeper than this are refused.
pub const MAX_DEPTH: usize = 64;
/// A broken file (a binary, say) shows this many syntax errors at most.
const MAX_ERRORS: usize = 100;

/// The number of characters is remembered at every so many bytes, so that long lines cost nothing.
const STRIDE: usize = 64;

/// A file's text without its byte-order mark.
pub(super) struct Text<'a> {
    pub text: &'a str,
    file: Arc<str>,
    /// Where lines begin. They end at LF, CRLF and a lone CR, as editors count them.
    lines: Vec<usize>,
    /// How many characters begin before each multiple of [`STRIDE`].
    counted: Vec<usize>,
}

impl<'a> Text<'a> {
    pub fn new(file: &str, text: &'a str) -> Self {
        let bytes = text.as_bytes();
        let mut lines = vec![0];
        let mut counted = Vec::with_capacity(bytes.len() / STRIDE + 1);
        let mut count = 0;
        for (at, byte) in bytes.iter().enumerate() {
            if at.is_multiple_of(STRIDE) {
                counted.push(count);
            }
            count += usize::from(begins_char(*byte));
            if *byte == b'\n' || (*byte == b'\r' && bytes.get(at + 1) != Some(&b'\n')) {
                lines.push(at + 1);
            }
        }
        if bytes.len().is_multiple_of(STRIDE) {
            counted.push(count);
        }
        Self { text, file: Arc::from(file), lines, counted }
    }

    fn chars_before(&self, offset: usize) -> usize {
        let block = offset / STRIDE;
        let rest = &self.text.as_bytes()[block * STRIDE..offset];
        self.counted[block] + rest.iter().filter(|byte| begins_char(**byte)).count()
    }

    /// Line and column, both from 1.
    pub fn position(&self, offset: usize) -> (usize, usize) {
        let line = self.lines.partition_point(|start| *start <= offset);
        let start = self.lines[line - 1];
        (line, self.chars_before(offset) - self.chars_before(start) + 1)
    }

    pub fn place(&self, range: Range<usize>) -> Place {
        let (line, column) = self.position(range.start);
        let (end_line, end_column) = self.position(range.end);
        Place { file: Arc::clone(&self.file), line, column, end_line, end_column }
    }

    /// The place if it lies within one line, else its first character.
    pub fn place_in_line(&self, range: Range<usize>) -> Place {
        let mut place = self.place(range);
        if place.end_line > place.line {
            (place.end_line, place.end_column) = (place.line, place.column + 1);
        }
        place
    }

    /// The one character at an offset; past the end, the place just behind it.
    pub fn place_at(&self, offset: usize) -> Place {
        let mut place = self.place(offset..offset);
        place.end_column += 1;
        place
    }
}

fn begins_char(byte: u8) -> bool {
    byte & 0xc0 != 0x80
}

/// The findings of one file, not endlessly many.
#[derive(Default)]
pub(super) struct Errors {
    pub list: Vec<Diagnostic>,
    /// Reading on shows nothing more.
    pub full: bool,
}

impl Errors {
    pub fn push(&mut self, id: &'static str, place: &Place, message: impl Into<String>, hint: impl Into<String>) {
        if self.list.len() < MAX_ERRORS {
            self.list.push(Diagnostic::error(id, place, message).hint(hint));
        } else {
            self.full = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_characters_and_all_line_ends() {
        let wide = format!("{}\u{1f600}x", "\u{e9}".repeat(100));
        let text = format!("a\r\nb\rc\n{wide}");
        let text = Text::new("f", &text);
        let at = |needle: char| text.position(text.text.find(needle).unwrap());
        assert_eq!((at('a'), at('b'), at('c'), at('x')), ((1, 1), (2, 1), (3, 1), (4, 102)));
        assert_eq!(text.position(text.text.len()), (4, 103));
        for length in [0, STRIDE - 1, STRIDE, STRIDE + 1] {
            let line = "z".repeat(length);
            assert_eq!(Text::new("f", &line).position(length), (1, length + 1));
        }
    }
}
