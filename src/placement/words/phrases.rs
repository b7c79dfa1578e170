//! Shapes in words.

use crate::placement::{ModelDemand, Problem, Role, Shape};

/// Where a shape lies: `on one accelerator`, `over 2 equal accelerators`, `over ada-1's 3090 (22 layers) and 3070 (10
/// layers)`, `with 20 of 32 layers on one accelerator and 12 in host memory`.
pub fn on(problem: &Problem, demand: &ModelDemand, shape: &Shape) -> String {
    if shape.spans_nodes() {
        return spanned(problem, demand, shape);
    }
    let plain = match shape.ranks {
        0 => "on the CPU".to_owned(),
        1 => "on one accelerator".to_owned(),
        ranks => format!("over {ranks} equal accelerators"),
    };
    let layers = shape.further.iter().any(|part| part.role.is_none());
    let host = demand.host_layers(shape);
    let mut text = if host > 0 {
        let held: u32 = shape.layers.iter().sum();
        format!("with {held} of {} layers {plain} and {host} in host memory", held + host)
    } else if layers {
        format!("over {}", told(problem, shape))
    } else if shape.layers.len() > 1 {
        let each: Vec<String> = shape.layers.iter().map(u32::to_string).collect();
        format!("{plain} as stages of {} layers", each.join(", "))
    } else {
        plain
    };
    if let Some(part) = shape.further.iter().find(|part| part.role == Some(Role::Vision)) {
        let kind = part.group.first().map(|p| short(&problem.nodes[part.node].accelerators[*p].kind));
        text.push_str(&format!(", vision apart on {}", kind.unwrap_or_default()));
    } else if shape.vision {
        text.push_str(", vision beside the layers");
    }
    text
}

/// `over 2 nodes: a's CPU (12 layers) and b's 2 x 3090 (18 layers)`.
fn spanned(problem: &Problem, demand: &ModelDemand, shape: &Shape) -> String {
    let mut stages = shape.layers.iter().copied();
    let mut all = Vec::new();
    for (number, span) in shape.spans().enumerate() {
        let node = &problem.nodes[span.node];
        let what = match (span.ranks, span.group.first().map(|p| short(&node.accelerators[*p].kind))) {
            (0, _) | (_, None) => "CPU".to_owned(),
            (1, Some(kind)) => kind,
            (ranks, Some(kind)) => format!("{ranks} x {kind}"),
        };
        // The node that serves has no stage of its own where its layers are in host memory.
        let own = if number == 0 { span.ranks } else { span.ranks.max(1) };
        let layers: u32 = stages.by_ref().take(own).sum();
        let layers = if number == 0 && span.ranks == 0 { demand.host_layers(shape) } else { layers };
        all.push(format!("{}'s {what} ({layers} layers)", node.name));
    }
    let count = all.len();
    let last = all.pop().unwrap_or_default();
    format!("over {count} nodes: {} and {last}", all.join(", "))
}

/// Kinds with their layers, in the order of the stages.
fn told(problem: &Problem, shape: &Shape) -> String {
    let (tp, _) = shape.split();
    let mut stages = shape.layers.iter();
    let mut all: Vec<String> = Vec::new();
    let mut before = None;
    for (number, span) in shape.spans().enumerate() {
        if number > 0 && shape.further[number - 1].role.is_some() {
            continue;
        }
        let layers: u32 = stages.by_ref().take(span.ranks / (tp as usize).max(1)).sum();
        let node = &problem.nodes[span.node];
        let kind = span.group.first().map(|p| short(&node.accelerators[*p].kind)).unwrap_or_default();
        let whose = if before == Some(span.node) { String::new() } else { format!("{}'s ", node.name) };
        before = Some(span.node);
        let times = if span.ranks == 1 { String::new() } else { format!("{} x ", span.ranks) };
        all.push(format!("{whose}{times}{kind} ({layers} layers)"));
    }
    match all.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => all.concat(),
    }
}

/// `3090` of `NVIDIA GeForce RTX 3090 24576 MiB`: no maker, no family, no size.
fn short(kind: &str) -> String {
    let words: Vec<&str> = kind.split_whitespace().collect();
    let sized = words.last() == Some(&"MiB") && words.len() > 2;
    let words = if sized { &words[..words.len() - 2] } else { &words[..] };
    let common = ["NVIDIA", "GeForce", "RTX", "AMD", "Radeon", "Instinct", "Tesla"];
    let rest: Vec<&str> = words.iter().copied().skip_while(|word| common.contains(word)).collect();
    if rest.is_empty() { kind.to_owned() } else { rest.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_short() {
        assert_eq!(short("NVIDIA GeForce RTX 3090 24576 MiB"), "3090");
        assert_eq!(short("NVIDIA A100-SXM4-80GB 81920 MiB"), "A100-SXM4-80GB");
        assert_eq!(short("big"), "big");
        assert_eq!(short("NVIDIA"), "NVIDIA");
    }
}
