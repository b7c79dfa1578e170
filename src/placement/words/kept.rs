//! What keeps running although it could not be started anew, and where what runs comes to more than can be used.

use std::collections::{BTreeMap, BTreeSet};

use crate::base::format_bytes;
use crate::placement::Problem;
use crate::placement::layout::{ACCELERATOR_WOBBLE, Capacities, Copy, host_wobble, keepable};

/// One remark for everything of a model that stays for the same reason, and one for each overfull accelerator or host.
pub fn kept(problem: &Problem, layout: &[Copy]) -> Vec<String> {
    let mut stays: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    let kept = || layout.iter().filter(|copy| copy.kept.is_some());
    for copy in kept() {
        let demand = &problem.models[copy.model];
        if let Some(why) = &demand.shapes[copy.shape].held {
            stays.entry((&demand.name, why)).or_default().insert(&problem.nodes[copy.node].name);
        }
    }
    let told = |((model, why), nodes): ((&str, &str), BTreeSet<&str>)| {
        let more = match nodes.len() {
            0 | 1 => String::new(),
            all => format!(" and {} more nodes", all - 1),
        };
        let first = nodes.first().copied().unwrap_or_default();
        format!("model `{model}` keeps running on `{first}`{more}, where it could not be started anew: {why}")
    };
    let mut notes: Vec<String> = stays.into_iter().map(told).collect();
    let taken: BTreeSet<usize> = kept().flat_map(Copy::nodes).collect();
    let capacities = Capacities::of(problem, &keepable(problem));
    for ((node, position), most, held) in capacities.overfull().filter(|((node, _), ..)| taken.contains(node)) {
        let supply = &problem.nodes[node];
        let (what, wobble) = match position {
            Some(position) => (format!("accelerator {position}"), ACCELERATOR_WOBBLE),
            None => ("host memory".to_owned(), host_wobble(most)),
        };
        if held > most + wobble && position.is_none_or(|position| supply.accelerators[position].healthy) {
            notes.push(format!(
                "{}: {what}: what runs counts as {}, {} can be used; it keeps its place, and nothing new comes beside it",
                supply.name,
                format_bytes(held),
                format_bytes(most)
            ));
        }
    }
    notes
}
