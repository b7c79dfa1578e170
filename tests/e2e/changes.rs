//! What changes in git changes on the nodes, and nothing else does.

use crate::support::lab::{Lab, small_model, three_hosts};
use crate::support::{Repository, list, text};

const CONSUMER: &str = "place { require label=\"tier\" is=\"consumer\" }";
const DATACENTER: &str = "place { require label=\"tier\" is=\"datacenter\" }";

fn say(repository: &Repository, lab: &Lab, models: &[String]) {
    repository.write("cluster.kdl", lab.cluster(&models.concat()));
    repository.commit("a change");
}

/// The plan's steps other than fetches, as `verb model because`.
#[track_caller]
fn steps(repository: &Repository) -> Vec<String> {
    let plan = repository.json(&["plan"]);
    let steps = list(&plan, "/steps").iter().filter(|step| text(step, "/verb") != "fetch");
    let words = |step| format!("{} {} {}", text(step, "/verb"), text(step, "/model"), text(step, "/because"));
    let mut found: Vec<String> = steps.map(words).collect();
    found.sort();
    found
}

/// One model is added, changed, moved and removed; the other's process lives through all of it.
#[test]
fn a_model_is_added_changed_moved_and_removed() {
    let lab = Lab::up(&three_hosts());
    let stays = small_model("stays", &format!("context 512\n    {CONSUMER}"));
    let repository = lab.repository(&stays);
    repository.flock(&["apply", "--yes"]).expect(0);
    let untouched = lab.engines("small");
    assert_eq!(untouched.len(), 1);

    let added = small_model("guest", &format!("context 512\n    {CONSUMER}"));
    say(&repository, &lab, &[stays.clone(), added]);
    assert_eq!(steps(&repository), ["start guest added"]);
    repository.flock(&["apply", "--yes"]).expect(0);
    let both = lab.engines("small");
    assert_eq!(both.len(), 2);
    assert!(both.contains(&untouched[0]), "the other model was restarted");

    let changed = small_model("guest", &format!("context 1024\n    {CONSUMER}"));
    say(&repository, &lab, &[stays.clone(), changed]);
    assert_eq!(steps(&repository), ["change guest config"]);
    repository.flock(&["apply", "--yes"]).expect(0);
    let after = lab.engines("small");
    assert_eq!(after.len(), 2);
    assert!(after.contains(&untouched[0]), "the other model was restarted");
    assert_ne!(after, both);

    let moved = small_model("guest", &format!("context 1024\n    {DATACENTER}"));
    say(&repository, &lab, &[stays.clone(), moved]);
    assert_eq!(steps(&repository), ["move guest config"]);
    let shown = repository.flock(&["plan"]);
    shown.expect(0).expect_says("small").expect_says("big");
    repository.flock(&["apply", "--yes"]).expect(0);
    assert_eq!(lab.engines("small"), untouched);
    assert_eq!(lab.engines("big").len(), 1);
    repository.flock(&["ask", "guest", "Say hello.", "--max-tokens", "16"]).expect(0);

    say(&repository, &lab, std::slice::from_ref(&stays));
    assert_eq!(steps(&repository), ["stop guest removed"]);
    repository.flock(&["apply", "--yes"]).expect(0);
    assert!(lab.engines("big").is_empty());
    assert_eq!(lab.engines("small"), untouched);
    repository.flock(&["plan", "--detailed-exitcode"]).expect(0);

    // Comments and layout are no change.
    repository.write("cluster.kdl", format!("// a comment\n\n{}", lab.cluster(&stays).replace("    ", "  ")));
    repository.commit("layout");
    repository.flock(&["plan", "--detailed-exitcode"]).expect(0);
}

/// A node that leaves the config keeps nothing of this cluster: its engine is stopped by the next apply.
#[test]
fn a_removed_node_block_stops_its_engines() {
    let lab = Lab::up(&three_hosts());
    let stays = small_model("stays", &format!("context 512\n    {DATACENTER}"));
    let leaves = small_model("leaves", &format!("context 512\n    {CONSUMER}"));
    let repository = lab.repository(&[stays.clone(), leaves].concat());
    repository.flock(&["apply", "--yes"]).expect(0);
    let untouched = lab.engines("big");
    assert_eq!((untouched.len(), lab.engines("small").len()), (1, 1));

    repository.write("cluster.kdl", lab.cluster_without("small", &stays));
    repository.commit("small is given back");
    let plan = repository.flock(&["plan"]);
    plan.expect(0).expect_says("leaves").expect_says("small");
    repository.flock(&["apply", "--yes"]).expect(0);
    assert!(lab.engines("small").is_empty(), "{:?}", lab.processes("small"));
    assert!(lab.ports("small").is_empty(), "{:?}", lab.ports("small"));
    assert_eq!(lab.engines("big"), untouched);
    repository.flock(&["plan", "--detailed-exitcode"]).expect(0);
    repository.flock(&["destroy", "--yes"]).expect(0);
    lab.expect_nothing_left();
}

