//! The problem as columns and rows, with the memory of every accelerator.
//!
//! A shape on a group of equal accelerators is a count of copies and, per accelerator, how many of them have a
//! rank there. `ranks = width x copies` and `ranks <= copies` on every accelerator are exactly the loads that
//! copies with distinct accelerators can have, so no set of accelerators is ever enumerated. The parts of a shape share
//! its count; where two of them may take the same accelerator, their ranks there together are at most the copies.

// Size: every term of the objective reads the same columns; parts of it elsewhere would only pass them around.

use std::collections::{BTreeMap, BTreeSet};

use crate::placement::build::parts::sets;
use crate::placement::exact::policies::PolicyRows;
use crate::placement::exact::traffic::TrafficColumns;
use crate::placement::layout::{At, Capacities, Copy, Layout, keepable, pinned, rounded, spread_value, whole};
use crate::placement::milp::{Linear, Program};
use crate::placement::ports::{Ports, needed};
use crate::placement::{PortsHeld, Problem, Shape, Span, Term};

/// Memory is written in MiB in the rows, in whole ones.
pub const UNIT: f64 = 1_048_576.0;

/// Splits of one variant on one group of accelerators that a lean formulation has.
const LEAN_SPLITS: u32 = 2;

/// New copies of one shape.
#[derive(Debug, Clone)]
pub struct Fresh {
    /// Index of the model.
    pub model: usize,
    /// Index of its shape.
    pub shape: usize,
    /// Number of copies.
    pub count: Linear,
    /// Accelerator positions with the column of their load in ranks.
    pub on: Vec<(usize, usize)>,
    /// The same of every further part of the shape.
    pub further: Vec<Vec<(usize, usize)>>,
}

impl Fresh {
    /// Columns of all parts of its shape, with the part's node.
    fn parts<'f>(&'f self, shape: &'f Shape) -> impl Iterator<Item = (Span<'f>, &'f [(usize, usize)])> {
        let on = std::iter::once(&self.on).chain(&self.further).map(Vec::as_slice);
        shape.spans().zip(on)
    }
}

/// A running instance that may stay: its column is 1 where it does.
#[derive(Debug, Clone)]
pub struct Kept {
    /// The copy it is.
    pub copy: Copy,
    /// 1 where it stays.
    pub column: usize,
    /// 1 where it may leave because a better variant takes its part; `None` where there is none.
    pub better: Option<usize>,
}

/// Weights of one candidate to bring to one node, where the disk may be too small for all of them.
#[derive(Debug, Clone)]
struct Download {
    column: usize,
    model: usize,
    candidate: usize,
    node: usize,
}

/// The mixed-integer program of a problem, and what its columns mean.
#[derive(Clone)]
pub struct Formulation<'p> {
    /// The problem.
    pub problem: &'p Problem,
    /// Columns and rows.
    pub program: Program,
    /// New copies.
    pub fresh: Vec<Fresh>,
    /// Running instances.
    pub kept: Vec<Kept>,
    /// Per model: replicas up to the minimum.
    pub minimum: Vec<usize>,
    /// Per model: replicas placed, without the pinned ones.
    pub placed: Vec<Linear>,
    /// Per model: replicas that may be placed, without the pinned ones.
    pub room: Vec<u32>,
    /// Per model: pinned replicas.
    pub pinned: Vec<u32>,
    /// Per model: running instances that lose their place to others.
    pub displaced: Vec<Option<usize>>,
    /// Per model: 1 where it gains a replica and may move its own.
    gain: Vec<Option<usize>>,
    /// Per model: running instances that have a claim to stay.
    claim: Vec<u32>,
    /// What nodes may give.
    pub capacities: Capacities,
    /// Ports that they may give.
    pub ports: Ports,
    busiest: Option<usize>,
    downloads: Vec<Download>,
    pub(in crate::placement) traffic: TrafficColumns,
    largest: f64,
    /// By node and accelerator.
    costs: Vec<Vec<f64>>,
    /// Quotas, hedges, packs.
    pub policy: PolicyRows,
}

