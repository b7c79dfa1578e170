//! A small world for tests: nodes with equal cards, models with weights of any size, and a simulator that does what
//! a plan says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Limits, Moment, ObservedSpecs, Plan, PlanInput, Verb, plan};
use crate::base::{Digest, EngineKind, GIB, InstanceState, Place, Spanned, WeightFormat};
use crate::config::{
    Cluster, Connection, Desired, Model, Node, Objective, PlaceRules, Policies, Priority, Replicas, Reserve, Source,
    SshSettings,
};
use crate::inventory::{
    Accelerator, AcceleratorMemory, AgentFacts, Failure, FetchFile, InstanceFacts, InstanceSpec, Inventory, NodeFacts,
    WeightsFound,
};
use crate::placement::{Candidate, Candidates, Origin, Placed, PlacedMemory, Placement, SolverReport};
use crate::weights::{Architecture, PerLayer, Tensors, Variant};

/// The hub of the small world.
pub const HUB: &str = "https://hub.example";

/// The commit of its repositories.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What every card may give.
pub const CAPACITY: u64 = 22 * GIB;

pub fn at(file: &str, line: usize) -> Place {
    Place { file: Arc::from(file), line, column: 5, end_line: line, end_column: 20 }
}

fn spanned<T>(value: T, line: usize) -> Spanned<T> {
    Spanned::new(value, at("cluster.kdl", line))
}

/// A model of the small world.
#[derive(Debug, Clone)]
pub struct Wish {
    pub name: &'static str,
    pub line: usize,
    pub context: u64,
    pub replicas: u32,
    pub rank: u32,
    pub weights: &'static str,
    pub variant: &'static str,
}

impl Wish {
    pub fn new(name: &'static str, line: usize) -> Self {
        Self { name, line, context: 16384, replicas: 1, rank: 0, weights: "v1", variant: "awq-int4" }
    }
}

/// A place of the small world: model, replica, node, cards, GiB per card.
pub type Spot = (&'static str, u32, &'static str, Vec<u32>, u64);

/// Everything a plan is computed from, owned.
#[derive(Debug, Clone)]
pub struct World {
    pub desired: Desired,
    pub inventory: Inventory,
    pub observed: ObservedSpecs,
    pub candidates: Candidates,
    pub placement: Placement,
    pub limits: Limits,
    pub drain: BTreeSet<String>,
    pub moment: Moment,
}

pub fn uuid(node: &str, index: u32) -> String {
    format!("GPU-{node}-{index}")
}

