//! Graphs of awkward names, checked against the grammar of what they are written in.

use super::*;
use crate::base::Tree;
use crate::config;
use crate::inventory::{Inventory, parse_inventory};
use crate::report::Style;

const NASTY: &str = "a\"b]|<script>`x` #1; \\n end &\u{e9}";

fn inventory() -> Inventory {
    let name = serde_json::to_string(NASTY).unwrap();
    parse_inventory(&format!(
        r#"{{ "format": 1, "nodes": [
            {{ "name": "big", "accelerators": [
                {{ "uuid": "GPU-a", "index": 0, "name": {name}, "memory": {{ "total_bytes": 85899345920, "used_bytes": 8589934592, "free_bytes": 77309411328 }} }},
                {{ "uuid": "GPU-b", "index": 1, "name": "NVIDIA A100", "memory": {{ "total_bytes": 85899345920 }} }}],
              "accelerator_links": [ {{ "a": "GPU-a", "b": "GPU-b", "kind": "nvlink", "bandwidth_bytes_per_s": 300000000000 }} ],
              "instances": [ {{ "instance": "abc", "specification": "s", "model": "coder", "replica": 0, "accelerators": ["GPU-a"], "port": 20000, "state": "ready" }} ] }},
            {{ "name": "plain" }}, {{ "name": "away", "reachable": false, "unreachable_reason": "no route" }} ],
          "links": [ {{ "from": "big", "to": "plain", "rtt_us": 180, "bandwidth_bytes_per_s": 1073741824, "measured": true }} ] }}"#
    ))
    .unwrap()
}

fn desired(text: &'static str) -> config::Desired {
    let loaded = config::load(&Tree::from_iter([("cluster.kdl", text)]));
    loaded.desired.unwrap_or_else(|| panic!("{:#?}", loaded.diagnostics))
}

fn hardware() -> Graph {
    let inventory = inventory();
    let observed = crate::plan::observe(&inventory, &Default::default());
    let desired = desired("cluster \"lab\"\nnode \"big\" address=\"10.0.0.1\" { hold \"new \\\"fan\\\"\" }\n");
    hardware_graph(&desired, &inventory, &observed)
}

fn workflows() -> Graph {
    workflow_graph(&desired(
        r#"cluster "lab"
node "big" address="10.0.0.1"
model "m" { source "on-node:/m.gguf" }
agent "end" model="m" { system "You plan." }
agent "subgraph" model="m" { system "You write."; delegate-to "end" }
workflow "graph" {
    step "look" agent="end" { prompt "Look." }
    step "write" agent="subgraph" after="look" { prompt "{{ steps.look.text }}" }
}
"#,
    ))
}

/// A quoted label: no quote, no backslash, no raw angle bracket but of `<br/>`, and every `#` an entity.
fn is_label(text: &str) -> bool {
    let Some(inner) = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) else { return false };
    let bare = inner.replace("<br/>", "");
    let entities = bare.split('#').skip(1).all(|rest| {
        rest.split_once(';')
            .is_some_and(|(name, _)| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric()))
    });
    let plain = bare.split('#').map(|part| part.split_once(';').map_or(part, |(_, rest)| rest)).collect::<String>();
    !inner.is_empty() && entities && !bare.contains(['"', '\\', '<', '>', '`', '&', '\n']) && !plain.contains(';')
}

fn is_id(text: &str) -> bool {
    text.len() > 1 && text.starts_with(['n', 'g']) && text[1..].chars().all(|c| c.is_ascii_digit())
}

/// The part of Mermaid's flowchart grammar that is used: one statement a line.
fn check_mermaid(text: &str) {
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("flowchart LR"));
    let mut depth = 0;
    for line in lines {
        let line = line.trim();
        let boxed = |text: &str| {
            let (id, label) = text.split_once('[').unwrap_or_default();
            is_id(id) && label.strip_suffix(']').is_some_and(is_label)
        };
        if line == "end" {
            depth -= 1;
        } else if let Some(rest) = line.strip_prefix("subgraph ") {
            depth += 1;
            assert!(boxed(rest), "{line}");
        } else if let Some((from, rest)) = line.split_once(" --") {
            let rest = rest.strip_prefix(['>', '-']).unwrap_or_else(|| panic!("{line}"));
            let to = match rest.strip_prefix('|') {
                Some(label) => {
                    let (label, to) = label.rsplit_once("| ").unwrap_or_else(|| panic!("{line}"));
                    assert!(is_label(label), "{line}");
                    to
                }
                None => rest.strip_prefix(' ').unwrap_or_else(|| panic!("{line}")),
            };
            assert!(is_id(from) && is_id(to), "{line}");
        } else {
            assert!(boxed(line), "{line}");
        }
        assert!(depth >= 0, "{text}");
    }
    assert_eq!(depth, 0, "{text}");
}

/// Balanced braces outside quotes, quotes that end on their line, statements that end in `;`, `{` or `}`.
fn check_dot(text: &str) {
    let mut depth = 0;
    for line in text.lines() {
        let (mut quoted, mut escaped) = (false, false);
        for c in line.chars() {
            match c {
                _ if escaped => escaped = false,
                '\\' if quoted => escaped = true,
                '"' => quoted = !quoted,
                '{' if !quoted => depth += 1,
                '}' if !quoted => depth -= 1,
                _ => {}
            }
        }
        assert!(!quoted && !escaped && line.ends_with([';', '{', '}']), "{line}");
    }
    assert_eq!(depth, 0, "{text}");
}

#[test]
fn whatever_things_are_called_the_drawing_is_valid() {
    for graph in [hardware(), workflows()] {
        check_mermaid(&graph_mermaid(&graph));
        check_dot(&graph_dot(&graph));
        let text = graph_text(&graph, &Style::PLAIN);
        assert!(!text.contains('\u{1b}') && text.contains("lab"), "{text}");
    }
}

#[test]
fn hardware_says_how_full_what_runs_and_how_fast_the_links_are() {
    let graph = hardware();
    let text = graph_text(&graph, &Style::PLAIN);
    for words in ["8.0 of 80.0 GiB used (10 %)", "coder/0 ready", "unreachable: no route", "held by config: new"] {
        assert!(text.contains(words), "{words} is not in {text}");
    }
    assert!(text.contains("nvlink 279.4 GiB/s") && text.contains("big -- plain  1.0 GiB/s, 0.18 ms"), "{text}");
    let json = serde_json::to_value(&graph).unwrap();
    assert_eq!(json.pointer("/format"), Some(&1.into()));
    assert_eq!(
        graph.nodes.iter().map(|v| v.id.as_str()).collect::<Vec<_>>(),
        ["host/away", "accelerator/GPU-a", "accelerator/GPU-b", "host/plain"]
    );
    assert!(graph_dot(&graph).contains("[label=\"1.0 GiB/s, 0.18 ms\", dir=none, ltail=cluster_g1, lhead=cluster_g2]"));
}

#[test]
fn workflows_show_steps_agents_and_models() {
    let graph = workflows();
    let edges: Vec<(&str, &str, &str)> =
        graph.edges.iter().map(|e| (e.from.as_str(), e.kind.as_str(), e.to.as_str())).collect();
    for edge in [
        ("step/graph/look", "after", "step/graph/write"),
        ("step/graph/write", "agent", "agent/subgraph"),
        ("agent/subgraph", "delegate", "agent/end"),
        ("agent/end", "model", "model/m"),
    ] {
        assert!(edges.contains(&edge), "{edge:?} is not in {edges:?}");
    }
}
