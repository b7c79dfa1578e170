//! `workflow "name" { … }`: declared processes of agents. Whether they make sense as programs is checked
//! in `program.rs`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::agent::{self, BUDGET, Budget, Text};
use super::context::{Context, PathRule};
use super::schema::{NodeSpec, Type, arg, optional, prop, rest};
use super::syntax::{Entry, Node};
use super::{Priority, ids, policy, values};
use crate::base::{Bytes, Place, Spanned};

/// The most steps of one workflow.
const MAX_STEPS: usize = 1000;

static INPUT: NodeSpec = NodeSpec::new("input", "what a session is started with")
    .args(&[arg("name", Type::Name)])
    .props(&[
        prop("type", Type::Word(&["string", "number", "boolean", "file", "list", "json"]), "its type")
            .default("string"),
        prop("default", Type::Scalar, "its value where none is given"),
    ])
    .many();
static KEEP: NodeSpec = NodeSpec::new("keep", "how long a session is kept").args(&[arg("time", Type::DurationOrZero)]);
static TRAFFIC: NodeSpec = NodeSpec::new("traffic", "what agents send to each other, for placement")
    .props(&[
        prop("from", Type::Name, "the agent that sends").required(),
        prop("to", Type::Name, "the agent that receives").required(),
        prop("per-turn", Type::Bytes, "bytes per turn"),
        prop("max-latency", Type::DurationOrZero, "longest way between them"),
    ])
    .many();
static STEP: NodeSpec = NodeSpec::new("step", "one step")
    .args(&[arg("name", Type::Name)])
    .props(&[prop("agent", Type::Name, "the agent that does it"), prop("after", Type::List, "steps that come before")])
    .children(&[
        &PROMPT,
        &AFTER,
        &OUTPUT,
        &FOR_EACH,
        &RETRY,
        &TIMEOUT,
        &REPEAT,
        &WHEN,
        &SUB_WORKFLOW,
        &APPROVAL,
        &WAIT,
        &BUDGET,
    ])
    .many();
static PROMPT: NodeSpec = NodeSpec::new("prompt", "what the agent is asked")
    .args(&[optional("text", Type::Template)])
    .props(&[prop("file", Type::Path, "file that holds it")]);
static AFTER: NodeSpec = NodeSpec::new("after", "steps that come before").args(&[rest("step", Type::Name)]);
static OUTPUT: NodeSpec =
    NodeSpec::new("output", "what the answer must be").props(&[prop("schema", Type::Path, "JSON schema").required()]);
static FOR_EACH: NodeSpec = NodeSpec::new("for-each", "once for each item of a list")
    .args(&[arg("list", Type::Template)])
    .props(&[prop("at-most", Type::Whole(1, 100_000), "at once").default("all")]);
static RETRY: NodeSpec = NodeSpec::new("retry", "how often a failed step is tried")
    .props(&[prop("attempts", Type::Whole(1, 100), "attempts in all").required()])
    .default("1");
static TIMEOUT: NodeSpec = NodeSpec::new("timeout", "deadline of the step").args(&[arg("time", Type::Duration)]);
static REPEAT: NodeSpec =
    NodeSpec::new("repeat", "goes back to an earlier step").args(&[arg("step", Type::Name)]).props(&[
        prop("until", Type::Template, "condition that ends it").required(),
        prop("at-most", Type::Whole(1, 100_000), "rounds in all").required(),
    ]);
static WHEN: NodeSpec =
    NodeSpec::new("when", "condition without which the step is skipped").args(&[arg("condition", Type::Template)]);
static SUB_WORKFLOW: NodeSpec =
    NodeSpec::new("workflow", "another workflow as a step").args(&[arg("name", Type::Name)]).children(&[&SUB_INPUT]);
static SUB_INPUT: NodeSpec = NodeSpec::new("input", "what it is started with")
    .args(&[arg("name", Type::Name), arg("value", Type::Template)])
    .many();
static APPROVAL: NodeSpec = NodeSpec::new("approval", "waits for somebody's yes").props(&[prop(
    "by",
    Type::List,
    "whose: people, or `@group`",
)
.required()]);
static WAIT: NodeSpec = NodeSpec::new("wait", "waits for a time or a signal")
    .args(&[optional("time", Type::DurationOrZero)])
    .props(&[prop("signal", Type::Name, "name of the signal")]);

/// `workflow`.
pub(super) static WORKFLOW: NodeSpec = NodeSpec::new("workflow", "a process of several agents")
    .args(&[arg("name", Type::Name)])
    .props(&[prop("priority", Type::Name, "priority of its requests and sessions")])
    .children(&[&INPUT, &KEEP, &STEP, &TRAFFIC])
    .many();

