//! NVIDIA accelerators through NVML. Each device is asked by itself: a broken one never hides the others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nvml_wrapper::enum_wrappers::device::Clock;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::accelerators::Found;
use super::nvlink::{Whole, links};
use super::tegra::shared;
use super::tree::{Tree, names, text};
use crate::inventory::{Accelerator, AcceleratorLink, AcceleratorMemory, AcceleratorProcess, Ram, Unknown};

/// How long the driver's library stays open between two probes of one connection: opening it costs more than asking.
/// The keeper does not probe, so that no process holds the devices for longer than a connection.
const KEEP_OPEN: Duration = Duration::from_secs(30);
static OPEN: Mutex<Option<Kept>> = Mutex::new(None);

/// The driver's library, open.
struct Kept {
    nvml: Nvml,
    since: Instant,
    known: Known,
}

/// What stays as it is while the library is open: asking for it is most of a look at many devices.
#[derive(Default)]
struct Known {
    /// Devices that worked, by UUID.
    devices: BTreeMap<String, Accelerator>,
    /// How they are joined, and the UUIDs of those that this was asked about.
    links: Option<(Vec<String>, Vec<AcceleratorLink>)>,
}

/// There while the NVIDIA kernel module is loaded.
const KERNEL_MODULE: &str = "driver/nvidia/version";

/// Asks for everything. `ours` are the processes of this cluster's instances.
pub fn probe(tree: &Tree, node: &str, ours: &BTreeSet<u32>, ram: &Ram) -> Found {
    let mut kept = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    // Opened anew from time to time: what changed about the devices since may not be told otherwise.
    let mut library = match kept.take().filter(|kept| kept.since.elapsed() < KEEP_OPEN) {
        Some(kept) => kept,
        None => match open(tree) {
            Ok(Some(nvml)) => Kept { nvml, since: Instant::now(), known: Known::default() },
            Ok(None) => return Found::default(),
            Err(problem) => return Found { problem: Some(problem), ..Found::default() },
        },
    };
    let mut found = devices(&library.nvml, &mut library.known, node, ours, ram);
    lost(&listed(tree), node, &mut found.accelerators);
    // Where anything is wrong, the next look begins from the beginning.
    let works = found.problem.is_none() && found.accelerators.iter().all(|found| found.healthy);
    *kept = works.then_some(library);
    found
}

/// Memory in use and processes that hold it, summed over these devices; `None` where the driver does not tell.
pub fn held(uuids: &[String]) -> Option<(u64, BTreeSet<u32>)> {
    let nvml = open(&Tree::real()).ok()??;
    let (mut used, mut pids) = (0, BTreeSet::new());
    for uuid in uuids {
        let device = nvml.device_by_uuid(uuid.as_str()).ok()?;
        used += device.memory_info().map_or(0, |memory| memory.used);
        pids.extend(device.running_compute_processes().ok()?.into_iter().map(|process| process.pid));
    }
    Some((used, pids))
}

/// The GPUs that the kernel module was given, whether or not they still answer: PCI address and UUID.
fn listed(tree: &Tree) -> Vec<(String, Option<String>)> {
    let folder = tree.proc.join("driver/nvidia/gpus");
    let one = |address: String| {
        let information = text(&folder.join(&address).join("information")).unwrap_or_default();
        let uuid = information.lines().find_map(|line| line.strip_prefix("GPU UUID:")).map(str::trim);
        // A device that fell off the bus before anyone used it has question marks instead of digits.
        let uuid = uuid.filter(|uuid| uuid.starts_with("GPU-") && !uuid.contains('?')).map(str::to_owned);
        (address.to_ascii_lowercase(), uuid)
    };
    names(&folder).into_iter().map(one).collect()
}

