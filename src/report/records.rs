//! What the nodes keep about applies: leases that hold now, and the last applies.

use std::collections::BTreeMap;

use serde::Serialize;

use super::style::{Style, clean, table};
use super::words::count;
use crate::base::Digest;
use crate::inventory::{Applied, Inventory, Lease};

/// `flock lease list --format json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Leases {
    /// 1.
    pub format: u32,
    /// Cluster name.
    pub cluster: String,
    /// Leases that hold now, by node.
    pub leases: Vec<HeldLease>,
    /// Nodes that did not answer.
    pub unreachable: Vec<String>,
}

/// One lease on one node.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HeldLease {
    /// The node.
    pub node: String,
    /// `user@host (pid N)`.
    pub holder: String,
    /// When it was taken, RFC 3339.
    pub since: String,
    /// When it was last renewed, Unix milliseconds on the node's clock; `null` where the node did not keep it.
    pub renewed_unix_ms: Option<u64>,
    /// When it ends by itself, Unix milliseconds on the node's clock.
    pub expires_unix_ms: u64,
    /// Time without renewal after which it ends; `null` where the node did not keep it.
    pub ttl_ms: Option<u64>,
    /// Fencing generation.
    pub generation: u64,
}

/// The leases that the nodes hold.
pub fn leases(cluster: &str, inventory: &Inventory, held: &BTreeMap<String, Lease>) -> Leases {
    let lease = |(node, lease): (&String, &Lease)| HeldLease {
        node: node.clone(),
        holder: lease.holder.clone(),
        since: lease.since.clone(),
        renewed_unix_ms: lease.renewed_unix_ms(),
        expires_unix_ms: lease.expires_unix_ms,
        ttl_ms: (lease.ttl_ms > 0).then_some(lease.ttl_ms),
        generation: lease.generation,
    };
    let unreachable = inventory.nodes.iter().filter(|node| !node.reachable).map(|node| node.name.clone()).collect();
    Leases { format: 1, cluster: cluster.to_owned(), leases: held.iter().map(lease).collect(), unreachable }
}

/// Leases as a table.
pub fn leases_text(leases: &Leases) -> String {
    if leases.leases.is_empty() {
        return "no lease is held: nothing is being applied\n".to_owned();
    }
    let rows: Vec<Vec<String>> = leases
        .leases
        .iter()
        .map(|lease| {
            vec![
                lease.node.clone(),
                clean(&lease.holder),
                clean(&lease.since),
                lease.renewed_unix_ms.map_or_else(|| "?".to_owned(), clock_time),
                clock_time(lease.expires_unix_ms),
            ]
        })
        .collect();
    table(&["NODE", "HOLDER", "SINCE", "RENEWED", "ENDS UNLESS RENEWED"], &rows)
}

/// Hours, minutes and seconds of the day, UTC.
fn clock_time(unix_ms: u64) -> String {
    let second = unix_ms / 1000 % 86_400;
    format!("{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

/// `flock history --format json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct History {
    /// 1.
    pub format: u32,
    /// Cluster name.
    pub cluster: String,
    /// `nodes`: where it is from.
    pub source: &'static str,
    /// Applies, newest first.
    pub applies: Vec<PastApply>,
}

/// One apply.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PastApply {
    /// The first 12 hex digits of a digest over what is recorded.
    pub id: String,
    /// When it ended, RFC 3339.
    pub at: String,
    /// `apply` or `drain`; empty in records of earlier versions.
    pub action: String,
    /// Commit of the config repository.
    pub commit: Option<String>,
    /// Whether what was applied differed from that commit.
    pub dirty: bool,
    /// Digest of its meaning.
    pub config_digest: String,
    /// Digest of the plan.
    pub plan_digest: String,
    /// `user@host (pid N)`.
    pub by: String,
    /// Steps that were done.
    pub done: u32,
    /// Steps that failed.
    pub failed: u32,
    /// Steps that were not begun.
    pub not_started: u32,
    /// Nodes that remember it.
    pub nodes: Vec<String>,
}

/// What the nodes remember, joined; each gives its applies, oldest first.
pub fn history(cluster: &str, remembered: &[(String, Vec<Applied>)]) -> History {
    let mut found: BTreeMap<(String, String), PastApply> = BTreeMap::new();
    for (node, applies) in remembered {
        for applied in applies {
            let id = Digest::of_json(applied).short(12).to_owned();
            let entry = found.entry((applied.at.clone(), id.clone())).or_insert_with(|| PastApply {
                id,
                at: applied.at.clone(),
                action: applied.action.clone(),
                commit: applied.commit.clone(),
                dirty: applied.dirty,
                config_digest: applied.config_digest.clone(),
                plan_digest: applied.plan_digest.clone(),
                by: applied.by.clone(),
                done: applied.done,
                failed: applied.failed,
                not_started: applied.not_started,
                nodes: Vec::new(),
            });
            if !entry.nodes.contains(node) {
                entry.nodes.push(node.clone());
            }
        }
    }
    History { format: 1, cluster: cluster.to_owned(), source: "nodes", applies: found.into_values().rev().collect() }
}

