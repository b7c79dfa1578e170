//! From nothing to an answer: discover, plan, apply, ask, an empty second plan, destroy.

use crate::support::lab::{Lab, small_model, three_hosts};
use crate::support::{list, number, text};

/// Discover reports what the hosts have, changes nothing and leaves nothing running.
#[test]
fn discover_reports_every_node_and_starts_nothing() {
    let lab = Lab::up(&three_hosts());
    let repository = lab.repository("");
    let outcome = repository.flock(&["discover", "--format", "json"]);
    let inventory = outcome.expect(0).json();
    assert_eq!(number(&inventory, "/format"), 1);
    let names: Vec<&str> = list(&inventory, "/nodes").iter().map(|node| text(node, "/name")).collect();
    assert_eq!(names, ["big", "plain", "small"], "sorted by name");

    let node = |name: &str| list(&inventory, "/nodes").iter().find(|node| text(node, "/name") == name).expect("a node");
    for (name, accelerators, mib) in [("big", 2, 81_920), ("small", 2, 24_564), ("plain", 0, 0)] {
        let node = node(name);
        assert_eq!(node.pointer("/reachable"), Some(&true.into()), "{node:#}");
        assert_eq!(list(node, "/accelerators").len(), accelerators, "{node:#}");
        for accelerator in list(node, "/accelerators") {
            assert_eq!(number(accelerator, "/memory/total_bytes"), mib << 20);
            assert!(text(accelerator, "/uuid").starts_with("GPU-"));
        }
        assert!(number(node, "/ram/total_bytes") > 0);
        assert_eq!(text(node, "/home"), "/root");
        let engines = list(node, "/engines");
        assert!(engines.iter().any(|engine| text(engine, "/path") == "/opt/llama.cpp/llama-server"), "{node:#}");
    }
    assert_eq!(text(node("big"), "/accelerators/0/name"), "NVIDIA A100-SXM4-80GB");
    assert_eq!(text(node("small"), "/accelerators/0/compute_capability"), "8.9");
    assert_eq!(text(node("small"), "/labels/tier"), "consumer");
    lab.expect_nothing_left();

    // One node alone, as text.
    let some = repository.flock(&["discover", "--on", "small"]);
    some.expect(0).expect_says("RTX 4090");
    assert!(!some.stdout.contains("A100"), "{some}");
}

/// The whole way, and the plan after it is empty.
#[test]
fn the_first_apply_serves_and_the_second_plan_is_empty() {
    let lab = Lab::up(&three_hosts());
    let models = [
        small_model("near", "context 1024\n    place { require label=\"tier\" is=\"consumer\" }"),
        small_model("far", "context 1024\n    place { require label=\"tier\" is=\"datacenter\" }"),
        small_model("slow", "context 512\n    place { require label=\"node\" is=\"plain\"; allow cpu=#true }"),
    ];
    let repository = lab.repository(&models.concat());

    repository.flock(&["validate"]).expect(0);
    let shown = repository.flock(&["plan"]);
    shown.expect(0).expect_says("near").expect_says("start");
    repository.flock(&["plan", "--detailed-exitcode"]).expect(2);
    let plan = repository.json(&["plan"]);
    assert_eq!(number(&plan, "/summary/start"), 3, "{plan:#}");
    assert_eq!(plan.pointer("/dirty"), Some(&false.into()));
    assert_eq!(text(&plan, "/commit"), repository.git(&["rev-parse", "HEAD"]).trim());
    assert!(
        list(&plan, "/steps").iter().all(|step| text(step, "/verb") != "start" || text(step, "/because") == "added")
    );

    // Without a terminal nobody can say yes.
    repository.flock(&["apply"]).expect(64);
    lab.expect_nothing_left();

    let applied = repository.flock(&["apply", "--yes"]);
    applied.expect(0);
    for (host, engines) in [("big", 1), ("small", 1), ("plain", 1)] {
        assert_eq!(lab.engines(host).len(), engines, "{host}: {:?}\n{applied}", lab.processes(host));
        assert_eq!(lab.agents(host).len(), 1, "{host} has one supervisor: {:?}", lab.processes(host));
        let ports = lab.ports(host);
        assert!(ports.iter().all(|port| port.starts_with("127.0.0.1:")), "{host} listens on {ports:?}");
    }
    for instance in list(&plan, "/instances") {
        let host = text(instance, "/node");
        let port = format!("127.0.0.1:{}", number(instance, "/port"));
        assert!(lab.ports(host).contains(&port), "{host} does not listen on {port}");
        assert_eq!(list(instance, "/accelerators").is_empty(), host == "plain");
    }

    for model in ["near", "far", "slow"] {
        let answer = repository.flock(&["ask", model, "Say hello.", "--max-tokens", "16"]);
        assert!(answer.expect(0).stdout.trim().len() > 1, "{answer}");
    }
    let status = repository.flock(&["status"]);
    status.expect(0).expect_says("near").expect_says("ready");
    repository.flock(&["logs", "near"]).expect(0);
    repository.flock(&["explain", "near"]).expect(0).expect_says("small");

    repository.flock(&["plan", "--detailed-exitcode"]).expect(0);
    repository.flock(&["drift", "--detailed-exitcode"]).expect(0);
    let second = repository.json(&["plan"]);
    assert_eq!(list(&second, "/steps").len(), 0, "{second:#}");
    assert_eq!(number(&second, "/summary/unchanged"), 3);

    // The same facts give the same bytes, and need no host.
    let inventory = repository.beside("inventory.json").display().to_string();
    repository.flock(&["discover", "--out", &inventory]).expect(0);
    lab.cut("big");
    lab.cut("small");
    lab.cut("plain");
    let one = repository.flock(&["plan", "--inventory", &inventory, "--format", "json"]);
    let two = repository.flock(&["plan", "--inventory", &inventory, "--format", "json"]);
    assert_eq!(one.expect(0).stdout, two.expect(0).stdout);
    assert_eq!(list(&one.json(), "/steps").len(), 0, "{one}");
    for host in ["big", "small", "plain"] {
        lab.heal(host);
    }

    let destroyed = repository.flock(&["destroy", "--yes"]);
    destroyed.expect(0);
    lab.expect_nothing_left();
}

