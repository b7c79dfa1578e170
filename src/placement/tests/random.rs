//! Small random problems, from a seed.

use std::collections::BTreeMap;

use crate::base::{EngineKind, GIB};
use crate::placement::*;

/// A small generator of numbers (splitmix64), so that a seed is a test case.
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// 0 to `n - 1`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// True once in `n` times.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

pub fn memory(bytes: u64) -> PlacedMemory {
    PlacedMemory { weights_bytes: bytes, ..PlacedMemory::default() }
}

pub fn weighted_tail() -> Vec<TailTier> {
    let terms = [
        (Term::Quality, 100.0),
        (Term::Stability, 60.0),
        (Term::Latency, 40.0),
        (Term::Locality, 20.0),
        (Term::Cost, 10.0),
        (Term::Balance, 5.0),
        (Term::Preference, 1.0),
    ];
    vec![TailTier { name: "objective".to_owned(), terms: terms.to_vec() }]
}

pub fn strict_tail() -> Vec<TailTier> {
    let tier = |name: &str, term| TailTier { name: name.to_owned(), terms: vec![(term, 1.0)] };
    vec![tier("quality", Term::Quality), tier("stability", Term::Stability), tier("cost", Term::Cost)]
}

pub fn node(name: &str, accelerators: Vec<AcceleratorSupply>) -> NodeSupply {
    NodeSupply {
        name: name.to_owned(),
        labels: BTreeMap::from([("node".to_owned(), name.to_owned())]),
        accelerators,
        host_capacity_bytes: 256 * GIB,
        engines: vec![EngineSupply {
            kind: EngineKind::Vllm,
            version: None,
            program: "/bin/vllm".to_owned(),
            worker: None,
        }],
        reachable: true,
        member: true,
        ..NodeSupply::default()
    }
}

pub fn accelerator(uuid: String, kind: &str, bytes: u64) -> AcceleratorSupply {
    AcceleratorSupply {
        uuid,
        kind: kind.to_owned(),
        capacity_bytes: bytes,
        total_bytes: bytes,
        healthy: true,
        ..AcceleratorSupply::default()
    }
}

pub fn shape(candidate: usize, node: usize, group: Vec<usize>, ranks: u32, bytes: u64) -> Shape {
    let plain = Shape::on(node, candidate, EngineKind::Vllm, "/bin/vllm");
    Shape { group, ranks, per_accelerator: memory(bytes), speed: Some(30.0), ..plain }
}

/// A problem that brute force can still enumerate.
pub fn problem(seed: u64) -> Problem {
    generate(seed, false)
}

/// The same with shapes that take accelerators of two kinds, twice of one kind, or of two nodes.
pub fn problem_in_parts(seed: u64) -> Problem {
    generate(seed, true)
}

/// The same with workers on the processors of other nodes, and, every other time, with what is over several nodes running.
pub fn problem_over_nodes(seed: u64) -> Problem {
    let mut problem = generate(seed, true);
    let mut dice = Dice(seed ^ 0xca_b1e);
    for shape in problem.models.iter_mut().flat_map(|model| &mut model.shapes) {
        let own = shape.node;
        for part in shape.further.iter_mut().filter(|part| part.node != own) {
            if dice.once_in(2) {
                (part.group, part.ranks, part.per_accelerator) = (Vec::new(), 0, memory(0));
                part.host = memory((1 + dice.below(40)) * GIB + dice.below(4096));
            }
        }
    }
    if dice.once_in(2) {
        let placement = crate::placement::solve(&problem);
        if placement.instances.iter().any(|placed| !placed.elsewhere.is_empty()) {
            problem = applied(&problem, &placement);
            // A node that leaves, so that not all can stay.
            if dice.once_in(3) {
                let node = dice.below(problem.nodes.len() as u64) as usize;
                problem.nodes[node].reachable = false;
                problem.nodes[node].closed = Some(("unreachable".to_owned(), "it is away".to_owned()));
                problem.running.retain(|running| running.node != problem.nodes[node].name);
            }
        }
    }
    problem
}