/// A declared process of agents.
#[derive(Debug, Clone, Serialize)]
pub struct Workflow {
    /// Its name.
    pub name: Spanned<String>,
    /// Priority of its requests and sessions.
    pub priority: Priority,
    /// What a session is started with.
    pub inputs: BTreeMap<String, Input>,
    /// How long a session is kept.
    pub keep: Option<Spanned<Duration>>,
    /// Its steps; their order is in `after`.
    pub steps: BTreeMap<String, Step>,
    /// What agents send to each other, in order of `from` and `to`.
    pub traffic: Vec<Traffic>,
}

/// What a session is started with.
#[derive(Debug, Clone, Serialize)]
pub struct Input {
    /// Its name.
    pub name: Spanned<String>,
    /// Its type.
    pub kind: InputKind,
    /// Its value where none is given.
    pub default: Option<String>,
}

/// The type of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum InputKind {
    /// A text.
    String,
    /// A number.
    Number,
    /// True or false.
    Boolean,
    /// A file, an image for example.
    File,
    /// A list of texts.
    List,
    /// Any JSON.
    Json,
}

/// One step of a workflow.
#[derive(Debug, Clone, Serialize)]
pub struct Step {
    /// Its name.
    pub name: Spanned<String>,
    /// What it does; `None` if it only waits or asks for approval.
    pub action: Option<Action>,
    /// Steps that come before, in order of their names.
    pub after: Vec<Spanned<String>>,
    /// Condition without which it is skipped.
    pub when: Option<Spanned<String>>,
    /// What it waits for before it acts.
    pub wait: Option<Spanned<Wait>>,
    /// Whose yes it needs before it acts.
    pub approval: Option<Spanned<Vec<String>>>,
    /// Once for each item of a list.
    pub for_each: Option<ForEach>,
    /// Goes back to an earlier step.
    pub repeat: Option<Repeat>,
    /// JSON schema of its answer, relative to the repository.
    pub output_schema: Option<Spanned<String>>,
    /// Attempts in all (1).
    pub attempts: u32,
    /// Its deadline.
    pub timeout: Option<Spanned<Duration>>,
    /// The most that may be spent.
    pub budget: Budget,
}

/// What a step does.
#[derive(Debug, Clone, Serialize)]
pub enum Action {
    /// Asks an agent.
    Agent {
        /// The agent.
        agent: Spanned<String>,
        /// What it is asked.
        prompt: Spanned<Text>,
    },
    /// Runs another workflow.
    Workflow {
        /// The workflow.
        workflow: Spanned<String>,
        /// What it is started with: templates by input.
        inputs: BTreeMap<String, Spanned<String>>,
    },
}

/// What a step waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Wait {
    /// A time.
    Time(Duration),
    /// A signal by name.
    Signal(String),
}

/// Once for each item of a list.
#[derive(Debug, Clone, Serialize)]
pub struct ForEach {
    /// The template that yields the list.
    pub list: Spanned<String>,
    /// At once; `None` is all.
    pub at_most: Option<u32>,
}

/// Going back to an earlier step.
#[derive(Debug, Clone, Serialize)]
pub struct Repeat {
    /// The step to go back to.
    pub step: Spanned<String>,
    /// The condition that ends it.
    pub until: Spanned<String>,
    /// Rounds in all.
    pub at_most: u32,
}

/// What agents send to each other.
#[derive(Debug, Clone, Serialize)]
pub struct Traffic {
    /// The agent that sends.
    pub from: Spanned<String>,
    /// The agent that receives.
    pub to: Spanned<String>,
    /// Bytes per turn.
    pub per_turn: Option<Bytes>,
    /// Longest way between them.
    pub max_latency: Option<Spanned<Duration>>,
}

