//! The way between nodes, and from nodes to providers: measured by agents in pairs, kept on the nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join;
use futures::stream::{self, StreamExt};

use super::Observed;
use crate::base::Secret;
use crate::config::{Connection, Desired, Source};
use crate::inventory::{
    EgressLink, Inventory, Measured, MeasuredEndpoint, MeasuredLink, NodeLink, Request, Response, Unknown, endpoint_of,
};
use crate::ports::{Node, Random};

/// A result is used for a day.
const FRESH_MS: u64 = 24 * 3600 * 1000;
/// A failure is not tried again for an hour.
const BLOCKED_MS: u64 = 3600 * 1000;
/// Up to this many nodes, every pair is measured.
const ALL_PAIRS: usize = 16;
/// Most measurements at once; no node is in two.
const PARALLEL: usize = 8;
/// How long a listener waits for its client.
const LISTEN_MS: u64 = 10_000;
/// Beyond this a node's answer to a ping is no round trip.
const PING_LIMIT: Duration = Duration::from_secs(5);

/// What to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// What is missing or too old.
    Missing,
    /// Everything anew.
    Everything,
}

/// Measures, and brings links and egress of the inventory up to date. Returns what to tell the user. `hub` is the hub's
/// address.
pub async fn measure(
    desired: &Desired,
    hub: &str,
    observed: &mut Observed,
    random: &dyn Random,
    extent: Extent,
) -> Vec<String> {
    let answering: Vec<String> = observed.measured.keys().filter(|n| desired.nodes.contains_key(*n)).cloned().collect();
    let (pairs, all) = pairs(&answering);
    let mut notes = Vec::new();
    if pairs.len() < all {
        notes.push(format!(
            "{} of {all} pairs of nodes are measured: each node with those 1, 2, 4, 8, … places after it by name",
            pairs.len()
        ));
    }
    let due: Vec<(String, String)> = pairs
        .into_iter()
        .filter(|(a, b)| extent == Extent::Everything || is_due(newest(&observed.measured, a, b)))
        .collect();
    for round in rounds(due) {
        let met = stream::iter(round).map(|(a, b)| {
            let (one, other) = (observed.nodes.get(&a).cloned(), observed.nodes.get(&b).cloned());
            async move {
                let (Some(one), Some(other)) = (one, other) else { return Vec::new() };
                pair(desired, one.as_ref(), other.as_ref(), random).await
            }
        });
        let results: Vec<(String, Result<MeasuredLink, String>)> =
            met.buffer_unordered(PARALLEL).collect::<Vec<_>>().await.into_iter().flatten().collect();
        for (node, result) in results {
            match result {
                Ok(link) => {
                    let known = &mut observed.measured.entry(node).or_default().links;
                    known.retain(|old| old.peer != link.peer);
                    known.push(link);
                }
                Err(why) => notes.push(format!("from {node}: {why}")),
            }
        }
    }
    notes.extend(measure_egress(desired, &endpoints(desired, hub), observed, extent).await);
    tell(desired, hub, observed);
    notes
}

/// Asks the nodes that do not know it, or have not for long, whether they reach the hub, where a model comes from there,
/// and how far the providers are whose models the config uses: a plan needs to know which way weights can take, and
/// through which node a provider is reached. Returns what to tell the user.
pub async fn measure_hub(desired: &Desired, hub: &str, observed: &mut Observed) -> Vec<String> {
    let used = desired.provider_models.values().filter_map(|model| desired.providers.get(&model.provider.value));
    let used = used.filter_map(|provider| endpoint_of(&provider.base_url.value));
    let wanted: BTreeSet<String> = endpoint_of(hub).filter(|_| uses_hub(desired)).into_iter().chain(used).collect();
    if wanted.is_empty() {
        return Vec::new();
    }
    let notes = measure_egress(desired, &wanted, observed, Extent::Missing).await;
    tell(desired, hub, observed);
    notes
}

