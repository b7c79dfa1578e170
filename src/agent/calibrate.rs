//! What an engine took: read once from the beginning of its log, from the driver and from `/proc`, and kept in the
//! state folder beyond the life of the instance.

use std::collections::BTreeSet;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;

use serde::{Deserialize, Serialize};

use super::clock::{now_ms, rfc3339};
use super::error::AgentError;
use super::files::{Lock, private_folder, read_json, write_json};
use super::layout::Layout;
use super::state::Record;
use super::{accelerators, host, logs, procfs};
use crate::base::{EngineKind, MIB};
use crate::engine::{DeviceMemory, EngineMemory, read_memory};
use crate::inventory::{Calibration, MeasuredMemory, MeasuredParts, Unknown};

/// Most that are kept.
const MOST: usize = 64;
/// Host memory of a process wanders; it is rounded up to this, so that a plan made from it does not.
const HOST_STEP: u64 = 16 * MIB;

/// The file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Kept {
    #[serde(default)]
    calibrations: Vec<Calibration>,
}

/// Everything that is kept, in a steady order. A file that makes no sense is as good as none.
pub fn told(layout: &Layout) -> Vec<Calibration> {
    read_json::<Kept>(&layout.calibrations()).ok().flatten().unwrap_or_default().calibrations
}

/// Keeps what was measured, together with what was measured of the same before; returns both together.
pub fn keep(layout: &Layout, found: Calibration) -> Result<Calibration, AgentError> {
    private_folder(&layout.state)?;
    let _lock = Lock::wait(&layout.state_lock())?;
    let mut kept = told(layout);
    let earlier = kept.iter().position(|one| one.is_of_same(&found)).map(|at| kept.remove(at));
    let found = match &earlier {
        Some(earlier) => found.after(earlier),
        None => found,
    };
    if earlier.as_ref() == Some(&found) {
        return Ok(found);
    }
    while kept.len() >= MOST {
        let oldest = (0..kept.len()).min_by(|a, b| kept[*a].at.cmp(&kept[*b].at)).unwrap_or(0);
        kept.remove(oldest);
    }
    kept.push(found.clone());
    let key =
        |one: &Calibration| (one.model.clone(), one.variant.clone(), one.engine, one.sized_for.context, one.at.clone());
    kept.sort_by_key(key);
    write_json(&layout.calibrations(), &Kept { calibrations: kept })?;
    Ok(found)
}

/// A measurement in a thread of its own: a driver may take seconds.
#[derive(Debug)]
pub struct Measuring(Receiver<Option<Calibration>>);

impl Measuring {
    /// Begins to measure an instance that is ready.
    pub fn begin(layout: &Layout, record: &Record, boot_id: &str) -> Self {
        let (sender, receiver) = mpsc::channel();
        let (layout, record, boot_id) = (layout.clone(), record.clone(), boot_id.to_owned());
        thread::spawn(move || {
            let _ = sender.send(measure(&layout, &record, &boot_id));
        });
        Self(receiver)
    }

    /// What was found, once that is known; nothing where nothing could be learnt.
    pub fn found(&self) -> Option<Option<Calibration>> {
        match self.0.try_recv() {
            Ok(found) => Some(found),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(None),
        }
    }
}

fn measure(layout: &Layout, record: &Record, boot_id: &str) -> Option<Calibration> {
    let spec = &record.spec;
    // What is on other nodes is told of by none of them.
    let sized_for = spec.sized_for.as_deref().filter(|_| spec.part.is_none())?.clone();
    let log = logs::first_words(&layout.log(&spec.instance), record.log_from);
    let memory = read_memory(spec.engine, &log);
    let living = record.living(layout, &procfs::look(), boot_id);
    let pids: BTreeSet<u32> = living.iter().map(|process| process.pid).collect();
    let used = accelerators::used(&layout.node, &spec.accelerators, &pids, &host::ram(&mut Unknown::new()));
    let anonymous = pids.iter().filter_map(|pid| procfs::anonymous_bytes(*pid)).reduce(u64::saturating_add);
    let measured = joined(&memory, spec.engine, spec.accelerators.len(), &used, anonymous);
    if measured == MeasuredMemory::default() {
        return None;
    }
    let (model, variant, at) = (spec.model.clone(), spec.variant.clone(), rfc3339(now_ms()));
    Some(Calibration { model, variant, engine: spec.engine, sized_for, measured, at })
}

