//! From loads to copies where a shape has several parts: which accelerators each copy takes, all of them distinct.
//!
//! The copies are the colours of a bipartite multigraph between the ranks of one copy and the accelerators. Every rank
//! has as many edges as there are copies, every accelerator at most as many; such a graph can be coloured with that
//! many colours (Kőnig), one matching after the other: a matching that takes every rank, and every accelerator that
//! has as many edges left as copies are left, leaves a graph of the same kind.

use std::collections::BTreeMap;

/// An accelerator: node and position.
type Place = (usize, usize);

/// The positions of each part, copy by copy. `parts` are the ranks that one copy takes of each part, and the ranks of
/// all copies on the accelerators that the part may take. Fewer copies come out where the loads allow no more.
pub fn sets(copies: usize, parts: Vec<(usize, Vec<(Place, usize)>)>) -> Vec<Vec<Vec<usize>>> {
    let mut matcher = Matcher::new(parts);
    let mut found = Vec::new();
    for left in (1..=copies).rev() {
        let Some(set) = matcher.next(left) else { break };
        found.push(set);
    }
    found
}

struct Matcher {
    /// Ranks of one copy: the part of each.
    ranks: Vec<usize>,
    parts: usize,
    /// Accelerators, in order.
    places: Vec<Place>,
    /// By accelerator and part: ranks that are still to be handed out.
    left: Vec<Vec<usize>>,
}

impl Matcher {
    fn new(parts: Vec<(usize, Vec<(Place, usize)>)>) -> Self {
        let mut loads: BTreeMap<Place, Vec<usize>> = BTreeMap::new();
        let mut ranks = Vec::new();
        let count = parts.len();
        for (part, (width, on)) in parts.into_iter().enumerate() {
            ranks.extend(std::iter::repeat_n(part, width));
            for (place, load) in on {
                loads.entry(place).or_insert_with(|| vec![0; count])[part] += load;
            }
        }
        let (places, left) = loads.into_iter().unzip();
        Self { ranks, parts: count, places, left }
    }

    /// The next copy, of so many that are left.
    fn next(&mut self, copies: usize) -> Option<Vec<Vec<usize>>> {
        // By rank its accelerator, by accelerator its rank.
        let mut taken: Vec<Option<usize>> = vec![None; self.ranks.len()];
        let mut holder: Vec<Option<usize>> = vec![None; self.places.len()];
        for place in 0..self.places.len() {
            let load: usize = self.left[place].iter().sum();
            if load >= copies && holder[place].is_none() {
                let mut seen = vec![false; self.ranks.len()];
                self.hold(place, &mut taken, &mut holder, &mut seen);
            }
        }
        for rank in 0..self.ranks.len() {
            let mut seen = vec![false; self.places.len()];
            if taken[rank].is_none() && !self.take(rank, &mut taken, &mut holder, &mut seen) {
                return None;
            }
        }
        let mut set = vec![Vec::new(); self.parts];
        for (rank, place) in taken.into_iter().enumerate() {
            let (part, place) = (self.ranks[rank], place?);
            self.left[place][part] -= 1;
            set[part].push(self.places[place].1);
        }
        set.iter_mut().for_each(|positions| positions.sort_unstable());
        Some(set)
    }

    /// Finds a rank for an accelerator that must have one, by an augmenting path.
    fn hold(&self, place: usize, taken: &mut [Option<usize>], holder: &mut [Option<usize>], seen: &mut [bool]) -> bool {
        for rank in 0..self.ranks.len() {
            if self.left[place][self.ranks[rank]] == 0 || std::mem::replace(&mut seen[rank], true) {
                continue;
            }
            let free = match taken[rank] {
                None => true,
                Some(other) => self.hold(other, taken, holder, seen),
            };
            if free {
                taken[rank] = Some(place);
                holder[place] = Some(rank);
                return true;
            }
        }
        false
    }

    /// Finds an accelerator for a rank; what has one keeps having one.
    fn take(&self, rank: usize, taken: &mut [Option<usize>], holder: &mut [Option<usize>], seen: &mut [bool]) -> bool {
        let part = self.ranks[rank];
        let mut order: Vec<usize> = (0..self.places.len()).filter(|place| self.left[*place][part] > 0).collect();
        order.sort_by_key(|place| (std::cmp::Reverse(self.left[*place].iter().sum::<usize>()), *place));
        for place in order {
            if std::mem::replace(&mut seen[place], true) {
                continue;
            }
            let free = match holder[place] {
                None => true,
                Some(other) => self.take(other, taken, holder, seen),
            };
            if free {
                holder[place] = Some(rank);
                taken[rank] = Some(place);
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::placement::tests::random::Dice;

    /// Random copies give loads; the loads must give as many copies again, with exactly those loads.
    #[test]
    fn loads_of_copies_are_copies_again() {
        let mut dice = Dice(7);
        for case in 0..2_000 {
            let places = 2 + dice.below(5) as usize;
            let widths: Vec<usize> = (0..1 + dice.below(3)).map(|_| 1 + dice.below(2) as usize).collect();
            // Parts may share accelerators or not.
            let may = |part: usize, place: usize| case % 3 != 0 || place % widths.len() == part;
            let copies = 1 + dice.below(5) as usize;
            let mut parts: Vec<(usize, Vec<(Place, usize)>)> = widths.iter().map(|w| (*w, Vec::new())).collect();
            for (part, (_, on)) in parts.iter_mut().enumerate() {
                on.extend((0..places).filter(|place| may(part, *place)).map(|place| ((0, place), 0)));
            }
            let mut made = 0;
            for _ in 0..copies {
                let mut used = BTreeSet::new();
                let before = parts.clone();
                let whole = parts.iter_mut().all(|(width, on)| {
                    (0..*width).all(|_| {
                        let open: Vec<usize> = (0..on.len()).filter(|i| !used.contains(&on[*i].0)).collect();
                        if open.is_empty() {
                            return false;
                        }
                        let chosen = open[dice.below(open.len() as u64) as usize];
                        on[chosen].1 += 1;
                        used.insert(on[chosen].0)
                    })
                });
                if whole { made += 1 } else { parts = before }
            }
            let found = sets(made, parts.clone());
            assert_eq!(found.len(), made, "case {case}: {parts:?}");
            let mut loads: BTreeMap<(usize, usize), usize> = BTreeMap::new();
            for set in &found {
                let all: Vec<usize> = set.iter().flatten().copied().collect();
                assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "case {case}: {set:?}");
                for (part, positions) in set.iter().enumerate() {
                    assert_eq!(positions.len(), widths[part]);
                    positions.iter().for_each(|position| *loads.entry((part, *position)).or_default() += 1);
                }
            }
            for (part, (_, on)) in parts.iter().enumerate() {
                for ((_, position), load) in on {
                    assert_eq!(loads.get(&(part, *position)).copied().unwrap_or(0), *load, "case {case}");
                }
            }
        }
    }
}
