//! Models that should share few nodes: what a layout counts of them, what none can go below, and copies that are gathered.

use std::collections::{BTreeMap, BTreeSet};

use super::floor::Floor;
use super::goal;
use super::groups::{Groups, Kind};
use super::master::Master;
use crate::placement::Term;
use crate::placement::layout::{Copy, whole};
use crate::placement::milp::Linear;

/// Nodes beyond the first that the copies of a model are on, the pinned ones counted.
pub fn beyond<'c>(groups: &Groups<'_>, model: usize, copies: impl Iterator<Item = &'c Copy>) -> f64 {
    let away = groups.away.get(&model).into_iter().flatten().copied();
    let nodes: BTreeSet<usize> = copies.flat_map(Copy::nodes).chain(away).collect();
    nodes.len().saturating_sub(1) as f64
}

/// Columns of what `pack` counts, by kind, and their rows: no node takes more than fits.
pub fn rows(master: &mut Master<'_, '_>) -> Vec<Option<usize>> {
    let groups = master.groups;
    let problem = groups.problem;
    let weighed = |(term, weight): &(Term, f64)| *term == Term::Pack && *weight > 0.0;
    let counts = problem.tail.iter().any(|tier| tier.terms.iter().any(weighed));
    let mut columns = Vec::new();
    for kind in &groups.kinds {
        if !counts || !problem.models[kind.models[0]].pack {
            columns.push(None);
            continue;
        }
        let away =
            |model: &usize| groups.away.get(model).map_or(0, |nodes| nodes.iter().collect::<BTreeSet<_>>().len());
        let away: usize = kind.models.iter().map(away).sum();
        let column = master.program.column(0.0, f64::from(kind.room) + away as f64, false);
        let mut row = Linear::new();
        for (way, share) in shares(groups, kind) {
            row.extend(master.columns(way).map(|c| (c, share)));
        }
        row.push((column, -1.0));
        master.program.at_most(row, kind.models.len() as f64 - away as f64 + 1e-6);
        columns.push(Some(column));
    }
    columns
}

/// What share of its own node a copy takes at least, by way: those of a model on one node are never more than 1.
fn shares(groups: &Groups<'_>, kind: &Kind) -> Vec<(usize, f64)> {
    let first = &groups.problem.models[kind.models[0]];
    if first.spread_by.is_some() && !first.protected {
        return kind.ways.iter().map(|way| (*way, 1.0)).collect();
    }
    // The cards of each class that any copy may take.
    let mut cards: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for (item, _) in kind.ways.iter().flat_map(|way| &groups.ways[*way].takes) {
        for card in &groups.items[*item].types {
            cards.entry(groups.types[*card].class).or_default().insert(*card);
        }
    }
    let room = |class: usize| -> u64 {
        let all = cards.get(&class).into_iter().flatten().map(|card| &groups.types[*card]);
        all.map(|card| card.capacity * card.positions.len() as u64).sum()
    };
    let share = |way: &usize| {
        let of = &groups.ways[*way];
        let own = of.takes.first().filter(|_| groups.sample(*way).ranks > 0);
        let bytes = own.map_or(0, |(item, ranks)| u64::from(*ranks) * whole(groups.items[*item].bytes));
        (*way, bytes as f64 / (room(of.class) as f64).max(1.0))
    };
    kind.ways.iter().map(share).collect()
}

/// Nodes that are looked at for all new copies of a model.
const NODES: usize = 16;

/// Brings new copies of models that should share few nodes together, where that costs less.
pub fn gather(groups: &Groups<'_>, floor: &mut Floor<'_, '_>) {
    let problem = groups.problem;
    for model in (0..problem.models.len()).filter(|m| problem.models[*m].pack) {
        while fewer(groups, floor, model) {}
    }
}

/// Takes the new copies off one node, or off all, and puts them on nodes that the model is on, or on a single one; keeps
/// that where it costs less.
fn fewer(groups: &Groups<'_>, floor: &mut Floor<'_, '_>, model: usize) -> bool {
    let slots: Vec<usize> =
        (0..floor.copies.len()).filter(|s| floor.copies[*s].as_ref().is_some_and(|c| c.model == model)).collect();
    let all: Vec<&Copy> = slots.iter().filter_map(|slot| floor.copies[*slot].as_ref()).collect();
    let nodes: BTreeSet<usize> = all.iter().flat_map(|copy| copy.nodes()).collect();
    if nodes.len() < 2 {
        return false;
    }
    let before = goal::counted(groups, model, &all, 0.0);
    let new = |slot: &usize| floor.copies[*slot].as_ref().is_some_and(|copy| copy.kept.is_none());
    let on = |node: usize, slot: &usize| {
        floor.copies[*slot].as_ref().is_some_and(|copy| copy.nodes().any(|other| other == node))
    };
    // What leaves, and the nodes where it may go.
    let mut attempts: Vec<(Vec<usize>, Vec<usize>)> = Vec::new();
    for node in &nodes {
        let leaves: Vec<usize> = slots.iter().copied().filter(|slot| on(*node, slot)).collect();
        if leaves.iter().all(new) {
            attempts.push((leaves, nodes.iter().copied().filter(|other| other != node).collect()));
        }
    }
    let moving: Vec<usize> = slots.iter().copied().filter(new).collect();
    let kind = &groups.kinds[groups.kind_of[model]];
    let classes: BTreeSet<usize> = kind.ways.iter().map(|way| groups.ways[*way].class).collect();
    let fresh = |class: &usize| groups.classes[*class].nodes.iter().copied().filter(|n| !nodes.contains(n)).take(NODES);
    attempts
        .extend(nodes.iter().copied().chain(classes.iter().flat_map(fresh)).map(|node| (moving.clone(), vec![node])));
    for (leaves, to) in attempts {
        let taken: Vec<Copy> = leaves.iter().filter_map(|slot| floor.take(*slot)).collect();
        let mut put = Vec::new();
        for _ in &taken {
            let mut places: Vec<(usize, usize)> = Vec::new();
            for node in &to {
                let here =
                    |way: &&usize| groups.ways[**way].fresh && groups.ways[**way].class == groups.class_of[*node];
                places.extend(kind.ways.iter().filter(here).map(|way| (*way, *node)));
            }
            places.sort_by_key(|(way, node)| (groups.deficit(*way), groups.total(*way), *way, *node));
            let Some(copy) = places.into_iter().find_map(|(way, node)| floor.place_at(model, way, node)) else { break };
            put.push(floor.put(copy));
        }
        let all: Vec<&Copy> = floor.copies.iter().flatten().filter(|copy| copy.model == model).collect();
        let good = put.len() == taken.len() && goal::less(&goal::counted(groups, model, &all, 0.0), &before);
        if good {
            return true;
        }
        put.into_iter().for_each(|slot| drop(floor.take(slot)));
        for copy in taken {
            floor.put(copy);
        }
    }
    false
}
