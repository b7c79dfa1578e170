//! Nodes that are equal in all that the models can see: one class, whose shapes are built once, for its first node.
//!
//! Only in large clusters; in small ones every accelerator is looked at by itself. So that machines of one kind are
//! equal although their free memory never is, capacities are rounded down first (never above the truth): accelerators
//! to 64 MiB, host memory to 1 GiB or a thirty-second of it, disks to 16 GiB or an eighth. Weights that a node has do
//! not make it another one, unless its disk could not take them anew: bringing them counts as on a node without them,
//! and whoever chooses the machines prefers those that have them. What runs does not either: it is a `Running` on top.

use std::collections::{BTreeMap, BTreeSet};

use crate::base::{EngineKind, GIB, MIB};
use crate::config::{Condition, Desired, Field};
use crate::inventory::{Inventory, NodeFacts};
use crate::placement::build::shapes::{files_bytes, holds};
use crate::placement::{Candidate, Candidates, End, Limits, NodeSupply, Origin, Problem, accelerators};

/// Steps that capacities are rounded down to: of accelerators, of hosts, of disks.
const ACCELERATOR_STEP: u64 = 64 * MIB;
const HOST_STEP: u64 = GIB;
const DISK_STEP: u64 = 16 * GIB;
/// Nodes per accelerator of the limit up to which every node is looked at by itself, where few have accelerators.
const NODES: usize = 4;

/// Whether a cluster is so large that equal nodes are looked at once.
pub fn is_large(nodes: &[NodeSupply], limits: &Limits) -> bool {
    accelerators(nodes) > limits.exact_accelerators || nodes.len() > limits.exact_accelerators.saturating_mul(NODES)
}

/// Rounds down what nodes give.
pub fn round_down(nodes: &mut [NodeSupply]) {
    for node in nodes {
        for accelerator in &mut node.accelerators {
            accelerator.capacity_bytes -= accelerator.capacity_bytes % ACCELERATOR_STEP;
        }
        node.host_capacity_bytes = coarse(node.host_capacity_bytes, HOST_STEP, 32);
        node.disk_free_bytes = node.disk_free_bytes.map(|bytes| coarse(bytes, DISK_STEP, 8));
    }
}

/// One remark for all nodes that it is made of.
pub fn gather(notes: Vec<String>) -> Vec<String> {
    let mut nodes: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut general = Vec::new();
    for note in notes {
        match note.split_once(": ") {
            Some((node, text)) => drop(nodes.entry(text.to_owned()).or_default().insert(node.to_owned())),
            None => general.push(note),
        }
    }
    let told = |(text, names): (String, BTreeSet<String>)| match (names.first(), names.len()) {
        (Some(first), 2..) => format!("{first} and {} more nodes: {text}", names.len() - 1),
        (Some(first), _) => format!("{first}: {text}"),
        (None, _) => text,
    };
    general.extend(nodes.into_iter().map(told));
    general
}

/// Rounded down to a step, or to so many parts of the power of two below, whichever is coarser.
fn coarse(bytes: u64, step: u64, parts: u64) -> u64 {
    let power = 1_u64 << bytes.checked_ilog2().unwrap_or(0);
    bytes - bytes % step.max(power / parts)
}

/// Bytes to bring to any node of a class.
pub fn fetch_bytes(candidate: &Candidate, facts: &NodeFacts, disk_free: Option<u64>) -> u64 {
    let all = files_bytes(candidate);
    let tight = disk_free.is_some_and(|free| all > free);
    if tight && holds(candidate, facts) { 0 } else { all }
}

/// Sorts the nodes of a problem into classes, by node as [`Problem::alike`] has them: each under its first node.
pub fn classes(
    problem: &Problem,
    desired: &Desired,
    inventory: &Inventory,
    candidates: &Candidates,
) -> Vec<Vec<usize>> {
    let matter = Matter::of(problem, desired, candidates);
    let mut first: BTreeMap<Seen<'_>, usize> = BTreeMap::new();
    let mut alike = vec![Vec::new(); problem.nodes.len()];
    let mut order: Vec<usize> = (0..problem.nodes.len()).collect();
    order.sort_by_key(|node| &problem.nodes[*node].name);
    for node in order {
        let supply = &problem.nodes[node];
        let seen = matter.seen(supply, desired, inventory.node(&supply.name));
        alike[*first.entry(seen).or_insert(node)].push(node);
    }
    alike
}

/// What the models, policies and traffic look at, beside memory and engines.
#[derive(Default)]
struct Matter<'a> {
    /// Labels.
    labels: BTreeSet<&'a str>,
    /// Nodes that something names.
    names: BTreeSet<&'a str>,
    /// Candidates whose files are on some nodes only, by node: model and position.
    files: BTreeMap<&'a str, Vec<(&'a str, usize)>>,
    /// Bytes of candidates' files, by revision.
    sizes: BTreeMap<&'a str, u64>,
}

