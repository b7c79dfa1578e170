//! A graph as text, for Graphviz and for Mermaid.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{Edge, Graph, Vertex};
use crate::base::one_line;
use crate::report::style::{Ink, Style, clean};

/// Links that say only that two accelerators are in one machine, which the frame says already.
const NOT_DRAWN: &[&str] = &["numa", "system"];

fn drawn(graph: &Graph) -> impl Iterator<Item = &Edge> {
    graph.edges.iter().filter(|edge| !NOT_DRAWN.contains(&edge.kind.as_str()))
}

/// The graph as an indented list: what is in which frame, where its arrows go, then the links.
pub fn graph_text(graph: &Graph, style: &Style) -> String {
    let mut out = style.heading(&format!("{} of cluster \"{}\"", title(graph.kind), graph.cluster));
    let labels: BTreeMap<&str, &str> = graph
        .nodes
        .iter()
        .map(|vertex| (vertex.id.as_str(), vertex.label.as_str()))
        .chain(graph.groups.iter().map(|group| (group.id.as_str(), group.label.as_str())))
        .collect();
    let label = |id: &str| clean(labels.get(id).copied().unwrap_or(id));
    let vertex = |out: &mut String, vertex: &Vertex, indent: &str| {
        let mut text = clean(&vertex.lines.join("; "));
        let targets: Vec<String> = drawn(graph)
            .filter(|edge| edge.directed && edge.from == vertex.id)
            .map(|edge| match &edge.label {
                Some(words) => format!("{} ({})", label(&edge.to), clean(words)),
                None => label(&edge.to),
            })
            .collect();
        if !targets.is_empty() {
            let glue = if text.is_empty() { "" } else { "  " };
            let _ = write!(text, "{glue}-> {}", targets.join(", "));
        }
        out.push_str(&style.beside(&format!("{indent}{}  ", clean(&vertex.label)), &text));
    };
    for alone in graph.nodes.iter().filter(|vertex| vertex.group.is_none()) {
        vertex(&mut out, alone, "  ");
    }
    for group in &graph.groups {
        out.push('\n');
        let lead = format!("  {}  ", style.paint(Ink::Heading, &clean(&group.label)));
        out.push_str(&style.beside(&lead, &clean(&group.lines.join("; "))));
        for inside in graph.nodes.iter().filter(|vertex| vertex.group.as_ref() == Some(&group.id)) {
            vertex(&mut out, inside, "    ");
        }
    }
    let links: Vec<&Edge> = drawn(graph).filter(|edge| !edge.directed).collect();
    if !links.is_empty() {
        out.push('\n');
        out.push_str(&style.heading("Links"));
        for edge in links {
            let words = edge.label.as_deref().map(clean).unwrap_or_default();
            // Accelerators of two machines have one label.
            let end = |id: &str| match place(graph, id) {
                Some(group) => format!("{} {}", label(group), label(id)),
                None => label(id),
            };
            out.push_str(&style.beside(&format!("  {} -- {}  ", end(&edge.from), end(&edge.to)), &words));
        }
    }
    out
}

fn place<'g>(graph: &'g Graph, id: &str) -> Option<&'g str> {
    graph.nodes.iter().find(|vertex| vertex.id == id)?.group.as_deref()
}

fn title(kind: &str) -> &'static str {
    match kind {
        "hardware" => "Hardware",
        "placement" => "Placement",
        _ => "Workflows",
    }
}

/// Short names for ids, in order: an id may hold anything.
fn short(graph: &Graph) -> BTreeMap<&str, String> {
    let groups = graph.groups.iter().enumerate().map(|(number, group)| (group.id.as_str(), format!("g{number}")));
    let nodes = graph.nodes.iter().enumerate().map(|(number, vertex)| (vertex.id.as_str(), format!("n{number}")));
    groups.chain(nodes).collect()
}

