//! Clusters of any size from a seed: a config as text, an inventory and candidate weights, as flock itself reads them.
//!
//! Six types of accelerators in nodes of 8, 4, 2 and 1; published networks of ten sizes in three variants each; three
//! priorities; so many replicas that the best variants which fit anywhere take 1.05 times the memory there is. The
//! same `Size` gives the same cluster on any machine.
//!
//! A program that includes this file with `#[path]` also includes `tests/support/headers.rs` as its module `headers`.
#![allow(dead_code, reason = "each program uses its own part")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::OnceLock;

use flock::base::{Digest, GIB, MIB, Tree, TreeEntry};
use flock::config::{self, Desired};
use flock::inventory::{
    Accelerator, AcceleratorMemory, AgentFacts, Disk, FetchFile, Inventory, NodeFacts, NodeLink, Ram,
};
use flock::placement::{self, Candidate, Candidates, Options, Origin};
use flock::weights::{Inspect, Listing, Ranges, Variant, inspect};

use crate::headers::{self, HeaderFile};

/// What is generated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Size {
    /// Accelerators in all.
    pub accelerators: usize,
    /// Models.
    pub kinds: usize,
    /// Replicas that all models want together.
    pub replicas: usize,
    /// Bytes of the best variants that fit, over usable bytes.
    pub load: f64,
    /// Chooses the cluster.
    pub seed: u64,
}

impl Size {
    /// A cluster of so many accelerators as people have them: two replicas per accelerator, and more models, but not
    /// as many more, the larger it is.
    pub fn of(accelerators: usize, seed: u64) -> Self {
        let kinds = match accelerators {
            0..50 => 8,
            50..500 => 20,
            500..5_000 => 100,
            _ => 300,
        };
        Self { accelerators, kinds, replicas: 2 * accelerators, load: 1.05, seed }
    }
}

/// A cluster, and what shall run on it.
#[derive(Debug, Clone)]
pub struct Inputs {
    /// `cluster.kdl`.
    pub text: String,
    /// The same, loaded.
    pub desired: Desired,
    /// Digest of its meaning.
    pub digest: Digest,
    /// Facts of a cluster on which nothing runs.
    pub inventory: Inventory,
    /// Weights of all models.
    pub candidates: Candidates,
    /// What `Size::load` came to.
    pub load: f64,
}

/// A small generator of numbers (splitmix64).
#[derive(Debug, Clone)]
pub struct Dice(pub u64);

impl Dice {
    /// Any number.
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

    /// True in so many of a hundred.
    pub fn percent(&mut self, n: u64) -> bool {
        self.below(100) < n
    }
}

/// A type of nodes.
struct Machine {
    /// Prefix of the nodes' names.
    name: &'static str,
    /// As the driver names it.
    accelerator: &'static str,
    total_mib: u64,
    capability: &'static str,
    /// Accelerators per node, the most common first.
    sizes: &'static [usize],
    /// Percent of all accelerators.
    share: usize,
    tier: &'static str,
    /// Host memory per accelerator.
    ram_gib: u64,
    /// Per accelerator and hour.
    price: f64,
    /// Percent of its nodes that may be taken away.
    spot: usize,
}

const MACHINES: &[Machine] = &[
    machine("h100", ("NVIDIA H100 80GB HBM3", 81_559, "9.0"), &[8, 4, 2, 1], 15, ("datacenter", 256, 2.9, 0)),
    machine("a100", ("NVIDIA A100-SXM4-80GB", 81_920, "8.0"), &[8, 4, 2, 1], 20, ("datacenter", 128, 1.8, 0)),
    machine("l40s", ("NVIDIA L40S", 46_068, "8.9"), &[4, 2, 1], 15, ("datacenter", 128, 1.1, 0)),
    machine("ada", ("NVIDIA GeForce RTX 4090", 24_564, "8.9"), &[4, 2, 1], 20, ("consumer", 64, 0.4, 0)),
    machine("l4", ("NVIDIA L4", 23_034, "8.9"), &[2, 1], 15, ("cloud", 64, 0.7, 20)),
    machine("t4", ("Tesla T4", 15_360, "7.5"), &[4, 2, 1], 15, ("cloud", 48, 0.35, 20)),
];

