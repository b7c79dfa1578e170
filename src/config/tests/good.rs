//! What the documents promise to load, and what it means.

use std::time::Duration;

use super::*;
use crate::base::{Bytes, Diagnostic, EngineKind, GIB};
use crate::config::{Connection, Prune, Share, is_config_file};

#[test]
fn the_documented_example_loads_and_means_what_it_says() {
    let loaded = load(&example());
    let warnings: Vec<&str> = loaded.diagnostics.iter().map(|found| found.message.as_str()).collect();
    let quota = "no model has the label `group`: the quota limits nothing";
    let expected = |message: &&str| message.ends_with("accepted and not yet enforced") || *message == quota;
    assert!(warnings.iter().all(expected), "{warnings:#?}");
    let desired = desired(loaded);
    assert_eq!(desired.nodes["ada-1"].reserve.vram, Some(Bytes(2 * GIB)));
    assert_eq!(desired.nodes["ada-1"].reserve.ram, Some(Bytes(8 * GIB)));
    assert_eq!(desired.nodes["a100"].ssh.user.as_deref(), Some("flock"));
    assert_eq!(desired.nodes["here"].connection, Connection::Local);
    assert_eq!(desired.nodes["a100"].ports, (20_000, 20_999));
    assert_eq!(desired.engines[&EngineKind::Vllm].paths[0].path.value, "/opt/vllm/bin/vllm");
    let llava = &desired.models["llava"];
    assert_eq!((llava.priority.rank, llava.priority.preempts), (100, true));
    assert_eq!(llava.place.require[0].value.label, "tier");
    assert_eq!(llava.min_quality.as_ref().map(|quality| quality.value.name().to_owned()).as_deref(), Some("int8"));
    let coder = &desired.models["coder"];
    assert_eq!((coder.replicas.min, coder.replicas.max, coder.concurrency.value), (1, 2, 2));
    assert_eq!(coder.extras.weights_from.len(), 2);
    assert_eq!(desired.provider_models["opus"].model.value, "claude-3-opus-20240229");
    let vision = &desired.workflows["vision"];
    assert_eq!(vision.priority.rank, 50);
    assert_eq!(vision.keep.as_ref().map(|keep| keep.value), Some(Duration::from_secs(72 * 3600)));
    assert_eq!(vision.steps.len(), 4);
    assert_eq!(vision.steps["code"].attempts, 3);
    assert_eq!(desired.policies.prune.as_ref().map(|prune| prune.value), Some(Prune::Confirm));
    assert_eq!(desired.policies.stop_share.as_ref().map(|share| share.value), Some(Share(2500)));
    assert!(desired.policies.protects("llava"));
    assert_eq!(
        (desired.policies.quotas.len(), desired.policies.denials.len(), desired.policies.windows.len()),
        (1, 1, 1)
    );
    assert_eq!(desired.policies.moves_per_hour.as_ref().map(|most| most.value), Some(4));
    assert_eq!(desired.policies.approvals.len(), 1);
}

#[test]
fn schemas_whose_content_is_there_are_followed() {
    let mut tree = example();
    let schema = r#"{"type":"object","properties":{"tasks":{"type":"object"},"other":{"type":"array"}}}"#;
    tree.insert("workflows/schemas/tasks.json", TreeEntry::File(schema.as_bytes().to_vec()));
    let found = errors(&load(&tree));
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(found[0].starts_with("FLK145 workflows/vision.kdl:10:"), "{found:#?}");
    tree.insert("workflows/schemas/tasks.json", TreeEntry::File(schema.replace("tasks", "taks").into_bytes()));
    assert!(errors(&load(&tree))[0].contains("did you mean `taks`?"));
    tree.insert("workflows/schemas/tasks.json", TreeEntry::File(b"{".to_vec()));
    assert!(errors(&load(&tree))[0].starts_with("FLK148"));
}