/// The same with quotas, spot nodes and their hedge, prices, models that should share few nodes, and nodes that leave.
pub fn problem_with_policies(seed: u64) -> Problem {
    let mut problem = generate(seed, seed.is_multiple_of(3));
    let mut dice = Dice(seed ^ 0x5eed);
    for _ in 0..dice.below(3) {
        let mut names: Vec<String> = problem.models.iter().map(|m| m.name.clone()).collect();
        names.retain(|_| !dice.once_in(3));
        let accelerators = dice.once_in(2).then(|| dice.below(5) as u32);
        let vram_bytes = (accelerators.is_none() || dice.once_in(4)).then(|| dice.below(80) * GIB + dice.below(4096));
        let name = format!("q{}", problem.quotas.len());
        problem.quotas.push(QuotaRule { name, models: names, accelerators, vram_bytes });
    }
    problem.spot_hedge = dice.below(3) as u32;
    let priced = dice.once_in(2);
    for node in &mut problem.nodes {
        node.spot = dice.once_in(2);
        node.price_per_hour = (priced && !dice.once_in(4)).then(|| 0.25 * (1 + dice.below(20)) as f64);
        if node.closed.is_none() && dice.once_in(12) {
            node.closed = Some(("drained".to_owned(), "is being emptied".to_owned()));
            node.drained = true;
        }
        node.member = node.member && !dice.once_in(30);
    }
    for (index, node) in problem.nodes.iter_mut().enumerate() {
        if !node.member && node.closed.is_none() {
            node.closed = Some(("member".to_owned(), "is not in the config".to_owned()));
        }
        if node.closed.is_some() {
            let shapes = problem.models.iter_mut().flat_map(|m| &mut m.shapes);
            shapes.filter(|shape| shape.node == index).for_each(|shape| shape.keep_only = true);
        }
    }
    problem.models.iter_mut().for_each(|model| model.pack = dice.once_in(3));
    problem.tail.last_mut().unwrap().terms.push((Term::Pack, 15.0));
    problem.sort();
    problem
}

/// Several equal nodes and several equal models, so that there is something to count; with policies, with what runs, and
/// with equal nodes standing for each other or not.
pub fn problem_of_classes(seed: u64) -> Problem {
    let mut dice = Dice(seed ^ 0x0c1a_55e5);
    let tail = if dice.once_in(3) { strict_tail() } else { weighted_tail() };
    let mut problem = Problem { tail, ..Problem::default() };
    let alike = dice.once_in(2);
    let mut samples = Vec::new();
    let priced = dice.once_in(2);
    for of in 0..1 + dice.below(2) {
        let cards = 1 + dice.below(3);
        let total = [24, 48, 80][dice.below(3) as usize] * GIB;
        let capacity = total - dice.below(3) * 2 * GIB - dice.below(1000);
        let mut first = node("", Vec::new());
        if dice.once_in(4) {
            first.host_capacity_bytes = (8 + dice.below(30)) * GIB;
        }
        first.disk_free_bytes = dice.once_in(5).then(|| (10 + dice.below(60)) * GIB);
        first.spot = dice.once_in(2);
        first.price_per_hour = priced.then(|| 0.25 * (1 + dice.below(20)) as f64);
        if dice.once_in(15) {
            first.closed = Some(("hold".to_owned(), "on hold".to_owned()));
        }
        let racks = !alike && dice.once_in(3);
        samples.push(problem.nodes.len());
        for _ in 0..1 + dice.below(3) {
            let mut next = first.clone();
            next.name = format!("n{}", problem.nodes.len());
            next.labels.insert("node".to_owned(), next.name.clone());
            if racks {
                next.labels.insert("rack".to_owned(), format!("r{}", dice.below(2)));
            }
            if dice.once_in(4) {
                next.weights.insert("w0".to_owned());
            }
            let card = |position| {
                let mut card = accelerator(format!("{}-{position}", next.name), &format!("kind{of}"), total);
                card.capacity_bytes = capacity;
                card
            };
            next.accelerators = (0..cards).map(card).collect();
            problem.nodes.push(next);
        }
    }
    let templates: Vec<ModelDemand> =
        (0..1 + dice.below(2)).map(|index| template(&mut dice, &problem, index)).collect();
    let ranks = [(100, dice.once_in(2)), (10, false), (50, dice.once_in(2))];
    for index in 0..2 + dice.below(4) {
        let mut model = templates[dice.below(templates.len() as u64) as usize].clone();
        let (rank, preempts) = ranks[dice.below(3) as usize];
        model.name = format!("m{index}");
        (model.rank, model.preempts) = (rank, preempts);
        model.desired = 1 + dice.below(3) as u32;
        model.min = dice.below(u64::from(model.desired) + 1) as u32;
        model.protected = dice.once_in(25);
        problem.models.push(model);
    }
    run(&mut dice, &mut problem);
    if dice.once_in(3) {
        let mut names: Vec<String> = problem.models.iter().map(|m| m.name.clone()).collect();
        names.retain(|_| !dice.once_in(3));
        let accelerators = dice.once_in(2).then(|| dice.below(7) as u32);
        let vram_bytes = accelerators.is_none().then(|| dice.below(160) * GIB + dice.below(4096));
        problem.quotas.push(QuotaRule { name: "q".to_owned(), models: names, accelerators, vram_bytes });
    }
    problem.spot_hedge = dice.below(3) as u32;
    if dice.once_in(2) {
        problem.tail.last_mut().unwrap().terms.push((Term::Pack, 15.0));
    }
    for model in problem.models.iter_mut().filter(|_| !alike) {
        for shape in &mut model.shapes {
            let here = problem.nodes[shape.node].weights.contains(&model.candidates[shape.candidate].revision);
            shape.fetch_bytes = if here { 0 } else { shape.fetch_bytes };
        }
    }
    if alike {
        // Nodes that something names stand for no other.
        problem.models.iter_mut().for_each(|model| model.prefer.clear());
        problem.alike = vec![Vec::new(); problem.nodes.len()];
        let ends = samples.iter().skip(1).copied().chain([problem.nodes.len()]);
        samples.iter().zip(ends).for_each(|(first, end)| problem.alike[*first] = (*first..end).collect());
        problem.models.iter_mut().for_each(|model| model.shapes.retain(|shape| samples.contains(&shape.node)));
    }
    problem.sort();
    problem
}

