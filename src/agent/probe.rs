//! All facts of the node. Starts nothing but engines' own `--version`, and makes no state.

use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread;

use super::clock::{now_ms, rfc3339};
use super::error::AgentError;
use super::files::disk_space;
use super::layout::{Layout, expand_home};
use super::version::version;
use super::who::{self, People};
use super::{accelerators, calibrate, engines, host, lease, measured, net, state, store, weights};
use crate::inventory::{AgentFacts, Cpu, Disk, EngineQuery, NodeFacts, Os, Response, Unknown};

/// What stays as it is while this process lives. A large machine takes tens of milliseconds to tell of its processors.
struct Lasting {
    os: Os,
    cpu: Cpu,
    unknown: Unknown,
}

impl Lasting {
    fn get() -> &'static Self {
        static LASTING: OnceLock<Lasting> = OnceLock::new();
        LASTING.get_or_init(|| {
            let mut unknown = Unknown::new();
            let (os, cpu) = (host::os(&mut unknown), host::cpu(&mut unknown));
            Self { os, cpu, unknown }
        })
    }
}

/// Answers `Probe`.
pub fn probe(
    layout: &Layout,
    queries: &[EngineQuery],
    weights_path: Option<&str>,
    on_node: &[String],
    supervising: bool,
) -> Result<Response, AgentError> {
    let lasting = Lasting::get();
    let mut unknown = lasting.unknown.clone();
    let weights_folder = weights_path.map_or_else(|| layout.default_weights(), |path| expand_home(path, &layout.home));
    let ram = host::ram(&mut unknown);
    let (instances, ours) = state::instances(layout, supervising)?;
    // Each may take seconds, and none waits for the others: drivers, engines that import their libraries, disks.
    let (mut accelerators, engines, found) = thread::scope(|scope| {
        let accelerators = scope.spawn(|| accelerators::probe(&layout.node, &ours, &ram));
        let engines = scope.spawn(|| engines::find(queries, &layout.home));
        let mut found = store::found(&weights_folder);
        found.extend(on_node.iter().map(|path| weights::on_node(path, &layout.home)));
        let accelerators = accelerators.join().unwrap_or_else(|panic| resume_unwind(panic));
        (accelerators, engines.join().unwrap_or_else(|panic| resume_unwind(panic)), found)
    });
    let people = People::read();
    for process in accelerators.accelerators.iter_mut().flat_map(|device| &mut device.processes) {
        process.user = people.of(process.pid);
        process.command = who::command(process.pid);
    }
    if let Some(problem) = accelerators.problem {
        unknown.insert("accelerators".into(), problem);
    }
    let ports_in_use = net::ports_in_use().unwrap_or_else(|| {
        unknown.insert("ports_in_use".into(), "/proc/net/tcp is not readable".into());
        Vec::new()
    });
    let node = NodeFacts {
        name: layout.node.clone(),
        reachable: true,
        taken_at: Some(rfc3339(now_ms())),
        generation: lease::held_generation(layout)?,
        home: Some(layout.home.display().to_string()),
        weights_path: Some(weights_folder.display().to_string()),
        os: lasting.os.clone(),
        arch: Some(std::env::consts::ARCH.to_owned()),
        cpu: lasting.cpu.clone(),
        ram,
        accelerators: accelerators.accelerators,
        accelerator_links: accelerators.links,
        disks: disks(&layout.home, &weights_folder, &mut unknown),
        ports_in_use,
        ip_local_port_range: net::ip_local_port_range(),
        engines: Some(engines),
        weights: found,
        instances,
        calibrations: calibrate::told(layout),
        agent: Some(AgentFacts { version: version().to_owned(), supervising }),
        unknown,
        ..NodeFacts::default()
    };
    let desired = state::Desired::load(layout)?.instances.into_values().collect();
    Ok(Response::Facts {
        node: Box::new(node),
        member: lease::member(layout)?,
        desired,
        measured: measured::told(layout, now_ms()),
    })
}

fn disks(home: &Path, weights: &Path, unknown: &mut Unknown) -> Vec<Disk> {
    let mut paths: Vec<PathBuf> = vec![home.to_owned()];
    if weights != home {
        paths.push(weights.to_owned());
    }
    let mut disks = Vec::new();
    for path in paths {
        match disk_space(&path) {
            Some((free_bytes, total_bytes)) => {
                disks.push(Disk { path: path.display().to_string(), free_bytes, total_bytes });
            }
            None => {
                unknown.insert("disks".into(), format!("{} cannot be asked for its space", path.display()));
            }
        }
    }
    disks
}
