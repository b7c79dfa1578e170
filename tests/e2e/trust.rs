//! Hosts that are not who they were, not known, or not there; plans that no longer hold; applies that end early.

use crate::support::lab::{Gpu, Lab, small_model, three_hosts};
use crate::support::{list, number, text};

/// A changed host key is a refusal that says what to do; nothing is sent to that host.
#[test]
fn a_changed_host_key_is_refused() {
    let lab = Lab::up(&three_hosts());
    let models = [
        small_model("near", "context 512\n    place { require label=\"tier\" is=\"consumer\" }"),
        small_model("far", "context 512\n    place { require label=\"tier\" is=\"datacenter\" }"),
    ];
    let repository = lab.repository(&models.concat());
    lab.rekey("small");

    let known_hosts = lab.known_hosts().display().to_string();
    let plan = repository.flock(&["plan"]);
    plan.expect(9).expect_says("host key").expect_says(&known_hosts).expect_says("small").expect_says("line 2");
    repository.flock(&["discover"]).expect(9).expect_says("host key");

    // What is reachable is served; the rest waits.
    let applied = repository.flock(&["apply", "--yes"]);
    applied.expect(9).expect_says("host key");
    repository.flock(&["ask", "far", "Say hello.", "--max-tokens", "16"]).expect(0);
    assert!(lab.processes("small").is_empty(), "{:?}", lab.processes("small"));
    assert!(
        !lab.home("small", ".local/share/flock").exists(),
        "something was written to a host that nobody vouches for"
    );

    // Told to leave it alone, plan has all the facts it needs; what could run only there has no place.
    repository.flock(&["plan", "--exclude", "small"]).expect(4).expect_says("near");
}

/// A host whose key nobody has seen is refused too, with the fingerprint to compare.
#[test]
fn an_unknown_host_key_is_refused() {
    let lab = Lab::up(&three_hosts());
    let repository = lab.repository("");
    std::fs::write(lab.known_hosts(), "").expect("the file can be written");
    let discovered = repository.flock(&["discover"]);
    discovered.expect(9).expect_says("SHA256:").expect_says("ssh-keyscan");
    lab.expect_nothing_left();
}

/// A host that cannot be reached keeps what it runs: nothing of it is stopped or moved.
#[test]
fn what_runs_on_an_unreachable_host_stays() {
    let lab = Lab::up(&three_hosts());
    let models = [
        small_model("near", "context 512\n    place { require label=\"tier\" is=\"consumer\" }"),
        small_model("far", "context 512\n    place { require label=\"tier\" is=\"datacenter\" }"),
    ];
    let repository = lab.repository(&models.concat());
    repository.flock(&["apply", "--yes"]).expect(0);
    let engines = (lab.engines("small"), lab.engines("big"));

    lab.cut("small");
    let plan = repository.flock(&["plan", "--format", "json"]);
    let planned = plan.expect(9).json();
    assert_eq!(list(&planned, "/steps").len(), 0, "{planned:#}");
    repository.flock(&["plan"]).expect(9).expect_says("small");
    repository.flock(&["apply", "--yes"]).expect(9);
    assert_eq!((lab.engines("small"), lab.engines("big")), engines);

    lab.heal("small");
    repository.flock(&["plan", "--detailed-exitcode"]).expect(0);
    let status = repository.json(&["discover"]);
    assert!(list(&status, "/nodes").iter().all(|node| node.pointer("/reachable") == Some(&true.into())));
    assert_eq!(text(&status, "/nodes/0/name"), "big");
    repository.flock(&["destroy", "--yes"]).expect(0);
    lab.expect_nothing_left();
}

const CONSUMER: &str = "context 512\n    place { require label=\"tier\" is=\"consumer\" }";
const DATACENTER: &str = "context 512\n    place { require label=\"tier\" is=\"datacenter\" }";

/// The driver of `small` says something else about its cards.
fn change_cards(lab: &Lab, change: impl Fn(&mut Gpu)) {
    let mut gpus = three_hosts()[1].gpus.clone();
    gpus.iter_mut().for_each(change);
    lab.set_gpus("small", &gpus);
}

