//! Weights from a hub to real hosts, by every way: downloaded by the node, relayed by the controller, sent on by another
//! node; through kills and cuts, with the bytes that came twice.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::hub::{HubOptions, HubRequest, StandInHub};
use crate::support::lab::{Lab, model, three_hosts};
use crate::support::{DEADLINE, Outcome, Repository, Running, kdl, list, number, text, wait_for};

const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
/// Bytes that one connection of a node asks for at a time.
const CHUNK: u64 = 8 << 20;
/// Most connections of one download.
const CONNECTIONS: u64 = 8;

/// Three hosts, a hub that they reach, and a config repository.
struct Setup {
    lab: Lab,
    hub: StandInHub,
    repository: Repository,
}

impl Setup {
    /// With the real small model on the hub, and models in KDL.
    fn new(card: serde_json::Value, models: &str, policies: &str) -> Self {
        let lab = Lab::up(&three_hosts());
        let hub = StandInHub::start_with(&HubOptions { bind: lab.server(), ..HubOptions::default() });
        let bytes = std::fs::read(model()).expect("the model is there");
        hub.repository("lab/smol", &card, &[(FILE, &bytes)]);
        let repository = lab.repository(models);
        if !policies.is_empty() {
            repository.write("policies/lab.kdl", policies);
            repository.commit("policies");
        }
        Self { lab, hub, repository }
    }

    fn start(&self, token: Option<&str>, arguments: &[&str]) -> Running {
        let mut command = self.repository.command();
        command.env("HF_ENDPOINT", self.hub.endpoint()).args(arguments);
        if let Some(token) = token {
            command.env("HF_TOKEN", token);
        }
        Running::start(command)
    }

    fn flock(&self, arguments: &[&str]) -> Outcome {
        self.start(None, arguments).finish(DEADLINE)
    }

    fn plan(&self) -> serde_json::Value {
        self.flock(&["plan", "--format", "json"]).json()
    }

    /// Node and route of every fetch of a plan, sorted.
    fn routes(plan: &serde_json::Value) -> Vec<String> {
        let fetches = list(plan, "/steps").iter().filter(|step| text(step, "/verb") == "fetch");
        let mut routes: Vec<String> =
            fetches.map(|step| format!("{} {}", text(step, "/node"), text(step, "/route"))).collect();
        routes.sort();
        routes
    }

    /// Pins what the hub has.
    fn lock(&self) {
        self.flock(&["lock"]).expect(0);
        self.repository.commit("the lock");
    }

    /// Bytes of weights that the hub has sent since there were so many requests.
    fn sent(&self, before: usize) -> u64 {
        weights(&self.hub.requests_since(before)).map(|request| request.bytes).sum()
    }

    /// The digest of the model's file on a host, read there.
    #[track_caller]
    fn digest(&self, plan: &serde_json::Value, host: &str) -> String {
        let instance = list(plan, "/instances").iter().find(|i| text(i, "/node") == host).expect("planned there");
        let folder = text(instance, "/spec/weights/0/folder");
        let command = format!("sha256sum < '{folder}/{FILE}'");
        let outcome = self.lab.run(host, &["sh", "-c", &command]);
        outcome.expect(0).stdout.split(' ').next().unwrap_or_default().to_owned()
    }

    #[track_caller]
    fn answers(&self, model: &str) {
        let answer = self.flock(&["ask", model, "Say hello.", "--max-tokens", "8"]);
        assert!(answer.expect(0).stdout.trim().len() > 1, "{answer}");
    }
}

fn weights(requests: &[HubRequest]) -> impl Iterator<Item = &HubRequest> {
    requests.iter().filter(|request| request.server == "cdn" && request.method == "GET" && request.path.contains(FILE))
}

/// A model of the hub on one host.
fn on(name: &str, host: &str) -> String {
    format!(
        "model {} {{\n    source \"hf:lab/smol\"\n    engine \"llama.cpp\"\n    argument \"--threads\" 1\n    context 512\n    \
         place {{ require label=\"node\" is={}; allow cpu=#true }}\n}}\n",
        kdl(name),
        kdl(host)
    )
}

fn size() -> u64 {
    std::fs::metadata(model()).expect("the model is there").len()
}

fn true_digest() -> String {
    let mut command = std::process::Command::new("sha256sum");
    command.arg(model());
    let outcome = Running::start(command).finish(DEADLINE);
    outcome.expect(0).stdout.split(' ').next().unwrap_or_default().to_owned()
}

/// A line of the table of what was downloaded.
fn figures(what: &str, nodes: u64, sent: u64, digests: &[String]) {
    let wanted = nodes * size();
    eprintln!(
        "{what}: {wanted} bytes wanted, {sent} sent by the hub, {} twice, sha256 {}",
        sent.saturating_sub(wanted),
        digests.join(" ")
    );
}

