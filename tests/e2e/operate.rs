//! The operator's commands: nodes taken out and emptied, leases seen and broken, a port to an instance, looking and
//! stopping with a config that is broken, and being interrupted.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use crate::support::lab::{Lab, small_model, three_hosts};
use crate::support::{DEADLINE, Repository, Running, list, number, text, wait_for};

const CONSUMER: &str = "place { require label=\"tier\" is=\"consumer\" }";
const DATACENTER: &str = "place { require label=\"tier\" is=\"datacenter\" }";

fn one_model(lab: &Lab, more: &str) -> Repository {
    let repository = lab.repository(&small_model("near", &format!("context 512\n    {more}")));
    repository.flock(&["apply", "--yes"]).expect(0);
    repository
}

/// Waits until a running apply holds the lease on all hosts.
#[track_caller]
fn until_it_holds(lab: &Lab, apply: &mut Running) {
    let holder = format!("(pid {})", apply.pid());
    wait_for("the apply to hold the lease", Duration::from_secs(120), || {
        assert!(apply.runs(), "the apply ended before it was seen holding the lease");
        let held = |host: &str| {
            let file = lab.home(host, &format!(".local/share/flock/lab/{host}/lease.json"));
            std::fs::read_to_string(file).is_ok_and(|lease| lease.contains(&holder))
        };
        ["big", "small", "plain"].into_iter().all(held).then_some(())
    });
}

/// A cordoned node keeps what runs and gets nothing new; a drained one is emptied, its copy starting elsewhere first;
/// what is protected stays, and what fits nowhere else stops, with the exit codes that say so.
#[test]
fn a_node_is_cordoned_drained_and_given_back() {
    let lab = Lab::up(&three_hosts());
    let repository = one_model(&lab, "");
    let host = if lab.engines("big").is_empty() { "small" } else { "big" };
    let other = if host == "big" { "small" } else { "big" };
    let before = lab.engines(host);
    assert_eq!(before.len(), 1);

    repository.flock(&["cordon", "nosuch", "--reason", "x"]).expect(64).expect_says("matches no node");
    repository.flock(&["cordon", host, "--reason", "new fan"]).expect(0);
    repository.flock(&["plan", "--detailed-exitcode"]).expect(0).expect_says("new fan").expect_says("ada@");
    let status = repository.json(&["status"]);
    assert_eq!((text(&status, "/held/0/node"), text(&status, "/held/0/reason")), (host, "new fan"));
    assert!(text(&status, "/held/0/by").starts_with("ada@") && text(&status, "/held/0/since").ends_with('Z'));
    let two = small_model("near", "context 512\n    replicas max=2");
    repository.write("cluster.kdl", lab.cluster(&two));
    repository.commit("two of them");
    let plan = repository.json(&["plan"]);
    let starts: Vec<&str> = list(&plan, "/steps").iter().map(|step| text(step, "/node")).collect();
    assert!(!starts.is_empty() && starts.iter().all(|node| *node == other), "{plan:#}");

    // A drain moves what runs there and does nothing else of the config.
    repository.flock(&["protect", "near", "--reason", "a demo"]).expect(0);
    repository.flock(&["drain", host, "--yes"]).expect(7).expect_says("flock unprotect near");
    assert_eq!(lab.engines(host), before);
    repository.flock(&["unprotect", "near", "--reason", "over"]).expect(0);
    repository.flock(&["drain", host]).expect(64);
    let drained = repository.flock(&["drain", host, "--reason", "a new fan", "--yes"]);
    drained.expect(0).expect_says("because drain").expect_says("no downtime").expect_says("a new fan");
    assert_eq!((lab.engines(host).len(), lab.engines(other).len()), (0, 1), "{drained}");
    repository.flock(&["ask", "near", "Say hello.", "--max-tokens", "16"]).expect(0);
    repository.flock(&["drain", host, "--yes"]).expect(0).expect_says("nothing to move or stop");

    // There is nowhere left: it stops, and the exit code says that the minimum is not there.
    repository.flock(&["drain", other, "--yes"]).expect(4).expect_says("stop");
    assert!(lab.engines(other).is_empty());
    repository.flock(&["uncordon", "*"]).expect(0).expect_says(host).expect_says(other);
    assert_eq!(list(&repository.json(&["status"]), "/held").len(), 0);

    let history = repository.json(&["history"]);
    let actions: Vec<&str> = list(&history, "/applies").iter().map(|apply| text(apply, "/action")).collect();
    assert_eq!(actions, ["drain", "drain", "apply"], "{history:#}");
    assert!(list(&history, "/applies").iter().all(|apply| text(apply, "/by").starts_with("ada@")));
    assert_eq!(list(&history, "/applies/0/nodes").len(), 3);
    repository.flock(&["history"]).expect(0).expect_says("From the nodes: big, plain, small");
    repository.flock(&["status"]).expect(0).expect_says("last apply: commit");
}

