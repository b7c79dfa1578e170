//! What-if files: what they may say, and what is wrong with each other one, at its place.

use crate::base::Tree;
use crate::config::{Alteration, WhatIf, what_if};

const CLUSTER: &str = r#"
cluster "lab" { currency "USD" }
node "a100" address="10.0.0.1" { label "tier" "datacenter" }
node "ada-[1-2]" address="10.0.0.1{}"
engine "llama.cpp" { path "/opt/llama-server" }
priority "high" rank=9
model "chat" { source "on-node:/data/chat.gguf" }
"#;

fn read(texts: &[&str]) -> (Option<Vec<WhatIf>>, Vec<String>) {
    let tree: Tree = [("cluster.kdl", CLUSTER)].into_iter().collect();
    let files: Vec<(String, Vec<u8>)> =
        texts.iter().enumerate().map(|(n, text)| (format!("{n}.kdl"), text.as_bytes().to_vec())).collect();
    let (files, found) = what_if(&tree, &files);
    let told = |d: &crate::base::Diagnostic| {
        let place = format!("{}:{}:{}", d.file.as_deref().unwrap_or("-"), d.line.unwrap_or(0), d.column.unwrap_or(0));
        format!("{place} {} {} [{}]", d.id, d.message, d.hint.as_deref().unwrap_or(""))
    };
    (files, found.iter().map(told).collect())
}

#[test]
fn nodes_are_added_like_others_and_dropped_and_models_are_as_in_the_config() {
    let text = "// purchases\nadd node \"new-[1-3]\" like=\"ada-1\" price=\"2.00/h\" { label \"tier\" \"datacenter\" }\n\
                drop node \"a100\"\ndrop ada-2\nadd model \"judge\" { source \"on-node:/data/j.gguf\"; priority \"high\" }\n";
    let (files, found) = read(&[text]);
    assert_eq!(found, Vec::<String>::new());
    let names: Vec<String> = files.expect("valid")[0]
        .changes
        .iter()
        .map(|change| match change {
            Alteration::AddNode(node) => {
                assert_eq!(
                    (node.like.value.as_str(), node.price_per_hour.as_ref().map(|p| p.value.0)),
                    ("ada-1", Some(2_000_000))
                );
                assert_eq!(node.labels["tier"], "datacenter");
                format!("+{}", node.name.value)
            }
            Alteration::DropNode(name) => format!("-{}", name.value),
            Alteration::AddModel(model) => format!("{} {}", model.name.value, model.priority.rank),
        })
        .collect();
    assert_eq!(names, ["+new-1", "+new-2", "+new-3", "-a100", "-ada-2", "judge 9"]);
}

#[test]
fn a_later_file_knows_what_the_earlier_ones_did() {
    let (files, found) = read(&["drop node \"a100\"", "add node \"a100\" like=\"ada-1\""]);
    assert_eq!((files.map(|files| files.len()), found), (Some(2), Vec::new()));
    let (files, found) = read(&["add node \"x\" like=\"ada-1\"", "\nadd node \"x\" like=\"ada-1\""]);
    assert!(files.is_none());
    assert_eq!(found, ["1.kdl:2:10 FLK130 there is a node `x` already [give it another name]"]);
}

#[test]
fn a_dropped_name_is_free_for_one_node() {
    let (files, found) =
        read(&["drop node \"a100\"\nadd node \"a100\" like=\"ada-1\"\nadd node \"a100\" like=\"ada-1\""]);
    assert!(files.is_none());
    assert_eq!(found, ["0.kdl:3:10 FLK130 there is a node `a100` already [give it another name]"]);
    let again = "drop node \"a100\"\nadd node \"a100\" like=\"ada-1\"\ndrop node \"a100\"";
    assert_eq!(read(&[again]).1, Vec::<String>::new());
}

