//! What a tier minimises, and its value in a layout of named machines.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use super::groups::Groups;
use super::hedge::Exposed;
use super::near::{Places, places};
use super::pack;
use crate::placement::Term;
use crate::placement::layout::Copy;

/// A tier.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Goal {
    /// Instances of a rank that lose their place to others.
    Displaced(u32),
    /// Replicas of a rank, counted negative.
    Replicas {
        /// Whether only those up to the minimum count.
        minimum: bool,
        /// The rank.
        rank: u32,
        /// Whether the models may displace lower ranks.
        preempts: bool,
    },
    /// Replicas of a rank that outlast losses of spot nodes, counted negative.
    Hedge(u32),
    /// A tier of the problem's own.
    Tail(usize),
}

/// What a layout reaches, model by model.
pub struct Facts<'g, 'p> {
    groups: &'g Groups<'p>,
    placed: Vec<u32>,
    displaced: Vec<u32>,
    survivors: Vec<u32>,
    terms: BTreeMap<Term, f64>,
    places: Places,
    traffic: OnceCell<f64>,
}

impl<'g, 'p> Facts<'g, 'p> {
    /// Of a layout.
    pub fn of(groups: &'g Groups<'p>, layout: &[Copy]) -> Self {
        let problem = groups.problem;
        let mut placed = vec![0; problem.models.len()];
        let mut fresh: Vec<Vec<u32>> = vec![Vec::new(); problem.models.len()];
        let mut stays = vec![false; problem.running.len()];
        for copy in layout {
            placed[copy.model] += 1;
            match copy.kept {
                Some(index) => stays[index] = true,
                None => {
                    let demand = &problem.models[copy.model];
                    fresh[copy.model].push(demand.deficit(&demand.shapes[copy.shape]));
                }
            }
        }
        let mut kept: Vec<Vec<(u32, bool)>> = vec![Vec::new(); problem.models.len()];
        for copy in &groups.keepable {
            let demand = &problem.models[copy.model];
            let stay = copy.kept.is_some_and(|index| stays[index]);
            kept[copy.model].push((demand.deficit(&demand.shapes[copy.shape]), stay));
        }
        let lost = |model: usize| {
            let claim = groups.claim[model];
            if claim == 0 || placed[model] > claim {
                return 0;
            }
            let staying = kept[model].iter().filter(|(_, stay)| *stay).count() as u32;
            let mut left = 0;
            let mut leaving: Vec<u32> = kept[model].iter().filter(|(_, stay)| !stay).map(|(d, _)| *d).collect();
            leaving.sort_unstable();
            for deficit in leaving {
                let better = fresh[model].iter().filter(|d| **d < deficit).count() as u32;
                left += u32::from(!problem.models[model].protected && better > left);
            }
            claim.saturating_sub(staying + left)
        };
        let displaced = (0..problem.models.len()).map(lost).collect();
        let mut survivors = Vec::new();
        if groups.hedge > 0 {
            let mut exposed: Vec<Exposed> =
                (0..problem.models.len()).map(|model| Exposed::pinned(groups, model)).collect();
            layout.iter().for_each(|copy| exposed[copy.model].count(groups, copy, true));
            survivors = exposed.iter().enumerate().map(|(model, of)| of.survivors(groups, model)).collect();
        }
        let places = groups.flows.as_ref().map_or(Vec::new(), |_| places(problem.models.len(), layout.iter()));
        let terms = terms(groups, layout, &stays);
        Self { groups, placed, displaced, survivors, terms, places, traffic: OnceCell::new() }
    }

    /// The value of a term.
    pub fn term(&self, term: Term) -> f64 {
        if let (Term::Traffic, Some(flows)) = (term, &self.groups.flows) {
            return *self.traffic.get_or_init(|| flows.all(&self.places));
        }
        self.terms.get(&term).copied().unwrap_or(0.0)
    }

    /// What the problem's own tiers count of the copies themselves, without what moving costs and without the balance.
    pub fn counted(&self) -> f64 {
        let terms = self.groups.problem.tail.iter().flat_map(|tier| &tier.terms);
        let own = terms.filter(|(term, _)| !matches!(term, Term::Stability | Term::Balance));
        own.map(|(term, weight)| weight * self.term(*term)).sum()
    }

