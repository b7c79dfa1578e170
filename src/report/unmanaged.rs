//! What holds accelerators or listens in flock's port ranges and is not flock's: `flock status --unmanaged`.

use serde::Serialize;

use super::style::{Style, clean, table};
use super::words::device_name;
use crate::base::{MIB, format_bytes};
use crate::inventory::{Accelerator, Inventory, Listener};

/// Memory in use that no process explains counts from here on: drivers and displays hold some.
const UNEXPLAINED: u64 = 512 * MIB;

/// `flock status --unmanaged --format json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Unmanaged {
    /// 1.
    pub format: u32,
    /// Cluster name.
    pub cluster: String,
    /// Holders of accelerator memory.
    pub accelerators: Vec<ForeignHolder>,
    /// Listeners in the nodes' port ranges.
    pub ports: Vec<ForeignListener>,
    /// Nodes that did not answer.
    pub unreachable: Vec<String>,
}

/// Something on an accelerator.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ForeignHolder {
    /// The node.
    pub node: String,
    /// The accelerator.
    pub uuid: String,
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Process id; `null` where memory is in use that no process explains.
    pub pid: Option<u32>,
    /// Whose it is.
    pub user: Option<String>,
    /// The program's name, never its arguments.
    pub command: Option<String>,
    /// Bytes held; `null` where the driver does not tell.
    pub used_bytes: Option<u64>,
}

/// Something on a port.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ForeignListener {
    /// The node.
    pub node: String,
    /// The TCP port.
    pub port: u16,
    /// Process id, where it can be looked into.
    pub pid: Option<u32>,
    /// Whose it is.
    pub user: Option<String>,
    /// The program's name.
    pub command: Option<String>,
}

/// What others run, in the order of the nodes.
pub fn unmanaged(cluster: &str, inventory: &Inventory, listeners: &[(String, Listener)]) -> Unmanaged {
    let mut accelerators = Vec::new();
    for node in inventory.nodes.iter().filter(|node| node.reachable) {
        for device in &node.accelerators {
            let holder = |pid, user: &Option<String>, command: &Option<String>, used_bytes| ForeignHolder {
                node: node.name.clone(),
                uuid: device.uuid.clone(),
                index: device.index,
                name: device.name.clone(),
                pid,
                user: user.clone(),
                command: command.clone(),
                used_bytes,
            };
            let foreign = device.processes.iter().filter(|process| !process.ours);
            accelerators.extend(foreign.map(|p| holder(Some(p.pid), &p.user, &p.command, p.used_bytes)));
            if let Some(bytes) = unexplained(device) {
                accelerators.push(holder(None, &None, &None, Some(bytes)));
            }
        }
    }
    let ports = listeners
        .iter()
        .filter(|(_, listener)| !listener.ours)
        .map(|(node, listener)| ForeignListener {
            node: node.clone(),
            port: listener.port,
            pid: listener.pid,
            user: listener.user.clone(),
            command: listener.command.clone(),
        })
        .collect();
    let unreachable = inventory.nodes.iter().filter(|node| !node.reachable).map(|node| node.name.clone()).collect();
    Unmanaged { format: 1, cluster: cluster.to_owned(), accelerators, ports, unreachable }
}

/// Bytes in use that no process of the driver's list explains; `None` where that cannot be told, or is little. A
/// unified pool is the host's and says nothing.
fn unexplained(device: &Accelerator) -> Option<u64> {
    let used = device.memory.used_bytes.filter(|_| !device.memory.unified)?;
    let known = device.processes.iter().map(|p| p.used_bytes).try_fold(0u64, |sum, b| Some(sum.saturating_add(b?)))?;
    Some(used.saturating_sub(known)).filter(|bytes| *bytes >= UNEXPLAINED)
}

