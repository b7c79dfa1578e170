//! `flock ask`

use clap::Args;

use crate::chat::Message;
use crate::cli::context::Context;
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::edge::EngineCompletions;
use crate::ports::{Completions, Question};

use super::instances::{Access, Found, access, find_instances, first_ready};

/// Ask a model one question.
///
/// The answer is printed as it comes. The request goes through the connection to the node (SSH, for a node reached
/// over SSH) to the engine on the node's loopback.
#[derive(Debug, Args)]
pub struct AskArgs {
    /// The model
    name: String,
    /// The question
    question: String,
    /// Longest answer, in tokens
    #[arg(long, default_value_t = 256, value_name = "N")]
    max_tokens: u64,
    /// Only this replica
    #[arg(long)]
    replica: Option<u32>,
}

/// Runs the command.
pub async fn run(context: &Context, args: &AskArgs) -> Result<ExitCode, Failure> {
    let config = context.config_as_far_as_it_goes()?;
    let found = find_instances(context, &config, &args.name, args.replica).await?;
    let Found { node, facts } = first_ready(&args.name, &found)?;
    let Access { key, port, served_name } = access(node.as_ref(), &facts.instance).await?;
    let messages = vec![Message::user(args.question.clone())];
    let question = Question { port, key, served_name, messages, max_tokens: Some(args.max_tokens) };
    let printer = context.printer;
    let print = |delta: &str| {
        // A reader that went away shows at the end, when the whole answer is written.
        let _ = printer.foreign(delta);
    };
    let answer = EngineCompletions::default().ask(node.as_ref(), &question, &print).await.map_err(|error| {
        Failure::new(ExitCode::Failure, format!("`{}` on {}: {error}", args.name, node.name()))
            .hint(format!("`flock logs {}` shows the engine's side", args.name))
    })?;
    context.printer.raw(if answer.text.ends_with('\n') { "" } else { "\n" })?;
    context.printer.note(&format!(
        "({} on {}, {} tokens in {:.1} s)",
        args.name,
        node.name(),
        answer.completion_tokens.map_or_else(|| "unknown".to_owned(), |tokens| tokens.to_string()),
        answer.elapsed_ms as f64 / 1000.0
    ));
    Ok(ExitCode::Success)
}
