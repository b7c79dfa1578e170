//! Why a provider is reached through the node it is, and what an agent's traffic costs there.

use serde::Serialize;

use super::egress::{figures, is_way_out, ms};
use super::style::{Ink, Style, clean, table};
use crate::base::format_bytes;
use crate::config::Desired;
use crate::inventory::Inventory;
use crate::placement::{Distances, End, Traffic, Unplaced, traffic};
use crate::plan::{Egress, Plan};

/// `flock explain agent/NAME --format json`, and of a provider's model.
#[derive(Debug, Clone, Serialize)]
pub struct WayExplanation<'a> {
    /// 1.
    pub format: u32,
    /// The agent; `None` of a model.
    pub agent: Option<&'a str>,
    /// The model: of a provider, or one that runs on nodes and plays the agent.
    pub model: &'a str,
    /// The provider; `None` of a model on nodes.
    pub provider: Option<&'a str>,
    /// Longest time to connect that the model allows.
    pub max_latency_us: Option<u64>,
    /// Its ways out.
    pub egress: Vec<&'a Egress>,
    /// The same that could not be found.
    pub unplaced: Vec<&'a Unplaced>,
    /// What the agent's model and others send to each other, as placement counts it.
    pub traffic: Vec<Exchange>,
}

/// Traffic between two ends that have a place.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Exchange {
    /// Who wants it.
    pub because: String,
    /// A model.
    pub from: String,
    /// A model, or `agent/NAME` of one whose model is a provider's.
    pub to: String,
    /// Bytes per turn.
    pub bytes_per_turn: u64,
    /// How much it counts.
    pub weight: f64,
    /// Longest round trip.
    pub max_latency_us: Option<u64>,
    /// Nodes of the two ends and the measured round trip between them: of every replica the nearest of the other end.
    pub ways: Vec<Between>,
}

/// A pair of nodes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Between {
    /// A replica's node.
    pub from: String,
    /// The nearest node of the other end.
    pub to: String,
    /// `null` where nobody measured it.
    pub rtt_us: Option<u64>,
    /// What one turn is taken for.
    pub turn_us: u64,
}

impl<'a> WayExplanation<'a> {
    /// Of an agent; `None` where the config lacks it.
    pub fn of_agent(agent: &'a str, desired: &'a Desired, inventory: &Inventory, plan: &'a Plan) -> Option<Self> {
        let model = &desired.agents.get(agent)?.model.value;
        Some(Self::of(Some(agent), model, desired, inventory, plan))
    }

    /// Of a provider's model; `None` where the config lacks it.
    pub fn of_model(model: &str, desired: &'a Desired, inventory: &Inventory, plan: &'a Plan) -> Option<Self> {
        let (model, _) = desired.provider_models.get_key_value(model)?;
        Some(Self::of(None, model, desired, inventory, plan))
    }

    fn of(agent: Option<&'a str>, model: &'a str, desired: &'a Desired, inventory: &Inventory, plan: &'a Plan) -> Self {
        let provided = desired.provider_models.get(model);
        let mine = |way: &&Egress| way.provider_model == model && (agent.is_none() || way.agent.as_deref() == agent);
        let limit = provided.and_then(|provided| provided.max_latency.as_ref());
        let distances = Distances::of(inventory);
        let about = |flow: &Traffic| match (&flow.to, provided.is_some()) {
            (End::Out(key), true) => match agent {
                Some(agent) => key.strip_prefix("agent/") == Some(agent),
                None => users(desired, model).any(|user| key.strip_prefix("agent/") == Some(user)) || key == model,
            },
            (End::Model(to), false) => flow.from == model || to == model,
            (End::Out(_), false) => flow.from == model,
            _ => false,
        };
        let flows = traffic(desired).into_iter().filter(about);
        Self {
            format: 1,
            agent,
            model,
            provider: provided.map(|provided| provided.provider.value.as_str()),
            max_latency_us: limit.map(|limit| u64::try_from(limit.value.as_micros()).unwrap_or(u64::MAX)),
            egress: plan.egress.iter().filter(mine).collect(),
            unplaced: plan.unplaced.iter().filter(|unplaced| unplaced.model == model).collect(),
            traffic: flows.map(|flow| exchange(flow, plan, &distances)).collect(),
        }
    }
}

fn users<'d>(desired: &'d Desired, model: &'d str) -> impl Iterator<Item = &'d str> {
    desired.agents.iter().filter(move |(_, agent)| agent.model.value == model).map(|(name, _)| name.as_str())
}

