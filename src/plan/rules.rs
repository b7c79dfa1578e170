//! What the config's policies mean for a plan, in the few values that protections and gates need.

use std::collections::BTreeMap;

use crate::base::Place;
use crate::config::{Policies, Prune};

/// Policies as this room enforces them.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Rules {
    /// Protected models, with the place of the policy.
    pub protect: BTreeMap<String, String>,
    /// What happens to models that are gone from the config.
    pub prune: Prune,
    /// Greatest share of the running replicas that one plan may stop, in percent.
    pub stop_share: Option<f64>,
    /// Bytes per second that all fetches together may take.
    pub download: Option<u64>,
    /// Policies that this version does not enforce: their name and place. Nothing is applied past them.
    pub unenforced: Vec<(String, String)>,
}

impl Rules {
    /// Reads the policies.
    pub fn of(policies: &Policies) -> Self {
        let mut unenforced: Vec<(String, String)> = Vec::new();
        let mut add = |word: &str, place: &Place| unenforced.push((word.to_owned(), place.short()));
        if let Some(limit) = &policies.moves_per_hour {
            add("limit moves-per-hour", &limit.place);
        }
        policies.quotas.values().for_each(|quota| add("quota", &quota.name.place));
        policies.denials.values().for_each(|denial| add("deny", &denial.name.place));
        policies.windows.values().for_each(|window| add("window", &window.name.place));
        policies.approvals.iter().for_each(|approval| add("approval", &approval.place));
        Self {
            protect: policies.protect.iter().map(|model| (model.value.clone(), model.place.short())).collect(),
            prune: policies.prune.as_ref().map_or(Prune::Confirm, |prune| prune.value),
            stop_share: policies.stop_share.as_ref().map(|share| f64::from(share.value.0) / 100.0),
            download: policies.download.as_ref().map(|limit| limit.value.0),
            unenforced,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Tree;
    use crate::config;

    #[test]
    fn policies_of_a_config_are_enforced_or_named() {
        let tree = Tree::from_iter([
            (
                "cluster.kdl",
                "cluster \"lab\"\nnode \"a\" connection=\"local\"\nmodel \"llava\" { source \"on-node:/data/llava\" }\n",
            ),
            (
                "policies/lab.kdl",
                "protect model=\"llava\"\nprune \"auto\"\nlimit stop-share=\"25%\" download=\"200MB/s\"\n\
                 deny \"no\" { when \"model.gated\" }\napproval verbs=\"stop\" by=\"ada@example.edu\"\n",
            ),
        ]);
        let loaded = config::load(&tree);
        let Some(desired) = loaded.desired else { panic!("{:?}", loaded.diagnostics) };
        let rules = Rules::of(&desired.policies);
        assert_eq!(rules.protect.get("llava").map(String::as_str), Some("policies/lab.kdl:1"));
        assert_eq!((rules.prune, rules.stop_share), (Prune::Auto, Some(25.0)));
        assert_eq!(rules.download, Some(200_000_000));
        let words: Vec<&str> = rules.unenforced.iter().map(|(word, _)| word.as_str()).collect();
        assert_eq!(words, ["deny", "approval"]);
    }
}
