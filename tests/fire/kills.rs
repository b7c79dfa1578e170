//! flock killed with -9 before the first step, in every step and after every step of a ten-step apply, and started again.

use std::time::Instant;

use crate::table::{Table, long};
use crate::world::{PATIENCE, World, one_line};

/// Ten steps between two states, there and back: two stops, two starts with what they read, a change each on two hosts,
/// and a move with what it reads.
fn states(world: &World) -> [Vec<String>; 2] {
    let model = |name: &str, seed, tier, context| world.model(name, &world.tiny(seed), tier, context);
    let both = |name: &str, seed, tier| model(name, seed, tier, 256);
    [
        vec![
            both("keep", 0, "consumer"),
            model("grow", 1, "consumer", 256),
            model("shrink", 2, "datacenter", 384),
            both("wander", 3, "laptop"),
            both("old-one", 4, "datacenter"),
            both("old-two", 5, "consumer"),
        ],
        vec![
            both("keep", 0, "consumer"),
            model("grow", 1, "consumer", 384),
            model("shrink", 2, "datacenter", 256),
            both("wander", 3, "datacenter"),
            both("new-one", 6, "consumer"),
            both("new-two", 7, "laptop"),
        ],
    ]
}

/// Where the axe falls.
#[derive(Debug, Clone, Copy)]
enum Point {
    /// When the apply has taken the lease and written the first record.
    BeforeTheFirst,
    /// When the line says that the nth step has begun.
    Begun(usize),
    /// When the line says that the nth step is done.
    Done(usize),
}

impl Point {
    fn reached(self, said: &str) -> bool {
        let count = |wanted: &dyn Fn(&str) -> bool| {
            said.lines().filter(|line| numbered(line).is_some_and(|(_, rest)| wanted(rest))).count()
        };
        match self {
            Self::BeforeTheFirst => said.contains("applying "),
            Self::Begun(n) => count(&|rest| rest.contains(" on ")) >= n,
            Self::Done(n) => count(&|rest| rest.starts_with("done in")) >= n,
        }
    }
}

/// A progress line's step and what follows.
fn numbered(line: &str) -> Option<(u32, &str)> {
    let (number, rest) = line.trim_start().split_once(' ')?;
    Some((number.parse().ok()?, rest.trim_start()))
}

#[test]
fn flock_killed_at_every_step_goes_on_where_it_was() {
    let world = World::three();
    let states = states(&world);
    let mut table =
        Table::new("flock killed with -9 at every boundary of a ten-step apply, then `flock apply --yes` again");
    world.desire(&states[0]);
    world.apply().expect(0);
    table.row("no kill", world.broken(), None);

    let mut points = vec![Point::BeforeTheFirst];
    points.extend((1..=10).flat_map(|n| [Point::Begun(n), Point::Done(n)]));
    // Side by side as an apply does it; one after the other, every boundary is a state of its own.
    let ways: &[&str] = if long() { &["1", "10"] } else { &["1"] };
    let mut target = 0;
    for parallel in ways {
        for point in &points {
            target = 1 - target;
            world.forget_unused_weights();
            world.desire(&states[target]);
            let kept = world.engine_of("small", "keep");

            let mut apply = world.repository.start(&["apply", "--yes", "--parallel", parallel]);
            let in_time = world.meanwhile(&mut apply, |apply| point.reached(&apply.said()));
            apply.signal("KILL");
            let killed = Instant::now();
            let outcome = apply.finish(PATIENCE);
            let (recovery, mut broken) = world.recover(1);
            if !outcome.stderr.contains("applying 10 steps") {
                broken.push(format!("it had other than ten steps: {}", one_line(&outcome)));
            }
            if !in_time {
                broken.push(format!("it ended before it was killed: {}", one_line(&outcome)));
            }
            let recovery = recovery.map(|_| killed.elapsed());
            broken.extend(world.broken());
            if world.engine_of("small", "keep") != kept {
                broken.push("what no step touches was restarted".to_owned());
            }
            table.row(format!("{point:?}, {parallel} at a time"), broken, recovery);
        }
    }
    table.row("destroy after all of them", world.destroy(), None);
    table.finish();
}

#[test]
fn a_destroy_killed_at_every_step_is_finished_by_the_next() {
    let world = World::three();
    let tiers = [("one", "datacenter"), ("two", "consumer"), ("three", "laptop")];
    let models: Vec<String> = tiers.iter().map(|(name, tier)| world.model(name, &world.tiny(1), tier, 256)).collect();
    world.desire(&models);
    let mut table = Table::new("`flock destroy` killed with -9 at its boundaries, then run again");
    let mut points = vec![Point::BeforeTheFirst, Point::Done(1), Point::Done(3)];
    if long() {
        points.extend([Point::Begun(1), Point::Begun(2), Point::Begun(3), Point::Done(2)]);
    }
    for point in points {
        let mut broken = world.recover(1).1;
        let mut destroy = world.repository.start(&["destroy", "--yes"]);
        let in_time = world.meanwhile(&mut destroy, |destroy| point.reached(&destroy.said()));
        destroy.signal("KILL");
        let killed = Instant::now();
        destroy.finish(PATIENCE);
        if !in_time {
            broken.push("it ended before it was killed".to_owned());
        }
        broken.extend(world.destroy());
        table.row(format!("{point:?}"), broken, Some(killed.elapsed()));
    }
    table.finish();
}
