//! A stand-in for the NVIDIA driver's library: what NVML would tell, from a text file and from live processes.
//!
//! Build it, and put it where the loader finds it as `libnvidia-ml.so.1`:
//!
//! ```text
//! rustc --edition 2024 -O -C panic=abort --crate-type cdylib -o DIR/libnvidia-ml.so.1 nvml_stand_in.rs
//! LD_LIBRARY_PATH=DIR FLOCK_FAKE_NVML=FILE flock-agent serve …
//! ```
//!
//! It behaves like the driver down to its errors: a feature that a device lacks is `NOT_SUPPORTED`, a device
//! that fell off the bus answers `GPU_IS_LOST`, a buffer that is too small says so. A change of the file
//! shows at the next call. `#` begins a comment; each other line is one GPU:
//!
//! ```text
//! NAME | UUID | TOTAL_MIB | USED_MIB | PCI_BUS_ID | CC | PEERS | PID:MIB,… | FLAGS
//! NVIDIA GeForce RTX 4090 | GPU-aaaa | 24564 | 300 | 00000000:01:00.0 | 8.9 | | | reserved=400 bus=384 clock=10501
//! ```
//!
//! Everything after `USED_MIB` may be left out. `PEERS` are indices joined by NVLink, comma-separated.
//! `FLAGS`, separated by blanks:
//!
//! | flag | meaning |
//! | --- | --- |
//! | `reserved=MIB` | what the driver keeps, part of the total |
//! | `unified` | memory figures are `NOT_SUPPORTED`, as on GB10 and Jetson |
//! | `denied` | memory figures are `NO_PERMISSION` |
//! | `broken` | the device has a handle and answers `GPU_IS_LOST` to memory and processes |
//! | `lost` | the device has no handle: `GPU_IS_LOST` |
//! | `mig=UUID:MIB,…` | MIG mode is on, with these slices (none: `mig=`) |
//! | `nouuid` | the device has no UUID, as an older Jetson's: `NOT_SUPPORTED` |
//! | `ecc`, `display` | ECC is on; a display is active |
//! | `bus=BITS`, `clock=MHZ` | memory bus width and highest memory clock |
//! | `switch` | its NVLinks (twelve) end in a switch |
//! | `numa=N`, `pcie=N` | NUMA node and PCIe switch: devices with equal numbers share it |
//!
//! A line `! mismatch` or `! unloaded` makes the library's start fail with that error; with `! hang` it never returns.
//!
//! Used memory follows life: every process whose environment holds `FLOCK_INSTANCE` and a
//! `CUDA_VISIBLE_DEVICES` that names the UUID (or a slice's) holds `FLOCK_FAKE_HOLD_MIB` of its environment, or
//! its resident size. Of several processes of one instance, the first holds it all. When the process is gone,
//! so is its share.
#![allow(non_snake_case, non_camel_case_types, clippy::missing_safety_doc)]

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::fs;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::ptr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

type Return = c_uint;
/// 1 + index of the GPU, plus 65536 times (1 + index of the slice).
type Handle = *mut c_void;

const SUCCESS: Return = 0;
const INVALID_ARGUMENT: Return = 2;
const NOT_SUPPORTED: Return = 3;
const NO_PERMISSION: Return = 4;
const NOT_FOUND: Return = 6;
const INSUFFICIENT_SIZE: Return = 7;
const DRIVER_NOT_LOADED: Return = 9;
const GPU_IS_LOST: Return = 15;
const LIB_RM_VERSION_MISMATCH: Return = 18;

const MIB: u64 = 1 << 20;
const SWITCH_LINKS: u32 = 12;
const SWITCH_BUS: &str = "00000000:C0:00.0";

#[derive(Clone, Default)]
struct Gpu {
    name: String,
    uuid: String,
    total: u64,
    used: u64,
    bus: String,
    capability: (c_int, c_int),
    peers: Vec<usize>,
    processes: Vec<(u32, u64)>,
    flags: BTreeMap<String, String>,
}

/// A GPU, or a slice of one.
struct Target {
    gpu: Gpu,
    slice: Option<(String, u64)>,
}

/// The file as it was read last, with what told it from others then. A driver has its state in memory: only looking for
/// a change keeps a call as cheap as the driver's.
static READ: Mutex<Option<(Stamp, Table)>> = Mutex::new(None);
type Stamp = (u64, u64, i64, i64);
type Table = (String, Vec<Gpu>);

