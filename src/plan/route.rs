//! Which way weights take to a node: from a node that has them, from the hub, through the controller, or once from the
//! hub and on from there.
//!
//! A way between nodes is taken only where it was measured. Measured figures wobble: they count in steps of 1, 2, 5, 10,
//! …, rounded down, so that the same network gives the same plan.

use std::collections::{BTreeMap, BTreeSet};

use super::diff::Draft;
use super::input::labels_of;
use super::{FetchFrom, PlanInput, Verb};
use crate::base::format_rate;
use crate::config::Connection;
use crate::inventory::{HubFiles, endpoint_of};

/// Bytes per second that are expected of the hub and of the controller: neither way is measured.
pub(super) const EXPECTED_BYTES_PER_S: u64 = 50_000_000;

/// Whether a node reaches the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Reach {
    Yes,
    No(String),
    Unknown,
}

/// The way that files of the hub take to a node unless another node has them: the node's own, or the controller's where
/// the node was seen not to reach the hub.
pub(super) fn from_hub(files: HubFiles, node: &str, input: &PlanInput<'_>) -> FetchFrom {
    match reach(node, input) {
        Reach::No(_) => FetchFrom::Relay(files),
        Reach::Yes | Reach::Unknown => FetchFrom::Hub(files),
    }
}

fn reach(node: &str, input: &PlanInput<'_>) -> Reach {
    let Some(endpoint) = endpoint_of(input.hub) else { return Reach::Unknown };
    let found = input.inventory.egress.iter().find(|way| way.node == node && way.endpoint == endpoint);
    match found.map(|way| (way.rtt_us, way.unknown.get("rtt_us"))) {
        Some((Some(_), _)) => Reach::Yes,
        Some((None, Some(why))) => Reach::No(why.clone()),
        Some((None, None)) | None => Reach::Unknown,
    }
}

/// A node that has the files of a set, or will have them.
struct Holder {
    node: String,
    folder: String,
    /// The fetch that brings them there.
    draft: Option<usize>,
    /// When it has them, and when what it sends already is sent.
    free_ms: u64,
}

/// Chooses the way of every fetch that is left after the gates, says why, estimates how long it takes, and shares out
/// the limit of the policies.
pub(super) fn choose(drafts: &mut [Draft], input: &PlanInput<'_>, limit: Option<u64>) {
    let ways = Ways::of(input);
    let mut sets: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, draft) in drafts.iter().enumerate() {
        if let Some(planned) = draft.step.fetch.as_ref().filter(|_| draft.step.verb == Verb::Fetch) {
            sets.entry(planned.fetch.revision.clone()).or_default().push(index);
        }
    }
    for (revision, mut fetches) in sets {
        let mut holders = ways.present(&revision);
        // Who brings a set from outside the cluster is first one that needs nobody for it.
        let relayed = |draft: &Draft| !draft.step.fetch.as_ref().is_some_and(|p| matches!(p.from, FetchFrom::Hub(_)));
        fetches.sort_by(|a, b| {
            (relayed(&drafts[*a]), &drafts[*a].step.node).cmp(&(relayed(&drafts[*b]), &drafts[*b].step.node))
        });
        for index in fetches {
            let holder = one(drafts, index, &mut holders, input, &ways, limit);
            holders.extend(holder);
        }
    }
    share(drafts, &ways, limit);
}

/// What was measured between nodes, and which of them have what.
struct Ways<'a> {
    /// Bytes per second by the two nodes' names in ascending order, rounded down.
    rates: BTreeMap<(&'a str, &'a str), u64>,
    /// Nodes that have all files of a set and may send them, with the folder, by revision.
    holders: BTreeMap<&'a str, Vec<(&'a str, Option<&'a str>)>>,
}

impl<'a> Ways<'a> {
    fn of(input: &PlanInput<'a>) -> Self {
        let mut this = Self { rates: BTreeMap::new(), holders: BTreeMap::new() };
        for link in input.inventory.links.iter().filter(|link| link.measured) {
            let rate = link.bandwidth_bytes_per_s.map(rounded).filter(|rate| *rate > 0);
            let known = this.rates.entry(in_order(&link.from, &link.to)).or_default();
            *known = rate.map_or(*known, |rate| rate.max(*known));
        }
        for node in input.inventory.nodes.iter().filter(|node| may_send(&node.name, input)) {
            for found in node.weights.iter().filter(|found| found.complete) {
                let holders = this.holders.entry(&found.revision).or_default();
                // The first entry of a set counts.
                if holders.last().is_none_or(|(last, _)| *last != node.name) {
                    holders.push((&node.name, found.path.as_deref()));
                }
            }
        }
        this
    }

    /// The nodes that have all files of a set and may send them.
    fn present(&self, revision: &str) -> Vec<Holder> {
        let holder = |(node, folder): &(&str, Option<&str>)| {
            Some(Holder { node: (*node).to_owned(), folder: (*folder)?.to_owned(), draft: None, free_ms: 0 })
        };
        self.holders.get(revision).into_iter().flatten().filter_map(holder).collect()
    }

    /// What was measured between two nodes, rounded down; `None` where they were not seen to meet. The second one
    /// connects: where only the other direction was tried, the plan holds another way besides.
    fn between(&self, one: &str, other: &str) -> Option<u64> {
        self.rates.get(&in_order(one, other)).copied().filter(|rate| *rate > 0)
    }
}

fn in_order<'a>(one: &'a str, other: &'a str) -> (&'a str, &'a str) {
    if one <= other { (one, other) } else { (other, one) }
}