/// Gives devices that NVML has no handle for the identity that the kernel still knows, and adds those that NVML no
/// longer counts at all: a GPU that fell off the bus must stay the same GPU, and must not just vanish.
fn lost(listed: &[(String, Option<String>)], node: &str, found: &mut Vec<Accelerator>) {
    // NVML writes the domain with eight digits, the kernel with four.
    let address = |pci: &str| pci.get(pci.len().saturating_sub(12)..).unwrap_or(pci).to_ascii_lowercase();
    let seen: BTreeSet<String> = found.iter().filter_map(|device| device.pci.as_deref()).map(address).collect();
    let mut missing: Vec<&(String, Option<String>)> =
        listed.iter().filter(|(pci, _)| !seen.contains(&address(pci))).collect();
    let nameless: Vec<usize> = (0..found.len()).filter(|index| found[*index].pci.is_none()).collect();
    // Which is which can only be told where the numbers agree.
    if nameless.len() == missing.len() {
        for (index, (pci, uuid)) in nameless.into_iter().zip(missing.drain(..)) {
            found[index].pci = Some(pci.clone());
            if let Some(uuid) = uuid {
                found[index].uuid.clone_from(uuid);
                found[index].unknown.remove("uuid");
            }
        }
        return;
    }
    let next = found.iter().map(|device| device.index + 1).max().unwrap_or(0);
    let more = missing.len().saturating_sub(nameless.len());
    for (position, (pci, uuid)) in missing.into_iter().take(more).enumerate() {
        let reason = "the kernel module has it and the driver no longer lists it: it fell off the bus; reboot the node";
        found.push(Accelerator {
            uuid: uuid.clone().unwrap_or_else(|| format!("{node}#{pci}")),
            index: next + u32::try_from(position).unwrap_or(0),
            vendor: "nvidia".into(),
            name: "unknown".into(),
            pci: Some(pci.clone()),
            healthy: false,
            unknown: Unknown::from([("healthy".into(), reason.into()), ("memory".into(), reason.into())]),
            ..Accelerator::default()
        });
    }
}

/// The driver library. `Ok(None)`: there is none. `Err`: it is there and does not work.
fn open(tree: &Tree) -> Result<Option<Nvml>, String> {
    match Nvml::init() {
        Ok(nvml) => Ok(Some(nvml)),
        Err(NvmlError::LibloadingError(error)) => {
            let text = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            match (text.contains("No such file"), tree.proc.join(KERNEL_MODULE).exists()) {
                (true, false) => Ok(None),
                (true, true) => Err(format!("the NVIDIA kernel module is loaded, and NVML is not there: {text}")),
                (false, _) => Err(format!("NVML cannot be loaded: {text}")),
            }
        }
        Err(error @ NvmlError::LibRmVersionMismatch) => {
            Err(format!("{error}: the driver was upgraded under its loaded module; reboot the node"))
        }
        Err(error) => Err(format!("NVML does not start: {error}")),
    }
}

fn devices(nvml: &Nvml, known: &mut Known, node: &str, ours: &BTreeSet<u32>, ram: &Ram) -> Found {
    let count = match nvml.device_count() {
        Ok(count) => count,
        Err(error) => return Found { problem: Some(format!("counting devices: {error}")), ..Found::default() },
    };
    let driver = nvml.sys_driver_version().ok();
    let (mut accelerators, mut whole) = (Vec::new(), Vec::new());
    for index in 0..count {
        let device = match nvml.device_by_index(index) {
            Ok(device) => device,
            Err(error) => {
                let uuid = format!("{node}#{index}");
                accelerators.push(broken(uuid, index, driver.clone(), &error));
                continue;
            }
        };
        let reading = Reading { index, driver: driver.clone(), ours, ram };
        match slices(&device) {
            None => {
                let found = reading.device(&device, node, known);
                if found.healthy {
                    whole.push(Whole { uuid: found.uuid.clone(), index, device });
                }
                accelerators.push(found);
            }
            Some(slices) if slices.is_empty() => {
                let mut found = reading.device(&device, node, known);
                found.healthy = false;
                let reason = "MIG mode is on and no instance is made";
                found.unknown.entry("healthy".into()).or_insert_with(|| reason.into());
                accelerators.push(found);
            }
            Some(slices) => {
                let parent = reading.device(&device, node, known);
                accelerators.extend(slices.iter().map(|slice| reading.slice(slice, &parent, node)));
            }
        }
    }
    let uuids: Vec<String> = whole.iter().map(|whole| whole.uuid.clone()).collect();
    let links = match known.links.take().filter(|(asked, _)| *asked == uuids) {
        Some((_, links)) => links,
        None => links(nvml, &whole),
    };
    known.links = Some((uuids, links.clone()));
    Found { accelerators, links, problem: None }
}

/// The MIG slices of a device; `None` where MIG is off or unknown to it.
fn slices<'nvml>(device: &Device<'nvml>) -> Option<Vec<Device<'nvml>>> {
    if device.mig_mode().ok()?.current != 1 {
        return None;
    }
    let most = device.mig_device_count().unwrap_or(0);
    Some((0..most).filter_map(|index| device.mig_device_by_index(index).ok()).collect())
}

fn broken(uuid: String, index: u32, driver: Option<String>, error: &NvmlError) -> Accelerator {
    Accelerator {
        uuid,
        index,
        vendor: "nvidia".into(),
        name: "unknown".into(),
        driver,
        healthy: false,
        unknown: Unknown::from([
            ("healthy".into(), error.to_string()),
            ("memory".into(), error.to_string()),
            ("uuid".into(), "the driver has no handle for it; identified by its position".into()),
        ]),
        ..Accelerator::default()
    }
}

