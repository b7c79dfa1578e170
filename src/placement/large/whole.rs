//! The tiers in whole numbers: the patterns that the relaxation found, as groups of equal cards of one node.

use std::collections::BTreeMap;

use super::goal::Goal;
use super::master::{Lagrangian, Master, Pattern, Proof};
use crate::placement::Limits;
use crate::placement::milp;
use crate::placement::milp::{Linear, Program, Row};

/// Whole numbers of everything.
#[derive(Debug, Clone, Default)]
pub struct Counts {
    /// Per way: new copies.
    pub fresh: Vec<u32>,
    /// Per way: running instances that stay, by weight in the order of the columns.
    pub stays: Vec<Vec<u32>>,
    /// Groups of cards with a pattern: the pattern, cards of a group, and how many groups.
    pub groups: Vec<(Pattern, u32, u32)>,
    /// Whether the clock ended the search.
    pub aborted: bool,
}

/// Cards that a pattern takes at once: the least number of which every width in it is a part.
fn together(master: &Master<'_, '_>, pattern: &Pattern) -> u32 {
    let widths = pattern.items.iter().map(|(item, _)| master.groups.items[*item].width.max(1));
    widths.fold(1, |all, width| {
        let (mut a, mut b) = (all, width);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        all / a * width
    })
}

/// Of a kind that is spread over nodes, one is only on a node that has cards left beside the larger groups without it:
/// in units of every size, it takes at least one.
fn apart(master: &Master<'_, '_>, program: &mut Program, columns: &[(&Pattern, u32, usize)]) {
    let groups = master.groups;
    let mut wide: BTreeMap<usize, Vec<(&Pattern, u32, usize)>> = BTreeMap::new();
    for (pattern, size, column) in columns.iter().filter(|(_, size, _)| *size > 1) {
        let class = groups.types[pattern.card].class;
        if groups.classes[class].types.len() == 1 {
            wide.entry(class).or_default().push((pattern, *size, *column));
        }
    }
    for kind in &groups.kinds {
        let demand = &groups.problem.models[kind.models[0]];
        let Some(label) = demand.spread_by.as_ref().filter(|_| !demand.protected) else { continue };
        let mut rows: BTreeMap<usize, (Linear, Vec<usize>)> = BTreeMap::new();
        for way in &kind.ways {
            let (row, items) = rows.entry(groups.ways[*way].class).or_default();
            row.extend(master.columns(*way).map(|column| (column, 1.0)));
            items.extend(groups.ways[*way].takes.iter().map(|(item, _)| *item));
        }
        let models = kind.models.len() as f64;
        for (class, (copies, items)) in rows {
            let nodes = groups.classes[class].nodes.len();
            let Some(wide) = wide.get(&class).filter(|_| groups.values(label, class) == nodes) else { continue };
            let cards = groups.types[groups.classes[class].types[0]].positions.len();
            let without = |pattern: &Pattern| !pattern.items.iter().any(|(item, _)| items.contains(item));
            let mut sizes: Vec<u32> = wide.iter().map(|(_, size, _)| *size).collect();
            sizes.sort_unstable();
            sizes.dedup();
            for unit in sizes {
                let others = wide.iter().filter(|(pattern, size, _)| size.is_multiple_of(unit) && without(pattern));
                let taken = others.map(|(_, size, column)| (*column, models * f64::from(size / unit)));
                let row = copies.iter().copied().chain(taken).collect();
                program.at_most(row, models * (nodes * (cards / unit as usize)) as f64);
            }
        }
    }
}

/// Whole numbers may be so far from what the relaxation has, rounded down, where they shall stay around it.
const AROUND: f64 = 2.0;
/// What costs more at the prices of the relaxation than so many copies do on average is not looked at then.
const DEAR: f64 = 2.0;

/// Reduced costs from which a column is not looked at.
fn dear(master: &Master<'_, '_>, proof: &Proof) -> f64 {
    let copies: f64 = (0..master.groups.ways.len()).flat_map(|way| master.columns(way)).map(|c| proof.point[c]).sum();
    DEAR * proof.bound.unwrap_or(f64::INFINITY).abs() / copies.max(1.0)
}

