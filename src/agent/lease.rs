//! The lease and the member record: written by `serve` under a lock, whoever keeps.

use super::clock::now_ms;
use super::error::AgentError;
use super::files::{Lock, read_json, remove, take_ballast, write_json};
use super::layout::Layout;
use super::state::Desired;
use crate::inventory::{Applied, HISTORY_LENGTH, Lease, MemberRecord, Refusal};

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
            let (id, process) = (held.id.clone(), held.process.clone().map(Box::new));
            return Err(Refusal::LeaseHeld { holder, since, expires_in_ms, id, process }.into());
        }
        Some(held) => held.since.clone(),
        None => {
            // What two streams carry may arrive in another order than it was sent.
            let released = read_json::<Lease>(&layout.released()).ok().flatten();
            if released.is_some_and(|released| released.id == wanted.id) {
                return Err(Refusal::Failed { text: "this lease was given back before".to_owned() }.into());
            }
            let found = held_generation(layout)?;
            if let Some(offered) = expected_generation.filter(|expected| *expected != found) {
                return Err(Refusal::Stale { offered, held: found }.into());
            }
            // A holder whose lease was broken, and whom a newer record has fenced off, does not get it back.
            if wanted.generation < found {
                return Err(Refusal::Stale { offered: wanted.generation, held: found }.into());
            }
            wanted.since.clone()
        }
    };
    let lease = Lease { since, expires_unix_ms: now.saturating_add(ttl_ms), ttl_ms, ..wanted.clone() };
    write_json(&layout.lease(), &lease)?;
    take_ballast(&layout.state);
    Ok(())
}

/// Gives the lease back, for good; nothing happens where somebody else holds it by now.
pub fn release(layout: &Layout, id: &str) -> Result<(), AgentError> {
    if !layout.lease().exists() {
        return Ok(());
    }
    let _lock = Lock::wait(&layout.state_lock())?;
    match read_json::<Lease>(&layout.lease())? {
        Some(held) if held.id == id => {
            // Renamed and not written: that needs no room on the disk.
            let (from, to) = (layout.lease(), layout.released());
            std::fs::rename(&from, &to).map_err(AgentError::file("moving", &from))
        }
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
    let before: MemberRecord = read_json(&layout.member())?.unwrap_or_default();
    if let Some(applied) = member.applied.as_ref().filter(|applied| before.applied.as_ref() != Some(*applied)) {
        let mut applies = history(layout);
        applies.push(applied.clone());
        let surplus = applies.len().saturating_sub(HISTORY_LENGTH);
        write_json(&layout.history(), &applies.split_off(surplus))?;
    }
    write_json(&layout.member(), &MemberRecord { lease: None, ..member.clone() })
}

/// The last applies, oldest first. It is for people: a file that cannot be read is begun anew.
pub fn history(layout: &Layout) -> Vec<Applied> {
    read_json(&layout.history()).ok().flatten().unwrap_or_default()
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
        Lease { id: id.into(), holder: format!("{id}@host"), since: "then".into(), generation: 8, ..Lease::default() }
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
        assert!(matches!(&refused, Err(AgentError::Refused(Refusal::LeaseHeld { id, .. })) if id == "a"));
        take(&layout, &lease("b"), 1000, None, 6500).expect("expired");
        release(&layout, "a").expect("not ours, no harm");
        assert_eq!(current(&layout, 6501).expect("read").map(|lease| lease.id).as_deref(), Some("b"));
        release(&layout, "b").expect("released");
        assert_eq!(current(&layout, 6501).expect("read"), None);
    }

    #[test]
    fn a_renewal_that_comes_after_the_release_takes_nothing() {
        let home = tempfile::tempdir().expect("a home");
        let layout = Layout::new(home.path(), "lab", "ada-1").expect("good names");
        take(&layout, &lease("a"), 1000, None, 5000).expect("free");
        release(&layout, "a").expect("released");
        let late = take(&layout, &lease("a"), 1000, None, 5100);
        assert!(matches!(late, Err(AgentError::Refused(Refusal::Failed { .. }))), "{late:?}");
        assert!(!layout.lease().exists());
        release(&layout, "a").expect("again, no harm");
        take(&layout, &lease("b"), 1000, None, 5200).expect("free for everyone else");
        // What cannot be read keeps nobody away.
        release(&layout, "b").expect("released");
        std::fs::write(layout.released(), "nonsense").expect("written");
        take(&layout, &lease("c"), 1000, None, 5300).expect("free");
    }

    #[test]
    fn a_broken_lease_does_not_come_back_past_a_newer_record() {
        let home = tempfile::tempdir().expect("a home");
        let layout = Layout::new(home.path(), "lab", "ada-1").expect("good names");
        take(&layout, &lease("a"), 1000, None, 5000).expect("free");
        assert_eq!(current(&layout, 5001).expect("read").and_then(|held| held.renewed_unix_ms()), Some(5000));
        break_lease(&layout).expect("broken");
        take(&layout, &lease("a"), 1000, None, 5100).expect("nobody else came: it goes on");
        break_lease(&layout).expect("broken");
        write_member(&layout, &MemberRecord { generation: 9, ..MemberRecord::default() }).expect("the fence");
        let refused = take(&layout, &lease("a"), 1000, None, 5200);
        assert!(matches!(refused, Err(AgentError::Refused(Refusal::Stale { offered: 8, held: 9 }))), "{refused:?}");
    }

    #[test]
    fn the_last_applies_are_remembered_once_each() {
        let home = tempfile::tempdir().expect("a home");
        let layout = Layout::new(home.path(), "lab", "ada-1").expect("good names");
        let record = |generation: u64, at: u64| MemberRecord {
            generation,
            applied: Some(Applied { at: at.to_string(), by: "ada@host".into(), ..Applied::default() }),
            ..MemberRecord::default()
        };
        for generation in 1..=30 {
            // Every apply writes its record twice, and a protection writes the last one again.
            write_member(&layout, &record(generation, generation / 2)).expect("newer");
        }
        let applies: Vec<String> = history(&layout).into_iter().map(|applied| applied.at).collect();
        assert_eq!((applies.len(), applies[0].as_str(), applies[15].as_str()), (16, "0", "15"));
        for generation in 31..=60 {
            write_member(&layout, &record(generation, generation)).expect("newer");
        }
        let applies: Vec<String> = history(&layout).into_iter().map(|applied| applied.at).collect();
        assert_eq!((applies.len(), applies[0].as_str()), (HISTORY_LENGTH, "41"));
        std::fs::write(layout.history(), "nonsense").expect("written");
        write_member(&layout, &record(61, 61)).expect("a history that cannot be read stops nothing");
        assert_eq!(history(&layout).len(), 1);
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
