//! Every identifier of every room, and the order in which findings matter.

use crate::base::{Diagnostic, Severity};
use crate::config::{CONFIG_DIAGNOSTICS, DiagnosticId};
use crate::plan::PLAN_DIAGNOSTICS;
use crate::reconcile::SOURCE_DIAGNOSTICS;

/// Every identifier that a finding may have, in order.
pub fn known_diagnostics() -> Vec<DiagnosticId> {
    let mut all = [CONFIG_DIAGNOSTICS, SOURCE_DIAGNOSTICS, PLAN_DIAGNOSTICS].concat();
    all.sort_by_key(|known| known.id);
    all
}

/// Errors before warnings, each in their order.
pub(super) fn by_weight(diagnostics: &[Diagnostic]) -> Vec<&Diagnostic> {
    let (errors, warnings): (Vec<_>, Vec<_>) = diagnostics.iter().partition(|one| one.severity == Severity::Error);
    [errors, warnings].concat()
}

/// A file of the config repository as the code host knows it: below `prefix`.
pub(super) fn hosted(prefix: &str, file: &str) -> String {
    if prefix.is_empty() { file.to_owned() } else { format!("{prefix}/{file}") }
}