fn exchange(flow: Traffic, plan: &Plan, distances: &Distances) -> Exchange {
    let places = |model: &str| -> Vec<&str> {
        let serving = plan.instances.iter().filter(|planned| planned.model == model && !planned.is_worker());
        serving.map(|planned| planned.node.as_str()).collect()
    };
    let (to, others) = match &flow.to {
        End::Model(model) => (model.clone(), places(model)),
        End::Node(node) => (format!("node/{node}"), vec![node.as_str()]),
        End::Out(key) => {
            let of = |way: &&Egress| match &way.agent {
                Some(agent) => key.strip_prefix("agent/") == Some(agent.as_str()),
                None => *key == way.provider_model,
            };
            (key.clone(), plan.egress.iter().filter(of).map(|way| way.node.as_str()).collect())
        }
    };
    let turns = distances.ways(flow.bytes_per_turn);
    let nearest = |from: &str| {
        let near =
            others.iter().min_by(|a, b| turns.seconds(from, a).total_cmp(&turns.seconds(from, b)).then(a.cmp(b)));
        near.map(|to| Between {
            from: from.to_owned(),
            to: (*to).to_owned(),
            rtt_us: distances.rtt_us(from, to),
            turn_us: (turns.seconds(from, to) * 1e6).round() as u64,
        })
    };
    Exchange {
        ways: places(&flow.from).into_iter().filter_map(nearest).collect(),
        because: flow.because,
        from: flow.from,
        to,
        bytes_per_turn: flow.bytes_per_turn,
        weight: flow.weight,
        max_latency_us: flow.max_latency_us,
    }
}

/// The same as text.
pub fn explain_way_text(explanation: &WayExplanation<'_>, style: &Style) -> String {
    let mut out = match (explanation.agent, explanation.provider) {
        (Some(agent), Some(provider)) => {
            style.heading(&format!("Agent {agent}, model {} of provider {provider}", explanation.model))
        }
        (Some(agent), None) => style.heading(&format!("Agent {agent}, model {}", explanation.model)),
        (None, provider) => {
            style.heading(&format!("Model {} of provider {}", explanation.model, provider.unwrap_or_default()))
        }
    };
    if explanation.provider.is_none() {
        let text = format!("its model runs on nodes; why there: flock explain {}", explanation.model);
        out.push_str(&style.beside("  ", &text));
    }
    for way in &explanation.egress {
        let of = way.agent.as_ref().map(|agent| format!("agent {agent} ")).unwrap_or_default();
        let lead = format!("  {of}{} {}: ", style.paint(Ink::Good, "via"), way.node);
        out.push_str(&style.beside(&lead, &format!("{} ({})", figures(way), clean(&way.because))));
        let rows: Vec<Vec<String>> = way
            .others
            .iter()
            .map(|other| vec![other.node.clone(), ms(other.rtt_us), ms(other.expected_us), clean(&other.reason)])
            .collect();
        if !rows.is_empty() {
            for line in table(&["NOT VIA", "CONNECTS IN", "EXPECTED", "WHY"], &rows).lines() {
                out.push_str(&format!("    {line}\n"));
            }
        }
    }
    for unplaced in explanation.unplaced.iter().filter(|unplaced| is_way_out(unplaced)) {
        let lead = format!("  {} ", style.paint(Ink::Bad, "no egress node."));
        out.push_str(&style.beside(&lead, &format!("Nearest change: {}", clean(&unplaced.nearest))));
        for reason in &unplaced.reasons {
            let node = if reason.node == "*" { "anywhere" } else { &reason.node };
            out.push_str(&style.beside(&format!("       {node}: {}: ", reason.constraint), &clean(&reason.text)));
        }
    }
    if let Some(limit) = explanation.max_latency_us {
        out.push_str(&style.beside("  ", &format!("at most {} to connect (max-latency)", ms(Some(limit)))));
    }
    if !explanation.traffic.is_empty() {
        out.push('\n');
        out.push_str(&style.heading(&format!("Traffic ({})", explanation.traffic.len())));
        for flow in &explanation.traffic {
            let limit = flow.max_latency_us.map(|limit| format!(", at most {}", ms(Some(limit)))).unwrap_or_default();
            let size = format!("{} per turn, weight {}{limit}", format_bytes(flow.bytes_per_turn), flow.weight);
            out.push_str(
                &style.beside(&format!("  {} - {}  ", flow.from, flow.to), &format!("{size} ({})", flow.because)),
            );
            for way in &flow.ways {
                let text = match (way.from == way.to, way.rtt_us) {
                    (true, _) => "the same node".to_owned(),
                    (false, Some(rtt)) => format!("{} round trip, {} a turn", ms(Some(rtt)), ms(Some(way.turn_us))),
                    (false, None) => format!("not measured, taken for {} a turn", ms(Some(way.turn_us))),
                };
                out.push_str(&style.beside(&format!("      {} - {}  ", way.from, way.to), &text));
            }
        }
    }
    out
}
