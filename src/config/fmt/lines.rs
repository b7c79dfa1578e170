//! Tokens to lines: what shall stand on one line, without any blanks.

use super::tokens::{Kind, Token};

/// What stands on a line.
#[derive(Debug)]
pub(super) enum Piece<'t> {
    /// A word, number, keyword or string.
    Word(&'t str),
    /// `=`.
    Equals,
    /// `(`.
    TypeOpen,
    /// `)`.
    TypeClose,
    /// `/* … */`.
    Comment(&'t str),
    /// `// …`; the line ends behind it.
    LineComment(&'t str),
    /// `/-`, and whether a blank follows.
    Slashdash { spaced: bool },
    /// A backslash: the node goes on in the next line.
    Continue,
    /// The line end behind a backslash.
    Break,
    /// The node's block.
    Block(Block<'t>),
}

/// What a block, or a file, holds.
#[derive(Debug, Default)]
pub(super) struct Block<'t> {
    /// Comments behind the opening brace, on its line.
    pub beside: Vec<Piece<'t>>,
    /// Its lines.
    pub lines: Vec<Line<'t>>,
    /// Whether it was written on one line.
    pub inline: bool,
}

/// A node with its comments, or comments alone.
#[derive(Debug)]
pub(super) struct Line<'t> {
    /// Whether an empty line comes before it.
    pub apart: bool,
    pub pieces: Vec<Piece<'t>>,
}

/// The lines of a file.
pub(super) fn file<'t>(tokens: &[Token<'t>]) -> Block<'t> {
    Reader { tokens, at: 0, newlines: 0 }.block(false)
}

struct Reader<'r, 't> {
    tokens: &'r [Token<'t>],
    at: usize,
    /// Line ends passed so far, those that a backslash hides among them.
    newlines: usize,
}

impl<'t> Reader<'_, 't> {
    fn peek(&self) -> Option<Token<'t>> {
        self.tokens.get(self.at).copied()
    }

    fn next(&mut self) -> Option<Token<'t>> {
        let token = self.peek()?;
        self.at += 1;
        self.newlines += usize::from(matches!(token.kind, Kind::Newline | Kind::LineComment));
        Some(token)
    }

    /// Lines up to the closing brace, which is passed, or to the end. Depth is bounded: the parser has accepted it.
    fn block(&mut self, braced: bool) -> Block<'t> {
        let begin = self.newlines;
        let mut block = Block::default();
        if braced {
            block.beside = self.comments_to_line_end();
        }
        let mut empty_lines = 0;
        // The line of the brace is no empty line, and neither is the first of a file.
        let mut fresh = !braced;
        while let Some(token) = self.peek() {
            match token.kind {
                Kind::Close if braced => {
                    self.at += 1;
                    break;
                }
                Kind::Newline => {
                    self.next();
                    empty_lines += usize::from(fresh);
                    fresh = true;
                }
                // Between nodes, a backslash only hides the line end.
                Kind::Space | Kind::Semicolon | Kind::Close | Kind::Backslash => {
                    self.next();
                }
                _ => {
                    let pieces = self.line();
                    let apart = empty_lines > 0 && !block.lines.is_empty();
                    block.lines.push(Line { apart, pieces });
                    empty_lines = 0;
                    fresh = false;
                }
            }
        }
        block.inline = braced && self.newlines == begin;
        if block.inline {
            // A comment behind the brace is a line like any other if there are no lines.
            let pieces = std::mem::take(&mut block.beside);
            if !pieces.is_empty() {
                block.lines.insert(0, Line { apart: false, pieces });
            }
        }
        block
    }

    /// The comments from here to the end of the line, if nothing else is there; else nothing is passed.
    fn comments_to_line_end(&mut self) -> Vec<Piece<'t>> {
        let (start, newlines) = (self.at, self.newlines);
        let mut pieces = Vec::new();
        loop {
            match self.peek().map(|token| token.kind) {
                Some(Kind::Space) => {}
                Some(Kind::Comment) => pieces.extend(self.peek().map(|token| Piece::Comment(token.text))),
                Some(Kind::LineComment) => pieces.extend(self.peek().map(|token| Piece::LineComment(token.text))),
                None | Some(Kind::Newline | Kind::Close) => return pieces,
                Some(_) => {
                    (self.at, self.newlines) = (start, newlines);
                    return Vec::new();
                }
            }
            self.next();
        }
    }

    /// One line: a node up to its end, with the comments before and behind it, or comments alone.
    fn line(&mut self) -> Vec<Piece<'t>> {
        let mut pieces = Vec::new();
        // Behind `/-`, line ends and comments are passed.
        let mut open = false;
        let mut node = false;
        while let Some(token) = self.peek() {
            match token.kind {
                Kind::Space => {
                    if let Some(Piece::Slashdash { spaced }) = pieces.last_mut() {
                        *spaced = true;
                    }
                }
                Kind::Newline if open => {
                    if let Some(Piece::Slashdash { spaced }) = pieces.last_mut() {
                        *spaced = true;
                    }
                }
                Kind::Newline | Kind::Close => break,
                Kind::Semicolon => {
                    self.next();
                    without_last_break(&mut pieces);
                    if !matches!(pieces.last(), Some(Piece::LineComment(_))) {
                        pieces.extend(self.comments_to_line_end());
                    }
                    return pieces;
                }
                Kind::LineComment => pieces.push(Piece::LineComment(token.text)),
                Kind::Comment => pieces.push(Piece::Comment(token.text)),
                Kind::Slashdash => {
                    pieces.push(Piece::Slashdash { spaced: false });
                    (open, node) = (true, true);
                }
                Kind::Backslash if open || !node => {}
                Kind::Backslash => {
                    self.next();
                    self.escaped_line(&mut pieces);
                    continue;
                }
                Kind::Open => {
                    self.at += 1;
                    pieces.push(Piece::Block(self.block(true)));
                    open = false;
                    continue;
                }
                Kind::Equals => pieces.push(Piece::Equals),
                Kind::TypeOpen => pieces.push(Piece::TypeOpen),
                Kind::TypeClose => pieces.push(Piece::TypeClose),
                Kind::Word => {
                    pieces.push(Piece::Word(token.text));
                    (open, node) = (false, true);
                }
            }
            self.next();
        }
        without_last_break(&mut pieces);
        pieces
    }

    /// What is behind a backslash, its line end among it.
    fn escaped_line(&mut self, pieces: &mut Vec<Piece<'t>>) {
        pieces.push(Piece::Continue);
        while let Some(token) = self.peek() {
            match token.kind {
                Kind::Space => {}
                Kind::Comment => pieces.push(Piece::Comment(token.text)),
                Kind::LineComment => pieces.push(Piece::LineComment(token.text)),
                Kind::Newline => {
                    self.next();
                    break;
                }
                _ => return,
            }
            self.next();
        }
        pieces.push(Piece::Break);
    }
}

/// A backslash that nothing follows is left out; the comments behind it stay.
fn without_last_break(pieces: &mut Vec<Piece<'_>>) {
    while matches!(pieces.last(), Some(Piece::Break)) {
        pieces.pop();
        if let Some(at) = pieces.iter().rposition(|piece| matches!(piece, Piece::Continue)) {
            pieces.remove(at);
        }
    }
}
