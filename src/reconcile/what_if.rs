//! What would be otherwise, applied to the desired state and to the facts: pure, and nothing that could be carried out.

use std::collections::BTreeMap;

use crate::base::Diagnostic;
use crate::config::{AddedNode, Alteration, Desired, Model, WhatIf};
use crate::inventory::{Inventory, NodeFacts, WeightsFound};
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
/// A finding at a change that cannot be made: the facts of the node that another one should be like are not known.
pub fn suppose(
    files: &[WhatIf],
    desired: &Desired,
    inventory: &Inventory,
    lock: &Lock,
) -> Result<Supposed, Box<Diagnostic>> {
    let mut supposed =
        Supposed { desired: desired.clone(), inventory: inventory.clone(), lock: lock.clone(), notes: Vec::new() };
    for change in files.iter().flat_map(|file| &file.changes) {
        match change {
            Alteration::AddNode(added) => add_node(&mut supposed, added, desired, inventory)?,
            Alteration::DropNode(name) => drop_node(&mut supposed, &name.value),
            Alteration::AddModel(model) => add_model(&mut supposed, model),
        }
    }
    supposed.inventory.nodes.sort_by(|a, b| a.name.cmp(&b.name));
    supposed.notes.sort();
    supposed.notes.dedup();
    Ok(supposed)
}

fn add_node(
    supposed: &mut Supposed,
    added: &AddedNode,
    desired: &Desired,
    inventory: &Inventory,
) -> Result<(), Box<Diagnostic>> {
    let (name, like) = (&added.name.value, &added.like.value);
    let Some((node, facts)) = desired.nodes.get(like).zip(known(inventory, like)) else {
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
    supposed.desired.nodes.insert(name.clone(), node);
    for engine in supposed.desired.engines.values_mut() {
        let own: Vec<_> = engine.paths.iter().filter(|path| path.node.as_ref() == Some(like)).cloned().collect();
        engine.paths.extend(own.into_iter().map(|path| crate::config::EnginePath { node: Some(name.clone()), ..path }));
    }
    // Files that a config expects to lie on nodes are the owner's to bring; what flock brought is not there yet.
    let on_node = |weights: &WeightsFound| weights.source.starts_with("on-node:");
    if facts.weights.iter().any(on_node) {
        supposed.notes.push(format!("files of `on-node:` sources count as there on {name}, as on {like}"));
    }
    supposed.inventory.nodes.push(facts.like(name, on_node));
    let links: Vec<_> = inventory.links.iter().filter(|link| link.from == *like || link.to == *like).cloned().collect();
    for mut link in links {
        for end in [&mut link.from, &mut link.to] {
            if end == like {
                end.clone_from(name);
            }
        }
        link.measured = false;
        supposed.inventory.links.push(link);
    }
    let egress: Vec<_> = inventory.egress.iter().filter(|way| way.node == *like).cloned().collect();
    supposed.inventory.egress.extend(egress.into_iter().map(|mut way| {
        way.node.clone_from(name);
        way
    }));
    Ok(())
}

/// Facts of a node that answered.
fn known<'i>(inventory: &'i Inventory, name: &str) -> Option<&'i NodeFacts> {
    inventory.node(name).filter(|facts| facts.reachable)
}

/// The node with everything on it.
fn drop_node(supposed: &mut Supposed, name: &str) {
    supposed.desired.nodes.remove(name);
    let inventory = &mut supposed.inventory;
    inventory.nodes.retain(|node| node.name != name);
    inventory.links.retain(|link| link.from != name && link.to != name);
    inventory.egress.retain(|way| way.node != name);
    inventory.member.holds.retain(|hold| hold.node != name);
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