const fn machine(
    name: &'static str,
    (accelerator, total_mib, capability): (&'static str, u64, &'static str),
    sizes: &'static [usize],
    share: usize,
    (tier, ram_gib, price, spot): (&'static str, u64, f64, usize),
) -> Machine {
    Machine { name, accelerator, total_mib, capability, sizes, share, tier, ram_gib, price, spot }
}

/// Published networks, smallest first: what models are called after them, and thousands of millions of parameters.
const NETWORKS: &[(&str, &str, u64)] = &[
    ("meta-llama/Llama-3.2-1B-Instruct", "1b", 1),
    ("meta-llama/Llama-3.2-3B-Instruct", "3b", 3),
    ("Qwen/Qwen2.5-7B-Instruct", "7b", 8),
    ("Qwen/Qwen3-14B", "14b", 15),
    ("Qwen/Qwen3-30B-A3B", "30b-a3b", 31),
    ("Qwen/Qwen3-32B", "32b", 33),
    ("mistralai/Mixtral-8x7B-v0.1", "8x7b", 47),
    ("meta-llama/Llama-3.3-70B-Instruct", "70b", 71),
    ("mistralai/Mistral-Large-Instruct-2411", "123b", 123),
    ("Qwen/Qwen3-235B-A22B", "235b-a22b", 235),
];

/// Best first.
const VARIANTS: &[&str] = &["bf16", "fp8", "awq-int4"];

/// Name, rank, whether it preempts.
const PRIORITIES: &[(&str, u32, bool)] = &[("production", 100, true), ("research", 50, true), ("batch", 10, false)];

/// Nodes of one machine and size.
struct Fleet {
    machine: &'static Machine,
    size: usize,
    count: usize,
}

impl Fleet {
    fn prefix(&self) -> String {
        format!("{}-{}x", self.machine.name, self.size)
    }

    /// Names as the config's range gives them.
    fn names(&self) -> impl Iterator<Item = String> + '_ {
        (1..=self.count).map(|number| format!("{}-{number:04}", self.prefix()))
    }

    /// The last nodes of a machine are spot ones.
    fn fixed(&self) -> usize {
        self.count - self.count * self.machine.spot / 100
    }
}

/// A model, before it has replicas.
struct Kind {
    name: String,
    network: usize,
    context: u64,
    concurrency: u64,
    priority: usize,
    place: Option<&'static str>,
    /// Bytes of the best variant that fits anywhere.
    bytes: f64,
    replicas: usize,
}

/// The whole cluster.
pub fn generate(size: &Size) -> Inputs {
    let mut dice = Dice(size.seed);
    let fleets = fleets(size.accelerators);
    let probe = Probe::new(&fleets);
    let usable: f64 = fleets.iter().map(|f| probe.usable(f) * (f.size * f.count) as f64).sum();
    let mut kinds = kinds(size, &mut dice, &probe, usable);
    let load = share_out(&mut kinds, size, usable);
    let mut text = head();
    nodes(&mut text, &fleets);
    models(&mut text, &kinds, &fleets);
    let (desired, digest) = loaded(&text);
    let all = kinds.iter().map(|kind| (kind.name.clone(), Ok(named(candidates(kind.network), &kind.name)))).collect();
    Inputs { text, desired, digest, inventory: inventory(&fleets), candidates: all, load }
}

