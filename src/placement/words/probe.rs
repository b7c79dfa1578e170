//! Tries candidates against what is still free: which nodes take them, how, and whether they fit there.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::base::EngineKind;
use crate::config::{Desired, Model};
use crate::inventory::Inventory;
use crate::placement::build::room::Room;
use crate::placement::build::shapes::{claim, demand_of, engines_of, fetch_bytes, over, sized};
use crate::placement::build::{deny, supply};
use crate::placement::layout::{Copy, spread_value, whole};
use crate::placement::{Candidate, NodeSupply, Origin, Problem, pool_bytes};
use crate::sizing::{
    Demand, Footprint, Lacking, SizingError, admits, effective_context, engine_supports, legal_splits, version_supports,
};

/// What is placed, and the nodes that are worth a look.
pub struct Placed<'p> {
    pub layout: &'p [Copy],
    pub room: Room<'p>,
    pub nodes: Vec<usize>,
}

impl<'p> Placed<'p> {
    /// Of a solved problem.
    pub fn of(problem: &'p Problem, layout: &'p [Copy]) -> Self {
        let room = Room::of(problem, layout);
        Self { layout, nodes: room.promising(), room }
    }
}

/// What nodes must meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Asks {
    /// Whether nodes must meet the selectors.
    pub labels: bool,
    /// Whether nodes must have the disk space.
    pub disk: bool,
    /// Whether nodes must have the files that are on some nodes only.
    pub paths: bool,
}

/// What a candidate takes over so many ranks, by candidate, engine, version, context, ranks and kind of accelerator.
pub type Size<'p> = (*const Candidate, EngineKind, Option<&'p str>, u64, u32, Option<&'p str>);

/// All ways to run a candidate.
pub type Ways<'p> = Rc<[Way<'p>]>;

pub struct Probe<'p> {
    pub problem: &'p Problem,
    pub desired: &'p Desired,
    pub inventory: &'p Inventory,
    pub model: &'p Model,
    pub placed: &'p Placed<'p>,
    pub require: &'p [(String, String)],
    /// Values of the label to spread over where there is a replica already.
    pub taken: BTreeSet<&'p str>,
    pub asks: Asks,
    /// Found already, by candidate and what is asked.
    pub ways: RefCell<BTreeMap<(*const Candidate, Asks), Ways<'p>>>,
    pub sizes: RefCell<BTreeMap<Size<'p>, Option<Rc<Footprint>>>>,
}

/// One way to run a candidate.
pub struct Way<'p> {
    pub node: usize,
    pub engine: EngineKind,
    pub version: Option<&'p str>,
    pub group: Vec<usize>,
    pub ranks: u32,
}

/// Whether a way fits beside what is placed.
pub enum Fit {
    Yes,
    /// But for so many bytes of host memory.
    Host(u64),
    No,
}

impl<'p> Probe<'p> {
    /// Nodes that take something new, have or can get the files, and meet the selectors.
    pub fn open(&self, candidate: &Candidate) -> impl Iterator<Item = (usize, &'p NodeSupply)> {
        let spread = self.model.place.spread_by.as_ref();
        let free = |index: usize| {
            spread.is_none_or(|label| !self.taken.contains(spread_value(self.problem, &label.value, index)))
        };
        let open = |node: &NodeSupply| {
            let reachable = match &candidate.origin {
                Origin::Controller { .. } | Origin::Hub { .. } => true,
                Origin::OnNode { nodes, .. } => !self.asks.paths || nodes.contains(&node.name),
            };
            node.member
                && node.closed.is_none()
                && reachable
                && (!self.asks.labels || self.wrong(node).is_empty())
                && (!self.asks.disk || self.disk_short(candidate, node) == 0)
        };
        let nodes = self.placed.nodes.iter();
        nodes
            .map(|index| (*index, &self.problem.nodes[*index]))
            .filter(move |(index, node)| free(*index) && open(node))
            .collect::<Vec<_>>()
            .into_iter()
    }