/// Links and egress of the inventory, from what the nodes keep.
pub(super) fn tell(desired: &Desired, hub: &str, observed: &mut Observed) {
    let names: Vec<String> = observed.inventory.nodes.iter().map(|node| node.name.clone()).collect();
    let inventory: &mut Inventory = &mut observed.inventory;
    inventory.links.clear();
    inventory.egress.clear();
    for (position, a) in names.iter().enumerate() {
        for b in &names[position + 1..] {
            if let Some((from, link)) = newest(&observed.measured, a, b) {
                inventory.links.push(node_link(from, link));
            }
        }
    }
    let wanted = endpoints(desired, hub);
    for node in &names {
        let Some(measured) = observed.measured.get(node) else { continue };
        let found = measured.endpoints.iter().filter(|one| wanted.contains(&one.endpoint));
        inventory.egress.extend(found.map(|one| egress_link(node, one)));
    }
}

fn node_link(from: &str, link: &MeasuredLink) -> NodeLink {
    let why = link.problem.clone().unwrap_or_else(|| "too little came through in time".to_owned());
    let mut unknown = Unknown::new();
    if link.bandwidth_bytes_per_s.is_none() {
        unknown.insert("bandwidth_bytes_per_s".to_owned(), why.clone());
    }
    if link.rtt_us.is_none() {
        unknown.insert("rtt_us".to_owned(), why);
    }
    NodeLink {
        from: from.to_owned(),
        to: link.peer.clone(),
        rtt_us: link.rtt_us,
        bandwidth_bytes_per_s: link.bandwidth_bytes_per_s,
        measured: link.measured,
        age_ms: Some(link.age_ms),
        unknown,
    }
}

fn egress_link(node: &str, one: &MeasuredEndpoint) -> EgressLink {
    let why = one.problem.iter().filter(|_| one.rtt_us.is_none());
    EgressLink {
        node: node.to_owned(),
        endpoint: one.endpoint.clone(),
        rtt_us: one.rtt_us,
        age_ms: Some(one.age_ms),
        unknown: why.map(|why| ("rtt_us".to_owned(), why.clone())).collect(),
    }
}

/// The best that is known of a pair, with the end it was measured from: one where the agents met, then one with a
/// round trip, then the younger.
fn newest<'m>(measured: &'m BTreeMap<String, Measured>, a: &'m str, b: &'m str) -> Option<(&'m str, &'m MeasuredLink)> {
    let towards = |from: &'m str, to: &str| {
        let known = measured.get(from)?.links.iter().find(|link| link.peer == to)?;
        Some((from, known))
    };
    let found = towards(a, b).into_iter().chain(towards(b, a));
    found.min_by_key(|(_, link)| (!link.measured || link.age_ms >= FRESH_MS, link.rtt_us.is_none(), link.age_ms))
}

fn is_due(known: Option<(&str, &MeasuredLink)>) -> bool {
    known.is_none_or(|(_, link)| link.age_ms >= if link.measured { FRESH_MS } else { BLOCKED_MS })
}

/// The pairs to measure, and how many there are in all. Beyond sixteen nodes all pairs would take too long: then
/// each node meets those 1, 2, 4, 8, … places after it, so that any two are joined over few measured links.
fn pairs(names: &[String]) -> (Vec<(String, String)>, usize) {
    let count = names.len();
    let all = count * count.saturating_sub(1) / 2;
    let chosen = |a: usize, b: usize| {
        let distance = (b - a).min(count - (b - a));
        count <= ALL_PAIRS || distance.is_power_of_two()
    };
    let mut pairs = Vec::new();
    for (a, one) in names.iter().enumerate() {
        for (b, other) in names.iter().enumerate().skip(a + 1).filter(|(b, _)| chosen(a, *b)) {
            debug_assert!(a < b);
            pairs.push((one.clone(), other.clone()));
        }
    }
    (pairs, all)
}

/// Rounds in which no node is in two pairs: two measurements on one node would take from each other.
fn rounds(mut pairs: Vec<(String, String)>) -> Vec<Vec<(String, String)>> {
    let mut rounds = Vec::new();
    while !pairs.is_empty() {
        let mut busy = BTreeSet::new();
        let (round, rest): (Vec<_>, Vec<_>) = pairs.into_iter().partition(|(a, b)| {
            let free = !busy.contains(a) && !busy.contains(b);
            if free {
                busy.extend([a.clone(), b.clone()]);
            }
            free
        });
        rounds.push(round);
        pairs = rest;
    }
    rounds
}