/// Shares the accelerators out to machines, and those to nodes.
fn fleets(accelerators: usize) -> Vec<Fleet> {
    let mut counts: Vec<usize> = MACHINES.iter().map(|m| accelerators * m.share / 200 * 2).collect();
    let mut rest = accelerators - counts.iter().sum::<usize>();
    while rest > 0 {
        let lacks = |i: &usize| (accelerators * MACHINES[*i].share).saturating_sub(100 * counts[*i]);
        let most = (0..counts.len()).max_by_key(|i| (lacks(i), std::cmp::Reverse(*i))).unwrap_or(0);
        let more = rest.min(2);
        counts[most] += more;
        rest -= more;
    }
    let mut fleets = Vec::new();
    for (machine, mut left) in MACHINES.iter().zip(counts) {
        for size in machine.sizes {
            // A tenth of the accelerators are in smaller nodes, where there are enough.
            let keep = if *size > 2 && left >= 20 * size { left / 10 } else { 0 };
            let count = (left - keep) / size;
            left -= count * size;
            if count > 0 {
                fleets.push(Fleet { machine, size: *size, count });
            }
        }
    }
    fleets
}

/// Candidates of a network; large mixtures take seconds to read, so each is read once, and only where it is used.
fn candidates(network: usize) -> &'static [Candidate] {
    static READ: [OnceLock<Vec<Candidate>>; NETWORKS.len()] = [const { OnceLock::new() }; NETWORKS.len()];
    READ[network].get_or_init(|| published(NETWORKS[network].0))
}

/// Candidates of a network, read from headers as flock reads a hub.
fn published(network: &str) -> Vec<Candidate> {
    let row = headers::row(network).expect("a row of the table");
    let of = |quantisation: &&str| {
        let files = headers::safetensors(&row, quantisation, 8).expect("a known class");
        let variant = read(&files);
        let revision = Digest::of(format!("{network} {quantisation}").as_bytes());
        let repository = match *quantisation {
            "bf16" => network.to_owned(),
            other => format!("{network}-{other}"),
        };
        Candidate {
            label: variant.id.clone(),
            source: format!("hf:{repository}"),
            variant,
            revision: revision.to_string(),
            files: files
                .iter()
                .map(|file| FetchFile {
                    name: file.name.clone(),
                    size_bytes: file.size,
                    sha256: Some(Digest::of(format!("{revision} {}", file.name).as_bytes()).to_string()),
                })
                .collect(),
            origin: Origin::Hub { repository, commit: revision.hex()[..40].to_owned() },
            projector: None,
            gated: Some(false),
        }
    };
    VARIANTS.iter().map(of).collect()
}

fn read(files: &[HeaderFile]) -> Variant {
    let listing = Listing::new(files.iter().map(|file| (file.name.as_str(), file.size))).expect("plain names");
    let mut ranges = Ranges::new();
    loop {
        match inspect(&listing, &ranges).expect("usable weights") {
            Inspect::Done(mut variants) => return variants.remove(0),
            Inspect::Need { file, offset, length } => {
                let own = files.iter().find(|own| own.name == file).expect("listed");
                let start = (offset as usize).min(own.head.len());
                let end = (start + length as usize).min(own.head.len());
                ranges.insert(&file, offset, &own.head[start..end]);
            }
        }
    }
}

/// The weights of a model: its own finetune of a network, so that no two models share files.
fn named(library: &[Candidate], model: &str) -> Vec<Candidate> {
    let own = |candidate: &Candidate| {
        let revision = Digest::of(format!("{model} {}", candidate.revision).as_bytes());
        let repository = format!("lab/{model}-{}", candidate.label);
        Candidate {
            source: format!("hf:{repository}"),
            revision: revision.to_string(),
            origin: Origin::Hub { repository, commit: revision.hex()[..40].to_owned() },
            ..candidate.clone()
        }
    };
    library.iter().map(own).collect()
}

/// Settings that models have.
const CONTEXTS: &[u64] = &[4_096, 8_192, 16_384];
const CONCURRENCIES: &[u64] = &[1, 4, 8];

/// What sizing says of every network and setting on every type of node.
struct Probe {
    /// By network, context and concurrency; `None` where nothing fits.
    bytes: BTreeMap<(usize, u64, u64), f64>,
    /// By name of the machine.
    usable: BTreeMap<&'static str, f64>,
}

