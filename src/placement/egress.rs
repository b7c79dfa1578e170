//! The egress node of every way out to a provider: the one with the least expected latency.
//!
//! Expected is the measured time to connect to the endpoint (the median of three) and, for every kind of traffic of the
//! agent with a model, its weight times one turn over the measured way, averaged over the model's replicas. Hard are the
//! `max-latency` of the provider's model (time to connect) and of the traffic (round trip to every replica). A node whose
//! way out was not measured is taken only where none is. What the last apply chose stays unless another node is better by
//! more than a share of what is expected of it (20 %, or the policy's `threshold`), and by more than 2 ms.

use serde::{Deserialize, Serialize};

use crate::placement::{End, Placed, Problem, Reason, Traffic, Unplaced, Via, WayOut, Ways};

/// Microseconds by which another node must be better at least.
const LEAST_GAIN_US: u64 = 2_000;

/// A way to a provider and the node that it goes through.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Egress {
    /// The agent; `None` where no agent uses the model.
    pub agent: Option<String>,
    /// The provider's model.
    pub provider_model: String,
    /// The egress node.
    pub node: String,
    /// Measured connect time.
    pub rtt_us: Option<u64>,
    /// `host:port` of the provider.
    pub endpoint: String,
    /// Connect time and weighted traffic; `None` where the connect time is unknown.
    pub expected_us: Option<u64>,
    /// Why this node: one clause.
    pub because: String,
    /// The other nodes, the nearest first.
    pub others: Vec<EgressOption>,
}

/// A node that was not chosen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EgressOption {
    /// The node.
    pub node: String,
    /// Measured connect time.
    pub rtt_us: Option<u64>,
    /// Connect time and weighted traffic.
    pub expected_us: Option<u64>,
    /// Why not.
    pub reason: String,
}

/// What became of the ways out.
#[derive(Debug, Default)]
pub(in crate::placement) struct WaysOut {
    pub egress: Vec<Egress>,
    pub unplaced: Vec<Unplaced>,
    pub notes: Vec<String>,
}

/// Chooses for every way out, where the models run.
pub(in crate::placement) fn choose(problem: &Problem, instances: &[Placed]) -> WaysOut {
    let mut chosen = WaysOut::default();
    for way in &problem.ways_out {
        let key = End::Out(way.key());
        let of = |flow: &&Traffic| flow.to == key;
        let flows: Vec<Sent<'_>> =
            problem.traffic.iter().filter(of).map(|flow| sent(problem, flow, instances)).collect();
        let options: Vec<Candidacy<'_>> = way.via.iter().map(|via| option(problem, way, via, &flows)).collect();
        match pick(way, &options) {
            Some((index, because, note)) => {
                chosen.egress.push(taken(way, &options, index, because));
                chosen.notes.extend(note);
            }
            None => missing(problem, way, &options, &mut chosen.unplaced),
        }
    }
    chosen
}

/// A node as it would do.
struct Candidacy<'p> {
    via: &'p Via,
    expected_us: Option<u64>,
    traffic_us: u64,
    /// Why it may not be taken.
    refused: Option<Reason>,
}

/// Traffic to a way out: the ways as they count for it, and the nodes that it comes from.
struct Sent<'p> {
    flow: &'p Traffic,
    ways: Ways<'p>,
    places: Vec<&'p str>,
}

fn sent<'p>(problem: &'p Problem, flow: &'p Traffic, instances: &'p [Placed]) -> Sent<'p> {
    let of = |placed: &&Placed| placed.model == flow.from;
    let places = instances.iter().filter(of).map(|placed| placed.node.as_str()).collect();
    Sent { flow, ways: problem.distances.ways(flow.bytes_per_turn), places }
}

