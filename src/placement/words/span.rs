//! Whether a model without a place would have one over several nodes, where the config does not allow that yet.

use crate::config::Desired;
use crate::inventory::Inventory;
use crate::placement::build::room::Room;
use crate::placement::words::phrases;
use crate::placement::{Candidate, Candidates, ModelDemand, Options, Problem, Shape, build};

/// The change in words: `` `allow nodes=#true`: it would run over 2 nodes: …``. `None` where that is allowed already, or
/// would not help beside what is placed.
pub fn allowed(
    problem: &Problem,
    (desired, inventory): (&Desired, &Inventory),
    room: &Room<'_>,
    name: &str,
    candidates: &[Candidate],
) -> Option<String> {
    // In a large cluster such splits are not looked for.
    if !problem.alike.is_empty() || desired.models.get(name)?.place.allow_nodes {
        return None;
    }
    let mut other = desired.clone();
    other.models.retain(|model, _| model == name);
    other.models.get_mut(name)?.place.allow_nodes = true;
    let candidates = Candidates::from([(name.to_owned(), Ok(candidates.to_vec()))]);
    let options = Options { limits: problem.limits, ..Options::default() };
    let built = build(&other, inventory, &candidates, &options);
    let demand: &ModelDemand = built.models.first()?;
    let fits = |shape: &&Shape| {
        shape.spans_nodes()
            && !shape.keep_only
            && shape.spans().all(|span| {
                let same =
                    problem.nodes.get(span.node).map(|node| &node.name) == built.nodes.get(span.node).map(|n| &n.name);
                let on_each = span.ranks == 0 || room.left_on_each(span.node, span.group, span.ranks) >= span.claimed;
                same && on_each && room.host_left(span.node) >= span.host_bytes
            })
    };
    let shape = demand.shapes.iter().filter(fits).min_by_key(|shape| demand.loss(shape))?;
    Some(format!("`allow nodes=#true`: it would run {}", phrases::on(&built, demand, shape)))
}
