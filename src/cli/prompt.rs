//! Asking a person, who must be there.

use std::io::{self, BufRead, IsTerminal, Write};

use super::exit::ExitCode;
use super::failure::Failure;

/// Asks a yes-or-no question on the terminal; only the word `yes` agrees.
pub fn confirm(question: &str) -> Result<(), Failure> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(Failure::new(ExitCode::Usage, "this needs an answer and there is no terminal")
            .hint("give --yes, or save the plan with `flock plan --out plan.json`, review it, and run `flock apply plan.json`"));
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
