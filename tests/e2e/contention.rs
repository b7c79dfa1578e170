//! Two applies at once: one holds the lease, the other says who.

use std::time::Duration;

use crate::support::lab::{Lab, small_model, three_hosts};
use crate::support::{DEADLINE, wait_for};

#[test]
fn the_second_of_two_applies_names_the_holder() {
    let lab = Lab::up(&three_hosts());
    let models = [
        small_model("near", "context 512\n    place { require label=\"tier\" is=\"consumer\" }"),
        small_model("far", "context 512\n    place { require label=\"tier\" is=\"datacenter\" }"),
    ];
    let repository = lab.repository(&models.concat());
    repository.flock(&["discover"]).expect(0);

    // The first is stopped in mid-apply, so that the second surely meets it.
    let mut first = repository.start(&["apply", "--yes"]);
    let holder = format!("(pid {})", first.pid());
    wait_for("the first apply to hold the lease", Duration::from_secs(120), || {
        assert!(first.runs(), "the first apply ended before it was seen holding the lease");
        let held = |host: &str| {
            let file = lab.home(host, &format!(".local/share/flock/lab/{host}/lease.json"));
            std::fs::read_to_string(file).is_ok_and(|lease| lease.contains(&holder))
        };
        ["big", "small", "plain"].into_iter().all(held).then_some(())
    });
    first.signal("STOP");
    let second = repository.flock(&["apply", "--yes"]);
    first.signal("CONT");

    second.expect(6).expect_says(&holder).expect_says("ada");
    first.finish(DEADLINE).expect(0);
    repository.flock(&["apply", "--yes"]).expect(0);
    repository.flock(&["plan", "--detailed-exitcode"]).expect(0);
}
