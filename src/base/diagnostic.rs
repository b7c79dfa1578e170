//! One finding about a place in a config repository, in the shape the contract fixes.
//!
//! Findings quote what others wrote. Where they are made, what a terminal would obey is written out: no way of showing
//! them has to think of it.

use std::borrow::Cow;

use serde::Serialize;

use super::{Place, escape_obeyed};

/// How much a finding weighs: an error makes the input invalid, a warning does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The input cannot be used.
    Error,
    /// The input can be used; somebody should look.
    Warning,
}

/// A second place that an error is about, such as the first declaration of a duplicate name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Related {
    /// The file, relative to the config repository, with `/`.
    pub file: String,
    /// 1-based line.
    pub line: usize,
    /// 1-based column in Unicode scalars.
    pub column: usize,
    /// What this place has to do with it.
    pub message: String,
}

/// A finding with its identifier, place, cause and remedy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// `FLKnnn`; an id is never reused for another meaning.
    pub id: &'static str,
    /// Error or warning.
    pub severity: Severity,
    /// What is wrong, a lowercase fragment.
    pub message: String,
    /// The file, or `null` where the finding has no place.
    pub file: Option<String>,
    /// 1-based line.
    pub line: Option<usize>,
    /// 1-based column in Unicode scalars; a byte-order mark is not counted.
    pub column: Option<usize>,
    /// 1-based line of the end.
    pub end_line: Option<usize>,
    /// 1-based column just past the end.
    pub end_column: Option<usize>,
    /// What to do about it.
    pub hint: Option<String>,
    /// Other places the finding is about.
    pub related: Vec<Related>,
}

impl Diagnostic {
    /// An error at a place.
    pub fn error(id: &'static str, place: &Place, message: impl Into<String>) -> Self {
        Self::at(id, Severity::Error, place, message.into())
    }

    /// A warning at a place.
    pub fn warning(id: &'static str, place: &Place, message: impl Into<String>) -> Self {
        Self::at(id, Severity::Warning, place, message.into())
    }

    /// A warning that belongs to no place in a file.
    pub fn general(id: &'static str, severity: Severity, message: impl Into<String>) -> Self {
        Self {
            id,
            severity,
            message: fit_to_show(message),
            file: None,
            line: None,
            column: None,
            end_line: None,
            end_column: None,
            hint: None,
            related: Vec::new(),
        }
    }

    fn at(id: &'static str, severity: Severity, place: &Place, message: String) -> Self {
        Self {
            file: Some(place.file.to_string()),
            line: Some(place.line),
            column: Some(place.column),
            end_line: Some(place.end_line),
            end_column: Some(place.end_column),
            ..Self::general(id, severity, message)
        }
    }

    /// Adds the remedy.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(fit_to_show(hint));
        self
    }

    /// Adds a second place.
    #[must_use]
    pub fn related(mut self, place: &Place, message: impl Into<String>) -> Self {
        self.related.push(Related {
            file: place.file.to_string(),
            line: place.line,
            column: place.column,
            message: fit_to_show(message),
        });
        self
    }
}

fn fit_to_show(text: impl Into<String>) -> String {
    let text = text.into();
    match escape_obeyed(&text) {
        Cow::Borrowed(_) => text,
        Cow::Owned(escaped) => escaped,
    }
}

/// Sorts by file, line, column, id (then message), the order the contract promises.
pub fn sort_diagnostics(diagnostics: &mut [Diagnostic]) {
    diagnostics.sort_by(|a, b| {
        (&a.file, a.line, a.column, a.id, &a.message).cmp(&(&b.file, b.line, b.column, b.id, &b.message))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_finding_holds_what_a_terminal_obeys() {
        let place = Place::start_of("a.kdl");
        let found = Diagnostic::error("FLK120", &place, "unknown engine `l\u{9b}lama`").hint("\u{202e}x\u{1b}[2J");
        let found = found.related(&place, "a\u{7f}\tb\nc");
        assert_eq!(found.message, "unknown engine `l\\u{9b}lama`");
        assert_eq!(found.hint.as_deref(), Some("\\u{202e}x\\u{1b}[2J"));
        assert_eq!(found.related[0].message, "a\\u{7f}\tb\nc");
        assert_eq!(Diagnostic::warning("FLK190", &place, "a\r").message, "a\\u{d}");
        assert_eq!(Diagnostic::general("FLK107", Severity::Error, "\u{85}").message, "\\u{85}");
    }
}
