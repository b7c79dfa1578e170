//! Losses of spot nodes: how many replicas of a model outlast them, what no placement can surpass, and places that more of
//! them outlast.
//!
//! Of copies on spot nodes the worst losses take least where they are shared out evenly, so of S copies on V nodes no
//! more than a certain share is left. With the copies that are on no spot node that bounds what a kind can have.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::floor::Floor;
use super::groups::Groups;
use super::master::Master;
use crate::placement::Shape;
use crate::placement::layout::Copy;
use crate::placement::milp::Linear;

/// Where the copies of a model are, as far as losses of spot nodes matter.
#[derive(Debug, Clone, Default)]
pub struct Exposed {
    /// Copies that are lost with one node at most.
    alive: u32,
    /// Those that are lost with a spot node, by node.
    at: BTreeMap<usize, u32>,
}

/// The spot nodes that a copy is on; one that is on several counts as lost.
fn spots(groups: &Groups<'_>, nodes: impl Iterator<Item = usize>) -> BTreeSet<usize> {
    nodes.filter(|node| groups.problem.nodes[*node].spot).collect()
}

impl Exposed {
    /// Only the pinned instances of a model.
    pub fn pinned(groups: &Groups<'_>, model: usize) -> Self {
        let mut this = Self::default();
        for node in groups.away.get(&model).into_iter().flatten() {
            this.alive += 1;
            if groups.problem.nodes[*node].spot {
                *this.at.entry(*node).or_default() += 1;
            }
        }
        this
    }

    /// Adds a copy, or takes it away.
    pub fn count(&mut self, groups: &Groups<'_>, copy: &Copy, add: bool) {
        let on = spots(groups, copy.nodes());
        if on.len() > 1 {
            return;
        }
        let step = |count: &mut u32| *count = if add { *count + 1 } else { count.saturating_sub(1) };
        step(&mut self.alive);
        for node in on {
            let here = self.at.entry(node).or_default();
            step(here);
            if *here == 0 {
                self.at.remove(&node);
            }
        }
    }

    /// Copies that the worst losses leave.
    fn left(&self, losses: u32) -> u32 {
        let mut each: Vec<u32> = self.at.values().copied().collect();
        each.sort_unstable_by(|a, b| b.cmp(a));
        self.alive.saturating_sub(each.iter().take(losses as usize).sum())
    }

    /// The same up to the model's minimum.
    pub fn survivors(&self, groups: &Groups<'_>, model: usize) -> u32 {
        self.left(groups.hedge).min(groups.problem.models[model].min)
    }

    /// Greater where more are left, or where what is lost is shared out more evenly.
    fn standing(&self, losses: u32) -> (u32, Reverse<u32>) {
        (self.left(losses), Reverse(self.at.values().map(|count| count * count).sum()))
    }
}

/// Of so many copies on so many spot nodes those that losses leave at most.
fn left(copies: u32, nodes: u32, losses: u32) -> u32 {
    if nodes == 0 {
        return 0;
    }
    let (each, more) = (copies / nodes, copies % nodes);
    copies - (each * losses.min(nodes) + more.min(losses)).min(copies)
}

/// What is left of copies on so many spot nodes, as a share: no number of copies up to `most` leaves more.
fn share(most: u32, nodes: u32, losses: u32) -> f64 {
    let shares = (1..=most).map(|copies| f64::from(left(copies, nodes, losses)) / f64::from(copies));
    shares.fold(0.0, f64::max)
}

/// Spot nodes that copies of a shape are on.
fn spots_of(groups: &Groups<'_>, shape: &Shape) -> BTreeSet<usize> {
    spots(groups, shape.spans().map(|span| span.node))
}

/// Columns of what outlasts, by kind, and their rows.
pub fn rows(master: &mut Master<'_, '_>) -> Vec<Option<usize>> {
    let groups = master.groups;
    let problem = groups.problem;
    let mut columns = Vec::new();
    for (index, kind) in groups.kinds.iter().enumerate() {
        let most: u32 = kind.models.iter().map(|m| problem.models[*m].min).sum();
        if groups.hedge == 0 || most == 0 {
            columns.push(None);
            continue;
        }
        let column = master.program.column(0.0, f64::from(most), true);
        let (mut safe, mut spot) = (Linear::new(), Linear::new());
        let mut nodes: BTreeSet<usize> = BTreeSet::new();
        for way in &kind.ways {
            let on = spots_of(groups, groups.sample(*way));
            let copies = master.columns(*way).map(|c| (c, 1.0));
            match on.len() {
                0 => safe.extend(copies),
                1 => {
                    spot.extend(copies);
                    nodes.extend(on.iter().flat_map(|node| &groups.classes[groups.class_of[*node]].nodes));
                }
                _ => {}
            }
        }
        let (mut fixed, mut exposed, mut copies) = (0, 0, 0);
        for model in &kind.models {
            let away = groups.away.get(model).map_or(&[][..], Vec::as_slice);
            let on: Vec<usize> = away.iter().copied().filter(|node| problem.nodes[*node].spot).collect();
            fixed += away.len() - on.len();
            exposed += on.len();
            copies = copies.max(groups.room[*model] + on.len() as u32);
            nodes.extend(on);
        }
        let share = share(copies, nodes.len() as u32, groups.hedge);
        let mut row: Linear = safe.into_iter().map(|(c, f)| (c, -f)).collect();
        row.extend(spot.into_iter().map(|(c, f)| (c, -f * share)));
        row.push((column, 1.0));
        master.program.at_most(row, fixed as f64 + share * exposed as f64 + 1e-6);
        // None outlasts that is not there.
        let pinned: u32 = kind.models.iter().map(|m| groups.pinned[*m].min(problem.models[*m].min)).sum();
        master.program.at_most(vec![(column, 1.0), (master.least[index], -1.0)], f64::from(pinned));
        columns.push(Some(column));
    }
    columns
}

