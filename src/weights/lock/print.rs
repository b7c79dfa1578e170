//! The layout of `flock.lock`. A list of plain values is one line, a file is one line, so is whatever is short; all
//! else has one member a line. A new revision then shows as its commit and the files that changed.

/// What is not longer stays on one line.
const SHORT: usize = 100;

/// Lays out compact JSON that serde_json wrote; members that are null are left out.
pub(super) fn pretty(compact: &str) -> String {
    let mut rest = compact;
    let value = Value::read(&mut rest);
    let mut out = String::new();
    value.print(&mut out, 0, false);
    out.push('\n');
    out
}

/// A JSON value with its scalars as they are written.
enum Value<'a> {
    Scalar(&'a str),
    List(Vec<Value<'a>>),
    Object(Vec<(&'a str, Value<'a>)>),
}

impl<'a> Value<'a> {
    fn read(rest: &mut &'a str) -> Self {
        match rest.as_bytes().first() {
            Some(b'[') => Self::List(members(rest, ']', Self::read)),
            Some(b'{') => {
                let mut found = members(rest, '}', |rest| {
                    let key = scalar(rest);
                    *rest = rest.strip_prefix(':').unwrap_or(rest);
                    (key, Self::read(rest))
                });
                found.retain(|(_, value)| !matches!(value, Self::Scalar("null")));
                Self::Object(found)
            }
            _ => Self::Scalar(scalar(rest)),
        }
    }

    fn is_scalar(&self) -> bool {
        matches!(self, Self::Scalar(_))
    }

    /// On one line, whatever its length.
    fn line(&self) -> String {
        match self {
            Self::Scalar(text) => (*text).to_owned(),
            Self::List(items) => format!("[{}]", items.iter().map(Self::line).collect::<Vec<_>>().join(", ")),
            Self::Object(members) if members.is_empty() => "{}".to_owned(),
            Self::Object(members) => {
                let members = members.iter().map(|(key, value)| format!("{key}: {}", value.line()));
                format!("{{ {} }}", members.collect::<Vec<_>>().join(", "))
            }
        }
    }

    /// Whether it is one line at this depth; `listed` says that it is an item of a list.
    fn is_line(&self, depth: usize, listed: bool) -> bool {
        match self {
            Self::Scalar(_) => true,
            Self::List(items) if items.iter().all(Self::is_scalar) => true,
            Self::List(_) => false,
            Self::Object(members) => {
                let plain = members.iter().all(|(_, value)| value.is_scalar());
                plain && (listed || members.is_empty() || 2 * depth + self.line().len() <= SHORT)
            }
        }
    }

    fn print(&self, out: &mut String, depth: usize, listed: bool) {
        if self.is_line(depth, listed) {
            return out.push_str(&self.line());
        }
        let indent = |out: &mut String, depth: usize| {
            out.push('\n');
            out.extend(std::iter::repeat_n("  ", depth));
        };
        match self {
            Self::Scalar(text) => out.push_str(text),
            Self::List(items) => {
                out.push('[');
                for (number, item) in items.iter().enumerate() {
                    out.push_str(if number == 0 { "" } else { "," });
                    indent(out, depth + 1);
                    item.print(out, depth + 1, true);
                }
                indent(out, depth);
                out.push(']');
            }
            Self::Object(members) => {
                out.push('{');
                for (number, (key, value)) in members.iter().enumerate() {
                    out.push_str(if number == 0 { "" } else { "," });
                    indent(out, depth + 1);
                    out.push_str(key);
                    out.push_str(": ");
                    value.print(out, depth + 1, false);
                }
                indent(out, depth);
                out.push('}');
            }
        }
    }
}

/// The members between a bracket and its end.
fn members<'a, T>(rest: &mut &'a str, end: char, mut read: impl FnMut(&mut &'a str) -> T) -> Vec<T> {
    let mut found = Vec::new();
    *rest = rest.get(1..).unwrap_or_default();
    loop {
        if rest.is_empty() {
            return found;
        }
        if let Some(after) = rest.strip_prefix(end) {
            *rest = after;
            return found;
        }
        *rest = rest.strip_prefix(',').unwrap_or(rest);
        found.push(read(rest));
    }
}

/// A text with its quotes, a number or a word.
fn scalar<'a>(rest: &mut &'a str) -> &'a str {
    let bytes = rest.as_bytes();
    let mut at = 0;
    if bytes.first() == Some(&b'"') {
        at = 1;
        while at < bytes.len() && bytes[at] != b'"' {
            at += if bytes[at] == b'\\' { 2 } else { 1 };
        }
        at = (at + 1).min(bytes.len());
    } else {
        while at < bytes.len() && !matches!(bytes[at], b',' | b':' | b']' | b'}') {
            at += 1;
        }
    }
    let (found, after) = rest.split_at(at);
    *rest = after;
    found
}
