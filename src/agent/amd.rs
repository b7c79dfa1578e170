//! AMD accelerators through sysfs: what the amdgpu driver says of every card, without ROCm and without root.
//!
//! Sources: the kernel's `Documentation/gpu/amdgpu/driver-misc.rst` (memory, product, unique id) and
//! `thermal.rst` (sensors), `drivers/gpu/drm/amd/include/kgd_pp_interface.h` (metrics), `amdgpu_ttm.c` (GTT).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::drm;
use super::kfd::{self, KfdGpu};
use super::tree::{Silent, Tree, names, number, text};
use crate::base::one_line;
use crate::inventory::{Accelerator, AcceleratorMemory, AcceleratorProcess, Ram, Unknown};

/// AMD's PCI vendor number.
const VENDOR: &str = "0x1002";
/// An integrated GPU with fewer vector units than this (four compute units) is there for the display.
const DISPLAY_ONLY_SIMDS: u64 = 8;

/// A card of the driver's.
struct Card {
    number: u32,
    device: PathBuf,
    pci: Option<String>,
    apu: Option<bool>,
    kfd: Option<KfdGpu>,
}

impl Card {
    /// Many processors carry two compute units for a desktop. They are no place for a model.
    fn is_for_the_display(&self) -> bool {
        self.apu == Some(true) && self.kfd.as_ref().is_some_and(|gpu| gpu.simds < DISPLAY_ONLY_SIMDS)
    }
}

/// All cards, in the order in which ROCm counts them, the others after them.
pub fn probe(tree: &Tree, node: &str, ours: &BTreeSet<u32>, ram: &Ram) -> Vec<Accelerator> {
    let cards: Vec<Card> = cards(tree).into_iter().filter(|card| !card.is_for_the_display()).collect();
    let clients = clients(tree, &cards);
    let driver = driver(tree);
    let mut found: Vec<Accelerator> = Vec::new();
    for card in &cards {
        let mut accelerator = Reading { tree, node, ours, ram, driver: &driver, clients: &clients }.card(card);
        if found.iter().any(|other| other.uuid == accelerator.uuid) {
            let reason = "another device has the same unique_id; identified by its PCI address";
            accelerator.unknown.insert("uuid".into(), reason.into());
            accelerator.uuid = address_identity(node, card);
        }
        found.push(accelerator);
    }
    found.sort_by_key(|accelerator| accelerator.index);
    found
}

/// Memory in use and the processes that hold it, of these devices; `None` where one is not among the cards.
pub fn held(tree: &Tree, node: &str, uuids: &[String]) -> Option<(u64, BTreeSet<u32>)> {
    let found = probe(tree, node, &BTreeSet::new(), &Ram::default());
    let (mut used, mut pids) = (0, BTreeSet::new());
    for uuid in uuids {
        let device = found.iter().find(|device| device.uuid == *uuid)?;
        used += device.memory.used_bytes.unwrap_or(0);
        pids.extend(device.processes.iter().map(|process| process.pid));
    }
    Some((used, pids))
}

fn cards(tree: &Tree) -> Vec<Card> {
    let folder = tree.sys.join("class/drm");
    let gpus = kfd::gpus(tree);
    let mut cards: Vec<Card> = names(&folder)
        .into_iter()
        .filter_map(|name| {
            let number: u32 = name.strip_prefix("card")?.parse().ok()?;
            let device = folder.join(&name).join("device");
            if text(&device.join("vendor")).ok()? != VENDOR || !is_amdgpu(&device) {
                return None;
            }
            let pci = slot(&device);
            let kfd = pci.as_ref().and_then(|pci| gpus.iter().find(|gpu| gpu.pci == *pci)).cloned();
            Some(Card { number, apu: apu(&device, kfd.as_ref()), pci, device, kfd })
        })
        .collect();
    cards.sort_by_key(|card| card.number);
    cards
}

