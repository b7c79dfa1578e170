//! Changes to what a placement is made from: what would have to be otherwise, and what is in the way.
//!
//! Each is a value that is applied to copies of the desired state and of the facts, so that what is said of it can be
//! solved and not guessed.

use crate::base::{Bytes, GIB, format_bytes};
use crate::config::{Desired, Replicas};
use crate::inventory::{Inventory, NodeFacts};

/// Memory that no model needs: a node that gets it is no limit any more.
const ENDLESS: u64 = 4096 * GIB;

/// A range that no model needs.
const PORTS: (u16, u16) = (20_000, 24_095);

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// More memory on these accelerators of a node.
    Memory {
        /// The node.
        node: String,
        /// Identities.
        accelerators: Vec<String>,
        /// Bytes more on each.
        bytes: u64,
    },
    /// More host memory.
    Host {
        /// The node.
        node: String,
        /// Bytes more.
        bytes: u64,
    },
    /// Accelerators of these nodes are no limit.
    EndlessMemory(Vec<String>),
    /// Host memory of these nodes is no limit.
    EndlessHost(Vec<String>),
    /// Disks of these nodes are no limit.
    EndlessDisk(Vec<String>),
    /// Ports of these nodes are no limit.
    EndlessPorts(Vec<String>),
    /// Nothing is reserved on accelerators of these nodes.
    NoReserve(Vec<String>),
    /// These nodes take new placements.
    NoHold(Vec<String>),
    /// A model wants one replica less.
    Fewer(String),
    /// A model is not there.
    Without(String),
    /// A model is not protected.
    NoProtection(String),
    /// A model does without one `require`.
    NoSelector(String, String),
    /// A model's replicas need not be spread.
    NoSpread(String),
    /// A model takes any variant.
    NoQuality(String),
    /// A model takes any engine.
    AnyEngine(String),
    /// A model may run on the CPU.
    Cpu(String),
    /// A model may displace what runs for lower ranks.
    Preempt(String),
    /// A model serves shorter requests.
    Context(String, u64),
    /// A quota does not hold.
    NoQuota(String),
    /// A denial does not hold.
    NoDenial(String),
    /// Traffic that is declared between two agents of a workflow has no `max-latency`.
    NoLatencyLimit {
        /// The workflow.
        workflow: String,
        /// The agent that sends.
        from: String,
        /// The agent that receives.
        to: String,
    },
    /// More accelerators like one of a node, in that node.
    Accelerators {
        /// The node.
        node: String,
        /// Identity of the one that they are like.
        like: String,
        /// How many.
        count: u32,
    },
    /// One more node like this one, empty.
    Node(String),
}

