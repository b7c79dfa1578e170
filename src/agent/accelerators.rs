//! All accelerators of the node, whoever made them. One maker's driver that hangs or fails hides no other's devices.

use std::collections::BTreeSet;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use super::tree::Tree;
use super::{amd, gpu, tegra};
use crate::inventory::{Accelerator, AcceleratorLink, Ram};

/// How long drivers may take to answer everything. One that hangs is reported, not waited for: well within the
/// time that whoever asks for the node's facts waits for them.
const DRIVER_DEADLINE: Duration = Duration::from_secs(10);

/// What the drivers tell.
#[derive(Debug, Default)]
pub struct Found {
    /// Devices, MIG slices instead of their parents.
    pub accelerators: Vec<Accelerator>,
    /// Links between whole devices.
    pub links: Vec<AcceleratorLink>,
    /// Why some devices are not known, where a driver is there but does not work.
    pub problem: Option<String>,
}

/// Asks all drivers for everything, with a deadline. `ours` are the processes of this cluster's instances.
pub fn probe(node: &str, ours: &BTreeSet<u32>, ram: &Ram) -> Found {
    let until = Instant::now() + DRIVER_DEADLINE;
    let (name, pids, memory) = (node.to_owned(), ours.clone(), ram.clone());
    let nvidia = begin(move || gpu::probe(&Tree::real(), &name, &pids, &memory));
    let (name, pids, memory) = (node.to_owned(), ours.clone(), ram.clone());
    let amd = begin(move || amd::probe(&Tree::real(), &name, &pids, &memory));
    let silent = |driver: &str| format!("the {driver} driver did not answer within {} s", DRIVER_DEADLINE.as_secs());
    let mut found =
        wait(&nvidia, until).unwrap_or_else(|| Found { problem: Some(silent("NVIDIA")), ..Found::default() });
    if found.accelerators.is_empty() {
        found.accelerators.extend(tegra::probe(&Tree::real(), node, ram));
    }
    match wait(&amd, until) {
        Some(cards) => found.accelerators.extend(cards),
        None => {
            let both = found.problem.iter().cloned().chain([silent("AMD")]);
            found.problem = Some(both.collect::<Vec<_>>().join("; "));
        }
    }
    found
}

/// Memory in use and processes that hold it, summed over these devices; `None` where a driver does not tell.
/// An instance's devices are all of one maker.
pub fn held(node: &str, uuids: &[String]) -> Option<(u64, BTreeSet<u32>)> {
    let until = Instant::now() + DRIVER_DEADLINE;
    let (node, uuids) = (node.to_owned(), uuids.to_vec());
    let answer = begin(move || amd::held(&Tree::real(), &node, &uuids).or_else(|| gpu::held(&uuids)));
    wait(&answer, until).flatten()
}

/// What these processes hold of each of these devices, in their order; `None` where a driver does not tell. `ram` is the
/// host's, for devices that share it.
pub fn used(node: &str, uuids: &[String], pids: &BTreeSet<u32>, ram: &Ram) -> Vec<Option<u64>> {
    if uuids.is_empty() {
        return Vec::new();
    }
    let found = probe(node, pids, ram).accelerators;
    let of = |uuid: &String| {
        let device = found.iter().find(|device| device.uuid == *uuid)?;
        let mut ours = device.processes.iter().filter(|process| process.ours).peekable();
        ours.peek()?;
        ours.map(|process| process.used_bytes).try_fold(0u64, |sum, bytes| Some(sum.saturating_add(bytes?)))
    };
    uuids.iter().map(of).collect()
}

fn begin<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let _ = sender.send(work());
    });
    receiver
}

fn wait<T>(answer: &Receiver<T>, until: Instant) -> Option<T> {
    answer.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
}