/// Whether an error says that the device itself is out of order, and not merely that it lacks a feature.
fn is_fault(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::GpuLost
            | NvmlError::ResetRequired
            | NvmlError::Unknown
            | NvmlError::IrqIssue
            | NvmlError::InsufficientPower
            | NvmlError::CorruptedInfoROM
            | NvmlError::Timeout
            | NvmlError::UnexpectedVariant(_)
    )
}

struct Reading<'a> {
    index: u32,
    driver: Option<String>,
    ours: &'a BTreeSet<u32>,
    ram: &'a Ram,
}

impl Reading<'_> {
    /// Identity, memory and processes are asked for every time, the rest once.
    fn device(&self, device: &Device, node: &str, known: &mut Known) -> Accelerator {
        let mut notes = Notes::default();
        let uuid = notes.take("uuid", device.uuid());
        let mut found = match uuid.as_ref().and_then(|uuid| known.devices.get(uuid)) {
            Some(before) if before.index == self.index => {
                notes.reasons.clone_from(&before.unknown);
                before.clone()
            }
            _ => self.lasting(device, &mut notes),
        };
        found.uuid = uuid.unwrap_or_else(|| format!("{node}#{}", self.index));
        if notes.fault.is_none() && !notes.reasons.contains_key("uuid") {
            let lasting = Accelerator { unknown: notes.reasons.clone(), ..found.clone() };
            known.devices.insert(found.uuid.clone(), lasting);
        }
        found.memory = self.memory(device, &mut notes);
        found.processes = self.processes(device, &mut notes);
        notes.finish(&mut found);
        found
    }

    /// What does not change while the library is open.
    fn lasting(&self, device: &Device, notes: &mut Notes) -> Accelerator {
        let mut found = Accelerator {
            index: self.index,
            vendor: "nvidia".into(),
            driver: self.driver.clone(),
            healthy: true,
            ..Accelerator::default()
        };
        found.name = notes.take("name", device.name()).unwrap_or_else(|| "unknown".into());
        found.pci = notes.take("pci", device.pci_info()).map(|pci| pci.bus_id);
        let capability = notes.take("compute_capability", device.cuda_compute_capability());
        found.compute_capability = capability.map(|version| format!("{}.{}", version.major, version.minor));
        found.ecc = match device.is_ecc_enabled() {
            Ok(state) => Some(state.currently_enabled),
            Err(NvmlError::NotSupported) => Some(false),
            Err(error) => notes.note("ecc", &error),
        };
        let display = device.is_display_active().or_else(|_| device.is_display_connected());
        found.display = notes.take("display", display);
        found.bandwidth_bytes_per_s = notes.take("bandwidth_bytes_per_s", bandwidth(device));
        found
    }

    fn slice(&self, slice: &Device, parent: &Accelerator, node: &str) -> Accelerator {
        let mut notes = Notes::default();
        let uuid = notes.take("uuid", slice.uuid()).unwrap_or_else(|| format!("{node}#{}-mig", self.index));
        let name = slice.name().ok().filter(|name| name.contains("MIG"));
        let mut found = Accelerator {
            uuid,
            name: name.unwrap_or_else(|| format!("{} MIG", parent.name)),
            memory: self.memory(slice, &mut notes),
            mig_parent: Some(parent.uuid.clone()),
            processes: self.processes(slice, &mut notes),
            bandwidth_bytes_per_s: None,
            unknown: Unknown::new(),
            ..parent.clone()
        };
        notes.reasons.insert("bandwidth_bytes_per_s".into(), "the driver does not tell a slice's share".into());
        notes.finish(&mut found);
        if !parent.healthy {
            found.healthy = false;
            if let Some(reason) = parent.unknown.get("healthy") {
                found.unknown.insert("healthy".into(), reason.clone());
            }
        }
        found
    }

    fn memory(&self, device: &Device, notes: &mut Notes) -> AcceleratorMemory {
        match device.memory_info() {
            Ok(memory) if memory.total > 0 => AcceleratorMemory {
                total_bytes: Some(memory.total),
                used_bytes: Some(memory.used),
                free_bytes: Some(memory.free),
                reserved_bytes: Some(memory.reserved),
                unified: false,
                ..AcceleratorMemory::default()
            },
            // GB10, Jetson: the device shares the host's memory, and the driver has no figure of its own.
            Ok(_) | Err(NvmlError::NotSupported) => shared(self.ram),
            Err(error) => {
                notes.note::<()>("memory", &error);
                AcceleratorMemory::default()
            }
        }
    }

    fn processes(&self, device: &Device, notes: &mut Notes) -> Vec<AcceleratorProcess> {
        let found = notes.take("processes", device.running_compute_processes()).unwrap_or_default();
        let process = |process: nvml_wrapper::struct_wrappers::device::ProcessInfo| AcceleratorProcess {
            pid: process.pid,
            used_bytes: match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(bytes),
                UsedGpuMemory::Unavailable => None,
            },
            ours: self.ours.contains(&process.pid),
            ..AcceleratorProcess::default()
        };
        let mut processes: Vec<AcceleratorProcess> = found.into_iter().map(process).collect();
        processes.sort_by_key(|process| process.pid);
        processes
    }
}

