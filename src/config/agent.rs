//! `agent "name" model="…" { … }`: roles of workflows.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::context::{self, Context, PathRule};
use super::ids;
use super::schema::{NodeSpec, Property, Type, arg, optional, prop, rest};
use super::syntax::{Entry, Node};
use super::values::{self, Date, Money};
use crate::base::Spanned;

static SYSTEM: NodeSpec = NodeSpec::new("system", "its instructions")
    .args(&[optional("text", Type::Text)])
    .props(&[prop("file", Type::Path, "file that holds them")]);
static TOOL: NodeSpec = NodeSpec::new("tool", "tools it may call").args(&[rest("tool", Type::Name)]).many();
static DELEGATE_TO: NodeSpec =
    NodeSpec::new("delegate-to", "agents it may hand work to").args(&[rest("agent", Type::Name)]).many();
static TEMPERATURE: NodeSpec =
    NodeSpec::new("temperature", "how freely it chooses").args(&[arg("number", Type::Number(0.0, 2.0))]);
static MAX_TOKENS: NodeSpec =
    NodeSpec::new("max-tokens", "longest answer").args(&[arg("count", Type::Whole(1, u64::MAX))]);
/// Limits of what may be spent.
pub(super) const BUDGET_PROPERTIES: &[Property] = &[
    prop("tokens", Type::Whole(1, u64::MAX), "tokens in all"),
    prop("cost", Type::Money, "money in all"),
    prop("time", Type::Duration, "time in all"),
];
/// `budget`.
pub(super) static BUDGET: NodeSpec = NodeSpec::new("budget", "the most that may be spent").props(BUDGET_PROPERTIES);
static LABEL: NodeSpec =
    NodeSpec::new("label", "a fact about it").args(&[arg("name", Type::Name), arg("value", Type::Scalar)]).many();
static OWNER: NodeSpec = NodeSpec::new("owner", "whose it is").args(&[arg("name", Type::Text)]);
static EXPIRES: NodeSpec = NodeSpec::new("expires", "until when it is wanted").args(&[arg("date", Type::Date)]);

/// `agent`.
pub(super) static AGENT: NodeSpec = NodeSpec::new("agent", "a role: a prompt, tools and a model")
    .args(&[arg("name", Type::Name)])
    .props(&[prop("model", Type::Name, "the model that plays it").required()])
    .children(&[&SYSTEM, &TOOL, &DELEGATE_TO, &TEMPERATURE, &MAX_TOKENS, &BUDGET, &LABEL, &OWNER, &EXPIRES])
    .many();

/// A role: a prompt, tools and a model.
#[derive(Debug, Clone, Serialize)]
pub struct Agent {
    /// Its name.
    pub name: Spanned<String>,
    /// The model that plays it, in `models` or `provider_models`.
    pub model: Spanned<String>,
    /// Its instructions.
    pub system: Option<Spanned<Text>>,
    /// Tools it may call.
    pub tools: Vec<Spanned<String>>,
    /// Agents it may hand work to.
    pub delegate_to: Vec<Spanned<String>>,
    /// How freely it chooses; 0 to 2.
    pub temperature: Option<f64>,
    /// Longest answer.
    pub max_tokens: Option<u64>,
    /// The most that may be spent.
    pub budget: Budget,
    /// Facts about it.
    pub labels: BTreeMap<String, String>,
    /// Whose it is.
    pub owner: Option<Spanned<String>>,
    /// Until when it is wanted.
    pub expires: Option<Spanned<Date>>,
}

/// Instructions or a prompt, written here or in a file of the repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Text {
    /// The text itself.
    Inline(String),
    /// A file, relative to the repository.
    File(String),
}

/// Limits of what may be spent; `None` is no limit.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Budget {
    /// Tokens in all.
    pub tokens: Option<u64>,
    /// Money in all.
    pub cost: Option<Money>,
    /// Time in all.
    pub time: Option<Duration>,
}

/// Reads `budget`; one without a limit is an error.
pub(super) fn budget(node: Option<&Node>, cx: &mut Context<'_>) -> Budget {
    let Some(node) = node else { return Budget::default() };
    if node.entries.is_empty() {
        cx.error(
            ids::MISSING_PROPERTY,
            node.place(),
            "`budget` without a limit",
            "write `tokens=…`, `cost=\"…\"` or `time=\"…\"`",
        );
    }
    Budget {
        tokens: node.prop("tokens").and_then(Entry::whole).map(|count| count.value),
        cost: node.prop("cost").and_then(|entry| entry.get(values::money)).map(|cost| cost.value),
        time: node.prop("time").and_then(|entry| entry.get(values::duration)).map(|time| time.value),
    }
}

/// A text as an argument or as `file=`, of a node whose table has both.
pub(super) fn text(node: &Node, cx: &mut Context<'_>) -> Option<Spanned<Text>> {
    match (node.arg(0), node.prop("file")) {
        (Some(text), None) => text.spanned().map(|text| text.map(Text::Inline)),
        (None, Some(file)) => cx.path(file, PathRule::Inside).map(|path| path.map(Text::File)),
        (Some(text), Some(file)) => {
            cx.error_about(
                ids::CONTRADICTION,
                &file.place,
                "both a text and `file=`",
                "keep one of them",
                (text.at(), "the other one"),
            );
            None
        }
        (None, None) => {
            let message = format!("`{}` without a text", node.word());
            let hint = format!("write `{0} \"…\"` or `{0} file=\"…\"`", node.word());
            cx.error(ids::MISSING_ARGUMENT, node.place(), message, hint);
            None
        }
    }
}

pub(super) fn decode(node: &Node, cx: &mut Context<'_>) -> Option<Agent> {
    let name = node.arg(0)?.spanned()?;
    let model = node.prop("model").and_then(Entry::spanned);
    if let Some(model) = &model {
        cx.refer("model", model);
    }
    let tools: Vec<_> = node.all("tool").flat_map(Node::args).filter_map(Entry::spanned).collect();
    for tool in &tools {
        cx.refer("tool", tool);
    }
    let delegate_to: Vec<_> = node.all("delegate-to").flat_map(Node::args).filter_map(Entry::spanned).collect();
    for other in &delegate_to {
        cx.refer("agent", other);
        if other.value == name.value {
            cx.error(ids::CONTRADICTION, &other.place, "an agent that hands work to itself", "remove it");
        }
    }
    let first = |word: &str| node.child(word).and_then(|child| child.arg(0));
    Some(Agent {
        system: node.child("system").and_then(|system| text(system, cx)),
        temperature: first("temperature")
            .and_then(|entry| entry.get(|v| values::number(v, 0.0, 2.0)))
            .map(|number| number.value),
        max_tokens: first("max-tokens").and_then(Entry::whole).map(|count| count.value),
        budget: budget(node.child("budget"), cx),
        labels: context::labels(node.all("label"), cx),
        owner: first("owner").and_then(Entry::spanned),
        expires: first("expires").and_then(|entry| entry.get(values::date)),
        name,
        model: model?,
        tools,
        delegate_to,
    })
}