impl Change {
    /// Changes the inputs. What it names and is not there changes nothing.
    pub fn apply(&self, desired: &mut Desired, inventory: &mut Inventory) {
        match self {
            Self::Memory { node, accelerators, bytes } => {
                grow(desired, inventory, node, *bytes, |uuid| accelerators.iter().any(|one| one == uuid));
            }
            Self::Host { node, bytes } => more_host(inventory, node, *bytes),
            Self::EndlessMemory(nodes) => nodes.iter().for_each(|n| grow(desired, inventory, n, ENDLESS, |_| true)),
            Self::EndlessHost(nodes) => nodes.iter().for_each(|node| more_host(inventory, node, ENDLESS)),
            Self::EndlessDisk(nodes) => {
                for node in inventory.nodes.iter_mut().filter(|node| nodes.contains(&node.name)) {
                    node.disks.iter_mut().for_each(|disk| disk.free_bytes = disk.free_bytes.saturating_add(ENDLESS));
                }
            }
            Self::EndlessPorts(nodes) => {
                desired.nodes.iter_mut().filter(|(name, _)| nodes.contains(name)).for_each(|node| node.1.ports = PORTS);
                let there = inventory.nodes.iter_mut().filter(|node| nodes.contains(&node.name));
                there.for_each(|node| node.ports_in_use.clear());
            }
            Self::NoReserve(nodes) => {
                for node in desired.nodes.iter_mut().filter(|(name, _)| nodes.contains(name)) {
                    node.1.reserve.vram = Some(Bytes(0));
                }
            }
            Self::NoHold(nodes) => {
                desired.nodes.iter_mut().filter(|(name, _)| nodes.contains(name)).for_each(|node| node.1.hold = None);
                inventory.member.holds.retain(|hold| !nodes.contains(&hold.node));
            }
            Self::Fewer(model) => {
                if let Some(model) = desired.models.get_mut(model) {
                    let max = model.replicas.max.saturating_sub(1);
                    model.replicas = Replicas { min: model.replicas.min.min(max), max };
                }
            }
            Self::Without(model) => {
                unprotect(desired, inventory, model);
                if let Some(model) = desired.models.get_mut(model) {
                    model.replicas = Replicas { min: 0, max: 0 };
                }
            }
            Self::NoProtection(model) => unprotect(desired, inventory, model),
            Self::NoQuota(name) => {
                desired.policies.quotas.remove(name);
            }
            Self::NoDenial(name) => {
                desired.policies.denials.remove(name);
            }
            Self::NoLatencyLimit { workflow, from, to } => {
                let declared = desired.workflows.get_mut(workflow).into_iter().flat_map(|found| &mut found.traffic);
                let same = declared.filter(|traffic| traffic.from.value == *from && traffic.to.value == *to);
                same.for_each(|traffic| traffic.max_latency = None);
            }
            Self::Accelerators { node, like, count } => more_accelerators(inventory, node, like, *count),
            Self::Node(like) => one_more_node(desired, inventory, like),
            Self::NoSelector(model, _)
            | Self::NoSpread(model)
            | Self::NoQuality(model)
            | Self::AnyEngine(model)
            | Self::Cpu(model)
            | Self::Preempt(model)
            | Self::Context(model, _) => {
                if let Some(model) = desired.models.get_mut(model) {
                    self.of_model(model);
                }
            }
        }
    }

    fn of_model(&self, model: &mut crate::config::Model) {
        match self {
            Self::NoSelector(_, label) => model.place.require.retain(|rule| rule.value.label != *label),
            Self::NoSpread(_) => model.place.spread_by = None,
            Self::NoQuality(_) => model.min_quality = None,
            Self::AnyEngine(_) => model.engines.clear(),
            Self::Cpu(_) => model.place.allow_cpu = true,
            Self::Preempt(_) => model.priority.preempts = true,
            Self::Context(_, tokens) => {
                let place = model.context.as_ref().map_or_else(|| model.name.place.clone(), |c| c.place.clone());
                model.context = Some(crate::base::Spanned::new(*tokens, place));
            }
            _ => {}
        }
    }

    /// The change as the beginning of a sentence: `with 3.2 GiB more on ada-1`.
    pub fn words(&self) -> String {
        match self {
            Self::Memory { node, accelerators, bytes } => {
                let on = match accelerators.len() {
                    1 => " one accelerator of".to_owned(),
                    ranks => format!(" each of {ranks} accelerators of"),
                };
                format!("with {} more on{on} {node}", format_bytes(*bytes))
            }
            Self::Host { node, bytes } => format!("with {} more host memory on {node}", format_bytes(*bytes)),
            Self::EndlessMemory(nodes) => format!("with more memory on {}", nodes.join(", ")),
            Self::EndlessHost(nodes) => format!("with more host memory on {}", nodes.join(", ")),
            Self::EndlessDisk(nodes) => format!("with more disk on {}", nodes.join(", ")),
            Self::EndlessPorts(nodes) => format!("with a wider range of `ports` on {}", nodes.join(", ")),
            Self::NoReserve(nodes) => format!("without `reserve vram` on {}", nodes.join(", ")),
            Self::NoHold(nodes) => format!("with {} open for new placements", nodes.join(", ")),
            Self::Fewer(model) => format!("if `{model}` had one replica less"),
            Self::Without(model) => format!("without `{model}`"),
            Self::NoProtection(model) => format!("without the protection of `{model}`"),
            Self::NoSelector(_, label) => format!("without `require label=\"{label}\"`"),
            Self::NoSpread(_) => "without `spread`".to_owned(),
            Self::NoQuality(_) => "without `quality min`".to_owned(),
            Self::AnyEngine(_) => "with any engine".to_owned(),
            Self::Cpu(_) => "with `allow cpu=#true`".to_owned(),
            Self::Preempt(_) => "with `preempts=#true` for its priority class".to_owned(),
            Self::Context(_, tokens) => format!("with context {tokens}"),
            Self::NoQuota(name) => format!("without the quota `{name}`"),
            Self::NoDenial(name) => format!("without the denial `{name}`"),
            Self::NoLatencyLimit { workflow, from, to } => {
                format!("without `max-latency` between {from} and {to} of workflow {workflow}")
            }
            Self::Accelerators { node, count: 1, like: _ } => format!("with one more accelerator like those of {node}"),
            Self::Accelerators { node, count, like: _ } => {
                format!("with {count} more accelerators like those of {node}, in that node")
            }
            Self::Node(like) => format!("with one more node like {like}"),
        }
    }
}

