//! Why replicas found no place: for every node the binding constraint with needed and available, and the nearest
//! change that would make one more fit.

use std::collections::{BTreeMap, BTreeSet};

use crate::base::format_bytes;
use crate::placement::build::room::{NODES, Room};
use crate::placement::layout::{Copy, spread_value, whole};
use crate::placement::ports::{self, Ports};
use crate::placement::solve::counts;
use crate::placement::words::policies;
use crate::placement::{ModelDemand, Problem, Reason, Removed, Shape, Unplaced};

/// One entry per model that is under its desired number of replicas.
pub fn unplaced(problem: &Problem, layout: &[Copy]) -> Vec<Unplaced> {
    let counts = counts(problem, layout);
    let mut copies: Vec<Vec<&Copy>> = vec![Vec::new(); problem.models.len()];
    layout.iter().for_each(|copy| copies[copy.model].push(copy));
    let runs = problem.running.iter().map(|running| running.node.as_str()).collect();
    let taken = problem.models.iter().zip(copies).map(|(demand, copies)| {
        let label = demand.spread_by.as_ref();
        let of = |copy: &Copy| label.map(|label| spread_value(problem, label, copy.node));
        copies.into_iter().filter_map(of).collect()
    });
    let state = State {
        problem,
        layout,
        taken: taken.collect(),
        room: Room::of(problem, layout),
        ports: Ports::of(problem),
        runs,
    };
    let quotas = policies::quotas(problem, layout);
    let mut all = Vec::new();
    for (model, demand) in problem.models.iter().enumerate() {
        let placed = counts.get(&model).copied().unwrap_or(0);
        if placed >= demand.desired {
            continue;
        }
        let (over, change) = policies::over_quota(problem, layout, &quotas, model).unzip();
        all.push(Unplaced {
            model: demand.name.clone(),
            replicas: demand.desired - placed,
            required: placed < demand.min,
            reasons: state.reasons(model, demand, over),
            nearest: state.nearest(model, demand, change),
            together: Vec::new(),
        });
    }
    all
}

struct State<'p> {
    problem: &'p Problem,
    layout: &'p [Copy],
    /// By model, values of the label to spread over where it has a replica.
    taken: Vec<BTreeSet<&'p str>>,
    room: Room<'p>,
    ports: Ports,
    /// Names of the nodes on which something runs.
    runs: BTreeSet<&'p str>,
}

impl<'p> State<'p> {
    fn reasons(&self, model: usize, demand: &ModelDemand, quota: Option<Reason>) -> Vec<Reason> {
        let mut reasons: Vec<Reason> = quota.into_iter().collect();
        let mut by_node: BTreeMap<usize, Vec<&Shape>> = BTreeMap::new();
        for shape in demand.shapes.iter().filter(|shape| !shape.keep_only) {
            by_node.entry(shape.node).or_default().push(shape);
        }
        for index in self.problem.classes() {
            let node = &self.problem.nodes[index];
            if !node.member {
                continue;
            }
            if let Some((constraint, text)) = &node.closed {
                reasons.push(Reason { alike: self.problem.others(index), ..plain(&node.name, constraint, text) });
                continue;
            }
            let shapes = by_node.get(&index).into_iter().flatten().copied();
            let tight = shapes.map(|s| self.blocked(model, demand, s)).min_by(|a, b| a.0.total_cmp(&b.0));
            let removed = closest(demand.removed.iter().filter(|r| r.reason.node == node.name));
            match (tight, removed) {
                (Some((_, reason)), _) => reasons.push(Reason { alike: self.problem.others(index), ..reason }),
                (None, Some(removed)) => reasons.push(removed.reason.clone()),
                (None, None) => {}
            }
        }
        let general = demand.removed.iter().filter(|r| r.reason.node == "*");
        reasons.extend(general.map(|r| r.reason.clone()));
        reasons.dedup();
        if reasons.is_empty() {
            reasons.push(plain("*", "accelerators", "there is no node that could run it"));
        }
        reasons
    }