impl Probe {
    fn new(fleets: &[Fleet]) -> Self {
        let mut text = head();
        let one: Vec<Fleet> = fleets.iter().map(|f| Fleet { count: 1, ..*f }).collect();
        nodes(&mut text, &one);
        let mut settings = BTreeMap::new();
        // In four bits, which are half a byte per parameter.
        let total: u64 = fleets.iter().map(|f| f.machine.total_mib * MIB * (f.size * f.count) as u64).sum();
        let small = |network: &usize| NETWORKS[*network].2 * 500_000_000 <= total / 8;
        for network in (0..NETWORKS.len()).filter(small) {
            for context in CONTEXTS {
                for concurrency in CONCURRENCIES {
                    let name = format!("p{network}-{context}-{concurrency}");
                    let _ = writeln!(
                        text,
                        "model \"{name}\" {{ source \"hf:lab/{name}\"; engine \"vllm\"; context {context}; \
                         concurrency {concurrency} }}"
                    );
                    settings.insert(name, (network, *context, *concurrency));
                }
            }
        }
        let candidates = settings.iter().map(|(name, s)| (name.clone(), Ok(candidates(s.0).to_vec()))).collect();
        let problem = placement::build(&loaded(&text).0, &inventory(&one), &candidates, &Options::default());
        let usable = problem.nodes.iter().zip(sorted(&one)).map(|(node, fleet)| {
            (fleet.machine.name, node.accelerators.first().map_or(0.0, |a| a.capacity_bytes as f64))
        });
        let usable = usable.collect();
        let best = |model: &placement::ModelDemand| {
            let best = model.shapes.iter().map(|s| s.candidate).min()?;
            let of = |s: &placement::Shape| s.claimed() * u64::from(s.ranks);
            model.shapes.iter().filter(|s| s.candidate == best).map(of).min()
        };
        let bytes = problem.models.iter().filter_map(|m| Some((settings[&m.name], best(m)? as f64)));
        Self { bytes: bytes.collect(), usable }
    }

    fn usable(&self, fleet: &Fleet) -> f64 {
        self.usable[fleet.machine.name]
    }
}

/// Fleets in the order of their nodes' names.
fn sorted(fleets: &[Fleet]) -> Vec<&Fleet> {
    let mut all: Vec<&Fleet> = fleets.iter().collect();
    all.sort_by_key(|fleet| fleet.prefix());
    all
}

/// Models without replicas; every size as often as the others, none that takes more than an eighth of the cluster.
fn kinds(size: &Size, dice: &mut Dice, probe: &Probe, usable: f64) -> Vec<Kind> {
    let mut kinds = Vec::new();
    let mut network = 0;
    while kinds.len() < size.kinds {
        let (context, concurrency) = (CONTEXTS[dice.below(3) as usize], CONCURRENCIES[dice.below(3) as usize]);
        let priority = [0, 0, 1, 1, 1, 2, 2, 2][dice.below(8) as usize];
        let place = match dice.below(20) {
            0 | 1 => Some("require label=\"tier\" is=\"datacenter\""),
            2 => Some("prefer label=\"tier\" is=\"consumer\" weight=10"),
            3 => Some("spread by=\"node\""),
            _ => None,
        };
        let bytes = probe.bytes.get(&(network, context, concurrency)).copied();
        if let Some(bytes) = bytes.filter(|bytes| *bytes <= usable / 8.0 || network == 0) {
            let name = format!("m{:04}-{}", kinds.len(), NETWORKS[network].1);
            kinds.push(Kind { name, network, context, concurrency, priority, place, bytes, replicas: 1 });
        }
        network = (network + 1) % NETWORKS.len();
    }
    kinds
}

/// Replicas that the configuration language lets a model have.
const MOST: usize = 1_000;

