//! Node agents and engines killed at every moment of an apply; flock itself stopped for longer than anybody waits.

use std::time::{Duration, Instant};

use crate::support::lab::{model, three_hosts};
use crate::support::{Running, text};
use crate::table::{Table, long};
use crate::world::{PATIENCE, World, one_line};

const HOST: &str = "small";

/// One host that stops one instance, brings what another reads and starts that.
fn states(world: &World) -> [Vec<String>; 2] {
    let model = |name: &str, seed| world.model(name, &world.tiny(seed), "consumer", 256);
    [vec![model("keep", 0), model("one", 1)], vec![model("keep", 0), model("two", 2)]]
}

type Moment = (&'static str, fn(&World, &Running) -> bool);

/// Moments of that apply, in their order.
const MOMENTS: [Moment; 6] = [
    ("before the first step", |_, apply| apply.said().contains("applying ")),
    ("a fetch has begun", |_, apply| apply.said().contains("v fetch")),
    ("a fetch is done", |_, apply| apply.said().contains("copied and checked")),
    ("a start has begun", |_, apply| apply.said().contains("+ start")),
    ("the engine is there, not ready", |world, apply| {
        apply.said().contains("+ start") && world.lab.engines(HOST).len() > 1
    }),
    ("a stop has begun", |_, apply| apply.said().contains("- stop")),
];

#[derive(Clone, Copy, Debug)]
enum Victim {
    Keeper,
    Serve,
    Engines,
}

impl Victim {
    fn pids(self, world: &World) -> Vec<u32> {
        let named = |part: &str| {
            let found = world.lab.processes(HOST).into_iter().filter(|(_, words)| words.contains(part));
            found.map(|(pid, _)| pid).collect()
        };
        match self {
            Self::Keeper => named(" keep --cluster"),
            Self::Serve => named(" serve --cluster"),
            Self::Engines => world.lab.engines(HOST),
        }
    }
}

fn killed_at_every_moment(victim: Victim, title: &'static str) {
    let world = World::of(&three_hosts()[1..2]);
    let states = states(&world);
    let mut table = Table::new(title);
    world.desire(&states[0]);
    world.apply().expect(0);
    let mut target = 0;
    for (name, reached) in MOMENTS {
        target = 1 - target;
        world.forget_unused_weights();
        world.desire(&states[target]);
        let mut apply = world.repository.start(&["apply", "--yes"]);
        let seen = world.meanwhile(&mut apply, |apply| reached(&world, apply));
        world.lab.kill(&victim.pids(&world));
        let killed = Instant::now();
        let outcome = apply.finish(PATIENCE);
        let mut broken = Vec::new();
        // Agents are started again by whoever needs them; an engine may have died too often.
        let expected = if matches!(victim, Victim::Engines) { Some(8) } else { None };
        if outcome.code != Some(0) && outcome.code != expected {
            broken.push(format!("it ended otherwise: {}", one_line(&outcome)));
        }
        let same = outcome.code == Some(0);
        // What the agent starts again by itself may not be ready yet: an apply waits for that too.
        let (_, failed) = world.recover(1);
        broken.extend(failed);
        let recovery = killed.elapsed();
        broken.extend(world.broken());
        let end = if same { "the same apply went on" } else { "the next apply went on" };
        let end = if seen { end } else { "too late" };
        table.row(format!("{name} ({end})"), broken, Some(recovery));
    }
    table.row("destroy after all of them", world.destroy(), None);
    table.finish();
}

#[test]
fn the_keeper_killed_at_every_moment() {
    killed_at_every_moment(Victim::Keeper, "the node agent's keeper killed with -9 at every moment of an apply");
}

#[test]
fn the_serving_agent_killed_at_every_moment() {
    if !long() {
        return;
    }
    killed_at_every_moment(Victim::Serve, "`flock-agent serve` killed with -9 at every moment of an apply");
}

#[test]
fn every_engine_killed_at_every_moment() {
    killed_at_every_moment(Victim::Engines, "every engine killed with -9 at every moment of an apply");
}

/// A laptop that sleeps in the middle of an apply: the node gives it up, and it finds its way when it wakes.
#[test]
fn flock_stopped_for_longer_than_the_node_waits_finds_its_way() {
    let world = World::of(&three_hosts()[1..2]);
    let mut table = Table::new("flock stopped (SIGSTOP) and continued: the same apply, then the next one");
    let moments: &[Moment] = &[
        ("mid-copy", |world, _| world.weight_bytes(HOST) > 4 << 20),
        ("mid-start", |world, _| !world.lab.engines(HOST).is_empty()),
    ];
    let spans: &[u64] = if long() { &[5, 75] } else { &[5] };
    for seconds in spans {
        for (name, reached) in moments {
            world.desire(&[world.model("near", model(), "consumer", 512)]);
            let mut apply = world.repository.start(&["apply", "--yes"]);
            let seen = world.meanwhile(&mut apply, |apply| reached(&world, apply));
            apply.signal("STOP");
            let mut broken = Vec::new();
            if !seen {
                broken.push("the moment was not seen".to_owned());
            }
            // While it sleeps it holds the lease, and after that it does not.
            let other = world.repository.flock(&["apply", "--yes"]);
            if other.code != Some(6) {
                broken.push(format!("another apply did not meet the lease: {}", one_line(&other)));
            }
            std::thread::sleep(Duration::from_secs(*seconds));
            apply.signal("CONT");
            let woken = Instant::now();
            let outcome = apply.finish(PATIENCE);
            if !matches!(outcome.code, Some(0 | 8)) {
                broken.push(format!("it ended otherwise: {}", one_line(&outcome)));
            }
            let (_, failed) = world.recover(1);
            broken.extend(failed);
            let recovery = woken.elapsed();
            broken.extend(world.broken());
            broken.extend(world.destroy());
            world.forget_unused_weights();
            let end = if outcome.code == Some(0) { "the same apply went on" } else { "the next apply went on" };
            table.row(format!("{name}, {seconds} s ({end})"), broken, Some(recovery));
        }
    }
    table.finish();
}

/// Another machine's apply cannot see that the holder died: it waits for the lease's end, and no longer.
#[test]
fn a_lease_whose_holder_cannot_be_seen_ends_by_itself() {
    let world = World::of(&three_hosts()[1..2]);
    let mut table = Table::new("a dead holder of another machine: its lease ends by itself");
    world.desire(&[world.model("near", &world.tiny(1), "consumer", 256)]);
    let mut apply = world.repository.start(&["apply", "--yes"]);
    let lease = world.lab.home(HOST, ".local/share/flock/lab/small/lease.json");
    let seen = world.meanwhile(&mut apply, |_| lease.exists());
    apply.signal("KILL");
    apply.finish(PATIENCE);
    let mut broken = Vec::new();
    let held = std::fs::read_to_string(&lease).unwrap_or_default();
    match serde_json::from_str::<serde_json::Value>(&held) {
        Ok(mut held) if seen => {
            // As if it had been taken elsewhere.
            assert!(!text(&held, "/process/boot_id").is_empty());
            held["process"]["boot_id"] = "another-machine".into();
            std::fs::write(&lease, held.to_string()).expect("the host's folder");
        }
        _ => broken.push(format!("no lease was seen: {held}")),
    }
    let killed = Instant::now();
    let refused = world.apply();
    if refused.code != Some(6) {
        broken.push(format!("it was not refused: {}", one_line(&refused)));
    }
    while killed.elapsed() < Duration::from_secs(90) && world.apply().code == Some(6) {
        std::thread::sleep(Duration::from_millis(500));
    }
    let recovery = killed.elapsed();
    broken.extend(world.broken());
    broken.extend(world.destroy());
    table.row("killed with -9", broken, Some(recovery));
    table.finish();
}
