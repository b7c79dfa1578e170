//! AMD's compute driver in sysfs: which GPUs ROCm sees, in its order, and who holds their memory.
//!
//! Source: the kernel's `drivers/gpu/drm/amd/amdkfd/kfd_topology.c` and `kfd_process.c`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::tree::{Tree, names, number, numbers, property, text};

/// A node of the topology that computes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KfdGpu {
    /// Position among the GPUs: the index that ROCm's variables count by.
    pub index: u32,
    /// The driver's own id, which names files of processes.
    pub gpu_id: u64,
    /// `0000:03:00.0`.
    pub pci: String,
    /// Vector units.
    pub simds: u64,
    /// Cores of a processor in the same node: only an APU has any.
    pub cpu_cores: u64,
    /// `gfx1100`.
    pub target: Option<String>,
    /// Burnt into the chip; zero where it has none.
    pub unique_id: u64,
}

fn topology(tree: &Tree) -> PathBuf {
    tree.sys.join("class/kfd/kfd/topology/nodes")
}

/// All GPUs that the compute driver knows.
pub fn gpus(tree: &Tree) -> Vec<KfdGpu> {
    let folder = topology(tree);
    let mut found = Vec::new();
    for node in numbers(&folder) {
        let folder = folder.join(node.to_string());
        let Ok(properties) = text(&folder.join("properties")) else { continue };
        let value = |name: &str| property(&properties, name).unwrap_or(0);
        let gpu_id = number(&folder.join("gpu_id")).unwrap_or(0);
        if gpu_id == 0 || value("simd_count") == 0 {
            continue;
        }
        found.push(KfdGpu {
            index: u32::try_from(found.len()).unwrap_or(u32::MAX),
            gpu_id,
            pci: pci_address(value("domain"), value("location_id")),
            simds: value("simd_count"),
            cpu_cores: value("cpu_cores_count"),
            target: target(value("gfx_target_version")),
            unique_id: value("unique_id"),
        });
    }
    found
}

/// A PCI address from the driver's two numbers: bus in bits 8 to 15, device in 3 to 7, function below.
fn pci_address(domain: u64, location: u64) -> String {
    format!("{domain:04x}:{:02x}:{:02x}.{}", location >> 8 & 0xff, location >> 3 & 0x1f, location & 7)
}

/// `110501` is `gfx1151`, `90010` is `gfx90a`: two decimal digits each for minor and stepping, written in hex.
fn target(version: u64) -> Option<String> {
    let (major, minor, stepping) = (version / 10_000, version / 100 % 100, version % 100);
    (major > 0).then(|| format!("gfx{major}{minor:x}{stepping:x}"))
}

/// Bytes of a GPU's memory by process id.
pub fn held(tree: &Tree, gpu: &KfdGpu) -> BTreeMap<u32, u64> {
    let folder = tree.sys.join("class/kfd/kfd/proc");
    let file = format!("vram_{}", gpu.gpu_id);
    let processes = names(&folder).into_iter().filter_map(|name| {
        let pid: u32 = name.parse().ok()?;
        Some((pid, number(&folder.join(name).join(&file)).ok()?))
    });
    processes.filter(|(_, bytes)| *bytes > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_the_driver_become_the_names_people_use() {
        for (version, name) in [(110_501, "gfx1151"), (90_010, "gfx90a"), (90_402, "gfx942"), (110_000, "gfx1100")] {
            assert_eq!(target(version).as_deref(), Some(name));
        }
        assert_eq!(target(0), None);
        assert_eq!(pci_address(0, 0x0300), "0000:03:00.0");
        assert_eq!(pci_address(1, 0xc501), "0001:c5:00.1");
    }
}
