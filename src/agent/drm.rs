//! Who holds the memory of a graphics device: what the kernel says of every open file of its device nodes.
//!
//! Source: the kernel's `Documentation/gpu/drm-usage-stats.rst`. Other users' files are not readable; what they
//! hold is in the device's own figure of used memory all the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::tree::{Tree, names, numbers};

/// Bytes of one open device by region.
#[derive(Debug, Default, PartialEq, Eq)]
struct Client {
    pci: String,
    id: u64,
    vram: u64,
    gtt: u64,
}

/// Bytes by PCI address and process id. Memory in RAM that the device reaches counts where `with_gtt` says so.
pub fn held(tree: &Tree, with_gtt: impl Fn(&str) -> bool) -> BTreeMap<(String, u32), u64> {
    let (mut held, mut seen) = (BTreeMap::new(), BTreeSet::new());
    for pid in numbers(&tree.proc) {
        let folder = tree.proc.join(pid.to_string());
        for descriptor in names(&folder.join("fd")) {
            let device = fs::read_link(folder.join("fd").join(&descriptor));
            if !device.is_ok_and(|path| path.starts_with("/dev/dri")) {
                continue;
            }
            let Ok(text) = fs::read_to_string(folder.join("fdinfo").join(&descriptor)) else { continue };
            let Some(client) = client(&text) else { continue };
            // One open device may have several descriptors, in several processes even: it is counted once.
            if !seen.insert((client.pci.clone(), client.id)) {
                continue;
            }
            let bytes = client.vram + if with_gtt(&client.pci) { client.gtt } else { 0 };
            *held.entry((client.pci, pid)).or_insert(0) += bytes;
        }
    }
    held.retain(|_, bytes| *bytes > 0);
    held
}

/// Reads the text of an `fdinfo` file; `None` unless it is of an amdgpu device.
fn client(text: &str) -> Option<Client> {
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    if value("drm-driver")? != "amdgpu" {
        return None;
    }
    let bytes = |region: &str| {
        let told = value(&format!("drm-resident-{region}")).or_else(|| value(&format!("drm-memory-{region}")));
        told.and_then(size).unwrap_or(0)
    };
    Some(Client {
        pci: value("drm-pdev")?.to_ascii_lowercase(),
        id: value("drm-client-id")?.parse().ok()?,
        vram: bytes("vram"),
        gtt: bytes("gtt"),
    })
}

/// `123 KiB`; without a unit, bytes.
fn size(text: &str) -> Option<u64> {
    let mut words = text.split_ascii_whitespace();
    let amount: u64 = words.next()?.parse().ok()?;
    let unit = match words.next() {
        None => 1,
        Some("KiB") => 1 << 10,
        Some("MiB") => 1 << 20,
        Some(_) => return None,
    };
    amount.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_and_new_names_of_a_region_are_read() {
        let text = "pos:\t0\ndrm-driver:\tamdgpu\ndrm-pdev:\t0000:03:00.0\ndrm-client-id:\t7\n\
                    drm-memory-vram:\t2048 KiB\ndrm-memory-gtt: \t1 MiB\n";
        let found = client(text).expect("amdgpu");
        assert_eq!(found, Client { pci: "0000:03:00.0".into(), id: 7, vram: 2 << 20, gtt: 1 << 20 });
        let newer = format!("{text}drm-resident-vram:\t4096 KiB\n");
        assert_eq!(client(&newer).expect("amdgpu").vram, 4 << 20);
        assert!(client(&text.replace("amdgpu", "i915")).is_none());
        assert!(client("drm-driver:\tamdgpu\n").is_none());
        assert_eq!((size("12"), size("1 GB"), size("x KiB")), (Some(12), None, None));
    }
}