/// A lease that hangs is seen, and broken with a consent that names its holder; the old apply begins nothing more.
#[test]
fn a_lease_that_hangs_is_broken_and_its_apply_fenced_off() {
    let lab = Lab::up(&three_hosts());
    let models = [
        small_model("near", &format!("context 512\n    {CONSUMER}")),
        small_model("far", &format!("context 512\n    {DATACENTER}")),
    ];
    let repository = lab.repository(&models.concat());
    repository.flock(&["lease", "list"]).expect(0).expect_says("no lease is held");
    repository.flock(&["lease", "break", "--yes"]).expect(0).expect_says("no lease is held there");

    let mut hangs = repository.start(&["apply", "--yes", "--parallel", "1"]);
    until_it_holds(&lab, &mut hangs);
    hangs.signal("STOP");
    let holder = format!("(pid {})", hangs.pid());
    let listed = repository.json(&["lease", "list"]);
    let nodes: Vec<&str> = list(&listed, "/leases").iter().map(|lease| text(lease, "/node")).collect();
    assert_eq!(nodes, ["big", "plain", "small"], "{listed:#}");
    assert!(text(&listed, "/leases/0/holder").ends_with(&holder), "{listed:#}");
    assert!(listed.pointer("/leases/0/renewed_unix_ms").is_some_and(serde_json::Value::is_u64), "{listed:#}");
    repository.flock(&["apply", "--yes"]).expect(6).expect_says("flock lease");

    repository.flock(&["lease", "break"]).expect(64).expect_says(&holder);
    repository.flock(&["lease", "break", "--yes"]).expect(0).expect_says("broken on big, plain, small");
    assert_eq!(list(&repository.json(&["lease", "list"]), "/leases").len(), 0);
    repository.flock(&["apply", "--yes"]).expect(0);
    let engines = (lab.engines("small"), lab.engines("big"));
    assert_eq!((engines.0.len(), engines.1.len()), (1, 1));

    // It wakes up, and the nodes no longer take its orders.
    hangs.signal("CONT");
    let ended = hangs.finish(DEADLINE);
    assert!(ended.code.is_some_and(|code| code != 0), "{ended}");
    assert_eq!((lab.engines("small"), lab.engines("big")), engines);
    repository.flock(&["plan", "--detailed-exitcode"]).expect(0);
}

