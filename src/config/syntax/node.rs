//! The tree that the reader makes and the tables check.

use std::cell::Cell;

use crate::base::{Place, Spanned};
use crate::config::names;

/// A value as written.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Any string; `bare` without quotes.
    Text { text: String, bare: bool },
    /// A number without a fraction.
    Integer(i128),
    /// A number with a fraction or an exponent; finite.
    Float(f64),
    /// `#true`, `#false`.
    Bool(bool),
    /// `#null`.
    Null,
    /// `#inf`, `#-inf`, `#nan`.
    NotFinite(&'static str),
}

impl Value {
    /// What it is, for messages.
    pub fn describe(&self) -> String {
        match self {
            // What may be a key is not repeated in logs.
            Self::Text { text, .. } if names::is_known_key(text) || names::is_random(text, 24) => "a text".to_owned(),
            Self::Text { text, .. } if text.chars().count() <= 60 => format!("the text {text:?}"),
            Self::Text { .. } => "a text".to_owned(),
            Self::Integer(number) => format!("the number {number}"),
            Self::Float(number) => format!("the number {number}"),
            Self::Bool(value) => format!("#{value}"),
            Self::Null => "#null".to_owned(),
            Self::NotFinite(word) => (*word).to_owned(),
        }
    }
}

/// An argument (without `key`) or a property.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The property's name.
    pub key: Option<Spanned<String>>,
    /// Its value and the value's place.
    pub value: Spanned<Value>,
    /// A type annotation, which has no meaning here.
    pub annotation: Option<Place>,
    /// From the key to the end of the value.
    pub place: Place,
    /// Whether a decoder asked for it; tests prove that every accepted word is read.
    pub read: Cell<bool>,
}

impl Entry {
    /// The text, if it is one.
    pub fn text(&self) -> Option<&str> {
        match &self.value.value {
            Value::Text { text, .. } => Some(text),
            _ => None,
        }
    }

    /// The text with its place.
    pub fn spanned(&self) -> Option<Spanned<String>> {
        self.text().map(|text| Spanned::new(text.to_owned(), self.value.place.clone()))
    }

    /// The value's place.
    pub fn at(&self) -> &Place {
        &self.value.place
    }
}

/// A node with its entries and children.
#[derive(Debug, Clone)]
pub struct Node {
    /// Its name.
    pub name: Spanned<String>,
    /// Arguments and properties in the order written.
    pub entries: Vec<Entry>,
    /// The block, if there is one.
    pub children: Option<Vec<Node>>,
    /// A type annotation, which has no meaning here.
    pub annotation: Option<Place>,
    /// From its name to the end of its block.
    pub extent: Place,
    /// Whether a decoder asked for it.
    pub read: Cell<bool>,
}

impl Node {
    /// Its word.
    pub fn word(&self) -> &str {
        &self.name.value
    }

    /// Where its name stands.
    pub fn place(&self) -> &Place {
        &self.name.place
    }

    /// Every argument.
    pub fn args(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.key.is_none()).inspect(|entry| entry.read.set(true))
    }

    /// One argument; how many there may be was checked against the table.
    pub fn arg(&self, index: usize) -> Option<&Entry> {
        let entry = self.entries.iter().filter(|entry| entry.key.is_none()).nth(index)?;
        entry.read.set(true);
        Some(entry)
    }

    /// A property; that it is there once was checked against the table.
    pub fn prop(&self, name: &str) -> Option<&Entry> {
        let entry = self.entries.iter().find(|entry| entry.key.as_ref().is_some_and(|key| key.value == name))?;
        entry.read.set(true);
        Some(entry)
    }

    /// The child of this name; that it is there once was checked against the table.
    pub fn child(&self, name: &str) -> Option<&Node> {
        self.all(name).next()
    }

    /// All children of this name.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &Node> {
        let found = self.children.iter().flatten().filter(move |child| child.name.value == name);
        found.inspect(|child| child.read.set(true))
    }
}