fn option<'p>(problem: &Problem, way: &WayOut, via: &'p Via, flows: &[Sent<'_>]) -> Candidacy<'p> {
    let mut traffic = 0.0;
    let mut refused = via.closed.as_ref().map(|(word, text)| plain(&via.node, word, text.clone()));
    for Sent { flow, ways, places } in flows {
        let sum: f64 = places.iter().map(|place| ways.seconds(place, &via.node)).sum();
        traffic += flow.weight * sum / places.len().max(1) as f64;
        refused = refused.or_else(|| places.iter().find_map(|place| too_far(problem, flow, via, place)));
    }
    let traffic_us = (traffic * 1e6).round() as u64;
    if let (Some(limit), Some(connect), None) = (way.max_latency_us, via.connect_us, &refused)
        && connect > limit
    {
        let text = format!("{} to connect to {}; {} needed", ms(connect), way.endpoint, ms(limit));
        refused = Some(counted(&via.node, limit, connect, text));
    }
    Candidacy {
        via,
        expected_us: via.connect_us.map(|connect| connect.saturating_add(traffic_us)),
        traffic_us,
        refused,
    }
}

fn too_far(problem: &Problem, flow: &Traffic, via: &Via, place: &str) -> Option<Reason> {
    let limit = flow.max_latency_us?;
    let rtt = problem.distances.rtt_us(place, &via.node).filter(|rtt| *rtt > limit)?;
    let text = format!("{} to {place}, where `{}` runs; {} needed ({})", ms(rtt), flow.from, ms(limit), flow.because);
    Some(counted(&via.node, limit, rtt, text))
}

/// The node, why, and what to note; `None` where none may be taken.
fn pick(way: &WayOut, options: &[Candidacy<'_>]) -> Option<(usize, String, Option<String>)> {
    let open = || options.iter().enumerate().filter(|(_, option)| option.refused.is_none());
    let previous = || open().find(|(_, option)| Some(&option.via.node) == way.previous.as_ref());
    let known = || open().filter_map(|(index, option)| Some((option.expected_us?, index)));
    if let Some((least, best)) = known().min_by_key(|(expected, index)| (*expected, *index)) {
        let others = known().count() > 1;
        if let Some((index, option)) = previous()
            && let Some(expected) = option.expected_us.filter(|_| index != best)
        {
            let gain = expected - least;
            if gain <= LEAST_GAIN_US || gain as f64 <= way.threshold * expected as f64 {
                let because = format!(
                    "stays; {} is better by {}, and a change has to gain more than {} % and {}",
                    options[best].via.node,
                    ms(gain),
                    (way.threshold * 1000.0).round() / 10.0,
                    ms(LEAST_GAIN_US)
                );
                return Some((index, because, None));
            }
        }
        let over = || {
            options
                .iter()
                .any(|option| option.refused.is_some() && option.expected_us.is_some() && option.via.closed.is_none())
        };
        let because = match others {
            true => "the least expected latency",
            false if over() => "the only one within its limits",
            false => "the only one with a known way",
        };
        return Some((best, because.to_owned(), None));
    }
    // A measured way that is too long is no reason to try one that nobody measured.
    if options
        .iter()
        .any(|option| option.refused.is_some() && option.via.connect_us.is_some() && option.via.closed.is_none())
    {
        return None;
    }
    let (index, option) = previous()
        .or_else(|| open().min_by_key(|(index, option)| (option.via.problem.is_some(), !option.via.local, *index)))?;
    let because = if Some(&option.via.node) == way.previous.as_ref() {
        "stays; no way out is measured"
    } else if option.via.local {
        "the controller's own way; no way out is measured"
    } else {
        "the first by name; no way out is measured"
    };
    let why = option.via.problem.as_ref().map(|why| format!(" ({}: {why})", option.via.node)).unwrap_or_default();
    let limit = way.max_latency_us.map(|limit| format!(", so `max-latency` {} cannot be checked", ms(limit)));
    let note = format!(
        "model `{}`: no way out to {} is measured{why}{}; it goes through {}, and `flock discover --measure` measures it",
        way.model,
        way.endpoint,
        limit.unwrap_or_default(),
        option.via.node
    );
    Some((index, because.to_owned(), Some(note)))
}

fn taken(way: &WayOut, options: &[Candidacy<'_>], index: usize, because: String) -> Egress {
    let chosen = &options[index];
    let mut others: Vec<&Candidacy<'_>> =
        options.iter().enumerate().filter(|(i, _)| *i != index).map(|(_, o)| o).collect();
    others.sort_by_key(|option| {
        (option.refused.is_some(), option.expected_us.is_none(), option.expected_us, &option.via.node)
    });
    Egress {
        agent: way.agent.clone(),
        provider_model: way.model.clone(),
        node: chosen.via.node.clone(),
        rtt_us: chosen.via.connect_us,
        endpoint: way.endpoint.clone(),
        expected_us: chosen.expected_us,
        because,
        others: others.into_iter().map(|option| lost(chosen, option)).collect(),
    }
}

fn lost(chosen: &Candidacy<'_>, option: &Candidacy<'_>) -> EgressOption {
    let reason = match (&option.refused, option.expected_us, chosen.expected_us) {
        (Some(refused), ..) => refused.text.clone(),
        (None, None, _) => match &option.via.problem {
            Some(why) => format!("cannot connect: {why}"),
            None => "not measured".to_owned(),
        },
        (None, Some(own), Some(best)) if own > best => {
            let traffic = match option.traffic_us {
                0 => String::new(),
                traffic => format!(", {} of it traffic with models", ms(traffic)),
            };
            format!("{} more is expected ({} in all{traffic})", ms(own - best), ms(own))
        }
        (None, Some(own), Some(best)) if own < best => {
            format!("better by {}, which is not worth a change", ms(best - own))
        }
        (None, Some(_), _) => "as good; the first by name is taken".to_owned(),
    };
    EgressOption {
        node: option.via.node.clone(),
        rtt_us: option.via.connect_us,
        expected_us: option.expected_us,
        reason,
    }
}

/// A way out without a node, beside those of the same model.
fn missing(problem: &Problem, way: &WayOut, options: &[Candidacy<'_>], unplaced: &mut Vec<Unplaced>) {
    let mut reasons: Vec<Reason> = options
        .iter()
        .map(|option| match (&option.refused, &option.via.problem) {
            (Some(refused), _) => refused.clone(),
            (None, Some(why)) => {
                plain(&option.via.node, "egress", format!("cannot connect to {}: {why}", way.endpoint))
            }
            (None, None) => plain(&option.via.node, "egress", format!("the way to {} is not measured", way.endpoint)),
        })
        .collect();
    if reasons.iter().all(|reason| reason.constraint != "egress") {
        reasons.push(plain("*", "egress", format!("no node may be used for the way out to {}", way.endpoint)));
    }
    let nearest = nearest(problem, way, &reasons);
    match unplaced.iter_mut().find(|known| known.model == way.model) {
        Some(known) => {
            known.replicas += 1;
            let new: Vec<Reason> = reasons.into_iter().filter(|reason| !known.reasons.contains(reason)).collect();
            known.reasons.extend(new);
        }
        None => {
            let (model, together) = (way.model.clone(), Vec::new());
            unplaced.push(Unplaced { model, replicas: 1, required: true, reasons, nearest, together });
        }
    }
}

/// The limit that the closest node is over, as it would have to be.
fn nearest(problem: &Problem, way: &WayOut, reasons: &[Reason]) -> String {
    let over = |reason: &&Reason| reason.unit.as_deref() == Some("us");
    let closest = reasons.iter().filter(over).min_by_key(|reason| {
        (reason.available.unwrap_or(0).saturating_sub(reason.needed.unwrap_or(0)), reason.node.clone())
    });
    let Some((reason, available)) = closest.and_then(|reason| Some((reason, reason.available?))) else {
        return if problem.nodes.is_empty() { "a node" } else { "a node that may be used and answers" }.to_owned();
    };
    let word = format!("`max-latency` of {} ms for {}", available.div_ceil(1000), reason.node);
    let slow = way.max_latency_us.is_some() && reason.needed == way.max_latency_us;
    if slow {
        format!("{word}, or a node closer to {}", way.endpoint)
    } else {
        format!("{word} (of the traffic), or a node between them")
    }
}

fn plain(node: &str, constraint: &str, text: String) -> Reason {
    let (node, constraint) = (node.to_owned(), constraint.to_owned());
    Reason { node, alike: 0, constraint, needed: None, available: None, unit: None, text }
}

fn counted(node: &str, limit: u64, measured: u64, text: String) -> Reason {
    let (needed, available, unit) = (Some(limit), Some(measured), Some("us".to_owned()));
    Reason { needed, available, unit, ..plain(node, "egress", text) }
}

/// `11.2 ms`.
pub(in crate::placement) fn ms(us: u64) -> String {
    format!("{:.1} ms", us as f64 / 1000.0)
}