/// Reasons collected while a device is read.
#[derive(Default)]
struct Notes {
    reasons: Unknown,
    fault: Option<String>,
}

impl Notes {
    fn take<T>(&mut self, field: &str, answer: Result<T, NvmlError>) -> Option<T> {
        answer.map_or_else(|error| self.note(field, &error), Some)
    }

    fn note<T>(&mut self, field: &str, error: &NvmlError) -> Option<T> {
        self.reasons.insert(field.into(), error.to_string());
        if is_fault(error) && self.fault.is_none() {
            self.fault = Some(error.to_string());
        }
        None
    }

    fn finish(self, found: &mut Accelerator) {
        found.unknown = self.reasons;
        if let Some(fault) = self.fault {
            found.healthy = false;
            found.unknown.insert("healthy".into(), fault);
        }
    }
}

/// Bus width times the highest memory clock, twice per clock. That is the published figure of every GDDR
/// and HBM card.
fn bandwidth(device: &Device) -> Result<u64, NvmlError> {
    let (bits, megahertz) = (device.memory_bus_width()?, device.max_clock_info(Clock::Memory)?);
    if bits == 0 || megahertz == 0 {
        return Err(NvmlError::NotSupported);
    }
    Ok(u64::from(bits) / 8 * u64::from(megahertz) * 1_000_000 * 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(index: u32, pci: Option<&str>) -> Accelerator {
        let uuid = format!("ada-1#{index}");
        Accelerator { uuid, index, pci: pci.map(str::to_owned), healthy: pci.is_some(), ..Accelerator::default() }
    }

    /// The folder stands in for `/proc/driver/nvidia/gpus` of a node with two GPUs.
    #[test]
    fn a_gpu_that_fell_off_the_bus_keeps_its_identity() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = |name: &str| folder.path().join(name);
        let tree = Tree { sys: root("sys"), proc: root("proc"), share: root("share") };
        for (address, uuid) in [("0000:01:00.0", "GPU-aaaa"), ("0000:41:00.0", "GPU-bbbb")] {
            let gpu = tree.proc.join("driver/nvidia/gpus").join(address);
            std::fs::create_dir_all(&gpu).expect("made");
            let text = format!("Model: \t\t NVIDIA L4\nIRQ:   \t\t 33\nGPU UUID: \t {uuid}\nBus Type: \t PCIe\n");
            std::fs::write(gpu.join("information"), text).expect("written");
        }
        let listed = listed(&tree);
        assert_eq!(listed[1], ("0000:41:00.0".to_owned(), Some("GPU-bbbb".to_owned())));
        // NVML counts it and has no handle for it.
        let mut found = vec![device(0, Some("00000000:01:00.0")), device(1, None)];
        lost(&listed, "ada-1", &mut found);
        assert_eq!(
            (found.len(), found[1].uuid.as_str(), found[1].pci.as_deref()),
            (2, "GPU-bbbb", Some("0000:41:00.0"))
        );
        // NVML does not even count it.
        let mut found = vec![device(0, Some("00000000:01:00.0"))];
        lost(&listed, "ada-1", &mut found);
        assert_eq!((found.len(), found[1].uuid.as_str(), found[1].healthy), (2, "GPU-bbbb", false));
        assert!(found[1].unknown["healthy"].contains("reboot"));
        // Everything answers; and a kernel module of another kind lists nothing.
        let mut found = vec![device(0, Some("00000000:01:00.0")), device(0, Some("00000000:41:00.0"))];
        lost(&listed, "ada-1", &mut found);
        lost(&[], "ada-1", &mut found);
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|device| device.healthy));
    }

    #[test]
    fn a_missing_feature_is_no_fault() {
        assert!(is_fault(&NvmlError::GpuLost));
        assert!(!is_fault(&NvmlError::NotSupported));
        assert!(!is_fault(&NvmlError::NoPermission));
    }
}