/// Two nodes download, the third, which has no way to the hub, gets it through the controller; the second apply brings
/// nothing, and neither does one after a prefetch.
#[test]
fn nodes_download_themselves_and_the_one_without_a_way_is_served_by_the_controller() {
    let models = [on("near", "small"), on("far", "big"), on("slow", "plain")].concat();
    let setup = Setup::new(json!({}), &models, "");
    setup.lab.hide_server("plain");
    setup.flock(&["plan"]).expect(3).expect_says("flock lock");
    setup.lock();
    let plan = setup.plan();
    assert_eq!(Setup::routes(&plan), ["big hub", "plain controller", "small hub"], "{plan:#}");
    for step in list(&plan, "/steps").iter().filter(|step| text(step, "/verb") == "fetch") {
        assert_eq!(number(step, "/download_bytes"), size());
        assert!(number(step, "/estimated_ms") > 0);
    }
    let shown = setup.flock(&["plan"]);
    shown.expect(0).expect_says("93.8 MiB from the hub, about 2 s");
    shown.expect_says("93.8 MiB through the controller (plain does not reach the hub), about 2 s");
    let reasons = list(&plan, "/steps").iter().map(|step| text(step, "/detail")).collect::<Vec<_>>().join("\n");
    let hub = setup.hub.endpoint();
    for reason in [format!("small reaches {hub}"), format!("plain does not reach {hub} (")] {
        assert!(reasons.contains(&reason), "{reasons}");
    }

    let before = setup.hub.requests().len();
    let prefetched = setup.flock(&["apply", "--yes", "--goal", "prefetch"]);
    prefetched.expect(0);
    for host in ["big", "small", "plain"] {
        assert!(setup.lab.engines(host).is_empty(), "a prefetch starts nothing");
    }
    let digests: Vec<String> = ["big", "small", "plain"].map(|host| setup.digest(&plan, host)).into();
    figures("two downloads and a relay", 3, setup.sent(before), &digests);
    assert!(digests.iter().all(|digest| *digest == true_digest()), "{digests:?}");
    assert_eq!(setup.sent(before), 3 * size(), "every byte once for each node");

    // All of it is there now: nothing comes, everything starts.
    let before = setup.hub.requests().len();
    let planned = setup.plan();
    assert!(Setup::routes(&planned).is_empty(), "{planned:#}");
    setup.flock(&["apply", "--yes"]).expect(0);
    assert_eq!(setup.sent(before), 0);
    for model in ["near", "far", "slow"] {
        setup.answers(model);
    }
    setup.flock(&["plan", "--detailed-exitcode"]).expect(0);
    setup.flock(&["destroy", "--yes"]).expect(0);
    setup.lab.expect_nothing_left();
}

/// Killed without a word in the middle, both sides: what came is kept, but for what was on its way.
#[test]
fn a_download_goes_on_where_a_kill_ended_it() {
    let models = [on("near", "small"), on("far", "big"), on("slow", "plain")].concat();
    let setup = Setup::new(json!({}), &models, "limit download=\"36MB/s\"\n");
    setup.lab.hide_server("plain");
    setup.lock();
    let plan = setup.plan();
    assert_eq!(Setup::routes(&plan), ["big hub", "plain controller", "small hub"]);
    let step = list(&plan, "/steps").iter().find(|step| text(step, "/verb") == "fetch").expect("a fetch");
    assert_eq!(number(step, "/fetch/limit_bytes_per_s"), 12_000_000);

    let before = setup.hub.requests().len();
    let applying = setup.start(None, &["apply", "--yes"]);
    wait_for("a third of the bytes", DEADLINE, || (setup.sent(before) > size()).then_some(()));
    applying.signal("KILL");
    for host in ["big", "small", "plain"] {
        setup.lab.kill(&setup.lab.agents(host));
    }
    let killed = applying.finish(DEADLINE);
    assert_eq!(killed.code, None, "{killed}");
    let until_then = setup.sent(before);
    assert!(until_then < 3 * size(), "it was killed in the middle: {until_then}");

    let began = Instant::now();
    let applied = setup.flock(&["apply", "--yes"]);
    applied.expect(0);
    let digests: Vec<String> = ["big", "small", "plain"].map(|host| setup.digest(&plan, host)).into();
    let sent = setup.sent(before);
    figures("flock and all agents killed", 3, sent, &digests);
    assert!(digests.iter().all(|digest| *digest == true_digest()), "{digests:?}");
    let twice = sent - 3 * size();
    assert!(twice <= 3 * CONNECTIONS * CHUNK, "{twice} bytes came twice");
    assert!(sent - until_then < 3 * size(), "the second apply took {:?} and brought it all again", began.elapsed());
    for model in ["near", "far", "slow"] {
        setup.answers(model);
    }
}

