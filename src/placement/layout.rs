//! A layout: which copies run where, on named accelerators. What the solver's numbers mean.

use std::collections::{BTreeMap, BTreeSet};

use crate::base::MIB;
use crate::placement::{Problem, Shape, Span};

/// One replica on its accelerators.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Copy {
    /// Index of the model.
    pub model: usize,
    /// Index of the shape in the model.
    pub shape: usize,
    /// The node: the shape's own, or one that it stands for.
    pub node: usize,
    /// Positions of the node's accelerators, ascending for new copies, in rank order for kept ones.
    pub accelerators: Vec<usize>,
    /// Of every further part of the shape the node and the positions there.
    pub further: Vec<(usize, Vec<usize>)>,
    /// Index of the running instance that stays as it is.
    pub kept: Option<usize>,
}

impl Copy {
    /// A running instance as it is: what it has, in rank order, shared out to the parts of its shape.
    pub fn running(
        problem: &Problem,
        index: usize,
        (model, shape): (usize, usize),
        node: usize,
        on: Vec<usize>,
    ) -> Self {
        let shape_of = &problem.models[model].shapes[shape];
        if shape_of.spans_nodes() {
            let there = |(name, uuids): &(String, Vec<String>)| {
                let node = problem.node(name)?;
                Some((node, uuids.iter().filter_map(|uuid| problem.nodes[node].position(uuid)).collect()))
            };
            let further = problem.running[index].further.iter().filter_map(there).collect();
            return Self { model, shape, node, accelerators: on, further, kept: Some(index) };
        }
        let mut accelerators = on;
        let mut rest = accelerators.split_off(shape_of.width().min(accelerators.len()));
        let mut further = Vec::new();
        for part in &shape_of.further {
            let after = rest.split_off((part.ranks as usize).min(rest.len()));
            further.push((node, std::mem::replace(&mut rest, after)));
        }
        Self { model, shape, node, accelerators, further, kept: Some(index) }
    }

    /// What it takes, part by part: the span of its shape, the node, and the positions there.
    pub fn on<'c>(&'c self, shape: &'c Shape) -> impl Iterator<Item = (Span<'c>, usize, &'c [usize])> {
        let own = (self.node, self.accelerators.as_slice());
        let further = self.further.iter().map(|(node, on)| (*node, on.as_slice()));
        let taken = std::iter::once(own).chain(further);
        shape.spans().zip(taken).map(|(span, (node, on))| (span, node, on))
    }

    /// Its nodes; one may come several times.
    pub fn nodes(&self) -> impl Iterator<Item = usize> {
        std::iter::once(self.node).chain(self.further.iter().map(|(node, _)| *node))
    }
}

/// All copies.
pub type Layout = Vec<Copy>;

/// The solver counts memory in whole MiB: parts are rounded up and capacities down, so that every number in its
/// rows is a moderate whole one and no tolerance can overfill anything. A part that fits by itself to the byte
/// still fits.
pub fn rounded(bytes: u64, capacity: u64) -> u64 {
    let up = bytes.div_ceil(MIB) * MIB;
    let down = whole(capacity);
    if bytes <= capacity && up > down { down } else { up }
}

/// Rounded down to whole MiB.
pub fn whole(bytes: u64) -> u64 {
    bytes / MIB * MIB
}

/// Memory in use, per node and accelerator, and per node's host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loads {
    /// By node, then accelerator.
    pub accelerators: Vec<Vec<u64>>,
    /// By node; what unified accelerators hold counts here too.
    pub host: Vec<u64>,
}

impl Loads {
    /// Nothing in use.
    pub fn none(problem: &Problem) -> Self {
        Self {
            accelerators: problem.nodes.iter().map(|n| vec![0; n.accelerators.len()]).collect(),
            host: vec![0; problem.nodes.len()],
        }
    }

