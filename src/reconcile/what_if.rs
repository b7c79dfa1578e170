//! What would be otherwise, applied to the desired state and to the facts: pure, and nothing that could be carried out.

use std::collections::BTreeMap;

use crate::base::{Diagnostic, EngineKind};
use crate::config::{AddedNode, Alteration, Desired, EnginePath, Model, WhatIf};
use crate::inventory::{EgressLink, Inventory, NodeFacts, NodeLink, WeightsFound};
use crate::weights::{Lock, LockedModel};

use super::locked::{hub_sources, owners};

/// A node of the config of which nothing is known cannot be had twice.
pub(super) const UNKNOWN_LIKE: &str = "FLK221";

/// The state that would be.
#[derive(Debug, Clone)]
pub struct Supposed {
    /// The desired state.
    pub desired: Desired,
    /// The facts.
    pub inventory: Inventory,
    /// What is pinned; a model that is added finds the pins of another one with the same sources.
    pub lock: Lock,
    /// Things to know of it.
    pub notes: Vec<String>,
}

/// Applies what-if files, in their order.
///
/// # Errors
/// A finding at every change that cannot be made: the facts of the node that another one should be like are not known.
pub fn suppose(
    files: &[WhatIf],
    desired: &Desired,
    inventory: &Inventory,
    lock: &Lock,
) -> Result<Supposed, Vec<Diagnostic>> {
    let supposed =
        Supposed { desired: desired.clone(), inventory: inventory.clone(), lock: lock.clone(), notes: Vec::new() };
    let mut thought =
        Thought { supposed, known: Known::of(desired, inventory), dropped: BTreeMap::new(), added: Vec::new() };
    let mut found = Vec::new();
    for (step, change) in files.iter().flat_map(|file| &file.changes).enumerate() {
        match change {
            Alteration::AddNode(node) => found.extend(thought.add_node(step, node, desired).err()),
            Alteration::DropNode(name) => thought.drop_node(step, &name.value),
            Alteration::AddModel(model) => add_model(&mut thought.supposed, model),
        }
    }
    if found.is_empty() { Ok(thought.finish()) } else { Err(found.into_iter().map(|one| *one).collect()) }
}

/// What is known of what there is, by node, so that a long file is read in one go.
struct Known<'i> {
    /// Facts of the nodes that answered.
    nodes: BTreeMap<&'i str, &'i NodeFacts>,
    links: BTreeMap<&'i str, Vec<&'i NodeLink>>,
    egress: BTreeMap<&'i str, Vec<&'i EgressLink>>,
    /// Paths of engines that are meant for one node, with the engine.
    paths: BTreeMap<&'i str, Vec<(EngineKind, &'i EnginePath)>>,
}

impl<'i> Known<'i> {
    fn of(desired: &'i Desired, inventory: &'i Inventory) -> Self {
        let answered = inventory.nodes.iter().filter(|node| node.reachable);
        let mut known = Self {
            nodes: answered.map(|node| (node.name.as_str(), node)).collect(),
            links: BTreeMap::new(),
            egress: BTreeMap::new(),
            paths: BTreeMap::new(),
        };
        for link in &inventory.links {
            known.links.entry(&link.from).or_default().push(link);
            if link.to != link.from {
                known.links.entry(&link.to).or_default().push(link);
            }
        }
        for way in &inventory.egress {
            known.egress.entry(&way.node).or_default().push(way);
        }
        for (name, engine) in &desired.engines {
            for path in &engine.paths {
                if let Some(node) = &path.node {
                    known.paths.entry(node).or_default().push((*name, path));
                }
            }
        }
        known
    }
}

/// What one added node brings along.
struct Added {
    /// The number of the change that added it.
    step: usize,
    facts: NodeFacts,
    links: Vec<NodeLink>,
    egress: Vec<EgressLink>,
}

struct Thought<'i> {
    supposed: Supposed,
    known: Known<'i>,
    /// The last change that dropped each node.
    dropped: BTreeMap<String, usize>,
    added: Vec<Added>,
}

