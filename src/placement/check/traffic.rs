//! An independent check of limits on traffic and ways out. Shares no code with the solver.

use std::collections::BTreeMap;

use crate::placement::check::verify::Known;
use crate::placement::{Egress, End, Placement, Problem};

/// Everything about traffic that is wrong with a placement.
pub(in crate::placement) fn traffic(known: &Known<'_>, placement: &Placement, faults: &mut Vec<String>) {
    let problem = known.problem;
    let round_trips = round_trips(problem);
    let rtt = |a: &str, b: &str| if a == b { Some(0) } else { round_trips.get(&(a, b)).copied() };
    let places = |model: &str| -> Vec<&str> {
        known.placed.get(model).into_iter().flatten().map(|placed| placed.node.as_str()).collect()
    };
    let runs = |model: &str, node: &str| known.here.contains_key(&(model, node));
    let fixed = |model: &str, node: &str| {
        let protected = known.models.get(model).is_some_and(|model| model.protected);
        let away = known.node(node).is_some_and(|node| !node.reachable);
        runs(model, node) && (protected || away)
    };
    for flow in &problem.traffic {
        let Some(limit) = flow.max_latency_us else { continue };
        let more = limit + (limit / 5).max(2_000);
        for from in places(&flow.from) {
            let (others, to): (Vec<&str>, Option<&str>) = match &flow.to {
                End::Model(to) => (places(to), Some(to)),
                End::Node(node) => (vec![node], None),
                End::Out(key) => (
                    placement.egress.iter().filter(|way| name(way) == *key).map(|way| way.node.as_str()).collect(),
                    None,
                ),
            };
            let kept = |other: &str| match rtt(from, other) {
                None => true,
                Some(rtt) if rtt <= limit => true,
                Some(rtt) => to.is_some_and(|to| {
                    let both = runs(&flow.from, from) && runs(to, other);
                    (rtt <= more && both) || (fixed(&flow.from, from) && fixed(to, other))
                }),
            };
            let stays = fixed(&flow.from, from) && others.iter().any(|other| to.is_none_or(|to| fixed(to, other)));
            if !others.is_empty() && !stays && !others.iter().any(|other| kept(other)) {
                faults.push(format!(
                    "{} on {from}: nothing of {:?} is within {limit} microseconds ({})",
                    flow.from, flow.to, flow.because
                ));
            }
        }
    }
    for way in &problem.ways_out {
        let chosen: Vec<&Egress> =
            placement.egress.iter().filter(|e| e.provider_model == way.model && e.agent == way.agent).collect();
        let what = way.agent.as_ref().map_or(way.model.clone(), |agent| format!("{} of agent {agent}", way.model));
        let missing = placement.unplaced.iter().any(|unplaced| unplaced.model == way.model);
        if chosen.len() != 1 && !(chosen.is_empty() && missing) {
            faults.push(format!("the way out of {what} has {} egress nodes", chosen.len()));
        }
        for egress in chosen {
            let Some(via) = way.via.iter().find(|via| via.node == egress.node) else {
                faults.push(format!("the way out of {what} goes through {}, which is not in the config", egress.node));
                continue;
            };
            if via.closed.is_some() {
                faults.push(format!("the way out of {what} goes through {}, which may not be used", egress.node));
            }
            if via.connect_us != egress.rtt_us || egress.endpoint != way.endpoint {
                faults.push(format!("the way out of {what} is not the one that was measured"));
            }
            let open = || way.via.iter().filter(|via| via.closed.is_none());
            let over = via.connect_us.is_some_and(|us| way.max_latency_us.is_some_and(|limit| us > limit));
            if over || (via.connect_us.is_none() && open().any(|via| via.connect_us.is_some())) {
                faults.push(format!("the way out of {what} through {} is too long or not known", egress.node));
            }
        }
    }
    let known = |egress: &Egress| {
        problem.ways_out.iter().any(|way| way.model == egress.provider_model && way.agent == egress.agent)
    };
    for egress in placement.egress.iter().filter(|egress| !known(egress)) {
        faults.push(format!("nothing needs the way out of {} through {}", egress.provider_model, egress.node));
    }
}

/// Measured round trips by both ends, in either order; none where no traffic has a limit.
fn round_trips(problem: &Problem) -> BTreeMap<(&str, &str), u64> {
    let mut found = BTreeMap::new();
    if problem.traffic.iter().any(|flow| flow.max_latency_us.is_some()) {
        for ((one, other), (rtt, _)) in &problem.distances.between {
            found.entry((one.as_str(), other.as_str())).or_insert(*rtt);
            found.entry((other.as_str(), one.as_str())).or_insert(*rtt);
        }
    }
    found
}

/// Whether what runs keeps the limits between models; where it does not, somebody has to lose.
pub(in crate::placement) fn near_enough(known: &Known<'_>) -> bool {
    let round_trips = round_trips(known.problem);
    let places = |model: &str| -> Vec<&str> {
        known.running.get(model).into_iter().flatten().map(|running| running.node.as_str()).collect()
    };
    known.problem.traffic.iter().all(|flow| {
        let (Some(limit), End::Model(to)) = (flow.max_latency_us, &flow.to) else { return true };
        let others = places(to);
        let far = |a: &str, b: &str| a != b && round_trips.get(&(a, b)).is_some_and(|rtt| *rtt > limit);
        places(&flow.from).iter().all(|from| others.iter().all(|other| !far(from, other)))
    })
}

/// As traffic names a way out.
fn name(egress: &Egress) -> String {
    match &egress.agent {
        Some(agent) => format!("agent/{agent}"),
        None => egress.provider_model.clone(),
    }
}