    /// The value of a goal; pinned replicas do not count.
    pub fn value(&self, goal: &Goal) -> f64 {
        let problem = self.groups.problem;
        let models = |rank: u32| (0..problem.models.len()).filter(move |m| problem.models[*m].rank == rank);
        match goal {
            Goal::Displaced(rank) => models(*rank).map(|m| f64::from(self.displaced[m])).sum(),
            Goal::Replicas { minimum, rank, preempts } => {
                let models = models(*rank).filter(|m| problem.models[*m].preempts == *preempts);
                let count =
                    |m: usize| if *minimum { self.placed[m].min(least(self.groups, m)) } else { self.placed[m] };
                -models.map(|m| f64::from(count(m))).sum::<f64>()
            }
            Goal::Hedge(rank) => {
                -models(*rank).filter_map(|m| self.survivors.get(m)).map(|count| f64::from(*count)).sum::<f64>()
            }
            Goal::Tail(tier) => {
                let terms = &problem.tail[*tier].terms;
                terms.iter().map(|(term, weight)| weight * self.term(*term)).sum()
            }
        }
    }
}

/// Replicas of a model up to its minimum, without the pinned ones.
pub fn least(groups: &Groups<'_>, model: usize) -> u32 {
    groups.problem.models[model].min.saturating_sub(groups.pinned[model])
}

/// What a copy counts by itself.
pub fn own(groups: &Groups<'_>, copy: &Copy) -> impl Iterator<Item = (Term, f64)> {
    let demand = &groups.problem.models[copy.model];
    let shape = &demand.shapes[copy.shape];
    let brought = copy.kept.is_none() && groups.fetch(copy.model, copy.shape, copy.node) > 0;
    let cost = copy.on(shape).flat_map(|(_, node, on)| on.iter().map(move |p| groups.costs[node][*p])).sum();
    let unmet = demand.unmet(&groups.problem.nodes[copy.node]);
    let all = [
        (Term::Quality, f64::from(demand.loss(shape))),
        (Term::Latency, shape.slowness()),
        (Term::Preference, f64::from(unmet)),
        (Term::Locality, if brought { shape.distance() } else { 0.0 }),
        (Term::Cost, cost),
    ];
    all.into_iter()
}

/// What copies of a model count in each of the problem's own tiers, with what their traffic costs; but for the balance.
pub fn counted(groups: &Groups<'_>, model: usize, copies: &[&Copy], traffic: f64) -> Vec<f64> {
    let nodes = pack::beyond(groups, model, copies.iter().copied());
    let tiers = groups.problem.tail.iter().map(|tier| {
        let of = |(term, weight): &(Term, f64)| {
            let by = |copy: &&Copy| own(groups, copy).filter(|(t, _)| t == term).map(|(_, by)| by).sum::<f64>();
            weight
                * match term {
                    Term::Pack if groups.problem.models[model].pack => nodes,
                    Term::Pack => 0.0,
                    Term::Traffic => traffic,
                    _ => copies.iter().map(by).sum(),
                }
        };
        tier.terms.iter().map(of).sum()
    });
    tiers.collect()
}

/// Whether one cost is less than another: the first tier decides in which they differ.
pub fn less(a: &[f64], b: &[f64]) -> bool {
    let differs = a.iter().zip(b).find(|(a, b)| (*a - *b).abs() > 1e-9);
    differs.is_some_and(|(a, b)| a < b)
}

fn terms(groups: &Groups<'_>, layout: &[Copy], stays: &[bool]) -> BTreeMap<Term, f64> {
    let problem = groups.problem;
    let mut terms: BTreeMap<Term, f64> = BTreeMap::new();
    let mut busy = vec![0.0; problem.nodes.len()];
    let mut add = |term: Term, by: f64| *terms.entry(term).or_default() += by;
    for copy in &groups.keepable {
        if let Some(index) = copy.kept.filter(|index| !stays[*index]) {
            add(Term::Stability, problem.running[index].weight());
        }
    }
    for copy in layout {
        let shape = &problem.models[copy.model].shapes[copy.shape];
        own(groups, copy).for_each(|(term, by)| add(term, by));
        let further = shape.further.iter().map(|part| part.per_accelerator.total_bytes());
        let bytes = std::iter::once(shape.per_accelerator.total_bytes()).chain(further);
        for (bytes, (_, node, on)) in bytes.zip(copy.on(shape)) {
            busy[node] += (bytes * on.len() as u64) as f64;
        }
    }
    for model in (0..problem.models.len()).filter(|m| problem.models[*m].pack) {
        add(Term::Pack, pack::beyond(groups, model, layout.iter().filter(|copy| copy.model == model)));
    }
    let shares = busy
        .iter()
        .zip(&problem.nodes)
        .map(|(busy, node)| busy / (node.accelerators.iter().map(|a| a.total_bytes).sum::<u64>() as f64).max(1.0));
    terms.insert(Term::Balance, shares.fold(0.0, f64::max));
    terms
}
