//! Workflows of the config: their steps, the agents that do them, and the models those are.

use std::collections::BTreeSet;

use super::Graph;
use crate::config::{Action, Desired, Step, Wait};

/// The workflow graph; all workflows of the config.
pub fn workflow_graph(desired: &Desired) -> Graph {
    let mut graph = Graph::new("workflow", &desired.cluster.name.value);
    let mut agents: BTreeSet<&str> = BTreeSet::new();
    for (name, workflow) in &desired.workflows {
        let group = format!("workflow/{name}");
        let inputs: Vec<&str> = workflow.inputs.keys().map(String::as_str).collect();
        let lines = if inputs.is_empty() { Vec::new() } else { vec![format!("inputs: {}", inputs.join(", "))] };
        graph.group(group.clone(), name, lines);
        for (step_name, step) in &workflow.steps {
            let id = format!("step/{name}/{step_name}");
            graph.vertex(id.clone(), "step", Some(group.clone()), step_name.clone(), about(step));
            for before in &step.after {
                graph.arrow(format!("step/{name}/{}", before.value), id.clone(), "after", None);
            }
            if let Some(repeat) = &step.repeat {
                let to = format!("step/{name}/{}", repeat.step.value);
                graph.arrow(id.clone(), to, "repeat", Some(format!("at most {} times", repeat.at_most)));
            }
            match &step.action {
                Some(Action::Agent { agent, .. }) => {
                    agents.insert(&agent.value);
                    graph.arrow(id, format!("agent/{}", agent.value), "agent", None);
                }
                Some(Action::Workflow { workflow: other, .. }) => {
                    graph.arrow(id, format!("workflow/{}", other.value), "workflow", None);
                }
                None => {}
            }
        }
        for traffic in &workflow.traffic {
            let (from, to) = (&traffic.from.value, &traffic.to.value);
            agents.extend([from.as_str(), to.as_str()]);
            graph.arrow(format!("agent/{from}"), format!("agent/{to}"), "traffic", Some("traffic".to_owned()));
        }
    }
    played(&mut graph, desired, agents);
    // What an error of the config left out is not drawn to.
    let known: BTreeSet<String> =
        graph.nodes.iter().map(|v| v.id.clone()).chain(graph.groups.iter().map(|g| g.id.clone())).collect();
    graph.edges.retain(|edge| known.contains(&edge.from) && known.contains(&edge.to));
    graph
}

/// The agents, those they hand work to, and their models.
fn played<'a>(graph: &mut Graph, desired: &'a Desired, agents: BTreeSet<&'a str>) {
    let mut models: BTreeSet<&str> = BTreeSet::new();
    let (mut open, mut drawn) = (agents, BTreeSet::new());
    while let Some(name) = open.pop_first() {
        let Some(agent) = desired.agents.get(name).filter(|_| drawn.insert(name)) else { continue };
        let tools: Vec<&str> = agent.tools.iter().map(|tool| tool.value.as_str()).collect();
        let lines = if tools.is_empty() { Vec::new() } else { vec![format!("tools: {}", tools.join(", "))] };
        graph.vertex(format!("agent/{name}"), "agent", None, name.to_owned(), lines);
        models.insert(&agent.model.value);
        graph.arrow(format!("agent/{name}"), format!("model/{}", agent.model.value), "model", None);
        for other in &agent.delegate_to {
            open.insert(&other.value);
            graph.arrow(
                format!("agent/{name}"),
                format!("agent/{}", other.value),
                "delegate",
                Some("delegates".to_owned()),
            );
        }
    }
    for model in models {
        let lines = match desired.provider_models.get(model) {
            Some(provider) => vec![format!("{} of {}", provider.model.value, provider.provider.value)],
            None => Vec::new(),
        };
        graph.vertex(format!("model/{model}"), "model", None, model.to_owned(), lines);
    }
}

fn about(step: &Step) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(each) = &step.for_each {
        let most = each.at_most.map(|most| format!(", at most {most} at once")).unwrap_or_default();
        lines.push(format!("for each of a list{most}"));
    }
    match step.wait.as_ref().map(|wait| &wait.value) {
        Some(Wait::Signal(signal)) => lines.push(format!("waits for signal {signal}")),
        Some(Wait::Time(time)) => lines.push(format!("waits {} s", time.as_secs())),
        None => {}
    }
    if let Some(approval) = &step.approval {
        lines.push(format!("approved by {}", approval.value.join(", ")));
    }
    if step.when.is_some() {
        lines.push("only under a condition".to_owned());
    }
    lines
}
