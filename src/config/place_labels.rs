//! Labels, names and values that `place` and policies ask for and nothing has: a model finds no place, a wish or a
//! policy has no effect.

use std::collections::{BTreeMap, BTreeSet};

use super::condition::{Condition, Field};
use super::{Desired, LabelIs, Model, Node, Policies, ProviderModel, ids, names};
use crate::base::{Diagnostic, Place};

/// Warnings of every label, name and value that is asked for and nothing of the config has.
pub(super) fn check(
    models: &BTreeMap<String, Model>,
    provided: &BTreeMap<String, ProviderModel>,
    nodes: &BTreeMap<String, Node>,
    policies: &Policies,
) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    rules(models, nodes, &mut found);
    Everything { models, provided, nodes }.check(policies, &mut found);
    found
}

/// The same warnings among others once facts are at hand: nodes also have the labels that an inventory gives them.
pub fn with_labels_of_facts(
    findings: Vec<Diagnostic>,
    desired: &Desired,
    labels: &BTreeMap<&str, &BTreeMap<String, String>>,
) -> Vec<Diagnostic> {
    let mut nodes = desired.nodes.clone();
    for (name, node) in &mut nodes {
        for (label, value) in labels.get(name.as_str()).into_iter().copied().flatten() {
            // The config's own word counts.
            node.labels.entry(label.clone()).or_insert_with(|| value.clone());
        }
    }
    let kept = findings.into_iter().filter(|one| one.id != ids::LABEL_NOWHERE);
    kept.chain(check(&desired.models, &desired.provider_models, &nodes, &desired.policies)).collect()
}

/// Warns of every `require`, `prefer` and `spread` that no node of the config can meet.
fn rules(models: &BTreeMap<String, Model>, nodes: &BTreeMap<String, Node>, found: &mut Vec<Diagnostic>) {
    // A repository without nodes is one in the making.
    if nodes.is_empty() {
        return;
    }
    for model in models.values() {
        let rules = &model.place;
        for require in &rules.require {
            one(&require.value, &require.place, "the model finds no place", nodes, found);
        }
        for prefer in &rules.prefer {
            one(&prefer.value.0, &prefer.place, "it has no effect", nodes, found);
        }
        if let Some(by) = &rules.spread_by
            && by.value != "node"
            && !nodes.values().any(|node| node.labels.contains_key(&by.value))
        {
            let message = format!("no node has the label `{}`: all of them count as one to spread over", by.value);
            found.push(Diagnostic::warning(ids::LABEL_NOWHERE, &by.place, message).hint(near(&by.value, nodes)));
        }
    }
}

fn one(wanted: &LabelIs, place: &Place, effect: &str, nodes: &BTreeMap<String, Node>, found: &mut Vec<Diagnostic>) {
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
    found.push(Diagnostic::warning(ids::LABEL_NOWHERE, place, message).hint(hint));
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

/// What policies can speak of.
struct Everything<'a> {
    models: &'a BTreeMap<String, Model>,
    provided: &'a BTreeMap<String, ProviderModel>,
    nodes: &'a BTreeMap<String, Node>,
}