/// A model that several are like: ways on all nodes, equal on equal ones.
fn template(dice: &mut Dice, problem: &Problem, index: u64) -> ModelDemand {
    let mut model = ModelDemand {
        spread_by: match dice.below(6) {
            0 => Some("node".to_owned()),
            1 => Some("rack".to_owned()),
            _ => None,
        },
        pack: dice.once_in(3),
        ..ModelDemand::default()
    };
    if dice.once_in(5) {
        model.prefer.push(("node".to_owned(), "n0".to_owned(), 10));
    }
    for candidate in 0..1 + dice.below(2) {
        model.candidates.push(CandidateFacts {
            label: format!("v{candidate}"),
            quality: (candidate * (1 + dice.below(3))) as u32,
            legal_ranks: BTreeMap::from([(EngineKind::Vllm, vec![1, 2])]),
            context: 4096,
            revision: if index == 0 { format!("w{candidate}") } else { String::new() },
            ..CandidateFacts::default()
        });
        let capacity = problem.nodes[0].accelerators[0].capacity_bytes;
        let whole = match dice.below(4) {
            0 => capacity / 2,
            1 => capacity / 3,
            _ => (4 + dice.below(50)) * GIB + dice.below(4096),
        } / (1 + candidate);
        let host = if dice.once_in(3) { (1 + dice.below(12)) * GIB } else { 0 };
        let fetch = if dice.once_in(2) { (5 + dice.below(30)) * GIB } else { 0 };
        let speeds: BTreeMap<&str, f64> =
            problem.nodes.iter().map(|n| (n.accelerators[0].kind.as_str(), (5 + dice.below(60)) as f64)).collect();
        for (node, supply) in problem.nodes.iter().enumerate() {
            let group: Vec<usize> = (0..supply.accelerators.len()).collect();
            for ranks in (1..=2_u32).filter(|ranks| group.len() >= *ranks as usize) {
                let bytes = whole / u64::from(ranks) + u64::from(ranks - 1) * 700_000_001;
                let mut shape = shape(candidate as usize, node, group.clone(), ranks, bytes);
                shape.host = memory(host);
                shape.fetch_bytes = fetch;
                shape.speed = Some(speeds[supply.accelerators[0].kind.as_str()] * f64::from(ranks));
                shape.keep_only = supply.closed.is_some();
                model.shapes.push(shape);
            }
        }
    }
    model
}

