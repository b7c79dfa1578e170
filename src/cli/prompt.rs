//! Asking a person, who must be there.

use std::io::{self, BufRead, IsTerminal, Write};

use super::exit::ExitCode;
use super::failure::Failure;

/// What to do without a terminal, where the question is about a plan of `flock apply`.
pub const YES_OR_PLAN: &str =
    "give --yes, or save the plan with `flock plan --out plan.json`, review it, and run `flock apply plan.json`";
/// The same where it is about anything else.
pub const YES: &str = "give --yes where this is meant";

/// Asks a yes-or-no question on the terminal; only the word `yes` agrees. `otherwise` is the hint without one.
pub fn confirm(question: &str, otherwise: &str) -> Result<(), Failure> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(Failure::new(ExitCode::Usage, "this needs an answer and there is no terminal").hint(otherwise));
    }
    let mut err = io::stderr().lock();
    write!(err, "{question} Only `yes` is taken as consent: ")?;
    err.flush()?;
    drop(err);
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    if answer.trim() == "yes" {
        Ok(())
    } else {
        Err(Failure::new(ExitCode::Refused, "answered no; nothing was changed"))
    }
}
