//! Conditions of `deny { when "…" }`: a small language over a model and a node.
//!
//! `&&` and `||`, `!`, parentheses; `==` and `!=` with a text in single quotes, `in` with several of them, and fields
//! that are true or false by themselves. Everything that can be wrong is an error here, with its place in the text.

use std::ops::Range;

use serde::Serialize;

use super::values::Wrong;
use super::{ids, names};

/// What must never be placed, as a condition. It holds no text, so two spellings of one condition are equal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Condition {
    /// One of these holds.
    Any(Vec<Condition>),
    /// All of these hold.
    All(Vec<Condition>),
    /// This does not hold.
    Not(Box<Condition>),
    /// A field that is true or false.
    Is(Flag),
    /// A field has one of these values.
    OneOf(Field, Vec<String>),
}

/// A field that is true or false.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Flag {
    /// `model.gated`: its repository asks for consent before it gives files.
    Gated,
    /// `node.spot`: the node may be taken away at any time.
    Spot,
}

/// A field with a text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Field {
    /// `model.name`.
    ModelName,
    /// `model.owner`.
    ModelOwner,
    /// `model.priority`.
    ModelPriority,
    /// `model.engine`: the engine that would serve it.
    ModelEngine,
    /// `model.labels.NAME`.
    ModelLabel(String),
    /// `node.name`.
    NodeName,
    /// `node.owner`.
    NodeOwner,
    /// `node.site`.
    NodeSite,
    /// `node.labels.NAME`.
    NodeLabel(String),
}

#[derive(Clone)]
enum Known {
    Flag(Flag),
    Field(Field),
}

/// Every field without a name of its own.
static FIELDS: &[(&str, Known)] = &[
    ("model.engine", Known::Field(Field::ModelEngine)),
    ("model.gated", Known::Flag(Flag::Gated)),
    ("model.name", Known::Field(Field::ModelName)),
    ("model.owner", Known::Field(Field::ModelOwner)),
    ("model.priority", Known::Field(Field::ModelPriority)),
    ("node.name", Known::Field(Field::NodeName)),
    ("node.owner", Known::Field(Field::NodeOwner)),
    ("node.site", Known::Field(Field::NodeSite)),
    ("node.spot", Known::Flag(Flag::Spot)),
];

/// Parentheses and `!` nest this deep at most.
const MAX_DEPTH: usize = 32;

/// What is wrong with a condition, and where in its text (in characters).
pub(super) struct Fault {
    pub at: Range<usize>,
    pub wrong: Wrong,
}

type Result<T> = std::result::Result<T, Fault>;

/// Reads a condition.
pub(super) fn parse(text: &str) -> Result<Condition> {
    let chars: Vec<char> = text.chars().collect();
    let mut reader = Reader { tokens: cut(&chars)?, at: 0, end: chars.len(), depth: 0 };
    let condition = reader.any()?;
    match reader.peek() {
        None => Ok(condition),
        Some(Token::Close) => reader.fail("`)` without `(`", "remove it"),
        Some(Token::Assign) => reader.fail("`=` in a condition", "write `==`"),
        Some(_) => reader.fail("text after the condition", "join conditions with `&&` or `||`"),
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Word(String),
    Text(String),
    And,
    Or,
    Not,
    Equal,
    Unequal,
    Assign,
    In,
    Open,
    Close,
    Comma,
}

fn fault<T>(at: Range<usize>, message: impl Into<String>, hint: impl Into<String>) -> Result<T> {
    Err(Fault { at, wrong: Wrong::new(ids::BAD_CONDITION, message, hint) })
}

fn cut(chars: &[char]) -> Result<Vec<(Token, Range<usize>)>> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(c) = chars.get(at) {
        let next = chars.get(at + 1);
        let (token, length) = match (c, next) {
            (c, _) if c.is_whitespace() => {
                at += 1;
                continue;
            }
            ('&', Some('&')) => (Token::And, 2),
            ('|', Some('|')) => (Token::Or, 2),
            ('=', Some('=')) => (Token::Equal, 2),
            ('!', Some('=')) => (Token::Unequal, 2),
            ('=', _) => (Token::Assign, 1),
            ('!', _) => (Token::Not, 1),
            ('(' | '[', _) => (Token::Open, 1),
            (')' | ']', _) => (Token::Close, 1),
            (',', _) => (Token::Comma, 1),
            ('&', _) => return fault(at..at + 1, "`&` in a condition", "write `&&`"),
            ('|', _) => return fault(at..at + 1, "`|` in a condition", "write `||`"),
            ('<' | '>', _) => {
                return fault(
                    at..at + 1,
                    format!("`{c}` in a condition"),
                    "texts are compared with `==`, `!=` or `in`",
                );
            }
            ('\'' | '"', _) => {
                let length = chars[at + 1..].iter().position(|end| end == c);
                let Some(length) = length else {
                    return fault(at..chars.len(), "a text that is never closed", "close it with a single quote `'`");
                };
                (Token::Text(chars[at + 1..at + 1 + length].iter().collect()), length + 2)
            }
            (c, _) if c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '+') => {
                let inside = |c: &&char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '+');
                let word: String = chars[at..].iter().take_while(inside).collect();
                let length = word.chars().count();
                let token = match word.as_str() {
                    "in" => Token::In,
                    "and" => return fault(at..at + length, "`and` in a condition", "write `&&`"),
                    "or" => return fault(at..at + length, "`or` in a condition", "write `||`"),
                    "not" => return fault(at..at + length, "`not` in a condition", "write `!`"),
                    _ => Token::Word(word),
                };
                (token, length)
            }
            (c, _) => {
                let hint = "a condition is like `model.gated && node.labels.tier == 'cloud'`";
                return fault(at..at + 1, format!("`{}` in a condition", c.escape_debug()), hint);
            }
        };
        tokens.push((token, at..at + length));
        at += length;
    }
    Ok(tokens)
}

