//! Machines that are not there: facts of one that would be like another.

use super::{Accelerator, NodeFacts, WeightsFound};

impl Accelerator {
    /// Takes away everything that is in its memory: what it has is free but for the driver's share.
    pub fn emptied(&mut self) {
        self.processes.clear();
        self.healthy = true;
        self.unknown.remove("healthy");
        let memory = &mut self.memory;
        let driver = memory.reserved_bytes.filter(|_| !memory.unified).unwrap_or(0);
        memory.free_bytes = memory.total_bytes.map(|total| total.saturating_sub(driver));
        memory.used_bytes = memory.total_bytes.map(|_| 0);
    }
}

impl NodeFacts {
    /// A node of this name with the same hardware and software: reachable, empty and healthy, with identities of its
    /// own (`what-if:NAME/0`), and with those weights that `keep` says yes to.
    pub fn like(&self, name: &str, keep: impl Fn(&WeightsFound) -> bool) -> Self {
        let mut node = self.clone();
        name.clone_into(&mut node.name);
        node.reachable = true;
        node.unreachable_reason = None;
        node.generation = 0;
        node.instances.clear();
        node.ports_in_use.clear();
        node.calibrations.clear();
        node.weights.retain(keep);
        node.labels.remove("node");
        let identities: Vec<(String, String)> = node
            .accelerators
            .iter()
            .enumerate()
            .map(|(number, accelerator)| (accelerator.uuid.clone(), format!("what-if:{name}/{number}")))
            .collect();
        let renamed = |uuid: &str| identities.iter().find(|(old, _)| old == uuid).map(|(_, new)| new.clone());
        for accelerator in &mut node.accelerators {
            accelerator.emptied();
            accelerator.uuid = renamed(&accelerator.uuid).unwrap_or_default();
            if let Some(parent) = &accelerator.mig_parent {
                accelerator.mig_parent = Some(renamed(parent).unwrap_or_else(|| format!("what-if:{name}/{parent}")));
            }
        }
        for link in &mut node.accelerator_links {
            for end in [&mut link.a, &mut link.b] {
                if let Some(new) = renamed(end) {
                    *end = new;
                }
            }
        }
        // Host memory that others use now would be free; what the kernel itself takes is not known.
        node.ram.available_bytes = node.ram.available_bytes.max(node.ram.total_bytes);
        for disk in &mut node.disks {
            disk.free_bytes = disk.free_bytes.max(disk.total_bytes);
        }
        node
    }
}

#[cfg(test)]
mod tests {
    use crate::inventory::parse_inventory;

    #[test]
    fn a_node_that_is_like_another_one_is_empty_and_healthy_and_itself() {
        let text = r#"{"format":1,"nodes":[{"name":"a","generation":7,"ports_in_use":[20000],
            "ram":{"total_bytes":100,"available_bytes":20},
            "accelerators":[
                {"uuid":"GPU-1","name":"x","healthy":false,"memory":{"total_bytes":24,"free_bytes":3,"used_bytes":20,"reserved_bytes":1},
                 "processes":[{"pid":9,"used_bytes":20}]},
                {"uuid":"MIG-1","name":"x","mig_parent":"GPU-1","memory":{"total_bytes":12}}],
            "accelerator_links":[{"a":"GPU-1","b":"MIG-1","kind":"nvlink"}],
            "disks":[{"path":"/","free_bytes":5,"total_bytes":50}],
            "weights":[{"source":"hf:o/m","revision":"r","files":[],"size_bytes":1},
                       {"source":"on-node:/d","revision":"r","files":[],"size_bytes":1}],
            "instances":[{"instance":"aa","specification":"sha256:0","model":"m","replica":0,"port":20000,
                "accelerators":["GPU-1"],"state":"ready"}]}]}"#;
        let inventory = parse_inventory(text).expect("valid");
        let node = inventory.nodes[0].like("b", |weights| weights.source.starts_with("on-node:"));
        assert_eq!((node.name.as_str(), node.generation, node.reachable), ("b", 0, true));
        assert!(node.instances.is_empty() && node.ports_in_use.is_empty());
        assert_eq!(node.weights.iter().map(|w| w.source.as_str()).collect::<Vec<_>>(), ["on-node:/d"]);
        let cards: Vec<_> = node.accelerators.iter().map(|a| (a.uuid.as_str(), a.healthy, a.processes.len())).collect();
        assert_eq!(cards, [("what-if:b/0", true, 0), ("what-if:b/1", true, 0)]);
        assert_eq!(node.accelerators[0].memory.free_bytes, Some(23), "all but what the driver keeps");
        assert_eq!(node.accelerators[1].mig_parent.as_deref(), Some("what-if:b/0"));
        let link = &node.accelerator_links[0];
        assert_eq!((link.a.as_str(), link.b.as_str()), ("what-if:b/0", "what-if:b/1"));
        assert_eq!((node.ram.available_bytes, node.disks[0].free_bytes), (Some(100), 50));
    }
}