/// The old `radeon` driver has cards too, and none of what follows.
fn is_amdgpu(device: &Path) -> bool {
    let uevent = text(&device.join("uevent")).unwrap_or_default();
    uevent.lines().any(|line| line == "DRIVER=amdgpu")
}

/// The PCI address, as the kernel names the slot.
fn slot(device: &Path) -> Option<String> {
    let uevent = text(&device.join("uevent")).ok()?;
    uevent.lines().find_map(|line| line.strip_prefix("PCI_SLOT_NAME=")).map(str::to_ascii_lowercase)
}

/// Whether a GPU is part of a processor; `None` where nothing tells.
///
/// The driver knows (`AMD_IS_APU`) and says it in no file of its own, but in what it offers: an older compute
/// driver puts both into one node; the metrics table has format 1 for cards and 2 or 3 for APUs; only APUs have a
/// north-bridge voltage, a thermal limit for the whole package or a tunable carve-out; only cards have a junction.
fn apu(device: &Path, kfd: Option<&KfdGpu>) -> Option<bool> {
    if kfd.is_some_and(|gpu| gpu.cpu_cores > 0) {
        return Some(true);
    }
    // Metrics of a sleeping card would wake it.
    if text(&device.join("power/runtime_status")).as_deref() != Ok("suspended")
        && let Ok(metrics) = std::fs::read(device.join("gpu_metrics"))
        && let [low, high, format, _content, ..] = metrics[..]
        && usize::from(u16::from_le_bytes([low, high])) == metrics.len()
    {
        match format {
            1 => return Some(false),
            2 | 3 => return Some(true),
            _ => {}
        }
    }
    if device.join("apu_thermal_cap").exists() || device.join("uma").is_dir() {
        return Some(true);
    }
    let hwmon = device.join("hwmon");
    let label = |name: &str, wanted: &str| {
        names(&hwmon).iter().any(|monitor| text(&hwmon.join(monitor).join(name)).as_deref() == Ok(wanted))
    };
    if label("in1_label", "vddnb") {
        return Some(true);
    }
    label("temp2_label", "junction").then_some(false)
}

fn clients(tree: &Tree, cards: &[Card]) -> BTreeMap<(String, u32), u64> {
    if cards.is_empty() {
        return BTreeMap::new();
    }
    let apus: BTreeSet<&String> =
        cards.iter().filter(|card| card.apu == Some(true)).filter_map(|card| card.pci.as_ref()).collect();
    let mut clients = drm::held(tree, |pci| apus.contains(&pci.to_owned()));
    for card in cards {
        let (Some(pci), Some(gpu)) = (&card.pci, &card.kfd) else { continue };
        for (pid, bytes) in kfd::held(tree, gpu) {
            // Newer kernels count what was allocated for computing in both places.
            let known = clients.entry((pci.clone(), pid)).or_insert(0);
            *known = (*known).max(bytes);
        }
    }
    clients
}

/// The version of a driver that was installed beside the kernel, else the kernel's own.
fn driver(tree: &Tree) -> Option<String> {
    let own = text(&tree.sys.join("module/amdgpu/version"));
    let kernel = || text(&tree.proc.join("sys/kernel/osrelease")).map(|release| format!("Linux {release}"));
    own.or_else(|_| kernel()).ok()
}

/// Identity of a device without a number of its own.
fn address_identity(node: &str, card: &Card) -> String {
    let own = card.pci.clone().unwrap_or_else(|| format!("card{}", card.number));
    format!("{node}#{own}")
}

struct Reading<'a> {
    tree: &'a Tree,
    node: &'a str,
    ours: &'a BTreeSet<u32>,
    ram: &'a Ram,
    driver: &'a Option<String>,
    clients: &'a BTreeMap<(String, u32), u64>,
}