/// Shares the replicas out: the smaller a model the more, so that the load comes out. Returns the load.
fn share_out(kinds: &mut [Kind], size: &Size, usable: f64) -> f64 {
    let wanted = size.load * usable;
    let replicas = size.replicas.max(kinds.len());
    let shares = |power: f64| -> Vec<f64> {
        let weights: Vec<f64> = kinds.iter().map(|k| (k.bytes / GIB as f64).powf(-power)).collect();
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|w| w / sum * (replicas - kinds.len()) as f64 + 1.0).collect()
    };
    let bytes = |shares: &[f64]| -> f64 { shares.iter().zip(kinds.iter()).map(|(s, k)| s * k.bytes).sum() };
    let (mut low, mut high) = (-4.0, 8.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if bytes(&shares(middle)) > wanted { low = middle } else { high = middle }
    }
    let mut left = replicas;
    let shares = shares(high);
    for (kind, share) in kinds.iter_mut().zip(shares) {
        kind.replicas = (share as usize).min(left).clamp(1, MOST);
        left = left.saturating_sub(kind.replicas);
    }
    let mut smallest: Vec<usize> = (0..kinds.len()).collect();
    smallest.sort_by(|a, b| kinds[*a].bytes.total_cmp(&kinds[*b].bytes));
    for kind in smallest {
        let more = left.min(MOST - kinds[kind].replicas);
        kinds[kind].replicas += more;
        left -= more;
    }
    // Whole replicas miss the load a little: one at a time goes from one model to another while that helps.
    let mut now: f64 = kinds.iter().map(|k| k.replicas as f64 * k.bytes).sum();
    loop {
        let pairs = (0..kinds.len()).flat_map(|from| (0..kinds.len()).map(move |to| (from, to)));
        let after = |(from, to): &(usize, usize)| (now - kinds[*from].bytes + kinds[*to].bytes - wanted).abs();
        let movable = pairs.filter(|(from, to)| from != to && kinds[*from].replicas > 1 && kinds[*to].replicas < MOST);
        let best = movable.min_by(|a, b| after(a).total_cmp(&after(b)));
        let Some((from, to)) = best.filter(|pair| after(pair) < (now - wanted).abs() - 1.0) else { break };
        now += kinds[to].bytes - kinds[from].bytes;
        kinds[from].replicas -= 1;
        kinds[to].replicas += 1;
    }
    now / usable
}

fn head() -> String {
    "cluster \"generated\" { reserve vram=\"1GiB\" ram=\"8GiB\"; currency \"USD\" }\n\
     engine \"vllm\" version=\"0.11.0\" { path \"/opt/vllm/bin/vllm\" }\n"
        .to_owned()
}

fn nodes(text: &mut String, fleets: &[Fleet]) {
    for (name, rank, preempts) in PRIORITIES {
        let _ = writeln!(text, "priority \"{name}\" rank={rank} preempts=#{preempts}");
    }
    for (number, fleet) in fleets.iter().enumerate() {
        let machine = fleet.machine;
        let price = machine.price * fleet.size as f64;
        let mut range = |from: usize, to: usize, price: f64, more: &str| {
            // A range stands for at most 1024 nodes.
            for first in (from..=to).step_by(1_000) {
                let last = to.min(first + 999);
                let names = match first == last {
                    true => format!("{first:04}"),
                    false => format!("[{first:04}-{last:04}]"),
                };
                let address = match first == last {
                    true => format!("{}-{first:04}.g{number}.example.org", fleet.prefix()),
                    false => format!("{}-{{}}.g{number}.example.org", fleet.prefix()),
                };
                let _ = writeln!(
                    text,
                    "node \"{}-{names}\" address=\"{address}\" {{ label \"tier\" \"{}\"; price \"{price:.2}/h\"{more} }}",
                    fleet.prefix(),
                    machine.tier
                );
            }
        };
        let fixed = fleet.fixed();
        range(1, fixed, price, "");
        range(fixed + 1, fleet.count, price * 0.4, "; spot");
    }
}

