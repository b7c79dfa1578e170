//! A driver that fails under running engines.

use crate::support::lab::{Lab, small_model, three_hosts};
use crate::support::{list, number, text};

/// The driver's library is upgraded while its old module is loaded: what runs is not touched, nothing new is placed
/// there, and the remedy is named. After the reboot's worth everything is as before.
#[test]
fn a_driver_upgraded_under_running_engines_stops_nothing() {
    let lab = Lab::up(&three_hosts());
    let consumer = "context 512\n    place { require label=\"tier\" is=\"consumer\" }";
    let repository = lab.repository(&small_model("near", consumer));
    repository.flock(&["apply", "--yes"]).expect(0);
    let engines = lab.engines("small");
    assert_eq!(engines.len(), 1);
    let gpus = lab.run("small", &["cat", "/opt/lab/gpus"]).expect(0).stdout.clone();
    let driver = |text: &str| {
        lab.run("small", &["sh", "-c", "printf '%s' \"$1\" > /opt/lab/gpus", "sh", text]).expect(0);
    };

    driver("! mismatch\n");
    let plan = repository.json(&["plan"]);
    assert_eq!(list(&plan, "/steps").len(), 0, "{plan:#}");
    assert!(list(&plan, "/unplaced").is_empty(), "its replica runs: {plan:#}");
    let decay: Vec<&str> = list(&plan, "/decay").iter().map(|one| text(one, "/text")).collect();
    assert!(decay.iter().any(|text| text.contains("reboot the node")), "{decay:?}");
    repository.flock(&["apply", "--yes"]);
    assert_eq!(lab.engines("small"), engines, "it serves on");
    repository.flock(&["discover", "--no-measure"]).expect(0).expect_says("reboot the node");

    // A second model finds no place there, and the words say why.
    let models = [small_model("near", consumer), small_model("next", consumer)].concat();
    repository.write("cluster.kdl", lab.cluster(&models));
    let plan = repository.json(&["plan"]);
    assert_eq!(number(&plan, "/summary/start"), 0, "{plan:#}");
    let unplaced = list(&plan, "/unplaced").first().expect("one model").to_string();
    assert!(unplaced.contains("next") && unplaced.contains("reboot the node"), "{unplaced}");

    driver(&gpus);
    let plan = repository.json(&["plan"]);
    assert_eq!(number(&plan, "/summary/start"), 1, "{plan:#}");
    assert_eq!(lab.engines("small"), engines);
    repository.flock(&["destroy", "--yes"]).expect(0);
}