fn generate(seed: u64, in_parts: bool) -> Problem {
    let mut dice = Dice(seed);
    let mut problem =
        Problem { tail: if dice.once_in(3) { strict_tail() } else { weighted_tail() }, ..Problem::default() };
    let count = 1 + dice.below(2);
    for index in 0..count {
        let size = 1 + dice.below(if count == 1 { 3 } else { 2 });
        let unified = dice.once_in(8);
        let mut accelerators = Vec::new();
        for position in 0..size {
            let (kind, total) = if dice.once_in(3) { ("big", 80 * GIB) } else { ("small", 24 * GIB) };
            let mut supply = accelerator(format!("{index}-{position}"), kind, total);
            supply.capacity_bytes = total - dice.below(3) * 2 * GIB - dice.below(1000);
            supply.healthy = !dice.once_in(20);
            supply.unified = unified && position == 0;
            accelerators.push(supply);
        }
        let mut supply = node(&format!("n{index}"), accelerators);
        if unified {
            supply.host_capacity_bytes = supply.accelerators[0].capacity_bytes;
        } else if dice.once_in(4) {
            supply.host_capacity_bytes = (8 + dice.below(30)) * GIB;
        }
        if dice.once_in(12) {
            supply.closed = Some(("hold".to_owned(), "on hold".to_owned()));
        }
        if dice.once_in(4) {
            supply.labels.insert("room".to_owned(), format!("r{}", dice.below(2)));
        }
        if dice.once_in(5) {
            supply.disk_free_bytes = Some((10 + dice.below(60)) * GIB);
        }
        problem.nodes.push(supply);
    }
    for index in 0..1 + dice.below(3) {
        let mut model = model(&mut dice, &problem, index);
        if in_parts {
            parts(&mut dice, &problem, &mut model);
        }
        problem.models.push(model);
    }
    if dice.once_in(10) {
        let mut away = node("z-away", Vec::new());
        away.reachable = false;
        away.closed = Some(("unreachable".to_owned(), "cannot be reached".to_owned()));
        problem.nodes.push(away);
        let running = Running {
            model: "m0".to_owned(),
            replica: dice.below(2) as u32,
            instance: "far".to_owned(),
            node: "z-away".to_owned(),
            accelerators: vec!["far".to_owned()],
            variant: "v0".to_owned(),
            engine: Some(EngineKind::Vllm),
            ..Running::default()
        };
        problem.running.push(running);
    }
    run(&mut dice, &mut problem);
    ports(&mut dice, &mut problem);
    problem.sort();
    problem
}

/// Some nodes have few ports left; of what runs some is known with fewer than its engine takes.
fn ports(dice: &mut Dice, problem: &mut Problem) {
    for running in &mut problem.running {
        running.ports =
            if dice.once_in(3) { PortsHeld { all: 1, row: false } } else { PortsHeld { all: 5, row: true } };
    }
    for node in problem.nodes.iter_mut().filter(|node| node.reachable) {
        if dice.once_in(4) {
            let free = dice.below(12) as u32;
            let rows = dice.below(u64::from(free / 4) + 1) as u32;
            node.ports = Some(PortSupply { low: 20_000, high: 20_019, free, rows });
        }
    }
}

/// What is free of ports once other instances run: all that may be had, without theirs.
fn ports_left(problem: &Problem, next: &mut Problem) {
    let held = |running: &[Running], node: &str| -> (u32, u32) {
        let here = running.iter().filter(|running| running.node == node);
        here.fold((0, 0), |sum, running| (sum.0 + running.ports.all, sum.1 + u32::from(running.ports.row)))
    };
    for node in &mut next.nodes {
        let (before, after) = (held(&problem.running, &node.name), held(&next.running, &node.name));
        if let Some(ports) = &mut node.ports {
            (ports.free, ports.rows) = (ports.free + before.0 - after.0, ports.rows + before.1 - after.1);
        }
    }
}

