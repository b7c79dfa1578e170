//! The best pattern of one card: a bounded search for the multiset of parts that is worth most at given prices.

/// A part that may lie on the card.
#[derive(Debug, Clone, Copy)]
pub struct Part {
    /// Its item.
    pub item: usize,
    /// Bytes on this card.
    pub size: u64,
    /// What it is worth.
    pub value: f64,
    /// How many of it may lie on one card.
    pub most: u32,
}

/// What was found.
#[derive(Debug, Clone, Default)]
pub struct Priced {
    /// Patterns that are worth more than asked for, best first: items with their counts.
    pub patterns: Vec<Vec<(usize, u32)>>,
    /// No pattern is worth more.
    pub bound: f64,
}

/// Steps of the exact search before a coarser bound takes its place.
const STEPS: usize = 60_000;
/// Units that the coarser search divides a card into.
const UNITS: u64 = 16_384;
/// Patterns returned at once.
const PATTERNS: usize = 3;

struct Search<'s> {
    parts: &'s [Part],
    least_size: Vec<u64>,
    best: f64,
    taken: Vec<(usize, u32)>,
    found: Vec<Vec<(usize, u32)>>,
    steps: usize,
}

/// Patterns worth more than `price` on a card of so many bytes.
pub fn price(mut parts: Vec<Part>, capacity: u64, price: f64) -> Priced {
    parts.retain(|p| p.value > 1e-9 && p.size <= capacity && p.most > 0);
    undominated(&mut parts, capacity);
    let density = |p: &Part| p.value / p.size.max(1) as f64;
    parts.sort_by(|a, b| density(b).total_cmp(&density(a)).then(a.item.cmp(&b.item)));
    let mut least_size = vec![u64::MAX; parts.len() + 1];
    for at in (0..parts.len()).rev() {
        least_size[at] = least_size[at + 1].min(parts[at].size);
    }
    let margin = 1e-7 * price.abs().max(1.0);
    let mut search =
        Search { parts: &parts, least_size, best: price + margin, taken: Vec::new(), found: Vec::new(), steps: 0 };
    search.go(0, capacity, 0.0);
    let mut bound = search.best;
    if search.steps > STEPS {
        bound = coarse(&parts, capacity, false).0.max(bound);
        let (value, pattern) = coarse(&parts, capacity, true);
        if value > search.best {
            search.found.push(pattern);
        }
    }
    let mut patterns = search.found;
    patterns.reverse();
    patterns.truncate(PATTERNS);
    Priced { patterns, bound }
}

impl Search<'_> {
    fn go(&mut self, from: usize, left: u64, value: f64) {
        if value > self.best {
            self.best = value;
            let mut pattern = self.taken.clone();
            pattern.sort_unstable();
            self.found.push(pattern);
        }
        for at in from..self.parts.len() {
            if left < self.least_size[at] || self.steps > STEPS {
                return;
            }
            let part = self.parts[at];
            if value + part.value / part.size.max(1) as f64 * left as f64 <= self.best {
                return;
            }
            let most = (left / part.size.max(1)).min(u64::from(part.most)) as u32;
            for count in (1..=most).rev() {
                self.steps += 1;
                self.taken.push((part.item, count));
                let left = left - u64::from(count) * part.size;
                self.go(at + 1, left, value + f64::from(count) * part.value);
                self.taken.pop();
            }
        }
    }
}

/// Drops parts that another one beats in size and in worth, where a card has as many of that as it can hold.
fn undominated(parts: &mut Vec<Part>, capacity: u64) {
    parts.sort_by(|a, b| a.size.cmp(&b.size).then(b.value.total_cmp(&a.value)).then(a.item.cmp(&b.item)));
    let mut best = f64::NEG_INFINITY;
    parts.retain(|part| {
        let keep = part.value > best;
        if keep && u64::from(part.most) >= capacity / part.size.max(1) {
            best = part.value;
        }
        keep
    });
}

/// The best pattern with sizes in parts of the card: rounded down no pattern is worth more, rounded up it fits.
fn coarse(parts: &[Part], capacity: u64, up: bool) -> (f64, Vec<(usize, u32)>) {
    let unit = capacity.div_ceil(UNITS).max(1);
    let units = (capacity / unit) as usize;
    let mut best = vec![0.0_f64; units + 1];
    let mut last = vec![usize::MAX; units + 1];
    let size_of = |part: &Part| (if up { part.size.div_ceil(unit) } else { part.size / unit }) as usize;
    for (index, part) in parts.iter().enumerate() {
        let size = size_of(part);
        if size == 0 {
            // Smaller than a unit: by weight.
            let density = parts.iter().map(|p| p.value / p.size.max(1) as f64).fold(0.0, f64::max);
            return (if up { 0.0 } else { density * capacity as f64 }, Vec::new());
        }
        for at in size..=units {
            let value = best[at - size] + part.value;
            if value > best[at] {
                best[at] = value;
                last[at] = index;
            }
        }
    }
    let mut counts: std::collections::BTreeMap<usize, u32> = std::collections::BTreeMap::new();
    let mut at = units;
    while let Some(part) = parts.get(last[at]) {
        *counts.entry(part.item).or_default() += 1;
        at -= size_of(part);
    }
    let most = |item: usize| parts.iter().find(|p| p.item == item).map_or(0, |p| p.most);
    let legal = counts.iter().all(|(item, count)| *count <= most(*item));
    (if up && !legal { 0.0 } else { best[units] }, counts.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(item: usize, size: u64, value: f64) -> Part {
        Part { item, size, value, most: 100 }
    }

    #[test]
    fn the_best_pattern_is_found_and_the_coarse_bound_is_not_below() {
        let parts = vec![part(0, 30, 3.0), part(1, 45, 5.0), part(2, 20, 1.9)];
        let priced = price(parts.clone(), 100, 0.0);
        assert_eq!(priced.patterns[0], vec![(1, 2)]);
        assert!((priced.bound - 10.0).abs() < 1e-6);
        assert!(coarse(&parts, 100, false).0 >= 10.0);
        assert_eq!(coarse(&parts, 100, true), (10.0, vec![(1, 2)]));
        assert!(price(parts, 100, 10.0).patterns.is_empty());
    }
}
