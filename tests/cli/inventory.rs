//! Planning from a recorded inventory: no network, and an inventory that contradicts itself is refused.

use crate::support::{Repository, list, number, text};

const CONFIG: &str = r#"
cluster "lab"
node "one" address="10.255.255.1"
engine "llama.cpp" { path "/opt/llama.cpp/llama-server" }
"#;

fn repository(inventory: &str) -> Repository {
    let repository = Repository::with(&[("cluster.kdl", CONFIG)]);
    std::fs::write(repository.beside("inventory.json"), inventory).expect("a file");
    repository
}

/// Plans with a hand-written list of nodes.
fn plan(inventory: &str) -> crate::support::Outcome {
    let repository = repository(inventory);
    let file = repository.beside("inventory.json").display().to_string();
    repository.flock(&["plan", "--inventory", &file, "--format", "json"])
}

const CARD: &str =
    r#"{ "name": "NVIDIA GeForce RTX 4090", "memory": { "total_bytes": 25757220864, "free_bytes": 25757220864 } }"#;

#[test]
fn names_accelerators_and_memory_are_enough() {
    let outcome = plan(&format!(r#"{{ "format": 1, "nodes": [ {{ "name": "one", "accelerators": [{CARD}] }} ] }}"#));
    let plan = outcome.expect(0).json();
    assert_eq!(list(&plan, "/steps").len(), 0);
    assert_eq!(number(&plan, "/format"), 1);
}

#[test]
fn an_inventory_that_is_none_is_refused() {
    for inventory in
        ["", "{", "[]", "null", "{}", r#"{ "format": 2, "nodes": [] }"#, r#"{ "format": 1, "nodes": [], "colour": 1 }"#]
    {
        plan(inventory).expect(3).expect_says("inventory");
    }
    let repository = repository("");
    let missing = repository.flock(&["plan", "--inventory", "/no/such/inventory.json"]);
    assert!(matches!(missing.expect_says("/no/such/inventory.json").code, Some(1 | 3)), "{missing}");
}

#[test]
fn an_inventory_that_contradicts_itself_is_refused() {
    let node = |more: &str| format!(r#"{{ "name": "one", {more} }}"#);
    let with_uuid = |uuid: &str| CARD.replacen('{', &format!(r#"{{ "uuid": "{uuid}","#), 1);
    let two_names = format!("{}, {}", node(r#""accelerators": []"#), node(r#""accelerators": []"#));
    let two_uuids = node(&format!(r#""accelerators": [{}, {}]"#, with_uuid("GPU-1"), with_uuid("GPU-1")));
    let elsewhere = format!(
        r#"{{ "name": "two", "accelerators": [{}] }}, {}"#,
        with_uuid("GPU-1"),
        node(&format!(r#""accelerators": [{}]"#, with_uuid("GPU-1")))
    );
    let too_free = node(r#""accelerators": [{ "name": "x", "memory": { "total_bytes": 10, "free_bytes": 11 } }]"#);
    let too_used = node(r#""accelerators": [{ "name": "x", "memory": { "total_bytes": 10, "used_bytes": 11 } }]"#);
    let ram = node(r#""ram": { "total_bytes": 10, "available_bytes": 11 }"#);
    let link = node(&format!(
        r#""accelerators": [{}], "accelerator_links": [{{ "a": "GPU-1", "b": "GPU-2", "kind": "nvlink" }}]"#,
        with_uuid("GPU-1")
    ));
    let cases = [
        ("two nodes of one name", two_names),
        ("two accelerators of one UUID", two_uuids),
        ("one UUID on two nodes", elsewhere),
        ("more free than there is", too_free),
        ("more used than there is", too_used),
        ("more RAM available than there is", ram),
        ("a link to an accelerator that is not there", link),
    ];
    for (what, nodes) in cases {
        let outcome = plan(&format!(r#"{{ "format": 1, "nodes": [{nodes}] }}"#));
        assert_eq!(outcome.code, Some(3), "{what}\n{outcome}");
    }
}

#[test]
fn a_node_that_the_inventory_lacks_is_unreachable() {
    let outcome = plan(r#"{ "format": 1, "nodes": [] }"#);
    outcome.expect(9);
    let plan = outcome.json();
    let decay = list(&plan, "/decay");
    assert!(
        decay.iter().any(|one| text(one, "/node") == "one" && text(one, "/kind") == "node_unreachable"),
        "{plan:#}"
    );
}

#[test]
fn a_hub_model_without_a_lock_is_refused_by_plan() {
    let repository = repository(r#"{ "format": 1, "nodes": [ { "name": "one" } ] }"#);
    repository.write("cluster.kdl", format!("{CONFIG}\nmodel \"hub\" {{ source \"hf:a/b\"; engine \"llama.cpp\" }}\n"));
    let file = repository.beside("inventory.json").display().to_string();
    repository.flock(&["plan", "--inventory", &file]).expect(3).expect_says("hub");
}
