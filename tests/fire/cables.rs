//! Cables cut and healed in every phase of an apply, and cables that are slow and lossy.

use std::time::{Duration, Instant};

use crate::support::lab::{model, three_hosts};
use crate::support::{Running, wait_for};
use crate::table::{Table, long};
use crate::world::{PATIENCE, World, one_line};

/// A cut that is over before anybody gives up.
const SHORT: Duration = Duration::from_secs(8);
/// The longest that an apply may take to give a node up, on a machine that does much else.
const BOUND: Duration = Duration::from_secs(280);
/// The host whose cable is cut.
const CUT: &str = "small";

/// What an apply is doing.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    Connect,
    Push,
    Copy,
    Start,
    Ready,
}

const PHASES: [Phase; 5] = [Phase::Connect, Phase::Push, Phase::Copy, Phase::Start, Phase::Ready];

impl Phase {
    fn reached(self, world: &World, apply: &Running) -> bool {
        match self {
            Self::Connect => true,
            Self::Push => apply.said().contains("pushing the node agent"),
            Self::Copy => world.weight_bytes(CUT) > 4 << 20,
            Self::Start => apply.said().lines().any(|line| line.contains("+ start") && line.contains(CUT)),
            Self::Ready => !world.lab.engines(CUT).is_empty(),
        }
    }
}

/// Two hosts; `near` on the one whose cable is cut, with weights that take a while to copy, `far` on the other.
fn world() -> World {
    let world = World::of(&three_hosts()[..2]);
    let models = [world.model("near", model(), "consumer", 512), world.model("far", &world.tiny(1), "datacenter", 256)];
    world.desire(&models);
    world
}

/// Bytes that the host has received.
fn received(world: &World) -> u64 {
    let table = world.lab.run(CUT, &["cat", "/proc/net/dev"]).stdout;
    let line = table.lines().find(|line| line.trim_start().starts_with("eth0:")).expect("its cable");
    line.split_ascii_whitespace().nth(1).and_then(|bytes| bytes.parse().ok()).expect("a number")
}

/// Ends everything on the host that this is about, as if flock had never been there.
fn fresh(world: &World) -> Vec<String> {
    let left = world.destroy();
    for folder in ["agents", "weights"] {
        let _ = std::fs::remove_dir_all(world.lab.home(CUT, &format!(".local/share/flock/{folder}")));
    }
    left
}

#[test]
fn a_cable_that_is_cut_for_seconds_costs_seconds() {
    let world = world();
    let mut table = Table::new("a cable cut for seconds in every phase: the same apply goes on and succeeds");
    for phase in PHASES {
        // Within the deadline of connecting there is less time.
        let cut = if phase == Phase::Connect { Duration::from_millis(1200) } else { SHORT };
        if phase == Phase::Connect {
            world.lab.cut(CUT);
        }
        let mut apply = world.repository.start(&["-v", "apply", "--yes"]);
        let reached = world.meanwhile(&mut apply, |apply| phase.reached(&world, apply));
        world.lab.cut(CUT);
        std::thread::sleep(cut);
        world.lab.heal(CUT);
        let healed = Instant::now();
        let outcome = apply.finish(BOUND);
        let recovery = healed.elapsed();
        let mut broken = Vec::new();
        if !reached {
            broken.push("the phase was not seen".to_owned());
        }
        if outcome.code != Some(0) {
            broken.push(format!("the apply failed: {}", one_line(&outcome)));
            broken.extend(world.recover(2).1);
        }
        broken.extend(world.broken());
        broken.extend(fresh(&world));
        table.row(format!("{phase:?}, {:.1} s", cut.as_secs_f64()), broken, Some(recovery));
    }
    table.finish();
}

#[test]
fn a_cable_that_stays_cut_ends_the_apply_and_the_next_one_goes_on() {
    let world = world();
    let mut table =
        Table::new("a cable that stays cut: the apply ends and names the node; healed, the next one goes on");
    let phases: &[Phase] = if long() { &PHASES } else { &[Phase::Copy] };
    for &phase in phases {
        let before = received(&world);
        if phase == Phase::Connect {
            world.lab.cut(CUT);
        }
        let begun = Instant::now();
        let mut apply = world.repository.start(&["-v", "apply", "--yes"]);
        let reached = world.meanwhile(&mut apply, |apply| phase.reached(&world, apply));
        world.lab.cut(CUT);
        let outcome = apply.finish(BOUND);
        let gave_up = begun.elapsed();
        let mut broken = Vec::new();
        if !reached {
            broken.push("the phase was not seen".to_owned());
        }
        if !matches!(outcome.code, Some(8 | 9)) || !outcome.says(CUT) {
            broken.push(format!("it ended otherwise: {}", one_line(&outcome)));
        }
        if world.lab.engines("big").len() != 1 {
            broken.push("the other host was not served".to_owned());
        }
        // A silent peer is given up on the node's side too: nothing of a connection that is gone stays there.
        let serving = || world.lab.processes(CUT).iter().any(|(_, words)| words.contains(" serve --cluster"));
        wait_for("the node to give its silent peer up", Duration::from_secs(120), || (!serving()).then_some(()));
        world.lab.heal(CUT);
        let (recovery, failed) = world.recover(1);
        broken.extend(failed);
        broken.extend(world.broken());
        let size = model().metadata().expect("the model").len();
        let sent = received(&world) - before;
        if phase == Phase::Copy && sent > size + size / 4 + (24 << 20) {
            broken.push(format!("{sent} bytes travelled for a file of {size}"));
        }
        broken.extend(fresh(&world));
        table.row(format!("{phase:?} (gave up after {:.0} s)", gave_up.as_secs_f64()), broken, recovery);
    }
    table.finish();
}

#[test]
fn slow_and_lossy_cables_only_take_longer() {
    let world = world();
    let models = [world.model("near", &world.tiny(2), "consumer", 256)];
    world.desire(&models);
    let mut table = Table::new("slow and lossy cables, the agent's push and a whole apply over them");
    // Delay each way in ms, loss in percent, kilobit a second.
    let cables: &[(u32, u32, u32)] =
        if long() { &[(200, 0, 0), (5, 5, 0), (5, 0, 1000), (200, 5, 1000)] } else { &[(100, 2, 8000)] };
    for &(ms, loss, kbit) in cables {
        world.lab.slow(CUT, ms, loss, kbit);
        let begun = Instant::now();
        let outcome = world.repository.start(&["apply", "--yes"]).finish(2 * PATIENCE);
        let took = begun.elapsed();
        world.lab.fast(CUT);
        let mut broken = Vec::new();
        if outcome.code != Some(0) {
            broken.push(format!("the apply failed: {}", one_line(&outcome)));
            broken.extend(world.recover(2).1);
        }
        broken.extend(world.broken());
        broken.extend(fresh(&world));
        let rate = if kbit == 0 { "full rate".to_owned() } else { format!("{kbit} kbit/s") };
        table.row(format!("{ms} ms each way, {loss} % lost, {rate}"), broken, Some(took));
    }
    table.finish();
}
