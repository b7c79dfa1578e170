//! Labels that `place` asks for and no node has: such a model finds no place, or a wish has no effect.

use std::collections::BTreeMap;

use super::context::Context;
use super::{LabelIs, Model, Node, ids, names};
use crate::base::{Diagnostic, Place};

/// Warns of every `require`, `prefer` and `spread` that no node of the config can meet.
pub(super) fn check(models: &BTreeMap<String, Model>, nodes: &BTreeMap<String, Node>, cx: &mut Context<'_>) {
    // A repository without nodes is one in the making.
    if nodes.is_empty() {
        return;
    }
    for model in models.values() {
        let rules = &model.place;
        for require in &rules.require {
            one(&require.value, &require.place, "the model finds no place", nodes, cx);
        }
        for prefer in &rules.prefer {
            one(&prefer.value.0, &prefer.place, "it has no effect", nodes, cx);
        }
        if let Some(by) = &rules.spread_by
            && by.value != "node"
            && !nodes.values().any(|node| node.labels.contains_key(&by.value))
        {
            let message = format!("no node has the label `{}`: all of them count as one to spread over", by.value);
            cx.found.push(Diagnostic::warning(ids::LABEL_NOWHERE, &by.place, message).hint(near(&by.value, nodes)));
        }
    }
}

fn one(wanted: &LabelIs, place: &Place, effect: &str, nodes: &BTreeMap<String, Node>, cx: &mut Context<'_>) {
    let LabelIs { label, is } = wanted;
    // A node's name is held against the declared ones where it is read.
    let of = |node: &'_ Node| node.labels.get(label).cloned();
    let mut values: Vec<String> = nodes.values().filter_map(of).collect();
    if label == "node" || values.contains(is) {
        return;
    }
    values.sort_unstable();
    values.dedup();
    let (message, hint) = if values.is_empty() {
        (format!("no node has the label `{label}`: {effect}"), near(label, nodes))
    } else {
        let message = format!("no node has the label `{label}` with `{is}`: {effect}");
        (message, names::did_you_mean(is, &values))
    };
    cx.found.push(Diagnostic::warning(ids::LABEL_NOWHERE, place, message).hint(hint));
}

fn near(label: &str, nodes: &BTreeMap<String, Node>) -> String {
    let mut known: Vec<&str> = nodes.values().flat_map(|node| node.labels.keys()).map(String::as_str).collect();
    known.sort_unstable();
    known.dedup();
    if known.is_empty() {
        format!("write `label \"{label}\" \"…\"` in a node's block")
    } else {
        names::did_you_mean(label, &known)
    }
}
