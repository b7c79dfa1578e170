//! What is placed on every node and what is left there, found at once: words about thousands of nodes must not look at
//! every copy for each of them.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::placement::build::supply;
use crate::placement::layout::{Copy, Loads, tightest};
use crate::placement::{Problem, Shape, Span};

/// Nodes of a class that are looked at one after another, those with most room first.
pub const NODES: usize = 16;
/// Of a class, for each number of accelerators, the nodes that leave most.
const BEST: usize = 4;

/// Of a group of accelerators of a class: the class, the first accelerator, and how many are wanted.
type Group = (usize, usize, u32);

/// A layout, by node.
pub struct Room<'p> {
    problem: &'p Problem,
    /// Memory in use.
    pub loads: Loads,
    /// Copies by node, in the order of the layout; a copy is with every node that it takes accelerators of.
    here: Vec<Vec<&'p Copy>>,
    representatives: Vec<usize>,
    order: RefCell<BTreeMap<Group, Rc<[usize]>>>,
}

impl<'p> Room<'p> {
    /// Of a solved problem.
    pub fn of(problem: &'p Problem, layout: &'p [Copy]) -> Self {
        let mut here = vec![Vec::new(); problem.nodes.len()];
        for copy in layout {
            for node in copy.nodes().collect::<BTreeSet<usize>>() {
                here[node].push(copy);
            }
        }
        let representatives = problem.representatives();
        Self { problem, loads: Loads::of(problem, layout), here, representatives, order: RefCell::default() }
    }

    /// What is placed on a node.
    pub fn on(&self, node: usize) -> &[&'p Copy] {
        &self.here[node]
    }

    /// The node whose shapes are those of this one.
    pub fn representative(&self, node: usize) -> usize {
        self.representatives[node]
    }

    /// Bytes left on a node's accelerator.
    pub fn left(&self, node: usize, position: usize) -> u64 {
        let capacity = self.problem.nodes[node].accelerators[position].capacity_bytes;
        capacity.saturating_sub(self.loads.accelerators[node][position])
    }

    /// Bytes left on each of so many accelerators of a group, the emptiest.
    pub fn left_on_each(&self, node: usize, group: &[usize], ranks: usize) -> u64 {
        let mut left: Vec<u64> = group.iter().map(|position| self.left(node, *position)).collect();
        left.sort_unstable_by(|a, b| b.cmp(a));
        ranks.checked_sub(1).and_then(|last| left.get(last).copied()).unwrap_or(0)
    }

    /// The same, were so many bytes of it free besides.
    pub fn left_without(&self, node: usize, position: usize, freed: u64) -> u64 {
        let capacity = self.problem.nodes[node].accelerators[position].capacity_bytes;
        capacity.saturating_sub(self.loads.accelerators[node][position].saturating_sub(freed))
    }

    /// Of the parts of a shape on a node that it stands for the one that lacks most, with what the last of its
    /// accelerators has left.
    pub fn tightest<'s>(&self, shape: &'s Shape, at: usize) -> (Span<'s>, u64) {
        self.tightest_with(shape, at, |node, position| self.left(node, position))
    }

    /// The same with what is told to be left on accelerators.
    pub fn tightest_with<'s>(
        &self,
        shape: &'s Shape,
        at: usize,
        left: impl Fn(usize, usize) -> u64,
    ) -> (Span<'s>, u64) {
        tightest(shape, |node, position| left(if node == shape.node { at } else { node }, position))
    }

    /// The same on the one of the nodes that a shape stands for where it lacks least.
    pub fn most<'s>(&self, shape: &'s Shape) -> (Span<'s>, u64) {
        // In their order the first is the best for its own part.
        let looked_at = if shape.further.is_empty() { 1 } else { NODES };
        let lacks = |(span, left): &(Span<'_>, u64)| span.claimed.saturating_sub(*left);
        let nodes = self.for_shape(shape);
        let found = nodes.iter().take(looked_at).map(|at| self.tightest(shape, *at)).min_by_key(lacks);
        found.unwrap_or_else(|| self.tightest(shape, shape.node))
    }

    /// Bytes left of a node's host memory.
    pub fn host_left(&self, node: usize) -> u64 {
        self.problem.nodes[node].host_capacity_bytes.saturating_sub(self.loads.host[node])
    }

    /// The nodes that a shape stands for, those with most room for it first.
    pub fn for_shape(&self, shape: &Shape) -> Rc<[usize]> {
        if self.problem.alike.is_empty() {
            return Rc::from([shape.node]);
        }
        self.emptiest(shape.node, &shape.group, shape.ranks)
    }

    fn emptiest(&self, class: usize, group: &[usize], ranks: u32) -> Rc<[usize]> {
        let key = (class, group.first().copied().unwrap_or(usize::MAX), ranks);
        let sort = || {
            let mut nodes = self.problem.stands_for(class);
            let room = |node: usize| (self.left_on_each(node, group, ranks as usize), self.host_left(node));
            nodes.sort_by_cached_key(|node| (Reverse(room(*node)), *node));
            nodes.into()
        };
        Rc::clone(self.order.borrow_mut().entry(key).or_insert_with(sort))
    }

    /// Nodes that are worth a look for something new: all of a small cluster; of a class those that leave most, by how
    /// many of their accelerators are taken together, and of the host.
    pub fn promising(&self) -> Vec<usize> {
        if self.problem.alike.is_empty() {
            return (0..self.problem.nodes.len()).collect();
        }
        let mut found = Vec::new();
        for class in self.problem.classes() {
            found.extend(self.emptiest(class, &[], 0).iter().take(BEST).copied());
            for group in supply::groups(&self.problem.nodes[class]) {
                for ranks in 1..=u32::try_from(group.len()).unwrap_or(u32::MAX) {
                    found.extend(self.emptiest(class, &group, ranks).iter().take(BEST).copied());
                }
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }
}
