//! `flock drain`

use clap::Args;

use crate::cli::args::AmountArg;
use crate::cli::context::{Context, shell_words};
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::cli::prompt;
use crate::plan::{self, Limits};
use crate::report::PlanView;

use super::acting;
use super::carry_out::{CarryOut, carry_out};
use super::cordon::hold;
use super::member::write;
use super::plan::infeasible;

/// Take nodes out of new placements and move or stop what runs there.
///
/// What fits nowhere else is stopped. Shown and asked like an apply. A copy starts elsewhere before the old one stops
/// wherever the memory is there. Protected models stay (exit 7). Nothing else of the config is applied; the nodes
/// stay cordoned until `flock uncordon`.
#[derive(Debug, Args)]
pub struct DrainArgs {
    /// Nodes: names, globs, @label=value, comma-separated
    #[arg(value_name = "SEL")]
    selector: String,
    /// Why, for those who come after
    #[arg(long, default_value = "drained", hide_default_value = true)]
    reason: String,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Most steps at the same time
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = super::apply::at_least_one)]
    parallel: usize,
    #[command(flatten)]
    amount: AmountArg,
}

/// Runs the command.
pub async fn run(context: &Context, args: &DrainArgs) -> Result<ExitCode, Failure> {
    let config = context.config()?;
    let limits = Limits::default();
    let mut facts = context.ask_to_plan(&config.desired).await;
    let nodes = context.select(&args.selector, &config.desired, &facts)?;
    let unreachable = context.report_unreachable(&config.desired, &facts, &limits);
    if let Some(away) = nodes.iter().find(|name| !facts.inventory.node(name).is_some_and(|node| node.reachable)) {
        return Err(Failure::new(ExitCode::Incomplete, format!("{away} cannot be drained: it does not answer"))
            .hint("`flock cordon` keeps new placements off it meanwhile"));
    }
    let held_before = facts.inventory.member.holds.clone();
    facts.inventory.member = hold(context, &facts.inventory.member, &nodes, &args.reason);
    let planned = context.plan_draining(&config, &facts, &limits, &nodes).await?;
    let plan = planned.plan;
    let view = PlanView {
        inventory: Some(&facts.inventory),
        desired: Some(&config.desired),
        amount: args.amount.amount(),
        applying: true,
        ..PlanView::default()
    };
    acting::show(context, &plan, &view, args.yes)?;
    let wanted = plan::consent(&plan);
    let refused = acting::refused(&wanted)?;
    let names = nodes.iter().cloned().collect::<Vec<_>>().join(", ");
    let after = unreachable.or(refused).or(infeasible(&plan));
    if plan.steps.is_empty() {
        if held_before != facts.inventory.member.holds {
            write(context, &config, &facts, facts.inventory.member.clone()).await?;
        }
        context.printer.note(&format!("nothing to move or stop; cordoned: {names}"));
        return Ok(after);
    }
    if !args.yes {
        acting::agree(context, &wanted, &format!("Drain {names}?"), prompt::YES)?;
    }
    let mut again = context.words("drain");
    again.extend([args.selector.clone(), "--reason".to_owned(), args.reason.clone()]);
    let carried = carry_out(
        context,
        CarryOut {
            config: &config,
            facts: &facts,
            plan: &plan,
            parallel: args.parallel,
            max_fail: None,
            destroy: false,
            limits: &limits,
            again: shell_words(&again),
            action: "drain",
        },
    )
    .await?;
    context.printer.note(&format!("cordoned: {names}, until `flock uncordon`"));
    Ok(carried.or(after))
}