/// A protection survives the removal of its block and of its model; an empty config stops nothing.
#[test]
fn what_is_protected_is_not_stopped() {
    let lab = Lab::up(&three_hosts());
    let kept = small_model("kept", &format!("context 512\n    {CONSUMER}"));
    let other = small_model("other", &format!("context 512\n    {CONSUMER}"));
    let repository = lab.repository(&[kept, other.clone()].concat());
    repository.write("policies/lab.kdl", "protect model=\"kept\"\n");
    repository.commit("kept is protected");
    repository.flock(&["apply", "--yes"]).expect(0);
    let engines = lab.engines("small");
    assert_eq!(engines.len(), 2);

    std::fs::remove_file(repository.path("policies/lab.kdl")).expect("it is there");
    say(&repository, &lab, std::slice::from_ref(&other));
    let plan = repository.json(&["plan"]);
    let blocked = list(&plan, "/blocked");
    assert!(
        blocked.iter().any(|item| text(item, "/model") == "kept" && text(item, "/policy") == "protect"),
        "{plan:#}"
    );
    repository.flock(&["apply", "--yes"]).expect(7).expect_says("kept");
    assert_eq!(lab.engines("small"), engines);

    say(&repository, &lab, &[]);
    repository.flock(&["apply", "--yes"]).expect(7);
    assert_eq!(lab.engines("small"), engines, "an empty config stopped something");

    // Taken back by name and with a reason, the protection is gone from every node, and the model can go.
    say(&repository, &lab, std::slice::from_ref(&other));
    repository.flock(&["unprotect", "kept", "--reason", "the exam is over"]).expect(0);
    repository.flock(&["apply", "--yes"]).expect(0);
    assert_eq!(lab.engines("small").len(), 1);
    repository.flock(&["protect", "other", "--reason", "a demo"]).expect(0);
    repository.flock(&["destroy", "--yes"]).expect(7).expect_says("flock unprotect other");
    assert_eq!(lab.engines("small").len(), 1);
    repository.flock(&["unprotect", "other", "--reason", "demo done"]).expect(0);
    repository.flock(&["destroy", "--yes"]).expect(0);
    lab.expect_nothing_left();
}

/// One model cannot start; the other does, and the exit code and the words say both.
#[test]
fn a_failing_engine_is_a_partial_apply() {
    let lab = Lab::up(&three_hosts());
    let works = small_model("works", &format!("context 512\n    {CONSUMER}"));
    let broken =
        small_model("broken", &format!("context 512\n    argument \"--no-such-flag\" \"1\"\n    {DATACENTER}"));
    let repository = lab.repository(&[works.clone(), broken].concat());
    let applied = repository.flock(&["apply", "--yes"]);
    applied.expect(8).expect_says("broken").expect_says("works").expect_says("flock");
    repository.flock(&["ask", "works", "Say hello.", "--max-tokens", "16"]).expect(0);
    assert!(lab.engines("big").is_empty(), "{:?}", lab.processes("big"));

    // The commit that repairs it is not held up by what failed.
    let repaired = small_model("broken", &format!("context 512\n    {DATACENTER}"));
    say(&repository, &lab, &[works, repaired]);
    repository.flock(&["apply", "--yes"]).expect(0);
    repository.flock(&["ask", "broken", "Say hello.", "--max-tokens", "16"]).expect(0);
}

/// What fits nowhere is refused with what it needs and what there is, and the rest is still done.
#[test]
fn what_does_not_fit_is_refused_and_the_rest_is_done() {
    let lab = Lab::up(&three_hosts());
    let fits = small_model("fits", &format!("context 512\n    {CONSUMER}"));
    let nowhere = small_model("nowhere", "context 512\n    place { require label=\"tier\" is=\"moon\" }");
    let repository = lab.repository(&[fits, nowhere].concat());
    let plan = repository.flock(&["plan", "--format", "json"]);
    let unplaced = plan.expect(4).json();
    assert_eq!(text(&unplaced, "/unplaced/0/model"), "nowhere");
    assert_eq!(text(&unplaced, "/unplaced/0/reasons/0/constraint"), "selector", "{unplaced:#}");
    repository.flock(&["apply", "--yes"]).expect(4).expect_says("nowhere");
    repository.flock(&["ask", "fits", "Say hello.", "--max-tokens", "16"]).expect(0);
}
