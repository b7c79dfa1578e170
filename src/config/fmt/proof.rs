//! The proof: the formatted text says what the text said.

use super::tokens::{Kind, Token, cut};
use crate::config::syntax::chars::is_space;
use crate::config::syntax::{self, Node};

/// Holds the formatted text against the nodes and tokens of the one it was made from.
///
/// # Errors
///
/// What differs.
pub(super) fn holds(file: &str, before: &[Node], tokens: &[Token<'_>], after: &str) -> Result<(), &'static str> {
    let (nodes, found) = syntax::parse(file, after.as_bytes());
    if !found.is_empty() && after.len() as u64 <= syntax::MAX_FILE_BYTES {
        return Err("the formatted text cannot be read");
    }
    if !found.is_empty() {
        return Err("the formatted text is larger than a config file may be");
    }
    if !same_nodes(before, &nodes) {
        return Err("the formatted text has other nodes");
    }
    let kept = cut(after.strip_prefix('\u{feff}').unwrap_or(after));
    if !tokens.iter().filter(|t| t.matters()).map(written).eq(kept.iter().filter(|t| t.matters()).map(written)) {
        return Err("a word or comment was written otherwise");
    }
    Ok(())
}

/// What must not change: everything but the blanks behind a line comment.
fn written<'t>(token: &Token<'t>) -> (Kind, &'t str) {
    let text = match token.kind {
        Kind::LineComment => token.text.trim_end_matches(is_space),
        _ => token.text,
    };
    (token.kind, text)
}

/// Whether two lists of nodes say the same, wherever they stand.
fn same_nodes(before: &[Node], after: &[Node]) -> bool {
    before.len() == after.len() && before.iter().zip(after).all(|(before, after)| same_node(before, after))
}

fn same_node(before: &Node, after: &Node) -> bool {
    let key = |entry: &syntax::Entry| entry.key.as_ref().map(|key| key.value.clone());
    let same_children = match (&before.children, &after.children) {
        (Some(before), Some(after)) => same_nodes(before, after),
        (None, None) => true,
        _ => false,
    };
    before.name.value == after.name.value
        && before.annotation.is_some() == after.annotation.is_some()
        && before.entries.len() == after.entries.len()
        && before.entries.iter().zip(&after.entries).all(|(before, after)| {
            key(before) == key(after)
                && before.value.value == after.value.value
                && before.annotation.is_some() == after.annotation.is_some()
        })
        && same_children
}