impl<'p> Formulation<'p> {
    /// Builds columns and rows. A lean formulation leaves out splits over more accelerators than the two smallest
    /// that work: for large clusters, where every replica then finds its place all the same.
    pub fn new(problem: &'p Problem, lean: bool) -> Self {
        let copies = keepable(problem);
        let protected: Layout = copies.iter().filter(|c| problem.models[c.model].protected).cloned().collect();
        let largest = problem.nodes.iter().flat_map(|n| &n.accelerators).map(|a| a.total_bytes).max().unwrap_or(0);
        let mut this = Self {
            problem,
            program: Program::default(),
            fresh: Vec::new(),
            kept: Vec::new(),
            minimum: Vec::new(),
            placed: vec![Linear::new(); problem.models.len()],
            room: Vec::new(),
            pinned: pinned(problem),
            displaced: Vec::new(),
            gain: Vec::new(),
            claim: Vec::new(),
            capacities: Capacities::of(problem, &copies),
            ports: Ports::of(problem),
            busiest: None,
            downloads: Vec::new(),
            traffic: TrafficColumns::default(),
            largest: (largest as f64).max(1.0),
            costs: crate::placement::build::price::costs(problem),
            policy: PolicyRows::default(),
        };
        for (index, model) in problem.models.iter().enumerate() {
            let held = protected.iter().filter(|c| c.model == index).count() as u32;
            this.room.push(model.desired.saturating_sub(this.pinned[index]).max(held));
        }
        this.copies(copies, lean);
        this.demand();
        this.stability();
        this.supply();
        this.ports();
        this.spread();
        this.disks();
        this.traffic();
        this.balance();
        this.policies();
        this
    }