impl Reading<'_> {
    fn card(&self, card: &Card) -> Accelerator {
        let mut notes = Notes::default();
        let memory = self.memory(card, &mut notes);
        let mut found = Accelerator {
            uuid: self.uuid(card, &mut notes),
            // Cards that ROCm does not see come after those that it counts.
            index: card.kfd.as_ref().map_or(1000 + card.number, |gpu| gpu.index),
            vendor: "amd".into(),
            name: self.name(card),
            memory,
            compute_capability: card.kfd.as_ref().and_then(|gpu| gpu.target.clone()),
            driver: self.driver.clone(),
            display: Some(self.display(card)),
            healthy: true,
            pci: card.pci.clone(),
            processes: self.processes(card),
            ecc: card.device.join("ras/umc_err_count").exists().then_some(true),
            ..Accelerator::default()
        };
        if found.compute_capability.is_none() {
            notes.say("compute_capability", "the compute driver (amdkfd) does not know this device");
        }
        if found.ecc.is_none() {
            notes.say("ecc", "the driver does not tell");
        }
        if found.pci.is_none() {
            notes.say("pci", "the kernel does not name its slot");
        }
        notes.say("bandwidth_bytes_per_s", "the driver tells the memory's clock, not its transfers per clock");
        self.health(card, &mut notes);
        if let Some(fault) = notes.fault {
            found.healthy = false;
            notes.reasons.insert("healthy".into(), fault);
        }
        found.unknown = notes.reasons;
        found
    }

    /// As ROCm writes it: `GPU-` and the sixteen digits of the number in the chip.
    fn uuid(&self, card: &Card, notes: &mut Notes) -> String {
        let hex = |text: String| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
        let own = text(&card.device.join("unique_id")).ok().and_then(hex).filter(|id| *id != 0);
        let id = own.or(card.kfd.as_ref().map(|gpu| gpu.unique_id).filter(|id| *id != 0));
        id.map(|id| format!("GPU-{id:016x}")).unwrap_or_else(|| {
            notes.say("uuid", "the driver gives it no unique_id; identified by its PCI address");
            address_identity(self.node, card)
        })
    }

    /// The marketing name that AMD's own tools print, from libdrm's list; else the board's; else the PCI number.
    fn name(&self, card: &Card) -> String {
        let number = |name: &str| number(&card.device.join(name)).ok();
        let device = number("device");
        let listed = text(&self.tree.share.join("libdrm/amdgpu.ids"))
            .ok()
            .zip(device.zip(number("revision")))
            .and_then(|(ids, (device, revision))| listed_name(&ids, device, revision));
        let printable = |name: String| one_line(&name).chars().take(80).collect::<String>();
        listed
            .or_else(|| text(&card.device.join("product_name")).ok())
            .map(printable)
            .unwrap_or_else(|| device.map_or_else(|| "AMD GPU".to_owned(), |device| format!("AMD GPU 0x{device:04x}")))
    }

    /// Of a card, its own memory. Of an APU, the carve-out and what the driver maps of the host's memory (GTT), as
    /// long as the carve-out is the smaller of the two: then the driver serves every allocation of ROCm from GTT
    /// (`apu_prefer_gtt`). A larger carve-out is no longer host memory, and ROCm allocates from it alone.
    fn memory(&self, card: &Card, notes: &mut Notes) -> AcceleratorMemory {
        let mut figure = |name: &str| notes.take("memory", number(&card.device.join(name)));
        let (Some(vram), Some(vram_used)) = (figure("mem_info_vram_total"), figure("mem_info_vram_used")) else {
            return AcceleratorMemory::default();
        };
        let vram_used = vram_used.min(vram);
        let gtt = if card.apu == Some(false) { None } else { figure("mem_info_gtt_total").filter(|gtt| *gtt > vram) };
        // A GPU without any memory of its own is an APU, whatever else it says.
        let shared = gtt.filter(|_| card.apu == Some(true) || vram == 0);
        if card.apu.is_none() && shared.is_none() {
            notes.say("memory.unified", "the driver does not tell whether this is an APU; only its own memory counts");
        }
        let Some(gtt) = shared else {
            return AcceleratorMemory {
                total_bytes: Some(vram),
                used_bytes: Some(vram_used),
                free_bytes: Some(vram - vram_used),
                // What the driver keeps for itself is part of what it calls used.
                reserved_bytes: Some(0),
                unified: false,
                ..AcceleratorMemory::default()
            };
        };
        let gtt_used = notes.take("memory", number(&card.device.join("mem_info_gtt_used"))).unwrap_or(0).min(gtt);
        let total = vram.saturating_add(gtt.min(self.ram.total_bytes.unwrap_or(u64::MAX)));
        let mapped = (gtt - gtt_used).min(self.ram.available_bytes.unwrap_or(u64::MAX));
        let free = (vram - vram_used).saturating_add(mapped).min(total);
        AcceleratorMemory {
            total_bytes: Some(total),
            used_bytes: Some(total - free),
            free_bytes: Some(free),
            reserved_bytes: None,
            unified: true,
            ..AcceleratorMemory::default()
        }
    }

    fn display(&self, card: &Card) -> bool {
        let (folder, own) = (self.tree.sys.join("class/drm"), format!("card{}-", card.number));
        let mut connectors = names(&folder).into_iter().filter(|name| name.starts_with(&own));
        connectors.any(|name| text(&folder.join(name).join("status")).as_deref() == Ok("connected"))
    }

    fn processes(&self, card: &Card) -> Vec<AcceleratorProcess> {
        let Some(pci) = &card.pci else { return Vec::new() };
        let own = self.clients.iter().filter(|((address, _), _)| address == pci);
        own.map(|((_, pid), bytes)| AcceleratorProcess {
            pid: *pid,
            used_bytes: Some(*bytes),
            ours: self.ours.contains(pid),
            ..AcceleratorProcess::default()
        })
        .collect()
    }

    fn health(&self, card: &Card, notes: &mut Notes) {
        // The one figure that the device itself has to answer; a sleeping one is left asleep.
        let asleep = text(&card.device.join("power/runtime_status")).as_deref() == Ok("suspended");
        if !asleep && let Err(Silent::Fault(text)) = number(&card.device.join("gpu_busy_percent")) {
            notes.fault.get_or_insert(text);
        }
        let partition = text(&card.device.join("current_compute_partition")).ok();
        if let Some(mode) = partition.filter(|mode| mode != "SPX") {
            notes.fault.get_or_insert(format!(
                "it is cut into partitions ({mode}), which are not placed on; `amd-smi set --compute-partition SPX` joins them"
            ));
        }
    }
}

/// A line of libdrm's list: `744C,\tC8,\tAMD Radeon RX 7900 XTX`.
fn listed_name(ids: &str, device: u64, revision: u64) -> Option<String> {
    ids.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let mut fields = line.splitn(3, ',').map(str::trim);
        let own = u64::from_str_radix(fields.next()?, 16).ok()? == device;
        let same = own && u64::from_str_radix(fields.next()?, 16).ok()? == revision;
        fields.next().filter(|name| same && !name.is_empty()).map(str::to_owned)
    })
}

/// Reasons collected while a card is read.
#[derive(Default)]
struct Notes {
    reasons: Unknown,
    fault: Option<String>,
}

impl Notes {
    fn say(&mut self, field: &str, reason: &str) {
        self.reasons.entry(field.to_owned()).or_insert_with(|| reason.to_owned());
    }

    fn take<T>(&mut self, field: &str, answer: Result<T, Silent>) -> Option<T> {
        answer.map_or_else(
            |silent| {
                self.say(field, &silent.reason());
                if let Silent::Fault(text) = silent {
                    self.fault.get_or_insert(text);
                }
                None
            },
            Some,
        )
    }
}

#[cfg(test)]
mod tests;