/// What the log tells, by rank, with what the driver and the kernel count.
fn joined(
    memory: &EngineMemory,
    engine: EngineKind,
    accelerators: usize,
    used: &[Option<u64>],
    anonymous: Option<u64>,
) -> MeasuredMemory {
    // Whose figures are whose is known only where there are as many devices as were given.
    let told = |rank: usize| memory.devices.get(rank).filter(|_| memory.devices.len() == accelerators);
    let per_accelerator: Vec<MeasuredParts> = (0..accelerators)
        .map(|rank| MeasuredParts { used_bytes: used.get(rank).copied().flatten(), ..parts(told(rank)) })
        .collect();
    let known = per_accelerator.iter().any(|device| device.total().is_some());
    // The engine's own file, mapped, is no memory of the process, and is planned for all the same.
    let held = anonymous.map(|bytes| bytes.saturating_add(memory.mapped_bytes.unwrap_or(0)));
    let host = MeasuredParts {
        used_bytes: held.map(|bytes| bytes.checked_next_multiple_of(HOST_STEP).unwrap_or(bytes)),
        ..parts(memory.host.as_ref())
    };
    // An engine that was not built for the devices says that all layers are on them, and names no buffer there.
    let none_there = memory.devices.is_empty() && host.weights_bytes.is_some();
    let layers = memory.offloaded_layers.filter(|_| engine == EngineKind::LlamaCpp);
    MeasuredMemory {
        per_accelerator: if known { per_accelerator } else { Vec::new() },
        host,
        offloaded_layers: layers.map(|(there, all)| [if none_there { 0 } else { there }, all]),
        kv_tokens: memory.kv_tokens,
    }
}

fn parts(told: Option<&DeviceMemory>) -> MeasuredParts {
    let told = told.copied().unwrap_or_default();
    MeasuredParts {
        weights_bytes: told.weights_bytes,
        kv_bytes: told.kv_bytes,
        other_bytes: told.other_bytes,
        used_bytes: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::{PlannedParts, SizedFor};

    fn one(context: u64, used: u64, at: &str) -> Calibration {
        let per_accelerator = vec![MeasuredParts { used_bytes: Some(used), ..MeasuredParts::default() }];
        Calibration {
            model: "m".into(),
            variant: "v".into(),
            engine: EngineKind::Vllm,
            sized_for: SizedFor { context, per_accelerator: vec![PlannedParts::default()], ..SizedFor::default() },
            measured: MeasuredMemory { per_accelerator, ..MeasuredMemory::default() },
            at: at.into(),
        }
    }

    #[test]
    fn the_most_of_each_is_kept_and_the_oldest_goes() {
        let home = tempfile::tempdir().expect("a home");
        let layout = Layout::new(home.path(), "lab", "ada-1").expect("good names");
        assert!(told(&layout).is_empty());
        assert_eq!(keep(&layout, one(1, 5, "01")).expect("kept"), one(1, 5, "01"));
        assert_eq!(keep(&layout, one(1, 4, "02")).expect("kept"), one(1, 5, "01"));
        assert_eq!(told(&layout), [one(1, 5, "01")]);
        for context in 2..=70 {
            keep(&layout, one(context, 1, &format!("{:02}", context + 1))).expect("kept");
        }
        let kept = told(&layout);
        assert_eq!((kept.len(), kept[0].sized_for.context), (MOST, 7));
        std::fs::write(layout.calibrations(), "{").expect("written");
        assert!(told(&layout).is_empty());
        keep(&layout, one(1, 4, "02")).expect("a broken file is replaced");
    }

    #[test]
    fn figures_go_to_ranks_only_where_all_are_told() {
        let device = |bytes| DeviceMemory { weights_bytes: Some(bytes), ..DeviceMemory::default() };
        let two = EngineMemory { devices: vec![device(1), device(2)], kv_tokens: Some(9), ..EngineMemory::default() };
        let found = joined(&two, EngineKind::Vllm, 2, &[Some(50), None], None);
        let totals: Vec<_> = found.per_accelerator.iter().map(MeasuredParts::total).collect();
        assert_eq!((totals, found.kv_tokens), (vec![Some(50), Some(2)], Some(9)));
        // One device of two: nobody knows which. What the driver counts is known all the same.
        let one = EngineMemory { devices: vec![device(1)], ..EngineMemory::default() };
        assert!(joined(&one, EngineKind::LlamaCpp, 2, &[None, None], None).per_accelerator.is_empty());
        let by_driver = joined(&one, EngineKind::LlamaCpp, 2, &[Some(3), Some(4)], None).per_accelerator;
        assert_eq!((by_driver[0].weights_bytes, by_driver[1].used_bytes), (None, Some(4)));
        let cpu = EngineMemory { host: Some(device(8)), mapped_bytes: Some(8), ..EngineMemory::default() };
        let claims = EngineMemory { offloaded_layers: Some((31, 31)), ..cpu.clone() };
        assert_eq!(joined(&claims, EngineKind::LlamaCpp, 1, &[None], None).offloaded_layers, Some([0, 31]));
        let host = joined(&cpu, EngineKind::LlamaCpp, 0, &[], Some(HOST_STEP)).host;
        assert_eq!((host.weights_bytes, host.used_bytes), (Some(8), Some(2 * HOST_STEP)));
    }
}