/// The history as a table.
pub fn history_text(history: &History, style: &Style) -> String {
    if history.applies.is_empty() {
        return format!("no node of cluster \"{}\" remembers an apply\n", history.cluster);
    }
    let rows: Vec<Vec<String>> = history
        .applies
        .iter()
        .map(|apply| {
            let commit = apply.commit.as_deref().map_or("-", |commit| commit.get(..10).unwrap_or(commit));
            let commit = if apply.dirty { format!("{commit} + changes") } else { commit.to_owned() };
            vec![
                apply.id.clone(),
                clean(&apply.at),
                clean(if apply.action.is_empty() { "apply" } else { &apply.action }),
                clean(&commit),
                clean(&apply.by),
                result(apply),
            ]
        })
        .collect();
    let mut out = table(&["ID", "ENDED", "WHAT", "COMMIT", "BY", "RESULT"], &rows);
    out.push('\n');
    let nodes: std::collections::BTreeSet<&str> =
        history.applies.iter().flat_map(|apply| apply.nodes.iter().map(String::as_str)).collect();
    let text = format!("From the nodes: {}", nodes.into_iter().collect::<Vec<_>>().join(", "));
    out.push_str(&style.beside("", &text));
    out
}

fn result(apply: &PastApply) -> String {
    let counts = [(apply.done, "done"), (apply.failed, "FAILED"), (apply.not_started, "not started")];
    let counts: Vec<String> = counts.iter().filter(|(n, _)| *n > 0).map(|(n, word)| format!("{n} {word}")).collect();
    if counts.is_empty() { count(0, "step") } else { counts.join(", ") }
}

/// `commit 4f2a91c0d1 by ada@desk (pid 7) at 2026-01-02T03:04:05Z`.
pub fn applied_text(applied: &Applied) -> String {
    let commit = match &applied.commit {
        Some(commit) => format!("commit {}", commit.get(..10).unwrap_or(commit)),
        None => "no commit".to_owned(),
    };
    let commit = if applied.dirty { format!("{commit} + changes not committed") } else { commit };
    clean(&format!("{commit} by {} at {}", applied.by, applied.at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(at: &str, done: u32) -> Applied {
        Applied {
            commit: Some("4f2a91c0d1e2f3".into()),
            by: "ada@desk (pid 7)".into(),
            at: at.into(),
            action: "apply".into(),
            done,
            ..Applied::default()
        }
    }

    #[test]
    fn applies_of_several_nodes_are_one_list_newest_first() {
        let one = applied("2026-01-02T03:04:05Z", 3);
        let two = Applied { failed: 1, dirty: true, action: String::new(), ..applied("2026-01-03T03:04:05Z", 0) };
        let remembered = [("big".to_owned(), vec![one.clone(), two.clone()]), ("small".to_owned(), vec![one.clone()])];
        let history = history("lab", &remembered);
        let found: Vec<(&str, usize)> = history.applies.iter().map(|a| (a.at.as_str(), a.nodes.len())).collect();
        assert_eq!(found, [("2026-01-03T03:04:05Z", 1), ("2026-01-02T03:04:05Z", 2)]);
        let text = history_text(&history, &Style::PLAIN);
        assert!(text.contains("1 FAILED") && text.contains("3 done") && text.contains("big, small"), "{text}");
        assert!(text.contains("4f2a91c0d1 + changes"), "{text}");
        assert!(applied_text(&two).starts_with("commit 4f2a91c0d1 + changes not committed by ada"));
        assert_eq!(applied_text(&one), "commit 4f2a91c0d1 by ada@desk (pid 7) at 2026-01-02T03:04:05Z");
    }

    #[test]
    fn a_lease_is_shown_with_its_end_and_without_control_characters() {
        let lease = Lease {
            holder: "eve\u{1b}[2J@host".into(),
            since: "2026-01-02T03:04:05Z".into(),
            expires_unix_ms: 1_767_323_075_000,
            ttl_ms: 30_000,
            ..Lease::default()
        };
        let held = BTreeMap::from([("big".to_owned(), lease)]);
        let found = leases("lab", &Inventory::default(), &held);
        assert_eq!(found.leases[0].renewed_unix_ms, Some(1_767_323_045_000));
        let text = leases_text(&found);
        assert!(text.contains("eve?[2J@host") && text.contains("03:04:35Z") && text.contains("03:04:05Z"), "{text}");
        assert!(leases_text(&leases("lab", &Inventory::default(), &BTreeMap::new())).contains("no lease"));
    }
}
