//! The GPU of an NVIDIA Jetson, which older systems have no NVML for: the device tree and the `nvgpu` driver name it.
//!
//! Source: the `compatible` words of the Tegra device trees in the kernel; CUDA's table of compute capabilities.

use super::tree::{Tree, names, text};
use crate::inventory::{Accelerator, AcceleratorMemory, Ram, Unknown};

/// Chips that carry a GPU for CUDA: word of the device tree, NVML's own name for it, compute capability.
const CHIPS: &[(&str, &str, &str)] = &[
    ("nvidia,tegra264", "Thor (nvgpu)", "11.0"),
    ("nvidia,tegra234", "Orin (nvgpu)", "8.7"),
    ("nvidia,tegra194", "Xavier (nvgpu)", "7.2"),
    ("nvidia,tegra186", "TX2 (nvgpu)", "6.2"),
    ("nvidia,tegra210", "Nano (nvgpu)", "5.3"),
];

/// The GPU of this board, if it is one of these and its driver is loaded. One pool with host memory.
pub fn probe(tree: &Tree, node: &str, ram: &Ram) -> Option<Accelerator> {
    let compatible = text(&tree.proc.join("device-tree/compatible")).ok()?;
    let (_, name, capability) = CHIPS.iter().find(|(word, ..)| compatible.split('\0').any(|entry| entry == *word))?;
    let devices = names(&tree.sys.join("devices")).into_iter().chain(names(&tree.sys.join("devices/platform")));
    let driver = tree.sys.join("module/nvgpu").exists()
        || devices.into_iter().any(|name| name == "gpu.0" || name.ends_with(".gpu"));
    if !driver {
        return None;
    }
    let unknown = |field: &str, why: &str| (field.to_owned(), why.to_owned());
    Some(Accelerator {
        uuid: format!("{node}#0"),
        index: 0,
        vendor: "nvidia".into(),
        name: (*name).to_owned(),
        memory: shared(ram),
        compute_capability: Some((*capability).to_owned()),
        healthy: true,
        unknown: Unknown::from([
            unknown("uuid", "this board's driver gives none; identified by its node"),
            unknown("driver", "there is no NVML on this board"),
            unknown("processes", "there is no NVML on this board"),
            unknown("bandwidth_bytes_per_s", "there is no NVML on this board"),
            unknown("display", "there is no NVML on this board"),
            unknown("ecc", "there is no NVML on this board"),
            unknown("pci", "it is part of the chip"),
        ]),
        ..Accelerator::default()
    })
}

/// Memory of a GPU that shares the host's. What the page cache holds is available: it is given back when asked for.
pub fn shared(ram: &Ram) -> AcceleratorMemory {
    AcceleratorMemory {
        total_bytes: ram.total_bytes,
        used_bytes: ram.total_bytes.zip(ram.available_bytes).map(|(all, free)| all.saturating_sub(free)),
        free_bytes: ram.available_bytes,
        reserved_bytes: None,
        unified: true,
        ..AcceleratorMemory::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tree stands in for a board that is not here.
    #[test]
    fn a_board_without_nvml_is_no_computer_without_a_gpu() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |path: &str| folder.path().join(path);
        let tree = Tree { sys: at("sys"), proc: at("proc"), share: at("share") };
        let ram = Ram { total_bytes: Some(64 << 30), available_bytes: Some(50 << 30), ..Ram::default() };
        assert!(probe(&tree, "orin", &ram).is_none());
        std::fs::create_dir_all(at("proc/device-tree")).expect("made");
        std::fs::create_dir_all(at("sys")).expect("made");
        let words = "nvidia,p3737-0000+p3701-0005\0nvidia,p3701-0005\0nvidia,tegra234\0";
        std::fs::write(at("proc/device-tree/compatible"), words).expect("written");
        assert!(probe(&tree, "orin", &ram).is_none(), "the driver is not loaded");
        std::fs::create_dir_all(at("sys/devices/platform/17000000.gpu")).expect("made");
        let found = probe(&tree, "orin", &ram).expect("a GPU");
        assert_eq!((found.name.as_str(), found.compute_capability.as_deref()), ("Orin (nvgpu)", Some("8.7")));
        assert!(found.memory.unified && found.healthy && found.uuid == "orin#0");
        assert_eq!((found.memory.total_bytes, found.memory.free_bytes), (Some(64 << 30), Some(50 << 30)));
        let unknown = probe(&tree, "orin", &Ram::default()).expect("a GPU");
        assert_eq!(unknown.memory.total_bytes, None, "unknown is not zero");
        std::fs::write(at("proc/device-tree/compatible"), "raspberrypi,4-model-b\0brcm,bcm2711\0").expect("written");
        assert!(probe(&tree, "orin", &ram).is_none());
    }
}