    /// Why one more copy of a shape does not fit beside what is placed, with how much is missing (0 to 1).
    fn blocked(&self, model: usize, demand: &ModelDemand, shape: &Shape) -> (f64, Reason) {
        // Where it stands for several: the one with most room that another replica leaves to it.
        let nodes = self.room.for_shape(shape);
        let free = nodes.iter().find(|node| self.spread(model, demand, **node).is_none());
        let at = free.or(nodes.first()).copied().unwrap_or(shape.node);
        let node = &self.problem.nodes[at];
        if let (Some(label), Some(value)) = (&demand.spread_by, self.spread(model, demand, at)) {
            let text = format!("a replica already runs where `{label}` is `{value}`, and they must be spread");
            let mut reason = plain(&node.name, "spread", &text);
            (reason.needed, reason.available, reason.unit) = (Some(1), Some(0), Some("count".to_owned()));
            return (1.0, reason);
        }
        let neighbours = neighbours(self.problem, self.room.on(at).iter().copied());
        let (span, available) = self.room.tightest(shape, at);
        let (needed, width) = (span.claimed, span.ranks);
        if available < needed {
            let on = if width == 1 { "one accelerator".to_owned() } else { format!("each of {width} accelerators") };
            let text = format!(
                "needs {} on {on}; at most {} is left{neighbours}",
                format_bytes(needed),
                format_bytes(available)
            );
            return (missing(needed, available), bytes(&node.name, "memory", needed, available, text));
        }
        let free = self.room.host_left(at);
        if node.unified(&shape.group) && shape.pool_bytes() > whole(free) {
            let (needed, free) = (shape.pool_bytes(), whole(free));
            let text = format!(
                "needs {} of the memory that accelerator and host share; {} is left{neighbours}",
                format_bytes(needed),
                format_bytes(free)
            );
            return (missing(needed, free), bytes(&node.name, "memory", needed, free, text));
        }
        let host = shape.host.total_bytes();
        let free = self.room.host_left(at);
        if host > free {
            let text =
                format!("needs {} of host memory; {} is left{neighbours}", format_bytes(host), format_bytes(free));
            return (missing(host, free), bytes(&node.name, "ram", host, free, text));
        }
        if let Some(reason) = self.no_port(shape, at) {
            return (0.8, reason);
        }
        if let Some(far) = crate::placement::exact::traffic::conflict(self.problem, self.layout, model, at) {
            return (0.5, far.reason(&node.name));
        }
        if let Some(text) = policies::quota_of(self.problem, self.layout, model, shape) {
            return (0.6, plain(&node.name, "quota", &text));
        }
        let fetched = self.fetched(model, shape, at);
        let all = fetched.saturating_add(shape.fetch_bytes);
        if let Some(free) = node.disk_free_bytes.filter(|free| shape.fetch_bytes > 0 && all > *free) {
            let text = format!(
                "needs {} of disk beside {} that others fetch; {} is free",
                format_bytes(shape.fetch_bytes),
                format_bytes(fetched),
                format_bytes(free)
            );
            let left = free.saturating_sub(fetched);
            return (0.9, bytes(&node.name, "disk", shape.fetch_bytes, left, text));
        }
        let text = if !self.room.on(at).is_empty() || self.runs.contains(node.name.as_str()) {
            "what runs here keeps its place, and this model may not preempt it"
        } else {
            "there is room for it, but not together with the rest"
        };
        (0.95, plain(&node.name, "memory", text))
    }

    /// Ports of a node that are missing for one more copy.
    fn no_port(&self, shape: &Shape, at: usize) -> Option<Reason> {
        let node = &self.problem.nodes[at];
        let supply = node.ports.as_ref()?;
        let limit = self.ports.limit(at)?;
        let used = Ports::used(self.problem, at, self.room.on(at).iter().copied());
        let needed = ports::needed(shape.engine);
        if self.ports.has(at, ports::sum(used, needed)) {
            return None;
        }
        let left = limit.0.saturating_sub(used.0);
        let range = format!("{}-{}", supply.low, supply.high);
        let text = match (needed.all, left < needed.all) {
            (1, _) => format!("needs a port, none of {range} is free"),
            (all, true) => format!("needs {all} ports for {}, {left} of {range} are free", shape.engine),
            (_, false) => {
                format!("needs {} ports side by side for {}, {range} has no such row free", ports::row(), shape.engine)
            }
        };
        Some(Reason {
            needed: Some(u64::from(needed.all)),
            available: Some(u64::from(left.min(needed.all - 1))),
            unit: Some("count".to_owned()),
            ..plain(&node.name, "port", &text)
        })
    }

