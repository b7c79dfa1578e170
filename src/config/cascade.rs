//! Takes back findings that only follow from others: what is misspelt is not also missing.

use super::ids;
use super::syntax::Node;
use crate::base::{Diagnostic, Place, Severity, sort_diagnostics};

/// Drops findings about something missing in a node whose own words hold the reason.
pub(super) fn prune<'n>(files: impl Fn(&str) -> Option<&'n [Node]>, found: &mut Vec<Diagnostic>) {
    let mut causes: Vec<Diagnostic> =
        found.iter().filter(|one| one.severity == Severity::Error && !is_missing(one)).cloned().collect();
    if causes.is_empty() {
        return;
    }
    sort_diagnostics(&mut causes);
    found.retain(|one| {
        if !is_missing(one) {
            return true;
        }
        let Some(nodes) = one.file.as_deref().and_then(&files) else { return true };
        let Some(node) = innermost(nodes, one) else { return true };
        let begin = (Some(&*node.extent.file), Some(node.extent.line), Some(node.extent.column));
        let first = causes.partition_point(|cause| (cause.file.as_deref(), cause.line, cause.column) < begin);
        !causes[first..].iter().take_while(|cause| contains(&node.extent, cause)).any(|cause| explains(cause, node))
    });
}

fn is_missing(one: &Diagnostic) -> bool {
    matches!(one.id, ids::MISSING_ARGUMENT | ids::MISSING_PROPERTY | ids::NO_STEPS)
}

fn contains(place: &Place, one: &Diagnostic) -> bool {
    let (Some(line), Some(column)) = (one.line, one.column) else { return false };
    one.file.as_deref() == Some(&*place.file)
        && (place.line, place.column) <= (line, column)
        && (line, column) < (place.end_line, place.end_column)
}

fn innermost<'n>(nodes: &'n [Node], one: &Diagnostic) -> Option<&'n Node> {
    let mut found = around(nodes, one)?;
    while let Some(child) = found.children.as_deref().and_then(|children| around(children, one)) {
        found = child;
    }
    Some(found)
}

/// The node of a block whose extent holds a finding; nodes lie in the order of the file.
fn around<'n>(nodes: &'n [Node], one: &Diagnostic) -> Option<&'n Node> {
    let at = (one.line?, one.column?);
    let index = nodes.partition_point(|node| (node.extent.line, node.extent.column) <= at);
    nodes.get(index.checked_sub(1)?).filter(|node| contains(&node.extent, one))
}

/// Parts of the hints that say which known word was meant.
const RECOGNISED: &[&str] = &["did you mean", "is a property", "=…", "KDL has no `:`", "an invisible character"];

fn explains(cause: &Diagnostic, node: &Node) -> bool {
    // After a syntax error nobody knows what else was there.
    if cause.id < ids::UNKNOWN_NODE {
        return true;
    }
    let child = node.children.as_deref().and_then(|children| around(children, cause));
    let recognised = cause.hint.as_deref().is_some_and(|hint| RECOGNISED.iter().any(|words| hint.contains(words)));
    match child {
        None => cause.id < ids::DUPLICATE_NAME && (cause.id != ids::UNKNOWN_PROPERTY || recognised),
        Some(child) => {
            cause.id == ids::UNKNOWN_NODE
                && recognised
                && cause.line == Some(child.place().line)
                && cause.column == Some(child.place().column)
        }
    }
}
