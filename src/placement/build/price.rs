//! What accelerators cost: [`Term::Cost`](crate::placement::Term::Cost) of one replica is the sum over those it takes.

use crate::placement::Problem;

/// By node and accelerator.
///
/// Where a node of the config has a price: an accelerator costs its share of its node's memory times the node's price, in
/// the cluster's currency per hour; on nodes without a price, its memory times the dearest price per byte of the others.
/// Where none has: its memory as the share of the largest accelerator's.
///
/// Shared accelerators count once for every replica on them, and a replica on the CPU costs nothing.
pub fn costs(problem: &Problem) -> Vec<Vec<f64>> {
    let dearest = problem.nodes.iter().filter(|node| node.member).filter_map(rate).max_by(f64::total_cmp);
    let largest = problem.nodes.iter().flat_map(|n| &n.accelerators).map(|a| a.total_bytes).max().unwrap_or(0);
    let share = 1.0 / (largest as f64).max(1.0);
    let of = |node: &crate::placement::NodeSupply| {
        let each = match dearest {
            Some(dearest) => rate(node).unwrap_or(dearest),
            None => share,
        };
        node.accelerators.iter().map(|a| a.total_bytes as f64 * each).collect()
    };
    problem.nodes.iter().map(of).collect()
}

/// Price per byte of accelerator memory and hour.
fn rate(node: &crate::placement::NodeSupply) -> Option<f64> {
    let bytes: u64 = node.accelerators.iter().map(|a| a.total_bytes).sum();
    node.price_per_hour.filter(|_| bytes > 0).map(|price| price / bytes as f64)
}

/// Nodes with accelerators whose price was assumed because others have one; a sentence, or nothing.
pub fn note(problem: &Problem, currency: Option<&str>) -> Option<String> {
    let here = || problem.nodes.iter().filter(|n| n.member && !n.accelerators.is_empty());
    let unknown: Vec<&str> = here().filter(|n| n.price_per_hour.is_none()).map(|n| n.name.as_str()).collect();
    let dearest = here().filter_map(rate).max_by(f64::total_cmp)?;
    if unknown.is_empty() {
        return None;
    }
    let more = if unknown.len() > 3 { format!(" and {} more", unknown.len() - 3) } else { String::new() };
    let names = unknown.iter().take(3).copied().collect::<Vec<_>>().join(", ");
    let per = dearest * f64::from(1 << 30);
    let currency = currency.map(|code| format!(" {code}")).unwrap_or_default();
    Some(format!(
        "no price is known of {names}{more}: the dearest known one counts, {per:.4}{currency} per GiB and hour"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::GIB;
    use crate::placement::tests::random::{accelerator, node};

    fn nodes(prices: &[(Option<f64>, &[u64])]) -> Problem {
        let one = |(index, (price, sizes)): (usize, &(Option<f64>, &[u64]))| {
            let cards =
                sizes.iter().enumerate().map(|(p, s)| accelerator(format!("{index}-{p}"), "x", s * GIB)).collect();
            crate::placement::NodeSupply { price_per_hour: *price, ..node(&format!("n{index}"), cards) }
        };
        Problem { nodes: prices.iter().enumerate().map(one).collect(), ..Problem::default() }
    }

    #[test]
    fn prices_are_shared_by_memory_and_unknown_ones_are_the_dearest() {
        assert_eq!(costs(&nodes(&[(None, &[80, 20]), (None, &[40])])), [vec![1.0, 0.25], vec![0.5]]);
        let near = |problem: &Problem, wanted: &[&[f64]]| {
            let found = costs(problem);
            let same = found.iter().flatten().zip(wanted.iter().copied().flatten()).all(|(a, b)| (a - b).abs() < 1e-9);
            assert!(same && found.len() == wanted.len(), "{found:?}");
        };
        // 2.00/h over 100 GiB; 1.00/h over 40 GiB is the dearer one per GiB.
        let mixed = nodes(&[(Some(2.0), &[80, 20]), (Some(1.0), &[40]), (None, &[40, 80])]);
        near(&mixed, &[&[1.6, 0.4], &[1.0], &[1.0, 2.0]]);
        assert_eq!(
            note(&mixed, Some("USD")).as_deref(),
            Some("no price is known of n2: the dearest known one counts, 0.0250 USD per GiB and hour")
        );
        assert_eq!(note(&nodes(&[(None, &[80])]), None), None);
        assert_eq!(note(&nodes(&[(Some(1.0), &[80])]), None), None);
        // A price of nothing is a price.
        near(&nodes(&[(Some(0.0), &[80]), (Some(1.0), &[80])]), &[&[0.0], &[1.0]]);
    }
}
