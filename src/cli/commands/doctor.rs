//! `flock doctor`

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use futures::stream::{self, StreamExt};

use crate::base::Spanned;
use crate::cli::args::{Format, FormatArg, Selectors};
use crate::cli::context::Context;
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::config::Desired;
use crate::inventory::{Check, Health, Request, Response};
use crate::plan::DEFAULT_PORTS;
use crate::ports::{Fleet, Node, NodeError};
use crate::reconcile;
use crate::report::{self, DoctorDocument, DoctorNode};

/// Most nodes that are looked at at the same time.
const PARALLEL: usize = 32;
/// A clock that is this far off misleads people who compare logs; flock itself compares no clocks of two machines.
const SKEW_WARN_MS: u64 = 2_000;

/// The remedy for what the agent met and only it can tell.
const KEEPER_LOG: &str =
    "put right what it names; keeper.log in ~/.local/share/flock/CLUSTER/NODE on the node says when it began";

/// Look over the nodes for what would go wrong there.
///
/// Connection, disk, driver, engines, ports, logout, reboot. Brings the agent to nodes that lack it, and changes
/// nothing else. Exits 1 where a check fails, and 9 where a node does not answer.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Only these nodes: names, globs, @label=value, comma-separated
    #[arg(value_name = "SEL")]
    on: Option<String>,
    #[command(flatten)]
    format: FormatArg,
}

/// Runs the command.
pub async fn run(context: &Context, args: &DoctorArgs) -> Result<ExitCode, Failure> {
    let config = context.config()?;
    let desired = &config.desired;
    let limits = context.limits(&Selectors { on: args.on.clone(), exclude: None })?;
    context.check_limits(&limits, desired, None)?;
    let fleet = context.fleet(desired);
    let labels = |name: &str| desired.nodes.get(name).map(|node| node.labels.clone()).unwrap_or_default();
    let nodes = fleet.configured().into_iter().filter(|node| limits.allow(node.name(), &labels(node.name())));
    let looked: BTreeMap<String, DoctorNode> =
        stream::iter(nodes).map(|node| look(desired, node)).buffer_unordered(PARALLEL).collect().await;
    let document = DoctorDocument::of(looked.into_values().collect());
    match args.format.format {
        Format::Json => context.printer.data(&report::json(&document))?,
        Format::Text => context.printer.data(&report::doctor_text(&document, &context.style()))?,
    }
    let unreachable = document.nodes.iter().any(|node| !node.reachable);
    Ok(match document.worst() {
        _ if unreachable => ExitCode::Incomplete,
        Some(Health::Fail) => ExitCode::Failure,
        _ => ExitCode::Success,
    })
}

async fn look(desired: &Desired, node: Arc<dyn Node>) -> (String, DoctorNode) {
    let name = node.name().to_owned();
    let mut found = DoctorNode { node: name.clone(), reachable: false, checks: Vec::new() };
    match ask(desired, node.as_ref()).await {
        Ok(checks) => {
            found.reachable = true;
            found.checks = checks;
        }
        Err(error) => {
            // An agent that does not start is no lack of a connection.
            let id = if matches!(error, NodeError::Agent { .. }) { "agent" } else { "connection" };
            let hint = error.hint().unwrap_or_else(|| KEEPER_LOG.to_owned());
            found.checks.push(Check::fail(id, error.to_string(), hint));
        }
    }
    node.close().await;
    (name, found)
}

async fn ask(desired: &Desired, node: &dyn Node) -> Result<Vec<Check>, NodeError> {
    let began = Instant::now();
    node.call(Request::Instances).await?;
    let connected = began.elapsed();
    // The agent is there now: what the next question takes is the way there and back.
    let (asked, sent) = (Instant::now(), unix_ms());
    node.call(Request::Instances).await?;
    let round_trip = asked.elapsed();
    let configured = desired.nodes.get(node.name());
    let weights = configured.and_then(|node| node.weights_path.as_ref());
    let request = Request::Doctor {
        engines: reconcile::engine_queries(desired, node.name()),
        weights_path: weights.map(|path: &Spanned<String>| path.value.clone()),
        ports: configured.map_or(DEFAULT_PORTS, |node| node.ports),
    };
    let Response::Checks { checks, now_unix_ms } = node.call(request).await? else {
        return Err(NodeError::Lost { reason: "it answered something else than checks".to_owned() });
    };
    let bounds = (sent, unix_ms());
    let mut all = vec![
        Check::ok(
            "connection",
            format!(
                "the agent answered after {} ms, and again within {} ms",
                connected.as_millis(),
                round_trip.as_millis().max(1)
            ),
        ),
        clock(now_unix_ms, bounds),
    ];
    all.extend(checks);
    Ok(all)
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// The node's clock was read between two readings of this machine's: outside of them it is off, by at least so much.
fn clock(node: u64, (before, after): (u64, u64)) -> Check {
    let (off, way) = if node < before {
        (before - node, "behind")
    } else if node > after {
        (node - after, "ahead of")
    } else {
        let text = format!("within the {} ms that the question took", after.saturating_sub(before));
        return Check::ok("clock", text);
    };
    let text = format!("{}.{:03} s {way} this machine's", off / 1000, off % 1000);
    if off >= SKEW_WARN_MS {
        let remedy = "let NTP set it; leases and restarts do not mind, people who compare logs do";
        return Check::warn("clock", text, remedy);
    }
    Check::ok("clock", text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_off_only_beyond_the_time_the_question_took() {
        assert_eq!(clock(1_050, (1_000, 1_100)).health, Health::Ok);
        assert_eq!(clock(900, (1_000, 1_100)).health, Health::Ok);
        let behind = clock(1_000, (61_000, 61_100));
        assert!(behind.health == Health::Warn && behind.text.contains("60.000 s behind"), "{}", behind.text);
        assert!(clock(90_000, (61_000, 61_100)).text.contains("28.900 s ahead of"));
    }
}
