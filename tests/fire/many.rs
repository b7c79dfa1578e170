//! Sixteen hosts at once, three of them dead, each in another way.

use std::time::Instant;

use crate::support::lab::{Gpu, HostSpec};
use crate::support::list;
use crate::table::Table;
use crate::world::{PATIENCE, World, one_line};

const DEAD: [(&str, &str); 3] =
    [("host-04", "its cable is cut"), ("host-09", "its sshd says nothing"), ("host-13", "it is down")];

fn hosts() -> Vec<HostSpec> {
    let name = |index: usize| -> &'static str { format!("host-{index:02}").leak() };
    let gpu = |index: usize| Gpu {
        name: "NVIDIA GeForce RTX 4090",
        uuid: format!("GPU-{index:08}-0000-0000-0000-000000000000"),
        total_mib: 24_564,
        used_mib: 0,
        capability: "8.9",
        peers: "",
    };
    (1..=16).map(|index| HostSpec { name: name(index), tier: name(index), gpus: vec![gpu(index)] }).collect()
}

#[test]
fn sixteen_hosts_of_which_three_are_dead() {
    let world = World::of(&hosts());
    let mut table = Table::new("sixteen hosts at once, three of them dead");
    let models = |world: &World| -> Vec<String> {
        let one = |(index, host): (usize, &'static str)| {
            world.model(&format!("m{index:02}"), &world.tiny(index as u64 % 4), host, 256)
        };
        world.lab.hosts().into_iter().enumerate().map(one).collect()
    };
    world.desire(&models(&world));
    // Brings the agent, so that both looks that are compared find the same.
    world.repository.start(&["discover"]).finish(PATIENCE).expect(0);
    let begun = Instant::now();
    world.repository.start(&["discover"]).finish(PATIENCE).expect(0);
    let all_alive = begun.elapsed();
    table.row("discover, all alive", Vec::new(), Some(all_alive));

    world.lab.cut("host-04");
    world.lab.freeze("host-09");
    world.lab.halt("host-13");
    let names_the_dead = |outcome: &crate::support::Outcome| -> Vec<String> {
        let mut broken: Vec<String> = DEAD
            .iter()
            .filter(|(host, _)| !outcome.says(host))
            .map(|(host, how)| format!("{host} is not named although {how}"))
            .collect();
        if outcome.code != Some(9) {
            broken.push(format!("it ended otherwise: {}", one_line(outcome)));
        }
        broken
    };
    let begun = Instant::now();
    let outcome = world.repository.start(&["discover"]).finish(PATIENCE);
    let took = begun.elapsed();
    let mut broken = names_the_dead(&outcome);
    // Each of the dead takes its own deadlines; one after the other they would take three times as long. The bound leaves
    // room for a machine that does much else.
    if took > 4 * all_alive + std::time::Duration::from_secs(20) {
        broken.push(format!("the dead were waited for one after the other: {took:?} against {all_alive:?}"));
    }
    table.row("discover, three dead", broken, Some(took));

    let begun = Instant::now();
    let outcome = world.repository.start(&["apply", "--yes"]).finish(PATIENCE);
    let took = begun.elapsed();
    let mut broken = names_the_dead(&outcome);
    for host in world.lab.hosts().into_iter().filter(|host| DEAD.iter().all(|(dead, _)| dead != host)) {
        if world.lab.engines(host).len() != 1 {
            broken.push(format!("{host} was not served"));
        }
    }
    table.row("apply, three dead", broken, Some(took));

    // Two come back; what they missed is done, and what runs stays.
    world.lab.heal("host-04");
    world.lab.thaw("host-09");
    let before = world.lab.engines("host-01");
    let begun = Instant::now();
    let outcome = world.repository.start(&["apply", "--yes", "--exclude", "host-13"]).finish(PATIENCE);
    let took = begun.elapsed();
    let mut broken = Vec::new();
    if !matches!(outcome.code, Some(0 | 4 | 9)) {
        broken.push(one_line(&outcome));
    }
    for host in ["host-04", "host-09"] {
        if world.lab.engines(host).len() != 1 {
            broken.push(format!("{host} came back and was not served"));
        }
    }
    if world.lab.engines("host-01") != before {
        broken.push("what ran was disturbed".to_owned());
    }
    let status = world.repository.json(&["discover"]);
    if list(&status, "/nodes").len() != 16 {
        broken.push("a host was forgotten".to_owned());
    }
    table.row("apply, two of them back, the third left out", broken, Some(took));
    table.finish();
}