fn with_table<T>(with: impl FnOnce(&Table) -> T) -> T {
    let path = std::env::var_os("FLOCK_FAKE_NVML").unwrap_or_default();
    let stamp = fs::metadata(&path).map_or((0, 0, 0, 0), |found| (found.ino(), found.len(), found.ctime(), found.ctime_nsec()));
    let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
    match &*read {
        Some((known, table)) if *known == stamp => with(table),
        _ => {
            let text = fs::read_to_string(&path).unwrap_or_default();
            let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(['#', '!']));
            let gpus = lines.map(gpu).collect();
            with(&read.insert((stamp, (text, gpus))).1)
        }
    }
}

fn text() -> String {
    with_table(|(text, _)| text.clone())
}

fn gpus() -> Vec<Gpu> {
    with_table(|(_, gpus)| gpus.clone())
}

fn gpu(line: &str) -> Gpu {
    let fields: Vec<&str> = line.split('|').map(str::trim).collect();
    let field = |index: usize| fields.get(index).copied().unwrap_or("");
    let (major, minor) = field(5).split_once('.').unwrap_or(("0", "0"));
    let pair = |text: &str| {
        let (pid, mib) = text.split_once(':')?;
        Some((pid.trim().parse().ok()?, mib.trim().parse::<u64>().ok()? * MIB))
    };
    Gpu {
        name: field(0).to_owned(),
        uuid: field(1).to_owned(),
        total: field(2).parse().unwrap_or(0) * MIB,
        used: field(3).parse().unwrap_or(0) * MIB,
        bus: field(4).to_owned(),
        capability: (major.parse().unwrap_or(0), minor.parse().unwrap_or(0)),
        peers: field(6).split(',').filter_map(|index| index.trim().parse().ok()).collect(),
        processes: field(7).split(',').filter_map(pair).collect(),
        flags: field(8)
            .split_ascii_whitespace()
            .map(|flag| flag.split_once('=').unwrap_or((flag, "")))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
    }
}

impl Gpu {
    fn has(&self, flag: &str) -> bool {
        self.flags.contains_key(flag)
    }

    fn number(&self, flag: &str) -> Option<u64> {
        self.flags.get(flag)?.parse().ok()
    }

    fn slices(&self) -> Vec<(String, u64)> {
        let list = self.flags.get("mig").map_or("", String::as_str);
        list.split(',')
            .filter_map(|slice| slice.rsplit_once(':'))
            .filter_map(|(uuid, mib)| Some((uuid.to_owned(), mib.parse::<u64>().ok()? * MIB)))
            .collect()
    }
}

impl Target {
    fn uuid(&self) -> &str {
        self.slice.as_ref().map_or(&self.gpu.uuid, |(uuid, _)| uuid)
    }

    /// Who holds how much: the file's processes (of the whole device), and live engines.
    fn holders(&self) -> Vec<(u32, u64)> {
        let mut holders = if self.slice.is_some() { Vec::new() } else { self.gpu.processes.clone() };
        holders.extend(engines(self.uuid()));
        holders
    }

    fn memory(&self) -> Result<(u64, u64, u64), Return> {
        if self.gpu.has("unified") {
            return Err(NOT_SUPPORTED);
        }
        if self.gpu.has("denied") {
            return Err(NO_PERMISSION);
        }
        if self.gpu.has("broken") {
            return Err(GPU_IS_LOST);
        }
        let (total, reserved, base) = match &self.slice {
            Some((_, bytes)) => (*bytes, 0, 0),
            None => (self.gpu.total, self.gpu.number("reserved").unwrap_or(0) * MIB, self.gpu.used),
        };
        let held: u64 = engines(self.uuid()).iter().map(|(_, bytes)| bytes).sum();
        Ok((total, reserved, (base + held).min(total - reserved)))
    }
}

/// A live process of an instance.
#[derive(Clone)]
struct Engine {
    pid: u32,
    instance: String,
    visible: String,
    declared: Option<u64>,
}

/// How old the list of live processes may be: the driver knows its own, and one question of flock is many calls here.
const FRESH: Duration = Duration::from_millis(20);
/// Processes that were no engine's, by number and inode, with the time that this was first seen. An engine is one
/// soon after its start: who was none for long is not read again.
static SETTLED: Mutex<BTreeMap<(u32, u64), Instant>> = Mutex::new(BTreeMap::new());
const OLD: Duration = Duration::from_secs(5);
static LIVE: Mutex<Option<(Instant, Vec<Engine>)>> = Mutex::new(None);