/// One pair. Where the first direction is blocked, the other is tried: a firewall often lets one through.
async fn pair(
    desired: &Desired,
    one: &dyn Node,
    other: &dyn Node,
    random: &dyn Random,
) -> Vec<(String, Result<MeasuredLink, String>)> {
    let mut results = Vec::new();
    let mut fallback = None;
    for (from, to) in [(one, other), (other, one)] {
        if fallback.is_none() && !results.is_empty() {
            fallback = through_here(one, other).await;
        }
        let result = direction(desired, from, to, random, fallback).await;
        let met = result.as_ref().is_ok_and(|link| link.measured);
        results.push((from.name().to_owned(), result));
        if met {
            break;
        }
    }
    results
}

async fn direction(
    desired: &Desired,
    from: &dyn Node,
    to: &dyn Node,
    random: &dyn Random,
    fallback_rtt_us: Option<u64>,
) -> Result<MeasuredLink, String> {
    let key = Secret::new(random.hex(32));
    let request = Request::MeasureListen { key: key.clone(), ttl_ms: LISTEN_MS };
    let unexpected = |what: &str| format!("unexpected answer to {what}");
    let connection = desired.nodes.get(to.name()).map(|node| &node.connection);
    let (port, own) = if matches!(connection, Some(Connection::Local)) {
        // Nobody says by which of its addresses others reach this machine: it opens none.
        (0, Vec::new())
    } else {
        match to.call(request).await {
            Ok(Response::Listening { port, addresses }) => (port, addresses),
            Ok(_) => return Err(unexpected("a listener")),
            Err(error) => return Err(format!("{} does not listen: {error}", to.name())),
        }
    };
    let mut addresses: Vec<String> = match connection {
        Some(Connection::Ssh { address }) => vec![address.value.clone()],
        Some(Connection::Local) | None => Vec::new(),
    };
    // What the config calls it may be an alias of this machine's SSH configuration.
    addresses.extend(own.into_iter().filter(|address| !addresses.contains(address)).collect::<Vec<_>>());
    let peer = to.name().to_owned();
    match from.call(Request::MeasureConnect { peer, addresses, port, key, fallback_rtt_us }).await {
        Ok(Response::Link { link }) => Ok(link),
        Ok(_) => Err(unexpected("a measurement")),
        Err(error) => Err(format!("the way to {} is not known: {error}", to.name())),
    }
}

/// What this machine needs to reach both: where nodes cannot meet, their bytes go through it.
async fn through_here(one: &dyn Node, other: &dyn Node) -> Option<u64> {
    let (one, other) = join(ping(one), ping(other)).await;
    Some(one?.saturating_add(other?))
}

async fn ping(node: &dyn Node) -> Option<u64> {
    let mut best: Option<u64> = None;
    for _ in 0..3 {
        let started = tokio::time::Instant::now();
        let answer = tokio::time::timeout(PING_LIMIT, node.call(Request::Ping)).await.ok()?;
        answer.ok()?;
        let took = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
        best = Some(best.map_or(took, |best| best.min(took)));
    }
    best
}

/// Every node connects to all of these, all nodes at once.
async fn measure_egress(
    desired: &Desired,
    wanted: &BTreeSet<String>,
    observed: &mut Observed,
    extent: Extent,
) -> Vec<String> {
    let mut asked: Vec<(Arc<dyn Node>, Vec<String>)> = Vec::new();
    for (name, measured) in observed.measured.iter().filter(|(name, _)| desired.nodes.contains_key(*name)) {
        let due = |endpoint: &&String| {
            let known = measured.endpoints.iter().find(|one| one.endpoint == **endpoint);
            known.is_none_or(|one| one.age_ms >= if one.problem.is_none() { FRESH_MS } else { BLOCKED_MS })
        };
        let due: Vec<String> = wanted.iter().filter(|e| extent == Extent::Everything || due(e)).cloned().collect();
        if let Some(node) = observed.nodes.get(name).filter(|_| !due.is_empty()) {
            asked.push((Arc::clone(node), due));
        }
    }
    let answers: Vec<_> = stream::iter(asked)
        .map(|(node, endpoints)| async move {
            let answer = node.call(Request::MeasureEndpoints { endpoints }).await;
            (node.name().to_owned(), answer)
        })
        .buffer_unordered(PARALLEL * 4)
        .collect()
        .await;
    let mut notes = Vec::new();
    for (name, answer) in answers {
        match answer {
            Ok(Response::Endpoints { endpoints }) => {
                let known = &mut observed.measured.entry(name).or_default().endpoints;
                known.retain(|old| !endpoints.iter().any(|new| new.endpoint == old.endpoint));
                known.extend(endpoints);
            }
            Ok(_) => notes.push(format!("from {name}: unexpected answer to a measurement")),
            Err(error) => notes.push(format!("from {name}: the way out of the cluster is not known: {error}")),
        }
    }
    for measured in observed.measured.values_mut() {
        measured.endpoints.sort_by(|a, b| a.endpoint.cmp(&b.endpoint));
    }
    notes.sort();
    notes
}

