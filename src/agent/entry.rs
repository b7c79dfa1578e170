//! The command line of `flock-agent`.

use std::io::Write;
use std::process::ExitCode;

use super::error::AgentError;
use super::layout::Layout;
use super::patience::{AtWork, PATIENCE, Waiting, Watched};
use super::version::version;
use super::{host, keeper, logs, serve};

const USAGE: &str = "usage: flock-agent serve|keep --cluster CLUSTER --node NODE | flock-agent --version";

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
enum Command {
    Serve { cluster: String, node: String },
    Keep { cluster: String, node: String },
    Version,
}

/// Runs the agent with the arguments after the program's name.
pub fn main(arguments: impl Iterator<Item = String>) -> ExitCode {
    let arguments: Vec<String> = arguments.collect();
    let Some(command) = parse(&arguments) else {
        complain(USAGE);
        return ExitCode::from(64);
    };
    let done = match command {
        Command::Version => {
            let printed = writeln!(std::io::stdout(), "flock-agent {}", version());
            printed.map_err(|source| AgentError::Stream { action: "printing the version", source })
        }
        Command::Serve { cluster, node } => layout(&cluster, &node).and_then(|layout| {
            let waiting = Waiting::default();
            waiting.watch(PATIENCE, || std::process::exit(1));
            let mut input = std::io::BufReader::new(Watched(std::io::stdin().lock(), waiting.clone()));
            let served = serve::serve(&layout, &mut input, &mut Watched(std::io::stdout().lock(), waiting));
            AtWork::finish();
            served
        }),
        Command::Keep { cluster, node } => layout(&cluster, &node).and_then(|layout| {
            keeper::keep(&layout).inspect_err(|error| logs::note(&layout.keeper_log(), &error.chain()))
        }),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("flock-agent: {}", error.chain()));
            ExitCode::FAILURE
        }
    }
}

fn layout(cluster: &str, node: &str) -> Result<Layout, AgentError> {
    let home = host::home().ok_or_else(|| AgentError::Other("this user has no home directory".into()))?;
    // Resolved, because it is part of the mark of every process: sessions may name one home differently.
    Layout::new(&home.canonicalize().unwrap_or(home), cluster, node)
}

fn parse(arguments: &[String]) -> Option<Command> {
    let (command, mut rest) = arguments.split_first()?;
    if command == "--version" {
        return rest.is_empty().then_some(Command::Version);
    }
    let (mut cluster, mut node) = (None, None);
    while let [name, value, more @ ..] = rest {
        match name.as_str() {
            "--cluster" => cluster = Some(value.clone()),
            "--node" => node = Some(value.clone()),
            _ => return None,
        }
        rest = more;
    }
    let (cluster, node) = (cluster?, node?);
    match command.as_str() {
        _ if !rest.is_empty() => None,
        "serve" => Some(Command::Serve { cluster, node }),
        "keep" => Some(Command::Keep { cluster, node }),
        _ => None,
    }
}

/// To standard error, whoever reads it.
fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_names_are_needed() {
        let parse = |text: &str| parse(&text.split(' ').map(str::to_owned).collect::<Vec<_>>());
        let (cluster, node) = ("lab".to_owned(), "ada-1".to_owned());
        assert_eq!(parse("serve --node ada-1 --cluster lab"), Some(Command::Serve { cluster, node }));
        assert_eq!(parse("--version"), Some(Command::Version));
        for bad in
            ["serve", "serve --cluster lab", "serve --cluster lab --node", "stop --cluster a --node b", "--version x"]
        {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
