//! A real engine with a real worker: each is ready by its own measure, and a worker that says nothing is noticed at both.

use std::net::TcpStream;

use flock::inventory::PartOf;

use super::ports::free_port;
use super::*;

fn named(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set: run scripts/test, or see scripts/engine"))
}

fn signal(signal: &str, pid: u32) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().expect("kill runs").success());
}

#[test]
fn a_worker_that_says_nothing_is_noticed_and_both_serve_again() {
    let (server, model) = (named("FLOCK_TEST_LLAMA_SERVER"), named("FLOCK_TEST_MODEL"));
    let worker = Path::new(&server).canonicalize().expect("the engine").with_file_name("ggml-rpc-server");
    assert!(worker.is_file(), "no {}: run scripts/engine rpc-server", worker.display());
    let home = Home::new();
    let part = Some(PartOf { instance: "aaaa".into(), nodes: vec!["one".into(), "other".into()] });
    let port = free_port();
    let hidden = BTreeMap::from([("CUDA_VISIBLE_DEVICES".to_owned(), String::new())]);
    home.start(&InstanceSpec {
        argv: [worker.to_str().expect("a path"), "-H", "127.0.0.1", "-p", "{port}"].map(str::to_owned).to_vec(),
        env: hidden.clone(),
        key_env: None,
        port,
        unresponsive_after_ms: 3000,
        part: part.clone(),
        ..script("bbbb", "")
    });
    let own = |facts: &InstanceFacts, id: &str| facts.instance == id;
    let ready = |facts: &InstanceFacts, id: &str| own(facts, id) && facts.state == InstanceState::Ready;
    let listening = home.until("the worker listens", |facts| ready(facts, "bbbb"));
    assert!(listening.is_worker());
    let endpoint = format!("127.0.0.1:{port}");
    let arguments = [
        "--rpc",
        &endpoint,
        "--model",
        &model,
        "--host",
        "127.0.0.1",
        "--port",
        "{port}",
        "-c",
        "512",
        "-ngl",
        "11",
        "-b",
        "64",
        "-ub",
        "64",
        "-fit",
        "off",
        "--metrics",
    ];
    home.start(&InstanceSpec {
        argv: std::iter::once(server.as_str()).chain(arguments).map(str::to_owned).collect(),
        env: hidden,
        key_env: Some("LLAMA_API_KEY".into()),
        port: free_port(),
        unresponsive_after_ms: 3000,
        part,
        ..script("aaaa", "")
    });
    let serves = home.until("it serves", |facts| ready(facts, "aaaa"));
    assert!(!serves.is_worker());
    // An idle engine does not stand still.
    sleep(Duration::from_secs(5));
    assert!(home.instances().iter().all(|facts| facts.state == InstanceState::Ready && facts.last_failure.is_none()));

    // As behind a cut cable: the worker's side takes what is sent and never answers.
    signal("-STOP", listening.pid.expect("a pid"));
    let Response::Key { key, port, .. } = home.ask(Request::Key { instance: "aaaa".into() }) else { panic!("no key") };
    let body = r#"{"prompt": "1, 2, 3,", "max_tokens": 8}"#;
    let mut client = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    let head = format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n", key.reveal());
    write!(client, "{head}content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len())
        .expect("sent");
    let failed = home.until("noticed", |facts| own(facts, "aaaa") && facts.last_failure.is_some());
    let failure = failed.last_failure.expect("just seen");
    assert_eq!((failure.cause.as_str(), failure.gave_up), ("not_responding", false), "{failure:?}");
    assert!(failure.text.contains("is the way to other cut?"), "{failure:?}");
    // Started again, it waits for the worker, which still has its old client.
    let stuck = home.until("the worker noticed", |facts| own(facts, "bbbb") && facts.last_failure.is_some());
    let failure = stuck.last_failure.expect("just seen");
    assert!(failure.cause == "not_responding" && failure.text.contains("a connection that is gone"), "{failure:?}");
    home.until("a new worker", |facts| ready(facts, "bbbb") && facts.pid != listening.pid);
    let again = home.until("it serves again", |facts| ready(facts, "aaaa") && facts.pid != serves.pid);
    assert!(again.starts > 1, "{again:?}");
}