#[test]
fn what_runs_by_itself_is_read_and_the_rest_only_where_included() {
    for (path, read) in [
        ("cluster.kdl", true),
        ("workflows/a.kdl", true),
        ("policies/a/b.kdl", true),
        ("nodes/a.kdl", false),
        ("sub/cluster.kdl", false),
        ("workflows/a.md", false),
    ] {
        assert_eq!(is_config_file(path), read, "{path}");
    }
    let tree = text_tree(&[
        ("cluster.kdl", "cluster \"lab\" { }\ninclude \"nodes/**/*.kdl\" \"cluster.kdl\""),
        ("nodes/a/b.kdl", "node \"b\" address=\"x\"\ninclude \"../*.kdl\""),
        ("nodes/c.kdl", "node \"c\" address=\"y\""),
        ("other/d.kdl", "not { read"),
    ]);
    let loaded = load(&tree);
    assert_eq!(loaded.files, ["cluster.kdl", "nodes/a/b.kdl", "nodes/c.kdl"]);
    assert_eq!(desired(loaded).nodes.len(), 2);
}

#[test]
fn one_machine_under_two_names_is_a_warning() {
    let loaded = load_cluster(
        "cluster \"lab\" { }\nnode \"a\" address=\"x\"\nnode \"b\" address=\"x\"\nnode \"c\" address=\"x\" { ssh port=2222 }",
    );
    assert_eq!(
        loaded.diagnostics.iter().map(|found| (found.id, found.line)).collect::<Vec<_>>(),
        [("FLK189", Some(3))]
    );
    assert!(loaded.desired.is_some());
}

#[test]
fn a_label_that_no_node_has_is_a_warning_with_the_nearest_one() {
    let found = |place: &str| {
        let loaded = load_cluster(&format!(
            "cluster \"lab\" {{ }}\nnode \"a\" address=\"x\" {{ label \"tier\" \"datacenter\" }}\n\
             node \"b\" address=\"y\"\nmodel \"m\" {{ source \"on-node:/m\"; place {{ {place} }} }}"
        ));
        assert!(loaded.desired.is_some(), "{:?}", loaded.diagnostics);
        let told = |one: &Diagnostic| (one.id, one.message.clone(), one.hint.clone().unwrap_or_default());
        loaded.diagnostics.iter().map(told).collect::<Vec<_>>()
    };
    for good in ["require label=\"tier\" is=\"datacenter\"", "require label=\"node\" is=\"b\"", "spread by=\"tier\""] {
        assert_eq!(found(good), [], "{good}");
    }
    let one = |place: &str, message: &str, hint: &str| {
        assert_eq!(found(place), [("FLK188", message.to_owned(), hint.to_owned())]);
    };
    let label = "no node has the label `teir`: the model finds no place";
    one("require label=\"teir\" is=\"datacenter\"", label, "did you mean `tier`?");
    let value = "no node has the label `tier` with `datacentre`: the model finds no place";
    one("require label=\"tier\" is=\"datacentre\"", value, "did you mean `datacenter`?");
    one(
        "prefer label=\"tier\" is=\"x\" weight=2",
        "no node has the label `tier` with `x`: it has no effect",
        "known here: `datacenter`",
    );
    let spread = "no node has the label `rack`: all of them count as one to spread over";
    one("spread by=\"rack\"", spread, "known here: `tier`");
}

