//! What found no place, as findings at the models' declarations: for formats that show lines.

use crate::base::{Diagnostic, Severity};
use crate::config::Desired;
use crate::placement::Unplaced;
use crate::plan::NOT_PLACED;
use crate::report::words::count;

/// One finding per model: an error where its minimum is not reached, else a warning.
pub fn unfit(unplaced: &[Unplaced], desired: &Desired) -> Vec<Diagnostic> {
    unplaced.iter().map(|missing| finding(missing, desired)).collect()
}

fn finding(missing: &Unplaced, desired: &Desired) -> Diagnostic {
    let replicas = count(missing.replicas as usize, "replica");
    let mut text = match crate::report::egress::is_way_out(missing) {
        true => format!("model `{}` has no egress node for the way to its provider", missing.model),
        false => format!("model `{}` does not fit: {replicas} without a place", missing.model),
    };
    for reason in &missing.reasons {
        text.push_str(&format!("\n{}: {}", reason.at(), reason.text));
    }
    let severity = if missing.required { Severity::Error } else { Severity::Warning };
    let mut found = match desired.model_place(&missing.model) {
        Some(place) => Diagnostic { severity, ..Diagnostic::error(NOT_PLACED, place, text) },
        None => Diagnostic::general(NOT_PLACED, severity, text),
    };
    if !missing.nearest.is_empty() {
        found = found.hint(format!("nearest change: {}", missing.nearest));
    }
    found
}