    /// Selectors that a node does not meet.
    pub fn wrong(&self, node: &NodeSupply) -> Vec<&'p (String, String)> {
        self.require.iter().filter(|(label, is)| node.labels.get(label) != Some(is)).collect()
    }

    /// Bytes of disk that a node lacks for the files.
    pub fn disk_short(&self, candidate: &Candidate, node: &NodeSupply) -> u64 {
        let fetch = self.inventory.node(&node.name).map_or(0, |facts| fetch_bytes(candidate, facts));
        node.disk_free_bytes.map_or(0, |free| fetch.saturating_sub(free))
    }

    /// Why an accelerator of a node cannot run a candidate whatever its memory; `None` where it can.
    pub fn gate(
        &self,
        candidate: &Candidate,
        engine: EngineKind,
        node: &NodeSupply,
        position: usize,
    ) -> Option<Lacking> {
        let device = self.inventory.node(&node.name)?.accelerator(&node.accelerators[position].uuid)?;
        let version = node.engines.iter().find(|found| found.kind == engine).and_then(|found| found.version.as_deref());
        admits(engine, version, &candidate.variant, device).err()
    }

    pub fn engines<'n>(&self, candidate: &Candidate, node: &'n NodeSupply) -> Vec<(EngineKind, Option<&'n str>)> {
        let able = engines_of(self.model).into_iter().filter(|e| engine_supports(*e, &candidate.variant).is_ok());
        able.filter_map(|kind| node.engines.iter().find(|e| e.kind == kind).map(|e| (kind, e.version.as_deref())))
            .filter(|(kind, version)| version_supports(*kind, *version, &candidate.variant).is_ok())
            // What a policy denies is not proposed.
            .filter(|(kind, _)| deny::denied(self.desired, self.model, *kind, node, candidate.gated).is_none())
            .collect()
    }

    pub fn context(&self, candidate: &Candidate) -> Option<u64> {
        self.contexts(candidate).filter(|(asked, most)| asked == most).map(|(asked, _)| asked)
    }

    /// The context that is asked for, and the most of it that the candidate was trained for.
    pub fn contexts(&self, candidate: &Candidate) -> Option<(u64, u64)> {
        match effective_context(&candidate.variant, self.model.context.as_ref().map(|c| c.value)) {
            Ok(context) => Some((context, context)),
            Err(SizingError::Context { requested, trained }) => Some((requested, trained)),
            Err(_) => None,
        }
    }

    pub fn sizes(engine: EngineKind, candidate: &Candidate) -> Vec<u32> {
        match engine {
            EngineKind::LlamaCpp => vec![1, 2, 4, 8],
            EngineKind::Vllm | EngineKind::Sglang => legal_splits(&candidate.variant, engine).tensor_parallel,
        }
    }

    pub fn ways(&self, candidate: &Candidate) -> Ways<'p> {
        let key = (std::ptr::from_ref(candidate), self.asks);
        if let Some(known) = self.ways.borrow().get(&key) {
            return Rc::clone(known);
        }
        let found: Ways<'p> = self.all_ways(candidate).into();
        self.ways.borrow_mut().insert(key, Rc::clone(&found));
        found
    }

    pub fn all_ways(&self, candidate: &Candidate) -> Vec<Way<'p>> {
        let mut ways = Vec::new();
        for (index, node) in self.open(candidate) {
            for (engine, version) in self.engines(candidate, node) {
                let way = Way { node: index, engine, version, group: Vec::new(), ranks: 0 };
                for group in supply::groups(node) {
                    if self.gate(candidate, engine, node, group[0]).is_some() {
                        continue;
                    }
                    let slices = node.accelerators[group[0]].mig;
                    let sizes = Self::sizes(engine, candidate).into_iter().filter(|ranks| *ranks == 1 || !slices);
                    ways.extend(sizes.map(|ranks| Way { group: group.clone(), ranks, ..way }));
                }
                if self.model.place.allow_cpu && engine == EngineKind::LlamaCpp {
                    ways.push(way);
                }
            }
        }
        ways
    }

    pub fn sized(
        &self,
        candidate: &Candidate,
        demand: Demand<'p>,
        ranks: u32,
        kind: Option<&'p str>,
    ) -> Option<Rc<Footprint>> {
        let calibrations = &self.problem.calibrations;
        let measured = kind.filter(|_| calibrations.knows(demand.engine, &candidate.revision));
        let key = (std::ptr::from_ref(candidate), demand.engine, demand.version, demand.context, ranks, measured);
        let compute = || sized(calibrations, candidate, &over(demand, ranks), kind).ok().map(Rc::new);
        self.sizes.borrow_mut().entry(key).or_insert_with(compute).clone()
    }

    /// Whether a way fits beside what is placed.
    pub fn fit(&self, candidate: &Candidate, context: u64, way: &Way<'p>) -> Fit {
        let supply = &self.problem.nodes[way.node];
        let demand = demand_of(self.model, way.engine, way.version, context);
        let kind = way.group.first().map(|position| supply.accelerators[*position].kind.as_str());
        let Some(sized) = self.sized(candidate, demand, way.ranks, kind) else { return Fit::No };
        let host = self.placed.room.host_left(way.node);
        let needed = |p: usize| claim(way.engine, sized.largest(), supply.accelerators[p].total_bytes);
        let open = way.group.iter().filter(|p| {
            let accelerator = &supply.accelerators[**p];
            let left = self.placed.room.left(way.node, **p);
            accelerator.healthy && needed(**p) <= left
        });
        if open.count() < way.ranks as usize {
            return Fit::No;
        }
        if supply.unified(&way.group) {
            let pool = pool_bytes(needed(way.group[0]), way.ranks, sized.host.total());
            return if pool <= whole(host) { Fit::Yes } else { Fit::No };
        }
        match sized.host.total().saturating_sub(host) {
            0 => Fit::Yes,
            missing => Fit::Host(missing),
        }
    }

    /// The node and ranks where a candidate fits with this context (its own where `None`).
    pub fn place(&self, candidate: &Candidate, context: Option<u64>) -> Option<(&'p NodeSupply, u32)> {
        let context = context.or_else(|| self.context(candidate))?;
        let ways = self.ways(candidate);
        let way = ways.iter().find(|way| matches!(self.fit(candidate, context, way), Fit::Yes))?;
        Some((&self.problem.nodes[way.node], way.ranks))
    }

    pub fn fits_somewhere(&self, candidate: &Candidate, context: Option<u64>) -> bool {
        self.place(candidate, context).is_some()
    }
}
