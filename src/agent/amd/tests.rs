//! The trees stand in for hardware that is not here: files as the amdgpu driver lays them out, with its own values.

use std::fs;
use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;

const GIB: u64 = 1 << 30;

/// A copy of the parts of `/sys`, `/proc` and `/usr/share` that a node has.
struct Node {
    folder: TempDir,
}

impl Node {
    fn new() -> Self {
        let node = Self { folder: tempfile::tempdir().expect("a folder") };
        node.write("proc/sys/kernel/osrelease", "6.14.0-generic\n");
        node.write("sys/class/kfd/kfd/topology/nodes/0/gpu_id", "0\n");
        node.write("sys/class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 32\nsimd_count 0\n");
        let ids = "# List of AMDGPU IDs\n1.0.0\n1586,\tC1,\tAMD Radeon 8060S Graphics\n\
                   744C,\tC8,\tAMD Radeon RX 7900 XTX\n74A1,\t00,\tAMD Instinct MI300X OAM\n";
        node.write("share/libdrm/amdgpu.ids", ids);
        node
    }

    fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().expect("inside")).expect("made");
        fs::write(path, content).expect("written");
    }

    fn remove(&self, path: &str) {
        fs::remove_file(self.folder.path().join(path)).expect("there");
    }

    /// A card: its files, each a name and a value.
    fn card(&self, number: u32, pci: &str, files: &[(&str, &str)]) {
        let device = format!("sys/class/drm/card{number}/device");
        self.write(&format!("{device}/vendor"), "0x1002\n");
        self.write(&format!("{device}/uevent"), format!("DRIVER=amdgpu\nPCI_CLASS=30000\nPCI_SLOT_NAME={pci}\n"));
        self.write(&format!("{device}/gpu_busy_percent"), "0\n");
        for (name, value) in files {
            self.write(&format!("{device}/{name}"), format!("{value}\n"));
        }
    }

    /// The metrics table of a card (format 1) or an APU (2 or 3).
    fn metrics(&self, number: u32, format: u8) {
        let mut table = vec![0_u8; 264];
        table[..4].copy_from_slice(&[8, 1, format, 0]);
        self.write(&format!("sys/class/drm/card{number}/device/gpu_metrics"), table);
    }

    /// A node of the compute driver's topology.
    fn kfd(&self, number: u32, gpu_id: u64, location: u64, simds: u32, target: u32, more: &str) {
        let folder = format!("sys/class/kfd/kfd/topology/nodes/{number}");
        self.write(&format!("{folder}/gpu_id"), format!("{gpu_id}\n"));
        let properties = format!(
            "cpu_cores_count 0\nsimd_count {simds}\nmem_banks_count 1\nvendor_id 4098\nlocation_id {location}\n\
             domain 0\ngfx_target_version {target}\n{more}"
        );
        self.write(&format!("{folder}/properties"), properties);
    }

    /// What a process's open device says of itself.
    fn client(&self, pid: u32, descriptor: u32, text: &str) {
        self.write(&format!("proc/{pid}/fdinfo/{descriptor}"), text);
        let folder = self.folder.path().join(format!("proc/{pid}/fd"));
        fs::create_dir_all(&folder).expect("made");
        symlink("/dev/dri/renderD128", folder.join(descriptor.to_string())).expect("linked");
    }

    fn strix_halo(&self) {
        self.card(
            1,
            "0000:c5:00.0",
            &[
                ("device", "0x1586"),
                ("revision", "0xc1"),
                ("mem_info_vram_total", "536870912"),
                ("mem_info_vram_used", "136870912"),
                ("mem_info_gtt_total", "115964116992"),
                ("mem_info_gtt_used", "16777216"),
            ],
        );
        self.metrics(1, 3);
        self.kfd(1, 51_110, 0xc500, 80, 110_501, "unique_id 0\n");
    }

    fn radeon(&self) {
        self.card(
            0,
            "0000:03:00.0",
            &[
                ("device", "0x744c"),
                ("revision", "0xc8"),
                ("unique_id", "7d9f5a3c1b2e4f60"),
                ("mem_info_vram_total", "25753026560"),
                ("mem_info_vram_used", "28311552"),
                ("mem_info_gtt_total", "67000000000"),
                ("mem_info_gtt_used", "0"),
            ],
        );
        self.metrics(0, 1);
        self.kfd(1, 4_242, 0x0300, 192, 110_000, "unique_id 9052052990238543712\n");
    }

    fn tree(&self) -> Tree {
        let at = |name: &str| self.folder.path().join(name);
        Tree { sys: at("sys"), proc: at("proc"), share: at("share") }
    }

    fn probe(&self) -> Vec<Accelerator> {
        self.probe_with(&Ram { total_bytes: Some(127 * GIB), available_bytes: Some(120 * GIB), ..Ram::default() })
    }

    fn probe_with(&self, ram: &Ram) -> Vec<Accelerator> {
        probe(&self.tree(), "halo", &BTreeSet::from([900]), ram)
    }
}

