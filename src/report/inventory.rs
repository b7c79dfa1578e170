//! The inventory for people: nodes, accelerators, engines, weights, links, and what could not be learnt.

use super::style::{Style, clean, table};
use super::words::{bytes_of, device_name};
use crate::base::format_bytes;
use crate::inventory::{Accelerator, Inventory, NodeFacts};

/// What could not be learnt.
const UNKNOWN: &str = "?";

/// The inventory as tables.
pub fn inventory_text(inventory: &Inventory, style: &Style) -> String {
    let mut out = String::new();
    let nodes: Vec<Vec<String>> = inventory.nodes.iter().map(node_row).collect();
    out.push_str(&table(&["NODE", "STATE", "ARCH", "CPU", "RAM FREE", "DISK FREE", "AGENT"], &nodes));
    let devices: Vec<Vec<String>> = inventory
        .nodes
        .iter()
        .flat_map(|node| node.accelerators.iter().map(|device| device_row(node, device)))
        .collect();
    section(
        &mut out,
        style,
        "Accelerators",
        &["NODE", "#", "NAME", "FREE", "DRIVER", "CAPABILITY", "STATE", "UUID"],
        &devices,
    );
    let engines: Vec<Vec<String>> = inventory
        .nodes
        .iter()
        .flat_map(|node| {
            node.engines.iter().flatten().map(|engine| {
                let version = engine.version.clone().unwrap_or_else(|| UNKNOWN.to_owned());
                let problem = engine.problem.as_deref().map(clean).unwrap_or_default();
                vec![node.name.clone(), engine.kind.to_string(), version, engine.path.clone(), problem]
            })
        })
        .collect();
    section(&mut out, style, "Engines", &["NODE", "ENGINE", "VERSION", "PATH", ""], &engines);
    let weights: Vec<Vec<String>> = inventory
        .nodes
        .iter()
        .flat_map(|node| {
            node.weights.iter().map(|weights| {
                let state = match (&weights.problem, weights.complete) {
                    (Some(problem), _) => clean(problem),
                    (None, true) => "complete".to_owned(),
                    (None, false) => "not checked".to_owned(),
                };
                vec![node.name.clone(), weights.source.clone(), format_bytes(weights.size_bytes), state]
            })
        })
        .collect();
    section(&mut out, style, "Weights", &["NODE", "SOURCE", "SIZE", "STATE"], &weights);
    let links: Vec<Vec<String>> = inventory
        .links
        .iter()
        .map(|link| {
            let rtt = link.rtt_us.map_or_else(|| UNKNOWN.to_owned(), |us| format!("{:.2} ms", us as f64 / 1000.0));
            let speed =
                link.bandwidth_bytes_per_s.map_or_else(|| UNKNOWN.to_owned(), |b| format!("{}/s", format_bytes(b)));
            vec![
                link.from.clone(),
                link.to.clone(),
                rtt,
                speed,
                if link.measured { "measured" } else { "declared" }.to_owned(),
            ]
        })
        .collect();
    section(&mut out, style, "Links", &["FROM", "TO", "ROUND TRIP", "BANDWIDTH", ""], &links);
    let unknown: Vec<Vec<String>> = inventory.nodes.iter().flat_map(unknown_rows).collect();
    section(&mut out, style, "Not known", &["NODE", "FIELD", "WHY"], &unknown);
    out
}

fn section(out: &mut String, style: &Style, title: &str, head: &[&str], rows: &[Vec<String>]) {
    if !rows.is_empty() {
        out.push('\n');
        out.push_str(&style.heading(&format!("{title} ({})", rows.len())));
        out.push_str(&table(head, rows));
    }
}

fn node_row(node: &NodeFacts) -> Vec<String> {
    let unknown = || UNKNOWN.to_owned();
    let state = match (node.reachable, &node.unreachable_reason) {
        (true, _) => "reachable".to_owned(),
        (false, Some(why)) => format!("unreachable: {}", clean(why)),
        (false, None) => "unreachable".to_owned(),
    };
    let cores = node.cpu.cores.map_or_else(unknown, |cores| format!("{cores} cores"));
    let ram = match (node.ram.available_bytes, node.ram.total_bytes) {
        (Some(free), Some(total)) => bytes_of(free, total),
        _ => unknown(),
    };
    let disk = node.disks.iter().map(|disk| format_bytes(disk.free_bytes)).next().unwrap_or_else(unknown);
    let agent = match &node.agent {
        Some(agent) if agent.supervising => format!("{}, supervising", agent.version),
        Some(agent) => agent.version.clone(),
        None => unknown(),
    };
    let arch = node.arch.clone().unwrap_or_else(unknown);
    vec![node.name.clone(), state, arch, cores, ram, disk, agent]
}

fn device_row(node: &NodeFacts, device: &Accelerator) -> Vec<String> {
    let unknown = || UNKNOWN.to_owned();
    let free = match (device.memory.free_bytes, device.memory.total_bytes) {
        (Some(free), Some(total)) => bytes_of(free, total),
        (None, Some(total)) => format!("? of {}", format_bytes(total)),
        _ => unknown(),
    };
    let foreign: Vec<_> = device.processes.iter().filter(|process| !process.ours).collect();
    let state = match (device.healthy, device.unknown.get("healthy")) {
        (true, _) if foreign.is_empty() => "healthy".to_owned(),
        (true, _) => format!("healthy, {} foreign", foreign.len()),
        (false, Some(why)) => format!("unhealthy: {}", clean(why)),
        (false, None) => "unhealthy".to_owned(),
    };
    vec![
        node.name.clone(),
        device.index.to_string(),
        device_name(&device.name).to_owned(),
        free,
        device.driver.clone().unwrap_or_else(unknown),
        device.compute_capability.clone().unwrap_or_else(unknown),
        state,
        device.uuid.clone(),
    ]
}

fn unknown_rows(node: &NodeFacts) -> Vec<Vec<String>> {
    let own = node.unknown.iter().map(|(field, why)| vec![node.name.clone(), field.clone(), clean(why)]);
    let of_devices = node.accelerators.iter().flat_map(|device| {
        device
            .unknown
            .iter()
            .map(|(field, why)| vec![node.name.clone(), format!("accelerator {} {field}", device.index), clean(why)])
    });
    own.chain(of_devices).collect()
}
