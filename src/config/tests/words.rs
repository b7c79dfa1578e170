//! Nothing is ignored: every word of the tables is in one sample, and decoding reads every word of it.

use std::collections::BTreeSet;

use super::*;
use crate::config::context::Context;
use crate::config::load as room;
use crate::config::schema::{NodeSpec, top_level};
use crate::config::syntax::Node;

const WORDS: &str = include_str!("../testdata/words.kdl");

fn sample() -> Tree {
    let mut tree = text_tree(&[("cluster.kdl", WORDS), ("more/a.kdl", "node \"more\" connection=\"local\"")]);
    for path in ["prompt.md", "schema.json", "allowed_signers"] {
        tree.insert(path, TreeEntry::Present { size: 1 });
    }
    tree
}

fn unread(node: &Node, found: &mut Vec<String>) {
    let place = |place: &crate::base::Place| format!("{}:{}", place.line, place.column);
    if !node.read.get() {
        found.push(format!("{} `{}`", place(node.place()), node.word()));
    }
    found.extend(
        node.entries
            .iter()
            .filter(|entry| !entry.read.get())
            .map(|entry| format!("{} {:?}", place(&entry.place), entry.value.value)),
    );
    node.children.iter().flatten().for_each(|child| unread(child, found));
}

fn missing(specs: &[&NodeSpec], nodes: &[&Node], way: &str, found: &mut Vec<String>) {
    for spec in specs {
        let way = format!("{way}/{}", spec.word);
        let here: Vec<&Node> = nodes.iter().copied().filter(|node| node.word() == spec.word).collect();
        if here.is_empty() {
            found.push(way);
            continue;
        }
        let given: BTreeSet<&str> = here
            .iter()
            .flat_map(|node| &node.entries)
            .filter_map(|entry| entry.key.as_ref())
            .map(|key| key.value.as_str())
            .collect();
        found.extend(spec.properties.iter().filter(|p| !given.contains(p.name)).map(|p| format!("{way} {}=", p.name)));
        if spec.word != "defaults" {
            let below: Vec<&Node> = here.iter().flat_map(|node| node.children.iter().flatten()).collect();
            missing(spec.children, &below, &way, found);
        }
    }
}

#[test]
fn every_word_of_the_tables_is_read_by_its_decoder() {
    let tree = sample();
    let mut cx = Context::new(&tree);
    let files = room::read(&mut cx, None);
    let desired = room::resolve(&files, &mut cx);
    let errors: Vec<_> = cx.found.iter().filter(|found| found.severity == Severity::Error).collect();
    assert!(errors.is_empty(), "{errors:#?}");
    assert!(desired.is_some());
    let mut found = Vec::new();
    files.values().flatten().for_each(|node| unread(node, &mut found));
    assert!(found.is_empty(), "accepted and then ignored: {found:#?}");

    let nodes: Vec<&Node> = files.values().flatten().collect();
    let mut found = Vec::new();
    missing(top_level(), &nodes, "", &mut found);
    // Each of these excludes another that is there.
    found.retain(|way| !matches!(way.as_str(), "/cluster/source tag=" | "/cluster/http/token env="));
    assert!(found.is_empty(), "words that the sample lacks: {found:#?}");
}

/// Every way to a word of the schema document, and to each property.
fn ways(nodes: &[crate::config::SchemaNode], way: &str, out: &mut BTreeSet<String>) {
    for node in nodes {
        let way = format!("{way}/{}", node.word);
        out.extend(node.properties.iter().map(|property| format!("{way} {}=", property.name)));
        ways(&node.children, &way, out);
        out.insert(way);
    }
}

/// The same of what is written.
fn written(nodes: &[Node], way: &str, out: &mut BTreeSet<String>) {
    for node in nodes {
        let way = format!("{way}/{}", node.word());
        out.extend(
            node.entries.iter().filter_map(|entry| entry.key.as_ref()).map(|key| format!("{way} {}=", key.value)),
        );
        node.children.iter().for_each(|children| written(children, &way, out));
        out.insert(way);
    }
}

#[test]
fn the_schema_has_every_word_that_is_accepted_and_no_other() {
    let (mut schema, mut accepted) = (BTreeSet::new(), BTreeSet::new());
    ways(&crate::config::schema().nodes, "", &mut schema);
    // The sample is accepted as a whole, and each of its words is read: see above.
    let tree = sample();
    let mut cx = Context::new(&tree);
    room::read(&mut cx, None).values().for_each(|nodes| written(nodes, "", &mut accepted));
    let unknown: Vec<_> = accepted.difference(&schema).collect();
    assert!(unknown.is_empty(), "accepted and not in the schema: {unknown:#?}");
    // `defaults` shares the children of `model`; the other two exclude one that is there.
    let shared = |way: &&String| way.starts_with("/cluster/defaults/");
    let excluded = |way: &&String| matches!(way.as_str(), "/cluster/source tag=" | "/cluster/http/token env=");
    let missing: Vec<_> = schema.difference(&accepted).filter(|way| !shared(way) && !excluded(way)).collect();
    assert!(missing.is_empty(), "in the schema and not accepted: {missing:#?}");
    let json = serde_json::to_value(crate::config::schema()).expect("plain data");
    assert_eq!((&json["format"], &json["qualities"][0][0]), (&1.into(), &"f32".into()));
    assert_eq!(json["nodes"][0]["word"], "cluster");
}

