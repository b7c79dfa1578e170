//! What the commands that carry out a plan do before it: show it, and ask.

use crate::cli::context::Context;
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::cli::prompt;
use crate::plan::{Consent, Plan, Strength};
use crate::report::{self, PlanView};

/// Prints what is about to be done; where nobody is asked and nobody wants to read, nothing.
pub fn show(context: &Context, plan: &Plan, view: &PlanView<'_>, yes: bool) -> Result<(), Failure> {
    if context.printer.is_quiet() && yes {
        return Ok(());
    }
    context.show_before_acting(&report::plan_text(plan, view, &context.style()))
}

/// What no answer confirms: a failure where nothing of the plan may be applied, else the exit code of what was left out.
pub fn refused(wanted: &[Consent]) -> Result<ExitCode, Failure> {
    if let Some(whole) = wanted.iter().find(|consent| consent.strength == Strength::RefusedWhole) {
        return Err(Failure::new(ExitCode::Refused, format!("nothing was changed: {}", whole.text)));
    }
    let some = wanted.iter().any(|consent| consent.strength == Strength::Refused);
    Ok(if some { ExitCode::Refused } else { ExitCode::Success })
}

/// Says what there is to agree to, and asks; `otherwise` is the way without a terminal.
pub fn agree(context: &Context, wanted: &[Consent], question: &str, otherwise: &str) -> Result<(), Failure> {
    context.printer.findings(&format!("\n{}", report::consent_text(wanted, &context.style())));
    prompt::confirm(question, otherwise)
}
