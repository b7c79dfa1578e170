//! The scan: from bytes to heads and blocks. Recursive per block only, at most [`MAX_DEPTH`] deep.

use std::ops::Range;

use super::chars::{is_blank, is_newline, is_space, run};
use super::head::{self, Head};
use super::node::Node;
use super::text::{Errors, Text};
use super::{MAX_DEPTH, MAX_FILE_BYTES, strings};
use crate::base::{Diagnostic, Place};
use crate::config::ids;

/// Reads a file. Nodes are what could be understood; the findings are syntax errors only.
pub fn parse(file: &str, bytes: &[u8]) -> (Vec<Node>, Vec<Diagnostic>) {
    let refused =
        |id, place: &Place, message: String, hint| (Vec::new(), vec![Diagnostic::error(id, place, message).hint(hint)]);
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let message = format!("the file has {} bytes; at most {MAX_FILE_BYTES} are read", bytes.len());
        return refused(ids::TOO_LARGE, &Place::start_of(file), message, "split it into several files");
    }
    let whole = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let good = std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default();
            let good = without_mark(good);
            let place = Text::new(file, good).place_at(good.len());
            return refused(ids::ENCODING, &place, "the file is not UTF-8".to_owned(), "save it as UTF-8");
        }
    };
    let mut scan = Scan {
        text: Text::new(file, without_mark(whole)),
        at: 0,
        open: Vec::new(),
        suspect: None,
        errors: Errors::default(),
        stopped: false,
    };
    let nodes = scan.block();
    (nodes, scan.errors.list)
}

fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// A block that is being read.
struct Open {
    /// Where its `{` stands.
    brace: usize,
    /// The node it belongs to.
    word: String,
    /// The column at which that node begins.
    column: usize,
}

struct Scan<'a> {
    text: Text<'a>,
    at: usize,
    open: Vec<Open>,
    /// An opening brace whose closing one stands further left than its node: if one is missing, it is likely this.
    suspect: Option<(usize, String)>,
    errors: Errors,
    /// Reading on makes no sense: too deep, or the text ended inside a string or comment.
    stopped: bool,
}

