//! NVIDIA accelerators through NVML. Each device is asked by itself: a broken one never hides the others.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nvml_wrapper::enum_wrappers::device::Clock;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::nvlink::{Whole, links};
use crate::inventory::{Accelerator, AcceleratorLink, AcceleratorMemory, AcceleratorProcess, Ram, Unknown};

/// How long the driver may take to answer everything. A driver that hangs is reported, not waited for: well
/// within the time that whoever asks for the node's facts waits for them.
const DRIVER_DEADLINE: Duration = Duration::from_secs(10);

/// There while the NVIDIA kernel module is loaded.
const KERNEL_MODULE: &str = "/proc/driver/nvidia/version";

/// What the driver tells.
#[derive(Debug, Default)]
pub struct Found {
    /// Devices, MIG slices instead of their parents.
    pub accelerators: Vec<Accelerator>,
    /// Links between whole devices.
    pub links: Vec<AcceleratorLink>,
    /// Why the devices are not known, where a driver library is there but does not work.
    pub problem: Option<String>,
}

/// Asks for everything, with a deadline. `ours` are the processes of this cluster's instances.
pub fn probe(node: &str, ours: BTreeSet<u32>, ram: Ram) -> Found {
    let node = node.to_owned();
    within_deadline(move || match open() {
        Ok(Some(nvml)) => devices(&nvml, &node, &ours, &ram),
        Ok(None) => Found::default(),
        Err(problem) => Found { problem: Some(problem), ..Found::default() },
    })
    .unwrap_or_else(|| Found {
        problem: Some(format!("the driver did not answer within {} s", DRIVER_DEADLINE.as_secs())),
        ..Found::default()
    })
}

/// Memory in use and processes that hold it, summed over these devices; `None` where the driver does not tell.
pub fn held(uuids: &[String]) -> Option<(u64, BTreeSet<u32>)> {
    let uuids = uuids.to_vec();
    within_deadline(move || {
        let nvml = open().ok()??;
        let (mut used, mut pids) = (0, BTreeSet::new());
        for uuid in &uuids {
            let device = nvml.device_by_uuid(uuid.as_str()).ok()?;
            used += device.memory_info().map_or(0, |memory| memory.used);
            pids.extend(device.running_compute_processes().ok()?.into_iter().map(|process| process.pid));
        }
        Some((used, pids))
    })
    .flatten()
}

fn within_deadline<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let _ = sender.send(work());
    });
    receiver.recv_timeout(DRIVER_DEADLINE).ok()
}

/// The driver library. `Ok(None)`: there is none. `Err`: it is there and does not work.
fn open() -> Result<Option<Nvml>, String> {
    match Nvml::init() {
        Ok(nvml) => Ok(Some(nvml)),
        Err(NvmlError::LibloadingError(error)) => {
            let text = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            match (text.contains("No such file"), Path::new(KERNEL_MODULE).exists()) {
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

fn devices(nvml: &Nvml, node: &str, ours: &BTreeSet<u32>, ram: &Ram) -> Found {
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
                let found = reading.device(&device, node);
                if found.healthy {
                    whole.push(Whole { uuid: found.uuid.clone(), index, device });
                }
                accelerators.push(found);
            }
            Some(slices) if slices.is_empty() => {
                let mut found = reading.device(&device, node);
                found.healthy = false;
                let reason = "MIG mode is on and no instance is made";
                found.unknown.entry("healthy".into()).or_insert_with(|| reason.into());
                accelerators.push(found);
            }
            Some(slices) => {
                let parent = reading.device(&device, node);
                accelerators.extend(slices.iter().map(|slice| reading.slice(slice, &parent, node)));
            }
        }
    }
    let links = links(nvml, &whole);
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
        unknown: Unknown::from([("healthy".into(), error.to_string())]),
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
    fn device(&self, device: &Device, node: &str) -> Accelerator {
        let mut found = Accelerator {
            index: self.index,
            vendor: "nvidia".into(),
            driver: self.driver.clone(),
            healthy: true,
            ..Accelerator::default()
        };
        let mut notes = Notes::default();
        found.uuid = notes.take("uuid", device.uuid()).unwrap_or_else(|| format!("{node}#{}", self.index));
        found.name = notes.take("name", device.name()).unwrap_or_else(|| "unknown".into());
        found.pci = notes.take("pci", device.pci_info()).map(|pci| pci.bus_id);
        found.memory = self.memory(device, &mut notes);
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
        found.processes = self.processes(device, &mut notes);
        notes.finish(&mut found);
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
            },
            // GB10, Jetson: the device shares the host's memory, and the driver has no figure of its own.
            Ok(_) | Err(NvmlError::NotSupported) => AcceleratorMemory {
                total_bytes: self.ram.total_bytes,
                used_bytes: self
                    .ram
                    .total_bytes
                    .zip(self.ram.available_bytes)
                    .map(|(all, free)| all.saturating_sub(free)),
                free_bytes: self.ram.available_bytes,
                reserved_bytes: None,
                unified: true,
            },
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

    #[test]
    fn a_missing_feature_is_no_fault() {
        assert!(is_fault(&NvmlError::GpuLost));
        assert!(!is_fault(&NvmlError::NotSupported));
        assert!(!is_fault(&NvmlError::NoPermission));
    }
}
