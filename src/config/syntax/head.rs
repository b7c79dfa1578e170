//! A node without its block: read by `kdl`, given places.

use std::borrow::Cow;
use std::cell::Cell;
use std::ops::Range;
use std::str::FromStr;

use kdl::{KdlEntry, KdlError, KdlNode, KdlValue};

use super::chars::{is_blank, run};
use super::explain::{self, Fault};
use super::node::{Entry, Node, Value};
use super::strings;
use super::text::{Errors, Text};
use crate::base::Spanned;
use crate::config::ids;

/// A node up to its block, as the scan hands it over.
#[derive(Default)]
pub(super) struct Head {
    /// Where it begins in the file.
    pub start: usize,
    /// What is written there, with blanks for comments, `/-` and escaped line ends: offsets are the same.
    pub text: String,
    /// Where its strings lie in [`Self::text`].
    pub strings: Vec<Range<usize>>,
    /// What holds one of these offsets is left out, in ascending order.
    pub dropped: Vec<usize>,
}

impl Head {
    /// Adds blanks.
    pub fn blank(&mut self, count: usize) {
        self.text.extend(std::iter::repeat_n(' ', count));
    }

    fn drops(&self, range: &Range<usize>) -> bool {
        let next = self.dropped.partition_point(|at| *at < range.start);
        self.dropped.get(next).is_some_and(|at| *at < range.end)
    }
}

/// The node, as far as it makes sense; `None` without a name.
pub(super) fn read(head: &Head, text: &Text<'_>, errors: &mut Errors) -> Option<Node> {
    let mut reader = Reader { twin: strings::twin(&head.text, &head.strings), head, text, errors };
    match reader.ask::<KdlNode>(0..head.text.len()) {
        Ok(found) => {
            let node = reader.named(&found, 0);
            let entries = found.entries().iter().filter_map(|entry| reader.entry(entry, 0)).collect();
            node.map(|node| Node { entries, ..node })
        }
        Err(error) => reader.word_by_word(&error),
    }
}

struct Reader<'r, 'a> {
    head: &'r Head,
    twin: Cow<'r, str>,
    text: &'r Text<'a>,
    errors: &'r mut Errors,
}

impl Reader<'_, '_> {
    /// Asks `kdl`, which sees the text itself only if it accepts its harmless twin.
    fn ask<T: FromStr<Err = KdlError>>(&self, range: Range<usize>) -> Result<T, KdlError> {
        let (text, twin) = (&self.head.text[range.clone()], &self.twin[range]);
        if text != twin {
            twin.parse::<T>()?;
        }
        text.parse()
    }

    fn in_file(&self, range: &Range<usize>) -> Range<usize> {
        self.head.start + range.start..self.head.start + range.end
    }

    /// The node without entries; `base` is where `kdl` began to read.
    fn named(&self, found: &KdlNode, base: usize) -> Option<Node> {
        let span = found.name().span();
        let range = base + span.offset()..base + span.offset() + span.len();
        if self.head.drops(&range) {
            return None;
        }
        let place = self.text.place(self.in_file(&range));
        let before = self.head.text[base..range.start].trim_end_matches(is_blank).len();
        let annotation = found.ty().map(|_| self.text.place(self.in_file(&(base..base + before))));
        Some(Node {
            extent: place.clone(),
            name: Spanned::new(found.name().value().to_owned(), place),
            entries: Vec::new(),
            children: None,
            annotation,
            read: Cell::new(false),
        })
    }

    fn entry(&mut self, found: &KdlEntry, base: usize) -> Option<Entry> {
        let whole = base + found.span().offset()..base + found.span().offset() + found.span().len();
        if self.head.drops(&whole) {
            return None;
        }
        let format = found.format().cloned().unwrap_or_default();
        let at = whole.end - format.value_repr.len()..whole.end;
        let mut after_key = whole.start;
        let key = found.name().map(|key| {
            let range = base + key.span().offset()..base + key.span().offset() + key.span().len();
            after_key = range.end + format.after_key.len() + 1 + format.after_eq.len();
            Spanned::new(key.value().to_owned(), self.text.place(self.in_file(&range)))
        });
        let annotation = found.ty().map(|_| {
            let end = at.start - format.after_ty.len();
            self.text.place(self.in_file(&(after_key..end)))
        });
        let written = &self.head.text[at.clone()];
        let value = match found.value() {
            KdlValue::String(text) => Value::Text { text: text.clone(), bare: !strings::begins(written) },
            KdlValue::Integer(number) => Value::Integer(*number),
            KdlValue::Float(number) if number.is_finite() => Value::Float(*number),
            KdlValue::Float(number) if written.starts_with('#') => Value::NotFinite(match number {
                number if number.is_nan() => "#nan",
                number if *number < 0.0 => "#-inf",
                _ => "#inf",
            }),
            KdlValue::Float(_) => {
                self.report(at.start, explain::no_number(written));
                return None;
            }
            KdlValue::Bool(value) => Value::Bool(*value),
            KdlValue::Null => Value::Null,
        };
        let value = Spanned::new(value, self.text.place(self.in_file(&at)));
        let place = self.text.place(self.in_file(&whole));
        Some(Entry { key, value, annotation, place, read: Cell::new(false) })
    }

    /// A fault in what begins at `base`.
    fn report(&mut self, base: usize, fault: Fault) {
        let at = base + fault.at.start..base + fault.at.end;
        let place = self.text.place_in_line(self.in_file(&at));
        self.errors.push(fault.id, &place, fault.message, fault.hint);
    }