#[test]
fn places_of_what_is_read_are_those_of_the_file() {
    let text = "add node \"x\" like=\"ada-1\"\nadd model \"judge\" { source \"on-node:/data/j.gguf\"; context 8192 }";
    let tree: Tree = [("cluster.kdl", CLUSTER)].into_iter().collect();
    let files = what_if(&tree, &[("../buy/q3.kdl".to_owned(), text.as_bytes().to_vec())]).0.expect("valid");
    let [Alteration::AddNode(node), Alteration::AddModel(model)] = &files[0].changes[..] else { panic!("{files:?}") };
    assert_eq!(node.like.place.short(), "../buy/q3.kdl:1");
    assert_eq!(model.context.as_ref().expect("given").place.short(), "../buy/q3.kdl:2");
    // A path in it is relative to the root all the same.
    let tree: Tree = [("cluster.kdl", CLUSTER), ("models/j.gguf", "")].into_iter().collect();
    let text = b"add model \"judge\" { source \"path:models/j.gguf\" }".to_vec();
    assert!(what_if(&tree, &[("../buy/q3.kdl".to_owned(), text)]).0.is_some());
}

#[test]
fn of_thousands_of_unknown_names_the_first_are_guessed() {
    let lines: String = (0..5_000).map(|n| format!("drop node \"ada-{n}x\"\n")).collect();
    let (files, found) = read(&[&lines]);
    assert!(files.is_none());
    assert_eq!(found.len(), 5_000);
    let guessed = found.iter().filter(|one| one.contains("did you mean `ada-")).count();
    assert_eq!(guessed, 200);
    assert!(found[4_999].contains("0.kdl:5000:11 FLK131 no node is named `ada-4999x` [declare it"), "{}", found[4_999]);
}

#[test]
fn what_is_wrong_is_said_at_its_place() {
    let case = |text: &str, expected: &str| {
        let (files, found) = read(&[text]);
        assert!(files.is_none(), "{text}");
        assert!(found.len() == 1 && found[0].contains(expected), "{text}: {found:#?}");
        assert!(found[0].starts_with("0.kdl:"), "{found:?}");
        assert!(!found[0].ends_with("[]"), "no hint: {found:?}");
    };
    case("", "0.kdl:1:1 FLK152");
    case("// only a comment\n", "FLK152 the file changes nothing");
    case("drop node \"ada-9\"", "0.kdl:1:11 FLK131 no node is named `ada-9` [did you mean `ada-");
    case("drop a10", "did you mean `a100`");
    case("add node \"x\" like=\"ada\"", "0.kdl:1:14 FLK131 no node is named `ada`".trim_start_matches("0.kdl:1:14 "));
    case("add node \"x\"", "like");
    case("add node \"ada-1\" like=\"a100\"", "0.kdl:1:10 FLK130 there is a node `ada-1` already");
    case("add node \"x\" like=\"ada-1\" prize=\"2/h\"", "did you mean `price`");
    case("add node \"x\" like=\"ada-1\" price=\"2\"", "FLK118");
    case("add node \"x[2-1]\" like=\"ada-1\"", "upwards");
    case("drop node \"a100\"\ndrop node \"a100\"", "0.kdl:2:11 FLK130 the node `a100` is dropped twice");
    case("drop model \"chat\"", "replicas");
    case("ad node \"x\" like=\"ada-1\"", "did you mean `add`");
    case("add \"gpu\"", "neither a node nor a model");
    case("add", "does not say what");
    case("drop", "does not say what");
    case("node \"x\" like=\"ada-1\"", "`add node …`");
    case("add model \"chat\" { source \"on-node:/x\" }", "there is a model `chat` already");
    case("add model \"j\" { source \"on-node:/x\"; priority \"hihg\" }", "did you mean `high`");
    case("add model \"j\" { sorce \"on-node:/x\" }", "did you mean `source`");
    case("drop node \"a100", "FLK10");
    case("drop a100 ada-1", "one on each line");
}