    /// Everything with what is in use of it.
    pub fn each(&self) -> impl Iterator<Item = (At, u64)> + '_ {
        let accelerators = self.accelerators.iter().enumerate().flat_map(|(node, on)| {
            on.iter().enumerate().map(move |(position, bytes)| ((node, Some(position)), *bytes))
        });
        accelerators.chain(self.host.iter().enumerate().map(|(node, bytes)| ((node, None), *bytes)))
    }

    /// What is in use of an accelerator, or of a host.
    pub fn at(&self, (node, position): At) -> u64 {
        position.map_or(self.host[node], |position| self.accelerators[node][position])
    }

    fn at_mut(&mut self, (node, position): At) -> &mut u64 {
        match position {
            Some(position) => &mut self.accelerators[node][position],
            None => &mut self.host[node],
        }
    }

    /// What a layout uses, in bytes.
    pub fn of(problem: &Problem, layout: &[Copy]) -> Self {
        let mut loads = Self::none(problem);
        for copy in layout {
            loads.add(problem, copy, |bytes, _| bytes);
        }
        loads
    }

    /// What a layout uses, as the solver counts it.
    pub fn rounded(problem: &Problem, capacities: &Capacities, layout: &[Copy]) -> Self {
        let mut loads = Self::none(problem);
        for copy in layout {
            loads.add_rounded(problem, capacities, copy);
        }
        loads
    }

    /// Adds one replica as the solver counts it.
    pub fn add_rounded(&mut self, problem: &Problem, capacities: &Capacities, copy: &Copy) {
        self.add(problem, copy, |bytes, at| capacities.counted(copy, bytes, at));
    }

    /// Adds one replica; `count` turns bytes on an accelerator, or of the host, into what is counted.
    fn add(&mut self, problem: &Problem, copy: &Copy, count: impl Fn(u64, At) -> u64) {
        let shape = &problem.models[copy.model].shapes[copy.shape];
        for (span, node, on) in copy.on(shape) {
            for position in on {
                self.accelerators[node][*position] += count(span.claimed, (node, Some(*position)));
                if problem.nodes[node].accelerators[*position].unified {
                    self.host[node] += count(span.claimed, (node, None));
                }
            }
            self.host[node] += count(span.host_bytes, (node, None));
        }
    }
}

/// Of the parts of a shape the one that lacks most, with what the last of its accelerators has left; `left` is what an
/// accelerator has, by node and position.
pub fn tightest(shape: &Shape, left: impl Fn(usize, usize) -> u64) -> (Span<'_>, u64) {
    let judged = shape.spans().map(|span| {
        let mut free: Vec<u64> = span.group.iter().map(|position| left(span.node, *position)).collect();
        free.sort_unstable_by(|a, b| b.cmp(a));
        let last = match span.ranks {
            0 => u64::MAX,
            ranks => free.get(ranks - 1).copied().unwrap_or(0),
        };
        (span, last)
    });
    let lacks =
        |(span, last): &(Span<'_>, u64)| span.claimed.saturating_sub(*last) as f64 / (span.claimed as f64).max(1.0);
    judged
        .max_by(|a, b| lacks(a).total_cmp(&lacks(b)).then(b.0.ranks.cmp(&a.0.ranks)))
        .expect("a shape has its own part")
}

/// By how much what runs may exceed what can be used on an accelerator and stays all the same: figures of free
/// memory move a little from one look to the next.
pub const ACCELERATOR_WOBBLE: u64 = 512 * MIB;

/// The same for host memory, which others use freely: an eighth, at least 2 GiB.
pub fn host_wobble(capacity: u64) -> u64 {
    (capacity / 8).max(2048 * MIB)
}

/// A node's accelerator, or with `None` its host.
pub type At = (usize, Option<usize>);

/// What nodes may give, in whole MiB.
///
/// What runs holds its memory already, whatever the figures say by now: others may have taken more of the host, the
/// driver may keep more, a reserve may have been raised, or the same is sized larger than when it was started. So where
/// everything that runs comes to more than can be used, it counts as what can be used, shared out in proportion: all of
/// it keeps its place, nothing new comes beside it, and what leaves gives back its share and no more.
///
/// An instance whose engine does not run holds nothing. It counts in full, and may exceed what can be used by a wobble
/// of the facts only; what is protected counts in any case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capacities {
    /// By node, then accelerator.
    pub accelerators: Vec<Vec<u64>>,
    /// By node; unified accelerators share it.
    pub host: Vec<u64>,
    /// The same to the byte, without what runs.
    pub exact: Loads,
    /// The same where what runs counts in full: no layout has more.
    pub bound: Loads,
    /// Where what runs comes to more than can be used: what can be used, and what it comes to.
    shares: BTreeMap<At, (u64, u64)>,
    /// Running instances that hold nothing: their engines do not run.
    failed: BTreeSet<usize>,
}