/// A saved plan is carried out once, exactly, and only where nothing it relied on has moved.
#[test]
fn a_saved_plan_is_applied_once() {
    let lab = Lab::up(&three_hosts());
    let place = "context 512\n    place { require label=\"tier\" is=\"consumer\" }";
    let repository = lab.repository(&small_model("near", place));
    let file = repository.beside("plan.json").display().to_string();

    repository.flock(&["plan", "--out", &file]).expect(0);
    let saved = std::fs::read_to_string(&file).expect("the plan was saved");
    let saved: serde_json::Value = serde_json::from_str(&saved).expect("JSON");
    assert!(saved.pointer("/guards").is_some(), "{saved:#}");
    repository.flock(&["show", &file]).expect(0).expect_says("near");

    // Changed after it was saved, however little, it is not that plan any more.
    let text = std::fs::read_to_string(&file).expect("the plan was saved");
    let changed = text.replacen("\"512\"", "\"256\"", 1);
    assert_ne!(changed, text, "the plan names the context");
    std::fs::write(&file, changed).expect("the file can be written");
    repository.flock(&["apply", &file]).expect(5);
    assert!(lab.engines("small").is_empty());
    std::fs::write(&file, text).expect("the file can be written");

    repository.flock(&["apply", &file]).expect(0);
    let engines = lab.engines("small");
    assert_eq!(engines.len(), 1);
    repository.flock(&["apply", &file]).expect(5);
    assert_eq!(lab.engines("small"), engines, "a refused plan touches nothing");

    std::fs::write(&file, "{}").expect("the file can be written");
    repository.flock(&["apply", &file]).expect(5);
}

/// An instance's key is in its environment and nowhere else.
#[test]
fn the_key_of_an_instance_is_seen_nowhere() {
    let lab = Lab::up(&three_hosts());
    let place = "context 512\n    place { require label=\"tier\" is=\"consumer\" }";
    let repository = lab.repository(&small_model("near", place));
    let file = repository.beside("plan.json").display().to_string();
    repository.flock(&["plan", "--out", &file]).expect(0);
    let planned = repository.json(&["plan"]);
    let variable = text(&planned, "/instances/0/spec/key_env");

    let applied = repository.flock(&["-v", "apply", "--yes"]);
    applied.expect(0);
    let pid = lab.engines("small")[0];
    let environment = lab.environment(pid);
    let prefix = format!("{variable}=");
    let key = environment.iter().find_map(|entry| entry.strip_prefix(&prefix)).expect("the key is in the environment");
    assert!(key.len() >= 32, "a key of {} characters", key.len());

    // Every process of this machine, whoever's it is.
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&words).contains(key), "{:?} shows the key", entry.path());
    }
    let outcomes = [
        applied,
        repository.flock(&["ask", "near", "Say hello.", "--max-tokens", "16"]),
        repository.flock(&["-v", "plan", "--format", "json"]),
        repository.flock(&["status"]),
        repository.flock(&["explain", "near"]),
        repository.flock(&["logs", "near"]),
        repository.flock(&["discover", "--format", "json"]),
    ];
    for outcome in &outcomes {
        assert!(!outcome.says(key), "{} shows the key", outcome.what);
    }
    assert!(!std::fs::read_to_string(&file).expect("the saved plan").contains(key));
    for file in ["desired.json", "member.json", "keeper.log"] {
        let path = lab.home("small", &format!(".local/share/flock/lab/small/{file}"));
        assert!(!std::fs::read_to_string(&path).unwrap_or_default().contains(key), "{file} shows the key");
    }

    // Who has no key gets no answer.
    let port = number(&planned, "/instances/0/port");
    let request =
        "POST /v1/chat/completions HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 2\\r\\nConnection: close\\r\\n\\r\\n{}";
    let talk = format!("exec 3<>/dev/tcp/127.0.0.1/{port} && printf '{request}' >&3 && head -n 1 <&3");
    lab.run("small", &["bash", "-c", &talk]).expect(0).expect_says("401");
}
