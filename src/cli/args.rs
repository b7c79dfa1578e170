//! The command line's shape. Doc comments are the help text.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::report::Amount;

use super::commands;

/// Says in git which models run on which GPUs, and makes it so.
///
/// A config repository of KDL files says what should run. flock finds out what the machines have, solves the
/// placement, shows the difference with a reason for every line, and carries it out.
#[derive(Debug, Parser)]
#[command(name = "flock", version, disable_help_subcommand = true, propagate_version = true, max_term_width = 100)]
pub struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Debug, Args)]
pub struct Global {
    /// The config repository
    #[arg(short = 'C', value_name = "DIR", default_value = ".", global = true, hide_default_value = true)]
    pub directory: PathBuf,
    /// Print no progress and no notes
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Print what flock does underneath; twice for more
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub verbose: u8,
    /// Folder with node agents for other architectures (flock-agent-ARCH-LIBC)
    #[arg(long, value_name = "DIR", global = true)]
    pub agent_dir: Option<PathBuf>,
}

/// Text for people or JSON for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Format {
    /// For people
    #[default]
    Text,
    /// For programs; the shape is documented and stable
    Json,
}

/// `--format`.
#[derive(Debug, Args)]
pub struct FormatArg {
    /// Text for people or JSON for programs
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    pub format: Format,
}

/// How much of a plan to show.
#[derive(Debug, Args)]
pub struct AmountArg {
    /// Show names only
    #[arg(long, conflicts_with = "full")]
    summary: bool,
    /// Show everything, argument vectors included
    #[arg(long)]
    full: bool,
}

impl AmountArg {
    /// As the report knows it.
    pub fn amount(&self) -> Amount {
        match (self.summary, self.full) {
            (true, _) => Amount::Summary,
            (_, true) => Amount::Full,
            _ => Amount::Changes,
        }
    }
}

/// Limits steps to some nodes.
#[derive(Debug, Args)]
pub struct Selectors {
    /// Limit steps to these nodes: names, globs, @label=value, comma-separated
    #[arg(long, value_name = "SEL")]
    pub on: Option<String>,
    /// Leave these nodes alone
    #[arg(long, value_name = "SEL")]
    pub exclude: Option<String>,
}

/// What to do. The help of a command is the documentation of its arguments' type.
#[derive(Debug, Subcommand)]
pub enum Command {
    Init(commands::init::InitArgs),
    Validate(commands::validate::ValidateArgs),
    Fmt(commands::fmt::FmtArgs),
    Schema(commands::schema::SchemaArgs),
    Discover(commands::discover::DiscoverArgs),
    Doctor(commands::doctor::DoctorArgs),
    Size(commands::size::SizeArgs),
    Lock(commands::lock::LockArgs),
    Plan(commands::plan::PlanArgs),
    Apply(commands::apply::ApplyArgs),
    Drift(commands::drift::DriftArgs),
    Status(commands::status::StatusArgs),
    Explain(commands::explain::ExplainArgs),
    Logs(commands::logs::LogsArgs),
    Show(commands::show::ShowArgs),
    Ask(commands::ask::AskArgs),
    Destroy(commands::destroy::DestroyArgs),
    Approve(commands::approve::ApproveArgs),
    /// Protect a model: it is not stopped, moved or destroyed
    Protect(commands::protect::ProtectArgs),
    /// Take a model's protection away
    Unprotect(commands::protect::ProtectArgs),
    Cordon(commands::cordon::CordonArgs),
    Uncordon(commands::cordon::UncordonArgs),
    Drain(commands::drain::DrainArgs),
    Lease(commands::lease::LeaseArgs),
    History(commands::history::HistoryArgs),
    Forward(commands::forward::ForwardArgs),
    Gc(commands::gc::GcArgs),
    Graph(commands::graph::GraphArgs),
    Completions(commands::completions::CompletionsArgs),
    Help(commands::help::HelpArgs),
}