fn live() -> Vec<Engine> {
    let mut known = LIVE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, engines)) = known.as_ref().filter(|(looked, _)| looked.elapsed() < FRESH) {
        return engines.clone();
    }
    let mut processes: Vec<(u32, u64)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.ino())))
        .collect();
    processes.sort_unstable();
    let mut settled = SETTLED.lock().unwrap_or_else(PoisonError::into_inner);
    settled.retain(|process, _| processes.binary_search(process).is_ok());
    let engines: Vec<Engine> = processes
        .into_iter()
        .filter_map(|process| {
            let since = *settled.entry(process).or_insert_with(Instant::now);
            if since.elapsed() > OLD {
                return None;
            }
            let engine = engine(process.0);
            // Of an engine, its end is all that can change.
            if engine.is_some() {
                settled.remove(&process);
            }
            engine
        })
        .collect();
    *known = Some((Instant::now(), engines.clone()));
    engines
}

fn engine(pid: u32) -> Option<Engine> {
    let environ = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let environ = String::from_utf8_lossy(&environ);
    let value = |name: &str| environ.split('\0').find_map(|entry| entry.strip_prefix(name)?.strip_prefix('='));
    Some(Engine {
        pid,
        instance: value("FLOCK_INSTANCE")?.to_owned(),
        visible: value("CUDA_VISIBLE_DEVICES")?.to_owned(),
        declared: value("FLOCK_FAKE_HOLD_MIB").and_then(|mib| mib.parse::<u64>().ok()).map(|mib| mib * MIB),
    })
}

/// Live processes of instances that see this device. The first of an instance holds everything.
fn engines(uuid: &str) -> Vec<(u32, u64)> {
    let mut instances = Vec::new();
    let mut found = Vec::new();
    for engine in live() {
        let sees = engine.visible.split(',').any(|device| device.trim() == uuid);
        if sees && !instances.contains(&engine.instance) {
            instances.push(engine.instance);
            found.push((engine.pid, engine.declared.unwrap_or_else(|| resident(engine.pid))));
        }
    }
    found
}

fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) * 1024
}

fn target(handle: Handle) -> Option<Target> {
    let (gpu, slice) = (handle as usize & 0xffff, handle as usize >> 16);
    let gpu = with_table(|(_, gpus)| gpus.get(gpu.checked_sub(1)?).cloned())?;
    let slice = match slice.checked_sub(1) {
        Some(index) => Some(gpu.slices().into_iter().nth(index)?),
        None => None,
    };
    Some(Target { gpu, slice })
}

fn index(handle: Handle) -> usize {
    (handle as usize & 0xffff).wrapping_sub(1)
}

fn handle(gpu: usize, slice: Option<usize>) -> Handle {
    ((gpu + 1) | (slice.map_or(0, |slice| slice + 1) << 16)) as Handle
}

unsafe fn put_text(text: &str, to: *mut c_char, length: usize) -> Return {
    if text.len() + 1 > length {
        return INSUFFICIENT_SIZE;
    }
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr().cast(), to, text.len());
        *to.add(text.len()) = 0;
    }
    SUCCESS
}

