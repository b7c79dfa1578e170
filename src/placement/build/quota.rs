//! Quotas: what the models of one may take together, and what a copy takes of it.
//!
//! Over all copies of a quota's models that are not pinned, accelerators (one counts for every copy on it) and planned
//! bytes are each at most `max(limit - pinned, held)`: `pinned` is what instances on unreachable nodes take, `held` what
//! protected instances do that run. Bytes are counted as everywhere in the solver: a copy's up to whole MiB, the limit down
//! to whole MiB, and a copy that fits alone fits. Of what runs and is over its quota, the lowest ranks lose, because the
//! number of displaced instances is brought to its least from the highest rank down.

use std::collections::BTreeSet;

use crate::placement::layout::{Copy, is_pinned, keepable, rounded, whole};
use crate::placement::{Problem, Running, Shape};

/// A quota in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaLimit {
    /// Index of the rule.
    pub rule: usize,
    /// Indices of its models.
    pub models: BTreeSet<usize>,
    /// Accelerators that copies which are not pinned may take.
    pub accelerators: Option<u64>,
    /// The same in bytes, whole MiB.
    pub bytes: Option<u64>,
    /// The limit in bytes before anything is taken off, for rounding.
    full_bytes: u64,
}

/// What is taken of a quota.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Taken {
    /// Accelerators.
    pub accelerators: u64,
    /// Bytes, in whole MiB.
    pub bytes: u64,
}

impl Taken {
    fn add(&mut self, other: Self) {
        self.accelerators += other.accelerators;
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// Accelerators that one replica takes on all nodes.
pub fn accelerators(shape: &Shape) -> u64 {
    u64::from(shape.ranks) + shape.further.iter().map(|part| u64::from(part.ranks)).sum::<u64>()
}

/// Accelerator memory of one replica on all nodes, as planned (not what the engine claims).
pub fn planned_bytes(shape: &Shape) -> u64 {
    let own = if shape.stages.is_empty() {
        shape.per_accelerator.total_bytes() * u64::from(shape.ranks)
    } else {
        shape.stages.iter().map(|stage| stage.total_bytes()).sum()
    };
    own + shape.further.iter().map(|part| part.per_accelerator.total_bytes() * u64::from(part.ranks)).sum::<u64>()
}

/// Bytes that an instance on an unreachable node is taken to have: what the same would take elsewhere, the largest, and
/// nothing where no node can tell.
pub fn last_known(problem: &Problem, model: usize, running: &Running) -> u64 {
    let demand = &problem.models[model];
    let same = |shape: &&Shape| {
        Some(shape.engine) == running.engine
            && accelerators(shape) == running.accelerators.len() as u64
            && demand.candidates.get(shape.candidate).is_some_and(|c| c.label == running.variant)
    };
    demand.shapes.iter().filter(same).map(planned_bytes).max().unwrap_or(0)
}

impl QuotaLimit {
    /// Every quota of a problem.
    pub fn all(problem: &Problem) -> Vec<Self> {
        let held: Vec<Copy> = match problem.quotas.is_empty() {
            true => return Vec::new(),
            false => keepable(problem).into_iter().filter(|copy| problem.models[copy.model].protected).collect(),
        };
        let limit = |(rule, quota): (usize, &crate::placement::QuotaRule)| {
            let models = quota.models.iter().filter_map(|name| problem.model(name)).collect();
            let full_bytes = quota.vram_bytes.unwrap_or(u64::MAX);
            let mut limit = Self { rule, models, accelerators: None, bytes: None, full_bytes };
            let (mut pinned, mut protected) = (Taken::default(), Taken::default());
            for running in problem.running.iter().filter(|running| is_pinned(problem, running)) {
                pinned.add(limit.pinned(problem, running));
            }
            held.iter().filter(|copy| limit.models.contains(&copy.model)).for_each(|copy| {
                protected.add(limit.takes(problem, copy));
            });
            let left = |limit: u64, pinned: u64, held: u64| limit.saturating_sub(pinned).max(held);
            limit.accelerators =
                quota.accelerators.map(|most| left(u64::from(most), pinned.accelerators, protected.accelerators));
            limit.bytes = quota.vram_bytes.map(|most| left(whole(most), pinned.bytes, protected.bytes));
            limit
        };
        problem.quotas.iter().enumerate().map(limit).collect()
    }

    /// What an instance on an unreachable node takes.
    fn pinned(&self, problem: &Problem, running: &Running) -> Taken {
        let Some(model) = problem.model(&running.model).filter(|model| self.models.contains(model)) else {
            return Taken::default();
        };
        let bytes = last_known(problem, model, running);
        Taken { accelerators: running.accelerators.len() as u64, bytes: rounded(bytes, self.full_bytes) }
    }

    /// What one replica of a shape takes.
    pub fn of(&self, shape: &Shape) -> Taken {
        Taken { accelerators: accelerators(shape), bytes: rounded(planned_bytes(shape), self.full_bytes) }
    }

    fn takes(&self, problem: &Problem, copy: &Copy) -> Taken {
        self.of(&problem.models[copy.model].shapes[copy.shape])
    }

    /// What a layout takes.
    pub fn taken(&self, problem: &Problem, layout: &[Copy]) -> Taken {
        let mut taken = Taken::default();
        for copy in layout.iter().filter(|copy| self.models.contains(&copy.model)) {
            taken.add(self.takes(problem, copy));
        }
        taken
    }

    /// Whether so much may be taken.
    pub fn allows(&self, taken: Taken) -> bool {
        self.accelerators.is_none_or(|most| taken.accelerators <= most)
            && self.bytes.is_none_or(|most| taken.bytes <= most)
    }

    /// Whether one more copy may be taken beside a layout.
    pub fn allows_beside(&self, problem: &Problem, layout: &[Copy], copy: &Copy) -> bool {
        if !self.models.contains(&copy.model) {
            return true;
        }
        let mut taken = self.taken(problem, layout);
        taken.add(self.takes(problem, copy));
        self.allows(taken)
    }
}