    /// After an error: keeps the good words, and says what is wrong with each bad one.
    fn word_by_word(&mut self, error: &KdlError) -> Option<Node> {
        let before = self.errors.list.len();
        let mut words = self.words().into_iter();
        let first = words.next().unwrap_or_default();
        let head = &self.head.text[first.clone()];
        let name = first.start..first.start + explain::name_length(head);
        let mut node = self.ask::<KdlNode>(name.clone()).ok().and_then(|found| self.named(&found, name.start));
        let word = node.as_ref().map(|node| node.word().to_owned()).unwrap_or_default();
        if let Some(fault) = explain::name(head, &word) {
            self.report(first.start, fault);
        }
        let mut entries = Vec::new();
        for range in words {
            match self.ask::<KdlEntry>(range.clone()) {
                Ok(found) => entries.extend(self.entry(&found, range.start)),
                Err(_) if self.errors.full => break,
                Err(error) => {
                    let after = if entries.is_empty() { Some(word.as_str()) } else { None };
                    let fault = explain::entry(&self.head.text[range.clone()], after);
                    self.report(range.start, fault.unwrap_or_else(|| unexplained(&error, range.len())));
                }
            }
        }
        if self.errors.list.len() == before && !self.errors.full {
            self.report(first.start, unexplained(error, first.len()));
        }
        if let Some(node) = &mut node {
            node.entries = entries;
        }
        node
    }

    /// The words of the head: the name, then each entry. `key = value` is one.
    fn words(&self) -> Vec<Range<usize>> {
        let text = self.head.text.as_str();
        let blanks = |at: usize| at + run(&text[at..], is_blank);
        let mut words = Vec::new();
        let mut strings = self.head.strings.iter().peekable();
        let mut start = blanks(0);
        while start < text.len() {
            let mut at = start;
            let mut equals = false;
            loop {
                // Up to the next blank outside a string.
                while let Some(c) = text[at..].chars().next().filter(|c| !is_blank(*c)) {
                    while strings.next_if(|string| string.start < at).is_some() {}
                    match strings.peek() {
                        Some(string) if string.start == at => at = string.end,
                        _ => {
                            equals |= c == '=';
                            at += c.len_utf8();
                        }
                    }
                }
                let next = blanks(at);
                let word = &text[start..at];
                let before_equals = !words.is_empty() && !equals && text[next..].starts_with('=');
                let after_equals = word.len() > 1 && word.ends_with('=');
                let annotated = word.starts_with('(') && word.ends_with(')');
                if next == text.len() || !(before_equals || after_equals || annotated) {
                    break;
                }
                at = next;
            }
            words.push(start..at);
            start = blanks(at);
        }
        words
    }
}

/// What `kdl` says about a word, for want of something better.
fn unexplained(error: &KdlError, length: usize) -> Fault {
    let said = error.diagnostics.iter().find_map(|one| one.message.clone());
    let help = error.diagnostics.iter().find_map(|one| one.help.clone());
    Fault {
        at: 0..length,
        id: ids::SYNTAX,
        message: said.unwrap_or_else(|| "this cannot be read".to_owned()),
        hint: help.unwrap_or_else(|| "write words, \"texts\", numbers, #true or #false with blanks between".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use crate::config::syntax::{Value, parse};

    fn values(text: &str) -> (Vec<Value>, Vec<(&'static str, Option<usize>)>) {
        let (nodes, found) = parse("f", text.as_bytes());
        let values = nodes.into_iter().flat_map(|node| node.entries).map(|entry| entry.value.value).collect();
        (values, found.iter().map(|one| (one.id, one.column)).collect())
    }

    #[test]
    fn all_forms_of_numbers() {
        for (text, value) in [("0x1F", 31), ("1_000", 1000), ("-0b11", -3), ("+7", 7), ("0o17", 15)] {
            assert_eq!(values(&format!("a {text}")), (vec![Value::Integer(value)], vec![]), "{text}");
        }
        assert_eq!(values("a 1.5e-3 k=#inf"), (vec![Value::Float(0.0015), Value::NotFinite("#inf")], vec![]));
        for text in ["0x", "1.", ".5", "1e", "1e999", "k=-1e999", "16k", "1.2.3", &"9".repeat(60)] {
            let column = if text.starts_with('k') { 5 } else { 3 };
            assert_eq!(values(&format!("a {text}")), (vec![], vec![("FLK103", Some(column))]), "{text}");
        }
    }

    #[test]
    fn good_words_stay_and_each_bad_one_is_said() {
        let (found, errors) = values("a 1, 2 true \"x\"y k = 3 [4] /-5, \"6\"");
        let text = Value::Text { text: "6".to_owned(), bare: false };
        assert_eq!(found, [Value::Integer(2), Value::Integer(3), text]);
        let columns: Vec<_> = errors.iter().filter_map(|(_, column)| *column).collect();
        assert_eq!(columns, [3, 8, 16, 24, 30]);
    }

    #[test]
    fn what_slashdash_drops_is_gone() {
        let (nodes, found) = parse("f", b"/-a 1\nb /-1 /- k=2 3 /-{ c; } { d /* / */ 4; /- e { f; } } /-{ }\n");
        assert_eq!(found, []);
        assert_eq!((nodes.len(), nodes[0].entries.len()), (1, 1));
        let inner = nodes[0].children.as_deref().unwrap();
        assert_eq!((inner.len(), inner[0].word(), inner[0].entries.len()), (1, "d", 1));
    }
}