impl Scan<'_> {
    fn rest(&self) -> &str {
        &self.text.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn starts_with(&self, prefix: &str) -> bool {
        self.rest().starts_with(prefix)
    }

    /// An error about the one character at an offset.
    fn error_at(&mut self, offset: usize, id: &'static str, message: impl Into<String>, hint: impl Into<String>) {
        let place = self.text.place_at(offset);
        self.errors.push(id, &place, message, hint);
    }

    /// Nodes up to the closing brace of the innermost open block, or to the end.
    fn block(&mut self) -> Vec<Node> {
        let mut nodes = Vec::new();
        loop {
            self.blank(true);
            if self.stopped || self.errors.full {
                self.stopped = true;
                return nodes;
            }
            match self.peek() {
                None => {
                    self.missing_brace();
                    return nodes;
                }
                Some('}') if self.open.is_empty() => {
                    self.error_at(self.at, ids::SYNTAX, "`}` without an opening `{`", "remove it");
                    self.at += 1;
                }
                Some('}') => {
                    self.close();
                    return nodes;
                }
                Some(';') => {
                    self.error_at(self.at, ids::SYNTAX, "`;` without a node before it", "remove it");
                    self.at += 1;
                }
                Some('{') if nodes.last().is_some_and(|node| node.children.is_none()) => self.late_block(&mut nodes),
                Some('#') if !strings::begins(self.rest()) => self.hash_comment(),
                Some(_) => {
                    let dropped = self.starts_with("/-");
                    if dropped {
                        self.at += 2;
                        self.blank(true);
                    }
                    nodes.extend(self.node().filter(|_| !dropped));
                    self.blank(false);
                    if self.peek() == Some(';') {
                        self.at += 1;
                    }
                }
            }
        }
    }

    /// A block on a line of its own: it belongs to the node before it, and is an error.
    fn late_block(&mut self, nodes: &mut [Node]) {
        let Some(node) = nodes.last_mut() else { return };
        let hint = format!("`{{` stands on the same line as its node: put it behind `{}`", node.word());
        self.error_at(self.at, ids::SYNTAX, "a block on a line of its own", hint);
        let word = node.word().to_owned();
        node.children = self.children(&word, self.at);
        let begin = (node.extent.line, node.extent.column);
        node.extent = self.text.place(self.at..self.at);
        (node.extent.line, node.extent.column) = begin;
    }

    /// A comment as shells, YAML and HCL have it; passed up to the end of the line.
    fn hash_comment(&mut self) {
        let hint = if self.starts_with("#!") { "remove the line" } else { "comments begin with `//`" };
        self.error_at(self.at, ids::SYNTAX, "`#` begins no comment", hint);
        self.at += run(self.rest(), |c| !is_newline(c));
    }

    /// JSON begins with a brace and a name in quotes.
    fn is_json(&self) -> bool {
        let inner = self.rest().trim_start_matches(|c| c == '{' || is_blank(c));
        self.open.is_empty() && self.text.text[..self.at].chars().all(is_blank) && inner.starts_with('"')
    }

    fn close(&mut self) {
        let brace = self.at;
        self.at += 1;
        let Some(open) = self.open.pop() else { return };
        let (line, column) = self.text.position(brace);
        if line != self.text.position(open.brace).0 && column < open.column && self.suspect.is_none() {
            self.suspect = Some((open.brace, open.word));
        }
    }

    fn missing_brace(&mut self) {
        let Some(innermost) = self.open.last() else { return };
        let (brace, word) = self.suspect.take().unwrap_or_else(|| (innermost.brace, innermost.word.clone()));
        let hint = format!("add the missing `}}` that ends `{word}`");
        self.error_at(brace, ids::UNCLOSED, "this `{` is never closed", hint);
        self.stopped = true;
    }

    /// Passes blanks, comments and escaped line ends; with `lines`, newlines and `//` too.
    fn blank(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            if is_space(c) || (lines && is_newline(c)) {
                self.at += c.len_utf8();
            } else if lines && self.starts_with("//") {
                self.at += run(self.rest(), |c| !is_newline(c));
            } else if self.starts_with("/*") {
                self.comment();
            } else if c == '\\' {
                let Some(end) = self.escaped_line() else { return };
                self.at = end;
            } else {
                return;
            }
        }
    }

    /// Passes a comment in `/*` and `*/`.
    fn comment(&mut self) {
        let start = self.at;
        let mut depth = 0_usize;
        while let Some(found) = self.rest().find(['/', '*']) {
            self.at += found;
            if self.starts_with("/*") {
                depth += 1;
                self.at += 2;
            } else if self.starts_with("*/") {
                depth -= 1;
                self.at += 2;
            } else {
                self.at += 1;
            }
            if depth == 0 {
                return;
            }
        }
        self.at = self.text.text.len();
        self.stopped = true;
        let place = self.text.place(start..start + 2);
        self.errors.push(ids::UNCLOSED, &place, "this comment is never closed", "close it with `*/`; comments nest");
    }

    /// Where the line goes on after a backslash at its end; `None` if something else follows the backslash.
    fn escaped_line(&mut self) -> Option<usize> {
        let start = self.at;
        self.at += 1;
        loop {
            self.at += run(self.rest(), is_space);
            if !self.starts_with("/*") {
                break;
            }
            self.comment();
        }
        if self.starts_with("//") {
            self.at += run(self.rest(), |c| !is_newline(c));
        }
        let end = match self.peek() {
            None => Some(self.at),
            Some('\r') if self.starts_with("\r\n") => Some(self.at + 2),
            Some(c) if is_newline(c) => Some(self.at + c.len_utf8()),
            Some(_) => None,
        };
        self.at = start;
        end
    }

    /// One node without its terminator.
    fn node(&mut self) -> Option<Node> {
        let start = self.at;
        match self.peek() {
            Some('{') if self.is_json() => {
                let hint =
                    "a config is KDL: `cluster \"lab\" { … }`, without `:` and `,` and without braces around it all";
                self.error_at(start, ids::SYNTAX, "this looks like JSON", hint);
                self.stopped = true;
                return None;
            }
            Some('{') => {
                let hint = "`{` stands on the same line as its node: `node \"a\" {`";
                self.error_at(start, ids::SYNTAX, "a block without a node", hint);
                self.children("", start);
                return None;
            }
            None | Some('}' | ';') => {
                self.error_at(start, ids::SYNTAX, "`/-` without a node after it", "remove it");
                return None;
            }
            Some(_) => {}
        }
        let (head, mut dropped) = self.head();
        let mut node = head::read(&head, &self.text, &mut self.errors);
        let word = node.as_ref().map(|node| node.word().to_owned()).unwrap_or_default();
        let mut blocks = 0;
        while !self.stopped {
            if self.peek() != Some('{') {
                if dropped {
                    self.error_at(self.at, ids::SYNTAX, "`/-` without anything after it", "remove it");
                } else if blocks > 0 && !self.ends_node() {
                    let hint = "begin the next node on a new line, or after `;`";
                    self.error_at(self.at, ids::SYNTAX, "text after the block of a node", hint);
                }
                break;
            }
            let Some(children) = self.children(&word, start) else { break };
            blocks += 1;
            if !dropped && let Some(node) = &mut node {
                if node.children.is_some() {
                    let place = node.name.place.clone();
                    self.errors.push(ids::SYNTAX, &place, "a node with two blocks", "keep one block");
                }
                node.children.get_or_insert_default().extend(children);
            }
            self.blank(false);
            dropped = self.starts_with("/-");
            if dropped {
                self.at += 2;
                self.blank(true);
            }
        }
        if let Some(node) = &mut node {
            node.extent = self.text.place(start..self.at);
        }
        node
    }

    /// Whether a node may end here.
    fn ends_node(&self) -> bool {
        self.peek().is_none_or(|c| is_newline(c) || matches!(c, ';' | '}')) || self.starts_with("//")
    }

    fn children(&mut self, word: &str, start: usize) -> Option<Vec<Node>> {
        let brace = self.at;
        if self.open.len() >= MAX_DEPTH {
            self.stopped = true;
            let message = format!("blocks nested deeper than {MAX_DEPTH}");
            self.error_at(brace, ids::TOO_DEEP, message, "no block of this language needs that depth");
            return None;
        }
        self.at += 1;
        let column = self.text.position(start).1;
        self.open.push(Open { brace, word: word.to_owned(), column });
        let nodes = self.block();
        (!self.stopped).then_some(nodes)
    }

    /// A node up to its block or its end, and whether `/-` drops the block that follows.
    fn head(&mut self) -> (Head, bool) {
        let mut head = Head { start: self.at, ..Head::default() };
        while !self.stopped && !self.errors.full && !self.ends_node() && self.peek() != Some('{') {
            let from = self.at;
            let blank_before = head.text.ends_with(is_blank);
            if self.starts_with("/*") {
                self.comment();
                head.blank(self.at - from);
            } else if self.starts_with("/-") && blank_before {
                self.at += 2;
                self.blank(true);
                head.blank(self.at - from);
                if self.peek() == Some('{') {
                    return (head, true);
                }
                if self.ends_node() || self.starts_with("/-") {
                    self.error_at(from, ids::SYNTAX, "`/-` without anything after it", "remove it");
                }
                head.dropped.push(head.text.len());
            } else if self.peek() == Some('\\') {
                if let Some(end) = self.escaped_line() {
                    self.at = end;
                    head.blank(end - from);
                } else {
                    self.at += 1;
                    let hint = "a backslash ends a line that goes on in the next; text with a backslash needs quotes";
                    self.unread(&mut head, from, ids::SYNTAX, "a backslash in the middle of a line", hint);
                }
            } else if strings::begins(self.rest()) {
                self.string(&mut head);
            } else if blank_before && self.starts_with("#") && self.rest()[1..].starts_with(is_blank) {
                self.hash_comment();
            } else {
                let length =
                    run(self.rest(), |c| !is_blank(c) && !matches!(c, '/' | '\\' | '"' | '#' | ';' | '{' | '}'));
                let hashes = run(self.rest(), |c| c == '#');
                let length = length.max(hashes).max(self.peek().map_or(0, char::len_utf8));
                head.text.push_str(&self.text.text[from..from + length]);
                self.at += length;
            }
        }
        (head, false)
    }

    fn string(&mut self, head: &mut Head) {
        let from = self.at;
        match strings::end(self.text.text, from) {
            Ok(end) => {
                self.at = end;
                head.strings.push(head.text.len()..head.text.len() + end - from);
                head.text.push_str(&self.text.text[from..end]);
            }
            Err(bad) => {
                self.at = bad.end;
                self.stopped |= bad.unfinished;
                if self.never_closed(head) {
                    return;
                }
                let id = if bad.unfinished { ids::UNCLOSED } else { ids::SYNTAX };
                self.unread(head, from, id, bad.message, bad.hint);
            }
        }
    }

    /// In `node "a address="x"`, the text that is open at the end of the line is not the one that lacks its quote:
    /// it is the one before, which ends in `key=`. Says so and drops all from there on.
    fn never_closed(&mut self, head: &mut Head) -> bool {
        let ends_in_key = |range: &&Range<usize>| {
            let text = &head.text[(*range).clone()];
            text.starts_with('"') && text.ends_with("=\"") && text.len() > 3
        };
        let Some(range) = head.strings.iter().find(ends_in_key).cloned() else { return false };
        let begin = head.start + range.start;
        let written = &head.text[range.start + 1..range.end - 2];
        let meant: String = match written.rsplit_once(is_blank) {
            Some((before, _)) => before.trim_end().chars().take(40).collect(),
            None => String::new(),
        };
        let hint = format!("add the missing `\"`: \"{meant}\"");
        let place = self.text.place_in_line(begin..begin + 1);
        self.errors.push(ids::UNCLOSED, &place, "this `\"` is never closed: the text swallows what follows", hint);
        head.strings.retain(|other| other.start < range.start);
        head.dropped.retain(|at| *at < range.start);
        head.dropped.push(range.start);
        head.text.truncate(range.start);
        head.text.extend(std::iter::repeat_n('x', self.at - begin));
        true
    }

    /// What was passed cannot be read: a word stands in for it, and is dropped with the entry that holds it.
    fn unread(&mut self, head: &mut Head, from: usize, id: &'static str, message: &str, hint: impl Into<String>) {
        let place = self.text.place_in_line(from..self.at);
        self.errors.push(id, &place, message, hint);
        head.dropped.push(head.text.len());
        head.text.extend(std::iter::repeat_n('x', self.at - from));
    }
}