fn models(text: &mut String, kinds: &[Kind], fleets: &[Fleet]) {
    let nodes: usize = fleets.iter().map(|f| f.count).sum();
    for kind in kinds {
        let most = kind.replicas;
        let least = [most.div_ceil(2), most.div_ceil(4), 0][kind.priority];
        // No spread over more nodes than half of those that there are.
        let place = kind.place.filter(|place| !place.starts_with("spread") || most * 2 <= nodes);
        let place = place.map_or(String::new(), |place| format!("; place {{ {place} }}"));
        let quality = if kind.priority == 0 { "; quality min=\"fp8\"" } else { "" };
        let _ = writeln!(
            text,
            "model \"{}\" {{ source \"hf:lab/{0}-bf16\"; engine \"vllm\"; context {}; concurrency {}; \
             replicas min={least} max={most}; priority \"{}\"{quality}{place} }}",
            kind.name, kind.context, kind.concurrency, PRIORITIES[kind.priority].0
        );
    }
}

/// A config of one file.
pub fn loaded(text: &str) -> (Desired, Digest) {
    let mut tree = Tree::new();
    tree.insert("cluster.kdl", TreeEntry::File(text.as_bytes().to_vec()));
    let loaded = config::load(&tree);
    let found = loaded.desired.zip(loaded.config_digest);
    found.unwrap_or_else(|| panic!("what is generated is valid: {:#?}", loaded.diagnostics.first()))
}

fn inventory(fleets: &[Fleet]) -> Inventory {
    let mut nodes = Vec::new();
    for fleet in fleets {
        nodes.extend(fleet.names().map(|name| facts(&name, fleet)));
    }
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    let links = links(&nodes);
    Inventory { format: 1, taken_at: Some("2026-01-02T03:04:05Z".to_owned()), nodes, links, ..Inventory::default() }
}

fn facts(name: &str, fleet: &Fleet) -> NodeFacts {
    let machine = fleet.machine;
    let total = machine.total_mib * MIB;
    let reserved = 460 * MIB;
    let accelerator = |index: usize| Accelerator {
        uuid: format!("GPU-{name}-{index}"),
        index: index as u32,
        vendor: "nvidia".to_owned(),
        name: machine.accelerator.to_owned(),
        memory: AcceleratorMemory {
            total_bytes: Some(total),
            used_bytes: Some(4 * MIB),
            free_bytes: Some(total - reserved - 4 * MIB),
            reserved_bytes: Some(reserved),
            ..AcceleratorMemory::default()
        },
        compute_capability: Some(machine.capability.to_owned()),
        driver: Some("570.133.20".to_owned()),
        healthy: true,
        ..Accelerator::default()
    };
    let ram = machine.ram_gib * fleet.size.max(2) as u64 * GIB;
    NodeFacts {
        name: name.to_owned(),
        reachable: true,
        generation: 1,
        home: Some("/home/flock".to_owned()),
        ram: Ram { total_bytes: Some(ram), available_bytes: Some(ram - 6 * GIB), ..Ram::default() },
        accelerators: (0..fleet.size).map(accelerator).collect(),
        disks: vec![Disk { path: "/".to_owned(), free_bytes: 7_000 * GIB, total_bytes: 7_600 * GIB }],
        agent: Some(AgentFacts { version: "0.1.0".to_owned(), supervising: true }),
        ..NodeFacts::default()
    }
}

/// As discovery measures them among many nodes: to those 1, 2, 4, 8 places after each by name.
fn links(nodes: &[NodeFacts]) -> Vec<NodeLink> {
    let mut links = Vec::new();
    for (from, node) in nodes.iter().enumerate() {
        for step in [1, 2, 4, 8].into_iter().filter(|step| 2 * step < nodes.len()) {
            links.push(NodeLink {
                from: node.name.clone(),
                to: nodes[(from + step) % nodes.len()].name.clone(),
                rtt_us: Some(180),
                bandwidth_bytes_per_s: Some(1_200_000_000),
                measured: true,
                age_ms: Some(1_000),
                unknown: Default::default(),
            });
        }
    }
    links
}
