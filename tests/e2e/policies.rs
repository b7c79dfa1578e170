//! Policies that hold steps back, on real hosts: what moved is remembered by the nodes, and a yes is kept there.

use crate::support::lab::{Lab, small_model, three_hosts};
use crate::support::{Repository, list, text};

const CONSUMER: &str = "place { require label=\"tier\" is=\"consumer\" }";
const DATACENTER: &str = "place { require label=\"tier\" is=\"datacenter\" }";

fn say(repository: &Repository, lab: &Lab, models: &str, policies: &str) {
    repository.write("cluster.kdl", lab.cluster(models));
    repository.write("policies/lab.kdl", policies);
    repository.commit("a change");
}

#[track_caller]
fn deferred(repository: &Repository) -> Vec<String> {
    let plan = repository.json(&["plan"]);
    assert!(list(&plan, "/steps").is_empty(), "{plan:#}");
    list(&plan, "/deferred")
        .iter()
        .map(|found| format!("{} {}", text(found, "/model"), text(found, "/reason")))
        .collect()
}

#[test]
fn moves_are_counted_over_applies_and_windows_and_approvals_hold() {
    let lab = Lab::up(&three_hosts());
    let guest = |place: &str| small_model("guest", &format!("context 512\n    {place}"));
    let repository = lab.repository(&guest(CONSUMER));
    repository.flock(&["apply", "--yes"]).expect(0);
    assert_eq!((lab.engines("small").len(), lab.engines("big").len()), (1, 0));

    let limit = "limit moves-per-hour=1\n";
    say(&repository, &lab, &guest(DATACENTER), limit);
    repository.flock(&["apply", "--yes"]).expect(0);
    let there = lab.engines("big");
    assert_eq!((lab.engines("small").len(), there.len()), (0, 1));

    // Back again is the second move of this hour, whoever asks.
    say(&repository, &lab, &guest(CONSUMER), limit);
    assert_eq!(deferred(&repository), ["guest moves_per_hour"]);
    repository
        .flock(&["plan"])
        .expect(0)
        .expect_says("limit moves-per-hour=1 (policies/lab.kdl:1): 1 in the past hour");
    repository.flock(&["apply", "--yes"]).expect(0);
    assert_eq!(lab.engines("big"), there);

    // A window of the whole day.
    let window = "window \"never\" deny=\"stop\" from=\"00:00\" to=\"24:00\" zone=\"Europe/Zurich\"\nprune \"auto\"\n";
    say(&repository, &lab, "", window);
    let other = small_model("other", &format!("context 512\n    {CONSUMER}"));
    say(&repository, &lab, &other, window);
    repository.flock(&["apply", "--yes"]).expect(0);
    assert_eq!(lab.engines("big"), there, "the window keeps it");
    assert_eq!(deferred(&repository), ["guest window"]);

    // Somebody else's yes.
    let approval = "approval verbs=\"stop\" by=\"ada@example.edu\"\nprune \"auto\"\n";
    say(&repository, &lab, &other, approval);
    let plan = repository.json(&["plan"]);
    let id = text(&list(&plan, "/approvals")[0], "/id").to_owned();
    repository.flock(&["apply", "--yes"]).expect(7).expect_says(&id);
    assert_eq!(lab.engines("big"), there);
    repository
        .flock(&["approve", "000000000000", "--by", "ada@example.edu", "--reason", "x"])
        .expect(1)
        .expect_says(&id);
    repository
        .flock(&["approve", &id, "--by", "eve@example.edu", "--reason", "x"])
        .expect(7)
        .expect_says("ada@example.edu");
    repository.flock(&["approve", &id, "--by", "ada@example.edu", "--reason", "it may go"]).expect(0);
    repository.flock(&["apply", "--yes"]).expect(0);
    assert!(lab.engines("big").is_empty(), "{:?}", lab.processes("big"));
    let member = repository.json(&["discover"]);
    assert!(member.pointer("/member/approvals").is_none(), "used up: {member:#}");
    assert_eq!(list(&member, "/member/moves").len(), 1, "a stop is no move");
    repository.flock(&["plan", "--detailed-exitcode"]).expect(0);
}