    /// A wider range, where only ports are in the way.
    fn wider(&self, model: usize, demand: &ModelDemand) -> Option<String> {
        let open = demand.shapes.iter().filter(|shape| !shape.keep_only);
        let short = open.map(|shape| self.blocked(model, demand, shape).1).find(|why| why.constraint == "port")?;
        let range = self.problem.node(&short.node).and_then(|node| self.problem.nodes[node].ports.as_ref())?;
        Some(format!("a wider range of `ports` for `{}` than \"{}-{}\"", short.node, range.low, range.high))
    }

    /// Bytes that what is placed on a node anew has to fetch, but for the files of this shape.
    fn fetched(&self, model: usize, shape: &Shape, at: usize) -> u64 {
        let mut files: BTreeMap<(usize, usize), u64> = BTreeMap::new();
        for copy in self.room.on(at).iter().filter(|copy| copy.kept.is_none() && copy.node == at) {
            let taken = &self.problem.models[copy.model].shapes[copy.shape];
            if (copy.model, taken.candidate) != (model, shape.candidate) {
                files.insert((copy.model, taken.candidate), taken.fetch_bytes);
            }
        }
        files.into_values().fold(0, u64::saturating_add)
    }

    /// The value of the label to spread over on a node, where a replica has it already.
    fn spread(&self, model: usize, demand: &'p ModelDemand, node: usize) -> Option<&str> {
        let label = demand.spread_by.as_ref()?;
        let value = spread_value(self.problem, label, node);
        self.taken[model].contains(value).then_some(value)
    }

    /// The nearest change, from what the problem knows: who would have to go, else how much is missing.
    fn nearest(&self, model: usize, demand: &ModelDemand, quota: Option<String>) -> String {
        if let Some(text) = quota.or_else(|| policies::only_denied(demand)) {
            return text;
        }
        if let Some(text) = self.closer(model, demand).or_else(|| self.wider(model, demand)) {
            return text;
        }
        if let Some(text) = self.who_would_go(model, demand) {
            return text;
        }
        let mut open = demand.shapes.iter().filter(|s| !s.keep_only);
        let spread = |s: &Shape| self.blocked(model, demand, s).1.constraint == "spread";
        if let Some(label) = &demand.spread_by
            && open.clone().all(spread)
            && open.next().is_some()
        {
            return format!("one more `{label}` to spread to, or fewer replicas");
        }
        let smallest = demand
            .shapes
            .iter()
            .filter(|s| !s.keep_only && s.further.is_empty())
            .map(|s| (s.claimed() * u64::from(s.ranks.max(1)), s))
            .min_by_key(|(total, _)| *total);
        if let Some((_, shape)) = smallest {
            let kind = shape.group.first().map(|p| self.problem.nodes[shape.node].accelerators[*p].kind.clone());
            return match kind {
                Some(kind) if shape.ranks == 1 => format!("one more accelerator like {kind}"),
                Some(kind) => format!("{} more accelerators like {kind} in one node", shape.ranks),
                None => format!("{} more host memory", format_bytes(shape.host.total_bytes())),
            };
        }
        if let Some(shape) = demand.shapes.iter().find(|s| !s.keep_only) {
            let node = &self.problem.nodes[shape.node].name;
            return format!("{} more accelerators like those of {node} in one node", shape.all_ranks());
        }
        let memory = demand.removed.iter().filter(|r| r.reason.constraint == "memory");
        match closest(memory) {
            Some(removed) => {
                let needed = removed.reason.needed.unwrap_or(removed.needed_bytes);
                format!("an accelerator with {} usable", format_bytes(needed))
            }
            None => "none found".to_owned(),
        }
    }

    /// The limit on traffic as it would have to be, where that alone is in the way.
    fn closer(&self, model: usize, demand: &ModelDemand) -> Option<String> {
        let open = demand.shapes.iter().filter(|shape| !shape.keep_only);
        let far = open.map(|shape| self.blocked(model, demand, shape).1).filter(|why| why.constraint == "latency");
        let least = far.min_by_key(|why| (why.available, why.node.clone()))?;
        let measured = least.available?.div_ceil(1000);
        Some(format!(
            "`max-latency` of {measured} ms of the traffic ({} is {}), or nodes closer together",
            least.node, least.text
        ))
    }

