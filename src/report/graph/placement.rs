//! Models, their instances as planned, and the accelerators they are on.

use std::collections::{BTreeMap, BTreeSet};

use super::Graph;
use super::hardware::running;
use crate::inventory::Inventory;
use crate::plan::{Observed, Plan, PlannedInstance, Verb};
use crate::report::held_back::{HeldBack, Stays, held_back};
use crate::report::words::{bytes_of, count, device_name};

/// The placement that a plan is made for, each instance with what is to happen to it; what the plan stops is drawn too.
pub fn placement_graph(plan: &Plan, inventory: &Inventory, observed: &[Observed]) -> Graph {
    let mut graph = Graph::new("placement", &plan.cluster);
    let stops: Vec<&Observed> = observed.iter().filter(|o| is_stopped(plan, o)).collect();
    let held = held_back(plan, observed);
    let stays: Vec<(&HeldBack<'_>, &Stays<'_>)> = held.iter().filter_map(|held| elsewhere(plan, held)).collect();
    let models: BTreeSet<&str> = plan
        .instances
        .iter()
        .map(|planned| planned.model.as_str())
        .chain(plan.egress.iter().map(|way| way.provider_model.as_str()))
        .chain(plan.unplaced.iter().map(|unplaced| unplaced.model.as_str()))
        .chain(stops.iter().map(|o| o.model.as_str()))
        .collect();
    for model in models {
        graph.vertex(format!("model/{model}"), "model", None, model.to_owned(), Vec::new());
    }
    let nodes: BTreeSet<&str> = plan
        .instances
        .iter()
        .map(|p| p.node.as_str())
        .chain(stops.iter().map(|o| o.node.as_str()))
        .chain(stays.iter().map(|(_, stays)| stays.node))
        .chain(plan.egress.iter().map(|way| way.node.as_str()))
        .collect();
    for node in nodes {
        graph.group(format!("node/{node}"), node, Vec::new());
    }
    let mut devices: BTreeMap<(&str, &str), Vec<&PlannedInstance>> = BTreeMap::new();
    for planned in &plan.instances {
        let id = instance(&planned.instance, &planned.node);
        let (label, state) = (format!("{}/{}", planned.model, planned.replica), state(plan, planned, observed, &held));
        let shape = format!("{} {}", planned.engine, planned.variant);
        graph.vertex(id.clone(), "instance", Some(format!("node/{}", planned.node)), label, vec![shape, state]);
        graph.arrow(format!("model/{}", planned.model), id, "instance", None);
        for uuid in &planned.accelerators {
            devices.entry((&planned.node, uuid)).or_default().push(planned);
        }
    }
    for stopped in &stops {
        let id = instance(&stopped.instance, &stopped.node);
        let lines = vec![format!("{} {}", stopped.engine, stopped.variant), "to stop".to_owned()];
        let (group, label) = (format!("node/{}", stopped.node), format!("{}/{}", stopped.model, stopped.replica));
        graph.vertex(id.clone(), "instance", Some(group), label, lines);
        graph.arrow(format!("model/{}", stopped.model), id, "instance", None);
        for uuid in &stopped.accelerators {
            devices.entry((&stopped.node, uuid)).or_default();
        }
    }
    for (held, stays) in &stays {
        let id = instance(stays.instance, stays.node);
        let (group, label) = (format!("node/{}", stays.node), format!("{}/{}", held.model, held.replica));
        graph.vertex(id.clone(), "instance", Some(group), label, vec![format!("runs and stays: {}", held.why)]);
        graph.arrow(format!("model/{}", held.model), id, "instance", None);
        for uuid in stays.accelerators {
            devices.entry((stays.node, uuid)).or_default();
        }
    }
    for ((node, uuid), planned) in &devices {
        accelerator(&mut graph, inventory, node, uuid, planned);
    }
    for planned in &plan.instances {
        for uuid in &planned.accelerators {
            graph.arrow(instance(&planned.instance, &planned.node), format!("accelerator/{uuid}"), "on", None);
        }
    }
    for stopped in &stops {
        for uuid in &stopped.accelerators {
            graph.arrow(instance(&stopped.instance, &stopped.node), format!("accelerator/{uuid}"), "on", None);
        }
    }
    for (_, stays) in &stays {
        for uuid in stays.accelerators {
            graph.arrow(instance(stays.instance, stays.node), format!("accelerator/{uuid}"), "on", None);
        }
    }
    for way in crate::report::egress::ways(plan) {
        let egress = way.egress;
        let id = format!("egress/{}@{}", egress.provider_model, egress.node);
        let label = format!("way out to {}", egress.endpoint);
        let agents = if way.agents.is_empty() { None } else { Some(format!("for {}", way.agents.join(", "))) };
        let connects = format!("connects in {}", crate::report::egress::ms(egress.rtt_us));
        let lines = agents.into_iter().chain([connects]).collect();
        if !graph.nodes.iter().any(|vertex| vertex.id == id) {
            graph.vertex(id.clone(), "egress", Some(format!("node/{}", egress.node)), label, lines);
            graph.arrow(format!("model/{}", egress.provider_model), id, "egress", None);
        }
    }
    for unplaced in &plan.unplaced {
        let id = format!("unplaced/{}", unplaced.model);
        let label = match crate::report::egress::is_way_out(unplaced) {
            true => format!("{}: no egress node", unplaced.model),
            false => format!("{}: {} not placed", unplaced.model, count(unplaced.replicas as usize, "replica")),
        };
        let lines = Some(unplaced.nearest.clone()).filter(|nearest| !nearest.is_empty()).into_iter().collect();
        graph.vertex(id.clone(), "unplaced", None, label, lines);
        graph.arrow(format!("model/{}", unplaced.model), id, "instance", None);
    }
    graph
}

