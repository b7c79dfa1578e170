//! Protections, of the config and of the member record: a block that is deleted from git does not end them.

use std::collections::BTreeMap;

use crate::inventory::MemberRecord;

/// All protections in force, by model.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Protections {
    by_model: BTreeMap<String, InForce>,
}

/// One protection.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct InForce {
    /// Since when, where an apply has recorded it.
    pub since: Option<String>,
    /// The policy's place in the config.
    pub place: Option<String>,
    /// The reason recorded on the nodes.
    pub reason: Option<String>,
}

impl Protections {
    /// Joins what the config says (model to place) with what the nodes remember.
    pub fn of(config: &BTreeMap<String, String>, member: &MemberRecord) -> Self {
        let mut by_model: BTreeMap<String, InForce> = BTreeMap::new();
        for (model, place) in config {
            by_model.entry(model.clone()).or_default().place = Some(place.clone());
        }
        for recorded in &member.protections {
            let entry = by_model.entry(recorded.model.clone()).or_default();
            entry.since = (!recorded.since.is_empty()).then(|| recorded.since.clone());
            entry.reason = Some(recorded.reason.clone()).filter(|reason| !reason.is_empty() && reason != "config");
        }
        Self { by_model }
    }

    /// The protection of a model.
    pub fn get(&self, model: &str) -> Option<&InForce> {
        self.by_model.get(model)
    }
}

impl InForce {
    /// What to do about it.
    pub fn remedy(&self, model: &str) -> String {
        let why = self.reason.as_ref().map(|reason| format!(" (protected: {reason})")).unwrap_or_default();
        let unprotect = format!("run `flock unprotect {model} --reason …`{why}");
        match &self.place {
            Some(place) => format!("{unprotect} and remove the policy at {place}"),
            None => unprotect,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Protection;

    #[test]
    fn a_recorded_protection_outlives_its_policy() {
        let member = MemberRecord {
            protections: vec![Protection {
                model: "llava".into(),
                since: "2026-01-02T03:04:05Z".into(),
                reason: "config".into(),
            }],
            ..Default::default()
        };
        let found = Protections::of(&BTreeMap::new(), &member);
        let llava = found.get("llava").unwrap();
        assert_eq!(llava.since.as_deref(), Some("2026-01-02T03:04:05Z"));
        assert_eq!(llava.remedy("llava"), "run `flock unprotect llava --reason …`");
        assert!(found.get("coder").is_none());
    }
}
