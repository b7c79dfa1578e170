//! A model that fits no host, over two of them: the real llama-server and a real ggml-rpc-server on processors.

use std::time::Duration;

use flock::base::MIB;

use crate::support::lab::{HostSpec, Lab, small_model};
use crate::support::{list, text, wait_for};

/// The hosts' memory: what `/proc/meminfo` says there. It is a file of the test's own, because real hosts of one machine
/// all have the same memory; that what runs is not taken from it does not matter, because flock counts its own back.
fn remember(lab: &Lab, host: &str, mib: u64) {
    let kib = mib * 1024;
    let text = format!("MemTotal: {kib} kB\nMemFree: {kib} kB\nMemAvailable: {kib} kB\n");
    lab.write(host, "meminfo", &text);
    lab.run(host, &["mount", "--bind", "/opt/lab/meminfo", "/proc/meminfo"]).expect(0);
}

/// The workers' process ids on a host.
fn workers(lab: &Lab, host: &str) -> Vec<u32> {
    let found = lab.processes(host).into_iter().filter(|(_, words)| words.contains("ggml-rpc-server"));
    found.map(|(pid, _)| pid).collect()
}

#[test]
fn layers_on_two_hosts_answer_stay_and_end_together() {
    let hosts: Vec<HostSpec> = ["a", "b"].map(|name| HostSpec { name, tier: "lab", gpus: Vec::new() }).to_vec();
    let lab = Lab::up(&hosts);
    hosts.iter().for_each(|host| remember(&lab, host.name, MEMORY_MIB));
    let model = |context: u32, allowed: &str| {
        small_model("wide", &format!("context {context}\n    place {{ allow cpu=#true {allowed} }}"))
    };
    let repository = lab.repository(&model(8192, ""));

    // One host is too small, and nothing is over several unless it may be.
    let refused = repository.flock(&["plan"]);
    refused.expect(4).expect_says("of host memory");
    repository.write("cluster.kdl", lab.cluster(&model(8192, "nodes=#true")));
    repository.commit("over several nodes");
    // Not before the way between them is known.
    repository.flock(&["plan"]).expect(4);
    repository.flock(&["discover"]).expect(0);
    let plan = repository.json(&["plan"]);
    let steps: Vec<(&str, &str)> =
        list(&plan, "/steps").iter().map(|step| (text(step, "/verb"), text(step, "/node"))).collect();
    let serving = list(&plan, "/instances").iter().find(|instance| instance["part"].is_null()).expect("it serves");
    let (first, second) = (text(serving, "/nodes/0"), text(serving, "/nodes/1"));
    assert_eq!(text(serving, "/node"), first);
    assert_eq!(steps.last(), Some(&("start", first)), "{steps:?}");
    assert!(steps.contains(&("start", second)), "{steps:?}");
    let helper = &list(serving, "/processes")[0];
    let port = &helper["ports"][0];
    assert_eq!(text(helper, "/node"), second);
    let endpoint = format!("{}:{port}", lab.address(second));
    let argv: Vec<&str> = list(serving, "/argv").iter().filter_map(serde_json::Value::as_str).collect();
    assert_eq!(argv.iter().position(|word| *word == "--rpc").map(|at| argv[at + 1]), Some(endpoint.as_str()));
    let needed = |at: &serde_json::Value| at.pointer("/memory/host/total_bytes").and_then(serde_json::Value::as_u64);
    for instance in list(&plan, "/instances") {
        assert!(needed(instance).expect("known") <= (MEMORY_MIB - 256) * MIB, "{instance:#}");
    }
    let shown = repository.flock(&["plan"]);
    shown.expect(0).expect_says("layers over 2 nodes: ").expect_says("worker for wide/0 on ");
    eprintln!("{}", shown.stdout);

    repository.flock(&["apply", "--yes"]).expect(0);
    let asked = |repository: &crate::support::Repository| {
        let answer = repository.flock(&["ask", "wide", "Say hello.", "--max-tokens", "8"]);
        assert!(!answer.expect(0).stdout.trim().is_empty());
    };
    asked(&repository);
    // The worker listens where the other host reaches it, and nowhere else; what serves on loopback.
    assert_eq!((lab.engines(first).len(), workers(&lab, second).len()), (1, 1));
    assert_eq!(lab.ports(second), std::slice::from_ref(&endpoint));
    assert!(lab.ports(first).iter().all(|address| address.starts_with("127.0.0.1:")), "{:?}", lab.ports(first));
    let log = repository.flock(&["logs", "wide"]);
    log.expect(0).expect_says(&format!("RPC0[{endpoint}] model buffer size")).expect_says("Accepted client connection");

    // Nothing changed, so nothing is done.
    let pids = (lab.engines(first), workers(&lab, second));
    repository.flock(&["plan", "--detailed-exitcode"]).expect(0);
    repository.flock(&["apply", "--yes"]).expect(0);
    repository.flock(&["drift", "--detailed-exitcode"]).expect(0);
    assert_eq!((lab.engines(first), workers(&lab, second)), pids);
    let status = repository.flock(&["status", "wide"]);
    status.expect(0).expect_says(", worker, port ");
    eprintln!("{}", status.stdout);
    eprintln!("{}", repository.flock(&["explain", "wide"]).expect(0).stdout);

    // A worker that dies is started again by its node, and what serves follows once it notices.
    lab.kill(&workers(&lab, second));
    wait_for("the worker to run again", Duration::from_secs(60), || (workers(&lab, second).len() == 1).then_some(()));
    wait_for("an answer", Duration::from_secs(120), || {
        let answer = repository.flock(&["ask", "wide", "Say hello.", "--max-tokens", "4"]);
        (answer.code == Some(0)).then_some(())
    });
    repository.flock(&["plan", "--detailed-exitcode"]).expect(0);

    // Another context is another instance on both: the old one ends whole before the new one begins.
    repository.write("cluster.kdl", lab.cluster(&model(7168, "nodes=#true")));
    repository.commit("a shorter context");
    let plan = repository.json(&["plan"]);
    let steps: Vec<(&str, &str)> =
        list(&plan, "/steps").iter().map(|step| (text(step, "/verb"), text(step, "/node"))).collect();
    assert_eq!(steps[..2], [("stop", first), ("stop", second)], "{steps:?}");
    assert_eq!(steps[2..], [("start", second), ("start", first)], "{steps:?}");
    repository.flock(&["apply", "--yes"]).expect(0);
    asked(&repository);
    assert_eq!((lab.engines(first).len(), workers(&lab, second).len()), (1, 1));

    // At the end it goes from both hosts.
    repository.flock(&["destroy", "--yes"]).expect(0);
    lab.expect_nothing_left();
}

/// What each host has: the model needs more, half of it less.
const MEMORY_MIB: u64 = 640;