#[repr(C)]
pub struct Memory {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

#[repr(C)]
pub struct Pci {
    legacy: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    id: c_uint,
    sub_system: c_uint,
    bus_id: [c_char; 32],
}

#[repr(C)]
pub struct ProcessInfo {
    pid: c_uint,
    bytes: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

unsafe fn put_pci(bus: &str, to: *mut Pci) -> Return {
    let part = |index: usize| bus.split([':', '.']).nth(index).and_then(|text| u32::from_str_radix(text, 16).ok());
    unsafe {
        (*to).domain = part(0).unwrap_or(0);
        (*to).bus = part(1).unwrap_or(0);
        (*to).device = part(2).unwrap_or(0);
        (*to).id = 0x2684_10DE;
        (*to).sub_system = 0x1000_10DE;
        put_text(&bus[bus.len().saturating_sub(12)..], (*to).legacy.as_mut_ptr(), 16);
        put_text(bus, (*to).bus_id.as_mut_ptr(), 32)
    }
}

/// Exported functions. A body answers `Result`; an error is the driver's.
macro_rules! exports {
    ($($name:ident($($argument:ident: $kind:ty),*) $body:block)*) => {
        $(#[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> Return {
            #[allow(unused_unsafe)]
            let answer: Result<Return, Return> = (|| unsafe { $body })();
            answer.unwrap_or_else(|error| error)
        })*
    };
}

exports! {
    nvmlInit_v2() {
        let text = text();
        let fault = text.lines().find_map(|line| line.trim().strip_prefix('!')).map(str::trim);
        match fault {
            Some("hang") => loop {
                std::thread::park();
            },
            Some("mismatch") => Err(LIB_RM_VERSION_MISMATCH),
            Some(_) => Err(DRIVER_NOT_LOADED),
            None => Ok(SUCCESS),
        }
    }
    nvmlShutdown() { Ok(SUCCESS) }
    nvmlSystemGetDriverVersion(to: *mut c_char, length: c_uint) { Ok(put_text("570.00.00", to, length as usize)) }
    nvmlSystemGetNVMLVersion(to: *mut c_char, length: c_uint) { Ok(put_text("12.570.00.00", to, length as usize)) }
    nvmlDeviceGetCount_v2(to: *mut c_uint) {
        *to = gpus().len() as c_uint;
        Ok(SUCCESS)
    }
    nvmlDeviceGetHandleByIndex_v2(number: c_uint, to: *mut Handle) {
        let gpu = gpus().into_iter().nth(number as usize).ok_or(INVALID_ARGUMENT)?;
        if gpu.has("lost") {
            return Err(GPU_IS_LOST);
        }
        *to = handle(number as usize, None);
        Ok(SUCCESS)
    }
    nvmlDeviceGetHandleByUUID(uuid: *const c_char, to: *mut Handle) {
        let uuid = std::ffi::CStr::from_ptr(uuid).to_str().map_err(|_| INVALID_ARGUMENT)?;
        for (number, gpu) in gpus().into_iter().enumerate() {
            let slice = gpu.slices().iter().position(|(slice, _)| slice == uuid);
            if slice.is_some() || (gpu.uuid == uuid && !gpu.has("lost")) {
                *to = handle(number, slice);
                return Ok(SUCCESS);
            }
        }
        Err(NOT_FOUND)
    }
    nvmlDeviceGetIndex(device: Handle, to: *mut c_uint) {
        *to = index(device) as c_uint;
        Ok(SUCCESS)
    }
    nvmlDeviceGetName(device: Handle, to: *mut c_char, length: c_uint) {
        let target = target(device).ok_or(INVALID_ARGUMENT)?;
        Ok(put_text(&target.gpu.name, to, length as usize))
    }
    nvmlDeviceGetUUID(device: Handle, to: *mut c_char, length: c_uint) {
        let target = target(device).ok_or(INVALID_ARGUMENT)?;
        if target.gpu.has("nouuid") {
            return Err(NOT_SUPPORTED);
        }
        Ok(put_text(target.uuid(), to, length as usize))
    }
    nvmlDeviceGetPciInfo_v3(device: Handle, to: *mut Pci) {
        let target = target(device).ok_or(INVALID_ARGUMENT)?;
        if target.slice.is_some() {
            return Err(NOT_SUPPORTED);
        }
        Ok(put_pci(&target.gpu.bus, to))
    }
    nvmlDeviceGetMemoryInfo_v2(device: Handle, to: *mut Memory) {
        let (total, reserved, used) = target(device).ok_or(INVALID_ARGUMENT)?.memory()?;
        (*to).total = total;
        (*to).reserved = reserved;
        (*to).used = used;
        (*to).free = total - reserved - used;
        Ok(SUCCESS)
    }
    nvmlDeviceGetCudaComputeCapability(device: Handle, major: *mut c_int, minor: *mut c_int) {
        (*major, *minor) = target(device).ok_or(INVALID_ARGUMENT)?.gpu.capability;
        Ok(SUCCESS)
    }
    nvmlDeviceGetEccMode(device: Handle, current: *mut c_uint, pending: *mut c_uint) {
        let target = target(device).ok_or(INVALID_ARGUMENT)?;
        if !target.gpu.has("ecc") {
            return Err(NOT_SUPPORTED);
        }
        (*current, *pending) = (1, 1);
        Ok(SUCCESS)
    }
    nvmlDeviceGetDisplayActive(device: Handle, to: *mut c_uint) {
        *to = c_uint::from(target(device).ok_or(INVALID_ARGUMENT)?.gpu.has("display"));
        Ok(SUCCESS)
    }
    nvmlDeviceGetMemoryBusWidth(device: Handle, to: *mut c_uint) {
        *to = target(device).ok_or(INVALID_ARGUMENT)?.gpu.number("bus").ok_or(NOT_SUPPORTED)? as c_uint;
        Ok(SUCCESS)
    }
    nvmlDeviceGetMaxClockInfo(device: Handle, kind: c_uint, to: *mut c_uint) {
        const MEMORY_CLOCK: c_uint = 2;
        let clock = target(device).ok_or(INVALID_ARGUMENT)?.gpu.number("clock").filter(|_| kind == MEMORY_CLOCK);
        *to = clock.ok_or(NOT_SUPPORTED)? as c_uint;
        Ok(SUCCESS)
    }
    nvmlDeviceGetComputeRunningProcesses_v3(device: Handle, count: *mut c_uint, to: *mut ProcessInfo) {
        let target = target(device).ok_or(INVALID_ARGUMENT)?;
        if target.gpu.has("broken") {
            return Err(GPU_IS_LOST);
        }
        let holders = target.holders();
        let room = *count as usize;
        *count = holders.len() as c_uint;
        if holders.is_empty() {
            return Ok(SUCCESS);
        }
        if to.is_null() || room < holders.len() {
            return Err(INSUFFICIENT_SIZE);
        }
        for (position, (pid, bytes)) in holders.into_iter().enumerate() {
            // A device with unified memory does not tell what a process holds.
            let bytes = if target.gpu.has("unified") { u64::MAX } else { bytes };
            *to.add(position) = ProcessInfo { pid, bytes, gpu_instance: !0, compute_instance: !0 };
        }
        Ok(SUCCESS)
    }
    nvmlDeviceGetMigMode(device: Handle, current: *mut c_uint, pending: *mut c_uint) {
        let on = target(device).ok_or(INVALID_ARGUMENT)?.gpu.has("mig");
        if !on {
            return Err(NOT_SUPPORTED);
        }
        (*current, *pending) = (1, 1);
        Ok(SUCCESS)
    }
    nvmlDeviceGetMaxMigDeviceCount(device: Handle, to: *mut c_uint) {
        *to = if target(device).ok_or(INVALID_ARGUMENT)?.gpu.has("mig") { 7 } else { 0 };
        Ok(SUCCESS)
    }
    nvmlDeviceGetMigDeviceHandleByIndex(device: Handle, number: c_uint, to: *mut Handle) {
        let slices = target(device).ok_or(INVALID_ARGUMENT)?.gpu.slices().len();
        if number as usize >= slices {
            return Err(NOT_FOUND);
        }
        *to = handle(index(device), Some(number as usize));
        Ok(SUCCESS)
    }
    nvmlDeviceGetTopologyCommonAncestor(a: Handle, b: Handle, to: *mut c_uint) {
        let (a, b) = (target(a).ok_or(INVALID_ARGUMENT)?.gpu, target(b).ok_or(INVALID_ARGUMENT)?.gpu);
        let shared = |flag: &str| a.flags.get(flag).is_some_and(|value| b.flags.get(flag) == Some(value));
        *to = if shared("pcie") { 10 } else if shared("numa") { 40 } else { 50 };
        Ok(SUCCESS)
    }
    nvmlDeviceGetNvLinkState(device: Handle, link: c_uint, to: *mut c_uint) {
        let gpu = target(device).ok_or(INVALID_ARGUMENT)?.gpu;
        let active = if gpu.has("switch") { SWITCH_LINKS } else { gpu.peers.len() as u32 };
        if active == 0 {
            return Err(NOT_SUPPORTED);
        }
        if link >= 18 {
            return Err(INVALID_ARGUMENT);
        }
        *to = c_uint::from(link < active);
        Ok(SUCCESS)
    }
    nvmlDeviceGetNvLinkVersion(_device: Handle, _link: c_uint, to: *mut c_uint) {
        *to = 3;
        Ok(SUCCESS)
    }
    nvmlDeviceGetNvLinkRemoteDeviceType(device: Handle, _link: c_uint, to: *mut c_uint) {
        // NVML_NVLINK_DEVICE_TYPE_GPU, …_SWITCH
        *to = if target(device).ok_or(INVALID_ARGUMENT)?.gpu.has("switch") { 2 } else { 0 };
        Ok(SUCCESS)
    }
    nvmlDeviceGetNvLinkRemotePciInfo_v2(device: Handle, link: c_uint, to: *mut Pci) {
        let gpu = target(device).ok_or(INVALID_ARGUMENT)?.gpu;
        if gpu.has("switch") {
            return Ok(put_pci(SWITCH_BUS, to));
        }
        let peer = gpu.peers.get(link as usize).copied().ok_or(INVALID_ARGUMENT)?;
        let peer = gpus().into_iter().nth(peer).ok_or(INVALID_ARGUMENT)?;
        Ok(put_pci(&peer.bus, to))
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(code: Return) -> *const c_char {
    if code == SUCCESS { c"Success".as_ptr() } else { c"Error".as_ptr() }
}