/// Places new copies of models with a minimum so that more of them outlast losses of spot nodes: highest rank first.
pub fn outlast(groups: &Groups<'_>, floor: &mut Floor<'_, '_>) {
    if groups.hedge == 0 {
        return;
    }
    let problem = groups.problem;
    let mut models: Vec<usize> = (0..problem.models.len()).filter(|m| problem.models[*m].min > 0).collect();
    models.sort_by_key(|m| (Reverse(problem.models[*m].rank), *m));
    for model in models {
        while floor.survivors(model) < problem.models[model].min {
            if !(spread_out(groups, floor, model) || one_more(groups, floor, model)) {
                break;
            }
        }
    }
}

/// Ways for new copies, those off spot nodes first.
fn ways(groups: &Groups<'_>, model: usize) -> Vec<usize> {
    let kind = &groups.kinds[groups.kind_of[model]];
    let mut ways: Vec<usize> = kind.ways.iter().copied().filter(|way| groups.ways[*way].fresh).collect();
    ways.sort_by_key(|way| {
        let on = spots_of(groups, groups.sample(*way)).len();
        (on, groups.deficit(*way), groups.total(*way), *way)
    });
    ways
}

/// The best place for one more copy that makes the model stand better than `before`.
fn better_place(groups: &Groups<'_>, floor: &Floor<'_, '_>, model: usize, before: (u32, Reverse<u32>)) -> Option<Copy> {
    let exposed = floor.exposed(model)?;
    let better = |copy: &Copy| {
        let mut exposed = exposed.clone();
        exposed.count(groups, copy, true);
        exposed.standing(groups.hedge) > before
    };
    ways(groups, model).into_iter().find_map(|way| floor.place_where(model, way, &better).map(|(copy, _)| copy))
}

/// New copies that are looked at for another place.
const LOOKED_AT: usize = 8;

/// Moves a new copy off the spot node that has most of the model's.
fn spread_out(groups: &Groups<'_>, floor: &mut Floor<'_, '_>, model: usize) -> bool {
    let Some(exposed) = floor.exposed(model) else { return false };
    let before = exposed.standing(groups.hedge);
    let weight = |copy: &Copy| {
        let on = spots(groups, copy.nodes());
        if on.len() > 1 { u32::MAX } else { on.iter().filter_map(|node| exposed.at.get(node)).sum() }
    };
    let new = floor.copies.iter().enumerate().filter_map(|(slot, copy)| Some((slot, copy.as_ref()?)));
    let new = new.filter(|(_, copy)| copy.model == model && copy.kept.is_none());
    let mut slots: Vec<(u32, usize)> = new.map(|(slot, copy)| (weight(copy), slot)).filter(|(w, _)| *w > 0).collect();
    slots.sort_by_key(|(weight, slot)| (Reverse(*weight), *slot));
    for (_, slot) in slots.into_iter().take(LOOKED_AT) {
        let Some(copy) = floor.take(slot) else { continue };
        if let Some(better) = better_place(groups, floor, model, before) {
            floor.put(better);
            return true;
        }
        floor.put(copy);
    }
    false
}

/// Adds a copy that the model wants all the same.
fn one_more(groups: &Groups<'_>, floor: &mut Floor<'_, '_>, model: usize) -> bool {
    if floor.counts[model] >= groups.room[model] {
        return false;
    }
    let Some(before) = floor.exposed(model).map(|exposed| exposed.standing(groups.hedge)) else { return false };
    let copy = better_place(groups, floor, model, before);
    copy.map(|copy| floor.put(copy)).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_share_of_what_is_left_is_exceeded() {
        assert_eq!([left(4, 2, 1), left(4, 4, 1), left(4, 3, 1), left(1, 9, 1), left(3, 2, 2)], [2, 3, 2, 0, 0]);
        for (most, nodes, losses) in [(1, 5, 1), (7, 3, 1), (12, 5, 2), (30, 4, 4), (9, 100, 2)] {
            let share = share(most, nodes, losses);
            for copies in 0..=most {
                assert!(f64::from(left(copies, nodes, losses)) <= share * f64::from(copies) + 1e-9);
            }
        }
    }
}
