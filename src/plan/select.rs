//! Node selectors: `name`, a glob, or `@label=value`, separated by commas.

use std::collections::{BTreeMap, BTreeSet};

use crate::base::glob;

/// A parsed selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    terms: Vec<Term>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Term {
    Name(String),
    Label { label: String, value: String },
}

/// Why a selector cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    /// Nothing between two commas, or nothing at all.
    #[error("selector `{selector}` has an empty part")]
    Empty {
        /// The whole selector.
        selector: String,
    },
    /// `@label` without `=value`, or without a label.
    #[error("`{term}` is not `@label=value`")]
    Label {
        /// The part.
        term: String,
    },
    /// A part that no node matches.
    #[error("`{term}` matches no node; there are: {known}")]
    NoMatch {
        /// The part.
        term: String,
        /// The nodes' names.
        known: String,
    },
}

impl Selection {
    /// Reads a selector.
    pub fn parse(selector: &str) -> Result<Self, SelectError> {
        let mut terms = Vec::new();
        for part in selector.split(',').map(str::trim) {
            if part.is_empty() {
                return Err(SelectError::Empty { selector: selector.to_owned() });
            }
            terms.push(match part.strip_prefix('@') {
                None => Term::Name(part.to_owned()),
                Some(rest) => match rest.split_once('=') {
                    Some((label, value)) if !label.is_empty() => {
                        Term::Label { label: label.to_owned(), value: value.to_owned() }
                    }
                    _ => return Err(SelectError::Label { term: part.to_owned() }),
                },
            });
        }
        Ok(Self { terms })
    }

    /// Whether a node is selected.
    pub fn matches(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        self.terms.iter().any(|term| term.matches(name, labels))
    }

    /// The selected ones of these nodes. A part that matches nothing is an error: it is a misspelling.
    pub fn resolve<'a>(
        &self,
        nodes: impl IntoIterator<Item = (&'a str, &'a BTreeMap<String, String>)>,
    ) -> Result<BTreeSet<String>, SelectError> {
        let nodes: BTreeMap<&str, &BTreeMap<String, String>> = nodes.into_iter().collect();
        let mut selected = BTreeSet::new();
        for term in &self.terms {
            let hits: Vec<&str> =
                nodes.iter().filter(|(name, labels)| term.matches(name, labels)).map(|n| *n.0).collect();
            if hits.is_empty() {
                let known = nodes.keys().copied().collect::<Vec<_>>().join(", ");
                return Err(SelectError::NoMatch { term: term.written(), known });
            }
            selected.extend(hits.into_iter().map(str::to_owned));
        }
        Ok(selected)
    }
}

impl Term {
    fn matches(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        match self {
            Self::Name(pattern) => glob(pattern, name),
            Self::Label { label, value } if label == "node" => glob(value, name),
            Self::Label { label, value } => labels.get(label).is_some_and(|found| glob(value, found)),
        }
    }

    fn written(&self) -> String {
        match self {
            Self::Name(name) => name.clone(),
            Self::Label { label, value } => format!("@{label}={value}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn names_globs_and_labels_add_up() {
        let b12 = labels(&[("room", "B12")]);
        let none = labels(&[]);
        let nodes = [("a100", &b12), ("ada-1", &none), ("ada-2", &none), ("here", &b12)];
        let pick =
            |text: &str| Selection::parse(text).unwrap().resolve(nodes).map(|s| s.into_iter().collect::<Vec<_>>());
        assert_eq!(pick("ada-*").unwrap(), ["ada-1", "ada-2"]);
        assert_eq!(pick("@room=B12, ada-?").unwrap(), ["a100", "ada-1", "ada-2", "here"]);
        assert_eq!(pick("@node=a100").unwrap(), ["a100"]);
        assert_eq!(pick("*").unwrap().len(), 4);
        // One term is enough to be selected, whatever the others name.
        let both = Selection::parse("ada-1,@room=B12").unwrap();
        assert!(both.matches("ada-1", &none) && both.matches("x", &b12) && !both.matches("x", &none));
        let error = pick("ada-1,adda").unwrap_err().to_string();
        assert_eq!(error, "`adda` matches no node; there are: a100, ada-1, ada-2, here");
    }

    #[test]
    fn malformed_selectors_are_refused() {
        assert!(matches!(Selection::parse(""), Err(SelectError::Empty { .. })));
        assert!(matches!(Selection::parse("a,,b"), Err(SelectError::Empty { .. })));
        assert!(matches!(Selection::parse("@room"), Err(SelectError::Label { .. })));
        assert!(matches!(Selection::parse("@=x"), Err(SelectError::Label { .. })));
    }
}
