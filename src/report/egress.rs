//! The ways out to providers: which node each agent's requests go through, and why.

use std::collections::BTreeMap;

use super::style::{Ink, Style, clean};
use crate::placement::Unplaced;
use crate::plan::{Egress, Plan};

/// `11.2 ms`, or `?` where it is unknown.
pub(super) fn ms(us: Option<u64>) -> String {
    us.map_or_else(|| "?".to_owned(), |us| format!("{:.1} ms", us as f64 / 1000.0))
}

/// Whether what has no place is a provider's model without an egress node.
pub(super) fn is_way_out(unplaced: &Unplaced) -> bool {
    unplaced.reasons.iter().any(|reason| reason.constraint == "egress")
}

/// Ways out of one provider's model through one node: equal in all but the agent.
pub(super) struct Way<'p> {
    pub egress: &'p Egress,
    pub agents: Vec<&'p str>,
}

/// The ways out of a plan, those that differ by the agent alone together.
pub(super) fn ways(plan: &Plan) -> Vec<Way<'_>> {
    let mut ways: BTreeMap<(&str, &str, Option<u64>, &str), Way<'_>> = BTreeMap::new();
    for egress in &plan.egress {
        let key = (egress.provider_model.as_str(), egress.node.as_str(), egress.expected_us, egress.because.as_str());
        let way = ways.entry(key).or_insert_with(|| Way { egress, agents: Vec::new() });
        way.agents.extend(egress.agent.as_deref());
    }
    ways.into_values().collect()
}

/// `opus (planner) via ada-1`.
pub(super) fn title(way: &Way<'_>) -> String {
    let agents = if way.agents.is_empty() { String::new() } else { format!(" ({})", way.agents.join(", ")) };
    format!("{}{agents} via {}", way.egress.provider_model, way.egress.node)
}

/// `11.2 ms to api.anthropic.com:443; a100 18.0 ms`.
pub(super) fn figures(egress: &Egress) -> String {
    let mut text = match egress.rtt_us {
        Some(_) => format!("{} to {}", ms(egress.rtt_us), egress.endpoint),
        None => format!("to {}, not measured", egress.endpoint),
    };
    if let Some(expected) = egress.expected_us.filter(|expected| Some(*expected) != egress.rtt_us) {
        text.push_str(&format!(", {} with its traffic", ms(Some(expected))));
    }
    let shown = 3;
    for other in egress.others.iter().take(shown) {
        let own = ms(other.expected_us.or(other.rtt_us));
        text.push_str(&format!("; {} {}", other.node, if own == "?" { "unknown" } else { &own }));
    }
    if egress.others.len() > shown {
        text.push_str(&format!("; {} more", egress.others.len() - shown));
    }
    clean(&text)
}

/// The section of a plan.
pub(super) fn section(out: &mut String, plan: &Plan, style: &Style) {
    let ways = ways(plan);
    if ways.is_empty() {
        return;
    }
    out.push('\n');
    out.push_str(&style.heading(&format!("Ways out ({})", ways.len())));
    for way in ways {
        let lead = format!("  {}: ", style.paint(Ink::Heading, &clean(&title(&way))));
        out.push_str(&style.beside(&lead, &figures(way.egress)));
        if way.egress.because.starts_with("stays") || way.egress.rtt_us.is_none() {
            out.push_str(&style.beside("      ", &clean(&way.egress.because)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::EgressOption;
    use crate::plan::testing::World;
    use crate::report::{MARKDOWN_LIMIT, PlanView, placement_graph, plan_markdown, plan_text};

    fn way(agent: &str, node: &str, expected_us: Option<u64>) -> Egress {
        let other = |node: &str, us: Option<u64>| EgressOption {
            node: node.to_owned(),
            rtt_us: us,
            expected_us: us,
            reason: "x".to_owned(),
        };
        Egress {
            agent: Some(agent.to_owned()),
            provider_model: "claude".to_owned(),
            node: node.to_owned(),
            rtt_us: expected_us.map(|_| 11_200),
            endpoint: "api.anthropic.com:443".to_owned(),
            expected_us,
            because: "the least expected latency".to_owned(),
            others: vec![other("a100", Some(18_000)), other("b|`x`", None)],
        }
    }

    #[test]
    fn ways_out_are_told_with_their_figures() {
        let world = World::new(&[("ada-1", 1), ("a100", 1)]);
        let mut input = world.input();
        input.egress =
            vec![way("judge", "ada-1", Some(11_200)), way("plan", "ada-1", Some(11_200)), way("view", "a100", None)];
        let plan = crate::plan::plan(&input);
        let style = Style { colour: false, width: 200 };
        let text = plan_text(&plan, &PlanView::default(), &style);
        assert!(text.contains("Ways out (2)"), "{text}");
        let line = "claude (judge, plan) via ada-1: 11.2 ms to api.anthropic.com:443; a100 18.0 ms; b|`x` unknown";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("claude (view) via a100: to api.anthropic.com:443, not measured"), "{text}");
        let with_traffic = Egress { expected_us: Some(13_000), ..way("plan", "ada-1", Some(11_200)) };
        assert!(figures(&with_traffic).starts_with("11.2 ms to api.anthropic.com:443, 13.0 ms with its traffic; a100"));
        let comment = plan_markdown(&plan, &PlanView::default());
        assert!(comment.contains("<details><summary>Ways out (2)</summary>") && comment.len() < MARKDOWN_LIMIT);
        assert!(comment.contains("b\\|\\`x\\` unknown"), "{comment}");
        let graph = placement_graph(&plan, &world.inventory, &[]);
        let vertex = graph.nodes.iter().find(|vertex| vertex.id == "egress/claude@ada-1").expect("it is drawn");
        assert_eq!(vertex.lines, ["for judge, plan", "connects in 11.2 ms"]);
        assert!(graph.edges.iter().any(|edge| edge.from == "model/claude" && edge.to == "egress/claude@ada-1"));
        let bytes = serde_json::to_string(&plan).expect("plain data");
        assert_eq!(serde_json::from_str::<Plan>(&bytes).expect("what was saved"), plan);
    }
}
