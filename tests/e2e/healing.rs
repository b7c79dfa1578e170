//! What dies comes back: an engine by its node agent, both by the next apply, never by looking.

use std::time::Duration;

use crate::support::lab::{Lab, small_model, three_hosts};
use crate::support::{Repository, list, text, wait_for};

fn one_model(lab: &Lab) -> Repository {
    let place = "context 512\n    place { require label=\"tier\" is=\"consumer\" }";
    let repository = lab.repository(&small_model("near", place));
    repository.flock(&["apply", "--yes"]).expect(0);
    repository
}

/// The facts about the one instance on `small`.
fn instance(repository: &Repository) -> serde_json::Value {
    let inventory = repository.json(&["discover"]);
    let small = list(&inventory, "/nodes").iter().find(|node| text(node, "/name") == "small").expect("a node").clone();
    list(&small, "/instances").first().unwrap_or_else(|| panic!("no instance in {small:#}")).clone()
}

/// The node agent starts a killed engine again by itself, and says what happened.
#[test]
fn a_killed_engine_is_started_again() {
    let lab = Lab::up(&three_hosts());
    let repository = one_model(&lab);
    let killed = lab.engines("small");
    lab.kill(&killed);

    let engines = wait_for("the engine to come back", Duration::from_secs(120), || {
        let engines = lab.engines("small");
        (!engines.is_empty()).then_some(engines)
    });
    assert_ne!(engines, killed);
    let facts = wait_for("the engine to be ready", Duration::from_secs(120), || {
        let facts = instance(&repository);
        (text(&facts, "/state") == "ready").then_some(facts)
    });
    // Nobody can tell the kernel's SIGKILL from another's.
    assert!(["signal", "out_of_memory"].contains(&text(&facts, "/last_failure/cause")), "{facts:#}");
    assert!(text(&facts, "/last_failure/text").contains("signal 9"), "{facts:#}");
    assert!(facts.pointer("/starts").and_then(serde_json::Value::as_u64) >= Some(2), "{facts:#}");
    repository.flock(&["ask", "near", "Say hello.", "--max-tokens", "16"]).expect(0);
    repository.flock(&["plan", "--detailed-exitcode"]).expect(0);
    repository.flock(&["drift", "--detailed-exitcode"]).expect(0);
}

/// With its agent gone too nobody starts it: drift shows, looking changes nothing, apply heals.
#[test]
fn a_dead_agent_and_engine_are_drift_until_the_next_apply() {
    let lab = Lab::up(&three_hosts());
    let repository = one_model(&lab);
    lab.kill(&lab.agents("small"));
    lab.kill(&lab.engines("small"));
    assert!(lab.engines("small").is_empty(), "{:?}", lab.processes("small"));

    let drift = repository.flock(&["drift", "--detailed-exitcode"]);
    drift.expect(2).expect_says("near").expect_says("small");
    repository.flock(&["drift"]).expect(0);
    repository.flock(&["plan", "--detailed-exitcode"]).expect(2);
    let plan = repository.json(&["plan"]);
    assert_eq!(list(&plan, "/drift").len(), 1, "{plan:#}");
    let steps = list(&plan, "/steps");
    assert!(!steps.is_empty() && steps.iter().all(|step| text(step, "/because") == "drift"), "{plan:#}");
    repository.flock(&["status"]).expect(0);
    assert!(lab.engines("small").is_empty(), "looking started something: {:?}", lab.processes("small"));

    repository.flock(&["apply", "--yes"]).expect(0);
    assert_eq!(lab.engines("small").len(), 1);
    assert_eq!(lab.agents("small").len(), 1);
    repository.flock(&["ask", "near", "Say hello.", "--max-tokens", "16"]).expect(0);
    repository.flock(&["drift", "--detailed-exitcode"]).expect(0);
    repository.flock(&["destroy", "--yes"]).expect(0);
    lab.expect_nothing_left();
}

/// An agent that dies alone is replaced by the next apply, which takes the running engine over.
#[test]
fn a_dead_agent_alone_costs_no_restart() {
    let lab = Lab::up(&three_hosts());
    let repository = one_model(&lab);
    let engines = lab.engines("small");
    lab.kill(&lab.agents("small"));
    repository.flock(&["ask", "near", "Say hello.", "--max-tokens", "16"]).expect(0);
    repository.flock(&["apply", "--yes"]).expect(0);
    assert_eq!(lab.engines("small"), engines, "the engine was restarted");
    assert_eq!(lab.agents("small").len(), 1, "{:?}", lab.processes("small"));
    repository.flock(&["destroy", "--yes"]).expect(0);
    lab.expect_nothing_left();
}

/// An agent that lost all it knew finds the engine of its earlier life by its marks: nothing is doubled, the port is
/// not avoided for ever, and the model serves again.
#[test]
fn an_engine_of_an_earlier_life_is_recognised_and_taken_over() {
    let lab = Lab::up(&three_hosts());
    let repository = one_model(&lab);
    let port = instance(&repository)["port"].clone();
    lab.kill(&lab.agents("small"));
    let state = lab.home("small", ".local/share/flock/lab/small");
    for entry in std::fs::read_dir(&state).expect("the agent's state").flatten() {
        let path = entry.path();
        let removed = if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        removed.expect("it can be removed");
    }
    assert_eq!(lab.engines("small").len(), 1, "the engine outlives its agent");

    repository.flock(&["apply", "--yes"]).expect(0);
    assert_eq!(lab.engines("small").len(), 1, "{:?}", lab.processes("small"));
    repository.flock(&["ask", "near", "Say hello.", "--max-tokens", "16"]).expect(0);
    repository.flock(&["plan", "--detailed-exitcode"]).expect(0);
    // Whatever port it took over on, the old one is free again and the next start may have it.
    lab.kill(&lab.engines("small"));
    repository.flock(&["destroy", "--yes"]).expect(0);
    repository.flock(&["apply", "--yes"]).expect(0);
    assert_eq!(instance(&repository)["port"], port);
    repository.flock(&["destroy", "--yes"]).expect(0);
    lab.expect_nothing_left();
}
