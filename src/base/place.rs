//! Where in a config repository something was written.

use std::sync::Arc;

/// A range in a file. Lines and columns are 1-based, columns count Unicode scalars.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Relative to the config repository, with `/`.
    pub file: Arc<str>,
    /// First line.
    pub line: usize,
    /// First column.
    pub column: usize,
    /// Last line.
    pub end_line: usize,
    /// Column just past the end.
    pub end_column: usize,
}

impl Place {
    /// The start of a file, for findings about the file as a whole.
    pub fn start_of(file: &str) -> Self {
        Self { file: Arc::from(file), line: 1, column: 1, end_line: 1, end_column: 1 }
    }

    /// `file:line`, as editors and people write it.
    pub fn short(&self) -> String {
        format!("{}:{}", self.file, self.line)
    }
}

/// A value together with its place. Comparisons look at the value only, so that moving a line
/// in a file changes nothing.
#[derive(Debug, Clone)]
pub struct Spanned<T> {
    /// The value.
    pub value: T,
    /// Where it was written.
    pub place: Place,
}

impl<T> Spanned<T> {
    /// A value at a place.
    pub fn new(value: T, place: Place) -> Self {
        Self { value, place }
    }

    /// The same place with another value.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Spanned<U> {
        Spanned { value: f(self.value), place: self.place }
    }
}

impl<T: PartialEq> PartialEq for Spanned<T> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<T: Eq> Eq for Spanned<T> {}

impl<T: serde::Serialize> serde::Serialize for Spanned<T> {
    /// Serialises the value alone: digests of the desired state must not see line numbers.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(serializer)
    }
}
