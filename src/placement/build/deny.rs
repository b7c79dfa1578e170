//! `deny "name" { when "…" }`: whether a policy forbids a model, served by an engine, on a node.
//!
//! A field that has no value (no owner, no such label) is equal to nothing, so `!=` holds. Whether weights are gated is
//! known of the hub's alone; elsewhere they count as gated, and what is denied for that alone says so.

use crate::base::EngineKind;
use crate::config::{Condition, Desired, Field, Flag, Model, Node};
use crate::placement::NodeSupply;

/// What a condition looks at.
struct Subject<'a> {
    model: &'a Model,
    engine: EngineKind,
    gated: bool,
    supply: &'a NodeSupply,
    node: Option<&'a Node>,
}

/// A policy that denies a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denied {
    /// One sentence: the policy's name, file and line.
    pub text: String,
    /// Whether it denies only because the weights count as gated.
    pub assumed: bool,
}

/// The first policy, by name, that denies this. `gated` is `None` where nobody knows.
pub fn denied(
    desired: &Desired,
    model: &Model,
    engine: EngineKind,
    supply: &NodeSupply,
    gated: Option<bool>,
) -> Option<Denied> {
    let node = desired.nodes.get(&supply.name);
    let subject = |gated| Subject { model, engine, gated, supply, node };
    let found = desired.policies.denials.values().find(|denial| {
        let subject = subject(gated.unwrap_or(true));
        subject.holds(&denial.when.value)
    })?;
    let assumed = gated.is_none() && !subject(false).holds(&found.when.value);
    let because = if assumed { "; whether its weights are gated is not known, so they count as gated" } else { "" };
    let text = format!("denied by {:?} ({}){because}", found.name.value, found.name.place.short());
    Some(Denied { text, assumed })
}

impl Subject<'_> {
    fn holds(&self, condition: &Condition) -> bool {
        match condition {
            Condition::Any(all) => all.iter().any(|one| self.holds(one)),
            Condition::All(all) => all.iter().all(|one| self.holds(one)),
            Condition::Not(one) => !self.holds(one),
            Condition::Is(Flag::Gated) => self.gated,
            Condition::Is(Flag::Spot) => self.supply.spot,
            Condition::OneOf(field, values) => self.field(field).is_some_and(|found| values.contains(&found)),
        }
    }

    fn field(&self, field: &Field) -> Option<String> {
        let model = self.model;
        match field {
            Field::ModelName => Some(model.name.value.clone()),
            Field::ModelOwner => model.extras.owner.as_ref().map(|owner| owner.value.clone()),
            Field::ModelPriority => model.priority.name.clone(),
            Field::ModelEngine => Some(self.engine.to_string()),
            Field::ModelLabel(name) => model.extras.labels.get(name).cloned(),
            Field::NodeName => Some(self.supply.name.clone()),
            Field::NodeOwner => self.node?.extras.owner.as_ref().map(|owner| owner.value.clone()),
            Field::NodeSite => self.supply.site.clone(),
            Field::NodeLabel(name) => self.supply.labels.get(name).cloned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::base::{Tree, TreeEntry};

    fn config(when: &str) -> Desired {
        let text = format!(
            "cluster \"lab\"\nnode \"a\" address=\"10.0.0.1\" {{ owner \"vision\"; site \"campus\"; label \"tier\" \"cloud\" }}\n\
             model \"m\" {{ source \"on-node:/m\"; owner \"ada\"; label \"group\" \"nlp\"; priority \"production\" }}\n\
             priority \"production\" rank=10\ndeny \"x\" {{ when \"{when}\" }}\n"
        );
        let mut tree = Tree::new();
        tree.insert("cluster.kdl", TreeEntry::File(text.into_bytes()));
        let loaded = crate::config::load(&tree);
        loaded.desired.unwrap_or_else(|| panic!("{:?}", loaded.diagnostics))
    }

    #[test]
    fn every_field_decides() {
        let supply = NodeSupply {
            name: "a".into(),
            labels: BTreeMap::from([("tier".into(), "cloud".into())]),
            site: Some("campus".into()),
            spot: true,
            ..NodeSupply::default()
        };
        for (when, gated, wanted) in [
            ("model.gated", Some(true), true),
            ("model.gated", Some(false), false),
            ("model.gated", None, true),
            ("!model.gated", None, false),
            ("node.spot", Some(false), true),
            ("!node.spot || model.gated", Some(false), false),
            ("model.name == 'm' && model.owner == 'ada'", Some(false), true),
            ("model.priority == 'production'", Some(false), true),
            ("model.engine == 'vllm'", Some(false), true),
            ("model.engine in ('llama.cpp', 'sglang')", Some(false), false),
            ("model.labels.group == 'nlp' && node.labels.tier == 'cloud'", Some(false), true),
            ("model.labels.nothing == 'nlp'", Some(false), false),
            ("model.labels.nothing != 'nlp'", Some(false), true),
            ("node.name in ('b', 'a')", Some(false), true),
            ("node.owner == 'vision' && node.site == 'campus'", Some(false), true),
            ("node.owner != 'vision'", Some(false), false),
        ] {
            let desired = config(when);
            let found = denied(&desired, &desired.models["m"], EngineKind::Vllm, &supply, gated);
            assert_eq!(found.is_some(), wanted, "{when} with {gated:?}");
        }
        let desired = config("model.gated && node.labels.tier == 'cloud'");
        let found = denied(&desired, &desired.models["m"], EngineKind::Vllm, &supply, None).unwrap();
        assert!(found.assumed);
        assert_eq!(
            found.text,
            "denied by \"x\" (cluster.kdl:5); whether its weights are gated is not known, so they count as gated"
        );
        let sure = config("node.spot");
        assert!(!denied(&sure, &sure.models["m"], EngineKind::Vllm, &supply, None).unwrap().assumed);
    }
}