impl Thought<'_> {
    fn add_node(&mut self, step: usize, added: &AddedNode, desired: &Desired) -> Result<(), Box<Diagnostic>> {
        let (name, like) = (&added.name.value, &added.like.value);
        let Some((node, facts)) = desired.nodes.get(like).zip(self.known.nodes.get(like.as_str()).copied()) else {
            let text = format!("nothing is known of node `{like}`: there is nothing that `{name}` could be like");
            let hint = "name a node that answers, or plan from an inventory that has it";
            return Err(Box::new(Diagnostic::error(UNKNOWN_LIKE, &added.like.place, text).hint(hint)));
        };
        let mut node = node.clone();
        node.name = added.name.clone();
        node.hold = None;
        node.labels.extend(added.labels.clone());
        node.reserve.vram = added.reserve.vram.or(node.reserve.vram);
        node.reserve.ram = added.reserve.ram.or(node.reserve.ram);
        node.extras.spot |= added.spot;
        node.extras.site = added.site.clone().or(node.extras.site);
        node.extras.price_per_hour = added.price_per_hour.clone().or(node.extras.price_per_hour);
        self.supposed.desired.nodes.insert(name.clone(), node);
        for (engine, path) in self.known.paths.get(like.as_str()).into_iter().flatten() {
            if let Some(engine) = self.supposed.desired.engines.get_mut(engine) {
                engine.paths.push(EnginePath { node: Some(name.clone()), path: path.path.clone() });
            }
        }
        // Files that a config expects to lie on nodes are the owner's to bring; what flock brought is not there yet.
        let on_node = |weights: &WeightsFound| weights.source.starts_with("on-node:");
        if facts.weights.iter().any(on_node) {
            self.supposed.notes.push(format!("files of `on-node:` sources count as there on {name}, as on {like}"));
        }
        let links = self.known.links.get(like.as_str()).into_iter().flatten();
        let links = links.map(|link| {
            let end = |end: &String| if end == like { name.clone() } else { end.clone() };
            NodeLink { from: end(&link.from), to: end(&link.to), measured: false, ..(*link).clone() }
        });
        let egress = self.known.egress.get(like.as_str()).into_iter().flatten();
        let egress = egress.map(|way| EgressLink { node: name.clone(), ..(*way).clone() });
        let (links, egress) = (links.collect(), egress.collect());
        self.added.push(Added { step, facts: facts.like(name, on_node), links, egress });
        Ok(())
    }

    /// The node with everything on it.
    fn drop_node(&mut self, step: usize, name: &str) {
        self.supposed.desired.nodes.remove(name);
        self.dropped.insert(name.to_owned(), step);
    }

    fn finish(self) -> Supposed {
        let Self { mut supposed, dropped, added, .. } = self;
        let inventory = &mut supposed.inventory;
        inventory.nodes.retain(|node| !dropped.contains_key(&node.name));
        inventory.links.retain(|link| !dropped.contains_key(&link.from) && !dropped.contains_key(&link.to));
        inventory.egress.retain(|way| !dropped.contains_key(&way.node));
        inventory.member.holds.retain(|hold| !dropped.contains_key(&hold.node));
        // What was added and dropped again later is gone, too; so is a link whose other end is.
        let stays = |added: &Added| dropped.get(&added.facts.name).is_none_or(|at| *at < added.step);
        for added in added.into_iter().filter(stays) {
            let name = &added.facts.name;
            let kept = |end: &String| end == name || !dropped.contains_key(end);
            let links = added.links.into_iter().filter(|link| link.from != link.to);
            inventory.links.extend(links.filter(|link| kept(&link.from) && kept(&link.to)));
            inventory.nodes.push(added.facts);
            inventory.egress.extend(added.egress);
        }
        inventory.nodes.sort_by(|a, b| a.name.cmp(&b.name));
        supposed.notes.sort();
        supposed.notes.dedup();
        supposed
    }
}

