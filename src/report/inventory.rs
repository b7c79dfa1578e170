//! The inventory for people: nodes, accelerators, engines, weights, links, and what could not be learnt.

use super::style::{Style, clean, table};
use super::words::{bytes_of, device_name};
use crate::base::format_bytes;
use crate::inventory::{Accelerator, EgressLink, Inventory, NodeFacts, NodeLink};
use crate::sizing::specification;

/// What could not be learnt.
const UNKNOWN: &str = "?";

/// Fields of an accelerator whose absence concerns nobody who reads a table: the program's own file still says why.
const QUIET: &[&str] = &["ecc", "display", "pci", "driver"];

/// The inventory as tables.
pub fn inventory_text(inventory: &Inventory, style: &Style) -> String {
    let mut out = String::new();
    let nodes: Vec<Vec<String>> = inventory.nodes.iter().map(node_row).collect();
    out.push_str(&table(&["NODE", "STATE", "ARCH", "CPU", "RAM FREE", "DISK FREE", "AGENT"], &nodes));
    // Reasons are sentences: in a column they would push everything else off the screen.
    for node in inventory.nodes.iter().filter(|node| !node.reachable) {
        let why = node.unreachable_reason.as_deref().map_or_else(|| "no reason is recorded".to_owned(), clean);
        out.push_str(&style.beside(&format!("  {}: ", node.name), &why));
    }
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
    let links: Vec<Vec<String>> = inventory.links.iter().map(link_row).collect();
    section(&mut out, style, "Links", &["FROM", "TO", "ROUND TRIP", "BANDWIDTH", "MEASURED"], &links);
    let egress: Vec<Vec<String>> = inventory.egress.iter().map(egress_row).collect();
    section(&mut out, style, "Ways out", &["NODE", "ENDPOINT", "CONNECTS IN", "MEASURED"], &egress);
    for (what, why) in unmeasured(inventory) {
        out.push_str(&style.beside(&format!("  {what}: "), &why));
    }
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
    let state = if node.reachable { "reachable" } else { "unreachable" }.to_owned();
    let cores = node.cpu.cores.map_or_else(unknown, |cores| format!("{cores} cores"));
    let ram = match (node.ram.available_bytes, node.ram.total_bytes) {
        (Some(free), Some(total)) => bytes_of(free, total),
        _ => unknown(),
    };
    let disk = disk_free(node).unwrap_or_else(unknown);
    let agent = match &node.agent {
        Some(agent) if agent.supervising => format!("{}, supervising", agent.version),
        Some(agent) => agent.version.clone(),
        None => unknown(),
    };
    let arch = node.arch.clone().unwrap_or_else(unknown);
    vec![node.name.clone(), state, arch, cores, ram, disk, agent]
}

/// What is free where weights go, and at home where that is another file system.
fn disk_free(node: &NodeFacts) -> Option<String> {
    let disk = |path: &Option<String>| node.disks.iter().find(|disk| Some(&disk.path) == path.as_ref());
    let home = disk(&node.home);
    let weights = disk(&node.weights_path).or_else(|| node.disks.last())?;
    let free = format_bytes(weights.free_bytes);
    // Two paths on one file system have one size, and the same room unless something was written in between.
    let other = home.filter(|home| {
        home.total_bytes != weights.total_bytes || home.free_bytes.abs_diff(weights.free_bytes) > home.total_bytes / 100
    });
    Some(other.map_or_else(|| free.clone(), |home| format!("{free} (home {})", format_bytes(home.free_bytes))))
}

fn link_row(link: &NodeLink) -> Vec<String> {
    let speed = link.bandwidth_bytes_per_s.map_or_else(|| UNKNOWN.to_owned(), |b| format!("{}/s", format_bytes(b)));
    let how = match (link.measured, link.age_ms) {
        (true, age) => ago(age),
        // What an agent tried and could not do is not what a hand-written inventory says.
        (false, Some(_)) if link.rtt_us.is_some() => "no, round trip through this machine".to_owned(),
        (false, Some(_)) => "no".to_owned(),
        (false, None) => "declared".to_owned(),
    };
    vec![link.from.clone(), link.to.clone(), milliseconds(link.rtt_us), speed, how]
}

fn egress_row(link: &EgressLink) -> Vec<String> {
    vec![link.node.clone(), clean(&link.endpoint), milliseconds(link.rtt_us), ago(link.age_ms)]
}

fn milliseconds(micros: Option<u64>) -> String {
    micros.map_or_else(|| UNKNOWN.to_owned(), |micros| format!("{:.2} ms", micros as f64 / 1000.0))
}

/// How old a figure is, in the largest unit that fits.
fn ago(age_ms: Option<u64>) -> String {
    let Some(seconds) = age_ms.map(|ms| ms / 1000) else { return "declared".to_owned() };
    match seconds {
        0..60 => "just now".to_owned(),
        60..3600 => format!("{} min ago", seconds / 60),
        3600..172_800 => format!("{} h ago", seconds / 3600),
        _ => format!("{} days ago", seconds / 86_400),
    }
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
        let published = specification(&device.name).is_some_and(|row| row.bandwidth_bytes_per_s.is_some());
        let tells = move |field: &str| match field {
            // Said in the table of accelerators already.
            "healthy" => false,
            // Planning takes the published figure.
            "bandwidth_bytes_per_s" => !published && device.healthy,
            field => !QUIET.contains(&field),
        };
        let rows = device.unknown.iter().filter(move |(field, _)| tells(field));
        rows.map(|(field, why)| vec![node.name.clone(), format!("accelerator {} {field}", device.index), clean(why)])
    });
    own.chain(of_devices).collect()
}

/// Links and providers that could not be measured, with the reason.
fn unmeasured(inventory: &Inventory) -> Vec<(String, String)> {
    let links = inventory.links.iter().filter(|link| !link.measured && link.age_ms.is_some()).filter_map(|link| {
        let why = link.unknown.get("bandwidth_bytes_per_s")?;
        Some((format!("{} - {}", link.from, link.to), clean(why)))
    });
    let egress = inventory.egress.iter().filter_map(|link| {
        let why = link.unknown.get("rtt_us")?;
        Some((format!("{} - {}", link.node, clean(&link.endpoint)), clean(why)))
    });
    links.chain(egress).collect()
}
