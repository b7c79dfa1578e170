//! The node agent: what flock pushes to a node. Everything is in `flock::agent`.

use std::process::ExitCode;

fn main() -> ExitCode {
    flock::agent::main(std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned()))
}
