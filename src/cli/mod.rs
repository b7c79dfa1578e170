//! The command line: one file per command, a printer, exit codes, and the hints that errors carry.
//!
//! In: arguments, environment, terminal. Out: text, JSON and an exit code. Imports every room; builds the
//! edges and hands them to the rooms that know only ports.
#![expect(clippy::disallowed_methods, reason = "the command line reads arguments, environment and the files they name")]

mod args;
mod commands;
mod context;
mod exit;
mod failure;
mod fleet;
mod main;
mod printer;
mod progress;
mod prompt;
mod signals;
mod suppose;
mod user;
mod util_linux;

pub use exit::ExitCode;
pub use main::run;