pub(super) fn decode(node: &Node, cx: &mut Context<'_>) -> Option<Workflow> {
    let name = node.arg(0)?.spanned()?;
    let priority = cx.priority(node.prop("priority").and_then(Entry::spanned));
    let mut inputs: BTreeMap<String, Input> = BTreeMap::new();
    for child in node.all("input") {
        let Some(input) = input(child, cx) else { continue };
        if let Some(first) = inputs.get(&input.name.value) {
            duplicate("input", &input.name, &first.name.place, cx);
            continue;
        }
        inputs.insert(input.name.value.clone(), input);
    }
    let mut steps: BTreeMap<String, Step> = BTreeMap::new();
    let mut declared: BTreeMap<String, Place> = BTreeMap::new();
    let written: Vec<&Node> = node.all("step").collect();
    if written.is_empty() {
        let message = format!("workflow `{}` has no step", name.value);
        cx.error(ids::NO_STEPS, &name.place, message, "add `step \"…\" agent=\"…\" { prompt \"…\" }`");
    }
    if let Some(beyond) = written.get(MAX_STEPS) {
        cx.error(ids::OUT_OF_RANGE, beyond.place(), "more than 1000 steps", "move some into a workflow of their own");
        return None;
    }
    for child in written {
        let Some(step_name) = child.arg(0).and_then(Entry::spanned) else { continue };
        if let Some(first) = declared.get(&step_name.value) {
            let first = first.clone();
            duplicate("step", &step_name, &first, cx);
            continue;
        }
        declared.insert(step_name.value.clone(), step_name.place.clone());
        if let Some(step) = step(child, cx) {
            steps.insert(step.name.value.clone(), step);
        }
    }
    let mut traffic: Vec<Traffic> = node.all("traffic").filter_map(|child| decode_traffic(child, cx)).collect();
    traffic.sort_by(|a, b| (&a.from.value, &a.to.value).cmp(&(&b.from.value, &b.to.value)));
    let keep = node.child("keep").and_then(|child| child.arg(0)).and_then(|entry| entry.get(values::duration));
    Some(Workflow { name, priority, inputs, keep, steps, traffic })
}

fn duplicate(what: &str, name: &Spanned<String>, first: &Place, cx: &mut Context<'_>) {
    let message = format!("the {what} `{}` is declared twice", name.value);
    cx.error_about(ids::DUPLICATE_NAME, &name.place, message, "give it another name", (first, "first declared here"));
}

/// Names that templates hold have no dots.
fn template_name(what: &str, entry: Option<&Entry>, cx: &mut Context<'_>) -> Option<Spanned<String>> {
    let name = entry?.get(values::name)?;
    if name.value.contains(['.', '+']) {
        let message = format!("`.` or `+` in the name of {what}");
        cx.error(
            ids::BAD_NAME,
            &name.place,
            message,
            "templates name it between dots: use letters, digits, `_` and `-`",
        );
        return None;
    }
    Some(name)
}

fn input(node: &Node, cx: &mut Context<'_>) -> Option<Input> {
    let name = template_name("an input", node.arg(0), cx)?;
    let kind = match node.prop("type").and_then(Entry::text) {
        None | Some("string") => InputKind::String,
        Some("number") => InputKind::Number,
        Some("boolean") => InputKind::Boolean,
        Some("file") => InputKind::File,
        Some("list") => InputKind::List,
        Some("json") => InputKind::Json,
        Some(_) => return None,
    };
    let default = node.prop("default").and_then(|entry| entry.get(values::scalar)).map(|value| value.value);
    Some(Input { name, kind, default })
}

fn step(node: &Node, cx: &mut Context<'_>) -> Option<Step> {
    let name = template_name("a step", node.arg(0), cx);
    let mut after: Vec<Spanned<String>> = Vec::new();
    if let Some(entry) = node.prop("after") {
        let names = entry.get(values::list).map(|list| list.value).unwrap_or_default();
        after.extend(names.into_iter().map(|name| Spanned::new(name, entry.at().clone())));
    }
    after.extend(node.child("after").into_iter().flat_map(Node::args).filter_map(Entry::spanned));
    after.sort_by(|a, b| a.value.cmp(&b.value));
    after.dedup_by(|a, b| a.value == b.value);
    let template = |word: &str| node.child(word).and_then(|child| child.arg(0)).and_then(Entry::spanned);
    let (action, acts) = action(node, cx);
    let wait = node.child("wait").and_then(|child| wait(child, cx));
    let approval = node.child("approval").and_then(|child| {
        let by = child.prop("by")?;
        policy::approvers(by, cx);
        by.get(values::list)
    });
    if !acts && node.child("wait").is_none() && node.child("approval").is_none() {
        let place = node.arg(0).map_or(node.place(), Entry::at).clone();
        cx.error(
            ids::NO_STEPS,
            &place,
            "a step that does nothing",
            "add `agent=\"…\"` and a `prompt`, or `workflow`, `approval` or `wait`",
        );
    }
    let for_each = node.child("for-each").and_then(|child| {
        let at_most = child.prop("at-most").and_then(Entry::whole).map(|count| count.value);
        Some(ForEach { list: child.arg(0)?.spanned()?, at_most })
    });
    let repeat = node.child("repeat").and_then(|child| {
        let until = child.prop("until")?.spanned()?;
        let at_most = child.prop("at-most")?.whole()?.value;
        Some(Repeat { step: child.arg(0)?.spanned()?, until, at_most })
    });
    let output_schema =
        node.child("output").and_then(|child| child.prop("schema")).and_then(|entry| cx.path(entry, PathRule::Inside));
    let attempts = node
        .child("retry")
        .and_then(|child| child.prop("attempts"))
        .and_then(Entry::whole)
        .map_or(1, |count| count.value);
    let timeout = node.child("timeout").and_then(|child| child.arg(0)).and_then(|entry| entry.get(values::duration));
    let budget = agent::budget(node.child("budget"), cx);
    Some(Step {
        name: name?,
        action,
        after,
        when: template("when"),
        wait,
        approval,
        for_each,
        repeat,
        output_schema,
        attempts,
        timeout,
        budget,
    })
}