/// A cable that is out for a while: the same apply goes on.
#[test]
fn a_download_outlives_a_cut_cable() {
    let setup =
        Setup::new(json!({}), &[on("near", "small"), on("slow", "plain")].concat(), "limit download=\"20MB/s\"\n");
    setup.lab.hide_server("plain");
    setup.lock();
    let plan = setup.plan();
    assert_eq!(Setup::routes(&plan), ["plain controller", "small hub"]);
    let before = setup.hub.requests().len();
    let applying = setup.start(None, &["apply", "--yes"]);
    wait_for("some bytes", DEADLINE, || (setup.sent(before) > size() / 4).then_some(()));
    for host in ["small", "plain"] {
        setup.lab.cut(host);
    }
    std::thread::sleep(Duration::from_secs(12));
    for host in ["small", "plain"] {
        setup.lab.heal(host);
    }
    let applied = applying.finish(2 * DEADLINE);
    applied.expect(0);
    let digests: Vec<String> = ["small", "plain"].map(|host| setup.digest(&plan, host)).into();
    let sent = setup.sent(before);
    figures("cables out for 12 s", 2, sent, &digests);
    assert!(digests.iter().all(|digest| *digest == true_digest()), "{digests:?}");
    assert!(sent - 2 * size() <= 2 * CONNECTIONS * CHUNK, "{} bytes came twice", sent - 2 * size());
    assert!(applied.says("left"), "rate and time left are told without a terminal, too\n{applied}");
}

/// The second node gets it from the first, where the way between them was measured.
#[test]
fn what_one_node_has_another_one_gets_from_it() {
    let setup = Setup::new(json!({}), &on("near", "small"), "limit download=\"10MB/s\"\n");
    setup.lock();
    setup.flock(&["apply", "--yes"]).expect(0);
    setup.flock(&["discover"]).expect(0);
    setup.repository.write("cluster.kdl", setup.lab.cluster(&[on("near", "small"), on("far", "big")].concat()));
    setup.lock();
    let plan = setup.plan();
    assert_eq!(Setup::routes(&plan), ["big node:small"], "{plan:#}");
    setup.flock(&["plan"]).expect(0).expect_says("from node small").expect_says("small has the files and sends");
    let before = setup.hub.requests().len();
    let file = setup.repository.beside("plan.json").display().to_string();
    setup.flock(&["plan", "--out", &file]).expect(0);
    setup.flock(&["apply", &file]).expect(0);
    assert_eq!(setup.sent(before), 0, "nothing came from the hub");
    let digest = setup.digest(&plan, "big");
    figures("from node to node", 0, 0, std::slice::from_ref(&digest));
    assert_eq!(digest, true_digest());
    setup.answers("far");
    setup.flock(&["plan", "--detailed-exitcode"]).expect(0);

    setup.flock(&["destroy", "--yes"]).expect(0);
}

/// What the hub refuses is a failed step that says why and what to do, tried once.
#[test]
fn a_gated_repository_fails_its_step_with_the_remedy() {
    let card = json!({ "gated": "manual", "access": ["hf_member"] });
    let setup = Setup::new(card, &[on("near", "small"), on("slow", "plain")].concat(), "");
    setup.lab.hide_server("plain");
    setup.start(Some("hf_member"), &["lock"]).finish(DEADLINE).expect(0);
    setup.repository.commit("the lock");
    let before = setup.hub.requests().len();
    for (token, status, remedy) in [(None, "401", "HF_TOKEN"), (Some("hf_stranger"), "403", "accept its terms at ")] {
        let applied = setup.start(token, &["apply", "--yes"]).finish(DEADLINE);
        applied.expect(8).expect_says("FAILED").expect_says(status).expect_says(remedy).expect_says("hint");
        for host in ["small", "plain"] {
            assert!(setup.lab.engines(host).is_empty());
            applied.expect_says(&format!("on {host}"));
        }
        for secret in ["hf_stranger", "hf_member"] {
            assert!(!applied.says(secret), "{applied}");
        }
    }
    let refused = setup.hub.requests_since(before).iter().filter(|r| matches!(r.status, Some(401 | 403))).count();
    assert!(refused <= 16, "{refused} refused requests: no refusal is asked for again and again");
    setup.start(Some("hf_member"), &["apply", "--yes"]).finish(DEADLINE).expect(0);
    setup.answers("near");
    // The token reached the node in memory alone.
    let kept = setup.lab.run("small", &["sh", "-c", "grep -rls hf_member /root /run /tmp; true"]);
    assert_eq!(kept.expect(0).stdout.trim(), "", "the token is on the node's disk");
}
