//! `flock-agent` as a process: driven over its standard streams, with real processes as engines.
//!
//! Each test has a home of its own, so its keeper, sockets and instances are its own too.
#![cfg(feature = "agent")]
#![expect(clippy::disallowed_methods, reason = "tests start processes and read files")]

use std::collections::BTreeMap;
use std::io::{BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use flock::agent::frames::{read_message, skip_to_hello, write_message};
use flock::base::{Digest, EngineKind, InstanceState};
use flock::inventory::{
    FetchFile, FetchSpec, HELLO, InstanceFacts, InstanceSpec, Lease, MemberRecord, NodeFacts, Refusal, Request,
    Response, raw_frame,
};

#[path = "agent/download.rs"]
mod download;
#[path = "agent/home.rs"]
mod home;
#[path = "agent/life.rs"]
mod life;
#[path = "agent/measured.rs"]
mod measured;
#[path = "support/ports.rs"]
mod ports;
#[path = "agent/store.rs"]
mod store;
#[allow(dead_code, reason = "each test binary uses its own part")]
#[path = "support/hub.rs"]
mod support;
#[path = "agent/workers.rs"]
mod workers;

use home::*;

const AGENT: &str = env!("CARGO_BIN_EXE_flock-agent");
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_late_copy_of_a_stop_does_not_end_what_the_same_apply_started() {
    let home = Home::new();
    let stop = |generation, before_start| {
        home.ask(Request::Stop { generation, instance: "aaaa".into(), grace_ms: 0, before_start })
    };
    let start = |generation| {
        let spec = Box::new(script("aaaa", "sleep 1000"));
        assert!(matches!(home.ask(Request::Start { generation, spec }), Response::Instances { .. }));
    };
    start(1);
    assert_eq!(stop(2, true), Response::Done, "a restart stops");
    assert_eq!(stop(2, true), Response::Done, "and may say so again");
    start(2);
    let Response::Refused { refusal } = stop(2, true) else { panic!("a late copy was carried out") };
    assert!(refusal.to_string().contains("started by this very apply"), "{refusal}");
    start(2);
    assert_eq!(stop(3, true), Response::Done, "a later apply stops it");
}

#[test]
fn a_stop_ends_the_whole_group_however_stubborn() {
    let home = Home::new();
    let child = home.path().join("child");
    let text =
        format!("trap '' TERM; (trap '' TERM; sleep 1000) & echo $! > {}; sleep 1000; sleep 1000", child.display());
    home.start(&script("aaaa", &text));
    let facts = home.until("running", |facts| facts.running);
    assert_eq!((facts.state, facts.starts), (InstanceState::Starting, 1));
    let (engine, child) = (facts.pid.expect("a pid"), pid_in(&child));
    let key = home.ask(Request::Key { instance: "aaaa".into() });
    assert!(
        matches!(&key, Response::Key { key, served_name, .. } if key.reveal().len() == 64 && served_name == "coder")
    );
    // The same again changes nothing.
    home.start(&script("aaaa", &text));
    assert_eq!(home.instances()[0].pid, Some(engine));
    assert_eq!(home.stop("aaaa", 300), Response::Done);
    assert!(!is_alive(engine) && !is_alive(child));
    assert!(home.instances().is_empty());
    assert!(!home.state().join("instances/aaaa").exists() && !home.state().join("keys/aaaa").exists());
    // And again, which is no error.
    assert_eq!(home.stop("aaaa", 300), Response::Done);
}

#[test]
fn a_crash_is_repeated_with_pauses_and_recorded() {
    let home = Home::new();
    let began = Instant::now();
    home.start(&script("bbbb", "echo the last words; exit 7"));
    let facts = home.until("second start", |facts| facts.starts >= 2 && facts.last_failure.is_some());
    let failure = facts.last_failure.expect("recorded");
    assert_eq!(failure.cause, "exit");
    assert!(failure.text.contains('7') && failure.text.contains("the last words"), "{}", failure.text);
    assert!(!failure.gave_up);
    sleep(Duration::from_secs(2));
    let starts = home.instances()[0].starts;
    // One a second at most, from the first one on, however slow this machine is.
    assert!(u64::from(starts) <= 2 + began.elapsed().as_secs(), "{starts} starts");
    let log = home.ask(Request::Log { instance: "bbbb".into(), from: None, max_bytes: 1000 });
    assert!(matches!(&log, Response::Log { text, .. } if text.contains("the last words")));
    assert_eq!(home.stop("bbbb", 0), Response::Done);
}

#[test]
fn a_configuration_error_ends_the_attempts_until_the_next_apply() {
    let home = Home::new();
    home.start(&script("cccc", "echo 'error: invalid argument: --frobnicate'; exit 1"));
    let facts = home.until("given up", |facts| facts.last_failure.as_ref().is_some_and(|failure| failure.gave_up));
    assert_eq!(facts.state, InstanceState::Failed);
    sleep(Duration::from_millis(1500));
    assert_eq!(home.instances()[0].starts, 1);
    assert!(matches!(home.ask(Request::Supervise { generation: 2 }), Response::Instances { .. }));
    home.until("tried again", |facts| facts.starts == 2);
}

#[test]
fn three_times_out_of_memory_is_enough() {
    let home = Home::new();
    home.start(&script("cdcd", "echo torch.OutOfMemoryError: CUDA out of memory.; exit 1"));
    let facts = home.until("given up", |facts| facts.last_failure.as_ref().is_some_and(|failure| failure.gave_up));
    assert_eq!((facts.starts, facts.last_failure.expect("recorded").cause.as_str()), (3, "out_of_memory"));
}

#[test]
fn engines_outlive_their_keeper_and_are_taken_over() {
    let home = Home::new();
    home.start(&script("dddd", "sleep 1000; sleep 1"));
    let before = home.until("running", |facts| facts.running);
    kill(home.keeper_pid());
    let node = home.probe();
    assert!(node.agent.is_some_and(|agent| !agent.supervising), "looking must not heal");
    assert_eq!((node.instances[0].running, node.instances[0].pid), (true, before.pid));
    home.ask(Request::Supervise { generation: 1 });
    let after = home.until("running", |facts| facts.running);
    assert_eq!((after.pid, after.starts), (before.pid, 1));
    assert!(home.probe().agent.is_some_and(|agent| agent.supervising));
    // An engine that dies under the second keeper, which is not its parent, is started again.
    kill(before.pid.expect("a pid"));
    let again = home.until("started again", |facts| facts.running && facts.pid != before.pid);
    assert_eq!(again.starts, 2);
    // One that dies while nobody keeps is, once somebody does.
    kill(home.keeper_pid());
    kill(again.pid.expect("a pid"));
    let dead = home.until("dead", |facts| !facts.running);
    assert_eq!(dead.state, InstanceState::Failed);
    home.ask(Request::Supervise { generation: 1 });
    home.until("third start", |facts| facts.running && facts.starts == 3);
}

#[test]
fn children_of_a_killed_engine_go_before_the_next_start() {
    let home = Home::new();
    let child = home.path().join("child");
    home.start(&script("eeee", &format!("env -i sleep 1000 & echo $! > {}; sleep 1000; sleep 1", child.display())));
    let before = home.until("running", |facts| facts.running);
    let orphan = pid_in(&child);
    std::fs::remove_file(&child).expect("removed");
    kill(before.pid.expect("a pid"));
    home.until("started again", |facts| facts.running && facts.pid != before.pid);
    assert!(!is_alive(orphan));
}

#[test]
fn an_interrupted_start_is_not_repeated() {
    let home = Home::new();
    home.start(&script("ffff", "sleep 1000; sleep 1"));
    let before = home.until("running", |facts| facts.running);
    kill(home.keeper_pid());
    // As if the keeper had been killed between the process's start and its record.
    let path = home.state().join("instances/ffff/state.json");
    let text = std::fs::read_to_string(&path).expect("a record");
    let mut record: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    record["phase"] = serde_json::json!({ "is": "spawning" });
    record["process"] = serde_json::Value::Null;
    record["members"] = serde_json::json!([]);
    record["port"] = serde_json::json!(20000);
    std::fs::write(&path, record.to_string()).expect("written");
    home.ask(Request::Supervise { generation: 1 });
    let after = home.until("running", |facts| facts.running);
    assert_eq!(after.pid, before.pid);
}

#[test]
fn what_gives_no_completion_in_time_is_not_ready() {
    let home = Home::new();
    home.start(&InstanceSpec { ready_timeout_ms: 500, ..script("abcd", "sleep 1000; sleep 1") });
    let facts = home.until("failed", |facts| facts.last_failure.is_some());
    assert_eq!(facts.last_failure.expect("recorded").cause, "not_ready");
}

#[test]
fn a_port_found_taken_after_all_gives_way_without_a_failure() {
    let home = Home::new();
    let (first, second) = (ports::free_port(), ports::free_port());
    let text = "[ $P = $FIRST ] && { echo bind: Address already in use; exit 1; }; sleep 1000; sleep 1";
    let mut spec = InstanceSpec { port: first, port_alternates: vec![second], ..script("abab", text) };
    spec.env = BTreeMap::from([("P".into(), "{port}".into()), ("FIRST".into(), first.to_string())]);
    home.start(&spec);
    let facts = home.until("on the alternate", |facts| facts.running && facts.port == second);
    assert!(facts.last_failure.is_none() && facts.state == InstanceState::Starting, "{facts:?}");
}

#[test]
fn a_keeper_whose_socket_vanishes_makes_another() {
    let home = Home::new();
    home.start(&script("acac", "sleep 1000; sleep 1"));
    let keeper = home.keeper_pid();
    let badge = std::fs::read_to_string(home.state().join("keeper.json")).expect("a keeper");
    let badge: serde_json::Value = serde_json::from_str(&badge).expect("JSON");
    let socket = PathBuf::from(badge["socket"].as_str().expect("a path"));
    std::fs::remove_file(&socket).expect("removed");
    let until = Instant::now() + PATIENCE;
    while !socket.exists() && Instant::now() < until {
        sleep(Duration::from_millis(50));
    }
    assert!(matches!(home.ask(Request::Supervise { generation: 1 }), Response::Instances { .. }));
    assert_eq!(home.keeper_pid(), keeper);
}

#[test]
fn a_changed_specification_replaces_the_process() {
    let home = Home::new();
    home.start(&script("adad", "sleep 1000; sleep 1"));
    let before = home.until("running", |facts| facts.running).pid;
    let changed = InstanceSpec { specification: "sha256:2".into(), ..script("adad", "sleep 2000; sleep 1") };
    home.start(&changed);
    let after = home.until("replaced", |facts| facts.running && facts.pid != before);
    assert_eq!(after.specification, "sha256:2");
    assert!(after.last_failure.is_none() && !before.is_some_and(is_alive));
}

/// Process groups of a home's instances, by the mark in their environment.
fn groups(home: &Home) -> Vec<u32> {
    let mark = format!("FLOCK_INSTANCE_STATE={}", home.state().display());
    let mut groups: Vec<u32> = std::fs::read_dir("/proc")
        .expect("listed")
        .flatten()
        .filter_map(|entry| {
            let environ = std::fs::read(entry.path().join("environ")).ok()?;
            environ.split(|byte| *byte == 0).find(|entry| *entry == mark.as_bytes())?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(2)?.parse().ok()
        })
        .collect();
    groups.sort_unstable();
    groups.dedup();
    groups
}

#[test]
fn a_keeper_killed_at_any_moment_never_makes_two_of_one() {
    let home = Home::new();
    home.ask(Request::Supervise { generation: 1 });
    for delay in [0, 1, 2, 3, 4, 6, 8, 12, 16, 24] {
        let mut link = home.connect();
        let spec = Box::new(script("baba", "sleep 1000 & sleep 1000; sleep 1"));
        write_message(link.input.as_mut().expect("open"), &Request::Start { generation: 1, spec }).expect("sent");
        sleep(Duration::from_millis(delay));
        kill(home.keeper_pid());
        drop(link);
        home.ask(Request::Supervise { generation: 1 });
        home.ask(Request::Start { generation: 1, spec: Box::new(script("baba", "sleep 1000 & sleep 1000; sleep 1")) });
        home.until("running", |facts| facts.running);
        assert_eq!(groups(&home).len(), 1, "after {delay} ms");
        // And the same while it stops.
        let mut link = home.connect();
        let stop = Request::Stop { generation: 1, instance: "baba".into(), grace_ms: 1000, before_start: false };
        write_message(link.input.as_mut().expect("open"), &stop).expect("sent");
        sleep(Duration::from_millis(delay));
        kill(home.keeper_pid());
        drop(link);
        assert_eq!(home.stop("baba", 1000), Response::Done);
        assert_eq!(groups(&home), Vec::<u32>::new(), "after {delay} ms");
        assert!(home.instances().is_empty());
    }
}

#[test]
fn missing_weights_and_programs_are_said() {
    let home = Home::new();
    let folder = home.path().join("none").display().to_string();
    let weights =
        flock::inventory::WeightsRef { revision: Some("sha256:0".into()), folder, files: vec!["m.gguf".into()] };
    home.start(&InstanceSpec { weights: vec![weights], ..script("aa11", "sleep 1000") });
    home.start(&InstanceSpec { argv: vec!["/does/not/exist".into()], ..script("bb22", "") });
    let cause =
        |facts: &InstanceFacts| facts.last_failure.as_ref().map(|failure| (failure.cause.clone(), failure.gave_up));
    home.until("weights", |facts| facts.instance == "aa11" && cause(facts) == Some(("weights".into(), false)));
    home.until("program", |facts| facts.instance == "bb22" && cause(facts) == Some(("configuration".into(), true)));
}

#[test]
fn older_applies_and_other_holders_are_refused() {
    let home = Home::new();
    let lease = |id: &str| Request::Lease {
        lease: Lease { id: id.into(), holder: "me@here".into(), ..Lease::default() },
        ttl_ms: 60_000,
        expected_generation: None,
    };
    assert_eq!(home.ask(lease("one")), Response::Done);
    assert_eq!(home.ask(lease("one")), Response::Done);
    assert!(matches!(home.ask(lease("two")), Response::Refused { refusal: Refusal::LeaseHeld { .. } }));
    assert_eq!(home.ask(Request::BreakLease), Response::Done);
    assert_eq!(home.ask(lease("two")), Response::Done);
    let member = MemberRecord { generation: 5, ..MemberRecord::default() };
    assert_eq!(home.ask(Request::WriteMember { member }), Response::Done);
    let stale = Response::Refused { refusal: Refusal::Stale { offered: 1, held: 5 } };
    assert_eq!(home.ask(Request::Start { generation: 1, spec: Box::new(script("aaaa", "sleep 9")) }), stale);
    assert_eq!(home.ask(Request::Supervise { generation: 1 }), stale);
    assert_eq!(home.stop("aaaa", 0), stale);
    assert!(home.instances().is_empty());
    let Response::Facts { member, node, .. } =
        home.ask(Request::Probe { engines: Vec::new(), weights_path: None, on_node: Vec::new() })
    else {
        panic!("no facts")
    };
    assert_eq!((member.generation, node.generation), (5, 5));
    assert_eq!(member.lease.map(|lease| lease.id).as_deref(), Some("two"));
}

#[test]
fn forgetting_leaves_nothing_and_waits_for_nothing_desired() {
    let home = Home::new();
    home.start(&script("aaaa", "sleep 1000; sleep 1"));
    let refused = home.ask(Request::Forget { generation: 1 });
    assert!(matches!(&refused, Response::Refused { refusal: Refusal::Failed { text } } if text.contains("aaaa")));
    let badge = std::fs::read_to_string(home.state().join("keeper.json")).expect("a keeper");
    let badge: serde_json::Value = serde_json::from_str(&badge).expect("JSON");
    let (socket, keeper) = (badge["socket"].as_str().expect("a path").to_owned(), home.keeper_pid());
    assert!(Path::new(&socket).exists());
    home.stop("aaaa", 0);
    assert_eq!(home.ask(Request::Forget { generation: 1 }), Response::Done);
    assert!(!home.path().join(".local/share/flock/lab").exists());
    let until = Instant::now() + PATIENCE;
    while (is_alive(keeper) || Path::new(&socket).exists()) && Instant::now() < until {
        sleep(Duration::from_millis(20));
    }
    assert!(!is_alive(keeper) && !Path::new(&socket).exists());
    assert_eq!(home.ask(Request::Forget { generation: 1 }), Response::Done);
    assert!(!home.state().exists());
}

#[test]
fn an_engine_that_nobody_knows_any_more_is_seen_and_ended_and_not_forgotten() {
    let damages: [fn(&Path); 3] = [
        // A record that cannot be read, of an instance that is no longer desired.
        |state| std::fs::write(state.join("instances/aaaa/state.json"), "{").expect("written"),
        |state| std::fs::remove_dir_all(state.join("instances")).expect("removed"),
        |state| std::fs::remove_dir_all(state).expect("removed"),
    ];
    let ways = damages.into_iter().enumerate().flat_map(|damage| [(true, damage), (false, damage)]);
    for (by_stop, (number, damage)) in ways {
        let home = Home::new();
        home.start(&script("aaaa", "trap '' TERM; sleep 1000; sleep 1000"));
        let engine = home.until("running", |facts| facts.running).pid.expect("a pid");
        kill(home.keeper_pid());
        let desired = home.state().join("desired.json");
        std::fs::write(desired, r#"{"generation":1,"instances":{}}"#).expect("written");
        damage(&home.state());
        let facts = home.instances();
        assert_eq!((facts.len(), facts[0].state, facts[0].pid), (1, InstanceState::Stopping, Some(engine)), "{number}");
        if by_stop {
            assert_eq!(home.stop("aaaa", 0), Response::Done, "{number}");
            assert!(!is_alive(engine) && home.instances().is_empty());
            assert_eq!(home.ask(Request::Forget { generation: 1 }), Response::Done);
        } else {
            // It is not forgotten while it lives: the order waits for what is being stopped.
            let mut asking = home.connect();
            let forgotten = std::thread::spawn(move || asking.ask(&Request::Forget { generation: 1 }));
            sleep(Duration::from_millis(1500));
            assert!(!forgotten.is_finished() && is_alive(engine) && home.state().exists(), "{number}");
            let group = Command::new("kill").args(["-KILL", "--", &format!("-{engine}")]).status();
            assert!(group.expect("kill runs").success());
            assert_eq!(forgotten.join().expect("it asks"), Response::Done, "{number}");
            assert!(!is_alive(engine), "{number}");
        }
        assert!(!home.state().exists());
    }
}

/// Processor time that a process has used.
fn processor_ms(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    let (_, rest) = stat.rsplit_once(')').expect("a stat line");
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // Clock ticks of 10 ms, in user mode and in the kernel.
    fields[11..13].iter().map(|ticks| ticks.parse::<u64>().expect("a number") * 10).sum()
}

#[test]
fn the_keeper_sleeps_while_it_waits_for_a_stop() {
    let home = Home::new();
    home.start(&script("aaaa", "trap '' TERM; sleep 1000; sleep 1000"));
    home.until("running", |facts| facts.running);
    let before = processor_ms(home.keeper_pid());
    let started = Instant::now();
    assert_eq!(home.stop("aaaa", 4000), Response::Done);
    let (used, waited) = (processor_ms(home.keeper_pid()) - before, started.elapsed());
    assert!(waited >= Duration::from_millis(4000), "{waited:?}");
    assert!(used < 600, "{used} ms of processor time in {waited:?}");
}

#[test]
fn files_arrive_over_the_pipe_and_resume_after_a_cut() {
    let home = Home::new();
    let content: Vec<u8> = (0..3_000_000u32).map(|number| (number % 251) as u8).collect();
    let folder = home.path().join("weights/0123456789abcdef");
    let fetch = FetchSpec {
        source: "path:m.gguf".into(),
        revision: "sha256:0123".into(),
        folder: folder.display().to_string(),
        files: vec![FetchFile {
            name: "m.gguf".into(),
            size_bytes: content.len() as u64,
            sha256: Some(Digest::of(&content).to_string()),
        }],
    };
    let put = |offset| Request::Put { fetch: fetch.clone(), name: "m.gguf".into(), offset };
    {
        let mut link = home.connect();
        let input = link.input.as_mut().expect("open");
        write_message(input, &put(0)).expect("sent");
        input.write_all(&raw_frame(&content[..1_000_000])).expect("sent");
    }
    let state = home.ask(Request::FetchState { fetch: fetch.clone() });
    assert_eq!(state, Response::Fetched { complete: false, have_bytes: vec![1_000_000] });
    let mut link = home.connect();
    let input = link.input.as_mut().expect("open");
    write_message(input, &put(1_000_000)).expect("sent");
    for piece in content[1_000_000..].chunks(1 << 20) {
        input.write_all(&raw_frame(piece)).expect("sent");
    }
    input.write_all(&raw_frame(&[])).expect("sent");
    let answer: Response = read_message(&mut link.output).expect("a message").expect("an answer");
    assert_eq!(answer, Response::Fetched { complete: false, have_bytes: vec![content.len() as u64] });
    let done = link.ask(&Request::FetchDone { fetch: fetch.clone() });
    assert!(matches!(done, Response::Fetched { complete: true, .. }));
    let weights_path = Some(home.path().join("weights").display().to_string());
    let probe = Request::Probe { engines: Vec::new(), weights_path, on_node: Vec::new() };
    let Response::Facts { node, .. } = link.ask(&probe) else { panic!("no facts") };
    assert!(node.weights.iter().any(|found| found.complete && found.revision == "sha256:0123"));
}

/// With the real llama-server and model that `FLOCK_TEST_LLAMA_SERVER` and `FLOCK_TEST_MODEL` name.
#[test]
fn a_real_engine_becomes_ready_and_keeps_its_port() {
    let named = |variable: &str| {
        std::env::var_os(variable).unwrap_or_else(|| {
            panic!(
                "{variable} is not set: run scripts/test, or `scripts/engine server|model` and export what it prints"
            )
        })
    };
    let (server, model) = (named("FLOCK_TEST_LLAMA_SERVER"), named("FLOCK_TEST_MODEL"));
    let (server, model) = (server.to_string_lossy().into_owned(), model.to_string_lossy().into_owned());
    let home = Home::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("bound").port();
    let free = ports::free_port();
    let arguments =
        ["--model", &model, "--host", "127.0.0.1", "--port", "{port}", "--ctx-size", "512", "--alias", "coder"];
    let spec = InstanceSpec {
        argv: std::iter::once(server.as_str()).chain(arguments).map(str::to_owned).collect(),
        key_env: Some("LLAMA_API_KEY".into()),
        port,
        port_alternates: vec![free],
        ..script("aaaa", "")
    };
    home.start(&spec);
    let ready = home.until("ready", |facts| facts.state == InstanceState::Ready);
    assert_eq!((ready.port, ready.starts), (free, 1));
    assert!(ready.load_ms.is_some() && ready.host_bytes.is_some_and(|bytes| bytes > 1 << 20));
    drop(taken);
    kill(home.keeper_pid());
    home.ask(Request::Supervise { generation: 1 });
    assert_eq!(home.until("still ready", |facts| facts.running).state, InstanceState::Ready);
    kill(ready.pid.expect("a pid"));
    let again = home.until("ready again", |facts| facts.state == InstanceState::Ready && facts.pid != ready.pid);
    assert_eq!(again.port, free, "a running instance keeps its port");
    let query = flock::inventory::EngineQuery {
        kind: EngineKind::LlamaCpp,
        paths: vec![server],
        modules: Vec::new(),
        image: None,
    };
    let probe = Request::Probe { engines: vec![query], weights_path: None, on_node: vec![model] };
    let Response::Facts { node, .. } = home.ask(probe) else { panic!("no facts") };
    let engines = node.engines.expect("looked for");
    assert!(engines[0].version.is_some() && engines[0].problem.is_none(), "{engines:?}");
    let found = node.weights.iter().find(|found| found.source.starts_with("on-node:")).expect("read");
    assert!(found.problem.is_none() && found.variants.len() == 1, "{found:?}");
    assert_eq!(home.stop("aaaa", 5000), Response::Done);
}

/// The stand-in driver, built once per test run.
fn with_driver(home: &mut Home, gpus: &str) -> PathBuf {
    let folder = home.path().join("driver");
    std::fs::create_dir(&folder).expect("made");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/nvml_stand_in.rs");
    let mut command = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    command.args(["--edition", "2024", "-C", "panic=abort", "--crate-type", "cdylib", "-o"]);
    let status = command.arg(folder.join("libnvidia-ml.so.1")).arg(source).status().expect("rustc runs");
    assert!(status.success());
    let file = folder.join("gpus");
    std::fs::write(&file, gpus).expect("written");
    home.environment.push(("LD_LIBRARY_PATH".into(), folder.display().to_string()));
    home.environment.push(("FLOCK_FAKE_NVML".into(), file.display().to_string()));
    file
}

#[test]
fn accelerators_are_told_one_by_one() {
    let mut home = Home::new();
    let file = with_driver(
        &mut home,
        "NVIDIA GeForce RTX 4090|GPU-a|24564|300|00000000:01:00.0|8.9|1|77:300|reserved=400 bus=384 clock=10501 display\n\
         NVIDIA GeForce RTX 4090|GPU-b|24564|0|00000000:02:00.0|8.9|0||\n\
         NVIDIA A100-SXM4-40GB|GPU-c|40960|0|00000000:03:00.0|8.0|||mig=MIG-a:19968,MIG-b:19968 ecc numa=0\n\
         NVIDIA GB10|GPU-d|0|0|00000000:04:00.0|12.1|||unified\n\
         NVIDIA L4|GPU-e|23034|0|00000000:05:00.0|8.9|||broken\n\
         NVIDIA L4|GPU-f|23034|0|00000000:06:00.0|8.9|||lost\n",
    );
    let node = home.probe();
    let of = |uuid: &str| node.accelerator(uuid).unwrap_or_else(|| panic!("no {uuid} in {:?}", node.accelerators));
    let a = of("GPU-a");
    assert_eq!((a.memory.total_bytes, a.memory.used_bytes), (Some(24564 << 20), Some(300 << 20)));
    assert_eq!((a.memory.reserved_bytes, a.memory.free_bytes), (Some(400 << 20), Some((24564 - 700) << 20)));
    assert_eq!((a.compute_capability.as_deref(), a.bandwidth_bytes_per_s), (Some("8.9"), Some(1_008_096_000_000)));
    assert_eq!((a.display, a.processes[0].pid, a.processes[0].ours), (Some(true), 77, false));
    assert!(a.healthy && of("GPU-b").bandwidth_bytes_per_s.is_none());
    assert!(of("GPU-b").unknown.contains_key("bandwidth_bytes_per_s"));
    assert!(node.accelerator("GPU-c").is_none(), "a parent with slices is not a device");
    assert_eq!(of("MIG-a").memory.total_bytes, Some(19968 << 20));
    assert_eq!(of("MIG-b").mig_parent.as_deref(), Some("GPU-c"));
    let d = of("GPU-d");
    assert!(d.healthy && d.memory.unified && d.memory.total_bytes == node.ram.total_bytes);
    assert!(d.memory.free_bytes.is_some_and(|free| free > 0));
    assert!(!of("GPU-e").healthy && of("GPU-e").unknown["healthy"].contains("fell off the bus"));
    assert!(!of("ada-1#5").healthy);
    let link = &node.accelerator_links[0];
    assert_eq!((link.a.as_str(), link.b.as_str(), link.kind.as_str()), ("GPU-a", "GPU-b", "nvlink"));
    assert!(!node.unknown.contains_key("accelerators"));
    std::fs::write(file, "! mismatch\n").expect("written");
    let node = home.probe();
    let why = &node.unknown["accelerators"];
    assert!(node.accelerators.is_empty() && why.contains("mismatch") && why.contains("reboot the node"), "{why}");
}

/// The host's own figures, from the same kernel that the agent asked.
fn meminfo(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").expect("readable");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).expect("there");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

#[test]
fn memory_that_a_driver_does_not_tell_is_the_host_s_or_unknown_and_never_zero() {
    let mut home = Home::new();
    with_driver(
        &mut home,
        "NVIDIA GB10|GPU-gb10|0|0|0000000F:01:00.0|12.1|||unified\n\
         NVIDIA GH200 480GB|GPU-gh200|97871|500|00000009:01:00.0|9.0|||reserved=600 ecc\n\
         Orin (nvgpu)|GPU-none|0|0|00000000:00:00.0|8.7|||unified nouuid\n\
         NVIDIA L4|GPU-denied|23034|0|00000000:05:00.0|8.9|||denied\n",
    );
    let node = home.probe();
    let of = |uuid: &str| node.accelerator(uuid).unwrap_or_else(|| panic!("no {uuid} in {:?}", node.accelerators));
    let gb10 = &of("GPU-gb10").memory;
    assert_eq!((gb10.unified, gb10.total_bytes), (true, Some(meminfo("MemTotal"))));
    // What the page cache holds is available: free is far from MemFree on any machine that has read files, and it is
    // the host's own figure of the same moment.
    assert_eq!((gb10.free_bytes, node.ram.total_bytes), (node.ram.available_bytes, gb10.total_bytes));
    assert!(of("GPU-gb10").healthy && of("GPU-gb10").processes.is_empty());
    let gh200 = &of("GPU-gh200").memory;
    assert_eq!((gh200.unified, gh200.total_bytes), (false, Some(97_871 << 20)), "its own memory, and the host's apart");
    let orin = of("ada-1#2");
    assert!(orin.memory.unified && orin.healthy && orin.unknown.contains_key("uuid"), "{orin:?}");
    let denied = of("GPU-denied");
    assert_eq!((denied.memory.total_bytes, denied.memory.free_bytes, denied.memory.unified), (None, None, false));
    assert!(denied.healthy && denied.unknown.contains_key("memory"), "{denied:?}");
}

#[test]
fn a_listener_for_a_measurement_ends_with_its_agent_and_results_are_told_with_their_age() {
    let home = Home::new();
    let key = || flock::base::Secret::new("5a".repeat(32));
    let mut there = home.connect();
    let Response::Listening { port, .. } = there.ask(&Request::MeasureListen { key: key(), ttl_ms: 10_000 }) else {
        panic!("not listening")
    };
    let connect = |port| Request::MeasureConnect {
        peer: "ada-2".into(),
        addresses: vec!["127.0.0.1".into()],
        port,
        key: key(),
        fallback_rtt_us: Some(7),
    };
    let Response::Link { link } = home.ask(connect(port)) else { panic!("no link") };
    assert!(link.measured && link.rtt_us.is_some(), "{link:?}");
    let probe = Request::Probe { engines: Vec::new(), weights_path: None, on_node: Vec::new() };
    let Response::Facts { measured, .. } = home.ask(probe) else { panic!("no facts") };
    assert_eq!((measured.links.len(), measured.links[0].rtt_us), (1, link.rtt_us));
    let kept = std::fs::read_to_string(home.state().join("links.json")).expect("kept");
    assert!(kept.contains("ada-2") && !kept.contains("5a5a"), "{kept}");

    // A second one, whose agent's connection ends before anybody came.
    let Response::Listening { port, .. } = there.ask(&Request::MeasureListen { key: key(), ttl_ms: 10_000 }) else {
        panic!("not listening")
    };
    drop(there);
    let until = Instant::now() + PATIENCE;
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
        assert!(Instant::now() < until, "the listener outlived its agent");
        sleep(Duration::from_millis(20));
    }
    let Response::Link { link } = home.ask(connect(port)) else { panic!("no link") };
    assert_eq!((link.measured, link.rtt_us, link.bandwidth_bytes_per_s), (false, Some(7), None));
    let escaping =
        Request::MeasureConnect { peer: "../x".into(), addresses: Vec::new(), port, key: key(), fallback_rtt_us: None };
    assert!(matches!(home.ask(escaping), Response::Refused { .. }));
    let short = Request::MeasureListen { key: flock::base::Secret::new("5a".into()), ttl_ms: 1 };
    assert!(matches!(home.ask(short), Response::Refused { .. }));
}

#[test]
fn a_driver_and_an_engine_that_hang_cost_the_node_ten_seconds() {
    let mut home = Home::new();
    with_driver(&mut home, "! hang\n");
    let program = home.path().join("llama-server");
    std::fs::write(&program, "#!/bin/sh\nexec sleep 1000\n").expect("written");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("executable");
    let paths = vec![program.display().to_string()];
    let query = flock::inventory::EngineQuery { kind: EngineKind::LlamaCpp, paths, modules: Vec::new(), image: None };
    let started = Instant::now();
    let probe = Request::Probe { engines: vec![query], weights_path: None, on_node: Vec::new() };
    let Response::Facts { node, .. } = home.ask(probe) else { panic!("no facts") };
    assert!(started.elapsed() < Duration::from_secs(18), "{:?}", started.elapsed());
    assert!(node.unknown["accelerators"].contains("NVIDIA driver did not answer within 10 s"), "{:?}", node.unknown);
    assert!(node.ram.total_bytes.is_some() && node.engines.expect("looked for")[0].problem.is_some());
}

#[test]
fn a_stop_waits_until_the_driver_gives_the_memory_back() {
    let mut home = Home::new();
    let file = with_driver(&mut home, "GPU|GPU-a|24564|0|00000000:01:00.0|8.9\n");
    let mut spec = InstanceSpec { accelerators: vec!["GPU-a".into()], ..script("aaaa", "sleep 1000; sleep 1") };
    spec.env.insert("CUDA_VISIBLE_DEVICES".into(), "GPU-a".into());
    spec.env.insert("FLOCK_FAKE_HOLD_MIB".into(), "9000".into());
    home.start(&spec);
    let pid = home.until("running", |facts| facts.running).pid.expect("a pid");
    let node = home.probe();
    let accelerator = node.accelerator("GPU-a").expect("there");
    assert_eq!(accelerator.memory.used_bytes, Some(9000 << 20));
    assert!(accelerator.processes.iter().any(|process| process.pid == pid && process.ours));
    // A driver that still lists the dead process for a while.
    std::fs::write(&file, format!("GPU|GPU-a|24564|9000|00000000:01:00.0|8.9||{pid}:9000\n")).expect("written");
    let late = {
        let file = file.clone();
        std::thread::spawn(move || {
            sleep(Duration::from_secs(3));
            std::fs::write(file, "GPU|GPU-a|24564|0|00000000:01:00.0|8.9\n").expect("written");
        })
    };
    assert_eq!(home.stop("aaaa", 100), Response::Done);
    let said = std::fs::read_to_string(&file).expect("there");
    assert!(!said.contains(&pid.to_string()), "it was done while the driver still listed {pid}");
    late.join().expect("written");
    assert_eq!(home.probe().accelerator("GPU-a").expect("there").memory.used_bytes, Some(0));
}