/// `host:port` of every provider, and of the hub where a model comes from there.
fn endpoints(desired: &Desired, hub: &str) -> BTreeSet<String> {
    let providers = desired.providers.values().filter_map(|provider| endpoint_of(&provider.base_url.value));
    providers.chain(endpoint_of(hub).filter(|_| uses_hub(desired))).collect()
}

/// Whether any model's weights are on the hub.
fn uses_hub(desired: &Desired) -> bool {
    let is_hub = |source: &Source| matches!(source, Source::Hub { .. });
    desired.models.values().any(|model| {
        model.source.iter().any(|source| is_hub(&source.value))
            || model.variants.iter().any(|variant| is_hub(&variant.source.value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("n{number:02}")).collect()
    }

    #[test]
    fn few_nodes_all_meet_and_many_meet_enough() {
        assert!(pairs(&names(0)).0.is_empty() && pairs(&names(1)).0.is_empty());
        for count in 2..=16 {
            let (chosen, all) = pairs(&names(count));
            assert_eq!(chosen.len(), all, "{count}");
        }
        for count in [17, 40, 100, 1000] {
            let (chosen, all) = pairs(&names(count));
            let per_node = 2 * (count.ilog2() as usize + 1);
            assert!(chosen.len() <= count * per_node / 2 && chosen.len() < all, "{count}: {}", chosen.len());
            assert!(
                chosen.contains(&("n00".into(), "n01".into()))
                    && chosen.contains(&("n00".into(), format!("n{:02}", count - 1)))
            );
        }
    }

    #[test]
    fn no_node_is_in_two_measurements_of_a_round() {
        let (chosen, all) = pairs(&names(9));
        let rounds = rounds(chosen);
        assert_eq!(rounds.iter().map(Vec::len).sum::<usize>(), all);
        for round in &rounds {
            let ends: BTreeSet<&String> = round.iter().flat_map(|(a, b)| [a, b]).collect();
            assert_eq!(ends.len(), 2 * round.len());
        }
        assert!(rounds.len() <= 2 * 9, "{} rounds", rounds.len());
    }

    #[test]
    fn a_meeting_counts_for_a_day_and_a_closed_door_for_an_hour() {
        let link = |peer: &str, measured: bool, age_ms| MeasuredLink {
            peer: peer.into(),
            measured,
            age_ms,
            problem: (!measured).then(|| "no answer".to_owned()),
            ..MeasuredLink::default()
        };
        let known = |a: Vec<MeasuredLink>, b: Vec<MeasuredLink>| {
            BTreeMap::from([
                ("a".to_owned(), Measured { links: a, ..Measured::default() }),
                ("b".to_owned(), Measured { links: b, ..Measured::default() }),
            ])
        };
        let due = |measured: &BTreeMap<String, Measured>| is_due(newest(measured, "a", "b"));
        assert!(due(&known(Vec::new(), Vec::new())));
        assert!(!due(&known(vec![link("b", true, FRESH_MS - 1)], Vec::new())));
        assert!(due(&known(vec![link("b", true, FRESH_MS)], Vec::new())));
        assert!(!due(&known(vec![link("b", false, BLOCKED_MS - 1)], Vec::new())));
        assert!(due(&known(vec![link("b", false, BLOCKED_MS)], Vec::new())));
        // One direction was blocked, the other was not.
        let both = known(vec![link("b", false, 1)], vec![link("a", true, 50)]);
        assert_eq!(newest(&both, "a", "b").map(|(from, _)| from), Some("b"));
        // What was measured once and is blocked now: the old figure no longer stands for the link.
        let gone = known(vec![link("b", false, 1)], vec![link("a", true, FRESH_MS)]);
        assert!(!due(&gone));
        assert_eq!(newest(&gone, "a", "b").map(|(from, _)| from), Some("a"));
    }
}
