//! What an accelerator and a host can still take.

use crate::base::{Bytes, GIB, MIB};
use crate::inventory::{Accelerator, NodeFacts};

/// Kept free on a node's host memory unless the config says otherwise.
pub const DEFAULT_RESERVE_RAM: Bytes = Bytes(2 * GIB);
/// What the figure of free memory may lag behind.
const FREE_MARGIN: u64 = 256 * MIB;

/// What may be planned on one accelerator, or on a host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Bytes that may be planned, those that flock already holds included; `None` where it cannot be known.
    pub bytes: Option<u64>,
    /// The whole of it.
    pub total_bytes: Option<u64>,
    /// What was assumed or left out, for warnings.
    pub notes: Vec<String>,
}

/// Kept free on an accelerator unless the config says otherwise: 8 % of its total, which is what vLLM's own
/// default utilisation of 0.92 leaves. Rounded down, so that 0.92 of the total is left.
pub fn default_reserve_vram(total_bytes: u64) -> Bytes {
    let reserve = u128::from(total_bytes) * 8 / 100;
    Bytes(u64::try_from(reserve).unwrap_or(u64::MAX))
}

/// Capacity of an accelerator: the smaller of total less driver's reserve less `reserve_vram`, and what is free
/// now plus what flock itself holds (`held_by_us_bytes`) less 256 MiB. An unknown driver reserve counts as 0 and
/// is noted, an unknown free drops the second term.
///
/// A unified pool is host memory: only `reserve_ram` is taken, and what is free is what the agent found free of the
/// pool (an APU has a carve-out besides, which the host does not count), else the host's. Planning on such an
/// accelerator takes the same bytes from [`host_capacity`].
pub fn accelerator_capacity(
    accelerator: &Accelerator,
    reserve_vram: Option<Bytes>,
    held_by_us_bytes: u64,
    node: &NodeFacts,
    reserve_ram: Option<Bytes>,
) -> Capacity {
    let memory = &accelerator.memory;
    let mut notes = Vec::new();
    let name = &accelerator.name;
    if memory.unified {
        let total_bytes = memory.total_bytes.or(node.ram.total_bytes);
        let reserve = reserve_ram.unwrap_or(DEFAULT_RESERVE_RAM).0;
        let Some(total) = total_bytes else {
            notes.push(format!("the memory of {name} is unknown"));
            return Capacity { bytes: None, total_bytes, notes };
        };
        let now = memory.free_bytes.or(node.ram.available_bytes);
        let ceiling = total.saturating_sub(reserve);
        let bytes = match now {
            Some(free) => ceiling.min(free.saturating_add(held_by_us_bytes).saturating_sub(reserve)),
            None => {
                notes.push(format!("how much of {name} is free is unknown; all of it is assumed"));
                ceiling
            }
        };
        return Capacity { bytes: Some(bytes), total_bytes, notes };
    }
    let Some(total) = memory.total_bytes else {
        notes.push(format!("the memory of {name} is unknown"));
        return Capacity { bytes: None, total_bytes: None, notes };
    };
    let reserved = memory.reserved_bytes.unwrap_or_else(|| {
        notes.push(format!("what the driver keeps of {name} is unknown and counts as 0"));
        0
    });
    let reserve = reserve_vram.unwrap_or_else(|| default_reserve_vram(total)).0;
    let ceiling = total.saturating_sub(reserved).saturating_sub(reserve);
    let bytes = match memory.free_bytes {
        Some(free) => ceiling.min(free.saturating_add(held_by_us_bytes).saturating_sub(FREE_MARGIN)),
        None => {
            notes.push(format!("how much of {name} is free is unknown; nobody else is assumed on it"));
            ceiling
        }
    };
    Capacity { bytes: Some(bytes), total_bytes: Some(total), notes }
}

/// Capacity of a node's host memory: what is available plus what flock itself holds less the reserve.
pub fn host_capacity(node: &NodeFacts, reserve_ram: Option<Bytes>, held_by_us_bytes: u64) -> Capacity {
    let reserve = reserve_ram.unwrap_or(DEFAULT_RESERVE_RAM).0;
    let total_bytes = node.ram.total_bytes;
    let mut notes = Vec::new();
    let bytes = match (node.ram.available_bytes, total_bytes) {
        (Some(available), total) => {
            let bytes = available.saturating_add(held_by_us_bytes).saturating_sub(reserve);
            Some(total.map_or(bytes, |total| bytes.min(total.saturating_sub(reserve))))
        }
        (None, Some(total)) => {
            notes.push(format!("how much memory of {} is available is unknown; all of it is assumed", node.name));
            Some(total.saturating_sub(reserve))
        }
        (None, None) => {
            notes.push(format!("the memory of {} is unknown", node.name));
            None
        }
    };
    Capacity { bytes, total_bytes, notes }
}