/// New copies only in ways that do not cost much at the prices of the relaxation, and about as many as it has of them.
fn narrow(master: &Master<'_, '_>, program: &mut Program, rows: &[Row], objective: &Linear, proof: &Proof) {
    let reduced = Lagrangian::new(&master.program, rows, objective).reduced(&proof.prices);
    let dear = dear(master, proof);
    for column in master.fresh.iter().chain(&master.near).flatten() {
        let of = &mut program.columns[*column];
        let below = (proof.point[*column] + 1e-6).floor();
        of.max = if reduced[*column] > dear { below.clamp(of.min, of.max) } else { (below + AROUND).min(of.max) };
        of.min = (below - AROUND).clamp(of.min, of.max);
    }
}

/// Minimises a goal in whole numbers over the patterns of the pool; `None` where nothing was found. Where the optimum
/// of a relaxation is given, patterns stay around what it has of them: that leaves little to search.
pub fn minimise(
    master: &Master<'_, '_>,
    goal: &Goal,
    rows: &[Row],
    pool: &[Pattern],
    around: Option<&Proof>,
    gap: f64,
    limits: &Limits,
) -> Option<Counts> {
    let groups = master.groups;
    // Where the relaxation found no optimum, nothing is known to stay around.
    let around = around.filter(|proof| !proof.point.is_empty() && !proof.prices.is_empty());
    let mut program = master.program.clone();
    let (objective, _constant) = master.linear(goal);
    if let Some(proof) = around {
        narrow(master, &mut program, rows, &objective, proof);
    }
    let dear = around.map_or(f64::INFINITY, |proof| dear(master, proof));
    let mut columns = Vec::new();
    // Per card type: columns by the size of their groups.
    let mut sizes: BTreeMap<usize, Vec<(u32, usize)>> = BTreeMap::new();
    for (index, pattern) in pool.iter().enumerate() {
        let card = &groups.types[pattern.card];
        let size = together(master, pattern);
        if size as usize > card.positions.len() {
            continue;
        }
        let (mut least, mut most) = (0.0, (card.cards / size as usize) as f64);
        if let Some(proof) = around {
            if -master.worth(pattern, &proof.prices) * f64::from(size) > dear {
                continue;
            }
            let here = proof.patterns.get(index).copied().unwrap_or(0.0) / f64::from(size);
            let below = (here + 1e-6).floor();
            (least, most) = ((below - AROUND).clamp(0.0, most), (below + AROUND).min(most));
        }
        let column = program.column(least, most, true);
        for (item, count) in &pattern.items {
            // A group is on one node: what may be there only once does not fill the others of its cards.
            let most = master.most[*item].saturating_mul(groups.items[*item].width.max(1));
            program.rows[master.cover[*item]].terms.push((column, -f64::from((count * size).min(most))));
        }
        program.rows[master.cards[pattern.card]].terms.push((column, f64::from(size)));
        sizes.entry(pattern.card).or_default().push((size, column));
        columns.push((pattern, size, column));
    }
    // Largest first: of groups of a size or more, in units of that size, a node has only so many.
    for (card, of) in sizes {
        let card = &groups.types[card];
        let mut widths: Vec<u32> = of.iter().map(|(size, _)| *size).filter(|s| *s > 1).collect();
        widths.sort_unstable();
        widths.dedup();
        for width in widths.into_iter().filter(|w| !card.positions.len().is_multiple_of(*w as usize)) {
            let row: Linear =
                of.iter().filter(|(s, _)| s.is_multiple_of(width)).map(|(s, c)| (*c, f64::from(s / width))).collect();
            let nodes = groups.classes[card.class].nodes.len();
            program.at_most(row, (nodes * (card.positions.len() / width as usize)) as f64);
        }
    }
    apart(master, &mut program, &columns);
    let solved = milp::minimise(&program, rows, &objective, &[], gap, limits);
    let point = solved.point?;
    let count = |column: usize| point[column].round().max(0.0) as u32;
    Some(Counts {
        fresh: (master.fresh.iter().zip(&master.near))
            .map(|(far, near)| far.iter().chain(near).map(|column| count(*column)).sum())
            .collect(),
        stays: master.stays.iter().map(|stays| stays.iter().map(|s| count(s.column)).collect()).collect(),
        groups: columns
            .into_iter()
            .map(|(pattern, size, column)| (pattern.clone(), size, count(column)))
            .filter(|(.., count)| *count > 0)
            .collect(),
        aborted: solved.aborted,
    })
}