impl<'a> Matter<'a> {
    fn of(problem: &'a Problem, desired: &'a Desired, candidates: &'a Candidates) -> Self {
        let mut this = Self::default();
        for model in desired.models.values() {
            for require in &model.place.require {
                this.label(&require.value.label, [&require.value.is]);
            }
            for prefer in &model.place.prefer {
                this.label(&prefer.value.0.label, [&prefer.value.0.is]);
            }
            this.labels.extend(model.place.spread_by.iter().map(|label| label.value.as_str()).filter(|l| *l != "node"));
        }
        for denial in desired.policies.denials.values() {
            this.condition(&denial.when.value);
        }
        for traffic in &problem.traffic {
            if let End::Node(name) = &traffic.to {
                this.names.insert(name);
            }
        }
        // What runs over several nodes is known by their names.
        for running in problem.running.iter().filter(|running| !running.further.is_empty()) {
            this.names.insert(&running.node);
            this.names.extend(running.further.iter().map(|(node, _)| node.as_str()));
        }
        for (model, list) in candidates {
            for (index, candidate) in list.iter().flatten().enumerate() {
                if let Origin::OnNode { nodes, .. } = &candidate.origin {
                    nodes.iter().for_each(|node| this.files.entry(node).or_default().push((model, index)));
                } else {
                    let size = this.sizes.entry(&candidate.revision).or_default();
                    *size = files_bytes(candidate).max(*size);
                }
            }
        }
        this
    }

    fn label(&mut self, label: &'a str, is: impl IntoIterator<Item = &'a String>) {
        if label == "node" {
            self.names.extend(is.into_iter().map(String::as_str));
        } else {
            self.labels.insert(label);
        }
    }

    fn condition(&mut self, condition: &'a Condition) {
        match condition {
            Condition::Any(parts) | Condition::All(parts) => parts.iter().for_each(|part| self.condition(part)),
            Condition::Not(part) => self.condition(part),
            Condition::OneOf(Field::NodeName, names) => self.label("node", names),
            Condition::OneOf(Field::NodeLabel(label), values) => self.label(label, values),
            // Owner, site and spot always count.
            Condition::OneOf(..) | Condition::Is(_) => {}
        }
    }

    fn seen<'n>(&self, supply: &'n NodeSupply, desired: &'n Desired, facts: Option<&'n NodeFacts>) -> Seen<'n>
    where
        'a: 'n,
    {
        let extras = desired.nodes.get(&supply.name).map(|node| &node.extras);
        let named = self.names.contains(supply.name.as_str());
        let labels = supply.labels.iter().filter(|(label, _)| self.labels.contains(label.as_str()));
        let tight = |revision: &str| {
            let free = supply.disk_free_bytes?;
            self.sizes.get_key_value(revision).filter(|(_, bytes)| **bytes > free).map(|(known, _)| *known)
        };
        let cut = supply.closed.as_ref().map(|(word, text)| match word.as_str() {
            // Why each of them does not answer is its own affair.
            "unreachable" => (word.as_str(), ""),
            _ => (word.as_str(), text.as_str()),
        });
        Seen {
            name: named.then_some(supply.name.as_str()),
            member: supply.member,
            reachable: supply.reachable,
            drained: supply.drained,
            closed: cut,
            accelerators: supply.accelerators.iter().map(|a| Device::of(a, facts)).collect(),
            links: links(supply, facts),
            driver_fails: facts.and_then(|facts| facts.unknown.get("accelerators")).map(String::as_str),
            host_bytes: supply.host_capacity_bytes,
            disk_bytes: supply.disk_free_bytes,
            engines: supply.engines.iter().map(|e| (e.kind, e.version.as_deref(), e.program.as_str())).collect(),
            labels: labels.map(|(label, value)| (label.as_str(), value.as_str())).collect(),
            price: supply.price_per_hour.map(f64::to_bits),
            spot: supply.spot || extras.is_some_and(|extras| extras.spot),
            site: supply.site.as_deref().or(extras.and_then(|e| e.site.as_ref()).map(|site| site.value.as_str())),
            owner: extras.and_then(|e| e.owner.as_ref()).map(|owner| owner.value.as_str()),
            declared_price: extras.and_then(|e| e.price_per_hour.as_ref()).map(|price| price.value.0),
            files: self.files.get(supply.name.as_str()).cloned().unwrap_or_default(),
            kept_files: supply.weights.iter().filter_map(|revision| tight(revision)).collect(),
        }
    }
}

