//! Weights that are cut short or altered, here or there, and disks that are full.

use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use crate::support::lab::{model, three_hosts};
use crate::support::{list, text};
use crate::table::Table;
use crate::world::{PATIENCE, STATE, WEIGHTS, World, files, one_line};

const HOST: &str = "small";

fn world() -> World {
    World::of(&three_hosts()[1..2])
}

/// Writes over the last bytes of a file; its length stays.
fn alter(path: &Path) {
    // Its time of writing must differ, as it does for everything that people do.
    std::thread::sleep(std::time::Duration::from_millis(20));
    let mut file = std::fs::OpenOptions::new().write(true).open(path).expect("it is there");
    file.seek(SeekFrom::End(-8)).expect("longer than that");
    file.write_all(&[7; 8]).expect("it can be written");
}

fn weights_on(world: &World) -> Vec<PathBuf> {
    files(&world.lab.home(HOST, WEIGHTS))
        .into_iter()
        .filter(|path| path.extension().is_some_and(|e| e == "gguf"))
        .collect()
}

#[test]
fn weights_that_change_under_way_are_never_served() {
    let world = world();
    let mut table = Table::new("weights altered between plan, copy, start and after");
    let source = world.tiny(1);
    world.desire(&[world.model("near", &source, "consumer", 256)]);
    let file = world.repository.beside("plan.json").display().to_string();
    let good = std::fs::read(&source).expect("it is there");

    // On this machine, between plan and apply.
    for (case, damage) in [("cut short here after the plan", true), ("altered here after the plan, same size", false)] {
        world.repository.flock(&["plan", "--out", &file]).expect(0);
        if damage {
            std::fs::write(&source, &good[..good.len() / 2]).expect("written");
        } else {
            alter(&source);
        }
        let outcome = world.repository.start(&["apply", &file]).finish(PATIENCE);
        let mut broken = Vec::new();
        if outcome.code != Some(8) || !outcome.says("tiny-1.gguf") {
            broken.push(format!("expected exit 8 and the file: {}", one_line(&outcome)));
        }
        if !weights_on(&world).is_empty() || !world.lab.engines(HOST).is_empty() {
            broken.push("it was taken all the same".to_owned());
        }
        std::fs::write(&source, &good).expect("written");
        let (recovery, failed) = world.recover(1);
        broken.extend(failed);
        broken.extend(world.broken());
        broken.extend(world.destroy());
        world.forget_unused_weights();
        table.row(case, broken, recovery);
    }

    // On the node, after it was copied and checked, before it is read.
    let mut apply = world.repository.start(&["apply", "--yes"]);
    let copied = world.meanwhile(&mut apply, |apply| apply.said().contains("copied and checked"));
    apply.signal("KILL");
    apply.finish(PATIENCE);
    world.lab.kill(&world.lab.agents(HOST));
    world.lab.kill(&world.lab.engines(HOST));
    let mut broken = Vec::new();
    match weights_on(&world).first() {
        Some(copy) if copied => alter(copy),
        _ => broken.push("nothing was copied".to_owned()),
    }
    let (recovery, failed) = world.recover(1);
    broken.extend(failed);
    broken.extend(world.broken());
    table.row("altered on the node after the copy, same size", broken, recovery);

    // While it is served: the next plan sees it and brings it again; the engine that runs is left alone.
    let engines = world.lab.engines(HOST);
    weights_on(&world).iter().for_each(|copy| alter(copy));
    let planned = world.repository.json(&["plan"]);
    let mut broken = Vec::new();
    if !list(&planned, "/steps").iter().any(|step| text(step, "/verb") == "fetch") {
        broken.push(format!("no fetch is planned: {:#}", planned["steps"]));
    }
    let (recovery, failed) = world.recover(1);
    broken.extend(failed);
    broken.extend(world.broken());
    if world.lab.engines(HOST) != engines {
        broken.push("the engine was restarted".to_owned());
    }
    table.row("altered on the node while it is served", broken, recovery);

    // Touched and not changed: nothing travels again.
    let copy = weights_on(&world).pop().expect("it is there");
    let before = copy.metadata().expect("it is there");
    std::fs::File::options()
        .write(true)
        .open(&copy)
        .and_then(|file| file.set_modified(std::time::SystemTime::now()))
        .expect("touched");
    let (recovery, mut broken) = world.recover(1);
    let after = copy.metadata().expect("it is there");
    if std::os::unix::fs::MetadataExt::ino(&before) != std::os::unix::fs::MetadataExt::ino(&after) {
        broken.push("it was copied again".to_owned());
    }
    broken.extend(world.broken());
    broken.extend(world.destroy());
    table.row("touched on the node, not changed", broken, recovery);
    table.finish();
}

