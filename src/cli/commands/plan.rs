//! `flock plan`

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::cli::args::{AmountArg, Selectors};
use crate::cli::context::{Config, Context, Facts};
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::plan::{self, Limits, Plan};
use crate::report::{self, Amount, Difference, PlanView, State, Style, SupposedPlan};

/// Show what would change and why.
///
/// Changes nothing; the agent is brought to nodes that lack it. Plans the working tree, not the last commit (the
/// header says where the two differ), or with --against the config of any commit. With --what-if nothing is planned for
/// real: it shows the difference that other hardware or one more model would make. The file is KDL: `add node "x"
/// like="ada-1"` (a range such as "x-[1-4]"; `price="2.00/h"`), `drop node "a100"`, `add model "judge" { … }`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// Plan from this inventory (`flock discover --out FILE`), without any network
    #[arg(long, value_name = "FILE")]
    inventory: Option<PathBuf>,
    /// Plan the config of this commit (any name git has for it) instead of the working tree's
    #[arg(long, value_name = "REV")]
    against: Option<String>,
    /// Show what would be otherwise with the nodes and models that this file adds or drops (repeatable)
    #[arg(long, value_name = "FILE", conflicts_with = "out")]
    what_if: Vec<PathBuf>,
    /// Save the plan for `flock apply FILE`
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    selectors: Selectors,
    /// Exit 2 when there is something to do
    #[arg(long)]
    detailed_exitcode: bool,
    #[command(flatten)]
    amount: AmountArg,
    /// Text for people, JSON for programs, markdown for a comment on a pull request
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format: PlanFormat,
}

/// How a plan is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum PlanFormat {
    /// For people
    #[default]
    Text,
    /// For programs; the shape is documented and stable
    Json,
    /// One comment, cut where a host would refuse it
    Markdown,
}

impl PlanFormat {
    /// A plan as it is printed.
    pub fn render(self, plan: &Plan, view: &PlanView<'_>, style: &Style) -> String {
        match self {
            Self::Text => report::plan_text(plan, view, style),
            Self::Json => report::json(plan),
            Self::Markdown => report::plan_markdown(plan, view),
        }
    }
}

/// Runs the command.
pub async fn run(context: &Context, args: &PlanArgs) -> Result<ExitCode, Failure> {
    let config = match &args.against {
        Some(revision) => context.config_of(revision)?,
        None => context.config()?,
    };
    let limits = context.limits(&args.selectors)?;
    let facts = match &args.inventory {
        Some(path) => context.read_inventory(path)?,
        None => context.ask_to_plan(&config.desired).await,
    };
    context.check_limits(&limits, &config.desired, Some(&facts))?;
    if !args.what_if.is_empty() {
        return supposing(context, args, &config, &facts, &limits).await;
    }
    let planned = context.plan(&config, &facts, &limits).await?;
    let mut plan = planned.plan;
    if let Some(out) = &args.out {
        plan.guards = plan::guards(&plan, &facts.inventory);
        plan.seal = Some(plan::seal(&plan).to_string());
        std::fs::write(out, report::json(&plan))
            .map_err(|error| Failure::new(ExitCode::Failure, format!("cannot write {}: {error}", out.display())))?;
    }
    let missing = plan::unreachable_nodes(&config.desired, &facts.inventory, &limits);
    let saved_to = args.out.as_ref().map(|path| path.to_string_lossy());
    let view = PlanView {
        inventory: Some(&facts.inventory),
        desired: Some(&config.desired),
        amount: args.amount.amount(),
        saved_to: saved_to.as_deref(),
        applying: false,
        flock: Some(&context.called()),
        missing: Some(&missing),
        against: args.against.as_deref(),
    };
    context.printer.data(&args.format.render(&plan, &view, &context.style()))?;
    let unreachable = context.report_unreachable(&config.desired, &facts, &limits);
    let differs =
        if args.detailed_exitcode && !plan.steps.is_empty() { ExitCode::Differences } else { ExitCode::Success };
    Ok(unreachable.or(infeasible(&plan)).or(differs))
}

/// The plan without and with what the files say, and the difference. Nothing of it can be applied.
async fn supposing(
    context: &Context,
    args: &PlanArgs,
    config: &Config,
    facts: &Facts,
    limits: &Limits,
) -> Result<ExitCode, Failure> {
    let files = context.read_what_if(args.against.as_deref(), &args.what_if)?;
    let (supposed, supposed_facts, notes) = context.suppose(config, facts, &files)?;
    let before = context.plan(config, facts, limits).await?;
    let after = context.plan(&supposed, &supposed_facts, limits).await?;
    let without = State { desired: &config.desired, inventory: &facts.inventory, plan: &before.plan };
    let with = State { desired: &supposed.desired, inventory: &supposed_facts.inventory, plan: &after.plan };
    let difference = Difference::of(&files.files, without, with, notes);
    let style = context.style();
    let amount = args.amount.amount();
    let text = match args.format {
        PlanFormat::Json => report::json(&SupposedPlan { plan: &after.plan, what_if: &difference }),
        PlanFormat::Markdown => report::what_if_markdown(&difference, with),
        PlanFormat::Text => {
            let mut text = report::what_if_text(&difference, with, amount == Amount::Summary, &style);
            if amount == Amount::Full {
                let view = PlanView {
                    inventory: Some(&supposed_facts.inventory),
                    desired: Some(&supposed.desired),
                    amount,
                    applying: true,
                    ..PlanView::default()
                };
                text.push('\n');
                text.push_str(&report::plan_text(&after.plan, &view, &style));
            }
            text
        }
    };
    context.printer.data(&text)?;
    let unreachable = context.report_unreachable(&supposed.desired, &supposed_facts, limits);
    let differs = args.detailed_exitcode && !difference.models.is_empty();
    let differs = if differs { ExitCode::Differences } else { ExitCode::Success };
    Ok(unreachable.or(infeasible(&after.plan)).or(differs))
}

/// Exit 4 where a minimum is not reached; missing desired replicas alone are none.
pub(crate) fn infeasible(plan: &Plan) -> ExitCode {
    if plan.unplaced.iter().any(|unplaced| unplaced.required) { ExitCode::Infeasible } else { ExitCode::Success }
}
