//! What an engine took: measured by its node, kept there beyond the instance, shown, and planned with.

use std::time::Duration;

use flock::base::{EngineKind, MIB};
use flock::engine::read_memory;

use crate::support::lab::{Lab, small_model, three_hosts};
use crate::support::{Repository, list, number, text, wait_for};

const CPU: &str = "context 512\n    place { require label=\"node\" is=\"plain\"; allow cpu=#true }";

/// The status of the only instance of a model, once it was measured.
fn measured(repository: &Repository, model: &str) -> serde_json::Value {
    wait_for("a measurement", Duration::from_secs(120), || {
        let status = repository.json(&["status", model]);
        let instance = status.pointer("/models/0/instances/0")?.clone();
        instance.pointer("/measured_bytes")?.as_u64()?;
        Some(instance)
    })
}

/// On a real host: the figures are those of the engine's own log, nothing is planned again because of them, and an
/// inventory carries them to where no host can be asked.
#[test]
fn what_an_engine_took_is_kept_shown_and_planned_with() {
    let hosts: Vec<_> = three_hosts().into_iter().filter(|host| host.name == "plain").collect();
    let lab = Lab::up(&hosts);
    let repository = lab.repository(&small_model("slow", CPU));
    repository.flock(&["apply", "--yes"]).expect(0);
    let instance = measured(&repository, "slow");
    let (planned, taken) = (number(&instance, "/planned_bytes"), number(&instance, "/measured_bytes"));

    // As the engine's log says it, buffer by buffer.
    let log = repository.flock(&["logs", "slow"]);
    let told = read_memory(EngineKind::LlamaCpp, &log.expect(0).stdout).host.expect("buffers in the log");
    let inventory = repository.json(&["discover"]);
    let known = list(&inventory, "/nodes/0/calibrations");
    assert_eq!(known.len(), 1, "{inventory:#}");
    for (field, expected) in
        [("weights_bytes", told.weights_bytes), ("kv_bytes", told.kv_bytes), ("other_bytes", told.other_bytes)]
    {
        let found = known[0].pointer(&format!("/measured/host/{field}")).and_then(serde_json::Value::as_u64);
        assert_eq!(found, expected, "{field}: {:#}", known[0]);
    }
    assert!(taken >= told.total().expect("known") && taken < planned + planned / 5, "{taken} of {planned}");
    assert_eq!(number(&known[0], "/sized_for/context"), 512);
    eprintln!("{:#}", known[0]);

    // It changes nothing about what runs.
    repository.flock(&["plan", "--detailed-exitcode"]).expect(0);
    repository.flock(&["drift", "--detailed-exitcode"]).expect(0);
    let plan = repository.json(&["plan"]);
    assert_eq!(list(&plan, "/steps").len(), 0, "{plan:#}");
    assert_eq!(number(&plan, "/instances/0/memory/host/measured_bytes"), taken);
    assert!(number(&plan, "/instances/0/memory/host/total_bytes") >= taken, "{plan:#}");
    let status = repository.flock(&["status", "slow"]);
    status.expect(0).expect_says(" planned, ").expect_says(" MiB measured (");
    eprintln!("{}", status.stdout);
    let explained = repository.flock(&["explain", "slow"]);
    explained.expect(0).expect_says(" MiB measured (");
    eprintln!("{}", explained.stdout);

    // Without the host, from a file; and where a file says that more was taken, that is planned.
    let file = repository.beside("inventory.json");
    let path = file.display().to_string();
    repository.flock(&["discover", "--out", &path]).expect(0);
    lab.cut("plain");
    let offline = repository.json(&["plan", "--inventory", &path]);
    assert_eq!(list(&offline, "/steps").len(), 0, "{offline:#}");
    assert_eq!(number(&offline, "/instances/0/memory/host/measured_bytes"), taken);
    let mut written: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&file).expect("written")).expect("an inventory");
    let more = planned + 1024 * MIB;
    for place in ["/nodes/0/calibrations/0", "/nodes/0/instances/0/measured"] {
        written.pointer_mut(place).expect("measured")["measured"]["host"]["used_bytes"] = more.into();
    }
    std::fs::write(&file, written.to_string()).expect("written");
    let raised = repository.json(&["plan", "--inventory", &path]);
    assert_eq!(list(&raised, "/steps").len(), 0, "what runs stays: {raised:#}");
    assert!(number(&raised, "/instances/0/memory/host/total_bytes") >= more, "{raised:#}");
    assert_eq!(number(&raised, "/instances/0/memory/host/estimated_bytes"), planned);
    let warning = list(&raised, "/warnings").iter().find(|warning| text(warning, "/id") == "FLK406");
    assert!(text(warning.expect("a warning"), "/message").contains("where "), "{raised:#}");
    eprintln!("{}", repository.flock(&["plan", "--inventory", &path, "--full"]).stdout);
    lab.heal("plain");

    // It outlives the instance.
    repository.write("cluster.kdl", lab.cluster(""));
    repository.commit("nothing");
    repository.flock(&["apply", "--yes"]).expect(7);
    repository.write("cluster.kdl", lab.cluster(&small_model("other", CPU)));
    repository.commit("another name for the same");
    repository.flock(&["apply", "--yes"]).expect(0);
    let plan = repository.json(&["plan"]);
    assert_eq!(text(&plan, "/instances/0/model"), "other");
    assert!(plan.pointer("/instances/0/memory/host/measured_bytes").is_some_and(|bytes| bytes.is_u64()), "{plan:#}");
    repository.flock(&["destroy", "--yes"]).expect(0);
    lab.expect_nothing_left();
}