/// Mounts a small file system over a folder of the host's home.
fn small_disk(world: &World, folder: &str, size: &str) {
    let path = format!("/root/{folder}");
    world.lab.run(HOST, &["mkdir", "-p", &path]).expect(0);
    world
        .lab
        .run(HOST, &["mount", "-t", "tmpfs", "-o", &format!("size={size},mode=700"), "flock-small", &path])
        .expect(0);
}

fn in_shell(world: &World, command: &str) {
    world.lab.run(HOST, &["sh", "-c", command]).expect(0);
}

#[test]
fn a_full_disk_is_said_and_survived() {
    let world = world();
    let mut table =
        Table::new("full disks: the apply says which, nothing that ran is lost, and it goes on once there is room");
    let small = world.model("small", &world.tiny(1), "consumer", 256);
    world.desire(std::slice::from_ref(&small));
    world.apply().expect(0);
    let engines = world.lab.engines(HOST);

    // Too small from the start.
    world.lab.run(HOST, &["umount", &format!("/root/{WEIGHTS}")]);
    small_disk(&world, WEIGHTS, "40m");
    world.desire(&[small.clone(), world.model("large", model(), "consumer", 512)]);
    let outcome = world.apply();
    let mut broken = Vec::new();
    if outcome.code == Some(0) || !outcome.says("weights") {
        broken.push(format!("expected a failure and the folder: {}", one_line(&outcome)));
    }
    if world.lab.engines(HOST) != engines {
        broken.push("what ran was disturbed".to_owned());
    }
    in_shell(&world, &format!("mount -o remount,size=150m /root/{WEIGHTS}"));
    let (recovery, failed) = world.recover(1);
    broken.extend(failed);
    table.row("weights: too small for the file", broken, recovery);

    // Filled by somebody else while the copy is under way.
    world.desire(std::slice::from_ref(&small));
    world.apply().expect(0);
    let kept = world.lab.engines(HOST);
    in_shell(
        &world,
        &format!("cd /root/{WEIGHTS} && rm -rf */SmolLM2* */*.gguf */.flock-complete.json .flock-blobs .flock-users"),
    );
    world.desire(&[small.clone(), world.model("large", model(), "consumer", 512)]);
    let mut apply = world.repository.start(&["apply", "--yes"]);
    let inside = |path: &str| world.lab.run(HOST, &["sh", "-c", &format!("du -s {path} | cut -f1")]).stdout;
    let size = || inside(&format!("/root/{WEIGHTS}")).trim().parse::<u64>().unwrap_or(0);
    let seen = world.meanwhile(&mut apply, |_| size() > 2000);
    world.lab.run(HOST, &["sh", "-c", &format!("dd if=/dev/zero of=/root/{WEIGHTS}/fill bs=1M 2>/dev/null")]);
    let outcome = apply.finish(PATIENCE);
    let mut broken = Vec::new();
    if seen && (outcome.code != Some(8) || !outcome.says("weights")) {
        broken.push(format!("expected exit 8 and the folder: {}", one_line(&outcome)));
    }
    if world.lab.engines(HOST) != kept {
        broken.push("what ran was disturbed".to_owned());
    }
    in_shell(&world, &format!("rm /root/{WEIGHTS}/fill"));
    let (recovery, failed) = world.recover(1);
    broken.extend(failed);
    table.row("weights: filled during the copy", broken, recovery);
    world.desire(std::slice::from_ref(&small));
    world.apply().expect(0);
    in_shell(&world, &format!("umount -l /root/{WEIGHTS}"));
    table.row("between the two", world.broken(), None);

    // The state folder's own file system is full.
    broken = world.destroy();
    small_disk(&world, STATE, "400k");
    world.apply().expect(0);
    let kept = world.lab.engines(HOST);
    world.lab.run(HOST, &["sh", "-c", &format!("dd if=/dev/zero of=/root/{STATE}/fill bs=1k 2>/dev/null")]);
    world.desire(&[small.clone(), world.model("more", &world.tiny(2), "consumer", 256)]);
    let outcome = world.apply();
    if outcome.code == Some(0) || !outcome.says("No space left") {
        broken.push(format!("expected a failure in words: {}", one_line(&outcome)));
    }
    if world.lab.engines(HOST) != kept {
        broken.push("what ran was disturbed".to_owned());
    }
    world.repository.flock(&["status"]).expect(0);
    in_shell(&world, &format!("rm /root/{STATE}/fill"));
    let (recovery, failed) = world.recover(2);
    broken.extend(failed);
    table.row("the agent's state", broken, recovery);
    table.finish();
}