    /// Lower-ranked copies whose memory would be enough, fewest first.
    fn who_would_go(&self, model: usize, demand: &ModelDemand) -> Option<String> {
        let mut best: Option<(usize, String)> = None;
        for shape in demand.shapes.iter().filter(|s| !s.keep_only && s.ranks > 0) {
            for at in self.room.for_shape(shape).iter().copied().take(NODES) {
                if self.spread(model, demand, at).is_some() {
                    continue;
                }
                let lower = |c: &&&Copy| {
                    let other = &self.problem.models[c.model];
                    other.rank < demand.rank && !other.protected
                };
                let mut lower: Vec<&Copy> = self.room.on(at).iter().filter(lower).copied().collect();
                lower.sort_by(|a, b| {
                    let key = |c: &Copy| (self.problem.models[c.model].rank, c.model);
                    key(a).cmp(&key(b)).then_with(|| a.accelerators.cmp(&b.accelerators))
                });
                // What stopping them frees, by node and accelerator.
                let mut freed: BTreeMap<(usize, usize), u64> = BTreeMap::new();
                let mut names: Vec<&str> = Vec::new();
                for copy in lower {
                    let other = &self.problem.models[copy.model];
                    for (span, node, on) in copy.on(&other.shapes[copy.shape]) {
                        on.iter().for_each(|p| *freed.entry((node, *p)).or_default() += span.claimed);
                    }
                    names.push(&other.name);
                    if best.as_ref().is_some_and(|(n, _)| names.len() >= *n) {
                        break;
                    }
                    let free = |node: usize, p: usize| {
                        self.room.left_without(node, p, freed.get(&(node, p)).copied().unwrap_or(0))
                    };
                    let (span, left) = self.room.tightest_with(shape, at, free);
                    if left >= span.claimed {
                        names.sort_unstable();
                        names.dedup();
                        let text = format!(
                            "stop {} on {} (rank below {}), or give the priority class of {} `preempts=#true`",
                            names.join(", "),
                            self.problem.nodes[at].name,
                            demand.rank,
                            demand.name
                        );
                        best = Some((names.len(), text));
                        break;
                    }
                }
            }
        }
        best.map(|(_, text)| text)
    }
}

/// ` beside NAME, NAME`: what is placed on a node.
pub fn neighbours<'p>(problem: &'p Problem, copies: impl Iterator<Item = &'p Copy>) -> String {
    let mut names: Vec<&str> = copies.map(|copy| problem.models[copy.model].name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    match names.len() {
        0 => String::new(),
        1..=3 => format!(" beside {}", names.join(", ")),
        n => format!(" beside {} and {} more", names[..2].join(", "), n - 2),
    }
}

/// The removal that came closest to fitting; memory before everything else.
pub fn closest<'r>(removed: impl Iterator<Item = &'r Removed>) -> Option<&'r Removed> {
    removed.min_by(|a, b| {
        let weight = |r: &Removed| match (r.reason.constraint.as_str(), r.reason.needed, r.reason.available) {
            ("memory" | "ram" | "disk", Some(needed), Some(available)) => missing(needed, available),
            ("accelerators", ..) => 2.0,
            ("split", ..) => 3.0,
            _ => 4.0,
        };
        weight(a).total_cmp(&weight(b))
    })
}

fn missing(needed: u64, available: u64) -> f64 {
    if needed == 0 { 0.0 } else { needed.saturating_sub(available) as f64 / needed as f64 }
}

fn plain(node: &str, constraint: &str, text: &str) -> Reason {
    Reason {
        node: node.to_owned(),
        alike: 0,
        constraint: constraint.to_owned(),
        needed: None,
        available: None,
        unit: None,
        text: text.to_owned(),
    }
}

fn bytes(node: &str, constraint: &str, needed: u64, available: u64, text: String) -> Reason {
    Reason {
        needed: Some(needed),
        available: Some(available),
        unit: Some("bytes".to_owned()),
        ..plain(node, constraint, &text)
    }
}