    /// A kept or fresh copy's shape.
    fn shape(&self, model: usize, shape: usize) -> &'p Shape {
        &self.problem.models[model].shapes[shape]
    }

    fn copies(&mut self, keepable: Layout, lean: bool) {
        for copy in keepable {
            let least = f64::from(u8::from(self.problem.models[copy.model].protected));
            let column = self.program.column(least, 1.0, true);
            self.placed[copy.model].push((column, 1.0));
            self.kept.push(Kept { copy, column, better: None });
        }
        for (model, demand) in self.problem.models.iter().enumerate() {
            let mut widths: BTreeMap<(usize, crate::base::EngineKind, usize, usize), u32> = BTreeMap::new();
            let plain = demand.shapes.iter().filter(|shape| shape.further.is_empty());
            let plain: BTreeSet<(usize, usize)> = plain.map(|shape| (shape.candidate, shape.node)).collect();
            for (index, shape) in demand.shapes.iter().enumerate() {
                if lean && !shape.further.is_empty() && plain.contains(&(shape.candidate, shape.node)) {
                    continue;
                }
                // Shapes are sorted by ranks within a group.
                let first = shape.group.first().copied().unwrap_or(usize::MAX);
                let seen = widths.entry((shape.candidate, shape.engine, shape.node, first)).or_default();
                *seen += 1;
                if lean && *seen > LEAN_SPLITS {
                    continue;
                }
                if let Some(fresh) = self.fresh(model, index, shape) {
                    self.placed[model].extend(fresh.count.iter().copied());
                    self.fresh.push(fresh);
                }
            }
        }
    }

    /// Columns of a shape; `None` where it can have no new copy at all.
    fn fresh(&mut self, model: usize, index: usize, shape: &Shape) -> Option<Fresh> {
        let room = u64::from(self.room[model]);
        let node = &self.problem.nodes[shape.node];
        let host = shape.host.total_bytes();
        if shape.keep_only || node.closed.is_some() || room == 0 || host > self.capacities.exact.host[shape.node] {
            return None;
        }
        if !shape.further.is_empty() {
            return self.fresh_in_parts(model, index, shape);
        }
        let bytes = shape.claimed();
        let capacity = &self.capacities.exact.accelerators[shape.node];
        let fits = |position: &usize| node.accelerators[*position].healthy && bytes <= capacity[*position];
        let group: Vec<usize> = shape.group.iter().copied().filter(fits).collect();
        let most = |position: usize| capacity[position].checked_div(bytes).unwrap_or(room).min(room) as f64;
        let width = shape.width();
        if group.len() < width {
            return None;
        }
        let program = &mut self.program;
        let (count, on) = if width == 0 {
            (vec![(program.column(0.0, room as f64, true), 1.0)], Vec::new())
        } else if width == 1 {
            let on: Vec<_> = group.iter().map(|p| (*p, program.column(0.0, most(*p), true))).collect();
            (on.iter().map(|(_, column)| (*column, 1.0)).collect(), on)
        } else if width == group.len() {
            let most = group.iter().map(|p| most(*p)).fold(f64::INFINITY, f64::min);
            let column = program.column(0.0, most, true);
            (vec![(column, 1.0)], group.iter().map(|p| (*p, column)).collect())
        } else {
            let count = program.column(0.0, room as f64, true);
            let on: Vec<_> = group.iter().map(|p| (*p, program.column(0.0, most(*p), true))).collect();
            let ranks: Linear = on.iter().map(|(_, column)| (*column, 1.0)).collect();
            let with = |factor: f64| {
                let mut row: Linear = ranks.iter().map(|(c, f)| (*c, f * factor)).collect();
                row.push((count, -factor * width as f64));
                row
            };
            program.at_most(with(1.0), 0.0);
            program.at_most(with(-1.0), 0.0);
            for (_, column) in &on {
                program.at_most(vec![(*column, 1.0), (count, -1.0)], 0.0);
            }
            (vec![(count, 1.0)], on)
        };
        Some(Fresh { model, shape: index, count, on, further: Vec::new() })
    }

    /// The same of a shape with further parts: one count for all of them.
    fn fresh_in_parts(&mut self, model: usize, index: usize, shape: &Shape) -> Option<Fresh> {
        let room = u64::from(self.room[model]);
        let exact = &self.capacities.exact;
        let mut groups = Vec::new();
        let mut most = room;
        for span in shape.spans() {
            let node = &self.problem.nodes[span.node];
            let capacity = &exact.accelerators[span.node];
            let fits = |position: &usize| node.accelerators[*position].healthy && span.claimed <= capacity[*position];
            let group: Vec<usize> = span.group.iter().copied().filter(fits).collect();
            if node.closed.is_some() || group.len() < span.ranks || span.host_bytes > exact.host[span.node] {
                return None;
            }
            let limit = |position: &usize| capacity[*position].checked_div(span.claimed).unwrap_or(room).min(room);
            let limits: Vec<(usize, u64)> = group.iter().map(|position| (*position, limit(position))).collect();
            let all: u64 = limits.iter().map(|(_, limit)| *limit).sum();
            most = most.min(all.checked_div(span.ranks as u64).unwrap_or(room));
            groups.push((span, limits));
        }
        let program = &mut self.program;
        let count = program.column(0.0, most as f64, true);
        let mut parts = Vec::new();
        let mut shared: BTreeMap<(usize, usize), Linear> = BTreeMap::new();
        for (span, limits) in groups {
            let on: Vec<(usize, usize)> = if span.ranks == limits.len() {
                // All of the group: as many ranks as copies on each.
                for (_, limit) in limits.iter().filter(|(_, limit)| *limit < most) {
                    program.at_most(vec![(count, 1.0)], *limit as f64);
                }
                limits.iter().map(|(position, _)| (*position, count)).collect()
            } else {
                limits
                    .iter()
                    .map(|(position, limit)| (*position, program.column(0.0, (*limit).min(most) as f64, true)))
                    .collect()
            };
            if span.ranks != on.len() {
                let mut row: Linear = on.iter().map(|(_, column)| (*column, 1.0)).collect();
                row.push((count, -(span.ranks as f64)));
                program.at_most(row.clone(), 0.0);
                program.at_least(row, 0.0);
            }
            for (position, column) in &on {
                shared.entry((span.node, *position)).or_default().push((*column, 1.0));
            }
            parts.push(on);
        }
        for mut row in shared.into_values() {
            if row.len() == 1 && row[0].0 == count {
                continue;
            }
            row.push((count, -1.0));
            program.at_most(merged(row), 0.0);
        }
        let on = parts.remove(0);
        Some(Fresh { model, shape: index, count: vec![(count, 1.0)], on, further: parts })
    }

    fn demand(&mut self) {
        for (index, model) in self.problem.models.iter().enumerate() {
            self.program.at_most(self.placed[index].clone(), f64::from(self.room[index]));
            let least = model.min.saturating_sub(self.pinned[index]);
            let column = self.program.column(0.0, f64::from(least), true);
            let mut row: Linear = self.placed[index].iter().map(|(c, f)| (*c, -f)).collect();
            row.push((column, 1.0));
            self.program.at_most(row, 0.0);
            self.minimum.push(column);
        }
    }

    /// An instance leaves its place only where a tier allows it to be displaced, where its model gains a replica,
    /// or where a better variant of its model takes its part.
    fn stability(&mut self) {
        for model in 0..self.problem.models.len() {
            let columns: Vec<usize> = self.kept.iter().filter(|k| k.copy.model == model).map(|k| k.column).collect();
            let claim = (columns.len() as u32).min(self.room[model]);
            self.claim.push(claim);
            if claim == 0 {
                self.displaced.push(None);
                self.gain.push(None);
                continue;
            }
            let displaced = self.program.column(0.0, f64::from(claim), true);
            let mut row: Linear = columns.iter().map(|c| (*c, -1.0)).collect();
            row.push((displaced, -1.0));
            let mut gain = None;
            if self.room[model] > claim {
                let column = self.program.column(0.0, 1.0, true);
                let mut gained = self.placed[model].clone();
                gained.push((column, -f64::from(claim + 1)));
                self.program.at_least(gained, 0.0);
                row.push((column, -f64::from(claim)));
                gain = Some(column);
            }
            row.extend(self.better(model).into_iter().map(|column| (column, -1.0)));
            self.program.at_most(row, -f64::from(claim));
            self.displaced.push(Some(displaced));
            self.gain.push(gain);
        }
    }

    /// Columns of instances that may leave for a better variant: at most as many as new copies are better.
    fn better(&mut self, model: usize) -> Vec<usize> {
        let demand = &self.problem.models[model];
        let mut fresh: Vec<(u32, Linear)> = Vec::new();
        for entry in self.fresh.iter().filter(|f| f.model == model) {
            fresh.push((demand.deficit(&demand.shapes[entry.shape]), entry.count.clone()));
        }
        let mut left: BTreeMap<u32, Linear> = BTreeMap::new();
        let mut columns = Vec::new();
        for kept in self.kept.iter_mut().filter(|k| k.copy.model == model) {
            let deficit = demand.deficit(&demand.shapes[kept.copy.shape]);
            if demand.protected || fresh.iter().all(|(better, _)| *better >= deficit) {
                continue;
            }
            let column = self.program.column(0.0, 1.0, true);
            self.program.at_most(vec![(column, 1.0), (kept.column, 1.0)], 1.0);
            kept.better = Some(column);
            left.entry(deficit).or_default().push((column, 1.0));
            columns.push(column);
        }
        let mut row = Linear::new();
        for (deficit, leaving) in left {
            row.extend(leaving);
            let mut limit = row.clone();
            for (_, count) in fresh.iter().filter(|(better, _)| *better < deficit) {
                limit.extend(count.iter().map(|(c, f)| (*c, -f)));
            }
            self.program.at_most(limit, 0.0);
        }
        columns
    }

    fn supply(&mut self) {
        let mut accelerators: BTreeMap<(usize, usize), Linear> = BTreeMap::new();
        let mut hosts: BTreeMap<usize, Linear> = BTreeMap::new();
        let mut uses = Vec::new();
        for kept in &self.kept {
            for (span, node, on) in kept.copy.on(self.shape(kept.copy.model, kept.copy.shape)) {
                let on: Vec<_> = on.iter().map(|p| (*p, kept.column)).collect();
                uses.push((Some(&kept.copy), span, node, on, vec![(kept.column, 1.0)]));
            }
        }
        for fresh in &self.fresh {
            for (span, on) in fresh.parts(self.shape(fresh.model, fresh.shape)) {
                uses.push((None, span, span.node, on.to_vec(), fresh.count.clone()));
            }
        }
        for (kept, span, node, on, count) in uses {
            let capacities = &self.capacities;
            let part = |bytes: u64, at: At| {
                let bytes = match kept {
                    Some(copy) => capacities.counted(copy, bytes, at),
                    None => rounded(bytes, capacities.exact.at(at)),
                };
                bytes as f64 / UNIT
            };
            for (position, column) in on {
                let here = part(span.claimed, (node, Some(position)));
                accelerators.entry((node, position)).or_default().push((column, here));
                if self.problem.nodes[node].accelerators[position].unified {
                    let here = part(span.claimed, (node, None));
                    hosts.entry(node).or_default().push((column, here));
                }
            }
            let host = part(span.host_bytes, (node, None));
            if host > 0.0 {
                hosts.entry(node).or_default().extend(count.iter().map(|(c, f)| (*c, f * host)));
            }
        }
        for ((node, position), row) in accelerators {
            self.program.at_most(merged(row), self.capacities.accelerators[node][position] as f64 / UNIT);
        }
        for (node, row) in hosts {
            self.program.at_most(merged(row), self.capacities.host[node] as f64 / UNIT);
        }
    }

    /// Ports of nodes where all that may come could take more than there are.
    fn ports(&mut self) {
        let copies = self.room.iter().fold(0_u32, |sum, room| sum.saturating_add(*room));
        let most = copies.saturating_mul(1 + u32::from(crate::placement::ports::row()));
        let mut nodes: BTreeMap<usize, (Linear, Linear)> = BTreeMap::new();
        let tight = |limit: (u32, u32)| limit.0 < most || limit.1 < copies;
        let mut take = |ports: &Ports, node: usize, held: PortsHeld, count: &Linear| {
            if ports.limit(node).is_none_or(|limit| !tight(limit)) {
                return;
            }
            let (all, rows) = nodes.entry(node).or_default();
            all.extend(count.iter().map(|(c, f)| (*c, f * f64::from(held.all))));
            if held.row {
                rows.extend(count.iter().copied());
            }
        };
        for kept in &self.kept {
            let held = Ports::of_copy(self.problem, &kept.copy);
            take(&self.ports, kept.copy.node, held, &vec![(kept.column, 1.0)]);
        }
        for fresh in &self.fresh {
            let shape = &self.problem.models[fresh.model].shapes[fresh.shape];
            take(&self.ports, shape.node, needed(shape.engine), &fresh.count);
        }
        for (node, (all, rows)) in nodes {
            let Some(limit) = self.ports.limit(node) else { continue };
            self.program.at_most(merged(all), f64::from(limit.0));
            self.program.at_most(merged(rows), f64::from(limit.1));
        }
    }

    fn spread(&mut self) {
        for (model, demand) in self.problem.models.iter().enumerate() {
            let Some(label) = &demand.spread_by else { continue };
            let mut rows: BTreeMap<&str, Linear> = BTreeMap::new();
            for kept in self.kept.iter().filter(|k| k.copy.model == model) {
                for value in values(self.problem, label, kept.copy.nodes()) {
                    rows.entry(value).or_default().push((kept.column, 1.0));
                }
            }
            for fresh in self.fresh.iter().filter(|f| f.model == model) {
                let nodes = demand.shapes[fresh.shape].spans().map(|span| span.node);
                for value in values(self.problem, label, nodes) {
                    rows.entry(value).or_default().extend(fresh.count.iter().copied());
                }
            }
            for (value, row) in rows {
                // Protected instances stay, however many share a value.
                let held = self.kept.iter().filter(|k| k.copy.model == model && demand.protected);
                let held = held.filter(|k| values(self.problem, label, k.copy.nodes()).contains(value));
                let taken = self.taken(model, label, value);
                let limit = 1_usize.saturating_sub(taken).max(held.count());
                self.program.at_most(row, limit as f64);
            }
        }
    }

    /// Pinned replicas of a model at a spread value.
    fn taken(&self, model: usize, label: &str, value: &str) -> usize {
        let name = &self.problem.models[model].name;
        let pinned = self.problem.running.iter().filter(|r| r.model == *name);
        pinned
            .filter(|r| crate::placement::layout::is_pinned(self.problem, r))
            .filter_map(|r| self.problem.node(&r.node))
            .filter(|node| spread_value(self.problem, label, *node) == value)
            .count()
    }

    fn disks(&mut self) {
        // By node, then model and candidate: the bytes, and the copies that need them.
        type Wanted = BTreeMap<(usize, usize), (u64, Linear)>;
        let mut wanted: BTreeMap<usize, Wanted> = BTreeMap::new();
        for fresh in &self.fresh {
            let shape = self.shape(fresh.model, fresh.shape);
            if shape.fetch_bytes > 0 {
                let entry = wanted.entry(shape.node).or_default().entry((fresh.model, shape.candidate)).or_default();
                entry.0 = entry.0.max(shape.fetch_bytes);
                entry.1.extend(fresh.count.iter().copied());
            }
        }
        for (node, downloads) in wanted {
            let Some(free) = self.problem.nodes[node].disk_free_bytes else { continue };
            if downloads.values().map(|(bytes, _)| rounded(*bytes, free)).sum::<u64>() <= whole(free) {
                continue;
            }
            let mut total = Linear::new();
            for ((model, candidate), (bytes, mut row)) in downloads {
                let column = self.program.column(0.0, 1.0, true);
                row.push((column, -f64::from(self.room[model])));
                self.program.at_most(row, 0.0);
                total.push((column, rounded(bytes, free) as f64 / UNIT));
                self.downloads.push(Download { column, model, candidate, node });
            }
            self.program.at_most(total, whole(free) as f64 / UNIT);
        }
    }

    fn balance(&mut self) {
        let weighed = |(term, weight): &(Term, f64)| *term == Term::Balance && *weight > 0.0;
        if !self.problem.tail.iter().any(|tier| tier.terms.iter().any(weighed)) {
            return;
        }
        let busiest = self.program.column(0.0, 16.0, false);
        let mut rows: BTreeMap<usize, Linear> = BTreeMap::new();
        for kept in &self.kept {
            let shape = self.shape(kept.copy.model, kept.copy.shape);
            for (bytes, (_, node, on)) in planned(shape).zip(kept.copy.on(shape)) {
                let share = bytes as f64 / self.memory(node);
                rows.entry(node).or_default().push((kept.column, share * on.len() as f64));
            }
        }
        for fresh in &self.fresh {
            let shape = self.shape(fresh.model, fresh.shape);
            for (bytes, (span, on)) in planned(shape).zip(fresh.parts(shape)) {
                let share = bytes as f64 / self.memory(span.node);
                rows.entry(span.node).or_default().extend(on.iter().map(|(_, column)| (*column, share)));
            }
        }
        for row in rows.into_values() {
            let mut row = merged(row);
            row.push((busiest, -1.0));
            self.program.at_most(row, 0.0);
        }
        self.busiest = Some(busiest);
    }

    /// Accelerator memory of a node, for shares.
    fn memory(&self, node: usize) -> f64 {
        (self.problem.nodes[node].accelerators.iter().map(|a| a.total_bytes).sum::<u64>() as f64).max(1.0)
    }

    /// A term of the objective as an expression and a constant.
    pub fn term(&self, term: Term) -> (Linear, f64) {
        if term == Term::Balance {
            return (self.busiest.map(|column| (column, 1.0)).into_iter().collect(), 0.0);
        }
        if term == Term::Pack {
            return (self.pack_term(), 0.0);
        }
        if term == Term::Traffic {
            return (self.traffic.cost(), 0.0);
        }
        let mut row = Linear::new();
        let mut constant = 0.0;
        for kept in &self.kept {
            let shape = self.shape(kept.copy.model, kept.copy.shape);
            let factor = match term {
                Term::Stability => {
                    let weight = kept.copy.kept.map_or(0.0, |index| self.problem.running[index].weight());
                    constant += weight;
                    -weight
                }
                Term::Locality => 0.0,
                Term::Cost => kept.copy.on(shape).map(|(_, node, on)| self.cost(node, on)).sum(),
                _ => self.price(term, kept.copy.model, shape),
            };
            row.push((kept.column, factor));
        }
        for fresh in &self.fresh {
            let shape = self.shape(fresh.model, fresh.shape);
            match term {
                Term::Stability => {}
                Term::Cost => {
                    for (span, on) in fresh.parts(shape) {
                        row.extend(on.iter().map(|(p, column)| (*column, self.costs[span.node][*p])));
                    }
                }
                _ => {
                    let factor = self.price(term, fresh.model, shape);
                    row.extend(fresh.count.iter().map(|(c, f)| (*c, f * factor)));
                }
            }
        }
        (merged(row), constant)
    }

    fn price(&self, term: Term, model: usize, shape: &Shape) -> f64 {
        let demand = &self.problem.models[model];
        match term {
            Term::Quality => f64::from(demand.loss(shape)),
            Term::Latency => shape.slowness(),
            Term::Locality => shape.distance(),
            Term::Preference => f64::from(demand.unmet(&self.problem.nodes[shape.node])),
            Term::Cost | Term::Stability | Term::Balance | Term::Pack | Term::Traffic => 0.0,
        }
    }

    /// An accelerator's memory as the share of the largest one's.
    fn share(&self, node: usize, position: usize) -> f64 {
        self.problem.nodes[node].accelerators[position].total_bytes as f64 / self.largest
    }

    fn cost(&self, node: usize, positions: &[usize]) -> f64 {
        positions.iter().map(|position| self.costs[node][*position]).sum()
    }

    /// The last tier: smallest accelerators, lowest positions, first shapes.
    pub fn tie_break(&self) -> Linear {
        let mut row = Linear::new();
        for fresh in &self.fresh {
            let shape = self.shape(fresh.model, fresh.shape);
            let order = 1e-3 * fresh.shape as f64 + 0.5 * f64::from(shape.preference) + shape.node as f64;
            row.extend(fresh.count.iter().map(|(c, f)| (*c, f * order)));
            for (span, on) in fresh.parts(shape) {
                let weight = |position: usize| 100.0 * self.share(span.node, position) + 0.1 * position as f64;
                row.extend(on.iter().map(|(position, column)| (*column, weight(*position))));
            }
        }
        for kept in &self.kept {
            // Of instances that are no longer all wanted, the lowest replica numbers stay.
            let replica = kept.copy.kept.map_or(0, |index| self.problem.running[index].replica);
            row.push((kept.column, 0.01 * f64::from(replica.min(1_000)) - 50.0));
        }
        merged(row)
    }

    /// Columns that one copy adds 1 to; `None` where it has none.
    pub fn columns_of(&self, copy: &Copy) -> Option<Vec<usize>> {
        if let Some(kept) = copy.kept {
            return self.kept.iter().find(|k| k.copy.kept == Some(kept)).map(|k| vec![k.column]);
        }
        let fresh = self.fresh.iter().find(|f| f.model == copy.model && f.shape == copy.shape)?;
        let mut columns = Vec::new();
        let taken = std::iter::once(&copy.accelerators).chain(copy.further.iter().map(|(_, taken)| taken));
        for ((span, on), taken) in fresh.parts(self.shape(copy.model, copy.shape)).zip(taken) {
            let before = columns.len();
            columns.extend(on.iter().filter(|(p, _)| taken.contains(p)).map(|(_, column)| *column));
            if columns.len() - before != span.ranks {
                return None;
            }
        }
        columns.extend(fresh.count.iter().map(|(c, _)| *c).filter(|_| fresh.count.len() == 1));
        columns.sort_unstable();
        columns.dedup();
        Some(columns)
    }

    /// The columns' values for a layout.
    pub fn point_of(&self, layout: &[Copy]) -> Vec<f64> {
        let mut point = vec![0.0; self.program.columns.len()];
        for column in layout.iter().filter_map(|copy| self.columns_of(copy)).flatten() {
            point[column] += 1.0;
        }
        self.complete(&mut point);
        point
    }

    /// Sets the columns that follow from the copies to their best values.
    fn complete(&self, point: &mut [f64]) {
        let sum = |terms: &Linear, point: &[f64]| crate::placement::milp::value(terms, point);
        for (model, demand) in self.problem.models.iter().enumerate() {
            let placed = sum(&self.placed[model], point);
            point[self.minimum[model]] = placed.min(self.program.columns[self.minimum[model]].max);
            let Some(displaced) = self.displaced[model] else { continue };
            let mut new: Vec<(u32, u32)> = Vec::new();
            for fresh in self.fresh.iter().filter(|f| f.model == model) {
                new.push((demand.deficit(&demand.shapes[fresh.shape]), sum(&fresh.count, point).round() as u32));
            }
            let mut kept: Vec<&Kept> = self.kept.iter().filter(|k| k.copy.model == model).collect();
            kept.sort_by_key(|k| (demand.deficit(&demand.shapes[k.copy.shape]), k.column));
            let mut staying = 0.0;
            let mut left = 0;
            for kept in kept {
                staying += point[kept.column];
                let deficit = demand.deficit(&demand.shapes[kept.copy.shape]);
                let better: u32 = new.iter().filter(|(d, _)| *d < deficit).map(|(_, n)| n).sum();
                if let Some(column) = kept.better
                    && point[kept.column] < 0.5
                    && better > left
                {
                    point[column] = 1.0;
                    left += 1;
                }
            }
            let claim = f64::from(self.claim[model]);
            let gained = self.gain[model].filter(|_| placed + 1e-6 >= claim + 1.0);
            if let Some(column) = gained {
                point[column] = 1.0;
            }
            let lost = if gained.is_some() { 0.0 } else { claim - staying - f64::from(left) };
            point[displaced] = lost.max(0.0);
        }
        for download in &self.downloads {
            let used = self.fresh.iter().any(|f| {
                let shape = self.shape(f.model, f.shape);
                let same =
                    (f.model, shape.candidate, shape.node) == (download.model, download.candidate, download.node);
                same && shape.fetch_bytes > 0 && sum(&f.count, point) > 0.5
            });
            point[download.column] = f64::from(u8::from(used));
        }
        self.complete_policies(point);
        self.traffic.complete(point);
        if let Some(busiest) = self.busiest {
            let rows = self.program.rows.iter().filter(|r| r.terms.last() == Some(&(busiest, -1.0)));
            let shares = rows.map(|r| crate::placement::milp::value(&r.terms[..r.terms.len() - 1], point));
            let most = shares.fold(0.0, f64::max);
            point[busiest] = most;
        }
    }

    /// The copies that the columns' values mean.
    pub fn layout_of(&self, point: &[f64]) -> Layout {
        let mut layout: Layout = self.kept.iter().filter(|k| point[k.column] > 0.5).map(|k| k.copy.clone()).collect();
        for fresh in &self.fresh {
            let width = self.shape(fresh.model, fresh.shape).width();
            let copies = crate::placement::milp::value(&fresh.count, point).round() as usize;
            if !fresh.further.is_empty() {
                layout.extend(self.copies_in_parts(fresh, copies, point));
                continue;
            }
            let mut left: Vec<(usize, usize)> =
                fresh.on.iter().map(|(p, column)| (*p, point[*column].round() as usize)).collect();
            for _ in 0..copies {
                // The most loaded first is always possible while no accelerator has more ranks than copies are left.
                left.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
                let mut accelerators = Vec::with_capacity(width);
                for entry in left.iter_mut().take(width) {
                    entry.1 = entry.1.saturating_sub(1);
                    accelerators.push(entry.0);
                }
                accelerators.sort_unstable();
                let node = self.shape(fresh.model, fresh.shape).node;
                let (model, shape) = (fresh.model, fresh.shape);
                layout.push(Copy { model, shape, node, accelerators, further: Vec::new(), kept: None });
            }
        }
        layout.sort();
        layout
    }

    /// The copies of a shape with further parts.
    fn copies_in_parts(&self, fresh: &Fresh, copies: usize, point: &[f64]) -> Layout {
        let shape = self.shape(fresh.model, fresh.shape);
        let parts = fresh.parts(shape).map(|(span, on)| {
            let load = |(position, column): &(usize, usize)| ((span.node, *position), point[*column].round() as usize);
            (span.ranks, on.iter().map(load).collect())
        });
        let copy = |mut parts: Vec<Vec<usize>>| {
            let accelerators = parts.remove(0);
            let further = shape.further.iter().map(|part| part.node).zip(parts).collect();
            let (model, shape, node) = (fresh.model, fresh.shape, shape.node);
            Copy { model, shape, node, accelerators, further, kept: None }
        };
        sets(copies, parts.collect()).into_iter().map(copy).collect()
    }
}

/// Bytes as planned on each accelerator, by part.
fn planned(shape: &Shape) -> impl Iterator<Item = u64> {
    let further = shape.further.iter().map(|part| part.per_accelerator.total_bytes());
    std::iter::once(shape.per_accelerator.total_bytes()).chain(further)
}

/// The different values of a label on nodes.
fn values<'p>(problem: &'p Problem, label: &str, nodes: impl Iterator<Item = usize>) -> BTreeSet<&'p str> {
    nodes.map(|node| spread_value(problem, label, node)).collect()
}

/// One entry per column.
pub fn merged(terms: Linear) -> Linear {
    let mut sums: BTreeMap<usize, f64> = BTreeMap::new();
    for (column, factor) in terms {
        *sums.entry(column).or_default() += factor;
    }
    sums.into_iter().filter(|(_, factor)| *factor != 0.0).collect()
}
