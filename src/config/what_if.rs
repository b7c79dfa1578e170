//! The file of `flock plan --what-if`: hardware and models that are added or dropped in thought.
//!
//! `add node "x" like="ada-1"` (a name or a range; `price`, `label`, `reserve`, `spot` and `site` as of a node), `drop
//! node "a100"`, `add model "judge" { … }` as in cluster.kdl. What a model refers to is looked up in the config.

use std::collections::{BTreeMap, BTreeSet};

use super::context::{self, Context};
use super::model::Decoded;
use super::schema::{NodeSpec, Property, Type, arg, prop};
use super::syntax::{self, Entry, Node, Value};
use super::values::{self, Money};
use super::{Model, Reserve, check, cluster, ids, load, model, model_words, names, node};
use crate::base::{Diagnostic, Place, Severity, Spanned, Tree, sort_diagnostics};

const ADD_PROPERTIES: &[Property] = &[
    prop("like", Type::Name, "the node of the config that it is like").required(),
    prop("price", Type::HourlyPrice, "what an hour costs"),
];
static ADD_NODE: NodeSpec = NodeSpec::new("node", "a machine that is not there")
    .args(&[arg("name", Type::NameOrRange)])
    .props(ADD_PROPERTIES)
    .children(&[&node::LABEL, &cluster::RESERVE, &node::PRICE, &node::SPOT, &node::SITE])
    .many();
static DROP_NODE: NodeSpec =
    NodeSpec::new("node", "a machine that is gone").args(&[arg("name", Type::NameOrRange)]).many();

/// What would be otherwise, in the order written.
#[derive(Debug, Clone)]
pub struct WhatIf {
    /// The changes.
    pub changes: Vec<Alteration>,
}

/// One change.
#[derive(Debug, Clone)]
pub enum Alteration {
    /// A node that is not there.
    AddNode(Box<AddedNode>),
    /// A node of the config that is gone.
    DropNode(Spanned<String>),
    /// A model that the config does not have.
    AddModel(Box<Model>),
}

/// A node that is like another one.
#[derive(Debug, Clone)]
pub struct AddedNode {
    /// Its name.
    pub name: Spanned<String>,
    /// The node of the config that it is like.
    pub like: Spanned<String>,
    /// What an hour of it costs; `None` is what one of the other costs.
    pub price_per_hour: Option<Spanned<Money>>,
    /// Labels beside those of the other, or instead.
    pub labels: BTreeMap<String, String>,
    /// Memory left free, where it differs.
    pub reserve: Reserve,
    /// Whether it may be taken away, where it differs.
    pub spot: bool,
    /// Where it stands, where it differs.
    pub site: Option<Spanned<String>>,
}

/// Reads files against a config without errors, each with how findings call it; a later one knows the names of those
/// before. With errors there are no changes.
pub fn what_if(tree: &Tree, files: &[(String, Vec<u8>)]) -> (Option<Vec<WhatIf>>, Vec<Diagnostic>) {
    let mut cx = Context::new(tree);
    let config = load::read(&mut cx, None);
    // Declares the names and priorities that a model may refer to.
    let desired = load::resolve(&config, &mut cx);
    let defaults = load::cluster_block(&config, &mut cx).and_then(|block| block.child("defaults"));
    cx.found.clear();
    // Paths of its models are relative to the root, as in cluster.kdl, wherever the file itself lies.
    cx.at_root = true;
    let mut reader = Reader { cx: &mut cx, defaults, changes: Vec::new(), dropped: BTreeSet::new() };
    let mut read = Vec::new();
    let mut found = Vec::new();
    for (file, bytes) in files {
        let (nodes, mut broken) = syntax::parse(file, bytes);
        let whole = broken.iter().all(|one| one.severity != Severity::Error);
        if nodes.is_empty() && whole {
            let hint = "write `add node \"x\" like=\"NODE\"`, `drop node \"NODE\"` or `add model \"x\" { … }`";
            let place = Place::start_of(file);
            broken.push(Diagnostic::error(ids::NO_CHANGE, &place, "the file changes nothing").hint(hint));
        }
        // What follows from a broken line is no news.
        if whole && desired.is_some() {
            nodes.iter().for_each(|node| reader.read(node));
        }
        read.push(WhatIf { changes: std::mem::take(&mut reader.changes) });
        found.append(&mut broken);
        found.append(&mut reader.cx.found);
    }
    // What is only accepted of a node is told of its own declaration.
    found.retain(|one| one.id != ids::NOT_ENFORCED);
    sort_diagnostics(&mut found);
    found.dedup();
    let faulty = found.iter().any(|one| one.severity == Severity::Error);
    ((!faulty && desired.is_some()).then_some(read), found)
}

struct Reader<'r, 't, 'n> {
    cx: &'r mut Context<'t>,
    defaults: Option<&'n Node>,
    changes: Vec<Alteration>,
    dropped: BTreeSet<String>,
}

