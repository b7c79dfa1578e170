//! How the accelerators of a node are joined: NVLink, directly or through a switch, else PCI.

use nvml_wrapper::enum_wrappers::device::TopologyLevel;
use nvml_wrapper::enum_wrappers::nv_link::IntDeviceType;
use nvml_wrapper::{Device, Nvml};

use crate::inventory::AcceleratorLink;

/// More links than any GPU has.
const MAX_NVLINKS: u32 = 36;

/// A whole device that works.
pub struct Whole<'nvml> {
    /// Its UUID.
    pub uuid: String,
    /// The driver's index.
    pub index: u32,
    /// Its handle.
    pub device: Device<'nvml>,
}

/// How every two of them are joined.
pub fn links(nvml: &Nvml, devices: &[Whole]) -> Vec<AcceleratorLink> {
    let ends: Vec<Vec<End>> = devices.iter().map(|whole| nvlinks(&whole.device)).collect();
    let mut found = Vec::new();
    for (left, one) in devices.iter().enumerate() {
        for (right, other) in devices.iter().enumerate().skip(left + 1) {
            let bus = other.device.pci_info().ok().map(|pci| pci.bus_id);
            let (kind, bandwidth_bytes_per_s) = match nvlink_between(&ends[left], &ends[right], bus) {
                Some(speed) => ("nvlink", speed),
                None => (topology(nvml, one, other), None),
            };
            let (a, b) = (one.uuid.clone(), other.uuid.clone());
            found.push(AcceleratorLink { a, b, kind: kind.into(), bandwidth_bytes_per_s });
        }
    }
    found
}

/// How two devices meet on PCI. Unknown topology is the slowest: whoever plans on it is never disappointed.
fn topology(nvml: &Nvml, one: &Whole, other: &Whole) -> &'static str {
    let level = nvml.device_by_index(other.index).and_then(|other| one.device.topology_common_ancestor(other));
    match level {
        Ok(TopologyLevel::Internal | TopologyLevel::Single | TopologyLevel::Multiple) => "pcie",
        Ok(TopologyLevel::HostBridge | TopologyLevel::Node) => "numa",
        Ok(TopologyLevel::System) | Err(_) => "system",
    }
}

/// The other end of an active NVLink.
struct End {
    switch: bool,
    bus_id: Option<String>,
    bytes_per_s: Option<u64>,
}

fn nvlinks(device: &Device) -> Vec<End> {
    (0..MAX_NVLINKS)
        .filter_map(|index| {
            let link = device.link_wrapper_for(index);
            link.is_active().ok().filter(|active| *active)?;
            Some(End {
                switch: matches!(link.remote_device_type(index), Ok(IntDeviceType::Switch)),
                bus_id: link.remote_pci_info().ok().map(|pci| pci.bus_id),
                bytes_per_s: link.version().ok().and_then(nvlink_speed),
            })
        })
        .collect()
}

/// Bytes per second and direction of one link.
fn nvlink_speed(version: u32) -> Option<u64> {
    match version {
        1 => Some(20_000_000_000),
        2..=4 => Some(25_000_000_000),
        5 => Some(50_000_000_000),
        _ => None,
    }
}

/// Whether two devices are joined: directly, or both to a switch. `Some(None)`: joined at unknown speed.
fn nvlink_between(left: &[End], right: &[End], right_bus: Option<String>) -> Option<Option<u64>> {
    let sum = |ends: &[&End]| ends.iter().map(|end| end.bytes_per_s).sum::<Option<u64>>();
    let same = |end: &&End| end.bus_id.as_ref().zip(right_bus.as_ref()).is_some_and(|(a, b)| a.eq_ignore_ascii_case(b));
    let direct: Vec<&End> = left.iter().filter(same).collect();
    if !direct.is_empty() {
        return Some(sum(&direct));
    }
    let (a, b): (Vec<&End>, Vec<&End>) =
        (left.iter().filter(|end| end.switch).collect(), right.iter().filter(|end| end.switch).collect());
    if a.is_empty() || b.is_empty() {
        return None;
    }
    Some(sum(&a).zip(sum(&b)).map(|(a, b)| a.min(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(switch: bool, bus_id: &str) -> End {
        End { switch, bus_id: Some(bus_id.into()), bytes_per_s: nvlink_speed(4) }
    }

    #[test]
    fn nvlinks_join_directly_or_through_a_switch() {
        let left = [end(false, "00000000:0A:00.0"), end(false, "00000000:0A:00.0"), end(false, "00000000:0B:00.0")];
        let to = |bus: &str| nvlink_between(&left, &[], Some(bus.into()));
        assert_eq!(to("00000000:0a:00.0"), Some(Some(50_000_000_000)));
        assert_eq!(to("00000000:0C:00.0"), None);
        let switched = [end(true, "00000000:C0:00.0"), end(true, "00000000:C1:00.0")];
        let one = [end(true, "00000000:C0:00.0")];
        assert_eq!(nvlink_between(&switched, &one, None), Some(Some(25_000_000_000)));
        let unknown = [End { switch: true, bus_id: None, bytes_per_s: nvlink_speed(9) }];
        assert_eq!(nvlink_between(&switched, &unknown, None), Some(None));
    }
}
