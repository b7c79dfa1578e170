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
    let files = room::read(&mut cx);
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
    for word in
        ["`gateway`", "`http`", "`jump=`", "`weights-from`", "`on-node-lost`", "`idle-stop`", "`archive`", "`group`"]
    {
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
        "`prune`",
    ] {
        assert!(!words.contains(word), "{word}");
    }
}
