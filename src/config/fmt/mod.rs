//! The formatter: one way to write a KDL file, with nothing lost.
//!
//! In: the bytes of a file. Out: its formatted text, or why it cannot be formatted. May import: base, and this
//! room's syntax. Pure.
//!
//! `kdl`'s own `autoformat` drops end-of-line comments and rewrites numbers and strings, and `kdl` must not be given
//! a whole file at all (see [`syntax`](super::syntax)). So the text is cut into tokens that add up to it
//! ([`tokens`]), lines are built from them ([`lines`]) and printed with new blanks between ([`print`]): words, numbers,
//! strings and comments are copied, never rewritten. What comes out is read again and held against what went in
//! ([`proof`]) before anybody sees it.

mod format;
mod lines;
mod print;
mod proof;
#[cfg(test)]
mod tests;
mod tokens;

pub use format::{Unformatted, format_kdl};