#[test]
fn what_is_left_out_is_what_the_schema_says() {
    let meaning = |line: &str, block: &str| {
        let head = "cluster \"lab\" {\n OBJECTIVE\n}\nnode \"a\" address=\"x\" NODE\nprovider \"p\" kind=\"anthropic\" PROVIDER\nmodel \"m\" { source \"hf:a/b\"; MODEL }\nagent \"b\" model=\"m\"\nworkflow \"w\" { INPUT; step \"s\" agent=\"b\" { prompt \"x\"; STEP } }\nPOLICY\n";
        let mut text = head.replace(line, block);
        for (mark, plain) in [
            ("OBJECTIVE", ""),
            ("NODE", ""),
            ("PROVIDER", ""),
            ("MODEL", "concurrency 1"),
            ("INPUT", "input \"i\""),
            ("STEP", "timeout \"5m\""),
            ("POLICY", "priority \"q\" rank=1"),
        ] {
            text = text.replace(mark, plain);
        }
        let loaded = load_cluster(&text);
        assert!(loaded.desired.is_some(), "{text}: {:#?}", errors(&loaded));
        loaded.config_digest
    };
    for (mark, written) in [
        ("OBJECTIVE", "objective { quality 100; latency 40; locality 20; cost 10; stability 60; balance 5 }"),
        ("NODE", "connection=\"ssh\""),
        ("NODE", "{ ports \"20000-20999\" }"),
        ("PROVIDER", "base-url=\"https://api.anthropic.com\""),
        ("PROVIDER", "{ retry attempts=1 }"),
        ("MODEL", "concurrency 1; replicas min=1 max=1"),
        ("MODEL", "concurrency 1; replicas min=1"),
        ("MODEL", "concurrency 1; place { allow cpu=#false offload=#false nodes=#false }"),
        ("INPUT", "input \"i\" type=\"string\""),
        ("STEP", "timeout \"5m\"; retry attempts=1"),
        ("POLICY", "priority \"q\" rank=1 preempts=#false"),
    ] {
        assert_eq!(meaning(mark, written), meaning("-", ""), "{written}");
    }
    fn all(nodes: &[crate::config::SchemaNode]) -> Vec<(String, Option<&'static str>)> {
        nodes
            .iter()
            .flat_map(|node| [vec![(node.word.to_owned(), node.default)], all(&node.children)].concat())
            .collect()
    }
    let schema = all(&crate::config::schema().nodes);
    let objective = crate::config::Objective::default();
    for (word, weight) in [
        ("latency", objective.latency),
        ("locality", objective.locality),
        ("cost", objective.cost),
        ("stability", objective.stability),
        ("balance", objective.balance),
    ] {
        let weight = weight.to_string();
        assert!(schema.iter().any(|(known, default)| known == word && *default == Some(weight.as_str())), "{word}");
    }
}

#[test]
fn what_the_schema_requires_is_missed() {
    fn required(nodes: &[crate::config::SchemaNode], way: &str, out: &mut Vec<String>) {
        for node in nodes {
            let way = format!("{way}/{}", node.word);
            required(&node.children, &way, out);
            if node.required {
                out.push(way);
            }
        }
    }
    let mut found = Vec::new();
    required(&crate::config::schema().nodes, "", &mut found);
    assert_eq!(found, ["/cluster/http/webhook/secret", "/cluster", "/deny/when"]);
    for text in [
        "cluster \"lab\" { http { webhook \"w\" } }",
        "node \"a\" address=\"x\"",
        "cluster \"lab\" { }\ndeny \"x\" { }",
    ] {
        assert!(load_cluster(text).desired.is_none(), "{text}");
    }
}

#[test]
fn defaults_reach_models_and_their_own_words_win() {
    let desired = desired(load(&sample()));
    assert_eq!(desired.models["nfs"].context.as_ref().map(|context| context.value), Some(4096));
    assert_eq!(desired.models["all"].context.as_ref().map(|context| context.value), Some(8192));
    assert_eq!(desired.models["all"].env["A"], "default");
    assert_eq!(desired.models["all"].env["B"], "own");
    assert_eq!(desired.nodes.len(), 8 + 3);
    assert_eq!(
        desired.models["all"].place.near.iter().map(|near| near.value.as_str()).collect::<Vec<_>>(),
        ["agent/planner", "opus"]
    );
}

#[test]
fn words_without_effect_yet_are_warnings_and_declarations_are_not() {
    let loaded = load(&sample());
    let words: BTreeSet<String> = loaded
        .diagnostics
        .iter()
        .map(|found| found.message.trim_end_matches(" is accepted and not yet enforced").to_owned())
        .collect();
    for word in ["`gateway`", "`http`", "`on-node-lost`", "`idle-stop`", "`archive`"] {
        assert!(words.contains(word), "{word} in {words:?}");
    }
    for word in [
        "`workflow`",
        "`agent`",
        "`tool`",
        "`provider`",
        "`quota`",
        "`deny`",
        "`window`",
        "`approval`",
        "`limit`",
        "`group`",
        "`currency`",
        "`price`",
        "`spot`",
        "`site`",
        "`label`",
        "`owner`",
        "`pack`",
        "`threshold`",
        "`prune`",
        "`jump=`",
        "`trust-on-first-use=`",
    ] {
        assert!(!words.contains(word), "{word}");
    }
}