fn unprotect(desired: &mut Desired, inventory: &mut Inventory, model: &str) {
    desired.policies.protect.retain(|protected| protected.value != model);
    inventory.member.protections.retain(|protection| protection.model != model);
}

/// Gives accelerators more memory: usable memory grows by as much.
fn grow(desired: &mut Desired, inventory: &mut Inventory, node: &str, bytes: u64, which: impl Fn(&str) -> bool) {
    let inherited = desired.cluster.reserve;
    let Some(facts) = inventory.nodes.iter_mut().find(|facts| facts.name == node) else { return };
    let mut pools = 0;
    let mut totals = Vec::new();
    for accelerator in facts.accelerators.iter_mut().filter(|accelerator| which(&accelerator.uuid)) {
        let memory = &mut accelerator.memory;
        totals.push(memory.total_bytes.unwrap_or(0));
        memory.total_bytes = memory.total_bytes.map(|total| total.saturating_add(bytes));
        memory.free_bytes = memory.free_bytes.map(|free| free.saturating_add(bytes));
        pools += usize::from(memory.unified);
    }
    if pools > 0 {
        more_host(inventory, node, bytes);
    }
    // The default reserve is a share of the total and must not grow with it.
    let configured = desired.nodes.get_mut(node).map(|node| &mut node.reserve);
    if let (Some(reserve), Some(total)) = (configured, totals.into_iter().max())
        && reserve.vram.or(inherited.vram).is_none()
    {
        reserve.vram = Some(crate::sizing::default_reserve_vram(total));
    }
}

fn more_host(inventory: &mut Inventory, node: &str, bytes: u64) {
    let Some(facts) = inventory.nodes.iter_mut().find(|facts| facts.name == node) else { return };
    let more = |known: Option<u64>| known.map(|known| known.saturating_add(bytes));
    (facts.ram.total_bytes, facts.ram.available_bytes) = (more(facts.ram.total_bytes), more(facts.ram.available_bytes));
}

fn more_accelerators(inventory: &mut Inventory, node: &str, like: &str, count: u32) {
    let Some(facts) = inventory.nodes.iter_mut().find(|facts| facts.name == node) else { return };
    let Some(mut one) = facts.accelerator(like).cloned() else { return };
    one.emptied();
    for _ in 0..count {
        let index = facts.accelerators.iter().map(|a| a.index).max().map_or(0, |most| most + 1);
        let number = facts.accelerators.len();
        facts.accelerators.push(crate::inventory::Accelerator {
            uuid: format!("what-if:{node}/{number}"),
            index,
            ..one.clone()
        });
    }
}

/// A name that sorts after the node it is like and that nothing has.
fn one_more_node(desired: &mut Desired, inventory: &mut Inventory, like: &str) {
    let taken = |name: &str| desired.nodes.contains_key(name) || inventory.node(name).is_some();
    let Some(name) = (1..).map(|number| format!("{like}+{number}")).find(|name| !taken(name)) else { return };
    let Some(facts) = inventory.node(like) else { return };
    let facts: NodeFacts = facts.like(&name, |_| true);
    inventory.nodes.push(facts);
    if let Some(mut node) = desired.nodes.get(like).cloned() {
        node.name.value.clone_from(&name);
        node.hold = None;
        desired.nodes.insert(name, node);
    }
}