/// The graph for Graphviz.
pub fn graph_dot(graph: &Graph) -> String {
    let names = short(graph);
    let mut out = format!(
        "digraph flock {{\n  label=\"{}\";\n  labelloc=t;\n  rankdir=LR;\n  compound=true;\n  node [shape=box];\n",
        dot_text(&[&format!("{} of {}", title(graph.kind), graph.cluster)])
    );
    let vertex = |out: &mut String, vertex: &Vertex, indent: &str| {
        let mut words = vec![vertex.label.as_str()];
        words.extend(vertex.lines.iter().map(String::as_str));
        let _ = writeln!(out, "{indent}{} [label=\"{}\"];", names[vertex.id.as_str()], dot_text(&words));
    };
    for group in &graph.groups {
        let mut words = vec![group.label.as_str()];
        words.extend(group.lines.iter().map(String::as_str));
        let name = &names[group.id.as_str()];
        let _ = writeln!(out, "  subgraph cluster_{name} {{\n    label=\"{}\";", dot_text(&words));
        // An edge to a frame is drawn to a point in it.
        let _ = writeln!(out, "    {name} [shape=point, style=invis];");
        for inside in graph.nodes.iter().filter(|vertex| vertex.group.as_ref() == Some(&group.id)) {
            vertex(&mut out, inside, "    ");
        }
        out.push_str("  }\n");
    }
    for alone in graph.nodes.iter().filter(|vertex| vertex.group.is_none()) {
        vertex(&mut out, alone, "  ");
    }
    let is_group = |id: &str| graph.groups.iter().any(|group| group.id == id);
    for edge in drawn(graph) {
        let (Some(from), Some(to)) = (names.get(edge.from.as_str()), names.get(edge.to.as_str())) else { continue };
        let mut attributes = Vec::new();
        if let Some(words) = &edge.label {
            attributes.push(format!("label=\"{}\"", dot_text(&[words])));
        }
        if !edge.directed {
            attributes.push("dir=none".to_owned());
        }
        if is_group(&edge.from) {
            attributes.push(format!("ltail=cluster_{from}"));
        }
        if is_group(&edge.to) {
            attributes.push(format!("lhead=cluster_{to}"));
        }
        let attributes = if attributes.is_empty() { String::new() } else { format!(" [{}]", attributes.join(", ")) };
        let _ = writeln!(out, "  {from} -> {to}{attributes};");
    }
    out.push_str("}\n");
    out
}

/// Lines inside a quoted string of DOT.
fn dot_text(lines: &[&str]) -> String {
    let escaped = lines.iter().map(|line| one_line(line).replace('\\', "\\\\").replace('"', "\\\""));
    escaped.collect::<Vec<_>>().join("\\n")
}

/// The graph for Mermaid.
pub fn graph_mermaid(graph: &Graph) -> String {
    let names = short(graph);
    let mut out = "flowchart LR\n".to_owned();
    let vertex = |out: &mut String, vertex: &Vertex, indent: &str| {
        let mut words = vec![vertex.label.as_str()];
        words.extend(vertex.lines.iter().map(String::as_str));
        let _ = writeln!(out, "{indent}{}[\"{}\"]", names[vertex.id.as_str()], mermaid_text(&words));
    };
    for group in &graph.groups {
        let mut words = vec![group.label.as_str()];
        words.extend(group.lines.iter().map(String::as_str));
        let _ = writeln!(out, "  subgraph {}[\"{}\"]", names[group.id.as_str()], mermaid_text(&words));
        for inside in graph.nodes.iter().filter(|vertex| vertex.group.as_ref() == Some(&group.id)) {
            vertex(&mut out, inside, "    ");
        }
        out.push_str("  end\n");
    }
    for alone in graph.nodes.iter().filter(|vertex| vertex.group.is_none()) {
        vertex(&mut out, alone, "  ");
    }
    for edge in drawn(graph) {
        let (Some(from), Some(to)) = (names.get(edge.from.as_str()), names.get(edge.to.as_str())) else { continue };
        let line = if edge.directed { "-->" } else { "---" };
        let label = edge.label.as_ref().map(|words| format!("|\"{}\"|", mermaid_text(&[words]))).unwrap_or_default();
        let _ = writeln!(out, "  {from} {line}{label} {to}");
    }
    out
}

/// Lines inside a quoted string of Mermaid, which knows no backslash: what it would obey is written as entities.
fn mermaid_text(lines: &[&str]) -> String {
    let escaped = lines.iter().map(|line| {
        let mut text = String::new();
        for c in one_line(line).chars() {
            match c {
                '"' => text.push_str("#quot;"),
                '<' => text.push_str("#lt;"),
                '>' => text.push_str("#gt;"),
                '&' => text.push_str("#amp;"),
                '#' => text.push_str("#35;"),
                '`' => text.push_str("#96;"),
                ';' => text.push_str("#59;"),
                '\\' => text.push_str("#92;"),
                other => text.push(other),
            }
        }
        text
    });
    let text = escaped.collect::<Vec<_>>().join("<br/>");
    // An empty string is no label.
    if text.is_empty() { " ".to_owned() } else { text }
}