#[test]
fn labels_of_an_inventory_count_once_it_is_there() {
    let loaded = load_cluster(
        "cluster \"lab\" { }\nnode \"a\" address=\"x\" { label \"tier\" \"consumer\" }\n\
         model \"m\" { source \"on-node:/m\"; place { require label=\"room\" is=\"B12\"; prefer label=\"tier\" is=\"big\" } }\n\
         deny \"d\" { when \"node.labels.site == 'cloud'\" }",
    );
    let desired = loaded.desired.expect("valid");
    let told = |found: &[Diagnostic]| found.iter().map(|one| (one.id, one.message.clone())).collect::<Vec<_>>();
    assert_eq!(told(&loaded.diagnostics).len(), 3, "{:?}", loaded.diagnostics);
    let with = |labels: &[(&str, &str)]| {
        let labels = labels.iter().map(|(label, is)| ((*label).to_owned(), (*is).to_owned())).collect();
        let facts = std::collections::BTreeMap::from([("a", &labels)]);
        let found = crate::config::with_labels_of_facts(loaded.diagnostics.clone(), &desired, &facts);
        found.iter().map(|one| one.message.split('`').nth(1).unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(with(&[]).len(), 3);
    assert_eq!(with(&[("room", "B12"), ("site", "cloud")]), ["tier"]);
    // What the config says of a label counts, whatever a file says.
    assert_eq!(with(&[("tier", "big"), ("site", "cloud")]), ["room", "tier"]);
}

#[test]
fn words_that_no_engine_of_the_model_acts_on_are_told() {
    let found = |engines: &str, words: &str| {
        let loaded = load_cluster(&format!(
            "cluster \"lab\" {{ defaults {{ place {{ allow cpu=#true }} }} }}\n\
             model \"m\" {{ source \"on-node:/m\"; {engines}; {words} }}"
        ));
        assert!(loaded.desired.is_some(), "{:?}", loaded.diagnostics);
        loaded.diagnostics.iter().map(|one| format!("{} {}", one.id, one.message)).collect::<Vec<_>>()
    };
    let effect =
        |word: &str, rest: &str| format!("FLK187 `{word}` has no effect: only llama.cpp acts on it, and {rest}");
    let vllm = "engine \"vllm\"";
    assert_eq!(found(vllm, "part \"vision\""), [effect("part", "vllm serves the vision tower with the layers")]);
    let keeps = effect("allow offload=#true", "vllm and sglang keep all layers on accelerators");
    assert_eq!(found("engine \"vllm\" \"sglang\"", "place { allow offload=#true }"), [keeps]);
    let cpu = effect("allow cpu=#true", "vllm is planned on accelerators alone");
    assert_eq!(found(vllm, "place { allow cpu=#true }"), [cpu]);
    // What all models have of the defaults, and what llama.cpp may serve, is no mistake.
    assert_eq!(found(vllm, "place { allow offload=#false }"), Vec::<String>::new());
    for engines in ["engine \"vllm\" \"llama.cpp\"", "concurrency 1"] {
        assert_eq!(found(engines, "part \"vision\"; place { allow offload=#true cpu=#true }"), Vec::<String>::new());
    }
}

#[test]
fn a_policy_about_what_nothing_has_is_a_warning_with_the_nearest_one() {
    let found = |policy: &str| {
        let loaded = load_cluster(&format!(
            "cluster \"lab\" {{ }}\nnode \"a\" address=\"x\" {{ label \"tier\" \"consumer\" }}\n\
             model \"small\" {{ source \"on-node:/m\"; label \"group\" \"nlp\" }}\n{policy}\n"
        ));
        assert!(loaded.desired.is_some(), "{:?}", loaded.diagnostics);
        let told = |one: &Diagnostic| (one.id, one.message.clone(), one.hint.clone().unwrap_or_default());
        loaded.diagnostics.iter().map(told).collect::<Vec<_>>()
    };
    let deny = |when: &str| found(&format!("deny \"d\" {{ when \"{when}\" }}"));
    for good in [
        "node.labels.tier == 'consumer' && model.name != 'small'",
        "model.labels.group in ('nlp') || node.name == 'a'",
        "node.labels.tier == 'datacenter'",
        "model.priority == 'x' && model.engine == 'vllm'",
    ] {
        assert_eq!(deny(good), [], "{good}");
    }
    let never = |what: &str| format!("{what}: this comparison is never true");
    let one = |when: &str, what: &str, hint: &str| {
        assert_eq!(deny(when), [("FLK188", never(what), hint.to_owned())], "{when}");
    };
    one("node.labels.teir == 'consumer'", "no node has the label `teir`", "did you mean `tier`?");
    one("node.labels.tier == 'consumr'", "no node has the label `tier` with `consumr`", "did you mean `consumer`?");
    one("!(model.name == 'smal')", "no model is called `smal`", "did you mean `small`?");
    one("node.name in ('a', 'b')", "no node is called `b`", "did you mean `a`?");
    one("node.site == 'x'", "no node has a site", "write `site \"…\"` in a node's block");
    let quota = |label: &str, is: &str| found(&format!("quota \"q\" label=\"{label}\" is=\"{is}\" accelerators=2"));
    assert_eq!(quota("group", "nlp"), []);
    let limits = |what: &str| format!("{what}: the quota limits nothing");
    let label = limits("no model has the label `gruop`");
    assert_eq!(quota("gruop", "nlp"), [("FLK188", label, "did you mean `group`?".to_owned())]);
    let value = limits("no model has the label `group` with `npl`");
    assert_eq!(quota("group", "npl"), [("FLK188", value, "did you mean `nlp`?".to_owned())]);
}

#[test]
fn ways_to_oneself_and_of_no_length_are_refused() {
    let found = |text: &str| errors(&load_cluster(&format!("cluster \"lab\" {{ }}\n{text}\n"))).join("\n");
    let workflow = |traffic: &str| {
        found(&format!(
            "model \"m\" {{ source \"on-node:/m\" }}\nagent \"a\" {{ model \"m\" }}\nagent \"b\" {{ model \"m\" }}\n\
             workflow \"w\" {{ step \"one\" agent=\"a\"; traffic {traffic} }}"
        ))
    };
    assert!(workflow("from=\"a\" to=\"a\"").contains("traffic from `a` to itself"));
    assert!(workflow("from=\"a\" to=\"b\" max-latency=\"0ms\"").contains("`max-latency` of 0 allows no way"));
    let provided =
        found("provider \"p\" protocol=\"openai\"\nmodel \"x\" { provider \"p\" name=\"x\"; max-latency \"0ms\" }");
    assert!(provided.contains("`max-latency` of 0 allows no way"), "{provided}");
    let agent = found("workflow \"w\" { step \"one\" agent=\"a\" }");
    assert!(agent.contains("no agent is named `a`"), "{agent}");
    let near = found("model \"m\" { source \"on-node:/m\"; place { near model=\"m\" } }");
    assert!(near.contains("`m` near itself"), "{near}");
}

#[test]
fn replicas_mean_what_is_documented() {
    let replicas = |text: &str| {
        let loaded = load_cluster(&format!("cluster \"lab\" {{ }}\nmodel \"m\" {{ source \"hf:a/b\"; {text} }}"));
        let replicas = desired(loaded).models["m"].replicas;
        (replicas.min, replicas.max)
    };
    assert_eq!(replicas(""), (1, 1));
    assert_eq!(replicas("replicas max=3"), (1, 3));
    assert_eq!(replicas("replicas min=0"), (0, 1));
    assert_eq!(replicas("replicas min=2"), (2, 2));
    assert_eq!(replicas("replicas min=0 max=2"), (0, 2));
}

#[test]
fn the_words_of_ssh_act_and_are_inherited() {
    let loaded = load_cluster(
        r#"cluster "lab" { ssh user="flock" jump="me@gate:2222,inner" trust-on-first-use=#true }
node "a" address="10.0.0.1"
node "b" address="10.0.0.2" { ssh jump="none" trust-on-first-use=#false port=2200 }
"#,
    );
    assert!(loaded.diagnostics.is_empty(), "{:?}", loaded.diagnostics);
    let desired = desired(loaded);
    let ssh = |name: &str| &desired.nodes[name].ssh;
    let jump = |name: &str| ssh(name).jump.as_ref().map(|jump| jump.value.clone());
    assert_eq!((jump("a").as_deref(), ssh("a").trust_on_first_use), (Some("me@gate:2222,inner"), Some(true)));
    assert_eq!((jump("b").as_deref(), ssh("b").trust_on_first_use), (Some("none"), Some(false)));
    assert_eq!((ssh("b").user.as_deref(), ssh("b").port), (Some("flock"), Some(2200)));

    let errors = errors(&load_cluster("cluster \"lab\" { ssh jump=\"gate:0\" }\n"));
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].contains("cluster.kdl:1:") && errors[0].contains("no port"), "{errors:?}");
}