#[test]
fn an_apu_is_its_carve_out_and_what_it_maps_of_the_host() {
    let node = Node::new();
    node.strix_halo();
    let [apu] = &node.probe()[..] else { panic!("one device") };
    assert_eq!((apu.name.as_str(), apu.compute_capability.as_deref()), ("AMD Radeon 8060S Graphics", Some("gfx1151")));
    assert!(apu.memory.unified && apu.healthy && apu.vendor == "amd");
    assert_eq!(apu.memory.total_bytes, Some(536_870_912 + 115_964_116_992));
    let free = (536_870_912 - 136_870_912) + (115_964_116_992 - 16_777_216);
    assert_eq!(apu.memory.free_bytes, Some(free));
    assert_eq!(apu.memory.used_bytes, Some(136_870_912 + 16_777_216));
    // It has no number of its own: its address, and the reason, and ROCm's index for the engine.
    assert_eq!((apu.uuid.as_str(), apu.index), ("halo#0000:c5:00.0", 0));
    assert!(apu.unknown["uuid"].contains("PCI address"), "{:?}", apu.unknown);
    assert_eq!(apu.driver.as_deref(), Some("Linux 6.14.0-generic"));

    // Never more than the host has, and what others use of the host's memory is not free.
    let ram = Ram { total_bytes: Some(64 * GIB), available_bytes: Some(10 * GIB), ..Ram::default() };
    let memory = &node.probe_with(&ram)[0].memory;
    assert_eq!(memory.total_bytes, Some(536_870_912 + 64 * GIB));
    assert_eq!(memory.free_bytes, Some(400_000_000 + 10 * GIB));
}

#[test]
fn every_sign_of_an_apu_is_enough_and_none_is_unknown() {
    let apu = |prepare: fn(&Node)| {
        let node = Node::new();
        node.strix_halo();
        node.remove("sys/class/drm/card1/device/gpu_metrics");
        prepare(&node);
        let found = node.probe().remove(0);
        (found.memory.unified, found.unknown.contains_key("memory.unified"), found.memory.total_bytes)
    };
    let pool = Some(536_870_912 + 115_964_116_992);
    assert_eq!(apu(|node| node.metrics(1, 2)), (true, false, pool));
    assert_eq!(apu(|node| node.write("sys/class/drm/card1/device/apu_thermal_cap", "95\n")), (true, false, pool));
    assert_eq!(apu(|node| node.write("sys/class/drm/card1/device/uma/carveout", "0\n")), (true, false, pool));
    assert_eq!(
        apu(|node| node.write("sys/class/drm/card1/device/hwmon/hwmon3/in1_label", "vddnb\n")),
        (true, false, pool)
    );
    assert_eq!(
        apu(|node| node.write(
            "sys/class/kfd/kfd/topology/nodes/1/properties",
            "cpu_cores_count 32\nsimd_count 80\nlocation_id 50432\ndomain 0\ngfx_target_version 110501\n"
        )),
        (true, false, pool)
    );
    // Nothing tells: only what is surely the device's own counts, and the reason is said.
    assert_eq!(apu(|_| ()), (false, true, Some(536_870_912)));
    // A table of a length other than it says is no table.
    assert!(apu(|node| node.write("sys/class/drm/card1/device/gpu_metrics", [9, 9, 3, 0])).1);
}

#[test]
fn a_large_carve_out_is_memory_of_its_own() {
    let node = Node::new();
    node.strix_halo();
    let device = "sys/class/drm/card1/device";
    node.write(&format!("{device}/mem_info_vram_total"), "103079215104\n");
    node.write(&format!("{device}/mem_info_gtt_total"), "16642998272\n");
    let ram = Ram { total_bytes: Some(31 * GIB), available_bytes: Some(28 * GIB), ..Ram::default() };
    let memory = &node.probe_with(&ram)[0].memory;
    assert_eq!((memory.total_bytes, memory.unified), (Some(96 * GIB), false));
}