impl World {
    /// Nodes with so many cards each, and nothing on them.
    pub fn new(nodes: &[(&'static str, u32)]) -> Self {
        let inventory =
            Inventory { format: 1, nodes: nodes.iter().map(|(n, c)| facts(n, *c)).collect(), ..Default::default() };
        let desired = Desired {
            cluster: Cluster {
                name: spanned("lab".to_owned(), 1),
                ssh: SshSettings::default(),
                reserve: Reserve::default(),
                objective: Objective::default(),
                extras: Default::default(),
            },
            nodes: nodes.iter().map(|(n, _)| ((*n).to_owned(), node(n))).collect(),
            engines: BTreeMap::new(),
            models: BTreeMap::new(),
            providers: BTreeMap::new(),
            provider_models: BTreeMap::new(),
            agents: BTreeMap::new(),
            tools: BTreeMap::new(),
            workflows: BTreeMap::new(),
            policies: Policies::default(),
        };
        Self {
            desired,
            observed: nodes.iter().map(|(n, _)| ((*n).to_owned(), Vec::new())).collect(),
            inventory,
            candidates: Candidates::new(),
            placement: placement(Vec::new()),
            limits: Limits::default(),
            drain: BTreeSet::new(),
            moment: Moment { unix_ms: 1_796_000_000_000, live: true },
        }
    }

    /// Wants these models on these places.
    pub fn want(&mut self, wishes: &[Wish], spots: &[Spot]) {
        self.desired.models = wishes.iter().map(|wish| (wish.name.to_owned(), model(wish))).collect();
        self.candidates = wishes.iter().map(|wish| (wish.name.to_owned(), Ok(vec![candidate(wish)]))).collect();
        let placed = spots.iter().map(|spot| placed(spot, wishes)).collect();
        self.placement = placement(placed);
    }

    /// All weights are on the hub, with digests.
    pub fn put_on_hub(&mut self) {
        for found in self.candidates.values_mut().flatten().flatten() {
            found.source = "hf:lab/coder".to_owned();
            found.origin = Origin::Hub { repository: "lab/coder".to_owned(), commit: COMMIT.to_owned() };
            found.files.iter_mut().for_each(|file| file.sha256 = Some("sha256:0".to_owned()));
        }
    }

    pub fn input(&self) -> PlanInput<'_> {
        PlanInput {
            desired: &self.desired,
            config_digest: Digest::of(b"config").to_string(),
            commit: Some("4f2a91c0d1e2f3a4b5c6d7e8f90112233445566".to_owned()),
            dirty: false,
            inventory: &self.inventory,
            observed: &self.observed,
            candidates: &self.candidates,
            placement: &self.placement,
            hub: HUB,
            egress: Vec::new(),
            limits: self.limits.clone(),
            drain: self.drain.clone(),
            pauses: Vec::new(),
            moment: self.moment,
            warnings: Vec::new(),
        }
    }

    pub fn plan(&self) -> Plan {
        plan(&self.input())
    }

    /// Plans, checks and applies.
    pub fn converge(&mut self) -> Plan {
        let plan = self.plan();
        let wrong = super::check(&plan, &self.inventory, &self.observed);
        assert!(wrong.is_empty(), "{wrong:?}\n{:#?}", plan.steps);
        self.apply(&plan);
        plan
    }

    /// Does what the steps say.
    pub fn apply(&mut self, plan: &Plan) {
        for step in &plan.steps {
            let left = step.from_node.clone().unwrap_or_else(|| step.node.clone());
            if let (Verb::Change | Verb::Move | Verb::Restart, Some(from)) = (step.verb, &step.from_instance) {
                self.remove(&left, from);
            }
            match step.verb {
                Verb::Fetch => {
                    let fetch = step.fetch.as_ref().unwrap();
                    let node = self.node(&step.node);
                    node.weights.retain(|w| w.revision != fetch.fetch.revision);
                    node.weights.push(WeightsFound {
                        source: fetch.fetch.source.clone(),
                        revision: fetch.fetch.revision.clone(),
                        path: Some(fetch.fetch.folder.clone()),
                        files: fetch.fetch.files.iter().map(|file| file.name.clone()).collect(),
                        size_bytes: step.download_bytes,
                        complete: true,
                        sha256: None,
                        architecture: None,
                        variants: Vec::new(),
                        problem: None,
                    });
                }
                Verb::Adopt => self.node(&step.node).agent.as_mut().unwrap().supervising = true,
                Verb::Stop => self.remove(&step.node, step.instance.as_ref().unwrap()),
                Verb::Start | Verb::Change | Verb::Move | Verb::Restart => {
                    let id = step.instance.as_ref().unwrap();
                    self.remove(&step.node, id);
                    let spec = &plan.instances.iter().find(|i| i.instance == *id).unwrap().spec;
                    self.run(&step.node, spec);
                    self.node(&step.node).agent.as_mut().unwrap().supervising = true;
                }
            }
        }
    }

    pub fn node(&mut self, name: &str) -> &mut NodeFacts {
        self.inventory.nodes.iter_mut().find(|node| node.name == name).unwrap()
    }

    pub fn instance(&mut self, model: &str) -> &mut InstanceFacts {
        self.inventory.nodes.iter_mut().flat_map(|n| &mut n.instances).find(|i| i.model == model).unwrap()
    }

    fn run(&mut self, node: &str, spec: &InstanceSpec) {
        self.observed.entry(node.to_owned()).or_default().push(spec.clone());
        self.node(node).instances.push(InstanceFacts {
            instance: spec.instance.clone(),
            specification: spec.specification.clone(),
            model: spec.model.clone(),
            replica: spec.replica,
            engine: spec.engine,
            variant: spec.variant.clone(),
            accelerators: spec.accelerators.clone(),
            layers: spec.sized_for.as_ref().map(|sized| sized.layers.clone()).unwrap_or_default(),
            port: spec.port,
            state: InstanceState::Ready,
            running: true,
            pid: Some(1000),
            host_bytes: None,
            last_failure: None,
            starts: 1,
            since: Some("2026-01-02T03:04:05Z".to_owned()),
            live_sessions: 0,
            load_ms: Some(19_200),
            measured: None,
            part: spec.part.clone(),
        });
    }

    fn remove(&mut self, node: &str, instance: &str) {
        self.node(node).instances.retain(|i| i.instance != instance);
        self.observed.entry(node.to_owned()).or_default().retain(|s| s.instance != instance);
    }

    /// An engine that died and is not started again.
    pub fn fail(&mut self, model: &str) {
        let facts = self.instance(model);
        facts.state = InstanceState::Failed;
        facts.running = false;
        facts.pid = None;
        facts.last_failure = Some(Failure {
            cause: "out_of_memory".to_owned(),
            text: "CUDA out of memory".to_owned(),
            at: "2026-01-02T04:00:00Z".to_owned(),
            gave_up: true,
        });
    }
}

fn facts(name: &str, cards: u32) -> NodeFacts {
    let card = |index| Accelerator {
        uuid: uuid(name, index),
        index,
        vendor: "nvidia".to_owned(),
        name: "NVIDIA GeForce RTX 4090".to_owned(),
        memory: AcceleratorMemory {
            total_bytes: Some(24 * GIB),
            free_bytes: Some(23 * GIB),
            used_bytes: Some(GIB / 2),
            reserved_bytes: Some(GIB / 2),
            unified: false,
            ..Default::default()
        },
        healthy: true,
        ..Default::default()
    };
    NodeFacts {
        name: name.to_owned(),
        reachable: true,
        generation: 3,
        home: Some("/home/flock".to_owned()),
        accelerators: (0..cards).map(card).collect(),
        agent: Some(AgentFacts { version: "0.1.0".to_owned(), supervising: true }),
        ..Default::default()
    }
}

fn node(name: &str) -> Node {
    Node {
        name: spanned(name.to_owned(), 3),
        connection: Connection::Ssh { address: spanned(format!("10.0.0.{}", name.len()), 3) },
        ssh: SshSettings::default(),
        labels: BTreeMap::from([("tier".to_owned(), "consumer".to_owned())]),
        reserve: Reserve::default(),
        weights_path: None,
        hold: None,
        ports: (20000, 20999),
        extras: Default::default(),
    }
}

fn model(wish: &Wish) -> Model {
    Model {
        name: spanned(wish.name.to_owned(), wish.line),
        source: Some(spanned(Source::Path(format!("models/{}", wish.name)), wish.line + 1)),
        variants: Vec::new(),
        engines: Vec::new(),
        context: Some(spanned(wish.context, wish.line + 2)),
        concurrency: spanned(2, wish.line + 3),
        min_quality: None,
        kv_dtype: None,
        replicas: Replicas { min: wish.replicas.min(1), max: wish.replicas },
        priority: Priority { name: None, rank: wish.rank, preempts: wish.rank > 0 },
        place: PlaceRules::default(),
        arguments: Vec::new(),
        env: BTreeMap::new(),
        extras: Default::default(),
    }
}

fn candidate(wish: &Wish) -> Candidate {
    let bytes = 4 * GIB;
    Candidate {
        label: wish.variant.to_owned(),
        source: format!("path:models/{}", wish.name),
        variant: Variant {
            id: wish.variant.to_owned(),
            quality: "awq-int4".parse().unwrap(),
            format: WeightFormat::Safetensors,
            start_file: None,
            files: Vec::new(),
            download_bytes: bytes,
            tensors: Tensors::default(),
            architecture: architecture(),
            quantisation: None,
            projector: None,
            notes: Vec::new(),
        },
        revision: Digest::of(format!("{} {} {}", wish.name, wish.variant, wish.weights).as_bytes()).to_string(),
        files: vec![FetchFile { name: "model.safetensors".to_owned(), size_bytes: bytes, sha256: None }],
        projector: None,
        origin: Origin::Controller { folder: format!("/srv/models/{}", wish.name) },
        gated: None,
    }
}

fn architecture() -> Architecture {
    Architecture {
        name: "llama".to_owned(),
        layers: 32,
        hidden: 4096,
        heads: PerLayer::All(32),
        kv_heads: PerLayer::All(8),
        head_dim_k: 128,
        head_dim_v: 128,
        intermediate: Some(14336),
        moe_intermediate: None,
        experts: None,
        experts_per_token: None,
        vocab: 32000,
        trained_context: Some(131072),
        tied: false,
        sliding: None,
        mla: None,
        constant_state: None,
        vision_heads: None,
        known: true,
    }
}

fn placed((name, replica, node, cards, gib): &Spot, wishes: &[Wish]) -> Placed {
    let wish = wishes.iter().find(|wish| wish.name == *name).unwrap();
    let memory = PlacedMemory {
        weights_bytes: gib * GIB * 3 / 4,
        kv_bytes: gib * GIB / 8,
        overhead_bytes: gib * GIB / 8,
        capacity_bytes: CAPACITY,
        device_total_bytes: 24 * GIB,
    };
    Placed {
        model: (*name).to_owned(),
        replica: *replica,
        node: (*node).to_owned(),
        engine: EngineKind::Vllm,
        engine_version: Some("0.11.0".to_owned()),
        program: "/opt/vllm/bin/vllm".to_owned(),
        candidate: 0,
        accelerators: cards.iter().map(|index| uuid(node, *index)).collect(),
        tensor_parallel: cards.len() as u32,
        pipeline_parallel: 1,
        context: wish.context,
        layers: Vec::new(),
        held: None,
        vision: None,
        elsewhere: Vec::new(),
        per_accelerator: vec![memory; cards.len()],
        host: PlacedMemory { overhead_bytes: GIB, capacity_bytes: 100 * GIB, ..Default::default() },
        because: "best quality that fits".to_owned(),
        better: Vec::new(),
    }
}

fn placement(instances: Vec<Placed>) -> Placement {
    Placement {
        alike: Vec::new(),
        instances,
        egress: Vec::new(),
        unplaced: Vec::new(),
        solver: SolverReport {
            status: "optimal".to_owned(),
            gap: 0.0,
            tiers: Vec::new(),
            seed: 0,
            deterministic: true,
        },
        considered: Vec::new(),
        variants: Vec::new(),
        victims: Vec::new(),
        notes: Vec::new(),
    }
}
