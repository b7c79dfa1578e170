//! Nodes as labs have them: full disks, homes that run or take nothing; and what `flock doctor` says of them.

use crate::support::lab::{Lab, small_model, three_hosts};
use crate::support::{list, text};

fn check<'a>(document: &'a serde_json::Value, node: usize, id: &str) -> &'a serde_json::Value {
    let checks = list(document, &format!("/nodes/{node}/checks"));
    checks.iter().find(|check| check["id"] == id).unwrap_or_else(|| panic!("no {id} in {document:#}"))
}

/// One node that cannot hold a lease stops nobody who leaves it out.
#[test]
fn a_full_disk_on_one_node_is_left_out_of_apply_and_destroy() {
    let lab = Lab::up(&three_hosts());
    let near = small_model("near", "context 512\n    place { require label=\"tier\" is=\"consumer\" }");
    let repository = lab.repository(&near);
    repository.flock(&["discover"]).expect(0);
    // As full as can be: not one more file.
    let folder = "/root/.local/share/flock/lab";
    let full = ["sh", "-c", "mkdir -p $0 && mount -t tmpfs -o nr_inodes=1 tmpfs $0", folder];
    lab.run("big", &full).expect(0);
    let refused = repository.flock(&["apply", "--yes"]);
    refused.expect(1).expect_says("big").expect_says("No space left");
    assert!(lab.engines("small").is_empty(), "nothing was begun");
    repository.flock(&["apply", "--yes", "--exclude", "big"]).expect(0);
    repository.flock(&["ask", "near", "Say hello.", "--max-tokens", "16"]).expect(0);
    repository.flock(&["destroy", "--yes", "--exclude", "big"]).expect(0);
    assert!(lab.engines("small").is_empty());
}

/// A home where no program may run, and one where nothing can be written: each said before anything else fails.
#[test]
fn homes_that_run_or_take_nothing_are_named() {
    let lab = Lab::up(&three_hosts());
    let near = small_model("near", "context 512\n    place { require label=\"tier\" is=\"consumer\" }");
    let repository = lab.repository(&near);
    lab.run("big", &["mount", "-o", "remount,bind,noexec", "/root"]).expect(0);
    lab.run("small", &["mount", "-o", "remount,bind,ro", "/root"]).expect(0);
    let discovered = repository.flock(&["discover"]);
    discovered.expect(9).expect_says("noexec").expect_says("must be writable");
    let doctor = repository.flock(&["doctor", "--format", "json"]);
    let document = doctor.expect(9).json();
    assert_eq!(text(&document, "/nodes/0/node"), "big");
    for (node, word) in [(0, "noexec"), (2, "writable")] {
        let agent = check(&document, node, "agent");
        assert!(agent["health"] == "fail" && agent["remedy"].as_str().is_some_and(|remedy| remedy.contains(word)));
    }
    // With its agent there already, a home that became read-only is looked at, and its state is found unwritable.
    lab.run("small", &["mount", "-o", "remount,bind,rw", "/root"]).expect(0);
    repository.flock(&["discover", "--on", "small"]).expect(0);
    lab.run("small", &["mount", "-o", "remount,bind,ro", "/root"]).expect(0);
    repository.flock(&["discover", "--on", "small"]).expect(0);
    let document = repository.flock(&["doctor", "small", "--format", "json"]).expect(1).json();
    let home = check(&document, 0, "home");
    assert!(home["health"] == "fail" && home["text"].as_str().is_some_and(|text| text.contains("read-only")), "{home}");
    let refused = repository.flock(&["apply", "--yes", "--exclude", "big"]);
    refused.expect(1).expect_says("small").expect_says("Read-only file system");
}

/// A doctor needs the nodes alone: a model whose weights are not there is none of its business.
#[test]
fn a_doctor_looks_over_every_node_and_starts_nothing() {
    let lab = Lab::up(&three_hosts());
    let model = "model \"lost\" {\n    source \"path:/srv/models/nowhere.gguf\"\n    engine \"llama.cpp\"\n}\n";
    let repository = lab.repository(model);
    let document = repository.json(&["doctor"]);
    assert_eq!((list(&document, "/nodes").len(), text(&document, "/nodes/2/node")), (3, "small"));
    for node in 0..3 {
        for id in ["connection", "clock", "platform", "home", "home_disk", "driver", "engine.llama.cpp", "ports"] {
            assert_eq!(check(&document, node, id)["health"], "ok", "{document:#}");
        }
        assert_eq!(check(&document, node, "reboot")["health"], "warn", "the hosts have no systemd");
    }
    repository.flock(&["doctor"]).expect(0).expect_says("reboot").expect_says("small");
    lab.expect_nothing_left();
    assert!(!lab.home("small", ".local/share/flock/lab").exists(), "no state was made");
    lab.cut("big");
    let document = repository.flock(&["doctor", "--format", "json"]).expect(9).json();
    assert_eq!(document["nodes"][0]["reachable"], false);
    assert_eq!(check(&document, 0, "connection")["health"], "fail");
}
