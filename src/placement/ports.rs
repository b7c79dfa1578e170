//! Ports as something that nodes supply: every instance takes one to serve on, and what its engine opens for itself.
//!
//! A node has so many free ones in its range, and so many rows of as many as an engine wants side by side. Rows can
//! always be laid out so that every other free port is left for single ones, so the two numbers are all there is to
//! count. What runs has its ports; where it leaves, they are free for what starts after it has stopped, which the plan
//! sees to.

use crate::base::EngineKind;
use crate::engine::internal_ports;
use crate::placement::layout::{Copy, is_pinned};
use crate::placement::{PortSupply, PortsHeld, Problem};

/// Ports side by side that a row has: as many as the engine with most of its own wants.
pub fn row() -> u16 {
    EngineKind::ALL.iter().map(|kind| internal_ports(*kind)).max().unwrap_or(0)
}

/// What a new instance takes.
pub fn needed(engine: EngineKind) -> PortsHeld {
    let internal = internal_ports(engine);
    PortsHeld { all: 1 + u32::from(internal), row: internal > 1 }
}

/// What is free of a range, without what is taken.
pub fn supply((low, high): (u16, u16), taken: impl Fn(u16) -> bool) -> PortSupply {
    let (mut free, mut rows, mut side_by_side) = (0, 0, 0);
    let row = row().max(1);
    for port in low..=high {
        if taken(port) {
            side_by_side = 0;
            continue;
        }
        (free, side_by_side) = (free + 1, side_by_side + 1);
        if side_by_side == row {
            (rows, side_by_side) = (rows + 1, 0);
        }
    }
    PortSupply { low, high, free, rows }
}

/// Ports and rows.
pub type Count = (u32, u32);

/// What all instances on a node may have together; `None` where that was not looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ports {
    limits: Vec<Option<Count>>,
}

impl Ports {
    /// Of a problem: what is free, and what instances of its models have that are there.
    pub fn of(problem: &Problem) -> Self {
        let mut limits: Vec<Option<Count>> =
            problem.nodes.iter().map(|node| node.ports.as_ref().map(|ports| (ports.free, ports.rows))).collect();
        for running in problem.running.iter().filter(|running| !is_pinned(problem, running)) {
            let Some(node) = problem.node(&running.node).filter(|_| problem.model(&running.model).is_some()) else {
                continue;
            };
            if let Some(limit) = &mut limits[node] {
                *limit = sum(*limit, running.ports);
            }
        }
        Self { limits }
    }

    /// What a node's instances may have.
    pub fn limit(&self, node: usize) -> Option<Count> {
        self.limits[node]
    }

    /// What a copy takes of its node.
    pub fn of_copy(problem: &Problem, copy: &Copy) -> PortsHeld {
        match copy.kept {
            Some(index) => problem.running[index].ports,
            None => needed(problem.models[copy.model].shapes[copy.shape].engine),
        }
    }

    /// What copies take of a node.
    pub fn used<'c>(problem: &Problem, node: usize, copies: impl Iterator<Item = &'c Copy>) -> Count {
        copies.filter(|copy| copy.node == node).fold((0, 0), |used, copy| sum(used, Self::of_copy(problem, copy)))
    }

    /// Whether a node has so many.
    pub fn has(&self, node: usize, used: Count) -> bool {
        self.limits[node].is_none_or(|limit| used.0 <= limit.0 && used.1 <= limit.1)
    }

    /// Whether a layout takes no more than there is anywhere.
    pub fn hold(&self, problem: &Problem, layout: &[Copy]) -> bool {
        (0..self.limits.len())
            .all(|node| self.limits[node].is_none() || self.has(node, Self::used(problem, node, layout.iter())))
    }
}

/// So many and those of one more.
pub fn sum(count: Count, more: PortsHeld) -> Count {
    (count.0 + more.all, count.1 + u32::from(more.row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_rows_of_a_range_are_counted() {
        let of = |range, taken: &[u16]| {
            let found = supply(range, |port| taken.contains(&port));
            (found.free, found.rows)
        };
        assert_eq!(row(), 4);
        assert_eq!(of((20000, 20999), &[]), (1000, 250));
        assert_eq!(of((20000, 20004), &[20000]), (4, 1));
        assert_eq!(of((20000, 20009), &[20003]), (9, 1));
        assert_eq!(of((20000, 20009), &[20003, 20007]), (8, 0));
        assert_eq!(of((65530, 65535), &[]), (6, 1));
        assert_eq!(of((20000, 20000), &[20000]), (0, 0));
    }
}