/// All that can be seen of a node.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Seen<'n> {
    name: Option<&'n str>,
    member: bool,
    reachable: bool,
    drained: bool,
    closed: Option<(&'n str, &'n str)>,
    accelerators: Vec<Device<'n>>,
    links: Vec<(usize, usize, &'n str)>,
    driver_fails: Option<&'n str>,
    host_bytes: u64,
    disk_bytes: Option<u64>,
    engines: Vec<(EngineKind, Option<&'n str>, &'n str)>,
    labels: Vec<(&'n str, &'n str)>,
    price: Option<u64>,
    declared_price: Option<u64>,
    spot: bool,
    site: Option<&'n str>,
    owner: Option<&'n str>,
    files: Vec<(&'n str, usize)>,
    kept_files: Vec<&'n str>,
}

/// All that can be seen of an accelerator; neither its identity nor what of it happens to be free.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Device<'n> {
    kind: &'n str,
    vendor: &'n str,
    name: Option<&'n str>,
    capability: Option<&'n str>,
    bandwidth: Option<u64>,
    capacity_bytes: u64,
    total_bytes: u64,
    reserve_bytes: u64,
    driver_bytes: u64,
    unified: bool,
    mig: bool,
    healthy: bool,
}

impl<'n> Device<'n> {
    fn of(supply: &'n crate::placement::AcceleratorSupply, facts: Option<&'n NodeFacts>) -> Self {
        let device = facts.and_then(|facts| facts.accelerator(&supply.uuid));
        Self {
            kind: &supply.kind,
            vendor: &supply.vendor,
            name: device.map(|device| device.name.as_str()),
            capability: device.and_then(|device| device.compute_capability.as_deref()),
            bandwidth: device.and_then(|device| device.bandwidth_bytes_per_s),
            capacity_bytes: supply.capacity_bytes,
            total_bytes: supply.total_bytes,
            reserve_bytes: supply.reserve_bytes,
            driver_bytes: supply.driver_bytes,
            unified: supply.unified,
            mig: supply.mig,
            healthy: supply.healthy,
        }
    }
}

/// How a node's accelerators are joined, by their positions.
fn links<'n>(supply: &NodeSupply, facts: Option<&'n NodeFacts>) -> Vec<(usize, usize, &'n str)> {
    let joined = facts.map_or(&[][..], |facts| &facts.accelerator_links).iter().filter_map(|link| {
        let (a, b) = (supply.position(&link.a)?, supply.position(&link.b)?);
        Some((a.min(b), a.max(b), link.kind.as_str()))
    });
    let mut joined: Vec<_> = joined.collect();
    joined.sort_unstable();
    joined
}

/// The same problem with every node by itself, and of every model's shape there the one here that it is.
pub fn apart(problem: &Problem) -> (Problem, Vec<Vec<usize>>) {
    let mut apart = Problem { alike: Vec::new(), ..problem.clone() };
    let mut origins = Vec::with_capacity(apart.models.len());
    for model in &mut apart.models {
        let mut shapes = Vec::new();
        for (origin, shape) in model.shapes.iter().enumerate() {
            for node in problem.stands_for(shape.node) {
                let mut own = shape.clone();
                own.further.iter_mut().filter(|part| part.node == shape.node).for_each(|part| part.node = node);
                own.node = node;
                // Where its weights are, nothing is brought.
                let candidate = model.candidates.get(shape.candidate).map_or("", |c| c.revision.as_str());
                if !candidate.is_empty() && problem.nodes[node].weights.contains(candidate) {
                    own.fetch_bytes = 0;
                }
                shapes.push((own, origin));
            }
        }
        // As `Problem::sort` has them: the order of equal shapes is that of their nodes.
        shapes.sort_by(|(a, _), (b, _)| crate::placement::problem::key(a).cmp(&crate::placement::problem::key(b)));
        let (shapes, origin): (Vec<_>, Vec<_>) = shapes.into_iter().unzip();
        model.shapes = shapes;
        origins.push(origin);
    }
    (apart, origins)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_goes_down_by_a_step_or_by_a_share() {
        assert_eq!(coarse(0, GIB, 32), 0);
        assert_eq!(coarse(5 * GIB - 1, GIB, 32), 4 * GIB);
        assert_eq!(coarse(503 * GIB, GIB, 32), 496 * GIB);
        assert_eq!(coarse(1 << 50, GIB, 32), 1 << 50);
        assert_eq!(coarse(2000 * GIB, 16 * GIB, 8), 1920 * GIB);
        assert!((0..64).all(|bit| coarse(1 << bit, GIB, 32) <= 1 << bit));
        assert!(coarse(u64::MAX, GIB, 32) < u64::MAX);
    }

    #[test]
    fn one_remark_of_many_nodes_is_one() {
        let notes = ["b: x is unknown", "a: x is unknown", "c: y", "general"].map(str::to_owned).to_vec();
        assert_eq!(gather(notes), ["general", "a and 1 more nodes: x is unknown", "c: y"]);
    }
}