/// Whether a node may be asked to send: it answers, nobody left it out, and others know an address of it.
fn may_send(node: &str, input: &PlanInput<'_>) -> bool {
    let answers = input.inventory.node(node).is_some_and(|facts| facts.reachable);
    let configured = input.desired.nodes.get(node);
    let addressed = configured.is_some_and(|node| matches!(node.connection, Connection::Ssh { .. }));
    answers && addressed && input.limits.allow(node, labels_of(input.desired, input.inventory, node))
}

/// Decides one fetch. What it brings can be sent on by the node that is returned.
fn one(
    drafts: &mut [Draft],
    index: usize,
    holders: &mut [Holder],
    input: &PlanInput<'_>,
    ways: &Ways<'_>,
    limit: Option<u64>,
) -> Option<Holder> {
    let limited = |rate: u64| limit.map_or(rate, |limit| rate.min(limit));
    let step = &drafts[index].step;
    let planned = step.fetch.as_ref()?;
    let outside = limited(EXPECTED_BYTES_PER_S);
    let mut best: Option<(u64, u64, usize)> = None;
    for (position, holder) in holders.iter().enumerate().filter(|(_, holder)| holder.node != step.node) {
        let Some(rate) = ways.between(&holder.node, &step.node).map(limited) else { continue };
        // What is brought into the cluster first and then sent on costs time: only a faster way is worth that.
        if if holder.draft.is_some() { rate <= outside } else { rate < outside } {
            continue;
        }
        let done = holder.free_ms.saturating_add(takes_ms(step.download_bytes, rate));
        let better = best.is_none_or(|(known, _, other)| (done, &holder.node) < (known, &holders[other].node));
        if better {
            best = Some((done, rate, position));
        }
    }
    let (why, free_ms) = match best {
        Some((done, rate, position)) => {
            let holder = &mut holders[position];
            holder.free_ms = done;
            let rate = format_rate(rate);
            let why = match holder.draft {
                None => format!("{} has the files and sends {rate} or more", holder.node),
                Some(_) => format!("{} gets the files first and sends {rate} or more", holder.node),
            };
            let otherwise = Box::new(planned.from.clone());
            let from = FetchFrom::Node { node: holder.node.clone(), folder: holder.folder.clone(), otherwise };
            drafts[index].needs.extend(holder.draft);
            if let Some(planned) = &mut drafts[index].step.fetch {
                planned.from = from;
            }
            (why, done)
        }
        None => (outside_because(&planned.from, &step.node, input), takes_ms(step.download_bytes, outside)),
    };
    let step = &mut drafts[index].step;
    if !why.is_empty() {
        step.detail = format!("{}; {why}", step.detail);
    }
    let planned = step.fetch.as_ref()?;
    step.route = Some(planned.from.route());
    may_send(&step.node, input).then(|| Holder {
        node: step.node.clone(),
        folder: planned.fetch.folder.clone(),
        draft: Some(index),
        free_ms,
    })
}

fn outside_because(from: &FetchFrom, node: &str, input: &PlanInput<'_>) -> String {
    let hub = input.hub;
    match (from, reach(node, input)) {
        (FetchFrom::Hub(_), Reach::Yes) => format!("{node} reaches {hub}"),
        (FetchFrom::Hub(_), _) => format!("whether {node} reaches {hub} was not measured"),
        (FetchFrom::Relay(_), Reach::No(why)) => format!("{node} does not reach {hub} ({why})"),
        (FetchFrom::Relay(_) | FetchFrom::Folder(_) | FetchFrom::Node { .. }, _) => String::new(),
    }
}

/// The largest of 1, 2, 5, 10, 20, 50, … that is not above.
fn rounded(rate: u64) -> u64 {
    let power = 10_u64.pow(rate.checked_ilog10().unwrap_or(0));
    match rate / power {
        0 => 0,
        1 => power,
        2..=4 => 2 * power,
        _ => 5 * power,
    }
}

fn takes_ms(bytes: u64, bytes_per_s: u64) -> u64 {
    let ms = u128::from(bytes) * 1_000 / u128::from(bytes_per_s.max(1));
    u64::try_from(ms).unwrap_or(u64::MAX)
}

/// Gives every fetch its part of the limit, and its estimate. As many fetches run at the same time as there are fetches
/// that no other one waits for: each waits for at most one.
fn share(drafts: &mut [Draft], ways: &Ways<'_>, limit: Option<u64>) {
    let is_fetch = |draft: &Draft| draft.step.verb == Verb::Fetch;
    let waited: BTreeSet<usize> =
        drafts.iter().filter(|draft| is_fetch(draft)).flat_map(|draft| draft.needs.iter().copied()).collect();
    let at_once = (0..drafts.len()).filter(|index| is_fetch(&drafts[*index]) && !waited.contains(index)).count();
    let part = limit.map(|limit| (limit / (at_once.max(1) as u64)).max(1));
    for draft in drafts.iter_mut().filter(|draft| is_fetch(draft)) {
        let step = &mut draft.step;
        let Some(planned) = &mut step.fetch else { continue };
        planned.limit_bytes_per_s = part;
        let rate = match &planned.from {
            FetchFrom::Node { node, .. } => ways.between(node, &step.node).unwrap_or(EXPECTED_BYTES_PER_S),
            FetchFrom::Folder(_) | FetchFrom::Hub(_) | FetchFrom::Relay(_) => EXPECTED_BYTES_PER_S,
        };
        step.estimated_ms = Some(takes_ms(step.download_bytes, part.map_or(rate, |part| part.min(rate))));
    }
}