struct Reader {
    tokens: Vec<(Token, Range<usize>)>,
    at: usize,
    end: usize,
    depth: usize,
}

impl Reader {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|(token, _)| token)
    }

    /// Where the next token stands; behind the text at its end.
    fn place(&self) -> Range<usize> {
        self.tokens.get(self.at).map_or(self.end..self.end, |(_, at)| at.clone())
    }

    fn fail<T>(&self, message: impl Into<String>, hint: impl Into<String>) -> Result<T> {
        fault(self.place(), message, hint)
    }

    fn takes(&mut self, token: &Token) -> bool {
        let hit = self.peek() == Some(token);
        self.at += usize::from(hit);
        hit
    }

    fn any(&mut self) -> Result<Condition> {
        let mut all = vec![self.all()?];
        while self.takes(&Token::Or) {
            all.push(self.all()?);
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Condition::Any(all) })
    }

    fn all(&mut self) -> Result<Condition> {
        let mut all = vec![self.one()?];
        while self.takes(&Token::And) {
            all.push(self.one()?);
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Condition::All(all) })
    }

    fn one(&mut self) -> Result<Condition> {
        if self.depth >= MAX_DEPTH {
            return self.fail("a condition nested too deep", "write several `deny` blocks");
        }
        self.depth += 1;
        let found = self.simple();
        self.depth -= 1;
        found
    }

    fn simple(&mut self) -> Result<Condition> {
        if self.takes(&Token::Not) {
            return Ok(Condition::Not(Box::new(self.one()?)));
        }
        if self.peek() == Some(&Token::Open) {
            let open = self.place();
            self.at += 1;
            let inner = self.any()?;
            return if self.takes(&Token::Close) {
                Ok(inner)
            } else if self.peek().is_none() {
                fault(open, "this `(` is never closed", "add the missing `)`")
            } else {
                self.fail("unexpected text in parentheses", "join conditions with `&&` or `||`")
            };
        }
        let place = self.place();
        let word = match self.peek() {
            Some(Token::Word(word)) => word.clone(),
            Some(Token::Text(_)) => {
                return self.fail("a text where a field is expected", "write the field first: `node.name == 'a100'`");
            }
            None => return self.fail("the condition ends too early", "add what is compared, such as `model.gated`"),
            Some(_) => return self.fail("a field is expected here", "such as `model.gated` or `node.labels.tier`"),
        };
        self.at += 1;
        match field(&word, place.clone())? {
            Known::Flag(flag) => self.flag(flag, &word),
            Known::Field(field) => self.compared(field, &word, place),
        }
    }

    fn flag(&mut self, flag: Flag, word: &str) -> Result<Condition> {
        match self.peek() {
            Some(Token::Equal | Token::Unequal | Token::Assign | Token::In) => {
                self.fail(format!("`{word}` is true or false"), format!("write `{word}` or `!{word}`"))
            }
            _ => Ok(Condition::Is(flag)),
        }
    }

    fn compared(&mut self, field: Field, word: &str, place: Range<usize>) -> Result<Condition> {
        if self.takes(&Token::In) {
            return Ok(Condition::OneOf(field, self.list()?));
        }
        let negated = self.peek() == Some(&Token::Unequal);
        if self.peek() == Some(&Token::Assign) {
            return self.fail("`=` in a condition", "write `==`");
        }
        if !negated && self.peek() != Some(&Token::Equal) {
            return fault(
                place,
                format!("`{word}` is a text, not a condition"),
                format!("compare it: `{word} == '…'`"),
            );
        }
        self.at += 1;
        let one = Condition::OneOf(field, vec![self.text()?]);
        Ok(if negated { Condition::Not(Box::new(one)) } else { one })
    }

    fn text(&mut self) -> Result<String> {
        match self.peek() {
            Some(Token::Text(text)) => {
                let text = text.clone();
                self.at += 1;
                Ok(text)
            }
            Some(Token::Word(word)) => {
                self.fail(format!("`{word}` without quotes"), format!("write it in single quotes: `'{word}'`"))
            }
            _ => self.fail("a text is expected here", "write it in single quotes: `'cloud'`"),
        }
    }

    fn list(&mut self) -> Result<Vec<String>> {
        if !self.takes(&Token::Open) {
            return self.fail("a list is expected behind `in`", "write `in ('a', 'b')`");
        }
        let mut all = vec![self.text()?];
        while self.takes(&Token::Comma) {
            all.push(self.text()?);
        }
        if !self.takes(&Token::Close) {
            return self.fail("the list is never closed", "write `in ('a', 'b')`");
        }
        // The order of a list means nothing.
        all.sort();
        all.dedup();
        Ok(all)
    }
}

