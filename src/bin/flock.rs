//! The `flock` command.

fn main() -> std::process::ExitCode {
    flock::cli::run(std::env::args_os().collect()).into()
}
