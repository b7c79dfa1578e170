//! Engines that are broken: each fault is a small program in the real engine's place, everything around it is real.

use std::time::{Duration, Instant};

use crate::support::{list, number, text, wait_for};
use crate::table::{Table, long};
use crate::world::{PATIENCE, World, one_line};

const HOST: &str = "small";

/// In the engine's place, with the fault that the file beside it names. `none`: it is the real one.
const STAND_IN: &str = r#"#!/bin/sh
real=/opt/llama.cpp/llama-server
case "$*" in *--version*) exec $real "$@" ;; esac
last= port=
for word in "$@"; do [ "$last" = --port ] && port=$word; last=$word; done
case $(cat /opt/lab/fault) in
none) exec $real "$@" ;;
hangs) exec sleep 100000 ;;
ends) echo 'the wheels came off' >&2; exit 3 ;;
stumbles) [ "$(stat -c %s /opt/lab/tries)" -ge 2 ] && exec $real "$@"; printf x >>/opt/lab/tries; exit 3 ;;
memory) echo 'ggml_backend_cuda_buffer_type_alloc_buffer: cudaMalloc failed: out of memory' >&2; exit 1 ;;
dies) $real "$@" & sleep 6; kill -KILL $!; exit 1 ;;
garbage) exec python3 /opt/lab/garbage.py $port ;;
esac
"#;

/// Says yes to everything, in no language.
const GARBAGE: &str = r#"import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"\xff\x00 no JSON at all")
    do_GET = do_POST
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"#;

fn world() -> World {
    let world = World::three();
    let folder = world.lab.home(HOST, "../lab");
    std::fs::write(folder.join("llama-server"), STAND_IN).expect("the host's folder");
    std::fs::write(folder.join("garbage.py"), GARBAGE).expect("the host's folder");
    world.lab.run(HOST, &["chmod", "755", "/opt/lab/llama-server"]).expect(0);
    fault(&world, "none");
    let models =
        [world.model("near", &world.tiny(1), "consumer", 256), world.model("far", &world.tiny(2), "datacenter", 256)];
    let cluster = world.lab.cluster(&models.concat()).replace(
        "path \"/opt/llama.cpp/llama-server\"",
        "path \"/opt/llama.cpp/llama-server\"; path \"/opt/lab/llama-server\" node=\"small\"",
    );
    world.repository.write("cluster.kdl", cluster);
    world.repository.commit("an engine of its own on one host");
    world
}

fn fault(world: &World, name: &str) {
    std::fs::write(world.lab.home(HOST, "../lab/fault"), name).expect("the host's folder");
}

#[test]
fn a_broken_engine_is_a_failed_step_with_its_cause() {
    let world = world();
    let mut table =
        Table::new("broken engines: the apply ends with exit 8 and the cause, the lease is free, and it recovers");
    let mut faults = vec![("ends", "the wheels came off"), ("memory", "out of memory")];
    if long() {
        // Each of these takes the whole time that a start may take.
        faults.extend([("hangs", "not_ready: gave"), ("garbage", "not_ready: gave")]);
    }
    for (name, words) in faults {
        fault(&world, name);
        let outcome = world.apply();
        let mut broken = Vec::new();
        if outcome.code != Some(8) || !outcome.says(words) || !outcome.says("near") {
            broken.push(format!("expected exit 8 and {words:?}: {}", one_line(&outcome)));
        }
        if world.lab.home(HOST, ".local/share/flock/lab/small/lease.json").exists() {
            broken.push("the lease is held".to_owned());
        }
        if world.lab.engines("big").len() != 1 {
            broken.push("the other host was not served".to_owned());
        }
        // An apply's patience is its own: what failed in the one before does not count in the next.
        std::fs::write(world.lab.home(HOST, "../lab/tries"), "").expect("the host's folder");
        fault(&world, if name == "ends" { "stumbles" } else { "none" });
        let (recovery, failed) = world.recover(1);
        broken.extend(failed);
        broken.extend(world.broken());
        broken.extend(world.destroy());
        table.row(name, broken, recovery);
    }

    // It answered, so the apply is done; what happens later is the agent's.
    fault(&world, "dies");
    let outcome = world.apply();
    let mut broken = Vec::new();
    if outcome.code != Some(0) {
        broken.push(one_line(&outcome));
    }
    wait_for("the engine to die", PATIENCE, || world.lab.engines(HOST).is_empty().then_some(()));
    fault(&world, "none");
    let begun = Instant::now();
    wait_for("the agent to start the engine again by itself", PATIENCE, || {
        let inventory = world.repository.json(&["discover"]);
        let nodes = list(&inventory, "/nodes").iter().filter(|node| text(node, "/name") == HOST);
        let ready = nodes
            .flat_map(|node| list(node, "/instances"))
            .any(|found| text(found, "/state") == "ready" && number(found, "/starts") > 1);
        (ready && world.lab.engines(HOST).len() == 1).then_some(())
    });
    let recovery = begun.elapsed();
    broken.extend(world.broken());
    broken.extend(world.destroy());
    table.row("dies after it was ready, no apply", broken, Some(recovery));
    table.finish();
}