/// The same as tables.
pub fn unmanaged_text(found: &Unmanaged, style: &Style) -> String {
    let or_unknown = |text: &Option<String>| text.as_deref().map_or_else(|| "?".to_owned(), clean);
    let pid = |pid: Option<u32>| pid.map_or_else(|| "?".to_owned(), |pid| pid.to_string());
    let mut out = String::new();
    let rows: Vec<Vec<String>> = found
        .accelerators
        .iter()
        .map(|holder| {
            let bytes = holder.used_bytes.map_or_else(|| "?".to_owned(), format_bytes);
            let place = format!("{}[{}]", holder.node, holder.index);
            let command = match holder.pid {
                Some(_) => or_unknown(&holder.command),
                None => "(in use, and no process of the driver's list holds it)".to_owned(),
            };
            let device = clean(device_name(&holder.name));
            vec![place, device, bytes, pid(holder.pid), or_unknown(&holder.user), command]
        })
        .collect();
    if !rows.is_empty() {
        out.push_str(&style.heading("Accelerators held by others"));
        out.push_str(&table(&["WHERE", "DEVICE", "HOLDS", "PID", "USER", "PROGRAM"], &rows));
    }
    let rows: Vec<Vec<String>> = found
        .ports
        .iter()
        .map(|port| {
            let (user, command) = (or_unknown(&port.user), or_unknown(&port.command));
            vec![port.node.clone(), port.port.to_string(), pid(port.pid), user, command]
        })
        .collect();
    if !rows.is_empty() {
        if !out.is_empty() {
            out.push('\n');
        }
        out.push_str(&style.heading("Ports of flock's ranges that others listen on"));
        out.push_str(&table(&["NODE", "PORT", "PID", "USER", "PROGRAM"], &rows));
    }
    if out.is_empty() {
        out.push_str("nothing that is not flock's holds an accelerator or a port of its ranges\n");
    } else {
        out.push_str("\nflock plans around all of this and never touches it.\n");
    }
    for node in &found.unreachable {
        out.push_str(&style.beside("", &format!("`{node}` is unreachable: what runs there is not known")));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::GIB;
    use crate::inventory::{AcceleratorMemory, AcceleratorProcess, NodeFacts};

    #[test]
    fn others_are_named_and_ours_are_not() {
        let process = |pid, ours| AcceleratorProcess {
            pid,
            used_bytes: Some(GIB),
            ours,
            user: Some("eve\u{1b}".into()),
            command: Some("python3".into()),
        };
        let device = Accelerator {
            uuid: "GPU-1".into(),
            name: "NVIDIA GeForce RTX 4090".into(),
            memory: AcceleratorMemory { used_bytes: Some(5 * GIB), ..Default::default() },
            processes: vec![process(7, true), process(8, false)],
            ..Default::default()
        };
        let node =
            NodeFacts { name: "ada-1".into(), reachable: true, accelerators: vec![device], ..Default::default() };
        let away = NodeFacts { name: "away".into(), ..Default::default() };
        let inventory = Inventory { format: 1, nodes: vec![node, away], ..Default::default() };
        let listener = |port, ours| Listener { port, ours, user: Some("0".into()), ..Default::default() };
        let listeners = [("ada-1".to_owned(), listener(20000, true)), ("ada-1".to_owned(), listener(20001, false))];
        let found = unmanaged("lab", &inventory, &listeners);
        let held: Vec<(Option<u32>, Option<u64>)> = found.accelerators.iter().map(|h| (h.pid, h.used_bytes)).collect();
        assert_eq!(held, [(Some(8), Some(GIB)), (None, Some(3 * GIB))]);
        assert_eq!(found.ports.iter().map(|p| p.port).collect::<Vec<_>>(), [20001]);
        let text = unmanaged_text(&found, &Style::PLAIN);
        for word in ["ada-1[0]", "RTX 4090", "eve?", "python3", "no process", "20001", "`away` is unreachable"] {
            assert!(text.contains(word), "{word} is not in {text}");
        }
    }
}
