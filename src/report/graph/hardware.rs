//! Machines, their accelerators, what runs on them and how full they are, and the links between.

use std::collections::BTreeSet;

use super::Graph;
use crate::base::{InstanceState, format_bytes};
use crate::config::Desired;
use crate::inventory::{Accelerator, Inventory, NodeFacts};
use crate::plan::Observed;
use crate::report::status::{held_nodes, held_text};
use crate::report::words::{bytes_of, count, device_name};

/// The hardware graph.
pub fn hardware_graph(desired: &Desired, inventory: &Inventory, observed: &[Observed]) -> Graph {
    let mut graph = Graph::new("hardware", &desired.cluster.name.value);
    let held = held_nodes(desired, inventory);
    for node in &inventory.nodes {
        let group = format!("node/{}", node.name);
        let mut lines = about(node);
        lines.extend(held.iter().filter(|held| held.node == node.name).map(held_text));
        graph.group(group.clone(), &node.name, lines);
        // Of a GPU that is cut into slices, the slices are drawn.
        let cut: BTreeSet<&String> = node.accelerators.iter().filter_map(|a| a.mig_parent.as_ref()).collect();
        for device in node.accelerators.iter().filter(|device| !cut.contains(&device.uuid)) {
            let label = format!("{}: {}", device.index, device_name(&device.name));
            let lines = on_device(device, node, observed);
            graph.vertex(format!("accelerator/{}", device.uuid), "accelerator", Some(group.clone()), label, lines);
        }
        let on_cpu: Vec<String> =
            observed.iter().filter(|o| o.node == node.name && o.accelerators.is_empty()).map(running).collect();
        if node.accelerators.is_empty() || !on_cpu.is_empty() {
            graph.vertex(format!("host/{}", node.name), "host", Some(group), "CPU".to_owned(), on_cpu);
        }
    }
    links(&mut graph, inventory);
    graph
}

fn about(node: &NodeFacts) -> Vec<String> {
    let mut lines = Vec::new();
    if !node.reachable {
        let why = node.unreachable_reason.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        lines.push(format!("unreachable{why}"));
    }
    if let Some(model) = &node.cpu.model {
        lines.push(model.clone());
    }
    if let (Some(free), Some(total)) = (node.ram.available_bytes, node.ram.total_bytes) {
        lines.push(format!("RAM {} free", bytes_of(free, total)));
    }
    lines
}

fn on_device(device: &Accelerator, node: &NodeFacts, observed: &[Observed]) -> Vec<String> {
    let mut lines = Vec::new();
    let memory = &device.memory;
    let used = memory.used_bytes.or_else(|| memory.total_bytes?.checked_sub(memory.free_bytes?));
    lines.push(match (used, memory.total_bytes) {
        (Some(used), Some(total)) if total > 0 => {
            format!("{} used ({} %)", bytes_of(used, total), used.saturating_mul(100) / total)
        }
        (None, Some(total)) => format!("{}, use not known", format_bytes(total)),
        _ => "memory not known".to_owned(),
    });
    if !device.healthy {
        let why = device.unknown.get("healthy").map(|why| format!(": {why}")).unwrap_or_default();
        lines.push(format!("unhealthy{why}"));
    }
    lines.extend(observed.iter().filter(|o| o.node == node.name && o.accelerators.contains(&device.uuid)).map(running));
    let foreign = device.processes.iter().filter(|process| !process.ours).count();
    if foreign > 0 {
        let noun = if foreign == 1 { "process" } else { "processes" };
        lines.push(format!("{foreign} {noun} of others"));
    }
    lines
}

/// `coder/0 ready`.
pub(super) fn running(o: &Observed) -> String {
    let state = match o.state {
        Some(InstanceState::Ready) if !o.alive => "missing",
        Some(state) => state.word(),
        None => "missing",
    };
    let sessions = if o.sessions > 0 { format!(", {}", count(o.sessions as usize, "session")) } else { String::new() };
    format!("{}/{} {state}{sessions}", o.model, o.replica)
}

fn links(graph: &mut Graph, inventory: &Inventory) {
    let drawn: BTreeSet<String> = graph.nodes.iter().map(|vertex| vertex.id.clone()).collect();
    for link in inventory.nodes.iter().flat_map(|node| &node.accelerator_links) {
        let (a, b) = (format!("accelerator/{}", link.a), format!("accelerator/{}", link.b));
        if drawn.contains(&a) && drawn.contains(&b) {
            let speed = link.bandwidth_bytes_per_s.map(|bytes| format!(" {}/s", format_bytes(bytes)));
            let label = format!("{}{}", link.kind, speed.unwrap_or_default());
            graph.line(a, b, &link.kind, Some(label));
        }
    }
    let known: BTreeSet<&String> = inventory.nodes.iter().map(|node| &node.name).collect();
    for link in inventory.links.iter().filter(|link| known.contains(&link.from) && known.contains(&link.to)) {
        let rtt = link.rtt_us.map(|us| format!("{:.2} ms", us as f64 / 1000.0));
        let speed = link.bandwidth_bytes_per_s.map(|bytes| format!("{}/s", format_bytes(bytes)));
        let words: Vec<String> = [speed, rtt].into_iter().flatten().collect();
        let label = (!words.is_empty()).then(|| words.join(", "));
        graph.line(format!("node/{}", link.from), format!("node/{}", link.to), "link", label);
    }
}