fn field(word: &str, place: Range<usize>) -> Result<Known> {
    for (prefix, make) in
        [("model.labels.", Field::ModelLabel as fn(String) -> Field), ("node.labels.", Field::NodeLabel)]
    {
        if let Some(name) = word.strip_prefix(prefix) {
            return match names::problem(name) {
                Some(problem) => fault(place, problem, names::NAME_RULE),
                None => Ok(Known::Field(make(name.to_owned()))),
            };
        }
    }
    if let Some((_, found)) = FIELDS.iter().find(|(known, _)| *known == word) {
        return Ok(found.clone());
    }
    let mut known: Vec<&str> = FIELDS.iter().map(|(known, _)| *known).collect();
    known.extend(["model.labels.NAME", "node.labels.NAME"]);
    fault(place, format!("unknown field `{}`", word.escape_debug()), names::did_you_mean(word, &known))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Condition {
        parse(text).unwrap_or_else(|fault| panic!("{text}: {} at {:?}", fault.wrong.message, fault.at))
    }

    #[test]
    fn and_binds_closer_than_or_and_spelling_does_not_matter() {
        let gated = || Condition::Is(Flag::Gated);
        let cloud = Condition::OneOf(Field::NodeLabel("tier".into()), vec!["cloud".into()]);
        assert_eq!(read("model.gated && node.labels.tier == 'cloud'"), Condition::All(vec![gated(), cloud.clone()]));
        assert_eq!(
            read("node.spot||model.gated&&!(node.labels.tier!=\"cloud\")"),
            Condition::Any(vec![
                Condition::Is(Flag::Spot),
                Condition::All(vec![gated(), Condition::Not(Box::new(Condition::Not(Box::new(cloud))))])
            ])
        );
        assert_eq!(read("node.name in ('b', 'a')"), read("(node.name in ['a','b','a'])"));
        for (known, _) in FIELDS {
            assert!(parse(known).is_ok() || parse(&format!("{known} == 'x'")).is_ok(), "{known}");
        }
    }

    #[test]
    fn every_fault_has_its_place_and_its_remedy() {
        for (text, at, hint) in [
            ("", 0..0, "model.gated"),
            ("model.gatd", 0..10, "did you mean `model.gated`?"),
            ("node.labels.tier", 0..16, "node.labels.tier == '…'"),
            ("node.labels. == 'x'", 0..12, "letters"),
            ("node.name = 'a'", 10..11, "`==`"),
            ("node.name == a100", 13..17, "'a100'"),
            ("node.name == 'a", 13..15, "close it"),
            ("model.gated and node.spot", 12..15, "`&&`"),
            ("model.gated & node.spot", 12..13, "`&&`"),
            ("model.gated == 'x'", 12..14, "`!model.gated`"),
            ("(model.gated", 0..1, "`)`"),
            ("model.gated)", 11..12, "remove"),
            ("model.gated node.spot", 12..21, "join"),
            ("'x' == node.name", 0..3, "first"),
            ("node.name in 'a'", 13..16, "in ('a', 'b')"),
            ("node.name > 'a'", 10..11, "`in`"),
            ("model.gated &&", 14..14, "add what is compared"),
            ("é && model.gated", 0..1, "known here"),
        ] {
            let fault = parse(text).expect_err(text);
            assert_eq!(fault.at, at, "{text}: {}", fault.wrong.message);
            assert!(fault.wrong.hint.contains(hint), "{text}: {}", fault.wrong.hint);
        }
        assert!(parse(&"!".repeat(100_000)).is_err());
        assert!(parse(&"(".repeat(100_000)).is_err());
    }
}