impl Capacities {
    /// Of a problem whose running instances are these copies.
    pub fn of(problem: &Problem, running: &[Copy]) -> Self {
        let usable = |a: &crate::placement::AcceleratorSupply| if a.healthy { a.capacity_bytes } else { 0 };
        let exact = Loads {
            accelerators: problem.nodes.iter().map(|n| n.accelerators.iter().map(usable).collect()).collect(),
            host: problem.nodes.iter().map(|n| n.host_capacity_bytes).collect(),
        };
        let mut this = Self {
            accelerators: exact.accelerators.iter().map(|node| node.iter().map(|b| whole(*b)).collect()).collect(),
            host: exact.host.iter().map(|b| whole(*b)).collect(),
            bound: exact.clone(),
            exact,
            shares: BTreeMap::new(),
            failed: (0..problem.running.len()).filter(|index| problem.running[*index].failed).collect(),
        };
        let in_full = Loads::rounded(problem, &this, running);
        let alive: Layout = running.iter().filter(|copy| this.lives(copy)).cloned().collect();
        let living = Loads::rounded(problem, &this, &alive);
        for (at, held) in living.each() {
            let most = this.at(at);
            if held > most {
                this.shares.insert(at, (most, held));
            }
        }
        let protected: Layout = running.iter().filter(|c| problem.models[c.model].protected).cloned().collect();
        let held = Loads::rounded(problem, &this, &protected);
        let all = Loads::rounded(problem, &this, running);
        this.bound = in_full.clone();
        for (at, all) in all.each() {
            let wobble = match at {
                (node, Some(position)) if !problem.nodes[node].accelerators[position].healthy => 0,
                (_, Some(_)) => ACCELERATOR_WOBBLE,
                (_, None) => host_wobble(this.at(at)),
            };
            let most = this.at(at);
            let raised = most.max(held.at(at)).max(if all <= most + wobble { all } else { 0 });
            *this.bound.at_mut(at) = raised + in_full.at(at).saturating_sub(all);
            match at {
                (node, Some(position)) => this.accelerators[node][position] = raised,
                (node, None) => this.host[node] = raised,
            }
        }
        this
    }

    fn at(&self, (node, position): At) -> u64 {
        position.map_or(self.host[node], |position| self.accelerators[node][position])
    }

    fn lives(&self, copy: &Copy) -> bool {
        copy.kept.is_some_and(|index| !self.failed.contains(&index))
    }

    /// Bytes of a copy on an accelerator or of a host as the solver counts them.
    pub fn counted(&self, copy: &Copy, bytes: u64, at: At) -> u64 {
        let full = rounded(bytes, self.exact.at(at));
        match self.shares.get(&at).filter(|_| self.lives(copy)) {
            Some((most, held)) => {
                let share = u128::from(full) * u128::from(*most) / u128::from((*held).max(1));
                whole(u64::try_from(share).unwrap_or(full)).min(full)
            }
            None => full,
        }
    }