/// What a step does, and whether it says so at all (an action with errors is still one).
fn action(node: &Node, cx: &mut Context<'_>) -> (Option<Action>, bool) {
    let prompt = node.child("prompt");
    let text = prompt.and_then(|prompt| agent::text(prompt, cx));
    let workflow = node.child("workflow");
    let agent = node.prop("agent");
    if let (Some(agent), Some(workflow)) = (agent, workflow) {
        cx.error_about(
            ids::CONTRADICTION,
            workflow.place(),
            "a step with an agent and a workflow",
            "make two steps of it",
            (&agent.place, "the agent"),
        );
    }
    if let Some(entry) = agent {
        let Some(name) = entry.spanned() else { return (None, true) };
        cx.refer("agent", &name);
        if prompt.is_none() {
            cx.error(ids::MISSING_PROPERTY, &entry.place, "an agent that is asked nothing", "add `prompt \"…\"`");
        }
        return (text.map(|prompt| Action::Agent { agent: name, prompt }), true);
    }
    if let Some(prompt) = prompt {
        let hint = "add `agent=\"…\"` to the step";
        cx.error(ids::MISSING_PROPERTY, prompt.place(), "a prompt for nobody", hint);
        return (None, true);
    }
    let Some(workflow) = workflow else { return (None, false) };
    let mut inputs: BTreeMap<String, Spanned<String>> = BTreeMap::new();
    for child in workflow.all("input") {
        let (Some(name), Some(value)) = (child.arg(0).and_then(Entry::spanned), child.arg(1).and_then(Entry::spanned))
        else {
            continue;
        };
        if let Some(first) = inputs.get(&name.value) {
            let first = first.place.clone();
            duplicate("input", &name, &first, cx);
        }
        inputs.insert(name.value, value);
    }
    let Some(name) = workflow.arg(0).and_then(Entry::spanned) else { return (None, true) };
    cx.refer("workflow", &name);
    (Some(Action::Workflow { workflow: name, inputs }), true)
}

fn wait(node: &Node, cx: &mut Context<'_>) -> Option<Spanned<Wait>> {
    let place = node.place().clone();
    match (node.arg(0), node.prop("signal")) {
        (Some(time), None) => time.get(values::duration).map(|time| time.map(Wait::Time)),
        (None, Some(signal)) => signal.spanned().map(|name| name.map(Wait::Signal)),
        (None, None) => {
            cx.error(
                ids::MISSING_ARGUMENT,
                &place,
                "`wait` for nothing",
                "write `wait \"6h\"` or `wait signal=\"go\"`",
            );
            None
        }
        (Some(time), Some(signal)) => {
            cx.error_about(
                ids::CONTRADICTION,
                &signal.place,
                "a time and a signal to wait for",
                "make two steps of it",
                (time.at(), "the time"),
            );
            None
        }
    }
}

fn decode_traffic(node: &Node, cx: &mut Context<'_>) -> Option<Traffic> {
    let (from, to) = (node.prop("from").and_then(Entry::spanned), node.prop("to").and_then(Entry::spanned));
    for agent in from.iter().chain(&to) {
        cx.refer("agent", agent);
    }
    if let (Some(from), Some(to)) = (&from, &to)
        && from.value == to.value
    {
        let hint = "name two agents: what an agent says to itself goes nowhere";
        cx.error(ids::CONTRADICTION, &to.place, format!("traffic from `{}` to itself", from.value), hint);
    }
    Some(Traffic {
        from: from?,
        to: to?,
        per_turn: node.prop("per-turn").and_then(|entry| entry.get(values::bytes)).map(|bytes| bytes.value),
        max_latency: super::model::positive(node.prop("max-latency").and_then(|entry| entry.get(values::duration)), cx),
    })
}