impl Everything<'_> {
    /// Names of the labels that some model, or some node, has.
    fn labels(&self, of_models: bool) -> BTreeSet<&str> {
        let models = self.models.values().map(|model| &model.extras.labels);
        let nodes = self.nodes.values().map(|node| &node.labels);
        let all: Vec<&BTreeMap<String, String>> = if of_models { models.collect() } else { nodes.collect() };
        all.into_iter().flat_map(|labels| labels.keys()).map(String::as_str).collect()
    }

    /// The values that a field has somewhere; `None` where any may occur, or nobody has declared what could have one.
    fn values(&self, field: &Field) -> Option<BTreeSet<&str>> {
        let models = || self.models.values();
        let nodes = || self.nodes.values();
        let of_models = !self.models.is_empty();
        let of_nodes = !self.nodes.is_empty();
        match field {
            Field::ModelName if of_models => {
                Some(self.models.keys().chain(self.provided.keys()).map(String::as_str).collect())
            }
            Field::ModelLabel(name) if of_models => {
                Some(models().filter_map(|model| model.extras.labels.get(name)).map(String::as_str).collect())
            }
            Field::NodeName if of_nodes => Some(self.nodes.keys().map(String::as_str).collect()),
            Field::NodeLabel(name) if of_nodes => {
                Some(nodes().filter_map(|node| node.labels.get(name)).map(String::as_str).collect())
            }
            Field::NodeSite if of_nodes => {
                Some(nodes().filter_map(|node| node.extras.site.as_ref()).map(|site| site.value.as_str()).collect())
            }
            Field::NodeOwner if of_nodes => {
                Some(nodes().filter_map(|node| node.extras.owner.as_ref()).map(|owner| owner.value.as_str()).collect())
            }
            Field::ModelOwner if of_models => Some(
                models().filter_map(|model| model.extras.owner.as_ref()).map(|owner| owner.value.as_str()).collect(),
            ),
            _ => None,
        }
    }

    /// A warning where nothing has this value, or nothing the label.
    fn missing(&self, field: &Field, is: &str, effect: &str) -> Option<(String, String)> {
        let values = self.values(field)?;
        if values.contains(is) {
            return None;
        }
        let (who, what, label) = match field {
            Field::ModelName => return Some((format!("no model is called `{is}`: {effect}"), hint(is, &values))),
            Field::NodeName => return Some((format!("no node is called `{is}`: {effect}"), hint(is, &values))),
            Field::ModelOwner => ("model", "owner".to_owned(), None),
            Field::NodeOwner => ("node", "owner".to_owned(), None),
            Field::NodeSite => ("node", "site".to_owned(), None),
            Field::ModelLabel(name) => ("model", format!("label `{name}`"), Some(name)),
            Field::NodeLabel(name) => ("node", format!("label `{name}`"), Some(name)),
            Field::ModelPriority | Field::ModelEngine => return None,
        };
        if !values.is_empty() {
            return Some((format!("no {who} has the {what} with `{is}`: {effect}"), hint(is, &values)));
        }
        let near = match label {
            Some(label) => {
                let known = self.labels(who == "model");
                match known.is_empty() {
                    true => format!("write `label \"{label}\" \"…\"` in a {who}'s block"),
                    false => hint(label, &known),
                }
            }
            None => format!("write `{what} \"…\"` in a {who}'s block"),
        };
        let article = match (label, what.as_str()) {
            (Some(_), _) => "the",
            (None, "owner") => "an",
            (None, _) => "a",
        };
        Some((format!("no {who} has {article} {what}: {effect}"), near))
    }

    /// Warns of every `deny` and `quota` that speaks of what is not there.
    fn check(&self, policies: &Policies, found: &mut Vec<Diagnostic>) {
        for denial in policies.denials.values() {
            let mut told = BTreeSet::new();
            self.condition(&denial.when.value, &mut |one| {
                told.insert(one);
            });
            for (message, hint) in told {
                found.push(Diagnostic::warning(ids::LABEL_NOWHERE, &denial.when.place, message).hint(hint));
            }
        }
        for quota in policies.quotas.values() {
            let field = Field::ModelLabel(quota.label.clone());
            if let Some((message, hint)) = self.missing(&field, &quota.is, "the quota limits nothing") {
                found.push(Diagnostic::warning(ids::LABEL_NOWHERE, &quota.name.place, message).hint(hint));
            }
        }
    }

    fn condition(&self, condition: &Condition, tell: &mut impl FnMut((String, String))) {
        match condition {
            Condition::Any(all) | Condition::All(all) => all.iter().for_each(|one| self.condition(one, tell)),
            Condition::Not(inner) => self.condition(inner, tell),
            Condition::Is(_) => {}
            Condition::OneOf(field, values) => {
                let effect = "this comparison is never true";
                // A denial may be ahead of the first node of a kind: such a value is told only where it looks mistyped.
                let ahead = |is: &str| {
                    let named = matches!(field, Field::ModelName | Field::NodeName);
                    let known = self.values(field).unwrap_or_default();
                    !named && !known.is_empty() && names::nearest(is, known).is_none()
                };
                let typed = values.iter().filter(|is| !ahead(is));
                typed.filter_map(|is| self.missing(field, is, effect)).for_each(tell);
            }
        }
    }
}

fn hint(wrong: &str, known: &BTreeSet<&str>) -> String {
    let known: Vec<&str> = known.iter().copied().collect();
    names::did_you_mean(wrong, &known)
}
