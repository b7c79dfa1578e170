//! From arguments to an exit code.

use clap::Parser;
use clap::error::ErrorKind;

use super::args::{Cli, Command};
use super::commands;
use super::context::Context;
use super::exit::ExitCode;
use super::failure::Failure;
use super::printer::Printer;
use super::signals::Signals;
use super::util_linux;

/// Runs flock with these arguments (the program's name first).
pub fn run(arguments: Vec<std::ffi::OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => return usage(&error, &arguments),
    };
    start_logging(cli.global.verbose);
    let printer = Printer::new(cli.global.quiet);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            printer.error(&format!("cannot start: {error}"), None);
            return ExitCode::Failure;
        }
    };
    let result = runtime.block_on(async {
        let context = Context::new(cli.global, printer, Signals::listen(printer));
        dispatch(&context, cli.command).await
    });
    // Hashing or reading that nobody waits for any more must not hold the process.
    runtime.shutdown_background();
    match result {
        Ok(code) => code,
        Err(Failure { code, message, hint }) => {
            if !message.is_empty() {
                printer.error(&message, hint.as_deref());
            }
            code
        }
    }
}

async fn dispatch(context: &Context, command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Init(args) => commands::init::run(context, &args),
        Command::Validate(args) => commands::validate::run(context, &args).await,
        Command::Fmt(args) => commands::fmt::run(context, &args),
        Command::Schema(args) => commands::schema::run(context, &args),
        Command::Doctor(args) => commands::doctor::run(context, &args).await,
        Command::Discover(args) => commands::discover::run(context, &args).await,
        Command::Size(args) => commands::size::run(context, &args).await,
        Command::Lock(args) => commands::lock::run(context, &args).await,
        Command::Plan(args) => commands::plan::run(context, &args).await,
        Command::Apply(args) => commands::apply::run(context, &args).await,
        Command::Drift(args) => commands::drift::run(context, &args).await,
        Command::Status(args) => commands::status::run(context, &args).await,
        Command::Explain(args) => commands::explain::run(context, &args).await,
        Command::Logs(args) => commands::logs::run(context, &args).await,
        Command::Show(args) => commands::show::run(context, &args),
        Command::Ask(args) => commands::ask::run(context, &args).await,
        Command::Destroy(args) => commands::destroy::run(context, &args).await,
        Command::Approve(args) => commands::approve::run(context, &args).await,
        Command::Protect(args) => commands::protect::protect(context, &args).await,
        Command::Unprotect(args) => commands::protect::unprotect(context, &args).await,
        Command::Cordon(args) => commands::cordon::cordon(context, &args).await,
        Command::Uncordon(args) => commands::cordon::uncordon(context, &args).await,
        Command::Drain(args) => commands::drain::run(context, &args).await,
        Command::Lease(args) => commands::lease::run(context, &args).await,
        Command::History(args) => commands::history::run(context, &args).await,
        Command::Forward(args) => commands::forward::run(context, &args).await,
        Command::Gc(args) => commands::gc::run(context, &args).await,
        Command::Graph(args) => commands::graph::run(context, &args).await,
        Command::Completions(args) => commands::completions::run(context, &args),
        Command::Help(args) => commands::help::run(context, &args),
    }
}

/// clap's own exit code for a wrong command line is 2, which means "differences" here.
fn usage(error: &clap::Error, arguments: &[std::ffi::OsString]) -> ExitCode {
    let asked_for_help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    let printed = error.print().and_then(|()| std::io::Write::flush(&mut std::io::stdout()));
    if asked_for_help {
        return match printed {
            Ok(()) => ExitCode::Success,
            Err(error) => {
                // A reader that went away is no failure; a full disk is one.
                let failure = Failure::from(error);
                if !failure.message.is_empty() {
                    Printer::new(false).error(&failure.message, None);
                }
                failure.code
            }
        };
    }
    let words: Vec<String> = arguments.iter().skip(1).map(|argument| argument.to_string_lossy().into_owned()).collect();
    if util_linux::looks_like_file_lock(&words) {
        Printer::new(false).note(&format!("\nhint: {}", util_linux::HINT));
    }
    ExitCode::Usage
}

fn start_logging(verbose: u8) {
    let level = match verbose {
        0 => "error",
        1 => "flock=debug,warn",
        _ => "flock=trace,russh=debug,info",
    };
    let filter = tracing_subscriber::EnvFilter::try_from_env("FLOCK_LOG").unwrap_or_else(|_| level.into());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .without_time()
        .init();
}
