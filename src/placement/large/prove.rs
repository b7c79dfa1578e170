//! A closer bound for a smaller cluster: whether anything so much better than the incumbent exists at all.
//!
//! At the prices of a relaxation every column has a reduced cost, and a point that is better than a value uses none
//! whose reduced cost alone surpasses the distance of that value to the bound. What is left is little: all patterns of
//! it can be written down, and the solver can look for such a point in whole numbers. Where it finds that there is
//! none, the value is a bound. Cards are looked at one by one, so every layout is a point of it.

use super::goal::Goal;
use super::groups::CardType;
use super::master::{Lagrangian, Master, Pattern, Proof};
use crate::placement::Limits;
use crate::placement::milp;
use crate::placement::milp::Row;

/// Patterns that are written down at most.
const PATTERNS: usize = 6_000;
/// Steps of the search for them, over all types of cards.
const STEPS: usize = 400_000;
/// Reduced costs are known so well, as a share of the bound.
const SLACK: f64 = 1e-6;

/// A bound that is at least `enough`, or as near to it as is found out; `None` where nothing more is.
pub fn prove(
    master: &Master<'_, '_>,
    goal: &Goal,
    rows: &[Row],
    proof: &Proof,
    enough: f64,
    limits: &Limits,
) -> Option<f64> {
    let bound = proof.bound?;
    let window = enough - bound + SLACK * bound.abs().max(1.0);
    let (objective, constant) = master.linear(goal);
    let reduced = Lagrangian::new(&master.program, rows, &objective).reduced(&proof.prices);
    let mut program = master.program.clone();
    for (column, reduced) in program.columns.iter_mut().zip(&reduced) {
        // One more than its least costs so much.
        if *reduced > window && column.integer {
            column.max = column.min;
        } else if *reduced < -window && column.integer {
            column.min = column.max;
        }
    }
    let mut open = vec![false; master.groups.items.len()];
    for (way, of) in master.groups.ways.iter().enumerate() {
        let used = master.columns(way).any(|column| program.columns[column].max > 0.0);
        of.takes.iter().filter(|_| used).for_each(|(item, _)| open[*item] = true);
    }
    let mut all = Vec::new();
    let mut steps = 0;
    for card in 0..master.groups.types.len() {
        let search = Search::new(master, card, &open, &proof.prices, window);
        search.go(0, &mut Vec::new(), master.groups.types[card].capacity, search.worth, &mut all, &mut steps)?;
    }
    for pattern in &all {
        let column = program.column(0.0, master.groups.types[pattern.card].cards as f64, true);
        let late = master.late(pattern);
        late.rows.into_iter().for_each(|(row, factor)| program.rows[row].terms.push((column, factor)));
    }
    let mut rows: Vec<Row> = rows.to_vec();
    rows.push(Row { terms: objective.clone(), limit: enough - constant });
    let solved = milp::nothing_below(&program, &rows, &objective, limits);
    match solved {
        milp::Below::Nothing => Some(enough),
        milp::Below::Bound(least) => Some((least + constant).min(enough)).filter(|least| *least > bound),
        milp::Below::Unknown => None,
    }
}

/// The search for all fullest patterns of a type of cards that cost no more than the window.
struct Search {
    card: usize,
    /// Items with size, value and how many there may be, the smallest last.
    parts: Vec<(usize, u64, f64, u32)>,
    /// From each on, the most that a byte is worth.
    density: Vec<f64>,
    /// What an empty card costs.
    worth: f64,
    window: f64,
}

impl Search {
    fn new(master: &Master<'_, '_>, card: usize, open: &[bool], prices: &[f64], window: f64) -> Self {
        let groups = master.groups;
        let of: &CardType = &groups.types[card];
        let mut parts: Vec<(usize, u64, f64, u32)> = (0..groups.items.len())
            .filter(|item| open[*item] && groups.items[*item].types.contains(&card))
            .map(|item| {
                (item, groups.size(item, card).max(1), (-prices[master.cover[item]]).max(0.0), master.most[item])
            })
            .filter(|(_, size, _, most)| *size <= of.capacity && *most > 0)
            .collect();
        parts.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        let mut density = vec![0.0_f64; parts.len() + 1];
        for (at, (_, size, value, _)) in parts.iter().enumerate().rev() {
            density[at] = density[at + 1].max(value / *size as f64);
        }
        Self { card, parts, density, worth: -prices[master.cards[card]], window }
    }

    /// `cost` is what the card costs more than what lies on it so far is worth. `None` where there is too much to do.
    fn go(
        &self,
        from: usize,
        taken: &mut Vec<(usize, u32)>,
        left: u64,
        cost: f64,
        all: &mut Vec<Pattern>,
        steps: &mut usize,
    ) -> Option<()> {
        *steps += 1;
        if *steps > STEPS {
            return None;
        }
        if cost - self.density[from] * left as f64 > self.window {
            return Some(());
        }
        let Some((item, size, value, most)) = self.parts.get(from).copied() else {
            let count = |item: usize| taken.iter().find(|(of, _)| *of == item).map_or(0, |(_, count)| *count);
            let fullest = self.parts.iter().all(|(item, size, _, most)| *size > left || count(*item) >= *most);
            if fullest && !taken.is_empty() {
                if all.len() >= PATTERNS {
                    return None;
                }
                let mut items = taken.clone();
                items.sort_unstable();
                all.push(Pattern { card: self.card, items });
            }
            return Some(());
        };
        for count in (0..=(left / size).min(u64::from(most)) as u32).rev() {
            if count > 0 {
                taken.push((item, count));
            }
            let rest = left - u64::from(count) * size;
            let found = self.go(from + 1, taken, rest, cost - f64::from(count) * value, all, steps);
            if count > 0 {
                taken.pop();
            }
            found?;
        }
        Some(())
    }
}