/// Sends one chat request to a base URL and returns the status line and the body.
fn chat(base_url: &str, key: Option<&str>) -> (String, String) {
    let address = base_url.strip_prefix("http://").and_then(|rest| rest.strip_suffix("/v1")).expect("a base URL");
    let body = r#"{"model":"near","max_tokens":8,"messages":[{"role":"user","content":"Say hello."}]}"#;
    let key = key.map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
    let mut stream = TcpStream::connect(address).expect("the forwarded port is open");
    stream.set_read_timeout(Some(Duration::from_secs(100))).expect("a socket");
    let length = body.len();
    write!(
        stream,
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{key}Content-Type: application/json\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
    .expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    (head.lines().next().unwrap_or_default().to_owned(), body.to_owned())
}

/// A forwarded port carries real completions, several at once, outlives its SSH connection, follows its instance to
/// another node, and shows no key unless asked.
#[test]
fn a_port_is_forwarded_to_an_instance() {
    let lab = Lab::up(&three_hosts());
    let repository = one_model(&lab, CONSUMER);
    repository.flock(&["forward", "naer"]).expect(1).expect_says("did you mean `near`?");
    repository.flock(&["forward", "near", "--replica", "7"]).expect(1).expect_says("replica 7");

    let forward = repository.start(&["-vv", "forward", "near", "--env"]);
    let said = wait_for("the port to be open", Duration::from_secs(120), || {
        let said = forward.printed();
        (said.lines().count() == 2).then_some(said)
    });
    let value = |name: &str| {
        let prefix = format!("export {name}=");
        said.lines().find_map(|line| line.strip_prefix(prefix.as_str())).expect("an export").to_owned()
    };
    let (base_url, key) = (value("OPENAI_BASE_URL"), value("OPENAI_API_KEY"));
    assert!(base_url.starts_with("http://127.0.0.1:") && key.len() >= 32, "{said}");
    let (status, body) = chat(&base_url, Some(&key));
    assert!(status.contains("200") && body.contains("\"content\""), "{status}\n{body}");
    assert!(chat(&base_url, None).0.contains("401"));
    let many: Vec<_> = (0..4)
        .map(|_| {
            let (base_url, key) = (base_url.clone(), key.clone());
            std::thread::spawn(move || chat(&base_url, Some(&key)).0)
        })
        .collect();
    for one in many {
        assert!(one.join().expect("no panic").contains("200"));
    }

    // The SSH connection is lost, and made again by the next request.
    let sessions = lab.processes("small").into_iter().filter(|(_, words)| words.starts_with("sshd"));
    let sessions: Vec<u32> = sessions.map(|(pid, _)| pid).collect();
    if !sessions.is_empty() {
        lab.kill(&sessions);
    }
    assert!(chat(&base_url, Some(&key)).0.contains("200"));

    // The instance moves: the same port leads to where it is now, which has a key of its own, and that is said.
    repository.write("cluster.kdl", lab.cluster(&small_model("near", &format!("context 512\n    {DATACENTER}"))));
    repository.commit("near moves");
    repository.flock(&["apply", "--yes"]).expect(0);
    assert_eq!((lab.engines("small").len(), lab.engines("big").len()), (0, 1));
    assert!(chat(&base_url, Some(&key)).0.contains("401"));
    assert!(forward.said().contains("now forwarding to near/0 on big; the key is another"), "{}", forward.said());
    let anew = repository.start(&["forward", "near", "--env"]);
    let new_key = wait_for("the key to be printed", Duration::from_secs(120), || {
        anew.printed().lines().find_map(|line| line.strip_prefix("export OPENAI_API_KEY=").map(str::to_owned))
    });
    anew.signal("INT");
    anew.finish(DEADLINE).expect(130);
    assert_ne!(new_key, key);
    assert!(chat(&base_url, Some(&new_key)).0.contains("200"));

    forward.signal("INT");
    let ended = forward.finish(DEADLINE);
    ended.expect(130);
    assert!(!ended.stderr.contains(&key) && !ended.stderr.contains(&new_key), "a key is in the log");

    let quiet = repository.start(&["forward", "near", "--format", "json"]);
    let said = wait_for("the port to be open", Duration::from_secs(120), || {
        serde_json::from_str::<serde_json::Value>(&quiet.printed()).ok()
    });
    assert_eq!((text(&said, "/node"), text(&said, "/served_name")), ("big", "near"));
    assert!(!said.to_string().contains(&new_key) && !quiet.printed().contains("api_key"));
    quiet.signal("TERM");
    quiet.finish(DEADLINE).expect(130);
}

/// Errors in the config, whatever they are about, keep nobody from looking and from stopping.
#[test]
fn a_broken_config_blocks_neither_looking_nor_stopping() {
    let lab = Lab::up(&three_hosts());
    let repository = one_model(&lab, CONSUMER);
    let broken = format!(
        "{}\nmodel \"gone\" {{ source \"path:models/missing.gguf\" }}\nmodel \"odd\" {{ context many }}\n",
        lab.cluster(&small_model("near", "context 512 tokens"))
    );
    repository.write("cluster.kdl", broken);
    repository.write("workflows/w.kdl", "workflow \"w\" {\n    step \"s\" agent=\"nobody\" {");
    repository.commit("a bad day");
    for strict in [&["plan"][..], &["apply", "--yes"], &["drain", "small", "--yes"], &["graph", "placement"]] {
        repository.flock(strict).expect(3);
    }
    for works in [
        &["status"][..],
        &["status", "near"],
        &["status", "--unmanaged"],
        &["logs", "near"],
        &["ask", "near", "Say hello.", "--max-tokens", "16"],
        &["drift", "--detailed-exitcode"],
        &["discover"],
        &["lease", "list"],
        &["history"],
        &["graph", "hardware"],
        &["graph", "workflow", "--format", "mermaid"],
        &["cordon", "small"],
        &["uncordon", "small"],
    ] {
        let outcome = repository.flock(works);
        outcome.expect(0);
        assert!(outcome.stderr.contains("the config has") && outcome.stderr.contains("validate"), "{outcome}");
    }
    // What others hold is named by user and program.
    let foreign = "import socket,time; s=socket.socket(); s.bind(('127.0.0.1',20555)); s.listen(); time.sleep(60)";
    lab.run("small", &["bash", "-c", &format!("exec setsid python3 -c \"{foreign}\" >/dev/null 2>&1 &")]).expect(0);
    let ports = wait_for("the other's port to be seen", Duration::from_secs(120), || {
        let unmanaged = repository.json(&["status", "--unmanaged"]);
        (!list(&unmanaged, "/ports").is_empty()).then_some(unmanaged)
    });
    assert_eq!(ports.pointer("/ports/0/port"), Some(&20555.into()), "{ports:#}");
    assert_eq!((text(&ports, "/ports/0/user"), text(&ports, "/ports/0/command")), ("root", "python3"), "{ports:#}");
    assert_eq!(list(&ports, "/ports").len(), 1, "the engine's own port is ours: {ports:#}");
    let strangers = lab.processes("small").into_iter().filter(|(_, words)| words.starts_with("python3"));
    lab.kill(&strangers.map(|(pid, _)| pid).collect::<Vec<_>>());

    repository.flock(&["destroy", "--yes"]).expect(0);
    lab.expect_nothing_left();
}

/// A termination request is the first Ctrl-C: what is in flight is finished, the lease is given back, exit 130. The
/// second one ends it at once.
#[test]
fn a_terminated_apply_finishes_what_is_in_flight() {
    let lab = Lab::up(&three_hosts());
    let models = [
        small_model("near", &format!("context 512\n    {CONSUMER}")),
        small_model("far", &format!("context 512\n    {DATACENTER}")),
    ];
    let repository = lab.repository(&models.concat());
    let mut apply = repository.start(&["apply", "--yes", "--parallel", "1"]);
    until_it_holds(&lab, &mut apply);
    apply.signal("TERM");
    let ended = apply.finish(DEADLINE);
    ended.expect(130).expect_says("finishing what is in flight").expect_says("Interrupted");
    assert!(!ended.says("\u{1b}") && !ended.says("\r"), "no plain lines without a terminal: {ended}");
    assert_eq!(list(&repository.json(&["lease", "list"]), "/leases").len(), 0, "{ended}");

    // Hung up likewise; and what was begun goes on.
    let mut apply = repository.start(&["apply", "--yes", "--parallel", "1", "--quiet"]);
    until_it_holds(&lab, &mut apply);
    apply.signal("HUP");
    let ended = apply.finish(DEADLINE);
    ended.expect(130);
    let quiet = repository.flock(&["apply", "--yes", "--quiet"]);
    quiet.expect(0);
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""), "{quiet}");
    repository.flock(&["plan", "--detailed-exitcode"]).expect(0);

    // Asked again, it ends at once, whatever it waits for; the next apply takes the dead one's lease over and goes on.
    let changed = small_model("near", &format!("context 640\n    {CONSUMER}"));
    repository.write("cluster.kdl", lab.cluster(&[&changed, &models[1]].map(String::as_str).concat()));
    repository.commit("a longer context");
    let mut apply = repository.start(&["apply", "--yes"]);
    until_it_holds(&lab, &mut apply);
    lab.cut("small");
    apply.signal("INT");
    wait_for("the first signal to be answered", Duration::from_secs(120), || {
        apply.said().contains("once more ends at once").then_some(())
    });
    apply.signal("INT");
    let ended = apply.finish(Duration::from_secs(60));
    lab.heal("small");
    ended.expect(130);
    let lease = lab.home("big", ".local/share/flock/lab/big/lease.json");
    let left = std::fs::read_to_string(&lease).expect("the lease it left");
    assert!(!ended.says("Interrupted"), "it went on to its end: {ended}");
    let resumed = repository.flock(&["apply", "--yes"]);
    resumed.expect(0).expect_says("took over the lease of");
    repository.flock(&["plan", "--detailed-exitcode"]).expect(0);
    // As if it had died after its last step: there is nothing to do but to give its lease back.
    let mut left: serde_json::Value = serde_json::from_str(&left).expect("JSON");
    left["expires_unix_ms"] = (number(&left, "/expires_unix_ms") + 3_600_000).into();
    std::fs::write(&lease, left.to_string()).expect("the host's folder");
    repository.flock(&["apply", "--yes"]).expect(0);
    assert_eq!(list(&repository.json(&["lease", "list"]), "/leases").len(), 0);

    // Following a log ends when its reader goes, and at once when it is interrupted.
    let follows = repository.start(&["logs", "near", "--follow"]);
    wait_for("the log to be printed", Duration::from_secs(120), || (!follows.printed().is_empty()).then_some(()));
    follows.signal("INT");
    follows.finish(Duration::from_secs(60)).expect(130);
    let mut command = repository.command();
    command.args(["logs", "near", "--follow"]).stdin(std::process::Stdio::null());
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().expect("it starts");
    let mut byte = [0];
    child.stdout.take().expect("piped").read_exact(&mut byte).expect("the log begins");
    wait_for("flock logs to end with its reader", Duration::from_secs(120), || {
        child.try_wait().expect("it can be waited for").map(|status| assert_eq!(status.code(), Some(0)))
    });
}
