//! `flock approve`

use std::collections::BTreeSet;

use clap::Args;

use crate::cli::context::{Config, Context, Facts};
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::cli::user::whoami;
use crate::inventory::Approved;
use crate::plan::{self, ApprovalWanted, DestroyInput, Limits, Moment};
use crate::ports::Clock;
use crate::report;

use super::cordon::hold;
use super::member::write;

/// Agree to steps that an `approval` of the config holds back; recorded on the nodes, with the reason.
///
/// `flock plan` and `flock apply` name the ID under Blocked. It stands for exactly those steps: where other ones are
/// planned meanwhile, the ID is another one. What was agreed to and not applied within a day has to be agreed to again.
#[derive(Debug, Args)]
pub struct ApproveArgs {
    /// What to agree to, as the plan names it
    id: String,
    /// Why, for those who come after
    #[arg(long)]
    reason: String,
    /// Who agrees, as the config names people; without it, the login
    #[arg(long, value_name = "PERSON")]
    by: Option<String>,
    /// It is the plan of `flock drain SEL`
    #[arg(long, value_name = "SEL")]
    drain: Option<String>,
    /// It is the plan of `flock destroy`
    #[arg(long, conflicts_with = "drain")]
    destroy: bool,
}

/// Runs the command.
pub async fn run(context: &Context, args: &ApproveArgs) -> Result<ExitCode, Failure> {
    let config = context.config()?;
    let mut facts = context.ask_to_plan(&config.desired).await;
    let wanted = wanted(context, args, &config, &mut facts).await?;
    let Some(found) = wanted.iter().find(|approval| approval.id == args.id) else {
        let ids: Vec<&str> = wanted.iter().map(|approval| approval.id.as_str()).collect();
        let hint = match ids.is_empty() {
            true => "nothing waits for anybody's yes now".to_owned(),
            false => format!("what waits now: {}", ids.join(", ")),
        };
        let text = format!("nothing that waits now is `{}`", report::clean(&args.id));
        return Err(Failure::new(ExitCode::Failure, text).hint(hint));
    };
    let by = person(args, found)?;
    for step in &found.steps {
        let line = format!("{} {}/{} on {}", report::verb(step.verb).1, step.model, step.replica, step.node);
        context.printer.note(&report::clean(&line));
    }
    let mut member = facts.inventory.member.clone();
    let login = whoami();
    member.approvals.push(Approved {
        id: found.id.clone(),
        by: by.clone(),
        login: login.split(" (").next().unwrap_or_default().to_owned(),
        at_unix_ms: context.clock.unix_ms(),
        reason: args.reason.clone(),
        steps: found.steps.iter().map(|step| step.key.clone()).collect(),
    });
    write(context, &config, &facts, member).await?;
    context.printer.note(&report::clean(&format!("{by} agrees to {}: {}", found.id, args.reason)));
    Ok(context.report_unreachable(&config.desired, &facts, &Limits::default()))
}

/// Everything that waits for somebody's yes in the plan that is meant.
async fn wanted(
    context: &Context,
    args: &ApproveArgs,
    config: &Config,
    facts: &mut Facts,
) -> Result<Vec<ApprovalWanted>, Failure> {
    let limits = Limits::default();
    if args.destroy {
        let plan = plan::destroy_plan(&DestroyInput {
            desired: &config.desired,
            config_digest: config.digest.to_string(),
            commit: config.standing.commit.clone(),
            dirty: config.standing.dirty,
            inventory: &facts.inventory,
            observed: &facts.specs,
            limits,
            moment: Moment { unix_ms: context.clock.unix_ms(), live: true },
        });
        return Ok(plan.approvals);
    }
    let drain: BTreeSet<String> = match &args.drain {
        Some(selection) => context.select(selection, &config.desired, facts)?,
        None => BTreeSet::new(),
    };
    // As the drain itself plans; the record that is written has no holds of it.
    let before = facts.inventory.member.clone();
    if !drain.is_empty() {
        facts.inventory.member = hold(context, &before, &drain, "drained");
    }
    let planned = context.plan_draining(config, facts, &limits, &drain).await;
    facts.inventory.member = before;
    Ok(planned?.plan.approvals)
}

/// Who agrees: one of those whose yes is wanted.
fn person(args: &ApproveArgs, wanted: &ApprovalWanted) -> Result<String, Failure> {
    let login = whoami();
    let login = login.split(" (").next().unwrap_or_default();
    let own = [login, login.split('@').next().unwrap_or_default()];
    let mine: Vec<&str> = args.by.as_deref().map_or(own.to_vec(), |by| vec![by]);
    if let Some(found) = mine.iter().find(|name| wanted.people.iter().any(|person| person == *name)) {
        return Ok((*found).to_owned());
    }
    let text = format!("{} asks for the yes of {}", wanted.policy, wanted.by.join(" or "));
    let hint = format!("run as one of {}, or name yourself: --by PERSON", wanted.people.join(", "));
    Err(Failure::new(ExitCode::Refused, report::clean(&text)).hint(report::clean(&hint)))
}
