//! What the config's policies mean for a plan, in the few values that protections and gates need.

use std::collections::BTreeMap;

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
}

impl Rules {
    /// Reads the policies.
    pub fn of(policies: &Policies) -> Self {
        Self {
            protect: policies.protect.iter().map(|model| (model.value.clone(), model.place.short())).collect(),
            prune: policies.prune.as_ref().map_or(Prune::Confirm, |prune| prune.value),
            stop_share: policies.stop_share.as_ref().map(|share| f64::from(share.value.0) / 100.0),
            download: policies.download.as_ref().map(|limit| limit.value.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Tree;
    use crate::config;

    #[test]
    fn policies_of_a_config_are_read() {
        let tree = Tree::from_iter([
            (
                "cluster.kdl",
                "cluster \"lab\"\nnode \"a\" connection=\"local\"\nmodel \"llava\" { source \"on-node:/data/llava\" }\n",
            ),
            (
                "policies/lab.kdl",
                "protect model=\"llava\"\nprune \"auto\"\nlimit stop-share=\"25%\" download=\"200MB/s\"\n\
",
            ),
        ]);
        let loaded = config::load(&tree);
        let Some(desired) = loaded.desired else { panic!("{:?}", loaded.diagnostics) };
        let rules = Rules::of(&desired.policies);
        assert_eq!(rules.protect.get("llava").map(String::as_str), Some("policies/lab.kdl:1"));
        assert_eq!((rules.prune, rules.stop_share), (Prune::Auto, Some(25.0)));
        assert_eq!(rules.download, Some(200_000_000));
    }
}