fn model(dice: &mut Dice, problem: &Problem, index: u64) -> ModelDemand {
    let rank = [10, 50, 100][dice.below(3) as usize];
    let desired = 1 + dice.below(2) as u32;
    let mut model = ModelDemand {
        name: format!("m{index}"),
        rank,
        preempts: rank > 10 && dice.once_in(2),
        min: dice.below(u64::from(desired) + 1) as u32,
        desired,
        protected: dice.once_in(12),
        spread_by: match dice.below(6) {
            0 => Some("node".to_owned()),
            1 => Some("room".to_owned()),
            _ => None,
        },
        ..ModelDemand::default()
    };
    if dice.once_in(4) {
        model.prefer.push(("room".to_owned(), "r0".to_owned(), 10));
    }
    for candidate in 0..1 + dice.below(2) {
        model.candidates.push(CandidateFacts {
            label: format!("v{candidate}"),
            quality: (candidate * (1 + dice.below(3))) as u32,
            legal_ranks: BTreeMap::from([(EngineKind::Vllm, vec![1, 2])]),
            context: 4096,
            revision: String::new(),
            only_on: None,
            format: None,
            ..CandidateFacts::default()
        });
        // Sizes that divide a capacity exactly, as well as odd ones.
        let whole = match dice.below(4) {
            0 => problem.nodes[0].accelerators[0].capacity_bytes / 2,
            1 => problem.nodes[0].accelerators[0].capacity_bytes,
            _ => (4 + dice.below(40)) * GIB + dice.below(4096),
        } / (1 + candidate);
        let host = if dice.once_in(3) { (1 + dice.below(12)) * GIB } else { 0 };
        let fetch = if dice.once_in(3) { (5 + dice.below(30)) * GIB } else { 0 };
        for (node, supply) in problem.nodes.iter().enumerate() {
            for kind in ["big", "small"] {
                let group: Vec<usize> =
                    (0..supply.accelerators.len()).filter(|p| supply.accelerators[*p].kind == kind).collect();
                for ranks in 1..=2_u32 {
                    if group.len() < ranks as usize {
                        continue;
                    }
                    let bytes = whole / u64::from(ranks) + u64::from(ranks - 1) * 700_000_001;
                    let mut shape = shape(candidate as usize, node, group.clone(), ranks, bytes);
                    shape.host = memory(host);
                    shape.fetch_bytes = fetch;
                    shape.speed = Some((5 + dice.below(60)) as f64);
                    shape.keep_only = supply.closed.is_some();
                    model.shapes.push(shape);
                }
            }
            if dice.once_in(10) {
                let mut shape = shape(candidate as usize, node, Vec::new(), 0, 0);
                shape.host = memory(whole / 2);
                shape.speed = Some(4.0);
                shape.keep_only = supply.closed.is_some();
                model.shapes.push(shape);
            }
        }
    }
    model
}

/// Adds shapes of two parts, and takes away some of one.
fn parts(dice: &mut Dice, problem: &Problem, model: &mut ModelDemand) {
    // However a candidate runs, the same files are brought.
    let fetch: Vec<u64> = (0..model.candidates.len())
        .map(|c| model.shapes.iter().find(|shape| shape.candidate == c).map_or(0, |shape| shape.fetch_bytes))
        .collect();
    model.shapes.retain(|_| !dice.once_in(3));
    for (candidate, fetch) in fetch.into_iter().enumerate() {
        for (at, supply) in problem.nodes.iter().enumerate().filter(|(_, supply)| !supply.accelerators.is_empty()) {
            let of = |node: &NodeSupply, kind: &str| -> Vec<usize> {
                (0..node.accelerators.len()).filter(|p| node.accelerators[*p].kind == kind).collect()
            };
            let kind = supply.accelerators[0].kind.clone();
            let group = of(supply, &kind);
            let mut add = |dice: &mut Dice, node: usize, other: Vec<usize>, role: Option<Role>| {
                let bytes = |dice: &mut Dice| (2 + dice.below(30)) * GIB + dice.below(4096);
                let ranks = 1 + dice.below(group.len().min(2) as u64) as u32;
                let mut shape = shape(candidate, at, group.clone(), ranks, bytes(dice));
                shape.pipeline = true;
                shape.host = memory(dice.below(3) * GIB);
                shape.speed = Some((5 + dice.below(60)) as f64);
                shape.keep_only = supply.closed.is_some();
                shape.fetch_bytes = fetch;
                // No two alike, so that what runs is of one shape.
                shape.layers = vec![1 + model.shapes.len() as u32; ranks as usize + usize::from(role.is_none())];
                shape.further.push(Part {
                    node,
                    group: other,
                    ranks: 1,
                    per_accelerator: memory(bytes(dice)),
                    host: memory(if node == at { 0 } else { GIB }),
                    role,
                    ..Part::default()
                });
                model.shapes.push(shape);
            };
            let other = of(supply, if kind == "big" { "small" } else { "big" });
            if !other.is_empty() && !dice.once_in(3) {
                add(dice, at, other, None);
            }
            if group.len() > 1 && dice.once_in(2) {
                add(dice, at, group.clone(), Some(Role::Vision));
            }
            let away = problem.nodes.iter().enumerate().find(|(n, node)| *n != at && !node.accelerators.is_empty());
            if let Some((node, away)) = away.filter(|_| dice.once_in(3)) {
                add(dice, node, of(away, &away.accelerators[0].kind), None);
            }
        }
    }
}