/// Two nodes may hold an instance of the same id while it moves.
fn instance(id: &str, node: &str) -> String {
    format!("instance/{id}@{node}")
}

fn is_stopped(plan: &Plan, o: &Observed) -> bool {
    plan.steps.iter().any(|step| match step.verb {
        Verb::Stop => step.node == o.node && step.instance.as_ref() == Some(&o.instance),
        Verb::Move => step.from_node.as_ref() == Some(&o.node) && step.from_instance.as_ref() == Some(&o.instance),
        _ => false,
    })
}

/// What stays, where it is another instance than any that is planned.
fn elsewhere<'h>(plan: &Plan, held: &'h HeldBack<'h>) -> Option<(&'h HeldBack<'h>, &'h Stays<'h>)> {
    let stays = held.stays.as_ref()?;
    let planned = plan.instances.iter().any(|p| (p.instance.as_str(), p.node.as_str()) == (stays.instance, stays.node));
    (!planned).then_some((held, stays))
}

fn state(plan: &Plan, planned: &PlannedInstance, observed: &[Observed], held: &[HeldBack<'_>]) -> String {
    let step = plan.steps.iter().find(|step| {
        step.verb != Verb::Stop && step.node == planned.node && step.instance.as_ref() == Some(&planned.instance)
    });
    if let Some(step) = step {
        return format!("to {}", crate::report::words::verb(step.verb).1);
    }
    if let Some(held) = held.iter().find(|held| held.is(planned)) {
        let state = if held.stays.as_ref().is_some_and(|stays| stays.node == held.node) {
            "stays as it is"
        } else {
            "not begun"
        };
        return format!("{state}: {}", held.why);
    }
    let found = observed.iter().find(|o| o.instance == planned.instance && o.node == planned.node);
    found.map_or_else(
        || "not begun".to_owned(),
        |o| running(o).split_once(' ').map_or("", |(_, state)| state).to_owned(),
    )
}

fn accelerator(graph: &mut Graph, inventory: &Inventory, node: &str, uuid: &str, planned: &[&PlannedInstance]) {
    let device = inventory.node(node).and_then(|facts| facts.accelerator(uuid));
    let label = device.map_or_else(|| uuid.to_owned(), |d| format!("{}: {}", d.index, device_name(&d.name)));
    let figures =
        planned.iter().flat_map(|p| &p.memory.per_accelerator).filter(|figure| figure.uuid == uuid).collect::<Vec<_>>();
    let total = figures.iter().map(|figure| figure.total_bytes).fold(0, u64::saturating_add);
    let capacity = figures.iter().map(|figure| figure.capacity_bytes).max().unwrap_or(0);
    let lines = if capacity > 0 { vec![format!("{} planned", bytes_of(total, capacity))] } else { Vec::new() };
    graph.vertex(format!("accelerator/{uuid}"), "accelerator", Some(format!("node/{node}")), label, lines);
}
