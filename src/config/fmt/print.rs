//! Lines to text: the blanks between, and nothing else.

use super::lines::{Block, Line, Piece};
use crate::config::syntax::chars::is_space;

const INDENT: &str = "    ";

/// Prints a file. What is not empty ends with a line end.
pub(super) fn file(block: &Block<'_>, newline: &str, out: &mut String) {
    let mut printer = Printer { newline, out };
    for line in &block.lines {
        if line.apart {
            printer.out.push_str(newline);
        }
        printer.pieces(&line.pieces, 0);
        printer.out.push_str(newline);
    }
}

struct Printer<'p> {
    newline: &'p str,
    out: &'p mut String,
}

impl Printer<'_> {
    fn begin_line(&mut self, level: usize) {
        self.out.push_str(self.newline);
        (0..level).for_each(|_| self.out.push_str(INDENT));
    }

    /// Pieces in a row; nothing before the first and behind the last.
    fn pieces(&mut self, pieces: &[Piece<'_>], level: usize) {
        let mut before: Option<&Piece<'_>> = None;
        for piece in pieces {
            match before {
                None => {}
                Some(Piece::Break) => {}
                // Only behind `/-` does anything follow a line comment without a backslash.
                Some(Piece::LineComment(_)) if !matches!(piece, Piece::Break) => self.begin_line(level + 1),
                Some(before) if apart(before, piece) => self.out.push(' '),
                Some(_) => {}
            }
            match piece {
                Piece::Word(text) | Piece::Comment(text) => self.out.push_str(text),
                Piece::LineComment(text) => self.out.push_str(text.trim_end_matches(is_space)),
                Piece::Equals => self.out.push('='),
                Piece::TypeOpen => self.out.push('('),
                Piece::TypeClose => self.out.push(')'),
                Piece::Slashdash { .. } => self.out.push_str("/-"),
                Piece::Continue => self.out.push('\\'),
                Piece::Break => self.begin_line(level + 1),
                Piece::Block(block) => self.block(block, level),
            }
            before = Some(piece);
        }
    }

    fn block(&mut self, block: &Block<'_>, level: usize) {
        self.out.push('{');
        if block.lines.is_empty() && block.beside.is_empty() {
            self.out.push_str(" }");
            return;
        }
        if block.inline {
            for (index, Line { pieces, .. }) in block.lines.iter().enumerate() {
                self.out.push_str(if index == 0 { " " } else { "; " });
                self.pieces(pieces, level);
            }
            self.out.push_str(" }");
            return;
        }
        if !block.beside.is_empty() {
            self.out.push(' ');
            self.pieces(&block.beside, level);
        }
        for line in &block.lines {
            if line.apart {
                self.out.push_str(self.newline);
            }
            self.begin_line(level + 1);
            self.pieces(&line.pieces, level + 1);
        }
        self.begin_line(level);
        self.out.push('}');
    }
}

/// Whether a blank stands between two pieces of a line.
fn apart(before: &Piece<'_>, after: &Piece<'_>) -> bool {
    match (before, after) {
        (_, Piece::Break) => false,
        (_, Piece::Comment(_) | Piece::LineComment(_) | Piece::Continue) | (Piece::Comment(_), _) => true,
        (Piece::Slashdash { spaced }, _) => *spaced,
        (Piece::Equals | Piece::TypeOpen | Piece::TypeClose, _) | (_, Piece::Equals | Piece::TypeClose) => false,
        _ => true,
    }
}