    /// Accelerators and hosts on which what runs comes to more than can be used: what can be used, and what it comes to.
    pub fn overfull(&self) -> impl Iterator<Item = (At, u64, u64)> + '_ {
        self.shares.iter().map(|(at, (most, held))| (*at, *most, *held))
    }
}

/// The running instances that may keep their place, as copies, in the order of the instances.
pub fn keepable(problem: &Problem) -> Layout {
    (0..problem.running.len()).filter_map(|index| keepable_one(problem, index)).collect()
}

/// A running instance as a copy, where it may keep its place: on all its nodes.
pub fn keepable_one(problem: &Problem, index: usize) -> Option<Copy> {
    let running = &problem.running[index];
    let (model, shape) = problem.shape_of(running)?;
    let at = problem.node(&running.node).unwrap_or(problem.models[model].shapes[shape].node);
    let protected = problem.models[model].protected;
    let on: Vec<usize> = running.accelerators.iter().filter_map(|uuid| problem.nodes[at].position(uuid)).collect();
    let copy = Copy::running(problem, index, (model, shape), at, on);
    let stays = |at: usize| {
        let node = &problem.nodes[at];
        node.member && node.reachable && (protected || !node.drained)
    };
    let healthy =
        |(at, on): (usize, &Vec<usize>)| on.iter().all(|position| problem.nodes[at].accelerators[*position].healthy);
    let mut parts = std::iter::once((at, &copy.accelerators)).chain(copy.further.iter().map(|(node, on)| (*node, on)));
    let keeps = copy.nodes().all(stays) && (protected || parts.all(healthy));
    drop(parts);
    keeps.then_some(copy)
}

/// How many instances of each model run on nodes whose facts are unknown, and count as placed.
pub fn pinned(problem: &Problem) -> Vec<u32> {
    let mut counts = vec![0; problem.models.len()];
    for running in &problem.running {
        if let Some(model) = problem.model(&running.model)
            && is_pinned(problem, running)
        {
            counts[model] += 1;
        }
    }
    counts
}

/// Whether an instance runs on a node of the config whose facts are unknown.
pub fn is_pinned(problem: &Problem, running: &crate::placement::Running) -> bool {
    problem.node(&running.node).is_some_and(|node| problem.nodes[node].member && !problem.nodes[node].reachable)
}

/// The value of a spread label on a node; nodes without the label share one value.
pub fn spread_value<'p>(problem: &'p Problem, label: &str, node: usize) -> &'p str {
    let supply = &problem.nodes[node];
    if label == "node" { &supply.name } else { supply.labels.get(label).map_or("", String::as_str) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::{AcceleratorSupply, NodeSupply};

    #[test]
    fn a_unified_pool_counts_accelerator_and_host_bytes_together() {
        let accelerator =
            |unified| AcceleratorSupply { capacity_bytes: 100, healthy: true, unified, ..AcceleratorSupply::default() };
        let node = NodeSupply { accelerators: vec![accelerator(true), accelerator(false)], ..NodeSupply::default() };
        let mut shape = crate::placement::tests::random::shape(0, 0, vec![0, 1], 2, 30);
        shape.host.overhead_bytes = 5;
        let model = crate::placement::ModelDemand { shapes: vec![shape], ..Default::default() };
        let problem = Problem { nodes: vec![node], models: vec![model], ..Problem::default() };
        let loads = Loads::of(
            &problem,
            &[Copy { model: 0, shape: 0, node: 0, accelerators: vec![0, 1], further: Vec::new(), kept: None }],
        );
        assert_eq!((loads.accelerators, loads.host), (vec![vec![30, 30]], vec![35]));
    }

    #[test]
    fn rounding_never_overfills_and_keeps_what_fits_alone() {
        assert_eq!(rounded(0, MIB), 0);
        assert_eq!(rounded(MIB + 1, 10 * MIB), 2 * MIB);
        assert_eq!(rounded(MIB + 1, MIB + 1), MIB);
        assert_eq!(rounded(MIB + 2, MIB + 1), 2 * MIB);
    }
}
