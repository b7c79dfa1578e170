//! `flock destroy`

use clap::Args;

use crate::cli::context::{Context, shell_words};
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::cli::prompt;
use crate::plan::{self, DestroyInput, Limits, Moment};
use crate::ports::Clock as _;
use crate::report::{self, PlanView};

use super::acting;
use super::carry_out::{CarryOut, carry_out};

/// Stop everything flock started for this cluster, and only that.
///
/// Weights stay on the nodes. Protected models are not stopped.
#[derive(Debug, Args)]
pub struct DestroyArgs {
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Leave these nodes alone, and forget them: names, globs, @label=value, comma-separated
    #[arg(long, value_name = "SEL")]
    exclude: Option<String>,
}

/// Runs the command.
pub async fn run(context: &Context, args: &DestroyArgs) -> Result<ExitCode, Failure> {
    let config = context.config_as_far_as_it_goes()?;
    let facts = context.ask_nodes(&config.desired, None).await;
    let limits = Limits { on: None, exclude: context.selection(args.exclude.as_deref())? };
    context.check_limits(&limits, &config.desired, Some(&facts))?;
    let plan = plan::destroy_plan(&DestroyInput {
        desired: &config.desired,
        config_digest: config.digest.to_string(),
        commit: config.standing.commit.clone(),
        dirty: config.standing.dirty,
        inventory: &facts.inventory,
        observed: &facts.specs,
        limits: limits.clone(),
        moment: Moment { unix_ms: context.clock.unix_ms(), live: true },
    });
    let view = PlanView { inventory: Some(&facts.inventory), applying: true, ..PlanView::default() };
    acting::show(context, &plan, &view, args.yes)?;
    let unreachable = context.report_unreachable(&config.desired, &facts, &limits);
    let refused = acting::refused(&plan::consent(&plan))?;
    if !plan.steps.is_empty() && !args.yes {
        let question = format!(
            "\nStop {} of cluster `{}`?",
            report::count(plan.steps.len(), "instance"),
            config.desired.cluster.name.value
        );
        prompt::confirm(&question, prompt::YES)?;
    }
    let carried = carry_out(
        context,
        CarryOut {
            config: &config,
            facts: &facts,
            plan: &plan,
            parallel: 10,
            max_fail: None,
            // What is protected or unreachable keeps its agents.
            destroy: refused == ExitCode::Success && unreachable == ExitCode::Success,
            again: shell_words(&context.words("destroy")),
            limits: &limits,
            action: "destroy",
        },
    )
    .await?;
    Ok(carried.or(refused).or(unreachable))
}