/// A saved plan is refused with what moved and by how much; what only wobbles, or lies elsewhere, is no reason.
#[test]
fn a_saved_plan_is_refused_when_what_it_relied_on_has_moved() {
    let lab = Lab::up(&three_hosts());
    let repository = lab.repository(&small_model("near", CONSUMER));
    let file = repository.beside("plan.json").display().to_string();
    repository.flock(&["plan", "--out", &file]).expect(0);

    // Somebody took a card's memory.
    change_cards(&lab, |gpu| gpu.used_mib = 20_000);
    let refused = repository.flock(&["apply", &file]);
    refused.expect(5).expect_says("small: free memory of GPU-b").expect_says(" GiB -> ").expect_says("since the plan");
    refused.expect_says(&format!("flock plan --out {file}"));
    // A card is gone, another is there in its place.
    change_cards(&lab, |gpu| gpu.uuid = gpu.uuid.replace("GPU-b", "GPU-c"));
    repository.flock(&["apply", &file]).expect(5).expect_says("small: accelerator GPU-b").expect_says("is gone");
    lab.expect_nothing_left();

    // Another controller, which planned from the same facts, was first.
    change_cards(&lab, |_| {});
    let other = lab.repository(&small_model("far", DATACENTER));
    let theirs = other.beside("plan.json").display().to_string();
    other.flock(&["plan", "--out", &theirs]).expect(0);
    // On the way, memory wobbles and a node that the plan does not touch goes away.
    change_cards(&lab, |gpu| gpu.used_mib = 100);
    lab.cut("plain");
    other.flock(&["apply", &theirs]).expect(9).expect_says("1 done");
    lab.heal("plain");
    let refused = repository.flock(&["apply", &file]);
    refused.expect(5).expect_says("small: another apply has been here (generation 0 -> 1, last by ada@");
    assert!(lab.engines("small").is_empty() && lab.engines("big").len() == 1);
    // Their own, a second time.
    other.flock(&["apply", &theirs]).expect(5).expect_says("this plan was applied already, by ada@");

    // Of another cluster, of another meaning, of no plan at all: told apart before any node is asked.
    let cluster = std::fs::read_to_string(repository.path("cluster.kdl")).expect("it is there");
    repository.write("cluster.kdl", cluster.replace("context 512", "context 1024"));
    let refused = repository.flock(&["apply", &file]);
    refused.expect(5).expect_says("another meaning since the plan").expect_says("changes not committed");
    repository.write("cluster.kdl", cluster.replace("cluster \"lab\"", "cluster \"other\""));
    repository.flock(&["apply", &file]).expect(5).expect_says("a plan for cluster `lab`, the config is of `other`");
}

/// Weights can be brought before anything is started, and a bad commit stops after as many failures as one allows.
#[test]
fn weights_come_first_where_asked_and_failures_end_an_apply() {
    let lab = Lab::up(&three_hosts());
    let broken = |name: &str| small_model(name, &format!("{CONSUMER}\n    argument \"--no-such-flag\" \"1\""));
    let repository = lab.repository(&[broken("first"), broken("second"), small_model("third", DATACENTER)].concat());
    let fetched = repository.flock(&["apply", "--yes", "--goal", "prefetch"]);
    fetched.expect(0).expect_says("to fetch");
    assert!(["big", "small", "plain"].into_iter().all(|host| lab.engines(host).is_empty()));
    let plan = repository.json(&["plan"]);
    assert_eq!((number(&plan, "/summary/fetch"), number(&plan, "/summary/start")), (0, 3), "{plan:#}");
    repository.flock(&["apply", "--yes", "--goal", "prefetch"]).expect(0);

    let applied = repository.flock(&["apply", "--yes", "--parallel", "1", "--max-fail", "1"]);
    applied.expect(8).expect_says("1 failed, as many as --max-fail allows").expect_says("second");
    assert!(lab.engines("big").is_empty(), "one at a time, and nothing after the first failure\n{applied}");
    for wrong in
        [&["apply", "--parallel", "0"][..], &["apply", "--goal", "some"], &["apply", "p.json", "--goal", "all"]]
    {
        repository.flock(wrong).expect(64);
    }
}
