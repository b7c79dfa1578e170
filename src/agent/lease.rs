//! The lease and the member record: written by `serve` under a lock, whoever keeps.

use super::clock::now_ms;
use super::error::AgentError;
use super::files::{Lock, read_json, remove, write_json};
use super::layout::Layout;
use super::state::Desired;
use crate::inventory::{Lease, MemberRecord, Refusal};

/// Takes or renews the lease. Taken anew, it is refused where the node's generation is not the expected one: the
/// caller's plan was made from facts that another apply has changed since.
pub fn take(
    layout: &Layout,
    wanted: &Lease,
    ttl_ms: u64,
    expected_generation: Option<u64>,
    now: u64,
) -> Result<(), AgentError> {
    let _lock = Lock::wait(&layout.state_lock())?;
    let held = current(layout, now)?;
    let since = match &held {
        Some(held) if held.id != wanted.id => {
            let expires_in_ms = held.expires_unix_ms.saturating_sub(now);
            let (holder, since) = (held.holder.clone(), held.since.clone());
            return Err(Refusal::LeaseHeld { holder, since, expires_in_ms }.into());
        }
        Some(held) => held.since.clone(),
        None => {
            let found = held_generation(layout)?;
            if let Some(offered) = expected_generation.filter(|expected| *expected != found) {
                return Err(Refusal::Stale { offered, held: found }.into());
            }
            wanted.since.clone()
        }
    };
    let lease = Lease { since, expires_unix_ms: now.saturating_add(ttl_ms), ..wanted.clone() };
    write_json(&layout.lease(), &lease)
}

/// Gives the lease back; nothing happens where somebody else holds it by now.
pub fn release(layout: &Layout, id: &str) -> Result<(), AgentError> {
    if !layout.lease().exists() {
        return Ok(());
    }
    let _lock = Lock::wait(&layout.state_lock())?;
    match read_json::<Lease>(&layout.lease())? {
        Some(held) if held.id == id => remove(&layout.lease()),
        _ => Ok(()),
    }
}

/// Ends whoever holds it.
pub fn break_lease(layout: &Layout) -> Result<(), AgentError> {
    remove(&layout.lease())
}

/// The lease that holds now.
pub fn current(layout: &Layout, now: u64) -> Result<Option<Lease>, AgentError> {
    Ok(read_json::<Lease>(&layout.lease())?.filter(|held| held.expires_unix_ms > now))
}

/// The member record, with the lease that holds now.
pub fn member(layout: &Layout) -> Result<MemberRecord, AgentError> {
    let stored: MemberRecord = read_json(&layout.member())?.unwrap_or_default();
    Ok(MemberRecord { lease: current(layout, now_ms())?, ..stored })
}

/// Stores a member record. Its lease is left out: the lease is a file of its own, on the node's clock.
pub fn write_member(layout: &Layout, member: &MemberRecord) -> Result<(), AgentError> {
    let _lock = Lock::wait(&layout.state_lock())?;
    check_generation(layout, member.generation)?;
    write_json(&layout.member(), &MemberRecord { lease: None, ..member.clone() })
}

/// The newest generation this node has seen.
pub fn held_generation(layout: &Layout) -> Result<u64, AgentError> {
    let member: MemberRecord = read_json(&layout.member())?.unwrap_or_default();
    Ok(member.generation.max(Desired::load(layout)?.generation))
}

/// Refuses a generation older than the node's.
pub fn check_generation(layout: &Layout, offered: u64) -> Result<(), AgentError> {
    let held = held_generation(layout)?;
    if offered < held { Err(Refusal::Stale { offered, held }.into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(id: &str) -> Lease {
        Lease { id: id.into(), holder: format!("{id}@host"), since: "then".into(), ..Lease::default() }
    }

    #[test]
    fn a_plan_older_than_the_node_gets_no_lease() {
        let home = tempfile::tempdir().expect("a home");
        let layout = Layout::new(home.path(), "lab", "ada-1").expect("good names");
        write_member(&layout, &MemberRecord { generation: 7, ..MemberRecord::default() }).expect("written");
        for moved in [6, 8] {
            let refused = take(&layout, &lease("a"), 1000, Some(moved), 5000);
            assert!(matches!(refused, Err(AgentError::Refused(Refusal::Stale { held: 7, .. }))), "{moved}");
        }
        take(&layout, &lease("a"), 1000, Some(7), 5000).expect("it stands where it was seen");
        take(&layout, &lease("a"), 1000, Some(6), 5500).expect("a renewal is no new plan");
    }

    #[test]
    fn a_lease_is_exclusive_until_it_expires() {
        let home = tempfile::tempdir().expect("a home");
        let layout = Layout::new(home.path(), "lab", "ada-1").expect("good names");
        take(&layout, &lease("a"), 1000, None, 5000).expect("free");
        take(&layout, &lease("a"), 1000, None, 5500).expect("renewed");
        let refused = take(&layout, &lease("b"), 1000, None, 6000);
        assert!(
            matches!(&refused, Err(AgentError::Refused(Refusal::LeaseHeld { holder, expires_in_ms: 500, .. })) if holder == "a@host"),
            "{refused:?}"
        );
        take(&layout, &lease("b"), 1000, None, 6500).expect("expired");
        release(&layout, "a").expect("not ours, no harm");
        assert_eq!(current(&layout, 6501).expect("read").map(|lease| lease.id).as_deref(), Some("b"));
        release(&layout, "b").expect("released");
        assert_eq!(current(&layout, 6501).expect("read"), None);
    }

    #[test]
    fn an_older_member_record_is_refused() {
        let home = tempfile::tempdir().expect("a home");
        let layout = Layout::new(home.path(), "lab", "ada-1").expect("good names");
        let record = |generation| MemberRecord { generation, lease: Some(lease("a")), ..MemberRecord::default() };
        write_member(&layout, &record(3)).expect("newer");
        write_member(&layout, &record(3)).expect("equal");
        let refused = write_member(&layout, &record(2));
        assert!(matches!(refused, Err(AgentError::Refused(Refusal::Stale { offered: 2, held: 3 }))));
        let stored = member(&layout).expect("read");
        assert_eq!((stored.generation, stored.lease), (3, None));
    }
}
