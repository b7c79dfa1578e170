//! Texts with `{{ … }}`: finding the references in them.

use crate::base::{Place, Spanned};

/// A reference such as `steps.plan.json.tasks`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reference {
    /// Its parts, at least one.
    pub parts: Vec<String>,
    /// Where it stands.
    pub place: Place,
}

/// A `{{ … }}` that holds no reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BadTemplate {
    pub place: Place,
    pub message: String,
}

/// All references of a text, and what is wrong with it.
pub(super) fn references(text: &Spanned<String>) -> (Vec<Reference>, Vec<BadTemplate>) {
    let (mut found, mut bad) = (Vec::new(), Vec::new());
    let source = &text.value;
    let mut at = 0;
    while let Some(open) = source[at..].find("{{") {
        let open = at + open;
        let Some(close) = source[open..].find("}}") else {
            bad.push(BadTemplate {
                place: place_of(text, open, source.len()),
                message: "`{{` without `}}`".to_owned(),
            });
            break;
        };
        let end = open + close + 2;
        let place = place_of(text, open, end);
        let inner = source[open + 2..end - 2].trim();
        match parts(inner) {
            Some(parts) => found.push(Reference { parts, place }),
            None if inner.is_empty() => bad.push(BadTemplate { place, message: "an empty template".to_owned() }),
            None => bad.push(BadTemplate { place, message: format!("`{inner}` is no reference") }),
        }
        at = end;
    }
    (found, bad)
}

/// Whether a text is one template and nothing else.
pub(super) fn is_single(text: &str) -> bool {
    let text = text.trim();
    text.starts_with("{{") && text.ends_with("}}") && text.matches("{{").count() == 1 && text.matches("}}").count() == 1
}

fn parts(inner: &str) -> Option<Vec<String>> {
    let parts: Vec<String> = inner.split('.').map(|part| part.trim().to_owned()).collect();
    let fine = |part: &String| !part.is_empty() && part.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-'));
    parts.iter().all(fine).then_some(parts)
}

/// The place of a piece of a text: exact where the text is written on one line without escapes.
fn place_of(text: &Spanned<String>, from: usize, to: usize) -> Place {
    let place = &text.place;
    let plain = place.line == place.end_line && place.end_column - place.column == text.value.chars().count() + 2;
    if !plain {
        return place.clone();
    }
    let column = |offset: usize| place.column + 1 + text.value[..offset].chars().count();
    Place { column: column(from), end_column: column(to), ..place.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spanned(text: &str) -> Spanned<String> {
        let mut place = Place::start_of("w.kdl");
        place.column = 10;
        place.end_column = 12 + text.chars().count();
        Spanned::new(text.to_owned(), place)
    }

    #[test]
    fn references_with_their_columns() {
        let (found, bad) = references(&spanned("é {{ steps.a.text }} and {{item}}"));
        assert_eq!(bad, []);
        assert_eq!(found[0].parts, ["steps", "a", "text"]);
        assert_eq!((found[0].place.column, found[0].place.end_column), (13, 31));
        assert_eq!(found[1].parts, ["item"]);
    }

    #[test]
    fn what_is_none() {
        for text in ["{{ }}", "{{ a b }}", "{{ a..b }}", "x {{ a", "{{ a | b }}"] {
            assert_eq!(references(&spanned(text)).1.len(), 1, "{text}");
        }
        assert!(is_single(" {{ a.b }} "));
        assert!(!is_single("{{ a }}{{ b }}"));
        assert!(!is_single("x {{ a }}"));
    }
}