fn add_model(supposed: &mut Supposed, model: &Model) {
    let name = &model.name.value;
    let wanted: Vec<String> = hub_sources(model).iter().map(|source| source.value.to_string()).collect();
    if !wanted.is_empty() && !supposed.lock.models.contains_key(name) {
        // The pins of models that have the same sources, each source once.
        let mut sources: BTreeMap<&str, &crate::weights::LockedSource> = BTreeMap::new();
        for locked in supposed.lock.models.values().flat_map(|locked| &locked.sources) {
            sources.entry(&locked.source).or_insert(locked);
        }
        let own: Option<Vec<_>> = wanted.iter().map(|source| sources.get(source.as_str()).copied().cloned()).collect();
        if let Some(mut own) = own {
            let bases: Vec<String> = own.iter().map(|source| source.repository.clone()).collect();
            let trusted = owners(model);
            for source in sources.values() {
                let owner = source.repository.split('/').next().unwrap_or_default();
                let of = source.quantised_from.as_ref().is_some_and(|base| bases.contains(base));
                if of && trusted.iter().any(|name| name.eq_ignore_ascii_case(owner)) {
                    own.push((*source).clone());
                }
            }
            let locked = LockedModel { weights_from: trusted, sources: own };
            supposed.lock.models.insert(name.clone(), locked);
        }
    }
    supposed.desired.models.insert(name.clone(), model.clone());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Tree;
    use crate::config;
    use crate::inventory::parse_inventory;

    const CLUSTER: &str = "cluster \"lab\" { }\nnode \"a\" address=\"10.0.0.1\"\nnode \"b\" address=\"10.0.0.2\"\n\
        engine \"vllm\" { path \"/opt/b\" node=\"b\" }\n";
    const FACTS: &str = r#"{ "format": 1, "nodes": [ { "name": "a" }, { "name": "b" } ],
        "links": [ { "from": "a", "to": "b", "rtt_us": 9 }, { "from": "b", "to": "a", "rtt_us": 8 } ],
        "egress": [ { "node": "b", "endpoint": "api.example:443", "rtt_us": 7 } ] }"#;

    fn with(text: &str) -> Supposed {
        let tree: Tree = [("cluster.kdl", CLUSTER)].into_iter().collect();
        let desired = config::load(&tree).desired.expect("valid");
        let files = config::what_if(&tree, &[("w.kdl".to_owned(), text.as_bytes().to_vec())]).0.expect("valid");
        suppose(&files, &desired, &parse_inventory(FACTS).expect("valid"), &Lock::default()).expect("known")
    }

    fn told(supposed: &Supposed) -> (Vec<&str>, Vec<String>, Vec<&str>) {
        let inventory = &supposed.inventory;
        let names: Vec<&str> = inventory.nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(names, supposed.desired.nodes.keys().map(String::as_str).collect::<Vec<_>>());
        let links = inventory.links.iter().map(|link| format!("{}>{}", link.from, link.to)).collect();
        (names, links, inventory.egress.iter().map(|way| way.node.as_str()).collect())
    }

    #[test]
    fn what_is_dropped_and_added_holds_in_the_order_written() {
        let words = |list: &[&str]| list.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
        let x = with("add node \"x\" like=\"b\"");
        assert_eq!(told(&x), (vec!["a", "b", "x"], words(&["a>b", "b>a", "a>x", "x>a"]), vec!["b", "x"]));
        let paths = &x.desired.engines[&EngineKind::Vllm].paths;
        assert_eq!(paths.iter().filter_map(|path| path.node.as_deref()).collect::<Vec<_>>(), ["b", "x"]);
        // Gone again, with everything on it.
        let gone = with("add node \"x\" like=\"b\"\ndrop node \"x\"");
        assert_eq!(told(&gone), (vec!["a", "b"], words(&["a>b", "b>a"]), vec!["b"]));
        // The end of a link that is gone takes the link along, whichever came first.
        for text in ["drop node \"a\"\nadd node \"x\" like=\"b\"", "add node \"x\" like=\"b\"\ndrop node \"a\""] {
            assert_eq!(told(&with(text)), (vec!["b", "x"], Vec::new(), vec!["b", "x"]), "{text}");
        }
        // One in the place of another: what was there is gone, what came stays.
        let other = with("drop node \"b\"\nadd node \"b\" like=\"a\"");
        assert_eq!(told(&other), (vec!["a", "b"], Vec::new(), Vec::new()));
    }
}
