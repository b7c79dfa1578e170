//! `flock apply`

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::cli::args::{AmountArg, Selectors};
use crate::cli::context::{Config, Context, Facts, shell_words};
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::cli::prompt;
use crate::plan::{self, Limits, Moment, Plan};
use crate::ports::Clock as _;
use crate::report::{self, PlanView};

use super::acting;
use super::carry_out::{CarryOut, carry_out};
use super::plan::infeasible;
use super::show::read_plan;

/// Make it so: plan, show, ask, converge.
///
/// With a plan file: exactly that plan, without asking, or exit 5.
///
/// Safe to run again at any time: it continues from what is. Ctrl-C once finishes what is in flight and begins
/// nothing more; twice ends at once.
#[derive(Debug, Args)]
pub struct ApplyArgs {
    /// A plan saved by `flock plan --out`
    #[arg(conflicts_with = "on")]
    plan: Option<PathBuf>,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    selectors: Selectors,
    /// Most steps at the same time
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = at_least_one)]
    parallel: usize,
    /// Begin nothing more after this many failures
    #[arg(long, value_name = "N")]
    max_fail: Option<usize>,
    /// How far to go: only bring the weights, so that later changes are fast, or everything
    #[arg(long, value_enum, default_value_t, value_name = "GOAL", conflicts_with = "plan")]
    goal: Goal,
    #[command(flatten)]
    amount: AmountArg,
}

/// How far an apply goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum Goal {
    /// Bring weights to the nodes; start and stop nothing
    Prefetch,
    /// Everything
    #[default]
    All,
}

/// Runs the command.
pub async fn run(context: &Context, args: &ApplyArgs) -> Result<ExitCode, Failure> {
    let config = context.config()?;
    let limits = context.limits(&args.selectors)?;
    let (plan, facts) = match &args.plan {
        Some(path) => saved(context, &config, path).await?,
        None => fresh(context, args, &config, &limits).await?,
    };
    context.check_limits(&limits, &config.desired, Some(&facts))?;
    let unreachable = context.report_unreachable(&config.desired, &facts, &limits);
    let after = unreachable.or(infeasible(&plan));
    let wanted = plan::consent(&plan);
    let refused = acting::refused(&wanted)?;
    if !plan.steps.is_empty() && !args.yes && args.plan.is_none() {
        acting::agree(context, &wanted, "Do you agree?", prompt::YES_OR_PLAN)?;
    }
    let carried = carry_out(
        context,
        CarryOut {
            config: &config,
            facts: &facts,
            plan: &plan,
            parallel: args.parallel,
            max_fail: args.max_fail,
            destroy: false,
            limits: &limits,
            again: again(context, args),
            action: "apply",
        },
    )
    .await?;
    Ok(carried.or(refused).or(after))
}

async fn fresh(
    context: &Context,
    args: &ApplyArgs,
    config: &Config,
    limits: &Limits,
) -> Result<(Plan, Facts), Failure> {
    let facts = context.ask_to_plan(&config.desired).await;
    context.check_limits(limits, &config.desired, Some(&facts))?;
    let mut plan = context.plan(config, &facts, limits).await?.plan;
    if args.goal == Goal::Prefetch {
        plan = plan::only_fetches(&plan);
    }
    let missing = plan::unreachable_nodes(&config.desired, &facts.inventory, limits);
    let view = PlanView {
        inventory: Some(&facts.inventory),
        desired: Some(&config.desired),
        amount: args.amount.amount(),
        saved_to: None,
        applying: true,
        flock: Some(&context.called()),
        missing: Some(&missing),
        against: None,
    };
    acting::show(context, &plan, &view, args.yes)?;
    Ok((plan, facts))
}

/// A saved plan holds for the config and the facts it was made from, and for nothing else.
async fn saved(context: &Context, config: &Config, path: &std::path::Path) -> Result<(Plan, Facts), Failure> {
    let plan = read_plan(path)?;
    let refuse = |moved: Vec<String>| {
        let text = format!("{} cannot be applied:\n  {}", path.display(), moved.join("\n  "));
        Failure::new(ExitCode::Stale, text).hint(format!("make a new one: flock plan --out {}", path.display()))
    };
    if plan.seal.as_deref() != Some(plan::seal(&plan).to_string().as_str()) {
        return Err(refuse(vec!["it is not as `flock plan --out` saved it".to_owned()]));
    }
    let cluster = &config.desired.cluster.name.value;
    if plan.cluster != *cluster {
        return Err(refuse(vec![format!("it is a plan for cluster `{}`, the config is of `{cluster}`", plan.cluster)]));
    }
    let digest = config.digest.to_string();
    if plan.config_digest != digest {
        let (was, is) = (report::short_digest(&plan.config_digest), report::short_digest(&digest));
        let was = format!("{was}, {}", commit(plan.commit.as_deref(), plan.dirty));
        let is = format!("{is}, {}", commit(config.standing.commit.as_deref(), config.standing.dirty));
        return Err(refuse(vec![format!("the config has another meaning since the plan: {was} -> {is}")]));
    }
    if plan.guards.is_empty() && !plan.steps.is_empty() {
        return Err(refuse(vec!["it holds no guards; it was not written by `flock plan --out`".to_owned()]));
    }
    let facts = context.ask_nodes(&config.desired, None).await;
    let moved = plan::stale(&plan, &facts.inventory);
    if !moved.is_empty() {
        return Err(refuse(moved));
    }
    let moment = Moment { unix_ms: context.clock.unix_ms(), live: true };
    let held = plan::held_now(&plan.steps, &config.desired, &facts.inventory.member, moment);
    if held.is_empty() {
        return Ok((plan, facts));
    }
    let text = format!("{} cannot be applied now:\n  {}", path.display(), held.join("\n  "));
    Err(Failure::new(ExitCode::Refused, text)
        .hint("apply it later, or plan again: what may be done now is then planned alone"))
}

fn commit(commit: Option<&str>, dirty: bool) -> String {
    let commit = commit.map_or("no commit".to_owned(), |hex| format!("commit {}", hex.get(..10).unwrap_or(hex)));
    if dirty { format!("{commit} + changes not committed") } else { commit }
}

pub(super) fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "a whole number from 1".to_owned())
}

/// The command that continues what this one could not finish.
fn again(context: &Context, args: &ApplyArgs) -> String {
    let mut words = context.words("apply");
    if args.goal == Goal::Prefetch {
        words.push("--goal=prefetch".to_owned());
    }
    for (flag, value) in [("--on", &args.selectors.on), ("--exclude", &args.selectors.exclude)] {
        if let Some(value) = value {
            words.extend([flag.to_owned(), value.clone()]);
        }
    }
    shell_words(&words)
}
