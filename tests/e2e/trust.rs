//! Hosts that are not who they were, not known, or not there.

use crate::support::lab::{Lab, small_model, three_hosts};
use crate::support::{list, text};

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
    repository.flock(&["ask", "far", "Say hello."]).expect(0);
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
