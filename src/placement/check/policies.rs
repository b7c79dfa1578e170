//! The part of the independent check that is about policies: denials, quotas, and whether the note about a spot hedge is
//! true. Shares no code with the solver.

use std::collections::{BTreeMap, BTreeSet};

use crate::placement::check::verify::Known;
use crate::placement::{DeniedPlace, Placed, Placement, Shape};

const MIB: u64 = 1 << 20;

/// Everything that is wrong with a placement as to policies.
pub(in crate::placement) fn check(known: &Known<'_>, placement: &Placement) -> Vec<String> {
    let mut faults = Vec::new();
    let mut denials: BTreeMap<(&str, &str), Vec<&DeniedPlace>> = BTreeMap::new();
    for model in &known.problem.models {
        model.denied.iter().for_each(|denial| denials.entry((&model.name, &denial.node)).or_default().push(denial));
    }
    for placed in &placement.instances {
        let here = denials.get(&(placed.model.as_str(), placed.node.as_str())).map_or(&[][..], Vec::as_slice);
        denied(known, placed, here, &mut faults);
    }
    for quota in &known.problem.quotas {
        over(known, placement, quota, &mut faults);
    }
    if known.problem.spot_hedge > 0 {
        hedge(known, placement, &mut faults);
    }
    faults
}

/// Runs so already, and is protected.
fn stays(known: &Known<'_>, placed: &Placed) -> bool {
    let here = || known.here.get(&(placed.model.as_str(), placed.node.as_str())).into_iter().flatten();
    known.models.get(placed.model.as_str()).is_some_and(|model| model.protected)
        && here().any(|r| r.accelerators == placed.accelerators && r.engine == Some(placed.engine))
}

fn away(known: &Known<'_>, placed: &Placed) -> bool {
    known.node(&placed.node).is_some_and(|node| !node.reachable)
}

/// `here` are the denials of its model on its node.
fn denied(known: &Known<'_>, placed: &Placed, here: &[&DeniedPlace], faults: &mut Vec<String>) {
    let same = |d: &&&DeniedPlace| d.candidate == placed.candidate && d.engine == placed.engine;
    let Some(denial) = here.iter().find(same) else { return };
    if !away(known, placed) && !stays(known, placed) {
        faults.push(format!("{} replica {} on {}: {}", placed.model, placed.replica, placed.node, denial.text));
    }
}

/// Bytes as they are counted against a limit: up to whole MiB, but what fits alone fits.
fn counted(bytes: u64, limit: u64) -> u64 {
    let up = bytes.div_ceil(MIB) * MIB;
    if bytes <= limit { up.min(limit / MIB * MIB) } else { up }
}

fn over(known: &Known<'_>, placement: &Placement, quota: &crate::placement::QuotaRule, faults: &mut Vec<String>) {
    let limit = quota.vram_bytes.unwrap_or(u64::MAX);
    // Of what is away, what is protected and stays, and all the rest: accelerators and bytes.
    let mut sums = [(0_u64, 0_u64); 3];
    for placed in placement.instances.iter().filter(|placed| quota.models.contains(&placed.model)) {
        let kind = if away(known, placed) { 0 } else { 1 + usize::from(!stays(known, placed)) };
        let bytes = if kind == 0 { last_known(known, placed) } else { planned(placed) };
        sums[kind].0 += placed.accelerators.len() as u64;
        sums[kind].1 += counted(bytes, limit);
    }
    let [away, held, free] = sums;
    let mut say = |what: &str, used: u64, most: u64| {
        if used > most {
            faults.push(format!("quota {}: {used} {what} are planned, {most} may be used", quota.name));
        }
    };
    if let Some(most) = quota.accelerators {
        say("accelerators", held.0 + free.0, u64::from(most).saturating_sub(away.0).max(held.0));
    }
    if let Some(most) = quota.vram_bytes {
        say("bytes", held.1 + free.1, (most / MIB * MIB).saturating_sub(away.1).max(held.1));
    }
}

fn planned(placed: &Placed) -> u64 {
    placed.per_accelerator.iter().map(crate::placement::PlacedMemory::total_bytes).sum()
}

/// What the same would take elsewhere, the largest.
fn last_known(known: &Known<'_>, placed: &Placed) -> u64 {
    let Some(model) = known.models.get(placed.model.as_str()) else { return 0 };
    let ranks = |s: &Shape| s.ranks as usize + s.further.iter().map(|part| part.ranks as usize).sum::<usize>();
    let same = |s: &&Shape| {
        s.candidate == placed.candidate && s.engine == placed.engine && ranks(s) == placed.accelerators.len()
    };
    let bytes = |s: &Shape| {
        let own = match s.stages.is_empty() {
            true => s.per_accelerator.total_bytes() * u64::from(s.ranks),
            false => s.stages.iter().map(crate::placement::PlacedMemory::total_bytes).sum(),
        };
        own + s.further.iter().map(|part| part.per_accelerator.total_bytes() * u64::from(part.ranks)).sum::<u64>()
    };
    model.shapes.iter().filter(same).map(bytes).max().unwrap_or(0)
}

/// A model that is warned of fails the hedge, and one that fails it and has its minimum is warned of.
fn hedge(known: &Known<'_>, placement: &Placement, faults: &mut Vec<String>) {
    let notes: Vec<&String> = placement.notes.iter().filter(|note| note.contains("`spot hedge=")).collect();
    for model in known.problem.models.iter().filter(|model| model.min > 0) {
        let mine = known.placed.get(model.name.as_str()).map_or(&[][..], Vec::as_slice);
        let mut on_spot: BTreeMap<&str, usize> = BTreeMap::new();
        // On several spot nodes a replica counts as lost, whichever of them are.
        let mut on_several = 0;
        for placed in mine {
            let nodes = placed.elsewhere.iter().map(|part| part.node.as_str()).chain([placed.node.as_str()]);
            let spot: BTreeSet<&str> = nodes.filter(|name| known.node(name).is_some_and(|node| node.spot)).collect();
            if spot.len() > 1 {
                on_several += 1;
                continue;
            }
            spot.into_iter().for_each(|name| *on_spot.entry(name).or_default() += 1);
        }
        let mut counts: Vec<usize> = on_spot.into_values().collect();
        counts.sort_unstable();
        let lost = on_several + counts.iter().rev().take(known.problem.spot_hedge as usize).sum::<usize>();
        let met = mine.len() - lost >= model.min as usize;
        let own = format!("model `{}`:", model.name);
        let warned = notes.iter().any(|note| note.starts_with(&own));
        let enough = mine.len() >= model.min as usize;
        if enough && met == warned {
            let what = if met { "is met, and a note says otherwise" } else { "is not met, and no note says so" };
            faults.push(format!("{}: the spot hedge {what}", model.name));
        }
    }
}