#[test]
fn a_card_never_adds_host_memory() {
    let node = Node::new();
    node.radeon();
    node.write("sys/class/drm/card0-DP-1/status", "connected\n");
    let [card] = &node.probe()[..] else { panic!("one device") };
    assert_eq!((card.uuid.as_str(), card.name.as_str()), ("GPU-7d9f5a3c1b2e4f60", "AMD Radeon RX 7900 XTX"));
    assert_eq!((card.memory.total_bytes, card.memory.unified), (Some(25_753_026_560), false));
    assert_eq!(card.memory.free_bytes, Some(25_753_026_560 - 28_311_552));
    assert_eq!((card.memory.reserved_bytes, card.pci.as_deref()), (Some(0), Some("0000:03:00.0")));
    assert_eq!((card.display, card.compute_capability.as_deref()), (Some(true), Some("gfx1100")));
    assert!(card.healthy && card.bandwidth_bytes_per_s.is_none() && !card.unknown.contains_key("uuid"));
    assert!(crate::inventory::parse_inventory(&as_inventory(card)).is_ok());
}

fn as_inventory(device: &Accelerator) -> String {
    let device = serde_json::to_string(device).expect("plain data");
    format!(r#"{{"format":1,"nodes":[{{"name":"halo","accelerators":[{device}]}}]}}"#)
}

#[test]
fn eight_large_cards_are_in_the_order_that_rocm_counts_them() {
    let node = Node::new();
    for number in 0..8_u32 {
        // The display driver counts them backwards.
        let (card, bus) = (8 - number, 0x05 + u64::from(number));
        let id = format!("{:016x}", 0xa000 + u64::from(number));
        node.card(
            card,
            &format!("0000:{bus:02x}:00.0"),
            &[
                ("device", "0x74a1"),
                ("revision", "0x00"),
                ("unique_id", &id),
                ("mem_info_vram_total", "206141652992"),
                ("mem_info_vram_used", "297771008"),
                ("mem_info_gtt_total", "1081000000000"),
                ("current_compute_partition", "SPX"),
                ("ras/umc_err_count", "ue: 0\nce: 0"),
            ],
        );
        node.metrics(card, 1);
        node.kfd(number + 1, 1000 + u64::from(number), bus << 8, 1216, 90_402, "");
    }
    let cards = node.probe();
    assert_eq!(cards.len(), 8);
    for (index, card) in cards.iter().enumerate() {
        assert_eq!((card.index as usize, card.uuid.clone()), (index, format!("GPU-{:016x}", 0xa000 + index)));
        assert_eq!((card.compute_capability.as_deref(), card.ecc, card.healthy), (Some("gfx942"), Some(true), true));
        assert_eq!(card.memory.total_bytes, Some(206_141_652_992));
    }
    // Cut into partitions, a device is several: nothing is placed on any of it, and the way back is named.
    node.write("sys/class/drm/card8/device/current_compute_partition", "CPX\n");
    let cut = node.probe().remove(0);
    assert!(!cut.healthy && cut.unknown["healthy"].contains("SPX"), "{:?}", cut.unknown);
}

#[test]
fn devices_of_two_kinds_are_told_apart() {
    let node = Node::new();
    node.strix_halo();
    node.radeon();
    node.kfd(2, 51_110, 0xc500, 80, 110_501, "");
    // A card of another maker, one of the old driver, and a connector are none of amdgpu's.
    node.card(2, "0000:07:00.0", &[("vendor", "0x10de")]);
    node.card(3, "0000:08:00.0", &[("uevent", "DRIVER=radeon\nPCI_SLOT_NAME=0000:08:00.0")]);
    node.write("sys/class/drm/card1-eDP-1/status", "disconnected\n");
    node.write("sys/class/drm/version", "drm 1.1.0 20060810\n");
    let found = node.probe();
    let told: Vec<_> = found.iter().map(|one| (one.index, one.name.as_str(), one.memory.unified)).collect();
    assert_eq!(told, [(0, "AMD Radeon RX 7900 XTX", false), (1, "AMD Radeon 8060S Graphics", true)]);
    assert_eq!(found[1].display, Some(false));
    assert!(Node::new().probe().is_empty());
}

#[test]
fn a_gpu_that_is_there_for_the_display_is_no_accelerator() {
    let node = Node::new();
    node.strix_halo();
    node.kfd(1, 51_110, 0xc500, 4, 100_306, "");
    assert!(node.probe().is_empty());
    // A card of its own counts, however small.
    node.metrics(1, 1);
    assert_eq!(node.probe().len(), 1);
}

#[test]
fn what_is_missing_or_makes_no_sense_is_unknown_and_never_zero() {
    let device = "sys/class/drm/card0/device";
    let missing = |files: &[&str]| {
        let node = Node::new();
        node.radeon();
        for file in files {
            node.remove(&format!("{device}/{file}"));
        }
        node.probe().remove(0)
    };
    let bare = missing(&["mem_info_vram_total"]);
    assert_eq!((bare.memory.total_bytes, bare.memory.free_bytes, bare.healthy), (None, None, true));
    assert_eq!(bare.unknown["memory"], "the driver does not tell");
    assert_eq!(missing(&["mem_info_vram_used"]).memory.total_bytes, None);
    // The compute driver knows the number too.
    assert_eq!(missing(&["unique_id"]).uuid, "GPU-7d9f5a3c1b2e4f60");

    for (file, value) in [("mem_info_vram_total", "lots"), ("mem_info_vram_total", ""), ("mem_info_vram_used", "-1")] {
        let node = Node::new();
        node.radeon();
        node.write(&format!("{device}/{file}"), value);
        let found = node.probe().remove(0);
        assert_eq!(found.memory, AcceleratorMemory::default(), "{file}={value}");
        assert!(found.unknown.contains_key("memory"));
    }
    let node = Node::new();
    node.radeon();
    node.write(&format!("{device}/mem_info_vram_used"), "99999999999999\n");
    node.write(&format!("{device}/unique_id"), "0\n");
    node.write(&format!("{device}/revision"), "0xff\n");
    node.write("sys/class/kfd/kfd/topology/nodes/1/properties", "garbage\u{1b}[31m\n\n\n");
    let found = node.probe().remove(0);
    assert_eq!(found.memory.free_bytes, Some(0), "more used than there is: nothing is free");
    assert_eq!((found.uuid.as_str(), found.name.as_str()), ("halo#0000:03:00.0", "AMD GPU 0x744c"));
    assert!(found.unknown["compute_capability"].contains("amdkfd"));
    node.write(&format!("{device}/product_name"), "Radeon\u{1b}[31m Pro\n");
    assert_eq!(node.probe()[0].name, "Radeon?[31m Pro");
    // A folder where a file should be cannot be read: neither a crash nor a fault of the device.
    node.remove(&format!("{device}/mem_info_vram_total"));
    node.write(&format!("{device}/mem_info_vram_total/x"), "");
    let found = node.probe().remove(0);
    assert!(found.memory.total_bytes.is_none() && found.unknown["memory"].contains("mem_info_vram_total"));
}

#[test]
fn two_devices_with_one_number_stay_two() {
    let node = Node::new();
    node.radeon();
    node.card(
        1,
        "0000:04:00.0",
        &[("unique_id", "7d9f5a3c1b2e4f60"), ("mem_info_vram_total", "1"), ("device", "0x744c")],
    );
    let found = node.probe();
    assert_eq!(found.len(), 2);
    assert_ne!(found[0].uuid, found[1].uuid);
}

#[test]
fn whoever_holds_memory_is_named_once() {
    let node = Node::new();
    node.radeon();
    let client = |id: u32, kib: u64| {
        format!(
            "drm-driver:\tamdgpu\ndrm-pdev:\t0000:03:00.0\ndrm-client-id:\t{id}\ndrm-memory-vram:\t{kib} KiB\n\
                 drm-memory-gtt:\t777 KiB\n"
        )
    };
    node.client(900, 5, &client(1, 1024));
    // The same open device under a second descriptor, and inherited by a child.
    node.client(900, 6, &client(1, 1024));
    node.client(901, 5, &client(1, 1024));
    node.client(902, 3, &client(2, 512));
    node.client(903, 3, "drm-driver:\ti915\n");
    // Memory for computing, as the compute driver counts it.
    node.write("sys/class/kfd/kfd/proc/900/vram_4242", "4194304\n");
    node.write("sys/class/kfd/kfd/proc/904/vram_9999", "4194304\n");
    let card = node.probe().remove(0);
    let told: Vec<_> = card.processes.iter().map(|one| (one.pid, one.used_bytes, one.ours)).collect();
    assert_eq!(told, [(900, Some(4 << 20), true), (902, Some(512 << 10), false)]);
    let uuids = [card.uuid.clone()];
    let (used, pids) = held(&node.tree(), "halo", &uuids).expect("it tells");
    assert_eq!((used, pids), (28_311_552, BTreeSet::from([900, 902])));
    assert!(held(&node.tree(), "halo", &["GPU-other".to_owned()]).is_none());
    // What an APU maps of the host's memory is memory of the device.
    node.strix_halo();
    node.client(905, 3, &client(9, 0).replace("0000:03:00.0", "0000:c5:00.0"));
    let apu = node.probe().into_iter().find(|one| one.memory.unified).expect("there");
    assert_eq!(apu.processes[0].used_bytes, Some(777 << 10));
}
