//! The tiers in whole numbers: the patterns that the relaxation found, as groups of equal cards of one node.

use std::collections::BTreeMap;

use super::goal::Goal;
use super::master::{Master, Pattern, Proof};
use crate::placement::Limits;
use crate::placement::milp;
use crate::placement::milp::{Linear, Row};

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

/// Whole numbers may be so far from what the relaxation has, rounded down, where they shall stay around it.
const AROUND: f64 = 2.0;

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
    let mut program = master.program.clone();
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
            let here = proof.patterns.get(index).copied().unwrap_or(0.0) / f64::from(size);
            let below = (here + 1e-6).floor();
            (least, most) = ((below - AROUND).clamp(0.0, most), (below + AROUND).min(most));
        }
        let column = program.column(least, most, true);
        for (item, count) in &pattern.items {
            program.rows[master.cover[*item]].terms.push((column, -f64::from(count * size)));
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
    let (objective, _) = master.linear(goal);
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