/// Lets some instances run, nearly always within the capacities.
fn run(dice: &mut Dice, problem: &mut Problem) {
    let mut used: BTreeMap<(usize, usize), u64> = BTreeMap::new();
    for model in 0..problem.models.len() {
        for replica in 0..dice.below(3) as u32 {
            let demand = &problem.models[model];
            if demand.shapes.is_empty() {
                continue;
            }
            let shape = &demand.shapes[dice.below(demand.shapes.len() as u64) as usize];
            let supply = &problem.nodes[shape.node];
            let mut positions: Vec<usize> = Vec::new();
            let mut bytes = shape.per_accelerator.weights_bytes;
            for span in shape.spans().filter(|span| span.node == shape.node) {
                let mut open: Vec<usize> = span.group.iter().copied().filter(|p| !positions.contains(p)).collect();
                while open.len() > span.ranks {
                    let drop = dice.below(open.len() as u64) as usize;
                    open.remove(drop);
                }
                positions.append(&mut open);
                bytes = bytes.max(span.claimed);
            }
            // Nothing runs across nodes, nor over fewer than it takes.
            if positions.len() != shape.all_ranks() {
                continue;
            }
            let fits = positions.iter().all(|p| {
                used.get(&(shape.node, *p)).copied().unwrap_or(0) + bytes <= supply.accelerators[*p].capacity_bytes
            });
            if !fits && !dice.once_in(4) {
                continue;
            }
            for position in &positions {
                *used.entry((shape.node, *position)).or_default() += bytes;
            }
            let running = Running {
                model: demand.name.clone(),
                replica,
                instance: format!("{}-{replica}", demand.name),
                node: supply.name.clone(),
                accelerators: positions.iter().map(|p| supply.accelerators[*p].uuid.clone()).collect(),
                variant: demand.candidates[shape.candidate].label.clone(),
                engine: Some(EngineKind::Vllm),
                load_ms: Some(dice.below(10) * 60_000),
                live_sessions: dice.below(4) as u32,
                failed: dice.once_in(8),
                layers: shape.layers.clone(),
                further: Vec::new(),
                ports: PortsHeld::default(),
            };
            problem.running.push(running);
        }
    }
}

/// The same problem once a placement runs: what runs on unreachable nodes stays in the list.
pub fn applied(problem: &Problem, placement: &Placement) -> Problem {
    let mut next = problem.clone();
    next.running.retain(|r| problem.node(&r.node).is_some_and(|n| !problem.nodes[n].reachable));
    for placed in placement.instances.iter().filter(|p| !p.program.is_empty()) {
        let model = problem.model(&placed.model).unwrap();
        let node = problem.node(&placed.node).unwrap();
        for shape in next.models[model].shapes.iter_mut() {
            if shape.node == node && shape.candidate == placed.candidate && placed.because != "already runs here" {
                let free = next.nodes[node].disk_free_bytes;
                next.nodes[node].disk_free_bytes = free.map(|free| free.saturating_sub(shape.fetch_bytes));
                let fetched = shape.fetch_bytes;
                shape.fetch_bytes = 0;
                if fetched > 0 {
                    break;
                }
            }
        }
        if placed.because != "already runs here" {
            for shape in next.models[model].shapes.iter_mut() {
                if shape.node == node && shape.candidate == placed.candidate {
                    shape.fetch_bytes = 0;
                }
            }
        }
        let same =
            |r: &&Running| (&r.model, &r.node, &r.accelerators) == (&placed.model, &placed.node, &placed.accelerators);
        let before = problem.running.iter().filter(same).max_by_key(|r| r.replica == placed.replica);
        next.running.push(Running {
            load_ms: before.and_then(|r| r.load_ms),
            live_sessions: before.map_or(0, |r| r.live_sessions),
            failed: false,
            model: placed.model.clone(),
            replica: placed.replica,
            instance: format!("{}-{}", placed.model, placed.replica),
            node: placed.node.clone(),
            accelerators: placed.accelerators.clone(),
            variant: problem.models[model].candidates[placed.candidate].label.clone(),
            engine: Some(placed.engine),
            layers: placed.layers.clone(),
            further: placed.elsewhere.iter().map(|part| (part.node.clone(), part.accelerators.clone())).collect(),
            ports: before.map_or(PortsHeld { all: 5, row: true }, |before| before.ports),
        });
    }
    ports_left(problem, &mut next);
    next.sort();
    next
}

/// Where every replica is, without the words.
pub fn places(placement: &Placement) -> Vec<(String, u32, String, Vec<String>)> {
    let place = |p: &Placed| (p.model.clone(), p.replica, p.node.clone(), p.accelerators.clone());
    placement.instances.iter().map(place).collect()
}