impl Reader<'_, '_, '_> {
    fn read(&mut self, written: &Node) {
        let what = written.entries.first().filter(|entry| entry.key.is_none()).and_then(Entry::text);
        match (written.word(), what) {
            ("add", Some("node")) => self.add_node(&without_first(written)),
            ("add", Some("model")) => self.add_model(&without_first(written)),
            ("drop", Some("node")) => self.drop_node(&without_first(written)),
            ("drop", Some("model")) => {
                let hint = "only nodes are dropped in thought; for a model set `replicas` in cluster.kdl and plan that";
                self.cx.error(ids::UNKNOWN_NODE, written.place(), "a model cannot be dropped here", hint);
            }
            ("drop", Some(name)) => self.short_drop(written, name),
            ("add", other) => {
                let hint = "write `add node \"x\" like=\"NODE\"` or `add model \"x\" { … }`";
                let message = match other {
                    Some(word) => format!("`add {}` is neither a node nor a model", word.escape_debug()),
                    None => "`add` does not say what".to_owned(),
                };
                self.cx.error(ids::MISSING_ARGUMENT, written.place(), message, hint);
            }
            ("drop", None) => {
                let hint = "write `drop node \"NODE\"`";
                self.cx.error(ids::MISSING_ARGUMENT, written.place(), "`drop` does not say what", hint);
            }
            ("node" | "model", _) => {
                let message = format!("`{}` without `add` or `drop`", written.word());
                let hint = format!("write `add {0} …` or `drop node …`", written.word());
                self.cx.error(ids::UNKNOWN_NODE, written.place(), message, hint);
            }
            (word, _) => {
                let message = format!("unknown word `{}` in a what-if file", word.escape_debug());
                let hint = names::near_miss(word, &["add", "drop"]);
                self.cx.error(ids::UNKNOWN_NODE, written.place(), message, hint);
            }
        }
    }

    /// `drop a100`: what is meant is clear.
    fn short_drop(&mut self, written: &Node, name: &str) {
        if written.entries.len() == 1 && written.children.is_none() {
            self.drop_node(written);
            return;
        }
        let hint = format!("write `drop node \"{}\"`, one on each line", name.escape_debug());
        self.cx.error(ids::EXTRA_ARGUMENT, written.place(), "`drop` takes `node` and one name", hint);
    }

    /// Whether a node's own words are right.
    fn checked(&mut self, written: &Node, spec: &'static NodeSpec) -> bool {
        let mut found = Vec::new();
        check::siblings(std::slice::from_ref(written), &[spec], None, &mut found);
        let good = found.iter().all(|one| one.severity != Severity::Error);
        self.cx.found.append(&mut found);
        good
    }

    fn add_node(&mut self, written: &Node) {
        if !self.checked(written, &ADD_NODE) {
            return;
        }
        let Some(name) = written.arg(0).and_then(Entry::spanned) else { return };
        let Some(like) = written.prop("like").and_then(Entry::spanned) else {
            // A missing property is the table's to say only where a decoder does not.
            let hint = "say which node of the config it is like: `like=\"NODE\"`";
            self.cx.error(ids::MISSING_PROPERTY, written.place(), "an added node is like no node", hint);
            return;
        };
        let known = self.cx.refer("node", &like);
        let child = |word: &str| written.child(word).and_then(|child| child.arg(0));
        let price = written.prop("price").or_else(|| child("price")).and_then(|entry| entry.get(values::hourly_price));
        let labels = context::labels(written.all("label"), self.cx);
        let reserve = written.child("reserve").map(cluster::reserve).unwrap_or_default();
        for (member, _) in node::range(&name.value).unwrap_or_default() {
            let member = Spanned::new(member, name.place.clone());
            if !self.free("node", &member) || !known {
                continue;
            }
            self.changes.push(Alteration::AddNode(Box::new(AddedNode {
                name: member,
                like: like.clone(),
                price_per_hour: price.clone(),
                labels: labels.clone(),
                reserve,
                spot: written.child("spot").is_some(),
                site: child("site").and_then(Entry::spanned),
            })));
        }
    }

    /// Declares a name; `false` and an error where it is taken.
    fn free(&mut self, kind: &'static str, name: &Spanned<String>) -> bool {
        // A name that was dropped is free once more.
        let dropped = kind == "node" && self.dropped.remove(&name.value);
        let Some(first) = self.cx.names.declare(kind, name).filter(|_| !dropped) else { return true };
        let message = format!("there is a {kind} `{}` already", name.value);
        let hint = "give it another name";
        self.cx.error_about(ids::DUPLICATE_NAME, &name.place, message, hint, (&first, "it is declared here"));
        false
    }

    fn drop_node(&mut self, written: &Node) {
        let mut node = written.clone();
        "node".clone_into(&mut node.name.value);
        if !self.checked(&node, &DROP_NODE) {
            return;
        }
        let Some(name) = node.arg(0).and_then(Entry::spanned) else { return };
        for (member, _) in node::range(&name.value).unwrap_or_default() {
            let member = Spanned::new(member, name.place.clone());
            if self.dropped.contains(&member.value) {
                let message = format!("the node `{}` is dropped twice", member.value);
                self.cx.error(ids::DUPLICATE_NAME, &member.place, message, "keep one");
            } else if self.cx.refer("node", &member) {
                self.dropped.insert(member.value.clone());
                self.changes.push(Alteration::DropNode(member));
            }
        }
    }

    fn add_model(&mut self, written: &Node) {
        if !self.checked(written, &model_words::MODEL) {
            return;
        }
        let Some(name) = written.arg(0).and_then(Entry::spanned) else { return };
        if !self.free("model", &name) {
            return;
        }
        match model::decode(written, self.defaults, self.cx) {
            Some(Decoded::Local(model)) => self.changes.push(Alteration::AddModel(model)),
            Some(Decoded::Provider(_)) => {
                let hint = "a provider's model needs no accelerator: add one with a `source`";
                self.cx.error(ids::CONTRADICTION, &name.place, "a model that a provider serves", hint);
            }
            None => {}
        }
    }
}

/// `add node "x" …` as `node "x" …`.
fn without_first(written: &Node) -> Node {
    let mut node = written.clone();
    if let Some(first) = node.entries.first()
        && let Value::Text { text, .. } = &first.value.value
    {
        node.name = Spanned::new(text.clone(), first.value.place.clone());
        node.entries.remove(0);
    }
    node
}