/// An apply waits for what an earlier one began, also where that hangs.
#[test]
fn an_apply_waits_for_what_still_starts() {
    if !long() {
        return;
    }
    let world = world();
    let mut table = Table::new("a start that hangs, its apply killed: the next apply waits for it");
    fault(&world, "hangs");
    let mut apply = world.repository.start(&["apply", "--yes"]);
    let hangs = || world.lab.processes(HOST).iter().any(|(_, words)| words.starts_with("sleep"));
    let seen = world.meanwhile(&mut apply, |_| hangs());
    apply.signal("KILL");
    apply.finish(PATIENCE);
    fault(&world, "none");
    let (recovery, mut broken) = world.recover(1);
    if !seen {
        broken.push("it never started".to_owned());
    }
    broken.extend(world.broken());
    broken.extend(world.destroy());
    table.row("hangs, then the real engine", broken, recovery);
    table.finish();
}

/// Holds ports of a host's loopback from outside flock.
fn hold(world: &World, ports: &[u64]) {
    let list = ports.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    let program = format!(
        "import socket, time\nheld = []\nfor port in [{list}]:\n    s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind((\"127.0.0.1\", port)); s.listen(); held.append(s)\ntime.sleep(100000)"
    );
    let start = format!("nohup python3 -c '{program}' >/dev/null 2>&1 </dev/null & sleep 0.1");
    world.lab.run(HOST, &["sh", "-c", &start]).expect(0);
    wait_for("the ports to be held", Duration::from_secs(120), || {
        let open = world.lab.ports(HOST);
        ports.iter().all(|port| open.contains(&format!("127.0.0.1:{port}"))).then_some(())
    });
}

fn let_go(world: &World) {
    let holders =
        world.lab.processes(HOST).into_iter().filter(|(_, words)| words.starts_with("python3 -c import socket"));
    world.lab.kill(&holders.map(|(pid, _)| pid).collect::<Vec<_>>());
}

#[test]
fn ports_and_memory_that_others_took_since_the_plan() {
    let world = world();
    let mut table = Table::new("ports and memory taken between plan and start");
    let file = world.repository.beside("plan.json").display().to_string();
    let plan = |world: &World| {
        world.repository.flock(&["plan", "--out", &file]).expect(0);
        let planned = world.repository.json(&["plan"]);
        let near =
            list(&planned, "/instances").iter().find(|one| text(one, "/model") == "near").expect("planned").clone();
        let alternates = list(&near, "/port_alternates").iter().filter_map(serde_json::Value::as_u64);
        std::iter::once(number(&near, "/port")).chain(alternates).collect::<Vec<_>>()
    };

    let ports = plan(&world);
    hold(&world, &ports[..1]);
    let outcome = world.repository.start(&["apply", &file]).finish(PATIENCE);
    let mut broken = Vec::new();
    if outcome.code != Some(0) {
        broken.push(one_line(&outcome));
    }
    if !world.lab.ports(HOST).iter().any(|open| ports[1..].iter().any(|port| *open == format!("127.0.0.1:{port}"))) {
        broken.push(format!("it listens on no alternate of {ports:?}: {:?}", world.lab.ports(HOST)));
    }
    let_go(&world);
    broken.extend(world.broken());
    broken.extend(world.destroy());
    table.row("the planned port", broken, None);

    let ports = plan(&world);
    hold(&world, &ports);
    let outcome = world.repository.start(&["apply", &file]).finish(PATIENCE);
    let mut broken = Vec::new();
    // A saved plan relies on one of them being free, and says so before anything is begun.
    if !matches!(outcome.code, Some(5 | 8)) || !outcome.says(&ports[0].to_string()) {
        broken.push(format!("expected exit 8 and the port: {}", one_line(&outcome)));
    }
    let_go(&world);
    let (recovery, failed) = world.recover(1);
    broken.extend(failed);
    broken.extend(world.broken());
    broken.extend(world.destroy());
    table.row("the planned port and all its alternates", broken, recovery);

    // Between the facts and the load, which a long copy or an answer that is thought over can lie between: the moment is
    // held by stopping flock where it begins to copy.
    world.forget_unused_weights();
    let gpus = crate::support::lab::three_hosts()[1].gpus.clone();
    let mut taken = gpus.clone();
    taken.iter_mut().for_each(|gpu| gpu.used_mib = gpu.total_mib - 200);
    let mut apply = world.repository.start(&["apply", "--yes"]);
    let seen = world.meanwhile(&mut apply, |apply| apply.said().contains("fetch near"));
    world.lab.set_gpus(HOST, &taken);
    let outcome = apply.finish(PATIENCE);
    let mut broken = Vec::new();
    if !seen || outcome.code != Some(8) || !outcome.says("beside what others hold") {
        broken.push(format!("expected exit 8 and the accelerator: {}", one_line(&outcome)));
    }
    if !world.lab.engines(HOST).is_empty() {
        broken.push("it was loaded all the same".to_owned());
    }
    world.lab.set_gpus(HOST, &gpus);
    let (recovery, failed) = world.recover(1);
    broken.extend(failed);
    broken.extend(world.broken());
    broken.extend(world.destroy());
    table.row("the accelerators' memory", broken, recovery);
    table.finish();
}
